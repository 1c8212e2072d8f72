//! A stall that has happened before is nearly as long as the failure detector waits: the next one is a failover.
//!
//! `cluster-node-timeout` and Sentinel's `down-after-milliseconds` cannot tell a stalled node from a dead one. What counts
//! is the longest stall seen: a fork, a slow command, a disk.
//!
//! Seen when: the longest stall on record is over half of the timeout.
//!
//! Not to be taken for: a timeout that is merely short. Without a stall it is no finding.
//!
//! What to do: remove the stall; until then a timeout of twice its length.
//! Sources: CONFIG GET cluster-node-timeout; SENTINEL MASTERS; latest_fork_usec, LATENCY LATEST, SLOWLOG.

use super::prelude::*;

pub const TITLE: &str = "Node timeout margin";
pub const LEADS_TO: &[&str] = &["failover_flapping"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if !matches!(facts.kind, DeploymentKind::Cluster | DeploymentKind::Sentinel) {
        return Verdict::Absent(None);
    }
    let mut known = false;
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (timeout_ms, setting) = failure_timeout_ms(facts, node)?;
            known = true;
            let (us, what) = worst_stall(node)?;
            (us / 1000.0 > 0.5 * timeout_ms).then_some((node, us, what, timeout_ms, setting))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1 / r.3);
    let Some((node, us, what, timeout_ms, setting)) = rows.first() else {
        if !known {
            return Verdict::Unknown { why: "the failure detector's timeout could not be read".into(), grant: "ACL SETUSER <user> +config|get; for Sentinel: reach one Sentinel".into() };
        }
        let worst = facts.live().filter_map(worst_stall).map(|w| w.0).fold(0.0, f64::max);
        return Verdict::Absent(Some(format!("timeout margin: the longest stall on record is {}", time_us(worst))));
    };
    let over = us / 1000.0 >= *timeout_ms;
    let wanted = (us / 1000.0 * 2.0).ceil();
    let command = if facts.kind == DeploymentKind::Cluster {
        format!("CONFIG SET cluster-node-timeout {wanted:.0}   (on every node)")
    } else {
        let service = facts.sentinels.iter().flat_map(|s| &s.groups).next().map_or("mymaster", |g| g.service.as_str());
        format!("SENTINEL SET {service} down-after-milliseconds {wanted:.0}   (on every Sentinel)")
    };
    Finding::new(format!(
        "{} has stalled for {} since its counters began, {} {setting}: {}",
        node.address, time_us(*us), if over { "longer than" } else { "over half of" }, if over { "it is taken for dead" } else { "a little more and it is taken for dead" }
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .risk(format!("a failover each time: about {:.1} s without that master", timeout_ms / 1000.0 + 1.5))
    .gain(format!("a margin of two: {wanted:.0} ms"), format!("2 x {:.0} ms", us / 1000.0))
    .proven("stall and timeout were both read from the server")
    .saw(node, "INFO stats", what.clone())
    .saw(node, if facts.kind == DeploymentKind::Cluster { "CONFIG GET cluster-node-timeout" } else { "SENTINEL MASTERS (at a Sentinel)" }, setting.clone())
    .fix("Until the stall is gone: wait twice as long", &[&command], "a dead master is noticed later", &format!("the same with {timeout_ms:.0}"))
    .into()
}
