//! The sets this thread sleeps in: one, or more while a signal handler sleeps as well. As long as a set counts a
//! thread, its word on the board says that it sleeps, and every peer with news rings.
//!
//! A wait can end without returning: a handler may leave it with longjmp, and the thread may be cancelled in it. Then
//! the set stops counting it at the thread's next wait, or at the thread's end.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::Epoll;
use crate::sockets::poll::is_left;

/// A set, and where on the stack the wait in it is.
type Wait = (&'static Epoll, usize);

struct Asleep([Cell<Option<Wait>>; 4]);

thread_local! {
    static ASLEEP: Asleep = const { Asleep::new() };
}

impl Asleep {
    const fn new() -> Asleep {
        Asleep([const { Cell::new(None) }; 4])
    }

    /// `None` when there are too many: that one is counted until it returns.
    fn enter(&self, set: &'static Epoll, frame: usize) -> Option<usize> {
        set.sleeping.fetch_add(1, Ordering::AcqRel);
        let free = self.0.iter().position(|place| place.get().is_none())?;
        self.0[free].set(Some((set, frame)));
        Some(free)
    }

    /// True when no other thread sleeps in the set.
    fn leave(&self, set: &Epoll, place: usize) -> bool {
        // A wait in a handler may have done so already.
        if self.0[place].take().is_some() { uncount(set) } else { set.sleeping.load(Ordering::Acquire) == 0 }
    }

    fn leave_all(&self, over: impl Fn(Wait) -> bool) {
        for (i, place) in self.0.iter().enumerate() {
            if let Some((set, at)) = place.get()
                && over((set, at))
            {
                self.leave(set, i);
            }
        }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.leave_all(|_| true);
    }
}

fn uncount(set: &Epoll) -> bool {
    let less = |threads: u32| threads.checked_sub(1);
    !set.sleeping.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok_and(|threads| threads > 1)
}

/// This thread is about to sleep in a set, in a wait that is at `frame` on its stack.
pub(super) fn enter(set: &'static Epoll, frame: usize) -> Option<usize> {
    ASLEEP.try_with(|asleep| asleep.enter(set, frame)).unwrap_or_else(|_| {
        set.sleeping.fetch_add(1, Ordering::AcqRel);
        None
    })
}

/// It is awake, with what [`enter`] said; true when no other thread sleeps in the set.
pub(super) fn leave(set: &Epoll, place: Option<usize>) -> bool {
    match place {
        Some(place) => ASLEEP.try_with(|asleep| asleep.leave(set, place)).unwrap_or(true),
        None => uncount(set),
    }
}

/// A wait begins at `frame`: those of this thread that did not say that they were over are, and all in a set that is
/// its own.
pub(super) fn forget_left(set: &'static Epoll, frame: usize, own: bool) {
    let _ = ASLEEP.try_with(|asleep| {
        asleep.leave_all(|(other, at)| own && std::ptr::eq(other, set) || is_left(at, frame));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_counts_no_thread_whose_wait_was_left_or_cancelled() {
        super::super::created(61_010);
        let set = super::super::of_fd(61_010).unwrap();
        let counted = || set.sleeping.load(Ordering::Acquire);
        let asleep = Asleep::new();
        let outer = asleep.enter(set, 1000).unwrap();
        // In a handler, which comes back.
        let inner = asleep.enter(set, 900).unwrap();
        assert_eq!(counted(), 2);
        assert!(!asleep.leave(set, inner), "the other one sleeps");
        assert!(asleep.leave(set, outer));
        assert!(asleep.leave(set, outer), "once");
        assert_eq!(counted(), 0);
        // Left, together with the handler; the next one is at the same place.
        asleep.enter(set, 1000).unwrap();
        asleep.enter(set, 900).unwrap();
        asleep.leave_all(|(_, at)| is_left(at, 1000));
        assert_eq!(counted(), 0);
        // Another thread sleeps there as well when this one is cancelled.
        let other = Asleep::new();
        let others = other.enter(set, 1000).unwrap();
        asleep.enter(set, 1000).unwrap();
        drop(asleep);
        assert_eq!(counted(), 1);
        assert!(other.leave(set, others));
        crate::sockets::fds::put(61_010, None);
    }
}
