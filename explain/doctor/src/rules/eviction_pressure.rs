//! The memory limit is reached, and keys are thrown out to make room for each write.
//!
//! A cache at its limit evicts, that is its work. It becomes a problem when it evicts what is about to be read: the hit
//! ratio falls, and each write pays for the search for a victim.
//!
//! Seen when: over 10 keys a second are evicted, over 1 % of the commands, and under 80 % of the reads hit, or writes do
//! little else, or evicting takes measurable time (total_eviction_exceeded_time, 7.0+).
//!
//! Not to be taken for: fragmentation (eviction counts used memory, not resident), or expiry.
//!
//! What to do: more memory, shorter TTLs, an LFU policy, smaller values.
//! Sources: INFO evicted_keys, keyspace_hits; CONFIG GET maxmemory.

use super::prelude::*;

pub const TITLE: &str = "Eviction pressure";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let rate = node.rate("evicted_keys")?;
            let share = rate / node.ops()?.max(1.0);
            let exceeded = node.delta("total_eviction_exceeded_time").unwrap_or(0.0);
            let (hits, misses) = (node.delta("keyspace_hits").unwrap_or(0.0), node.delta("keyspace_misses").unwrap_or(0.0));
            let reads = hits + misses;
            // A cache at its limit evicts: it hurts when reads miss for it, or when writes do nothing else.
            let misses_much = reads > 100.0 && hits / reads < 0.8;
            let churns = reads <= 100.0 && share > 0.5;
            (rate > 10.0 && share > 0.01 && (misses_much || churns || exceeded > 0.0)).then_some((node, rate, exceeded))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1);
    let Some((node, rate, exceeded)) = rows.first() else { return Verdict::Absent(Some("evictions: none that matter".into())) };
    let (used, max) = (node.number("used_memory").unwrap_or(0.0), node.number("maxmemory").unwrap_or(0.0));
    let (hits, misses) = (node.delta("keyspace_hits").unwrap_or(0.0), node.delta("keyspace_misses").unwrap_or(0.0));
    let ratio = hits / (hits + misses).max(1.0);
    let policy = node.number("maxmemory").and(node.info().and_then(|i| i.get("maxmemory_policy"))).unwrap_or("unknown");
    let hits_text = if hits + misses > 0.0 { format!("hit ratio {}", percent(ratio)) } else { "no reads in the window".into() };
    let mean = used / node.info().map_or(1.0, |i| i.keys() as f64).max(1.0);
    let turnover = rate * mean * 60.0 / max.max(1.0);
    let lfu = if policy.starts_with("volatile") { "volatile-lfu" } else { "allkeys-lfu" };
    Finding::new(format!("{} throws out {} keys a second: {} of {} are in use", node.address, count(*rate), bytes(used), bytes(max)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .memory(turnover.min(1.0), format!("{} of the memory is replaced each minute; {hits_text}; {} in evictions over the limit", percent(turnover.min(1.0)), time_us(exceeded * 1000.0)))
        .gain("room for the working set ends it", format!("{rate:.0} keys/s x {mean:.0} B x 60 s / {} = {turnover:.2} of the memory a minute", bytes(max)))
        .proven("counted by the server in this window")
        .saw(node, "INFO stats", format!("evicted_keys +{:.0}, keyspace_hits +{hits:.0}, keyspace_misses +{misses:.0}", rate * node.window_s))
        .saw(node, "INFO memory", format!("used_memory {}, maxmemory {}, policy {policy}", bytes(used), bytes(max)))
        .not(format!("fragmentation: eviction counts used memory, resident is {}", bytes(node.number("used_memory_rss").unwrap_or(0.0))))
        .fix("Give it more memory, if the machine has it", &[&format!("CONFIG SET maxmemory {:.0}", max * 1.5)], "swap or the OOM killer, if the machine does not", &format!("CONFIG SET maxmemory {max:.0}"))
        .fix("Keep what is read: LFU; shorter TTLs for what is not", &[&format!("CONFIG SET maxmemory-policy {lfu}")], "other keys go first", &format!("CONFIG SET maxmemory-policy {policy}"))
        .into()
}
