//! What was seen of a machine that servers run on. Every field is optional in its own way: kernels and containers
//! hide different things, and what is hidden is `None`, never zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{AcceptQueue, Core, Link, MemoryGroup, MemoryNode, Reclaims, Rtt, Storage};

/// One machine. Shares are of one core and of the window's wall time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Host {
    /// Its name.
    pub hostname: String,
    /// `/proc/sys/kernel/random/boot_id`: tells machines apart.
    pub boot_id: String,
    /// Unix time in ms.
    pub at_ms: u64,
    /// Length of its window in seconds.
    pub window_s: f64,
    /// Kernel release.
    pub kernel: String,
    /// Online processors.
    pub cpus: u32,
    /// The word in brackets in `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub thp: Option<String>,
    /// `/proc/sys/vm/overcommit_memory`.
    pub overcommit: Option<u32>,
    /// `/proc/sys/net/core/somaxconn`.
    pub somaxconn: Option<u32>,
    /// MemTotal of `/proc/meminfo`.
    pub memory_bytes: Option<u64>,
    /// MemAvailable.
    pub memory_available_bytes: Option<u64>,
    /// SwapTotal less SwapFree.
    pub swap_used_bytes: Option<u64>,
    /// Pages swapped in during the window (`pswpin`).
    pub swap_in_pages: Option<u64>,
    /// `current_clocksource`.
    pub clocksource: Option<String>,
    /// What reading the clock takes there, in ns: some 25 where the C library does it by itself, more where the kernel
    /// must be called.
    #[serde(default)]
    pub clock_read_ns: Option<f64>,
    /// `xen`, `kvm`, ... by CPUID, DMI or `/sys/hypervisor`.
    pub hypervisor: Option<String>,
    /// Stolen by the hypervisor, share of all processors' time.
    pub steal_share: Option<f64>,
    /// Busy, share of all processors' time.
    pub busy_share: Option<f64>,
    /// Its processors one by one; none where they were not seen, and in facts of before this was kept.
    #[serde(default)]
    pub cores: Vec<Core>,
    /// Its memory nodes: one on most machines; none where they were not seen, and in facts of before this was kept.
    #[serde(default)]
    pub memory_nodes: Vec<MemoryNode>,
    /// How often tasks had to look for memory themselves. None in facts of before this was kept.
    #[serde(default)]
    pub reclaims: Option<Reclaims>,
    /// `/proc/pressure`: `cpu.some`, `io.full`, ... as share of the window's wall time stalled.
    pub pressure: BTreeMap<String, f64>,
    /// TCP counters over the window.
    pub tcp: Option<Tcp>,
    /// Block devices with traffic in the window.
    pub disks: Vec<Disk>,
    /// Network devices with traffic in the window, the loopback left out. None in facts of before this was kept.
    #[serde(default)]
    pub links: Vec<Link>,
    /// fsync of 4 KiB in the directory that `--fsync-dir` names.
    pub fsync: Option<Rtt>,
    /// Redis and Valkey servers found on it.
    pub processes: Vec<Process>,
    /// Who else used the processors, largest first.
    pub neighbours: Vec<Neighbour>,
}

/// Growth of TCP counters in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Tcp {
    /// RetransSegs.
    pub retransmits: u64,
    /// OutSegs.
    pub segments_out: u64,
    /// TcpExt ListenOverflows.
    pub listen_overflows: u64,
    /// TcpExt ListenDrops.
    pub listen_drops: u64,
    /// TcpExt TCPTimeouts.
    pub timeouts: u64,
}

/// A block device in the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Disk {
    /// Kernel name.
    pub name: String,
    /// Mean time of a finished write, in ms.
    pub write_await_ms: f64,
    /// Share of the window it was busy.
    pub busy_share: f64,
}

/// A server process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Process {
    /// Process id on the machine.
    pub pid: u32,
    /// Its id as it sees it itself, and as INFO names it: in a container it is another. None in facts of before this
    /// was kept.
    #[serde(default)]
    pub own_pid: Option<u32>,
    /// When it was started, unix time in ms by the machine's clock. None in facts of before this was kept.
    #[serde(default)]
    pub started_ms: Option<u64>,
    /// Executable's name.
    pub name: String,
    /// Addresses of nodes it serves.
    pub addresses: Vec<String>,
    /// Time on a processor, all threads.
    pub cpu_share: Option<f64>,
    /// Main thread runnable but waiting for a processor (`schedstat`).
    pub run_delay_share: Option<f64>,
    /// `VmSwap`.
    pub swap_bytes: Option<u64>,
    /// Pages it waited for a disk for in the window (`majflt`). None in facts of before this was kept.
    #[serde(default)]
    pub major_faults: Option<u64>,
    /// AnonHugePages of `smaps_rollup`.
    pub anon_huge_bytes: Option<u64>,
    /// Soft limit of open files.
    pub open_files_max: Option<u64>,
    /// Processors it may run on.
    pub cpus_allowed: Option<u32>,
    /// CPU quota in cores, the tightest of its cgroup and those above; `None` is no quota.
    pub quota_cores: Option<f64>,
    /// Share of the window its cgroup was throttled, or the one above it that was throttled most.
    pub throttled_share: Option<f64>,
    /// (throttled, all) enforcement periods in the window.
    pub throttled_periods: Option<(u64, u64)>,
    /// How many levels above its own the cgroup with these periods is; 0 is its own.
    #[serde(default)]
    pub throttled_above: u32,
    /// Memory limit in bytes, the tightest of its cgroup and those above.
    pub memory_limit_bytes: Option<u64>,
    /// The memory of the cgroup with that limit; its own where there is no limit. None where it is not shown, and in
    /// facts of before this was kept.
    #[serde(default)]
    pub memory_group: Option<MemoryGroup>,
    /// Open files at the end of the window.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Time of its main thread on a processor, by the kernel.
    #[serde(default)]
    pub main_cpu_share: Option<f64>,
    /// Where its main thread was seen, at the window's start and end: one number if it was the same processor. None
    /// where it was not seen.
    #[serde(default)]
    pub ran_on: Vec<u32>,
    /// What its cgroup holds on each memory node, page cache left out: (node, bytes). None where it was not seen.
    #[serde(default)]
    pub anon_by_node: Vec<(u32, u64)>,
    /// Numbers of the processors it may run on; none where they were not seen.
    #[serde(default)]
    pub processors: Vec<u32>,
    /// Accept queues of the sockets it listens on, the cluster bus left out; none where they were not seen.
    #[serde(default)]
    pub accept_queues: Vec<AcceptQueue>,
    /// The file system of its working directory, where it writes its files. None in facts of before this was kept.
    #[serde(default)]
    pub storage: Option<Storage>,
}

impl Process {
    /// The processor that its main thread ran on all the time, as far as is known: the only one it may use, or the one
    /// it was seen on twice.
    pub fn core(&self) -> Option<u32> {
        match (&self.processors[..], &self.ran_on[..]) {
            ([only], _) | (_, [only]) => Some(*only),
            _ => None,
        }
    }
}

/// Another process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Neighbour {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Time on a processor.
    pub cpu_share: f64,
    /// Whether it holds a connection to one of the servers here: a client, not a stranger.
    pub client: bool,
    /// The process that started it: a server's own children save for it. None in facts of before this was kept.
    #[serde(default)]
    pub parent: Option<u32>,
}
