//! Transactions of thousands of commands hold up every other client.
//!
//! EXEC executes everything that was queued in one go, and nothing else is served until it is done. A bulk import
//! through a client's default pipeline is such a transaction even if none was intended: redis-py's `pipeline()` wraps
//! all of it in MULTI and EXEC. Each command is short, so the slow log shows none of them, and EXEC itself is never
//! logged.
//!
//! Seen when: EXEC takes over 10 % of a core at over 0.5 ms a call, or over 10 ms a call five times or with 1 % of a
//! core.
//!
//! Not to be taken for: a slow command inside a transaction (`slow_command`, `big_key`, `keys_command`): if one kind of
//! command of over 0.5 ms a call took half of the time, that is the cause. A pipeline without MULTI, however long, lets
//! other clients in between: the server reads it in pieces of a few kB. One MGET, MSET or DEL of thousands of keys is
//! `giant_commands`.
//!
//! How to confirm: run `INFO commandstats` twice: usec_per_call of cmdstat_exec, and how many commands there were for
//! each EXEC.
//!
//! What to do: no transaction where a batch was meant; batches of a few hundred.
//! Sources: INFO commandstats (EXEC's time has that of its commands in it), LATENCY HISTOGRAM exec (7.0+); multi.c.

use super::callers;
use super::prelude::*;
use super::slow_command::is_heavy;

pub const TITLE: &str = "Giant transactions";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

const EXEC: &[&str] = &["exec"];
/// A command that takes longer is slow by itself; and its share of EXEC's time from which it is the cause.
const SHORT_US: f64 = 500.0;
const PART: f64 = 0.5;
/// Commands in a batch that holds others up only briefly.
const BATCH: f64 = 500.0;

/// The transactions of one server.
struct Giant<'a> {
    node: &'a Node,
    held: Held,
    /// Commands in each, at most: all that were executed beside EXEC itself.
    commands: f64,
    /// A slow command that may explain their time.
    slow: Option<String>,
}

fn look(node: &Node) -> Giant<'_> {
    let held = held(node, EXEC);
    let all = node.foreign_commands();
    let inner = |name: &str| !is_one_of(&["exec", "multi", "watch", "unwatch", "discard"], name);
    let others = all.iter().filter(|(name, _)| inner(name));
    let commands = others.map(|(_, stat)| stat.calls as f64).sum::<f64>() / held.calls.max(1.0);
    let explains = |name: &str| {
        let spent = spent(node, &[&format!("={name}")]);
        spent.mean_us > SHORT_US && spent.usec as f64 >= PART * held.inside_us
    };
    let slow = all.keys().find(|name| inner(name) && explains(name)).map(|name| name.to_uppercase().replace('|', " "));
    Giant { node, held, commands, slow }
}

impl Giant<'_> {
    fn hurts(&self) -> bool {
        self.held.calls >= 1.0 && self.slow.is_none() && is_heavy(self.node, &self.held)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Giant<'_>> = facts.live().map(look).collect();
    let rows = by_worst(all.iter().filter(|g| g.hurts()).collect(), |g| g.held.share());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|g| g.node.address.as_str())).into();
    }
    let text = match by_worst(all.iter().filter(|g| g.held.calls >= 1.0).collect(), |g| g.held.share()).first() {
        None => "transactions: no EXEC in the window".to_string(),
        Some(g) => match &g.slow {
            Some(command) => {
                format!("transactions: EXEC took {}, because of {command} inside or beside it", g.held.figures())
            }
            None => format!("transactions: {} EXEC, {}", count(g.held.calls), g.held.figures()),
        },
    };
    absent_by_commandstats(facts, "transactions", text)
}

fn found(g: &Giant<'_>) -> Finding {
    let node = g.node;
    let (ms, wait) = g.held.others_wait();
    let mean = g.held.mean_us();
    let parts = (g.commands / BATCH).max(1.0);
    let mut finding = Finding::new(format!(
        "Transactions hold the main thread of {}: {}, up to {} commands in each",
        node.address,
        g.held.figures(),
        count(g.commands)
    ))
    .latency(ms, wait)
    .proven("timed by the server's own clock for EXEC, in this window")
    .saw(
        node,
        "INFO commandstats",
        format!("EXEC: {} calls, {} each, {} of a core", count(g.held.calls), time_us(mean), percent(g.held.share())),
    )
    .saw(node, "INFO commandstats", format!("{} other commands for each EXEC", count(g.commands)));
    if parts > 1.0 {
        finding = finding.gain(
            format!(
                "in batches of {BATCH:.0}, other clients wait at most {} instead of {}",
                time_us(mean / parts),
                time_us(mean)
            ),
            format!("{mean:.0} us / ({:.0} commands / {BATCH:.0}) = {:.0} us", g.commands, mean / parts),
        );
    }
    finding = callers::shown(finding, node, EXEC)
        .not(format!("a slow command: none of over {} a call took half of that time", time_us(SHORT_US)));
    let plain = callers::advice(
        node,
        &[
            ("redis-py", "redis-py: r.pipeline(transaction=False), execute() every 500 commands"),
            ("jedis", "Jedis: jedis.pipelined() in place of jedis.multi(), sync() every 500 commands"),
            (
                "lettuce",
                "Lettuce: async commands without multi(); Spring: executePipelined(...) in place of multi() \
                         and exec()",
            ),
            ("go-redis", "go-redis: rdb.Pipelined(...) in place of rdb.TxPipelined(...), 500 commands in each"),
            ("ioredis", "ioredis: redis.pipeline() in place of redis.multi(), exec() every 500 commands"),
        ],
    );
    finding
        .fix(
            "If a batch is meant and not a transaction: use a pipeline without MULTI, in batches of a few hundred",
            &plain,
            "other clients see, and can change, intermediate states; a failed command fails alone",
            "",
        )
        .fix(
            "If it must be atomic: put only what belongs together into one transaction, and use several",
            &["MULTI ... EXEC for each order, not for all orders"],
            "if it breaks off, the later transactions are not executed",
            "",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Currency;
    use unslow_facts::Sample;
    use unslow_topology::{Info, Role};

    /// Ten seconds with these calls and microseconds.
    fn facts(commands: &[(&str, u64, u64)]) -> Facts {
        let first = Info::parse("redis_version:7.2.4\r\nrole:master\r\ntotal_commands_processed:0\r\n");
        let mut last = first.clone();
        let line = |(name, calls, us): &(&str, u64, u64)| {
            format!("cmdstat_{name}:calls={calls},usec={us},usec_per_call=1.00\r\n")
        };
        let lines: String = commands.iter().map(line).collect();
        let all: u64 = commands.iter().map(|(_, calls, _)| *calls).sum();
        last.0.extend(Info::parse(&(lines + &format!("total_commands_processed:{all}\r\n"))).0);
        let mut node = Node::new("10.0.0.1:6379", Role::Master);
        node.first = Some(Sample { at_ms: 0, info: first });
        node.last = Some(Sample { at_ms: 10_000, info: last });
        node.window_s = 10.0;
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    #[test]
    fn many_short_commands_in_one_transaction_are_one_stall() {
        let bulk = facts(&[("multi", 20, 20), ("exec", 20, 800_000), ("set", 1_000_000, 700_000)]);
        let Verdict::Present(found) = check(&bulk) else { panic!("not found") };
        assert_eq!(found.impact.currency, Currency::Latency);
        // 8 % of the requests wait for 20 ms.
        assert!((found.impact.value - 1.6).abs() < 0.01, "{}", found.impact.value);
        assert!(found.title.contains("up to 50,000 commands in each"), "{}", found.title);
        assert!(found.gain.text.contains("400 us"), "{}", found.gain.text);
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            ("a hundred in each", facts(&[("multi", 200, 200), ("exec", 200, 20_000), ("set", 20_000, 12_000)])),
            ("a slow command inside", facts(&[("exec", 20, 800_000), ("sort", 20, 780_000)])),
            ("none", facts(&[("set", 1_000_000, 700_000)])),
        ] {
            assert!(matches!(check(&facts), Verdict::Absent(_)), "{what}");
        }
    }

    #[test]
    fn where_nothing_is_counted_nothing_is_claimed() {
        let mut facts = facts(&[("exec", 20, 800_000)]);
        facts.nodes[0].last = None;
        assert!(matches!(check(&facts), Verdict::Unknown(_)));
    }
}
