//! Single commands with hundreds or thousands of arguments hold up every other client.
//!
//! MGET, MSET, HMGET, HSET, SADD, ZADD, DEL and UNLINK process all their arguments in one go on the one thread that
//! serves all clients, and the reply of an MGET is built in full before anything is sent. Each key takes less than a
//! microsecond, so ten thousand of them stall the server for several milliseconds. The keys may all be small: the batch
//! is at fault, not a key.
//!
//! Seen when: such a command takes over 10 % of a core at over 0.5 ms a call, or over 10 ms a call five times or with
//! 1 % of a core; and of its calls in the window that are in the slow log, those with over 500 arguments took most of
//! the time. The log keeps 32 arguments of a command and a note of how many more there were; unslow keeps only the
//! number.
//!
//! Not to be taken for: one large key (`big_key`), where few arguments are enough; thousands of short commands in MULTI
//! (`giant_transactions`); a command with few arguments that something else held up. If the slow log is denied, or logs
//! only longer calls than these, the arguments are not known, and `slow_command` names the command.
//!
//! How to confirm: `SLOWLOG GET 10`: the last argument says "... (9970 more arguments)". Redis 8.8 and newer count in
//! INFO how many commands the log took in (slowlog_commands_count): if the log is denied and that count does not move,
//! there was nothing to see.
//!
//! What to do: batches of 100 to 500, several of them in one pipeline, so that other clients are served in between.
//! Sources: INFO commandstats, SLOWLOG GET; slowlog.c (SLOWLOG_ENTRY_MAX_ARGC).

use unslow_facts::SlowEntry;

use super::callers;
use super::prelude::*;
use super::slow_command::{is_heavy, rest_of};

pub const TITLE: &str = "Giant commands";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

/// Arguments from which a call is a batch that should be several.
const ARGUMENTS: u32 = 500;
/// Arguments of a batch that holds others up only briefly.
const BATCH: f64 = 100.0;
/// Commands that the slow log took in since the server started (Redis 8.8+).
const LOGGED: &str = "slowlog_commands_count";
/// Takes many keys besides those of [`PER_ARGUMENT`]; what each key costs depends on its size as well.
const DEL: &str = "DEL";

/// A command of one server whose calls are giant.
struct Giant<'a> {
    node: &'a Node,
    /// As commandstats names it.
    name: String,
    held: Held,
    /// Its giant calls in the window, the longest first.
    entries: Vec<&'a SlowEntry>,
}

impl Giant<'_> {
    fn command(&self) -> String {
        self.name.to_uppercase()
    }

    /// Arguments of the longest call, the command left out.
    fn arguments(&self) -> f64 {
        self.entries.first().map_or(0.0, |e| f64::from(e.args) - 1.0)
    }

    /// Arguments of a call, on average: the others are shorter by their time.
    fn mean_arguments(&self) -> f64 {
        let longest_us = self.entries.first().map_or(0.0, |e| e.us as f64).max(1.0);
        self.arguments() * (self.held.inside_us / self.held.calls.max(1.0) / longest_us).min(1.0)
    }
}

/// The commands of a node that this rule reports, as commandstats names them.
pub(super) fn of(node: &Node) -> Vec<String> {
    look(node).into_iter().map(|g| g.name).collect()
}

fn look(node: &Node) -> Vec<Giant<'_>> {
    let logged = slow_entries(node, 0);
    if !logged.iter().any(|e| e.args > ARGUMENTS) {
        return Vec::new();
    }
    let giant = |name: &String| {
        let command = name.to_uppercase();
        if command != DEL && !PER_ARGUMENT.contains(&command.as_str()) {
            return None;
        }
        let own: Vec<&SlowEntry> = logged.iter().copied().filter(|e| e.command == command).collect();
        let us = |least: u32| own.iter().filter(|e| e.args > least).map(|e| e.us).sum::<u64>();
        let most = 2 * us(ARGUMENTS) > us(0);
        // What a script calls is the script's stall.
        if !most || in_scripts(node, name).is_some() {
            return None;
        }
        let held = rest_of(node, name);
        let mut entries: Vec<&SlowEntry> = own.into_iter().filter(|e| e.args > ARGUMENTS).collect();
        entries.sort_by_key(|e| std::cmp::Reverse(e.us));
        is_heavy(node, &held).then(|| Giant { node, name: name.clone(), held, entries })
    };
    node.foreign_commands().keys().filter_map(giant).collect()
}

pub fn check(facts: &Facts) -> Verdict {
    let rows = by_worst(facts.live().flat_map(look).collect(), |g: &Giant| g.held.share());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|g| g.node.address.as_str())).into();
    }
    if let Some(gap) = facts.live().find_map(unseen) {
        return Verdict::Unknown(gap);
    }
    let logged = facts.live().flat_map(|n| slow_entries(n, 0)).map(|e| e.args).max();
    let text = match logged {
        None => "giant commands: nothing in the slow log of the window".to_string(),
        Some(most) => format!("giant commands: at most {} words in the slow log of the window", count(most.into())),
    };
    absent_by_commandstats(facts, "giant commands", text)
}

/// Why the arguments of a node's commands are not known.
fn unseen(node: &Node) -> Option<Gap> {
    let what = format!("giant commands of {}", node.address);
    let from_us = node.setting_number("slowlog-log-slower-than");
    if from_us.is_some_and(|us| us < 0.0) {
        let why = format!("{what}: the slow log is off");
        return Some(Gap::new(Lack::Other, why, "CONFIG SET slowlog-log-slower-than 10000"));
    }
    // Where the log is denied, its counter says whether there was anything to see.
    let is_empty = from_us.is_some() && node.delta(LOGGED).is_some_and(|n| n < 1.0);
    node.slowlog.missing().filter(|_| !is_empty).map(|gap| gap.of(&what))
}

fn found(g: &Giant) -> Finding {
    let (node, command, arguments) = (g.node, g.command(), g.arguments());
    let (ms, wait) = g.held.with_arguments(g.mean_arguments()).others_wait();
    let mean = g.held.mean_us();
    let mut finding = Finding::new(format!(
        "{command} with {} arguments on {} takes {}",
        count(arguments),
        node.address,
        g.held.figures()
    ))
    .latency(ms, wait)
    .proven("the server timed these calls in the window, and its slow log says how many arguments they had")
    .gain(
        format!(
            "in batches of {BATCH:.0}, other clients wait {} instead of {}",
            time_us(mean * BATCH / arguments),
            time_us(mean)
        ),
        format!("{mean:.0} us x {BATCH:.0} / {arguments:.0} arguments = {:.0} us", mean * BATCH / arguments),
    )
    .saw(node, "INFO commandstats", format!("{command}: {} calls, {}", count(g.held.calls), g.held.figures()));
    if let Some(entry) = g.entries.first() {
        let value = format!("{command}, {} words, {}{}", entry.args, time_us(entry.us as f64), sender(entry));
        finding = finding.saw_then(node, "SLOWLOG GET 128", value, logged_ms(node, entry.at_s));
    }
    let batches = callers::advice(
        node,
        &[
            (
                "redis-py",
                "redis-py: for part in batched(keys, 100): p.mget(part)   on p = r.pipeline(transaction=False)",
            ),
            ("jedis", "Jedis: Lists.partition(keys, 100), pipelined.mget(...) for each part"),
            ("lettuce", "Lettuce: async mget(...) for each 100 keys, then LettuceFutures.awaitAll"),
            ("go-redis", "go-redis: pipe.MGet(ctx, keys[i:i+100]...) for each part, then pipe.Exec(ctx)"),
            ("ioredis", "ioredis: pipeline.mget(...) for each 100 keys, then exec()"),
        ],
    );
    finding = callers::shown(finding, node, &[&format!("={}", g.name)])
        .not(format!("a pipeline of short commands: one call has {} arguments", count(arguments)))
        .fix(
            "Send batches of 100 to 500 arguments, several of them in one pipeline",
            &batches,
            "the operation as a whole is no longer atomic",
            "",
        );
    match command.as_str() {
        DEL => finding.fix(
            "Use UNLINK in batches, which frees the memory in the background (4.0+)",
            &["UNLINK key1 ... key100"],
            "memory is freed a little later",
            "",
        ),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::made::{NOW_MS, answer, node_at, of, said};
    use unslow_facts::Seen;

    /// Ten seconds with twenty calls of this command, which took this long together, all of them in the slow log.
    fn facts(command: &str, usec: u64, args: u32) -> Facts {
        let name = command.to_lowercase();
        let before = "redis_version:7.2.4\r\nrole:master\r\ntotal_commands_processed:0\r\n";
        let after =
            format!("total_commands_processed:20\r\ncmdstat_{name}:calls=20,usec={usec},usec_per_call=1.00\r\n");
        let mut node = node_at("10.0.0.1:6379", before, &after);
        let entry = |id: u64| SlowEntry {
            id,
            at_s: NOW_MS / 1000 - id % 8,
            us: usec / 20,
            command: command.into(),
            args,
            key: None,
            client: "10.0.0.9:5".into(),
            client_name: "report".into(),
        };
        let value = (0..20).map(entry).collect();
        node.slowlog = Seen::yes(value, "SLOWLOG GET 128", NOW_MS);
        of(DeploymentKind::Standalone, vec![node])
    }

    #[test]
    fn the_arguments_of_giant_calls_are_freed_before_others_are_served() {
        let wait_ms = |calls: u64| {
            let mut facts = facts("MGET", 4_000_000, 10_001);
            // Calls beside them that are too short for the slow log, and hardly take any time.
            let line = format!("calls={calls},usec=4000000,usec_per_call=1.00");
            let last = facts.nodes[0].last.as_mut().unwrap();
            last.info.0.insert("cmdstat_mget".into(), line);
            found(&look(&facts.nodes[0])[0]).impact.value
        };
        // 40 % wait 100 ms for the rest of 200, and 0.4 for the arguments: 10,000 of 40 ns.
        assert!((wait_ms(20) - 0.4 * 100.4).abs() < 0.01, "{}", wait_ms(20));
        // However many are short, no more is freed than in the giant ones.
        assert!((40.0..wait_ms(20)).contains(&wait_ms(2000)), "{}", wait_ms(2000));
    }

    #[test]
    fn a_batch_of_thousands_of_keys_is_told_with_its_size_and_its_sender() {
        for command in ["MGET", "MSET", "DEL", "HMGET"] {
            let facts = facts(command, 400_000, 10_001);
            let found = said(check(&facts));
            assert!(found.title.contains(&format!("{command} with 10,000 arguments")), "{}", found.title);
            assert!(found.gain.text.contains("200 us instead of 20 ms"), "{}", found.gain.text);
            assert!(found.evidence.iter().any(|e| e.value.contains("report")), "{:?}", found.evidence);
            assert!(!super::super::slow_command::speaks(&facts.nodes[0]), "{command} is told once");
        }
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, command, usec, args) in [
            ("held up by something else", "MGET", 400_000, 4),
            ("no more is known than what the log keeps", "MGET", 400_000, 32),
            ("another kind of command", "SUNION", 400_000, 10_001),
            ("large, and over at once", "MGET", 4_000, 10_001),
        ] {
            assert_eq!(answer(&check(&facts(command, usec, args))), "absent", "{what}");
        }
        // Then the mean alone says that it is slow.
        assert!(super::super::slow_command::speaks(&facts("MGET", 400_000, 32).nodes[0]));
    }

    #[test]
    fn without_the_slow_log_nothing_is_known_of_arguments() {
        let mut facts = facts("MGET", 400_000, 10_001);
        facts.nodes[0].slowlog = Seen::default();
        assert_eq!(answer(&check(&facts)), "unknown");
        // Redis 8.8 counts what its log took in, and nothing was.
        let count = |facts: &mut Facts, last: &str| {
            let node = &mut facts.nodes[0];
            for (sample, n) in [(&mut node.first, "7"), (&mut node.last, last)] {
                let info = &mut sample.as_mut().expect("a sample").info;
                info.0.insert(LOGGED.into(), n.into());
            }
            let settings = [("slowlog-log-slower-than".to_string(), "10000".to_string())].into();
            node.config = Seen::yes(settings, "CONFIG GET", NOW_MS);
        };
        count(&mut facts, "7");
        assert_eq!(answer(&check(&facts)), "absent");
        count(&mut facts, "9");
        assert_eq!(answer(&check(&facts)), "unknown");
    }
}
