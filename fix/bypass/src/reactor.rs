//! The loop of our own programs over shared memory, without a preload: `unslow gateway --target shm:PORT`,
//! `unslow bench`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use unslow_reactor::{Carrier, Change};

use crate::channel;
use crate::endpoint::{self, Endpoint};
use crate::sockets::{self, epoll, errno, streams, world};

/// For [`unslow_reactor::Reactor::carried_by`].
pub struct Rings;

/// Begins in this process, as a client of servers that run with `unslow bypass`; UNSLOW_BYPASS_ALLOW says of which
/// users, UNSLOW_BYPASS_WAIT_MS how long a new connection waits for them. What cannot be read steps aside for TCP.
pub fn rings() -> &'static Rings {
    match world::Settings::from_environment(false, true) {
        Ok(settings) => sockets::begin(settings, false),
        Err(why) => sockets::step_aside(&why),
    }
    &Rings
}

/// What `shm:PORT`, `shm:HOST:PORT` and `shm:user@HOST:PORT/DB` mean as a URL; `None` for what is none of them. The TCP
/// connection beside each of ours goes there.
pub fn url(target: &str) -> Option<String> {
    let rest = target.strip_prefix("shm:")?.trim_start_matches('/');
    let port = !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    Some(if port { format!("redis://127.0.0.1:{rest}") } else { format!("redis://{rest}") })
}

/// Whether a server that runs with `unslow bypass` can be met at a port of this network namespace.
pub fn is_served(port: u16) -> bool {
    let Some(netns) = endpoint::own_netns() else { return false };
    let here = Endpoint { port, netns };
    channel::directories().iter().any(|d| channel::servers_in(d).iter().any(|server| server.endpoint == here))
}

fn result(n: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(errno()))
}

impl Carrier for Rings {
    fn made(&self, set: BorrowedFd<'_>) {
        epoll::created(set.as_raw_fd());
    }

    fn connecting(&self, fd: BorrowedFd<'_>) {
        world::connected(fd.as_raw_fd());
    }

    fn change(&self, set: BorrowedFd<'_>, fd: BorrowedFd<'_>, change: Change) -> io::Result<()> {
        let (op, data, flags) = match change {
            Change::Add(data, flags) => (libc::EPOLL_CTL_ADD, data, flags),
            Change::Modify(data, flags) => (libc::EPOLL_CTL_MOD, data, flags),
            Change::Remove => (libc::EPOLL_CTL_DEL, 0, 0),
        };
        let mut event = libc::epoll_event { events: flags, u64: data };
        let set = epoll::of_fd(set.as_raw_fd()).ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: a live event, and a set of this loop's.
        match unsafe { epoll::ctl(set, op, fd.as_raw_fd(), &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(errno())),
        }
    }

    fn wait(&self, set: BorrowedFd<'_>, events: &mut Vec<(u64, u32)>, at_once: bool) -> io::Result<()> {
        let set = epoll::of_fd(set.as_raw_fd()).ok_or(io::ErrorKind::NotFound)?;
        let mut room = [libc::epoll_event { events: 0, u64: 0 }; 256];
        let timeout = at_once.then_some(0);
        // SAFETY: room for as many as it says.
        let n = unsafe { epoll::wait(set, room.as_mut_ptr(), room.len() as i32, timeout, std::ptr::null()) };
        let n = result(n as libc::ssize_t)?;
        events.extend(room[..n].iter().map(|e| (e.u64, e.events)));
        Ok(())
    }

    fn receive(&self, fd: BorrowedFd<'_>, room: &mut [u8]) -> io::Result<usize> {
        match streams::carried(fd.as_raw_fd()) {
            Some((stream, link)) => result(streams::take(stream, link, room, libc::MSG_DONTWAIT)),
            // SAFETY: room for as many bytes as it says.
            None => result(unsafe { libc::recv(fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) }),
        }
    }

    fn send(&self, fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        match streams::carried(fd.as_raw_fd()) {
            Some((stream, link)) => result(streams::put(stream, link, bytes, flags)),
            // SAFETY: as many bytes as it says.
            None => result(unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) }),
        }
    }

    fn ending(&self, fd: BorrowedFd<'_>) {
        if let Some((stream, link)) = streams::carried(fd.as_raw_fd()) {
            streams::ring(stream, link.shut_write());
        }
    }

    fn closing(&self, fd: BorrowedFd<'_>) {
        streams::before_close(fd.as_raw_fd());
    }
}
