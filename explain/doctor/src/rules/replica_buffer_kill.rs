//! The master closes its replicas' links because too much data waits for them: their output buffer limit is too small.
//!
//! Data that a replica has not read yet waits in the master's memory, up to client-output-buffer-limit replica (256 MB
//! at any moment, or 64 MB for 60 s, by default). Beyond that the link is closed. During a full copy everything that is
//! written waits: if that is more than the limit, the copy is cut off at its end and starts again, over and over.
//!
//! Seen when: full syncs follow each other, and the master counted connections that were closed at a limit (7.4+,
//! Valkey 8.0+), or the data written during one attempt reaches the limit; or it counted such connections, a replica
//! came back in the window, and the data waiting for a replica is over half of its limit.
//!
//! Not to be taken for: a small backlog. In that case partial syncs are requested and refused (sync_partial_err), and
//! the master closes no link (`backlog_too_small`). The count covers all clients together: if replicas have no limit,
//! it was subscribers or ordinary clients (`slow_subscriber`).
//!
//! How to confirm: the master's log says "scheduled to be closed ASAP for overcoming of output buffer limits" with
//! flags=S; `INFO stats` twice: client_output_buffer_limit_disconnections, sync_full; `CLIENT LIST TYPE replica` while
//! it is copied: omem.
//!
//! What to do: set a limit of twice what is written during a copy; then make the copy faster (repl-diskless-sync, a
//! smaller data set) or write less while it runs.
//! Sources: INFO stats; checkClientOutputBufferLimits() of the servers; redis #11534, #12787, #4093.

use super::full_resync_loop::buffer;
use super::prelude::*;
use super::replica_link::{self, Cause, Looping, attempt_s, cut, others_may_be_cut, replica_limit, waiting};
use super::slow_subscriber::Limit;

pub const TITLE: &str = "Replica links closed by the output buffer limit";
pub const LEADS_TO: &[&str] = &["full_resync_loop", "min_replicas_refusing", "replica_link_down"];
pub const INJECTED: Injected = Injected::Yes;

/// Connections that an output limit ended, of all clients together (7.4+, Valkey 8.0+).
const COUNTER: &str = "client_output_buffer_limit_disconnections";

/// What waits for a replica is near its limit from this share of it on.
const NEAR: f64 = 0.5;

/// A master that closes replicas' links.
struct Killer<'a> {
    node: &'a Node,
    syncs: Looping,
    limit: Limit,
    /// Connections that a limit ended, as the server counted them; 0 where that is inferred.
    counted: f64,
}

pub fn check(facts: &Facts) -> Verdict {
    let masters: Vec<&Node> = facts
        .live()
        .filter(|n| n.number("connected_slaves").unwrap_or(0.0) > 0.0 || n.delta("sync_full").unwrap_or(0.0) > 0.0)
        .collect();
    if masters.is_empty() {
        return match facts.live().any(|n| n.number("connected_slaves").is_some()) {
            true => Verdict::NotHere,
            false => Verdict::Unknown(unseen_info(facts, "replicas' output buffers")),
        };
    }
    let rows = by_worst(masters.iter().filter_map(|n| killer(facts, n)).collect(), |k: &Killer| k.syncs.full);
    if let Some(worst) = rows.first() {
        return found(facts, worst, &rows).into();
    }
    if let Some(gap) = masters.iter().find_map(|n| n.config.missing()) {
        return Verdict::Unknown(gap.of("replicas' output buffer limit"));
    }
    let full: f64 = masters.iter().filter_map(|n| n.delta("sync_full")).sum();
    let ended = match masters.iter().any(|n| n.delta(COUNTER).is_some()) {
        true => format!("{:.0} connections closed at a limit", masters.iter().map(|n| cut(n)).sum::<f64>()),
        false => "connections closed at a limit are not counted here".to_string(),
    };
    Verdict::Absent(format!("replicas' output buffers: {full:.0} full syncs in the window, {ended}"))
}

fn killer<'a>(facts: &'a Facts, node: &'a Node) -> Option<Killer<'a>> {
    let limit = replica_limit(node).filter(|l| l.hard > 0.0 || l.soft > 0.0)?;
    let counted = cut(node);
    if let Some(syncs) = replica_link::looping(facts, node) {
        let by_buffer = matches!(replica_link::cause(facts, node, &syncs), Cause::Buffer { .. });
        return by_buffer.then_some(Killer { node, syncs, limit, counted });
    }
    // In the stream: cut off, and back by the backlog.
    let back = node.delta("sync_full").unwrap_or(0.0) + node.delta("sync_partial_ok").unwrap_or(0.0);
    let least = [limit.hard, limit.soft].into_iter().filter(|l| *l > 0.0).fold(f64::MAX, f64::min);
    let replicas = node.number("connected_slaves").unwrap_or(0.0).max(1.0);
    let syncs = Looping { full: node.delta("sync_full").unwrap_or(0.0), replicas };
    (counted > 0.0 && back > 0.0 && waiting(node) >= NEAR * least).then_some(Killer { node, syncs, limit, counted })
}

fn found(facts: &Facts, worst: &Killer, rows: &[Killer]) -> Finding {
    let Killer { node, syncs, limit, counted } = worst;
    let rate = node.rate("master_repl_offset").unwrap_or(0.0);
    let (attempt, hard) = (attempt_s(node, syncs), if limit.hard > 0.0 { limit.hard } else { limit.soft });
    let grown = |field| node.delta(field).unwrap_or(0.0);
    let what = match syncs.full {
        0.0 => format!("{counted:.0} times in {:.0} s", node.window_s),
        n => format!("{} full syncs in {:.0} s", count(n), node.window_s),
    };
    let children =
        node.rate("used_cpu_user_children").unwrap_or(0.0) + node.rate("used_cpu_sys_children").unwrap_or(0.0);
    let finding = Finding::new(format!(
        "{} closes its replicas' links: more data waits for them than their output buffer limit of {} allows ({what})",
        node.address,
        bytes(hard)
    ))
    .on(rows.iter().map(|k| k.node.address.as_str()))
    .on(rows.iter().flat_map(|k| replica_link::replicas_of(facts, k.node)).map(|r| r.address.as_str()));
    let finding =
        if syncs.full > 0.0 {
            finding.core(
                children.max(0.01),
                format!(
                    "a fork and {} over the wire for each copy that is cut off; until one succeeds, no replica is up \
                     to date",
                    bytes(data_bytes(node))
                ),
            )
        } else {
            finding
            .risk("no copy was needed in this window: the backlog had what was missing; when it does not, a full copy \
                   follows")
            .severity(Severity::Medium)
        };
    let ended = node.delta(COUNTER).map_or(format!("{COUNTER} not counted"), |n| format!("{COUNTER} +{n:.0}"));
    let finding = finding
        .saw(
            node,
            "INFO stats",
            format!(
                "{ended}, sync_full +{:.0}, sync_partial_ok +{:.0}, sync_partial_err +{:.0}",
                grown("sync_full"),
                grown("sync_partial_ok"),
                grown("sync_partial_err")
            ),
        )
        .saw(node, "CONFIG GET client-output-buffer-limit", format!("replica {limit}"))
        .saw(node, "INFO replication", format!("master_repl_offset +{}/s", bytes(rate)));
    let finding = match waiting(node) {
        0.0 => finding,
        n => finding.saw(node, "CLIENT LIST TYPE replica", format!("omem={n:.0}")),
    };
    let finding = if *counted > 0.0 && others_may_be_cut(node) {
        finding.likely(
            "the master counted connections that were closed at its limits, for all clients together; that they were \
             replicas' is inferred from the data that waits for them",
        )
    } else if *counted > 0.0 {
        finding.proven("the master counted the connections that were closed at its limits, and the syncs that followed")
    } else {
        finding.likely(format!(
            "the syncs were counted; that writes fill the buffer is inferred: {}/s for {} an attempt",
            bytes(rate),
            time_us(attempt * 1e6)
        ))
    };
    let finding = if grown("sync_partial_err") == 0.0 {
        finding.not("a small backlog: no partial sync was refused")
    } else {
        finding
    };
    buffer(finding, node, syncs, Some(*limit))
}

fn data_bytes(node: &Node) -> f64 {
    node.number("used_memory").unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::made::{answer, node_at, replicated, said};
    use unslow_facts::Seen;

    const MASTER: &str = "10.0.0.1:6379";

    fn master(after: &str, limit: &str) -> Facts {
        let before = "role:master\nredis_version:7.4.0\nconnected_slaves:1\n\
                      slave0:ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0\n\
                      master_repl_offset:1000\nrepl_backlog_size:1048576\nused_memory:90000000\nsync_full:1\n\
                      sync_partial_err:0\n\
                      sync_partial_ok:0\nclient_output_buffer_limit_disconnections:0\ntotal_system_memory:8000000000\n";
        let mut node = node_at(MASTER, before, after);
        let line = format!("normal 0 0 0 {limit} pubsub 33554432 8388608 60");
        let value = [("client-output-buffer-limit".to_string(), line)].into();
        node.config = Seen::yes(value, "CONFIG GET", 1);
        replicated(vec![node])
    }

    const LOOP: &str = "sync_full:5\nmaster_repl_offset:100001000\n";
    const SMALL: &str = "replica 4000000 2000000 60";

    #[test]
    fn a_loop_that_the_limit_ends_is_told_from_other_loops() {
        let counted = format!("{LOOP}client_output_buffer_limit_disconnections:4\n");
        let found = said(check(&master(&counted, SMALL)));
        assert_eq!(found.confidence, crate::Confidence::Proven);
        assert!(found.title.contains("4 MB") && found.remedies[0].commands[0].contains("replica "), "{found:?}");
        // Not counted by older servers: 10 MB/s for 2.5 s an attempt is over 4 MB.
        assert_eq!(said(check(&master(LOOP, SMALL))).confidence, crate::Confidence::Likely);
        for (what, after, limit) in [
            ("no limit", counted.as_str(), "replica 0 0 0"),
            ("room enough", LOOP, "replica 268435456 67108864 60"),
            (
                "failed partial syncs, and room enough",
                "sync_full:5\nsync_partial_err:4\nmaster_repl_offset:100001000\n",
                "replica 268435456 67108864 60",
            ),
            ("no sync at all", "client_output_buffer_limit_disconnections:4\n", SMALL),
        ] {
            assert_eq!(answer(&check(&master(after, limit))), "absent", "{what}");
        }
    }

    #[test]
    fn subscribers_that_were_cut_off_are_no_replicas() {
        let both = "sync_full:5\nsync_partial_err:4\nmaster_repl_offset:1100\n\
                    client_output_buffer_limit_disconnections:4\n\
                    pubsub_channels:3\n";
        assert_eq!(answer(&check(&master(both, SMALL))), "absent");
    }

    #[test]
    fn without_settings_it_is_not_known() {
        let mut facts = master(LOOP, SMALL);
        facts.nodes[0].config = Seen::default();
        assert_eq!(answer(&check(&facts)), "unknown");
    }
}
