//! Small measurements several rules share, and how numbers are written.

use std::collections::BTreeMap;

use unslow_facts::{Facts, Gap, Lack, Node, SlowEntry};
use unslow_topology::{CommandStat, Info};
use unslow_units::{time_rough_s, time_us};

mod between;
mod constant_time;
mod held;
mod residual;

pub use between::{CONNECTION_US, Depth, IDLE_SHARE, TURN_US, call_us, outside_us, scale, traffic_us, turns};
pub use constant_time::{CONSTANT_TIME, PER_ARGUMENT, WITHOUT_COUNT, is_victim};
pub use held::{
    Held, LARGE_REPLY_BYTES, SCRIPTS, held, held_on_cpu, in_scripts, inside_share, moving_us, on_cpu, received_bytes,
    script_around, sender, sent_bytes,
};

/// Calls and microseconds of some commands in the window, our own taken off.
pub struct Spent {
    /// Calls.
    pub calls: u64,
    /// Microseconds.
    pub usec: u64,
    /// Share of the window's wall time: share of one core.
    pub share: f64,
    /// Calls per second.
    pub rate: f64,
    /// Mean cost of a call in us.
    pub mean_us: f64,
}

/// Whether a command, as commandstats names it, is one of `names`. A name without `|` also matches its sub-commands,
/// unless `=` stands before it.
pub fn is_one_of(names: &[&str], command: &str) -> bool {
    let whole = command.split_once('|').map_or(command, |(whole, _)| whole);
    names.iter().any(|n| match n.strip_prefix('=') {
        Some(exact) => exact == command,
        None => *n == command || *n == whole,
    })
}

/// What `names` cost, as [`is_one_of`] matches them.
pub fn spent(node: &Node, names: &[&str]) -> Spent {
    let (mut calls, mut usec) = (0, 0);
    for (_, stat) in node.foreign_commands().iter().filter(|(name, _)| is_one_of(names, name)) {
        calls += stat.calls;
        usec += stat.usec;
    }
    let window = node.window_s.max(0.001);
    Spent {
        calls,
        usec,
        share: usec as f64 / 1e6 / window,
        rate: calls as f64 / window,
        mean_us: usec as f64 / (calls as f64).max(1.0),
    }
}

/// A rule that judges by commandstats found nothing; unknown if no server showed them, or if they were reset in the
/// window.
pub fn absent_by_commandstats(facts: &Facts, what: &str, text: String) -> crate::Verdict {
    let counted = |node: &Node| {
        let total = |info: &Info| info.number("total_commands_processed").unwrap_or(0.0);
        let (Some(first), Some(last)) = (&node.first, &node.last) else { return false };
        last.info.has_command_stats() && total(&last.info) >= total(&first.info)
    };
    if facts.live().any(counted) {
        return crate::Verdict::Absent(text);
    }
    if facts.live().any(|n| n.info().is_some_and(Info::has_command_stats)) {
        let why = format!("{what}: the counters were reset in the window");
        return crate::Verdict::unknown(Lack::Time, why, "run again");
    }
    crate::Verdict::Unknown(unseen_info(facts, what))
}

/// How many commands a server was asked for in the window and how they ended, ours taken off (6.2+).
///
/// What the counters hold (call() and rejectCommand() of server.c, 6.2 to 9.0): `total_commands_processed` has what was
/// executed, including what then failed; refused commands (OOM, READONLY, MOVED, NOPERM, wrong number of arguments) are
/// only in their `rejected_calls`; unknown commands, which have no line, only in `errorstat_ERR`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes {
    /// Commands asked for: executed, refused and unknown ones.
    pub asked: f64,
    /// Errors by code word.
    pub errors: BTreeMap<String, u64>,
    /// Errors that no command's counters hold: unknown commands and sub-commands.
    pub unknown: u64,
    /// How many of the errors, by code word, only tell a client library that its greeting is not known or not allowed
    /// here.
    pub greetings: BTreeMap<String, u64>,
}

impl Outcomes {
    /// Part of a protocol at work and not a lost request: redirects, EVALSHA before EVAL, a group that is there
    /// already.
    const AT_WORK: &[&str] = &["MOVED", "ASK", "REDIRECT", "NOSCRIPT", "BUSYGROUP", "BUSYKEY", "UNBLOCKED"];

    /// `None` where they are not counted, or were reset in the window.
    pub fn of(node: &Node) -> Option<Outcomes> {
        let (rejected, failed) = node.refused_and_failed()?;
        let processed = node.delta("total_commands_processed")?;
        let errors = node.errors();
        let all = total(errors.values());
        let own_errors = total(node.own.errors.values());
        let own_unknown = node.own.errors.get("ERR").copied().unwrap_or(0);
        // What we were denied, or asked an older server in vain, was not executed: the probe does not count it among
        // our commands.
        let executed = (processed - total(node.own.commands.values()) as f64).max(0.0);
        let refused = rejected.saturating_sub(own_errors.saturating_sub(own_unknown));
        let unknown = all.saturating_sub(refused.saturating_add(failed));
        // One command can end in several errors (those inside a script): never fewer asked than failed.
        let asked = (executed + refused as f64 + unknown as f64).max(all as f64);
        let greetings = greetings(node, &errors, unknown);
        Some(Outcomes { asked, errors, unknown, greetings })
    }

    /// How many ended in one of these errors.
    pub fn count(&self, kinds: &[&str]) -> u64 {
        kinds.iter().filter_map(|k| self.errors.get(*k)).fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Errors that cost a request, by code word, the most frequent first.
    pub fn failures(&self) -> Vec<(String, u64)> {
        let lost = |(kind, n): (&String, &u64)| {
            let n = n.saturating_sub(self.greetings.get(kind).copied().unwrap_or(0));
            (n > 0 && !Self::AT_WORK.contains(&kind.as_str())).then(|| (kind.clone(), n))
        };
        by_worst(self.errors.iter().filter_map(lost).collect(), |(_, n)| *n as f64)
    }

    /// Share of what was asked for that ended in `n` errors: 0 to 1.
    pub fn share(&self, n: f64) -> f64 {
        (n / self.asked.max(1.0)).clamp(0.0, 1.0)
    }
}

/// Libraries introduce themselves on each new connection, and a server that does not know how refuses: `CLIENT SETINFO`
/// twice (known from 7.2 on) and `CLIENT MAINT_NOTIFICATIONS`. The library continues as if it had not asked.
fn greetings(node: &Node, errors: &BTreeMap<String, u64>, unknown: u64) -> BTreeMap<String, u64> {
    const EACH: f64 = 3.0;
    const GREETING: &[&str] = &["auth", "client", "command", "hello", "select"];
    let new = node.delta("total_connections_received").unwrap_or(0.0);
    // After a greeting a connection does what it is for. Where nothing follows, the unknown commands are what it is
    // for.
    let foreign = node.foreign_commands();
    let work = foreign.iter().filter(|(name, _)| !GREETING.contains(&name.split('|').next().unwrap_or(name)));
    let followed = work.fold(0.0, |sum, (_, stat)| sum + stat.calls as f64);
    let mut left = (EACH * new.min(followed)) as u64;
    // Before 7.0 sub-commands share their command's line: an unknown one is executed there, and fails.
    let shared = node.level() < (7, 0);
    let (failed, denied) = if shared {
        let denied = grown(node, &["client"], |s| s.rejected).saturating_sub(own_denied(node));
        (grown(node, &["client"], |s| s.failed), denied)
    } else {
        (0, grown(node, &["client|setinfo", "client|setname", "client|maint_notifications"], |s| s.rejected))
    };
    let mut all = BTreeMap::new();
    for (kind, most) in [("ERR", unknown.saturating_add(failed)), ("NOPERM", denied)] {
        let n = errors.get(kind).copied().unwrap_or(0).min(most).min(left);
        left -= n;
        if n > 0 {
            all.insert(kind.to_string(), n);
        }
    }
    all
}

/// How many of our CLIENT commands were denied: CLIENT LIST is asked once.
fn own_denied(node: &Node) -> u64 {
    u64::from(node.clients.refused().is_some_and(|gap| gap.lack == Lack::Rights))
}

/// By how much a counter of these commands grew in the window, ours included. A command that was always refused has no
/// calls, so `Node::commands` leaves it out.
fn grown(node: &Node, names: &[&str], of: fn(&CommandStat) -> u64) -> u64 {
    let (Some(first), Some(last)) = (&node.first, &node.last) else { return 0 };
    let count = |info: &Info, name: &str| info.command_stat(name).as_ref().map_or(0, of);
    let growth = |name: &&str| count(&last.info, name).saturating_sub(count(&first.info, name));
    names.iter().map(growth).fold(0, u64::saturating_add)
}

fn total<'a>(counts: impl Iterator<Item = &'a u64>) -> u64 {
    counts.fold(0, |sum, n| sum.saturating_add(*n))
}

/// Why figures of INFO were not seen, `what` before it.
pub fn unseen_info(facts: &Facts, what: &str) -> Gap {
    if let Some(why) =
        facts.nodes.iter().find_map(|n| n.unreachable.as_deref()).filter(|_| facts.live().next().is_none())
    {
        return Gap::new(Lack::Answer, format!("{what}: {why}"), "");
    }
    match facts.live().next() {
        None => Gap::new(Lack::Rights, format!("{what}: INFO is denied to this user"), "ACL SETUSER <user> +info"),
        Some(node) => Gap::new(Lack::Version, format!("{what}: not in INFO of {}", node.version_text()), ""),
    }
}

/// Commands of an application per second: below it no one uses a server, and what slows it costs no one anything.
pub const USED_OPS: f64 = 1.0;

/// Whether an application uses this server.
pub fn is_used(node: &Node) -> bool {
    node.application_ops().is_some_and(|ops| ops >= USED_OPS)
}

/// `command` as a person runs it at `address`; nothing if there is no command.
pub fn cli(address: &str, command: &str) -> String {
    if command.is_empty() {
        return String::new();
    }
    if let Some(path) = address.strip_prefix("unix:") {
        return format!("redis-cli -s {path} {command}");
    }
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
    format!("redis-cli -h {} -p {port} {command}", host.trim_start_matches('[').trim_end_matches(']'))
}

/// `3 min ago`, `2 days ago`: from `at_ms` to `now_ms`.
pub fn ago(now_ms: u64, at_ms: u64) -> String {
    time_rough_s(now_ms.saturating_sub(at_ms) as f64 / 1000.0) + " ago"
}

/// When a node's process started, unix time in ms; none if it does not say.
pub fn started_ms(node: &Node) -> Option<u64> {
    Some(node.at_ms().saturating_sub((node.number("uptime_in_seconds")? * 1000.0) as u64))
}

/// Slow log entries of the window itself, plus `before_s` seconds before it; ours are left out.
pub fn slow_entries(node: &Node, before_s: u64) -> Vec<&SlowEntry> {
    // The log's clock has whole seconds: the second the window began in belongs to the time before.
    let from = (begun_s(node) + 1).saturating_sub(before_s);
    let all = node.slowlog.value().map_or(&[][..], Vec::as_slice);
    all.iter().filter(|e| e.at_s >= from && !is_ours(&e.client_name)).collect()
}

/// The second in which the window began, as the server's logs have it: by its own clock where INFO tells that (7.0+).
pub fn begun_s(node: &Node) -> u64 {
    let by_its_clock = |info: &unslow_topology::Info| Some((info.number("server_time_usec")? / 1e6) as u64);
    node.first.as_ref().map_or(0, |first| by_its_clock(&first.info).unwrap_or(first.at_ms / 1000))
}

/// Whether this is what the doctor calls its connections.
pub fn is_ours(client_name: &str) -> bool {
    client_name == "unslow"
}

/// A second of the server's clock, as its logs have it, in unix time in ms by the clock of the samples; not after the
/// last sample.
pub fn logged_ms(node: &Node, at_s: u64) -> u64 {
    let ahead = node.last.as_ref().and_then(|s| Some(s.info.number("server_time_usec")? / 1000.0 - s.at_ms as f64));
    ((at_s as f64 * 1000.0 - ahead.unwrap_or(0.0)).max(0.0) as u64).min(node.at_ms())
}

/// The longest stall of the main thread that left a trace, in us, and what it was and when.
pub fn worst_stall(node: &Node) -> Option<(f64, String)> {
    let mut worst: Option<(f64, String)> = None;
    let mut offer = |us: f64, what: &dyn Fn() -> String| {
        if us > worst.as_ref().map_or(0.0, |w| w.0) {
            worst = Some((us, what()));
        }
    };
    if let Some(us) = node.number("latest_fork_usec") {
        offer(us, &|| format!("the last fork (latest_fork_usec:{us:.0})"));
    }
    for event in node.latency.value().into_iter().flatten() {
        let us = event.max_ms as f64 * 1000.0;
        offer(us, &|| format!("latency event {} ({} ms at most since LATENCY RESET)", event.name, event.max_ms));
    }
    for entry in node.slowlog.value().into_iter().flatten() {
        let when = || ago(node.at_ms(), logged_ms(node, entry.at_s));
        offer(entry.us as f64, &|| {
            format!("{} in the slow log ({}, {})", entry.command, time_us(entry.us as f64), when())
        });
    }
    worst
}

/// How the deployment's failure detector waits, in ms: `cluster-node-timeout`, or Sentinel's
/// `down-after-milliseconds`.
pub fn failure_timeout_ms(facts: &Facts, node: &Node) -> Option<(f64, String)> {
    if let Some(ms) =
        node.setting_number("cluster-node-timeout").filter(|_| facts.kind == unslow_topology::DeploymentKind::Cluster)
    {
        return Some((ms, format!("cluster-node-timeout {ms:.0}")));
    }
    let groups = || facts.sentinels.iter().flat_map(|s| &s.groups);
    let own = |g: &&unslow_facts::SentinelGroup| g.master == node.address || node.master.as_ref() == Some(&g.master);
    let group = groups().find(own).or_else(|| groups().next())?;
    Some((group.down_after_ms as f64, format!("down-after-milliseconds {}", group.down_after_ms)))
}

/// Who matters most first.
pub fn by_worst<T>(mut rows: Vec<T>, weight: impl Fn(&T) -> f64) -> Vec<T> {
    rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    rows
}

/// `a, b and c`, at most three and the number of the rest.
pub fn names(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [a, b] => format!("{a} and {b}"),
        [a, b, c] => format!("{a}, {b} and {c}"),
        [a, b, rest @ ..] => format!("{a}, {b} and {} more", rest.len()),
    }
}

/// The largest of a figure over the nodes that have it.
pub fn most(facts: &Facts, figure: impl Fn(&Node) -> Option<f64>) -> Option<f64> {
    facts.live().filter_map(figure).reduce(f64::max)
}

/// Greetings of Sentinels on a server per second, at most what was published there: each publishes one every two
/// seconds to each server of a group, and replicas get their master's as well. That is no application.
pub fn sentinel_greetings(facts: &Facts, node: &Node) -> f64 {
    if facts.kind != unslow_topology::DeploymentKind::Sentinel {
        return 0.0;
    }
    let published = node.application_commands().get("publish").map_or(0.0, |stat| stat.calls as f64);
    let groups = || facts.sentinels.iter().flat_map(|s| &s.groups);
    // They know of each other, whether they answered us or not.
    let sentinels = groups().map(|g| g.other_sentinels.saturating_add(1)).fold(facts.sentinels.len() as u64, u64::max);
    let own = groups().filter(|g| g.master == node.address || node.master.as_ref() == Some(&g.master));
    // Behind a NAT their addresses are others; a server is in one group all the same.
    let own = own.map(|g| g.service.as_str()).collect::<std::collections::BTreeSet<_>>().len().max(1);
    let streams = if node.is_master() { 1.0 } else { 2.0 };
    // One more falls into a window that begins right before it.
    let most = (node.window_s / 2.0 + 1.0) * sentinels as f64 * own as f64 * streams;
    published.min(most) / node.window_s.max(0.001)
}
