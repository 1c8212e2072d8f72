//! MULTI, WATCH and their ends.

use super::HARMLESS;
use super::blocking::client_pin_none;
use crate::event;
use crate::map::NOBODY;
use crate::request::Range;
use crate::session::*;
use crate::worker::{Worker, is};
use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::commands::{Plan, Special, Spread, UNKNOWN};

impl Worker {
    pub(super) fn watch(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let slot = self.slot(bytes, args, plan);
        let pin = self.client(whom).map_or(NONE, |c| c.pin);
        let node = match pin {
            NONE => self.node_for(slot, false, whom),
            pin => self.lanes[pin as usize].node,
        };
        if node == NOBODY {
            let answer = self.nobody(slot);
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        let lane = self.dedicate(whom, node);
        if let Some(client) = self.client(whom) {
            client.watching = true;
            client.barrier = true;
        }
        self.on_lane(io, whom, lane, bytes, plan, slot, Kind::Reply);
        true
    }

    /// Which node a transaction is for shows with its first key.
    pub(super) fn first_in_transaction(
        &mut self,
        io: &mut Io,
        whom: Whom,
        bytes: &[u8],
        args: &[Range],
        plan: &Plan,
    ) -> bool {
        match plan.special {
            Some(Special::Exec | Special::Discard)
                if self.client(whom).is_some_and(|c| c.queued.is_empty()) || is(plan, Special::Discard) =>
            {
                if let Some(client) = self.client(whom) {
                    client.multi = Multi::No;
                    client.queued.clear();
                }
                let nothing: &[u8] = if is(plan, Special::Exec) { b"*0\r\n" } else { b"+OK\r\n" };
                self.say(io, whom, nothing);
                return true;
            }
            None | Some(Special::Ping) if self.cluster && plan.key.is_none() && plan.number != UNKNOWN => {
                // It names no node; the next one may. What the server would refuse it has to refuse itself.
                let fits = self.table.get(plan.number).fits(args.len());
                let Some(client) = self.client(whom) else { return true };
                if fits && client.may_queue(bytes.len()) {
                    client.queued.push(bytes.to_vec());
                    self.say(io, whom, b"+QUEUED\r\n");
                    return true;
                }
            }
            _ => {}
        }
        let Some(client) = self.client(whom) else { return true };
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        let slot = self.slot(bytes, args, plan);
        let cluster = self.cluster;
        let node = self.node_for(slot, false, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            if let Some(client) = self.client(whom) {
                client.multi = Multi::Lost;
            }
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        let lane = self.dedicate(whom, node);
        if let Some(client) = self.client(whom) {
            client.multi = Multi::Open;
            client.multi_db = None;
            client.blind = cluster && plan.key.is_none();
            // Commands may follow at once: all go to the same connection.
            client.barrier = false;
            client.last_node = node;
        }
        let mut multi = Vec::new();
        write_command(&mut multi, &["MULTI"]);
        self.on_lane(io, whom, lane, &multi, plan, slot, Kind::Swallow);
        let queued = self.client(whom).map(|c| c.queued.clone()).unwrap_or_default();
        self.say_again(io, whom, lane, queued, plan);
        self.in_transaction(io, whom, bytes, args, plan)
    }

    /// The connection of the transaction, or the one that watched for it, is gone.
    pub(super) fn lost_transaction(&mut self, io: &mut Io, whom: Whom, args: usize, plan: &Plan) {
        let fits = self.table.get(plan.number).fits(args);
        let Some(client) = self.client(whom) else { return };
        let changed = client.watch_lost;
        if !fits && plan.number != UNKNOWN {
            client.poisoned = true;
            return self.wrong_arity(io, whom, plan);
        }
        let answer: &[u8] = match plan.special {
            Some(Special::Exec | Special::Discard) => {
                client.multi = Multi::No;
                client.watch_lost = false;
                client.queued.clear();
                let poisoned = std::mem::replace(&mut client.poisoned, false);
                match (is(plan, Special::Exec), changed) {
                    (false, _) => b"+OK\r\n",
                    (true, _) if poisoned => b"-EXECABORT Transaction discarded because of previous errors.\r\n",
                    // As if a watched key had changed, which nobody knows.
                    (true, true) if client.proto == 3 => b"_\r\n",
                    (true, true) => b"*-1\r\n",
                    (true, false) => b"-EXECABORT unslow: the server's connection broke before EXEC; nothing of this transaction ran\r\n",
                }
            }
            _ if changed => b"+QUEUED\r\n",
            _ => b"-ERR unslow: the server's connection broke; nothing of this transaction will run\r\n",
        };
        self.say(io, whom, answer);
    }

    pub(super) fn in_transaction(
        &mut self,
        io: &mut Io,
        whom: Whom,
        bytes: &[u8],
        args: &[Range],
        plan: &Plan,
    ) -> bool {
        if self.client(whom).is_some_and(|c| c.blind) && !self.sighted(io, whom, bytes, args, plan) {
            return false;
        }
        let Some(client) = self.client(whom) else { return true };
        let pin = client.pin;
        if pin == NONE {
            client.multi = Multi::Lost;
            self.lost_transaction(io, whom, args.len(), plan);
            return true;
        }
        if self.lanes[pin as usize].journal.len() > self.config.hold_bytes {
            self.stall(io, whom, Stall::Room);
            return false;
        }
        let Some(client) = self.client(whom) else { return true };
        let kind = match plan.special {
            Some(Special::Exec | Special::Discard) => {
                client.barrier = true;
                Kind::Exec
            }
            // It may be SELECT, AUTH or anything else under another name.
            _ if plan.number == UNKNOWN => {
                self.lanes[pin as usize].dirty = true;
                Kind::Reply
            }
            Some(Special::Select) => {
                let db = args
                    .get(1)
                    .and_then(|&(a, b)| std::str::from_utf8(&bytes[a as usize..b as usize]).ok()?.parse().ok());
                client.multi_db = db.or(client.multi_db);
                self.lanes[pin as usize].dirty = true;
                Kind::Reply
            }
            _ => Kind::Reply,
        };
        let slot = self.slot(bytes, args, plan);
        self.on_lane(io, whom, pin, bytes, plan, slot, kind);
        true
    }

    /// Commands that belong to the connection, or to all nodes, mean something else on the connection of a transaction to one node.
    pub(super) fn not_in_transactions(&self, plan: &Plan) -> Option<String> {
        let name = &self.table.get(plan.number).name;
        let (cluster, keyless) = (self.cluster, plan.key.is_none());
        match plan.special {
            Some(
                Special::Client
                | Special::Auth
                | Special::Hello
                | Special::Subscribe
                | Special::Ssubscribe
                | Special::Monitor
                | Special::Unslow
                | Special::Replicate,
            ) => Some(format!("unslow: {name} is about the connection, and is not taken within MULTI")),
            Some(Special::Cluster | Special::Scan) if cluster => {
                Some(format!("unslow: {name} is answered for all nodes, and a transaction is on one"))
            }
            None if cluster && keyless && plan.spread != Spread::Any => {
                Some(format!("unslow: {name} goes to several nodes, and a transaction to one"))
            }
            None if cluster && keyless && plan.admin && !HARMLESS.contains(&name.as_str()) => Some(format!(
                "unslow: {name} is for one node of a cluster, and a gateway would choose any; connect to the node itself"
            )),
            _ => None,
        }
    }

    /// EXEC of a transaction in which the gateway refused a command: as servers do, nothing of it runs.
    pub(super) fn abort(&mut self, io: &mut Io, whom: Whom) -> bool {
        let Some(client) = self.client(whom) else { return true };
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        client.queued.clear();
        (client.multi, client.multi_db, client.poisoned, client.blind) = (Multi::No, None, false, false);
        (client.watching, client.watch_lost) = (false, false);
        let pin = std::mem::replace(&mut client.pin, NONE);
        if pin != NONE {
            self.close_lane(io, pin);
        }
        self.say(io, whom, b"-EXECABORT Transaction discarded because of previous errors.\r\n");
        true
    }

    /// What a transaction has said before it had its node; a MULTI among it is the client's own mistake.
    pub(super) fn say_again(&mut self, io: &mut Io, whom: Whom, lane: u32, queued: Vec<Vec<u8>>, plan: &Plan) {
        for command in queued {
            self.on_lane(io, whom, lane, &command, plan, NO_SLOT, Kind::Swallow);
            if let Some(flight) = self.lanes[lane as usize].flights.back_mut() {
                flight.seq = 0;
            }
        }
    }

    /// A transaction that began on any node, because nothing in it named one, is begun anew on the one its first key
    /// names. False when it has to wait.
    pub(super) fn sighted(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let Some(client) = self.client(whom) else { return true };
        if plan.key.is_none() {
            if client.may_queue(bytes.len()) {
                client.queued.push(bytes.to_vec());
            } else {
                // Too much to begin anew elsewhere: it stays with the node it has.
                client.blind = false;
                client.queued = Vec::new();
            }
            return true;
        }
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        let (pin, queued) = (client.pin, std::mem::take(&mut client.queued));
        client.blind = false;
        let slot = self.slot(bytes, args, plan);
        let node = self.node_for(slot, false, whom);
        if node == NOBODY || self.lanes[pin as usize].node == node {
            return true;
        }
        client_pin_none(self, whom);
        self.close_lane(io, pin);
        let lane = self.dedicate(whom, node);
        // What is said again may be AUTH, SELECT or the like.
        self.lanes[lane as usize].dirty = true;
        let mut multi = Vec::new();
        write_command(&mut multi, &["MULTI"]);
        self.on_lane(io, whom, lane, &multi, plan, slot, Kind::Swallow);
        self.say_again(io, whom, lane, queued, plan);
        if let Some(client) = self.client(whom) {
            client.barrier = false;
        }
        true
    }

    /// EXEC, DISCARD or UNWATCH was answered.
    pub fn executed(&mut self, io: &mut Io, lane: u32, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        if !event::leaves_nothing(bytes, flight.author) {
            // Refused (to this user, or for its arguments), it ends nothing: the client is within it still, and keeps the connection.
            return self.answer(io, whom, flight.seq, bytes, true);
        }
        self.ended(io, lane, flight, bytes);
    }

    /// A transaction or a WATCH is over: `bytes` is the answer to its last command.
    pub(super) fn ended(&mut self, io: &mut Io, lane: u32, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        if let Some(client) = self.client(whom) {
            client.multi = Multi::No;
            client.watching = false;
            client.blind = false;
            client.watch_lost = false;
            client.queued.clear();
            let db = client.multi_db.take();
            let ran = bytes.first() == Some(&b'*') && !bytes.starts_with(b"*-1");
            if let (Some(db), true) = (db, ran) {
                let pin = self.client(whom).map(|c| std::mem::replace(&mut c.pin, NONE));
                self.use_db(io, whom, db);
                if let (Some(client), Some(pin)) = (self.client(whom), pin) {
                    client.pin = pin;
                }
            }
        }
        self.answer(io, whom, flight.seq, bytes, true);
        self.unpin(io, whom, lane);
    }
}
