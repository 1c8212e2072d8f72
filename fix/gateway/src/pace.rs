//! How long commands wait for each other, so that a server reads many of them at once: decided from what the thread
//! did lately, without connections.

use crate::clock::{MS, US};

/// How often it is decided.
const PERIOD: u64 = 50 * MS;
/// A command waits no longer than this, and its answer no longer than this again.
const LONGEST: u64 = 100 * US;
/// Nor longer than this part of the average time between two commands of a client. Clients that all send one command
/// after the other are slowed down by an eighth at most. One that is much faster than the others is slowed down by
/// more, but never by more than twice [`LONGEST`] a command.
const PART: u64 = 16;
/// Waiting is not worth it for fewer commands than this.
const MANY: u64 = 5;

/// What a thread did since it was last decided, and what was decided.
#[derive(Default)]
pub struct Pace {
    /// Nanoseconds for which commands wait.
    pub ns: u64,
    since: u64,
    slept: u64,
    commands: u64,
    /// Clients that have sent something.
    active: u64,
}

/// What it did in a period: nanoseconds, those that it slept, commands, and clients that sent some.
#[derive(Clone, Copy, Debug)]
struct Lately {
    ns: u64,
    slept: u64,
    commands: u64,
    active: u64,
}

impl Pace {
    /// A client sends something; `before` is when it did so last.
    #[inline]
    pub fn hear(&mut self, before: u64) {
        self.active += u64::from(before < self.since);
    }

    /// How long commands should wait from now on, if it is time to decide and differs by much. What is given is
    /// counted from the thread's start: nanoseconds that it slept, commands.
    pub fn decide(&mut self, now: u64, slept: u64, commands: u64) -> Option<u64> {
        let ns = now - self.since;
        if ns < PERIOD {
            return None;
        }
        let lately = Lately { ns, slept: slept - self.slept, commands: commands - self.commands, active: self.active };
        *self = Pace { ns: self.ns, since: now, slept, commands, active: 0 };
        let wait = lately.wait(self.ns > 0);
        let same = wait.abs_diff(self.ns) <= self.ns / 4 && (wait == 0) == (self.ns == 0);
        (!same).then_some(wait)
    }
}

impl Lately {
    /// How long commands should wait, if they did or did not until now. While the thread sleeps for half of the time
    /// none begins to: what stands in its queue is little, and waiting is all that a client would notice. Sleeping for
    /// three quarters of it, which includes what it sleeps to let commands wait, ends that.
    fn wait(&self, waited: bool) -> u64 {
        let sleeps = self.slept > if waited { self.ns / 4 * 3 } else { self.ns / 2 };
        if self.commands == 0 || sleeps {
            return 0;
        }
        let between = self.active.saturating_mul(self.ns) / self.commands;
        let wait = LONGEST.min(between / PART);
        if self.commands.saturating_mul(wait) / self.ns >= MANY { wait } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 100 ms: the part that the thread slept, commands, and clients that sent them.
    fn wait(slept: f64, commands: u64, active: u64, waited: bool) -> u64 {
        const NS: u64 = 100 * MS;
        Lately { ns: NS, slept: (NS as f64 * slept) as u64, commands, active }.wait(waited) / US
    }

    #[test]
    fn commands_wait_where_a_busy_thread_has_many_clients() {
        for (slept, commands, active, us, why) in [
            (0.3, 14_000, 500, 100, "at most so long"),
            (0.3, 12_000, 100, 52, "a sixteenth of the 0.8 ms between a client's commands"),
            (0.3, 14_000, 50, 0, "three commands in a sixteenth of 0.36 ms: not worth it"),
            (0.3, 14_000, 1, 0, "a client that is alone"),
            (0.6, 14_000, 500, 0, "a thread that sleeps"),
            (0.3, 4_000, 500, 0, "too few come in time"),
            (0.3, 0, 0, 0, "nothing"),
            (0.3, 100_000, 50, 0, "pipelines do not wait"),
        ] {
            assert_eq!(wait(slept, commands, active, false), us, "{why}");
        }
    }

    #[test]
    fn a_thread_that_sleeps_about_half_of_the_time_does_not_change_its_mind_every_time() {
        let waits = |slept, waited| wait(slept, 14_000, 500, waited) > 0;
        assert_eq!([0.49, 0.51].map(|slept| waits(slept, false)), [true, false]);
        assert_eq!([0.49, 0.51, 0.75, 0.76].map(|slept| waits(slept, true)), [true, true, true, false]);
    }

    #[test]
    fn it_is_decided_once_a_period_and_told_where_it_differs_by_much() {
        let (mut pace, mut at) = (Pace::default(), 0);
        assert_eq!(pace.decide(PERIOD - 1, 0, 0), None);
        assert_eq!((pace.decide(PERIOD, 0, 0), pace.since), (None, PERIOD));
        let mut after = |clients: u64| {
            at += 1;
            // Who has sent something in this period before is not counted again.
            (0..clients).for_each(|_| pace.hear((at - 1) * PERIOD));
            (0..clients).for_each(|_| pace.hear(at * PERIOD));
            let decided = pace.decide((at + 1) * PERIOD, 0, at * 10_000);
            pace.ns = decided.unwrap_or(pace.ns);
            decided.map(|ns| ns / US)
        };
        assert_eq!([100, 110, 200, 240, 500].map(&mut after), [Some(31), None, Some(62), None, Some(100)]);
        assert_eq!([160, 10, 10, 160].map(&mut after), [Some(50), Some(0), None, Some(50)]);
    }
}
