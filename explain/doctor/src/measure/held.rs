//! What a command costs everyone else: the time inside it, and the time that writing its replies takes.
//!
//! The server times a command without the writing of its reply. For replies of megabytes that is a part of the stall, and it is
//! taken from the CPU time the main thread spent outside commands.

use unslow_facts::{Node, SlowEntry};

use super::{is_one_of, percent, slow_entries, spent, time_us};

/// Commands that run scripts or functions.
pub const SCRIPTS: &[&str] = &["eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"];

/// Commands whose replies hold data, and so may be large.
const ANSWERS_WITH_DATA: &[&str] = &[
    "dump",
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "fcall",
    "fcall_ro",
    "geosearch",
    "georadius",
    "georadius_ro",
    "georadiusbymember",
    "georadiusbymember_ro",
    "get",
    "getdel",
    "getex",
    "getrange",
    "getset",
    "hget",
    "hgetall",
    "hkeys",
    "hmget",
    "hrandfield",
    "hscan",
    "hvals",
    "keys",
    "lindex",
    "lmpop",
    "lpop",
    "lrange",
    "mget",
    "rpop",
    "scan",
    "sdiff",
    "sinter",
    "smembers",
    "sort",
    "sort_ro",
    "spop",
    "srandmember",
    "sscan",
    "substr",
    "sunion",
    "xrange",
    "xread",
    "xreadgroup",
    "xrevrange",
    "zdiff",
    "zinter",
    "zrandmember",
    "zrange",
    "zrangebylex",
    "zrangebyscore",
    "zrevrange",
    "zrevrangebylex",
    "zrevrangebyscore",
    "zscan",
    "zunion",
    // Monitoring, where there are thousands of clients.
    "client|list",
    "cluster|nodes",
    "cluster|slots",
    "cluster|shards",
    "command",
    "info",
];

/// A reply of this size is the command's own doing, however fast the command itself was.
pub const LARGE_REPLY_BYTES: f64 = 262_144.0;
/// Smaller replies than this leave with the others': their writing is the price of any command.
const OWN_WRITE_BYTES: f64 = 65_536.0;
/// What reading a command and answering it briefly costs outside the command, in us: Redis 7.0.15, one command a read.
const READ_US: f64 = 2.4;
/// What taking a connection and closing it costs, in us: Redis 7.0.15 without AUTH or TLS.
const CONNECTION_US: f64 = 17.5;
/// What writing a byte of a large reply costs, in ns: 0.4 to 0.6 on Valkey 9.1 over loopback (HGETALL, SUNION, CLIENT LIST). Used
/// where the server does not show its CPU time.
const WRITE_NS: f64 = 0.5;
/// Never more than this is put down to writing, whatever else the main thread did outside commands.
const WRITE_NS_MOST: f64 = 3.0;

/// How long some commands held the main thread in the window.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Calls.
    pub calls: f64,
    /// Time inside them, in us.
    pub inside_us: f64,
    /// Time to write their replies, in us.
    pub writing_us: f64,
    /// Bytes of a reply, on average.
    pub reply_bytes: f64,
    /// The longest that the slow log has of the window.
    pub longest_us: Option<f64>,
    /// Mean rest of a call that a command arriving meanwhile waits for, by the slow log where it has nearly all calls.
    rest_us: Option<f64>,
    window_s: f64,
}

/// How long `names` held the main thread of a node, as [`is_one_of`] matches them.
pub fn held(node: &Node, names: &[&str]) -> Held {
    let spent = spent(node, names);
    let (bytes, writing_us) = written(node, names);
    let calls = (spent.calls as f64).max(1.0);
    let writes = bytes / calls >= OWN_WRITE_BYTES;
    let logged: Vec<f64> = slow_entries(node, 0)
        .into_iter()
        .filter(|e| is_one_of(names, &e.command.to_lowercase().replace(' ', "|")))
        .map(|e| e.us as f64)
        .collect();
    let sum: f64 = logged.iter().sum();
    let most = logged.iter().copied().fold(0.0, f64::max);
    let whole = sum > 0.9 * spent.usec as f64 && sum > 0.0;
    Held {
        calls: spent.calls as f64,
        inside_us: spent.usec as f64,
        writing_us: if writes { writing_us } else { 0.0 },
        reply_bytes: if writes { bytes / calls } else { 0.0 },
        longest_us: Some(most).filter(|us| *us > 0.0),
        rest_us: whole.then(|| logged.iter().map(|us| us * us).sum::<f64>() / (2.0 * sum)),
        window_s: node.window_s.max(0.001),
    }
}

/// Bytes that `names` sent and what writing them cost the main thread, in us. Where several commands answer with data, the bytes are
/// put down to them by the time they took.
fn written(node: &Node, names: &[&str]) -> (f64, f64) {
    let commands = node.foreign_commands();
    let data = commands.iter().filter(|(name, _)| is_one_of(ANSWERS_WITH_DATA, name));
    let (mut all_us, mut own_us) = (0.0, 0.0);
    for (name, stat) in data {
        all_us += stat.usec as f64;
        own_us += if is_one_of(names, name) { stat.usec as f64 } else { 0.0 };
    }
    let Some(sent) = node.delta("total_net_output_bytes").filter(|_| own_us > 0.0) else { return (0.0, 0.0) };
    // Before 7.0 replication is not counted by itself: each replica got what was written.
    let replicas = node.number("connected_slaves").unwrap_or(0.0);
    let offset = node.delta("master_repl_offset").unwrap_or(0.0);
    let replication = node.delta("total_net_repl_output_bytes").unwrap_or(offset * replicas);
    let bytes = (sent - replication).max(0.0);
    let grown = |field| node.delta(field).unwrap_or(0.0);
    let brief = grown("total_reads_processed") * READ_US + grown("total_connections_received") * CONNECTION_US;
    let outside = node.cpu().map(|(user, sys)| (user + sys - inside_share(node)) * 1e6 * node.window_s);
    let us = match outside {
        Some(us) => (us - brief).max(0.0).min(bytes * WRITE_NS_MOST / 1000.0),
        None => bytes * WRITE_NS / 1000.0,
    };
    let share = own_us / all_us;
    (bytes * share, us * share)
}

/// Share of a core inside commands. What runs inside scripts and transactions is in the time of these too, and is counted once.
pub fn inside_share(node: &Node) -> f64 {
    let (mut containers, mut others) = (0.0, 0.0);
    for (name, stat) in node.commands() {
        let sum = if name == "exec" || is_one_of(SCRIPTS, &name) { &mut containers } else { &mut others };
        *sum += stat.usec as f64;
    }
    // How much of the others ran inside them is not known: as much as can have.
    f64::max(containers, others) / 1e6 / node.window_s.max(0.001)
}

impl Held {
    /// Mean time of a call, its reply included, in us.
    pub fn mean_us(&self) -> f64 {
        (self.inside_us + self.writing_us) / self.calls.max(1.0)
    }

    /// Share of the window, 0 to 1.
    pub fn share(&self) -> f64 {
        ((self.inside_us + self.writing_us) / 1e6 / self.window_s).clamp(0.0, 1.0)
    }

    /// The longest call: by the slow log, or the mean where that has none.
    pub fn worst_us(&self) -> f64 {
        self.longest_us.unwrap_or(0.0).max(self.mean_us())
    }

    /// A part of it: calls that took this long inside, with their part of the replies.
    pub fn part(&self, calls: f64, inside_us: f64) -> Held {
        let share = if self.inside_us > 0.0 { (inside_us / self.inside_us).clamp(0.0, 1.0) } else { 0.0 };
        Held { calls, inside_us, writing_us: self.writing_us * share, ..*self }
    }

    /// The rest of it, without a part.
    pub fn without(&self, calls: f64, inside_us: f64) -> Held {
        let rest = self.part((self.calls - calls).max(0.0), (self.inside_us - inside_us).max(0.0));
        // Which of the logged calls are left is not known.
        if inside_us > 0.0 { Held { longest_us: None, rest_us: None, ..rest } } else { rest }
    }

    /// `11.0 ms on average, 52.0 ms at most, 31 % of the window`: each figure by its own name.
    pub fn figures(&self) -> String {
        let inside = self.inside_us / self.calls.max(1.0);
        let mut parts = vec![if self.calls > 1.5 {
            format!("{} on average", time_us(inside))
        } else {
            format!("{} in its one call", time_us(inside))
        }];
        if let Some(most) = self.longest_us.filter(|us| *us > inside && self.calls > 1.5) {
            parts.push(format!("{} at most", time_us(most)));
        }
        if self.writing_us > 0.1 * self.inside_us {
            parts.push(format!("{} more to write each reply", time_us(self.writing_us / self.calls.max(1.0))));
        }
        parts.push(format!("{} of the window", percent(self.share())));
        parts.join(", ")
    }

    /// What other commands wait for it: milliseconds on the mean request, and the sentence.
    ///
    /// A command that arrives at any moment finds it at work with the probability of its share, and waits for the rest of the call.
    pub fn others_wait(&self) -> (f64, String) {
        let rest = self.rest_us.unwrap_or(self.inside_us / self.calls.max(1.0) / 2.0)
            + self.writing_us / self.calls.max(1.0) / 2.0;
        let text = format!(
            "{} of all requests arrive while it runs and wait {} on average",
            percent(self.share()),
            time_us(rest)
        );
        (self.share() * rest / 1000.0, text)
    }
}

/// The time of the scripts that called `command` in the window: none if clients called it themselves.
///
/// commandstats counts a command inside a script twice: with the command, and in the script's own time. The slow log tells which it
/// was: some versions log no calls of scripts, the others have them right before their script.
pub fn in_scripts(node: &Node, command: &str) -> Option<Held> {
    let scripts = held(node, SCRIPTS);
    let inner = spent(node, &[&format!("={command}")]);
    if scripts.calls < 1.0 || inner.calls == 0 || inner.usec as f64 > 1.01 * scripts.inside_us {
        return None;
    }
    let upper = command.to_uppercase();
    let entries = slow_entries(node, 0);
    let (by_script, by_client): (Vec<&SlowEntry>, Vec<&SlowEntry>) =
        entries.iter().copied().filter(|e| e.command == upper).partition(|e| script_around(&entries, e).is_some());
    if !by_client.is_empty() {
        return None;
    }
    // Calls that clients had made themselves would be in the log, if it holds calls of this length.
    let logs_from = node.setting_number("slowlog-log-slower-than").unwrap_or(10_000.0);
    let would_be_logged = node.slowlog.value().is_some() && logs_from >= 0.0 && inner.mean_us > logs_from;
    let mostly_it = inner.usec as f64 > 0.8 * scripts.inside_us;
    (!by_script.is_empty() || would_be_logged || mostly_it).then_some(scripts)
}

/// The script that called what this entry is about, if a script did: most versions log such calls, right before their script.
pub fn script_around<'a>(entries: &[&'a SlowEntry], inner: &SlowEntry) -> Option<&'a SlowEntry> {
    let is_script = |e: &SlowEntry| is_one_of(SCRIPTS, &e.command.to_lowercase());
    if is_script(inner) {
        return None;
    }
    // Some versions name the script's client, some none.
    let nameless = inner.client.is_empty() || inner.client.ends_with(":0");
    entries.iter().copied().find(|e| {
        is_script(e)
            && e.id > inner.id
            && e.us >= inner.us
            && (nameless || e.client == inner.client)
            && e.at_s >= inner.at_s
            && e.at_s - inner.at_s <= e.us / 1_000_000 + 1
    })
}

/// ` by 10.0.0.1:5 app`: who sent a logged command, where the log names the client (4.0+).
pub fn sender(entry: &SlowEntry) -> String {
    let name = format!("{} {}", entry.client, entry.client_name);
    if name.trim().is_empty() { String::new() } else { format!(" by {}", name.trim()) }
}
