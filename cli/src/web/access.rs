//! Who may look: this machine, or clients that have the token.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use unslow_status::Request;

/// A shorter token could be guessed.
const TOKEN_MIN: usize = 16;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Without a token only this machine's own names are answered: a page from elsewhere could have its own name point
    /// here.
    OtherName,
    /// A page from elsewhere asks in its reader's name.
    OtherSite,
    NoToken,
}

/// Decides who is answered.
#[derive(Default)]
pub struct Access {
    token: Option<String>,
}

impl Access {
    /// With the token in a file, if one is named.
    pub fn new(token: Option<&Path>) -> anyhow::Result<Access> {
        let Some(path) = token else { return Ok(Access::default()) };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let token = text.trim().to_string();
        if token.len() < TOKEN_MIN {
            bail!(
                "{}: the token is too short; at least {TOKEN_MIN} characters are needed; `openssl rand -hex 16` makes \
                 one",
                path.display()
            );
        }
        Ok(Access { token: Some(token) })
    }

    /// Whether this is answered.
    pub fn check(&self, request: &Request) -> Result<(), Refusal> {
        // Following a link from elsewhere is fine; figures are asked for by the page itself.
        let is_link = request.header("sec-fetch-dest") == Some("document");
        if !is_link && request.header("sec-fetch-site") == Some("cross-site") {
            return Err(Refusal::OtherSite);
        }
        match &self.token {
            Some(token) => {
                let given = request.header("authorization").and_then(secret_of).unwrap_or_default();
                is_same(given.as_bytes(), token.as_bytes()).then_some(()).ok_or(Refusal::NoToken)
            }
            None => is_own(request.header("host").unwrap_or("")).then_some(()).ok_or(Refusal::OtherName),
        }
    }
}

/// The password of `Basic`, with any user, or the token of `Bearer`.
fn secret_of(header: &str) -> Option<String> {
    let (scheme, rest) = header.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_string());
    }
    let both = BASE64_STANDARD.decode(rest.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let both = String::from_utf8(both).ok()?;
    both.split_once(':').map(|(_, password)| password.to_string())
}

/// Takes as long wherever the difference is.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// An address, or `localhost`: names can be made to point here by others, these cannot.
fn is_own(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let name = name.map_or(host, |(name, _)| name);
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

/// Where the page is served, and to whom.
#[derive(clap::Args, Clone, Default)]
pub struct Http {
    /// Serve the page of the recording at this address, such as 127.0.0.1:6490; beyond this machine only with
    /// --http-token and --http-cert
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// File with a token of at least 16 characters; the browser asks for it as the password, the user does not matter
    #[arg(long, value_name = "FILE", requires = "http")]
    pub http_token: Option<PathBuf>,
    /// Certificate of the page (PEM), for https
    #[arg(long, value_name = "FILE", requires_all = ["http", "http_key"])]
    pub http_cert: Option<PathBuf>,
    /// Key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "http_cert")]
    pub http_key: Option<PathBuf>,
}

impl Http {
    /// Fails where others than this machine could look without a token or without TLS.
    pub fn check(&self, address: &str) -> anyhow::Result<()> {
        let Ok(at) = address.parse::<SocketAddr>() else {
            bail!("--http {address}: expected an address with a port, such as 127.0.0.1:6490");
        };
        if !at.ip().is_loopback() && (self.http_token.is_none() || self.http_cert.is_none()) {
            bail!(
                "--http {address}: others could read the page there. Serve it on 127.0.0.1 and forward a port (ssh -L \
                 {port}:127.0.0.1:{port}), or give --http-token, --http-cert and --http-key",
                port = at.port()
            );
        }
        Ok(())
    }

    /// What browsers are served with; `None` in the clear.
    pub fn tls(&self) -> anyhow::Result<Option<Arc<ServerConfig>>> {
        let (Some(cert), Some(key)) = (&self.http_cert, &self.http_key) else { return Ok(None) };
        let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = chain.with_context(|| format!("{}: no certificate", cert.display()))?;
        let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("{}: no key", key.display()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        Ok(Some(Arc::new(config.with_context(|| cert.display().to_string())?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, headers: &[(&str, &str)]) -> Request {
        Request::of(path, "", headers)
    }

    #[test]
    fn without_a_token_only_this_machines_own_names_are_answered() {
        let access = Access::default();
        for own in ["127.0.0.1:6490", "localhost:6490", "localhost", "[::1]:6490", "[::1]", "10.0.0.1"] {
            assert_eq!(access.check(&request("/", &[("host", own)])), Ok(()), "{own}");
        }
        for other in ["evil.example:6490", "127.0.0.1.evil.example", "", "localhost.evil.example"] {
            assert_eq!(access.check(&request("/", &[("host", other)])), Err(Refusal::OtherName), "{other}");
        }
        let from_elsewhere = |dest| {
            let headers = [("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-dest", dest)];
            access.check(&request("/diagnosis", &headers))
        };
        assert_eq!(from_elsewhere("document"), Ok(()), "a link");
        for dest in ["empty", "iframe", "script", "image"] {
            assert_eq!(from_elsewhere(dest), Err(Refusal::OtherSite), "{dest}");
        }
    }

    #[test]
    fn a_token_is_asked_for_whatever_the_name_and_the_user() {
        let access = Access { token: Some("0123456789abcdef".into()) };
        let with = |value: &str| access.check(&request("/", &[("host", "db.example"), ("authorization", value)]));
        assert_eq!(with("Bearer 0123456789abcdef"), Ok(()));
        assert_eq!(with(&format!("Basic {}", BASE64_STANDARD.encode("me:0123456789abcdef"))), Ok(()));
        for wrong in ["Bearer 0123456789abcdeg", "Bearer ", "Basic !", "Bearer 0123456789abcdef0", "x"] {
            assert_eq!(with(wrong), Err(Refusal::NoToken), "{wrong}");
        }
        assert_eq!(access.check(&request("/", &[("host", "localhost")])), Err(Refusal::NoToken));
    }

    #[test]
    fn beyond_this_machine_a_token_and_a_certificate_are_needed() {
        let bare = Http::default();
        assert!(bare.check("127.0.0.1:6490").is_ok() && bare.check("[::1]:6490").is_ok());
        for open in ["0.0.0.0:6490", "10.0.0.1:6490", "[::]:6490"] {
            assert!(bare.check(open).unwrap_err().to_string().contains("--http-token"), "{open}");
        }
        let some = Some(PathBuf::from("x"));
        let half = Http { http_token: some.clone(), ..Http::default() };
        assert!(half.check("0.0.0.0:1").is_err());
        let whole = Http { http_token: some.clone(), http_cert: some.clone(), http_key: some, ..Http::default() };
        assert!(whole.check("0.0.0.0:1").is_ok());
        assert!(bare.check("6490").is_err() && bare.check("localhost").is_err());
    }
}
