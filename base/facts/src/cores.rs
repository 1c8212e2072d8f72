//! The processors and the memory nodes of a machine: what each did in the window, and which belong together.

use serde::{Deserialize, Serialize};

/// One processor. Shares are of its own time in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Core {
    /// Its number.
    pub number: u32,
    /// Not idle (`/proc/stat`).
    pub busy_share: f64,
    /// In soft interrupts: packets that were received, mostly (`/proc/stat`).
    pub softirq_share: f64,
    /// Interrupts of devices that it took in the window (numbered lines of `/proc/interrupts`, without timers).
    pub device_interrupts: Option<u64>,
    /// How fast it runs, where the machine lets that be seen. Virtual machines mostly do not.
    pub speed: Option<Speed>,
}

/// The clock of a processor, by `/sys/devices/system/cpu/cpuN/cpufreq`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Speed {
    /// `scaling_driver`. Under intel_pstate and amd-pstate-epp the governor `powersave` is the ordinary one.
    pub driver: String,
    /// `scaling_governor`.
    pub governor: String,
    /// `scaling_cur_freq` at the window's start.
    pub first_khz: Option<u64>,
    /// `scaling_cur_freq` at its end.
    pub last_khz: Option<u64>,
    /// What it may be raised to: `scaling_max_freq`.
    pub allowed_khz: u64,
    /// What the processor can do: `cpuinfo_max_freq`.
    pub max_khz: u64,
}

/// Memory and the processors that are near it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoryNode {
    /// Its number.
    pub number: u32,
    /// Numbers of its processors.
    pub processors: Vec<u32>,
    /// Its memory.
    pub memory_bytes: Option<u64>,
}

/// How often, in the window, a task that asked for memory had to look for it itself (`/proc/vmstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Reclaims {
    /// By taking pages back: `allocstall_*`. A cgroup at its own limit is not counted here.
    pub direct: u64,
    /// By moving pages together: `compact_stall`.
    pub compactions: u64,
}
