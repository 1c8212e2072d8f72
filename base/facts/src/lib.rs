//! What was seen, where, when and in which unit: the narrow waist of the project.
//!
//! Probes write these, rules read them, and nothing else passes between the two, so a diagnosis from a saved file is
//! the diagnosis of the live run. Serde both ways; units stand in the field names; absent evidence is a value
//! ([`Seen::No`]) with its reason, never a zero.
//!
//! Left out on purpose: judgement. No threshold stands in this crate.
#![forbid(unsafe_code)]

mod called;
mod check;
mod client_error;
mod cores;
mod host;
mod keys_seen;
mod later;
mod link;
mod listen;
mod log_event;
mod logged;
mod memory_group;
mod node;
mod sentinel;
mod slot_stat;
mod standing;
mod storage;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unslow_topology::DeploymentKind;

pub use called::Called;
pub use check::Impossible;
pub use client_error::{ClientError, ClientErrorKind, ClientLibrary, Multiplexer, ThreadPool};
pub use cores::{Core, MemoryNode, Reclaims, Speed};
pub use host::{Disk, Host, Neighbour, Process, Tcp};
pub use keys_seen::{HotKey, HotKeys, KeyPattern, KeysSeen, LongKey};
pub use later::LaterView;
pub use link::Link;
pub use listen::AcceptQueue;
pub use log_event::{LogEvent, LogKind};
pub use logged::{KeySize, LargeEntry, Side, SlowEntry};
pub use memory_group::MemoryGroup;
pub use node::{
    ClientGroup, ClientRow, Clients, LatencyEvent, Node, Own, PeerSockets, Point, Rtt, Sample, SentinelGroup,
    SentinelNode, TimeRange,
};
pub use sentinel::{Listed, Tilt};
pub use slot_stat::SlotStat;
pub use standing::{Doing, Standing, ThreadState};
pub use storage::{Storage, StorageState};

/// Version of the saved form. A reader refuses any other major number.
pub const SCHEMA: &str = "unslow.facts/1";

/// Something that was looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Seen<T> {
    /// It was seen.
    Yes {
        /// What was seen. Copies share it: a view that draws hundreds of servers twice a second copies their facts.
        value: Arc<T>,
        /// The command or file a hand can repeat.
        source: String,
        /// Unix time in ms.
        at_ms: u64,
    },
    /// It was not.
    No(Gap),
}

/// What kept us from seeing something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// The server refuses the command to this user.
    Rights,
    /// The server does not have it: an older version, or a service that removed it.
    Version,
    /// The server does not answer.
    Answer,
    /// The window was over, or the run was ended, before it could be asked.
    Time,
    /// It stands on the server's machine, which could not be looked into.
    Host,
    /// Anything else.
    #[default]
    Other,
}

/// Something that was not seen, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Gap {
    /// Why, as a sentence without a full stop.
    pub why: String,
    /// What would let us see it: an ACL rule, a flag, a version.
    pub grant: Option<String>,
    /// Its kind.
    #[serde(default)]
    pub lack: Lack,
}

impl Gap {
    /// A gap of this kind; `grant` is empty where nothing would help.
    pub fn new(lack: Lack, why: impl Into<String>, grant: impl Into<String>) -> Gap {
        Gap { why: why.into(), grant: Some(grant.into()).filter(|g| !g.is_empty()), lack }
    }

    /// With what it is about before the reason: `settings: CONFIG GET is denied to this user`.
    pub fn of(&self, what: &str) -> Gap {
        Gap { why: format!("{what}: {}", self.why), ..self.clone() }
    }
}

/// The reason of what no probe looked for.
const NOT_LOOKED_FOR: &str = "not looked for";

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Seen::No(Gap::new(Lack::Other, NOT_LOOKED_FOR, ""))
    }
}

impl<T> Seen<T> {
    /// It was seen, by this command or in this file, at this unix time in ms.
    pub fn yes(value: T, source: impl Into<String>, at_ms: u64) -> Seen<T> {
        Seen::Yes { value: Arc::new(value), source: source.into(), at_ms }
    }

    /// The value, if it was seen.
    pub fn value(&self) -> Option<&T> {
        match self {
            Seen::Yes { value, .. } => Some(value),
            Seen::No(_) => None,
        }
    }

    /// The value to be changed, in this copy alone.
    pub fn value_mut(&mut self) -> Option<&mut T>
    where
        T: Clone,
    {
        match self {
            Seen::Yes { value, .. } => Some(Arc::make_mut(value)),
            Seen::No(_) => None,
        }
    }

    /// The value if it was seen, or why it was not.
    pub fn into_result(self) -> Result<T, Gap>
    where
        T: Clone,
    {
        match self {
            Seen::Yes { value, .. } => Ok(Arc::unwrap_or_clone(value)),
            Seen::No(gap) => Err(gap),
        }
    }

    /// Why not and what would help, if it was not.
    pub fn missing(&self) -> Option<&Gap> {
        match self {
            Seen::Yes { .. } => None,
            Seen::No(gap) => Some(gap),
        }
    }

    /// [`Seen::missing`], where a probe looked for it.
    pub fn refused(&self) -> Option<&Gap> {
        self.missing().filter(|gap| gap.why != NOT_LOOKED_FOR)
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
    /// The run was ended before its window was over; what stands here is what was seen until then.
    #[serde(default)]
    pub cut_short: bool,
    /// What answered in the servers' place: a proxy, as its own words say. What stands behind it was not seen.
    #[serde(default)]
    pub through: Option<String>,
    /// What error messages of client libraries say (`--client-error`).
    #[serde(default)]
    pub client_errors: Vec<ClientError>,
    /// What servers' logs say (`--log`), the newest first.
    #[serde(default)]
    pub log_events: Vec<LogEvent>,
    /// What a walk through the keys has seen (`--keys`).
    #[serde(default)]
    pub keys_seen: Option<KeysSeen>,
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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It ends in the middle.
    #[error(
        "the file is cut off: it ends at line {line}, column {column}, in the middle of the facts; copy it again, or \
         save the facts again"
    )]
    CutOff { line: usize, column: usize },
    /// It is something else.
    #[error("not a facts file: {0}; make one with: unslow doctor URL --save FILE")]
    NotFacts(serde_json::Error),
    /// Another version of unslow wrote it.
    #[error("schema is {found:?}, expected {SCHEMA:?}; use the unslow that wrote it, or save the facts again")]
    Schema { found: String },
    /// It is a facts file of this version, and not as one is written.
    #[error("damaged facts file: {0}")]
    Damaged(serde_json::Error),
    /// A number in it cannot be.
    #[error("damaged facts file: {0}")]
    Impossible(#[from] Impossible),
}

impl Facts {
    /// Of a deployment that nothing is known of but its URL.
    pub fn of_nothing(url: &str) -> Facts {
        Facts {
            schema: SCHEMA.into(),
            unslow: env!("CARGO_PKG_VERSION").into(),
            at_ms: 0,
            window_s: 0.0,
            url: url.into(),
            kind: DeploymentKind::Standalone,
            nodes: Vec::new(),
            sentinels: Vec::new(),
            hosts: Vec::new(),
            notes: Vec::new(),
            cost: Cost::default(),
            cut_short: false,
            through: None,
            client_errors: Vec::new(),
            log_events: Vec::new(),
            keys_seen: None,
        }
    }

    /// Whether these are words of clients and logs alone: no server was looked for.
    pub fn of_words_alone(&self) -> bool {
        let words = !self.client_errors.is_empty() || !self.log_events.is_empty();
        self.nodes.is_empty() && self.sentinels.is_empty() && words
    }

    /// Reads a saved file; the error says what was found and what was expected.
    pub fn from_json(text: &str) -> Result<Facts, ReadError> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let broken = |e: serde_json::Error| {
            if e.is_eof() {
                return ReadError::CutOff { line: e.line(), column: e.column() };
            }
            ReadError::NotFacts(e)
        };
        let head: Head = serde_json::from_str(text).map_err(broken)?;
        if head.schema != SCHEMA {
            return Err(ReadError::Schema { found: head.schema });
        }
        let mut unknown = std::collections::BTreeSet::new();
        let mut json = serde_json::Deserializer::from_str(text);
        let mut facts: Facts = serde_ignored::deserialize(&mut json, |path| {
            let field = path.to_string();
            unknown.insert(
                field.rsplit('.').find(|p| p.parse::<usize>().is_err() && *p != "?").unwrap_or("?").to_string(),
            );
        })
        .map_err(ReadError::Damaged)?;
        json.end().map_err(ReadError::Damaged)?;
        check::all(&facts)?;
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.into_iter().collect();
            facts.notes.push(format!(
                "the facts were saved by unslow {}, and this is {}: what only that one knows was passed over ({})",
                facts.unslow,
                env!("CARGO_PKG_VERSION"),
                names.join(", ")
            ));
        }
        Ok(facts)
    }

    /// Finds the first number that no run can have seen. Facts that were read by [`Facts::from_json`] have none.
    pub fn check(&self) -> Result<(), Impossible> {
        check::all(self)
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
