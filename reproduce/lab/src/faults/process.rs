//! Faults of processes and their machine: ended, stopped, slow to fork or write, a full disk, a wrong clock.

use std::sync::Arc;

use unslow_engine::{Error, Server};

use super::{Active, At};
use crate::shim::{self, Knob};

fn claim_processes(at: &At<'_>, active: &mut Active, nodes: &[Arc<Server>]) -> Result<(), Error> {
    nodes.iter().try_for_each(|n| at.claim(active, n, "process"))
}

pub fn kill(at: &At<'_>) -> Result<Active, Error> {
    let nodes = at.nodes()?;
    let mut active = at.active("they start again");
    claim_processes(at, &mut active, &nodes)?;
    for node in &nodes {
        node.kill();
    }
    Ok(active.undo_with(move || nodes.iter().filter(|n| !n.alive()).try_for_each(|n| n.restart())))
}

pub fn restart(at: &At<'_>) -> Result<Active, Error> {
    let nodes = at.nodes()?;
    let mut active = at.active("nothing to undo");
    claim_processes(at, &mut active, &nodes)?;
    for node in &nodes {
        node.restart()?;
    }
    Ok(active)
}

pub fn hang(at: &At<'_>) -> Result<Active, Error> {
    // Asked before, while it still answers: its zone is where its clients are.
    let mut active = at.active("they continue (SIGCONT)");
    let nodes = at.nodes()?;
    claim_processes(at, &mut active, &nodes)?;
    if let Some(dead) = nodes.iter().find(|n| !n.alive()) {
        return Err(Error::new(format!("{} does not run", dead.name())));
    }
    for node in &nodes {
        node.signal(libc::SIGSTOP);
    }
    Ok(active.on_end(move || {
        for node in &nodes {
            node.signal(libc::SIGCONT);
        }
    }))
}

/// Turns a knob of one server for as long as `active` lasts.
pub fn turn(at: &At<'_>, active: Active, node: &Arc<Server>, knob: Knob, value: i64) -> Result<Active, Error> {
    let mut active = active;
    at.claim(&mut active, node, knob.words())?;
    let node = node.clone();
    shim::set(&node, knob, value)?;
    Ok(active.undo_with(move || shim::set(&node, knob, 0)))
}

fn knob(at: &At<'_>, knob: Knob, value: i64, remedy: &'static str) -> Result<Active, Error> {
    let mut active = at.active(remedy);
    for node in at.nodes()? {
        active = turn(at, active, &node, knob, value)?;
    }
    Ok(active)
}

pub fn slow_fork(at: &At<'_>) -> Result<Active, Error> {
    knob(at, Knob::ForkUs, at.duration()?.as_micros() as i64, "a machine where fork is fast")
}

pub fn slow_fsync(at: &At<'_>) -> Result<Active, Error> {
    knob(at, Knob::FsyncUs, at.duration()?.as_micros() as i64, "a disk of its own")
}

pub fn slow_disk(at: &At<'_>) -> Result<Active, Error> {
    let bytes = at.bytes()?.max(1);
    knob(at, Knob::WriteNsPerByte, (1_000_000_000 / bytes).max(1) as i64, "a faster disk")
}

pub fn clock_jump(at: &At<'_>) -> Result<Active, Error> {
    knob(at, Knob::ClockUs, at.signed_us()?, "the clock is set right")
}

pub fn full_disk(at: &At<'_>) -> Result<Active, Error> {
    let mut active = at.active("room on the disk");
    let mut done: Vec<Arc<unslow_engine::Seat>> = Vec::new();
    for node in at.nodes()? {
        let seat = node.seat().ok_or_else(|| Error::new("a flat lab's hosts have no disks of their own"))?.clone();
        // Two servers of one host share its disk.
        if done.iter().any(|s| Arc::ptr_eq(s, &seat)) {
            continue;
        }
        at.claim_named(&mut active, format!("disk of {}", at.lab.hosts[at.lab.host_of(&node)].name))?;
        let before = seat.size().map_err(|e| Error::new(format!("the disk of {}: {e}", node.name())))?;
        seat.limit_disk(None).map_err(|e| Error::new(format!("the disk of {}: {e}", node.name())))?;
        done.push(seat.clone());
        active = active.undo_with(move || {
            seat.limit_disk(Some(before)).map_err(|e| Error::new(format!("the disk could not be freed: {e}")))
        });
    }
    Ok(active)
}
