//! Clients open connections, forget them and open more.
//!
//! Code that takes a connection and returns without giving it back, a client object per request that is never closed, a
//! pool that is recreated at each deployment: each leaves a connection open that will never be used again. Nothing is
//! slow until maxclients is reached.
//!
//! Seen when: the number of clients grew in the window by at least five and nearly every new connection stayed open;
//! most connections of the clients that open them have been idle for over an hour; and these are over 30 % of
//! maxclients. A pool with this many idle connections does not need new ones. It is a risk, reported with the time that
//! is left.
//!
//! Not to be taken for: an idle pool, however large (it does not grow); connections that are opened and closed
//! (`connection_churn`); an application that is starting or growing (its connections are young);
//! `too_many_connections`, which is where a leak ends; connections whose other end no longer exists (`dead_peers`).
//!
//! How to confirm: run `INFO clients` twice, some minutes apart: connected_clients grows at the same load;
//! `CLIENT LIST`: rows whose `idle` is nearly their `age`, by name and host.
//!
//! What to do: close idle connections (timeout) so that the server survives until the client is fixed; then make the
//! client return its connections.
//! Sources: INFO connected_clients, total_connections_received; CLIENT LIST idle; CONFIG GET timeout.

use unslow_facts::ClientGroup;

use super::prelude::*;

pub const TITLE: &str = "Connection leak";
pub const LEADS_TO: &[&str] = &["too_many_connections"];
pub const INJECTED: Injected = Injected::No(
    "it takes clients that have been idle for an hour; the rule is tested on recorded facts in which their idle time \
     is set by hand",
);

/// Clients by which the number must have grown.
const GROWN: f64 = 5.0;
/// Of the new connections, those that must have stayed.
const STAYED: f64 = 0.8;
/// Of a group's rows, those that must be idle for over an hour.
const FORGOTTEN: f64 = 0.5;
/// Of maxclients, forgotten.
const LARGE: f64 = 0.3;

/// One server whose clients forget connections.
struct Leak<'a> {
    node: &'a Node,
    /// In the window.
    grown: f64,
    opened: f64,
    /// Who forgets most.
    group: &'a ClientGroup,
    /// Connections that are forgotten, as far as the rows that were seen stand for all.
    forgotten: f64,
    used: f64,
    max: f64,
}

impl Leak<'_> {
    fn of(node: &Node) -> Option<Leak<'_>> {
        let clients = node.clients.value()?;
        let (used, max) = (node.number("connected_clients")?, limit(node)?);
        // A restart in the window counts from nothing.
        let opened = node.delta("total_connections_received")?;
        let grown = node.delta("connected_clients")?;
        let leaking = |g: &&ClientGroup| g.young > 0 && g.idle_hour as f64 >= FORGOTTEN * g.count as f64;
        let group = clients.groups.iter().filter(leaking).max_by_key(|g| g.idle_hour)?;
        let forgotten = used * group.idle_hour as f64 / clients.listed.max(1) as f64;
        let grows = grown >= GROWN && grown >= STAYED * opened;
        (grows && forgotten > LARGE * max).then_some(Leak { node, grown, opened, group, forgotten, used, max })
    }

    /// Seconds until maxclients is reached.
    fn left_s(&self) -> f64 {
        (self.max - self.used).max(0.0) * self.node.window_s / self.grown.max(1.0)
    }
}

fn limit(node: &Node) -> Option<f64> {
    node.number("maxclients").or_else(|| node.setting_number("maxclients")).filter(|n| *n >= 1.0)
}

pub fn check(facts: &Facts) -> Verdict {
    let rows = by_worst(facts.live().filter_map(Leak::of).collect(), |l: &Leak<'_>| l.forgotten / l.max);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|l| l.node.address.as_str())).into();
    }
    if let Some(gap) = facts.live().find_map(|n| n.clients.missing()) {
        return Verdict::Unknown(gap.of("forgotten connections"));
    }
    let most =
        most(facts, |n| Some(n.number("connected_clients")? - n.first.as_ref()?.info.number("connected_clients")?));
    let idle: u64 = facts.live().filter_map(|n| n.clients.value()).flat_map(|c| &c.groups).map(|g| g.idle_hour).sum();
    let text = most.map(|grown| {
        format!(
            "forgotten connections: at most {} more clients than when the window began; {idle} of those seen have been \
             idle for over an hour",
            count(grown)
        )
    });
    Verdict::absent(facts, "forgotten connections", text)
}

fn found(worst: &Leak<'_>) -> Finding {
    let (node, group) = (worst.node, worst.group);
    let who: Vec<&str> =
        [group.name.as_str(), group.library.as_str()].into_iter().filter(|word| !word.is_empty()).collect();
    let who = if who.is_empty() { group.host.clone() } else { format!("{} ({})", group.host, who.join(", ")) };
    let left = time_rough_s(worst.left_s());
    let finding = Finding::new(format!(
        "Clients of {} forget connections: {} more in {:.0} s, and about {} have been idle for over an hour",
        node.address,
        count(worst.grown),
        node.window_s,
        count(worst.forgotten)
    ))
    .risk(format!(
        "at this pace maxclients ({}) is reached in {left}, and then new connections are refused",
        count(worst.max)
    ))
    .gain(
        format!("{} unused connections are freed", count(worst.forgotten)),
        format!(
            "({:.0} - {:.0}) places left x {:.1} s / {:.0} new connections = {left}",
            worst.max, worst.used, node.window_s, worst.grown
        ),
    )
    .likely(
        "the server counted the growth and the idle times; that these connections will not be used again is inferred \
         from an hour without a command",
    )
    .saw(
        node,
        "INFO stats",
        format!(
            "total_connections_received +{:.0}, connected_clients +{:.0} to \
                 {:.0}",
            worst.opened, worst.grown, worst.used
        ),
    )
    .saw(
        node,
        "CLIENT LIST",
        format!(
            "{} of {} connections from {who} are idle for over an hour, {} are younger than 2 \
                 s",
            group.idle_hour, group.count, group.young
        ),
    )
    .not("connections that come and go: nearly all that were opened in the window are still open");
    const CLOSE: &str = "Close connections that have been idle for an hour, until the client is fixed";
    const SET: &str = "CONFIG SET timeout 3600";
    let risk = "clients must cope with closed idle connections; subscriptions and replicas are left alone";
    let finding = match node.setting("timeout") {
        Some(before) => finding.fix_at(&node.address, CLOSE, &[SET], risk, &format!("CONFIG SET timeout {before}")),
        // What it was is not known, so there is no way back that could be run as it stands.
        None => finding.fix(CLOSE, &[&cli(&node.address, "CONFIG GET timeout"), &cli(&node.address, SET)], risk, ""),
    };
    finding.fix(
        &format!("In the client at {}: return each connection, even after an error", group.host),
        &[
            "Jedis: try (Jedis jedis = pool.getResource()) { ... }, and setTestWhileIdle(true)",
            "redis-py: one redis.Redis() per process; with redis.Redis() as r: where it must be short-lived",
            "go-redis: one client per process, and ConnMaxIdleTime",
            "Lettuce: connection.close() and client.shutdown(), or one shared connection",
        ],
        "",
        "",
    )
}
