//! Nodes of one cluster name different owners for the same slots, and do not reach agreement.
//!
//! Every node has its own list of slot owners; gossip brings the lists together within the node timeout. It cannot do
//! so if no node claims a slot itself: one node was told that another owns it now (CLUSTER SETSLOT NODE in a reshard
//! that stopped halfway), but that other node was not. Clients are then sent from each to the other endlessly. Or a
//! node keeps an old owner and never hears of a newer epoch.
//!
//! Seen when: the lists differ at the start of the window and in the same way at its end, and either none of the nodes
//! that are named as a slot's owner claims it in its own list, or the window was longer than the node timeout.
//!
//! Not to be taken for: a reshard in progress (keys move, or CLUSTER SETSLOT was called in the window) or one that was
//! left open (`open_slots`); an epoch that is still spreading after a failover or a reshard; a node that is down, which
//! its peers replace first (`node_unreachable`, `slots_uncovered`).
//!
//! How to confirm: `CLUSTER NODES` of every node, twice, the node timeout apart; compare which node has the slot.
//!
//! What to do: set the same owner on every master, on the owner first; then check all of them with `--cluster check`.
//! Sources: CLUSTER NODES of every node at both ends of the window; the cluster specification, on epochs and UPDATE
//! messages.

use std::collections::{BTreeMap, BTreeSet};

use super::peers;
use super::prelude::*;
use unslow_topology::{ClusterNode, ClusterView, Disagreement, SLOTS, SlotSet};

pub const TITLE: &str = "Views disagree";
pub const LEADS_TO: &[&str] = &["redirect_storm"];
pub const INJECTED: Injected = Injected::Yes;

/// `cluster-node-timeout`, by default.
const TIMEOUT_MS: f64 = 15_000.0;

/// Commands of a reshard. Before 7.0 all of CLUSTER is one line.
const MOVES: &[&str] = &["migrate", "restore", "restore-asking", "cluster|setslot", "cluster|migrateslots"];

/// A slot whose owner the nodes did not agree on, neither at the start nor at the end.
struct Disputed {
    slot: u16,
    /// Ids of those who are named as its owner.
    named: BTreeSet<String>,
    /// Those of them who claim it themselves.
    claimed: usize,
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let nodes: Vec<&Node> = facts.live().filter(|n| n.cluster.value().is_some()).collect();
    let first: Vec<ClusterView> = nodes.iter().filter_map(|n| n.cluster.value().cloned()).collect();
    let before = ClusterView::disagreements(&first, usize::from(SLOTS));
    if before.is_empty() {
        return agreed(facts, nodes.len());
    }
    let differ = format!("the views of {} nodes differ on {} at the window's start", nodes.len(), slots(before.len()));
    let last: Vec<ClusterView> = nodes.iter().filter_map(|n| n.last_view().cloned()).collect();
    if last.len() < nodes.len() {
        return Verdict::unknown(
            Lack::Time,
            format!("{differ}, and not all of them were asked again at its end"),
            "run again",
        );
    }
    let lasting = lasting(&before, &last);
    if lasting.is_empty() {
        return Verdict::Absent(format!("{differ}, but had settled by its end, or are open slots"));
    }
    if let Some(away) = facts.nodes.iter().find(|n| !peers::answers(n)) {
        return Verdict::unknown(
            Lack::Answer,
            format!("{differ} while {} is down: they may settle when it is back or replaced", away.address),
            "run again when every node answers",
        );
    }
    let moves: f64 = facts.live().map(|n| spent(n, MOVES).calls as f64).sum();
    if moves > 0.0 {
        return Verdict::Absent(format!("{differ}, and slots are being moved ({} calls)", count(moves)));
    }
    judge(facts, &nodes, &last, &lasting, &differ)
}

/// Every node that was seen says the same.
fn agreed(facts: &Facts, seen: usize) -> Verdict {
    match facts.live().find(|n| n.cluster.value().is_none()) {
        Some(node) => match node.cluster.refused() {
            Some(gap) => Verdict::Unknown(gap.of("views")),
            None => Verdict::unknown(Lack::Answer, format!("views: {} did not return its own", node.address), ""),
        },
        None if seen < 2 => Verdict::NotHere,
        None => Verdict::Absent(format!("views: {seen} nodes agree on the owner of every slot")),
    }
}

/// Those that are the same at the end, without slots that stand open: they are another finding.
fn lasting(before: &[Disagreement], last: &[ClusterView]) -> Vec<Disputed> {
    let open: BTreeSet<u16> = last
        .iter()
        .filter_map(ClusterView::myself)
        .flat_map(|me| me.migrating.iter().chain(&me.importing))
        .map(|(slot, _)| *slot)
        .collect();
    let own: BTreeMap<&str, &ClusterNode> =
        last.iter().filter_map(ClusterView::myself).map(|me| (me.id.as_str(), me)).collect();
    let now: BTreeMap<u16, Disagreement> =
        ClusterView::disagreements(last, usize::from(SLOTS)).into_iter().map(|d| (d.slot, d)).collect();
    let stays = |d: &&Disagreement| now.get(&d.slot) == Some(*d) && !open.contains(&d.slot);
    before
        .iter()
        .filter(stays)
        .map(|d| {
            let named: BTreeSet<String> = d.owners.keys().filter(|id| !id.is_empty()).cloned().collect();
            // One that was not seen may claim it.
            let claims = |id: &&String| own.get(id.as_str()).is_none_or(|me| me.slots.contains(d.slot));
            let claimed = named.iter().filter(claims).count();
            Disputed { slot: d.slot, named, claimed }
        })
        .collect()
}

fn judge(facts: &Facts, nodes: &[&Node], last: &[ClusterView], lasting: &[Disputed], differ: &str) -> Verdict {
    // Where a node has no owner for it, it takes the first claim that it hears: that one spreads.
    let nobodys: Vec<&Disputed> = lasting.iter().filter(|d| d.claimed == 0 && d.named.len() > 1).collect();
    if !nobodys.is_empty() {
        return unserved(facts, nodes, last, &nobodys).into();
    }
    let timeout = |n: &&Node| n.setting_number("cluster-node-timeout");
    let timeout_ms = nodes.iter().filter_map(timeout).reduce(f64::max).unwrap_or(TIMEOUT_MS);
    let watched_ms = nodes.iter().map(|n| n.window_s * 1000.0).fold(f64::MAX, f64::min);
    if watched_ms < timeout_ms {
        return Verdict::unknown(
            Lack::Time,
            format!("{differ} and at its end; gossip may take the node timeout, {:.0} s", timeout_ms / 1000.0),
            format!("run again with --window {:.0}s", (timeout_ms / 1000.0).ceil() + 1.0),
        );
    }
    // Where nobody claims a slot that only some give to anyone, nobody owns it: `slots_uncovered` says so.
    let all: Vec<&Disputed> = lasting.iter().filter(|d| d.claimed > 0).collect();
    if all.is_empty() {
        return Verdict::Absent(format!("{differ}, on slots that no node owns"));
    }
    stale(facts, nodes, last, &all, watched_ms).into()
}

fn slots(n: usize) -> String {
    if n == 1 { "1 slot".into() } else { format!("{n} slots") }
}

/// The slots as ranges, the first of them.
fn set_of(disputed: &[&Disputed]) -> String {
    let set = SlotSet::from_ranges(disputed.iter().map(|d| (d.slot, d.slot)));
    let ranges = set.ranges().len();
    if ranges <= 4 {
        return set.to_string();
    }
    let first = SlotSet::from_ranges(set.ranges().iter().take(3).copied());
    format!("{first} and {} more ranges", ranges - 3)
}

/// The nodes that are named as owners of these slots, by their addresses.
fn owners(facts: &Facts, disputed: &[&Disputed]) -> Vec<String> {
    let ids: BTreeSet<&String> = disputed.iter().flat_map(|d| &d.named).collect();
    let known = |id: &&String| facts.nodes.iter().find(|n| n.node_id.as_ref() == Some(*id)).map(|n| n.address.clone());
    ids.iter().map(|id| known(id).unwrap_or_else(|| id.get(..8).unwrap_or(id).to_string())).collect()
}

/// Nobody claims them: clients are sent around.
fn unserved(facts: &Facts, nodes: &[&Node], last: &[ClusterView], disputed: &[&Disputed]) -> Finding {
    let (named, set) = (owners(facts, disputed), set_of(disputed));
    let share = disputed.len() as f64 / f64::from(SLOTS);
    let each = if disputed.len() == 1 { "is" } else { "are" };
    let finding = Finding::new(format!(
        "{} ({set}) {each} owned by no node: {} each send clients to another node, and none claims what it is given",
        slots(disputed.len()),
        names(&named)
    ))
    .on(named.iter().map(String::as_str))
    .availability(
        86400.0 * share,
        format!(
            "requests to {} of the key space are redirected until the client gives up{}",
            percent(share),
            peers::no_client_words(facts)
        ),
    )
    .affects(peers::affected(facts))
    .gain("these slots are served again", format!("{} of {SLOTS} slots x 86,400 s", disputed.len()))
    .proven("every node that is named as an owner denies it in its own list, at both ends of the window")
    .not("a reshard in progress: no key moved, and no slot is open");
    remedy(told(finding, nodes, last, disputed), facts, nodes, last, disputed)
}

/// Someone has an old list, or two claim the same.
fn stale(facts: &Facts, nodes: &[&Node], last: &[ClusterView], disputed: &[&Disputed], watched_ms: f64) -> Finding {
    let (named, set) = (owners(facts, disputed), set_of(disputed));
    let twice = disputed.iter().filter(|d| d.claimed > 1).count();
    let title = format!("The nodes do not agree on who owns {} ({set}): {}", slots(disputed.len()), names(&named));
    let finding = Finding::new(title).on(named.iter().map(String::as_str));
    let finding =
        if twice > 0 {
            let text = format!(
                "{} are claimed by two masters: the writes that one of them accepts are lost when they agree",
                slots(twice)
            );
            finding.risk(text).severity(Severity::High)
        } else {
            finding
            .risk("clients that ask a node with an old list are sent to the wrong node; a failover counts its votes by \
                   these lists")
            .severity(Severity::Medium)
        };
    let finding = finding
        .gain("one list that all nodes share", format!("{} of {SLOTS} slots", disputed.len()))
        .proven(format!(
            "the views were the same at both ends of {:.0} s, which is longer than the node timeout",
            watched_ms / 1000.0
        ))
        .not("an epoch that is spreading: it would have reached every node by now");
    remedy(told(finding, nodes, last, disputed), facts, nodes, last, disputed)
}

/// Who says what of the first disputed slot.
fn told(finding: Finding, nodes: &[&Node], last: &[ClusterView], disputed: &[&Disputed]) -> Finding {
    let Some(slot) = disputed.first().map(|d| d.slot) else { return finding };
    let (mut finding, mut said) = (finding, BTreeSet::new());
    for (node, view) in nodes.iter().zip(last) {
        let owner = view.nodes.iter().find(|n| n.slots.contains(slot));
        let words = owner.map_or("no owner".into(), |o| format!("{}, epoch {}", o.address, o.config_epoch));
        // Each opinion once, and that of the owners themselves.
        let is_named = disputed.iter().any(|d| view.myself().is_some_and(|me| d.named.contains(&me.id)));
        if said.len() < 4 && (said.insert(words.clone()) || is_named) {
            finding = finding.saw(node, "CLUSTER NODES", format!("slot {slot}: {words}"));
        }
    }
    finding
}

/// The owner that most nodes name is told to every master, itself first.
fn remedy(finding: Finding, facts: &Facts, nodes: &[&Node], last: &[ClusterView], disputed: &[&Disputed]) -> Finding {
    let Some(first) = disputed.first() else { return finding };
    let owner = |view: &ClusterView| view.nodes.iter().find(|n| n.slots.contains(first.slot)).map(|n| n.id.clone());
    let mut votes: BTreeMap<String, usize> = BTreeMap::new();
    for id in last.iter().filter_map(owner) {
        *votes.entry(id).or_default() += 1;
    }
    let Some((wanted, _)) = votes.into_iter().max_by_key(|(_, votes)| *votes) else { return finding };
    let is_owner = |n: &&Node| n.node_id.as_deref() == Some(wanted.as_str());
    let (own, others): (Vec<&Node>, Vec<&Node>) = facts.live().filter(|n| n.is_master()).partition(is_owner);
    let set = |n: &&Node| cli(&n.address, &format!("CLUSTER SETSLOT {} NODE {wanted}", first.slot));
    let mut lines: Vec<String> = own.iter().chain(&others).map(set).collect();
    let asked = nodes.first().copied();
    if let Some(node) = own.first().copied().or(asked) {
        lines.push(format!("{} --cluster check {}   (then the next of the slots)", peers::tool(node), node.address));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let text = format!("Set one owner for slot {} on every master, on the owner first", first.slot);
    finding.fix(
        &text,
        &lines,
        "first see which node holds its keys (CLUSTER COUNTKEYSINSLOT on each of them): a master refuses to give away \
         a slot with keys",
        "the same commands with the other owner's id",
    )
}
