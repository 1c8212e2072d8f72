//! The state of the link between a replica and its master, and what keeps it down or ends its copies. Not a rule:
//! several rules need this. `DESIGN.md` has the table of what tells the causes apart.

use unslow_facts::{Facts, Node};
use unslow_topology::Info;

use super::peers;
use super::slow_subscriber::{Limit, output_limit};

/// A backlog that lasts less was overrun by a break of the link.
const SHORT_BACKLOG_S: f64 = 60.0;
/// A replica whose link is down tries again once a second; fewer connections than this are not its attempts.
const ATTEMPTS_PER_S: f64 = 0.3;
/// A copy that is under way brings something in this time.
const STILL_S: f64 = 10.0;

/// Full syncs that follow each other.
pub struct Looping {
    /// How many began in the window.
    pub full: f64,
    /// How many replicas there are.
    pub replicas: f64,
}

/// Why a copy does not last.
pub enum Cause<'a> {
    /// The output buffer limit of replicas ends the connection; counted by the server, or inferred from the write rate.
    Buffer {
        limit: Option<Limit>,
        counted: bool,
    },
    /// What a replica missed has left the backlog already.
    Backlog {
        lasts_s: f64,
    },
    /// A replica's process restarts.
    Restart(&'a Node),
    /// A replica comes back with a history that is not the master's.
    History,
    /// A copy takes longer than `repl-timeout`.
    Timeout {
        timeout_s: f64,
    },
    Unknown,
}

/// New replicas sync once each. A loop shows more syncs than replicas, or syncs that were tried in part first.
pub fn looping(facts: &Facts, node: &Node) -> Option<Looping> {
    let full = node.delta("sync_full")?;
    let replicas = node.info()?.replicas();
    let down = replicas.iter().any(|r| r.2 != "online") || node.number("connected_slaves") == Some(0.0);
    let known = replicas_of(facts, node).count().max(replicas.len()).max(1) as f64;
    let failed = node.delta("sync_partial_err").unwrap_or(0.0);
    // One is what a REPLICAOF costs.
    let again = full >= 2.0 && down && failed + cut(node) > 0.0;
    (full > known || again).then_some(Looping { full, replicas: known })
}

/// Connections that an output limit ended, of all clients together; none where replicas have no limit.
pub fn cut(node: &Node) -> f64 {
    let unlimited = output_limit(node, &["slave", "replica"]).is_some_and(|l| l.hard <= 0.0 && l.soft <= 0.0);
    if unlimited { 0.0 } else { node.delta("client_output_buffer_limit_disconnections").unwrap_or(0.0) }
}

/// The servers that follow this one, by discovery.
pub fn replicas_of<'a>(facts: &'a Facts, node: &'a Node) -> impl Iterator<Item = &'a Node> {
    facts.nodes.iter().filter(|r| r.master.as_deref() == Some(node.address.as_str()))
}

fn restarted(node: &Node) -> bool {
    let (Some(first), Some(last)) = (&node.first, &node.last) else { return false };
    let changed = first.info.get("run_id") != last.info.get("run_id");
    changed || last.info.number("uptime_in_seconds").is_some_and(|s| s + 1.0 < node.window_s)
}

/// What one attempt lasted at most, in seconds.
pub fn attempt_s(node: &Node, l: &Looping) -> f64 {
    node.window_s * l.replicas / l.full.max(1.0)
}

/// The limit as the server applies it: since 7.0 it is never below the backlog.
pub fn replica_limit(node: &Node) -> Option<Limit> {
    let limit = output_limit(node, &["slave", "replica"])?;
    let backlog = node.number("repl_backlog_size").filter(|_| node.level() >= (7, 0)).unwrap_or(0.0);
    Some(Limit { hard: if limit.hard > 0.0 { limit.hard.max(backlog) } else { 0.0 }, ..limit })
}

/// Whether what is written during one attempt reaches this share of what a replica's buffer may hold.
pub fn overflows(node: &Node, l: &Looping, share: f64) -> bool {
    let (rate, attempt) = (node.rate("master_repl_offset").unwrap_or(0.0), attempt_s(node, l));
    let limit = replica_limit(node);
    let (full_at, soft_at) = limit.map_or((0.0, 0.0), |l| (l.hard, if attempt >= l.soft_s { l.soft } else { 0.0 }));
    [full_at, soft_at].iter().any(|at| *at > 0.0 && rate * attempt >= share * at)
}

/// The most that waits for one replica, in bytes, as far as CLIENT LIST showed it.
pub fn waiting(node: &Node) -> f64 {
    let rows = node.clients.value().map_or(&[][..], |c| c.notable.as_slice());
    rows.iter().filter(|r| r.flags.contains('S')).map(|r| r.output_bytes as f64).fold(0.0, f64::max)
}

/// Subscribers that were cut off may have left by the end.
fn has_subscribers(node: &Node) -> bool {
    let any = |sample: &unslow_facts::Sample| {
        let fields = ["pubsub_channels", "pubsub_patterns", "pubsubshard_channels"];
        fields.iter().any(|f| sample.info.number(f).unwrap_or(0.0) > 0.0)
    };
    node.first.as_ref().is_some_and(any) || node.last.as_ref().is_some_and(any)
}

/// Whether a limit may have ended connections of others than replicas: of subscribers, or of ordinary clients where
/// these have a limit.
pub fn others_may_be_cut(node: &Node) -> bool {
    has_subscribers(node) || output_limit(node, &["normal"]).is_some_and(|l| l.hard > 0.0 || l.soft > 0.0)
}

/// What ends the copies.
pub fn cause<'a>(facts: &'a Facts, node: &'a Node, l: &Looping) -> Cause<'a> {
    let grown = |field| node.delta(field).unwrap_or(0.0);
    let rate = node.rate("master_repl_offset").unwrap_or(0.0);
    let limit = replica_limit(node);
    // Others may have been cut off: where that can be, the count alone does not say that it was a replica.
    if cut(node) > 0.0 && (overflows(node, l, 0.5) || waiting(node) > 0.0 || !others_may_be_cut(node)) {
        return Cause::Buffer { limit, counted: true };
    }
    if let Some(replica) = replicas_of(facts, node).find(|r| restarted(r)) {
        return Cause::Restart(replica);
    }
    // What is written during an attempt and does not fit the buffer ends it, whatever the backlog holds.
    if overflows(node, l, 1.0) {
        return Cause::Buffer { limit, counted: false };
    }
    if grown("sync_partial_err") > 0.0 {
        let lasts_s = node.number("repl_backlog_size").unwrap_or(0.0) / rate.max(1.0);
        return if rate > 0.0 && lasts_s < SHORT_BACKLOG_S { Cause::Backlog { lasts_s } } else { Cause::History };
    }
    // No attempt in part: the first copy is never finished. Its buffer holds what is written meanwhile.
    if overflows(node, l, 0.5) {
        return Cause::Buffer { limit, counted: false };
    }
    let attempt = attempt_s(node, l);
    match node.setting_number("repl-timeout") {
        Some(timeout_s) if (0.8 * timeout_s..3.0 * timeout_s).contains(&attempt) => Cause::Timeout { timeout_s },
        _ => Cause::Unknown,
    }
}

/// Whether the loop comes from the backlog, which `backlog_too_small` reports then.
pub fn is_by_backlog(facts: &Facts, node: &Node, l: &Looping) -> bool {
    matches!(cause(facts, node, l), Cause::Backlog { .. })
}

/// How long a copy of the data set takes, in seconds: the last save of it and its way over a wire of a gigabit.
pub fn copy_s(node: &Node) -> f64 {
    let save = node.number("rdb_last_bgsave_time_sec").unwrap_or(0.0).max(0.0);
    save + node.number("used_memory").unwrap_or(0.0) / 100e6
}

/// Why a link is down.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// The replica reads its own data set first.
    ReplicaLoads,
    /// Its master does not answer us either, which other rules tell.
    MasterAway,
    /// Its master was not asked: it is not among the servers that were found.
    MasterUnasked,
    /// A copy is on its way and moves.
    Copying,
    /// A copy has begun and nothing has come for this many seconds.
    CopyStands { silent_s: f64 },
    /// One copy after another, which `full_resync_loop` tells.
    Loops,
    /// The master refuses the replica's login or its rights.
    Login {
        /// `WRONGPASS`, `NOAUTH`, `NOPERM`, or `ERR` for an AUTH that failed.
        word: &'static str,
        /// How often in the window.
        times: u64,
        /// The commands of replication themselves were refused, which no other client sends.
        certain: bool,
    },
    /// The master is at maxclients; so many connections were refused.
    Full { refused: f64 },
    /// The master reads its data set.
    MasterLoads,
    /// The master is a replica itself, and its own link is down.
    MasterUnlinked,
    /// The master answers us, and no connection reaches it.
    NeverArrives,
    /// Connections reach the master, and none of this is so.
    Unknown,
}

/// A link that was down when the window began and when it ended.
pub struct Down<'a> {
    /// The replica.
    pub replica: &'a Node,
    /// Whom it wants to follow.
    pub master: String,
    /// What was seen of that one.
    pub of: Option<&'a Node>,
    /// For how long, in seconds; none where it was never up, or the server does not say.
    pub for_s: Option<f64>,
    /// What keeps it down.
    pub why: Why,
}

/// Whether the server is a replica that says how its link is.
pub fn shows_link(node: &Node) -> bool {
    !node.is_master() && node.info().is_some_and(|i| i.get("master_link_status").is_some())
}

/// The link of this replica, if it was down at both ends of the window.
pub fn down<'a>(facts: &'a Facts, replica: &'a Node) -> Option<Down<'a>> {
    let (first, last) = (replica.first.as_ref()?, replica.last.as_ref()?);
    let is_down = |info: &unslow_topology::Info| info.get("master_link_status") == Some("down");
    if replica.is_master() || !is_down(&first.info) || !is_down(&last.info) {
        return None;
    }
    let master = peers::master_by_info(replica)?;
    let of = facts.node(&master).or_else(|| facts.node(replica.master.as_deref()?));
    let for_s = replica.number("master_link_down_since_seconds").filter(|s| (0.0..1e8).contains(s));
    let why = why(facts, replica, of);
    Some(Down { replica, master, of, for_s, why })
}

fn why(facts: &Facts, replica: &Node, master: Option<&Node>) -> Why {
    if replica.number("loading").is_some_and(|n| n > 0.0) {
        return Why::ReplicaLoads;
    }
    let Some(master) = master else { return copying(replica).unwrap_or(Why::MasterUnasked) };
    if !peers::answers(master) || master.last.is_none() {
        return Why::MasterAway;
    }
    if looping(facts, master).is_some() {
        return Why::Loops;
    }
    if let Some(why) = copying(replica) {
        return why;
    }
    if waits_for_copy(master, replica) {
        return Why::Copying;
    }
    let refused = master.delta("rejected_connections").unwrap_or(0.0);
    if refused >= ATTEMPTS_PER_S * master.window_s.max(1.0) {
        return Why::Full { refused };
    }
    if let Some(why) = login(master) {
        return why;
    }
    if master.number("loading").is_some_and(|n| n > 0.0) {
        return Why::MasterLoads;
    }
    if !master.is_master() && master.info().and_then(|i| i.get("master_link_status")) == Some("down") {
        return Why::MasterUnlinked;
    }
    match master.delta("total_connections_received") {
        Some(n) if n < ATTEMPTS_PER_S * master.window_s => Why::NeverArrives,
        _ => Why::Unknown,
    }
}

/// A copy that has begun, by the replica's own word. It says "in progress" while its master turns PSYNC and SYNC down,
/// too: what has come, or will, says which (6.2+).
fn copying(replica: &Node) -> Option<Why> {
    replica.number("master_sync_in_progress").filter(|n| *n > 0.0)?;
    let counted = ["master_sync_read_bytes", "master_sync_total_bytes"].map(|field| replica.number(field));
    if counted.iter().any(Option::is_some) && counted.iter().all(|n| n.is_none_or(|n| n <= 0.0)) {
        return None;
    }
    let silent_s = replica.number("master_sync_last_io_seconds_ago").unwrap_or(0.0);
    Some(if silent_s > STILL_S { Why::CopyStands { silent_s } } else { Why::Copying })
}

/// Whether the master has taken it and its copy has not begun: it waits for another's fork to end, or for more replicas
/// (repl-diskless-sync-delay), and says neither itself.
fn waits_for_copy(master: &Node, replica: &Node) -> bool {
    let is_it =
        |ip: &str, port: u16| peers::host_of(&replica.address) == ip && replica.address.ends_with(&format!(":{port}"));
    let rows = master.info().map_or(Vec::new(), |i| i.replicas());
    rows.iter().any(|row| row.2 != "online" && is_it(&row.0, row.1))
}

/// Whether the master turns the replica away: it tries once a second, and sends AUTH, then REPLCONF and PSYNC.
fn login(master: &Node) -> Option<Why> {
    let errors = master.errors();
    let often = |word: &str| errors.get(word).copied().filter(|n| *n as f64 >= ATTEMPTS_PER_S * master.window_s);
    let (first, last) = (master.first.as_ref()?, master.last.as_ref()?);
    let refused = |name: &str| {
        let count = |info: &Info| info.command_stat(name).map_or(0, |s| s.rejected.saturating_add(s.failed));
        count(&last.info) > count(&first.info)
    };
    let own = ["psync", "sync", "replconf"].iter().any(|name| refused(name));
    for word in ["NOAUTH", "NOPERM"] {
        if let Some(times) = often(word).filter(|_| own) {
            return Some(Why::Login { word, times, certain: true });
        }
    }
    // ERR: a password where none is set (6.0+), or a wrong one (5.0).
    for word in ["WRONGPASS", "ERR"] {
        if let Some(times) = often(word).filter(|_| refused("auth")) {
            return Some(Why::Login { word, times, certain: false });
        }
    }
    None
}
