//! Numbers as bits: an adaptive binary range coder. Small numbers, and those like the ones before, take few bits.
//!
//! A number is coded as whether it is zero, its width, its sign, and its bits below the first; each of these is a
//! decision whose odds are learnt from the numbers before it. Coding and decoding are one walk over the same decisions
//! ([`Numbers::walk`]), so they cannot differ. The coder is the carryless one of Nelson and Mahoney's PAQ family: the
//! interval that is left is cut in two by the odds, and bytes that both of its ends share are written.

/// Either direction: an encoder is given the bit, a decoder returns it.
trait Bits {
    fn bit(&mut self, odds: &mut Odds, bit: bool) -> bool;
    /// One that is as likely set as not.
    fn even(&mut self, bit: bool) -> bool;
}

/// How likely a bit is to be set, in 1/65536: a mean over those that were coded with it, the newest of which count
/// most.
#[derive(Clone, Copy)]
struct Odds {
    set: u16,
    seen: u8,
}

/// The adaptation rate falls as 1/n at first, and never below 1/2^this.
const STEP_MAX: u8 = 6;
/// The interval is cut in 1/4096.
const CUT_BITS: u32 = 12;

impl Odds {
    const EVEN: Odds = Odds { set: 1 << 15, seen: 0 };

    /// In 1/4096, never certain.
    #[inline(always)]
    fn cut(self) -> u32 {
        (u32::from(self.set) >> (16 - CUT_BITS)).clamp(1, (1 << CUT_BITS) - 1)
    }

    #[inline(always)]
    fn learn(&mut self, bit: bool) {
        let step = STEPS[usize::from(self.seen) % STEPS.len()];
        self.seen = (self.seen + 1).min(STEPS.len() as u8 - 1);
        // Without a branch: the bit is unpredictable. `u16::MAX - set` is `!set`.
        let unless = u16::from(bit).wrapping_sub(1);
        let other = !(self.set ^ unless);
        self.set = !((other - (other >> step)) ^ unless);
    }
}

const STEPS: [u8; 64] = {
    let mut steps = [0; 64];
    let mut seen = 0;
    while seen < steps.len() {
        let step = (2 * seen as u32 + 3).ilog2() as u8;
        steps[seen] = if step < STEP_MAX { step } else { STEP_MAX };
        seen += 1;
    }
    steps
};

/// What is left of the interval, both ends within it.
#[derive(Clone, Copy)]
struct Interval {
    low: u32,
    high: u32,
}

impl Interval {
    const WHOLE: Interval = Interval { low: 0, high: u32::MAX };

    /// The last place of the part that stands for a set bit. The other part has one place at least.
    #[inline(always)]
    fn cut(self, odds: Odds) -> u32 {
        self.low + ((self.high - self.low) >> CUT_BITS) * odds.cut()
    }

    #[inline(always)]
    fn middle(self) -> u32 {
        self.low + ((self.high - self.low) >> 1)
    }

    /// Without a branch: the bit is unpredictable.
    #[inline(always)]
    fn keep(&mut self, middle: u32, bit: bool) {
        let unless = u32::from(bit).wrapping_sub(1);
        self.high = (middle & !unless) | (self.high & unless);
        self.low = (middle.wrapping_add(1) & unless) | (self.low & !unless);
    }

    /// The first byte, if all that is left begins with it; it is taken off.
    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        if (self.low ^ self.high) >> 24 != 0 {
            return None;
        }
        let byte = (self.high >> 24) as u8;
        (self.low, self.high) = (self.low << 8, self.high << 8 | 0xff);
        Some(byte)
    }
}

struct Coder {
    left: Interval,
    out: Vec<u8>,
}

impl Bits for Coder {
    fn bit(&mut self, odds: &mut Odds, bit: bool) -> bool {
        self.keep(self.left.cut(*odds), bit);
        odds.learn(bit);
        bit
    }

    fn even(&mut self, bit: bool) -> bool {
        self.keep(self.left.middle(), bit);
        bit
    }
}

impl Coder {
    fn keep(&mut self, middle: u32, bit: bool) {
        self.left.keep(middle, bit);
        while let Some(byte) = self.left.byte() {
            self.out.push(byte);
        }
    }

    fn new() -> Coder {
        Coder { left: Interval::WHOLE, out: Vec::new() }
    }

    /// A decoder reads zeros behind the last byte: one more byte tells the interval that is left, since its ends differ
    /// in it.
    fn end(mut self) -> Vec<u8> {
        self.out.push((self.left.high >> 24) as u8);
        self.out
    }
}

struct Decoder<'a> {
    left: Interval,
    at: u32,
    rest: &'a [u8],
    /// Bytes that were read behind the end.
    past: usize,
}

/// A decoder is that many bytes ahead when it has decoded everything.
const AHEAD: usize = 3;

impl<'a> Decoder<'a> {
    fn new(bytes: &'a [u8]) -> Decoder<'a> {
        let mut decoder = Decoder { left: Interval::WHOLE, at: 0, rest: bytes, past: 0 };
        (0..4).for_each(|_| decoder.read());
        decoder
    }

    #[inline(always)]
    fn keep(&mut self, middle: u32) -> bool {
        let bit = self.at <= middle;
        self.left.keep(middle, bit);
        while self.left.byte().is_some() {
            self.read();
        }
        bit
    }

    #[inline(always)]
    fn read(&mut self) {
        let byte = match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                *byte
            }
            None => {
                self.past += 1;
                0
            }
        };
        self.at = self.at << 8 | u32::from(byte);
    }

    /// Whether the bytes held what was read from them, and nothing more.
    fn is_whole(&self) -> bool {
        self.past == AHEAD
    }
}

impl Bits for Decoder<'_> {
    #[inline(always)]
    fn bit(&mut self, odds: &mut Odds, _: bool) -> bool {
        let bit = self.keep(self.left.cut(*odds));
        odds.learn(bit);
        bit
    }

    fn even(&mut self, _: bool) -> bool {
        self.keep(self.left.middle())
    }
}

/// Widths of the number before that are told apart: wider ones count as this.
const WIDTHS_BEFORE: usize = 24;
/// Bits below the first one whose odds depend on those above them,
const LEARNT_BITS: u32 = 6;
/// in numbers up to this width. Others are as likely set as not.
const LEARNT_WIDTHS: usize = 24;

/// The odds of all decisions about the numbers of one column.
struct Numbers {
    /// By the width of the number before, and whether the one before that was zero.
    zero: [[Odds; 2]; WIDTHS_BEFORE + 1],
    /// A tree for each width of the number before.
    width: [[Odds; 64]; WIDTHS_BEFORE + 1],
    /// By width, and the sign of the last number that had one.
    sign: [[Odds; 2]; 65],
    /// A tree for each width.
    below: [[Odds; 1 << LEARNT_BITS]; LEARNT_WIDTHS + 1],
    before: usize,
    was_zero: bool,
    was_negative: bool,
}

impl Numbers {
    fn new() -> Numbers {
        Numbers {
            zero: [[Odds::EVEN; 2]; WIDTHS_BEFORE + 1],
            width: [[Odds::EVEN; 64]; WIDTHS_BEFORE + 1],
            sign: [[Odds::EVEN; 2]; 65],
            below: [[Odds::EVEN; 1 << LEARNT_BITS]; LEARNT_WIDTHS + 1],
            before: 0,
            was_zero: true,
            was_negative: false,
        }
    }

    /// Codes a number, or decodes and returns one: then it does not matter which is given.
    fn walk(&mut self, bits: &mut impl Bits, number: i64) -> i64 {
        let magnitude = number.unsigned_abs();
        let before = self.before.min(WIDTHS_BEFORE);
        if bits.bit(&mut self.zero[before][usize::from(self.was_zero)], magnitude == 0) {
            (self.was_zero, self.before) = (self.before == 0, 0);
            return 0;
        }
        let width = 1 + tree(bits, &mut self.width[before], u64::from(magnitude.max(1).ilog2()), 6) as usize;
        let negative = bits.bit(&mut self.sign[width][usize::from(self.was_negative)], number < 0);
        let mut lower = width as u32 - 1;
        let mut found = 1;
        if width <= LEARNT_WIDTHS {
            let learnt = lower.min(LEARNT_BITS);
            lower -= learnt;
            found =
                1 << learnt | tree(bits, &mut self.below[width], (magnitude >> lower) & ((1 << learnt) - 1), learnt);
        }
        while lower > 0 {
            lower -= 1;
            found = found << 1 | u64::from(bits.even(magnitude >> lower & 1 == 1));
        }
        (self.was_zero, self.before, self.was_negative) = (self.before == 0, width, negative);
        if negative { (found as i64).wrapping_neg() } else { found as i64 }
    }
}

/// An unsigned number of `width` bits, highest bit first; the odds of each bit depend on the bits above it.
fn tree(bits: &mut impl Bits, odds: &mut [Odds], number: u64, width: u32) -> u64 {
    let mut node = 1;
    for place in (0..width).rev() {
        node = node << 1 | usize::from(bits.bit(&mut odds[node], number >> place & 1 == 1));
    }
    (node - (1 << width)) as u64
}

/// All of them as bytes.
pub fn encode(numbers: impl Iterator<Item = i64>) -> Vec<u8> {
    let (mut odds, mut coder) = (Numbers::new(), Coder::new());
    numbers.for_each(|number| {
        odds.walk(&mut coder, number);
    });
    coder.end()
}

/// Decodes `count` numbers. `None` if there are too few or too many bytes for them. Damaged bytes of the right length
/// may decode to wrong numbers, so the caller needs a checksum over them.
pub fn decode(bytes: &[u8], count: usize) -> Option<Vec<i64>> {
    let (mut odds, mut decoder) = (Numbers::new(), Decoder::new(bytes));
    let mut numbers = Vec::new();
    while numbers.len() < count && decoder.past <= AHEAD {
        numbers.push(odds.walk(&mut decoder, 0));
    }
    (numbers.len() == count && decoder.is_whole()).then_some(numbers)
}

/// How many preceding flags the odds of the next one depend on.
const HISTORY: u32 = 6;

fn walk_flag(bits: &mut impl Bits, odds: &mut [Odds; 1 << HISTORY], history: &mut usize, flag: bool) -> bool {
    let flag = bits.bit(&mut odds[*history], flag);
    *history = (*history << 1 | usize::from(flag)) & (odds.len() - 1);
    flag
}

/// Which rows have a value, as bytes.
pub fn encode_flags(flags: impl Iterator<Item = bool>) -> Vec<u8> {
    let (mut odds, mut coder, mut history) = ([Odds::EVEN; 1 << HISTORY], Coder::new(), 0);
    flags.for_each(|flag| {
        walk_flag(&mut coder, &mut odds, &mut history, flag);
    });
    coder.end()
}

/// Decodes `count` flags. `None` as in [`decode`].
pub fn decode_flags(bytes: &[u8], count: usize) -> Option<Vec<bool>> {
    let (mut odds, mut decoder, mut history) = ([Odds::EVEN; 1 << HISTORY], Decoder::new(bytes), 0);
    let mut flags = Vec::new();
    while flags.len() < count && decoder.past <= AHEAD {
        flags.push(walk_flag(&mut decoder, &mut odds, &mut history, false));
    }
    (flags.len() == count && decoder.is_whole()).then_some(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(numbers: &[i64]) -> usize {
        let bytes = encode(numbers.iter().copied());
        assert!(decode(&bytes, numbers.len()).as_deref() == Some(numbers), "{} numbers", numbers.len());
        assert!(decode(&bytes, usize::MAX).is_none(), "bytes give no more numbers than they can");
        bytes.len()
    }

    /// xorshift: the same numbers on every machine.
    fn random() -> impl FnMut() -> u64 {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    #[test]
    fn every_number_comes_back() {
        back(&[]);
        back(&[0]);
        back(&[i64::MIN, i64::MAX, 0, -1, 1, i64::MIN]);
        let mut next = random();
        // Of all widths, both signs, in any order.
        back(&(0..20_000).map(|_| next() as i64 >> (next() % 64)).collect::<Vec<i64>>());
        for width in 0..64 {
            let power = 1i64 << width;
            back(&[power, power.wrapping_neg(), power.wrapping_sub(1), power]);
        }
    }

    #[test]
    fn what_repeats_takes_next_to_nothing() {
        assert!(back(&[0; 1800]) <= 8, "{}", back(&[0; 1800]));
        assert!(back(&[-99; 1800]) <= 60, "{}", back(&[-99; 1800]));
        // One of four values: two bits each, a quarter of a byte.
        let mut next = random();
        let four: Vec<i64> = (0..8_000).map(|_| 60 + 7 * (next() % 4) as i64).collect();
        assert!(back(&four) < 2_400, "{}", back(&four));
    }

    #[test]
    fn flags_come_back() {
        let mut next = random();
        for ones in [0, 1, 8, 15, 16] {
            let flags: Vec<bool> = (0..2_000).map(|_| next() % 16 < ones).collect();
            let bytes = encode_flags(flags.iter().copied());
            assert_eq!(decode_flags(&bytes, flags.len()), Some(flags));
            assert!(ones != 0 || bytes.len() <= 8, "{}", bytes.len());
        }
    }

    #[test]
    fn bytes_that_nobody_wrote_end_in_time() {
        let mut next = random();
        for length in 0..64 {
            let bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
            // Whatever they say, no more is decoded than the bytes give.
            assert_eq!(decode(&bytes, usize::MAX), None);
            assert_eq!(decode_flags(&bytes, usize::MAX), None);
        }
    }

    #[test]
    fn bytes_behind_the_end_are_noticed() {
        let bytes = encode((0..500).map(|i| i % 37 - 9));
        assert!(decode(&[&bytes[..], &[0]].concat(), 500).is_none());
        assert!(decode(&bytes[..bytes.len() / 2], 500).is_none(), "half of them");
    }
}
