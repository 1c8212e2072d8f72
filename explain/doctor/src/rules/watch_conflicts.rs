//! Transactions have no effect: another client wrote to a watched key first, and EXEC is dropped.
//!
//! WATCH is a lock that does not wait. With few writers nearly every EXEC succeeds. With many on one key, most attempts
//! fail, each after WATCH, a read, MULTI and EXEC, and the clients retry immediately, which makes it worse. Nothing
//! counts a dropped EXEC: it is not an error, and the commands that were queued are simply not executed.
//!
//! Seen when: there are over ten EXEC a second, most of them after a WATCH, and the server executed so few commands
//! that may have been part of them that at least a quarter of the transactions cannot have done anything. A transaction
//! is assumed to have at least one write, and every write that was executed is assumed to belong to a transaction:
//! there may be more conflicts than are reported, but not fewer.
//!
//! Not to be taken for: EXECABORT (`error_flood`), where a queued command was refused; a WATCH abandoned with UNWATCH
//! or DISCARD, which sends no EXEC. If other clients write a lot, conflicts are hidden behind their writes and none is
//! claimed.
//!
//! How to confirm: `INFO commandstats` twice: cmdstat_exec compared with the commands that transactions queue, and
//! cmdstat_watch; in the client: EXEC returns nil (Jedis and redis-py: null, WatchError; Lettuce: wasDiscarded()).
//!
//! What to do: pause for a random time before the next attempt; then use one atomic command or a script instead of
//! WATCH.
//! Sources: INFO commandstats; multi.c (EXEC of a client with CLIENT_DIRTY_CAS executes nothing); Redis documentation
//! of transactions.

use super::prelude::*;
use super::{callers, no_pipelining};

pub const TITLE: &str = "WATCH conflicts";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// EXEC a second, and the share of those that did nothing.
const LEAST: f64 = 10.0;
const SHARE: f64 = 0.25;
/// WATCH to each EXEC: below it transactions are of another kind.
const WATCHED: f64 = 0.5;
/// Of all commands: from here on the rest of the traffic is judged once the conflicts are gone.
const MOST: f64 = 0.4;

/// What a transaction consists of beside its commands.
const FRAME: &[&str] = &["watch", "unwatch", "multi", "exec", "discard"];
/// Commands that write nothing. Any other may have been the one that a transaction is for.
const READS: &[&str] = &[
    "bitcount",
    "bitpos",
    "dbsize",
    "echo",
    "exists",
    "expiretime",
    "get",
    "getbit",
    "getrange",
    "hexists",
    "hget",
    "hgetall",
    "hkeys",
    "hlen",
    "hmget",
    "hrandfield",
    "hscan",
    "hstrlen",
    "hvals",
    "keys",
    "lindex",
    "llen",
    "lpos",
    "lrange",
    "mget",
    "monitor",
    "object",
    "pexpiretime",
    "psubscribe",
    "pttl",
    "pubsub",
    "scan",
    "scard",
    "script",
    "sismember",
    "smembers",
    "smismember",
    "sscan",
    "ssubscribe",
    "strlen",
    "subscribe",
    "touch",
    "ttl",
    "type",
    "unsubscribe",
    "wait",
    "xinfo",
    "xlen",
    "xpending",
    "xrange",
    "xread",
    "xrevrange",
    "zcard",
    "zcount",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrevrange",
    "zrevrank",
    "zscan",
    "zscore",
];

/// The transactions of one server.
struct Transactions<'a> {
    node: &'a Node,
    exec: f64,
    watch: f64,
    /// Commands that may have been a transaction's.
    writes: f64,
    /// Commands of the application, those of the frame among them.
    all: f64,
    /// Commands of the frame and reads for each EXEC.
    attempt: f64,
}

impl Transactions<'_> {
    /// `None` where commands were not counted, or the counters were reset.
    fn of(node: &Node) -> Option<Transactions<'_>> {
        let all = node.application_ops()? * node.window_s;
        let calls = |names: &[&str]| spent(node, names).calls as f64;
        // Those with a refused command execute nothing either, and that is another trouble.
        let refused = node.errors().get("EXECABORT").copied().unwrap_or(0) as f64;
        let (frame, reads, exec) = (calls(FRAME), calls(READS), (calls(&["exec"]) - refused).max(0.0));
        let writes = (all - frame - reads).max(0.0);
        // Reads that are no transaction's: an attempt has a few at most.
        let attempt = (frame + reads.min(3.0 * exec)) / exec.max(1.0);
        Some(Transactions { node, exec, watch: calls(&["watch"]), writes, all, attempt })
    }

    /// EXEC that did nothing, at least. Those without a WATCH do what they hold, which may be reads alone.
    fn failed(&self) -> f64 {
        (self.exec.min(self.watch) - self.writes).max(0.0)
    }

    fn share(&self) -> f64 {
        self.failed() / self.exec.max(1.0)
    }

    fn rate(&self) -> f64 {
        self.exec / self.node.window_s.max(0.001)
    }

    /// Share of all commands that belong to failed attempts.
    fn wasted(&self) -> f64 {
        (self.failed() * self.attempt / self.all.max(1.0)).min(1.0)
    }

    fn hurts(&self) -> bool {
        // A replica gets what was executed, and no WATCH.
        let watched = self.watch >= WATCHED * self.exec && self.node.is_master();
        watched && self.rate() > LEAST && self.share() >= SHARE
    }
}

/// Whether failed attempts are so many of the commands that the rest of the traffic can only be judged without them.
pub(super) fn is_most(node: &Node) -> bool {
    Transactions::of(node).is_some_and(|t| t.hurts() && t.wasted() >= MOST)
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "WATCH conflicts";
    let all: Vec<Transactions<'_>> = facts.live().filter_map(Transactions::of).collect();
    let rows = by_worst(all.iter().filter(|t| t.hurts()).collect(), |t| t.wasted());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|t| t.node.address.as_str())).into();
    }
    match by_worst(all.iter().collect(), |t| t.watch).first() {
        None => Verdict::absent(facts, WHAT, None),
        Some(t) if t.watch < 1.0 => absent_by_commandstats(facts, WHAT, format!("{WHAT}: no WATCH in the window")),
        Some(t) => {
            let (exec, writes) = (count(t.exec), count(t.writes));
            let text = format!("{WHAT}: {exec} EXEC and {writes} commands executed that may have been part of them");
            absent_by_commandstats(facts, WHAT, text)
        }
    }
}

fn found(t: &Transactions<'_>) -> Finding {
    let node = t.node;
    let (failed, done) = (t.failed(), (t.exec - t.failed()).max(1.0));
    let tries = t.exec / done;
    let finding = Finding::new(format!(
        "At least {} of the transactions on {} have no effect: {} EXEC, and {} commands executed that may have been \
         part of them",
        percent(t.share()),
        node.address,
        count(t.exec),
        count(t.writes)
    ));
    let mut finding = price(finding, t, tries)
        .likely(
            "the calls were counted by the server, and an EXEC that executes nothing is a WATCH conflict; that each \
             transaction has a write, and that clients wait for each step, is inferred",
        )
        .saw(
            node,
            "INFO commandstats",
            format!(
                "{} WATCH, {} EXEC in {:.1} s: at least {} of these did \
                     nothing",
                count(t.watch),
                count(t.exec),
                node.window_s,
                count(failed)
            ),
        )
        .saw(node, "INFO commandstats", format!("{} calls of commands that may have been queued", count(t.writes)));
    if let Some(watching) = node.number("watching_clients") {
        finding = finding.saw(node, "INFO clients", format!("watching_clients:{watching:.0}"));
    }
    finding = callers::shown(finding, node, FRAME);
    let aborted = node.errors().get("EXECABORT").copied().unwrap_or(0);
    if node.level() >= (6, 2) {
        finding = finding.not(format!("transactions with a refused command: {} x EXECABORT", count(aborted as f64)));
    }
    mend(finding, node)
}

/// The round trips of failed attempts, or, where those were not seen, what they take of the server.
fn price(finding: Finding, t: &Transactions<'_>, tries: f64) -> Finding {
    let node = t.node;
    let text = format!("at least {} attempts for each transaction that succeeds", count(tries));
    // How far the clients are is known from their sockets alone: we may look from far away.
    if let Some((rtt_us, _)) = no_pipelining::round_trip_us(node).filter(|(_, seen)| *seen) {
        let depth = node.depth().unwrap_or(1.0).max(1.0);
        let lost_us = t.wasted() * rtt_us / depth;
        return finding
            .latency(
                lost_us / 1000.0,
                format!(
                    "{text}; {} of all commands belong to failed \
                                                attempts",
                    percent(t.wasted())
                ),
            )
            .gain(
                format!("without conflicts, the mean command loses {} less", time_us(lost_us)),
                format!(
                    "{:.0} failed x {:.1} commands / {:.0} commands x {rtt_us:.0} us / {depth:.1} commands a round \
                     trip = {lost_us:.1} us",
                    t.failed(),
                    t.attempt,
                    t.all
                ),
            );
    }
    let us = spent(node, FRAME).mean_us + call_us(node);
    let core = t.failed() * t.attempt * us / 1e6 / node.window_s.max(0.001);
    finding.core(core, format!("{text}; about {} of a core", percent(core))).gain(
        format!("without conflicts, about {} of a core is freed", percent(core)),
        format!(
            "{:.0} failed x {:.1} commands x {us:.1} us in {:.0} s = {core:.4} \
                 cores",
            t.failed(),
            t.attempt,
            node.window_s
        ),
    )
}

fn mend(finding: Finding, node: &Node) -> Finding {
    let finding = finding.fix(
        "Right away: pause for a random time before the next attempt, longer with each, and give up after a few",
        &["pause = random(0, 10 ms x 2^attempt), at most 1 s"],
        "a transaction that conflicts takes longer",
        "",
    );
    let mut atomic = vec![
        "INCRBY, HINCRBY, ZINCRBY, SETNX in place of read, compute, write",
        "local v = redis.call('GET', KEYS[1]) ... redis.call('SET', KEYS[1], v2)   in a script: no other client can \
         come between",
    ];
    if node.info().is_some_and(|i| i.product() == "Valkey" && i.version() >= Some((8, 1, 0))) {
        atomic.push("SET key new IFEQ old   (compare and set, Valkey 8.1+)");
    }
    finding.fix("Let the server do it in one step: one command, or a script, instead of WATCH", &atomic, "", "").fix(
        "Watch less: use one key for each thing that changes independently, not one for all",
        &["WATCH stock:42   instead of WATCH stock"],
        "what was one value becomes several",
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use unslow_facts::{PeerSockets, Rtt, Sample, Seen};
    use unslow_topology::{Info, Role};

    /// Ten seconds with these calls, over a round trip of 200 us and reads of two commands.
    fn facts(role: &str, calls: &[(&str, u64)]) -> Facts {
        let counters = |n: u64| format!("total_commands_processed:{n}\r\ntotal_reads_processed:{}\r\n", n / 2);
        let head = format!("redis_version:7.2.4\r\nrole:{role}\r\n");
        let all: u64 = calls.iter().map(|(_, n)| *n).sum();
        let lines: String =
            calls.iter().map(|(name, n)| format!("cmdstat_{name}:calls={n},usec={n},usec_per_call=1.00\r\n")).collect();
        let first = Info::parse(&(head.clone() + &counters(0)));
        let last = Info::parse(&(head + &counters(all) + &lines));
        let mut node = Node::new("10.0.0.1:6379", Role::Master);
        node.first = Some(Sample { at_ms: 0, info: first });
        node.last = Some(Sample { at_ms: 10_000, info: last });
        node.window_s = 10.0;
        let rtt = Rtt { count: 100, us_min: 190, us_p50: 200, us_p99: 300, us_max: 300 };
        node.rtt = Seen::yes(rtt, "PING", 0);
        let host = "10.0.0.9".to_string();
        let peer = PeerSockets { host, sockets: 10, min_rtt_us: 200, min_rtt_us_p50: 200, ..PeerSockets::default() };
        node.sockets = Seen::yes(vec![peer], "ss", 0);
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    #[test]
    fn executions_without_effect_are_conflicts() {
        let busy =
            facts("master", &[("watch", 11_552), ("get", 11_552), ("multi", 11_552), ("exec", 11_552), ("set", 815)]);
        let Verdict::Present(found) = check(&busy) else { panic!("not found") };
        assert!(found.title.starts_with("At least 93 %"), "{}", found.title);
        // 91 % of the commands are wasted, and each takes half a round trip.
        assert!((found.impact.value - 0.0913).abs() < 0.001, "{}", found.impact.value);
        assert!(found.remedies.iter().all(|r| r.commands.iter().all(|c| !c.contains("IFEQ"))));
        assert!(is_most(&busy.nodes[0]));
        // Without the clients' distance only the server's time is known.
        let mut unseen = busy;
        unseen.nodes[0].sockets = Seen::default();
        let Verdict::Present(found) = check(&unseen) else { panic!("not found") };
        assert_eq!(found.impact.currency, crate::Currency::Capacity);
    }

    /// Attempts, and what else was executed.
    fn with(n: u64, more: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
        let frame = [("watch", n), ("multi", n), ("exec", n), ("get", n)];
        frame.into_iter().chain(more.iter().copied()).collect()
    }

    /// Transactions that were dropped because a command in them was refused.
    fn with_refused(n: u64) -> Facts {
        let mut facts = facts("master", &with(n, &[]));
        let last = facts.nodes[0].last.as_mut().unwrap();
        last.info.0.insert("errorstat_EXECABORT".into(), format!("count={n}"));
        facts
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            ("all succeed", facts("master", &with(5000, &[("set", 5000)]))),
            ("a few conflicts", facts("master", &with(5000, &[("set", 4500)]))),
            ("others write", facts("master", &with(5000, &[("hset", 50_000)]))),
            ("now and then", facts("master", &with(50, &[]))),
            ("transactions of reads without WATCH", facts("master", &[("multi", 5000), ("exec", 5000), ("get", 9000)])),
            (
                "transactions of reads beside others that succeed",
                facts("master", &[("watch", 2500), ("multi", 5000), ("exec", 5000), ("get", 9000), ("set", 2500)]),
            ),
            ("refused commands", with_refused(5000)),
            ("a replica", facts("slave", &with(5000, &[]))),
            ("none", facts("master", &[("get", 5000)])),
        ] {
            assert!(matches!(check(&facts), Verdict::Absent(_)), "{what}");
        }
    }

    #[test]
    fn where_nothing_is_counted_nothing_is_claimed() {
        let mut facts = facts("master", &[("watch", 5000)]);
        (facts.nodes[0].first, facts.nodes[0].last) = (None, None);
        assert!(matches!(check(&facts), Verdict::Unknown(_)));
    }
}
