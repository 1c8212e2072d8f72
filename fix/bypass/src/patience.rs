//! How long to stay awake for an answer.
//!
//! Sleeping in the kernel and being woken costs both sides some microseconds together; staying awake costs the time
//! itself, and on a machine with few processors that time is taken from somebody, perhaps from the one whose answer is
//! awaited. So a waiter stays awake only where answers have been coming sooner than a sleep would be worth, and tries
//! again now and then where they have not. What a sleep is worth depends on the machine: where processors are slow to
//! wake up (a virtual machine whose idle processors are given back) it is several times what it is elsewhere, and two
//! processes that sleep sooner wake each other in turn, one idle while the other works.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::stamp::now_ns;

/// The longest it stays awake, unless a sleep is worth as much.
const MOST_NS: u64 = 200_000;
/// What a sleep and a wake-up are worth at least, and where that is not known.
const SLEEP_NS: u64 = 40_000;
/// At most.
const DEAR_SLEEP_NS: u64 = 200_000;
/// So many times what a processor takes to wake up: the ratio that was best on machines that take 4 us and 20 us.
const SLEEP_IS_WORTH: u64 = 8;
/// How often that is tried, and how long each sleep is.
const TRIES: usize = 16;
const TRY_NS: u64 = 30_000;
/// One wait of so many is tried awake where sleeping is the rule.
const PROBE: u32 = 16;

/// What a sleep is worth on this machine; 0 before it was measured.
static WORTH_NS: AtomicU64 = AtomicU64::new(0);

fn worth_ns() -> u64 {
    match WORTH_NS.load(Ordering::Relaxed) {
        0 => SLEEP_NS,
        worth => worth,
    }
}

/// Measures what a sleep is worth, once in a process: about a millisecond.
pub fn measure() {
    if WORTH_NS.load(Ordering::Relaxed) != 0 {
        return;
    }
    let late = |timer| std::array::from_fn(|_| overslept(&timer).unwrap_or(0));
    WORTH_NS.store(timer().map_or(SLEEP_NS, |timer| worth_of(late(timer))), Ordering::Relaxed);
}

fn timer() -> Option<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    // SAFETY: just opened.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// How late a sleep of [`TRY_NS`] ends: timers of a descriptor have no slack.
fn overslept(timer: &OwnedFd) -> Option<u64> {
    let at = now_ns() + TRY_NS;
    // SAFETY: all zeros is a valid `itimerspec`.
    let mut when: libc::itimerspec = unsafe { std::mem::zeroed() };
    (when.it_value.tv_sec, when.it_value.tv_nsec) = ((at / 1_000_000_000) as _, (at % 1_000_000_000) as _);
    let fd = timer.as_raw_fd();
    // SAFETY: a live time; what was set before is not asked for.
    let set = unsafe { libc::timerfd_settime(fd, libc::TFD_TIMER_ABSTIME, &when, std::ptr::null_mut()) };
    let mut times = 0u64;
    // SAFETY: eight bytes of room. Not through `read`, which is ours in a preloaded program.
    let read = (set == 0).then(|| unsafe { libc::syscall(libc::SYS_read, fd, &raw mut times, 8) });
    (read == Some(8)).then(|| now_ns().saturating_sub(at))
}

/// What a sleep is worth where sleeps end so late: by the quarter that ended soonest, since the others may have waited
/// for a processor that was busy.
fn worth_of(mut late: [u64; TRIES]) -> u64 {
    late.sort_unstable();
    (late[TRIES / 4] * SLEEP_IS_WORTH).clamp(SLEEP_NS, DEAR_SLEEP_NS)
}

/// How long a waiter stays awake before it asks whether others wait for its processor, and how often from then on.
const ASK_AFTER_NS: u64 = 40_000;
const ASK_EVERY_NS: u64 = 20_000;
/// Whom the processor was given to for so long has used it.
const USED_NS: u64 = 10_000;

/// One who stays awake, and gives way to those who could use the processor.
pub struct Awake {
    ask_at: u64,
}

impl Awake {
    pub fn since(begun: u64) -> Awake {
        Awake { ask_at: begun + ASK_AFTER_NS }
    }

    /// Whether somebody else needed the processor, and has had it for a while.
    #[inline]
    pub fn gave_way(&mut self, now: u64) -> bool {
        if now < self.ask_at {
            return false;
        }
        // SAFETY: no arguments.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
        let then = now_ns();
        self.ask_at = then + ASK_EVERY_NS;
        then - now > USED_NS
    }
}

/// So many times as long as a waiter works it may stay awake in waits longer than [`SLEEP_NS`]: a peer that takes its
/// time since it has a lot to do for us gives us as much to do, and where requests are few the processor is better left
/// alone.
const AWAKE_FOR_WORK: u64 = 4;
/// Work counts for so much at a time, and this much is saved up at most.
const WORK_NS: u64 = 200_000;
const CREDIT_NS: u64 = 1_000_000;

/// What one waiter has learnt.
#[derive(Debug, Default)]
pub struct Patience {
    /// How long answers take, as far as it stayed awake for them; an eighth of each counts.
    usual_ns: AtomicU64,
    waits: AtomicU32,
    /// When its last wait ended; 0 before the first one.
    ended_at: AtomicU64,
    /// How long it may stay awake in waits longer than [`SLEEP_NS`].
    credit_ns: AtomicU64,
}

impl Patience {
    /// One that has learnt nothing: it stays awake.
    pub const fn new() -> Patience {
        Patience {
            usual_ns: AtomicU64::new(0),
            waits: AtomicU32::new(0),
            ended_at: AtomicU64::new(0),
            credit_ns: AtomicU64::new(0),
        }
    }

    /// A wait begins: until now it was at work.
    #[inline]
    pub fn begins(&self, now: u64) {
        let ended = self.ended_at.swap(0, Ordering::Relaxed);
        if ended != 0 {
            let earned = now.saturating_sub(ended).min(WORK_NS) * AWAKE_FOR_WORK;
            let credit = self.credit_ns.load(Ordering::Relaxed);
            self.credit_ns.store((credit + earned).min(CREDIT_NS), Ordering::Relaxed);
        }
    }

    /// A wait ends with something to do.
    #[inline]
    pub fn ends(&self, now: u64) {
        self.ended_at.store(now, Ordering::Relaxed);
    }

    /// What a sleep is worth to one with its credit.
    #[inline]
    fn sleep_ns(&self) -> u64 {
        let worth = worth_ns();
        if self.credit_ns.load(Ordering::Relaxed) >= worth { worth } else { SLEEP_NS }
    }

    /// How long to stay awake for the wait that begins, and whether that is a probe: where both sides sleep, each finds
    /// the other just waking up.
    #[inline]
    pub fn limit(&self) -> (u64, bool) {
        let (usual, sleep) = (self.usual_ns.load(Ordering::Relaxed), self.sleep_ns());
        if usual < sleep {
            return ((8 * usual + sleep).min(MOST_NS.max(2 * sleep)), false);
        }
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        if waits % PROBE == PROBE - 1 { (sleep, true) } else { (0, false) }
    }

    /// It stayed awake so long, and the answer came or did not.
    #[inline]
    pub fn learn(&self, awake_ns: u64, came: bool) {
        let most = 2 * worth_ns();
        let took = if came { awake_ns.min(most) } else { most };
        let usual = self.usual_ns.load(Ordering::Relaxed);
        self.usual_ns.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
        if awake_ns > SLEEP_NS {
            let credit = self.credit_ns.load(Ordering::Relaxed);
            self.credit_ns.store(credit.saturating_sub(awake_ns), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_worth_more_where_processors_are_slow_to_wake_up() {
        assert_eq!(worth_of([2_000; TRIES]), SLEEP_NS);
        assert_eq!(worth_of([15_000; TRIES]), 120_000);
        assert_eq!(worth_of([3_000_000; TRIES]), DEAR_SLEEP_NS);
        // Something else ran for most of the time.
        let mut late = [4_000_000; TRIES];
        late[3..9].fill(6_000);
        assert_eq!(worth_of(late), 48_000);
    }

    /// Waits of 100 us, with so much work between them: how many of a thousand were awake.
    fn awake_of_a_thousand(work: u64) -> usize {
        let (patience, mut now) = (Patience::default(), 1);
        let mut awake = 0;
        for _ in 0..1000 {
            now += work;
            patience.begins(now);
            now += 100_000;
            if patience.limit().0 >= 100_000 {
                awake += 1;
                patience.learn(100_000, true);
            }
            patience.ends(now);
        }
        awake
    }

    #[test]
    fn who_has_little_to_do_sleeps_for_long_waits_and_who_has_much_stays_awake() {
        WORTH_NS.store(160_000, Ordering::Relaxed);
        let (little, much) = (awake_of_a_thousand(2_000), awake_of_a_thousand(60_000));
        WORTH_NS.store(SLEEP_NS, Ordering::Relaxed);
        assert!(little < 150, "{little}");
        assert!(much > 900, "{much}");
        assert!(awake_of_a_thousand(60_000) < 50, "where a sleep is worth less than the wait");
    }

    #[test]
    fn what_is_measured_is_within_bounds() {
        let timer = timer().unwrap();
        let late = std::array::from_fn(|_| overslept(&timer).unwrap());
        assert!((SLEEP_NS..=DEAR_SLEEP_NS).contains(&worth_of(late)), "{late:?} ns");
    }

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
