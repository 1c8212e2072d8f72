//! How much of its time a thread works, and whether it gets a processor when it has work.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Of the time since the last look, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// It did not wait for events.
    pub busy: u32,
    /// It had work, and no processor. All of it where the kernel does not say.
    pub late: u32,
}

/// The clock of one thread.
pub struct Clock {
    since: Instant,
    busy: Duration,
    late: Duration,
    /// The kernel's own count (Documentation/scheduler/sched-stats.rst).
    kernels: Option<File>,
}

impl Clock {
    /// Of the calling thread.
    pub fn new() -> Clock {
        let kernels = File::open("/proc/thread-self/schedstat").ok();
        let late = kernels.as_ref().and_then(late_of).unwrap_or_default();
        Clock { since: Instant::now(), busy: Duration::ZERO, late, kernels }
    }

    /// It has worked for so long.
    pub fn worked(&mut self, time: Duration) {
        self.busy += time;
    }

    /// What came of the time since this was asked last.
    pub fn look(&mut self, now: Instant) -> Pace {
        let all = now.saturating_duration_since(self.since);
        let late = self.kernels.as_ref().and_then(late_of);
        let waited = late.map_or(all, |late| late.saturating_sub(self.late));
        let pace = Pace { busy: thousandths(self.busy, all), late: thousandths(waited, all) };
        (self.since, self.busy, self.late) = (now, Duration::ZERO, late.unwrap_or_default());
        pace
    }
}

fn thousandths(part: Duration, all: Duration) -> u32 {
    let share = part.as_nanos() * 1000 / all.as_nanos().max(1);
    u32::try_from(share).unwrap_or(u32::MAX).min(1000)
}

fn late_of(kernels: &File) -> Option<Duration> {
    let mut text = [0; 128];
    let n = kernels.read_at(&mut text, 0).ok()?;
    late_in(std::str::from_utf8(&text[..n]).ok()?)
}

/// Of `ran waited times`: for how many ns it was ready to run, and waited for a processor. A kernel that does not count
/// says that it has never been given one.
fn late_in(text: &str) -> Option<Duration> {
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    let (_, waited, times) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    (times > 0).then_some(Duration::from_nanos(waited))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_half_of_the_time_is_half_busy() {
        let mut clock = Clock::new();
        let began = clock.since;
        clock.worked(Duration::from_millis(100));
        clock.worked(Duration::from_millis(25));
        assert_eq!(clock.look(began + Duration::from_millis(250)).busy, 500);
        assert_eq!(clock.look(began + Duration::from_millis(500)).busy, 0, "each look begins again");
        clock.worked(Duration::from_secs(9));
        assert_eq!(clock.look(began + Duration::from_millis(750)).busy, 1000, "the clock jumped");
    }

    #[test]
    fn where_the_kernel_does_not_say_no_processor_counts_as_free() {
        let mut clock = Clock { kernels: None, ..Clock::new() };
        let later = clock.since + Duration::from_millis(250);
        assert_eq!(clock.look(later).late, 1000);
        assert!(late_of(&File::open("/proc/thread-self/schedstat").unwrap()).is_some());
        assert_eq!(late_of(&File::open("/dev/null").unwrap()), None);
        assert_eq!(late_in("17759533421 48971754657 989540\n"), Some(Duration::from_nanos(48_971_754_657)));
        assert_eq!((late_in("0 0 0\n"), late_in("1 x 2"), late_in("1 2")), (None, None, None));
    }
}
