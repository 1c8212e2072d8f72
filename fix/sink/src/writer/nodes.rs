//! The nodes: found, dialled, greeted, lost.

use unslow_nodes::{Backoff, Named};
use unslow_topology::Info;

use super::*;
use crate::encode::GUARD;
use crate::trouble::{Login, Voice, classify, login, wants_password};

impl Writer {
    fn node(&self, address: &str) -> Option<u16> {
        let named = |n: &Node| n.address == address || n.alias.as_deref() == Some(address);
        self.nodes.iter().position(named).map(|n| n as u16)
    }

    /// The node that a redirect from another one leads to: only in a cluster, and only one that the servers' own
    /// topology has. Whoever names another address would get the password.
    pub(super) fn followed(&self, from: u16, to: &str) -> Option<u16> {
        let sender = self.nodes[usize::from(from)].names.first()?;
        let Named::Is(address) = Address::named(to, sender) else { return None };
        let place = self.nodes.iter().position(|n| n.listed && n.names.contains(&address));
        place.filter(|_| self.encoder.cluster()).map(|n| n as u16)
    }

    fn add_node(&mut self, address: String, peer: Option<Peer>, tls: Option<Tls>) -> u16 {
        self.nodes.push(Node {
            address,
            alias: None,
            names: Vec::new(),
            listed: false,
            peer,
            tls,
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
            asked: VecDeque::new(),
            told: false,
        });
        self.nodes.len() as u16 - 1
    }

    pub(super) fn reroute(&mut self, io: &mut Io, route: Route) {
        let mut numbers = Vec::new();
        self.nodes.iter_mut().for_each(|n| n.listed = false);
        for node in route.nodes {
            let number = match self.node(&node.address) {
                Some(number) => {
                    let known = &mut self.nodes[usize::from(number)];
                    known.peer = node.peer.or(known.peer.take());
                    known.tls = node.tls.or(known.tls.take());
                    number
                }
                None => self.add_node(node.address, node.peer, node.tls),
            };
            let known = &mut self.nodes[usize::from(number)];
            (known.alias, known.listed) = (node.alias, true);
            let both = [Some(&known.address), known.alias.as_ref()];
            known.names = both.into_iter().flatten().filter_map(|name| Address::parse(name)).collect();
            numbers.push((number, node.silent));
        }
        for held in self.held.values_mut() {
            held.asking = None; // asked again, of whoever owns it now
        }
        for (slot, owner) in route.slots.iter().enumerate() {
            // A slot that nobody owns for a moment keeps its last owner: that one says best what is to be done.
            if let Some((number, _)) = numbers.get(usize::from(*owner)) {
                self.owner[slot] = *number;
            }
        }
        self.count_owners();
        for (number, owns) in (0u16..).zip(self.owns.clone()) {
            let silent = numbers.iter().find(|(n, _)| *n == number).is_some_and(|(_, silent)| *silent);
            if silent && !owns && self.nodes[usize::from(number)].connection.is_some() {
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
        for owner in self.owner.iter().filter(|o| **o != NOBODY) {
            self.owns[usize::from(*owner)] = true;
        }
    }

    pub(super) fn dial(&mut self, io: &mut Io, number: u16, now: u64) {
        let node = &mut self.nodes[usize::from(number)];
        let Some(peer) = &node.peer else {
            // A name that does not resolve: the watcher will know.
            let address = node.address.clone();
            self.back_off(number, now);
            return self.note(format!("{address}: there is no address for that name yet"));
        };
        match io.connect(peer, node.tls.as_ref(), now + self.settings.connect_ns) {
            Ok(id) => {
                node.connection = Some(id);
                node.greeted = Greeted::No;
                node.heard_at = now;
                self.by_connection.insert(id, number);
            }
            Err(e) => {
                let address = node.address.clone();
                self.back_off(number, now);
                self.note(format!("{address}: {e}"));
            }
        }
    }

    fn back_off(&mut self, number: u16, now: u64) {
        let node = &mut self.nodes[usize::from(number)];
        node.dial_at = now + node.backoff.failed(rand::random_range);
    }

    /// Who is on the other side, in one round trip.
    pub(super) fn greet(&mut self, io: &mut Io, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        let Some(id) = node.connection else { return };
        let out = io.output(id);
        let target = &self.settings.target;
        node.asked.clear();
        match (&target.user, &target.password) {
            (Some(user), password) => {
                write_command(out, &["AUTH", user, password.as_ref().map_or("", |p| p.reveal())]);
                node.asked.push_back(Greeting::Auth);
            }
            (None, Some(password)) => {
                write_command(out, &["AUTH", password.reveal()]);
                node.asked.push_back(Greeting::Auth);
            }
            (None, None) => {}
        }
        write_command(out, &["CLIENT", "SETNAME", "unslow-sink"]);
        write_command(out, &["CLIENT", "ID"]);
        write_command(out, &["INFO", "server"]);
        node.asked.extend([Greeting::Name, Greeting::ClientId, Greeting::Server]);
        if target.db != 0 {
            write_command(out, &["SELECT", &target.db.to_string()]);
            node.asked.push_back(Greeting::Select);
        }
        if self.encoder.script().is_some() {
            write_command(out, &["SCRIPT", "LOAD", GUARD]);
            node.asked.push_back(Greeting::Script);
        }
        node.greeted = Greeted::Asked;
        node.scanner = Scanner::default(); // the last connection may have ended in the middle of a reply
        node.heard_at = now_ns();
        node.wrote = false;
        node.own = (None, String::new());
    }

    pub(super) fn greeting(&mut self, io: &mut Io, number: u16, value: Value) {
        let node = &mut self.nodes[usize::from(number)];
        let Some(asked) = node.asked.pop_front() else { return };
        let address = node.address.clone();
        match (asked, &value) {
            (Greeting::Auth, Value::Error(text)) => match login(text) {
                Login::Needless => {}
                Login::Later => return self.lose(io, number, "it takes no password just now"),
                Login::Refused => return self.fail(io, WriteError::PasswordRefused { address }),
            },
            (Greeting::Name | Greeting::Kill | Greeting::Server | Greeting::ClientId, Value::Error(text)) => {
                // Only what stands in the way of every other command.
                if wants_password(text) {
                    return self.fail(io, WriteError::PasswordWanted { address });
                }
                if asked == Greeting::Kill {
                    self.note(format!(
                        "{address}: CLIENT KILL is denied ({text}), so what the last connection left unread may run \
                         late; grant client|kill"
                    ));
                }
            }
            (Greeting::Select | Greeting::Script, Value::Error(text)) => {
                if matches!(classify(text, Voice::Server), Trouble::Passing(_)) {
                    return self.lose(io, number, &text.clone());
                }
                return self.fail(io, WriteError::Greeting { address, reply: text.clone() });
            }
            (Greeting::ClientId, Value::Integer(n)) => node.own.0 = Some(*n),
            (Greeting::Server, _) => {
                let info = Info::parse(&value.text().unwrap_or_default());
                node.own.1 = info.get("run_id").unwrap_or_default().to_string();
            }
            _ => {}
        }
        let node = &mut self.nodes[usize::from(number)];
        if !node.asked.is_empty() {
            return;
        }
        if let (Some((last, run)), Some(id)) = (node.last.take(), node.connection)
            && run == node.own.1
            && !run.is_empty()
            && Some(last) != node.own.0
        {
            write_command(io.output(id), &["CLIENT", "KILL", "ID", &last.to_string()]);
            node.asked.push_back(Greeting::Kill);
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
        let node = &mut self.nodes[usize::from(number)];
        if let Some(id) = node.connection.take() {
            self.by_connection.remove(&id);
            io.close(id);
        }
        let now = now_ns();
        let node = &mut self.nodes[usize::from(number)];
        node.greeted = Greeted::No;
        node.wait_due = false;
        if let (Some(id), run) = std::mem::take(&mut node.own) {
            node.last = Some((id, run));
        }
        let told = std::mem::replace(&mut node.told, true);
        let address = node.address.clone();
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
        calls.extend(self.nodes[usize::from(number)].unconfirmed.drain(..));
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
            self.note(format!("{address}: {why}; {lost} calls will be sent again"));
        }
    }

    /// The server has closed the connection, perhaps for an argument that it does not take: longer calls are sent alone
    /// from now on, and the one that was alone is counted.
    pub(super) fn suspect(&mut self, number: u16) {
        let flying = self.nodes[usize::from(number)].flying.iter();
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
