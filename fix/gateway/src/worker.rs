//! One thread of the gateway: its clients, its connections to servers, and the way of a command between them.
//!
//! ```text
//!   client bytes -> request -> plan (command table) -> slot -> node -> lane (journal, flights) -> one write a turn
//!   server bytes -> splitter -> flight -> answer in the client's order ----------------------> one write a turn
//! ```
//!
//! Nothing is allocated on this way for a command with one key. What is special has its own file: `special.rs` for
//! commands with a state, `gather.rs` for those with several answers, `lanes.rs` for everything that can go wrong behind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use unslow_reactor::{Closed, Handler, Id, Io, Visitor, now_ns};
use unslow_resp::{Split, write_command, write_header};
use unslow_topology::slot_of;

use crate::config::{ClientAuth, Config};
use crate::gather::Gather;
use crate::map::{Map, NOBODY};
use crate::request::{self, Range, Request};
use crate::session::*;
use crate::shared::{Message, Notice, Shared};
use crate::stats::Stats;
use unslow_topology::commands::{Plan, Special, Table};

pub const MS: u64 = 1_000_000;
/// A client with more unsent output is not read until it has taken some.
const OUTPUT_HIGH: usize = 1 << 20;
/// A client that is to go has said nothing for this long.
const DRAIN_QUIET: u64 = 500 * MS;
/// Looked over at least this often, while there is something to look over.
const TICK: u64 = 5 * MS;
/// And this often while there is nothing.
const IDLE_TICK: u64 = 50 * MS;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Party {
    Nobody,
    Client,
    Lane(u32),
}

/// A command to be sent (again) when its time has come.
pub struct Again {
    pub flight: Flight,
    pub bytes: Vec<u8>,
    /// Behind ASKING, to this node.
    pub asking: Option<u16>,
}

/// A lane whose client does not take what it brings.
pub struct Clog {
    pub lane: u32,
    pub whom: Whom,
    pub unsent: usize,
    pub since: u64,
}

/// See the module.
pub struct Worker {
    pub number: usize,
    pub shared: Arc<Shared>,
    pub config: Arc<Config>,
    pub table: Arc<Table>,
    pub map: Arc<Map>,
    pub cluster: bool,
    /// What a connection of the reactor is, by its index.
    pub parties: Vec<Party>,
    /// By the same index.
    pub clients: Vec<Option<Box<Client>>>,
    pub lanes: Vec<Lane>,
    pub lanes_free: Vec<u32>,
    /// How many of them have commands that could not be written yet.
    pub lanes_waiting: usize,
    pub sets: Vec<Set>,
    pub identities: Vec<Identity>,
    pub pool: HashMap<(u32, u32, u8, u16), Vec<u32>>,
    pub gathers: HashMap<u32, Gather>,
    pub gather_number: u32,
    pub again: BTreeMap<(u64, u64), Again>,
    pub again_number: u64,
    /// To be read again.
    pub resume: Vec<Whom>,
    /// Stalled for want of room.
    pub crowded: Vec<Whom>,
    pub clogs: Vec<Clog>,
    /// Sharded subscriptions that wait for their slot to have a node.
    pub homeless: Vec<(Whom, Channel)>,
    /// Errors that are the answer after all.
    pub refused: Vec<(Flight, Vec<u8>)>,
    /// Some client has commands that wait for those behind them.
    pub some_wait: bool,
    /// Nodes that were loading: no reads until then.
    pub banned: Vec<u64>,
    pub args: Vec<Range>,
    pub stats: Stats,
    pub serial: u32,
    pub now: u64,
    pub sampled: u32,
    pub seen_version: u64,
    pub seen_settings: u64,
    pub tick_at: u64,
    pub published_at: u64,
    pub listeners: Vec<usize>,
    pub draining: Option<u64>,
    /// An operator's UNSLOW PAUSE.
    pub halted: bool,
    pub clients_now: usize,
}

impl Worker {
    pub fn new(number: usize, shared: Arc<Shared>) -> Worker {
        let map = shared.map();
        let mut worker = Worker {
            number,
            config: shared.config(),
            table: shared.table(),
            cluster: map.is_cluster(),
            seen_version: map.version,
            map,
            parties: Vec::new(),
            clients: Vec::new(),
            lanes: Vec::new(),
            lanes_free: Vec::new(),
            lanes_waiting: 0,
            sets: Vec::new(),
            identities: vec![shared.own_identity()],
            pool: HashMap::new(),
            gathers: HashMap::new(),
            gather_number: 0,
            again: BTreeMap::new(),
            again_number: 0,
            resume: Vec::new(),
            crowded: Vec::new(),
            clogs: Vec::new(),
            homeless: Vec::new(),
            refused: Vec::new(),
            some_wait: false,
            banned: Vec::new(),
            args: Vec::with_capacity(64),
            stats: Stats::default(),
            serial: 0,
            now: now_ns(),
            sampled: 0,
            seen_settings: 0,
            tick_at: 0,
            published_at: 0,
            listeners: Vec::new(),
            draining: None,
            halted: false,
            clients_now: 0,
            shared,
        };
        worker.banned.resize(worker.map.servers.len(), 0);
        worker
    }

    pub fn client(&mut self, whom: Whom) -> Option<&mut Client> {
        self.clients.get_mut(whom.index as usize)?.as_deref_mut().filter(|c| c.serial == whom.serial)
    }

    pub fn everyone(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter_map(|c| c.as_deref())
    }

    fn party(&mut self, id: Id, party: Party) {
        if self.parties.len() <= id.index() {
            self.parties.resize(id.index() + 64, Party::Nobody);
        }
        self.parties[id.index()] = party;
    }

    pub fn lane_party(&mut self, id: Id, lane: u32) {
        self.party(id, Party::Lane(lane));
    }

    // Clients.

    fn client_data(&mut self, io: &mut Io, index: usize, bytes: &[u8]) -> usize {
        let mut used = 0;
        let Some(client) = self.clients[index].as_mut() else { return bytes.len() };
        client.seen = self.now;
        if client.closing {
            return bytes.len();
        }
        let whom = client.whom();
        let mut args = std::mem::take(&mut self.args);
        while used < bytes.len() {
            let Some(client) = self.clients[index].as_mut().filter(|c| c.serial == whom.serial && !c.closing) else {
                used = bytes.len();
                break;
            };
            if client.stream.is_some() {
                let taken = self.stream(io, whom, &bytes[used..]);
                used += taken;
                if taken == 0 {
                    break;
                }
                continue;
            }
            let waiting = client.pending.len();
            if client.barrier || client.version != self.map.version {
                if waiting > 0 {
                    self.stall(io, whom, Stall::Answers);
                    break;
                }
                client.barrier = false;
                client.version = self.map.version;
            }
            if client.bulky && waiting == 0 && client.set != NONE && self.sets[client.set as usize].owner.is_none() {
                self.own_set(whom);
                continue;
            }
            if waiting >= self.config.client_pending {
                self.stall(io, whom, Stall::Some);
                break;
            }
            if io.unsent(client.id) > OUTPUT_HIGH {
                self.stall(io, whom, Stall::Room);
                break;
            }
            let rest = &bytes[used..];
            match request::parse(rest, &mut args) {
                Request::Incomplete => break,
                Request::Nothing(n) => used += n,
                Request::Whole(n) => {
                    if !self.command(io, whom, &rest[..n], &args) {
                        break;
                    }
                    used += n;
                }
                Request::Inline(n) => {
                    let words: Vec<Vec<u8>> =
                        args.iter().map(|&(a, b)| request::unquote(&rest[a as usize..b as usize])).collect();
                    let mut whole = Vec::new();
                    write_command(&mut whole, &words);
                    request::parse(&whole, &mut args);
                    if !self.command(io, whom, &whole, &args) {
                        break;
                    }
                    used += n;
                }
                Request::Long => {
                    if !self.begin_stream(io, whom, rest, &args) {
                        break;
                    }
                }
                Request::Bad(why) => {
                    self.stats.error("protocol");
                    self.say(io, whom, format!("-ERR {why}\r\n").as_bytes());
                    self.close_when_answered(io, whom);
                    used = bytes.len();
                }
            }
        }
        self.args = args;
        self.stats.bytes_in += used as u64;
        if self.client(whom).is_some_and(|c| c.half_closed && c.stall == Stall::No && !c.closing) {
            self.close_when_answered(io, whom);
        }
        used
    }

    /// One whole command. False when it has to wait: it comes again.
    fn command(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range]) -> bool {
        let plan = self.table.plan(bytes, args);
        if self.halted && plan.special != Some(Special::Unslow) {
            self.stall(io, whom, Stall::Room);
            return false;
        }
        let Some(client) = self.clients[whom.index as usize].as_mut() else { return true };
        let common = plan.plain || plan.divide.is_some() && !self.cluster;
        if !common || !client.plain() {
            return self.special(io, whom, bytes, args, &plan);
        }
        let slot = match plan.key {
            Some(at) => {
                let key = &bytes[args[at].0 as usize..args[at].1 as usize];
                self.sampled = self.sampled.wrapping_sub(1);
                if self.sampled == 0 {
                    self.sampled = self.config.key_sample;
                    self.stats.top.count(key);
                }
                if self.cluster { slot_of(key) } else { 0 }
            }
            None => NO_SLOT,
        };
        self.send(io, whom, bytes, &plan, slot, Kind::Reply)
    }

    /// To the node of `slot`, on the client's own set of lanes. False when there is no room.
    pub fn send(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], plan: &Plan, slot: u16, kind: Kind) -> bool {
        let Some(client) = self.clients[whom.index as usize].as_mut() else { return true };
        let set = client.set;
        let node = self.node_for(slot, plan.read, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        let lane = self.lane_of(set, node);
        if self.lanes[lane as usize].journal.len() > self.config.hold_bytes {
            self.stall(io, whom, Stall::Room);
            return false;
        }
        let Some(client) = self.clients[whom.index as usize].as_mut() else { return true };
        client.commands += 1;
        client.last_node = node;
        let seq = client.begin();
        self.stats.commands += 1;
        let flight = Flight {
            whom,
            seq,
            len: bytes.len() as u32,
            at: self.now,
            command: plan.number,
            slot,
            node: NOBODY,
            part: 0,
            kind,
            tries: 0,
            repeatable: plan.repeatable,
            read: plan.read,
        };
        self.push(io, lane, flight, bytes);
        true
    }

    /// The node that answers for a slot, or any for [`NO_SLOT`].
    #[inline]
    pub fn node_for(&mut self, slot: u16, read: bool, whom: Whom) -> u16 {
        let owner = if slot == NO_SLOT { NOBODY } else { self.map.slots[usize::from(slot)] };
        // A slot between two owners: any node knows, or says how it is.
        let master = if owner == NOBODY {
            let masters = &self.map.masters;
            if masters.is_empty() {
                return NOBODY;
            }
            // Always the same one for a client, as long as it is well.
            let at = whom.serial as usize % masters.len();
            let well = |n: &u16| self.map.servers[usize::from(*n)].health == unslow_topology::Health::Up;
            let mut order = masters[at..].iter().chain(&masters[..at]);
            *order.find(|n| well(n)).unwrap_or(&masters[at])
        } else {
            owner
        };
        if !read || master == NOBODY {
            return master;
        }
        let readers = &self.map.readers[usize::from(master)];
        if readers.is_empty() {
            return master;
        }
        // A client stays with one replica, so that it does not read the past behind the present.
        let reader = readers[whom.serial as usize % readers.len()];
        if self.banned.get(usize::from(reader)).is_some_and(|until| *until > self.now) { master } else { reader }
    }

    /// What a command gets whose slot nobody owns.
    pub fn nobody(&mut self, slot: u16) -> String {
        self.shared.doubt();
        self.stats.error("no_owner");
        match slot {
            NO_SLOT => "-ERR unslow: no master is known; see UNSLOW SHOW TOPOLOGY\r\n".into(),
            _ => format!("-CLUSTERDOWN Hash slot not served: nobody owns slot {slot}\r\n"),
        }
    }

    // Answers.

    /// An answer of our own, in its turn.
    pub fn say(&mut self, io: &mut Io, whom: Whom, bytes: &[u8]) {
        if let Some(client) = self.client(whom) {
            client.commands += 1;
            let seq = client.begin();
            self.stats.commands += 1;
            self.answer(io, whom, seq, bytes, true);
        }
    }

    /// (Part of) the answer to the client's command `seq`.
    #[inline]
    pub fn answer(&mut self, io: &mut Io, whom: Whom, seq: u32, bytes: &[u8], last: bool) {
        let Some(client) = self.clients.get_mut(whom.index as usize).and_then(|c| c.as_deref_mut()) else { return };
        if client.serial != whom.serial {
            return;
        }
        let at = seq.wrapping_sub(client.base) as usize;
        let Some(pending) = client.pending.get_mut(at) else { return };
        if at > 0 {
            if !pending.mute {
                pending.bytes.extend_from_slice(bytes);
                client.parked += bytes.len();
            }
            pending.done = last;
            if last && !client.waiting.is_empty() {
                return self.settle_waiting(whom);
            }
            if client.parked > self.config.client_output_bytes {
                self.close_slow(io, whom);
            }
            return;
        }
        if !pending.mute {
            let out = io.output(client.id);
            out.extend_from_slice(bytes);
            self.stats.bytes_out += bytes.len() as u64;
            if out.len() > self.config.client_output_bytes {
                return self.close_slow(io, whom);
            }
        }
        if !last {
            client.midway = true;
            return;
        }
        client.midway = false;
        client.pending.pop_front();
        client.base = client.base.wrapping_add(1);
        if !client.pushes.is_empty() {
            let pushes = std::mem::take(&mut client.pushes);
            io.output(client.id).extend_from_slice(&pushes);
        }
        while let Some(next) = client.pending.front_mut() {
            if !next.bytes.is_empty() {
                io.output(client.id).extend_from_slice(&next.bytes);
                client.parked -= next.bytes.len();
                self.stats.bytes_out += next.bytes.len() as u64;
                client.midway = !next.done;
                next.bytes = Vec::new();
            }
            if !next.done {
                break;
            }
            client.midway = false;
            client.pending.pop_front();
            client.base = client.base.wrapping_add(1);
        }
        if client.pending.is_empty() {
            client.barrier = false;
            if client.pending.capacity() > 1024 {
                client.pending.shrink_to(16);
            }
            if client.closing {
                io.finish(client.id);
            }
        }
        if !client.waiting.is_empty() {
            self.settle_waiting(whom);
        }
        let Some(client) = self.clients[whom.index as usize].as_deref_mut() else { return };
        let half = self.config.client_pending / 2;
        let go_on = match client.stall {
            Stall::Answers => client.pending.is_empty(),
            Stall::Some => client.pending.len() <= half,
            Stall::No | Stall::Room => false,
        };
        if go_on {
            self.resume.push(whom);
        }
    }

    /// Commands of a client that a server would not take just now wait until those behind them have their answers too: if none
    /// of those on the same slot ran, all are sent again in their order, else the first answer counts.
    pub fn settle_waiting(&mut self, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        let open = client.pending.iter().filter(|p| !p.done).count();
        if open > client.waiting.len() {
            return;
        }
        let waiting = std::mem::take(&mut client.waiting);
        let overtaken = std::mem::replace(&mut client.overtaken, false);
        let pause = waiting.iter().map(|(_, pause, _)| *pause).max().unwrap_or(MS);
        for (again, _, error) in waiting {
            if overtaken {
                self.refused.push((again.flight, error));
            } else {
                self.later(again, pause);
            }
        }
    }

    /// A command has its answer: one that waits on the same slot cannot be sent again any more.
    pub fn overtakes(&mut self, flight: &Flight) {
        if let Some(client) = self.client(flight.whom) {
            let same = |slot: u16| slot == flight.slot || slot == NO_SLOT || flight.slot == NO_SLOT;
            client.overtaken |= client.waiting.iter().any(|(again, ..)| same(again.flight.slot));
        }
    }

    /// Something the client did not ask for, between two answers.
    pub fn push_to(&mut self, io: &mut Io, whom: Whom, bytes: &[u8]) {
        let Some(client) = self.client(whom) else { return };
        let waiting = if client.midway {
            client.pushes.extend_from_slice(bytes);
            client.pushes.len()
        } else {
            io.output(client.id).extend_from_slice(bytes);
            let id = client.id;
            io.unsent(id)
        };
        self.stats.bytes_out += bytes.len() as u64;
        if waiting > self.config.client_output_bytes {
            self.close_slow(io, whom);
        }
    }

    pub fn close_slow(&mut self, io: &mut Io, whom: Whom) {
        self.stats.clients_closed_slow += 1;
        self.drop_client(io, whom);
    }

    /// Not read until the condition holds.
    pub fn stall(&mut self, io: &mut Io, whom: Whom, why: Stall) {
        let Some(client) = self.client(whom) else { return };
        let id = client.id;
        if client.stall == Stall::No {
            io.pause(id, true);
        }
        client.stall = why;
        match why {
            Stall::Room => self.crowded.push(whom),
            Stall::Answers if client.pending.is_empty() => self.resume.push(whom),
            _ => {}
        }
    }

    pub fn close_when_answered(&mut self, io: &mut Io, whom: Whom) {
        if let Some(client) = self.client(whom) {
            client.closing = true;
            let (id, empty) = (client.id, client.pending.is_empty());
            if empty {
                io.finish(id);
            }
        }
    }

    /// The client goes, with everything that is its own.
    pub fn drop_client(&mut self, io: &mut Io, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        io.close(client.id);
        self.forget_client(io, whom);
    }

    fn forget_client(&mut self, io: &mut Io, whom: Whom) {
        if self.client(whom).is_none() {
            return;
        }
        let Some(client) = self.clients[whom.index as usize].take() else { return };
        self.parties[whom.index as usize] = Party::Nobody;
        self.clients_now -= 1;
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        for lane in client.subs.iter().copied().chain([client.pin]).filter(|l| *l != NONE) {
            self.close_lane(io, lane);
        }
        if let Some(stream) = client.stream.as_ref().filter(|s| s.lane != NONE) {
            self.close_lane(io, stream.lane);
        }
        self.gathers.retain(|_, g| g.whom != whom);
        if client.set != NONE && self.sets[client.set as usize].owner == Some(whom) {
            for lane in std::mem::take(&mut self.sets[client.set as usize].lanes) {
                if lane != NONE {
                    self.close_lane(io, lane);
                }
            }
            self.sets[client.set as usize].owner = None;
            self.sets[client.set as usize].identity = NONE;
        }
    }

    // Long commands.

    /// A command with an argument too long to wait for: it goes through on a lane of the client's own. False when it has
    /// to wait.
    fn begin_stream(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range]) -> bool {
        let plan = self.table.plan(bytes, args);
        let cluster = self.cluster;
        let Some(client) = self.client(whom) else { return true };
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        let stateful = plan.special.is_some()
            || plan.blocking
            || client.monitor
            || matches!(client.multi, Multi::Lost | Multi::Said)
            || client.proto == 2 && !client.subs.is_empty();
        let key = plan.key.map(|at| &bytes[args[at].0 as usize..args[at].1 as usize]);
        let known = !args.is_empty() && (key.is_some() || !cluster);
        if client.set == NONE || !known || stateful || cluster && plan.divide.is_some() {
            // A part of it would have to be kept that we do not want to keep.
            self.stats.error("too_long");
            let why = "-ERR unslow: an argument of more than 256 KiB is taken behind the key of an ordinary command only, and in a transaction not as its first\r\n";
            self.say(io, whom, why.as_bytes());
            self.close_when_answered(io, whom);
            return true;
        }
        let slot = if cluster { slot_of(key.unwrap_or(b"")) } else { 0 };
        let pin = if client.multi == Multi::Open { client.pin } else { NONE };
        if pin == NONE {
            self.own_set(whom);
        }
        let lane = if pin != NONE {
            pin
        } else {
            let node = self.node_for(slot, false, whom);
            if node == NOBODY {
                let answer = self.nobody(slot);
                self.say(io, whom, answer.as_bytes());
                self.close_when_answered(io, whom);
                return true;
            }
            let Some(set) = self.client(whom).map(|c| c.set) else { return true };
            self.lane_of(set, node)
        };
        if !self.lanes[lane as usize].flows() {
            let now = self.now;
            let since = *self.lanes[lane as usize].down_since.get_or_insert(now);
            if now > since + self.config.hold_ms * MS {
                self.stats.error("held_too_long");
                let why =
                    format!("-ERR unslow: no connection for {} ms; this command was not sent\r\n", self.config.hold_ms);
                self.say(io, whom, why.as_bytes());
                self.close_when_answered(io, whom);
                return true;
            }
            self.dial_if_needed(io, lane);
            self.stall(io, whom, Stall::Room);
            return false;
        }
        let now = self.now;
        let Some(client) = self.client(whom) else { return true };
        client.commands += 1;
        let seq = client.begin();
        client.stream = Some(Box::new(Stream { lane, splitter: splitter(), lost: false }));
        let flight = Flight {
            whom,
            seq,
            len: 0,
            at: now,
            command: plan.number,
            slot,
            node: NOBODY,
            part: 0,
            kind: Kind::Reply,
            tries: 0,
            repeatable: false,
            read: plan.read,
        };
        self.stats.commands += 1;
        let lane = &mut self.lanes[lane as usize];
        lane.flights.push_back(flight);
        lane.sent += 1;
        true
    }

    /// More of it. Returns how many bytes were taken; 0 when it has to wait.
    fn stream(&mut self, io: &mut Io, whom: Whom, bytes: &[u8]) -> usize {
        const AHEAD: usize = 4 << 20;
        let Some(client) = self.client(whom) else { return bytes.len() };
        let Some(stream) = client.stream.as_mut() else { return 0 };
        let (lane, lost) = (stream.lane, stream.lost);
        let split = stream.splitter.split(bytes);
        let (taken, done) = match split {
            Ok(Split::More { consumed }) => (consumed, false),
            Ok(Split::Done(done)) => (done.end, true),
            Err(_) => {
                // The lane has half a command: nobody else may use it.
                client.stream = None;
                if lane != NONE {
                    self.close_lane(io, lane);
                }
                self.drop_client(io, whom);
                return bytes.len();
            }
        };
        if done {
            client.stream = None;
        }
        if !lost
            && lane != NONE
            && let Some(connection) = self.lanes[lane as usize].connection
        {
            io.output(connection).extend_from_slice(&bytes[..taken]);
            if io.unsent(connection) > AHEAD {
                io.flush(connection);
                if io.unsent(connection) > AHEAD {
                    self.stall(io, whom, Stall::Room);
                }
            }
        }
        taken
    }

    // Looking things over.

    fn tick(&mut self, io: &mut Io) {
        self.catch_up(io);
        for whom in std::mem::take(&mut self.crowded) {
            let halted = self.halted;
            let Some(client) = self.client(whom) else { continue };
            if client.stall != Stall::Room {
                continue;
            }
            let id = client.id;
            let lane = client.stream.as_ref().map(|s| s.lane).filter(|l| *l != NONE);
            let ahead = lane.and_then(|l| self.lanes[l as usize].connection).map_or(0, |c| io.unsent(c));
            if halted || io.unsent(id) > OUTPUT_HIGH / 2 || ahead > OUTPUT_HIGH {
                self.crowded.push(whom);
            } else {
                self.resume.push(whom);
            }
        }
        self.unclog(io);
        self.house(io);
        self.some_wait = self.some_wait && self.everyone().any(|c| !c.waiting.is_empty());
        self.look_after_lanes(io);
        if self.now > self.published_at + 1000 * MS {
            self.published_at = self.now;
            self.publish_stats();
            self.close_idle(io);
            self.close_deserted(io);
        }
        if let Some(until) = self.draining {
            self.drain(io, until);
        }
        self.tick_at = self.now + if self.busy() { TICK } else { IDLE_TICK };
    }

    /// Something waits that no event will tell of.
    fn busy(&self) -> bool {
        !self.crowded.is_empty() || !self.clogs.is_empty() || self.draining.is_some() || self.lanes_waiting > 0
    }

    /// Settings, table and map that are newer than ours.
    fn catch_up(&mut self, io: &mut Io) {
        let settings = self.shared.settings_version.load(Ordering::Acquire);
        if settings != self.seen_settings {
            self.seen_settings = settings;
            self.config = self.shared.config();
            let table = self.shared.table();
            if !table.same_numbers(&self.table) {
                self.stats.commands_by.clear();
            }
            self.table = table;
            self.sampled = self.config.key_sample;
        }
        let version = self.shared.map_version.load(Ordering::Acquire);
        if version != self.seen_version {
            self.seen_version = version;
            let old = self.map.clone();
            let mut map = (*self.shared.map()).clone();
            // Nodes that a redirect named are in the next one for all; until then they keep their places.
            for number in map.servers.len()..old.servers.len() {
                map.servers.push(old.servers[number].clone());
                map.readers.push(Vec::new());
                map.heir.push(number as u16);
            }
            // Ours may have counted on by redirects: numbers only grow.
            let routes_changed = map.slots != old.slots || map.readers != old.readers;
            map.version = if routes_changed { old.version + 1 } else { old.version };
            self.map = Arc::new(map);
            self.cluster = self.map.is_cluster();
            self.banned.resize(self.map.servers.len(), 0);
            self.remapped(io, &old);
        }
        for message in self.shared.take_messages(self.number) {
            match message {
                Message::Drain(until) => {
                    self.draining = Some(until);
                    for listener in std::mem::take(&mut self.listeners) {
                        io.stop_listening(listener);
                    }
                }
                Message::Halt(halted) => self.halted = halted,
                Message::Show(question) => self.contribute(io, &question),
                Message::Answer(whom, seq, bytes) => self.answer(io, whom, seq, &bytes, true),
                Message::Kill(number) => {
                    let victim = self.everyone().find(|c| c.number == number).map(|c| c.whom());
                    if let Some(whom) = victim {
                        self.drop_client(io, whom);
                    }
                }
                Message::Listen(listening) => {
                    if let Ok(number) = io.listen(&listening) {
                        self.listeners.push(number);
                    }
                }
                Message::Notify(notice) => self.notify(io, &notice),
            }
        }
    }

    pub fn publish_stats(&mut self) {
        self.stats.clients = self.clients_now as u64;
        self.stats.lanes = self.lanes.iter().filter(|l| !l.free && l.connection.is_some()).count() as u64;
        self.shared.publish(self.number, &self.stats);
    }

    fn close_idle(&mut self, io: &mut Io) {
        let limit = self.config.client_idle_ms * MS;
        if limit == 0 {
            return;
        }
        let now = self.now;
        let idle = |c: &&Client| {
            c.seen + limit < now && c.pending.is_empty() && c.subs.is_empty() && c.pin == NONE && !c.monitor
        };
        let idle: Vec<Whom> = self.everyone().filter(idle).map(|c| c.whom()).collect();
        idle.into_iter().for_each(|whom| self.drop_client(io, whom));
    }

    /// Clients that block, are not read because of it, and have gone meanwhile.
    fn close_deserted(&mut self, io: &mut Io) {
        let stuck = |c: &&Client| c.pin != NONE && (c.stall != Stall::No || c.half_closed);
        let stuck: Vec<(Whom, Id)> = self.everyone().filter(stuck).map(|c| (c.whom(), c.id)).collect();
        for (whom, id) in stuck {
            if io.hung_up(id) {
                self.drop_client(io, whom);
            }
        }
    }

    /// SMIGRATING, on which clients are patient, and SMIGRATED, with the addresses by which the client knows us.
    fn notify(&mut self, io: &mut Io, notice: &Notice) {
        let all = self.everyone().filter(|c| c.notified && c.proto == 3);
        let all: Vec<(Whom, Option<std::net::SocketAddr>)> = all.map(|c| (c.whom(), c.to)).collect();
        for (whom, to) in all {
            let host = to.map_or("127.0.0.1".into(), |a| a.ip().to_string());
            let Notice { sequence, slots, moved } = notice;
            let push = match moved {
                None => format!(">3\r\n+SMIGRATING\r\n:{sequence}\r\n+{slots}\r\n"),
                Some((from, to)) => format!(
                    ">3\r\n+SMIGRATED\r\n:{sequence}\r\n*1\r\n*3\r\n+{host}:{from}\r\n+{host}:{to}\r\n+{slots}\r\n"
                ),
            };
            self.push_to(io, whom, push.as_bytes());
        }
    }

    /// Told to end: clients between two commands go now, the others when they are answered or the time is up.
    fn drain(&mut self, io: &mut Io, until: u64) {
        let late = self.now >= until;
        let now = self.now;
        let between = |c: &&Client| {
            c.pending.is_empty()
                && c.multi == Multi::No
                && c.subs.is_empty()
                && !c.watching
                && !c.monitor
                && c.stream.is_none()
        };
        // Not at once: who has just come, or just got an answer, is likely to say more.
        let going = |c: &&Client| late || between(c) && now > c.seen + DRAIN_QUIET;
        let going: Vec<Whom> = self.everyone().filter(going).map(|c| c.whom()).collect();
        for whom in going {
            if late {
                self.drop_client(io, whom);
            } else {
                self.close_when_answered(io, whom);
            }
        }
        if self.clients_now == 0 {
            self.publish_stats();
            io.stop();
        }
    }
}

impl Handler for Worker {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        self.now = now_ns();
        if self.now >= self.tick_at || self.shared.called(self.number) {
            self.tick(io);
        }
        while let Some(entry) = self.again.first_entry().filter(|e| e.key().0 <= self.now) {
            let again = entry.remove();
            self.resend(io, again);
        }
        for (flight, error) in std::mem::take(&mut self.refused) {
            self.fail_flight(io, &flight, &error);
        }
        for whom in std::mem::take(&mut self.resume) {
            if let Some(client) = self.client(whom) {
                client.stall = Stall::No;
                let id = client.id;
                io.pause(id, false);
            }
        }
        if self.tick_at > self.now + TICK && self.busy() {
            self.tick_at = self.now + TICK;
        }
        let again = self.again.first_key_value().map(|((at, _), _)| *at);
        Some(again.map_or(self.tick_at, |at| at.min(self.tick_at)))
    }

    fn accepted(&mut self, io: &mut Io, id: Id, visitor: Visitor) {
        self.now = now_ns();
        let taken = self.shared.clients.fetch_add(1, Ordering::Relaxed);
        if taken as usize >= self.config.max_clients || self.draining.is_some() {
            self.shared.clients.fetch_sub(1, Ordering::Relaxed);
            self.stats.clients_refused += 1;
            io.output(id).extend_from_slice(b"-ERR max number of clients reached\r\n");
            io.finish(id);
            return;
        }
        self.party(id, Party::Client);
        if self.clients.len() <= id.index() {
            self.clients.resize_with(id.index() + 64, || None);
        }
        self.serial = self.serial.wrapping_add(1);
        self.clients_now += 1;
        self.stats.clients_accepted += 1;
        let anonymous = self.config.client_auth == ClientAuth::Server;
        let db = self.shared.target.db;
        let set = if anonymous { NONE } else { self.set_of(0, db, 2) };
        self.clients[id.index()] = Some(Box::new(Client {
            id,
            serial: self.serial,
            number: self.shared.client_number(),
            from: visitor.from,
            to: visitor.to,
            set,
            identity: if anonymous { NONE } else { 0 },
            db,
            proto: 2,
            pending: Default::default(),
            base: 0,
            midway: false,
            pushes: Vec::new(),
            barrier: false,
            stall: Stall::No,
            closing: false,
            version: self.map.version,
            multi: Multi::No,
            queued: Vec::new(),
            multi_db: None,
            watching: false,
            watch_lost: false,
            blind: false,
            claim: None,
            selecting: None,
            pin: NONE,
            monitor: false,
            subs: Vec::new(),
            channels: Default::default(),
            subscribing: 0,
            unsubscribing: 0,
            name: Vec::new(),
            library: Vec::new(),
            replies: Replies::On,
            half_closed: false,
            waiting: Vec::new(),
            overtaken: false,
            bulky: false,
            slow: false,
            parked: 0,
            claimed_setup: Vec::new(),
            tracking: false,
            stream: None,
            last_node: NOBODY,
            notified: false,
            born: self.now,
            seen: self.now,
            commands: 0,
        }));
    }

    fn opened(&mut self, io: &mut Io, id: Id) {
        if let Some(Party::Lane(lane)) = self.parties.get(id.index()).copied() {
            self.lane_opened(io, lane);
        }
    }

    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize {
        match self.parties.get(id.index()) {
            Some(Party::Client) => self.client_data(io, id.index(), bytes),
            Some(Party::Lane(lane)) => self.lane_data(io, *lane, bytes),
            _ => bytes.len(),
        }
    }

    fn closed(&mut self, io: &mut Io, id: Id, why: Closed) {
        match self.parties.get(id.index()).copied() {
            Some(Party::Client) => {
                let whom = self.clients[id.index()].as_ref().map(|c| c.whom());
                if let Some(whom) = whom {
                    self.forget_client(io, whom);
                }
            }
            Some(Party::Lane(lane)) => {
                self.parties[id.index()] = Party::Nobody;
                self.lane_closed(io, lane, &why);
            }
            _ => {}
        }
    }

    fn ended(&mut self, io: &mut Io, id: Id) -> bool {
        // Half closed: what it asked for is still owed.
        let Some(Party::Client) = self.parties.get(id.index()) else { return false };
        let Some(client) = self.clients[id.index()].as_mut() else { return false };
        if client.pin != NONE {
            // It blocks, or is within a transaction: what a server does for it from here on it would do for nobody.
            return false;
        }
        let quiet = client.subs.is_empty() && !client.monitor;
        let owed = !client.pending.is_empty() || io.unsent(id) > 0;
        let stays = owed && quiet || client.stall != Stall::No;
        client.half_closed = true;
        let whom = client.whom();
        if stays && client.stall == Stall::No {
            self.close_when_answered(io, whom);
        }
        stays
    }

    fn drained(&mut self, _: &mut Io, id: Id) {
        if let Some(Some(client)) = self.clients.get(id.index())
            && client.stall == Stall::Room
        {
            self.tick_at = 0;
        }
    }

    fn timer(&mut self, _: &mut Io, _: u64) {}
}

/// An error reply in the words of a server.
pub fn error(code: &str, text: &str) -> Vec<u8> {
    format!("-{code} {text}\r\n").into_bytes()
}

/// A bulk string.
pub fn bulk(out: &mut Vec<u8>, text: &[u8]) {
    write_header(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Whether a command has a part of its own to play here.
pub fn is(plan: &Plan, special: Special) -> bool {
    plan.special == Some(special)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
    use std::sync::{Mutex, OnceLock};
    use std::time::Instant;

    use unslow_client::Target;
    use unslow_reactor::{Peer, Reactor};
    use unslow_resp::{Frame, Scan, Scanner, Value, quote_words};
    use unslow_testkit::until;
    use unslow_topology::{Node, Topology};

    use super::*;
    use crate::map::tests::{node, topology};
    use crate::shared::Mailbox;

    /// Node addresses, in the order of their numbers. Nothing listens there, and nothing is ever sent.
    pub(crate) const A: &str = "127.0.0.1:1";
    pub(crate) const B: &str = "127.0.0.1:2";
    pub(crate) const C: &str = "127.0.0.1:3";

    /// A worker on an event loop that does not run: its output stays in the buffers of its connections, and the test plays
    /// the clients and the servers.
    pub(crate) struct Rig {
        reactor: Reactor,
        pub(crate) worker: Worker,
    }

    /// Rows of COMMAND: name, arity, flag, first key, last key, step. The gateway adds those it handles itself.
    fn table() -> Table {
        let text = |t: &str| Value::Text(t.as_bytes().to_vec());
        let row = |(name, arity, flag, first, last, step): (&str, i64, &str, i64, i64, i64)| {
            let flags = Value::Array(vec![text(flag)]);
            let [arity, first, last, step] = [arity, first, last, step].map(Value::Integer);
            Value::Array(vec![text(name), arity, flags, first, last, step])
        };
        let rows = [
            ("get", 2, "readonly", 1, 1, 1),
            ("set", -3, "write", 1, 1, 1),
            ("incr", 2, "write", 1, 1, 1),
            ("mget", -2, "readonly", 1, -1, 1),
            ("mset", -3, "write", 1, -1, 2),
            ("del", -2, "write", 1, -1, 1),
            ("watch", -2, "noscript", 1, -1, 1),
        ];
        Table::parse(&Value::Array(rows.map(row).into()), &[]).expect("a table of commands")
    }

    fn shared(config: Config, topology: Arc<Topology>) -> Arc<Shared> {
        let target = Target::parse(A).expect("an address");
        let map = Map::next(None, topology, &config, &target, None, None);
        Arc::new(Shared {
            target,
            tls: None,
            server_name: None,
            config: Mutex::new(Arc::new(config)),
            table: Mutex::new(Arc::new(table())),
            settings_version: AtomicU64::new(1),
            map_version: AtomicU64::new(map.version),
            map: Mutex::new(Arc::new(map)),
            server: Mutex::new(("valkey".into(), "9.0.0".into(), true)),
            workers: vec![Mailbox::default()],
            clients: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            doubter: OnceLock::new(),
            reload: AtomicBool::new(false),
            end: AtomicBool::new(false),
            drained: AtomicUsize::new(0),
            started: Instant::now(),
            facade_ports: Mutex::default(),
        })
    }

    impl Rig {
        /// A cluster of these nodes.
        pub(crate) fn new(config: Config, nodes: Vec<Node>) -> Rig {
            let reactor = Reactor::new().expect("descriptors are free");
            Rig { reactor, worker: Worker::new(0, shared(config, topology(nodes))) }
        }

        /// A cluster of two masters with half of the slots each.
        pub(crate) fn halves(config: Config) -> Rig {
            Rig::new(config, vec![node(A, None, &[(0, 8191)]), node(B, None, &[(8192, 16383)])])
        }

        /// Keys of this node, in three different slots.
        pub(crate) fn keys(&self, node: u16) -> [String; 3] {
            let (mut keys, mut slots) = (Vec::new(), Vec::new());
            for key in (0u32..).map(|n| format!("k{n}")) {
                let slot = slot_of(key.as_bytes());
                if self.worker.map.slots[usize::from(slot)] == node && !slots.contains(&slot) {
                    slots.push(slot);
                    keys.push(key);
                }
                if keys.len() == 3 {
                    break;
                }
            }
            keys.try_into().expect("three keys")
        }

        /// A client connects; `to` is the gateway address it dialled.
        pub(crate) fn client(&mut self, to: Option<SocketAddr>) -> Id {
            let somewhere = Peer::Tcp(A.parse().expect("an address"));
            let id = self.reactor.io().connect(&somewhere, None, u64::MAX).expect("descriptors are free");
            self.worker.accepted(self.reactor.io(), id, Visitor { listener: 0, from: None, to });
            id
        }

        /// A client sends this, and all of it is consumed.
        pub(crate) fn says(&mut self, client: Id, text: &str) {
            let used = self.worker.data(self.reactor.io(), client, text.as_bytes());
            assert_eq!(used, text.len(), "consumed of {text:?}");
        }

        /// Takes the output for a client.
        pub(crate) fn told(&mut self, client: Id) -> String {
            String::from_utf8(std::mem::take(self.reactor.io().output(client))).expect("text")
        }

        /// Takes the commands for a node, without the greetings of new connections.
        pub(crate) fn asked(&mut self, node: u16) -> Vec<String> {
            self.open();
            let lanes = self.worker.lanes.iter().filter(|l| !l.free && l.node == node);
            let ids: Vec<Id> = lanes.filter_map(|l| l.connection).collect();
            let mut lines = Vec::new();
            for id in ids {
                let bytes = std::mem::take(self.reactor.io().output(id));
                let mut rest = &bytes[..];
                while let Ok(Scan::Complete(len)) = Scanner::default().scan(rest) {
                    lines.push(quote_words(Frame::new(&rest[..len]).items().map(|f| f.text())));
                    rest = &rest[len..];
                }
                assert!(rest.is_empty(), "no whole command: {}", rest.escape_ascii());
            }
            lines
        }

        /// Establishes and greets all dialled connections.
        pub(crate) fn open(&mut self) {
            for lane in 0..self.worker.lanes.len() {
                let l = &self.worker.lanes[lane];
                let (State::Opening, Some(id)) = (l.state, l.connection) else { continue };
                self.worker.opened(self.reactor.io(), id);
                self.reactor.io().output(id).clear();
                while self.worker.lanes[lane].state == State::Greeting {
                    let number = self.worker.lanes[lane].greeting.front() == Some(&Greeting::Number);
                    let reply: &[u8] = if number { b":7\r\n" } else { b"+OK\r\n" };
                    self.worker.data(self.reactor.io(), id, reply);
                }
            }
        }

        /// A node replies on the connection that has commands in flight.
        pub(crate) fn answers(&mut self, node: u16, text: &str) {
            let lane = self.worker.lanes.iter().find(|l| !l.free && l.node == node && l.sent > 0);
            let id = lane.and_then(|l| l.connection).expect("a connection that owes answers");
            self.worker.data(self.reactor.io(), id, text.as_bytes());
        }

        /// A node's connection breaks; output not taken with [`Rig::asked`] was never sent.
        pub(crate) fn breaks(&mut self, node: u16) {
            let lane = self.worker.lanes.iter().find(|l| !l.free && l.node == node && l.state == State::Ready);
            let id = lane.and_then(|l| l.connection).expect("a connection");
            self.reactor.io().close(id);
            self.worker.closed(self.reactor.io(), id, Closed::Peer);
        }

        /// One turn of the event loop.
        pub(crate) fn turn(&mut self) {
            self.worker.turn(self.reactor.io());
        }

        /// Runs turns until no retry is pending.
        pub(crate) fn send_again(&mut self) {
            until("no retry is pending", || {
                self.turn();
                self.worker.again.is_empty()
            });
        }

        /// The watcher reports another topology.
        pub(crate) fn remap(&mut self, nodes: Vec<Node>) {
            let shared = self.worker.shared.clone();
            let map = Map::next(Some(&shared.map()), topology(nodes), &shared.config(), &shared.target, None, None);
            shared.map_version.store(map.version, Ordering::Release);
            *shared.map.lock().expect("no thread panicked") = Arc::new(map);
            shared.call_all();
            self.turn();
        }
    }

    #[test]
    fn replies_keep_the_command_order_when_a_later_node_answers_first() {
        let mut rig = Rig::halves(Config::default());
        let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
        let client = rig.client(None);
        rig.says(client, &format!("GET {here}\r\nGET {there}\r\nPING\r\n"));
        assert_eq!(rig.asked(0), [format!("GET {here}")]);
        assert_eq!(rig.asked(1), [format!("GET {there}")]);
        rig.answers(1, "$3\r\ntwo\r\n");
        assert_eq!(rig.told(client), "");
        rig.answers(0, "$3\r\none\r\n");
        assert_eq!(rig.told(client), "$3\r\none\r\n$3\r\ntwo\r\n+PONG\r\n");
    }

    #[test]
    fn client_reply_skip_and_off_suppress_exactly_the_right_replies() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let client = rig.client(None);
        rig.says(client, &format!("CLIENT REPLY SKIP\r\nGET {key}\r\nGET {key}\r\n"));
        assert_eq!(rig.asked(0).len(), 2);
        rig.answers(0, "$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(rig.told(client), "$1\r\nb\r\n");
        rig.says(client, &format!("CLIENT REPLY OFF\r\nGET {key}\r\nPING\r\n"));
        rig.asked(0);
        rig.answers(0, "$1\r\nc\r\n");
        assert_eq!(rig.told(client), "");
        rig.says(client, "CLIENT REPLY ON\r\n");
        assert_eq!(rig.told(client), "+OK\r\n");
    }

    #[test]
    fn a_refused_command_is_retried_only_if_no_later_command_ran() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let both = [format!("SET {key} v"), format!("GET {key}")];
        let client = rig.client(None);
        // The GET saw the old value: resending the SET would reorder the two.
        rig.says(client, &(both.join("\r\n") + "\r\n"));
        assert_eq!(rig.asked(0), both);
        rig.answers(0, "-TRYAGAIN not now\r\n$-1\r\n");
        rig.turn();
        assert_eq!(rig.told(client), "-TRYAGAIN not now\r\n$-1\r\n");
        assert!(rig.asked(0).is_empty());
        // Neither ran: both are resent in order.
        rig.says(client, &(both.join("\r\n") + "\r\n"));
        assert_eq!(rig.asked(0), both);
        rig.answers(0, "-TRYAGAIN not now\r\n-TRYAGAIN not now\r\n");
        rig.send_again();
        assert_eq!((rig.told(client).as_str(), rig.asked(0)), ("", both.to_vec()));
        rig.answers(0, "+OK\r\n$1\r\nv\r\n");
        assert_eq!(rig.told(client), "+OK\r\n$1\r\nv\r\n");
    }

    #[test]
    fn clients_beyond_max_clients_are_refused_and_a_freed_place_is_reused() {
        let mut rig = Rig::halves(Config { max_clients: 1, ..Config::default() });
        let first = rig.client(None);
        let second = rig.client(None);
        assert_eq!(rig.told(second), "-ERR max number of clients reached\r\n");
        assert_eq!((rig.worker.stats.clients_refused, rig.worker.everyone().count()), (1, 1));
        rig.worker.closed(rig.reactor.io(), first, Closed::Peer);
        let third = rig.client(None);
        rig.says(third, "PING\r\n");
        assert_eq!(rig.told(third), "+PONG\r\n");
    }
}
