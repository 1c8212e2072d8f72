//! What a recording holds, and under which names.
//!
//! | series | rows | texts | events |
//! |---|---|---|---|
//! | URL of a deployment | | | [`LISTING`], [`SENTINEL`] |
//! | that URL, a space, a node's address | each second: INFO's numbers, PINGs, what we sent | INFO's templates | [`AWAY`], [`STALL`], [`SLOW`], [`LARGE`], [`ASKED`], parts |
//! | [`MACHINE`] | each second: that the recorder was alive | | [`HOST`], [`STARTED`], [`LOOKED`] |
//! | [`SECONDS`] | each second: what the machine and the servers on it have counted | | |
//!
//! An event's payload is JSON, except where it says otherwise. Readers pass over what they do not know.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use unslow_facts::Lack;
use unslow_topology::{DeploymentKind, Role};

/// The series of the machine that recorded.
pub const MACHINE: &str = "machine";
/// The series of its counters ([`unslow_probe::host::Counts`]); no deployment's name has a space.
pub const SECONDS: &str = "machine seconds";
/// An event: the deployment's servers, when they change and every few minutes.
pub const LISTING: &str = "listing";
/// An event of a deployment: what one of its Sentinels knows.
pub const SENTINEL: &str = "sentinel";
/// An event: [`Away`], or `null` when it answers again.
pub const AWAY: &str = "away";
/// An event: [`Stall`].
pub const STALL: &str = "stall";
/// An event: [`unslow_facts::Standing`], what the process did up to then while it owed an answer.
pub const STANDING: &str = "standing";
/// An event of the machine: [`Closer`], when a closer look began.
pub const LOOKED: &str = "looked";
/// An event: one entry of the slow log.
pub const SLOW: &str = "slow";
/// An event: one large request or reply that the server logged.
pub const LARGE: &str = "large";
/// An event of the machine, without a payload: a recorder began. What was known of a node before then is over.
pub const STARTED: &str = "started";
/// A column: notes that the disk was too slow for, since the recorder's start.
pub const LOST: &str = "lost";
/// An event: all questions were asked. Parts that are not written then are as they were. Its payload is [`Because`], or
/// empty where they were due.
pub const ASKED: &str = "asked";
/// An event: what one minute on the recorder's own machine was like.
pub const HOST: &str = "host";
/// Columns of what we sent a node, counted from the recorder's start: commands by name, errors by code, and the rest.
pub const OWN_COMMAND: &str = "~own/command/";
pub const OWN_ERROR: &str = "~own/error/";
pub const OWN_READS: &str = "~own/reads";
pub const OWN_TOTAL: &str = "~own/total";

/// Parts of a node that are asked for less often; each is an event of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Config,
    /// Whether the slow log was read; its entries are events of their own.
    SlowLog,
    /// Whether the logs of large requests and replies were read; their entries are separate events.
    LargeLog,
    Latency,
    Histograms,
    Clients,
    Cluster,
    ClusterInfo,
    SlotStats,
    KeySizes,
    Sockets,
    /// [`Greeted`].
    Greeted,
}

impl Part {
    pub fn name(self) -> &'static str {
        match self {
            Part::Config => "config",
            Part::SlowLog => "slowlog",
            Part::LargeLog => "largelog",
            Part::Latency => "latency",
            Part::Histograms => "histograms",
            Part::Clients => "clients",
            Part::Cluster => "cluster",
            Part::ClusterInfo => "cluster_info",
            Part::SlotStats => "slot_stats",
            Part::KeySizes => "key_sizes",
            Part::Sockets => "sockets",
            Part::Greeted => "greeted",
        }
    }
}

/// The servers of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    pub kind: DeploymentKind,
    pub nodes: Vec<Listed>,
    pub notes: Vec<String>,
    pub through: Option<String>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub address: String,
    pub role: Role,
    pub master: Option<String>,
    pub node_id: Option<String>,
}

/// A node that does not answer, or refuses us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    pub why: String,
    pub lack: Lack,
    /// It took two connections and said nothing on either.
    pub silent: bool,
    /// Its last word, or the first attempt; unix time in ms.
    pub since_ms: u64,
}

/// A node that stays away is told again after this time, in ms. Without a word for longer, nothing is known of it.
pub const TELL_AGAIN_MS: u64 = 300_000;

/// An answer that took longer than [`STALLS_FROM`], or another limit that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// When the question was sent, unix time in ms.
    pub sent_ms: u64,
    pub us: u64,
}

/// Shorter answers are counted by length, longer ones kept with their time.
pub const STALLS_FROM: Duration = Duration::from_millis(100);

/// Why a node was looked at closely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LookedFor {
    /// It did not answer for a while.
    Stall,
    /// It answers again.
    Back,
    /// Servers have changed places, or one has come or gone.
    Topology,
    /// Errors, refusals, evictions or full resyncs jumped.
    Errors,
    /// A rule found something grave.
    Finding,
    /// Of a later version.
    #[serde(other)]
    Other,
}

/// A node was looked at closely from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Closer {
    /// Its deployment's.
    pub url: String,
    pub address: String,
    pub why: LookedFor,
}

/// Something began, unix time in ms, for which all questions were asked before they were due: what they found may be
/// its doing, and is not told of a time before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Because {
    pub because_ms: i64,
}

impl LookedFor {
    pub fn words(self) -> &'static str {
        match self {
            LookedFor::Stall => "a stall",
            LookedFor::Back => "it answered again",
            LookedFor::Topology => "a role or replicas changed",
            LookedFor::Errors => "errors, refusals, evictions or resyncs jumped",
            LookedFor::Finding => "a finding of high or worse",
            LookedFor::Other => "a reason that this version does not know",
        }
    }
}

/// How a node let us in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeted {
    pub open_door: bool,
    pub connect_us: Option<u64>,
}

/// The series of a node.
pub fn node_series(url: &str, address: &str) -> String {
    format!("{url} {address}")
}
