//! Faults of what a machine allows a server: a short queue for new connections, one processor for everything; and of
//! machines that go away without a farewell.

use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use unslow_engine::Error;

use super::at::beside;
use super::clients::one_in_flight;
use super::{Active, At, stream, sweep, with, words};
use crate::wire::{Change, Conditions};

/// Clients that come back all at once, again and again, to a server whose accept queue is short.
pub fn accept_overflow(at: &At<'_>) -> Result<Active, Error> {
    const CLIENTS: usize = 40;
    const EACH: usize = 4;
    let target = at.node()?.target();
    let mut active = at.active("clients come back one after the other");
    for _ in 0..CLIENTS {
        let target = target.clone();
        active = active.work(move |flags| {
            let all: Vec<_> = (0..EACH).map_while(|_| (!flags.stopped()).then(|| stream(&target).ok())).collect();
            drop(all);
            flags.pause(Duration::from_millis(if flags.fixed() { 500 } else { 20 }));
        });
    }
    Ok(active)
}

/// All of a server's threads on one processor, its background thread among them, which has sets to free all the time.
pub fn pinned(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let pid = node.pid();
    let before = mask(pid)?;
    let first = (0..libc::CPU_SETSIZE as usize).find(|n| has(&before, *n));
    let first = first.ok_or_else(|| Error::new(format!("{} may not use any processor", node.name())))?;
    let mut active = at.active("every processor for all threads");
    at.claim(&mut active, &node, "processors")?;
    let mut active = sweep(active, &node, format!("pin:{tag}:*")).on_end(move || {
        let _ = bind(pid, &before);
    });
    bind(pid, &only(first))?;
    for worker in 0..2 {
        let (target, mut slot, mut turn) = (node.target(), None, 0usize);
        // Made once: on two processors the clients must leave one of them room.
        let [one, other] = [0, 1].map(|n| format!("pin:{tag}:{worker}:{n}"));
        let batches = [sets(&one, &other), sets(&other, &one)];
        active = active.work(move |flags| {
            turn += 1;
            let batch = &batches[turn % 2];
            with(&mut slot, &target, flags, |c| c.pipeline(batch).map(drop));
        });
    }
    Ok(active)
}

/// More threads for sockets than there are processors, and enough clients to keep them awake.
pub fn io_threads(at: &At<'_>) -> Result<Active, Error> {
    const PIPELINE: usize = 16;
    let (node, key) = (at.node()?, at.tag()?);
    node.connect()?.call(&["SET", &key, &"x".repeat(64)])?;
    let batch = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).repeat(PIPELINE);
    let mut active = sweep(at.active("no more io-threads than processors"), &node, key);
    for _ in 0..2 {
        let (target, batch) = (node.target(), batch.clone());
        // "$64\r\n" + 64 + "\r\n" for each.
        active = active.work(move |flags| one_in_flight(&target, 25, batch.as_bytes(), flags, 71 * PIPELINE));
    }
    Ok(active)
}

/// A client's machine is cut off without a farewell, while its subscriptions are open and get a message.
pub fn dead_peers(at: &At<'_>) -> Result<Active, Error> {
    const SUBSCRIBERS: usize = 6;
    let (wire, node) = (at.lab.wire()?.clone(), at.node()?);
    let server = at.lab.host_of(&node);
    let zone = at.lab.hosts.get(server).map_or(0, |h| h.zone);
    let name = at.lab.client_in(zone).map(|h| h.name.clone());
    let client = at.lab.hosts.iter().position(|h| Some(&h.name) == name.as_ref());
    let client = client.ok_or_else(|| Error::new("the lab has no host for clients"))?;
    let mut open = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let mut subscriber = at.client()?.stream(&node.target())?;
        let mut first = [0u8; 1];
        let subscribed = subscriber.write_all(b"SUBSCRIBE news\r\n").and_then(|()| subscriber.read_exact(&mut first));
        subscribed.map_err(|e| Error::new(format!("{} does not accept a subscription: {e}", node.name())))?;
        open.push(subscriber);
    }
    let add = Conditions { cut: true, ..Conditions::default() };
    let id = wire.change(Change { from: vec![client], to: vec![server], both_ways: true, add });
    let active = at.active("keepalive, and the path comes back").on_end(move || {
        wire.undo(id);
        drop(open);
    });
    beside(&node)?.call(&["PUBLISH", "news", "is anybody there"])?;
    // The kernel sends it again after 0.2 s, 0.6 s, 1.4 s and 3 s.
    std::thread::sleep(Duration::from_secs(4));
    Ok(active)
}

/// Clients ask for large replies and do not read them, where ordinary clients have an output limit.
pub fn normal_buffer_kill(at: &At<'_>) -> Result<Active, Error> {
    let (node, page) = (at.node()?, format!("page:{}", at.tag()?));
    node.connect()?.call(&["SET", &page, &"x".repeat(500_000)])?;
    let active = sweep(at.active("replies are read as they come"), &node, page.clone());
    let (target, question) = (node.target(), format!("GET {page}\r\n").repeat(40));
    Ok(active.work(move |flags| {
        // A connection that is closed on it may be reset while it still writes.
        let mut lazy = stream(&target).ok();
        if let Some(lazy) = &mut lazy {
            let _ = lazy.write_all(question.as_bytes());
        }
        flags.pause(Duration::from_millis(100));
        drop(lazy);
    }))
}

/// Fills one set, and frees the other, which is large enough for the background thread to do it.
fn sets(new: &str, old: &str) -> Vec<Vec<String>> {
    const COMMANDS: usize = 50;
    const MEMBERS: usize = 100;
    let add = |i: usize| {
        let mut command = words(&["SADD", new]);
        command.extend((0..MEMBERS).map(|j| format!("member:{}", i * MEMBERS + j)));
        command
    };
    (0..COMMANDS).map(add).chain([words(&["UNLINK", old])]).collect()
}

/// Processors that a process's main thread may use.
fn mask(pid: u32) -> Result<libc::cpu_set_t, Error> {
    // SAFETY: a set of zeros is a valid set, and its size is given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(pid as libc::pid_t, size_of::<libc::cpu_set_t>(), &mut set) == 0 {
            return Ok(set);
        }
    }
    Err(Error::new(format!("the processors of process {pid} cannot be read: {}", std::io::Error::last_os_error())))
}

fn has(set: &libc::cpu_set_t, processor: usize) -> bool {
    // SAFETY: the set is initialised, and the number is below its size.
    unsafe { libc::CPU_ISSET(processor, set) }
}

/// A set of one processor.
fn only(processor: usize) -> libc::cpu_set_t {
    // SAFETY: a set of zeros is a valid set, and the number is below its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        set
    }
}

/// Gives all threads of a process these processors.
fn bind(pid: u32, set: &libc::cpu_set_t) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::new(format!("process {pid} cannot be bound to processors here: {e}"));
    for thread in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed)?.flatten() {
        let Some(tid) = thread.file_name().to_str().and_then(|t| t.parse::<libc::pid_t>().ok()) else { continue };
        // SAFETY: the set is initialised and its size is given.
        if unsafe { libc::sched_setaffinity(tid, size_of::<libc::cpu_set_t>(), set) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
    }
    Ok(())
}
