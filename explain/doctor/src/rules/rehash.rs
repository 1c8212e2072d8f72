//! A table of keys is being doubled, and until that is done both the old and the new one are in memory.
//!
//! When keys outgrow their table, a new one of twice the size is allocated in one step, and the keys move over bit by
//! bit. For hundreds of millions of keys that is gigabytes in one moment: keys are evicted or writes refused because of
//! it, and nothing in the data explains why.
//!
//! Seen when: tables that are being rehashed take a twentieth or more of the memory that the server may use (7.4+,
//! Valkey 8); or, where that is not counted, the number of keys passed a power of two in the window and used memory
//! rose by at least the size of the new table, which is a twentieth or more of what the server may use.
//!
//! Not to be taken for: growth of the data (`growth_without_ttl`), which continues; buffers (`client_memory`); a table
//! that shrinks after a mass deletion, which is over in a moment as well.
//!
//! How to confirm: `INFO memory` mem_overhead_db_hashtable_rehashing; `MEMORY STATS` overhead.hashtable.main;
//! `INFO keyspace`: keys near a power of two.
//!
//! What to do: leave room below maxmemory for the larger table; add shards before the next doubling.
//! Sources: INFO mem_overhead_db_hashtable_rehashing; dict.c (a table of 2^n buckets, 8 bytes each), valkey's
//! hashtable.c.

use super::memory::{self, Keys, Limit};
use super::prelude::*;

pub const TITLE: &str = "Table doubling";
pub const LEADS_TO: &[&str] = &["eviction_pressure", "out_of_memory"];
pub const INJECTED: Injected = Injected::No(
    "a rehash takes a second or two, at a moment that depends on the keys, and a window seldom catches it; tested on \
     facts written by hand",
);

/// Of what the server may use.
const SHARE: f64 = 0.05;
/// A place of the new table.
const PLACE_BYTES: f64 = 8.0;

/// A table on the move.
struct Moves<'a> {
    node: &'a Node,
    limit: Limit,
    bytes: f64,
    /// The power of two that the keys passed, where the move was not counted by the server.
    passed: Option<f64>,
}

impl Moves<'_> {
    fn share(&self) -> f64 {
        self.bytes / self.limit.bytes.max(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Moves> = facts.live().filter_map(|node| look(facts, node)).collect();
    let all = by_worst(all, Moves::share);
    let rows: Vec<&Moves> = all.iter().filter(|m| m.share() >= SHARE).collect();
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|m| m.node.address.as_str())).into();
    }
    let text = all.first().map(|most| match most.bytes > 0.0 {
        true => format!(
            "tables being rehashed: at most {}, {} of {}",
            bytes(most.bytes),
            percent(most.share()),
            most.limit.words()
        ),
        false => "tables being rehashed: none".into(),
    });
    Verdict::absent(facts, "tables being rehashed", text)
}

fn look<'a>(facts: &Facts, node: &'a Node) -> Option<Moves<'a>> {
    const FIELD: &str = "mem_overhead_db_hashtable_rehashing";
    let limit = memory::room(facts, node)?;
    if let Some(now) = node.number(FIELD) {
        let before = node.first.as_ref().and_then(|s| s.info.number(FIELD)).unwrap_or(0.0);
        return Some(Moves { node, limit, bytes: now.max(before), passed: None });
    }
    let (before, after) = (Keys::of(&node.first.as_ref()?.info).all, Keys::of(node.info()?).all);
    let grown = node.number("used_memory")? - node.first.as_ref()?.info.number("used_memory")?;
    // In a cluster of 7.4 and later each slot has its table, and before it counts all keys of a database together.
    let power = if before >= 4.0 { 2f64.powf(before.log2().floor() + 1.0) } else { f64::INFINITY };
    let table = 2.0 * power * PLACE_BYTES;
    let passed = after > power && grown >= table;
    let bytes = if passed { table } else { 0.0 };
    Some(Moves { node, limit, bytes, passed: passed.then_some(power) })
}

fn found(facts: &Facts, m: &Moves) -> Finding {
    let node = m.node;
    let finding = Finding::new(format!(
        "{} is rehashing: the old and the new key table together take {} more for a while, {} of {}",
        node.address,
        bytes(m.bytes),
        percent(m.share()),
        m.limit.words()
    ));
    let finding = match m.passed {
        None => finding
            .memory(m.share().min(1.0), format!("{} until its keys have moved", bytes(m.bytes)))
            .gain(
                format!("{} freed once the keys have moved", bytes(m.bytes)),
                format!("mem_overhead_db_hashtable_rehashing {:.0} B", m.bytes),
            )
            .proven("counted by the server in this window")
            .saw(node, "INFO memory", format!("mem_overhead_db_hashtable_rehashing:{:.0}", m.bytes)),
        Some(power) => finding
            .risk(format!("used memory rose by {} or more in the window", bytes(m.bytes)))
            .likely(
                "the number of keys passed a power of two while used memory rose by the size of the new table; the \
                 rehash itself is not counted before 7.4",
            )
            .saw(
                node,
                "INFO keyspace",
                format!("{} keys, past {}", count(node.info().map_or(0.0, |i| i.keys() as f64)), count(power)),
            ),
    };
    let used = node.number("used_memory").unwrap_or(0.0);
    let finding = finding.saw(
        node,
        "INFO memory",
        format!("used_memory {}, {} left of {}", bytes(used), bytes((m.limit.bytes - used).max(0.0)), m.limit.words()),
    );
    let wanted = memory::maxmemory(node).map(|max| (max, max + m.bytes));
    let physical = memory::physical(facts, node).map(|l| l.bytes);
    let finding = match wanted.filter(|(_, to)| physical.is_some_and(|all| *to <= 0.75 * all)) {
        Some((max, to)) => finding.fix(
            "Now: make room for both tables until the keys have moved",
            &[&cli(&node.address, &format!("CONFIG SET maxmemory {to:.0}"))],
            "swapping or the OOM killer, if other programs need the memory",
            &cli(&node.address, &format!("CONFIG SET maxmemory {max:.0}")),
        ),
        None => finding,
    };
    finding.fix(
        "Before the next doubling: add shards, or use fewer and larger keys (fields of a hash instead of keys)",
        &[&cli(&node.address, "INFO keyspace")],
        "",
        "",
    )
}
