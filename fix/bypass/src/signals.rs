//! Code that no signal handler interrupts.
//!
//! Where connections are made, offered and ended we hold plain locks. A handler that ran there and used a connection
//! would wait for its own thread, and one that is left with longjmp, or by the end of its thread, would leave the lock
//! taken. Two system calls keep handlers out; where bytes are carried that would cost too much, and [`crate::held`] is
//! used instead.

use std::marker::PhantomData;

/// Bytes of the kernel's signal set.
const SIGNALS: usize = 8;

/// Handlers run after it is dropped. The C library's own signals, which end a cancelled thread, wait as well.
#[derive(Debug)]
pub struct Quiet {
    before: u64,
    /// It is this thread's.
    _thread: PhantomData<*const ()>,
}

/// Raised by an instruction: blocked, they would end the process.
const fn synchronous() -> u64 {
    let mut set = 0u64;
    let mut i = 0;
    let signals = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    while i < signals.len() {
        set |= 1u64 << (signals[i] - 1);
        i += 1;
    }
    set
}

impl Quiet {
    /// Keeps handlers out of this thread.
    #[must_use]
    pub fn begin() -> Quiet {
        let (blocked, mut before) = (!synchronous(), 0u64);
        set_mask(libc::SIG_BLOCK, &blocked, &raw mut before);
        Quiet { before, _thread: PhantomData }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        set_mask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut());
    }
}

/// Leaves `errno` as it is: it cannot fail.
fn set_mask(how: libc::c_int, set: &u64, before: *mut u64) {
    // SAFETY: signal sets of the kernel's size; null where the mask before is not asked for.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, std::ptr::from_ref(set), before, SIGNALS) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static RAN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handler(_signal: libc::c_int) {
        RAN.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_handler_runs_after_it_and_not_within() {
        let handler: extern "C" fn(libc::c_int) = handler;
        // SAFETY: a handler that only counts.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        // SAFETY: to this thread, whose handler is set.
        let raise = || unsafe { libc::raise(libc::SIGUSR2) };
        let outer = Quiet::begin();
        let inner = Quiet::begin();
        raise();
        drop(inner);
        assert_eq!(RAN.load(Ordering::SeqCst), 0, "within another");
        drop(outer);
        assert_eq!(RAN.load(Ordering::SeqCst), 1);
        raise();
        assert_eq!(RAN.load(Ordering::SeqCst), 2);
    }
}
