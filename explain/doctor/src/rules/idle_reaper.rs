//! The server closes idle connections, and clients open them again.
//!
//! With `timeout` set, a server closes every connection that has been idle for that many seconds. A pool does not know:
//! its next command finds the connection closed, fails or is sent again over a new one, and has to connect first. A
//! setting that was meant for forgotten connections hits those that are only used now and then.
//!
//! Seen when: `timeout` is not 0; at least 20 connections arrived in the window while the number of clients stayed the
//! same, with fewer than 100 commands each; they live for one to four times `timeout` on average (clients / new
//! connections a second); and rows of CLIENT LIST are idle for up to that time, but none for longer.
//!
//! Not to be taken for: `connection_churn`, whose connections are thrown away long before; a pool that is busy (its
//! rows are never idle for that long); `connection_leak`, which `timeout` helps against. Connections that a firewall,
//! NAT or load balancer closes silently are not seen here: the server keeps them (`dead_peers`).
//!
//! How to confirm: `CONFIG GET timeout`; `CLIENT LIST`: the largest idle; run `INFO stats` twice:
//! total_connections_received.
//!
//! What to do: `timeout` 0 with tcp-keepalive, or pools that close idle connections themselves, before the server does.
//! Sources: CONFIG GET timeout, CLIENT LIST idle, INFO total_connections_received; timeout.c (clientsCronHandleTimeout
//! spares replicas, subscribers and blocked clients).

use unslow_facts::Sample;

use super::no_pipelining;
use super::prelude::*;

pub const TITLE: &str = "Idle reaper";
pub const LEADS_TO: &[&str] = &["connection_churn"];
pub const INJECTED: Injected = Injected::Yes;

/// Connections in the window, and commands on each.
const LEAST: f64 = 20.0;
const COMMANDS: f64 = 100.0;
/// How many times `timeout` a connection lives on average.
const LONGEST: f64 = 4.0;
/// Of the new connections: by how much the number of clients may have changed.
const CHANGED: f64 = 0.3;
/// Of `timeout`: how long the connection must be idle that has been so for longest.
const IDLE: f64 = 0.5;
/// The server looks at each client once a second, and counts whole seconds, in s.
const LATE_S: f64 = 2.0;
/// Round trips of a new connection: TCP's, and the greeting's.
const ROUND_TRIPS: f64 = 2.0;

/// Connections that one server closes.
struct Reaped<'a> {
    node: &'a Node,
    timeout_s: f64,
    opened: f64,
    clients: f64,
    lives_s: f64,
    idle_s: f64,
    commands: f64,
}

impl Reaped<'_> {
    fn of(node: &Node) -> Option<Reaped<'_>> {
        let timeout_s = node.setting_number("timeout").filter(|s| *s >= 1.0)?;
        let opened = node.delta("total_connections_received")?;
        let connected = |sample: &Option<Sample>| sample.as_ref()?.info.number("connected_clients");
        let (before, after) = (connected(&node.first)?, connected(&node.last)?);
        let clients = (before + after) / 2.0;
        let idle_s = node.clients.value()?.groups.iter().filter_map(|g| g.idle_s_max).max()? as f64;
        let lives_s = clients * node.window_s / opened.max(1.0);
        let commands = node.processed()?;
        let is_stable = (after - before).abs() <= CHANGED * opened;
        let is_used_rarely = opened >= LEAST && commands < COMMANDS * opened;
        let at_the_limit = lives_s >= timeout_s && lives_s <= LONGEST * (timeout_s + LATE_S);
        let is_idle = idle_s >= IDLE * timeout_s && idle_s <= timeout_s + LATE_S;
        let is_reaped = is_stable && is_used_rarely && at_the_limit && is_idle;
        is_reaped.then_some(Reaped { node, timeout_s, opened, clients, lives_s, idle_s, commands })
    }

    fn rate(&self) -> f64 {
        self.opened / self.node.window_s.max(0.001)
    }

    /// New connections for each command.
    fn each(&self) -> f64 {
        self.opened / self.commands.max(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "idle connections that the server closes";
    let timeouts: Vec<f64> = facts.live().filter_map(|n| n.setting_number("timeout")).collect();
    if timeouts.is_empty() {
        return match facts.live().find_map(|n| n.config.missing()) {
            Some(gap) => Verdict::Unknown(gap.of(WHAT)),
            None => Verdict::absent(facts, WHAT, None),
        };
    }
    if timeouts.iter().all(|s| *s < 1.0) {
        return Verdict::NotHere;
    }
    let rows = by_worst(facts.live().filter_map(Reaped::of).collect(), |r: &Reaped<'_>| r.each());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|r| r.node.address.as_str())).into();
    }
    if let Some(gap) = facts.live().find_map(|n| n.clients.missing()) {
        return Verdict::Unknown(gap.of(WHAT));
    }
    let came = most(facts, |n| n.rate("total_connections_received"));
    let text = came.map(|n| {
        format!("{WHAT}: at most {} new connections a second, and they are not idle for as long as timeout", count(n))
    });
    Verdict::absent(facts, WHAT, text)
}

fn found(r: &Reaped<'_>) -> Finding {
    let node = r.node;
    let (timeout, each) = (r.timeout_s, r.each());
    let finding = Finding::new(format!(
        "{} closes connections that have been idle for {timeout:.0} s, and clients open them again: {} a second",
        node.address,
        count(r.rate())
    ));
    let finding = match no_pipelining::round_trip_us(node) {
        Some((rtt_us, true)) => {
            let us = each * ROUND_TRIPS * rtt_us;
            finding
                .latency(
                    us / 1000.0,
                    format!(
                        "{} more for each command on average; the first command on a closed connection fails or is \
                         sent again",
                        time_us(us)
                    ),
                )
                .gain(
                    format!("with connections that stay open, {} less for each command", time_us(us)),
                    format!(
                        "{each:.3} connections a command x {ROUND_TRIPS:.0} round trips x {rtt_us:.0} us = {us:.0} us"
                    ),
                )
        }
        // Whose distance was not seen.
        _ => finding
            .risk("the first command on a closed connection fails, or is sent again after connecting")
            .severity(Severity::Low),
    };
    finding
        .likely(
            "the setting, the connections and their idle times were seen; that these are the ones that were closed is \
             inferred from how long connections live",
        )
        .saw(node, "CONFIG GET timeout", format!("{timeout:.0}"))
        .saw(
            node,
            "INFO stats",
            format!(
                "total_connections_received +{:.0} in {:.1} s at {} clients: each lives for {:.1} s on average",
                r.opened,
                node.window_s,
                count(r.clients),
                r.lives_s
            ),
        )
        .saw(node, "CLIENT LIST", format!("idle for {:.0} s at most", r.idle_s))
        .not("short-lived clients: connections live for as long as timeout lets them")
        .fix_at(
            &node.address,
            "Keep idle connections open; tcp-keepalive finds the dead ones",
            &["CONFIG SET timeout 0"],
            "connections that clients forget stay open: watch connected_clients",
            &format!("CONFIG SET timeout {timeout:.0}"),
        )
        .fix(
            "Or let the pools close idle connections before the server does",
            &[
                "Jedis: setMinEvictableIdleDuration below timeout, setTimeBetweenEvictionRuns, setTestWhileIdle(true)",
                "redis-py: health_check_interval below timeout",
                "go-redis: redis.Options{ConnMaxIdleTime: less than timeout}",
                "Lettuce: autoReconnect is on; pools: setMinEvictableIdleDuration below timeout",
            ],
            "",
            "",
        )
}

#[cfg(test)]
mod tests {
    use unslow_facts::{ClientGroup, Clients, PeerSockets, Rtt, Seen};

    use super::super::made::{answer, node_at, replicated, said};
    use super::*;
    use crate::Currency;

    /// Ten seconds at 300 clients under this timeout, with that many new connections and commands, and rows that are
    /// idle for so long.
    fn facts(timeout: &str, opened: u64, commands: u64, idle_s: u64) -> Facts {
        let before = "redis_version:7.2.4\r\nrole:master\r\nconnected_clients:300\r\ntotal_connections_received:0\r\n\
                      total_commands_processed:0\r\ntotal_reads_processed:0\r\n";
        let after = format!("total_connections_received:{opened}\r\ntotal_commands_processed:{commands}\r\n");
        let mut node = node_at("10.0.0.1:6379", before, &after);
        let value = [("timeout".to_string(), timeout.to_string())].into();
        node.config = Seen::yes(value, "CONFIG GET", 0);
        let group = ClientGroup { count: 300, idle_s_max: Some(idle_s), ..ClientGroup::default() };
        let value = Clients { total: 300, listed: 300, groups: vec![group], ..Clients::default() };
        node.clients = Seen::yes(value, "CLIENT LIST", 0);
        let rtt = Rtt { count: 100, us_min: 190, us_p50: 200, us_p99: 300, us_max: 300 };
        node.rtt = Seen::yes(rtt, "PING", 0);
        let peer = PeerSockets { sockets: 300, min_rtt_us: 200, min_rtt_us_p50: 200, ..PeerSockets::default() };
        node.sockets = Seen::yes(vec![peer], "ss", 0);
        replicated(vec![node])
    }

    #[test]
    fn connections_that_live_as_long_as_the_timeout_are_reaped() {
        // 300 clients, 10 new ones a second: each lives for 30 s.
        let found = said(check(&facts("20", 100, 200, 21)));
        assert_eq!(found.impact.currency, Currency::Latency);
        assert!((found.impact.value - 0.2).abs() < 1e-9, "{}", found.impact.value);
        assert!(found.title.contains("idle for 20 s"), "{}", found.title);
        assert!(
            found.remedies[0].exact && found.remedies[0].rollback.ends_with("CONFIG SET timeout 20"),
            "{:?}",
            found.remedies
        );
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            ("churn", facts("20", 3000, 6000, 21)),
            ("a busy pool that is renewed", facts("20", 100, 200, 2)),
            ("connections that work before they go", facts("20", 100, 90_000, 21)),
            ("a timeout that closes few", facts("20", 10, 200, 21)),
            ("rows that are idle for longer", facts("20", 100, 200, 900)),
            ("jobs that live much longer", facts("2", 100, 200, 2)),
        ] {
            assert_eq!(answer(&check(&facts)), "absent", "{what}");
        }
        assert_eq!(answer(&check(&facts("0", 100, 200, 21))), "not here");
    }

    #[test]
    fn without_settings_or_rows_nothing_is_claimed() {
        let mut denied = facts("20", 100, 200, 21);
        denied.nodes[0].clients = Seen::default();
        assert_eq!(answer(&check(&denied)), "unknown");
        let mut denied = facts("20", 100, 200, 21);
        denied.nodes[0].config = Seen::default();
        assert_eq!(answer(&check(&denied)), "unknown");
        assert_eq!(answer(&check(&Facts::of_nothing("redis://10.0.0.1:6379"))), "unknown");
    }
}
