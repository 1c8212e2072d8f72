//! The thread that writes: batches in, commands out to every node at once, replies matched, acknowledgements back.
//!
//! ```text
//!   batch -> encode a slice -> to its node, or held -> reply -> done        -> batch done -> Ack
//!                 ^                  ^                   |
//!                 |                  +--- due, ready <---+ MOVED, LOADING, OOM, connection lost, ...
//!                 +--- next turn
//! ```
//!
//! Order is kept within a slot, and with it within a key, by two rules. A slot has calls under way at one node only.
//! And a slot of which one call must be sent again is *held*: what is under way is waited for, and everything from that
//! call on is sent again in order before anything new. What ran already runs twice then, which is what "at least once"
//! means; with `exactly_once` the guard in the server sees to it that it changes nothing.
//!
//! A connection that broke may have left bytes in its server's socket. They would run after what is sent again on the
//! next one, so that one first has the server close its predecessor.
//!
//! An error that a script, a function or a module may have written says nothing about whether its call ran. One that
//! reads like a refusal is checked: the same node is asked about the same keys, or for its role, and what was answered
//! behind it waits. A connection that breaks before the answer leaves the outcome unknown: the call is sent again like
//! any other.

mod answers;
mod error;
mod held;
mod nodes;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use unslow_client::Target;
use unslow_nodes::{Greeting, NOBODY, NodeTable};
use unslow_reactor::{Closed, Handler, Id, Io, Peer, Tls, now_ns};
use unslow_resp::{Frame, Scan, Scanner, Split, Splitter, Value, write_command};
use unslow_topology::{SLOTS, Topology};

use crate::encode::{Became, Encoded, Encoder, mark_keys};
use crate::events::{Ack, Letter, WriterEvent};
use crate::record::Batch;
use crate::stats::Stats;
use crate::trouble::{Proof, Trouble};
use crate::window::Window;

pub use error::WriteError;

const MILLISECOND: u64 = 1_000_000;
/// Messages encoded before replies are looked at again.
const SLICE_MESSAGES: usize = 512;
/// Bytes after which a node need not wait for the end of the slice.
const FLUSH_BYTES: usize = 32 << 10;
/// A node that has not read so much gets no more until it has.
const UNSENT_MAX: usize = 16 << 20;
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
const BACKOFF_MIN: u64 = 20 * MILLISECOND;
const BACKOFF_MAX: u64 = 1000 * MILLISECOND;
/// Every server takes an argument of this length: `proto-max-bulk-len` cannot be set lower. A shorter call is not what
/// it closes connections for.
const ALWAYS_TAKEN_BYTES: usize = 1 << 20;
/// A call whose refusal the server does not repeat is sent again this often, where the cause can have ended in between.
const UNREPEATED_MAX: u8 = 3;
/// A call on which the server closed the connection this often, with nothing else on it, is not sent again.
const BREAKS_MAX: u8 = 3;
/// Who owns which slot, and where to dial.
pub struct Route {
    pub topology: Topology,
    /// Of each node of the topology, in its order.
    pub reach: Vec<Reach>,
}

/// How a node is dialled.
#[derive(Default)]
pub struct Reach {
    /// `None` while its name does not resolve.
    pub peer: Option<Peer>,
    pub tls: Option<Tls>,
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

/// What other threads share with the writer.
pub struct WriterShared {
    pub orders: Mutex<VecDeque<Order>>,
    pub window: Window,
    pub stats: Stats,
    /// Why it ended by itself.
    pub fatal: Mutex<Option<WriteError>>,
}

/// One thread that renders batches into calls and keeps their order.
pub struct Writer {
    settings: WriterSettings,
    shared: Arc<WriterShared>,
    said: Sender<WriterEvent>,
    doubt: Box<dyn Fn() + Send>,
    encoder: Encoder,
    /// For each slot a key of our own, to be written before WAIT.
    wait_keys: Vec<Vec<u8>>,
    nodes: NodeTable<Node>,
    /// Which nodes own slots.
    owns: Vec<bool>,
    slots: Vec<Slot>,
    held: HashMap<u16, Held>,
    /// Slots with a refusal that a script may have written, and what was answered behind it: until the server has said
    /// whether it refuses the keys.
    checking: HashMap<u16, VecDeque<Answered>>,
    /// Calls that were sent again though the server did not repeat their refusal, and how often.
    unrepeated: HashMap<(u64, u32), u8>,
    /// Calls that may be longer than their server takes, and how often it closed the connection on each alone.
    suspects: HashMap<(u64, u32), u8>,
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
    reach: Reach,
    connection: Option<Id>,
    greeted: Greeted,
    dial_at: u64,
    backoff: unslow_nodes::Backoff,
    flying: VecDeque<Flying>,
    /// The suspect that has the connection to itself, or waits for that.
    alone: Option<(u64, u32)>,
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
    last: Option<(u64, String)>,
    own: (Option<u64>, String),
    greeting: Greeting,
    asked: Option<Asked>,
    /// The last failure to reach it was told.
    told: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Greeted {
    No,
    Asked,
    Ready,
}

/// What is asked behind the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// INFO, for the run id.
    Server,
    /// CLIENT KILL of the last connection.
    Kill,
}

/// What the next reply of a node answers.
enum Flying {
    Call {
        work: u64,
        call: u32,
        left: u16,
        asking: bool,
        trouble: Option<Trouble>,
    },
    /// What confirms a refusal that a script may have written: its words, and the server's own refusal.
    Check {
        work: u64,
        call: u32,
        left: u16,
        proof: Proof,
        words: String,
        refused: Option<Trouble>,
    },
    /// WAIT.
    Wait,
    /// The write before the first WAIT of a connection.
    Wrote,
    /// SCRIPT LOAD.
    Other,
}

/// A call whose replies are there.
struct Answered {
    at: (u64, u32),
    asking: bool,
    trouble: Option<Trouble>,
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
    /// A redirect names this node, which the topology does not have.
    stranger: Option<String>,
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

impl Writer {
    pub fn new(
        settings: WriterSettings,
        shared: Arc<WriterShared>,
        encoder: Encoder,
        said: Sender<WriterEvent>,
        doubt: Box<dyn Fn() + Send>,
    ) -> Writer {
        Writer {
            wait_keys: if settings.wait.is_some() { mark_keys("unslow:sink-wait") } else { Vec::new() },
            settings,
            shared,
            said,
            doubt,
            encoder,
            nodes: NodeTable::default(),
            owns: Vec::new(),
            slots: vec![Slot::default(); usize::from(SLOTS)],
            held: HashMap::new(),
            checking: HashMap::new(),
            unrepeated: HashMap::new(),
            suspects: HashMap::new(),
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
        let _ = self.said.send(WriterEvent::Note(text)); // nobody listens only while it ends
    }

    fn fail(&mut self, io: &mut Io, why: WriteError) {
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

    fn work(&mut self, number: u64) -> &mut Work {
        &mut self.works[(number - self.first) as usize]
    }

    fn call(&self, work: u64, call: u32) -> crate::encode::Call {
        self.works[(work - self.first) as usize].encoded.calls[call as usize]
    }

    /// Whether a node may be sent a call that is like others.
    fn takes(&self, io: &mut Io, number: u16) -> bool {
        self.reads(io, number) && self.nodes[number].alone.is_none()
    }

    /// Whether a node is there and reads what it is sent.
    fn reads(&self, io: &mut Io, number: u16) -> bool {
        let node = self.nodes.get(number).filter(|n| n.greeted == Greeted::Ready);
        node.and_then(|n| n.connection).is_some_and(|id| io.unsent(id) <= UNSENT_MAX)
    }

    fn dispatch(&mut self, io: &mut Io, work: u64, call: u32) {
        let slot = self.call(work, call).slot;
        let state = self.slots[usize::from(slot)];
        if !state.held {
            let owner = self.nodes.owner(slot);
            if self.takes(io, owner) && (state.flying == 0 || state.node == owner) {
                return self.send(io, owner, work, call, false);
            }
            self.look = true;
        }
        self.hold(slot, (work, call), 0);
    }

    fn send(&mut self, io: &mut Io, number: u16, work: u64, call: u32, asking: bool) {
        let it = self.call(work, call);
        let node = &mut self.nodes[number];
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
                out.extend_from_slice(ASKING);
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
        node.flying.push_back(Flying::Call { work, call, left, asking, trouble: None });
        node.wait_due = true;
        let slot = &mut self.slots[usize::from(it.slot)];
        (slot.node, slot.flying) = (number, slot.flying + 1);
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
        let _ = self.said.send(WriterEvent::Ack(ack)); // nobody listens only while it ends
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
                Became::Poison(poison) => self.bury(number, record, poison.to_string()),
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
        for number in self.nodes.numbers() {
            let node = &self.nodes[number];
            // Owners are always connected; others only while something is to go to them.
            let wanted = || self.owns[usize::from(number)] || self.held.values().any(|h| h.asking == Some(number));
            if node.connection.is_none() && wanted() {
                if node.dial_at <= now {
                    self.dial(io, number, now);
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
                    self.lose(io, number, &format!("no answer for {seconds:.0} s"));
                    at(now + BACKOFF_MIN);
                } else {
                    at(until);
                }
            }
        }
        if let Some((replicas, ms)) = self.settings.wait
            && self.works.iter().all(|w| w.next == w.batch.records.len())
        {
            for number in self.nodes.numbers() {
                let node = &self.nodes[number];
                let Some(id) = node.connection.filter(|_| node.wait_due && node.greeted == Greeted::Ready) else {
                    continue;
                };
                // WAIT counts from the connection's own last write, and what is sent again may have changed nothing.
                // Any of its slots: one of them may be on its way elsewhere.
                let from = rand::random_range(0..SLOTS);
                let mut slots = (from..SLOTS).chain(0..from);
                let own = slots.find(|slot| !node.wrote && self.nodes.owner(*slot) == number);
                let node = &mut self.nodes[number];
                if let Some(slot) = own {
                    let key = &self.wait_keys[usize::from(slot)];
                    write_command(io.output(id), &[&b"SET"[..], key, b"", b"PX", b"60000"]);
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
        self.nodes[number].heard_at = now_ns();
        let mut at = 0;
        while at < bytes.len() && self.nodes[number].connection == Some(id) {
            let node = &mut self.nodes[number];
            let ready = node.greeted == Greeted::Ready;
            // The splitter steps over what is inside an array, and a role stands there.
            if !ready || matches!(node.flying.front(), Some(Flying::Check { proof: Proof::Role, .. })) {
                match node.scanner.scan(&bytes[at..]) {
                    Ok(Scan::Complete(len)) => {
                        let reply = Frame::new(&bytes[at..at + len]);
                        at += len;
                        if ready {
                            self.role(io, number, &Value::from(reply));
                        } else {
                            self.greeting(io, number, reply);
                        }
                    }
                    Ok(Scan::Incomplete) => return at,
                    Err(e) => {
                        self.lose(io, number, &format!("this is not a Redis server: {e}"));
                        return bytes.len();
                    }
                }
                continue;
            }
            match self.nodes[number].splitter.split(&bytes[at..]) {
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
                    self.lose(io, number, &format!("this is not a Redis server: {e}"));
                    return bytes.len();
                }
            }
        }
        at
    }

    fn closed(&mut self, io: &mut Io, id: Id, why: Closed) {
        if let Some(number) = self.by_connection.remove(&id) {
            self.nodes[number].connection = None;
            self.suspect(number);
            self.lose(io, number, &why.to_string());
            self.give_up();
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
