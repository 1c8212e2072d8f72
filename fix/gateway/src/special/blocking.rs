//! Blocking commands, and connections that a client has alone.

use crate::map::NOBODY;
use crate::request::Range;
use crate::session::*;
use crate::worker::{To, Worker};
use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::commands::Plan;

impl Worker {
    /// A lane for this client alone, as its pin.
    pub fn dedicate(&mut self, whom: Whom, node: u16) -> u32 {
        let Some(client) = self.client(whom) else { return NONE };
        if client.pin != NONE {
            return client.pin;
        }
        let set = client.set;
        let lane = self.take_lane(set, node, whom);
        if let Some(client) = self.client(whom) {
            client.pin = lane;
            client.barrier = true;
        }
        lane
    }

    /// The dedicated lane has done its work.
    pub fn unpin(&mut self, io: &mut Io, whom: Whom, lane: u32) {
        let Some(client) = self.client(whom) else { return };
        if client.pin == lane && !client.watching && client.multi == Multi::No && !client.monitor {
            client.pin = NONE;
            self.return_lane(io, lane);
        }
    }

    pub(super) fn block(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let Some(client) = self.client(whom) else { return true };
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        let slot = self.slot(bytes, args, plan);
        let Some(node) = self.master_of(io, whom, slot) else { return true };
        let lane = self.dedicate(whom, node);
        if let Some(client) = self.client(whom) {
            client.barrier = true;
            client.last_node = node;
        }
        self.on_lane(io, whom, lane, bytes, plan, slot, Kind::Block);
        true
    }

    /// -UNBLOCKED: the server became a replica, and the command did not run.
    pub fn blocked_elsewhere(&mut self, io: &mut Io, lane: u32, flight: &Flight) -> bool {
        let bytes = self.lanes[lane as usize].journal.front(flight.len as usize).to_vec();
        self.lanes[lane as usize].journal.pop(flight.len as usize);
        let whom = flight.whom;
        let watching = self.client(whom).is_some_and(|c| c.watching);
        if watching {
            self.fail_flight(io, flight, b"-UNBLOCKED the server has become a replica\r\n");
            return true;
        }
        match self.client(whom) {
            Some(client) if client.pin == lane => client.pin = NONE,
            _ => return true,
        }
        self.return_lane(io, lane);
        // Where to is only known when the watcher has looked.
        self.later(
            crate::worker::Again { flight: Flight { tries: flight.tries + 1, ..*flight }, bytes, to: To::Owner },
            20 * crate::worker::MS,
        );
        true
    }

    /// MOVED on a dedicated lane: nothing has happened there yet, so it can be another one, as long as it is the first
    /// command. True when that was done.
    pub fn pinned_moved(
        &mut self,
        io: &mut Io,
        lane: u32,
        flight: &Flight,
        to: u16,
        fresh: bool,
        asking: bool,
    ) -> bool {
        let whom = flight.whom;
        let Some(client) = self.client(whom) else { return false };
        let first = client.multi == Multi::No && client.pin == lane && flight.len > 0 && flight.tries < 5 && fresh;
        let alone = self.lanes[lane as usize].flights.is_empty();
        let bytes = self.lanes[lane as usize].journal.front(flight.len as usize).to_vec();
        self.lanes[lane as usize].journal.pop(flight.len as usize);
        self.lanes[lane as usize].dirty = true;
        if !first || !alone || to == NOBODY || !matches!(flight.kind, Kind::Block | Kind::Reply) {
            let text = b"-TRYAGAIN unslow: the slot has moved to another node; begin again\r\n";
            if flight.kind == Kind::Exec {
                // The server has discarded it.
                self.ended(io, lane, flight, text);
                return true;
            }
            self.answer(io, whom, flight.seq, text, true);
            if flight.kind == Kind::Block {
                self.unpin(io, whom, lane);
            }
            return true;
        }
        client_pin_none(self, whom);
        self.return_lane(io, lane);
        let lane = self.dedicate(whom, to);
        if asking {
            let mut ask = Vec::new();
            write_command(&mut ask, &["ASKING"]);
            self.push(io, lane, Flight { len: ask.len() as u32, kind: Kind::Swallow, ..*flight }, &ask);
        }
        self.push(io, lane, Flight { tries: flight.tries + 1, ..*flight }, &bytes);
        true
    }

    /// The connection that this client had alone is gone, and with it what the server knew of it.
    pub fn lost_own_lane(&mut self, io: &mut Io, lane: u32, whom: Whom) {
        let Some(client) = self.client(whom) else { return self.close_lane(io, lane) };
        if let Some(stream) = client.stream.as_mut().filter(|s| s.lane == lane) {
            (stream.lost, stream.lane) = (true, NONE);
        }
        let Some(client) = self.client(whom) else { return };
        if client.subs.contains(&lane) {
            return self.subscribe_anew(io, whom, lane);
        }
        if client.pin == lane {
            let monitor = client.monitor;
            let within = client.multi == Multi::Open;
            client.pin = NONE;
            client.monitor = false;
            // What was queued is gone; EXEC must not pretend otherwise. The next EXEC says so.
            if within || client.watching {
                client.multi = if within { Multi::Lost } else { Multi::No };
                client.watch_lost = client.watching;
                client.watching = false;
            }
            self.close_lane(io, lane);
            if monitor {
                self.drop_client(io, whom);
            }
            return;
        }
        let (tracking, proto) = (client.tracking, client.proto);
        if self.lanes[lane as usize].pooled {
            return self.close_lane(io, lane);
        }
        if tracking && proto == 3 {
            // The server has forgotten what it promised to tell: everything has to be asked for anew.
            self.push_to(io, whom, b">2\r\n$10\r\ninvalidate\r\n_\r\n");
        }
        // A lane of its own set is dialled again when needed, its setup said anew.
    }
}

pub(super) fn client_pin_none(worker: &mut Worker, whom: Whom) {
    if let Some(client) = worker.client(whom) {
        client.pin = NONE;
    }
}
