//! What the machine as a whole did between two samples.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::Instant;

use procfs::net::DeviceStatus;
use procfs::{CurrentSI, DiskStat, KernelStats};
use unslow_facts::{Host, Link, Reclaims, Tcp};

use super::cores;
use super::parse::{CpuTimes, counter, cpu_times_of, kib, shares, stalled, written};
use crate::now_ms;

/// The first of the two.
pub struct First {
    begun: Instant,
    cpu: Option<CpuTimes>,
    pressure: BTreeMap<String, u64>,
    tcp: Option<Tcp>,
    vmstat: HashMap<String, i64>,
    cores: cores::First,
    disks: BTreeMap<String, DiskStat>,
    links: BTreeMap<String, DeviceStatus>,
}

impl First {
    pub fn take() -> First {
        First {
            begun: Instant::now(),
            cpu: cpu_times(),
            pressure: pressure(),
            tcp: tcp(),
            vmstat: vmstat(),
            cores: cores::First::take(),
            disks: disks(),
            links: links(),
        }
    }

    /// Takes the second.
    pub fn second(&self) -> Host {
        let window_s = self.begun.elapsed().as_secs_f64();
        let cpu = self.cpu.zip(cpu_times()).map(|(a, b)| shares(a, b));
        let vmstat = vmstat();
        let after = pressure();
        let pressure = self
            .pressure
            .iter()
            .filter_map(|(k, before)| Some((k.clone(), after.get(k)?.saturating_sub(*before) as f64 / 1e6 / window_s)))
            .collect();
        let tcp = self.tcp.zip(self::tcp()).map(|(a, b)| Tcp {
            retransmits: b.retransmits.saturating_sub(a.retransmits),
            segments_out: b.segments_out.saturating_sub(a.segments_out),
            listen_overflows: b.listen_overflows.saturating_sub(a.listen_overflows),
            listen_drops: b.listen_drops.saturating_sub(a.listen_drops),
            timeouts: b.timeouts.saturating_sub(a.timeouts),
        });
        let disks =
            disks().into_iter().filter_map(|(name, after)| written(self.disks.get(&name)?, &after, window_s)).collect();
        Host {
            hostname: line("/proc/sys/kernel/hostname").unwrap_or_default(),
            boot_id: line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            at_ms: now_ms(),
            window_s,
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            thp: line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|t| Some(t.split_once('[')?.1.split_once(']')?.0.to_string())),
            overcommit: line("/proc/sys/vm/overcommit_memory").and_then(|t| t.parse().ok()),
            somaxconn: line("/proc/sys/net/core/somaxconn").and_then(|t| t.parse().ok()),
            memory_bytes: meminfo("MemTotal"),
            memory_available_bytes: meminfo("MemAvailable"),
            swap_used_bytes: meminfo("SwapTotal").zip(meminfo("SwapFree")).map(|(t, f)| t.saturating_sub(f)),
            swap_in_pages: swap_in(&self.vmstat).zip(swap_in(&vmstat)).map(|(a, b)| b.saturating_sub(a)),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            clock_read_ns: clock_read_ns(),
            hypervisor: hypervisor(),
            steal_share: cpu.map(|(steal, _)| steal),
            busy_share: cpu.map(|(_, busy)| busy),
            cores: self.cores.second(),
            memory_nodes: cores::memory_nodes(),
            reclaims: reclaims(&self.vmstat).zip(reclaims(&vmstat)).map(|(a, b)| Reclaims {
                direct: b.direct.saturating_sub(a.direct),
                compactions: b.compactions.saturating_sub(a.compactions),
            }),
            pressure,
            tcp,
            disks,
            links: self.links(),
            fsync: None,
            processes: Vec::new(),
            neighbours: Vec::new(),
        }
    }

    /// What each network device carried since the first sample.
    fn links(&self) -> Vec<Link> {
        let carried = |(name, after): (String, DeviceStatus)| {
            let before = self.links.get(&name)?;
            let link = Link {
                speed_mbit: speed_mbit(&name),
                received_bytes: after.recv_bytes.saturating_sub(before.recv_bytes),
                sent_bytes: after.sent_bytes.saturating_sub(before.sent_bytes),
                name,
            };
            (link.received_bytes > 0 || link.sent_bytes > 0).then_some(link)
        };
        links().into_iter().filter_map(carried).collect()
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

/// Counters since boot.
fn vmstat() -> HashMap<String, i64> {
    procfs::vmstat().unwrap_or_default()
}

fn swap_in(vmstat: &HashMap<String, i64>) -> Option<u64> {
    vmstat.get("pswpin").map(|pages| *pages as u64)
}

/// Waits for memory: `allocstall` had no zones before Linux 4.10. A kernel without compaction does not count it.
fn reclaims(vmstat: &HashMap<String, i64>) -> Option<Reclaims> {
    let stalls = || vmstat.iter().filter(|(name, _)| name.starts_with("allocstall")).map(|(_, n)| *n as u64);
    let compactions = vmstat.get("compact_stall").map_or(0, |n| *n as u64);
    stalls().next().map(|_| Reclaims { direct: stalls().sum(), compactions })
}

fn cpu_times() -> Option<CpuTimes> {
    cpu_times_of(&KernelStats::current().ok()?.total)
}

/// `cpu.some` and so on: total stalled us.
fn pressure() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for resource in ["cpu", "io", "memory"] {
        let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
        all.extend(stalled(resource, &text));
    }
    all
}

fn tcp() -> Option<Tcp> {
    let snmp = fs::read_to_string("/proc/net/snmp").ok()?;
    let netstat = fs::read_to_string("/proc/net/netstat").ok()?;
    Some(Tcp {
        retransmits: counter(&snmp, "Tcp:", "RetransSegs")?,
        segments_out: counter(&snmp, "Tcp:", "OutSegs")?,
        listen_overflows: counter(&netstat, "TcpExt:", "ListenOverflows")?,
        listen_drops: counter(&netstat, "TcpExt:", "ListenDrops")?,
        timeouts: counter(&netstat, "TcpExt:", "TCPTimeouts")?,
    })
}

fn disks() -> BTreeMap<String, DiskStat> {
    let whole = |disk: &DiskStat| Path::new("/sys/block").join(&disk.name).exists();
    let all = procfs::diskstats().unwrap_or_default().into_iter();
    all.filter(whole).map(|disk| (disk.name.clone(), disk)).collect()
}

/// Of this network namespace, by device.
fn links() -> BTreeMap<String, DeviceStatus> {
    procfs::net::dev_status().unwrap_or_default().into_iter().filter(|(name, _)| name != "lo").collect()
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

#[cfg(test)]
mod tests {
    use procfs::{FromRead, VmStat};

    use super::*;

    #[test]
    fn waits_for_memory_are_summed_over_zones() {
        let reclaims_of = |text: &str| reclaims(&VmStat::from_read(text.as_bytes()).unwrap().0);
        let text = "pgfault 9\nallocstall_dma32 1\nallocstall_normal 20\nallocstall_movable 300\n\
                    compact_stall 7\ncompact_fail 5\n";
        assert_eq!(reclaims_of(text), Some(Reclaims { direct: 321, compactions: 7 }));
        assert_eq!(reclaims_of("allocstall 4\n"), Some(Reclaims { direct: 4, compactions: 0 }));
        assert_eq!(reclaims_of("pgfault 9\n"), None);
    }
}
