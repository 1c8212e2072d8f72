//! The next save does not fit on the disk.
//!
//! A snapshot or a rewrite writes a new file next to the old one and removes the old one at the end, so for that time
//! there must be room for both. Without it the save fails, and so, usually, does every write from then on (MISCONF).
//!
//! Seen when: the server saves automatically (`save` has rules, or it has an AOF), and its file system has less room
//! than the next save needs: for a rewrite the size of the AOF after the last one (aof_base_size), for a snapshot half
//! of the data set in memory (compressed it is usually less than that, but seldom less than a tenth). It is a risk:
//! nothing fails yet.
//!
//! Not to be taken for: saves that already fail (`saves_failing`).
//!
//! How to confirm: `CONFIG GET dir`, then `df -h DIR` on its machine; `INFO memory`: used_memory_dataset;
//! `INFO persistence`: aof_base_size, aof_current_size.
//!
//! What to do: remove old dumps, logs and temp-*.rdb files of saves that were killed; then get a larger disk, or a
//! smaller data set.
//! Sources: statvfs of /proc/PID/cwd; INFO memory and persistence; Redis persistence documentation.

use unslow_facts::{Host, Storage};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;
use super::saves_failing;

pub const TITLE: &str = "No room for the next save";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Of the data set in memory: what a snapshot of it takes, to be on the safe side of a false alarm.
const SNAPSHOT: f64 = 0.5;
/// Even the snapshot of an empty server, and what is written to the AOF meanwhile, need some room.
const LEAST_BYTES: f64 = 1e6;

/// A server that saves, and the room it has.
struct Room<'a> {
    node: &'a Node,
    host: &'a Host,
    storage: &'a Storage,
    /// What the next save or rewrite writes, in bytes, and why.
    need: f64,
    by: &'static str,
}

impl Room<'_> {
    fn free(&self) -> f64 {
        self.storage.free_bytes as f64
    }

    /// Above 1 it does not fit.
    fn share(&self) -> f64 {
        self.need / self.free().max(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.live().all(|n| n.number("used_memory").is_none()) {
        return Verdict::Unknown(unseen_info(facts, "room for saves"));
    }
    if facts.live().all(|n| needs(n).is_some_and(|need| need.0 == 0.0)) {
        return Verdict::NotHere;
    }
    // Without the machine settings say nothing either.
    if facts.live().all(|n| facts.process(n).is_none()) {
        return Verdict::unknown(Lack::Host, "room for saves: the disk of a server was not seen", SEE_HOST);
    }
    let saving: Vec<&Node> = facts.live().filter(|n| needs(n).is_some_and(|need| need.0 > 0.0)).collect();
    let all: Vec<Room<'_>> = saving.iter().filter_map(|n| look(facts, n)).collect();
    let all = by_worst(all, Room::share);
    let (failed, full): (Vec<&Room<'_>>, Vec<&Room<'_>>) =
        all.iter().filter(|r| r.share() > 1.0).partition(|r| saves_failing::fails(r.node));
    if let Some(worst) = full.first() {
        return found(worst).on(full.iter().map(|r| r.node.address.as_str())).into();
    }
    if let Some(gap) = facts.live().find(|n| needs(n).is_none()).and_then(|n| n.config.missing()) {
        return Verdict::Unknown(gap.of("room for saves: whether any are due"));
    }
    if !failed.is_empty() {
        return Verdict::NotHere; // it is more than a risk there
    }
    match all.first() {
        Some(r) if all.len() == saving.len() => Verdict::Absent(format!(
            "room for saves: {} free, and the next one needs at most {}",
            bytes(r.free()),
            bytes(r.need)
        )),
        _ => Verdict::unknown(Lack::Host, "room for saves: the disk of a server was not seen", SEE_HOST),
    }
}

/// What the next save that comes by itself writes, and which it is; 0 where none does, none where settings were not
/// seen.
fn needs(node: &Node) -> Option<(f64, &'static str)> {
    if node.number("aof_enabled") == Some(1.0) {
        let base = node.number("aof_base_size").unwrap_or(0.0);
        return Some((base.max(LEAST_BYTES), "a rewrite of the AOF"));
    }
    if node.setting("save")?.is_empty() {
        return Some((0.0, ""));
    }
    let data = node.number("used_memory_dataset").or_else(|| node.number("used_memory"))?;
    Some(((data * SNAPSHOT).max(LEAST_BYTES), "a snapshot"))
}

fn look<'a>(facts: &'a Facts, node: &'a Node) -> Option<Room<'a>> {
    let (host, process) = facts.process(node)?;
    let (need, by) = needs(node)?;
    Some(Room { node, host, storage: process.storage.as_ref()?, need, by })
}

fn found(r: &Room<'_>) -> Finding {
    let (node, s) = (r.node, r.storage);
    let refused = match node.setting("stop-writes-on-bgsave-error") {
        Some("yes") if r.by == "a snapshot" && node.is_master() => ", and then every write is refused",
        _ => "",
    };
    let (free, size, need) = (bytes(r.free()), bytes(s.size_bytes as f64), bytes(r.need));
    let of_it = match r.by {
        "a snapshot" => format!(
            "used_memory_dataset {}, rdb_changes_since_last_save {}",
            bytes(node.number("used_memory_dataset").unwrap_or(0.0)),
            count(node.number("rdb_changes_since_last_save").unwrap_or(0.0))
        ),
        _ => {
            format!("aof_base_size {need}, aof_current_size {}", bytes(node.number("aof_current_size").unwrap_or(0.0)))
        }
    };
    Finding::new(format!("{} has {free} of disk left, and {} needs about {need}", node.address, r.by))
        .risk(format!("the next one may well fail{refused}"))
        .likely("both sizes were read; how well the data compresses is not known until it is saved")
        .saw_at(format!("/proc/PID/cwd ({})", r.host.hostname), format!("{free} of {size} free"), r.host.at_ms)
        .saw(node, "INFO all", of_it)
        .fix(
            "Make room there: remove old dumps, logs, and temp-*.rdb files of saves that were killed",
            &[&cli(&node.address, "CONFIG GET dir"), "df -h DIR; du -sh DIR/* | sort -h   (on its machine)"],
            "",
            "",
        )
        .fix(
            &format!(
                "Get a larger disk: it has {size}; the data set in memory is {}",
                bytes(node.number("used_memory").unwrap_or(0.0))
            ),
            &[&cli(&node.address, "INFO memory")],
            "moving the directory requires a restart",
            "",
        )
}
