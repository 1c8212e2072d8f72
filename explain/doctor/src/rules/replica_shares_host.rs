//! A master's replicas all run on the master's own machine.
//!
//! They survive a crash of the process, not of the machine: both copies are lost together.
//!
//! Seen when: every replica of a master has the master's address, in a deployment of several machines; or the whole
//! deployment runs at one address that is not loopback.
//!
//! Not to be taken for: a replica that helps with reads while another one runs elsewhere; entries of CLUSTER NODES
//! without an address (`:0@0`: forgotten, or never met), or nodes that are marked as failed.
//!
//! What to do: swap replicas between shards, or add one elsewhere.
//! Sources: CLUSTER NODES, INFO replication; redis #2528, #6179.

use super::peers::{self, host_of};
use super::prelude::*;
use std::collections::BTreeSet;
use unslow_topology::{ClusterNode, ClusterView};

pub const TITLE: &str = "Replica shares its master's host";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// A master and its replicas that are there, by address.
type Shard = (String, Vec<String>);

pub fn check(facts: &Facts) -> Verdict {
    if facts.through.is_some() {
        return Verdict::NotHere;
    }
    let cluster = peers::cluster(facts);
    let view = cluster.as_ref().map(|(_, view)| view);
    let shards = match view {
        Some(view) => of_view(view),
        None => of_words(facts),
    };
    if shards.iter().all(|(_, replicas)| replicas.is_empty()) {
        let denied = facts.nodes.iter().find_map(|n| n.cluster.refused());
        return match denied.filter(|_| facts.kind == DeploymentKind::Cluster && view.is_none()) {
            Some(gap) => Verdict::Unknown(gap.of("where replicas run")),
            None if facts.nodes.len() > 1 && facts.live().next().is_none() => {
                Verdict::Unknown(unseen_info(facts, "where replicas run"))
            }
            None => Verdict::NotHere,
        };
    }
    let hosts: BTreeSet<&str> =
        shards.iter().flat_map(|(m, r)| std::iter::once(m).chain(r)).map(|a| host_of(a)).collect();
    // All of it on loopback: there is nothing to place.
    if hosts.len() == 1 && hosts.iter().all(|h| peers::is_loopback(h)) {
        return Verdict::NotHere;
    }
    let beside =
        |(master, replicas): &&Shard| !replicas.is_empty() && replicas.iter().all(|r| host_of(r) == host_of(master));
    let bad: Vec<&Shard> = shards.iter().filter(beside).collect();
    let Some((master, replicas)) = bad.first() else {
        let with = shards.iter().filter(|(_, r)| !r.is_empty()).count();
        return Verdict::Absent(format!(
            "replica placement: {} has a replica at another address",
            if with == 1 { "the master".into() } else { format!("each of {with} masters") }
        ));
    };
    let mut finding = Finding::new(format!(
        "{} {} no replica on another machine: {} runs next to its master",
        bad.len(),
        if bad.len() == 1 { "master has" } else { "masters have" },
        names(replicas)
    ))
    .on(bad.iter().map(|(m, _)| m.as_str()))
    .risk(format!(
        "if {} dies, {} is lost together with its copies",
        host_of(master),
        if bad.len() == 1 { "that shard" } else { "each of those shards" }
    ))
    .gain("the shard survives its machine", format!("{} of {} masters", bad.len(), shards.len()))
    .proven("read from the servers' own view");
    let source = if view.is_some() { "CLUSTER NODES" } else { "INFO replication" };
    let asked = facts
        .node(master)
        .filter(|n| n.last.is_some())
        .or_else(|| cluster.as_ref().map(|(asked, _)| *asked))
        .or_else(|| facts.live().next());
    if let Some(node) = asked {
        finding = finding.saw(node, source, format!("{master} <- {}", replicas.join(", ")));
    }
    match view {
        Some(view) => in_cluster(finding, facts, view, master),
        None => in_group(finding, master),
    }
    .into()
}

fn there(row: &&ClusterNode) -> bool {
    row.has_address() && !row.is("fail")
}

fn of_view(view: &ClusterView) -> Vec<Shard> {
    let shard = |m: &ClusterNode| {
        (m.address.clone(), view.replicas_of(&m.id).filter(there).map(|r| r.address.clone()).collect())
    };
    view.masters().filter(there).map(shard).collect()
}

fn of_words(facts: &Facts) -> Vec<Shard> {
    let follows = |m: &Node, r: &Node| peers::answers(r) && peers::master_by_info(r).as_deref() == Some(&m.address);
    let shard = |m: &Node| {
        (m.address.clone(), facts.nodes.iter().filter(|r| follows(m, r)).map(|r| r.address.clone()).collect())
    };
    facts.live().filter(|n| n.is_master()).map(shard).collect()
}

fn in_cluster(finding: Finding, facts: &Facts, view: &ClusterView, master: &str) -> Finding {
    let Some(this) = view.masters().find(|m| m.address == master) else { return finding };
    let up = |r: &&ClusterNode| there(r) && !r.is_down() && peers::node_of(facts, r).is_none_or(peers::answers);
    let Some(own) = view.replicas_of(&this.id).find(up) else { return add(finding, facts, this) };
    // A replica that is told to follow another master throws its own data away first: it may be the last copy.
    let well = |m: &ClusterNode| peers::is_well(facts, m);
    // Another shard's replica on another machine, whose master may have this one's in exchange.
    let swap = view
        .masters()
        .filter(|m| m.id != this.id && m.host() != own.host() && well(m) && well(this))
        .find_map(|m| view.replicas_of(&m.id).filter(up).find(|r| r.host() != this.host()).map(|r| (m, r)));
    let Some((other, theirs)) = swap else { return add(finding, facts, this) };
    let follow = |replica: &ClusterNode, master: &ClusterNode| {
        cli(&replica.address, &format!("CLUSTER REPLICATE {}", master.id))
    };
    // No script's: between the two lines someone has to look.
    finding.fix(
        "Swap replicas with another shard",
        &[
            &follow(theirs, this),
            &format!(
                "{}   (once the first has its link up: INFO replication of {}, master_link_status)",
                follow(own, other),
                theirs.address
            ),
        ],
        "two full syncs: both masters fork; if the second is run before the first one's link is up, a shard is left \
         without a copy",
        &format!("{}; {}", follow(theirs, other), follow(own, this)),
    )
}

fn add(finding: Finding, facts: &Facts, master: &ClusterNode) -> Finding {
    let tool = facts.live().next().map_or("redis-cli", peers::tool);
    finding.fix(
        "Add a replica on another machine",
        &[&format!(
            "{tool} --cluster add-node NEW:PORT {} --cluster-slave --cluster-master-id {}",
            master.address, master.id
        )],
        "a full sync: the master forks once",
        "CLUSTER FORGET with the new node's id, on every node",
    )
}

fn in_group(finding: Finding, master: &str) -> Finding {
    let port = master.rsplit_once(':').map_or("6379", |(_, p)| p);
    finding.fix(
        "Have a server on another machine follow the master",
        &[&cli("NEW:PORT", &format!("REPLICAOF {} {port}", host_of(master)))],
        "a full sync: the master forks once",
        &cli("NEW:PORT", "REPLICAOF NO ONE"),
    )
}
