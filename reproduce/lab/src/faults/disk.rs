//! Faults between a server and its disk, and of servers that hold clients back: syncs that every write waits for, saves
//! that fail or meet, pauses, notifications.

use std::time::Duration;

use unslow_client::{Connection, Options};
use unslow_engine::{Error, info, wait_for};
use unslow_topology::slot_of;

use super::at::{beside, id_of};
use super::process::{full_disk, turn};
use super::server::writes;
use super::{Active, At, sweep, words};
use crate::shim::Knob;

/// How long a save of an empty server may take on a busy machine.
const SAVED: Duration = Duration::from_secs(20);

/// How long writers may take to be held back by a pause.
const HELD: Duration = Duration::from_secs(20);

/// A sync of network storage on a bad day, under a client that writes all the time.
pub fn fsync_always(at: &At<'_>) -> Result<Active, Error> {
    let active = turn(at, at.active("appendfsync everysec"), &at.node()?, Knob::FsyncUs, 20_000)?;
    writes(active, at, 100, 4, 1000)
}

/// The disk is full when the server saves; clients write and read on.
pub fn saves_failing(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let mut c = beside(&node)?;
    c.call(&["SET", &format!("w:{tag}:0"), "v"])?;
    let mut active = full_disk(at)?;
    // Undone last, once the disk has room again: only a save that succeeds ends the refusals, and sweeping is a write.
    let saved = {
        let node = node.clone();
        move || {
            let mut c = beside(&node)?;
            wait_for("a save that succeeds", SAVED, || {
                let persistence = info(&mut c, "persistence")?;
                if persistence.get("rdb_bgsave_in_progress") == Some("0")
                    && persistence.get("rdb_last_bgsave_status") != Some("ok")
                {
                    let _ = c.call(&["BGSAVE"]);
                }
                Ok(persistence.get("rdb_last_bgsave_status") == Some("ok"))
            })
        }
    };
    active.undo.insert(0, Box::new(saved));
    let mut swept = sweep(at.active(""), &node, format!("w:{tag}:*"));
    active.undo.splice(0..0, swept.undo.drain(..));
    wait_for("a save that fails", SAVED, || {
        let _ = c.call(&["BGSAVE"]);
        Ok(info(&mut c, "persistence")?.get("rdb_last_bgsave_status") == Some("err"))
    })?;
    let (target, mut slot, mut i) = (node.target(), None, 0u64);
    Ok(active.work(move |flags| {
        i += 1;
        let key = format!("w:{tag}:{}", i % 1000);
        let batch = [words(&["SET", &key, "x"]), words(&["GET", &key]), words(&["GET", &key])];
        super::with(&mut slot, &target, flags, |c| c.pipeline(&batch).map(drop));
        flags.pause(Duration::from_millis(2));
    }))
}

/// The volume is too small for another copy of the data: 2 MB more than it holds, and 20 MB in memory.
pub fn disk_full_soon(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let mut active = sweep(at.active("a larger disk"), &node, format!("k:{tag}:*"));
    let mut c = beside(&node)?;
    super::fill(&mut c, 20_000, |i| words(&["SET", &format!("k:{tag}:{i}"), &"x".repeat(1000)]))?;
    let seat = node.seat().ok_or_else(|| Error::new("a flat lab's hosts have no disks of their own"))?.clone();
    at.claim_named(&mut active, format!("disk of {}", at.lab.hosts[at.lab.host_of(&node)].name))?;
    let failed = |e: std::io::Error| Error::new(format!("the disk could not be resized: {e}"));
    let (before, used) = (seat.size().map_err(failed)?, seat.used().map_err(failed)?);
    seat.limit_disk(Some(used + 2_000_000)).map_err(failed)?;
    Ok(active.undo_with(move || {
        seat.limit_disk(Some(before)).map_err(|e| Error::new(format!("the disk could not be freed: {e}")))
    }))
}

/// The file is due for another rewrite as soon as the last one is over, under a client that writes the same keys over
/// and over.
pub fn aof_rewrite_storm(at: &At<'_>) -> Result<Active, Error> {
    writes(at.active("auto-aof-rewrite-percentage 100"), at, 1000, 2, 2000)
}

/// A job saves every server of the first node's host at the same moment, on a disk that takes a megabyte a second.
pub fn saves_collide(at: &At<'_>) -> Result<Active, Error> {
    let mut active = at.active("one save after the other");
    let view = at.view()?;
    for master in at.masters()? {
        let id = id_of(&master)?;
        let own = view.by_id(&id).ok_or_else(|| Error::new(format!("{} is not in its cluster", master.name())))?;
        let tag = (0..10_000).map(|i| format!("{{t{i}}}")).find(|t| own.slots.contains(slot_of(t.as_bytes())));
        let tag = tag.ok_or_else(|| Error::new(format!("{} owns no slots", master.name())))?;
        active = sweep(active, &master, format!("k:{tag}:*"));
        let mut c = beside(&master)?;
        super::fill(&mut c, 12_000, |i| words(&["SET", &format!("k:{tag}:{i}"), &"x".repeat(1000)]))?;
    }
    let first = at.node()?;
    let host = at.lab.host_of(&first);
    let beside_it: Vec<_> = at.lab.deployment.nodes.iter().filter(|n| at.lab.host_of(n) == host).cloned().collect();
    if beside_it.len() < 2 {
        return Err(Error::new(format!("{} is alone on its host; a host with two servers is needed", first.name())));
    }
    in_step(at)?;
    for node in &beside_it {
        // A nanosecond a byte is a gigabyte a second.
        active = turn(at, active, node, Knob::WriteNsPerByte, 1000)?;
    }
    for node in &beside_it {
        let mut c = beside(node)?;
        // Refused while another child saves: that one's end is not ours.
        wait_for("BGSAVE to be accepted", SAVED, || Ok(c.call(&["BGSAVE"]).is_ok()))?;
    }
    Ok(active)
}

/// Until no replica is being copied: a save for a replica is none of a job, and other saves wait for it.
fn in_step(at: &At<'_>) -> Result<(), Error> {
    for node in &at.lab.deployment.nodes {
        let mut c = beside(node)?;
        wait_for(&format!("{} and its replicas to be in step", node.name()), SAVED, || {
            let replication = info(&mut c, "replication")?;
            let linked =
                replication.get("role") == Some("master") || replication.get("master_link_status") == Some("up");
            Ok(linked && replication.replicas().iter().all(|row| row.2 == "online"))
        })?;
    }
    Ok(())
}

/// Events of every class, under a client that writes and none that listens.
pub fn notifications_for_nobody(at: &At<'_>) -> Result<Active, Error> {
    writes(at.active("notify-keyspace-events \"\""), at, 100, 2, 1000)
}

/// A job that pauses writes for ten minutes and goes away, under clients that write and one that reads.
pub fn paused(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let mut active = sweep(at.active("CLIENT UNPAUSE"), &node, format!("w:{tag}:*"));
    for worker in 0..4 {
        let (target, key, mut slot) = (node.target(), format!("w:{tag}:{worker}"), None);
        // Three write, one reads.
        let command = if worker < 3 { words(&["SET", &key, "x"]) } else { words(&["GET", &key]) };
        // They give up at different times, as clients of several machines do, so some are always held back.
        let patience = super::brief().command_timeout + Duration::from_secs(2 * worker);
        let options = Options { command_timeout: patience, ..super::brief() };
        active = active.work(move |flags| {
            if slot.is_none() {
                slot = Connection::open(&target, &options).ok();
            }
            super::with(&mut slot, &target, flags, |c| c.call(&command).map(drop));
            flags.pause(Duration::from_millis(5));
        });
    }
    beside(&node)?.call(&["CLIENT", "PAUSE", "600000", "WRITE"])?;
    let active = active.undo_with({
        let node = node.clone();
        move || Ok(beside(&node)?.call(&["CLIENT", "UNPAUSE"]).map(drop)?)
    });
    // Nothing else shows it on servers that do not tell of pauses.
    wait_for("three writers to be held back", HELD, || {
        Ok(info(&mut beside(&node)?, "clients")?.number("blocked_clients") >= Some(3.0))
    })?;
    Ok(active)
}
