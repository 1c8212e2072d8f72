//! Faults as values: each makes real servers, paths or clients suffer, on a target, and is undone by `heal` or on drop.
//!
//! A fault that a doctor's rule must name says which; `cargo xtask tidy` holds every rule to having one. Faults that
//! come from clients can change their ways (`Active::fix`), as the doctor's remedy asks of them: that is what
//! `unslow demo` proves.

mod at;
mod clients;
mod deployment;
mod host;
mod path;
mod placement;
mod process;
mod server;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use unslow_client::{Connection, Options, Target};
use unslow_engine::{Error, Seat, Server};

pub use at::At;
pub(crate) use host::remove_leftovers;

use crate::lab::Lab;
use crate::topology::{Kind, Topology, near};

/// What a fault can be done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// The deployment as a whole; no target.
    Deployment,
    /// A server: `node-2`, `master`, `replica-1`, `sentinel-1`, an address.
    Node,
    /// A server, or a host or zone and with it all servers there.
    Processes,
    /// A host or zone (towards everybody else), `A:B`, `A->B` between two of them, or `all`.
    Path,
}

impl Takes {
    /// The same for a person; nothing where no target is taken.
    pub fn words(self) -> &'static str {
        match self {
            Takes::Deployment => "",
            Takes::Node => "SERVER",
            Takes::Processes => "SERVER, HOST or ZONE",
            Takes::Path => "HOST, ZONE, A:B, A->B or all",
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
    /// Whether it shows best without wires: its load wants all of two cores, and the carrier would be in its way; or it is
    /// about a server that nobody else reaches.
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
}

impl Active {
    /// A thread that works until the fault ends, in the client's place. It gets a flag that turns true at the end, and
    /// one that turns true when the fix is applied.
    fn work(mut self, mut body: impl FnMut(&Flags) + Send + 'static) -> Active {
        let flags = Flags { stop: self.stop.clone(), fixed: self.fixed.clone() };
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
}

impl Flags {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn fixed(&self) -> bool {
        self.fixed.load(Ordering::Relaxed)
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
            return Err(Error::new("this lab has no servers (kind = \"none\"): only faults of paths can be had"));
        }
        if self.takes == Takes::Deployment && target.is_some() {
            return Err(Error::new(format!("{} is done to the deployment as a whole and takes no target", self.name)));
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
                return Err(Error::new(format!("{} is done to a cluster with two masters or more", self.name)));
            }
        }
        let value = value.or(self.value.map(|(_, default)| default)).unwrap_or_default();
        let at = At::new(lab, self, target, value)?;
        // Dropped on an error, so that settings go back then too.
        let mut guard = at.active("");
        at.settings(self.settings, &mut guard)?;
        let mut active = (self.start)(&at)?;
        active.subject = at.subject();
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
        Error::new(format!("no fault {name:?}{}", near(name, &names)))
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
    let address = target.address().parse().map_err(|_| Error::new(format!("{}: no address", target.address())))?;
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
        Some(Ok(())) => {}
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

/// A master with two replicas on three hosts, and a Sentinel on each.
fn sentinel() -> Topology {
    zones(Kind::Sentinel, 1, 2)
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

use Takes::{Deployment, Node, Path, Processes};

/// DEBUG is off by default since Redis 7.0, which has this setting; older servers have neither.
const DEBUG: &str = "enable-debug-command";

/// Every fault.
pub const ALL: &[Fault] = &[
    // Processes, hosts and paths.
    fault("kill", "servers are killed, and with them what they had not saved; healed, they start again", Processes, six_nodes, process::kill)
        .rule("node_unreachable"),
    fault("restart", "servers are killed and started again at once", Processes, six_nodes, process::restart),
    fault("hang", "processes stop (SIGSTOP) without a word to anybody", Processes, six_nodes, process::hang)
        .rule("node_hangs"),
    fault("partition", "nothing passes any more", Path, six_nodes, path::partition).wired(),
    fault("delay", "packets take longer, each way", Path, two_zones, path::delay).value("TIME", "5ms").wired(),
    fault("loss", "packets are lost", Path, standalone, path::loss).value("SHARE", "1%").rule("packet_loss").wired(),
    fault("rate", "a path carries no more than this", Path, two_zones, path::rate).value("RATE", "10mbit").wired(),
    fault("cpu_throttle", "a CPU quota, as a share of one core, under steady writes", Processes, standalone, host::cpu_throttle)
        .value("SHARE", "10%")
        .rule("cpu_throttled")
        .root(),
    fault("cpu_neighbour", "other processes want the same cores, under steady writes", Deployment, standalone, host::cpu_neighbour)
        .value("PER_CORE", "3")
        .rule("noisy_neighbour")
        .near(),
    fault("memory_limit", "no more memory than this from now on", Processes, standalone, host::memory_limit)
        .value("SIZE", "100mb")
        .root(),
    fault("slow_fork", "every fork takes this long", Processes, standalone, process::slow_fork).value("TIME", "1s"),
    fault("slow_fsync", "every fsync takes this long", Processes, standalone, process::slow_fsync).value("TIME", "1s"),
    fault("slow_disk", "files are written no faster than this", Processes, standalone, process::slow_disk)
        .value("BYTES_PER_S", "1mb"),
    fault("full_disk", "not one page more fits on the host's disk", Processes, standalone, process::full_disk).wired(),
    fault("clock_jump", "the wall clock jumps, forwards or back", Processes, standalone, process::clock_jump)
        .value("TIME", "+60s"),
    // The deployment.
    fault("move_slot", "a slot and its keys move to a node, or away from it where it owns the slot", Node, six_nodes, deployment::move_slot)
        .value("SLOT", "42"),
    fault("reshard", "slots of a node move away one by one, key by key", Node, six_nodes, deployment::reshard)
        .value("SLOTS", "100"),
    fault("reshard_atomic", "slots of a node move away at once (CLUSTER MIGRATESLOTS)", Node, six_nodes, deployment::reshard_atomic)
        .value("SLOTS", "100"),
    fault("failover", "a replica takes its master's place", Node, six_nodes, deployment::failover),
    fault("open_slot", "a reshard stops half way", Deployment, six_nodes, placement::open_slot).rule("open_slots"),
    fault("config_drift", "one node has another memory limit", Node, six_nodes, placement::config_drift)
        .rule("config_drift"),
    fault("ghost_nodes", "a node restarts with nodes in nodes.conf that are gone", Node, six_nodes, deployment::ghost_nodes)
        .value("NODES", "300"),
    fault(
        "two_masters_on_one_host",
        "a failover puts two masters on one host",
        Deployment,
        six_nodes,
        placement::two_masters,
    )
    .rule("masters_share_host"),
    // Clients.
    fault(
        "topology_storm",
        "the first master restarts with 300 ghosts, and Lettuce clients refresh the topology from every node, over and over",
        Deployment,
        six_nodes,
        clients::topology_storm,
    )
    .value("CLIENTS", "20")
    .rule("topology_storm")
    .demo(),
    fault("connection_churn", "clients connect anew for every command", Node, standalone, clients::connection_churn)
        .rule("connection_churn")
        .near()
        .demo(),
    fault(
        "unpipelined",
        "a client in another zone sends one command per round trip",
        Node,
        two_zones,
        clients::unpipelined,
    )
    .rule("far_client")
    .wired(),
    fault("monitor", "somebody left MONITOR running", Node, standalone, clients::monitor).rule("monitor_attached"),
    fault("keys", "KEYS on 300,000 keys, five times a second", Node, standalone, clients::keys)
        .rule("keys_command")
        .demo(),
    fault("big_key", "HGETALL on a hash of 200,000 fields", Node, standalone, clients::big_key).rule("big_key").demo(),
    fault("slow_subscriber", "a subscriber stops reading", Node, standalone, clients::slow_subscriber)
        .settings(&[("client-output-buffer-limit", "pubsub 64mb 64mb 60")])
        .rule("slow_subscriber"),
    fault("hot_key", "every client wants the same key", Node, six_nodes, clients::hot_key),
    fault("lua_loop", "a script loops for tens of milliseconds", Node, standalone, clients::lua_loop)
        .rule("long_script")
        .demo(),
    fault("save_storm", "a snapshot every second", Node, standalone, server::save_storm).rule("save_too_often"),
    fault(
        "monitoring_storm",
        "scrapers ask INFO and CLIENT LIST as fast as they can",
        Node,
        standalone,
        clients::monitoring_storm,
    )
    .rule("monitoring_storm"),
    fault("no_pipelining", "one client sends one command per round trip", Node, standalone, clients::no_pipelining)
        .rule("no_pipelining"),
    fault("kernel_bound", "fifty connections with one command in flight each", Node, standalone, clients::kernel_bound)
        .rule("kernel_bound")
        .near(),
    fault(
        "too_many_connections",
        "pools grow to maxclients, and more come",
        Node,
        standalone,
        clients::too_many_connections,
    )
    .settings(&[("maxclients", "100")])
    .rule("too_many_connections"),
    fault("slow_command", "SUNION of fifty sets", Node, standalone, clients::slow_command).rule("slow_command"),
    fault("error_flood", "clients use strings as lists", Node, standalone, clients::error_flood)
        .rule("error_flood")
        .demo(),
    fault(
        "redirect_storm",
        "a client without cluster mode asks one node for everything",
        Node,
        six_nodes,
        clients::redirect_storm,
    )
    .rule("redirect_storm"),
    fault(
        "main_thread_saturated",
        "pipelines of BITCOUNT fill the main thread",
        Node,
        standalone,
        clients::main_thread_saturated,
    )
    .rule("main_thread_saturated")
    .near(),
    fault("not_your_redis", "a client does not read its replies", Node, standalone, clients::not_your_redis)
        .rule("not_your_redis"),
    // The server.
    fault("fork_stall", "fork takes a second, and a save begins", Node, standalone, server::fork_stall)
        .value("TIME", "1s")
        .rule("fork_stall"),
    fault("aof_fsync_stall", "fsync takes three seconds", Node, standalone, server::aof_fsync_stall)
        .settings(&[("appendonly", "yes")])
        .rule("aof_fsync_stall"),
    fault("eviction_pressure", "a cache of 20 MB gets new keys for ever", Node, standalone, server::eviction_pressure)
        .settings(&[("maxmemory", "20mb"), ("maxmemory-policy", "allkeys-lru")])
        .rule("eviction_pressure"),
    fault("out_of_memory", "10 MB and noeviction", Node, standalone, server::out_of_memory)
        .settings(&[("maxmemory", "10mb"), ("maxmemory-policy", "noeviction")])
        .rule("out_of_memory"),
    fault("expire_storm", "hundreds of thousands of keys die together", Node, standalone, server::expire_storm)
        .rule("expire_storm"),
    fault("backlog_too_small", "a backlog of 16 kB under megabytes of writes", Node, pair, server::backlog_too_small)
        .settings(&[("repl-backlog-size", "16kb")])
        .rule("backlog_too_small"),
    fault(
        "full_resync_loop",
        "a replica comes back without its data, again and again",
        Deployment,
        pair,
        server::full_resync_loop,
    )
    .rule("full_resync_loop"),
    fault(
        "node_timeout_margin",
        "a stall of 1.3 s under a node timeout of 2 s",
        Node,
        six_nodes,
        placement::node_timeout_margin,
    )
    .settings(&[("cluster-node-timeout", "2000"), (DEBUG, "yes")])
    .rule("node_timeout_margin"),
    fault(
        "sentinel_down_after",
        "every Sentinel takes a master for dead after half a second",
        Deployment,
        sentinel,
        deployment::sentinel_down_after,
    )
    .rule("sentinel_down_after"),
    fault(
        "sentinel_master_down",
        "Sentinels log in as a user that may not PING, and take a healthy master for dead",
        Deployment,
        sentinel,
        deployment::sentinel_master_down,
    )
    .rule("sentinel_master_down"),
    fault(
        "failover_flapping",
        "a master hangs for longer than the node timeout and comes back",
        Deployment,
        six_nodes,
        placement::failover_flapping,
    )
    .settings(&[("cluster-node-timeout", "1500")])
    .rule("failover_flapping"),
    fault(
        "replica_shares_host",
        "a replica follows the master beside it",
        Deployment,
        six_nodes,
        placement::replica_shares_host,
    )
    .rule("replica_shares_host"),
    fault(
        "master_without_replica",
        "a master's only replica follows another",
        Deployment,
        six_nodes,
        placement::master_without_replica,
    )
    .settings(&[("cluster-migration-barrier", "5")])
    .rule("master_without_replica"),
    fault("slots_uncovered", "a hundred slots lose their owner", Deployment, six_nodes, placement::slots_uncovered)
        .rule("slots_uncovered"),
    fault("no_auth", "bound to every address, no password", Node, standalone, server::nothing)
        .settings(&[("bind", "0.0.0.0"), ("protected-mode", "no")])
        .rule("no_auth"),
    fault("blind_instruments", "the server's defaults: no latency monitor", Node, standalone, server::nothing)
        .rule("blind_instruments")
        .near(),
];
