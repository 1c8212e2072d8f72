//! One field's values within a chunk: where it was present, and its numbers as small differences.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::pack::{self, By, DEPTH_MAX, Late, Others, Packed, Packing, Read};
use crate::wire::{Cursor, put_bytes, put_varint};
use crate::words::Words;
use crate::{Value, coder};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Int,
    Float,
    Counter,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Int, Kind::Float, Kind::Counter];

    /// As a value of this kind is kept: 64 bits.
    pub fn split(value: Value) -> (Kind, u64) {
        match value {
            Value::Int(n) => (Kind::Int, n as u64),
            Value::Float(n) => (Kind::Float, n.to_bits()),
            Value::Counter(n) => (Kind::Counter, n),
        }
    }

    pub fn join(self, word: u64) -> Value {
        match self {
            Kind::Int => Value::Int(word as i64),
            Kind::Float => Value::Float(f64::from_bits(word)),
            Kind::Counter => Value::Counter(word),
        }
    }

    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(byte)).copied()
    }
}

/// Consecutive rows that have the field; `word` is the place of the first one's value. A chunk has far fewer than 2^32.
#[derive(Clone, Copy, Debug)]
struct Run {
    row: u32,
    word: u32,
    rows: u32,
}

impl Run {
    fn end(self) -> usize {
        self.row as usize + self.rows as usize
    }

    fn span(self) -> Range<usize> {
        self.row as usize..self.end()
    }
}

/// A column that comes and goes, as counts of how long answers took do, is written as which rows have it: in place of
/// the number of runs, of which every column has one,
const FLAGGED: u64 = 0;
/// where it has more runs than these.
const RUNS_PLAIN: usize = 4;
/// The place of the wall clock among what a column may be told by; columns have theirs behind it.
pub const CLOCK: usize = 0;

/// How large a chunk is, and what it may still hold: a few bytes may stand for millions of values.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub rows: usize,
    values: usize,
    flags: usize,
}

impl Sizes {
    pub fn new(rows: usize, values: usize) -> Sizes {
        Sizes { rows, values, flags: values }
    }

    fn take(&mut self, values: usize) -> Option<()> {
        self.values = self.values.checked_sub(values)?;
        Some(())
    }

    /// A column's rows are gone through one by one.
    fn take_flags(&mut self) -> Option<()> {
        self.flags = self.flags.checked_sub(self.rows)?;
        Some(())
    }
}

/// What a chunk that was read has of a column until somebody wants it.
#[derive(Clone, Debug)]
pub struct Coded {
    pub late: Late,
    /// How many columns are read before it is.
    pub depth: u8,
    pub known: OnceLock<Words>,
}

#[derive(Clone, Debug)]
pub struct Column {
    pub name: Arc<str>,
    pub kind: Kind,
    /// Nearly all have one.
    runs: SmallVec<[Run; 1]>,
    pub words: Words,
    /// Then it is in place of the words.
    pub coded: Option<Box<Coded>>,
}

impl Column {
    pub fn new(name: Arc<str>, kind: Kind) -> Column {
        Column { name, kind, runs: SmallVec::new(), words: Words::default(), coded: None }
    }

    /// The value of the newest row; given twice for one row, the last one counts. Returns how many bytes of memory it
    /// took.
    pub fn push(&mut self, row: usize, word: u64) -> usize {
        let mut bytes = 0;
        match self.runs.last_mut() {
            Some(run) if run.end() == row + 1 => {
                self.words.replace_newest(word);
                return 0;
            }
            Some(run) if run.end() == row => run.rows += 1,
            _ => {
                self.runs.push(Run { row: row as u32, word: self.words.len() as u32, rows: 1 });
                bytes = size_of::<Run>();
            }
        }
        bytes + self.words.push(word)
    }

    /// Makes [`Column::at`] quick.
    pub fn thaw(&mut self) {
        self.words.thaw();
    }

    /// Which of its values a row has.
    pub fn place(&self, row: usize) -> Option<usize> {
        let run = self.runs[..self.runs.partition_point(|r| r.row as usize <= row)].last()?;
        let offset = row - run.row as usize;
        (offset < run.rows as usize).then_some(run.word as usize + offset)
    }

    /// How many values it has.
    fn count(&self) -> usize {
        self.runs.last().map_or(0, |run| run.word as usize + run.rows as usize)
    }

    /// `words` are its own; returns what [`pack::put_words`] does.
    pub fn encode(&self, out: &mut Packing, sizes: &mut Sizes, words: &[u64], others: Others<'_>) -> Option<u8> {
        put_bytes(&mut out.plain, self.name.as_bytes());
        out.plain.push(self.kind as u8);
        let rows = sizes.rows;
        if self.runs.len() > RUNS_PLAIN && sizes.take_flags().is_some() {
            put_varint(&mut out.plain, FLAGGED);
            out.put_coded(&coder::encode_flags(self.flags(rows).into_iter()));
        } else {
            put_varint(&mut out.plain, self.runs.len() as u64);
            let mut row = 0;
            for run in &self.runs {
                put_varint(&mut out.plain, u64::from(run.row - row));
                put_varint(&mut out.plain, u64::from(run.rows - 1));
                row = run.row + run.rows;
            }
        }
        match self.kind {
            Kind::Float => {
                pack::put_floats(out, words);
                None
            }
            Kind::Int | Kind::Counter => pack::put_words(out, words, others),
        }
    }

    /// Which rows have it.
    fn flags(&self, rows: usize) -> Vec<bool> {
        let mut flags = vec![false; rows];
        self.runs.iter().for_each(|run| flags[run.span()].fill(true));
        flags
    }

    /// `before` are the columns in front of it.
    pub fn decode(bytes: &mut Packed<'_>, sizes: &mut Sizes, before: &[Column]) -> Option<Column> {
        let name = bytes.plain.text()?.into();
        let kind = Kind::from_byte(bytes.plain.byte()?)?;
        let mut column = Column::new(name, kind);
        let count = column.decode_presence(bytes, sizes)?;
        sizes.take(count)?;
        let read = match kind {
            Kind::Float => Read::Words(Words::of(pack::floats(bytes, count)?)),
            Kind::Int | Kind::Counter => pack::words(bytes, count)?,
        };
        match read {
            Read::Words(words) => column.words = words,
            Read::Late(late) => {
                let depth = |column: &Column| column.coded.as_ref().map_or(0, |coded| coded.depth);
                let others = match late.by {
                    By::Place(CLOCK) if count != sizes.rows => return None,
                    By::Nothing | By::Place(CLOCK) => &[][..],
                    By::Place(place) => std::slice::from_ref(before.get(place - 1)?),
                    By::LastTwo => before.last_chunk::<2>()?,
                };
                // Otherwise a column of one value could have those of a million looked at.
                if others.iter().any(|other| other.kind == Kind::Float || other.count() != count) {
                    return None;
                }
                let depth = others.iter().map(|other| depth(other) + 1).max().unwrap_or(0);
                let coded = Coded { late, depth, known: OnceLock::new() };
                column.coded = Some(Box::new(coded)).filter(|_| depth <= DEPTH_MAX);
                column.coded.as_ref()?;
            }
        }
        Some(column)
    }

    /// Passes over a column.
    pub fn pass(bytes: &mut Packed<'_>, sizes: &mut Sizes) -> Option<()> {
        bytes.plain.text()?;
        let kind = Kind::from_byte(bytes.plain.byte()?)?;
        // How many values there are is all that is wanted of it.
        let count = Column::new(Arc::default(), kind).decode_presence(bytes, sizes)?;
        sizes.take(count)?;
        match kind {
            Kind::Float => pack::pass_floats(bytes, count),
            Kind::Int | Kind::Counter => pack::pass_words(bytes, count),
        }
    }

    /// How many values it has.
    fn decode_presence(&mut self, bytes: &mut Packed<'_>, sizes: &mut Sizes) -> Option<usize> {
        match bytes.plain.clone().varint()? {
            FLAGGED => {
                sizes.take_flags()?;
                self.decode_flags(bytes, sizes.rows)
            }
            _ => self.decode_runs(&mut bytes.plain, sizes.rows),
        }
    }

    fn decode_runs(&mut self, bytes: &mut Cursor<'_>, rows: usize) -> Option<usize> {
        let runs = bytes.count(2).filter(|runs| *runs <= rows)?;
        self.runs.reserve_exact(runs);
        let (mut row, mut word) = (0usize, 0usize);
        for _ in 0..runs {
            let start = row.checked_add(usize::try_from(bytes.varint()?).ok()?)?;
            let length = usize::try_from(bytes.varint()?).ok()?.checked_add(1)?;
            row = start.checked_add(length).filter(|end| *end <= rows)?;
            self.runs.push(Run { row: start as u32, word: word as u32, rows: length as u32 });
            word += length;
        }
        Some(word)
    }

    fn decode_flags(&mut self, bytes: &mut Packed<'_>, rows: usize) -> Option<usize> {
        bytes.plain.varint()?;
        let flags = coder::decode_flags(bytes.take_coded()?, rows)?;
        let mut word = 0;
        for (row, _) in flags.into_iter().enumerate().filter(|(_, flag)| *flag) {
            match self.runs.last_mut() {
                Some(run) if run.end() == row => run.rows += 1,
                _ => self.runs.push(Run { row: row as u32, word, rows: 1 }),
            }
            word += 1;
        }
        Some(word as usize)
    }
}
