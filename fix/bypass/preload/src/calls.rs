//! The calls of the C library that we stand in for. Each finds out whether the descriptor is ours and passes on what is not.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use libc::{EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_OOB, MSG_PEEK, MSG_WAITALL, POLLIN, POLLOUT};
use libc::{
    c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sigset_t,
    size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use unslow_bypass::link::{Bell, Link, Read, Written};

use crate::fds::{self, Entry, Stream, state};
use crate::poll::{Waited, wait_for};
use crate::{epoll, poll, real, set_errno, world};

fn fail(errno: c_int) -> ssize_t {
    set_errno(errno);
    -1
}

/// Rings now, or at the end of this turn of the program's loop.
#[inline]
fn ring(stream: &'static Stream, bell: Bell) {
    if let (Some(waiter), Some(place)) = (bell, stream.place()) {
        crate::ring(stream, place, waiter);
    }
}

/// What the kernel says of the TCP connection beside one of ours.
pub fn look_at_tcp(stream: &'static Stream) {
    let Some(link) = stream.link() else { return };
    let mut byte = 0u8;
    let flags = MSG_PEEK | MSG_DONTWAIT;
    let null = std::ptr::null_mut::<u8>();
    // SAFETY: room for one byte, no address asked for.
    let n = unsafe { libc::syscall(libc::SYS_recvfrom, stream.fd(), &raw mut byte, 1, flags, null, null) };
    match n {
        0 => link.tcp_ended(false),
        n if n < 0 && !matches!(crate::errno(), libc::EAGAIN | libc::EINTR) => link.tcp_ended(true),
        _ => {}
    }
}

/// A stream whose bytes are ours to carry, once that is decided; `None` when they are the kernel's.
#[inline]
fn carried(fd: RawFd) -> Option<(&'static Stream, &'static Link)> {
    let stream = fds::stream(fd)?;
    if let Some(link) = stream.link() {
        return Some((stream, link));
    }
    settle(stream)
}

#[cold]
fn settle(stream: &'static Stream) -> Option<(&'static Stream, &'static Link)> {
    while !world::resolve(stream, false) {
        let pause = timespec { tv_sec: 0, tv_nsec: 20_000 };
        // SAFETY: a live timespec.
        unsafe { libc::syscall(libc::SYS_nanosleep, &raw const pause, 0) };
    }
    Some((stream, stream.link()?))
}

/// The kernel carried bytes of a connection that might have been offered: it stays there.
fn went_over_tcp(fd: RawFd) {
    if let Some(Entry::Stream(stream)) = fds::get(fd)
        && stream.state.load(Ordering::Acquire) == state::CANDIDATE
    {
        let saved = crate::errno();
        stay(stream);
        set_errno(saved);
    }
}

fn stay(stream: &'static Stream) {
    stream.fixed.store(true, Ordering::Release);
    world::no_candidate(stream);
    // Taken in the meantime: then it is too late to stay.
    if stream.state.load(Ordering::Acquire) == state::CANDIDATE {
        fds::put(stream.fd(), None);
        if let Some(entry) = world::entry_of(stream) {
            fds::retire(entry);
        }
    }
}

fn timeout_of(fd: RawFd, which: c_int) -> Option<u64> {
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
fn take(stream: &'static Stream, link: &'static Link, room: &mut [u8], flags: c_int) -> ssize_t {
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
            Read::Reset if done > 0 => return done as ssize_t,
            Read::Reset => return fail(libc::ECONNRESET),
            Read::Empty => {
                if stream.nonblocking.load(Ordering::Relaxed) || flags & MSG_DONTWAIT != 0 {
                    return if done > 0 { done as ssize_t } else { fail(libc::EAGAIN) };
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

// SAFETY of the callers: the program's buffer of `n` bytes.
#[inline]
unsafe fn room<'a>(buf: *mut c_void, n: size_t) -> &'a mut [u8] {
    if buf.is_null() || n == 0 {
        return &mut [];
    }
    // SAFETY: see above; more than isize::MAX is never there.
    unsafe { std::slice::from_raw_parts_mut(buf.cast(), n.min(isize::MAX as usize)) }
}

unsafe fn take_parts(
    stream: &'static Stream,
    link: &'static Link,
    parts: *const iovec,
    n: usize,
    flags: c_int,
) -> ssize_t {
    let mut total = 0;
    for i in 0..n {
        // SAFETY: the program's array of `n` parts.
        let part = unsafe { *parts.add(i) };
        // SAFETY: the program's buffer.
        let room = unsafe { room(part.iov_base, part.iov_len) };
        if room.is_empty() {
            continue;
        }
        // Only the first byte is waited for.
        let flags = if total > 0 && flags & MSG_WAITALL == 0 { flags | MSG_DONTWAIT } else { flags };
        let len = room.len();
        match take(stream, link, room, flags) {
            got if got < 0 => return if total > 0 { total } else { got },
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
fn put(stream: &'static Stream, link: &'static Link, bytes: &[u8], flags: c_int) -> ssize_t {
    let mut done = 0;
    let mut timeout = None;
    loop {
        let (written, bell) = link.write(&bytes[done..]);
        ring(stream, bell);
        match written {
            Written::Bytes(n) => {
                done += n;
                if done == bytes.len() {
                    return done as ssize_t;
                }
            }
            Written::Gone if done > 0 => return done as ssize_t,
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
                    if link.writable() {
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

unsafe fn bytes<'a>(buf: *const c_void, n: size_t) -> &'a [u8] {
    if buf.is_null() || n == 0 {
        return &[];
    }
    // SAFETY: the program's buffer of `n` bytes.
    unsafe { std::slice::from_raw_parts(buf.cast(), n.min(isize::MAX as usize)) }
}

unsafe fn put_parts(
    stream: &'static Stream,
    link: &'static Link,
    parts: *const iovec,
    n: usize,
    flags: c_int,
) -> ssize_t {
    let mut total = 0;
    for i in 0..n {
        // SAFETY: the program's array of `n` parts.
        let part = unsafe { *parts.add(i) };
        // SAFETY: the program's buffer.
        let bytes = unsafe { bytes(part.iov_base, part.iov_len) };
        if bytes.is_empty() {
            continue;
        }
        match put(stream, link, bytes, flags) {
            sent if sent < 0 => return if total > 0 { total } else { sent },
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

/// Many small parts are put together first: each write into a ring is seen by the other side at once.
unsafe fn put_all(
    stream: &'static Stream,
    link: &'static Link,
    parts: *const iovec,
    n: usize,
    flags: c_int,
) -> ssize_t {
    const SMALL: usize = 16 << 10;
    // SAFETY: the program's array of `n` parts.
    let total: usize = unsafe { std::slice::from_raw_parts(parts, n) }.iter().map(|p| p.iov_len).sum();
    if n == 1 || total > SMALL {
        // SAFETY: the caller's.
        return unsafe { put_parts(stream, link, parts, n, flags) };
    }
    let mut whole = Vec::with_capacity(total);
    for i in 0..n {
        // SAFETY: as above.
        whole.extend_from_slice(unsafe {
            let p = *parts.add(i);
            bytes(p.iov_base, p.iov_len)
        });
    }
    put(stream, link, &whole, flags)
}

/// Calls that carry bytes.
#[allow(clippy::missing_safety_doc)]
mod data {
    use super::*;

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        if let Some((stream, link)) = carried(fd) {
            // SAFETY: the program's.
            return take(stream, link, unsafe { room(buf, n) }, 0);
        }
        // SAFETY: the program's.
        let got = unsafe { real::read(fd, buf, n) };
        if got > 0 {
            went_over_tcp(fd);
        }
        got
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, _room: size_t) -> ssize_t {
        // SAFETY: the program's.
        unsafe { read(fd, buf, n) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
        if let Some((stream, link)) = carried(fd) {
            // SAFETY: the program's.
            return put(stream, link, unsafe { bytes(buf, n) }, 0);
        }
        went_over_tcp(fd);
        // SAFETY: the program's.
        unsafe { real::write(fd, buf, n) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
        if let Some((stream, link)) = carried(fd) {
            if n < 0 {
                return fail(libc::EINVAL);
            }
            // SAFETY: the program's.
            return unsafe { take_parts(stream, link, parts, n as usize, 0) };
        }
        // SAFETY: the program's.
        let got = unsafe { real::readv(fd, parts, n) };
        if got > 0 {
            went_over_tcp(fd);
        }
        got
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
        if let Some((stream, link)) = carried(fd) {
            if n < 0 {
                return fail(libc::EINVAL);
            }
            // SAFETY: the program's.
            return unsafe { put_all(stream, link, parts, n as usize, 0) };
        }
        went_over_tcp(fd);
        // SAFETY: the program's.
        unsafe { real::writev(fd, parts, n) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
        if let Some((stream, link)) = carried(fd)
            && flags & MSG_OOB == 0
        {
            // SAFETY: the program's.
            return take(stream, link, unsafe { room(buf, n) }, flags);
        }
        // SAFETY: the program's.
        let got = unsafe { real::recv(fd, buf, n, flags) };
        if got > 0 {
            went_over_tcp(fd);
        }
        got
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, _r: size_t, flags: c_int) -> ssize_t {
        // SAFETY: the program's.
        unsafe { recv(fd, buf, n, flags) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
        if let Some((stream, link)) = carried(fd)
            && flags & MSG_OOB == 0
        {
            // SAFETY: the program's.
            return put(stream, link, unsafe { bytes(buf, n) }, flags);
        }
        went_over_tcp(fd);
        // SAFETY: the program's.
        unsafe { real::send(fd, buf, n, flags) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn recvfrom(
        fd: c_int,
        buf: *mut c_void,
        n: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        len: *mut socklen_t,
    ) -> ssize_t {
        if let Some((stream, link)) = carried(fd)
            && flags & MSG_OOB == 0
        {
            if !len.is_null() {
                // SAFETY: the program's; a stream names nobody.
                unsafe { *len = 0 };
            }
            // SAFETY: the program's.
            return take(stream, link, unsafe { room(buf, n) }, flags);
        }
        // SAFETY: the program's.
        let got = unsafe { real::recvfrom(fd, buf, n, flags, addr, len) };
        if got > 0 {
            went_over_tcp(fd);
        }
        got
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn __recvfrom_chk(
        fd: c_int,
        buf: *mut c_void,
        n: size_t,
        _room: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        len: *mut socklen_t,
    ) -> ssize_t {
        // SAFETY: the program's.
        unsafe { recvfrom(fd, buf, n, flags, addr, len) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn sendto(
        fd: c_int,
        buf: *const c_void,
        n: size_t,
        flags: c_int,
        addr: *const sockaddr,
        len: socklen_t,
    ) -> ssize_t {
        if let Some((stream, link)) = carried(fd)
            && flags & MSG_OOB == 0
        {
            // SAFETY: the program's.
            return put(stream, link, unsafe { bytes(buf, n) }, flags);
        }
        went_over_tcp(fd);
        // SAFETY: the program's.
        unsafe { real::sendto(fd, buf, n, flags, addr, len) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn recvmsg(fd: c_int, header: *mut msghdr, flags: c_int) -> ssize_t {
        if let Some((stream, link)) = carried(fd)
            && flags & MSG_OOB == 0
            && !header.is_null()
        {
            // SAFETY: the program's header.
            let header = unsafe { &mut *header };
            (header.msg_flags, header.msg_namelen, header.msg_controllen) = (0, 0, 0);
            // SAFETY: the program's parts.
            return unsafe { take_parts(stream, link, header.msg_iov, header.msg_iovlen as usize, flags) };
        }
        // SAFETY: the program's.
        let got = unsafe { real::recvmsg(fd, header, flags) };
        if got > 0 {
            went_over_tcp(fd);
        }
        got
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn sendmsg(fd: c_int, header: *const msghdr, flags: c_int) -> ssize_t {
        if let Some((stream, link)) = carried(fd)
            && flags & MSG_OOB == 0
            && !header.is_null()
        {
            // SAFETY: the program's header and parts.
            return unsafe { put_all(stream, link, (*header).msg_iov, (*header).msg_iovlen as usize, flags) };
        }
        went_over_tcp(fd);
        // SAFETY: the program's.
        unsafe { real::sendmsg(fd, header, flags) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn sendfile(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        let Some((stream, link)) = carried(out) else {
            went_over_tcp(out);
            // SAFETY: the program's.
            return unsafe { real::sendfile(out, from, offset, n) };
        };
        let mut part = [0u8; 64 << 10];
        let mut done = 0;
        while done < n {
            let want = part.len().min(n - done);
            let got = if offset.is_null() {
                // SAFETY: room for `want` bytes. What does not fit below is given back with lseek.
                unsafe { real::read(from, part.as_mut_ptr().cast(), want) }
            } else {
                // SAFETY: room for `want` bytes, and the program's offset.
                unsafe { libc::pread(from, part.as_mut_ptr().cast(), want, *offset) }
            };
            if got <= 0 {
                return if done > 0 { done as ssize_t } else { got };
            }
            let put = super::put(stream, link, &part[..got as usize], MSG_NOSIGNAL);
            let sent = put.max(0);
            if offset.is_null() {
                // SAFETY: no pointers.
                unsafe { libc::lseek(from, (sent - got) as off_t, libc::SEEK_CUR) };
            } else {
                // SAFETY: the program's offset.
                unsafe { *offset += sent as off_t };
            }
            done += sent as usize;
            if put < got {
                return if done > 0 { done as ssize_t } else { put };
            }
        }
        done as ssize_t
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        // SAFETY: the program's.
        unsafe { sendfile(out, from, offset, n) }
    }
}

/// Calls that make, change and end descriptors.
#[allow(clippy::missing_safety_doc)]
mod lifecycle {
    use super::*;

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
        // SAFETY: the program's.
        let done = unsafe { real::listen(fd, backlog) };
        if done == 0
            && world::settings().server
            && fds::get(fd).is_none()
            && let Some(port) = world::listening_port(fd)
        {
            fds::put(fd, Some(Box::leak(Box::new(Entry::Listener(port)))));
        }
        done
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the program's.
        unsafe { accept4(fd, addr, len, 0) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: the program's.
        let new = unsafe { real::accept4(fd, addr, len, flags) };
        if new >= 0 && matches!(fds::get(fd), Some(Entry::Listener(_))) {
            world::accepted(new, flags & libc::SOCK_NONBLOCK != 0);
        }
        new
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the program's.
        let done = unsafe { real::connect(fd, addr, len) };
        let errno = crate::errno();
        let under_way = done != 0 && errno == libc::EINPROGRESS;
        if !world::settings().client || !(done == 0 || under_way) || addr.is_null() {
            return done;
        }
        // SAFETY: the kernel has just read it.
        let family = c_int::from(unsafe { (*addr).sa_family });
        if matches!(family, libc::AF_INET | libc::AF_INET6) && fds::get(fd).is_none() && is_tcp(fd) {
            // Over loopback the handshake is over before connect says that it has begun.
            world::connected(fd);
        }
        set_errno(errno);
        done
    }

    fn is_tcp(fd: RawFd) -> bool {
        let (mut kind, mut len) = (0 as c_int, size_of::<c_int>() as socklen_t);
        let (kind_at, len_at) = (&raw mut kind, &raw mut len);
        // SAFETY: room for the answer and its length.
        let done = unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_TYPE, kind_at, len_at) };
        done == 0 && kind == libc::SOCK_STREAM
    }

    /// The descriptor will be gone: whatever is behind it ends, if it was the last name of it.
    pub fn before_close(fd: RawFd) {
        let Some(entry) = fds::get(fd) else { return };
        if crate::not_our_process() {
            return;
        }
        match entry {
            Entry::Listener(port) => world::close_rendezvous(*port),
            Entry::Epoll(_) => {}
            Entry::Stream(stream) => {
                if stream.names.fetch_sub(1, Ordering::AcqRel) > 1 {
                    // Another name of it stays.
                    fds::put(fd, None);
                    if stream.fd() == fd
                        && let Some((other, _)) = fds::known(0, fds::MOST)
                            .find(|(_, e)| matches!(e, Entry::Stream(s) if std::ptr::eq(s, stream)))
                    {
                        stream.fd.store(other as u32, Ordering::Relaxed);
                    }
                    return;
                }
                match stream.state.load(Ordering::Acquire) {
                    state::CANDIDATE => world::no_candidate(stream),
                    state::PENDING => world::withdraw(stream),
                    _ => {}
                }
                epoll::closed(stream);
                if let Some(link) = stream.link() {
                    ring(stream, link.close());
                    if let Some(place) = stream.place() {
                        place.set_stream(link.number, None);
                    }
                }
                fds::put(fd, None);
                fds::retire(entry);
                return;
            }
        }
        fds::put(fd, None);
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn close(fd: c_int) -> c_int {
        before_close(fd);
        // SAFETY: the program's.
        unsafe { real::close(fd) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        const CLOEXEC: c_int = 4;
        if flags & CLOEXEC == 0 {
            for (fd, _) in fds::known(first as usize, (last as usize).saturating_add(1)) {
                before_close(fd);
            }
        }
        // SAFETY: the program's.
        unsafe { real::close_range(first, last, flags) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn closefrom(first: c_int) {
        // SAFETY: no pointers.
        unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
        if let Some((stream, link)) = carried(fd) {
            if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
                link.shut_read();
            }
            if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
                ring(stream, link.shut_write());
            }
            epoll::look_again(stream);
        }
        // SAFETY: the program's.
        unsafe { real::shutdown(fd, how) }
    }

    /// Another number for what a descriptor is.
    fn named(old: RawFd, new: RawFd) {
        if new < 0 || old == new {
            return;
        }
        match fds::get(old) {
            Some(entry @ Entry::Stream(stream)) => match stream.state.load(Ordering::Acquire) {
                state::LINKED => {
                    stream.names.fetch_add(1, Ordering::AcqRel);
                    fds::put(new, Some(entry));
                }
                // Not decided yet: what has two names stays with TCP.
                state::CANDIDATE => stay(stream),
                _ => _ = world::resolve(stream, true),
            },
            // A listener's second number is the first's business; a set's second number is the same set.
            Some(entry @ Entry::Epoll(_)) => _ = fds::put(new, Some(entry)),
            _ => {}
        }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
        // SAFETY: no pointers.
        let new = unsafe { real::dup(fd) };
        named(fd, new);
        new
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
        if old != new {
            before_close(new);
        }
        // SAFETY: no pointers.
        let done = unsafe { real::dup2(old, new) };
        named(old, done);
        done
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if old != new {
            before_close(new);
        }
        // SAFETY: no pointers.
        let done = unsafe { real::dup3(old, new, flags) };
        named(old, done);
        done
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int {
        // SAFETY: the program's; the kernel reads the argument as the command says.
        let done = unsafe { real::fcntl(fd, command, arg) };
        if done >= 0 {
            match command {
                libc::F_SETFL => {
                    if let Some(stream) = fds::stream(fd) {
                        stream.nonblocking.store(arg as c_int & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                    }
                }
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => named(fd, done),
                _ => {}
            }
        }
        done
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, arg: c_long) -> c_int {
        // SAFETY: the program's.
        unsafe { fcntl(fd, command, arg) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        if request == libc::FIONREAD as c_ulong
            && !arg.is_null()
            && let Some((_, link)) = carried(fd)
        {
            // SAFETY: FIONREAD's argument is an int.
            unsafe { *arg.cast::<c_int>() = link.waiting().min(c_int::MAX as u64) as c_int };
            return 0;
        }
        // SAFETY: the program's.
        let done = unsafe { real::ioctl(fd, request, arg) };
        if done == 0
            && request == libc::FIONBIO as c_ulong
            && !arg.is_null()
            && let Some(stream) = fds::stream(fd)
        {
            // SAFETY: FIONBIO's argument is an int.
            stream.nonblocking.store(unsafe { *arg.cast::<c_int>() } != 0, Ordering::Relaxed);
        }
        done
    }
}

/// Calls that wait for many descriptors.
#[allow(clippy::missing_safety_doc)]
mod waiting {
    use super::*;

    const _: () = assert!(EPOLLIN == POLLIN as c_int && EPOLLOUT == POLLOUT as c_int);

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_create(_size: c_int) -> c_int {
        // SAFETY: no pointers.
        unsafe { epoll_create1(0) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: no pointers.
        let fd = unsafe { real::epoll_create1(flags) };
        if crate::wanted() {
            epoll::created(fd);
        }
        fd
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        match fds::epoll(epfd) {
            // SAFETY: the program's.
            Some(epoll) => unsafe { crate::epoll::ctl(epoll, op, fd, event) },
            // SAFETY: the program's.
            None => unsafe { real::epoll_ctl(epfd, op, fd, event) },
        }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        // SAFETY: the program's.
        unsafe { epoll_pwait(epfd, events, max, timeout, std::ptr::null()) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_pwait(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        match fds::epoll(epfd) {
            Some(epoll) => {
                let ns = (timeout >= 0).then_some(timeout as u64 * 1_000_000);
                // SAFETY: the program's.
                unsafe { crate::epoll::wait(epoll, events, max, ns, mask) }
            }
            // SAFETY: the program's.
            None => unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) },
        }
    }

    unsafe fn ns_of(time: *const timespec) -> Option<u64> {
        if time.is_null() {
            return None;
        }
        // SAFETY: the program's.
        let time = unsafe { *time };
        Some((time.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.max(0) as u64))
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_pwait2(
        epfd: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the program's.
        let ns = unsafe { ns_of(timeout) };
        match fds::epoll(epfd) {
            // SAFETY: the program's.
            Some(epoll) => unsafe { crate::epoll::wait(epoll, events, max, ns, mask) },
            None => {
                let size = size_of::<u64>();
                // SAFETY: the program's.
                unsafe { libc::syscall(libc::SYS_epoll_pwait2, epfd, events, max, timeout, mask, size) as c_int }
            }
        }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        let ns = (timeout >= 0).then_some(timeout as u64 * 1_000_000);
        // SAFETY: the program's.
        unsafe { crate::poll::poll(fds, n, ns, std::ptr::null()) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, _room: size_t) -> c_int {
        // SAFETY: the program's.
        unsafe { self::poll(fds, n, timeout) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn ppoll(
        fds: *mut pollfd,
        n: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the program's.
        unsafe { crate::poll::poll(fds, n, ns_of(timeout), mask) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn __ppoll_chk(
        fds: *mut pollfd,
        n: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        _room: size_t,
    ) -> c_int {
        // SAFETY: the program's.
        unsafe { self::ppoll(fds, n, timeout, mask) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn select(
        n: c_int,
        r: *mut fd_set,
        w: *mut fd_set,
        e: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        // SAFETY: the program's.
        let time = (!timeout.is_null()).then(|| unsafe { *timeout });
        let ns = time.map(|t| t.tv_sec.max(0) as u64 * 1_000_000_000 + t.tv_usec.max(0) as u64 * 1000);
        let begun = crate::now_ns();
        // SAFETY: the program's.
        let done = unsafe { super::poll::select(n, [r, w, e], ns, std::ptr::null()) }.unwrap_or_else(|| {
            let spec = ns.map(|ns| timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ });
            // SAFETY: the program's.
            unsafe { real::pselect(n, r, w, e, spec.as_ref().map_or(std::ptr::null(), |s| s), std::ptr::null()) }
        });
        if let Some(ns) = ns {
            let left = ns.saturating_sub(crate::now_ns() - begun);
            // SAFETY: the program's; Linux writes what is left of the time.
            unsafe {
                *timeout = timeval { tv_sec: (left / 1_000_000_000) as _, tv_usec: (left / 1000 % 1_000_000) as _ }
            };
        }
        done
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn pselect(
        n: c_int,
        r: *mut fd_set,
        w: *mut fd_set,
        e: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        // SAFETY: the program's.
        unsafe {
            super::poll::select(n, [r, w, e], ns_of(timeout), mask)
                .unwrap_or_else(|| real::pselect(n, r, w, e, timeout, mask))
        }
    }
}
