//! Commands with a state: transactions, blocking, pub/sub, MONITOR, tracking, who one is. They get connections to
//! servers of their own, and give them back clean. What is to be done is judged in `step.rs`, and done here.

mod blocking;
mod client;
mod identity;
pub(crate) mod others;
mod pubsub;
#[cfg(test)]
mod pubsub_tests;
#[cfg(test)]
mod tests;
mod transaction;

pub(crate) use blocking::Moved;
use unslow_commands::{Plan, Special, Spread};
use unslow_nodes::Author;
use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::slot_of;

use crate::config::Read;
use crate::ids::LaneId;
use crate::reply::error;
use crate::session::*;
use crate::step::{Command, HARMLESS, NO_DEBUGGER, Step, World, for_one_node};
use crate::worker::Worker;
use unslow_nodes::NOBODY;

/// MULTI, as it is sent.
const MULTI_BYTES: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";

/// What is said on a lane for a client.
pub(crate) struct Said<'a> {
    pub bytes: &'a [u8],
    pub plan: &'a Plan,
    pub slot: u16,
    pub kind: Kind,
}

impl Worker {
    /// Whatever is not common. False when it has to wait.
    pub fn special(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let world = World { cluster: self.cluster, shared: self.shares_connections(whom), trusted: self.trusted(whom) };
        let table = self.table.clone();
        let known = table.get(command.plan.number);
        let Some(client) = self.client(whom) else { return true };
        match client.on_command(command, known, world) {
            Step::OwnConnections => {
                self.own_set(whom);
                return self.special(io, whom, command);
            }
            Step::Close => {
                // Servers close at once: it is HTTP, written by a browser whose user knows nothing of it.
                self.stats.error("protocol");
                self.close_when_answered(io, whom);
            }
            Step::Wait(stall) => {
                self.stall(io, whom, stall);
                return false;
            }
            Step::Say(answer) => {
                // A server refuses who is not logged in, and what is no PING, before it looks whether it is busy.
                let pongs = command.is(Special::Ping) && answer.first() != Some(&b'-');
                let busy = if pongs { self.all_busy(whom) } else { None };
                self.say(io, whom, busy.as_deref().unwrap_or(&answer));
            }
            Step::SayAndClose(answer) => {
                self.say(io, whom, &answer);
                self.close_when_answered(io, whom);
            }
            Step::Poison(answer) => {
                if let Some(transaction) = client.transaction_mut() {
                    transaction.poisoned = true;
                }
                self.say(io, whom, &answer);
            }
            Step::Queue => {
                if let Some(transaction) = client.transaction_mut() {
                    transaction.queued.push(command.bytes.to_vec());
                }
                self.say(io, whom, b"+QUEUED\r\n");
            }
            Step::EndUnsaid => self.end_unsaid(io, whom, command),
            Step::InLost => {
                let answer = client.in_lost(command, known);
                self.say(io, whom, &answer);
            }
            Step::Abort(answer) => self.abort(io, whom, &answer),
            Step::Begin => self.begin(io, whom, command),
            Step::Open => return self.open(io, whom, command),
            Step::Within => return self.within(io, whom, command),
            Step::Watch => self.watch(io, whom, command),
            Step::EndWatch => self.end_watch(io, whom, command),
            Step::Block => self.block(io, whom, command),
            Step::Replicas => self.replicas(io, whom, command),
            Step::Ordinary => return self.ordinary(io, whom, command),
            Step::Anywhere => {
                let slot = self.anywhere();
                return self.send(io, whom, command, slot, Kind::Reply);
            }
            Step::Scan => return self.scan(io, whom, command),
            Step::Subscribe => return self.subscribe(io, whom, command),
            Step::SubscribeSharded => return self.subscribe_sharded(io, whom, command),
            Step::Monitor => self.monitor(io, whom, command),
            Step::Auth => self.auth_command(io, whom, command),
            Step::Hello => self.hello(io, whom, command),
            Step::Select => self.select(io, whom, command),
            Step::Reset => self.reset(io, whom),
            Step::Client => return self.client_command(io, whom, command),
            Step::Cluster => return self.cluster_command(io, whom, command),
            Step::Unslow => {
                let words: Vec<String> =
                    (1..command.len()).map(|i| String::from_utf8_lossy(command.arg(i)).into_owned()).collect();
                self.unslow(io, whom, &words);
            }
        }
        true
    }

    /// Whether the client's next command goes on connections that others use too.
    pub(super) fn shares_connections(&mut self, whom: Whom) -> bool {
        let set = self.client(whom).and_then(|c| c.set);
        set.is_some_and(|set| self.sets[set].owner.is_none())
    }

    /// The slot of a command that any server answers.
    pub(super) fn anywhere(&self) -> u16 {
        if self.cluster { NO_SLOT } else { 0 }
    }

    /// No state, but not one key and one answer either; or one of those within WATCH.
    pub(super) fn ordinary(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let plan = &command.plan;
        let table = self.table.clone();
        let known = table.get(plan.number);
        let name = known.name.as_str();
        if command.debugs_scripts(known) {
            self.say(io, whom, &error("ERR", NO_DEBUGGER));
            return true;
        }
        if name.ends_with("|KILL") && plan.key.is_none() && !self.map.servers.masters().is_empty() {
            return self.spread(io, whom, command);
        }
        if name == "SCRIPT|LOAD" && self.config.read != Read::Primary {
            self.preload(io, whom, command);
        }
        if !self.cluster {
            let slot = if plan.key.is_some() || !self.map.servers.masters().is_empty() { 0 } else { NO_SLOT };
            return self.send(io, whom, command, slot, Kind::Reply);
        }
        if let Some(how) = plan.divide {
            return self.divide(io, whom, command, how);
        }
        if plan.spread != Spread::Any && plan.key.is_none() {
            return self.spread(io, whom, command);
        }
        if plan.key.is_none() && plan.admin {
            let name = command.full_name(known);
            if !HARMLESS.contains(&&*name) {
                self.stats.error("for_one_node");
                self.say(io, whom, &error("ERR", &for_one_node(&name)));
                return true;
            }
        }
        if plan.unsure && plan.key.is_none() {
            // The node that is asked may send it elsewhere: nothing of this client may be under way then.
            let Some(client) = self.client(whom) else { return true };
            if !client.pending.is_empty() {
                self.stall(io, whom, Stall::Answers);
                return false;
            }
            client.barrier = true;
        }
        let slot = command.key().map_or(NO_SLOT, slot_of);
        self.send(io, whom, command, slot, Kind::Reply)
    }

    /// SCRIPT LOAD on the replicas that answer reads, so that EVALSHA_RO finds its script there: servers since 7.0 do
    /// not replicate scripts. Their answers do not matter: what a replica does not have is asked of its master
    /// ([`crate::event::Event::NotLoaded`]).
    fn preload(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let Some(set) = self.client(whom).and_then(|c| c.set) else { return };
        let mut readers: Vec<u16> = self.map.readers.iter().flatten().copied().collect();
        readers.sort_unstable();
        readers.dedup();
        readers.retain(|node| !self.map.servers[*node].owns);
        for node in readers {
            let lane = self.lane_of(set, node);
            if self.lanes[lane].journal.len() > self.config.hold_bytes {
                continue;
            }
            let flight = Flight::new(whom, 0, &command.plan, command.bytes, self.now, NO_SLOT, Kind::Swallow);
            self.push(io, lane, flight, command.bytes);
        }
    }

    /// Who takes writes for a slot; where nobody does the client has its answer.
    pub(super) fn master_of(&mut self, io: &mut Io, whom: Whom, slot: u16) -> Option<u16> {
        let node = self.node_for(slot, false, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            self.say(io, whom, answer.as_bytes());
            return None;
        }
        Some(node)
    }

    pub(super) fn slot(&self, command: &Command) -> u16 {
        match command.key() {
            Some(key) if self.cluster => slot_of(key),
            _ => self.anywhere(),
        }
    }

    /// MONITOR, for as long as the client stays.
    fn monitor(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let Some(node) = self.master_of(io, whom, NO_SLOT) else { return };
        let Some(lane) = self.dedicate(whom, node) else { return };
        let l = &mut self.lanes[lane];
        (l.raw, l.dirty) = (true, true);
        if let Some(client) = self.client(whom) {
            client.rare.doing = Doing::Monitor;
        }
        self.push_raw(io, lane, command.bytes);
    }

    /// WAIT. The server counts from the connection's last command: a PING makes that now, behind every write of the
    /// client.
    fn replicas(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let node = self.client(whom).map_or(NOBODY, |c| c.last_node);
        let node = if node == NOBODY { self.master_of(io, whom, NO_SLOT) } else { Some(node) };
        let Some(lane) = node.and_then(|node| self.dedicate_to_block(whom, node)) else { return };
        let mut ping = Vec::new();
        write_command(&mut ping, &["PING"]);
        let said = Said { bytes: &ping, plan: &command.plan, slot: NO_SLOT, kind: Kind::Swallow };
        self.on_lane(io, whom, lane, said);
        let said = Said { bytes: command.bytes, plan: &command.plan, slot: NO_SLOT, kind: Kind::Block };
        self.on_lane(io, whom, lane, said);
    }

    pub(super) fn on_lane(&mut self, io: &mut Io, whom: Whom, lane: LaneId, said: Said) {
        let now = self.now;
        debug_assert!(said.kind == Kind::Auth || self.sets[self.lanes[lane].set].identity != Some(JUDGED));
        let Some(client) = self.client(whom) else { return };
        let seq = match said.kind {
            Kind::Swallow => u32::from(said.bytes == MULTI_BYTES) * MULTI_SEQ,
            _ => client.begin(),
        };
        client.commands += 1;
        let queued = client.mode() == Mode::Transaction(Txn::Open);
        self.stats.commands += 1;
        let mut flight = Flight::new(whom, seq, said.plan, said.bytes, now, said.slot, said.kind);
        (flight.repeatable, flight.read) = (false, false);
        if queued {
            // It is queued or refused; scripts run with EXEC, and what they say stands within its array.
            flight.author = Author::Server;
        }
        self.push(io, lane, flight, said.bytes);
    }
}
