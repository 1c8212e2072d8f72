//! A thread gives a part of a server's connections to another one, and gets such parts.

use std::sync::Arc;

use super::pace::Pace;
use super::post::Parcel;
use super::shares::Common;
use super::teams::{Heir, Member, Spread, chosen, heir};
use super::worker::Worker;
use crate::sockets::{fds, world};

/// From here on a thread has too much to do, in thousandths of its time.
const TOO_BUSY: u32 = 800;
/// Where a thread waits for a processor for this much of its time, another one would only take a processor from it, or
/// from the server.
const NO_PROCESSOR: u32 = 100;
/// Two threads that differ by less have as much to do as each other.
const MARGIN: u32 = 200;
/// A thread and the one that it helps have little to do while both together are below this ...
const LITTLE: u32 = 500;
/// ... and after so many looks of it in a row one does it all again. One without guests helps nobody after as many.
const LOOKS: u32 = 8;
/// Looks from one gift to the next: what came of it is known then.
const REST: u32 = 2;
/// Connections of one gift: while they move, nobody else has his turn.
const GIFT: usize = 256;

/// What a thread remembers from one look to the next.
#[derive(Debug, Default)]
pub struct Looks {
    /// In a row: it had no guests.
    without: u32,
    /// In a row: it and the thread that it helps had little to do.
    little: u32,
    /// Its connections' events have been counted since the last look.
    counts: bool,
    /// Until it gives connections away again.
    rests: u32,
}

/// The connections of a server that a thread has.
struct Here {
    common: Arc<Common>,
    /// By number, with how much there was to do.
    connections: Vec<(usize, u64)>,
}

/// It has too much to do, and another thread would get a processor.
fn needs_help(pace: Pace) -> bool {
    pace.busy >= TOO_BUSY && pace.late < NO_PROCESSOR
}

impl Here {
    fn load(&self) -> u64 {
        self.connections.iter().map(|(_, load)| load).sum()
    }
}

impl Worker {
    /// At each look.
    pub(super) fn spread(&mut self, pace: Pace) {
        self.shares.set_busy(self.thread, pace.busy);
        if self.guests > 0 {
            self.looks.without = 0;
            self.send_home(pace);
        } else {
            // Not at once: it may have been chosen a moment ago, and they are on their way.
            (self.looks.without, self.looks.little) = (self.looks.without + 1, 0);
            if self.looks.without >= LOOKS {
                self.shares.release(self.thread);
                self.looks.without = 0;
            }
        }
        match self.shares.spread {
            Spread::Never => {}
            Spread::Always => {
                for here in self.here(|_| 1) {
                    let load = u32::try_from(here.connections.len()).unwrap_or(u32::MAX);
                    let of = |thread| here.common.figures.of(thread).connections.get() as u32;
                    self.give(&here, load, of, 2);
                }
            }
            Spread::Busy if needs_help(pace) => self.ask_for_help(pace),
            Spread::Busy => self.looks.counts = false,
        }
    }

    fn ask_for_help(&mut self, pace: Pace) {
        let all = self.here(|events| u64::from(std::mem::take(events)));
        // What had been counted before the first look of these is of any time.
        let has_counted = std::mem::replace(&mut self.looks.counts, true);
        self.looks.rests = self.looks.rests.saturating_sub(1);
        if !has_counted || self.looks.rests > 0 {
            return;
        }
        let Some(busiest) = all.into_iter().max_by_key(Here::load) else { return };
        let shares = self.shares.clone();
        if self.give(&busiest, pace.busy, |thread| shares.busy(thread), MARGIN) {
            self.looks.rests = REST;
        }
    }

    /// What it has that can be given away, by server. `load` is of the number of events since this was asked last.
    fn here(&mut self, load: impl Fn(&mut u32) -> u64) -> Vec<Here> {
        let mut all: Vec<Here> = Vec::new();
        for (at, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection.as_mut().filter(|connection| connection.is_taken) else { continue };
            let one = (at, load(&mut connection.events));
            match all.iter_mut().find(|here| Arc::ptr_eq(&here.common, &connection.common)) {
                Some(here) => here.connections.push(one),
                None => all.push(Here { common: connection.common.clone(), connections: vec![one] }),
            }
        }
        all
    }

    /// Gives a part to whoever of the server's threads has the least to do, or to a new one. False where it keeps all.
    fn give(&mut self, here: &Here, load: u32, of: impl Fn(usize) -> u32, margin: u32) -> bool {
        let team = self.shares.team(&here.common).into_iter().filter(|thread| *thread != self.thread);
        let heir = heir(load, team.map(|thread| Member { thread, load: of(thread) }), margin);
        let (part, whole) = match heir {
            Heir::Member { less, .. } => (less / 2, load),
            Heir::New => (1, 2),
        };
        let chosen = chosen(here.connections.clone(), part, whole);
        if chosen.is_empty() {
            return false;
        }
        let thread = match heir {
            Heir::Member { thread, .. } => Some(thread),
            Heir::New => self.shares.recruit(&here.common),
        };
        thread.is_some_and(|thread| self.send(chosen, thread))
    }

    /// Connections of servers that it does not help (any more), or no longer needs to, go to the servers' own threads.
    fn send_home(&mut self, pace: Pace) {
        let mut guests = self.here(|_| 0);
        guests.retain(|here| here.common.thread != self.thread);
        // One helper at a time, the last first: what it gives back is seen before the next one does.
        let is_last = |here: &Here| self.shares.team(&here.common).last() == Some(&self.thread);
        let both = guests.iter().map(|here| self.shares.busy(here.common.thread)).sum::<u32>() + pace.busy;
        let have_little = self.shares.spread == Spread::Busy && both < LITTLE && guests.iter().all(is_last);
        self.looks.little = if have_little { self.looks.little + 1 } else { 0 };
        let is_over = self.looks.little >= LOOKS;
        for here in guests {
            if is_over || !self.shares.may_have(self.thread, &here.common) {
                self.send(here.connections.iter().map(|(at, _)| *at), here.common.thread);
            }
        }
    }

    /// Another thread has these from now on, or as many of them as move at a time. False where it cannot have them.
    fn send(&mut self, connections: impl IntoIterator<Item = usize>, to: usize) -> bool {
        let mut connections = connections.into_iter().peekable();
        let Some(first) = connections.peek().and_then(|at| self.connections[*at].as_ref()) else { return false };
        // Before they move: of a server that is not told, nobody would wake the other thread.
        let place = fds::stream(first.ring).and_then(|stream| stream.place());
        let waiter = self.shares.sets[to].get().and_then(|set| set.waiter());
        let (Some(place), Some(waiter)) = (place, waiter) else { return false };
        if !world::introduce(place, waiter) {
            return false;
        }
        let (from, mut parcels) = (self.thread, Vec::new());
        for connection in connections.take(GIFT).filter_map(|at| self.part_with(at)) {
            let figures = &connection.common.figures;
            figures.of(to).connections.add(1);
            figures.of(from).connections.subtract(1);
            figures.moved.add(1);
            parcels.push(Parcel::Connection(Box::new(connection)));
        }
        self.shares.posts[to].send(parcels);
        true
    }

    /// What other threads have sent.
    pub(super) fn receive(&mut self) {
        for parcel in self.shares.posts[self.thread].take() {
            match parcel {
                Parcel::Connection(connection) => self.take_in(*connection),
                Parcel::Ended(common) => self.end_of(&common),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_needs_help_where_a_processor_is_free_for_it() {
        assert!(needs_help(Pace { busy: 900, late: 20 }));
        assert!(!needs_help(Pace { busy: 700, late: 20 }), "it has time left");
        assert!(!needs_help(Pace { busy: 1000, late: 400 }), "the machine is full");
        assert!(!needs_help(Pace { busy: 1000, late: 1000 }), "the kernel does not say");
    }
}
