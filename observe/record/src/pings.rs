//! The PINGs of a second as counts by how long they took, to within an eighth.

use std::collections::BTreeMap;

/// A column of counts is named by the upper end of its range, in us.
const PREFIX: &str = "~ping/";
/// Ten are asked in a second; a recording from elsewhere may say anything.
const SPREAD_MAX: usize = 1_000;

/// Round trips, by the upper end of their range in us.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pings(pub BTreeMap<u32, u32>);

impl Pings {
    pub fn add(&mut self, us: u32) {
        *self.0.entry(upper(us)).or_default() += 1;
    }

    /// One column for each range that has any.
    pub fn columns(&self) -> impl Iterator<Item = (String, i64)> {
        self.0.iter().map(|(us, n)| (format!("{PREFIX}{us}"), i64::from(*n)))
    }

    /// What a column says; `None` if it is none of these.
    pub fn of_column(name: &str, n: i64) -> Option<(u32, u32)> {
        Some((name.strip_prefix(PREFIX)?.parse().ok()?, u32::try_from(n).ok()?))
    }

    /// Each by itself, spread over the `span_ms` behind `from_ms`: when exactly they were is not kept, and which came
    /// first neither.
    pub fn spread(&self, from_ms: u32, span_ms: u32) -> Vec<(u32, u32)> {
        let each = self.0.iter().flat_map(|(us, n)| std::iter::repeat_n(*us, *n as usize));
        let all: Vec<u32> = each.take(SPREAD_MAX).collect();
        let step = span_ms / (all.len() as u32).max(1);
        all.iter().enumerate().map(|(i, us)| (from_ms + step * i as u32, *us)).collect()
    }
}

/// Eight ranges to each power of two; below 16 us every microsecond is its own.
fn upper(us: u32) -> u32 {
    if us < 16 {
        return us;
    }
    let shift = us.ilog2() - 3;
    let low = (us >> shift) << shift;
    low.saturating_add((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_an_eighth_wide_and_holds_its_time() {
        for us in (0..4096).chain([65_535, 65_536, 1_000_000, u32::MAX]) {
            let upper = upper(us);
            assert!(upper >= us && f64::from(upper - us) <= f64::from(us) / 8.0, "{us}: {upper}");
            assert_eq!(super::upper(upper), upper, "{us}");
        }
    }

    #[test]
    fn counts_come_back_from_columns() {
        let mut pings = Pings::default();
        [50, 51, 200, 90_000].into_iter().for_each(|us| pings.add(us));
        let columns: Vec<(String, i64)> = pings.columns().collect();
        let back = columns.iter().filter_map(|(name, n)| Pings::of_column(name, *n)).collect();
        assert_eq!(Pings(back), pings);
        assert_eq!(Pings::of_column("uptime_in_seconds", 3), None);
        let spread = pings.spread(1000, 1000);
        assert_eq!(spread.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1000, 1250, 1500, 1750]);
        assert_eq!(Pings::default().spread(0, 1000), []);
        let forged = Pings((0..1000).map(|us| (us, u32::MAX)).collect());
        assert_eq!(forged.spread(0, 1000).len(), SPREAD_MAX);
    }
}
