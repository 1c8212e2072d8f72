//! The network loses packets between a server and its clients.
//!
//! The median does not show it: a lost packet hits one connection at a time. Whoever is hit waits for a retransmission,
//! 200 ms at least on Linux when few packets are in flight, doubling each time. With one command in flight over 1 ms, 1 %
//! of loss leaves a quarter of the throughput (measured).
//!
//! Seen when: in the window the kernel has sent at least 20 segments again on the sockets of a server, and 0.1 % of all it
//! sent; 1 % is bad. Only on the server's own machine, or with `unslow host --save` from there.
//!
//! Not to be taken for: a stall of the server, which hits all connections at the same moment and sends nothing again; a
//! client that does not read (`not_your_redis`), whose window is closed.
//!
//! What to do: drop counters of the path (NIC, ENA allowances, conntrack), cables, MTU; meanwhile pipelining with more
//! packets in flight recovers faster.
//! Sources: tcp_info.total_retrans; Linux TCP_RTO_MIN; root cause NET-02 of our own catalogue (L11 measured).

use super::prelude::*;

pub const TITLE: &str = "Packet loss";
pub const LEADS_TO: &[&str] = &["no_pipelining"];
pub const INJECTED: Injected = Injected::Yes;

const SHARE: f64 = 0.001;
const SEGMENTS: u64 = 20;
/// What one loss costs at least: Linux TCP_RTO_MIN.
const RTO_MS: f64 = 200.0;

pub fn check(facts: &Facts) -> Verdict {
    let mut looked = 0;
    let mut sent = 0;
    let mut again = 0;
    let mut worst: Option<(f64, &Node)> = None;
    for node in facts.live() {
        let Some(peers) = node.sockets.value() else { continue };
        looked += 1;
        let (a, s) = peers.iter().fold((0, 0), |(a, s), p| (a + p.retransmits, s + p.segments_out));
        sent += s;
        again += a;
        let share = a as f64 / s.max(1) as f64;
        if a >= SEGMENTS && share >= SHARE && worst.is_none_or(|(w, _)| share > w) {
            worst = Some((share, node));
        }
    }
    if looked == 0 {
        return Verdict::Unknown {
            why: "lost packets stand in the server's kernel, which could not be looked into".into(),
            grant: "run unslow on the server's machine, or: unslow host --save host.json there, and --host host.json here".into(),
        };
    }
    let Some((share, node)) = worst else {
        return Verdict::Absent(Some(format!("packet loss: {again} of {sent} segments sent again")));
    };
    let peers = node.sockets.value().map(Vec::as_slice).unwrap_or_default();
    let hit = by_worst(peers.iter().filter(|p| p.retransmits > 0).collect(), |p| p.retransmits as f64);
    let (a, s) = peers.iter().fold((0, 0), |(a, s), p| (a + p.retransmits, s + p.segments_out));
    let mut finding = Finding::new(format!("{} of the segments that {} sends are lost on the way and sent again", percent(share), node.address))
        .on([node.address.as_str()])
        .latency(share * RTO_MS, format!("{} of the replies wait for a retransmission, {RTO_MS:.0} ms or more where nothing else is in flight", percent(share)))
        .gain("no reply waits for a retransmission", format!("{a} of {s} segments x {RTO_MS:.0} ms = {:.2} ms a segment on average; less where later packets tell of the loss sooner", share * RTO_MS))
        .likely("the kernel counts what it sent again; a few of these may have been late and not lost");
    for peer in hit.iter().take(3) {
        finding = finding.saw(
            node,
            "ss -tin",
            format!("{}: {} of {} segments sent again over {} sockets, minrtt {}", peer.host, peer.retransmits, peer.segments_out, peer.sockets, time_us(f64::from(peer.min_rtt_us_p50))),
        );
    }
    if let Some((host, tcp)) = facts.process(node).and_then(|(h, _)| Some((h, h.tcp?))) {
        finding = finding.saw_at("nstat -az TcpRetransSegs TcpOutSegs TcpExtTCPTimeouts", format!("{} of {} segments again, {} time-outs in the window", tcp.retransmits, tcp.segments_out, tcp.timeouts), host.at_ms);
    }
    if let Some(ping) = node.rtt.value().map(|r| f64::from(r.us_p99)).filter(|us| *us < 50_000.0) {
        finding = finding.not(format!("a stall of the server: PING beside it has p99 {}", time_us(ping)));
    }
    finding
        .fix(
            "Find where packets are dropped, from the server outwards",
            &["ethtool -S eth0 | grep -E 'drop|err|allowance'", "nstat -az | grep -i drop; cat /proc/net/softnet_stat", "mtr -T -P 6379 CLIENT   (from the server, and the other way)"],
            "none",
            "none needed",
        )
        .fix(
            "Meanwhile: several commands in flight on a connection, so that a loss is seen by the next reply and not by a timer",
            &["Lettuce: setAutoFlushCommands(false) ... flushCommands()", "redis-py: with r.pipeline(transaction=False) as p", "Jedis: try (Pipeline p = jedis.pipelined()) { ... }"],
            "replies come at the end of the batch",
            "send one by one again",
        )
        .into()
}
