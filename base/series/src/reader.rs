//! The reader: what a directory holds at one moment, while a writer may be at work in it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::chunk::{Chunk, Meta, Saying, Wanted};
use crate::frame::FileKind;
use crate::held::Held;
use crate::log::{self, Replay};
use crate::segment::{self, Entry, MAX_FILE};
use crate::{Damage, Directory, Disk, Error, Stamp, Value};

/// One sample as it was given. Its values stay in the chunk's columns until they are asked for: a row has hundreds.
#[derive(Clone)]
pub struct Row {
    /// Its number within the series: without holes, unless rows were lost.
    pub seq: u64,
    pub at: Stamp,
    chunk: Arc<Chunk>,
    place: usize,
}

impl Row {
    pub fn get(&self, field: &str) -> Option<Value> {
        let mut of_name = self.chunk.columns().iter().enumerate().filter(|(_, column)| *column.name == *field);
        of_name.find_map(|(place, _)| self.chunk.at(place, self.place))
    }

    /// All of them, each with its field's name.
    pub fn values(&self) -> impl Iterator<Item = (&Arc<str>, Value)> {
        self.chunk.values(self.place)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        (self.seq, self.at) == (other.seq, other.at) && self.values().eq(other.values())
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "row {} at {:?}: ", self.seq, self.at)?;
        f.debug_map().entries(self.values()).finish()
    }
}

/// Some fields of row after row: which columns have them is looked up once for each chunk.
pub struct Picked {
    wanted: fn(&str) -> bool,
    chunk: Option<Arc<Chunk>>,
    columns: Vec<usize>,
}

impl Picked {
    /// Those with such names.
    pub fn new(wanted: fn(&str) -> bool) -> Picked {
        Picked { wanted, chunk: None, columns: Vec::new() }
    }

    /// The fields of a row.
    pub fn of<'r>(&mut self, row: &'r Row) -> impl Iterator<Item = (&'r Arc<str>, Value)> {
        let columns = row.chunk.columns();
        if !self.chunk.as_ref().is_some_and(|chunk| Arc::ptr_eq(chunk, &row.chunk)) {
            self.chunk = Some(row.chunk.clone());
            self.columns.clear();
            let wanted = columns.iter().enumerate().filter(|(_, column)| (self.wanted)(&column.name));
            self.columns.extend(wanted.map(|(place, _)| place));
        }
        self.columns.iter().filter_map(|place| Some((&columns[*place].name, row.chunk.at(*place, row.place)?)))
    }
}

/// Rows that were recorded and cannot be read: damaged, deleted by retention between others, or lost to a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The numbers of the rows on either side.
    pub after_seq: u64,
    pub before_seq: u64,
    pub after_ms: i64,
    pub before_ms: i64,
}

/// The wall clock was set between two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub before: Stamp,
    pub after: Stamp,
    /// Negative when it was set back.
    pub by_ms: i64,
}

/// What a range consists of, in the order of recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Row(Row),
    Gap(Gap),
    Step(Step),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub series: Arc<str>,
    pub at: Stamp,
    pub kind: String,
    pub payload: Vec<u8>,
}

/// What was found, and what could not be read while looking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    pub items: Vec<T>,
    pub damage: Vec<Damage>,
}

/// The earliest and the latest wall clock time of anything recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from_ms: i64,
    pub to_ms: i64,
}

/// A view of a directory as it was when it was opened. What retention deletes meanwhile turns into a [`Gap`].
pub struct Reader<D: Disk = Directory> {
    disk: D,
    entries: Vec<Entry>,
    /// Chunks still being built, and what an index would say of them.
    open: Vec<(Meta, Chunk)>,
    damage: Vec<Damage>,
}

impl Reader<Directory> {
    pub fn open(dir: impl AsRef<Path>) -> Result<Reader<Directory>, Error> {
        Reader::with_disk(Directory::open(dir))
    }
}

impl<D: Disk> Reader<D> {
    pub fn with_disk(disk: D) -> Result<Reader<D>, Error> {
        // Logs first: what a writer moves into a segment meanwhile is then seen twice, and taken once.
        let logs = logs(&disk)?;
        let (mut entries, mut damage) = (Vec::new(), Vec::new());
        for number in segment::numbers(&disk, FileKind::Segment)? {
            let found = segment::load(&disk, &FileKind::Segment.name(number), &mut damage)?;
            entries.extend(found.unwrap_or_default());
        }
        let mut replay = Replay::new(log::last(&entries));
        for (name, bytes) in &logs {
            replay.file(name, bytes, &mut damage)?;
        }
        let chunks = replay.chunks.into_iter().filter(|chunk| !chunk.is_empty());
        let open = chunks.map(|chunk| (chunk.meta(), chunk)).collect();
        Ok(Reader { disk, entries, open, damage })
    }

    /// Names of everything recorded, in order.
    pub fn series(&self) -> Vec<Arc<str>> {
        let all: BTreeSet<Arc<str>> = self.metas().map(|(_, meta)| meta.series.clone()).collect();
        all.into_iter().collect()
    }

    pub fn span(&self) -> Option<Span> {
        let from_ms = self.metas().map(|(_, meta)| meta.wall_min).min()?;
        let to_ms = self.metas().map(|(_, meta)| meta.wall_max).max()?;
        Some(Span { from_ms, to_ms })
    }

    /// The wall clock at the newest row or note: before the end of [`Reader::span`] where the clock was set back.
    pub fn newest_ms(&self) -> Option<i64> {
        // Chunks that are being built are of one process, so the other clock orders them.
        let open = self.open.iter().filter_map(|(_, chunk)| chunk.newest()).max_by_key(|at| at.mono_ms);
        open.map(|at| at.wall_ms).or_else(|| self.entries.last().map(|entry| entry.meta.wall_max))
    }

    /// What opening found damaged. Chunks are checked when they are read: see [`Rows::damage`] and [`Reader::verify`].
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Reads everything, for all its damage.
    pub fn verify(&self) -> Vec<Damage> {
        let bad = self.entries.iter().filter_map(|entry| entry.check(&self.disk).err());
        self.damage.iter().cloned().chain(bad).collect()
    }

    /// A series' rows whose wall clock time is in this range, in the order of recording: after a clock was set back, a
    /// time comes twice.
    pub fn range(&self, series: &str, wall_ms: Range<i64>) -> Rows<'_, D> {
        let places = self.metas().filter(|(_, meta)| *meta.series == *series).map(|(place, _)| place).collect();
        Rows {
            reader: self,
            places,
            wall_ms,
            chunk: None,
            row: 0,
            last: None,
            stamp: None,
            ready: VecDeque::new(),
            damage: Vec::new(),
        }
    }

    /// One field's values and when they were.
    pub fn column(&self, series: &str, field: &str, wall_ms: Range<i64>) -> Found<(Stamp, Value)> {
        let mut rows = self.range(series, wall_ms);
        let mut items = Vec::new();
        for item in &mut rows {
            if let Item::Row(row) = item {
                items.extend(row.get(field).map(|value| (row.at, value)));
            }
        }
        Found { items, damage: rows.damage }
    }

    /// Events of one series, or of all of them.
    pub fn events(&self, series: Option<&str>, wall_ms: Range<i64>) -> Found<Event> {
        let mut found = Found { items: Vec::new(), damage: Vec::new() };
        let mut seen: HashMap<Arc<str>, u64> = HashMap::new();
        for (place, meta) in self.metas() {
            if meta.note_last == 0 || series.is_some_and(|s| *s != *meta.series) || !overlaps(meta, &wall_ms) {
                continue;
            }
            let Some(chunk) = self.chunk(place, Wanted::Notes, &mut found.damage) else { continue };
            let last = seen.entry(chunk.series.clone()).or_default();
            add_events(&mut found.items, &chunk, last, &wall_ms);
        }
        found
    }

    /// Every text that held at some time of the range: those from before, then the changes.
    pub fn texts(&self, series: &str, wall_ms: Range<i64>) -> Found<Held> {
        let mut found = Found { items: Vec::<Held>::new(), damage: Vec::new() };
        for (place, meta) in self.metas() {
            if *meta.series == *series && overlaps(meta, &wall_ms) {
                let chunk = self.chunk(place, Wanted::Notes, &mut found.damage);
                chunk.iter().for_each(|chunk| add_texts(&mut found.items, chunk, &wall_ms));
            }
        }
        found
    }

    /// The items of [`Reader::events`] and [`Reader::texts`] of one series, each chunk read once.
    pub fn notes(&self, series: &str, events_ms: Range<i64>, texts_ms: Range<i64>) -> (Vec<Event>, Vec<Held>) {
        let (mut events, mut texts, mut damage, mut last) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (place, meta) in self.metas() {
            let (has_events, has_texts) = (meta.note_last > 0 && overlaps(meta, &events_ms), overlaps(meta, &texts_ms));
            if *meta.series != *series || !(has_events || has_texts) {
                continue;
            }
            let Some(chunk) = self.chunk(place, Wanted::Notes, &mut damage) else { continue };
            if has_events {
                add_events(&mut events, &chunk, &mut last, &events_ms);
            }
            if has_texts {
                add_texts(&mut texts, &chunk, &texts_ms);
            }
        }
        (events, texts)
    }

    fn metas(&self) -> impl Iterator<Item = (Place, &Meta)> {
        let closed = self.entries.iter().enumerate().map(|(i, entry)| (Place::Segment(i), &entry.meta));
        closed.chain(self.open.iter().enumerate().map(|(i, (meta, _))| (Place::Log(i), meta)))
    }

    fn meta(&self, place: Place) -> &Meta {
        match place {
            Place::Segment(i) => &self.entries[i].meta,
            Place::Log(i) => &self.open[i].0,
        }
    }

    fn chunk(&self, place: Place, wanted: Wanted, damage: &mut Vec<Damage>) -> Option<Chunk> {
        match place {
            Place::Log(i) => {
                let mut chunk = self.open[i].1.clone();
                if wanted == Wanted::All {
                    chunk.thaw();
                }
                Some(chunk)
            }
            Place::Segment(i) => match self.entries[i].read(&self.disk, wanted) {
                Ok(chunk) => chunk,
                Err(found) => {
                    damage.push(found);
                    None
                }
            },
        }
    }
}

/// The events of a chunk behind the note `last`, which is moved on.
fn add_events(events: &mut Vec<Event>, chunk: &Chunk, last: &mut u64, wall_ms: &Range<i64>) {
    for note in &chunk.notes {
        let new = note.seq > *last;
        *last = note.seq.max(*last);
        if let (Saying::Event { kind, payload }, true, true) = (&note.said, new, wall_ms.contains(&note.at.wall_ms)) {
            let (series, kind, payload) = (chunk.series.clone(), kind.clone(), payload.clone());
            events.push(Event { series, at: note.at, kind, payload });
        }
    }
}

/// The texts of a chunk that hold at some time of the range.
fn add_texts(texts: &mut Vec<Held>, chunk: &Chunk, wall_ms: &Range<i64>) {
    let changes = chunk.notes.iter().filter_map(|note| match &note.said {
        Saying::Text { name, value } => {
            Some(Held { name: name.clone(), value: value.clone(), since_ms: note.at.wall_ms })
        }
        Saying::Event { .. } => None,
    });
    for held in chunk.state.iter().cloned().chain(changes).filter(|held| held.since_ms < wall_ms.end) {
        if held.since_ms < wall_ms.start {
            // Of those from before only the last one of a name holds.
            texts.retain(|h| h.name != held.name || h.since_ms >= wall_ms.start);
        }
        if !texts.contains(&held) {
            texts.push(held);
        }
    }
}

/// Where a chunk of a reader is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Segment(usize),
    Log(usize),
}

fn overlaps(meta: &Meta, wall_ms: &Range<i64>) -> bool {
    meta.wall_min < wall_ms.end && meta.wall_max >= wall_ms.start
}

/// All logs at one moment: if one vanishes between listing and reading, there is a newer one.
fn logs<D: Disk>(disk: &D) -> Result<Vec<(String, Vec<u8>)>, Error> {
    const TRIES: usize = 16;
    let mut found = Vec::new();
    for _ in 0..TRIES {
        found.clear();
        let mut vanished = false;
        for number in segment::numbers(disk, FileKind::Log)? {
            let name = FileKind::Log.name(number);
            match disk.read(&name, 0, MAX_FILE) {
                Ok(bytes) => found.push((name, bytes)),
                Err(e) if e.kind() == ErrorKind::NotFound => vanished = true,
                Err(e) => return Err(Error::io("read", &name, e)),
            }
        }
        if !vanished {
            break;
        }
    }
    Ok(found)
}

/// Iterates over a range, one chunk after the other. A row that is kept keeps its chunk.
pub struct Rows<'a, D: Disk> {
    reader: &'a Reader<D>,
    places: VecDeque<Place>,
    wall_ms: Range<i64>,
    chunk: Option<Arc<Chunk>>,
    /// The next one of this chunk.
    row: usize,
    /// Number and wall clock time of the last row passed, read or not.
    last: Option<(u64, i64)>,
    /// The row just before, if it was read.
    stamp: Option<Stamp>,
    ready: VecDeque<Item>,
    damage: Vec<Damage>,
}

impl<D: Disk> Rows<'_, D> {
    /// What could not be read so far.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    fn gap(&mut self, before_seq: u64, before_ms: i64) {
        let Some((after_seq, after_ms)) = self.last else { return };
        let (from, to) = (after_ms.min(before_ms), after_ms.max(before_ms));
        if before_seq > after_seq.saturating_add(1) && from < self.wall_ms.end && to >= self.wall_ms.start {
            self.ready.push_back(Item::Gap(Gap { after_seq, before_seq, after_ms, before_ms }));
        }
    }

    /// Takes up the next chunk, or passes over it; `false` at the end.
    fn advance(&mut self) -> bool {
        let Some(place) = self.places.pop_front() else { return false };
        let reader = self.reader;
        let meta = reader.meta(place);
        if meta.rows == 0 {
            return true;
        }
        if !overlaps(meta, &self.wall_ms) {
            self.gap(meta.seq_first, meta.wall_min);
            self.last = Some((meta.seq_last, meta.wall_max));
            self.stamp = None;
            return true;
        }
        let mut damage = std::mem::take(&mut self.damage);
        self.chunk = reader.chunk(place, Wanted::All, &mut damage).map(Arc::new);
        self.damage = damage;
        self.row = 0;
        if self.chunk.is_none() {
            self.stamp = None;
            // The first chunk cannot be read: the rows before it are not known to be missing.
            self.last = self.last.or(Some((meta.seq_first.saturating_sub(1), meta.wall_min)));
        }
        true
    }

    fn row(&mut self, chunk: &Arc<Chunk>) {
        let Some((seq, at)) = chunk.stamp(self.row) else { return };
        let row = self.row;
        self.row += 1;
        if self.last.is_some_and(|(last, _)| seq <= last) {
            return;
        }
        self.gap(seq, at.wall_ms);
        let adjacent = self.last.is_some_and(|(last, _)| seq == last.saturating_add(1));
        let before = self.stamp.filter(|_| adjacent);
        let inside = |stamp: Stamp| self.wall_ms.contains(&stamp.wall_ms);
        let step = before.and_then(|before| Some(Step { before, after: at, by_ms: at.step_since(before)? }));
        let step = step.filter(|step| inside(step.before) || inside(step.after));
        let found = inside(at).then(|| Item::Row(Row { seq, at, chunk: chunk.clone(), place: row }));
        self.ready.extend(step.map(Item::Step).into_iter().chain(found));
        (self.last, self.stamp) = (Some((seq, at.wall_ms)), Some(at));
    }
}

impl<D: Disk> Iterator for Rows<'_, D> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some(item);
            }
            if let Some(chunk) = self.chunk.take() {
                self.row(&chunk);
                if self.row < chunk.rows() {
                    self.chunk = Some(chunk);
                }
            } else if !self.advance() {
                return None;
            }
        }
    }
}
