//! Which keys a server works for most, by its own count: HOTKEYS, since Redis 8.6.
//!
//! The server counts for a while what each command on a key takes of its main thread and of the network. It has one
//! such session at a time; one that somebody has started is read, and left as it is. A session of ours ends by itself
//! if we cannot end it. Source: <https://redis.io/docs/latest/commands/hotkeys/>.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use unslow_client::{Deployment, Error, ErrorKind, Options, ReadOnly, Target, Value};
use unslow_probe::Salt;
use unslow_topology::{Info, Member, Role};

use crate::patterns::places;

/// Keys that are asked for; no server lists more.
const KEYS: usize = 64;
/// How much longer than wanted a session may last if nobody ends it, in seconds.
const SPARE_S: f64 = 5.0;
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
    /// Whether it was started by this run.
    pub is_ours: bool,
    pub seconds: f64,
    /// What all commands took of the main thread, in us.
    pub commands_us: u64,
    /// What all commands received and sent.
    pub net_bytes: u64,
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

/// Has every master that can count for `length`, all at the same time, and asks each for its first 64 keys.
pub fn track(deployment: &Deployment, options: &Options, length: Duration, salt: &Salt, stop: Stop) -> Hot {
    let masters: Vec<&Member> = deployment.members.iter().filter(|m| m.role == Role::Master).collect();
    let (known, hot) = (Mutex::new(BTreeSet::new()), Mutex::new(Hot::default()));
    let one = |master: &Member| {
        let target = Target { db: 0, ..deployment.target_of(master) };
        let found = at(&target, options, length, &known, stop);
        let mut hot = hot.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(Some((is_ours, session))) => {
                if !is_ours {
                    hot.notes.push(session.told(&master.address));
                }
                hot.servers.push(session.tracked(&master.address, is_ours, salt));
            }
            Ok(None) => {}
            Err(e) => hot.notes.push(format!("{}: no hot keys: {}{}", master.address, e.message, hint(&e))),
        }
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

/// Says whether it should end.
pub type Stop<'a> = &'a (dyn Fn() -> bool + Sync);

/// One master: whether the session was ours, and what it showed. `None` where the server has no HOTKEYS, or another
/// address has led to it.
fn at(
    target: &Target,
    options: &Options,
    length: Duration,
    known: &Mutex<BTreeSet<String>>,
    stop: Stop,
) -> Result<Option<(bool, Session)>, Error> {
    let mut connection = ReadOnly::open_for_hot_keys(target, options)?;
    let info = Info::parse(&connection.call(&["INFO", "server"])?.text().unwrap_or_default());
    if info.product() == "Valkey" || info.redis_level() < (8, 6) {
        return Ok(None);
    }
    let run_id = info.get("run_id").unwrap_or_default().to_string();
    if !run_id.is_empty() && !known.lock().unwrap_or_else(PoisonError::into_inner).insert(run_id) {
        return Ok(None);
    }
    // START would discard what an earlier session has found.
    if let Some(session) = session(&connection.call(&["HOTKEYS", "GET"])?)? {
        return Ok(Some((false, session)));
    }
    let seconds = (length.as_secs_f64() + SPARE_S).ceil().clamp(1.0, 1e6) as u64;
    let (count, seconds) = (KEYS.to_string(), seconds.to_string());
    connection.call(&["HOTKEYS", "START", "METRICS", "2", "CPU", "NET", "COUNT", &count, "DURATION", &seconds])?;
    let until = Instant::now() + length;
    while Instant::now() < until && !stop() {
        std::thread::sleep(SLICE.min(until.saturating_duration_since(Instant::now())));
    }
    let stopped = connection.call(&["HOTKEYS", "STOP"]);
    let found = connection.call(&["HOTKEYS", "GET"]);
    // Ours to discard, also if it could not be read.
    let reset = connection.call(&["HOTKEYS", "RESET"]);
    let found = session(&found?)?;
    stopped.and(reset)?;
    Ok(found.map(|session| (true, session)))
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
    by_us: Vec<(Vec<u8>, u64)>,
    by_bytes: Vec<(Vec<u8>, u64)>,
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
    let mut has_keys = false;
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
            Some("by-cpu-time-us") => (session.by_us, has_keys) = (keys(&pair[1]), true),
            Some("by-net-bytes") => (session.by_bytes, has_keys) = (keys(&pair[1]), true),
            _ => {}
        }
    }
    if has_keys { Ok(Some(session)) } else { Err(unreadable()) }
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
    fn tracked(self, server: &str, is_ours: bool, salt: &Salt) -> Tracked {
        let mut all: BTreeMap<Vec<u8>, (Option<u64>, Option<u64>)> = BTreeMap::new();
        for (name, us) in self.by_us {
            all.entry(name).or_default().0 = Some(us);
        }
        for (name, bytes) in self.by_bytes {
            all.entry(name).or_default().1 = Some(bytes);
        }
        let key = |(name, (cpu_us, net_bytes)): (Vec<u8>, _)| HotKey {
            name: salt.hide(&name),
            places: places(&name),
            cpu_us,
            net_bytes,
        };
        Tracked {
            server: server.to_string(),
            is_ours,
            seconds: self.duration_ms as f64 / 1000.0,
            commands_us: self.commands_us,
            net_bytes: self.net_bytes,
            keys: all.into_iter().map(key).collect(),
        }
    }

    /// Of a session that is not ours.
    fn told(&self, server: &str) -> String {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let ago_s = now_ms.saturating_sub(self.started_ms) as f64 / 1000.0;
        let state = if self.is_active { "is running" } else { "has ended" };
        let sampled = match self.sample_ratio {
            0 | 1 => String::new(),
            n => format!("; it counts one key in {n}"),
        };
        let slots = if self.is_partial { "; it counts some slots only" } else { "" };
        format!(
            "{server}: the hot keys are those of a HOTKEYS session that was started {} ago and {state}{sampled}{slots}; \
             HOTKEYS STOP and HOTKEYS RESET discard it",
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
        let tracked = session.tracked("s", true, &Salt::new(true));
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
            assert_eq!(session(&map(&[("by-cpu-time-us", list)])).unwrap().unwrap().by_us.len(), kept);
        }
    }

    #[test]
    fn whose_session_it_is_and_what_it_leaves_out_is_said() {
        let other = Session { sample_ratio: 10, is_partial: true, started_ms: 0, ..Session::default() };
        let said = other.told("s");
        assert!(said.contains("has ended; it counts one key in 10; it counts some slots only; HOTKEYS STOP"), "{said}");
        let said = session(&answer()).unwrap().unwrap().told("s");
        assert!(said.contains(" ago and is running; HOTKEYS STOP"), "{said}");
    }
}
