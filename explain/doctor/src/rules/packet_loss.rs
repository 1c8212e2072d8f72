//! The network loses packets between a server and its clients.
//!
//! The median does not show it: a lost packet hits one connection at a time. That connection waits for a
//! retransmission, at least 200 ms on Linux when few packets are in flight, doubling each time. With one command in
//! flight over a 1 ms path, 1 % loss leaves a quarter of the throughput (measured).
//!
//! Seen when: in the window the kernel retransmitted at least 20 segments on a server's sockets to other machines, and
//! at least 0.1 % of all it sent there; 1 % is bad. This can only be seen on the server's own machine, or with a file
//! of `unslow host --save` from there.
//!
//! Not to be taken for: a stall of the server, which hits all connections at the same moment and causes no
//! retransmissions; a client that does not read (`not_your_redis`), whose window is closed; a machine that has
//! disappeared (`dead_peers`), which answers on none of its connections; premature probes. The kernel retransmits the
//! last segment when its ACK is late (a tail-loss probe), and a client that is short of CPU is late without any loss:
//! sockets within the machine do not count, and without a single timeout on the machine it takes 1 % to be reported as
//! loss. Nor for the full copy of a replica: it is sent as fast as the path takes it, and TCP finds that speed by
//! losing segments. Hosts of replicas that are being copied do not count.
//!
//! How to confirm: `nstat -az TcpRetransSegs TcpExtTCPTimeouts TcpExtTCPLossProbes TcpExtTCPDSACKRecv` twice: as many
//! DSACKs as retransmissions means that nothing was lost.
//!
//! What to do: check the drop counters along the path (NIC, ENA allowances, conntrack), cables and MTU; until it is
//! fixed, pipelining with more packets in flight recovers faster.
//! Sources: tcp_info.total_retrans; Linux TCP_RTO_MIN; root cause NET-02 of our catalogue (L11 measured).

use unslow_facts::{Host, PeerSockets, Seen};

use super::far_client::is_local;
use super::no_pipelining::pipelining;
use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Packet loss";
pub const LEADS_TO: &[&str] = &["no_pipelining"];
pub const INJECTED: Injected = Injected::Yes;

const SHARE: f64 = 0.001;
const SEGMENTS: u64 = 20;
/// What it takes where no time-out was counted.
const SHARE_WITHOUT_TIMEOUTS: f64 = 0.01;
/// What one loss costs at least: Linux TCP_RTO_MIN.
const RTO_MS: f64 = 200.0;
/// Between two readings of one look at a machine.
const TOGETHER_MS: u64 = 2_000;

/// What one server sent to other machines.
struct Sent<'a> {
    node: &'a Node,
    peers: Vec<&'a PeerSockets>,
    segments: u64,
    again: u64,
    share: f64,
    /// Time-outs on its machine in the window.
    timeouts: Option<u64>,
}

impl Sent<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Sent<'a>> {
        let copied = copied_to(node);
        // A peer that answers on no socket at all is away: nothing is lost on the way to it.
        let counts = |p: &&PeerSockets| {
            !is_local(node, &p.host) && p.unanswered < p.sockets.max(1) && !copied.contains(&p.host)
        };
        let peers: Vec<&PeerSockets> = node.sockets.value()?.iter().filter(counts).collect();
        let add = |count: fn(&PeerSockets) -> u64| peers.iter().fold(0u64, |sum, p| sum.saturating_add(count(p)));
        let (segments, again) = (add(|p| p.segments_out), add(|p| p.retransmits));
        // In a recording the sockets are of a minute and the machine's counters of the window: then no time-out in
        // the one says nothing of the other.
        let seen_ms = if let Seen::Yes { at_ms, .. } = &node.sockets { *at_ms } else { 0 };
        let together = |host: &&Host| host.at_ms.abs_diff(seen_ms) <= TOGETHER_MS;
        let host = facts.process(node).map(|(host, _)| host).filter(together);
        let timeouts = host.and_then(|host| Some(host.tcp?.timeouts));
        Some(Sent { node, peers, segments, again, share: again as f64 / segments.max(1) as f64, timeouts })
    }

    fn is_lossy(&self) -> bool {
        let least = if self.timeouts == Some(0) { SHARE_WITHOUT_TIMEOUTS } else { SHARE };
        self.again >= SEGMENTS && self.share >= least
    }
}

/// Hosts of replicas that were being copied: they were not online at one end of the window, or a copy began in it.
fn copied_to(node: &Node) -> Vec<String> {
    let has_begun = node.delta("sync_full").is_some_and(|copies| copies > 0.0);
    let ends = [&node.first, &node.last].into_iter().flatten();
    let replicas = ends.flat_map(|sample| sample.info.replicas());
    replicas.filter(|(_, _, state, ..)| has_begun || state != "online").map(|(host, ..)| host).collect()
}

pub fn check(facts: &Facts) -> Verdict {
    if let Some(proxy) = &facts.through {
        let why = format!("lost packets: seen through a proxy ({proxy}), whose sockets are not the servers'");
        return Verdict::unknown(Lack::Other, why, "run the doctor at the servers' own addresses");
    }
    let all: Vec<Sent<'_>> = facts.live().filter_map(|node| Sent::of(facts, node)).collect();
    if all.is_empty() {
        let why = "lost packets: they are counted in the server's kernel, which could not be inspected";
        return Verdict::unknown(Lack::Host, why, SEE_HOST);
    }
    if all.iter().all(|s| s.peers.is_empty()) {
        return Verdict::NotHere;
    }
    let Some(worst) = all.iter().filter(|s| s.is_lossy()).max_by(|a, b| a.share.total_cmp(&b.share)) else {
        let (again, segments) = all.iter().fold((0.0, 0.0), |(a, s), x| (a + x.again as f64, s + x.segments as f64));
        let probes = if again >= SEGMENTS as f64 { ", too few or without a timeout: probes, not loss" } else { "" };
        return Verdict::Absent(format!(
            "packet loss: {} of {} segments were retransmitted{probes}",
            count(again),
            count(segments)
        ));
    };
    let (node, share, Sent { again, segments, .. }) = (worst.node, worst.share, worst);
    let hit = by_worst(worst.peers.iter().filter(|p| p.retransmits > 0).collect(), |p| p.retransmits as f64);
    let wait = format!("{RTO_MS:.0} ms or more if nothing else is in flight");
    let text = format!("{} of the replies wait for a retransmission, {wait}", percent(share));
    let finding = Finding::new(format!(
        "{} of the segments that {} sends are lost on the way and retransmitted",
        percent(share),
        node.address
    ))
    .on([node.address.as_str()])
    .latency(share * RTO_MS, text)
    .gain(
        "no reply waits for a retransmission",
        format!(
            "{again} of {segments} segments x {RTO_MS:.0} ms = {:.2} ms a segment on average; less where later packets \
             reveal the loss sooner",
            share * RTO_MS
        ),
    );
    let mut finding = match worst.timeouts {
        Some(0) => {
            finding.possible("the kernel counted retransmissions but no timeout: some segments were late, not lost")
        }
        _ => finding.likely("the kernel counts retransmissions; a few of these segments may have been late, not lost"),
    };
    for peer in hit.iter().take(3) {
        let counts =
            format!("{} of {} segments sent again over {} sockets", peer.retransmits, peer.segments_out, peer.sockets);
        let told = format!("{}: {counts}, minrtt {}", peer.host, time_us(f64::from(peer.min_rtt_us)));
        finding = finding.saw(node, "ss -tin", told);
    }
    if let Some((host, tcp)) = facts.process(node).and_then(|(h, _)| Some((h, h.tcp?))) {
        finding = finding.saw_at(
            "nstat -az TcpRetransSegs TcpOutSegs TcpExtTCPTimeouts",
            format!(
                "{} of {} segments again, {} time-outs in the window",
                tcp.retransmits, tcp.segments_out, tcp.timeouts
            ),
            host.at_ms,
        );
    }
    if let Some(ping) = node.rtt.value().map(|r| f64::from(r.us_p99)).filter(|us| *us < 50_000.0) {
        finding = finding.not(format!("a stall of the server: PING at the same time has p99 {}", time_us(ping)));
    }
    let port = node.address.rsplit_once(':').map_or("6379", |(_, port)| port);
    let peer = hit.first().map_or("CLIENT", |p| p.host.as_str());
    finding
        .fix(
            "Find where packets are dropped, from the server outwards",
            &[
                "ethtool -S eth0 | grep -E 'drop|err|allowance'",
                "nstat -az | grep -iE 'drop|dsack|timeouts'; cat /proc/net/softnet_stat",
                &format!("mtr {peer}   (from the server), and mtr -T -P {port} {}   (from {peer})", node.host()),
            ],
            "",
            "",
        )
        .fix(
            "Until it is fixed: keep several commands in flight on a connection, so that a loss is noticed by the next \
             reply and not by a timer",
            &pipelining(node),
            "replies come at the end of the batch",
            "",
        )
        .into()
}
