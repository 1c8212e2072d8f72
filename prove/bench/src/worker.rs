//! One thread of the generator: callers, connections, and the requests between them.
//!
//! ```text
//!   due (schedule, or a caller that is free) -> route by slot -> a connection with room, or the node's queue
//!     -> written -> replies matched in order -> recorded -> the caller goes on, the connection serves who waits
//! ```
//!
//! Time is taken once per batch of replies, behind the read that brought them. A request's clock starts when it was
//! due, so a server that stops is charged for every request that should have been made meanwhile.
//!
//! A lost connection leaves its requests without an answer: nobody knows whether they were executed, so they are
//! counted and not sent again. Requests that were not sent yet wait for the connection, for another owner of their
//! slot, or for their timeout, whichever comes first.

use std::collections::VecDeque;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use unslow_nodes::Backoff;
use unslow_reactor::{Closed, Handler, Id, Io, Peer, Reactor, Tls, now_ns};
use unslow_resp::{Done, Frame, Kind, Limits, Scan, Scanner, Split, Splitter, write_command};
use unslow_units::time;

use crate::arrivals::Schedule;
use crate::error::GeneratorError;
use crate::route::{Map, NOBODY, Routes, bare_port};
use crate::settings::{ReadFrom, Shape};
use crate::stats::{Interval, MOST_NS};
use crate::workload::{Draw, Workload};

const SECOND: u64 = 1_000_000_000;
/// Replies are not held, so they may be as large as the servers make them: 512 MiB a value, any number of them.
const LIMITS: Limits =
    Limits { frame_bytes_max: 1 << 50, line_bytes_max: 64 << 10, elements_max: u64::MAX, depth_max: 32 };
/// How often silence, queues and lost connections are looked at.
const HOUSEKEEPING: u64 = SECOND / 20;
/// The kind of error that makes a run invalid: its percentiles lack these requests.
pub const QUEUE_FULL: &str = "queue_full";
/// Requests that may wait for one node; beyond it they are counted as [`QUEUE_FULL`]. 64 MB.
const WAITING_MAX: usize = 2_000_000;
/// A shared connection takes no more while this many bytes wait to be written on it: what goes on piling up then is the
/// queue, which holds no bytes.
const UNSENT_MAX: usize = 64 << 20;
/// The caller of what no caller asked for: its reply is nobody's answer.
const NOBODYS: u32 = u32::MAX;
/// Redirections of one request before it is given up, as clients do.
const HOPS_MAX: u8 = 16;
/// Shortest and longest wait between attempts to connect again.
const BACKOFF: (u64, u64) = (SECOND / 50, SECOND);

/// What all threads of a run share.
pub struct Shared {
    /// What to send.
    pub workload: Arc<Workload>,
    /// Where to.
    pub routes: Routes,
    /// How.
    pub shape: Shape,
    /// Start of the run ([`now_ns`]); 0 until all threads are ready.
    pub start: AtomicU64,
    /// Threads whose connections stand, or cannot.
    pub ready: AtomicUsize,
    /// Stop early: results so far are wanted.
    pub stop: AtomicBool,
}

/// What a thread says of itself at its end.
#[derive(Debug, Default)]
pub struct Summary {
    /// CPU time of this thread in the run.
    pub cpu_ns: u64,
    /// From the start to the last answer.
    pub took_ns: u64,
    /// From the start to the end of the load: behind it nothing was asked.
    pub load_ns: u64,
    /// Why it could not run.
    pub failed: Option<GeneratorError>,
}

/// What a thread sends to the one that collects.
pub enum Said {
    /// A second is over.
    Interval(Box<Interval>),
    /// The thread is.
    Ended(Summary),
}

/// A request under way.
#[derive(Clone, Copy)]
struct Pending {
    due: u64,
    seq: u64,
    caller: u32,
    command: u16,
    /// Replies still to come.
    left: u16,
    hops: u8,
    asking: bool,
}

enum State {
    /// To be dialled at that time.
    Waiting(u64),
    Connecting,
    Open,
    /// Its node has no slots any more.
    Retired,
}

struct Lane {
    node: u16,
    id: Option<Id>,
    state: State,
    splitter: Splitter,
    flight: VecDeque<Pending>,
    /// Replies of the greeting still to come.
    greeting: u8,
    /// Last sign of life, or the moment something was first sent after none.
    progress: u64,
    /// Attempts to connect since it last stood.
    attempts: usize,
    backoff: Backoff,
    /// What the reply being read has brought that is no answer.
    trouble: Option<Trouble>,
    /// In its node's list of lanes with room.
    listed: bool,
    /// Listens to channels; sends nothing.
    subscriber: bool,
    /// Its messages are wanted whole.
    scanner: Scanner,
}

enum Trouble {
    Error { name: String, text: String },
    Moved { slot: u16, to: String },
    Ask { to: String },
}

struct Node {
    address: String,
    /// What its name resolved to; each connection tries one after the other.
    peers: Vec<Peer>,
    /// Not to be resolved again before this time.
    resolve_at: u64,
    /// Part of the map, or somebody was sent there.
    wanted: bool,
    lanes: Vec<u32>,
    /// Lanes with room, the longest idle first.
    free: VecDeque<u32>,
    waiting: VecDeque<Pending>,
    open: usize,
    is_replica: bool,
    /// Was said to be out of reach.
    down: bool,
}

/// How requests find a connection.
#[derive(Clone, Copy, PartialEq)]
enum Choice {
    /// A caller has its own; it sends so many at once and goes on when all are answered.
    Own,
    /// Any with room for one more.
    Free,
    /// Callers share without a bound.
    Shared,
}

/// One thread's state.
pub struct Worker {
    shared: Arc<Shared>,
    map: Arc<Map>,
    version: u64,
    slots: Vec<u16>,
    /// Replicas of each master of the map, as indices into `nodes`.
    readers: Vec<Vec<u16>>,
    nodes: Vec<Node>,
    lanes: Vec<Lane>,
    /// Lane of each connection, by [`Id::index`].
    lane_of: Vec<u32>,
    lanes_per_node: usize,
    choice: Choice,
    window: usize,
    batch: u32,
    /// Requests under way of each caller.
    callers: Vec<u32>,
    idle_callers: Vec<u32>,
    /// Arrivals that no caller is free for.
    unclaimed: VecDeque<u64>,
    unbounded_callers: bool,
    schedule: Option<Schedule>,
    next_due: Option<u64>,
    seq: u64,
    seq_step: u64,
    /// Requests this thread may still begin.
    budget: u64,
    outstanding: u64,
    homeless: VecDeque<Pending>,
    greeting: Vec<u8>,
    greeting_count: u8,
    greeting_replica: Vec<u8>,
    tls: Option<(Arc<rustls::ClientConfig>, Option<String>)>,
    interval: Box<Interval>,
    to_collector: Sender<Said>,
    spares: Receiver<Box<Interval>>,
    phase: Phase,
    start: u64,
    end: u64,
    next_second: u64,
    next_housekeeping: u64,
    load_end: u64,
    drain_until: u64,
    last_answer: u64,
    cpu_at_start: u64,
    failed: Option<GeneratorError>,
    scratch: Vec<u8>,
    multi_homed: bool,
    reports_wait: bool,
    read_turn: usize,
    said_ready: bool,
    /// Latency and command of answers not recorded yet, and how many. None between two calls of the loop.
    alike: (u64, u16),
    alike_count: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Connecting,
    Running,
    Draining,
    Over,
}

/// Runs thread `index` until the run is over. Says [`Said::Ended`] whatever happens.
pub fn work(shared: Arc<Shared>, index: usize, said: Sender<Said>, spares: Receiver<Box<Interval>>) {
    let summary = match Reactor::new() {
        Ok(mut reactor) => {
            if shared.shape.rings {
                reactor.carried_by(unslow_bypass::reactor::rings());
            }
            shared.routes.wakes(reactor.io().waker());
            let mut worker = Worker::new(shared.clone(), index, said.clone(), spares);
            worker.connect_all(reactor.io());
            let ran = reactor.run(&mut worker);
            let mut summary = worker.summary();
            if let Err(e) = ran {
                summary.failed = Some(GeneratorError::EventLoop(e));
            }
            summary
        }
        Err(e) => Summary { failed: Some(GeneratorError::NoEventLoop(e)), ..Summary::default() },
    };
    if summary.failed.is_some() {
        // Nobody may wait for this thread.
        shared.ready.fetch_add(1, Ordering::AcqRel);
    }
    let _ = said.send(Said::Ended(summary));
}

/// CPU time of the calling thread.
pub fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * SECOND + t.tv_nsec as u64
}

/// The part of `total` that falls to one of `parts`.
fn part(total: u64, parts: usize, index: usize) -> u64 {
    total / parts as u64 + u64::from((index as u64) < total % parts as u64)
}

impl Lane {
    fn new(node: u16, subscriber: bool) -> Lane {
        Lane {
            node,
            id: None,
            state: State::Waiting(0),
            splitter: Splitter::new(LIMITS),
            flight: VecDeque::new(),
            greeting: 0,
            progress: 0,
            attempts: 0,
            backoff: Backoff::new(BACKOFF.0, BACKOFF.1),
            trouble: None,
            listed: false,
            subscriber,
            scanner: Scanner::default(),
        }
    }
}

impl Worker {
    fn new(shared: Arc<Shared>, index: usize, said: Sender<Said>, spares: Receiver<Box<Interval>>) -> Worker {
        let shape = &shared.shape;
        let threads = shape.threads;
        let lanes_per_node = part(shape.connections as u64, threads, index) as usize;
        let open_loop = shape.steps.is_some() || shape.replay_speed.is_some();
        let choice = match shape.own {
            _ if shape.window.is_none() => Choice::Shared,
            true => Choice::Own,
            false => Choice::Free,
        };
        let caller_count = part(shape.callers.unwrap_or(0) as u64, threads, index) as u32;
        let schedule = match (&shape.steps, shape.replay_speed) {
            (Some(steps), _) => {
                Some(Schedule::new(shape.arrivals, steps, shape.length_ns, index, threads, shared.workload.seed()))
            }
            (None, Some(speed)) => {
                Some(Schedule::recorded(shared.workload.clone(), shape.length_ns, index, threads, speed))
            }
            (None, None) => None,
        };
        let map = shared.routes.get();
        let (mut greeting, mut greeting_count) = (Vec::new(), 0u8);
        for command in &shape.greeting {
            write_command(&mut greeting, command);
            greeting_count += 1;
        }
        let mut greeting_replica = greeting.clone();
        write_command(&mut greeting_replica, &["READONLY"]);
        let interval = Box::new(Interval::new(shared.workload.commands.len()));
        Worker {
            version: shared.routes.version(),
            slots: Vec::new(),
            readers: Vec::new(),
            nodes: Vec::new(),
            lanes: Vec::new(),
            lane_of: Vec::new(),
            lanes_per_node,
            choice,
            window: shape.window.unwrap_or(usize::MAX),
            batch: if choice == Choice::Own { shape.window.unwrap_or(1) as u32 } else { 1 },
            callers: vec![0; caller_count as usize],
            idle_callers: if open_loop { (0..caller_count).collect() } else { Vec::new() },
            unclaimed: VecDeque::new(),
            unbounded_callers: open_loop && shape.callers.is_none(),
            schedule,
            next_due: None,
            seq: index as u64,
            seq_step: threads as u64,
            budget: shape.requests.map_or(u64::MAX, |n| part(n, threads, index)),
            outstanding: 0,
            homeless: VecDeque::new(),
            greeting,
            greeting_count,
            greeting_replica,
            tls: shape.tls.clone(),
            interval,
            to_collector: said,
            spares,
            phase: Phase::Connecting,
            start: 0,
            end: 0,
            next_second: 0,
            next_housekeeping: 0,
            load_end: 0,
            drain_until: 0,
            last_answer: 0,
            cpu_at_start: 0,
            failed: None,
            scratch: Vec::new(),
            multi_homed: false,
            reports_wait: choice != Choice::Own,
            read_turn: index,
            said_ready: false,
            alike: (0, 0),
            alike_count: 0,
            map,
            shared,
        }
    }

    /// Dials every node of the map.
    fn connect_all(&mut self, io: &mut Io) {
        let map = self.map.clone();
        self.adopt(&map, io);
        // Spread over the masters: each passes everything on to all.
        let subscribers = part(self.shared.shape.subscribers as u64, self.shared.shape.threads, self.seq as usize);
        for i in 0..subscribers as usize {
            let lane = self.lanes.len() as u32;
            self.lanes.push(Lane::new((i % map.masters.max(1)) as u16, true));
            self.dial(lane, io);
        }
    }

    /// Takes over a map: new nodes are dialled, waiting requests find their new owner.
    fn adopt(&mut self, map: &Arc<Map>, io: &mut Io) {
        self.map = map.clone();
        let wanted = self.shared.shape.read_from;
        let mut index_of = Vec::with_capacity(map.nodes.len());
        for (i, address) in map.nodes.iter().enumerate() {
            let is_replica = i >= map.masters;
            if is_replica && wanted == ReadFrom::Primary {
                index_of.push(NOBODY);
                continue;
            }
            let node = self.node(address, is_replica, io);
            let demoted = is_replica && !std::mem::replace(&mut self.nodes[usize::from(node)].is_replica, is_replica);
            if demoted && map.kind == unslow_topology::DeploymentKind::Cluster {
                self.say_readonly(node, io);
            }
            index_of.push(node);
        }
        self.slots = map.slots.iter().map(|&s| if s == NOBODY { NOBODY } else { index_of[usize::from(s)] }).collect();
        let own = |replica: &u16| Some(index_of[usize::from(*replica)]).filter(|n| *n != NOBODY);
        self.readers = map.replicas.iter().map(|all| all.iter().filter_map(own).collect()).collect();
        self.multi_homed = self.nodes.len() > 1 || map.kind == unslow_topology::DeploymentKind::Cluster;
        for (n, node) in self.nodes.iter_mut().enumerate() {
            node.wanted = index_of.contains(&(n as u16));
            for &lane in &node.lanes {
                let lane = &mut self.lanes[lane as usize];
                if matches!(lane.state, State::Waiting(_)) && !node.wanted {
                    lane.state = State::Retired;
                }
            }
        }
        let mut again: Vec<Pending> = self.homeless.drain(..).collect();
        for node in &mut self.nodes {
            again.extend(node.waiting.drain(..));
        }
        again.sort_unstable_by_key(|p| p.due);
        for pending in again {
            let draw = self.shared.workload.draw(pending.seq);
            self.place(pending, draw, io);
        }
    }

    /// A master that became a replica answers reads only to those who say that they know it.
    fn say_readonly(&mut self, node: u16, io: &mut Io) {
        for lane in &self.nodes[usize::from(node)].lanes {
            let lane = &mut self.lanes[*lane as usize];
            if let (State::Open, Some(id)) = (&lane.state, lane.id) {
                write_command(io.output(id), &["READONLY"]);
                let due = now_ns();
                if lane.flight.is_empty() {
                    lane.progress = due;
                }
                lane.flight.push_back(Pending {
                    due,
                    seq: 0,
                    caller: NOBODYS,
                    command: 0,
                    left: 1,
                    hops: 0,
                    asking: false,
                });
            }
        }
    }

    /// The node at `address`, dialled when it is new.
    fn node(&mut self, address: &str, is_replica: bool, io: &mut Io) -> u16 {
        if let Some(i) = self.nodes.iter().position(|n| n.address == address) {
            if !std::mem::replace(&mut self.nodes[i].wanted, true) {
                for lane in &self.nodes[i].lanes {
                    let lane = &mut self.lanes[*lane as usize];
                    if matches!(lane.state, State::Retired) {
                        lane.state = State::Waiting(0);
                    }
                }
                self.next_housekeeping = 0;
            }
            return i as u16;
        }
        let index = self.nodes.len() as u16;
        let first = self.lanes.len() as u32;
        let lanes: Vec<u32> = (first..first + self.lanes_per_node as u32).collect();
        let free = VecDeque::with_capacity(lanes.len());
        self.nodes.push(Node {
            address: address.to_string(),
            peers: Vec::new(),
            resolve_at: 0,
            wanted: true,
            lanes: lanes.clone(),
            free,
            waiting: VecDeque::new(),
            open: 0,
            is_replica,
            down: false,
        });
        self.lanes.extend(lanes.iter().map(|_| Lane::new(index, false)));
        self.multi_homed = self.nodes.len() > 1;
        for lane in lanes {
            self.dial(lane, io);
        }
        index
    }

    fn dial(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &mut self.lanes[lane_index as usize];
        let node = &mut self.nodes[usize::from(lane.node)];
        let now = now_ns();
        // Asked again when all of its addresses failed, since a name may be given to another server; not more often
        // than once a second, since asking may take long.
        let tried_all = lane.attempts.is_multiple_of(node.peers.len().max(1));
        if tried_all && now >= node.resolve_at {
            node.peers = resolve(&node.address);
            node.resolve_at = now_ns() + SECOND;
        }
        if node.peers.is_empty() {
            let address = node.address.clone();
            self.interval.error("unresolved", &format!("{address}: the name does not resolve"));
            self.put_off(lane_index);
            return;
        }
        let peer = node.peers[lane.attempts % node.peers.len()].clone();
        let tls = match &self.tls {
            Some((config, name)) => {
                let host = name.clone().unwrap_or_else(|| host(&node.address).to_string());
                match rustls::pki_types::ServerName::try_from(host.clone()) {
                    Ok(name) => Some(Tls { config: config.clone(), name }),
                    Err(_) => {
                        let text = format!("no certificate can have the name {host:?}; give one with --server-name");
                        self.interval.error("tls", &text);
                        self.put_off(lane_index);
                        return;
                    }
                }
            }
            None => None,
        };
        let deadline = now_ns() + self.shared.shape.timeout_ns;
        match io.connect(&peer, tls.as_ref(), deadline) {
            Ok(id) => {
                if self.lane_of.len() <= id.index() {
                    self.lane_of.resize(id.index() + 1, 0);
                }
                self.lane_of[id.index()] = lane_index;
                let lane = &mut self.lanes[lane_index as usize];
                lane.id = Some(id);
                lane.state = State::Connecting;
                lane.splitter = Splitter::new(LIMITS);
                lane.scanner = Scanner::default();
                lane.trouble = None;
            }
            Err(e) => {
                if self.phase == Phase::Connecting {
                    self.failed = Some(GeneratorError::NoSocket {
                        address: self.nodes[usize::from(self.lanes[lane_index as usize].node)].address.clone(),
                        why: e,
                        connections: self.shared.shape.connections,
                    });
                    io.stop();
                } else {
                    self.interval.error("no_connection", &e.to_string());
                    self.put_off(lane_index);
                }
            }
        }
    }

    /// Tries again later, each time a little later, and not at the same moment as all others that lost this node.
    fn put_off(&mut self, lane: u32) {
        let lane = &mut self.lanes[lane as usize];
        lane.id = None;
        lane.attempts += 1;
        lane.state = State::Waiting(now_ns() + lane.backoff.failed(rand::random_range));
    }

    fn summary(&mut self) -> Summary {
        Summary {
            cpu_ns: thread_cpu_ns().saturating_sub(self.cpu_at_start),
            took_ns: self.last_answer.max(now_ns().min(self.end)).max(self.start) - self.start,
            load_ns: self.load_end.saturating_sub(self.start),
            failed: self.failed.take(),
        }
    }

    // ---- requests ----

    /// A caller begins as many requests as it sends at once.
    fn go_on(&mut self, caller: u32, now: u64, io: &mut Io) {
        if self.choice == Choice::Own && !self.multi_homed {
            let node = &self.nodes[0];
            let lane_index = node.lanes[caller as usize % node.lanes.len()];
            if matches!(self.lanes[lane_index as usize].state, State::Open) {
                self.send_batch(caller, lane_index, now, io);
                return;
            }
        }
        for _ in 0..self.batch {
            if self.budget == 0 {
                return;
            }
            self.budget -= 1;
            self.callers[caller as usize] += 1;
            self.begin(now, caller, io);
        }
    }

    /// The same for a caller whose next requests all go out on its own connection: one look at everything, then only
    /// rendering.
    fn send_batch(&mut self, caller: u32, lane_index: u32, now: u64, io: &mut Io) {
        let count = u64::from(self.batch).min(self.budget);
        let lane = &mut self.lanes[lane_index as usize];
        let Some(id) = lane.id else { return };
        if lane.flight.is_empty() {
            lane.progress = now;
        }
        let out = io.output(id);
        for _ in 0..count {
            let seq = self.seq;
            self.seq += self.seq_step;
            let draw = self.shared.workload.draw(seq);
            let left = self.shared.workload.render(out, seq, draw, now);
            lane.flight.push_back(Pending {
                due: now,
                seq,
                caller,
                command: draw.command,
                left,
                hops: 0,
                asking: false,
            });
        }
        self.callers[caller as usize] += count as u32;
        self.budget -= count;
        self.outstanding += count;
        self.interval.counts.begun += count;
    }

    #[inline]
    fn begin(&mut self, due: u64, caller: u32, io: &mut Io) {
        let seq = self.seq;
        self.seq += self.seq_step;
        self.outstanding += 1;
        self.interval.counts.begun += 1;
        let draw = self.shared.workload.draw(seq);
        let pending = Pending { due, seq, caller, command: draw.command, left: 1, hops: 0, asking: false };
        if self.multi_homed {
            self.place(pending, draw, io);
        } else {
            self.place_on(pending, draw, 0, io);
        }
    }

    /// Finds the node by the request's slot.
    fn place(&mut self, pending: Pending, draw: Draw, io: &mut Io) {
        let mut scratch = std::mem::take(&mut self.scratch);
        // What has no key may go anywhere; it stays with one node for as long as that one owns the slot.
        let slot = self
            .shared
            .workload
            .slot(pending.seq, draw, &mut scratch)
            .unwrap_or((pending.seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u16);
        self.scratch = scratch;
        let owner = self.slots[usize::from(slot)];
        if owner == NOBODY {
            self.shared.routes.want();
            self.queue(pending, None);
            return;
        }
        let node = if self.shared.shape.read_from != ReadFrom::Primary && self.shared.workload.reads(pending.command) {
            self.reader(slot, owner)
        } else {
            owner
        };
        self.place_on(pending, draw, node, io);
    }

    /// One of the nodes that may answer reads of a slot.
    fn reader(&mut self, slot: u16, owner: u16) -> u16 {
        let master = self.map.slots[usize::from(slot)];
        let Some(replicas) = self.readers.get(usize::from(master)) else { return owner };
        self.read_turn = self.read_turn.wrapping_add(1);
        let primary_too = usize::from(self.shared.shape.read_from == ReadFrom::Any);
        let choices = replicas.len() + primary_too;
        for i in 0..choices {
            let pick = (self.read_turn + i) % choices;
            let Some(&replica) = replicas.get(pick) else { return owner };
            if self.nodes[usize::from(replica)].open > 0 {
                return replica;
            }
        }
        owner
    }

    #[inline]
    fn place_on(&mut self, pending: Pending, draw: Draw, node_index: u16, io: &mut Io) {
        let node = &mut self.nodes[usize::from(node_index)];
        let lane = match self.choice {
            Choice::Own => {
                let lane = node.lanes[pending.caller as usize % node.lanes.len()];
                matches!(self.lanes[lane as usize].state, State::Open).then_some(lane)
            }
            Choice::Free => loop {
                let Some(lane) = node.free.pop_front() else { break None };
                let it = &mut self.lanes[lane as usize];
                it.listed = false;
                if matches!(it.state, State::Open) && it.flight.len() < self.window {
                    break Some(lane);
                }
            },
            Choice::Shared => {
                let from = if self.unbounded_callers { pending.seq / self.seq_step } else { u64::from(pending.caller) }
                    as usize;
                let lanes = &node.lanes;
                (0..lanes.len())
                    .map(|i| &lanes[(from + i) % lanes.len()])
                    .find(|l| {
                        let it = &self.lanes[**l as usize];
                        let full = it.flight.len() > 1000 && it.id.is_some_and(|id| io.unsent(id) > UNSENT_MAX);
                        matches!(it.state, State::Open) && !full
                    })
                    .copied()
            }
        };
        match lane {
            Some(lane) => self.put(pending, draw, lane, io),
            None => self.queue(pending, Some(node_index)),
        }
    }

    /// Waits for a connection of a node, or for somebody to own its slot.
    fn queue(&mut self, pending: Pending, node: Option<u16>) {
        let queue = match node {
            Some(node) => &mut self.nodes[usize::from(node)].waiting,
            None => &mut self.homeless,
        };
        if queue.len() < WAITING_MAX {
            queue.push_back(pending);
        } else {
            // Its caller is not told to go on: it would only fill the queue faster.
            self.interval.error(QUEUE_FULL, "two million requests wait for one node already");
            self.interval.counts.unanswered += 1;
            self.outstanding -= 1;
        }
    }

    #[inline]
    fn put(&mut self, mut pending: Pending, draw: Draw, lane_index: u32, io: &mut Io) {
        let lane = &mut self.lanes[lane_index as usize];
        let Some(id) = lane.id else { return };
        let now = now_ns();
        if self.reports_wait && pending.hops == 0 {
            self.interval.wait.saturating_record(now.saturating_sub(pending.due));
        }
        let out = io.output(id);
        let asking = pending.asking;
        if asking {
            out.extend_from_slice(b"*1\r\n$6\r\nASKING\r\n");
        }
        pending.left = self.shared.workload.render(out, pending.seq, draw, now) + u16::from(asking);
        if lane.flight.is_empty() {
            lane.progress = now;
        }
        lane.flight.push_back(pending);
        if self.choice == Choice::Free && lane.flight.len() < self.window && !lane.listed {
            lane.listed = true;
            self.nodes[usize::from(lane.node)].free.push_back(lane_index);
        }
    }

    /// An answer, good or not, has come, or never will: the connection serves who waits, the caller goes on.
    #[inline]
    fn finished(&mut self, pending: Pending, lane_index: Option<u32>, now: u64, io: &mut Io) {
        self.outstanding -= 1;
        if let Some(lane_index) = lane_index {
            match self.choice {
                Choice::Free => self.serve_waiting(lane_index, io),
                Choice::Shared => self.serve_overflow(lane_index, io),
                Choice::Own => {}
            }
        }
        if self.unbounded_callers {
            return;
        }
        if self.schedule.is_some() {
            if let Some(due) = self.unclaimed.pop_front() {
                self.begin(due, pending.caller, io);
            } else {
                self.idle_callers.push(pending.caller);
            }
            return;
        }
        let left = &mut self.callers[pending.caller as usize];
        *left -= 1;
        if *left == 0 && self.phase == Phase::Running {
            self.go_on(pending.caller, now, io);
        }
    }

    /// A connection with room takes the first that waits for its node.
    fn serve_waiting(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &mut self.lanes[lane_index as usize];
        if !matches!(lane.state, State::Open) || lane.flight.len() >= self.window {
            return;
        }
        let node = &mut self.nodes[usize::from(lane.node)];
        if let Some(next) = node.waiting.pop_front() {
            let draw = self.shared.workload.draw(next.seq);
            self.put(next, draw, lane_index, io);
        } else if !lane.listed {
            lane.listed = true;
            node.free.push_back(lane_index);
        }
    }

    /// A shared connection that was full takes what waited.
    fn serve_overflow(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &self.lanes[lane_index as usize];
        let node = lane.node;
        while !self.nodes[usize::from(node)].waiting.is_empty()
            && let Some(id) = self.lanes[lane_index as usize].id
            && io.unsent(id) <= UNSENT_MAX / 2
        {
            let Some(next) = self.nodes[usize::from(node)].waiting.pop_front() else { return };
            let draw = self.shared.workload.draw(next.seq);
            self.put(next, draw, lane_index, io);
        }
    }

    /// No answer will come: counted at the age it has reached, so that it is missing from no percentile.
    fn give_up(&mut self, pending: Pending, why: &str, text: &str, now: u64, io: &mut Io) {
        self.interval.error(why, text);
        self.interval.counts.unanswered += 1;
        let age = now.saturating_sub(pending.due).min(MOST_NS);
        self.interval.latency[usize::from(pending.command)].saturating_record(age.max(1));
        self.finished(pending, None, now, io);
    }

    // ---- replies ----

    /// Splits what came into replies. Returns how much of it is done with.
    fn replies(&mut self, lane_index: u32, id: Id, bytes: &[u8], now: u64, io: &mut Io) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let lane = &mut self.lanes[lane_index as usize];
            if lane.id != Some(id) {
                return bytes.len(); // lost by what it said
            }
            match lane.splitter.split(&bytes[at..]) {
                Ok(Split::Done(done)) => {
                    let frame = &bytes[at..at + done.end];
                    at += done.end;
                    self.reply(lane_index, frame, done, now, io);
                }
                Ok(Split::More { consumed }) => {
                    lane.progress = now;
                    return at + consumed;
                }
                Err(e) => {
                    self.lose(lane_index, "not_resp", &format!("the reply is not RESP: {e}"), now, io);
                    return bytes.len();
                }
            }
        }
        at
    }

    #[inline]
    fn reply(&mut self, lane_index: u32, frame: &[u8], done: Done, now: u64, io: &mut Io) {
        let lane = &mut self.lanes[lane_index as usize];
        if lane.greeting > 0 || done.kind == b'>' {
            self.greeted(lane_index, frame, done, now, io);
            return;
        }
        let Some(front) = lane.flight.front_mut() else {
            // A server that takes no one else says so unasked.
            let text =
                if done.whole { String::from_utf8_lossy(Frame::new(frame).text()).into_owned() } else { String::new() };
            self.lose(lane_index, "unasked", &format!("the server said without being asked: {text:?}"), now, io);
            return;
        };
        front.left -= 1;
        if matches!(done.kind, b'-' | b'!') {
            let text = Frame::new(frame).text();
            if lane.trouble.is_none() || text.starts_with(b"MOVED ") || text.starts_with(b"ASK ") {
                lane.trouble = Some(trouble(text));
            }
        } else if done.error_inside && lane.trouble.is_none() {
            // EXEC answers with an array even where a command in it failed.
            let first = Frame::new(frame).items().find(|f| f.kind() == Kind::Error).filter(|_| done.whole);
            lane.trouble = Some(trouble(first.map_or(b"ERR an error inside the reply", |f| f.text())));
        }
        if front.left > 0 {
            return;
        }
        let Some(pending) = lane.flight.pop_front() else { return };
        lane.progress = now;
        lane.backoff.succeeded();
        if pending.caller == NOBODYS {
            lane.trouble = None;
            match self.choice {
                Choice::Free => self.serve_waiting(lane_index, io),
                Choice::Shared => self.serve_overflow(lane_index, io),
                Choice::Own => {}
            }
            return;
        }
        self.last_answer = now;
        if let Some(trouble) = lane.trouble.take() {
            self.troubled(lane_index, pending, trouble, now, io);
            return;
        }
        let latency = now.saturating_sub(pending.due);
        if (latency, pending.command) == self.alike {
            self.alike_count += 1;
        } else {
            self.record_alike();
            self.alike = (latency, pending.command);
            self.alike_count = 1;
        }
        if done.null {
            self.interval.nulls[usize::from(pending.command)] += 1;
        } else if self.shared.workload.verify && done.whole && done.kind == b'$' {
            let draw = self.shared.workload.draw(pending.seq);
            if let Some(right) = self.shared.workload.right(draw, Frame::new(frame).text()) {
                self.interval.counts.verified += 1;
                self.interval.counts.wrong += u64::from(!right);
            }
        }
        self.finished(pending, Some(lane_index), now, io);
    }

    /// What a subscriber hears: the confirmation, then messages that begin with the time they were sent.
    fn messages(&mut self, lane_index: u32, bytes: &[u8], now: u64, io: &mut Io) -> usize {
        let mut at = 0;
        loop {
            let len = match self.lanes[lane_index as usize].scanner.scan(&bytes[at..]) {
                Ok(Scan::Complete(len)) => len,
                Ok(Scan::Incomplete) => return at,
                Err(e) => {
                    self.lose(lane_index, "not_resp", &format!("the message is not RESP: {e}"), now, io);
                    return bytes.len();
                }
            };
            let frame = Frame::new(&bytes[at..at + len]);
            at += len;
            let lane = &mut self.lanes[lane_index as usize];
            // In the greeting only what `greeted` minds, and the subscription itself, which comes last.
            let minds = lane.greeting <= 1 || fatal(frame.text()).is_some();
            if frame.kind() == Kind::Error && minds {
                let text = String::from_utf8_lossy(frame.text()).into_owned();
                self.lose(lane_index, "subscribe", &text, now, io);
                return bytes.len();
            }
            if lane.greeting > 0 {
                lane.greeting -= 1;
                if lane.greeting == 0 {
                    self.ready(lane_index, io);
                }
                continue;
            }
            let sent =
                frame.items().last().and_then(|m| std::str::from_utf8(m.text().get(..20)?).ok()?.parse::<u64>().ok());
            // Messages of another run are no news.
            if let Some(sent) = sent.filter(|s| *s >= self.start && self.start > 0) {
                self.interval.delivered.saturating_record(now.saturating_sub(sent).max(1));
            }
        }
    }

    /// Requests sent together and answered together took equally long: they are recorded at once.
    #[inline]
    fn record_alike(&mut self) {
        let count = std::mem::take(&mut self.alike_count);
        if count > 0 {
            let (latency, command) = self.alike;
            self.interval.latency[usize::from(command)].saturating_record_n(latency, count);
            self.interval.counts.answered += count;
        }
    }

    /// A reply to the greeting, or a push.
    fn greeted(&mut self, lane_index: u32, frame: &[u8], done: Done, now: u64, io: &mut Io) {
        if done.kind == b'>' {
            return;
        }
        let lane = &mut self.lanes[lane_index as usize];
        lane.greeting -= 1;
        if matches!(done.kind, b'-' | b'!') {
            let text = Frame::new(frame).text();
            if let Some(name) = fatal(text) {
                let text = String::from_utf8_lossy(text).into_owned();
                self.lose(lane_index, name, &text, now, io);
                return;
            }
        }
        if lane.greeting == 0 {
            self.ready(lane_index, io);
        }
    }

    /// The connection may be used.
    fn ready(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &mut self.lanes[lane_index as usize];
        lane.state = State::Open;
        lane.attempts = 0;
        if lane.subscriber {
            return;
        }
        let node_index = lane.node;
        let node = &mut self.nodes[usize::from(node_index)];
        node.open += 1;
        if std::mem::take(&mut node.down) {
            let text = format!("{} takes connections again", node.address);
            self.mark(text);
        }
        if self.choice == Choice::Free {
            for _ in 0..self.window.min(1024) {
                self.serve_waiting(lane_index, io);
            }
        } else {
            let waiting = std::mem::take(&mut self.nodes[usize::from(node_index)].waiting);
            for pending in waiting {
                let draw = self.shared.workload.draw(pending.seq);
                self.place_on(pending, draw, node_index, io);
            }
        }
    }

    /// An error reply: redirections are followed, the rest is counted.
    fn troubled(&mut self, lane_index: u32, mut pending: Pending, trouble: Trouble, now: u64, io: &mut Io) {
        let to = match trouble {
            Trouble::Error { name, text } => {
                // A demoted or resyncing master, a shard without one: somebody else may be it now.
                if matches!(name.as_str(), "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING") {
                    self.shared.routes.want();
                }
                self.interval.error(&name, &text);
                self.interval.refused.saturating_record(now.saturating_sub(pending.due));
                self.finished(pending, Some(lane_index), now, io);
                return;
            }
            Trouble::Moved { slot, to } => {
                self.interval.counts.moved += 1;
                self.shared.routes.want();
                let to = self.whole(&to, lane_index);
                let node = self.node(&to, false, io);
                if let Some(owner) = self.slots.get_mut(usize::from(slot)) {
                    *owner = node;
                }
                pending.asking = false;
                node
            }
            Trouble::Ask { to } => {
                self.interval.counts.ask += 1;
                pending.asking = true;
                let to = self.whole(&to, lane_index);
                self.node(&to, false, io)
            }
        };
        pending.hops += 1;
        if self.choice == Choice::Free {
            self.serve_waiting(lane_index, io);
        }
        if pending.hops > HOPS_MAX {
            self.give_up(pending, "redirections", "sixteen redirections of one request", now, io);
            return;
        }
        let draw = self.shared.workload.draw(pending.seq);
        self.place_on(pending, draw, to, io);
    }

    /// `:7001`, as a node that does not know its own address writes it, is on the host that said so.
    fn whole(&self, to: &str, lane_index: u32) -> String {
        match bare_port(to) {
            Some(port) => {
                let address = &self.nodes[usize::from(self.lanes[lane_index as usize].node)].address;
                unslow_topology::join_host_port(address.rsplit_once(':').map_or("127.0.0.1", |(h, _)| h), port)
            }
            None => to.to_string(),
        }
    }

    /// Closes a connection: what was under way on it has no answer.
    fn lose(&mut self, lane_index: u32, why: &str, text: &str, now: u64, io: &mut Io) {
        let lane = &mut self.lanes[lane_index as usize];
        if let Some(id) = lane.id.take() {
            io.close(id);
        }
        let was_open = matches!(lane.state, State::Open) && !lane.subscriber;
        let retired = !lane.subscriber && !self.nodes[usize::from(lane.node)].wanted;
        lane.greeting = 0;
        lane.trouble = None;
        let flight = std::mem::take(&mut lane.flight);
        let node = &mut self.nodes[usize::from(lane.node)];
        node.open -= usize::from(was_open);
        let address = node.address.clone();
        if retired {
            self.lanes[lane_index as usize].state = State::Retired;
        } else {
            self.put_off(lane_index);
        }
        if self.phase == Phase::Running || self.phase == Phase::Draining {
            let node = &mut self.nodes[usize::from(self.lanes[lane_index as usize].node)];
            let cut_off = node.open == 0 && !node.down;
            node.down |= cut_off;
            if was_open {
                let at = now_ns().saturating_sub(self.start);
                self.interval.lost.entry((address.clone(), text.to_string())).or_insert((0, at)).0 += 1;
            }
            if cut_off {
                self.mark(format!("{address} has no connection left: {text}"));
            }
            self.shared.routes.want();
        } else if self.failed.is_none() && self.phase == Phase::Connecting {
            // Told if no connection comes to stand at all.
            self.interval.error(why, &format!("{address}: {text}"));
        }
        for pending in flight.into_iter().filter(|p| p.caller != NOBODYS) {
            self.give_up(pending, why, &format!("{address}: {text}"), now, io);
        }
    }

    /// Something for the time line.
    fn mark(&mut self, text: String) {
        if self.phase == Phase::Running || self.phase == Phase::Draining {
            self.interval.marks.push((now_ns().saturating_sub(self.start), text));
        }
    }

    // ---- time ----

    fn housekeeping(&mut self, now: u64, io: &mut Io) {
        self.next_housekeeping = now + HOUSEKEEPING;
        let timeout = self.shared.shape.timeout_ns;
        for lane_index in 0..self.lanes.len() as u32 {
            let lane = &self.lanes[lane_index as usize];
            match lane.state {
                State::Waiting(at) if at <= now && self.phase != Phase::Over => self.dial(lane_index, io),
                State::Open if !lane.flight.is_empty() => {
                    let silent = now.saturating_sub(lane.progress);
                    if silent > timeout {
                        let text = format!("no answer for {}", time(Duration::from_nanos(silent)));
                        self.lose(lane_index, "timeout", &text, now, io);
                    } else if silent > timeout.min(SECOND) / 2 {
                        self.shared.routes.want(); // a hung master says nothing: others may have replaced it
                    }
                }
                State::Connecting if lane.greeting > 0 && now.saturating_sub(lane.progress) > timeout => {
                    self.lose(lane_index, "timeout", "no answer to the greeting", now, io);
                }
                _ => {}
            }
        }
        for node in 0..self.nodes.len() {
            let cut_off = self.nodes[node].open == 0;
            if cut_off && !self.nodes[node].waiting.is_empty() {
                self.shared.routes.want();
            }
            // A busy node may take its time; one without any connection has it only until the timeout, and so has a
            // caller whose own connection does not come to stand.
            if !cut_off && self.choice != Choice::Own {
                continue;
            }
            let late = |p: &Pending| now.saturating_sub(p.due) > timeout;
            if !self.nodes[node].waiting.iter().any(late) {
                continue;
            }
            let (gone, kept): (VecDeque<Pending>, _) = self.nodes[node].waiting.drain(..).partition(late);
            self.nodes[node].waiting = kept;
            let text = format!("{}: no connection within the timeout", self.nodes[node].address);
            for pending in gone {
                self.give_up(pending, "no_connection", &text, now, io);
            }
        }
        while let Some(first) = self.homeless.front().copied()
            && now.saturating_sub(first.due) > timeout
        {
            self.homeless.pop_front();
            self.give_up(first, "no_owner", "no node owns the slot", now, io);
        }
    }

    /// Sends the second that is over, takes an empty one.
    fn tick(&mut self, now: u64) {
        self.gauges();
        let fresh =
            self.spares.try_recv().unwrap_or_else(|_| Box::new(Interval::new(self.shared.workload.commands.len())));
        let full = std::mem::replace(&mut self.interval, fresh);
        let second = full.second;
        let _ = self.to_collector.send(Said::Interval(full));
        self.interval.second = second + 1;
        self.next_second += SECOND;
        // We were not run for a second: nothing happened in it, and who collects waits for it.
        while now > self.next_second {
            let mut empty = Box::new(Interval::new(self.shared.workload.commands.len()));
            empty.second = self.interval.second;
            let _ = self.to_collector.send(Said::Interval(empty));
            self.interval.second += 1;
            self.next_second += SECOND;
        }
    }

    fn gauges(&mut self) {
        let counts = &mut self.interval.counts;
        counts.waiting = self.nodes.iter().map(|n| n.waiting.len() as u64).sum::<u64>()
            + self.homeless.len() as u64
            + self.unclaimed.len() as u64;
        counts.in_flight = self.lanes.iter().map(|l| l.flight.len() as u64).sum();
        counts.open = self.nodes.iter().map(|n| n.open as u64).sum();
    }

    fn connecting(&mut self, now: u64, io: &mut Io) -> Option<u64> {
        let nodes = &self.nodes;
        let settled = |l: &Lane| {
            matches!(l.state, State::Open | State::Retired)
                || l.attempts >= nodes[usize::from(l.node)].peers.len().max(1)
        };
        if !self.said_ready && self.lanes.iter().all(settled) {
            if self.nodes.iter().all(|n| n.open == 0) {
                let why = self.interval.errors.first().map_or("no connection".to_string(), |k| k.example.clone());
                self.failed = Some(GeneratorError::NotConnected(why));
                io.stop();
                return None;
            }
            self.said_ready = true;
            self.shared.ready.fetch_add(1, Ordering::AcqRel);
        }
        let start = self.shared.start.load(Ordering::Acquire);
        if start == 0 {
            if self.shared.stop.load(Ordering::Acquire) {
                io.stop();
            }
            if now >= self.next_housekeeping {
                self.housekeeping(now, io);
            }
            return Some(now + SECOND / 50);
        }
        if now < start {
            return Some(start);
        }
        // Off we go.
        self.phase = Phase::Running;
        self.start = start;
        self.end = start.saturating_add(self.shared.shape.length_ns);
        self.next_second = start + SECOND;
        self.next_housekeeping = start + HOUSEKEEPING;
        self.cpu_at_start = thread_cpu_ns();
        let missing = self.lanes.iter().filter(|l| !matches!(l.state, State::Open)).count();
        let why = self.interval.errors.first().map_or(String::new(), |k| format!(": {}", k.example));
        self.interval.reset();
        if missing > 0 {
            self.interval.marks.push((0, format!("{missing} of {} connections do not stand{why}", self.lanes.len())));
        }
        match &mut self.schedule {
            Some(schedule) => self.next_due = schedule.next().map(|d| start + d),
            None => {
                for caller in 0..self.callers.len() as u32 {
                    self.go_on(caller, now, io);
                }
            }
        }
        Some(now)
    }

    fn arrive(&mut self, now: u64, io: &mut Io) {
        while let Some(due) = self.next_due
            && due <= now
        {
            self.next_due = self.schedule.as_mut().and_then(Schedule::next).map(|d| self.start + d);
            if self.budget == 0 {
                self.next_due = None;
                return;
            }
            self.budget -= 1;
            self.interval.lateness.saturating_record(now - due);
            if self.unbounded_callers {
                self.begin(due, 0, io);
            } else if let Some(caller) = self.idle_callers.pop() {
                self.begin(due, caller, io);
            } else if self.unclaimed.len() < WAITING_MAX {
                self.unclaimed.push_back(due);
            } else {
                self.interval.error(QUEUE_FULL, "two million requests wait for a caller already");
                self.interval.counts.unanswered += 1;
            }
        }
    }

    fn end_of_load(&mut self, now: u64) {
        self.phase = Phase::Draining;
        self.load_end = now;
        self.drain_until = now + self.shared.shape.timeout_ns;
        self.next_due = None;
    }

    fn over(&mut self, now: u64, io: &mut Io) {
        // What is still open is given up at its age.
        let mut rest: Vec<Pending> =
            self.lanes.iter_mut().flat_map(|l| l.flight.drain(..)).filter(|p| p.caller != NOBODYS).collect();
        rest.extend(self.nodes.iter_mut().flat_map(|n| n.waiting.drain(..)));
        rest.extend(self.homeless.drain(..));
        rest.extend(self.unclaimed.drain(..).map(|due| Pending {
            due,
            seq: 0,
            caller: 0,
            command: 0,
            left: 0,
            hops: 0,
            asking: false,
        }));
        self.phase = Phase::Over;
        for pending in rest {
            self.interval.error("unfinished", "no answer until the end of the run");
            self.interval.counts.unanswered += 1;
            self.interval.latency[usize::from(pending.command)]
                .saturating_record(now.saturating_sub(pending.due).max(1));
        }
        self.gauges();
        let full = std::mem::replace(&mut self.interval, Box::new(Interval::new(0)));
        let _ = self.to_collector.send(Said::Interval(full));
        io.stop();
    }
}

impl Handler for Worker {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        let now = now_ns();
        if self.failed.is_some() {
            io.stop();
            return None;
        }
        let version = self.shared.routes.version();
        if version != self.version {
            self.version = version;
            let map = self.shared.routes.get();
            self.adopt(&map, io);
        }
        if self.phase == Phase::Connecting {
            return self.connecting(now, io);
        }
        if now >= self.next_second {
            self.tick(now);
        }
        if self.phase == Phase::Running {
            if self.next_due.is_some() {
                self.arrive(now, io);
            }
            let exhausted = match self.schedule {
                Some(_) => self.next_due.is_none(),
                None => self.budget == 0 && self.outstanding == 0,
            };
            if now >= self.end || exhausted || self.shared.stop.load(Ordering::Relaxed) {
                self.end_of_load(now);
            }
        }
        if now >= self.next_housekeeping {
            self.housekeeping(now, io);
        }
        if self.phase == Phase::Draining {
            let stopped = self.shared.stop.load(Ordering::Relaxed);
            let heard = self.shared.shape.subscribers == 0 || now > self.last_answer + SECOND / 5;
            if self.outstanding == 0 && self.unclaimed.is_empty() && heard || now >= self.drain_until || stopped {
                self.over(now, io);
                return None;
            }
        }
        let mut wake = self.next_second.min(self.next_housekeeping);
        if self.phase == Phase::Running {
            wake = wake.min(self.end).min(self.next_due.unwrap_or(u64::MAX));
        }
        Some(wake)
    }

    fn opened(&mut self, io: &mut Io, id: Id) {
        let lane_index = self.lane_of[id.index()];
        let lane = &mut self.lanes[lane_index as usize];
        let readonly =
            self.nodes[usize::from(lane.node)].is_replica && self.map.kind == unslow_topology::DeploymentKind::Cluster;
        let (greeting, count) = match readonly {
            true => (&self.greeting_replica, self.greeting_count + 1),
            false => (&self.greeting, self.greeting_count),
        };
        lane.greeting = count;
        lane.progress = now_ns();
        let out = io.output(id);
        out.extend_from_slice(greeting);
        if lane.subscriber {
            lane.greeting += 1;
            write_command(out, &["PSUBSCRIBE", &self.shared.shape.channels]);
        }
        if lane.greeting == 0 {
            self.ready(lane_index, io);
        }
    }

    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize {
        let lane_index = self.lane_of[id.index()];
        let used = if self.lanes[lane_index as usize].subscriber {
            self.messages(lane_index, bytes, now_ns(), io)
        } else {
            self.replies(lane_index, id, bytes, now_ns(), io)
        };
        self.record_alike();
        self.interval.counts.received += used as u64;
        used
    }

    fn closed(&mut self, io: &mut Io, id: Id, why: Closed) {
        let lane_index = self.lane_of[id.index()];
        let lane = &mut self.lanes[lane_index as usize];
        lane.id = None;
        let name = match why {
            Closed::Connect(_) => "no_connection",
            Closed::Tls(_) => "tls",
            _ => "connection_lost",
        };
        self.lose(lane_index, name, &why.to_string(), now_ns(), io);
    }

    fn timer(&mut self, _: &mut Io, _: u64) {}
}

/// The code word of an error that ends a greeting. As `base/client` has it: no password set, no HELLO and no database
/// numbers are no reason to stop.
fn fatal(text: &[u8]) -> Option<&'static str> {
    const FATAL: [&str; 6] = ["WRONGPASS", "NOAUTH", "NOPERM", "LOADING", "ERR max number", "ERR invalid password"];
    FATAL.into_iter().find(|w| text.starts_with(w.as_bytes())).map(|w| w.split(' ').next().unwrap_or("ERR"))
}

/// Sorts an error reply.
fn trouble(text: &[u8]) -> Trouble {
    let text = String::from_utf8_lossy(text).into_owned();
    let mut words = text.split(' ');
    let first = words.next().unwrap_or("");
    match first {
        "MOVED" => {
            if let (Some(slot), Some(to)) = (words.next().and_then(|s| s.parse().ok()), words.next()) {
                return Trouble::Moved { slot, to: to.into() };
            }
        }
        "ASK" => {
            if let Some(to) = words.nth(1) {
                return Trouble::Ask { to: to.into() };
            }
        }
        _ => {}
    }
    let code = !first.is_empty() && first.len() <= 24 && first.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let name = if code { first.to_string() } else { "ERR".into() };
    Trouble::Error { name, text }
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host).trim_start_matches('[').trim_end_matches(']')
}

/// Numbers at once; names by the system, which may take its time.
fn resolve(address: &str) -> Vec<Peer> {
    if let Some(path) = address.strip_prefix("unix:") {
        return vec![Peer::Unix(PathBuf::from(path))];
    }
    let Some((host, port)) = address.rsplit_once(':') else { return Vec::new() };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = port.parse::<u16>().ok().and_then(|port| (host, port).to_socket_addrs().ok());
    found.map_or(Vec::new(), |all| all.map(Peer::Tcp).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::arrivals::Arrivals;
    use crate::workload::Spec;

    /// When the load of these tests began.
    const START: u64 = 100 * SECOND;
    const MILLISECOND: u64 = SECOND / 1000;

    /// A thread that was asked for 1,000 requests/s for a second, with a timeout of a second, in a cluster where nobody
    /// owns a slot: all of them wait.
    fn worker() -> (Worker, Receiver<Said>) {
        let map = Map {
            kind: unslow_topology::DeploymentKind::Cluster,
            nodes: Vec::new(),
            masters: 0,
            replicas: Vec::new(),
            slots: vec![NOBODY; usize::from(unslow_topology::SLOTS)],
        };
        let shape = Shape {
            threads: 1,
            connections: 1,
            own: false,
            rings: false,
            window: Some(1),
            callers: None,
            steps: Some(vec![1000.0]),
            arrivals: Arrivals::Constant,
            replay_speed: None,
            length_ns: SECOND,
            requests: None,
            timeout_ns: SECOND,
            read_from: ReadFrom::Primary,
            greeting: Vec::new(),
            subscribers: 0,
            channels: String::new(),
            tls: None,
        };
        let shared = Arc::new(Shared {
            workload: Arc::new(Workload::compile(&Spec::default(), None).unwrap()),
            routes: Routes::new(map),
            shape,
            start: AtomicU64::new(START),
            ready: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let (said, heard) = channel();
        let (_, spares) = channel();
        let mut worker = Worker::new(shared, 0, said, spares);
        // As `connecting` leaves it.
        worker.slots = worker.map.slots.clone();
        worker.multi_homed = true;
        worker.phase = Phase::Running;
        (worker.start, worker.end, worker.next_second) = (START, START + SECOND, START + SECOND);
        worker.next_due = worker.schedule.as_mut().and_then(Schedule::next).map(|due| START + due);
        (worker, heard)
    }

    fn interval(heard: &Receiver<Said>) -> Box<Interval> {
        match heard.try_recv() {
            Ok(Said::Interval(interval)) => interval,
            _ => panic!("no interval was sent"),
        }
    }

    /// Within the three digits of a histogram.
    fn near(seen: u64, truth: u64) -> bool {
        seen.abs_diff(truth) <= truth / 500
    }

    #[test]
    fn requests_are_charged_from_when_they_were_due_however_late_they_are_looked_at() {
        let (mut worker, heard) = worker();
        let mut reactor = Reactor::new().unwrap();
        // The generator itself was not run for the whole second.
        worker.arrive(START + SECOND, reactor.io());
        assert_eq!((worker.outstanding, worker.homeless.len(), worker.next_due), (1000, 1000, None));
        // Nothing of it is ever answered.
        worker.over(START + 3 * SECOND, reactor.io());
        let interval = interval(&heard);
        assert_eq!((interval.counts.begun, interval.counts.unanswered, interval.counts.answered), (1000, 1000, 0));
        assert_eq!((interval.errors[0].name.as_str(), interval.errors[0].count), ("unfinished", 1000));
        // The first was due at 0 s, the last at 0.999 s.
        let (late, all) = (&interval.lateness, interval.all());
        assert!(late.len() == 1000 && near(late.max(), SECOND) && near(late.min(), MILLISECOND));
        assert!(all.len() == 1000 && near(all.max(), 3 * SECOND) && near(all.min(), 2001 * MILLISECOND));
        assert!(near(all.value_at_quantile(0.5), 2500 * MILLISECOND), "{}", all.value_at_quantile(0.5));
    }

    #[test]
    fn requests_that_find_nobody_are_given_up_when_their_timeout_is_over_and_not_before() {
        let (mut worker, _heard) = worker();
        let mut reactor = Reactor::new().unwrap();
        worker.arrive(START + SECOND, reactor.io());
        worker.housekeeping(START + SECOND, reactor.io());
        assert_eq!((worker.homeless.len(), worker.interval.counts.unanswered), (1000, 0));
        worker.housekeeping(START + SECOND + SECOND / 2, reactor.io());
        // Those that were due in the first half second.
        assert_eq!((worker.homeless.len(), worker.interval.counts.unanswered, worker.outstanding), (500, 500, 500));
        let kinds: Vec<_> = worker.interval.errors.iter().map(|k| (k.name.as_str(), k.count)).collect();
        assert_eq!(kinds, [("no_owner", 500)]);
        let ages = worker.interval.all();
        assert!(near(ages.min(), SECOND) && near(ages.max(), SECOND + SECOND / 2), "{} to {}", ages.min(), ages.max());
    }

    #[test]
    fn the_load_ends_with_its_schedule_and_asks_for_no_more_than_its_number_of_requests() {
        let (mut worker, _heard) = worker();
        let mut reactor = Reactor::new().unwrap();
        worker.arrive(START + SECOND / 4, reactor.io());
        assert_eq!(worker.outstanding, 251, "due at 0, 1, ... 250 ms");
        worker.budget = 9;
        worker.arrive(START + 60 * SECOND, reactor.io());
        assert_eq!((worker.outstanding, worker.next_due), (260, None));
    }

    #[test]
    fn connections_that_were_lost_together_do_not_return_together() {
        let (mut worker, _heard) = worker();
        worker.lanes.extend((0..64).map(|_| Lane::new(0, false)));
        let mut pauses: Vec<u64> = Vec::new();
        for lane in 0..64 {
            let before = now_ns();
            worker.put_off(lane);
            match worker.lanes[lane as usize].state {
                State::Waiting(at) => pauses.push(at - before),
                _ => panic!("lane {lane} does not wait"),
            }
        }
        let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
        assert!(*least >= BACKOFF.0 / 2 && *least < BACKOFF.0 && most - least > MILLISECOND, "{least} to {most} ns");
    }

    #[test]
    fn seconds_in_which_the_generator_was_not_run_are_told_as_empty() {
        let (mut worker, heard) = worker();
        let mut reactor = Reactor::new().unwrap();
        worker.arrive(START + SECOND / 2, reactor.io());
        worker.tick(START + 3 * SECOND + SECOND / 2);
        let told: Vec<_> =
            (0..3).map(|_| interval(&heard)).map(|i| (i.second, i.counts.begun, i.counts.waiting)).collect();
        assert_eq!(told, [(0, 501, 501), (1, 0, 0), (2, 0, 0)]);
        assert!(heard.try_recv().is_err() && worker.interval.second == 3);
        assert_eq!(worker.next_second, START + 4 * SECOND);
    }
}
