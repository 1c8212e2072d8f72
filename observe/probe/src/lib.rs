//! Looks at a deployment and writes down facts. One file per probe; none of them judges.
//!
//! Each node has a thread, a connection and a window: INFO at its start, PINGs through it, the dearer questions at its
//! end, INFO again. What a probe may send is the client's read-only list and nothing else. A probe that is denied
//! writes down which grant it lacked.

mod ask;
mod clients;
mod cluster;
mod config;
pub mod host;
mod key_sizes;
mod latency;
mod node;
mod rtt;
mod sentinel;
mod slowlog;
mod sockets;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use unslow_client::{Deployment, Options};
use unslow_facts::{Cost, Facts, Host, Node, SCHEMA};
use unslow_topology::Role;

pub use ask::Salt;
pub use node::same_server;

/// How to look.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the window between the two samples.
    pub window: Duration,
    /// How to connect.
    pub options: Options,
    /// Key names as they are, instead of hashed.
    pub show_keys: bool,
    /// Look into this machine when a server runs on it.
    pub host: bool,
    /// Facts of other machines, from `unslow host`.
    pub hosts: Vec<Host>,
    /// The URL to write down.
    pub url: String,
}

/// Looks at every member of `deployment`. Never fails as a whole: what does not answer is a fact too.
pub fn run(deployment: &Deployment, settings: &Settings) -> Facts {
    let begun = Instant::now();
    let at_ms = now_ms();
    let salt = Salt::new(settings.show_keys);
    let many = deployment.members.len() > 50;
    let watch = settings.host.then(host::Watch::start);
    let mut nodes: Vec<Node> = Vec::new();
    let mut sentinels = Vec::new();
    std::thread::scope(|scope| {
        let (mut node_threads, mut sentinel_threads) = (Vec::new(), Vec::new());
        for member in &deployment.members {
            let target = deployment.target_of(member);
            let (salt, options) = (&salt, &settings.options);
            let builder = std::thread::Builder::new().stack_size(512 << 10);
            if member.role == Role::Sentinel {
                let looked = move || sentinel::look(&member.address, &target, options, member.service.as_deref());
                sentinel_threads.push(builder.spawn_scoped(scope, looked));
            } else {
                let looked = move || node::look(member, &target, settings, salt, many);
                node_threads.push((member, builder.spawn_scoped(scope, looked)));
            }
        }
        for (member, thread) in node_threads {
            // A panic in a probe or a thread that could not start is this node's fact, not the end of the run.
            nodes.push(thread.ok().and_then(|t| t.join().ok()).unwrap_or_else(|| Node {
                unreachable: Some("the probe itself failed".into()),
                ..Node::new(&member.address, member.role)
            }));
        }
        sentinels.extend(sentinel_threads.into_iter().filter_map(|t| t.ok()?.join().ok()));
    });
    let mut notes = deployment.notes.clone();
    same_server(&mut nodes, &mut notes);
    let mut hosts = settings.hosts.clone();
    for host in &mut hosts {
        host::assign_by_port(host, &nodes);
    }
    // What the host is asked for longer costs the servers nothing.
    let took = begun.elapsed();
    if let Some(watch) = watch {
        let host = watch.finish(&mut nodes);
        if !host.processes.is_empty() {
            hosts.push(host);
        }
    }
    let cost = cost(&nodes, took);
    Facts {
        schema: SCHEMA.into(),
        unslow: env!("CARGO_PKG_VERSION").into(),
        at_ms,
        window_s: settings.window.as_secs_f64(),
        url: settings.url.clone(),
        kind: deployment.kind,
        nodes,
        sentinels,
        hosts,
        notes,
        cost,
    }
}

/// What each read costs the server outside the command itself: 2.4 us on a 2-core VM over loopback, fitted from GETs
/// at pipeline depths 1 to 50; taken as 3.
const READ_US: f64 = 3.0;
/// A new connection: 17.5 us on the same machine.
const CONNECT_US: f64 = 20.0;

fn cost(nodes: &[Node], took: Duration) -> Cost {
    let mut cost = Cost { seconds: took.as_secs_f64(), ..Cost::default() };
    for node in nodes {
        cost.commands += node.own.total;
        let stats = node.commands();
        let mut us = CONNECT_US + node.own.total as f64 * READ_US;
        for (name, calls) in &node.own.commands {
            let lumped = name.split('|').next().unwrap_or(name);
            let Some(stat) = stats.get(name).or_else(|| stats.get(lumped)) else { continue };
            let mean = stat.usec as f64 / stat.calls as f64;
            us += mean * *calls as f64;
            if mean > cost.slowest_us {
                cost.slowest_us = mean;
                cost.slowest_command = name.to_uppercase().replace('|', " ");
            }
        }
        cost.server_cpu_share = cost.server_cpu_share.max(us / 1e6 / took.as_secs_f64().max(0.001));
    }
    cost
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use unslow_facts::{Own, Sample};
    use unslow_topology::Info;

    use super::*;

    #[test]
    fn the_cost_of_a_run_is_that_of_the_most_loaded_node() {
        let node = |own: &[(&str, u64)], total: u64, before: &str, after: &str| {
            let sample = |text: &str| Some(Sample { at_ms: 0, info: Info::parse(text) });
            let commands = own.iter().map(|(name, calls)| (name.to_string(), *calls)).collect();
            Node {
                first: sample(before),
                last: sample(after),
                own: Own { commands, total, stopped_early: false },
                ..Node::new("h:1", Role::Master)
            }
        };
        let nodes = [
            node(
                &[("info", 2), ("config|get", 1)],
                10,
                "cmdstat_info:calls=5,usec=500\ncmdstat_config|get:calls=1,usec=10\n",
                "cmdstat_info:calls=9,usec=900\ncmdstat_config|get:calls=2,usec=310\n",
            ),
            // Before 7.0 subcommands are counted under their command.
            node(&[("config|get", 1)], 2, "cmdstat_config:calls=1,usec=5\n", "cmdstat_config:calls=3,usec=15\n"),
        ];
        let cost = cost(&nodes, Duration::from_secs(2));
        assert_eq!((cost.commands, cost.slowest_us, cost.slowest_command.as_str()), (12, 300.0, "CONFIG GET"));
        // 2 x 100 + 300 us inside commands, plus the connection and ten reads.
        let expected = (500.0 + CONNECT_US + 10.0 * READ_US) / 2e6;
        assert!((cost.server_cpu_share - expected).abs() < 1e-12, "{} of {expected}", cost.server_cpu_share);
    }
}
