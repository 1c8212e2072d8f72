//! Keys of others, which load would harm, before it; and keys of our own, after it.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use unslow_client::Connection;
use unslow_topology::Info;

use super::Session;
use super::prepare::open_masters;
use crate::error::{Error, WorkloadError};
use crate::places::KeysKnown;
use crate::replay::Recording;
use crate::route::look;
use crate::settings::Settings;
use crate::template::{Fill, Template};
use crate::workload::{Spec, Workload};

/// The prefix of our keys, which no application should use.
const OURS: &str = "unslow:";
/// Keys that are looked at on each master: others' keys are found in 97 of 100 cases where they are a fifth of all.
const SAMPLES: usize = 16;
/// For all of it: removing a key space of hundreds of millions, most of which a run never wrote, is not waited for.
const REMOVE_FOR: Duration = Duration::from_secs(60);

/// Whose keys a deployment holds.
#[derive(Debug)]
pub enum Held {
    /// There are none.
    Nothing,
    /// Those of earlier benchmarks, as far as a sample can tell.
    Ours,
    /// Not those of a benchmark.
    Others {
        /// A master that has them.
        address: String,
        /// Keys that it holds in all.
        keys: u64,
    },
    /// Nothing is asked ([`Settings::plain`]).
    Unasked,
    /// Some masters do not answer.
    Away {
        /// How many.
        masters: usize,
    },
    /// It could not be asked.
    Unknown {
        /// The master.
        address: String,
        /// What it says.
        why: unslow_client::Error,
    },
}

impl Held {
    /// Asks each master that answers how many keys it holds, and for the names of a few.
    pub fn by(settings: &Settings) -> Result<Held, Error> {
        if settings.plain {
            return Ok(Held::Unasked);
        }
        let topology = look(&settings.target, &settings.options)?;
        let mut masters = open_masters(settings, &topology)?;
        let away = topology.masters().count().saturating_sub(masters.len());
        let least = if away > 0 { Held::Away { masters: away } } else { Held::Nothing };
        Ok(masters.iter_mut().map(of_one).fold(least, worse))
    }

    /// Whether a run may remove a key that it has written there; `begins` tells whether the key's name begins so.
    fn is_ours(&self, begins: impl Fn(&[u8]) -> bool) -> bool {
        match self {
            Held::Nothing => true,
            Held::Ours => false,
            _ => begins(OURS.as_bytes()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Held::Nothing => 0,
            Held::Ours => 1,
            Held::Unasked => 2,
            Held::Away { .. } => 3,
            Held::Unknown { .. } => 4,
            Held::Others { .. } => 5,
        }
    }
}

fn worse(a: Held, b: Held) -> Held {
    if b.rank() > a.rank() { b } else { a }
}

fn of_one(master: &mut Connection) -> Held {
    let address = master.peer().to_string();
    let others = |keys: u64| Held::Others { address: address.clone(), keys };
    let mut ask = || -> Result<Held, unslow_client::Error> {
        let here = master.call(&["DBSIZE"])?.integer().unwrap_or(0).max(0) as u64;
        // Its other databases are of the same process. A user who may not read INFO is asked about this one alone.
        let all = master.call(&["INFO", "keyspace"]).ok().and_then(|reply| reply.text());
        let all = all.map_or(here, |text| Info::parse(&text).keys());
        if all > here {
            return Ok(others(all));
        }
        for _ in 0..if here == 0 { 0 } else { SAMPLES } {
            let key = master.call(&["RANDOMKEY"])?;
            if key.text().is_some_and(|name| !name.starts_with(OURS)) {
                return Ok(others(here));
            }
        }
        Ok(if here == 0 { Held::Nothing } else { Held::Ours })
    };
    ask().unwrap_or_else(|why| Held::Unknown { address: address.clone(), why })
}

/// What became of the keys that were written.
#[derive(Debug, Default)]
pub struct Removed {
    /// Names of the commands whose keys, if they wrote any, stay: these may have been there before, or are not known.
    pub stay: Vec<String>,
    /// Why keys are left that should not be.
    pub failed: Option<String>,
}

impl Removed {
    fn stays(&mut self, name: &str) {
        if !self.stay.iter().any(|known| known == name) {
            self.stay.push(name.into());
        }
    }
}

impl Session {
    /// Removes the keys that the preload and the runs wrote, or may have written. `before` is what was there before
    /// them: a key that does not begin with `unslow:` is removed only where there was nothing, and none at all where an
    /// earlier benchmark has left its own.
    pub fn remove_keys(&self, before: &Held) -> Removed {
        let mut removed = Removed::default();
        if !self.has_sent {
            return removed;
        }
        let (templates, recorded) = (self.written(before, &mut removed), self.recorded(before, &mut removed));
        let mut all: Vec<Result<Workload, WorkloadError>> = Vec::new();
        all.extend(templates.into_iter().map(|template| {
            let mut workload = Workload::preload(&self.one_byte())?;
            workload.commands.iter_mut().for_each(|command| command.template = template.clone());
            Ok(workload)
        }));
        all.extend(recorded.map(|recorded| Workload::of_recording(recorded, &self.one_byte())));
        // The signal that ended the runs does not end this; one that comes now does.
        let (was_asked, until) = (self.guard.asked(), Instant::now() + REMOVE_FOR);
        for workload in all {
            let length = until.saturating_duration_since(Instant::now());
            let failed = match workload {
                Ok(workload) => self.unlink(workload, before, was_asked, length),
                Err(e) => Some(e.to_string()),
            };
            removed.failed = removed.failed.or(failed);
        }
        removed
    }

    /// What removes the keys of commands that were drawn.
    fn written(&self, before: &Held, removed: &mut Removed) -> Vec<Template> {
        let mut templates: Vec<Template> = Vec::new();
        let preloaded = (self.preloaded > 0).then(|| Workload::preload(&self.settings.spec).ok()).flatten();
        let preloading = preloaded.iter().flat_map(|workload| &workload.commands);
        let drawn = self.workload.recording.is_none();
        let running = self.workload.commands.iter().filter(|command| drawn && command.writes);
        for command in preloading.chain(running) {
            let is_ours = |template: &Template| before.is_ours(|prefix| template.begins(1, prefix));
            // What is guessed may be no key at all.
            let is_known = command.keys != KeysKnown::Guessed;
            let keys_at = command.written_at.iter().filter(|_| is_known);
            let all: Vec<Option<Template>> =
                keys_at.map(|at| command.template.unlink(*at).filter(|template| is_ours(template))).collect();
            let is_whole = command.keys == KeysKnown::All && all.iter().all(Option::is_some);
            if !is_whole {
                removed.stays(&command.name);
            }
            for unlink in all.into_iter().flatten() {
                if !templates.iter().any(|known| same(known, &unlink)) {
                    templates.push(unlink);
                }
            }
        }
        templates
    }

    /// What removes the keys of commands that were recorded.
    fn recorded(&self, before: &Held, removed: &mut Removed) -> Option<Recording> {
        let recording = self.workload.recording.as_ref()?;
        let staying = RefCell::new(removed);
        let sent = self.settings.requests.unwrap_or(u64::MAX).min(recording.commands());
        recording.unlinks(sent, |kind, words| {
            let Some(command) = self.workload.commands.get(usize::from(kind)).filter(|command| command.writes) else {
                return Vec::new();
            };
            let (mut keys_at, known) =
                command.places.map_or((Vec::new(), KeysKnown::Guessed), |places| places.written(words));
            let found = keys_at.len();
            keys_at.retain(|at| words.get(*at).is_some_and(|key| before.is_ours(|prefix| key.starts_with(prefix))));
            if known != KeysKnown::All || keys_at.len() < found {
                staying.borrow_mut().stays(&command.name);
            }
            keys_at
        })
    }

    /// Nothing of what is sent to remove keys is a value.
    fn one_byte(&self) -> Spec {
        Spec { value_size: "1".into(), ..self.settings.spec.clone() }
    }

    /// What went wrong, if something did.
    fn unlink(&self, workload: Workload, before: &Held, was_asked: bool, length: Duration) -> Option<String> {
        let has_key = workload.commands.iter().any(|command| command.template.has_key());
        let keys = match &workload.recording {
            Some(recording) => recording.commands(),
            None if has_key => self.settings.spec.keys,
            None => 1,
        };
        let mut session = self.of_every_key(workload, keys, length);
        if !matches!(before, Held::Nothing) {
            // Beside the work of others.
            (session.settings.connections, session.settings.pipeline) = (session.settings.threads, 1);
        }
        if was_asked {
            session.guard.flag().store(false, Ordering::SeqCst);
        }
        match session.run_once(&mut |_| {}) {
            Err(e) => Some(e.to_string()),
            Ok((run, _)) if run.answered >= keys => None,
            Ok((run, _)) => Some(run.errors.first().map_or_else(
                || format!("{} of {keys} names were not reached in time", keys - run.answered),
                |error| error.example.clone(),
            )),
        }
    }
}

fn same(a: &Template, b: &Template) -> bool {
    let sample = |template: &Template| template.sample(&Fill { key: 7, value: b"", seq: 0, now: 0 });
    a.has_key() == b.has_key() && sample(a) == sample(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_the_masters_counts() {
        let others = |keys| Held::Others { address: "a:1".into(), keys };
        for (a, b) in [(Held::Nothing, others(7)), (others(7), Held::Ours), (Held::Ours, others(7))] {
            assert!(matches!(worse(a, b), Held::Others { keys: 7, .. }));
        }
        assert!(matches!(worse(Held::Ours, Held::Nothing), Held::Ours));
    }

    #[test]
    fn a_key_is_removed_by_its_name_and_only_where_that_is_known() {
        let unlink = |text: &str, at| Template::parse(text, None).unwrap().unlink(at);
        let words = |template: &Template| {
            let words = template.sample(&Fill { key: 7, value: b"v", seq: 0, now: 0 });
            String::from_utf8(words.join(&b' ')).unwrap()
        };
        let hash = unlink("HSET unslow:hash:{key} field {value}", 1).unwrap();
        assert_eq!(words(&hash), "UNLINK unslow:hash:000000000007");
        assert!(hash.has_key() && hash.begins(1, b"unslow:"));
        let mut sent = Vec::new();
        hash.render(&mut sent, &Fill { key: 7, value: b"v", seq: 0, now: 0 });
        assert_eq!(sent, b"*2\r\n$6\r\nUNLINK\r\n$24\r\nunslow:hash:000000000007\r\n");
        let one = unlink("SET jobs {value}", 1).unwrap();
        assert!(!one.has_key() && !one.begins(1, b"unslow:"));
        assert!(!unlink("SET {key}:unslow: x", 1).unwrap().begins(1, b"unslow:"));
        // Its name is another one in each request.
        assert!(unlink("SET job:{seq} x", 1).is_none() && unlink("SADD {value} x", 1).is_none());
        assert!(unlink("PING", 1).is_none());
    }
}
