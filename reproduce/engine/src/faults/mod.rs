//! Faults as values: each has the name of the rule that must find it, makes real servers suffer, and is undone on drop.
//!
//! A fault knows the settings it needs before the start, and how to begin. Those that come from clients can change
//! their ways (`Active::fix`), as the doctor's remedy asks of them: that is what `unslow demo` proves.

mod clients;
mod far;
mod host;
mod placement;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use unslow_client::{Connection, Options, Target};
use unslow_topology::slot_of;

use crate::server::Error;
use crate::{Deployment, ServerSpec, Shape};

/// One fault.
#[derive(Clone, Copy)]
pub struct Fault {
    /// The rule that must find it.
    pub name: &'static str,
    /// What it does, as a sentence without a full stop.
    pub about: &'static str,
    /// The smallest deployment that shows it.
    pub shape: fn() -> Shape,
    /// Lines of configuration it needs.
    pub settings: &'static [(&'static str, &'static str)],
    /// Whether servers must be started with the slow-fork shim.
    pub shim: bool,
    /// Whether it needs root.
    pub root: bool,
    /// Whether the fault can be fixed while it runs, on a cluster, for the demo.
    pub demo: bool,
    start: fn(&mut Deployment) -> Result<Active, Error>,
}

/// A fault at work. Dropping it ends it.
pub struct Active {
    stop: Arc<AtomicBool>,
    fixed: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    undo: Vec<Box<dyn FnOnce() + Send>>,
    /// What the fix was, once it is applied; set by the fault.
    pub remedy: &'static str,
}

impl Active {
    fn new(remedy: &'static str) -> Active {
        Active { stop: Arc::default(), fixed: Arc::default(), threads: Vec::new(), undo: Vec::new(), remedy }
    }

    /// A thread that works until the fault ends. It gets a flag that turns true at the end, and one that turns true
    /// when the fix is applied.
    fn work(mut self, mut body: impl FnMut(&Flags) + Send + 'static) -> Active {
        let flags = Flags { stop: self.stop.clone(), fixed: self.fixed.clone() };
        self.threads.push(std::thread::spawn(move || {
            while !flags.stopped() {
                body(&flags);
            }
        }));
        self
    }

    fn on_end(mut self, undo: impl FnOnce() + Send + 'static) -> Active {
        self.undo.push(Box::new(undo));
        self
    }

    /// Applies the remedy: the clients change their ways.
    pub fn fix(&self) {
        self.fixed.store(true, Ordering::SeqCst);
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for undo in self.undo.drain(..) {
            undo();
        }
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
    /// Starts a deployment that can suffer it; `shape` in place of its own smallest one.
    pub fn deploy(&self, engine: &crate::Engine, shape: Option<Shape>) -> Result<Deployment, Error> {
        let settings = self.settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let spec = ServerSpec { settings, env: self.environment()?, ..ServerSpec::default() };
        Deployment::start(engine, &shape.unwrap_or_else(self.shape), &spec)
    }

    /// What servers that can suffer it must be started with.
    pub fn environment(&self) -> Result<Vec<(String, String)>, Error> {
        if self.shim { server::shim_env() } else { Ok(Vec::new()) }
    }

    /// Begins it.
    pub fn inject(&self, deployment: &mut Deployment) -> Result<Active, Error> {
        (self.start)(deployment)
    }
}

/// The fault of this name.
pub fn find(name: &str) -> Option<&'static Fault> {
    ALL.iter().find(|f| f.name == name)
}

fn connect(target: &Target) -> Result<Connection, Error> {
    Ok(Connection::open(target, &Options { command_timeout: Duration::from_secs(30), ..Options::default() })?)
}

/// Connects as the application's own library would, with a name in CLIENT LIST.
fn connect_as(target: &Target, name: &'static str) -> Result<Connection, Error> {
    Ok(Connection::open(target, &Options { name: Some(name), ..Options::default() })?)
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

/// A hash tag whose keys live on the first master: `{t17}`.
fn tag(deployment: &Deployment) -> String {
    // Three equal parts in a cluster; everything elsewhere.
    let last = if deployment.nodes.len() > 1 { 16384 / deployment.masters.max(1) as u16 - 1 } else { u16::MAX };
    (0..).map(|i| format!("{{t{i}}}")).find(|t| slot_of(t.as_bytes()) <= last).expect("some tag hashes low")
}

/// Sends `n` commands in pipelines of 500; `command` gets each one's number.
fn fill(connection: &mut Connection, n: usize, command: impl Fn(usize) -> Vec<String>) -> Result<(), Error> {
    for chunk in (0..n).collect::<Vec<_>>().chunks(500) {
        let commands: Vec<Vec<String>> = chunk.iter().map(|i| command(*i)).collect();
        connection.pipeline(&commands)?;
    }
    Ok(())
}

fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(ToString::to_string).collect()
}

fn standalone() -> Shape {
    Shape::Standalone
}

fn pair() -> Shape {
    Shape::MasterReplica { replicas: 1 }
}

const fn fault(
    name: &'static str,
    about: &'static str,
    shape: fn() -> Shape,
    settings: &'static [(&'static str, &'static str)],
    start: fn(&mut Deployment) -> Result<Active, Error>,
) -> Fault {
    Fault { name, about, shape, settings, shim: false, root: false, demo: false, start }
}

const fn demo(mut fault: Fault) -> Fault {
    fault.demo = true;
    fault
}

const fn shim(mut fault: Fault) -> Fault {
    fault.shim = true;
    fault
}

const fn root(mut fault: Fault) -> Fault {
    fault.root = true;
    fault
}

/// Every fault.
pub const ALL: &[Fault] = &[
    demo(fault(
        "topology_storm",
        "Lettuce clients refresh a topology of 300 nodes from every node, over and over",
        Shape::six_nodes,
        &[],
        clients::topology_storm,
    )),
    fault(
        "monitoring_storm",
        "scrapers ask INFO and CLIENT LIST as fast as they can",
        standalone,
        &[],
        clients::monitoring_storm,
    ),
    root(fault(
        "far_client",
        "a client behind a wire of 1 ms",
        standalone,
        &[("protected-mode", "no"), ("bind", "0.0.0.0")],
        far::far_client,
    )),
    fault("no_pipelining", "one client sends one command per round trip", standalone, &[], clients::no_pipelining),
    fault("kernel_bound", "fifty connections with one command in flight each", standalone, &[], clients::kernel_bound),
    demo(fault(
        "connection_churn",
        "clients connect anew for every command",
        standalone,
        &[],
        clients::connection_churn,
    )),
    fault(
        "too_many_connections",
        "pools grow to maxclients, and more come",
        standalone,
        &[("maxclients", "100")],
        clients::too_many_connections,
    ),
    demo(fault("keys_command", "KEYS on 300,000 keys, five times a second", standalone, &[], clients::keys_command)),
    fault("monitor_attached", "somebody left MONITOR running", standalone, &[], clients::monitor_attached),
    demo(fault("big_key", "HGETALL on a hash of 200,000 fields", standalone, &[], clients::big_key)),
    demo(fault("long_script", "a script loops for tens of milliseconds", standalone, &[], clients::long_script)),
    fault("slow_command", "SUNION of fifty sets", standalone, &[], clients::slow_command),
    demo(fault("error_flood", "clients use strings as lists", standalone, &[], clients::error_flood)),
    fault(
        "redirect_storm",
        "a client without cluster mode asks one node for everything",
        Shape::six_nodes,
        &[],
        clients::redirect_storm,
    ),
    fault("slow_subscriber", "a subscriber stops reading", standalone, &[], clients::slow_subscriber),
    fault("save_too_often", "a snapshot every second", standalone, &[], server::save_too_often),
    shim(fault("fork_stall", "fork takes a second", standalone, &[], server::fork_stall)),
    shim(fault(
        "aof_fsync_stall",
        "fsync takes three seconds",
        standalone,
        &[("appendonly", "yes")],
        server::aof_fsync_stall,
    )),
    fault(
        "eviction_pressure",
        "a cache of 20 MB gets new keys for ever",
        standalone,
        &[("maxmemory", "20mb"), ("maxmemory-policy", "allkeys-lru")],
        server::eviction_pressure,
    ),
    fault("out_of_memory", "10 MB and noeviction", standalone, &[("maxmemory", "10mb")], server::out_of_memory),
    fault("expire_storm", "hundreds of thousands of keys die together", standalone, &[], server::expire_storm),
    fault(
        "backlog_too_small",
        "a backlog of 16 kB under megabytes of writes",
        pair,
        &[("repl-backlog-size", "16kb")],
        server::backlog_too_small,
    ),
    fault(
        "full_resync_loop",
        "a replica comes back without its data, again and again",
        pair,
        &[],
        server::full_resync_loop,
    ),
    fault(
        "main_thread_saturated",
        "pipelines of LRANGE fill the main thread",
        standalone,
        &[],
        clients::main_thread_saturated,
    ),
    fault(
        "node_timeout_margin",
        "a stall of 1.3 s under a node timeout of 2 s",
        Shape::six_nodes,
        &[("cluster-node-timeout", "2000"), ("enable-debug-command", "yes")],
        placement::node_timeout_margin,
    ),
    fault(
        "failover_flapping",
        "a master hangs for longer than the node timeout and comes back",
        Shape::six_nodes,
        &[("cluster-node-timeout", "1500")],
        placement::failover_flapping,
    ),
    fault(
        "masters_share_host",
        "a failover puts two masters on one host",
        Shape::six_nodes,
        &[],
        placement::masters_share_host,
    ),
    fault(
        "replica_shares_host",
        "a replica follows the master beside it",
        Shape::six_nodes,
        &[],
        placement::replica_shares_host,
    ),
    fault(
        "master_without_replica",
        "a master's only replica follows another",
        Shape::six_nodes,
        &[("cluster-migration-barrier", "5")],
        placement::master_without_replica,
    ),
    fault("slots_uncovered", "a hundred slots lose their owner", Shape::six_nodes, &[], placement::slots_uncovered),
    fault("open_slots", "a reshard stops half way", Shape::six_nodes, &[], placement::open_slots),
    fault("config_drift", "one node has another memory limit", Shape::six_nodes, &[], placement::config_drift),
    root(fault("cpu_throttled", "a CPU quota of a fifth of a core", standalone, &[], host::cpu_throttled)),
    fault("noisy_neighbour", "other processes want the same cores", standalone, &[], host::noisy_neighbour),
    fault("not_your_redis", "a client does not read its replies", standalone, &[], clients::not_your_redis),
    fault(
        "no_auth",
        "bound to every address, no password",
        standalone,
        &[("bind", "0.0.0.0"), ("protected-mode", "no")],
        server::nothing,
    ),
    fault("blind_instruments", "the server's defaults: no latency monitor", standalone, &[], server::nothing),
];
