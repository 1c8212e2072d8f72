//! Keys stay in memory after their TTL, because long commands leave the expiry cycle no time.
//!
//! An expired key is deleted when it is next accessed, or by a cycle that looks for such keys ten times a second, for
//! 25 ms at most. The cycle runs between commands. If each turn of the main thread is one long command, the cycle runs
//! a few times a second instead of ten, and falls behind: expired keys fill the memory, and other keys are evicted
//! because of them.
//!
//! Seen when: by the server's own estimate a quarter or more of the keys with a TTL had already expired, at both ends
//! of the window, and there are 10,000 or more keys with a TTL; the cycle ran into its time limit and still got less
//! than 5 % of a core; and commands held the main thread for 30 % of the window or more.
//!
//! Not to be taken for: many keys that expire together (`expire_storm`): there the cycle gets its time and uses it.
//! Keys that are evicted (`eviction_pressure`). A replica, which waits for its master to delete them. Paused writes
//! (`paused`): nothing expires then.
//!
//! How to confirm: run `INFO stats` twice: expired_stale_perc, expired_time_cap_reached_count,
//! expire_cycle_cpu_milliseconds; `INFO commandstats`: which commands hold the main thread.
//!
//! What to do: stop the long commands; they are separate findings. `active-expire-effort` gives the cycle more of the
//! time that is left.
//! Sources: INFO stats; activeExpireCycle() in expire.c of the servers; redis.conf (active-expire-effort).

use super::memory;
use super::prelude::*;

pub const TITLE: &str = "Expiry starved";
pub const LEADS_TO: &[&str] = &["eviction_pressure", "out_of_memory"];
pub const INJECTED: Injected = Injected::No(
    "the long commands that starve it cost more and come first. It is tested on the facts of long scripts, with the \
     figures of an expiry that falls behind",
);

/// Of the keys with a TTL; the cycle is content at a tenth.
const STALE: f64 = 0.25;
const MANY: u64 = 10_000;
/// Share of a core from which on the cycle has its time.
const FED: f64 = 0.05;
/// Share of the window in which the main thread is held by commands.
const HELD: f64 = 0.3;

/// How the expiry of one master keeps up.
struct Expiry<'a> {
    node: &'a Node,
    /// Share of the keys with a TTL that are expired already, where it was less: at the start or at the end of the
    /// window.
    stale: f64,
    keys: u64,
    /// Share of a core that the cycle had.
    cpu: f64,
    capped: f64,
    /// Share of the window inside commands.
    held: f64,
}

impl Expiry<'_> {
    fn is_starved(&self) -> bool {
        let behind = self.stale >= STALE && self.keys >= MANY && self.capped > 0.0;
        behind && self.cpu < FED && self.held >= HELD
    }

    /// What the expired keys hold, if they are as large as the others.
    fn bytes(&self) -> f64 {
        let all = self.node.info().map_or(0, unslow_topology::Info::keys).max(self.keys).max(1);
        self.stale * self.keys as f64 / all as f64 * self.node.number("used_memory_dataset").unwrap_or(0.0)
    }
}

fn look(node: &Node) -> Option<Expiry<'_>> {
    let (first, last) = (node.first.as_ref()?, node.last.as_ref()?);
    let stale = |info: &unslow_topology::Info| Some(info.number("expired_stale_perc")? / 100.0);
    Some(Expiry {
        node,
        stale: stale(&first.info)?.min(stale(&last.info)?),
        keys: last.info.expiring_keys(),
        cpu: node.rate("expire_cycle_cpu_milliseconds")? / 1000.0,
        capped: node.delta("expired_time_cap_reached_count")?,
        held: inside_share(node),
    })
}

pub fn check(facts: &Facts) -> Verdict {
    let masters = facts.live().filter(|n| n.is_master());
    let all = by_worst(masters.filter_map(look).collect(), |e: &Expiry| e.stale);
    let rows: Vec<&Expiry> = all.iter().filter(|e| e.is_starved()).collect();
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|e| e.node.address.as_str())).into();
    }
    let text = all.first().map(|e| {
        format!(
            "expired keys in memory: at most {} of {} keys with a TTL",
            percent(e.stale.clamp(0.0, 1.0)),
            count(e.keys as f64)
        )
    });
    Verdict::absent(facts, "expired keys in memory", text)
}

fn found(facts: &Facts, e: &Expiry) -> Finding {
    let node = e.node;
    let commands = node.foreign_commands();
    let longest = commands.iter().max_by_key(|(_, stat)| stat.usec);
    let held = e.held.min(1.0);
    let finding = Finding::new(format!(
        "{} of {} keys with a TTL have expired and are still in memory on {}: commands hold its main thread {} of the \
         time",
        percent(e.stale),
        count(e.keys as f64),
        node.address,
        percent(held)
    ));
    let finding = match memory::room(facts, node) {
        Some(limit) => {
            let share = (e.bytes() / limit.bytes.max(1.0)).min(1.0);
            let text =
                format!("about {} is held by expired keys, {} of {}", bytes(e.bytes()), percent(share), limit.words());
            finding.memory(share, text).gain(
                format!("about {} more for data", bytes(e.bytes())),
                format!("{:.2} of {} keys, as large as the others = {}", e.stale, e.keys, bytes(e.bytes())),
            )
        }
        None => finding.risk("expired keys take up memory"),
    };
    let finding = finding
        .likely("the estimate and both times are the server's own; that the commands starve the cycle is inferred")
        .saw(
            node,
            "INFO stats",
            format!(
                "expired_stale_perc:{:.1} at least, expired_time_cap_reached_count +{:.0}, {} of a core for the cycle",
                e.stale * 100.0,
                e.capped,
                percent(e.cpu)
            ),
        )
        .not(format!("keys that expire together: the cycle had {} of a core and could have had 25 %", percent(e.cpu)));
    let finding = match longest {
        Some((name, stat)) => finding.saw(
            node,
            "INFO commandstats",
            format!(
                "{}: {} calls of {} each",
                name.to_uppercase(),
                count(stat.calls as f64),
                time_us(stat.usec as f64 / stat.calls.max(1) as f64)
            ),
        ),
        None => finding,
    };
    let finding = finding.fix(
        "Stop the commands that hold the main thread, or split them",
        &[&cli(&node.address, "SLOWLOG GET 10"), &cli(&node.address, "INFO commandstats")],
        "",
        "",
    );
    if node.level() < (6, 0) {
        return finding;
    }
    finding.fix(
        "Until then, give the cycle more time whenever it runs (1 to 10)",
        &[&cli(&node.address, "CONFIG SET active-expire-effort 5")],
        "each turn of the cycle holds up requests for longer",
        &cli(&node.address, "CONFIG SET active-expire-effort 1"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::made::{answer, node_at, replicated, said};
    use super::*;

    /// A master in a window of ten seconds: expired share at both ends, time of the cycle and of scripts in ms.
    fn master(stale: [f64; 2], cycle_ms: f64, scripts_ms: u64, more: &str) -> Facts {
        let before = format!(
            "role:master\nredis_version:7.2.4\ndb0:keys=200000,expires=100000,avg_ttl=9\n\
             used_memory_dataset:1000000000\nmaxmemory:2000000000\n\
             expired_stale_perc:{}\nexpired_time_cap_reached_count:5\nexpire_cycle_cpu_milliseconds:0\n\
             cmdstat_eval:calls=1,usec=1000,usec_per_call=1\n",
            stale[0]
        );
        let after = format!(
            "expired_stale_perc:{}\nexpired_time_cap_reached_count:40\nexpire_cycle_cpu_milliseconds:{cycle_ms}\n\
             cmdstat_eval:calls=11,usec={},usec_per_call=1\n{more}",
            stale[1],
            1000 + scripts_ms * 1000
        );
        replicated(vec![node_at("10.0.0.1:6379", &before, &after)])
    }

    #[test]
    fn keys_that_outlive_their_ttl_behind_long_commands_cost_memory() {
        let found = said(check(&master([40.0, 60.0], 300.0, 8000, "")));
        // 0.4 x 100,000 of 200,000 keys x 1 GB, of 2 GB.
        assert!((found.impact.value - 0.1).abs() < 1e-9, "{:?}", found.impact);
        assert!(found.evidence.iter().any(|e| e.value.contains("EVAL: 10 calls of 800 ms")), "{:?}", found.evidence);
    }

    #[test]
    fn a_cycle_that_has_its_time_or_keeps_up_is_not_starved() {
        for (stale, cycle_ms, scripts_ms, more) in [
            ([40.0, 60.0], 2000.0, 8000, ""),
            ([8.0, 60.0], 300.0, 8000, ""),
            ([40.0, 60.0], 300.0, 500, ""),
            ([40.0, 60.0], 300.0, 8000, "expired_time_cap_reached_count:5\n"),
            ([40.0, 60.0], 300.0, 8000, "db0:keys=900,expires=900,avg_ttl=9\n"),
        ] {
            let verdict = check(&master(stale, cycle_ms, scripts_ms, more));
            assert_eq!(answer(&verdict), "absent", "{stale:?} {cycle_ms} {scripts_ms} {more}");
        }
        assert_eq!(answer(&check(&master([40.0, 60.0], 300.0, 8000, "role:slave\n"))), "unknown");
    }
}
