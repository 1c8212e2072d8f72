//! Sentinels are in TILT: they do not trust their own clock, and neither start a failover nor help to agree on one.
//!
//! A Sentinel checks its clock ten times a second. If the clock went back, or over two seconds have passed (the process
//! was stopped, its machine had no CPU, the clock was set), it stays in TILT for 30 s after the last such moment: it
//! keeps watching, but acts on nothing.
//!
//! Seen when: INFO of a Sentinel shows sentinel_tilt:1. A Sentinel in TILT still votes, but does not report a master as
//! down: if fewer than `quorum` are left that do, no failover can be authorised until TILT ends.
//!
//! Not to be taken for: missing Sentinels (`sentinel_quorum`): these are running, and recover on their own.
//!
//! How to confirm: `INFO sentinel` on each: sentinel_tilt, sentinel_tilt_since_seconds (7.0+); the log shows "+tilt".
//!
//! What to do: make sure that the Sentinels get CPU (look for a container's quota, a neighbour, a paused VM), and set
//! clocks by slewing (chrony) instead of in steps.
//! Sources: INFO sentinel; sentinelCheckTiltCondition() of the servers (2 s, 30 s); spotahome #193, bitnami #9689.

use std::collections::BTreeSet;

use super::peers;
use super::prelude::*;
use unslow_facts::{SentinelGroup, SentinelNode, Tilt};

pub const TITLE: &str = "Sentinel in TILT";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Sentinel || facts.sentinels.is_empty() {
        return Verdict::NotHere;
    }
    let told: Vec<(&SentinelNode, Tilt)> =
        facts.sentinels.iter().filter(|s| s.unreachable.is_none()).filter_map(|s| Some((s, s.tilt?))).collect();
    if told.is_empty() {
        return Verdict::unknown(
            Lack::Rights,
            "TILT: no Sentinel showed its INFO",
            "ACL SETUSER <user> +info   (on the Sentinels)",
        );
    }
    let tilted: Vec<&(&SentinelNode, Tilt)> = told.iter().filter(|(_, t)| matches!(t, Tilt::On { .. })).collect();
    if tilted.is_empty() {
        return Verdict::Absent(format!("TILT: none of {} Sentinels", told.len()));
    }
    let hosts: BTreeSet<String> = tilted.iter().map(|(s, _)| peers::host_of(&s.address).to_string()).collect();
    let hosts: Vec<String> = hosts.into_iter().collect();
    let addresses: Vec<String> = tilted.iter().map(|(s, _)| s.address.clone()).collect();
    let most = is_too_few(facts, tilted.len(), told.len());
    let masters = tilted.iter().flat_map(|(s, _)| &s.groups).map(|g| g.master.as_str());
    let follows = if most { ": no failover can be authorised" } else { "" };
    let mut finding = Finding::new(format!(
        "{} of {} Sentinels {} in TILT ({}){follows}",
        tilted.len(),
        told.len(),
        if tilted.len() == 1 { "is" } else { "are" },
        names(&addresses)
    ))
    .on(addresses.iter().map(String::as_str))
    .on(masters)
    .risk(if most {
        "no request is lost now; a master that dies during TILT is not replaced"
    } else {
        "the others can still act; what stopped these may stop them too"
    })
    .severity(if most { Severity::High } else { Severity::Medium })
    .proven("the Sentinels' own INFO");
    for (sentinel, tilt) in tilted.iter().take(3) {
        let since = match tilt {
            Tilt::On { since_s: Some(s) } => format!(", sentinel_tilt_since_seconds:{s}"),
            Tilt::On { since_s: None } | Tilt::Off => String::new(),
        };
        finding =
            finding.saw_at(cli(&sentinel.address, "INFO sentinel"), format!("sentinel_tilt:1{since}"), facts.at_ms);
    }
    finding
        .fix(
            &format!(
                "On {}, see what stopped the Sentinel or moved its clock; TILT ends 30 s after the last such moment",
                names(&hosts)
            ),
            &[
                "chronyc tracking   (System time, Last offset; or timedatectl)",
                "cat /sys/fs/cgroup/cpu.stat   (nr_throttled, of the Sentinel's container)",
                "vmstat 1 10   (st: taken by the hypervisor; r: processes that wait for a CPU)",
            ],
            "",
            "",
        )
        .into()
}

/// Whether those of a group that are not in TILT are fewer than its quorum. Those that do not answer us count as well.
fn is_too_few(facts: &Facts, tilted: usize, told: usize) -> bool {
    let answered = facts.sentinels.iter().filter(|s| s.unreachable.is_none());
    let groups: Vec<&SentinelGroup> = answered.flat_map(|s| &s.groups).collect();
    // One that was reset knows fewer.
    let known = |g: &SentinelGroup| {
        let same = groups.iter().filter(|o| o.service == g.service);
        same.map(|o| o.other_sentinels.saturating_add(1)).max().unwrap_or(1)
    };
    match groups.is_empty() {
        true => tilted == told,
        false => groups.iter().any(|g| known(g).saturating_sub(tilted as u64) < g.quorum),
    }
}
