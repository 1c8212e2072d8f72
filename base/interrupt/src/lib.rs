//! Ctrl-C, SIGTERM and SIGHUP, in one place for the whole process.
//!
//! Whatever can end in order holds a [`Guard`] while it runs, and looks at it. The first signal asks every guard to
//! end and prints what the newest one said; a second signal, or one while nothing is guarded, ends the process at
//! once. Which signal means what is a state machine without signals, in `registry.rs`.
//!
//! ```
//! let stop = unslow_interrupt::guard("finishing the row (Ctrl-C again: at once)");
//! let mut rows = 0;
//! while !stop.asked() && rows < 3 {
//!     rows += 1;
//! }
//! ```
//!
//! What surprises: between [`Action::End`] and the end of the process, children are killed, and the thread that
//! waited for them sees an error that is none. It must not report it, nor exit before the handler has cleaned up:
//! that thread calls [`park_if_ending`] and the handler has the last word.
#![forbid(unsafe_code)]

mod registry;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub use registry::{Action, Signal};
use registry::{Manner, Registry, Ticket};

static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());
/// Wakes [`Guard::wait`].
static ASKED: Condvar = Condvar::new();

fn locked() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something that ends in order when it is asked to, as long as this lives.
#[derive(Debug)]
pub struct Guard(Ticket);

/// Guards what begins now. The first signal prints `says` (what happens now, and what a second one does); the second
/// ends the process.
pub fn guard(says: &'static str) -> Guard {
    Guard(locked().guard(Manner::Says(says)))
}

/// The same without a word, for what ends within moments or says so itself.
pub fn guard_quietly() -> Guard {
    Guard(locked().guard(Manner::Quiet))
}

/// Guards what must never be cut short: further signals change nothing. Not for anything that can hang.
pub fn guard_patiently() -> Guard {
    Guard(locked().guard(Manner::Patient))
}

impl Guard {
    /// Whether it should end.
    pub fn asked(&self) -> bool {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// The same as a flag, for what takes one. Setting it asks this guard alone, as a request over a socket does.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.asked.clone()
    }

    /// Waits until a signal asks it to end.
    pub fn wait(&self) {
        let mut registry = locked();
        while !self.asked() {
            registry = ASKED.wait(registry).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Guards the process to its very end.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        locked().remove(self.0.number);
    }
}

/// Hears SIGHUP as long as it lives.
#[derive(Debug)]
pub struct HangUps(Ticket);

/// From now on SIGHUP asks to read settings again, and ends nothing.
pub fn hang_ups() -> HangUps {
    HangUps(locked().reader())
}

impl HangUps {
    /// Whether there was one since the last call.
    pub fn take(&self) -> bool {
        self.0.asked.swap(false, Ordering::SeqCst)
    }

    /// Waits for one, which this takes, or until a signal asks `guard` to end. True for the former.
    pub fn wait(&self, guard: &Guard) -> bool {
        self.wait_unless(|| guard.asked())
    }

    /// Waits for one, whatever else happens.
    pub fn wait_for_one(&self) {
        self.wait_unless(|| false);
    }

    fn wait_unless(&self, ended: impl Fn() -> bool) -> bool {
        let mut registry = locked();
        loop {
            if self.take() {
                return true;
            }
            if ended() {
                return false;
            }
            registry = ASKED.wait(registry).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for HangUps {
    fn drop(&mut self) {
        locked().remove(self.0.number);
    }
}

/// Whether a signal has asked anything to end: nothing further should begin. Still true after that has ended.
pub fn asked() -> bool {
    locked().asked()
}

/// Returns at once, unless a signal is ending what was started: then the handler has the last word and ends the
/// process, and this never returns.
pub fn park_if_ending() {
    while locked().ending() {
        std::thread::park();
    }
}

/// Calls `act` for each signal from now on, on a thread of its own and one after the other. On [`Action::End`] it has
/// to end the process.
pub fn listen(mut act: impl FnMut(Action) + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let thread = std::thread::Builder::new().name("signals".into());
    let listening = thread.spawn(move || {
        for number in signals.forever() {
            let signal = if number == SIGHUP { Signal::HangUp } else { Signal::Stop };
            // The lock is given back first: whoever acts may look.
            let action = locked().signal(signal);
            ASKED.notify_all();
            act(action);
        }
    });
    listening.map(drop)
}
