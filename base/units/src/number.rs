//! Numbers as people type them, read without rounding: `12`, `1.5`, `.5`, `1,234,567`.

/// A number without a sign. Too many digits make it very large, never wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    whole: u128,
    /// Over `scale`.
    fraction: u128,
    scale: u128,
}

/// Digits behind the point that are read; further ones are below anything that is counted here.
const DECIMALS: usize = 18;

impl Number {
    /// The number a text begins with, and what follows it.
    pub(crate) fn split(text: &str) -> Option<(Number, &str)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len());
        let (digits, rest) = text.split_at(end);
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, ""));
        let plain = decimals.bytes().all(|b| b.is_ascii_digit()) && is_grouped(whole);
        if !plain || (whole.is_empty() && decimals.is_empty()) {
            return None;
        }
        let decimals = &decimals[..decimals.len().min(DECIMALS)];
        let scale = decimals.bytes().fold(1, |scale: u128, _| scale * 10);
        Some((Number { whole: value(whole), fraction: value(decimals), scale }, rest))
    }

    /// How many of the smallest units these are, rounded; as many as fit if there are too many.
    pub(crate) fn times(self, unit: u128) -> u128 {
        let fraction = (self.fraction.saturating_mul(unit).saturating_add(self.scale / 2)) / self.scale;
        self.whole.saturating_mul(unit).saturating_add(fraction)
    }

    /// Whether it is a whole number of the smallest units.
    pub(crate) fn is_whole(self, unit: u128) -> bool {
        self.fraction.saturating_mul(unit).is_multiple_of(self.scale)
    }

    pub(crate) fn as_f64(self) -> f64 {
        self.whole as f64 + self.fraction as f64 / self.scale as f64
    }
}

/// `1,234,567` or without commas.
fn is_grouped(digits: &str) -> bool {
    let mut groups = digits.split(',');
    let first = groups.next().unwrap_or("");
    let alone = first.len() == digits.len();
    alone || ((1..=3).contains(&first.len()) && groups.all(|group| group.len() == 3))
}

fn value(digits: &str) -> u128 {
    let digits = digits.bytes().filter(u8::is_ascii_digit);
    digits.fold(0, |value: u128, digit| value.saturating_mul(10).saturating_add(u128::from(digit - b'0')))
}

/// At most what fits.
pub(crate) fn saturated(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
