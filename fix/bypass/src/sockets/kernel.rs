//! The kernel's own calls: in a preloaded program the C library's names are ours.

use std::os::fd::RawFd;

use libc::{c_int, epoll_event, nfds_t, pollfd, sigset_t, timespec};

use crate::endpoint::read_option;
use crate::pair::Close;

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
    let call = || unsafe { libc::syscall(libc::SYS_epoll_pwait, epfd, events, max, timeout, mask, SIGNALS) as c_int };
    if timeout == 0 { call() } else { cancellable(call) }
}

/// # Safety
/// As of `ppoll`.
pub unsafe fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
    // The kernel writes what is left of the time; the C library's `ppoll` does not.
    // SAFETY: the caller's.
    let mut left = (!timeout.is_null()).then(|| unsafe { *timeout });
    let sleeps = left.is_none_or(|t| t.tv_sec != 0 || t.tv_nsec != 0);
    let timeout = left.as_mut().map_or(std::ptr::null_mut(), |t| t);
    // SAFETY: the caller's.
    let call = || unsafe { libc::syscall(libc::SYS_ppoll, fds, n, timeout, mask, SIGNALS) as c_int };
    if sleeps { cancellable(call) } else { call() }
}

/// A call that sleeps: a thread that is cancelled (pthread_cancel) in it ends there, as in the C library's own, which
/// let the kernel's signal end it in the same way. Nothing may be held that the end of the thread does not let go of.
fn cancellable(call: impl FnOnce() -> c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    }
    /// Of glibc and musl.
    const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
    let (mut before, mut ours) = (0, 0);
    // SAFETY: room for the answer. It leaves `errno` as it is.
    unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &mut before) };
    let done = call();
    // SAFETY: as above, and what was set before.
    unsafe { pthread_setcanceltype(before, &mut ours) };
    done
}

/// Closes a number, past our own hooks (which know `SYS_close`): for what the hooks must not take for the connection
/// that it was.
pub fn close(fd: RawFd) {
    // SAFETY: no pointers.
    unsafe {
        if libc::syscall(libc::SYS_close_range, fd, fd, 0) < 0 {
            // Where a sandbox does not know that call.
            libc::syscall(libc::SYS_close, fd);
        }
    }
}

/// How the other end of a TCP connection has ended, if it has. An error stays where it is, for the program's SO_ERROR.
pub fn tcp_end(fd: RawFd) -> Option<Close> {
    /// The states behind the other side's FIN: TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING.
    const ENDED: [u8; 5] = [6, 7, 8, 9, 11];
    let mut socket = pollfd { fd, events: 0, revents: 0 };
    // SAFETY: a live array of one; it does not sleep.
    if unsafe { ppoll(&mut socket, 1, &timespec { tv_sec: 0, tv_nsec: 0 }, std::ptr::null()) } < 0 {
        return None;
    }
    if socket.revents & (libc::POLLERR | libc::POLLNVAL) != 0 {
        return Some(Close::Abort);
    }
    // Not by POLLRDHUP, which a shutdown of our own raises as well.
    let (mut state, mut len) = (0u8, 1 as libc::socklen_t);
    let (at, len_at) = (&raw mut state, &raw mut len);
    // SAFETY: room for one byte, the first of `tcp_info`, which is the state.
    let known = unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::IPPROTO_TCP, libc::TCP_INFO, at, len_at) } == 0;
    (known && ENDED.contains(&state)).then_some(Close::Clean)
}

/// Takes a socket's error from it, as reporting it to the program does.
pub fn take_error(fd: RawFd) {
    let mut error: c_int = 0;
    // SAFETY: the four bytes of a number.
    let _ = unsafe { read_option(fd, libc::SO_ERROR, (&raw mut error).cast(), size_of::<c_int>()) };
}

/// Whether a close waits for what is not sent yet, by SO_LINGER with a time.
#[cfg(feature = "reactor")]
pub fn lingers(fd: RawFd) -> Option<bool> {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    // SAFETY: the bytes of a `linger`, two numbers.
    unsafe { read_option(fd, libc::SO_LINGER, (&raw mut linger).cast(), size_of::<libc::linger>()) }.ok()?;
    Some(linger.l_onoff != 0 && linger.l_linger > 0)
}

/// What a close of a TCP socket says to its other end, by the socket's options: with SO_LINGER of no time it is a
/// reset.
pub fn close_means(fd: RawFd) -> Close {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    // SAFETY: the bytes of a `linger`, two numbers.
    let known = unsafe { read_option(fd, libc::SO_LINGER, (&raw mut linger).cast(), size_of::<libc::linger>()) };
    if known.is_ok() && linger.l_onoff != 0 && linger.l_linger == 0 { Close::Abort } else { Close::Clean }
}

/// The flags of a descriptor.
pub fn flags(fd: RawFd) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL, 0) as c_int }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_end_of_a_connection_is_seen_and_its_error_left_to_the_program() {
        let (client, server) = connection();
        assert_eq!(tcp_end(server.as_raw_fd()), None);
        server.shutdown(Shutdown::Read).unwrap();
        assert_eq!(tcp_end(server.as_raw_fd()), None, "what we have shut ourselves is no end");
        assert_eq!(close_means(client.as_raw_fd()), Close::Clean);
        drop(client);
        assert_eq!(tcp_end(server.as_raw_fd()), Some(Close::Clean));

        let (client, server) = connection();
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
        // SAFETY: a live `linger` of `len` bytes.
        let set = unsafe { libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
        assert_eq!(set, 0);
        assert_eq!(close_means(client.as_raw_fd()), Close::Abort);
        drop(client);
        assert_eq!(tcp_end(server.as_raw_fd()), Some(Close::Abort));
        assert_eq!(tcp_end(server.as_raw_fd()), Some(Close::Abort), "it was only looked at");
        take_error(server.as_raw_fd());
        assert!(server.take_error().unwrap().is_none());
    }
}
