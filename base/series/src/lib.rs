//! The flight recorder's store: what was measured, second by second, for weeks, in a few megabytes a day.
//!
//! - [`Writer`] appends samples (numbers by field name), texts (stored when they change) and events (stored once each).
//!   It has no threads and no clock: the caller passes the time and calls [`Writer::tick`].
//! - [`Reader`] reads a directory, also while a writer appends to it. Nothing it finds on disk makes it panic or use
//!   unbounded memory: what cannot be read is returned as [`Damage`], and missing rows as [`Gap`].
//! - [`Disk`] is where files live: a [`Directory`], or [`Memory`] for tests, which can also be full.
//!
//! How the files look, and why, is in `DESIGN.md`.
//!
//! ```
//! use unslow_series::{Item, Memory, Reader, Settings, Stamp, Value, Writer};
//!
//! let mut writer = Writer::with_disk(Memory::default(), Settings::default())?;
//! let node = writer.series("10.0.0.1:6379")?;
//! let clients = writer.field("connected_clients")?;
//! writer.sample(node, Stamp { wall_ms: 1_000, mono_ms: 7 }, &[(clients, Value::Int(12))])?;
//!
//! let reader = Reader::with_disk(writer.disk().clone())?;
//! let Some(Item::Row(row)) = reader.range("10.0.0.1:6379", 0..2_000).next() else { panic!("one row") };
//! assert_eq!(row.get("connected_clients"), Some(Value::Int(12)));
//! # Ok::<(), unslow_series::Error>(())
//! ```
#![forbid(unsafe_code)]

mod chunk;
mod coder;
mod column;
mod disk;
mod error;
mod files;
mod frame;
mod held;
mod log;
mod pack;
mod reader;
mod segment;
mod wire;
mod words;
mod writer;

pub use disk::{Directory, Disk, Memory};
pub use error::{Damage, DamageKind, Error, Text};
pub use files::Dropped;
pub use held::Held;
pub use reader::{Event, Found, Gap, Item, Picked, Reader, Row, Rows, Span, Step};
pub use writer::{FieldId, SeriesId, Settings, Writer};

/// When something was seen, by both clocks of the machine that saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Milliseconds since 1970, as the wall clock had it: it may be set back or forward at any time.
    pub wall_ms: i64,
    /// Milliseconds of a clock that never goes back, since any beginning; a new process may start again at 0.
    pub mono_ms: u64,
}

impl Stamp {
    /// By how much the wall clock was set between two stamps of one process; `None` if it ran with the other clock.
    /// After a restart the monotonic clock says nothing, and only a wall clock that went back is noticed.
    pub fn step_since(self, before: Stamp) -> Option<i64> {
        let wall = self.wall_ms.saturating_sub(before.wall_ms);
        let by = match self.mono_ms.checked_sub(before.mono_ms) {
            Some(mono) => wall.saturating_sub(i64::try_from(mono).unwrap_or(i64::MAX)),
            None => wall.min(0),
        };
        (by.saturating_abs() >= STEP_MS).then_some(by)
    }
}

/// A wall clock that is slewed drifts by less than this between two samples.
const STEP_MS: i64 = 1_000;

/// One number of a sample. Floats keep every bit, NaN's payload too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A gauge.
    Int(i64),
    Float(f64),
    /// What only grows until its server restarts. It is stored as it is, also when it goes back.
    Counter(u64),
}

/// For fuzzing: a file with this magic whose frames hold these bytes, cut at every 0xff; each begins with its kind.
#[doc(hidden)]
pub fn framed(magic: &[u8; 8], bytes: &[u8]) -> Vec<u8> {
    let pieces = bytes.split(|b| *b == 0xff).filter_map(|piece| piece.split_first());
    framed_pieces(magic, pieces.map(|(kind, body)| (*kind, body)))
}

/// For tests: a file with this magic and these frames.
#[doc(hidden)]
pub fn framed_pieces<'a>(magic: &[u8; 8], pieces: impl Iterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    let kind = if magic == b"UNSLOWsg" { frame::FileKind::Segment } else { frame::FileKind::Log };
    let mut out = frame::header(kind, 1);
    pieces.for_each(|(kind, body)| frame::put(&mut out, kind, body));
    out
}

/// For fuzzing: whether the texts of a chunk whose checksums hold are read.
#[doc(hidden)]
pub fn passes_chunk(plain: &[u8], coded: &[u8]) -> bool {
    chunk::Chunk::of_bytes(plain, coded, chunk::Wanted::Notes).is_some()
}

/// For fuzzing: a chunk whose checksums hold, read to its last value; how many it has.
#[doc(hidden)]
pub fn read_chunk(plain: &[u8], coded: &[u8]) -> Option<usize> {
    let chunk = chunk::Chunk::of_bytes(plain, coded, chunk::Wanted::All)?;
    chunk.is_sound().then(|| (0..chunk.rows()).map(|row| chunk.values(row).count()).sum())
}
