//! Connections in several live sets. Each has one home: the set that its peer tells of news. To the others it is a
//! guest: they look at it themselves in each of their turns, are rung when its home sees news, and sleep for a
//! millisecond at most, since nobody knows when the home will look.

use std::num::NonZeroU32;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::link::Link;
use crate::sockets::fds::{Registration, SetId, Stream};
use crate::sockets::{kernel, world};
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, EPOLLRDHUP};
use libc::{c_int, epoll_event};

use super::ctl::{ctl_ours, refuse};
use super::inside::Locked;
use super::{Epoll, Inside, LAST, home, numbered, queue, readiness, registration, settle_in};

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
    /// The stream's number then: a closed one's entry is used again, for another connection.
    serial: u64,
    fd: RawFd,
    events: u32,
    data: u64,
    /// EPOLLONESHOT has fired.
    spent: bool,
    /// What the program was last told of, if its events are edges.
    told: Seen,
}

impl Guest {
    fn new(stream: &'static Stream, fd: RawFd, event: epoll_event) -> Guest {
        let (serial, events, data) = (stream.serial(), event.events, event.u64);
        Guest { stream, serial, fd, events, data, spent: false, told: Seen::default() }
    }

    /// `None` when the connection is closed.
    fn link(&self) -> Option<&'static Link> {
        self.stream.link().filter(|_| self.stream.serial() == self.serial)
    }

    /// What the program would be told now, and what that is seen by.
    fn look(&self, link: &Link) -> (u32, Seen) {
        if self.spent {
            return (0, self.told);
        }
        // The end of what the other side says is an edge, whether or not the program has a name for it.
        let events = readiness(link, self.events | EPOLLRDHUP as u32);
        let now = Seen { events, moved: link.moved() };
        let edges = self.events & EPOLLET as u32 != 0;
        let new = !edges || now.moved != self.told.moved || now.events & !self.told.events != 0;
        let wanted = self.events | (EPOLLERR | EPOLLHUP) as u32;
        (if new { events & wanted } else { 0 }, now)
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

    /// Whether a connection is one, under any name.
    pub fn has(&self, stream: &Stream) -> bool {
        self.all.iter().any(|g| std::ptr::eq(g.stream, stream) && g.link().is_some())
    }

    /// Whether the program would be told of any.
    pub fn has_news(&self) -> bool {
        self.all.iter().any(|g| g.link().is_none_or(|link| g.look(link).0 != 0))
    }

    /// Events into `room`: how many.
    pub fn tell(&mut self, room: &mut [epoll_event]) -> usize {
        if std::mem::take(&mut self.resting) {
            return 0;
        }
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
        self.drop_closed(guests);
        guests.tell(room)
    }

    fn drop_closed(&self, guests: &mut Guests) {
        let before = guests.all.len();
        guests.all.retain(|g| g.link().is_some());
        self.gone(before - guests.all.len());
    }

    /// The set is closed: it is to be the home of none of them.
    pub(super) fn forget_guests(&self, inside: &mut Inside) {
        inside.guests = Guests::default();
        self.gone(self.guests.load(Ordering::Acquire) as usize);
    }

    /// A handler may have closed the set meanwhile, which counts none from then on.
    fn gone(&self, guests: usize) {
        for count in [&self.guests, &self.hidden] {
            let less = |n: u32| Some(n.saturating_sub(guests as u32));
            let _ = count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        }
    }

    /// A guest is taken out, with the kernel's entry that told of the connection's end unless somebody else needs it.
    fn take_out(&self, guests: &mut Guests, at: usize) {
        let guest = guests.all.swap_remove(at);
        if !guests.has(guest.stream) && !self.has(guest.stream) {
            self.watch_end(guest.stream, EPOLL_CTL_DEL);
        }
        self.gone(1);
    }

    /// A guest whose connection is at home nowhere is at home here from now on. The kernel's entry stays, and counts as
    /// the home's. False if it came into another set just now.
    fn settle_guest(&self, inside: &mut Inside, at: usize, wanted: epoll_event) -> bool {
        let stream = inside.guests.all[at].stream;
        if !stream.claim(self.id) {
            return false;
        }
        let guest = inside.guests.all.swap_remove(at);
        let less = |n: u32| Some(n.saturating_sub(1));
        let _ = self.guests.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        *registration(stream, inside) =
            Registration { wanted: true, fd: guest.fd, events: wanted.events, data: wanted.u64, ..Registration::NONE };
        queue(inside, stream);
        true
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
    // Without a waiter nobody could be woken for it. The lock of its home is not taken under that of this set: two sets
    // can have guests of each other.
    if op == EPOLL_CTL_ADD && epoll.waiter().is_none() {
        return refuse(libc::ENOSPC);
    }
    if op == EPOLL_CTL_MOD {
        leave_home(stream);
    }
    // SAFETY: not null, and the caller has a readable event behind it.
    let wanted = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
    let mut inside = epoll.inside();
    if matches!(inside, Locked::StandIn(_)) {
        return refuse(libc::EAGAIN);
    }
    epoll.drop_closed(&mut inside.guests);
    let mut settled = false;
    match (op, inside.guests.find(stream, fd), wanted) {
        (EPOLL_CTL_DEL, Some(at), _) => epoll.take_out(&mut inside.guests, at),
        (EPOLL_CTL_ADD, Some(_), Some(_)) => return refuse(libc::EEXIST),
        (EPOLL_CTL_MOD, Some(at), Some(wanted)) => {
            settled = epoll.settle_guest(&mut inside, at, wanted);
            if !settled {
                inside.guests.all[at] = Guest::new(stream, fd, wanted);
            }
        }
        (EPOLL_CTL_ADD, None, Some(wanted)) => {
            let done = epoll.watch_end(stream, op);
            if done != 0 {
                return done;
            }
            inside.guests.all.push(Guest::new(stream, fd, wanted));
            stream.put_into_several();
            epoll.guests.fetch_add(1, Ordering::AcqRel);
            epoll.hidden.fetch_add(1, Ordering::AcqRel);
        }
        // Another thread took it out of its home, which is this set now.
        (EPOLL_CTL_DEL | EPOLL_CTL_MOD, None, _) if epoll.has(stream) => {
            drop(inside);
            // SAFETY: the caller's.
            return unsafe { ctl_ours(epoll, op, fd, stream, event) };
        }
        (EPOLL_CTL_DEL | EPOLL_CTL_MOD, None, _) => return refuse(libc::ENOENT),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, _, None) => return refuse(libc::EFAULT),
        _ => return refuse(libc::EINVAL),
    }
    drop(inside);
    if settled {
        settle_in(stream);
    } else if op != EPOLL_CTL_DEL {
        epoll.wake();
    }
    0
}

/// A connection that the program took out of its home is at home nowhere from now on.
pub(super) fn leave_home(stream: &'static Stream) {
    // A signal handler cannot know: it stays.
    let Some((home, Locked::Held(mut inside))) = home(stream) else { return };
    if !registration(stream, &inside).wanted && !inside.seconds.has(stream.index) {
        home.give_up(&mut inside, stream);
    }
}

/// The sets that have guests. Sets are never freed.
fn hosts() -> impl Iterator<Item = &'static Epoll> {
    let all = (1..=LAST.load(Ordering::Acquire)).filter_map(|n| numbered(SetId(NonZeroU32::new(n)?)));
    all.filter(|set| set.has_guests() && !set.is_forgotten())
}

/// The program took a connection out of its home: one of the sets that have it as a guest is its home from now on.
pub(super) fn pass_on(stream: &'static Stream) {
    if !stream.is_in_several() {
        return;
    }
    let waiting = |g: &Guest| std::ptr::eq(g.stream, stream) && !g.spent && g.link().is_some();
    for host in hosts() {
        if !host.inside.lock().is_ok_and(|inside| inside.guests.all.iter().any(waiting)) {
            continue;
        }
        leave_home(stream);
        let Ok(mut inside) = host.inside.lock() else { continue };
        let Some(at) = inside.guests.all.iter().position(waiting) else { continue };
        let Guest { events, data, .. } = inside.guests.all[at];
        let settled = host.settle_guest(&mut inside, at, epoll_event { events, u64: data });
        drop(inside);
        if settled {
            settle_in(stream);
        }
        return;
    }
}

/// The home of a connection in several sets has seen news of it: the others look at once.
pub(super) fn ring_hosts(home: &Epoll) {
    hosts().filter(|set| !std::ptr::eq(*set, home)).for_each(Epoll::wake);
}
