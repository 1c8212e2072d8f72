//! Timers: the handler's own, the deadlines of connections that are not yet established, and the retries of
//! listeners; and the timerfd that wakes the loop for the earliest of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustix::event::Timespec;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::{Io, Reactor};
use crate::{Closed, Handler, Id};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Key(u64),
    Connect { index: u32, generation: u32 },
    Listen(usize),
}

/// The timers of one loop, and the alarm that ends its sleep.
pub(super) struct Timers {
    /// A timerfd.
    alarm: OwnedFd,
    /// When the alarm rings; 0 once it has rung.
    alarm_at: u64,
    /// The earliest first.
    due: BinaryHeap<Reverse<(u64, u64, Due)>>,
    /// Timers of the same time fire in the order in which they were set.
    count: u64,
}

impl Timers {
    pub(super) fn new() -> std::io::Result<Timers> {
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Timers { alarm, alarm_at: u64::MAX, due: BinaryHeap::new(), count: 0 })
    }

    /// Readable once it rings.
    pub(super) fn alarm(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    pub(super) fn push(&mut self, at: u64, due: Due) {
        self.count += 1;
        self.due.push(Reverse((at, self.count, due)));
    }

    /// When the earliest timer is due.
    #[inline]
    pub(super) fn next_at(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the earliest timer if it is due by now.
    #[inline]
    fn pop(&mut self, now: u64) -> Option<Due> {
        if self.next_at()? > now {
            return None;
        }
        self.due.pop().map(|Reverse((_, _, due))| due)
    }

    /// Makes sure that the next sleep ends at `at`. Too early does no harm: the next turn sets it again.
    pub(super) fn set_alarm(&mut self, at: u64, now: u64) -> std::io::Result<()> {
        if at < self.alarm_at || self.alarm_at <= now {
            let time = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as _ };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: time };
            timerfd_settime(&self.alarm, TimerfdTimerFlags::ABSTIME, &once)?;
            self.alarm_at = at;
        }
        Ok(())
    }

    /// The alarm has rung. It stays readable until it is set again, which happens before the next sleep.
    #[inline]
    pub(super) fn note_alarm(&mut self) {
        self.alarm_at = 0;
    }

    /// Whether the alarm has rung and has not been set since.
    #[inline]
    pub(super) fn has_rung(&self) -> bool {
        self.alarm_at == 0
    }
}

impl Io {
    /// Calls [`Handler::timer`] with `key` at `at` ([`now_ns`]).
    pub fn timer(&mut self, at: u64, key: u64) {
        self.timers.push(at, Due::Key(key));
    }
}

impl Reactor {
    /// Handles every timer that is due by now.
    pub(super) fn due<H: Handler>(&mut self, handler: &mut H) {
        while let Some(due) = self.io.timers.pop(self.io.now) {
            match due {
                Due::Key(key) => handler.timer(&mut self.io, key),
                Due::Connect { index, generation } => {
                    let id = Id { index, generation };
                    if self.io.link(id).is_some_and(|l| !l.opened) {
                        let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "not established in time");
                        self.io.fail(id, Closed::Connect(late));
                    }
                }
                Due::Listen(number) => self.io.resume_listening(number),
            }
        }
        self.io.tell_broken(handler);
    }
}
