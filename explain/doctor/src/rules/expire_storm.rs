//! Too many keys expire at once, and removing them takes the main thread's time.
//!
//! Keys written together with the same TTL die together. The active expiry cycle may then use up to 25 % of the main
//! thread, and lazily expired keys pay on access.
//!
//! Seen when: over 100 keys a second expire, and the expiry cycle took over 5 % of a core in the window; before 6.0, where
//! that is not counted, it ran into its time limit, or over 10 % of the keys with a TTL are dead already.
//!
//! Not to be taken for: eviction (`eviction_pressure`).
//!
//! What to do: jitter on TTLs, lazyfree-lazy-expire, a higher effort at quiet hours.
//! Sources: INFO expired_keys, expire_cycle_cpu_milliseconds, expired_time_cap_reached_count, expired_stale_perc; expire.c.

use super::prelude::*;

pub const TITLE: &str = "Expire storm";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter(|n| n.is_master())
        .filter_map(|node| {
            let rate = node.rate("expired_keys")?;
            let cpu = node.rate("expire_cycle_cpu_milliseconds").map_or(0.0, |ms| ms / 1000.0);
            let capped = node.delta("expired_time_cap_reached_count").unwrap_or(0.0);
            let stale = node.number("expired_stale_perc").unwrap_or(0.0);
            // Where the cycle's CPU is counted (6.0+), that is the measure.
            let known = node.number("expire_cycle_cpu_milliseconds").is_some();
            (rate > 100.0 && (cpu > 0.05 || (!known && (capped > 0.0 || stale > 10.0)))).then_some((node, rate, cpu, capped, stale))
        })
        .collect();
    let rows = by_worst(rows, |r| r.2 + r.1 / 1e9);
    let Some((node, rate, cpu, capped, stale)) = rows.first() else {
        let most = most(facts, |n| n.rate("expired_keys"));
        return Verdict::Absent(most.map(|m| format!("expiry: {} keys a second at most", count(m))));
    };
    let known = node.number("expire_cycle_cpu_milliseconds").is_some();
    let share = if known { *cpu } else { (capped * 0.025 / node.window_s).min(0.25) };
    let finding = Finding::new(format!("{} keys a second expire on {}: {} of its main thread goes into removing them", count(*rate), node.address, percent(share)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .core(share.max(0.001), format!("{} of a core on {}; the cycle hit its time limit {} times", percent(share), node.address, count(*capped)))
        .gain("spread over ten times the time: a tenth of that at any moment", format!("{share:.3} cores / 10"));
    let finding = if known { finding.proven("the server timed its expiry cycle in this window") } else { finding.likely("expiries were counted; their CPU is not before 6.0") };
    finding
        .saw(node, "INFO stats", format!("expired_keys +{:.0}, expired_time_cap_reached_count +{capped:.0}, expired_stale_perc:{stale:.1}", rate * node.window_s))
        .saw(node, "INFO stats", format!("expire_cycle_cpu_milliseconds +{:.0}", cpu * 1000.0 * node.window_s))
        .not(format!("eviction: {} keys a second", count(node.rate("evicted_keys").unwrap_or(0.0))))
        .fix("Give TTLs jitter where they are set", &["ttl = base + random(0, base / 10)"], "none", "none needed")
        .fix("Free large values in the background", &["CONFIG SET lazyfree-lazy-expire yes"], "memory comes back a little later", "CONFIG SET lazyfree-lazy-expire no")
        .into()
}
