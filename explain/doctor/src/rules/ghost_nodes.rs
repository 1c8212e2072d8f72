//! Nodes that no longer exist are still listed in CLUSTER NODES.
//!
//! CLUSTER FORGET removes a node only from the server that is asked, and only for a minute: nodes that were not asked
//! tell the others about it again. A server that came back with a new id leaves its old one behind as `noaddr`. Such
//! lines make every topology reply longer, make nodes and clients dial addresses that no longer exist, and hide the
//! next failure among old ones.
//!
//! Seen when: a node lists another one without slots that has no address; that is marked `fail` and was last heard from
//! a day ago, or an hour ago if other nodes have already forgotten it; or that has been in handshake for over a minute.
//!
//! Not to be taken for: a replica that has just died: it should be brought back and not forgotten (`node_unreachable`
//! says so). A node that is being added: its handshake takes seconds. The cost of long replies is reported by
//! `topology_storm`.
//!
//! How to confirm: `CLUSTER NODES` of every node: flags in the third column, last pong in the sixth, no slots from the
//! ninth on.
//!
//! What to do: CLUSTER FORGET for each of them on all nodes within a minute.
//! Sources: CLUSTER NODES of every node; the Redis command reference, CLUSTER FORGET.

use std::collections::BTreeMap;

use super::peers;
use super::prelude::*;
use unslow_topology::{ClusterNode, ClusterView};

pub const TITLE: &str = "Ghost nodes";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const MINUTE_MS: u64 = 60_000;
/// So many are named one by one.
const NAMED: usize = 5;

/// How a node is known that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ghost {
    NoAddress,
    Failed,
    Handshake,
}

impl Ghost {
    /// None of a node that is there, or may come back.
    fn of(row: &ClusterNode, now_ms: u64, is_forgotten: bool) -> Option<Ghost> {
        let long = |since_ms: u64, ms: u64| since_ms > 0 && now_ms.saturating_sub(since_ms) > ms;
        if row.is("myself") || !row.slots.is_empty() {
            return None;
        }
        if row.is("handshake") {
            return long(row.ping_sent_ms, MINUTE_MS).then_some(Ghost::Handshake);
        }
        // One that is connected is there: port 0 is that of a server with TLS alone.
        if !row.has_address() && (row.is("noaddr") || !row.connected) {
            return Some(Ghost::NoAddress);
        }
        let silence = if is_forgotten { HOUR_MS } else { DAY_MS };
        (row.is("fail") && long(row.pong_received_ms, silence)).then_some(Ghost::Failed)
    }

    fn words(self) -> &'static str {
        match self {
            Ghost::NoAddress => "without an address",
            Ghost::Failed => "marked failed long ago",
            Ghost::Handshake => "in a handshake that does not end",
        }
    }
}

/// Ghosts in the view of one node.
struct Haunted<'a> {
    node: &'a Node,
    lines: usize,
    ghosts: Vec<(&'a ClusterNode, Ghost)>,
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let views: Vec<(&Node, &ClusterView)> = facts.live().filter_map(|n| Some((n, n.cluster.value()?))).collect();
    let all: Vec<Haunted> = views.iter().map(|(node, view)| haunted(facts, &views, node, view)).collect();
    let all = by_worst(all, |h| h.ghosts.len() as f64);
    if let Some(worst) = all.first().filter(|h| !h.ghosts.is_empty()) {
        return found(facts, &all, worst).into();
    }
    // Each node has its own list: one that was not seen may have some.
    match facts.live().find(|n| n.cluster.value().is_none()) {
        Some(node) => match node.cluster.refused() {
            Some(gap) => Verdict::Unknown(gap.of("nodes that no longer exist")),
            None => Verdict::unknown(
                Lack::Answer,
                format!("nodes that no longer exist: {} did not list them", node.address),
                "",
            ),
        },
        None if views.is_empty() => {
            Verdict::unknown(Lack::Answer, "nodes that no longer exist: no node listed them", "")
        }
        None => Verdict::Absent(format!("nodes that no longer exist: none in the lists of {} nodes", views.len())),
    }
}

fn haunted<'a>(
    facts: &Facts,
    views: &[(&'a Node, &'a ClusterView)],
    node: &'a Node,
    view: &'a ClusterView,
) -> Haunted<'a> {
    // The node's own clock, as far as its view shows it.
    let now_ms = view.nodes.iter().map(|r| r.pong_received_ms.max(r.ping_sent_ms)).max().unwrap_or(0);
    let forgotten = |row: &ClusterNode| views.iter().any(|(_, other)| other.by_id(&row.id).is_none());
    let answers = |row: &ClusterNode| peers::node_of(facts, row).is_some_and(peers::answers);
    let ghost = |row: &'a ClusterNode| {
        // Whoever answers us is no ghost, whatever others say of it.
        let ghost = Ghost::of(row, now_ms, forgotten(row))?;
        (ghost == Ghost::NoAddress || !answers(row)).then_some((row, ghost))
    };
    Haunted { node, lines: view.nodes.len(), ghosts: view.nodes.iter().filter_map(ghost).collect() }
}

fn found(facts: &Facts, all: &[Haunted], worst: &Haunted) -> Finding {
    let mut known: BTreeMap<&str, Ghost> = BTreeMap::new();
    for (row, ghost) in all.iter().flat_map(|h| &h.ghosts) {
        known.entry(row.id.as_str()).or_insert(*ghost);
    }
    let by: Vec<String> = all.iter().filter(|h| !h.ghosts.is_empty()).map(|h| h.node.address.clone()).collect();
    let how = worst.ghosts.first().map_or("", |(_, ghost)| ghost.words());
    let nodes = if known.len() == 1 { "node that no longer exists" } else { "nodes that no longer exist" };
    let list = if by.len() == 1 { "lists" } else { "list" };
    let title = format!("{} {list} {} {nodes}, {how}", names(&by), count(known.len() as f64));
    let mut finding = Finding::new(title)
        .on(by.iter().map(String::as_str))
        .risk(format!(
            "{} of {} lines of CLUSTER NODES on {} are about such nodes: every topology reply is longer, and nodes and \
             clients may dial them",
            worst.ghosts.len(),
            worst.lines,
            worst.node.address
        ))
        .gain("shorter topology replies", format!("{} of {} lines fewer", worst.ghosts.len(), worst.lines))
        .proven("read from the nodes' own lists in this window");
    for haunted in all.iter().filter(|h| !h.ghosts.is_empty()).take(3) {
        finding = finding.saw(haunted.node, "CLUSTER NODES", sample(haunted));
    }
    if by.len() < all.len() {
        finding = finding.not(format!(
            "a view that all share: {} of {} nodes do not list them",
            all.len() - by.len(),
            all.len()
        ));
    }
    forget(finding, facts, worst, &known)
}

/// How many of each kind, and one line of them.
fn sample(haunted: &Haunted) -> String {
    let of = |ghost: Ghost| haunted.ghosts.iter().filter(|(_, g)| *g == ghost).count();
    let kinds: Vec<String> = [Ghost::NoAddress, Ghost::Failed, Ghost::Handshake]
        .into_iter()
        .filter(|ghost| of(*ghost) > 0)
        .map(|ghost| format!("{} {}", of(ghost), ghost.words()))
        .collect();
    let line = haunted.ghosts.first().map_or(String::new(), |(row, _)| {
        format!(": {} {} {}", row.id.get(..8).unwrap_or(&row.id), row.address, row.flags.join(","))
    });
    kinds.join(", ") + &line
}

fn forget(finding: Finding, facts: &Facts, worst: &Haunted, known: &BTreeMap<&str, Ghost>) -> Finding {
    let (tool, address) = (peers::tool(worst.node), &worst.node.address);
    let lines: Vec<String> = if known.len() <= NAMED {
        known.keys().map(|id| format!("{tool} --cluster call {address} CLUSTER FORGET {id}")).collect()
    } else {
        let listed = cli(address, "CLUSTER NODES");
        // No more kinds than were found: one that has just failed may come back.
        let has = |ghost: Ghost| known.values().any(|g| *g == ghost);
        let kinds = [(Ghost::Handshake, "|handshake"), (Ghost::Failed, "|fail")];
        let more: String = kinds.into_iter().filter(|(ghost, _)| has(*ghost)).map(|(_, flag)| flag).collect();
        let which = format!("awk '$3 ~ /(^|,)(noaddr{more})(,|$)/ && $9 == \"\" {{print $1}}'");
        vec![
            format!("{listed} | {which}   (read the list first)"),
            format!("for id in $({listed} | {which}); do {tool} --cluster call {address} CLUSTER FORGET $id; done"),
        ]
    };
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let may_return = known.values().any(|ghost| *ghost == Ghost::Failed);
    let (risk, rollback) = if may_return {
        (
            "a node that is only switched off is forgotten too, and has to be introduced again",
            "CLUSTER MEET IP PORT of that node, on any other",
        )
    } else {
        ("", "")
    };
    let all = facts.live().count();
    finding.fix(
        &format!(
            "Forget them on all {all} nodes within a minute: a node that is left out tells the others about them again"
        ),
        &lines,
        risk,
        rollback,
    )
}
