//! How to reach the servers: the arguments that every verb with a URL has.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use unslow_client::{Options, Secret, Target, TlsOptions};

use crate::typed;

/// Where nothing else is said.
const TIMEOUT_S: f64 = 3.0;

/// How to reach the servers; shared by every verb that talks to them.
#[derive(Args, Clone)]
pub struct Reach {
    /// ACL user [may be in the URL instead]
    #[arg(long)]
    pub user: Option<String>,
    /// File that holds the password; UNSLOW_PASSWORD works too
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// CA certificate of the servers (PEM)
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long)]
    pub insecure: bool,
    /// Name expected in the certificate
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Time to wait for a connection or an answer, such as 500ms or 10s [default: 3s]
    #[arg(long, value_parser = typed::seconds, value_name = "TIME")]
    pub timeout: Option<f64>,
    /// RESP version to speak
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=3), value_name = "2|3")]
    pub resp: u8,
}

impl Reach {
    pub fn options(&self) -> anyhow::Result<Options> {
        let timeout_s = self.timeout.unwrap_or(TIMEOUT_S);
        if !(timeout_s > 0.0 && timeout_s <= 3600.0) {
            bail!("--timeout must be more than 0 and at most an hour, for example 3s");
        }
        Ok(Options {
            connect_timeout: Duration::from_secs_f64(timeout_s),
            command_timeout: Duration::from_secs_f64(timeout_s),
            tls: TlsOptions {
                ca: self.cacert.clone(),
                cert_and_key: self.cert.clone().zip(self.key.clone()),
                insecure: self.insecure,
                server_name: self.server_name.clone(),
            },
            name: Some("unslow"),
            protocol: self.resp,
        })
    }

    /// The URL, completed by flags and environment. The URL's own words win.
    pub fn target(&self, url: &str) -> anyhow::Result<Target> {
        if url.starts_with('@') {
            bail!(
                "@NAME is accepted only as a verb's URL or the value of -u, --target, --to or --i-own-this \
                 (docs/fleet.md)"
            );
        }
        let shared_memory = unslow_bypass::reactor::url(url);
        let mut target = Target::parse(shared_memory.as_deref().unwrap_or(url))?;
        if shared_memory.is_some()
            && let Some(unslow_client::Endpoint::Tcp(_, port)) = target.endpoints.first()
            && !unslow_bypass::reactor::is_served(*port)
        {
            bail!(
                "no server on port {port} runs with `unslow bypass` (see unslow bypass ls); start it with: unslow \
                 bypass -- redis-server --port {port}"
            );
        }
        target.user = target.user.or_else(|| self.user.clone());
        if target.password.is_none() {
            target.password = match &self.password_file {
                Some(path) => {
                    let text = fs::read_to_string(path)
                        .with_context(|| format!("{}: cannot read the password file", path.display()))?;
                    Some(Secret::new(text.trim_end_matches(['\r', '\n'])))
                }
                None => std::env::var("UNSLOW_PASSWORD").ok().filter(|p| !p.is_empty()).map(Secret::new),
            };
        }
        Ok(target)
    }
}
