//! Small measurements several rules share, and how numbers are written.

use unslow_facts::{Facts, Node, SlowEntry};

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

/// What `names` cost; a name without `|` also matches the sub-commands of it, unless `=` stands before it.
pub fn spent(node: &Node, names: &[&str]) -> Spent {
    let (mut calls, mut usec) = (0, 0);
    for (name, stat) in node.foreign_commands() {
        if names.iter().any(|n| match n.strip_prefix('=') {
            Some(exact) => exact == name,
            None => *n == name || (!n.contains('|') && name.split('|').next() == Some(n)),
        }) {
            calls += stat.calls;
            usec += stat.usec;
        }
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

/// Commands that take constant time, or nearly: when one of these is slow, something else held it up.
const CONSTANT_TIME: &[&str] = &[
    "GET",
    "SET",
    "SETEX",
    "PSETEX",
    "SETNX",
    "GETSET",
    "GETDEL",
    "GETEX",
    "INCR",
    "DECR",
    "INCRBY",
    "DECRBY",
    "APPEND",
    "STRLEN",
    "EXISTS",
    "TYPE",
    "TTL",
    "PTTL",
    "EXPIRE",
    "PEXPIRE",
    "EXPIREAT",
    "PERSIST",
    "HGET",
    "HSET",
    "HSETNX",
    "HDEL",
    "HLEN",
    "HEXISTS",
    "HINCRBY",
    "LPUSH",
    "RPUSH",
    "LPOP",
    "RPOP",
    "LLEN",
    "SADD",
    "SREM",
    "SISMEMBER",
    "SCARD",
    "ZADD",
    "ZREM",
    "ZCARD",
    "ZSCORE",
    "ZINCRBY",
    "XADD",
    "XLEN",
    "PING",
    "ECHO",
    "SELECT",
    "AUTH",
    "HELLO",
    "MULTI",
    "CLIENT SETNAME",
    "CLIENT SETINFO",
    "PUBLISH",
    "REPLCONF",
    "READONLY",
    "ROLE",
    "HMGET",
    "HMSET",
    "MGET",
    "MSET",
    "LMOVE",
    "RPOPLPUSH",
    "BLPOP",
    "BRPOP",
    "BLMOVE",
    "XREADGROUP",
    "XREAD",
    "XACK",
    "ZPOPMIN",
    "ZPOPMAX",
    "SPOP",
    "SMOVE",
    "LINDEX",
    "SPUBLISH",
    "SUBSCRIBE",
];

/// Whether a slow log entry is a victim: constant-time work with few arguments.
pub fn is_victim(entry: &SlowEntry) -> bool {
    CONSTANT_TIME.contains(&entry.command.as_str()) && entry.args <= 64
}

/// Slow log entries of the window itself, plus `before_s` seconds before it.
pub fn slow_entries(node: &Node, before_s: u64) -> Vec<&SlowEntry> {
    // The log's clock has whole seconds: the second the window began in belongs to the time before.
    // And it is the server's: where INFO tells its time (7.0+), that is what entries are held against.
    let begun = node
        .first
        .as_ref()
        .map_or(0, |f| f.info.number("server_time_usec").map_or(f.at_ms / 1000, |us| (us / 1e6) as u64));
    let from = (begun + 1).saturating_sub(before_s);
    node.slowlog.value().map_or(Vec::new(), |all| all.iter().filter(|e| e.at_s >= from).collect())
}

/// The longest stall of the main thread that left a trace, and what it was. In us.
pub fn worst_stall(node: &Node) -> Option<(f64, String)> {
    let mut worst: Option<(f64, String)> = None;
    let mut offer = |us: f64, what: String| {
        if us > worst.as_ref().map_or(0.0, |w| w.0) {
            worst = Some((us, what));
        }
    };
    if let Some(us) = node.number("latest_fork_usec") {
        offer(us, format!("the last fork (latest_fork_usec:{us:.0})"));
    }
    for event in node.latency.value().into_iter().flatten() {
        offer(event.max_ms as f64 * 1000.0, format!("latency event {} (max {} ms)", event.name, event.max_ms));
    }
    for entry in node.slowlog.value().into_iter().flatten() {
        offer(entry.us as f64, format!("{} in the slow log ({} us)", entry.command, entry.us));
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

/// `12 %`, `0.4 %`.
pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    if p >= 10.0 {
        format!("{p:.0} %")
    } else if p >= 0.1 {
        format!("{p:.1} %")
    } else {
        format!("{p:.2} %")
    }
}

/// A time in the unit that reads best.
pub fn time_us(us: f64) -> String {
    if us >= 1e6 {
        format!("{:.1} s", us / 1e6)
    } else if us >= 1e3 {
        format!("{:.1} ms", us / 1e3)
    } else if us >= 10.0 {
        format!("{us:.0} us")
    } else {
        format!("{us:.2} us")
    }
}

/// Bytes in the unit that reads best.
pub fn bytes(n: f64) -> String {
    if n >= 1e9 {
        format!("{:.1} GB", n / 1e9)
    } else if n >= 1e6 {
        format!("{:.1} MB", n / 1e6)
    } else if n >= 1e3 {
        format!("{:.1} kB", n / 1e3)
    } else {
        format!("{n:.0} B")
    }
}

/// `1,234,567`; decimals only below 10.
pub fn count(n: f64) -> String {
    if n < 10.0 && n.fract().abs() > 0.05 {
        return format!("{n:.1}");
    }
    let digits = format!("{n:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 && c != '-' {
            out.push(',');
        }
        out.push(c);
    }
    out
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
