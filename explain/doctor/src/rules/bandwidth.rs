//! The path between a server and its clients is full, and replies queue up for it.
//!
//! A path carries only so many bytes a second, whether it is a network card, the allowance of a small cloud instance, a
//! VPN or a link between sites. Once replies are produced faster than that, they queue in the server's sockets. Latency
//! then grows with the size of what is sent, while the server itself is idle and its slow log is empty.
//!
//! Seen when: on the server's machine, the data that waits unsent or unacknowledged on its sockets to clients on other
//! machines, both as the window begins and as it ends, would take over 0.1 s, and over four round trips, to send at the
//! rate of this window; these clients are reading (their windows are open); something waited on at least 0.8 of their
//! connections on average, so that the path was not idle for much of the window; and it shows that it is full: 0.1 %
//! of the segments are retransmitted, or the round trip is three times its own minimum and explains the rate (what is
//! on its way, sent once a round trip, is at most four times what was sent). It is also reported, as a risk, when a
//! network device of the machine carried over 80 % of its own speed in one direction, half of it for this server.
//!
//! Not to be taken for: clients that do not read (`not_your_redis`), whose windows are closed; loss without a queue
//! (`packet_loss`); distance (`far_client`), where little is waiting; a server that cannot keep up (`big_values`,
//! `kernel_bound`), whose main thread is busy while its sockets are empty; lagging replicas (`replica_lag`), which are
//! left out here; a client that takes long to read replies of megabytes, over a path that is idle in between
//! (`big_key`, `big_values`).
//!
//! How to confirm: `ss -tin sport = :6379` on the server's machine: Send-Q of many sockets, rtt far above minrtt;
//! `sar -n DEV 1`; on EC2 `ethtool -S eth0 | grep allowance`. When requests fill the inbound direction, they wait in
//! the clients' sockets, and only the clients' machines show that.
//!
//! What to do: send less (compressed values, only the fields that are needed, copies kept in the client), then get a
//! wider path.
//! Sources: tcp_info and send queues of the server's sockets, INFO stats, /proc/net/dev, /sys/class/net/*/speed;
//! COMMANDLOG large-reply (Valkey 8.1+).

use unslow_facts::{Link, PeerSockets, Side};

use super::far_client::is_local;
use super::large;
use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Bandwidth";
pub const LEADS_TO: &[&str] = &["packet_loss", "not_your_redis", "client_memory"];
pub const INJECTED: Injected = Injected::Yes;

/// A queue that takes longer than this to send, and than so many round trips, stands and does not pass.
const WAIT_S: f64 = 0.1;
const TRIPS: f64 = 4.0;
/// What the path itself shows: the round trip beside its minimum, or the share of segments that were sent again.
const LONGER: f64 = 3.0;
const AGAIN: f64 = 0.001;
/// What is on its way during one round trip, beside what was sent in that time: no more where the path is the limit.
const FASTER: f64 = 4.0;
/// Connections on which something waits, on average: with fewer the path is idle for the rest of the window.
const IN_USE: f64 = 0.8;
/// Below this rate nothing says how fast the queue moves, in bytes a second.
const LEAST: f64 = 100_000.0;
/// Of a device's speed, and of what it carries.
const NEAR: f64 = 0.8;
const HALF: f64 = 0.5;

/// What waits on the sockets of one server.
struct Queue<'a> {
    node: &'a Node,
    /// Clients elsewhere that read.
    peers: Vec<&'a PeerSockets>,
    bytes: f64,
    /// What the server sent to clients, a second.
    rate: f64,
}

/// What waits all the time: a large reply that is on its way as the window ends is no standing queue.
fn standing(p: &PeerSockets) -> f64 {
    p.standing_bytes.unwrap_or(p.send_queue_bytes) as f64
}

impl Queue<'_> {
    /// `None` where its sockets or its counters were not seen.
    fn of<'a>(facts: &Facts, node: &'a Node) -> Option<Queue<'a>> {
        let is_server = |host: &str| facts.nodes.iter().any(|n| n.host() == host);
        let reads = |p: &&PeerSockets| p.window_closed == 0 && p.unanswered == 0;
        let counts = |p: &&PeerSockets| !is_local(node, &p.host) && !is_server(&p.host) && reads(p);
        let peers: Vec<&PeerSockets> = node.sockets.value()?.iter().filter(counts).collect();
        let waiting: Vec<&PeerSockets> = peers.into_iter().filter(|p| standing(p) > 0.0).collect();
        let bytes = waiting.iter().map(|p| standing(p)).sum();
        Some(Queue { node, peers: waiting, bytes, rate: sent_bytes(node)? / node.window_s.max(0.001) })
    }

    /// How long it takes to send what waits, in seconds.
    fn wait_s(&self) -> f64 {
        self.bytes / self.rate.max(LEAST)
    }

    fn trip_s(&self) -> f64 {
        self.peers.iter().map(|p| f64::from(p.min_rtt_us_p50)).fold(0.0, f64::max) / 1e6
    }

    /// Whether the path of those with most of what waits shows that it is full.
    fn is_of_the_path(&self) -> bool {
        let shows = |p: &&&PeerSockets| {
            let (trip_us, least_us) = (f64::from(p.rtt_us_p50), f64::from(p.min_rtt_us_p50));
            // Acknowledged this fast, what waits has got through the path: it is the reader that takes its time.
            let pace = p.in_flight_bytes.map_or(0.0, |bytes| bytes as f64 / (trip_us / 1e6).max(1e-6));
            let longer = least_us > 0.0 && trip_us >= LONGER * least_us && pace <= FASTER * self.rate;
            longer || p.retransmits as f64 >= AGAIN * p.segments_out.max(1) as f64
        };
        let shown: f64 = self.peers.iter().filter(shows).map(|p| standing(p)).sum();
        shown > HALF * self.bytes
    }

    /// Whether something was on the way to its clients for long enough, or nothing says for how long.
    fn is_in_use(&self) -> bool {
        self.peers.iter().map(|p| p.busy).sum::<Option<f64>>().is_none_or(|sockets| sockets >= IN_USE)
    }

    fn stands(&self) -> bool {
        let waits = self.wait_s() >= WAIT_S.max(TRIPS * self.trip_s());
        self.rate >= LEAST && waits && self.is_in_use() && self.is_of_the_path() && is_used(self.node)
    }

    /// Share of the clients' connections that it holds up.
    fn share(&self) -> f64 {
        let all: f64 = self.node.sockets.value().into_iter().flatten().map(|p| f64::from(p.sockets)).sum();
        let held: f64 = self.peers.iter().map(|p| f64::from(p.sockets)).sum();
        (held / all.max(1.0)).clamp(0.0, 1.0)
    }

    fn latency_ms(&self) -> f64 {
        self.wait_s() * 1000.0 * self.share()
    }
}

/// A device that is nearly full.
struct Busy<'a> {
    node: &'a Node,
    link: &'a Link,
    /// Bytes a second in its busier direction, and of its speed.
    rate: f64,
    share: f64,
    way: &'static str,
}

fn busy<'a>(facts: &'a Facts, node: &'a Node) -> Option<Busy<'a>> {
    let (host, _) = facts.process(node)?;
    let window = host.window_s.max(0.001);
    let own = |bytes: Option<f64>| bytes.unwrap_or(0.0) / node.window_s.max(0.001);
    let (sent, received) = (own(sent_bytes(node)), own(received_bytes(node)));
    let ways = host.links.iter().flat_map(|link| {
        let (out, into) = (link.sent_bytes as f64 / window, link.received_bytes as f64 / window);
        [(link, out, sent, "out"), (link, into, received, "in")]
    });
    let full = ways.filter_map(|(link, rate, own, way)| {
        let share = rate * 8.0 / (link.speed_mbit? as f64 * 1e6);
        (share >= NEAR && own >= HALF * rate).then_some(Busy { node, link, rate, share, way })
    });
    by_worst(full.collect(), |b: &Busy| b.share).into_iter().next()
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Queue> = facts.live().filter_map(|node| Queue::of(facts, node)).collect();
    let all = by_worst(all, Queue::latency_ms);
    let rows: Vec<&Queue> = all.iter().filter(|q| q.stands()).collect();
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|q| q.node.address.as_str())).into();
    }
    if let Some(device) = facts.live().find_map(|node| busy(facts, node)) {
        return nearly(&device).into();
    }
    if let Some(gap) = facts.live().find_map(|n| Some(n.sockets.missing()?.of(&format!("paths of {}", n.address)))) {
        return Verdict::Unknown(Gap { grant: gap.grant.or_else(|| Some(SEE_HOST.into())), ..gap });
    }
    let text = by_worst(all, |q| q.bytes).into_iter().next().map(|q| {
        format!("bandwidth: {} waiting on sockets to remote clients, {} sent a second", bytes(q.bytes), bytes(q.rate))
    });
    Verdict::absent(facts, "bandwidth", text)
}

fn found(facts: &Facts, q: &Queue) -> Finding {
    let node = q.node;
    let cpu = node.cpu().map_or(0.0, |(user, sys)| user + sys);
    let mut finding = Finding::new(format!(
        "The path from {} to its clients is full at {} a second: {} are waiting to be sent, which takes {}",
        node.address,
        bytes(q.rate),
        bytes(q.bytes),
        time_us(q.wait_s() * 1e6)
    ))
    .latency(
        q.latency_ms(),
        format!("{} of the connections wait {} for the path", percent(q.share()), time_us(q.wait_s() * 1e6)),
    )
    .gain(
        format!("replies of half the size would wait {}", time_us(q.wait_s() * 1e6 / 2.0)),
        format!("{:.0} B / 2 / {:.0} B/s = {:.3} s", q.bytes, q.rate, q.wait_s() / 2.0),
    )
    .likely("the bytes waiting and sent were measured; that the path is full follows from round trips and open windows")
    .saw(
        node,
        "INFO stats",
        format!("{} sent to clients in {:.1} s", bytes(q.rate * node.window_s), node.window_s),
    );
    for p in q.peers.iter().take(2) {
        finding = finding.saw(
            node,
            "ss -tin",
            format!(
                "{}: {} sockets, {} in send queues, none with a closed window, round trip {} (minimum {}), {} of {} \
                 segments sent again{}",
                p.host,
                p.sockets,
                bytes(standing(p)),
                time_us(p.rtt_us_p50.into()),
                time_us(p.min_rtt_us_p50.into()),
                p.retransmits,
                p.segments_out,
                p.busy.map_or(String::new(), |busy| format!("; data waiting on {busy:.1} of the sockets on average"))
            ),
        );
    }
    finding = large::shown(finding, node, Side::Reply);
    if let Some(device) = busy(facts, node) {
        finding = saw_device(finding, &device);
    }
    mend(finding.not(format!("a server that is too slow: its main thread uses {} of a core", percent(cpu))))
}

fn nearly(b: &Busy) -> Finding {
    let finding = Finding::new(format!(
        "{} on the machine of {} carries {} of its speed, {} a second {}",
        b.link.name,
        b.node.address,
        percent(b.share),
        bytes(b.rate),
        b.way
    ))
    .on([b.node.address.as_str()])
    .risk("nothing is waiting yet; replies will queue once it is full")
    .proven("read from the machine's own counters for the device, and the speed that it reports");
    mend(saw_device(finding, b))
}

fn saw_device(finding: Finding, b: &Busy) -> Finding {
    let speed = b.link.speed_mbit.unwrap_or(0);
    let value = format!("{}: {} a second {}, of {speed} Mbit/s", b.link.name, bytes(b.rate), b.way);
    finding.saw(b.node, "/proc/net/dev", value)
}

fn mend(finding: Finding) -> Finding {
    finding
        .fix(
            "Send less: compress values, fetch only the fields that are needed, keep the most-read values in the \
             clients",
            &[
                "HMGET key field1 field2   instead of HGETALL key",
                "CLIENT TRACKING on   (6.0+: the server says when a copy is stale)",
            ],
            "requires a change in the clients",
            "",
        )
        .fix(
            "Find out what is large, then move it or split it",
            &["COMMANDLOG GET 10 large-reply   (Valkey 8.1+)", "redis-cli --bigkeys   (on a replica)"],
            "",
            "",
        )
        .fix(
            "Get a wider path: a larger instance or card, more shards, or reads from replicas on other machines",
            &["sar -n DEV 1", "ethtool -S eth0 | grep allowance   (EC2)"],
            "",
            "",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Currency;
    use crate::rules::made::{NOW_MS, answer, node_at, of, said};
    use unslow_facts::{Host, Process, Seen};

    /// Ten seconds in which 25 MB were sent to eight connections of one client.
    fn facts(change: impl FnOnce(&mut PeerSockets)) -> Facts {
        let before = "redis_version:7.2.4\r\nrole:master\r\ntotal_commands_processed:0\r\ntotal_net_output_bytes:0\r\n\
                      total_net_input_bytes:0\r\ntotal_net_repl_output_bytes:0\r\ntotal_net_repl_input_bytes:0\r\n";
        let after = "total_commands_processed:250\r\ntotal_net_output_bytes:25000000\r\ntotal_net_input_bytes:9000\r\n\
                     cmdstat_get:calls=250,usec=500,usec_per_call=2.00\r\n";
        let mut node = node_at("10.0.0.1:6379", before, after);
        let mut peer = PeerSockets {
            host: "10.0.0.9".into(),
            sockets: 8,
            min_rtt_us: 200,
            min_rtt_us_p50: 200,
            rtt_us_p50: 180_000,
            segments_out: 17_000,
            send_queue_bytes: 750_000,
            in_flight_bytes: Some(450_000),
            busy: Some(7.9),
            ..PeerSockets::default()
        };
        change(&mut peer);
        node.sockets = Seen::yes(vec![peer], "ss -tin", NOW_MS);
        of(DeploymentKind::Standalone, vec![node])
    }

    #[test]
    fn a_standing_queue_is_priced_by_the_time_it_takes_to_send() {
        let found = said(check(&facts(|_| {})));
        // 750 kB at 2.5 MB/s.
        assert_eq!(found.impact.currency, Currency::Latency);
        assert!((found.impact.value - 300.0).abs() < 1.0, "{}", found.impact.value);
        // Small replies: a segment each, and a path that delays them.
        let small = facts(|p| (p.in_flight_bytes, p.send_queue_bytes) = (Some(750_000), 750_000));
        assert_eq!(answer(&check(&small)), "present");
        // Nothing tells for how long it was in use: an old kernel, or a connection for each request.
        assert_eq!(answer(&check(&facts(|p| (p.busy, p.in_flight_bytes) = (None, None)))), "present");
        // A path that drops what is too much has no long round trip.
        let dropping = facts(|p| (p.rtt_us_p50, p.retransmits) = (250, 400));
        assert_eq!(answer(&check(&dropping)), "present");
    }

    #[test]
    fn look_alikes_are_left_alone() {
        type Change = fn(&mut PeerSockets);
        let cases: [(&str, Change); 10] = [
            ("a reply on its way", |p| p.send_queue_bytes = 100_000),
            ("a burst of replies as the window ends", |p| p.standing_bytes = Some(0)),
            ("a large reply now and then, on its way at both looks", |p| p.busy = Some(0.5)),
            ("the same of several clients at a time", |p| {
                (p.busy, p.rtt_us_p50, p.min_rtt_us_p50, p.in_flight_bytes) = (Some(1.0), 90, 20, Some(64_000));
            }),
            // What is acknowledged once in 90 us would be 700 MB/s.
            ("clients that are slow to read large replies", |p| {
                (p.rtt_us_p50, p.min_rtt_us_p50, p.in_flight_bytes) = (90, 20, Some(64_000));
            }),
            ("clients that do not read", |p| p.window_closed = 1),
            ("clients that read slowly, over an empty path", |p| p.rtt_us_p50 = 400),
            ("a client on another continent", |p| (p.min_rtt_us_p50, p.rtt_us_p50) = (150_000, 460_000)),
            ("a client that is away", |p| p.unanswered = 8),
            ("the server's own machine", |p| p.host = "127.0.0.1".into()),
        ];
        for (what, change) in cases {
            assert_eq!(answer(&check(&facts(change))), "absent", "{what}");
        }
        let mut blind = facts(|_| {});
        blind.nodes[0].sockets = Seen::default();
        assert_eq!(answer(&check(&blind)), "unknown");
    }

    #[test]
    fn a_device_near_its_own_speed_is_a_risk_before_anything_waits() {
        let with = |speed_mbit, sent_bytes| {
            let mut facts = facts(|p| p.send_queue_bytes = 0);
            let process = Process { pid: 7, addresses: vec!["10.0.0.1:6379".into()], ..Process::default() };
            let link = Link { name: "eth0".into(), speed_mbit, received_bytes: 0, sent_bytes };
            facts.hosts = vec![Host { window_s: 10.0, links: vec![link], processes: vec![process], ..Host::default() }];
            check(&facts)
        };
        // 26 MB in 10 s on 25 Mbit/s.
        let found = said(with(Some(25), 26_000_000));
        assert_eq!(found.impact.currency, Currency::Risk);
        assert!(found.title.contains("eth0") && found.title.contains("83 %"), "{}", found.title);
        for (what, verdict) in [
            ("a wide link", with(Some(10_000), 26_000_000)),
            ("a device that says no speed", with(None, 26_000_000)),
            ("the traffic of something else", with(Some(100), 120_000_000)),
        ] {
            assert_eq!(answer(&verdict), "absent", "{what}");
        }
    }
}
