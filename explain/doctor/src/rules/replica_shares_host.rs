//! A master's replicas all run on the master's own machine.
//!
//! They survive a crash of the process, not of the machine: both copies go together.
//!
//! Seen when: every replica of a master has the master's address, in a deployment of several machines; or all of it runs
//! at one address that is not loopback.
//!
//! Not to be taken for: a replica that helps with reads beside another one elsewhere.
//!
//! What to do: swap replicas between shards, or add one elsewhere.
//! Sources: CLUSTER NODES, INFO replication; redis #2528, #6179.

use super::prelude::*;

pub const TITLE: &str = "Replica shares its master's host";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    // (master, its replicas' addresses), from the cluster's view or from the replicas' own word.
    let pairs: Vec<(String, Vec<String>)> = match facts.nodes.iter().find_map(|n| n.cluster.value()) {
        Some(view) => view.masters().map(|m| (m.address.clone(), view.replicas_of(&m.id).map(|r| r.address.clone()).collect())).collect(),
        None => facts.live().filter(|n| n.is_master()).map(|m| (m.address.clone(), facts.nodes.iter().filter(|r| r.master.as_deref() == Some(&m.address)).map(|r| r.address.clone()).collect())).collect(),
    };
    let host = |a: &str| a.rsplit_once(':').map_or(a.to_string(), |(h, _)| h.to_string());
    let mut hosts: Vec<String> = pairs.iter().flat_map(|(m, r)| std::iter::once(m).chain(r)).map(|a| host(a)).collect();
    hosts.sort();
    hosts.dedup();
    if hosts.len() == 1 && (hosts[0].starts_with("127.") || hosts[0] == "localhost" || hosts[0] == "local" || hosts[0] == "::1") {
        return Verdict::Absent(Some("replica placement: everything is on loopback, so there is nothing to place".into()));
    }
    let bad: Vec<&(String, Vec<String>)> = pairs.iter().filter(|(m, r)| !r.is_empty() && r.iter().all(|r| host(r) == host(m))).collect();
    let Some((master, replicas)) = bad.first() else {
        let any = pairs.iter().any(|(_, r)| !r.is_empty());
        return Verdict::Absent(any.then(|| "replica placement: every master has one on another machine".into()));
    };
    let node = facts.node(master);
    let mut finding = Finding::new(format!("{} {} no replica on another machine: {} stands beside its master", bad.len(), if bad.len() == 1 { "master has" } else { "masters have" }, names(replicas)))
        .on(bad.iter().map(|(m, _)| m.as_str()))
        .risk(format!("if {} dies, {} goes with its copies", host(master), if bad.len() == 1 { "that shard" } else { "each of those shards" }))
        .gain("the shard survives its machine", format!("{} of {} masters", bad.len(), pairs.len()))
        .proven("read from the servers' own view");
    if let Some(node) = node {
        finding = finding.saw(node, if facts.kind == DeploymentKind::Cluster { "CLUSTER NODES" } else { "INFO replication" }, format!("{master} <- {}", replicas.join(", ")));
    }
    finding.fix("Let a node of another machine follow it", &["CLUSTER REPLICATE <master-id>   (on a replica of another machine; swap two)", "REPLICAOF host port   (outside a cluster)"], "a full sync", "CLUSTER REPLICATE <old-master-id>").into()
}
