//! Snapshots follow each other so closely that the server is always saving.
//!
//! Each RDB save forks, copies every page that is written meanwhile, and keeps a core and the disk busy. The default
//! `save 60 10000` saves every minute under any real write load.
//!
//! Seen when: two or more saves (forks) fall into the window, or one into a window of under a minute on a server whose
//! rules save every 30 s or faster; or more than one in two minutes since the server started (6.2+).
//!
//! Not to be taken for: forks for replicas' full syncs (`full_resync_loop`): those follow sync_full.
//!
//! What to do: save hourly, or on a replica only; AOF where every second counts.
//! Sources: INFO persistence, total_forks (6.2+), used_cpu_*_children; redis #2820.

use super::prelude::*;

pub const TITLE: &str = "Saving too often";
pub const LEADS_TO: &[&str] = &["fork_stall", "noisy_neighbour"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (first, last) = (&node.first.as_ref()?.info, &node.last.as_ref()?.info);
            let syncs = node.delta("sync_full").unwrap_or(0.0);
            let saves = match node.delta("rdb_saves").or_else(|| node.delta("total_forks")) {
                Some(n) => n - syncs,
                None => f64::from(u8::from(first.get("rdb_last_save_time") != last.get("rdb_last_save_time"))) - syncs,
            };
            let shortest = node.setting("save").and_then(shortest_interval);
            // One save in the window may be the hourly one: only rules this eager make more of it.
            let eager = shortest.is_some_and(|s| s <= 30.0);
            let now = saves >= 2.0 || (saves >= 1.0 && eager && node.window_s < 60.0);
            // A save each minute mostly falls between two looks of ten seconds: the lifetime's count tells (6.2+).
            let uptime = node.number("uptime_in_seconds").unwrap_or(0.0);
            let others = node.number("sync_full").unwrap_or(0.0) + node.number("aof_rewrites").unwrap_or(0.0);
            let all = node.number("total_forks").map_or(0.0, |n| (n - others).max(0.0));
            let mostly = uptime > 1800.0 && all / uptime > 1.0 / 120.0;
            let per_hour = if now { saves / node.window_s * 3600.0 } else { all / uptime.max(1.0) * 3600.0 };
            (now || mostly).then_some((node, saves, per_hour, now))
        })
        .collect();
    let children = |n: &Node| n.rate("used_cpu_user_children").unwrap_or(0.0) + n.rate("used_cpu_sys_children").unwrap_or(0.0);
    let rows = by_worst(rows, |r| r.2);
    let Some((node, saves, per_hour, now)) = rows.first() else { return Verdict::Absent(Some("saving: fewer than two snapshots in the window, fewer than one in two minutes before".into())) };
    let fork_ms = node.number("latest_fork_usec").unwrap_or(0.0) / 1000.0;
    let share = children(node);
    Finding::new(if *now {
        format!("{} saves its data set {} times in {:.0} s", node.address, count(*saves), node.window_s)
    } else {
        format!("{} saves its data set {} times an hour since it started", node.address, count(*per_hour))
    })
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .core(share.max(0.001), format!("{} of a core in saving children, a fork of {fork_ms:.1} ms each time, {} an hour", percent(share), count(*per_hour)))
        .gain("one save an hour: the rest of that back", format!("{share:.3} cores x (1 - 1/{per_hour:.0})"))
        .proven("the server counted its forks, and its children's CPU in this window")
        .saw(node, "INFO stats", format!("total_forks +{}, sync_full +{}", count(node.delta("total_forks").unwrap_or(*saves)), count(node.delta("sync_full").unwrap_or(0.0))))
        .saw(node, "CONFIG GET save", node.setting("save").unwrap_or("not seen"))
        .saw(node, "INFO persistence", format!("rdb_last_bgsave_time_sec:{}, rdb_last_cow_size:{}", node.number("rdb_last_bgsave_time_sec").unwrap_or(0.0), bytes(node.number("rdb_last_cow_size").unwrap_or(0.0))))
        .not("replicas' full syncs: they were taken off the forks")
        .fix("Save hourly, or on a replica", &["CONFIG SET save \"3600 1\"", "CONFIG SET save \"\"   (on the master, where a replica saves)"], "up to an hour of writes is lost if the machine and its replicas are; a master without any save must not restart by itself", &format!("CONFIG SET save \"{}\"", node.setting("save").unwrap_or("3600 1 300 100 60 10000")))
        .into()
}

/// Seconds of the most eager rule of `save 3600 1 300 100 60 10000`.
fn shortest_interval(save: &str) -> Option<f64> {
    save.split_whitespace().step_by(2).filter_map(|s| s.parse().ok()).reduce(f64::min)
}
