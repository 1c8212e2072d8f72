//! What breaks, and what another map moves.

use crate::clock::MS;
use crate::flight::{Again, To};
use crate::ids::LaneId;
use unslow_nodes::NOBODY;

use crate::map::Map;
use crate::reply::error;
use crate::session::*;
use crate::worker::Worker;
use unslow_reactor::{Closed, Io};
use unslow_topology::Health;

/// Why commands of a lane fail.
pub(crate) enum Failure {
    /// In the server's own words.
    Said(String),
    /// In ours, about a node. Who may not see the topology gets its number there, and not its address.
    About { node: u16, what: String },
}

/// A node that was replaced and is suspected may be late by so much before what was written to it is given up.
pub(super) const LATE: u64 = 1_000 * MS;

/// How a new map changes the node of a lane.
struct Change {
    node: u16,
    /// It is not up.
    ill: bool,
    /// It is not up and owns nothing any more.
    replaced: bool,
    /// It was up in the old map, and is not in this one.
    now_ill: bool,
    /// A master that Sentinels replaced: it still takes writes for some seconds, and loses them. In a cluster it
    /// redirects.
    demoted: bool,
    /// Commands wait on the lane until the node is back or replaced.
    held: bool,
}

impl Worker {
    /// What a client is told.
    pub(crate) fn words(&mut self, failure: &Failure, whom: Whom) -> Vec<u8> {
        match failure {
            Failure::Said(text) => text.as_bytes().to_vec(),
            Failure::About { node, what } if self.trusted(whom) => {
                error("ERR", &format!("unslow: {}{what}", self.map.servers.address(*node)))
            }
            Failure::About { node, what } => error("ERR", &format!("unslow: node {node}{what}")),
        }
    }

    /// The connection is gone.
    pub fn lane_closed(&mut self, io: &mut Io, lane: LaneId, why: &Closed) {
        let never_sent = io.never_sent();
        if let Some(id) = self.lanes[lane].connection.take() {
            self.parties[id.index()] = crate::worker::Party::Nobody;
        }
        self.clogs.retain(|c| c.lane != lane);
        let l = &self.lanes[lane];
        let was = l.state;
        if matches!(was, State::Opening | State::Greeting) {
            self.lane_failed(lane);
            if was == State::Greeting || self.lanes[lane].owner.is_some() {
                self.shared.doubt();
            }
            self.rehome(io, lane);
            return;
        }
        self.shared.doubt();
        let what = format!(": {why} after this command was sent; it may or may not have run");
        let failure = Failure::About { node: l.node, what };
        self.break_lane(io, lane, never_sent, &failure);
        self.lanes[lane].state = State::Closed(self.now);
        // Who has it alone cannot go on with it.
        if let Some(owner) = self.lanes[lane].owner {
            self.lost_own_lane(io, lane, owner);
        } else if self.lanes[lane].pooled {
            self.close_lane(io, lane);
        }
    }

    /// Sorts the commands of a lane that is no more into those to send again and those that failed. `never_sent` are
    /// the last bytes that its peer cannot have seen.
    pub(super) fn break_lane(&mut self, io: &mut Io, lane: LaneId, never_sent: usize, failure: &Failure) {
        let l = &mut self.lanes[lane];
        let seen = l.sent_bytes.saturating_sub(never_sent);
        let journal = std::mem::take(&mut l.journal);
        let flights: Vec<Flight> = l.flights.drain(..).collect();
        let pinned = l.pooled && l.owner.is_some();
        let midway = l.forwarded > 0 || !l.part.is_empty();
        (l.sent, l.sent_bytes, l.first, l.forwarded) = (0, 0, 0, 0);
        l.part.clear();
        l.splitter = splitter();
        l.read_only = Some(false);
        let mut at = 0;
        for (i, flight) in flights.into_iter().enumerate() {
            let bytes = &journal.all()[at..at + flight.size()];
            at += flight.size();
            // A command that was cut is no command: servers run whole ones only.
            let ran_perhaps = at <= seen && flight.kind != Kind::Swallow;
            let half_told = i == 0 && midway && matches!(flight.kind, Kind::Reply | Kind::Block);
            if half_told && self.told_in_part(flight.whom, flight.seq) {
                // Half of the answer is with the client: there is no way to end it well.
                self.drop_client(io, flight.whom);
                continue;
            }
            if half_told && let Some(client) = self.client(flight.whom) {
                let at = client.at(flight.seq);
                if let Some(pending) = client.pending.get_mut(at) {
                    let parked = std::mem::take(&mut pending.bytes).len();
                    client.parked -= parked;
                    self.parked -= parked;
                }
            }
            if matches!(flight.kind, Kind::Swallow | Kind::Probe) {
            } else if flight.len > 0
                && !pinned
                && !matches!(flight.kind, Kind::Auth | Kind::Verify)
                && (flight.repeatable || !ran_perhaps)
            {
                let tries = flight.tries.saturating_add(1);
                if self.now > flight.at + self.config.hold_ms * MS {
                    self.stats.error("held_too_long");
                    let words = self.words(failure, flight.whom);
                    self.fail_flight(io, &flight, &words);
                } else {
                    self.stats.again += 1;
                    let again = Again { flight: Flight { tries, ..flight }, bytes: bytes.to_vec(), to: To::Owner };
                    // Not at once: what broke the connection may need a moment to show.
                    self.later(again, MS);
                    if let Some(client) = self.client(flight.whom) {
                        client.barrier = true;
                    }
                }
            } else {
                self.stats.error("lost_in_flight");
                let words = self.words(failure, flight.whom);
                self.fail_flight(io, &flight, &words);
            }
        }
    }

    pub(super) fn told_in_part(&mut self, whom: Whom, seq: u32) -> bool {
        self.client(whom).is_some_and(|c| c.midway && c.base == seq)
    }

    /// What a client has begun on a connection of its own would end on the master that was replaced: subscriptions move
    /// to the new one, transactions and watches end as they do when their connection breaks. True when the lane is
    /// given up.
    fn leave_demoted(&mut self, io: &mut Io, lane: LaneId) -> bool {
        let l = &self.lanes[lane];
        let Some(owner) = l.owner.filter(|_| l.pooled) else { return false };
        let (raw, begun, unsent) = (l.raw, l.used || l.sent > 0, l.sent == 0);
        let (last, written) = (l.flights.back().map(|f| f.kind), l.sent == l.flights.len());
        let Some(client) = self.client(owner) else { return false };
        // It was written before, and its answer ends what was begun.
        let ends = written && (last == Some(Kind::Exec) || last == Some(Kind::Block) && !client.watch.held());
        if raw {
            let subscribes = client.subscriber.lanes.contains(&lane);
            if subscribes {
                self.rehome(io, lane);
            }
            return subscribes;
        }
        if !begun || ends {
            return false;
        }
        let how = if unsent { "this one was not sent" } else { "it may or may not have run" };
        let what = format!(" was replaced, and what was begun there is discarded; {how}");
        let failure = Failure::About { node: self.lanes[lane].node, what };
        if let Some(id) = self.lanes[lane].connection.take() {
            io.close(id);
            self.parties[id.index()] = crate::worker::Party::Nobody;
        }
        self.break_lane(io, lane, 0, &failure);
        self.lanes[lane].state = State::Closed(self.now);
        self.lost_own_lane(io, lane, owner);
        true
    }

    /// The map is another one: what could not be written goes where it belongs now, and what was written to a node that
    /// lost its place and does not answer is given up.
    pub fn remapped(&mut self, io: &mut Io, old: &Map) {
        let mut moving: Vec<Again> = Vec::new();
        let mut unverified: Vec<Flight> = Vec::new();
        for lane in self.lanes.places() {
            if self.lanes[lane].free {
                continue;
            }
            let change = self.change_of(lane, old);
            self.lanes[lane].held = change.held;
            if change.replaced && self.lanes[lane].state == State::Ready {
                let is_late = self.cluster && self.map.servers[change.node].health == Health::Suspected;
                if !is_late {
                    self.give_up_replaced(io, lane);
                    continue;
                }
                // A planned failover of a server that waits for a processor: what was written is answered or redirected
                // as ever, only later.
                self.lanes[lane].replaced_at = Some(self.now);
                self.lanes_waiting += 1;
            }
            let l = &self.lanes[lane];
            let raw = l.raw;
            if raw && l.state != State::Ready && (change.ill || !self.map.servers[change.node].owns) {
                self.rehome(io, lane);
                continue;
            }
            if change.demoted && self.leave_demoted(io, lane) {
                continue;
            }
            let l = &self.lanes[lane];
            let dedicated = !raw && l.pooled && l.owner.is_some();
            if dedicated
                && l.sent == 0
                && !l.used
                && !l.flights.is_empty()
                && (l.state != State::Ready || change.demoted)
            {
                self.readdress(io, lane);
                continue;
            }
            if !raw && !dedicated {
                self.take_unsent(lane, &mut moving, &mut unverified);
            }
            if change.now_ill {
                self.ask_a_replica_too(lane, &mut moving);
            }
            self.flow(io, lane);
        }
        unverified.iter().for_each(|asked| self.unverified(io, asked));
        moving.sort_by_key(|a| a.flight.at);
        for again in moving {
            self.resend(io, again);
        }
    }

    /// Compares what the old and the new map say of a lane's node.
    fn change_of(&self, lane: LaneId, old: &Map) -> Change {
        let node = self.lanes[lane].node;
        let server = &self.map.servers[node];
        let before = old.servers.get(node);
        let ill = server.health != Health::Up;
        Change {
            node,
            ill,
            replaced: ill && !server.owns && before.is_some_and(|s| s.owns || s.health == Health::Up),
            now_ill: ill && before.is_some_and(|s| s.health == Health::Up),
            demoted: !self.cluster && !server.owns && before.is_some_and(|s| s.owns),
            held: ill && (server.health == Health::Suspected || server.owns),
        }
    }

    /// Gives up a lane to a node that was replaced, unless it answers again or may still.
    pub(super) fn look_at_replaced(&mut self, io: &mut Io, lane: LaneId) {
        let Some(since) = self.lanes[lane].replaced_at else { return };
        let server = &self.map.servers[self.lanes[lane].node];
        let (is_up, owns, is_gone) = (server.health == Health::Up, server.owns, server.health == Health::Failed);
        let is_ready = self.lanes[lane].state == State::Ready;
        if is_up || owns || !is_ready {
            self.lanes[lane].replaced_at = None;
        } else if is_gone || self.now > since + LATE {
            self.lanes[lane].replaced_at = None;
            self.give_up_replaced(io, lane);
        }
    }

    /// Closes a lane to a node that was replaced and does not answer. What was written there may or may not have run.
    fn give_up_replaced(&mut self, io: &mut Io, lane: LaneId) {
        if let Some(id) = self.lanes[lane].connection.take() {
            io.close(id);
            self.parties[id.index()] = crate::worker::Party::Nobody;
        }
        let what = " stopped answering after this command was sent, and was replaced; it may or may not have run";
        let failure = Failure::About { node: self.lanes[lane].node, what: what.into() };
        self.break_lane(io, lane, 0, &failure);
        self.lanes[lane].state = State::Closed(self.now);
        if let Some(owner) = self.lanes[lane].owner {
            self.lost_own_lane(io, lane, owner);
        } else if self.lanes[lane].pooled {
            self.close_lane(io, lane);
        }
    }

    /// Points a dedicated lane on which nothing was sent yet at the node that its first command belongs to now.
    fn readdress(&mut self, io: &mut Io, lane: LaneId) {
        let l = &self.lanes[lane];
        let node = l.node;
        let first = l.flights.iter().find(|f| f.slot != NO_SLOT).map(|f| (f.slot, f.whom));
        let to = first.map_or(NOBODY, |(slot, whom)| self.node_for(slot, false, whom));
        if to == NOBODY || to == node {
            return;
        }
        if let Some(id) = self.lanes[lane].connection.take() {
            io.close(id);
            self.parties[id.index()] = crate::worker::Party::Nobody;
        }
        let held = self.map.servers[to].health != Health::Up;
        let l = &mut self.lanes[lane];
        (l.node, l.state, l.held, l.down_since) = (to, State::Closed(self.now), held, None);
        l.backoff.succeeded();
        l.greeting = Default::default();
        l.part.clear();
        (l.splitter, l.first, l.forwarded, l.server_number) = (splitter(), 0, 0, None);
        // Its place was among those of the other node.
        (l.permit, l.waits_since) = (None, None);
        self.dial_if_needed(io, lane);
    }

    /// Takes the commands that were not written yet from a shared lane, to be routed by the new map.
    fn take_unsent(&mut self, lane: LaneId, moving: &mut Vec<Again>, unverified: &mut Vec<Flight>) {
        let l = &mut self.lanes[lane];
        if l.sent >= l.flights.len() {
            return;
        }
        for (flight, bytes) in l.take_unsent() {
            if flight.kind == Kind::Verify {
                unverified.push(flight);
            } else if flight.kind != Kind::Swallow {
                moving.push(Again { flight, bytes, to: To::Owner });
            }
        }
    }

    /// In-flight reads to a node that hangs now are sent to a replica as well; the late answer is dropped.
    fn ask_a_replica_too(&mut self, lane: LaneId, moving: &mut Vec<Again>) {
        let l = &mut self.lanes[lane];
        let node = l.node;
        let mut at = 0;
        for flight in l.flights.iter_mut() {
            let end = at + flight.size();
            let readers = self.map.readers.get(usize::from(self.map.servers.owner(flight.slot)));
            let other = readers.is_some_and(|r| r.iter().any(|n| *n != node));
            if flight.read
                && flight.len > 0
                && other
                && matches!(flight.kind, Kind::Reply | Kind::Gather)
                && !l.pooled
                && l.forwarded == 0
            {
                let bytes = l.journal.all()[at..end].to_vec();
                moving.push(Again { flight: *flight, bytes, to: To::Owner });
                (flight.kind, flight.seq) = (Kind::Swallow, 0);
            }
            at = end;
        }
    }
}
