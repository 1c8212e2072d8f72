//! How long to stay awake for an answer.
//!
//! Sleeping in the kernel and being woken costs both sides some microseconds together; staying awake costs the time
//! itself, and on a machine with few processors that time is taken from somebody, perhaps from the one whose answer is
//! awaited. So a waiter stays awake only where answers have been coming sooner than a sleep would be worth, and tries
//! again now and then where they have not.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The longest it stays awake.
pub const MOST_NS: u64 = 200_000;
/// What a sleep and a wake-up are worth.
const SLEEP_NS: u64 = 40_000;
/// One wait of so many is tried awake where sleeping is the rule.
const PROBE: u32 = 16;

/// What one waiter has learnt.
#[derive(Debug, Default)]
pub struct Patience {
    /// How long answers take, as far as it stayed awake for them; an eighth of each counts.
    usual_ns: AtomicU64,
    waits: AtomicU32,
}

impl Patience {
    /// One that has learnt nothing: it stays awake.
    pub const fn new() -> Patience {
        Patience { usual_ns: AtomicU64::new(0), waits: AtomicU32::new(0) }
    }

    /// How long to stay awake for the wait that begins, and whether that is a probe: where both sides sleep, each finds
    /// the other just waking up.
    #[inline]
    pub fn limit(&self) -> (u64, bool) {
        let usual = self.usual_ns.load(Ordering::Relaxed);
        if usual < SLEEP_NS {
            return ((8 * usual + SLEEP_NS).min(MOST_NS), false);
        }
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        if waits % PROBE == PROBE - 1 { (SLEEP_NS, true) } else { (0, false) }
    }

    /// It stayed awake so long, and the answer came or did not.
    #[inline]
    pub fn learn(&self, awake_ns: u64, came: bool) {
        let took = if came { awake_ns.min(2 * SLEEP_NS) } else { 2 * SLEEP_NS };
        let usual = self.usual_ns.load(Ordering::Relaxed);
        self.usual_ns.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_awake_where_answers_come_soon_and_sleeps_where_they_do_not() {
        let patience = Patience::default();
        for _ in 0..100 {
            assert!(patience.limit().0 >= SLEEP_NS);
            patience.learn(2_000, true);
        }
        for _ in 0..40 {
            let (limit, _) = patience.limit();
            if limit > 0 {
                patience.learn(limit, false);
            }
        }
        let awake = (0..PROBE * 10).filter(|_| patience.limit().0 > 0).count();
        assert_eq!(awake, 10, "only the probes");
        // And comes back when they come soon again.
        for _ in 0..PROBE * 40 {
            if patience.limit().0 > 0 {
                patience.learn(1_000, true);
            }
        }
        assert!((0..PROBE).all(|_| patience.limit().0 > 0));
    }
}
