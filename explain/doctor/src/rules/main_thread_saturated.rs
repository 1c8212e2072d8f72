//! The main thread has no time left. This is a symptom: it is always split into its causes, and the rest is stated.
//!
//! One thread runs all commands. Above 90 % every request queues behind others: at a busy share of rho the mean wait is
//! rho / (2 (1 - rho)) service times.
//!
//! Seen when: the main thread used over 90 % of a core in the window.
//!
//! Not to be taken for: io-threads that poll (the main thread's own figures are used since 6.2), or saving children.
//!
//! What to do: the cause above it, where one was found; else the largest part of the split.
//! Sources: INFO used_cpu_*_main_thread (6.2+), commandstats, expire_cycle_cpu_milliseconds.

use super::prelude::*;

pub const TITLE: &str = "Main thread saturated";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts.live().filter_map(|n| Some((n, n.cpu()?))).filter(|(_, (u, s))| u + s > 0.9).collect();
    let rows = by_worst(rows, |(_, (u, s))| u + s);
    let Some((node, (user, sys))) = rows.first() else {
        let most = most(facts, |n| n.cpu().map(|(u, s)| u + s));
        return Verdict::Absent(most.map(|m| format!("main thread: {} busy at most", percent(m))));
    };
    let cpu = user + sys;
    // Scripts and transactions count their inner commands twice: never more than all.
    let inside = node.inside_share().unwrap_or(0.0).min(cpu);
    let expire = node.rate("expire_cycle_cpu_milliseconds").map_or(0.0, |ms| ms / 1000.0);
    let defrag = node.number("active_defrag_running").unwrap_or(0.0) / 100.0;
    let churn = node.rate("total_connections_received").unwrap_or(0.0) * 17.5e-6;
    // What the kernel takes beyond commands, churn, expiry: reading and writing sockets.
    let sockets = (sys - churn).max(0.0).min((cpu - inside - expire).max(0.0));
    let rest = (cpu - inside - expire - defrag - churn - sockets).max(0.0);
    let commands = by_worst(node.commands().into_iter().collect(), |(_, s)| s.usec as f64);
    let top: Vec<String> = commands.iter().take(3).map(|(n, s)| format!("{} {}", n.to_uppercase().replace('|', " "), percent(s.usec as f64 / 1e6 / node.window_s))).collect();
    Finding::new(format!(
        "The main thread of {} is {} busy: commands {}, sockets {}, new connections {}, expiry {}, unexplained {}",
        node.address, percent(cpu), percent(inside), percent(sockets), percent(churn), percent(expire), percent(rest)
    ))
    .on(rows.iter().map(|(n, _)| n.address.as_str()))
    .core(cpu, format!("{} of a core; what is left for more load: {}", percent(cpu), percent((1.0 - cpu).max(0.0))))
    .gain("the largest part of the split is what to take away", format!("{cpu:.2} = {inside:.2} commands + {sockets:.2} sockets + {churn:.2} connections + {expire:.2} expiry + {defrag:.2} defrag + {rest:.2} unexplained"))
    .proven("measured by the server; the split adds up to it")
    .saw(node, "INFO cpu", format!("user {}, kernel {} of a core", percent(*user), percent(*sys)))
    .saw(node, "INFO commandstats", format!("inside commands {}: {}", percent(inside), top.join(", ")))
    .saw(node, "INFO stats", format!("{} commands/s, {} per read", count(node.ops().unwrap_or(0.0)), node.depth().map_or("unknown".into(), |d| format!("{d:.1}"))))
    .fix("More shards, or reads from replicas, once the cause is gone", &["CLUSTER: add masters and rebalance", "ReadFrom.REPLICA_PREFERRED"], "replicas answer a little behind", "as it was")
    .into()
}
