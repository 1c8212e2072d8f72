//! Monitoring costs more than it tells.
//!
//! INFO, CLIENT LIST, SLOWLOG and health-check PINGs from every pod and every exporter add up; CLIENT LIST costs 12 ms
//! at 4,000 connections on every version measured, INFO before 6.0 grows with the number of clients.
//!
//! Seen when: these commands take over 1 % of a core on a node at more than 5 calls a second.
//!
//! Not to be taken for: topology refreshes, which Lettuce accompanies with INFO (then that is the finding).
//!
//! What to do: one exporter per node, every 15 to 30 s; no test-on-borrow PING in connection pools.
//! Sources: redis #5145, #4727; commandstats.

use super::prelude::*;

pub const TITLE: &str = "Monitoring storm";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

const COMMANDS: &[&str] = &["info", "client|list", "=client", "slowlog", "latency", "memory", "config", "role", "ping", "dbsize", "command", "lolwut"];

pub fn check(facts: &Facts) -> Verdict {
    let rows = facts.live().map(|n| (n, spent(n, COMMANDS))).filter(|(_, s)| s.share > 0.01 && s.rate > 5.0);
    let rows = by_worst(rows.collect(), |(_, s)| s.share);
    let Some((node, s)) = rows.first() else {
        let most = facts.live().map(|n| spent(n, COMMANDS).share).fold(0.0, f64::max);
        return Verdict::Absent(Some(format!("monitoring commands: {} of a core at most", percent(most))));
    };
    let parts = by_worst(COMMANDS.iter().map(|c| (*c, spent(node, &[c]))).filter(|(_, s)| s.calls > 0).collect(), |(_, s)| s.share);
    let (worst, w) = &parts[0];
    let name = worst.trim_start_matches('=').to_uppercase().replace('|', " ");
    let mut finding = Finding::new(format!(
        "Monitoring takes {} of a core on {}: {name} {} times a second at {} each",
        percent(s.share), node.address, count(w.rate), time_us(w.mean_us)
    ))
    .on(rows.iter().map(|(n, _)| n.address.as_str()))
    .core(s.share, format!("{} of a core on {}", percent(s.share), node.address))
    .gain(
        format!("one question every 15 s leaves {} of a core", percent(w.mean_us / 15e6)),
        format!("{:.0} us / 15 s = {:.6} cores, now {:.1}/s x {:.0} us = {:.4}", w.mean_us, w.mean_us / 15e6, w.rate, w.mean_us, w.share),
    )
    .proven("the server's own clock for these calls, in this window");
    for (command, s) in parts.iter().take(3) {
        finding = finding.saw(node, "INFO commandstats", format!("{}: {} calls, {} each, {} of a core", command.trim_start_matches('=').to_uppercase(), s.calls, time_us(s.mean_us), percent(s.share)));
    }
    let senders = node.clients.value().map_or(&[][..], |c| &c.groups);
    for group in senders.iter().filter(|g| g.commands.keys().any(|c| COMMANDS.contains(&c.split('|').next().unwrap_or("")))).take(2) {
        finding = finding.saw(node, "CLIENT LIST", format!("{} connections from {} {} {}", group.count, group.host, group.name, group.library));
    }
    finding
        .fix(
            "One exporter per node with a scrape interval of 15 to 30 s; CLIENT LIST off in it",
            &["redis_exporter: -export-client-list=false", "Prometheus: scrape_interval: 30s", "Jedis: poolConfig.setTestOnBorrow(false); setTestWhileIdle(true)"],
            "graphs get coarser",
            "restore the interval",
        )
        .into()
}
