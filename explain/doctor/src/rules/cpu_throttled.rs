//! The container's CPU quota stops the server for tens of milliseconds at a time.
//!
//! When the quota of a period (100 ms) is used up, the kernel stops every thread until the next one. The slow log stays
//! empty and LATENCY DOCTOR sees nothing: only the cgroup's counters, or a probe from outside, can show it.
//!
//! Seen when: the server's cgroup, or one above it (a pod, a slice), was throttled in over 1 % of its periods in the
//! window. If it was stopped for less than 0.1 % of the time, it is a risk.
//!
//! Not to be taken for: steal (`hypervisor_steal`: the hypervisor is to blame) or a busy neighbour (`noisy_neighbour`:
//! no quota is involved).
//!
//! How to confirm: run `cat cpu.stat` twice in the server's cgroup (`/proc/PID/cgroup` names it) and in those above it:
//! nr_throttled grows.
//!
//! What to do: no CPU limit, or whole cores: one for each thread, plus one for saving.
//! Sources: cpu.stat nr_throttled, throttled time; measured: a quota of 20 % gave stalls of 52 ms and an empty slow
//! log.

use unslow_facts::{Host, Process};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "CPU throttled";
pub const LEADS_TO: &[&str] =
    &["main_thread_saturated", "noisy_neighbour", "node_timeout_margin", "kernel_bound", "replica_lag"];
pub const INJECTED: Injected = Injected::Yes;

const PERIODS: f64 = 0.01;
/// Share of the window that must have been lost for requests to notice.
const NOTICED: f64 = 0.001;

pub fn check(facts: &Facts) -> Verdict {
    let mut looked = None;
    let mut rows: Vec<(&Node, &Host, &Process, u64, u64)> = Vec::new();
    for node in facts.live() {
        let Some((host, process)) = facts.process(node) else { continue };
        let Some((throttled, periods)) = process.throttled_periods else { continue };
        let share = throttled as f64 / periods.max(1) as f64;
        looked = Some(share.max(looked.unwrap_or(0.0)));
        if share > PERIODS {
            rows.push((node, host, process, throttled, periods));
        }
    }
    let rows = by_worst(rows, |r| r.2.throttled_share.unwrap_or(0.0));
    let Some((node, host, process, throttled, periods)) = rows.first() else {
        return match looked {
            Some(share) => {
                Verdict::Absent(format!("CPU quota: throttled in at most {} of its periods", percent(share)))
            }
            None => Verdict::unknown(Lack::Host, "CPU quota: the server's cgroup could not be read", SEE_HOST),
        };
    };
    let share = process.throttled_share.unwrap_or(0.0).clamp(0.0, 1.0);
    let each_ms = share * host.window_s * 1000.0 / (*throttled).max(1) as f64;
    let wait_ms = share * each_ms / 2.0;
    let quota = process.quota_cores.map_or(String::new(), |cores| format!(" of {cores:.2} cores"));
    let finding = Finding::new(format!(
        "{} is stopped by {} CPU quota{quota}: {} of the time, {each_ms:.0} ms at a time",
        node.address,
        if process.throttled_above == 0 { "its" } else { "its pod's or slice's" },
        percent(share)
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()));
    let text = format!("{} of all requests wait, {:.0} ms on average", percent(share), each_ms / 2.0);
    let finding = if share >= NOTICED {
        finding.latency(wait_ms, text)
    } else {
        finding.risk(format!("{text}: too few to notice yet"))
    };
    let mut finding = finding
        .gain(
            "without the quota, none of these waits",
            format!(
                "{throttled} of {periods} periods; {share:.3} of the time x {each_ms:.0} ms / 2 = {wait_ms:.2} ms \
                     a request"
            ),
        )
        .proven(match process.throttled_above {
            0 => "the kernel counted the throttled periods of this server's cgroup in the window",
            _ => "the kernel counted the throttled periods of a cgroup above this server's in the window",
        })
        .saw_at(
            format!("cpu.stat of pid {}{} ({})", process.pid, levels(process.throttled_above), host.hostname),
            format!(
                "nr_throttled +{throttled} of {periods} periods, {:.0} ms \
                     throttled",
                share * host.window_s * 1000.0
            ),
            host.at_ms,
        );
    if let Some(rtt) = node.rtt.value() {
        finding = finding.saw(
            node,
            "PING",
            format!("median {}, longest {}", time_us(rtt.us_p50.into()), time_us(rtt.us_max.into())),
        );
    }
    if let Some(steal) = host.steal_share {
        finding = finding.not(format!("steal: {}", percent(steal)));
    }
    if node.slowlog.value().is_some() {
        finding = finding.not(format!("slow commands: {} entries in the slow log", slow_entries(node, 0).len()));
    }
    finding
        .fix(
            "Remove the limit, or give it whole cores: as many as the server has threads, plus one for saving",
            &[
                "kubernetes: no resources.limits.cpu, and resources.requests.cpu of 1 or more",
                "docker update --cpus 0 CONTAINER",
                "systemctl set-property SERVICE CPUQuota=",
                match process.throttled_above {
                    0 => {
                        "echo max > cpu.max   (cgroup v2)   or   echo -1 > cpu.cfs_quota_us   (v1), in the server's \
                          cgroup"
                    }
                    _ => {
                        "echo max > cpu.max   (cgroup v2)   or   echo -1 > cpu.cfs_quota_us   (v1), in the cgroup \
                          above that is throttled"
                    }
                },
            ],
            "it may take CPU from its neighbours",
            "set the quota again",
        )
        .into()
}

/// `, 2 cgroups above its own`; nothing for its own.
fn levels(above: u32) -> String {
    match above {
        0 => String::new(),
        1 => ", one cgroup above its own".into(),
        n => format!(", {n} cgroups above its own"),
    }
}
