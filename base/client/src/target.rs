//! What a person types to name a server.

use std::fmt;

use percent_encoding::percent_decode_str;
use unslow_nodes::Plan;

use crate::{Error, ErrorKind};

/// A password. Its `Debug` shows nothing, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// For the AUTH command alone.
    /// The secret itself, to be sent to its server and nowhere else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// Host name or address, and port.
    Tcp(String, u16),
    /// Path of a unix socket.
    Unix(String),
}

impl Endpoint {
    /// Reads what [`Display`](fmt::Display) writes. Not for the text of a server, which must not name a socket of this
    /// machine: [`address_target`](crate::address_target) is.
    pub fn parse(text: &str) -> Option<Endpoint> {
        match text.strip_prefix("unix:") {
            Some(path) => Some(Endpoint::Unix(path.into())),
            // No port is 0, which no server has.
            None => host_port(text, 0).filter(|endpoint| !matches!(endpoint, Endpoint::Tcp(_, 0))),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp(host, port) => write!(f, "{host}:{port}"),
            Endpoint::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// A server to talk to, and as whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// One address, or several Sentinels of which any will do.
    pub endpoints: Vec<Endpoint>,
    /// TLS from the first byte.
    pub tls: bool,
    /// ACL user; `None` is the default user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Secret>,
    /// Database number.
    pub db: u32,
    /// The group's name at the Sentinels; `None` is every group they know.
    pub service: Option<String>,
}

impl Target {
    /// Logs in and selects the database.
    pub fn plan(&self) -> Plan<'_> {
        Plan {
            user: self.user.as_deref().map(str::as_bytes),
            password: self.password.as_ref().map(|password| password.reveal().as_bytes()),
            db: self.db,
            ..Plan::default()
        }
    }

    /// Reads `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix:`, `redis+sentinel://` and plain
    /// `host[:port]`, each with user, password and db.
    ///
    /// Fails with [`ErrorKind::BadUrl`]; the message never repeats the password.
    pub fn parse(text: &str) -> Result<Target, Error> {
        let bad = |why: &str| Error::new(ErrorKind::BadUrl, why.to_string());
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            let (userinfo, path) = path.split_once('@').map_or((None, path), |(u, p)| (Some(u), p));
            if !path.starts_with('/') {
                return Err(bad("a unix socket needs an absolute path, as in unix:/run/redis/redis.sock"));
            }
            let (user, password) = credentials(userinfo);
            let db = query.strip_prefix("db=").map_or(Ok(0), str::parse).map_err(|_| bad("db= takes a number"))?;
            return Ok(Target {
                endpoints: vec![Endpoint::Unix(path.into())],
                tls: false,
                user,
                password,
                db,
                service: None,
            });
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("redis", text));
        let (tls, sentinel) = match scheme {
            "redis" | "valkey" => (false, false),
            "rediss" | "valkeys" => (true, false),
            "redis+sentinel" | "valkey+sentinel" => (false, true),
            "rediss+sentinel" | "valkeys+sentinel" => (true, true),
            other => {
                return Err(bad(&format!(
                    "unknown scheme {other}://; use redis://, rediss:// (TLS), unix:/path or \
                     redis+sentinel://host:26379/service"
                )));
            }
        };
        // A bare / ? or # in the password would cut it in two, and the rest of it would be taken for something else.
        if let (Some(cut), Some(at)) = (rest.find(['/', '?', '#']), rest.rfind('@'))
            && at > cut
        {
            return Err(bad("percent-encode / ? # and @ in the user name and password (%2F %3F %23 %40)"));
        }
        let rest = rest.split(['?', '#']).next().unwrap_or("");
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
        let default_port = if sentinel { 26379 } else { 6379 };
        // Without an @ it may be a password whose host was forgotten.
        let invalid = |host: &str, is_host: bool| match is_host || !host.contains(':') {
            true => format!("invalid {host:?}; expected host[:port]"),
            false => format!("{}; expected host[:port], or :password@host[:port]", what_is_wrong(host)),
        };
        let endpoints = hosts
            .split(',')
            .map(|h| host_port(h, default_port).ok_or_else(|| bad(&invalid(h, userinfo.is_some()))))
            .collect::<Result<Vec<_>, _>>()?;
        let (user, password) = credentials(userinfo);
        let mut path_parts = path.split('/');
        let service = if sentinel { path_parts.next().filter(|s| !s.is_empty()).map(decode) } else { None };
        let db = match path_parts.next().filter(|s| !s.is_empty()) {
            Some(n) => n.parse().map_err(|_| bad("the path is the database number, as in redis://host:6379/0"))?,
            None => 0,
        };
        Ok(Target { endpoints, tls, user, password, db, service })
    }

    /// The same user and password at another address.
    pub fn at(&self, endpoint: Endpoint) -> Target {
        Target { endpoints: vec![endpoint], service: None, ..self.clone() }
    }

    /// The address, without user and password.
    pub fn address(&self) -> String {
        self.endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }

    /// A URL to paste, without the password.
    pub fn url(&self) -> String {
        match &self.endpoints[0] {
            Endpoint::Unix(path) => format!("unix:{path}"),
            _ => {
                let user = self.user.as_deref().map_or(String::new(), |u| format!("{u}@"));
                format!("redis{}://{user}{}", if self.tls { "s" } else { "" }, self.address())
            }
        }
    }
}

/// Schemes of URLs.
const SCHEMES: [&str; 8] = [
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "redis+sentinel",
    "rediss+sentinel",
    "valkey+sentinel",
    "valkeys+sentinel",
];

/// Of an address that cannot be read; nothing of it is repeated.
fn what_is_wrong(address: &str) -> &'static str {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match port.parse::<u32>() {
        _ if SCHEMES.contains(&host) => "a URL has two slashes after its scheme, as in redis://host:6379",
        Ok(1..=65535) if host.is_empty() => "there is no host before the port",
        Ok(_) => "a port is a number from 1 to 65535",
        Err(_) => "this is not an address",
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// `user:password`, `:password` or `user`.
fn credentials(userinfo: Option<&str>) -> (Option<String>, Option<Secret>) {
    let Some(userinfo) = userinfo else { return (None, None) };
    let (user, password) = userinfo.split_once(':').map_or((userinfo, None), |(u, p)| (u, Some(p)));
    (Some(decode(user)).filter(|u| !u.is_empty()), password.filter(|p| !p.is_empty()).map(|p| Secret(decode(p))))
}

/// `host`, `host:port`, `[v6]`, `[v6]:port`; a bare v6 address with a port, as CLUSTER NODES writes it, too.
pub(crate) fn host_port(text: &str, default_port: u16) -> Option<Endpoint> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        (host, after.strip_prefix(':'))
    } else {
        match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let port = port.map_or(Some(default_port), |p| p.parse().ok().filter(|&p| p != 0))?;
    let sane = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    sane.then(|| Endpoint::Tcp(host.to_string(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_type() {
        for (text, url, db) in [
            ("localhost", "redis://localhost:6379", 0),
            ("10.0.0.1:7000", "redis://10.0.0.1:7000", 0),
            ("valkeys://ann:p%40ss@h:1/3", "rediss://ann@h:1", 3),
            ("redis://:secret@[::1]:7000", "redis://[::1]:7000", 0),
            ("unix:/run/r.sock?db=2", "unix:/run/r.sock", 2),
            ("redis+sentinel://a,b:5/mymaster/1", "redis://a:26379,b:5", 1),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!((target.url().as_str(), target.db), (url, db), "{text}");
        }
        let target = Target::parse("redis://ann:p%40s:s@h").unwrap();
        assert_eq!(target.password.unwrap().reveal(), "p@s:s");
        assert_eq!(Target::parse("redis+sentinel://a/main").unwrap().service.as_deref(), Some("main"));
    }

    #[test]
    fn never_prints_the_password() {
        let target = Target::parse("redis://ann:hunter2@h").unwrap();
        assert!(!format!("{target:?} {} {}", target.url(), target.address()).contains("hunter2"));
        for text in
            ["redis://ann:hunter2@h:notaport", "redis://ann:hunter2/x@h", "redis://ann:hunter2?x@h", "ann:hunter2#@h"]
        {
            let error = Target::parse(text).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn says_what_is_wrong_with_an_address_without_repeating_it() {
        for (text, why) in [
            ("redis:host", "two slashes after its scheme"),
            ("rediss:10.0.0.1", "two slashes after its scheme"),
            (":99999", "from 1 to 65535"),
            ("host:0", "from 1 to 65535"),
            (":6379", "no host before the port"),
            ("ann:hunter2", "this is not an address; expected host[:port]"),
        ] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in ["http://h", "redis://", "redis://h:0", "redis://h:99999", "unix:relative", "redis://h/x", "a b"] {
            assert_eq!(Target::parse(text).unwrap_err().kind, ErrorKind::BadUrl, "{text}");
        }
    }
}
