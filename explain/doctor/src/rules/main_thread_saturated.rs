//! The main thread has no time left. This is a symptom: the finding always splits it into its causes and states what is
//! left unexplained.
//!
//! One thread runs all commands. Above 90 % every request queues behind others: at a utilisation of rho the mean wait
//! is rho / (2 (1 - rho)) service times.
//!
//! Seen when: the main thread used over 90 % of a core in the window. With io-threads it polls for their results, which
//! looks the same in CPU time: the rule then uses the time that the server calls active (Valkey 9.1+), or leaves out
//! what the split cannot explain.
//!
//! Not to be taken for: io-threads that poll (the main thread's own figures are used since 6.2), more of them than
//! processors (`io_threads`), or child processes that save.
//!
//! How to confirm: `top -H -p PID`, the first thread; `INFO commandstats` twice for the largest part.
//!
//! What to do: fix the cause listed above it, if one was found; otherwise reduce the largest part of the split.
//! Sources: INFO used_cpu_*_main_thread (6.2+), commandstats, expire_cycle_cpu_milliseconds.

use super::connection_churn::Churn;
use super::kernel_bound::with_io_threads;
use super::prelude::*;

pub const TITLE: &str = "Main thread saturated";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

const FULL: f64 = 0.9;

/// What the main thread's time went to, in shares of a core; together they are all of it.
struct Split {
    cpu: f64,
    commands: f64,
    expiry: f64,
    defrag: f64,
    connections: f64,
    sockets: f64,
    rest: f64,
}

impl Split {
    fn of(facts: &Facts, node: &Node, user: f64, sys: f64) -> Split {
        let cpu = user + sys;
        let mut left = cpu;
        let mut take = |share: f64| {
            let share = share.clamp(0.0, left.max(0.0));
            left -= share;
            share
        };
        // Scripts and transactions count their inner commands twice: never more than all.
        let commands = take(node.inside_share().unwrap_or(0.0));
        let expiry = take(node.rate("expire_cycle_cpu_milliseconds").map_or(0.0, |ms| ms / 1000.0));
        let defrag = take(node.number("active_defrag_running").unwrap_or(0.0) / 100.0);
        // The time inside AUTH and the like stands among the commands already.
        let connections = take(Churn::of(facts, node).map_or(0.0, |c| c.share - c.greeting));
        // What the kernel takes beyond new connections: reading and writing sockets.
        let sockets = take(sys - connections);
        Split { cpu, commands, expiry, defrag, connections, sockets, rest: left.max(0.0) }
    }
}

/// Whether the main thread polls for the results of io-threads.
fn polls(node: &Node) -> bool {
    let set = node.setting_number("io-threads").is_some_and(|n| n > 1.0);
    set || node.delta("io_threaded_writes_processed").is_some_and(|n| n > 0.0)
}

/// Share of the window in which the main thread worked; polling is no work.
fn worked(facts: &Facts, node: &Node) -> Option<f64> {
    let (user, sys) = node.cpu()?;
    if !polls(node) {
        return Some(user + sys);
    }
    let split = Split::of(facts, node, user, sys);
    let explained = split.cpu - split.rest;
    Some(node.rate("used_active_time_main_thread").map_or(explained, |active| active.min(split.cpu)))
}

pub fn check(facts: &Facts) -> Verdict {
    let full = |n: &&Node| worked(facts, n).is_some_and(|share| share > FULL);
    let rows: Vec<_> = facts.live().filter(full).filter_map(|n| Some((n, n.cpu()?))).collect();
    let rows = by_worst(rows, |(_, (u, s))| u + s);
    let Some((node, (user, sys))) = rows.first() else {
        let most = most(facts, |n| worked(facts, n));
        return Verdict::absent(
            facts,
            "main thread",
            most.map(|m| format!("main thread: {} busy at most", percent(m))),
        );
    };
    let split = Split::of(facts, node, *user, *sys);
    let Split { cpu, commands, expiry, defrag, connections, sockets, rest } = split;
    let used = by_worst(node.commands().into_iter().collect(), |(_, s)| s.usec as f64);
    let share = |usec: u64| percent(usec as f64 / 1e6 / node.window_s.max(0.001));
    let top: Vec<String> =
        used.iter().take(3).map(|(n, s)| format!("{} {}", n.to_uppercase().replace('|', " "), share(s.usec))).collect();
    let depth = node.depth().map_or("unknown".into(), |d| format!("{d:.1}"));
    let finding = Finding::new(format!(
        "The main thread of {} is {} busy: commands {}, sockets {}, new connections {}, expiry {}, unexplained {}",
        node.address,
        percent(cpu),
        percent(commands),
        percent(sockets),
        percent(connections),
        percent(expiry),
        percent(rest)
    ))
    .on(rows.iter().map(|(n, _)| n.address.as_str()))
    .core(cpu, format!("{} of a core; left for more load: {}", percent(cpu), percent((1.0 - cpu).max(0.0))))
    .gain(
        "the largest part of the split is the one to reduce",
        format!(
            "{cpu:.2} = {commands:.2} commands + {sockets:.2} sockets + {connections:.2} connections + {expiry:.2} \
             expiry + \
             {defrag:.2} defragmentation + {rest:.2} unexplained"
        ),
    )
    .proven("measured by the server; the parts of the split add up to it")
    .saw(node, "INFO cpu", format!("user {}, kernel {} of a core", percent(*user), percent(*sys)))
    .saw(node, "INFO commandstats", format!("inside commands {}: {}", percent(commands), top.join(", ")))
    .saw(node, "INFO stats", format!("{} commands/s, {depth} per read", count(node.ops().unwrap_or(0.0))));
    let finding = if sockets > commands { with_io_threads(finding, facts, node) } else { finding };
    more_servers(finding, facts, node).into()
}

/// More of what the deployment has already.
fn more_servers(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let replicas = node.info().map_or(0, |i| i.replicas().iter().filter(|r| r.2 == "online").count());
    let finding = if replicas > 0 && node.is_master() {
        finding.fix(
            "Let replicas serve reads that may be slightly stale",
            &[
                "Lettuce: ReadFrom.REPLICA_PREFERRED",
                "Jedis, redis-py, go-redis: a second client at the replicas' addresses",
            ],
            "replicas lag slightly behind their master",
            "ReadFrom.MASTER",
        )
    } else {
        finding
    };
    match facts.kind {
        DeploymentKind::Cluster => finding.fix(
            "Once the cause is removed, add masters and move some of its slots to them",
            &[
                &format!("redis-cli --cluster add-node NEW:PORT {}", node.address),
                &format!("redis-cli --cluster rebalance {} --cluster-use-empty-masters", node.address),
            ],
            "keys move while clients use them, which causes some redirects",
            "",
        ),
        _ => finding.fix(
            "If the load is going to grow: spread the keys over several masters, once the cause is removed",
            &["redis-cli --cluster create HOST:PORT HOST:PORT HOST:PORT   (new servers with cluster-enabled yes)"],
            "commands on several keys need all of them in one slot",
            "",
        ),
    }
}
