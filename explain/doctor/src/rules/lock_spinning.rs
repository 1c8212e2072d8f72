//! Clients wait for a lock by asking for it over and over.
//!
//! SET key token NX (or SETNX) shows a client immediately that another one holds the lock. Without a pause it asks
//! again, a round trip later, and so do all the others that wait. The holder's own commands, including the release,
//! queue up with those attempts: the more clients wait, the later the lock is free.
//!
//! Seen when: at least 90 % of the SET and SETNX calls changed nothing, at over 200 a second, these take over 1 % of a
//! core, and clients release something too (DEL, UNLINK or a script), but at most once for every five attempts. The
//! server does not count how many SETs were refused by NX, but there is a lower bound: each SET that takes effect is a
//! change (rdb_changes_since_last_save). The rest changed nothing, and a SET without a condition always changes
//! something. SET within scripts is counted as well.
//!
//! Not to be taken for: duplicate filters and rate limiters (SET NX EX on keys that are never deleted: the expiry is
//! the point); a cache that is filled with NX; writes of other commands, which only make the bound too low. Locks that
//! are hashes (Redisson) or are taken by other commands within a script are not seen: a script that finds the lock held
//! looks like one that only reads.
//!
//! How to confirm: run `INFO commandstats` twice: cmdstat_set, cmdstat_setnx and cmdstat_del, together with
//! rdb_changes_since_last_save of `INFO persistence`; `CLIENT LIST`: connections with cmd=set.
//!
//! What to do: wait before the next attempt, longer each time and by a random amount; or let the holder wake the next
//! client.
//! Sources: INFO commandstats and persistence; t_string.c (setGenericCommand returns before it changes anything where
//! NX or XX does not hold); the price of a read and a turn of the event loop in `measure/between.rs`; Redis
//! documentation on distributed locks.

use super::prelude::*;
use super::{busy_polling, callers};

pub const TITLE: &str = "Lock spinning";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Commands that take a lock, and those that give it back.
const TAKES: &[&str] = &["set", "setnx"];
const RELEASES: &[&str] = &["del", "delex", "delifeq", "unlink", "eval", "evalsha", "fcall"];
/// Of the attempts; a second; of a core.
const SHARE: f64 = 0.9;
const LEAST: f64 = 200.0;
const CORE: f64 = 0.01;
/// Attempts in vain for each release.
const FOR_EACH: f64 = 5.0;
/// Of all commands: from here on the rest of the traffic is judged once the attempts are gone.
const MOST: f64 = 0.4;

/// What the clients of one server try.
struct Spin<'a> {
    node: &'a Node,
    attempts: f64,
    /// How many of them changed nothing, at least.
    vain: f64,
    changes: f64,
    releases: f64,
    mean_us: f64,
    /// Share of a core that those in vain take.
    core: f64,
}

impl Spin<'_> {
    /// `None` where the counters do not say.
    fn of(node: &Node) -> Option<Spin<'_>> {
        node.application_ops()?;
        let changes = busy_polling::changes(node)?;
        let takes = spent(node, TAKES);
        let attempts = takes.calls as f64;
        // One that failed (a wrong type) is an error and no lock that is held.
        let all = node.foreign_commands();
        let failed: u64 = TAKES.iter().filter_map(|name| all.get(*name)).map(|stat| stat.failed).sum();
        let vain = (attempts - failed as f64 - changes).max(0.0);
        let each_us = takes.mean_us + call_us(node) / node.depth().unwrap_or(1.0).max(1.0);
        Some(Spin {
            node,
            attempts,
            vain,
            changes,
            releases: spent(node, RELEASES).calls as f64,
            mean_us: takes.mean_us,
            core: vain * each_us / 1e6 / node.window_s.max(0.001),
        })
    }

    fn rate(&self) -> f64 {
        self.vain / self.node.window_s.max(0.001)
    }

    fn hurts(&self) -> bool {
        let in_vain = self.vain >= SHARE * self.attempts && self.rate() > LEAST && self.core > CORE;
        let are_locks = self.releases >= 1.0 && self.vain >= FOR_EACH * self.releases;
        // A replica replays what took effect.
        in_vain && are_locks && self.node.is_master()
    }
}

/// Whether attempts in vain are so many that the rest of the traffic can only be judged without them.
pub(super) fn is_most(node: &Node) -> bool {
    Spin::of(node).is_some_and(|s| s.hurts() && s.vain >= MOST * node.processed().unwrap_or(f64::INFINITY))
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "attempts to take a lock";
    let all: Vec<Spin<'_>> = facts.live().filter_map(Spin::of).collect();
    let rows = by_worst(all.iter().filter(|s| s.hurts()).collect(), |s| s.core);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|s| s.node.address.as_str())).into();
    }
    let hidden = |n: &&Node| n.is_master() && spent(n, TAKES).rate > LEAST && busy_polling::changes(n).is_none();
    if let Some(node) = facts.live().find(hidden) {
        let why = format!("{WHAT}: {} saved in the window, which resets its count of changes", node.address);
        return Verdict::unknown(Lack::Time, why, "run again");
    }
    match by_worst(all.iter().collect(), |s| s.vain).first() {
        None => Verdict::absent(facts, WHAT, None),
        Some(s) => {
            let (attempts, vain) = (count(s.attempts), count(s.vain));
            let text =
                format!("{WHAT}: of {attempts} calls of SET and SETNX, {vain} are known to have changed nothing");
            absent_by_commandstats(facts, WHAT, text)
        }
    }
}

fn found(s: &Spin<'_>) -> Finding {
    let (node, rate, core) = (s.node, s.rate(), s.core);
    let each_us = core / rate.max(0.001) * 1e6;
    let mut finding = Finding::new(format!(
        "Clients ask {} for a lock that is held, {} times a second: {} of the SET NX calls change nothing",
        node.address,
        count(rate),
        percent(s.vain / s.attempts.max(1.0))
    ))
    .core(core, format!("about {} of a core on {} goes into failed attempts", percent(core), node.address))
    .gain(
        format!("with clients that wait between attempts, nearly all of {} of a core is free again", percent(core)),
        format!("{rate:.0} attempts/s x {each_us:.1} us = {core:.4} cores"),
    )
    .likely(
        "the server counted the calls, and its count of changes shows that most changed nothing; that these keys are \
         locks is inferred from the releases; the cost of reading and waking up for each call is an estimate",
    )
    .saw(
        node,
        "INFO commandstats",
        format!(
            "SET and SETNX: {} calls, {} each; DEL and scripts: \
                 {}",
            count(s.attempts),
            time_us(s.mean_us),
            count(s.releases)
        ),
    )
    .saw(
        node,
        "INFO persistence",
        format!("rdb_changes_since_last_save +{:.0} in {:.1} s", s.changes, node.window_s),
    );
    finding = callers::shown(finding, node, TAKES)
        .not("a duplicate filter or a rate limiter: those release nothing and wait for the key to expire")
        .fix(
            "Wait before the next attempt: a random pause that doubles, up to the time that the lock is held",
            &callers::advice(
                node,
                &[
                    (
                        "redis-py",
                        "redis-py: r.lock(name, timeout=10, sleep=0.1, blocking_timeout=5)   (sleep is the \
                                  pause)",
                    ),
                    (
                        "jedis",
                        "Jedis: Thread.sleep(random(50, 100)) after a reply that is null, doubled up to a \
                               second",
                    ),
                    ("lettuce", "Lettuce: retry after a random pause; or Redisson's RLock, which waits for a message"),
                    (
                        "go-redis",
                        "go-redis, redislock: RetryStrategy: ExponentialBackoff(16*time.Millisecond, \
                                  time.Second)",
                    ),
                ],
            ),
            "a waiting client gets the lock later, by up to that pause",
            "",
        );
    finding.fix(
        "Or let the holder wake the next client: use a list as the lock's queue",
        &["RPUSH lock:queue token   (once, and again as the release)", "BLPOP lock:queue 5   (waits at the server)"],
        "a holder that dies keeps the token: the lock needs another way to be released; each waiting client needs its \
         own connection",
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::super::made::{answer, node_at, replicated, said};
    use super::*;

    /// Ten seconds with these calls, of 1 us each, and that many changes.
    fn facts(calls: &[(&str, u64)], changes: u64) -> Facts {
        let before = "redis_version:7.2.4\r\nrole:master\r\nconnected_clients:9\r\ntotal_commands_processed:0\r\n\
                      total_reads_processed:0\r\ntotal_connections_received:0\r\neventloop_cycles:0\r\n\
                      rdb_changes_since_last_save:0\r\nrdb_last_save_time:100\r\n";
        let all: u64 = calls.iter().map(|(_, n)| *n).sum();
        let line = |(name, n): &(&str, u64)| format!("cmdstat_{name}:calls={n},usec={n},usec_per_call=1.00\r\n");
        let sums = format!(
            "total_commands_processed:{all}\r\ntotal_reads_processed:{all}\r\neventloop_cycles:{all}\r\n\
             rdb_changes_since_last_save:{changes}\r\n"
        );
        let after = calls.iter().map(line).collect::<String>() + &sums;
        replicated(vec![node_at("10.0.0.1:6379", before, &after)])
    }

    #[test]
    fn attempts_that_change_nothing_while_locks_are_released_are_spinning() {
        for calls in [&[("set", 50_000), ("del", 150)][..], &[("setnx", 50_000), ("evalsha", 150), ("pexpire", 150)]] {
            let facts = facts(calls, 450);
            let found = said(check(&facts));
            assert!(found.title.contains("99 % of the SET NX calls change nothing"), "{}", found.title);
            assert!(is_most(&facts.nodes[0]));
        }
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            ("plain SETs", facts(&[("set", 50_000), ("del", 100)], 50_100)),
            ("a filter of duplicates", facts(&[("set", 50_000)], 2000)),
            ("a cache that is filled with NX", facts(&[("set", 50_000), ("get", 90_000), ("del", 100)], 30_000)),
            ("locks that are free", facts(&[("set", 20_000), ("del", 18_000)], 38_000)),
            ("a client that pauses", facts(&[("set", 1500), ("del", 20)], 40)),
            ("as many releases as attempts", facts(&[("set", 50_000), ("del", 50_000)], 10)),
            ("other writes that may hide it", facts(&[("set", 50_000), ("del", 100), ("incr", 60_000)], 60_000)),
        ] {
            assert_eq!(answer(&check(&facts)), "absent", "{what}");
            assert!(!is_most(&facts.nodes[0]), "{what}");
        }
    }

    #[test]
    fn a_save_in_the_window_hides_the_changes() {
        let mut saved = facts(&[("set", 50_000), ("del", 150)], 10);
        saved.nodes[0].last.as_mut().unwrap().info.0.insert("rdb_last_save_time".into(), "105".into());
        assert_eq!(answer(&check(&saved)), "unknown");
        assert_eq!(answer(&check(&Facts::of_nothing("redis://10.0.0.1:6379"))), "unknown");
    }
}
