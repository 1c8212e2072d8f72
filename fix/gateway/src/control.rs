//! Starting and ending: listeners, workers, the watcher's news, reload, drain, hand-over, and the HTTP endpoints.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options, Target, address_target};
use unslow_reactor::{End, Listening, Peer, Reactor, now_ns};
use unslow_status::{NotReady, Serving, Status};
use unslow_topology::{Change, Health, Info, Topology};
use unslow_watch::{News, Settings, Watch};

use crate::admin::metrics;
use crate::config::{Config, Facade};
use crate::error::Error;
use crate::handover::{self, Offer};
use crate::listeners::{Listeners, sockets};
use crate::map::Map;
use crate::reply::error;
use crate::server_tls::{server_tls, tls_files};
use crate::shared::{Asker, Event, Mailbox, Message, Notice, ServerLimits, Shared};
use crate::worker::Worker;
use unslow_commands::Table;

/// What a gateway is started with.
pub struct Start {
    /// Its settings.
    pub config: Config,
    /// The target of the settings, with passwords that stand elsewhere.
    pub target: Target,
    /// How to reach servers.
    pub options: Options,
    /// Reads the settings again, for reload: from where they came, flags included.
    pub reread: Option<Reread>,
    /// Hears what an operator should: reloads, changes, what is denied. One line each, already structured.
    pub log: Box<dyn Fn(Log<'_>) + Send + Sync>,
}

/// See [`Start::reread`].
pub type Reread = Box<dyn Fn() -> Result<Config, Box<dyn std::error::Error + Send + Sync>> + Send>;
/// A line for the operator: an event and its fields.
pub type Log<'a> = (&'a str, &'a [(&'a str, String)]);

/// A running gateway. Dropping it ends it at once; [`Gateway::drain`] ends it politely.
pub struct Gateway {
    shared: Arc<Shared>,
    /// Addresses it listens on, with the ports the system chose.
    pub addresses: Vec<String>,
    workers: Vec<JoinHandle<()>>,
    control: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Gateway {
    /// Looks at the deployment, listens, serves.
    pub fn start(start: Start) -> Result<Gateway, Error> {
        start.config.check()?;
        let config = Arc::new(start.config);
        let target = start.target;
        let tls = if target.tls { Some(start.options.tls.client_config()?) } else { None };
        let server_tls = server_tls(&config)?;
        let (control, events) = channel();
        let mut settings = Settings::new(target.clone(), start.options.clone());
        settings.suspect_after = Duration::from_millis(config.suspect_ms);
        let feed = Feed(control.clone());
        let watch = Watch::start(settings, move |news| feed.send(Event::News(news)))?;
        let topology = watch.topology();
        let (table, server, limits) = look_at(&topology, &target, &start.options, &config)?;
        let name = start.options.tls.server_name.clone();
        let map = Map::next(None, topology, &config, &target, tls.as_ref(), name.as_deref());
        let threads = config.threads;
        let shared = Arc::new(Shared {
            control,
            target,
            tls,
            server_name: name,
            config: Mutex::new(config.clone()),
            table: Mutex::new(Arc::new(table)),
            settings_version: AtomicU64::new(1),
            map_version: AtomicU64::new(map.version),
            map: Mutex::new(Arc::new(map)),
            server: Mutex::new(server),
            limits: Mutex::new(limits),
            workers: (0..threads).map(|_| Mailbox::default()).collect(),
            clients: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            doubter: OnceLock::new(),
            reload: Mutex::default(),
            end: AtomicBool::new(false),
            drained: AtomicUsize::new(0),
            started: Instant::now(),
            facade_ports: Mutex::default(),
        });
        let _ = shared.doubter.set(watch.doubter());
        // Sockets: from the gateway that runs already, or our own.
        let mut inheritance = match config.handover.as_str() {
            "" => None,
            path => handover::take_over(path).map_err(|why| Error::Handover { path: path.into(), why })?,
        };
        let inherited = inheritance.as_mut().map_or(Vec::new(), |i| std::mem::take(&mut i.sockets));
        let Listeners { addresses, by_worker } = match inherited.is_empty() {
            true => Listeners::open(&config, server_tls.as_ref())?,
            false => Listeners::inherited(inherited, threads, server_tls.as_ref()),
        };
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        let kept: Vec<Arc<Listening>> = by_worker.iter().flatten().cloned().collect();
        for (number, sockets) in by_worker.into_iter().enumerate() {
            let theirs = shared.clone();
            let thread = std::thread::Builder::new().name(format!("gateway-{number}"));
            let thread = thread.spawn(move || work(number, theirs, sockets));
            workers.push(thread.map_err(Error::system("a worker thread"))?);
        }
        let status = match config.metrics.as_str() {
            "" => None,
            address => {
                let seen = Arc::new(Seen { shared: shared.clone() });
                // Of an heir the port is free only when its predecessor has ended.
                let serving = unslow_status::serve(address, inheritance.is_some(), seen);
                Some(serving.map_err(Error::system(format!("metrics at {address}")))?)
            }
        };
        let mut control = Control {
            shared: shared.clone(),
            watch,
            events,
            options: start.options,
            reread: start.reread,
            log: start.log.into(),
            stop: stop.clone(),
            table_due: None,
            server_tls,
            sockets: kept,
            addresses: addresses.clone(),
            sequence: 0,
            tls_files: tls_files(&config),
            offer_end: End::new().map_err(Error::system("a descriptor"))?,
            _status: status,
        };
        control.open_facade();
        if !config.handover.is_empty() {
            control.offer(&config.handover)?;
        }
        let control = std::thread::Builder::new().name("gateway-control".into()).spawn(move || control.run_guarded());
        let control = Some(control.map_err(Error::system("the control thread"))?);
        // Only now: had anything failed, the old gateway would go on.
        if let Some(inheritance) = inheritance {
            inheritance.ready();
        }
        Ok(Gateway { shared, addresses, workers, control, stop })
    }

    /// Reads the settings again.
    pub fn reload(&self) {
        self.shared.ask_reload(None);
    }

    /// Takes no new clients; ends when the last has its answers, or after `drain_ms`.
    pub fn drain(&self) {
        self.shared.ask_end();
    }

    /// Reload and drain for another thread, while this one waits.
    pub fn handle(&self) -> Handle {
        Handle(self.shared.clone())
    }

    /// Waits until the last worker has ended.
    pub fn wait(&mut self) {
        self.workers.drain(..).for_each(|worker| drop(worker.join())); // a panic is in `broken`
    }

    /// Whether the last worker has ended.
    pub fn ended(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Whether a part of it ended by itself.
    pub fn broken(&self) -> bool {
        self.shared.broken.load(Ordering::Acquire)
    }

    /// The metrics' text.
    pub fn metrics(&self) -> String {
        metrics(&self.shared)
    }
}

/// See [`Gateway::handle`].
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// See [`Gateway::reload`].
    pub fn reload(&self) {
        self.0.ask_reload(None);
    }

    /// See [`Gateway::drain`].
    pub fn drain(&self) {
        self.0.ask_end();
    }
}

/// The watcher's end of the control thread's channel. It lies in what the watcher calls, so it is dropped when the
/// watcher's thread ends, however it ends.
struct Feed(Sender<Event>);

impl Feed {
    fn send(&self, event: Event) {
        let _ = self.0.send(event); // nothing receives it only while the gateway ends
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.send(Event::WatcherEnded);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.shared.call_control();
        for worker in 0..self.shared.workers.len() {
            self.shared.post(worker, Message::Drain(0));
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

/// Says that a worker has ended, and whether by a panic: the others end then as well, politely.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.drained.fetch_add(1, Ordering::AcqRel);
        if std::thread::panicking() {
            self.0.end_broken();
        }
        self.0.call_control();
    }
}

fn work(number: usize, shared: Arc<Shared>, sockets: Vec<Arc<Listening>>) {
    let _ended = Ended(shared.clone());
    let ran = Reactor::new().and_then(|mut reactor| {
        let mut worker = Worker::new(number, shared.clone());
        if unslow_bypass::reactor::url(&shared.config().target).is_some() {
            reactor.carried_by(unslow_bypass::reactor::rings());
        }
        let io = reactor.io();
        io.limit_idle_buffers(4096);
        // Above what clients may hold, so that whoever holds more hears of it first.
        io.limit_input(shared.config().client_input_bytes.saturating_add(1 << 20));
        for listening in &sockets {
            worker.listeners.push(io.listen(listening)?);
        }
        drop(sockets);
        let _ = shared.workers[number].waker.set(io.waker());
        reactor.run(&mut worker)
    });
    if ran.is_err() {
        shared.end_broken();
    }
}

struct Control {
    shared: Arc<Shared>,
    watch: Watch,
    events: Receiver<Event>,
    options: Options,
    reread: Option<Reread>,
    log: Arc<dyn Fn(Log<'_>) + Send + Sync>,
    stop: Arc<AtomicBool>,
    /// When the command table is to be looked at again: nodes came or changed, perhaps with another version.
    table_due: Option<Instant>,
    server_tls: Option<Arc<rustls::ServerConfig>>,
    sockets: Vec<Arc<Listening>>,
    addresses: Vec<String>,
    /// Of maintenance notifications; begins with the time, so that it grows over restarts.
    sequence: u64,
    /// What the certificates in use were read from.
    tls_files: Vec<(&'static str, u64)>,
    /// Ends the hand-over's thread.
    offer_end: End,
    /// Metrics are served until the last worker has ended.
    _status: Option<Serving>,
}

impl Drop for Control {
    fn drop(&mut self) {
        self.offer_end.end();
    }
}

impl Control {
    /// Runs to the end of the gateway. After a panic nothing would keep the map fresh, and nothing would end the
    /// workers: so they are told to let clients finish, and the gateway is broken.
    fn run_guarded(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_ok() {
            return;
        }
        self.shared.end_broken();
        self.drain();
        // It may be what panicked: stderr can be closed.
        let log = self.log.clone();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            log(("control", &[("ended", "by a panic, a defect of unslow; letting clients finish".into())]));
        }));
        while !self.stop.load(Ordering::Acquire) && !self.all_drained() {
            let _ = self.events.recv(); // `shared` holds a sender, so it cannot fail
        }
    }

    fn all_drained(&self) -> bool {
        self.shared.drained.load(Ordering::Acquire) >= self.shared.workers.len()
    }

    /// No new clients; those that are there have `drain_ms` to finish.
    fn drain(&mut self) {
        let until = now_ns() + self.shared.config().drain_ms * 1_000_000;
        self.sockets.clear();
        self.offer_end.end();
        for worker in 0..self.shared.workers.len() {
            self.shared.post(worker, Message::Drain(until));
        }
    }

    fn run(&mut self) {
        let mut draining = false;
        while !self.stop.load(Ordering::Acquire) {
            match self.next_event() {
                Some(Event::News(News::Delta(delta, topology))) => {
                    self.remap(topology);
                    for known in &delta.changes {
                        (self.log)((
                            "topology",
                            &[("change", known.what.to_string()), ("known_us", known.known_us.to_string())],
                        ));
                        self.notify(&known.what);
                        if matches!(known.what, Change::Added { .. } | Change::Back { .. } | Change::Promoted { .. }) {
                            self.table_due = Some(Instant::now() + Duration::from_secs(1));
                        }
                    }
                }
                Some(Event::News(News::Fresh(topology))) => self.remap(topology),
                Some(Event::News(News::Note(text))) => (self.log)(("note", &[("text", text)])),
                Some(Event::WatcherEnded) => {
                    // Without its watcher a gateway would serve a map that ages.
                    (self.log)(("watcher", &[("ended", "by itself; letting clients finish".into())]));
                    self.shared.end_broken();
                }
                Some(Event::Look) | None => {}
            }
            if self.table_due.is_some_and(|at| at <= Instant::now()) {
                self.table_due = None;
                self.refresh_table(Vec::new());
            }
            let asked = self.shared.reload.lock().expect("no thread panicked").take();
            if let Some(askers) = asked {
                self.reload(askers);
            }
            if self.shared.end.load(Ordering::Acquire) && !draining {
                draining = true;
                let patience = self.shared.config().drain_ms;
                (self.log)((
                    "drain",
                    &[
                        ("clients", self.shared.clients.load(Ordering::Relaxed).to_string()),
                        ("at_most_ms", patience.to_string()),
                    ],
                ));
                self.drain();
            }
            if self.all_drained() {
                return;
            }
        }
    }

    /// Waits for the next event; nothing when the command table is due first.
    fn next_event(&self) -> Option<Event> {
        match self.table_due {
            Some(due) => self.events.recv_timeout(due.saturating_duration_since(Instant::now())).ok(),
            None => self.events.recv().ok(),
        }
    }

    fn remap(&mut self, topology: Arc<Topology>) {
        let shared = &self.shared;
        let config = shared.config();
        let (target, tls) = (&shared.target, shared.tls.as_ref());
        let map = Map::next(Some(&shared.map()), topology, &config, target, tls, shared.server_name());
        let version = map.version;
        *shared.map.lock().expect("no thread panicked") = Arc::new(map);
        shared.map_version.store(version, Ordering::Release);
        shared.call_all();
        self.open_facade();
    }

    /// On a thread of its own: a node that hangs must not keep a failover waiting. `askers` wait for it.
    fn refresh_table(&mut self, askers: Vec<Asker>) {
        let (shared, options, log) = (self.shared.clone(), self.options.clone(), self.log.clone());
        let topology = self.watch.topology();
        std::thread::spawn(move || match look_at(&topology, &shared.target, &options, &shared.config()) {
            Ok((table, server, limits)) => {
                *shared.limits.lock().expect("no thread panicked") = limits;
                let known = std::mem::replace(&mut *shared.server.lock().expect("no thread panicked"), server.clone());
                if known != server {
                    log(("server_version", &[("from", known.1), ("to", server.1)]));
                }
                *shared.table.lock().expect("no thread panicked") = Arc::new(table);
                shared.settings_version.fetch_add(1, Ordering::AcqRel);
                shared.call_all();
                answer(&shared, &askers, Ok(()));
            }
            // The nodes it asked are not well: after the next change.
            Err(e) => {
                let why = format!("the settings are in use, but the servers did not say what they take: {e}");
                answer(&shared, &askers, Err(&why));
                log(("command_table", &[("kept", e.to_string())]));
            }
        });
    }

    fn reload(&mut self, askers: Vec<Asker>) {
        let reread = self.reread.as_ref().map_or_else(
            || Err("started without a file; --config FILE gives one".to_string()),
            |reread| reread().map_err(|why| format!("{why}; the old settings stay")),
        );
        match reread {
            Err(why) => {
                answer(&self.shared, &askers, Err(&why));
                (self.log)(("reload", &[("refused", why)]));
            }
            Ok(mut new) => {
                let old = self.shared.config();
                let mut fixed = new.fixed_differences(&old);
                // What needs a restart stays as it is, and is said. A renewed certificate has the old name.
                new.keep_fixed(&old);
                let renewed = tls_files(&new).into_iter().filter(|file| !self.tls_files.contains(file));
                let renewed: Vec<&str> = renewed.map(|(name, _)| name).filter(|name| !fixed.contains(name)).collect();
                fixed.extend(renewed);
                *self.shared.config.lock().expect("no thread panicked") = Arc::new(new);
                self.shared.settings_version.fetch_add(1, Ordering::AcqRel);
                // For `idempotent`, and for what the servers allow by now.
                self.refresh_table(askers);
                let topology = self.shared.map().topology.clone();
                self.remap(topology);
                (self.log)(("reload", &[("done", "true".into()), ("need_a_restart", fixed.join(" "))]));
            }
        }
    }

    // The facade.

    /// A port for each node, next to ours.
    fn open_facade(&mut self) {
        let config = self.shared.config();
        if config.facade != Facade::Cluster || !self.shared.map().is_cluster() {
            return;
        }
        let Some(own) = self.addresses.first().and_then(|a| a.parse::<SocketAddr>().ok()) else { return };
        let nodes: Vec<String> = self.shared.map().topology.nodes.iter().map(|n| n.address.clone()).collect();
        for node in nodes {
            let mut ports = self.shared.facade_ports.lock().expect("no thread panicked");
            if ports.contains_key(&node) {
                continue;
            }
            // Ports of ours go on from our own; one that is taken is passed over.
            let next = ports.values().copied().max().unwrap_or(own.port());
            let found = (next.saturating_add(1)..=next.saturating_add(200)).find_map(|port| {
                let address = SocketAddr::new(own.ip(), port);
                let fds = sockets(&Peer::Tcp(address), config.threads).ok()?;
                Some((port, fds))
            });
            let Some((port, fds)) = found else {
                (self.log)(("facade", &[("no_port_for", node)]));
                continue;
            };
            ports.insert(node, port);
            drop(ports);
            for (worker, fd) in fds.into_iter().enumerate() {
                let listening = Arc::new(Listening { fd, tls: self.server_tls.clone() });
                self.shared.post(worker, Message::Listen(listening));
            }
        }
    }

    /// Tells clients who asked for it (CLIENT MAINT_NOTIFICATIONS ON) what moved, by the addresses they know.
    fn notify(&mut self, change: &Change) {
        let map = self.shared.map();
        let ports = self.shared.facade_ports.lock().expect("no thread panicked");
        let port = |address: &String| ports.get(address).copied();
        let (slots, moved) = match change {
            Change::Moved { slots, from: Some(from), to: Some(to) } => (slots, port(from).zip(port(to))),
            Change::Promoted { node, instead_of: Some(old), slots } if !slots.is_empty() => {
                (slots, port(old).zip(port(node)))
            }
            Change::Suspected { node } => match map.topology.at(node) {
                Some(master) if !master.slots.is_empty() => (&master.slots, None),
                _ => return,
            },
            _ => return,
        };
        if ports.is_empty() || moved.is_none() && !matches!(change, Change::Suspected { .. }) {
            return;
        }
        let started =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        self.sequence = self.sequence.max(started) + 1;
        let slots = slots.to_string().replace(' ', ",");
        let notice = Arc::new(Notice { sequence: self.sequence, slots, moved });
        for worker in 0..self.shared.workers.len() {
            self.shared.post(worker, Message::Notify(notice.clone()));
        }
    }

    // Hand-over.

    /// Gives the listening sockets to whoever may have them and asks, and ends then.
    fn offer(&self, path: &str) -> Result<(), Error> {
        let offer = Offer::open(path).map_err(|why| Error::Handover { path: path.into(), why })?;
        let (shared, sockets, end, log) =
            (self.shared.clone(), self.sockets.clone(), self.offer_end.clone(), self.log.clone());
        let thread = std::thread::Builder::new().name("gateway-handover".into());
        let offering = thread.spawn(move || {
            loop {
                match offer.visitor(&end) {
                    Ok(None) => return,
                    Err(why) => log(("handover", &[("refused", why.to_string())])),
                    Ok(Some(mut heir)) => {
                        // It serves: from now on everybody new is its client.
                        if handover::give(&mut heir, &sockets) {
                            shared.ask_end();
                            return;
                        }
                    }
                }
            }
        });
        offering.map(drop).map_err(Error::system("the hand-over's thread"))
    }
}

/// Tells clients that asked for it what became of reading the settings again.
fn answer(shared: &Shared, askers: &[Asker], done: Result<(), &str>) {
    let bytes = match done {
        Ok(()) => b"+OK\r\n".to_vec(),
        // A reason may have several lines; an error is one.
        Err(why) => error("ERR", &format!("unslow: {}", why.replace(['\r', '\n'], " "))),
    };
    for (worker, whom, seq) in askers {
        shared.post(*worker, Message::Answer(*whom, *seq, bytes.clone()));
    }
}

/// Name, version and RESP3 of a server.
type Version = (String, String, bool);

/// COMMAND, the version and the limits of a node that answers.
fn look_at(
    topology: &Topology,
    target: &Target,
    options: &Options,
    config: &Config,
) -> Result<(Table, Version, ServerLimits), Error> {
    let mut last = Error::NoAnswer { target: target.address() };
    let options = Options { protocol: 2, name: Some("unslow-gateway"), ..options.clone() };
    let mut nodes: Vec<_> = topology.nodes.iter().collect();
    nodes.retain(|n| n.health == Health::Up);
    nodes.sort_by_key(|n| n.slots.is_empty());
    for node in nodes {
        let Some(at) = address_target(target, &node.address) else { continue };
        let at = if node.address.starts_with("unix:") { target.clone() } else { at };
        let asked = Connection::open(&at, &options).and_then(|mut c| {
            let table = c.call(&["COMMAND"])?;
            let info =
                c.call(&["INFO", "server"]).map(|v| Info::parse(&v.text().unwrap_or_default())).unwrap_or_default();
            let limits = ask_limits(&mut c);
            let hello = c.call(&["HELLO", "3"]).is_ok();
            Ok((table, info, limits, hello))
        });
        match asked {
            Ok((reply, info, limits, resp3)) => match Table::parse(&reply, &config.idempotent) {
                Some(table) => {
                    let version = info.get("valkey_version").or_else(|| info.get("redis_version")).unwrap_or("0.0.0");
                    return Ok((table, (info.product().to_lowercase(), version.to_string(), resp3), limits));
                }
                None => last = Error::NoCommandTable { node: node.address.clone() },
            },
            Err(e) => last = e.into(),
        }
    }
    Err(last)
}

/// What a server takes, as far as this user may ask for it.
fn ask_limits(c: &mut Connection) -> ServerLimits {
    let info = c.call(&["INFO", "clients"]).ok().and_then(|v| v.text()).map(|text| Info::parse(&text));
    let mut setting = |name: &str| c.call(&["CONFIG", "GET", name]).ok()?.items().get(1)?.text();
    // Of `busy-reply-threshold` the name that all versions know. Older ones take a negative number for never, too.
    let busy = setting("lua-time-limit").and_then(|text| text.parse::<i64>().ok());
    ServerLimits {
        maxclients: info.and_then(|i| i.get("maxclients")?.parse().ok()),
        argument_bytes: setting("proto-max-bulk-len").and_then(|text| text.parse().ok()),
        busy_ms: busy.map(|ms| u64::try_from(ms).unwrap_or(0)),
    }
}

/// What the gateway says of itself over HTTP.
struct Seen {
    shared: Arc<Shared>,
}

impl Status for Seen {
    fn metrics(&self) -> String {
        metrics(&self.shared)
    }

    /// Every slot has a node that answers.
    fn ready(&self) -> Result<(), NotReady> {
        if self.shared.end.load(Ordering::Acquire) {
            return Err(NotReady::Ending);
        }
        let map = self.shared.map();
        let served = map.topology.masters().next().is_some()
            && map.topology.masters().all(|n| n.health == Health::Up)
            && !map.servers.slots().contains(&unslow_nodes::NOBODY);
        if served { Ok(()) } else { Err(NotReady::SlotsWithoutMaster) }
    }
}
