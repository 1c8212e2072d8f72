//! Checkers: a history in, a judgement out. None of them asks a server; the same history gives the same judgement.

pub mod availability;
pub mod exclusion;
pub mod linearizable;
pub mod lost_writes;
pub mod stale_reads;

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// A drill's or a check's outcome. A crashed check is unknown, never passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    Passed,
    /// Nobody can say.
    Unknown,
    /// It does not hold.
    Failed,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckId {
    /// The clients' work was what the drill says.
    Load,
    /// The fault was at work, and was undone.
    Fault,
    /// The checkers themselves.
    Checker,
    /// Keys of the drill's in a deployment of the user's.
    Keys,
    /// Full redundancy could be seen after the fault.
    Redundancy,
    /// Registers that are not linearizable, where that is not judged.
    Registers,
    /// `expect.window`
    Window,
    /// `expect.lost_writes`
    LostWrites,
    /// `expect.lost_writes_stays`
    LostWritesStays,
    /// `expect.lost_writes_at_least`
    LostWritesAtLeast,
    /// `expect.lost_within`
    LostWithin,
    /// `expect.linearizable`
    Linearizable,
    /// `expect.stale`
    Stale,
    /// `expect.time_travel`
    TimeTravel,
    /// `expect.double_holders`
    DoubleHolders,
    /// `expect.late_uses_taken`
    LateUsesTaken,
    /// `expect.redundant`
    Redundant,
}

impl fmt::Display for CheckId {
    /// As in the drill's file and in JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What one check found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// The setting under `[expect]`, or `fault` and `load` for what every drill checks of itself.
    pub name: CheckId,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What was found and what was expected, as a sentence.
    pub text: String,
    /// Operations or events that show it.
    pub evidence: Vec<String>,
}

impl Check {
    /// A check that holds or does not.
    pub fn of(name: CheckId, holds: bool, text: impl Into<String>) -> Check {
        let verdict = if holds { Verdict::Passed } else { Verdict::Failed };
        Check { name, verdict, text: text.into(), evidence: Vec::new() }
    }

    /// One that could not be made.
    pub fn unknown(name: CheckId, text: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Unknown, text: text.into(), evidence: Vec::new() }
    }

    /// With what shows it.
    pub fn because(mut self, evidence: Vec<String>) -> Check {
        self.evidence = evidence;
        self
    }
}
