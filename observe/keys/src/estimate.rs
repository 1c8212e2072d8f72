//! What a part of the keys says of all of them.
//!
//! Servers hand out keys in the order of their hashes, which has nothing to do with names or sizes, so what was seen is
//! a random sample without replacement: <https://redis.io/docs/latest/commands/scan/>. Since Redis 7.4 and Valkey 8.0 a
//! cluster node goes slot by slot. Keys with one hash tag then come together, and a pattern whose keys share few tags
//! is known less well than is said here.

use serde::{Deserialize, Serialize};

/// Half the width of an interval of 95 %, in standard errors.
const Z: f64 = 1.96;
/// How sure the bounds are.
pub const CONFIDENCE: f64 = 0.95;

/// A figure for all keys, and by how much it may be off (95 %); 0 where all were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Estimate {
    pub value: f64,
    pub margin: f64,
}

/// How far a part (one database of one server) was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Keys there are.
    pub all: u64,
    /// Keys seen.
    pub seen: u64,
}

/// What was found in a part.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// So many keys are of a kind.
    Count(f64),
    /// A figure of keys, summed up, and the sum of its squares.
    Sum { sum: f64, squares: f64 },
}

impl Sample {
    /// Between 0 and 1.
    pub fn share(self) -> f64 {
        if self.all == 0 { 1.0 } else { (self.seen as f64 / self.all as f64).min(1.0) }
    }
}

/// The total over parts that were seen to different extents. Of sums the margin holds only where no few keys have most
/// of it: what was not seen at all is in no spread. [`unseen_at_most`] is for those.
pub fn total(parts: impl IntoIterator<Item = (Sample, Found)>) -> Estimate {
    let (mut value, mut variance) = (0.0, 0.0);
    for (sample, found) in parts {
        if sample.seen == 0 {
            continue;
        }
        let (all, seen) = (sample.all.max(sample.seen) as f64, sample.seen as f64);
        let (sum, spread) = match found {
            // Of a kind that all or none of the keys seen are of there can still be others: as if two more keys of
            // each had been seen (Agresti and Coull).
            Found::Count(n) => (n, ((n + 2.0) / (seen + 4.0)) * (1.0 - (n + 2.0) / (seen + 4.0))),
            Found::Sum { sum, squares } => (sum, (squares / seen - (sum / seen).powi(2)).max(0.0)),
        };
        value += all * sum / seen;
        variance += all * all * spread / seen * (1.0 - sample.share());
    }
    Estimate { value, margin: Z * variance.sqrt() }
}

/// How many keys larger than the largest that was seen there can be, when `share` of the keys was seen, with
/// [`CONFIDENCE`]: `n` such keys stay unseen with a probability of `(1 - share)^n`. `None` when nothing was seen.
pub fn unseen_at_most(share: f64) -> Option<u64> {
    if share <= 0.0 {
        return None;
    }
    if share >= 1.0 {
        return Some(0);
    }
    // Fewer than the n for which it would already be too unlikely.
    Some(((1.0 - CONFIDENCE).ln() / (1.0 - share).ln()).floor() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_keys_nothing_is_estimated() {
        let found = Found::Count(40.0);
        assert_eq!(total([(Sample { all: 100, seen: 100 }, found)]), Estimate { value: 40.0, margin: 0.0 });
        assert_eq!(total([]), Estimate::default());
        assert_eq!(total([(Sample { all: 100, seen: 0 }, Found::Count(0.0))]), Estimate::default());
    }

    #[test]
    fn parts_count_by_their_size_not_by_how_far_they_were_seen() {
        let half = (Sample { all: 1000, seen: 500 }, Found::Count(250.0));
        let little = (Sample { all: 1000, seen: 100 }, Found::Count(0.0));
        let both = total([half, little]);
        assert_eq!(both.value, 500.0);
        // sqrt((1000^2 * 0.25 / 500 * 0.5) + (1000^2 * 0.0189 / 100 * 0.9))
        assert!((both.margin - Z * 20.49).abs() < 0.1, "{both:?}");
        // Of a kind that was never seen there can be some.
        assert!(total([little]).margin > 20.0);
    }

    #[test]
    fn a_larger_one_hides_with_less_and_less_probability() {
        assert_eq!(unseen_at_most(0.0), None);
        assert_eq!(unseen_at_most(0.62), Some(3));
        assert_eq!(unseen_at_most(0.96), Some(0));
        assert_eq!(unseen_at_most(1.0), Some(0));
        for share in [0.01, 0.1, 0.5, 0.9] {
            let n = unseen_at_most(share).unwrap();
            assert!((1.0 - share).powi(n as i32) >= 1.0 - CONFIDENCE, "{share}: {n} may well be unseen");
            assert!((1.0 - share).powi(n as i32 + 1) < 1.0 - CONFIDENCE, "{share}: {n}");
        }
    }

    /// Draws samples from populations whose totals are known: the interval has to cover them about as often as it says.
    #[test]
    fn intervals_cover_what_they_say() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let (mut covered, tries) = (0, 400);
        for _ in 0..tries {
            let sizes: Vec<f64> = (0..2000).map(|i| if i % 5 == 0 { (random() % 1000) as f64 } else { 0.0 }).collect();
            let mut order: Vec<usize> = (0..sizes.len()).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, random() as usize % (i + 1));
            }
            let seen = &order[..600];
            let sum = seen.iter().map(|&i| sizes[i]).sum();
            let found = Found::Sum { sum, squares: seen.iter().map(|&i| sizes[i] * sizes[i]).sum() };
            let told = total([(Sample { all: 2000, seen: 600 }, found)]);
            covered += i32::from((told.value - sizes.iter().sum::<f64>()).abs() <= told.margin);
        }
        assert!((370..=395).contains(&covered), "{covered} of {tries}");
    }
}
