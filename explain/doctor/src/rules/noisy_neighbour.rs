//! The server is ready to run, and the machine runs somebody else.
//!
//! Other processes, or virtual machines (steal), hold the processors while the main thread waits in the run queue. No
//! server-side figure shows it: the slow log holds innocent commands.
//!
//! Seen when: the main thread waited for a processor for over 5 % of the window while others were busy, or over 5 % of
//! all processor time was stolen.
//!
//! Not to be taken for: a CPU quota (`cpu_throttled`), or the server's own clients on the same machine, in
//! containers too: they are told by their connections.
//!
//! What to do: move the neighbour, pin the server, reserve cores; a dedicated host against steal.
//! Sources: /proc/pid/schedstat run delay, /proc/stat steal, /proc/pressure/cpu.

use super::prelude::*;

pub const TITLE: &str = "Noisy neighbour";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (host, process) = facts.process(node)?;
            let delay = process.run_delay_share?;
            let strangers: f64 = host.neighbours.iter().filter(|n| !n.client).map(|n| n.cpu_share).sum();
            let steal = host.steal_share.filter(|s| *s > 0.05).unwrap_or(0.0);
            // Who waits for its own clients is told so by other rules.
            let lost = if delay > 0.05 && strangers > 0.5 { delay } else { 0.0 };
            (lost > 0.0 || steal > 0.0).then_some((node, host, delay, strangers, steal, lost))
        })
        .collect();
    let rows = by_worst(rows, |r| r.5 + r.4);
    let Some((node, host, delay, strangers, steal, lost)) = rows.first() else {
        let looked = facts.live().filter_map(|n| facts.process(n)?.1.run_delay_share).reduce(f64::max);
        return Verdict::Absent(looked.map(|d| format!("run queue: the main threads waited {} of the time at most", percent(d))));
    };
    let busy = node.cpu().map_or(0.0, |(u, s)| u + s);
    let stretch = delay / (busy + delay).max(0.001);
    let who: Vec<String> = host.neighbours.iter().filter(|n| !n.client).take(3).map(|n| format!("{} (pid {}) {} of a core", n.name, n.pid, percent(n.cpu_share))).collect();
    let title = if steal > lost {
        format!("The hypervisor takes {} of the processors' time from {}", percent(*steal), host.hostname)
    } else {
        format!("{} waits for a processor {} of the time: {}", node.address, percent(*delay), who.first().cloned().unwrap_or_default())
    };
    Finding::new(title)
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .core(lost.max(*steal), format!("of the time it wants to run it waits {}; others use {} cores of {}", percent(stretch), count(*strangers), host.cpus))
        .gain("alone on its core it would not wait", format!("{delay:.3} of the window waiting, {busy:.3} running"))
        .proven("the kernel counted the main thread's waiting in this window")
        .saw_at(format!("/proc/PID/schedstat ({})", host.hostname), format!("run delay {} of the window", percent(*delay)), host.at_ms)
        .saw_at(format!("/proc/stat, processes ({})", host.hostname), format!("steal {}; {}", percent(host.steal_share.unwrap_or(0.0)), if who.is_empty() { "no single process stands out".into() } else { who.join(", ") }), host.at_ms)
        .saw_at(format!("/proc/pressure/cpu ({})", host.hostname), format!("some task waited {} of the time", percent(host.pressure.get("cpu.some").copied().unwrap_or(0.0))), host.at_ms)
        .not(match facts.process(node).and_then(|(_, p)| p.throttled_share) {
            Some(share) => format!("a CPU quota: throttled {} of the time", percent(share)),
            None => "a CPU quota: none seen".to_string(),
        })
        .fix("Move the neighbour, or give the server a core of its own", &["taskset -cp CORE PID   (the neighbour elsewhere)", "systemd: CPUWeight=1000 for the server", "server-cpulist 0-1   (redis.conf, 6.0+)"], "the neighbour gets slower", "taskset -cp 0-N PID")
        .into()
}
