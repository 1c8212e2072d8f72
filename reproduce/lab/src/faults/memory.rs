//! Faults of a server's memory: who holds it, and what bounds it.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use unslow_client::Connection;
use unslow_engine::{Error, info};

use super::at::beside;
use super::host::{charged, contain};
use super::{Active, At, fill, sweep, with, words};

/// A worker that adds two keys of 5 kB each millisecond, without a TTL, and at this many writes the first ones again.
fn grows(active: Active, at: &At<'_>, most: u64) -> Result<Active, Error> {
    let (target, tag, mut slot, mut i) = (at.node()?.target(), at.tag()?, None, 0u64);
    let value = "x".repeat(5000);
    let active = sweep(active, &at.node()?, format!("event:{tag}:*"));
    Ok(active.work(move |flags| {
        let batch: Vec<Vec<String>> = (0..2)
            .map(|_| {
                i += 1;
                words(&["SET", &format!("event:{tag}:{}", i % most.max(1)), &value])
            })
            .collect();
        with(&mut slot, &target, flags, |c| c.pipeline(&batch).map(drop));
        flags.pause(Duration::from_millis(1));
    }))
}

/// What lies between the keys that are left cannot be used for keys of another size.
pub fn fragmentation(at: &At<'_>) -> Result<Active, Error> {
    const KEYS: usize = 100_000;
    let (node, tag) = (at.node()?, at.tag()?);
    let mut c = beside(&node)?;
    let active = sweep(at.active("a restart, or activedefrag"), &node, format!("cart:{tag}:*"));
    let active = sweep(active, &node, format!("visit:{tag}:*"));
    let (cart, visit) = ("x".repeat(400), "x".repeat(200));
    fill(&mut c, KEYS, |i| words(&["SET", &format!("cart:{tag}:{i}"), &cart]))?;
    fill(&mut c, KEYS / 2, |i| words(&["DEL", &format!("cart:{tag}:{}", i * 2)]))?;
    fill(&mut c, KEYS / 2, |i| words(&["SET", &format!("visit:{tag}:{i}"), &visit]))?;
    // The server looks at its allocator ten times a second.
    std::thread::sleep(Duration::from_millis(300));
    Ok(active)
}

pub fn container_memory(at: &At<'_>) -> Result<Active, Error> {
    let limit = at.bytes()?;
    let (active, dir) = contain(at, "a higher limit, or a lower maxmemory")?;
    let (node, tag) = (at.node()?, at.tag()?);
    let active = sweep(active, &node, format!("blob:{tag}:*"));
    let mut c = beside(&node)?;
    let value = "x".repeat(10_000);
    // A hundredth of the limit at a time: a step too far is the end of the server.
    let step = (limit / 100 / 10_000).max(1) as usize;
    for round in 0..200 {
        if charged(&dir).is_none_or(|bytes| bytes as f64 >= 0.93 * limit as f64) {
            return Ok(active);
        }
        fill(&mut c, step, |i| words(&["SET", &format!("blob:{tag}:{}", round * step + i), &value]))?;
    }
    Err(Error::new(format!("{} holds twice its limit, but its cgroup does not show it", node.name())))
}

pub fn no_memory_limit(at: &At<'_>) -> Result<Active, Error> {
    let limit = at.bytes()?;
    let (active, _) = contain(at, "maxmemory")?;
    let (node, tag) = (at.node()?, at.tag()?);
    let active = sweep(active, &node, format!("blob:{tag}:*"));
    let value = "x".repeat(10_000);
    let keys = (limit / 10_000 * 3 / 10) as usize;
    fill(&mut beside(&node)?, keys, |i| words(&["SET", &format!("blob:{tag}:{i}"), &value]))?;
    // To four fifths of the limit: beyond it the kernel would end the server before anyone looked.
    grows(active, at, limit / 2 / 6000)
}

pub fn growth_without_ttl(at: &At<'_>) -> Result<Active, Error> {
    grows(at.active("a TTL"), at, u64::MAX)
}

pub fn client_memory(at: &At<'_>) -> Result<Active, Error> {
    const CLIENTS: usize = 40;
    const BYTES: usize = 1_000_000;
    let (node, client) = (at.node()?, at.client()?);
    let key = at.tag()?;
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$1048576\r\n", key.len());
    let request = head + &"x".repeat(BYTES);
    let mut halves: Vec<TcpStream> = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = client.stream(&node.target())?;
        stream.write_all(request.as_bytes()).map_err(|e| Error::new(e.to_string()))?;
        halves.push(stream);
    }
    let active = at.active("they continue, or disconnect").on_end(move || drop(halves));
    // The server looks at some of its clients each time its clock ticks.
    let mut c = beside(&node)?;
    let wanted = (CLIENTS * BYTES) as f64;
    for _ in 0..200 {
        if info(&mut c, "memory")?.number("mem_clients_normal").is_some_and(|bytes| bytes >= wanted) {
            return Ok(active);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Error::new(format!("{} does not count the memory of unfinished requests", node.name())))
}

pub fn script_cache(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let script = |i: u64| format!("local user = {i} return redis.call('EXISTS', KEYS[1]) + user");
    let flushed = node.clone();
    let active = at
        .active("one text with ARGV, by EVALSHA")
        .undo_with(move || Ok(flushed.connect()?.call(&["SCRIPT", "FLUSH"]).map(drop)?));
    fill(&mut beside(&node)?, 1100, |i| words(&["EVAL", &script(i as u64), "1", &tag]))?;
    let (target, mut slot, mut i) = (node.target(), None, 1100u64);
    Ok(active.work(move |flags| {
        let batch: Vec<Vec<String>> = (0..20)
            .map(|_| {
                i += 1;
                words(&["EVAL", &script(i), "1", &tag])
            })
            .collect();
        with(&mut slot, &target, flags, |c| c.pipeline(&batch).map(drop));
        flags.pause(Duration::from_millis(4));
    }))
}

pub fn tracking_table(at: &At<'_>) -> Result<Active, Error> {
    const KEYS: usize = 5000;
    let (node, tag, client) = (at.node()?, at.tag()?, at.client()?);
    let mut told = client.connect(&node.target())?;
    let id = told.call(&["CLIENT", "ID"])?.integer().unwrap_or(0).to_string();
    let tracks = move |c: &mut Connection| c.call(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]).map(drop);
    let mut reader = client.connect(&node.target())?;
    tracks(&mut reader)?;
    let mut from = 0;
    Ok(at.active("a larger table, or OPTIN").on_end(move || drop(told)).work(move |flags| {
        let batch: Vec<Vec<String>> =
            (from..from + 50).map(|i| words(&["GET", &format!("page:{tag}:{}", i % KEYS)])).collect();
        from = (from + 50) % KEYS;
        if reader.pipeline(&batch).is_err() {
            flags.pause(Duration::from_millis(50));
        }
        flags.pause(Duration::from_millis(4));
    }))
}
