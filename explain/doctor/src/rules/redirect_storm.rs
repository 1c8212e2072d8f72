//! Clients keep asking the wrong node.
//!
//! A MOVED reply costs another round trip and, with many client libraries, another topology refresh. A client that is
//! not cluster-aware, or whose map is stale, pays this for every command.
//!
//! Seen when: MOVED and ASK are over 1 % of the commands sent to a node, and over 10 a second. A redirected command
//! does not count as processed: the share is of both together.
//!
//! Not to be taken for: a reshard in progress, where a few redirects per slot are how the protocol works.
//!
//! How to confirm: `INFO errorstats` twice, and `CLIENT LIST` on the node that has most of them: see which clients are
//! connected there.
//!
//! What to do: use a cluster-aware client that refreshes on MOVED; a proxy for clients that cannot.
//! Sources: INFO errorstat_MOVED, errorstat_ASK (6.2+).

use super::prelude::*;

pub const TITLE: &str = "Redirect storm";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

const SHARE: f64 = 0.01;
const RATE: f64 = 10.0;

/// Redirects of one node in the window.
struct Redirects<'a> {
    node: &'a Node,
    moved: u64,
    ask: u64,
    asked: f64,
    share: f64,
    rate: f64,
}

impl Redirects<'_> {
    fn of(node: &Node) -> Option<Redirects<'_>> {
        let outcomes = Outcomes::of(node)?;
        let (moved, ask) = (outcomes.count(&["MOVED"]), outcomes.count(&["ASK"]));
        let all = moved as f64 + ask as f64;
        Some(Redirects {
            node,
            moved,
            ask,
            asked: outcomes.asked,
            share: outcomes.share(all),
            rate: all / node.window_s.max(0.001),
        })
    }
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::NotHere;
    }
    let all: Vec<Redirects<'_>> = facts.live().filter_map(Redirects::of).collect();
    let rows = by_worst(all.iter().filter(|r| r.share > SHARE && r.rate > RATE).collect(), |r| r.rate);
    let Some(worst) = rows.first() else { return absent(facts, &all) };
    let (node, share) = (worst.node, percent(worst.share));
    let rtt_us = node.rtt.value().map_or(100.0, |r| f64::from(r.us_p50));
    let open = facts
        .live()
        .filter_map(|n| n.cluster.value()?.myself())
        .any(|me| !me.migrating.is_empty() || !me.importing.is_empty());
    let mut finding = Finding::new(format!(
        "{share} of the commands to {} go to the wrong node: {} redirects a second",
        node.address,
        count(worst.rate)
    ))
    .on(rows.iter().map(|r| r.node.address.as_str()))
    .latency(
        worst.share * rtt_us / 1000.0,
        format!("one more round trip ({}) for {share} of the commands, and the work is done twice", time_us(rtt_us)),
    )
    .gain(
        format!("{} commands/s fewer", count(worst.rate)),
        format!("({} MOVED + {} ASK) / {:.0} commands sent = {share}", worst.moved, worst.ask, worst.asked),
    )
    .proven("counted by the server in this window");
    for row in rows.iter().take(3) {
        finding = finding.saw(
            row.node,
            "INFO errorstats",
            format!("errorstat_MOVED +{}, errorstat_ASK +{}", row.moved, row.ask),
        );
    }
    let groups = || node.clients.value().into_iter().flat_map(|c| &c.groups);
    for group in groups().take(2) {
        let who = format!("{} connections from {} {}{}", group.count, group.host, group.name, group.library);
        finding = finding.saw(node, "CLIENT LIST", who);
    }
    if !open {
        finding = finding.not("a reshard: no slot is open");
    }
    let mut clients: Vec<&str> = CLUSTER_MODES
        .iter()
        .filter(|(library, _)| groups().any(|g| g.library.to_lowercase().contains(library)))
        .map(|(_, mode)| *mode)
        .collect();
    if clients.is_empty() {
        clients = CLUSTER_MODES.iter().map(|(_, mode)| *mode).collect();
    }
    finding.fix("Use the client's cluster mode, with a refresh on MOVED", &clients, "", "").into()
}

/// By the name a library gives itself (CLIENT LIST, 7.2+).
const CLUSTER_MODES: &[(&str, &str)] = &[
    ("jedis", "Jedis: JedisCluster"),
    ("lettuce", "Lettuce: RedisClusterClient with enableAllAdaptiveRefreshTriggers()"),
    ("redis-py", "redis-py: redis.cluster.RedisCluster"),
    ("go-redis", "go-redis: redis.NewClusterClient"),
    ("ioredis", "ioredis: new Redis.Cluster"),
];

fn absent(facts: &Facts, all: &[Redirects<'_>]) -> Verdict {
    if let Some(node) = facts.live().find(|n| n.level() < (6, 2)) {
        let why = format!("redirects: {} does not count them ({})", node.version_text(), node.address);
        return Verdict::unknown(Lack::Version, why, "upgrade to 6.2 or later, or count MOVED in the client");
    }
    let worst = all.iter().max_by(|a, b| a.share.total_cmp(&b.share));
    let text = |r: &Redirects<'_>| {
        format!("redirects: at most {} of the commands on a node ({}/s)", percent(r.share), count(r.rate))
    };
    Verdict::absent(facts, "redirects", worst.map(text))
}
