//! What the machine as a whole did between two samples.

use std::fs;
use std::path::Path;
use std::time::Instant;

use unslow_facts::Host;

use super::cores;
use super::counts::{Counts, links};
use super::parse::kib;
use crate::now_ms;

/// The first of the two.
pub struct First {
    begun: Instant,
    counts: Counts,
    cores: cores::First,
}

impl First {
    pub fn take() -> First {
        First { begun: Instant::now(), counts: Counts::of_machine(), cores: cores::First::take() }
    }

    /// Takes the second.
    pub fn second(&self) -> Host {
        let window_s = self.begun.elapsed().as_secs_f64();
        let mut host = Host {
            hostname: line("/proc/sys/kernel/hostname").unwrap_or_default(),
            boot_id: line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            at_ms: now_ms(),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            thp: line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|t| Some(t.split_once('[')?.1.split_once(']')?.0.to_string())),
            overcommit: line("/proc/sys/vm/overcommit_memory").and_then(|t| t.parse().ok()),
            somaxconn: line("/proc/sys/net/core/somaxconn").and_then(|t| t.parse().ok()),
            memory_bytes: meminfo("MemTotal"),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            clock_read_ns: clock_read_ns(),
            hypervisor: hypervisor(),
            cores: self.cores.second(),
            memory_nodes: cores::memory_nodes(),
            ..Host::default()
        };
        self.counts.tell_machine(&Counts::of_machine(), window_s, &mut host);
        host.links.iter_mut().for_each(|link| link.speed_mbit = speed_mbit(&link.name));
        host
    }
}

pub fn line(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

/// What reading the clock takes: the quickest of some rounds, so that a moment without a processor does not count.
fn clock_read_ns() -> Option<f64> {
    const ROUNDS: u32 = 5;
    const READS: u32 = 100;
    let round = |_| {
        let begun = Instant::now();
        let mut last = begun;
        for _ in 0..READS {
            last = Instant::now();
        }
        (last - begun).as_nanos() as f64 / f64::from(READS)
    };
    (0..ROUNDS).map(round).reduce(f64::min)
}

fn meminfo(field: &str) -> Option<u64> {
    kib(&fs::read_to_string("/proc/meminfo").ok()?, &format!("{field}:"))
}

/// As the device says it. `/sys` shows the devices of the namespace that it was mounted in: a device of the same name
/// there is not ours, so the bytes it has carried are held against those before and after.
fn speed_mbit(name: &str) -> Option<u64> {
    let dir = Path::new("/sys/class/net").join(name);
    let sent = || links().get(name).map(|l| l.sent_bytes);
    let before = sent()?;
    let there: u64 = line(dir.join("statistics/tx_bytes"))?.parse().ok()?;
    let is_ours = (before..=sent()?).contains(&there);
    // Without a carrier, and on devices without a speed, it is -1 or an error.
    line(dir.join("speed"))?.parse::<i64>().ok().filter(|n| is_ours && *n > 0).map(|n| n as u64)
}

/// By `/sys/hypervisor`, then DMI, then CPUID.
fn hypervisor() -> Option<String> {
    if let Some(kind) = line("/sys/hypervisor/type").filter(|t| !t.is_empty()) {
        return Some(kind);
    }
    let dmi = ["sys_vendor", "product_name", "bios_vendor"]
        .map(|f| line(format!("/sys/class/dmi/id/{f}")).unwrap_or_default().to_lowercase());
    for (word, name) in [
        ("xen", "xen"),
        ("vmware", "vmware"),
        ("virtualbox", "virtualbox"),
        ("microsoft", "hyper-v"),
        ("firecracker", "firecracker"),
    ] {
        if dmi.iter().any(|d| d.contains(word)) {
            return Some(name.into());
        }
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(info) = raw_cpuid::CpuId::new().get_hypervisor_info() {
        return Some(match info.identify() {
            raw_cpuid::Hypervisor::Xen => "xen".into(),
            raw_cpuid::Hypervisor::KVM => "kvm".into(),
            raw_cpuid::Hypervisor::VMware => "vmware".into(),
            raw_cpuid::Hypervisor::HyperV => "hyper-v".into(),
            _ => "unknown hypervisor".into(),
        });
    }
    None
}
