//! Proxies. What answers in the servers' place must not be taken for a server: it is one "master" without replicas, and
//! its counters may be those of another server on the next connection.
//!
//! Each is known by its answers to the first questions of discovery, PING and INFO, and by one more where these leave a
//! doubt:
//!
//! - `unslow gateway` answers INFO UNSLOW; a server has no such section and answers with an empty string.
//! - Envoy answers PING itself. Most versions refuse INFO, in words of their own (see `error.rs`;
//!   <https://github.com/envoyproxy/envoy/issues/38517>). The newest add INFO up over the shards, without `tcp_port`
//!   and `process_id` (info_command_handler.cc), and HELLO names the server `envoy-redis-proxy` with the id 0, which no
//!   server gives (command_splitter_impl.cc, buildHelloReply).
//! - twemproxy answers PING itself and closes the connection at a command it does not know, INFO, HELLO and CLIENT
//!   among them (nc_redis.c, "parsed unsupported command"; <https://github.com/twitter/twemproxy/issues/460>).
//! - predixy answers INFO itself: a section `# Proxy` with `Version` and `RedisMode:proxy`, and no `redis_version`
//!   (Handler.cpp, infoRequest; <https://github.com/joyieldInc/predixy/issues/204>).
//! - ElastiCache Serverless says `os:Amazon ElastiCache`, shows one virtual shard in CLUSTER NODES
//!   (<https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/SupportedCommands.html>) and refuses LATENCY in Envoy's
//!   words (<https://github.com/oliver006/redis_exporter/issues/1054>); node-based caches have LATENCY. Its endpoints
//!   are named `NAME.serverless.REGION.cache.amazonaws.com`.

use std::fmt;
use std::net::IpAddr;

use unslow_topology::{DeploymentKind, GATEWAY_SECTION, Gateway, Health, Info, NodeBehind, Role};

use crate::members::{Deployment, servers};
use crate::target::host_port;
use crate::{Endpoint, Error, ErrorKind, Options, ReadOnly, Target, Value};

/// What was recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// `unslow gateway`.
    Gateway(Gateway),
    Envoy,
    Twemproxy,
    /// With its version, where it gives one.
    Predixy(Option<String>),
    ElastiCacheServerless,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Proxy::Gateway(gateway) => write!(f, "unslow gateway {}", gateway.version),
            Proxy::Envoy => f.write_str("Envoy"),
            Proxy::Twemproxy => f.write_str("twemproxy"),
            Proxy::Predixy(Some(version)) => write!(f, "predixy {version}"),
            Proxy::Predixy(None) => f.write_str("predixy"),
            Proxy::ElastiCacheServerless => f.write_str("ElastiCache Serverless"),
        }
    }
}

impl Proxy {
    /// The note on a proxy that is all there is to be seen.
    fn unseen(&self, at: &Endpoint, barrier: Option<&Barrier>) -> String {
        let what = match self {
            Proxy::Gateway(gateway) => {
                let serves = match gateway.serves {
                    DeploymentKind::Standalone => "one server",
                    DeploymentKind::MasterReplica => "a master and its replicas",
                    DeploymentKind::Sentinel => "servers that Sentinels watch",
                    DeploymentKind::Cluster => "a cluster",
                };
                format!("{at} is {self} in front of {serves}")
            }
            Proxy::Twemproxy => format!("{at} answers PING and closes the connection at INFO, as twemproxy does"),
            Proxy::Envoy | Proxy::Predixy(_) | Proxy::ElastiCacheServerless => format!("{at} answers as {self} does"),
        };
        let why = barrier.map_or(String::new(), |b| format!(" ({b})"));
        let instead = match self {
            Proxy::ElastiCacheServerless => "its own metrics are in CloudWatch",
            _ => "give the address of a server",
        };
        format!("{what}: the servers behind it were not seen{why}; {instead}")
    }
}

/// Why discovery stopped at a gateway.
enum Barrier {
    /// It does not name its servers to this user.
    NotNamed,
    /// Its answer to UNSLOW SHOW TOPOLOGY could not be used.
    Unreadable,
    /// It names no server that can be dialled from here.
    NoAddress,
    /// The servers at the addresses it names are not the ones it serves.
    Elsewhere,
    /// A server it names did not let us in.
    Server(Error),
    /// Another proxy stands behind it.
    Proxy(Proxy),
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Barrier::NotNamed => f.write_str("UNSLOW SHOW TOPOLOGY is for the user the gateway itself logs in as"),
            Barrier::Unreadable => f.write_str("UNSLOW SHOW TOPOLOGY gave no list of servers"),
            Barrier::NoAddress => f.write_str("it names none that can be reached from here"),
            Barrier::Elsewhere => {
                f.write_str("other servers answer here at the loopback addresses it names; a tunnel?")
            }
            Barrier::Server(e) => f.write_str(&e.message),
            Barrier::Proxy(proxy) => write!(f, "behind it stands {proxy}"),
        }
    }
}

/// What was met at an address.
pub(crate) enum Met {
    /// A server, or what cannot be told from one.
    Server(ReadOnly),
    /// A proxy, and the connection if it is still of use.
    Proxy(Proxy, Endpoint, Option<ReadOnly>),
}

/// Connects to `target` and finds out what answers there.
pub(crate) fn meet(target: &Target, options: &Options) -> Result<Met, Error> {
    let opened = ReadOnly::open(target, options).and_then(|mut connection| {
        connection.remember();
        let proxy = recognise(&mut connection, target)?;
        Ok((connection, proxy))
    });
    match opened {
        Ok((connection, None)) => Ok(Met::Server(connection)),
        Ok((connection, Some(proxy))) => Ok(Met::Proxy(proxy, connection.endpoint(target), Some(connection))),
        Err(e) if e.kind == ErrorKind::Closed => {
            closes_at_info(target, options).map(|at| Met::Proxy(Proxy::Twemproxy, at, None)).ok_or(e)
        }
        Err(e) => Err(e),
    }
}

/// Fails only with the connection.
fn recognise(connection: &mut ReadOnly, target: &Target) -> Result<Option<Proxy>, Error> {
    let mut answers = connection.pipeline(&[vec!["INFO", "server"], vec!["INFO", GATEWAY_SECTION]])?.into_iter();
    let (Some(server), Some(own)) = (answers.next(), answers.next()) else { return Ok(None) };
    let read = |value: Value| Info::parse(&value.text().unwrap_or_default());
    if let Some(gateway) = own.ok().and_then(|own| Gateway::parse(&read(own))) {
        return Ok(Some(Proxy::Gateway(gateway)));
    }
    if connection.endpoint(target).is_serverless() {
        return Ok(Some(Proxy::ElastiCacheServerless));
    }
    let info = match server {
        Ok(value) => read(value),
        Err(e) => return Ok(e.envoy.then_some(Proxy::Envoy)),
    };
    if info.get("RedisMode") == Some("proxy")
        || info.get("redis_version").is_none() && info.get("WorkerThreads").is_some()
    {
        let plain = |v: &&str| v.len() <= 32 && v.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        return Ok(Some(Proxy::Predixy(info.get("Version").filter(plain).map(str::to_string))));
    }
    if info.get("os") == Some("Amazon ElastiCache") {
        let refused = fatal(connection.call(&["LATENCY", "LATEST"]))?;
        return Ok(refused.is_err_and(|e| e.envoy).then_some(Proxy::ElastiCacheServerless));
    }
    if info.get("redis_version").is_some() && info.get("tcp_port").is_none() && info.get("process_id").is_none() {
        let hello = fatal(connection.call(&["HELLO"]))?;
        let envoys = |hello: Value| {
            let text = |field: &str| hello.get(field).and_then(Value::text);
            text("server").as_deref() == Some("envoy-redis-proxy") || text("id").as_deref() == Some("0")
        };
        return Ok(hello.is_ok_and(envoys).then_some(Proxy::Envoy));
    }
    Ok(None)
}

/// An answer that ended the connection is an error, any other is an answer.
fn fatal(answer: Result<Value, Error>) -> Result<Result<Value, Error>, Error> {
    match answer {
        Err(e) if e.is_fatal() => Err(e),
        other => Ok(other),
    }
}

/// Whether INFO, and nothing before it, ends the connection; and that it was not by chance.
fn closes_at_info(target: &Target, options: &Options) -> Option<Endpoint> {
    // HELLO and CLIENT SETNAME would end it before.
    let bare = Options { name: None, protocol: 2, ..options.clone() };
    let answers_ping = || {
        let mut connection = ReadOnly::open(target, &bare).ok()?;
        let pong = connection.call(&["PING"]).ok()?;
        (pong.text().as_deref() == Some("PONG")).then_some(connection)
    };
    for _ in 0..2 {
        let mut connection = answers_ping()?;
        if connection.call(&["INFO", "server"]).err()?.kind != ErrorKind::Closed {
            return None;
        }
    }
    Some(answers_ping()?.endpoint(target))
}

/// The deployment behind a proxy where discovery may look there, or the proxy alone.
pub(crate) fn beyond(
    proxy: &Proxy,
    at: &Endpoint,
    connection: Option<ReadOnly>,
    target: &Target,
    options: &Options,
) -> Deployment {
    let (Proxy::Gateway(_), Some(mut connection)) = (proxy, connection) else { return alone(proxy, at, target, None) };
    match go_behind(&mut connection, target, options) {
        Ok(mut found) => {
            found.notes.push(format!(
                "looked at the servers behind {proxy} at {at}, each at its own address; the gateway itself was not \
                 measured"
            ));
            found
        }
        Err(barrier) => alone(proxy, at, target, Some(&barrier)),
    }
}

fn alone(proxy: &Proxy, at: &Endpoint, target: &Target, barrier: Option<&Barrier>) -> Deployment {
    let mut found = Deployment::empty(target);
    found.through = Some(format!("{proxy} at {at}"));
    found.notes.push(proxy.unseen(at, barrier));
    // A probe would only find that twemproxy closes each of its connections, and that is not "unreachable".
    if *proxy != Proxy::Twemproxy {
        found.add(at, Role::Unknown);
    }
    found
}

/// Servers that fail to answer before discovery stays in front of a gateway.
const FAILURES_MAX: usize = 3;
/// Servers that are dialled at all: only those on loopback addresses may answer and still be the wrong ones.
const DIALLED_MAX: usize = 64;

/// Servers named by a gateway get the user's password, as those do that a cluster node names in CLUSTER NODES: both
/// lists come from a peer that has already been trusted with it.
fn go_behind(connection: &mut ReadOnly, target: &Target, options: &Options) -> Result<Deployment, Barrier> {
    let answer = match connection.call(&["UNSLOW", "SHOW", "TOPOLOGY"]) {
        Ok(answer) => answer,
        Err(e) if e.kind == ErrorKind::Denied => return Err(Barrier::NotNamed),
        Err(e) => return Err(Barrier::Server(e)),
    };
    let rows: Vec<String> = answer.items().iter().filter_map(Value::text).collect();
    let mut nodes = NodeBehind::parse_all(rows.iter().map(String::as_str))
        .filter(|nodes| !nodes.is_empty() && rows.len() == answer.items().len())
        .ok_or(Barrier::Unreadable)?;
    nodes.sort_by_key(|n| (n.health != Health::Up, n.role != Role::Master));
    let here = connection.is_on_this_machine();
    let asked = run_id(connection);
    let (mut failures, mut barrier) = (0, Barrier::NoAddress);
    let dialled = nodes.iter().filter_map(|n| endpoint(&n.address)).filter(|(_, local)| here || !local);
    for (endpoint, local) in dialled.take(DIALLED_MAX) {
        match meet(&target.at(endpoint.clone()), options) {
            Ok(Met::Proxy(proxy, ..)) => return Err(Barrier::Proxy(proxy)),
            Ok(Met::Server(mut server)) => {
                // Dialled through a tunnel, the gateway and its servers run on another machine.
                let differs = |asked: &String| run_id(&mut server).is_some_and(|own| own != *asked);
                if local && asked.as_ref().is_some_and(differs) {
                    barrier = Barrier::Elsewhere;
                    continue;
                }
                return servers(server, &target.at(endpoint), options).map_err(Barrier::Server);
            }
            // The other servers have the same users.
            Err(e) if matches!(e.kind, ErrorKind::AuthRequired | ErrorKind::WrongPassword) => {
                return Err(Barrier::Server(e));
            }
            Err(e) => {
                (failures, barrier) = (failures + 1, Barrier::Server(e));
                if failures == FAILURES_MAX {
                    break;
                }
            }
        }
    }
    Err(barrier)
}

/// Of the server that answers INFO on this connection.
fn run_id(connection: &mut ReadOnly) -> Option<String> {
    let text = connection.call(&["INFO", "server"]).ok()?.text()?;
    Info::parse(&text).get("run_id").filter(|id| !id.is_empty()).map(str::to_string)
}

/// Where to dial a node, and whether that means something only on the machine that named it.
fn endpoint(address: &str) -> Option<(Endpoint, bool)> {
    if let Some(path) = address.strip_prefix("unix:") {
        return path.starts_with('/').then(|| (Endpoint::Unix(path.into()), true));
    }
    let endpoint = host_port(address, 6379)?;
    let Endpoint::Tcp(host, _) = &endpoint else { return None };
    let means_itself = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.is_unspecified();
    let local = host == "localhost" || host.parse().is_ok_and(means_itself);
    Some((endpoint, local))
}

impl ReadOnly {
    /// The endpoint that answered, of the several a target may have.
    pub(crate) fn endpoint(&self, target: &Target) -> Endpoint {
        let peer = self.connection().peer();
        host_port(peer, 6379).filter(|_| !peer.starts_with("unix:")).unwrap_or_else(|| target.endpoints[0].clone())
    }

    /// Whether the peer runs here, as far as addresses tell.
    fn is_on_this_machine(&self) -> bool {
        let (local, remote) = (self.connection().local.map(|a| a.ip()), self.connection().remote.map(|a| a.ip()));
        remote.is_none_or(|remote| remote.is_loopback() || Some(remote) == local)
    }
}

impl Endpoint {
    /// An endpoint of ElastiCache Serverless, by its name.
    fn is_serverless(&self) -> bool {
        let Endpoint::Tcp(host, _) = self else { return false };
        let host = host.to_ascii_lowercase();
        let host = host.trim_end_matches('.');
        let domain = host.strip_suffix(".cn").unwrap_or(host);
        domain.ends_with(".cache.amazonaws.com") && domain.contains(".serverless.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_elasticache_serverless_are_known_by_their_names() {
        let serverless = |host: &str| Endpoint::Tcp(host.into(), 6379).is_serverless();
        assert!(serverless("my-cache-x2e9hv.serverless.use1.cache.amazonaws.com"));
        assert!(serverless("C.Serverless.cnn1.cache.amazonaws.com.cn."));
        for host in ["my.abc123.0001.use1.cache.amazonaws.com", "serverless.example.com", "127.0.0.1"] {
            assert!(!serverless(host), "{host}");
        }
        assert!(!Endpoint::Unix("/x.serverless.use1.cache.amazonaws.com".into()).is_serverless());
    }

    #[test]
    fn addresses_that_mean_another_server_elsewhere_are_told_from_the_rest() {
        for (address, expected) in [
            ("10.0.0.1:6379", Some(false)),
            ("cache.example:6379", Some(false)),
            ("127.0.0.3:7000", Some(true)),
            ("localhost:7000", Some(true)),
            ("[::1]:7000", Some(true)),
            ("[::ffff:127.0.0.1]:7000", Some(true)),
            ("0.0.0.0:7000", Some(true)),
            ("unix:/run/valkey.sock", Some(true)),
            ("unix:valkey.sock", None),
            ("a/b:1", None),
            ("10.0.0.1:0", None),
            ("10.0.0.1:99999", None),
        ] {
            assert_eq!(endpoint(address).map(|(_, local)| local), expected, "{address}");
        }
    }
}
