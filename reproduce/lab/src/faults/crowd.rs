//! Faults of many clients at once, and of clients that wait for each other: waves of reconnections, connections that
//! the server closes, locks, invalidations, one connection for all.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use unslow_engine::{Error, info};

use super::at::beside;
use super::{Active, At, stream, sweep, with, words};

/// As behind a proxy that is replaced again and again: all clients lose their connections at one moment, and none waits
/// before it comes back.
pub fn reconnect_stampede(at: &At<'_>) -> Result<Active, Error> {
    const WORKERS: usize = 4;
    const EACH: usize = 50;
    const EVERY: Duration = Duration::from_millis(2500);
    let (node, tag) = (at.node()?, at.tag()?);
    let incr = format!("INCR {tag}\r\n");
    let mut active = sweep(at.active("clients come back after a random delay"), &node, tag);
    let begun = Instant::now();
    for _ in 0..WORKERS {
        let (target, incr) = (node.target(), incr.clone());
        let (mut all, mut wave): (Vec<TcpStream>, u128) = (Vec::new(), 0);
        active = active.work(move |flags| {
            let now = begun.elapsed().as_millis() / EVERY.as_millis();
            if now != wave {
                wave = now;
                all.clear();
            }
            while all.len() < EACH && !flags.stopped() {
                if flags.fixed() {
                    flags.pause(Duration::from_millis(20));
                }
                match stream(&target) {
                    Ok(new) => all.push(new),
                    Err(_) => flags.pause(Duration::from_millis(50)),
                }
            }
            all.retain_mut(|client| ask(client, &incr));
            flags.pause(Duration::from_millis(100));
        });
    }
    Ok(active)
}

/// Sends one command and reads its reply. Whether the connection is still there.
fn ask(client: &mut TcpStream, command: &str) -> bool {
    client.write_all(command.as_bytes()).is_ok() && client.read(&mut [0u8; 64]).is_ok_and(|n| n > 0)
}

/// A pool whose connections are used every four seconds, of a server that closes them after one.
pub fn idle_reaper(at: &At<'_>) -> Result<Active, Error> {
    const CLIENTS: usize = 40;
    const TURN: Duration = Duration::from_millis(100);
    let (node, tag) = (at.node()?, at.tag()?);
    let (target, incr) = (node.target(), format!("INCR {tag}\r\n"));
    let mut c = beside(&node)?;
    let mut received =
        || -> Result<f64, Error> { Ok(info(&mut c, "stats")?.number("total_connections_received").unwrap_or(0.0)) };
    let before = received()?;
    let (mut all, mut turn): (Vec<Option<TcpStream>>, usize) = ((0..CLIENTS).map(|_| None).collect(), 0);
    let active = sweep(at.active("timeout 0"), &node, tag).work(move |flags| {
        turn = (turn + 1) % CLIENTS;
        // A pool that tests what idles uses every connection each turn.
        let used = if flags.fixed() { 0..CLIENTS } else { turn..turn + 1 };
        for slot in &mut all[used] {
            if !slot.as_mut().is_some_and(|client| ask(client, &incr)) {
                *slot = stream(&target).ok().filter(|_| !flags.stopped());
                *slot = slot.take().and_then(|mut client| ask(&mut client, &incr).then_some(client));
            }
        }
        flags.pause(TURN);
    });
    // Once the first of them were closed and opened again, it goes on evenly.
    for _ in 0..400 {
        if received()? >= before + CLIENTS as f64 * 1.5 {
            return Ok(active);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(Error::new(format!("{} does not close idle connections", node.name())))
}

/// Eight clients and one lock. Each holds it for 50 ms; whoever waits asks again at once.
pub fn lock_spinning(at: &At<'_>) -> Result<Active, Error> {
    const RELEASE: &str =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    let (node, lock) = (at.node()?, format!("lock:{}", at.tag()?));
    let mut active = sweep(at.active("a pause of 100 ms between two attempts"), &node, lock.clone());
    for worker in 0..8 {
        let (target, lock, token, mut slot) = (node.target(), lock.clone(), format!("worker-{worker}"), None);
        active = active.work(move |flags| {
            let mut held = false;
            with(&mut slot, &target, flags, |c| {
                held = c.call(&["SET", &lock, &token, "NX", "PX", "5000"])?.text().is_some();
                if held {
                    std::thread::sleep(Duration::from_millis(50)); // it works
                    c.call(&["EVAL", RELEASE, "1", &lock, &token])?;
                }
                Ok(())
            });
            let pause = if flags.fixed() { 100_000 } else { 300 };
            flags.pause(Duration::from_micros(if held { 1000 } else { pause }));
        });
    }
    Ok(active)
}

/// Caching clients that ask for every change there is, beside a client that writes.
pub fn tracking_storm(at: &At<'_>) -> Result<Active, Error> {
    const CLIENTS: usize = 30;
    let (node, tag, client) = (at.node()?, at.tag()?, at.client()?);
    if !node.engine().is_valkey() && node.engine().level() < (6, 0) {
        return Err(Error::new(format!("{} has no client-side caching; that needs 6.0", node.engine().version)));
    }
    let failed = |e: std::io::Error| Error::new(e.to_string());
    let mut told: Vec<TcpStream> = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = client.stream(&node.target())?;
        stream.write_all(b"HELLO 3\r\nCLIENT TRACKING ON BCAST\r\n").map_err(failed)?;
        stream.set_read_timeout(Some(Duration::from_millis(1))).map_err(failed)?;
        told.push(stream);
    }
    let mut c = beside(&node)?;
    let track =
        |c: &mut unslow_client::Connection| info(c, "clients").map(|i| i.number("tracking_clients").unwrap_or(0.0));
    let mut tries = 0;
    while track(&mut c)? < CLIENTS as f64 {
        tries += 1;
        if tries > 100 {
            return Err(Error::new(format!("{} has no clients that use tracking", node.name())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let active = sweep(at.active("no broadcast of keys that change all the time"), &node, format!("price:{tag}:*"));
    let (target, mut slot, mut n, mut off) = (node.target(), None, 0u32, false);
    let mut buffer = vec![0u8; 64 * 1024];
    Ok(active
        .work(move |flags| {
            if flags.fixed() && !off {
                off = told.iter_mut().all(|stream| stream.write_all(b"CLIENT TRACKING OFF\r\n").is_ok());
            }
            // Each is read once in a while, with all that has come meanwhile.
            for stream in &mut told {
                let _ = stream.read(&mut buffer);
            }
            flags.pause(Duration::from_millis(5));
        })
        .work(move |flags| {
            n += 1;
            let batch: Vec<Vec<String>> =
                (0..5).map(|i| words(&["SET", &format!("price:{tag}:{}", (n * 5 + i) % 1000), "9.99"])).collect();
            with(&mut slot, &target, flags, |c| c.pipeline(&batch).map(drop));
            flags.pause(Duration::from_millis(1));
        }))
}

/// A library's shared connection: one thread waits for a job over it, and the others want to read.
pub fn blocking_on_shared_connection(at: &At<'_>) -> Result<Active, Error> {
    const WAIT: Duration = Duration::from_secs(2);
    let (target, tag) = (at.node()?.target(), at.tag()?);
    let (get, wait) =
        (format!("GET session:{tag}:of-another-thread\r\n"), format!("BLPOP queue:{tag} {}\r\n", WAIT.as_secs()));
    let (mut shared, mut blocks): (Option<TcpStream>, Option<Instant>) = (None, None);
    let mut buffer = vec![0u8; 64 * 1024];
    Ok(at.active("a separate connection for BLPOP").work(move |flags| {
        if shared.is_none() {
            shared = stream(&target).ok().filter(|s| s.set_read_timeout(Some(Duration::from_millis(1))).is_ok());
            blocks = None;
        }
        let Some(connection) = &mut shared else { return flags.pause(Duration::from_millis(50)) };
        let waits = !flags.fixed() && blocks.is_none_or(|since| since.elapsed() >= WAIT);
        if waits {
            blocks = Some(Instant::now());
        }
        let sent =
            (!waits || connection.write_all(wait.as_bytes()).is_ok()) && connection.write_all(get.as_bytes()).is_ok();
        let gone = matches!(connection.read(&mut buffer), Ok(0));
        if !sent || gone {
            shared = None;
        }
        flags.pause(Duration::from_millis(2));
    }))
}
