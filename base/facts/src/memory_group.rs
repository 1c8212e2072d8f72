//! The memory of the cgroup that bounds a server's, as the kernel accounts for it.

use serde::{Deserialize, Serialize};

/// One cgroup's memory. Counters are of the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemoryGroup {
    /// How many levels above the server's own cgroup it is; 0 is its own.
    #[serde(default)]
    pub above: u32,
    /// Charged to it at the window's end, page cache included: `memory.current` (v2), `memory.usage_in_bytes` (v1).
    pub used_bytes: u64,
    /// Page cache among it that the kernel takes back without ending a process: `active_file` and `inactive_file`.
    pub file_bytes: Option<u64>,
    /// How often it stood at its limit and the kernel first had to take memory back from it: `max` of `memory.events`
    /// (v2), `memory.failcnt` (v1).
    pub limit_hits: Option<u64>,
    /// Processes of it that the OOM killer ended: `oom_kill` of `memory.events` (v2) or of `memory.oom_control` (v1,
    /// Linux 4.13).
    pub oom_kills: Option<u64>,
    /// Share of the window in which a task of it stood still for want of memory: `some` of `memory.pressure` (v2).
    pub stalled_share: Option<f64>,
}

impl MemoryGroup {
    /// What it needs: all but the page cache.
    pub fn held_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.file_bytes.unwrap_or(0))
    }
}
