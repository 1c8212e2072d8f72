//! The memory limit is reached, nothing may be evicted, and writes fail.
//!
//! With `noeviction` (the default) a full server answers OOM to every write that could grow the data.
//!
//! Seen when: the server returned OOM errors in the window (6.2+), or used memory is at the limit under noeviction.
//!
//! Not to be taken for: an OOM kill by the kernel, which shows as a restart.
//!
//! What to do: raise maxmemory, allow eviction if it is a cache, or delete data.
//! Sources: INFO errorstat_OOM, used_memory, maxmemory, maxmemory_policy.

use super::key_patterns::{self, By};
use super::prelude::*;

pub const TITLE: &str = "Out of memory";
pub const LEADS_TO: &[&str] = &["error_flood"];
pub const INJECTED: Injected = Injected::Yes;

/// A server at its limit.
struct Full<'a> {
    node: &'a Node,
    refused: f64,
    used: f64,
    max: f64,
    policy: String,
}

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<Full> = facts.live().filter_map(full).collect();
    let rows = by_worst(rows, |r| r.refused + r.used / r.max);
    let Some(worst) = rows.first() else {
        let limit = most(facts, |n| n.number("maxmemory"));
        let share = most(facts, |n| Some(n.number("used_memory")? / n.number("maxmemory").filter(|m| *m > 0.0)?));
        let refused =
            if facts.live().any(|n| n.level() >= (6, 2)) { ", and no write was refused because of it" } else { "" };
        let text = match share {
            Some(share) => format!("memory: {} of maxmemory at most{refused}", percent(share)),
            None => format!("memory: no server has a limit (maxmemory 0){refused}"),
        };
        return Verdict::absent(facts, "the memory limit", limit.map(|_| text));
    };
    let (node, refused, used, max, policy) = (worst.node, worst.refused, worst.used, worst.max, worst.policy.as_str());
    let outcomes = Outcomes::of(node).unwrap_or_default();
    let share = outcomes.share(refused);
    let finding = Finding::new(if refused > 0.0 {
        format!("{} is full and refuses writes: {} OOM errors in {:.0} s", node.address, count(refused), node.window_s)
    } else {
        format!(
            "{} is full ({} of {}) and {policy} lets it evict nothing: the next writes will fail",
            node.address,
            bytes(used),
            bytes(max)
        )
    })
    .on(rows.iter().map(|r| r.node.address.as_str()));
    let finding = key_patterns::told(finding, facts, By::Memory);
    let finding = if refused > 0.0 {
        finding
            .availability(
                86400.0 * share,
                format!(
                    "{} of all commands, {} writes a second, are refused",
                    percent(share),
                    count(refused / node.window_s.max(0.001))
                ),
            )
            .gain("writes succeed again", format!("{refused:.0} refused / {:.0} commands sent", outcomes.asked))
            .proven("counted by the server in this window")
    } else {
        finding
            .risk("the next write that needs memory fails")
            .gain("writes keep succeeding", format!("{} / {}", bytes(used), bytes(max)))
            .likely(if node.level() >= (6, 2) {
                "the limit and the policy were read; no write was refused in this window"
            } else {
                "the limit and the policy were read; refused writes are not counted before 6.2"
            })
    };
    let finding = finding.saw(
        node,
        "INFO memory",
        format!("used_memory {}, maxmemory {}, maxmemory_policy {policy}", bytes(used), bytes(max)),
    );
    let finding = if node.level() >= (6, 2) {
        finding.saw(node, "INFO errorstats", format!("errorstat_OOM +{refused:.0}"))
    } else {
        finding
    };
    remedies(finding, facts, worst).into()
}

fn full(node: &Node) -> Option<Full<'_>> {
    let refused = node.errors().get("OOM").copied().unwrap_or(0) as f64;
    let (used, max) = (node.number("used_memory")?, node.number("maxmemory").filter(|m| *m > 0.0)?);
    let policy = node.info().and_then(|i| i.get("maxmemory_policy")).unwrap_or("");
    let full = policy == "noeviction" && node.is_master() && used / max >= 0.99;
    (refused > 0.0 || full).then(|| Full { node, refused, used, max, policy: policy.to_string() })
}

fn remedies(finding: Finding, facts: &Facts, full: &Full) -> Finding {
    let (node, wanted) = (full.node, full.max * 1.5);
    // The machine's or the container's, whichever is known and less; a fork's copies need room beside it.
    let container = facts.process(node).and_then(|(_, p)| p.memory_limit_bytes).map(|b| b as f64);
    let machine = node.number("total_system_memory").filter(|b| *b > 0.0);
    let room = [container, machine].into_iter().flatten().reduce(f64::min);
    let finding = match room {
        Some(room) if wanted > 0.8 * room => finding.fix(
            "Move it to a machine with more memory, or split the data set",
            &[&format!("{} of the {} here are maxmemory already", percent(full.max / room), bytes(room))],
            "the data has to be moved",
            "",
        ),
        _ => finding.fix(
            "Raise the limit",
            &[&cli(&node.address, &format!("CONFIG SET maxmemory {wanted:.0}"))],
            &room.map_or("swapping or the OOM killer, if the machine does not have that much".into(), |room| {
                format!("its machine has {}; leave room for a fork's copies", bytes(room))
            }),
            &cli(&node.address, &format!("CONFIG SET maxmemory {:.0}", full.max)),
        ),
    };
    if full.policy != "noeviction" {
        return finding.fix(
            "Give keys a TTL: only keys with a TTL may be evicted under this policy",
            &["EXPIRE key seconds   (in the application)"],
            "keys disappear when their TTL ends",
            "PERSIST key",
        );
    }
    finding.fix(
        "If it is a cache: let it evict",
        &[&cli(&node.address, "CONFIG SET maxmemory-policy allkeys-lru")],
        "keys disappear; not for data of record",
        &cli(&node.address, &format!("CONFIG SET maxmemory-policy {}", full.policy)),
    )
}
