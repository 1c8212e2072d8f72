//! Several replicas are being copied from one master at the same time.
//!
//! A full copy costs the master a fork, and its machine the whole data set over the wire; the replica has nothing to
//! answer from until it has loaded the copy. One at a time, that is normal. If all copies run at once (after a master
//! came back without its history, after an outage that outlasted the backlog, or with a script that adds replicas in a
//! loop), no replica is left to take over or to read from, and the copies share one wire.
//!
//! Seen when: two or more replicas in the master's list were not online at both ends of the window (waiting for their
//! copy, or receiving it), or two or more copies began in the window and two or more replicas were not online at its
//! end.
//!
//! Not to be taken for: one replica that is being added, whose copy is in progress or waiting its turn. Nor for copies
//! that are cut off and start again (`full_resync_loop`, `replica_buffer_kill`): here each replica is copied once. A
//! short backlog (`backlog_too_small`) or a master that restarts (`loading_loop`) can be the cause, and this is then
//! reported as its consequence.
//!
//! How to confirm: `INFO replication` on the master: state of each slaveN; `INFO stats` twice: sync_full.
//!
//! What to do: let the running copies finish, and send reads to the master until then. Then make the next time cost
//! fewer copies: use a backlog that outlasts outages, restart replicas one after another, set parallel-syncs 1 in
//! Sentinel.
//! Sources: INFO replication, sync_full; redis.conf (repl-diskless-sync, repl-diskless-sync-delay); sentinel.conf
//! (parallel-syncs).

use super::prelude::*;
use super::replica_link::looping;

pub const TITLE: &str = "Replicas copied all at once";
pub const LEADS_TO: &[&str] = &["fork_stall", "min_replicas_refusing", "no_failover_possible"];
pub const INJECTED: Injected = Injected::Yes;

/// A master whose process is younger than this lost its replicas by its own restart.
const YOUNG_S: f64 = 600.0;

/// A master that copies several replicas.
struct Storm<'a> {
    node: &'a Node,
    /// Those that are not online: address and state.
    copied: Vec<(String, String)>,
    /// All that are connected.
    connected: usize,
}

impl Storm<'_> {
    fn is_left(&self) -> bool {
        self.connected > self.copied.len()
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let masters: Vec<&Node> = facts.live().filter(|n| n.number("connected_slaves").unwrap_or(0.0) > 0.0).collect();
    if masters.is_empty() {
        return match facts.live().any(|n| n.number("connected_slaves").is_some()) {
            true => Verdict::NotHere,
            false => Verdict::Unknown(unseen_info(facts, "copies of replicas")),
        };
    }
    let rows = by_worst(masters.iter().filter_map(|n| storm(facts, n)).collect(), |s: &Storm| s.copied.len() as f64);
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|s| s.node.address.as_str())).into();
    }
    let most = masters.iter().map(|n| pending(n.info()).len()).max().unwrap_or(0);
    Verdict::Absent(format!("copies of replicas: at most {most} at a time on each of {} masters", masters.len()))
}

/// Replicas of the list that are not online, with their state.
fn pending(info: Option<&unslow_topology::Info>) -> Vec<(String, String)> {
    let rows = info.map_or(Vec::new(), |i| i.replicas());
    rows.into_iter().filter(|r| r.2 != "online").map(|r| (join_host_port(&r.0, r.1), r.2)).collect()
}

fn storm<'a>(facts: &Facts, node: &'a Node) -> Option<Storm<'a>> {
    let (first, last) = (node.first.as_ref()?, node.last.as_ref()?);
    let (before, copied) = (pending(Some(&first.info)), pending(Some(&last.info)));
    // One copy after another of the same replica is another matter.
    if copied.len() < 2 || looping(facts, node).is_some() {
        return None;
    }
    let lasting = copied.iter().filter(|(address, _)| before.iter().any(|(b, _)| b == address)).count();
    let begun = node.delta("sync_full").unwrap_or(0.0);
    let connected = last.info.replicas().len();
    (lasting >= 2 || begun >= 2.0).then_some(Storm { node, copied, connected })
}

/// Why they lost their place in the stream, as far as the master shows it.
fn because(node: &Node) -> String {
    if let Some(up_s) = node.number("uptime_in_seconds").filter(|s| *s < YOUNG_S) {
        return format!(", {up_s:.0} s after it was started");
    }
    match node.delta("sync_partial_err").filter(|n| *n > 0.0) {
        Some(n) => format!(", because what they missed was no longer in the backlog (sync_partial_err +{n:.0})"),
        None => String::new(),
    }
}

fn found(facts: &Facts, s: &Storm) -> Finding {
    let node = s.node;
    let children =
        node.rate("used_cpu_user_children").unwrap_or(0.0) + node.rate("used_cpu_sys_children").unwrap_or(0.0);
    let size = node.number("used_memory").unwrap_or(0.0);
    let left = if s.is_left() {
        format!("{} of {} replicas are left", s.connected - s.copied.len(), s.connected)
    } else {
        "no replica is left to take over or to read from".to_string()
    };
    let states: Vec<String> = s.copied.iter().map(|(address, state)| format!("{address} {state}")).collect();
    let finding = Finding::new(format!(
        "{} is copying its whole data set to {} replicas at the same time{}",
        node.address,
        s.copied.len(),
        because(node)
    ))
    .core(
        children.max(0.01),
        format!("a fork and {} x {} over the wire; until they finish, {left}", s.copied.len(), bytes(size)),
    )
    .proven("the master lists the replicas that it is copying to, at the end of the window")
    .saw(node, "INFO replication", states.join(", "))
    .saw(
        node,
        "INFO stats",
        format!(
            "sync_full +{:.0}, sync_partial_err +{:.0}",
            node.delta("sync_full").unwrap_or(0.0),
            node.delta("sync_partial_err").unwrap_or(0.0)
        ),
    )
    .not("copies that are cut off and start again: each replica is copied once");
    mend(finding, facts, node)
}

fn mend(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let finding = finding.fix(
        "Let the copies finish, and read from the master until then",
        &[&cli(&node.address, "INFO replication   (until each slaveN is online)")],
        "the master answers all reads during that time",
        "",
    );
    let finding = if node.setting("repl-diskless-sync") == Some("no") {
        finding.fix_at(
            &node.address,
            "Send one snapshot to all waiting replicas, without a file in between",
            &["CONFIG SET repl-diskless-sync yes"],
            "a replica that connects while it runs waits for the next one",
            "CONFIG SET repl-diskless-sync no",
        )
    } else {
        finding
    };
    let groups: Vec<(&str, &str)> = facts
        .sentinels
        .iter()
        .filter(|s| s.unreachable.is_none())
        .flat_map(|s| s.groups.iter().map(move |g| (s.address.as_str(), g)))
        .filter(|(_, g)| g.master == node.address)
        .map(|(address, g)| (address, g.service.as_str()))
        .collect();
    if groups.is_empty() {
        return finding;
    }
    let set: Vec<String> =
        groups.iter().map(|(at, group)| cli(at, &format!("SENTINEL SET {group} parallel-syncs 1"))).collect();
    finding.fix(
        "After a failover, point the replicas at the new master one at a time",
        &set.iter().map(String::as_str).collect::<Vec<_>>(),
        "the last one follows the new master later",
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::super::made::{answer, node_at, replicated, said};
    use super::*;

    /// A master with replicas in these states, at the window's start and at its end.
    fn master(before: &[&str], after: &[&str], more: &str) -> Facts {
        let rows = |states: &[&str]| -> String {
            let row =
                |(i, s): (usize, &&str)| format!("slave{i}:ip=10.0.0.{},port=6379,state={s},offset=0,lag=0\n", i + 2);
            states.iter().enumerate().map(row).collect()
        };
        let own = "role:master\nuptime_in_seconds:90000\nused_memory:1000000000\nsync_full:2\nsync_partial_err:0\n";
        let connected = format!("connected_slaves:{}\n", after.len());
        let node = node_at("10.0.0.1:6379", &format!("{own}{}{connected}", rows(before)), &(rows(after) + more));
        replicated(vec![node])
    }

    #[test]
    fn two_copies_at_a_time_leave_no_replica() {
        let states = ["send_bulk", "wait_bgsave"];
        let found = said(check(&master(&states, &states, "")));
        assert!(found.impact.text.contains("no replica is left"), "{}", found.impact.text);
        // They began in this window, beside one that is well.
        let found = said(check(&master(&["online"; 3], &["online", "send_bulk", "send_bulk"], "sync_full:4\n")));
        assert!(found.impact.text.contains("1 of 3 replicas are left"), "{}", found.impact.text);
        let restarted = master(&states, &states, "uptime_in_seconds:40\n");
        assert!(said(check(&restarted)).title.ends_with("40 s after it was started"));
    }

    #[test]
    fn one_that_is_added_or_waits_for_its_turn_is_no_storm() {
        assert_eq!(answer(&check(&master(&["online"; 2], &["online"; 2], ""))), "absent");
        assert_eq!(answer(&check(&master(&["online"; 2], &["online", "wait_bgsave"], "sync_full:3\n"))), "absent");
        // Both came and are done.
        assert_eq!(answer(&check(&master(&["send_bulk"; 2], &["online"; 2], "sync_full:4\n"))), "absent");
    }

    #[test]
    fn copies_that_begin_again_are_a_loop() {
        let states = ["send_bulk"; 2];
        assert_eq!(answer(&check(&master(&states, &states, "sync_full:8\n"))), "absent");
        let cut = "sync_full:4\nsync_partial_err:2\n";
        assert_eq!(answer(&check(&master(&states, &states, cut))), "absent");
    }

    #[test]
    fn a_master_without_replicas_has_nothing_to_copy() {
        let alone = replicated(vec![node_at("10.0.0.1:6379", "role:master\nconnected_slaves:0\n", "")]);
        assert_eq!(answer(&check(&alone)), "not here");
    }
}
