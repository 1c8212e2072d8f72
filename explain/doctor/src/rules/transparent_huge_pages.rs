//! Huge pages make copy-on-write expensive while a save runs.
//!
//! With transparent huge pages set to `always`, a single byte written during a save copies 2 MB instead of 4 kB, which
//! causes latency spikes and memory growth. Servers since 6.2 turn it off for themselves unless `disable-thp no` is
//! set.
//!
//! Seen when: THP is `always`, the server forks, and a tenth of its memory or more really is in huge pages.
//!
//! Not to be taken for: THP `always` with a server that never forks, or that holds no huge pages.
//!
//! How to confirm: `grep AnonHugePages /proc/PID/smaps_rollup`.
//!
//! What to do: set it to `madvise` or `never`, and restart the server.
//! Sources: /sys/kernel/mm/transparent_hugepage/enabled, smaps_rollup AnonHugePages; redis.io latency documentation.

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Transparent huge pages";
pub const LEADS_TO: &[&str] = &["copy_on_write"];
pub const INJECTED: Injected = Injected::No(
    "THP is a setting of the whole machine; the rule is tested on recorded facts with that one field changed",
);

const HUGE: f64 = 0.1;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (host, process) = facts.process(node)?;
            let huge = process.anon_huge_bytes? as f64;
            let rss = node.number("used_memory_rss")?.max(1.0);
            (host.thp.as_deref() == Some("always") && forks(node) && huge / rss > HUGE)
                .then_some((node, host, process, huge, rss))
        })
        .collect();
    let Some((node, host, process, huge, rss)) = rows.first() else { return absent(facts) };
    let mut commands = vec!["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled   (then restart the server)"];
    if node.level() >= (6, 2) {
        commands.push("disable-thp yes   (redis.conf or valkey.conf, then restart: for this server alone)");
    }
    Finding::new(format!(
        "{} keeps {} of its memory in huge pages and forks: each write during a save copies 2 MB",
        node.address,
        percent(huge / rss)
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .risk("latency spikes and up to twice the memory while it saves")
    .gain("copies of 4 kB instead of 2 MB", "2 MiB / 4 KiB = 512 times less per touched page")
    .proven("read on the machine")
    .saw_at(format!("/sys/kernel/mm/transparent_hugepage/enabled ({})", host.hostname), "always", host.at_ms)
    .saw_at(
        format!("/proc/{}/smaps_rollup ({})", process.pid, host.hostname),
        format!("AnonHugePages {} of {}", bytes(*huge), bytes(*rss)),
        host.at_ms,
    )
    .fix(
        "Turn it off and restart the server",
        &commands,
        "other programs on that machine lose it too",
        "echo always > /sys/kernel/mm/transparent_hugepage/enabled",
    )
    .into()
}

fn forks(node: &Node) -> bool {
    node.number("latest_fork_usec").unwrap_or(0.0) > 0.0
}

/// What was read on the machines, or that none could be looked into.
fn absent(facts: &Facts) -> Verdict {
    let seen: Vec<_> = facts.live().filter_map(|node| Some((node, facts.process(node)?))).collect();
    let on = seen.iter().find(|(_, (host, _))| host.thp.as_deref() == Some("always"));
    let off = seen.iter().find_map(|(_, (host, _))| host.thp.as_deref());
    match (on, off) {
        (None, Some(set)) => Verdict::Absent(format!("huge pages: set to {set} on the servers' machines")),
        (None, None) => {
            Verdict::unknown(Lack::Host, "huge pages: the server's machine could not be inspected", SEE_HOST)
        }
        (Some(_), _) if !seen.iter().any(|(node, _)| forks(node)) => {
            Verdict::Absent("huge pages: on, but no server has forked (latest_fork_usec:0)".into())
        }
        (Some(_), _) => {
            let held = |(node, (_, process)): &(&Node, (_, &unslow_facts::Process))| {
                Some(process.anon_huge_bytes? as f64 / node.number("used_memory_rss")?.max(1.0))
            };
            match seen.iter().filter_map(held).reduce(f64::max) {
                Some(share) => Verdict::Absent(format!(
                    "huge pages: on, but at most {} of a server's memory is in them",
                    percent(share)
                )),
                None => Verdict::unknown(
                    Lack::Host,
                    "huge pages: on, but smaps_rollup of the servers is not readable",
                    "run unslow as root there",
                ),
            }
        }
    }
}
