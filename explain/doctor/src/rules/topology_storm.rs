//! Clients ask for the topology so often that answering them eats up the servers.
//!
//! Cluster clients keep a map of slots. Many refresh it on a timer: each client, from every node, over a new connection
//! each time. CLUSTER NODES before 6.2 walks all 16,384 slots for every node: 0.4 ms at 30 nodes, 6 ms at 400 (measured
//! on 5.0.14; 0.03 and 0.17 ms on 7.2.6). So the cost is clients x nodes x cluster size, and a cluster gets slower as
//! it grows.
//!
//! Seen when: CLUSTER NODES/SLOTS/SHARDS take over 2 % of a core on a node, or over 1 ms a call more than once a
//! second, or over 10 ms a call five times.
//!
//! Not to be taken for: a reshard in progress (then MOVED and ASK errors are high too); a server that stood still
//! inside a command: then they count for no more than the CPU time that other commands leave of what it
//! used.
//!
//! What to do: let each client ask one node, rarely, with jitter; upgrade servers older than 6.2.
//! Sources: redis #6165, PR #8182 (6.2), lettuce #240, #2468; commandstats, CLIENT LIST.

use super::prelude::*;

pub const TITLE: &str = "Topology storm";
pub const LEADS_TO: &[&str] =
    &["monitoring_storm", "connection_churn", "kernel_bound", "main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

/// Before 7.0 all sub-commands are lumped together.
const COMMANDS: &[&str] = &["=cluster", "cluster|nodes", "cluster|slots", "cluster|shards", "cluster|links"];

/// A refresh this often is enough for any client: what changes in between is learnt from redirects.
const ENOUGH_S: f64 = 60.0;

pub fn check(facts: &Facts) -> Verdict {
    let asked = |node| (node, held_on_cpu(facts, node, COMMANDS));
    let all: Vec<(&Node, Held)> = by_worst(facts.live().map(asked).collect(), |(_, h)| h.share());
    let asked = all.first().filter(|(_, h)| h.calls > 0.0);
    if asked.is_none() && facts.kind != DeploymentKind::Cluster {
        return Verdict::NotHere;
    }
    let text = match asked {
        None => "topology refreshes: none in the window apart from the doctor's own".into(),
        Some((node, h)) => format!(
            "topology refreshes: {} of a core at most, at {} calls a second of {} each",
            percent(h.share()),
            count(rate(node, h)),
            time_us(h.mean_us())
        ),
    };
    let rows: Vec<(&Node, Held)> = all.into_iter().filter(|(n, h)| is_storm(n, h)).collect();
    match rows.first() {
        None => absent_by_commandstats(facts, "topology refreshes", text),
        Some((node, worst)) => found(facts, &rows, node, worst).into(),
    }
}

fn rate(node: &Node, held: &Held) -> f64 {
    held.calls / node.window_s.max(0.001)
}

/// Whether this rule names the node.
pub(super) fn speaks(facts: &Facts, node: &Node) -> bool {
    is_storm(node, &held_on_cpu(facts, node, COMMANDS))
}

fn is_storm(node: &Node, h: &Held) -> bool {
    let mean = h.mean_us();
    h.share() > 0.02 || (mean > 1000.0 && rate(node, h) > 1.0) || (mean > 10_000.0 && h.calls >= 5.0)
}

fn found(facts: &Facts, rows: &[(&Node, Held)], node: &Node, worst: &Held) -> Finding {
    let who = who(node);
    let total: f64 = rows.iter().map(|(_, h)| h.share()).sum();
    let (us, asked, share) = (worst.mean_us(), rate(node, worst), worst.share());
    let mut finding = Finding::new(format!(
        "Topology refreshes take {} of a core on {}: {} calls/s at {} each{}",
        percent(share),
        node.address,
        count(asked),
        time_us(us),
        who.first().map_or(String::new(), |w| format!(", sent by {w}"))
    ))
    .on(rows.iter().map(|(n, _)| n.address.as_str()))
    .core(
        share,
        format!(
            "{} of a core on {}{}, {} of a core over the whole deployment",
            percent(share),
            node.address,
            worst.beside_words(node),
            percent(total)
        ),
    )
    .saw(
        node,
        "INFO commandstats",
        format!("CLUSTER: {} calls, {}", count(worst.calls), held(node, COMMANDS).figures()),
    );
    finding = super::monitoring_storm::sure(finding, worst);
    // What the clients that are connected now would need, each of them asking one node.
    let clients = node.number("connected_clients").unwrap_or(0.0);
    let needed = clients / facts.nodes.len().max(1) as f64 / ENOUGH_S;
    if clients > 0.0 && needed < asked {
        finding = finding.gain(
            format!(
                "one request per client every {ENOUGH_S:.0} s, to one node, takes {} of a core",
                percent(needed * us / 1e6)
            ),
            format!(
                "{clients:.0} clients / {} nodes / {ENOUGH_S:.0} s x {us:.0} us = {:.6} cores; now {asked:.1}/s x \
                 {us:.0} us = {share:.4}",
                facts.nodes.len(),
                needed * us / 1e6
            ),
        );
    }
    for who in &who {
        finding = finding.saw(node, "CLIENT LIST", who.clone());
    }
    let redirects: u64 = ["MOVED", "ASK"].iter().filter_map(|kind| node.errors().get(*kind).copied()).sum();
    if node.level() >= (6, 2) {
        finding = finding.not(format!("a reshard: {redirects} MOVED and ASK errors in the window"));
    }
    upgrade(in_the_client(finding, &who), node)
}

fn in_the_client(finding: Finding, who: &[String]) -> Finding {
    let later = "a moved slot costs one more redirect";
    match library(who) {
        "lettuce" => finding.fix(
            "Lettuce: ask one seed node, not all; refresh on demand and rarely by timer",
            &[concat!(
                "ClusterTopologyRefreshOptions.builder().dynamicRefreshSources(false)",
                ".enablePeriodicRefresh(Duration.ofMinutes(10)).enableAllAdaptiveRefreshTriggers().build()"
            )],
            "a client that has lost all its seeds no longer learns the topology from other nodes: list several seeds",
            "dynamicRefreshSources(true) and the old period",
        ),
        "go-redis" => finding.fix(
            "go-redis: reload less often",
            &["redis.ClusterOptions{ClusterStateReloadInterval: 60 * time.Second}"],
            later,
            "restore the old interval",
        ),
        "jedis" => finding.fix(
            "Jedis: use no timer, redirects renew the slots; keep one JedisCluster per process",
            &["new JedisCluster(...)   without topologyRefreshPeriod"],
            later,
            "restore the old topologyRefreshPeriod",
        ),
        "redis-py" => finding.fix(
            "redis-py: each new RedisCluster object asks for the topology: keep one per process",
            &["client = RedisCluster(...)   at the start of the process, not per request"],
            "",
            "",
        ),
        _ => finding.fix(
            "In the client: refresh on MOVED, ASK and reconnects instead of a short timer; ask one node; add jitter",
            &[
                "Lettuce: dynamicRefreshSources(false)",
                "Jedis: no topologyRefreshPeriod",
                "go-redis: ClusterStateReloadInterval of 60 s or more",
            ],
            later,
            "restore the client's old refresh settings",
        ),
    }
}

fn upgrade(finding: Finding, node: &Node) -> Finding {
    if node.level() >= (6, 2) || node.level() == (0, 0) {
        return finding;
    }
    finding.fix(
        &format!("Upgrade {}: since 6.2 CLUSTER NODES costs 10 to 40 times less", node.version_text()),
        &["replicas first, then CLUSTER FAILOVER on each, then the old masters"],
        "the usual risks of an upgrade",
        "fail back to a node of the old version",
    )
}

/// Who sends them: names and libraries of CLIENT LIST, or of the slow log where that was too expensive to ask.
fn who(node: &Node) -> Vec<String> {
    let mut found = Vec::new();
    for group in node.clients.value().map_or(&[][..], |c| &c.groups) {
        let asks: u64 = group.commands.iter().filter(|(c, _)| c.starts_with("cluster")).map(|(_, n)| n).sum();
        let named = group.name.to_lowercase().contains("topologyrefresh");
        if asks > 0 || named {
            let label = [group.name.as_str(), group.library.as_str()]
                .into_iter()
                .filter(|s| !s.is_empty())
                .collect::<Vec<_>>()
                .join(" / ");
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
