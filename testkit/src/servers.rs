//! Real servers.

use std::time::{Duration, Instant};

use unslow_client::{Connection, Options, Value};
use unslow_engine::{Deployment, Engine, Error, Server, ServerSpec, Shape, find, view};
use unslow_topology::ClusterView;

use crate::wait::until_ok;

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

/// The same with a node timeout of fifteen seconds, for tests that are not about failovers: a busy disk holds a node up
/// for longer than two.
#[track_caller]
pub fn steady(name: &str) -> Deployment {
    deployment(name, Shape::six_nodes(), &[("cluster-node-timeout", "15000")])
}

/// A master, its replicas, and three Sentinels that take it for down after a second.
#[track_caller]
pub fn sentinels(name: &str, replicas: usize, failover_timeout_ms: u32) -> Deployment {
    let started = deployment(name, Shape::Sentinel { replicas, sentinels: 3, quorum: 2 }, &[]);
    for sentinel in &started.sentinels {
        let mut c = sentinel.connect_with(&options(2)).expect("a Sentinel answers");
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

/// Waits until every node's own view is so.
#[track_caller]
pub fn everywhere(deployment: &Deployment, what: &str, is: impl Fn(&ClusterView) -> bool) {
    until_ok(what, || {
        for node in &deployment.nodes {
            if !is(&view(&mut node.connect()?)?) {
                return Ok(false);
            }
        }
        Ok::<_, Error>(true)
    });
}

/// Makes a replica master by CLUSTER FAILOVER. Servers give one up after five seconds; it is asked for again.
#[track_caller]
pub fn promote(replica: &Server) {
    let role = |c: &mut Connection| -> Result<(String, String), Error> {
        let reply = c.call(&["ROLE"])?;
        let word = |i: usize| reply.items().get(i).and_then(Value::text).unwrap_or_default();
        Ok((word(0), word(3)))
    };
    until_ok("the replica to be connected to its master", || {
        let (role, state) = role(&mut replica.connect()?)?;
        Ok::<_, Error>(role == "slave" && state == "connected")
    });
    let mut asked: Option<Instant> = None;
    until_ok("it to be master", || {
        let mut c = replica.connect()?;
        if role(&mut c)?.0 == "master" {
            return Ok(true);
        }
        if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(6)) {
            c.call(&["CLUSTER", "FAILOVER"])?;
            asked = Some(Instant::now());
        }
        Ok::<_, Error>(false)
    });
}
