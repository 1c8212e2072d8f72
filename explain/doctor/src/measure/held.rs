//! What a command costs everyone else: the time inside it, and the time that writing its replies takes.
//!
//! The server times a command without the writing of its reply. For replies of megabytes that takes the main thread
//! too, in pieces, and it is taken from the CPU time the main thread spent outside commands.

use unslow_facts::{Facts, Node, SlowEntry};
use unslow_topology::CommandStat;
use unslow_units::{percent, time_us};

use super::{between, is_one_of, residual, slow_entries, spent};

/// Commands that run scripts or functions.
pub const SCRIPTS: &[&str] = &["eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"];

/// Commands whose replies hold data in one string, and so may be large.
const ANSWERS_WITH_A_STRING: &[&str] = &[
    "client|list",
    "cluster|nodes",
    "dump",
    "get",
    "getdel",
    "getex",
    "getrange",
    "getset",
    "hget",
    "info",
    "lindex",
    "substr",
];

/// The same in several elements, or in what a script returns.
const ANSWERS_WITH_A_LIST: &[&str] = &[
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
    "hgetall",
    "hkeys",
    "hmget",
    "hrandfield",
    "hscan",
    "hvals",
    "keys",
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
    "cluster|slots",
    "cluster|shards",
    "command",
];

/// A reply of this size is the command's own doing, however fast the command itself was.
pub const LARGE_REPLY_BYTES: f64 = 262_144.0;
/// Smaller replies than this leave with the others': their writing is the price of any command.
const OWN_WRITE_BYTES: f64 = 65_536.0;
/// What writing a byte of a large reply costs, in ns: 0.4 to 0.6 on Valkey 9.1 over loopback (HGETALL, SUNION, CLIENT
/// LIST). Used where the server does not show its CPU time.
const WRITE_NS: f64 = 0.5;
/// No less than this is put down to writing, as long as the main thread did anything outside commands.
const WRITE_NS_LEAST: f64 = 0.4;
/// Never more than this is put down to writing, whatever else the main thread did outside commands.
const WRITE_NS_MOST: f64 = 3.0;

/// What a server writes to a client before it turns to the others (NET_MAX_WRITES_PER_EVENT of server.h). A string goes
/// out in one piece, as far as its socket takes it, and so does every reply where maxmemory is reached.
const SLICE_BYTES: f64 = 65_536.0;

/// What freeing an argument costs, in ns, an estimate: with it, the wait behind MGET of 10,000 keys on Valkey 9.1
/// comes out at 0.23 to 0.26 ms, and seven runs measured 0.17 to 0.31, 0.23 on average
/// (bench/runs/2026-11-28-two-cores/odd-engines.md).
const FREE_NS: f64 = 40.0;

/// Whether its replies may be large.
fn answers_with_data(name: &str) -> bool {
    is_one_of(ANSWERS_WITH_A_STRING, name) || is_one_of(ANSWERS_WITH_A_LIST, name)
}

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
    /// Pieces that a reply is written in, with other clients' commands in between.
    slices: f64,
    /// The longest that the slow log has of the window.
    pub longest_us: Option<f64>,
    /// Mean rest of a call that a command arriving meanwhile waits for, without the writing of its reply: by the slow
    /// log where it has nearly all calls, or by the server's histograms. None where only the mean length is known.
    rest_us: Option<f64>,
    /// What the scripts around a call take beside it, in us: who arrives meanwhile waits for that too.
    around_us: f64,
    /// What freeing the arguments of a call takes, in us: it is in no command's time, and before others are served.
    freeing_us: f64,
    window_s: f64,
    /// Whether the time inside is the server's less what is estimated that it waited for a processor.
    estimated: bool,
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
    let is_string = |name: &String| !is_one_of(names, name) || is_one_of(ANSWERS_WITH_A_STRING, name);
    let is_full = node.number("maxmemory").is_some_and(|most| most > 0.0 && node.number("used_memory") >= Some(most));
    let in_one_piece = is_full || node.foreign_commands().keys().all(is_string);
    Held {
        calls: spent.calls as f64,
        inside_us: spent.usec as f64,
        writing_us: if writes { writing_us } else { 0.0 },
        reply_bytes: if writes { bytes / calls } else { 0.0 },
        slices: if in_one_piece { 1.0 } else { (bytes / calls / SLICE_BYTES).max(1.0) },
        longest_us: Some(most).filter(|us| *us > 0.0),
        rest_us: if whole { residual::of_calls(&logged) } else { residual::of_commands(node, names) },
        around_us: 0.0,
        freeing_us: 0.0,
        window_s: node.window_s.max(0.001),
        estimated: false,
    }
}

/// Bytes that `names` sent and what writing them cost the main thread, in us. Where several commands answer with data,
/// the bytes are put down to them by the time they took.
fn written(node: &Node, names: &[&str]) -> (f64, f64) {
    let commands = node.foreign_commands();
    let data = commands.iter().filter(|(name, _)| answers_with_data(name));
    let (mut all_us, mut own_us) = (0.0, 0.0);
    for (name, stat) in data {
        all_us += stat.usec as f64;
        own_us += if is_one_of(names, name) { stat.usec as f64 } else { 0.0 };
    }
    let Some(bytes) = sent_bytes(node).filter(|_| own_us > 0.0) else { return (0.0, 0.0) };
    let us = match between::outside_us(node) {
        Some(outside_us) => writing_us(outside_us, between::traffic_us(node), bytes),
        None => bytes * WRITE_NS / 1000.0,
    };
    let share = own_us / all_us;
    (bytes * share, us * share)
}

/// Bytes that the server sent to clients in the window; what replicas got is left out. `None` where it is not counted.
pub fn sent_bytes(node: &Node) -> Option<f64> {
    let sent = node.delta("total_net_output_bytes")?;
    // Before 7.0 replication is not counted by itself: each replica got what was written.
    let replicas = node.number("connected_slaves").unwrap_or(0.0);
    let offset = node.delta("master_repl_offset").unwrap_or(0.0);
    let replication = node.delta("total_net_repl_output_bytes").unwrap_or(offset * replicas);
    Some((sent - replication).max(0.0))
}

/// Bytes that clients sent to the server in the window; what its master sent is left out. `None` where it is not
/// counted.
pub fn received_bytes(node: &Node) -> Option<f64> {
    let received = node.delta("total_net_input_bytes")?;
    // Before 7.0 replication is not counted by itself.
    let stream = if node.is_master() { 0.0 } else { node.delta("master_repl_offset").unwrap_or(0.0) };
    let replication = node.delta("total_net_repl_input_bytes").unwrap_or(stream);
    Some((received - replication).max(0.0))
}

/// What moving these bytes through its sockets cost the main thread, in us: the CPU time outside commands that plain
/// traffic does not explain, within the known price of a byte. `None` where the server does not show its CPU time.
pub fn moving_us(node: &Node, bytes: f64) -> Option<f64> {
    between::outside_us(node).map(|outside_us| writing_us(outside_us, between::traffic_us(node), bytes))
}

/// What of the CPU time outside commands went into writing these bytes, in us: what plain traffic does not explain,
/// within what a byte is known to cost.
fn writing_us(outside_us: f64, traffic_us: f64, bytes: f64) -> f64 {
    let least = (bytes * WRITE_NS_LEAST / 1000.0).min(outside_us).max(0.0);
    (outside_us - traffic_us).max(least).min(bytes * WRITE_NS_MOST / 1000.0)
}

/// Share of a core inside commands. What runs inside scripts and transactions is in the time of these too, and is
/// counted once.
pub fn inside_share(node: &Node) -> f64 {
    let (mut containers, mut others) = (0.0, 0.0);
    for (name, stat) in node.commands() {
        let sum = if name == "exec" || is_one_of(SCRIPTS, &name) { &mut containers } else { &mut others };
        *sum += stat.usec as f64;
    }
    // How much of the others ran inside them is not known: as much as can have.
    f64::max(containers, others) / 1e6 / node.window_s.max(0.001)
}

/// A main thread that waits for a processor for more of the window than this is interrupted inside its commands too.
const INTERRUPTED: f64 = 0.01;

/// Of the time inside commands, the part that the main thread can have been on a processor for: what it waited for one,
/// or for a page, is not the commands'. 1 where that is not known.
pub fn on_cpu(node: &Node) -> f64 {
    let inside = inside_share(node);
    match node.cpu() {
        Some((user, sys)) if inside > 0.01 => ((user + sys) / inside).min(1.0),
        _ => 1.0,
    }
}

/// [`held`], for commands whose calls are all of one kind, without what the server stood still or waited for a
/// processor meanwhile: its clock counts that as time inside the command. Where it waited, each call counts for at most
/// what the median call took; all of them together for no less than what is left of them without the whole wait. Where
/// that is not known, or it stood still, they get what its CPU time leaves for them.
pub fn held_on_cpu(facts: &Facts, node: &Node, names: &[&str]) -> Held {
    let all = held(node, names);
    let waited = facts.process(node).and_then(|(_, process)| process.run_delay_share);
    let Some(waited) = waited.filter(|share| *share > INTERRUPTED) else { return all.at_most(cpu_left_us(node, &all)) };
    let foreign = node.foreign_commands();
    let most_us = |(name, stat): (&String, &CommandStat)| {
        let usual = residual::median_at_most(node, name).map(|us| us * stat.calls as f64);
        usual.unwrap_or(f64::INFINITY).min(stat.usec as f64)
    };
    let usual_us: f64 = foreign.iter().filter(|(name, _)| is_one_of(names, name)).map(most_us).sum();
    let least_us = all.inside_us - waited * all.window_s * 1e6;
    all.at_most(usual_us.max(least_us).min(all.inside_us * on_cpu(node)))
}

/// The CPU time that other commands and plain traffic leave for these, in us, where all commands together took longer
/// than the main thread was on a processor: whose time the rest was is not known, so it is not put down to them.
fn cpu_left_us(node: &Node, held: &Held) -> f64 {
    let window_us = held.window_s * 1e6;
    match node.cpu() {
        Some((user, sys)) if on_cpu(node) < 1.0 => {
            let others_us = inside_share(node) * window_us - held.inside_us;
            ((user + sys) * window_us - others_us - between::traffic_us(node)).max(0.0)
        }
        _ => held.inside_us,
    }
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

    /// The same calls with less time inside them, where that is an estimate of what was theirs.
    fn at_most(&self, inside_us: f64) -> Held {
        let estimated = inside_us < 0.99 * self.inside_us;
        Held { estimated, ..self.part(self.calls, inside_us.min(self.inside_us)) }
    }

    /// Whether an estimate of what the server waited for a processor was taken off.
    pub fn is_estimated(&self) -> bool {
        self.estimated
    }

    /// Whose clocks measured [`Held::share`].
    pub fn clocks(&self) -> &'static str {
        if self.writing_us > 0.0 {
            "the server's own clock for these calls, in this window, and its CPU time for writing their replies"
        } else {
            "the server's own clock for these calls, in this window"
        }
    }

    /// ` (about 2.5 % with reads and wake-ups)`: with an estimate of what its calls cost outside the command, which no
    /// clock of the server's tells apart. For commands that clients send one at a time, as monitoring does: each call
    /// is then a read by itself. Empty where that changes nothing.
    pub fn beside_words(&self, node: &Node) -> String {
        let beside = self.calls * between::call_us(node) / 1e6 / self.window_s;
        let (alone, with) = (percent(self.share()), percent((self.share() + beside).min(1.0)));
        if alone == with { String::new() } else { format!(" (about {with} with reads and wake-ups)") }
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

    /// A part of it: the calls with these times inside, in us.
    pub fn logged(&self, times_us: &[f64]) -> Held {
        let part = self.part(times_us.len() as f64, times_us.iter().sum());
        Held { rest_us: residual::of_calls(times_us), ..part }
    }

    /// The same calls, as commands of these scripts: the server serves no other client before the script has ended.
    ///
    /// Without calls of k us in a script of s us, the clients behind that script wait s²/2 - (s - k)²/2 = k (k/2 + s -
    /// k) less in all. So each us of the calls counts with the rest of the script, not with the rest of the call alone.
    pub fn inside(&self, scripts: &Held) -> Held {
        // Not known where other scripts ran as well; at the ends of the window one may be counted without its calls.
        if self.calls < 1.0 || scripts.calls < 1.0 || self.calls + 1.0 < scripts.calls {
            return *self;
        }
        let each = (self.calls / scripts.calls).max(1.0);
        let others_us = ((scripts.inside_us - self.inside_us) / scripts.calls).max(0.0);
        Held { around_us: others_us + (each - 1.0) * self.inside_us / self.calls / 2.0, ..*self }
    }

    /// The same calls, with this many arguments each, on average.
    pub fn with_arguments(&self, arguments: f64) -> Held {
        Held { freeing_us: arguments * FREE_NS / 1000.0, ..*self }
    }

    /// The rest of it, without a part.
    pub fn without(&self, calls: f64, inside_us: f64) -> Held {
        let rest = self.part((self.calls - calls).max(0.0), (self.inside_us - inside_us).max(0.0));
        // Which of the logged calls are left is not known.
        if inside_us > 0.0 { Held { longest_us: None, rest_us: None, ..rest } } else { rest }
    }

    /// `11 ms on average, 52 ms at most, 31 % of the window`: each figure by its own name.
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
    /// A command that arrives at any moment finds it at work with the probability of its share, and waits for the rest
    /// of the call, for what the server does right behind it, and for the first piece of its reply. A command that
    /// arrives while the reply is written waits for half a piece, and for a second one if its turn comes after the
    /// writer's.
    pub fn others_wait(&self) -> (f64, String) {
        let calls = self.calls.max(1.0);
        let rest = self.rest_us.unwrap_or(self.inside_us / calls / 2.0) + self.around_us;
        let piece_us = self.writing_us / calls / self.slices;
        let waits = [
            (self.inside_us, rest + self.freeing_us + piece_us),
            (self.freeing_us * calls, self.freeing_us / 2.0 + piece_us),
            (self.writing_us, piece_us * (1.0 - 0.5 / self.slices)),
        ];
        let busy_us: f64 = waits.iter().map(|(us, _)| us).sum();
        let mean_us = waits.iter().map(|(us, wait)| us * wait).sum::<f64>() / busy_us.max(1.0);
        let share = (busy_us / 1e6 / self.window_s).clamp(0.0, 1.0);
        let text =
            format!("{} of all requests arrive while it runs and wait {} on average", percent(share), time_us(mean_us));
        (share * mean_us / 1000.0, text)
    }
}

/// The time of the scripts that called `command` in the window: none if clients called it themselves.
///
/// commandstats counts a command inside a script twice: with the command, and in the script's own time. The slow log
/// tells which it was: some versions log no calls of scripts, the others have them right before their script.
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

/// The script that called what this entry is about, if a script did: most versions log such calls, right before their
/// script.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn held(calls: f64, mean_us: f64) -> Held {
        Held {
            calls,
            inside_us: calls * mean_us,
            writing_us: 0.0,
            reply_bytes: 0.0,
            longest_us: None,
            rest_us: None,
            slices: 1.0,
            around_us: 0.0,
            freeing_us: 0.0,
            window_s: 10.0,
            estimated: false,
        }
    }

    #[test]
    fn writing_is_what_plain_traffic_does_not_explain_within_the_price_of_a_byte() {
        // 10 MB: 4 to 30 ms.
        for (outside_ms, traffic_ms, expected_ms) in [
            (50.0, 30.0, 20.0),
            (50.0, 49.0, 4.0),
            (50.0, 60.0, 4.0),
            (3.0, 60.0, 3.0),
            (-5.0, 0.0, 0.0),
            (90.0, 10.0, 30.0),
        ] {
            let ms = writing_us(outside_ms * 1000.0, traffic_ms * 1000.0, 1e7) / 1000.0;
            assert!((ms - expected_ms).abs() < 1e-9, "{outside_ms} ms outside, {traffic_ms} ms of traffic: {ms}");
        }
        assert_eq!(writing_us(1e6, 0.0, 0.0), 0.0);
    }

    #[test]
    fn who_meets_a_command_in_a_script_waits_for_the_script() {
        for (what, commands, scripts, rest_us) in [
            ("nearly all of it", held(10.0, 39_000.0), held(10.0, 40_000.0), 20_500.0),
            ("a tenth of it", held(10.0, 1000.0), held(10.0, 10_000.0), 9500.0),
            // Four calls of 1 ms each in 10 ms: those that meet them wait for 8 ms on average, 6 of which are not
            // theirs.
            ("four times in each", held(40.0, 1000.0), held(10.0, 10_000.0), 8000.0),
            ("one script still runs", held(9.0, 1000.0), held(10.0, 10_000.0), 9600.0),
            ("other scripts run too", held(10.0, 1000.0), held(500.0, 10_000.0), 500.0),
            ("no scripts", held(10.0, 1000.0), held(0.0, 0.0), 500.0),
        ] {
            let inside = commands.inside(&scripts);
            let (ms, text) = inside.others_wait();
            let expected = inside.share() * rest_us / 1000.0;
            assert!((ms / expected - 1.0).abs() < 1e-9, "{what}: {ms} instead of {expected}; {text}");
        }
        // Against the formula for one script: what it costs the others with the calls, less what it costs without.
        let (s, k): (f64, f64) = (10_000.0, 4000.0);
        let (ms, _) = held(40.0, 1000.0).inside(&held(10.0, s)).others_wait();
        let expected = (s * s / 2.0 - (s - k) * (s - k) / 2.0) * 10.0 / 10e6 / 1000.0;
        assert!((ms / expected - 1.0).abs() < 1e-9, "{ms} instead of {expected}");
    }

    #[test]
    fn calls_that_are_known_one_by_one_need_no_mean() {
        let part = held(1000.0, 100.0).logged(&[1000.0, 19_000.0]);
        assert_eq!((part.calls, part.inside_us), (2.0, 20_000.0));
        let (ms, _) = part.others_wait();
        assert!((ms - 0.002 * 9.05).abs() < 1e-9, "a fifth of a percent waits for 9.05 ms: {ms}");
        assert_eq!(held(1000.0, 100.0).logged(&[]).others_wait().0, 0.0);
    }
}
