//! A column's numbers on disk: each as how far it is from what was to be expected, as tokens or as coded bits.

use crate::coder;
use crate::wire::{Cursor, put_varint, unzigzag, zigzag};
use crate::words::{Tokens, Words, token};

/// A chunk that is written: what is compressed afterwards, and what is as small as it gets.
#[derive(Default)]
pub struct Packing {
    pub plain: Vec<u8>,
    pub coded: Vec<u8>,
}

impl Packing {
    /// Bits that a coder made; how many bytes they take stands in front, in the other part.
    pub fn put_coded(&mut self, bytes: &[u8]) {
        put_varint(&mut self.plain, bytes.len() as u64);
        self.coded.extend_from_slice(bytes);
    }
}

/// A chunk that is read. Format 1 has no coded bits.
pub struct Packed<'a> {
    pub plain: Cursor<'a>,
    pub coded: Cursor<'a>,
}

impl<'a> Packed<'a> {
    pub fn take_coded(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.plain.varint()?).ok()?;
        self.coded.take(count)
    }
}

/// What a number is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The one before it.
    Same,
    /// As far from the one before it as that was from its own.
    Steady,
    /// As far from the one before it as another column's number is: which one is said behind it.
    Alike,
    /// A hundred times what the column before it has for each of the one before that:
    /// `calls=3,usec=41,usec_per_call=13.67`.
    Quotient,
}

impl Expected {
    const ALL: [Expected; 4] = [Expected::Same, Expected::Steady, Expected::Alike, Expected::Quotient];
}

/// Beside what is expected: the numbers are coded, and no tokens.
const CODED: u8 = 0x80;
/// Tokens that take so few bytes are not worth a coder: nearly all fields of a server hardly ever change.
const FEW: usize = 24;

/// One column is told by another, that one by a third and so on: to read it, at most so many are read first.
pub const DEPTH_MAX: u8 = 32;

/// A column that was written before.
#[derive(Clone, Copy)]
pub struct Other<'a> {
    pub place: usize,
    pub words: &'a [u64],
    /// How many are read before it is.
    pub depth: u8,
}

/// Columns that were written before, each with as many numbers.
#[derive(Clone, Copy, Default)]
pub struct Others<'a> {
    /// One may move as one of these does.
    pub moving: &'a [Other<'a>],
    /// The two right before it, in their order.
    pub last_two: Option<[Other<'a>; 2]>,
}

/// What is expected of one number after the other.
#[derive(Default)]
struct Expecting {
    last: u64,
    slope: u64,
    count: usize,
}

impl Expecting {
    fn next(&self, expected: Expected, others: [&[u64]; 2]) -> u64 {
        let alike = |i: usize| others[0][i].wrapping_sub(others[0][i - 1]);
        match (expected, self.count) {
            (Expected::Same, _) | (Expected::Alike, 0) => self.last,
            (Expected::Steady, _) => self.last.wrapping_add(self.slope),
            (Expected::Alike, i) => self.last.wrapping_add(alike(i)),
            (Expected::Quotient, i) => quotient(others[0][i], others[1][i]),
        }
    }

    fn was(&mut self, word: u64) {
        if self.count > 0 {
            self.slope = word.wrapping_sub(self.last);
        }
        (self.last, self.count) = (word, self.count + 1);
    }
}

/// As servers compute it, in the same precision: `(float)usec / calls`.
fn quotient(calls: u64, usec: u64) -> u64 {
    let each = usec as i64 as f32 / calls as i64 as f32;
    (f64::from(each) * 100.0).round() as i64 as u64
}

/// Differences wrap, so every number fits. The others have as many numbers, where they are needed.
fn differences(words: &[u64], expected: Expected, others: [&[u64]; 2]) -> Vec<i64> {
    let mut expecting = Expecting::default();
    let difference = |word: &u64| {
        let expected = expecting.next(expected, others);
        expecting.was(*word);
        word.wrapping_sub(expected) as i64
    };
    words.iter().map(difference).collect()
}

fn sums(differences: impl Iterator<Item = Option<i64>>, expected: Expected, others: [&[u64]; 2]) -> Option<Vec<u64>> {
    let mut expecting = Expecting::default();
    let word = |difference: Option<i64>| {
        let word = expecting.next(expected, others).wrapping_add(difference? as u64);
        expecting.was(word);
        Some(word)
    };
    differences.map(word).collect()
}

fn tokens_of(differences: &[i64]) -> Vec<u8> {
    let mut tokens = Tokens::default();
    differences.iter().for_each(|difference| tokens.put(zigzag(*difference)));
    tokens.end()
}

/// Bits that it takes to tell these apart, more or less.
fn weight(differences: &[i64]) -> u64 {
    differences.iter().map(|d| u64::from(64 - d.unsigned_abs().leading_zeros()) + u64::from(*d != 0)).sum()
}

/// Whichever expectation is nearer. If the numbers are coded, others may be told by them, and what is returned is the
/// depth.
pub fn put_words(out: &mut Packing, words: &[u64], others: Others<'_>) -> Option<u8> {
    struct Choice<'a> {
        weight: u64,
        expected: Expected,
        others: [&'a [u64]; 2],
        place: usize,
        depth: u8,
    }
    let choose = |expected, others, place, depth| {
        let weight = weight(&differences(words, expected, others));
        Choice { weight, expected, others, place, depth }
    };
    let none = [&[][..]; 2];
    let [same, steady] = [Expected::Same, Expected::Steady].map(|expected| choose(expected, none, 0, 0));
    let mut best = if steady.weight < same.weight { steady } else { same };
    let tokens = tokens_of(&differences(words, best.expected, none));
    if tokens.len() <= FEW {
        out.plain.push(best.expected as u8);
        out.plain.extend_from_slice(&tokens);
        return None;
    }
    let is_near = |other: &&Other<'_>| other.depth < DEPTH_MAX;
    let alike = others.moving.iter().filter(is_near);
    let alike = alike.map(|o| choose(Expected::Alike, [o.words, &[]], o.place, o.depth + 1));
    let two = others.last_two.filter(|two| two.iter().all(|other| is_near(&other)));
    let quotient =
        two.map(|[one, two]| choose(Expected::Quotient, [one.words, two.words], 0, one.depth.max(two.depth) + 1));
    for choice in quotient.into_iter().chain(alike) {
        if choice.weight < best.weight {
            best = choice;
        }
    }
    out.plain.push(best.expected as u8 | CODED);
    if best.expected == Expected::Alike {
        put_varint(&mut out.plain, best.place as u64);
    }
    out.put_coded(&coder::encode(differences(words, best.expected, best.others).into_iter()));
    Some(best.depth)
}

/// What a column's numbers are told by, beside themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Nothing,
    /// The column at this place.
    Place(usize),
    LastTwo,
}

/// Coded numbers, as they stand: hundreds of columns have them, and most readers want a few.
#[derive(Clone, Debug)]
pub struct Late {
    expected: Expected,
    pub by: By,
    bytes: Box<[u8]>,
    pub count: usize,
}

impl Late {
    /// `None` where the others have not as many numbers, or the bytes are not theirs.
    pub fn words(&self, others: [&[u64]; 2]) -> Option<Vec<u64>> {
        let is_enough = match self.by {
            By::Nothing => true,
            By::Place(_) => others[0].len() == self.count,
            By::LastTwo => others.iter().all(|words| words.len() == self.count),
        };
        let differences = is_enough.then(|| coder::decode(&self.bytes, self.count))??;
        sums(differences.into_iter().map(Some), self.expected, others)
    }
}

/// Numbers that were read, or that may be.
pub enum Read {
    Words(Words),
    Late(Late),
}

impl Read {
    /// Of columns that are told by nothing else.
    pub fn alone(self) -> Option<Vec<u64>> {
        match self {
            Read::Words(words) => Some(words.all().into_owned()),
            Read::Late(late) if late.by == By::Nothing => late.words([&[]; 2]),
            Read::Late(_) => None,
        }
    }
}

pub fn words(bytes: &mut Packed<'_>, count: usize) -> Option<Read> {
    let mode = bytes.plain.byte()?;
    let expected = *Expected::ALL.get(usize::from(mode & !CODED))?;
    let by = match expected {
        Expected::Same | Expected::Steady => By::Nothing,
        Expected::Alike => By::Place(usize::try_from(bytes.plain.varint()?).ok()?),
        Expected::Quotient => By::LastTwo,
    };
    if mode & CODED != 0 {
        // Few numbers are not coded.
        if count == 0 {
            return None;
        }
        return Some(Read::Late(Late { expected, by, bytes: bytes.take_coded()?.into(), count }));
    }
    if by != By::Nothing {
        return None;
    }
    if let Some(constant) = constant(&mut bytes.plain, expected, count) {
        return Some(Read::Words(constant));
    }
    let mut zeros = 0;
    let all = (0..count).map(|_| token(&mut bytes.plain, &mut zeros).map(unzigzag));
    let words = sums(all, expected, [&[]; 2])?;
    (zeros == 0).then_some(Read::Words(Words::of(words)))
}

/// One number repeated `count` times: hundreds of columns in each chunk never change and need not be read row by row.
fn constant(bytes: &mut Cursor<'_>, expected: Expected, count: usize) -> Option<Words> {
    let mut ahead = *bytes;
    let mut zeros = 0;
    let first = token(&mut ahead, &mut zeros).filter(|_| expected == Expected::Same)?;
    let rest = count.checked_sub(1)? as u64;
    if first != 0 && rest > 0 {
        token(&mut ahead, &mut zeros).filter(|second| *second == 0)?;
        zeros = zeros.checked_add(1)?;
    }
    (zeros == rest).then(|| {
        *bytes = ahead;
        Words::Constant(unzigzag(first) as u64, count)
    })
}

/// Passes over so many numbers.
pub fn pass_words(bytes: &mut Packed<'_>, count: usize) -> Option<()> {
    let mode = bytes.plain.byte()?;
    if mode & !CODED == Expected::Alike as u8 {
        bytes.plain.varint()?;
    }
    if mode & CODED != 0 { bytes.take_coded().map(drop) } else { pass_tokens(&mut bytes.plain, count) }
}

fn pass_tokens(bytes: &mut Cursor<'_>, count: usize) -> Option<()> {
    let mut left = count as u64;
    while left > 0 {
        let mut zeros = 0;
        token(bytes, &mut zeros)?;
        left = (left - 1).checked_sub(zeros)?;
    }
    Some(())
}

/// Passes over so many floats.
pub fn pass_floats(bytes: &mut Packed<'_>, count: usize) -> Option<()> {
    match bytes.plain.byte()? {
        BITS => pass_tokens(&mut bytes.plain, count),
        _ => pass_words(bytes, count),
    }
}

/// Not a number of decimals: the bits themselves follow.
const BITS: u8 = 0xff;
const POWERS: [f64; 7] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6];

/// Servers print floats with few decimals: these are whole numbers, if each comes back bit for bit. Others are kept as
/// the bits in which they differ from the value before.
pub fn put_floats(out: &mut Packing, words: &[u64]) {
    let scaled = (0u8..).zip(POWERS).find_map(|(digits, power)| {
        let whole: Option<Vec<u64>> = words.iter().map(|w| scale(*w, power)).collect();
        Some((digits, whole?))
    });
    if let Some((digits, whole)) = scaled {
        out.plain.push(digits);
        put_words(out, &whole, Others::default());
        return;
    }
    out.plain.push(BITS);
    let (mut tokens, mut last) = (Tokens::default(), 0);
    for word in words {
        // The sign and exponent change least; turned round, they are the high bits that a varint leaves out.
        tokens.put((word ^ last).reverse_bits());
        last = *word;
    }
    out.plain.extend_from_slice(&tokens.end());
}

pub fn floats(bytes: &mut Packed<'_>, count: usize) -> Option<Vec<u64>> {
    let digits = bytes.plain.byte()?;
    if digits == BITS {
        let (mut zeros, mut last) = (0, 0);
        let mut words = Vec::new();
        for _ in 0..count {
            last ^= token(&mut bytes.plain, &mut zeros)?.reverse_bits();
            words.push(last);
        }
        return (zeros == 0).then_some(words);
    }
    let power = *POWERS.get(usize::from(digits))?;
    let mut words = words(bytes, count)?.alone()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn back(packing: &Packing, read: impl FnOnce(&mut Packed<'_>) -> Option<Vec<u64>>) -> Option<Vec<u64>> {
        let mut packed = Packed { plain: Cursor::new(&packing.plain), coded: Cursor::new(&packing.coded) };
        read(&mut packed).filter(|_| packed.plain.is_empty() && packed.coded.is_empty())
    }

    fn words_by(out: &Packing, count: usize, others: [&[u64]; 2]) -> Option<Vec<u64>> {
        back(out, |packed| match words(packed, count)? {
            Read::Words(words) => Some(words.all().into_owned()),
            Read::Late(late) => late.words(others),
        })
    }

    #[test]
    fn a_steady_counter_takes_no_bytes_a_row() {
        let all: Vec<u64> = (0..3600u64).map(|i| 1_795_460_639_000 + i * 1000).collect();
        let mut out = Packing::default();
        assert_eq!(put_words(&mut out, &all, Others::default()), None);
        assert!(out.plain.len() < 16 && out.coded.is_empty(), "{} bytes", out.plain.len());
        assert_eq!(words_by(&out, all.len(), [&[]; 2]), Some(all));
    }

    #[test]
    fn a_constant_is_read_as_one_and_nothing_else_is() {
        for (all, is_constant) in [
            (vec![0; 3600], true),
            (vec![9; 3600], true),
            (vec![u64::MAX], true),
            (vec![0], true),
            (vec![0, 0, 7], false),
            (vec![7, 7, 0, 0], false),
            (vec![0, 7, 7, 7], false),
            (vec![7, 14, 21, 28], false),
        ] {
            let mut out = Packing::default();
            put_words(&mut out, &all, Others::default());
            let found = constant(&mut Cursor::new(&out.plain[1..]), Expected::Same, all.len());
            assert_eq!(found.is_some(), is_constant, "{all:?}");
            assert_eq!(words_by(&out, all.len(), [&[]; 2]), Some(all));
        }
        // A run that is longer than the column.
        let mut longer = Packing { plain: vec![Expected::Same as u8, 14, 0, 9], coded: Vec::new() };
        assert_eq!(words_by(&longer, 10, [&[]; 2]), None);
        longer.plain[3] = 8;
        assert_eq!(words_by(&longer, 10, [&[]; 2]), Some(vec![7; 10]));
    }

    #[test]
    fn a_column_that_moves_as_another_does_takes_no_bytes_a_row() {
        let one: Vec<u64> = (0..1800u64).map(|i| i * i * 7_919 % 65_537).collect();
        let two: Vec<u64> = one.iter().map(|word| word.wrapping_sub(1_000_000)).collect();
        let other = |depth| [Other { place: 1, words: &one, depth }];
        let mut out = Packing::default();
        assert_eq!(put_words(&mut out, &two, Others { moving: &other(4), last_two: None }), Some(5));
        assert!(out.plain.len() + out.coded.len() < 24, "{} and {} bytes", out.plain.len(), out.coded.len());
        assert_eq!(words_by(&out, 1800, [&one, &[]]), Some(two.clone()));
        assert_eq!(words_by(&out, 1800, [&one[..1799], &[]]), None, "that is none with as many numbers");
        assert_eq!(back(&out, |packed| words(packed, 1800)?.alone()), None, "there is no such column");
        let mut deep = Packing::default();
        assert_eq!(put_words(&mut deep, &two, Others { moving: &other(DEPTH_MAX), last_two: None }), Some(0));
    }

    #[test]
    fn what_a_server_divides_itself_takes_no_bytes_a_row() {
        // `usec_per_call=%.2f` of (float)usec / calls, as Redis and Valkey print it.
        let calls: Vec<u64> = (0..1800u64).map(|i| 1_000 + i * 37 % 997 + i * 40).collect();
        let usec: Vec<u64> = calls.iter().enumerate().map(|(i, calls)| calls * 13 + i as u64 * 7_919 % 5_003).collect();
        let printed = calls.iter().zip(&usec).map(|(calls, usec)| format!("{:.2}", *usec as f32 / *calls as f32));
        let each: Vec<u64> = printed.map(|text| text.replace('.', "").parse().unwrap()).collect();
        let mut out = Packing::default();
        let two = [&calls, &usec].map(|words| Other { place: 0, words, depth: 0 });
        assert_eq!(put_words(&mut out, &each, Others { moving: &[], last_two: Some(two) }), Some(1));
        assert!(out.plain.len() + out.coded.len() < 24, "{} and {} bytes", out.plain.len(), out.coded.len());
        assert_eq!(words_by(&out, 1800, [&calls, &usec]), Some(each));
        assert_eq!(words_by(&out, 1800, [&calls, &[]]), None, "there are no such two");
        assert_eq!(quotient(0, 0), 0, "no calls at all");
    }

    #[test]
    fn floats_keep_their_bits() {
        let odd = [f64::NAN, f64::INFINITY, -0.0, 0.0, f64::MIN_POSITIVE, 1.0 / 3.0, f64::MAX, f64::from_bits(1)];
        for values in [&[1.25, 1.5, 1.13, -7.0][..], &odd, &[f64::NEG_INFINITY], &[-0.0], &[9e300, 1e-9]] {
            let words: Vec<u64> = values.iter().map(|v| v.to_bits()).collect();
            let mut out = Packing::default();
            put_floats(&mut out, &words);
            assert_eq!(back(&out, |packed| floats(packed, words.len())), Some(words), "{values:?}");
        }
    }

    #[test]
    fn a_run_of_zeros_never_goes_past_the_column() {
        let mut out = Packing { plain: vec![Expected::Same as u8, 0], coded: Vec::new() };
        put_varint(&mut out.plain, u64::MAX);
        assert_eq!(words_by(&out, 3, [&[]; 2]), None);
    }
}
