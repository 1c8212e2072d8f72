//! The append-only file waits for the disk, and the main thread waits with it.
//!
//! With `appendfsync everysec` a background thread syncs each second; when a sync takes longer than two seconds the main
//! thread may no longer write, and everyone waits. With `always` every write waits for the disk.
//!
//! Seen when: aof_delayed_fsync grew in the window (it counts under `everysec` alone); or the latency monitor, where it is
//! on, holds an AOF event of over 50 ms from the last hour.
//!
//! Not to be taken for: a fork (another event name). I/O pressure of the host tells whether others use the same disk.
//!
//! What to do: a faster or own disk, no-appendfsync-on-rewrite, everysec in place of always.
//! Sources: INFO aof_delayed_fsync; LATENCY aof-write-pending-fsync, aof-fsync-always; redis #10287.

use super::prelude::*;

pub const TITLE: &str = "AOF fsync stall";
pub const LEADS_TO: &[&str] = &["node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter(|n| n.number("aof_enabled") == Some(1.0))
        .filter_map(|node| {
            let delayed = node.delta("aof_delayed_fsync").unwrap_or(0.0);
            let recent = node.at_ms() / 1000;
            let event = node
                .latency
                .value()
                .into_iter()
                .flatten()
                .filter(|e| e.name.starts_with("aof-") && e.last_at_s + 3600 > recent)
                // The longest since the last reset may be of another month: only the last hour counts.
                .map(|e| (e, e.history.iter().filter(|(at, _)| at + 3600 > recent).map(|h| h.1).max().unwrap_or(e.last_ms)))
                .max_by_key(|e| e.1)
                .filter(|e| e.1 >= 50);
            (delayed > 0.0 || event.is_some()).then_some((node, delayed, event))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1 * 1e6 + r.2.map_or(0.0, |e| e.1 as f64));
    let Some((node, delayed, event)) = rows.first() else {
        let on = facts.live().any(|n| n.number("aof_enabled") == Some(1.0));
        return Verdict::Absent(Some(if on { "AOF: no delayed fsync counted, no event of 50 ms noted".into() } else { "AOF: off".into() }));
    };
    let policy = node.setting("appendfsync").unwrap_or("unknown");
    let worst_ping = node.pings.iter().map(|p| p.1).max().unwrap_or(0);
    // A delayed fsync makes writers wait for up to two seconds before the server writes all the same.
    let wait_ms = event.map_or(0.0, |e| e.1 as f64).max(f64::from(worst_ping) / 1000.0).max(if *delayed > 0.0 { 1.0 } else { 0.0 });
    let share = (delayed * wait_ms / 1000.0 / node.window_s).min(1.0).max(wait_ms / 1000.0 / 3600.0);
    let host = facts.process(node).map(|(h, _)| h);
    let mut finding = Finding::new(format!(
        "{} waits for its disk: {} delayed fsyncs in {:.0} s{}",
        node.address, count(*delayed), node.window_s, event.map_or(String::new(), |(e, ms)| format!(", {} of up to {ms} ms in the last hour", e.name))
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .latency((share * wait_ms / 2.0).max(0.01), format!("requests wait up to {} when it happens", time_us(wait_ms * 1000.0)))
    .gain("a sync of 1 ms is never waited for", format!("{delayed} x {wait_ms:.0} ms / {:.1} s", node.window_s))
    .proven("the server counted the syncs it had to wait for")
    .saw(node, "INFO persistence", format!("aof_delayed_fsync +{delayed:.0}"))
    .saw(node, "CONFIG GET appendfsync", policy);
    if let Some((event, _)) = event {
        finding = finding.saw_then(node, "LATENCY LATEST", format!("{}: last {} ms, longest {} ms", event.name, event.last_ms, event.max_ms), event.last_at_s * 1000);
    }
    if let Some(host) = host {
        let io = host.pressure.get("io.some").copied().unwrap_or(0.0);
        let disks: Vec<String> = host.disks.iter().map(|d| format!("{}: {:.1} ms a write, {} busy", d.name, d.write_await_ms, percent(d.busy_share))).collect();
        finding = finding.saw_at(format!("/proc/pressure/io, /proc/diskstats ({})", host.hostname), format!("stalled on I/O {} of the time; {}", percent(io), disks.join("; ")), host.at_ms);
    }
    if let Some(us) = node.number("latest_fork_usec").filter(|us| *us < 100_000.0) {
        finding = finding.not(format!("fork: {}", time_us(us)));
    }
    finding
        .fix("Do not sync while a rewrite runs", &["CONFIG SET no-appendfsync-on-rewrite yes"], "up to 30 s of writes are lost if the machine dies during a rewrite", "CONFIG SET no-appendfsync-on-rewrite no")
        .fix("Give the AOF a local SSD of its own; everysec in place of always", &["CONFIG SET appendfsync everysec"], "up to a second of writes is lost if the machine dies", &format!("CONFIG SET appendfsync {policy}"))
        .into()
}
