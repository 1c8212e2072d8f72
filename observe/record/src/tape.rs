//! A recording as facts: what a diagnosis would have seen in any window of it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use unslow_facts::{
    Facts, Gap, Host, Lack, LargeEntry, LaterView, Node, Own, Rtt, Sample, Seen, SentinelNode, Side, SlowEntry,
    Standing, TimeRange,
};
use unslow_series::{Damage, Directory, Event, Held, Item, Picked, Reader, Row, Rows, Span};
use unslow_topology::{ClusterView, Info};

use crate::info;
use crate::scheme::{
    ASKED, AWAY, Away, Greeted, HOST, LARGE, LISTING, Listed, Listing, MACHINE, OWN_COMMAND, OWN_ERROR, OWN_READS,
    OWN_TOTAL, Part, SECONDS, SENTINEL, SLOW, STALL, STANDING, STARTED, Stall, TELL_AGAIN_MS, node_series,
};
use crate::seconds::{SECONDS_MS, Seconds};
use crate::window::{self, Counters, Trail, int, seconds_between};

/// Parts are written again at least every ten minutes, and asked for every minute.
pub const LOOK_BACK_MS: i64 = 11 * 60_000;
/// A row that ends a window may be this old: one is lost where the server, or the recorder, was busy.
pub const FRESH_MS: i64 = 5_000;
/// A server that stood still was asked nothing: the row before is good for as long as that, up to this.
const STOOD_MS: i64 = 60_000;
/// From the mark that questions were asked to what was found.
const MARK_MS: i64 = 100;
/// A connection that was closed and opened again is no absence.
const ABSENT_MS: i64 = 3_000;
/// So much of an absence belongs to a window at least: what is less is its neighbour's.
const WITHIN_MS: i64 = 1_000;
/// For so long a node is away without a further word of it.
const AWAY_MS: i64 = TELL_AGAIN_MS as i64 + 60_000;
/// From one histogram to the next, unless the recorder was told otherwise.
const MINUTE_MS: i64 = 60_000;
/// What a minute on the machine was like is known when it is over.
pub const HOST_MS: i64 = 70_000;

/// Servers and settings are those of a look this long ago at most, where there was none since.
const LAST_LOOK_MS: i64 = 2 * HOST_MS;

/// Why a recording gives no facts.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    #[error(transparent)]
    Store(#[from] unslow_series::Error),
    /// Nothing was ever recorded there, or there is no such directory.
    #[error("{dir}: no recording; make one with: unslow record URL --dir {dir}")]
    Empty { dir: String },
    /// No such deployment in it.
    #[error("nothing is recorded of {url}; this recording has {has}")]
    Unknown { url: String, has: String },
    /// Several, and none was named.
    #[error("several deployments are recorded; name one of them: {has}")]
    Several { has: String },
    /// It was edited, or made up.
    #[error("the recording is damaged there: {0}")]
    Impossible(#[from] unslow_facts::Impossible),
    /// There is nothing between these times to write to a file.
    #[error("nothing was recorded between these times; unslow record ls shows what was")]
    NothingToExport,
    /// More than one file of the store holds.
    #[error("too much for one file (128 MB); export a shorter time")]
    TooLong,
    /// The file cannot be written.
    #[error("{file}: {source}")]
    File { file: String, source: std::io::Error },
    /// No such number in it.
    #[error("no number {name:?} is recorded; near it: {near}")]
    NoFigure { name: String, near: String },
    /// More than memory is to hold.
    #[error("too many numbers for one file; choose some with --fields, or a longer --step")]
    TooManyFigures,
    /// Outside of what was recorded, or in a hole of it.
    #[error("nothing was recorded between these times")]
    Nothing { recorded: Span },
}

/// A directory that a recorder writes, or has written, or a file with a part of it.
pub struct Tape {
    pub(crate) reader: Reader<Directory>,
}

impl Tape {
    /// Reads what there is at this moment.
    pub fn open(dir: &Path) -> Result<Tape, TapeError> {
        let reader = if dir.exists() { Some(Reader::open(dir)?) } else { None };
        let reader = reader.filter(|reader| reader.span().is_some());
        reader.map(|reader| Tape { reader }).ok_or_else(|| TapeError::Empty { dir: dir.display().to_string() })
    }

    /// From the first to the last thing recorded.
    pub fn span(&self) -> Span {
        self.reader.span().unwrap_or(Span { from_ms: 0, to_ms: 0 })
    }

    /// When the newest of it was recorded, by the clock of then: one that was set back is before the span's end.
    pub fn newest_ms(&self) -> i64 {
        self.reader.newest_ms().unwrap_or(0)
    }

    /// Reads everything for what cannot be read.
    pub fn verify(&self) -> Vec<Damage> {
        self.reader.verify()
    }

    /// The deployments' URLs.
    pub fn deployments(&self) -> Vec<Arc<str>> {
        let all = self.reader.series().into_iter();
        all.filter(|name| !name.is_empty() && !name.contains(' ') && **name != *MACHINE).collect()
    }

    /// Addresses of the nodes of a deployment that anything is recorded of.
    pub fn nodes(&self, url: &str) -> Vec<String> {
        let prefix = node_series(url, "");
        self.reader.series().iter().filter_map(|name| name.strip_prefix(&prefix).map(str::to_string)).collect()
    }

    /// The deployment that is meant: the one that is recorded, where none was named.
    pub fn deployment(&self, url: Option<&str>) -> Result<Arc<str>, TapeError> {
        let all = self.deployments();
        let has = || all.join(", ");
        match (url, &all[..]) {
            (None, [one]) => Ok(one.clone()),
            (None, _) => Err(TapeError::Several { has: has() }),
            (Some(url), _) => all
                .iter()
                .find(|recorded| ***recorded == *url)
                .cloned()
                .ok_or_else(|| TapeError::Unknown { url: url.to_string(), has: has() }),
        }
    }

    /// The facts of one window.
    pub fn facts(&self, url: &str, window_ms: Range<i64>) -> Result<Facts, TapeError> {
        let step_ms = window_ms.end - window_ms.start;
        let facts = self.windows(url, window_ms, step_ms).next();
        let facts = facts.filter(|facts| !facts.nodes.is_empty());
        let facts = facts.ok_or(TapeError::Nothing { recorded: self.span() })?;
        facts.check()?;
        Ok(facts)
    }

    /// The facts of one window after the other, each `step_ms` long; the last may be shorter. Windows in which nothing
    /// was recorded have no nodes.
    pub fn windows(&self, url: &str, span_ms: Range<i64>, step_ms: i64) -> Windows<'_> {
        let events_ms = span_ms.start - LOOK_BACK_MS..span_ms.end + HOST_MS;
        let of_deployment = self.reader.events(Some(url), events_ms.clone()).items;
        let of_machine = in_order(self.reader.events(Some(MACHINE), events_ms.start..span_ms.end + AWAY_MS).items);
        let mut listings: Vec<(i64, Listing)> = of_kind(&of_deployment, LISTING).collect();
        listings.sort_by_key(|(at, _)| *at);
        let nodes = self.nodes(url).into_iter().map(|address| {
            let series = node_series(url, &address);
            let rows_ms = span_ms.start - FRESH_MS - STOOD_MS..span_ms.end;
            let (events, texts) = self.reader.notes(&series, events_ms.clone(), rows_ms.clone());
            NodeTape {
                events: in_order(events),
                texts: Texts::of(texts),
                rows: self.reader.range(&series, rows_ms),
                picked: Picked::new(Counters::are_or_pings),
                next: None,
                edge: None,
                newest: None,
                address,
            }
        });
        Windows {
            nodes: nodes.collect(),
            url: url.to_string(),
            listings,
            sentinels: of_kind(&of_deployment, SENTINEL).collect(),
            hosts: of_kind(&of_machine, HOST).collect(),
            seconds: Seconds::of(self.reader.range(SECONDS, span_ms.start - SECONDS_MS..span_ms.end + SECONDS_MS)),
            starts: self.starts(&of_machine),
            at_ms: span_ms.start,
            end_ms: span_ms.end,
            step_ms: step_ms.max(1),
        }
    }

    /// Where recorders began, and until when the one before was alive.
    fn starts(&self, of_machine: &[Event]) -> Vec<Start> {
        let starts = of_machine.iter().filter(|event| event.kind == STARTED).map(|event| event.at.wall_ms);
        let start = |at_ms: i64| {
            let before = self.reader.range(MACHINE, at_ms - AWAY_MS..at_ms);
            let rows = before.filter_map(|item| match item {
                Item::Row(row) => Some(row.at.wall_ms),
                Item::Gap(_) | Item::Step(_) => None,
            });
            Start { at_ms, before_ms: rows.max() }
        };
        starts.map(start).collect()
    }
}

/// In the order of time, which is not that of recording where a clock was set back.
fn in_order(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|event| event.at.wall_ms);
    events
}

/// Facts, window by window.
pub struct Windows<'a> {
    url: String,
    nodes: Vec<NodeTape<'a>>,
    listings: Vec<(i64, Listing)>,
    sentinels: Vec<(i64, SentinelNode)>,
    hosts: Vec<(i64, Host)>,
    seconds: Seconds<'a>,
    starts: Vec<Start>,
    at_ms: i64,
    end_ms: i64,
    step_ms: i64,
}

impl Iterator for Windows<'_> {
    type Item = Facts;

    fn next(&mut self) -> Option<Facts> {
        if self.at_ms >= self.end_ms {
            return None;
        }
        let window = self.at_ms..(self.at_ms + self.step_ms).min(self.end_ms);
        self.at_ms = window.end;
        let mut facts = Facts::of_nothing(&self.url);
        (facts.at_ms, facts.window_s) = (unix(window.start), (window.end - window.start) as f64 / 1000.0);
        let listing = self.listings.iter().rev().find(|(at, _)| *at < window.end).or(self.listings.first());
        if let Some((_, listing)) = listing {
            facts.kind = listing.kind;
            facts.notes.clone_from(&listing.notes);
            facts.through.clone_from(&listing.through);
        }
        for tape in &mut self.nodes {
            let listed = listing.map(|(_, l)| l.nodes.iter().find(|n| n.address == tape.address));
            match tape.node(&window, listed.flatten(), &self.starts) {
                // It does not belong to the deployment: a Sentinel that was asked before it was known as one.
                Some(_) if listed == Some(None) => {}
                // What one server makes up must not hide the others.
                Some(node) => match node.check() {
                    Ok(()) => facts.nodes.push(node),
                    Err(why) => facts.notes.push(format!("{}: its numbers cannot be: {why}", tape.address)),
                },
                None if listed.is_some_and(|l| l.is_some()) => {
                    facts.notes.push(format!("{}: nothing was recorded of it in this window", tape.address));
                }
                None => {}
            }
        }
        if facts.nodes.is_empty() {
            return Some(facts);
        }
        let recent = self.sentinels.iter().filter(|(at, _)| window.start - LOOK_BACK_MS < *at && *at < window.end);
        let newest: BTreeMap<&str, &SentinelNode> = recent.map(|(_, s)| (s.address.as_str(), s)).collect();
        facts.sentinels.extend(newest.into_values().cloned());
        facts.hosts.extend(self.host(&window));
        if facts.hosts.is_empty() {
            facts.notes.push("the servers' machines were not recorded: run unslow record there as well".into());
        }
        facts.cost = unslow_probe::cost(&facts.nodes, (window.end - window.start) as f64 / 1000.0);
        Some(facts)
    }
}

impl Windows<'_> {
    /// The machine in this window: what a look at it found in the minute around, and what was counted in the window.
    fn host(&mut self, window: &Range<i64>) -> Option<Host> {
        let behind = self.hosts.iter().find(|(at, _)| *at >= window.end && *at < window.end + HOST_MS);
        let around = behind.or(self.hosts.iter().rev().find(|(at, _)| window.contains(at)));
        let look = around.map(|(_, host)| host.clone()).filter(|host| host.check().is_ok());
        // The recorder ended before the minute did: servers and settings are those of the look before.
        let is_before = |at: i64| (window.end - LAST_LOOK_MS..window.end).contains(&at);
        let before = || self.hosts.iter().rev().find(|(at, host)| is_before(*at) && host.check().is_ok());
        let known = look.clone().or_else(|| Some(before()?.1.clone())).unwrap_or_default();
        // Read on even where nothing is known, for the windows to come.
        let narrow = self.seconds.narrow(window, &known).filter(|host| !host.processes.is_empty());
        narrow.or(look)
    }
}

/// A recorder began.
struct Start {
    at_ms: i64,
    /// The last sign of life of the one before.
    before_ms: Option<i64>,
}

/// Times in which a node did not answer.
struct Absence {
    away: Away,
    from_ms: i64,
    until_ms: i64,
}

/// The number of the row whose INFO was put together last, and that: where a window ends the next one begins.
type Newest = Option<(u64, Info)>;

/// One node's recording, read forwards.
struct NodeTape<'a> {
    address: String,
    /// In the order of time.
    events: Vec<Event>,
    texts: Texts,
    rows: Rows<'a, Directory>,
    picked: Picked,
    /// Read and not yet used.
    next: Option<Row>,
    /// The last row before this window.
    edge: Option<Row>,
    newest: Newest,
}

impl NodeTape<'_> {
    fn row_before(&mut self, end_ms: i64) -> Option<Row> {
        let row = self.next.take().or_else(|| {
            self.rows.by_ref().find_map(|item| match item {
                Item::Row(row) => Some(row),
                Item::Gap(_) | Item::Step(_) => None,
            })
        })?;
        if row.at.wall_ms < end_ms {
            return Some(row);
        }
        self.next = Some(row);
        None
    }

    /// `None` where nothing is known of it in this window.
    fn node(&mut self, window: &Range<i64>, listed: Option<&Listed>, starts: &[Start]) -> Option<Node> {
        let mut answered = Vec::new();
        let mut trail = Trail::new(window.start);
        let mut first = self.edge.take();
        let mut next = self.row_before(window.end);
        while let Some(row) = next.take_if(|row| row.at.wall_ms < window.start) {
            first = Some(row);
            next = self.row_before(window.end);
        }
        first = first.filter(|row| {
            let more_ms = window.start - row.at.wall_ms - FRESH_MS;
            let stood = || Around::of(&self.events, window).stood_ms(row.at.wall_ms..window.end);
            more_ms <= 0 || more_ms <= STOOD_MS && more_ms <= stood()
        });
        if let Some(row) = &first {
            trail.see(row, &mut self.picked);
        }
        let mut last = None;
        while let Some(row) = next {
            // The clock was set back: what came before is another time.
            if row.at.wall_ms < window.start {
                answered.clear();
                trail = Trail::new(window.start);
                trail.see(&row, &mut self.picked);
                (first, last) = (Some(row), None);
                next = self.row_before(window.end);
                continue;
            }
            trail.see(&row, &mut self.picked);
            answered.push(row.at.wall_ms);
            match &first {
                None => first = Some(row),
                Some(_) => last = Some(row),
            }
            next = self.row_before(window.end);
        }
        let around = Around::of(&self.events, window);
        let absence = around.absence(starts, &answered);
        self.edge = last.clone().or_else(|| first.clone());
        let mut node = Node::new(&self.address, listed.map_or(unslow_topology::Role::Unknown, |l| l.role));
        (node.master, node.node_id) = listed.map_or((None, None), |l| (l.master.clone(), l.node_id.clone()));
        match (first, last) {
            (Some(first), Some(last)) => measured(&self.texts, &mut self.newest, &mut node, [&first, &last]),
            // One that is not listed any more was taken away on purpose.
            _ if absence.is_some() && listed.is_some() => {}
            _ => return None,
        }
        (node.series, node.pings) = (trail.points, trail.pings);
        around.stalls(&mut node);
        let away = absence.as_ref().map(|absence| i64::try_from(absence.away.since_ms).unwrap_or(0)..absence.until_ms);
        node.standing = around.standing(away.as_ref().unwrap_or(window));
        let times: Vec<u32> = node.pings.iter().map(|(_, us)| *us).collect();
        if let Some(rtt) = Rtt::of(&times) {
            node.rtt = Seen::yes(rtt, "PING", unix(window.end));
        }
        around.parts(&mut node);
        if let Some(Absence { away, until_ms, .. }) = absence {
            node.silent_ms = away.silent.then(|| unix(until_ms).saturating_sub(away.since_ms));
            (node.unreachable, node.away) = (Some(format!("{}: {}", self.address, away.why)), Some(away.lack));
        }
        Some(node)
    }
}

fn measured(texts: &Texts, newest: &mut Newest, node: &mut Node, [first, last]: [&Row; 2]) {
    let mut sample = |row: &Row| {
        let known = newest.as_ref().filter(|(seq, _)| *seq == row.seq).map(|(_, info)| info.clone());
        let info = known.unwrap_or_else(|| texts.info(row));
        *newest = Some((row.seq, info.clone()));
        Sample { at_ms: unix(row.at.wall_ms), info }
    };
    let samples = [sample(first), sample(last)];
    let same_recorder = number(last, OWN_TOTAL) >= number(first, OWN_TOTAL);
    let s = seconds_between(first.at, last.at, same_recorder);
    let [first_sample, last_sample] = samples;
    window::measured(node, first_sample, last_sample, s, own_between(first, last));
}

/// What was seen of a node around a window.
struct Around<'a> {
    window: &'a Range<i64>,
    events: &'a [Event],
}

impl<'a> Around<'a> {
    fn of(events: &'a [Event], window: &'a Range<i64>) -> Around<'a> {
        let from = events.partition_point(|e| e.at.wall_ms < window.start - LOOK_BACK_MS);
        let to = events.partition_point(|e| e.at.wall_ms < window.end + HOST_MS);
        Around { window, events: &events[from..to.max(from)] }
    }

    /// For how much of this time it owed an answer, in one go, in ms.
    fn stood_ms(&self, within: Range<i64>) -> i64 {
        let stalls = of_kind::<Stall>(self.events, STALL).map(|(at, stall)| {
            let sent = i64::try_from(stall.sent_ms).unwrap_or(at);
            (at.min(within.end) - sent.max(within.start)).max(0)
        });
        stalls.max().unwrap_or(0)
    }

    /// The longest time in the window in which it did not answer. `answered` are the times of rows in it.
    fn absence(&self, starts: &[Start], answered: &[i64]) -> Option<Absence> {
        let window = self.window;
        // A hang is told when it has lasted for some seconds: words behind the window may be about it.
        let words: Vec<(i64, Option<Away>)> = of_kind(self.events, AWAY).collect();
        let nexts = words.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        let absences = words.iter().zip(nexts).filter_map(|((at, away), next_ms)| {
            let away = away.clone()?;
            // It holds until the next word, for a while, and for as long as there is a recorder.
            let started = starts.iter().find(|start| start.at_ms > *at);
            let alive_ms = started.map(|start| start.before_ms.unwrap_or(*at).max(*at));
            let row_ms = answered.iter().find(|row| **row > *at && away.lack == Lack::Answer);
            let until_ms = [next_ms, Some(*at + AWAY_MS), alive_ms, row_ms.copied()].into_iter().flatten().min()?;
            let from_ms = (*at).min(i64::try_from(away.since_ms).unwrap_or(*at));
            Some(Absence { away, from_ms, until_ms })
        });
        // It is told again while it lasts, and may be told better.
        let joined = absences.fold(Vec::new(), |mut all: Vec<Absence>, next| {
            match all.last_mut().filter(|last| last.until_ms >= next.from_ms) {
                Some(last) => (last.until_ms, last.away) = (last.until_ms.max(next.until_ms), next.away),
                None => all.push(next),
            }
            all
        });
        let long = joined.into_iter().filter(|a| a.until_ms - a.from_ms >= ABSENT_MS);
        let within = long.map(|a| {
            let (from_ms, until_ms) = (a.from_ms.max(window.start), a.until_ms.min(window.end));
            Absence { from_ms, until_ms, ..a }
        });
        within.filter(|a| a.until_ms - a.from_ms >= WITHIN_MS).max_by_key(|a| a.until_ms - a.from_ms)
    }

    fn stalls(&self, node: &mut Node) {
        let window = self.window;
        for (at, stall) in of_kind::<Stall>(self.events, STALL) {
            let sent = i64::try_from(stall.sent_ms).unwrap_or(i64::MAX);
            if at >= window.start && sent < window.end {
                let from = sent.max(window.start);
                let us = u32::try_from(stall.us).unwrap_or(u32::MAX);
                node.pings.push(((from - window.start) as u32, us));
            }
        }
        node.pings.sort_unstable();
    }

    /// What was seen of its process in that time, for as long as possible: of a node that is away only what belongs to
    /// its absence, not a stall before it.
    fn standing(&self, within: &Range<i64>) -> Option<Standing> {
        let reaches = |(at, seen): &(i64, Standing)| {
            let span_ms = i64::try_from(seen.span_ms).unwrap_or(i64::MAX);
            // In an absence from the first look on; in a window, which is cut out, as far as it reaches in.
            let begins = at.saturating_sub(span_ms);
            let is_in = within == self.window || begins >= within.start - ABSENT_MS;
            is_in && *at >= within.start && begins < within.end
        };
        let all = of_kind::<Standing>(self.events, STANDING).filter(reaches);
        all.map(|(_, seen)| seen).max_by_key(|seen| seen.span_ms)
    }

    fn parts(&self, node: &mut Node) {
        let window = self.window;
        let not_asked = Gap::new(Lack::Time, "not asked in this part of the recording", "");
        node.config = self.part(Part::Config, window, &not_asked);
        node.latency = self.part(Part::Latency, window, &not_asked);
        node.clients = self.part(Part::Clients, window, &not_asked);
        (node.cluster, node.cluster_last) = self.views(&not_asked);
        node.cluster_info = self.part(Part::ClusterInfo, window, &not_asked);
        node.slot_stats = self.part(Part::SlotStats, window, &not_asked);
        node.key_sizes = self.part(Part::KeySizes, window, &not_asked);
        node.sockets = self.part(Part::Sockets, window, &not_asked);
        node.histograms = self.histograms(&not_asked);
        node.slowlog = match self.part::<Vec<SlowEntry>>(Part::SlowLog, window, &not_asked) {
            Seen::Yes { source, at_ms, .. } => {
                let value = self.logged(SLOW, |entry: &SlowEntry| (entry.at_s, entry.id, None));
                Seen::yes(value, source, at_ms)
            }
            no => no,
        };
        node.large = match self.part::<Vec<LargeEntry>>(Part::LargeLog, window, &not_asked) {
            Seen::Yes { source, at_ms, .. } => {
                let value = self.logged(LARGE, |entry: &LargeEntry| (entry.at_s, entry.id, Some(entry.side)));
                Seen::yes(value, source, at_ms)
            }
            no => no,
        };
        if let Seen::Yes { value, .. } = self.part::<Greeted>(Part::Greeted, window, &not_asked) {
            (node.open_door, node.connect_us) = (value.open_door, value.connect_us);
        }
    }

    /// The newest of a kind before the window's end; one that was asked in the minute behind it rather than none.
    fn part<T: DeserializeOwned>(&self, part: Part, window: &Range<i64>, missing: &Gap) -> Seen<T> {
        let mut of_part = self.events.iter().filter(|e| e.kind == part.name());
        let before = of_part.clone().rev().find(|e| e.at.wall_ms < window.end);
        let Some(event) = before.or_else(|| of_part.next()) else { return Seen::No(missing.clone()) };
        match serde_json::from_slice(&event.payload) {
            Ok(Seen::Yes { value, source, .. }) => Seen::Yes { value, source, at_ms: unix(event.at.wall_ms) },
            Ok(no) => no,
            Err(_) => Seen::No(Gap::new(Lack::Other, format!("{}: the recording is damaged there", part.name()), "")),
        }
    }

    /// The cluster as it was asked for around the window's start, and again as far as possible from it.
    fn views(&self, missing: &Gap) -> (Seen<ClusterView>, Seen<LaterView>) {
        let window = self.window;
        let asked: Vec<i64> = self.events.iter().filter(|e| e.kind == ASKED).map(|e| e.at.wall_ms).collect();
        let before = asked.iter().rev().find(|at| **at <= window.start);
        let (Some(first), Some(last)) = (before.or(asked.first()), asked.iter().rev().find(|at| **at < window.end))
        else {
            return (self.part(Part::Cluster, window, missing), Seen::No(missing.clone()));
        };
        // What is found is written right behind the mark that it was asked for.
        let at = |asked: i64| self.part::<ClusterView>(Part::Cluster, &(asked..asked + MARK_MS), missing);
        let (first_view, last_view) = (at(*first), at(*last));
        let later = match (&first_view, last_view) {
            _ if first >= last => Seen::No(missing.clone()),
            (Seen::Yes { value: before, .. }, Seen::Yes { value: now, source, .. }) => {
                Seen::yes(LaterView::of(before, Arc::unwrap_or_clone(now)), source, unix(*last))
            }
            (_, Seen::No(gap)) => Seen::No(gap),
            (Seen::No(gap), _) => Seen::No(gap.clone()),
        };
        (first_view, later)
    }

    /// Each event counts the calls of the minute before it: in a shorter window the next one has most of it.
    fn histograms(&self, missing: &Gap) -> Seen<BTreeMap<String, Vec<TimeRange>>> {
        type Counted = BTreeMap<String, Vec<TimeRange>>;
        let window = self.window;
        let after = self.events.partition_point(|e| e.at.wall_ms <= window.start);
        let all = of_kind::<Seen<Counted>>(&self.events[after..], Part::Histograms.name());
        let later = all.filter_map(|(at, seen)| Some((at, seen.value()?.clone())));
        let (mut within, behind): (Vec<(i64, Counted)>, Vec<_>) = later.partition(|(at, _)| *at <= window.end);
        if window.end - window.start < MINUTE_MS {
            within.extend(behind.into_iter().next());
        }
        let Some(at) = within.last().map(|(at, _)| *at) else { return self.part(Part::Histograms, window, missing) };
        let mut sums: BTreeMap<String, BTreeMap<u64, u64>> = BTreeMap::new();
        for (name, range) in
            within.iter().flat_map(|(_, c)| c).flat_map(|(name, all)| all.iter().map(move |r| (name, r)))
        {
            *sums.entry(name.clone()).or_default().entry(range.up_to_us).or_default() += range.calls;
        }
        let ranges = |by_end: BTreeMap<u64, u64>| {
            by_end.into_iter().map(|(up_to_us, calls)| TimeRange { up_to_us, calls }).collect()
        };
        let value = sums.into_iter().map(|(name, by_end)| (name, ranges(by_end))).collect();
        Seen::yes(value, "LATENCY HISTOGRAM", unix(at))
    }

    /// Entries of a log, the newest first, as the server lists them; those of the window and of ten minutes before.
    /// `place` is when an entry was made, and what tells it from others.
    fn logged<T: DeserializeOwned>(&self, kind: &str, place: impl Fn(&T) -> (u64, u64, Option<Side>)) -> Vec<T> {
        let window = self.window;
        let since_s = unix(window.start - LOOK_BACK_MS) / 1000;
        let end_s = unix(window.end).div_ceil(1000);
        let all = of_kind::<T>(self.events, kind).map(|(_, entry)| entry);
        let mut entries: Vec<T> = all.filter(|e| (since_s..=end_s).contains(&place(e).0)).collect();
        entries.sort_by_key(|e| std::cmp::Reverse(place(e)));
        // A recorder that is started again reads all of the log.
        entries.dedup_by_key(|e| place(e));
        entries
    }
}

/// The templates of INFO's fields and since when each holds, by name: an INFO is sorted by name as well.
pub struct Texts(BTreeMap<String, Vec<(i64, String)>>);

impl Texts {
    pub fn of(held: Vec<Held>) -> Texts {
        let mut all: BTreeMap<String, Vec<(i64, String)>> = BTreeMap::new();
        for held in held {
            all.entry(held.name.to_string()).or_default().push((held.since_ms, held.value.to_string()));
        }
        Texts(all)
    }

    /// All of them, with their fields' names.
    pub fn templates(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|(name, all)| all.iter().map(move |(_, template)| (name.as_str(), template.as_str())))
    }

    /// How many decimals the number of a field had at a time, unix time in ms; 0 for what is a column alone.
    pub fn decimals(&self, field: &str, at_ms: i64) -> i32 {
        let held = self.0.get(field).and_then(|all| all.iter().rev().find(|(since, _)| *since <= at_ms));
        held.map_or(0, |(_, template)| info::decimals(template))
    }

    pub fn info(&self, row: &Row) -> Info {
        let values: HashMap<&str, i64> = row.values().filter_map(|(name, v)| Some((&**name, int(v)?))).collect();
        let templates = self.0.iter().filter_map(|(name, all)| {
            let held = all.iter().rev().find(|(since, _)| *since <= row.at.wall_ms)?;
            Some((name.as_str(), held.1.as_str()))
        });
        info::rebuild(templates, |column| values.get(column).copied())
    }
}

fn number(row: &Row, name: &str) -> i64 {
    row.get(name).and_then(int).unwrap_or(0)
}

/// What we sent between two rows; a recorder that began in between counts from its start.
fn own_between(first: &Row, last: &Row) -> Own {
    let is_own = |name: &str| name.starts_with("~own/");
    let own_of = first.values().filter(|(name, _)| is_own(name));
    let before: HashMap<&str, i64> = own_of.filter_map(|(name, v)| Some((&**name, int(v)?))).collect();
    let mut own = Own::default();
    for (name, value) in last.values() {
        let Some(n) = is_own(name).then(|| int(value)).flatten() else { continue };
        let then = before.get(&**name).copied().unwrap_or(0);
        let grown = u64::try_from(if n >= then { n - then } else { n }).unwrap_or(0);
        if grown == 0 {
        } else if let Some(command) = name.strip_prefix(OWN_COMMAND) {
            own.commands.insert(command.to_string(), grown);
        } else if let Some(code) = name.strip_prefix(OWN_ERROR) {
            own.errors.insert(code.to_string(), grown);
        } else if &**name == OWN_READS {
            own.reads = grown;
        } else if &**name == OWN_TOTAL {
            own.total = grown;
        }
    }
    own
}

fn of_kind<'a, T: DeserializeOwned + 'a>(events: &'a [Event], kind: &'a str) -> impl Iterator<Item = (i64, T)> + 'a {
    let of_kind = events.iter().filter(move |event| event.kind == kind);
    of_kind.filter_map(|event| Some((event.at.wall_ms, serde_json::from_slice(&event.payload).ok()?)))
}

fn unix(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}
