//! Which keys a server works for most, by its own count: HOTKEYS, since Redis 8.6.
//!
//! The server counts for a while what each command on a key takes of its main thread and of the network. It has one
//! such session at a time; one that is not ours is read, after our time if it still runs, and left as it is. A session
//! of ours ends by itself if we cannot end it. Source: <https://redis.io/docs/latest/commands/hotkeys/>.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use unslow_client::{Deployment, Error, ErrorKind, Options, ReadOnly, Target, Value};
use unslow_probe::Salt;
use unslow_topology::{Info, Member, Role};

use crate::patterns::places;

/// Keys that are asked for; no server lists more.
const KEYS: usize = 64;
/// A session that we cannot end stops by itself this much later than planned, in seconds.
const SPARE_S: f64 = 5.0;
/// How often it says that it is there.
const ALIVE: Duration = Duration::from_secs(1);
/// Connections that are opened again for one question.
const TRIES: u32 = 3;
/// Added to errors after it has begun.
const LEFT: &str = "its HOTKEYS session may still be there: HOTKEYS STOP and HOTKEYS RESET discard it";
/// How often it looks whether it should end.
const SLICE: Duration = Duration::from_millis(50);
/// Bytes of a name; a longer one is left out.
const LONGEST_NAME: usize = 64 << 10;

/// What came of it.
#[derive(Debug, Default)]
pub struct Hot {
    pub servers: Vec<Tracked>,
    /// What stayed unknown, and why.
    pub notes: Vec<String>,
}

/// One session at one server.
#[derive(Clone, Debug, PartialEq)]
pub struct Tracked {
    pub server: String,
    /// Of the server's process: it may have several addresses.
    pub run_id: String,
    /// Whether it was started by this run.
    pub is_ours: bool,
    /// Unix time in ms.
    pub started_ms: u64,
    pub seconds: f64,
    /// Whether it counts in all slots.
    pub is_whole: bool,
    /// What all commands took of the main thread, in us.
    pub commands_us: u64,
    /// What all commands received and sent.
    pub net_bytes: u64,
    /// Which of the two it counts for each key.
    pub counts_cpu: bool,
    pub counts_net: bool,
    pub keys: Vec<HotKey>,
}

/// What commands on one key took.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    /// As it may be printed.
    pub name: String,
    /// Its name without ids, by which its pattern is found.
    pub places: Vec<String>,
    /// `None`: it is not among the first by this figure.
    pub cpu_us: Option<u64>,
    pub net_bytes: Option<u64>,
}

/// Says whether it should end.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// Has every master that can count for `length`, all at the same time, and asks each for its first 64 keys.
pub fn track(deployment: &Deployment, options: &Options, length: Duration, salt: &Salt, stop: Stop) -> Hot {
    let masters: Vec<&Member> = deployment.members.iter().filter(|m| m.role == Role::Master).collect();
    let (known, hot) = (Mutex::new(BTreeSet::new()), Mutex::new(Hot::default()));
    let one = |master: &Member| {
        let target = Target { db: 0, ..deployment.target_of(master) };
        let mut count = Count { target: &target, options, length, stop, run_id: String::new(), notes: Vec::new() };
        let found = count.run(&known);
        let mut hot = hot.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = match found {
            Ok(Some((is_ours, session))) => {
                if !is_ours {
                    count.notes.push(session.told());
                }
                hot.servers.push(session.tracked(&master.address, count.run_id, is_ours, salt));
                None
            }
            Ok(None) => None,
            Err(e) => Some(format!("no hot keys: {}{}", e.message, hint(&e))),
        };
        hot.notes.extend(count.notes.into_iter().chain(failed).map(|text| format!("{}: {text}", master.address)));
    };
    std::thread::scope(|scope| {
        for master in &masters {
            if let Err(e) = std::thread::Builder::new().spawn_scoped(scope, || one(master)) {
                let mut hot = hot.lock().unwrap_or_else(PoisonError::into_inner);
                hot.notes.push(format!("{}: no hot keys: no thread could be started: {e}", master.address));
            }
        }
    });
    let mut hot = hot.into_inner().unwrap_or_else(PoisonError::into_inner);
    hot.servers.sort_by(|a, b| a.server.cmp(&b.server));
    hot.notes.sort();
    hot
}

/// One master.
struct Count<'a> {
    target: &'a Target,
    options: &'a Options,
    length: Duration,
    stop: Stop<'a>,
    run_id: String,
    notes: Vec<String>,
}

impl Count<'_> {
    /// Whether the session was ours, and what it showed. `None` where the server has no HOTKEYS, or another address
    /// has led to it.
    fn run(&mut self, known: &Mutex<BTreeSet<String>>) -> Result<Option<(bool, Session)>, Error> {
        let mut connection = ReadOnly::open_for_hot_keys(self.target, self.options)?;
        let info = Info::parse(&connection.call(&["INFO", "server"])?.text().unwrap_or_default());
        if info.product() == "Valkey" || info.redis_level() < (8, 6) {
            return Ok(None);
        }
        self.run_id = info.get("run_id").unwrap_or_default().to_string();
        let is_new = known.lock().unwrap_or_else(PoisonError::into_inner).insert(self.run_id.clone());
        if !self.run_id.is_empty() && !is_new {
            return Ok(None);
        }
        // START would discard what an earlier session has found.
        if let Some(there) = session(&connection.call(&["HOTKEYS", "GET"])?)? {
            if there.is_active {
                self.wait(&mut connection);
            }
            let now = self.shown(&mut connection).ok().flatten();
            return Ok(Some((false, now.unwrap_or(there))));
        }
        let seconds = (self.length.as_secs_f64() + SPARE_S).ceil().clamp(1.0, 1e6) as u64;
        let (count, seconds) = (KEYS.to_string(), seconds.to_string());
        let start = ["HOTKEYS", "START", "METRICS", "2", "CPU", "NET", "COUNT", &count, "DURATION", &seconds];
        match connection.call(&start) {
            // It has not begun.
            Err(e) if !e.is_fatal() => Err(e),
            // Whether it has is not known where no answer came.
            Err(e) => Err(left(e)),
            Ok(_) => self.finish(&mut connection).map_err(left),
        }
    }

    /// Of a session that has begun.
    fn finish(&mut self, connection: &mut ReadOnly) -> Result<Option<(bool, Session)>, Error> {
        let ours = self.shown(connection)?.map(|session| session.started_ms);
        self.wait(connection);
        let Some(found) = self.shown(connection)? else {
            self.notes.push("its HOTKEYS session was discarded by another client before it was read".into());
            return Ok(None);
        };
        if Some(found.started_ms) != ours {
            // It took the place of ours.
            return Ok(Some((false, found)));
        }
        let stopped = self.again(connection, &["HOTKEYS", "STOP"]);
        let last = self.shown(connection).ok().flatten();
        // From here on nothing that went wrong loses what was read.
        let is_ours = last.as_ref().is_none_or(|last| Some(last.started_ms) == ours);
        let reset = if is_ours { self.again(connection, &["HOTKEYS", "RESET"]).map(drop) } else { Ok(()) };
        if let Err(e) = stopped.and(reset) {
            self.notes.push(left(e).message);
        }
        Ok(Some((true, last.filter(|_| is_ours).unwrap_or(found))))
    }

    fn shown(&self, connection: &mut ReadOnly) -> Result<Option<Session>, Error> {
        session(&self.again(connection, &["HOTKEYS", "GET"])?)
    }

    /// Until the time is over, with a sign of life now and then: the server may close idle connections.
    fn wait(&self, connection: &mut ReadOnly) {
        let until = Instant::now() + self.length;
        let mut alive = Instant::now();
        while Instant::now() < until && !(self.stop)() {
            std::thread::sleep(SLICE.min(until.saturating_duration_since(Instant::now())));
            if alive.elapsed() > ALIVE {
                // If it is lost, a new one is opened at the end.
                let _ = connection.call(&["PING"]);
                alive = Instant::now();
            }
        }
    }

    /// One question, over a new connection if this one is lost.
    fn again(&self, connection: &mut ReadOnly, words: &[&str]) -> Result<Value, Error> {
        let mut tries = 0;
        loop {
            match connection.call(words) {
                Err(e) if e.is_fatal() && tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(SLICE * 10);
                    if let Ok(other) = ReadOnly::open_for_hot_keys(self.target, self.options) {
                        *connection = other;
                    }
                }
                other => return other,
            }
        }
    }
}

/// With what is left to do by hand.
fn left(e: Error) -> Error {
    Error::new(e.kind, format!("{}; {LEFT}", e.message))
}

/// What HOTKEYS GET says.
#[derive(Debug, Default, PartialEq)]
struct Session {
    is_active: bool,
    sample_ratio: u64,
    /// Whether it counts in some slots only.
    is_partial: bool,
    commands_us: u64,
    net_bytes: u64,
    started_ms: u64,
    duration_ms: u64,
    /// `None` where it does not count this.
    by_us: Option<Vec<(Vec<u8>, u64)>>,
    by_bytes: Option<Vec<(Vec<u8>, u64)>>,
}

/// `None` where there is no session.
fn session(answer: &Value) -> Result<Option<Session>, Error> {
    if matches!(answer, Value::Null) {
        return Ok(None);
    }
    let unreadable =
        || Error::new(ErrorKind::Reply, "HOTKEYS GET was answered with something else than figures of a session");
    // A list of one map.
    let [Value::Array(pairs)] = answer.items() else { return Err(unreadable()) };
    let mut session = Session::default();
    for pair in pairs.chunks_exact(2) {
        let number = || pair[1].integer().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        match pair[0].text().as_deref() {
            Some("tracking-active") => session.is_active = number() == 1,
            Some("sample-ratio") => session.sample_ratio = number(),
            Some("all-commands-all-slots-us") => session.commands_us = number(),
            Some("net-bytes-all-commands-all-slots") => session.net_bytes = number(),
            Some("collection-start-time-unix-ms") => session.started_ms = number(),
            Some("collection-duration-ms") => session.duration_ms = number(),
            // It counts these only where some slots were chosen.
            Some("all-commands-selected-slots-us" | "net-bytes-all-commands-selected-slots") => {
                session.is_partial = true;
            }
            Some("by-cpu-time-us") => session.by_us = Some(keys(&pair[1])),
            Some("by-net-bytes") => session.by_bytes = Some(keys(&pair[1])),
            _ => {}
        }
    }
    if session.by_us.is_some() || session.by_bytes.is_some() { Ok(Some(session)) } else { Err(unreadable()) }
}

/// Names and figures in turn.
fn keys(list: &Value) -> Vec<(Vec<u8>, u64)> {
    let key = |pair: &[Value]| match &pair[0] {
        Value::Text(name) if name.len() <= LONGEST_NAME => {
            Some((name.clone(), pair[1].integer().and_then(|n| u64::try_from(n).ok())?))
        }
        _ => None,
    };
    list.items().chunks_exact(2).filter_map(key).take(KEYS).collect()
}

impl Session {
    fn tracked(self, server: &str, run_id: String, is_ours: bool, salt: &Salt) -> Tracked {
        let (counts_cpu, counts_net) = (self.by_us.is_some(), self.by_bytes.is_some());
        // The server counts one command in `sample_ratio`.
        let scaled = |n: u64| n.saturating_mul(self.sample_ratio.max(1));
        let mut all: BTreeMap<Vec<u8>, (Option<u64>, Option<u64>)> = BTreeMap::new();
        for (name, us) in self.by_us.into_iter().flatten() {
            all.entry(name).or_default().0 = Some(scaled(us));
        }
        for (name, bytes) in self.by_bytes.into_iter().flatten() {
            all.entry(name).or_default().1 = Some(scaled(bytes));
        }
        let key = |(name, (cpu_us, net_bytes)): (Vec<u8>, _)| HotKey {
            name: salt.hide(&name),
            places: places(&name),
            cpu_us,
            net_bytes,
        };
        Tracked {
            server: server.to_string(),
            run_id,
            is_ours,
            started_ms: self.started_ms,
            is_whole: !self.is_partial,
            counts_cpu,
            counts_net,
            seconds: self.duration_ms as f64 / 1000.0,
            commands_us: self.commands_us,
            net_bytes: self.net_bytes,
            keys: all.into_iter().map(key).collect(),
        }
    }

    /// Of a session that is not ours.
    fn told(&self) -> String {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let ago_s = now_ms.saturating_sub(self.started_ms) as f64 / 1000.0;
        let state = if self.is_active { "is still running" } else { "has ended" };
        let sampled = match self.sample_ratio {
            0 | 1 => String::new(),
            n => format!("; it samples one command in {n}"),
        };
        let slots = if self.is_partial { "; it counts some slots only" } else { "" };
        format!(
            "the hot keys are those of another client's HOTKEYS session, which was started {} ago and \
             {state}{sampled}{slots}. To count afresh, discard it (HOTKEYS STOP, HOTKEYS RESET) and run this again",
            unslow_units::time_rough_s(ago_s)
        )
    }
}

/// What to type where rights are missing.
fn hint(e: &Error) -> &'static str {
    if e.kind == ErrorKind::Denied { " (unslow keys --hot --print-acl prints the user that may)" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    fn map(pairs: &[(&str, Value)]) -> Value {
        Value::Array(vec![Value::Array(pairs.iter().flat_map(|(name, value)| [text(name), value.clone()]).collect())])
    }

    /// As Redis 8.10.2 has answered.
    fn answer() -> Value {
        map(&[
            ("tracking-active", Value::Integer(1)),
            ("sample-ratio", Value::Integer(1)),
            ("selected-slots", Value::Array(vec![Value::Array(vec![Value::Integer(0), Value::Integer(16383)])])),
            ("all-commands-all-slots-us", Value::Integer(30)),
            ("net-bytes-all-commands-all-slots", Value::Integer(810)),
            ("collection-start-time-unix-ms", Value::Integer(1_795_817_952_597)),
            ("collection-duration-ms", Value::Integer(2500)),
            ("total-cpu-time-user-ms", Value::Integer(0)),
            ("total-cpu-time-sys-ms", Value::Integer(0)),
            ("total-net-bytes", Value::Integer(810)),
            ("by-cpu-time-us", Value::Array(vec![text("user:17"), Value::Integer(20), text("b"), Value::Integer(10)])),
            ("by-net-bytes", Value::Array(vec![text("user:17"), Value::Integer(810)])),
        ])
    }

    #[test]
    fn a_session_is_read() {
        let session = session(&answer()).unwrap().unwrap();
        assert!(session.is_active && !session.is_partial);
        let tracked = session.tracked("s", "id".into(), true, &Salt::new(true));
        assert_eq!((tracked.commands_us, tracked.net_bytes, tracked.seconds), (30, 810, 2.5));
        let [b, user] = &tracked.keys[..] else { panic!("{tracked:?}") };
        assert_eq!((user.cpu_us, user.net_bytes), (Some(20), Some(810)));
        assert_eq!((b.cpu_us, b.net_bytes), (Some(10), None));
        assert_eq!(user.places, ["user:", "*"]);
    }

    #[test]
    fn what_is_no_session_is_none() {
        assert_eq!(session(&Value::Null).unwrap(), None);
        let hostile = [
            Value::Integer(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Null]),
            Value::Array(vec![Value::Array(vec![text("by-cpu-time-us")])]),
            map(&[("tracking-active", Value::Integer(1))]),
        ];
        for answer in hostile {
            assert!(session(&answer).is_err(), "{answer:?}");
        }
        let long = Value::Array(vec![Value::Text(vec![b'x'; LONGEST_NAME + 1]), Value::Integer(5)]);
        let negative = Value::Array(vec![text("a"), Value::Integer(-5), Value::Integer(1), Value::Integer(1)]);
        let many = Value::Array((0..1000).flat_map(|n| [text(&n.to_string()), Value::Integer(n)]).collect());
        for (list, kept) in [(long, 0), (negative, 0), (many, KEYS)] {
            assert_eq!(session(&map(&[("by-cpu-time-us", list)])).unwrap().unwrap().by_us.unwrap().len(), kept);
        }
    }

    #[test]
    fn a_sample_is_scaled_and_what_was_not_counted_is_known() {
        let pairs =
            [("sample-ratio", Value::Integer(10)), ("by-net-bytes", Value::Array(vec![text("a"), Value::Integer(7)]))];
        let tracked = session(&map(&pairs)).unwrap().unwrap().tracked("s", "id".into(), false, &Salt::new(true));
        assert_eq!((tracked.keys[0].net_bytes, tracked.counts_cpu, tracked.counts_net), (Some(70), false, true));
        let slots = [("all-commands-selected-slots-us", Value::Integer(5)), pairs[1].clone()];
        assert!(!session(&map(&slots)).unwrap().unwrap().tracked("s", "id".into(), false, &Salt::new(true)).is_whole);
    }

    #[test]
    fn whose_session_it_is_and_what_it_leaves_out_is_said() {
        let other = Session { sample_ratio: 10, is_partial: true, started_ms: 0, ..Session::default() };
        let said = other.told();
        assert!(
            said.contains("has ended; it samples one command in 10; it counts some slots only. To count"),
            "{said}"
        );
        let said = session(&answer()).unwrap().unwrap().told();
        assert!(said.contains(" ago and is still running. To count afresh"), "{said}");
    }
}
