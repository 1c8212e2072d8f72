//! A lab that is raised for a run, faults that are done to it and proved, and clients that work there meanwhile.
//! Drills, the recovery of clients, cases and the demo all stand on it; what they do, in which order, is theirs.

mod struck;
mod workload;

use unslow_lab::faults;
use unslow_lab::lab::Lab;
use unslow_lab::topology::{Setting, Topology};

use crate::error::Error;
pub use struck::{Struck, Unproven};
pub use workload::{Answered, PATIENCE, Workload, play, sleep_until};

/// A lab of our own, for one run. It goes when this is dropped.
pub struct Stage {
    /// The lab.
    pub lab: Lab,
}

/// What a lab's hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Networks of their own where this user may make them, else loopback addresses: [`Lab::wire`] tells.
    Wired,
    /// Loopback addresses, whatever is allowed.
    Flat,
}

/// What differs between two runs of the same thing.
#[derive(Clone, Copy, Debug)]
pub struct Variation<'a> {
    /// Of the lab's jitter and loss.
    pub seed: u64,
    /// Another engine than the topology's.
    pub engine: Option<&'a str>,
}

impl Stage {
    /// Brings the lab up, with the settings that these faults need where the topology says nothing of them. Names that
    /// only drills know are skipped.
    pub fn raise(
        mut topology: Topology,
        hosts: Hosts,
        variation: Variation<'_>,
        faults: &[&str],
    ) -> Result<Stage, Error> {
        topology.seed = variation.seed;
        if let Some(engine) = variation.engine {
            topology.deployment.server = engine.into();
        }
        for needs in faults.iter().filter_map(|name| faults::find(name)) {
            for (key, value) in needs.settings_for(&topology.deployment.server) {
                let settings = &mut topology.deployment.settings;
                settings.entry(key.to_string()).or_insert_with(|| Setting::Text(value.to_string()));
            }
        }
        let lab = match hosts {
            Hosts::Wired => Lab::start(&topology)?,
            Hosts::Flat => Lab::start_flat(&topology)?,
        };
        Ok(Stage { lab })
    }

    /// The version of its servers; empty if it has none.
    pub fn engine(&self) -> String {
        self.lab.deployment.nodes.first().map(|n| n.engine().version.clone()).unwrap_or_default()
    }

    /// Does a fault to it. Without a target it takes the first that fits, without a value its own.
    pub fn strike(&self, fault: &str, who: Option<&str>, value: Option<&str>) -> Result<Struck, Error> {
        Struck::inject(&self.lab, fault, who, value)
    }
}
