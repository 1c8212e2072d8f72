//! Keys of others, which load would harm, before it; and keys of our own, after it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use unslow_client::Connection;
use unslow_topology::Info;

use super::Session;
use super::prepare::open_masters;
use crate::error::Error;
use crate::route::look;
use crate::settings::Settings;
use crate::template::{Fill, Template};
use crate::workload::{KeysKnown, Spec, Workload};

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
        let topology = look(&settings.target, &settings.options)?;
        let mut masters = open_masters(settings, &topology)?;
        let away = topology.masters().count().saturating_sub(masters.len());
        let least = if away > 0 { Held::Away { masters: away } } else { Held::Nothing };
        Ok(masters.iter_mut().map(of_one).fold(least, worse))
    }

    fn rank(&self) -> u8 {
        match self {
            Held::Nothing => 0,
            Held::Ours => 1,
            Held::Away { .. } => 2,
            Held::Unknown { .. } => 3,
            Held::Others { .. } => 4,
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
    /// Names of the commands whose keys stay: they may have been there before, or are not known.
    pub stay: Vec<String>,
    /// Why keys are left that should not be.
    pub failed: Option<String>,
}

impl Session {
    /// Removes the keys that the preload and the runs wrote. `before` is what was there before them: a key that does
    /// not begin with `unslow:` is removed only where there was nothing, and none at all where an earlier benchmark has
    /// left its own.
    pub fn remove_keys(&self, before: &Held) -> Removed {
        let mut removed = Removed::default();
        let is_ours = |template: &Template| match before {
            Held::Nothing => true,
            Held::Ours => false,
            _ => template.begins(1, OURS.as_bytes()),
        };
        let mut templates: Vec<Template> = Vec::new();
        let preloaded = (self.preloaded > 0).then(|| Workload::preload(&self.settings.spec).ok()).flatten();
        let preloading = preloaded.iter().flat_map(|workload| &workload.commands).map(|command| (command, true));
        let running = self.workload.commands.iter().map(|command| (command, command.writes));
        for (command, _) in preloading.chain(running).filter(|(_, writes)| *writes) {
            let unlink = |at: usize| {
                let unlink = command.template.unlink(at);
                unlink.filter(|template| self.workload.recording.is_none() && is_ours(template))
            };
            // What is guessed may be no key at all.
            let is_known = command.keys != KeysKnown::Guessed;
            let keys_at = command.key_at.iter().chain(&command.more_keys_at).filter(|_| is_known);
            let all: Vec<Option<Template>> = keys_at.map(|at| unlink(*at)).collect();
            let is_whole = command.keys == KeysKnown::All && !all.is_empty() && all.iter().all(Option::is_some);
            if !is_whole && !removed.stay.contains(&command.name) {
                removed.stay.push(command.name.clone());
            }
            for unlink in all.into_iter().flatten() {
                if !templates.iter().any(|known| same(known, &unlink)) {
                    templates.push(unlink);
                }
            }
        }
        // The signal that ended the runs does not end this; one that comes now does.
        let (was_asked, until) = (self.guard.asked(), Instant::now() + REMOVE_FOR);
        for template in templates {
            let failed = self.unlink(template, before, was_asked, until.saturating_duration_since(Instant::now()));
            removed.failed = removed.failed.or(failed);
        }
        removed
    }

    /// What went wrong, if something did.
    fn unlink(&self, template: Template, before: &Held, was_asked: bool, length: Duration) -> Option<String> {
        let keys = if template.has_key() { self.settings.spec.keys } else { 1 };
        let spec = Spec { value_size: "1".into(), ..self.settings.spec.clone() };
        let mut workload = match Workload::preload(&spec) {
            Ok(workload) => workload,
            Err(e) => return Some(e.to_string()),
        };
        workload.commands.iter_mut().for_each(|command| command.template = template.clone());
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
