//! What came of a walk beside what it has seen.

use serde::Serialize;
use unslow_topology::Role;

/// What came of a walk beside the scan itself.
#[derive(Debug, Default)]
pub struct Walked {
    pub costs: Vec<Cost>,
    /// Shards of which no server could be walked.
    pub missed: usize,
    /// What stayed unseen, and why.
    pub notes: Vec<String>,
}

/// What the walk cost a server.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    pub server: String,
    pub role: Role,
    pub commands: u64,
    pub seconds: f64,
    /// Of one core, by the server's own count of the commands that were sent. Others may have sent the same.
    pub share_of_core_at_most: f64,
}
