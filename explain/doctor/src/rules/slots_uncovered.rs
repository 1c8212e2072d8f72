//! Some hash slots have no living owner: every command on their keys fails.
//!
//! With `cluster-require-full-coverage yes` (the default) the whole cluster refuses to serve.
//!
//! Seen when: a slot has no owner in the merged view, or its owner is marked failed, or a node says cluster_state:fail.
//!
//! Not to be taken for: a node that only this machine cannot reach (the cluster's own word counts).
//!
//! What to do: bring the owner back, or let its replica take over; assign what nobody owns.
//! Sources: CLUSTER NODES, CLUSTER INFO.

use super::prelude::*;
use unslow_topology::ClusterView;

pub const TITLE: &str = "Slots uncovered";
pub const LEADS_TO: &[&str] = &["error_flood", "redirect_storm"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::Absent(None);
    }
    let views: Vec<ClusterView> = facts.nodes.iter().filter_map(|n| n.cluster.value().cloned()).collect();
    let Some(asked) = facts.nodes.iter().find(|n| n.cluster.value().is_some()) else {
        return Verdict::Unknown { why: "slots stand in CLUSTER NODES, which could not be read".into(), grant: "ACL SETUSER <user> +cluster|nodes".into() };
    };
    let merged = ClusterView::merge(&views);
    let (unassigned, failed) = (merged.unassigned(), merged.failed());
    let saying_fail: Vec<&Node> = facts.nodes.iter().filter(|n| n.cluster_info.value().and_then(|i| i.get("cluster_state")).is_some_and(|s| s == "fail")).collect();
    if unassigned.is_empty() && failed.is_empty() && saying_fail.is_empty() {
        return Verdict::Absent(Some("slots: all 16384 covered".into()));
    }
    let lost = unassigned.len() + failed.len();
    let full = facts.live().any(|n| n.setting("cluster-require-full-coverage") == Some("yes"));
    // One node that has just come back says fail for itself alone: what counts is how many masters do.
    let masters = facts.live().filter(|n| n.is_master()).count().max(1);
    let failing = saying_fail.iter().filter(|n| n.is_master()).count() as f64 / masters as f64;
    let share = if full && lost > 0 { 1.0 } else { (lost as f64 / 16384.0).max(failing) };
    let dead: Vec<&str> = merged.nodes.iter().filter(|n| n.is("fail") && !n.slots.is_empty()).map(|n| n.address.as_str()).collect();
    let what = match (unassigned.is_empty(), failed.is_empty()) {
        (false, _) => format!("{} slots belong to nobody ({unassigned})", unassigned.len()),
        (_, false) => format!("{} slots belong to {}, which is marked failed", failed.len(), dead.join(", ")),
        _ => format!("{} say that the cluster is down", names(&saying_fail.iter().map(|n| n.address.clone()).collect::<Vec<_>>())),
    };
    let mut finding = Finding::new(format!("{what}: {}", if share >= 1.0 { "the whole cluster refuses to serve" } else { "commands there fail" }))
        .on(saying_fail.iter().map(|n| n.address.as_str()).chain(dead.iter().copied()))
        .availability(86400.0 * share, format!("{} of the key space is not served", percent(share)))
        .gain("all slots served", format!("{lost} of 16384 slots{}", if full { ", full coverage required" } else { "" }))
        .proven("the cluster's own word")
        .saw(asked, "CLUSTER NODES", format!("unassigned: {}; owner failed: {}", if unassigned.is_empty() { "none".into() } else { unassigned.to_string() }, if failed.is_empty() { "none".into() } else { failed.to_string() }));
    if let Some(node) = saying_fail.first() {
        finding = finding.saw(node, "CLUSTER INFO", format!("cluster_state:fail, cluster_slots_assigned:{}", node.cluster_info.value().and_then(|i| i.get("cluster_slots_assigned").cloned()).unwrap_or_default()));
    }
    if !unassigned.is_empty() {
        let ranges: Vec<String> = unassigned.ranges().iter().map(|(a, b)| format!("{a} {b}")).collect();
        let asked = facts.live().find(|n| n.is_master()).unwrap_or(asked);
        let (h, p) = asked.address.rsplit_once(':').unwrap_or((&asked.address, ""));
        let range = format!("redis-cli -h {h} -p {p} CLUSTER ADDSLOTSRANGE {}   (7.0+; on the master that should own them)", ranges.join(" "));
        finding = finding.fix("Give the slots that nobody owns to a master", &[&range, &format!("redis-cli --cluster fix {}", asked.address)], "if an old owner returns with data there, the newer epoch wins", "CLUSTER DELSLOTS");
    }
    if !failed.is_empty() {
        finding = finding.fix("Bring the owner back, or let its replica take over", &["CLUSTER FAILOVER TAKEOVER   (on a replica of it)"], "writes the replica had not received are lost", "none");
    }
    finding.fix("Serve what can be served meanwhile", &["CONFIG SET cluster-require-full-coverage no   (on every node)"], "clients see partial data", "CONFIG SET cluster-require-full-coverage yes").into()
}
