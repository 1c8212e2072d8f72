//! The replication backlog holds only seconds of writes: a short break of the link costs a full copy.
//!
//! A replica that reconnects continues from the backlog if what it missed is still there. At 1 MB (the default up to
//! Redis 7.4) and 1 MB/s of writes, that covers one second; after that the master forks and sends everything.
//!
//! Seen when: on a master with replicas the backlog lasts less than 60 s at the current write rate, and a larger one
//! would make sense: it never needs to be larger than the data set, which is what a full copy sends, nor than a tenth
//! of the memory.
//!
//! Not to be taken for: a loop of full copies with another cause (an output buffer limit, a timeout, restarts). There
//! the replica never got far enough to need the backlog, and `full_resync_loop` has the cause.
//!
//! What to do: backlog = write rate x 300 s, or the size of the data set if that is less.
//! Sources: INFO repl_backlog_size, master_repl_offset, sync_partial_err.

use super::prelude::*;
use super::replica_link::{is_by_backlog, looping};

pub const TITLE: &str = "Backlog too small";
pub const LEADS_TO: &[&str] = &["full_resync_loop", "resync_storm"];
pub const INJECTED: Injected = Injected::Yes;

/// A break of this length should cost no copy.
const BREAK_S: f64 = 300.0;
/// Backlogs that last less are reported.
const SHORT_S: f64 = 60.0;
const MB: f64 = 1_048_576.0;

/// The backlog of a master with replicas.
struct Backlog<'a> {
    node: &'a Node,
    rate: f64,
    size: f64,
}

impl Backlog<'_> {
    fn lasts_s(&self) -> f64 {
        self.size / self.rate.max(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let masters: Vec<&Node> =
        facts.live().filter(|n| n.is_master() && n.number("connected_slaves").unwrap_or(0.0) > 0.0).collect();
    if masters.is_empty() {
        return if facts.live().next().is_some() {
            Verdict::NotHere
        } else {
            Verdict::Unknown(unseen_info(facts, "replication backlog"))
        };
    }
    let all: Vec<Backlog> = masters.into_iter().filter_map(backlog).collect();
    let all = by_worst(all, |b| -b.lasts_s());
    let Some(least) = all.first() else { return Verdict::Unknown(unseen_info(facts, "replication backlog")) };
    let lasts = format!("replication backlog: lasts at least {}", time_us(least.lasts_s().min(86400.0) * 1e6));
    let short: Vec<&Backlog> = all.iter().filter(|b| b.lasts_s() < SHORT_S).collect();
    let rows: Vec<&Backlog> =
        short.iter().copied().filter(|b| !is_unused_in_a_loop(facts, b.node) && wanted(b.node) > b.size).collect();
    if let Some(worst) = rows.first() {
        return found(worst, &rows).into();
    }
    match short.first() {
        None => Verdict::Absent(lasts),
        Some(b) if is_unused_in_a_loop(facts, b.node) => Verdict::Absent(format!(
            "{lasts}, and it is not the cause of the full syncs of {} (full_resync_loop)",
            b.node.address
        )),
        Some(b) => Verdict::Absent(format!("{lasts}, and at {} it is as large as a full copy would be", bytes(b.size))),
    }
}

fn backlog(node: &Node) -> Option<Backlog<'_>> {
    Some(Backlog { node, rate: node.rate("master_repl_offset")?, size: node.number("repl_backlog_size")? })
}

/// Full copies follow each other, and not because something was missing in the backlog.
fn is_unused_in_a_loop(facts: &Facts, node: &Node) -> bool {
    looping(facts, node).is_some_and(|l| !is_by_backlog(facts, node, &l))
}

/// The size that makes sense, in whole megabytes: five minutes of writes, but no more than a full copy is, nor than a
/// tenth of the memory.
pub fn wanted(node: &Node) -> f64 {
    let rate = node.rate("master_repl_offset").unwrap_or(0.0);
    let data = node.number("used_memory_dataset").or_else(|| node.number("used_memory")).unwrap_or(f64::MAX);
    let memory =
        node.number("maxmemory").filter(|m| *m > 0.0).or_else(|| node.number("total_system_memory")).unwrap_or(10e9);
    let bytes = (rate * BREAK_S).min(data.max(MB)).min((memory / 10.0).max(MB));
    (bytes / MB).ceil().max(1.0) * MB
}

fn found(worst: &Backlog, rows: &[&Backlog]) -> Finding {
    let (node, rate) = (worst.node, worst.rate);
    let wanted_bytes = wanted(node);
    let grown = |field| node.delta(field).unwrap_or(0.0);
    let finding = Finding::new(format!(
        "The replication backlog of {} lasts {}: a longer break in a replica's link costs a full copy",
        node.address,
        time_us(worst.lasts_s() * 1e6)
    ))
    .on(rows.iter().map(|b| b.node.address.as_str()))
    .risk(format!(
        "each such break costs a fork and {} over the wire; {} partial syncs failed in the window",
        bytes(node.number("used_memory").unwrap_or(0.0)),
        count(grown("sync_partial_err"))
    ))
    .gain(
        format!(
            "with {}, a break of up to {} costs no full copy",
            bytes(wanted_bytes),
            time_us(wanted_bytes / rate.max(1.0) * 1e6)
        ),
        format!(
            "{wanted_bytes:.0} B / {rate:.0} B/s = {:.1} s; now {:.0} B / {rate:.0} B/s = {:.1} s",
            wanted_bytes / rate.max(1.0),
            worst.size,
            worst.lasts_s()
        ),
    )
    .proven("size and write rate were both read from the server")
    .saw(
        node,
        "INFO replication",
        format!("repl_backlog_size {}, master_repl_offset +{}/s", bytes(worst.size), bytes(rate)),
    )
    .saw(
        node,
        "INFO stats",
        format!(
            "sync_full +{:.0}, sync_partial_err +{:.0} in the window",
            grown("sync_full"),
            grown("sync_partial_err")
        ),
    );
    enlarge(finding, &rows.iter().map(|b| b.node).collect::<Vec<_>>())
}

/// Sets the size that makes sense on these masters.
pub fn enlarge(finding: Finding, masters: &[&Node]) -> Finding {
    let set = |node: &Node, size: f64| cli(&node.address, &format!("CONFIG SET repl-backlog-size {size:.0}"));
    let new: Vec<String> = masters.iter().map(|n| set(n, wanted(n))).collect();
    let old: Vec<String> = masters.iter().filter_map(|n| Some(set(n, n.number("repl_backlog_size")?))).collect();
    let new: Vec<&str> = new.iter().map(String::as_str).collect();
    let most = masters.iter().map(|n| wanted(n)).fold(0.0, f64::max);
    // Redis 7.0 keeps what is in the backlog when it is resized.
    let drops = masters.iter().any(|n| n.level() < (7, 0));
    let risk = format!(
        "{} of memory{}",
        bytes(most),
        if drops { "; before 7.0 resizing empties the backlog, so the next break costs a full copy" } else { "" }
    );
    finding
        .fix(
            "Make the backlog last longer (and set it in the configuration file too, so that it survives a restart)",
            &new,
            &risk,
            &old.join("; "),
        )
        .exact()
}
