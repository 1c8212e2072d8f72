//! How long one node may be asked, and whether the person at the terminal still waits.
//!
//! A window is a window: a server that takes half a second for each answer must not turn ten seconds into a minute.
//! What cannot be asked in time is left out, and the facts say so.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use unslow_facts::{Gap, Lack};

use crate::Settings;

/// What is left for the cheap questions when the run is ended: on a healthy server all of them take a tenth of this.
const GRACE: Duration = Duration::from_millis(500);
/// Answers that take as long as this are worth a word.
const SLOW: Duration = Duration::from_millis(50);
/// No sleep is longer than this before it looks whether the run was ended.
const NAP: Duration = Duration::from_millis(100);

/// The time of one node's thread.
pub struct Clock {
    begun: Instant,
    deadline: Duration,
    stop: Option<Arc<AtomicBool>>,
    /// When the run was first seen to be ended, since `begun`.
    ended: Cell<Option<Duration>>,
}

impl Clock {
    /// Starts now: connecting takes time too.
    pub fn start(settings: &Settings) -> Clock {
        let deadline = deadline(settings.window);
        Clock { begun: Instant::now(), deadline, stop: settings.stop.clone(), ended: Cell::new(None) }
    }

    /// One with this much time; with none it was over when it began.
    pub fn of(deadline: Duration) -> Clock {
        Clock { begun: Instant::now(), deadline, stop: None, ended: Cell::new(None) }
    }

    /// Since it was started.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether the run was ended before its time.
    pub fn ended(&self) -> bool {
        if self.ended.get().is_none() && self.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed)) {
            self.ended.set(Some(self.elapsed()));
        }
        self.ended.get().is_some()
    }

    /// What is left for questions.
    pub fn left(&self) -> Duration {
        self.ended();
        left(self.elapsed(), self.deadline, self.ended.get())
    }

    /// Why a question that takes `wait` may not be asked any more; `None` where there is time for it.
    pub fn over(&self, wait: Duration) -> Option<Gap> {
        self.over_for(1, wait)
    }

    /// [`Clock::over`] for several questions that take `wait` each.
    pub fn over_for(&self, questions: u32, wait: Duration) -> Option<Gap> {
        if self.left() > wait.saturating_mul(questions) {
            return None;
        }
        Some(if self.ended() {
            Gap::new(Lack::Time, "the run was ended before it could be asked", "let the window come to its end")
        } else {
            let slow = (wait >= SLOW).then(|| format!(": an answer takes up to {} ms here", wait.as_millis()));
            let slow = slow.unwrap_or_default();
            Gap::new(Lack::Time, format!("the window was over before it could be asked{slow}"), "a longer --window")
        })
    }

    /// Sleeps; wakes up at most a tenth of a second after the run was ended.
    pub fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ended() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

/// For everything but the last INFO.
fn deadline(window: Duration) -> Duration {
    window + window / 5 + Duration::from_secs(1)
}

fn left(elapsed: Duration, deadline: Duration, ended: Option<Duration>) -> Duration {
    let end = ended.map_or(deadline, |at| deadline.min(at + GRACE));
    end.saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_deadline_is_the_window_a_fifth_of_it_and_a_second() {
        for (window, expected) in [(500, 1600), (5_000, 7_000), (10_000, 13_000)] {
            assert_eq!(deadline(ms(window)), ms(expected));
        }
    }

    #[test]
    fn an_ended_run_leaves_a_short_time_and_never_more_than_the_deadline() {
        for (elapsed, ended, expected) in [
            (0, None, 7_000),
            (6_000, None, 1_000),
            (9_000, None, 0),
            (2_000, Some(2_000), 500),
            (2_400, Some(2_000), 100),
            (3_000, Some(2_000), 0),
            (6_900, Some(6_800), 100),
        ] {
            assert_eq!(left(ms(elapsed), ms(7_000), ended.map(ms)), ms(expected), "{elapsed} {ended:?}");
        }
    }

    fn clock(stop: bool) -> Clock {
        let stop = Some(Arc::new(AtomicBool::new(stop)));
        Clock { begun: Instant::now(), deadline: ms(600_000), stop, ended: Cell::new(None) }
    }

    #[test]
    fn a_question_is_left_out_when_the_server_is_too_slow_for_what_is_left() {
        let clock = clock(false);
        assert_eq!(clock.over(ms(10)), None);
        assert_eq!((clock.over_for(3, ms(100_000)), clock.over_for(7, ms(100_000)).is_some()), (None, true));
        let gap = clock.over(ms(700_000)).unwrap();
        assert!(gap.lack == Lack::Time && gap.why.contains("window was over"), "{gap:?}");
    }

    #[test]
    fn an_ended_run_wakes_sleepers_and_is_named_as_the_reason() {
        let clock = clock(true);
        clock.sleep(ms(600_000)); // returns at once, or this test never ends
        assert!(clock.ended() && clock.left() <= GRACE);
        let gap = clock.over(ms(500)).unwrap();
        assert!(gap.lack == Lack::Time && gap.why.contains("was ended"), "{gap:?}");
    }
}
