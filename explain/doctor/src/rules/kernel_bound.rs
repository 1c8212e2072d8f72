//! The main thread spends its time in the kernel's network stack, not in commands.
//!
//! Every read and every write is a system call through TCP. At one command per read a GET costs about 2.6 us, of which
//! 86 % is the kernel and 0.05 us the command; at a depth of 16 it costs 0.4 us.
//!
//! Seen when: at least half of the main thread's time is spent in the kernel, commands themselves take under 30 % of
//! it, fewer than 4 commands arrive per read, and it uses over 70 % of a core; or over 50 %, if no connection is bound
//! by its round trip. Before 6.0, which does not count reads, it is not seen where commands cost so little that two or
//! more must share a read.
//!
//! Where it meets `no_pipelining`: both are the same habit, one command at a time. Up to 70 % busy, clients that wait
//! for round trips lose latency, and that rule reports it; if they do not wait (many connections share the work, or one
//! is as fast as the server), the price is the core, and this rule reports it. Above 70 % it is always this one. Below
//! half a core nothing is short yet, and neither reports it. They never both do.
//!
//! Not to be taken for: slow commands (the server's own clock for commands shows them), connection churn, TLS; values
//! of tens of kilobytes (`big_values`), where the bytes are the cost and not the system calls, and batches would change
//! nothing.
//!
//! How to confirm: run `INFO cpu` and `INFO stats` twice; `perf top -p PID` shows tcp_sendmsg, tcp_recvmsg and the
//! like.
//!
//! What to do: pipeline or batch; for clients on the server's machine `unslow bypass` (measured: a GET costs the server
//! 0.6 us instead of 3.4); a multiplexing proxy; io-threads if there are cores for them.
//! Sources: INFO cpu (main thread since 6.2), commandstats; measured fit: us per command = 0.28 + 2.36 / depth.

use super::big_values;
use super::far_client::is_local;
use super::io_threads::{cores, is_set_at_runtime};
use super::no_pipelining;
use super::prelude::*;

pub const TITLE: &str = "Kernel bound";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Busy shares: above the first the habit costs the core whether or not clients wait; below the second nothing is
/// short.
pub(super) const BUSY: f64 = 0.7;
const HALF: f64 = 0.5;
/// What a GET costs beside the command itself over shared memory (bench/bypass.sh, 50 connections, no pipelining).
const BYPASS_US: f64 = 0.55;

/// A server whose time goes to its sockets.
struct Bound<'a> {
    node: &'a Node,
    cpu: f64,
    sys: f64,
    inside: f64,
    ops: f64,
    depth: Option<Depth>,
}

impl Bound<'_> {
    fn of(node: &Node) -> Option<Bound<'_>> {
        let (user, sys) = node.cpu()?;
        let (cpu, inside, ops, depth) = (user + sys, node.inside_share()?, node.ops()?, Depth::of(node));
        let few_at_a_time = depth.is_none_or(|depth| match depth {
            Depth::Counted(commands) => commands < 4.0,
            // A bound from below: a batch of sixteen was taken for 2.5 or more.
            Depth::AtLeast(commands) => commands < 2.0,
        });
        let of_the_kernel = cpu > 0.0 && ops > 0.0 && sys / cpu >= 0.5 && inside / cpu < 0.3 && few_at_a_time;
        let busy = cpu > BUSY || (cpu > HALF && !no_pipelining::speaks(node));
        let is_bound = of_the_kernel && busy && !big_values::speaks(node);
        is_bound.then_some(Bound { node, cpu, sys, inside, ops, depth })
    }
}

/// Whether this rule names the node.
pub(super) fn speaks(node: &Node) -> bool {
    Bound::of(node).is_some()
}

pub fn check(facts: &Facts) -> Verdict {
    let rows = by_worst(facts.live().filter_map(Bound::of).collect(), |b| b.cpu);
    let Some(Bound { node, cpu, sys, inside, ops, depth }) = rows.first() else {
        let most = most(facts, |n| Some(n.cpu()?.1));
        let text = most.map(|m| format!("the kernel's share: at most {} of a core", percent(m)));
        return Verdict::absent(facts, "the kernel's share", text);
    };
    let per_us = cpu / ops * 1e6;
    let inside_us = inside / ops * 1e6;
    let d = depth.map_or(1.0, Depth::commands);
    let at_10 = inside_us + (per_us - inside_us) * d / 10.0;
    let saved = (cpu * (1.0 - at_10 / per_us)).max(0.0);
    let depth_text = depth.map_or("depth unknown before 6.0".to_string(), Depth::text);
    let each = format!("{} each, {} of it the command", time_us(per_us), time_us(inside_us));
    let finding = Finding::new(format!(
        "{} spends {} of its main thread in the kernel's network path and {} in commands ({depth_text})",
        node.address,
        percent(sys / cpu),
        percent(inside / cpu)
    ))
    .on(rows.iter().map(|b| b.node.address.as_str()))
    .core(saved, format!("{} of a core at {} commands/s: {each}", percent(*cpu), count(*ops)))
    .gain(
        format!("at 10 commands per read, {} each, and {} of a core free again", time_us(at_10), percent(saved)),
        format!("{inside_us:.2} us + ({per_us:.2} us - {inside_us:.2} us) x {d:.2} / 10 = {at_10:.2} us a command"),
    );
    // There is room left: it costs, and does not hurt yet.
    let finding = if *cpu > BUSY { finding } else { finding.severity(Severity::Medium) };
    let finding = match depth {
        Some(Depth::Counted(_)) => finding.proven("CPU split, command time and depth were all measured in one window"),
        _ => finding.likely("the CPU split and the command time were measured; the depth is not counted before 6.0"),
    };
    let split =
        format!("main thread {} of a core: {} user, {} kernel", percent(*cpu), percent(cpu - sys), percent(*sys));
    let mut finding = finding
        .saw(node, "INFO cpu", split)
        .saw(node, "INFO commandstats", format!("{} of a core inside commands", percent(*inside)))
        .saw(node, "INFO stats", format!("{} commands/s, {depth_text}", count(*ops)))
        .not(format!("slow commands: {} of the main thread's time", percent(inside / cpu)))
        .fix(
            "Pipeline or batch in the clients",
            &no_pipelining::pipelining(node),
            "replies arrive together; a failed command fails alone",
            "",
        );
    if has_local_clients(node) {
        let (bypassed, now) = (time_us((inside_us + BYPASS_US).min(per_us)), time_us(per_us));
        finding = finding.fix(
            &format!(
                "For clients on the server's own machine: shared memory instead of TCP, about {bypassed} a \
                      command instead of {now}"
            ),
            &["unslow bypass -- redis-server /etc/redis/redis.conf", "unslow bypass --client -- CLIENT-COMMAND"],
            "needs a restart of both; clients without the preload keep using TCP",
            "start both without the preload",
        );
    }
    with_io_threads(finding, facts, node).into()
}

/// Whether clients are seen that run on the server's own machine.
fn has_local_clients(node: &Node) -> bool {
    let sockets = node.sockets.value().into_iter().flatten().any(|p| is_local(node, &p.host));
    sockets || node.clients.value().into_iter().flat_map(|c| &c.groups).any(|g| is_local(node, &g.host))
}

/// The way out that hands sockets to other threads, where the server has the version and is not known to lack the
/// cores.
pub(super) fn with_io_threads(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    const CORES: f64 = 4.0;
    let on = node.setting_number("io-threads").is_some_and(|n| n > 1.0);
    if node.level() < (6, 0) || on {
        return finding;
    }
    let known = facts.process(node).map(|(host, process)| cores(host, process));
    if known.is_some_and(|cores| cores < CORES) {
        return finding;
    }
    let text = "Let io-threads handle the sockets";
    let threads = known.map_or(3.0, |cores| (cores / 2.0).clamp(2.0, 8.0));
    let only = if known.is_none() { "; only with 4 cores or more" } else { "" };
    if is_set_at_runtime(node) {
        let set = cli(&node.address, &format!("CONFIG SET io-threads {threads:.0}"));
        let line = if known.is_none() { format!("{set}   (only with 4 cores or more)") } else { set };
        return finding.fix(text, &[&line], "does harm on 2 cores", &cli(&node.address, "CONFIG SET io-threads 1"));
    }
    let mut commands = vec![format!("io-threads {threads:.0}   (in redis.conf or valkey.conf, then restart{only})")];
    // Of Redis 6 and 7, and of Valkey 7: later ones read with them anyway.
    if node.info().and_then(|i| i.version()).is_some_and(|(major, ..)| major < 8) {
        commands.push("io-threads-do-reads yes   (without it they write replies alone)".into());
    }
    let lines: Vec<&str> = commands.iter().map(String::as_str).collect();
    finding.fix(text, &lines, "does harm on 2 cores; needs a restart", "io-threads 1")
}
