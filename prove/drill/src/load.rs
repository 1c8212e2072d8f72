//! The clients: threads that write, read and lock, each as an application's would, and write down what they saw.
//!
//! Every client adds elements to a set of its own and writes a register of its own; some write and read registers that
//! others write too. Keys carry the hash tag of a shard, so each client is about one shard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use unslow_client::{Connection, Error, ErrorKind, Options, Value};

use crate::ground::{Finder, Ground, Shard};
use crate::history::{Client, History, Model, Op, Outcome, What};
use crate::spec::{Kind, Load};

/// What all clients of a run share.
pub struct Run<'a> {
    /// The deployment that clients talk to.
    pub ground: &'a Ground,
    /// Its shards when the run began.
    pub shards: &'a [Shard],
    /// What the clients do.
    pub load: &'a Load,
    /// When the run began.
    pub begun: Instant,
    /// Turns true at the end.
    pub stop: &'a AtomicBool,
    /// Acknowledged operations, of each client.
    pub progress: Vec<AtomicU64>,
    /// What each lock's resource has seen: the largest token.
    resources: Vec<Mutex<u64>>,
}

impl<'a> Run<'a> {
    /// The clients of a load, before they begin.
    pub fn new(
        ground: &'a Ground,
        shards: &'a [Shard],
        load: &'a Load,
        stop: &'a AtomicBool,
    ) -> (Run<'a>, Vec<Client>) {
        let mut clients: Vec<Client> = Vec::new();
        let allowed = |h: &&crate::ground::Home| load.zones.is_empty() || load.zones.contains(&h.zone);
        let homes: Vec<&crate::ground::Home> = ground.homes.iter().filter(allowed).collect();
        let mut add = |model, shard: usize, home: usize| {
            let zone = homes.get(home % homes.len().max(1)).map_or("here".into(), |h| h.zone.clone());
            clients.push(Client { client: clients.len() as u32, model, shard: shard as u32, zone });
        };
        let home_of = |shard: usize| ground.zones.get(shards[shard].master).copied().unwrap_or(0);
        for shard in 0..shards.len() {
            // In every zone in turn, the master's first.
            (0..load.follows).for_each(|i| add(Model::Follows, shard, home_of(shard) + i));
            (0..load.reads_replicas).for_each(|i| add(Model::ReadsReplicas, shard, home_of(shard) + i));
        }
        (0..load.stays).for_each(|_| add(Model::Stays, 0, home_of(0)));
        let run = Run {
            ground,
            shards,
            load,
            begun: Instant::now(),
            stop,
            progress: clients.iter().map(|_| AtomicU64::new(0)).collect(),
            resources: (0..load.locks * shards.len() as u32).map(|_| Mutex::new(0)).collect(),
        };
        (run, clients)
    }

    /// Microseconds since the run began.
    pub fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Starts every client on a thread of its own, in its zone.
    pub fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, clients: &[Client]) -> Vec<ScopedJoinHandle<'s, Vec<Op>>> {
        clients
            .iter()
            .map(|client| {
                let client = client.clone();
                let home = self.ground.homes.iter().find(|h| h.zone == client.zone).and_then(|h| h.seat.clone());
                scope.spawn(move || {
                    if home.is_some_and(|seat| seat.enter().is_err()) {
                        return Vec::new();
                    }
                    let mut caller = Caller::new(self, &client);
                    match self.load.kind {
                        Kind::Writes => caller.write_and_read(),
                        Kind::Locks if self.load.redlock => crate::locks::redlock(&mut caller),
                        Kind::Locks => crate::locks::one_master(&mut caller),
                    }
                    caller.ops
                })
            })
            .collect()
    }

    /// The resource behind a lock is used with a token; it turns away those that are older than what it has seen.
    pub fn use_resource(&self, lock: u32, token: u64) -> bool {
        let mut seen = self.resources[lock as usize].lock().unwrap_or_else(|e| e.into_inner());
        let taken = token >= *seen;
        *seen = token.max(*seen);
        taken
    }
}

/// Joins what the clients saw into one history.
/// With it comes how many clients died.
pub fn collect(clients: Vec<Client>, threads: Vec<ScopedJoinHandle<'_, Vec<Op>>>) -> (History, usize) {
    let (mut ops, mut died) = (Vec::new(), 0);
    for thread in threads {
        match thread.join() {
            Ok(seen) => ops.extend(seen),
            Err(_) => died += 1,
        }
    }
    ops.sort_by_key(|op: &Op| (op.begun_us, op.client));
    (History { clients, ops }, died)
}

/// One client.
pub struct Caller<'a> {
    /// What it shares with the others.
    pub run: &'a Run<'a>,
    /// Who it is.
    pub client: Client,
    /// What it saw so far.
    pub ops: Vec<Op>,
    shard: &'a Shard,
    finder: Finder<'a>,
    connection: Option<(usize, Connection)>,
    failed: Option<usize>,
    options: Options,
    /// When it gives up looking for a server.
    patience: Option<Instant>,
}

/// An answer, with the node that gave it or should have.
pub struct Answer {
    /// What became of it.
    pub outcome: Outcome,
    /// What was answered.
    pub value: Value,
    /// By number.
    pub node: usize,
}

/// A refused command is not tried again at once.
const AFTER_REFUSAL: Duration = Duration::from_millis(5);
/// Between two attempts to find the master.
const BETWEEN_LOOKS: Duration = Duration::from_millis(4);
/// Between two attempts of a client that stays.
const BETWEEN_DIALS: Duration = Duration::from_millis(50);

impl<'a> Caller<'a> {
    fn new(run: &'a Run<'a>, client: &Client) -> Caller<'a> {
        let shard = &run.shards[client.shard as usize];
        let options = Options {
            connect_timeout: run.load.timeout,
            command_timeout: run.load.timeout,
            tls: run.ground.tls.clone(),
            ..Options::default()
        };
        Caller {
            run,
            client: client.clone(),
            ops: Vec::new(),
            shard,
            finder: Finder::new(run.ground, shard, client.client as usize),
            patience: None,
            connection: None,
            failed: None,
            options,
        }
    }

    /// A key of its shard.
    pub fn key(&self, name: &str) -> String {
        format!("drill:{}:{name}", self.shard.tag)
    }

    /// Whether the run is over.
    pub fn stopped(&self) -> bool {
        self.run.stopped()
    }

    /// Writes an operation down.
    pub fn note(&mut self, begun_us: u64, outcome: Outcome, node: usize, what: What) {
        if outcome == Outcome::Acknowledged {
            self.run.progress[self.client.client as usize].fetch_add(1, Ordering::Relaxed);
        }
        let ended_us = self.run.now_us();
        self.ops.push(Op { client: self.client.client, begun_us, ended_us, outcome, node: node as u16, what });
    }

    /// Sleeps, but not beyond the end.
    pub fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// Until there is a connection; `false` when the run ended before.
    pub fn connect(&mut self) -> bool {
        while self.connection.is_none() {
            if self.stopped() || self.patience.is_some_and(|at| Instant::now() > at) {
                return false;
            }
            let (found, pause) = match self.client.model {
                Model::Follows => (self.finder.master(self.failed, &self.options), BETWEEN_LOOKS),
                Model::ReadsReplicas => {
                    (self.finder.replica(self.client.client as usize, &self.options), BETWEEN_DIALS)
                }
                Model::Stays => {
                    let node = self.shard.master;
                    let open = Connection::open(&self.run.ground.nodes[node].target, &self.options);
                    (open.ok().map(|c| (node, c)), BETWEEN_DIALS)
                }
            };
            match found {
                Some(found) => {
                    self.connection = Some(found);
                    self.failed = None;
                }
                None => self.pause(pause),
            }
        }
        true
    }

    /// Asks; follows redirections if it is a client that does. With `wait`, an acknowledgement counts when so many
    /// replicas have it too.
    pub fn ask(&mut self, words: &[&str], wait: u32) -> Option<Answer> {
        for _ in 0..4 {
            if !self.connect() {
                return None;
            }
            let (node, connection) = self.connection.as_mut()?;
            let node = *node;
            let result = say(connection, words, wait, self.run.load.timeout);
            let (outcome, value) = match result {
                Ok(done) => done,
                Err(e) => match self.sort(node, &e) {
                    Some(outcome) => (outcome, Value::Null),
                    None => continue,
                },
            };
            return Some(Answer { outcome, value, node });
        }
        self.pause(AFTER_REFUSAL);
        Some(Answer { outcome: Outcome::Refused, value: Value::Null, node: self.shard.master })
    }

    /// What an error means for the operation, and for the connection; `None`: ask again elsewhere, it did not happen.
    fn sort(&mut self, node: usize, error: &Error) -> Option<Outcome> {
        if error.is_fatal() {
            self.connection = None;
            self.failed = Some(node);
            // It may have been sent.
            return Some(Outcome::Unknown);
        }
        if self.client.model == Model::Stays {
            self.pause(AFTER_REFUSAL);
            return Some(Outcome::Refused);
        }
        if let Some(code @ ("MOVED" | "ASK")) = error.code()
            && let Some(to) = error.message.split_whitespace().skip_while(|word| *word != code).nth(2)
            && let Some(to) = self.run.ground.at(to.trim_end_matches([';', ',', '.']))
            && let Ok(mut there) = Connection::open(&self.run.ground.nodes[to].target, &self.options)
        {
            if code == "ASK" {
                let _ = there.call(&["ASKING"]);
            }
            self.connection = Some((to, there));
            return None;
        }
        // READONLY, CLUSTERDOWN, LOADING, NOREPLICAS and the like: refused, and somebody else may be master.
        if !matches!(error.code(), Some("NOREPLICAS" | "TRYAGAIN")) {
            self.connection = None;
        }
        self.pause(AFTER_REFUSAL);
        Some(Outcome::Refused)
    }

    fn write_and_read(&mut self) {
        let every = Duration::from_secs_f64(1.0 / self.run.load.rate_per_s);
        let me = self.client.client;
        // Own registers of this shard's writers, for those who read others'.
        let writers: Vec<u32> = {
            let all = (0..self.run.progress.len() as u32).collect::<Vec<_>>();
            let per_shard = self.run.load.follows + self.run.load.reads_replicas;
            let first = self.client.shard * per_shard as u32;
            all.into_iter().filter(|c| (first..first + self.run.load.follows as u32).contains(c)).collect()
        };
        let set = self.key(&format!("set:{me}"));
        let own = self.key(&format!("register:{me}"));
        let shared = self.key("shared");
        let mut due = Instant::now();
        for n in 1u64.. {
            due += every;
            let now = Instant::now();
            // Whoever was held up does not catch up with a burst.
            due = due.max(now.checked_sub(every).unwrap_or(now));
            self.pause(due.saturating_duration_since(now));
            if self.stopped() || !self.connect() {
                return;
            }
            let number = n.to_string();
            let (begun, unique) = (self.run.now_us(), u64::from(me + 1) << 32 | n);
            let wait = self.run.load.wait;
            let turn = match self.client.model {
                Model::ReadsReplicas => 3,
                Model::Stays if n % 8 == 7 => 3,
                _ => n % 8,
            };
            let (answer, what) = match turn {
                1 | 5 => (self.ask(&["SET", &own, &number], wait), What::Write { value: n }),
                3 => {
                    let Some(of) = writers.get(n as usize / 8 % writers.len().max(1)).copied() else { continue };
                    let key = self.key(&format!("register:{of}"));
                    let answer = self.ask(&["GET", &key], 0);
                    let value = answer.as_ref().and_then(|a| a.value.integer()).unwrap_or(0) as u64;
                    (answer, What::Read { of, value })
                }
                7 if n % 16 == 7 => (
                    self.ask(&["SET", &shared, &unique.to_string()], wait),
                    What::SharedWrite { register: self.client.shard, value: unique },
                ),
                7 => {
                    let answer = self.ask(&["GET", &shared], 0);
                    let value = answer.as_ref().and_then(|a| a.value.integer()).unwrap_or(0) as u64;
                    (answer, What::SharedRead { register: self.client.shard, value })
                }
                _ => (self.ask(&["SADD", &set, &number], wait), What::Add { element: n }),
            };
            if let Some(answer) = answer {
                self.note(begun, answer.outcome, answer.node, what);
            }
        }
    }
}

/// Sends a command, and WAIT behind it; errors are of the connection or the server's refusal.
pub fn say(
    connection: &mut Connection,
    words: &[&str],
    wait: u32,
    timeout: Duration,
) -> Result<(Outcome, Value), Error> {
    if wait == 0 {
        return connection.call(words).map(|value| (Outcome::Acknowledged, value));
    }
    // Half of the client's patience: WAIT's own answer must still arrive in time.
    let patience = (timeout.as_millis() / 2).max(1).to_string();
    let commands: Vec<Vec<String>> =
        vec![words.iter().map(|w| w.to_string()).collect(), vec!["WAIT".into(), wait.to_string(), patience]];
    let mut replies = connection.pipeline(&commands)?.into_iter();
    let value = replies.next().unwrap_or(Err(Error::new(ErrorKind::Closed, "no reply")))?;
    let enough = matches!(replies.next(), Some(Ok(Value::Integer(n))) if n >= i64::from(wait));
    Ok((if enough { Outcome::Acknowledged } else { Outcome::Unknown }, value))
}

/// What is there at the end: each client's set.
pub fn finals(run: &Run<'_>, clients: &[Client]) -> Result<BTreeMap<u32, BTreeSet<u64>>, crate::Error> {
    let never = AtomicBool::new(false);
    let patient = Load { timeout: Duration::from_secs(10), ..run.load.clone() };
    let (reader, _) = Run::new(run.ground, run.shards, &patient, &never);
    let mut all = BTreeMap::new();
    for client in clients {
        // From where the first clients are, by whoever owns the slot now.
        let home = run.ground.homes.first().and_then(|h| h.seat.clone());
        let zone = || run.ground.homes.first().map_or(String::new(), |h| h.zone.clone());
        let read = || {
            let mut caller = Caller::new(&reader, &Client { model: Model::Follows, ..client.clone() });
            let key = caller.key(&format!("set:{}", client.client));
            let until = Instant::now() + Duration::from_secs(20);
            caller.patience = Some(until);
            while Instant::now() < until && !crate::run::interrupted() {
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
    let (reader, _) = Run::new(run.ground, run.shards, &patient, &never);
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
                    left.push(format!("drill:{}:*", caller.shard.tag));
                    break;
                }
            }
        }
    }
    if run.load.kind == Kind::Locks && run.load.redlock {
        let options = Options { tls: run.ground.tls.clone(), ..Options::default() };
        for node in &run.ground.nodes {
            let names = (0..run.load.locks * run.shards.len() as u32)
                .flat_map(|n| [format!("drill:lock:{n}"), format!("drill:token:{n}")]);
            let words: Vec<String> = std::iter::once("DEL".to_string()).chain(names).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if Connection::open(&node.target, &options).and_then(|mut c| c.call(&words)).is_err() {
                left.push(format!("drill:lock:* and drill:token:* of {}", node.name));
            }
        }
    }
    left.sort();
    left.dedup();
    left
}
