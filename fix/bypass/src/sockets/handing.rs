//! Descriptors that others get: the child of a fork, a program that is exec'd, the receiver of a message, `stdio`.
//!
//! Whoever gets a connection that is carried has a TCP connection without a byte, and would wait for ever. What is not
//! decided yet therefore stays with TCP, where everybody can use it. For the others:
//!
//! ```text
//!   fork       the child has sockets in their place that were never connected
//!   exec       the kernel closes them: they have FD_CLOEXEC, whatever the program asked for (which is what it reads)
//!   a message  is refused
//! ```
//!
//! A socket that was never connected is as dead as one can be, for hooks and kernel, in this program and the next:
//! reading says ENOTCONN, writing EPIPE, and poll and epoll say at once that it hung up. The connection itself is not
//! touched by it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{c_int, c_void, cmsghdr, msghdr};

use super::fds::{self, Entry, MOST, Stream, state};
use super::{kernel, not_our_process, pointers, streams, world};
use crate::endpoint;

/// A bit for each descriptor.
struct Bits([AtomicU64; MOST / 64]);

impl Bits {
    const fn new() -> Bits {
        Bits([const { AtomicU64::new(0) }; MOST / 64])
    }

    fn has(&self, fd: RawFd) -> bool {
        self.0.get(fd as u32 as usize / 64).is_some_and(|w| w.load(Ordering::Relaxed) & (1 << (fd as u32 % 64)) != 0)
    }

    fn set(&self, fd: RawFd, is: bool) {
        let Some(word) = self.0.get(fd as u32 as usize / 64) else { return };
        let bit = 1u64 << (fd as u32 % 64);
        if is {
            word.fetch_or(bit, Ordering::Relaxed);
        } else if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn clear(&self) {
        self.0.iter().filter(|w| w.load(Ordering::Relaxed) != 0).for_each(|w| w.store(0, Ordering::Relaxed));
    }
}

/// Carried connections that the program wants to keep over exec.
static KEPT: Bits = Bits::new();
/// Sockets made here that have no other name, here or in another process: the others' would be silent once it is
/// carried.
static ALONE: Bits = Bits::new();
/// The dead socket that is given to programs that are spawned; -1 before it is needed.
static STAND_IN: AtomicI32 = AtomicI32::new(-1);

/// The program made a socket.
pub fn made(fd: RawFd) {
    ALONE.set(fd, true);
}

/// Whether no other descriptor, here or elsewhere, is this socket.
pub fn is_alone(fd: RawFd) -> bool {
    ALONE.has(fd)
}

/// A descriptor has another name now.
pub fn copied(old: RawFd, new: RawFd) {
    ALONE.set(old, false);
    ALONE.set(new, false);
}

/// A descriptor is about to be closed. In the child of a vfork only its own copy is.
pub fn closing(fd: RawFd) {
    if (fds::is_in_set(fd) || ALONE.has(fd)) && !not_our_process() {
        fds::set_in_set(fd, false);
        ALONE.set(fd, false);
    }
}

/// A connection is carried from now on: exec closes it.
pub fn hold(fd: RawFd) {
    // SAFETY: no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD, 0) } as c_int;
    let kept = flags >= 0 && flags & libc::FD_CLOEXEC == 0;
    KEPT.set(fd, kept);
    if kept {
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) };
    }
}

/// The flags of a descriptor as the program set them.
pub fn as_asked(fd: RawFd, flags: c_int) -> c_int {
    let kept = KEPT.has(fd) && fds::stream(fd).is_some_and(|s| s.link().is_some());
    if kept { flags & !libc::FD_CLOEXEC } else { flags }
}

/// The program says whether it wants to keep a descriptor over exec. True when the kernel is not to be told.
pub fn asked(fd: RawFd, keep: bool) -> bool {
    let Some(stream) = fds::stream(fd).filter(|s| s.link().is_some()) else { return false };
    if !not_our_process() {
        KEPT.set(fd, keep);
        return true;
    }
    // The child of a vfork prepares what the next program gets.
    if keep && is_it(stream, fd) {
        deaden(fd, true);
        return true;
    }
    false
}

/// Decides how a connection goes on, before somebody else gets it. True when it is carried, and nobody else can use it.
pub fn decide(fd: RawFd) -> bool {
    ALONE.set(fd, false);
    let Some(stream) = fds::stream(fd) else { return false };
    match stream.state() {
        state::CANDIDATE => streams::stay(stream),
        state::PENDING | state::SETTLING => {
            while !world::resolve(stream, true) {
                world::pause(20_000);
            }
        }
        _ => {}
    }
    stream.link().is_some()
}

/// Whether a descriptor of this process still is the connection that is known by it: what closes descriptors behind our
/// back leaves the number to other files, and the child of a vfork has descriptors of its own.
fn is_it(stream: &Stream, fd: RawFd) -> bool {
    let now = endpoint::ends_of_client(fd);
    // In a child another thread may have held the lock for ever; nobody changes them while the connection is known.
    match (now, stream.ends.try_lock().map(|ends| *ends)) {
        (Some((own, peer)), Ok(Some(ends))) => ends == (own, peer) || ends == (peer, own),
        (now, _) => now.is_some(),
    }
}

/// In this process a descriptor is a dead socket from now on.
fn deaden(fd: RawFd, kept: bool) {
    let flags = if kept { 0 } else { libc::O_CLOEXEC };
    // SAFETY: no pointers.
    unsafe {
        let dead = libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if dead < 0 || libc::syscall(libc::SYS_dup3, dead, fd, flags) < 0 {
            kernel::close(fd);
        }
        if dead >= 0 {
            kernel::close(dead as RawFd);
        }
    }
}

/// Before a fork: what is not decided yet stays with TCP, for parent and child.
pub fn before_fork() {
    ALONE.clear();
    for (fd, entry) in fds::known(0, MOST) {
        if matches!(entry, Entry::Stream(_)) {
            decide(fd);
        }
    }
}

/// In the child of a fork, before the parent's connections are forgotten: they are dead here. Those another thread has
/// made meanwhile are nobody's business here either.
pub fn in_child() {
    for (fd, entry) in fds::known(0, MOST) {
        let Entry::Stream(stream) = entry else { continue };
        // First: a close of it, here or by the program, would use memory that only the parent has.
        fds::put(fd, None);
        if is_it(stream, fd) {
            deaden(fd, stream.link().is_some() && KEPT.has(fd));
        }
    }
}

/// The child of a vfork has given a connection of its parent's another name, for the next program.
pub fn copied_in_vfork(old: RawFd, new: RawFd) {
    if fds::stream(old).is_some_and(|s| is_it(s, new)) && decide(old) {
        // SAFETY: no pointers.
        let flags = unsafe { libc::syscall(libc::SYS_fcntl, new, libc::F_GETFD, 0) } as c_int;
        deaden(new, flags & libc::FD_CLOEXEC == 0);
    }
}

/// A dead socket that stays open, to be duplicated by `posix_spawn`, which does that past us.
pub fn stand_in() -> Option<RawFd> {
    let known = STAND_IN.load(Ordering::Acquire);
    if known >= 0 && endpoint::is_tcp(known) && endpoint::name(known, true).is_none() && fds::get(known).is_none() {
        return Some(known);
    }
    // SAFETY: no pointers.
    let low = unsafe { libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if low < 0 {
        return None;
    }
    // Out of the way of numbers that programs give, where the limit has room for it.
    // SAFETY: no pointers.
    let high = unsafe { libc::syscall(libc::SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, 512) };
    let dead = if high >= 0 {
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_close, low) };
        high
    } else {
        low
    };
    STAND_IN.store(dead as c_int, Ordering::Release);
    Some(dead as RawFd)
}

/// Whether a message has a descriptor in it that is carried here: its receiver could not use it. Those that are not
/// decided yet stay with TCP, and may go.
///
/// # Safety
/// Null, or a message header that nobody writes meanwhile. What is no readable memory at all is refused.
pub unsafe fn passes_carried(message: *const msghdr) -> bool {
    if !pointers::may_be_buffer(message.cast::<c_void>(), size_of::<msghdr>()) {
        return false;
    }
    // SAFETY: it was found readable, and the caller has a message header behind it that nobody writes meanwhile.
    let message = unsafe { &*message };
    let (from, len) = (message.msg_control as usize, message.msg_controllen);
    if len < size_of::<cmsghdr>() || !pointers::may_be_buffer(message.msg_control, len) {
        return false;
    }
    let mut any = false;
    // SAFETY: `msg_controllen` bytes were found readable, and nothing is read that does not end within them.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            let data = libc::CMSG_DATA(at);
            let end = (at as usize).saturating_add((*at).cmsg_len as usize).min(from + len);
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                for i in 0..end.saturating_sub(data as usize) / size_of::<RawFd>() {
                    any |= decide(data.cast::<RawFd>().add(i).read_unaligned());
                }
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    any
}
