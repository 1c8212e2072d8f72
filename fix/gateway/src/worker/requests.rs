//! The way of a command from its client to a lane.

use super::*;
use crate::reply::error;
use crate::request::{self, Allowed, Passed, Passing, Progress, Range, Request, Wrong};
use crate::session::*;
use crate::step::Command;
use unslow_commands::UNKNOWN;
use unslow_nodes::NOBODY;
use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::slot_of;

impl Worker {
    pub(super) fn client_data(&mut self, io: &mut Io, index: usize, bytes: &[u8]) -> usize {
        let mut used = 0;
        let Some(client) = self.clients[index].as_mut() else { return bytes.len() };
        let before = std::mem::replace(&mut client.seen, self.now);
        // One that has just come was seen, and has said nothing.
        self.pace.hear(if client.commands == 0 { 0 } else { before });
        if client.leaving == Leaving::WhenAnswered {
            return bytes.len();
        }
        let whom = client.whom();
        let mut args = std::mem::take(&mut self.args);
        while used < bytes.len() {
            let Some(client) =
                self.clients[index].as_mut().filter(|c| c.serial == whom.serial && c.leaving != Leaving::WhenAnswered)
            else {
                used = bytes.len();
                break;
            };
            if client.rare.stream.is_some() {
                let taken = self.stream(io, whom, &bytes[used..]);
                used += taken;
                if taken == 0 {
                    break;
                }
                continue;
            }
            let waiting = client.pending.len();
            if client.barrier || client.version != self.map.version {
                if waiting > 0 {
                    self.stall(io, whom, Stall::Answers);
                    break;
                }
                client.barrier = false;
                client.version = self.map.version;
            }
            if client.bulky && waiting == 0 && client.set.is_some_and(|set| self.sets[set].owner.is_none()) {
                self.own_set(whom);
                continue;
            }
            if waiting >= self.config.client_pending {
                self.stall(io, whom, Stall::Some);
                break;
            }
            if io.unsent(client.id) > OUTPUT_HIGH {
                self.stall(io, whom, Stall::Room);
                break;
            }
            let rest = &bytes[used..];
            let allowed = if client.set.is_none() { Allowed::Little } else { self.allowed };
            match request::parse(rest, &mut args, allowed, &mut client.progress) {
                Request::Incomplete => break,
                Request::Nothing(n) => used += n,
                Request::Whole(n) => {
                    if !self.command(io, whom, &rest[..n], &args) {
                        break;
                    }
                    used += n;
                }
                Request::Inline(n) => {
                    let words: Vec<Vec<u8>> =
                        args.iter().map(|&(a, b)| request::unquote(&rest[a as usize..b as usize])).collect();
                    let mut whole = Vec::new();
                    write_command(&mut whole, &words);
                    request::parse_whole(&whole, &mut args);
                    if !self.command(io, whom, &whole, &args) {
                        break;
                    }
                    used += n;
                }
                Request::Long => match self.begin_stream(io, whom, rest, &args) {
                    Long::Begun => {}
                    Long::Waits => break,
                    Long::Kept => {
                        if let Some(client) = self.client(whom) {
                            client.progress = Some(Box::new(Progress::kept()));
                        }
                    }
                },
                Request::Bad(wrong) => {
                    self.stats.error("protocol");
                    self.say(io, whom, &protocol_error(wrong));
                    self.close_when_answered(io, whom);
                    used = bytes.len();
                }
            }
        }
        self.args = args;
        self.stats.bytes_in += used as u64;
        self.hold_input(io, whom, bytes.len() - used);
        if self.client(whom).is_some_and(|c| c.leaving == Leaving::SaidAll && c.stall == Stall::No) {
            self.said_all(io, whom);
        }
        used
    }

    /// So many bytes of a client wait in memory: for the rest of its request, or because it is not read. Whoever holds
    /// more than one client may is told and closed; when all together hold too much, whoever holds most.
    fn hold_input(&mut self, io: &mut Io, whom: Whom, unread: usize) {
        let Some(client) = self.client(whom) else { return };
        if client.stall == Stall::No {
            client.catch_up();
        }
        let before = std::mem::replace(&mut client.unread, unread);
        self.unread = self.unread + unread - before;
        let (one, all) = (self.config.client_input_bytes, self.config.input_bytes / self.shared.workers.len().max(1));
        if unread > one {
            let why = format!("a request of more than client_input_bytes = {one}");
            self.close_full(io, whom, &why);
        } else if unread > before
            && self.unread > all
            && let Some(most) = self.everyone().max_by_key(|c| c.unread).map(|c| c.whom())
        {
            let why = format!("unfinished requests hold more than input_bytes = {}", self.config.input_bytes);
            self.close_full(io, most, &why);
        }
    }

    fn close_full(&mut self, io: &mut Io, whom: Whom, why: &str) {
        if let Some(client) = self.client(whom) {
            let held = std::mem::take(&mut client.unread);
            self.unread -= held;
        }
        self.stats.error("too_long");
        self.say(io, whom, &error("ERR", &format!("Protocol error: unslow: {why}")));
        self.close_when_answered(io, whom);
    }

    /// One whole command. False when it has to wait: it comes again.
    pub(super) fn command(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range]) -> bool {
        let plan = self.table.plan(bytes, args);
        let command = Command { bytes, args, plan };
        if self.halted != Halt::No && self.waits_out(&plan) {
            self.stall(io, whom, Stall::Room);
            return false;
        }
        if !self.unconfirmed.is_empty() && self.waits_for_subscribers(io, whom, &command) {
            return false;
        }
        let Some(client) = self.clients[whom.place()].as_mut() else { return true };
        if plan.key.is_none() && client.plain() && command.asks_who_this_is() {
            let answer = self.who_this_is();
            self.say(io, whom, &answer);
            return true;
        }
        let common = plan.plain || plan.divide.is_some() && !self.cluster;
        if !common || !client.plain() {
            return self.special(io, whom, &command);
        }
        let slot = match command.key() {
            Some(key) => {
                self.sampled = self.sampled.wrapping_sub(1);
                if self.sampled == 0 {
                    self.sampled = self.config.key_sample;
                    self.stats.top.count(key);
                }
                if self.cluster { slot_of(key) } else { 0 }
            }
            None => NO_SLOT,
        };
        self.send(io, whom, &command, slot, Kind::Reply)
    }

    /// To the node of `slot`, on the client's own set of lanes. False when there is no room.
    pub fn send(&mut self, io: &mut Io, whom: Whom, command: &Command, slot: u16, kind: Kind) -> bool {
        let Some(set) = self.clients[whom.place()].as_ref().and_then(|c| c.set) else { return true };
        let node = self.node_for(slot, command.plan.read, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        if self.stuck.some() && kind == Kind::Reply && self.refused_as_busy(io, whom, node, &command.plan) {
            return true;
        }
        let lane = self.lane_of(set, node);
        if self.lanes[lane].journal.len() > self.config.hold_bytes {
            self.stall(io, whom, Stall::Room);
            return false;
        }
        let Some(client) = self.clients[whom.place()].as_mut() else { return true };
        client.commands += 1;
        client.last_node = node;
        let seq = client.begin();
        self.stats.commands += 1;
        let flight = Flight::new(whom, seq, &command.plan, command.bytes, self.now, slot, kind);
        self.push(io, lane, flight, command.bytes);
        true
    }

    /// The node that answers for a slot, or any for [`NO_SLOT`].
    #[inline]
    pub fn node_for(&mut self, slot: u16, read: bool, whom: Whom) -> u16 {
        let owner = if slot == NO_SLOT { NOBODY } else { self.map.servers.owner(slot) };
        // A slot between two owners: any node knows, or says how it is.
        let master = if owner == NOBODY {
            let masters = self.map.servers.masters();
            if masters.is_empty() {
                return NOBODY;
            }
            // Always the same one for a client, as long as it is well.
            let at = whom.serial as usize % masters.len();
            let well = |n: &u16| self.map.servers[*n].health == unslow_topology::Health::Up;
            let mut order = masters[at..].iter().chain(&masters[..at]);
            *order.find(|n| well(n)).unwrap_or(&masters[at])
        } else {
            owner
        };
        if !read || master == NOBODY {
            return master;
        }
        let readers = &self.map.readers[usize::from(master)];
        if readers.is_empty() {
            return master;
        }
        // A client stays with one replica, so that it does not read the past behind the present.
        let reader = readers[whom.serial as usize % readers.len()];
        if self.banned.get(usize::from(reader)).is_some_and(|until| *until > self.now) { master } else { reader }
    }

    /// What a command gets whose slot nobody owns.
    pub fn nobody(&mut self, slot: u16) -> String {
        self.shared.doubt();
        self.stats.error("no_owner");
        match slot {
            NO_SLOT => "-ERR unslow: no master is known; see UNSLOW SHOW TOPOLOGY\r\n".into(),
            _ => format!("-CLUSTERDOWN Hash slot not served: nobody owns slot {slot}\r\n"),
        }
    }

    /// A command with an argument too long to wait for: it goes through on a lane of the client's own, where it can.
    pub(super) fn begin_stream(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range]) -> Long {
        let plan = self.table.plan(bytes, args);
        let command = Command { bytes, args, plan };
        if !self.unconfirmed.is_empty() && self.waits_for_subscribers(io, whom, &command) {
            return Long::Waits;
        }
        let (key, cluster, allowed) = (command.key(), self.cluster, self.allowed);
        let Some(client) = self.client(whom) else { return Long::Begun };
        let within = client.mode() == Mode::Transaction(Txn::Open);
        let stateful = plan.special.is_some()
            || plan.blocking
            || !(within || matches!(client.mode(), Mode::Plain | Mode::Blocked));
        let known = !args.is_empty() && plan.number != UNKNOWN && (key.is_some() || !cluster);
        if client.set.is_none() || !known || stateful || plan.admin || cluster && plan.divide.is_some() {
            return Long::Kept;
        }
        let waits = match client.awaits_confirmations() {
            true => Some(Stall::Confirmations),
            false => (!client.pending.is_empty()).then_some(Stall::Answers),
        };
        if let Some(why) = waits {
            self.stall(io, whom, why);
            return Long::Waits;
        }
        let pin = client.pin.filter(|_| within);
        if self.halted != Halt::No && self.waits_out(&plan) {
            self.stall(io, whom, Stall::Room);
            return Long::Waits;
        }
        let slot = if cluster { slot_of(key.unwrap_or(b"")) } else { 0 };
        let lane = if let Some(pin) = pin {
            pin
        } else {
            let node = self.node_for(slot, false, whom);
            if node == NOBODY {
                let answer = self.nobody(slot);
                self.say(io, whom, answer.as_bytes());
                self.close_when_answered(io, whom);
                return Long::Begun;
            }
            if self.stuck.some() && self.refused_as_busy(io, whom, node, &plan) {
                // The rest of it goes nowhere.
                if let Some(client) = self.client(whom) {
                    client.rare.stream = Some(Box::new(Stream { lane: None, passing: Passing::new(allowed) }));
                }
                return Long::Begun;
            }
            self.own_set(whom);
            let Some(set) = self.client(whom).and_then(|c| c.set) else { return Long::Begun };
            self.lane_of(set, node)
        };
        if !self.lanes[lane].flows() {
            let now = self.now;
            let since = *self.lanes[lane].down_since.get_or_insert(now);
            if now > since + self.config.hold_ms * MS {
                self.stats.error("held_too_long");
                let why = match self.lanes[lane].lacks_permit() {
                    true => {
                        let overdue = self.overdue(lane);
                        self.words(&overdue, whom)
                    }
                    false => error(
                        "ERR",
                        &format!("unslow: no connection for {} ms; this command was not sent", self.config.hold_ms),
                    ),
                };
                self.say(io, whom, &why);
                self.close_when_answered(io, whom);
                return Long::Begun;
            }
            self.dial_if_needed(io, lane);
            self.stall(io, whom, Stall::Room);
            return Long::Waits;
        }
        let now = self.now;
        let Some(client) = self.client(whom) else { return Long::Begun };
        client.commands += 1;
        let seq = client.begin();
        if let Some(transaction) = client.transaction_mut() {
            transaction.send(&command);
        }
        client.rare.stream = Some(Box::new(Stream { lane: Some(lane), passing: Passing::new(allowed) }));
        let flight = Flight { repeatable: false, ..Flight::new(whom, seq, &plan, &[], now, slot, Kind::Reply) };
        self.stats.commands += 1;
        let lane = &mut self.lanes[lane];
        lane.flights.push_back(flight);
        lane.sent += 1;
        Long::Begun
    }

    /// More of it. Returns how many bytes were taken; 0 when it has to wait.
    pub(super) fn stream(&mut self, io: &mut Io, whom: Whom, bytes: &[u8]) -> usize {
        const AHEAD: usize = 4 << 20;
        let Some(client) = self.client(whom) else { return bytes.len() };
        let Some(stream) = client.rare.stream.as_mut() else { return 0 };
        let lane = stream.lane;
        let (taken, done) = match stream.passing.pass(bytes) {
            Passed::More(taken) => (taken, false),
            Passed::Done(taken) => (taken, true),
            Passed::Bad(wrong) => {
                self.end_stream(io, whom, lane, wrong);
                return bytes.len();
            }
        };
        if done {
            client.rare.stream = None;
            client.rare.settle();
        }
        if let Some(connection) = lane.and_then(|lane| self.lanes[lane].connection) {
            io.output(connection).extend_from_slice(&bytes[..taken]);
            if io.unsent(connection) > AHEAD {
                io.flush(connection);
                if io.unsent(connection) > AHEAD {
                    self.stall(io, whom, Stall::Room);
                }
            }
        }
        taken
    }

    /// What goes through is no request any more: that is its answer, and the client's last.
    fn end_stream(&mut self, io: &mut Io, whom: Whom, lane: Option<LaneId>, wrong: Wrong) {
        self.stats.error("protocol");
        if let Some(client) = self.client(whom) {
            client.rare.stream = None;
            client.pin = client.pin.filter(|pin| Some(*pin) != lane);
        }
        // It has half a command: nobody else may use it.
        if let Some(lane) = lane {
            self.close_lane(io, lane);
        }
        // Nothing else of this client is under way.
        match self.client(whom).filter(|client| !client.pending.is_empty()).map(|client| client.base) {
            Some(seq) => self.answer(io, whom, seq, &protocol_error(wrong), true),
            None => self.say(io, whom, &protocol_error(wrong)),
        }
        self.close_when_answered(io, whom);
    }
}

/// What a client hears before it is closed.
fn protocol_error(wrong: Wrong) -> Vec<u8> {
    [&b"-ERR "[..], &wrong.text(), b"\r\n"].concat()
}
