//! Clients wait a round trip for every command, one after the other, while the server idles.
//!
//! With one command in flight a connection cannot do more than 1/RTT commands a second, whatever the server could do.
//! Adding consumers, partitions or CPU changes nothing; a batch of k commands in one write costs one round trip.
//!
//! Seen when: the mean read holds fewer than 1.5 commands (commands / reads, both counted by the server, since 6.0), the
//! main thread is busy for less than 70 % of the time, and the connections' rate is at least 30 % of 1/RTT.
//!
//! Not to be taken for: a server at its limit (then `kernel_bound` tells the same habit's price in CPU), or clients with
//! nothing to do, or `connection_churn`.
//!
//! What to do: pipeline; MGET/HMSET; one shared connection with auto-flush; for a Kafka consumer `unslow sink`.
//! Sources: INFO total_commands_processed, total_reads_processed; measured: the quotient reads true depths of 1, 4, 16 and
//! 50 as 1.00, 4.00, 15.99 and 49.87.

use super::prelude::*;

pub const TITLE: &str = "No pipelining";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let mut unknown = None;
    let mut rows = Vec::new();
    // A replica's counters hold its master's stream, which waits for nobody.
    for node in facts.live().filter(|n| n.is_master()) {
        let Some(ops) = node.ops().filter(|o| *o > 300.0) else { continue };
        let Some(depth) = node.depth() else {
            unknown = Some(node);
            continue;
        };
        let busy = node.cpu().map_or(0.0, |(u, s)| u + s);
        // Connections that live for a command or two wait for their connecting: that is `connection_churn`.
        if node.rate("total_connections_received").unwrap_or(0.0) * 10.0 > ops {
            continue;
        }
        // Our own PING holds the server's share of a round trip, the sockets' smallest one the clients' distance. The
        // sockets' smoothed figure is of no use: a client that pauses delays its ACKs.
        let Some(from_here) = node.rtt.value().map(|r| f64::from(r.us_p50)) else { continue };
        let mut distances: Vec<(u32, u32)> = node.sockets.value().into_iter().flatten().filter(|p| p.min_rtt_us > 0).map(|p| (p.min_rtt_us_p50, p.sockets)).collect();
        distances.sort_unstable();
        let half = distances.iter().map(|d| d.1).sum::<u32>().div_ceil(2);
        let mut seen = 0;
        let typical = distances.iter().find(|d| {
            seen += d.1;
            seen >= half
        });
        // Without the server's sockets the clients' distance is not known; ours stands in for it, and the finding says so.
        let rtt_us = typical.map_or(from_here, |(us, _)| f64::from(*us).max(from_here.min(1000.0)));
        let idle: u64 = node.clients.value().map_or(0, |c| c.groups.iter().map(|g| g.idle_hour).sum());
        let replicas = node.number("connected_slaves").unwrap_or(0.0);
        let connections = (node.number("connected_clients").unwrap_or(1.0) - 1.0 - idle as f64 - replicas).max(1.0);
        let waiting = ops / connections * rtt_us / 1e6;
        // Far above one: several commands are in flight on each connection, which is pipelining of another kind.
        if depth < 1.5 && busy < 0.7 && (0.3..3.0).contains(&waiting) {
            rows.push((node, ops, depth, rtt_us, connections, waiting.min(1.0), typical.is_some()));
        }
    }
    let rows = by_worst(rows, |r| r.5);
    let Some((node, ops, depth, rtt_us, connections, waiting, known)) = rows.first() else {
        return match unknown {
            Some(node) => Verdict::Unknown {
                why: format!("{}: pipeline depth needs total_reads_processed, which {} does not count", node.address, node.version_text()),
                grant: "upgrade to 6.0 or later, or look at the client's code".into(),
            },
            None => Verdict::Absent(facts.live().filter_map(Node::depth).reduce(f64::max).map(|d| format!("sequential clients: {d:.1} commands per read, or no connection bound by its round trip"))),
        };
    };
    let busy = node.cpu().map_or(0.0, |(u, s)| u + s);
    let finding = Finding::new(format!(
        "Clients of {} send one command per round trip: {} connections wait {} of their time, the server is {} busy",
        node.address, count(*connections), percent(*waiting), percent(busy)
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()));
    let text = format!("{} for each of {} commands/s; a connection cannot pass {:.0}/s", time_us(*rtt_us), count(*ops), 1e6 / rtt_us);
    let finding = if *known {
        finding.latency(rtt_us / 1000.0 * waiting, text).proven("depth, rate and round trip were all measured, and rate x round trip accounts for the connections' time")
    } else {
        finding.risk(text).possible("depth and rate were measured; the round trip is this machine's, the clients' may be shorter")
    };
    finding
    .gain(
        format!("batches of 10: {} for 10 commands in place of {}", time_us(*rtt_us), time_us(rtt_us * 10.0)),
        format!("10 x {rtt_us:.0} us = {:.0} us; ceil(10/10) x {rtt_us:.0} us = {rtt_us:.0} us", rtt_us * 10.0),
    )
    .saw(node, "INFO stats", format!("{depth:.2} commands per read, {} commands/s", count(*ops)))
    .saw(node, "INFO clients", format!("{} connections at work", count(*connections)))
    .saw(node, "PING", format!("round trip {}; {:.0} commands/s x {:.0} us / {} connections = {waiting:.2}", time_us(*rtt_us), ops, rtt_us, connections))
    .not(format!("a busy server: {} of a core", percent(busy)))
    .fix("Pipeline: send what belongs together in one write", &["Spring: RedisTemplate.executePipelined(...)", "Jedis: jedis.pipelined()", "redis-py: r.pipeline(transaction=False)", "go-redis: rdb.Pipelined(ctx, ...)", "many keys: MGET / MSET / HMGET", "a Kafka consumer: unslow sink --map FILE --from kafka://host:9092 --to redis://host:6379"], "replies come together; a failed command fails alone", "send one by one again")
    .into()
}
