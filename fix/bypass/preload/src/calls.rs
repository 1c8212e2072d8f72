//! The calls of the C library that we stand in for. Each finds out whether the descriptor is ours and passes on what is not.

use std::os::fd::RawFd;

use libc::{EPOLLIN, EPOLLOUT, MSG_NOSIGNAL, MSG_OOB, POLLIN, POLLOUT};
use libc::{
    c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sigset_t,
    size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::sync::atomic::Ordering;
use unslow_bypass::endpoint;
use unslow_bypass::sockets::fds::{self, Entry};
use unslow_bypass::sockets::streams::{
    before_close, bytes, carried, fail, named, put, put_all, ring, room, take, take_parts, went_over_tcp,
};
use unslow_bypass::sockets::{epoll, errno, flush, now_ns, poll, set_errno, wanted, world};

use crate::real;

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
        flush();
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
        if went_over_tcp(fd) {
            // SAFETY: the program's; it is carried now.
            return unsafe { write(fd, buf, n) };
        }
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
        flush();
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
        if went_over_tcp(fd) {
            // SAFETY: the program's; it is carried now.
            return unsafe { writev(fd, parts, n) };
        }
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
        flush();
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
        if went_over_tcp(fd) {
            // SAFETY: the program's; it is carried now.
            return unsafe { send(fd, buf, n, flags) };
        }
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
        flush();
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
        if went_over_tcp(fd) {
            // SAFETY: the program's; it is carried now.
            return unsafe { sendto(fd, buf, n, flags, addr, len) };
        }
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
            return unsafe { take_parts(stream, link, header.msg_iov, header.msg_iovlen, flags) };
        }
        flush();
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
            return unsafe { put_all(stream, link, (*header).msg_iov, (*header).msg_iovlen, flags) };
        }
        if went_over_tcp(fd) {
            // SAFETY: the program's; it is carried now.
            return unsafe { sendmsg(fd, header, flags) };
        }
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
        if done == 0 {
            world::listening(fd);
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
        if new >= 0 && fds::get(new).is_some() {
            before_close(new); // it was closed behind our back
        }
        if new >= 0 && matches!(fds::get(fd), Some(Entry::Listener(_))) {
            world::accepted(new, flags & libc::SOCK_NONBLOCK != 0);
        }
        new
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the program's.
        let done = unsafe { real::connect(fd, addr, len) };
        let errno = errno();
        let under_way = done != 0 && errno == libc::EINPROGRESS;
        if !world::settings().client || !(done == 0 || under_way) || addr.is_null() {
            return done;
        }
        // SAFETY: the kernel has just read it.
        let family = c_int::from(unsafe { (*addr).sa_family });
        if matches!(family, libc::AF_INET | libc::AF_INET6) && !fds::is_in_set(fd) && endpoint::is_tcp(fd) {
            // Asked again while the first one was under way; else it was closed behind our back and is another one.
            if fds::stream(fd).is_some_and(|s| world::is_still(s, fd)) {
                set_errno(errno);
                return done;
            }
            before_close(fd);
            // Over loopback the handshake is over before connect says that it has begun.
            world::connected(fd);
        }
        set_errno(errno);
        done
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn close(fd: c_int) -> c_int {
        before_close(fd);
        // SAFETY: the program's.
        unsafe { real::close(fd) }
    }

    /// libuv closes descriptors so.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn syscall(
        number: c_long,
        a: c_long,
        b: c_long,
        c: c_long,
        d: c_long,
        e: c_long,
        f: c_long,
    ) -> c_long {
        match number {
            libc::SYS_close => before_close(a as RawFd),
            // Programs that can do without it do; what goes past the C library could not be followed.
            libc::SYS_io_uring_setup if wanted() => {
                set_errno(libc::ENOSYS);
                return -1;
            }
            _ => {}
        }
        // SAFETY: the program's.
        let result = unsafe { raw_syscall(number, [a, b, c, d, e, f]) };
        if (-4095..0).contains(&result) {
            set_errno(-result as c_int);
            return -1;
        }
        result
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn raw_syscall(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
        let result;
        // SAFETY: the caller's; the kernel keeps all registers but these.
        unsafe {
            std::arch::asm!(
                "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
                in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack)
            );
        }
        result
    }

    #[cfg(target_arch = "aarch64")]
    unsafe fn raw_syscall(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
        let result;
        // SAFETY: the caller's; the kernel keeps all registers but the first.
        unsafe {
            std::arch::asm!(
                "svc 0", inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
                in("x8") number, options(nostack)
            );
        }
        result
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

    /// What was put off to the end of a turn does not wait for a sleep.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
        flush();
        // SAFETY: the program's.
        unsafe { real::nanosleep(time, left) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn clock_nanosleep(
        clock: libc::clockid_t,
        flags: c_int,
        time: *const timespec,
        left: *mut timespec,
    ) -> c_int {
        flush();
        // SAFETY: the program's.
        unsafe { real::clock_nanosleep(clock, flags, time, left) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn usleep(microseconds: c_uint) -> c_int {
        flush();
        // SAFETY: no pointers.
        unsafe { real::usleep(microseconds) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_create(_size: c_int) -> c_int {
        // SAFETY: no pointers.
        unsafe { epoll_create1(0) }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: no pointers.
        let fd = unsafe { real::epoll_create1(flags) };
        if wanted() {
            epoll::created(fd);
        }
        fd
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        match fds::epoll(epfd) {
            // SAFETY: the program's.
            Some(epoll) => unsafe { epoll::ctl(epoll, op, fd, event) },
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
                unsafe { epoll::wait(epoll, events, max, ns, mask) }
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
            Some(epoll) => unsafe { epoll::wait(epoll, events, max, ns, mask) },
            None => {
                let size = size_of::<u64>();
                // SAFETY: the program's.
                unsafe { libc::syscall(libc::SYS_epoll_pwait2, epfd, events, max, timeout, mask, size) as c_int }
            }
        }
    }

    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: the program's.
        if unsafe { !super::poll::concerns(fds, n) } {
            // SAFETY: the program's.
            return unsafe { real::poll(fds, n, timeout) };
        }
        let ns = (timeout >= 0).then_some(timeout as u64 * 1_000_000);
        // SAFETY: the program's.
        unsafe { super::poll::poll(fds, n, ns, std::ptr::null()) }
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
        if unsafe { !super::poll::concerns(fds, n) } {
            // SAFETY: the program's.
            return unsafe { real::ppoll(fds, n, timeout, mask) };
        }
        // SAFETY: the program's.
        unsafe { super::poll::poll(fds, n, ns_of(timeout), mask) }
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
        let begun = now_ns();
        // SAFETY: the program's.
        let done = unsafe { super::poll::select(n, [r, w, e], ns, std::ptr::null()) }.unwrap_or_else(|| {
            let spec = ns.map(|ns| timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ });
            // SAFETY: the program's.
            unsafe { real::pselect(n, r, w, e, spec.as_ref().map_or(std::ptr::null(), |s| s), std::ptr::null()) }
        });
        if let Some(ns) = ns {
            let left = ns.saturating_sub(now_ns() - begun);
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
            poll::select(n, [r, w, e], ns_of(timeout), mask).unwrap_or_else(|| real::pselect(n, r, w, e, timeout, mask))
        }
    }
}
