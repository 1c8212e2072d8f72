//! A master has no working replica.
//!
//! If it dies its slots are gone until somebody brings it back; in a cluster with full coverage required, everything is.
//!
//! Seen when: a master of a cluster or a Sentinel group has no replica, or none that is up.
//!
//! Not to be taken for: a standalone cache, which never had one.
//!
//! What to do: add a replica.
//! Sources: CLUSTER NODES, INFO connected_slaves.

use super::prelude::*;

pub const TITLE: &str = "Master without replica";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let alone: Vec<(String, usize)> = match (facts.kind, facts.nodes.iter().find_map(|n| n.cluster.value())) {
        (DeploymentKind::Cluster, Some(view)) => view
            .masters()
            .filter(|m| view.replicas_of(&m.id).all(|r| r.is_down()))
            .map(|m| (m.address.clone(), view.replicas_of(&m.id).count()))
            .collect(),
        (DeploymentKind::Sentinel, _) => facts.live().filter(|n| n.is_master() && n.info().is_some_and(|i| i.replicas().iter().all(|r| r.2 != "online"))).map(|n| (n.address.clone(), 0)).collect(),
        _ => return Verdict::Absent(None),
    };
    let Some((first, dead)) = alone.first() else { return Verdict::Absent(Some("replicas: every master has one that is up".into())) };
    let node = facts.node(first);
    let addresses: Vec<String> = alone.iter().map(|a| a.0.clone()).collect();
    let mut finding = Finding::new(format!("{} {} no working replica{}", names(&addresses), if alone.len() == 1 { "has" } else { "have" }, if *dead > 0 { format!(" ({dead} down)") } else { String::new() }))
        .on(addresses)
        .risk("its data and its slots go with its machine")
        .gain("a failover in place of an outage", format!("{} masters alone", alone.len()))
        .proven("read from the servers' own view");
    if let Some(node) = node {
        finding = finding.saw(node, "INFO replication", format!("connected_slaves:{}", node.number("connected_slaves").unwrap_or(0.0)));
    }
    finding.fix("Add a replica on another machine", &["valkey-cli --cluster add-node NEW:PORT ANY:PORT --cluster-slave --cluster-master-id ID", "REPLICAOF host port   (outside a cluster)"], "a full sync: the master forks once", "CLUSTER FORGET ID on all nodes").into()
}
