//! What a master counts of a slot.

use serde::{Deserialize, Serialize};

/// One slot, as CLUSTER SLOT-STATS tells it (Valkey 8.0+, Redis 8.2+).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SlotStat {
    /// Its number.
    pub slot: u16,
    /// Keys in it.
    pub keys: u64,
    /// Main thread time that its commands took since counting began, in us. None without
    /// `cluster-slot-stats-enabled yes`.
    pub cpu_us: Option<u64>,
}
