//! Several masters of a cluster run on one machine.
//!
//! If that machine dies several shards are down at once; if it held half of the masters or more there is no majority left
//! to elect anybody, and nothing fails over by itself. `redis-cli --cluster check` says nothing of it.
//!
//! Seen when: two masters have one address (or one machine, by boot id), while the cluster spans several.
//!
//! Not to be taken for: a cluster on one machine altogether, which is a test.
//!
//! What to do: CLUSTER FAILOVER on the replica whose machine has no master.
//! Sources: CLUSTER NODES; redis #6736; Redis cluster specification (majority of masters).

use super::prelude::*;
use std::collections::BTreeMap;

pub const TITLE: &str = "Masters share a host";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::Absent(None);
    }
    let Some((asked, view)) = facts.nodes.iter().find_map(|n| Some((n, n.cluster.value()?))) else {
        return Verdict::Unknown { why: "where masters run stands in CLUSTER NODES, which could not be read".into(), grant: "ACL SETUSER <user> +cluster|nodes".into() };
    };
    let hosts: std::collections::BTreeSet<&str> = view.nodes.iter().map(|n| n.host()).collect();
    let mut by_host: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for master in view.masters() {
        by_host.entry(master.host()).or_default().push(master);
    }
    let masters = view.masters().count();
    let Some((host, crowd)) = by_host.iter().filter(|(_, m)| m.len() > 1).max_by_key(|(_, m)| m.len()) else {
        return Verdict::Absent(Some("placement: no two masters on one machine".into()));
    };
    if hosts.len() == 1 {
        return Verdict::Absent(Some("placement: the whole cluster has one address, so there is nothing to place".into()));
    }
    let majority = masters / 2 + 1;
    let lost = masters - crowd.len() < majority;
    // A replica of one of them, on a machine that has no master.
    let free = crowd.iter().find_map(|m| view.replicas_of(&m.id).find(|r| !by_host.contains_key(r.host()) && !r.is_down()));
    let any = crowd.iter().find_map(|m| view.replicas_of(&m.id).find(|r| r.host() != *host && !r.is_down()));
    let commands: Vec<String> = free.or(any).map(|r| { let (h, p) = r.address.rsplit_once(':').unwrap_or((&r.address, "")); format!("redis-cli -h {h} -p {p} CLUSTER FAILOVER") }).into_iter().collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let mut finding = Finding::new(format!(
        "{} of {masters} masters run on {host}{}",
        crowd.len(), if lost { ": if it dies there is no majority, and nothing fails over" } else { "" }
    ))
    .on(crowd.iter().map(|m| m.address.as_str()))
    .risk(format!("{} of {masters} shards go with one machine", crowd.len()))
    .gain("one shard at a time can be lost, and fails over", format!("majority {majority} of {masters}; without {host}: {}", masters - crowd.len()))
    .proven("read from the cluster's own view")
    .saw(asked, "CLUSTER NODES", crowd.iter().map(|m| format!("{} master {}", m.address, m.slots)).collect::<Vec<_>>().join("; "));
    finding = if commands.is_empty() {
        finding.fix("Give one of them a replica elsewhere, then fail over to it", &["CLUSTER REPLICATE <master-id>   (on a node of another machine)", "CLUSTER FAILOVER   (there, once its link is up)"], "a second without writes to that shard", "CLUSTER FAILOVER on the old master")
    } else {
        finding.fix("Promote the replica that stands on another machine", &commands, "a second without writes to that shard", "CLUSTER FAILOVER on the old master").exact()
    };
    finding.into()
}
