//! Slots are half migrated, and no key is moving.
//!
//! An aborted reshard leaves slots marked migrating on one node and importing on another: commands on missing keys get
//! ASK, multi-key commands TRYAGAIN, and the next reshard refuses to start.
//!
//! Seen when: a node shows an open slot and no key was moved in the window.
//!
//! Not to be taken for: a migration in progress, which shows MIGRATE or RESTORE calls.
//!
//! What to do: finish the migration or close the slots.
//! Sources: CLUSTER NODES of each node ([slot->-id], [slot-<-id]); redis #6212, #9421.

use super::peers;
use super::prelude::*;
use crate::Link;
use unslow_topology::ClusterNode;

pub const TITLE: &str = "Open slots";
pub const LEADS_TO: &[&str] = &["redirect_storm"];
pub const INJECTED: Injected = Injected::Yes;

/// A node with open slots.
type Row<'a> = (&'a Node, &'a ClusterNode);

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let rows: Vec<Row> = facts
        .nodes
        .iter()
        .filter_map(|node| {
            let me = node.cluster.value()?.myself()?;
            (!me.migrating.is_empty() || !me.importing.is_empty()).then_some((node, me))
        })
        .collect();
    let Some((node, me)) = rows.first() else { return none(facts) };
    let mut slots: Vec<u16> =
        rows.iter().flat_map(|(_, me)| me.migrating.iter().chain(&me.importing).map(|(s, _)| *s)).collect();
    slots.sort_unstable();
    slots.dedup();
    let moving: f64 = facts.live().map(|n| spent(n, &["migrate", "restore", "restore-asking"]).calls as f64).sum();
    if moving > 0.0 {
        return Verdict::Absent(format!(
            "open slots: {}, and keys are moving ({} calls of MIGRATE and RESTORE): a reshard in progress",
            slots.len(),
            count(moving)
        ));
    }
    let (s, verb) = if slots.len() == 1 { ("", "is") } else { ("s", "are") };
    let list = names(&slots.iter().map(ToString::to_string).collect::<Vec<_>>());
    let asks: u64 = facts.live().filter_map(|n| n.errors().get("ASK").copied()).sum();
    let mut finding = Finding::new(format!("Slot{s} {list} {verb} open on {} and no key is moving", node.address))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .risk(format!(
            "ASK for keys that are missing there, TRYAGAIN for multi-key commands, no further reshard; {asks} ASK in \
             the window"
        ))
        .gain("no more redirects", format!("{} open slots", slots.len()))
        .saw(node, "CLUSTER NODES", open(me));
    finding = if facts.live().next().is_some() {
        finding
            .proven("the node's own view, and no MIGRATE or RESTORE in the window")
            .not("a reshard in progress: no key moved")
    } else {
        finding.likely("the node's own view; whether keys are moving could not be seen")
    };
    for (other, me) in rows.iter().skip(1).take(2) {
        finding = finding.saw(other, "CLUSTER NODES", open(me));
    }
    // Of the errors that are counted as lost requests these alone come from open slots.
    for (node, _) in &rows {
        if let Some(refused) = node.errors().get("TRYAGAIN") {
            finding.chain.push(Link {
                id: "error_flood".into(),
                subject: node.address.clone(),
                at_ms: node.at_ms(),
                text: format!("{} commands to {} were refused with TRYAGAIN", count(*refused as f64), node.address),
            });
        }
    }
    remedy(finding, &rows).into()
}

fn none(facts: &Facts) -> Verdict {
    // Each node shows its own open slots only: one that was not seen may have some.
    let read = facts.nodes.iter().filter(|n| n.cluster.value().is_some()).count();
    if read == facts.nodes.len() {
        return Verdict::Absent(format!("open slots: none on {read} nodes"));
    }
    match facts.nodes.iter().find(|n| n.cluster.value().is_none()) {
        Some(node) => match node.cluster.refused() {
            Some(gap) => Verdict::Unknown(gap.of("open slots")),
            None => Verdict::unknown(
                Lack::Answer,
                format!("open slots: {} did not answer, and each node shows only its own", node.address),
                "",
            ),
        },
        None => Verdict::NotHere,
    }
}

fn open(me: &ClusterNode) -> String {
    let short = |id: &String| id.get(..8).unwrap_or(id).to_string();
    let out = me.migrating.iter().map(|(s, to)| format!("[{s}->-{}]", short(to)));
    out.chain(me.importing.iter().map(|(s, from)| format!("[{s}-<-{}]", short(from)))).collect::<Vec<_>>().join(" ")
}

fn remedy(finding: Finding, rows: &[Row]) -> Finding {
    let own = |me: &ClusterNode| {
        let mut slots: Vec<u16> = me.migrating.iter().chain(&me.importing).map(|(s, _)| *s).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    };
    let stable: Vec<String> = rows
        .iter()
        .flat_map(|(n, me)| {
            own(me).into_iter().take(5).map(|s| cli(&n.address, &format!("CLUSTER SETSLOT {s} STABLE")))
        })
        .collect();
    let undo: Vec<String> = rows
        .iter()
        .flat_map(|(n, me)| {
            let out = me.migrating.iter().map(|(s, to)| format!("CLUSTER SETSLOT {s} MIGRATING {to}"));
            let back = out.chain(me.importing.iter().map(|(s, from)| format!("CLUSTER SETSLOT {s} IMPORTING {from}")));
            back.take(5).map(|c| cli(&n.address, &c)).collect::<Vec<_>>()
        })
        .collect();
    let Some((first, _)) = rows.first() else { return finding };
    let stable: Vec<&str> = stable.iter().map(String::as_str).collect();
    finding
        .fix(
            "Finish the migration: move the rest of their keys",
            &[&format!("{} --cluster fix {}", peers::tool(first), first.address)],
            "keys move while clients use them",
            "",
        )
        .fix(
            "Or close the slots, if no key has been moved yet",
            &stable,
            "closing a slot whose keys are on both sides hides some of them",
            &undo.join("; "),
        )
}
