//! The masters' slots are split into very many ranges, so every description of the cluster is long.
//!
//! For each range of slots, CLUSTER SLOTS has an entry with all nodes of the shard and CLUSTER NODES has a word, and
//! clients build their map from them at each refresh. Three masters need three ranges. Reshards that take a few slots
//! here and there, or a placement by `slot % masters`, create hundreds or thousands of them.
//!
//! Seen when: the slots are in 500 ranges or more, and in at least 10 times as many as there are masters. It has a cost
//! if the topology commands take over 0.5 % of a core in the window; otherwise it is a risk.
//!
//! Not to be taken for: clients that ask too often: over 2 % of a core, `topology_storm` reports the cost, and this is
//! reported as a risk next to it.
//! Many nodes: each needs its line however the slots are arranged.
//!
//! How to confirm: `CLUSTER NODES` and count the words from the ninth on; `CLUSTER SLOTS` and count its entries.
//!
//! What to do: have clients ask rarely; then give each master one contiguous range of slots, two masters at a time.
//! Sources: CLUSTER NODES of every node, merged; commandstats.

use super::peers;
use super::prelude::*;
use super::topology_storm;
use unslow_topology::{ClusterNode, ClusterView};

pub const TITLE: &str = "Slot map fragmented";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Ranges over the whole cluster, and for each master.
const MANY: usize = 500;
const MANY_FOR_EACH: usize = 10;
/// Share of a core in topology commands from which on their length has a price.
const COSTS: f64 = 0.005;
/// Bytes of a node in an entry of CLUSTER SLOTS: address, port, id, empty metadata, their frames.
const ENTRY_NODE_BYTES: usize = 80;
const ENTRY_BYTES: usize = 16;

/// Commands whose replies grow with the ranges. Before 7.0 all sub-commands are lumped together.
const COMMANDS: &[&str] = &["=cluster", "cluster|nodes", "cluster|slots", "cluster|shards"];

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let Some((asked, view)) = peers::cluster(facts) else {
        let gap = facts.nodes.iter().find_map(|n| n.cluster.refused());
        return match gap {
            Some(gap) => Verdict::Unknown(gap.of("ranges of slots")),
            None => Verdict::unknown(
                Lack::Answer,
                "ranges of slots are listed in CLUSTER NODES, which no node returned",
                "",
            ),
        };
    };
    let masters: Vec<&ClusterNode> = by_worst(view.masters().collect(), |m| m.slots.ranges().len() as f64);
    let ranges: usize = masters.iter().map(|m| m.slots.ranges().len()).sum();
    if masters.is_empty() {
        return Verdict::NotHere;
    }
    if ranges < MANY || ranges < MANY_FOR_EACH * masters.len() {
        return Verdict::Absent(format!("ranges of slots: {ranges} for {} masters", masters.len()));
    }
    found(facts, asked, &view, &masters, ranges).into()
}

fn found(facts: &Facts, asked: &Node, view: &ClusterView, masters: &[&ClusterNode], ranges: usize) -> Finding {
    let bytes_of_slots: usize = masters.iter().map(|m| entry_bytes(view, m) * m.slots.ranges().len()).sum();
    let finding = Finding::new(format!(
        "The slots of {} masters are split into {} ranges: CLUSTER SLOTS answers with about {}",
        masters.len(),
        count(ranges as f64),
        bytes(bytes_of_slots as f64)
    ));
    let worst = by_worst(facts.live().map(|n| (n, held(n, COMMANDS))).collect(), |(_, h)| h.share()).into_iter().next();
    // What the entries beyond one for each master make of the replies.
    let extra = 1.0 - masters.len() as f64 / ranges as f64;
    let finding = match worst {
        Some((node, asks)) if asks.share() >= COSTS && !topology_storm::speaks(facts, node) => {
            let share = asks.share() * extra;
            finding
                .on([node.address.as_str()])
                .core(
                    share,
                    format!(
                        "about {} of a core on {} due to the length of these replies",
                        percent(share),
                        node.address
                    ),
                )
                .gain(
                    format!("topology refreshes take about {} of a core", percent(asks.share() - share)),
                    format!(
                        "{:.4} of a core x (1 - {} masters / {ranges} ranges) = {share:.4}",
                        asks.share(),
                        masters.len()
                    ),
                )
                .likely(
                    "ranges and the cost of topology commands were measured; that the cost grows with the ranges is \
                     assumed",
                )
                .saw(node, "INFO commandstats", format!("CLUSTER: {} calls, {}", count(asks.calls), asks.figures()))
        }
        _ => finding
            .risk(
                "every refresh of a client's map is that long, and so is every answer after a failover, when all \
                 clients ask at once",
            )
            .proven("counted in the nodes' own views"),
    };
    let most: Vec<String> =
        masters.iter().take(3).map(|m| format!("{} in {}", m.address, m.slots.ranges().len())).collect();
    let finding = finding.on(masters.iter().map(|m| m.address.as_str())).saw(
        asked,
        "CLUSTER NODES",
        format!("{ranges} ranges of slots: {}", most.join(", ")),
    );
    remedies(finding, facts, asked, masters)
}

/// Of an entry of CLUSTER SLOTS for a range of this master.
fn entry_bytes(view: &ClusterView, master: &ClusterNode) -> usize {
    ENTRY_BYTES + ENTRY_NODE_BYTES * (1 + view.replicas_of(&master.id).count())
}

fn remedies(finding: Finding, facts: &Facts, asked: &Node, masters: &[&ClusterNode]) -> Finding {
    let finding = finding.fix(
        "Have clients ask for the topology rarely: redirects tell them what changes in between",
        &[
            "Lettuce: dynamicRefreshSources(false), a period of minutes",
            "go-redis: ClusterStateReloadInterval of 60 s or more",
        ],
        "a moved slot costs one more redirect",
        "restore the client's old refresh settings",
    );
    let [first, second, ..] = masters else { return finding };
    // One slot stays: since 7.0 a master that gives its last slot away becomes a replica of the one that gets it.
    let moved = second.slots.len().saturating_sub(1);
    if moved == 0 {
        return finding;
    }
    let line = |from: &ClusterNode, to: &ClusterNode| {
        format!(
            "{} --cluster reshard {} --cluster-from {} --cluster-to {} --cluster-slots {} --cluster-yes",
            peers::tool(asked),
            asked.address,
            from.id,
            to.id,
            moved
        )
    };
    let holds = |row: &ClusterNode| {
        let used = peers::node_of(facts, row).and_then(|n| n.number("used_memory"));
        used.map_or(String::new(), |used| format!(" ({} now)", bytes(used)))
    };
    let risk = format!(
        "{} holds the keys of both for that time: its own{} and those of {}{}; keys move while clients use them",
        first.address,
        holds(first),
        second.address,
        holds(second)
    );
    finding.fix(
        &format!(
            "At a quiet time, give {} one contiguous range of slots again: move all but one of its slots to {}, then \
             as many back, which are neighbours",
            second.address, first.address
        ),
        &[&line(second, first), &line(first, second)],
        &risk,
        "",
    )
}
