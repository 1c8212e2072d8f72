//! The main thread spends its time in the kernel's network stack, not in commands.
//!
//! Every read and every write is a system call through TCP. At one command per read a GET costs about 2.6 us of which
//! 86 % is the kernel and 0.05 us the command; at a depth of 16 it costs 0.4 us.
//!
//! Seen when: the main thread uses over 70 % of a core, at least half of that in the kernel, commands themselves take under
//! 30 % of it, and fewer than 4 commands come per read.
//!
//! Not to be taken for: slow commands (the server's own clock for commands says so), connection churn, TLS.
//!
//! What to do: pipeline or batch; for clients on the server's machine `unslow bypass` (measured: a GET costs the server 0.6 us
//! instead of 3.4); a multiplexing proxy; io-threads where there are cores.
//! Sources: INFO cpu (main thread since 6.2), commandstats; measured fit: us per command = 0.28 + 2.36 / depth.

use super::prelude::*;

pub const TITLE: &str = "Kernel bound";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// What a GET costs beside the command itself over shared memory (bench/bypass.sh, 50 connections, no pipelining).
const BYPASS_US: f64 = 0.55;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (user, sys) = node.cpu()?;
            let (cpu, inside, ops) = (user + sys, node.inside_share()?, node.ops()?);
            let depth = node.depth();
            let bound = cpu > 0.7 && sys / cpu >= 0.5 && inside / cpu < 0.3 && depth.is_none_or(|d| d < 4.0);
            bound.then_some((node, cpu, sys, inside, ops, depth))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1);
    let Some((node, cpu, sys, inside, ops, depth)) = rows.first() else {
        let most = most(facts, |n| Some(n.cpu()?.1));
        return Verdict::Absent(most.map(|m| format!("the kernel's share: {} of a core at most", percent(m))));
    };
    let per_us = cpu / ops * 1e6;
    let inside_us = inside / ops * 1e6;
    let d = depth.unwrap_or(1.0);
    let at_10 = inside_us + (per_us - inside_us) * d / 10.0;
    let saved = (cpu * (1.0 - at_10 / per_us)).max(0.0);
    let depth_text = depth.map_or("depth unknown before 6.0".to_string(), |d| format!("{d:.2} commands per read"));
    let finding = Finding::new(format!(
        "{} spends {} of its main thread in the kernel's network path and {} in commands ({depth_text})",
        node.address, percent(sys / cpu), percent(inside / cpu)
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .core(saved, format!("{} of a core at {} commands/s: {} each, {} of it the command", percent(*cpu), count(*ops), time_us(per_us), time_us(inside_us)))
    .gain(
        format!("10 commands per read: {} each, {} of a core back", time_us(at_10), percent(saved)),
        format!("{inside_us:.2} + ({per_us:.2} - {inside_us:.2}) x {d:.2} / 10 = {at_10:.2} us"),
    );
    let finding = match depth {
        Some(_) => finding.proven("CPU split, command time and depth were all measured in one window"),
        None => finding.likely("the CPU split and the command time were measured; the depth is not counted before 6.0"),
    };
    finding
        .saw(node, "INFO cpu", format!("main thread {} of a core: {} user, {} kernel", percent(*cpu), percent(cpu - sys), percent(*sys)))
        .saw(node, "INFO commandstats", format!("{} of a core inside commands", percent(*inside)))
        .saw(node, "INFO stats", format!("{} commands/s, {depth_text}", count(*ops)))
        .not(format!("slow commands: {} of the main thread's time", percent(inside / cpu)))
        .fix("Pipeline or batch in the clients", &["Spring: RedisTemplate.executePipelined(...)", "Jedis: jedis.pipelined()", "redis-py: r.pipeline(transaction=False)", "MGET / MSET"], "replies come together", "send one by one again")
        .fix(&format!("For clients on the server's own machine: shared memory instead of TCP, about {} a command instead of {}", time_us((inside_us + BYPASS_US).min(per_us)), time_us(per_us)), &["unslow bypass -- redis-server /etc/redis/redis.conf", "unslow bypass --client -- (the client's command)"], "needs a restart of both; who is not preloaded goes on over TCP", "start them without it")
        .fix("Where the server has 4 cores or more: let io-threads take the sockets", &["io-threads 3   (in redis.conf or valkey.conf, then restart)"], "harm on 2 cores; needs a restart, except on the newest Valkey", "io-threads 1")
        .into()
}
