//! Commands that did not run where they were sent, and questions about those that perhaps did.

use crate::clock::MS;
use crate::event::{self, Answered, Elsewhere, Event, Facts};
use crate::flight::{Again, To, Waiting};
use crate::ids::LaneId;
use crate::request;
use crate::session::*;
use crate::special::Moved;
use crate::worker::Worker;
use std::sync::Arc;
use unslow_commands::KeyAt;
use unslow_nodes::NOBODY;
use unslow_nodes::{Address, Author, Kind as Says, Named, Refusal};
use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::{Role, slot_of};

/// How often a command follows redirects before its client hears of it.
const REDIRECTS_MAX: u8 = 16;

/// A command that a server refused, or a script.
pub(super) struct Refused<'a> {
    flight: Flight,
    bytes: Vec<u8>,
    /// What was said instead.
    error: &'a [u8],
    /// Its place among those of its client that wait.
    at: Option<usize>,
}

impl Worker {
    /// Errors that are for the gateway and not for the client. True when the command goes on elsewhere; its bytes are
    /// then taken out of the journal.
    pub(super) fn elsewhere(&mut self, io: &mut Io, lane: LaneId, answered: &Answered, bytes: &[u8]) -> bool {
        let Answered { flight, event, fresh } = answered;
        if *event == Event::Answer {
            return false;
        }
        if *event == Event::Demoted {
            self.shared.doubt();
            self.blocked_elsewhere(io, lane, flight);
            return true;
        }
        let pinned = self.pinned(lane);
        if flight.len == 0 {
            return self.streamed_elsewhere(io, flight, event);
        }
        if let (Event::Redirected(to), true) = (event, pinned) {
            let belonged = self.map.servers.owner(to.slot) == self.lanes[lane].node;
            self.learn(lane, flight, to);
            let moved = Moved { to: self.known(&to.to), asking: to.ask, fresh: *fresh, belonged };
            self.pinned_moved(io, lane, flight, &moved);
            return true;
        }
        if pinned || matches!(flight.kind, Kind::Auth | Kind::Exec) || !self.may_go_again(flight, event) {
            return false;
        }
        let l = &mut self.lanes[lane];
        let command = l.journal.front(flight.size()).to_vec();
        l.journal.pop(flight.size());
        let refused = Refused { flight: *flight, bytes: command, error: bytes, at: None };
        if *event == Event::Verify {
            self.verify(io, lane, refused);
        } else {
            self.go_again(io, lane, refused, event.clone());
        }
        true
    }

    /// What the judgement of a reply needs to know.
    pub(super) fn facts_of(&self, lane: LaneId, flight: &Flight) -> Facts {
        Facts {
            cluster: self.cluster,
            replica: self.answers_as_replica(lane),
            late: self.now > flight.at + self.config.hold_ms * MS,
            pinned: self.pinned(lane),
        }
    }

    pub(super) fn pinned(&self, lane: LaneId) -> bool {
        self.lanes[lane].pinned()
    }

    /// Whether the node at the other end is a replica, as far as the map knows.
    pub(super) fn answers_as_replica(&self, lane: LaneId) -> bool {
        self.map.servers[self.lanes[lane].node].role == Role::Replica
    }

    /// The node at the other end, as redirects that name no host mean it.
    pub(super) fn sender(&self, lane: LaneId) -> Option<&Address> {
        self.map.servers.name(self.lanes[lane].node)
    }

    /// The number of the node that a redirect names, if the servers' own topology has it.
    pub(super) fn known(&self, to: &Named) -> u16 {
        match to {
            Named::Is(address) => self.map.servers.find(address).unwrap_or(NOBODY),
            Named::Unknown => NOBODY,
        }
    }

    /// A value on its way through cannot be sent twice.
    pub(super) fn streamed_elsewhere(&mut self, io: &mut Io, flight: &Flight, event: &Event) -> bool {
        let moved = matches!(event, Event::Redirected(_)) && flight.kind == Kind::Reply;
        if moved {
            self.shared.doubt();
            let text = b"-TRYAGAIN unslow: the slot moved while a long value was on its way; send it again\r\n";
            self.answer(io, flight.whom, flight.seq, text, true);
        }
        moved
    }

    /// Behind one that waits, others of the same client may run: nothing is sent again that would overtake them. (MOVED
    /// is different: whoever says it says it to all that follow.)
    pub(super) fn may_go_again(&mut self, flight: &Flight, event: &Event) -> bool {
        match event {
            Event::Redirected(_) => flight.tries < REDIRECTS_MAX || self.now <= flight.at + self.config.hold_ms * MS,
            _ => flight.kind == Kind::Reply || !self.followed(flight),
        }
    }

    /// Whether commands of the same client are under way behind this one.
    pub(super) fn followed(&mut self, flight: &Flight) -> bool {
        let gather = (flight.kind == Kind::Gather).then(|| self.gathers.get(flight.whom, flight.seq).map(|g| g.seq));
        let seq = gather.unwrap_or(Some(flight.seq));
        match (seq, self.client(flight.whom)) {
            (Some(seq), Some(client)) => client.at(seq) + 1 < client.pending.len(),
            _ => true,
        }
    }

    /// What a redirect says about the map, until the watcher has looked.
    pub(super) fn learn(&mut self, lane: LaneId, flight: &Flight, elsewhere: &Elsewhere) {
        self.shared.doubt();
        if elsewhere.ask {
            self.stats.asked += 1;
            return;
        }
        self.stats.moved += 1;
        let (node, to) = (self.lanes[lane].node, self.known(&elsewhere.to));
        let owner = self.map.servers.owner(elsewhere.slot);
        if owner == node || owner == NOBODY {
            if to != NOBODY {
                let map = Arc::make_mut(&mut self.map);
                map.servers.set_owner(elsewhere.slot, to);
                map.version += 1;
            }
        } else if flight.read {
            // It may be behind, or the slot has left its shard: the master knows.
            self.banned[usize::from(node)] = self.now + 100 * MS;
        }
    }

    /// A command that did not run.
    pub(super) fn go_again(&mut self, io: &mut Io, lane: LaneId, refused: Refused, event: Event) {
        let Refused { flight, bytes, error, at } = refused;
        let flight = &flight;
        let node = self.lanes[lane].node;
        let followed = self.followed(flight);
        let (mut pause, mut to, mut slot) = (0, To::Owner, flight.slot);
        let not_loaded = event == Event::NotLoaded;
        let moved = not_loaded || matches!(event, Event::Redirected(_));
        match event {
            Event::Redirected(elsewhere) => {
                self.learn(lane, flight, &elsewhere);
                pause = if flight.tries > 3 && !followed { 5 * MS } else { 0 };
                to = match (self.known(&elsewhere.to), elsewhere.to) {
                    (NOBODY, Named::Is(address)) => To::Named { address, ask: elsewhere.ask },
                    (node, _) if node != NOBODY && elsewhere.ask => To::Asking(node),
                    _ => To::Owner,
                };
                // A command whose key we did not see: the server did.
                if slot == NO_SLOT && flight.kind != Kind::Gather {
                    slot = elsewhere.slot;
                }
            }
            Event::Refused { pause: wanted, banned, doubt } => {
                pause = wanted;
                if banned > 0 {
                    self.banned[usize::from(node)] = self.now + banned;
                }
                if doubt {
                    self.shared.doubt();
                }
            }
            Event::Answer | Event::Demoted | Event::Verify | Event::NotLoaded => {}
        }
        let tries = flight.tries.saturating_add(1);
        // Masters are asked what is not for a replica.
        let read = flight.read && !not_loaded;
        let again = Again { flight: Flight { tries, slot, read, ..*flight }, bytes, to };
        let (whom, kind) = (flight.whom, flight.kind);
        let Some(client) = self.client(whom) else { return };
        client.barrier = true;
        // What waits for those behind it is counted when it goes.
        let waits = !moved && followed || !client.rare.waiting.is_empty();
        if waits && kind == Kind::Reply {
            let waiting = Waiting { again, pause: pause.max(MS), error: error.to_vec(), doubt: None };
            let all = &mut client.rare.waiting;
            all.insert(at.unwrap_or(all.len()), waiting);
            self.some_wait = true;
            self.settle_waiting(whom);
            return;
        }
        // Redirects have counts of their own.
        self.stats.again += u64::from(!moved);
        if pause == 0 {
            self.resend(io, again);
        } else {
            self.later(again, pause);
        }
    }

    /// Asks the node that answered about the same keys, with a command whose errors are the server's own.
    pub(super) fn verify(&mut self, io: &mut Io, lane: LaneId, refused: Refused) {
        let Refused { flight, bytes: command, error, .. } = refused;
        let flight = &flight;
        self.doubts = self.doubts.wrapping_add(1);
        let (number, whom) = (self.doubts, flight.whom);
        let (question, slot) = self.question(&command, flight, error);
        let Some(client) = self.client(whom) else { return };
        client.barrier = true;
        let again = Again { flight: *flight, bytes: command, to: To::Owner };
        client.rare.waiting.push(Waiting { again, pause: MS, error: error.to_vec(), doubt: Some(number) });
        self.some_wait = true;
        let kind = Kind::Verify;
        let author = Author::Server;
        let asked = Flight { seq: number, len: question.len() as u32, slot, kind, author, ..*flight };
        self.push(io, lane, asked, &question);
    }

    /// EXISTS of the same keys; where the slot alone is known, of a key in that slot. A replica refuses only writes:
    /// for READONLY a write that changes nothing.
    pub(super) fn question(&self, command: &[u8], flight: &Flight, error: &[u8]) -> (Vec<u8>, u16) {
        let mut args = Vec::new();
        request::parse_whole(command, &mut args);
        let plan = self.table.plan(command, &args);
        let arg = |i: usize| args.get(i).map_or(&b""[..], |&(a, b)| &command[a as usize..b as usize]);
        let known = self.table.get(plan.number);
        let mut keys: Vec<Vec<u8>> = match (plan.key, known.key) {
            (None, _) => Vec::new(),
            (Some(_), KeyAt::Counted { count, .. }) => {
                let counted = std::str::from_utf8(arg(count)).ok().and_then(|n| n.parse().ok());
                known.keys(args.len(), counted).map(|i| arg(i).to_vec()).collect()
            }
            (Some(first), _) => vec![arg(first).to_vec()],
        };
        let mut slot = flight.slot;
        if let (NO_SLOT, Some(Refusal { kind: Says::Moved(to) | Says::Ask(to), .. })) =
            (slot, Refusal::parse(error, flight.author))
        {
            slot = to.slot;
            keys = vec![key_in(slot)];
        }
        if keys.is_empty() {
            keys.push(Vec::new());
        }
        let mut words: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        if error.starts_with(b"-READONLY") {
            words.truncate(1);
            words.extend([&b"0"[..], b""]);
            words.insert(0, b"SETRANGE");
        } else {
            words.insert(0, b"EXISTS");
        }
        let mut question = Vec::new();
        write_command(&mut question, &words);
        (question, slot)
    }

    /// The question is answered: the server refuses those keys, so it refused the command; or the words were a
    /// script's, and the command has run.
    pub(super) fn verified(&mut self, io: &mut Io, lane: LaneId, asked: &Flight, reply: &[u8]) {
        let Some(client) = self.client(asked.whom) else { return };
        let Some(at) = client.rare.waiting.iter().position(|w| w.doubt == Some(asked.seq)) else { return };
        let Waiting { again, error, .. } = client.rare.waiting.remove(at);
        let as_asked = Flight { kind: Kind::Reply, ..*asked };
        let facts = self.facts_of(lane, asked);
        let event = event::on_error(&as_asked, reply, facts, self.sender(lane));
        let refused = matches!(event, Event::Redirected(_) | Event::Refused { .. });
        if refused && self.may_go_again(&again.flight, &event) {
            let refused = Refused { flight: again.flight, bytes: again.bytes, error: &error, at: Some(at) };
            return self.go_again(io, lane, refused, event);
        }
        self.pass(io, &again.flight, &error);
    }

    /// The question got no answer: the words are passed on, whoever wrote them.
    pub(super) fn unverified(&mut self, io: &mut Io, asked: &Flight) {
        let Some(client) = self.client(asked.whom) else { return };
        let Some(at) = client.rare.waiting.iter().position(|w| w.doubt == Some(asked.seq)) else { return };
        let Waiting { again, error, .. } = client.rare.waiting.remove(at);
        self.pass(io, &again.flight, &error);
    }

    /// An error that waited is the client's answer after all.
    pub(super) fn pass(&mut self, io: &mut Io, flight: &Flight, error: &[u8]) {
        self.overtakes(flight);
        self.stats.errors_passed += 1;
        self.answer(io, flight.whom, flight.seq, error, true);
        self.settle_waiting(flight.whom);
    }

    /// Sent when the pause is over. Counted by who decides that it is sent again, however often it has to wait for
    /// that.
    pub fn later(&mut self, again: Again, pause: u64) {
        self.again_number += 1;
        self.again.insert((self.now + pause, self.again_number), again);
    }

    /// A command once more, by what is known now.
    pub fn resend(&mut self, io: &mut Io, again: Again) {
        let Again { flight, bytes, to } = again;
        let Some(client) = self.client(flight.whom) else {
            // Never written, or only a question: nobody waits for it any more.
            if flight.kind == Kind::Gather {
                self.gathers.remove(flight.whom, flight.seq);
            }
            return;
        };
        client.barrier = true;
        let Some(set) = client.set else { return };
        let bound = flight.slot == NO_SLOT && flight.node != NOBODY;
        let (node, asking) = match &to {
            To::Asking(node) => (*node, true),
            To::Named { address, ask } => (self.map.servers.find(address).unwrap_or(NOBODY), *ask),
            To::Owner if bound => (self.map.servers.heir(flight.node), false),
            To::Owner => (self.node_for(flight.slot, flight.read, flight.whom), false),
        };
        if bound && node != flight.node && self.is_scan(flight.command) {
            // Its cursor means nothing to another server.
            let text =
                b"-ERR unslow: the node that was being scanned was replaced; the same cursor begins its part anew\r\n";
            return self.fail_flight(io, &flight, text);
        }
        if node == NOBODY {
            if self.now > flight.at + self.config.hold_ms * MS {
                let answer = match &to {
                    To::Named { address, .. } => {
                        self.stats.error("unknown_node");
                        let at = if self.trusted(flight.whom) { address.to_string() } else { "an address".into() };
                        format!(
                            "-CLUSTERDOWN unslow: slot {} is said to be at {at}, which no node of the cluster \
                             names\r\n",
                            flight.slot
                        )
                    }
                    _ => self.nobody(flight.slot),
                };
                self.fail_flight(io, &flight, answer.as_bytes());
            } else {
                self.shared.doubt();
                self.later(Again { flight, bytes, to }, 10 * MS);
            }
            return;
        }
        let lane = match flight.kind {
            Kind::Block if self.client(flight.whom).is_some_and(|c| c.leaving != Leaving::No) => {
                // What it would get nobody would read.
                return self.drop_client(io, flight.whom);
            }
            Kind::Block => self.dedicate_to_block(flight.whom, node),
            _ => Some(self.lane_of(set, node)),
        };
        let Some(lane) = lane else { return };
        if asking {
            let mut ask = Vec::new();
            write_command(&mut ask, &["ASKING"]);
            let swallow = Flight { len: ask.len() as u32, kind: Kind::Swallow, seq: 0, ..flight };
            self.push(io, lane, swallow, &ask);
        }
        self.push(io, lane, flight, &bytes);
    }

    /// The client hears that it did not work.
    pub fn fail_flight(&mut self, io: &mut Io, flight: &Flight, bytes: &[u8]) {
        match flight.kind {
            Kind::Swallow | Kind::Probe => {}
            Kind::Verify => self.unverified(io, flight),
            Kind::Gather => self.gathered(io, flight.whom, flight.seq, flight.part, bytes),
            Kind::Exec => {
                if let Some(client) = self.client(flight.whom) {
                    client.end_transaction();
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Kind::Auth => {
                if let Some(client) = self.client(flight.whom) {
                    client.asked = None;
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Kind::Setup => self.set_up(io, flight, bytes, None),
            Kind::Reply | Kind::Block | Kind::Watch | Kind::Begin => {
                self.answer(io, flight.whom, flight.seq, bytes, true)
            }
        }
    }

    pub(super) fn is_scan(&self, command: u16) -> bool {
        let known = usize::from(command) < self.table.count();
        known && self.table.get(command).special == Some(unslow_commands::Special::Scan)
    }
}

/// A key of this slot.
pub(super) fn key_in(slot: u16) -> Vec<u8> {
    let mut keys = (0u32..).map(|n| n.to_string().into_bytes());
    keys.find(|key| slot_of(key) == slot).unwrap_or_default()
}
