//! What a worker remembers of a client, of a connection to a server, and of a command between the two.

use std::collections::VecDeque;

use unslow_nodes::{Backoff, Greeting, Login};
use unslow_reactor::Id;
use unslow_resp::{Limits, Splitter};

use crate::ends::Ends;
use crate::flight::Waiting;
pub use crate::flight::{Flight, Kind, NO_SLOT};
pub use crate::ids::Whom;
use crate::ids::{IdentityId, LaneId, SetId};
use crate::journal::Journal;
use crate::own::Permit;
use crate::rarely::{Rarely, Resting};
use crate::request::{Passing, Progress};
use crate::subscriptions::{Awaited, Subscriber};
use unslow_nodes::NOBODY;

/// Place of a MULTI that the gateway says for a client: nobody waits for its answer, but it must be good.
pub const MULTI_SEQ: u32 = 1;

/// Commands of a transaction, and their bytes, that wait for one with a key.
const QUEUED_MAX: usize = 1024;
const QUEUED_BYTES_MAX: usize = 64 * 1024;

/// How deep a reply may be nested. A script's table of tables goes as deep as the Lua stack of the server, 8,000 at
/// most; a level costs eight bytes here.
const DEPTH_MAX: usize = 100_000;

/// Splits what servers send. Replies that pass through without being kept may be of any length, and so may a script's
/// error or simple string, which is a line.
pub fn splitter() -> Splitter {
    let any = Limits { frame_bytes_max: usize::MAX >> 1, depth_max: DEPTH_MAX, ..Limits::default() };
    Splitter::over_long_texts(any)
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

/// Where a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Txn {
    /// MULTI was said; which node it is for shows with the first key.
    Said,
    /// On the dedicated connection.
    Open,
    /// That connection broke, or what it watched: EXEC fails.
    Lost,
}

/// What a client has said since MULTI.
#[derive(Debug)]
pub struct Transaction {
    pub at: Txn,
    /// Commands that came before it was known for which node.
    pub queued: Vec<Vec<u8>>,
    /// How many commands were sent that its server queues.
    pub sent: usize,
    /// SELECT among them: its place, and the database.
    pub selects: Vec<(usize, u32)>,
    /// It is on a node that was chosen without a key.
    pub blind: bool,
    /// A command of it was refused by the gateway: EXEC runs nothing.
    pub poisoned: bool,
}

impl Transaction {
    pub fn new(at: Txn) -> Transaction {
        Transaction { at, queued: Vec::new(), sent: 0, selects: Vec::new(), blind: false, poisoned: false }
    }

    /// Whether a command without a key may wait for one that has one.
    pub fn may_queue(&self, bytes: usize) -> bool {
        self.queued.len() < QUEUED_MAX && self.queued.iter().map(Vec::len).sum::<usize>() + bytes <= QUEUED_BYTES_MAX
    }
}

/// What a client is in the middle of, as its connection has it.
#[derive(Debug, Default)]
pub enum Doing {
    #[default]
    Nothing,
    Transaction(Box<Transaction>),
    Monitor,
}

/// What a client is in the middle of, as its next command sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    /// It has subscriptions, in RESP2: little else may be said.
    Subscriber,
    Transaction(Txn),
    /// On a dedicated connection, which is to answer first.
    Blocked,
    Monitor,
    /// In the middle of a command too long to be kept.
    Streaming,
}

/// WATCH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    #[default]
    Nothing,
    /// On the dedicated connection.
    Keys,
    /// The connection that watched broke: the next EXEC fails, as if a key had changed.
    Lost,
    /// So it did, and others are watched since, which does not make up for it.
    LostAndKeys,
}

impl Watch {
    /// Whether a connection watches.
    pub fn held(self) -> bool {
        matches!(self, Watch::Keys | Watch::LostAndKeys)
    }

    pub fn lost(self) -> bool {
        matches!(self, Watch::Lost | Watch::LostAndKeys)
    }

    /// WATCH was said.
    pub fn more(self) -> Watch {
        if self.lost() { Watch::LostAndKeys } else { Watch::Keys }
    }

    /// The connection that watched is gone.
    pub fn broken(self) -> Watch {
        if self == Watch::Nothing { Watch::Nothing } else { Watch::Lost }
    }
}

/// What a server judges at the moment.
pub enum Asked {
    /// Who the client says it is.
    Auth(Claim),
    /// SELECT.
    Db(u32),
    /// A setting of its own connections.
    Setup(Setting),
}

/// Whether a client is about to go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaving {
    #[default]
    No,
    /// It will say no more.
    SaidAll,
    /// To be closed when all answers are out.
    WhenAnswered,
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
    /// Until servers have confirmed subscriptions: its own, or those that its message is to reach.
    Confirmations,
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
    /// None when its server is gone: the rest goes nowhere.
    pub lane: Option<LaneId>,
    pub passing: Passing,
}

/// What most clients are never in the middle of.
#[derive(Default)]
pub struct Rare {
    pub doing: Doing,
    pub stream: Option<Box<Stream>>,
    /// Commands that a server would not take just now, in their order.
    pub waiting: Vec<Waiting>,
    /// One behind them, on the same slot, has run.
    pub overtaken: bool,
    /// Pushes that wait for the end of an answer that is partly with the client.
    pub pushes: Vec<u8>,
}

impl Resting for Rare {
    const REST: &'static Rare =
        &Rare { doing: Doing::Nothing, stream: None, waiting: Vec::new(), overtaken: false, pushes: Vec::new() };

    fn is_at_rest(&self) -> bool {
        let Rare { doing, stream, waiting, overtaken, pushes } = self;
        matches!(doing, Doing::Nothing) && stream.is_none() && waiting.is_empty() && !overtaken && pushes.is_empty()
    }
}

/// What a client says it is.
#[derive(Default)]
pub struct Names {
    /// CLIENT SETNAME.
    pub own: Vec<u8>,
    /// CLIENT SETINFO LIB-NAME.
    pub library: Vec<u8>,
}

impl Resting for Names {
    const REST: &'static Names = &Names { own: Vec::new(), library: Vec::new() };

    fn is_at_rest(&self) -> bool {
        self.own.is_empty() && self.library.is_empty()
    }
}

pub struct Client {
    pub id: Id,
    pub serial: u32,
    /// CLIENT ID.
    pub number: u64,
    pub ends: Ends,
    /// Its connections to servers; none before AUTH where one is needed.
    pub set: Option<SetId>,
    pub identity: Option<IdentityId>,
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
    /// Later commands wait until all answers are there: one of them is being sent again.
    pub barrier: bool,
    pub stall: Stall,
    pub leaving: Leaving,
    /// Of the map its commands went by.
    pub version: u64,
    pub watch: Watch,
    /// What a server judges.
    pub asked: Option<Box<Asked>>,
    /// A dedicated lane that everything goes to.
    pub pin: Option<LaneId>,
    /// The slot by which its node was chosen, for WATCH and MULTI.
    pub pin_slot: u16,
    /// Another one, for a command that blocks while `pin` watches.
    pub aside: Option<LaneId>,
    pub rare: Rarely<Rare>,
    pub subscriber: Rarely<Subscriber>,
    pub names: Rarely<Names>,
    pub replies: Replies,
    /// Got or sent something large: has connections of its own from then on.
    pub bulky: bool,
    /// It left a server waiting for too long: no more patience until it has caught up.
    pub slow: bool,
    /// Bytes of answers before their turn.
    pub parked: usize,
    /// CLIENT TRACKING is on: what it has cached it may have to forget.
    pub tracking: bool,
    /// Node of its last command, for WAIT.
    pub last_node: u16,
    /// CLIENT MAINT_NOTIFICATIONS ON.
    pub notified: bool,
    pub born: u64,
    pub seen: u64,
    pub commands: u64,
}

/// Tens of thousands of them are idle: what only some ever have is in `rare`, `subscriber` and `names`.
const _: () = assert!(size_of::<Client>() <= 200);

impl Client {
    /// One that has just come, and has said nothing.
    pub fn new(id: Id, serial: u32, now: u64) -> Client {
        Client {
            id,
            serial,
            number: 0,
            ends: Ends::Unix,
            set: None,
            identity: None,
            db: 0,
            proto: 2,
            progress: None,
            unread: 0,
            pending: VecDeque::new(),
            base: 0,
            midway: false,
            barrier: false,
            stall: Stall::No,
            leaving: Leaving::No,
            version: 0,
            watch: Watch::Nothing,
            asked: None,
            pin: None,
            pin_slot: NO_SLOT,
            aside: None,
            rare: Rarely::default(),
            subscriber: Rarely::default(),
            names: Rarely::default(),
            replies: Replies::On,
            bulky: false,
            slow: false,
            parked: 0,
            tracking: false,
            last_node: NOBODY,
            notified: false,
            born: now,
            seen: now,
            commands: 0,
        }
    }

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
        if self.pending.capacity() == 0 {
            // Most clients have one at a time.
            self.pending.reserve_exact(1);
        }
        self.pending.push_back(Pending { done: false, mute, bytes: Vec::new() });
        self.base.wrapping_add(self.pending.len() as u32 - 1)
    }

    /// How many answers before that of its command `seq` are still owed.
    #[inline]
    pub fn at(&self, seq: u32) -> usize {
        seq.wrapping_sub(self.base) as usize
    }

    pub fn whom(&self) -> Whom {
        Whom { index: self.id.index() as u32, serial: self.serial }
    }

    /// Nothing about it is special.
    #[inline]
    pub fn plain(&self) -> bool {
        self.pin.is_none()
            && matches!(self.rare.doing, Doing::Nothing)
            && (self.subscriber.lanes.is_empty() || self.proto == 3 && !self.awaits_confirmations())
            && self.set.is_some()
    }

    /// Whether a server owes it confirmations. They stand before the replies to its later commands, as on one
    /// connection. A subscription without a node is not waited for.
    #[inline]
    pub fn awaits_confirmations(&self) -> bool {
        !self.subscriber.lanes.is_empty() && (self.subscriber.subscribing > 0 || self.subscriber.unsubscribing > 0)
    }

    pub fn mode(&self) -> Mode {
        match &self.rare.doing {
            _ if self.rare.stream.is_some() => Mode::Streaming,
            Doing::Monitor => Mode::Monitor,
            Doing::Transaction(t) => Mode::Transaction(t.at),
            Doing::Nothing if self.proto == 2 && !self.subscriber.lanes.is_empty() => Mode::Subscriber,
            Doing::Nothing if self.aside.is_some() => Mode::Blocked,
            Doing::Nothing if self.pin.is_some() && !self.watch.held() && !self.pending.is_empty() => Mode::Blocked,
            Doing::Nothing => Mode::Plain,
        }
    }

    pub fn transaction(&self) -> Option<&Transaction> {
        match &self.rare.doing {
            Doing::Transaction(t) => Some(t),
            _ => None,
        }
    }

    pub fn transaction_mut(&mut self) -> Option<&mut Transaction> {
        match &mut self.rare.changed()?.doing {
            Doing::Transaction(t) => Some(t),
            _ => None,
        }
    }

    /// Between two commands: nothing is owed either way, nothing has begun, and nothing is kept for it anywhere.
    pub fn is_between_commands(&self) -> bool {
        self.pending.is_empty()
            && self.unread == 0
            && matches!(self.rare.doing, Doing::Nothing)
            && self.subscriber.lanes.is_empty()
            && !self.watch.held()
            && self.asked.is_none()
            && self.rare.stream.is_none()
    }

    /// Whether it waits for an answer that cannot come once it sends no more: its server has half of a command and
    /// waits for the rest.
    pub fn lacks_rest(&self) -> bool {
        self.stall == Stall::No && self.rare.stream.as_ref().is_some_and(|s| s.lane.is_some())
    }

    /// Whether it has said more than what connections begin with: HELLO, AUTH, CLIENT, SELECT.
    pub fn has_begun(&self) -> bool {
        const HANDSHAKE: u64 = 8;
        self.last_node != NOBODY || self.commands > HANDSHAKE
    }

    /// Whether the dedicated lane has done its work.
    pub fn needs_pin(&self) -> bool {
        self.watch.held() || !matches!(self.rare.doing, Doing::Nothing)
    }

    /// A transaction or a WATCH is over, whatever became of it. The databases that were to be selected in it.
    pub fn end_transaction(&mut self) -> Vec<(usize, u32)> {
        self.watch = Watch::Nothing;
        match self.transaction() {
            None => Vec::new(),
            Some(_) => match self.end_doing() {
                Doing::Transaction(t) => t.selects,
                Doing::Nothing | Doing::Monitor => Vec::new(),
            },
        }
    }

    /// Ends what it was in the middle of, and returns that.
    pub fn end_doing(&mut self) -> Doing {
        if let Doing::Nothing = self.rare.doing {
            return Doing::Nothing;
        }
        let done = std::mem::take(&mut self.rare.doing);
        self.rare.settle();
        done
    }

    /// It has another name from now on; an empty one is none.
    pub fn rename(&mut self, name: Vec<u8>) {
        if self.names.own != name {
            self.names.own = name;
            self.names.settle();
        }
    }

    /// It is not behind any subscription any more.
    #[inline]
    pub fn catch_up(&mut self) {
        if self.subscriber.behind.is_some() {
            self.subscriber.behind = None;
            self.subscriber.settle();
        }
    }
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
    pub set: SetId,
    pub node: u16,
    /// Whose it is alone; pushes on it are for that client.
    pub owner: Option<Whom>,
    /// From the pool of dedicated lanes, and back to it.
    pub pooled: bool,
    /// Everything on it goes to the owner: MONITOR, pub/sub.
    pub raw: bool,
    /// Subscriptions that it is to confirm, oldest first.
    pub awaited: VecDeque<Awaited>,
    /// The node is suspected: nothing more is written.
    pub held: bool,
    /// Its state is not what the next one expects.
    pub dirty: bool,
    /// Its connection has said READONLY; None when what was said is not certain.
    pub read_only: Option<bool>,
    pub greeting: Greeting,
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
    pub backoff: Backoff,
    /// Nobody could be reached here since.
    pub down_since: Option<u64>,
    /// Its node lost its place and owes answers since, and may only be late.
    pub replaced_at: Option<u64>,
    pub idle_since: u64,
    /// Its place among the node's own connections, for one that a client has alone, or that waits in the pool for one.
    pub permit: Option<Permit>,
    /// Since when it has waited for one.
    pub waits_since: Option<u64>,
    /// Where it waits for a client to have it alone.
    pub waits: Waits,
    pub free: bool,
}

/// What the lanes of a place in the pool have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    pub identity: IdentityId,
    pub db: u32,
    pub proto: u8,
    pub node: u16,
}

/// Where a lane that no client has waits for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waits {
    #[default]
    Nowhere,
    /// In this place of the pool.
    InPool(PoolKey),
    /// It is dialled ahead for this place.
    Dialling(PoolKey),
}

impl Lane {
    /// Whether it may not be dialled before it has a permit.
    #[inline]
    pub fn lacks_permit(&self) -> bool {
        self.permit.is_none() && (self.owner.is_some() || self.pooled)
    }

    /// Whether commands of several clients are on it.
    #[inline]
    pub fn is_shared(&self) -> bool {
        !self.raw && !self.pooled && self.owner.is_none()
    }

    /// Takes what was not written yet, in order: each command with its bytes.
    pub fn take_unsent(&mut self) -> Vec<(Flight, Vec<u8>)> {
        let mut bytes = &self.journal.all()[self.sent_bytes..];
        let unsent = self.flights.drain(self.sent..).map(|flight| {
            let (own, rest) = bytes.split_at(flight.size());
            bytes = rest;
            (flight, own.to_vec())
        });
        let unsent = unsent.collect();
        self.journal.truncate(self.sent_bytes);
        self.read_only = None;
        unsent
    }

    /// Appends one that was taken.
    pub fn put_back(&mut self, flight: Flight, bytes: &[u8]) {
        self.flights.push_back(flight);
        self.journal.push(bytes);
    }

    /// Whether a client has it alone, from the pool.
    #[inline]
    pub fn pinned(&self) -> bool {
        self.pooled && self.owner.is_some()
    }

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

/// What a client has set with CLIENT for its own connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sticky {
    Tracking,
    NoTouch,
}

/// A command that sets it, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub what: Sticky,
    /// OFF ends it.
    pub on: bool,
    pub bytes: Vec<u8>,
}

/// Lanes with the same user, database and protocol: one a node.
pub struct Set {
    /// None when the place is free.
    pub identity: Option<IdentityId>,
    /// Who says SELECT on its connections: the user whom the server let select this database. AUTH keeps the database,
    /// also for a user who may not say SELECT.
    pub selector: IdentityId,
    pub db: u32,
    pub proto: u8,
    pub owner: Option<Whom>,
    pub lanes: Vec<Option<LaneId>>,
    /// Said on each lane of it before use.
    pub setup: Vec<Setting>,
    /// Since when no client has it.
    pub idle_since: Option<u64>,
}

/// Number of the identity that is the gateway itself.
pub const OWN: IdentityId = IdentityId::at(0);
/// Number of the identity of connections on which AUTH is judged: nobody's. Whoever proves to be somebody there leaves
/// it so, hence nothing but AUTH is ever said on them.
pub const JUDGED: IdentityId = IdentityId::at(1);

/// As whom a lane speaks.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
}

impl Identity {
    pub fn login(&self) -> Login<'_> {
        Login { user: self.user.as_deref(), password: self.password.as_deref() }
    }

    /// The words of its AUTH.
    pub fn auth(&self) -> Vec<&[u8]> {
        let words = [Some(&b"AUTH"[..]), self.user.as_deref(), Some(self.password.as_deref().unwrap_or(b""))];
        words.into_iter().flatten().collect()
    }
}

impl Set {
    /// An empty one, of a user who has selected its database.
    pub fn of(identity: IdentityId, db: u32, proto: u8, owner: Option<Whom>) -> Set {
        Set {
            identity: Some(identity),
            selector: identity,
            db,
            proto,
            owner,
            lanes: Vec::new(),
            setup: Vec::new(),
            idle_since: None,
        }
    }
}
