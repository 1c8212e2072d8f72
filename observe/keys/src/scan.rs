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
/// No server has more.
pub(crate) const MOST_KEYS: u64 = 1 << 50;

/// What is asked about each key beside its type, length and time to live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
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
    /// Of the server's process: a cursor means nothing to another one. Empty where there is nothing to go on with.
    pub run_id: String,
    /// Of its data set: a replica that follows another master has other keys.
    pub replid: String,
    pub database: u32,
    /// Keys there were when the walk began or went on.
    pub keys: u64,
    /// Keys that SCAN has handed out.
    pub scanned: u64,
    /// Of these, how many were gone when they were asked about.
    pub gone: u64,
    pub cursor: String,
    pub is_done: bool,
    /// Whether it belongs to a server of this run. What was seen elsewhere stays in the file, and is not counted.
    #[serde(skip)]
    pub is_here: bool,
}

/// Of a part that is not at its end: servers repeat keys, and more are added, so it is never taken for nearly complete.
const UNFINISHED: f64 = 0.95;

impl Part {
    pub fn sample(&self) -> Sample {
        let all = match self.is_done {
            _ if !self.is_here => 0,
            true => self.scanned,
            false => self.keys.max((self.scanned as f64 / UNFINISHED) as u64 + 1),
        };
        Sample { all, seen: if self.is_here { self.scanned } else { 0 } }
    }
}

/// How long a key stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ttl {
    /// The server would not say.
    Unknown,
    /// Until it is deleted.
    Lasting,
    Ms(u64),
}

/// One key, as a server described it.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub name: Vec<u8>,
    pub kind: String,
    /// Bytes of a string, elements of anything else.
    pub length: Option<u64>,
    pub memory: Option<u64>,
    pub ttl: Ttl,
    /// The server's logarithmic counter of uses, 0 to 255.
    pub heat: Option<u64>,
}

/// Sums over keys of one pattern and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub keys: u64,
    /// Of which the time to live is known.
    pub timed: u64,
    /// Without one.
    pub lasting: u64,
    pub longest: Option<u64>,
    /// Of which the memory is known.
    pub weighed: u64,
    /// In bytes, and the sum of their squares.
    pub memory: u64,
    pub memory_squares: f64,
}

impl Figures {
    fn add(&mut self, key: &Key) {
        self.merge(&Figures {
            keys: 1,
            timed: u64::from(key.ttl != Ttl::Unknown),
            lasting: u64::from(key.ttl == Ttl::Lasting),
            longest: key.length,
            weighed: u64::from(key.memory.is_some()),
            memory: key.memory.unwrap_or(0),
            memory_squares: (key.memory.unwrap_or(0) as f64).powi(2),
        });
    }

    pub(crate) fn merge(&mut self, other: &Figures) {
        self.keys = self.keys.saturating_add(other.keys);
        self.timed = self.timed.saturating_add(other.timed);
        self.lasting = self.lasting.saturating_add(other.lasting);
        self.longest = self.longest.max(other.longest);
        self.weighed = self.weighed.saturating_add(other.weighed);
        self.memory = self.memory.saturating_add(other.memory);
        self.memory_squares += other.memory_squares;
    }

    pub(crate) fn bytes(self) -> Found {
        Found::Sum { sum: self.memory as f64, squares: self.memory_squares }
    }
}

/// Of one pattern: figures by part and kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums(pub(crate) Vec<(usize, String, Figures)>);

impl Sums {
    fn of(&mut self, part: usize, kind: &str) -> &mut Figures {
        let found = self.0.binary_search_by(|(p, k, _)| (*p, k.as_str()).cmp(&(part, kind)));
        let at = found.unwrap_or_else(|at| {
            self.0.insert(at, (part, kind.to_string(), Figures::default()));
            at
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
    pub ttl: Ttl,
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
    /// When the last walk ended; unix time in ms, 0 before the first.
    pub at_ms: u64,
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
    #[error("it was started {was}; this run asks {now}: use the same options, or another file")]
    OtherQuestions { was: String, now: String },
}

impl Questions {
    fn words(self, database: Option<u32>) -> String {
        let mut words = Vec::new();
        words.extend(self.memory.then(|| "--memory".to_string()));
        words.extend(self.heat.then(|| "--hot".to_string()));
        words.extend(self.names.then(|| "--show-keys".to_string()));
        words.extend(database.map(|n| format!("-n {n}")));
        if words.is_empty() { "without options".into() } else { format!("for {}", words.join(" ")) }
    }
}

impl Scan {
    pub fn new(questions: Questions, database: Option<u32>) -> Scan {
        let (parts, patterns, largest) = (Vec::new(), Patterns::default(), BTreeMap::new());
        Scan { schema: SCHEMA.into(), at_ms: 0, questions, database, parts, patterns, largest }
    }

    /// A saved one, if it was begun for the same questions.
    pub fn read(text: &str, questions: Questions, database: Option<u32>) -> Result<Scan, ScanError> {
        let mut scan: Scan = serde_json::from_str(text).map_err(|e| ScanError::Damaged(e.to_string()))?;
        if scan.schema != SCHEMA {
            let found = format!("its schema is {:.40}; expected {SCHEMA}", scan.schema);
            return Err(ScanError::Damaged(found));
        }
        let parts = scan.parts.len();
        if !scan.largest.values().flatten().all(|key| key.part < parts) {
            return Err(ScanError::Damaged("a key is of a part that is not there".into()));
        }
        let mut is_whole = true;
        scan.patterns.each(|sums| {
            is_whole &= sums.0.iter().all(|(part, _, _)| *part < parts);
            sums.0.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        });
        scan.patterns.count_branches();
        if !is_whole {
            return Err(ScanError::Damaged("a pattern is of a part that is not there".into()));
        }
        if scan.parts.iter().any(|part| part.scanned.max(part.keys) > MOST_KEYS || part.gone > part.scanned) {
            return Err(ScanError::Damaged("a part has more keys than there can be".into()));
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

    /// Where the walk of a database goes on, or begins; and whether it had begun elsewhere. `replids` are the names of
    /// the server's data set, now and before a failover.
    pub(crate) fn claim(&mut self, wanted: Part, replids: &[&str]) -> (usize, bool) {
        let is_at = |p: &Part| {
            let is_process = !p.run_id.is_empty() && p.run_id == wanted.run_id && p.server == wanted.server;
            is_process && p.database == wanted.database && replids.contains(&p.replid.as_str())
        };
        if let Some(at) = self.parts.iter().position(is_at) {
            for (other, part) in self.parts.iter_mut().enumerate() {
                part.is_here &= other == at || part.shard != wanted.shard || part.database != wanted.database;
            }
            let there = &mut self.parts[at];
            let keys = if there.is_done { there.keys } else { wanted.keys };
            (there.shard, there.replid, there.keys, there.is_here) = (wanted.shard, wanted.replid, keys, true);
            return (at, false);
        }
        // A shard is walked at one server at a time: what was seen at another is not counted, and of a process that is
        // gone it is of no use any more.
        let is_other = |p: &Part| p.server == wanted.server || p.shard == wanted.shard;
        let others = (0..self.parts.len()).filter(|at| is_other(&self.parts[*at]));
        let others: Vec<usize> = others.filter(|at| self.parts[*at].database == wanted.database).collect();
        let has_lost = others.iter().any(|at| self.parts[*at].scanned > 0);
        for at in others {
            self.parts[at].is_here = false;
            if self.parts[at].server == wanted.server {
                self.forget(at);
            }
        }
        self.parts.push(Part { is_here: true, ..wanted });
        (self.parts.len() - 1, has_lost)
    }

    /// Before a shard is reopened: parts that still belong to it are claimed again.
    pub(crate) fn leave(&mut self, shard: &str) {
        self.parts.iter_mut().filter(|part| part.shard == shard).for_each(|part| part.is_here = false);
    }

    /// Forgets databases of a server that have no keys any more.
    pub(crate) fn keep_databases(&mut self, server: &str, run_id: &str, databases: &[u32]) {
        let is_empty = |p: &Part| p.server == server && p.run_id == run_id && !databases.contains(&p.database);
        let empty: Vec<usize> = (0..self.parts.len()).filter(|at| is_empty(&self.parts[*at])).collect();
        empty.into_iter().for_each(|at| self.forget(at));
    }

    /// Others are known by their place in the list, so it stays, and is empty.
    fn forget(&mut self, part: usize) {
        let there = &mut self.parts[part];
        (there.keys, there.scanned, there.gone, there.is_done, there.is_here) = (0, 0, 0, false, false);
        there.run_id.clear();
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
                ttl: key.ttl,
                heat: key.heat,
            };
            self.remember(&large(String::new()), || hide(&key.name));
        }
        let of = &mut self.parts[part];
        of.scanned = of.scanned.saturating_add(handed);
        of.gone = of.gone.saturating_add(handed.saturating_sub(keys.len() as u64));
        of.is_done = cursor == "0";
        of.cursor = cursor.to_string();
    }

    /// The kind as it is counted: a hostile server could name any number of them, and draw with them.
    fn kind(&mut self, kind: &str) -> String {
        let known = self.largest.keys().filter(|name| name.starts_with("length ")).count();
        let is_known = self.largest.contains_key(&format!("length {kind}"));
        let is_plain = kind.len() <= 32 && kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        let kind = if is_known || (known < KINDS && is_plain) { kind } else { OTHER };
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
            replid: "r".into(),
            database: 0,
            keys,
            scanned: 0,
            gone: 0,
            cursor: "0".into(),
            is_done: false,
            is_here: false,
        }
    }

    fn key(name: &str, length: u64) -> Key {
        Key {
            name: name.as_bytes().to_vec(),
            kind: "string".into(),
            length: Some(length),
            memory: Some(length + 50),
            ttl: Ttl::Lasting,
            heat: None,
        }
    }

    fn shown(name: &[u8]) -> String {
        String::from_utf8_lossy(name).into_owned()
    }

    #[test]
    fn the_largest_are_kept_once_each() {
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.claim(part("s", "1", 1000), &["r"]);
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

    /// A walk of one key at `s`, saved and read again.
    fn saved() -> Scan {
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.claim(part("s", "1", 1000), &["r"]);
        scan.add(at, "17", 1, &[key("k:1", 5)], shown);
        Scan::read(&scan.text(), Questions::default(), None).unwrap()
    }

    #[test]
    fn the_same_process_goes_on_also_after_a_failover() {
        let mut scan = saved();
        assert_eq!(scan.parts[0].sample().all, 0, "nobody has claimed it");
        // It was promoted: its data set has another name, and the shard too.
        let promoted = Part { shard: "s".into(), replid: "new".into(), ..part("s", "1", 1200) };
        assert_eq!(scan.claim(promoted, &["new", "r"]), (0, false));
        let there = &scan.parts[0];
        assert_eq!((there.shard.as_str(), there.keys, there.cursor.as_str(), there.scanned), ("s", 1200, "17", 1));
        assert_eq!(there.sample(), Sample { all: 1200, seen: 1 });
    }

    #[test]
    fn another_process_or_data_set_begins_again() {
        let others = [(part("s", "2", 1000), "r"), (part("t", "1", 1000), "r"), (part("s", "1", 1000), "x")];
        for ((other, replid), is_of_this_run) in others.into_iter().flat_map(|o| [(o.clone(), false), (o, true)]) {
            let mut scan = saved();
            scan.parts[0].is_here = is_of_this_run;
            let (at, has_lost) = scan.claim(Part { replid: replid.into(), ..other }, &[replid]);
            assert_eq!((at, has_lost, scan.parts[at].scanned), (1, true, 0));
            let counted: u64 = scan.parts.iter().map(|p| p.sample().seen).sum();
            assert_eq!(counted, 0, "what is not of this run is not counted");
        }
        // Where no process can be told from another.
        let mut scan = Scan::new(Questions::default(), None);
        scan.claim(part("s", "", 5), &["r"]);
        scan.parts[0].is_here = false;
        assert_eq!(scan.claim(part("s", "", 5), &["r"]).0, 1);
    }

    #[test]
    fn a_shard_that_goes_back_to_a_server_is_counted_once() {
        let mut scan = Scan::new(Questions::default(), None);
        for (server, at) in [("a", 0), ("b", 1), ("a", 0)] {
            assert_eq!(scan.claim(part(server, server, 1000), &["r"]).0, at);
            scan.add(at, "17", 1, &[key("k:1", 5)], shown);
            let here: Vec<usize> = (0..scan.parts.len()).filter(|at| scan.parts[*at].is_here).collect();
            assert_eq!(here, [at]);
        }
        scan.leave("m");
        assert!(scan.parts.iter().all(|part| !part.is_here), "all of its keys may be gone");
    }

    #[test]
    fn a_database_that_is_empty_now_is_forgotten() {
        let mut scan = saved();
        scan.claim(part("s", "1", 1000), &["r"]);
        scan.keep_databases("s", "1", &[3]);
        assert_eq!((scan.parts[0].sample().all, scan.patterns.rows().len()), (0, 0));
        let again = scan.claim(part("s", "1", 1000), &["r"]);
        assert_eq!((again, scan.parts[1].is_done), ((1, false), false), "it is walked when it has keys again");
    }

    #[test]
    fn what_is_not_at_its_end_is_never_nearly_complete() {
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.claim(part("s", "1", 10), &["r"]);
        scan.add(at, "17", 1000, &[], shown);
        assert!(scan.parts[at].sample().share() <= 0.95);
        scan.add(at, "0", 1, &[], shown);
        assert_eq!(scan.parts[at].sample().share(), 1.0);
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let scan = Scan::new(Questions { memory: true, ..Questions::default() }, Some(3));
        let e = Scan::read(&scan.text(), Questions::default(), None).unwrap_err().to_string();
        assert_eq!(
            e,
            "it was started for --memory -n 3; this run asks without options: use the same options, or another file"
        );
        for text in ["", "{}", "[1]", &scan.text().replace("keys-walk/1", "keys-walk/9")] {
            assert!(matches!(Scan::read(text, scan.questions, Some(3)), Err(ScanError::Damaged(_))), "{text}");
        }
        let mut full = Scan::new(Questions::default(), None);
        let (at, _) = full.claim(part("s", "1", 1000), &["r"]);
        full.add(at, "17", 1, &[key("k:1", 5)], shown);
        let huge = Scan { parts: vec![Part { scanned: u64::MAX, ..full.parts[0].clone() }], ..full.clone() };
        assert!(matches!(Scan::read(&huge.text(), Questions::default(), None), Err(ScanError::Damaged(_))));
        full.parts.clear();
        assert!(matches!(Scan::read(&full.text(), Questions::default(), None), Err(ScanError::Damaged(_))));
    }

    #[test]
    fn kinds_are_bounded() {
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.claim(part("s", "1", 1000), &["r"]);
        for n in 0..100 {
            scan.add(at, "5", 1, &[Key { kind: format!("module{n}"), ..key("k", 1) }], shown);
        }
        assert_eq!(scan.largest.keys().filter(|name| name.starts_with("length ")).count(), KINDS + 1);
        let mut scan = Scan::new(Questions::default(), None);
        let (at, _) = scan.claim(part("s", "1", 1000), &["r"]);
        scan.add(at, "5", 1, &[Key { kind: "\u{1b}[2Jx\nlist".into(), ..key("k", 1) }], shown);
        assert_eq!(scan.largest.keys().collect::<Vec<_>>(), ["length other", "memory"]);
    }
}
