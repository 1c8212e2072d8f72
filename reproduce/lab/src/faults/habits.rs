//! Faults that the habits of clients make: what they ask for though it is not there, or send though nothing needs it.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use unslow_client::{Connection, Secret, Target, Value};
use unslow_engine::{Error, Server};

use super::at::beside;
use super::clients::one_in_flight;
use super::{Active, At, fill, stream, sweep, with, words};
use crate::wire::{Change, Conditions};

/// As a pool does with testOnBorrow and testOnReturn: a PING before and after each command.
pub fn chatter(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let target = node.target();
    let mut active = sweep(at.active("idle connections are checked in the background"), &node, tag.clone());
    for _ in 0..4 {
        let (target, tag, mut slot) = (target.clone(), tag.clone(), None);
        active = active.work(move |flags| {
            let fixed = flags.fixed();
            with(&mut slot, &target, flags, |c| {
                if fixed {
                    return c.call(&["INCR", &tag]).map(drop);
                }
                c.call(&["PING"])?;
                c.call(&["INCR", &tag])?;
                c.call(&["PING"]).map(drop)
            });
            flags.pause(Duration::from_micros(500));
        });
    }
    Ok(active)
}

/// Four workers, and a producer that has little for them.
pub fn busy_polling(at: &At<'_>) -> Result<Active, Error> {
    let (target, queue) = (at.node()?.target(), format!("queue:{}", at.tag()?));
    let mut active = sweep(at.active("BRPOP instead of RPOP"), &at.node()?, queue.clone());
    for _ in 0..4 {
        let (target, queue, mut slot) = (target.clone(), queue.clone(), None);
        active = active.work(move |flags| {
            let fixed = flags.fixed();
            with(&mut slot, &target, flags, |c| {
                let asks = if fixed { words(&["BRPOP", &queue, "1"]) } else { words(&["RPOP", &queue]) };
                c.call(&asks).map(drop)
            });
            flags.pause(Duration::from_micros(200));
        });
    }
    let mut slot = None;
    Ok(active.work(move |flags| {
        with(&mut slot, &target, flags, |c| c.call(&["LPUSH", &queue, "job"]).map(drop));
        flags.pause(Duration::from_millis(100));
    }))
}

/// Pages of a cache: read in batches, and computed and written again where they are missing.
pub fn low_hit_ratio(at: &At<'_>) -> Result<Active, Error> {
    const PAGES: u64 = 1000;
    let (target, tag) = (at.node()?.target(), at.tag()?);
    let active = sweep(at.active("a TTL of a minute"), &at.node()?, format!("page:{tag}:*"));
    let (mut slot, mut n): (Option<Connection>, u64) = (None, 1);
    Ok(active.work(move |flags| {
        let ttl = if flags.fixed() { "60000" } else { "150" };
        let names: Vec<String> = (0..20)
            .map(|_| {
                // Knuth's multiplier: any page, and no order that an LRU could learn.
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                format!("page:{tag}:{}", (n >> 33) % PAGES)
            })
            .collect();
        with(&mut slot, &target, flags, |c| {
            let reads: Vec<Vec<String>> = names.iter().map(|name| words(&["GET", name])).collect();
            let replies = c.pipeline(&reads)?;
            let is_nil = |(_, reply): &(&String, &Result<Value, unslow_client::Error>)| {
                reply.as_ref().is_ok_and(|value| value.text().is_none())
            };
            let missing = names.iter().zip(&replies).filter(is_nil);
            let writes: Vec<Vec<String>> =
                missing.map(|(name, _)| words(&["SET", name, "what was computed", "PX", ttl])).collect();
            if writes.is_empty() { Ok(()) } else { c.pipeline(&writes).map(drop) }
        });
        flags.pause(Duration::from_millis(5));
    }))
}

/// The user and its password, for this lab only.
const USER: &str = "unslow-lab-reader";
const PASSWORD: &str = "reads-only";

pub fn acl_denials(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    if !node.engine().is_valkey() && node.engine().level() < (6, 0) {
        return Err(Error::new(format!("{} has no ACL users; that needs 6.0", node.engine().version)));
    }
    let mut active = at.active("clients only send what their user may do");
    at.claim(&mut active, &node, "reader's user")?;
    let undone = node.clone();
    let active = active.undo_with(move || Ok(beside(&undone)?.call(&["ACL", "DELUSER", USER]).map(drop)?));
    let password = format!(">{PASSWORD}");
    beside(&node)?.call(&["ACL", "SETUSER", USER, "on", &password, "~*", "-@all", "+get", "+ping"])?;
    let target = Target { user: Some(USER.into()), password: Some(Secret::new(PASSWORD)), ..node.target() };
    let mut slot = None;
    Ok(active.work(move |flags| {
        let writes = if flags.fixed() { 0 } else { 3 };
        let batch: Vec<Vec<String>> =
            (0..5).map(|i| if i < writes { words(&["SET", &tag, "v"]) } else { words(&["GET", &tag]) }).collect();
        with(&mut slot, &target, flags, |c| c.pipeline(&batch).map(drop));
        flags.pause(Duration::from_millis(5));
    }))
}

/// A rate limiter as libraries ship it: a few commands, and pages of comments.
fn limiter() -> String {
    let comment = "-- Counts the calls of one user in a window of one second and says whether this one may pass.\n";
    let code = "local n = redis.call('INCR', KEYS[1])\n\
                if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end\n\
                if n > tonumber(ARGV[1]) then return 0 end\n\
                return 1\n";
    comment.repeat(42) + code
}

pub fn eval_bodies(at: &At<'_>) -> Result<Active, Error> {
    let (node, tag) = (at.node()?, at.tag()?);
    let script = limiter();
    let digest = beside(&node)?.call(&["SCRIPT", "LOAD", &script])?.text().unwrap_or_default();
    let mut active = sweep(at.active("EVALSHA instead of EVAL"), &node, format!("limit:{tag}:*"));
    for worker in 0..8 {
        let (target, mut slot) = (node.target(), None);
        let (key, script, digest) = (format!("limit:{tag}:{worker}"), script.clone(), digest.clone());
        active = active.work(move |flags| {
            let (command, body) = if flags.fixed() { ("EVALSHA", &digest) } else { ("EVAL", &script) };
            with(&mut slot, &target, flags, |c| c.call(&[command, body, "1", &key, "100", "1000"]).map(drop));
            flags.pause(Duration::from_millis(2));
        });
    }
    Ok(active)
}

/// Each reads a stock, computes for a moment, and writes it if no other client has.
pub fn watch_conflicts(at: &At<'_>) -> Result<Active, Error> {
    let (node, stock) = (at.node()?, format!("stock:{}", at.tag()?));
    let mut active = sweep(at.active("INCR instead of WATCH"), &node, stock.clone());
    for _ in 0..8 {
        let (target, stock, mut slot) = (node.target(), stock.clone(), None);
        active = active.work(move |flags| {
            let fixed = flags.fixed();
            with(&mut slot, &target, flags, |c| {
                if fixed {
                    return c.call(&["INCR", &stock]).map(drop);
                }
                c.call(&["WATCH", &stock])?;
                c.call(&["GET", &stock])?;
                std::thread::sleep(Duration::from_millis(1)); // it computes
                c.pipeline(&[words(&["MULTI"]), words(&["INCR", &stock]), words(&["EXEC"])]).map(drop)
            });
            if fixed {
                flags.pause(Duration::from_millis(1));
            }
        });
    }
    Ok(active)
}

/// An import whose batches are transactions because the library's default says so.
pub fn giant_transactions(at: &At<'_>) -> Result<Active, Error> {
    const COMMANDS: usize = 100_000;
    let (node, key) = (at.node()?, format!("import:{}", at.tag()?));
    let active = sweep(at.active("pipelines of 500 without MULTI"), &node, key.clone());
    let add = words(&["INCRBY", &key, "1"]);
    let mut transaction = vec![words(&["MULTI"])];
    transaction.extend(std::iter::repeat_n(add.clone(), COMMANDS));
    transaction.push(words(&["EXEC"]));
    let batch = vec![add; 500];
    let (target, mut slot) = (node.target(), None);
    Ok(active.work(move |flags| {
        let fixed = flags.fixed();
        let commands = if fixed { &batch } else { &transaction };
        with(&mut slot, &target, flags, |c| c.pipeline(commands).map(drop));
        flags.pause(Duration::from_millis(if fixed { 1 } else { 150 }));
    }))
}

/// A report that reads all its small keys in one command.
pub fn giant_commands(at: &At<'_>) -> Result<Active, Error> {
    const KEYS: usize = 100_000;
    let (node, tag) = (at.node()?, at.tag()?);
    let active = sweep(at.active("MGET of 100 keys, several in a pipeline"), &node, format!("price:{tag}:*"));
    fill(&mut beside(&node)?, KEYS, |i| words(&["SET", &format!("price:{tag}:{i}"), "12.50"]))?;
    let names: Vec<String> = (0..KEYS).map(|i| format!("price:{tag}:{i}")).collect();
    let mget = |keys: &[String]| [&words(&["MGET"])[..], keys].concat();
    let batches: Vec<Vec<Vec<String>>> = names.chunks(5000).map(|some| some.chunks(100).map(mget).collect()).collect();
    let (all, target, mut slot, mut i) = (mget(&names), node.target(), None, 0);
    Ok(active.work(move |flags| {
        let fixed = flags.fixed();
        i = (i + 1) % batches.len();
        let batch = &batches[i];
        with(&mut slot, &target, flags, |c| if fixed { c.pipeline(batch).map(drop) } else { c.call(&all).map(drop) });
        flags.pause(Duration::from_millis(if fixed { 10 } else { 150 }));
    }))
}

/// A page of a cache, and a GET of it as its bytes with the length of its reply.
const PAGE_BYTES: usize = 100_000;

fn page(at: &At<'_>) -> Result<(Arc<Server>, String), Error> {
    let (node, key) = (at.node()?, format!("page:{}", at.tag()?));
    beside(&node)?.call(&["SET", &key, &"x".repeat(PAGE_BYTES)])?;
    Ok((node, key))
}

/// Two applications of 25 connections each, with one GET of a page in flight on each: nothing but bytes to move.
pub fn big_values(at: &At<'_>) -> Result<Active, Error> {
    let (node, key) = page(at)?;
    let mut active = sweep(at.active("compressed pages"), &node, key.clone());
    let get = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
    // "$100000\r\n", the page, "\r\n"
    let reply = format!("${PAGE_BYTES}\r\n").len() + PAGE_BYTES + 2;
    for _ in 0..2 {
        let (target, get) = (node.target(), get.clone());
        active = active.work(move |flags| one_in_flight(&target, 25, get.as_bytes(), flags, reply));
    }
    Ok(active)
}

/// Sixteen clients want pages of 100 kB over a path that is too narrow for them.
pub fn bandwidth(at: &At<'_>) -> Result<Active, Error> {
    let (node, key) = page(at)?;
    let wire = at.lab.wire()?.clone();
    let from = at.lab.host_of(&node);
    let to = (0..at.lab.hosts.len()).filter(|host| *host != from).collect();
    let add = Conditions { rate_bits_per_s: Some(20_000_000), ..Conditions::default() };
    let id = wire.change(Change { from: vec![from], to, both_ways: false, add });
    let active = at.active("a path with enough bandwidth for what they ask for").on_end(move || wire.undo(id));
    let mut active = sweep(active, &node, key.clone());
    for _ in 0..16 {
        let (target, key, mut slot) = (node.target(), key.clone(), None);
        active = active.work(move |flags| with(&mut slot, &target, flags, |c| c.call(&["GET", &key]).map(drop)));
    }
    Ok(active)
}

/// Two publishers at one node, and a subscriber at another.
pub fn publish_in_cluster(at: &At<'_>) -> Result<Active, Error> {
    let target = at.node()?.target();
    let elsewhere = at.lab.deployment.nodes.iter().find(|n| n.address() != target.address());
    let subscribed = elsewhere.map_or(target.clone(), |n| n.target());
    let mut active = at.active("SPUBLISH on a sharded channel").work(move |flags| {
        let Ok(mut stream) = stream(&subscribed) else { return flags.pause(Duration::from_millis(100)) };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
        let _ = stream.write_all(b"SUBSCRIBE news\r\n");
        let mut buffer = [0u8; 64 * 1024];
        while !flags.stopped() {
            if let Ok(0) = stream.read(&mut buffer) {
                return;
            }
        }
    });
    // A channel of this node's slots, for SPUBLISH.
    let sharded = format!("news:{}", at.tag()?);
    for _ in 0..2 {
        let (target, mut slot) = (target.clone(), None);
        let plain = vec![words(&["PUBLISH", "news", "it has begun"]); 10];
        let kept = vec![words(&["SPUBLISH", &sharded, "it has begun"]); 10];
        active = active.work(move |flags| {
            let batch = if flags.fixed() { &kept } else { &plain };
            with(&mut slot, &target, flags, |c| c.pipeline(batch).map(drop));
            flags.pause(Duration::from_millis(1));
        });
    }
    Ok(active)
}
