//! Clients check or prepare their connection before each command, and every check costs a round trip.
//!
//! PING when a connection is taken from the pool (`testOnBorrow`), SELECT, AUTH or HELLO before each command (PHP
//! without persistent connections, hand-written pools), READONLY or CLIENT SETINFO over and over: none of it does any
//! work. The server answers each within a microsecond, but the client waits for a whole round trip, and the server has
//! to read, wake up and write for it.
//!
//! Seen when: over 20 % of the clients' commands are of this kind, at more than 50 a second, and either they take over
//! 1 % of a core, or there is at least one for every two commands that do work and clients send one command at a time.
//! What belongs to a new connection (each of these once, CLIENT SETINFO twice) is subtracted, and so is one PING a
//! second for each connection, which timers and health checks send.
//!
//! Not to be taken for: `connection_churn`, where these come with each new connection; `monitoring_storm`, which is
//! about INFO, CLIENT LIST and the like. A replica's SELECT comes from its master's stream and is not counted.
//! `no_pipelining` says nothing where most of the commands are such checks.
//!
//! How to confirm: run `INFO commandstats` twice: compare the calls of cmdstat_ping, cmdstat_select, cmdstat_auth and
//! cmdstat_hello with those of the commands that do the work; `INFO stats`: total_connections_received; `CLIENT LIST`:
//! cmd= of the connections.
//!
//! What to do: check idle connections in the background; log in and choose the database once, when a connection is
//! opened.
//! Sources: INFO commandstats and stats, CLIENT LIST; the price of a read and a turn of the event loop in
//! `measure/between.rs`.

use super::prelude::*;
use super::{callers, no_pipelining};

pub const TITLE: &str = "Chatter";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// What checks or prepares a connection, as commandstats names it, and how often a new connection may send it.
const PREPARES: &[(&str, f64)] = &[
    ("ping", 1.0),
    ("select", 1.0),
    ("auth", 1.0),
    ("hello", 1.0),
    ("readonly", 1.0),
    ("readwrite", 1.0),
    ("client|setname", 1.0),
    ("client|setinfo", 2.0),
];
/// What servers send each other over client connections.
const REPLICATION: &[&str] = &["replconf", "psync", "sync"];
/// PINGs a second on one connection that a timer or a health check may send.
const TIMER: f64 = 1.0;
/// Of the clients' commands, and a second.
const SHARE: f64 = 0.2;
const LEAST: f64 = 50.0;
/// Of a core; or of a command that does work.
const CORE: f64 = 0.01;
const EACH: f64 = 0.5;
/// More checks than this for each command that does work come from connections that do none, and no work waits for
/// them.
const MANY: f64 = 5.0;
/// From here on the rest of the traffic is judged once the checks are gone.
const MOST: f64 = 0.4;

/// What the clients of one server send beside their work.
struct Chatter<'a> {
    node: &'a Node,
    /// By command, the most frequent first, without what new connections and timers explain.
    parts: Vec<(&'static str, f64)>,
    calls: f64,
    /// Commands of all clients.
    all: f64,
    /// Those that do work.
    work: f64,
    /// New connections in the window.
    opened: f64,
    /// Share of a core.
    core: f64,
}

impl Chatter<'_> {
    /// `None` where commands or connections were not counted, or the counters were reset.
    fn of(node: &Node) -> Option<Chatter<'_>> {
        let window = node.window_s.max(0.001);
        let work = node.application_ops()? * window;
        let opened = node.delta("total_connections_received")?;
        let connections = node.number("connected_clients")?;
        let commands = node.foreign_commands();
        let (mut parts, mut inside_us) = (Vec::new(), 0.0);
        for &(name, each) in PREPARES {
            // A master's stream names the database with SELECT.
            let Some(stat) = commands.get(name).filter(|_| name != "select" || node.is_master()) else { continue };
            let timers = if name == "ping" { connections * window * TIMER } else { 0.0 };
            let calls = (stat.calls as f64 - opened * each - timers).max(0.0);
            if calls > 0.0 {
                inside_us += stat.usec as f64 / stat.calls as f64 * calls;
                parts.push((name, calls));
            }
        }
        let parts = by_worst(parts, |(_, calls)| *calls);
        let calls: f64 = parts.iter().map(|(_, calls)| *calls).sum();
        let clients = commands.iter().filter(|(name, _)| !is_one_of(REPLICATION, name));
        let all: f64 = clients.map(|(_, stat)| stat.calls as f64).sum();
        let outside_us = calls * call_us(node) / node.depth().unwrap_or(1.0).max(1.0);
        Some(Chatter { node, parts, calls, all, work, opened, core: (inside_us + outside_us) / 1e6 / window })
    }

    fn share(&self) -> f64 {
        self.calls / self.all.max(1.0)
    }

    fn rate(&self) -> f64 {
        self.calls / self.node.window_s.max(0.001)
    }

    /// For each command that does work.
    fn each(&self) -> f64 {
        self.calls / self.work.max(1.0)
    }

    /// Whether clients send one command at a time, and so wait for each check.
    fn waits(&self) -> bool {
        self.each() <= MANY && Depth::of(self.node).is_some_and(|depth| depth.is_one(self.node))
    }

    fn hurts(&self) -> bool {
        let costs = self.core > CORE || (self.each() >= EACH && self.waits());
        self.share() > SHARE && self.rate() > LEAST && self.work >= 1.0 && costs
    }

    /// `PING 2,400 and SELECT 1,200 times a second`
    fn figures(&self) -> String {
        let window = self.node.window_s.max(0.001);
        let told = |(name, calls): &(&str, f64)| format!("{} {}", upper(name), count(calls / window));
        format!("{} times a second", names(&self.parts.iter().map(told).collect::<Vec<_>>()))
    }
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('|', " ")
}

/// Whether so many commands of this server are checks that the rest can only be judged without them.
pub(super) fn is_most(node: &Node) -> bool {
    Chatter::of(node).is_some_and(|c| c.hurts() && c.share() >= MOST)
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Chatter<'_>> = facts.live().filter_map(Chatter::of).collect();
    let rows = by_worst(all.iter().filter(|c| c.hurts()).collect(), |c| c.rate());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|c| c.node.address.as_str())).into();
    }
    const WHAT: &str = "commands that only check or prepare a connection";
    match by_worst(all.iter().collect(), |c| c.share()).first() {
        None => Verdict::absent(facts, WHAT, None),
        Some(c) if c.all < 1.0 => absent_by_commandstats(facts, WHAT, format!("{WHAT}: no client sent a command")),
        Some(c) => absent_by_commandstats(
            facts,
            WHAT,
            format!(
                "{WHAT}: at most {} of the clients' commands, {} a second, beyond those of new connections and timers",
                percent(c.share()),
                count(c.rate())
            ),
        ),
    }
}

fn found(c: &Chatter<'_>) -> Finding {
    let node = c.node;
    let finding = Finding::new(format!(
        "{} of the commands on {} only check or prepare a connection: {}",
        percent(c.share()),
        node.address,
        c.figures()
    ));
    let mut finding = price(finding, c);
    for (name, calls) in c.parts.iter().take(3) {
        let told = format!("{}: {} calls beyond new connections and timers", upper(name), count(*calls));
        finding = finding.saw(node, "INFO commandstats", told);
    }
    finding = finding.saw(node, "INFO commandstats", format!("{} calls that do work", count(c.work))).saw(
        node,
        "INFO stats",
        format!("total_connections_received +{:.0} in {:.1} s", c.opened, node.window_s),
    );
    let sent: Vec<&str> = c.parts.iter().map(|(name, _)| *name).collect();
    finding = callers::shown(finding, node, &sent)
        .not(format!("connection churn: {} new connections a second", count(c.opened / node.window_s.max(0.001))));
    for (name, _) in c.parts.iter().filter(|(_, calls)| *calls >= 0.2 * c.calls) {
        finding = mend(finding, node, name);
    }
    finding
}

/// Round trips where clients wait for them over a distance that was seen, else the server's time.
fn price(finding: Finding, c: &Chatter<'_>) -> Finding {
    let (each, core, rate) = (c.each(), c.core, c.rate());
    let distance = no_pipelining::round_trip_us(c.node).filter(|(_, seen)| *seen && c.waits());
    if let Some((rtt_us, _)) = distance {
        let more = time_us(rtt_us * each);
        return finding
            .latency(
                rtt_us / 1000.0 * each,
                format!("{more} more for each command that does work, and about {} of a core", percent(core)),
            )
            .gain(
                format!("without the checks, a command waits {more} less"),
                format!("{each:.2} checks a command x {rtt_us:.0} us = {:.0} us", each * rtt_us),
            )
            .likely(
                "the calls and the round trip were measured; that a client waits for each check is inferred from one \
                 command per read",
            );
    }
    let us = core / rate.max(0.001) * 1e6;
    finding
        .core(
            core,
            format!("about {} of a core; a client that waits for each check loses a round trip as well", percent(core)),
        )
        .gain(
            format!("without the checks, {} of a core is free again", percent(core)),
            format!("{rate:.0} calls/s x {us:.1} us = {core:.4} cores"),
        )
        .likely(
            "the server counted the calls and the time inside them; the cost of reading and waking up for each is an \
             estimate",
        )
}

/// What to do about one command.
fn mend(finding: Finding, node: &Node, name: &str) -> Finding {
    match name {
        "ping" => finding.fix(
            "Do not check a pooled connection on each use: check idle ones in the background",
            &callers::advice(
                node,
                &[
                    ("jedis", "Jedis: setTestOnBorrow(false); setTestOnReturn(false); setTestWhileIdle(true)"),
                    ("redis-py", "redis-py: health_check_interval=30, and no ping() before a command"),
                    (
                        "lettuce",
                        "Lettuce: GenericObjectPoolConfig.setTestOnBorrow(false); Spring: \
                                 setValidateConnection(false)",
                    ),
                    ("go-redis", "go-redis: no Ping() before a command; the pool drops dead connections by itself"),
                    ("php", "phpredis: no ping() after pconnect(); reconnect when a command fails"),
                ],
            ),
            "a broken connection is noticed only at its first command: let the client retry once",
            "",
        ),
        "select" => finding.fix(
            "Choose the database once, when the connection is opened: a pool for each database",
            &callers::advice(
                node,
                &[
                    ("jedis", "Jedis: new JedisPool(config, host, port, timeout, password, database)"),
                    ("redis-py", "redis-py: redis.Redis(db=3), one client for each database"),
                    ("lettuce", "Lettuce: RedisURI.builder().withDatabase(3), one connection for each database"),
                    ("go-redis", "go-redis: redis.Options{DB: 3}, one client for each database"),
                    ("php", "phpredis: pconnect($host, $port, $timeout, 'db3'), one persistent id for each database"),
                ],
            ),
            "each database needs its own connections",
            "",
        ),
        "auth" | "hello" => finding.fix(
            &format!("{}: log in once, when the connection is opened, and keep the connection", upper(name)),
            &callers::advice(
                node,
                &[
                    ("jedis", "Jedis: DefaultJedisClientConfig.builder().user(..).password(..), given to the pool"),
                    ("redis-py", "redis-py: redis.Redis(username=.., password=..), one client a process"),
                    ("lettuce", "Lettuce: RedisURI.builder().withAuthentication(user, password)"),
                    ("go-redis", "go-redis: redis.Options{Username: .., Password: ..}"),
                    ("php", "phpredis: pconnect(), and auth() only after a new connection"),
                ],
            ),
            "",
            "",
        ),
        "readonly" | "readwrite" => finding.fix(
            "READONLY holds for the life of a connection: send it once, and keep connections to replicas separate",
            &["go-redis: redis.ClusterOptions{ReadOnly: true}", "Lettuce: ReadFrom.REPLICA_PREFERRED"],
            "",
            "",
        ),
        _ => finding.fix(
            &format!("{}: name the connection once, when it is opened", upper(name)),
            &["one client object a process, not one a request"],
            "",
            "",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Currency;
    use unslow_facts::{ClientGroup, Clients, PeerSockets, Rtt, Sample, Seen};
    use unslow_topology::{Info, Role};

    /// Ten seconds with these calls, that many new connections and reads, over clients at 200 us.
    fn facts(role: &str, calls: &[(&str, u64)], opened: u64, reads: u64) -> Facts {
        let before = format!("redis_version:7.2.4\r\nrole:{role}\r\nconnected_clients:11\r\n");
        let counters = |connections: u64, reads: u64, commands: u64| {
            format!(
                "total_connections_received:{connections}\r\ntotal_reads_processed:{reads}\r\n\
                 total_commands_processed:{commands}\r\n"
            )
        };
        let line = |name: &str, n: u64| format!("cmdstat_{name}:calls={n},usec={n},usec_per_call=1.00\r\n");
        let all: u64 = calls.iter().map(|(_, n)| *n).sum();
        let after: String = calls.iter().map(|(name, n)| line(name, *n)).collect();
        let first = Info::parse(&(before.clone() + &counters(0, 0, 0)));
        let last = Info::parse(&(before + &counters(opened, reads, all) + &after));
        let seen = |at_ms: u64, info: Info| Some(Sample { at_ms, info });
        let mut node = Node::new("10.0.0.1:6379", Role::Master);
        (node.first, node.last, node.window_s) = (seen(0, first), seen(10_000, last), 10.0);
        let rtt = Rtt { count: 100, us_min: 190, us_p50: 200, us_p99: 300, us_max: 300 };
        node.rtt = Seen::yes(rtt, "PING", 0);
        let peer = PeerSockets {
            host: "10.0.0.9".into(),
            sockets: 10,
            min_rtt_us: 200,
            min_rtt_us_p50: 200,
            ..PeerSockets::default()
        };
        node.sockets = Seen::yes(vec![peer], "ss", 0);
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    #[test]
    fn a_check_before_each_command_costs_a_round_trip() {
        let Verdict::Present(found) = check(&facts("master", &[("ping", 30_110), ("get", 30_000)], 0, 60_110)) else {
            panic!("not found")
        };
        assert_eq!(found.impact.currency, Currency::Latency);
        // One PING a second on each of the eleven connections is a timer's.
        assert!((found.impact.value - 0.2).abs() < 1e-9, "{}", found.impact.value);
        assert!(found.title.contains("PING 3,000 times a second"), "{}", found.title);
    }

    #[test]
    fn the_clients_and_their_library_are_named() {
        let mut facts = facts("master", &[("ping", 30_110), ("get", 30_000)], 0, 60_110);
        let group = ClientGroup {
            host: "10.0.0.9".into(),
            name: "orders".into(),
            library: "jedis 5.1.0".into(),
            count: 8,
            commands: [("ping".to_string(), 6), ("get".to_string(), 2)].into(),
            ..ClientGroup::default()
        };
        let clients = Clients { total: 8, listed: 8, groups: vec![group], ..Clients::default() };
        facts.nodes[0].clients = Seen::yes(clients, "CLIENT LIST", 0);
        let Verdict::Present(found) = check(&facts) else { panic!("not found") };
        let named = |e: &crate::Evidence| e.value.starts_with("6 of 8 connections from 10.0.0.9 orders jedis 5.1.0");
        assert!(found.evidence.iter().any(named), "{:?}", found.evidence);
        let commands = &found.remedies[0].commands;
        assert!(commands.len() == 1 && commands[0].starts_with("Jedis: "), "{commands:?}");
    }

    #[test]
    fn in_pipelines_only_the_server_pays() {
        let Verdict::Present(found) = check(&facts("master", &[("select", 100_000), ("get", 100_000)], 0, 100_000))
        else {
            panic!("not found")
        };
        assert_eq!(found.impact.currency, Currency::Capacity);
    }

    #[test]
    fn work_does_not_wait_for_connections_that_only_check() {
        let Verdict::Present(found) = check(&facts("master", &[("ping", 50_000), ("get", 20)], 0, 50_020)) else {
            panic!("not found")
        };
        assert_eq!(found.impact.currency, Currency::Capacity);
    }

    #[test]
    fn look_alikes_are_left_alone() {
        let greeting = [("auth", 5000), ("select", 5000), ("client|setinfo", 10_000), ("get", 5000)];
        for (what, facts) in [
            ("greetings of new connections", facts("master", &greeting, 5000, 30_000)),
            ("a pool's PINGs", facts("master", &[("ping", 1000), ("get", 5000)], 0, 6000)),
            ("health checks and little work", facts("master", &[("ping", 110), ("get", 40)], 0, 150)),
            ("a replica's stream", facts("slave", &[("select", 30_000), ("set", 30_000)], 0, 60_000)),
            ("checks and no work", facts("master", &[("ping", 50_000)], 0, 50_000)),
        ] {
            assert!(matches!(check(&facts), Verdict::Absent(_)), "{what}");
        }
    }

    #[test]
    fn nothing_is_said_of_counters_that_were_reset_or_not_seen() {
        let mut reset = facts("master", &[("ping", 30_000), ("get", 30_000)], 0, 60_000);
        let node = &mut reset.nodes[0];
        std::mem::swap(&mut node.first, &mut node.last);
        assert!(matches!(check(&reset), Verdict::Unknown(_)));
        let node = &mut reset.nodes[0];
        (node.first, node.last) = (None, None);
        assert!(matches!(check(&reset), Verdict::Unknown(_)));
    }
}
