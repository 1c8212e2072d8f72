//! The server's memory is on a different memory (NUMA) node than the processor it runs on.
//!
//! A machine with several sockets has memory attached to each of them. A server that was started on one and bound to
//! another (numactl, a cpuset, server-cpulist), or whose node was full when the data was loaded, reaches most of its
//! keys through the other socket: each cache miss takes about half as long again, and none of the server's own figures
//! shows it.
//!
//! Seen when: the main thread ran on one memory node's processors throughout the window, and three fifths or more of
//! its cgroup's memory (page cache excluded) is on other nodes. The kernel does not measure what this costs, so it is
//! reported as a risk.
//!
//! Not to be taken for: memory that is spread over all nodes on purpose (`numactl --interleave`), so that each node has
//! its share; a cgroup that contains other programs, whose memory is not the server's: the rule then makes no claim.
//!
//! How to confirm: `numastat -p PID` (it walks all pages of the process, which takes seconds for a large one);
//! `ps -o psr -p PID`; `lscpu`.
//!
//! What to do: bind processors and memory to the same node when the server is started.
//! Sources: memory.numa_stat of the cgroup, /sys/devices/system/node; the kernel's
//! Documentation/admin-guide/mm/numa_memory_policy.rst.

use std::collections::BTreeSet;

use unslow_facts::{Host, MemoryNode, Process};

use super::memory;
use super::prelude::*;

pub const TITLE: &str = "Memory of another socket";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::No(
    "it needs a machine with two memory nodes; tested on recorded facts with the nodes and their contents set by hand",
);

/// Of the server's memory: interleaved over two nodes it is half.
const REMOTE: f64 = 0.6;
/// What the group holds, as a share of the server's resident memory: further off, it is not the server's alone.
const OF_THE_SERVER: std::ops::RangeInclusive<f64> = 0.7..=1.3;

/// A server on one node of several.
struct Placed<'a> {
    node: &'a Node,
    host: &'a Host,
    process: &'a Process,
    near: &'a MemoryNode,
    /// Held on all nodes, in bytes, and the share of it that is on others than its own.
    held: f64,
    remote: f64,
}

impl Placed<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Placed<'a>> {
        let (host, process) = facts.process(node)?;
        let near = home(host, process)?;
        let held: f64 = process.anon_by_node.iter().map(|(_, bytes)| *bytes as f64).sum();
        let resident = node.number("used_memory_rss").filter(|rss| *rss > 0.0)?;
        if !OF_THE_SERVER.contains(&(held / resident)) {
            return None;
        }
        let own: f64 = process.anon_by_node.iter().filter(|(n, _)| *n == near.number).map(|(_, b)| *b as f64).sum();
        Some(Placed { node, host, process, near, held, remote: 1.0 - own / held })
    }
}

/// The node that has all processors it may use, or the one that it ran on all the time.
fn home<'a>(host: &'a Host, process: &Process) -> Option<&'a MemoryNode> {
    let of = |cpu: u32| host.memory_nodes.iter().find(|n| n.processors.contains(&cpu));
    let bound: BTreeSet<Option<u32>> = process.processors.iter().map(|cpu| of(*cpu).map(|n| n.number)).collect();
    let bound = process.processors.first().filter(|_| bound.len() == 1);
    let ran: BTreeSet<Option<u32>> = process.ran_on.iter().map(|cpu| of(*cpu).map(|n| n.number)).collect();
    let ran = process.ran_on.first().filter(|_| ran.len() == 1);
    bound.or(ran).and_then(|cpu| of(*cpu))
}

pub fn check(facts: &Facts) -> Verdict {
    let hosts: Vec<&Host> = facts.live().filter_map(|n| Some(facts.process(n)?.0)).collect();
    if hosts.is_empty() || hosts.iter().any(|h| h.memory_nodes.is_empty()) {
        return memory::unseen_machine("memory nodes");
    }
    if hosts.iter().all(|h| h.memory_nodes.len() == 1) {
        return Verdict::NotHere;
    }
    let all: Vec<Placed<'_>> = facts.live().filter_map(|n| Placed::of(facts, n)).collect();
    let rows = by_worst(all.iter().filter(|p| p.remote >= REMOTE).collect(), |p| p.remote);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|p| p.node.address.as_str())).into();
    }
    match all.iter().map(|p| p.remote).reduce(f64::max) {
        Some(most) => {
            Verdict::Absent(format!("memory nodes: at most {} of a server's memory is on another one", percent(most)))
        }
        None => Verdict::unknown(
            Lack::Host,
            "memory nodes: the machine has several, and the server's memory could not be told apart from that of other \
             programs",
            "on its machine: numastat -p PID (it walks all pages of the process), and ps -o psr -p PID",
        ),
    }
}

fn found(worst: &Placed<'_>) -> Finding {
    let Placed { node, host, process, near, held, remote } = *worst;
    let others: Vec<String> =
        process.anon_by_node.iter().map(|(number, held)| format!("node {number} {}", bytes(*held as f64))).collect();
    let cpus = process.core().map_or("processors of".to_string(), |cpu| format!("processor {cpu}, which is near"));
    let finding = Finding::new(format!(
        "{} runs on memory node {}, but {} of its {} are on another one",
        node.address,
        near.number,
        percent(remote),
        bytes(held)
    ))
    .risk("each CPU cache miss goes through the other socket; the number of misses was not measured")
    .likely("the kernel itself reports where the cgroup's memory is; what it costs was not measured")
    .saw_at(
        format!("memory.numa_stat of pid {}'s cgroup ({})", process.pid, host.hostname),
        others.join(", "),
        host.at_ms,
    )
    .saw_at(
        format!("/proc/{}/stat, /sys/devices/system/node ({})", process.pid, host.hostname),
        format!("the main thread is on {cpus} node {}", near.number),
        host.at_ms,
    )
    .saw(node, "INFO memory", format!("resident {}", bytes(node.number("used_memory_rss").unwrap_or(0.0))));
    finding
        .fix(
            &format!("On {}: let the kernel move the server's pages to the node it runs on", host.hostname),
            &[
                &format!("migratepages {} OTHER-NODES {}", process.pid, near.number),
                "sysctl -w kernel.numa_balancing=1   (it does so by itself, page by page)",
            ],
            "pages are locked while they move: the server pauses briefly, so do it at a quiet hour",
            "",
        )
        .fix(
            "For good: bind processors and memory to one node when the server is started",
            &[&format!("numactl --cpunodebind={0} --membind={0} redis-server redis.conf", near.number)],
            "it must fit into that node's memory; use --preferred instead of --membind if it may not",
            "",
        )
}
