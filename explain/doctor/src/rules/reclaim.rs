//! The machine has memory, and still tasks must free it themselves: they reclaim or compact pages before they get any.
//!
//! The kernel keeps some memory free in the background. If allocations come faster than that (a backup that fills the
//! page cache, receive buffers of many connections), or if huge pages must be assembled, the task that asks for memory
//! does the work, and stalls. None of it shows in the slow log.
//!
//! Seen when: tasks reclaimed or compacted at least once a second in the window (`allocstall_*`, `compact_stall` of
//! /proc/vmstat), while more than a tenth of the machine's memory was available. It has a cost if the kernel counted
//! stalls as well: 1 % of the window in the server's own cgroup, or 5 % on the machine. Without them it is reported as
//! a risk.
//!
//! Not to be taken for: a machine that is short of memory (`memory_pressure`, which reports it if less than a tenth is
//! available); a container at its own limit (`container_memory`), whose waits these counters leave out; swapped-out
//! pages (`swap`).
//!
//! How to confirm: `grep -e allocstall -e compact_stall /proc/vmstat` twice; `cat /proc/pressure/memory`; `sar -B 1 5`
//! (pgscand/s).
//!
//! What to do: let the kernel start earlier (vm.min_free_kbytes, vm.watermark_scale_factor); do not assemble huge pages
//! at fault time; make jobs that read whole disks bypass the page cache.
//! Sources: /proc/vmstat, /proc/pressure/memory; the kernel's Documentation/admin-guide/sysctl/vm.rst.

use unslow_facts::{Host, Reclaims};

use super::memory;
use super::prelude::*;

pub const TITLE: &str = "Direct reclaim";
pub const LEADS_TO: &[&str] = &["node_timeout_margin"];
pub const INJECTED: Injected = Injected::No(
    "the machine's free memory would have to run out, which stops other programs there; tested on recorded facts with \
     the counters set by hand",
);

/// Waits a second of any task.
const LEAST: f64 = 1.0;
/// Share of the window that the server's own group stood still for memory.
const OWN: f64 = 0.01;
/// The same of any task of the machine.
const ANY: f64 = 0.05;

/// A machine with servers, and what its tasks had to do for memory.
struct Machine<'a> {
    host: &'a Host,
    servers: Vec<&'a Node>,
    reclaims: Reclaims,
    /// Share of its memory.
    available: f64,
}

/// Who was seen to stand still, and for what share of the window.
enum Stalled {
    Server(f64),
    Any(f64),
    Unseen,
}

impl Machine<'_> {
    /// None of a machine without our servers, or that does not show how much memory it has left.
    fn of<'a>(facts: &'a Facts, host: &'a Host) -> Option<Machine<'a>> {
        let servers: Vec<&Node> = memory::servers_on(facts, host).collect();
        let (reclaims, available) = (host.reclaims?, memory::available(host)?);
        (!servers.is_empty()).then_some(Machine { host, servers, reclaims, available })
    }

    fn per_s(&self) -> f64 {
        (self.reclaims.direct as f64 + self.reclaims.compactions as f64) / self.host.window_s.max(0.001)
    }

    fn stalled(&self, facts: &Facts) -> Stalled {
        let groups = || self.servers.iter().filter_map(move |n| facts.process(n)?.1.memory_group.as_ref());
        let own = groups().filter(|g| !memory::is_at_limit(g)).filter_map(|g| g.stalled_share).reduce(f64::max);
        let own = own.filter(|share| *share >= OWN);
        let any = self.host.pressure.get("memory.some").copied().filter(|share| *share >= ANY);
        match (own, any) {
            (Some(share), _) => Stalled::Server(share),
            // A container at its limit adds to the machine's stalls: then they are not told apart.
            (None, Some(share)) if !groups().any(memory::is_at_limit) => Stalled::Any(share),
            _ => Stalled::Unseen,
        }
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Machine<'_>> = facts.hosts.iter().filter_map(|host| Machine::of(facts, host)).collect();
    let looked_for = |m: &&Machine<'_>| m.per_s() >= LEAST && m.available >= memory::SHORT;
    let rows = by_worst(all.iter().filter(looked_for).collect(), |m| m.per_s());
    if let Some(worst) = rows.first() {
        return found(facts, worst).into();
    }
    match all.iter().max_by(|a, b| a.per_s().total_cmp(&b.per_s())) {
        Some(most) if most.per_s() >= LEAST => {
            Verdict::Absent("direct reclaim: the machine is short of memory, see memory_pressure".into())
        }
        Some(most) => Verdict::Absent(format!(
            "direct reclaim: tasks had to free memory themselves {} times in the window",
            count(most.reclaims.direct as f64 + most.reclaims.compactions as f64)
        )),
        None => memory::unseen_machine("direct reclaim"),
    }
}

fn found(facts: &Facts, worst: &Machine<'_>) -> Finding {
    let Machine { host, servers, reclaims, available } = worst;
    let rate = |n: u64| count(n as f64 / host.window_s.max(0.001));
    let finding = Finding::new(format!(
        "On {} tasks must free memory themselves before they get any: {} times a second, although memory is available",
        host.hostname,
        count(worst.per_s())
    ))
    .on(servers.iter().map(|n| n.address.as_str()));
    let used = servers.iter().any(|n| is_used(n));
    let finding = match worst.stalled(facts) {
        Stalled::Server(share) if used => finding
            .core(
                share.min(1.0),
                format!("the server's own cgroup was stalled on memory for {} of the window", percent(share)),
            )
            .proven("the kernel counted the stalls of the server's cgroup, which is not at its limit, in this window"),
        Stalled::Any(share) if used => finding
            .core(
                share.min(1.0),
                format!("at least one task was stalled on memory for {} of the window", percent(share)),
            )
            .likely(
                "the kernel counted the stalls of all tasks on the machine; that the servers were among them is \
                 inferred",
            ),
        _ => finding
            .risk("no task was seen to stall for long; the next burst of allocations may change that")
            .possible("the waits are those of all tasks on the machine, and no stall was counted for the server"),
    };
    let finding = finding
        .saw_at(
            format!("/proc/vmstat ({})", host.hostname),
            format!(
                "allocstall +{} a second, compact_stall +{} a second",
                rate(reclaims.direct),
                rate(reclaims.compactions)
            ),
            host.at_ms,
        )
        .saw_at(
            format!("/proc/meminfo ({})", host.hostname),
            format!("MemAvailable {} of the memory", percent(*available)),
            host.at_ms,
        );
    let finding = match host.swap_in_pages {
        Some(pages) => finding.not(format!("swap: {} pages were read back in the window", count(pages as f64))),
        None => finding,
    };
    ways_out(finding, worst)
}

fn ways_out(finding: Finding, worst: &Machine<'_>) -> Finding {
    let (host, reclaims) = (worst.host, worst.reclaims);
    let finding = if reclaims.compactions >= reclaims.direct {
        finding.fix(
            &format!("On {}: do not assemble huge pages while a task waits", host.hostname),
            &["echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag"],
            "programs that benefit from huge pages get fewer of them right away",
            "echo WAS > /sys/kernel/mm/transparent_hugepage/defrag   (the word in brackets, as it is now)",
        )
    } else {
        finding
    };
    finding
        .fix(
            &format!("On {}: let the kernel free memory earlier, in the background", host.hostname),
            &[
                "sysctl vm.min_free_kbytes vm.watermark_scale_factor   (note what they are)",
                "sysctl -w vm.watermark_scale_factor=100",
            ],
            "about 1 % of the memory is kept free instead of 0.1 %",
            "sysctl -w vm.watermark_scale_factor=10   (the default)",
        )
        .fix(
            "Find what fills the memory in bursts (a backup, a copy of a large file), and make it bypass the page \
             cache",
            &["sar -B 1 5   (pgscand/s)", "ps -eo pid,rss,comm --sort -rss | head"],
            "",
            "",
        )
}
