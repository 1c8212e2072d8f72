//! Bytes of descriptors that are carried over shared memory, with the answers the kernel gives for a TCP socket.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL, POLLIN, POLLOUT};
use libc::{c_int, c_void, iovec, size_t, socklen_t, ssize_t, timeval};

use super::fds::{self, Entry, Stream, state};
use super::poll::{Waited, wait_for};
use super::{epoll, errno, handing, kernel, set_errno, world};
use crate::link::{Bell, Link, Read, Written};
use crate::pair::Close;
use crate::signals::Quiet;

pub fn fail(errno: c_int) -> ssize_t {
    set_errno(errno);
    -1
}

/// Rings now, or at the end of this turn of the program's loop.
#[inline]
pub fn ring(stream: &'static Stream, bell: Bell) {
    if let (Some(waiter), Some(place)) = (bell, stream.place()) {
        super::ring(stream, place, waiter);
    }
}

/// What the kernel says of the TCP connection beside one of ours. An error of it stays there for SO_ERROR.
pub fn look_at_tcp(stream: &'static Stream) {
    let Some(link) = stream.link().filter(|_| !stream.is_of_stack()) else { return };
    match kernel::tcp_end(stream.fd()) {
        Some(Close::Clean) => link.tcp_ended(false),
        Some(Close::Abort) => link.tcp_ended(true),
        None => {}
    }
}

/// The program is told of a reset, once: by a read or by a write, whichever comes first.
fn told_reset(stream: &'static Stream, link: &Link) -> ssize_t {
    link.set_told_reset(true);
    // The TCP connection has the same to say: as over TCP, SO_ERROR does not say it again.
    kernel::take_error(stream.fd());
    fail(libc::ECONNRESET)
}

/// What a call on several parts comes to that failed after some of them: as far as it came. A reset is told by the next
/// call.
fn so_far(link: &Link, total: ssize_t, failed: ssize_t) -> ssize_t {
    if total == 0 {
        return failed;
    }
    if errno() == libc::ECONNRESET {
        link.set_told_reset(false);
    }
    total
}

/// A stream whose bytes are ours to carry, once that is decided; `None` when they are the kernel's.
#[inline]
pub fn carried(fd: RawFd) -> Option<(&'static Stream, &'static Link)> {
    let stream = fds::stream(fd)?;
    if let Some(link) = stream.link() {
        return Some((stream, link));
    }
    settle(stream)
}

#[cold]
fn settle(stream: &'static Stream) -> Option<(&'static Stream, &'static Link)> {
    super::flush();
    while !world::resolve(stream, false) {
        world::pause(20_000);
    }
    // A thread that sleeps in the kernel for it could not be told that it goes another way now.
    let candidate = stream.state() == state::CANDIDATE;
    if candidate && !stream.nonblocking.load(Ordering::Relaxed) {
        stay(stream);
    }
    Some((stream, stream.link()?))
}

/// The kernel carries bytes of a connection that might have been offered: it stays there. True when it is too late for
/// that, because the offer was taken just now.
pub fn went_over_tcp(fd: RawFd) -> bool {
    if let Some(Entry::Stream(stream)) = fds::get(fd)
        && stream.state() == state::CANDIDATE
    {
        let saved = errno();
        stay(stream);
        set_errno(saved);
        return stream.link().is_some();
    }
    false
}

/// A stream that was not taken so far never will be.
pub fn stay(stream: &'static Stream) {
    let _quiet = Quiet::begin();
    stream.fixed.store(true, Ordering::Release);
    world::no_candidate(stream);
    // Taken in the meantime: then it is too late to stay. Another thread may be here too: one of them does it.
    if stream.life.change(state::CANDIDATE, state::PLAIN) {
        fds::put(stream.fd(), None);
        if let Some(entry) = world::entry_of(stream) {
            fds::retire(entry);
        }
    }
}

pub fn timeout_of(fd: RawFd, which: c_int) -> Option<u64> {
    // SAFETY: all zeros is a valid time.
    let mut time: timeval = unsafe { std::mem::zeroed() };
    let mut len = size_of::<timeval>() as socklen_t;
    let (time_at, len_at) = (&raw mut time, &raw mut len);
    // SAFETY: room for the answer and its length.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, which, time_at, len_at) };
    let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (ns > 0).then_some(ns)
}

// Reading.

#[inline]
pub fn take(stream: &'static Stream, link: &'static Link, room: &mut [u8], flags: c_int) -> ssize_t {
    let mut done = 0;
    let mut timeout = None;
    loop {
        let (read, bell) = link.read(&mut room[done..], flags & MSG_PEEK != 0);
        ring(stream, bell);
        match read {
            Read::Bytes(n) => {
                done += n;
                if flags & MSG_WAITALL == 0 || flags & MSG_PEEK != 0 || done == room.len() {
                    return done as ssize_t;
                }
            }
            Read::End => return done as ssize_t,
            Read::Reset | Read::Busy if done > 0 => return done as ssize_t,
            Read::Reset => return told_reset(stream, link),
            // Also where the program would wait: the read that a handler has interrupted goes on when the handler is
            // done.
            Read::Busy => return fail(libc::EAGAIN),
            Read::Empty => {
                if stream.nonblocking.load(Ordering::Relaxed) || flags & MSG_DONTWAIT != 0 {
                    if done > 0 {
                        return done as ssize_t;
                    }
                    // Who never sleeps has to see here that the other side is gone.
                    if stream.set().is_none() && stream.is_due(super::now_ns()) {
                        look_at_tcp(stream);
                        if link.readable() {
                            continue;
                        }
                    }
                    return fail(libc::EAGAIN);
                }
                let limit = *timeout.get_or_insert_with(|| timeout_of(stream.fd(), libc::SO_RCVTIMEO));
                match wait_for(stream, POLLIN, limit) {
                    _ if stream.link().is_none() => return if done > 0 { done as ssize_t } else { 0 },
                    Waited::Ready => {}
                    _ if done > 0 => return done as ssize_t,
                    Waited::TimedOut => return fail(libc::EAGAIN),
                    Waited::Interrupted => return fail(libc::EINTR),
                }
            }
        }
    }
}

/// The program's buffer of `n` bytes.
///
/// # Safety
/// It is one.
#[inline]
pub unsafe fn room<'a>(buf: *mut c_void, n: size_t) -> &'a mut [u8] {
    if buf.is_null() || n == 0 {
        return &mut [];
    }
    // SAFETY: see above; more than isize::MAX is never there.
    unsafe { std::slice::from_raw_parts_mut(buf.cast(), n.min(isize::MAX as usize)) }
}

/// Reads into several parts; the kernel's answer.
///
/// # Safety
/// `parts` has `n` entries, and what each names may be written until this returns.
pub unsafe fn take_parts(
    stream: &'static Stream,
    link: &'static Link,
    parts: *const iovec,
    n: usize,
    flags: c_int,
) -> ssize_t {
    let mut total = 0;
    for i in 0..n {
        // SAFETY: `i` is below `n`, and the caller has `n` parts there.
        let part = unsafe { *parts.add(i) };
        // SAFETY: the caller's buffer, which may be written for as many bytes as it says.
        let room = unsafe { room(part.iov_base, part.iov_len) };
        if room.is_empty() {
            continue;
        }
        // Only the first byte is waited for.
        let flags = if total > 0 && flags & MSG_WAITALL == 0 { flags | MSG_DONTWAIT } else { flags };
        let len = room.len();
        match take(stream, link, room, flags) {
            got if got < 0 => return so_far(link, total, got),
            got => {
                total += got;
                if (got as usize) < len || flags & MSG_PEEK != 0 {
                    break;
                }
            }
        }
    }
    total
}

// Writing.

#[inline]
pub fn put(stream: &'static Stream, link: &'static Link, bytes: &[u8], flags: c_int) -> ssize_t {
    let (mut done, mut looked) = (0, false);
    let mut timeout = None;
    loop {
        let (written, bell) = link.write(&bytes[done..]);
        ring(stream, bell);
        match written {
            Written::Bytes(n) => {
                (done, looked) = (done + n, false);
                if done == bytes.len() {
                    return done as ssize_t;
                }
            }
            Written::Gone | Written::Reset | Written::Busy if done > 0 => return done as ssize_t,
            Written::Reset => return told_reset(stream, link),
            // As with a read.
            Written::Busy => return fail(libc::EAGAIN),
            Written::Gone => {
                if flags & MSG_NOSIGNAL == 0 {
                    // SAFETY: as the kernel does for a pipe nobody reads.
                    unsafe { libc::raise(libc::SIGPIPE) };
                }
                return fail(libc::EPIPE);
            }
            Written::Full => {
                if stream.nonblocking.load(Ordering::Relaxed) || flags & MSG_DONTWAIT != 0 {
                    // The other side tells of space from here on.
                    if !std::mem::replace(&mut looked, true) && link.writable() {
                        continue;
                    }
                    return if done > 0 { done as ssize_t } else { fail(libc::EAGAIN) };
                }
                let limit = *timeout.get_or_insert_with(|| timeout_of(stream.fd(), libc::SO_SNDTIMEO));
                match wait_for(stream, POLLOUT, limit) {
                    _ if stream.link().is_none() => return if done > 0 { done as ssize_t } else { fail(libc::EPIPE) },
                    Waited::Ready => {}
                    _ if done > 0 => return done as ssize_t,
                    Waited::TimedOut => return fail(libc::EAGAIN),
                    Waited::Interrupted => return fail(libc::EINTR),
                }
            }
        }
    }
}

/// The program's bytes.
///
/// # Safety
/// Null, or `n` bytes that may be read as long as the slice is used.
pub unsafe fn bytes<'a>(buf: *const c_void, n: size_t) -> &'a [u8] {
    if buf.is_null() || n == 0 {
        return &[];
    }
    // SAFETY: the caller has `n` bytes there that may be read; a slice has at most `isize::MAX`.
    unsafe { std::slice::from_raw_parts(buf.cast(), n.min(isize::MAX as usize)) }
}

/// Writes several parts; the kernel's answer.
///
/// # Safety
/// `parts` has `n` entries, and what each names may be read until this returns.
pub unsafe fn put_parts(
    stream: &'static Stream,
    link: &'static Link,
    parts: *const iovec,
    n: usize,
    flags: c_int,
) -> ssize_t {
    let mut total = 0;
    for i in 0..n {
        // SAFETY: `i` is below `n`, and the caller has `n` parts there.
        let part = unsafe { *parts.add(i) };
        // SAFETY: the caller's buffer, which may be read for as many bytes as it says.
        let bytes = unsafe { bytes(part.iov_base, part.iov_len) };
        if bytes.is_empty() {
            continue;
        }
        match put(stream, link, bytes, flags) {
            sent if sent < 0 => return so_far(link, total, sent),
            sent => {
                total += sent;
                if (sent as usize) < bytes.len() {
                    break;
                }
            }
        }
    }
    total
}

/// The same; many small parts are put together first, since each write into a ring is seen by the other side at once.
///
/// # Safety
/// `parts` has `n` entries, and what each names may be read until this returns.
pub unsafe fn put_all(
    stream: &'static Stream,
    link: &'static Link,
    parts: *const iovec,
    n: usize,
    flags: c_int,
) -> ssize_t {
    // It is on the stack, which in a handler may have no more than 8 KB.
    const SMALL: usize = 2 << 10;
    // SAFETY: the caller has `n` parts there, `n` was checked to be at most IOV_MAX.
    let total: usize = unsafe { std::slice::from_raw_parts(parts, n) }.iter().map(|p| p.iov_len).sum();
    if n == 1 || total > SMALL {
        // SAFETY: the caller's.
        return unsafe { put_parts(stream, link, parts, n, flags) };
    }
    // Not from the heap: a signal handler may write as well.
    let mut whole = [const { MaybeUninit::<u8>::uninit() }; SMALL];
    let mut at = 0;
    for i in 0..n {
        // SAFETY: as above.
        let part = unsafe {
            let p = *parts.add(i);
            bytes(p.iov_base, p.iov_len)
        };
        let len = part.len().min(SMALL - at);
        // SAFETY: `len` bytes of the part, and room for as many behind the first `at`.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), whole.as_mut_ptr().add(at).cast(), len) };
        at += len;
    }
    // SAFETY: the first `at` bytes were written.
    put(stream, link, unsafe { std::slice::from_raw_parts(whole.as_ptr().cast(), at) }, flags)
}

/// The descriptor will be gone: whatever is behind it ends, if it was the last name of it.
pub fn before_close(fd: RawFd) {
    handing::closing(fd);
    let Some(entry) = fds::get(fd) else { return };
    if super::not_our_process() {
        return;
    }
    let _quiet = Quiet::begin();
    match entry {
        Entry::Listener(endpoint) => {
            world::take_home(fd);
            world::close_rendezvous(*endpoint);
        }
        Entry::Set(set) => {
            let other = fds::known(0, fds::MOST).find(|(n, e)| *n != fd && std::ptr::eq(*e, entry));
            match (epoll::numbered(*set).filter(|set| !set.is_forgotten()), other) {
                (Some(set), Some((other, _))) => set.renamed(fd, other),
                (Some(_), None) => epoll::ended(*set),
                (None, _) => {}
            }
        }
        Entry::Stream(stream) => {
            if stream.names.fetch_sub(1, Ordering::AcqRel) > 1 {
                // Another name of it stays.
                fds::put(fd, None);
                if stream.fd() == fd
                    && let Some((other, _)) =
                        fds::known(0, fds::MOST).find(|(_, e)| matches!(e, Entry::Stream(s) if std::ptr::eq(s, stream)))
                {
                    stream.fd.store(other as u32, Ordering::Relaxed);
                }
                return;
            }
            while stream.state() == state::SETTLING {
                world::pause(20_000);
            }
            let how = kernel::close_means(fd);
            match stream.state() {
                state::CANDIDATE => world::no_candidate(stream),
                state::PENDING => world::withdraw(stream, how),
                _ => {}
            }
            epoll::closed(stream);
            if let (Some(link), Some(place)) = (stream.link(), stream.place()) {
                place.enter(); // until its end is rung
                // Before the slot may be another's.
                place.set_stream(link.number, None);
                ring(stream, link.close(how));
                place.leave();
            }
            fds::put(fd, None);
            fds::retire(entry);
            return;
        }
    }
    fds::put(fd, None);
}

/// Another number for what a descriptor is.
pub fn named(old: RawFd, new: RawFd) {
    if new < 0 || old == new {
        return;
    }
    if fds::get(old).is_none() {
        return handing::copied(old, new);
    }
    if super::not_our_process() {
        return handing::copied_in_vfork(old, new);
    }
    match fds::get(old) {
        // Not decided yet: what has two names stays with TCP.
        Some(entry @ Entry::Stream(stream)) if handing::decide(old) => {
            stream.names.fetch_add(1, Ordering::AcqRel);
            handing::hold(new);
            fds::put(new, Some(entry));
        }
        // A listener's second number is the first's business; a set's second number is the same set.
        Some(entry @ Entry::Set(_)) => _ = fds::put(new, Some(entry)),
        _ => {}
    }
}
