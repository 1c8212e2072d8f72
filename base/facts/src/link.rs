//! A network device of a machine in the window.

use serde::{Deserialize, Serialize};

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Link {
    /// Kernel name.
    pub name: String,
    /// Its speed in Mbit/s, where the device says it: physical ones do; most virtual ones have none, or one that means
    /// nothing.
    pub speed_mbit: Option<u64>,
    /// Bytes it received.
    pub received_bytes: u64,
    /// Bytes it sent.
    pub sent_bytes: u64,
}
