//! The processor is kept slow while the server has work to do.
//!
//! A governor that saves power, or a limit on the frequency, makes every command take longer by the same factor. The
//! main thread is a single thread, so other processors do not help it. The server's own figures show a busy server and
//! nothing else.
//!
//! Seen when: the processor that the main thread ran on was at less than 60 % of its maximum frequency at both ends of
//! the window, and busy for 70 % of it or more. It is a risk if the governor `powersave` pins it to its lowest
//! frequency, or scaling_max_freq is under 80 % of the maximum, and the processor has little to do so far.
//!
//! Not to be taken for: an idle processor, which is slow because nothing asks more of it; intel_pstate and
//! amd-pstate-epp, whose `powersave` raises the frequency with the load; a virtual machine, which usually cannot see
//! its processor's frequency.
//!
//! How to confirm: `cpupower frequency-info`; `turbostat --interval 5` (Bzy_MHz);
//! `cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_*`.
//!
//! What to do: set the governor `performance` on machines with servers; in the firmware, choose a profile that does not
//! cap the frequency.
//! Sources: /sys/devices/system/cpu/cpuN/cpufreq; the kernel's Documentation/admin-guide/pm/cpufreq.rst.

use unslow_facts::{Core, Host, Process, Speed};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Processor kept slow";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "kernel_bound"];
pub const INJECTED: Injected = Injected::No(
    "the frequency belongs to the whole machine, and a virtual machine cannot set it; tested on recorded facts with \
     the figures set by hand",
);

/// Of what it can do: single-thread and all-core turbo differ by less.
const SLOW: f64 = 0.6;
/// Of what it can do, by its limit.
const CAPPED: f64 = 0.8;
/// Of the processor: a governor raises the frequency well below this.
const BUSY: f64 = 0.7;
/// Drivers whose `powersave` follows the load.
const BY_LOAD: &[&str] = &["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];

/// A server's processor and its frequency.
struct Clocked<'a> {
    node: &'a Node,
    host: &'a Host,
    core: &'a Core,
    speed: &'a Speed,
    main: f64,
}

impl Clocked<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Clocked<'a>> {
        let (host, process) = facts.process(node)?;
        let (core, speed) = of_process(host, process)?;
        let main = process.main_cpu_share.or_else(|| node.cpu().map(|(user, sys)| user + sys))?;
        Some(Clocked { node, host, core, speed, main })
    }

    /// Of what it can do, the faster of both ends of the window.
    fn share(&self) -> Option<f64> {
        let seen = self.speed.first_khz?.max(self.speed.last_khz?);
        Some(seen as f64 / self.speed.max_khz.max(1) as f64)
    }

    fn is_slow(&self) -> bool {
        self.core.busy_share >= BUSY && self.share().is_some_and(|share| share < SLOW)
    }

    fn costs(&self) -> bool {
        self.is_slow() && is_used(self.node)
    }

    /// Whether the governor keeps it at its lowest frequency.
    fn saves(&self) -> bool {
        self.speed.governor == "powersave" && !BY_LOAD.contains(&self.speed.driver.as_str())
    }

    /// What it may run at.
    fn held_khz(&self) -> u64 {
        self.speed.first_khz.filter(|_| self.saves()).unwrap_or(self.speed.allowed_khz)
    }

    fn is_held(&self) -> bool {
        self.saves() || (self.speed.allowed_khz as f64) < CAPPED * self.speed.max_khz as f64
    }

    /// Of a core: what its work would not need at full speed.
    fn wasted(&self) -> f64 {
        self.share().map_or(0.0, |share| self.main * (1.0 - share).max(0.0))
    }
}

/// The processor that the main thread ran on; of one that moved, the first it was seen on: governors are mostly set for
/// all of them.
fn of_process<'a>(host: &'a Host, process: &Process) -> Option<(&'a Core, &'a Speed)> {
    let number = process.core().or_else(|| process.ran_on.first().copied())?;
    let core = host.cores.iter().find(|c| c.number == number)?;
    Some((core, core.speed.as_ref()?))
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Clocked<'_>> = facts.live().filter_map(|n| Clocked::of(facts, n)).collect();
    let noticed = |c: &&Clocked<'_>| c.is_slow() || c.is_held();
    let rows = by_worst(all.iter().filter(noticed).collect(), |c| c.wasted() + f64::from(u8::from(c.costs())));
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|c| c.node.address.as_str())).into();
    }
    if let Some(any) = all.first() {
        return Verdict::Absent(format!(
            "the processors' frequency: none was slow while it was busy (governor {})",
            any.speed.governor
        ));
    }
    let mut hosts = facts.live().filter_map(|n| Some(facts.process(n)?.0)).peekable();
    // A guest mostly has no say in it, and then there is nothing to look at.
    if hosts.peek().is_some() && hosts.all(|h| h.hypervisor.is_some()) {
        return Verdict::NotHere;
    }
    Verdict::unknown(Lack::Host, "the processors' frequency: the servers' machines do not show it", SEE_HOST)
}

fn found(worst: &Clocked<'_>) -> Finding {
    let Clocked { node, host, core, speed, main } = *worst;
    let share = worst.share();
    let full = ghz(speed.max_khz);
    let at = speed.first_khz.max(speed.last_khz).map_or("an unknown frequency".into(), ghz);
    let finding = if worst.is_slow() {
        Finding::new(format!(
            "{}'s processor runs at {at} of {full} while it is {} busy",
            node.address,
            percent(core.busy_share)
        ))
    } else {
        Finding::new(format!(
            "{}'s processor may not run faster than {} of {full} (governor {})",
            node.address,
            ghz(worst.held_khz()),
            speed.governor
        ))
    };
    let finding = match share.filter(|_| worst.costs()) {
        Some(share) => finding
            .core(
                worst.wasted(),
                format!("every command takes about {:.1} times as long as it should", 1.0 / share.max(0.01)),
            )
            .gain(
                format!("at full speed, {} of a core is free again", percent(worst.wasted())),
                format!("main thread {main:.3} of a core x (1 - {share:.2}) = {:.3}", worst.wasted()),
            )
            .likely(
                "the frequency was read at both ends of the window; that it was the same in between, and that the work \
                 depends on it, is inferred",
            ),
        None => finding.risk("when the server has more to do, every command takes longer than it should").possible(
            "judged by the setting; the processor had little to do in this window, or no application uses the server",
        ),
    };
    let dir = format!("/sys/devices/system/cpu/cpu{}/cpufreq ({})", core.number, host.hostname);
    let mut finding = finding
        .saw_at(
            dir.clone(),
            format!("scaling_governor {}, scaling_driver {}", speed.governor, speed.driver),
            host.at_ms,
        )
        .saw_at(
            dir,
            format!("scaling_cur_freq {at}, scaling_max_freq {}, cpuinfo_max_freq {full}", ghz(speed.allowed_khz)),
            host.at_ms,
        )
        .saw_at(
            format!("/proc/stat, cpu{} ({})", core.number, host.hostname),
            format!("{} busy, the main thread {} of a core", percent(core.busy_share), percent(main)),
            host.at_ms,
        );
    if let Some(steal) = host.steal_share {
        finding = finding.not(format!("the hypervisor: it took {} of the processors' time", percent(steal)));
    }
    finding.fix(
        &format!("On {}: let the processors run at full speed", host.hostname),
        &[
            "cpupower frequency-set -g performance",
            &format!("cpupower frequency-set -u {}kHz   (where scaling_max_freq is lower)", speed.max_khz),
            "the firmware's power profile: maximum performance, no power cap",
        ],
        "more power consumption and heat",
        &format!("cpupower frequency-set -g {} -u {}kHz", speed.governor, speed.allowed_khz),
    )
}

fn ghz(khz: u64) -> String {
    format!("{:.1} GHz", khz as f64 / 1e6)
}
