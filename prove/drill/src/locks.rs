//! Locks as applications take them: `SET key owner NX PX ttl`, released by compare-and-delete, on one master or, as
//! Redlock has it, on more than half of five servers. With each comes a fencing token from a counter beside the lock.

use std::time::{Duration, Instant};

use unslow_client::{Connection, Options};

use crate::caller::Caller;
use crate::history::{Outcome, What};

/// Deletes the lock if it is still ours.
const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
/// Between two attempts at locks that others hold.
const BETWEEN: Duration = Duration::from_millis(10);
/// Every so many holders stop in the middle, where the drill asks for it.
const PAUSES: u64 = 3;

/// Somebody who has a lock.
struct Holder {
    lock: u32,
    token: u64,
    /// When the answer came that gave it.
    from_us: u64,
    /// When its time is over by the holder's own clock.
    expires: Instant,
    expires_us: u64,
    node: usize,
}

/// The lock to try for: one after another, each shard its own.
fn next(caller: &Caller<'_>, n: u64) -> u32 {
    let locks = caller.run.load.locks.max(1);
    caller.client.shard * locks + ((u64::from(caller.client.client) + n) % u64::from(locks)) as u32
}

/// Works under the lock, and writes down what that was.
fn work(caller: &mut Caller<'_>, holder: &Holder, count: u64) {
    let load = caller.run.load;
    let touch = |caller: &mut Caller<'_>| {
        let taken = caller.run.use_resource(holder.lock, holder.token);
        let now = caller.run.now_us();
        let what = What::Use { lock: holder.lock, token: holder.token, taken };
        caller.note(now, Outcome::Acknowledged, holder.node, what);
    };
    touch(caller);
    if !load.pause.is_zero() && count.is_multiple_of(PAUSES) {
        // It does not look at the clock when it goes on: neither does a process that was stopped.
        caller.pause(load.pause);
        touch(caller);
        return;
    }
    caller.pause(load.hold.min(holder.expires.saturating_duration_since(Instant::now())));
    if Instant::now() < holder.expires {
        touch(caller);
    }
}

fn hold(caller: &mut Caller<'_>, begun_us: u64, holder: &Holder) {
    let until_us = caller.run.now_us().min(holder.expires_us);
    let what = What::Hold { lock: holder.lock, token: holder.token, until_us };
    caller.note(begun_us, Outcome::Acknowledged, holder.node, what);
    // It counts from the answer, not from when this was written down.
    if let Some(op) = caller.ops.last_mut() {
        op.ended_us = holder.from_us;
    }
}

/// Locks on one master.
pub fn one_master(caller: &mut Caller<'_>) {
    let load = caller.run.load.clone();
    let ttl = load.ttl.as_millis().to_string();
    for n in 0u64.. {
        if caller.stopped() {
            return;
        }
        let lock = next(caller, n);
        let (key, counter) = (caller.key(&format!("lock:{lock}")), caller.key(&format!("token:{lock}")));
        let me = format!("{}-{n}", caller.client.client);
        let (begun_us, begun) = (caller.run.now_us(), Instant::now());
        let Some(answer) = caller.ask(&["SET", &key, &me, "NX", "PX", &ttl], load.wait) else { return };
        if answer.outcome != Outcome::Acknowledged || answer.value.text().as_deref() != Some("OK") {
            caller.pause(BETWEEN);
            continue;
        }
        let (from_us, expires) = (caller.run.now_us(), begun + load.ttl);
        let expires_us = begun_us + load.ttl.as_micros() as u64;
        let token = caller.ask(&["INCR", &counter], load.wait);
        if let Some(token) = token.filter(|t| t.outcome == Outcome::Acknowledged).and_then(|t| t.value.integer()) {
            let holder = Holder { lock, token: token as u64, from_us, expires, expires_us, node: answer.node };
            work(caller, &holder, n);
            hold(caller, begun_us, &holder);
        }
        let _ = caller.ask(&["EVAL", RELEASE, "1", &key, &me], 0);
        caller.pause(BETWEEN);
    }
}

/// Redlock: more than half of all servers, within the time to live less some drift of the clocks.
pub fn redlock(caller: &mut Caller<'_>) {
    let load = caller.run.load.clone();
    let options = Options {
        connect_timeout: load.timeout / 4,
        command_timeout: load.timeout / 4,
        tls: caller.run.places.tls.clone(),
        ..Options::default()
    };
    let mut servers: Vec<Option<Connection>> = caller.run.places.nodes.iter().map(|_| None).collect();
    let most = servers.len() / 2 + 1;
    let ttl = load.ttl.as_millis().to_string();
    let drift = load.ttl / 100 + Duration::from_millis(2);
    for n in 0u64.. {
        if caller.stopped() {
            return;
        }
        let lock = next(caller, n);
        let (key, counter) = (format!("drill:lock:{lock}"), format!("drill:token:{lock}"));
        let me = format!("{}-{n}", caller.client.client);
        let (begun_us, begun) = (caller.run.now_us(), Instant::now());
        let mut all = |words: &[&str]| -> Vec<Option<unslow_client::Value>> {
            let ask = |(i, server): (usize, &mut Option<Connection>)| {
                if server.is_none() {
                    *server = Connection::open(&caller.run.places.nodes[i].target, &options).ok();
                }
                let answer = server.as_mut()?.call(words);
                if answer.as_ref().is_err_and(|e| e.is_fatal()) {
                    *server = None;
                }
                answer.ok()
            };
            servers.iter_mut().enumerate().map(ask).collect()
        };
        let given = all(&["SET", &key, &me, "NX", "PX", &ttl]);
        let given = given.iter().flatten().filter(|v| v.text().as_deref() == Some("OK")).count();
        let expires = begun + load.ttl - drift;
        if given >= most && Instant::now() < expires {
            // The largest of the counters, told to all: the next majority knows it.
            let from_us = caller.run.now_us();
            let token = all(&["INCR", &counter]).iter().flatten().filter_map(|v| v.integer()).max().unwrap_or(0);
            all(&["SET", &counter, &token.to_string()]);
            let expires_us = begun_us + (load.ttl - drift).as_micros() as u64;
            let holder = Holder { lock, token: token as u64, from_us, expires, expires_us, node: 0 };
            work(caller, &holder, n);
            hold(caller, begun_us, &holder);
        }
        let release = |servers: &mut Vec<Option<Connection>>| {
            for connection in servers.iter_mut().flatten() {
                let _ = connection.call(&["EVAL", RELEASE, "1", &key, &me]);
            }
        };
        release(&mut servers);
        // Apart from each other, or nobody ever gets more than half.
        caller.pause(BETWEEN + Duration::from_millis((u64::from(caller.client.client) * 7 + n * 3) % 20));
    }
}
