//! A master loses its role and comes back as a replica, although its process never ended.
//!
//! A node that stalls for longer than the timeout is marked failed, a replica is elected, and the old master returns as
//! its replica. Clients lose seconds, unacknowledged writes are lost, and roles drift away from where they were placed.
//!
//! Seen when: a master turned into a replica within the window, with the same process before and after; or, before the
//! window, a replica of a cluster won an election after a node was marked failed (counted since its process started),
//! and the process of a server that follows it now has served replicas, so it was a master and has not been restarted
//! since. The servers do not record when that election took place, so a rate is given only for two or more elections in
//! at least an hour.
//!
//! Not to be taken for: a restart, rolling or not (the process of the old master began after its demotion and has never
//! served a replica); a failover that was requested (CLUSTER FAILOVER in INFO commandstats, 7.0+; before that, the
//! absence of a FAIL message); a dead master (`node_unreachable`). Sentinels keep no count of failovers: those before
//! the window cannot be seen there, and within it SENTINEL FAILOVER looks the same.
//!
//! What to do: remove the cause of the stall; set a timeout with margin; then CLUSTER FAILOVER back to where masters
//! belong.
//! Sources: INFO role, run_id, sync_full, sync_partial_ok, second_repl_offset and commandstats; CLUSTER INFO message
//! counters.

use super::peers;
use super::prelude::*;
use super::takeover::names_of;
use unslow_facts::Sample;

pub const TITLE: &str = "Failover flapping";
pub const LEADS_TO: &[&str] = &["masters_share_host", "replica_shares_host", "reconnect_stampede", "error_flood"];
pub const INJECTED: Injected = Injected::Yes;

/// From the end of the failure detector's patience to a new master.
const ELECTION_S: f64 = 1.5;
/// Counters of a younger process give no rate.
const RATE_S: f64 = 3600.0;

/// An election: who won it, and who lost its role by it.
struct Election<'a> {
    winner: &'a Node,
    losers: Vec<&'a Node>,
}

pub fn check(facts: &Facts) -> Verdict {
    if !matches!(facts.kind, DeploymentKind::Cluster | DeploymentKind::Sentinel) || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let demoted: Vec<&Node> = facts.live().filter(|n| turned(n, "master", "slave") && same_process(n)).collect();
    let asked_for = |winner: &&Node| winner.foreign_commands().contains_key("cluster|failover");
    let winners: Vec<&Node> = facts.live().filter(|n| turned(n, "slave", "master")).collect();
    if !demoted.is_empty() && !winners.iter().any(asked_for) {
        return in_window(facts, &demoted, &winners);
    }
    let elections: Vec<Election> = facts
        .live()
        .filter(|n| elected(n))
        .filter_map(|winner| {
            let losers: Vec<&Node> = followers(facts, winner).into_iter().filter(|n| was_master(n)).collect();
            (!losers.is_empty()).then_some(Election { winner, losers })
        })
        .collect();
    if elections.is_empty() { none(facts, &demoted) } else { before(facts, &elections) }
}

/// Whether its role was `from` at the start of the window and `to` at its end.
fn turned(node: &Node, from: &str, to: &str) -> bool {
    let role = |s: &Option<Sample>| s.as_ref().and_then(|s| s.info.role().map(str::to_string));
    role(&node.first).as_deref() == Some(from) && role(&node.last).as_deref() == Some(to)
}

fn same_process(node: &Node) -> bool {
    let id = |s: &Option<Sample>| s.as_ref().and_then(|s| s.info.get("run_id").map(str::to_string));
    id(&node.first).is_some() && id(&node.first) == id(&node.last)
}

fn counter(node: &Node, name: &str) -> f64 {
    let counters = node.cluster_info.value();
    counters.and_then(|i| i.get(&format!("cluster_stats_messages_{name}"))?.parse::<f64>().ok()).unwrap_or(0.0)
}

/// Whether it became master by votes after some node was marked failed, since its process started and without being
/// asked to.
fn elected(node: &Node) -> bool {
    // What it had replicated before stays as a second history when a replica becomes master.
    let promoted = node.is_master() && node.number("second_repl_offset").is_some_and(|o| o > 0.0);
    let failure = counter(node, "fail_sent").max(counter(node, "fail_received")) > 0.0;
    let asked_for = node.info().is_some_and(|i| i.command_stat("cluster|failover").is_some());
    promoted && failure && counter(node, "auth-ack_received") > 0.0 && !asked_for
}

/// Whether this process, a replica now, has served replicas: it was a master, and was not restarted since.
fn was_master(node: &Node) -> bool {
    let served = |field: &str| node.number(field).unwrap_or(0.0);
    !node.is_master() && served("sync_full") + served("sync_partial_ok") > 0.0
}

fn followers<'a>(facts: &'a Facts, winner: &Node) -> Vec<&'a Node> {
    facts.live().filter(|n| !n.is_master() && peers::master_by_info(n).as_deref() == Some(&winner.address)).collect()
}

fn none(facts: &Facts, demoted: &[&Node]) -> Verdict {
    let role = |s: &Option<Sample>| s.as_ref().is_some_and(|s| s.info.role().is_some());
    let seen = facts.live().filter(|n| role(&n.first) && role(&n.last)).count();
    if seen == 0 {
        return Verdict::Unknown(unseen_info(facts, "failovers"));
    }
    if !demoted.is_empty() {
        return Verdict::Absent(format!(
            "failovers: {} gave up its role in the window, as requested by CLUSTER FAILOVER",
            names_of(demoted)
        ));
    }
    if facts.kind == DeploymentKind::Sentinel {
        return Verdict::Absent(format!(
            "failovers: no role changed on {seen} servers in the window (Sentinels keep no count of earlier ones)"
        ));
    }
    let counted: Vec<&Node> = facts.live().filter(|n| n.cluster_info.value().is_some()).collect();
    if counted.is_empty() {
        let gap = facts.live().find_map(|n| n.cluster_info.refused()).cloned();
        return Verdict::Unknown(
            gap.unwrap_or_else(|| {
                Gap::new(Lack::Answer, "elections are counted in CLUSTER INFO, which no node returned", "")
            })
            .of("failovers"),
        );
    }
    let won: Vec<&Node> = counted.iter().copied().filter(|n| elected(n)).collect();
    Verdict::Absent(if won.is_empty() {
        format!("failovers: none of {} nodes has won an election after a failure since it started", counted.len())
    } else {
        format!(
            "failovers of live masters: {} won an election, and the processes that follow it now were never masters (a \
             restart, or a dead master)",
            names_of(&won)
        )
    })
}

/// Roles changed while we looked.
fn in_window(facts: &Facts, demoted: &[&Node], winners: &[&Node]) -> Verdict {
    let timeout_s = failure_timeout_ms(facts, demoted[0]).map(|(ms, _)| ms / 1000.0);
    // Its role was still there when the window began.
    let seen_s = if demoted[0].window_s > 0.0 { demoted[0].window_s } else { facts.window_s };
    let outage = (timeout_s.unwrap_or(0.0) + ELECTION_S).min(seen_s);
    let by = if winners.is_empty() { String::new() } else { format!(", and {} took over", names_of(winners)) };
    let mut finding = Finding::new(format!(
        "{} lost the role of master in this window{by}, although its process never ended",
        names_of(demoted)
    ))
    .on(demoted.iter().chain(winners).map(|n| n.address.as_str()))
    .since(demoted[0].at_ms());
    let roles = "the roles at both ends of the window were read from the same processes";
    // From 7.0 on the winner's counters show that it was asked.
    let recorded = demoted.iter().chain(winners).all(|n| n.level() >= (7, 0));
    let failure = facts.live().any(|n| counter(n, "fail_sent").max(counter(n, "fail_received")) > 0.0);
    let in_cluster = facts.kind == DeploymentKind::Cluster;
    if in_cluster && !recorded && !failure {
        finding = finding
            .risk(format!(
                "a second without writes to that shard if CLUSTER FAILOVER was called, about {outage:.0} s if it was \
                 an election"
            ))
            .possible(format!(
                "{roles}; no FAIL message was counted, and before 7.0 the servers do not record whether CLUSTER \
                 FAILOVER was called"
            ));
    } else {
        finding = finding
            .availability(
                (outage * demoted.len() as f64).min(seen_s),
                format!(
                    "at most about {outage:.0} s without that shard's master, {} in this window",
                    times(demoted.len() as f64)
                ),
            )
            .gain("no failover unless a process dies", format!("{}; watched for {seen_s:.0} s", formula(timeout_s)));
        finding = match facts.kind {
            DeploymentKind::Sentinel => {
                finding.proven(format!("{roles}; the servers do not record whether SENTINEL FAILOVER was called"))
            }
            _ if recorded => finding.proven(roles),
            _ => finding.likely(format!(
                "{roles}, and a FAIL message was counted; before 7.0 it is not recorded when, nor whether CLUSTER \
                 FAILOVER was called"
            )),
        };
    }
    for node in demoted.iter().take(2) {
        finding =
            finding.saw(node, "INFO replication", "role:master at the start of the window, role:slave at its end");
    }
    for node in winners.iter().take(2) {
        finding =
            finding.saw(node, "INFO replication", "role:slave at the start of the window, role:master at its end");
    }
    finding = finding.not("a restart: run_id is the same at both ends of the window");
    back(finding, facts, demoted)
}

/// Roles changed before we looked; the servers do not record when.
fn before(facts: &Facts, elections: &[Election]) -> Verdict {
    let winners: Vec<&Node> = elections.iter().map(|e| e.winner).collect();
    let losers: Vec<&Node> = elections.iter().flat_map(|e| e.losers.iter().copied()).collect();
    let timeout_s = failure_timeout_ms(facts, winners[0]).map(|(ms, _)| ms / 1000.0);
    let outage = timeout_s.unwrap_or(0.0) + ELECTION_S;
    let mut finding = Finding::new(format!(
        "{} took over by election before this window, and {} follows it now without having been restarted",
        names_of(&winners),
        names_of(&losers)
    ))
    .on(losers.iter().chain(&winners).map(|n| n.address.as_str()));
    let earliest =
        winners.iter().chain(&losers).filter_map(|n| started_ms(n)).max().unwrap_or(facts.at_ms).min(facts.at_ms);
    let when = format!("some time between {} and this window", ago(facts.at_ms, earliest));
    let attempts: f64 = winners.iter().map(|w| attempts(facts, w)).sum();
    let uptime_s = winners.iter().filter_map(|w| w.number("uptime_in_seconds")).fold(0.0, f64::max);
    finding = if attempts >= 2.0 && uptime_s >= RATE_S {
        let per_day = attempts / (uptime_s / 86400.0).max(1.0);
        finding
            .availability(
                per_day * outage,
                format!(
                    "about {outage:.0} s without that shard's master each time, {} in {}, the last {when}",
                    times(attempts),
                    time_rough_s(uptime_s)
                ),
            )
            .severity(Severity::Medium)
            .gain(
                "no failover unless a process dies",
                format!("{} a day x {outage:.1} s = {:.1} s a day", count(per_day), per_day * outage),
            )
    } else {
        finding
            .risk(format!("about {outage:.0} s without that shard's master, {when}; nothing now"))
            .gain("no failover unless a process dies", formula(timeout_s))
    };
    let counted =
        "the election and the FAIL message before it were counted, and the old master's process has served replicas";
    finding = if winners.iter().all(|w| w.level() >= (7, 0)) {
        finding.likely(format!("{counted}; the servers do not record when"))
    } else {
        finding.possible(format!(
            "{counted}; the servers do not record when, nor (before 7.0) whether CLUSTER FAILOVER was called"
        ))
    };
    // The servers do not record when it was; not before both processes were there.
    finding = finding.past(earliest);
    for election in elections.iter().take(2) {
        let w = election.winner;
        finding = finding
            .saw(
                w,
                "CLUSTER INFO",
                format!(
                    "cluster_stats_messages_fail_received:{:.0}, auth-req_sent:{:.0}, auth-ack_received:{:.0}",
                    counter(w, "fail_received"),
                    counter(w, "auth-req_sent"),
                    counter(w, "auth-ack_received")
                ),
            )
            .saw(
                w,
                "INFO replication",
                format!("role:master, second_repl_offset:{:.0}", w.number("second_repl_offset").unwrap_or(-1.0)),
            );
        for loser in election.losers.iter().take(1) {
            let served = |field: &str| loser.number(field).unwrap_or(0.0);
            finding = finding.saw(
                loser,
                "INFO stats",
                format!(
                    "sync_full:{:.0}, sync_partial_ok:{:.0}: this process, a replica now, has served replicas",
                    served("sync_full"),
                    served("sync_partial_ok")
                ),
            );
        }
    }
    if winners.iter().all(|w| w.level() >= (7, 0)) {
        finding = finding.not("a requested failover: the winner has received no CLUSTER FAILOVER");
    }
    back(finding.not("a restart of the old master: its counters still hold what it did as a master"), facts, &losers)
}

/// Elections it stood for since it started. Each asks every other node for its vote.
fn attempts(facts: &Facts, node: &Node) -> f64 {
    let known = node.cluster_info.value().and_then(|i| i.get("cluster_known_nodes")?.parse::<f64>().ok());
    let others = known.unwrap_or(facts.nodes.len() as f64) - 1.0;
    (counter(node, "auth-req_sent") / others.max(1.0)).floor().max(1.0)
}

fn times(n: f64) -> String {
    if n < 1.5 { "once".into() } else { format!("{n:.0} times") }
}

fn formula(timeout_s: Option<f64>) -> String {
    match timeout_s {
        Some(s) => format!("{s:.1} s to notice + {ELECTION_S} s to elect"),
        None => format!("the failure detector's timeout, which could not be read, + {ELECTION_S} s to elect"),
    }
}

fn back(finding: Finding, facts: &Facts, losers: &[&Node]) -> Verdict {
    let risk = "a second without writes to that shard";
    let text = "Once the cause of the stall is removed, move the masters back to their places";
    if facts.kind == DeploymentKind::Cluster {
        let commands: Vec<String> = losers.iter().map(|l| cli(&l.address, "CLUSTER FAILOVER")).collect();
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        return finding.fix(text, &commands, risk, "CLUSTER FAILOVER on the other node").into();
    }
    let sentinel = facts.sentinels.iter().find(|s| s.unreachable.is_none()).and_then(|s| Some((s, s.groups.first()?)));
    match sentinel {
        Some((sentinel, group)) => {
            let command = cli(&sentinel.address, &format!("SENTINEL FAILOVER {}", group.service));
            finding.fix(text, &[&command], &format!("{risk}; Sentinel chooses the replica by its priority"), "").into()
        }
        None => finding.into(),
    }
}
