//! Part of the server's memory is on disk, and its main thread waits for it.
//!
//! A key on a swapped page is read from disk before the command can continue, and every other client waits as well:
//! microseconds become milliseconds.
//!
//! Seen when: pages of the server are swapped out (`VmSwap`), the machine read pages back in the window (`pswpin`), and
//! the server itself waited for pages from disk ten times a second or more (`majflt`). If those waits are under a
//! hundredth of the time, or were not counted, it is a risk.
//!
//! Not to be taken for: cold pages that are never used: swapped out, and none read back; pages of other processes,
//! which the server's own count of waits leaves out; memory that is short but not swapped (`memory_pressure`).
//!
//! How to confirm: `grep VmSwap /proc/PID/status`; `vmstat 1`: the column si; field 12 of `/proc/PID/stat`, twice.
//!
//! What to do: memory first: move what else runs there, lower maxmemory, or use a larger machine. Then set
//! `vm.swappiness=1`, so that the kernel gives up its page cache before it swaps servers.
//! Sources: /proc/pid/status, /proc/pid/stat, /proc/vmstat; Redis latency documentation on swapping.

use unslow_facts::{Host, Process};

use super::memory;
use super::prelude::*;
use super::standing::stood_waiting;

pub const TITLE: &str = "Swapping";
pub const LEADS_TO: &[&str] = &["node_timeout_margin", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::No(
    "swap space belongs to the whole machine, and using up its memory takes other programs down with it; the rule is \
     tested on facts written by hand",
);

/// Waits for a page a second: at ten milliseconds each on a disk that turns, a tenth of the time.
const PER_S: f64 = 10.0;
/// What a read of one page from an SSD takes, in s. Disks that turn take a hundred times that; compressed memory (zram)
/// takes less.
const READ_S: f64 = 0.0001;
/// Share of the time from which on requests notice.
const NOTICED: f64 = 0.01;

/// One server and its swapped pages.
struct Swapped<'a> {
    node: &'a Node,
    host: &'a Host,
    process: &'a Process,
    bytes: f64,
    /// Pages read back in the window, on the whole machine.
    read: u64,
    /// Waits of the server for a page, a second.
    waits: Option<f64>,
}

impl Swapped<'_> {
    fn is_read_back(&self) -> bool {
        self.bytes > 0.0 && self.read > 0 && self.waits.is_none_or(|per_s| per_s >= PER_S)
    }

    /// The waits at what a read from an SSD takes. The kernel's count of stalls is of all tasks there, and no price of
    /// this server.
    fn share(&self) -> f64 {
        (self.waits.unwrap_or(0.0) * READ_S).min(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Swapped> = facts.live().filter_map(|node| look(facts, node)).collect();
    let all = by_worst(all, |s| s.share() * 1e12 + s.bytes);
    let rows: Vec<&Swapped> = all.iter().filter(|s| s.is_read_back()).collect();
    if let Some(worst) = rows.first() {
        return stood_waiting(found(facts, worst), worst.node).on(rows.iter().map(|s| s.node.address.as_str())).into();
    }
    match all.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes)) {
        Some(most) => Verdict::Absent(format!(
            "swap: at most {} of a server is swapped out, {} pages were read back on its machine{}",
            bytes(most.bytes),
            most.read,
            most.waits.map_or(String::new(), |w| format!(", it waited for {} a second", count(w)))
        )),
        None => memory::unseen_machine("swap"),
    }
}

fn look<'a>(facts: &'a Facts, node: &'a Node) -> Option<Swapped<'a>> {
    let (host, process) = facts.process(node)?;
    let read = host.swap_in_pages?;
    // Pages of files are waited for as well: no more of them were swapped than the machine read back.
    let waits = process.major_faults.map(|n| n.min(read) as f64 / host.window_s.max(0.001));
    Some(Swapped { node, host, process, bytes: process.swap_bytes? as f64, read, waits })
}

fn found(facts: &Facts, s: &Swapped) -> Finding {
    let (node, host, share) = (s.node, s.host, s.share());
    let waits = s.waits.unwrap_or(0.0);
    let used = node.number("used_memory").unwrap_or(0.0);
    let of = if used > 0.0 { format!(" of {}", bytes(used)) } else { String::new() };
    let finding = Finding::new(format!(
        "{} of {}'s memory{of} is swapped out, and read back while commands wait",
        bytes(s.bytes),
        node.address
    ));
    let text = format!("{} waits for a page a second", count(waits));
    let finding = if share >= NOTICED && is_used(node) {
        finding
            .core(share, format!("{text}: about {} of the time", percent(share)))
            .gain(
                "with everything in memory, none of it is left",
                format!("{waits:.0} waits a second x {:.1} ms a read, as from an SSD = {share:.3}", READ_S * 1e3),
            )
            .likely(
                "the kernel counted the server's waits and the pages read from swap; how long each took was not timed",
            )
    } else {
        finding
            .risk(if s.waits.is_some() {
                format!("{text}: too few to notice yet")
            } else {
                "it was not counted whose pages were read back".into()
            })
            .likely(
                "pages of this server are swapped out and some were read back on its machine; a slow request was \
                     not seen",
            )
    };
    let finding = finding
        .saw_at(
            format!("/proc/{}/status ({})", s.process.pid, host.hostname),
            format!("VmSwap {}", bytes(s.bytes)),
            host.at_ms,
        )
        .saw_at(format!("/proc/vmstat ({})", host.hostname), format!("pswpin +{}", s.read), host.at_ms)
        .saw(
            node,
            "INFO memory",
            format!("used_memory {}, where it went: {}", bytes(used), memory::parts_text(facts, node)),
        );
    let finding = match host.pressure.get("memory.some") {
        Some(some) => finding.saw_at(
            format!("/proc/pressure/memory ({})", host.hostname),
            format!("some task waited {} of the time", percent(*some)),
            host.at_ms,
        ),
        None => finding,
    };
    let finding = match host.memory_available_bytes {
        Some(free) => finding.saw_at(
            format!("/proc/meminfo ({})", host.hostname),
            format!("MemAvailable {}", bytes(free as f64)),
            host.at_ms,
        ),
        None => finding,
    };
    // Under noeviction, or a policy that was not seen, a lower limit refuses writes at once.
    let evicts = node.info().and_then(|i| i.get("maxmemory_policy")).is_some_and(|policy| policy != "noeviction");
    let finding = match memory::maxmemory(node).filter(|_| used > 0.0 && evicts) {
        Some(max) if node.is_master() => finding.fix(
            "Now: if it is a cache, let it use less than is resident; otherwise move what else runs there",
            &[&cli(&node.address, &format!("CONFIG SET maxmemory {:.0}", (used - s.bytes).max(0.5 * used)))],
            "keys are evicted immediately; if none may be evicted, writes fail",
            &cli(&node.address, &format!("CONFIG SET maxmemory {max:.0}")),
        ),
        _ => finding.fix(
            &format!("Find what else uses the memory of {}", host.hostname),
            &["ps -eo pid,rss,comm --sort -rss | head"],
            "",
            "",
        ),
    };
    finding.fix(
        "Then make the kernel give up page cache before it swaps servers; a restart or a failover brings back what is \
         swapped out",
        &["sysctl -w vm.swappiness=1", "echo vm.swappiness=1 > /etc/sysctl.d/61-redis.conf"],
        "without free memory the OOM killer comes sooner",
        "sysctl -w vm.swappiness=60   (the kernel's default; or what it was)",
    )
}
