//! The busiest other processes of the machine, and whether they are clients or strangers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use unslow_facts::{Host, Neighbour};

use super::addresses::{Listened, local_ips, port_of};
use super::parse::rows;
use super::processes::{Task, socket_inodes, used};
use crate::sockets::{self, TcpSocket};

/// How many a recording keeps of each second.
pub const MOST: usize = 5;
/// And how many of a live window: twenty workers of a twentieth of a core each are a neighbour too. The largest are
/// looked at again and again, the others once: reading all they have open takes time where processors are short.
const LISTED: usize = 24;

/// The busiest other processes, and whether they are clients of the servers here. `before` is what each had used when
/// the window began, `elsewhere` where servers in other network namespaces are reached.
pub fn look(before: &BTreeMap<u32, Task>, host: &mut Host, sockets: &[TcpSocket], elsewhere: BTreeSet<Listened>) {
    /// Connections that last shorter than a look are met by looking again; not for longer than this. On a machine that
    /// is short of processors one look takes a tenth of a second, as long as such a connection.
    const LOOK: Duration = Duration::from_secs(1);
    const PAUSE: Duration = Duration::from_millis(5);
    let servers: BTreeSet<u32> = host.processes.iter().map(|p| p.pid).collect();
    let mut all: Vec<Neighbour> = used()
        .filter(|(pid, _)| !servers.contains(pid) && *pid != std::process::id())
        .map(|(pid, after)| {
            let then = before.get(&pid).map_or(0, |t| t.ticks);
            let cpu_share = unslow_process::seconds(after.ticks.saturating_sub(then)) / host.window_s;
            Neighbour { pid, name: after.name, cpu_share, client: false, parent: Some(after.parent) }
        })
        .filter(|n| n.cpu_share > 0.02)
        .collect();
    all.sort_by(|a, b| b.cpu_share.total_cmp(&a.cpu_share));
    all.truncate(LISTED);
    let doors = Doors::of(host, elsewhere);
    let mut here = doors.connections(sockets);
    let mut seen: Vec<Sockets> = all.iter().map(|_| Sockets::default()).collect();
    let until = Instant::now() + LOOK;
    let waited = host.processes.iter().any(|p| p.run_delay_share.is_some_and(|d| d > 0.01));
    let mut looked_at = all.len();
    loop {
        for (neighbour, sockets) in all.iter_mut().zip(&mut seen).take(looked_at).filter(|(n, _)| !n.client) {
            neighbour.client = sockets.lead(neighbour.pid, &doors, &here);
        }
        looked_at = MOST.min(all.len());
        // It matters only where a server had to wait for them.
        if !waited || all[..looked_at].iter().all(|n| n.client) || Instant::now() > until {
            break;
        }
        std::thread::sleep(PAUSE);
        here = doors.connections(&sockets::all().unwrap_or_default());
    }
    host.neighbours = all;
}

/// What was seen of one process's sockets.
///
/// What was open and what led to a server are read one after the other and compared over all looks: tables are long
/// under short connections, and one may begin and end between two readings. Inodes are not used again so soon.
#[derive(Default)]
pub struct Sockets {
    /// Of the network namespaces it is in and we are not.
    tables: Option<Vec<PathBuf>>,
    open: BTreeSet<u32>,
    led: BTreeSet<u32>,
}

impl Sockets {
    /// Looks again: whether one of them led to a server. `here` are the clients' ends in this network namespace.
    pub fn lead(&mut self, pid: u32, doors: &Doors, here: &BTreeSet<u32>) -> bool {
        // As close together as can be: what is read is taken apart later.
        self.led.extend(here);
        self.open.extend(socket_inodes(pid));
        let tables = self.tables.get_or_insert_with(|| tables_elsewhere(pid));
        let read = |table: &PathBuf| {
            let text = fs::read_to_string(table).unwrap_or_default();
            self.open.extend(socket_inodes(pid));
            text
        };
        let texts: Vec<String> = tables.iter().map(read).collect();
        self.led.extend(doors.connections_in(&texts));
        !self.open.is_disjoint(&self.led)
    }
}

/// Where the servers of this host are reached.
#[derive(Default)]
pub struct Doors {
    ports: BTreeSet<u16>,
    local: BTreeSet<IpAddr>,
    /// In other network namespaces.
    elsewhere: BTreeSet<Listened>,
}

impl Doors {
    /// Those of the servers that a look found, and those that are `elsewhere`.
    pub fn of(host: &Host, elsewhere: BTreeSet<Listened>) -> Doors {
        let addresses = || host.processes.iter().flat_map(|p| &p.addresses);
        let local = local_ips();
        let named = addresses().filter_map(|address| address.parse::<SocketAddr>().ok());
        let abroad = named.map(|at| (at.ip(), at.port())).filter(|(ip, _)| !ip.is_loopback() && !local.contains(ip));
        let elsewhere = elsewhere.into_iter().chain(abroad).collect();
        Doors { ports: addresses().map(|a| port_of(a)).collect(), local, elsewhere }
    }

    /// Inodes of the clients' ends, of sockets in this network namespace.
    pub fn connections(&self, sockets: &[TcpSocket]) -> BTreeSet<u32> {
        let here = |ip: &IpAddr| ip.is_loopback() || self.local.contains(ip);
        let ours = |peer: &Listened| self.elsewhere.contains(peer) || (self.ports.contains(&peer.1) && here(&peer.0));
        sockets.iter().filter(|s| !s.listening && ours(&s.peer)).map(|s| s.inode).collect()
    }

    /// The same from tables of other network namespaces: a client in a container is one too.
    fn connections_in(&self, tables: &[String]) -> Vec<u32> {
        let all = tables.iter().flat_map(|table| rows(table));
        // Its loopback is not ours.
        let here = |ip: &IpAddr| self.local.contains(ip) && !ip.is_loopback();
        let ours = |peer: &Listened| self.elsewhere.contains(peer) || (self.ports.contains(&peer.1) && here(&peer.0));
        all.filter(|r| !r.listening && ours(&r.peer)).map(|r| r.inode).collect()
    }
}

/// Tables of sockets of the network namespaces that a process and its threads are in and we are not.
fn tables_elsewhere(pid: u32) -> Vec<PathBuf> {
    const MOST: usize = 200;
    let mut seen: BTreeSet<PathBuf> = fs::read_link("/proc/self/ns/net").into_iter().collect();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .take(MOST)
        .map(|t| t.path())
        .filter(|t| fs::read_link(t.join("ns/net")).is_ok_and(|ns| seen.insert(ns)))
        .flat_map(|t| [t.join("net/tcp"), t.join("net/tcp6")])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::addresses::tests::socket;
    use super::*;

    #[test]
    fn local_clients_are_recognized_by_their_end_of_the_connection() {
        let here: IpAddr = "10.0.0.1".parse().unwrap();
        let lab: Listened = ("198.18.1.1".parse().unwrap(), 7000);
        let ours =
            Doors { ports: BTreeSet::from([6379]), local: BTreeSet::from([here]), elsewhere: BTreeSet::from([lab]) };
        let sockets = [
            socket("10.0.0.1:1001", "10.0.0.1:6379"),
            socket("127.0.0.1:1002", "127.0.0.1:6379"),
            socket("10.0.0.1:1003", "10.0.0.9:6379"),     // a server elsewhere
            socket("10.0.0.1:1004", "10.0.0.1:6380"),     // no server
            socket("10.0.0.1:6379", "10.0.0.1:1001"),     // the server's end
            socket("198.18.0.1:1005", "198.18.1.1:7000"), // through the door of a lab
            socket("198.18.0.1:1006", "198.18.1.2:7000"), // to another host of it
        ];
        assert_eq!(ours.connections(&sockets), BTreeSet::from([1001, 1002, 1005]));
    }
}
