//! Monitoring costs more than it is worth.
//!
//! INFO, CLIENT LIST, SLOWLOG and health-check PINGs from every pod and every exporter add up. CLIENT LIST takes 12 ms
//! at 4,000 connections on every version measured; the cost of INFO before 6.0 grows with the number of clients. Many
//! clients send COMMAND on each new connection.
//!
//! Seen when: these commands take over 1 % of a core on a node at more than 5 calls a second (waking up, reading and
//! answering included), or 10 % of a core at any rate inside commands, or when one of them takes over 10 ms a call and
//! was called five times or took 1 % of a core.
//!
//! Not to be taken for: topology refreshes, with which Lettuce sends INFO as well (then the refresh is the finding);
//! a machine that makes the server wait for a processor, which its clock counts as time inside a command
//! (`noisy_neighbour`): then each call counts for at most what the median call took; a server that stood still inside a
//! command (`node_hangs`): all of them together count for no more than the CPU time that
//! other commands leave of what it used.
//!
//! What to do: it depends on the command. Use one exporter per node, every 15 to 30 s; no test-on-borrow PING in
//! connection pools; persistent connections, if COMMAND is sent on each new one.
//! Sources: redis #5145, #4727; commandstats, CLIENT LIST.

use super::prelude::*;

pub const TITLE: &str = "Monitoring storm";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// What looks at a server, as commandstats names it. Before 7.0 CLIENT and its sub-commands are one.
pub const COMMANDS: &[&str] = &[
    "info",
    "client|list",
    "=client",
    "slowlog",
    "commandlog",
    "latency",
    "memory",
    "config",
    "role",
    "ping",
    "dbsize",
    "command",
    "lolwut",
];

/// One command that is asked, and its cost.
struct Part {
    /// As a person writes it.
    command: String,
    /// As [`held`] is asked for it.
    name: String,
    held: Held,
}

pub fn check(facts: &Facts) -> Verdict {
    let asked = |node| (node, held_on_cpu(facts, node, COMMANDS));
    let all: Vec<(&Node, Held)> = by_worst(facts.live().map(asked).collect(), |(_, h)| h.share());
    let text = absent_text(&all);
    let rows: Vec<(&Node, Held)> = all.into_iter().filter(|(n, h)| is_storm(facts, n, h)).collect();
    match rows.first() {
        None => absent_by_commandstats(facts, "monitoring commands", text),
        Some((node, all)) => found(facts, &rows, node, all).into(),
    }
}

/// How sure the share of these calls is: measured, or with an estimate in it.
pub(super) fn sure(finding: Finding, held: &Held) -> Finding {
    match held.is_estimated() {
        true => finding.likely(
            "the server's own clock for these calls, without what it is estimated to have waited or stood still",
        ),
        false => finding.proven(held.clocks()),
    }
}

fn rate(node: &Node, held: &Held) -> f64 {
    held.calls / node.window_s.max(0.001)
}

fn is_storm(facts: &Facts, node: &Node, all: &Held) -> bool {
    let stalls = |p: &Part| p.held.mean_us() > 10_000.0 && (p.held.calls >= 5.0 || p.held.share() > 0.01);
    let takes = (whole_share(node, all) > 0.01 && rate(node, all) > 5.0) || all.share() > 0.1;
    takes || parts(facts, node).iter().any(stalls)
}

/// Of a core: the commands, and waking up, reading and answering for each. Beyond [`SCALE_MOST`], something else takes
/// the CPU outside commands.
fn whole_share(node: &Node, held: &Held) -> f64 {
    held.share() + questions(node, held) / node.window_s.max(0.001) * around_us(node) / 1e6
}

/// Calls that are looks at the server for certain: pools send PING (`chatter`), and new connections send CLIENT.
fn questions(node: &Node, all: &Held) -> f64 {
    (all.calls - greetings(node) - held(node, &["ping"]).calls).max(0.0)
}

/// Before 7.0 CLIENT SETINFO and SETNAME are counted with CLIENT LIST: those of new connections ask nothing.
fn greetings(node: &Node) -> f64 {
    const EACH: f64 = 3.0;
    let client = held(node, &["=client"]).calls;
    client.min(EACH * node.delta("total_connections_received").unwrap_or(0.0))
}

const SCALE_MOST: f64 = 4.0;

fn around_us(node: &Node) -> f64 {
    scale(node).min(SCALE_MOST) * call_us(node) / node.depth().unwrap_or(1.0).max(1.0)
}

/// Both figures that were judged: a share alone would read like a finding.
fn absent_text(all: &[(&Node, Held)]) -> String {
    match all.first().filter(|(_, h)| h.calls > 0.0) {
        None => "monitoring commands: none in the window apart from the doctor's own".into(),
        Some((node, most)) => format!(
            "monitoring commands: {} of a core at most, at {} calls a second of {} each",
            percent(whole_share(node, most)),
            count(rate(node, most)),
            time_us(most.mean_us())
        ),
    }
}

/// By command, the most expensive first.
fn parts(facts: &Facts, node: &Node) -> Vec<Part> {
    let commands = node.foreign_commands();
    let asked = commands.keys().filter(|name| is_one_of(COMMANDS, name));
    let part = |name: &String| Part {
        command: name.to_uppercase().replace('|', " "),
        name: format!("={name}"),
        held: held_on_cpu(facts, node, &[&format!("={name}")]),
    };
    by_worst(asked.map(part).collect(), |p| p.held.share())
}

fn found(facts: &Facts, rows: &[(&Node, Held)], node: &Node, all: &Held) -> Finding {
    let parts = parts(facts, node);
    let Some(worst) = parts.first() else { return Finding::new("Monitoring takes time") };
    let (asked, core) = (rate(node, &worst.held), whole_share(node, all));
    let finding = Finding::new(format!(
        "Monitoring takes {} of a core on {}: {} {} times a second, {} each",
        percent(core),
        node.address,
        worst.command,
        count(asked),
        time_us(worst.held.mean_us())
    ))
    .on(rows.iter().map(|(n, _)| n.address.as_str()));
    // Calls of many milliseconds hold others up; shorter ones take capacity.
    let finding = if worst.held.mean_us() > 10_000.0 {
        let (ms, wait) = worst.held.others_wait();
        finding.latency(ms, wait)
    } else {
        let asked = questions(node, all) / node.window_s.max(0.001);
        let each = format!("{} for each of {} requests a second", time_us(around_us(node)), count(asked));
        finding.core(
            core,
            format!("{} of a core on {}, including reading and answering: {each}", percent(core), node.address),
        )
    };
    let mut finding = sure(finding, all);
    finding = gain(finding, worst, asked);
    for part in parts.iter().take(3) {
        finding = finding.saw(
            node,
            "INFO commandstats",
            format!("{}: {} calls, {}", part.command, count(part.held.calls), held(node, &[&part.name]).figures()),
        );
    }
    let senders = node.clients.value().map_or(&[][..], |c| &c.groups);
    let asks = |command: &String| parts.iter().any(|p| p.command == command.to_uppercase().replace('|', " "));
    for group in senders.iter().filter(|g| g.commands.keys().any(asks)).take(2) {
        let who = format!("{} connections from {} {} {}", group.count, group.host, group.name, group.library);
        finding = finding.saw(node, "CLIENT LIST", who.trim_end().to_string());
    }
    // Whatever takes a good part of it gets its own advice.
    let mut done: Vec<&str> = Vec::new();
    for part in parts.iter().filter(|p| p.held.share() >= 0.2 * all.share()) {
        let word = part.command.split(' ').next().unwrap_or_default();
        if !done.contains(&word) {
            finding = mend(finding, facts, node, part);
            done.push(word);
        }
    }
    finding
}

fn gain(finding: Finding, worst: &Part, asked: f64) -> Finding {
    let (us, share) = (worst.held.mean_us(), worst.held.share());
    let now = format!("now {} {asked:.1}/s x {us:.0} us = {share:.4} cores", worst.command);
    match worst.command.as_str() {
        command if command.starts_with("COMMAND") => {
            finding.gain(format!("persistent connections free {} of a core", percent(share)), now)
        }
        "PING" => finding.gain(format!("dropping the checks frees {} of a core", percent(share)), now),
        _ => finding.gain(
            format!("one request every 15 s takes {} of a core", percent(us / 15e6)),
            format!("{us:.0} us / 15 s = {:.6} cores; {now}", us / 15e6),
        ),
    }
}

/// What to do about one command.
fn mend(finding: Finding, facts: &Facts, node: &Node, part: &Part) -> Finding {
    let coarser = "graphs get coarser";
    match part.command.as_str() {
        "INFO" => finding.fix(
            "Run one exporter per server at an interval of 15 to 30 s; do not use INFO as a health check",
            &[
                "Prometheus: scrape_interval: 30s",
                "Spring Boot: management.health.redis.enabled=false, where a PING is \
                enough",
            ],
            coarser,
            "",
        ),
        "CLIENT LIST" => finding.fix(
            "Keep CLIENT LIST out of anything that runs all the time: INFO clients has the totals",
            &["redis_exporter: --export-client-list=false", "INFO clients   instead of CLIENT LIST"],
            "per-client figures are missing from the graphs",
            "",
        ),
        command if command.starts_with("CLIENT") => finding.fix(
            "Find out which sub-command it is (before 7.0 they are counted together): CLIENT LIST does not belong in a \
             loop",
            &[&cli(&node.address, "CLIENT LIST"), "redis_exporter: --export-client-list=false"],
            "",
            "",
        ),
        command if command.starts_with("SLOWLOG") => finding.fix(
            "Ask for the newest entries only, and remember the last id",
            &["SLOWLOG GET 10   every 30 s"],
            "with more than ten slow commands in 30 s, some are missed",
            "",
        ),
        "MEMORY USAGE" => memory_usage(finding, facts, node),
        command if command.starts_with("MEMORY") => finding.fix(
            "Run MEMORY DOCTOR and MEMORY STATS by hand, when memory is the question; INFO memory has the figures for \
             graphs",
            &["INFO memory   every 30 s"],
            coarser,
            "",
        ),
        command if command.starts_with("COMMAND") => finding.fix(
            "Clients send COMMAND on each new connection or for each new client object: keep connections open, and use \
             one client per process",
            &[&keep_connections(node)],
            "",
            "",
        ),
        command if command.starts_with("CONFIG") => finding.fix(
            "Read settings once, not in a loop",
            &["redis_exporter: --config-command=-"],
            "settings are missing from the graphs",
            "",
        ),
        command if command.starts_with("LATENCY") => finding.fix(
            "Ask LATENCY LATEST every 30 s; name the commands that matter in LATENCY HISTOGRAM",
            &["LATENCY HISTOGRAM get set"],
            coarser,
            "",
        ),
        "PING" => finding.fix(
            "Do not check a pooled connection on each use: check idle ones in the background",
            &[
                "Jedis: poolConfig.setTestOnBorrow(false); poolConfig.setTestWhileIdle(true)",
                "redis-py: \
                health_check_interval=30",
            ],
            "a broken connection is noticed only at its first command",
            "",
        ),
        command => {
            finding.fix("Ask every 15 to 30 s, from one place", &[&format!("{command}   every 30 s")], coarser, "")
        }
    }
}

fn keep_connections(node: &Node) -> String {
    match node.rate("total_connections_received") {
        Some(rate) => format!("a connection pool, or one connection: now {} new connections a second", count(rate)),
        None => "a connection pool, or one connection".into(),
    }
}

fn memory_usage(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let replica = facts.live().find(|r| r.master.as_deref() == Some(node.address.as_str()));
    let sample = "MEMORY USAGE key SAMPLES 5   instead of SAMPLES 0".to_string();
    let elsewhere = replica.map(|r| cli(&r.address, "MEMORY USAGE key SAMPLES 5"));
    let commands: Vec<String> = [sample].into_iter().chain(elsewhere).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let text = if commands.len() > 1 {
        "Use few samples per key, and ask a replica"
    } else {
        "Use few samples per key, at a quiet hour"
    };
    finding.fix(text, &commands, "sizes are estimates", "")
}
