//! Snapshots follow each other so closely that the server is always saving.
//!
//! Each RDB save forks, copies every page that is written while it runs, and keeps a core and the disk busy. The
//! default `save 60 10000` saves every minute under any real write load.
//!
//! Seen when: two or more saves (forks) fall into the window, or one falls into a window of under a minute on a server
//! whose rules save every 30 s or faster; or there was more than one every two minutes since the server started (6.2+).
//!
//! Not to be taken for: forks for replicas' full syncs (`full_resync_loop`): those go with sync_full; rewrites of the
//! append-only file (`aof_rewrite_storm`), which 7.0 and later count separately.
//!
//! What to do: save hourly, or on a replica only; use AOF where every second counts.
//! Sources: INFO persistence, total_forks (6.2+), used_cpu_*_children; redis #2820.

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Saving too often";
pub const LEADS_TO: &[&str] = &["fork_stall", "noisy_neighbour"];
pub const INJECTED: Injected = Injected::Yes;

/// A window this short counts a save of rules this eager as more than a coincidence.
const SHORT_WINDOW_S: f64 = 60.0;
const EAGER_S: f64 = 30.0;
/// Younger processes give no rate.
const RATE_S: f64 = 1800.0;

/// A server that saves too often.
struct Saver<'a> {
    node: &'a Node,
    /// In the window.
    saves: f64,
    per_hour: f64,
    /// Whether the window shows it; else only the time since the server started does.
    now: bool,
}

pub fn check(facts: &Facts) -> Verdict {
    let rows = by_worst(facts.live().filter_map(saver).collect(), |r: &Saver| r.per_hour);
    let Some(worst) = rows.first() else {
        let saves = most(facts, saves);
        return Verdict::absent(
            facts,
            "saving",
            saves.map(|n| {
                format!(
                    "saving: at most {} snapshots in the window, and fewer than one every two minutes before",
                    count(n.max(0.0))
                )
            }),
        );
    };
    let (node, per_hour) = (worst.node, worst.per_hour);
    let fork_ms = node.number("latest_fork_usec").unwrap_or(0.0) / 1000.0;
    let share = if worst.now { children(node) } else { children_since_start(node) };
    let title = if worst.now {
        format!("{} saves its data set {} times in {:.0} s", node.address, count(worst.saves), node.window_s)
    } else {
        format!("{} saves its data set {} times an hour, on average since it started", node.address, count(per_hour))
    };
    let finding = Finding::new(title)
        .on(rows.iter().map(|r| r.node.address.as_str()))
        .core(
            share.max(0.001),
            format!(
                "{} of a core in child processes that save, and a fork of {fork_ms:.1} ms each time, {} an hour",
                percent(share),
                count(per_hour)
            ),
        )
        .gain("with one save an hour, the rest of that is freed", format!("{share:.3} cores x (1 - 1/{per_hour:.0})"))
        .saw(
            node,
            "INFO stats",
            format!(
                "total_forks +{}, sync_full +{} in the window",
                count(node.delta("total_forks").unwrap_or(worst.saves)),
                count(node.delta("sync_full").unwrap_or(0.0))
            ),
        )
        .saw(node, "CONFIG GET save", node.setting("save").unwrap_or("not seen"))
        .saw(
            node,
            "INFO persistence",
            format!(
                "rdb_last_bgsave_time_sec:{}, rdb_last_cow_size:{}",
                node.number("rdb_last_bgsave_time_sec").unwrap_or(0.0),
                bytes(node.number("rdb_last_cow_size").unwrap_or(0.0))
            ),
        )
        .not("replicas' full syncs: they were subtracted from the forks");
    let finding = match (worst.now, started_ms(node)) {
        (true, _) => finding.proven("the server counted its forks, and its children's CPU, in this window"),
        (false, Some(at_ms)) => finding
            .likely(
                "the server counts its forks and its children's CPU since it started; no save was due in this window",
            )
            .since_start(at_ms),
        (false, None) => finding.likely("the server counts its forks and its children's CPU since it started"),
    };
    remedy(finding, facts, node).into()
}

fn saver(node: &Node) -> Option<Saver<'_>> {
    let saves = saves(node)?;
    let shortest = node.setting("save").and_then(shortest_interval);
    // One save in the window may be the hourly one: only rules this eager make more of it.
    let eager = shortest.is_some_and(|s| s <= EAGER_S);
    let now = saves >= 2.0 || (saves >= 1.0 && eager && node.window_s < SHORT_WINDOW_S);
    // A save each minute mostly falls between two looks of ten seconds: the lifetime's count tells (6.2+).
    let uptime = node.number("uptime_in_seconds").unwrap_or(0.0);
    let others = node.number("sync_full").unwrap_or(0.0) + node.number("aof_rewrites").unwrap_or(0.0);
    let all = node.number("total_forks").map_or(0.0, |n| (n - others).max(0.0));
    let mostly = uptime > RATE_S && all / uptime > 1.0 / 120.0;
    let per_hour = if now { saves / node.window_s.max(0.001) * 3600.0 } else { all / uptime.max(1.0) * 3600.0 };
    (now || mostly).then_some(Saver { node, saves, per_hour, now })
}

/// Snapshots in the window that no replica asked for.
fn saves(node: &Node) -> Option<f64> {
    let (first, last) = (&node.first.as_ref()?.info, &node.last.as_ref()?.info);
    let syncs = node.delta("sync_full").unwrap_or(0.0);
    let all = node.delta("rdb_saves").or_else(|| node.delta("total_forks"));
    Some(match all {
        Some(n) => n - syncs,
        None => f64::from(u8::from(first.get("rdb_last_save_time")? != last.get("rdb_last_save_time")?)) - syncs,
    })
}

fn children(node: &Node) -> f64 {
    node.rate("used_cpu_user_children").unwrap_or(0.0) + node.rate("used_cpu_sys_children").unwrap_or(0.0)
}

fn children_since_start(node: &Node) -> f64 {
    let cpu =
        node.number("used_cpu_user_children").unwrap_or(0.0) + node.number("used_cpu_sys_children").unwrap_or(0.0);
    cpu / node.number("uptime_in_seconds").unwrap_or(0.0).max(1.0)
}

fn remedy(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let Some(save) = node.setting("save").filter(|s| !s.is_empty()) else {
        return finding.fix(
            "Find out what calls BGSAVE, SAVE or BGREWRITEAOF",
            &[&cli(&node.address, "INFO commandstats")],
            "",
            "",
        );
    };
    let back = cli(&node.address, &format!("CONFIG SET save \"{save}\""));
    // Durability is given up by choice only: no exact line.
    let finding = finding.fix(
        "Save hourly",
        &[&cli(&node.address, "CONFIG SET save \"3600 1\"")],
        "up to an hour of writes is lost if the machine and its replicas fail",
        &back,
    );
    let replica = facts.live().find(|n| !n.is_master() && peers::master_by_info(n).as_deref() == Some(&node.address));
    let Some(replica) = replica.filter(|_| node.is_master()) else { return finding };
    finding.fix(
        "Or save on its replica only",
        &[&cli(&replica.address, "CONFIG SET save \"3600 1\""), &cli(&node.address, "CONFIG SET save \"\"")],
        "a master that never saves must not be restarted automatically: it would come back empty and empty its \
         replicas",
        &back,
    )
}

/// Seconds of the most eager rule of `save 3600 1 300 100 60 10000`.
fn shortest_interval(save: &str) -> Option<f64> {
    save.split_whitespace().step_by(2).filter_map(|s| s.parse().ok()).reduce(f64::min)
}
