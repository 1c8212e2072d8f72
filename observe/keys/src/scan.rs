//! What a walk has found so far: parts, sums by pattern, and the largest keys. Pure; saved as JSON to go on later.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::estimate::{Found, Sample};
use crate::patterns::{Patterns, Sum, places};

/// Largest keys that are remembered of each kind and figure.
const LARGEST: usize = 25;
/// Kinds of keys; a module may bring its own.
const KINDS: usize = 24;
const OTHER: &str = "other";
const SCHEMA: &str = "unslow.keys-walk/1";

/// What is asked about each key beside its type, length and time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Questions {
    /// MEMORY USAGE.
    pub memory: bool,
    /// OBJECT FREQ. Each server counts the uses that it sees itself, so masters are asked.
    pub heat: bool,
    /// Real names instead of hashes.
    pub names: bool,
}

/// One database of one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The shard's master.
    pub shard: String,
    pub server: String,
    /// Of the server's process: a cursor means nothing to another one.
    pub run_id: String,
    pub database: u32,
    /// Keys there were when the walk began or went on.
    pub keys: u64,
    /// Keys that SCAN has handed out.
    pub scanned: u64,
    /// Of these, how many were gone when they were asked about.
    pub gone: u64,
    pub cursor: String,
    pub is_done: bool,
}

impl Part {
    /// Whether there is nothing to see.
    pub fn is_empty(&self) -> bool {
        self.is_done && self.scanned == 0
    }

    pub fn sample(&self) -> Sample {
        let all = if self.is_done { self.scanned } else { self.keys.max(self.scanned + 1) };
        Sample { all, seen: self.scanned }
    }
}

/// One key, as a server described it.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub name: Vec<u8>,
    pub kind: String,
    /// Bytes of a string, elements of anything else.
    pub length: Option<u64>,
    pub memory: Option<u64>,
    /// `None`: it stays until it is deleted.
    pub ttl_ms: Option<u64>,
    /// The server's logarithmic counter of uses, 0 to 255.
    pub heat: Option<u64>,
}

/// Sums over keys of one pattern and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub keys: u64,
    /// Without a time to live.
    pub lasting: u64,
    pub longest: u64,
    /// In bytes, and the sum of their squares.
    pub memory: u64,
    pub memory_squares: f64,
}

impl Figures {
    fn add(&mut self, key: &Key) {
        self.keys += 1;
        self.lasting += u64::from(key.ttl_ms.is_none());
        self.longest = self.longest.max(key.length.unwrap_or(0));
        let memory = key.memory.unwrap_or(0);
        self.memory = self.memory.saturating_add(memory);
        self.memory_squares += (memory as f64).powi(2);
    }

    pub(crate) fn merge(&mut self, other: &Figures) {
        self.keys += other.keys;
        self.lasting += other.lasting;
        self.longest = self.longest.max(other.longest);
        self.memory = self.memory.saturating_add(other.memory);
        self.memory_squares += other.memory_squares;
    }

    pub(crate) fn count(self) -> Found {
        Found { sum: self.keys as f64, squares: self.keys as f64 }
    }

    pub(crate) fn bytes(self) -> Found {
        Found { sum: self.memory as f64, squares: self.memory_squares }
    }
}

/// Of one pattern: figures by part and kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums(pub(crate) Vec<(usize, String, Figures)>);

impl Sums {
    fn of(&mut self, part: usize, kind: &str) -> &mut Figures {
        let at = self.0.iter().position(|(p, k, _)| *p == part && k == kind);
        let at = at.unwrap_or_else(|| {
            self.0.push((part, kind.to_string(), Figures::default()));
            self.0.len() - 1
        });
        &mut self.0[at].2
    }
}

impl Sum for Sums {
    fn merge(&mut self, other: &Sums) {
        other.0.iter().for_each(|(part, kind, figures)| self.of(*part, kind).merge(figures));
    }

    fn keys(&self) -> u64 {
        self.0.iter().map(|(_, _, figures)| figures.keys).sum()
    }
}

/// A key that is one of the largest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Large {
    pub part: usize,
    /// Its name without ids, by which its pattern is found.
    pub places: Vec<String>,
    /// As it may be printed.
    pub name: String,
    pub kind: String,
    pub length: Option<u64>,
    pub memory: Option<u64>,
    pub ttl_ms: Option<u64>,
    pub heat: Option<u64>,
}

/// Which figure makes a key one of the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    Length,
    Memory,
    Heat,
}

impl By {
    pub(crate) const ALL: [By; 3] = [By::Length, By::Memory, By::Heat];

    pub(crate) fn of(self, key: &Large) -> Option<u64> {
        match self {
            By::Length => key.length,
            By::Memory => key.memory,
            By::Heat => key.heat,
        }
    }
}

/// Everything a walk knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scan {
    schema: String,
    pub questions: Questions,
    /// Databases that were asked for; `None`: all with keys.
    pub database: Option<u32>,
    pub parts: Vec<Part>,
    pub(crate) patterns: Patterns<Sums>,
    /// Lengths by kind, bytes and uses over all kinds; the largest first.
    pub(crate) largest: BTreeMap<String, Vec<Large>>,
}

/// Why a saved walk cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    #[error("this is not a saved walk of unslow keys: {0}")]
    Damaged(String),
    #[error("it was begun {was}, and is asked for {now}; give the same options, or another file")]
    OtherQuestions { was: String, now: String },
}

impl Questions {
    fn words(self, database: Option<u32>) -> String {
        let mut words = Vec::new();
        words.extend(self.memory.then(|| "--memory".to_string()));
        words.extend(self.heat.then(|| "--hot".to_string()));
        words.extend(self.names.then(|| "--show-keys".to_string()));
        words.extend(database.map(|n| format!("-n {n}")));
        if words.is_empty() { "without options".into() } else { format!("with {}", words.join(" ")) }
    }
}

impl Scan {
    pub fn new(questions: Questions, database: Option<u32>) -> Scan {
        let (parts, patterns, largest) = (Vec::new(), Patterns::default(), BTreeMap::new());
        Scan { schema: SCHEMA.into(), questions, database, parts, patterns, largest }
    }

    /// A saved one, if it was begun for the same questions.
    pub fn read(text: &str, questions: Questions, database: Option<u32>) -> Result<Scan, ScanError> {
        let scan: Scan = serde_json::from_str(text).map_err(|e| ScanError::Damaged(e.to_string()))?;
        if scan.schema != SCHEMA {
            let found = format!("its schema is {:.40}; expected {SCHEMA}", scan.schema);
            return Err(ScanError::Damaged(found));
        }
        let is_of_parts = |part: usize| part < scan.parts.len();
        if !scan.largest.values().flatten().all(|key| is_of_parts(key.part)) {
            return Err(ScanError::Damaged("a key is of a part that is not there".into()));
        }
        let mut ok = true;
        scan.patterns.clone().each(|sums| ok &= sums.0.iter().all(|(part, _, _)| is_of_parts(*part)));
        if !ok {
            return Err(ScanError::Damaged("a pattern is of a part that is not there".into()));
        }
        if scan.questions != questions || scan.database != database {
            let (was, now) = (scan.questions.words(scan.database), questions.words(database));
            return Err(ScanError::OtherQuestions { was, now });
        }
        Ok(scan)
    }

    /// To go on with.
    pub fn text(&self) -> String {
        // Maps with text keys, numbers and texts.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Where a database's walk goes on, or begins: a part of another process of the server is forgotten, and so is one
    /// of another server of the same shard. Says whether something was. After a failover the same server may be of a
    /// shard with another name.
    pub(crate) fn part(&mut self, wanted: Part) -> (usize, bool) {
        let is_at = |p: &Part| p.server == wanted.server && p.run_id == wanted.run_id && p.database == wanted.database;
        if let Some(at) = self.parts.iter().position(is_at) {
            let there = &mut self.parts[at];
            there.shard = wanted.shard;
            if !there.is_done {
                there.keys = wanted.keys;
            }
            return (at, false);
        }
        let is_same = |p: &Part| p.shard == wanted.shard && p.database == wanted.database;
        let Some(at) = self.parts.iter().position(is_same) else {
            self.parts.push(wanted);
            return (self.parts.len() - 1, false);
        };
        let there = &mut self.parts[at];
        let had = there.scanned > 0;
        *there = wanted;
        self.forget(at);
        (at, had)
    }

    /// Forgets parts that belong to nothing that is there; the names of their shards.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&Part) -> bool) -> Vec<String> {
        let gone: Vec<usize> = (0..self.parts.len()).filter(|at| !is_there(&self.parts[*at])).collect();
        let mut names = Vec::new();
        for at in gone {
            let part = &mut self.parts[at];
            if part.scanned > 0 {
                names.push(part.shard.clone());
            }
            // Others are known by their place in the list, so it stays, and is empty.
            *part = Part { keys: 0, scanned: 0, gone: 0, is_done: true, ..part.clone() };
            self.forget(at);
        }
        names.dedup();
        names
    }

    fn forget(&mut self, part: usize) {
        self.patterns.each(|sums| sums.0.retain(|(of, _, _)| *of != part));
        self.largest.values_mut().for_each(|keys| keys.retain(|key| key.part != part));
    }

    /// What SCAN has handed out in one answer, with what was said of each key that was still there. `hide` gives names
    /// as they may be printed.
    pub(crate) fn add(&mut self, part: usize, cursor: &str, handed: u64, keys: &[Key], hide: impl Fn(&[u8]) -> String) {
        for key in keys {
            let kind = self.kind(&key.kind);
            let places = places(&key.name);
            self.patterns.add(&places, |sums| sums.of(part, &kind).add(key));
            let large = |name| Large {
                part,
                places: places.clone(),
                name,
                kind: kind.clone(),
                length: key.length,
                memory: key.memory,
                ttl_ms: key.ttl_ms,
                heat: key.heat,
            };
            self.remember(&large(String::new()), || hide(&key.name));
        }
        let of = &mut self.parts[part];
        of.scanned += handed;
        of.gone += handed - keys.len() as u64;
        of.is_done = cursor == "0";
        of.cursor = cursor.to_string();
    }

    /// The kind as it is counted: a hostile server could name any number of them.
    fn kind(&mut self, kind: &str) -> String {
        let known = self.largest.keys().filter(|name| name.starts_with("length ")).count();
        let is_known = self.largest.contains_key(&format!("length {kind}"));
        let kind = if is_known || (known < KINDS && kind.len() <= 32) { kind } else { OTHER };
        self.largest.entry(format!("length {kind}")).or_default();
        kind.to_string()
    }

    fn remember(&mut self, key: &Large, name: impl Fn() -> String) {
        for by in By::ALL {
            // Lengths of different kinds cannot be compared.
            let list = match by {
                By::Length => format!("length {}", key.kind),
                By::Memory => "memory".into(),
                By::Heat => "heat".into(),
            };
            let Some(value) = by.of(key) else { continue };
            let keys = self.largest.entry(list).or_default();
            let at = keys.partition_point(|other| by.of(other).unwrap_or(0) >= value);
            if at >= LARGEST {
                continue;
            }
            let named = Large { name: name(), ..key.clone() };
            // SCAN may hand out a key twice.
            if keys.iter().any(|other| other.name == named.name && other.part == named.part) {
                continue;
            }
            keys.insert(at, named);
            keys.truncate(LARGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(server: &str, run_id: &str, keys: u64) -> Part {
        Part {
            shard: "m".into(),
            server: server.into(),
            run_id: run_id.into(),
            database: 0,
            keys,
            scanned: 0,
            gone: 0,
            cursor: "0".into(),
            is_done: false,
        }
    }

    fn key(name: &str, length: u64) -> Key {
        let name = name.as_bytes().to_vec();
        Key { name, kind: "string".into(), length: Some(length), memory: Some(length + 50), ttl_ms: None, heat: None }
    }

    fn shown(name: &[u8]) -> String {
        String::from_utf8_lossy(name).into_owned()
    }

    #[test]
    fn the_largest_are_kept_once_each() {
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.part(part("s", "1", 1000));
        let keys: Vec<Key> = (0..100).map(|n| key(&format!("k:{n}"), n * 7 % 100)).collect();
        scan.add(at, "5", 100, &keys, shown);
        scan.add(at, "0", 1, &[key("k:57", 99)], shown);
        let largest = &scan.largest["length string"];
        assert_eq!(largest.len(), LARGEST);
        assert_eq!((largest[0].name.as_str(), largest[0].length), ("k:57", Some(99)));
        assert_eq!(largest.iter().filter(|k| k.name == "k:57").count(), 1);
        assert!(largest.windows(2).all(|two| two[0].length >= two[1].length));
        assert_eq!((scan.parts[0].scanned, scan.parts[0].is_done), (101, true));
    }

    #[test]
    fn another_process_begins_again_and_the_same_goes_on() {
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.part(part("s", "1", 1000));
        scan.add(at, "17", 1, &[key("k:1", 5)], shown);
        let text = scan.text();
        let mut again = Scan::read(&text, Questions::default(), None).unwrap();
        assert_eq!(again.part(part("s", "1", 1200)), (0, false));
        assert_eq!((again.parts[0].keys, again.parts[0].cursor.as_str()), (1200, "17"));
        let promoted = Part { shard: "s".into(), ..part("s", "1", 1200) };
        assert_eq!(again.part(promoted), (0, false));
        assert_eq!(again.keep(|part| part.shard == "s"), Vec::<String>::new());
        assert_eq!((again.parts[0].shard.as_str(), again.parts[0].scanned), ("s", 1));
        assert_eq!(again.keep(|part| part.shard == "m"), ["s"]);
        assert_eq!((again.parts[0].sample().all, again.patterns.rows().len()), (0, 0));
        for other in [part("s", "2", 1000), part("r", "1", 1000)] {
            let mut restarted = Scan::read(&text, Questions::default(), None).unwrap();
            assert_eq!(restarted.part(other.clone()), (0, true));
            assert_eq!(restarted.parts, [other]);
            assert_eq!(restarted.patterns.rows().len(), 0);
            assert_eq!(restarted.largest["length string"], []);
        }
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let scan = Scan::new(Questions { memory: true, ..Questions::default() }, Some(3));
        let e = Scan::read(&scan.text(), Questions::default(), None).unwrap_err().to_string();
        assert_eq!(
            e,
            "it was begun with --memory -n 3, and is asked for without options; give the same options, or another file"
        );
        for text in ["", "{}", "[1]", &scan.text().replace("keys-walk/1", "keys-walk/9")] {
            assert!(matches!(Scan::read(text, scan.questions, Some(3)), Err(ScanError::Damaged(_))), "{text}");
        }
        let mut full = Scan::new(Questions::default(), None);
        let (at, _) = full.part(part("s", "1", 1000));
        full.add(at, "17", 1, &[key("k:1", 5)], shown);
        full.parts.clear();
        assert!(matches!(Scan::read(&full.text(), Questions::default(), None), Err(ScanError::Damaged(_))));
    }

    #[test]
    fn kinds_are_bounded() {
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.part(part("s", "1", 1000));
        for n in 0..100 {
            scan.add(at, "5", 1, &[Key { kind: format!("module{n}"), ..key("k", 1) }], shown);
        }
        assert_eq!(scan.largest.keys().filter(|name| name.starts_with("length ")).count(), KINDS + 1);
    }
}
