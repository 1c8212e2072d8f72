//! The server defragments its memory while it works, and takes the main thread's time for it.
//!
//! Active defragmentation moves keys between commands. It takes as much of the core as it thinks it needs, up to
//! `active-defrag-cycle-max` (25 % by default), for as long as fragmentation is above its threshold.
//!
//! Seen when: it was running at both ends of the window, it looked at keys in between, and its share of the core was a
//! tenth or more: the effort it reports, for the part of the window that it ran (total_active_defrag_time, 7.0+).
//!
//! Not to be taken for: fragmentation itself (`fragmentation`), which is what it works against; slow commands; expiry
//! (`expire_storm`), which also runs between commands.
//!
//! How to confirm: run `INFO memory` twice: active_defrag_running; `INFO stats` active_defrag_hits,
//! active_defrag_misses; `LATENCY HISTORY active-defrag-cycle`.
//!
//! What to do: lower its ceiling, or turn it off until a quiet hour. If it moves next to nothing, there is nothing to
//! gain from it here.
//! Sources: INFO active_defrag_running, active_defrag_hits, total_active_defrag_time; redis/redis#5603, #8706;
//! valkey-io/valkey#1242.

use unslow_facts::LatencyEvent;

use super::memory;
use super::prelude::*;

pub const TITLE: &str = "Active defragmentation";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::No(
    "it takes a server built with its own jemalloc; those that the tests install use the C library's allocator or the \
     system's",
);

/// Share of a core from which on requests notice.
const SHARE: f64 = 0.1;
/// Of the objects it looks at, so few were worth moving.
const USELESS: f64 = 0.05;

/// One server that packs.
struct Packs<'a> {
    node: &'a Node,
    /// The share of a core that it aims at.
    effort: f64,
    /// The share of the window that it was at work, where that is counted.
    time: Option<f64>,
    moved: f64,
    looked_at: f64,
}

impl Packs<'_> {
    /// Never more than the main thread used at all.
    fn share(&self) -> f64 {
        let aimed = self.effort * self.time.unwrap_or(1.0);
        self.node.cpu().map_or(aimed, |(user, sys)| aimed.min(user + sys))
    }

    fn is_useless(&self) -> bool {
        self.moved < USELESS * self.looked_at
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let seen = most(facts, |n| n.number("active_defrag_running"));
    let rows: Vec<Packs> = facts.live().filter_map(packs).collect();
    let rows: Vec<Packs> = by_worst(rows, Packs::share);
    match rows.first().filter(|worst| worst.share() >= SHARE) {
        Some(worst) => {
            found(worst).on(rows.iter().filter(|r| r.share() >= SHARE).map(|r| r.node.address.as_str())).into()
        }
        None => Verdict::absent(
            facts,
            "active defragmentation",
            seen.map(|effort| match rows.first() {
                Some(worst) => format!("active defragmentation: at most {} of a core", percent(worst.share())),
                None => format!(
                    "active defragmentation: not running throughout the window (active_defrag_running:{effort:.0})"
                ),
            }),
        ),
    }
}

fn packs(node: &Node) -> Option<Packs<'_>> {
    let before = node.first.as_ref()?.info.number("active_defrag_running")?;
    let effort = node.number("active_defrag_running")?.min(before) / 100.0;
    let moved = node.delta("active_defrag_hits")?;
    let looked_at = moved + node.delta("active_defrag_misses")?;
    // Before 7.0 the time is not counted; the two samples say that it ran at both ends.
    let time = node.rate("total_active_defrag_time").map(|ms_per_s| (ms_per_s / 1000.0).min(1.0));
    (effort > 0.0 && looked_at > 0.0).then_some(Packs { node, effort, time, moved, looked_at })
}

fn cycles(node: &Node) -> Option<&LatencyEvent> {
    let since_ms = node.first.as_ref().map_or(0, |s| s.at_ms);
    let mut events = node.latency.value()?.iter().filter(|e| e.name == "active-defrag-cycle");
    events.find(|e| logged_ms(node, e.last_at_s) > since_ms)
}

fn found(p: &Packs) -> Finding {
    let (node, share) = (p.node, p.share());
    let outcome = if p.is_useless() {
        format!("; of {} objects it examined, it moved {}", count(p.looked_at), count(p.moved))
    } else {
        String::new()
    };
    let cycle = cycles(node);
    let finding = Finding::new(format!(
        "{} spends {} of its main thread on active defragmentation{outcome}",
        node.address,
        percent(share)
    ))
    .core(share, format!("{} of a core, between commands", percent(share)))
    .gain(
        if p.is_useless() {
            format!("{} of a core, once it is off", percent(share))
        } else {
            format!("{} of a core with a ceiling of 10 %, all of it once it is off", percent((share - 0.1).max(0.0)))
        },
        format!(
            "{:.0} % effort x {} of the window = {share:.3} of a core",
            p.effort * 100.0,
            p.time.map_or("all".into(), percent)
        ),
    )
    .likely("the server reports the effort it aims at; how much of it this window took is not counted separately")
    .saw(node, "INFO memory", format!("active_defrag_running:{:.0} at both ends of the window", p.effort * 100.0))
    .saw(node, "INFO stats", format!("active_defrag_hits +{:.0} of {:.0} looked at", p.moved, p.looked_at));
    let finding = match cycle {
        Some(event) => finding.saw_then(
            node,
            "LATENCY HISTORY active-defrag-cycle",
            format!("{} ms, the longest {} ms", event.last_ms, event.max_ms),
            event.last_at_s * 1000,
        ),
        None => finding,
    };
    let finding = match memory::gaps(node) {
        Some(gaps) => finding.saw(
            node,
            "INFO memory",
            format!("allocator_frag_ratio:{:.2}, {} left to pack", gaps.ratio, bytes(gaps.bytes)),
        ),
        None => finding,
    };
    ways_out(finding, p)
}

fn ways_out(finding: Finding, p: &Packs) -> Finding {
    let address = p.node.address.as_str();
    let ceiling = p.node.setting_number("active-defrag-cycle-max").filter(|max| *max > 10.0);
    let finding = match ceiling {
        Some(max) if !p.is_useless() => finding.fix_at(
            address,
            "Lower its ceiling: it runs for longer, and takes less CPU at a time",
            &["CONFIG SET active-defrag-cycle-max 10"],
            "memory stays fragmented for longer",
            &format!("CONFIG SET active-defrag-cycle-max {max:.0}"),
        ),
        _ => finding,
    };
    finding.fix_at(
        address,
        if p.is_useless() {
            "Turn it off: it finds next to nothing to move"
        } else {
            "Or turn it off until a quiet hour"
        },
        &["CONFIG SET activedefrag no"],
        "memory stays fragmented while it is off",
        "CONFIG SET activedefrag yes",
    )
}
