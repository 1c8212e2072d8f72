//! The machine is short of memory, and processes stall while the kernel reclaims pages.
//!
//! Before the OOM killer acts, there is a period in which every allocation may have to wait for memory to be found.
//! None of it shows in the slow log: the main thread stops wherever it happens to touch a new page.
//!
//! Seen when: less than a tenth of the machine's memory is available, and some task was stalled on memory for 5 % of
//! the window or more (or all of them for 1 %).
//!
//! Not to be taken for: another container at its own limit, which the same counters show while the machine has memory
//! to spare; tasks that reclaim memory themselves although the machine has some (`reclaim`); the server's own container
//! (`container_memory`); swapped-out pages (`swap`), which may follow.
//!
//! How to confirm: `cat /proc/pressure/memory` twice to see total grow; `grep MemAvailable /proc/meminfo`; `vmstat 1`.
//!
//! What to do: stop or move whatever else uses memory there, give the server less, or use a larger machine.
//! Sources: /proc/pressure/memory (Linux 4.20), /proc/meminfo; the kernel's PSI documentation.

use unslow_facts::Host;

use super::memory;
use super::prelude::*;

pub const TITLE: &str = "Memory pressure";
pub const LEADS_TO: &[&str] = &["swap"];
pub const INJECTED: Injected = Injected::No(
    "the machine's memory would have to be used up, which kills other programs there; the rule is tested on facts \
     written by hand",
);

/// Share of the window in which some task stood still.
const SOME: f64 = 0.05;
/// The same of all of them together.
const FULL: f64 = 0.01;
/// The server's own waits for a page a second: fewer happen on a machine that has memory to spare.
const WAITS_PER_S: f64 = 1.0;

fn stalls(host: &Host) -> Option<(f64, f64)> {
    let of = |kind: &str| host.pressure.get(kind).copied();
    Some((of("memory.some")?, of("memory.full").unwrap_or(0.0)))
}

pub fn check(facts: &Facts) -> Verdict {
    let hosts: Vec<(&Host, f64, f64, f64)> = facts
        .hosts
        .iter()
        .filter(|h| memory::servers_on(facts, h).next().is_some())
        .filter_map(|h| {
            let ((some, full), free) = (stalls(h)?, memory::available(h)?);
            Some((h, some, full, free))
        })
        .collect();
    let hosts = by_worst(hosts, |h| h.1);
    let short = hosts.iter().find(|(_, some, full, free)| *free < memory::SHORT && (*some >= SOME || *full >= FULL));
    if let Some((host, some, full, free)) = short {
        return found(facts, host, (*some, *full), *free).into();
    }
    match hosts.first() {
        Some((_, some, _, free)) => Verdict::Absent(format!(
            "memory pressure: tasks were stalled on memory {} of the time at most, {} of the machine's memory is \
             available",
            percent(*some),
            percent(*free)
        )),
        None if facts.live().any(|n| facts.process(n).is_some()) => Verdict::unknown(
            Lack::Host,
            "memory pressure: the machine was inspected, but has no /proc/pressure/memory",
            "Linux 4.20 or later, started with psi=1",
        ),
        None => memory::unseen_machine("memory pressure"),
    }
}

fn found(facts: &Facts, host: &Host, (some, full): (f64, f64), free: f64) -> Finding {
    let servers: Vec<&Node> = memory::servers_on(facts, host).collect();
    let resident: f64 = servers.iter().filter_map(|n| n.number("used_memory_rss")).sum();
    let often = |faults: u64| faults as f64 >= WAITS_PER_S * host.window_s.max(1.0);
    let waits = |n: &&&Node| facts.process(n).and_then(|(_, p)| p.major_faults).is_some_and(often);
    let hit = servers.iter().find(waits);
    let all = host.memory_bytes.unwrap_or(0) as f64;
    let finding = Finding::new(format!(
        "{} is short of memory: tasks stalled for {} of the time while the kernel looked for free pages",
        host.hostname,
        percent(some)
    ))
    .on(servers.iter().map(|n| n.address.as_str()))
    .core(
        some.min(1.0),
        format!("at least one task was waiting for {} of the window, all of them for {}", percent(some), percent(full)),
    )
    .saw_at(
        format!("/proc/pressure/memory ({})", host.hostname),
        format!("some {}, full {} of the window", percent(some), percent(full)),
        host.at_ms,
    )
    .saw_at(
        format!("/proc/meminfo ({})", host.hostname),
        format!("MemAvailable {}, {} of the memory", bytes(free * all), percent(free)),
        host.at_ms,
    );
    let finding = match hit {
        Some(node) => finding
            .proven("the kernel counted the stalls, and the server's own waits for pages, in this window")
            .saw_at(
                format!("/proc/PID/stat ({})", host.hostname),
                format!(
                    "{}: {} waits for a page",
                    node.address,
                    facts.process(node).and_then(|(_, p)| p.major_faults).unwrap_or(0)
                ),
                host.at_ms,
            ),
        None => finding.likely(
            "the kernel counted the stalls of all tasks on the machine; that the servers were among them is inferred",
        ),
    };
    let share = resident / all.max(1.0);
    let others = format!("the servers hold {} of {}", bytes(resident), bytes(all));
    let finding = if share < 0.5 {
        finding.fix(
            &format!("Find what else uses the memory of {}: {others}", host.hostname),
            &["ps -eo pid,rss,comm --sort -rss | head"],
            "",
            "",
        )
    } else {
        finding
    };
    let largest = servers.iter().max_by(|a, b| {
        let rss = |n: &Node| n.number("used_memory_rss").unwrap_or(0.0);
        rss(a).total_cmp(&rss(b))
    });
    match largest.filter(|_| share >= 0.5) {
        Some(node) => finding.fix(
            &format!("Move a server, or give the machine more memory: {others}"),
            &[&cli(&node.address, "INFO memory")],
            "",
            "",
        ),
        None => finding,
    }
}
