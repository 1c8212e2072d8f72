//! `unslow gateway`: the proxy.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use unslow_gateway::{ClientAuth, Config, Facade, Gateway, Read, Reread, Start};

use crate::output::Output;
use crate::reach::Reach;
use crate::server::{self, Reached, Server};
use crate::toml_text;

#[derive(Clone, Copy, ValueEnum)]
enum ReadFlag {
    Primary,
    Replica,
    Nearest,
    Zone,
}

#[derive(Clone, Copy, ValueEnum)]
enum FacadeFlag {
    Node,
    Cluster,
}

#[derive(Clone, Copy, ValueEnum)]
enum ClientAuthFlag {
    Gateway,
    Server,
}

#[derive(Args)]
#[command(
    args_override_self = true,
    disable_help_flag = true,
    after_help = "SIGHUP reads the file again; SIGTERM and Ctrl-C let clients finish, a second one does not wait.\n\n\
                  Examples:\n  unslow gateway --listen 127.0.0.1:6400 --target redis://10.0.0.1:7000\n  unslow gateway \
                  --config gateway.toml            # docs/gateway.toml has every setting\n  redis-cli -p 6400 unslow \
                  show topology"
)]
pub struct GatewayArguments {
    /// TOML file; flags win over it. docs/gateway.toml lists every setting
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect: host:port or unix:/path [default: 127.0.0.1:6400]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// The deployment: redis://, rediss://, valkey://, unix:/path, redis+sentinel://host/service, host:port, or @NAME
    /// of unslow.toml
    #[arg(long, value_name = "URL")]
    target: Option<String>,
    /// The same as --target
    #[arg(value_name = "URL", conflicts_with = "target")]
    url: Option<String>,
    /// Threads, each with connections of its own to every server [default: 1]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Which servers answer reads [default: primary]
    #[arg(long, value_enum, value_name = "WHICH")]
    read: Option<ReadFlag>,
    /// Our own availability zone, for --read zone
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
    /// Replicas further behind get no reads
    #[arg(long, value_name = "BYTES")]
    max_lag_bytes: Option<u64>,
    /// Topology that CLUSTER commands report: one node with every slot, or the cluster with a port of ours for each
    /// node [default: node]
    #[arg(long, value_enum, value_name = "WHAT")]
    facade: Option<FacadeFlag>,
    /// Identity of clients before AUTH: the gateway's, or none [default: gateway]
    #[arg(long, value_enum, value_name = "WHO")]
    client_auth: Option<ClientAuthFlag>,
    /// Reject MSET over several slots
    #[arg(long)]
    strict: bool,
    /// Serve /metrics, /healthz and /readyz there
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Socket through which a newer gateway takes over without losing a client
    #[arg(long, value_name = "PATH")]
    handover: Option<String>,
    /// Certificate for clients (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA of the clients' certificates (PEM)
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Every client that can connect has the gateway's rights, although --listen is not on loopback
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

impl GatewayArguments {
    fn settings(&self) -> anyhow::Result<Config> {
        let text = self.config.as_ref().map(|path| {
            std::fs::read_to_string(path).with_context(|| path.display().to_string()).map(|text| (path, text))
        });
        let text = text.transpose()?;
        let mut config = match &text {
            Some((path, text)) => Config::parse(text).map_err(|e| anyhow!("{}: {e}", path.display()))?,
            None => Config::default(),
        };
        if !self.listen.is_empty() {
            config.listen = self.listen.clone();
        }
        if let Some(target) = self.server.address(self.target.as_deref().or(self.url.as_deref()))? {
            config.target = target;
        } else if !text.as_ref().is_some_and(|(_, text)| toml_text::sets(text, "target")) {
            let url = server::of_environment();
            config.target =
                url.context("which deployment? unslow gateway redis://host:port, or target in --config FILE")?;
        }
        config.threads = self.threads.unwrap_or(config.threads);
        if let Some(read) = self.read {
            config.read = match read {
                ReadFlag::Primary => Read::Primary,
                ReadFlag::Replica => Read::Replica,
                ReadFlag::Nearest => Read::Nearest,
                ReadFlag::Zone => Read::Zone,
            };
        }
        config.zone = self.zone.clone().or(config.zone);
        config.max_lag_bytes = self.max_lag_bytes.or(config.max_lag_bytes);
        if let Some(facade) = self.facade {
            config.facade = match facade {
                FacadeFlag::Node => Facade::Node,
                FacadeFlag::Cluster => Facade::Cluster,
            };
        }
        if let Some(auth) = self.client_auth {
            config.client_auth = match auth {
                ClientAuthFlag::Gateway => ClientAuth::Gateway,
                ClientAuthFlag::Server => ClientAuth::Server,
            };
        }
        config.strict |= self.strict;
        config.metrics = self.metrics.clone().unwrap_or(config.metrics);
        config.handover = self.handover.clone().unwrap_or(config.handover);
        config.tls_cert = self.tls_cert.clone().or(config.tls_cert);
        config.tls_key = self.tls_key.clone().or(config.tls_key);
        config.tls_client_ca = self.tls_client_ca.clone().or(config.tls_client_ca);
        config.check().map_err(|e| anyhow!("{e}"))?;
        Ok(config)
    }

    /// Settings that may be served.
    fn checked(&self) -> anyhow::Result<(Config, Reached)> {
        let mut config = self.settings()?;
        let reached = self.server.reached(&config.target, &self.reach)?;
        // Not the name: a reload has to notice that it stands for another server.
        config.target.clone_from(&reached.url);
        // Also before servers without a password: `protected-mode` takes the gateway for a local client.
        if config.client_auth == ClientAuth::Gateway
            && !self.open
            // What is no address is refused as such, when it is listened on.
            && let Some(wide) = config.listen.iter().find(|a| a.contains(':') && !local(a))
        {
            bail!(
                "{wide} can be reached from other machines, and every client that connects would have the gateway's \
                 rights; let clients log in themselves (--client-auth server), listen on loopback, or say --open"
            );
        }
        Ok((config, reached))
    }

    fn reread(&self) -> anyhow::Result<Config> {
        self.checked().map(|(config, _)| config)
    }

    pub fn run(self, output: &Output) -> anyhow::Result<u8> {
        let (config, Reached { target, options, .. }) = self.checked()?;
        let json = output.json();
        let quiet = output.quiet;
        let log = move |(event, fields): unslow_gateway::Log<'_>| {
            let at =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
            let when = crate::when::rfc3339(at);
            if json {
                let mut line = serde_json::json!({"at": when, "at_unix_ms": at, "event": event});
                for (name, value) in fields {
                    line[*name] = value.clone().into();
                }
                eprintln!("{line}");
            } else if !quiet {
                let fields: Vec<String> = fields.iter().map(|(n, v)| format!("{n}={v:?}")).collect();
                eprintln!("{when} {event} {}", fields.join(" "));
            }
        };
        let from_file = self.config.is_some();
        // Flags go on winning over the file.
        let reread: Option<Reread> =
            from_file.then(|| Box::new(move || self.reread().map_err(|e| format!("{e:#}").into())) as Reread);
        let start = Start { config, target: target.clone(), options, reread, log: Box::new(log) };
        let mut gateway = Gateway::start(start)?;
        let hang_ups = unslow_interrupt::hang_ups();
        let stop = unslow_interrupt::guard("letting clients finish (Ctrl-C again: at once)");
        for address in &gateway.addresses {
            output.note(&format!("{address} -> {}", target.url()));
        }
        let handle = gateway.handle();
        std::thread::spawn(move || {
            while hang_ups.wait(&stop) {
                handle.reload();
            }
            handle.drain();
            // Also while clients finish: a SIGHUP must not cut that short.
            loop {
                hang_ups.wait_for_one();
                handle.reload();
            }
        });
        gateway.wait();
        if gateway.broken() {
            bail!("a part of the gateway ended by itself; what it logged says which");
        }
        Ok(0)
    }
}

/// Whether only processes of this machine can connect to an address.
fn local(address: &str) -> bool {
    address.starts_with("unix:")
        || address.starts_with("localhost:")
        || address.parse::<SocketAddr>().is_ok_and(|a| a.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_unix_sockets_are_local() {
        for address in ["unix:/run/g.sock", "localhost:1", "127.0.0.1:6400", "127.9.9.9:0", "[::1]:6400"] {
            assert!(local(address), "{address}");
        }
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "127.example:1", "127.0.0.1.example:1", "[::2]:1", "h:1"] {
            assert!(!local(address), "{address}");
        }
    }
}
