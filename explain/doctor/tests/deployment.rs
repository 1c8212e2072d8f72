//! Rules about the deployment as a whole, over facts that are built by hand: who is away and what happens by itself,
//! roles that changed, settings, placement, and of what time a finding is.

mod common;

/// A1: servers that are away, and what happens by itself.
#[path = "deployment/away.rs"]
mod away;
/// B7, B8: elections and stalls, and of what time they are.
#[path = "deployment/past.rs"]
mod past;
/// B10, E23, E24: settings, placement, and remedies that fit the deployment.
#[path = "deployment/placed.rs"]
mod placed;
/// Sentinels.
#[path = "deployment/sentinels.rs"]
mod sentinels;
/// Votes, and replicas that may take over.
#[path = "deployment/votes.rs"]
mod votes;

use common::{NOW_MS, deployment, node, seen};
use unslow_doctor::{Currency, Finding};
use unslow_facts::{Facts, Node, Seen, SentinelGroup, SentinelNode};
use unslow_topology::{ClusterView, DeploymentKind, Info, Role};

/// What the others show of a node.
#[derive(Clone, Copy, PartialEq)]
enum Mark {
    Disconnected,
    Suspected,
    Failed,
    NoFailover,
}

const REFUSED: &str = "connection refused; nothing listens there. Is the server up, and the port right?";

fn address(n: usize) -> String {
    format!("10.0.0.{n}:6379")
}

fn id(n: usize) -> String {
    format!("{n:040x}")
}

/// CLUSTER NODES of node `me`: masters 1 to 3, and 4 to 6 follow them. `more` is added as it stands.
fn nodes_text(me: usize, marks: &[(usize, Mark)], more: &str) -> String {
    let slots = ["0-5460", "5461-10922", "10923-16383"];
    let line = |n: usize| {
        // A node does not suspect itself.
        let has = |mark: Mark| marks.contains(&(n, mark)) && (n != me || mark == Mark::NoFailover);
        let mut flags = if n == me { "myself,".to_string() } else { String::new() };
        flags += if n <= 3 { "master" } else { "slave" };
        for (mark, flag) in [(Mark::Suspected, ",fail?"), (Mark::Failed, ",fail"), (Mark::NoFailover, ",nofailover")] {
            flags += if has(mark) { flag } else { "" };
        }
        let away = [Mark::Disconnected, Mark::Suspected, Mark::Failed].into_iter().any(has);
        let master = if n <= 3 { "-".into() } else { id(n - 3) };
        let (link, pong) = if away { ("disconnected", NOW_MS - 12_000) } else { ("connected", NOW_MS - 10_000) };
        let epoch = if n <= 3 { n } else { n - 3 };
        format!(
            "{} {}@16379 {flags} {master} 0 {pong} {epoch} {link} {}\n",
            id(n),
            address(n),
            slots.get(n - 1).unwrap_or(&"")
        )
    };
    (1..=6).map(line).collect::<String>() + more
}

fn info_of(n: usize) -> String {
    let common =
        format!("redis_version:7.2.4\nrun_id:run{n}\nuptime_in_seconds:90000\nused_memory:1000000\nmaxmemory:0\n");
    if n <= 3 {
        let replica = format!("slave0:ip=10.0.0.{},port=6379,state=online,offset=100,lag=0\n", n + 3);
        return common + "role:master\nsecond_repl_offset:-1\nsync_full:1\nconnected_slaves:1\n" + &replica;
    }
    let link = format!("master_host:10.0.0.{}\nmaster_port:6379\nmaster_link_status:up\n", n - 3);
    common + "role:slave\nsecond_repl_offset:-1\nsync_full:0\nslave_priority:100\nslave_repl_offset:100\n" + &link
}

fn config(lines: &[(&str, &str)]) -> Seen<std::collections::BTreeMap<String, String>> {
    seen(lines.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
}

/// Six nodes of which every one shows the same marks of the others.
fn cluster(marks: &[(usize, Mark)]) -> Facts {
    let member = |n: usize| {
        let role = if n <= 3 { Role::Master } else { Role::Replica };
        let mut node = node(&address(n), role, &info_of(n), "");
        node.node_id = Some(id(n));
        node.master = (n > 3).then(|| address(n - 3));
        node.cluster = seen(ClusterView::parse(&nodes_text(n, marks, "")).unwrap());
        node.cluster_info =
            seen([("cluster_state", "ok"), ("cluster_known_nodes", "6")].map(|(k, v)| (k.into(), v.into())).into());
        node.config =
            config(&[("cluster-node-timeout", "15000"), ("cluster-require-full-coverage", "yes"), ("maxmemory", "0")]);
        node
    };
    deployment(DeploymentKind::Cluster, (1..=6).map(member).collect())
}

/// Makes a node one that refuses connections.
fn away(mut facts: Facts, n: usize) -> Facts {
    let node = &mut facts.nodes[n - 1];
    let gone =
        Node { unreachable: Some(format!("{}: {REFUSED}", node.address)), ..Node::new(&node.address, node.role) };
    *node = Node { master: node.master.take(), node_id: node.node_id.take(), ..gone };
    facts
}

fn hung(mut facts: Facts, n: usize) -> Facts {
    facts = away(facts, n);
    facts.nodes[n - 1].silent_ms = Some(3000);
    facts
}

fn set(facts: &mut Facts, n: usize, text: &str) {
    let node = &mut facts.nodes[n - 1];
    for sample in [&mut node.first, &mut node.last].into_iter().flatten() {
        sample.info.0.extend(Info::parse(text).0);
    }
}

/// The same at the end of the window only.
fn set_last(facts: &mut Facts, n: usize, text: &str) {
    facts.nodes[n - 1].last.as_mut().unwrap().info.0.extend(Info::parse(text).0);
}

fn commands(finding: &Finding) -> String {
    finding.remedies.iter().flat_map(|r| &r.commands).cloned().collect::<Vec<_>>().join("\n")
}

fn share(finding: &Finding) -> f64 {
    assert_eq!(finding.impact.currency, Currency::Availability, "{finding:?}");
    finding.impact.value / 86400.0
}

fn sentinel(n: usize, flags: &str) -> SentinelNode {
    let group = SentinelGroup {
        service: "mymaster".into(),
        master: address(1),
        flags: flags.into(),
        quorum: 2,
        other_sentinels: 2,
        down_after_ms: 5000,
        failover_timeout_ms: 180_000,
        epoch: 0,
        ckquorum: "OK 3 usable Sentinels. Quorum and failover authorization can be reached".into(),
        answered_at_ms: None,
        others: None,
        replicas: None,
    };
    SentinelNode {
        address: format!("10.0.0.{n}:26379"),
        unreachable: None,
        version: String::new(),
        tilt: None,
        groups: vec![group],
    }
}

/// A master with one replica and three Sentinels, with these flags of the master.
fn watched(flags: [&str; 3]) -> Facts {
    let master = node(&address(1), Role::Master, &info_of(1), "");
    let mut replica = node(&address(4), Role::Replica, &info_of(4), "");
    replica.master = Some(address(1));
    let mut facts = deployment(DeploymentKind::Sentinel, vec![master, replica]);
    facts.sentinels = flags.iter().enumerate().map(|(i, flags)| sentinel(i + 1, flags)).collect();
    facts
}
