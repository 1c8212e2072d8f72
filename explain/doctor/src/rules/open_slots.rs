//! Slots stand half migrated, and nobody is moving them.
//!
//! An aborted reshard leaves slots marked migrating on one node and importing on another: commands on missing keys get
//! ASK, multi-key commands TRYAGAIN, and the next reshard refuses to start.
//!
//! Seen when: a node shows an open slot and no key was moved in the window.
//!
//! Not to be taken for: a migration at work, which shows MIGRATE or RESTORE calls.
//!
//! What to do: finish it or close it.
//! Sources: CLUSTER NODES of each node ([slot->-id], [slot-<-id]); redis #6212, #9421.

use super::prelude::*;

pub const TITLE: &str = "Open slots";
pub const LEADS_TO: &[&str] = &["redirect_storm", "error_flood"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::Absent(None);
    }
    let rows: Vec<_> = facts
        .nodes
        .iter()
        .filter_map(|node| {
            let me = node.cluster.value()?.myself()?;
            (!me.migrating.is_empty() || !me.importing.is_empty()).then_some((node, me))
        })
        .collect();
    let Some((node, me)) = rows.first() else {
        return match facts.nodes.iter().find_map(|n| n.cluster.missing()) {
            Some((why, grant)) => Verdict::Unknown { why: format!("open slots: {why}"), grant: grant.unwrap_or("").into() },
            None => Verdict::Absent(Some("slots: none open".into())),
        };
    };
    let moving: f64 = facts.live().map(|n| spent(n, &["migrate", "restore", "restore-asking"]).calls as f64).sum();
    if moving > 0.0 {
        return Verdict::Absent(Some(format!("slots: {} open, and keys are moving: a reshard at work", rows.len())));
    }
    let mut slots: Vec<u16> = rows.iter().flat_map(|(_, me)| me.migrating.iter().chain(&me.importing).map(|(s, _)| *s)).collect();
    slots.sort_unstable();
    slots.dedup();
    let list = names(&slots.iter().map(ToString::to_string).collect::<Vec<_>>());
    let asks: u64 = facts.live().filter_map(|n| n.errors().get("ASK").copied()).sum();
    let closing: Vec<String> = rows.iter().flat_map(|(n, _)| { let (h, p) = n.address.rsplit_once(':').unwrap_or((&n.address, "")); slots.iter().take(2).map(move |s| format!("redis-cli -h {h} -p {p} CLUSTER SETSLOT {s} STABLE")) }).collect();
    let mut closing: Vec<&str> = closing.iter().map(String::as_str).collect();
    closing.push("or finish it: redis-cli --cluster fix ANY:PORT");
    let open = |me: &unslow_topology::ClusterNode| me.migrating.iter().map(|(s, to)| format!("[{s}->-{}]", to.get(..8).unwrap_or(to))).chain(me.importing.iter().map(|(s, from)| format!("[{s}-<-{}]", from.get(..8).unwrap_or(from)))).collect::<Vec<_>>().join(" ");
    let mut finding = Finding::new(format!("Slot{} {list} stand{} open on {} and nothing is moving", if slots.len() == 1 { "" } else { "s" }, if slots.len() == 1 { "s" } else { "" }, node.address))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .risk(format!("ASK for keys that are missing there, TRYAGAIN for several keys at once, no further reshard; {asks} ASK in the window"))
        .gain("redirects end", format!("{} open slots", slots.len()))
        .proven("the node's own view, and no MIGRATE or RESTORE in the window")
        .saw(node, "CLUSTER NODES", open(me));
    for (other, me) in rows.iter().skip(1).take(2) {
        finding = finding.saw(other, "CLUSTER NODES", open(me));
    }
    finding.not("a reshard at work: no key moved").fix("Close it where no key was moved yet, else finish it", &closing, "closing a slot whose keys are on both sides hides some of them: let --cluster fix decide", "CLUSTER SETSLOT s MIGRATING/IMPORTING id").into()
}
