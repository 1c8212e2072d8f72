//! Knows of a topology change within milliseconds, on stock servers, for one connection a node.
//!
//! ```text
//!   each node  --sunsubscribe (a slot left), pings in flight-->  links  --CLUSTER NODES, ROLE-->  views
//!   Sentinels  --+switch-master, +promoted-slave------------->     |                               |
//!                                                     suspicion of the silent                 merge by epoch
//!                                                                  \---------> topology, delta, sequence --> tell
//! ```
//!
//! What surprises:
//! - Redis 7.0 and Valkey tell us themselves: a connection that holds a sharded subscription in a slot gets
//!   `sunsubscribe` the moment the server learns that the slot left its shard. So a link subscribes to one channel in
//!   each of its slots; nobody ever publishes there.
//! - A stopped master sends nothing at all, so one ping is always under way, and its shard's replicas are asked for
//!   ROLE every few milliseconds from the moment the ping is late until one is promoted.
//! - Nobody's word is taken alone: views are merged by config epoch, so that a node on the wrong side of a partition
//!   does not win. See DESIGN.md.
#![forbid(unsafe_code)]

mod channels;
mod link;
mod publish;
mod roles;
mod watcher;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unslow_client::{Error, ErrorKind, Options, Target, discover_as_client};
use unslow_reactor::{Reactor, Waker};
use unslow_topology::{Change, Topology};

/// What to watch, and how closely.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Any address of the deployment.
    pub target: Target,
    /// How to connect.
    pub options: Options,
    /// A node that owes an answer this long is suspected; longer where answers have lately taken longer. Default 250
    /// ms.
    pub suspect_after: Duration,
    /// A ping follows the last answer by this much; with many nodes by more. Default 100 ms.
    pub ping_every: Duration,
    /// Tell clients, on channels of the deployment.
    pub publish: Option<Publish>,
}

impl Settings {
    /// With the defaults.
    pub fn new(target: Target, options: Options) -> Settings {
        let (suspect_after, ping_every) = (Duration::from_millis(250), Duration::from_millis(100));
        Settings { target, options, suspect_after, ping_every, publish: None }
    }
}

/// What is published beside `__cluster__:moved`, `__cluster__:failover` and the heartbeat.
#[derive(Clone, Copy, Debug, Default)]
pub struct Publish {
    /// `__Booksleeve_MasterChanged`, on which clients of StackExchange.Redis look at everything anew.
    pub master_changed: bool,
}

/// What showed first that something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// A server took back a subscription in the slot.
    Sunsubscribe,
    /// A ping stayed without an answer.
    Silence,
    /// A connection broke or was refused.
    ConnectionLost,
    /// ROLE.
    Role,
    /// A Sentinel said so.
    Sentinel,
    /// Asking again after a while.
    Poll,
    /// Somebody who uses the view met a redirect.
    Doubt,
}

impl Sign {
    /// As events and metrics name it.
    pub fn word(self) -> &'static str {
        match self {
            Sign::Sunsubscribe => "sunsubscribe",
            Sign::Silence => "silence",
            Sign::ConnectionLost => "connection lost",
            Sign::Role => "ROLE",
            Sign::Sentinel => "Sentinel",
            Sign::Poll => "poll",
            Sign::Doubt => "redirect",
        }
    }
}

/// A change and how it came to be known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Known {
    /// What changed.
    #[serde(flatten)]
    pub what: Change,
    /// What showed it first.
    pub sign: Sign,
    /// From that sign to the knowledge of what it meant, in microseconds.
    pub known_us: u64,
    /// Since the last word of the node it is about, or of the one that was replaced, in milliseconds; where it was
    /// silent.
    pub silent_ms: Option<u64>,
}

/// Changes that became known together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Delta {
    /// Counts deltas of this watcher from 1: who misses a number has missed one.
    pub sequence: u64,
    /// [`Topology::digest`] behind the changes.
    pub digest: String,
    /// Unix time in milliseconds.
    pub at_unix_ms: u64,
    /// What changed.
    pub changes: Vec<Known>,
}

/// What a watcher tells.
#[derive(Clone, Debug)]
pub enum News {
    /// Something changed.
    Delta(Delta, Arc<Topology>),
    /// Round trips and lags are fresh; nothing else changed. About once a second.
    Fresh(Arc<Topology>),
    /// For the operator: what cannot be seen, and why.
    Note(String),
}

/// A line of `unslow watch --format json`.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// The first line: what there is.
    Topology {
        /// Version of this format, `unslow.watch/1`.
        schema: String,
        /// Digest of masters, replicas and slots.
        digest: String,
        /// What there is.
        topology: Topology,
    },
    /// Something changed.
    Delta(Delta),
    /// What cannot be seen, and why.
    Note {
        /// A sentence for the log.
        text: String,
    },
}

/// A running watcher; dropping it ends it.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct Shared {
    topology: Mutex<Option<Arc<Topology>>>,
    first: Condvar,
    doubt: AtomicBool,
    ended: AtomicBool,
    waker: Mutex<Option<Waker>>,
    failure: Mutex<Option<String>>,
}

impl Watch {
    /// Looks at the deployment, and goes on looking in a thread of its own. `tell` is called on that thread.
    ///
    /// Fails when the target gives no usable answer within the options' timeouts.
    pub fn start(settings: Settings, tell: impl FnMut(News) + Send + 'static) -> Result<Watch, Error> {
        let found = discover_as_client(&settings.target, &settings.options)?;
        let shared = Arc::new(Shared {
            topology: Mutex::new(None),
            first: Condvar::new(),
            doubt: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waker: Mutex::new(None),
            failure: Mutex::new(None),
        });
        let patience = settings.options.connect_timeout + settings.options.command_timeout;
        let address = settings.target.address();
        let io_error = |e: std::io::Error| Error::new(ErrorKind::Unreachable, format!("the watcher's event loop: {e}"));
        let mut watcher = watcher::Watcher::new(settings, &found, shared.clone(), Box::new(tell))?;
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || {
            let ran = Reactor::new().and_then(|mut reactor| {
                *theirs.waker.lock().expect("no thread panicked") = Some(reactor.io().waker());
                reactor.run(&mut watcher)
            });
            if let Err(e) = ran {
                *theirs.failure.lock().expect("no thread panicked") = Some(e.to_string());
                theirs.first.notify_all();
            }
        });
        let mut watch = Watch { shared, thread: Some(thread.map_err(io_error)?) };
        let deadline = Instant::now() + patience;
        let mut topology = watch.shared.topology.lock().expect("no thread panicked");
        while topology.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(topology);
                let why = watch.shared.failure.lock().expect("no thread panicked").take();
                watch.stop();
                let why = why.unwrap_or_else(|| "no node said who owns what in time; is a master up?".into());
                return Err(Error::new(ErrorKind::Unreachable, format!("{address}: {why}")));
            }
            (topology, _) = watch.shared.first.wait_timeout(topology, left).expect("no thread panicked");
        }
        drop(topology);
        Ok(watch)
    }

    /// The newest.
    pub fn topology(&self) -> Arc<Topology> {
        let topology = self.shared.topology.lock().expect("no thread panicked");
        topology.clone().expect("start waited for it")
    }

    /// Something does not fit the view (a redirect, a broken connection): look again now.
    pub fn doubt(&self) {
        self.doubter().doubt();
    }

    /// The same for other threads.
    pub fn doubter(&self) -> Doubter {
        Doubter(self.shared.clone())
    }

    fn stop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(waker) = &*self.shared.waker.lock().expect("no thread panicked") {
            waker.wake();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

/// See [`Watch::doubter`].
#[derive(Clone)]
pub struct Doubter(Arc<Shared>);

impl Doubter {
    /// See [`Watch::doubt`].
    pub fn doubt(&self) {
        if !self.0.doubt.swap(true, Ordering::AcqRel)
            && let Some(waker) = &*self.0.waker.lock().expect("no thread panicked")
        {
            waker.wake();
        }
    }
}
