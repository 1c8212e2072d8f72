//! What comes from servers.

use crate::session::*;
use crate::worker::Worker;
use unslow_reactor::{Closed, Io};
use unslow_resp::Split;

/// A reply that is this long in coming makes its client one with connections of its own.
const BULKY: usize = 256 << 10;

impl Worker {
    pub fn lane_data(&mut self, io: &mut Io, lane: u32, bytes: &[u8]) -> usize {
        let connection = self.lanes[lane as usize].connection;
        let mut used = 0;
        while used < bytes.len() {
            let l = &mut self.lanes[lane as usize];
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
    pub(super) fn part(&mut self, io: &mut Io, lane: u32, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
        let flight = l.flights.front().copied();
        let forward = matches!(first, b'$' | b'*' | b'%' | b'~' | b'=')
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
            None => l.part.extend_from_slice(bytes),
        }
    }

    /// The end of a reply, or all of it.
    #[inline]
    pub(super) fn frame(&mut self, io: &mut Io, lane: u32, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
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
    pub(super) fn reply(&mut self, io: &mut Io, lane: u32, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
        if l.sent == 0 {
            return; // nobody asked for it
        }
        let Some(flight) = l.flights.pop_front() else { return };
        l.sent -= 1;
        l.sent_bytes -= flight.len as usize;
        l.forwarded = 0;
        let fresh = !std::mem::replace(&mut l.used, true);
        let judged = !matches!(flight.kind, Kind::Swallow | Kind::Verify);
        if first == b'-' && judged && self.redirected(io, lane, &flight, bytes, fresh) {
            return;
        }
        let l = &mut self.lanes[lane as usize];
        l.journal.pop(flight.len as usize);
        let (node, l_owner) = (l.node, l.owner);
        if judged {
            self.stats.took(node, flight.command, self.now.saturating_sub(flight.at) / 1000);
            if first == b'-' {
                self.stats.errors_passed += 1;
            }
        }
        match flight.kind {
            Kind::Reply => {
                if self.some_wait {
                    self.overtakes(&flight);
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Kind::Swallow => {
                // MULTI is refused to this user: what follows on this lane would run at once.
                let multi = l_owner.is_some() && flight.seq == MULTI_SEQ && first == b'-';
                if let (true, Some(owner)) = (multi, l_owner) {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    if let Some(id) = self.lanes[lane as usize].connection.take() {
                        io.close(id);
                        self.parties[id.index()] = crate::worker::Party::Nobody;
                    }
                    self.break_lane(io, lane, 0, &text);
                    return self.lost_own_lane(io, lane, owner);
                }
            }
            Kind::Gather => {
                self.gathered(io, flight.seq, flight.part, bytes);
                if self.lanes[lane as usize].pooled && self.lanes[lane as usize].owner.is_some() {
                    self.return_lane(io, lane);
                }
            }
            Kind::Setup => self.set_up(io, &flight, bytes),
            Kind::Block => {
                self.answer(io, flight.whom, flight.seq, bytes, true);
                self.unpin(io, flight.whom, lane);
            }
            Kind::Exec => self.executed(io, lane, &flight, bytes),
            Kind::Auth => self.authenticated(io, lane, &flight, bytes),
            Kind::Verify => self.verified(io, lane, &flight, bytes),
        }
        let l = &mut self.lanes[lane as usize];
        if l.flights.is_empty() {
            l.idle_since = self.now;
        }
    }
}
