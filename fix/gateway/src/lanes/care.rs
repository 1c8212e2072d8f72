//! Lanes looked over: those that wait, and those whose clients do not read.

use super::breaks::Failure;
use crate::clock::MS;
use crate::ids::LaneId;
use crate::own::Share;
use crate::session::*;
use crate::worker::{Clog, Worker};
use unslow_reactor::Io;

/// Client output beyond which its server is not read for a while.
const CLOG: usize = 2 << 20;
/// A client that takes nothing for so long gets its answers from our memory, up to its limit.
const CLOG_PATIENCE: u64 = 50 * MS;

impl Worker {
    /// Lanes that wait to be dialled, commands that waited too long, lanes nobody needs.
    pub fn look_after_lanes(&mut self, io: &mut Io) {
        const IDLE: u64 = 60_000 * MS;
        let hold = self.config.hold_ms * MS;
        let mut waiting = 0;
        let mut queue: Vec<(u64, LaneId)> = Vec::new();
        for lane in self.lanes.places() {
            let l = &self.lanes[lane];
            if l.free {
                continue;
            }
            if l.replaced_at.is_some() {
                self.look_at_replaced(io, lane);
            }
            let l = &self.lanes[lane];
            if l.free {
                continue;
            }
            if l.state == State::Greeting && self.now > l.dialled_at + 2 * self.config.connect_ms * MS {
                // It takes connections and says nothing.
                if let Some(id) = self.lanes[lane].connection.take() {
                    io.close(id);
                    self.parties[id.index()] = crate::worker::Party::Nobody;
                }
                self.lane_failed(lane);
                self.rehome(io, lane);
            }
            let l = &self.lanes[lane];
            waiting += usize::from(l.replaced_at.is_some());
            let unwritten = l.flights.len() > l.sent;
            let subscribing = l.raw && l.journal.len() > 0 && l.state != State::Ready;
            if unwritten || subscribing {
                waiting += 1;
                let oldest = l.flights.get(l.sent).map_or(l.waits_since.unwrap_or(self.now), |f| f.at);
                if self.now > oldest + hold {
                    self.give_up(io, lane);
                }
                match self.lanes[lane].waits_since {
                    Some(since) => queue.push((since, lane)),
                    None => self.dial_if_needed(io, lane),
                }
            } else if l.pooled
                && l.owner.is_none()
                && (self.now > l.idle_since + IDLE || self.crowded(l.node, self.share(lane)))
            {
                self.close_lane(io, lane);
            }
        }
        // For connections of their own in the order in which they came.
        queue.sort_unstable();
        for (_, lane) in queue {
            self.dial_if_needed(io, lane);
        }
        self.lanes_waiting = waiting + self.homeless.len();
    }

    /// Why commands on a lane have waited for too long.
    pub(crate) fn overdue(&self, lane: LaneId) -> Failure {
        let (l, hold) = (&self.lanes[lane], self.config.hold_ms);
        let what = match (l.lacks_permit(), self.share(lane)) {
            (true, Share::Logins) => format!(" had no connection free to judge a login for {hold} ms; try again later"),
            (true, Share::Clients) => format!(
                " had none of its own_connections = {} free for {hold} ms; this one was not sent. Each client that is \
                 in a transaction, watches, blocks, subscribes or has long values takes one: use fewer, or raise \
                 own_connections, below the server's maxclients",
                self.own_most.share(Share::Clients)
            ),
            (false, _) => {
                let unsent = l.sent == 0 || !l.pinned();
                let how = if unsent { "this one was not sent" } else { "it may or may not have run" };
                format!(" took no commands for {hold} ms and nobody took its place; {how}")
            }
        };
        Failure::About { node: l.node, what }
    }

    /// What has waited too long on a lane gets its error.
    pub(super) fn give_up(&mut self, io: &mut Io, lane: LaneId) {
        let hold = self.config.hold_ms * MS;
        let failure = self.overdue(lane);
        let l = &self.lanes[lane];
        if l.lacks_permit() {
            self.stats.error("own_connections");
        }
        let l = &self.lanes[lane];
        if let (true, true, Some(owner)) = (l.raw, l.lacks_permit(), l.owner) {
            return self.give_up_raw(io, lane, owner, &failure);
        }
        if let (true, Some(owner)) = (l.pooled, l.owner) {
            // What was said before on a dedicated lane belongs to what is given up.
            if let Some(id) = self.lanes[lane].connection.take() {
                io.close(id);
                self.parties[id.index()] = crate::worker::Party::Nobody;
            }
            self.break_lane(io, lane, 0, &failure);
            self.lanes[lane].state = State::Closed(self.now);
            return self.lost_own_lane(io, lane, owner);
        }
        for (flight, bytes) in self.lanes[lane].take_unsent() {
            if self.now > flight.at + hold {
                self.stats.error("held_too_long");
                let words = self.words(&failure, flight.whom);
                self.fail_flight(io, &flight, &words);
            } else {
                self.lanes[lane].put_back(flight, &bytes);
            }
        }
    }

    /// There is no connection for a client's subscriptions or its MONITOR. Which of its commands that answers cannot be
    /// said in the protocol, so it is the last word.
    fn give_up_raw(&mut self, io: &mut Io, lane: LaneId, owner: Whom, failure: &Failure) {
        let words = self.words(failure, owner);
        self.push_to(io, owner, &words);
        if let Some(client) = self.client(owner) {
            if client.subscriber.lanes.contains(&lane) {
                client.subscriber.give_up(lane);
                client.subscriber.settle();
            }
            if client.pin == Some(lane) {
                client.pin = None;
                client.end_doing();
            }
        }
        self.close_lane(io, lane);
        self.close_when_answered(io, owner);
    }

    /// A long reply comes faster than its client takes it: the server is read more slowly for a while.
    pub(super) fn clogged(&mut self, io: &mut Io, lane: LaneId, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        let (id, slow) = (client.id, client.slow);
        if io.unsent(id) <= CLOG {
            return;
        }
        io.flush(id);
        let unsent = io.unsent(id);
        if unsent <= CLOG {
            if let Some(client) = self.client(whom) {
                client.slow = false;
            }
            return;
        }
        if unsent > self.config.client_output_bytes {
            return self.close_slow(io, whom);
        }
        if slow && self.lanes[lane].owner.is_none() {
            return;
        }
        if self.clogs.iter().all(|c| c.lane != lane)
            && let Some(connection) = self.lanes[lane].connection
        {
            io.pause(connection, true);
            self.clogs.push(Clog { lane, whom, unsent, since: self.now });
        }
    }

    pub fn unclog(&mut self, io: &mut Io) {
        for mut clog in std::mem::take(&mut self.clogs) {
            let id = self.client(clog.whom).map(|c| c.id);
            let unsent = id.map_or(0, |id| io.unsent(id));
            let own = self.lanes[clog.lane].owner.is_some();
            if unsent < clog.unsent {
                (clog.unsent, clog.since) = (unsent, self.now);
            }
            // On a lane of its own a client may take its time; on a shared one others wait.
            let stuck = !own && self.now > clog.since + CLOG_PATIENCE;
            if stuck && let Some(client) = self.client(clog.whom) {
                client.slow = true;
            }
            if unsent > CLOG / 2 && !stuck {
                self.clogs.push(clog);
            } else if let Some(connection) = self.lanes[clog.lane].connection {
                io.pause(connection, false);
            }
        }
    }
}
