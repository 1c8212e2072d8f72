//! Blocking commands, and connections that a client has alone.

use super::Said;
use crate::ids::LaneId;
use crate::map::NOBODY;
use crate::session::*;
use crate::step::Command;
use crate::worker::{Again, MS, To, Worker};
use unslow_reactor::Io;
use unslow_resp::write_command;

/// A redirect of a command on a connection that its client has alone.
pub(crate) struct Moved {
    /// NOBODY where no node of the topology has the address.
    pub to: u16,
    pub asking: bool,
    /// Nothing was answered on the connection before.
    pub fresh: bool,
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

    /// The dedicated lane has done its work.
    pub fn unpin(&mut self, io: &mut Io, whom: Whom, lane: LaneId) {
        let Some(client) = self.client(whom) else { return };
        if client.pin == Some(lane) && !client.needs_pin() {
            client.pin = None;
            self.return_lane(io, lane);
        }
    }

    pub(super) fn block(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let slot = self.slot(command);
        let Some(node) = self.master_of(io, whom, slot) else { return };
        let Some(lane) = self.dedicate(whom, node) else { return };
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
        let Some(client) = self.client(whom) else { return };
        if client.watch.held() {
            return self.fail_flight(io, flight, b"-UNBLOCKED the server has become a replica\r\n");
        }
        if client.pin != Some(lane) {
            return;
        }
        client.pin = None;
        self.return_lane(io, lane);
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
        let first = !within && client.pin == Some(lane) && flight.len > 0 && flight.tries < 5 && moved.fresh;
        let able = matches!(flight.kind, Kind::Block | Kind::Reply);
        if !first || !alone || !able || moved.to == NOBODY {
            let text = b"-TRYAGAIN unslow: the slot has moved to another node; begin again\r\n";
            if flight.kind == Kind::Exec {
                // The server has discarded it.
                return self.ended(io, lane, flight, text);
            }
            self.answer(io, whom, flight.seq, text, true);
            if flight.kind == Kind::Block {
                self.unpin(io, whom, lane);
            }
            return;
        }
        client.pin = None;
        self.return_lane(io, lane);
        let Some(lane) = self.dedicate(whom, moved.to) else { return };
        if moved.asking {
            let mut ask = Vec::new();
            write_command(&mut ask, &["ASKING"]);
            self.push(io, lane, Flight { len: ask.len() as u32, kind: Kind::Swallow, ..*flight }, &ask);
        }
        self.push(io, lane, Flight { tries: flight.tries + 1, ..*flight }, &bytes);
    }

    /// The connection that this client had alone is gone, and with it what the server knew of it.
    pub fn lost_own_lane(&mut self, io: &mut Io, lane: LaneId, whom: Whom) {
        let Some(client) = self.client(whom) else { return self.close_lane(io, lane) };
        if let Some(stream) = client.stream.as_mut().filter(|s| s.lane == Some(lane)) {
            stream.lane = None;
        }
        if client.subs.contains(&lane) {
            return self.subscribe_anew(io, whom, lane);
        }
        if client.pin == Some(lane) {
            client.pin = None;
            let monitored = matches!(client.doing, Doing::Monitor);
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
