//! The server's processor handles the interrupts of a network card: packets take precedence over the main thread.
//!
//! If a card has one queue, or its queues' interrupts are all on one processor, that processor handles every packet of
//! the machine. A main thread that runs on the same processor is interrupted for each of them. `top` shows a slow
//! server at 70 %, and a high %si on one processor.
//!
//! Seen when: the processor that the main thread ran on spent 30 % of the window or more in soft interrupts, and took
//! interrupts of devices. It has a cost if that processor had no time left (90 % busy), the main thread did a good part
//! of the work there, and the server is in use; otherwise it is a risk.
//!
//! Not to be taken for: steal (`hypervisor_steal`); other processes there (`noisy_neighbour`, `pinned`); traffic within
//! the machine, which the kernel handles on the sender's processor and for which no card interrupts.
//!
//! How to confirm: `mpstat -P ALL 1 5` (%soft); `cat /proc/interrupts` and `/proc/softirqs` (NET_RX) twice;
//! `ps -o psr -p PID`.
//!
//! What to do: give the interrupts, or the server, another processor.
//! Sources: /proc/stat, /proc/interrupts, /proc/PID/stat; the kernel's Documentation/networking/scaling.rst (RSS, RPS).

use unslow_facts::{Core, Host, Process};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Soft interrupts on its processor";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::No(
    "packets within one machine are handled on the sender's processor and no card interrupts for them; tested on \
     recorded facts with the figures set by hand",
);

/// Share of the processor's time.
const SOFTIRQ: f64 = 0.3;
/// Busy share from which on there is nothing left for the main thread.
const FULL: f64 = 0.9;
/// What the main thread uses at least, where it is its work that waits.
const MAIN: f64 = 0.3;
/// Interrupts of devices a second: a card under load is polled, and interrupts less, but never this seldom.
const INTERRUPTS: f64 = 100.0;

/// A server and the processor that its main thread ran on all the time.
struct Beside<'a> {
    node: &'a Node,
    host: &'a Host,
    process: &'a Process,
    core: &'a Core,
    main: f64,
    interrupts_per_s: f64,
}

impl Beside<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Beside<'a>> {
        let (host, process) = facts.process(node)?;
        let number = process.core()?;
        let core = host.cores.iter().find(|c| c.number == number)?;
        let main = process.main_cpu_share.or_else(|| node.cpu().map(|(user, sys)| user + sys))?;
        let interrupts_per_s = core.device_interrupts? as f64 / host.window_s.max(0.001);
        Some(Beside { node, host, process, core, main, interrupts_per_s })
    }

    fn is_noticed(&self) -> bool {
        self.core.softirq_share >= SOFTIRQ && self.interrupts_per_s >= INTERRUPTS
    }

    fn costs(&self) -> bool {
        self.core.busy_share >= FULL && self.main >= MAIN && is_used(self.node)
    }
}

/// The most that any processor which a server may use spent in soft interrupts.
fn most_of(host: &Host, process: &Process) -> Option<f64> {
    let may = |core: &&Core| process.processors.is_empty() || process.processors.contains(&core.number);
    host.cores.iter().filter(may).map(|c| c.softirq_share).reduce(f64::max)
}

pub fn check(facts: &Facts) -> Verdict {
    let mut most: Option<f64> = None;
    let (mut rows, mut unsure) = (Vec::new(), None);
    for node in facts.live() {
        let Some((host, process)) = facts.process(node) else { continue };
        let Some(share) = most_of(host, process) else { continue };
        match Beside::of(facts, node) {
            Some(beside) => {
                most = Some(beside.core.softirq_share.max(most.unwrap_or(0.0)));
                rows.extend(Some(beside).filter(Beside::is_noticed));
            }
            // It moved, and may have been on a processor that was taken from it.
            None if share >= SOFTIRQ => unsure = unsure.or(Some(node)),
            None => most = Some(share.max(most.unwrap_or(0.0))),
        }
    }
    let rows = by_worst(rows, |b| b.core.softirq_share + f64::from(u8::from(b.costs())));
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|b| b.node.address.as_str())).into();
    }
    if let Some(node) = unsure {
        let why = format!(
            "soft interrupts: {} moves between processors, and one of them spends a lot of time on packets",
            node.address
        );
        return Verdict::unknown(
            Lack::Host,
            why,
            "on its machine: mpstat -P ALL 1 5, together with pidstat -t -p PID 1 5",
        );
    }
    match most {
        Some(share) if share >= SOFTIRQ => Verdict::Absent(format!(
            "soft interrupts: {} of a server's processor, and no device interrupts there: the machine's own traffic",
            percent(share)
        )),
        Some(share) => Verdict::Absent(format!("soft interrupts: at most {} of a server's processor", percent(share))),
        None => {
            Verdict::unknown(Lack::Host, "soft interrupts: the servers' processors could not be inspected", SEE_HOST)
        }
    }
}

fn found(worst: &Beside<'_>) -> Finding {
    let Beside { node, host, process, core, main, interrupts_per_s } = *worst;
    let (soft, busy) = (core.softirq_share, core.busy_share);
    let finding = Finding::new(format!(
        "{} shares processor {} with a network card's interrupts: packets take {} of it",
        node.address,
        core.number,
        percent(soft)
    ));
    let text = format!(
        "processor {} is {} busy: {} in soft interrupts, {} of a core in the main thread",
        core.number,
        percent(busy),
        percent(soft),
        percent(main)
    );
    let finding = if worst.costs() {
        finding
            .core(soft, text)
            .gain(
                "on a processor without the card's interrupts the main thread has all of it",
                format!("soft interrupts {soft:.3} of processor {}, which is {busy:.3} busy", core.number),
            )
            .likely(
                "the kernel counted both on this processor in the window; that the main thread was there all the \
                     time is inferred from where it was seen",
            )
    } else {
        finding
            .risk(format!("{text}; there is time left"))
            .likely("the kernel counted it in the window; nothing waits for it yet")
    };
    let place = match process.processors.len() {
        1 => "the only one it may use".to_string(),
        _ => "seen there at both ends of the window".into(),
    };
    let finding = finding
        .saw_at(
            format!("/proc/stat, cpu{} ({})", core.number, host.hostname),
            format!("softirq {} of the window, busy {}", percent(soft), percent(busy)),
            host.at_ms,
        )
        .saw_at(
            format!("/proc/interrupts ({})", host.hostname),
            format!("{} interrupts of devices a second on processor {}", count(interrupts_per_s), core.number),
            host.at_ms,
        )
        .saw_at(
            format!("/proc/{}/stat ({})", process.pid, host.hostname),
            format!("main thread on processor {}: {place}", core.number),
            host.at_ms,
        );
    let finding = match host.steal_share {
        Some(steal) => finding.not(format!("the hypervisor: it took {} of the processors' time", percent(steal))),
        None => finding,
    };
    ways_out(finding, worst)
}

fn ways_out(finding: Finding, worst: &Beside<'_>) -> Finding {
    let (host, core, pid) = (worst.host, worst.core.number, worst.process.pid);
    if host.cpus < 2 {
        return finding.fix(
            "Give the machine a second processor: this one handles all the packets and the server",
            &["mpstat -P ALL 1 5"],
            "",
            "",
        );
    }
    finding
        .fix(
            &format!("On {}: let other processors take the card's interrupts", host.hostname),
            &[
                "grep -e virtio -e eth -e ens -e mlx /proc/interrupts   (which lines grow in this processor's column)",
                "echo CPU-LIST > /proc/irq/NUMBER/smp_affinity_list   (without this processor; irqbalance may set it \
                 back)",
                "ethtool -l INTERFACE; ethtool -L INTERFACE combined N   (more queues, where the card has them)",
            ],
            "packets wait if the other processors are busy",
            &format!("echo {core} > /proc/irq/NUMBER/smp_affinity_list"),
        )
        .fix(
            "Or keep the server away from this processor",
            &[&format!("taskset -acp CPU-LIST {pid}   (without {core})")],
            "",
            &match worst.process.processors.len() {
                1 => format!("taskset -acp {core} {pid}"),
                _ => format!("taskset -acp 0-{} {pid}", host.cpus.saturating_sub(1)),
            },
        )
}
