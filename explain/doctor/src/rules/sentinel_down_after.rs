//! Sentinel may replace a master it has just promoted, although nothing is wrong with it, and what was written there is
//! lost.
//!
//! A Sentinel connects to an instance at most once a second. If it has just tried the dead master when it hears of the
//! new one, it waits out that second, and with `down-after-milliseconds` no longer than that, it considers the new
//! master dead before it has asked. What the others said about the old master counts for five seconds, so all agree: a
//! second failover follows, to another replica. The first new master stays a master for ten seconds, and clients that
//! have found it notice nothing.
//!
//! Seen when: a Sentinel's down-after-milliseconds is 1100 or less.
//!
//! Not to be taken for: a timeout too short for stalls (`node_timeout_margin`): this needs no stall.
//!
//! What to do: set 2000 or more; a dead master is noticed a second later. min-replicas-to-write limits what is lost.
//! Sources: SENTINEL MASTERS; redis/redis#8607 (500 ms: masters keep changing; 2000: no longer); our own failovers of
//! Valkey 9.1 with 1000: 2 of 28 lost eleven seconds of acknowledged writes; with 2000: none of 50.

use super::prelude::*;
use std::collections::BTreeSet;
use unslow_facts::{SentinelGroup, SentinelNode};

pub const TITLE: &str = "Sentinel's down-after too short";
pub const LEADS_TO: &[&str] = &["failover_flapping"];
pub const INJECTED: Injected = Injected::Yes;

/// A second between connections, and the Sentinel's own clock, which ticks ten times a second.
const SHORTEST_MS: u64 = 1100;
const WANTED_MS: u64 = 2000;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Sentinel {
        return Verdict::NotHere;
    }
    let all: Vec<(&SentinelNode, &SentinelGroup)> = facts
        .sentinels
        .iter()
        .filter(|s| s.unreachable.is_none())
        .flat_map(|s| s.groups.iter().map(move |g| (s, g)))
        .filter(|(_, g)| g.down_after_ms > 0)
        .collect();
    let Some((sentinel, group)) = all.iter().min_by_key(|(_, g)| g.down_after_ms) else {
        return Verdict::unknown(
            Lack::Rights,
            "no Sentinel said how long it waits",
            "reach one Sentinel, as a user that may call SENTINEL MASTERS",
        );
    };
    let ms = group.down_after_ms;
    let short: Vec<&(&SentinelNode, &SentinelGroup)> =
        all.iter().filter(|(_, g)| g.down_after_ms <= SHORTEST_MS).collect();
    if short.is_empty() {
        return Verdict::Absent(format!(
            "Sentinel's down-after-milliseconds: {ms} ms or more, at {} of {} Sentinels",
            facts.sentinels.iter().filter(|s| s.unreachable.is_none()).count(),
            facts.sentinels.len()
        ));
    }
    let masters: BTreeSet<&str> = short.iter().map(|(_, g)| g.master.as_str()).collect();
    let follows =
        |n: &&Node| masters.contains(n.address.as_str()) || n.master.as_deref().is_some_and(|m| masters.contains(m));
    let set = |to: Option<u64>| -> Vec<String> {
        short
            .iter()
            .map(|(s, g)| {
                cli(
                    &s.address,
                    &format!("SENTINEL SET {} down-after-milliseconds {}", g.service, to.unwrap_or(g.down_after_ms)),
                )
            })
            .collect()
    };
    let (lines, undo) = (set(Some(WANTED_MS)), set(None).join("; "));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let missing = facts.sentinels.iter().filter(|s| s.unreachable.is_some()).count();
    let risk = if missing == 0 {
        "a dead master is noticed later".to_string()
    } else {
        format!("a dead master is noticed later; {missing} Sentinels that did not answer need the setting too")
    };
    let title = format!(
        "Sentinel considers {} dead after {ms} ms, and connects once a second: a failover may be followed by a second \
         one, of a healthy master",
        group.service
    );
    let finding = Finding::new(title)
        .on(masters.iter().copied().chain(facts.live().filter(follows).map(|n| n.address.as_str())))
        .risk(
            "some failovers (2 of our 28 with 1000 ms) are followed by a second one; what was written in the ten \
             seconds in between is lost",
        )
        .gain(
            format!("a dead master is noticed after {WANTED_MS} ms, and replaced once"),
            "SENTINEL SET takes effect immediately",
        )
        .likely("the setting was read; its effect was measured on our own servers, not here")
        .saw_at(
            cli(&sentinel.address, "SENTINEL MASTERS"),
            format!(
                "{}: down-after-milliseconds \
            {ms}",
                group.service
            ),
            facts.at_ms,
        )
        // No script's: a Sentinel may only have been heard of, from whoever may publish.
        .fix("Make Sentinel wait longer than the second between its connections", &lines, &risk, &undo);
    limit_loss(finding, facts).into()
}

/// A master that has lost its replicas takes no writes that the next one would not have; where that is not set.
fn limit_loss(finding: Finding, facts: &Facts) -> Finding {
    let unbounded: Vec<&Node> =
        facts.live().filter(|n| n.setting_number("min-replicas-to-write") == Some(0.0)).collect();
    if unbounded.is_empty() || facts.nodes.len() < 2 {
        return finding;
    }
    let set = |n: &&Node| {
        [cli(&n.address, "CONFIG SET min-replicas-to-write 1"), cli(&n.address, "CONFIG SET min-replicas-max-lag 2")]
    };
    let lines: Vec<String> = unbounded.iter().flat_map(set).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let undo: Vec<String> = unbounded.iter().map(|n| cli(&n.address, "CONFIG SET min-replicas-to-write 0")).collect();
    finding.fix(
        "Also make a master that has lost its replicas refuse writes",
        &lines,
        "without a replica that is up to date, no writes are accepted",
        &undo.join("; "),
    )
}
