//! Connections to servers: opened when needed, greeted, read; and what becomes of the commands on them when something
//! breaks, moves or hangs.
//!
//! The rule for commands: what was never written is sent elsewhere. What was written and not answered is sent again only if
//! it reads or was declared idempotent; its client gets one error otherwise, because nobody knows whether it ran.

use unslow_reactor::{Closed, Io, now_ns};
use unslow_resp::{Split, write_command};
use unslow_topology::{Health, Role};

use crate::config::Read;
use crate::map::{self, Map};
use crate::session::*;
use crate::worker::{Again, Clog, MS, Worker};
use std::sync::Arc;

/// How often a command follows redirects before its client hears of it.
const REDIRECTS_MAX: u8 = 16;
/// Client output beyond which its server is not read for a while.
const CLOG: usize = 2 << 20;
/// A client that takes nothing for so long gets its answers from our memory, up to its limit.
const CLOG_PATIENCE: u64 = 50 * MS;
/// A reply that is this long in coming makes its client one with connections of its own.
const BULKY: usize = 256 << 10;

impl Worker {
    pub fn set_of(&mut self, identity: u32, db: u32, proto: u8) -> u32 {
        let same = |s: &Set| {
            s.identity == identity && s.db == db && s.proto == proto && s.owner.is_none() && s.setup.is_empty()
        };
        match self.sets.iter().position(same) {
            Some(at) => at as u32,
            None => self.add_set(Set { identity, db, proto, owner: None, lanes: Vec::new(), setup: Vec::new() }),
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
        let own = self.add_set(Set { identity, db, proto, owner: Some(whom), lanes: Vec::new(), setup: Vec::new() });
        if let Some(client) = self.client(whom) {
            client.set = own;
        }
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

    fn new_lane(&mut self, set: u32, node: u16, owner: Option<Whom>) -> u32 {
        let held = self.map.servers.get(usize::from(node)).is_some_and(|s| s.health == Health::Suspected);
        let lane = Lane {
            connection: None,
            state: State::Closed(0),
            set,
            node,
            owner,
            pooled: false,
            raw: false,
            held,
            dirty: false,
            read_only: Some(false),
            greeting: Default::default(),
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
            failures: 0,
            down_since: None,
            idle_since: self.now,
            free: false,
        };
        match self.lanes_free.pop() {
            Some(at) => {
                self.lanes[at as usize] = lane;
                at
            }
            None => {
                self.lanes.push(lane);
                self.lanes.len() as u32 - 1
            }
        }
    }

    /// A dedicated lane to a node, from the pool or new.
    pub fn take_lane(&mut self, set: u32, node: u16, owner: Whom) -> u32 {
        let Set { identity, db, proto, .. } = self.sets[set as usize];
        let plain = self.set_of(identity, db, proto);
        let setup = !self.sets[set as usize].setup.is_empty();
        let pooled = if setup { None } else { self.pool.get_mut(&(identity, db, proto, node)).and_then(Vec::pop) };
        let lane = match pooled {
            Some(lane) => {
                self.lanes[lane as usize].owner = Some(owner);
                lane
            }
            None => self.new_lane(if setup { set } else { plain }, node, Some(owner)),
        };
        let l = &mut self.lanes[lane as usize];
        (l.pooled, l.dirty, l.used) = (true, setup, false);
        lane
    }

    /// Back to the pool, if it is as it was.
    pub fn return_lane(&mut self, io: &mut Io, lane: u32) {
        let l = &mut self.lanes[lane as usize];
        let clean = l.pooled && !l.dirty && !l.raw && l.flights.is_empty() && l.first == 0 && l.state == State::Ready;
        let (set, node) = (l.set, l.node);
        l.owner = None;
        l.idle_since = self.now;
        let Set { identity, db, proto, .. } = self.sets[set as usize];
        let pool = self.pool.entry((identity, db, proto, node)).or_default();
        if clean && pool.len() < self.config.pool {
            pool.push(lane);
        } else {
            self.close_lane(io, lane);
        }
    }

    /// Closes a lane whose commands nobody waits for any more.
    pub fn close_lane(&mut self, io: &mut Io, lane: u32) {
        let l = &mut self.lanes[lane as usize];
        if l.free {
            return;
        }
        if let Some(connection) = l.connection.take() {
            io.close(connection);
            self.parties[connection.index()] = crate::worker::Party::Nobody;
        }
        let l = &mut self.lanes[lane as usize];
        l.free = true;
        l.flights = Default::default();
        l.journal = Default::default();
        l.part = Vec::new();
        (l.sent, l.sent_bytes, l.owner) = (0, 0, None);
        for set in &mut self.sets {
            set.lanes.iter_mut().filter(|at| **at == lane).for_each(|at| *at = NONE);
        }
        for pool in self.pool.values_mut() {
            pool.retain(|at| *at != lane);
        }
        self.clogs.retain(|c| c.lane != lane);
        self.lanes_free.push(lane);
    }

    /// A command onto a lane: written with this turn, or when the lane can.
    #[inline]
    pub fn push(&mut self, io: &mut Io, lane: u32, flight: Flight, bytes: &[u8]) {
        if self.cluster && self.config.read != Read::Primary && !self.lanes[lane as usize].pooled {
            self.set_mode(io, lane, &flight);
        }
        self.put(io, lane, flight, bytes);
    }

    /// Says READONLY before a read of a replica, and READWRITE before what is for a master: a connection that stayed with
    /// READONLY while its node was promoted and demoted would answer with what a replica still has.
    fn set_mode(&mut self, io: &mut Io, lane: u32, flight: &Flight) {
        let l = &self.lanes[lane as usize];
        let Some(owner) = self.map.slots.get(usize::from(flight.slot)) else { return };
        let read_only = flight.read && *owner != l.node;
        if l.read_only == Some(read_only) {
            return;
        }
        let mut command = Vec::new();
        write_command(&mut command, &[if read_only { "READONLY" } else { "READWRITE" }]);
        self.lanes[lane as usize].read_only = Some(read_only);
        let swallow = Flight { len: command.len() as u32, kind: Kind::Swallow, ..*flight };
        self.put(io, lane, swallow, &command);
    }

    #[inline]
    fn put(&mut self, io: &mut Io, lane: u32, flight: Flight, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
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

    pub fn dial_if_needed(&mut self, io: &mut Io, lane: u32) {
        let now = self.now;
        let l = &self.lanes[lane as usize];
        let State::Closed(at) = l.state else { return };
        if l.free || at > now {
            return;
        }
        let Some(server) = self.map.servers.get(usize::from(l.node)) else { return };
        let dialled = match &server.peer {
            Some(peer) => io.connect(peer, server.tls.as_ref(), now_ns() + self.config.connect_ms * MS),
            None => Err(std::io::Error::other("its name does not resolve")),
        };
        match dialled {
            Ok(id) => {
                let l = &mut self.lanes[lane as usize];
                (l.connection, l.state, l.dialled_at) = (Some(id), State::Opening, now);
                self.lane_party(id, lane);
            }
            Err(_) => {
                self.lane_failed(lane);
                self.rehome(io, lane);
            }
        }
    }

    /// Subscriptions on a lane that does not open go elsewhere.
    fn rehome(&mut self, io: &mut Io, lane: u32) {
        let l = &self.lanes[lane as usize];
        if let (true, Some(owner)) = (l.raw, l.owner) {
            self.lost_own_lane(io, lane, owner);
        }
    }

    /// It could not be opened: later again, with patience and jitter.
    fn lane_failed(&mut self, lane: u32) {
        self.stats.lanes_failed += 1;
        let now = self.now;
        let l = &mut self.lanes[lane as usize];
        l.connection = None;
        l.greeting.clear();
        l.splitter = splitter();
        (l.first, l.forwarded) = (0, 0);
        l.part.clear();
        l.down_since.get_or_insert(now);
        let pause = ((10 * MS) << l.failures.min(7)).min(1000 * MS);
        l.failures += 1;
        l.state = State::Closed(now + pause / 2 + rand::random_range(0..pause / 2));
    }

    pub fn lane_opened(&mut self, io: &mut Io, lane: u32) {
        let l = &self.lanes[lane as usize];
        let Some(connection) = l.connection else { return };
        let set = &self.sets[l.set as usize];
        let (db, proto, setup) = (set.db, set.proto, set.setup.clone());
        let identity = self.identities.get(set.identity as usize).cloned();
        let l_owned = l.owner.is_some();
        let out = io.output(connection);
        let mut greeting = std::collections::VecDeque::new();
        if let Some(Identity { user, password }) = identity
            && (user.is_some() || password.is_some())
        {
            let mut auth = vec![b"AUTH".to_vec()];
            auth.extend(user);
            auth.push(password.unwrap_or_default());
            write_command(out, &auth);
            greeting.push_back(Greeting::Auth);
        }
        if proto == 3 {
            write_command(out, &["HELLO", "3"]);
            greeting.push_back(Greeting::Hello);
        }
        write_command(out, &["CLIENT", "SETNAME", "unslow-gateway"]);
        greeting.push_back(Greeting::Ignore);
        if proto == 2 && l_owned {
            write_command(out, &["CLIENT", "ID"]);
            greeting.push_back(Greeting::Number);
        }
        if db != 0 {
            write_command(out, &["SELECT", &db.to_string()]);
            greeting.push_back(Greeting::Select);
        }
        for command in &setup {
            out.extend_from_slice(command);
            greeting.push_back(Greeting::Setup);
        }
        let l = &mut self.lanes[lane as usize];
        l.greeting = greeting;
        l.state = State::Greeting;
    }

    fn greeted(&mut self, io: &mut Io, lane: u32) {
        self.stats.lanes_opened += 1;
        let l = &mut self.lanes[lane as usize];
        l.state = State::Ready;
        l.failures = 0;
        l.down_since = None;
        self.flow(io, lane);
    }

    /// Writes what waited.
    fn flow(&mut self, io: &mut Io, lane: u32) {
        let l = &mut self.lanes[lane as usize];
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

    // What comes from servers.

    pub fn lane_data(&mut self, io: &mut Io, lane: u32, bytes: &[u8]) -> usize {
        let connection = self.lanes[lane as usize].connection;
        let mut used = 0;
        while used < bytes.len() {
            let l = &mut self.lanes[lane as usize];
            if l.connection != connection {
                return bytes.len();
            }
            let rest = &bytes[used..];
            let first = if l.first == 0 { rest[0] } else { l.first };
            match l.splitter.split(rest) {
                Ok(Split::Done(done)) => {
                    l.first = 0;
                    used += done.end;
                    self.frame(io, lane, first, &rest[..done.end]);
                }
                Ok(Split::More { consumed }) => {
                    if consumed > 0 {
                        l.first = first;
                        self.part(io, lane, first, &rest[..consumed]);
                    }
                    used += consumed;
                    break;
                }
                Err(_) => {
                    if let Some(id) = connection {
                        io.close(id);
                    }
                    self.lane_closed(io, lane, &Closed::Peer);
                    return bytes.len();
                }
            }
        }
        used
    }

    /// The middle of a reply.
    fn part(&mut self, io: &mut Io, lane: u32, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
        let flight = l.flights.front().copied();
        let forward = matches!(first, b'$' | b'*' | b'%' | b'~' | b'=')
            && l.state == State::Ready
            && !l.raw
            && l.part.is_empty()
            && flight.is_some_and(|f| matches!(f.kind, Kind::Reply | Kind::Block));
        match flight.filter(|_| forward) {
            Some(flight) => {
                l.forwarded += bytes.len();
                let bulky = l.forwarded > BULKY && l.owner.is_none();
                self.answer(io, flight.whom, flight.seq, bytes, false);
                if bulky && let Some(client) = self.client(flight.whom) {
                    client.bulky = true;
                }
                self.clogged(io, lane, flight.whom);
            }
            None => l.part.extend_from_slice(bytes),
        }
    }

    /// The end of a reply, or all of it.
    #[inline]
    fn frame(&mut self, io: &mut Io, lane: u32, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
        if l.state == State::Ready && first != b'>' && !l.raw && l.part.is_empty() {
            return self.reply(io, lane, first, bytes);
        }
        let mut whole = std::mem::take(&mut l.part);
        whole.extend_from_slice(bytes);
        if l.state == State::Greeting && first != b'>' {
            return self.greeting_reply(io, lane, &whole);
        }
        if first == b'>' || l.raw {
            return self.unasked(io, lane, first, &whole);
        }
        self.reply(io, lane, first, &whole);
    }

    fn greeting_reply(&mut self, io: &mut Io, lane: u32, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
        let Some(what) = l.greeting.pop_front() else { return };
        let refused = bytes.first() == Some(&b'-');
        // An AUTH to a server without passwords is no reason to stay away.
        let says = |words: &[u8]| bytes.windows(words.len()).any(|w| w == words);
        let needless = what == Greeting::Auth && (says(b"without any password") || says(b"no password is set"));
        if what == Greeting::Hello && !refused {
            l.server_number = hello_number(bytes);
        }
        if what == Greeting::Number && !refused {
            l.server_number = unslow_resp::Frame::new(bytes).integer().and_then(|n| u64::try_from(n).ok());
        }
        if refused && !matches!(what, Greeting::Ignore | Greeting::Number) && !needless {
            // LOADING and the like pass; a wrong password does not, and who waits hears of it.
            let passing = bytes.starts_with(b"-LOADING") || bytes.starts_with(b"-MASTERDOWN");
            let connection = l.connection.take();
            if let Some(id) = connection {
                io.close(id);
                self.parties[id.index()] = crate::worker::Party::Nobody;
            }
            self.lane_failed(lane);
            if !passing {
                let l = &mut self.lanes[lane as usize];
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
            return;
        }
        if self.lanes[lane as usize].greeting.is_empty() {
            self.greeted(io, lane);
        }
    }

    /// The answer to the oldest command of a lane.
    #[inline]
    fn reply(&mut self, io: &mut Io, lane: u32, first: u8, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
        if l.sent == 0 {
            return; // nobody asked for it
        }
        let Some(flight) = l.flights.pop_front() else { return };
        l.sent -= 1;
        l.sent_bytes -= flight.len as usize;
        l.forwarded = 0;
        let fresh = !std::mem::replace(&mut l.used, true);
        if first == b'-' && flight.kind != Kind::Swallow && self.redirected(io, lane, &flight, bytes, fresh) {
            return;
        }
        let l = &mut self.lanes[lane as usize];
        l.journal.pop(flight.len as usize);
        let (node, l_owner) = (l.node, l.owner);
        if flight.kind != Kind::Swallow {
            self.stats.took(node, flight.command, self.now.saturating_sub(flight.at) / 1000);
            if first == b'-' {
                self.stats.errors_passed += 1;
            }
        }
        match flight.kind {
            Kind::Reply => {
                if self.some_wait {
                    self.overtakes(&flight);
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Kind::Swallow => {
                // MULTI is refused to this user: what follows on this lane would run at once.
                let multi = l_owner.is_some() && flight.seq == MULTI_SEQ && first == b'-';
                if let (true, Some(owner)) = (multi, l_owner) {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    if let Some(id) = self.lanes[lane as usize].connection.take() {
                        io.close(id);
                        self.parties[id.index()] = crate::worker::Party::Nobody;
                    }
                    self.break_lane(io, lane, 0, &text);
                    return self.lost_own_lane(io, lane, owner);
                }
            }
            Kind::Gather => {
                self.gathered(io, flight.seq, flight.part, bytes);
                if self.lanes[lane as usize].pooled && self.lanes[lane as usize].owner.is_some() {
                    self.return_lane(io, lane);
                }
            }
            Kind::Setup => self.set_up(io, &flight, bytes),
            Kind::Block => {
                self.answer(io, flight.whom, flight.seq, bytes, true);
                self.unpin(io, flight.whom, lane);
            }
            Kind::Exec => self.executed(io, lane, &flight, bytes),
            Kind::Auth => self.authenticated(io, lane, &flight, bytes),
        }
        let l = &mut self.lanes[lane as usize];
        if l.flights.is_empty() {
            l.idle_since = self.now;
        }
    }

    /// Errors that are for the gateway and not for the client. True when the command goes on elsewhere; its bytes are then
    /// taken out of the journal.
    fn redirected(&mut self, io: &mut Io, lane: u32, flight: &Flight, bytes: &[u8], fresh: bool) -> bool {
        let word = bytes[1..].split(|&b| b == b' ' || b == b'\r').next().unwrap_or(b"");
        let l = &self.lanes[lane as usize];
        let (node, pinned) = (l.node, l.pooled && l.owner.is_some());
        let late = self.now > flight.at + self.config.hold_ms * MS;
        let mut moved_to = None;
        let again = match word {
            b"MOVED" | b"ASK" => {
                self.shared.doubt();
                let text = String::from_utf8_lossy(bytes);
                let mut words = text.trim_end().split(' ').skip(1);
                let slot = words.next().and_then(|s| s.parse::<u16>().ok());
                let address = words.next().map(str::to_string);
                let (Some(slot), Some(address)) = (slot.filter(|s| *s < unslow_topology::SLOTS), address) else {
                    return false;
                };
                // An empty host means the one that says so.
                let address = match address.strip_prefix(':') {
                    Some(port) => {
                        let own = &self.map.servers[usize::from(node)].address;
                        format!("{}:{port}", own.rsplit_once(':').map_or("", |(h, _)| h))
                    }
                    None => address,
                };
                let to = self.node_at(&address);
                moved_to = Some(slot);
                if word == b"MOVED" {
                    self.stats.moved += 1;
                    let owner = self.map.slots[usize::from(slot)];
                    let replica = flight.read && owner != node && owner != map::NOBODY;
                    if owner == node || owner == map::NOBODY {
                        let map = Arc::make_mut(&mut self.map);
                        map.slots[usize::from(slot)] = to;
                        map.readers.resize(map.servers.len(), Vec::new());
                        map.version += 1;
                    } else if replica {
                        // It may be behind, or the slot has left its shard: the master knows.
                        self.banned[usize::from(node)] = self.now + 100 * MS;
                    }
                } else {
                    self.stats.asked += 1;
                }
                if flight.tries >= REDIRECTS_MAX && late || flight.len == 0 || pinned {
                    if flight.len == 0 && !pinned && matches!(flight.kind, Kind::Reply) {
                        let text =
                            b"-TRYAGAIN unslow: the slot moved while a long value was on its way; send it again\r\n";
                        self.answer(io, flight.whom, flight.seq, text, true);
                        return true;
                    }
                    return pinned && self.pinned_moved(io, lane, flight, to, fresh, word == b"ASK");
                }
                Some((if flight.tries > 3 { 5 * MS } else { 0 }, (word == b"ASK").then_some(to)))
            }
            b"TRYAGAIN" if !late => Some((2 * MS, None)),
            b"CLUSTERDOWN" if !late => {
                self.shared.doubt();
                Some((20 * MS, None))
            }
            // It was asked to write and follows somebody by now.
            b"READONLY" if !late && !self.cluster && flight.slot != NO_SLOT => {
                self.shared.doubt();
                Some((5 * MS, None))
            }
            b"LOADING" | b"MASTERDOWN" if !late => {
                let replica = self.map.servers[usize::from(node)].role == Role::Replica;
                self.banned[usize::from(node)] = self.now + 1000 * MS;
                Some((if replica { 0 } else { 20 * MS }, None))
            }
            b"UNBLOCKED" if flight.kind == Kind::Block && bytes.windows(22).any(|w| w == b"instance state changed") => {
                self.shared.doubt();
                return self.blocked_elsewhere(io, lane, flight);
            }
            _ => None,
        };
        let Some((pause, asking)) = again else { return false };
        // Behind one that waits, others of the same client may run: nothing is sent again that would overtake them. (MOVED is
        // different: whoever says it says it to all that follow.)
        let seq =
            if flight.kind == Kind::Gather { self.gathers.get(&flight.seq).map(|g| g.seq) } else { Some(flight.seq) };
        let followed = match (seq, self.client(flight.whom)) {
            (Some(seq), Some(client)) => seq.wrapping_sub(client.base) as usize + 1 < client.pending.len(),
            _ => true,
        };
        let pause = match moved_to {
            Some(_) if followed => 0,
            None if followed && flight.kind != Kind::Reply => return false,
            _ => pause,
        };
        if flight.len == 0 || pinned || flight.kind == Kind::Auth || flight.kind == Kind::Exec {
            return false;
        }
        let text = bytes.to_vec();
        let l = &mut self.lanes[lane as usize];
        let bytes = l.journal.front(flight.len as usize).to_vec();
        l.journal.pop(flight.len as usize);
        let tries = flight.tries.saturating_add(1);
        // A command whose key we did not see: the server did.
        let slot = if flight.slot == NO_SLOT && flight.kind != Kind::Gather {
            moved_to.unwrap_or(NO_SLOT)
        } else {
            flight.slot
        };
        let flight = Flight { tries, slot, ..*flight };
        if let Some(client) = self.client(flight.whom) {
            client.barrier = true;
        }
        let again = Again { flight, bytes, asking };
        let whom = flight.whom;
        let waits = moved_to.is_none() && followed || self.client(whom).is_some_and(|c| !c.waiting.is_empty());
        if waits && flight.kind == Kind::Reply {
            if let Some(client) = self.client(whom) {
                client.waiting.push((again, pause.max(MS), text));
            }
            self.some_wait = true;
            self.settle_waiting(whom);
        } else if pause == 0 {
            self.resend(io, again);
        } else {
            self.later(again, pause);
        }
        true
    }

    /// The number of the node at an address, which may be new to us; numbers are given out in one place for all threads.
    pub fn node_at(&mut self, address: &str) -> u16 {
        let known = |s: &map::Server| s.address == address || s.alias.as_deref() == Some(address);
        if let Some(at) = self.map.servers.iter().position(known) {
            return at as u16;
        }
        let shared = self.shared.number_of(address);
        let own: &mut Map = Arc::make_mut(&mut self.map);
        for number in own.servers.len()..=usize::from(shared.1) {
            own.servers.push(shared.0.servers[number].clone());
            own.readers.push(Vec::new());
            own.heir.push(number as u16);
        }
        self.banned.resize(own.servers.len(), 0);
        shared.1
    }

    pub fn later(&mut self, again: Again, pause: u64) {
        self.stats.again += 1;
        self.again_number += 1;
        self.again.insert((self.now + pause, self.again_number), again);
    }

    /// A command once more, by what is known now.
    pub fn resend(&mut self, io: &mut Io, again: Again) {
        let Again { flight, bytes, asking } = again;
        let Some(client) = self.client(flight.whom) else {
            // Never written, or only a question: nobody waits for it any more.
            if flight.kind == Kind::Gather {
                self.gathers.remove(&flight.seq);
            }
            return;
        };
        client.barrier = true;
        let set = client.set;
        if set == NONE {
            return;
        }
        let bound = flight.slot == NO_SLOT && flight.node != map::NOBODY;
        let node = match asking {
            Some(node) => node,
            None if bound => self.map.heir.get(usize::from(flight.node)).copied().unwrap_or(flight.node),
            None => self.node_for(flight.slot, flight.read, flight.whom),
        };
        if bound && node != flight.node && self.is_scan(flight.command) {
            // Its cursor means nothing to another server.
            let text =
                b"-ERR unslow: the node that was being scanned was replaced; the same cursor begins its part anew\r\n";
            return self.fail_flight(io, &flight, text);
        }
        if node == map::NOBODY {
            if self.now > flight.at + self.config.hold_ms * MS {
                let answer = self.nobody(flight.slot);
                self.fail_flight(io, &flight, answer.as_bytes());
            } else {
                self.later(Again { flight, bytes, asking }, 10 * MS);
            }
            return;
        }
        let lane = match flight.kind {
            Kind::Block if self.client(flight.whom).is_some_and(|c| c.closing || c.half_closed) => {
                // What it would get nobody would read.
                return self.drop_client(io, flight.whom);
            }
            Kind::Block => self.dedicate(flight.whom, node),
            _ => self.lane_of(set, node),
        };
        if asking.is_some() {
            let mut ask = Vec::new();
            write_command(&mut ask, &["ASKING"]);
            let swallow = Flight { len: ask.len() as u32, kind: Kind::Swallow, ..flight };
            self.push(io, lane, swallow, &ask);
        }
        self.push(io, lane, flight, &bytes);
    }

    /// The client hears that it did not work.
    pub fn fail_flight(&mut self, io: &mut Io, flight: &Flight, bytes: &[u8]) {
        match flight.kind {
            Kind::Swallow => {}
            Kind::Gather => self.gathered(io, flight.seq, flight.part, bytes),
            Kind::Exec => {
                if let Some(client) = self.client(flight.whom) {
                    client.multi = Multi::No;
                    (client.watching, client.watch_lost, client.blind) = (false, false, false);
                    client.multi_db = None;
                    client.queued.clear();
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Kind::Auth => {
                if let Some(client) = self.client(flight.whom) {
                    (client.claim, client.selecting) = (None, None);
                }
                self.answer(io, flight.whom, flight.seq, bytes, true);
            }
            Kind::Setup => self.set_up(io, flight, bytes),
            Kind::Reply | Kind::Block => self.answer(io, flight.whom, flight.seq, bytes, true),
        }
    }

    fn is_scan(&self, command: u16) -> bool {
        let known = usize::from(command) < self.table.count();
        known && self.table.get(command).special == Some(unslow_topology::commands::Special::Scan)
    }

    // What breaks.

    /// The connection is gone.
    pub fn lane_closed(&mut self, io: &mut Io, lane: u32, why: &Closed) {
        let never_sent = io.never_sent();
        if let Some(id) = self.lanes[lane as usize].connection.take() {
            self.parties[id.index()] = crate::worker::Party::Nobody;
        }
        self.clogs.retain(|c| c.lane != lane);
        let l = &self.lanes[lane as usize];
        let was = l.state;
        if matches!(was, State::Opening | State::Greeting) {
            self.lane_failed(lane);
            if was == State::Greeting || self.lanes[lane as usize].owner.is_some() {
                self.shared.doubt();
            }
            self.rehome(io, lane);
            return;
        }
        self.shared.doubt();
        let text = format!(
            "-ERR unslow: {}: {why} after this command was sent; it may or may not have run\r\n",
            self.map.servers[usize::from(l.node)].address
        );
        self.break_lane(io, lane, never_sent, &text);
        self.lanes[lane as usize].state = State::Closed(self.now);
        // Who has it alone cannot go on with it.
        if let Some(owner) = self.lanes[lane as usize].owner {
            self.lost_own_lane(io, lane, owner);
        } else if self.lanes[lane as usize].pooled {
            self.close_lane(io, lane);
        }
    }

    /// Sorts the commands of a lane that is no more into those to send again and those that failed. `never_sent` are the
    /// last bytes that its peer cannot have seen.
    fn break_lane(&mut self, io: &mut Io, lane: u32, never_sent: usize, text: &str) {
        let l = &mut self.lanes[lane as usize];
        let seen = l.sent_bytes.saturating_sub(never_sent);
        let journal = std::mem::take(&mut l.journal);
        let flights: Vec<Flight> = l.flights.drain(..).collect();
        let pinned = l.pooled && l.owner.is_some();
        let midway = l.forwarded > 0 || !l.part.is_empty();
        (l.sent, l.sent_bytes, l.first, l.forwarded) = (0, 0, 0, 0);
        l.part.clear();
        l.splitter = splitter();
        l.read_only = Some(false);
        let mut at = 0;
        for (i, flight) in flights.into_iter().enumerate() {
            let bytes = &journal.all()[at..at + flight.len as usize];
            at += flight.len as usize;
            // A command that was cut is no command: servers run whole ones only.
            let ran_perhaps = at <= seen && flight.kind != Kind::Swallow;
            let half_told = i == 0 && midway && matches!(flight.kind, Kind::Reply | Kind::Block);
            if half_told && self.told_in_part(flight.whom, flight.seq) {
                // Half of the answer is with the client: there is no way to end it well.
                self.drop_client(io, flight.whom);
                continue;
            }
            if half_told && let Some(client) = self.client(flight.whom) {
                let at = flight.seq.wrapping_sub(client.base) as usize;
                if let Some(pending) = client.pending.get_mut(at) {
                    client.parked -= pending.bytes.len();
                    pending.bytes.clear();
                }
            }
            if flight.kind == Kind::Swallow {
            } else if flight.len > 0 && !pinned && flight.kind != Kind::Auth && (flight.repeatable || !ran_perhaps) {
                self.stats.again += 1;
                let tries = flight.tries.saturating_add(1);
                if self.now > flight.at + self.config.hold_ms * MS {
                    self.stats.error("held_too_long");
                    self.fail_flight(io, &flight, text.as_bytes());
                } else {
                    let again = Again { flight: Flight { tries, ..flight }, bytes: bytes.to_vec(), asking: None };
                    // Not at once: what broke the connection may need a moment to show.
                    self.later(again, MS);
                    if let Some(client) = self.client(flight.whom) {
                        client.barrier = true;
                    }
                }
            } else {
                self.stats.error("lost_in_flight");
                self.fail_flight(io, &flight, text.as_bytes());
            }
        }
    }

    fn told_in_part(&mut self, whom: Whom, seq: u32) -> bool {
        self.client(whom).is_some_and(|c| c.midway && c.base == seq)
    }

    /// The map is another one: what could not be written goes where it belongs now, and what was written to a node that
    /// lost its place and does not answer is given up.
    pub fn remapped(&mut self, io: &mut Io, old: &Map) {
        let mut moving: Vec<Again> = Vec::new();
        for lane in 0..self.lanes.len() as u32 {
            let l = &self.lanes[lane as usize];
            if l.free {
                continue;
            }
            let node = usize::from(l.node);
            let server = &self.map.servers[node];
            let ill = server.health != Health::Up;
            let replaced =
                ill && !server.owns && old.servers.get(node).is_some_and(|s| s.owns || s.health == Health::Up);
            let now_ill = ill && old.servers.get(node).is_some_and(|s| s.health == Health::Up);
            let raw = l.raw;
            self.lanes[lane as usize].held = ill && (server.health == Health::Suspected || server.owns);
            if replaced && self.lanes[lane as usize].state == State::Ready {
                if let Some(id) = self.lanes[lane as usize].connection.take() {
                    io.close(id);
                    self.parties[id.index()] = crate::worker::Party::Nobody;
                }
                let address = self.map.servers[node].address.clone();
                let text = format!(
                    "-ERR unslow: {address} stopped answering after this command was sent, and was replaced; it may or may not have run\r\n"
                );
                self.break_lane(io, lane, 0, &text);
                self.lanes[lane as usize].state = State::Closed(self.now);
                if let Some(owner) = self.lanes[lane as usize].owner {
                    self.lost_own_lane(io, lane, owner);
                } else if self.lanes[lane as usize].pooled {
                    self.close_lane(io, lane);
                }
                continue;
            }
            let l = &mut self.lanes[lane as usize];
            if raw && l.state != State::Ready && (ill || !self.map.servers[node].owns) {
                self.rehome(io, lane);
                continue;
            }
            if !raw
                && l.pooled
                && l.owner.is_some()
                && l.sent == 0
                && !l.used
                && !l.flights.is_empty()
                && l.state != State::Ready
            {
                // A dedicated lane on which nothing was said yet can be one to somebody else.
                let first = l.flights.iter().find(|f| f.slot != NO_SLOT).map(|f| (f.slot, f.whom));
                let to = first.map_or(map::NOBODY, |(slot, whom)| self.node_for(slot, false, whom));
                if to != map::NOBODY && usize::from(to) != node {
                    if let Some(id) = self.lanes[lane as usize].connection.take() {
                        io.close(id);
                        self.parties[id.index()] = crate::worker::Party::Nobody;
                    }
                    let held = self.map.servers[usize::from(to)].health != Health::Up;
                    let l = &mut self.lanes[lane as usize];
                    (l.node, l.state, l.held, l.failures, l.down_since) = (to, State::Closed(self.now), held, 0, None);
                    l.greeting.clear();
                    l.part.clear();
                    (l.splitter, l.first, l.forwarded, l.server_number) = (splitter(), 0, 0, None);
                    self.dial_if_needed(io, lane);
                }
                continue;
            }
            let l = &mut self.lanes[lane as usize];
            let dedicated = l.pooled && l.owner.is_some();
            if !raw && !dedicated && l.sent < l.flights.len() {
                let flights: Vec<Flight> = l.flights.drain(l.sent..).collect();
                let bytes = l.journal.all()[l.sent_bytes..].to_vec();
                l.journal.truncate(l.sent_bytes);
                l.read_only = None;
                let mut at = 0;
                for flight in flights {
                    let end = at + flight.len as usize;
                    if flight.kind != Kind::Swallow {
                        moving.push(Again { flight, bytes: bytes[at..end].to_vec(), asking: None });
                    }
                    at = end;
                }
            }
            // Reads under way to a node that hangs now are asked of a replica as well; the late answer goes nowhere.
            if now_ill {
                let mut elsewhere = Vec::new();
                let l = &mut self.lanes[lane as usize];
                let mut at = 0;
                for flight in l.flights.iter_mut() {
                    let end = at + flight.len as usize;
                    let owner = self.map.slots.get(usize::from(flight.slot));
                    let readers = owner.and_then(|m| self.map.readers.get(usize::from(*m)));
                    let other = readers.is_some_and(|r| r.iter().any(|n| usize::from(*n) != node));
                    if flight.read
                        && flight.len > 0
                        && other
                        && matches!(flight.kind, Kind::Reply | Kind::Gather)
                        && !l.pooled
                        && l.forwarded == 0
                    {
                        let bytes = l.journal.all()[at..end].to_vec();
                        elsewhere.push(Again { flight: *flight, bytes, asking: None });
                        flight.kind = Kind::Swallow;
                    }
                    at = end;
                }
                moving.extend(elsewhere);
            }
            self.flow(io, lane);
        }
        moving.sort_by_key(|a| a.flight.at);
        for again in moving {
            self.resend(io, again);
        }
    }

    /// Lanes that wait to be dialled, commands that waited too long, lanes nobody needs.
    pub fn look_after_lanes(&mut self, io: &mut Io) {
        const IDLE: u64 = 60_000 * MS;
        let hold = self.config.hold_ms * MS;
        let mut waiting = 0;
        for lane in 0..self.lanes.len() as u32 {
            let l = &self.lanes[lane as usize];
            if l.free {
                continue;
            }
            if l.state == State::Greeting && self.now > l.dialled_at + 2 * self.config.connect_ms * MS {
                // It takes connections and says nothing.
                if let Some(id) = self.lanes[lane as usize].connection.take() {
                    io.close(id);
                    self.parties[id.index()] = crate::worker::Party::Nobody;
                }
                self.lane_failed(lane);
                self.rehome(io, lane);
            }
            let l = &self.lanes[lane as usize];
            let unwritten = l.flights.len() > l.sent;
            let subscribing = l.raw && l.journal.len() > 0 && l.state != State::Ready;
            if unwritten || subscribing {
                waiting += 1;
                let oldest = l.flights.get(l.sent).map_or(self.now, |f| f.at);
                if self.now > oldest + hold {
                    self.give_up(io, lane);
                }
                self.dial_if_needed(io, lane);
            } else if l.pooled && l.owner.is_none() && self.now > l.idle_since + IDLE {
                self.close_lane(io, lane);
            }
        }
        self.lanes_waiting = waiting + self.homeless.len();
    }

    /// What has waited too long on a lane gets its error.
    fn give_up(&mut self, io: &mut Io, lane: u32) {
        let hold = self.config.hold_ms * MS;
        let l = &self.lanes[lane as usize];
        if let (true, Some(owner)) = (l.pooled, l.owner) {
            // What was said before on a dedicated lane belongs to what is given up.
            let address = &self.map.servers[usize::from(l.node)].address;
            let how = if l.sent == 0 { "this one was not sent" } else { "it may or may not have run" };
            let text = format!(
                "-ERR unslow: {address} took no commands for {} ms and nobody took its place; {how}\r\n",
                self.config.hold_ms
            );
            if let Some(id) = self.lanes[lane as usize].connection.take() {
                io.close(id);
                self.parties[id.index()] = crate::worker::Party::Nobody;
            }
            self.break_lane(io, lane, 0, &text);
            self.lanes[lane as usize].state = State::Closed(self.now);
            return self.lost_own_lane(io, lane, owner);
        }
        let l = &mut self.lanes[lane as usize];
        let flights: Vec<Flight> = l.flights.drain(l.sent..).collect();
        let bytes = l.journal.all()[l.sent_bytes..].to_vec();
        l.journal.truncate(l.sent_bytes);
        l.read_only = None;
        let address = self.map.servers[usize::from(l.node)].address.clone();
        let text = format!(
            "-ERR unslow: {address} took no commands for {} ms and nobody took its place; this one was not sent\r\n",
            self.config.hold_ms
        );
        let mut at = 0;
        for flight in flights {
            let end = at + flight.len as usize;
            if self.now > flight.at + hold {
                self.stats.error("held_too_long");
                self.fail_flight(io, &flight, text.as_bytes());
            } else {
                let l = &mut self.lanes[lane as usize];
                l.flights.push_back(flight);
                l.journal.push(&bytes[at..end]);
            }
            at = end;
        }
    }

    // Clients that do not read.

    /// A long reply comes faster than its client takes it: the server is read more slowly for a while.
    fn clogged(&mut self, io: &mut Io, lane: u32, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        let (id, slow) = (client.id, client.slow);
        if io.unsent(id) <= CLOG {
            return;
        }
        io.flush(id);
        let unsent = io.unsent(id);
        if unsent <= CLOG {
            if let Some(client) = self.client(whom) {
                client.slow = false;
            }
            return;
        }
        if unsent > self.config.client_output_bytes {
            return self.close_slow(io, whom);
        }
        if slow && self.lanes[lane as usize].owner.is_none() {
            return;
        }
        if self.clogs.iter().all(|c| c.lane != lane)
            && let Some(connection) = self.lanes[lane as usize].connection
        {
            io.pause(connection, true);
            self.clogs.push(Clog { lane, whom, unsent, since: self.now });
        }
    }

    pub fn unclog(&mut self, io: &mut Io) {
        for mut clog in std::mem::take(&mut self.clogs) {
            let id = self.client(clog.whom).map(|c| c.id);
            let unsent = id.map_or(0, |id| io.unsent(id));
            let own = self.lanes[clog.lane as usize].owner.is_some();
            if unsent < clog.unsent {
                (clog.unsent, clog.since) = (unsent, self.now);
            }
            // On a lane of its own a client may take its time; on a shared one others wait.
            let stuck = !own && self.now > clog.since + CLOG_PATIENCE;
            if stuck && let Some(client) = self.client(clog.whom) {
                client.slow = true;
            }
            if unsent > CLOG / 2 && !stuck {
                self.clogs.push(clog);
            } else if let Some(connection) = self.lanes[clog.lane as usize].connection {
                io.pause(connection, false);
            }
        }
    }
}

/// `id` in the reply of HELLO.
fn hello_number(bytes: &[u8]) -> Option<u64> {
    let at = bytes.windows(7).position(|w| w == b"\r\nid\r\n:")? + 7;
    let mut digits = bytes[at..].iter().take_while(|b| b.is_ascii_digit());
    digits.try_fold(0u64, |n, d| n.checked_mul(10)?.checked_add(u64::from(d - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::map::tests::node;
    use crate::worker::tests::{A, B, Rig};

    const ALL: &[(u16, u16)] = &[(0, 16383)];

    #[test]
    fn the_client_id_is_read_from_the_hello_reply() {
        for (reply, expected) in [
            (&b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$2\r\nid\r\n:42\r\n"[..], Some(42)),
            (&b"*2\r\n$2\r\nid\r\n:18446744073709551615\r\n"[..], Some(u64::MAX)),
            (&b"*2\r\n$2\r\nid\r\n:18446744073709551616\r\n"[..], None),
            (&b"*2\r\n$4\r\nkind\r\n:42\r\n"[..], None),
        ] {
            assert_eq!(hello_number(reply), expected, "{}", reply.escape_ascii());
        }
    }

    #[test]
    fn reconnect_backoff_doubles_with_jitter_up_to_one_second() {
        let mut rig = Rig::halves(Config::default());
        let set = rig.worker.set_of(0, 0, 2);
        let lane = rig.worker.lane_of(set, 0);
        for (failures, pause) in (0..12).zip([10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000]) {
            rig.worker.lane_failed(lane);
            let State::Closed(at) = rig.worker.lanes[lane as usize].state else { panic!("{failures}") };
            let waits = at - rig.worker.now;
            assert!((pause * MS / 2..pause * MS).contains(&waits), "after {failures} failures: {waits} ns");
        }
    }

    #[test]
    fn moved_is_followed_and_remembered() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let (get, slot) = (format!("GET {key}"), unslow_topology::slot_of(key.as_bytes()));
        let client = rig.client(None);
        // An empty host means the node that replied.
        for (to, moved) in [(1, format!("-MOVED {slot} {B}\r\n")), (0, format!("-MOVED {slot} :1\r\n"))] {
            rig.says(client, &(get.clone() + "\r\n"));
            assert_eq!(rig.asked(1 - to), std::slice::from_ref(&get));
            rig.answers(1 - to, &moved);
            assert_eq!((rig.told(client).as_str(), rig.asked(to)), ("", vec![get.clone()]));
            rig.answers(to, "$1\r\nv\r\n");
            assert_eq!(rig.told(client), "$1\r\nv\r\n");
        }
        assert_eq!(rig.worker.stats.moved, 2);
        // A redirect for a slot that does not exist is passed to the client.
        rig.says(client, &(get.clone() + "\r\n"));
        rig.asked(0);
        rig.answers(0, &format!("-MOVED 16384 {B}\r\n"));
        assert_eq!(rig.told(client), format!("-MOVED 16384 {B}\r\n"));
    }

    #[test]
    fn a_node_known_only_from_a_redirect_gets_the_command() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let client = rig.client(None);
        rig.says(client, &format!("GET {key}\r\n"));
        rig.asked(0);
        rig.answers(0, &format!("-MOVED {} 127.0.0.1:9\r\n", unslow_topology::slot_of(key.as_bytes())));
        assert_eq!(rig.asked(2), [format!("GET {key}")]);
        assert_eq!(rig.worker.map.servers[2].address, "127.0.0.1:9");
    }

    #[test]
    fn ask_is_followed_with_asking_for_one_command_only() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let get = format!("GET {key}");
        let client = rig.client(None);
        rig.says(client, &(get.clone() + "\r\n"));
        rig.asked(0);
        rig.answers(0, &format!("-ASK {} {B}\r\n", unslow_topology::slot_of(key.as_bytes())));
        assert_eq!(rig.asked(1), ["ASKING".to_string(), get.clone()]);
        rig.answers(1, "+OK\r\n$1\r\nv\r\n");
        assert_eq!(rig.told(client), "$1\r\nv\r\n");
        rig.says(client, &(get.clone() + "\r\n"));
        assert_eq!((rig.asked(0), rig.asked(1)), (vec![get], vec![]));
    }

    #[test]
    fn a_broken_connection_resends_reads_and_only_writes_that_were_never_sent() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let client = rig.client(None);
        rig.says(client, &format!("SET {key} v\r\nGET {key}\r\n"));
        assert_eq!(rig.asked(0).len(), 2);
        rig.breaks(0);
        rig.send_again();
        assert_eq!(rig.asked(0), [format!("GET {key}")]);
        rig.answers(0, "$1\r\nv\r\n");
        let told = rig.told(client);
        assert!(told.starts_with(&format!("-ERR unslow: {A}: ")), "{told}");
        assert!(told.ends_with("it may or may not have run\r\n$1\r\nv\r\n"), "{told}");

        rig.says(client, &format!("SET {key} w\r\n"));
        rig.breaks(0);
        rig.send_again();
        assert_eq!(rig.asked(0), [format!("SET {key} w")]);
        assert_eq!(rig.told(client), "");
    }

    #[test]
    fn a_client_with_half_a_reply_is_closed_when_the_server_connection_breaks() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let client = rig.client(None);
        rig.says(client, &format!("GET {key}\r\n"));
        rig.asked(0);
        rig.answers(0, "$10\r\n01234");
        assert_eq!(rig.told(client), "$10\r\n01234");
        rig.breaks(0);
        assert_eq!((rig.worker.everyone().count(), rig.worker.again.len()), (0, 0));
    }

    #[test]
    fn a_failover_resends_held_commands_and_reads_and_fails_sent_writes() {
        let mut rig = Rig::new(Config::default(), vec![node(A, None, ALL), node(B, Some(A), &[])]);
        let (first, second) = (rig.client(None), rig.client(None));
        rig.says(first, "SET a v\r\nGET a\r\n");
        assert_eq!(rig.asked(0).len(), 2);
        let ill = unslow_topology::Node { health: Health::Suspected, ..node(A, None, ALL) };
        rig.remap(vec![ill, node(B, Some(A), &[])]);
        rig.says(second, "INCR n\r\n");
        assert!(rig.asked(0).is_empty(), "commands for a suspected node are held");

        let gone = unslow_topology::Node { health: Health::Failed, ..node(A, Some(B), &[]) };
        rig.remap(vec![gone, node(B, None, ALL)]);
        rig.send_again();
        assert_eq!(rig.asked(1), ["GET a", "INCR n"]);
        let told = rig.told(first);
        assert!(
            told.starts_with("-ERR unslow: ") && told.contains("was replaced; it may or may not have run"),
            "{told}"
        );
        rig.answers(1, "$1\r\nv\r\n:1\r\n");
        assert_eq!((rig.told(first).as_str(), rig.told(second).as_str()), ("$1\r\nv\r\n", ":1\r\n"));
    }

    #[test]
    fn held_commands_are_sent_in_order_when_a_suspected_node_recovers() {
        let mut rig = Rig::new(Config::default(), vec![node(A, None, ALL)]);
        let client = rig.client(None);
        rig.says(client, "GET a\r\n");
        rig.asked(0);
        rig.answers(0, "$-1\r\n");
        rig.remap(vec![unslow_topology::Node { health: Health::Suspected, ..node(A, None, ALL) }]);
        rig.says(client, "SET a v\r\nGET a\r\n");
        assert!(rig.asked(0).is_empty());
        rig.remap(vec![node(A, None, ALL)]);
        assert_eq!(rig.asked(0), ["SET a v", "GET a"]);
    }

    #[test]
    fn a_read_falls_back_to_the_master_while_the_replica_is_loading() {
        let config = Config { read: Read::Replica, ..Config::default() };
        let mut rig = Rig::new(config, vec![node(A, None, ALL), node(B, Some(A), &[])]);
        let client = rig.client(None);
        rig.says(client, "GET a\r\n");
        assert_eq!(rig.asked(1), ["READONLY", "GET a"]);
        rig.answers(1, "+OK\r\n-LOADING the data set\r\n");
        assert_eq!(rig.asked(0), ["GET a"]);
        rig.answers(0, "$1\r\nv\r\n");
        assert_eq!(rig.told(client), "$1\r\nv\r\n");
    }
}
