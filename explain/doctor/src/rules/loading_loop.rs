//! A server restarts again and again.
//!
//! Each start costs the time until the process is up, then the time to load its data, during which every command is
//! refused with LOADING; without a snapshot or an append-only file it comes back empty. What ends it so often is
//! usually outside the server: a memory limit, a liveness probe that is shorter than the loading takes, a supervisor
//! that restarts a crashing process.
//!
//! Seen when: run_id changed in the window, and the process that ended had itself been up for less than ten minutes:
//! two starts in ten minutes.
//!
//! Not to be taken for: one restart (a deploy, an upgrade), which is not a loop; a server that is down at the end of
//! the window (`node_unreachable`); a failover, which changes roles but no run_id.
//!
//! How to confirm: run `INFO server` twice: run_id and uptime_in_seconds; the service's own count
//! (`systemctl show -p NRestarts`, `kubectl describe pod`: Restart Count and Last State); the server's log before each
//! start; `dmesg | grep -i oom`.
//!
//! What to do: stop what ends it (raise the memory limit, give the probe a start-up time as long as the loading), then
//! find out why it crashes, if it does.
//! Sources: INFO run_id, uptime_in_seconds, loading; Kubernetes documentation of startup probes.

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Restarts again and again";
pub const LEADS_TO: &[&str] = &["full_resync_loop", "resync_storm"];
pub const INJECTED: Injected = Injected::No(
    "a start has to fall into the few seconds that the doctor looks, between two of its queries; the lab's restarts \
     come at any time",
);

/// A process that ends before this old, and is started again, is in a loop.
const YOUNG_S: f64 = 600.0;

/// A server that was started twice in a short time.
struct Loop<'a> {
    node: &'a Node,
    /// How long the process that ended was up, in s.
    up_s: f64,
    /// How long no PING was answered, in s; the time to load included.
    away_s: f64,
}

impl Loop<'_> {
    /// Of the time between two starts.
    fn share(&self) -> f64 {
        (self.away_s / self.up_s.max(1.0)).min(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let age = |n: &Node| n.info()?.get("run_id").and(n.number("uptime_in_seconds"));
    let Some(youngest) = facts.live().filter_map(age).reduce(f64::min) else {
        return Verdict::Unknown(unseen_info(facts, "restarts"));
    };
    let rows = by_worst(facts.live().filter_map(look).collect(), Loop::share);
    let Some(worst) = rows.first() else {
        return Verdict::Absent(format!("restarts: the youngest process is {} old", time_us(youngest * 1e6)));
    };
    found(facts, worst).on(rows.iter().map(|l| l.node.address.as_str())).into()
}

fn look(node: &Node) -> Option<Loop<'_>> {
    let (first, last) = (node.first.as_ref()?, node.last.as_ref()?);
    let (before, after) = (first.info.get("run_id")?, last.info.get("run_id")?);
    let was_up = first.info.number("uptime_in_seconds")?;
    if before == after || was_up >= YOUNG_S {
        return None;
    }
    let started_ms = last.at_ms as f64 - last.info.number("uptime_in_seconds")? * 1000.0;
    let up_s = was_up + ((started_ms - first.at_ms as f64) / 1000.0).max(0.0);
    Some(Loop { node, up_s, away_s: silence_s(node) })
}

/// The longest time without an answered PING.
fn silence_s(node: &Node) -> f64 {
    let ends: Vec<f64> = node.pings.iter().map(|(at_ms, us)| f64::from(*at_ms) + f64::from(*us) / 1000.0).collect();
    ends.windows(2).map(|pair| (pair[1] - pair[0]) / 1000.0).fold(0.0, f64::max)
}

fn found(facts: &Facts, l: &Loop<'_>) -> Finding {
    let node = l.node;
    let run = |s: &Option<unslow_facts::Sample>| {
        let id = s.as_ref().and_then(|s| s.info.get("run_id")).unwrap_or("unknown");
        id.chars().take(8).collect::<String>()
    };
    let uptime =
        |s: &Option<unslow_facts::Sample>| s.as_ref().and_then(|s| s.info.number("uptime_in_seconds")).unwrap_or(0.0);
    let away = l.away_s.max(0.1);
    let finding = Finding::new(format!(
        "{} restarts again and again: the previous process was up for {:.0} s",
        node.address, l.up_s
    ))
    .availability(
        86400.0 * l.share().max(away / l.up_s.max(1.0)).min(1.0),
        format!("down for {} at each start", time_us(away * 1e6)),
    )
    .gain(
        "the server answers all the time",
        format!("{away:.1} s down in {:.0} s = {} of the day", l.up_s, percent((away / l.up_s.max(1.0)).min(1.0))),
    )
    .likely(
        "a restart was measured in this window, and the previous process was young; that it continues like this is \
         inferred",
    )
    .saw(
        node,
        "INFO server",
        format!(
            "run_id {}... up {:.0} s, then {}... up {:.0} s",
            run(&node.first),
            uptime(&node.first),
            run(&node.last),
            uptime(&node.last)
        ),
    );
    let finding =
        if node.number("loading") == Some(1.0) { finding.saw(node, "INFO persistence", "loading:1") } else { finding };
    mend(finding, facts, node)
}

fn mend(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let limit = facts.process(node).and_then(|(_, p)| p.memory_limit_bytes);
    let memory = limit.map_or(String::new(), |b| format!(" (its limit is {})", bytes(b as f64)));
    let finding = finding.fix(
        &format!("Find out what ends it: the memory limit{memory}, a liveness probe, a crash"),
        &[
            "dmesg | grep -i -e oom -e killed   (on its machine)",
            "systemctl show -p NRestarts -p Result SERVICE; kubectl describe pod POD   (Last State, Restart Count)",
            &cli(&node.address, "CONFIG GET logfile   (then the lines before each start)"),
        ],
        "",
        "",
    );
    let finding = finding.fix(
        "If a probe ends it while it loads: give the probe a start-up time as long as the loading takes",
        &[
            "kubernetes: startupProbe with failureThreshold x periodSeconds above loading_eta_seconds",
            &cli(&node.address, "INFO persistence   (loading_eta_seconds)"),
        ],
        "",
        "",
    );
    let replica = facts.live().find(|n| !n.is_master() && peers::master_by_info(n).as_deref() == Some(&node.address));
    match replica {
        Some(replica)
            if node.is_master() && node.setting("save") == Some("") && node.number("aof_enabled") != Some(1.0) =>
        {
            finding.fix(
                "Stop restarting it automatically: it saves nothing, comes back empty, and empties its replica as well",
                &[&cli(&replica.address, "DBSIZE   (what is left)")],
                "without an automatic restart it stays down until it is started by hand, or its replica is promoted",
                "",
            )
        }
        _ => finding,
    }
}
