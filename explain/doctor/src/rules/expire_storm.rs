//! Too many keys expire at once, and removing them takes the main thread's time.
//!
//! Keys that are written together with the same TTL expire together. The active expiry cycle may then use up to 25 % of
//! the main thread, and keys that expire lazily cost time on access.
//!
//! Seen when: over 100 keys a second expire, and the expiry cycle took over 5 % of a core in the window; before 6.0,
//! where that is not counted, it is estimated by how often the cycle ran into its time limit.
//!
//! Not to be taken for: eviction (`eviction_pressure`).
//!
//! What to do: add jitter to TTLs; turn on lazyfree-lazy-expire if values are large and it is off.
//! Sources: INFO expired_keys, expire_cycle_cpu_milliseconds, expired_time_cap_reached_count, expired_stale_perc;
//! expire.c.

use super::prelude::*;

pub const TITLE: &str = "Expire storm";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// The longest the cycle runs in one go: 25 % of a period of `hz`.
const CAP: f64 = 0.25;

/// What one master removes.
struct Expires<'a> {
    node: &'a Node,
    /// Keys a second.
    rate: f64,
    /// Share of a core, where it is counted (6.0+).
    cpu: Option<f64>,
    /// How often the cycle ran into its time limit.
    capped: f64,
    /// Keys with a TTL that are dead already, in percent.
    stale: f64,
}

impl Expires<'_> {
    fn share(&self) -> f64 {
        let cap_s = CAP / self.node.number("hz").unwrap_or(10.0).max(1.0);
        self.cpu.unwrap_or_else(|| (self.capped * cap_s / self.node.window_s.max(0.001)).min(CAP))
    }

    fn hurts(&self) -> bool {
        self.rate > 100.0 && self.share() > 0.05
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let masters = facts.live().filter(|n| n.is_master());
    let all = by_worst(masters.filter_map(look).collect(), |e: &Expires| e.share() + e.rate / 1e9);
    let rows: Vec<&Expires> = all.iter().filter(|e| e.hurts()).collect();
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|e| e.node.address.as_str())).into();
    }
    let text = all.first().map(|e| match e.cpu {
        Some(cpu) => format!("expiry: at most {} keys a second and {} of a core", count(e.rate), percent(cpu)),
        None => format!("expiry: {} keys a second, the time limit reached {} times", count(e.rate), count(e.capped)),
    });
    Verdict::absent(facts, "expiry", text)
}

fn look(node: &Node) -> Option<Expires<'_>> {
    Some(Expires {
        node,
        rate: node.rate("expired_keys")?,
        cpu: node.rate("expire_cycle_cpu_milliseconds").map(|ms| ms / 1000.0),
        capped: node.delta("expired_time_cap_reached_count").unwrap_or(0.0),
        stale: node.number("expired_stale_perc").unwrap_or(0.0),
    })
}

fn found(e: &Expires) -> Finding {
    let (node, share) = (e.node, e.share());
    let taken = if e.cpu.is_some() {
        format!("{} of its main thread goes into removing them", percent(share))
    } else {
        format!("removing them ran into its time limit {} times", count(e.capped))
    };
    let mut finding = Finding::new(format!("{} keys a second expire on {}: {taken}", count(e.rate), node.address))
        .core(
            share,
            format!(
                "{} of a core on {}; the cycle reached its time limit {} times",
                percent(share),
                node.address,
                count(e.capped)
            ),
        )
        .gain(
            format!("spread over ten times the time, it takes {} of a core at any moment", percent(share / 10.0)),
            format!("{share:.3} cores / 10 = {:.4}", share / 10.0),
        )
        .saw(
            node,
            "INFO stats",
            format!(
                "expired_keys +{:.0}, expired_time_cap_reached_count +{:.0}, expired_stale_perc:{:.1}",
                e.rate * node.window_s,
                e.capped,
                e.stale
            ),
        );
    finding = match e.cpu {
        Some(cpu) => finding.proven("the server timed its expiry cycle in this window").saw(
            node,
            "INFO stats",
            format!("expire_cycle_cpu_milliseconds +{:.0}", cpu * 1000.0 * node.window_s),
        ),
        None => finding.likely(
            "expiries were counted; their CPU time is not counted before 6.0, and is estimated from the cycle's time \
             limit",
        ),
    };
    if let Some(evicted) = node.rate("evicted_keys") {
        finding = finding.not(format!("eviction: {} keys a second", count(evicted)));
    }
    finding = finding.fix("Add jitter to TTLs where they are set", &["ttl = base + random(0, base / 10)"], "", "");
    if node.setting("lazyfree-lazy-expire") == Some("no") {
        finding = finding.fix_at(
            &node.address,
            "Free large values in the background",
            &["CONFIG SET lazyfree-lazy-expire yes"],
            "memory is freed a little later",
            "CONFIG SET lazyfree-lazy-expire no",
        );
    }
    finding
}
