//! Processors one by one between two samples: how busy, how much of it for packets, how fast; and the memory near them.

use std::collections::BTreeMap;
use std::fs;

use unslow_facts::{Core, MemoryNode, Speed};

use super::machine::line;
use super::parse::{cpu_list, kib};

/// A processor's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
    softirq: u64,
}

/// The first of the two.
pub struct First {
    ticks: BTreeMap<u32, Ticks>,
    interrupts: BTreeMap<u32, u64>,
    khz: BTreeMap<u32, u64>,
}

impl First {
    pub fn take() -> First {
        let ticks = ticks();
        let khz = ticks.keys().filter_map(|n| Some((*n, khz(*n, "scaling_cur_freq")?))).collect();
        First { ticks, interrupts: interrupts(), khz }
    }

    /// Takes the second.
    pub fn second(&self) -> Vec<Core> {
        let (ticks, interrupts) = (ticks(), interrupts());
        let taken = |n: &u32| Some(interrupts.get(n)?.saturating_sub(*self.interrupts.get(n)?));
        let core = |(n, end): (&u32, &Ticks)| {
            let core = between(*n, *self.ticks.get(n)?, *end);
            Some(Core { device_interrupts: taken(n), speed: speed(*n, self.khz.get(n).copied()), ..core })
        };
        ticks.iter().filter_map(core).collect()
    }
}

fn between(number: u32, begin: Ticks, end: Ticks) -> Core {
    let all = end.all.saturating_sub(begin.all).max(1) as f64;
    Core {
        number,
        busy_share: 1.0 - end.idle.saturating_sub(begin.idle) as f64 / all,
        softirq_share: end.softirq.saturating_sub(begin.softirq) as f64 / all,
        ..Core::default()
    }
}

fn ticks() -> BTreeMap<u32, Ticks> {
    fs::read_to_string("/proc/stat").unwrap_or_default().lines().filter_map(ticks_of).collect()
}

/// A `cpuN` line of /proc/stat; the line of all of them has no number. procfs leaves the numbers out, and one may be
/// offline.
fn ticks_of(line: &str) -> Option<(u32, Ticks)> {
    let mut words = line.strip_prefix("cpu")?.split_whitespace();
    // The number follows at once: a blank means that this is the sum.
    let number = words.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
    // user nice system idle iowait irq softirq steal; guest is inside user.
    let figures: Vec<u64> = words.map_while(|w| w.parse().ok()).take(8).collect();
    let ticks = Ticks { all: figures.iter().sum(), idle: figures.get(3)? + figures.get(4)?, softirq: *figures.get(6)? };
    Some((number, ticks))
}

fn interrupts() -> BTreeMap<u32, u64> {
    interrupts_of(&fs::read_to_string("/proc/interrupts").unwrap_or_default())
}

/// Interrupts of devices by processor, from the text of /proc/interrupts: its numbered lines. Timers have a number on
/// some machines.
fn interrupts_of(text: &str) -> BTreeMap<u32, u64> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let numbers: Vec<u32> = head.split_whitespace().filter_map(|w| w.strip_prefix("CPU")?.parse().ok()).collect();
    let mut all: BTreeMap<u32, u64> = numbers.iter().map(|n| (*n, 0)).collect();
    for line in lines {
        let Some((label, rest)) = line.split_once(':') else { continue };
        if label.trim().parse::<u32>().is_err() || rest.contains("timer") {
            continue;
        }
        for (number, taken) in numbers.iter().zip(rest.split_whitespace().map_while(|w| w.parse::<u64>().ok())) {
            let sum = all.entry(*number).or_default();
            *sum = sum.saturating_add(taken);
        }
    }
    all
}

fn khz(number: u32, file: &str) -> Option<u64> {
    line(format!("/sys/devices/system/cpu/cpu{number}/cpufreq/{file}"))?.parse().ok()
}

/// Without a maximum nothing can be said of a speed.
fn speed(number: u32, first_khz: Option<u64>) -> Option<Speed> {
    let word = |file: &str| line(format!("/sys/devices/system/cpu/cpu{number}/cpufreq/{file}")).unwrap_or_default();
    let max_khz = khz(number, "cpuinfo_max_freq").filter(|khz| *khz > 0)?;
    Some(Speed {
        driver: word("scaling_driver"),
        governor: word("scaling_governor"),
        first_khz,
        last_khz: khz(number, "scaling_cur_freq"),
        allowed_khz: khz(number, "scaling_max_freq").unwrap_or(max_khz),
        max_khz,
    })
}

/// Memory nodes; a kernel that knows none has one.
pub fn memory_nodes() -> Vec<MemoryNode> {
    let entries = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let node = |name: &str| -> Option<MemoryNode> {
        let number: u32 = name.strip_prefix("node")?.parse().ok()?;
        let dir = format!("/sys/devices/system/node/{name}");
        let meminfo = fs::read_to_string(format!("{dir}/meminfo")).unwrap_or_default();
        Some(MemoryNode {
            number,
            processors: cpu_list(&line(format!("{dir}/cpulist"))?),
            memory_bytes: memory_of(number, &meminfo),
        })
    };
    let mut all: Vec<MemoryNode> = entries.filter_map(|e| node(e.file_name().to_str()?)).collect();
    all.sort_by_key(|n| n.number);
    if all.is_empty() { vec![MemoryNode::default()] } else { all }
}

/// `Node 0 MemTotal:   123 kB`.
fn memory_of(number: u32, meminfo: &str) -> Option<u64> {
    kib(meminfo, &format!("Node {number} MemTotal:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_has_its_own_share_of_soft_interrupts() {
        let line = |figures: &str| ticks_of(&format!("cpu1 {figures}")).unwrap();
        let (number, begin) = line("100 0 50 800 40 0 10 0 0 0");
        assert_eq!((number, begin), (1, Ticks { all: 1000, idle: 840, softirq: 10 }));
        let (_, end) = line("120 0 60 850 50 0 60 0 0 0");
        let core = between(1, begin, end);
        assert!((core.softirq_share - 50.0 / 140.0).abs() < 1e-9 && (core.busy_share - 80.0 / 140.0).abs() < 1e-9);
        // Counters went backwards: shares stay between 0 and 1.
        let back = between(1, end, begin);
        assert_eq!((back.softirq_share, back.busy_share), (0.0, 1.0));
        // The sum of all processors is none of them.
        assert_eq!(ticks_of("cpu  100 0 50 800 40 0 10 0 0 0"), None);
        assert!(ticks_of("cpu1 1 2 3").is_none() && ticks_of("intr 1 2").is_none());
    }

    #[test]
    fn interrupts_of_devices_are_counted_and_not_those_of_timers_and_other_processors() {
        let text = "           CPU0       CPU2       \n\
                    \x20 0:          5          7  IO-APIC   2-edge      timer\n\
                    \x2011:         50         60     GICv3  27 Level     arch_timer\n\
                    \x2024:          1         40  PCI-MSI 1-edge      virtio0-input.0\n\
                    \x2025:          2          0  PCI-MSI 2-edge      nvme0q1\n\
                    \x20LOC:       9999       9999   Local timer interrupts\n\
                    \x20ERR:          3\n";
        assert_eq!(interrupts_of(text), BTreeMap::from([(0, 3), (2, 40)]));
        assert!(interrupts_of("").is_empty());
    }

    #[test]
    fn a_memory_nodes_size_is_its_own() {
        let text = "Node 1 MemTotal:       2048 kB\nNode 1 MemFree: 1 kB\n";
        assert_eq!((memory_of(1, text), memory_of(0, text)), (Some(2 << 20), None));
        assert!(!memory_nodes().is_empty());
    }
}
