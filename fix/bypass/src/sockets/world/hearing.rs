//! What peers say on their channels, and the waiters that they are to know.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::board::Board;
use crate::channel::{self, Heard, Kind, Message};
use crate::local::Waiter;
use crate::pair::Side;
use crate::signals::Quiet;
use crate::sockets::epoll;
use crate::sockets::fds::{Claim, Place};
use crate::sockets::{kernel, streams, tell};

use super::{AT_ONCE, pause};

/// Lets the other side of a place know a waiter of ours, before it is named in a slot. False when it could not be told:
/// then nobody can wake this waiter.
pub fn introduce(place: &'static Place, waiter: &Waiter) -> bool {
    if place.pair().told(waiter.number) {
        return true;
    }
    let _quiet = Quiet::begin();
    // One at a time: nobody names a waiter that is still being told.
    let Ok(_guard) = place.heard.lock() else { return false };
    if place.pair().told(waiter.number) {
        return true;
    }
    let fds = [waiter.doorbell.as_raw_fd()];
    for _ in 0..50 {
        match channel::say(&place.pair().channel, Kind::Waiter, waiter.number, 0, &fds) {
            Ok(()) => {
                place.pair().set_told(waiter.number);
                return true;
            }
            // It has not read what was said before.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => pause(200_000),
            Err(_) => return false,
        }
    }
    false
}

/// Rings a waiter of the other side, whose doorbell may still be on its way to us.
pub fn ring(place: &'static Place, waiter: u32) {
    if !place.pair().can_ring(waiter) {
        let _quiet = Quiet::begin();
        hear(place);
    }
    place.pair().ring(waiter);
}

/// Claims that were heard on the way to something else wait for [`attend`](super::attend).
static PARKED: AtomicBool = AtomicBool::new(false);

/// Whether there are any, which is said once.
#[inline]
pub fn take_parked() -> bool {
    PARKED.load(Ordering::Relaxed) && PARKED.swap(false, Ordering::AcqRel)
}

/// How often servers have said something about what they lend.
static SAID: AtomicU32 = AtomicU32::new(0);

/// Changes whenever some server [has news](super::has_news).
#[cfg(feature = "reactor")]
pub fn said() -> u32 {
    SAID.load(Ordering::Acquire)
}

/// What the other side of a place has said; false when it has left. A client's claims are kept for [`attend`].
pub fn hear(place: &'static Place) -> bool {
    let Ok(mut inbox) = place.heard.lock() else { return false };
    // A peer that talks without end has its turn again later.
    for _ in 0..AT_ONCE {
        if inbox.len() >= AT_ONCE {
            return true;
        }
        match channel::hear(&place.pair().channel) {
            Heard::Message(
                kind @ (Kind::Offer | Kind::Proof | Kind::Lend | Kind::Accepted | Kind::Listener),
                message,
                mut fds,
            ) => {
                let claim = match kind {
                    Kind::Offer => Some(Claim::Offered(message.ends())),
                    Kind::Lend => Some(Claim::Lend),
                    Kind::Accepted => Some(Claim::Accepted(fds.pop())),
                    Kind::Listener => Some(Claim::Lent(fds.pop())),
                    _ => fds.pop().map(Claim::Proven),
                };
                // A server has nothing to offer, and a client nothing to lend.
                let teller = if kind == Kind::Listener { Side::Server } else { Side::Client };
                if let Some(claim) = claim.filter(|_| place.pair().side.other() == teller) {
                    inbox.push((message.a, message.b, claim));
                    PARKED.store(true, Ordering::Release);
                    SAID.fetch_add(u32::from(kind == Kind::Listener), Ordering::Release);
                }
            }
            Heard::Message(kind, message, fds) => heard(place, kind, &message, fds),
            Heard::Nothing => return true,
            Heard::Gone | Heard::Strange(_) => {
                place.pair().dead.store(true, Ordering::Release);
                return false;
            }
        }
    }
    true
}

fn heard(place: &'static Place, kind: Kind, message: &Message, mut fds: Vec<OwnedFd>) {
    match (kind, fds.pop()) {
        (Kind::Welcome, Some(board)) => match Board::of_peer(&board) {
            Ok(board) => {
                place.pair().set_board(board);
                place.welcome.store(true, Ordering::Release);
            }
            Err(_) => place.pair().dead.store(true, Ordering::Release),
        },
        (Kind::Refused, _) if place.refused.swap(message.a.max(1), Ordering::AcqRel) == 0 => {
            tell(&format!("the server refuses this user or version (reason {}): TCP", message.a));
        }
        (Kind::Waiter, Some(doorbell)) if is_eventfd(&doorbell) => {
            place.pair().set_doorbell(message.a, doorbell);
            // Whoever wanted to ring it before could not.
            place.pair().ring(message.a);
        }
        _ => {}
    }
}

/// Doorbells are eventfds: writing to anything else of a peer's could block, or raise a signal.
fn is_eventfd(fd: &OwnedFd) -> bool {
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor of ours and room for the answer.
    let known = unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } == 0;
    // Neither file nor pipe nor socket: of what is left none blocks when it was opened so.
    known && stat.st_mode & libc::S_IFMT == 0 && kernel::flags(fd.as_raw_fd()) & libc::O_NONBLOCK != 0
}

/// The other process has ended, or become another program.
pub fn farewell(place: &'static Place) {
    let watch = place.watch.lock().ok().and_then(|mut w| w.take());
    if let Some(watch) = watch.and_then(epoll::numbered) {
        watch.unwatch(place.pair().channel.as_raw_fd());
    }
    place.bury();
    epoll::forget_place(place);
    for stream in place.streams() {
        if let Some(link) = stream.link() {
            streams::look_at_tcp(stream);
            // Bytes that a stack has read, or has not sent yet, are lost with it. What a server has written is there.
            link.tcp_ended(stream.is_of_stack() && place.pair().side == Side::Server);
            epoll::look_again(stream);
        }
    }
}
