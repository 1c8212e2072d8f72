//! Some hash slots have no living owner: commands on their keys fail.
//!
//! With `cluster-require-full-coverage yes` (the default) the whole cluster refuses to serve as soon as an owner is
//! marked `fail` or a slot is assigned to no node. While an owner is only suspected (`fail?`), commands on its own
//! slots fail and the rest is served.
//!
//! Seen when: a slot has no owner in the merged view; or its owner is marked as failed or suspected by its peers, or
//! does not answer here while they have lost it too; or masters report cluster_state:fail.
//!
//! Not to be taken for: an owner that only this machine cannot reach (`node_unreachable` reports it), slots that a
//! replica took over during the check, or slots that every node assigns to another one (`views_disagree`).
//!
//! What to do: bring the owner back, or let its replica take over; assign the slots that no node owns.
//! Sources: CLUSTER NODES of every node that answers, CLUSTER INFO; clusterUpdateState() of the servers.

use super::peers::{self, Stake, Standing};
use super::prelude::*;
use super::refusal::{self, Refusal};
use super::takeover;
use unslow_topology::{ClusterNode, ClusterView, SlotSet};

pub const TITLE: &str = "Slots uncovered";
pub const LEADS_TO: &[&str] = &["error_flood", "redirect_storm"];
pub const INJECTED: Injected = Injected::Yes;

/// How the owner of some slots is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// Marked failed.
    Failed,
    /// Suspected, or lost by its peers too, and silent towards us.
    Lost,
    /// Suspected by peers, and answering us.
    Doubted,
    /// Silent towards us, and connected to its peers.
    Unseen,
}

/// An owner that is not well, and what it owns.
struct Ill<'a> {
    how: Owner,
    row: &'a ClusterNode,
    node: Option<&'a Node>,
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::NotHere;
    }
    let Some((asked, merged)) = peers::cluster(facts) else {
        let missing = facts.nodes.iter().find_map(|n| n.cluster.refused());
        return missing.map_or_else(
            || Verdict::unknown(Lack::Answer, "slots are listed in CLUSTER NODES, which no node returned", ""),
            |gap| Verdict::Unknown(gap.of("slots")),
        );
    };
    let ill: Vec<Ill> = merged.masters().filter_map(|row| owner(facts, &merged, row)).collect();
    let unassigned = unowned(facts, &merged);
    let saying_fail: Vec<&Node> = facts
        .nodes
        .iter()
        .filter(|n| n.cluster_info.value().and_then(|i| i.get("cluster_state")).is_some_and(|s| s == "fail"))
        .filter(|n| !is_without_slots(n))
        .collect();
    let seen: Vec<&Ill> = ill.iter().filter(|i| i.how != Owner::Unseen).collect();
    if unassigned.is_empty() && seen.is_empty() && saying_fail.is_empty() {
        let views = facts.nodes.iter().filter(|n| n.cluster.value().is_some()).count();
        return match ill.first() {
            Some(unseen) => Verdict::unknown(
                Lack::Answer,
                format!(
                    "slots {}: their owner {} {}, and its peers do not suspect it",
                    unseen.row.slots,
                    unseen.row.address,
                    match unseen.node.and_then(Refusal::of) {
                        Some(refusal) => format!("cannot be inspected from this machine ({})", refusal.said()),
                        None => "does not answer here".to_string(),
                    }
                ),
                "run again after the cluster's node timeout, or look from another machine",
            ),
            None => Verdict::Absent(format!(
                "slots: all 16384 have a healthy owner, in the view of {views} of {} nodes",
                facts.nodes.len()
            )),
        };
    }
    present(facts, asked, &merged, &unassigned, &seen, &saying_fail)
}

/// A master that owns no slots by its own word is asked for none: a new node, or one that came back without its
/// nodes.conf.
fn is_without_slots(node: &Node) -> bool {
    let myself = node.cluster.value().and_then(ClusterView::myself);
    node.is_master() && myself.is_some_and(|row| row.slots.is_empty())
}

/// Slots that no node owns. Those that each node gives to another one, which denies it, are what `views_disagree` is
/// about: no server takes them for uncovered.
fn unowned(facts: &Facts, merged: &ClusterView) -> SlotSet {
    let nobodys = merged.unassigned();
    if nobodys.is_empty() {
        return nobodys;
    }
    let seen: Vec<SlotSet> =
        facts.nodes.iter().filter_map(|n| n.cluster.value()).map(ClusterView::unassigned).collect();
    let slots = nobodys.ranges().iter().flat_map(|&(a, b)| a..=b);
    SlotSet::from_ranges(slots.filter(|slot| seen.iter().any(|s| s.contains(*slot))).map(|slot| (slot, slot)))
}

/// None of an owner that is well.
fn owner<'a>(facts: &'a Facts, merged: &ClusterView, row: &'a ClusterNode) -> Option<Ill<'a>> {
    let rows: Vec<&ClusterNode> =
        facts.nodes.iter().filter(|n| peers::answers(n)).filter_map(|n| n.cluster.value()?.by_id(&row.id)).collect();
    // A majority marks it, so that most know. One that has just come back may still hold a mark that the others have
    // lifted.
    let marks = rows.iter().filter(|r| r.is("fail")).count();
    let failed = marks > 0 && 2 * marks >= rows.len();
    let suspected = rows.iter().any(|r| r.is_down());
    let node = peers::node_of(facts, row);
    let ill = |how| Some(Ill { how, row, node });
    if node.is_some_and(|n| matches!(peers::stake(facts, Some(merged), n), Stake::Replaced { .. })) {
        return None;
    }
    let lost = node.is_some_and(|n| matches!(peers::standing(facts, n), Standing::Lost { .. }));
    match node.map(peers::answers) {
        _ if failed => ill(Owner::Failed),
        Some(true) if suspected => ill(Owner::Doubted),
        Some(false) if suspected || lost => ill(Owner::Lost),
        Some(false) => ill(Owner::Unseen),
        None if suspected => ill(Owner::Lost),
        Some(true) | None => None,
    }
}

fn present(
    facts: &Facts,
    asked: &Node,
    merged: &ClusterView,
    unassigned: &SlotSet,
    ill: &[&Ill],
    saying_fail: &[&Node],
) -> Verdict {
    let of = |how: Owner| {
        SlotSet::from_ranges(ill.iter().filter(|i| i.how == how).flat_map(|i| i.row.slots.ranges().iter().copied()))
    };
    let (failed, suspected, doubted) = (of(Owner::Failed), of(Owner::Lost), of(Owner::Doubted));
    let lost = unassigned.len() + failed.len() + suspected.len();
    let full = facts.live().any(|n| n.setting("cluster-require-full-coverage") == Some("yes"));
    // One node that has just come back says fail for itself alone: what counts is how many masters do.
    let masters = facts.live().filter(|n| n.is_master() && !is_without_slots(n)).count().max(1);
    let failing = saying_fail.iter().filter(|n| n.is_master()).count() as f64 / masters as f64;
    // A suspicion alone does not stop the rest: the servers count owners that are marked failed.
    let stopped = full && unassigned.len() + failed.len() > 0;
    let share = if stopped { 1.0 } else { (lost as f64 / 16384.0).max(failing.min(1.0)) };
    let owners =
        |how: Owner| names(&ill.iter().filter(|i| i.how == how).map(|i| i.row.address.clone()).collect::<Vec<_>>());
    let what = if !unassigned.is_empty() {
        format!("{} belong to no node ({unassigned})", slots(unassigned.len()))
    } else if !failed.is_empty() {
        format!("{} belong to {}, which is marked failed", slots(failed.len()), owners(Owner::Failed))
    } else if !suspected.is_empty() {
        format!("{} belong to {}, which its peers have lost too", slots(suspected.len()), owners(Owner::Lost))
    } else if !doubted.is_empty() {
        format!(
            "{} belong to {}, which its peers suspect although it answers here",
            slots(doubted.len()),
            owners(Owner::Doubted)
        )
    } else {
        format!("{} say that the cluster is down", takeover::names_of(saying_fail))
    };
    let follows = if share >= 1.0 {
        "the whole cluster refuses to serve"
    } else if share > 0.0 {
        "commands there fail"
    } else {
        "a failover is imminent"
    };
    let mut finding = Finding::new(format!("{what}: {follows}"))
        .on(ill.iter().map(|i| i.row.address.as_str()).chain(saying_fail.iter().map(|n| n.address.as_str())));
    finding = cost(finding, facts, merged, ill, share)
        .gain(
            "all slots served",
            format!("{lost} of 16384 slots{}", if full { ", full coverage required" } else { "" }),
        )
        .proven("the cluster's own view")
        .saw(
            asked,
            "CLUSTER NODES",
            format!(
                "not assigned: {}; owner failed: {}; owner suspected or lost: {}",
                list(unassigned),
                list(&failed),
                list(&suspected)
            ),
        );
    if let Some(node) = saying_fail.first() {
        let assigned =
            node.cluster_info.value().and_then(|i| i.get("cluster_slots_assigned").cloned()).unwrap_or_default();
        finding = finding.saw(node, "CLUSTER INFO", format!("cluster_state:fail, cluster_slots_assigned:{assigned}"));
    }
    remedies(finding, facts, merged, unassigned, ill, stopped).into()
}

fn cost(finding: Finding, facts: &Facts, merged: &ClusterView, ill: &[&Ill], share: f64) -> Finding {
    if share == 0.0 {
        return finding
            .risk("a failure detector has timed out: a replica may be elected while the owner is alive")
            .severity(Severity::Medium);
    }
    let now_ms = facts.live().map(Node::at_ms).max().unwrap_or(facts.at_ms);
    let dead = ill.iter().find(|i| matches!(i.how, Owner::Failed | Owner::Lost)).and_then(|i| i.node);
    let happens =
        dead.map_or(String::new(), |node| format!("; {}", takeover::outlook(facts, Some(merged), node).text(now_ms)));
    let unseen = peers::no_client_words(facts);
    let finding = finding
        .availability(86400.0 * share, format!("{} of the key space is not served{unseen}{happens}", percent(share)))
        .affects(peers::affected(facts));
    if dead.is_some() { finding.severity(Severity::Critical) } else { finding }
}

fn slots(n: usize) -> String {
    if n == 1 { "1 slot".into() } else { format!("{n} slots") }
}

fn list(slots: &SlotSet) -> String {
    if slots.is_empty() { "none".into() } else { slots.to_string() }
}

fn remedies(
    finding: Finding,
    facts: &Facts,
    merged: &ClusterView,
    unassigned: &SlotSet,
    ill: &[&Ill],
    stopped: bool,
) -> Finding {
    let mut finding = finding;
    let master = facts.live().filter(|n| peers::answers(n)).find(|n| n.is_master());
    if let (false, Some(master)) = (unassigned.is_empty(), master) {
        let add = if master.level() >= (7, 0) {
            let ranges: Vec<String> = unassigned.ranges().iter().map(|(a, b)| format!("{a} {b}")).collect();
            format!("CLUSTER ADDSLOTSRANGE {}   (on the master that should own them)", ranges.join(" "))
        } else {
            let ranges: Vec<String> = unassigned.ranges().iter().map(|(a, b)| format!("$(seq {a} {b})")).collect();
            format!("CLUSTER ADDSLOTS {}   (on the master that should own them)", ranges.join(" "))
        };
        finding = finding.fix(
            "Assign the slots that no node owns to a master",
            &[
                &cli(&master.address, &add),
                &format!("or all of them, evenly: {} --cluster fix {}", peers::tool(master), master.address),
            ],
            "if an old owner returns with data there, the newer epoch wins",
            "CLUSTER DELSLOTS with the same slots, on the same master",
        );
    }
    let dead: Vec<&Ill> = ill.iter().copied().filter(|i| matches!(i.how, Owner::Failed | Owner::Lost)).collect();
    if !dead.is_empty() {
        let owners: Vec<(&str, Option<&Node>)> = dead.iter().map(|i| (i.row.address.as_str(), i.node)).collect();
        finding = refusal::bring_back(
            finding,
            &owners,
            "a master that starts without its data comes back empty, and its replicas copy that: look for its dump.rdb \
             or AOF first",
        );
    }
    for node in dead.iter().filter_map(|i| i.node).take(2) {
        finding = takeover::force(finding, facts, Some(merged), node);
    }
    let strict: Vec<&Node> =
        facts.live().filter(|n| n.setting("cluster-require-full-coverage") == Some("yes")).collect();
    if stopped && !strict.is_empty() {
        let set = |to: &str| -> Vec<String> {
            strict.iter().map(|n| cli(&n.address, &format!("CONFIG SET cluster-require-full-coverage {to}"))).collect()
        };
        let (no, yes) = (set("no"), set("yes"));
        let no: Vec<&str> = no.iter().map(String::as_str).collect();
        finding = finding.fix(
            "Until then, serve what can be served",
            &no,
            "clients see partial data: keys of the lost slots fail, the others work",
            &yes.join("; "),
        );
    }
    if finding.remedies.is_empty()
        && let Some(node) = facts.live().next()
    {
        let links =
            cli(&node.address, "CLUSTER NODES") + "   (whose links are disconnected, and between which machines)";
        finding = finding.fix("Find what keeps the nodes from reaching each other", &[&links], "", "");
    }
    finding
}
