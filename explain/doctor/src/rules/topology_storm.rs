//! Clients ask for the topology so often that the answers eat the servers.
//!
//! Cluster clients keep a map of slots. Many refresh it on a timer, each of them, from every node, over a new
//! connection each time. CLUSTER NODES before 6.2 walks all 16,384 slots for every node: 0.4 ms at 30 nodes, 6 ms at
//! 400 (measured on 5.0.14; 0.03 and 0.17 ms on 7.2.6). So the cost is clients x nodes x cluster size, and a cluster
//! gets slower when it grows.
//!
//! Seen when: CLUSTER NODES/SLOTS/SHARDS take over 2 % of a core on a node, or over 1 ms a call more than once a second.
//!
//! Not to be taken for: a reshard in progress (then MOVED and ASK errors are high too).
//!
//! What to do: let each client ask one node, rarely, with jitter; upgrade servers older than 6.2.
//! Sources: redis #6165, PR #8182 (6.2), lettuce #240, #2468; commandstats.

use super::prelude::*;

pub const TITLE: &str = "Topology storm";
pub const LEADS_TO: &[&str] = &["monitoring_storm", "connection_churn", "kernel_bound", "main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

/// Before 7.0 all sub-commands are lumped together.
const COMMANDS: &[&str] = &["=cluster", "cluster|nodes", "cluster|slots", "cluster|shards", "cluster|links"];

pub fn check(facts: &Facts) -> Verdict {
    let rows = facts.live().map(|n| (n, spent(n, COMMANDS))).filter(|(_, s)| s.share > 0.02 || (s.mean_us > 1000.0 && s.rate > 1.0));
    let rows = by_worst(rows.collect(), |(_, s)| s.share);
    let Some((node, s)) = rows.first() else {
        let most = facts.live().map(|n| spent(n, COMMANDS).share).fold(0.0, f64::max);
        return Verdict::Absent((facts.kind == DeploymentKind::Cluster).then(|| format!("topology refreshes: {} of a core at most", percent(most))));
    };
    let nodes = facts.nodes.len();
    let who = who(node);
    let library = library(&who);
    let total: f64 = rows.iter().map(|(_, s)| s.share).sum();
    let old = node.level() < (6, 2);
    let mut finding = Finding::new(format!(
        "Topology refreshes take {} of a core on {}: {} calls/s at {} each{}",
        percent(s.share),
        node.address,
        count(s.rate),
        time_us(s.mean_us),
        who.first().map_or(String::new(), |w| format!(", sent by {w}"))
    ))
    .on(rows.iter().map(|(n, _)| n.address.as_str()))
    .core(s.share, format!("{} of a core on {}, {} of a core over the whole deployment", percent(s.share), node.address, percent(total)))
    .gain(
        format!("asking one node in place of {nodes} leaves about {} of a core", percent(s.share / nodes.max(1) as f64)),
        format!("{:.1}/s x {:.0} us / {nodes} nodes = {:.4} cores", s.rate, s.mean_us, s.share / nodes.max(1) as f64),
    )
    .proven("the server's own clock for these calls, in this window")
    .saw(node, "INFO commandstats", format!("CLUSTER: {} calls and {} in {:.1} s", s.calls, time_us(s.usec as f64), node.window_s));
    for who in &who {
        finding = finding.saw(node, "CLIENT LIST", who.clone());
    }
    let moved = node.errors().get("MOVED").copied().unwrap_or(0);
    finding = finding.not(format!("a reshard: {moved} MOVED errors in the window"));
    finding = match library {
        "lettuce" => finding.fix(
            "Lettuce: ask one seed node, not all; refresh on demand and rarely by timer",
            &["ClusterTopologyRefreshOptions.builder().dynamicRefreshSources(false).enablePeriodicRefresh(Duration.ofMinutes(10)).enableAllAdaptiveRefreshTriggers().build()"],
            "a client whose seeds are all gone no longer learns the topology from other nodes: list several seeds",
            "restore dynamicRefreshSources(true)",
        ),
        "go-redis" => finding.fix("go-redis: reload less often", &["redis.ClusterOptions{ClusterStateReloadInterval: 60 * time.Second}"], "a moved slot costs one redirect more", "restore the interval"),
        _ => finding.fix(
            "In the client: refresh on MOVED, ASK and reconnects in place of a short timer; ask one node; add jitter",
            &["Lettuce: dynamicRefreshSources(false)", "Jedis: topologyRefreshPeriod off", "go-redis: ClusterStateReloadInterval >= 60 s"],
            "a moved slot costs one redirect more",
            "restore the client's refresh settings",
        ),
    };
    if old {
        finding = finding.fix(
            &format!("Upgrade {}: since 6.2 CLUSTER NODES costs 10 to 40 times less", node.version_text()),
            &["replicas first, then CLUSTER FAILOVER on each, then the old masters"],
            "an upgrade's usual risks",
            "fail over back to a node of the old version",
        );
    }
    finding.into()
}

/// Who sends them: names and libraries of CLIENT LIST, or of the slow log where that was too dear to ask.
fn who(node: &Node) -> Vec<String> {
    let mut found = Vec::new();
    for group in node.clients.value().map_or(&[][..], |c| &c.groups) {
        let asks: u64 = group.commands.iter().filter(|(c, _)| c.starts_with("cluster")).map(|(_, n)| n).sum();
        let named = group.name.to_lowercase().contains("topologyrefresh");
        if asks > 0 || named {
            let label = [group.name.as_str(), group.library.as_str()].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" / ");
            let label = if label.is_empty() { "unnamed clients".into() } else { label };
            found.push(format!("{label} ({} of the connections seen, from {})", group.count, group.host));
        }
    }
    if found.is_empty() {
        let mut names: Vec<String> = node
            .slowlog
            .value()
            .into_iter()
            .flatten()
            .filter(|e| e.command.starts_with("CLUSTER") && !e.client_name.is_empty() && e.client_name != "unslow")
            .map(|e| format!("{} (slow log)", e.client_name))
            .collect();
        names.sort();
        names.dedup();
        found = names;
    }
    found.truncate(3);
    found
}

fn library(who: &[String]) -> &'static str {
    let all = who.join(" ").to_lowercase();
    ["lettuce", "jedis", "go-redis", "redis-py", "node-redis"].into_iter().find(|l| all.contains(l)).unwrap_or("")
}
