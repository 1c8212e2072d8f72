//! Several masters of a cluster run on one machine.
//!
//! If that machine dies, several shards go down at once; if it held half of the masters or more, no majority is left to
//! elect a replica, and nothing fails over on its own. `redis-cli --cluster check` does not report it.
//!
//! Seen when: two masters have the same address, while the cluster spans several.
//!
//! Not to be taken for: a cluster that is entirely on one machine, which is a test setup; masters that are marked as
//! failed, or entries of CLUSTER NODES without an address (`:0@0`: forgotten, or never met).
//!
//! What to do: run CLUSTER FAILOVER on a replica whose machine has no master, or so few that it does not end up just as
//! crowded; if there is no such replica, add one on another machine.
//! Sources: CLUSTER NODES; redis #6736; Redis cluster specification (majority of masters).

use super::peers;
use super::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use unslow_topology::{ClusterNode, ClusterView};

pub const TITLE: &str = "Masters share a host";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let Some((asked, view)) = peers::cluster(facts) else {
        let gap = facts.nodes.iter().find_map(|n| n.cluster.refused()).cloned();
        return Verdict::Unknown(
            gap.unwrap_or_else(|| Gap::new(Lack::Answer, "no node answered", "")).of("where masters run"),
        );
    };
    let there = |n: &&ClusterNode| n.has_address() && !n.is("fail");
    let hosts: BTreeSet<&str> = view.nodes.iter().filter(there).map(|n| n.host()).collect();
    let mut by_host: BTreeMap<&str, Vec<&ClusterNode>> = BTreeMap::new();
    for master in view.masters().filter(there) {
        by_host.entry(master.host()).or_default().push(master);
    }
    let masters: usize = by_host.values().map(Vec::len).sum();
    if hosts.len() < 2 || masters < 2 {
        return Verdict::NotHere;
    }
    let Some((host, crowd)) = by_host.iter().filter(|(_, m)| m.len() > 1).max_by_key(|(_, m)| m.len()) else {
        return Verdict::Absent(format!("placement: {masters} masters at {} addresses", by_host.len()));
    };
    let majority = masters / 2 + 1;
    let left = masters - crowd.len();
    let finding = Finding::new(format!(
        "{} of {masters} masters run on {host}{}",
        crowd.len(),
        if left < majority { ": if it dies there is no majority, and nothing fails over" } else { "" }
    ))
    .on(crowd.iter().map(|m| m.address.as_str()))
    .risk(format!("the loss of one machine takes down {} of {masters} shards", crowd.len()))
    .gain(
        "only one shard at a time can be lost, and it fails over",
        format!("majority {majority} of {masters}; without {host}: {left}"),
    )
    .proven("read from the cluster's own view")
    .saw(
        asked,
        "CLUSTER NODES",
        crowd.iter().map(|m| format!("{} master {}", m.address, m.slots)).collect::<Vec<_>>().join("; "),
    );
    remedy(finding, facts, &view, crowd, &by_host).into()
}

fn remedy(
    finding: Finding,
    facts: &Facts,
    view: &ClusterView,
    crowd: &[&ClusterNode],
    by_host: &BTreeMap<&str, Vec<&ClusterNode>>,
) -> Finding {
    let here = crowd.first().map_or("", |m| m.host());
    let up = |r: &&ClusterNode| r.has_address() && !r.is_down() && peers::node_of(facts, r).is_none_or(peers::answers);
    // One more master on its machine is no crowd as large as this one.
    let eases = |r: &ClusterNode| r.host() != here && by_host.get(r.host()).map_or(0, Vec::len) + 1 < crowd.len();
    // A replica of one of them, on a machine that has no master; else on one with fewer.
    let replica = |free: bool| {
        crowd.iter().find_map(|m| {
            let fits = |r: &&ClusterNode| if free { !by_host.contains_key(r.host()) } else { eases(r) };
            view.replicas_of(&m.id).filter(up).find(fits).map(|r| (*m, r))
        })
    };
    if let Some((master, replica)) = replica(true).or_else(|| replica(false)) {
        let rollback = cli(&master.address, "CLUSTER FAILOVER");
        return finding
            .fix(
                "Promote the replica on another machine",
                &[&cli(&replica.address, "CLUSTER FAILOVER")],
                "a second without writes to that shard",
                &rollback,
            )
            .exact();
    }
    let Some(master) = crowd.first() else { return finding };
    let follow = format!("CLUSTER REPLICATE {}", master.id);
    // Another shard's second replica, on another machine, can be spared.
    let well = |m: &&ClusterNode| peers::is_well(facts, m);
    let spare = view.masters().filter(|m| m.id != master.id && well(m) && well(master)).find_map(|m| {
        let replicas: Vec<&ClusterNode> = view.replicas_of(&m.id).filter(up).collect();
        replicas.iter().copied().find(|r| replicas.len() > 1 && eases(r)).map(|r| (m, r))
    });
    match spare {
        Some((other, spare)) => finding.fix(
            "Have a spare replica follow one of them, then fail over to it",
            &[
                &cli(&spare.address, &follow),
                &(cli(&spare.address, "CLUSTER FAILOVER")
                    + "   (once its link is up: INFO replication, master_link_status)"),
            ],
            "a full sync, then a second without writes to that shard",
            &format!(
                "{}; {}",
                cli(&master.address, "CLUSTER FAILOVER"),
                cli(&spare.address, &format!("CLUSTER REPLICATE {}", other.id))
            ),
        ),
        None => {
            let tool = facts.live().next().map_or("redis-cli", peers::tool);
            let add = format!(
                "{tool} --cluster add-node NEW:PORT {} --cluster-slave --cluster-master-id {}",
                master.address, master.id
            );
            finding.fix(
                "Give one of them a replica on a machine with fewer masters, or on a new one, then fail over to it",
                &[
                    &add,
                    &(cli("NEW:PORT", "CLUSTER FAILOVER")
                        + "   (once its link is up: INFO replication, master_link_status)"),
                ],
                "a full sync, then a second without writes to that shard",
                &cli(&master.address, "CLUSTER FAILOVER"),
            )
        }
    }
}
