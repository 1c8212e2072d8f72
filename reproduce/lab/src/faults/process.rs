//! Faults of processes and their machine: ended, stopped, slow to fork or write, a full disk, a wrong clock.

use unslow_engine::Error;

use super::{Active, At};
use crate::shim::{self, Knob};

pub fn kill(at: &At<'_>) -> Result<Active, Error> {
    let node = at.node()?;
    node.kill();
    Ok(at.active("it starts again").undo_with(move || if node.pid() == 0 { node.restart() } else { Ok(()) }))
}

pub fn restart(at: &At<'_>) -> Result<Active, Error> {
    at.node()?.restart()?;
    Ok(at.active("nothing to undo"))
}

pub fn hang(at: &At<'_>) -> Result<Active, Error> {
    // Asked before, while it still answers: its zone is where its clients are.
    let active = at.active("they go on (SIGCONT)");
    let nodes = at.nodes()?;
    for node in &nodes {
        node.signal(libc::SIGSTOP);
    }
    Ok(active.on_end(move || {
        for node in &nodes {
            node.signal(libc::SIGCONT);
        }
    }))
}

fn knob(at: &At<'_>, knob: Knob, value: i64, remedy: &'static str) -> Result<Active, Error> {
    let nodes = at.nodes()?;
    for node in &nodes {
        shim::set(node, knob, value)?;
    }
    Ok(at.active(remedy).undo_with(move || nodes.iter().try_for_each(|n| shim::set(n, knob, 0))))
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
    let mut done = Vec::new();
    for node in at.nodes()? {
        let seat = node.seat().ok_or_else(|| Error::new("a flat lab's hosts have no disks of their own"))?.clone();
        // Two servers of one host share its disk.
        if done.iter().any(|s| std::sync::Arc::ptr_eq(s, &seat)) {
            continue;
        }
        let before = seat.size().map_err(|e| Error::new(format!("the disk of {}: {e}", node.name())))?;
        seat.limit_disk(None).map_err(|e| Error::new(format!("the disk of {}: {e}", node.name())))?;
        done.push(seat.clone());
        active = active.undo_with(move || {
            seat.limit_disk(Some(before)).map_err(|e| Error::new(format!("the disk could not be freed: {e}")))
        });
    }
    Ok(active)
}
