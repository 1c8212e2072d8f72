//! Replicas are copied from scratch again and again.
//!
//! Each full sync forks the master and sends the whole data set. When the replica's output buffer limit or the backlog is
//! too small for the writes that arrive meanwhile, the sync is cut off at its end and starts again, for ever. A replica that
//! loses its data with each restart does the same.
//!
//! Seen when: more full syncs began in the window than the master has replicas, or one did after a partial sync failed or
//! a buffer limit struck, and a replica's link is down at its end.
//!
//! Not to be taken for: new replicas being added, which sync once each.
//!
//! What to do: a larger replica output buffer and backlog; repl-timeout above the time of a copy.
//! Sources: INFO sync_full, sync_partial_err, slaveN state; redis #11534, #12787, #2896.

use super::prelude::*;

pub const TITLE: &str = "Full resync loop";
pub const LEADS_TO: &[&str] = &["fork_stall", "save_too_often"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let full = node.delta("sync_full")?;
            let replicas = node.info()?.replicas();
            let down = replicas.iter().any(|r| r.2 != "online") || node.number("connected_slaves") == Some(0.0);
            // New replicas sync once each. A loop shows more syncs than replicas, or syncs that were tried in part first.
            let known = facts.nodes.iter().filter(|r| r.master.as_deref() == Some(&node.address)).count().max(replicas.len()).max(1);
            let cut = node.delta("client_output_buffer_limit_disconnections").unwrap_or(0.0);
            let failed = node.delta("sync_partial_err").unwrap_or(0.0);
            (full > known as f64 || (full >= 1.0 && down && failed + cut > 0.0)).then_some((node, full, replicas))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1);
    let Some((node, full, replicas)) = rows.first() else {
        let any = facts.live().any(|n| n.number("connected_slaves").unwrap_or(0.0) > 0.0);
        return Verdict::Absent(any.then(|| "full syncs: none repeated in the window".into()));
    };
    let children = node.rate("used_cpu_user_children").unwrap_or(0.0) + node.rate("used_cpu_sys_children").unwrap_or(0.0);
    let size = node.number("used_memory").unwrap_or(0.0);
    let states: Vec<String> = replicas.iter().map(|r| format!("{}:{} {}", r.0, r.1, r.2)).collect();
    let cut = node.delta("client_output_buffer_limit_disconnections").unwrap_or(0.0);
    let limit = node.setting("client-output-buffer-limit").and_then(|l| l.split_once("slave ").or_else(|| l.split_once("replica "))).map(|(_, l)| l.to_string());
    let backlog = node.number("repl_backlog_size").unwrap_or(0.0);
    Finding::new(format!("{} copies its whole data set to replicas over and over: {} full syncs in {:.0} s", node.address, count(*full), node.window_s))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .core(children.max(0.01), format!("a fork and {} each time; no replica to fail over to meanwhile", bytes(size)))
        .gain("one sync, then only the changes", format!("{full:.0} x {} / {:.1} s = {}/s over the wire", bytes(size), node.window_s, bytes(full * size / node.window_s)))
        .proven("counted by the master in this window")
        .saw(node, "INFO stats", format!("sync_full +{full:.0}, sync_partial_ok +{:.0}, sync_partial_err +{:.0}", node.delta("sync_partial_ok").unwrap_or(0.0), node.delta("sync_partial_err").unwrap_or(0.0)))
        .saw(node, "INFO replication", if states.is_empty() { "no replica connected".to_string() } else { states.join(", ") })
        .saw(node, "CONFIG GET client-output-buffer-limit", format!("replica {}; {cut:.0} connections ended by a limit in the window", limit.as_deref().unwrap_or("not seen")))
        .fix("Let a sync survive the writes that arrive while it runs", &["CONFIG SET client-output-buffer-limit \"replica 1gb 512mb 120\"   (if it is smaller)", &format!("CONFIG SET repl-backlog-size {:.0}", backlog.max(268_435_456.0))], "that much memory may be used per replica", &format!("CONFIG SET repl-backlog-size {backlog:.0}; CONFIG SET client-output-buffer-limit \"replica {}\"", limit.as_deref().unwrap_or("256mb 64mb 60")))
        .fix("If the replica restarts each time: let it keep its data (a volume, not the container's own disk) and look why it restarts", &["uptime_in_seconds of the replica", "its log before each start"], "none", "none needed")
        .fix("Give a copy the time it takes", &[&format!("CONFIG SET repl-timeout {:.0}", node.setting_number("repl-timeout").unwrap_or(60.0).max(300.0))], "a dead link is noticed later", &format!("CONFIG SET repl-timeout {}", node.setting("repl-timeout").unwrap_or("60")))
        .into()
}
