//! One field's values within a chunk: where it was present, and its numbers as small differences.

use std::borrow::Cow;
use std::sync::Arc;

use crate::Value;
use crate::wire::{Cursor, put_bytes, put_varint, unzigzag, zigzag};

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

/// Consecutive rows that have the field; `word` is the place of the first one's value.
#[derive(Clone, Copy, Debug)]
struct Run {
    row: usize,
    word: usize,
    rows: usize,
}

/// Words in the order of rows. Of those that are still being collected only the differences are kept, as bytes: of some
/// 400 fields a second few change, and thousands of chunks are open at a time.
#[derive(Clone, Debug)]
pub enum Words {
    Growing(Growing),
    Plain(Vec<u64>),
}

#[derive(Clone, Debug, Default)]
pub struct Growing {
    tokens: Tokens,
    /// The last one that is among the tokens, and the one behind it, which may still be replaced.
    before: u64,
    newest: u64,
    count: usize,
}

impl Default for Words {
    fn default() -> Words {
        Words::Growing(Growing::default())
    }
}

impl Words {
    pub fn len(&self) -> usize {
        match self {
            Words::Growing(growing) => growing.count,
            Words::Plain(words) => words.len(),
        }
    }

    /// Returns how many bytes of memory it took.
    pub fn push(&mut self, word: u64) -> usize {
        match self {
            Words::Growing(growing) => growing.push(word),
            Words::Plain(words) => {
                words.push(word);
                size_of::<u64>()
            }
        }
    }

    /// The newest one was another.
    fn replace_newest(&mut self, word: u64) {
        match self {
            Words::Growing(growing) => growing.newest = word,
            Words::Plain(words) => *words.last_mut().unwrap_or(&mut 0) = word,
        }
    }

    pub fn last(&self) -> Option<u64> {
        match self {
            Words::Growing(growing) => (growing.count > 0).then_some(growing.newest),
            Words::Plain(words) => words.last().copied(),
        }
    }

    /// All of them.
    pub fn all(&self) -> Cow<'_, [u64]> {
        match self {
            Words::Growing(growing) => Cow::Owned(growing.all()),
            Words::Plain(words) => Cow::Borrowed(words),
        }
    }

    /// Makes [`Words::get`] quick.
    pub fn thaw(&mut self) {
        if let Words::Growing(growing) = self {
            *self = Words::Plain(growing.all());
        }
    }

    /// One of them. While they grow it takes as long as all of them.
    pub fn get(&self, place: usize) -> Option<u64> {
        match self {
            Words::Growing(growing) => growing.all().get(place).copied(),
            Words::Plain(words) => words.get(place).copied(),
        }
    }
}

impl Growing {
    fn push(&mut self, word: u64) -> usize {
        let bytes = self.tokens.out.len();
        if self.count > 0 {
            self.tokens.put(zigzag(self.newest.wrapping_sub(self.before) as i64));
            self.before = self.newest;
        }
        (self.newest, self.count) = (word, self.count + 1);
        self.tokens.out.len() - bytes
    }

    fn all(&self) -> Vec<u64> {
        if self.count == 0 {
            return Vec::new();
        }
        let tokens = self.tokens.clone().end();
        let (mut bytes, mut zeros, mut last) = (Cursor::new(&tokens), 0, 0u64);
        let mut words = Vec::with_capacity(self.count);
        while words.len() + 1 < self.count
            && let Some(difference) = token(&mut bytes, &mut zeros)
        {
            last = last.wrapping_add(unzigzag(difference) as u64);
            words.push(last);
        }
        words.push(self.newest);
        words
    }
}

#[derive(Clone, Debug)]
pub struct Column {
    pub name: Arc<str>,
    pub kind: Kind,
    runs: Vec<Run>,
    words: Words,
}

impl Column {
    pub fn new(name: Arc<str>, kind: Kind) -> Column {
        // Nearly all have one run.
        Column { name, kind, runs: Vec::with_capacity(1), words: Words::default() }
    }

    /// The value of the newest row; given twice for one row, the last one counts. Returns how many bytes of memory it
    /// took.
    pub fn push(&mut self, row: usize, word: u64) -> usize {
        let mut bytes = 0;
        match self.runs.last_mut() {
            Some(run) if run.row + run.rows == row + 1 => {
                self.words.replace_newest(word);
                return 0;
            }
            Some(run) if run.row + run.rows == row => run.rows += 1,
            _ => {
                self.runs.push(Run { row, word: self.words.len(), rows: 1 });
                bytes = size_of::<Run>();
            }
        }
        bytes + self.words.push(word)
    }

    /// Makes [`Column::at`] quick.
    pub fn thaw(&mut self) {
        self.words.thaw();
    }

    pub fn at(&self, row: usize) -> Option<Value> {
        let run = self.runs[..self.runs.partition_point(|r| r.row <= row)].last()?;
        let offset = row - run.row;
        if offset >= run.rows {
            return None;
        }
        self.words.get(run.word + offset).map(|word| self.kind.join(word))
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name.as_bytes());
        out.push(self.kind as u8);
        put_varint(out, self.runs.len() as u64);
        let mut row = 0;
        for run in &self.runs {
            put_varint(out, (run.row - row) as u64);
            put_varint(out, (run.rows - 1) as u64);
            row = run.row + run.rows;
        }
        let words = self.words.all();
        match self.kind {
            Kind::Float => encode_floats(out, &words),
            Kind::Int | Kind::Counter => encode_words(out, &words),
        }
    }

    /// `budget` is how many values the chunk may still hold.
    pub fn decode(bytes: &mut Cursor<'_>, rows: usize, budget: &mut usize) -> Option<Column> {
        let name = bytes.text()?.into();
        let kind = Kind::from_byte(bytes.byte()?)?;
        let mut column = Column::new(name, kind);
        let runs = bytes.count(2)?;
        column.runs.reserve(runs);
        let (mut row, mut word) = (0usize, 0usize);
        for _ in 0..runs {
            let start = row.checked_add(usize::try_from(bytes.varint()?).ok()?)?;
            let length = usize::try_from(bytes.varint()?).ok()?.checked_add(1)?;
            row = start.checked_add(length).filter(|end| *end <= rows)?;
            column.runs.push(Run { row: start, word, rows: length });
            word += length;
        }
        *budget = budget.checked_sub(word)?;
        column.words = Words::Plain(match kind {
            Kind::Float => decode_floats(bytes, word)?,
            Kind::Int | Kind::Counter => decode_words(bytes, word)?,
        });
        Some(column)
    }
}

const DELTA: u8 = 0;
const DELTA_OF_DELTA: u8 = 1;

/// Differences, or differences of differences: whichever takes fewer bytes. Arithmetic wraps, so every value fits.
pub fn encode_words(out: &mut Vec<u8>, words: &[u64]) {
    let (first, second) = (differences(words, DELTA), differences(words, DELTA_OF_DELTA));
    let (mode, bytes) = if second.len() < first.len() { (DELTA_OF_DELTA, second) } else { (DELTA, first) };
    out.push(mode);
    out.extend_from_slice(&bytes);
}

fn differences(words: &[u64], mode: u8) -> Vec<u8> {
    let mut tokens = Tokens::default();
    let (mut last, mut slope) = (0u64, 0u64);
    for (i, word) in words.iter().enumerate() {
        let delta = word.wrapping_sub(last);
        tokens.put(zigzag(delta.wrapping_sub(slope) as i64));
        last = *word;
        if mode == DELTA_OF_DELTA && i > 0 {
            slope = delta;
        }
    }
    tokens.end()
}

pub fn decode_words(bytes: &mut Cursor<'_>, count: usize) -> Option<Vec<u64>> {
    let mode = bytes.byte().filter(|m| *m <= DELTA_OF_DELTA)?;
    let mut zeros = 0;
    let mut words = Vec::with_capacity(count);
    let (mut last, mut slope) = (0u64, 0u64);
    for i in 0..count {
        let delta = (unzigzag(token(bytes, &mut zeros)?) as u64).wrapping_add(slope);
        last = last.wrapping_add(delta);
        if mode == DELTA_OF_DELTA && i > 0 {
            slope = delta;
        }
        words.push(last);
    }
    (zeros == 0).then_some(words)
}

/// Not a number of decimals: the bits themselves follow.
const BITS: u8 = 0xff;
const POWERS: [f64; 7] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6];

/// Servers print floats with few decimals: these are whole numbers, if each comes back bit for bit. Others are kept as
/// the bits in which they differ from the value before.
fn encode_floats(out: &mut Vec<u8>, words: &[u64]) {
    let scaled = (0u8..).zip(POWERS).find_map(|(digits, power)| {
        let whole: Option<Vec<u64>> = words.iter().map(|w| scale(*w, power)).collect();
        Some((digits, whole?))
    });
    if let Some((digits, whole)) = scaled {
        out.push(digits);
        encode_words(out, &whole);
        return;
    }
    out.push(BITS);
    let (mut tokens, mut last) = (Tokens::default(), 0);
    for word in words {
        // The sign and exponent change least; turned round, they are the high bits that a varint leaves out.
        tokens.put((word ^ last).reverse_bits());
        last = *word;
    }
    out.extend_from_slice(&tokens.end());
}

fn decode_floats(bytes: &mut Cursor<'_>, count: usize) -> Option<Vec<u64>> {
    let digits = bytes.byte()?;
    if digits == BITS {
        let (mut zeros, mut last) = (0, 0);
        let mut words = Vec::with_capacity(count);
        for _ in 0..count {
            last ^= token(bytes, &mut zeros)?.reverse_bits();
            words.push(last);
        }
        return (zeros == 0).then_some(words);
    }
    let power = *POWERS.get(usize::from(digits))?;
    let mut words = decode_words(bytes, count)?;
    words.iter_mut().for_each(|w| *w = unscale(*w, power));
    Some(words)
}

fn scale(bits: u64, power: f64) -> Option<u64> {
    let whole = (f64::from_bits(bits) * power).round();
    // Up to 2^53 every whole number is a float.
    let word = (whole.abs() < 9e15).then_some(whole as i64 as u64)?;
    (unscale(word, power) == bits).then_some(word)
}

fn unscale(word: u64, power: f64) -> u64 {
    (word as i64 as f64 / power).to_bits()
}

/// Varints, with a run of zeros as a zero and its length less one.
#[derive(Clone, Debug, Default)]
struct Tokens {
    out: Vec<u8>,
    zeros: u64,
}

impl Tokens {
    fn put(&mut self, value: u64) {
        if value == 0 {
            self.zeros += 1;
            return;
        }
        self.end_run();
        put_varint(&mut self.out, value);
    }

    fn end_run(&mut self) {
        if self.zeros > 0 {
            self.out.push(0);
            put_varint(&mut self.out, self.zeros - 1);
            self.zeros = 0;
        }
    }

    fn end(mut self) -> Vec<u8> {
        self.end_run();
        self.out
    }
}

/// The next value; `zeros` is how many more of them the run has.
fn token(bytes: &mut Cursor<'_>, zeros: &mut u64) -> Option<u64> {
    if *zeros > 0 {
        *zeros -= 1;
        return Some(0);
    }
    let value = bytes.varint()?;
    if value == 0 {
        *zeros = bytes.varint()?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_counter_takes_no_bytes_a_row() {
        let words: Vec<u64> = (0..3600u64).map(|i| 1_795_460_639_000 + i * 1000).collect();
        let mut out = Vec::new();
        encode_words(&mut out, &words);
        assert!(out.len() < 16, "{} bytes", out.len());
        assert_eq!(decode_words(&mut Cursor::new(&out), words.len()), Some(words));
    }

    #[test]
    fn floats_keep_their_bits() {
        let odd = [f64::NAN, f64::INFINITY, -0.0, 0.0, f64::MIN_POSITIVE, 1.0 / 3.0, f64::MAX, f64::from_bits(1)];
        for values in [&[1.25, 1.5, 1.13, -7.0][..], &odd, &[f64::NEG_INFINITY], &[-0.0], &[9e300, 1e-9]] {
            let words: Vec<u64> = values.iter().map(|v| v.to_bits()).collect();
            let mut out = Vec::new();
            encode_floats(&mut out, &words);
            assert_eq!(decode_floats(&mut Cursor::new(&out), words.len()), Some(words), "{values:?}");
        }
    }

    #[test]
    fn a_run_of_zeros_never_goes_past_the_column() {
        let mut out = vec![DELTA, 0];
        put_varint(&mut out, u64::MAX);
        assert_eq!(decode_words(&mut Cursor::new(&out), 3), None);
    }
}
