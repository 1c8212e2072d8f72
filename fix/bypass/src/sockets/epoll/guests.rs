//! Connections in several live sets. Each has one home: the set that its peer tells of news. To the others it is a
//! guest: they look at it themselves in each of their turns, are rung when its home sees news, and sleep for a
//! millisecond at most, since nobody knows when the home will look.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::link::Link;
use crate::sockets::fds::Stream;
use crate::sockets::{kernel, world};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLONESHOT, c_int, epoll_event};

use super::ctl::{ctl_ours, refuse};
use super::inside::Locked;
use super::{Epoll, SETS, numbered, readiness, registration};

/// How long a set with guests sleeps at most.
pub(super) const SLEEP_NS: u64 = 1_000_000;

/// What an edge is seen by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    events: u32,
    /// Bytes that had come, and bytes that the other side had taken.
    moved: (u64, u64),
}

struct Guest {
    stream: &'static Stream,
    /// Which connection of the stream's it is: a closed one's entry is used again.
    of: Identity,
    fd: RawFd,
    events: u32,
    data: u64,
    /// EPOLLONESHOT has fired.
    spent: bool,
    /// What the program was last told of, if its events are edges.
    told: Seen,
}

/// Of a connection, as long as this process runs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    pair: usize,
    number: u32,
    generation: u32,
}

impl Identity {
    fn of(link: &Link) -> Identity {
        Identity { pair: Arc::as_ptr(&link.pair).addr(), number: link.number, generation: link.generation }
    }
}

impl Guest {
    fn new(stream: &'static Stream, link: &Link, fd: RawFd, event: epoll_event) -> Guest {
        let (events, data) = (event.events, event.u64);
        Guest { stream, of: Identity::of(link), fd, events, data, spent: false, told: Seen::default() }
    }

    /// `None` when the connection is closed.
    fn link(&self) -> Option<&'static Link> {
        self.stream.link().filter(|link| Identity::of(link) == self.of)
    }

    /// What the program would be told now, and what that is seen by.
    fn look(&self, link: &Link) -> (u32, Seen) {
        if self.spent {
            return (0, self.told);
        }
        let now = Seen { events: readiness(link, self.events), moved: link.moved() };
        let edges = self.events & EPOLLET as u32 != 0;
        let new = !edges || now.moved != self.told.moved || now.events & !self.told.events != 0;
        (if new { now.events } else { 0 }, now)
    }
}

/// Those of one set.
#[derive(Default)]
pub(super) struct Guests {
    all: Vec<Guest>,
    /// The next one to be looked at.
    turn: usize,
    /// They have filled all the room there was: next time the set's own connections are told of before them.
    resting: bool,
}

impl Guests {
    fn find(&self, stream: &Stream, fd: RawFd) -> Option<usize> {
        self.all.iter().position(|g| g.fd == fd && std::ptr::eq(g.stream, stream) && g.link().is_some())
    }

    fn has(&self, stream: &Stream) -> bool {
        self.all.iter().any(|g| std::ptr::eq(g.stream, stream) && g.link().is_some())
    }

    /// Whether the program would be told of any.
    pub fn has_news(&self) -> bool {
        self.all.iter().any(|g| g.link().is_none_or(|link| g.look(link).0 != 0))
    }

    /// Events into `room`: how many. Those whose connection is closed are dropped.
    pub fn tell(&mut self, room: &mut [epoll_event]) -> usize {
        if std::mem::take(&mut self.resting) {
            return 0;
        }
        self.all.retain(|g| g.link().is_some());
        let (mut n, count) = (0, self.all.len());
        let first = if self.turn < count { self.turn } else { 0 };
        for i in (first..count).chain(0..first) {
            let guest = &mut self.all[i];
            let Some(link) = guest.link() else { continue };
            let (events, now) = guest.look(link);
            if events == 0 {
                continue;
            }
            let Some(place) = room.get_mut(n) else {
                self.turn = i;
                break;
            };
            *place = epoll_event { events, u64: guest.data };
            n += 1;
            guest.told = now;
            guest.spent = guest.events & EPOLLONESHOT as u32 != 0;
        }
        self.resting = n > 0 && n == room.len();
        n
    }
}

impl Epoll {
    /// Guests' events into `room`; how many.
    pub(super) fn tell_of_guests(&self, guests: &mut Guests, room: &mut [epoll_event]) -> usize {
        let before = guests.all.len();
        let n = guests.tell(room);
        self.gone(before - guests.all.len());
        n
    }

    fn gone(&self, guests: usize) {
        self.guests.fetch_sub(guests as u32, Ordering::AcqRel);
        self.hidden.fetch_sub(guests as u32, Ordering::AcqRel);
    }

    /// A guest is taken out, with the kernel's entry that told of the connection's end.
    fn take_guest(&self, guests: &mut Guests, at: usize) -> Guest {
        let guest = guests.all.swap_remove(at);
        if !guests.has(guest.stream) {
            self.watch_end(guest.stream, EPOLL_CTL_DEL);
        }
        self.gone(1);
        guest
    }
}

/// Whether a set has a connection as its guest, under this name.
pub(super) fn is_guest(epoll: &Epoll, stream: &Stream, fd: RawFd) -> bool {
    stream.is_in_several() && epoll.inside().guests.find(stream, fd).is_some()
}

/// `epoll_ctl` for a connection that is at home in another set.
///
/// # Safety
/// As of `epoll_ctl`.
pub(super) unsafe fn ctl(
    epoll: &'static Epoll,
    op: c_int,
    fd: RawFd,
    stream: &'static Stream,
    event: *mut epoll_event,
) -> c_int {
    // Which way it goes is decided now: a set's guests are carried.
    while stream.link().is_none() {
        if world::resolve(stream, true) && stream.link().is_none() {
            // SAFETY: the caller's.
            return unsafe { kernel::epoll_ctl(epoll.fd(), op, fd, event) };
        }
        world::pause(20_000);
    }
    let Some(link) = stream.link() else { return refuse(libc::EBADF) };
    // Asked without the lock of this set: two sets can have guests of each other.
    let homeless = op == EPOLL_CTL_MOD && is_homeless(stream);
    let mut inside = epoll.inside();
    if matches!(inside, Locked::StandIn(_)) {
        return refuse(libc::EAGAIN);
    }
    let guests = &mut inside.guests;
    let at = guests.find(stream, fd);
    // SAFETY: not null, and the caller has a readable event behind it.
    let wanted = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    match (op, at, wanted) {
        (EPOLL_CTL_DEL, Some(at), _) => _ = epoll.take_guest(guests, at),
        (EPOLL_CTL_ADD, Some(_), Some(_)) => return refuse(libc::EEXIST),
        (EPOLL_CTL_MOD, Some(at), Some(_)) if homeless => {
            epoll.take_guest(guests, at);
            drop(inside);
            // SAFETY: the caller's.
            return unsafe { ctl_ours(epoll, EPOLL_CTL_ADD, fd, stream, event) };
        }
        (EPOLL_CTL_MOD, Some(at), Some(wanted)) => {
            guests.all[at] = Guest::new(stream, link, fd, wanted);
            drop(inside);
            epoll.wake();
        }
        (EPOLL_CTL_ADD, None, Some(wanted)) => {
            if !guests.has(stream) {
                let done = epoll.watch_end(stream, op);
                if done != 0 {
                    return done;
                }
            }
            guests.all.push(Guest::new(stream, link, fd, wanted));
            stream.put_into_several();
            epoll.guests.fetch_add(1, Ordering::AcqRel);
            epoll.hidden.fetch_add(1, Ordering::AcqRel);
            drop(inside);
            epoll.wake();
        }
        (EPOLL_CTL_DEL | EPOLL_CTL_MOD, None, _) => return refuse(libc::ENOENT),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, _, None) => return refuse(libc::EFAULT),
        _ => return refuse(libc::EINVAL),
    }
    0
}

/// No set is told of its news, or only one that the program took it out of.
fn is_homeless(stream: &Stream) -> bool {
    let Some(home) = stream.set().and_then(numbered) else { return true };
    // A signal handler cannot know.
    home.inside.lock().is_ok_and(|inside| {
        !registration(stream, &inside).wanted && !inside.seconds.has(stream.index)
    })
}

/// The program took a connection out of its home: one of the sets that have it as a guest is its home from now on.
pub(super) fn pass_on(stream: &'static Stream) {
    if !stream.is_in_several() || !is_homeless(stream) {
        return;
    }
    let hosts: Vec<_> = match SETS.try_lock() {
        Ok(sets) => sets.iter().copied().filter(|set| set.guests.load(Ordering::Acquire) > 0).collect(),
        // They find its news every millisecond.
        Err(_) => return,
    };
    for host in hosts {
        let Ok(mut inside) = host.inside.lock() else { continue };
        let guests = &mut inside.guests;
        let Some(at) = guests.all.iter().position(|g| std::ptr::eq(g.stream, stream) && !g.spent && g.link().is_some())
        else {
            continue;
        };
        let guest = host.take_guest(guests, at);
        drop(inside);
        let mut event = epoll_event { events: guest.events, u64: guest.data };
        // SAFETY: a live event.
        unsafe { ctl_ours(host, EPOLL_CTL_ADD, guest.fd, stream, &mut event) };
        return;
    }
}

/// The home of a connection in several sets has seen news of it: the others look at once.
pub(super) fn ring_hosts(home: &Epoll) {
    // Where the lock cannot be had, they find it within a millisecond.
    let Ok(sets) = SETS.try_lock() else { return };
    for host in sets.iter().filter(|set| !std::ptr::eq(**set, home) && set.guests.load(Ordering::Acquire) > 0) {
        host.wake();
    }
}
