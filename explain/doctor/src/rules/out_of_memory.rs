//! The memory limit is reached, nothing may be evicted, and writes fail.
//!
//! With `noeviction` (the default) a full server answers OOM to every write that could grow the data.
//!
//! Seen when: OOM errors were answered in the window (6.2+), or used memory is at the limit under noeviction.
//!
//! Not to be taken for: an OOM kill by the kernel, which shows as a restart.
//!
//! What to do: raise maxmemory, allow eviction where it is a cache, or delete.
//! Sources: INFO errorstat_OOM, used_memory, maxmemory, maxmemory_policy.

use super::prelude::*;

pub const TITLE: &str = "Out of memory";
pub const LEADS_TO: &[&str] = &["error_flood"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let refused = node.errors().get("OOM").copied().unwrap_or(0) as f64;
            let (used, max) = (node.number("used_memory")?, node.number("maxmemory").filter(|m| *m > 0.0)?);
            let policy = node.info().and_then(|i| i.get("maxmemory_policy")).unwrap_or("");
            let full = policy == "noeviction" && node.is_master() && used / max >= 0.99;
            (refused > 0.0 || full).then_some((node, refused, used, max, policy.to_string()))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1 + r.2 / r.3);
    let Some((node, refused, used, max, policy)) = rows.first() else {
        let most = facts.live().filter_map(|n| Some(n.number("used_memory")? / n.number("maxmemory").filter(|m| *m > 0.0)?)).reduce(f64::max);
        return Verdict::Absent(Some(most.map_or("memory limit: none set".into(), |m| format!("memory: {} of maxmemory", percent(m)))));
    };
    let commands = node.delta("total_commands_processed").unwrap_or(0.0);
    let share = refused / (commands + refused).max(1.0);
    let finding = Finding::new(if *refused > 0.0 {
        format!("{} is full and refuses writes: {} OOM errors in {:.0} s", node.address, count(*refused), node.window_s)
    } else {
        format!("{} is full ({} of {}) and {policy} lets nothing go: writes fail next", node.address, bytes(*used), bytes(*max))
    })
    .on(rows.iter().map(|r| r.0.address.as_str()));
    let finding = if *refused > 0.0 {
        finding.availability(86400.0 * share, format!("{} failed writes a second", count(refused / node.window_s))).proven("counted by the server in this window")
    } else {
        finding.risk("the next write that needs memory fails").likely("the limit and the policy were read; no refused write was counted (none are before 6.2)")
    };
    let finding = finding
        .gain("writes succeed again", format!("{refused:.0} refused / {commands:.0} commands"))
        .saw(node, "INFO memory", format!("used_memory {}, maxmemory {}, maxmemory_policy {policy}", bytes(*used), bytes(*max)))
        .saw(node, "INFO errorstats", format!("errorstat_OOM +{refused:.0}"))
        .fix("Raise the limit, if the machine has the memory", &[&format!("CONFIG SET maxmemory {:.0}", max * 1.5)], "swap or the OOM killer, if it has not", &format!("CONFIG SET maxmemory {max:.0}"));
    if policy != "noeviction" {
        return finding.fix("Give keys a TTL: only those may be evicted under this policy", &["EXPIRE key seconds   (in the application)"], "keys disappear at their time", "PERSIST key").into();
    }
    finding
        .fix("If it is a cache: let it evict", &["CONFIG SET maxmemory-policy allkeys-lru"], "keys disappear; not for data of record", &format!("CONFIG SET maxmemory-policy {policy}"))
        .into()
}
