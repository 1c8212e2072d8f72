//! Keyspace notifications are on, but no client is listening.
//!
//! With notify-keyspace-events set, each change of a key is published to one or two channels: the channel's name is
//! built and looked up whether or not a client has subscribed. That adds to the time of each write, and without a
//! listener all of it is wasted.
//!
//! Seen when: notify-keyspace-events has K or E (without one of them nothing is sent), there was no subscriber to any
//! channel or pattern at either end of the window, and a hundred events a second or more were due. It is reported as a
//! risk: the time cannot be separated from that of the commands themselves.
//!
//! Not to be taken for: listeners that are connected to another node: notifications stay on the node where the key is.
//!
//! How to confirm: `CONFIG GET notify-keyspace-events`; `INFO stats`: pubsub_channels, pubsub_patterns;
//! `CLIENT LIST TYPE pubsub`.
//!
//! What to do: find out which clients need them; switch them off, or keep only the classes that are used (Ex: expired
//! keys only).
//! Sources: CONFIG notify-keyspace-events; INFO pubsub_channels, pubsub_patterns; keyspace notifications documentation.

use unslow_topology::Info;

use super::prelude::*;

pub const TITLE: &str = "Notifications without a listener";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// The most frequent writes of each class of events.
const CLASSES: &[(char, &[&str])] = &[
    ('g', &["copy", "del", "expire", "expireat", "persist", "pexpire", "pexpireat", "rename", "restore", "unlink"]),
    (
        '$',
        &[
            "append",
            "decr",
            "decrby",
            "getset",
            "incr",
            "incrby",
            "incrbyfloat",
            "mset",
            "psetex",
            "set",
            "setbit",
            "setex",
            "setnx",
            "setrange",
        ],
    ),
    ('l', &["lmove", "lpop", "lpush", "lrem", "lset", "ltrim", "rpop", "rpoplpush", "rpush"]),
    ('s', &["sadd", "smove", "spop", "srem"]),
    ('h', &["hdel", "hincrby", "hincrbyfloat", "hmset", "hset", "hsetnx"]),
    ('z', &["zadd", "zincrby", "zpopmax", "zpopmin", "zrem", "zremrangebyrank", "zremrangebyscore"]),
    ('t', &["xack", "xadd", "xdel", "xtrim"]),
];

/// Events a second that are worth a word.
const EVENTS: f64 = 100.0;

pub fn check(facts: &Facts) -> Verdict {
    let shown: Vec<(&Node, &str)> =
        facts.live().filter_map(|n| Some((n, n.setting("notify-keyspace-events")?))).collect();
    if shown.is_empty() {
        let gap = facts.live().find_map(|n| n.config.missing()).map(|g| g.of("keyspace notifications"));
        return Verdict::Unknown(
            gap.unwrap_or_else(|| Gap::new(Lack::Version, "keyspace notifications: the setting was not seen", "")),
        );
    }
    let on: Vec<(&Node, &str)> = shown.into_iter().filter(|(_, flags)| flags.contains(['K', 'E'])).collect();
    if on.is_empty() {
        return Verdict::Absent("keyspace notifications: off".into());
    }
    if let Some((node, _)) = on.iter().find(|(n, _)| listeners(n).is_none()) {
        let why =
            format!("keyspace notifications: INFO of {} does not show whether a client is listening", node.address);
        return Verdict::unknown(Lack::Version, why, "look by hand: PUBSUB CHANNELS, PUBSUB NUMPAT");
    }
    let unheard = on.iter().copied().filter(|(n, flags)| listeners(n) == Some(0.0) && events(n, flags) >= EVENTS);
    let rows = by_worst(unheard.collect(), |(n, flags): &(&Node, &str)| events(n, flags));
    let Some((node, flags)) = rows.first() else {
        return Verdict::Absent("keyspace notifications: a client is listening, or hardly any are due".into());
    };
    let rate = events(node, flags);
    // Who listens now and then is known to people only: no exact line.
    Finding::new(format!("{} publishes {} keyspace events a second, and no client listens", node.address, count(rate)))
        .on(rows.iter().map(|(n, _)| n.address.as_str()))
        .risk("each of these writes takes longer because of the publishing, which no client receives")
        .likely("the setting and the subscribers were read; the cost of publishing is part of the commands' own time")
        .saw(node, "CONFIG GET notify-keyspace-events", *flags)
        .saw(node, "INFO stats", "pubsub_channels:0, pubsub_patterns:0 at both ends of the window")
        .saw(node, "INFO all", format!("{} events a second, by keys changed, expired and evicted", count(rate)))
        .fix(
            "Switch them off, if no client subscribes at other times; or keep only the classes that are needed",
            &[&cli(&node.address, "CONFIG SET notify-keyspace-events \"\"")],
            "a client that subscribes later receives nothing; some libraries (Spring Session) switch them on again",
            &cli(&node.address, &format!("CONFIG SET notify-keyspace-events '{flags}'")),
        )
        .into()
}

/// Subscribed channels and patterns, the most that was seen at either end of the window.
fn listeners(node: &Node) -> Option<f64> {
    let of = |info: &Info| Some(info.number("pubsub_channels")? + info.number("pubsub_patterns")?);
    let (first, last) = (of(&node.first.as_ref()?.info)?, of(&node.last.as_ref()?.info)?);
    Some(first.max(last))
}

/// Events a second of the classes that are switched on, at least.
fn events(node: &Node, flags: &str) -> f64 {
    let of_class = |classes: &[char], field: &str| match flags.contains(classes) {
        true => node.rate(field).unwrap_or(0.0),
        false => 0.0,
    };
    // Of single classes at most what commands of that class were called for.
    let called: f64 = CLASSES
        .iter()
        .filter(|(class, _)| flags.contains(*class))
        .map(|(_, commands)| spent(node, commands).rate)
        .sum();
    let changed = node.rate("rdb_changes_since_last_save").unwrap_or(0.0);
    let writes = if flags.contains('A') { changed } else { changed.min(called) };
    writes.max(of_class(&['A', 'x'], "expired_keys"))
        + of_class(&['A', 'e'], "evicted_keys")
        + of_class(&['m'], "keyspace_misses")
}
