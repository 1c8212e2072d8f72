//! Clients are being held back on purpose: by CLIENT PAUSE, or by a requested failover that does not finish.
//!
//! `CLIENT PAUSE ms WRITE` (6.2+) holds back every write, script and PUBLISH until its time is up; reads are still
//! answered. A job that forgets CLIENT UNPAUSE, or asks for minutes, stops half of an application, and none of the
//! server's latency figures shows it: a command that is held back has not started. FAILOVER holds writes back in the
//! same way until the replica has received all of them.
//!
//! Seen when: paused_actions (Valkey 8.1+) is not `none`, or master_failover_state (6.2+) is not `no-failover`, and
//! clients are waiting. A failover, a slot migration and a shutdown pause clients for a moment, as they should: these
//! count only if they lasted the whole window, and a CLIENT PAUSE that began within it only if a second or more is
//! left. Servers without paused_actions: likely if clients are blocked, none of them in a blocking command, and no key
//! changed in the window. CLIENT PAUSE without WRITE holds back INFO and PING as well: the server then looks as if it
//! hung (`node_hangs`).
//!
//! Not to be taken for: clients that wait in BLPOP, XREAD or WAIT (blocked_clients counts those too); a script or a
//! fork that blocks the main thread: then reads and PINGs wait as well; writes that are refused (`error_flood`,
//! `saves_failing`).
//!
//! How to confirm: `INFO clients`: paused_reason, paused_actions, paused_timeout_milliseconds, blocked_clients;
//! `INFO replication`: master_failover_state; `CLIENT LIST`: flags=b on clients whose cmd is a plain write.
//!
//! What to do: find out what requested it; if nothing needs it any more, run CLIENT UNPAUSE or FAILOVER ABORT.
//! Sources: INFO clients (Valkey 8.1+), INFO replication (6.2+); CLIENT PAUSE and FAILOVER documentation.

use unslow_topology::Info;

use super::prelude::*;
use crate::Affected;

pub const TITLE: &str = "Clients are paused";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Commands that wait by themselves.
const BLOCKING: &[&str] = &[
    "blmove",
    "blmpop",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
    "wait",
    "waitaof",
    "xread",
    "xreadgroup",
];

/// Those that come with Redis 8: which commands are theirs is known.
const KNOWN_MODULES: &[&str] = &["ReJSON", "bf", "search", "searchlight", "timeseries", "vectorset"];

/// A pause that was seen at the end of the window alone counts with this much of it left.
const LASTS_MS: f64 = 1000.0;

/// How it is known.
enum How<'a> {
    /// What is held back, why, and for how many ms more.
    Said { action: &'a str, reason: &'a str, left_ms: Option<f64> },
    /// The state of a FAILOVER.
    Failover(&'a str),
    /// Clients are blocked, and nothing else explains it.
    Inferred,
}

/// When in the window it was seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Span {
    Throughout,
    AtTheEnd,
}

/// A server that holds its clients back.
struct Paused<'a> {
    node: &'a Node,
    how: How<'a>,
    span: Span,
    /// Clients that wait, of all there are.
    waiting: f64,
    clients: f64,
}

impl Paused<'_> {
    /// Share of the window's requests that wait, as far as the clients show it.
    fn share(&self) -> f64 {
        let of_time = if self.span == Span::Throughout { 1.0 } else { 0.5 };
        of_time * (self.waiting / self.clients.max(self.waiting).max(1.0))
    }
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.live().all(|n| n.number("blocked_clients").is_none()) {
        return Verdict::Unknown(unseen_info(facts, "pauses"));
    }
    let rows = by_worst(facts.live().filter_map(look).collect(), Paused::share);
    let Some(worst) = rows.first() else { return absent(facts) };
    found(worst).on(rows.iter().map(|p| p.node.address.as_str())).into()
}

fn look(node: &Node) -> Option<Paused<'_>> {
    let (first, last) = (&node.first.as_ref()?.info, &node.last.as_ref()?.info);
    let waiting = last.number("blocked_clients").unwrap_or(0.0);
    let clients = node.other_clients().unwrap_or(0.0);
    let paused = |how, span| Some(Paused { node, how, span, waiting, clients });
    if let Some((action, reason)) = said(last) {
        let span = if said(first).is_some() { Span::Throughout } else { Span::AtTheEnd };
        if reason != "client_pause" && span != Span::Throughout {
            return None;
        }
        let left_ms = last.number("paused_timeout_milliseconds").filter(|ms| *ms > 0.0);
        // A takeover or a backup may ask for a moment, as it should.
        if span == Span::AtTheEnd && left_ms.is_none_or(|ms| ms < LASTS_MS) {
            return None;
        }
        return paused(How::Said { action, reason, left_ms }, span);
    }
    match (failover(first), failover(last)) {
        (Some(_), Some(state)) => return paused(How::Failover(state), Span::Throughout),
        (None, Some(_)) => return None,
        _ => {}
    }
    let quiet =
        first.number("blocked_clients").unwrap_or(0.0) > 0.0 && node.delta("rdb_changes_since_last_save") == Some(0.0);
    if !(shows_no_pauses(node) && quiet && waiting > 0.0 && node.is_master() && unexplained(node)) {
        return None;
    }
    paused(How::Inferred, Span::Throughout)
}

fn said(info: &Info) -> Option<(&str, &str)> {
    let action = info.get("paused_actions").filter(|a| *a != "none")?;
    Some((action, info.get("paused_reason").unwrap_or("client_pause")))
}

fn failover(info: &Info) -> Option<&str> {
    info.get("master_failover_state").filter(|state| *state != "no-failover")
}

/// Whether its version can pause writes alone and does not say when it does.
fn shows_no_pauses(node: &Node) -> bool {
    node.level() >= (6, 2) && node.info().is_some_and(|i| i.get("paused_actions").is_none())
}

/// Whether clients are blocked that no command of theirs explains; only where all of them were seen. Modules block
/// clients as they like, and of a module that is not known it cannot be told in which of its commands.
fn unexplained(node: &Node) -> bool {
    let modules = node.info().and_then(|info| info.modules());
    let is_known = modules.is_some_and(|all| all.iter().all(|name| KNOWN_MODULES.contains(name)));
    is_known && clients_in(node, |command| waits(command) || is_of_a_module(command)) == Some(0)
}

/// Whether a command waits by itself.
fn waits(command: &str) -> bool {
    BLOCKING.contains(&command.to_lowercase().as_str())
}

/// Of a module that comes with Redis 8: it may wait, or not.
fn is_of_a_module(command: &str) -> bool {
    command.contains('.') || ["vadd", "vsim"].contains(&command.to_lowercase().as_str())
}

/// Clients whose last command is such a one; none where not all were seen.
fn clients_in(node: &Node, is_one: impl Fn(&str) -> bool) -> Option<u64> {
    let clients = node.clients.value().filter(|c| !c.sampled)?;
    // Of very many kinds of clients the smallest groups are left out.
    if clients.groups.iter().map(|g| g.count).sum::<u64>() < clients.listed {
        return None;
    }
    let commands = clients.groups.iter().flat_map(|g| &g.commands);
    Some(commands.filter(|(name, _)| is_one(name)).map(|(_, n)| n).sum())
}

/// Nothing is paused, or it cannot be told.
fn absent(facts: &Facts) -> Verdict {
    for node in facts.live().filter(|n| shows_no_pauses(n)) {
        let blocked = node.number("blocked_clients").unwrap_or(0.0);
        if blocked > clients_in(node, waits).unwrap_or(0) as f64 {
            return Verdict::unknown(
                Lack::Version,
                format!(
                    "pauses: {} does not show them, and {} of its clients are blocked",
                    node.address,
                    count(blocked)
                ),
                format!(
                    "look by hand: {}",
                    cli(&node.address, "CLIENT LIST   (flags=b, and a cmd that does not wait)")
                ),
            );
        }
    }
    let fields = facts.live().filter(|n| n.info().is_some_and(|i| i.get("paused_actions").is_some())).count();
    Verdict::Absent(match fields {
        0 => "pauses: INFO was answered, and no client is blocked outside blocking commands".into(),
        n => format!("pauses: paused_actions:none on {n} nodes, and no failover holds writes back"),
    })
}

fn found(p: &Paused<'_>) -> Finding {
    let node = p.node;
    let (by, what) = match &p.how {
        How::Said { action, reason, .. } => (cause(reason), if *action == "all" { "everything" } else { "writes" }),
        How::Failover(_) => ("a FAILOVER that has not ended", "writes"),
        How::Inferred => ("what looks like a pause", "writes"),
    };
    let left = match p.how {
        How::Said { left_ms: Some(ms), .. } => format!(", for another {}", time_us(ms * 1000.0)),
        _ => String::new(),
    };
    let finding = Finding::new(format!(
        "{} holds {what} back because of {by}{left}: {} of {} clients wait",
        node.address,
        count(p.waiting),
        count(p.clients.max(p.waiting))
    ));
    let finding = if p.waiting > 0.0 {
        finding
            .availability(
                86400.0 * p.share(),
                "each write waits until the pause is over, or fails with its client's timeout",
            )
            .gain(
                "writes are answered again",
                format!("{:.0} of {:.0} clients wait x 86,400 s", p.waiting, p.clients.max(p.waiting)),
            )
    } else {
        finding
            .risk("no client is waiting right now; the next write will")
            .affects(Affected::NextClient)
            .severity(Severity::High)
    };
    let finding = match p.how {
        How::Inferred => finding.likely(
            "clients are blocked, none in a blocking command, and no key changed; this version does not report pauses",
        ),
        _ if p.waiting > 0.0 => {
            finding.proven("the server reports that it holds clients back, and counts those that wait")
        }
        _ => finding.proven("the server reports that it holds clients back"),
    };
    mend(evidence(finding, p), p)
}

fn cause(reason: &str) -> &'static str {
    match reason {
        "client_pause" => "CLIENT PAUSE",
        r if r.starts_with("failover") => "a failover that has not ended",
        r if r.starts_with("shutdown") => "a shutdown that waits for its replicas",
        r if r.starts_with("slot_migration") => "a slot migration that has not ended",
        _ => "a pause",
    }
}

fn evidence(finding: Finding, p: &Paused<'_>) -> Finding {
    let node = p.node;
    let finding = match &p.how {
        How::Said { action, reason, left_ms } => finding.saw(
            node,
            "INFO clients",
            format!(
                "paused_reason:{reason}, paused_actions:{action}, paused_timeout_milliseconds:{:.0}",
                left_ms.unwrap_or(0.0)
            ),
        ),
        How::Failover(state) => finding.saw(node, "INFO replication", format!("master_failover_state:{state}")),
        How::Inferred => finding.saw(node, "CLIENT LIST", "no client in a blocking command").saw(
            node,
            "INFO persistence",
            "rdb_changes_since_last_save +0 in the window",
        ),
    };
    let finding = finding.saw(node, "INFO clients", format!("blocked_clients:{:.0}", p.waiting));
    let finding = match node.foreign_commands().get("client|pause") {
        Some(stat) => {
            finding.saw(node, "INFO commandstats", format!("client|pause: {} calls in the window", stat.calls))
        }
        None => finding,
    };
    match node.rtt.value() {
        Some(rtt) => {
            finding.not(format!("a stalled server: it answered PING in {} (median)", time_us(rtt.us_p50.into())))
        }
        None => finding,
    }
}

fn mend(finding: Finding, p: &Paused<'_>) -> Finding {
    let node = p.node;
    let here = |command: &str| cli(&node.address, command);
    let failover = match &p.how {
        How::Failover(_) => true,
        How::Said { reason, .. } => reason.starts_with("failover"),
        How::Inferred => false,
    };
    if failover {
        let abort = match is_in_cluster(node) {
            true => here(
                "CLUSTER NODES   (is the replica that takes over there and in step? It gives up by itself after some \
                 seconds)",
            ),
            false => here("FAILOVER ABORT"),
        };
        return finding.fix(
            "Find out why its replica does not catch up, or abort the failover: this server then accepts writes again",
            &[&here("INFO replication   (offset and lag of each replica)"), &abort],
            "",
            "",
        );
    }
    let other = matches!(&p.how, How::Said { reason, .. } if *reason != "client_pause");
    if other {
        return finding.fix(
            "See what it is waiting for: the pause ends when that does",
            &[&here("INFO replication"), &here("CLIENT LIST")],
            "",
            "",
        );
    }
    // Whether something relies on the pause is known to people only: no exact line.
    finding
        .fix(
            "Let clients write again, if nothing needs the pause any more",
            &[&here("CLIENT UNPAUSE")],
            "if this server is being replaced or copied, writes made from now on will be missing there",
            "",
        )
        .fix(
            "Find out what requests it: a migration, a backup or a failover script; make it pause for seconds only, \
             and end with CLIENT UNPAUSE",
            &[&here("CLIENT LIST   (cmd=client|pause)"), &here("INFO commandstats   (client|pause)")],
            "",
            "",
        )
}

fn is_in_cluster(node: &Node) -> bool {
    node.info().is_some_and(|i| i.get("cluster_enabled") == Some("1"))
}
