//! Subscriptions.
//!
//! A client's confirmations, and the replies to its later commands, come in the order of one connection to a server:
//! its later commands wait for them. So do messages of other clients, for a moment
//! ([`Unconfirmed`](crate::subscriptions::Unconfirmed)).

use crate::ids::LaneId;
use crate::reply::{bulk, error};
use crate::session::*;
use crate::step::Command;
use crate::subscriptions::{Awaited, Channel, cost};
use crate::worker::Worker;
use unslow_commands::Special;
use unslow_nodes::NOBODY;
use unslow_reactor::Io;
use unslow_resp::{Frame, write_command, write_header};
use unslow_topology::{Health, slot_of};

/// Bytes of subscriptions that a server has not taken yet; with more their client is not read.
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

    /// A command that subscribes to so many names.
    fn push_subscription(&mut self, io: &mut Io, lane: LaneId, bytes: &[u8], names: usize, silent: bool) {
        if names > 0 {
            let serial = self.unconfirmed.send(self.now);
            self.lanes[lane].awaited.push_back(Awaited { serial, left: names, silent });
        }
        self.push_raw(io, lane, bytes);
    }

    /// The lane of a client's subscriptions to a node; of all that need no certain node for `None`.
    pub(super) fn sub_lane(&mut self, io: &mut Io, whom: Whom, node: Option<u16>) -> Option<LaneId> {
        let client = self.client(whom)?;
        let (subs, set) = (client.subscriber.lanes.clone(), client.set?);
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
        let lane = self.take_spare(io, set, node, whom);
        (self.lanes[lane].raw, self.lanes[lane].dirty) = (true, true);
        self.client(whom)?.subscriber.lanes.push(lane);
        Some(lane)
    }

    /// False when it has to wait.
    pub(super) fn subscribe(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let (kind, ends) = match command.word(0).as_slice() {
            b"SUBSCRIBE" => (b'c', false),
            b"PSUBSCRIBE" => (b'p', false),
            b"UNSUBSCRIBE" => (b'c', true),
            b"PUNSUBSCRIBE" => (b'p', true),
            _ => (b's', true),
        };
        if self.is_behind(io, whom) {
            return false;
        }
        if ends {
            self.unsubscribe(io, whom, kind, command);
            return true;
        }
        if !self.may_hold(io, whom, command) {
            return true;
        }
        let Some(lane) = self.sub_lane(io, whom, None) else {
            let answer = self.nobody(NO_SLOT);
            self.say(io, whom, answer.as_bytes());
            return true;
        };
        let names = command.len() - 1;
        let Some(client) = self.client(whom) else { return true };
        for i in 1..command.len() {
            client.subscriber.channels.ask((kind, command.arg(i).to_vec()), lane);
        }
        client.subscriber.subscribing += names;
        self.push_subscription(io, lane, command.bytes, names, false);
        true
    }

    /// Whether servers have not taken yet what a client has said of its subscriptions. Then it is not read until they
    /// have.
    fn is_behind(&mut self, io: &mut Io, whom: Whom) -> bool {
        let subs = self.client(whom).map_or(Vec::new(), |c| c.subscriber.lanes.clone());
        let behind = subs.iter().any(|lane| {
            let l = &self.lanes[*lane];
            l.journal.len() + l.connection.map_or(0, |c| io.unsent(c)) > UNSENT_SUBSCRIPTIONS_MAX
        });
        if behind {
            self.stall(io, whom, Stall::Room);
        }
        behind
    }

    /// Whether a client may have more names in memory; if not, it hears of it.
    fn may_hold(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let most = self.config.client_input_bytes;
        let more: usize = (1..command.len()).map(|i| cost(command.arg(i))).sum();
        let held = self.client(whom).map_or(0, |c| c.subscriber.channels.bytes());
        if held + more > most {
            self.stats.error("too_many_channels");
            let why = format!("unslow: the names of its subscriptions hold more than client_input_bytes = {most}");
            self.say(io, whom, &error("ERR", &why));
        }
        held + more <= most
    }

    /// UNSUBSCRIBE and PUNSUBSCRIBE; SUNSUBSCRIBE where there is nothing to leave.
    fn unsubscribe(&mut self, io: &mut Io, whom: Whom, kind: u8, command: &Command) {
        let Some(client) = self.client(whom) else { return };
        let mut names: Vec<Vec<u8>> = (1..command.len()).map(|i| command.arg(i).to_vec()).collect();
        if names.is_empty() {
            names = client.subscriber.channels.names(kind).cloned().collect();
        }
        let homeless =
            |name: &Vec<u8>| client.subscriber.channels.get(&(kind, name.clone())).is_some_and(|s| s.lane.is_none());
        let (homeless, here): (Vec<_>, Vec<_>) = names.into_iter().partition(homeless);
        for name in &homeless {
            self.leave_homeless(io, whom, (kind, name.clone()));
        }
        if !homeless.is_empty() && here.is_empty() {
            return;
        }
        let Some(lane) = self.sub_lane(io, whom, None) else {
            let answer = self.nobody(NO_SLOT);
            return self.say(io, whom, answer.as_bytes());
        };
        let Some(client) = self.client(whom) else { return };
        // One confirmation for each name; for no name one for each there is, and one at least.
        client.subscriber.unsubscribing += here.len().max(1);
        if homeless.is_empty() {
            return self.push_raw(io, lane, command.bytes);
        }
        let words: Vec<&[u8]> = std::iter::once(command.arg(0)).chain(here.iter().map(Vec::as_slice)).collect();
        let mut bytes = Vec::new();
        write_command(&mut bytes, &words);
        self.push_raw(io, lane, &bytes);
    }

    /// A client leaves what is on its way to another node, where no server has it: the confirmation is ours.
    fn leave_homeless(&mut self, io: &mut Io, whom: Whom, channel: Channel) {
        self.homeless.retain(|(w, c)| *w != whom || *c != channel);
        let Some(client) = self.client(whom) else { return };
        client.subscriber.channels.remove(&channel);
        let count = |kind: u8| client.subscriber.channels.names(kind).count();
        let (word, left) = match channel.0 {
            b's' => ("sunsubscribe", count(b's')),
            b'p' => ("punsubscribe", count(b'c') + count(b'p')),
            _ => ("unsubscribe", count(b'c') + count(b'p')),
        };
        let mut said = if client.proto == 3 { b">3\r\n".to_vec() } else { b"*3\r\n".to_vec() };
        bulk(&mut said, word.as_bytes());
        bulk(&mut said, &channel.1);
        write_header(&mut said, b':', left);
        self.push_to(io, whom, &said);
        self.perhaps_unsubscribed(io, whom);
    }

    /// SSUBSCRIBE and SUNSUBSCRIBE: each name to the node of its slot. False when it has to wait.
    pub(super) fn subscribe_sharded(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let ends = command.arg(0).eq_ignore_ascii_case(b"SUNSUBSCRIBE");
        if self.is_behind(io, whom) {
            return false;
        }
        if !ends && !self.may_hold(io, whom, command) {
            return true;
        }
        let mut names: Vec<Vec<u8>> = (1..command.len()).map(|i| command.arg(i).to_vec()).collect();
        if ends && names.is_empty() {
            let Some(client) = self.client(whom) else { return true };
            names = client.subscriber.channels.names(b's').cloned().collect();
            if names.is_empty() {
                return self.subscribe(io, whom, command);
            }
        }
        for name in names {
            let mut bytes = Vec::new();
            write_command(&mut bytes, &[command.arg(0), &name]);
            if ends {
                self.leave_shard(io, whom, name, &bytes);
            } else {
                self.join_shard(io, whom, name, &bytes);
            }
        }
        true
    }

    fn join_shard(&mut self, io: &mut Io, whom: Whom, name: Vec<u8>, bytes: &[u8]) {
        let Some(lane) = self.shard_lane(io, whom, &name) else { return };
        let Some(client) = self.client(whom) else { return };
        client.subscriber.channels.ask((b's', name), lane);
        client.subscriber.subscribing += 1;
        self.push_subscription(io, lane, bytes, 1, false);
    }

    fn leave_shard(&mut self, io: &mut Io, whom: Whom, name: Vec<u8>, bytes: &[u8]) {
        let Some(client) = self.client(whom) else { return };
        let channel = (b's', name);
        let held = client.subscriber.channels.get(&channel).and_then(|s| s.lane);
        if held.is_none() && !client.subscriber.lanes.is_empty() {
            return self.leave_homeless(io, whom, channel);
        }
        client.subscriber.channels.remove(&channel);
        let Some(lane) = held.or_else(|| self.shard_lane(io, whom, &channel.1)) else { return };
        let Some(client) = self.client(whom) else { return };
        client.subscriber.channels.leave(&channel.1);
        client.subscriber.unsubscribing += 1;
        self.push_raw(io, lane, bytes);
    }

    /// The lane to the node of a shard channel. Where nobody has its slot the client has its answer.
    fn shard_lane(&mut self, io: &mut Io, whom: Whom, name: &[u8]) -> Option<LaneId> {
        let owner = self.cluster.then(|| self.map.servers.owner(slot_of(name)));
        if owner == Some(NOBODY) {
            let answer = self.nobody(slot_of(name));
            self.say(io, whom, answer.as_bytes());
            return None;
        }
        self.sub_lane(io, whom, owner)
    }

    /// What comes on a lane without an answer being owed.
    pub fn unasked(&mut self, io: &mut Io, lane: LaneId, first: u8, bytes: &[u8]) {
        let l = &self.lanes[lane];
        let Some(whom) = l.owner else { return };
        let raw = l.raw;
        let Some(client) = self.client(whom) else { return };
        if matches!(client.rare.doing, Doing::Monitor) || !raw {
            return self.push_to(io, whom, bytes);
        }
        if first == b'-' {
            return self.subscription_refused(io, whom, lane, bytes);
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
            return self.subscribed(io, whom, lane, channel, bytes);
        }
        let own = kind != b's' || client.subscriber.channels.left(&channel.1);
        if !own && client.subscriber.channels.get(&channel).is_some_and(|s| s.lane == Some(lane)) {
            // The slot has left this node; the client asked for no such thing. It goes on where the slot is now.
            client.subscriber.channels.lose(&channel);
            self.shared.doubt();
            self.homeless.push((whom, channel));
            self.lanes_waiting += 1;
            return;
        }
        if kind != b's' {
            client.subscriber.channels.remove(&channel);
        }
        client.subscriber.unsubscribing = client.subscriber.unsubscribing.saturating_sub(1);
        self.push_to(io, whom, bytes);
        self.perhaps_unsubscribed(io, whom);
    }

    /// A name is confirmed.
    fn subscribed(&mut self, io: &mut Io, whom: Whom, lane: LaneId, channel: Channel, bytes: &[u8]) {
        let awaited = &mut self.lanes[lane].awaited;
        let mut silent = false;
        if let Some(oldest) = awaited.front_mut() {
            silent = oldest.silent;
            oldest.left -= 1;
            if oldest.left == 0 {
                self.unconfirmed.done(oldest.serial);
                awaited.pop_front();
            }
        }
        let Some(client) = self.client(whom) else { return };
        client.subscriber.channels.confirm(channel, lane);
        if !silent {
            client.subscriber.subscribing = client.subscriber.subscribing.saturating_sub(1);
            self.push_to(io, whom, bytes);
        }
        self.perhaps_unsubscribed(io, whom);
    }

    /// The oldest command of a lane was refused: its confirmations will not come.
    fn subscription_refused(&mut self, io: &mut Io, whom: Whom, lane: LaneId, bytes: &[u8]) {
        if bytes.starts_with(b"-MOVED") {
            self.shared.doubt();
            return self.subscribe_anew(io, whom, lane);
        }
        let refused = self.lanes[lane].awaited.pop_front();
        if let Some(refused) = refused {
            self.unconfirmed.done(refused.serial);
        }
        let Some(client) = self.client(whom) else { return };
        match refused {
            Some(refused) => {
                client.subscriber.channels.refuse(lane);
                if !refused.silent {
                    client.subscriber.subscribing = client.subscriber.subscribing.saturating_sub(refused.left);
                }
            }
            // Shard channels are left by a command each; of others there is one command at a time.
            None if client.subscriber.channels.leaves() => {
                client.subscriber.unsubscribing = client.subscriber.unsubscribing.saturating_sub(1);
                if client.subscriber.unsubscribing == 0 {
                    client.subscriber.channels.stop_leaving();
                }
            }
            None => client.subscriber.unsubscribing = 0,
        }
        self.push_to(io, whom, bytes);
        self.perhaps_unsubscribed(io, whom);
    }

    /// Nothing is subscribed or about to be: the client is as any other again.
    pub(super) fn perhaps_unsubscribed(&mut self, io: &mut Io, whom: Whom) {
        self.unconfirmed.stir();
        let Some(client) = self.client(whom) else { return };
        if client.subscriber.has_nothing() {
            // A client that never had any gets no memory for them.
            let lanes = match client.subscriber.lanes.is_empty() {
                true => Vec::new(),
                false => std::mem::take(&mut client.subscriber.lanes),
            };
            client.subscriber.settle();
            for lane in lanes {
                self.close_lane(io, lane);
            }
        }
    }

    /// Subscriptions that wait for a node to be on.
    pub fn house(&mut self, io: &mut Io) {
        for (whom, channel) in std::mem::take(&mut self.homeless) {
            let waits =
                self.client(whom).and_then(|c| c.subscriber.channels.get(&channel)).is_some_and(|s| s.lane.is_none());
            if !waits {
                continue;
            }
            let (kind, name) = &channel;
            let sharded = *kind == b's' && self.cluster;
            let to = if sharded { Some(self.map.servers.owner(slot_of(name))) } else { None };
            let ill = to.is_some_and(|n| self.map.servers.get(n).is_none_or(|s| s.health != Health::Up));
            let lane = if ill { None } else { self.sub_lane(io, whom, to) };
            let Some(lane) = lane else {
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
            let Some(client) = self.client(whom) else { continue };
            let silent = client.subscriber.channels.again(&channel, lane);
            if !silent {
                client.subscriber.subscribing += 1;
            }
            self.push_subscription(io, lane, &command, 1, silent);
        }
    }

    /// A lane of subscriptions is gone: all of them again, elsewhere, without the client hearing of it.
    pub(super) fn subscribe_anew(&mut self, io: &mut Io, whom: Whom, lane: LaneId) {
        self.unconfirmed.stir();
        let awaited = self.lanes[lane].awaited.iter().filter(|a| !a.silent);
        let owed: usize = awaited.map(|a| a.left).sum();
        let Some(client) = self.client(whom) else { return self.close_lane(io, lane) };
        client.subscriber.lanes.retain(|l| *l != lane);
        // They are counted again where they go.
        client.subscriber.subscribing = client.subscriber.subscribing.saturating_sub(owed);
        if client.subscriber.unsubscribing > 0 {
            // Which of its confirmations were lost nobody knows.
            self.close_lane(io, lane);
            return self.drop_client(io, whom);
        }
        let moving: Vec<(Whom, Channel)> =
            client.subscriber.channels.lose_all(lane).into_iter().map(|c| (whom, c)).collect();
        self.lanes_waiting += moving.len();
        self.homeless.extend(moving);
        self.close_lane(io, lane);
    }

    /// Whether a command that may publish is to wait for subscriptions that were sent before it arrived. On connections
    /// of their own the server would see them in that order; a shared one would be faster.
    pub(crate) fn waits_for_subscribers(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let name = &self.table.get(command.plan.number).name;
        let publishes = matches!(name.as_str(), "PUBLISH" | "SPUBLISH");
        if !publishes && !command.plan.scripted && !command.is(Special::Exec) {
            return false;
        }
        let (now, last) = (self.now, self.unconfirmed.last());
        let Some(client) = self.client(whom) else { return false };
        let behind = *client.subscriber.behind.get_or_insert(last);
        if self.unconfirmed.passes(behind, now) {
            return false;
        }
        self.stall(io, whom, Stall::Confirmations);
        true
    }

    /// Clients that wait for confirmations continue where these have come.
    pub(crate) fn continue_confirmed(&mut self) {
        let now = self.now;
        for whom in self.unconfirmed.take_stirred() {
            let Some(client) = self.client(whom).filter(|c| c.stall == Stall::Confirmations) else { continue };
            let (owed, behind) = (client.awaits_confirmations(), client.subscriber.behind);
            if !owed && behind.is_none_or(|behind| self.unconfirmed.passes(behind, now)) {
                self.resume.push(whom);
            } else {
                self.unconfirmed.wait(whom);
            }
        }
    }
}
