//! One thread of the gateway: its clients, its connections to servers, and the way of a command between them.
//!
//! ```text
//!   client bytes -> request -> plan (command table) -> slot -> node -> lane (journal, flights) -> one write a turn
//!   server bytes -> splitter -> flight -> answer in the client's order ----------------------> one write a turn
//! ```
//!
//! Nothing is allocated on this way for a command with one key. What is special has its own place: `special/` for
//! commands with a state, `spread.rs` for those with several answers, `lanes/` for everything that can go wrong behind.

mod answers;
mod care;
mod requests;
mod stuck;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use unslow_reactor::{Closed, Handler, Id, Io, Visitor, now_ns};

use crate::clock::MS;
use crate::config::{ClientAuth, Config};
use crate::ends::Ends;
use crate::flight::Again;
use crate::gather::Gathers;
use crate::ids::{IdentityId, LaneId, Places, SetId};
use crate::map::Map;
use crate::own::Most;
use crate::pace::Pace;
use crate::parcel::Parcel;
use crate::pauses::{Halt, Pauses};
use crate::request::{Allowed, Range};
use crate::session::*;
use crate::shared::Shared;
use crate::stats::Stats;
use crate::subscriptions::{Channel, Unconfirmed};
use stuck::Stuck;
use unslow_commands::Table;

/// A client with more unsent output is not read until it has taken some.
const OUTPUT_HIGH: usize = 1 << 20;
/// Looked over at least this often, while there is something to look over.
const TICK: u64 = 5 * MS;
/// And this often while there is nothing.
const IDLE_TICK: u64 = 50 * MS;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Party {
    Nobody,
    Client,
    Lane(LaneId),
}

/// Whether the next connection for subscriptions is at hand.
#[derive(Default)]
pub struct Spare {
    /// When the last client subscribed.
    pub used: u64,
    /// No other is dialled before.
    pub not_before: u64,
    pub dialling: Option<LaneId>,
}

/// A lane whose client does not take what it brings.
pub struct Clog {
    pub lane: LaneId,
    pub whom: Whom,
    pub unsent: usize,
    pub since: u64,
}

/// One thread: its clients, its lanes, and what ties them together.
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
    pub lanes: Places<LaneId, Lane>,
    pub lanes_free: Vec<LaneId>,
    /// How many of them have commands that could not be written yet.
    pub lanes_waiting: usize,
    pub sets: Places<SetId, Set>,
    /// Who lanes speak as; the first is the gateway itself. Places of those that nobody is any more are used again.
    pub identities: Places<IdentityId, Option<Identity>>,
    /// When sets that nobody uses are looked for next.
    pub reap_at: u64,
    pub pool: HashMap<PoolKey, Vec<LaneId>>,
    /// Where one of them is kept for the next subscription.
    pub spares: HashMap<PoolKey, Spare>,
    pub gathers: Gathers,
    pub gather_number: u32,
    /// What a command for several nodes is cut into.
    pub parcel: Parcel,
    pub again: BTreeMap<(u64, u64), Again>,
    pub again_number: u64,
    /// Number of the last question whether a server or a script refused a command.
    pub doubts: u32,
    /// To be read again.
    pub resume: Vec<Whom>,
    /// Stalled for want of room.
    pub crowded: Vec<Whom>,
    pub clogs: Vec<Clog>,
    /// Sharded subscriptions that wait for their slot to have a node.
    pub homeless: Vec<(Whom, Channel)>,
    /// Those that servers have not confirmed, and the clients that wait for that.
    pub unconfirmed: Unconfirmed,
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
    /// Answered while draining: to be closed with this turn, if they are between two commands.
    pub parting: Vec<Whom>,
    /// How much a request of a client that is logged in may hold.
    pub allowed: Allowed,
    /// How many connections to a node clients may have alone, in all threads.
    pub own_most: Most,
    /// UNSLOW PAUSE and CLIENT PAUSE, and what they come to now.
    pub pauses: Pauses,
    pub halted: Halt,
    /// Servers that are busy with a script, as far as clients would wait for it.
    pub stuck: Stuck,
    pub clients_now: usize,
    /// Bytes of unfinished requests, all clients together.
    pub unread: usize,
    /// Bytes of answers that came before their turn, all clients together.
    pub parked: usize,
    /// What it did lately.
    pub pace: Pace,
}

/// What becomes of a request that is too long to wait for.
enum Long {
    /// It goes through as it comes.
    Begun,
    /// Later.
    Waits,
    /// It has to be whole first.
    Kept,
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
            lanes: Places::new(Vec::new()),
            lanes_free: Vec::new(),
            lanes_waiting: 0,
            sets: Places::new(Vec::new()),
            identities: Places::new(vec![Some(shared.own_identity()), Some(Identity { user: None, password: None })]),
            reap_at: 0,
            pool: HashMap::new(),
            spares: HashMap::new(),
            gathers: Gathers::default(),
            gather_number: 0,
            parcel: Parcel::default(),
            again: BTreeMap::new(),
            again_number: 0,
            doubts: 0,
            resume: Vec::new(),
            crowded: Vec::new(),
            clogs: Vec::new(),
            homeless: Vec::new(),
            unconfirmed: Unconfirmed::default(),
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
            parting: Vec::new(),
            allowed: Allowed::All,
            own_most: Most::of(0, None),
            pauses: Pauses::default(),
            halted: Halt::No,
            stuck: Stuck::default(),
            clients_now: 0,
            unread: 0,
            parked: 0,
            pace: Pace::default(),
            shared,
        };
        worker.banned.resize(worker.map.servers.len(), 0);
        worker.obey_limits();
        worker
    }

    /// What settings and servers allow.
    fn obey_limits(&mut self) {
        let limits = self.shared.limits();
        self.allowed = Allowed::server(limits.argument_bytes);
        self.own_most = Most::of(self.config.own_connections, limits.maxclients);
        self.stuck.obey(limits.busy_ms);
    }

    pub fn client(&mut self, whom: Whom) -> Option<&mut Client> {
        self.clients.get_mut(whom.place())?.as_deref_mut().filter(|c| c.serial == whom.serial)
    }

    pub fn everyone(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter_map(|c| c.as_deref())
    }

    pub(super) fn party(&mut self, id: Id, party: Party) {
        if self.parties.len() <= id.index() {
            self.parties.resize(id.index() + 64, Party::Nobody);
        }
        self.parties[id.index()] = party;
    }

    pub fn lane_party(&mut self, id: Id, lane: LaneId) {
        self.party(id, Party::Lane(lane));
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
        if io.unsent_to_visitors() + self.parked > self.config.output_bytes / self.shared.workers.len().max(1) {
            self.make_room(io);
        }
        for (flight, error) in std::mem::take(&mut self.refused) {
            self.fail_flight(io, &flight, &error);
        }
        self.continue_confirmed();
        for whom in std::mem::take(&mut self.resume) {
            if let Some(client) = self.client(whom) {
                client.stall = Stall::No;
                let id = client.id;
                // What it has sent already is read again, if there is any; this is for a client that is not read again.
                let done = client.leaving == Leaving::SaidAll && client.unread == 0;
                io.pause(id, false);
                if done {
                    self.said_all(io, whom);
                }
            }
        }
        for whom in std::mem::take(&mut self.parting) {
            self.part_with(io, whom);
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
        let set = (!anonymous).then(|| self.set_of(OWN, db, 2));
        let mut client = Client::new(id, self.serial, self.now);
        (client.number, client.version) = (self.shared.client_number(), self.map.version);
        client.ends = Ends::of(&visitor);
        (client.set, client.db) = (set, db);
        client.identity = (!anonymous).then_some(OWN);
        self.clients[id.index()] = Some(Box::new(client));
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
        if client.pin.is_some() || client.aside.is_some() {
            // It blocks, or is within a transaction: what a server does for it from here on it would do for nobody.
            return false;
        }
        if client.lacks_rest() {
            return false;
        }
        let quiet = client.subscriber.lanes.is_empty() && !matches!(client.rare.doing, Doing::Monitor);
        let owed = !client.pending.is_empty() || io.unsent(id) > 0;
        let stays = owed && quiet || client.stall != Stall::No;
        if client.leaving == Leaving::No {
            client.leaving = Leaving::SaidAll;
        }
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
