//! A connection from its dial to its greeting, and back to the pool.

use crate::clock::MS;
use crate::config::Read;
use crate::ids::{LaneId, SetId};
use crate::own::Share;
use crate::session::*;
use crate::worker::Worker;
use unslow_nodes::{Backoff, Greeting, Plan, Progress, Tolerance};
use unslow_reactor::{Io, now_ns};
use unslow_resp::write_command;
use unslow_topology::Health;

impl Worker {
    pub(super) fn new_lane(&mut self, set: SetId, node: u16, owner: Option<Whom>) -> LaneId {
        let held = self.map.servers.get(node).is_some_and(|s| s.health == Health::Suspected);
        let lane = Lane {
            connection: None,
            state: State::Closed(0),
            set,
            node,
            owner,
            pooled: false,
            raw: false,
            awaited: Default::default(),
            held,
            dirty: false,
            read_only: Some(false),
            greeting: Greeting::default(),
            flights: Default::default(),
            journal: Default::default(),
            sent: 0,
            sent_bytes: 0,
            splitter: splitter(),
            first: 0,
            part: Vec::new(),
            forwarded: 0,
            used: false,
            dialled_at: 0,
            server_number: None,
            backoff: Backoff::new(10 * MS, 1000 * MS),
            down_since: None,
            replaced_at: None,
            idle_since: self.now,
            permit: None,
            waits_since: None,
            waits: Waits::Nowhere,
            free: false,
        };
        match self.lanes_free.pop() {
            Some(at) => {
                self.lanes[at] = lane;
                at
            }
            None => self.lanes.push(lane),
        }
    }

    /// A dedicated lane to a node, from the pool or new.
    pub fn take_lane(&mut self, set: SetId, node: u16, owner: Whom) -> LaneId {
        let Set { identity, selector, db, proto, .. } = self.sets[set];
        let plain = identity.map_or(set, |identity| self.set_selected_by(selector, identity, db, proto));
        let setup = !self.sets[set].setup.is_empty();
        let key = self.pool_key(set, node).filter(|_| !setup);
        let pooled = key.and_then(|key| self.pool.get_mut(&key)?.pop());
        let lane = match pooled {
            Some(lane) => {
                self.lanes[lane].owner = Some(owner);
                lane
            }
            None => self.new_lane(if setup { set } else { plain }, node, Some(owner)),
        };
        let l = &mut self.lanes[lane];
        (l.pooled, l.dirty, l.used, l.waits) = (true, setup, false, Waits::Nowhere);
        lane
    }

    /// Back to the pool, if it is as it was.
    pub fn return_lane(&mut self, io: &mut Io, lane: LaneId) {
        let l = &mut self.lanes[lane];
        let clean = l.pooled && !l.dirty && !l.raw && l.flights.is_empty() && l.first == 0 && l.state == State::Ready;
        let (set, node) = (l.set, l.node);
        l.owner = None;
        l.idle_since = self.now;
        // Where somebody waits for a place, what is given back is closed.
        let crowded = self.crowded(node, self.share(lane));
        let is_full = |key: &PoolKey| self.pool.get(key).is_some_and(|pool| pool.len() >= self.config.pool);
        let key = self.pool_key(set, node).filter(|key| clean && !crowded && self.config.pool > 0 && !is_full(key));
        match key {
            Some(key) => self.wait_in_pool(lane, key),
            None => self.close_lane(io, lane),
        }
    }

    pub(super) fn wait_in_pool(&mut self, lane: LaneId, key: PoolKey) {
        self.lanes[lane].waits = Waits::InPool(key);
        self.pool.entry(key).or_default().push(lane);
    }

    pub(super) fn pool_key(&self, set: SetId, node: u16) -> Option<PoolKey> {
        let Set { identity, db, proto, .. } = self.sets[set];
        Some(PoolKey { identity: identity?, db, proto, node })
    }

    /// Closes a lane whose commands nobody waits for any more.
    pub fn close_lane(&mut self, io: &mut Io, lane: LaneId) {
        let l = &mut self.lanes[lane];
        if l.free {
            return;
        }
        if let Some(connection) = l.connection.take() {
            io.close(connection);
            self.parties[connection.index()] = crate::worker::Party::Nobody;
        }
        let l = &mut self.lanes[lane];
        l.free = true;
        l.flights = Default::default();
        l.journal = Default::default();
        l.part = Vec::new();
        (l.sent, l.sent_bytes, l.owner) = (0, 0, None);
        (l.permit, l.waits_since) = (None, None);
        for awaited in std::mem::take(&mut l.awaited) {
            self.unconfirmed.done(awaited.serial);
        }
        // Clients come back by thousands when a shard does: who knew it is looked up, and not looked for.
        let l = &mut self.lanes[lane];
        let (set, node, waits) = (l.set, usize::from(l.node), std::mem::take(&mut l.waits));
        if let Some(at) = self.sets[set].lanes.get_mut(node).filter(|at| **at == Some(lane)) {
            *at = None;
        }
        match waits {
            Waits::Nowhere => {}
            Waits::InPool(key) => self.pool.entry(key).or_default().retain(|at| *at != lane),
            Waits::Dialling(key) => {
                if let Some(spare) = self.spares.get_mut(&key).filter(|spare| spare.dialling == Some(lane)) {
                    spare.dialling = None;
                }
            }
        }
        self.clogs.retain(|c| c.lane != lane);
        self.lanes_free.push(lane);
    }

    /// A command onto a lane: written with this turn, or when the lane can.
    #[inline]
    pub fn push(&mut self, io: &mut Io, lane: LaneId, flight: Flight, bytes: &[u8]) {
        if self.cluster && self.config.read != Read::Primary && !self.lanes[lane].pooled {
            self.set_mode(io, lane, &flight);
        }
        self.put(io, lane, flight, bytes);
    }

    /// Says READONLY before a read of a replica, and READWRITE before what is for a master: a connection that stayed
    /// with READONLY while its node was promoted and demoted would answer with what a replica still has.
    pub(super) fn set_mode(&mut self, io: &mut Io, lane: LaneId, flight: &Flight) {
        if flight.slot == NO_SLOT {
            return;
        }
        let l = &self.lanes[lane];
        let read_only = flight.read && self.map.servers.owner(flight.slot) != l.node;
        if l.read_only == Some(read_only) {
            return;
        }
        let mut command = Vec::new();
        write_command(&mut command, &[if read_only { "READONLY" } else { "READWRITE" }]);
        self.lanes[lane].read_only = Some(read_only);
        let swallow = Flight { len: command.len() as u32, kind: Kind::Swallow, seq: 0, ..*flight };
        self.put(io, lane, swallow, &command);
    }

    #[inline]
    pub(super) fn put(&mut self, io: &mut Io, lane: LaneId, flight: Flight, bytes: &[u8]) {
        let l = &mut self.lanes[lane];
        l.flights.push_back(flight);
        l.journal.push(bytes);
        if l.state == State::Ready && !l.held {
            if let Some(connection) = l.connection {
                io.output(connection).extend_from_slice(bytes);
            }
            l.sent += 1;
            l.sent_bytes += bytes.len();
        } else {
            self.stats.held += 1;
            self.lanes_waiting += 1;
            self.dial_if_needed(io, lane);
        }
    }

    /// Whether a lane may have a connection: one that a client has alone needs a place among those of its node. Those
    /// who wait come first.
    fn permitted(&mut self, lane: LaneId) -> bool {
        let l = &self.lanes[lane];
        if !l.lacks_permit() {
            return true;
        }
        let (share, node, now) = (self.share(lane), l.node, self.now);
        let Some(server) = self.map.servers.get(node) else { return false };
        let behind = l.waits_since.is_none() && server.own.crowded(share, now);
        let permit = if behind { None } else { server.own.take(share, self.own_most, now) };
        let l = &mut self.lanes[lane];
        l.waits_since = if permit.is_some() { None } else { l.waits_since.or(Some(now)) };
        l.permit = permit;
        l.permit.is_some()
    }

    /// Whose connections a lane is counted among.
    pub(super) fn share(&self, lane: LaneId) -> Share {
        match self.sets[self.lanes[lane].set].identity {
            Some(JUDGED) => Share::Logins,
            _ => Share::Clients,
        }
    }

    /// Whether somebody waits for a connection of their own to this node.
    pub(super) fn crowded(&self, node: u16, share: Share) -> bool {
        self.map.servers.get(node).is_some_and(|s| s.own.crowded(share, self.now))
    }

    pub fn dial_if_needed(&mut self, io: &mut Io, lane: LaneId) {
        let now = self.now;
        let l = &self.lanes[lane];
        let State::Closed(at) = l.state else { return };
        if l.free || at > now || !self.permitted(lane) {
            return;
        }
        let l = &self.lanes[lane];
        let Some(server) = self.map.servers.get(l.node) else { return };
        // A name that no certificate may have is not dialled in the clear where TLS was asked for.
        let verified = self.shared.tls.is_none() || server.tls.is_some();
        let dialled = match server.peer.as_ref().filter(|_| verified) {
            Some(peer) => io.connect(peer, server.tls.as_ref(), now_ns() + self.config.connect_ms * MS),
            None => Err(std::io::Error::other("its name does not resolve, or no certificate may have it")),
        };
        match dialled {
            Ok(id) => {
                let l = &mut self.lanes[lane];
                (l.connection, l.state, l.dialled_at) = (Some(id), State::Opening, now);
                self.lane_party(id, lane);
            }
            Err(_) => {
                self.lane_failed(lane);
                self.rehome(io, lane);
            }
        }
    }

    /// Subscriptions on a lane that does not open go elsewhere. One that was dialled ahead is given up.
    pub(super) fn rehome(&mut self, io: &mut Io, lane: LaneId) {
        let l = &self.lanes[lane];
        if let (true, Some(owner)) = (l.raw, l.owner) {
            self.lost_own_lane(io, lane, owner);
        } else if self.is_spare(lane) {
            self.close_lane(io, lane);
        }
    }

    /// It could not be opened: later again, with patience and jitter.
    pub(super) fn lane_failed(&mut self, lane: LaneId) {
        self.stats.lanes_failed += 1;
        let now = self.now;
        let l = &mut self.lanes[lane];
        l.connection = None;
        l.greeting = Greeting::default();
        l.splitter = splitter();
        (l.first, l.forwarded) = (0, 0);
        l.part.clear();
        l.down_since.get_or_insert(now);
        let pause = l.backoff.failed(rand::random_range);
        l.state = State::Closed(now + pause);
    }

    pub fn lane_opened(&mut self, io: &mut Io, lane: LaneId) {
        let l = &self.lanes[lane];
        let Some(connection) = l.connection else { return };
        let set = &self.sets[l.set];
        let identity = set.identity.and_then(|identity| self.identities[identity].as_ref());
        // AUTH keeps the database: it is selected first by who may, where the user of the lane may not.
        let inherited = set.db != 0 && set.identity != Some(set.selector);
        let selector = self.identities[set.selector].as_ref().map(Identity::login).unwrap_or_default();
        let setup: Vec<Vec<u8>> = set.setup.iter().map(|setting| setting.bytes.clone()).collect();
        let login = identity.map(Identity::login).unwrap_or_default();
        let plan = Plan {
            user: login.user,
            password: login.password,
            resp3: set.proto == 3,
            tolerance: Tolerance::Nothing,
            name: Some("unslow-gateway"),
            wants_id: l.owner.is_some() || l.pooled,
            db: set.db,
            selector: inherited.then_some(selector),
            setup: &setup,
        };
        let greeting = Greeting::begin(&plan, io.output(connection));
        let l = &mut self.lanes[lane];
        l.greeting = greeting;
        l.state = State::Greeting;
    }

    pub(super) fn greeting_reply(&mut self, io: &mut Io, lane: LaneId, bytes: &[u8]) {
        let l = &mut self.lanes[lane];
        let passing = match l.greeting.reply(bytes) {
            Progress::More | Progress::Unasked => return,
            Progress::Done { id } => {
                l.server_number = id;
                return self.greeted(io, lane);
            }
            Progress::Refused { passing } => passing,
        };
        // LOADING and the like pass; a wrong password does not, and who waits hears of it.
        let connection = l.connection.take();
        if let Some(id) = connection {
            io.close(id);
            self.parties[id.index()] = crate::worker::Party::Nobody;
        }
        self.lane_failed(lane);
        if !passing {
            let l = &mut self.lanes[lane];
            let all: Vec<Flight> = l.flights.drain(..).collect();
            l.journal.clear();
            l.read_only = Some(false);
            (l.sent, l.sent_bytes) = (0, 0);
            let (owner, pooled, raw) = (l.owner, l.pooled, l.raw);
            for flight in all {
                self.stats.error("server_refused");
                self.fail_flight(io, &flight, bytes);
            }
            if let (Some(owner), true) = (owner, pooled) {
                if raw {
                    // Its subscriptions would be refused anywhere.
                    self.push_to(io, owner, bytes);
                    self.close_when_answered(io, owner);
                }
                self.lost_own_lane(io, lane, owner);
            }
        }
        if self.is_spare(lane) {
            self.close_lane(io, lane);
        }
    }

    pub(super) fn greeted(&mut self, io: &mut Io, lane: LaneId) {
        self.stats.lanes_opened += 1;
        let l = &mut self.lanes[lane];
        l.state = State::Ready;
        l.backoff.succeeded();
        l.down_since = None;
        if self.is_spare(lane) {
            return self.spare_opened(lane);
        }
        self.flow(io, lane);
    }

    /// Writes what waited.
    pub(super) fn flow(&mut self, io: &mut Io, lane: LaneId) {
        let l = &mut self.lanes[lane];
        if let (true, Some(connection)) = (l.flows(), l.connection) {
            io.output(connection).extend_from_slice(&l.journal.all()[l.sent_bytes..]);
            l.sent = l.flights.len();
            l.sent_bytes = l.journal.len();
            if l.raw {
                l.journal.clear();
                l.sent_bytes = 0;
            }
        }
    }
}
