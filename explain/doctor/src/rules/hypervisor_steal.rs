//! The hypervisor runs another virtual machine while this one is ready to run.
//!
//! Steal is time in which a virtual processor had work to do while the physical one was given to another machine, or
//! was withheld because a quota or the CPU credits of a burstable instance are used up. The server is stopped and
//! notices nothing.
//!
//! Seen when: over 5 % of all processor time of the server's machine was stolen in the window.
//!
//! What it costs: the server's own share of it, busy x steal / (1 - steal). A server that uses 0.6 % of a core loses
//! next to nothing on a machine with 17 % steal: below 1 % of a core it is only a risk, unless PING's p99 is 20 ms
//! above its minimum and no slow command explains that. (Smaller tails say nothing: a doctor on the same machine is
//! stopped too.)
//!
//! Not to be taken for: a process on the same machine (`noisy_neighbour`), which taskset can move; a container's CPU
//! quota (`cpu_throttled`), which its own cgroup counts.
//!
//! How to confirm: `vmstat 1 10` on the server's machine, column `st`; the provider's graph of CPU credits.
//!
//! What to do: another host or instance type: dedicated cores, not burstable. Nothing inside the machine helps.
//! Sources: /proc/stat steal.

use unslow_facts::Host;

use super::noisy_neighbour::{SEE_HOST, tail_is_hit};
use super::prelude::*;

pub const TITLE: &str = "Hypervisor steal";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::No(
    "a virtual machine cannot tell its hypervisor to steal; the rule is tested on recorded facts in which the steal is \
     set by hand",
);

const STEAL: f64 = 0.05;
/// Of a core: what a server must lose to notice.
const NOTICED: f64 = 0.01;
const TAIL_US: u32 = 20_000;

/// What steal takes from one server.
struct Stolen<'a> {
    node: &'a Node,
    host: &'a Host,
    steal: f64,
    busy: Option<f64>,
    /// Of a core.
    lost: f64,
    tail: bool,
}

impl Stolen<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Stolen<'a>> {
        let (host, _) = facts.process(node)?;
        let steal = host.steal_share?.clamp(0.0, 0.99);
        let busy = node.cpu().map(|(u, s)| u + s);
        let lost = busy.unwrap_or(0.0) * steal / (1.0 - steal);
        Some(Stolen { node, host, steal, busy, lost, tail: tail_is_hit(node, TAIL_US) })
    }

    fn costs(&self) -> bool {
        is_used(self.node) && (self.lost >= NOTICED || self.tail)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Stolen<'_>> = facts.live().filter_map(|node| Stolen::of(facts, node)).collect();
    let rows = by_worst(all.iter().filter(|s| s.steal > STEAL).collect(), |s| s.lost + f64::from(u8::from(s.costs())));
    let Some(worst) = rows.first() else {
        let most = all.iter().map(|s| s.steal).reduce(f64::max);
        return match most {
            Some(most) => {
                Verdict::Absent(format!("steal: the hypervisor took at most {} of the processors' time", percent(most)))
            }
            None => Verdict::unknown(Lack::Host, "steal: the server's machine could not be inspected", SEE_HOST),
        };
    };
    let (node, host, steal) = (worst.node, worst.host, worst.steal);
    let kind = host.hypervisor.as_deref().map_or(String::new(), |h| format!(" ({h})"));
    let finding = Finding::new(format!(
        "The hypervisor{kind} takes {} of the processors' time from {}",
        percent(steal),
        host.hostname
    ))
    .on(rows.iter().map(|s| s.node.address.as_str()));
    let busy = worst.busy.unwrap_or(0.0);
    let sum = format!("{busy:.3} of a core busy x {steal:.2} / (1 - {steal:.2}) = {:.3}", worst.lost);
    let finding = if worst.costs() {
        let tail = if worst.tail { "; PING's tail shows it" } else { "" };
        finding
            .core(
                worst.lost,
                format!(
                    "{} had work to do and was stopped for {} of the time{tail}",
                    node.address,
                    percent(worst.lost)
                ),
            )
            .gain("on dedicated cores it would not be stopped", sum)
            .likely("the kernel counted steal for the whole machine; the server's part of it is calculated")
    } else {
        let text = format!("{} is {} busy and loses {} of a core", node.address, percent(busy), percent(worst.lost));
        finding
            .risk(format!("{text}; when it is busier it loses more"))
            .gain("", sum)
            .likely("the kernel counted steal; the server has too little to do to suffer from it")
    };
    let told = format!("steal {} over {:.0} s", percent(steal), host.window_s);
    let mut finding = finding.saw_at(format!("/proc/stat ({})", host.hostname), told, host.at_ms);
    if let Some(busy) = worst.busy {
        finding = finding.saw(node, "INFO cpu", format!("main thread {} of a core", percent(busy)));
    }
    if let Some(rtt) = node.rtt.value() {
        finding = finding.saw(
            node,
            "PING",
            format!("median {}, p99 {}", time_us(rtt.us_p50.into()), time_us(rtt.us_p99.into())),
        );
    }
    let strangers: f64 = host.neighbours.iter().filter(|n| !n.client).map(|n| n.cpu_share).sum();
    finding
        .not(format!("a process on this machine: others use {} cores of {}", count(strangers), host.cpus))
        .fix(
            "Move this machine to a host with processors to spare: dedicated cores, or an instance type that is not \
             burstable",
            &[
                "vmstat 1 10   (column st; on the server's machine)",
                "the provider's graph of CPU credits, where the \
                instance has them",
            ],
            "this means a new machine: fail over to a replica first, if there is one",
            "",
        )
        .into()
}
