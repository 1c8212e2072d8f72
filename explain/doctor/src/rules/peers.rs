//! What servers say about each other, and so about one that does not answer us. Not a rule: several rules need this.
//!
//! If a server does not answer us, that says only that the server or the path to it is at fault. What its peers say
//! tells the two apart.

use std::collections::BTreeSet;

use unslow_facts::{Facts, Lack, Node, SentinelGroup, SentinelNode};
use unslow_topology::{ClusterNode, ClusterView, DeploymentKind, Role, SLOTS, join_host_port};

use crate::Affected;
use crate::measure::{USED_OPS, sentinel_greetings};

/// A ping of the cluster bus that has waited for longer than this is not on its way back.
const PING_OVERDUE_MS: u64 = 1000;

/// How one server stands with another, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Says {
    /// It is connected to it.
    Connected,
    /// Its link is broken, or a ping waits; its failure detector has not run out yet.
    Lost,
    /// Its failure detector has run out: `fail?`, `s_down`.
    Suspected,
    /// Enough of them agree: `fail`, `o_down`.
    Failed,
}

/// What its peers say together of a server that does not answer us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// They have lost it too.
    Lost {
        /// How many of them.
        by: usize,
        /// Of how many that could be asked.
        of: usize,
        /// The strongest word among them.
        worst: Says,
    },
    /// Most of those that could be asked are connected to it.
    FromHere {
        /// How many are connected.
        by: usize,
        /// Of how many that could be asked.
        of: usize,
    },
    /// None could be asked.
    Unheard,
}

/// What is lost with a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Stake {
    /// All keys there are.
    All,
    /// The slots of a cluster's master.
    Slots(usize),
    /// One of this many masters: of a cluster whose slots could not be read, or of several groups that Sentinels watch.
    OneOf(usize),
    /// A copy, while its master answers or not.
    Copy {
        /// The master it follows.
        of: Option<String>,
        /// Other copies of the same data that are there, whether they let us look or not.
        left: usize,
    },
    /// What it served is served by another server by now.
    Replaced {
        /// That server.
        by: String,
        /// Its copies that are there.
        left: usize,
    },
    /// It is a master without slots.
    Nothing,
}

impl Stake {
    /// Share of the key space that only this server serves.
    pub fn share(&self) -> f64 {
        match self {
            Stake::All => 1.0,
            Stake::Slots(n) => *n as f64 / f64::from(SLOTS),
            Stake::OneOf(masters) => 1.0 / (*masters).max(1) as f64,
            Stake::Copy { .. } | Stake::Replaced { .. } | Stake::Nothing => 0.0,
        }
    }
}

/// Whether it answered us until the end.
pub fn answers(node: &Node) -> bool {
    node.unreachable.is_none()
}

/// Whether it answered us with a refusal, of our login or of anything else: it is there.
pub fn refuses(node: &Node) -> bool {
    !answers(node) && matches!(node.away, Some(Lack::Rights | Lack::Other))
}

/// Whether a master can be given another copy or lose one without risk to its data: it answers us, and no server
/// suspects it.
pub fn is_well(facts: &Facts, row: &ClusterNode) -> bool {
    let Some(node) = node_of(facts, row) else { return false };
    let doubted = words(facts, node).iter().any(|(_, says)| *says >= Says::Suspected);
    row.has_address() && !row.is_down() && answers(node) && !doubted
}

/// The address without the port and without brackets; a unix socket is its own host, `local`.
pub fn host_of(address: &str) -> &str {
    if address.starts_with("unix:") {
        return "local";
    }
    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_start_matches('[').trim_end_matches(']')
}

/// Whether other machines can never reach this host name or address.
pub fn is_loopback(host: &str) -> bool {
    host.starts_with("127.") || matches!(host, "localhost" | "local" | "::1")
}

/// The command-line tool that comes with the server, for what only the tool can do (`--cluster`).
pub fn tool(node: &Node) -> &'static str {
    match node.info().map(|i| i.product()) {
        Some("Valkey") => "valkey-cli",
        _ => "redis-cli",
    }
}

/// The cluster as its nodes describe it together, and one of them that described it. Those that answered come first.
pub fn cluster(facts: &Facts) -> Option<(&Node, ClusterView)> {
    let mut nodes: Vec<&Node> = facts.nodes.iter().filter(|n| n.cluster.value().is_some()).collect();
    nodes.sort_by_key(|n| !answers(n));
    let views: Vec<ClusterView> = nodes.iter().filter_map(|n| own_view(n)).collect();
    Some((*nodes.first()?, ClusterView::merge(&views)))
}

/// What it says of the cluster, with its own address where it has not heard that yet.
fn own_view(node: &Node) -> Option<ClusterView> {
    let mut view = node.cluster.value()?.clone();
    if let Some(me) = view.nodes.iter_mut().find(|n| n.is("myself") && n.host().is_empty()) {
        me.address = node.address.clone();
    }
    Some(view)
}

/// The node's line.
pub fn row<'a>(view: &'a ClusterView, node: &Node) -> Option<&'a ClusterNode> {
    let by_id = node.node_id.as_deref().and_then(|id| view.by_id(id));
    by_id.or_else(|| view.nodes.iter().find(|r| r.address == node.address))
}

/// The facts of a line's node.
pub fn node_of<'a>(facts: &'a Facts, row: &ClusterNode) -> Option<&'a Node> {
    let by_id = facts.nodes.iter().find(|n| n.node_id.as_deref() == Some(&row.id));
    by_id.or_else(|| facts.node(&row.address))
}

/// Unix time in ms at which the nodes were asked for their view, by our clock.
pub fn asked_at_ms(node: &Node) -> u64 {
    match &node.cluster {
        unslow_facts::Seen::Yes { at_ms, .. } => *at_ms,
        unslow_facts::Seen::No(_) => node.at_ms(),
    }
}

/// When a server that is silent now was last heard by anyone, unix time in ms: by us in the window, by its peers in the
/// cluster, its replicas, its Sentinels. What keeps it silent began then, give or take the time between two of their
/// questions.
pub fn silent_since_ms(facts: &Facts, node: &Node) -> Option<u64> {
    let by_us = node.first.as_ref().map(|first| {
        let answered = node.pings.last().map_or(0, |(at_ms, us)| u64::from(*at_ms) + u64::from(*us) / 1000);
        first.at_ms + answered
    });
    let of_it = |r: &&Node| answers(r) && master_by_info(r).as_deref() == Some(&node.address);
    let by_replicas = facts.nodes.iter().filter(of_it).filter_map(|r| last_io_ms(r, node.silent_ms.is_some())).max();
    let by_sentinels = watchers(facts, &node.address).into_iter().filter_map(|(_, g)| g.answered_at_ms).max();
    let now_ms = facts.live().map(Node::at_ms).max().unwrap_or(facts.at_ms);
    let heard = [by_us, by_replicas, by_sentinels, last_heard_ms(facts, node)];
    heard.into_iter().flatten().max().map(|at_ms| at_ms.min(now_ms))
}

/// `repl-timeout`, by default.
const REPL_TIMEOUT_S: f64 = 60.0;

/// When a replica last heard from its master. A master that hangs closes no connection: its replicas do, after
/// repl-timeout.
fn last_io_ms(replica: &Node, hangs: bool) -> Option<u64> {
    let seconds = |field: &str| replica.number(field).filter(|s| (0.0..1e8).contains(s));
    let ago_s = seconds("master_last_io_seconds_ago").or_else(|| {
        let patience_s = replica.setting_number("repl-timeout").unwrap_or(REPL_TIMEOUT_S);
        Some(seconds("master_link_down_since_seconds")? + if hangs { patience_s } else { 0.0 })
    })?;
    Some(replica.at_ms().saturating_sub((ago_s * 1000.0) as u64))
}

/// More commands a second than replicas, Sentinels and health checks send a server by themselves.
const HOUSEKEEPING_OPS: f64 = 10.0;

/// Whether an application was seen at any server in this window. Where none was, no request is known to be lost.
pub fn affected(facts: &Facts) -> Affected {
    let asks = |n: &Node| n.application_ops().is_some_and(|ops| ops - sentinel_greetings(facts, n) >= USED_OPS);
    // Who is refused is there all the same.
    let is_refused = |n: &Node| n.errors().values().sum::<u64>() as f64 >= USED_OPS * n.window_s.max(1.0);
    // Of one that stopped answering within the window only its rates until then are known.
    let asked = |n: &Node| n.last.is_none() && n.series.iter().any(|p| p.commands_per_s >= HOUSEKEEPING_OPS);
    let is_seen = facts.nodes.iter().any(|n| asks(n) || is_refused(n) || asked(n));
    if is_seen { Affected::Requests } else { Affected::NextClient }
}

/// What is added to a price that no client was seen to pay.
pub fn no_client_words(facts: &Facts) -> String {
    match affected(facts) {
        Affected::Requests => String::new(),
        Affected::NextClient => format!(" ({}; this is what the next client would hit)", unseen_words(facts)),
    }
}

/// What no application that was seen means: where no server showed what is asked of it, nothing was measured.
pub fn unseen_words(facts: &Facts) -> &'static str {
    if facts.nodes.iter().any(|n| n.application_ops().is_some() || !n.series.is_empty()) {
        "no application traffic was seen in this window"
    } else {
        "whether applications use it could not be seen from here"
    }
}

/// When the last of its peers heard from it, unix time in ms by their clocks.
pub fn last_heard_ms(facts: &Facts, node: &Node) -> Option<u64> {
    let rows = facts.nodes.iter().filter(|n| answers(n)).filter_map(|n| row(n.cluster.value()?, node));
    rows.map(|r| r.pong_received_ms).filter(|ms| *ms > 0).max()
}

/// The Sentinels that watch this master, with what they say of it.
pub fn watchers<'a>(facts: &'a Facts, master: &str) -> Vec<(&'a SentinelNode, &'a SentinelGroup)> {
    let groups = facts.sentinels.iter().filter(|s| s.unreachable.is_none());
    groups.flat_map(|s| s.groups.iter().map(move |g| (s, g))).filter(|(_, g)| g.master == master).collect()
}

/// A Sentinel's flags of a master, as `master,s_down,o_down`.
pub fn of_flags(flags: &str) -> Says {
    let has = |flag: &str| flags.split(',').any(|f| f == flag);
    if has("o_down") {
        Says::Failed
    } else if has("s_down") {
        Says::Suspected
    } else if has("disconnected") {
        Says::Lost
    } else {
        Says::Connected
    }
}

/// What each of the others that answered says of this node, with its address.
pub fn words(facts: &Facts, node: &Node) -> Vec<(String, Says)> {
    let mut all = Vec::new();
    for peer in facts.nodes.iter().filter(|p| answers(p) && p.address != node.address) {
        let said = [of_cluster(peer, node), of_replication(peer, node)];
        if let Some(worst) = said.into_iter().flatten().max() {
            all.push((peer.address.clone(), worst));
        }
    }
    all.extend(watchers(facts, &node.address).into_iter().map(|(s, g)| (s.address.clone(), of_flags(&g.flags))));
    all
}

fn of_cluster(peer: &Node, node: &Node) -> Option<Says> {
    let view = peer.cluster.value()?;
    let row = row(view, node)?;
    // The peer's own clock, as far as its view shows it.
    let now = view.nodes.iter().map(|r| r.pong_received_ms.max(r.ping_sent_ms)).max().unwrap_or(0);
    let waits = row.ping_sent_ms > 0 && now.saturating_sub(row.ping_sent_ms) > PING_OVERDUE_MS;
    Some(if row.is("fail") {
        Says::Failed
    } else if row.is("fail?") {
        Says::Suspected
    } else if !row.connected || waits {
        Says::Lost
    } else {
        Says::Connected
    })
}

/// By the replication link between the two, in either direction.
fn of_replication(peer: &Node, node: &Node) -> Option<Says> {
    let info = &peer.last.as_ref()?.info;
    if master_by_info(peer).as_deref() == Some(&node.address) {
        return Some(if info.get("master_link_status") == Some("up") { Says::Connected } else { Says::Lost });
    }
    // A master lists its replicas for as long as their links stand.
    let follows = node.master.as_deref() == Some(&peer.address) && info.role() == Some("master");
    let same = |ip: &str, port: u16| host_of(&node.address) == ip && node.address.ends_with(&format!(":{port}"));
    let listed = info.replicas().iter().any(|(ip, port, ..)| same(ip, *port));
    follows.then_some(if listed { Says::Connected } else { Says::Lost })
}

/// The master it follows by its own last word, else by discovery's.
pub fn master_by_info(node: &Node) -> Option<String> {
    let info = node.info();
    if info.and_then(|i| i.role()) == Some("master") {
        return None;
    }
    let said = info.and_then(|i| Some((i.get("master_host")?, i.get("master_port")?)));
    match said {
        // Discovery's spelling where both mean the same: IPv6 has two.
        Some((host, port)) => match &node.master {
            Some(master) if host_of(master) == host && master.ends_with(&format!(":{port}")) => Some(master.clone()),
            _ => Some(join_host_port(host, port)),
        },
        None => node.master.clone(),
    }
}

/// What its peers say together. One that calls it failed speaks for the majority that agreed.
pub fn standing(facts: &Facts, node: &Node) -> Standing {
    let words = words(facts, node);
    let lost = words.iter().filter(|(_, says)| *says != Says::Connected).count();
    let worst = words.iter().map(|(_, says)| *says).max();
    match worst {
        None => Standing::Unheard,
        Some(worst) if worst == Says::Failed || 2 * lost >= words.len() => {
            Standing::Lost { by: lost, of: words.len(), worst }
        }
        Some(_) => Standing::FromHere { by: words.len() - lost, of: words.len() },
    }
}

/// Servers that answer and follow this one, by the cluster's view or by their own word; what took its place by now
/// included.
pub fn replicas<'a>(facts: &'a Facts, view: Option<&ClusterView>, node: &Node) -> Vec<&'a Node> {
    followers(facts, view, node).into_iter().filter(|n| answers(n)).collect()
}

/// The same that are there and refuse us: how they are is not known.
pub fn refusing_replicas<'a>(facts: &'a Facts, view: Option<&ClusterView>, node: &Node) -> Vec<&'a Node> {
    followers(facts, view, node).into_iter().filter(|n| refuses(n)).collect()
}

/// Servers that follow this one, whether they answer or not.
fn followers<'a>(facts: &'a Facts, view: Option<&ClusterView>, node: &Node) -> Vec<&'a Node> {
    let id = view.and_then(|v| row(v, node)).map(|r| r.id.clone());
    let follows = |n: &&Node| {
        let by_view = view.and_then(|v| row(v, n)).and_then(|r| r.master_id.clone());
        (by_view.is_some() && by_view == id)
            || n.master.as_deref() == Some(&node.address)
            || master_by_info(n).as_deref() == Some(&node.address)
    };
    facts.nodes.iter().filter(|n| n.address != node.address).filter(follows).collect()
}

/// The replica that has become master in the place of this one while we looked.
fn successor<'a>(facts: &'a Facts, view: Option<&ClusterView>, node: &Node) -> Option<&'a Node> {
    let is_master = |n: &&Node| n.last.as_ref().and_then(|s| s.info.role()) == Some("master");
    replicas(facts, view, node).into_iter().find(is_master)
}

/// What is lost with this node.
pub fn stake(facts: &Facts, view: Option<&ClusterView>, node: &Node) -> Stake {
    if let Some(by) = successor(facts, view, node) {
        let left = copies_of(facts, view, by).count();
        return Stake::Replaced { by: by.address.clone(), left };
    }
    if facts.nodes.len() == 1 && facts.kind != DeploymentKind::Cluster {
        return Stake::All;
    }
    match facts.kind {
        DeploymentKind::Cluster => in_cluster(facts, view, node),
        DeploymentKind::Standalone => Stake::All,
        DeploymentKind::Sentinel | DeploymentKind::MasterReplica => in_group(facts, node),
    }
}

fn in_cluster(facts: &Facts, view: Option<&ClusterView>, node: &Node) -> Stake {
    let Some(row) = view.and_then(|v| row(v, node)) else {
        let masters = facts.nodes.iter().filter(|n| n.role != Role::Replica).count();
        return if node.role == Role::Replica {
            copy(facts, view, node, node.master.clone())
        } else {
            Stake::OneOf(masters)
        };
    };
    let master = row.master_id.as_deref().and_then(|id| view?.by_id(id)).map(|m| m.address.clone());
    match (row.is("master"), row.slots.len()) {
        (true, 0) => Stake::Nothing,
        (true, n) => Stake::Slots(n),
        (false, _) => copy(facts, view, node, master),
    }
}

/// Whether no server was measured, and none answers.
pub fn none_measured(facts: &Facts) -> bool {
    facts.nodes.iter().all(|n| !answers(n) && n.info().is_none())
}

/// Of a master with replicas, with Sentinels or without.
fn in_group(facts: &Facts, node: &Node) -> Stake {
    let watched = !watchers(facts, &node.address).is_empty();
    // Replicas of replicas follow a server that is no master.
    let followed = facts.nodes.iter().any(|n| answers(n) && master_by_info(n).as_deref() == Some(&node.address));
    let other = facts.nodes.iter().any(|n| answers(n) && n.info().and_then(|i| i.role()) == Some("master"));
    if watched {
        let groups: BTreeSet<&str> =
            facts.sentinels.iter().flat_map(|s| &s.groups).map(|g| g.service.as_str()).collect();
        return if groups.len() > 1 { Stake::OneOf(groups.len()) } else { Stake::All };
    }
    // What no server has told us anything of is no copy.
    let unknown = none_measured(facts) && (node.role != Role::Replica || node.master.is_none());
    if unknown || (!other && (followed || node.is_master())) {
        return Stake::All;
    }
    copy(facts, None, node, node.master.clone())
}

/// Copies of a server's data that are there.
fn copies_of<'a>(facts: &'a Facts, view: Option<&ClusterView>, node: &Node) -> impl Iterator<Item = &'a Node> {
    followers(facts, view, node).into_iter().filter(|n| answers(n) || refuses(n))
}

fn copy(facts: &Facts, view: Option<&ClusterView>, node: &Node, of: Option<String>) -> Stake {
    let master = of.as_deref().and_then(|a| facts.node(a));
    let others = |m| copies_of(facts, view, m).filter(|r| r.address != node.address).count();
    let left = master.map_or(0, others);
    Stake::Copy { of, left }
}
