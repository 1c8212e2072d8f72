//! How long to wait before the next connection attempt.
//!
//! The pause doubles with each failure, so a dead node costs little, and is random in its upper half, so that clients
//! that lost the same node at the same moment do not all return at the same moment.

/// Counts failures in a row; see the module. All times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: u64,
    most: u64,
    failures: u32,
}

impl Backoff {
    /// Pauses of about `first` after one failure, and never longer than `most`.
    pub const fn new(first: u64, most: u64) -> Backoff {
        Backoff { first, most, failures: 0 }
    }

    /// Counts one more failure and returns the pause before the next attempt: at least half of the doubled time, and
    /// the rest by chance. `random` draws from a range that is never empty; it is not called for pauses below 2 ns.
    pub fn failed(&mut self, random: impl FnOnce(std::ops::Range<u64>) -> u64) -> u64 {
        let factor = 1u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        let half = self.first.saturating_mul(factor).min(self.most) / 2;
        self.failures = self.failures.saturating_add(1);
        match half {
            0 => 0,
            half => half + random(0..half),
        }
    }

    /// The connection is ready: the next failure starts with the shortest pause again.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (first, most, pauses) in [
            (10 * MS, 1000 * MS, [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]),
            (20 * MS, 1000 * MS, [20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000]),
            (500 * MS, 500 * MS, [500, 500, 500, 500, 500, 500, 500, 500, 500, 500]),
            // A first pause above the longest is cut.
            (900 * MS, 100 * MS, [100, 100, 100, 100, 100, 100, 100, 100, 100, 100]),
        ] {
            let (mut shortest, mut longest) = (Backoff::new(first, most), Backoff::new(first, most));
            for (failures, pause) in (1..).zip(pauses.map(|ms| ms * MS)) {
                assert_eq!(shortest.failed(|range| range.start), pause / 2, "{failures} failures");
                assert_eq!(longest.failed(|range| range.end - 1), pause - 1, "{failures} failures");
                assert_eq!((shortest.failures(), longest.failures()), (failures, failures));
            }
        }
    }

    #[test]
    fn jitter_is_drawn_from_the_upper_half() {
        let mut backoff = Backoff::new(1000, 4000);
        for (range, drawn, pause) in [(0..500, 123, 623), (0..1000, 999, 1999), (0..2000, 0, 2000)] {
            let returned = backoff.failed(|asked| {
                assert_eq!(asked, range);
                drawn
            });
            assert_eq!(returned, pause);
        }
    }

    #[test]
    fn a_success_starts_again_with_the_shortest_pause() {
        let mut backoff = Backoff::new(10 * MS, 1000 * MS);
        assert_eq!(backoff.failures(), 0);
        for _ in 0..5 {
            backoff.failed(|_| 0);
        }
        assert_eq!(backoff.failures(), 5);
        backoff.succeeded();
        assert_eq!((backoff.failures(), backoff.failed(|_| 0)), (0, 5 * MS));
    }

    #[test]
    fn no_count_of_failures_overflows() {
        for (first, most, pause) in [
            (10 * MS, 1000 * MS, 1000 * MS),
            (1, u64::MAX, u64::MAX),
            (u64::MAX, u64::MAX, u64::MAX),
            (0, 1000 * MS, 0),
            (1000 * MS, 0, 0),
        ] {
            for failures in [63, 64, 65, 127, 128, u32::MAX - 1, u32::MAX] {
                let mut backoff = Backoff { first, most, failures };
                let upper = backoff.failed(|range| range.end - 1);
                // 1 << 63 is the one large factor that stays below the limit.
                let pause = if (first, failures) == (1, 63) { 1 << 63 } else { pause };
                assert_eq!(upper, (pause / 2 * 2).saturating_sub(1), "{first} ns, {failures} failures");
                assert_eq!(backoff.failures(), failures.saturating_add(1));
            }
        }
    }

    #[test]
    fn random_numbers_are_never_drawn_from_an_empty_range() {
        for (first, most) in [(0, 0), (0, 10), (1, 1), (1, 0), (10, 1)] {
            let mut backoff = Backoff::new(first, most);
            assert_eq!(backoff.failed(|range| panic!("drawn from {range:?}")), 0, "{first}, {most}");
        }
    }
}
