//! A recording as facts: what a diagnosis would have seen in any window of it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use unslow_facts::{Facts, Host, Node, Own, Rtt, Sample, Seen, SentinelNode};
use unslow_series::{Damage, Directory, Event, Held, Item, Picked, Reader, Row, Rows, Span};
use unslow_topology::Info;

use crate::around::{AWAY_MS, Absence, Around, HOST_MS, LOOK_BACK_MS, Start, of_kind, unix};
use crate::info;
use crate::scheme::{
    Closer, HOST, LISTING, LOOKED, Listed, Listing, MACHINE, OWN_COMMAND, OWN_ERROR, OWN_READS, OWN_TOTAL, SECONDS,
    SENTINEL, STARTED, node_series,
};
use crate::seconds::{SECONDS_MS, Seconds};
use crate::window::{self, Counters, Trail, int, seconds_between};

/// A row that ends a window may be this old: one is lost where the server, or the recorder, was busy.
pub const FRESH_MS: i64 = 5_000;
/// A server that stood still was asked nothing: the row before is good for as long as that, up to this.
const STOOD_MS: i64 = 60_000;
/// A look that says of itself that it took longer did not.
const LOOK_S_MAX: f64 = 600.0;
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

/// A server was looked at closely for half a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct CloserLook {
    /// Unix time in ms.
    pub at_ms: i64,
    #[serde(flatten)]
    pub look: Closer,
}

/// What is in a recording: the document of `unslow record ls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Contents {
    /// `unslow.recording/1`.
    pub schema: String,
    /// Unix time in ms of its first row and its last.
    pub from_ms: i64,
    pub to_ms: i64,
    /// On disk.
    pub bytes: u64,
    pub deployments: Vec<Recorded>,
    /// Those of its last day, the oldest first.
    pub closer_looks: Vec<CloserLook>,
}

/// A deployment that was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Recorded {
    pub url: String,
    /// Addresses of its servers.
    pub nodes: Vec<String>,
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

    /// Closer looks in this time, and why each began; in order.
    pub fn closer_looks(&self, span_ms: Range<i64>) -> Vec<CloserLook> {
        let events = in_order(self.reader.events(Some(MACHINE), span_ms).items);
        of_kind(&events, LOOKED).map(|(at_ms, look)| CloserLook { at_ms, look }).collect()
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
        let (look_ms, look) = self.look(&window).cloned().unzip();
        for tape in &mut self.nodes {
            let listed = listing.map(|(_, l)| l.nodes.iter().find(|n| n.address == tape.address));
            match tape.node(&window, listed.flatten(), &self.starts, look_ms) {
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
        facts.hosts.extend(self.host(&window, look));
        if facts.hosts.is_empty() {
            facts.notes.push("the servers' machines were not recorded: run unslow record there as well".into());
        }
        facts.cost = unslow_probe::cost(&facts.nodes, (window.end - window.start) as f64 / 1000.0);
        Some(facts)
    }
}

impl Windows<'_> {
    /// The look at the machine that covers most of this window; of those that cover about as much, the latest.
    fn look(&self, window: &Range<i64>) -> Option<&(i64, Host)> {
        let part = |(at, host): &(i64, Host)| {
            let began = at.saturating_sub((host.window_s.clamp(0.0, LOOK_S_MAX) * 1e3) as i64);
            (*at.min(&window.end) - began.max(window.start)).max(0)
        };
        let from = self.hosts.partition_point(|(at, _)| *at <= window.start);
        let around = self.hosts[from..].iter().take_while(|(at, _)| *at < window.end + HOST_MS);
        let looks: Vec<&(i64, Host)> = around.filter(|(_, host)| host.check().is_ok()).collect();
        let most = looks.iter().map(|look| part(look)).max().filter(|most| *most > 0)?;
        looks.into_iter().rev().find(|look| part(look) * 5 >= most * 4)
    }

    /// The machine in this window: what a look at it found, and what was counted in the window.
    fn host(&mut self, window: &Range<i64>, look: Option<Host>) -> Option<Host> {
        // The recorder ended before the minute did: servers and settings are those of the look before.
        let is_before = |at: i64| (window.end - LAST_LOOK_MS..window.end).contains(&at);
        let before = || self.hosts.iter().rev().find(|(at, host)| is_before(*at) && host.check().is_ok());
        let known = look.clone().or_else(|| Some(before()?.1.clone())).unwrap_or_default();
        // Read on even where nothing is known, for the windows to come.
        let narrow = self.seconds.narrow(window, &known).filter(|host| !host.processes.is_empty());
        narrow.or(look)
    }
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
    fn node(
        &mut self,
        window: &Range<i64>,
        listed: Option<&Listed>,
        starts: &[Start],
        look_ms: Option<i64>,
    ) -> Option<Node> {
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
        around.parts(&mut node, look_ms);
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
