//! A stall on record is nearly as long as the failure detector waits: the next one is a failover.
//!
//! `cluster-node-timeout` and Sentinel's `down-after-milliseconds` cannot tell a stalled node from a dead one. What
//! counts is the longest stall seen: a fork, a slow command, a disk.
//!
//! Seen when: the longest stall on record is over half of the timeout. The record may be old: the last fork has no
//! timestamp, and the slow log and the latency monitor keep entries from weeks ago.
//!
//! Not to be taken for: a timeout that is merely short. Without a stall, that is not a finding.
//!
//! What to do: remove the stall; until then, set the timeout to twice its length, but to a minute at most: a dead
//! master goes unnoticed for that long.
//! Sources: CONFIG GET cluster-node-timeout; SENTINEL MASTERS; latest_fork_usec, LATENCY LATEST, SLOWLOG.

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Node timeout margin";
pub const LEADS_TO: &[&str] = &["failover_flapping", "error_flood"];
pub const INJECTED: Injected = Injected::Yes;

/// The longest timeout that is worth its price: a dead master goes unnoticed for that long.
const LONGEST_MS: f64 = 60_000.0;

/// A stall of the main thread that left a trace.
struct Stall {
    us: f64,
    what: String,
    /// The command that shows it.
    source: &'static str,
    /// Unix time in ms, by the server's clock; none where it is not recorded.
    at_ms: Option<u64>,
}

pub fn check(facts: &Facts) -> Verdict {
    if !matches!(facts.kind, DeploymentKind::Cluster | DeploymentKind::Sentinel) || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let mut known = 0;
    let mut longest: f64 = 0.0;
    let mut rows = Vec::new();
    for node in facts.live() {
        let Some((timeout_ms, setting)) = failure_timeout_ms(facts, node) else { continue };
        known += 1;
        let Some(stall) = worst(node) else { continue };
        longest = longest.max(stall.us);
        if stall.us / 1000.0 > 0.5 * timeout_ms {
            rows.push((node, stall, timeout_ms, setting));
        }
    }
    // What is lost with a master outranks a copy.
    let mut rows = by_worst(rows, |r| r.1.us / r.2);
    rows.sort_by_key(|r| !r.0.is_master());
    let Some((node, stall, timeout_ms, setting)) = rows.first() else {
        return none(facts, known, longest);
    };
    let over = stall.us / 1000.0 >= *timeout_ms;
    let finding = Finding::new(format!(
        "{} has stalled for {}{}, {} {setting}: {}",
        node.address,
        time_us(stall.us),
        stall.at_ms.map_or(" since its counters began".into(), |at| format!(" ({})", ago(node.at_ms(), at))),
        if over { "longer than" } else { "over half of" },
        if over { "it is considered dead" } else { "a little longer and it is considered dead" }
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .risk(if node.is_master() {
        format!("a failover each time: about {:.1} s without that master", timeout_ms / 1000.0 + 1.5)
    } else {
        "its master has one fewer replica for that time; clients that read from it are sent elsewhere, or wait".into()
    })
    .gain(
        format!("a timeout of twice the stall: {:.0} ms", wanted(stall)),
        format!("2 x {:.0} ms, {:.0} at most", stall.us / 1000.0, LONGEST_MS),
    )
    .proven("stall and timeout were both read from the server")
    .saw_then(node, stall.source, stall.what.clone(), stall.at_ms.unwrap_or(node.at_ms()));
    remedy(dated(finding, node, stall), facts, node, stall, *timeout_ms, setting).into()
}

/// Whether a master stalled for so long in the window that the failure detector took it for dead.
pub(super) fn outlasted(facts: &Facts, node: &Node) -> bool {
    let was_master = node.first.as_ref().and_then(|s| s.info.role()) == Some("master");
    let over = |stall: &Stall| {
        failure_timeout_ms(facts, node).is_some_and(|(ms, _)| stall.us / 1000.0 >= ms) && in_window(node, stall)
    };
    was_master && worst(node).as_ref().is_some_and(over)
}

fn none(facts: &Facts, known: usize, longest: f64) -> Verdict {
    if known == 0 {
        let gap = facts.live().find_map(|n| n.config.refused()).cloned();
        let sentinel = || {
            Gap::new(
                Lack::Rights,
                "no Sentinel said how long it waits",
                "reach one Sentinel, as a user that may call SENTINEL MASTERS",
            )
        };
        return Verdict::Unknown(match (facts.live().next(), facts.kind) {
            (None, _) => unseen_info(facts, "the failure detector's margin"),
            (_, DeploymentKind::Sentinel) => sentinel().of("the failure detector's timeout"),
            _ => gap
                .unwrap_or_else(|| Gap::new(Lack::Other, "cluster-node-timeout was not shown", ""))
                .of("the failure detector's timeout"),
        });
    }
    let text = if longest > 0.0 {
        format!("the longest stall on record is {}", time_us(longest))
    } else {
        "no stall on record".into()
    };
    Verdict::Absent(format!("timeout margin: {text}, on {known} of {} nodes", facts.nodes.len()))
}

/// The longest stall on record.
fn worst(node: &Node) -> Option<Stall> {
    let forked = node.delta("total_forks").is_some_and(|n| n > 0.0);
    let fork = node.number("latest_fork_usec").filter(|us| *us > 0.0).map(|us| Stall {
        us,
        what: format!("the last fork took {} (latest_fork_usec:{us:.0})", time_us(us)),
        source: "INFO stats",
        at_ms: forked.then_some(node.at_ms()),
    });
    let events = node.latency.value().into_iter().flatten().map(|event| {
        let longest = event.history.iter().filter(|(_, ms)| *ms == event.max_ms).map(|(at_s, _)| at_s * 1000).max();
        let at_ms = longest.or((event.last_ms == event.max_ms).then_some(event.last_at_s * 1000));
        Stall {
            us: event.max_ms as f64 * 1000.0,
            what: format!("latency event {}, max {} ms", event.name, event.max_ms),
            source: "LATENCY LATEST",
            at_ms,
        }
    });
    let entries = node.slowlog.value().into_iter().flatten().map(|entry| Stall {
        us: entry.us as f64,
        what: format!("{} in the slow log, {} us", entry.command, entry.us),
        source: "SLOWLOG GET",
        at_ms: Some(entry.at_s * 1000),
    });
    fork.into_iter().chain(events).chain(entries).reduce(|a, b| if b.us > a.us { b } else { a })
}

/// Whether it was in the window.
fn in_window(node: &Node, stall: &Stall) -> bool {
    let clock = |s: &unslow_facts::Sample| s.info.number("server_time_usec").map_or(s.at_ms, |us| (us / 1000.0) as u64);
    let begun_ms = node.first.as_ref().map_or(0, clock);
    // Records have whole seconds.
    stall.at_ms.is_some_and(|at_ms| at_ms + 999 >= begun_ms)
}

/// In the window it is of now; at a known time before, of then; else of some time since the start.
fn dated(finding: Finding, node: &Node, stall: &Stall) -> Finding {
    match stall.at_ms {
        Some(at_ms) if in_window(node, stall) => finding.since(at_ms),
        Some(at_ms) => finding.past(at_ms),
        None => match started_ms(node) {
            Some(at_ms) => finding.since_start(at_ms),
            None => finding,
        },
    }
}

fn wanted(stall: &Stall) -> f64 {
    (stall.us / 1000.0 * 2.0).ceil().min(LONGEST_MS)
}

fn remedy(finding: Finding, facts: &Facts, node: &Node, stall: &Stall, timeout_ms: f64, setting: &str) -> Finding {
    let to = wanted(stall);
    let lines = |ms: f64| -> Vec<String> {
        if facts.kind == DeploymentKind::Cluster {
            return facts
                .live()
                .map(|n| cli(&n.address, &format!("CONFIG SET cluster-node-timeout {ms:.0}")))
                .collect();
        }
        let own =
            |g: &unslow_facts::SentinelGroup| g.master == node.address || node.master.as_deref() == Some(&g.master);
        let groups = facts
            .sentinels
            .iter()
            .filter(|s| s.unreachable.is_none())
            .flat_map(|s| s.groups.iter().map(move |g| (s, g)));
        let of_node = groups.filter(|(_, g)| own(g));
        of_node
            .map(|(s, g)| cli(&s.address, &format!("SENTINEL SET {} down-after-milliseconds {ms:.0}", g.service)))
            .collect()
    };
    let (set, undo) = (lines(to), lines(timeout_ms));
    let source = match facts.kind {
        DeploymentKind::Cluster => cli(&node.address, "CONFIG GET cluster-node-timeout"),
        _ => facts
            .sentinels
            .iter()
            .find(|s| s.unreachable.is_none())
            .map_or("SENTINEL MASTERS".into(), |s| cli(&s.address, "SENTINEL MASTERS")),
    };
    let finding = finding.saw_at(source, setting, node.at_ms());
    // Not shorter than it is, and no line that changes nothing.
    if to <= timeout_ms {
        return finding.fix(
            "Remove the stall: a timeout of over a minute would leave a dead master unnoticed for that long",
            &[&cli(&node.address, stall.source)],
            "",
            "",
        );
    }
    if set.is_empty() {
        return finding;
    }
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let everywhere = if facts.kind == DeploymentKind::Cluster && facts.nodes.iter().any(|n| !peers::answers(n)) {
        "a dead master is noticed later; the nodes that do not answer now need the setting too"
    } else {
        "a dead master is noticed later"
    };
    let enough = stall.us / 1000.0 < to;
    let text = if enough {
        "Until the stall is removed: make the failure detector wait longer than the stall lasts"
    } else {
        "Remove the stall: even a minute, the longest timeout worth setting, is shorter than the stall"
    };
    let finding = finding.fix(text, &set, everywhere, &undo.join("; "));
    // What may never come again is no script's; nor are Sentinels, some of which may only have been heard of.
    let now = in_window(node, stall) && stall.us / 1000.0 * 2.0 <= LONGEST_MS;
    if now && facts.kind == DeploymentKind::Cluster { finding.exact() } else { finding }
}
