//! Faults that clients make.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use unslow_client::{Connection, Target};

use super::at::beside;
use super::{Active, At, Flags, connect, connect_as, fill, stream, sweep, with, words};
use unslow_engine::Error;

/// As Lettuce does by default: each client makes a new named connection to every node and asks CLUSTER NODES and INFO.
pub fn topology_storm(at: &At<'_>) -> Result<Active, Error> {
    let clients = at.count(2000)?;
    // Ghosts without an address make the answer as long as that of a big cluster, and cost nothing else.
    let active = at.active("each client asks one node, every 60 s, over its existing connection");
    let mut active = super::deployment::haunt(at, active, 300)?;
    for node in &at.lab.deployment.nodes {
        let target = node.target();
        active = active.work(move |flags| {
            if flags.fixed() {
                flags.pause(Duration::from_secs(60));
                return;
            }
            // All ask at once and leave together, so that CLIENT LIST shows them at any time.
            let mut all: Vec<Connection> = (0..clients)
                .map_while(|_| connect_as(&target, "lettuce#ClusterTopologyRefresh").ok().filter(|_| !flags.stopped()))
                .collect();
            for question in [&["CLUSTER", "NODES"][..], &["INFO"], &["CLUSTER", "NODES"]] {
                all.retain_mut(|client| !flags.stopped() && client.send(question).is_ok());
                all.retain_mut(|client| !flags.stopped() && client.receive(Duration::from_secs(2)).is_ok());
            }
            // None: the node is away, and asking faster does not bring it back.
            flags.pause(Duration::from_millis(if all.is_empty() { 100 } else { 5 }));
        });
    }
    Ok(active)
}

/// One command in flight from a host in another zone: each waits for the whole round trip.
pub fn unpipelined(at: &At<'_>) -> Result<Active, Error> {
    let (target, tag, mut slot) = (at.node()?.target(), at.tag()?, None);
    let mut active = at.active("batches of 20");
    active.seat = at.far_client()?.seat;
    Ok(active.work(move |flags| with(&mut slot, &target, flags, |c| c.call(&["INCR", &tag]).map(drop))))
}

pub fn monitoring_storm(at: &At<'_>) -> Result<Active, Error> {
    let target = at.node()?.target();
    let client = at.client()?;
    let idle: Vec<Connection> = (0..200).map(|_| client.connect(&target)).collect::<Result<_, _>>()?;
    let mut active = at.active("one scrape every 15 s").on_end(move || drop(idle));
    for _ in 0..2 {
        let (target, mut slot) = (target.clone(), None);
        active = active.work(move |flags| {
            with(&mut slot, &target, flags, |c| {
                c.call(&["INFO", "ALL"])?;
                c.call(&["CLIENT", "LIST"]).map(drop)
            });
            flags.pause(Duration::from_millis(1));
        });
    }
    Ok(active)
}

pub fn no_pipelining(at: &At<'_>) -> Result<Active, Error> {
    let (target, tag, mut slot, mut i) = (at.node()?.target(), at.tag()?, None, 0u32);
    Ok(at.active("batches of 20 in one write").work(move |flags| {
        i = (i + 1) % 1000;
        with(&mut slot, &target, flags, |c| c.call(&["SET", &format!("k:{tag}:{i}"), "v"]).map(drop));
    }))
}

/// Connections that always have one command in flight: write to all, then read from all.
pub(super) fn one_in_flight(target: &Target, connections: usize, command: &[u8], flags: &Flags, reply_ends: usize) {
    let streams: Vec<TcpStream> =
        (0..connections).map_while(|_| stream(target).ok().filter(|_| !flags.stopped())).collect();
    let mut buffer = [0u8; 64 * 1024];
    let mut round = || -> std::io::Result<()> {
        for mut stream in &streams {
            stream.write_all(command)?;
        }
        for mut stream in &streams {
            let mut got = 0;
            while got < reply_ends {
                match stream.read(&mut buffer)? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    n => got += n,
                }
            }
        }
        flags.answered(streams.len());
        Ok(())
    };
    while !flags.stopped() && streams.len() == connections && round().is_ok() {}
    // Here only when it failed: the server is away, and asking faster does not bring it back.
    flags.pause(Duration::from_millis(50));
}

pub fn kernel_bound(at: &At<'_>) -> Result<Active, Error> {
    let target = at.node()?.target();
    let key = at.tag()?;
    at.node()?.connect()?.call(&["SET", &key, &"x".repeat(64)])?;
    let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
    // "$64\r\n" + 64 + "\r\n"
    Ok(at.active("pipelines of 16").work(move |flags| one_in_flight(&target, 50, get.as_bytes(), flags, 71)))
}

/// Work with small replies, so that neither the path nor the kernel is what is full.
pub fn main_thread_saturated(at: &At<'_>) -> Result<Active, Error> {
    const BYTES: usize = 800_000;
    let target = at.node()?.target();
    let key = format!("bits:{}", at.tag()?);
    at.node()?.connect()?.call(&["SET", &key, &"x".repeat(BYTES)])?;
    let one = format!("*2\r\n$8\r\nBITCOUNT\r\n${}\r\n{key}\r\n", key.len());
    // Four bits of each x: ":3200000\r\n".
    let reply = format!(":{}\r\n", BYTES * 4).len();
    let batch = one.repeat(16);
    // Two clients: while one writes, the other's commands are there.
    let mut active = at.active("fewer bytes per BITCOUNT");
    for _ in 0..2 {
        let (target, batch) = (target.clone(), batch.clone());
        active = active.work(move |flags| one_in_flight(&target, 2, batch.as_bytes(), flags, reply * 16));
    }
    Ok(active)
}

pub fn connection_churn(at: &At<'_>) -> Result<Active, Error> {
    let target = at.node()?.target();
    let tag = at.tag()?;
    let mut active = at.active("one standing connection per thread");
    for _ in 0..2 {
        let (target, tag, mut slot) = (target.clone(), tag.clone(), None);
        active = active.work(move |flags| {
            if !flags.fixed() {
                slot = None;
            }
            with(&mut slot, &target, flags, |c| c.call(&["SET", &tag, "v"]).map(drop));
            flags.pause(Duration::from_micros(if flags.fixed() { 500 } else { 50 }));
        });
    }
    Ok(active)
}

pub fn too_many_connections(at: &At<'_>) -> Result<Active, Error> {
    let target = at.node()?.target();
    let client = at.client()?;
    let idle: Vec<Connection> = (0..85).map(|_| client.connect(&target)).collect::<Result<_, _>>()?;
    Ok(at.active("smaller pools").on_end(move || drop(idle)).work(move |flags| {
        let burst: Vec<Option<Connection>> = (0..30)
            .map(|_| {
                let mut c = connect(&target).ok()?;
                c.call(&["PING"]).ok().map(|_| c)
            })
            .collect();
        drop(burst);
        flags.pause(Duration::from_millis(150));
    }))
}

pub fn keys(at: &At<'_>) -> Result<Active, Error> {
    let tag = at.tag()?;
    let node = at.node()?;
    let mut c = beside(&node)?;
    let active = sweep(at.active("SCAN with COUNT 100 instead of KEYS"), &node, format!("session:{tag}:*"));
    fill(&mut c, 300_000, |i| vec!["SET".into(), format!("session:{tag}:{i}"), "x".into()])?;
    let (target, mut slot, mut cursor) = (node.target(), None, "0".to_string());
    Ok(active.work(move |flags| {
        let fixed = flags.fixed();
        let cursor = &mut cursor;
        with(&mut slot, &target, flags, |c| {
            if fixed {
                let page = c.call(&["SCAN", cursor, "MATCH", "session:*:1234*", "COUNT", "100"])?;
                *cursor = page.items().first().and_then(|v| v.text()).unwrap_or_else(|| "0".into());
                Ok(())
            } else {
                c.call(&["KEYS", "session:*:1234*"]).map(drop)
            }
        });
        flags.pause(Duration::from_millis(if fixed { 2 } else { 200 }));
    }))
}

pub fn monitor(at: &At<'_>) -> Result<Active, Error> {
    let (watched, target, tag) = (at.node()?.target(), at.node()?.target(), at.tag()?);
    let mut slot = None;
    Ok(at
        .active("that connection is closed")
        .work(move |flags| {
            let Ok(mut stream) = stream(&watched) else { return flags.pause(Duration::from_millis(100)) };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.write_all(b"MONITOR\r\n");
            let mut buffer = [0u8; 64 * 1024];
            while !flags.stopped() {
                if let Ok(0) = stream.read(&mut buffer) {
                    return;
                }
            }
        })
        .work(move |flags| {
            with(&mut slot, &target, flags, |c| c.pipeline(&vec![words(&["SET", &tag, "v"]); 20]).map(drop));
            flags.pause(Duration::from_millis(2));
        }))
}

pub fn big_key(at: &At<'_>) -> Result<Active, Error> {
    let key = format!("profile:{}", at.tag()?);
    let node = at.node()?;
    let mut c = beside(&node)?;
    let active = sweep(at.active("HSCAN in pages of 100 instead of HGETALL"), &node, key.clone());
    fill(&mut c, 2000, |i| {
        let mut command = vec!["HSET".to_string(), key.clone()];
        for j in 0..100 {
            command.extend([format!("field:{}", i * 100 + j), "value".into()]);
        }
        command
    })?;
    let (target, mut slot, mut cursor) = (node.target(), None, "0".to_string());
    Ok(active.work(move |flags| {
        let (fixed, cursor) = (flags.fixed(), &mut cursor);
        with(&mut slot, &target, flags, |c| {
            if fixed {
                let page = c.call(&["HSCAN", &key, cursor, "COUNT", "100"])?;
                *cursor = page.items().first().and_then(|v| v.text()).unwrap_or_else(|| "0".into());
                Ok(())
            } else {
                c.call(&["HGETALL", &key]).map(drop)
            }
        });
        flags.pause(Duration::from_millis(if fixed { 2 } else { 150 }));
    }))
}

pub fn lua_loop(at: &At<'_>) -> Result<Active, Error> {
    let tag = at.tag()?;
    let (target, mut slot) = (at.node()?.target(), None);
    Ok(at.active("a tenth of the loop per call").work(move |flags| {
        let script =
            "local n = 0; for i = 1, tonumber(ARGV[1]) do n = n + i % 7 end; redis.call('SET', KEYS[1], n); return n";
        let fixed = flags.fixed();
        let loops = if fixed { "20000" } else { "4000000" };
        with(&mut slot, &target, flags, |c| c.call(&["EVAL", script, "1", &tag, loops]).map(drop));
        flags.pause(Duration::from_millis(if fixed { 5 } else { 120 }));
    }))
}

pub fn slow_command(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let mut c = beside(&node)?;
    let active = sweep(at.active("the union is stored once"), &node, format!("set:{tag}:*"));
    fill(&mut c, 50 * 10, |i| {
        let mut command = vec!["SADD".to_string(), format!("set:{tag}:{}", i / 10)];
        command.extend((0..100).map(|j| format!("member:{}", i * 100 + j)));
        command
    })?;
    let mut command = vec!["SUNION".to_string()];
    command.extend((0..50).map(|i| format!("set:{tag}:{i}")));
    let (target, mut slot) = (node.target(), None);
    Ok(active.work(move |flags| {
        with(&mut slot, &target, flags, |c| c.call(&command).map(drop));
        flags.pause(Duration::from_millis(50));
    }))
}

pub fn error_flood(at: &At<'_>) -> Result<Active, Error> {
    let tag = at.tag()?;
    let (target, mut slot) = (at.node()?.target(), None);
    at.node()?.connect()?.call(&["SET", &tag, "a string"])?;
    Ok(at.active("the string is read as a string").work(move |flags| {
        let command = if flags.fixed() { ["GET", &tag] } else { ["LLEN", &tag] };
        with(&mut slot, &target, flags, |c| c.call(&command).map(drop));
        flags.pause(Duration::from_millis(1));
    }))
}

pub fn redirect_storm(at: &At<'_>) -> Result<Active, Error> {
    let (target, mut slot, mut i) = (at.node()?.target(), None, 0u32);
    Ok(at.active("the client's cluster mode").work(move |flags| {
        i += 1;
        with(&mut slot, &target, flags, |c| c.call(&["GET", &format!("k:{i}")]).map(drop));
        flags.pause(Duration::from_millis(1));
    }))
}

pub fn slow_subscriber(at: &At<'_>) -> Result<Active, Error> {
    let failed = |e: std::io::Error| Error::new(e.to_string());
    let mut subscriber = at.client()?.stream(&at.node()?.target())?;
    subscriber.write_all(b"SUBSCRIBE news\r\n").map_err(failed)?;
    let mut first = [0u8; 2];
    subscriber.read_exact(&mut first).map_err(failed)?;
    if first[0] != b'*' {
        return Err(Error::new(format!("{} refuses SUBSCRIBE", at.node()?.name())));
    }
    let mut publisher = at.node()?.connect()?;
    let message = "x".repeat(10_000);
    // Past what the two sockets' buffers swallow, and 8 MB more; still below the hard limit of 32 MB.
    let (mut waiting, mut rounds) = (0, 0);
    while waiting < 12_000_000 {
        rounds += 1;
        if rounds > 100 {
            return Err(Error::new("100 MB were published, but the subscriber's buffer does not grow"));
        }
        for reply in publisher.pipeline(&vec![words(&["PUBLISH", "news", &message]); 100])? {
            reply?;
        }
        let list = publisher.call(&["CLIENT", "LIST"])?.text().unwrap_or_default();
        waiting =
            list.split(" omem=").skip(1).filter_map(|t| t.split(' ').next()?.parse::<u64>().ok()).max().unwrap_or(0);
    }
    Ok(at.active("it reads").on_end(move || drop(subscriber)))
}

pub fn not_your_redis(at: &At<'_>) -> Result<Active, Error> {
    let mut c = at.node()?.connect()?;
    let page = format!("page:{}", at.tag()?);
    c.call(&["SET", &page, &"x".repeat(500_000)])?;
    let mut lazy = at.client()?.stream(&at.node()?.target())?;
    lazy.write_all(format!("GET {page}\r\n").repeat(40).as_bytes()).map_err(|e| Error::new(e.to_string()))?;
    Ok(at.active("it reads").on_end(move || drop(lazy)))
}
