//! The server delays writes on purpose, so that a replica can keep up.
//!
//! Valkey 9.2 and newer can slow writers down while the data that waits for a replica grows towards its output buffer
//! limit: the link then stays up, and the full copy that would follow is not needed. The delayed commands are not in
//! the slow log, because the delay comes before they are executed, and the main thread is idle during it. To an
//! application it looks like a slow server.
//!
//! Seen when: `repl_throttle_total_commands` grew in the window by more than ten and by at least 1 % of the commands.
//!
//! Not to be taken for: writes that CLIENT PAUSE or a failover holds back (`paused`), that are refused because too few
//! replicas keep up (`min_replicas_refusing`), or that an fsync delays (`fsync_always`, `aof_fsync_stall`). Reads are
//! never delayed. The server does not count how long the writes waited, so no time is claimed here. Servers without the
//! counter have no such delay.
//!
//! How to confirm: `INFO` twice: repl_throttle_total_commands, repl_throttle_rate (writes a second that are let
//! through); `INFO replication`: the offsets of the replicas compared with master_repl_offset.
//!
//! What to do: find out why the replica is slow (`replica_lag`); give it time with a larger output buffer limit; write
//! less at a time.
//! Sources: INFO of Valkey 9.2 (src/throttle_repl.c), valkey #4356.

use super::prelude::*;

pub const TITLE: &str = "Write throttling";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected =
    Injected::No("none of the servers the lab installs delays writes; Valkey 9.2 is the first that does");

/// Writes that were delayed since the server started, how often delays began, and the rate let through now.
const DELAYED: &str = "repl_throttle_total_commands";
const BEGUN: &str = "repl_throttle_activation_events";
const RATE: &str = "repl_throttle_rate";
/// Of all commands, and in number.
const SHARE: f64 = 0.01;
const LEAST: f64 = 10.0;

/// A server that delays writes.
struct Delays<'a> {
    node: &'a Node,
    delayed: f64,
    commands: f64,
}

impl Delays<'_> {
    fn of(node: &Node) -> Option<Delays<'_>> {
        let delayed = node.delta(DELAYED)?;
        let commands = node.application_commands().values().map(|stat| stat.calls as f64).sum();
        Some(Delays { node, delayed, commands })
    }

    fn share(&self) -> f64 {
        (self.delayed / self.commands.max(1.0)).min(1.0)
    }

    fn hurts(&self) -> bool {
        self.delayed > LEAST && self.share() >= SHARE
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all = by_worst(facts.live().filter_map(Delays::of).collect(), Delays::share);
    let rows: Vec<&Delays> = all.iter().filter(|d| d.hurts()).collect();
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|d| d.node.address.as_str())).into();
    }
    match all.first() {
        Some(most) => Verdict::Absent(format!("delayed writes: {} in the window", count(most.delayed))),
        None if facts.live().any(|n| n.number("uptime_in_seconds").is_some()) => Verdict::NotHere,
        None => Verdict::Unknown(unseen_info(facts, "delayed writes")),
    }
}

fn found(d: &Delays) -> Finding {
    let node = d.node;
    let now = node.number(RATE).filter(|rate| *rate >= 0.0);
    let pace = now.map_or(String::new(), |rate| format!(", {} a second are let through now", count(rate)));
    Finding::new(format!(
        "{} delays writes so that a replica keeps up: {} in {:.0} s, {} of all commands{pace}",
        node.address,
        count(d.delayed),
        node.window_s,
        percent(d.share())
    ))
    .on([node.address.as_str()])
    .risk(format!("{} of the commands waited; the server does not count for how long", percent(d.share())))
    .severity(Severity::Medium)
    .proven("the server's own count of the writes that it delayed, in this window")
    .saw(node, "INFO replication", format!("{DELAYED} +{:.0}", d.delayed))
    .saw(
        node,
        "INFO replication",
        format!("{BEGUN}:{:.0} {RATE}:{:.2}", node.number(BEGUN).unwrap_or(0.0), node.number(RATE).unwrap_or(-1.0)),
    )
    .not("slow commands: the delay comes before a command is executed, so the slow log does not show it")
    .fix(
        "See which replica is behind, and why: its CPU, its disk, the path to it",
        &[&cli(&node.address, "INFO replication"), &cli(&node.address, "CLIENT LIST TYPE replica")],
        "",
        "",
    )
    .fix(
        "Let more data wait for it before writes are delayed, if there is memory for it",
        &["CONFIG SET client-output-buffer-limit \"replica 1gb 512mb 120\""],
        "that much more memory for each replica that is behind",
        "CONFIG SET client-output-buffer-limit \"replica 256mb 64mb 60\"",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::made::{answer, node_at, of, said};

    fn facts(delayed: u64) -> Facts {
        let before = "valkey_version:9.2.0\r\nserver_name:valkey\r\nrole:master\r\nuptime_in_seconds:900\r\n\
                      repl_throttle_total_commands:5000\r\nrepl_throttle_activation_events:3\r\n\
                      repl_throttle_rate:-1.00\r\n";
        let after = format!(
            "repl_throttle_total_commands:{}\r\nrepl_throttle_rate:1800.00\r\n\
             cmdstat_set:calls=20000,usec=20000,usec_per_call=1.00\r\n",
            5000 + delayed
        );
        of(DeploymentKind::MasterReplica, vec![node_at("10.0.0.1:6379", before, &after)])
    }

    #[test]
    fn writes_that_the_server_delays_are_told_with_their_number() {
        let found = said(check(&facts(4000)));
        assert!(found.title.contains("4,000 in 10 s, 20 % of all commands, 1,800 a second"), "{}", found.title);
    }

    #[test]
    fn look_alikes_are_left_alone() {
        assert_eq!(answer(&check(&facts(0))), "absent", "it was so before the window");
        assert_eq!(answer(&check(&facts(8))), "absent", "a moment");
        let older = node_at("10.0.0.1:6379", "redis_version:7.0.15\r\nrole:master\r\nuptime_in_seconds:900\r\n", "");
        assert_eq!(answer(&check(&of(DeploymentKind::Standalone, vec![older]))), "not here");
        assert_eq!(answer(&check(&of(DeploymentKind::Standalone, vec![node_at("h:1", "", "")]))), "unknown");
    }
}
