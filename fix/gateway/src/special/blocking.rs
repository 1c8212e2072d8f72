//! Blocking commands, and connections that a client has alone.

use super::Said;
use crate::clock::MS;
use crate::flight::{Again, To};
use crate::ids::LaneId;
use crate::session::*;
use crate::step::Command;
use crate::worker::Worker;
use unslow_nodes::NOBODY;
use unslow_reactor::Io;
use unslow_resp::write_command;

/// A redirect of a command on a connection that its client has alone.
pub(crate) struct Moved {
    /// NOBODY where no node of the topology has the address.
    pub to: u16,
    pub asking: bool,
    /// Nothing was answered on the connection before.
    pub fresh: bool,
    /// The slot was this node's when the command was sent, as far as the map knew.
    pub belonged: bool,
}

impl Worker {
    /// A lane for this client alone, as its pin. None when it has no connections: before AUTH.
    pub fn dedicate(&mut self, whom: Whom, node: u16) -> Option<LaneId> {
        let client = self.client(whom)?;
        if client.pin.is_some() {
            return client.pin;
        }
        let set = client.set?;
        let lane = self.take_lane(set, node, whom);
        let client = self.client(whom)?;
        client.pin = Some(lane);
        client.barrier = true;
        Some(lane)
    }

    /// A lane for a command that blocks. One that watches is on the node of the watched keys, and EXEC is to find it as
    /// it was: what blocks meanwhile may be for another node, and gets another lane.
    pub fn dedicate_to_block(&mut self, whom: Whom, node: u16) -> Option<LaneId> {
        let client = self.client(whom)?;
        if !client.watch.held() {
            return self.dedicate(whom, node);
        }
        if client.aside.is_some() {
            return client.aside;
        }
        let set = client.set?;
        let lane = self.take_lane(set, node, whom);
        let client = self.client(whom)?;
        client.aside = Some(lane);
        client.barrier = true;
        Some(lane)
    }

    /// Takes a lane of [`Worker::dedicate_to_block`] from its client, if it is one, and gives it back.
    fn release(&mut self, io: &mut Io, whom: Whom, lane: LaneId) -> bool {
        let Some(client) = self.client(whom) else { return false };
        if client.aside == Some(lane) {
            client.aside = None;
        } else if client.pin == Some(lane) {
            client.pin = None;
        } else {
            return false;
        }
        self.return_lane(io, lane);
        true
    }

    /// The dedicated lane has done its work.
    pub fn unpin(&mut self, io: &mut Io, whom: Whom, lane: LaneId) {
        let Some(client) = self.client(whom) else { return };
        if client.aside == Some(lane) {
            client.aside = None;
            return self.return_lane(io, lane);
        }
        if client.pin == Some(lane) && !client.needs_pin() {
            client.pin = None;
            self.return_lane(io, lane);
        }
    }

    pub(super) fn block(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let slot = self.slot(command);
        let Some(node) = self.master_of(io, whom, slot) else { return };
        if self.stuck.some() && self.refused_as_busy(io, whom, node, &command.plan) {
            return;
        }
        let Some(lane) = self.dedicate_to_block(whom, node) else { return };
        if let Some(client) = self.client(whom) {
            client.barrier = true;
            client.last_node = node;
        }
        self.on_lane(io, whom, lane, Said { bytes: command.bytes, plan: &command.plan, slot, kind: Kind::Block });
    }

    /// -UNBLOCKED: the server became a replica, and the command did not run.
    pub fn blocked_elsewhere(&mut self, io: &mut Io, lane: LaneId, flight: &Flight) {
        let bytes = self.lanes[lane].journal.front(flight.size()).to_vec();
        self.lanes[lane].journal.pop(flight.size());
        let whom = flight.whom;
        if !self.release(io, whom, lane) {
            return;
        }
        self.stats.again += 1;
        // Where to is only known when the watcher has looked.
        self.later(Again { flight: Flight { tries: flight.tries + 1, ..*flight }, bytes, to: To::Owner }, 20 * MS);
    }

    /// MOVED on a dedicated lane: nothing has happened there yet, so it can be another one, as long as it is the first
    /// command.
    pub(crate) fn pinned_moved(&mut self, io: &mut Io, lane: LaneId, flight: &Flight, moved: &Moved) {
        let whom = flight.whom;
        let bytes = self.lanes[lane].journal.front(flight.size()).to_vec();
        self.lanes[lane].journal.pop(flight.size());
        self.lanes[lane].dirty = true;
        let alone = self.lanes[lane].flights.is_empty();
        let Some(client) = self.client(whom) else { return };
        let within = client.transaction().is_some();
        let own = client.pin == Some(lane) || client.aside == Some(lane);
        let first = !within && own && flight.len > 0 && flight.tries < 5 && moved.fresh;
        let able = matches!(flight.kind, Kind::Block | Kind::Reply | Kind::Watch);
        if !first || !alone || !able || moved.to == NOBODY {
            // A slot that never was on this node has not moved: then the keys are not on one node, and trying again is
            // in vain.
            let moved_away = moved.belonged || flight.slot == client.pin_slot || flight.slot == NO_SLOT;
            let text: &[u8] = match flight.kind {
                Kind::Reply | Kind::Watch if !moved_away => {
                    b"-CROSSSLOT unslow: the node of this connection, which WATCH or the first key of MULTI named, \
                      does not have this slot; use a hash tag\r\n"
                }
                _ => b"-TRYAGAIN unslow: the slot has moved to another node; begin again\r\n",
            };
            if flight.kind == Kind::Exec {
                // The server has discarded it.
                return self.ended(io, lane, flight, text);
            }
            self.answer(io, whom, flight.seq, text, true);
            if matches!(flight.kind, Kind::Block | Kind::Watch) {
                self.unpin(io, whom, lane);
            }
            return;
        }
        if !self.release(io, whom, lane) {
            return;
        }
        let blocks = flight.kind == Kind::Block;
        let lane = if blocks { self.dedicate_to_block(whom, moved.to) } else { self.dedicate(whom, moved.to) };
        let Some(lane) = lane else { return };
        if moved.asking {
            let mut ask = Vec::new();
            write_command(&mut ask, &["ASKING"]);
            self.push(io, lane, Flight { len: ask.len() as u32, kind: Kind::Swallow, seq: 0, ..*flight }, &ask);
        }
        self.push(io, lane, Flight { tries: flight.tries + 1, ..*flight }, &bytes);
    }

    /// The connection that this client had alone is gone, and with it what the server knew of it.
    pub fn lost_own_lane(&mut self, io: &mut Io, lane: LaneId, whom: Whom) {
        let Some(client) = self.client(whom) else { return self.close_lane(io, lane) };
        if let Some(rare) = client.rare.changed()
            && let Some(stream) = rare.stream.as_mut().filter(|s| s.lane == Some(lane))
        {
            stream.lane = None;
        }
        if client.subscriber.lanes.contains(&lane) {
            return self.subscribe_anew(io, whom, lane);
        }
        if client.aside == Some(lane) {
            // Its command has its answer; what is watched is on the other one.
            client.aside = None;
            return self.close_lane(io, lane);
        }
        if client.pin == Some(lane) {
            client.pin = None;
            let monitored = matches!(client.rare.doing, Doing::Monitor);
            // What was queued is gone; EXEC must not pretend otherwise. The next EXEC says so.
            if let Some(transaction) = client.transaction_mut().filter(|t| t.at == Txn::Open) {
                transaction.at = Txn::Lost;
            }
            if client.watch.held() {
                client.watch = Watch::Lost;
            }
            self.close_lane(io, lane);
            if monitored {
                self.drop_client(io, whom);
            }
            return;
        }
        let (tracking, proto) = (client.tracking, client.proto);
        if self.lanes[lane].pooled {
            return self.close_lane(io, lane);
        }
        if tracking && proto == 3 {
            // The server has forgotten what it promised to tell: everything has to be asked for anew.
            self.push_to(io, whom, b">2\r\n$10\r\ninvalidate\r\n_\r\n");
        }
        // A lane of its own set is dialled again when needed, its setup said anew.
    }
}
