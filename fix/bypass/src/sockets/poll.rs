//! Threads that sleep: poll, select, and calls that block on one connection.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use crate::local::{Waiter, processor};
use crate::patience::{Awake, Patience};
use crate::signals::Quiet;
use libc::{POLLERR, POLLHUP, POLLIN, POLLRDHUP, c_int, nfds_t, pollfd, sigset_t, timespec};

use super::epoll;
use super::fds::{self, Stream, state};
use super::{kernel, now_ns, set_errno, world};

/// This thread's waiter. In the child of a fork the parent's is forgotten, never dropped.
struct Mine {
    waiter: ManuallyDrop<Waiter>,
    forks: u32,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if self.forks == super::forks() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.waiter) };
        }
    }
}

/// The connections this thread sleeps for, and where on its stack: one, or more while a signal handler sleeps as well.
/// A wait can end without returning: a handler may leave it with longjmp, and the thread may be cancelled in it. What
/// it had is given back by the thread's next wait, or at the thread's end.
struct Sleeps {
    streams: [Cell<Option<(&'static Stream, usize)>>; 4],
    /// As in [`Stream::told`].
    waiter: Cell<u32>,
}

impl Sleeps {
    const fn new() -> Sleeps {
        Sleeps { streams: [const { Cell::new(None) }; 4], waiter: Cell::new(0) }
    }

    /// A wait begins; `None` when there are too many, for which nothing is kept.
    fn enter(&self, stream: &'static Stream, frame: usize) -> Option<usize> {
        for (i, place) in self.streams.iter().enumerate() {
            if place.get().is_some_and(|(_, at)| is_left(at, frame)) {
                self.leave(i);
            }
        }
        let free = self.streams.iter().position(|place| place.get().is_none())?;
        stream.life.sleeps();
        self.streams[free].set(Some((stream, frame)));
        Some(free)
    }

    fn leave(&self, place: usize) {
        if let Some((stream, _)) = self.streams[place].take() {
            stream.life.wakes();
        }
    }
}

impl Drop for Sleeps {
    fn drop(&mut self) {
        for place in 0..self.streams.len() {
            if let Some((stream, _)) = self.streams[place].get() {
                let _ = stream.told.compare_exchange(self.waiter.get(), 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            self.leave(place);
        }
    }
}

thread_local! {
    static PATIENCE: Patience = const { Patience::new() };
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
    /// Where on the stack the wait is that uses it; 0 for none.
    static USED_AT: Cell<usize> = const { Cell::new(0) };
    static SLEEPS: Sleeps = const { Sleeps::new() };
}

/// Whether a call that was at `then` on this thread's stack is over without having returned, when another one is at
/// `now`: what a call is interrupted by lies below it, or on the stack that was set aside for handlers.
pub(super) fn is_left(then: usize, now: usize) -> bool {
    now >= then && !on_signal_stack()
}

fn on_signal_stack() -> bool {
    // SAFETY: all zeros is a valid `stack_t`.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: room for the answer; nothing is changed.
    let known = unsafe { libc::sigaltstack(std::ptr::null(), &mut stack) } == 0;
    known && stack.ss_flags & libc::SS_ONSTACK != 0
}

fn with_waiter<R>(work: impl FnOnce(Option<&Waiter>) -> R) -> R {
    let mark = 0u8;
    let frame = (&raw const mark).addr();
    let used_at = USED_AT.try_with(Cell::get).unwrap_or(0);
    if used_at != 0 && !is_left(used_at, frame) {
        // The wait that a handler has interrupted needs it as it is.
        return work(None);
    }
    let _ = USED_AT.try_with(|used| used.set(frame));
    let known = MINE.try_with(waiter_of_thread).ok().flatten();
    // SAFETY: it stays in this thread's storage: it is replaced in the child of a fork alone, where no wait goes on.
    let result = work(known.map(|waiter| unsafe { &*waiter }));
    let _ = USED_AT.try_with(|used| used.set(0));
    result
}

fn waiter_of_thread(mine: &RefCell<Option<Mine>>) -> Option<*const Waiter> {
    fn known(mine: &Option<Mine>) -> Option<*const Waiter> {
        mine.as_ref().filter(|m| m.forks == super::forks()).map(|m| std::ptr::from_ref::<Waiter>(&m.waiter))
    }
    let held = mine.try_borrow().ok()?;
    if let Some(waiter) = known(&held) {
        return Some(waiter);
    }
    drop(held);
    let _quiet = Quiet::begin();
    let mut mine = mine.try_borrow_mut().ok()?;
    let waiter = world::local().and_then(|l| l.waiter().ok());
    *mine = waiter.map(|w| Mine { waiter: ManuallyDrop::new(w), forks: super::forks() });
    if let Some(mine) = &*mine {
        let _ = SLEEPS.try_with(|sleeps| sleeps.waiter.set(mine.waiter.number + 1));
    }
    known(&mine)
}

/// Streams in a set that are not the kernel's, or may become ours.
fn ours(fds: &[pollfd]) -> bool {
    for set in fds.iter().filter_map(|p| super::epoll::of_fd(p.fd)) {
        set.watched_itself();
    }
    for stream in fds.iter().filter_map(|p| fds::stream(p.fd)) {
        // A thread that sleeps in the kernel for it could not be told that it goes another way now.
        if stream.state() == state::CANDIDATE {
            super::streams::stay(stream);
        }
    }
    fds.iter().any(|p| p.fd >= 0 && fds::stream(p.fd).is_some_and(is_ours))
}

#[inline]
pub fn is_ours(stream: &Stream) -> bool {
    matches!(stream.state(), state::PENDING | state::SETTLING | state::LINKED)
}

/// Whether any of these is carried, or may be: others are better left to the C library, which knows of cancelled
/// threads.
///
/// # Safety
/// As of `ppoll`.
pub unsafe fn concerns(fds: *const pollfd, n: nfds_t) -> bool {
    super::flush();
    // SAFETY: the caller's.
    !fds.is_null() && n > 0 && ours(unsafe { std::slice::from_raw_parts(fds, n as usize) })
}

/// `ppoll`, with a timeout in nanoseconds (`None` for ever).
///
/// # Safety
/// As of `ppoll`.
pub unsafe fn poll(fds: *mut pollfd, n: nfds_t, timeout_ns: Option<u64>, mask: *const sigset_t) -> c_int {
    super::flush();
    if fds.is_null() || n == 0 {
        // SAFETY: the caller's.
        return unsafe { kernel::ppoll(fds, n, spec(timeout_ns).as_ref().map_or(std::ptr::null(), |t| t), mask) };
    }
    // SAFETY: the caller's.
    let set = unsafe { std::slice::from_raw_parts_mut(fds, n as usize) };
    if !ours(set) {
        let spec = spec(timeout_ns);
        // SAFETY: the caller's.
        return unsafe { kernel::ppoll(fds, n, spec.as_ref().map_or(std::ptr::null(), |t| t), mask) };
    }
    with_waiter(|waiter| {
        let result = sleep(set, timeout_ns, mask, waiter);
        let _ = PATIENCE.try_with(|patience| patience.ends(now_ns()));
        if let Some(waiter) = waiter {
            for stream in set.iter().filter_map(|p| fds::stream(p.fd)) {
                let _ = stream.told.compare_exchange(waiter.number + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        result
    })
}

fn spec(ns: Option<u64>) -> Option<timespec> {
    ns.map(|ns| timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ })
}

/// Fills in what is ready of ours; how many, and when the first offer is given up.
fn look(set: &mut [pollfd]) -> (usize, Option<u64>) {
    let (mut ready, mut deadline) = (0, None::<u64>);
    for p in set.iter_mut() {
        let Some(stream) = (p.fd >= 0).then(|| fds::stream(p.fd)).flatten() else { continue };
        world::resolve(stream, false);
        match stream.link() {
            Some(link) => {
                // The lower half of poll's events has the values of epoll's.
                p.revents = epoll::readiness(link, u32::from(p.events as u16)) as i16;
                ready += usize::from(p.revents != 0);
            }
            None if is_ours(stream) => {
                p.revents = 0;
                let until = stream.deadline.load(Ordering::Relaxed).max(now_ns() + 1_000_000);
                deadline = Some(deadline.map_or(until, |d| d.min(until)));
            }
            None => {}
        }
    }
    (ready, deadline)
}

/// The kernel's view: the program's plain descriptors as they are, ours for their end, and the doorbell.
fn ask_kernel(
    set: &mut [pollfd],
    waiter: Option<&Waiter>,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, ()> {
    // A few not from the heap: a signal handler may wait as well.
    let (mut few, mut many) = ([pollfd { fd: -1, events: 0, revents: 0 }; 8], Vec::new());
    let count = set.len() + usize::from(waiter.is_some());
    let all = if count <= few.len() {
        &mut few[..count]
    } else {
        many.resize(count, few[0]);
        &mut many[..]
    };
    for (to, p) in all.iter_mut().zip(&*set) {
        to.fd = p.fd;
        to.events = match fds::stream(p.fd).filter(|s| p.fd >= 0 && is_ours(s)) {
            // Not for what the program has shut itself.
            Some(stream) if stream.link().is_none_or(|l| l.tcp_is_well() && !l.is_read_shut()) => POLLRDHUP,
            Some(_) => 0,
            None => p.events,
        };
    }
    if let (Some(waiter), Some(bell)) = (waiter, all.get_mut(set.len())) {
        (bell.fd, bell.events) = (waiter.doorbell.as_raw_fd(), POLLIN);
    }
    let spec = spec(timeout_ns);
    let timeout = spec.as_ref().map_or(std::ptr::null(), |t| t);
    // SAFETY: a live array and timeout.
    if unsafe { kernel::ppoll(all.as_mut_ptr(), all.len() as nfds_t, timeout, mask) } < 0 {
        return Err(());
    }
    let mut ready = 0;
    for (p, seen) in set.iter_mut().zip(&*all) {
        match fds::stream(p.fd).filter(|s| p.fd >= 0 && is_ours(s)) {
            Some(stream) if seen.revents & (POLLRDHUP | POLLHUP | POLLERR) != 0 || is_half_shut(stream) => {
                super::streams::look_at_tcp(stream);
            }
            Some(_) => {}
            None => {
                p.revents = seen.revents;
                ready += usize::from(seen.revents != 0);
            }
        }
    }
    if let (Some(waiter), Some(bell)) = (waiter, all.get(set.len()))
        && bell.revents != 0
    {
        waiter.answer();
    }
    Ok(ready)
}

/// Whether the program has shut it for reading: then the kernel does not wake us for the end of the other side.
fn is_half_shut(stream: &Stream) -> bool {
    stream.link().is_some_and(|l| l.is_read_shut() && l.tcp_is_well())
}

fn sleep(set: &mut [pollfd], timeout_ns: Option<u64>, mask: *const sigset_t, waiter: Option<&Waiter>) -> c_int {
    let begun = now_ns();
    let _ = PATIENCE.try_with(|patience| patience.begins(begun));
    let until = timeout_ns.map(|t| begun.saturating_add(t));
    let plain = set.iter().any(|p| p.fd >= 0 && !fds::stream(p.fd).is_some_and(is_ours));
    for p in set.iter_mut() {
        p.revents = 0;
    }
    let (mut spun, mut shared) = (false, waiter.is_none());
    loop {
        let here = processor();
        if let Some(waiter) = waiter {
            waiter.word().awake(here);
        }
        let (ready, deadline) = look(set);
        let now = now_ns();
        if ready > 0 || until.is_some_and(|u| now >= u) {
            // Also who never sleeps has to see that the other side is gone.
            if plain || ready == 0 {
                let Ok(more) = ask_kernel(set, None, Some(0), mask) else { return ready as c_int };
                return (look(set).0 + more) as c_int;
            }
            return ready as c_int;
        }
        if !std::mem::replace(&mut spun, true) && spin(set, here, until, plain) {
            continue;
        }
        if let Some(waiter) = waiter {
            let mut all = true;
            for stream in set.iter().filter_map(|p| fds::stream(p.fd)) {
                all &= name(stream, waiter) && !is_half_shut(stream);
            }
            shared = !all;
            waiter.word().sleeps();
            let (ready, _) = look(set);
            if ready > 0 {
                continue;
            }
        }
        // Where nobody can wake us, or somebody else is the one who is told, the set is looked at every millisecond.
        let first = [until, deadline, shared.then(|| now_ns() + 1_000_000)].into_iter().flatten().min();
        let left = first.map(|f| f.saturating_sub(now_ns()));
        let plain_ready = ask_kernel(set, waiter, left, mask);
        if let Some(waiter) = waiter {
            waiter.word().awake(processor());
        }
        match plain_ready {
            Err(()) => return -1,
            Ok(0) => spun = false,
            Ok(n) => return (look(set).0 + n) as c_int,
        }
    }
}

/// Makes this thread the one that is told of a connection's news. False when it is another's: of a set's, or of a
/// thread that was here before.
fn name(stream: &'static Stream, waiter: &Waiter) -> bool {
    if epoll::watches(stream) {
        return false;
    }
    let mine = waiter.number + 1;
    match stream.told.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(other) if other == mine => {}
        Err(_) => return false,
    }
    if let (Some(link), Some(place)) = (stream.link(), stream.place()) {
        let known = world::introduce(place, waiter);
        if known {
            link.set_waiter(waiter.number);
        }
        return known;
    }
    // A handler that uses the connection would wait for this thread.
    let _quiet = Quiet::begin();
    let Ok(offers) = stream.offers.lock() else { return false };
    offers.iter().all(|offer| {
        let known = world::introduce(offer.place, waiter);
        if known && let Some(slot) = offer.place.pair().slot(offer.slot) {
            slot.set_waiter(offer.place.pair().side, waiter.number);
        }
        known
    })
}

/// Stays awake for a while, if the other side runs on another processor; true when something may have come.
fn spin(set: &[pollfd], here: u32, until: Option<u64>, plain: bool) -> bool {
    let begun = now_ns();
    let Ok(limit) = PATIENCE.try_with(Patience::limit) else { return false };
    let most = if plain { limit.ns / 10 } else { limit.ns };
    if most == 0 {
        return false;
    }
    let end = until.unwrap_or(u64::MAX).min(begun + most);
    let mut awake = Awake::since(begun);
    let learn = |now: u64, came| _ = PATIENCE.try_with(|p| p.learn(now.saturating_sub(begun), came, limit));
    loop {
        let mut hopeful = false;
        for link in set.iter().filter_map(|p| fds::stream(p.fd)?.link()) {
            hopeful |= link.pair.hopeful(here, limit.probe);
        }
        if !hopeful {
            return false;
        }
        for _ in 0..32 {
            std::hint::spin_loop();
            for p in set {
                if let Some(link) = fds::stream(p.fd).and_then(|s| s.link())
                    && epoll::readiness(link, u32::from(p.events as u16)) != 0
                {
                    learn(now_ns(), true);
                    return true;
                }
            }
        }
        let now = now_ns();
        if now >= end {
            learn(now, false);
            return false;
        }
        if awake.gave_way(now) {
            let _ = PATIENCE.try_with(Patience::gave_way);
            return false;
        }
    }
}

/// How a wait for one connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    Ready,
    TimedOut,
    Interrupted,
}

/// Waits until a connection can be read or written.
pub fn wait_for(stream: &'static Stream, events: i16, timeout_ns: Option<u64>) -> Waited {
    let mark = 0u8;
    let frame = (&raw const mark).addr();
    let place = SLEEPS.try_with(|sleeps| sleeps.enter(stream, frame)).ok().flatten();
    let until = timeout_ns.map(|t| now_ns().saturating_add(t));
    let waited = loop {
        let mut set = [pollfd { fd: stream.fd(), events, revents: 0 }];
        let left = until.map(|u| u.saturating_sub(now_ns()));
        // SAFETY: a live array of one.
        match unsafe { poll(set.as_mut_ptr(), 1, left, std::ptr::null()) } {
            0 => break Waited::TimedOut,
            n if n > 0 => break Waited::Ready,
            // The kernel goes on by itself after a handler that asked for it (SA_RESTART); poll never does. Which
            // handler ran is not told, so it is done when all of them asked for it.
            _ if timeout_ns.is_none() && all_restart() => {}
            _ => break Waited::Interrupted,
        }
    };
    if let Some(place) = place {
        let _ = SLEEPS.try_with(|sleeps| sleeps.leave(place));
    }
    waited
}

fn all_restart() -> bool {
    (1..=64).all(|signal| {
        // SAFETY: all zeros is a valid action, and there is room for the answer.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above; nothing is changed.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0;
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        !known || !handled || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// `pselect`, with a timeout in nanoseconds. `None` when no connection of ours is in the sets.
///
/// # Safety
/// As of `pselect`.
pub unsafe fn select(
    n: c_int,
    sets: [*mut libc::fd_set; 3],
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    use libc::{POLLOUT, POLLPRI};
    super::flush();
    let n = n.clamp(0, libc::FD_SETSIZE as c_int);
    let mut all: Vec<pollfd> = Vec::new();
    for fd in 0..n {
        let mut events = 0;
        for (set, event) in sets.iter().zip([POLLIN, POLLOUT, POLLPRI]) {
            // SAFETY: the caller's sets, and a number below FD_SETSIZE.
            if !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) } {
                events |= event;
            }
        }
        if events != 0 {
            all.push(pollfd { fd, events, revents: 0 });
        }
    }
    if !ours(&all) {
        return None;
    }
    // SAFETY: a live array.
    let ready = unsafe { poll(all.as_mut_ptr(), all.len() as nfds_t, timeout_ns, mask) };
    if ready < 0 {
        return Some(ready);
    }
    if all.iter().any(|p| p.revents & libc::POLLNVAL != 0) {
        set_errno(libc::EBADF);
        return Some(-1);
    }
    let mut count = 0;
    for set in sets.into_iter().filter(|s| !s.is_null()) {
        // SAFETY: the caller's set.
        unsafe { libc::FD_ZERO(set) };
    }
    for p in &all {
        let meanings = [
            (POLLIN, POLLIN | POLLHUP | POLLERR | libc::POLLRDNORM),
            (POLLOUT, POLLOUT | POLLERR | libc::POLLWRNORM),
            (POLLPRI, POLLPRI),
        ];
        for (set, (asked, means)) in sets.into_iter().zip(meanings) {
            if p.events & asked != 0 && p.revents & means != 0 {
                // SAFETY: it was in this set, so the set is there.
                unsafe { libc::FD_SET(p.fd, set) };
                count += 1;
            }
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_whose_place_on_the_stack_is_used_again_was_left() {
        assert!(is_left(1000, 1000) && is_left(1000, 2000));
        assert!(!is_left(1000, 900), "a handler runs below what it has interrupted");
    }

    #[test]
    fn a_wait_that_was_left_is_given_back_by_the_next_one_and_by_the_end_of_the_thread() {
        let (stream, _) = fds::new_stream(60_000, state::PLAIN, false).unwrap();
        let threads = || stream.life.sleepers();
        let sleeps = Sleeps::new();
        let outer = sleeps.enter(stream, 1000).unwrap();
        // In a handler, which comes back.
        let inner = sleeps.enter(stream, 900).unwrap();
        assert_eq!(threads(), 2);
        sleeps.leave(inner);
        assert_eq!(threads(), 1);
        // In a handler that is left together with what it has interrupted.
        sleeps.enter(stream, 800).unwrap();
        let next = sleeps.enter(stream, 1000).unwrap();
        assert_eq!((next, threads()), (outer, 1));
        sleeps.leave(next);
        sleeps.leave(next);
        assert_eq!(threads(), 0, "once");
        sleeps.enter(stream, 1000).unwrap();
        sleeps.waiter.set(7);
        stream.told.store(7, Ordering::Release);
        drop(sleeps);
        assert_eq!((threads(), stream.told.load(Ordering::Acquire)), (0, 0));
    }
}
