//! Servers of this machine in other network namespaces: of `unslow lab`, and of containers.
//!
//! Their sockets are not in our table, and their addresses not among ours; but what /proc says of the processes holds
//! for them as for any. Looking takes root, or to be the owner of their user namespace.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use unslow_facts::{Gap, Lack, Node};

use super::addresses::{Listened, is_bus_of, port_of, resolve};
use super::parse::{local_v4, local_v6, rows};
use super::processes::{self, sent_info, socket_inodes};

/// A server in a network namespace that we are not in.
pub struct Server {
    pub pid: u32,
    /// What it listens on, there.
    listened: Vec<Listened>,
    /// The addresses of that namespace.
    addresses: BTreeSet<IpAddr>,
}

/// All of them that this user may look into.
pub fn servers() -> Vec<Server> {
    processes::servers().filter(|pid| is_elsewhere(*pid)).filter_map(server).collect()
}

/// Whether a process is in another network namespace than we; a process that may not be looked into is not known to be.
pub fn is_elsewhere(pid: u32) -> bool {
    let namespace = |of: String| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    namespace("self".into()).zip(namespace(pid.to_string())).is_some_and(|(ours, its)| ours != its)
}

fn server(pid: u32) -> Option<Server> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let own: BTreeSet<u32> = socket_inodes(pid).into_iter().collect();
    let listened = listened(&[read("tcp"), read("tcp6")], &own);
    let mut addresses = local_v4(&read("fib_trie"));
    addresses.extend(local_v6(&read("if_inet6")));
    (!listened.is_empty()).then_some(Server { pid, listened, addresses })
}

/// Listening sockets with these inodes.
fn listened(tables: &[String], own: &BTreeSet<u32>) -> Vec<Listened> {
    let rows = tables.iter().flat_map(|table| rows(table));
    let mut all: Vec<Listened> = rows.filter(|r| r.listening && own.contains(&r.inode)).map(|r| r.local).collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl Server {
    /// Whether it listens on this port of one of these addresses. Loopback is never meant: every namespace has its own.
    fn serves(&self, ips: &[IpAddr], port: u16) -> bool {
        ips.iter().filter(|ip| !ip.is_loopback() && self.addresses.contains(*ip)).any(|ip| {
            let here = |(at, p): &Listened| *p == port && (at.is_unspecified() || at == ip);
            self.listened.iter().any(here)
        })
    }

    /// Where others reach it, without the cluster bus.
    pub fn reached_at(&self) -> BTreeSet<Listened> {
        let ports = self.listened.iter().filter(|(_, port)| !is_bus_of(&self.listened, *port));
        let all = ports.flat_map(|(at, port)| {
            let fits = move |ip: &&IpAddr| at.is_unspecified() || at == *ip;
            self.addresses.iter().filter(fits).map(move |ip| (*ip, *port))
        });
        all.filter(|(ip, _)| !ip.is_loopback()).collect()
    }
}

/// The one that is this node: it has the node's address in its namespace, listens there, and sent the node's INFO.
/// Another lab, container or machine may have the same address: of two that fit neither is known to be the one.
pub fn find<'a>(servers: &'a [Server], node: &Node) -> Option<&'a Server> {
    let ips = resolve(&node.address)?;
    let port = port_of(&node.address);
    only(servers.iter().filter(|s| s.serves(&ips, port) && sent_info(s.pid, node)))
}

/// The one, where there is exactly one.
fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let one = all.next()?;
    all.next().is_none().then_some(one)
}

/// Why its sockets are not seen.
pub fn unseen_sockets(pid: u32, address: &str) -> Gap {
    let user = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
    // Who owns the namespace of users is root in it, and only there.
    let enter = if user("self") == user(&pid.to_string()) { "-n" } else { "-U --preserve-credentials -n" };
    Gap::new(
        Lack::Host,
        "its sockets are in another network namespace of this machine",
        format!("nsenter -t {pid} {enter} unslow doctor {address}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn server(listened: &[(&str, u16)], addresses: &[&str]) -> Server {
        Server {
            pid: 7,
            listened: listened.iter().map(|(at, port)| (ip(at), *port)).collect(),
            addresses: addresses.iter().map(|at| ip(at)).collect(),
        }
    }

    #[test]
    fn a_server_elsewhere_serves_the_addresses_of_its_own_namespace() {
        let any = server(&[("0.0.0.0", 6379), ("0.0.0.0", 16379)], &["127.0.0.1", "198.18.1.1"]);
        let bound = server(&[("198.18.1.2", 6379)], &["127.0.0.1", "198.18.1.1", "198.18.1.2"]);
        for (server, address, port, serves) in [
            (&any, "198.18.1.1", 6379, true),
            (&any, "198.18.1.1", 6380, false),
            // Its port, at an address of another namespace, or of another machine.
            (&any, "198.18.1.2", 6379, false),
            // Its loopback is not ours.
            (&any, "127.0.0.1", 6379, false),
            (&bound, "198.18.1.2", 6379, true),
            (&bound, "198.18.1.1", 6379, false),
        ] {
            assert_eq!(server.serves(&[ip(address)], port), serves, "{address}:{port}");
        }
        assert_eq!(any.reached_at(), BTreeSet::from([(ip("198.18.1.1"), 6379)]));
        assert_eq!(bound.reached_at(), BTreeSet::from([(ip("198.18.1.2"), 6379)]));
    }

    #[test]
    fn of_two_that_fit_neither_is_taken() {
        for (fitting, found) in [(&[][..], None), (&[7], Some(&7)), (&[7, 8], None)] {
            assert_eq!(only(fitting.iter()), found);
        }
    }

    #[test]
    fn only_a_processs_own_listening_sockets_are_its_own() {
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let row = |at: [u8; 4], state: &str, inode: u32| {
            format!(
                "   0: {}:18EB 00000000:0000 {state} 0:0 00:0 0     0        0 {inode} 1 0 100 0 0 10 0\n",
                word(at)
            )
        };
        let table = [
            "  sl  local_address rem_address   st tx_queue\n".to_string(),
            row([198, 18, 1, 1], "0A", 11),
            row([198, 18, 1, 2], "0A", 12), // another process's
            row([198, 18, 1, 3], "01", 13), // a connection
        ];
        let own = BTreeSet::from([11, 13]);
        assert_eq!(listened(&[table.concat()], &own), [(ip("198.18.1.1"), 6379)]);
    }

    #[test]
    fn the_same_address_and_number_elsewhere_is_not_this_server() {
        use unslow_facts::Sample;
        use unslow_topology::{Info, Role};
        // A process that listens there, as the table says, but did not send this INFO.
        let own = Server { pid: std::process::id(), ..server(&[("0.0.0.0", 6379)], &["198.18.1.1"]) };
        let info = Info::parse(&format!("process_id:{}\r\nuptime_in_seconds:1000000000", std::process::id()));
        let last = Some(Sample { at_ms: crate::now_ms(), info });
        let node = Node { last, ..Node::new("198.18.1.1:6379", Role::Master) };
        assert!(own.serves(&[ip("198.18.1.1")], 6379));
        assert!(find(&[own], &node).is_none());
    }
}
