//! One key is so large that a command on it stops every other client.
//!
//! HGETALL, SMEMBERS, LRANGE 0 -1, ZRANGE, SORT or DEL on a collection of a hundred thousand elements takes tens of
//! milliseconds on the one thread that serves all clients, and its reply fills the network.
//!
//! Seen when: a key that the slow log names has over 5,000 elements, or is a string of over 1 MB, and commands on it
//! were slow three times in the last hour. Only the effect counts: a large key that is never read whole is not a
//! finding. Entries from the last hour but not from the window are over, and are reported as a risk.
//!
//! Not to be taken for: a slow host, where constant-time commands are slow too; they are left out here, unless a string
//! is so long that copying it explains their time.
//!
//! What to do: read in parts (HSCAN, SSCAN, LRANGE page by page), split the key, UNLINK instead of DEL.
//! Sources: SLOWLOG, TYPE and HLEN/LLEN/SCARD/ZCARD/STRLEN of the keys it names; no value is read.

use unslow_facts::{KeySize, SlowEntry};

use super::key_patterns;
use super::prelude::*;
use super::slow_command::{from_replica, smaller_steps};

pub const TITLE: &str = "Big key";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin", "expire_starved"];
pub const INJECTED: Injected = Injected::Yes;

const HOUR_S: u64 = 3600;
/// Slow commands on a key before it is called slow.
const TIMES: usize = 3;
/// Copying a byte of a string, into fresh pages at worst, in ns.
const COPY_NS: f64 = 3.0;

/// A large key with the slow commands on it.
struct Big<'a> {
    node: &'a Node,
    size: &'a KeySize,
    /// Of the last hour, newest first.
    entries: Vec<&'a SlowEntry>,
    /// The command that took most on it in the window, with its cost; or over the hour, without.
    command: String,
    held: Option<Held>,
}

impl Big<'_> {
    fn worst(&self) -> &SlowEntry {
        // It has entries: it would not have been made without.
        self.entries.iter().copied().max_by_key(|e| e.us).unwrap_or(self.entries[0])
    }

    fn what(&self) -> String {
        let n = self.size.length as f64;
        if self.size.kind == "string" { bytes(n) } else { format!("{} elements", count(n)) }
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all = by_worst(facts.live().flat_map(big).collect(), |b: &Big| {
        b.held.map_or(b.worst().us as f64 / 1e12, |h| 1.0 + h.share())
    });
    if let Some(worst) = all.first() {
        return found(facts, worst).into();
    }
    match facts.live().find_map(unseen) {
        Some(gap) => Verdict::Unknown(gap),
        None => Verdict::Absent(absent_text(facts)),
    }
}

/// Why big keys of a node would not show.
fn unseen(node: &Node) -> Option<Gap> {
    let of = |gap: &Gap| gap.of(&format!("big keys of {}", node.address));
    if let Some(gap) = node.slowlog.missing() {
        return Some(of(gap));
    }
    if node.setting_number("slowlog-log-slower-than").is_some_and(|us| us < 0.0) {
        let why = format!("big keys of {}: the slow log is off", node.address);
        return Some(Gap::new(Lack::Other, why, "CONFIG SET slowlog-log-slower-than 10000"));
    }
    let named = node.slowlog.value().is_some_and(|all| all.iter().any(|e| e.key.is_some()));
    node.key_sizes.missing().filter(|_| named).map(of)
}

fn absent_text(facts: &Facts) -> String {
    let sizes: Vec<&KeySize> = facts.live().filter_map(|n| n.key_sizes.value()).flatten().collect();
    match sizes.len() {
        0 => "big keys: the slow log names no key".into(),
        n => format!("big keys: the slow log names {n}; none is both large and slow {TIMES} times in the last hour"),
    }
}

/// Whether a big key cost something in the window.
pub(super) fn speaks(node: &Node) -> bool {
    big(node).iter().any(|b| b.held.is_some())
}

fn big(node: &Node) -> Vec<Big<'_>> {
    let sizes = node.key_sizes.value().map_or(&[][..], Vec::as_slice);
    let large = |s: &&KeySize| if s.kind == "string" { s.length > 1_000_000 } else { s.length > 5_000 };
    sizes.iter().filter(large).filter_map(|size| slow_on(node, size)).collect()
}

fn slow_on<'a>(node: &'a Node, size: &'a KeySize) -> Option<Big<'a>> {
    let mut entries: Vec<&SlowEntry> = slow_entries(node, HOUR_S).into_iter().filter(|e| is_of(size, e)).collect();
    entries.sort_by_key(|e| std::cmp::Reverse(e.at_s));
    if entries.len() < TIMES {
        return None;
    }
    let now: Vec<&SlowEntry> = slow_entries(node, 0).into_iter().filter(|e| is_of(size, e)).collect();
    let command = most_of(if now.is_empty() { &entries } else { &now });
    let held = (!now.is_empty()).then(|| cost(node, &command, &now));
    Some(Big { node, size, entries, command, held })
}

/// Whether an entry is about this key, and the key's size may be why it took long.
fn is_of(size: &KeySize, entry: &SlowEntry) -> bool {
    let copying_us = if size.kind == "string" { size.length as f64 * COPY_NS / 1000.0 } else { 0.0 };
    entry.key.as_deref() == Some(size.key.as_str()) && (!is_victim(entry) || entry.us as f64 <= copying_us)
}

/// The command with the most time.
fn most_of(entries: &[&SlowEntry]) -> String {
    let mut us: std::collections::BTreeMap<&str, u64> = Default::default();
    for entry in entries {
        *us.entry(&entry.command).or_default() += entry.us;
    }
    us.into_iter().max_by_key(|(_, us)| *us).map_or(String::new(), |(command, _)| command.to_string())
}

/// What a command on this key cost in the window.
fn cost(node: &Node, command: &str, on_key: &[&SlowEntry]) -> Held {
    let held = held(node, &[&format!("={}", stat_name(command))]);
    let (_, us) = logged(on_key, command);
    let (all_calls, all_us) = logged(&slow_entries(node, 0), command);
    let mut part = if is_typical(&held, all_calls, all_us) {
        // The calls that the log missed were of the same kind.
        let share = us / all_us.max(1.0);
        held.part(held.calls * share, held.inside_us * share)
    } else {
        let of_command = on_key.iter().filter(|e| e.command == command);
        held.logged(&of_command.map(|e| e.us as f64).collect::<Vec<_>>())
    };
    part.longest_us = on_key.iter().filter(|e| e.command == command).map(|e| e.us as f64).reduce(f64::max);
    part
}

/// Calls and time of a command in these entries.
fn logged(entries: &[&SlowEntry], command: &str) -> (f64, f64) {
    entries.iter().filter(|e| e.command == command).fold((0.0, 0.0), |(n, us), e| (n + 1.0, us + e.us as f64))
}

/// Whether the calls in the log stand for all calls of a command: the mean of all is near theirs.
fn is_typical(held: &Held, logged_calls: f64, logged_us: f64) -> bool {
    held.calls > 0.0 && held.inside_us / held.calls > 0.5 * logged_us / logged_calls.max(1.0)
}

/// As commandstats names what the slow log calls so.
fn stat_name(command: &str) -> String {
    command.to_lowercase().replace(' ', "|")
}

/// The part of a command's calls and time (us) in the window that was on big keys, and is reported here.
pub fn part_of(node: &Node, stat_name: &str) -> (f64, f64) {
    let command = stat_name.to_uppercase().replace('|', " ");
    let parts = big(node).into_iter().filter(|b| b.command == command).filter_map(|b| b.held);
    parts.fold((0.0, 0.0), |(calls, us), h| (calls + h.calls, us + h.inside_us))
}

fn found(facts: &Facts, b: &Big) -> Finding {
    let (node, kind, what, worst) = (b.node, &b.size.kind, b.what(), b.worst());
    let last = b.entries.first().map_or(0, |e| logged_ms(node, e.at_s));
    let first = b.entries.last().map_or(0, |e| logged_ms(node, e.at_s));
    let finding = match &b.held {
        Some(held) => {
            let (ms, wait) = held.others_wait();
            let title =
                format!("One {kind} of {what} stops {}: {} on it takes {}", node.address, b.command, held.figures());
            let finding = Finding::new(title).latency(ms, wait).proven(
                "the slow log timed the commands in this window, and the length of the key explains these times",
            );
            if node.first.as_ref().is_some_and(|f| first < f.at_ms) { finding.since(first) } else { finding }
        }
        None => Finding::new(format!(
            "One {kind} of {what} held up {} in the last hour: {} slow commands on it, {} at most, the last one {}",
            node.address,
            count(b.entries.len() as f64),
            time_us(worst.us as f64),
            ago(node.at_ms(), last)
        ))
        .risk(format!(
            "none in the window; such a {} stops every other client for up to {}",
            b.command,
            time_us(worst.us as f64)
        ))
        .past(last)
        .likely("the server timed these commands; none ran in this window"),
    };
    let finding = finding
        .on([node.address.as_str()])
        .saw_then(
            node,
            "SLOWLOG GET 128",
            format!(
                "{} {}: {} entries in the last hour, the longest {}{}",
                worst.command,
                b.size.key,
                b.entries.len(),
                time_us(worst.us as f64),
                sender(worst)
            ),
            logged_ms(node, worst.at_s),
        )
        .saw(
            node,
            &length_of(kind),
            format!("{}: {kind} of {what} (run with --show-keys to see its name)", b.size.key),
        );
    let finding = key_patterns::longest(finding, facts, kind);
    mend(gain(finding, b), facts, b)
}

fn length_of(kind: &str) -> String {
    let command = match kind {
        "hash" => "HLEN",
        "list" => "LLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "stream" => "XLEN",
        _ => "STRLEN",
    };
    format!("{command} key")
}

/// Pages of 100 elements, where the command reads elements.
fn gain(finding: Finding, b: &Big) -> Finding {
    let n = b.size.length as f64;
    if b.size.kind == "string" || b.command == "DEL" || n <= 100.0 {
        return finding;
    }
    let us = b.held.map_or(b.worst().us as f64, |h| h.mean_us());
    finding.gain(
        format!("in pages of 100 elements, other clients wait {} instead of {}", time_us(us * 100.0 / n), time_us(us)),
        format!("{us:.0} us a call x 100 elements a page / {n:.0} elements = {:.1} us", us * 100.0 / n),
    )
}

fn mend(finding: Finding, facts: &Facts, b: &Big) -> Finding {
    let finding = smaller_steps(finding, b.node, &b.command, Some(&b.size.kind));
    let finding = from_replica(finding, facts, b.node, &b.command);
    let (how, command) = match b.size.kind.as_str() {
        "hash" => (
            "one hash per part, chosen by a number derived from the field",
            "HSET key:17 field value   with 17 = crc32(field) % 64",
        ),
        "set" => (
            "one set per part, chosen by a number derived from the member",
            "SADD key:17 member   with 17 = crc32(member) % 64",
        ),
        "zset" => {
            ("one sorted set per part: per day, per range of scores, or per group", "ZADD key:2026-11-23 score member")
        }
        "list" => ("one list per part: per day, or per thousand elements", "RPUSH key:2026-11-23 element"),
        "stream" => ("one stream per part, each with a maximum length", "XADD key:17 MAXLEN ~ 100000 * field value"),
        _ => ("parts that are read separately, or a compressed value", "SET key:17 part"),
    };
    finding.fix(&format!("Split it: {how}"), &[command], "requires a change to the data model", "")
}
