//! Connections are opened for a handful of commands and thrown away.
//!
//! A new connection costs the server accept, registration, often AUTH, HELLO and SETINFO, and close: a command on a
//! connection of its own cost 20 us of CPU in place of 2.6 us (measured, loopback, no TLS); with TLS a handshake adds
//! 0.3 to 2 ms.
//!
//! Seen when: new connections take over 1 % of a core (some 570 a second), or over 20 a second bring fewer than 10 commands
//! each.
//!
//! Not to be taken for: clients that are refused and try again (`too_many_connections`), or topology refreshes over new
//! connections (then that is the finding).
//!
//! What to do: a pool, or one long-lived connection; PHP: pconnect.
//! Sources: INFO total_connections_received; CLIENT LIST ages.

use super::prelude::*;

pub const TITLE: &str = "Connection churn";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Measured: 20.1 us for a connection with one command, 2.6 us for a command on a standing one.
const CONNECTION_US: f64 = 17.5;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let rate = node.rate("total_connections_received")?;
            let per = node.delta("total_commands_processed")? / node.delta("total_connections_received")?.max(1.0);
            (rate * CONNECTION_US / 1e6 > 0.01 || (rate > 20.0 && per < 10.0)).then_some((node, rate, per))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1);
    let Some((node, rate, per)) = rows.first() else {
        let most = most(facts, |n| n.rate("total_connections_received"));
        return Verdict::Absent(most.map(|m| format!("connection churn: {} new connections a second at most", count(m))));
    };
    let share = rate * CONNECTION_US / 1e6;
    let mut finding = Finding::new(format!("{} new connections a second on {}, {} commands each", count(*rate), node.address, count(*per)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .core(share, format!("about {} of a core on {}, and at least a round trip before every {} commands", percent(share), node.address, count(*per)))
        .gain(format!("standing connections: {} of a core back", percent(share)), format!("{rate:.0}/s x {CONNECTION_US} us = {share:.3} cores"))
        .proven("connections and commands were counted by the server; the price of one was measured on loopback without TLS")
        .saw(node, "INFO stats", format!("total_connections_received +{:.0}, total_commands_processed +{:.0} in {:.1} s", rate * node.window_s, rate * per * node.window_s, node.window_s));
    for group in node.clients.value().into_iter().flat_map(|c| &c.groups).filter(|g| g.young > 0).take(2) {
        finding = finding.saw(node, "CLIENT LIST", format!("{} of {} connections from {} {}{} are younger than 2 s", group.young, group.count, group.host, group.name, group.library));
    }
    finding
        .not(format!("refused connections: {}/s", count(node.rate("rejected_connections").unwrap_or(0.0))))
        .fix("Keep connections: a pool of the size the load needs, or one shared connection", &["Jedis: new JedisPool(config) kept for the life of the process", "redis-py: one redis.Redis() per process, not per request", "PHP: $redis->pconnect(...)"], "a pool holds connections while idle", "close after use again")
        .into()
}
