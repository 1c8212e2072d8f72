//! A subscriber does not read what it subscribed to, and the server keeps it all in memory.
//!
//! Messages that a client has not read wait in its output buffer: memory that `maxmemory` counts, until the limit (32 MB,
//! or 8 MB for a minute, by default) ends the connection and the messages are lost.
//!
//! Seen when: a pub/sub connection has over 1 MB waiting, and all of them 5 % of the memory or one of them 4 MB.
//!
//! Not to be taken for: a replica that falls behind (flag S, another limit), or one large reply on its way.
//!
//! What to do: a faster or second consumer, a stream with a consumer group, smaller messages.
//! Sources: CLIENT LIST omem; CONFIG GET client-output-buffer-limit.

use super::prelude::*;

pub const TITLE: &str = "Slow subscriber";
pub const LEADS_TO: &[&str] = &["not_your_redis"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    for node in facts.live() {
        let all: Vec<_> = node.clients.value().map_or(&[][..], |c| &c.notable).iter().filter(|c| c.flags.contains('P') && c.output_bytes > 1_000_000).collect();
        let Some(worst) = all.iter().max_by_key(|c| c.output_bytes) else { continue };
        let total: u64 = all.iter().map(|c| c.output_bytes).sum();
        let used = node.number("used_memory").unwrap_or(total as f64).max(1.0);
        // A little of much memory, and far from the limit: it will catch up.
        let room = node.number("maxmemory").filter(|m| *m > 0.0).unwrap_or(used);
        if (total as f64) < 0.05 * room && worst.output_bytes < 4_000_000 {
            continue;
        }
        let max = node.number("maxmemory").filter(|m| *m > 0.0).unwrap_or(used);
        let limit = node.setting("client-output-buffer-limit").and_then(|l| l.split("pubsub ").nth(1).map(str::to_string));
        return Finding::new(format!("A subscriber of {} does not read: {} wait for it{}", node.address, bytes(worst.output_bytes as f64), if all.len() > 1 { format!(", {} for {} of them", bytes(total as f64), all.len()) } else { String::new() }))
            .on([node.address.as_str()])
            .memory(total as f64 / max, format!("{} of memory, {} of what the server may use", bytes(total as f64), percent(total as f64 / max)))
            .gain(format!("{} of memory back", bytes(total as f64)), format!("sum of omem over {} connections", all.len()))
            .proven("the server's own figure for bytes waiting")
            .saw(node, "CLIENT LIST TYPE pubsub", format!("id={} addr={} name={} idle={} omem={}", worst.id, worst.address, worst.name, worst.idle_s, worst.output_bytes))
            .saw(node, "CONFIG GET client-output-buffer-limit", limit.map_or("not seen".into(), |l| format!("pubsub {l}")))
            .fix("Find that client and let it read, or do its work in another thread than its reading", &[&format!("CLIENT LIST ID {}", worst.id)], "none", "none needed")
            .fix("End it before it hurts others", &[&format!("CLIENT KILL ID {}", worst.id), "CONFIG SET client-output-buffer-limit \"pubsub 32mb 8mb 60\""], "its waiting messages are lost", "none")
            .into();
    }
    match facts.live().find_map(|n| n.clients.missing()) {
        Some((why, grant)) => Verdict::Unknown { why: format!("subscribers' buffers: {why}"), grant: grant.unwrap_or("").into() },
        None => Verdict::Absent(Some("slow subscribers: none with over 1 MB waiting".into())),
    }
}
