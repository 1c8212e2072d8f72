//! Real servers.

use std::time::Duration;

use unslow_client::Options;
use unslow_engine::{Deployment, Engine, Server, ServerSpec, Shape, find};

/// Names and values as a server's settings.
pub fn settings(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

/// A server with these settings.
pub fn spec(of: &[(&str, &str)]) -> ServerSpec {
    ServerSpec { settings: settings(of), ..ServerSpec::default() }
}

/// An engine by its name in the catalogue; `make test` installs them all.
#[track_caller]
pub fn engine(name: &str) -> Engine {
    find(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// One server with these settings.
#[track_caller]
pub fn server(name: &str, of: &[(&str, &str)]) -> Server {
    Server::start(&engine(name), &spec(of)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// One server as it comes.
#[track_caller]
pub fn standalone(name: &str) -> Server {
    server(name, &[])
}

/// Servers that belong together, with these settings each.
#[track_caller]
pub fn deployment(name: &str, shape: Shape, of: &[(&str, &str)]) -> Deployment {
    Deployment::start(&engine(name), &shape, &spec(of)).unwrap_or_else(|e| panic!("{name} {shape:?}: {e}"))
}

/// Three masters with a replica each, and a node timeout of two seconds.
#[track_caller]
pub fn cluster(name: &str) -> Deployment {
    deployment(name, Shape::six_nodes(), &[("cluster-node-timeout", "2000")])
}

/// A master, its replicas, and three Sentinels that take it for down after a second.
#[track_caller]
pub fn sentinels(name: &str, replicas: usize, failover_timeout_ms: u32) -> Deployment {
    let started = deployment(name, Shape::Sentinel { replicas, sentinels: 3, quorum: 2 }, &[]);
    for sentinel in &started.sentinels {
        let mut c = sentinel.connect().expect("a Sentinel answers");
        for (setting, value) in [("down-after-milliseconds", 1000), ("failover-timeout", failover_timeout_ms)] {
            c.call(&["SENTINEL", "SET", "mymaster", setting, &value.to_string()]).expect("a Sentinel takes it");
        }
    }
    started
}

/// A client that is as patient as a test.
pub fn options(protocol: u8) -> Options {
    let timeout = Duration::from_secs(60);
    Options { connect_timeout: timeout, command_timeout: timeout, protocol, ..Options::default() }
}
