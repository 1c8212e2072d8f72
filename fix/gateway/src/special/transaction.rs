//! MULTI, WATCH and their ends.

use super::Said;
use crate::gather::elements;
use crate::ids::LaneId;
use crate::session::*;
use crate::step::{Command, wrong_arity};
use crate::worker::Worker;
use unslow_commands::{Plan, Special, UNKNOWN};
use unslow_nodes::NOBODY;
use unslow_reactor::Io;
use unslow_resp::write_command;

impl Transaction {
    /// A command is sent within it. What is about the transaction itself the server does not queue.
    pub fn send(&mut self, command: &Command) {
        if matches!(command.plan.special, Some(Special::Exec | Special::Discard | Special::Multi | Special::Watch)) {
            return;
        }
        if let (true, Some(db)) = (command.is(Special::Select), command.number(1)) {
            self.selects.push((self.sent, db));
        }
        self.sent += 1;
    }
}

impl Worker {
    pub(super) fn watch(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let slot = self.slot(command);
        let node = match self.client(whom).and_then(|c| c.pin) {
            None => self.node_for(slot, false, whom),
            Some(pin) => self.lanes[pin].node,
        };
        if node == NOBODY {
            let answer = self.nobody(slot);
            return self.say(io, whom, answer.as_bytes());
        }
        let Some(lane) = self.dedicate(whom, node) else { return };
        if let Some(client) = self.client(whom) {
            if !client.watch.held() {
                client.pin_slot = slot;
            }
            client.barrier = true;
        }
        // Whether anything is watched the answer says.
        self.on_lane(io, whom, lane, Said { bytes: command.bytes, plan: &command.plan, slot, kind: Kind::Watch });
    }

    /// UNWATCH, or EXEC without MULTI, where something is watched or was lost.
    pub(super) fn end_watch(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let pin = self.client(whom).and_then(|c| c.pin);
        let lane = match pin {
            Some(pin) => Some(pin),
            None => self.master_of(io, whom, NO_SLOT).and_then(|node| self.dedicate(whom, node)),
        };
        let Some(lane) = lane else { return };
        if let Some(client) = self.client(whom) {
            client.barrier = true;
        }
        let said = Said { bytes: command.bytes, plan: &command.plan, slot: NO_SLOT, kind: Kind::Exec };
        self.on_lane(io, whom, lane, said);
    }

    /// MULTI.
    pub(super) fn begin(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let Some(client) = self.client(whom) else { return };
        if client.watch.lost()
            && let Some(pin) = client.pin.take()
        {
            // Something it watched was lost: what it watches since does not make up for it.
            client.watch = Watch::Lost;
            self.close_lane(io, pin);
        }
        let Some(client) = self.client(whom) else { return };
        let at = match client.pin {
            Some(_) => Txn::Open,
            None if client.watch.lost() => Txn::Lost,
            None => Txn::Said,
        };
        client.rare.doing = Doing::Transaction(Box::new(Transaction::new(at)));
        match client.pin {
            None => self.say(io, whom, b"+OK\r\n"),
            Some(pin) => {
                // Refused, it queues nothing: what comes next would run at once.
                client.barrier = true;
                let said = Said { bytes: command.bytes, plan: &command.plan, slot: NO_SLOT, kind: Kind::Begin };
                self.on_lane(io, whom, pin, said);
            }
        }
    }

    /// EXEC or DISCARD of a transaction that no server has heard of.
    pub(super) fn end_unsaid(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let table = self.table.clone();
        let known = table.get(command.plan.number);
        let exec = command.is(Special::Exec);
        let poisoned = self.client(whom).and_then(|c| c.transaction()).is_some_and(|t| t.poisoned);
        if let Some(client) = self.client(whom) {
            client.end_transaction();
        }
        match exec {
            true if !known.fits(command.len()) => self.say(io, whom, &wrong_arity(command, known)),
            true if poisoned => {
                self.say(io, whom, b"-EXECABORT Transaction discarded because of previous errors.\r\n");
            }
            true => self.say(io, whom, b"*0\r\n"),
            false => self.say(io, whom, b"+OK\r\n"),
        }
    }

    /// Which node a transaction is for shows with its first key.
    pub(super) fn open(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let slot = self.slot(command);
        let cluster = self.cluster;
        let node = self.node_for(slot, false, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            if let Some(transaction) = self.client(whom).and_then(Client::transaction_mut) {
                transaction.at = Txn::Lost;
            }
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        if self.stuck.some() && self.refused_as_busy(io, whom, node, &command.plan) {
            return true;
        }
        let Some(lane) = self.dedicate(whom, node) else { return true };
        let Some(client) = self.client(whom) else { return true };
        // Commands may follow at once: all go to the same connection.
        client.barrier = false;
        client.last_node = node;
        client.pin_slot = slot;
        let Some(transaction) = client.transaction_mut() else { return true };
        transaction.at = Txn::Open;
        // Those that were kept are sent first.
        (transaction.sent, transaction.selects) = (transaction.queued.len(), Vec::new());
        transaction.blind = cluster && command.plan.key.is_none();
        let queued = transaction.queued.clone();
        let mut multi = Vec::new();
        write_command(&mut multi, &["MULTI"]);
        self.on_lane(io, whom, lane, Said { bytes: &multi, plan: &command.plan, slot, kind: Kind::Swallow });
        self.say_again(io, whom, queued, &command.plan);
        self.within(io, whom, command)
    }

    pub(super) fn within(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let blind = self.client(whom).and_then(|c| c.transaction()).is_some_and(|t| t.blind);
        if blind && !self.sighted(io, whom, command) {
            return false;
        }
        let table = self.table.clone();
        let Some(client) = self.client(whom) else { return true };
        let Some(pin) = client.pin else {
            if let Some(transaction) = client.transaction_mut() {
                transaction.at = Txn::Lost;
            }
            let answer = client.in_lost(command, table.get(command.plan.number));
            self.say(io, whom, &answer);
            return true;
        };
        if self.lanes[pin].journal.len() > self.config.hold_bytes {
            self.stall(io, whom, Stall::Room);
            return false;
        }
        let Some(client) = self.client(whom) else { return true };
        if let Some(transaction) = client.transaction_mut() {
            transaction.send(command);
        }
        let kind = match command.plan.special {
            Some(Special::Exec | Special::Discard) => {
                client.barrier = true;
                Kind::Exec
            }
            // It may be SELECT, AUTH or anything else under another name.
            _ if command.plan.number == UNKNOWN => {
                self.lanes[pin].dirty = true;
                Kind::Reply
            }
            // The next client of this connection expects it without.
            Some(Special::Asking | Special::ReadOnly) => {
                self.lanes[pin].dirty = true;
                Kind::Reply
            }
            Some(Special::Select) => {
                self.lanes[pin].dirty = true;
                Kind::Reply
            }
            _ => Kind::Reply,
        };
        let slot = self.slot(command);
        self.on_lane(io, whom, pin, Said { bytes: command.bytes, plan: &command.plan, slot, kind });
        true
    }

    /// EXEC of a transaction in which the gateway refused a command: as servers do, nothing of it runs.
    pub(super) fn abort(&mut self, io: &mut Io, whom: Whom, answer: &[u8]) {
        let Some(client) = self.client(whom) else { return };
        client.end_transaction();
        if let Some(pin) = client.pin.take() {
            self.close_lane(io, pin);
        }
        self.say(io, whom, answer);
    }

    /// What a transaction has said before it had its node; a MULTI among it is the client's own mistake.
    pub(super) fn say_again(&mut self, io: &mut Io, whom: Whom, queued: Vec<Vec<u8>>, plan: &Plan) {
        let Some(lane) = self.client(whom).and_then(|c| c.pin) else { return };
        for bytes in queued {
            self.on_lane(io, whom, lane, Said { bytes: &bytes, plan, slot: NO_SLOT, kind: Kind::Swallow });
            if let Some(flight) = self.lanes[lane].flights.back_mut() {
                flight.seq = 0;
            }
        }
    }

    /// A transaction that began on any node, because nothing in it named one, is begun anew on the one its first key
    /// names. False when it has to wait.
    pub(super) fn sighted(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let Some(client) = self.client(whom) else { return true };
        let idle = client.pending.is_empty();
        let pin = client.pin;
        let Some(transaction) = client.transaction_mut() else { return true };
        if command.plan.key.is_none() {
            if transaction.may_queue(command.bytes.len()) {
                transaction.queued.push(command.bytes.to_vec());
            } else {
                // Too much to begin anew elsewhere: it stays with the node it has.
                transaction.blind = false;
                transaction.queued = Vec::new();
            }
            return true;
        }
        if !idle {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        transaction.blind = false;
        let queued = std::mem::take(&mut transaction.queued);
        let slot = self.slot(command);
        if let Some(client) = self.client(whom) {
            client.pin_slot = slot;
        }
        let node = self.node_for(slot, false, whom);
        let Some(pin) = pin.filter(|pin| node != NOBODY && self.lanes[*pin].node != node) else { return true };
        if let Some(client) = self.client(whom) {
            client.pin = None;
        }
        self.close_lane(io, pin);
        let Some(lane) = self.dedicate(whom, node) else { return true };
        // What is said again may be AUTH, SELECT or the like.
        self.lanes[lane].dirty = true;
        let mut multi = Vec::new();
        write_command(&mut multi, &["MULTI"]);
        self.on_lane(io, whom, lane, Said { bytes: &multi, plan: &command.plan, slot, kind: Kind::Swallow });
        self.say_again(io, whom, queued, &command.plan);
        if let Some(client) = self.client(whom) {
            client.barrier = false;
        }
        true
    }

    /// EXEC, DISCARD or UNWATCH was answered, and nothing of what they end is left on the server.
    pub(crate) fn ended(&mut self, io: &mut Io, lane: LaneId, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        let selects = self.client(whom).map(Client::end_transaction).unwrap_or_default();
        if let Some(db) = selected(&selects, bytes) {
            let pin = self.client(whom).and_then(|c| c.pin.take());
            self.use_db(io, whom, db);
            if let Some(client) = self.client(whom) {
                client.pin = pin;
            }
        }
        self.answer(io, whom, flight.seq, bytes, true);
        self.unpin(io, whom, lane);
    }
}

/// The database of the last SELECT that the server took. Of what did not run there are no elements. A client may say
/// SELECT as often as it likes: the reply is read once.
fn selected(selects: &[(usize, u32)], reply: &[u8]) -> Option<u32> {
    let last = selects.last()?.0;
    let (mut next, mut db) = (0, None);
    for (place, element) in elements(reply).enumerate().take(last + 1) {
        let Some((at, wanted)) = selects.get(next) else { break };
        if *at == place {
            next += 1;
            if element == b"+OK\r\n" {
                db = Some(*wanted);
            }
        }
    }
    db
}
