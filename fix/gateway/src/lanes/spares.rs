//! Connections dialled ahead for subscriptions. A subscription on a connection that has yet to be dialled takes effect
//! only when others have long spoken; on a server's own connections it does at once. So for each user, database,
//! protocol and node with a subscription in the last minute one greeted connection waits in the pool.

use crate::clock::MS;
use crate::ids::{LaneId, SetId};
use crate::session::*;
use crate::worker::{Spare, Worker};
use unslow_reactor::Io;
use unslow_topology::Health;

/// They are kept for this long after the last subscription.
const KEPT: u64 = 60_000 * MS;
/// One that could not be opened is dialled again after this.
const RETRY: u64 = 1000 * MS;

impl Worker {
    /// A dedicated lane for subscriptions, an open one where there is one. The next is dialled.
    pub fn take_spare(&mut self, io: &mut Io, set: SetId, node: u16, owner: Whom) -> LaneId {
        let key = self.pool_key(set, node).filter(|_| self.sets[set].setup.is_empty());
        let open = key.is_some_and(|key| self.pool.get(&key).is_some_and(|pool| !pool.is_empty()));
        let dialled = key.filter(|_| !open).and_then(|key| self.spares.get_mut(&key)?.dialling.take());
        let lane = match dialled {
            Some(lane) => {
                let l = &mut self.lanes[lane];
                (l.owner, l.waits) = (Some(owner), Waits::Nowhere);
                lane
            }
            None => self.take_lane(set, node, owner),
        };
        if let Some(key) = key {
            let spare = self.spares.entry(key).or_default();
            spare.used = self.now;
            if dialled.is_some() {
                spare.not_before = 0;
            }
            self.dial_spare(io, key);
        }
        lane
    }

    fn dial_spare(&mut self, io: &mut Io, key: PoolKey) {
        let due = self.spares.get(&key).is_some_and(|s| s.dialling.is_none() && s.not_before <= self.now);
        let full = self.config.pool == 0 || self.pool.get(&key).is_some_and(|pool| !pool.is_empty());
        let up = self.map.servers.get(key.node).is_some_and(|s| s.health == Health::Up);
        if !due || full || !up {
            return;
        }
        // Only of a set that is there: the number of an identity that nobody is any more may be another's by now.
        let same = |s: &Set| {
            let plain = s.owner.is_none() && s.setup.is_empty();
            plain && s.identity == Some(key.identity) && s.db == key.db && s.proto == key.proto
        };
        let Some(set) = self.sets.find(same) else { return };
        let lane = self.new_lane(set, key.node, None);
        let l = &mut self.lanes[lane];
        (l.pooled, l.waits) = (true, Waits::Dialling(key));
        if let Some(spare) = self.spares.get_mut(&key) {
            (spare.dialling, spare.not_before) = (Some(lane), self.now + RETRY);
        }
        self.dial_if_needed(io, lane);
    }

    /// Those that were taken by other commands, or broke, are dialled again.
    pub(crate) fn look_after_spares(&mut self, io: &mut Io) {
        let now = self.now;
        self.spares.retain(|_, spare| now < spare.used + KEPT);
        let keys: Vec<PoolKey> = self.spares.keys().copied().collect();
        keys.into_iter().for_each(|key| self.dial_spare(io, key));
    }

    /// Whether it was dialled for nobody yet.
    pub(super) fn is_spare(&self, lane: LaneId) -> bool {
        let l = &self.lanes[lane];
        l.pooled && l.owner.is_none()
    }

    /// It is greeted, and waits for a subscription.
    pub(super) fn spare_opened(&mut self, lane: LaneId) {
        let l = &mut self.lanes[lane];
        l.idle_since = self.now;
        let (set, node) = (l.set, l.node);
        let Some(key) = self.pool_key(set, node) else { return };
        if let Some(spare) = self.spares.get_mut(&key).filter(|s| s.dialling == Some(lane)) {
            *spare = Spare { used: spare.used, ..Spare::default() };
        }
        self.wait_in_pool(lane, key);
    }
}
