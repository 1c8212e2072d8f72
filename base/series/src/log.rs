//! The log of the chunks being built: every sample, text and event as it comes, each record readable by itself.
//!
//! It is written at once and synced every few seconds, and starts again when its chunks are in a segment. A reader and
//! the next writer build the same chunks from it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::chunk::{CELLS_DUE_OF_ALL, Chunk, MAX_FIELDS, Note, Saying};
use crate::column::Kind;
use crate::frame::{FileKind, Piece, Scan};
use crate::held::{Held, Texts};
use crate::segment::{Entry, check_header};
use crate::wire::{Cursor, put_bytes, put_signed, put_varint};
use crate::{Damage, DamageKind, Error, Stamp, Value};

pub const SERIES: u8 = 1;
pub const FIELD: u8 = 2;
pub const ROW: u8 = 3;
pub const NOTE: u8 = 4;
pub const STATE: u8 = 5;
/// A row as what differs from an earlier one of its series in this file (since format 2).
pub const DIFFERENCE: u8 = 6;

/// Rows from one whole row to the next. A damaged whole row also costs the rows recorded as differences from it.
const ROWS_PER_WHOLE: u32 = 64;

/// The body of `SERIES` and `FIELD`: what a number means in this file.
pub fn name(id: usize, name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, id as u64);
    put_bytes(&mut out, name.as_bytes());
    out
}

fn place(series: usize, seq: u64, at: Stamp) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, series as u64);
    put_varint(&mut out, seq);
    put_signed(&mut out, at.wall_ms);
    put_varint(&mut out, at.mono_ms);
    out
}

fn put_value(out: &mut Vec<u8>, field: usize, value: Value) {
    let (kind, word) = Kind::split(value);
    put_varint(out, field as u64);
    out.push(kind as u8);
    match kind {
        Kind::Int => put_signed(out, word as i64),
        Kind::Counter => put_varint(out, word),
        Kind::Float => out.extend_from_slice(&word.to_le_bytes()),
    }
}

/// The rows of one series in one file: a whole one now and then, and what differs from it.
#[derive(Default)]
pub struct Differ {
    whole: Option<u64>,
    /// The values of the whole row, in its order: rows list theirs in the same one nearly always.
    values: Vec<Kept>,
    /// Their places, by field.
    by_field: Vec<u32>,
    /// Rows since the whole one.
    rows: u32,
}

/// A value of the whole row.
struct Kept {
    field: u32,
    /// The last row that had the field.
    row: u32,
    kind: Kind,
    word: u64,
}

impl Differ {
    /// The kind of record of the next row, and its body.
    pub fn row(&mut self, series: usize, seq: u64, at: Stamp, values: &[(usize, Value)]) -> (u8, Vec<u8>) {
        let mut out = place(series, seq, at);
        self.rows += 1;
        let Some(whole) = self.whole.filter(|_| self.rows < ROWS_PER_WHOLE) else {
            self.whole = self.begin(values).then_some(seq);
            put_values(&mut out, values.iter().copied(), values.len());
            return (ROW, out);
        };
        let (mut next, mut seen) = (0, 0);
        let mut changed = Vec::new();
        for (field, value) in values {
            let is_next = self.values.get(next).is_some_and(|kept| kept.field as usize == *field);
            let place = if is_next { Some(next) } else { self.place(*field) };
            let Some(kept) = place.map(|place| &mut self.values[place]) else {
                changed.push((*field, *value));
                continue;
            };
            next = place.map_or(next, |place| place + 1);
            // A field twice, of two kinds perhaps: such a row stands by itself.
            if kept.row == self.rows {
                self.whole = None;
                break;
            }
            (kept.row, seen) = (self.rows, seen + 1);
            if (kept.kind, kept.word) != Kind::split(*value) {
                changed.push((*field, *value));
            }
        }
        if self.whole.is_none() || has_twice(&changed) {
            self.whole = None;
            put_values(&mut out, values.iter().copied(), values.len());
            return (ROW, out);
        }
        put_varint(&mut out, whole);
        put_values(&mut out, changed.iter().copied(), changed.len());
        put_varint(&mut out, (self.values.len() - seen) as u64);
        if seen < self.values.len() {
            let gone = self.values.iter().filter(|kept| kept.row != self.rows);
            gone.for_each(|kept| put_varint(&mut out, u64::from(kept.field)));
        }
        (DIFFERENCE, out)
    }

    /// Takes up a whole row; false for one that none may differ from, because it has a field twice.
    fn begin(&mut self, values: &[(usize, Value)]) -> bool {
        self.rows = 0;
        self.values.clear();
        self.values.reserve_exact(values.len());
        self.values.extend(values.iter().map(|(field, value)| {
            let (kind, word) = Kind::split(*value);
            Kept { field: *field as u32, row: 0, kind, word } // ids count the names there are in memory
        }));
        self.by_field.clear();
        self.by_field.reserve_exact(values.len());
        self.by_field.extend(0..self.values.len() as u32);
        self.by_field.sort_unstable_by_key(|place| self.values[*place as usize].field);
        let field = |place: &u32| self.values[*place as usize].field;
        self.by_field.windows(2).all(|pair| field(&pair[0]) != field(&pair[1]))
    }

    fn place(&self, field: usize) -> Option<usize> {
        let at =
            self.by_field.binary_search_by_key(&field, |place| self.values[*place as usize].field as usize).ok()?;
        Some(self.by_field[at] as usize)
    }
}

fn put_values(out: &mut Vec<u8>, values: impl Iterator<Item = (usize, Value)>, count: usize) {
    put_varint(out, count as u64);
    values.for_each(|(field, value)| put_value(out, field, value));
}

/// Whether a field is among these twice.
fn has_twice(values: &[(usize, Value)]) -> bool {
    let mut fields: Vec<usize> = values.iter().map(|(field, _)| *field).collect();
    fields.sort_unstable();
    fields.windows(2).any(|pair| pair[0] == pair[1])
}

pub fn note(series: usize, note: &Note) -> Vec<u8> {
    let mut out = place(series, note.seq, note.at);
    note.said.put(&mut out);
    out
}

pub fn state(series: usize, held: &Held) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, series as u64);
    put_bytes(&mut out, held.name.as_bytes());
    put_bytes(&mut out, held.value.as_bytes());
    put_signed(&mut out, held.since_ms);
    out
}

/// The last sequence numbers of a series' rows and notes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Last {
    pub row: u64,
    pub note: u64,
}

/// Of all series in these segments.
pub fn last(entries: &[Entry]) -> HashMap<Arc<str>, Last> {
    let mut all: HashMap<Arc<str>, Last> = HashMap::new();
    for entry in entries {
        let last = all.entry(entry.meta.series.clone()).or_default();
        last.row = last.row.max(entry.meta.seq_last);
        last.note = last.note.max(entry.meta.note_last);
    }
    all
}

/// Chunks built from logs. What the segments already have, or an older log had, is not taken twice.
pub struct Replay {
    pub chunks: Vec<Chunk>,
    pub last: HashMap<Arc<str>, Last>,
    places: HashMap<Arc<str>, usize>,
    series: HashMap<u64, usize>,
    fields: HashMap<u64, Arc<str>>,
    /// The last whole row of each chunk's series in this file.
    wholes: HashMap<u64, (u64, Vec<(u64, Value)>)>,
    /// Values of all rows.
    cells: usize,
}

impl Replay {
    pub fn new(last: HashMap<Arc<str>, Last>) -> Replay {
        let (chunks, places, series) = (Vec::new(), HashMap::new(), HashMap::new());
        Replay { chunks, last, places, series, fields: HashMap::new(), wholes: HashMap::new(), cells: 0 }
    }

    pub fn file(&mut self, file: &str, bytes: &[u8], damage: &mut Vec<Damage>) -> Result<(), Error> {
        // Numbers mean something within a file only.
        self.series.clear();
        self.fields.clear();
        self.wholes.clear();
        let mut found = |at, bytes, kind| damage.push(Damage { file: file.to_string(), at, bytes, kind });
        let start = check_header(FileKind::Log, file, bytes, &mut found)?;
        for piece in Scan::new(bytes, start) {
            match piece {
                Piece::Frame { at, bytes, kind, body } => {
                    if self.record(kind, &mut Cursor::new(body)).is_none() {
                        found(at as u64, bytes as u64, DamageKind::Content);
                    }
                }
                Piece::Bad { at, bytes, kind } => found(at as u64, bytes as u64, kind),
            }
        }
        Ok(())
    }

    fn record(&mut self, kind: u8, body: &mut Cursor<'_>) -> Option<()> {
        match kind {
            SERIES => {
                let (id, name) = (body.varint()?, Arc::<str>::from(body.text()?));
                let place = match self.places.get(&name) {
                    Some(place) => *place,
                    None => {
                        self.chunks.push(Chunk::new(name.clone(), Texts::default()));
                        self.places.insert(name, self.chunks.len() - 1);
                        self.chunks.len() - 1
                    }
                };
                if self.series.insert(id, place).is_some_and(|old| old != place) {
                    self.wholes.remove(&id);
                }
            }
            FIELD => {
                let id = body.varint()?;
                self.fields.insert(id, body.text()?.into());
            }
            ROW => self.row(body)?,
            DIFFERENCE => self.difference(body)?,
            NOTE => {
                let (chunk, last, seq, at) = self.placed(body)?;
                let said = Saying::read(body)?;
                if seq > last.note {
                    last.note = seq;
                    chunk.note(Note { seq, at, said });
                } else if let Saying::Text { name, value } = said
                    && chunk.is_empty()
                {
                    // A segment has it already: it holds when the next chunk begins.
                    chunk.state.put(Held { name, value, since_ms: at.wall_ms });
                }
            }
            STATE => {
                let chunk = self.chunks.get_mut(*self.series.get(&body.varint()?)?)?;
                let (name, value): (Arc<str>, Arc<str>) = (body.text()?.into(), body.text()?.into());
                let since_ms = body.signed()?;
                // The texts that hold when a chunk begins: those of an older log came first, whatever the clock said.
                if chunk.is_empty() {
                    chunk.state.put(Held { name, value, since_ms });
                }
            }
            _ => return None,
        }
        body.is_empty().then_some(())
    }

    fn placed(&mut self, body: &mut Cursor<'_>) -> Option<(&mut Chunk, &mut Last, u64, Stamp)> {
        let chunk = self.chunks.get_mut(*self.series.get(&body.varint()?)?)?;
        let last = self.last.entry(chunk.series.clone()).or_default();
        let seq = body.varint()?;
        let at = Stamp { wall_ms: body.signed()?, mono_ms: body.varint()? };
        Some((chunk, last, seq, at))
    }

    fn row(&mut self, body: &mut Cursor<'_>) -> Option<()> {
        let series = Cursor::varint(&mut body.clone())?;
        let (seq, at, is_new) = self.begin(body)?;
        let values = values(body)?;
        if is_new {
            self.push(series, seq, at, &values)?;
        }
        self.wholes.insert(series, (seq, values));
        Some(())
    }

    fn difference(&mut self, body: &mut Cursor<'_>) -> Option<()> {
        let series = Cursor::varint(&mut body.clone())?;
        let (seq, at, is_new) = self.begin(body)?;
        let whole = body.varint()?;
        let changed = values(body)?;
        let gone = body.count(1).filter(|count| *count <= MAX_FIELDS)?;
        let gone = (0..gone).map(|_| body.varint()).collect::<Option<HashSet<u64>>>()?;
        let (_, kept) = self.wholes.get(&series).filter(|(seq, _)| *seq == whole)?;
        if !is_new {
            return Some(());
        }
        let new: HashSet<u64> = changed.iter().map(|(field, _)| *field).collect();
        let same = kept.iter().filter(|(field, _)| !gone.contains(field) && !new.contains(field));
        let values: Vec<(u64, Value)> = same.copied().chain(changed.iter().copied()).collect();
        self.push(series, seq, at, &values)
    }

    /// The place of a row, and whether it is new. `None` where no writer makes another: a few bytes may stand for
    /// thousands of values.
    fn begin(&mut self, body: &mut Cursor<'_>) -> Option<(u64, Stamp, bool)> {
        let (chunk, last, seq, at) = self.placed(body)?;
        let is_new = seq > last.row;
        (!is_new || !chunk.is_over()).then_some((seq, at, is_new))
    }

    fn push(&mut self, series: u64, seq: u64, at: Stamp, values: &[(u64, Value)]) -> Option<()> {
        let names = values.iter().map(|(field, value)| Some((self.fields.get(field)?.clone(), *value)));
        let named: Vec<(Arc<str>, Value)> = names.collect::<Option<_>>()?;
        let chunk = self.chunks.get_mut(*self.series.get(&series)?)?;
        self.cells += named.len();
        if self.cells > 2 * CELLS_DUE_OF_ALL {
            return None;
        }
        self.last.entry(chunk.series.clone()).or_default().row = seq;
        chunk.push(seq, at, named.iter().map(|(name, value)| (name, *value)));
        Some(())
    }
}

fn values(bytes: &mut Cursor<'_>) -> Option<Vec<(u64, Value)>> {
    let count = bytes.count(3).filter(|count| *count <= MAX_FIELDS)?;
    let value = |_| {
        let field = bytes.varint()?;
        let value = match Kind::from_byte(bytes.byte()?)? {
            Kind::Int => Value::Int(bytes.signed()?),
            Kind::Counter => Value::Counter(bytes.varint()?),
            Kind::Float => Value::Float(f64::from_le_bytes(*bytes.take(8)?.first_chunk::<8>()?)),
        };
        Some((field, value))
    };
    (0..count).map(value).collect()
}
