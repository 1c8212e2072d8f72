//! The container's CPU quota stops the server for tens of milliseconds at a time.
//!
//! When the quota of a period (100 ms) is used up the kernel stops every thread until the next one. The slow log stays
//! empty, LATENCY DOCTOR sees nothing: only the cgroup's counters, or somebody outside, can tell.
//!
//! Seen when: the server's cgroup was throttled in over 1 % of its periods in the window.
//!
//! Not to be taken for: steal (the hypervisor's doing) or a busy neighbour (no quota involved).
//!
//! What to do: no CPU limit, or whole cores: threads plus one for saving.
//! Sources: cpu.stat nr_throttled, throttled time; measured: a quota of 20 % gave stalls of 52 ms and an empty slow log.

use super::prelude::*;

pub const TITLE: &str = "CPU throttled";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "noisy_neighbour", "node_timeout_margin", "kernel_bound"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (host, process) = facts.process(node)?;
            let (throttled, periods) = process.throttled_periods?;
            (periods > 0 && throttled as f64 / periods as f64 > 0.01).then_some((node, host, process, throttled, periods))
        })
        .collect();
    let rows = by_worst(rows, |r| r.2.throttled_share.unwrap_or(0.0));
    let Some((node, host, process, throttled, periods)) = rows.first() else {
        let looked = facts.live().any(|n| facts.process(n).is_some_and(|(_, p)| p.throttled_periods.is_some()));
        return Verdict::Absent(looked.then(|| "CPU quota: not throttled".into()));
    };
    let share = process.throttled_share.unwrap_or(0.0).min(1.0);
    let each_ms = share * host.window_s * 1000.0 / (*throttled).max(1) as f64;
    let quota = process.quota_cores.unwrap_or(0.0);
    Finding::new(format!(
        "{} is stopped by its CPU quota of {quota:.2} cores: {} of the time, {:.0} ms at a time",
        node.address, percent(share), each_ms
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .latency(share * each_ms / 2.0, format!("{} of all requests wait, {:.0} ms on average", percent(share), each_ms / 2.0))
    .gain("without the quota: none of it", format!("{} periods of {periods} throttled, {share:.2} x {each_ms:.0} ms / 2", throttled))
    .proven("the kernel counted the throttled periods of this server's cgroup in the window")
    .saw_at(format!("cpu.stat of pid {} ({})", process.pid, host.hostname), format!("nr_throttled +{throttled} of {periods} periods, {:.0} ms throttled", share * host.window_s * 1000.0), host.at_ms)
    .saw(node, "PING", node.rtt.value().map_or("not seen".into(), |r| format!("median {}, longest {}", time_us(r.us_p50.into()), time_us(r.us_max.into()))))
    .not(format!("steal: {}", percent(host.steal_share.unwrap_or(0.0))))
    .not(format!("slow commands: {} entries in the slow log", slow_entries(node, 0).len()))
    .fix("Take the limit away, or give whole cores", &["kubernetes: resources.limits.cpu unset, requests.cpu 1 or more", "systemd: CPUQuota=", "echo -1 > cpu.cfs_quota_us   (cgroup v1)   or   echo max > cpu.max   (v2)"], "it may take CPU from its neighbours", "restore the quota")
    .into()
}
