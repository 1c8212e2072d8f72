//! Huge pages make copy-on-write dear while a save runs.
//!
//! With transparent huge pages set to `always` a single written byte during a save copies 2 MB in place of 4 kB: latency
//! spikes and memory growth. Servers since 6.2 turn it off for themselves where they may.
//!
//! Seen when: THP is `always`, the server forks, and a tenth of its memory or more really is in huge pages.
//!
//! Not to be taken for: THP `always` with a server that never forks, or that holds no huge pages.
//!
//! What to do: `madvise` or `never`, and restart the server.
//! Sources: /sys/kernel/mm/transparent_hugepage/enabled, smaps_rollup AnonHugePages; redis.io latency documentation.

use super::prelude::*;

pub const TITLE: &str = "Transparent huge pages";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::No("THP is a setting of the whole machine; the rule is tested on recorded facts with that one field changed");

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (host, process) = facts.process(node)?;
            let huge = process.anon_huge_bytes? as f64;
            let rss = node.number("used_memory_rss")?.max(1.0);
            let forks = node.number("latest_fork_usec").unwrap_or(0.0) > 0.0;
            (host.thp.as_deref() == Some("always") && forks && huge / rss > 0.1).then_some((node, host, process, huge, rss))
        })
        .collect();
    let Some((node, host, process, huge, rss)) = rows.first() else {
        let readable = facts.hosts.iter().any(|h| h.thp.as_deref() != Some("always") || h.processes.iter().all(|p| p.anon_huge_bytes.is_some()));
        let looked = facts.hosts.iter().find_map(|h| h.thp.as_deref()).filter(|_| readable);
        return Verdict::Absent(looked.map(|t| format!("huge pages: {t}, and none in a server that forks")));
    };
    Finding::new(format!("{} keeps {} of its memory in huge pages and forks: each write during a save copies 2 MB", node.address, percent(huge / rss)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .risk("latency spikes and up to twice the memory while it saves")
        .gain("copies of 4 kB in place of 2 MB", "2 MiB / 4 KiB = 512 times less per touched page")
        .proven("read on the machine")
        .saw_at(format!("/sys/kernel/mm/transparent_hugepage/enabled ({})", host.hostname), "always", host.at_ms)
        .saw_at(format!("/proc/{}/smaps_rollup ({})", process.pid, host.hostname), format!("AnonHugePages {} of {}", bytes(*huge), bytes(*rss)), host.at_ms)
        .fix("Turn it off and restart the server", &["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"], "other programs on that machine lose it too", "echo always > /sys/kernel/mm/transparent_hugepage/enabled")
        .into()
}
