//! What was seen, where, when and in which unit: the narrow waist of the project.
//!
//! Probes write these, rules read them, and nothing else passes between the two, so a diagnosis from a saved file is
//! the diagnosis of the live run. Serde both ways; units stand in the field names; absent evidence is a value
//! ([`Seen::No`]) with its reason, never a zero.
//!
//! Left out on purpose: judgement. No threshold stands in this crate.
#![forbid(unsafe_code)]

mod host;
mod node;

use serde::{Deserialize, Serialize};
use unslow_topology::DeploymentKind;

pub use host::{Disk, Host, Neighbour, Process, Tcp};
pub use node::{
    ClientGroup, ClientRow, Clients, KeySize, LatencyEvent, Node, Own, PeerSockets, Point, Rtt, Sample, SentinelGroup,
    SentinelNode, SlowEntry,
};

/// Version of the saved form. A reader refuses any other major number.
pub const SCHEMA: &str = "unslow.facts/1";

/// Something that was looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Seen<T> {
    /// It was seen.
    Yes {
        /// What.
        value: T,
        /// The command or file a hand can repeat.
        source: String,
        /// Unix time in ms.
        at_ms: u64,
    },
    /// It was not.
    No {
        /// Why, as a sentence without a full stop.
        why: String,
        /// What would let us see it: an ACL rule, a flag, a version.
        grant: Option<String>,
    },
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Seen::No { why: "not looked for".into(), grant: None }
    }
}

impl<T> Seen<T> {
    /// The value, if it was seen.
    pub fn value(&self) -> Option<&T> {
        match self {
            Seen::Yes { value, .. } => Some(value),
            Seen::No { .. } => None,
        }
    }

    /// Why not and what would help, if it was not.
    pub fn missing(&self) -> Option<(&str, Option<&str>)> {
        match self {
            Seen::Yes { .. } => None,
            Seen::No { why, grant } => Some((why, grant.as_deref())),
        }
    }
}

/// Everything one run saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Facts {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of unslow that saw it.
    pub unslow: String,
    /// Unix time in ms at the start.
    pub at_ms: u64,
    /// Length of the window between the two samples, in seconds.
    pub window_s: f64,
    /// The URL to run again, without password.
    pub url: String,
    /// How the servers belong together.
    pub kind: DeploymentKind,
    /// Data nodes.
    pub nodes: Vec<Node>,
    /// Sentinels.
    pub sentinels: Vec<SentinelNode>,
    /// Machines we could look into.
    pub hosts: Vec<Host>,
    /// What stayed unseen for the deployment as a whole.
    pub notes: Vec<String>,
    /// What looking cost.
    pub cost: Cost,
}

/// What the run itself cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Cost {
    /// Wall time of the whole run.
    pub seconds: f64,
    /// Commands sent to data nodes after discovery.
    pub commands: u64,
    /// Share of one core on the node that paid most, over the run.
    pub server_cpu_share: f64,
    /// The dearest single command, by the server's own clock (mean of its calls in the window).
    pub slowest_us: f64,
    /// Which that was.
    pub slowest_command: String,
}

/// Why a facts file could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError(pub String);

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

impl Facts {
    /// Reads a saved file; the error says what was found and what was expected.
    pub fn from_json(text: &str) -> Result<Facts, ReadError> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let head: Head = serde_json::from_str(text)
            .map_err(|e| ReadError(format!("not a facts file: {e}; make one with: unslow doctor URL --save FILE")))?;
        if head.schema != SCHEMA {
            return Err(ReadError(format!(
                "schema is {:?}, expected {SCHEMA:?}; use the unslow that wrote it, or save the facts again",
                head.schema
            )));
        }
        serde_json::from_str(text).map_err(|e| ReadError(format!("damaged facts file: {e}")))
    }

    /// The node with this address.
    pub fn node(&self, address: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.address == address)
    }

    /// Nodes that answered.
    pub fn live(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|n| n.last.is_some())
    }

    /// The process facts of a node, where its machine could be looked into.
    pub fn process(&self, node: &Node) -> Option<(&Host, &Process)> {
        self.hosts.iter().find_map(|h| Some((h, h.processes.iter().find(|p| p.addresses.contains(&node.address))?)))
    }
}

/// Year, month and day (UTC) of so many milliseconds since 1970, after Howard Hinnant's published algorithm.
pub fn civil_date(at_ms: u64) -> (i64, i64, i64) {
    let days = (at_ms / 86_400_000) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let doe = days.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}
