//! Sets of connections with one user, database and protocol; and who they speak as.

use crate::session::*;
use crate::worker::{MS, Worker};
use unslow_reactor::Io;

/// Sets of connections that no client uses are kept, so many of them and for so long.
const SETS_KEPT: usize = 8;
const SET_IDLE: u64 = 60_000 * MS;

impl Worker {
    pub fn set_of(&mut self, identity: u32, db: u32, proto: u8) -> u32 {
        let same = |s: &Set| {
            s.identity == identity && s.db == db && s.proto == proto && s.owner.is_none() && s.setup.is_empty()
        };
        match self.sets.iter().position(same) {
            Some(at) => at as u32,
            None => self.add_set(Set {
                identity,
                db,
                proto,
                owner: None,
                lanes: Vec::new(),
                setup: Vec::new(),
                idle_since: None,
            }),
        }
    }

    pub fn add_set(&mut self, set: Set) -> u32 {
        match self.sets.iter().position(|s| s.identity == NONE) {
            Some(at) => {
                self.sets[at] = set;
                at as u32
            }
            None => {
                self.sets.push(set);
                self.sets.len() as u32 - 1
            }
        }
    }

    /// Gives a client a set of its own, if it has none.
    pub fn own_set(&mut self, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        client.bulky = true;
        let set = client.set;
        if set == NONE || self.sets[set as usize].owner.is_some() {
            return;
        }
        let Set { identity, db, proto, .. } = self.sets[set as usize];
        let own = self.add_set(Set {
            identity,
            db,
            proto,
            owner: Some(whom),
            lanes: Vec::new(),
            setup: Vec::new(),
            idle_since: None,
        });
        if let Some(client) = self.client(whom) {
            client.set = own;
        }
    }

    /// The number of an identity, new or known.
    pub fn identity_of(&mut self, identity: Identity) -> u32 {
        let identity = Some(identity);
        let judged = JUDGED as usize;
        // Connections on which AUTH is judged are nobody's, whatever the gateway itself speaks as: they are never found here.
        if let Some((at, _)) = self.identities.iter().enumerate().find(|(at, i)| *at != judged && **i == identity) {
            return at as u32;
        }
        match self.identities.iter().position(Option::is_none) {
            Some(at) => {
                self.identities[at] = identity;
                at as u32
            }
            None => {
                self.identities.push(identity);
                self.identities.len() as u32 - 1
            }
        }
    }

    /// Sets of connections that no client uses are kept for the next who logs in: a few, for a while. What is left of them then is
    /// closed, and so are the identities that were theirs.
    pub fn reap(&mut self, io: &mut Io) {
        let mut used = vec![false; self.sets.len()];
        let busy = self.lanes.iter().filter(|l| !l.free && (l.owner.is_some() || !l.flights.is_empty()));
        let held = self.everyone().map(|c| c.set).chain(busy.map(|l| l.set)).filter(|set| *set != NONE);
        held.for_each(|set| used[set as usize] = true);
        let now = self.now;
        let mut idle: Vec<(u64, u32)> = Vec::new();
        for (set, used) in (0..).zip(used) {
            let s = &mut self.sets[set as usize];
            if used || matches!(s.identity, NONE | OWN | JUDGED) || s.owner.is_some() {
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
        let mut known = vec![false; self.identities.len()];
        let spoken = self.sets.iter().map(|s| s.identity).chain(self.everyone().map(|c| c.identity));
        spoken.filter(|identity| *identity != NONE).for_each(|identity| known[identity as usize] = true);
        let unknown = self.identities.iter_mut().zip(known).skip(2).filter(|(_, known)| !known);
        unknown.for_each(|(identity, _)| *identity = None);
    }

    pub(super) fn close_set(&mut self, io: &mut Io, set: u32) {
        for lane in 0..self.lanes.len() as u32 {
            if !self.lanes[lane as usize].free && self.lanes[lane as usize].set == set {
                self.close_lane(io, lane);
            }
        }
        let s = &mut self.sets[set as usize];
        (s.identity, s.idle_since) = (NONE, None);
        s.lanes = Vec::new();
    }

    /// The lane of a set to a node.
    #[inline]
    pub fn lane_of(&mut self, set: u32, node: u16) -> u32 {
        let lanes = &self.sets[set as usize].lanes;
        match lanes.get(usize::from(node)) {
            Some(lane) if *lane != NONE => *lane,
            _ => {
                let owner = self.sets[set as usize].owner;
                let lane = self.new_lane(set, node, owner);
                let lanes = &mut self.sets[set as usize].lanes;
                if lanes.len() <= usize::from(node) {
                    lanes.resize(usize::from(node) + 1, NONE);
                }
                lanes[usize::from(node)] = lane;
                lane
            }
        }
    }
}
