//! Some clients sit far from their server: every round trip costs them more than it costs others.
//!
//! Between availability zones a round trip takes about 1 ms in place of 0.1 ms, whatever the instance size. One
//! connection with one command in flight cannot do more than 1/RTT commands a second: 10,000 at 0.1 ms, 1,000 at 1 ms.
//! CPU, memory and bandwidth are healthy on all sides.
//!
//! Seen when: the smallest round trip the kernel ever saw on a client's sockets is at least 0.5 ms and three times that
//! of the nearest clients; or, without a look into the server's machine, when the server is that far from here.
//!
//! Not to be taken for: queueing. A minimum that is high and stable is distance; a low minimum under a high mean is load.
//!
//! What to do: batch and pipeline, read from a replica in the same zone, or move the client.
//! Sources: tcp_info.min_rtt; valkey availability-zone (8.0+).

use super::prelude::*;
use crate::Severity;

pub const TITLE: &str = "Far client";
pub const LEADS_TO: &[&str] = &["no_pipelining"];
pub const INJECTED: Injected = Injected::Yes;

const FAR_US: f64 = 500.0;

pub fn check(facts: &Facts) -> Verdict {
    // Through the server's own sockets: every client's distance.
    let mut seen_sockets = false;
    for node in facts.live() {
        let Some(peers) = node.sockets.value() else { continue };
        seen_sockets = true;
        let members: Vec<&str> = facts.nodes.iter().filter(|n| n.address != node.address).map(|n| n.host()).collect();
        let clients: Vec<_> = peers.iter().filter(|p| p.min_rtt_us > 0 && !(members.contains(&p.host.as_str()) && p.host != node.host())).collect();
        let best = clients.iter().map(|p| p.min_rtt_us_p50 as f64).fold(f64::INFINITY, f64::min);
        let from_here = node.rtt.value().map_or(f64::INFINITY, |r| r.us_min as f64);
        let near = best.min(from_here);
        // One administrator's tunnel is no finding.
        let all_sockets: f64 = clients.iter().map(|p| f64::from(p.sockets)).sum();
        let far = by_worst(
            clients.iter().filter(|p| f64::from(p.sockets) >= 0.05 * all_sockets).filter(|p| p.min_rtt_us_p50 as f64 >= FAR_US.max(3.0 * near)).collect::<Vec<_>>(),
            |p| p.min_rtt_us_p50 as f64,
        );
        let Some(worst) = far.first() else { continue };
        let sockets: u32 = clients.iter().map(|p| p.sockets).sum();
        let far_sockets: u32 = far.iter().map(|p| p.sockets).sum();
        let share = f64::from(far_sockets) / f64::from(sockets.max(1));
        let far_us = worst.min_rtt_us_p50 as f64;
        let depth = node.depth();
        let mut finding = Finding::new(format!(
            "{} of {} client connections of {} are far away: {} a round trip, others {}",
            far_sockets, sockets, node.address, time_us(far_us), time_us(near)
        ))
        .on([node.address.as_str()])
        .latency((far_us - near) / 1000.0 * share, format!("{} more for each round trip of {} of the connections", time_us(far_us - near), percent(share)))
        .gain(
            format!("a batch of 10 commands: {} in place of {}; a client in the same zone: {}", time_us(far_us), time_us(10.0 * far_us), time_us(10.0 * near)),
            format!("10 x {:.0} us = {:.0} us one by one; 1 x {:.0} us pipelined", far_us, 10.0 * far_us, far_us),
        )
        .proven("the kernel's smallest round trip per client, on the server's own sockets");
        for peer in far.iter().take(3) {
            finding = finding.saw(
                node,
                "ss -tin",
                format!("{}: {} sockets, minrtt {}, rtt now {}, {} of {} segments sent again", peer.host, peer.sockets, time_us(peer.min_rtt_us_p50 as f64), time_us(peer.rtt_us_p50 as f64), peer.retransmits, peer.segments_out),
            );
        }
        if let Some(depth) = depth {
            finding = finding.saw(node, "INFO stats", format!("{depth:.2} commands per read: at most {:.0} commands/s for each far connection", 1e6 / far_us * depth));
        }
        let queue = worst.rtt_us_p50 as f64;
        return finding
            .not(format!("queueing: the minimum is {}, the mean now {}", time_us(far_us), time_us(queue)))
            .fix("Send batches: pipeline what one request or one Kafka poll needs", &["Lettuce: setAutoFlushCommands(false) ... flushCommands()", "Spring: RedisTemplate.executePipelined(...)", "Jedis: try (Pipeline p = jedis.pipelined()) { ... }", "redis-py: with r.pipeline(transaction=False) as p"], "replies come at the end of the batch; keep batches below some thousand commands", "send one by one again")
            .fix("Read from a replica in the client's own zone, or move the client there", &["Lettuce: ReadFrom.subnet(...) or ReadFrom.LOWEST_LATENCY", "GLIDE: ReadFrom.AZAffinity"], "replicas answer a little behind their master", "ReadFrom.MASTER")
            .into();
    }
    // From here only: this machine stands for the clients.
    let rows: Vec<(&Node, f64)> = facts.live().filter_map(|n| Some((n, f64::from(n.rtt.value()?.us_min)))).collect();
    let near = rows.iter().map(|r| r.1).fold(f64::INFINITY, f64::min);
    let far = by_worst(rows.iter().filter(|r| r.1 >= FAR_US).collect::<Vec<_>>(), |r| r.1);
    let Some((node, us)) = far.first() else {
        let from = if seen_sockets { "by the servers' own sockets" } else { "from here" };
        return Verdict::Absent(near.is_finite().then(|| format!("distance: {} at least {from}", time_us(near))));
    };
    let compared = if near * 3.0 <= *us { format!(", others {}", time_us(near)) } else { String::new() };
    let uneven = near * 3.0 <= *us;
    let finding = Finding::new(format!("{} is {} away from here{compared}", node.address, time_us(*us))).on(far.iter().map(|(n, _)| n.address.as_str()));
    let text = format!("{} for each round trip from this machine: {:.0} commands/s for a connection that does not pipeline", time_us(*us), 1e6 / us);
    // Where this machine stands is not where the clients stand, and in a deployment over several zones some node is far
    // from any place: without the clients' own sockets this is no effect.
    let mut finding = finding
        .risk(text)
        .gain(format!("a batch of 10: {} in place of {}", time_us(*us), time_us(10.0 * us)), format!("10 x {us:.0} us = {:.0} us", 10.0 * us))
        .possible("measured from this machine; whether the slow clients stand here too is not known")
        .saw(node, "PING", format!("smallest of {} round trips: {}", node.rtt.value().map_or(0, |r| r.count), time_us(*us)))
        .fix("Send batches: pipeline what one request needs", &["Lettuce: setAutoFlushCommands(false)", "Jedis: jedis.pipelined()", "redis-py: r.pipeline(transaction=False)"], "replies come at the end of the batch", "send one by one again")
        .fix("Run unslow on the server's machine to see every client's distance", &["unslow host --save host.json"], "none", "none needed");
    if uneven {
        finding.severity = Severity::Info;
    }
    finding.into()
}
