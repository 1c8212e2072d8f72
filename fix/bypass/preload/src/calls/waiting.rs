//! Calls that wait for many descriptors.

use libc::{EPOLLIN, EPOLLOUT, POLLIN, POLLOUT};
use libc::{c_int, c_uint, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use unslow_bypass::sockets::{epoll, flush, now_ns, poll as sleeping, wanted};

use crate::real;

const _: () = assert!(EPOLLIN == POLLIN as c_int && EPOLLOUT == POLLOUT as c_int);

/// What was put off to the end of a turn does not wait for a sleep.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    flush();
    // SAFETY: passed on as they came; what `nanosleep` asks of its caller, this call asks of its own.
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
    // SAFETY: passed on as they came; what `clock_nanosleep` asks of its caller, this call asks of its own.
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
    match epoll::of_fd(epfd) {
        // SAFETY: passed on as they came; what `epoll_ctl` asks of its caller, this call asks of its own.
        Some(epoll) => unsafe { epoll::ctl(epoll, op, fd, event) },
        // SAFETY: passed on as they came; what `epoll_ctl` asks of its caller, this call asks of its own.
        None => unsafe { real::epoll_ctl(epfd, op, fd, event) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    // SAFETY: the same arguments, of which that call asks the same.
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
    match epoll::of_fd(epfd) {
        Some(epoll) => {
            let ns = (timeout >= 0).then_some(timeout as u64 * 1_000_000);
            // SAFETY: a valid event, or room for as many as is said, as this call asks of its caller.
            unsafe { epoll::wait(epoll, events, max, ns, mask) }
        }
        // SAFETY: passed on as they came; what `epoll_pwait` asks of its caller, this call asks of its own.
        None => unsafe { real::epoll_pwait(epfd, events, max, timeout, mask) },
    }
}

unsafe fn ns_of(time: *const timespec) -> Option<u64> {
    if time.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller has a readable time there.
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
    // SAFETY: a time or null: this call asks it of its caller.
    let ns = unsafe { ns_of(timeout) };
    match epoll::of_fd(epfd) {
        // SAFETY: a valid event, or room for as many as is said, as this call asks of its caller.
        Some(epoll) => unsafe { epoll::wait(epoll, events, max, ns, mask) },
        None => {
            let size = size_of::<u64>();
            // SAFETY: passed on as they came; what `epoll_pwait2` asks of its caller, this call asks of its own.
            unsafe { libc::syscall(libc::SYS_epoll_pwait2, epfd, events, max, timeout, mask, size) as c_int }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: `fds` has `n` entries, and the mask is valid or null: this call asks it of its caller.
    if unsafe { !sleeping::concerns(fds, n) } {
        // SAFETY: passed on as they came; what `poll` asks of its caller, this call asks of its own.
        return unsafe { real::poll(fds, n, timeout) };
    }
    let ns = (timeout >= 0).then_some(timeout as u64 * 1_000_000);
    // SAFETY: `fds` has `n` entries, and the mask is valid or null: this call asks it of its caller.
    unsafe { sleeping::poll(fds, n, ns, std::ptr::null()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, _room: size_t) -> c_int {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { self::poll(fds, n, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    // SAFETY: `fds` has `n` entries, and the mask is valid or null: this call asks it of its caller.
    if unsafe { !sleeping::concerns(fds, n) } {
        // SAFETY: passed on as they came; what `ppoll` asks of its caller, this call asks of its own.
        return unsafe { real::ppoll(fds, n, timeout, mask) };
    }
    // SAFETY: `fds` has `n` entries, and the mask is valid or null: this call asks it of its caller.
    unsafe { sleeping::poll(fds, n, ns_of(timeout), mask) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _room: size_t,
) -> c_int {
    // SAFETY: the same arguments, of which that call asks the same.
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
    // SAFETY: not null, and this call asks for a readable time there.
    let time = (!timeout.is_null()).then(|| unsafe { *timeout });
    let ns = time.map(|t| t.tv_sec.max(0) as u64 * 1_000_000_000 + t.tv_usec.max(0) as u64 * 1000);
    let begun = now_ns();
    // SAFETY: every set is null or valid: this call asks it of its caller.
    let done = unsafe { sleeping::select(n, [r, w, e], ns, std::ptr::null()) }.unwrap_or_else(|| {
        let spec = ns.map(|ns| timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ });
        // SAFETY: passed on as they came; what `pselect` asks of its caller, this call asks of its own.
        unsafe { real::pselect(n, r, w, e, spec.as_ref().map_or(std::ptr::null(), |s| s), std::ptr::null()) }
    });
    if let Some(ns) = ns {
        let left = ns.saturating_sub(now_ns() - begun);
        // SAFETY: not null, and this call asks for a writable time there; Linux writes what is left of it.
        unsafe { *timeout = timeval { tv_sec: (left / 1_000_000_000) as _, tv_usec: (left / 1000 % 1_000_000) as _ } };
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
    // SAFETY: every set, time and mask is null or valid, which this call asks of its caller as `pselect` does.
    unsafe {
        sleeping::select(n, [r, w, e], ns_of(timeout), mask).unwrap_or_else(|| real::pselect(n, r, w, e, timeout, mask))
    }
}
