//! What comes from servers.

use super::breaks::Failure;
use crate::clock::MS;
use crate::event::{self, Meaning, Scene};
use crate::ids::LaneId;
use crate::session::*;
use crate::worker::Worker;
use unslow_reactor::{Closed, Io};
use unslow_resp::Split;

/// A reply that is this long in coming makes its client one with connections of its own.
const BULKY: usize = 256 << 10;

impl Worker {
    pub fn lane_data(&mut self, io: &mut Io, lane: LaneId, bytes: &[u8]) -> usize {
        let connection = self.lanes[lane].connection;
        let mut used = 0;
        while used < bytes.len() {
            let l = &mut self.lanes[lane];
            if l.connection != connection {
                return bytes.len();
            }
            let rest = &bytes[used..];
            let first = if l.first == 0 { rest[0] } else { l.first };
            match l.splitter.split(rest) {
                Ok(Split::Done(done)) => {
                    l.first = 0;
                    used += done.end;
                    self.frame(io, lane, first, &rest[..done.end]);
                }
                Ok(Split::More { consumed }) => {
                    if consumed > 0 {
                        l.first = first;
                        self.part(io, lane, first, &rest[..consumed]);
                    }
                    used += consumed;
                    break;
                }
                Err(_) => {
                    if let Some(id) = connection {
                        io.close(id);
                    }
                    self.lane_closed(io, lane, &Closed::Peer);
                    return bytes.len();
                }
            }
        }
        used
    }

    /// The middle of a reply.
    pub(super) fn part(&mut self, io: &mut Io, lane: LaneId, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane];
        let flight = l.flights.front().copied();
        // An error that comes in parts is longer than any of a server's own: nothing is to be followed in it.
        let forward = matches!(first, b'$' | b'*' | b'%' | b'~' | b'=' | b'+' | b'-' | b'(')
            && l.state == State::Ready
            && !l.raw
            && l.part.is_empty()
            && flight.is_some_and(|f| matches!(f.kind, Kind::Reply | Kind::Block));
        match flight.filter(|_| forward) {
            Some(flight) => {
                l.forwarded += bytes.len();
                let bulky = l.forwarded > BULKY && l.owner.is_none();
                self.answer(io, flight.whom, flight.seq, bytes, false);
                if bulky && let Some(client) = self.client(flight.whom) {
                    client.bulky = true;
                }
                self.clogged(io, lane, flight.whom);
            }
            None => self.keep(io, lane, first, bytes),
        }
    }

    /// The middle of a reply that is needed whole: its bytes count as some that wait for its client.
    fn keep(&mut self, io: &mut Io, lane: LaneId, first: u8, bytes: &[u8]) {
        /// Not worth a look, and longer than an error.
        const SMALL: usize = 128 << 10;
        let l = &self.lanes[lane];
        let (held, owner, ready) = (l.part.len() + bytes.len(), l.owner, l.state == State::Ready);
        let flight = l.flights.front().copied().filter(|_| !l.raw && first != b'>');
        let wanted = held <= SMALL
            || match flight {
                _ if !ready => true,
                Some(Flight { kind: Kind::Gather, whom, seq, part, .. }) => self.count_part(io, whom, seq, part, held),
                Some(Flight { kind: Kind::Swallow, .. }) => false,
                Some(flight) => self.may_wait(io, flight.whom, held),
                None => owner.is_none_or(|owner| self.may_wait(io, owner, held)),
            };
        // What nobody waits for any more goes nowhere; its end is still found.
        if wanted {
            self.lanes[lane].part.extend_from_slice(bytes);
        }
    }

    /// Whether so many bytes may wait for a client. It is closed if not.
    fn may_wait(&mut self, io: &mut Io, whom: Whom, bytes: usize) -> bool {
        let fits = bytes <= self.config.client_output_bytes;
        let there = self.client(whom).is_some();
        if there && !fits {
            self.close_slow(io, whom);
        }
        there && fits
    }

    /// The end of a reply, or all of it.
    #[inline]
    pub(super) fn frame(&mut self, io: &mut Io, lane: LaneId, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane];
        if l.state == State::Ready && first != b'>' && !l.raw && l.part.is_empty() {
            return self.reply(io, lane, first, bytes);
        }
        let mut whole = std::mem::take(&mut l.part);
        whole.extend_from_slice(bytes);
        if l.state == State::Greeting && first != b'>' {
            return self.greeting_reply(io, lane, &whole);
        }
        if first == b'>' || l.raw {
            return self.unasked(io, lane, first, &whole);
        }
        self.reply(io, lane, first, &whole);
    }

    /// The answer to the oldest command of a lane.
    #[inline]
    pub(super) fn reply(&mut self, io: &mut Io, lane: LaneId, first: u8, bytes: &[u8]) {
        let replica = first == b'-' && self.answers_as_replica(lane);
        let node = self.lanes[lane].node;
        let sender = if first == b'-' { self.map.servers.name(node) } else { None };
        let scene = Scene { cluster: self.cluster, replica, now: self.now, hold: self.config.hold_ms * MS };
        let Some(answered) = self.lanes[lane].on_reply(bytes, scene, sender) else { return };
        if self.elsewhere(io, lane, &answered, bytes) {
            return;
        }
        let flight = answered.flight;
        let l = &mut self.lanes[lane];
        l.journal.pop(flight.size());
        let node = l.node;
        if event::is_judged(flight.kind) {
            self.stats.took(node, flight.command, self.now.saturating_sub(flight.at) / 1000);
            if first == b'-' {
                self.stats.errors_passed += 1;
            }
        }
        match event::meaning(&flight, bytes) {
            Meaning::Answer => {
                if self.some_wait {
                    self.overtakes(&flight);
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Meaning::Nothing => {}
            Meaning::NoTransaction => {
                // What follows on this lane would run at once.
                let text = String::from_utf8_lossy(bytes).into_owned();
                if let Some(id) = self.lanes[lane].connection.take() {
                    io.close(id);
                    self.parties[id.index()] = crate::worker::Party::Nobody;
                }
                self.break_lane(io, lane, 0, &Failure::Said(text));
                return self.lost_own_lane(io, lane, flight.whom);
            }
            Meaning::Part => {
                self.gathered(io, flight.whom, flight.seq, flight.part, bytes);
                if self.pinned(lane) {
                    self.return_lane(io, lane);
                }
            }
            Meaning::Setting => self.set_up(io, &flight, bytes, Some(lane)),
            Meaning::Unblocked => {
                self.answer(io, flight.whom, flight.seq, bytes, true);
                self.unpin(io, flight.whom, lane);
            }
            Meaning::Watched => {
                if let Some(client) = self.client(flight.whom) {
                    client.watch = client.watch.more();
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Meaning::NotBegun => {
                if let Some(client) = self.client(flight.whom) {
                    client.end_doing();
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
                self.unpin(io, flight.whom, lane);
            }
            // It goes on with the connection that it has, if there is anything to go on with.
            Meaning::StillWithin => {
                self.answer(io, flight.whom, flight.seq, bytes, true);
                self.unpin(io, flight.whom, lane);
            }
            Meaning::Ended => self.ended(io, lane, &flight, bytes),
            Meaning::Judged => self.authenticated(io, lane, &flight, bytes),
            Meaning::Verdict => self.verified(io, lane, &flight, bytes),
            Meaning::Probed => self.probed(io, lane, bytes),
        }
        let l = &mut self.lanes[lane];
        if l.flights.is_empty() {
            l.idle_since = self.now;
        }
    }
}
