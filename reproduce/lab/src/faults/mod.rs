//! Faults as values: each makes real servers, paths or clients suffer, on a target, and is undone by `heal` or on drop.
//!
//! A fault that a doctor's rule must name says which; `cargo xtask tidy` holds every rule to having one. Faults that
//! come from clients can change their ways (`Active::fix`), as the doctor's remedy asks of them: that is what
//! `unslow demo` proves.

mod at;
mod catalogue;
mod clients;
mod crowd;
mod deployment;
mod disk;
mod habits;
mod host;
mod machine;
mod memory;
mod path;
mod placement;
mod process;
mod replication;
mod server;
mod shards;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use unslow_client::{Connection, Options, Target};
use unslow_engine::{Error, Seat, Server};
use unslow_units::did_you_mean;

pub use at::{At, two_ends};
pub use catalogue::ALL;

use crate::lab::Lab;
use crate::topology::{HostSpec, Kind, Topology};

/// What a fault can be done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The deployment as a whole; no target.
    Deployment,
    /// A server: `node-2`, `master`, `replica-1`, `sentinel-1`, an address.
    Node,
    /// A server, or a host or zone and with it all servers there.
    Processes,
    /// A host or zone (and all others), `A:B` between two of them (`A->B` for one way), or `all`.
    Path,
}

impl Takes {
    /// The same for a person; nothing where no target is taken.
    pub fn words(self) -> &'static str {
        match self {
            Takes::Deployment => "",
            Takes::Node => "SERVER",
            Takes::Processes => "SERVER, HOST or ZONE",
            Takes::Path => "HOST, ZONE, A:B or all",
        }
    }
}

/// One fault.
#[derive(Clone, Copy)]
pub struct Fault {
    /// What a person types.
    pub name: &'static str,
    /// The doctor's rule that must name it first; also typed.
    pub rule: Option<&'static str>,
    /// What it does, as a sentence without a full stop.
    pub about: &'static str,
    /// What it can be done to.
    pub takes: Takes,
    /// What a number beside it means, and the number when there is none.
    pub value: Option<(&'static str, &'static str)>,
    /// The smallest deployment that shows it.
    pub shape: fn() -> Topology,
    /// Configuration it needs; set while it lasts where the deployment was not started with it.
    pub settings: &'static [(&'static str, &'static str)],
    /// Whether it needs hosts with wires between them.
    pub wired: bool,
    /// Whether it needs root outside a user namespace, for a cgroup.
    pub root: bool,
    /// Whether it shows best without wires: its load wants all of two cores, and the carrier would be in its way; or it
    /// is about a server that nobody else reaches.
    pub near: bool,
    /// Whether the fault can be fixed while it runs, on a cluster, for the demo.
    pub demo: bool,
    start: fn(&At<'_>) -> Result<Active, Error>,
}

/// Undoes one thing on servers; asked again where it fails, so it must bear that.
type Undo = Box<dyn FnMut() -> Result<(), Error> + Send>;

/// A fault at work. Dropping it ends it.
pub struct Active {
    stop: Arc<AtomicBool>,
    fixed: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    /// Of this machine: signals, wires, cgroups, connections. Quick, and cannot fail.
    local: Vec<Box<dyn FnOnce() + Send>>,
    /// Of servers, which may not answer.
    undo: Vec<Undo>,
    seat: Option<Arc<Seat>>,
    _claims: Vec<Claim>,
    /// What the fix is, in words.
    pub remedy: &'static str,
    /// What it is done to, in words.
    pub subject: String,
    /// And as such.
    pub hits: Hits,
}

/// What a fault is done to.
#[derive(Clone, Default)]
pub enum Hits {
    /// The deployment as a whole, or its clients.
    #[default]
    Deployment,
    /// These servers.
    Servers(Vec<Arc<Server>>),
    /// The paths from each of these hosts to each of those. Hosts go by their places in the lab; the one behind the
    /// last is the lab's door.
    Path {
        from: Vec<usize>,
        to: Vec<usize>,
        /// And back.
        both_ways: bool,
    },
}

impl Active {
    /// A thread that works until the fault ends, in the client's place. It gets a flag that turns true at the end, and
    /// one that turns true when the fix is applied.
    fn work(mut self, mut body: impl FnMut(&Flags) + Send + 'static) -> Active {
        let (stop, fixed, answers) = (self.stop.clone(), self.fixed.clone(), self.answers.clone());
        let flags = Flags { stop, fixed, answers };
        let seat = self.seat.clone();
        self.threads.push(std::thread::spawn(move || {
            if seat.is_some_and(|s| s.enter().is_err()) {
                return;
            }
            while !flags.stopped() {
                body(&flags);
            }
        }));
        self
    }

    fn on_end(mut self, undo: impl FnOnce() + Send + 'static) -> Active {
        self.local.push(Box::new(undo));
        self
    }

    /// Undone in the opposite order. Said before the thing itself is done, so that one half done is undone too.
    fn undo_with(mut self, undo: impl FnMut() -> Result<(), Error> + Send + 'static) -> Active {
        self.undo.push(Box::new(undo));
        self
    }

    /// Answers that its own clients have had, where it is one of what clients do.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Applies the remedy: the clients change their ways.
    pub fn fix(&self) {
        self.fixed.store(true, Ordering::SeqCst);
    }

    /// Ends it. What could not be undone is told and stays to be tried again.
    pub fn heal(&mut self) -> Result<(), Error> {
        self.abandon();
        let mut first = Ok(());
        let mut left = Vec::new();
        while let Some(mut undo) = self.undo.pop() {
            if let Err(e) = undo() {
                first = first.and(Err(e));
                left.push(undo);
            }
        }
        left.reverse();
        self.undo = left;
        first
    }

    /// Ends what it does on this machine and leaves the servers as they are: they are about to end themselves.
    pub fn abandon(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Whoever hangs in a connection goes on once these are undone.
        for undo in self.local.drain(..).rev() {
            undo();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }

    /// Forgets what there is to undo on servers.
    pub fn forget(&mut self) {
        self.undo.clear();
    }
}

/// Something that only one fault at a time can change and put back. Free again on drop.
struct Claim {
    held: Arc<std::sync::Mutex<std::collections::BTreeMap<String, String>>>,
    what: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.held.lock().unwrap_or_else(|e| e.into_inner()).remove(&self.what);
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        let _ = self.heal();
    }
}

struct Flags {
    stop: Arc<AtomicBool>,
    fixed: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
}

impl Flags {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn fixed(&self) -> bool {
        self.fixed.load(Ordering::Relaxed)
    }

    /// So many commands were answered.
    fn answered(&self, n: usize) {
        self.answers.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Sleeps in short steps, so that the end is never waited for.
    fn pause(&self, time: Duration) {
        let until = std::time::Instant::now() + time;
        while !self.stopped() && std::time::Instant::now() < until {
            std::thread::sleep(time.min(Duration::from_millis(5)));
        }
    }
}

impl Fault {
    /// The smallest lab that shows it, on this engine.
    pub fn topology(&self, engine: &str) -> Topology {
        self.prepare((self.shape)(), engine)
    }

    /// Three masters with a replica each, ready for it.
    pub fn topology_of_six(&self, engine: &str) -> Topology {
        self.prepare(six_nodes(), engine)
    }

    fn prepare(&self, mut topology: Topology, engine: &str) -> Topology {
        topology.deployment.server = engine.into();
        for (key, value) in self.settings_for(engine) {
            topology.deployment.settings.insert(key.to_string(), crate::topology::Setting::Text(value.to_string()));
        }
        topology
    }

    /// The settings it needs that this engine knows.
    pub fn settings_for(&self, engine: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
        let old = unslow_engine::find(engine).is_ok_and(|e| !e.is_valkey() && e.level() < (7, 0));
        self.settings.iter().copied().filter(move |(key, _)| !(old && *key == DEBUG))
    }

    /// Begins it on a lab. Without a target it takes the first that fits, without a value its own.
    pub fn inject(&self, lab: &Lab, target: Option<&str>, value: Option<&str>) -> Result<Active, Error> {
        if lab.deployment.nodes.is_empty() && self.takes != Takes::Path {
            return Err(Error::new("this lab has no servers (kind = \"none\"): only path faults are possible"));
        }
        if self.takes == Takes::Deployment && target.is_some() {
            return Err(Error::new(format!("{} affects the deployment as a whole and takes no target", self.name)));
        }
        if self.value.is_none()
            && let Some(value) = value
        {
            return Err(Error::new(format!("{} takes no value, but {value:?} was given", self.name)));
        }
        if self.wired {
            lab.wire()?;
        }
        let cluster = (self.shape)().masters() > 1;
        if cluster && lab.deployment.masters < 2 && !matches!(self.takes, Takes::Path | Takes::Processes) {
            let general = ["kill", "restart", "failover"].contains(&self.name);
            if !general {
                return Err(Error::new(format!("{} needs a cluster with at least two masters", self.name)));
            }
        }
        let value = value.or(self.value.map(|(_, default)| default)).unwrap_or_default();
        let at = At::new(lab, self, target, value)?;
        // Dropped on an error, so that settings go back then too.
        let mut guard = at.active("");
        at.settings(self.settings, &mut guard)?;
        let mut active = (self.start)(&at)?;
        (active.subject, active.hits) = (at.subject().to_string(), at.hits().clone());
        // Last in, first out: settings go back once the fault itself has ended.
        active.undo.splice(0..0, guard.undo.drain(..));
        active._claims.append(&mut guard._claims);
        Ok(active)
    }

    /// Whether a word is this fault's value rather than a target: it begins with a digit or a sign and is no address.
    pub fn is_value(&self, word: &str) -> bool {
        self.value.is_some()
            && word.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-')
            && !word.contains(':')
            && word.matches('.').count() < 2
    }
}

/// The fault of this name, or of the rule of this name.
pub fn find(name: &str) -> Option<&'static Fault> {
    ALL.iter().find(|f| f.name == name).or_else(|| ALL.iter().find(|f| f.rule == Some(name)))
}

/// The same, with near names in the error.
pub fn named(name: &str) -> Result<&'static Fault, Error> {
    find(name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().flat_map(|f| std::iter::once(f.name).chain(f.rule)).collect();
        Error::new(format!("no fault {name:?}{}", did_you_mean(name, &names)))
    })
}

fn patient() -> Options {
    Options { command_timeout: Duration::from_secs(30), ..Options::default() }
}

/// For workers: a fault that ends waits for none of them for long.
fn brief() -> Options {
    let second = Duration::from_secs(1);
    Options { connect_timeout: second, command_timeout: 3 * second, ..Options::default() }
}

/// Where an application's clients run; connections are made from there.
#[derive(Clone)]
struct Client {
    seat: Option<Arc<Seat>>,
}

impl Client {
    fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, Error> {
        match &self.seat {
            Some(seat) => seat.run(body).map_err(|e| Error::new(format!("the client's host: {e}"))),
            None => Ok(body()),
        }
    }

    fn connect(&self, target: &Target) -> Result<Connection, Error> {
        Ok(self.run(|| Connection::open(target, &patient()))??)
    }

    fn stream(&self, target: &Target) -> Result<TcpStream, Error> {
        self.run(|| stream(target))?
    }
}

/// A plain connection from where the thread is, past the password if there is one.
fn stream(target: &Target) -> Result<TcpStream, Error> {
    use std::io::{Read, Write};
    let failed = |e: std::io::Error| Error::new(format!("{}: {e}", target.address()));
    let address = target.address().parse().map_err(|_| Error::new(format!("{}: not an address", target.address())))?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).map_err(failed)?;
    stream.set_write_timeout(Some(Duration::from_secs(2))).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    if let Some(password) = &target.password {
        let word = password.reveal();
        stream.write_all(format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{word}\r\n", word.len()).as_bytes()).map_err(failed)?;
        let mut reply = [0u8; 5];
        stream.read_exact(&mut reply).map_err(failed)?;
        if &reply != b"+OK\r\n" {
            return Err(Error::new(format!("{}: the password was refused", target.address())));
        }
    }
    Ok(stream)
}

/// Connects from where the thread is.
fn connect(target: &Target) -> Result<Connection, Error> {
    Ok(Connection::open(target, &brief())?)
}

/// Connects as the application's own library would, with a name in CLIENT LIST.
fn connect_as(target: &Target, name: &'static str) -> Result<Connection, Error> {
    Ok(Connection::open(target, &Options { name: Some(name), ..brief() })?)
}

/// Keeps a connection over calls of a worker's body: opens it when there is none, drops it when it fails.
fn with(
    slot: &mut Option<Connection>,
    target: &Target,
    flags: &Flags,
    body: impl FnOnce(&mut Connection) -> Result<(), unslow_client::Error>,
) {
    if slot.is_none() {
        *slot = connect(target).ok();
    }
    match slot.as_mut().map(body) {
        Some(Ok(())) => flags.answered(1),
        Some(Err(e)) if !e.is_fatal() => {}
        _ => {
            *slot = None;
            flags.pause(Duration::from_millis(50));
        }
    }
}

/// Sends `n` commands in pipelines of 500; `command` gets each one's number.
fn fill(connection: &mut Connection, n: usize, command: impl Fn(usize) -> Vec<String>) -> Result<(), Error> {
    for chunk in (0..n).collect::<Vec<_>>().chunks(500) {
        let commands: Vec<Vec<String>> = chunk.iter().map(|i| command(*i)).collect();
        for reply in connection.pipeline(&commands)? {
            reply?;
        }
    }
    Ok(())
}

/// Removes what a fault has written, at its end.
fn sweep(active: Active, node: &Arc<Server>, pattern: String) -> Active {
    let node = node.clone();
    active.undo_with(move || {
        let mut c = at::beside(&node)?;
        // A replica by now: its master's copy is swept by who follows, or stays.
        if unslow_engine::info(&mut c, "replication")?.get("role") != Some("master") {
            return Ok(());
        }
        let mut cursor = "0".to_string();
        loop {
            let page = c.call(&["SCAN", &cursor, "MATCH", &pattern, "COUNT", "5000"])?;
            let keys: Vec<String> =
                page.items().get(1).map_or(&[][..], |k| k.items()).iter().filter_map(|k| k.text()).collect();
            for some in keys.chunks(1000) {
                let mut command = vec!["UNLINK".to_string()];
                command.extend(some.iter().cloned());
                c.call(&command)?;
            }
            cursor = page.items().first().and_then(|v| v.text()).unwrap_or_else(|| "0".into());
            if cursor == "0" {
                return Ok(());
            }
        }
    })
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(ToString::to_string).collect()
}

/// Three zones with one host each, 0.1 ms inside and 1 ms across: a base for the shapes.
fn zones(kind: Kind, masters: usize, replicas: usize) -> Topology {
    let mut topology = Topology::standard();
    for zone in &mut topology.zones {
        zone.hosts = Some(1);
    }
    topology.deployment.kind = kind;
    topology.deployment.masters = masters;
    topology.deployment.replicas = replicas;
    topology
}

fn standalone() -> Topology {
    let mut topology = zones(Kind::Standalone, 1, 0);
    topology.zones.truncate(1);
    topology
}

/// A master and its replica, on two hosts of one zone.
fn pair() -> Topology {
    let mut topology = zones(Kind::MasterReplica, 1, 1);
    topology.zones.truncate(1);
    topology.zones[0].hosts = Some(2);
    topology
}

/// A master and two replicas, on three hosts of one zone.
fn two_replicas() -> Topology {
    let mut topology = zones(Kind::MasterReplica, 1, 2);
    topology.zones.truncate(1);
    topology.zones[0].hosts = Some(3);
    topology
}

/// The same pair in the middle of an upgrade: the master is still a Redis 7.0.
fn two_versions() -> Topology {
    let mut topology = pair();
    let first = toml::Spanned::new(0..0, format!("{}-host-1", topology.zones[0].name));
    topology.hosts.push(HostSpec {
        name: first,
        server: Some("redis-7.0".into()),
        settings: BTreeMap::new(),
        disk: None,
    });
    topology
}

/// A master with two replicas on three hosts, and a Sentinel on each.
fn sentinel() -> Topology {
    zones(Kind::Sentinel, 1, 2)
}

/// A master with one replica on two hosts, and three Sentinels: two of them are on one host.
fn two_hosts_of_sentinels() -> Topology {
    let mut topology = zones(Kind::Sentinel, 1, 1);
    topology.zones.truncate(1);
    topology.zones[0].hosts = Some(2);
    topology
}

/// Three masters with a replica each on three hosts, no replica beside its master.
fn six_nodes() -> Topology {
    zones(Kind::Cluster, 3, 1)
}

/// One server and clients in another zone.
fn two_zones() -> Topology {
    let mut topology = zones(Kind::Standalone, 1, 0);
    topology.zones.truncate(2);
    topology
}

const fn fault(
    name: &'static str,
    about: &'static str,
    takes: Takes,
    shape: fn() -> Topology,
    start: fn(&At<'_>) -> Result<Active, Error>,
) -> Fault {
    Fault {
        name,
        rule: None,
        about,
        takes,
        value: None,
        shape,
        settings: &[],
        wired: false,
        root: false,
        near: false,
        demo: false,
        start,
    }
}

impl Fault {
    const fn rule(mut self, rule: &'static str) -> Fault {
        self.rule = Some(rule);
        self
    }

    const fn value(mut self, what: &'static str, default: &'static str) -> Fault {
        self.value = Some((what, default));
        self
    }

    const fn settings(mut self, settings: &'static [(&'static str, &'static str)]) -> Fault {
        self.settings = settings;
        self
    }

    const fn wired(mut self) -> Fault {
        self.wired = true;
        self
    }

    const fn root(mut self) -> Fault {
        self.root = true;
        self
    }

    const fn near(mut self) -> Fault {
        self.near = true;
        self
    }

    const fn demo(mut self) -> Fault {
        self.demo = true;
        self
    }
}

/// DEBUG is off by default since Redis 7.0, which has this setting; older servers have neither.
const DEBUG: &str = "enable-debug-command";
