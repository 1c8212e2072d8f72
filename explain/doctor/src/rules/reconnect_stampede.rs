//! Many clients reconnect at the same moment.
//!
//! After a failover, a restart, a network outage or a proxy's deployment, every client has lost its connections, and
//! without a random delay all of them come back at once. Each connection costs an accept, often TLS, AUTH, HELLO and
//! CLIENT SETINFO. While the server works through them it answers nothing else, accept queues overflow, and clients
//! time out in the middle of their handshake and try again.
//!
//! Seen when: within a second or two of the window over 50 connections arrived, at least ten times as many a second as
//! in the rest of it, and they are at least 30 % of the clients; clients that connected in the window and are still
//! there when it ends number at least half of those connections (or of all clients, if those are fewer), and at least a
//! quarter of them; and the number of clients did not grow with them, unless the server's role changed in the window.
//! Connections are counted for each second of the window.
//!
//! Not to be taken for: `connection_churn`, whose connections arrive evenly and do not stay; clients that connect again
//! and again (many connections, few clients to show for them); jobs that start together (their connections are closed
//! again before the window ends); an application that starts (the number of clients grows by the same number); an
//! attack: these are clients that were connected before.
//!
//! How to confirm: `INFO stats` once a second: total_connections_received; `CLIENT LIST`: many rows with nearly the
//! same `age`.
//!
//! What to do: reconnect after a random delay, longer after each failure; use fewer connections; on Redis 8 and Valkey
//! 8, limit how many new ones each iteration of the event loop accepts.
//! Sources: INFO total_connections_received by the second, CLIENT LIST ages, INFO replication;
//! lettuce-io/lettuce-core#2211; redis/redis#12178.

use unslow_facts::Sample;

use super::connection_churn::{Churn, Price};
use super::prelude::*;

pub const TITLE: &str = "Reconnect stampede";
pub const LEADS_TO: &[&str] = &["accept_overflow"];
pub const INJECTED: Injected = Injected::Yes;

/// Connections that are a wave, and their part of the clients.
const LEAST: f64 = 50.0;
const FLEET: f64 = 0.3;
/// How many times the rate of the calm part the wave has, and the part of the window that must be calm.
const ABOVE: f64 = 10.0;
const CALM: f64 = 0.3;
/// Of the wave: those that must still be there at the end.
const STAYED: f64 = 0.5;
/// Attempts of one client within a wave that its retries explain. Of connections that come and go all the time some are
/// always there when the clients are listed.
const ATTEMPTS: f64 = 4.0;
/// Of the wave: by how much the number of clients may have grown. Where it grew by more, clients came that were not
/// there before.
const GROWN: f64 = 0.7;
/// A shorter rest after the last point is no stretch by itself, in s.
const SHORTEST_S: f64 = 0.3;
/// A process that started so recently had no clients before, in s.
const RESTARTED_S: f64 = 120.0;

/// A part of the window.
struct Stretch {
    s: f64,
    connections: f64,
}

impl Stretch {
    fn rate(&self) -> f64 {
        self.connections / self.s.max(0.001)
    }
}

/// The window in parts of about a second; `None` where connections were not counted by the second.
fn stretches(node: &Node) -> Option<Vec<Stretch>> {
    let all = node.delta("total_connections_received")?;
    let (mut parts, mut from_ms) = (Vec::new(), 0);
    for point in &node.series {
        let s = f64::from(point.at_ms.saturating_sub(from_ms)) / 1000.0;
        from_ms = point.at_ms;
        parts.push(Stretch { s, connections: point.connections_per_s? * s });
    }
    if parts.is_empty() {
        return None;
    }
    let counted: f64 = parts.iter().map(|p| p.connections).sum();
    let rest_s = node.window_s - f64::from(from_ms) / 1000.0;
    if rest_s >= SHORTEST_S {
        parts.push(Stretch { s: rest_s, connections: (all - counted).max(0.0) });
    }
    Some(parts)
}

/// Clients of one server that came at once.
struct Wave<'a> {
    node: &'a Node,
    /// The largest number in two stretches that follow each other: a wave may fall on both.
    connections: f64,
    /// Connections a second in the loudest stretch, and in the calm ones.
    peak: f64,
    calm: f64,
    /// Rows of CLIENT LIST that connected in the window, as far as those that were seen stand for all.
    stayed: f64,
    grown: f64,
    clients: f64,
}

impl Wave<'_> {
    fn of(node: &Node) -> Option<Wave<'_>> {
        let parts = stretches(node)?;
        let peak = parts.iter().map(Stretch::rate).fold(0.0, f64::max);
        let calm: Vec<&Stretch> = parts.iter().filter(|p| p.rate() * ABOVE <= peak).collect();
        let calm_s: f64 = calm.iter().map(|p| p.s).sum();
        let window_s: f64 = parts.iter().map(|p| p.s).sum();
        let connections = parts.windows(2).map(|two| two[0].connections + two[1].connections).fold(0.0, f64::max);
        let connected = |sample: &Option<Sample>| sample.as_ref()?.info.number("connected_clients");
        let (before, clients) = (connected(&node.first)?, connected(&node.last)?);
        let rows = node.clients.value()?;
        let opened: u64 = rows.groups.iter().map(|g| g.opened).sum();
        let stayed = opened as f64 * (clients / rows.listed.max(1) as f64).max(1.0);
        let wave = Wave {
            node,
            connections,
            peak,
            calm: calm.iter().map(|p| p.connections).sum::<f64>() / calm_s.max(0.001),
            stayed,
            grown: clients - before,
            clients,
        };
        (calm_s >= CALM * window_s && wave.is_reconnection()).then_some(wave)
    }

    fn is_reconnection(&self) -> bool {
        let large = self.connections >= LEAST && self.connections >= FLEET * self.clients;
        let stayed = self.stayed >= STAYED * self.connections.min(self.clients)
            && self.connections <= ATTEMPTS * self.stayed;
        let known_before = self.grown < GROWN * self.connections || role_changed(self.node);
        large && stayed && known_before
    }
}

/// Whether the server was given another role in the window.
fn role_changed(node: &Node) -> bool {
    let role = |sample: &Option<Sample>| sample.as_ref().and_then(|s| s.info.role().map(String::from));
    role(&node.first) != role(&node.last)
}

/// Whether this rule names the node.
pub(super) fn speaks(node: &Node) -> bool {
    Wave::of(node).is_some()
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "clients that reconnect all at once";
    let rows = by_worst(facts.live().filter_map(Wave::of).collect(), |w: &Wave<'_>| w.connections);
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|w| w.node.address.as_str())).into();
    }
    let came = |node: &Node| node.delta("total_connections_received");
    let hidden =
        |n: &&Node| came(n).is_some_and(|n| n >= LEAST) && (stretches(n).is_none() || n.clients.value().is_none());
    if let Some(node) = facts.live().find(hidden) {
        let many = count(came(node).unwrap_or(0.0));
        let why = format!(
            "{WHAT}: {many} connections came to {} in the window, but how they were spread over it, or whether they \
             stayed, was not seen",
            node.address
        );
        return Verdict::unknown(Lack::Time, why, "run again, for ten seconds or more");
    }
    let text =
        most(facts, came).map(|n| format!("{WHAT}: at most {} new connections in the window, and no wave", count(n)));
    Verdict::absent(facts, WHAT, text)
}

fn found(facts: &Facts, wave: &Wave<'_>) -> Finding {
    let node = wave.node;
    let (peak, calm, many) = (count(wave.peak), count(wave.calm), count(wave.connections));
    let mut finding = Finding::new(format!(
        "{many} connections came to {} at once: {peak} a second at the peak, {calm} a second in the calm part of the \
         window",
        node.address
    ));
    let churn = Churn::of(facts, node);
    if let Some(churn) = &churn {
        let each_us = churn.share / churn.rate.max(0.001) * 1e6;
        let at_once_us = each_us * wave.connections;
        finding = finding
            .core(
                churn.share,
                format!(
                    "{} of a core over the window, in one go: about {} for the wave",
                    percent(churn.share),
                    time_us(at_once_us)
                ),
            )
            .gain(
                format!(
                    "spread over five seconds: {} connections a second instead of {peak}",
                    count(wave.connections / 5.0)
                ),
                format!("{:.0} connections x {each_us:.1} us = {:.0} us", wave.connections, at_once_us),
            );
    }
    finding = match churn.map(|c| c.price) {
        Some(Price::Measured) => finding.proven(
            "connections were counted by the second and are still there; their cost is the CPU time outside commands \
             that nothing else explains",
        ),
        _ => finding.likely(
            "connections were counted by the second and are still there; the cost of one is the lowest measured \
             elsewhere (loopback, no TLS)",
        ),
    };
    finding = finding
        .saw(
            node,
            "INFO stats",
            format!("total_connections_received: {peak} a second in the loudest second, {calm} in the calm ones"),
        )
        .saw(
            node,
            "CLIENT LIST",
            format!(
                "about {} of {} clients connected since the window began",
                count(wave.stayed.min(wave.clients)),
                count(wave.clients)
            ),
        )
        .saw(node, "INFO clients", format!("connected_clients {:+.0} in the window", wave.grown));
    finding = trigger(finding, wave);
    mend(finding, node)
}

/// What made them come, as far as the server knows.
fn trigger(finding: Finding, wave: &Wave<'_>) -> Finding {
    let node = wave.node;
    if role_changed(node) {
        let role = node.info().and_then(|i| i.role()).unwrap_or("another role").to_string();
        return finding.saw(
            node,
            "INFO replication",
            format!("role:{role} since this window: a failover sent them here"),
        );
    }
    if let Some(s) = node.number("uptime_in_seconds").filter(|s| *s < RESTARTED_S) {
        return finding.saw(node, "INFO server", format!("uptime_in_seconds:{s:.0}: it was restarted"));
    }
    let closed = |field: &str| node.delta(field).unwrap_or(0.0);
    let limits =
        closed("client_output_buffer_limit_disconnections") + closed("client_query_buffer_limit_disconnections");
    let closed = limits + closed("evicted_clients");
    if closed >= 1.0 {
        return finding.saw(
            node,
            "INFO stats",
            format!("{closed:.0} connections were closed at a limit of the server in the window"),
        );
    }
    finding.not(
        "a failover or a restart of this server in the window: what broke the connections is between it and its \
              clients, or in them",
    )
}

fn mend(finding: Finding, node: &Node) -> Finding {
    let finding = finding.fix(
        "In the clients: reconnect after a random delay, which doubles with each failure up to a few seconds",
        &[
            "Lettuce: ClientResources.builder().reconnectDelay(Delay.fullJitter(Duration.ofMillis(100), \
             Duration.ofSeconds(5), 100, MILLISECONDS))",
            "redis-py: Retry(FullJitterBackoff(cap=5, base=0.1), 6)",
            "go-redis: redis.Options{MinRetryBackoff: 100 * time.Millisecond, MaxRetryBackoff: 5 * time.Second}",
            "ioredis: retryStrategy: n => Math.random() * Math.min(5000, 100 * 2 ** n)",
        ],
        "clients come back up to that delay later",
        "restore the old delays",
    );
    finding.fix(
        "Have fewer connections to re-establish, and room for those that arrive: pools of the size the load needs, an \
         accept queue for all of them",
        &[&cli(&node.address, "CONFIG GET tcp-backlog"), "sysctl net.core.somaxconn   (the smaller of the two counts)"],
        "tcp-backlog takes effect after a restart",
        "",
    )
}

#[cfg(test)]
mod tests {
    use unslow_facts::{ClientGroup, Clients, Point, Seen};

    use super::super::made::{answer, node_at, replicated, said};
    use super::*;

    const BEFORE: &str = "redis_version:7.2.4\r\nrole:master\r\nuptime_in_seconds:9000\r\nconnected_clients:400\r\n\
                          total_connections_received:1000\r\ntotal_commands_processed:0\r\ntotal_reads_processed:0\r\n";

    /// Ten seconds in which this many connections came in each, and that many of the clients connected in the window.
    fn facts(each: [u32; 10], opened: u64, after: &str) -> Facts {
        let all: u32 = each.iter().sum();
        let after = format!(
            "total_connections_received:{}\r\ntotal_commands_processed:50000\r\ntotal_reads_processed:50000\r\n{after}",
            1000 + all
        );
        let mut node = node_at("10.0.0.1:6379", BEFORE, &after);
        let point = |i: usize, connections: u32| Point {
            at_ms: 1000 * (i as u32 + 1),
            commands_per_s: 5000.0,
            cpu_user_share: 0.1,
            cpu_sys_share: 0.1,
            connections_per_s: Some(f64::from(connections)),
        };
        // The last second is what INFO counts beyond the points.
        node.series = each[..9].iter().enumerate().map(|(i, n)| point(i, *n)).collect();
        let group = ClientGroup { host: "10.0.0.9".into(), count: 400, opened, ..ClientGroup::default() };
        let value = Clients { total: 400, listed: 400, groups: vec![group], ..Clients::default() };
        node.clients = Seen::yes(value, "CLIENT LIST", 0);
        replicated(vec![node])
    }

    /// Clients that a busy machine let connect in one second only; most of the few clients are theirs at any moment.
    fn come_and_go() -> Facts {
        let mut facts = facts([0, 0, 1438, 0, 0, 0, 0, 0, 0, 0], 0, "connected_clients:30\r\n");
        facts.nodes[0].first.as_mut().unwrap().info.0.insert("connected_clients".into(), "30".into());
        let group = ClientGroup { host: "10.0.0.9".into(), count: 30, opened: 20, ..ClientGroup::default() };
        let value = Clients { total: 30, listed: 30, groups: vec![group], ..Clients::default() };
        facts.nodes[0].clients = Seen::yes(value, "CLIENT LIST", 0);
        facts
    }

    #[test]
    fn a_fleet_that_comes_back_at_once_is_no_churn() {
        // Over the border of two seconds, and in the part after the last point.
        for each in [[2, 1, 0, 180, 170, 3, 0, 1, 0, 2], [2, 0, 1, 0, 0, 0, 0, 0, 0, 380]] {
            let facts = facts(each, 355, "");
            let found = said(check(&facts));
            assert!(found.title.contains("connections came to 10.0.0.1:6379 at once"), "{}", found.title);
            assert_eq!(found.impact.unit, "share_of_core");
            assert_eq!(answer(&super::super::connection_churn::check(&facts)), "absent");
        }
    }

    #[test]
    fn look_alikes_are_left_alone() {
        let steady = [40; 10];
        let burst = [0, 0, 350, 0, 0, 0, 0, 0, 0, 0];
        for (what, facts) in [
            ("churn", facts(steady, 60, "")),
            ("churn that stays a second", facts(steady, 350, "")),
            ("jobs that start together and end", facts(burst, 20, "")),
            ("an application that starts", facts(burst, 350, "connected_clients:750\r\n")),
            ("one of many pools", facts([0, 0, 55, 0, 0, 0, 0, 0, 0, 0], 55, "connected_clients:401\r\n")),
            ("few come again and again", come_and_go()),
            ("few", facts([0, 0, 20, 0, 0, 0, 0, 0, 0, 0], 20, "connected_clients:30\r\n")),
        ] {
            assert_eq!(answer(&check(&facts)), "absent", "{what}");
        }
        // Steady churn keeps its name.
        let churn = facts(steady, 60, "total_commands_processed:1200\r\n");
        assert_eq!(answer(&super::super::connection_churn::check(&churn)), "present");
    }

    #[test]
    fn a_new_master_gets_clients_that_it_did_not_have() {
        let mut facts = facts([0, 0, 350, 0, 0, 0, 0, 0, 0, 0], 350, "connected_clients:750\r\n");
        facts.nodes[0].first.as_mut().unwrap().info.0.insert("role".into(), "slave".into());
        let found = said(check(&facts));
        assert!(found.evidence.iter().any(|e| e.value.contains("a failover sent them here")), "{:?}", found.evidence);
    }

    #[test]
    fn without_the_seconds_or_the_clients_a_wave_is_neither_there_nor_not() {
        let mut old = facts([0, 0, 350, 0, 0, 0, 0, 0, 0, 0], 350, "");
        old.nodes[0].series.iter_mut().for_each(|p| p.connections_per_s = None);
        assert_eq!(answer(&check(&old)), "unknown");
        let mut denied = facts([0, 0, 350, 0, 0, 0, 0, 0, 0, 0], 350, "");
        denied.nodes[0].clients = Seen::default();
        assert_eq!(answer(&check(&denied)), "unknown");
        let mut few = facts([1; 10], 3, "");
        few.nodes[0].series.clear();
        assert_eq!(answer(&check(&few)), "absent", "ten connections are no wave, however they came");
    }
}
