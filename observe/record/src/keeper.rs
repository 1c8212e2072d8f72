//! Puts what was seen into the store. No sockets, no threads, no clock: what it is told has its time with it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Serialize;
use unslow_facts::{Host, Node, Own, Seen, SlowEntry};
use unslow_series::{Disk, Error, FieldId, SeriesId, Stamp, Value, Writer};

use crate::info;
use crate::notes::{NodeNumber, Note, Saw, Sent};
use crate::pings::Pings;
use crate::scheme::{
    AWAY, Greeted, HOST, LISTING, LOST, Listing, MACHINE, OWN_COMMAND, OWN_ERROR, OWN_READS, OWN_TOTAL, Part, SENTINEL,
    SLOW, STALL, node_series,
};

/// Fields of one node's INFO that are kept at most; a server has some 700 with all command statistics.
const FIELDS_MAX: usize = 1000;
/// A longer value is none that a rule reads.
const VALUE_MAX: usize = 1024;
/// What has not changed is written again after this time, so that a reader need not look further back.
const AGAIN_MS: u64 = 540_000;

/// Fields that change when servers change places, or one comes or goes.
const OF_TOPOLOGY: [&str; 4] = ["role", "master_host", "master_port", "connected_slaves"];

/// What a note says to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    /// The deployment of this node may look different now.
    Changed(NodeNumber),
}

/// One node's.
struct Kept {
    series: SeriesId,
    /// What each field of INFO looked like last.
    fields: HashMap<String, Field>,
    parts: BTreeMap<Part, (Vec<u8>, u64)>,
    /// The newest entry of the slow log.
    slow_id: Option<u64>,
    /// What the expensive questions sent.
    own: Own,
    /// Of the fields that tell of topology.
    topology: Option<u64>,
}

struct Field {
    template: String,
    columns: Vec<FieldId>,
}

/// Everything that is written to one directory.
pub struct Keeper<D: Disk> {
    writer: Writer<D>,
    nodes: HashMap<NodeNumber, Kept>,
    row: Vec<(FieldId, Value)>,
}

impl<D: Disk> Keeper<D> {
    pub fn new(writer: Writer<D>) -> Keeper<D> {
        Keeper { writer, nodes: HashMap::new(), row: Vec::new() }
    }

    /// Takes a note.
    pub fn take(&mut self, note: &Note) -> Result<Told, Error> {
        match note {
            Note::Saw(number, at, Saw::Second { info, pings, sent }) => {
                return self.second(*number, *at, &String::from_utf8_lossy(info), pings, *sent);
            }
            Note::Wake => Ok(()),
            Note::Node { number, url, address } => self.node(*number, url, address),
            Note::Listing { url, at, listing } => self.listing(url, *at, listing),
            Note::Saw(number, at, saw) => self.saw(*number, *at, saw),
            Note::Asked(number, at, node) => self.asked(*number, *at, node),
            Note::Sentinel { url, at, sentinel } => {
                let series = self.writer.series(url)?;
                self.writer.event(series, *at, SENTINEL, &json(sentinel))
            }
            Note::Host(at, host) => self.host(*at, host),
            Note::Sockets(number, at, node) => self.part(*number, *at, Part::Sockets, &node.sockets),
        }
        .map(|()| Told::Nothing)
    }

    /// A node has this number from now on.
    fn node(&mut self, number: NodeNumber, url: &str, address: &str) -> Result<(), Error> {
        let series = self.writer.series(&node_series(url, address))?;
        // What an earlier recorder knew may be gone by now.
        let known = self.writer.texts(series).filter(|(_, template)| *template != info::GONE);
        let field = |template: &str| Field { template: template.to_string(), columns: Vec::new() };
        let fields = known.map(|(name, template)| (name.to_string(), field(template))).collect();
        let kept = Kept { series, fields, parts: BTreeMap::new(), slow_id: None, own: Own::default(), topology: None };
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

    fn saw(&mut self, number: NodeNumber, at: Stamp, saw: &Saw) -> Result<(), Error> {
        let Some(kept) = self.nodes.get(&number) else { return Ok(()) };
        match saw {
            Saw::Second { .. } => Ok(()),
            Saw::Stall(stall) => self.writer.event(kept.series, at, STALL, &json(stall)),
            Saw::Away(away) => self.writer.event(kept.series, at, AWAY, &json(away)),
        }
    }

    fn second(&mut self, number: NodeNumber, at: Stamp, info: &str, pings: &Pings, sent: Sent) -> Result<Told, Error> {
        let Some(kept) = self.nodes.get_mut(&number) else { return Ok(Told::Nothing) };
        self.row.clear();
        let mut topology = DefaultHasher::new();
        let mut there: HashSet<&str> = HashSet::with_capacity(kept.fields.len());
        for line in info.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.trim_end().split_once(':') else { continue };
            // Paths tell more of a machine than a diagnosis needs.
            if value.len() > VALUE_MAX || name.len() > VALUE_MAX || matches!(name, "executable" | "config_file") {
                continue;
            }
            if !kept.fields.contains_key(name) && kept.fields.len() >= FIELDS_MAX {
                continue;
            }
            if !there.insert(name) {
                continue;
            }
            if OF_TOPOLOGY.contains(&name) {
                (name, value).hash(&mut topology);
            }
            let parts = info::split(value);
            let field = match kept.fields.get_mut(name) {
                Some(field) => field,
                None => kept
                    .fields
                    .entry(name.to_string())
                    .or_insert_with(|| Field { template: info::GONE.into(), columns: Vec::new() }),
            };
            if field.template != parts.template {
                self.writer.text(kept.series, at, name, &parts.template)?;
                field.template = parts.template;
            }
            while field.columns.len() < parts.numbers.len() {
                field.columns.push(self.writer.field(&info::column(name, field.columns.len()))?);
            }
            self.row.extend(field.columns.iter().zip(&parts.numbers).map(|(id, n)| (*id, Value::Int(*n))));
        }
        for (name, field) in kept.fields.iter_mut().filter(|(name, _)| !there.contains(name.as_str())) {
            // A field whose numbers are not in a row was not there: only words have to be taken back.
            if field.template != info::GONE && info::count(&field.template) == 0 {
                self.writer.text(kept.series, at, name, info::GONE)?;
                field.template = info::GONE.into();
            }
        }
        let own = own_columns(&kept.own, sent);
        for (name, n) in pings.columns().chain(own) {
            self.row.push((self.writer.field(&name)?, Value::Int(n)));
        }
        self.writer.sample(kept.series, at, &self.row)?;
        let topology = topology.finish();
        let before = kept.topology.replace(topology);
        Ok(if before.is_some_and(|before| before != topology) { Told::Changed(number) } else { Told::Nothing })
    }

    /// What the expensive questions found.
    fn asked(&mut self, number: NodeNumber, at: Stamp, node: &Node) -> Result<(), Error> {
        let Some(kept) = self.nodes.get_mut(&number) else { return Ok(()) };
        kept.own = node.own.clone();
        if let Some(entries) = node.slowlog.value() {
            self.slow(number, at, entries)?;
        }
        let read = match &node.slowlog {
            Seen::Yes { source, at_ms, .. } => {
                Seen::Yes { value: Vec::<SlowEntry>::new(), source: source.clone(), at_ms: *at_ms }
            }
            no => no.clone(),
        };
        let greeted = Greeted { open_door: node.open_door, connect_us: node.connect_us };
        self.part(number, at, Part::SlowLog, &read)?;
        self.part(number, at, Part::KeySizes, &node.key_sizes)?;
        self.part(number, at, Part::Latency, &node.latency)?;
        self.part(number, at, Part::Clients, &node.clients)?;
        self.part(number, at, Part::Config, &node.config)?;
        self.part(number, at, Part::Cluster, &node.cluster)?;
        self.part(number, at, Part::ClusterInfo, &node.cluster_info)?;
        self.part(number, at, Part::SlotStats, &node.slot_stats)?;
        self.part(number, at, Part::Histograms, &node.histograms)?;
        self.part(number, at, Part::Greeted, &Seen::Yes { value: greeted, source: String::new(), at_ms: 0 })
    }

    /// Entries that are new. A log that was reset, or a restarted server, begins again.
    fn slow(&mut self, number: NodeNumber, at: Stamp, entries: &[SlowEntry]) -> Result<(), Error> {
        let Some(kept) = self.nodes.get_mut(&number) else { return Ok(()) };
        let newest = entries.iter().map(|entry| entry.id).max();
        if newest.is_some_and(|newest| kept.slow_id.is_some_and(|known| newest < known)) {
            kept.slow_id = None;
        }
        for entry in entries.iter().rev().filter(|entry| kept.slow_id.is_none_or(|known| entry.id > known)) {
            self.writer.event(kept.series, at, SLOW, &json(entry))?;
        }
        kept.slow_id = newest.or(kept.slow_id);
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
            Seen::Yes { value, source, .. } => json(&Seen::Yes { value, source: source.clone(), at_ms: 0 }),
            no => json(no),
        };
        let known = kept.parts.get(&part);
        let is_known = known.is_some_and(|(bytes, ms)| *bytes == same && at.mono_ms.saturating_sub(*ms) < AGAIN_MS);
        if is_known || (known.is_none() && matches!(seen, Seen::No(_)) && seen.refused().is_none()) {
            return Ok(());
        }
        match self.writer.event(kept.series, at, part.name(), &same) {
            // A cluster of thousands: what is too long is not kept, and the reader says that it is not there.
            Err(Error::TooLong { .. }) => {}
            other => other?,
        }
        kept.parts.insert(part, (same, at.mono_ms));
        Ok(())
    }

    /// To be called every second: says that the recorder is alive, and what it was too slow for.
    pub fn tick(&mut self, now: Stamp, lost: u64) -> Result<(), Error> {
        let (series, field) = (self.writer.series(MACHINE)?, self.writer.field(LOST)?);
        self.writer.sample(series, now, &[(field, Value::Int(i64::try_from(lost).unwrap_or(i64::MAX)))])?;
        self.writer.tick(now)
    }

    /// Ends all chunks.
    pub fn close(self) -> Result<D, Error> {
        self.writer.close()
    }
}

fn own_columns(own: &Own, sent: Sent) -> Vec<(String, i64)> {
    let mut commands = own.commands.clone();
    for (name, n) in [("ping", sent.pings), ("info", sent.infos), ("client|setname", sent.greetings)] {
        *commands.entry(name.to_string()).or_default() += n;
    }
    let questions = sent.pings + sent.infos + sent.greetings;
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let commands = commands.into_iter().map(|(name, n)| (format!("{OWN_COMMAND}{name}"), count(n)));
    let errors = own.errors.iter().map(|(code, n)| (format!("{OWN_ERROR}{code}"), count(*n)));
    let sums = [(OWN_READS, own.reads + questions), (OWN_TOTAL, own.total + questions)];
    commands.chain(errors).chain(sums.map(|(name, n)| (name.to_string(), count(n)))).collect()
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Maps with keys that are no text, and numbers that are none: neither is in these types.
    serde_json::to_vec(value).unwrap_or_default()
}
