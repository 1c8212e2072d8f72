//! Reading the clock takes a call into the kernel on the server's machine, and a server reads the clock all the time.
//!
//! A server reads the clock at least twice for each command and a few times in each turn of its event loop. With `tsc`,
//! `kvm-clock` or `arch_sys_counter` the C library reads it without the kernel, in about 25 ns. With `xen`, `hpet` or
//! `acpi_pm` it must ask the kernel, which asks a device: that takes between a quarter of a microsecond and several,
//! each time.
//!
//! Seen when: the clock source is one of the slow ones, and reading the clock took over 100 ns there when the doctor
//! timed it on that machine. The cost is that price times the least number of readings that the commands and event loop
//! turns of this window needed: over 1 % of a core it is a finding; below that, or if no reading was timed, a risk.
//!
//! Not to be taken for: commands that are slow in themselves; `hypervisor_steal`, which the same machines have.
//!
//! How to confirm: `cat /sys/devices/system/clocksource/clocksource0/{current,available}_clocksource`;
//! `perf top -p PID` shows read_hpet, acpi_pm_read or clock_gettime; `redis-server --check-system`.
//!
//! What to do: switch to a source that the machine offers and trusts (tsc), then set it for the next boot.
//! Sources: current_clocksource; clock_gettime timed on the machine; redis src/syscheck.c (slow-clocksource).

use unslow_facts::Host;

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Slow clock source";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::No(
    "every program on the machine shares the clock source; the rule is tested on recorded facts in which it is set by \
     hand",
);

/// Sources that are read through the kernel and a device.
const SLOW: &[&str] = &["xen", "hpet", "acpi_pm", "pit", "jiffies", "hyperv_clocksource_msr"];
/// From here on it was a call into the kernel, whatever the source is called.
const CALL_NS: f64 = 100.0;
/// What a reading takes where the C library does it.
const QUICK_NS: f64 = 25.0;
/// Readings at least: around each command, and in each turn of the event loop.
const A_COMMAND: f64 = 2.0;
const A_TURN: f64 = 3.0;
/// Of a core.
const NOTICED: f64 = 0.01;

/// One server on a machine with a slow clock.
struct Slow<'a> {
    node: &'a Node,
    host: &'a Host,
    source: &'a str,
    read_ns: Option<f64>,
    /// Readings a second, at least.
    readings: f64,
}

impl Slow<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Slow<'a>> {
        let (host, _) = facts.process(node)?;
        let source = host.clocksource.as_deref()?;
        let is_quick = host.clock_read_ns.is_some_and(|ns| ns <= CALL_NS);
        let turns = turns(node) / node.window_s.max(0.001);
        let readings = A_COMMAND * node.ops().unwrap_or(0.0) + A_TURN * turns;
        let slow = SLOW.contains(&source) && !is_quick;
        slow.then_some(Slow { node, host, source, read_ns: host.clock_read_ns, readings })
    }

    /// Of a core; none where reading the clock was not timed.
    fn share(&self) -> Option<f64> {
        Some(self.readings * (self.read_ns? - QUICK_NS) / 1e9)
    }

    fn costs(&self) -> bool {
        is_used(self.node) && self.share().is_some_and(|share| share > NOTICED)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Slow<'_>> = facts.live().filter_map(|node| Slow::of(facts, node)).collect();
    let rows = by_worst(all, |s| s.share().unwrap_or(0.0));
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|s| s.node.address.as_str())).into();
    }
    let mut hosts = facts.live().filter_map(|node| Some(facts.process(node)?.0));
    let Some((host, source)) = hosts.find_map(|h| Some((h, h.clocksource.as_deref()?))) else {
        return Verdict::unknown(Lack::Host, "clock source: the server's machine does not show it", SEE_HOST);
    };
    let read = host.clock_read_ns.map_or(String::new(), |ns| format!(", read in {ns:.0} ns"));
    Verdict::Absent(format!("clock source: {source}{read}"))
}

fn found(worst: &Slow<'_>) -> Finding {
    let (node, host, source) = (worst.node, worst.host, worst.source);
    let finding =
        Finding::new(format!("{} reads a slow clock: the clock source of {} is {source}", node.address, host.hostname));
    let read = worst.read_ns.map_or("not timed".to_string(), |ns| format!("{ns:.0} ns"));
    let finding = match worst.share().filter(|_| worst.costs()) {
        Some(share) => finding
            .core(share, format!("at least {} of a core goes into reading the clock: {read} each time", percent(share)))
            .gain(
                format!("a fast clock source frees {} of a core", percent(share)),
                format!(
                    "{:.0} readings/s x ({:.0} - {QUICK_NS:.0}) ns = {share:.3} of a core",
                    worst.readings,
                    worst.read_ns.unwrap_or(0.0)
                ),
            )
            .likely(
                "a reading was timed on the machine; the number of readings is the least that the server's commands \
                 and event loop turns need",
            ),
        None => finding
            .risk("each command reads the clock at least twice, so it costs more the busier the server is")
            .possible(
                "the clock source is a slow one; too few readings were needed in this window, or no reading was timed",
            ),
    };
    finding
        .saw_at(
            format!("/sys/devices/system/clocksource/clocksource0/current_clocksource ({})", host.hostname),
            source,
            host.at_ms,
        )
        .saw_at(format!("clock_gettime on {}", host.hostname), read, host.at_ms)
        .saw(
            node,
            "INFO stats",
            format!(
                "{} commands/s, so at least {} readings a \
                     second",
                count(node.ops().unwrap_or(0.0)),
                count(worst.readings)
            ),
        )
        .fix(
            &format!("On {}: switch to a fast clock source, if the machine offers one", host.hostname),
            &[
                "cat /sys/devices/system/clocksource/clocksource0/available_clocksource",
                "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource   (kvm-clock or \
                 arch_sys_counter, where it has no tsc)",
            ],
            "a kernel that dropped tsc as unstable had a reason: see dmesg | grep -i clocksource first",
            &format!("echo {source} > /sys/devices/system/clocksource/clocksource0/current_clocksource"),
        )
        .fix(
            "For the next boot: set it on the kernel's command line",
            &["clocksource=tsc   (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub)"],
            "",
            "",
        )
}
