//! What came of a run, as it is printed and kept.

use schemars::JsonSchema;
use serde::Serialize;

use crate::check::availability::Window;
use crate::check::exclusion::Locks;
use crate::check::lost_writes::Writes;
use crate::check::stale_reads::Reads;
use crate::check::{Check, CheckId, Verdict};
use crate::error::Error;
use crate::observe::Event;
use crate::spec::Drill;

/// Schema of an [`Outcome`].
pub const SCHEMA: &str = "unslow.drill/1";

/// Whether linearizable registers were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Registers {
    /// Registers that many wrote.
    pub checked: u64,
    /// Of those, not linearizable.
    pub wrong: u64,
    /// Of those, too hard to say.
    pub unknown: u64,
    /// Operations on them.
    pub operations: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Figures {
    /// When the first fault was at work.
    pub fault_from_us: u64,
    /// When the last was over.
    pub fault_until_us: u64,
    /// From the fault until a server became master that was not.
    pub promoted_after_us: Option<u64>,
    /// Each client's longest time without an acknowledged operation.
    pub windows: Vec<Window>,
    /// The longest of clients that follow, of the shard that was hit.
    pub window_us_max: u64,
    /// Of the other shards.
    pub other_shards_window_us_max: u64,
    /// From the end of the fault until every shard has its master and all replicas.
    pub redundant_after_us: Option<u64>,
    /// Whether one of those clients, of the shard that was hit, was still without an answer when the run ended.
    pub window_open: bool,
    /// Operations in all.
    pub operations: u64,
    /// Whether what is there was compared with what was acknowledged.
    pub writes_judged: bool,
    /// Writes of clients that follow.
    pub writes: Writes,
    /// Writes of clients that stay.
    pub writes_stays: Writes,
    /// Reads from masters, of clients that follow.
    pub reads: Reads,
    /// Reads of clients that stay.
    pub reads_stays: Reads,
    /// Reads from replicas.
    pub reads_replicas: Reads,
    /// Registers that many write.
    pub registers: Registers,
    /// Locks, where the load is about them.
    pub locks: Option<Locks>,
}

/// A run's outcome.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Outcome {
    /// `unslow.drill/1`.
    pub schema: &'static str,
    /// Name of the drill.
    pub drill: String,
    /// Name of the variant.
    pub variant: String,
    /// The fault; of several on the time line, the one that has alternatives.
    pub fault: String,
    /// The seed.
    pub seed: u64,
    /// Which server.
    pub engine: String,
    /// Failed when a check failed, else unknown when one is, else passed.
    pub verdict: Verdict,
    /// Each check.
    pub checks: Vec<Check>,
    /// What was measured.
    pub figures: Figures,
    /// The time line.
    pub events: Vec<Event>,
    /// Where the evidence is.
    pub folder: String,
    /// How long it all took.
    pub seconds: f64,
}

/// What `unslow drill --format json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    /// `unslow.drill/1`.
    pub schema: &'static str,
    /// Each run.
    pub runs: Vec<Outcome>,
}

impl Outcome {
    /// A run that ended with an error: unknown, beside those that did not. `folder` is where its evidence is, if it has
    /// any.
    pub fn crashed(drill: &Drill, label: &str, fault: &str, seed: u64, folder: &str, error: &Error) -> Outcome {
        Outcome {
            schema: SCHEMA,
            drill: drill.name.clone(),
            variant: label.into(),
            fault: fault.into(),
            seed,
            engine: String::new(),
            verdict: Verdict::Unknown,
            checks: vec![Check::unknown(CheckId::Load, error.to_string())],
            figures: Figures::default(),
            events: Vec::new(),
            folder: folder.into(),
            seconds: 0.0,
        }
    }
}
