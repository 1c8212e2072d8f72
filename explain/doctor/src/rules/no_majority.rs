//! No majority of a cluster's masters can be reached: no failover can be voted on, and the remaining masters refuse to
//! serve.
//!
//! A replica is promoted by the votes of more than half of the masters that own slots, and dead ones are part of that
//! count. Without this many votes, nothing is promoted however many replicas are healthy, no node can be marked `fail`,
//! and masters that have lost sight of the majority stop serving after cluster-node-timeout (cluster_state:fail).
//!
//! Seen when: according to the nodes that answer, half or more of the masters with slots neither answer this machine
//! nor are connected to their peers.
//!
//! Not to be taken for: slots without an owner while there is a majority (`slots_uncovered`): those get a new owner
//! automatically if a replica may take over. Nor for masters that only this machine cannot reach (`node_unreachable`
//! reports those).
//!
//! How to confirm: `CLUSTER NODES` and `CLUSTER INFO` (cluster_size is the number of masters with slots) on two nodes
//! that answer.
//!
//! What to do: bring one of the lost masters back: once there is a majority, the rest happens automatically. If they do
//! not come back soon, promote their replicas without a vote (CLUSTER FAILOVER TAKEOVER). Later, spread the masters
//! over three machines or zones, a third on each.
//! Sources: CLUSTER NODES; clusterUpdateState() and clusterSendFailoverAuthIfNeeded() of the servers; cluster
//! specification.

use super::peers;
use super::prelude::*;
use super::{refusal, takeover};
use unslow_topology::ClusterNode;

pub const TITLE: &str = "No majority of masters";
pub const LEADS_TO: &[&str] = &["slots_uncovered"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::NotHere;
    }
    let Some((asked, view)) = peers::cluster(facts) else {
        let gap = facts.nodes.iter().find_map(|n| n.cluster.refused()).cloned();
        let gap = gap.unwrap_or_else(|| Gap::new(Lack::Answer, "no node described the cluster", ""));
        return Verdict::Unknown(gap.of("a majority of masters"));
    };
    let Some((alive, of)) = takeover::majority(facts, Some(&view)) else {
        return Verdict::unknown(Lack::Answer, "a majority of masters: no server could say how many are left", "");
    };
    if alive > of / 2 {
        return Verdict::Absent(format!("a majority of masters: {alive} of {of} can be reached"));
    }
    let lost: Vec<&ClusterNode> = view.masters().filter(|row| is_lost(facts, row)).collect();
    let slots: usize = lost.iter().map(|row| row.slots.len()).sum();
    // The rest refuses as soon as it has noticed.
    let says_fail = |n: &Node| n.cluster_info.value().and_then(|i| i.get("cluster_state")).is_some_and(|s| s == "fail");
    let masters: Vec<&Node> = facts.live().filter(|n| n.is_master()).collect();
    let failing = masters.iter().filter(|n| says_fail(n)).count();
    let stopped = failing > 0 && failing == masters.len();
    let share = if stopped { 1.0 } else { slots as f64 / 16384.0 };
    let addresses: Vec<String> = lost.iter().map(|row| row.address.clone()).collect();
    let follows = if stopped { "the whole cluster refuses to serve" } else { "the slots of the others are not served" };
    let needed = (of / 2 + 1).saturating_sub(alive);
    let back = match addresses.as_slice() {
        [one] => format!("{one} is back"),
        all if needed == 1 => format!("1 of {} is back", names(all)),
        all => format!("{needed} of {} are back", names(all)),
    };
    let mut finding = Finding::new(format!(
        "{alive} of {of} masters can be reached, and a failover needs the votes of {}: {follows} until {back}",
        of / 2 + 1
    ))
    .on(lost.iter().map(|row| row.address.as_str()))
    .on(masters.iter().filter(|n| says_fail(n)).map(|n| n.address.as_str()))
    .availability(
        86400.0 * share,
        format!(
            "{} of the key space is not served{}; no replica can be elected",
            percent(share),
            peers::no_client_words(facts)
        ),
    )
    .affects(peers::affected(facts))
    .severity(Severity::Critical)
    .gain("failovers can be voted on again", format!("{alive} of {of} now, {} needed", of / 2 + 1))
    .proven("the nodes that answer report it, and the lost masters do not answer this machine")
    .saw(
        asked,
        "CLUSTER NODES",
        lost.iter().map(|row| format!("{}: {}", row.address, row.flags.join(","))).collect::<Vec<_>>().join("; "),
    );
    if let Some(node) = masters.iter().find(|n| says_fail(n)) {
        finding = finding.saw(node, "CLUSTER INFO", "cluster_state:fail");
    }
    let owners: Vec<(&str, Option<&Node>)> =
        lost.iter().map(|row| (row.address.as_str(), peers::node_of(facts, row))).collect();
    let risk = "a master that starts without its data comes back empty, and its replicas copy that: look for its \
                dump.rdb or AOF first";
    finding = refusal::bring_back(finding, &owners, risk);
    for node in owners.iter().filter_map(|(_, node)| *node).take(2) {
        finding = takeover::force(finding, facts, Some(&view), node);
    }
    finding.into()
}

/// Whether neither we nor its peers reach it, as `takeover::majority` counts.
fn is_lost(facts: &Facts, row: &ClusterNode) -> bool {
    match peers::node_of(facts, row) {
        Some(node) => !takeover::can_vote(facts, node),
        None => row.is_down(),
    }
}
