//! Which server of a machine's file (`unslow host --save`) is which node of the deployment.
//!
//! A file knows sockets and process numbers, and a deployment knows addresses. They meet at the node's own address,
//! where the server listens on it. A container, a NAT or `bind *` hides that: then only the port and the number of the
//! process are left, and every container's server is process 1 at port 6379. So such a match counts only where nothing
//! else fits, and what fits several times is given to none and said in words.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use unslow_facts::{Host, Node, Process};

use super::addresses::port_of;
use super::processes::START_MS;

/// What became of one process of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It listens at these nodes' own addresses, and no server of another machine does.
    ByAddress(Vec<String>),
    /// Its port and the number of its process are those of this node, and of no other; no other process has them.
    ByPort(String),
    /// It may be any of these nodes, or another process may be.
    Ambiguous(Vec<String>),
    /// No node fits.
    #[default]
    None,
}

/// By what a process and a node fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    Port,
    Address,
}

/// A process and a node that fit.
#[derive(Clone, Copy)]
struct Pair<'a> {
    /// Which of the hosts.
    host: usize,
    /// Which of its processes.
    nth: usize,
    node: &'a str,
    fit: Fit,
}

impl Pair<'_> {
    fn process(&self) -> (usize, usize) {
        (self.host, self.nth)
    }
}

/// Gives the processes of these files the addresses of the nodes they serve; nodes that were found on this machine
/// (`local`) are not given away. What could not be told is returned as sentences with the command that would tell it.
pub fn assign(hosts: &mut [Host], nodes: &[Node], local: Option<&Host>) -> Vec<String> {
    let found_here: BTreeSet<&str> =
        local.iter().flat_map(|h| &h.processes).flat_map(|p| &p.addresses).map(String::as_str).collect();
    let free: Vec<&Node> = nodes.iter().filter(|n| !found_here.contains(n.address.as_str())).collect();
    let outcomes = outcomes(hosts, &free);
    let mut notes = Vec::new();
    for (host, outcomes) in hosts.iter_mut().zip(outcomes) {
        // A second look at this machine has nothing to add.
        if local.is_none_or(|l| l.boot_id != host.boot_id || host.boot_id.is_empty()) {
            notes.extend(in_words(host, &outcomes));
        }
        for (process, outcome) in host.processes.iter_mut().zip(outcomes) {
            match outcome {
                Outcome::ByAddress(addresses) => process.addresses = addresses,
                Outcome::ByPort(address) => process.addresses = vec![address],
                // What is left is found by its text: none may be taken for a node that it does not serve.
                Outcome::Ambiguous(_) | Outcome::None => {
                    process.addresses.retain(|a| nodes.iter().all(|node| node.address != *a));
                }
            }
        }
    }
    notes
}

/// The outcome of each process, in the order of hosts and processes.
pub fn outcomes(hosts: &[Host], nodes: &[&Node]) -> Vec<Vec<Outcome>> {
    let pairs = best_of(pairs(hosts, nodes));
    let mut of_process: BTreeMap<(usize, usize), Vec<&Pair>> = BTreeMap::new();
    let mut of_node: BTreeMap<&str, Vec<&Pair>> = BTreeMap::new();
    for pair in &pairs {
        of_process.entry(pair.process()).or_default().push(pair);
        of_node.entry(pair.node).or_default().push(pair);
    }
    let each = |host: usize, nth: usize| -> Outcome {
        let Some(own) = of_process.get(&(host, nth)) else { return Outcome::None };
        let addresses: Vec<String> = own.iter().map(|p| p.node.to_string()).collect();
        let has_rival = own.iter().any(|pair| of_node[pair.node].iter().any(|other| is_rival(hosts, pair, other)));
        match own[0].fit {
            _ if has_rival => Outcome::Ambiguous(addresses),
            Fit::Address => Outcome::ByAddress(addresses),
            Fit::Port if addresses.len() > 1 => Outcome::Ambiguous(addresses),
            Fit::Port => addresses.into_iter().next().map_or(Outcome::None, Outcome::ByPort),
        }
    };
    let of_host =
        |(h, host): (usize, &Host)| -> Vec<Outcome> { (0..host.processes.len()).map(|p| each(h, p)).collect() };
    hosts.iter().enumerate().map(of_host).collect()
}

/// Without those whose process or node has a better fit.
fn best_of(pairs: Vec<Pair<'_>>) -> Vec<Pair<'_>> {
    let by_address = pairs.iter().filter(|p| p.fit == Fit::Address);
    let processes: BTreeSet<(usize, usize)> = by_address.clone().map(Pair::process).collect();
    let nodes: BTreeSet<&str> = by_address.map(|p| p.node).collect();
    let is_left = |p: &Pair| p.fit == Fit::Address || !(processes.contains(&p.process()) || nodes.contains(p.node));
    pairs.into_iter().filter(is_left).collect()
}

fn pairs<'a>(hosts: &[Host], nodes: &[&'a Node]) -> Vec<Pair<'a>> {
    let mut all = Vec::new();
    for (host, h) in hosts.iter().enumerate() {
        for (nth, process) in h.processes.iter().enumerate() {
            let fits = nodes.iter().filter_map(|node| Some((node.address.as_str(), fit(process, node)?)));
            all.extend(fits.map(|(node, fit)| Pair { host, nth, node, fit }));
        }
    }
    all
}

fn fit(process: &Process, node: &Node) -> Option<Fit> {
    let said = node.number("process_id");
    let own = process.own_pid.unwrap_or(process.pid);
    if said.is_some_and(|said| said != f64::from(own) && said != f64::from(process.pid)) {
        return None;
    }
    if process.addresses.iter().any(|a| *a == node.address && !is_any_machines(a)) {
        return Some(Fit::Address);
    }
    // A port alone is anyone's. The server knows its own, whatever a NAT makes of it.
    let listens = node.number("tcp_port").map(|port| port as u16).filter(|port| *port != 0);
    let has_port = |port: u16| process.addresses.iter().any(|a| port_of(a) == port);
    let port = has_port(port_of(&node.address)) || listens.is_some_and(has_port);
    (said.is_some() && port && started_together(process, node) != Some(false)).then_some(Fit::Port)
}

/// Whether the process was started when the node's INFO says, by the clock of the server's own machine; `None` where
/// either does not say (INFO before 7.0, files of earlier versions).
fn started_together(process: &Process, node: &Node) -> Option<bool> {
    let now_ms = node.number("server_time_usec")? / 1000.0;
    let by_info = now_ms - node.number("uptime_in_seconds")? * 1000.0;
    Some((by_info - process.started_ms? as f64).abs() < START_MS)
}

/// Whether another process may be the node as well.
fn is_rival(hosts: &[Host], pair: &Pair, other: &Pair) -> bool {
    if pair.process() == other.process() {
        return false;
    }
    let (host, its) = (&hosts[pair.host], &hosts[other.host]);
    let (process, another) = (&host.processes[pair.nth], &its.processes[other.nth]);
    // A fork of the server listens at the same address for as long as it lives.
    let is_fork = pair.host == other.host && pair.fit == Fit::Address;
    // The same machine, recorded twice.
    let is_same = !host.boot_id.is_empty()
        && (&host.boot_id, &host.hostname) == (&its.boot_id, &its.hostname)
        && (process.pid, &process.addresses) == (another.pid, &another.addresses)
        && pair.host != other.host;
    !is_fork && !is_same
}

/// What could not be told of one file.
fn in_words(host: &Host, outcomes: &[Outcome]) -> Vec<String> {
    let file = format!("the host file of {}", host.hostname);
    if host.processes.is_empty() {
        return vec![format!("{file} shows no Redis or Valkey server: record it on a server's machine, as root")];
    }
    let command = |process: &Process| format!("unslow doctor {}", typed(process));
    let mut notes: Vec<String> = Vec::new();
    for (process, outcome) in host.processes.iter().zip(outcomes) {
        if let Outcome::Ambiguous(nodes) = outcome {
            notes.push(format!(
                "{file}: cannot tell whether process {} at {} is {} or another server, so it was matched to none; on \
                 that machine run: {}",
                process.pid,
                process.addresses.join(", "),
                nodes.join(" or "),
                command(process)
            ));
        }
    }
    if outcomes.iter().all(|o| *o == Outcome::None) {
        let servers: Vec<&str> = host.processes.iter().flat_map(|p| &p.addresses).map(String::as_str).collect();
        notes.push(format!(
            "{file}: its servers ({}) are none of the nodes by address, port and process number, as in a container or \
             behind a NAT; \
             on that machine run: {}",
            servers.join(", "),
            command(&host.processes[0])
        ));
    }
    notes
}

/// How a person on that machine reaches it.
fn typed(process: &Process) -> String {
    let first = process.addresses.first().map_or("127.0.0.1:6379", String::as_str);
    first.strip_prefix("*:").map_or_else(|| first.to_string(), |port| format!("127.0.0.1:{port}"))
}

/// Whether it says nothing of the machine it is on: any address, or a loopback.
fn is_any_machines(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "*" || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use unslow_facts::Sample;
    use unslow_topology::{Info, Role};

    use super::*;

    /// When the servers' clocks show it; unix time in ms.
    const NOW_MS: u64 = 1_790_000_000_000;

    /// A node whose INFO has these fields; without any, INFO is denied.
    fn node(address: &str, info: &str) -> Node {
        let sample = Sample { at_ms: NOW_MS, info: Info::parse(info) };
        Node { last: (!info.is_empty()).then_some(sample), ..Node::new(address, Role::Master) }
    }

    fn process(pid: u32, addresses: &[&str]) -> Process {
        Process { pid, addresses: addresses.iter().map(ToString::to_string).collect(), ..Process::default() }
    }

    fn host(name: &str, processes: Vec<Process>) -> Host {
        Host { hostname: name.into(), boot_id: format!("boot of {name}"), processes, ..Host::default() }
    }

    fn by_address(all: &[&str]) -> Outcome {
        Outcome::ByAddress(all.iter().map(ToString::to_string).collect())
    }

    fn by_port(address: &str) -> Outcome {
        Outcome::ByPort(address.into())
    }

    fn ambiguous(all: &[&str]) -> Outcome {
        Outcome::Ambiguous(all.iter().map(ToString::to_string).collect())
    }

    const A: &str = "10.0.0.5:6379";
    const B: &str = "10.0.0.6:6379";

    /// What it is about, the files, the nodes, and what becomes of each process.
    type Case = (&'static str, Vec<Host>, Vec<Node>, Vec<Outcome>);

    #[track_caller]
    fn check(cases: Vec<Case>) {
        for (what, hosts, nodes, expected) in cases {
            let nodes: Vec<&Node> = nodes.iter().collect();
            let found: Vec<Outcome> = outcomes(&hosts, &nodes).into_iter().flatten().collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    fn one(process: Process) -> Vec<Host> {
        vec![host("a", vec![process])]
    }

    fn two(first: Process, second: Process) -> Vec<Host> {
        vec![host("a", vec![first]), host("b", vec![second])]
    }

    /// As a container's server is: process 1 at every address.
    fn contained() -> Process {
        process(1, &["*:6379"])
    }

    const NUMBER_1: &str = "process_id:1\r\n";

    #[test]
    fn a_process_is_a_node_by_its_address_or_by_a_port_and_number_that_fit_no_other() {
        let in_another_network = Process { own_pid: Some(1), ..process(4711, &["172.17.0.2:6379"]) };
        let nat = node("203.0.113.5:16379", "process_id:77\r\ntcp_port:6379");
        check(vec![
            ("its address", one(process(2, &[A])), vec![node(A, "")], vec![by_address(&[A])]),
            ("its address, another number", one(process(2, &[A])), vec![node(A, "process_id:3")], vec![Outcome::None]),
            (
                "its address, which a fork has as well",
                vec![host("a", vec![process(2, &[A]), process(3, &[A])])],
                vec![node(A, "")],
                vec![by_address(&[A]), by_address(&[A])],
            ),
            (
                "its address, in two files of one machine",
                vec![host("a", vec![process(2, &[A])]), host("a", vec![process(2, &[A])])],
                vec![node(A, "process_id:2")],
                vec![by_address(&[A]), by_address(&[A])],
            ),
            ("any address", one(contained()), vec![node(A, NUMBER_1)], vec![by_port(A)]),
            ("any address, INFO denied", one(contained()), vec![node(A, "")], vec![Outcome::None]),
            ("any address, another port", one(process(1, &["*:6380"])), vec![node(A, NUMBER_1)], vec![Outcome::None]),
            (
                "a loopback, twice",
                one(process(7, &["::1:6379", "127.0.0.1:6379"])),
                vec![node(A, "process_id:7")],
                vec![by_port(A)],
            ),
            (
                "recorded in a container's network",
                one(process(1, &["172.17.0.2:6379"])),
                vec![node(A, NUMBER_1)],
                vec![by_port(A)],
            ),
            ("in a container, recorded outside", one(in_another_network), vec![node(A, NUMBER_1)], vec![by_port(A)]),
            (
                "behind a NAT that has another port",
                one(process(77, &["192.168.0.9:6379"])),
                vec![nat],
                vec![by_port("203.0.113.5:16379")],
            ),
        ]);
    }

    #[test]
    fn what_fits_several_is_ambiguous_unless_something_else_tells_them_apart() {
        let started = |ago_s: u64| {
            let now_us = NOW_MS * 1000;
            format!("process_id:1\r\nserver_time_usec:{now_us}\r\nuptime_in_seconds:{ago_s}\r\n")
        };
        let since = |ago_s: u64| Process { started_ms: Some(NOW_MS - ago_s * 1000), ..contained() };
        let both = || vec![node(A, NUMBER_1), node(B, NUMBER_1)];
        let on_one_machine = [2, 3].map(|n| {
            let address = format!("172.17.0.{n}:6379");
            Process { own_pid: Some(1), ..process(4710 + n, &[&address]) }
        });
        check(vec![
            (
                "two containers, one node",
                two(contained(), contained()),
                vec![node(A, NUMBER_1)],
                vec![ambiguous(&[A]), ambiguous(&[A])],
            ),
            ("one container, two nodes", one(contained()), both(), vec![ambiguous(&[A, B])]),
            ("two of each", two(contained(), contained()), both(), vec![ambiguous(&[A, B]), ambiguous(&[A, B])]),
            (
                "two containers of one machine",
                vec![host("a", on_one_machine.into())],
                vec![node(A, NUMBER_1)],
                vec![ambiguous(&[A]), ambiguous(&[A])],
            ),
            (
                "the same private address on two machines",
                two(process(1, &[A]), process(1, &[A])),
                vec![node(A, NUMBER_1)],
                vec![ambiguous(&[A]), ambiguous(&[A])],
            ),
            (
                "told apart by their starts",
                two(since(500), since(90)),
                vec![node(A, &started(500)), node(B, &started(90))],
                vec![by_port(A), by_port(B)],
            ),
            ("another start", one(since(500)), vec![node(A, &started(90))], vec![Outcome::None]),
            (
                "told apart by the other's address",
                two(process(1, &[A]), contained()),
                both(),
                vec![by_address(&[A]), by_port(B)],
            ),
        ]);
    }

    fn addresses(hosts: &[Host]) -> Vec<Vec<&str>> {
        hosts.iter().flat_map(|h| &h.processes).map(|p| p.addresses.iter().map(String::as_str).collect()).collect()
    }

    #[test]
    fn what_is_not_known_is_given_to_none_and_said_with_what_to_type() {
        let mut hosts = [host("a", vec![process(1, &["*:6379"])]), host("b", vec![process(1, &["*:6379"])])];
        let notes = assign(&mut hosts, &[node(A, "process_id:1")], None);
        assert_eq!(addresses(&hosts), [["*:6379"], ["*:6379"]]);
        assert_eq!(notes.len(), 2);
        for (note, name) in notes.iter().zip(["a", "b"]) {
            let whole = note.contains(&format!("the host file of {name}")) && note.contains(A);
            assert!(whole && note.ends_with("on that machine run: unslow doctor 127.0.0.1:6379"), "{note}");
        }
        // A file that fits nothing, one without a server, and one whose other server is not of this deployment.
        let mut hosts = [
            host("far", vec![process(1, &["172.17.0.2:6399"])]),
            host("empty", Vec::new()),
            host("good", vec![process(5, &[A]), process(6, &["10.0.0.5:6390"])]),
        ];
        let notes = assign(&mut hosts, &[node(A, "process_id:5")], None);
        let [far, empty] = &notes[..] else { panic!("{notes:?}") };
        assert!(far.contains("far") && far.ends_with("unslow doctor 172.17.0.2:6399"), "{far}");
        assert!(empty.contains("shows no Redis or Valkey server"), "{empty}");
        assert_eq!(addresses(&hosts), [["172.17.0.2:6399"], [A], ["10.0.0.5:6390"]]);
    }

    #[test]
    fn a_text_that_is_another_servers_is_taken_away() {
        // The doctor's own loopback is not that machine's, and another server has this one's address by now.
        let mut hosts =
            [host("a", vec![process(8, &["127.0.0.1:6381", "10.0.0.5:6381"]), process(9, &["10.0.0.5:6382"])])];
        let notes = assign(
            &mut hosts,
            &[node("127.0.0.1:6381", "process_id:99"), node("10.0.0.5:6382", "process_id:10")],
            None,
        );
        assert_eq!(addresses(&hosts), [vec!["10.0.0.5:6381"], vec![]]);
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn a_node_that_was_found_on_this_machine_is_not_given_away() {
        let local = host("here", vec![process(1, &[A])]);
        let mut hosts = [host("b", vec![process(1, &["*:6379"])]), host("here", vec![process(1, &["*:6379"])])];
        let notes = assign(&mut hosts, &[node(A, "process_id:1")], Some(&local));
        assert_eq!(addresses(&hosts), [["*:6379"], ["*:6379"]]);
        assert!(matches!(&notes[..], [one] if one.contains("the host file of b")), "{notes:?}");
    }
}
