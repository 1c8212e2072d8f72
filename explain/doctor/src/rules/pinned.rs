//! The server may only run on one processor, and its own threads and children compete for it.
//!
//! A server is more than its main thread: background threads free memory and sync files, io-threads read and write
//! sockets, children save. If all of them are bound to one processor (taskset, a cpuset of one, server-cpulist and
//! bio-cpulist alike), each of them takes time away from the main thread, while the machine's other processors are
//! idle.
//!
//! Seen when: the process may use one processor of several, its main thread waited for it for over 5 % of the window,
//! its other threads and children used at least half as much time as that, and the other processors had enough idle
//! time to run them.
//!
//! What it costs: the time the main thread was ready but did not run.
//!
//! Not to be taken for: `noisy_neighbour`, where other processes occupy the processor: if they use over half a core,
//! that rule reports it; `cpu_throttled`, where a quota takes the time away; a machine that has one processor, or none
//! to spare.
//!
//! How to confirm: `taskset -acp PID`; `top -H -p PID` with column P (last used processor);
//! `cat /proc/PID/task/PID/schedstat` twice: the second number is the waiting time, in ns.
//!
//! What to do: give the process more processors; if its main thread is to stay on one, bind the other threads elsewhere
//! (bio-cpulist, bgsave-cpulist, aof-rewrite-cpulist).
//! Sources: /proc/PID/status Cpus_allowed_list, /proc/PID/task/PID/schedstat; redis.conf server-cpulist.

use unslow_facts::{Host, Neighbour, Process};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Pinned to one processor";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin", "io_threads"];
pub const INJECTED: Injected = Injected::Yes;

/// Share of the window spent waiting for a processor: it costs.
const COSTS: f64 = 0.05;
/// Of that waiting, what its own threads and children must account for.
const OWN: f64 = 0.5;
/// Cores that strangers use: from here on they are the cause.
const STRANGERS: f64 = 0.5;
/// Idle cores that are room enough, whatever its threads use.
const SPARE: f64 = 0.5;

/// A server that may use one processor.
struct Pinned<'a> {
    node: &'a Node,
    host: &'a Host,
    process: &'a Process,
    delay: f64,
    /// Cores that its other threads used.
    threads: f64,
    /// Cores that its children used.
    children: f64,
    strangers: f64,
    /// Idle cores of its machine.
    spare: f64,
}

impl Pinned<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Pinned<'a>> {
        let (host, process) = facts.process(node)?;
        if process.cpus_allowed? != 1 || host.cpus < 2 {
            return None;
        }
        let used = |is_own: bool| {
            let of = |n: &&Neighbour| !n.client && (n.parent == Some(process.pid)) == is_own;
            host.neighbours.iter().filter(of).map(|n| n.cpu_share).sum::<f64>()
        };
        let main = process.main_cpu_share.or_else(|| node.cpu().map(|(user, sys)| user + sys))?;
        Some(Pinned {
            node,
            host,
            process,
            delay: process.run_delay_share?,
            threads: (process.cpu_share? - main).max(0.0),
            children: used(true),
            strangers: used(false),
            spare: (1.0 - host.busy_share?).max(0.0) * f64::from(host.cpus),
        })
    }

    fn own(&self) -> f64 {
        self.threads + self.children
    }

    fn costs(&self) -> bool {
        let by_itself = self.own() >= OWN * self.delay && self.strangers <= STRANGERS;
        let has_room = self.spare >= self.own().min(SPARE);
        self.delay > COSTS && by_itself && has_room && is_used(self.node)
    }

    /// Its processor, by number.
    fn processor(&self) -> String {
        self.process.processors.first().map_or("one processor".into(), |n| format!("processor {n}"))
    }
}

/// Whether this rule tells what a server waits for.
pub(super) fn speaks(facts: &Facts, node: &Node) -> bool {
    Pinned::of(facts, node).is_some_and(|p| p.costs())
}

pub fn check(facts: &Facts) -> Verdict {
    let looked = facts.live().filter_map(|n| facts.process(n)?.1.cpus_allowed).min();
    let Some(least) = looked else {
        let why = "processors of the servers: their machine could not be inspected";
        return Verdict::unknown(Lack::Host, why, SEE_HOST);
    };
    let all: Vec<Pinned<'_>> = facts.live().filter_map(|node| Pinned::of(facts, node)).collect();
    let rows = by_worst(all.iter().filter(|p| p.costs()).collect(), |p| p.delay);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|p| p.node.address.as_str())).into();
    }
    let bound = |n: &Node| facts.process(n).is_some_and(|(h, p)| p.cpus_allowed == Some(1) && h.cpus > 1);
    match all.iter().map(|p| p.delay).reduce(f64::max) {
        Some(delay) => {
            let why = match delay > COSTS {
                true => "not because of their own threads and children, or no other processor is free",
                false => "so one is enough",
            };
            Verdict::Absent(format!(
                "processors of the servers: bound to one; the main threads waited {} of the time at most, {why}",
                percent(delay)
            ))
        }
        None if facts.live().any(bound) => {
            let why =
                "processors of the servers: bound to one, but how long the main thread waited for it was not shown";
            Verdict::unknown(Lack::Host, why, SEE_HOST)
        }
        None => Verdict::Absent(format!(
            "processors of the servers: each may use {least} or more, or its machine has only one"
        )),
    }
}

fn found(worst: &Pinned<'_>) -> Finding {
    let (node, host, process) = (worst.node, worst.host, worst.process);
    let busy = process.main_cpu_share.or_else(|| node.cpu().map(|(user, sys)| user + sys)).unwrap_or(0.0);
    let (delay, own) = (worst.delay, worst.own());
    let finding = Finding::new(format!(
        "{} may only use {}, and its own threads and children take {} of it: the main thread waits {} of the time",
        node.address,
        worst.processor(),
        percent(own),
        percent(delay)
    ))
    .core(
        delay,
        format!(
            "it waits {} of the time that it wants to run; the machine has {} idle cores",
            percent(delay / (busy + delay).max(0.001)),
            count(worst.spare)
        ),
    )
    .gain(
        "on a processor of its own the main thread would not wait",
        format!(
            "ready and not running {delay:.3} of the window, running {busy:.3}; other threads {:.3}, children {:.3}",
            worst.threads, worst.children
        ),
    )
    .likely(
        "the kernel counted the main thread's waiting, and the time of its other threads and children, in this window; \
         that they are \
         bound to the same processor is inferred from the main thread's mask",
    )
    .saw_at(
        format!("/proc/{}/status ({})", process.pid, host.hostname),
        format!("Cpus_allowed_list: one of {} processors", host.cpus),
        host.at_ms,
    )
    .saw_at(
        format!("/proc/{}/task/{}/schedstat ({})", process.pid, process.pid, host.hostname),
        format!("on the processor {}, waiting for it {} of the window", percent(busy), percent(delay)),
        host.at_ms,
    )
    .saw_at(
        format!("/proc/PID/stat ({})", host.hostname),
        format!("other threads {} of a core, children {}", percent(worst.threads), percent(worst.children)),
        host.at_ms,
    )
    .not(format!("a neighbour: other processes use {} cores", count(worst.strangers)));
    let finding = match process.throttled_share {
        Some(share) => finding.not(format!("a CPU quota: throttled {} of the time", percent(share))),
        None => finding,
    };
    ways_out(finding, worst)
}

fn ways_out(finding: Finding, worst: &Pinned<'_>) -> Finding {
    let (node, host, pid) = (worst.node, worst.host, worst.process.pid);
    let back = match worst.process.processors.first() {
        Some(n) => format!("taskset -acp {n} {pid}"),
        None => String::new(),
    };
    let finding = finding.fix(
        &format!("On {}: let all threads of the server use every processor", host.hostname),
        &[&format!("taskset -acp 0-{} {pid}", host.cpus.saturating_sub(1))],
        "a cpuset of its container or unit may not allow it; those processors may be reserved for other programs",
        &back,
    );
    let finding = finding.fix(
        "For good: find where the binding comes from",
        &[
            "systemctl show SERVICE -p CPUAffinity -p AllowedCPUs",
            "docker update --cpuset-cpus 0-3 CONTAINER   (kubernetes: a whole number of CPUs, at least 2)",
        ],
        "",
        "",
    );
    // The settings are of 6.0; they count from the next start.
    if node.level() < (6, 0) {
        return finding;
    }
    finding.fix(
        "If the main thread is to keep its processor, bind the other threads elsewhere (redis.conf or valkey.conf, \
         then restart)",
        // These spellings are known to all versions that have the settings.
        &["bio_cpulist 1-3   (background threads)", "bgsave_cpulist 1-3", "aof_rewrite_cpulist 1-3"],
        "takes effect after a restart",
        "",
    )
}
