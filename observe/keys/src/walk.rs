//! The walk itself: one thread for each shard, SCAN and questions about each key, in measured steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unslow_client::{Deployment, Error, ErrorKind, Options, ReadOnly, Target, Value};
use unslow_probe::Salt;
use unslow_topology::{ClusterView, DeploymentKind, Info, Member, Role};

use crate::estimate::Sample;
use crate::places::{Shard, shards};
use crate::scan::{Key, MOST_KEYS, Part, Questions, Scan, Ttl};
use crate::sizes::sizes;
use crate::walked::{Cost, Walked};

/// How to walk.
pub struct Settings {
    pub options: Options,
    /// Keys a second of each server.
    pub rate: f64,
    /// When to end at the latest.
    pub until: Option<Instant>,
    /// Masters only. Uses of keys are counted by each server for itself, so [`Questions::heat`] asks for this too.
    pub on_masters: bool,
    /// Servers whose hot keys are known already, by their processes' ids.
    pub tracked: BTreeSet<String>,
    pub salt: Salt,
}

/// After each answer as many times as long as it took: others have four fifths of the server.
const REST: u32 = 4;
/// Steps a second at most, where the rate is low.
const STEPS: f64 = 50.0;
/// Keys in one step: SCAN and the questions hold up others for less than a millisecond.
const STEP: std::ops::RangeInclusive<u64> = 10..=200;
/// How often it looks whether it should end.
const SLICE: Duration = Duration::from_millis(50);
const HEAT: &[&[u8]] = &[b"OBJECT", b"FREQ"];
const MEMORY: &[&[u8]] = &[b"MEMORY", b"USAGE"];
/// How often it asks how many keys there are.
const RECOUNT: Duration = Duration::from_secs(2);
/// Databases of one server that are walked.
const DATABASES: usize = 1_024;
/// How long a master without replicas waits for others to say that it is theirs.
const ALIASES: Duration = Duration::from_secs(1);
/// Steps in a row whose keys are all elsewhere.
const MOVED: u32 = 100;
/// Discovery looks for no more.
const MOST_SERVERS: usize = 1_000;
/// Bytes of a name; a longer one is not asked about.
const LONGEST_NAME: usize = 64 << 10;
/// Connections that may be lost in a row.
const TRIES: u32 = 5;
/// What of the questions shows in the server's own count of commands.
const OURS: [&str; 16] = [
    "scan",
    "type",
    "pttl",
    "select",
    "readonly",
    "object",
    "object|freq",
    "memory",
    "memory|usage",
    "client|no-touch",
    "strlen",
    "llen",
    "hlen",
    "scard",
    "zcard",
    "xlen",
];

/// Walks until all keys are seen, the time is over, or `stop` says so. `progress` hears how many keys were seen, of
/// how many.
pub fn walk(
    deployment: &Deployment,
    settings: &Settings,
    scan: &mut Scan,
    stop: &(dyn Fn() -> bool + Sync),
    progress: &mut dyn FnMut(u64, u64),
) -> Walked {
    let before = scan.parts.iter().map(|part| part.server.clone()).collect();
    let all = shards(&deployment.members, settings.on_masters || scan.questions.heat, &before);
    let notes = deployment.notes.clone();
    let is_resumed = scan.at_ms > 0;
    let shared = Shared {
        deployment,
        settings,
        scan: Mutex::new(scan),
        walked: Mutex::new(Walked { notes, is_resumed, ..Walked::default() }),
        claimed: Mutex::default(),
        misses: Mutex::default(),
        slotless: Mutex::default(),
        opening: AtomicUsize::new(all.iter().filter(|shard| shard.servers.len() > 1).count()),
        stop,
    };
    if all.is_empty() || deployment.members.len() >= MOST_SERVERS {
        shared.walked().missed += 1;
        shared.note("not every master is known, so not all keys were looked at".into());
    }
    let shared = &shared;
    std::thread::scope(|scope| {
        let spawn = |shard| std::thread::Builder::new().spawn_scoped(scope, move || shared.shard(shard));
        let threads: Vec<_> = all.iter().map(spawn).collect();
        for (shard, thread) in all.iter().zip(&threads) {
            if let Err(e) = thread {
                if shard.servers.len() > 1 {
                    shared.opening.fetch_sub(1, Ordering::AcqRel);
                }
                shared.miss(shard, &format!("no thread could be started: {e}"));
            }
        }
        while threads.iter().flatten().any(|thread| !thread.is_finished()) {
            std::thread::sleep(SLICE);
            let samples: Vec<Sample> = shared.scan().parts.iter().map(Part::sample).collect();
            let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).fold(0, u64::saturating_add);
            progress(sum(|s| s.seen), sum(|s| s.all));
        }
    });
    let slotless = shared.slotless.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let misses = std::mem::take(&mut *shared.misses.lock().unwrap_or_else(PoisonError::into_inner));
    for (master, why) in misses.into_iter().filter(|(master, _)| !slotless.contains(master)) {
        shared.walked().missed += 1;
        shared.note(format!("keys of {master} were not looked at: {why}"));
    }
    std::mem::take(&mut *shared.walked())
}

struct Shared<'a, 's> {
    deployment: &'a Deployment,
    settings: &'a Settings,
    scan: Mutex<&'s mut Scan>,
    walked: Mutex<Walked>,
    /// Data sets by their name, and the shard that walks each: one server may be known by two addresses.
    claimed: Mutex<BTreeMap<String, String>>,
    /// Shards of which no server could be walked, and why.
    misses: Mutex<Vec<(String, String)>>,
    /// Masters of a cluster that own no slots, and so have no keys: mostly those that were replaced. `None` before
    /// one was asked.
    slotless: Mutex<Option<BTreeSet<String>>>,
    /// Shards with replicas that have not tried to open a server.
    opening: AtomicUsize,
    stop: &'a (dyn Fn() -> bool + Sync),
}

/// A server that is walked.
struct Server {
    address: String,
    role: Role,
    connection: ReadOnly,
    questions: Questions,
    /// What SELECT chose.
    database: u32,
    /// Parts of the scan that are its.
    parts: Vec<usize>,
    /// Its own count of time spent on our commands before us, in us.
    spent_us: Option<u64>,
    /// What it has refused, and how: each question once.
    refused: BTreeMap<&'static str, String>,
    /// Steps in a row whose keys were all elsewhere: a slot that is being imported has many, a server that has lost its
    /// slots nothing else.
    moved: u32,
    /// When the last step began.
    step: Instant,
}

/// Why a shard is not walked from here.
enum Closed {
    /// Another shard's thread walks the same data.
    Twice,
    Failed(String),
}

impl<'s> Shared<'_, 's> {
    fn scan(&self) -> MutexGuard<'_, &'s mut Scan> {
        self.scan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walked(&self) -> MutexGuard<'_, Walked> {
        self.walked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, text: String) {
        let mut walked = self.walked();
        if !walked.notes.contains(&text) {
            walked.notes.push(text);
        }
    }

    fn miss(&self, shard: &Shard, why: &str) {
        self.misses.lock().unwrap_or_else(PoisonError::into_inner).push((shard.master.clone(), why.into()));
    }

    fn should_end(&self) -> bool {
        (self.stop)() || self.settings.until.is_some_and(|until| Instant::now() >= until)
    }

    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.should_end() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// Walks a shard, through lost connections and restarts, as long as it gets on.
    fn shard(&self, shard: &Shard) {
        if shard.servers.len() == 1 {
            // A master that two addresses lead to is walked at its replica.
            let begun = Instant::now();
            while self.opening.load(Ordering::Acquire) > 0 && begun.elapsed() < ALIASES && !self.should_end() {
                std::thread::sleep(SLICE / 10);
            }
        }
        let mut failures = 0;
        let mut has_begun = false;
        loop {
            let opened = if self.should_end() { None } else { Some(self.server(shard)) };
            if !has_begun && shard.servers.len() > 1 {
                self.opening.fetch_sub(1, Ordering::AcqRel);
            }
            let why = match opened {
                None if has_begun => return,
                None => return self.miss(shard, "the walk ended before"),
                Some(Err(Closed::Twice)) if !has_begun => return,
                Some(Err(Closed::Twice)) => "its servers have joined another shard".into(),
                Some(Err(Closed::Failed(why))) if !has_begun => return self.miss(shard, &why),
                Some(Err(Closed::Failed(why))) => why,
                Some(Ok(mut server)) => {
                    if !has_begun {
                        let scan = self.scan();
                        let done = server.parts.iter().filter(|at| scan.parts[**at].is_done).count();
                        self.walked().done_before += done;
                    }
                    has_begun = true;
                    let before = self.scanned(&server);
                    let begun = Instant::now();
                    let ended = self.parts(&mut server);
                    self.count(&mut server, begun);
                    let Err(e) = ended else { return };
                    if self.scanned(&server) > before {
                        failures = 0;
                    }
                    let is_named = e.message.starts_with(&server.address);
                    let address = if is_named { String::new() } else { format!("{}: ", server.address) };
                    let why = format!("{address}{}{}", e.message, hint(&e));
                    if !e.is_fatal() && !is_passing(&e) {
                        self.walked().broken += 1;
                        return self.note(why);
                    }
                    // What did not answer in time has had its share as well.
                    self.rest(server.step.elapsed() * REST);
                    why
                }
            };
            failures += 1;
            if failures > TRIES {
                self.walked().broken += 1;
                return self.note(format!("the walk of {} ended early: {why}", shard.master));
            }
            self.rest(Duration::from_millis(200 << failures));
        }
    }

    fn scanned(&self, server: &Server) -> u64 {
        let scan = self.scan();
        server.parts.iter().map(|at| scan.parts[*at].scanned).fold(0, u64::saturating_add)
    }

    /// The first server of a shard that can be walked, with its parts in the scan.
    fn server(&self, shard: &Shard) -> Result<Server, Closed> {
        let mut why = Vec::new();
        for member in &shard.servers {
            match self.open(member, &shard.master) {
                // What could not be dialled has its address in the message.
                Err(Closed::Failed(text)) if text.starts_with(&member.address) => why.push(text),
                Err(Closed::Failed(text)) => why.push(format!("{}: {text}", member.address)),
                // A replica may have gone to another shard; a master is what it is.
                Err(Closed::Twice) if member.address != shard.master => {
                    why.push(format!("{}: it is of another shard", member.address));
                }
                other => return other,
            }
        }
        Err(Closed::Failed(why.join("; ")))
    }

    fn open(&self, member: &Member, master: &str) -> Result<Server, Closed> {
        let said = |e: Error| Closed::Failed(format!("{}{}", e.message, hint(&e)));
        // SELECT comes with each step that needs it.
        let target = Target { db: 0, ..self.deployment.target_of(member) };
        let mut connection = ReadOnly::open_for_keys(&target, &self.settings.options).map_err(said)?;
        let info = Info::parse(&connection.call(&["INFO"]).map_err(said)?.text().unwrap_or_default());
        if let Some(why) = unfit(&info) {
            return Err(Closed::Failed(why.into()));
        }
        let id = |name: &str| info.get(name).unwrap_or_default().to_string();
        let (run_id, replid, replid2) = (id("run_id"), id("master_replid"), id("master_replid2"));
        let data = if replid.is_empty() { run_id.clone() } else { replid.clone() };
        if !data.is_empty() {
            let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
            if claimed.entry(data).or_insert_with(|| master.to_string()) != master {
                return Err(Closed::Twice);
            }
        }
        if self.deployment.kind == DeploymentKind::Cluster {
            // Also to a master: it may become a replica meanwhile.
            connection.call(&["READONLY"]).map_err(said)?;
            self.learn_slots(&mut connection);
        }
        // One that does not exist has no keys either.
        if let Some(database) = self.scan().database {
            connection.call(&["SELECT", &database.to_string()]).map_err(said)?;
            connection.call(&["SELECT", "0"]).map_err(said)?;
        }
        let mut refused = BTreeMap::new();
        if info.redis_level() >= (7, 2)
            && let Err(e) = connection.call(&["CLIENT", "NO-TOUCH", "ON"])
        {
            refused.insert("CLIENT NO-TOUCH", e.message);
        }
        let mut questions = self.scan().questions;
        let policy = info.get("maxmemory_policy").unwrap_or("unknown").to_string();
        if questions.heat && !policy.ends_with("lfu") {
            questions.heat = false;
            let level = if info.product() == "Valkey" { (0, 0) } else { info.redis_level() };
            if !self.settings.tracked.contains(&run_id) && level < (8, 6) {
                self.note(format!(
                    "{}: it counts uses of keys only with an LFU policy, and maxmemory-policy is {policy}; CONFIG SET \
                     maxmemory-policy allkeys-lfu starts the count (it evicts keys if maxmemory is set). From \
                     Redis 8.6 on, HOTKEYS counts with any policy",
                    member.address
                ));
            }
        }
        let spent_us = spent_us(&mut connection);
        let mut server = Server {
            address: member.address.clone(),
            role: member.role,
            connection,
            questions,
            database: 0,
            parts: Vec::new(),
            spent_us,
            refused,
            moved: 0,
            step: Instant::now(),
        };
        self.join(&mut server, master, &info, &run_id, [&replid, &replid2]);
        Ok(server)
    }

    /// Learns which masters own no slots.
    fn learn_slots(&self, connection: &mut ReadOnly) {
        let mut slotless = self.slotless.lock().unwrap_or_else(PoisonError::into_inner);
        if slotless.is_none()
            && let Ok(text) = connection.call(&["CLUSTER", "NODES"])
            && let Ok(view) = ClusterView::parse(&text.text().unwrap_or_default())
        {
            let without = view.nodes.into_iter().filter(|node| node.is("master") && node.slots.is_empty());
            *slotless = Some(without.map(|node| node.address).collect());
        }
    }

    /// Adds the databases that have keys to the scan, or finds them there.
    fn join(&self, server: &mut Server, master: &str, info: &Info, run_id: &str, replids: [&str; 2]) {
        let mut scan = self.scan();
        let mut all = databases(info);
        all.retain(|(database, _)| scan.database.is_none_or(|wanted| wanted == *database));
        if all.len() > DATABASES {
            all.truncate(DATABASES);
            self.note(format!("{} has more than {DATABASES} databases with keys; no others were seen", server.address));
        }
        scan.leave(master);
        let names: Vec<u32> = all.iter().map(|(database, _)| *database).collect();
        scan.keep_databases(&server.address, run_id, &names);
        for (database, keys) in all {
            let wanted = Part {
                shard: master.to_string(),
                server: server.address.clone(),
                run_id: run_id.to_string(),
                replid: replids[0].to_string(),
                database,
                keys,
                scanned: 0,
                gone: 0,
                cursor: "0".into(),
                is_done: false,
                is_here: false,
            };
            let (at, has_lost) = scan.claim(wanted, &replids);
            if has_lost {
                self.note(format!(
                    "database {database} of {master} is walked from its beginning: the saved part was of another \
                     server, or of this one before it was restarted"
                ));
            }
            server.parts.push(at);
            if let Some(sizes) = sizes(info, database) {
                self.walked().sizes.insert(at, sizes);
            }
        }
    }

    /// Walks the server's parts in turn, the one that is least seen first.
    fn parts(&self, server: &mut Server) -> Result<(), Error> {
        let rate = self.settings.rate;
        let step = ((rate / STEPS) as u64).clamp(*STEP.start(), *STEP.end());
        let mut counted = Instant::now();
        while !self.should_end() {
            let next = {
                let scan = self.scan();
                let open = server.parts.iter().copied().filter(|at| !scan.parts[*at].is_done);
                let share = |at: &usize| scan.parts[*at].sample().share();
                let next = open.min_by(|a, b| share(a).total_cmp(&share(b)));
                next.map(|at| (at, scan.parts[at].database, scan.parts[at].cursor.clone()))
            };
            let Some((part, database, cursor)) = next else { return Ok(()) };
            server.step = Instant::now();
            if counted.elapsed() > RECOUNT {
                self.recount(server)?;
                counted = Instant::now();
            }
            match server.select(database) {
                Err(e) if !e.is_fatal() && !is_passing(&e) => {
                    self.note(format!("database {database} of {}: {}{}", server.address, e.message, hint(&e)));
                    server.parts.retain(|at| *at != part);
                    continue;
                }
                other => other?,
            }
            let (cursor, handed, keys) = server.step(&cursor, step)?;
            let took = server.step.elapsed();
            self.scan().add(part, &cursor, handed, &keys, |name| self.settings.salt.hide(name));
            let by_rate = Duration::from_secs_f64(handed.max(1) as f64 / rate).saturating_sub(took);
            self.rest(by_rate.max(took * REST));
        }
        Ok(())
    }

    /// How many keys there are changes as it walks.
    fn recount(&self, server: &mut Server) -> Result<(), Error> {
        let info = Info::parse(&server.connection.call(&["INFO", "keyspace"])?.text().unwrap_or_default());
        let all: BTreeMap<u32, u64> = databases(&info).into_iter().collect();
        let mut scan = self.scan();
        for at in &server.parts {
            let part = &mut scan.parts[*at];
            if !part.is_done {
                part.keys = all.get(&part.database).copied().unwrap_or(0);
            }
        }
        Ok(())
    }

    fn count(&self, server: &mut Server, begun: Instant) {
        for (question, why) in std::mem::take(&mut server.refused) {
            self.note(format!("{}: {question} was refused, so what it tells is not known: {why}", server.address));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let after = spent_us(&mut server.connection);
        let spent = server.spent_us.zip(after).map(|(before, after)| after.saturating_sub(before) as f64 / 1e6);
        self.walked().add(Cost {
            server: server.address.clone(),
            role: server.role,
            commands: server.connection.commands,
            seconds,
            core_share_in_commands: spent.map(|spent| spent / seconds.max(1e-3)),
        });
    }
}

impl Server {
    fn select(&mut self, database: u32) -> Result<(), Error> {
        if self.database != database {
            self.connection.call(&["SELECT", &database.to_string()])?;
            self.database = database;
        }
        Ok(())
    }

    /// One SCAN, and what is asked about its keys: the new cursor, how many keys were handed out, and those that are
    /// still there.
    fn step(&mut self, cursor: &str, count: u64) -> Result<(String, u64, Vec<Key>), Error> {
        let answer = self.connection.call(&["SCAN", cursor, "COUNT", &count.to_string()])?;
        let unreadable =
            || Error::new(ErrorKind::Reply, "SCAN was answered with something else than a cursor and keys");
        let [next, names] = answer.items() else { return Err(unreadable()) };
        let next = next.text().filter(|c| c.len() <= 20 && !c.is_empty() && c.bytes().all(|b| b.is_ascii_digit()));
        let next = next.ok_or_else(unreadable)?;
        let names: Vec<&[u8]> = names.items().iter().filter_map(bytes).collect();
        let mut keys = Vec::new();
        let mut is_moved = names.len() >= *STEP.start() as usize;
        for some in names.chunks(*STEP.end() as usize) {
            let short: Vec<&[u8]> = some.iter().copied().filter(|name| name.len() <= LONGEST_NAME).collect();
            if short.len() < some.len() {
                self.refused.entry("names").or_insert_with(|| format!("some are longer than {LONGEST_NAME} bytes"));
            }
            is_moved &= !self.describe(&short, &mut keys)?;
        }
        self.moved = if is_moved && keys.is_empty() { self.moved + 1 } else { 0 };
        if self.moved > MOVED {
            return Err(Error::new(ErrorKind::Closed, "its slots have moved to other servers"));
        }
        Ok((next, names.len() as u64, keys))
    }

    /// Adds what is known of keys that are there. Whether one of them was not said to have moved.
    fn describe(&mut self, names: &[&[u8]], keys: &mut Vec<Key>) -> Result<bool, Error> {
        // What looks at a key comes before what uses it.
        let mut questions: Vec<&[&[u8]]> = Vec::new();
        questions.extend(self.questions.heat.then_some(HEAT));
        questions.push(&[b"TYPE"]);
        questions.push(&[b"PTTL"]);
        questions.extend(self.questions.memory.then_some(MEMORY));
        let command = |words: &[&[u8]], name: &[u8]| -> Vec<Vec<u8>> {
            words.iter().copied().chain([name]).map(<[u8]>::to_vec).collect()
        };
        let all: Vec<Vec<Vec<u8>>> =
            names.iter().flat_map(|name| questions.iter().map(|words| command(words, name))).collect();
        let mut answers = if all.is_empty() { Vec::new() } else { self.connection.pipeline(&all)? }.into_iter();
        let (mut stays, from) = (false, keys.len());
        for name in names {
            let mut next = |asked: bool| if asked { answers.next() } else { None };
            let (heat, kind) = (next(self.questions.heat), next(true));
            let (ttl, memory) = (next(true), next(self.questions.memory));
            let kind = match kind {
                Some(Ok(kind)) => kind.text().unwrap_or_default(),
                Some(Err(e)) if e.redirect().is_some() => continue,
                Some(Err(e)) => return Err(e),
                None => continue,
            };
            stays = true;
            let ttl = self.integer("PTTL", ttl);
            // Gone since SCAN: deleted, or expired.
            if kind == "none" || ttl == Some(-2) || kind.is_empty() {
                continue;
            }
            let ttl = ttl.map_or(Ttl::Unknown, |ms| u64::try_from(ms).map_or(Ttl::Lasting, Ttl::Ms));
            let unsigned = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
            let heat = unsigned(heat.and_then(|heat| self.integer("OBJECT FREQ", Some(heat))));
            let memory = unsigned(memory.and_then(|memory| self.integer("MEMORY USAGE", Some(memory))));
            keys.push(Key { name: name.to_vec(), kind, length: None, memory, ttl, heat });
        }
        self.measure(&mut keys[from..])?;
        Ok(stays)
    }

    /// The number of an answer. A refusal is remembered, once for each question.
    fn integer(&mut self, question: &'static str, answer: Option<Result<Value, Error>>) -> Option<i64> {
        match answer? {
            Ok(value) => value.integer(),
            Err(e) => {
                // Gone, or moved: TYPE was asked a moment earlier.
                if e.redirect().is_none() && e.code() != Some("WRONGTYPE") && !e.message.contains("no such key") {
                    self.refused.entry(question).or_insert(e.message);
                }
                None
            }
        }
    }

    fn measure(&mut self, keys: &mut [Key]) -> Result<(), Error> {
        let (mut commands, mut of) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter().enumerate() {
            let Some(question) = length_of(&key.kind) else { continue };
            commands.push(vec![question.as_bytes().to_vec(), key.name.clone()]);
            of.push((at, question));
        }
        if commands.is_empty() {
            return Ok(());
        }
        for ((at, question), answer) in of.into_iter().zip(self.connection.pipeline(&commands)?) {
            keys[at].length = self.integer(question, Some(answer)).and_then(|n| u64::try_from(n).ok());
        }
        Ok(())
    }
}

/// What passes by itself: a long script, a data set that is being read, a master that is away, a cluster that is down.
fn is_passing(e: &Error) -> bool {
    e.kind == ErrorKind::Loading
        || matches!(e.code(), Some("BUSY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"))
}

/// What tells the length of a key of this type, in constant time.
fn length_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "string" => "STRLEN",
        "list" => "LLEN",
        "hash" => "HLEN",
        "set" => "SCARD",
        "zset" => "ZCARD",
        "stream" => "XLEN",
        _ => return None,
    })
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Text(bytes) => Some(bytes),
        _ => None,
    }
}

/// What the server has spent on commands as ours, in us, whoever sent them.
fn spent_us(connection: &mut ReadOnly) -> Option<u64> {
    let info = Info::parse(&connection.call(&["INFO", "commandstats"]).ok()?.text()?);
    let stats = info.command_stats();
    Some(OURS.iter().filter_map(|name| stats.get(name)).map(|stat| stat.usec).sum())
}

/// Why keys of this server would not be those of its shard.
fn unfit(info: &Info) -> Option<&'static str> {
    if info.get("loading").is_some_and(|n| n != "0") {
        return Some("it is loading its data set");
    }
    if info.role() == Some("slave") && info.get("master_link_status") != Some("up") {
        return Some("its link to the master is down");
    }
    None
}

/// Databases with keys, and how many.
fn databases(info: &Info) -> Vec<(u32, u64)> {
    let of = |(name, text): (&str, &str)| {
        let keys = text.split(',').find_map(|part| part.strip_prefix("keys="))?;
        Some((name.parse().ok()?, keys.parse::<u64>().ok()?.min(MOST_KEYS)))
    };
    info.prefixed("db").filter_map(of).collect()
}

/// What to type where rights are missing.
fn hint(e: &Error) -> &'static str {
    if e.kind == ErrorKind::Denied { " (unslow keys --print-acl prints the user that may)" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_with_keys_are_read_from_info() {
        let text = "# Keyspace\r\ndb0:keys=5,expires=1,avg_ttl=0\r\ndb11:keys=7,expires=0\r\ndbx:keys=1\r\n\
                    db_size:3\r\n";
        let mut all = databases(&Info::parse(text));
        all.sort();
        assert_eq!(all, [(0, 5), (11, 7)]);
    }

    #[test]
    fn a_replica_that_does_not_follow_is_not_walked() {
        let of = |text: &str| unfit(&Info::parse(text)).is_some();
        assert!(!of("role:master\r\nloading:0\r\n"));
        assert!(of("role:master\r\nloading:1\r\n"));
        assert!(!of("role:slave\r\nmaster_link_status:up\r\n"));
        assert!(of("role:slave\r\nmaster_link_status:down\r\n"));
        assert!(of("role:slave\r\n"));
    }
}
