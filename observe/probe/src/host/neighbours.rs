//! The busiest other processes of the machine, and whether they are clients or strangers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use unslow_facts::{Host, Neighbour};

use super::addresses::{Listened, local_ips, port_of};
use super::parse::rows;
use super::processes::{Task, socket_inodes, used};
use crate::sockets::{self, TcpSocket};

/// The busiest other processes, and whether they are clients of the servers here. `before` is what each had used when
/// the window began, `elsewhere` where servers in other network namespaces are reached.
pub fn look(before: &BTreeMap<u32, Task>, host: &mut Host, sockets: &[TcpSocket], elsewhere: BTreeSet<Listened>) {
    const MOST: usize = 5;
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
    all.truncate(MOST);
    let ports = host.processes.iter().flat_map(|p| &p.addresses).map(|a| port_of(a)).collect();
    let ours = Ours { ports, local: local_ips(), elsewhere };
    let here = ours.connections(sockets);
    // What was open and what led to a server are read one after the other and compared over all looks: tables are long
    // under short connections, and one may begin and end between two readings. Inodes are not used again so soon.
    let tables: Vec<Vec<PathBuf>> = all.iter().map(|n| tables_elsewhere(n.pid)).collect();
    let mut open: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); all.len()];
    let mut led: Vec<BTreeSet<u32>> = vec![here; all.len()];
    let until = Instant::now() + LOOK;
    let waited = host.processes.iter().any(|p| p.run_delay_share.is_some_and(|d| d > 0.01));
    loop {
        for (i, neighbour) in all.iter_mut().enumerate().filter(|(_, n)| !n.client) {
            // As close together as can be: what is read is taken apart later.
            open[i].extend(socket_inodes(neighbour.pid));
            let read = |table: &PathBuf| {
                let text = fs::read_to_string(table).unwrap_or_default();
                open[i].extend(socket_inodes(neighbour.pid));
                text
            };
            let texts: Vec<String> = tables[i].iter().map(read).collect();
            led[i].extend(ours.connections_in(&texts));
            neighbour.client = !open[i].is_disjoint(&led[i]);
        }
        // It matters only where a server had to wait for them.
        if !waited || all.iter().all(|n| n.client) || Instant::now() > until {
            break;
        }
        std::thread::sleep(PAUSE);
        let here = ours.connections(&sockets::all().unwrap_or_default());
        led.iter_mut().for_each(|l| l.extend(&here));
    }
    host.neighbours = all;
}

/// Where the servers of this host are reached.
struct Ours {
    ports: BTreeSet<u16>,
    local: BTreeSet<IpAddr>,
    /// In other network namespaces.
    elsewhere: BTreeSet<Listened>,
}

impl Ours {
    /// Inodes of the clients' ends, of sockets in this network namespace.
    fn connections(&self, sockets: &[TcpSocket]) -> BTreeSet<u32> {
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
            Ours { ports: BTreeSet::from([6379]), local: BTreeSet::from([here]), elsewhere: BTreeSet::from([lab]) };
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
