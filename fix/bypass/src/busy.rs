//! The kernel's busy polling: an epoll set whose waiter looks into the network card's queue by itself before it sleeps,
//! so that a packet costs no interrupt.
//!
//! It is the set that polls (EPIOCSPARAMS, Linux 6.9), and the queue it polls is that of its sockets' last packets. An
//! interface without queues of its own (loopback, TUN, veth without GRO) has nothing to poll: its sockets have no NAPI
//! id, the set never spins, and nothing is gained or lost.

use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::{io, mem};

use libc::{c_int, c_ulong};

/// `struct epoll_params` of linux/eventpoll.h.
#[repr(C)]
struct Params {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    zero: u8,
}

/// `_IOW(0x8a, 1, struct epoll_params)`.
const EPIOCSPARAMS: c_ulong = 0x4008_8a01;
/// Packets of one look; more take a right (CAP_NET_ADMIN).
const BUDGET: u16 = 64;

/// Of asm-generic/socket.h.
const SO_INCOMING_NAPI_ID: c_int = 56;

/// Names the time that an epoll set of a program under the bypass polls, in us.
pub const VARIABLE: &str = "UNSLOW_BYPASS_BUSY_POLL_US";

/// What the environment says; `None` where nothing is to poll.
pub fn wanted_us() -> Option<NonZeroU32> {
    static WANTED: OnceLock<Option<NonZeroU32>> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var(VARIABLE).ok()?.parse().ok())
}

/// A new set polls, if that is wanted. Who wanted it has been told if this kernel cannot.
pub fn polls(set: RawFd) {
    if let Some(us) = wanted_us() {
        let _ = poll(set, us);
    }
}

/// From now on who waits at this epoll set polls for so long before sleeping.
///
/// # Errors
///
/// The kernel's; one before Linux 6.9 does not know how.
pub fn poll(set: RawFd, us: NonZeroU32) -> io::Result<()> {
    let params = Params { busy_poll_usecs: us.get(), busy_poll_budget: BUDGET, prefer_busy_poll: 1, zero: 0 };
    // SAFETY: a live struct of the size that the request's number names.
    match unsafe { libc::ioctl(set, EPIOCSPARAMS, &params) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this kernel can.
///
/// # Errors
///
/// Why not.
pub fn can_poll(us: NonZeroU32) -> io::Result<()> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: no pointers.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nothing else.
    let set = unsafe { OwnedFd::from_raw_fd(fd) };
    poll(set.as_raw_fd(), us)
}

/// The queue that the last packet of this socket came by; `None` where its interface has none.
pub fn napi(socket: RawFd) -> Option<NonZeroU32> {
    let mut id = 0u32;
    let mut size = mem::size_of::<u32>() as libc::socklen_t;
    // SAFETY: room for one u32, as `size` says.
    let got =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, SO_INCOMING_NAPI_ID, (&raw mut id).cast(), &raw mut size) };
    NonZeroU32::new(id).filter(|_| got as c_int == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_queue_to_poll() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert_eq!((napi(server.as_raw_fd()), napi(client.as_raw_fd())), (None, None));
        assert_eq!(napi(-1), None, "no socket");
    }

    #[test]
    fn a_kernel_that_cannot_poll_says_so() {
        let us = NonZeroU32::new(50).unwrap();
        if let Err(why) = can_poll(us) {
            let unknown = [libc::ENOTTY, libc::EINVAL, libc::EOPNOTSUPP];
            assert!(why.raw_os_error().is_some_and(|e| unknown.contains(&e)), "{why}");
        }
        assert!(poll(-1, us).is_err());
    }
}
