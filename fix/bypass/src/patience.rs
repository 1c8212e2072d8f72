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

/// The longest it stays awake where answers usually come within [`SLEEP_NS`].
const MOST_NS: u64 = 200_000;
/// What a sleep and a wake-up are worth at least, and where that is not known.
const SLEEP_NS: u64 = 40_000;
/// At most.
const DEAR_SLEEP_NS: u64 = 200_000;
/// A sleep is worth this many times the wake-up latency: the ratio that was best on machines with 4 us and 20 us.
const SLEEP_IS_WORTH: u64 = 8;
/// How often that is tried, and how long each sleep is.
const TRIES: usize = 16;
const TRY_NS: u64 = 30_000;
/// No try begins later than this.
const MEASURE_NS: u64 = 2_000_000;
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

/// Measures what a sleep is worth, once in a process: about a millisecond, and not much more than two.
pub fn measure() {
    if WORTH_NS.load(Ordering::Relaxed) != 0 {
        return;
    }
    let begun = now_ns();
    let mut late = Vec::with_capacity(TRIES);
    if let Some(timer) = timer() {
        while late.len() < TRIES && now_ns() < begun + MEASURE_NS {
            late.extend(overslept(&timer));
        }
    }
    WORTH_NS.store(worth_of(late), Ordering::Relaxed);
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
fn worth_of(mut late: Vec<u64>) -> u64 {
    late.sort_unstable();
    late.get(late.len() / 4).map_or(SLEEP_NS, |late| (late * SLEEP_IS_WORTH).clamp(SLEEP_NS, DEAR_SLEEP_NS))
}

/// How long a waiter polls before it first yields its processor, and how often it yields after that.
const ASK_AFTER_NS: u64 = 40_000;
const ASK_EVERY_NS: u64 = 20_000;
/// A yield that takes longer than this has let something else run.
const USED_NS: u64 = 10_000;
/// After that it does not yield for this many waits: whatever runs instead may keep the processor for milliseconds.
const CROWDED: u32 = 64;

/// A waiter that polls, and yields to whatever else could use its processor.
pub struct Awake {
    ask_at: u64,
}

impl Awake {
    pub fn since(begun: u64) -> Awake {
        Awake { ask_at: begun + ASK_AFTER_NS }
    }

    /// Yields the processor when that is due. True if something else ran.
    #[inline]
    pub fn gave_way(&mut self, now: u64) -> bool {
        if now < self.ask_at {
            return false;
        }
        // SAFETY: no arguments.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
        let then = now_ns();
        self.ask_at = then + ASK_EVERY_NS;
        then.saturating_sub(now) > USED_NS
    }
}

/// Where answers usually take longer than [`SLEEP_NS`], a waiter may poll for this many times as long as it has worked.
/// A peer that is slow because it has a lot to do for us will give us a lot to do; where requests are few, polling only
/// burns a processor. Work is the time between two waits, whatever the program does in it.
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
    /// For how many more waits it polls for [`SLEEP_NS`] at most, because something else needed the processor.
    crowded: AtomicU32,
}

/// For how long a waiter stays awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub ns: u64,
    /// Where both sides sleep, each finds the other just waking up.
    pub probe: bool,
    /// What a sleep is worth to it.
    sleep_ns: u64,
}

impl Patience {
    /// One that has learnt nothing: it stays awake.
    pub const fn new() -> Patience {
        Patience {
            usual_ns: AtomicU64::new(0),
            waits: AtomicU32::new(0),
            ended_at: AtomicU64::new(0),
            credit_ns: AtomicU64::new(0),
            crowded: AtomicU32::new(0),
        }
    }

    /// A wait begins: until now it was at work.
    #[inline]
    pub fn begins(&self, now: u64) {
        // Not one locked instruction: this is the path of each wait.
        let ended = self.ended_at.load(Ordering::Relaxed);
        if ended != 0 {
            self.ended_at.store(0, Ordering::Relaxed);
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

    /// How long to stay awake for the wait that begins.
    #[inline]
    pub fn limit(&self) -> Limit {
        self.limit_where(worth_ns())
    }

    /// The same where a sleep is worth this much.
    #[inline]
    fn limit_where(&self, worth: u64) -> Limit {
        let usual = self.usual_ns.load(Ordering::Relaxed);
        let crowded = self.crowded.load(Ordering::Relaxed);
        if crowded > 0 {
            self.crowded.store(crowded - 1, Ordering::Relaxed);
        }
        let credit = self.credit_ns.load(Ordering::Relaxed);
        let sleep_ns = if crowded == 0 && credit >= worth { worth } else { SLEEP_NS };
        let most = match (crowded, usual) {
            (1.., _) => SLEEP_NS,
            (_, SLEEP_NS..) => credit,
            _ => MOST_NS,
        };
        if usual < sleep_ns {
            return Limit { ns: (8 * usual + sleep_ns).min(most), probe: false, sleep_ns };
        }
        let probe = self.waits.fetch_add(1, Ordering::Relaxed) % PROBE == PROBE - 1;
        Limit { ns: if probe { sleep_ns } else { 0 }, probe, sleep_ns }
    }

    /// It stayed awake so long under this limit, and the answer came or did not.
    #[inline]
    pub fn learn(&self, awake_ns: u64, came: bool, limit: Limit) {
        let most = 2 * limit.sleep_ns;
        let took = if came { awake_ns.min(most) } else { most };
        let usual = self.usual_ns.load(Ordering::Relaxed);
        self.usual_ns.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
        self.spent(awake_ns);
    }

    /// It stayed awake so long, and something else came.
    #[inline]
    pub fn spent(&self, awake_ns: u64) {
        if awake_ns > SLEEP_NS {
            let credit = self.credit_ns.load(Ordering::Relaxed);
            self.credit_ns.store(credit.saturating_sub(awake_ns), Ordering::Relaxed);
        }
    }

    /// It yielded its processor, and something else used it.
    pub fn gave_way(&self) {
        self.crowded.store(CROWDED, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_worth_more_where_processors_are_slow_to_wake_up() {
        assert_eq!(worth_of(vec![2_000; TRIES]), SLEEP_NS);
        assert_eq!(worth_of(vec![15_000; 3]), 120_000);
        assert_eq!(worth_of(vec![3_000_000; TRIES]), DEAR_SLEEP_NS);
        // Something else ran for most of the time.
        let mut late = vec![4_000_000; TRIES];
        late[3..9].fill(6_000);
        assert_eq!(worth_of(late), 48_000);
        assert_eq!(worth_of(Vec::new()), SLEEP_NS, "not known");
    }

    /// Waits of 100 us, with so much work between them, where a sleep is worth this: how many of a thousand were awake.
    fn awake_of_a_thousand(work: u64, worth: u64) -> usize {
        let (patience, mut now) = (Patience::default(), 1);
        let mut awake = 0;
        for _ in 0..1000 {
            now += work;
            patience.begins(now);
            now += 100_000;
            let limit = patience.limit_where(worth);
            if limit.ns >= 100_000 {
                awake += 1;
                patience.learn(100_000, true, limit);
            }
            patience.ends(now);
        }
        awake
    }

    #[test]
    fn who_has_little_to_do_sleeps_for_long_waits_and_who_has_much_stays_awake() {
        assert!(awake_of_a_thousand(2_000, 160_000) < 150);
        assert!(awake_of_a_thousand(60_000, 160_000) > 900);
        assert!(awake_of_a_thousand(60_000, SLEEP_NS) < 50, "where a sleep is worth less than the wait");
    }

    #[test]
    fn what_is_measured_is_within_bounds() {
        let timer = timer().unwrap();
        assert!(overslept(&timer).is_some());
        measure();
        assert!((SLEEP_NS..=DEAR_SLEEP_NS).contains(&worth_ns()));
    }

    #[test]
    fn stays_awake_where_answers_come_soon_and_sleeps_where_they_do_not() {
        let patience = Patience::default();
        for _ in 0..100 {
            let limit = patience.limit();
            assert!(limit.ns >= SLEEP_NS);
            patience.learn(2_000, true, limit);
        }
        // One that does not come is no reason to sleep.
        patience.learn(MOST_NS, false, patience.limit());
        assert!(patience.limit().ns >= SLEEP_NS);
        for _ in 0..40 {
            let limit = patience.limit();
            if limit.ns > 0 {
                patience.learn(limit.ns, false, limit);
            }
        }
        let awake = (0..PROBE * 10).filter(|_| patience.limit().ns > 0).count();
        assert_eq!(awake, 10, "only the probes");
        // And comes back when they come soon again.
        for _ in 0..PROBE * 40 {
            let limit = patience.limit();
            if limit.ns > 0 {
                patience.learn(1_000, true, limit);
            }
        }
        assert!((0..PROBE).all(|_| patience.limit().ns > 0));
        // Not for long where others need the processor.
        patience.gave_way();
        assert!((0..CROWDED).all(|_| patience.limit().ns <= SLEEP_NS));
        assert!(patience.limit().ns > SLEEP_NS);
    }
}
