//! What a set knows of its connections: its lock, which a signal handler may find taken, and the order of news.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use crate::held::Guard;
use crate::link::Link;
use crate::local::Waiter;
use crate::sockets::fds::{self, Entry, Place};
use crate::sockets::seconds::Seconds;
use crate::sockets::world;
use crate::stamp;
use libc::EPOLLET;

use super::guests::{self, Guests};
use super::{Epoll, Inside, readiness, registration};

impl Inside {
    /// Connections with news go to the others that may have something, in the order in which the news came.
    #[inline]
    pub fn take_news(&mut self, set: &Epoll, waiter: &Waiter) {
        let mut news = 0;
        for i in 0..self.places.len() {
            let (place, before) = (self.places[i], news);
            place.pair().take_news(waiter.number, |slot| news += usize::from(self.has_news(set, place, slot)));
            if news - before > 1 {
                // What came between the first and the last of them may be older than the last.
                place.pair().take_news(waiter.number, |slot| news += usize::from(self.has_news(set, place, slot)));
            }
        }
        if news > 0 && self.ready.len() > 1 {
            self.order(stamp::now());
        }
    }

    /// The connection of a slot has news; false when it is none of the set's.
    #[inline]
    fn has_news(&mut self, set: &Epoll, place: &'static Place, slot: u32) -> bool {
        let Some(stream) = place.stream(slot).filter(|s| set.has(s)) else {
            return false;
        };
        if stream.is_in_several() {
            guests::ring_hosts(set);
        }
        let registration = registration(stream, self);
        // As long as the program has not seen the last news, it waits from then.
        if registration.seen {
            registration.seen = false;
            registration.since = stream.link().map_or(0, Link::told_at);
        }
        if !registration.queued {
            registration.queued = true;
            self.ready.push_back(stream);
        }
        true
    }

    /// Bits have no order, and a program may act by the order in which its peer wrote: by the time of their news, then,
    /// as far as a peer can be believed. It cannot be ahead of what came before the last time (`ordered_at`), nor stay
    /// behind for long. What the program was shown and left unread takes turns: all of it counts as of the last time,
    /// and the sort is stable.
    fn order(&mut self, now: u64) {
        for stream in &self.ready {
            let registration = registration(stream, self);
            registration.since = counts_from(registration.since, self.ordered_at, now);
        }
        let mut ready = std::mem::take(&mut self.ready);
        ready.make_contiguous().sort_by_key(|stream| registration(stream, self).since);
        self.ready = ready;
        self.ordered_at = now;
    }
}

/// From when a connection is counted whose peer says it told of news at `told` (0: it does not say).
fn counts_from(told: u64, last: u64, now: u64) -> u64 {
    if told == 0 || told > now { now } else { told.max(last) }
}

/// The lock of a set, or what is used in its place where the lock cannot be had: in a signal handler that has
/// interrupted a wait in the set, and after such a handler was left with longjmp.
pub(super) enum Locked<'a> {
    Held(Guard<'a, Inside>),
    /// Made from what is known of the set's connections. What is done to it is lost, and made good by the next one.
    StandIn(Box<Inside>),
}

impl Deref for Locked<'_> {
    type Target = Inside;
    #[inline]
    fn deref(&self) -> &Inside {
        match self {
            Locked::Held(guard) => guard,
            Locked::StandIn(inside) => inside,
        }
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inside {
        match self {
            Locked::Held(guard) => guard,
            Locked::StandIn(inside) => inside,
        }
    }
}

impl Epoll {
    #[inline]
    pub(super) fn inside(&self) -> Locked<'_> {
        match self.inside.lock() {
            Ok(guard) if !self.stale.load(Ordering::Relaxed) => Locked::Held(guard),
            Ok(mut guard) => {
                self.stale.store(false, Ordering::Relaxed);
                // Known nowhere else.
                let (seconds, ordered_at) = (std::mem::take(&mut guard.seconds), guard.ordered_at);
                // None if a handler has closed the set.
                let guests = if self.has_guests() { std::mem::take(&mut guard.guests) } else { Guests::default() };
                *guard = Inside { guests, ..self.made_again(seconds, ordered_at) };
                Locked::Held(guard)
            }
            Err(_) => self.stand_in(),
        }
    }

    #[cold]
    fn stand_in(&self) -> Locked<'_> {
        self.stale.store(true, Ordering::Relaxed);
        Locked::StandIn(Box::new(self.made_again(Seconds::default(), 0)))
    }

    /// All that is known of the set's connections elsewhere, with the other names of those that are in it still.
    #[cold]
    fn made_again(&self, seconds: Seconds, ordered_at: u64) -> Inside {
        let mut inside = Inside { seconds, ordered_at, ..Inside::default() };
        let mut here = Vec::new();
        for (fd, entry) in fds::known(0, fds::MOST) {
            let Entry::Stream(stream) = entry else { continue };
            if stream.fd() != fd || !self.has(stream) {
                continue;
            }
            here.push(stream.index);
            if let Some(place) = stream.place()
                && inside.lacks(place)
            {
                inside.places.push(place);
            }
            if world::is_open(stream) {
                inside.pending.push(stream);
                for offer in stream.offers.try_lock().iter().flat_map(|offers| offers.iter()) {
                    if inside.lacks(offer.place) {
                        inside.places.push(offer.place);
                    }
                }
            }
            let registration = registration(stream, &inside);
            let edge = registration.events & EPOLLET as u32 != 0;
            let has = |link: &Link| if edge { registration.queued } else { readiness(link, registration.events) != 0 };
            let first = registration.wanted && !registration.spent && stream.link().is_some_and(has);
            registration.queued = first || inside.seconds.has(stream.index);
            if registration.queued {
                inside.ready.push_back(stream);
            }
        }
        inside.seconds.keep(&here);
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::fds::state;
    use libc::{EPOLL_CTL_ADD, EPOLLIN, epoll_event};

    #[test]
    fn a_set_that_is_made_again_keeps_the_other_names_of_its_connections_and_of_no_others() {
        crate::sockets::epoll::created(61_000);
        let set = crate::sockets::epoll::of_fd(61_000).unwrap();
        let (stream, entry) = fds::new_stream(61_001, state::PLAIN, false).unwrap();
        fds::put(61_001, Some(entry));
        stream.put_into(Some(set.id));
        set.hidden.store(1, Ordering::Release);
        let event = epoll_event { events: EPOLLIN as u32, u64: 2 };
        {
            let mut inside = set.inside();
            inside.seconds.change(EPOLL_CTL_ADD, stream.index, 61_002, Some(event)).unwrap();
            inside.ordered_at = 7;
            // As a handler that changes something meanwhile.
            let stand_in = set.inside();
            assert!(matches!(stand_in, Locked::StandIn(_)) && !stand_in.seconds.has(stream.index));
        }
        {
            let inside = set.inside();
            assert!(inside.seconds.has_name(stream.index, 61_002), "it is known nowhere else");
            assert_eq!((inside.ordered_at, inside.ready.len()), (7, 1), "only the other name wants it");
        }
        {
            let _interrupted = set.inside();
            // As a handler that closes it.
            crate::sockets::epoll::closed(stream);
        }
        assert!(!set.inside().seconds.has(stream.index), "the next connection may have its number");
        fds::put(61_001, None);
        fds::put(61_000, None);
    }

    #[test]
    fn a_peer_can_neither_be_ahead_of_the_last_turn_nor_behind_this_one() {
        let (last, now) = (100, 200);
        for (told, counted) in [(150, 150), (100, 100), (200, 200), (0, now), (1, last), (u64::MAX, now)] {
            assert_eq!(counts_from(told, last, now), counted, "told at {told}");
        }
    }
}
