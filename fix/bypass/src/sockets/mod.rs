//! Sockets, as far as they are carried over shared memory: descriptors, epoll sets, sleeping threads, other processes.
//!
//! The preload calls this from behind the C library's names; programs of ours call it themselves (feature `reactor`).
//!
//! ```text
//!   streams.rs  bytes of a descriptor: ours or the kernel's?    fds.rs     what a descriptor is
//!   epoll.rs, poll.rs  who waits for what                       world.rs   other processes: offers, takes, refusals
//!   seconds.rs  a connection twice in one set                   handing.rs  descriptors that others get
//!   copies.rs   from and into files and pipes                   pointers.rs  what no program can mean
//! ```
//!
//! A child of fork forgets all of it: connections that were its parent's are dead sockets there.

pub mod copies;
pub mod epoll;
pub mod fds;
pub mod handing;
mod kernel;
pub mod pointers;
pub mod poll;
mod refusals;
mod seconds;
pub mod streams;
pub mod world;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use self::fds::{Place, Stream};
#[cfg(feature = "reactor")]
pub use self::kernel::lingers;
use self::world::{SETTINGS, Settings};
pub use crate::stamp::now_ns;

static PID: AtomicI32 = AtomicI32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);
static ASIDE: AtomicBool = AtomicBool::new(false);
static QUIET: AtomicBool = AtomicBool::new(false);

/// The thread's last error.
pub fn errno() -> i32 {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(errno: i32) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// A line on standard error.
pub fn tell(what: &str) {
    if QUIET.load(Ordering::Relaxed) {
        return;
    }
    let line = format!("unslow bypass: {what}\n");
    // SAFETY: a live line; not through `write`, which is ours.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}

/// Something is missing: said once, and everything goes over TCP.
pub fn step_aside(why: &str) {
    if !ASIDE.swap(true, Ordering::AcqRel) {
        tell(&format!("{why}; everything goes over TCP"));
    }
}

/// Whether there is anything for us to do in this process.
pub fn wanted() -> bool {
    SETTINGS.get().is_some() && !ASIDE.load(Ordering::Relaxed)
}

/// How often this process is the child of a fork since the library came.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Whether this is the child of a vfork, which runs in its parent's memory.
pub fn not_our_process() -> bool {
    // SAFETY: no arguments.
    let pid = unsafe { libc::syscall(libc::SYS_getpid) } as i32;
    pid != PID.load(Ordering::Relaxed)
}

// Doorbells are rung once a turn of a program's loop, by the thread whose loop it is.

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(0) };
    static BELLS: RefCell<Vec<(&'static Place, u32)>> = const { RefCell::new(Vec::new()) };
}

/// A number of this thread's own.
#[inline]
pub fn thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let known = THREAD.try_with(Cell::get).unwrap_or(0);
    if known != 0 {
        return known;
    }
    let new = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let _ = THREAD.try_with(|t| t.set(new));
    new
}

/// Rings a waiter of the other side, at the end of the turn if this thread's loop has the connection.
pub fn ring(stream: &'static Stream, place: &'static Place, waiter: u32) {
    let own = epoll::of(stream).is_some_and(|e| e.is_of(thread()));
    let later = own
        && BELLS
            .try_with(|bells| {
                let Ok(mut bells) = bells.try_borrow_mut() else { return false };
                if !bells.iter().any(|(p, w)| std::ptr::eq(*p, place) && *w == waiter) {
                    place.enter(); // until it was rung
                    bells.push((place, waiter));
                }
                true
            })
            .unwrap_or(false);
    if !later {
        world::ring(place, waiter);
    }
}

/// Rings what was put off. One at a time, so that a signal handler that never comes back does not take the others with
/// it.
#[inline]
pub fn flush() {
    let next = |bells: &RefCell<Vec<(&'static Place, u32)>>| {
        let mut bells = bells.try_borrow_mut().ok()?;
        (!bells.is_empty()).then(|| bells.remove(0))
    };
    while let Ok(Some((place, waiter))) = BELLS.try_with(next) {
        world::ring(place, waiter);
        place.leave();
    }
}

/// In the child of a fork that ran no [`before_fork`] (`_Fork`): the bells are the parent's to ring, and their memory
/// is not here.
fn forget_bells() {
    let _ = BELLS.try_with(|bells| bells.try_borrow_mut().map(|mut bells| bells.clear()));
}

extern "C" fn before_fork() {
    flush();
    handing::before_fork();
    world::before_fork();
}

/// In the child of a fork: nothing of the parent's is ours.
pub extern "C" fn in_child() {
    // SAFETY: no arguments.
    PID.store(unsafe { libc::syscall(libc::SYS_getpid) } as i32, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
    forget_bells();
    world::forget();
    handing::in_child();
    // SAFETY: the child of a fork has one thread.
    unsafe { fds::forget() };
    // SAFETY: as above.
    unsafe { epoll::forget() };
}

/// Begins: once in a process, before it makes sockets. Without it everything is the kernel's.
pub fn begin(settings: Settings, quiet: bool) {
    // SAFETY: no arguments.
    PID.store(unsafe { libc::syscall(libc::SYS_getpid) } as i32, Ordering::Relaxed);
    QUIET.store(quiet, Ordering::Relaxed);
    if !(settings.server || settings.client) || SETTINGS.set(settings).is_err() {
        return;
    }
    // Before the program can change its environment.
    crate::channel::directories();
    crate::memory::huge_pages();
    // SAFETY: functions of ours that stay.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
}
