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

mod callers;
mod lanes;
mod phases;
mod replies;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use unslow_nodes::{Backoff, Greeting, NOBODY, NodeTable, Plan, Tolerance};
use unslow_reactor::{Closed, Handler, Id, Io, Peer, Reactor, Tls, now_ns};
use unslow_resp::{Done, Frame, Kind, Limits, Scan, Scanner, Split, Splitter, write_command};
use unslow_topology::{DeploymentKind, Role, Topology};
use unslow_units::time;

use crate::arrivals::Schedule;
use crate::error::GeneratorError;
use crate::route::Routes;
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
    greeting: Greeting,
    /// PSUBSCRIBE is not answered yet.
    subscribing: bool,
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

#[derive(Default)]
struct Node {
    /// What its name resolved to; each connection tries one after the other.
    peers: Vec<Peer>,
    /// Not to be resolved again before this time.
    resolve_at: u64,
    /// Requests go there: by the topology, or since a redirect led there.
    wanted: bool,
    lanes: Vec<u32>,
    /// Lanes with room, the longest idle first.
    free: VecDeque<u32>,
    waiting: VecDeque<Pending>,
    /// Numbers of requests that were drawn for it and are not begun: fewer than a caller sends at once.
    drawn: VecDeque<u64>,
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
    route: Route,
    net: Connections,
    hello: Greetings,
    demand: Demand,
    choice: Choice,
    window: usize,
    batch: u32,
    phase: Phase,
    clock: Times,
    report: Reporting,
    failed: Option<GeneratorError>,
    scratch: Vec<u8>,
}

/// Which node a request is for.
struct Route {
    topology: Arc<Topology>,
    version: u64,
    /// Requests whose slot has no owner.
    homeless: VecDeque<Pending>,
    read_turn: usize,
}

/// Nodes and the connections to them.
struct Connections {
    nodes: NodeTable<Node>,
    lanes: Vec<Lane>,
    /// Lane of each connection, by [`Id::index`].
    lane_of: Vec<u32>,
    per_node: usize,
    /// The node that all requests go to, where there is but one.
    only: Option<u16>,
}

/// How each connection begins, besides what [`Shape`] tells.
struct Greetings {
    /// READONLY, for a replica that is read from.
    replica: Vec<Vec<u8>>,
    tls: Option<(Arc<rustls::ClientConfig>, Option<String>)>,
}

/// What is to be asked: by callers, a schedule, or both.
struct Demand {
    /// Requests in flight of each caller.
    in_flight: Vec<u32>,
    idle: Vec<u32>,
    /// Arrivals that no caller is free for.
    unclaimed: VecDeque<u64>,
    unbounded: bool,
    schedule: Option<Schedule>,
    next_due: Option<u64>,
    seq: u64,
    seq_step: u64,
    /// Drawn for some node, and not begun.
    drawn: u64,
    /// To be drawn again before any others, in their order: another node may have their slots, or has to answer.
    again: VecDeque<u64>,
    /// Requests this thread may still begin.
    budget: u64,
    outstanding: u64,
}

impl Demand {
    /// The number of the next request.
    fn next_seq(&mut self) -> u64 {
        self.again.pop_front().unwrap_or_else(|| {
            let seq = self.seq;
            self.seq += self.seq_step;
            seq
        })
    }

    /// These were drawn, and are to be drawn again.
    fn draw_again(&mut self, drawn: &mut VecDeque<u64>) {
        self.drawn -= drawn.len() as u64;
        self.again.extend(drawn.drain(..));
        self.again.make_contiguous().sort_unstable();
    }
}

/// When what is due, in nanoseconds of [`now_ns`].
#[derive(Default)]
struct Times {
    start: u64,
    end: u64,
    next_second: u64,
    next_housekeeping: u64,
    load_end: u64,
    drain_until: u64,
    last_answer: u64,
    cpu_at_start: u64,
}

/// What was seen and is not with the collector yet.
struct Reporting {
    interval: Box<Interval>,
    to_collector: Sender<Said>,
    spares: Receiver<Box<Interval>>,
    /// Waiting for a connection is measured apart.
    waits: bool,
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
            greeting: Greeting::default(),
            subscribing: false,
            progress: 0,
            attempts: 0,
            backoff: Backoff::new(BACKOFF.0, BACKOFF.1),
            trouble: None,
            listed: false,
            subscriber,
            scanner: Scanner::default(),
        }
    }

    /// Whether it waits for a reply before its first request.
    fn is_greeting(&self) -> bool {
        self.greeting.due().is_some() || self.subscribing
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
        let topology = shared.routes.get();
        let mut read_only = Vec::new();
        write_command(&mut read_only, &["READONLY"]);
        let interval = Box::new(Interval::new(shared.workload.commands.len()));
        let caller_count = caller_count as usize;
        Worker {
            route: Route { version: shared.routes.version(), topology, homeless: VecDeque::new(), read_turn: index },
            net: Connections {
                nodes: NodeTable::default(),
                lanes: Vec::new(),
                lane_of: Vec::new(),
                per_node: lanes_per_node,
                only: None,
            },
            hello: Greetings { replica: vec![read_only], tls: shape.tls.clone() },
            demand: Demand {
                in_flight: vec![0; caller_count],
                idle: if open_loop { (0..caller_count as u32).collect() } else { Vec::new() },
                unclaimed: VecDeque::new(),
                unbounded: open_loop && shape.callers.is_none(),
                schedule,
                next_due: None,
                seq: index as u64,
                seq_step: threads as u64,
                drawn: 0,
                again: VecDeque::new(),
                budget: shape.requests.map_or(u64::MAX, |n| part(n, threads, index)),
                outstanding: 0,
            },
            choice,
            window: shape.window.unwrap_or(usize::MAX),
            batch: if choice == Choice::Own { shape.window.unwrap_or(1) as u32 } else { 1 },
            phase: Phase::Connecting,
            clock: Times::default(),
            report: Reporting {
                interval,
                to_collector: said,
                spares,
                waits: choice != Choice::Own,
                said_ready: false,
                alike: (0, 0),
                alike_count: 0,
            },
            failed: None,
            scratch: Vec::new(),
            shared,
        }
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
        if version != self.route.version {
            self.route.version = version;
            let topology = self.shared.routes.get();
            self.adopt(&topology, io);
        }
        if self.phase == Phase::Connecting {
            return self.connecting(now, io);
        }
        if now >= self.clock.next_second {
            self.tick(now);
        }
        if self.phase == Phase::Running {
            if self.demand.next_due.is_some() {
                self.arrive(now, io);
            }
            let exhausted = match self.demand.schedule {
                Some(_) => self.demand.next_due.is_none(),
                None => self.demand.budget == 0 && self.demand.outstanding == 0,
            };
            if now >= self.clock.end || exhausted || self.shared.stop.load(Ordering::Relaxed) {
                self.end_of_load(now);
            }
        }
        if now >= self.clock.next_housekeeping {
            self.housekeeping(now, io);
        }
        if self.phase == Phase::Draining {
            let stopped = self.shared.stop.load(Ordering::Relaxed);
            let heard = self.shared.shape.subscribers == 0 || now > self.clock.last_answer + SECOND / 5;
            if self.demand.outstanding == 0 && self.demand.unclaimed.is_empty() && heard
                || now >= self.clock.drain_until
                || stopped
            {
                self.over(now, io);
                return None;
            }
        }
        let mut wake = self.clock.next_second.min(self.clock.next_housekeeping);
        if self.phase == Phase::Running {
            wake = wake.min(self.clock.end).min(self.demand.next_due.unwrap_or(u64::MAX));
        }
        Some(wake)
    }

    fn opened(&mut self, io: &mut Io, id: Id) {
        let lane_index = self.net.lane_of[id.index()];
        let lane = &mut self.net.lanes[lane_index as usize];
        // Who is never read from as a replica is dialled since it was promoted, which the topology may not know yet.
        let readonly = self.net.nodes[lane.node].is_replica
            && self.shared.shape.read_from != ReadFrom::Primary
            && self.route.topology.kind == DeploymentKind::Cluster;
        let shape = &self.shared.shape;
        let plan = Plan {
            resp3: shape.resp3,
            tolerance: Tolerance::NoResp3,
            setup: if readonly { &self.hello.replica } else { &[] },
            ..shape.target.plan()
        };
        lane.progress = now_ns();
        let out = io.output(id);
        lane.greeting = Greeting::begin(&plan, out);
        if lane.subscriber {
            lane.subscribing = true;
            write_command(out, &["PSUBSCRIBE", &shape.channels]);
        }
        if !lane.is_greeting() {
            self.ready(lane_index, io);
        }
    }

    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize {
        let lane_index = self.net.lane_of[id.index()];
        let used = if self.net.lanes[lane_index as usize].subscriber {
            self.messages(lane_index, bytes, now_ns(), io)
        } else {
            self.replies(lane_index, id, bytes, now_ns(), io)
        };
        self.record_alike();
        self.report.interval.counts.received += used as u64;
        used
    }

    fn closed(&mut self, io: &mut Io, id: Id, why: Closed) {
        let lane_index = self.net.lane_of[id.index()];
        let lane = &mut self.net.lanes[lane_index as usize];
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
