//! Faults inside the server: forks, disks, memory, expiry, replication.

use std::time::Duration;

use unslow_engine::Error;

use super::at::beside;
use super::process::turn;
use super::{Active, At, fill, sweep, with, words};
use crate::shim::Knob;

/// The settings alone are the fault.
pub fn nothing(at: &At<'_>) -> Result<Active, Error> {
    Ok(at.active("the setting"))
}

/// A worker that writes `per_ms` values of `value_bytes` each millisecond, more or less, over `keys` keys in turn.
pub(super) fn writes(
    active: Active,
    at: &At<'_>,
    value_bytes: usize,
    per_ms: usize,
    keys: u64,
) -> Result<Active, Error> {
    let (target, tag, mut slot, mut i) = (at.node()?.target(), at.tag()?, None, 0u64);
    let value = "x".repeat(value_bytes);
    let active = sweep(active, &at.node()?, format!("w:{tag}:*"));
    Ok(active.work(move |flags| {
        let batch: Vec<Vec<String>> = (0..per_ms)
            .map(|_| {
                i += 1;
                words(&["SET", &format!("w:{tag}:{}", i % keys), &value])
            })
            .collect();
        with(&mut slot, &target, flags, |c| c.pipeline(&batch).map(drop));
        flags.pause(Duration::from_millis(1));
    }))
}

pub fn save_storm(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let mut active = sweep(at.active("save 3600 1"), &node, format!("k:{tag}:*"));
    at.settings(&[("save", "1 1")], &mut active)?;
    let mut c = beside(&node)?;
    fill(&mut c, 50_000, |i| words(&["SET", &format!("k:{tag}:{i}"), &"x".repeat(200)]))?;
    writes(active, at, 100, 2, 10_000)
}

pub fn fork_stall(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let mut c = beside(&node)?;
    c.call(&["SET", &tag, "v"])?;
    let active = at.active("saving moves to a machine where fork is fast");
    let active = turn(at, active, &node, Knob::ForkUs, at.duration()?.as_micros() as i64)?;
    // It answers before it forks, or after: either way the fork is under way.
    c.send(&["BGSAVE"])?;
    let _ = c.receive(Duration::from_secs(2));
    Ok(active)
}

pub fn aof_fsync_stall(at: &At<'_>) -> Result<Active, Error> {
    let active = turn(at, at.active("a disk of its own"), &at.node()?, Knob::FsyncUs, 3_000_000)?;
    let active = writes(active, at, 100, 1, 1000)?;
    std::thread::sleep(Duration::from_secs(3)); // the first slow sync is under way
    Ok(active)
}

pub fn eviction_pressure(at: &At<'_>) -> Result<Active, Error> {
    let mut c = beside(&*at.node()?)?;
    let tag = at.tag()?;
    let active = sweep(at.active("memory for the working set"), &at.node()?, format!("old:{tag}:*"));
    fill(&mut c, 30_000, |i| words(&["SET", &format!("old:{tag}:{i}"), &"x".repeat(1000)]))?;
    writes(active, at, 1000, 2, u64::MAX)
}

pub fn out_of_memory(at: &At<'_>) -> Result<Active, Error> {
    writes(at.active("a higher limit, or eviction"), at, 10_000, 10, u64::MAX)
}

pub fn expire_storm(at: &At<'_>) -> Result<Active, Error> {
    let mut c = beside(&*at.node()?)?;
    let tag = at.tag()?;
    let seconds = |c: &mut unslow_client::Connection| -> Result<i64, Error> {
        Ok(c.call(&["TIME"])?.items().first().and_then(|v| v.integer()).unwrap_or(0))
    };
    // All of them die at one moment, soon, but not before the last of them is told: on a busy machine that takes
    // longer, and then it is done again with twice the time.
    let mut lead = 4;
    let when = loop {
        fill(&mut c, 400_000, |i| words(&["SET", &format!("s:{tag}:{i}"), "x"]))?;
        let when = seconds(&mut c)? + lead;
        let at_ms = (when * 1000).to_string();
        fill(&mut c, 400_000, |i| words(&["PEXPIREAT", &format!("s:{tag}:{i}"), &at_ms]))?;
        if seconds(&mut c)? + 2 <= when || lead >= 64 {
            break when;
        }
        lead *= 2;
    };
    // Whoever looks for three seconds must be looking then.
    let begun = std::time::Instant::now();
    while seconds(&mut c)? + 2 < when && begun.elapsed() < Duration::from_secs(lead as u64 + 1) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(at.active("jitter on the TTLs"))
}

pub fn backlog_too_small(at: &At<'_>) -> Result<Active, Error> {
    writes(at.active("a backlog of five minutes"), at, 1000, 2, 1000)
}
