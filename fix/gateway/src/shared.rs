//! What the threads of a gateway share: settings, map and table as they are now, and messages from one to another. None
//! of it is touched while a command goes its common way.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock};

use unslow_client::Target;
use unslow_reactor::{Listening, Waker};
use unslow_watch::{Doubter, News};

use crate::config::Config;
use crate::filter::Filter;
use crate::map::Map;
use crate::pauses::Halt;
use crate::session::{Identity, Whom};
use crate::stats::Stats;
use unslow_commands::Table;

/// From one thread to another.
pub enum Message {
    /// Take nobody new; end when the last is gone, at this time at the latest.
    Drain(u64),
    /// UNSLOW PAUSE and RESUME.
    Halt(bool),
    Show(Arc<Question>),
    /// The answer to a command of a client of yours.
    Answer(Whom, u32, Vec<u8>),
    /// The same where it is that CLIENT KILL closed none of this user's clients.
    KilledNobody(Whom, u32, Vec<u8>),
    Listen(Arc<Listening>),
    /// For everyone who wants maintenance notifications.
    Notify(Arc<Notice>),
}

/// Slots that move, for clients that asked to be told.
pub struct Notice {
    pub sequence: u64,
    pub slots: String,
    /// Ports of the facade: from where and to where they have moved. `None` while their master does not answer, so that
    /// they are about to.
    pub moved: Option<(u16, u16)>,
}

/// A worker, its client that asks, and which of the client's commands.
pub type Asker = (usize, Whom, u32);

/// What every worker has to say a part of.
pub struct Question {
    pub what: What,
    /// Which clients it is about.
    pub filter: Filter,
    pub asker: Asker,
    pub parts: Mutex<Vec<Vec<Vec<String>>>>,
    pub left: AtomicUsize,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Clients,
    /// The same in the servers' own format.
    ClientList,
    /// Not only a question: they are closed, and counted.
    ClientKill,
    /// The same by address, in the words of old.
    ClientKillOne,
    /// CLIENT PAUSE until this time.
    Pause(Halt, u64),
    Unpause,
    Backends,
    Pools,
}

/// What the control thread waits for.
pub enum Event {
    News(News),
    /// The watcher's thread has ended, by itself or by a panic.
    WatcherEnded,
    /// A request or an end stands in [`Shared`].
    Look,
}

/// What the control thread and all workers read.
pub struct Shared {
    /// Wakes the control thread. It has no other clock, so whatever it should see is sent here.
    pub control: Sender<Event>,
    pub target: Target,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    pub server_name: Option<String>,
    pub config: Mutex<Arc<Config>>,
    pub table: Mutex<Arc<Table>>,
    /// Changes with either.
    pub settings_version: AtomicU64,
    pub map: Mutex<Arc<Map>>,
    pub map_version: AtomicU64,
    /// Server version and whether it speaks RESP3.
    pub server: Mutex<(String, String, bool)>,
    /// Changes with the table.
    pub limits: Mutex<ServerLimits>,
    pub workers: Vec<Mailbox>,
    pub clients: AtomicU64,
    pub numbers: AtomicU64,
    /// A worker ended by a panic.
    pub broken: AtomicBool,
    pub doubter: OnceLock<Doubter>,
    /// Someone asked for the settings to be read again: the clients that did.
    pub reload: Mutex<Option<Vec<Asker>>>,
    /// Someone asked for the end.
    pub end: AtomicBool,
    pub drained: AtomicUsize,
    pub started: std::time::Instant,
    /// Node listeners of the cluster facade: address of the server to port.
    pub facade_ports: Mutex<std::collections::BTreeMap<String, u16>>,
}

/// What a server takes, as far as it may be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections: `maxclients`.
    pub maxclients: Option<u64>,
    /// Bytes of an argument: `proto-max-bulk-len`.
    pub argument_bytes: Option<u64>,
    /// Milliseconds until it says that it is busy with a script: `busy-reply-threshold`; 0 for never.
    pub busy_ms: Option<u64>,
}

/// A worker's.
#[derive(Default)]
pub struct Mailbox {
    called: AtomicBool,
    messages: Mutex<Vec<Message>>,
    pub waker: OnceLock<Waker>,
    pub stats: Mutex<Stats>,
}

impl Shared {
    pub fn config(&self) -> Arc<Config> {
        self.config.lock().expect("no thread panicked").clone()
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.lock().expect("no thread panicked").clone()
    }

    pub fn limits(&self) -> ServerLimits {
        *self.limits.lock().expect("no thread panicked")
    }

    pub fn map(&self) -> Arc<Map> {
        self.map.lock().expect("no thread panicked").clone()
    }

    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// As whom the gateway itself speaks.
    pub fn own_identity(&self) -> Identity {
        let password = self.target.password.as_ref().map(|p| p.reveal().as_bytes().to_vec());
        Identity { user: self.target.user.as_ref().map(|u| u.as_bytes().to_vec()), password }
    }

    pub fn client_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The map seems wrong.
    pub fn doubt(&self) {
        if let Some(doubter) = self.doubter.get() {
            doubter.doubt();
        }
    }

    /// The settings are to be read again. A client that asks is answered when that is done.
    pub fn ask_reload(&self, asker: Option<Asker>) {
        self.reload.lock().expect("no thread panicked").get_or_insert_with(Vec::new).extend(asker);
        self.call_control();
    }

    /// No new clients from now on; those that are connected may finish.
    pub fn ask_end(&self) {
        self.end.store(true, Ordering::Release);
        self.call_control();
    }

    /// The same after a part of the gateway has ended by itself.
    pub fn end_broken(&self) {
        self.broken.store(true, Ordering::Release);
        self.ask_end();
    }

    /// Makes the control thread look at `reload`, `end` and `drained`.
    pub fn call_control(&self) {
        let _ = self.control.send(Event::Look); // it does not listen only once the gateway has ended
    }

    pub fn post(&self, worker: usize, message: Message) {
        let mailbox = &self.workers[worker];
        mailbox.messages.lock().expect("no thread panicked").push(message);
        self.call(worker);
    }

    /// Makes a worker look at settings, map and messages.
    pub fn call(&self, worker: usize) {
        let mailbox = &self.workers[worker];
        mailbox.called.store(true, Ordering::Release);
        if let Some(waker) = mailbox.waker.get() {
            waker.wake();
        }
    }

    pub fn call_all(&self) {
        (0..self.workers.len()).for_each(|w| self.call(w));
    }

    #[inline]
    pub fn called(&self, worker: usize) -> bool {
        let called = &self.workers[worker].called;
        called.load(Ordering::Relaxed) && called.swap(false, Ordering::AcqRel)
    }

    pub fn take_messages(&self, worker: usize) -> Vec<Message> {
        std::mem::take(&mut self.workers[worker].messages.lock().expect("no thread panicked"))
    }

    pub fn publish(&self, worker: usize, stats: &Stats) {
        self.workers[worker].stats.lock().expect("no thread panicked").clone_from(stats);
    }

    /// All workers' together, at most a second old.
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for mailbox in &self.workers {
            all.merge(&mailbox.stats.lock().expect("no thread panicked"));
        }
        all
    }
}
