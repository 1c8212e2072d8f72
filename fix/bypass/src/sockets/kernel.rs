//! The kernel's own calls: in a preloaded program the C library's names are ours.

use std::os::fd::RawFd;

use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t, timespec};

/// Bytes of the kernel's signal set.
const SIGNALS: usize = 8;

/// # Safety
/// As of `epoll_ctl`.
pub unsafe fn epoll_ctl(epfd: RawFd, op: c_int, fd: RawFd, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_epoll_ctl, epfd, op, fd, event) as c_int }
}

/// # Safety
/// As of `epoll_pwait`.
pub unsafe fn epoll_pwait(
    epfd: RawFd,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_epoll_pwait, epfd, events, max, timeout, mask, SIGNALS) as c_int }
}

/// # Safety
/// As of `ppoll`.
pub unsafe fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    // The kernel writes what is left of the time; the C library's `ppoll` does not.
    // SAFETY: the caller's.
    let mut left = (!timeout.is_null()).then(|| unsafe { *timeout });
    let timeout = left.as_mut().map_or(std::ptr::null_mut(), |t| t);
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_ppoll, fds, n, timeout, mask, SIGNALS) as c_int }
}

/// The flags of a descriptor.
pub fn flags(fd: RawFd) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL, 0) as c_int }
}
