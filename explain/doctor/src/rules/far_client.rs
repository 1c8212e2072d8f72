//! Some clients are far from their server: every round trip costs them more than it costs others.
//!
//! Between availability zones a round trip takes about 1 ms instead of 0.1 ms, whatever the instance size. One
//! connection with one command in flight cannot do more than 1/RTT commands a second: 10,000 at 0.1 ms, 1,000 at 1 ms.
//! CPU, memory and bandwidth are healthy on all sides.
//!
//! Seen when: the smallest round trip that the kernel saw on a client's sockets is at least 0.5 ms and three times that
//! of the nearest clients; or, if the server's machine could not be inspected, when the server is that far from here.
//!
//! Distance means the smallest of many round trips. A connection that hardly sends anything has one sample, which
//! includes the client's delayed ACK, and does not count. From here it is the smallest of the PINGs and of the TCP
//! handshake, which the kernel answers even while the server is stopped. A client or a server on the same machine is
//! never far.
//!
//! Not to be taken for: queueing. A minimum that is high and stable is distance; a low minimum under a high mean is
//! load. Through a proxy the sockets are the proxy's, so nothing is known.
//!
//! How to confirm: `ss -tin sport = :6379` on the server's machine, `minrtt` of each client; `ping SERVER` from the
//! client.
//!
//! What to do: batch and pipeline, read from a replica in the same zone, or move the client.
//! Sources: tcp_info.min_rtt; valkey availability-zone (8.0+).

use std::net::IpAddr;

use unslow_facts::PeerSockets;

use super::no_pipelining::pipelining;
use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Far client";
pub const LEADS_TO: &[&str] = &["no_pipelining"];
pub const INJECTED: Injected = Injected::Yes;

pub(super) const FAR_US: f64 = 500.0;
/// Segments in the window: a socket with fewer has hardly a sample.
const SPEAKS: u64 = 20;
/// Round trips from here: with fewer, the smallest one may hold a stall.
const ROUND_TRIPS: u32 = 10;

/// Whether this peer of a server, as its sockets or CLIENT LIST name it, runs on the server's own machine.
pub(super) fn is_local(node: &Node, host: &str) -> bool {
    // CLIENT LIST shows a unix socket by its path.
    is_loopback(host) || host.starts_with('/') || host == node.host()
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// The clients of one server by their distance.
pub(super) struct Distances<'a> {
    node: &'a Node,
    clients: Vec<&'a PeerSockets>,
    near_us: f64,
    /// The farthest first.
    pub far: Vec<&'a PeerSockets>,
}

impl Distances<'_> {
    /// `None` where the server's sockets were not seen.
    pub fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Distances<'a>> {
        let members: Vec<&str> = facts.nodes.iter().filter(|n| n.address != node.address).map(|n| n.host()).collect();
        let is_member = |p: &&PeerSockets| members.contains(&p.host.as_str()) && p.host != node.host();
        let clients: Vec<&PeerSockets> =
            node.sockets.value()?.iter().filter(|p| p.min_rtt_us > 0 && !is_member(p)).collect();
        let nearest = clients.iter().map(|p| distance_us(p)).fold(f64::INFINITY, f64::min);
        let near_us = nearest.min(from_here_us(node).unwrap_or(f64::INFINITY));
        // One administrator's tunnel is no finding.
        let all = sockets(&clients) as f64;
        let is_far = |p: &&PeerSockets| {
            let speaks = p.segments_out >= SPEAKS && f64::from(p.sockets) >= 0.05 * all;
            speaks && !is_local(node, &p.host) && distance_us(p) >= FAR_US.max(3.0 * near_us)
        };
        let far = by_worst(clients.iter().copied().filter(is_far).collect(), |p| distance_us(p));
        Some(Distances { node, clients, near_us, far })
    }

    /// Share of the connections that are far.
    fn share(&self) -> f64 {
        sockets(&self.far) as f64 / sockets(&self.clients).max(1) as f64
    }

    fn farthest_us(&self) -> f64 {
        self.far.first().map_or(FAR_US, |p| distance_us(p))
    }

    /// On the mean request.
    fn cost_ms(&self) -> f64 {
        (self.farthest_us() - self.near_us).max(0.0) / 1000.0 * self.share()
    }
}

fn sockets(peers: &[&PeerSockets]) -> u64 {
    peers.iter().map(|p| u64::from(p.sockets)).sum()
}

/// All of a peer's sockets lead to one machine: the smallest round trip on any of them is how far it is.
fn distance_us(peer: &PeerSockets) -> f64 {
    f64::from(peer.min_rtt_us)
}

/// How far a server is from here: the smallest of the PINGs, or of the handshake, which needs no server that answers.
fn from_here_us(node: &Node) -> Option<f64> {
    let pings = node.rtt.value().filter(|r| r.count >= ROUND_TRIPS).map(|r| f64::from(r.us_min));
    let handshake = node.connect_us.map(|us| us as f64);
    pings.into_iter().chain(handshake).reduce(f64::min)
}

pub fn check(facts: &Facts) -> Verdict {
    if let Some(proxy) = &facts.through {
        let why = format!("clients' distances: seen through a proxy ({proxy}), whose sockets are not the clients'");
        return Verdict::unknown(Lack::Other, why, "run the doctor at the servers' own addresses");
    }
    let all: Vec<Distances<'_>> = facts.live().filter_map(|node| Distances::of(facts, node)).collect();
    let worst = by_worst(all.iter().filter(|d| !d.far.is_empty()).collect(), |d| d.cost_ms());
    if let Some(worst) = worst.first() {
        return far_from_server(facts, worst).into();
    }
    far_from_here(facts).map_or_else(|| absent(facts, &all), Verdict::from)
}

/// By the server's own sockets: every client's distance.
fn far_from_server(facts: &Facts, worst: &Distances<'_>) -> Finding {
    let (node, near, far) = (worst.node, worst.near_us, worst.farthest_us());
    let ten = [far, 10.0 * far, 10.0 * near].map(time_us);
    let mut finding = Finding::new(format!(
        "{} of {} client connections of {} are far away: {} a round trip, the nearest {}",
        sockets(&worst.far),
        sockets(&worst.clients),
        node.address,
        time_us(far),
        time_us(near)
    ))
    .on([node.address.as_str()])
    .latency(
        worst.cost_ms(),
        format!("{} more for each round trip of {} of the connections", time_us(far - near), percent(worst.share())),
    )
    .gain(
        format!(
            "a batch of 10 commands takes {} instead of {}; from a client in the same zone, {}",
            ten[0], ten[1], ten[2]
        ),
        format!("one by one: 10 x {far:.0} us = {:.0} us; pipelined: 1 x {far:.0} us", 10.0 * far),
    )
    .proven("the kernel's smallest round trip per client, on the server's own sockets");
    for peer in worst.far.iter().take(3) {
        let rtt = format!("minrtt {}, rtt now {}", time_us(distance_us(peer)), time_us(f64::from(peer.rtt_us_p50)));
        let again = format!("{} of {} segments sent again", peer.retransmits, peer.segments_out);
        finding = finding.saw(node, "ss -tin", format!("{}: {} sockets, {rtt}, {again}", peer.host, peer.sockets));
    }
    if let Some(depth) = node.depth() {
        let most = format!("at most {:.0} commands/s for each far connection", 1e6 / far * depth);
        finding = finding.saw(node, "INFO stats", format!("{depth:.2} commands per read: {most}"));
    }
    if let Some(peer) = worst.far.first() {
        let now = time_us(f64::from(peer.rtt_us_p50));
        finding = finding.not(format!("queueing: the minimum is {}, the mean now {now}", time_us(far)));
    }
    finding = finding.fix(
        "Send batches: pipeline what one request or one Kafka poll needs",
        &pipelining(node),
        "replies come at the end of the batch; keep batches below a few thousand commands",
        "",
    );
    if !has_replica(facts, node) {
        let check = "ss -tin   (on the server's machine, after the move: minrtt)";
        return finding.fix("Move the client to its server's zone, or the server to its clients'", &[check], "", "");
    }
    finding.fix(
        "Read from a replica in the client's own zone, or move the client there",
        &["Lettuce: ReadFrom.subnet(...) or ReadFrom.LOWEST_LATENCY", "GLIDE: ReadFrom.AZAffinity"],
        "replicas are a little behind their master",
        "ReadFrom.MASTER",
    )
}

fn has_replica(facts: &Facts, node: &Node) -> bool {
    let counted = node.number("connected_slaves").is_some_and(|n| n > 0.0);
    counted || facts.nodes.iter().any(|n| n.master.as_deref() == Some(&node.address)) || !node.is_master()
}

/// From here only: this machine is taken for the clients', of servers whose sockets were not seen.
fn far_from_here(facts: &Facts) -> Option<Finding> {
    let there = |n: &&Node| n.sockets.value().is_none() && !n.address.starts_with("unix:") && !is_loopback(n.host());
    let rows: Vec<(&Node, f64)> = facts.live().filter(there).filter_map(|n| Some((n, from_here_us(n)?))).collect();
    let near = facts.live().filter_map(from_here_us).fold(f64::INFINITY, f64::min);
    let far = by_worst(rows.into_iter().filter(|r| r.1 >= FAR_US).collect(), |r| r.1);
    let &(node, us) = far.first()?;
    let uneven = near * 3.0 <= us;
    let compared = if uneven { format!(", the nearest {}", time_us(near)) } else { String::new() };
    let pings = node.rtt.value().map(|r| format!("smallest of {} round trips {}", r.count, time_us(r.us_min.into())));
    let handshake = node.connect_us.map(|us| format!("TCP handshake {}", time_us(us as f64)));
    let told: Vec<String> = pings.into_iter().chain(handshake).collect();
    // Where this machine stands is not where the clients stand, and in a deployment over several zones some node is far
    // from any place: without the clients' own sockets this is no effect.
    let finding = Finding::new(format!("{} is {} away from here{compared}", node.address, time_us(us)))
        .on(far.iter().map(|(n, _)| n.address.as_str()))
        .risk(format!(
            "{} for each round trip from here: {:.0} commands/s for a connection that does not pipeline",
            time_us(us),
            1e6 / us
        ))
        .gain(
            format!("a batch of 10 takes {} instead of {}", time_us(us), time_us(10.0 * us)),
            format!("one by one: 10 x {us:.0} us = {:.0} us; pipelined: 1 x {us:.0} us", 10.0 * us),
        )
        .possible("measured from this machine; whether the slow clients are here too is not known")
        .saw(node, "PING", told.join(", "))
        .fix(
            "Send batches: pipeline what one request needs",
            &pipelining(node),
            "replies come at the end of the batch",
            "",
        )
        .fix(
            "Run unslow on the server's machine to see every client's distance",
            &["unslow host --save host.json"],
            "",
            "",
        );
    Some(if uneven { finding.severity(Severity::Info) } else { finding })
}

/// Nothing far: how far the clients are that were seen, or that none could be.
fn absent(facts: &Facts, all: &[Distances<'_>]) -> Verdict {
    if all.is_empty() {
        let here = facts.live().filter_map(from_here_us).reduce(f64::max);
        let besides = here.map_or(String::new(), |us| format!("; from here it is at most {}", time_us(us)));
        let why = format!("clients' distances: the sockets of the servers could not be read{besides}");
        return Verdict::unknown(Lack::Host, why, SEE_HOST);
    }
    let servers = match facts.live().count() {
        n if n == all.len() => String::new(),
        n => format!(", on {} of {n} servers", all.len()),
    };
    let speak = |d: &Distances<'_>| {
        d.clients.iter().filter(|p| p.segments_out >= SPEAKS).map(|p| distance_us(p)).reduce(f64::max)
    };
    Verdict::Absent(match all.iter().filter_map(speak).reduce(f64::max) {
        Some(us) => {
            format!("distance: the clients are at most {} away, by the servers' own sockets{servers}", time_us(us))
        }
        None => format!("distance: no client sent enough to tell{servers}"),
    })
}
