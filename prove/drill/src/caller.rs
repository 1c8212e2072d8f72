//! One client: finds its server, asks, follows redirects, and writes down what it saw.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use unslow_client::{Connection, Error, ErrorKind, Options, Value, Way};

use crate::history::{Client, Model, Op, Outcome, What};
use crate::places::{Finder, Places, Shard};
use crate::spec::Load;

/// What all clients of a run share.
pub struct Run<'a> {
    /// The deployment that clients talk to.
    pub places: &'a Places,
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
        places: &'a Places,
        shards: &'a [Shard],
        load: &'a Load,
        stop: &'a AtomicBool,
    ) -> (Run<'a>, Vec<Client>) {
        let mut clients: Vec<Client> = Vec::new();
        let allowed = |h: &&crate::places::Home| load.zones.is_empty() || load.zones.contains(&h.zone);
        let homes: Vec<&crate::places::Home> = places.homes.iter().filter(allowed).collect();
        let mut add = |model, shard: usize, home: usize| {
            let zone = homes.get(home % homes.len().max(1)).map_or("here".into(), |h| h.zone.clone());
            clients.push(Client { client: clients.len() as u32, model, shard: shard as u32, zone });
        };
        let home_of = |shard: usize| places.zones.get(shards[shard].master).copied().unwrap_or(0);
        for shard in 0..shards.len() {
            // In every zone in turn, the master's first.
            (0..load.follows).for_each(|i| add(Model::Follows, shard, home_of(shard) + i));
            (0..load.reads_replicas).for_each(|i| add(Model::ReadsReplicas, shard, home_of(shard) + i));
        }
        (0..load.stays).for_each(|_| add(Model::Stays, 0, home_of(0)));
        let run = Run {
            places,
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

    /// The resource behind a lock is used with a token; it turns away those that are older than what it has seen.
    pub fn use_resource(&self, lock: u32, token: u64) -> bool {
        let mut seen = self.resources[lock as usize].lock().unwrap_or_else(|e| e.into_inner());
        let taken = token >= *seen;
        *seen = token.max(*seen);
        taken
    }
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
    pub patience: Option<Instant>,
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
    pub fn new(run: &'a Run<'a>, client: &Client) -> Caller<'a> {
        let shard = &run.shards[client.shard as usize];
        let options = Options {
            connect_timeout: run.load.timeout,
            command_timeout: run.load.timeout,
            tls: run.places.tls.clone(),
            ..Options::default()
        };
        Caller {
            run,
            client: client.clone(),
            ops: Vec::new(),
            shard,
            finder: Finder::new(run.places, shard, client.client as usize),
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
                    let open = Connection::open(&self.run.places.nodes[node].target, &self.options);
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
        if let Some(redirect) = error.redirect()
            && let Some(to) = self.run.places.redirected(redirect, node)
            && let Ok(mut there) = Connection::open(&self.run.places.nodes[to].target, &self.options)
        {
            if redirect.way == Way::Ask {
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

    pub fn write_and_read(&mut self) {
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
