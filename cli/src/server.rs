//! Which server is meant: a URL, or the flags that people type for redis-cli.

use std::ffi::OsString;

use anyhow::bail;
use clap::{ArgAction, Args};
use unslow_client::{Options, Secret, Target};

use crate::deployments;
use crate::reach::Reach;

/// Where no server is named.
const DEFAULT: &str = "127.0.0.1:6379";
const HEADING: &str = "Server, as for redis-cli";
/// Verbs that take these flags.
const VERBS: [&str; 9] = ["doctor", "keys", "top", "record", "bench", "watch", "gateway", "sink", "drill"];

/// A server named by flags; without any, and without a URL: UNSLOW_URL, or this machine's port 6379.
#[derive(Args, Clone, Default)]
pub struct Server {
    /// Server host, instead of a URL; without a value, print help
    #[arg(short = 'h', value_name = "HOST", help_heading = HEADING)]
    pub server_host: Option<String>,
    /// Its port [default: 6379]
    #[arg(short = 'p', long = "port", value_name = "PORT", help_heading = HEADING)]
    pub server_port: Option<u16>,
    /// Password; visible to other users on this machine, so prefer --password-file or UNSLOW_PASSWORD
    #[arg(short = 'a', long = "pass", value_name = "PASSWORD", help_heading = HEADING)]
    pub server_pass: Option<String>,
    /// Server URL, instead of -h and -p
    #[arg(short = 'u', long = "uri", value_name = "URL", help_heading = HEADING)]
    pub server_uri: Option<String>,
    /// Connect with TLS
    #[arg(long = "tls", help_heading = HEADING)]
    pub server_tls: bool,
    /// Database number
    #[arg(short = 'n', long = "db", value_name = "N", help_heading = HEADING)]
    pub server_db: Option<u32>,
    /// Print help
    #[arg(long = "help", action = ArgAction::Help)]
    server_help: Option<bool>,
}

/// A server, and how to reach it.
pub struct Reached {
    /// As it stands in the command line, or in `unslow.toml`.
    pub url: String,
    pub target: Target,
    pub options: Options,
}

impl Server {
    /// Whether flags name one.
    pub fn is_named(&self) -> bool {
        self.server_host.is_some() || self.server_port.is_some() || self.server_uri.is_some()
    }

    /// Whether any of the flags is there.
    pub fn is_given(&self) -> bool {
        self.is_named() || self.server_pass.is_some() || self.server_tls || self.server_db.is_some()
    }

    /// What was typed, or UNSLOW_URL, or this machine's.
    pub fn target(&self, typed: Option<&str>, reach: &Reach) -> anyhow::Result<Target> {
        let url = self.url(typed, of_environment())?;
        Ok(self.refined(&url, reach.target(&url)?))
    }

    /// The server of a URL, or of `@NAME` in `unslow.toml`, with these flags.
    pub fn reached(&self, url: &str, reach: &Reach) -> anyhow::Result<Reached> {
        let (url, reach) = deployments::reached(url, reach)?;
        let target = self.refined(&url, reach.target(&url)?);
        Ok(Reached { url, target, options: reach.options()? })
    }

    /// With the flags that are no address.
    fn refined(&self, url: &str, mut target: Target) -> Target {
        target.tls |= self.server_tls;
        target.db = self.server_db.unwrap_or(target.db);
        // The URL's own words win.
        if let Some(pass) = self.server_pass.as_ref().filter(|_| has_no_password(url)) {
            target.password = Some(Secret::new(pass));
        }
        target
    }

    fn url(&self, typed: Option<&str>, from_environment: Option<String>) -> anyhow::Result<String> {
        let address = self.address(typed)?;
        Ok(address.or(from_environment).unwrap_or_else(|| DEFAULT.to_string()))
    }

    /// What was typed, if anything was.
    pub fn address(&self, typed: Option<&str>) -> anyhow::Result<Option<String>> {
        let is_apart = self.server_host.is_some() || self.server_port.is_some();
        match (typed, self.server_uri.as_deref()) {
            (None, None) if is_apart => {
                let host = self.server_host.as_deref().unwrap_or("127.0.0.1");
                if let Some((name, port)) = host.split_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
                    bail!("-h takes a host; for {host}: -h {name} -p {port}, or the URL {host}");
                }
                let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
                Ok(Some(format!("{host}:{}", self.server_port.unwrap_or(6379))))
            }
            (Some(url), None) | (None, Some(url)) if !is_apart => Ok(Some(url.to_string())),
            (None, None) => Ok(None),
            _ => bail!("the server is named twice; expected a URL, or -h and -p, or -u"),
        }
    }
}

/// What UNSLOW_URL names.
pub fn of_environment() -> Option<String> {
    std::env::var("UNSLOW_URL").ok().filter(|url| !url.is_empty())
}

fn has_no_password(url: &str) -> bool {
    Target::parse(url).is_ok_and(|target| target.password.is_none())
}

/// `-h` with nothing behind it asks for help, as everywhere; with a value it is a host, as for redis-cli.
pub fn help_asked(mut words: Vec<OsString>) -> Vec<OsString> {
    let verb = verb_at(&words);
    let is_verb = words.get(verb).is_some_and(|verb| VERBS.iter().any(|v| verb == v));
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    for at in verb + 1..end {
        let is_flag = words.get(at + 1).is_none_or(|next| next.to_string_lossy().starts_with('-'));
        if is_verb && words[at] == "-h" && is_flag {
            words[at] = "--help".into();
        }
    }
    // Where the flags of a server are, clap takes --help from the verbs below as well.
    let is_below = |word: &OsString| OF_RECORD.iter().any(|verb| word == verb);
    if words.get(verb).is_some_and(|word| word == "record")
        && let Some(below) = words.get(verb + 1).filter(|word| is_below(word)).cloned()
        && words[verb + 2..end.max(verb + 2)].iter().any(|word| word == "--help")
    {
        return vec![words[0].clone(), "help".into(), "record".into(), below];
    }
    words
}

/// Verbs below `record`.
const OF_RECORD: [&str; 4] = ["ls", "export", "prune", "check"];

/// Where the verb is: behind flags that every verb has.
pub fn verb_at(words: &[OsString]) -> usize {
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()).filter(|word| word.starts_with('-')) {
        at += if word == "--format" { 2 } else { 1 };
    }
    at
}

/// `record -q ls DIR` as `-q record ls DIR`: behind a flag clap would take `ls` for a URL.
pub fn globals_first(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|verb| verb != "record") {
        return words;
    }
    let mut at = 2;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        at += match word {
            "-q" | "--quiet" | "-v" | "--verbose" => 1,
            "--format" => 2,
            _ if word.starts_with("--format=") => 1,
            _ => break,
        };
    }
    let at = at.min(words.len());
    let flags: Vec<OsString> = words.drain(2..at).collect();
    words.splice(1..1, flags);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(server: &Server, typed: Option<&str>) -> Option<String> {
        server.url(typed, None).ok()
    }

    #[test]
    fn a_server_is_named_by_flags_or_by_a_url_and_once() {
        let flags = |host: Option<&str>, port: Option<u16>, uri: Option<&str>| Server {
            server_host: host.map(Into::into),
            server_port: port,
            server_uri: uri.map(Into::into),
            ..Server::default()
        };
        let none = flags(None, None, None);
        assert_eq!(url(&none, None).as_deref(), Some(DEFAULT));
        assert_eq!(none.url(None, Some("redis://here:1".into())).unwrap(), "redis://here:1");
        assert_eq!(none.url(Some("there"), Some("redis://here:1".into())).unwrap(), "there");
        assert_eq!(url(&flags(Some("db"), None, None), None).as_deref(), Some("db:6379"));
        assert_eq!(url(&flags(None, Some(7000), None), None).as_deref(), Some("127.0.0.1:7000"));
        assert_eq!(url(&flags(Some("::1"), Some(7000), None), None).as_deref(), Some("[::1]:7000"));
        let both = flags(Some("db:7000"), None, None).url(None, None).unwrap_err().to_string();
        assert!(both.contains("-h db -p 7000"), "{both}");
        assert_eq!(url(&flags(None, None, Some("rediss://a")), None).as_deref(), Some("rediss://a"));
        for twice in [flags(Some("db"), None, None), flags(None, Some(1), None), flags(None, None, Some("a"))] {
            assert_eq!(url(&twice, Some("b")), None);
        }
        assert_eq!(url(&flags(Some("db"), None, Some("a")), None), None);
    }

    #[test]
    fn flags_for_all_verbs_may_come_before_a_verb_of_record() {
        let after = |words: &str| {
            let words = globals_first(words.split(' ').map(Into::into).collect());
            words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(after("unslow record -q ls DIR"), "unslow -q record ls DIR");
        assert_eq!(after("unslow record --format json -v ls DIR"), "unslow --format json -v record ls DIR");
        assert_eq!(after("unslow record --format=json"), "unslow --format=json record");
        assert_eq!(after("unslow record redis://h -q"), "unslow record redis://h -q");
        assert_eq!(after("unslow record --format"), "unslow --format record");
        assert_eq!(after("unslow top -q ls"), "unslow top -q ls");
    }

    #[test]
    fn h_with_a_value_is_a_host_and_without_one_it_asks_for_help() {
        let after = |words: &str| {
            let words = help_asked(words.split(' ').map(Into::into).collect());
            words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(after("unslow doctor -h"), "unslow doctor --help");
        assert_eq!(after("unslow doctor -h --only x"), "unslow doctor --help --only x");
        assert_eq!(after("unslow doctor -h 10.0.0.1 -p 7000"), "unslow doctor -h 10.0.0.1 -p 7000");
        assert_eq!(after("unslow -q doctor -h"), "unslow -q doctor --help");
        assert_eq!(after("unslow --format json bench -h"), "unslow --format json bench --help");
        assert_eq!(after("unslow record ls --help"), "unslow help record ls");
        assert_eq!(after("unslow -q record export DIR -h"), "unslow help record export");
        assert_eq!(after("unslow record ls DIR"), "unslow record ls DIR");
        assert_eq!(after("unslow lab -h"), "unslow lab -h");
        assert_eq!(after("unslow -h"), "unslow -h");
        assert_eq!(after("unslow bench a -- -h"), "unslow bench a -- -h");
    }
}
