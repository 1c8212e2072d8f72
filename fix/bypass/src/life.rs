//! How a connection goes, and how long what carries it is held.
//!
//! Calls on a connection take no lock and count no reference: they look at its state and use what carries it. So it
//! outlives the connection. Closed, the connection is retired, and what carried it is dropped when it has rested: a
//! while later ([`crate::sockets::fds`] says how long), and when nobody sleeps for it. A call is over by then unless it
//! sleeps, and a call that sleeps is counted. `tests/loom.rs` has the orders in which all this can happen.

use crate::sync::{AtomicU32, Ordering, UnsafeCell};

/// How a connection goes.
pub mod state {
    /// Accepted from this machine, over TCP; it may still be offered by its client.
    pub const CANDIDATE: u32 = 0;
    /// Offered to servers of this machine; none has taken it yet.
    pub const PENDING: u32 = 1;
    /// Over shared memory.
    pub const LINKED: u32 = 2;
    /// TCP for good.
    pub const PLAIN: u32 = 3;
    /// A thread is just deciding how it goes on.
    pub const SETTLING: u32 = 4;
}

/// The state of a connection, and what carries it.
#[derive(Debug)]
pub struct Life<T> {
    state: AtomicU32,
    /// Calls that sleep for it.
    sleepers: AtomicU32,
    /// 1 from when it is retired until it is used anew: two threads may find out at once that it is done with.
    retired: AtomicU32,
    carrier: UnsafeCell<Option<T>>,
}

// SAFETY: the carrier is written before `state` says LINKED ([`Life::carry`]), and dropped when nobody can have it any
// more ([`Life::let_go`]): both are unsafe, and say what their callers answer for.
unsafe impl<T: Send + Sync> Sync for Life<T> {}

impl<T> Default for Life<T> {
    fn default() -> Life<T> {
        Life {
            state: AtomicU32::new(state::PLAIN),
            sleepers: AtomicU32::new(0),
            retired: AtomicU32::new(0),
            carrier: UnsafeCell::new(None),
        }
    }
}

impl<T> Life<T> {
    /// A connection begins, in an entry that is new or has rested.
    pub fn begin(&self, state: u32) {
        self.retired.store(0, Ordering::Relaxed);
        self.state.store(state, Ordering::Release);
    }

    #[inline]
    pub fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    pub fn set_state(&self, state: u32) {
        self.state.store(state, Ordering::Release);
    }

    /// From one state to another; false when it was not in the first.
    pub fn change(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// What carries it, once it is LINKED.
    #[inline]
    pub fn carrier(&self) -> Option<&T> {
        if self.state() != state::LINKED {
            return None;
        }
        // SAFETY: LINKED is said after it was written, and it is dropped when no call can have it any more.
        self.carrier.with(|carrier| unsafe { (*carrier).as_ref() })
    }

    /// From now on it is carried: LINKED.
    ///
    /// # Safety
    /// It is not LINKED yet, and no other thread decides how it goes on.
    pub unsafe fn carry(&self, carrier: T) {
        // SAFETY: not LINKED, so nobody has a reference to it, and the caller answers for no other thread writing it.
        self.carrier.with_mut(|place| unsafe { *place = Some(carrier) });
        self.state.store(state::LINKED, Ordering::Release);
    }

    /// A call is about to sleep for it.
    pub fn sleeps(&self) {
        self.sleepers.fetch_add(1, Ordering::AcqRel);
    }

    /// It sleeps no more.
    pub fn wakes(&self) {
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many calls sleep for it.
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::Acquire)
    }

    /// The connection is done with, and what carries it is not looked at any more; true for the first who says so.
    pub fn retire(&self) -> bool {
        let first = self.retired.swap(1, Ordering::Relaxed) == 0;
        if first {
            self.state.store(state::PLAIN, Ordering::Release);
        }
        first
    }

    /// Drops what carried it; false while somebody sleeps for it.
    ///
    /// # Safety
    /// It has rested: every call that took the carrier before it was retired is over, or is counted as a sleeper.
    pub unsafe fn let_go(&self) -> bool {
        if self.sleepers() > 0 {
            return false;
        }
        // SAFETY: no call has it, by the caller's word and the count; what sleepers did is before it.
        self.carrier.with_mut(|place| unsafe { *place = None });
        true
    }
}
