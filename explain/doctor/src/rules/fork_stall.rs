//! fork() stops the server: every RDB save, AOF rewrite and full sync begins with it.
//!
//! The main thread copies the page tables: 9 to 13 ms per GB on physical machines and VMware, 23 on KVM, 239 to 424 on old
//! Xen guests. A stall longer than the cluster's node timeout is a failover.
//!
//! Seen when: the last fork took over a second, or over 20 ms at more than 50 ms per GB, or over half of the failure
//! detector's timeout.
//!
//! Not to be taken for: a disk stall (`aof_fsync_stall`), which has other latency events; compare the nodes with each other.
//!
//! What to do: another machine type, smaller shards, saving on replicas only, no-fork settings; a longer node timeout to
//! stop the failovers now.
//! Sources: INFO latest_fork_usec, total_forks; LATENCY HISTORY fork; redis.io latency documentation (ms per GB).

use super::prelude::*;

pub const TITLE: &str = "Fork stall";
pub const LEADS_TO: &[&str] = &["node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let us = node.number("latest_fork_usec").filter(|us| *us > 0.0)?;
            let gb = node.number("used_memory_rss").or_else(|| node.number("used_memory"))? / 1e9;
            let per_gb = us / 1000.0 / gb.max(0.001);
            let timeout = failure_timeout_ms(facts, node);
            let flaps = timeout.as_ref().is_some_and(|(ms, _)| us / 1000.0 > 0.5 * ms);
            (us > 1_000_000.0 || (us > 20_000.0 && per_gb > 50.0) || flaps).then_some((node, us, gb, per_gb))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1);
    let Some((node, us, gb, per_gb)) = rows.first() else {
        let most = facts.live().filter_map(|n| n.number("latest_fork_usec")).fold(0.0, f64::max);
        return Verdict::Absent(Some(if most > 0.0 { format!("fork: {} at most", time_us(most)) } else { "fork: none yet".into() }));
    };
    let uptime_days = node.number("uptime_in_seconds").unwrap_or(86400.0).max(86400.0) / 86400.0;
    let forks = node.number("total_forks");
    // Lifetime count over lifetime: the window is too short for something nightly.
    let per_day = forks.map_or(1.0, |n| n / uptime_days);
    let lost = us / 1e6 * per_day;
    let peers: Vec<f64> = facts.live().filter(|n| n.address != node.address).filter_map(|n| n.number("latest_fork_usec").filter(|us| *us > 0.0)).collect();
    let peer = peers.iter().copied().reduce(f64::min);
    let host = facts.process(node).map(|(h, _)| h);
    let mut finding = Finding::new(format!(
        "fork() stops {} for {} each time it saves, rewrites or syncs a replica{}",
        node.address, time_us(*us), peer.map_or(String::new(), |p| format!("; on its peers it takes {}", time_us(p)))
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .availability(lost, format!("{} without an answer, about {} times a day: {} a day", time_us(*us), count(per_day), time_us(lost * 1e6)))
    .gain(
        format!("at 10 ms per GB: {} in place of {}", time_us(gb * 10_000.0), time_us(*us)),
        format!("{gb:.2} GB x 10 ms = {:.1} ms; {:.1} s x {per_day:.0} forks a day = {lost:.1} s", gb * 10.0, us / 1e6),
    )
    .proven("the server timed its own fork")
    .saw(node, "INFO stats", format!("latest_fork_usec:{us:.0}, total_forks:{}", forks.map_or("not counted before 6.2".into(), count)))
    .saw(node, "INFO memory", format!("resident {}: {per_gb:.0} ms per GB (9 to 13 is usual, 23 on KVM)", bytes(gb * 1e9)));
    for event in node.latency.value().into_iter().flatten().filter(|e| e.name == "fork") {
        finding = finding.saw_then(node, "LATENCY HISTORY fork", format!("{} ms, the longest {} ms", event.last_ms, event.max_ms), event.last_at_s * 1000);
    }
    if let Some(host) = host {
        finding = finding.saw_at(format!("host {}", host.hostname), format!("hypervisor: {}", host.hypervisor.as_deref().unwrap_or("none")), host.at_ms);
    }
    if node.setting("appendonly") == Some("no") {
        finding = finding.not("AOF: off");
    }
    let timeout = failure_timeout_ms(facts, node);
    if let Some((ms, _)) = timeout.filter(|(ms, _)| facts.kind == DeploymentKind::Cluster && us / 1000.0 > 0.5 * ms) {
        let wanted = us / 1000.0 * 2.5;
        let commands: Vec<String> = facts.live().filter_map(|n| n.address.rsplit_once(':')).map(|(h, p)| format!("redis-cli -h {h} -p {p} CONFIG SET cluster-node-timeout {wanted:.0}")).collect();
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        finding = finding.fix("Now: let the failure detector outlast the stall, on every node", &commands, "a really dead master is noticed later", &format!("CONFIG SET cluster-node-timeout {ms:.0}")).exact();
    }
    finding
        .fix("Save where it hurts nobody: on replicas", &["CONFIG SET save \"\"   (on the master)", "CONFIG SET save \"3600 1\"   (on a replica)"], "the master's own disk is then no backup; and a master that is restarted empty by itself empties its replicas too: no automatic restart", &format!("CONFIG SET save \"{}\"", node.setting("save").unwrap_or("")))
        .fix("Move it to a machine where fork is fast (not an old Xen guest), or split the data set", &["compare: latest_fork_usec / used_memory_rss of each node"], "a move", "move back")
        .into()
}
