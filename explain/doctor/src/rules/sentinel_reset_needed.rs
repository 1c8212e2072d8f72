//! Sentinels remember other Sentinels or replicas that are gone for good.
//!
//! Entries are never removed automatically. A Sentinel that was replaced under another address or id still counts
//! towards the majority that a failover needs: with enough such entries no failover can be authorised, although all
//! running Sentinels are healthy. Replicas that are gone are asked and retried forever.
//!
//! Seen when: according to a Sentinel that answers, another Sentinel or a replica has been s_down for ten minutes or
//! more, and it does not answer here either.
//!
//! Not to be taken for: a server that is down for a moment, or one that will come back: their entries are correct.
//!
//! How to confirm: `SENTINEL SENTINELS NAME` and `SENTINEL REPLICAS NAME`: flags, s-down-time (ms).
//!
//! What to do: if it is not coming back, run SENTINEL RESET on each Sentinel, one after another, 30 s apart, while the
//! master is healthy.
//! Sources: SENTINEL SENTINELS, SENTINEL REPLICAS; Sentinel documentation ("Removing the old master or unreachable
//! replicas", "Removing Sentinels").

use super::peers;
use super::prelude::*;
use std::collections::BTreeSet;
use unslow_facts::{Listed, SentinelGroup, SentinelNode};

pub const TITLE: &str = "Sentinel entries out of date";
pub const LEADS_TO: &[&str] = &["sentinel_quorum"];
pub const INJECTED: Injected = Injected::No("an entry counts as out of date after ten minutes");

/// A server that was away for less may be restarting, or moved.
const GONE_MS: u64 = 600_000;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Sentinel || facts.sentinels.is_empty() {
        return Verdict::NotHere;
    }
    let words: Vec<(&SentinelNode, &SentinelGroup)> = facts
        .sentinels
        .iter()
        .filter(|s| s.unreachable.is_none())
        .flat_map(|s| s.groups.iter().map(move |g| (s, g)))
        .filter(|(_, g)| g.others.is_some() && g.replicas.is_some())
        .collect();
    let Some((sentinel, group)) = words.iter().max_by_key(|(_, g)| gone(facts, g).len()) else {
        return Verdict::unknown(
            Lack::Rights,
            "Sentinels' entries: none of the Sentinels that answer listed those it knows",
            "ACL SETUSER <user> +sentinel|sentinels +sentinel|replicas   (on the Sentinels)",
        );
    };
    let all = gone(facts, group);
    if all.is_empty() {
        return Verdict::Absent(format!(
            "Sentinels' entries: none has been down for 10 minutes, according to {} that listed them",
            words.len()
        ));
    }
    found(facts, sentinel, group, &all).into()
}

/// Entries that have been down for long and do not answer us.
fn gone<'a>(facts: &Facts, group: &'a SentinelGroup) -> Vec<&'a Listed> {
    let answers = |address: &str| {
        facts.node(address).is_some_and(|n| peers::answers(n) || peers::refuses(n))
            || facts.sentinels.iter().any(|s| s.address == address && s.unreachable.is_none())
    };
    let all = group.others.iter().flatten().chain(group.replicas.iter().flatten());
    all.filter(|l| l.flags.split(',').any(|f| f == "s_down") && l.down_ms >= GONE_MS && !answers(&l.address)).collect()
}

fn found(facts: &Facts, sentinel: &SentinelNode, group: &SentinelGroup, all: &[&Listed]) -> Finding {
    let sentinels = all.iter().filter(|l| l.flags.split(',').any(|f| f == "sentinel")).count();
    let known = group.other_sentinels as usize + 1;
    let addresses: Vec<String> = all.iter().map(|l| l.address.clone()).collect();
    let counted = if sentinels > 0 {
        format!(
            "; a failover needs {} of the {known} known Sentinels, and {} are left",
            known / 2 + 1,
            known.saturating_sub(sentinels)
        )
    } else {
        String::new()
    };
    let longest = all.iter().map(|l| l.down_ms).max().unwrap_or(0);
    // A replica's entry keeps nothing from being agreed on: it must not be told as the cause of a missing quorum.
    let subjects = if sentinels > 0 { vec![group.master.as_str(), sentinel.address.as_str()] } else { Vec::new() };
    let mut finding = Finding::new(format!(
        "Sentinels remember {} that {} been down for {}{counted}",
        names(&addresses),
        if all.len() == 1 { "has" } else { "have" },
        time_rough_s(longest as f64 / 1000.0)
    ))
    .on(subjects)
    .on(addresses.iter().map(String::as_str))
    .risk(if sentinels > 0 {
        "each such Sentinel counts towards the majority that a failover needs"
    } else {
        "Sentinel keeps asking a replica that is gone, and would reconfigure whatever else took its address"
    })
    .proven("the Sentinel's own list; none of them answers here");
    for listed in all.iter().take(3) {
        let what = if listed.flags.contains("sentinel") { "SENTINELS" } else { "REPLICAS" };
        finding = finding.saw_at(
            cli(&sentinel.address, &format!("SENTINEL {what} {}", group.service)),
            format!("{}: {}, s-down-time {} ms", listed.address, listed.flags, listed.down_ms),
            facts.at_ms,
        );
    }
    let hosts: BTreeSet<&str> =
        facts.sentinels.iter().filter(|s| s.unreachable.is_none()).map(|s| s.address.as_str()).collect();
    let lines: Vec<String> = hosts.iter().map(|a| cli(a, &format!("SENTINEL RESET {}", group.service))).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    // Whether it comes back is known to people only: no exact line.
    finding.fix(
        "If it is not coming back: have each Sentinel forget it, one after another, 30 s apart, while the master is \
         healthy",
        &lines,
        "until it has heard of them again, a Sentinel knows neither the replicas nor the other Sentinels, and takes \
         part in no failover",
        "",
    )
}
