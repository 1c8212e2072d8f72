//! The nodes: found, dialled, greeted, lost.

use unslow_nodes::{Backoff, Greeting, Leads, Plan, Progress, Step, Unowned};
use unslow_topology::{Health, Info};

use super::*;
use crate::encode::GUARD;
use crate::trouble::{password_is_wrong, wants_password};

impl Writer {
    /// The node that a redirect from another one leads to: only in a cluster, and only one that the servers' own
    /// topology has. Whoever names another address would get the password.
    pub(super) fn followed(&self, from: u16, to: &str) -> Option<u16> {
        match self.nodes.redirected(from, to) {
            Leads::To(number) => Some(number).filter(|_| self.encoder.cluster()),
            Leads::Stranger(_) | Leads::Nowhere => None,
        }
    }

    pub(super) fn reroute(&mut self, io: &mut Io, route: Route) {
        // A slot that nobody owns for a moment keeps its last owner: that one says best what is to be done.
        let numbers = self.nodes.apply(&route.topology, Unowned::LastOwner, |_| Node::new());
        for (&number, reach) in numbers.iter().zip(route.reach) {
            let known = &mut self.nodes[number].reach;
            known.peer = reach.peer.or(known.peer.take());
            known.tls = reach.tls.or(known.tls.take());
        }
        for held in self.held.values_mut() {
            held.asking = None; // asked again, of whoever owns it now
        }
        self.count_owners();
        // What is under way to a node that does not answer is lost once another one owns its slots.
        for (node, number) in route.topology.nodes.iter().zip(numbers) {
            let lost = node.health != Health::Up && !self.owns[usize::from(number)];
            if lost && self.nodes[number].connection.is_some() {
                self.lose(io, number, "it was replaced while it did not answer");
            }
        }
        // Redirects that named a node which is known only now.
        let led = |(slot, held): (&u16, &Held)| {
            let from = self.slots[usize::from(*slot)].node;
            held.stranger.as_ref().and_then(|to| self.followed(from, to)).map(|_| *slot)
        };
        let found: Vec<u16> = self.held.iter().filter_map(led).collect();
        for slot in found {
            if let Some(held) = self.held.get_mut(&slot) {
                (held.due, held.stranger) = (0, None);
            }
        }
        self.look = true;
    }

    pub(super) fn count_owners(&mut self) {
        self.owns = vec![false; self.nodes.len()];
        for owner in self.nodes.slots().iter().filter(|o| **o != NOBODY) {
            self.owns[usize::from(*owner)] = true;
        }
    }

    pub(super) fn dial(&mut self, io: &mut Io, number: u16, now: u64) {
        let node = &mut self.nodes[number];
        let Some(peer) = &node.reach.peer else {
            // A name that does not resolve: the watcher will know.
            let address = self.nodes.address(number).to_string();
            self.back_off(number, now);
            return self.note(format!("{address}: there is no address for that name yet"));
        };
        match io.connect(peer, node.reach.tls.as_ref(), now + self.settings.connect_ns) {
            Ok(id) => {
                node.connection = Some(id);
                node.greeted = Greeted::No;
                node.heard_at = now;
                self.by_connection.insert(id, number);
            }
            Err(e) => {
                let address = self.nodes.address(number).to_string();
                self.back_off(number, now);
                self.note(format!("{address}: {e}"));
            }
        }
    }

    fn back_off(&mut self, number: u16, now: u64) {
        let node = &mut self.nodes[number];
        node.dial_at = now + node.backoff.failed(rand::random_range);
    }

    /// Who is on the other side, in one round trip.
    pub(super) fn greet(&mut self, io: &mut Io, number: u16) {
        let node = &mut self.nodes[number];
        let Some(id) = node.connection else { return };
        let mut setup = Vec::new();
        if self.encoder.script().is_some() {
            let mut load = Vec::new();
            write_command(&mut load, &["SCRIPT", "LOAD", GUARD]);
            setup.push(load);
        }
        let plan = Plan { name: Some("unslow-sink"), wants_id: true, setup: &setup, ..self.settings.target.plan() };
        let out = io.output(id);
        node.greeting = Greeting::begin(&plan, out);
        write_command(out, &["INFO", "server"]);
        node.asked = Some(Asked::Server);
        node.greeted = Greeted::Asked;
        node.scanner = Scanner::default(); // the last connection may have ended in the middle of a reply
        node.heard_at = now_ns();
        node.wrote = false;
        node.own = (None, String::new());
    }

    /// A reply on a connection that is not ready yet.
    pub(super) fn greeting(&mut self, io: &mut Io, number: u16, reply: Frame<'_>) {
        let address = self.nodes.address(number).to_string();
        let node = &mut self.nodes[number];
        let value = Value::from(reply);
        let error = if let Value::Error(text) = &value { Some(text.as_str()) } else { None };
        let step = node.greeting.due();
        if step != Some(Step::Auth) && error.is_some_and(wants_password) {
            return self.fail(io, WriteError::PasswordWanted { address });
        }
        if step.is_none() {
            return self.identified(io, number, &value);
        }
        let passing = match node.greeting.reply(reply.bytes()) {
            Progress::More | Progress::Unasked => return,
            Progress::Done { id } => {
                node.own.0 = id;
                return;
            }
            Progress::Refused { passing } => passing,
        };
        let text = error.unwrap_or_default();
        match step {
            // The server's words may repeat what was sent.
            Some(Step::Auth) if !passing && password_is_wrong(text) => {
                self.fail(io, WriteError::PasswordRefused { address });
            }
            Some(Step::Auth) => self.lose(io, number, "it takes no password just now"),
            _ if passing => self.lose(io, number, text),
            _ => self.fail(io, WriteError::Greeting { address, reply: text.to_string() }),
        }
    }

    /// Which server it is, or that the last connection to the same one is closed.
    fn identified(&mut self, io: &mut Io, number: u16, value: &Value) {
        let address = self.nodes.address(number).to_string();
        let node = &mut self.nodes[number];
        match (node.asked.take(), value) {
            (None, _) => return,
            (Some(Asked::Kill), Value::Error(text)) => self.note(format!(
                "{address}: CLIENT KILL is denied ({text}), so what the last connection left unread may run late; \
                 grant client|kill"
            )),
            (Some(Asked::Kill), _) => {}
            (Some(Asked::Server), info) => {
                let info = Info::parse(&info.text().unwrap_or_default());
                node.own.1 = info.get("run_id").unwrap_or_default().to_string();
            }
        }
        let node = &mut self.nodes[number];
        if let (Some((last, run)), Some(id)) = (node.last.take(), node.connection)
            && run == node.own.1
            && !run.is_empty()
            && Some(last) != node.own.0
        {
            write_command(io.output(id), &["CLIENT", "KILL", "ID", &last.to_string()]);
            node.asked = Some(Asked::Kill);
            return;
        }
        node.greeted = Greeted::Ready;
        node.backoff.succeeded();
        node.splitter = Splitter::default();
        let back = std::mem::take(&mut node.told);
        self.look = true;
        if back {
            self.note(format!("{address} is back"));
        }
    }

    /// The connection has ended: in-flight calls are to be sent again, in order.
    pub(super) fn lose(&mut self, io: &mut Io, number: u16, why: &str) {
        let node = &mut self.nodes[number];
        if let Some(id) = node.connection.take() {
            self.by_connection.remove(&id);
            io.close(id);
        }
        let now = now_ns();
        let node = &mut self.nodes[number];
        node.greeted = Greeted::No;
        node.wait_due = false;
        if let (Some(id), run) = std::mem::take(&mut node.own) {
            node.last = Some((id, run));
        }
        let told = std::mem::replace(&mut node.told, true);
        node.alone = None;
        let mut calls = Vec::new();
        for flying in std::mem::take(&mut node.flying) {
            match flying {
                Flying::Call { work, call, .. } => calls.push((work, call)),
                // Its refusal was not confirmed, so it may or may not have run: again, and what was answered behind it
                // in its slot after it.
                Flying::Check { work, call, .. } => {
                    calls.push((work, call));
                    let slot = self.call(work, call).slot;
                    calls.extend(self.checking.remove(&slot).unwrap_or_default().into_iter().map(|answer| answer.at));
                }
                Flying::Wait | Flying::Wrote | Flying::Other => {}
            }
        }
        calls.extend(self.nodes[number].unconfirmed.drain(..));
        let lost = calls.len();
        for held in self.held.values_mut().filter(|h| h.asking == Some(number)) {
            held.asking = None;
        }
        for (work, call) in calls {
            let slot = self.call(work, call).slot;
            self.slots[usize::from(slot)].flying -= 1;
            self.hold(slot, (work, call), now);
        }
        if lost > 0 {
            self.shared.stats.count_retries("connection", lost as u64);
        }
        self.back_off(number, now);
        self.look = true;
        (self.doubt)();
        if !told {
            let address = self.nodes.address(number);
            self.note(format!("{address}: {why}; {lost} calls will be sent again"));
        }
    }

    /// The server has closed the connection, perhaps for an argument that it does not take: longer calls are sent alone
    /// from now on, and the one that was alone is counted.
    pub(super) fn suspect(&mut self, number: u16) {
        let flying = self.nodes[number].flying.iter();
        let calls: Vec<(u64, u32)> = flying
            .filter_map(|f| match f {
                Flying::Call { work, call, .. } => Some((*work, *call)),
                _ => None,
            })
            .collect();
        let alone = calls.len() == 1;
        for at in calls {
            let it = self.call(at.0, at.1);
            if it.to - it.from > ALWAYS_TAKEN_BYTES {
                *self.suspects.entry(at).or_default() += u8::from(alone);
            }
        }
    }

    /// Sets messages aside on which the server closed the connection again and again.
    pub(super) fn give_up(&mut self) {
        let breaking = self.suspects.iter().filter(|(_, breaks)| **breaks >= BREAKS_MAX);
        for at in breaking.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.suspects.remove(&at);
            self.unrepeated.remove(&at);
            let it = self.call(at.0, at.1);
            let Some(held) = self.held.get_mut(&it.slot) else { continue };
            let Some(place) = held.queue.iter().position(|other| *other == at) else { continue };
            held.queue.remove(place);
            if held.queue.is_empty() {
                self.held.remove(&it.slot);
                self.slots[usize::from(it.slot)].held = false;
            }
            self.work(at.0).parked -= 1;
            let bytes = it.to - it.from;
            let reason = format!(
                "the server closed the connection all {BREAKS_MAX} times this call was sent; at {bytes} bytes it may \
                 exceed proto-max-bulk-len"
            );
            self.bury(at.0, it.record, reason);
            self.done(at.0);
        }
    }
}

impl Node {
    /// One that was never dialled.
    fn new() -> Node {
        Node {
            reach: Reach::default(),
            connection: None,
            greeted: Greeted::No,
            dial_at: 0,
            backoff: Backoff::new(BACKOFF_MIN, BACKOFF_MAX),
            flying: VecDeque::new(),
            alone: None,
            unconfirmed: VecDeque::new(),
            wait_due: false,
            wrote: false,
            splitter: Splitter::default(),
            scanner: Scanner::default(),
            heard_at: 0,
            last: None,
            own: (None, String::new()),
            greeting: Greeting::default(),
            asked: None,
            told: false,
        }
    }
}
