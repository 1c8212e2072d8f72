//! Clients wait one round trip for every command, one command after another, while the server idles.
//!
//! With one command in flight a connection cannot do more than 1/RTT commands a second, whatever the server could do.
//! Adding consumers, partitions or CPU changes nothing; a batch of k commands in one write costs one round trip.
//!
//! Seen when: the average read holds fewer than 1.5 commands (commands / reads, both counted by the server, since 6.0),
//! the main thread is busy for at most 70 % of the time, and each connection's rate is at least 30 % of 1/RTT. Before
//! 6.0 the CPU time that a command costs outside must allow for one command a read, and the rate may be 1.3 / RTT at
//! most: more can only be several in flight.
//!
//! Where it meets `kernel_bound`: both are the same habit. If connections are bound by their round trips and the server
//! has time to spare, the cost is latency, and this rule reports it. If they are not, or the server has no time left
//! (over 70 % busy), the cost is CPU, and from half a core on `kernel_bound` reports it. The two never report together.
//!
//! Not to be taken for: a server at its limit, clients with nothing to do, or `connection_churn`; nor for commands most
//! of which do no work (`chatter`, `busy_polling`, `lock_spinning`, `watch_conflicts`): those should be dropped rather
//! than batched. Through a proxy, connections and reads are the proxy's, so the rule cannot tell.
//!
//! How to confirm: `INFO stats` twice: total_commands_processed / total_reads_processed; `redis-cli --latency` from a
//! client.
//!
//! What to do: pipeline; use MGET/HMSET; share one connection with auto-flush; for a Kafka consumer, use `unslow sink`.
//! Sources: INFO total_commands_processed, total_reads_processed; measured: the quotient reads true depths of 1, 4, 16
//! and 50 as 1.00, 4.00, 15.99 and 49.87.

use super::kernel_bound::BUSY;
use super::prelude::*;

pub const TITLE: &str = "No pipelining";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Commands a second: below it there is no load to speak of.
const LOAD: f64 = 300.0;

/// How far the connections of one server are bound by their round trips.
struct Sequential<'a> {
    node: &'a Node,
    ops: f64,
    depth: Depth,
    busy: f64,
    rtt_us: f64,
    connections: f64,
    /// Round trips that each connection makes a second, times the length of one: 1 is all of its time.
    waiting: f64,
    /// Whether the clients' own distance was seen, or ours stands in for it.
    distance_seen: bool,
}

impl Sequential<'_> {
    /// `None` where something of it was not seen, or the load is not an application's on standing connections.
    fn of(node: &Node) -> Option<Sequential<'_>> {
        let ops = node.ops().filter(|o| *o > LOAD)?;
        let depth = Depth::of(node)?;
        // A replica's counters hold its master's stream, which waits for no reply. Connections that live for a command
        // or two wait for their connecting: that is `connection_churn`.
        if !node.is_master() || node.rate("total_connections_received").unwrap_or(0.0) * 10.0 > ops {
            return None;
        }
        // Where most commands do no work, the habit behind them is the cause, and has its own price.
        if mostly_wasted(node) {
            return None;
        }
        let busy = node.cpu().map_or(0.0, |(u, s)| u + s);
        let (rtt_us, distance_seen) = round_trip_us(node)?;
        let idle: u64 = node.clients.value().map_or(0, |c| c.groups.iter().map(|g| g.idle_hour).sum());
        // connected_clients is without the replicas.
        let connections = (node.other_clients().unwrap_or(0.0) - idle as f64).max(1.0);
        let waiting = ops / connections * rtt_us / 1e6;
        Some(Sequential { node, ops, depth, busy, rtt_us, connections, waiting, distance_seen })
    }

    fn is_bound(&self) -> bool {
        // Far above one: several commands are in flight on each connection, which is pipelining of another kind. Where
        // commands per read are not counted, so much is needed that there is room for one at a time alone.
        let most = if matches!(self.depth, Depth::Counted(_)) { 3.0 } else { 1.3 };
        self.depth.is_one(self.node) && self.busy <= BUSY && (0.3..most).contains(&self.waiting)
    }
}

/// Whether most of the commands do no work, which other rules report: batching them would be the wrong remedy.
fn mostly_wasted(node: &Node) -> bool {
    super::chatter::is_most(node)
        || super::busy_polling::is_most(node)
        || super::lock_spinning::is_most(node)
        || super::watch_conflicts::is_most(node)
}

/// A round trip of this server's clients in us, and whether their own distance was seen; if not, ours stands in for it.
pub(super) fn round_trip_us(node: &Node) -> Option<(f64, bool)> {
    // Our own PING holds the server's share of a round trip, the sockets' smallest one the clients' distance. The
    // sockets' smoothed figure is of no use: a client that pauses delays its ACKs.
    let from_here = f64::from(node.rtt.value()?.us_p50);
    let typical = typical_distance_us(node);
    // Without the server's sockets the clients' distance is not known; ours stands in for it, and the finding says so.
    Some((typical.map_or(from_here, |us| us.max(from_here.min(1000.0))), typical.is_some()))
}

/// The median over the sockets of the smallest round trip of each.
fn typical_distance_us(node: &Node) -> Option<f64> {
    let sockets = node.sockets.value().into_iter().flatten().filter(|p| p.min_rtt_us > 0);
    let mut distances: Vec<(u32, u64)> = sockets.map(|p| (p.min_rtt_us_p50, u64::from(p.sockets))).collect();
    distances.sort_unstable();
    let half = distances.iter().map(|d| d.1).sum::<u64>().div_ceil(2);
    let mut seen = 0;
    let at_half = |d: &&(u32, u64)| {
        seen += d.1;
        seen >= half
    };
    distances.iter().find(at_half).map(|d| f64::from(d.0))
}

/// Whether this rule speaks of the node.
pub(super) fn speaks(node: &Node) -> bool {
    Sequential::of(node).is_some_and(|s| s.is_bound())
}

pub fn check(facts: &Facts) -> Verdict {
    if let Some(proxy) = &facts.through {
        let why = format!(
            "sequential clients: seen through a proxy ({proxy}), whose connections and reads are not the clients'"
        );
        return Verdict::unknown(Lack::Other, why, "run the doctor at the servers' own addresses");
    }
    let all: Vec<Sequential<'_>> = facts.live().filter_map(Sequential::of).collect();
    let rows = by_worst(all.iter().filter(|s| s.is_bound()).collect(), |s| s.waiting.min(1.0));
    let Some(worst) = rows.first() else { return absent(facts, &all) };
    let Sequential { node, ops, depth, busy, rtt_us, connections, .. } = **worst;
    let waiting = worst.waiting.min(1.0);
    let finding = Finding::new(format!(
        "Clients of {} send one command per round trip: {} connections wait {} of their time, the server is {} busy",
        node.address,
        count(connections),
        percent(waiting),
        percent(busy)
    ))
    .on(rows.iter().map(|s| s.node.address.as_str()));
    let text = format!(
        "{} for each of {} commands/s; a connection cannot exceed {:.0}/s",
        time_us(rtt_us),
        count(ops),
        1e6 / rtt_us
    );
    let finding = match (worst.distance_seen, depth) {
        (true, Depth::Counted(_)) => finding.latency(rtt_us / 1000.0 * waiting, text).proven(
            "depth, rate and round trip were all measured, and rate x round trip accounts for the connections' time",
        ),
        (true, Depth::AtLeast(_)) => finding.latency(rtt_us / 1000.0 * waiting, text).likely(
            "rate x round trip accounts for the connections' time; commands per read are not counted before 6.0",
        ),
        (false, _) => finding
            .risk(text)
            .possible("depth and rate were measured; the round trip is this machine's, the clients' may be shorter"),
    };
    let product = format!("{ops:.0} commands/s x {rtt_us:.0} us / {connections:.0} connections = {:.2}", worst.waiting);
    let mut commands = pipelining(node);
    commands.push("many keys: MGET / MSET / HMGET");
    if takes_from_kafka(node) {
        commands.push("a Kafka consumer: unslow sink --map FILE --from kafka://HOST:9092 --to redis://HOST:6379");
    }
    finding
        .gain(
            format!("batches of 10: {} for 10 commands instead of {}", time_us(rtt_us), time_us(rtt_us * 10.0)),
            format!("one by one: 10 x {rtt_us:.0} us = {:.0} us; in one batch: 1 x {rtt_us:.0} us", rtt_us * 10.0),
        )
        .saw(node, "INFO stats", format!("{}, {} commands/s", depth.text(), count(ops)))
        .saw(node, "INFO clients", format!("{} connections at work", count(connections)))
        .saw(node, "PING", format!("round trip {}; {product}", time_us(rtt_us)))
        .not(format!("a busy server: {} of a core", percent(busy)))
        .fix(
            "Pipeline: send commands that belong together in one write",
            &commands,
            "replies arrive together; a command that fails does not affect the others",
            "",
        )
        .into()
}

/// Whether the clients may be consumers of a stream: their commands are all writes.
fn takes_from_kafka(node: &Node) -> bool {
    const READS: &[&str] = &["get", "mget", "hget", "hmget", "hgetall", "exists", "smembers", "zrange", "lrange"];
    let commands = node.application_commands();
    !commands.is_empty() && !commands.keys().any(|name| READS.contains(&name.as_str()))
}

/// How the clients' libraries pipeline: those that are seen (7.2+), or all that we know.
pub(super) fn pipelining(node: &Node) -> Vec<&'static str> {
    const ALL: &[(&str, &str)] = &[
        ("lettuce", "Lettuce: setAutoFlushCommands(false) ... flushCommands(); Spring: executePipelined(...)"),
        ("jedis", "Jedis: try (Pipeline p = jedis.pipelined()) { ... }"),
        ("redis-py", "redis-py: with r.pipeline(transaction=False) as p"),
        ("go-redis", "go-redis: rdb.Pipelined(ctx, ...)"),
    ];
    let seen = |library: &str| {
        let mut groups = node.clients.value().into_iter().flat_map(|c| &c.groups);
        groups.any(|g| g.library.to_lowercase().contains(library))
    };
    let known: Vec<&str> = ALL.iter().filter(|(library, _)| seen(library)).map(|p| p.1).collect();
    if known.is_empty() { ALL.iter().map(|p| p.1).collect() } else { known }
}

fn absent(facts: &Facts, all: &[Sequential<'_>]) -> Verdict {
    let mut busy = facts.live().filter(|n| n.is_master() && n.ops().is_some_and(|o| o > LOAD));
    if let Some(node) = busy.find(|n| Depth::of(n).is_none_or(|depth| !depth.tells(n))) {
        let why = format!(
            "pipeline depth needs total_reads_processed, which {} does not count ({})",
            node.version_text(),
            node.address
        );
        return Verdict::unknown(Lack::Version, why, "upgrade to 6.0 or later, or look at the client's code");
    }
    if let Some(node) = facts.live().find(|n| all.is_empty() && mostly_wasted(n)) {
        return Verdict::Absent(format!(
            "sequential clients: most commands of {} do no work, which is reported separately",
            node.address
        ));
    }
    let text = match all.iter().max_by(|a, b| a.waiting.total_cmp(&b.waiting)) {
        Some(s) => Some(format!(
            "sequential clients: {} at {} busy, the connections wait {:.2} of their time for round trips",
            s.depth.text(),
            percent(s.busy),
            s.waiting
        )),
        None => {
            let load = most(facts, Node::ops);
            load.map(|ops| {
                format!("sequential clients: {} commands/s at most, or no long-lived connections", count(ops))
            })
        }
    };
    Verdict::absent(facts, "sequential clients", text)
}
