//! What came of a walk beside what it has seen.

use std::collections::BTreeMap;

use serde::Serialize;
use unslow_topology::Role;

use crate::hot::Tracked;
use crate::sizes::Classes;

/// What came of a walk beside the scan itself.
#[derive(Debug, Default)]
pub struct Walked {
    pub costs: Vec<Cost>,
    /// Shards of which no server could be walked.
    pub missed: usize,
    /// Shards whose walk ended on an error.
    pub broken: usize,
    /// Parts that had been seen to their end before.
    pub done_before: usize,
    /// By the part's place in the scan: how many keys of each size there were when the walk began, by type.
    pub sizes: BTreeMap<usize, BTreeMap<String, Classes>>,
    /// It goes on where an earlier one has ended.
    pub is_resumed: bool,
    /// What HOTKEYS has shown.
    pub hot: Vec<Tracked>,
    /// What stayed unseen, and why.
    pub notes: Vec<String>,
}

impl Walked {
    /// Adds up what one server cost, connection by connection.
    pub(crate) fn add(&mut self, cost: Cost) {
        let Some(there) = self.costs.iter_mut().find(|there| there.server == cost.server) else {
            return self.costs.push(cost);
        };
        let spent = |of: &Cost| of.core_share_in_commands.map(|share| share * of.seconds);
        let both = spent(there).zip(spent(&cost));
        there.commands += cost.commands;
        there.seconds += cost.seconds;
        there.core_share_in_commands = both.map(|(a, b)| (a + b) / there.seconds.max(1e-3));
    }
}

/// What the walk cost a server.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Cost {
    pub server: String,
    pub role: Role,
    pub commands: u64,
    pub seconds: f64,
    /// Share of one core that the server spent in commands as ours, by its own count; others may have sent the same.
    /// Reading and answering them is not in it. `null` where the server could not be asked at the end.
    pub core_share_in_commands: Option<f64>,
}
