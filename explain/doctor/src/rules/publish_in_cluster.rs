//! PUBLISH in a cluster goes to every node, whether it has subscribers or not.
//!
//! A node that receives PUBLISH forwards the message over the cluster bus to all others, including replicas, since any
//! of them may have subscribers. One message costs a cluster of n nodes n - 1 messages on the bus, each read by a main
//! thread. More shards make it more expensive, not cheaper. Sharded channels (SPUBLISH, 7.0+) stay within the shard
//! that owns the channel's slot.
//!
//! Seen when: PUBLISH causes over 1,000 messages a second on the bus, and on at least one node the CPU time that
//! commands, reads and event loop iterations do not explain, counted at no more than 10 us a message, is over 1 % of a
//! core.
//!
//! Not to be taken for: SPUBLISH; keyspace notifications, which do not leave their node; gossip, which grows with the
//! number of nodes and not with the messages.
//!
//! How to confirm: `CLUSTER INFO` twice on each node: cluster_stats_messages_publish_sent and _received;
//! `INFO commandstats`: cmdstat_publish; `PUBSUB CHANNELS` on each node.
//!
//! What to do: use sharded channels; a separate server for messages alongside the cluster; fewer, larger messages.
//! Sources: INFO commandstats and cpu, CLUSTER NODES and INFO; cluster.c (clusterPropagatePublish); Redis documentation
//! of SPUBLISH.

use super::prelude::*;
use super::{callers, peers};

pub const TITLE: &str = "PUBLISH in a cluster";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Messages a second on the bus of the whole cluster; of a core.
const LEAST: f64 = 1000.0;
const CORE: f64 = 0.01;
/// No more than this is put down to a message of the bus, written or read, whatever else a node did outside commands,
/// in us.
const MOST_US: f64 = 10.0;

/// What one node has of it.
struct Share<'a> {
    node: &'a Node,
    /// PUBLISH that it was sent, a second.
    published: f64,
    /// Messages of the bus that it writes and reads for PUBLISH, a second.
    messages: f64,
    /// Of a core, at most.
    core: f64,
}

/// By node, the one that pays most first; the cluster has this many nodes.
fn shares(facts: &Facts, members: f64) -> Vec<Share<'_>> {
    let all: f64 = facts.live().map(published).sum();
    by_worst(facts.live().map(|node| share(node, all, members)).collect(), |s: &Share| s.core)
}

/// PUBLISH that a node was sent, a second.
fn published(node: &Node) -> f64 {
    spent(node, &["publish"]).rate
}

fn share(node: &Node, all: f64, members: f64) -> Share<'_> {
    let published = published(node);
    let messages = (published * (members - 1.0) + (all - published)).max(0.0);
    let left = outside_us(node).map_or(0.0, |us| (us - traffic_us(node)) / 1e6 / node.window_s.max(0.001));
    Share { node, published, messages, core: left.clamp(0.0, messages * MOST_US / 1e6) }
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "PUBLISH in the cluster";
    if facts.kind != DeploymentKind::Cluster {
        return Verdict::NotHere;
    }
    let Some((_, view)) = peers::cluster(facts) else {
        let gap = facts.nodes.iter().find_map(|n| n.cluster.refused()).map(|gap| gap.of(WHAT));
        return Verdict::Unknown(gap.unwrap_or_else(|| {
            Gap::new(
                Lack::Other,
                format!(
                    "{WHAT}: no node showed its \
            view"
                ),
                "",
            )
        }));
    };
    let members = view.nodes.iter().filter(|row| row.has_address() && !row.is_down()).count() as f64;
    let all = shares(facts, members);
    let published: f64 = all.iter().map(|s| s.published).sum();
    let on_the_bus = published * (members - 1.0).max(0.0);
    match all.first() {
        Some(worst) if on_the_bus > LEAST && worst.core > CORE => found(facts, &all, members).into(),
        _ => {
            let text = format!(
                "{WHAT}: {} a second, which makes {} messages on the bus between {members:.0} nodes",
                count(published),
                count(on_the_bus)
            );
            absent_by_commandstats(facts, WHAT, text)
        }
    }
}

/// Of shares that are not empty.
fn found(facts: &Facts, all: &[Share<'_>], members: f64) -> Finding {
    let worst = &all[0];
    let (node, core) = (worst.node, worst.core);
    let published: f64 = all.iter().map(|s| s.published).sum();
    let on_the_bus = published * (members - 1.0);
    let us = core / worst.messages.max(0.001) * 1e6;
    let mut finding = Finding::new(format!(
        "{} PUBLISH a second make {} messages on the cluster's bus: each goes to all {members:.0} nodes",
        count(published),
        count(on_the_bus)
    ))
    .on(all.iter().filter(|s| s.core > CORE).map(|s| s.node.address.as_str()))
    .core(
        core,
        format!("about {} of a core on {}, and part of a core on every other node", percent(core), node.address),
    )
    .gain(
        format!("with channels that stay in one shard, up to {} of a core is freed on {}", percent(core), node.address),
        format!("{:.0} messages/s on this node's bus x {us:.1} us = {core:.4} cores", worst.messages),
    )
    .likely(
        "PUBLISH was counted, and a cluster always sends it to every node; the CPU is what nothing else explains, \
         capped at the most that a message costs",
    );
    let senders = by_worst(all.iter().filter(|s| s.published > 0.0).collect(), |s| s.published);
    for sender in senders.iter().take(2) {
        let told = format!("PUBLISH: {} calls a second", count(sender.published));
        finding = finding.saw(sender.node, "INFO commandstats", told);
        finding = callers::shown(finding, sender.node, &["publish"]);
    }
    if let (Some(outside), traffic) = (outside_us(node), traffic_us(node)) {
        let told = format!(
            "{} outside commands, of which clients' traffic explains \
                            {}",
            time_us(outside),
            time_us(traffic)
        );
        finding = finding.saw(node, "INFO cpu", told);
    }
    if let Some(sent) = node.cluster_info.value().and_then(|info| info.get("cluster_stats_messages_publish_sent")) {
        finding = finding.saw(
            node,
            "CLUSTER INFO",
            format!(
                "cluster_stats_messages_publish_sent:{sent} since its \
            start"
            ),
        );
    }
    let subscribed = facts
        .live()
        .filter(|n| n.number("pubsub_channels").unwrap_or(0.0) + n.number("pubsub_patterns").unwrap_or(0.0) > 0.0);
    let told = format!(
        "{} of {} nodes have a channel or a pattern with \
                        subscribers",
        subscribed.count(),
        facts.live().count()
    );
    finding = finding.saw(node, "INFO stats", told);
    mend(finding, facts, node)
}

fn mend(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let sharded = facts.live().all(|n| n.level() >= (7, 0));
    let finding = match sharded {
        true => finding.fix(
            "Use sharded channels: SPUBLISH and SSUBSCRIBE stay within the shard that owns the channel's slot",
            &["SSUBSCRIBE channel   (subscribers first, at the channel's shard)", "SPUBLISH channel message"],
            "SPUBLISH does not reach SUBSCRIBE, and there are no patterns: change the subscribers first, and have them \
             listen to both until all publishers have changed",
            "",
        ),
        false => finding.fix(
            "Sharded channels (SPUBLISH) are available from 7.0 on: upgrade, node by node",
            &[&cli(&node.address, "INFO server   (redis_version)")],
            "",
            "",
        ),
    };
    finding.fix(
        "Or use a separate server for messages, alongside the cluster; or combine several messages into one",
        &["one Redis without cluster mode for PUBLISH and SUBSCRIBE alone"],
        "one more server to run; messages are lost while it is down, as they are while a subscriber is disconnected",
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use unslow_facts::{Sample, Seen};
    use unslow_topology::{ClusterView, Info, Role};

    const VIEW: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 10.0.0.1:6379@16379 myself,master - 0 0 1 connected \
                        0-8191\n\
                        bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 10.0.0.2:6379@16379 master - 0 0 2 connected \
                        8192-16383\n\
                        cccccccccccccccccccccccccccccccccccccccc 10.0.0.3:6379@16379 slave \
                        aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 0 0 1 connected\n";

    /// A cluster of three nodes after ten seconds, the first of which was sent PUBLISH and used so many seconds of CPU.
    fn facts(publish: u64, cpu_s: f64) -> Facts {
        let node = |address: &str, calls: u64, cpu_s: f64| {
            let counters = "redis_version:7.2.4\r\nrole:master\r\ntotal_commands_processed:0\r\nused_cpu_user:0\r\n\
                            used_cpu_sys:0\r\n\
                            cmdstat_get:calls=1,usec=1,usec_per_call=1.00\r\n";
            let after = format!(
                "total_commands_processed:{calls}\r\nused_cpu_user:{cpu_s}\r\n\
                 cmdstat_publish:calls={calls},usec={calls},usec_per_call=1.00\r\n"
            );
            let first = Info::parse(counters);
            let mut last = first.clone();
            last.0.extend(Info::parse(&after).0);
            let mut node = Node::new(address, Role::Master);
            node.first = Some(Sample { at_ms: 0, info: first });
            node.last = Some(Sample { at_ms: 10_000, info: last });
            node.window_s = 10.0;
            node
        };
        let mut first = node("10.0.0.1:6379", publish, cpu_s);
        let view = ClusterView::parse(VIEW).unwrap();
        first.cluster = Seen::yes(view, "CLUSTER NODES", 0);
        let nodes = vec![first, node("10.0.0.2:6379", 0, 0.05)];
        Facts { kind: DeploymentKind::Cluster, nodes, ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    #[test]
    fn each_message_is_paid_on_every_node() {
        let Verdict::Present(found) = check(&facts(50_000, 1.0)) else { panic!("not found") };
        assert!(found.title.contains("5,000 PUBLISH a second make 10,000 messages"), "{}", found.title);
        // One second of CPU, less 50 ms inside PUBLISH and the server's own clock: 9 % of a core, within 10 us a
        // message.
        assert!((0.08..0.1).contains(&found.impact.value), "{}", found.impact.value);
        assert!(found.remedies[0].commands.iter().any(|c| c.starts_with("SPUBLISH")));
    }

    #[test]
    fn few_messages_cheap_ones_and_other_deployments_are_left_alone() {
        assert!(matches!(check(&facts(1000, 1.0)), Verdict::Absent(_)), "200 a second on the bus");
        assert!(matches!(check(&facts(50_000, 0.1)), Verdict::Absent(_)), "nothing is left of the CPU");
        let alone = Facts { kind: DeploymentKind::Standalone, ..facts(50_000, 1.0) };
        assert!(matches!(check(&alone), Verdict::NotHere));
    }

    #[test]
    fn without_a_view_nothing_is_claimed() {
        let mut unseen = facts(50_000, 1.0);
        unseen.nodes[0].cluster = Seen::default();
        assert!(matches!(check(&unseen), Verdict::Unknown(_)));
    }
}
