//! Masters are voted out and come back as replicas, though no machine died.
//!
//! A node that stalls for longer than the timeout is marked failed, a replica is elected, and the old master returns as
//! its replica. Clients lose seconds, unacknowledged writes are lost, and roles drift from where they were placed.
//!
//! Seen when: an election was won after a FAIL message since the nodes started, and the old master's process is as old as
//! the winner's; or a role changed within the window.
//!
//! Not to be taken for: a manual failover (no FAIL message), or a node that was restarted (its uptime says so).
//!
//! What to do: the stall's cause; a timeout with margin; then CLUSTER FAILOVER back to where masters belong.
//! Sources: CLUSTER INFO message counters, CLUSTER NODES epochs, INFO uptime and second_repl_offset.

use super::prelude::*;

pub const TITLE: &str = "Failover flapping";
pub const LEADS_TO: &[&str] = &["masters_share_host", "replica_shares_host"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if !matches!(facts.kind, DeploymentKind::Cluster | DeploymentKind::Sentinel) {
        return Verdict::Absent(None);
    }
    let counter = |n: &Node, name: &str| n.cluster_info.value().and_then(|i| i.get(&format!("cluster_stats_messages_{name}"))?.parse::<f64>().ok()).unwrap_or(0.0);
    let flipped = |n: &Node| {
        let role = |s: &Option<unslow_facts::Sample>| s.as_ref().and_then(|s| s.info.role().map(str::to_string));
        matches!((role(&n.first), role(&n.last)), (Some(a), Some(b)) if a != b)
    };
    // A promoted replica keeps its old master's history as the second replication id. Its own FAIL messages tell an
    // election from a manual failover.
    let promoted = |n: &Node| n.is_master() && n.number("second_repl_offset").is_some_and(|o| o > 0.0);
    let told_of_fail = |n: &Node| counter(n, "fail_sent").max(counter(n, "fail_received")) > 0.0;
    let uptime = |n: &Node| n.number("uptime_in_seconds").unwrap_or(0.0);
    let followers = |w: &Node| -> Vec<&Node> {
        let follows = |n: &&Node| {
            let info = n.info();
            let said = info.and_then(|i| Some(format!("{}:{}", i.get("master_host")?, i.get("master_port")?)));
            !n.is_master() && (said.as_deref() == Some(&w.address) || n.master.as_deref() == Some(&w.address))
        };
        facts.live().filter(follows).collect()
    };
    // A rolling restart elects masters too. It is no flapping: the old master's process is young, or gone.
    let never_died = |w: &Node| followers(w).iter().any(|l| uptime(l) + 60.0 >= uptime(w));
    let winners: Vec<&Node> = facts
        .live()
        .filter(|n| {
            let elected = told_of_fail(n) && promoted(n) && counter(n, "auth-ack_received") > 0.0;
            (flipped(n) && n.is_master() || elected) && never_died(n)
        })
        .collect();
    if winners.is_empty() {
        let seen = facts.live().filter(|n| n.cluster_info.value().is_some()).count();
        return match facts.kind {
            DeploymentKind::Cluster if seen == 0 => Verdict::Unknown { why: "elections are counted in CLUSTER INFO, which could not be read".into(), grant: "ACL SETUSER <user> +cluster|info".into() },
            DeploymentKind::Cluster => Verdict::Absent(Some("failovers of living masters: none since the nodes started".into())),
            // Sentinels keep no count of failovers.
            _ => Verdict::Absent(Some("failovers: none in the window".into())),
        };
    }
    let losers: Vec<&Node> = winners.iter().flat_map(|w| followers(w).into_iter().filter(|l| uptime(l) + 60.0 >= uptime(w)).take(1)).collect();
    let stayed_up = losers.len();
    let oldest_days = facts.live().map(uptime).fold(0.0, f64::max) / 86400.0;
    let elections: f64 = facts.live().map(|n| if counter(n, "auth-ack_received") > 0.0 { counter(n, "auth-req_sent").max(1.0) } else { 0.0 }).sum::<f64>();
    let elections = (winners.len() as f64).max((elections / (facts.nodes.len() as f64 - 1.0).max(1.0)).floor());
    let per_day = elections / oldest_days.max(1.0);
    let timeout_s = failure_timeout_ms(facts, winners[0]).map_or(15.0, |(ms, _)| ms / 1000.0);
    let outage = timeout_s + 1.5;
    let names_of = |nodes: &[&Node]| names(&nodes.iter().map(|n| n.address.clone()).collect::<Vec<_>>());
    let mut finding = Finding::new(format!(
        "{} took over by election{}, and no machine died",
        names_of(&winners),
        if losers.is_empty() { String::new() } else { format!(" from {}", names_of(&losers)) }
    ))
    .on(losers.iter().chain(&winners).map(|n| n.address.as_str()))
    .availability(per_day * outage, format!("about {outage:.0} s without that shard's master each time, {} in {:.1} days", count(elections), oldest_days.max(0.1)))
    .gain("no failover where nothing died", format!("{elections:.0} / {:.1} days x ({timeout_s:.1} s to notice + 1.5 s to elect) = {:.1} s a day", oldest_days.max(1.0), per_day * outage));
    finding = if stayed_up > 0 { finding.proven("the election was counted, and the old master was never restarted") } else { finding.likely("the election was counted; whether the old master died is not known") };
    for winner in winners.iter().take(2) {
        finding = finding.saw(winner, "CLUSTER INFO", format!("cluster_stats_messages_fail_received:{:.0}, auth-req_sent:{:.0}, auth-ack_received:{:.0}", counter(winner, "fail_received"), counter(winner, "auth-req_sent"), counter(winner, "auth-ack_received")))
            .saw(winner, "INFO replication", format!("role:master, second_repl_offset:{:.0}", winner.number("second_repl_offset").unwrap_or(-1.0)));
    }
    for loser in losers.iter().take(2) {
        finding = finding.saw(loser, "INFO server", format!("uptime_in_seconds:{:.0}: it was never down", uptime(loser)));
    }
    let back: Vec<String> = losers.iter().map(|l| { let (h, p) = l.address.rsplit_once(':').unwrap_or((&l.address, "")); if facts.kind == DeploymentKind::Cluster { format!("redis-cli -h {h} -p {p} CLUSTER FAILOVER") } else { "SENTINEL FAILOVER <service>   (at a Sentinel)".to_string() } }).collect();
    let back: Vec<&str> = back.iter().map(String::as_str).collect();
    finding
        .not("a manual failover alone: the winner was told of a FAIL")
        .not("a restart: the old master's process is as old as the winner's")
        .fix("After the stall's cause is gone: give the masters back their place", if back.is_empty() { &["CLUSTER FAILOVER   (on the old master)"] } else { &back }, "a second without writes to that shard", "CLUSTER FAILOVER on the other one")
        .into()
}
