//! Connections are opened for a handful of commands and thrown away.
//!
//! A new connection costs the server accept, registration, often AUTH, HELLO, SELECT and CLIENT SETINFO, and close;
//! with TLS it also costs a handshake. One command per connection cost 20 us of CPU instead of 2.6 us on a fast machine
//! (loopback, no TLS), 60 to 200 us with AUTH and SELECT on a slow one, and 0.3 to 2 ms with TLS.
//!
//! Seen when: new connections take over 1 % of a core and a tenth of what the main thread uses, or over 20 a second
//! bring fewer than 10 commands each.
//!
//! What it costs is measured: the CPU that the main thread used outside commands, minus bytes, expiry and
//! defragmentation, is divided between reads and connections in the ratio of their prices on a known machine; the time
//! inside AUTH, HELLO, SELECT and CLIENT is added. With TLS, everything that reads do not explain is attributed to the
//! handshakes. Where the two cannot be told apart, a connection is priced at 17.5 us, which is the least we have
//! measured.
//!
//! Not to be taken for: clients that are refused and retry (`too_many_connections`); topology refreshes over new
//! connections (then that is the finding); clients that all reconnect at the same moment and then stay
//! (`reconnect_stampede`). There is no separate rule for TLS: its handshakes are part of the price of a new connection
//! here, and the remedies for them are listed here too.
//!
//! How to confirm: run `INFO stats` twice (total_connections_received); `CLIENT LIST`: connections with a small `age`.
//!
//! What to do: a pool, or one long-lived connection; PHP: pconnect. With TLS, for clients that cannot: session
//! resumption, an ECDSA certificate.
//! Sources: INFO total_connections_received, used_cpu_*, commandstats; CONFIG GET tls-port; CLIENT LIST ages.

use unslow_facts::ClientGroup;

use super::prelude::*;

pub const TITLE: &str = "Connection churn";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Of a core, and of what the main thread uses: from here on it is worth a finding.
const SHARE: f64 = 0.01;
const PART: f64 = 0.1;
/// Connections a second, and commands on each.
const MANY: f64 = 20.0;
const FEW_COMMANDS: f64 = 10.0;

/// Where a new connection's price comes from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Price {
    /// CPU outside commands in this window, and time inside the greeting's commands.
    Measured,
    /// The least that was ever measured, elsewhere.
    Least,
}

/// New connections of one server.
pub(super) struct Churn {
    /// A second.
    pub rate: f64,
    /// Commands on each, the greeting included.
    pub commands_each: f64,
    /// Of a core.
    pub share: f64,
    /// Of that, inside AUTH, HELLO, SELECT and CLIENT.
    pub greeting: f64,
    pub price: Price,
    pub tls: bool,
}

impl Churn {
    /// `None` where connections are not counted.
    pub fn of(facts: &Facts, node: &Node) -> Option<Churn> {
        // More than this is not the connection's: the slowest machines we know took 0.2 ms, and 3 ms with TLS.
        const MOST_US: f64 = 300.0;
        const MOST_TLS_US: f64 = 10_000.0;
        // Below it, a share of the CPU says nothing of single connections.
        const MEASURABLE: f64 = 10.0;
        // A replica that cannot copy connects again and again: that is told by its link.
        let connections = (node.delta("total_connections_received")? - copies_asked(node)).max(0.0);
        let rate = connections / node.window_s.max(0.001);
        let tls = is_tls(facts, node);
        let greeting = if rate > 0.0 { spent(node, GREETING).share } else { 0.0 };
        let least = rate * CONNECTION_US / 1e6 + greeting;
        let most = rate * if tls || has_tls(node) { MOST_TLS_US } else { MOST_US } / 1e6;
        let outside = if tls || has_tls(node) { with_handshakes(node, tls) } else { apportioned(node, rate) };
        let measured = outside.filter(|_| rate >= MEASURABLE).map(|share| share.clamp(0.0, most) + greeting);
        let (share, price) = match measured {
            Some(measured) if measured >= least => (measured, Price::Measured),
            _ => (least, Price::Least),
        };
        let cpu = node.cpu().map_or(f64::INFINITY, |(u, s)| u + s);
        Some(Churn {
            rate,
            commands_each: node.processed().unwrap_or(0.0) / connections.max(1.0),
            share: share.min(cpu),
            greeting,
            price,
            tls,
        })
    }

    /// Microseconds of CPU.
    fn each_us(&self) -> f64 {
        if self.rate > 0.0 { self.share / self.rate * 1e6 } else { 0.0 }
    }
}

/// How often replicas asked for a copy or for what they missed, refused or not; each time on a new connection.
fn copies_asked(node: &Node) -> f64 {
    let (Some(first), Some(last)) = (&node.first, &node.last) else { return 0.0 };
    let asked = |info: &unslow_topology::Info| {
        info.command_stat("psync").map_or(0.0, |stat| stat.calls as f64 + stat.rejected as f64)
    };
    (asked(&last.info) - asked(&first.info)).max(0.0)
}

/// Commands that a connection begins with, as commandstats names them. Before 7.0 `client` holds CLIENT LIST too and is
/// left out.
const GREETING: &[&str] =
    &["auth", "hello", "select", "client|setname", "client|setinfo", "client|id", "client|tracking", "client|no-evict"];

/// Whether clients may speak TLS: what a connection can cost at most follows from it.
fn has_tls(node: &Node) -> bool {
    node.setting_number("tls-port").is_some_and(|p| p > 0.0)
}

/// Whether clients speak TLS for certain: there is no other port, or the URL that was asked says so.
fn is_tls(facts: &Facts, node: &Node) -> bool {
    let only = has_tls(node) && node.setting_number("port").is_none_or(|p| p == 0.0);
    only || facts.url.starts_with("rediss") || facts.url.starts_with("valkeys")
}

/// Share of a core: the connections' part of the CPU outside commands, as their price is to that of a read elsewhere.
/// `None` before 6.0, where reads are not counted.
fn apportioned(node: &Node, rate: f64) -> Option<f64> {
    node.cpu()?;
    node.rate("total_reads_processed")?;
    Some(scale(node) * (rate * CONNECTION_US + greetings(node) / node.window_s * call_us(node)) / 1e6)
}

/// Greetings in the window that needed a read by themselves, one a connection at most: libraries send theirs in one
/// write.
fn greetings(node: &Node) -> f64 {
    (spent(node, GREETING).calls as f64).min(node.delta("total_connections_received").unwrap_or(0.0))
}

/// The same where a handshake may cost more than all else: the CPU outside commands that reads, replies, expiry and
/// defragmentation do not explain.
fn with_handshakes(node: &Node, tls: bool) -> Option<f64> {
    // What each takes at most, a turn on average; the connections get what is left.
    let (read_us, byte_us) = if tls { (6.0, 1e-3) } else { (3.0, 3e-4) };
    const COMMAND_US: f64 = 0.3;
    let (user, sys) = node.cpu()?;
    let all_reads = node.rate("total_reads_processed")?;
    let reads = reads_of_others(node) / node.window_s;
    let commands = node.rate("total_commands_processed")?;
    let bytes = node.rate("total_net_output_bytes").unwrap_or(0.0) + node.rate("total_net_input_bytes").unwrap_or(0.0);
    // On a busy server several reads share a turn.
    let events = all_reads + node.rate("total_connections_received").unwrap_or(0.0);
    let turns = reads * TURN_US * turns(node) / node.window_s / events.max(1.0);
    let traffic = (reads * read_us + commands * COMMAND_US + bytes * byte_us + turns) / 1e6;
    let expiry = node.rate("expire_cycle_cpu_milliseconds").map_or(0.0, |ms| ms / 1000.0);
    let defrag = node.number("active_defrag_running").unwrap_or(0.0) / 100.0;
    let forks = node.rate("total_forks").unwrap_or(0.0) * node.number("latest_fork_usec").unwrap_or(0.0) / 1e6;
    Some(user + sys - node.inside_share()? - traffic - expiry - defrag - forks - IDLE_SHARE)
}

/// Reads in the window that connections which stay would need as well: without those that find a connection closed, and
/// without the greetings, which libraries send in one write.
fn reads_of_others(node: &Node) -> f64 {
    let grown = |field| node.delta(field).unwrap_or(0.0);
    (grown("total_reads_processed") - grown("total_connections_received") - greetings(node)).max(0.0)
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<(&Node, Churn)> = facts.live().filter_map(|node| Some((node, Churn::of(facts, node)?))).collect();
    let rows = by_worst(all.iter().filter(|(node, churn)| is_churn(node, churn)).collect(), |(_, churn)| churn.share);
    let Some((node, churn)) = rows.first() else {
        let most = all.iter().map(|(_, churn)| churn.rate).reduce(f64::max);
        let text = most.map(|m| format!("connection churn: at most {} new connections a second", count(m)));
        return Verdict::absent(facts, "connection churn", text);
    };
    let (rate, share, each) = (churn.rate, percent(churn.share), time_us(churn.each_us()));
    let commands = count(churn.commands_each);
    let before = match churn.commands_each >= 1.0 {
        true => format!(", and at least a round trip before every {commands} commands"),
        false => String::new(),
    };
    let with = if churn.tls { " with its TLS handshake" } else { "" };
    let finding =
        Finding::new(format!("{} new connections a second on {}, {commands} commands each", count(rate), node.address))
            .on(rows.iter().map(|r| r.0.address.as_str()))
            .core(churn.share, format!("{share} of a core on {}: {each} a connection{with}{before}", node.address))
            .gain(
                format!("with persistent connections, {share} of a core is free again"),
                format!("{rate:.0} connections/s x {:.1} us = {:.3} of a core", churn.each_us(), churn.share),
            );
    let finding = match churn.price {
        Price::Measured => finding.proven(
            "the server counted connections, reads, CPU and time in commands; its CPU outside commands is divided \
             between reads and connections in the ratio of their prices elsewhere",
        ),
        Price::Least => finding.likely(
            "the server counted connections and commands; the price of a connection is the least measured elsewhere \
             (loopback, no TLS)",
        ),
    };
    let text = "Keep connections open: a pool of the size the load needs, or one shared connection";
    let finding =
        evidence(finding, node, churn).fix(text, &pools(node), "a pool holds connections even while idle", "");
    if churn.tls { cheaper_handshakes(finding, node).into() } else { finding.into() }
}

/// For clients that cannot keep connections.
fn cheaper_handshakes(finding: Finding, node: &Node) -> Finding {
    finding.fix(
        "Until then, make handshakes cheaper: resume sessions, and use a key that signs faster than RSA",
        &[
            &cli(&node.address, "CONFIG GET tls-session-caching"),
            "openssl x509 -in CERTIFICATE -noout -text | grep 'Public Key Algorithm'   (id-ecPublicKey is ECDSA)",
        ],
        "clients must keep their sessions to resume them; a new certificate must be trusted by all of them",
        "",
    )
}

fn is_churn(node: &Node, churn: &Churn) -> bool {
    let cpu = node.cpu().map_or(0.0, |(u, s)| u + s);
    let expensive = churn.share > SHARE && churn.share >= PART * cpu;
    let short = churn.rate > MANY && churn.commands_each < FEW_COMMANDS;
    (expensive || short) && !super::reconnect_stampede::speaks(node)
}

fn evidence(finding: Finding, node: &Node, churn: &Churn) -> Finding {
    let delta = |field: &str| node.delta(field).unwrap_or(0.0);
    let mut finding = finding.saw(
        node,
        "INFO stats",
        format!(
            "total_connections_received +{:.0}, total_commands_processed +{:.0} in {:.1} s",
            delta("total_connections_received"),
            delta("total_commands_processed"),
            node.window_s
        ),
    );
    if let (Price::Measured, Some((user, sys)), Some(inside)) = (churn.price, node.cpu(), node.inside_share()) {
        let (cpu, inside) = (percent(user + sys), percent(inside.min(user + sys)));
        finding = finding.saw(node, "INFO cpu", format!("main thread {cpu} of a core, {inside} of it inside commands"));
    }
    if churn.greeting > 0.0 {
        let inside = format!("{} of a core inside AUTH, HELLO, SELECT and CLIENT", percent(churn.greeting));
        finding = finding.saw(node, "INFO commandstats", inside);
    }
    for group in young(node).take(2) {
        let who = format!("{} {}{}", group.host, group.name, group.library);
        let told = format!("{} of {} connections from {who} are younger than 2 s", group.young, group.count);
        finding = finding.saw(node, "CLIENT LIST", told);
    }
    match node.rate("rejected_connections") {
        Some(refused) => finding.not(format!("refused connections: {}/s", count(refused))),
        None => finding,
    }
}

fn young(node: &Node) -> impl Iterator<Item = &ClientGroup> {
    node.clients.value().into_iter().flat_map(|c| &c.groups).filter(|g| g.young > 0)
}

/// How the libraries keep connections that are seen to open them; all that we know where none is seen.
fn pools(node: &Node) -> Vec<&'static str> {
    let seen = |library: &str| young(node).any(|g| g.library.to_lowercase().contains(library));
    let known: Vec<&str> = POOLS.iter().filter(|(library, _)| seen(library)).map(|p| p.1).collect();
    if known.is_empty() { POOLS.iter().map(|p| p.1).collect() } else { known }
}

/// By the name a library gives itself (CLIENT LIST, 7.2+).
const POOLS: &[(&str, &str)] = &[
    ("jedis", "Jedis: new JedisPool(config) kept for the life of the process"),
    ("redis-py", "redis-py: one redis.Redis() per process, not per request"),
    ("lettuce", "Lettuce: one RedisClient and one shared connection per process"),
    ("go-redis", "go-redis: one redis.NewClient() per process, not per request"),
    ("phpredis", "PHP: $redis->pconnect(...)"),
];
