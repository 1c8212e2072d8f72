//! What clients are subscribed to, and what servers have yet to confirm; without connections.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::clock::MS;
use crate::ids::LaneId;
use crate::ids::Whom;
use crate::rarely::Resting;

/// A message waits at most this long for a subscription, counted from when that was sent.
const PATIENCE: u64 = 100 * MS;
/// When one has waited for all of that, none waits for this long: a server that confirms nothing costs the others a
/// tenth of their time.
const HURRY: u64 = 1000 * MS;
/// Bytes that a name costs beside its own: its place in the tree, and the allocator's.
const PLACE: usize = 96;

/// A pub/sub subscription: b's' shard channel, b'c' channel, b'p' pattern, and the name.
pub type Channel = (u8, Vec<u8>);

/// Where a subscription is.
#[derive(Clone, Copy, Debug)]
pub struct Subscription {
    /// None while it waits for a node to be on.
    pub lane: Option<LaneId>,
    /// The server has confirmed it.
    confirmed: bool,
    /// The client has its confirmation already: it was subscribed again for it.
    silent: bool,
}

/// What a client has that subscribes.
#[derive(Default)]
pub struct Subscriber {
    /// Its lanes of subscriptions.
    pub lanes: Vec<LaneId>,
    pub channels: Channels,
    /// Confirmations of subscribing that the client is to get, from its lanes of subscriptions.
    pub subscribing: usize,
    /// Confirmations of unsubscribing that are to come.
    pub unsubscribing: usize,
    /// What has come of it since it was last caught up with goes behind this subscription, where the order counts.
    pub behind: Option<u64>,
}

impl Resting for Subscriber {
    const REST: &'static Subscriber =
        &Subscriber { lanes: Vec::new(), channels: Channels::NONE, subscribing: 0, unsubscribing: 0, behind: None };

    fn is_at_rest(&self) -> bool {
        self.has_nothing() && self.lanes.is_empty() && !self.channels.leaves() && self.behind.is_none()
    }
}

impl Subscriber {
    /// Nothing is subscribed or about to be.
    pub fn has_nothing(&self) -> bool {
        self.channels.is_empty() && self.subscribing == 0 && self.unsubscribing == 0
    }

    /// There will be no connection for what is on this lane.
    pub fn give_up(&mut self, lane: LaneId) {
        self.lanes.retain(|at| *at != lane);
        for channel in self.channels.lose_all(lane) {
            self.channels.remove(&channel);
        }
    }
}

/// The subscriptions of a client.
#[derive(Debug, Default)]
pub struct Channels {
    held: BTreeMap<Channel, Subscription>,
    bytes: usize,
    /// Shard channels that the client itself leaves, and how many confirmations of it are to come. Any other is a
    /// server's own word that the slot has left it.
    leaving: BTreeMap<Vec<u8>, usize>,
}

/// Bytes of memory that a name holds.
pub fn cost(name: &[u8]) -> usize {
    name.len() + PLACE
}

impl Channels {
    const NONE: Channels = Channels { held: BTreeMap::new(), bytes: 0, leaving: BTreeMap::new() };

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Bytes of memory that their names hold.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn get(&self, channel: &Channel) -> Option<&Subscription> {
        self.held.get(channel)
    }

    /// Names of this kind.
    pub fn names(&self, kind: u8) -> impl Iterator<Item = &Vec<u8>> {
        self.held.keys().filter(move |(k, _)| *k == kind).map(|(_, name)| name)
    }

    /// The client subscribes to it on this lane.
    pub fn ask(&mut self, channel: Channel, lane: LaneId) {
        let held = self.hold(channel, lane);
        if held.lane == Some(lane) {
            // Said once more it is confirmed once more.
            held.confirmed = false;
        }
    }

    /// A lane has confirmed it. One that the client has left meanwhile is not held any more.
    pub fn confirm(&mut self, channel: Channel, lane: LaneId) {
        if channel.0 == b's' && self.leaving.contains_key(&channel.1) {
            return;
        }
        let held = self.hold(channel, lane);
        (held.confirmed, held.silent) = (true, false);
    }

    /// A lane has refused a command: what it has not confirmed is not held.
    pub fn refuse(&mut self, lane: LaneId) {
        let bytes = &mut self.bytes;
        self.held.retain(|(_, name), held| {
            let kept = held.confirmed || held.lane != Some(lane);
            if !kept {
                *bytes -= cost(name);
            }
            kept
        });
    }

    pub fn remove(&mut self, channel: &Channel) {
        if self.held.remove(channel).is_some() {
            self.bytes -= cost(&channel.1);
        }
    }

    /// The client leaves a shard channel, and a server is to confirm it.
    pub fn leave(&mut self, name: &[u8]) {
        self.remove(&(b's', name.to_vec()));
        *self.leaving.entry(name.to_vec()).or_default() += 1;
    }

    /// A server has confirmed that a shard channel was left; whether its client had asked for that.
    pub fn left(&mut self, name: &[u8]) -> bool {
        let Some(count) = self.leaving.get_mut(name) else { return false };
        *count -= 1;
        if *count == 0 {
            self.leaving.remove(name);
        }
        true
    }

    /// Whether confirmations of [`Channels::leave`] are to come.
    pub fn leaves(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// None of them will come.
    pub fn stop_leaving(&mut self) {
        self.leaving.clear();
    }

    /// It is on this lane no more.
    pub fn lose(&mut self, channel: &Channel) {
        if let Some(held) = self.held.get_mut(channel) {
            held.lane = None;
        }
    }

    /// A lane is gone, and these were on it.
    pub fn lose_all(&mut self, lane: LaneId) -> Vec<Channel> {
        let mut lost = Vec::new();
        for (channel, held) in self.held.iter_mut().filter(|(_, held)| held.lane == Some(lane)) {
            held.lane = None;
            lost.push(channel.clone());
        }
        lost
    }

    /// It is subscribed again, on this lane. True where the client has its confirmation, and gets no second one.
    pub fn again(&mut self, channel: &Channel, lane: LaneId) -> bool {
        let Some(held) = self.held.get_mut(channel) else { return true };
        let silent = held.silent || held.confirmed;
        *held = Subscription { lane: Some(lane), confirmed: false, silent };
        silent
    }

    fn hold(&mut self, channel: Channel, lane: LaneId) -> &mut Subscription {
        match self.held.entry(channel) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(place) => {
                self.bytes += cost(&place.key().1);
                place.insert(Subscription { lane: Some(lane), confirmed: false, silent: false })
            }
        }
    }
}

/// A command that subscribes, on its lane.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    pub serial: u64,
    /// Confirmations to come.
    pub left: usize,
    /// The client has them already.
    pub silent: bool,
}

/// Subscriptions that servers have not confirmed, of all clients of a worker, by their serial numbers. A message goes
/// behind those that were sent before it arrived: else their clients would miss it, since it may take a faster
/// connection.
#[derive(Debug, Default)]
pub struct Unconfirmed {
    /// When each was sent; none older than [`PATIENCE`], once looked at.
    sent: BTreeMap<u64, u64>,
    last: u64,
    /// Clients that are not read until something is confirmed.
    waiting: Vec<Whom>,
    /// Somebody has waited for one of those that were sent.
    waited: bool,
    /// They may be able to continue.
    stirred: bool,
    /// No message waits until then.
    hurried_until: u64,
}

impl Unconfirmed {
    /// Whether there is nothing to wait for.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// The serial number of one that is sent now.
    pub fn send(&mut self, now: u64) -> u64 {
        self.last += 1;
        self.sent.insert(self.last, now);
        self.last
    }

    /// It was confirmed or refused, or its lane is gone.
    pub fn done(&mut self, serial: u64) {
        self.sent.remove(&serial);
        self.stirred = true;
        self.waited &= !self.sent.is_empty();
    }

    /// The last that was sent: a message that arrives now goes behind it.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Whether a message that arrived when `behind` was the last may be sent.
    pub fn passes(&mut self, behind: u64, now: u64) -> bool {
        self.look(now);
        now < self.hurried_until || self.sent.first_key_value().is_none_or(|(first, _)| *first > behind)
    }

    /// A client is not read until [`Unconfirmed::take_stirred`] hands it out.
    pub fn wait(&mut self, whom: Whom) {
        self.waiting.push(whom);
        self.waited = true;
    }

    pub fn anyone_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What clients wait for may have come.
    pub fn stir(&mut self) {
        self.stirred = true;
    }

    /// Forgets what was not confirmed in time.
    pub fn look(&mut self, now: u64) {
        while let Some(oldest) = self.sent.first_entry().filter(|e| e.get() + PATIENCE <= now) {
            oldest.remove();
            self.stirred = true;
            if std::mem::take(&mut self.waited) {
                self.hurried_until = now + HURRY;
            }
        }
    }

    /// Clients that may be able to continue; who is not must [`Unconfirmed::wait`] again.
    #[inline]
    pub fn take_stirred(&mut self) -> Vec<Whom> {
        match std::mem::take(&mut self.stirred) {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: LaneId = LaneId::at(0);
    const OTHER: LaneId = LaneId::at(1);
    const SOMEBODY: Whom = Whom { index: 0, serial: 1 };

    fn shard(name: &str) -> Channel {
        (b's', name.into())
    }

    #[test]
    fn a_message_waits_for_the_subscriptions_sent_before_it_and_for_no_others() {
        let mut unconfirmed = Unconfirmed::default();
        let (first, second) = (unconfirmed.send(0), unconfirmed.send(1));
        let behind = unconfirmed.last();
        let later = unconfirmed.send(2);
        assert!(!unconfirmed.passes(behind, 3));
        unconfirmed.done(second);
        assert!(!unconfirmed.passes(behind, 3));
        unconfirmed.done(first);
        assert!(unconfirmed.passes(behind, 3) && !unconfirmed.passes(unconfirmed.last(), 3));
        unconfirmed.done(later);
        assert!(unconfirmed.is_empty());
    }

    #[test]
    fn a_server_that_confirms_nothing_costs_the_others_a_tenth_of_their_time() {
        let (mut unconfirmed, mut waited) = (Unconfirmed::default(), 0);
        for ms in 0..10_000 {
            let now = ms * MS;
            unconfirmed.send(now);
            if !unconfirmed.passes(unconfirmed.last(), now) {
                waited += 1;
                if !unconfirmed.anyone_waits() {
                    unconfirmed.wait(SOMEBODY);
                }
            }
            unconfirmed.take_stirred();
        }
        assert!((100..=1100).contains(&waited), "{waited} of 10,000 ms");
        assert!(unconfirmed.sent.len() <= 101, "{} are kept", unconfirmed.sent.len());
    }

    #[test]
    fn clients_that_wait_are_handed_out_when_something_has_come() {
        let mut unconfirmed = Unconfirmed::default();
        let serial = unconfirmed.send(0);
        unconfirmed.wait(SOMEBODY);
        assert!(unconfirmed.take_stirred().is_empty());
        unconfirmed.done(serial);
        assert_eq!(unconfirmed.take_stirred(), [SOMEBODY]);
        assert!(!unconfirmed.anyone_waits());
        unconfirmed.send(0);
        unconfirmed.wait(SOMEBODY);
        unconfirmed.look(PATIENCE - 1);
        assert!(unconfirmed.take_stirred().is_empty());
        unconfirmed.look(PATIENCE);
        assert_eq!(unconfirmed.take_stirred(), [SOMEBODY]);
    }

    #[test]
    fn bytes_follow_the_names_that_are_held() {
        let mut channels = Channels::default();
        for name in ["one", "three", "one"] {
            channels.ask(shard(name), LANE);
        }
        assert_eq!((channels.len(), channels.bytes()), (2, cost(b"one") + cost(b"three")));
        channels.confirm(shard("one"), LANE);
        channels.refuse(OTHER);
        assert_eq!(channels.len(), 2);
        channels.refuse(LANE);
        assert_eq!((channels.len(), channels.bytes()), (1, cost(b"one")));
        channels.leave(b"one");
        channels.remove(&shard("one"));
        assert!(channels.is_empty() && channels.bytes() == 0);
    }

    #[test]
    fn an_own_unsubscribe_is_told_from_a_slot_that_moves() {
        let mut channels = Channels::default();
        channels.ask(shard("c"), LANE);
        channels.leave(b"c");
        // The confirmation of the first comes behind.
        channels.confirm(shard("c"), LANE);
        assert!(channels.is_empty());
        assert!(channels.left(b"c"));
        channels.ask(shard("c"), LANE);
        channels.confirm(shard("c"), LANE);
        assert!(!channels.left(b"c"), "nobody asked for it");
        channels.leave(b"c");
        channels.leave(b"c");
        assert!(channels.left(b"c") && channels.leaves() && channels.left(b"c") && !channels.leaves());
    }

    #[test]
    fn a_confirmation_is_owed_once_wherever_the_subscription_goes() {
        let mut channels = Channels::default();
        channels.ask(shard("c"), LANE);
        assert_eq!(channels.lose_all(LANE), [shard("c")]);
        assert!(!channels.again(&shard("c"), OTHER), "the client waits for it");
        channels.confirm(shard("c"), OTHER);
        // Moved twice before it is confirmed.
        for (from, to) in [(OTHER, LANE), (LANE, OTHER)] {
            channels.lose_all(from);
            assert!(channels.again(&shard("c"), to));
        }
    }
}
