//! The walk itself: one thread for each shard, SCAN and questions about each key, in measured steps.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unslow_client::{Deployment, Error, ErrorKind, Options, ReadOnly, Value};
use unslow_probe::Salt;
use unslow_topology::{DeploymentKind, Info, Role};

use crate::places::{Shard, shards};
use crate::scan::{Key, Part, Questions, Scan};
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
    let shards = shards(&deployment.members, settings.on_masters || scan.questions.heat, &before);
    let shared = Shared { deployment, settings, scan: Mutex::new(scan), walked: Mutex::default(), stop };
    let is_its = |shard: &Shard, part: &Part| {
        shard.master == part.shard || shard.servers.iter().any(|member| member.address == part.server)
    };
    let gone = shared.scan().keep(|part| shards.iter().any(|shard| is_its(shard, part)));
    if !gone.is_empty() {
        shared.note(format!("what was seen of {} before is left out: the deployment has changed", gone.join(", ")));
    }
    if shards.is_empty() {
        shared.walked.lock().unwrap_or_else(PoisonError::into_inner).missed += 1;
        shared.note("no master is known, so no keys were looked at".into());
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = shards.iter().map(|shard| scope.spawn(|| shared.shard(shard))).collect();
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(SLICE);
            let scan = shared.scan();
            progress(scan.parts.iter().map(|p| p.scanned).sum(), scan.parts.iter().map(|p| p.keys).sum());
        }
    });
    shared.walked.into_inner().unwrap_or_else(PoisonError::into_inner)
}

struct Shared<'a, 's> {
    deployment: &'a Deployment,
    settings: &'a Settings,
    scan: Mutex<&'s mut Scan>,
    walked: Mutex<Walked>,
    stop: &'a (dyn Fn() -> bool + Sync),
}

/// A server that is walked.
struct Server {
    address: String,
    role: Role,
    run_id: String,
    connection: ReadOnly,
    questions: Questions,
    /// What SELECT chose.
    database: u32,
    /// Parts of the scan that are its.
    parts: Vec<usize>,
    /// Its own count of time spent on our commands before us, in us.
    spent_us: u64,
}

impl<'s> Shared<'_, 's> {
    fn scan(&self) -> MutexGuard<'_, &'s mut Scan> {
        self.scan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, text: String) {
        let mut walked = self.walked.lock().unwrap_or_else(PoisonError::into_inner);
        if !walked.notes.contains(&text) {
            walked.notes.push(text);
        }
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

    fn shard(&self, shard: &Shard) {
        let mut lost = 0;
        while !self.should_end() {
            let Some(mut server) = self.server(shard) else { return };
            let before = self.scanned(&server);
            let begun = Instant::now();
            let ended = self.parts(&mut server);
            self.count(&mut server, begun);
            match ended {
                Ok(()) => return,
                Err(e) if e.is_fatal() && lost < TRIES => {
                    lost = if self.scanned(&server) > before { 1 } else { lost + 1 };
                    self.rest(Duration::from_millis(200 << lost));
                }
                Err(e) => return self.note(format!("{}: {}{}", server.address, e.message, hint(&e))),
            }
        }
    }

    fn scanned(&self, server: &Server) -> u64 {
        let scan = self.scan();
        server.parts.iter().map(|at| scan.parts[*at].scanned).sum()
    }

    /// The first server of a shard that can be walked, with its parts in the scan.
    fn server(&self, shard: &Shard) -> Option<Server> {
        let mut why = Vec::new();
        for member in &shard.servers {
            match self.open(member, &shard.master) {
                Ok(server) => return Some(server),
                Err(text) => why.push(format!("{}: {text}", member.address)),
            }
        }
        self.walked.lock().unwrap_or_else(PoisonError::into_inner).missed += 1;
        self.note(format!("keys of {} were not looked at: {}", shard.master, why.join("; ")));
        None
    }

    fn open(&self, member: &unslow_topology::Member, master: &str) -> Result<Server, String> {
        let said = |e: Error| format!("{}{}", e.message, hint(&e));
        let target = self.deployment.target_of(member);
        let mut connection = ReadOnly::open_for_keys(&target, &self.settings.options).map_err(said)?;
        let info = Info::parse(&connection.call(&["INFO"]).map_err(said)?.text().unwrap_or_default());
        if let Some(why) = unfit(&info) {
            return Err(why.into());
        }
        if self.deployment.kind == DeploymentKind::Cluster && member.role == Role::Replica {
            connection.call(&["READONLY"]).map_err(said)?;
        }
        if info.redis_level() >= (7, 2) {
            // Where it is denied, keys that are looked at count as used.
            let _ = connection.call(&["CLIENT", "NO-TOUCH", "ON"]);
        }
        let mut questions = self.scan().questions;
        let policy = info.get("maxmemory_policy").unwrap_or("unknown").to_string();
        if questions.heat && !policy.ends_with("lfu") {
            questions.heat = false;
            self.note(format!(
                "{}: it counts uses of keys only with an LFU policy, and maxmemory-policy is {policy}; CONFIG SET \
                 maxmemory-policy allkeys-lfu starts the count (it evicts keys if maxmemory is set)",
                member.address
            ));
        }
        let run_id = info.get("run_id").unwrap_or_default().to_string();
        let spent_us = spent_us(&mut connection).unwrap_or_default();
        let mut server = Server {
            address: member.address.clone(),
            role: member.role,
            run_id,
            connection,
            questions,
            database: 0,
            parts: Vec::new(),
            spent_us,
        };
        self.join(&mut server, master, &info);
        Ok(server)
    }

    /// Adds the databases that have keys to the scan, or finds them there.
    fn join(&self, server: &mut Server, master: &str, info: &Info) {
        let mut scan = self.scan();
        for (database, keys) in databases(info) {
            if scan.database.is_some_and(|wanted| wanted != database) {
                continue;
            }
            let wanted = Part {
                shard: master.to_string(),
                server: server.address.clone(),
                run_id: server.run_id.clone(),
                database,
                keys,
                scanned: 0,
                gone: 0,
                cursor: "0".into(),
                is_done: false,
            };
            let (at, has_lost) = scan.part(wanted);
            if has_lost {
                self.note(format!(
                    "database {database} of {master} begins again: what was seen before was seen at another server, or \
                     before a restart"
                ));
            }
            server.parts.push(at);
        }
    }

    /// Walks the server's parts in turn, the one that is least seen first.
    fn parts(&self, server: &mut Server) -> Result<(), Error> {
        let rate = self.settings.rate;
        let step = ((rate / STEPS) as u64).clamp(*STEP.start(), *STEP.end());
        while !self.should_end() {
            let next = {
                let scan = self.scan();
                let open = server.parts.iter().copied().filter(|at| !scan.parts[*at].is_done);
                let share = |at: &usize| scan.parts[*at].sample().share();
                let next = open.min_by(|a, b| share(a).total_cmp(&share(b)));
                next.map(|at| (at, scan.parts[at].database, scan.parts[at].cursor.clone()))
            };
            let Some((part, database, cursor)) = next else { return Ok(()) };
            let begun = Instant::now();
            let (cursor, handed, keys) = server.step(database, &cursor, step)?;
            let took = begun.elapsed();
            self.scan().add(part, &cursor, handed, &keys, |name| self.settings.salt.hide(name));
            let by_rate = Duration::from_secs_f64(handed.max(1) as f64 / rate).saturating_sub(took);
            self.rest(by_rate.max(took * REST));
        }
        Ok(())
    }

    fn count(&self, server: &mut Server, begun: Instant) {
        let seconds = begun.elapsed().as_secs_f64();
        let Some(after) = spent_us(&mut server.connection) else { return };
        let spent = after.saturating_sub(server.spent_us) as f64 / 1e6;
        let mut walked = self.walked.lock().unwrap_or_else(PoisonError::into_inner);
        walked.costs.push(Cost {
            server: server.address.clone(),
            role: server.role,
            commands: server.connection.commands,
            seconds,
            share_of_core_at_most: spent / seconds.max(1e-3),
        });
    }
}

impl Server {
    /// One SCAN, and what is asked about its keys: the new cursor, how many keys were handed out, and those that are
    /// still there.
    fn step(&mut self, database: u32, cursor: &str, count: u64) -> Result<(String, u64, Vec<Key>), Error> {
        if self.database != database {
            self.connection.call(&["SELECT", &database.to_string()])?;
            self.database = database;
        }
        let answer = self.connection.call(&["SCAN", cursor, "COUNT", &count.to_string()])?;
        let unreadable =
            || Error::new(ErrorKind::Reply, "SCAN was answered with something else than a cursor and keys");
        let [next, names] = answer.items() else { return Err(unreadable()) };
        let next = next.text().filter(|c| c.len() <= 20 && !c.is_empty() && c.bytes().all(|b| b.is_ascii_digit()));
        let next = next.ok_or_else(unreadable)?;
        let names: Vec<&[u8]> = names.items().iter().filter_map(bytes).collect();
        let keys = self.describe(&names)?;
        Ok((next, names.len() as u64, keys))
    }

    fn describe(&mut self, names: &[&[u8]]) -> Result<Vec<Key>, Error> {
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
        let mut answers = self.connection.pipeline(&all)?.into_iter();
        let mut keys = Vec::new();
        for name in names {
            let mut next = |asked: bool| if asked { answers.next() } else { None };
            let heat = next(self.questions.heat).and_then(number);
            let kind = next(true);
            let ttl = next(true).and_then(Result::ok).and_then(|v| v.integer());
            let memory = next(self.questions.memory).and_then(number);
            let kind = match kind {
                Some(Ok(kind)) => kind.text().unwrap_or_default(),
                Some(Err(e)) if e.kind == ErrorKind::Denied => return Err(e),
                _ => continue,
            };
            // Gone since SCAN: deleted, expired, or moved to another node.
            if kind == "none" || ttl == Some(-2) || kind.is_empty() {
                continue;
            }
            let ttl_ms = ttl.and_then(|ms| u64::try_from(ms).ok());
            keys.push(Key { name: name.to_vec(), kind, length: None, memory, ttl_ms, heat });
        }
        self.measure(&mut keys)?;
        Ok(keys)
    }

    fn measure(&mut self, keys: &mut [Key]) -> Result<(), Error> {
        let (mut commands, mut of) = (Vec::new(), Vec::new());
        for (at, key) in keys.iter().enumerate() {
            let Some(question) = length_of(&key.kind) else { continue };
            commands.push(vec![question.as_bytes().to_vec(), key.name.clone()]);
            of.push(at);
        }
        if commands.is_empty() {
            return Ok(());
        }
        for (at, answer) in of.into_iter().zip(self.connection.pipeline(&commands)?) {
            keys[at].length = number(answer);
        }
        Ok(())
    }
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

fn number(answer: Result<Value, Error>) -> Option<u64> {
    answer.ok()?.integer().and_then(|n| u64::try_from(n).ok())
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
        return Some("it reads its data set");
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
        Some((name.parse().ok()?, keys.parse().ok()?))
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
