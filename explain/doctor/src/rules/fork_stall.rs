//! fork() stops the server: every RDB save, AOF rewrite and full sync begins with it.
//!
//! The main thread copies the page tables: 9 to 13 ms per GB on physical machines and VMware, 23 on KVM, 239 to 424 on
//! old Xen guests. A stall longer than the cluster's node timeout causes a failover.
//!
//! Seen when: the last fork took over 20 ms at 50 to 500 ms per GB, over 200 ms at more than that (more than page
//! tables explain), over a second, or over half of the failure detector's timeout. Without a fork in the window it is
//! in the past: how often it happens is total_forks (6.2+) over the time since the server started, if that is at
//! least two forks and an hour.
//!
//! Not to be taken for: a disk stall (`aof_fsync_stall`), which has other latency events; compare the nodes with each
//! other. A small server that lost its processor for a moment while it forked (its own clock counts that too): 30 ms
//! for 10 MB are not the page tables'.
//!
//! What to do: another machine type, smaller shards, saving on replicas only, settings that avoid forks; a longer node
//! timeout to stop the failovers now.
//! Sources: INFO latest_fork_usec, total_forks; LATENCY HISTORY fork; redis.io latency documentation (ms per GB).

use super::peers;
use super::prelude::*;
use super::standing::stood;

pub const TITLE: &str = "Fork stall";
pub const LEADS_TO: &[&str] = &["node_timeout_margin", "reconnect_stampede"];
pub const INJECTED: Injected = Injected::Yes;

/// The longest node timeout that is worth its price: a dead master goes unnoticed for that long.
const LONGEST_MS: f64 = 60_000.0;
/// Longer than on any machine that is fit for it, in ms per GB.
const SLOW_PER_GB: f64 = 50.0;
/// The slowest known (424) with a margin, in ms per GB: page tables take no longer.
const SLOWEST_PER_GB: f64 = 500.0;
/// From here on a fork is reported: one that page tables explain, and one that they do not.
const SLOW_US: f64 = 20_000.0;
const UNEXPLAINED_US: f64 = 200_000.0;
/// Reported at any size.
const LONG_US: f64 = 1_000_000.0;
/// Counters of a younger process give no rate.
const RATE_S: f64 = 3600.0;

/// The last fork of a node.
struct Fork<'a> {
    node: &'a Node,
    us: f64,
    gb: f64,
    per_gb: f64,
}

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<Fork> = facts.live().filter_map(|node| slow(facts, node)).collect();
    let rows = by_worst(rows, |r| r.us);
    let Some(fork) = rows.first() else {
        let most = most(facts, |n| n.number("latest_fork_usec"));
        return Verdict::absent(
            facts,
            "fork",
            most.map(|us| {
                if us > 0.0 {
                    format!("fork: at most {}", time_us(us))
                } else {
                    "fork: none since the servers started".into()
                }
            }),
        );
    };
    let (node, us, gb, per_gb) = (fork.node, fork.us, fork.gb, fork.per_gb);
    let peers: Vec<f64> = facts
        .live()
        .filter(|n| n.address != node.address)
        .filter_map(|n| n.number("latest_fork_usec").filter(|us| *us > 0.0))
        .collect();
    let peer = peers.iter().copied().reduce(f64::min);
    let forks = node.number("total_forks");
    let mut finding = Finding::new(format!(
        "fork() stops {} for {} each time it saves, rewrites or syncs a replica{}",
        node.address,
        time_us(us),
        peer.map_or(String::new(), |p| format!("; on its peers it takes {}", time_us(p)))
    ))
    .on(rows.iter().map(|r| r.node.address.as_str()));
    finding = cost(finding, node, us, gb)
        .proven("the server timed its own fork")
        .saw(
            node,
            "INFO stats",
            format!("latest_fork_usec:{us:.0}, total_forks:{}", forks.map_or("not counted before 6.2".into(), count)),
        )
        .saw(
            node,
            "INFO memory",
            format!("resident {}: {per_gb:.0} ms per GB (9 to 13 is usual, 23 on KVM)", bytes(gb * 1e9)),
        );
    for event in node.latency.value().into_iter().flatten().filter(|e| e.name == "fork") {
        finding = finding.saw_then(
            node,
            "LATENCY HISTORY fork",
            format!("{} ms, the longest {} ms", event.last_ms, event.max_ms),
            event.last_at_s * 1000,
        );
    }
    if let Some((host, _)) = facts.process(node) {
        finding = finding.saw_at(
            format!("host {}", host.hostname),
            format!("hypervisor: {}", host.hypervisor.as_deref().unwrap_or("none")),
            host.at_ms,
        );
    }
    if node.setting("appendonly") == Some("no") {
        finding = finding.not("AOF: off");
    }
    remedies(stood(finding, node), facts, node, us).into()
}

fn slow<'a>(facts: &Facts, node: &'a Node) -> Option<Fork<'a>> {
    let us = node.number("latest_fork_usec").filter(|us| *us > 0.0)?;
    let gb = node.number("used_memory_rss").or_else(|| node.number("used_memory"))? / 1e9;
    let per_gb = us / 1000.0 / gb.max(0.001);
    let flaps = failure_timeout_ms(facts, node).is_some_and(|(ms, _)| us / 1000.0 > 0.5 * ms);
    let from_us = if per_gb > SLOWEST_PER_GB { UNEXPLAINED_US } else { SLOW_US };
    let is_slow = us > LONG_US || (us > from_us && per_gb > SLOW_PER_GB) || flaps;
    is_slow.then_some(Fork { node, us, gb, per_gb })
}

/// What it costs, and of what time that is.
fn cost(finding: Finding, node: &Node, us: f64, gb: f64) -> Finding {
    let uptime_s = node.number("uptime_in_seconds").unwrap_or(0.0);
    let now = node.delta("total_forks").filter(|n| *n > 0.0);
    let all = node.number("total_forks").unwrap_or(1.0).max(1.0);
    let recurs = all >= 2.0 && uptime_s >= RATE_S;
    // A day at least: what a young server has done is no rate yet.
    let per_day = if recurs { all / (uptime_s / 86400.0).max(1.0) } else { 1.0 };
    let lost = us / 1e6 * per_day;
    let started = started_ms(node);
    let text = match now {
        Some(n) => format!("{} without an answer, {} in this window", time_us(us), times(n)),
        None if recurs => format!(
            "{} without an answer, about {} forks a day since it started: {} a day if each took as long as the last",
            time_us(us),
            count(per_day),
            time_us(lost * 1e6)
        ),
        None => format!(
            "{} without an answer, at the last of {} since it started {}",
            time_us(us),
            if all < 1.5 { "1 fork".to_string() } else { format!("{} forks", count(all)) },
            started.map_or(String::new(), |at| ago(node.at_ms(), at))
        ),
    };
    let finding = finding.availability(lost.max(now.unwrap_or(0.0) * us / 1e6), text).gain(
        format!("at 10 ms per GB, a fork takes {} instead of {}", time_us(gb * 10_000.0), time_us(us)),
        format!("{gb:.2} GB x 10 ms = {:.1} ms; {:.1} s x {per_day:.0} forks a day = {lost:.1} s", gb * 10.0, us / 1e6),
    );
    if now.is_some() {
        return finding;
    }
    if let (Some(at_ms), true) = (started, recurs) {
        return finding.since_start(at_ms);
    }
    let event = node.latency.value().into_iter().flatten().find(|e| e.name == "fork").map(|e| e.last_at_s * 1000);
    // Where the latency monitor has not kept its time: not before the process was there.
    let begun = node.first.as_ref().map(|s| s.at_ms);
    let severity = finding.severity.min(Severity::Medium);
    finding.severity(severity).past(event.or(started).or(begun).unwrap_or(node.at_ms()))
}

fn times(n: f64) -> String {
    if n < 1.5 { "once".into() } else { format!("{n:.0} times") }
}

fn remedies(finding: Finding, facts: &Facts, node: &Node, us: f64) -> Finding {
    let mut finding = finding;
    let timeout = failure_timeout_ms(facts, node)
        .filter(|(ms, _)| facts.kind == DeploymentKind::Cluster && us / 1000.0 > 0.5 * ms);
    let wanted = us / 1000.0 * 2.5;
    let to = wanted.min(LONGEST_MS);
    if let Some((ms, _)) = timeout.filter(|(ms, _)| to > *ms) {
        let set = |ms: f64| -> Vec<String> {
            facts.live().map(|n| cli(&n.address, &format!("CONFIG SET cluster-node-timeout {ms:.0}"))).collect()
        };
        let (commands, undo) = (set(to), set(ms).join("; "));
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        finding = finding.fix(
            if us / 1000.0 < to {
                "Now: let the failure detector outlast the stall, on every node"
            } else {
                "A minute, the longest timeout that makes sense, does not outlast the stall: the stall has to become \
                 shorter first"
            },
            &commands,
            "a master that is really dead is noticed later",
            &undo,
        );
        if wanted <= LONGEST_MS {
            finding = finding.exact();
        }
    }
    let replica = facts.live().find(|n| !n.is_master() && peers::master_by_info(n).as_deref() == Some(&node.address));
    let save = node.setting("save").filter(|s| !s.is_empty());
    if let (Some(replica), Some(save), true) = (replica, save, node.is_master()) {
        finding = finding.fix(
            "Save where no client waits: on its replica",
            &[&cli(&replica.address, "CONFIG SET save \"3600 1\""), &cli(&node.address, "CONFIG SET save \"\"")],
            "the master's own disk then holds no backup, and a master that restarts empty empties its replicas too: do \
             not restart it automatically",
            &cli(&node.address, &format!("CONFIG SET save \"{save}\"")),
        );
    } else if let Some(save) = save {
        finding = finding.fix(
            "Save less often",
            &[&cli(&node.address, "CONFIG SET save \"3600 1\"")],
            "up to an hour of writes is lost if the machine is lost",
            &cli(&node.address, &format!("CONFIG SET save \"{save}\"")),
        );
    }
    finding.fix(
        "Move it to a machine where fork is fast (not an old Xen guest), or split the data set",
        &["compare: latest_fork_usec / used_memory_rss of each node"],
        "requires moving the node",
        "move back",
    )
}
