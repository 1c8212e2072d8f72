//! What a worker remembers of a client, of a connection to a server, and of a command between the two.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use unslow_nodes::Author;
use unslow_reactor::Id;
use unslow_resp::{Limits, Splitter};
use unslow_topology::commands::Plan;

use crate::journal::Journal;
use crate::map::NOBODY;
use crate::request::Progress;
use crate::worker::Waiting;

/// Place of a MULTI that the gateway says for a client: nobody waits for its answer, but it must be good.
pub const MULTI_SEQ: u32 = 1;
/// No lane, set or database.
pub const NONE: u32 = u32::MAX;
/// A command that has no key.
pub const NO_SLOT: u16 = u16::MAX;

/// Commands of a transaction, and their bytes, that wait for one with a key.
const QUEUED_MAX: usize = 1024;
const QUEUED_BYTES_MAX: usize = 64 * 1024;

/// How deep a reply may be nested. A script's table of tables goes as deep as the Lua stack of the server, 8,000 at most; a level
/// costs eight bytes here.
const DEPTH_MAX: usize = 100_000;

/// Splits what goes through without being kept: of any length.
pub fn splitter() -> Splitter {
    Splitter::new(Limits { frame_bytes_max: usize::MAX >> 1, depth_max: DEPTH_MAX, ..Limits::default() })
}

/// A client, as long as it is there: indices are used again, serial numbers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whom {
    pub index: u32,
    pub serial: u32,
}

/// The answer a client waits for.
#[derive(Default)]
pub struct Pending {
    pub done: bool,
    /// CLIENT REPLY OFF or SKIP: it does not want to hear it.
    pub mute: bool,
    /// What came of it before its turn.
    pub bytes: Vec<u8>,
}

/// Where a client is with MULTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multi {
    No,
    /// MULTI was said; which node it is for shows with the first key.
    Said,
    /// On the dedicated connection.
    Open,
    /// That connection broke: EXEC fails.
    Lost,
}

/// Why a client is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    No,
    /// Until all of its answers are there.
    Answers,
    /// Until half of its answers are there.
    Some,
    /// Until a server, the client itself or the operator has caught up; looked at again every few milliseconds.
    Room,
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    On,
    Off,
    SkipNext,
}

/// A command too long to be kept, on its way through.
pub struct Stream {
    pub lane: u32,
    pub splitter: Splitter,
    /// Its server is gone: the rest goes nowhere.
    pub lost: bool,
}

/// Where a subscription is.
#[derive(Clone, Copy, Debug)]
pub struct Subscription {
    pub lane: u32,
    /// The server has confirmed it.
    pub confirmed: bool,
    /// The client need not hear of that: it was made anew for it.
    pub silent: bool,
}

/// A pub/sub subscription: b's' shard channel, b'c' channel, b'p' pattern, and the name.
pub type Channel = (u8, Vec<u8>);

pub struct Client {
    pub id: Id,
    pub serial: u32,
    /// CLIENT ID.
    pub number: u64,
    pub from: Option<SocketAddr>,
    pub to: Option<SocketAddr>,
    /// Its connections to servers: index of a [`Set`]; NONE before AUTH where one is needed.
    pub set: u32,
    pub identity: u32,
    pub db: u32,
    pub proto: u8,
    /// Of the request that has come in part.
    pub progress: Option<Box<Progress>>,
    /// Bytes of it, and of what follows, that wait in memory.
    pub unread: usize,
    pub pending: VecDeque<Pending>,
    /// Number of `pending[0]`.
    pub base: u32,
    /// `pending[0]` is partly with the client.
    pub midway: bool,
    /// Pushes that wait for its end.
    pub pushes: Vec<u8>,
    /// Later commands wait until all answers are there: one of them is being sent again.
    pub barrier: bool,
    pub stall: Stall,
    /// To be closed when all answers are out.
    pub closing: bool,
    /// It will say no more.
    pub half_closed: bool,
    /// Of the map its commands went by.
    pub version: u64,
    pub multi: Multi,
    /// Commands within MULTI that came before it was known for which node.
    pub queued: Vec<Vec<u8>>,
    /// SELECT within MULTI.
    pub multi_db: Option<u32>,
    pub watching: bool,
    /// The connection that watched broke: the next EXEC fails, as if a key had changed.
    pub watch_lost: bool,
    /// Its transaction is on a node that was chosen without a key.
    pub blind: bool,
    /// A command of its transaction was refused by the gateway: EXEC runs nothing.
    pub poisoned: bool,
    /// Who it says it is, while the server judges.
    pub claim: Option<Box<Claim>>,
    /// SELECT, while the server judges.
    pub selecting: Option<u32>,
    /// A dedicated lane that everything goes to; NONE is the rule.
    pub pin: u32,
    /// The pin is MONITOR's.
    pub monitor: bool,
    /// Lanes of subscriptions.
    pub subs: Vec<u32>,
    pub channels: BTreeMap<Channel, Subscription>,
    /// Confirmations of subscribing that the client is to get.
    pub subscribing: usize,
    /// Confirmations of unsubscribing that are to come.
    pub unsubscribing: usize,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub replies: Replies,
    /// Got or sent something large: has connections of its own from then on.
    pub bulky: bool,
    /// Commands that a server would not take just now, in their order.
    pub waiting: Vec<Waiting>,
    /// One behind them, on the same slot, has run.
    pub overtaken: bool,
    /// It left a server waiting for too long: no more patience until it has caught up.
    pub slow: bool,
    /// Bytes of answers before their turn.
    pub parked: usize,
    /// A setting of its own connections, while the server judges.
    pub claimed_setup: Vec<u8>,
    /// CLIENT TRACKING is on: what it has cached it may have to forget.
    pub tracking: bool,
    pub stream: Option<Box<Stream>>,
    /// Node of its last command, for WAIT.
    pub last_node: u16,
    /// CLIENT MAINT_NOTIFICATIONS ON.
    pub notified: bool,
    pub born: u64,
    pub seen: u64,
    pub commands: u64,
}

impl Client {
    /// A place for the answer to the next command.
    #[inline]
    pub fn begin(&mut self) -> u32 {
        let mute = match self.replies {
            Replies::On => false,
            Replies::Off => true,
            Replies::SkipNext => {
                self.replies = Replies::On;
                true
            }
        };
        self.pending.push_back(Pending { done: false, mute, bytes: Vec::new() });
        self.base.wrapping_add(self.pending.len() as u32 - 1)
    }

    /// Whether a command without a key may wait for one that has one.
    pub fn may_queue(&self, bytes: usize) -> bool {
        self.queued.len() < QUEUED_MAX && self.queued.iter().map(Vec::len).sum::<usize>() + bytes <= QUEUED_BYTES_MAX
    }

    pub fn whom(&self) -> Whom {
        Whom { index: self.id.index() as u32, serial: self.serial }
    }

    /// Nothing about it is special.
    #[inline]
    pub fn plain(&self) -> bool {
        self.pin == NONE && self.multi == Multi::No && (self.subs.is_empty() || self.proto == 3) && self.set != NONE
    }
}

/// What the answer to a command on a lane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client.
    Reply,
    /// The client, and the dedicated lane is free again.
    Block,
    /// The client; the transaction is over.
    Exec,
    /// The client; a new identity if it is good.
    Auth,
    /// One of several: `seq` is the number of the [`Gather`](crate::gather::Gather).
    Gather,
    /// The client; a setting of its own connections if it is good.
    Setup,
    /// A question of ours: was it the server that refused a command, or a script? `seq` is the number of the
    /// question, which a [`Waiting`] has.
    Verify,
    /// Nobody.
    Swallow,
}

/// A command on a lane.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub whom: Whom,
    pub seq: u32,
    /// Bytes of it in the lane's journal; 0 for what was not kept.
    pub len: u32,
    /// When it came.
    pub at: u64,
    pub command: u16,
    pub slot: u16,
    /// Where it has to go when it has no slot; NOBODY for anywhere.
    pub node: u16,
    pub part: u16,
    pub kind: Kind,
    pub tries: u8,
    /// May be sent again when nobody knows whether it ran.
    pub repeatable: bool,
    /// It only reads: a replica may answer.
    pub read: bool,
    /// Who could have written an error that answers it.
    pub author: Author,
}

impl Flight {
    /// A command that is sent for the first time, to be kept in the journal.
    #[inline]
    pub fn new(whom: Whom, seq: u32, plan: &Plan, bytes: &[u8], at: u64, slot: u16, kind: Kind) -> Flight {
        Flight {
            whom,
            seq,
            len: bytes.len() as u32,
            at,
            command: plan.number,
            slot,
            node: NOBODY,
            part: 0,
            kind,
            tries: 0,
            repeatable: plan.repeatable,
            read: plan.read,
            author: if plan.scripted { Author::Script } else { Author::Server },
        }
    }
}

/// What a lane says before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    Auth,
    Hello,
    Select,
    Setup,
    /// CLIENT ID, for CLIENT UNBLOCK.
    Number,
    Ignore,
}

/// How far a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// To be dialled at this time, if anything waits.
    Closed(u64),
    Opening,
    Greeting,
    Ready,
}

/// A connection to a server.
pub struct Lane {
    pub connection: Option<Id>,
    pub state: State,
    pub set: u32,
    pub node: u16,
    /// Whose it is alone; pushes on it are for that client.
    pub owner: Option<Whom>,
    /// From the pool of dedicated lanes, and back to it.
    pub pooled: bool,
    /// Everything on it goes to the owner: MONITOR, pub/sub.
    pub raw: bool,
    /// The node is suspected: nothing more is written.
    pub held: bool,
    /// Its state is not what the next one expects.
    pub dirty: bool,
    /// Its connection has said READONLY; None when what was said is not certain.
    pub read_only: Option<bool>,
    pub greeting: VecDeque<Greeting>,
    pub flights: VecDeque<Flight>,
    pub journal: Journal,
    /// The first of the flights that are written, and their bytes.
    pub sent: usize,
    pub sent_bytes: usize,
    pub splitter: Splitter,
    /// First byte of the reply that has come in part; 0 between replies.
    pub first: u8,
    /// That part, where it is not forwarded as it comes.
    pub part: Vec<u8>,
    /// How much of it was forwarded.
    pub forwarded: usize,
    /// Something was answered on it since it was taken.
    pub used: bool,
    pub dialled_at: u64,
    /// The server's CLIENT ID of it.
    pub server_number: Option<u64>,
    pub failures: u32,
    /// Nobody could be reached here since.
    pub down_since: Option<u64>,
    pub idle_since: u64,
    pub free: bool,
}

impl Lane {
    /// Whether what is added goes out at once.
    #[inline]
    pub fn flows(&self) -> bool {
        self.state == State::Ready && !self.held
    }
}

/// Who a client says it is, while the server judges.
pub struct Claim {
    pub identity: Identity,
    /// The protocol that HELLO asked for; none where it was AUTH.
    pub hello: Option<u8>,
    /// The name that HELLO gave.
    pub named: Option<Vec<u8>>,
}

/// Lanes with the same user, database and protocol: one a node.
pub struct Set {
    pub identity: u32,
    pub db: u32,
    pub proto: u8,
    pub owner: Option<Whom>,
    pub lanes: Vec<u32>,
    /// Said on each lane of it before use, as it came from the client.
    pub setup: Vec<Vec<u8>>,
    /// Since when no client has it.
    pub idle_since: Option<u64>,
}

/// Number of the identity that is the gateway itself.
pub const OWN: u32 = 0;
/// Number of the identity of connections on which AUTH is judged: nobody's. Whoever proves to be somebody there leaves it so, hence
/// nothing but AUTH is ever said on them.
pub const JUDGED: u32 = 1;

/// As whom a lane speaks.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
}
