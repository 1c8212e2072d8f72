//! A server, its machine and its sockets by hand: what the tests of several files vary.

#![allow(dead_code)] // each test file uses its part

use unslow_doctor::{Finding, diagnose};
use unslow_facts::{Facts, Host, Neighbour, Node, PeerSockets, Process, Rtt, Seen};
use unslow_topology::{DeploymentKind, Role};

use crate::common::{NOW_MS, deployment, node, seen};

/// Where the server is.
pub const HERE: &str = "10.0.0.1:6379";

/// What a server of this version says at the start of a window of ten seconds.
pub fn before(version: &str) -> String {
    format!(
        "redis_version:{version}\r\nrole:master\r\nuptime_in_seconds:90000\r\nconnected_clients:51\r\n\
         used_memory:80000000\r\n\
         used_memory_rss:90000000\r\nmaxmemory:0\r\nmem_fragmentation_bytes:10000000\r\nloading:0\r\nevicted_keys:0\r\n\
         rejected_connections:0\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\ntotal_commands_processed:0\r\n\
         total_reads_processed:0\r\ntotal_connections_received:0\r\nused_cpu_user_main_thread:0\r\n\
         used_cpu_sys_main_thread:0\r\n\
         rdb_last_bgsave_status:ok\r\naof_enabled:0\r\naof_last_write_status:ok\r\naof_delayed_fsync:0\r\n"
    )
}

/// `name:value` lines of INFO.
pub fn lines(fields: &[(&str, f64)]) -> String {
    fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect()
}

/// A `cmdstat_*` line.
pub fn command(name: &str, calls: u64, usec: u64, rejected: u64, failed: u64) -> String {
    format!(
        "cmdstat_{name}:calls={calls},usec={usec},usec_per_call=1.00,rejected_calls={rejected},failed_calls={failed}\r\n"
    )
}

/// An `errorstat_*` line.
pub fn errors(kind: &str, n: u64) -> String {
    format!("errorstat_{kind}:count={n}\r\n")
}

/// A server of this version after a window in which it came to say `after`.
pub fn server(version: &str, after: &str) -> Node {
    node(HERE, Role::Master, &before(version), after)
}

/// One server and nothing else.
pub fn alone(node: Node) -> Facts {
    deployment(DeploymentKind::Standalone, vec![node])
}

/// What a rule says of its answer.
pub fn text(facts: &Facts, rule: &str) -> String {
    diagnose(facts, &[rule.to_string()]).only[0].text.clone()
}

/// The commands of all ways out.
pub fn commands(finding: &Finding) -> String {
    finding.remedies.iter().flat_map(|r| &r.commands).map(|c| format!("{c}\n")).collect()
}

/// Round trips from here.
pub fn rtt(us_min: u32, us_p50: u32, us_p99: u32) -> Seen<Rtt> {
    seen(Rtt { count: 400, us_min, us_p50, us_p99, us_max: us_p99 })
}

/// The machine of the server at [`HERE`], as which process.
pub fn machine(process: Process) -> Host {
    let process = Process { pid: 7, name: "redis-server".into(), addresses: vec![HERE.into()], ..process };
    Host { hostname: "vm".into(), cpus: 4, window_s: 10.0, at_ms: NOW_MS, processes: vec![process], ..Host::default() }
}

/// A process that is no client.
pub fn stranger(cpu_share: f64) -> Neighbour {
    Neighbour { pid: 99, name: "backup".into(), cpu_share, client: false, parent: None }
}

/// Sockets to one address.
pub fn peer(host: &str, sockets: u32, min_rtt_us: u32, segments_out: u64) -> PeerSockets {
    let (min_rtt_us_p50, rtt_us_p50) = (min_rtt_us, min_rtt_us * 2);
    PeerSockets {
        host: host.into(),
        sockets,
        min_rtt_us,
        min_rtt_us_p50,
        rtt_us_p50,
        segments_out,
        ..PeerSockets::default()
    }
}
