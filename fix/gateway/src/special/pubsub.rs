//! Subscriptions.

use crate::ids::LaneId;
use crate::map::NOBODY;
use crate::session::*;
use crate::step::Command;
use crate::worker::{Worker, bulk};
use unslow_reactor::Io;
use unslow_resp::{Frame, write_command, write_header};
use unslow_topology::{Health, slot_of};

/// Bytes of subscriptions that a server has not been told yet.
const UNSENT_SUBSCRIPTIONS_MAX: usize = 1 << 20;

impl Worker {
    /// Bytes for a lane on which answers are not counted.
    pub fn push_raw(&mut self, io: &mut Io, lane: LaneId, bytes: &[u8]) {
        let l = &mut self.lanes[lane];
        l.raw = true;
        if let (true, Some(connection)) = (l.flows(), l.connection) {
            io.output(connection).extend_from_slice(bytes);
        } else {
            l.journal.push(bytes);
            self.lanes_waiting += 1;
            self.dial_if_needed(io, lane);
        }
    }

    /// The lane of a client's subscriptions to a node; of all that need no certain node for `None`.
    pub(super) fn sub_lane(&mut self, whom: Whom, node: Option<u16>) -> Option<LaneId> {
        let client = self.client(whom)?;
        let (subs, set) = (client.subs.clone(), client.set?);
        let held = match node {
            None => subs.first(),
            Some(node) => subs.iter().find(|l| self.lanes[**l].node == node),
        };
        if let Some(lane) = held {
            return Some(*lane);
        }
        let node = node.unwrap_or_else(|| self.node_for(NO_SLOT, false, whom));
        if node == NOBODY {
            return None;
        }
        let lane = self.take_lane(set, node, whom);
        (self.lanes[lane].raw, self.lanes[lane].dirty) = (true, true);
        self.client(whom)?.subs.push(lane);
        Some(lane)
    }

    pub(super) fn subscribe(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let (kind, ends) = match command.word(0).as_slice() {
            b"SUBSCRIBE" => (b'c', false),
            b"PSUBSCRIBE" => (b'p', false),
            b"UNSUBSCRIBE" => (b'c', true),
            b"PUNSUBSCRIBE" => (b'p', true),
            _ => (b's', true),
        };
        let Some(lane) = self.sub_lane(whom, None) else {
            let answer = self.nobody(NO_SLOT);
            return self.say(io, whom, answer.as_bytes());
        };
        if self.lanes[lane].journal.len() > UNSENT_SUBSCRIPTIONS_MAX {
            return self.close_slow(io, whom);
        }
        let Some(client) = self.client(whom) else { return };
        if ends {
            // One confirmation for each name; for no name one for each there is, and one at least.
            let held = client.channels.keys().filter(|(k, _)| *k == kind).count().max(1);
            client.unsubscribing += if command.len() > 1 { command.len() - 1 } else { held };
        } else {
            for i in 1..command.len() {
                let subscription = Subscription { lane: Some(lane), confirmed: false, silent: false };
                client.channels.entry((kind, command.arg(i).to_vec())).or_insert(subscription);
                client.subscribing += 1;
            }
        }
        self.push_raw(io, lane, command.bytes);
    }

    pub(super) fn subscribe_sharded(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let ends = command.arg(0).eq_ignore_ascii_case(b"SUNSUBSCRIBE");
        let mut names: Vec<Vec<u8>> = (1..command.len()).map(|i| command.arg(i).to_vec()).collect();
        if ends && names.is_empty() {
            let Some(client) = self.client(whom) else { return };
            names = client.channels.keys().filter(|(kind, _)| *kind == b's').map(|(_, n)| n.clone()).collect();
            if names.is_empty() {
                return self.subscribe(io, whom, command);
            }
        }
        for name in names {
            let Some(client) = self.client(whom) else { return };
            let channel = (b's', name.clone());
            let held = client.channels.get(&channel).and_then(|s| s.lane);
            if ends {
                client.channels.remove(&channel);
                self.homeless.retain(|(w, c)| *w != whom || *c != channel);
            }
            if ends && held.is_none() && !self.client(whom).is_some_and(|c| c.subs.is_empty()) {
                // It was on its way to another node: nobody has it.
                let Some(client) = self.client(whom) else { return };
                let mut said = if client.proto == 3 { b">3\r\n".to_vec() } else { b"*3\r\n".to_vec() };
                bulk(&mut said, b"sunsubscribe");
                bulk(&mut said, &name);
                write_header(&mut said, b':', client.channels.keys().filter(|(kind, _)| *kind == b's').count());
                self.push_to(io, whom, &said);
                self.perhaps_unsubscribed(io, whom);
                continue;
            }
            let owner = match self.cluster {
                true => Some(self.map.slots[usize::from(slot_of(&name))]),
                false => None,
            };
            let lane = match (ends, held, owner) {
                (true, Some(lane), _) => Some(lane),
                (_, _, Some(NOBODY)) => {
                    let answer = self.nobody(slot_of(&name));
                    self.say(io, whom, answer.as_bytes());
                    continue;
                }
                (_, _, owner) => self.sub_lane(whom, owner),
            };
            let Some(lane) = lane else { continue };
            if self.lanes[lane].journal.len() > UNSENT_SUBSCRIPTIONS_MAX {
                return self.close_slow(io, whom);
            }
            let Some(client) = self.client(whom) else { return };
            if ends {
                client.unsubscribing += 1;
            } else {
                client.channels.entry(channel).or_insert(Subscription {
                    lane: Some(lane),
                    confirmed: false,
                    silent: false,
                });
                client.subscribing += 1;
            }
            let mut bytes = Vec::new();
            write_command(&mut bytes, &[command.arg(0), &name]);
            self.push_raw(io, lane, &bytes);
        }
    }

    /// What comes on a lane without an answer being owed.
    pub fn unasked(&mut self, io: &mut Io, lane: LaneId, first: u8, bytes: &[u8]) {
        let l = &self.lanes[lane];
        let Some(whom) = l.owner else { return };
        let raw = l.raw;
        let Some(client) = self.client(whom) else { return };
        if matches!(client.doing, Doing::Monitor) || !raw {
            return self.push_to(io, whom, bytes);
        }
        if first == b'-' {
            if bytes.starts_with(b"-MOVED") {
                self.shared.doubt();
                return self.subscribe_anew(io, whom, lane);
            }
            // One of its commands was refused: as many confirmations fewer are to come.
            let before = client.channels.len();
            client.channels.retain(|_, s| s.confirmed || s.lane != Some(lane));
            if client.subscribing > 0 {
                let gone = (before - client.channels.len()).max(1);
                client.subscribing = client.subscribing.saturating_sub(gone);
            } else {
                client.unsubscribing = client.unsubscribing.saturating_sub(1);
            }
            self.push_to(io, whom, bytes);
            return self.perhaps_unsubscribed(io, whom);
        }
        let frame = Frame::new(bytes);
        let mut items = frame.items();
        let word = items.next().map(|w| w.text().to_vec()).unwrap_or_default();
        let (kind, begins) = match word.as_slice() {
            b"subscribe" => (b'c', true),
            b"psubscribe" => (b'p', true),
            b"ssubscribe" => (b's', true),
            b"unsubscribe" => (b'c', false),
            b"punsubscribe" => (b'p', false),
            b"sunsubscribe" => (b's', false),
            _ => return self.push_to(io, whom, bytes),
        };
        let channel = (kind, items.next().map(|n| n.text().to_vec()).unwrap_or_default());
        if begins {
            let new = Subscription { lane: Some(lane), confirmed: true, silent: false };
            let held = client.channels.entry(channel).or_insert(new);
            let silent = std::mem::replace(&mut held.silent, false);
            held.confirmed = true;
            if !silent {
                client.subscribing = client.subscribing.saturating_sub(1);
                self.push_to(io, whom, bytes);
            }
            return;
        }
        if kind == b's' && client.channels.get(&channel).is_some_and(|s| s.lane == Some(lane)) {
            // The slot has left this node; the client asked for no such thing. It goes on where the slot is now.
            if let Some(held) = client.channels.get_mut(&channel) {
                held.lane = None;
            }
            self.shared.doubt();
            self.homeless.push((whom, channel));
            self.lanes_waiting += 1;
            return;
        }
        client.channels.remove(&channel);
        client.unsubscribing = client.unsubscribing.saturating_sub(1);
        self.push_to(io, whom, bytes);
        self.perhaps_unsubscribed(io, whom);
    }

    /// Nothing is subscribed or about to be: the client is as any other again.
    pub(super) fn perhaps_unsubscribed(&mut self, io: &mut Io, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        if client.channels.is_empty() && client.unsubscribing == 0 && client.subscribing == 0 {
            for lane in std::mem::take(&mut client.subs) {
                self.close_lane(io, lane);
            }
        }
    }

    /// Subscriptions that wait for a node to be on.
    pub fn house(&mut self, io: &mut Io) {
        for (whom, channel) in std::mem::take(&mut self.homeless) {
            let waits = self.client(whom).and_then(|c| c.channels.get(&channel)).is_some_and(|s| s.lane.is_none());
            if !waits {
                continue;
            }
            let (kind, name) = &channel;
            let sharded = *kind == b's' && self.cluster;
            let to = if sharded { Some(self.map.slots[usize::from(slot_of(name))]) } else { None };
            let ill = to.is_some_and(|n| self.map.servers.get(usize::from(n)).is_none_or(|s| s.health != Health::Up));
            let Some(lane) = (!ill).then(|| self.sub_lane(whom, to)).flatten() else {
                self.homeless.push((whom, channel));
                continue;
            };
            let word = match kind {
                b's' => "SSUBSCRIBE",
                b'p' => "PSUBSCRIBE",
                _ => "SUBSCRIBE",
            };
            let mut command = Vec::new();
            write_command(&mut command, &[word.as_bytes(), name]);
            if let Some(held) = self.client(whom).and_then(|c| c.channels.get_mut(&channel)) {
                // Who has its confirmation gets no second one.
                (held.lane, held.silent) = (Some(lane), held.silent || held.confirmed);
                held.confirmed = false;
            }
            self.push_raw(io, lane, &command);
        }
    }

    /// A lane of subscriptions is gone: all of them again, elsewhere, without the client hearing of it.
    pub(super) fn subscribe_anew(&mut self, io: &mut Io, whom: Whom, lane: LaneId) {
        let Some(client) = self.client(whom) else { return self.close_lane(io, lane) };
        client.subs.retain(|l| *l != lane);
        if client.unsubscribing > 0 {
            // Which of its confirmations were lost nobody knows.
            self.close_lane(io, lane);
            return self.drop_client(io, whom);
        }
        let mut moving = Vec::new();
        for (channel, held) in client.channels.iter_mut().filter(|(_, s)| s.lane == Some(lane)) {
            held.lane = None;
            moving.push((whom, channel.clone()));
        }
        self.lanes_waiting += moving.len();
        self.homeless.extend(moving);
        self.close_lane(io, lane);
    }
}
