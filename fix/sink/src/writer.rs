//! The thread that writes: batches in, commands out to every node at once, replies matched, acknowledgements back.
//!
//! ```text
//!   batch -> encode a slice -> to its node, or held -> reply -> done        -> batch done -> Ack
//!                 ^                  ^                   |
//!                 |                  +--- due, ready <---+ MOVED, LOADING, OOM, connection lost, ...
//!                 +--- next turn
//! ```
//!
//! Order is kept within a slot, and with it within a key, by two rules. A slot has calls under way at one node only. And a
//! slot of which one call must be sent again is *held*: what is under way is waited for, and everything from that call on
//! is sent again in order before anything new. What ran already runs twice then, which is what "at least once" means;
//! with `exactly_once` the guard in the server sees to it that it changes nothing.
//!
//! A connection that broke may have left bytes in its server's socket. They would run after what is sent again on the next
//! one, so that one first has the server close its predecessor.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use unslow_client::Target;
use unslow_reactor::{Closed, Handler, Id, Io, Peer, Tls, now_ns};
use unslow_resp::{Frame, Scan, Scanner, Split, Splitter, Value, write_command};
use unslow_topology::{Info, SLOTS};

use crate::encode::{Became, Encoded, Encoder, GUARD, mark_keys};
use crate::ledger::{Ack, Letter};
use crate::record::{Batch, Offset};
use crate::stats::Stats;
use crate::window::Window;

const MILLISECOND: u64 = 1_000_000;
/// Messages encoded before replies are looked at again.
const SLICE_MESSAGES: usize = 512;
/// Bytes after which a node need not wait for the end of the slice.
const FLUSH_BYTES: usize = 32 << 10;
/// A node that has not read so much gets no more until it has.
const UNSENT_MAX: usize = 16 << 20;
const BACKOFF_MIN: u64 = 20 * MILLISECOND;
const BACKOFF_MAX: u64 = 1000 * MILLISECOND;
/// No owner.
pub const NOBODY: u16 = u16::MAX;

/// Who owns which slot.
pub struct Route {
    pub nodes: Vec<RouteNode>,
    /// Owner of each slot, of `nodes`.
    pub slots: Vec<u16>,
}

/// A node to write to.
pub struct RouteNode {
    pub address: String,
    /// The other address it goes by; redirects may use either.
    pub alias: Option<String>,
    pub peer: Option<Peer>,
    pub tls: Option<Tls>,
    /// It does not answer, so what is under way to it is lost once somebody else owns its slots.
    pub silent: bool,
}

/// What the writer is told.
pub enum Order {
    Batch(Batch),
    Route(Route),
    /// End.
    Abort,
}

/// How the writer writes.
pub struct WriterSettings {
    pub target: Target,
    /// WAIT: replicas and milliseconds.
    pub wait: Option<(u32, u64)>,
    /// A node that owes replies and says nothing for so long is dialled anew.
    pub silence_ns: u64,
    pub connect_ns: u64,
}

/// How an address that only a redirect named is reached.
pub type Dial = Box<dyn Fn(&str) -> (Option<Peer>, Option<Tls>) + Send>;

/// What other threads share with the writer.
pub struct WriterShared {
    pub orders: Mutex<VecDeque<Order>>,
    pub window: Window,
    pub stats: Stats,
    /// Why it ended by itself.
    pub fatal: Mutex<Option<String>>,
}

/// What the writer says.
pub enum Said {
    Ack(Ack),
    /// For the operator.
    Note(String),
}

/// See the module.
pub struct Writer {
    settings: WriterSettings,
    shared: Arc<WriterShared>,
    said: Sender<Said>,
    doubt: Box<dyn Fn() + Send>,
    dial: Dial,
    encoder: Encoder,
    /// For each slot a key of our own, to be written before WAIT.
    wait_keys: Vec<Vec<u8>>,
    nodes: Vec<Node>,
    owner: Vec<u16>,
    /// Which nodes own slots.
    owns: Vec<bool>,
    slots: Vec<Slot>,
    held: HashMap<u16, Held>,
    /// Held slots are to be looked at in this turn,
    look: bool,
    /// or at this time.
    look_at: u64,
    works: VecDeque<Work>,
    /// Number of the first of `works`.
    first: u64,
    noted: HashMap<String, Instant>,
    by_connection: HashMap<Id, u16>,
}

struct Node {
    address: String,
    alias: Option<String>,
    peer: Option<Peer>,
    tls: Option<Tls>,
    connection: Option<Id>,
    greeted: Greeted,
    dial_at: u64,
    backoff: u64,
    flying: VecDeque<Flying>,
    /// Replied to, and not yet at the replicas.
    unconfirmed: VecDeque<(u64, u32)>,
    /// Calls were sent behind the last WAIT.
    wait_due: bool,
    /// This connection has written something that its replicas are sent.
    wrote: bool,
    splitter: Splitter,
    scanner: Scanner,
    heard_at: u64,
    /// Client id and run id of the last connection.
    last: Option<(i64, String)>,
    own: (Option<i64>, String),
    asked: VecDeque<Greeting>,
    /// The last failure to reach it was told.
    told: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Greeted {
    No,
    Asked,
    Ready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greeting {
    Auth,
    Name,
    Select,
    ClientId,
    Server,
    Script,
    Kill,
}

/// What the next reply of a node answers.
enum Flying {
    Call {
        work: u64,
        call: u32,
        left: u16,
        trouble: Option<Trouble>,
    },
    /// WAIT.
    Wait,
    /// The write before the first WAIT of a connection.
    Wrote,
    /// SCRIPT LOAD.
    Other,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    flying: u32,
    node: u16,
    held: bool,
    tries: u8,
}

#[derive(Default)]
struct Held {
    /// In their order.
    queue: VecDeque<(u64, u32)>,
    due: u64,
    /// The slot is on its way to this node, and so is the first call's key.
    asking: Option<u16>,
    /// One call at a time: some keys are here and some there.
    migrating: bool,
}

struct Work {
    batch: Batch,
    encoded: Encoded,
    /// The next record to encode.
    next: usize,
    /// Calls not yet done.
    left: usize,
    /// Of these in the queues of held slots.
    parked: usize,
    rounds: u64,
    dead: Vec<Letter>,
    /// Acknowledged; stands until those before it are.
    done: bool,
}

#[derive(Clone, Debug)]
enum Trouble {
    Moved(u16, String),
    Ask(String),
    TryAgain,
    NoScript,
    /// A message before it has not run.
    Gap,
    /// Will pass: the word in front.
    Passing(String),
    Poison(String),
    /// Nothing that goes on would help.
    Fatal(String),
}

impl Writer {
    pub fn new(
        settings: WriterSettings,
        shared: Arc<WriterShared>,
        encoder: Encoder,
        said: Sender<Said>,
        doubt: Box<dyn Fn() + Send>,
        dial: Dial,
    ) -> Writer {
        Writer {
            wait_keys: if settings.wait.is_some() { mark_keys("unslow:sink-wait") } else { Vec::new() },
            dial,
            settings,
            shared,
            said,
            doubt,
            encoder,
            nodes: Vec::new(),
            owner: vec![NOBODY; usize::from(SLOTS)],
            owns: Vec::new(),
            slots: vec![Slot::default(); usize::from(SLOTS)],
            held: HashMap::new(),
            look: false,
            look_at: u64::MAX,
            works: VecDeque::new(),
            first: 0,
            noted: HashMap::new(),
            by_connection: HashMap::new(),
        }
    }

    fn note(&mut self, text: String) {
        // The same once in ten seconds.
        let now = Instant::now();
        if self.noted.len() > 1000 {
            self.noted.clear();
        }
        if self.noted.get(&text).is_some_and(|at| now.duration_since(*at).as_secs() < 10) {
            return;
        }
        self.noted.insert(text.clone(), now);
        let _ = self.said.send(Said::Note(text)); // nobody listens only while it ends
    }

    fn fail(&mut self, io: &mut Io, why: String) {
        self.shared.fatal.lock().expect("no thread panicked").get_or_insert(why);
        io.stop();
    }

    fn obey(&mut self, io: &mut Io) {
        loop {
            let order = self.shared.orders.lock().expect("no thread panicked").pop_front();
            match order {
                None => return,
                Some(Order::Batch(batch)) => {
                    let encoded = self.encoder.begin(&batch);
                    if self.works.is_empty() {
                        self.first = batch.number;
                    }
                    self.works.push_back(Work {
                        batch,
                        encoded,
                        next: 0,
                        left: 0,
                        parked: 0,
                        rounds: 1,
                        dead: Vec::new(),
                        done: false,
                    });
                }
                Some(Order::Route(route)) => self.reroute(io, route),
                Some(Order::Abort) => io.stop(),
            }
        }
    }

    fn node(&self, address: &str) -> Option<u16> {
        let named = |n: &Node| n.address == address || n.alias.as_deref() == Some(address);
        self.nodes.iter().position(named).map(|n| n as u16)
    }

    fn add_node(&mut self, address: String, peer: Option<Peer>, tls: Option<Tls>) -> u16 {
        self.nodes.push(Node {
            address,
            alias: None,
            peer,
            tls,
            connection: None,
            greeted: Greeted::No,
            dial_at: 0,
            backoff: 0,
            flying: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            wait_due: false,
            wrote: false,
            splitter: Splitter::default(),
            scanner: Scanner::default(),
            heard_at: 0,
            last: None,
            own: (None, String::new()),
            asked: VecDeque::new(),
            told: false,
        });
        self.nodes.len() as u16 - 1
    }

    fn reroute(&mut self, io: &mut Io, route: Route) {
        let mut numbers = Vec::new();
        for node in route.nodes {
            let number = match self.node(&node.address) {
                Some(number) => {
                    let known = &mut self.nodes[usize::from(number)];
                    known.peer = node.peer.or(known.peer.take());
                    known.tls = node.tls.or(known.tls.take());
                    number
                }
                None => self.add_node(node.address, node.peer, node.tls),
            };
            self.nodes[usize::from(number)].alias = node.alias;
            numbers.push((number, node.silent));
        }
        for held in self.held.values_mut() {
            held.asking = None; // asked again, of whoever owns it now
        }
        for (slot, owner) in route.slots.iter().enumerate() {
            // A slot that nobody owns for a moment keeps its last owner: that one says best what is to be done.
            if let Some((number, _)) = numbers.get(usize::from(*owner)) {
                self.owner[slot] = *number;
            }
        }
        self.count_owners();
        for (number, owns) in (0u16..).zip(self.owns.clone()) {
            let silent = numbers.iter().find(|(n, _)| *n == number).is_some_and(|(_, silent)| *silent);
            if silent && !owns && self.nodes[usize::from(number)].connection.is_some() {
                self.lose(io, number, "it was replaced while it did not answer");
            }
        }
        self.look = true;
    }

    fn count_owners(&mut self) {
        self.owns = vec![false; self.nodes.len()];
        for owner in self.owner.iter().filter(|o| **o != NOBODY) {
            self.owns[usize::from(*owner)] = true;
        }
    }

    fn dial(&mut self, io: &mut Io, number: u16, now: u64) {
        let node = &mut self.nodes[usize::from(number)];
        let Some(peer) = &node.peer else {
            // A name that does not resolve, or that only a redirect said: the watcher will know.
            let address = node.address.clone();
            self.back_off(number, now);
            return self.note(format!("{address}: there is no address for that name yet"));
        };
        match io.connect(peer, node.tls.as_ref(), now + self.settings.connect_ns) {
            Ok(id) => {
                node.connection = Some(id);
                node.greeted = Greeted::No;
                node.heard_at = now;
                self.by_connection.insert(id, number);
            }
            Err(e) => {
                let address = node.address.clone();
                self.back_off(number, now);
                self.note(format!("{address}: {e}"));
            }
        }
    }

    fn back_off(&mut self, number: u16, now: u64) {
        let node = &mut self.nodes[usize::from(number)];
        node.backoff = (node.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
        node.dial_at = now + jittered(node.backoff);
    }

    /// Who is on the other side, in one round trip.
    fn greet(&mut self, io: &mut Io, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        let Some(id) = node.connection else { return };
        let out = io.output(id);
        let target = &self.settings.target;
        node.asked.clear();
        match (&target.user, &target.password) {
            (Some(user), password) => {
                write_command(out, &["AUTH", user, password.as_ref().map_or("", |p| p.reveal())]);
                node.asked.push_back(Greeting::Auth);
            }
            (None, Some(password)) => {
                write_command(out, &["AUTH", password.reveal()]);
                node.asked.push_back(Greeting::Auth);
            }
            (None, None) => {}
        }
        write_command(out, &["CLIENT", "SETNAME", "unslow-sink"]);
        write_command(out, &["CLIENT", "ID"]);
        write_command(out, &["INFO", "server"]);
        node.asked.extend([Greeting::Name, Greeting::ClientId, Greeting::Server]);
        if target.db != 0 {
            write_command(out, &["SELECT", &target.db.to_string()]);
            node.asked.push_back(Greeting::Select);
        }
        if self.encoder.script().is_some() {
            write_command(out, &["SCRIPT", "LOAD", GUARD]);
            node.asked.push_back(Greeting::Script);
        }
        node.greeted = Greeted::Asked;
        node.heard_at = now_ns();
        node.wrote = false;
        node.own = (None, String::new());
    }

    fn greeting(&mut self, io: &mut Io, number: u16, value: Value) {
        let node = &mut self.nodes[usize::from(number)];
        let Some(asked) = node.asked.pop_front() else { return };
        let address = node.address.clone();
        match (asked, &value) {
            (Greeting::Auth, Value::Error(text))
                if text.contains("without any password") || text.contains("no password is set") => {}
            // Full, or loading: that passes.
            (Greeting::Auth, Value::Error(text))
                if !["WRONGPASS", "NOAUTH", "ERR invalid", "ERR wrong"].iter().any(|w| text.starts_with(w)) =>
            {
                return self.lose(io, number, "it takes no password just now");
            }
            // The server's own words may repeat what was sent.
            (Greeting::Auth, Value::Error(_)) => {
                return self.fail(io, format!("{address}: password refused; check UNSLOW_PASSWORD or the URL"));
            }
            (Greeting::Name | Greeting::Kill | Greeting::Server | Greeting::ClientId, Value::Error(text)) => {
                // Only what stands in the way of every other command.
                if text.starts_with("NOAUTH") {
                    return self.fail(
                        io,
                        format!(
                            "{address}: it wants a password; set UNSLOW_PASSWORD, or use redis://user:password@host"
                        ),
                    );
                }
                if asked == Greeting::Kill {
                    self.note(format!("{address}: CLIENT KILL is denied ({text}), so what the last connection left unread may run late; grant client|kill"));
                }
            }
            (Greeting::Select | Greeting::Script, Value::Error(text)) => {
                if matches!(classify(text), Trouble::Passing(_)) {
                    return self.lose(io, number, &text.clone());
                }
                return self.fail(io, format!("{address}: {text}"));
            }
            (Greeting::ClientId, Value::Integer(n)) => node.own.0 = Some(*n),
            (Greeting::Server, _) => {
                let info = Info::parse(&value.text().unwrap_or_default());
                node.own.1 = info.get("run_id").unwrap_or_default().to_string();
            }
            _ => {}
        }
        let node = &mut self.nodes[usize::from(number)];
        if !node.asked.is_empty() {
            return;
        }
        if let (Some((last, run)), Some(id)) = (node.last.take(), node.connection)
            && run == node.own.1
            && !run.is_empty()
            && Some(last) != node.own.0
        {
            write_command(io.output(id), &["CLIENT", "KILL", "ID", &last.to_string()]);
            node.asked.push_back(Greeting::Kill);
            return;
        }
        node.greeted = Greeted::Ready;
        node.backoff = 0;
        node.splitter = Splitter::default();
        let back = std::mem::take(&mut node.told);
        self.look = true;
        if back {
            self.note(format!("{address} is back"));
        }
    }

    /// The connection is no more: what was under way is to be sent again, in order.
    fn lose(&mut self, io: &mut Io, number: u16, why: &str) {
        let node = &mut self.nodes[usize::from(number)];
        if let Some(id) = node.connection.take() {
            self.by_connection.remove(&id);
            io.close(id);
        }
        let now = now_ns();
        let node = &mut self.nodes[usize::from(number)];
        node.greeted = Greeted::No;
        node.wait_due = false;
        if let (Some(id), run) = std::mem::take(&mut node.own) {
            node.last = Some((id, run));
        }
        let told = std::mem::replace(&mut node.told, true);
        let address = node.address.clone();
        let mut calls: Vec<(u64, u32)> = node.unconfirmed.drain(..).collect();
        calls.extend(node.flying.drain(..).filter_map(|f| match f {
            Flying::Call { work, call, .. } => Some((work, call)),
            Flying::Wait | Flying::Wrote | Flying::Other => None,
        }));
        let lost = calls.len();
        for held in self.held.values_mut().filter(|h| h.asking == Some(number)) {
            held.asking = None;
        }
        for (work, call) in calls {
            let slot = self.call(work, call).slot;
            self.slots[usize::from(slot)].flying -= 1;
            self.hold(slot, (work, call), now);
        }
        if lost > 0 {
            self.shared.stats.count_retries("connection", lost as u64);
        }
        self.back_off(number, now);
        self.look = true;
        (self.doubt)();
        if !told {
            self.note(format!("{address}: {why}; {lost} calls will be sent again"));
        }
    }

    fn work(&mut self, number: u64) -> &mut Work {
        &mut self.works[(number - self.first) as usize]
    }

    fn call(&self, work: u64, call: u32) -> crate::encode::Call {
        self.works[(work - self.first) as usize].encoded.calls[call as usize]
    }

    /// Puts a call into the queue of its slot, at its place.
    fn hold(&mut self, slot: u16, at: (u64, u32), due: u64) {
        self.work(at.0).parked += 1;
        self.slots[usize::from(slot)].held = true;
        let held = self.held.entry(slot).or_default();
        let place = held.queue.partition_point(|other| *other < at);
        held.queue.insert(place, at);
        held.due = held.due.max(due);
    }

    /// Whether a node is there and reads what it is sent.
    fn takes(&self, io: &mut Io, number: u16) -> bool {
        let node = self.nodes.get(usize::from(number)).filter(|n| n.greeted == Greeted::Ready);
        node.and_then(|n| n.connection).is_some_and(|id| io.unsent(id) <= UNSENT_MAX)
    }

    fn dispatch(&mut self, io: &mut Io, work: u64, call: u32) {
        let slot = self.call(work, call).slot;
        let state = self.slots[usize::from(slot)];
        if !state.held {
            let owner = self.owner[usize::from(slot)];
            if self.takes(io, owner) && (state.flying == 0 || state.node == owner) {
                return self.send(io, owner, work, call, false);
            }
            self.look = true;
        }
        self.hold(slot, (work, call), 0);
    }

    fn send(&mut self, io: &mut Io, number: u16, work: u64, call: u32, asking: bool) {
        let it = self.call(work, call);
        let node = &mut self.nodes[usize::from(number)];
        let Some(id) = node.connection else { return };
        let bytes = &self.works[(work - self.first) as usize].encoded.bytes[it.from..it.to];
        if node.flying.is_empty() {
            node.heard_at = now_ns();
        }
        if asking {
            // ASKING holds for one command.
            let mut rest = bytes;
            for _ in 0..it.replies {
                let Ok(Scan::Complete(len)) = Scanner::default().scan(rest) else { break };
                let out = io.output(id);
                out.extend_from_slice(b"*1\r\n$6\r\nASKING\r\n");
                out.extend_from_slice(&rest[..len]);
                rest = &rest[len..];
            }
        } else {
            let out = io.output(id);
            out.extend_from_slice(bytes);
            if out.len() >= FLUSH_BYTES {
                io.flush(id);
            }
        }
        let left = if asking { it.replies * 2 } else { it.replies };
        node.flying.push_back(Flying::Call { work, call, left, trouble: None });
        node.wait_due = true;
        let slot = &mut self.slots[usize::from(it.slot)];
        (slot.node, slot.flying) = (number, slot.flying + 1);
    }

    /// A reply that answers something under way. `error` is its text when it is one.
    fn reply(&mut self, io: &mut Io, number: u16, error: Option<&str>, integer: Option<i64>) {
        let node = &mut self.nodes[usize::from(number)];
        match node.flying.front_mut() {
            None => self.lose(io, number, "it answered what nobody asked"),
            Some(Flying::Other) => {
                node.flying.pop_front();
            }
            Some(Flying::Wrote) => {
                node.flying.pop_front();
                node.wrote = error.is_none();
            }
            Some(Flying::Wait) => {
                node.flying.pop_front();
                self.waited(io, number, error.map(str::to_string), integer);
            }
            Some(Flying::Call { work, call, left, trouble }) => {
                if integer == Some(0) && self.encoder.script().is_some() {
                    self.shared.stats.repeated.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(text) = error {
                    let new = classify(text);
                    // What passes weighs more than what does not: the call is sent again, and then it shows.
                    let heavier = match (&trouble, &new) {
                        (None, _) | (_, Trouble::Fatal(_)) => true,
                        (Some(Trouble::Poison(_)), new) => !matches!(new, Trouble::Poison(_)),
                        _ => false,
                    };
                    if heavier {
                        *trouble = Some(new);
                    }
                }
                *left -= 1;
                if *left == 0 {
                    let (work, call, trouble) = (*work, *call, trouble.take());
                    node.flying.pop_front();
                    match trouble {
                        None if self.settings.wait.is_some() => node.unconfirmed.push_back((work, call)),
                        trouble => self.settle(io, work, call, trouble),
                    }
                }
            }
        }
    }

    fn waited(&mut self, io: &mut Io, number: u16, error: Option<String>, integer: Option<i64>) {
        let Some((replicas, _)) = self.settings.wait else { return };
        if let Some(error) = error {
            return match classify(&error) {
                Trouble::Fatal(text) => self.fail(io, format!("WAIT: {text}")),
                _ => self.lose(io, number, &error),
            };
        }
        let owns = self.owns[usize::from(number)];
        let node = &mut self.nodes[usize::from(number)];
        if !node.wrote && owns {
            node.wait_due = true; // the write before it was refused: it counted from nothing
            return;
        }
        let enough = integer.is_some_and(|n| n >= i64::from(replicas));
        if !enough {
            node.wait_due = true;
            let address = node.address.clone();
            self.shared.stats.count_retries("wait", 1);
            self.note(format!(
                "{address}: {} of {replicas} replicas have acknowledged; offsets wait for them",
                integer.unwrap_or(0)
            ));
            return;
        }
        // Replies come in order, so all that were answered before this one were sent before it as well.
        let confirmed: Vec<_> = node.unconfirmed.drain(..).collect();
        for (work, call) in confirmed {
            self.settle(io, work, call, None);
        }
    }

    /// A call has its answer.
    fn settle(&mut self, io: &mut Io, work: u64, call: u32, trouble: Option<Trouble>) {
        let it = self.call(work, call);
        let now = now_ns();
        let slot = &mut self.slots[usize::from(it.slot)];
        slot.flying -= 1;
        self.look |= slot.held && slot.flying == 0;
        let at = (work, call);
        // It was answered, but one before it did not run: again, behind that one.
        let early = slot.held && self.held.get(&it.slot).and_then(|h| h.queue.front()).is_some_and(|first| *first < at);
        if early && matches!(trouble, None | Some(Trouble::Poison(_))) {
            return self.hold(it.slot, at, 0);
        }
        let Some(trouble) = trouble else {
            slot.tries = 0;
            return self.done(work);
        };
        let (name, delay) = match &trouble {
            Trouble::Fatal(text) => {
                let text = format!("{text} ({})", self.place(work, call));
                return self.fail(io, text);
            }
            Trouble::Poison(text) => {
                let reason = text.clone();
                self.bury(work, it.record, reason);
                return self.done(work);
            }
            Trouble::Moved(..) => ("moved", 0),
            Trouble::Ask(_) => ("ask", 0),
            Trouble::TryAgain => ("tryagain", 10 * MILLISECOND),
            Trouble::NoScript => ("noscript", 0),
            Trouble::Gap => ("gap", 0),
            Trouble::Passing(word) => (word.as_str(), BACKOFF_MIN),
        };
        if !matches!(trouble, Trouble::Gap) {
            slot.tries = slot.tries.saturating_add(1);
        }
        let tries = u32::from(slot.tries);
        self.shared.stats.count_retries(&name.to_lowercase(), 1);
        // The first redirect costs nothing; whoever is sent in circles waits longer and longer.
        let delay = match delay {
            0 if tries <= 3 => 0,
            delay => jittered((delay.max(MILLISECOND) << tries.saturating_sub(1).min(8)).min(BACKOFF_MAX)),
        };
        let rounds = &mut self.work(work).rounds;
        *rounds = (*rounds).max(u64::from(tries) + 1);
        self.hold(it.slot, at, now + delay);
        let held = self.held.get_mut(&it.slot).expect("just held");
        match trouble {
            Trouble::Moved(slot, address) => {
                let owner = match self.node(&address) {
                    Some(number) => number,
                    None => self.add_redirected(address),
                };
                if slot < SLOTS {
                    self.owner[usize::from(slot)] = owner;
                    self.count_owners();
                }
                (self.doubt)();
            }
            Trouble::Ask(address) => {
                held.migrating = true;
                // Only the first may follow: those behind it are asked about when it is their turn.
                if held.queue.front() == Some(&at) {
                    let number = match self.node(&address) {
                        Some(number) => number,
                        None => self.add_redirected(address),
                    };
                    self.held.get_mut(&it.slot).expect("just held").asking = Some(number);
                }
            }
            Trouble::TryAgain => held.migrating = true,
            Trouble::NoScript => {
                let node = &mut self.nodes[usize::from(self.slots[usize::from(it.slot)].node)];
                if let Some(id) = node.connection
                    && !matches!(node.flying.back(), Some(Flying::Other))
                {
                    write_command(io.output(id), &["SCRIPT", "LOAD", GUARD]);
                    node.flying.push_back(Flying::Other);
                }
            }
            Trouble::Passing(word) => {
                (self.doubt)();
                let node = usize::from(self.slots[usize::from(it.slot)].node);
                let address = self.nodes[node].address.clone();
                self.note(format!("{address} says {word}; waiting until that has passed"));
            }
            Trouble::Gap | Trouble::Poison(_) | Trouble::Fatal(_) => {}
        }
        self.look = true;
    }

    /// A node that only a redirect named.
    fn add_redirected(&mut self, address: String) -> u16 {
        let (peer, tls) = (self.dial)(&address);
        let number = self.add_node(address, peer, tls);
        self.owns.push(false);
        number
    }

    fn place(&self, work: u64, call: u32) -> String {
        let batch = &self.works[(work - self.first) as usize].batch;
        let record = &batch.records[self.call(work, call).record as usize];
        let origin = &batch.origins[record.origin as usize];
        format!("{} [{}] at {}", origin.topic, origin.partition, record.offset)
    }

    /// Sets a message aside, with the reason.
    fn bury(&mut self, work: u64, record: u32, reason: String) {
        let it = self.work(work);
        let record = it.batch.records[record as usize];
        if it
            .dead
            .iter()
            .all(|l| (l.origin.as_ref(), l.offset) != (&*it.batch.origins[record.origin as usize], record.offset))
        {
            let letter = Letter::new(&it.batch, &record, reason);
            it.dead.push(letter);
        }
    }

    fn done(&mut self, work: u64) {
        let it = self.work(work);
        it.left -= 1;
        if it.left == 0 && it.next == it.batch.records.len() {
            self.acknowledge(work);
        }
    }

    fn acknowledge(&mut self, work: u64) {
        let it = self.work(work);
        it.done = true;
        let took = it.batch.ready.map_or(Duration::ZERO, |ready| ready.elapsed());
        let (calls, records, rounds) = (it.encoded.calls.len(), it.batch.records.len(), it.rounds);
        let bytes = it.batch.weight() + it.encoded.bytes.len();
        let ack =
            Ack { number: it.batch.number, ends: it.batch.ends(), dead: std::mem::take(&mut it.dead), records, took };
        // Its memory goes now, its place when those before it are done.
        it.batch = Batch { number: it.batch.number, ..Batch::default() };
        (it.encoded, it.next) = (Encoded::default(), 0);
        self.shared.stats.batch(records as u64, calls as u64, rounds, took);
        self.shared.window.done(bytes);
        let _ = self.said.send(Said::Ack(ack)); // nobody listens only while it ends
        while self.works.front().is_some_and(|w| w.done) {
            self.works.pop_front();
            self.first += 1;
        }
    }

    /// Encodes and sends the next messages. True when there are more.
    fn encode(&mut self, io: &mut Io) -> bool {
        let Some(i) = self.works.iter().position(|w| !w.done && w.next < w.batch.records.len()) else { return false };
        let number = self.first + i as u64;
        let mut commands = 0;
        for _ in 0..SLICE_MESSAGES {
            let work = &mut self.works[i];
            if work.next == work.batch.records.len() {
                break;
            }
            let record = work.next as u32;
            let first = work.encoded.calls.len();
            let became = self.encoder.encode(&work.batch, record, &mut work.encoded);
            work.next += 1;
            match became {
                Became::Calls(n) => {
                    work.left += n;
                    for call in first..first + n {
                        commands += u64::from(work.encoded.calls[call].replies);
                    }
                    for call in first..first + n {
                        self.dispatch(io, number, call as u32);
                    }
                }
                Became::Nothing => self.shared.stats.skip(1),
                Became::Poison(reason) => self.bury(number, record, reason),
            }
        }
        self.shared.stats.commands.fetch_add(commands, Ordering::Relaxed);
        let work = &mut self.works[i];
        if work.next < work.batch.records.len() {
            return true;
        }
        self.shared.window.grew(work.encoded.bytes.len());
        if work.left == 0 {
            self.acknowledge(number);
        }
        self.works.iter().any(|w| !w.done && w.next < w.batch.records.len())
    }

    /// Sends what held slots wait with, where it may go now. Returns when to look again.
    fn release(&mut self, io: &mut Io, now: u64) -> Option<u64> {
        self.look = false;
        let mut next = None;
        let slots: Vec<u16> = self.held.keys().copied().collect();
        for slot in slots {
            let held = &self.held[&slot];
            if self.slots[usize::from(slot)].flying > 0 {
                continue; // its reply makes us look again
            }
            if held.due > now {
                next = Some(next.map_or(held.due, |n: u64| n.min(held.due)));
                continue;
            }
            let to = held.asking.unwrap_or(self.owner[usize::from(slot)]);
            if !self.takes(io, to) {
                continue; // its greeting, or drained(), makes us look again
            }
            self.chain(slot);
            let held = self.held.get_mut(&slot).expect("it is one of the keys");
            let one_by_one = held.migrating;
            let asking = held.asking.take().is_some();
            held.due = 0;
            let mut queue = std::mem::take(&mut held.queue);
            let count = if one_by_one { 1.min(queue.len()) } else { queue.len() };
            let going: Vec<_> = queue.drain(..count).collect();
            if queue.is_empty() {
                self.held.remove(&slot);
                self.slots[usize::from(slot)].held = false;
            } else {
                self.held.get_mut(&slot).expect("still there").queue = queue;
            }
            for (work, call) in going {
                self.work(work).parked -= 1;
                self.send(io, to, work, call, asking);
            }
        }
        next
    }

    /// Nothing of this slot is under way: each call of its queue follows the one before it, and the first follows nobody.
    fn chain(&mut self, slot: u16) {
        if self.encoder.script().is_none() {
            return;
        }
        let queue: Vec<(u64, u32)> = self.held[&slot].queue.iter().copied().collect();
        let mut before: HashMap<usize, Offset> = HashMap::new();
        for (work, call) in queue {
            let first = self.first;
            let it = &mut self.works[(work - first) as usize];
            let call = it.encoded.calls[call as usize];
            let record = &it.batch.records[call.record as usize];
            let origin = Arc::as_ptr(&it.batch.origins[record.origin as usize].id).addr();
            let last = before.insert(origin, record.offset);
            Encoder::set_before(&mut it.encoded.bytes, &call, last);
        }
    }
}

impl Handler for Writer {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        self.obey(io);
        let now = now_ns();
        let mut next: Option<u64> = None;
        let mut at = |t: u64| next = Some(next.map_or(t, |n| n.min(t)));
        // In this order, because what is encoded may be held.
        if self.encode(io) {
            at(now);
        }
        if self.look || self.look_at <= now {
            self.look_at = self.release(io, now).unwrap_or(u64::MAX);
        }
        if self.look_at < u64::MAX {
            at(self.look_at);
        }
        for number in 0..self.nodes.len() {
            let node = &self.nodes[number];
            // Owners are always connected; others only while something is to go to them.
            let wanted = || self.owns[number] || self.held.values().any(|h| h.asking == Some(number as u16));
            if node.connection.is_none() && wanted() {
                if node.dial_at <= now {
                    self.dial(io, number as u16, now);
                }
                if self.nodes[number].connection.is_none() {
                    at(self.nodes[number].dial_at);
                }
            }
            let node = &self.nodes[number];
            if node.connection.is_some() && (!node.flying.is_empty() || node.greeted == Greeted::Asked) {
                let until = node.heard_at + self.settings.silence_ns;
                if until <= now {
                    let seconds = self.settings.silence_ns as f64 / 1e9;
                    self.lose(io, number as u16, &format!("no answer for {seconds:.0} s"));
                    at(now + BACKOFF_MIN);
                } else {
                    at(until);
                }
            }
        }
        if let Some((replicas, ms)) = self.settings.wait
            && self.works.iter().all(|w| w.next == w.batch.records.len())
        {
            for (number, node) in (0u16..).zip(&mut self.nodes) {
                let Some(id) = node.connection.filter(|_| node.wait_due && node.greeted == Greeted::Ready) else {
                    continue;
                };
                // WAIT counts from the connection's own last write, and what is sent again may have changed nothing.
                // Any of its slots: one of them may be on its way elsewhere.
                let from = rand::random_range(0..self.owner.len());
                if !node.wrote
                    && let Some(slot) =
                        (from..).take(self.owner.len()).map(|n| n % SLOTS as usize).find(|n| self.owner[*n] == number)
                {
                    write_command(io.output(id), &[&b"SET"[..], &self.wait_keys[slot], b"", b"PX", b"60000"]);
                    node.flying.push_back(Flying::Wrote);
                }
                node.wait_due = false;
                write_command(io.output(id), &["WAIT", &replicas.to_string(), &ms.to_string()]);
                node.flying.push_back(Flying::Wait);
            }
        }
        let parked = self.works.iter().filter(|w| !w.done && w.parked == w.left && w.next == w.batch.records.len());
        self.shared.window.parked(parked.count());
        next
    }

    fn opened(&mut self, io: &mut Io, id: Id) {
        if let Some(number) = self.by_connection.get(&id) {
            self.greet(io, *number);
        }
    }

    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize {
        let Some(&number) = self.by_connection.get(&id) else { return bytes.len() };
        let index = usize::from(number);
        self.nodes[index].heard_at = now_ns();
        let mut at = 0;
        while at < bytes.len() && self.nodes[index].connection == Some(id) {
            if self.nodes[index].greeted != Greeted::Ready {
                match self.nodes[index].scanner.scan(&bytes[at..]) {
                    Ok(Scan::Complete(len)) => {
                        let value = Value::from(Frame::new(&bytes[at..at + len]));
                        at += len;
                        self.greeting(io, number, value);
                    }
                    Ok(Scan::Incomplete) => return at,
                    Err(e) => {
                        self.lose(io, number, &format!("that is no Redis: {e}"));
                        return bytes.len();
                    }
                }
                continue;
            }
            match self.nodes[index].splitter.split(&bytes[at..]) {
                Ok(Split::Done(done)) => {
                    let frame = &bytes[at..at + done.end];
                    at += done.end;
                    match done.kind {
                        b'-' | b'!' => {
                            let text = String::from_utf8_lossy(Frame::new(frame).text()).into_owned();
                            self.reply(io, number, Some(&text), None);
                        }
                        b':' => self.reply(io, number, None, Frame::new(frame).integer()),
                        b'>' => {}
                        _ => self.reply(io, number, None, None),
                    }
                }
                Ok(Split::More { consumed }) => return at + consumed,
                Err(e) => {
                    self.lose(io, number, &format!("that is no Redis: {e}"));
                    return bytes.len();
                }
            }
        }
        at
    }

    fn closed(&mut self, io: &mut Io, id: Id, why: Closed) {
        if let Some(number) = self.by_connection.remove(&id) {
            self.nodes[usize::from(number)].connection = None;
            self.lose(io, number, &why.to_string());
        }
    }

    fn timer(&mut self, _io: &mut Io, _key: u64) {}

    fn drained(&mut self, _io: &mut Io, _id: Id) {
        self.look = true;
    }
}

fn jittered(ns: u64) -> u64 {
    ns / 2 + rand::random_range(0..ns / 2 + 1)
}

/// What an error reply means for the call it answers.
fn classify(text: &str) -> Trouble {
    let mut words = text.split(' ');
    let first = words.next().unwrap_or_default();
    match first {
        "MOVED" => match (words.next().and_then(|s| s.parse().ok()), words.next()) {
            (Some(slot), Some(address)) if !address.starts_with(':') => Trouble::Moved(slot, address.to_string()),
            // No host: the one that was asked, under another port; the watcher will know.
            _ => Trouble::Passing(first.into()),
        },
        "ASK" => match words.nth(1) {
            Some(address) if !address.starts_with(':') => Trouble::Ask(address.to_string()),
            _ => Trouble::Passing(first.into()),
        },
        "TRYAGAIN" => Trouble::TryAgain,
        "NOSCRIPT" => Trouble::NoScript,
        "UNSLOWGAP" => Trouble::Gap,
        "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" => {
            Trouble::Passing(first.into())
        }
        "NOAUTH" | "NOPERM" | "WRONGPASS" => Trouble::Fatal(text.to_string()),
        // Scripts put the inner error behind words of their own.
        _ if text.contains("-UNSLOWGAP") => Trouble::Gap,
        _ => Trouble::Poison(text.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use unslow_reactor::Reactor;

    use super::*;
    use crate::encode::tests::{batch, commands};
    use crate::mapping::tests::mapping;

    #[test]
    fn tells_what_passes_from_what_does_not() {
        for (text, passes) in [
            ("MOVED 3999 127.0.0.1:6381", true),
            ("ASK 3999 127.0.0.1:6381", true),
            ("MOVED 3999 :6381", true),
            ("OOM command not allowed when used memory > 'maxmemory'.", true),
            ("LOADING Redis is loading the dataset in memory", true),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", false),
            ("ERR value is not an integer or out of range", false),
            ("CROSSSLOT Keys in request don't hash to the same slot", false),
        ] {
            assert_eq!(!matches!(classify(text), Trouble::Poison(_) | Trouble::Fatal(_)), passes, "{text}");
        }
        assert!(matches!(classify("NOPERM this user has no permissions"), Trouble::Fatal(_)));
    }

    #[test]
    fn error_replies_are_classified_by_their_first_word() {
        for (text, expected) in [
            ("MOVED 3999 127.0.0.1:6381", r#"Moved(3999, "127.0.0.1:6381")"#),
            ("MOVED 3999 :6381", r#"Passing("MOVED")"#),
            ("MOVED 99999 h:1", r#"Passing("MOVED")"#),
            ("ASK 3999 127.0.0.1:6381", r#"Ask("127.0.0.1:6381")"#),
            ("ASK 3999 :6381", r#"Passing("ASK")"#),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "TryAgain"),
            ("NOSCRIPT No matching script.", "NoScript"),
            ("UNSLOWGAP a message before this one has not run yet", "Gap"),
            ("ERR Error running script: @user_script: -UNSLOWGAP a message", "Gap"),
            ("NOREPLICAS Not enough good replicas to write.", r#"Passing("NOREPLICAS")"#),
            ("NOAUTH Authentication required.", r#"Fatal("NOAUTH Authentication required.")"#),
            ("OOMPH is no OOM", r#"Poison("OOMPH is no OOM")"#),
        ] {
            assert_eq!(format!("{:?}", classify(text)), expected, "{text}");
        }
    }

    const A: &str = "127.0.0.1:1";
    const B: &str = "127.0.0.1:2";
    /// A key of the first node, and its slot.
    const KEY: (&str, u16) = ("k", 7629);
    /// A key of the second node.
    const OTHER: &str = "foo";

    /// A writer on an event loop that does not run: its output stays in the buffers of its connections, and the test plays
    /// the two servers, each with half of the slots. Nothing listens at their addresses.
    struct Rig {
        reactor: Reactor,
        writer: Writer,
        hear: Receiver<Said>,
        shared: Arc<WriterShared>,
        batches: u64,
    }

    impl Rig {
        fn new(wait: Option<(u32, u64)>) -> Rig {
            let node = |address: &str| RouteNode {
                address: address.into(),
                alias: None,
                peer: Some(Peer::Tcp(address.parse().unwrap())),
                tls: None,
                silent: false,
            };
            let slots = (0..SLOTS).map(|slot| u16::from(slot >= SLOTS / 2)).collect();
            let route = Order::Route(Route { nodes: vec![node(A), node(B)], slots });
            let shared = Arc::new(WriterShared {
                orders: Mutex::new([route].into()),
                window: Window::default(),
                stats: Stats::default(),
                fatal: Mutex::default(),
            });
            let (said, hear) = channel();
            let hour = 3600 * 1000 * MILLISECOND;
            let target = Target::parse(A).unwrap();
            let settings = WriterSettings { target, wait, silence_ns: hour, connect_ns: hour };
            let map = "[[map]]\nformat = \"raw\"\ncommands = [\"SET {$key} {$value}\"]";
            let encoder = Encoder::new(mapping(map, true, false).unwrap_or_else(|e| panic!("{e}")), true, None);
            let dial: Dial = Box::new(|_| (None, None));
            let writer = Writer::new(settings, shared.clone(), encoder, said, Box::new(|| {}), dial);
            Rig { reactor: Reactor::new().unwrap(), writer, hear, shared, batches: 0 }
        }

        /// With both nodes connected.
        fn connected(wait: Option<(u32, u64)>) -> Rig {
            let mut rig = Rig::new(wait);
            rig.turn();
            rig.open(0, 11, "run");
            rig.open(1, 12, "run");
            rig
        }

        fn batch(&mut self, messages: &[(&str, &str)]) {
            let messages: Vec<(&str, Option<&str>)> = messages.iter().map(|&(key, value)| (key, Some(value))).collect();
            let batch = Batch { number: self.batches, ..batch(&messages) };
            self.batches += 1;
            self.shared.window.took(batch.weight());
            self.shared.orders.lock().unwrap().push_back(Order::Batch(batch));
        }

        fn turn(&mut self) {
            self.writer.turn(self.reactor.io());
        }

        fn connection(&self, node: usize) -> Id {
            self.writer.nodes[node].connection.expect("it was dialled")
        }

        /// Establishes a connection; the server greets with this CLIENT ID and run id.
        fn open(&mut self, node: usize, client_id: u64, run_id: &str) {
            let id = self.connection(node);
            self.writer.opened(self.reactor.io(), id);
            self.reactor.io().output(id).clear();
            let info = format!("run_id:{run_id}");
            self.answers(node, &format!("+OK\r\n:{client_id}\r\n${}\r\n{info}\r\n", info.len()));
        }

        fn answers(&mut self, node: usize, text: &str) {
            let id = self.connection(node);
            let used = self.writer.data(self.reactor.io(), id, text.as_bytes());
            assert_eq!(used, text.len(), "consumed of {text:?}");
        }

        /// Runs a turn and takes the commands for a node.
        fn sent(&mut self, node: usize) -> Vec<String> {
            self.turn();
            let id = self.connection(node);
            commands(&std::mem::take(self.reactor.io().output(id)))
        }

        /// Takes the acknowledged batches, each with offsets and reasons of its dead letters.
        fn done(&mut self) -> Vec<(u64, Vec<(String, String)>)> {
            let acks = self.hear.try_iter().filter_map(|said| match said {
                Said::Ack(ack) => Some(ack),
                Said::Note(_) => None,
            });
            let letters = |ack: &Ack| -> Vec<(String, String)> {
                ack.dead.iter().map(|l| (l.offset.to_string(), l.reason.clone())).collect()
            };
            acks.map(|ack| (ack.number, letters(&ack))).collect()
        }
    }

    #[test]
    fn calls_of_a_moved_slot_are_resent_in_order_after_in_flight_ones_return() {
        let mut rig = Rig::connected(None);
        rig.batch(&[(KEY.0, "1"), (KEY.0, "2"), (OTHER, "x"), (KEY.0, "3")]);
        assert_eq!(rig.sent(0), ["SET k 1", "SET k 2", "SET k 3"]);
        assert_eq!(rig.sent(1), ["SET foo x"]);
        rig.answers(1, "+OK\r\n");
        rig.answers(0, &format!("-MOVED {} {B}\r\n+OK\r\n", KEY.1));
        assert!(rig.sent(1).is_empty(), "in-flight calls are waited for");
        rig.answers(0, "+OK\r\n");
        assert_eq!(rig.sent(1), ["SET k 1", "SET k 2", "SET k 3"]);
        assert!(rig.done().is_empty());
        rig.answers(1, "+OK\r\n+OK\r\n+OK\r\n");
        assert_eq!(rig.done(), [(0, vec![])]);
        let now = rig.shared.stats.snapshot();
        assert_eq!((now.retries.get("moved"), now.done, now.round_trips), (Some(&1), 4, 2));
        assert_eq!(rig.shared.window.bytes(), 0);
    }

    #[test]
    fn calls_of_a_migrating_slot_are_sent_one_at_a_time() {
        let mut rig = Rig::connected(None);
        rig.batch(&[(KEY.0, "1"), (KEY.0, "2"), (KEY.0, "3")]);
        assert_eq!(rig.sent(0).len(), 3);
        rig.answers(0, &format!("-ASK {} {B}\r\n+OK\r\n+OK\r\n", KEY.1));
        assert_eq!((rig.sent(1), rig.sent(0)), (vec!["ASKING".to_string(), "SET k 1".to_string()], vec![]));
        rig.answers(1, "+OK\r\n+OK\r\n");
        // The owner has not changed.
        for value in [2, 3] {
            assert_eq!((rig.sent(0), rig.sent(1)), (vec![format!("SET k {value}")], vec![]));
            assert!(rig.done().is_empty());
            rig.answers(0, "+OK\r\n");
        }
        assert_eq!(rig.done(), [(0, vec![])]);
    }

    #[test]
    fn a_reconnect_kills_the_old_connection_before_anything_is_resent() {
        for (run_id, killed) in [("run", vec!["CLIENT KILL ID 11".to_string()]), ("another", vec![])] {
            let mut rig = Rig::connected(None);
            rig.batch(&[(KEY.0, "1"), (KEY.0, "2")]);
            assert_eq!(rig.sent(0).len(), 2);
            rig.answers(0, "+OK\r\n");
            let id = rig.connection(0);
            rig.reactor.io().close(id);
            rig.writer.closed(rig.reactor.io(), id, Closed::Peer);
            rig.writer.nodes[0].dial_at = 0; // the backoff is over
            rig.batch(&[(KEY.0, "3")]);
            rig.turn();
            rig.open(0, 13, run_id);
            if !killed.is_empty() {
                assert_eq!(rig.sent(0), killed);
                rig.answers(0, ":1\r\n");
            }
            assert_eq!(rig.sent(0), ["SET k 2", "SET k 3"], "{run_id}");
            rig.answers(0, "+OK\r\n+OK\r\n");
            assert_eq!(rig.done(), [(0, vec![]), (1, vec![])]);
        }
    }

    #[test]
    fn with_wait_a_batch_is_done_only_after_replicas_acknowledge() {
        let mut rig = Rig::connected(Some((1, 100)));
        rig.batch(&[(KEY.0, "1")]);
        let sent = rig.sent(0);
        // WAIT counts from the connection's last write, so one that surely changes something is made.
        assert_eq!((sent.len(), sent[0].as_str(), sent[2].as_str()), (3, "SET k 1", "WAIT 1 100"));
        assert!(sent[1].starts_with("SET unslow:sink-wait:{"), "{sent:?}");
        // That write is refused, so the reply to WAIT means nothing.
        rig.answers(0, "+OK\r\n-READONLY not now\r\n:5\r\n");
        assert!(rig.done().is_empty());
        let again = rig.sent(0);
        assert_eq!((again.len(), again[0].starts_with("SET unslow:sink-wait:{")), (2, true), "{again:?}");
        rig.answers(0, "+OK\r\n:0\r\n");
        assert!(rig.done().is_empty());
        assert_eq!(rig.sent(0), ["WAIT 1 100"]);
        rig.answers(0, ":1\r\n");
        assert_eq!(rig.done(), [(0, vec![])]);
    }

    #[test]
    fn a_refused_message_is_set_aside_and_a_fatal_error_ends_the_sink() {
        let mut rig = Rig::connected(None);
        rig.batch(&[(KEY.0, "1"), (KEY.0, "2"), (KEY.0, "3")]);
        rig.sent(0);
        rig.answers(0, "+OK\r\n-WRONGTYPE no string\r\n+OK\r\n");
        assert_eq!(rig.done(), [(0, vec![("2".to_string(), "WRONGTYPE no string".to_string())])]);
        assert!(rig.sent(0).is_empty());
        // A retry would not help: the sink ends.
        rig.batch(&[(KEY.0, "4")]);
        rig.sent(0);
        rig.answers(0, "-NOPERM no permissions\r\n");
        let why = rig.shared.fatal.lock().unwrap().clone().unwrap_or_default();
        assert!(why.starts_with("NOPERM no permissions (t [0] at 1)"), "{why}");
        assert!(rig.done().is_empty());
    }

    #[test]
    fn batches_may_finish_out_of_order() {
        let mut rig = Rig::connected(None);
        rig.batch(&[(KEY.0, "1")]);
        rig.batch(&[(OTHER, "2")]);
        assert_eq!((rig.sent(0).len(), rig.sent(1).len()), (1, 1));
        rig.answers(1, "+OK\r\n");
        assert_eq!(rig.done(), [(1, vec![])]);
        rig.batch(&[(OTHER, "3"), (OTHER, "4")]);
        assert_eq!(rig.sent(1), ["SET foo 3", "SET foo 4"]);
        rig.answers(0, "+OK\r\n");
        assert_eq!(rig.done(), [(0, vec![])]);
        rig.answers(1, "+OK\r\n-ERR no\r\n");
        assert_eq!(rig.done(), [(2, vec![("2".to_string(), "ERR no".to_string())])]);
        assert_eq!(rig.shared.window.bytes(), 0);
        assert!(rig.writer.works.is_empty());
    }
}
