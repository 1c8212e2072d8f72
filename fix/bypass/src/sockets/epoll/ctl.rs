//! `epoll_ctl`: the program puts descriptors into a set, changes what it wants of them, and takes them out.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::signals::Quiet;
use crate::sockets::fds::{self, Entry, Stream, state};
use crate::sockets::{kernel, set_errno, world};
use libc::{c_int, epoll_event};

use super::inside::Locked;
use super::{Epoll, Inside, guests, name_waiter, numbered, queue, registration, settle_in};

/// `epoll_ctl`.
///
/// # Safety
/// As of `epoll_ctl`.
pub unsafe fn ctl(epoll: &'static Epoll, op: c_int, fd: RawFd, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's.
    let direct = || unsafe { kernel::epoll_ctl(epoll.fd(), op, fd, event) };
    if epoll.forgotten.load(Ordering::Relaxed) {
        if let Some(Entry::Stream(stream)) = fds::get(fd) {
            // In a set that is the parent's as well nothing can be hidden.
            while !world::resolve(stream, true) {
                world::pause(20_000);
            }
        }
        return direct();
    }
    match fds::get(fd) {
        Some(Entry::Listener(endpoint)) => {
            // SAFETY: the caller's.
            if let Some(done) = unsafe { world::ctl_lent(epoll, op, fd, event) } {
                return done;
            }
            let done = direct();
            if done == 0 {
                // SAFETY: the kernel has just read it, unless it took the listener out.
                unsafe { world::registered(epoll.id, op, fd, event) };
            }
            if done == 0 && op == libc::EPOLL_CTL_ADD {
                world::open_rendezvous(*endpoint, epoll.id);
            }
            done
        }
        // SAFETY: the caller's.
        Some(Entry::Stream(stream)) if stream.link().is_some() => unsafe { ctl_ours(epoll, op, fd, stream, event) },
        Some(Entry::Stream(stream)) => {
            // An offer may be taken by another thread just now.
            let mut world = world::world();
            match stream.state() {
                state::CANDIDATE => {
                    let done = direct();
                    if done == 0 {
                        let other = stream.set().is_some_and(|set| set != epoll.id);
                        if other {
                            stream.fixed.store(true, Ordering::Release);
                        } else if op == libc::EPOLL_CTL_DEL {
                            stream.put_into(None);
                        } else {
                            let inside = epoll.inside();
                            // SAFETY: the kernel has just read it.
                            let event = unsafe { event.read_unaligned() };
                            let registration = registration(stream, &inside);
                            (registration.events, registration.data) = (event.events, event.u64);
                            (registration.wanted, registration.fd) = (true, fd);
                            stream.put_into(Some(epoll.id));
                            drop(inside);
                            world::watched(&mut world, stream);
                        }
                    }
                    done
                }
                state::PENDING | state::SETTLING | state::LINKED => {
                    drop(world);
                    // SAFETY: the caller's.
                    unsafe { ctl_ours(epoll, op, fd, stream, event) }
                }
                _ => direct(),
            }
        }
        Some(Entry::Set(inner)) => {
            if let Some(inner) = numbered(*inner) {
                inner.watched_itself();
            }
            direct()
        }
        _ => {
            let done = direct();
            if done == 0 && op != libc::EPOLL_CTL_MOD {
                fds::set_in_set(fd, op == libc::EPOLL_CTL_ADD);
            }
            done
        }
    }
}

/// `epoll_ctl` for a connection that is carried, or may be.
///
/// # Safety
/// As of `epoll_ctl`.
pub(super) unsafe fn ctl_ours(
    epoll: &'static Epoll,
    op: c_int,
    fd: RawFd,
    stream: &'static Stream,
    event: *mut epoll_event,
) -> c_int {
    if guests::is_guest(epoll, stream, fd) {
        // SAFETY: the caller's.
        return unsafe { guests::ctl(epoll, op, fd, stream, event) };
    }
    if op == libc::EPOLL_CTL_ADD && !epoll.has(stream) {
        // A stream the program took out of one set and puts into another goes there.
        guests::leave_home(stream);
    }
    let mut inside = epoll.inside();
    if stream.is_in_several() && matches!(inside, Locked::StandIn(_)) {
        return refuse(libc::EAGAIN);
    }
    // Another thread may put it into another set at the same time.
    let adds = op == libc::EPOLL_CTL_ADD && !event.is_null();
    let new = adds && !epoll.has(stream) && stream.claim(epoll.id);
    if !new && !epoll.has(stream) {
        drop(inside);
        match op {
            _ if stream.set().is_some() => {}
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if event.is_null() => return refuse(libc::EFAULT),
            // It was in another set, and is not any more.
            // SAFETY: the caller's.
            libc::EPOLL_CTL_ADD => return unsafe { ctl_ours(epoll, op, fd, stream, event) },
            libc::EPOLL_CTL_DEL | libc::EPOLL_CTL_MOD => return refuse(libc::ENOENT),
            _ => return refuse(libc::EINVAL),
        }
        // SAFETY: the caller's.
        return unsafe { guests::ctl(epoll, op, fd, stream, event) };
    }
    let entry = registration(stream, &inside);
    // What is used in a handler knows the first name only.
    if !new && entry.fd != fd && matches!(inside, Locked::StandIn(_)) {
        return refuse(libc::EAGAIN);
    }
    let first_is_another =
        entry.wanted && entry.fd != fd && fds::stream(entry.fd).is_some_and(|s| std::ptr::eq(s, stream));
    if !new && (first_is_another || inside.seconds.has_name(stream.index, fd)) {
        // SAFETY: not null, and the caller has a readable event behind it.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        if let Err(errno) = inside.seconds.change(op, stream.index, fd, event) {
            return refuse(errno);
        }
        queue(&mut inside, stream);
        drop(inside);
        epoll.wake();
        guests::pass_on(stream);
        return 0;
    }
    match op {
        libc::EPOLL_CTL_ADD if !new && entry.wanted && entry.fd == fd => return refuse(libc::EEXIST),
        libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !entry.wanted => return refuse(libc::ENOENT),
        libc::EPOLL_CTL_DEL => {
            entry.wanted = false;
            drop(inside);
            guests::pass_on(stream);
            return 0;
        }
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if event.is_null() => return refuse(libc::EFAULT),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {}
        _ => return refuse(libc::EINVAL),
    }
    if new {
        let done = epoll.watch_end(stream, libc::EPOLL_CTL_ADD);
        if done != 0 {
            stream.put_into(None);
            return done;
        }
        epoll.hidden.fetch_add(1, Ordering::AcqRel);
        comes_in(epoll, &mut inside, stream);
    }
    // SAFETY: not null, and the caller has a readable event behind it.
    let event = unsafe { event.read_unaligned() };
    let entry = registration(stream, &inside);
    (entry.wanted, entry.fd, entry.events, entry.data, entry.spent) = (true, fd, event.events, event.u64, false);
    queue(&mut inside, stream);
    drop(inside);
    if (new || op == libc::EPOLL_CTL_ADD) && stream.link().is_some() {
        settle_in(stream);
    }
    epoll.wake();
    0
}

/// Peers are to tell this set of a connection that has just come into it, or of the offers that are open for it.
fn comes_in(epoll: &'static Epoll, inside: &mut Inside, stream: &'static Stream) {
    if let (Some(link), Some(place)) = (stream.link(), stream.place()) {
        name_waiter(epoll, place, link);
        if inside.lacks(place) {
            inside.places.push(place);
        }
    } else {
        // A handler that uses the connection would wait for this thread.
        let _quiet = Quiet::begin();
        if let (Ok(offers), Some(waiter)) = (stream.offers.lock(), epoll.waiter()) {
            for offer in offers.iter() {
                if world::introduce(offer.place, waiter)
                    && let Some(slot) = offer.place.pair().slot(offer.slot)
                {
                    slot.set_waiter(offer.place.pair().side, waiter.number);
                }
                if inside.lacks(offer.place) {
                    inside.places.push(offer.place);
                }
            }
        }
        inside.pending.push(stream);
    }
}

pub(super) fn refuse(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}
