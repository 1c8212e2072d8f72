//! The server is ready to run, but its machine is running another process.
//!
//! Other processes occupy the processors while the main thread waits in the run queue. No server-side figure shows it:
//! the slow log lists innocent commands.
//!
//! Seen when: other processes use over half a core, and the main thread waited for a processor for over 5 % of the
//! window, or for over 1 % while PING's tail latency suffers. Between 1 % and 5 % without such a tail nothing is slow
//! yet, so it is reported as a risk, as it is on a server that no application uses.
//!
//! A server that answers nothing at all is seen too: its main thread was ready to run at every look and hardly ran
//! (`node_hangs`), and unrelated processes use more than half of the CPU in use.
//!
//! What it costs: the time the main thread was ready but did not run. The CPU that the neighbours use is not the cost:
//! on a machine with cores to spare they cost the server nothing.
//!
//! Not to be taken for: the server's own threads and children on the one processor it may use (`pinned`); a CPU quota
//! (`cpu_throttled`); steal (`hypervisor_steal`), where the neighbour is another virtual machine; the server's own
//! clients on the same machine, including those in containers, which are recognised by their connections.
//!
//! How to confirm: `cat /proc/PID/schedstat` twice (the second number is the waiting time, in ns); `top -H -p PID`;
//! `pidstat -u 1 5`.
//!
//! What to do: move the neighbour, pin the server, or reserve cores.
//! Sources: /proc/pid/schedstat run delay, /proc/pressure/cpu.

use unslow_facts::{Host, Neighbour};

use super::prelude::*;
use super::standing;

pub const TITLE: &str = "Noisy neighbour";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin", "node_hangs"];
pub const INJECTED: Injected = Injected::Yes;

/// Cores that strangers use: below it they are no neighbour to speak of.
const STRANGERS: f64 = 0.5;
/// Share of the window spent waiting for a processor: it costs, whatever PING says.
const COSTS: f64 = 0.05;
/// From here on it can be told from the scheduler's everyday work.
const NOTICED: f64 = 0.01;
/// A tail that a scheduler's turns explain: they last some milliseconds.
const TAIL_US: u32 = 3000;

/// One server's waiting.
struct Waiting<'a> {
    node: &'a Node,
    host: &'a Host,
    delay: f64,
    strangers: Vec<&'a Neighbour>,
    tail: bool,
    /// It had not answered by the time limit: the share of the looks at it that it ran.
    silent_ran: Option<f64>,
}

impl Waiting<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Waiting<'a>> {
        let (host, process) = facts.process(node)?;
        let strangers = host.neighbours.iter().filter(|n| !n.client).collect();
        let (delay, tail) = (process.run_delay_share?, tail_is_hit(node, TAIL_US));
        Some(Waiting { node, host, delay, strangers, tail, silent_ran: None })
    }

    /// One that answers nothing because it gets no processor, where strangers use most of the machine. Its own threads
    /// and children are `io_threads` and `pinned`.
    fn of_silent<'a>(facts: &'a Facts, node: &'a Node) -> Option<Waiting<'a>> {
        let standing = node.standing.as_ref().filter(|_| node.silent_ms.is_some() && standing::is_starved(node))?;
        let (host, process) = facts.process(node)?;
        let is_stranger = |n: &&Neighbour| !n.client && n.parent != Some(process.pid);
        let strangers = host.neighbours.iter().filter(is_stranger).collect();
        // It was ready to run all the time.
        let ran = standing.user_ms.saturating_add(standing.system_ms) as f64;
        let ran = (ran / standing.span_ms.max(1) as f64).min(1.0);
        let waiting = Waiting { node, host, delay: 1.0 - ran, strangers, tail: true, silent_ran: Some(ran) };
        let busy = host.busy_share? * f64::from(host.cpus);
        let is_stopped = process.throttled_share.is_some_and(|share| share > COSTS);
        (waiting.cores() > STRANGERS.max(busy / 2.0) && !is_stopped).then_some(waiting)
    }

    fn cores(&self) -> f64 {
        self.strangers.iter().map(|n| n.cpu_share).sum()
    }

    /// Whether no one of the strangers uses most of what they use.
    fn is_crowd(&self) -> bool {
        self.strangers.first().is_some_and(|n| n.cpu_share < self.cores() / 2.0)
    }

    /// Waiting for the server's own clients is for other rules to report.
    fn is_noticed(&self) -> bool {
        self.cores() > STRANGERS && self.delay > NOTICED
    }

    fn costs(&self) -> bool {
        self.silent_ran.is_some() || (is_used(self.node) && (self.delay > COSTS || self.tail))
    }
}

/// Whether PING's p99 stands this far above its minimum and far above its median, and no command of the server's
/// explains it.
pub(super) fn tail_is_hit(node: &Node, by_us: u32) -> bool {
    let Some(rtt) = node.rtt.value() else { return false };
    let slow = slow_entries(node, 0).iter().any(|e| e.us >= u64::from(by_us) / 3);
    rtt.us_p99 > rtt.us_p50.saturating_mul(5).max(rtt.us_min.saturating_add(by_us)) && !slow
}

pub fn check(facts: &Facts) -> Verdict {
    let silent = facts.nodes.iter().filter_map(|node| Waiting::of_silent(facts, node));
    let all: Vec<Waiting<'_>> =
        facts.live().filter_map(|node| Waiting::of(facts, node)).chain(silent).collect();
    // What costs stands before what only might.
    let noticed = |w: &&Waiting<'_>| w.is_noticed() && !super::pinned::speaks(facts, w.node);
    let rows = by_worst(all.iter().filter(noticed).collect(), |w| w.delay + f64::from(u8::from(w.costs())));
    let Some(worst) = rows.first() else { return absent(&all) };
    let (node, host, delay) = (worst.node, worst.host, worst.delay);
    let busy = worst.silent_ran.unwrap_or_else(|| node.cpu().map_or(0.0, |(u, s)| u + s));
    let span = if worst.silent_ran.is_some() { "time it was looked at" } else { "window" };
    let who: Vec<String> = worst
        .strangers
        .iter()
        .take(3)
        .map(|n| format!("{} (pid {}) {} of a core", n.name, n.pid, percent(n.cpu_share)))
        .collect();
    let whose = match who.first() {
        None => "other processes occupy it".into(),
        Some(first) if worst.is_crowd() => {
            format!("{} other processes use {:.1} cores, the largest is {first}", worst.strangers.len(), worst.cores())
        }
        Some(first) => first.clone(),
    };
    let finding = Finding::new(format!(
        "{} waits for a processor {} of the time: {whose}",
        node.address,
        percent(delay),
    ))
    .on(rows.iter().map(|w| w.node.address.as_str()));
    let text = format!(
        "it waits {} of the time that it wants to run; other processes use {} cores of {}",
        percent(delay / (busy + delay).max(0.001)),
        count(worst.cores()),
        host.cpus
    );
    let finding = if worst.costs() {
        let finding = finding.core(delay, text).gain(
            "alone on its core it would not wait",
            format!("ready and not running {delay:.3} of the {span}, running {busy:.3}"),
        );
        match worst.silent_ran.is_some() {
            true => finding.likely(
                "the main thread was ready to run at every look and hardly ran; that these processes hold its \
                 processor is inferred from the CPU they use",
            ),
            false => finding.proven("the kernel counted the main thread's waiting in this window"),
        }
    } else {
        finding
            .risk(format!(
                "{text}; {}",
                if is_used(node) { "no request shows it yet" } else { "no application uses it now" }
            ))
            .likely("the waiting was counted by the kernel; no request was seen waiting because of it")
    };
    let finding = if worst.silent_ran.is_some() { standing::with(finding, node, |_| true) } else { finding };
    let pressure = host.pressure.get("cpu.some").map(|p| format!("some task waited {} of the time", percent(*p)));
    let finding = finding
        .saw_at(
            format!("/proc/PID/{} ({})", if worst.silent_ran.is_some() { "stat" } else { "schedstat" }, host.hostname),
            match worst.silent_ran.is_some() {
                true => format!("ready to run and not running {} of the {span}", percent(delay)),
                false => format!("run delay {} of the {span}", percent(delay)),
            },
            host.at_ms,
        )
        .saw_at(format!("processes ({})", host.hostname), who.join(", "), host.at_ms);
    let finding = match pressure {
        Some(text) => finding.saw_at(format!("/proc/pressure/cpu ({})", host.hostname), text, host.at_ms),
        None => finding,
    };
    let finding = match facts.process(node).and_then(|(_, p)| p.throttled_share) {
        Some(share) => finding.not(format!("a CPU quota: throttled {} of the time", percent(share))),
        None => finding,
    };
    let finding = match host.steal_share {
        Some(steal) => finding.not(format!("the hypervisor: it took {} of the processors' time", percent(steal))),
        None => finding,
    };
    ways_out(finding, worst).into()
}

fn ways_out(finding: Finding, worst: &Waiting<'_>) -> Finding {
    // Of many small ones, two moved out of the way free nothing.
    let large = if worst.is_crowd() { 0 } else { 2 };
    let large: Vec<&&Neighbour> = worst.strangers.iter().take(large).collect();
    let mut commands: Vec<String> =
        large.iter().map(|n| format!("renice -n 10 -p {}   ({})", n.pid, n.name)).collect();
    // With one core there is nowhere to move it to.
    if worst.host.cpus > 1 {
        let first = large.first();
        commands.extend(
            first.map(|n| format!("taskset -cp CORE {}   ({}, to a core the server does not use)", n.pid, n.name)),
        );
        if worst.node.level() >= (6, 0) {
            commands
                .push("server-cpulist CORE   (redis.conf or valkey.conf, then restart: the server's own core)".into());
        }
    }
    commands.push("systemctl set-property SERVICE CPUWeight=1000   (the server's unit)".into());
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let back = large.iter().map(|n| format!("renice -n NICE -p {}", n.pid)).collect::<Vec<_>>().join("; ");
    let back = if large.is_empty() { back } else { format!("{back}   (as it was: ps -o ni -p PID)") };
    let text = match worst.is_crowd() {
        false => format!("On {}: move the neighbour, or reserve a core for the server", worst.host.hostname),
        true => format!("On {}: give the server more weight than these processes, or a core", worst.host.hostname),
    };
    finding.fix(&text, &commands, "the neighbours get slower", &back)
}

fn absent(all: &[Waiting<'_>]) -> Verdict {
    let Some(worst) = all.iter().max_by(|a, b| a.delay.total_cmp(&b.delay)) else {
        return Verdict::unknown(Lack::Host, "run queue: the server's machine could not be inspected", SEE_HOST);
    };
    let used = all.iter().map(Waiting::cores).fold(0.0, f64::max);
    Verdict::Absent(format!(
        "run queue: the main threads waited {} of the time at most, other processes use {} cores",
        percent(worst.delay),
        count(used)
    ))
}

/// What lets the machine be seen.
pub(super) const SEE_HOST: &str =
    "run unslow on the server's machine, or: unslow host --save host.json there, and --host host.json here";
