//! Puts what was seen into the store. No sockets, no threads, no clock: what it is told has its time with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use serde::Serialize;
use smallvec::SmallVec;
use unslow_facts::{Host, Node, Own, Seen, Side};
use unslow_probe::Round;
use unslow_probe::host::Counts;
use unslow_resp::lossy;
use unslow_series::{Disk, Error, FieldId, SeriesId, Stamp, Value, Writer};
use unslow_topology::fields_of;

use crate::info;
use crate::jumps::{self, Jump, Jumps};
use crate::notes::{NodeNumber, Note, Questions, Saw};
use crate::pings::Pings;
use crate::scheme::{
    ASKED, AWAY, Because, Closer, Greeted, HOST, LARGE, LISTING, LOOKED, LOST, Listing, MACHINE, OWN_COMMAND,
    OWN_ERROR, OWN_READS, OWN_TOTAL, Part, SECONDS, SENTINEL, SLOW, STALL, STANDING, STARTED, node_series,
};

/// Fields of one node's INFO that are kept at most; a server has some 700 with all command statistics.
const FIELDS_MAX: usize = 1000;
/// A longer value is none that a rule reads.
const VALUE_MAX: usize = 1024;
/// With the number of a column behind it, a name still fits into the store.
const NAME_MAX: usize = 900;
/// Columns of one row: half of what the store takes. What is over is not recorded.
const ROW_MAX: usize = 8_000;
/// Error codes of ours that are kept: a server may answer with any word.
const CODES_MAX: usize = 32;
/// What has not changed is written again after this time, so that a reader need not look further back.
const AGAIN_MS: u64 = 480_000;

/// Fields that change when servers change places, or one comes or goes.
pub const OF_TOPOLOGY: [&str; 4] = ["role", "master_host", "master_port", "connected_slaves"];

/// What a note says to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    /// The deployment of this node may look different now.
    Changed(NodeNumber),
    /// It stood still, or is back: who is connected, and what was slow, is worth asking now.
    AskSoon(NodeNumber),
    /// Something has begun there, or ended.
    Jumped(NodeNumber, Jump),
}

/// Takes what a recorder sees.
pub trait Take: Send + 'static {
    fn take(&mut self, note: &Note) -> Result<Told, Error>;
    /// To be called every second; `lost` notes were not taken in time so far.
    fn tick(&mut self, now: Stamp, lost: u64) -> Result<(), Error>;
    fn close(self) -> Result<(), Error>;
}

/// One node's.
struct Kept {
    series: SeriesId,
    /// Its deployment's URL, and its address.
    of: Box<(String, String)>,
    fields: Fields,
    /// Digest of what was written last, and when.
    parts: BTreeMap<Part, (u64, u64)>,
    /// The newest entry of the slow log, of large requests and of large replies.
    newest: [Option<u64>; 3],
    /// Of the fields that tell of topology.
    topology: Option<u64>,
    /// When its last row was; none while this recorder has none.
    last: Option<Stamp>,
    jumps: Jumps,
}

/// A field of INFO, as it was last.
struct Field {
    name: Arc<str>,
    value: String,
    template: Arc<str>,
    /// As many as any server's field of this name has had.
    columns: Arc<[FieldId]>,
    numbers: SmallVec<[i64; 2]>,
    /// In which row it was last.
    row: u32,
    /// For jumps.
    figure: Option<jumps::Place>,
}

impl Field {
    fn new(name: Arc<str>, template: Arc<str>) -> Field {
        let (figure, numbers) = (jumps::place(&name), SmallVec::new());
        Field { name, value: String::new(), template, columns: Arc::default(), numbers, row: 0, figure }
    }
}

/// The fields of a node. Servers list them in the same order every time, so each is looked for behind the one before.
#[derive(Default)]
struct Fields {
    all: Vec<Field>,
    /// Places in `all`, by name.
    by_name: Vec<u32>,
    next: usize,
    row: u32,
}

impl Fields {
    fn begin(&mut self) {
        (self.next, self.row) = (0, self.row.wrapping_add(1));
    }

    /// The field of this name; `None` for one that was in this row already, or is one too many.
    fn see(&mut self, name: &str, shared: &mut Shared) -> Option<&mut Field> {
        let place = match self.all.get(self.next) {
            Some(field) if *field.name == *name => self.next,
            _ => match self.place(name) {
                Ok(at) => self.by_name[at] as usize,
                Err(_) if self.all.len() >= FIELDS_MAX => return None,
                Err(_) => self.add(Field::new(shared.text(name), shared.text(info::GONE))),
            },
        };
        self.next = place + 1;
        let (row, field) = (self.row, &mut self.all[place]);
        (std::mem::replace(&mut field.row, row) != row).then_some(field)
    }

    /// Where it is in `by_name`, or would be.
    fn place(&self, name: &str) -> Result<usize, usize> {
        self.by_name.binary_search_by(|place| (*self.all[*place as usize].name).cmp(name))
    }

    /// Its place in `all`. One of the same name that is there already stays as it is.
    fn add(&mut self, field: Field) -> usize {
        match self.place(&field.name) {
            Ok(at) => self.by_name[at] as usize,
            Err(at) => {
                let place = self.all.len();
                self.by_name.insert(at, place as u32); // FIELDS_MAX at most
                if place == self.all.capacity() {
                    // A thousand servers have as many of these: room for twice as many would be much.
                    self.all.reserve_exact((place / 8).max(32));
                }
                self.all.push(field);
                place
            }
        }
    }

    /// Those that were not in this row.
    fn unseen(&mut self) -> impl Iterator<Item = &mut Field> {
        let row = self.row;
        self.all.iter_mut().filter(move |field| field.row != row)
    }
}

/// What the fields of many servers have in common, once.
#[derive(Default)]
struct Shared {
    texts: HashSet<Arc<str>>,
    columns: HashMap<Arc<str>, Arc<[FieldId]>>,
    /// How many texts are looked through for those that are not used any more.
    due: usize,
}

/// Names and templates that no field has any more go when there are so many.
const TEXTS_DUE: usize = 65_536;

impl Shared {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        if self.texts.len() >= self.due.max(TEXTS_DUE) {
            self.texts.retain(|text| Arc::strong_count(text) > 1);
            self.due = 2 * self.texts.len();
        }
        let new: Arc<str> = text.into();
        self.texts.insert(new.clone());
        new
    }

    /// The columns of a field, at least so many.
    fn columns<D: Disk>(
        &mut self,
        name: &Arc<str>,
        count: usize,
        writer: &mut Writer<D>,
    ) -> Result<Arc<[FieldId]>, Error> {
        if let Some(known) = self.columns.get(name).filter(|known| known.len() >= count) {
            return Ok(known.clone());
        }
        let all = (0..count).map(|place| writer.field(&info::column(name, place)));
        let all: Arc<[FieldId]> = all.collect::<Result<_, Error>>()?;
        self.columns.insert(name.clone(), all.clone());
        Ok(all)
    }
}

/// Everything that is written to one directory.
pub struct Keeper<D: Disk> {
    writer: Writer<D>,
    shared: Shared,
    nodes: HashMap<NodeNumber, Kept>,
    /// Keyed at random: no server can make a change look like none.
    digests: RandomState,
    row: Vec<(FieldId, Value)>,
}

impl<D: Disk> Keeper<D> {
    /// A recorder begins at this time.
    pub fn new(mut writer: Writer<D>, at: Stamp) -> Result<Keeper<D>, Error> {
        let series = writer.series(MACHINE)?;
        writer.event(series, at, STARTED, &[])?;
        Ok(Keeper {
            writer,
            shared: Shared::default(),
            nodes: HashMap::new(),
            digests: RandomState::new(),
            row: Vec::new(),
        })
    }

    fn note(&mut self, note: &Note) -> Result<Told, Error> {
        match note {
            Note::Saw(number, at, Saw::Second { info, pings, sent }) => {
                return self.second(*number, *at, &lossy(info), pings, sent);
            }
            Note::Wake => Ok(()),
            Note::Left(number) => {
                self.nodes.remove(number);
                Ok(())
            }
            Note::Node { number, url, address } => self.node(*number, url, address),
            Note::Listing { url, at, listing } => self.listing(url, *at, listing),
            Note::Saw(number, at, saw) => {
                self.saw(*number, *at, saw)?;
                let is_worth = matches!(saw, Saw::Stall(_) | Saw::Away(None));
                return Ok(if is_worth { Told::AskSoon(*number) } else { Told::Nothing });
            }
            Note::Asked(number, at, questions, node) => self.asked(*number, *at, *questions, node),
            Note::Asking(number, begins) => {
                self.nodes.get_mut(number).into_iter().for_each(|kept| kept.jumps.asking(*begins));
                Ok(())
            }
            Note::Sentinel { url, at, sentinel } => {
                let series = self.writer.series(url)?;
                self.writer.event(series, *at, SENTINEL, &json(sentinel))
            }
            Note::Host(at, host) => self.host(*at, host),
            Note::Counts(at, counts) => self.counts(*at, counts),
            Note::Sockets(number, at, sockets) => self.part(*number, *at, Part::Sockets, sockets),
        }
        .map(|()| Told::Nothing)
    }

    /// A node has this number from now on.
    fn node(&mut self, number: NodeNumber, url: &str, address: &str) -> Result<(), Error> {
        let series = self.writer.series(&node_series(url, address))?;
        // What an earlier recorder knew may be gone by now.
        let known = self.writer.texts(series).filter(|(_, template)| **template != *info::GONE);
        let mut fields = Fields::default();
        for (name, template) in known {
            fields.add(Field::new(self.shared.text(name), self.shared.text(template)));
        }
        let (parts, jumps) = (BTreeMap::new(), Jumps::default());
        let of = Box::new((url.to_string(), address.to_string()));
        let kept = Kept { series, of, fields, parts, newest: [None; 3], topology: None, last: None, jumps };
        self.nodes.insert(number, kept);
        Ok(())
    }

    fn listing(&mut self, url: &str, at: Stamp, listing: &Listing) -> Result<(), Error> {
        let series = self.writer.series(url)?;
        self.writer.event(series, at, LISTING, &json(listing))
    }

    fn host(&mut self, at: Stamp, host: &Host) -> Result<(), Error> {
        let series = self.writer.series(MACHINE)?;
        self.writer.event(series, at, HOST, &json(host))
    }

    fn counts(&mut self, at: Stamp, counts: &Counts) -> Result<(), Error> {
        let series = self.writer.series(SECONDS)?;
        self.row.clear();
        for (name, n) in counts.numbers().filter(|(name, _)| name.len() <= NAME_MAX).take(ROW_MAX) {
            self.row.push((self.writer.field(name)?, Value::Int(n)));
        }
        self.writer.sample(series, at, &self.row).map(drop)
    }

    fn saw(&mut self, number: NodeNumber, at: Stamp, saw: &Saw) -> Result<(), Error> {
        let Some(kept) = self.nodes.get(&number) else { return Ok(()) };
        match saw {
            Saw::Second { .. } => Ok(()),
            Saw::Stall(stall) => self.writer.event(kept.series, at, STALL, &json(stall)),
            Saw::Away(away) => self.writer.event(kept.series, at, AWAY, &json(away)),
            Saw::Standing(standing) => self.writer.event(kept.series, at, STANDING, &json(standing)),
            Saw::Looked(why) => {
                let (url, address) = &*kept.of;
                let look = Closer { url: url.clone(), address: address.clone(), why: *why };
                let series = self.writer.series(MACHINE)?;
                self.writer.event(series, at, LOOKED, &json(&look))
            }
        }
    }

    fn second(&mut self, number: NodeNumber, at: Stamp, info: &str, pings: &Pings, sent: &Own) -> Result<Told, Error> {
        let Some(kept) = self.nodes.get_mut(&number) else { return Ok(Told::Nothing) };
        self.row.clear();
        let mut topology = DefaultHasher::new();
        kept.fields.begin();
        // A reader looks for what held at a time: after the clock was set back nothing would. So it is said again.
        let is_back = |before: Stamp| at.step_since(before).is_some_and(|by_ms| by_ms < 0);
        if kept.last.replace(at).is_none_or(is_back) {
            for field in kept.fields.all.iter().filter(|field| *field.template != *info::GONE) {
                self.writer.text(kept.series, at, &field.name, info::GONE)?;
                self.writer.text(kept.series, at, &field.name, &field.template)?;
            }
        }
        for (name, value) in fields_of(info) {
            if !is_kept(name, value) {
                continue;
            }
            if OF_TOPOLOGY.contains(&name) {
                (name, value).hash(&mut topology);
            }
            let Some(field) = kept.fields.see(name, &mut self.shared) else { continue };
            if let Some(figure) = field.figure {
                kept.jumps.sees(figure, value);
            }
            if field.value != value || *field.template == *info::GONE {
                let parts = info::split(value);
                if self.row.len() + parts.numbers.len() > ROW_MAX {
                    continue;
                }
                if *field.template != *parts.template {
                    match self.writer.text(kept.series, at, name, &parts.template) {
                        // More names than the store holds texts of, over the years.
                        Err(Error::TooManyFields { .. }) => continue,
                        other => drop(other?),
                    }
                    field.template = self.shared.text(&parts.template);
                }
                if field.columns.len() < parts.numbers.len() {
                    field.columns = self.shared.columns(&field.name, parts.numbers.len(), &mut self.writer)?;
                }
                field.numbers = SmallVec::from_slice(&parts.numbers);
                value.clone_into(&mut field.value);
            }
            if self.row.len() + field.numbers.len() > ROW_MAX {
                continue;
            }
            self.row.extend(field.columns.iter().zip(&field.numbers).map(|(id, n)| (*id, Value::Int(*n))));
        }
        for field in kept.fields.unseen() {
            // A field whose numbers are not in a row was not there: only words have to be taken back.
            if *field.template != *info::GONE && info::count(&field.template) == 0 {
                self.writer.text(kept.series, at, &field.name, info::GONE)?;
                field.template = self.shared.text(info::GONE);
            }
        }
        for (name, n) in pings.columns().chain(own_columns(sent)) {
            self.row.push((self.writer.field(&name)?, Value::Int(n)));
        }
        self.writer.sample(kept.series, at, &self.row)?;
        let topology = topology.finish();
        let before = kept.topology.replace(topology);
        let jumped = kept.jumps.end(at.mono_ms);
        Ok(match jumped {
            _ if before.is_some_and(|before| before != topology) => Told::Changed(number),
            Some(jump) => Told::Jumped(number, jump),
            None => Told::Nothing,
        })
    }

    /// What the expensive questions found.
    fn asked(&mut self, number: NodeNumber, at: Stamp, questions: Questions, node: &Node) -> Result<(), Error> {
        let Some(kept) = self.nodes.get_mut(&number) else { return Ok(()) };
        let Questions { round, because_ms } = questions;
        if round == Round::Whole {
            let because = because_ms.map_or(Vec::new(), |because_ms| json(&Because { because_ms }));
            self.writer.event(kept.series, at, ASKED, &because)?;
        }
        if let Some(entries) = node.slowlog.value() {
            self.entries(number, at, SLOW, 0, entries.iter().map(|entry| (entry.id, entry)))?;
        }
        for (side, log) in [(Side::Request, 1), (Side::Reply, 2)] {
            let entries = node.large.value().into_iter().flatten().filter(|entry| entry.side == side);
            self.entries(number, at, LARGE, log, entries.map(|entry| (entry.id, entry)))?;
        }
        let greeted = Greeted { open_door: node.open_door, connect_us: node.connect_us };
        self.part(number, at, Part::SlowLog, &without_entries(&node.slowlog))?;
        self.part(number, at, Part::LargeLog, &without_entries(&node.large))?;
        self.part(number, at, Part::KeySizes, &node.key_sizes)?;
        self.part(number, at, Part::Latency, &node.latency)?;
        if round == Round::Often {
            return Ok(());
        }
        self.part(number, at, Part::Clients, &node.clients)?;
        self.part(number, at, Part::Config, &node.config)?;
        self.part(number, at, Part::Cluster, &node.cluster)?;
        self.part(number, at, Part::ClusterInfo, &node.cluster_info)?;
        self.part(number, at, Part::SlotStats, &node.slot_stats)?;
        self.part(number, at, Part::Histograms, &node.histograms)?;
        self.part(number, at, Part::Greeted, &Seen::yes(greeted, String::new(), 0))
    }

    /// Entries of a log that are new, each with its number. A log that was reset, or a restarted server, begins again.
    fn entries<T: Serialize>(
        &mut self,
        number: NodeNumber,
        at: Stamp,
        kind: &str,
        log: usize,
        entries: impl Iterator<Item = (u64, T)>,
    ) -> Result<(), Error> {
        let Some(kept) = self.nodes.get_mut(&number) else { return Ok(()) };
        let mut entries: Vec<(u64, T)> = entries.collect();
        entries.sort_by_key(|(id, _)| *id);
        let Some(newest) = entries.last().map(|(id, _)| *id) else { return Ok(()) };
        let known = kept.newest[log].filter(|known| *known <= newest);
        for (_, entry) in entries.iter().filter(|(id, _)| known.is_none_or(|known| *id > known)) {
            self.writer.event(kept.series, at, kind, &json(entry))?;
        }
        kept.newest[log] = Some(newest);
        Ok(())
    }

    /// Writes a part, unless it says what it said a moment ago.
    fn part<T: Serialize + Clone>(
        &mut self,
        number: NodeNumber,
        at: Stamp,
        part: Part,
        seen: &Seen<T>,
    ) -> Result<(), Error> {
        let Some(kept) = self.nodes.get_mut(&number) else { return Ok(()) };
        // When it was asked is the event's time; within the payload it would make each differ from the last.
        let same = match seen {
            Seen::Yes { value, source, .. } => {
                json(&Seen::Yes { value: value.clone(), source: source.clone(), at_ms: 0 })
            }
            no => json(no),
        };
        let digest = self.digests.hash_one(&same);
        let known = kept.parts.get(&part);
        let is_known = known.is_some_and(|(last, ms)| *last == digest && at.mono_ms.saturating_sub(*ms) < AGAIN_MS);
        if is_known || (known.is_none() && matches!(seen, Seen::No(_)) && seen.refused().is_none()) {
            return Ok(());
        }
        match self.writer.event(kept.series, at, part.name(), &same) {
            // A cluster of thousands: what is too long is not kept, and the reader says that it is not there.
            Err(Error::TooLong { .. }) => {}
            other => other?,
        }
        kept.parts.insert(part, (digest, at.mono_ms));
        Ok(())
    }
}

impl<D: Disk + Send + 'static> Take for Keeper<D> {
    fn take(&mut self, note: &Note) -> Result<Told, Error> {
        self.note(note)
    }

    /// Says that the recorder is alive, and what it was too slow for.
    fn tick(&mut self, now: Stamp, lost: u64) -> Result<(), Error> {
        let (series, field) = (self.writer.series(MACHINE)?, self.writer.field(LOST)?);
        self.writer.sample(series, now, &[(field, Value::Int(i64::try_from(lost).unwrap_or(i64::MAX)))])?;
        self.writer.tick(now)
    }

    /// Ends all chunks.
    fn close(self) -> Result<(), Error> {
        self.writer.close().map(drop)
    }
}

/// Names that begin with `~` are the recorder's own columns.
fn is_kept(name: &str, value: &str) -> bool {
    // Paths tell more of a machine than a diagnosis needs.
    let tells_too_much = matches!(name, "executable" | "config_file");
    value.len() <= VALUE_MAX && name.len() <= NAME_MAX && !name.starts_with('~') && !tells_too_much
}

/// Whether a log was read: its entries are events of their own.
fn without_entries<T: Clone>(log: &Seen<Vec<T>>) -> Seen<Vec<T>> {
    match log {
        Seen::Yes { source, at_ms, .. } => Seen::yes(Vec::new(), source.clone(), *at_ms),
        no => no.clone(),
    }
}

fn own_columns(own: &Own) -> Vec<(String, i64)> {
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let commands = own.commands.iter().map(|(name, n)| (format!("{OWN_COMMAND}{name}"), count(*n)));
    let codes = own.errors.iter().filter(|(code, _)| code.len() <= NAME_MAX / 2).take(CODES_MAX);
    let errors = codes.map(|(code, n)| (format!("{OWN_ERROR}{code}"), count(*n)));
    let sums = [(OWN_READS, own.reads), (OWN_TOTAL, own.total)];
    commands.chain(errors).chain(sums.map(|(name, n)| (name.to_string(), count(n)))).collect()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Maps with keys that are no text, and numbers that are none: neither is in these types.
    serde_json::to_vec(value).unwrap_or_default()
}
