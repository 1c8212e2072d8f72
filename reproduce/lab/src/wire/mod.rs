//! The wire: every packet between two hosts of a lab passes through one thread, which delays, loses, reorders, limits
//! or cuts it as the rules of that direction say.
//!
//! A namespace of its own holds one veth end per host; see `DESIGN.md` for why not TAP devices and bridges.

mod carrier;
pub mod link;
mod ring;
mod rules;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

pub use rules::{Change, Conditions, Rules};

/// Interface number of host 0's end; the others follow.
const FIRST_INTERFACE: u32 = 1000;
/// Length of the network prefix that all hosts of a lab share.
pub const PREFIX: u8 = 20;

/// A running wire. Dropping it stops the carrier; its namespace goes with the last descriptor.
pub struct Wire {
    namespace: std::fs::File,
    netlink: Mutex<link::Netlink>,
    shared: Arc<carrier::Shared>,
    rules: Mutex<Rules>,
    next_change: AtomicU64,
    thread: Option<JoinHandle<()>>,
}

/// What a wire did so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
pub struct WireStats {
    /// Packets that arrived.
    pub packets_carried: u64,
    /// Their bytes, Ethernet headers included.
    pub bytes_carried: u64,
    /// Lost as asked.
    pub packets_lost: u64,
    /// Cut off as asked.
    pub packets_cut: u64,
    /// Dropped by a full queue.
    pub packets_overflowed: u64,
    /// For nobody in the lab.
    pub packets_stray: u64,
    /// Refused by the kernel.
    pub packets_refused: u64,
    /// CPU time of the carrier.
    pub cpu_us: u64,
}

impl Wire {
    /// A wire for hosts with these addresses, all within one /20. Runs once hosts are attached.
    pub fn new(addresses: Vec<Ipv4Addr>, rules: Rules, seed: u64) -> io::Result<Wire> {
        let shared = Arc::new(carrier::Shared::new(rules.compile())?);
        let (sender, receiver) = std::sync::mpsc::channel();
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new().name("wire".into()).spawn(move || {
            let made = open_namespace();
            let (namespace, parts) = match made {
                Ok((namespace, netlink, ring, batch)) => (Ok((namespace, netlink)), Some((ring, batch))),
                Err(e) => (Err(e), None),
            };
            let _ = sender.send(namespace);
            if let Some((ring, batch)) = parts {
                carrier::Carrier::new(ring, batch, for_thread, &addresses, FIRST_INTERFACE, seed).run();
            }
        })?;
        let (namespace, netlink) = receiver.recv().map_err(|_| io::Error::other("the wire's thread died"))??;
        Ok(Wire {
            namespace,
            netlink: Mutex::new(netlink),
            shared,
            rules: Mutex::new(rules),
            next_change: AtomicU64::new(1),
            thread: Some(thread),
        })
    }

    /// Gives the calling thread's namespace a device, with this interface number, that leads to the wire as host number
    /// `host`.
    pub fn attach(&self, host: usize, device: &str, number: u32, address: Ipv4Addr) -> io::Result<()> {
        let interface = FIRST_INTERFACE + host as u32;
        link::attach(device, number, address, self.namespace.as_raw_fd(), interface)?;
        self.netlink.lock().unwrap_or_else(|e| e.into_inner()).up(interface)?;
        link::up(number)
    }

    /// Begins a change; the number ends it.
    pub fn change(&self, change: Change) -> u64 {
        let id = self.next_change.fetch_add(1, Ordering::Relaxed);
        self.edit(|rules| {
            rules.changes.insert(id, change);
        });
        id
    }

    /// Ends a change.
    pub fn undo(&self, id: u64) {
        self.edit(|rules| {
            rules.changes.remove(&id);
        });
    }

    /// What packets from one host to another meet now.
    pub fn between(&self, from: usize, to: usize) -> Conditions {
        self.rules.lock().unwrap_or_else(|e| e.into_inner()).between(from, to)
    }

    fn edit(&self, edit: impl FnOnce(&mut Rules)) {
        let mut rules = self.rules.lock().unwrap_or_else(|e| e.into_inner());
        edit(&mut rules);
        *self.shared.table.lock().unwrap_or_else(|e| e.into_inner()) = Arc::new(rules.compile());
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.nudge();
    }

    /// What it did so far.
    pub fn stats(&self) -> WireStats {
        let c = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WireStats {
            packets_carried: get(&c.carried),
            bytes_carried: get(&c.bytes),
            packets_lost: get(&c.lost),
            packets_cut: get(&c.cut),
            packets_overflowed: get(&c.overflowed),
            packets_stray: get(&c.strays),
            packets_refused: get(&c.refused),
            cpu_us: carrier::thread_cpu(c.thread.load(Ordering::Relaxed)).as_micros() as u64,
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.nudge();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Moves the calling thread into a new network namespace and opens both ends there.
fn open_namespace() -> io::Result<(std::fs::File, link::Netlink, ring::Ring, ring::Batch)> {
    // SAFETY: it changes the calling thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The other ends of the hosts' devices need no addresses of any kind.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let namespace = std::fs::File::open("/proc/thread-self/ns/net")?;
    Ok((namespace, link::Netlink::open()?, ring::Ring::open(16_384)?, ring::Batch::open()?))
}

/// Whether the device files and system calls that a wire needs are allowed here.
pub fn allowed() -> io::Result<()> {
    std::thread::spawn(|| open_namespace().map(drop)).join().map_err(|_| io::Error::other("the test thread died"))?
}
