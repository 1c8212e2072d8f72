//! The replication backlog holds only seconds: a short break of the link costs a full copy.
//!
//! A replica that comes back continues from the backlog, if what it missed is still there. At 1 MB (the default up to
//! Redis 7.4) and 1 MB/s of writes that is one second; then the master forks and sends everything.
//!
//! Seen when: at the present write rate the backlog lasts less than 60 s, on a master with replicas.
//!
//! Not to be taken for: output buffers that are too small, which end a sync half way (`full_resync_loop`).
//!
//! What to do: backlog = write rate x 300 s.
//! Sources: INFO repl_backlog_size, master_repl_offset, sync_partial_err.

use super::prelude::*;

pub const TITLE: &str = "Backlog too small";
pub const LEADS_TO: &[&str] = &["full_resync_loop"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter(|n| n.is_master() && n.number("connected_slaves").unwrap_or(0.0) > 0.0)
        .filter_map(|node| {
            let rate = node.rate("master_repl_offset")?;
            let size = node.number("repl_backlog_size")?;
            let seconds = size / rate.max(1.0);
            (seconds < 60.0).then_some((node, rate, size, seconds))
        })
        .collect();
    let rows = by_worst(rows, |r| -r.3);
    let Some((node, rate, size, seconds)) = rows.first() else {
        let least = facts.live().filter(|n| n.is_master() && n.number("connected_slaves").unwrap_or(0.0) > 0.0).filter_map(|n| Some(n.number("repl_backlog_size")? / n.rate("master_repl_offset")?.max(1.0))).reduce(f64::min);
        return Verdict::Absent(least.map(|s| format!("replication backlog: lasts {} at least", time_us(s.min(86400.0) * 1e6))));
    };
    let failed = node.number("sync_partial_err").unwrap_or(0.0);
    let full = node.number("sync_full").unwrap_or(0.0);
    // Never more than a tenth of what the server may use.
    let room = node.number("maxmemory").filter(|m| *m > 0.0).or_else(|| node.number("total_system_memory")).unwrap_or(10e9) / 10.0;
    let wanted = ((rate * 300.0).min(room) / 1048576.0).ceil().max(1.0) * 1048576.0;
    Finding::new(format!("The replication backlog of {} lasts {}: a longer break of a replica's link costs a full copy", node.address, time_us(seconds * 1e6)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .risk(format!("each such break: a fork and {} over the wire; {} partial syncs have failed so far", bytes(node.number("used_memory").unwrap_or(0.0)), count(failed)))
        .gain(format!("{}: breaks of up to {:.0} s are made up from memory", bytes(wanted), wanted / rate.max(1.0)), format!("{rate:.0} B/s x 300 s = {}", bytes(rate * 300.0)))
        .proven("size and write rate were both read from the server")
        .saw(node, "INFO replication", format!("repl_backlog_size {}, master_repl_offset +{}/s", bytes(*size), bytes(*rate)))
        .saw(node, "INFO stats", format!("sync_full:{full:.0}, sync_partial_err:{failed:.0}"))
        .fix("Make it last longer: five minutes, or a tenth of the memory", &[&format!("CONFIG SET repl-backlog-size {wanted:.0}"), "CONFIG REWRITE"], &format!("{} of memory; before 7.0 resizing drops the present backlog, so the next break costs a full copy", bytes(wanted)), &format!("CONFIG SET repl-backlog-size {size:.0}"))
        .into()
}
