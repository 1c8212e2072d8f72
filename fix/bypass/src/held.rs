//! A lock for the length of a copy, which a signal handler may find taken by the code it has interrupted.
//!
//! Threads that share a connection are rare, and the kernel's own lock on a socket is no finer. What is different from
//! the kernel: a handler can run in the middle of our copy, and it can leave with longjmp or end its thread, so that
//! the copy is never finished. Its word therefore names the owner. A thread that meets its own lock is turned away at
//! once, and no thread waits for a lock for ever: after [`REFUSALS`], or [`NAPS`] of another thread's, it counts as
//! abandoned. What it guards is left alone even then, since the interrupted copy may still be finished.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How often a thread is turned away from a lock of its own before the lock counts as abandoned.
pub const REFUSALS: u32 = 1000;
/// Looks at a lock of another thread's, mostly without a pause.
const SPINS: u32 = 1 << 14;
/// Pauses of [`NAP_NS`] after that: with the timers' slack some ten seconds.
const NAPS: u32 = 100_000;
const NAP_NS: i64 = 50_000;

/// Why a lock was not to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// This thread has it: the caller is a signal handler, or code that runs after a handler was left with longjmp.
    Own,
    /// It was taken for so long that nothing is known of its owner any more.
    Abandoned,
}

/// Something that one thread at a time may use.
#[derive(Debug)]
pub struct Held<T> {
    /// The thread that has it; 0 for none.
    owner: AtomicUsize,
    /// How often the owner was turned away since it took the lock; [`REFUSALS`] once it counts as abandoned.
    refused: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `lock` lets one thread at a time in, and that one once.
unsafe impl<T: Send> Sync for Held<T> {}

/// What is held, until it is dropped.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Held<T>);

/// A number no other living thread has, read from a register: thread-local storage may not be there yet in a handler.
#[inline]
fn this_thread() -> usize {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() as usize }
}

fn nap() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: a live timespec.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, 0) };
}

impl<T> Held<T> {
    pub const fn new(value: T) -> Held<T> {
        Held { owner: AtomicUsize::new(0), refused: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes it. Waits for another thread, never for this one.
    #[inline]
    pub fn lock(&self) -> Result<Guard<'_, T>, Busy> {
        let own = this_thread();
        match self.owner.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Guard(self)),
            Err(owner) if owner == own => Err(self.refuse()),
            Err(_) => self.wait(own),
        }
    }

    /// The same for the length of a call.
    #[inline]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Busy> {
        self.lock().map(|mut guard| work(&mut guard))
    }

    #[cold]
    fn refuse(&self) -> Busy {
        if self.refused.load(Ordering::Relaxed) >= REFUSALS {
            return Busy::Abandoned;
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Busy::Own
    }

    #[cold]
    fn wait(&self, own: usize) -> Result<Guard<'_, T>, Busy> {
        for round in 1..SPINS + NAPS {
            if self.owner.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Guard(self));
            }
            if round % 64 != 0 && round < SPINS {
                std::hint::spin_loop();
            } else if round < SPINS {
                std::thread::yield_now();
            } else if self.refused.load(Ordering::Relaxed) >= REFUSALS {
                break;
            } else {
                nap();
            }
        }
        self.refused.store(REFUSALS, Ordering::Relaxed);
        Err(Busy::Abandoned)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the owner's word names this thread, which has one guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.refused.load(Ordering::Relaxed) != 0 {
            self.0.refused.store(0, Ordering::Relaxed);
        }
        self.0.owner.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_turned_away_from_its_own_lock_and_has_it_again_when_it_is_done() {
        let held = Held::new(0);
        // As a handler that runs in the middle of a copy.
        let nested = held.with(|value| {
            *value += 1;
            (0..10).map(|_| held.with(|value| *value += 100)).collect::<Vec<_>>()
        });
        assert_eq!(nested, Ok(vec![Err(Busy::Own); 10]));
        assert_eq!(held.with(|value| *value), Ok(1));
        // As code after a handler that was left with longjmp.
        std::mem::forget(held.lock());
        for _ in 0..REFUSALS {
            assert_eq!(held.with(|_| ()), Err(Busy::Own));
        }
        assert_eq!(held.with(|_| ()), Err(Busy::Abandoned));
        // Other threads hear at once what is known.
        let others = std::thread::scope(|scope| scope.spawn(|| held.with(|_| ())).join());
        assert_eq!(others.unwrap(), Err(Busy::Abandoned));
    }

    #[test]
    fn threads_take_turns() {
        let held = Held::new((0u64, 0u64));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        held.with(|(a, b)| {
                            *a += 1;
                            *b = *a;
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(held.with(|both| *both), Ok((40_000, 40_000)));
    }
}
