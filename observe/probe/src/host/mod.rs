//! The machine under the servers: /proc, /sys, cgroups, and the kernel's socket table. Reads only.
//!
//! [`Watch::start`] takes the first sample, [`Watch::finish`] the second. Everything is optional: a container hides
//! half of these files, and a field that was not there is `None`.

mod addresses;
mod assign;
mod cgroups;
mod cores;
mod counts;
mod elsewhere;
mod machine;
mod memory_group;
mod neighbours;
mod others;
mod parse;
mod processes;
mod queues;
mod standing;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use unslow_facts::{Gap, Host, Lack, Node, Rtt, Seen};

use crate::now_ms;
use crate::sockets::{self, TcpSocket};
use addresses::{InWindow, Listened, by_peer, is_bus_of, local_ips, of_process, of_settings, port_of, resolve, ss};
use cgroups::Mounts;
use processes::{Listener, Task, is_another, listeners, observers, sent_info, socket_inodes, tasks};

pub use assign::{Outcome, assign, outcomes};
pub use counts::{Counted, Counts};
pub use others::{Crowd, Others};
pub use standing::{Looks, look_at_silent};

/// The first of two samples.
pub struct Watch {
    machine: machine::First,
    tasks: BTreeMap<u32, Task>,
    /// Those that were there.
    sockets: Vec<TcpSocket>,
    queues: queues::First,
}

/// Where a node's process is.
enum Found {
    /// In this network namespace, listening there.
    Here(u32, Result<Vec<Listened>, Gap>),
    /// In another one of this machine.
    Elsewhere(u32),
}

impl Watch {
    /// Takes the first sample.
    pub fn start() -> Watch {
        let (machine, tasks, all) = (machine::First::take(), tasks(), sockets::all().unwrap_or_default());
        Watch { machine, tasks, queues: queues::First::take(&all, &sockets::listen_drops()), sockets: all }
    }

    /// Takes the second sample, finds the servers among `nodes` that run here, and gives those their sockets.
    pub fn finish(self, nodes: &mut [Node]) -> Host {
        let mut host = self.machine.second();
        let mounts = Mounts::read();
        let table = self.sockets_in_window();
        let (sockets, refused) = match &table {
            Ok(sockets) => (&sockets[..], None),
            Err(e) => (&[][..], Some(e)),
        };
        let seen = InWindow { before: &self.sockets, sockets, window_s: host.window_s };
        let here = Here { sockets, listeners: listeners(sockets), local: local_ips() };
        let there = elsewhere::servers();
        let drops = sockets::listen_drops();
        let mut reached = BTreeSet::new();
        for node in nodes.iter_mut().filter(|n| n.info().is_some() || n.silent_ms.is_some()) {
            let Some(found) = here.find(node, &there) else { continue };
            let mut queues = Vec::new();
            let pid = match found {
                Found::Here(pid, listened) => {
                    queues = listened.as_ref().map_or(Vec::new(), |at| self.queues.second(sockets, &drops, at));
                    node.sockets = seen_sockets(&seen, refused, listened);
                    pid
                }
                Found::Elsewhere(pid) => {
                    node.sockets = Seen::No(elsewhere::unseen_sockets(pid, &node.address));
                    reached.extend(there.iter().filter(|s| s.pid == pid).flat_map(elsewhere::Server::reached_at));
                    pid
                }
            };
            self.serves(&mut host, &mounts, pid, &node.address);
            has_queues(&mut host, pid, queues);
        }
        self.complete(host, sockets, reached)
    }

    /// Takes the second sample for `unslow host`: every Redis or Valkey process here, with `*:port` as address until a
    /// diagnosis gives it its own.
    pub fn finish_alone(self) -> Host {
        let mut host = self.machine.second();
        let mounts = Mounts::read();
        let sockets = sockets::all().unwrap_or_default();
        let listeners = listeners(&sockets);
        let drops = sockets::listen_drops();
        for Listener { pid, ip, port } in &listeners {
            let own: Vec<Listened> = listeners.iter().filter(|l| l.pid == *pid).map(|l| (l.ip, l.port)).collect();
            if is_bus_of(&own, *port) {
                continue;
            }
            let name = if ip.is_unspecified() { "*".to_string() } else { ip.to_string() };
            self.serves(&mut host, &mounts, *pid, &format!("{name}:{port}"));
            let clients: Vec<Listened> = own.iter().copied().filter(|(_, port)| !is_bus_of(&own, *port)).collect();
            has_queues(&mut host, *pid, self.queues.second(&sockets, &drops, &clients));
        }
        let mut reached = BTreeSet::new();
        for server in elsewhere::servers() {
            for (ip, port) in server.reached_at() {
                self.serves(&mut host, &mounts, server.pid, &format!("{ip}:{port}"));
                reached.insert((ip, port));
            }
        }
        self.complete(host, &sockets, reached)
    }

    /// The socket table, its counters since the first sample: what was counted before the window is history.
    fn sockets_in_window(&self) -> std::io::Result<Vec<TcpSocket>> {
        let mut sockets = sockets::all()?;
        // A recorder's connections stay open, and are nobody's clients.
        let own: BTreeSet<u32> = observers().flat_map(socket_inodes).collect();
        let ours: BTreeSet<_> = sockets.iter().filter(|s| own.contains(&s.inode)).map(|s| s.local).collect();
        sockets.retain(|s| s.listening || !ours.contains(&s.peer));
        let before: BTreeMap<_, &TcpSocket> = self.sockets.iter().map(|s| ((s.local, s.peer), s)).collect();
        for socket in &mut sockets {
            // One of the same addresses whose time is shorter now is another one.
            let before = before.get(&(socket.local, socket.peer)).filter(|before| socket.busy_us >= before.busy_us);
            socket.begun = before.is_none();
            if let Some(before) = before {
                socket.retransmits = socket.retransmits.saturating_sub(before.retransmits);
                socket.segments_out = socket.segments_out.saturating_sub(before.segments_out);
                let begun = before.busy_us.unwrap_or(0);
                socket.busy_us = socket.busy_us.map(|us| us.saturating_sub(begun));
            }
        }
        Ok(sockets)
    }

    /// Notes that a process serves this address.
    fn serves(&self, host: &mut Host, mounts: &Mounts, pid: u32, address: &str) {
        match host.processes.iter_mut().find(|p| p.pid == pid) {
            Some(process) if process.addresses.iter().any(|a| a == address) => {} // IPv4 and IPv6
            Some(process) => process.addresses.push(address.to_string()),
            None => {
                let process = processes::process(pid, self.tasks.get(&pid), mounts, address, host.window_s);
                host.processes.push(process);
            }
        }
    }

    fn complete(&self, mut host: Host, sockets: &[TcpSocket], elsewhere: BTreeSet<Listened>) -> Host {
        if !elsewhere.is_empty() {
            // Each network namespace has its own; ours says nothing of theirs.
            (host.tcp, host.somaxconn) = (None, None);
            host.links.clear();
        }
        neighbours::look(&self.tasks, &mut host, sockets, elsewhere);
        host
    }
}

/// Keeps a process's accept queues.
fn has_queues(host: &mut Host, pid: u32, queues: Vec<unslow_facts::AcceptQueue>) {
    if let Some(process) = host.processes.iter_mut().find(|p| p.pid == pid && !queues.is_empty()) {
        process.accept_queues = queues;
    }
}

/// What is known of this network namespace.
struct Here<'a> {
    sockets: &'a [TcpSocket],
    listeners: Vec<Listener>,
    local: BTreeSet<IpAddr>,
}

impl Here<'_> {
    fn find(&self, node: &Node, there: &[elsewhere::Server]) -> Option<Found> {
        if node.info().is_none() {
            return self.by_listener(node);
        }
        if node.address.starts_with("unix:") {
            return self.by_socket_file(node);
        }
        let ips = resolve(&node.address)?;
        if ips.iter().any(|ip| ip.is_loopback() || self.local.contains(ip)) {
            let pid = self.owner(node, &ips).or_else(|| by_process_id(node))?;
            return Some(self.found(pid, node, &ips));
        }
        elsewhere::find(there, node).map(|server| Found::Elsewhere(server.pid))
    }

    /// A server that took our connection and says nothing: nothing but its socket says which it is.
    fn by_listener(&self, node: &Node) -> Option<Found> {
        let pid = standing::listening(&self.listeners, &node.address)?;
        Some(self.found(pid, node, &resolve(&node.address)?))
    }

    /// A socket file is of this machine, whatever namespaces its server is in.
    fn by_socket_file(&self, node: &Node) -> Option<Found> {
        let mut all = processes::servers().filter(|pid| sent_info(*pid, node));
        let (Some(pid), None) = (all.next(), all.next()) else { return None };
        Some(self.found(pid, node, &[]))
    }

    /// The process that listens at the node's address. A fork may hold the same socket for as long as it lives.
    fn owner(&self, node: &Node, ips: &[IpAddr]) -> Option<u32> {
        let port = port_of(&node.address);
        let all: Vec<u32> = self
            .listeners
            .iter()
            .filter(|l| l.port == port && (l.ip.is_unspecified() || ips.contains(&l.ip)))
            .map(|l| l.pid)
            .filter(|pid| !is_another(*pid, node))
            .collect();
        all.iter().find(|pid| sent_info(**pid, node)).or(all.first()).copied()
    }

    /// With all addresses where clients reach it: far ones may use another than we.
    fn found(&self, pid: u32, node: &Node, asked: &[IpAddr]) -> Found {
        let own = of_process(&self.listeners, pid, node);
        if !own.is_empty() {
            return Found::Here(pid, Ok(own));
        }
        // What listens at the node's address passes on to a server in a container.
        if elsewhere::is_elsewhere(pid) {
            return Found::Elsewhere(pid);
        }
        Found::Here(pid, of_settings(self.sockets, node, asked))
    }
}

/// INFO's `process_id`, if that server runs here.
fn by_process_id(node: &Node) -> Option<u32> {
    let pid = node.number("process_id")? as u32;
    (parse::is_server(&processes::comm(pid)) && sent_info(pid, node)).then_some(pid)
}

fn seen_sockets(
    seen: &InWindow<'_>,
    refused: Option<&std::io::Error>,
    listened: Result<Vec<Listened>, Gap>,
) -> Seen<Vec<unslow_facts::PeerSockets>> {
    match (refused, listened) {
        (Some(e), _) => Seen::No(Gap::new(
            Lack::Host,
            format!("the kernel does not show its sockets ({e})"),
            "run it as root, outside a sandbox",
        )),
        (None, Err(gap)) => Seen::No(gap),
        (None, Ok(listened)) => Seen::yes(by_peer(seen, &listened), ss(&listened), now_ms()),
    }
}

/// Times `count` fsyncs of 4 KiB each in `dir`, in a file that is removed again.
pub fn fsync_times(dir: &Path, count: usize) -> std::io::Result<Rtt> {
    let path = dir.join(format!(".unslow-fsync-{}", std::process::id()));
    let mut file = fs::File::create(&path)?;
    let times: std::io::Result<Vec<u32>> = (0..count)
        .map(|_| {
            file.write_all(&[0u8; 4096])?;
            let begun = Instant::now();
            file.sync_data()?;
            Ok(begun.elapsed().as_micros() as u32)
        })
        .collect();
    fs::remove_file(&path)?;
    Rtt::of(&times?).ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_listening_socket_is_found_by_any_of_its_addresses() {
        use unslow_topology::Role;
        let listener = |pid: u32, ip: [u8; 4]| Listener { pid, ip: ip.into(), port: 6379 };
        let here =
            |listeners: Vec<Listener>| Here { sockets: &[], listeners, local: BTreeSet::from([[10, 0, 0, 5].into()]) };
        let node = Node::new("127.0.0.1:6379", Role::Master);
        let both = here(vec![listener(7, [127, 0, 0, 1]), listener(7, [10, 0, 0, 5]), listener(8, [10, 0, 0, 6])]);
        let Some(Found::Here(7, Ok(listened))) = both.find(&node, &[]) else { panic!("not found") };
        let at = |ip: [u8; 4]| (IpAddr::from(ip), 6379);
        assert_eq!(listened, [at([10, 0, 0, 5]), at([127, 0, 0, 1])]);
        // A server at that address of another machine.
        assert!(both.find(&Node::new("10.0.0.6:6379", Role::Master), &[]).is_none());
        // Without a right to see whose sockets they are, and without INFO.
        assert!(here(Vec::new()).find(&node, &[]).is_none());
    }
}
