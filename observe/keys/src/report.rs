//! What a walk says of all keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::estimate::Found;
use crate::estimate::{CONFIDENCE, Estimate, Sample, total, unseen_at_most};
use crate::hot::Tracked;
use crate::patterns::{Patterns, Sum};
use crate::scan::{By, Figures, Large, Questions, Scan, Sums, Ttl};
use crate::sizes::{Classes, SizeClass, larger_unseen, sum};
use crate::walked::{Cost, Walked};

const SCHEMA: &str = "unslow.keys/1";
/// A pattern with fewer keys is not told: its words may be names of persons.
const LEAST_KEYS: u64 = 10;
/// Rows of patterns in the report.
const PATTERNS: usize = 200;

/// The whole of it; times in seconds, sizes in bytes.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Report {
    /// `unslow.keys/1`.
    pub schema: String,
    /// Unix time in ms.
    pub at_ms: u64,
    /// Keys there are, and how many of them were seen.
    pub keys: u64,
    pub scanned: u64,
    /// How far the walk has come in the database that is least seen, between 0 and 1; 0 where a shard was not walked.
    pub share: f64,
    pub is_complete: bool,
    pub questions: Questions,
    /// Of bounds and margins.
    pub confidence: f64,
    /// How many keys larger than the largest of a list can be unseen; `null` when nothing was seen, or a shard was not.
    pub larger_unseen_at_most: Option<u64>,
    pub servers: Vec<ServerRow>,
    pub kinds: Vec<KindRow>,
    pub patterns: Vec<PatternRow>,
    /// Patterns that are not in the list.
    pub patterns_left_out: usize,
    /// By length: those of each kind, the largest first.
    pub longest: Vec<KeyRow>,
    /// By memory; empty if it was not asked for.
    pub heaviest: Vec<KeyRow>,
    /// By uses; empty if they were not asked for.
    pub hottest: Vec<KeyRow>,
    /// What HOTKEYS has shown, server by server; empty if it was not asked for.
    pub hot: Vec<HotServer>,
    pub costs: Vec<Cost>,
    /// What stayed unseen, and why.
    pub notes: Vec<String>,
}

/// One database of one server.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ServerRow {
    pub server: String,
    pub shard: String,
    pub database: u32,
    pub keys: u64,
    pub scanned: u64,
    /// Keys that SCAN handed out and that were gone when they were asked about.
    pub gone: u64,
    pub is_complete: bool,
}

/// Keys of one type.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct KindRow {
    pub kind: String,
    /// As the servers count them, where they do.
    pub keys: Estimate,
    /// Share of its keys without a time to live; `null` where the server would not say.
    pub lasting_share: Option<f64>,
    pub longest: Option<u64>,
    pub memory: Option<Estimate>,
    /// All keys by size when the walk began, as the servers count them (INFO keysizes); `null` where one does not.
    pub sizes: Option<Vec<SizeClass>>,
    /// By these classes: how many keys of this type that were not seen were longer than the longest, when the walk
    /// began; `null` also of a walk that was resumed.
    pub larger_unseen_at_least: Option<u64>,
    pub larger_unseen_at_most: Option<u64>,
}

/// Which keys a server worked for most while HOTKEYS counted.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct HotServer {
    pub server: String,
    /// Of the server's process.
    pub run_id: String,
    /// Whether the session was started for this report.
    pub is_ours: bool,
    /// Unix time in ms.
    pub started_ms: u64,
    pub seconds: f64,
    /// Whether it counted in all slots.
    pub is_whole: bool,
    pub counts_cpu: bool,
    pub counts_net: bool,
    /// Share of one core that all commands took.
    pub core_share: f64,
    /// Received and sent in all, in bytes a second.
    pub net_bytes_s: f64,
    /// The most time first.
    pub keys: Vec<HotRow>,
}

/// One of these keys.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct HotRow {
    pub key: String,
    pub pattern: String,
    /// Share of the time that all commands took on this server; `null`: others took more.
    pub cpu_share: Option<f64>,
    /// Share of the bytes that all commands received and sent; `null`: others took more.
    pub net_share: Option<f64>,
}

/// Keys that are called alike.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct PatternRow {
    pub pattern: String,
    /// The types of its keys, the most frequent first.
    pub kinds: Vec<String>,
    pub keys: Estimate,
    pub share_of_keys: f64,
    pub lasting_share: Option<f64>,
    pub longest: Option<u64>,
    pub memory: Option<Estimate>,
}

/// One key.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct KeyRow {
    pub pattern: String,
    /// Its name, or a hash of it.
    pub key: String,
    pub kind: String,
    /// Bytes of a string, elements of anything else.
    pub length: Option<u64>,
    pub memory: Option<u64>,
    /// `null`: it stays until it is deleted, or `ttl_known` is false.
    pub ttl_s: Option<f64>,
    pub ttl_known: bool,
    pub uses: Option<u64>,
    pub server: String,
    pub database: u32,
}

impl Report {
    /// Of what was seen so far; `at_ms` is now.
    pub fn of(scan: &Scan, mut walked: Walked, at_ms: u64) -> Report {
        let samples: Vec<Sample> = scan.parts.iter().map(|part| part.sample()).collect();
        let share = samples.iter().map(|s| s.share()).fold(1.0, f64::min);
        let share = if walked.missed > 0 { 0.0 } else { share };
        let mut notes = std::mem::take(&mut walked.notes);
        for part in scan.parts.iter().filter(|part| part.is_here && part.scanned == 0 && part.keys > 0 && !part.is_done)
        {
            notes.push(format!(
                "of the {} keys in database {} of {} none was seen; the figures leave them out",
                part.keys, part.database, part.server
            ));
        }
        // What belongs to no server of this run is not counted.
        let mut here = scan.patterns.clone();
        here.each(|sums| sums.0.retain(|(part, _, _)| scan.parts[*part].is_here));
        let patterns = here.without_rare(LEAST_KEYS);
        let rows = patterns.rows();
        let all = rows.iter().fold(Sums::default(), |mut all, (_, sums)| {
            all.merge(sums);
            all
        });
        let all_keys = keys_of(&all, &samples).value;
        let kinds = kinds(&all, &samples, scan, &walked);
        let pattern = |(pattern, sums): &(String, &Sums)| {
            let mut kinds: Vec<(u64, String)> = by_kind(sums).into_iter().map(|(k, f)| (f.keys, k)).collect();
            kinds.sort_by(|a, b| b.cmp(a));
            let keys = keys_of(sums, &samples);
            PatternRow {
                pattern: pattern.clone(),
                kinds: kinds.into_iter().map(|(_, kind)| kind).collect(),
                share_of_keys: if all_keys > 0.0 { keys.value / all_keys } else { 0.0 },
                keys,
                lasting_share: lasting(sums, &samples),
                longest: sums.0.iter().filter_map(|(_, _, f)| f.longest).max(),
                memory: memory_of(sums, &samples),
            }
        };
        let mut pattern_rows: Vec<PatternRow> = rows.iter().map(pattern).collect();
        let weight = |row: &PatternRow| row.memory.unwrap_or(row.keys).value;
        pattern_rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then_with(|| a.pattern.cmp(&b.pattern)));
        let patterns_left_out = pattern_rows.len().saturating_sub(PATTERNS);
        pattern_rows.truncate(PATTERNS);
        let key = |large: &Large| KeyRow {
            pattern: patterns.pattern(&large.places),
            key: large.name.clone(),
            kind: large.kind.clone(),
            length: large.length,
            memory: large.memory,
            ttl_s: if let Ttl::Ms(ms) = large.ttl { Some(ms as f64 / 1000.0) } else { None },
            ttl_known: large.ttl != Ttl::Unknown,
            uses: large.heat,
            server: scan.parts[large.part].server.clone(),
            database: scan.parts[large.part].database,
        };
        let is_here = |large: &&Large| scan.parts[large.part].is_here;
        let list = |name: &str| scan.largest.get(name).into_iter().flatten().filter(is_here).map(key).collect();
        let longest = scan.largest.iter().filter(|(name, _)| name.starts_with("length "));
        Report {
            schema: SCHEMA.into(),
            at_ms,
            keys: samples.iter().map(|s| s.all).fold(0, u64::saturating_add),
            scanned: samples.iter().map(|s| s.seen).fold(0, u64::saturating_add),
            share,
            is_complete: walked.missed == 0 && scan.parts.iter().all(|part| part.is_done || !part.is_here),
            questions: scan.questions,
            confidence: CONFIDENCE,
            larger_unseen_at_most: unseen_at_most(share),
            servers: servers(scan),
            kinds,
            patterns: pattern_rows,
            patterns_left_out,
            longest: longest.flat_map(|(_, keys)| keys).filter(is_here).map(key).collect(),
            heaviest: list("memory"),
            hottest: list("heat"),
            hot: walked.hot.into_iter().map(|tracked| hot_server(tracked, &patterns)).collect(),
            costs: walked.costs,
            notes,
        }
    }
}

fn servers(scan: &Scan) -> Vec<ServerRow> {
    let row = |part: &crate::scan::Part| ServerRow {
        server: part.server.clone(),
        shard: part.shard.clone(),
        database: part.database,
        keys: part.sample().all,
        scanned: part.scanned,
        gone: part.gone,
        is_complete: part.is_done,
    };
    let mut rows: Vec<ServerRow> = scan.parts.iter().filter(|part| part.is_here).map(row).collect();
    rows.sort_by(|a, b| (&a.shard, a.database).cmp(&(&b.shard, b.database)));
    rows
}

/// Of each type, by part.
fn by_kind(sums: &Sums) -> BTreeMap<String, Figures> {
    let mut out: BTreeMap<String, Figures> = BTreeMap::new();
    for (_, kind, figures) in &sums.0 {
        out.entry(kind.clone()).or_default().merge(figures);
    }
    out
}

/// Of all databases that are walked; `None` where one of them is not counted by its server, or a type is not.
fn classes(scan: &Scan, sizes: &BTreeMap<usize, BTreeMap<String, Classes>>, kind: &str) -> Option<(Classes, Vec<u64>)> {
    let mut all = Classes::new();
    let here = |part: &usize| scan.parts[*part].is_here;
    for part in (0..scan.parts.len()).filter(here) {
        // A database can have no key of this type.
        for (from, keys) in sizes.get(&part)?.get(kind).into_iter().flatten() {
            let there: &mut u64 = all.entry(*from).or_default();
            *there = there.saturating_add(*keys);
        }
    }
    let listed = scan.largest.get(&format!("length {kind}")).into_iter().flatten();
    let listed: Vec<u64> = listed.filter(|key| here(&key.part)).filter_map(|key| key.length).collect();
    (!all.is_empty()).then_some((all, listed))
}

fn hot_server(tracked: Tracked, patterns: &Patterns<Sums>) -> HotServer {
    let share = |part: Option<u64>, all: u64| part.map(|n| (n as f64 / all.max(1) as f64).min(1.0));
    let mut keys: Vec<HotRow> = tracked
        .keys
        .into_iter()
        .map(|key| HotRow {
            pattern: patterns.pattern(&key.places),
            key: key.name,
            cpu_share: share(key.cpu_us, tracked.commands_us),
            net_share: share(key.net_bytes, tracked.net_bytes),
        })
        .collect();
    let order = |row: &HotRow| (row.cpu_share.unwrap_or(0.0), row.net_share.unwrap_or(0.0));
    keys.sort_by(|a, b| order(b).0.total_cmp(&order(a).0).then(order(b).1.total_cmp(&order(a).1)));
    let seconds = tracked.seconds.max(1e-3);
    HotServer {
        server: tracked.server,
        run_id: tracked.run_id,
        is_ours: tracked.is_ours,
        started_ms: tracked.started_ms,
        is_whole: tracked.is_whole,
        counts_cpu: tracked.counts_cpu,
        counts_net: tracked.counts_net,
        seconds: tracked.seconds,
        core_share: tracked.commands_us as f64 / 1e6 / seconds,
        net_bytes_s: tracked.net_bytes as f64 / seconds,
        keys,
    }
}

/// Also types that the servers count, and of which no key was seen.
fn kinds(all: &Sums, samples: &[Sample], scan: &Scan, walked: &Walked) -> Vec<KindRow> {
    let is_complete = walked.missed == 0 && scan.parts.iter().all(|part| part.is_done || !part.is_here);
    let row = |kind: String| {
        let of = Sums(all.0.iter().filter(|(_, k, _)| *k == kind).cloned().collect());
        let counted = classes(scan, &walked.sizes, &kind).filter(|_| walked.missed == 0);
        let bounds = counted.as_ref().map(|(classes, listed)| larger_unseen(classes, listed));
        // What an earlier run has listed may be gone since.
        let bounds = if is_complete { Some((0, 0)) } else { bounds.filter(|_| !walked.is_resumed) };
        let class = |(from, keys): (u64, u64)| SizeClass { from, keys };
        let exact = counted.as_ref().filter(|_| !is_complete).map(|(classes, _)| sum(classes.values()));
        KindRow {
            keys: exact.map_or_else(|| keys_of(&of, samples), |n| Estimate { value: n as f64, margin: 0.0 }),
            lasting_share: lasting(&of, samples),
            longest: of.0.iter().filter_map(|(_, _, f)| f.longest).max(),
            memory: memory_of(&of, samples),
            sizes: counted.map(|(classes, _)| classes.into_iter().map(class).collect()),
            larger_unseen_at_least: bounds.map(|(least, _)| least),
            larger_unseen_at_most: bounds.map(|(_, most)| most),
            kind,
        }
    };
    let here = walked.sizes.iter().filter(|(part, _)| scan.parts[**part].is_here);
    let counted = here.flat_map(|(_, by_kind)| by_kind.keys().cloned());
    let names: BTreeSet<String> = by_kind(all).into_keys().chain(counted).collect();
    let mut rows: Vec<KindRow> = names.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.keys.value.total_cmp(&a.keys.value));
    rows
}

/// Figures of each part; those of several types are added up.
fn by_part(sums: &Sums) -> BTreeMap<usize, Figures> {
    let mut out: BTreeMap<usize, Figures> = BTreeMap::new();
    for (part, _, figures) in &sums.0 {
        out.entry(*part).or_default().merge(figures);
    }
    out
}

fn keys_of(sums: &Sums, samples: &[Sample]) -> Estimate {
    count_of(sums, samples, |figures| figures.keys)
}

/// Also of parts where none was found: there may be some.
fn count_of(sums: &Sums, samples: &[Sample], figure: impl Fn(&Figures) -> u64) -> Estimate {
    let found = by_part(sums);
    let count = |part: usize| Found::Count(found.get(&part).map_or(0.0, |figures| figure(figures) as f64));
    total(samples.iter().enumerate().map(|(part, sample)| (*sample, count(part))))
}

/// `None` where no key was weighed.
fn memory_of(sums: &Sums, samples: &[Sample]) -> Option<Estimate> {
    let found = by_part(sums);
    let is_weighed = found.values().any(|figures| figures.weighed > 0);
    is_weighed.then(|| total(found.into_iter().map(|(part, figures)| (samples[part], figures.bytes()))))
}

/// Of those whose time to live is known.
fn lasting(sums: &Sums, samples: &[Sample]) -> Option<f64> {
    let timed = count_of(sums, samples, |figures| figures.timed).value;
    let lasting = count_of(sums, samples, |figures| figures.lasting).value;
    (timed > 0.0).then(|| lasting / timed)
}

/// Which figure a list of keys is ordered by.
impl KeyRow {
    pub fn figure(&self, by: By) -> Option<u64> {
        match by {
            By::Length => self.length,
            By::Memory => self.memory,
            By::Heat => self.uses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::{Key, Part};

    fn scan(parts: &[(u64, u64)]) -> Scan {
        let mut scan = Scan::new(Questions { memory: true, ..Questions::default() }, None);
        for (n, (keys, seen)) in parts.iter().enumerate() {
            let part = Part {
                shard: format!("m{n}"),
                server: format!("s{n}"),
                run_id: "1".into(),
                replid: "r".into(),
                database: 0,
                keys: *keys,
                scanned: 0,
                gone: 0,
                cursor: "0".into(),
                is_done: false,
                is_here: false,
            };
            let (at, _) = scan.claim(part, &["r"]);
            let key = |i: u64| Key {
                name: format!("{}:{i}", if i.is_multiple_of(4) { "cart" } else { "user" }).into_bytes(),
                kind: if i.is_multiple_of(4) { "hash".into() } else { "string".into() },
                length: Some(i),
                memory: Some(100),
                ttl: if i.is_multiple_of(2) { Ttl::Ms(1000) } else { Ttl::Lasting },
                heat: None,
            };
            let keys_seen: Vec<Key> = (0..*seen).map(key).collect();
            let cursor = if seen == keys { "0" } else { "7" };
            scan.add(at, cursor, *seen, &keys_seen, |name| String::from_utf8_lossy(name).into_owned());
        }
        scan
    }

    #[test]
    fn a_part_speaks_for_the_whole_with_a_margin() {
        let report = Report::of(&scan(&[(1000, 1000), (4000, 1000)]), Walked::default(), 0);
        assert_eq!((report.keys, report.scanned, report.share), (5000, 2000, 0.25));
        assert_eq!(report.larger_unseen_at_most, Some(10));
        assert!(!report.is_complete);
        let [user, cart] = &report.patterns[..] else { panic!("{:?}", report.patterns) };
        assert_eq!((user.pattern.as_str(), cart.pattern.as_str()), ("user:*", "cart:*"));
        assert_eq!((user.keys.value, cart.keys.value), (3750.0, 1250.0));
        assert!(user.keys.margin > 0.0 && user.keys.margin < 100.0, "{user:?}");
        assert!((user.share_of_keys - 0.75).abs() < 1e-9);
        assert!((user.lasting_share.unwrap() - 2.0 / 3.0).abs() < 1e-9 && cart.lasting_share == Some(0.0));
        assert_eq!(user.memory.unwrap().value, 375_000.0);
        assert_eq!(report.kinds.iter().map(|k| k.kind.as_str()).collect::<Vec<_>>(), ["string", "hash"]);
        assert_eq!(report.longest.iter().filter(|k| k.kind == "hash").map(|k| k.length).next(), Some(Some(996)));
    }

    #[test]
    fn of_a_whole_walk_nothing_is_estimated() {
        let report = Report::of(&scan(&[(100, 100), (40, 40)]), Walked::default(), 0);
        assert!(report.is_complete && report.share == 1.0);
        assert_eq!(report.larger_unseen_at_most, Some(0));
        assert!(report.patterns.iter().all(|row| row.keys.margin == 0.0));
        let nothing = Report::of(&Scan::new(Questions::default(), None), Walked::default(), 0);
        assert_eq!((nothing.keys, nothing.is_complete), (0, true));
        let failed = Walked { missed: 1, notes: vec!["nobody answers".into()], ..Walked::default() };
        let unseen = Report::of(&Scan::new(Questions::default(), None), failed, 0);
        assert_eq!((unseen.share, unseen.larger_unseen_at_most, unseen.is_complete), (0.0, None, false));
    }
}
