//! The clients: threads that write, read and lock, each as an application's would, and write down what they saw.
//!
//! Every client adds elements to a set of its own and writes a register of its own; some write and read registers that
//! others write too. Keys carry the hash tag of a shard, so each client is about one shard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options};

use crate::caller::{Answer, Caller, Run};
use crate::history::{Client, History, Model, Op, Outcome};
use crate::locks;
use crate::spec::{Kind, Load};
use crate::stage::{Answered, Workload};

/// The clients of a run while they work, each on a thread of its own, in its zone.
pub struct Clients<'s> {
    run: &'s Run<'s>,
    clients: Vec<Client>,
    threads: Vec<ScopedJoinHandle<'s, Vec<Op>>>,
}

impl<'s> Clients<'s> {
    /// Starts them.
    pub fn begin(run: &'s Run<'s>, scope: &'s Scope<'s, '_>, clients: &[Client]) -> Clients<'s> {
        // Threads that are started are ended, even where there is none for the next.
        let mut all = Clients { run, clients: clients.to_vec(), threads: Vec::new() };
        for client in clients {
            let client = client.clone();
            let home = run.places.homes.iter().find(|h| h.zone == client.zone).and_then(|h| h.seat.clone());
            all.threads.push(scope.spawn(move || {
                if home.is_some_and(|seat| seat.enter().is_err()) {
                    return Vec::new();
                }
                let mut caller = Caller::new(run, &client);
                match run.load.kind {
                    Kind::Writes => caller.write_and_read(),
                    Kind::Locks if run.load.redlock => locks::redlock(&mut caller),
                    Kind::Locks => locks::one_master(&mut caller),
                }
                caller.ops
            }));
        }
        all
    }
}

impl Workload for Clients<'_> {
    /// One history of what all of them saw, and how many died.
    type Seen = (History, usize);

    fn answered(&mut self) -> Answered {
        let progress = &self.run.progress;
        let had = progress.iter().filter(|p| p.load(Ordering::Relaxed) > 0).count();
        // Locks are taken by one at a time: one client is enough.
        let wanted = if self.run.load.kind == Kind::Locks { 1 } else { progress.len() };
        Answered { had, wanted, all: progress.len() }
    }

    fn end(mut self) -> (History, usize) {
        self.run.stop.store(true, Ordering::SeqCst);
        let (mut ops, mut died) = (Vec::new(), 0);
        for thread in std::mem::take(&mut self.threads) {
            match thread.join() {
                Ok(seen) => ops.extend(seen),
                Err(_) => died += 1,
            }
        }
        ops.sort_by_key(|op: &Op| (op.begun_us, op.client));
        (History { clients: std::mem::take(&mut self.clients), ops }, died)
    }
}

impl Drop for Clients<'_> {
    /// A scope waits for its threads even when it is left by a panic.
    fn drop(&mut self) {
        self.run.stop.store(true, Ordering::SeqCst);
    }
}

/// What is in the set of each client, by its number.
pub type Finals = BTreeMap<u32, BTreeSet<u64>>;

/// What is there at the end: each client's set.
pub fn finals(run: &Run<'_>, clients: &[Client]) -> Result<Finals, crate::Error> {
    let never = AtomicBool::new(false);
    let patient = Load { timeout: Duration::from_secs(10), ..run.load.clone() };
    let (reader, _) = Run::new(run.places, run.shards, &patient, &never);
    let mut all = BTreeMap::new();
    for client in clients {
        // From where the first clients are, by whoever owns the slot now.
        let home = run.places.homes.first().and_then(|h| h.seat.clone());
        let zone = || run.places.homes.first().map_or(String::new(), |h| h.zone.clone());
        let read = || {
            let mut caller = Caller::new(&reader, &Client { model: Model::Follows, ..client.clone() });
            let key = caller.key(&format!("set:{}", client.client));
            let until = Instant::now() + Duration::from_secs(20);
            caller.patience = Some(until);
            while Instant::now() < until && !unslow_interrupt::asked() {
                match caller.ask(&["SMEMBERS", &key], 0) {
                    Some(Answer { outcome: Outcome::Acknowledged, value, .. }) => {
                        return Some(value.items().iter().filter_map(|v| v.integer()).map(|n| n as u64).collect());
                    }
                    _ => std::thread::sleep(Duration::from_millis(50)),
                }
            }
            None
        };
        let set: Option<BTreeSet<u64>> = match home {
            Some(seat) => seat.run(read).map_err(|why| crate::Error::Network { place: zone(), why })?,
            None => read(),
        };
        let set = set.ok_or(crate::Error::SetUnread(client.client))?;
        all.insert(client.client, set);
    }
    Ok(all)
}

/// Takes away what the run has written, as far as servers answer within some seconds; what could not be.
pub fn sweep(run: &Run<'_>, clients: &[Client]) -> Vec<String> {
    let mut left = Vec::new();
    let never = AtomicBool::new(false);
    let patient = Load { timeout: Duration::from_secs(2), wait: 0, ..run.load.clone() };
    let (reader, _) = Run::new(run.places, run.shards, &patient, &never);
    for client in clients {
        let mut caller = Caller::new(&reader, &Client { model: Model::Follows, ..client.clone() });
        caller.patience = Some(Instant::now() + Duration::from_secs(5));
        let mut names = vec![format!("set:{}", client.client), format!("register:{}", client.client), "shared".into()];
        // Locks are numbered through all shards.
        let first = client.shard * run.load.locks;
        let locks = first..first + if run.load.kind == Kind::Locks { run.load.locks } else { 0 };
        names.extend(locks.flat_map(|n| [format!("lock:{n}"), format!("token:{n}")]));
        for name in names {
            let key = caller.key(&name);
            match caller.ask(&["DEL", &key], 0) {
                Some(Answer { outcome: Outcome::Acknowledged, .. }) => {}
                Some(_) => left.push(key),
                None => {
                    left.push(caller.key("*"));
                    break;
                }
            }
        }
    }
    if run.load.kind == Kind::Locks && run.load.redlock {
        let options = Options { tls: run.places.tls.clone(), ..Options::default() };
        for node in &run.places.nodes {
            let names = (0..run.load.locks * run.shards.len() as u32)
                .flat_map(|n| [format!("drill:lock:{n}"), format!("drill:token:{n}")]);
            let words: Vec<String> = std::iter::once("DEL".to_string()).chain(names).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if Connection::open(&node.target, &options).and_then(|mut c| c.call(&words)).is_err() {
                left.push(format!("drill:lock:* and drill:token:* on {}", node.name));
            }
        }
    }
    left.sort();
    left.dedup();
    left
}
