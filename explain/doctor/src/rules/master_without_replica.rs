//! A master has no working replica.
//!
//! If it dies, its slots are not served until it is brought back; in a cluster that requires full coverage, no slots
//! are.
//!
//! Seen when: a master of a cluster or a Sentinel group has no replica, or none that is up.
//!
//! Not to be taken for: a standalone cache, which never had one.
//!
//! What to do: add a replica, or move one over from a shard that can spare it.
//! Sources: CLUSTER NODES, INFO connected_slaves.

use super::peers::{self, Standing};
use super::prelude::*;
use super::refusal;
use unslow_topology::{ClusterNode, ClusterView};

pub const TITLE: &str = "Master without replica";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// A master without a replica that is up, and its replicas that are down.
struct Alone {
    master: String,
    dead: Vec<String>,
}

pub fn check(facts: &Facts) -> Verdict {
    // Behind a proxy stand servers that were not seen.
    if facts.through.is_some() {
        return Verdict::NotHere;
    }
    match facts.kind {
        DeploymentKind::Cluster => match peers::cluster(facts) {
            Some((_, view)) => {
                judge(facts, Some(&view), of_view(facts, &view), view.masters().filter(|m| m.has_address()).count())
            }
            None => {
                let gap = facts.nodes.iter().find_map(|n| n.cluster.refused()).cloned();
                Verdict::Unknown(gap.unwrap_or_else(|| Gap::new(Lack::Answer, "no node answered", "")).of("replicas"))
            }
        },
        DeploymentKind::Sentinel => {
            // Its own word, and not an INFO without it.
            let counts = |n: &&Node| n.is_master() && n.number("connected_slaves").is_some();
            let masters: Vec<&Node> = facts.live().filter(counts).collect();
            if masters.is_empty() {
                return Verdict::Unknown(match facts.live().find(|n| n.is_master()) {
                    None if facts.live().next().is_some() => Gap::new(Lack::Answer, "replicas: no master answered", ""),
                    _ => unseen_info(facts, "replicas"),
                });
            }
            judge(facts, None, of_words(facts, &masters), masters.len())
        }
        DeploymentKind::Standalone | DeploymentKind::MasterReplica => Verdict::NotHere,
    }
}

fn of_view(facts: &Facts, view: &ClusterView) -> Vec<Alone> {
    let up = |r: &ClusterNode| {
        let lost = |n: &Node| match peers::standing(facts, n) {
            _ if peers::answers(n) => false,
            Standing::FromHere { .. } => false,
            // It is there, and no peer says otherwise.
            Standing::Unheard => !peers::refuses(n),
            Standing::Lost { .. } => true,
        };
        !r.is_down() && !peers::node_of(facts, r).is_some_and(lost)
    };
    view.masters()
        .filter(|m| m.has_address())
        .filter_map(|m| {
            let replicas: Vec<&ClusterNode> = view.replicas_of(&m.id).filter(|r| r.has_address()).collect();
            let dead = || replicas.iter().map(|r| r.address.clone()).collect();
            (!replicas.iter().any(|r| up(r))).then(|| Alone { master: m.address.clone(), dead: dead() })
        })
        .collect()
}

fn of_words(facts: &Facts, masters: &[&Node]) -> Vec<Alone> {
    let online = |m: &Node| m.info().is_some_and(|i| i.replicas().iter().any(|r| r.2 == "online"));
    let dead = |m: &Node| {
        let follows = |r: &&Node| r.master.as_deref() == Some(&m.address) && !peers::answers(r);
        facts.nodes.iter().filter(follows).map(|r| r.address.clone()).collect()
    };
    masters.iter().filter(|m| !online(m)).map(|m| Alone { master: m.address.clone(), dead: dead(m) }).collect()
}

fn judge(facts: &Facts, view: Option<&ClusterView>, alone: Vec<Alone>, masters: usize) -> Verdict {
    let Some(first) = alone.first() else {
        let each =
            if masters == 1 { "the master has one".into() } else { format!("each of {masters} masters has one") };
        return Verdict::Absent(format!("replicas: {each} that is up"));
    };
    let addresses: Vec<String> = alone.iter().map(|a| a.master.clone()).collect();
    let dead = match first.dead.len() {
        0 => String::new(),
        _ => format!(" ({} down)", names(&first.dead)),
    };
    let mut finding = Finding::new(format!(
        "{} {} no working replica{dead}",
        names(&addresses),
        if alone.len() == 1 { "has" } else { "have" }
    ))
    .on(addresses)
    .on(alone.iter().flat_map(|a| &a.dead))
    .risk("if its machine fails, its data is lost and nothing takes over")
    .gain("a failover instead of an outage", format!("{} of {masters} masters", alone.len()))
    .proven("read from the servers' own view");
    if let Some(node) = facts.node(&first.master).filter(|n| n.last.is_some()) {
        finding = finding.saw(
            node,
            "INFO replication",
            format!("connected_slaves:{}", count(node.number("connected_slaves").unwrap_or(0.0))),
        );
    }
    if let Some((asked, row)) = peers::cluster(facts)
        .and_then(|(asked, view)| Some((asked, view.nodes.into_iter().find(|r| r.address == first.master)?)))
    {
        finding = finding.saw(
            asked,
            "CLUSTER NODES",
            format!("{}: {} slots, replicas that are up: 0", row.address, row.slots.len()),
        );
    }
    if let Some(dead) = first.dead.first() {
        finding = refusal::bring_back(finding, &[(dead.as_str(), facts.node(dead))], "");
    }
    match view {
        Some(view) => in_cluster(finding, facts, view, first),
        None => {
            let (host, port) =
                (peers::host_of(&first.master), first.master.rsplit_once(':').map_or("6379", |(_, p)| p));
            finding.fix(
                "Add a replica on another machine",
                &[&cli("NEW:PORT", &format!("REPLICAOF {host} {port}"))],
                "a full sync: the master forks once",
                &cli("NEW:PORT", "REPLICAOF NO ONE"),
            )
        }
    }
    .into()
}

fn in_cluster(finding: Finding, facts: &Facts, view: &ClusterView, alone: &Alone) -> Finding {
    let Some(master) = view.masters().find(|m| m.address == alone.master) else { return finding };
    // A replica that is told to follow another master throws its own data away first: it may be the last copy.
    if !peers::is_well(facts, master) {
        return finding.fix(
            &format!("Then give {} a replica, but only once it answers and its peers see that it does", master.address),
            &["CLUSTER NODES   (until its line shows neither fail nor fail?)"],
            "a replica that is told to follow a dead master discards the data it held",
            "",
        );
    }
    let up = |r: &&ClusterNode| r.has_address() && !r.is_down() && peers::node_of(facts, r).is_none_or(peers::answers);
    let mut others = view.masters().filter(|m| m.id != master.id && peers::is_well(facts, m));
    let spare = others.find_map(|m| {
        let replicas: Vec<&ClusterNode> = view.replicas_of(&m.id).filter(up).collect();
        replicas.iter().copied().find(|r| replicas.len() > 1 && r.host() != master.host()).map(|r| (m, r))
    });
    if let Some((other, spare)) = spare {
        let follow = |m: &ClusterNode| cli(&spare.address, &format!("CLUSTER REPLICATE {}", m.id));
        return finding
            .fix(
                &format!("Have a replica that {} can spare follow it", other.address),
                &[&follow(master)],
                "a full sync: the master forks once",
                &follow(other),
            )
            .exact();
    }
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
