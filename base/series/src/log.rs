//! The log of the chunks being built: every sample, text and event as it comes, each record readable by itself.
//!
//! It is written at once and synced every few seconds, and starts again when its chunks are in a segment. A reader and
//! the next writer build the same chunks from it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::chunk::{Chunk, Held, Note, Saying};
use crate::column::Kind;
use crate::frame::{FileKind, Piece, Scan};
use crate::segment::{Entry, check_header};
use crate::wire::{Cursor, put_bytes, put_signed, put_varint};
use crate::{Damage, DamageKind, Error, Stamp, Value};

pub const SERIES: u8 = 1;
pub const FIELD: u8 = 2;
pub const ROW: u8 = 3;
pub const NOTE: u8 = 4;
pub const STATE: u8 = 5;

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

pub fn row(series: usize, seq: u64, at: Stamp, values: &[(usize, Value)]) -> Vec<u8> {
    let mut out = place(series, seq, at);
    put_varint(&mut out, values.len() as u64);
    for (field, value) in values {
        let (kind, word) = Kind::split(*value);
        put_varint(&mut out, *field as u64);
        out.push(kind as u8);
        match kind {
            Kind::Int => put_signed(&mut out, word as i64),
            Kind::Counter => put_varint(&mut out, word),
            Kind::Float => out.extend_from_slice(&word.to_le_bytes()),
        }
    }
    out
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
}

impl Replay {
    pub fn new(last: HashMap<Arc<str>, Last>) -> Replay {
        Replay { chunks: Vec::new(), last, places: HashMap::new(), series: HashMap::new(), fields: HashMap::new() }
    }

    pub fn file(&mut self, file: &str, bytes: &[u8], damage: &mut Vec<Damage>) -> Result<(), Error> {
        // Numbers mean something within a file only.
        self.series.clear();
        self.fields.clear();
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
                        self.chunks.push(Chunk::new(name.clone(), Vec::new()));
                        self.places.insert(name, self.chunks.len() - 1);
                        self.chunks.len() - 1
                    }
                };
                self.series.insert(id, place);
            }
            FIELD => {
                let id = body.varint()?;
                self.fields.insert(id, body.text()?.into());
            }
            ROW => self.row(body)?,
            NOTE => {
                let (chunk, last, seq, at) = self.placed(body)?;
                let said = Saying::read(body)?;
                if seq > last.note {
                    last.note = seq;
                    chunk.note(Note { seq, at, said });
                }
            }
            STATE => {
                let chunk = self.chunks.get_mut(*self.series.get(&body.varint()?)?)?;
                let (name, value) = (body.text()?.to_string(), body.text()?.to_string());
                let since_ms = body.signed()?;
                // The texts that hold when a chunk begins: an older log's came first.
                if chunk.is_empty() && !chunk.state.iter().any(|h| h.name == name) {
                    chunk.state.push(Held { name, value, since_ms });
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
        let mut ahead = *body;
        self.placed(&mut ahead)?;
        let mut values = Vec::new();
        for _ in 0..ahead.count(3)? {
            let name = self.fields.get(&ahead.varint()?)?.clone();
            let value = match Kind::from_byte(ahead.byte()?)? {
                Kind::Int => Value::Int(ahead.signed()?),
                Kind::Counter => Value::Counter(ahead.varint()?),
                Kind::Float => Value::Float(f64::from_le_bytes(*ahead.take(8)?.first_chunk::<8>()?)),
            };
            values.push((name, value));
        }
        let (chunk, last, seq, at) = self.placed(body)?;
        *body = ahead;
        if seq > last.row {
            last.row = seq;
            chunk.push(seq, at, values.iter().map(|(name, value)| (name, *value)));
        }
        Some(())
    }
}
