//! The disk under the append-only file is slow in this window.
//!
//! A write to the file goes to the page cache and is fast; the sync that follows waits for the device. When the device
//! needs 20 ms or more for a write, because it is slow or because something else keeps it busy, syncs pile up. Under
//! everysec the main thread postpones writes for up to two seconds and then waits as well; under always each write
//! waits immediately.
//!
//! Seen when: the server has an AOF, and the device of its working directory needed 20 ms or more for the mean write
//! and was busy for 60 % of the window or more, or needed 100 ms no matter how busy it was; or half of the syncs that
//! `--fsync-dir` timed took 20 ms. On its own that is a risk: how long the server waited is reported by
//! `aof_fsync_stall` and `fsync_always`, which then appear beneath this finding.
//!
//! Not to be taken for: a slow sync that the device does not show (a journal that other processes fill, a network file
//! system, a container's quota): then those two are reported on their own. Nor for swapping, which makes the same disk
//! busy.
//!
//! How to confirm: `iostat -x 1` on the machine: w_await and %util of the device; `pidstat -d 1`: which processes
//! write; `unslow host --fsync-dir DIR`.
//!
//! What to do: stop what else writes there (a backup, a log, another server's rewrite), then give the AOF its own
//! device.
//! Sources: /proc/diskstats, /proc/PID/cwd, /proc/pressure/io; redis #10287.

use unslow_facts::{Disk, Host};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;
use super::standing::stood_waiting;

pub const TITLE: &str = "Slow disk";
pub const LEADS_TO: &[&str] = &["fsync_always", "aof_fsync_stall"];
pub const INJECTED: Injected = Injected::No(
    "a slow block device slows the whole machine; the lab makes syncs slow inside the server (slow_fsync), which the \
     device does not show",
);

/// A write that takes this long, on a device that is busy for this share of the window.
const SLOW_MS: f64 = 20.0;
const BUSY: f64 = 0.6;
/// A write that takes this long on any device.
const STUCK_MS: f64 = 100.0;

/// A server with an AOF, and how its disk did.
struct Below<'a> {
    node: &'a Node,
    host: &'a Host,
    /// The device, where it is known and something was written to it.
    disk: Option<&'a Disk>,
    /// Whether the place of its files was seen at all.
    placed: bool,
    /// The median of the syncs that were timed for us, in ms.
    sync_ms: Option<f64>,
}

impl Below<'_> {
    fn is_slow(&self) -> bool {
        let device = self
            .disk
            .is_some_and(|d| d.write_await_ms >= STUCK_MS || d.write_await_ms >= SLOW_MS && d.busy_share >= BUSY);
        device || self.sync_ms.is_some_and(|ms| ms >= SLOW_MS)
    }

    fn ms(&self) -> f64 {
        self.disk.map_or(0.0, |d| d.write_await_ms).max(self.sync_ms.unwrap_or(0.0))
    }
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.live().all(|n| n.number("aof_enabled").is_none()) {
        return Verdict::Unknown(unseen_info(facts, "the disk"));
    }
    let with: Vec<&Node> = facts.live().filter(|n| n.number("aof_enabled") == Some(1.0)).collect();
    if with.is_empty() {
        return Verdict::NotHere;
    }
    let all: Vec<Below<'_>> = with.iter().filter_map(|n| look(facts, n)).collect();
    let all = by_worst(all, Below::ms);
    let rows: Vec<&Below<'_>> = all.iter().filter(|b| b.is_slow()).collect();
    if let Some(worst) = rows.first() {
        return stood_waiting(found(worst), worst.node).on(rows.iter().map(|b| b.node.address.as_str())).into();
    }
    if all.len() < with.len() {
        return Verdict::unknown(Lack::Host, "the disk: a server's machine could not be inspected", SEE_HOST);
    }
    if all.iter().any(|b| !b.placed && b.sync_ms.is_none()) {
        return Verdict::unknown(
            Lack::Host,
            "the disk: could not tell which one a server writes to",
            "run it as root, or as the server's user, on the server's machine; or: --fsync-dir DIR",
        );
    }
    Verdict::Absent(match all.iter().find(|b| b.disk.is_some()) {
        Some(b) => format!(
            "the disk: at most {:.1} ms a write, {} busy",
            b.ms(),
            b.disk.map_or(String::new(), |d| percent(d.busy_share))
        ),
        None => "the disk: hardly anything was written to it in the window".into(),
    })
}

fn look<'a>(facts: &'a Facts, node: &'a Node) -> Option<Below<'a>> {
    let (host, process) = facts.process(node)?;
    let device = process.storage.as_ref().and_then(|s| s.device.as_deref());
    let disk = host.disks.iter().find(|d| Some(d.name.as_str()) == device);
    let sync_ms = host.fsync.map(|rtt| f64::from(rtt.us_p50) / 1000.0);
    Some(Below { node, host, disk, placed: device.is_some(), sync_ms })
}

fn found(b: &Below<'_>) -> Finding {
    let (node, host) = (b.node, b.host);
    // The slower of the two figures is the one told.
    let by_device = b.disk.filter(|d| d.write_await_ms >= b.sync_ms.unwrap_or(0.0));
    let name = by_device.map_or("the disk", |d| d.name.as_str());
    let mut finding = Finding::new(format!(
        "{} on {} needs {} for a write: the AOF of {} is on it",
        name,
        host.hostname,
        time_us(b.ms() * 1000.0),
        node.address
    ))
    .risk("a sync that is two seconds late stops the main thread")
    .proven(match by_device {
        Some(_) => "the kernel timed the device's writes in this window",
        None => "syncs were timed in this window, in the directory that --fsync-dir names",
    });
    if let Some(d) = b.disk {
        let text = format!("{}: {:.1} ms a write, {} busy", d.name, d.write_await_ms, percent(d.busy_share));
        finding = finding.saw_at(format!("/proc/diskstats ({})", host.hostname), text, host.at_ms);
    }
    if let Some(ms) = b.sync_ms {
        let text = format!("median {ms:.1} ms a sync");
        finding = finding.saw_at(format!("--fsync-dir ({})", host.hostname), text, host.at_ms);
    }
    if let Some(io) = host.pressure.get("io.some") {
        let text = format!("{} of the time some process waited for a disk", percent(*io));
        finding = finding.saw_at(format!("/proc/pressure/io ({})", host.hostname), text, host.at_ms);
    }
    if host.swap_in_pages == Some(0) {
        finding = finding.not("swapping: no page was swapped in");
    }
    let others = host.processes.iter().filter(|p| !p.addresses.contains(&node.address));
    let device = b.disk.map(|d| d.name.as_str());
    let beside: Vec<String> = others
        .filter(|p| device.is_some() && p.storage.as_ref().and_then(|s| s.device.as_deref()) == device)
        .flat_map(|p| p.addresses.iter().cloned())
        .collect();
    if !beside.is_empty() {
        finding = finding.saw_at(
            format!("/proc/PID/cwd ({})", host.hostname),
            format!("also on it: {}", names(&beside)),
            host.at_ms,
        );
    }
    mend(finding, node, &beside)
}

fn mend(finding: Finding, node: &Node, beside: &[String]) -> Finding {
    let who = match beside {
        [] => "Find out what writes to it, and stop or slow down what can wait (a backup, a log)".to_string(),
        all => {
            format!("Find out what writes to it: {} do as well; let them save and rewrite at other times", names(all))
        }
    };
    finding
        .fix(&who, &["pidstat -d 1   (on its machine)", "iostat -x 1   (on its machine: w_await, %util)"], "", "")
        .fix(
            "Give the AOF a device that nothing else writes to: local NVMe, or a volume with more IOPS",
            &[&cli(&node.address, "CONFIG GET dir")],
            "moving the directory requires a restart",
            "",
        )
}
