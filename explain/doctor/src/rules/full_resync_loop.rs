//! Replicas are copied from scratch again and again.
//!
//! Each full sync forks the master and sends the whole data set. If the replica's output buffer limit is too small for
//! the writes that arrive during the copy, the sync is cut off at its end and starts over, endlessly. A backlog that is
//! too small, a repl-timeout shorter than a copy, or a replica that loses its data at each restart has the same effect.
//!
//! Seen when: more full syncs began in the window than the master has replicas, or two or more did, a partial sync
//! failed or a buffer limit was hit, and a replica's link is down at the end of the window.
//!
//! The cause shows in what else was counted: connections closed by an output limit (7.4+), or writes during a copy that
//! come near the limit; failed partial syncs with a short backlog, or with a long one (a different history); a
//! replica's uptime. The server counts those connections for all clients together: if replicas have no limit, they were
//! not replicas.
//!
//! Not to be taken for: new replicas being added, or a replica that was given a different master, which sync once each.
//! If the replicas' output buffer limit ends the copies, `replica_buffer_kill` has the cause and this is its
//! consequence.
//!
//! What to do: depending on the cause: a larger replica output buffer, a larger backlog, a repl-timeout above the time
//! of a copy, a replica that keeps its data.
//! Sources: INFO sync_full, sync_partial_err, slaveN state; redis #11534, #12787, #2896.

use super::prelude::*;
use super::replica_link::{Cause, Looping, attempt_s, cause, copy_s, looping, replicas_of};
use super::slow_subscriber::{Limit, output_limit};

pub const TITLE: &str = "Full resync loop";
pub const LEADS_TO: &[&str] = &["fork_stall", "save_too_often", "min_replicas_refusing"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let loops = facts.live().filter_map(|n| Some((n, looping(facts, n)?)));
    let rows = by_worst(loops.collect(), |(_, l): &(&Node, Looping)| l.full);
    if let Some((node, l)) = rows.first() {
        return found(facts, node, l).on(rows.iter().map(|(n, _)| n.address.as_str())).into();
    }
    let masters: Vec<&Node> = facts.live().filter(|n| n.number("connected_slaves").unwrap_or(0.0) > 0.0).collect();
    if masters.is_empty() {
        return if facts.live().next().is_some() {
            Verdict::NotHere
        } else {
            Verdict::Unknown(unseen_info(facts, "full syncs"))
        };
    }
    let full = masters.iter().filter_map(|n| n.delta("sync_full")).reduce(|a, b| a + b);
    let replicas: f64 = masters.iter().filter_map(|n| n.number("connected_slaves")).sum();
    Verdict::absent(
        facts,
        "full syncs",
        full.map(|n| format!("full syncs: {n:.0} in the window, for {replicas:.0} replicas")),
    )
}

fn found(facts: &Facts, node: &Node, l: &Looping) -> Finding {
    let grown = |field| node.delta(field).unwrap_or(0.0);
    let children =
        node.rate("used_cpu_user_children").unwrap_or(0.0) + node.rate("used_cpu_sys_children").unwrap_or(0.0);
    let size = node.number("used_memory").unwrap_or(0.0);
    let info = node.info().map_or(Vec::new(), |i| i.replicas());
    let states: Vec<String> = info.iter().map(|r| format!("{} {}", join_host_port(&r.0, r.1), r.2)).collect();
    let cause = cause(facts, node, l);
    let limit = output_limit(node, &["slave", "replica"]).map_or("not seen".into(), |l| format!("replica {l}"));
    let finding = Finding::new(format!(
        "{} copies its whole data set over and over: {} full syncs in {:.0} s for {:.0} {}{}",
        node.address,
        count(l.full),
        node.window_s,
        l.replicas,
        if l.replicas == 1.0 { "replica" } else { "replicas" },
        because(&cause)
    ))
    .core(
        children.max(0.01),
        format!("a fork and {} each time; no replica to fail over to until a copy is complete", bytes(size)),
    )
    .saw(
        node,
        "INFO stats",
        format!(
            "sync_full +{:.0}, sync_partial_ok +{:.0}, sync_partial_err +{:.0}",
            l.full,
            grown("sync_partial_ok"),
            grown("sync_partial_err")
        ),
    )
    .saw(
        node,
        "INFO replication",
        if states.is_empty() { "no replica connected".to_string() } else { states.join(", ") },
    )
    .saw(
        node,
        "CONFIG GET client-output-buffer-limit",
        format!(
            "{limit}; {:.0} connections ended by a limit in the window",
            grown("client_output_buffer_limit_disconnections")
        ),
    );
    mend(sure(gain(finding, node, l, size), &cause), facts, node, l, &cause)
}

fn gain(finding: Finding, node: &Node, l: &Looping, size: f64) -> Finding {
    let spare = (l.full - l.replicas) * size / node.window_s.max(0.001);
    if spare <= 0.0 {
        return finding;
    }
    finding.gain(
        format!("one copy per replica, then only the changes: {} less over the wire each second", bytes(spare)),
        format!(
            "({:.0} - {:.0}) copies x {} / {:.1} s = {}/s",
            l.full,
            l.replicas,
            bytes(size),
            node.window_s,
            bytes(spare)
        ),
    )
}

fn because(cause: &Cause) -> String {
    match cause {
        Cause::Buffer { limit: Some(l), .. } if l.hard > 0.0 => {
            format!(", cut off by the replica output limit of {}", bytes(l.hard))
        }
        Cause::Buffer { .. } => ", cut off by the replica output limit".into(),
        Cause::Backlog { lasts_s } => format!(", because the backlog lasts {}", time_us(lasts_s * 1e6)),
        Cause::Restart(replica) => format!(", because {} restarts", replica.address),
        Cause::History => ", because a replica comes back with another history".into(),
        Cause::Timeout { timeout_s } => format!(", which repl-timeout ends after {timeout_s:.0} s"),
        Cause::Unknown => String::new(),
    }
}

fn sure(finding: Finding, cause: &Cause) -> Finding {
    match cause {
        Cause::Buffer { counted: true, .. } => {
            finding.proven("the master counted the syncs and the connections that its limits closed")
        }
        Cause::Restart(_) => finding.proven(
            "the master counted the syncs, and the replica's process was started in \
                                             this window",
        ),
        Cause::Backlog { .. } | Cause::History => finding.proven(
            "the master counted the syncs and the failed partial \
            ones",
        ),
        Cause::Buffer { counted: false, .. } => finding.likely(
            "the syncs were counted and no partial one was tried; that writes fill the buffer during a copy is \
             inferred from their rate",
        ),
        Cause::Timeout { .. } => finding.likely("the syncs were counted; the time between them matches repl-timeout"),
        Cause::Unknown => finding.likely("the syncs were counted by the master; what ends them was not seen"),
    }
}

fn mend(finding: Finding, facts: &Facts, node: &Node, l: &Looping, cause: &Cause) -> Finding {
    match cause {
        Cause::Buffer { limit, .. } => buffer(finding, node, l, *limit),
        Cause::Backlog { .. } => backlog(finding, facts, node),
        Cause::Restart(replica) => finding.fix(
            "Find out why the replica restarts, and let it keep its data (a volume, not the container's own disk)",
            &[&cli(&replica.address, "INFO server   uptime_in_seconds, run_id"), "the replica's log before each start"],
            "",
            "",
        ),
        Cause::History => finding.fix(
            "Find out what gives the replica a different history: REPLICAOF NO ONE and back, or a start without its \
             data",
            &history_of(facts, node).iter().map(String::as_str).collect::<Vec<_>>(),
            "",
            "",
        ),
        Cause::Timeout { timeout_s } => timeout(finding, facts, node, *timeout_s),
        Cause::Unknown => finding.fix(
            "Find out what ends the copies: the master's log names the reason for each connection it closes",
            &[
                &cli(&node.address, "CONFIG GET logfile"),
                &cli(&node.address, "INFO replication"),
                "the replica's log at the same time",
            ],
            "",
            "",
        ),
    }
}

/// A larger one where it would be less than a full copy; else the breaks of the link are what is left.
fn backlog(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    if super::backlog_too_small::wanted(node) > node.number("repl_backlog_size").unwrap_or(0.0) {
        return super::backlog_too_small::enlarge(finding, &[node]);
    }
    let links = replicas_of(facts, node)
        .map(|r| cli(&r.address, "INFO replication   master_link_status, master_link_down_since_seconds"));
    let lines: Vec<String> = [cli(&node.address, "CONFIG GET logfile")].into_iter().chain(links).collect();
    finding.fix(
        "Find out what breaks the replica's link: the backlog is as large as makes sense, and a larger one costs more \
         than a copy",
        &lines.iter().map(String::as_str).collect::<Vec<_>>(),
        "",
        "",
    )
}

fn history_of(facts: &Facts, node: &Node) -> Vec<String> {
    let replicas =
        replicas_of(facts, node).map(|r| cli(&r.address, "INFO replication   master_replid, second_repl_offset"));
    [cli(&node.address, "INFO replication   master_replid")].into_iter().chain(replicas).collect()
}

/// Room for twice what is written during the longest attempt that was seen, at least the servers' default and at most a
/// tenth of the memory.
pub fn buffer(finding: Finding, node: &Node, l: &Looping, limit: Option<Limit>) -> Finding {
    const DEFAULT: f64 = 268_435_456.0;
    let memory =
        node.number("maxmemory").filter(|m| *m > 0.0).or_else(|| node.number("total_system_memory")).unwrap_or(10e9);
    let rate = node.rate("master_repl_offset").unwrap_or(0.0);
    let old = output_limit(node, &["slave", "replica"]);
    let needed = (2.0 * rate * attempt_s(node, l).max(copy_s(node))).max(DEFAULT).min((memory / 10.0).max(DEFAULT));
    // A limit that struck although it is as large as this was too small all the same.
    let hard = needed.max(limit.map_or(0.0, |l| 2.0 * l.hard)).ceil();
    let class = if node.level() >= (5, 0) || node.level() == (0, 0) { "replica" } else { "slave" };
    let set = |limit: Limit| format!("CONFIG SET client-output-buffer-limit \"{class} {limit}\"");
    let risk = format!("up to {} of memory per replica while it is copied", bytes(hard));
    let text = "Let a copy survive the writes that arrive while it runs (and set it in the configuration file too)";
    let new = set(Limit { hard, soft: (hard / 2.0).floor(), soft_s: 120.0 });
    match old {
        Some(old) => finding.fix_at(&node.address, text, &[&new], &risk, &set(old)),
        None => finding.fix(text, &[&cli(&node.address, &new)], &risk, "set the old limit again"),
    }
}

fn timeout(finding: Finding, facts: &Facts, node: &Node, timeout_s: f64) -> Finding {
    let new = (2.0 * copy_s(node)).max(2.0 * timeout_s).max(60.0).ceil();
    // Both ends hold the link to it.
    let both: Vec<&Node> =
        [node].into_iter().chain(replicas_of(facts, node).filter(|r| r.unreachable.is_none())).collect();
    let set = |seconds: f64| -> Vec<String> {
        both.iter().map(|n| cli(&n.address, &format!("CONFIG SET repl-timeout {seconds:.0}"))).collect()
    };
    let (commands, rollback) = (set(new), set(timeout_s).join("; "));
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    finding
        .fix(
            "Allow a copy the time it takes, on the master and its replicas",
            &commands,
            "a dead link is noticed later",
            &rollback,
        )
        .exact()
}
