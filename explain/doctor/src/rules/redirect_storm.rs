//! Clients ask the wrong node, again and again.
//!
//! A MOVED reply costs another round trip and, with many clients, another topology refresh each. A client that is not
//! cluster-aware, or whose map is stale, pays it for every command.
//!
//! Seen when: MOVED and ASK are over 1 % of commands and over 10 a second.
//!
//! Not to be taken for: a reshard in progress, where a few redirects per slot are the protocol at work.
//!
//! What to do: a cluster-aware client with refresh on MOVED; a proxy for those that cannot.
//! Sources: INFO errorstat_MOVED, errorstat_ASK (6.2+).

use super::prelude::*;

pub const TITLE: &str = "Redirect storm";
pub const LEADS_TO: &[&str] = &["error_flood"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::Absent(None);
    }
    if let Some(node) = facts.live().find(|n| n.level() < (6, 2)) {
        return Verdict::Unknown { why: format!("{}: {} does not count redirects", node.address, node.version_text()), grant: "upgrade to 6.2 or later, or count MOVED in the client".into() };
    }
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let errors = node.errors();
            let of = |k: &str| errors.get(k).copied().unwrap_or(0);
            let (moved, ask) = (of("MOVED"), of("ASK"));
            // A redirected command is not counted as processed by every version.
            let commands = node.delta("total_commands_processed")?.max((moved + ask) as f64).max(1.0);
            let share = (moved + ask) as f64 / commands;
            let rate = (moved + ask) as f64 / node.window_s.max(0.001);
            (share > 0.01 && rate > 10.0).then_some((node, moved, ask, share, rate))
        })
        .collect();
    let rows = by_worst(rows, |r| r.4);
    let Some((node, moved, ask, share, rate)) = rows.first() else { return Verdict::Absent(Some("redirects: below 1 % of commands".into())) };
    let rtt_us = node.rtt.value().map_or(100.0, |r| f64::from(r.us_p50));
    let open = facts.live().filter_map(|n| n.cluster.value()?.myself()).any(|me| !me.migrating.is_empty() || !me.importing.is_empty());
    let mut finding = Finding::new(format!("{} of the commands to {} go to the wrong node: {} redirects a second", percent(*share), node.address, count(*rate)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .latency(share * rtt_us / 1000.0, format!("a round trip more ({}) for {} of the commands, and the work done twice", time_us(rtt_us), percent(*share)))
        .gain(format!("{} commands/s fewer", count(*rate)), format!("({moved} MOVED + {ask} ASK) / {:.1} s", node.window_s))
        .proven("counted by the server in this window");
    for (node, moved, ask, ..) in rows.iter().take(3) {
        finding = finding.saw(node, "INFO errorstats", format!("errorstat_MOVED +{moved}, errorstat_ASK +{ask}"));
    }
    for group in node.clients.value().into_iter().flat_map(|c| &c.groups).take(2) {
        finding = finding.saw(node, "CLIENT LIST", format!("{} connections from {} {}{}", group.count, group.host, group.name, group.library));
    }
    if !open {
        finding = finding.not("a reshard: no slot is open");
    }
    finding.fix("Use the client's cluster mode, with a refresh on MOVED", &["Jedis: JedisCluster", "Lettuce: RedisClusterClient with enableAllAdaptiveRefreshTriggers()", "redis-py: redis.cluster.RedisCluster", "redis-cli -c"], "none", "none needed").into()
}
