//! Answers in a client's order, and clients that go.

use super::*;
use crate::flight::Waiting;
use crate::session::*;
use std::sync::atomic::Ordering;
use unslow_reactor::Io;

impl Worker {
    /// An answer of our own, in its turn.
    pub fn say(&mut self, io: &mut Io, whom: Whom, bytes: &[u8]) {
        if let Some(client) = self.client(whom) {
            client.commands += 1;
            let seq = client.begin();
            self.stats.commands += 1;
            self.answer(io, whom, seq, bytes, true);
        }
    }

    /// (Part of) the answer to the client's command `seq`.
    #[inline]
    pub fn answer(&mut self, io: &mut Io, whom: Whom, seq: u32, bytes: &[u8], last: bool) {
        let Some(client) = self.clients.get_mut(whom.place()).and_then(|c| c.as_deref_mut()) else { return };
        if client.serial != whom.serial {
            return;
        }
        let at = client.at(seq);
        let Some(pending) = client.pending.get_mut(at) else { return };
        if at > 0 {
            if !pending.mute {
                pending.bytes.extend_from_slice(bytes);
                client.parked += bytes.len();
                self.parked += bytes.len();
            }
            pending.done = last;
            if last && !client.rare.waiting.is_empty() {
                return self.settle_waiting(whom);
            }
            if client.parked > self.config.client_output_bytes {
                self.close_slow(io, whom);
            }
            return;
        }
        if !pending.mute {
            let out = io.output(client.id);
            out.extend_from_slice(bytes);
            self.stats.bytes_out += bytes.len() as u64;
            if out.len() > self.config.client_output_bytes {
                return self.close_slow(io, whom);
            }
        }
        if !last {
            client.midway = true;
            return;
        }
        client.midway = false;
        client.pending.pop_front();
        client.base = client.base.wrapping_add(1);
        if !client.rare.pushes.is_empty() {
            let pushes = std::mem::take(&mut client.rare.pushes);
            client.rare.settle();
            io.output(client.id).extend_from_slice(&pushes);
        }
        while let Some(next) = client.pending.front_mut() {
            if !next.bytes.is_empty() {
                io.output(client.id).extend_from_slice(&next.bytes);
                client.parked -= next.bytes.len();
                self.parked -= next.bytes.len();
                self.stats.bytes_out += next.bytes.len() as u64;
                client.midway = !next.done;
                next.bytes = Vec::new();
            }
            if !next.done {
                break;
            }
            client.midway = false;
            client.pending.pop_front();
            client.base = client.base.wrapping_add(1);
        }
        if client.pending.is_empty() {
            client.barrier = false;
            client.rare.settle();
            if self.draining.is_some() {
                self.parting.push(whom);
            }
            if client.pending.capacity() > 1024 {
                client.pending.shrink_to(16);
            }
            if client.leaving == Leaving::WhenAnswered {
                io.finish(client.id);
            }
        }
        if !client.rare.waiting.is_empty() {
            self.settle_waiting(whom);
        }
        let Some(client) = self.clients[whom.place()].as_deref_mut() else { return };
        let half = self.config.client_pending / 2;
        let go_on = match client.stall {
            Stall::Answers => client.pending.is_empty(),
            Stall::Some => client.pending.len() <= half,
            Stall::No | Stall::Room | Stall::Confirmations => false,
        };
        if go_on {
            self.resume.push(whom);
        }
    }

    /// Commands of a client that a server would not take just now wait until those behind them have their answers too:
    /// if none of those on the same slot ran, all are sent again in their order, else the first answer counts.
    pub fn settle_waiting(&mut self, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        let open = client.pending.iter().filter(|p| !p.done).count();
        if open > client.rare.waiting.len() || client.rare.waiting.iter().any(|w| w.doubt.is_some()) {
            return;
        }
        let waiting = std::mem::take(&mut client.rare.waiting);
        let overtaken = std::mem::replace(&mut client.rare.overtaken, false);
        client.rare.settle();
        let pause = waiting.iter().map(|w| w.pause).max().unwrap_or(MS);
        for Waiting { again, error, .. } in waiting {
            if overtaken {
                self.refused.push((again.flight, error));
            } else {
                self.stats.again += 1;
                self.later(again, pause);
            }
        }
    }

    /// A command has its answer: one that waits on the same slot cannot be sent again any more.
    pub fn overtakes(&mut self, flight: &Flight) {
        if let Some(client) = self.client(flight.whom) {
            let same = |slot: u16| slot == flight.slot || slot == NO_SLOT || flight.slot == NO_SLOT;
            if client.rare.waiting.iter().any(|w| same(w.again.flight.slot)) {
                client.rare.overtaken = true;
            }
        }
    }

    /// Something the client did not ask for, between two answers.
    pub fn push_to(&mut self, io: &mut Io, whom: Whom, bytes: &[u8]) {
        let Some(client) = self.client(whom) else { return };
        let waiting = if client.midway {
            client.rare.pushes.extend_from_slice(bytes);
            client.rare.pushes.len()
        } else {
            io.output(client.id).extend_from_slice(bytes);
            let id = client.id;
            io.unsent(id)
        };
        self.stats.bytes_out += bytes.len() as u64;
        if waiting > self.config.client_output_bytes {
            self.close_slow(io, whom);
        }
    }

    /// Answers of all clients together hold too much: the clients that hold most are closed until they fit.
    pub(super) fn make_room(&mut self, io: &mut Io) {
        let most = self.config.output_bytes / self.shared.workers.len().max(1);
        while io.unsent_to_visitors() + self.parked > most {
            let held = self.everyone().map(|c| (io.unsent(c.id) + c.parked + c.rare.pushes.len(), c.whom()));
            // What is left of those who are leaving already goes with them.
            let Some((1.., whom)) = held.max_by_key(|(bytes, _)| *bytes) else { return };
            self.close_slow(io, whom);
        }
    }

    pub fn close_slow(&mut self, io: &mut Io, whom: Whom) {
        self.stats.clients_closed_slow += 1;
        self.drop_client(io, whom);
    }

    /// Not read until the condition holds.
    pub fn stall(&mut self, io: &mut Io, whom: Whom, why: Stall) {
        let Some(client) = self.client(whom) else { return };
        let id = client.id;
        if client.stall == Stall::No {
            io.pause(id, true);
        }
        client.stall = why;
        match why {
            Stall::Room => self.crowded.push(whom),
            Stall::Confirmations => self.unconfirmed.wait(whom),
            Stall::Answers if client.pending.is_empty() => self.resume.push(whom),
            _ => {}
        }
    }

    pub fn close_when_answered(&mut self, io: &mut Io, whom: Whom) {
        if let Some(client) = self.client(whom) {
            client.leaving = Leaving::WhenAnswered;
            let (id, empty) = (client.id, client.pending.is_empty());
            if empty {
                io.finish(id);
            }
        }
    }

    /// A client sends no more, and everything that it has sent was read: it is closed with its last answer, at once
    /// where that cannot come.
    pub(super) fn said_all(&mut self, io: &mut Io, whom: Whom) {
        match self.client(whom).is_some_and(|c| c.lacks_rest()) {
            true => self.drop_client(io, whom),
            false => self.close_when_answered(io, whom),
        }
    }

    /// A client goes before the server has judged who it is: half of an answer says nothing, so the connection goes
    /// too.
    fn close_judges(&mut self, io: &mut Io, whom: Whom) {
        let its = |l: &Lane| !l.free && l.pooled && l.owner == Some(whom);
        let lanes: Vec<LaneId> = self.lanes.places().filter(|at| its(&self.lanes[*at])).collect();
        lanes.into_iter().for_each(|lane| self.close_lane(io, lane));
    }

    /// The client goes, with everything that is its own.
    pub fn drop_client(&mut self, io: &mut Io, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        io.close(client.id);
        self.forget_client(io, whom);
    }

    pub(super) fn forget_client(&mut self, io: &mut Io, whom: Whom) {
        if self.client(whom).is_none() {
            return;
        }
        let Some(client) = self.clients[whom.place()].take() else { return };
        self.parties[whom.place()] = Party::Nobody;
        self.unread -= client.unread;
        self.parked -= client.parked;
        self.clients_now -= 1;
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        let stream = client.rare.stream.as_ref().and_then(|s| s.lane);
        if client.asked.is_some() {
            self.close_judges(io, whom);
        }
        for lane in client.subscriber.lanes.iter().copied().chain(client.pin).chain(client.aside).chain(stream) {
            self.close_lane(io, lane);
        }
        self.gathers.forget(whom);
        if let Some(set) = client.set {
            self.disown_set(io, set, whom);
        }
    }
}
