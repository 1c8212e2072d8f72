//! The memory limit is reached, and keys are evicted to make room for each write.
//!
//! A cache at its limit evicts; that is its job. It becomes a problem when it evicts keys that are about to be read:
//! the hit ratio falls, and each write pays for the search for a victim.
//!
//! Seen when: over 10 keys a second are evicted, over 1 % of the commands, and under 80 % of the reads hit, or writes
//! do little else, or evicting takes measurable time (total_eviction_exceeded_time, 7.0+).
//!
//! Not to be taken for: fragmentation (eviction counts used memory, not resident memory), or expiry. Where client
//! buffers (`client_memory`) or a hash table that is being doubled (`rehash`) take the room, evictions are their
//! consequence.
//!
//! What to do: more memory if the machine has it, shorter TTLs, an LFU policy, smaller values.
//! Sources: INFO evicted_keys, keyspace_hits; CONFIG GET maxmemory.

use super::key_patterns::{self, By};
use super::prelude::*;

pub const TITLE: &str = "Eviction pressure";
pub const LEADS_TO: &[&str] = &["low_hit_ratio"];
pub const INJECTED: Injected = Injected::Yes;

/// What one node evicts.
struct Evicts<'a> {
    node: &'a Node,
    /// Keys a second.
    rate: f64,
    /// Of all commands.
    share: f64,
    hits: f64,
    misses: f64,
    /// Time over the limit in the window, in ms (7.0+).
    exceeded_ms: f64,
}

impl Evicts<'_> {
    fn hit_ratio(&self) -> Option<f64> {
        let reads = self.hits + self.misses;
        (reads > 0.0).then(|| self.hits / reads)
    }

    /// A cache at its limit evicts: it hurts when reads miss for it, or when writes do nothing else.
    fn hurts(&self) -> bool {
        let reads = self.hits + self.misses;
        let misses_much = reads > 100.0 && self.hits / reads < 0.8;
        let churns = reads <= 100.0 && self.share > 0.5;
        self.rate > 10.0 && self.share > 0.01 && (misses_much || churns || self.exceeded_ms > 0.0)
    }

    fn reads_text(&self) -> String {
        self.hit_ratio().map_or("no reads in the window".into(), |r| format!("hit ratio {}", percent(r)))
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all = by_worst(facts.live().filter_map(look).collect(), |e: &Evicts| e.rate);
    let rows: Vec<&Evicts> = all.iter().filter(|e| e.hurts()).collect();
    if let Some(worst) = rows.first() {
        let finding = found(facts, worst).on(rows.iter().map(|e| e.node.address.as_str()));
        return key_patterns::told(finding, facts, By::Memory).into();
    }
    let unlimited = |n: &Node| n.number("maxmemory") == Some(0.0);
    if !all.is_empty() && facts.live().all(unlimited) {
        return Verdict::NotHere;
    }
    let text = all.first().map(|e| match e.rate > 0.0 {
        true => format!(
            "evictions: at most {} keys a second, {} of the commands; {}",
            count(e.rate),
            percent(e.share),
            e.reads_text()
        ),
        false => "evictions: evicted_keys +0 in the window".into(),
    });
    Verdict::absent(facts, "evictions", text)
}

fn look(node: &Node) -> Option<Evicts<'_>> {
    let rate = node.rate("evicted_keys")?;
    let grown = |field| node.delta(field).unwrap_or(0.0);
    Some(Evicts {
        node,
        rate,
        share: rate / node.ops()?.max(1.0),
        hits: grown("keyspace_hits"),
        misses: grown("keyspace_misses"),
        exceeded_ms: grown("total_eviction_exceeded_time"),
    })
}

fn found(facts: &Facts, e: &Evicts) -> Finding {
    let (node, rate) = (e.node, e.rate);
    let (used, max) = (node.number("used_memory").unwrap_or(0.0), node.number("maxmemory").unwrap_or(0.0));
    let policy = node.info().and_then(|i| i.get("maxmemory_policy")).unwrap_or("unknown");
    let mean = used / node.info().map_or(1.0, |i| i.keys() as f64).max(1.0);
    let turnover = (rate * mean * 60.0 / max.max(1.0)).min(1.0);
    let over = if e.exceeded_ms > 0.0 {
        format!("; {} over the limit", time_us(e.exceeded_ms * 1000.0))
    } else {
        String::new()
    };
    let minute = rate * mean * 60.0;
    let finding = Finding::new(format!(
        "{} evicts {} keys a second: {} of {} maxmemory is in use",
        node.address,
        count(rate),
        bytes(used),
        bytes(max)
    ))
    .memory(turnover, format!("{} of the memory is replaced each minute; {}{over}", percent(turnover), e.reads_text()))
    .gain(
        format!("{} more memory would keep the keys that are evicted now for another minute", bytes(minute)),
        format!("{rate:.0} keys/s x {mean:.0} B a key x 60 s = {}", bytes(minute)),
    )
    .proven("counted by the server in this window")
    .saw(
        node,
        "INFO stats",
        format!(
            "evicted_keys +{:.0}, keyspace_hits +{:.0}, keyspace_misses +{:.0}",
            rate * node.window_s,
            e.hits,
            e.misses
        ),
    )
    .saw(node, "INFO memory", format!("used_memory {}, maxmemory {}, policy {policy}", bytes(used), bytes(max)));
    let finding = match node.number("used_memory_rss") {
        Some(rss) => finding.not(format!(
            "fragmentation: eviction counts used memory ({}), resident is {}",
            bytes(used),
            bytes(rss)
        )),
        None => finding,
    };
    policies(memory(finding, facts, node, max), node, policy)
}

/// More memory, where the machine or the container has it.
fn memory(finding: Finding, facts: &Facts, node: &Node, max: f64) -> Finding {
    let machine = node.number("total_system_memory").filter(|m| *m > 0.0);
    let container = facts.process(node).and_then(|(_, p)| p.memory_limit_bytes).map(|b| b as f64);
    let has = match (machine, container) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    // A fifth stays for copies during saves, buffers and the machine itself.
    let fits = has.is_some_and(|has| max * 1.5 <= has * 0.8);
    if !fits {
        let text = match has {
            Some(has) => {
                format!(
                    "More memory: this machine or container has {}, so it takes a larger one, or more shards",
                    bytes(has)
                )
            }
            None => "More memory, or more shards".into(),
        };
        return finding.fix(&text, &[&cli(&node.address, "INFO memory")], "", "");
    }
    let set = |bytes: f64| cli(&node.address, &format!("CONFIG SET maxmemory {bytes:.0}"));
    finding.fix(
        &format!("Give it more memory: this machine has {}", bytes(has.unwrap_or(0.0))),
        &[&set(max * 1.5)],
        "other servers on the machine need memory too; if it runs out, the machine swaps or the OOM killer strikes",
        &set(max),
    )
}

fn policies(finding: Finding, node: &Node, policy: &str) -> Finding {
    // LFU is of 4.0. Where it is used already only less data helps.
    let lfu = if policy.starts_with("volatile") { "volatile-lfu" } else { "allkeys-lfu" };
    if policy.ends_with("-lfu") || policy == "unknown" || node.level() < (4, 0) {
        return finding.fix(
            "Use shorter TTLs for keys that are not read again, and smaller values",
            &["EXPIRE key 3600"],
            "later reads of these keys miss",
            "",
        );
    }
    finding.fix(
        "Keep the keys that are read often (LFU); use shorter TTLs for the others",
        &[&cli(&node.address, &format!("CONFIG SET maxmemory-policy {lfu}"))],
        "different keys are evicted first",
        &cli(&node.address, &format!("CONFIG SET maxmemory-policy {policy}")),
    )
}
