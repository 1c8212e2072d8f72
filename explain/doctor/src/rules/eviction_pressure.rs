//! The memory limit is reached, and keys are thrown out to make room for each write.
//!
//! A cache at its limit evicts, that is its work. It becomes a problem when it evicts what is about to be read: the hit
//! ratio falls, and each write pays for the search for a victim.
//!
//! Seen when: over 10 keys a second are evicted and they are over 5 % of the commands, or evictions take measurable time
//! (current_eviction_exceeded_time, eviction-cycle events).
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
            (rate > 10.0 && (share > 0.05 || exceeded > 0.0)).then_some((node, rate, share))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1);
    let Some((node, rate, share)) = rows.first() else { return Verdict::Absent(Some("evictions: none that matter".into())) };
    let (used, max) = (node.number("used_memory").unwrap_or(0.0), node.number("maxmemory").unwrap_or(0.0));
    let (hits, misses) = (node.delta("keyspace_hits").unwrap_or(0.0), node.delta("keyspace_misses").unwrap_or(0.0));
    let ratio = hits / (hits + misses).max(1.0);
    let policy = node.number("maxmemory").and(node.info().and_then(|i| i.get("maxmemory_policy"))).unwrap_or("unknown");
    let hits_text = if hits + misses > 0.0 { format!("hit ratio {}", percent(ratio)) } else { "no reads in the window".into() };
    Finding::new(format!("{} throws out {} keys a second: {} of {} are in use", node.address, count(*rate), bytes(used), bytes(max)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .memory(share.min(1.0), format!("{} evictions for each command; {hits_text}", percent(*share)))
        .gain("room for the working set ends it", format!("{rate:.0} keys/s x mean key size is what it grows by"))
        .proven("counted by the server in this window")
        .saw(node, "INFO stats", format!("evicted_keys +{:.0}, keyspace_hits +{hits:.0}, keyspace_misses +{misses:.0}", rate * node.window_s))
        .saw(node, "INFO memory", format!("used_memory {}, maxmemory {}, policy {policy}", bytes(used), bytes(max)))
        .not(format!("fragmentation: eviction counts used memory, resident is {}", bytes(node.number("used_memory_rss").unwrap_or(0.0))))
        .fix("Give it more memory, if the machine has it", &[&format!("CONFIG SET maxmemory {:.0}", max * 1.5)], "swap or the OOM killer, if the machine does not", &format!("CONFIG SET maxmemory {max:.0}"))
        .fix("Keep what is read: LFU; shorter TTLs for what is not", &["CONFIG SET maxmemory-policy allkeys-lfu"], "other keys go first", &format!("CONFIG SET maxmemory-policy {policy}"))
        .into()
}
