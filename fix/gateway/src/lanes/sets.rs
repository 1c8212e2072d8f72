//! Sets of connections with one user, database and protocol; and who they speak as.

use std::collections::HashSet;

use crate::clock::MS;
use crate::ids::{IdentityId, LaneId, SetId};
use crate::session::*;
use crate::worker::Worker;
use unslow_reactor::Io;

/// Sets of connections that no client uses are kept, so many of them and for so long.
const SETS_KEPT: usize = 8;
const SET_IDLE: u64 = 60_000 * MS;

impl Worker {
    pub fn set_of(&mut self, identity: IdentityId, db: u32, proto: u8) -> SetId {
        self.set_selected_by(identity, identity, db, proto)
    }

    /// The set of a user in a database that another one has selected.
    pub fn set_selected_by(&mut self, selector: IdentityId, identity: IdentityId, db: u32, proto: u8) -> SetId {
        // Connections begin in the first database, which needs no SELECT.
        let selector = if db == 0 { identity } else { selector };
        let same = |s: &Set| {
            s.identity == Some(identity)
                && s.selector == selector
                && s.db == db
                && s.proto == proto
                && s.owner.is_none()
                && s.setup.is_empty()
        };
        match self.sets.find(same) {
            Some(set) => set,
            None => self.add_set(Set { selector, ..Set::of(identity, db, proto, None) }),
        }
    }

    pub fn add_set(&mut self, set: Set) -> SetId {
        match self.sets.find(|s| s.identity.is_none()) {
            Some(free) => {
                self.sets[free] = set;
                free
            }
            None => self.sets.push(set),
        }
    }

    /// A client does without its own set of lanes; one that it shares stays.
    pub fn disown_set(&mut self, io: &mut Io, set: SetId, whom: Whom) {
        if self.sets[set].owner != Some(whom) {
            return;
        }
        for lane in std::mem::take(&mut self.sets[set].lanes).into_iter().flatten() {
            self.close_lane(io, lane);
        }
        (self.sets[set].owner, self.sets[set].identity) = (None, None);
    }

    /// Gives a client a set of its own, if it has none.
    pub fn own_set(&mut self, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        client.bulky = true;
        let Some(set) = client.set.filter(|set| self.sets[*set].owner.is_none()) else { return };
        let Set { identity: Some(identity), selector, db, proto, .. } = self.sets[set] else { return };
        let own = self.add_set(Set { selector, ..Set::of(identity, db, proto, Some(whom)) });
        if let Some(client) = self.client(whom) {
            client.set = Some(own);
        }
    }

    /// The number of an identity, new or known.
    pub fn identity_of(&mut self, identity: Identity) -> IdentityId {
        let identity = Some(identity);
        // Connections on which AUTH is judged are nobody's, whatever the gateway itself speaks as: they are never found
        // here.
        let same = self.identities.places().find(|at| *at != JUDGED && self.identities[*at] == identity);
        match same.or_else(|| self.identities.find(Option::is_none)) {
            Some(at) => {
                self.identities[at] = identity;
                at
            }
            None => self.identities.push(identity),
        }
    }

    /// Sets of connections that no client uses are kept for the next who logs in: a few, for a while. What is left of
    /// them then is closed, and so are the identities that were theirs.
    pub fn reap(&mut self, io: &mut Io) {
        let mut used = HashSet::new();
        let busy = self.lanes.iter().filter(|l| !l.free && (l.owner.is_some() || !l.flights.is_empty()));
        used.extend(self.everyone().filter_map(|c| c.set).chain(busy.map(|l| l.set)));
        let now = self.now;
        let mut idle: Vec<(u64, SetId)> = Vec::new();
        for set in self.sets.places() {
            let s = &mut self.sets[set];
            let kept = matches!(s.identity, None | Some(OWN | JUDGED)) || s.owner.is_some();
            if kept || used.contains(&set) {
                s.idle_since = None;
                continue;
            }
            idle.push((*s.idle_since.get_or_insert(now), set));
        }
        idle.sort_unstable();
        let surplus = idle.len().saturating_sub(SETS_KEPT);
        for (at, (since, set)) in idle.into_iter().enumerate() {
            if at < surplus || now > since + SET_IDLE {
                self.close_set(io, set);
            }
        }
        self.pool.retain(|_, lanes| !lanes.is_empty());
        let held = self.sets.iter().filter_map(|s| Some([s.identity?, s.selector])).flatten();
        let spoken = held.chain(self.everyone().filter_map(|c| c.identity));
        let known: HashSet<IdentityId> = spoken.chain([OWN, JUDGED]).collect();
        let unknown: Vec<IdentityId> = self.identities.places().filter(|at| !known.contains(at)).collect();
        unknown.into_iter().for_each(|at| self.identities[at] = None);
    }

    pub(super) fn close_set(&mut self, io: &mut Io, set: SetId) {
        for lane in self.lanes.places() {
            if !self.lanes[lane].free && self.lanes[lane].set == set {
                self.close_lane(io, lane);
            }
        }
        let s = &mut self.sets[set];
        (s.identity, s.idle_since) = (None, None);
        s.lanes = Vec::new();
    }

    /// The lane of a set to a node.
    #[inline]
    pub fn lane_of(&mut self, set: SetId, node: u16) -> LaneId {
        let lanes = &self.sets[set].lanes;
        match lanes.get(usize::from(node)) {
            Some(Some(lane)) => *lane,
            _ => {
                debug_assert_ne!(self.sets[set].identity, Some(JUDGED), "nothing but AUTH is said there");
                let owner = self.sets[set].owner;
                let lane = self.new_lane(set, node, owner);
                let lanes = &mut self.sets[set].lanes;
                if lanes.len() <= usize::from(node) {
                    lanes.resize(usize::from(node) + 1, None);
                }
                lanes[usize::from(node)] = Some(lane);
                lane
            }
        }
    }
}
