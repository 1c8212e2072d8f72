//! Checkers: a history in, a judgement out. None of them asks a server; the same history gives the same judgement.

pub mod availability;
pub mod exclusion;
pub mod linearizable;
pub mod lost_writes;
pub mod stale_reads;

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

/// What one check found.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Check {
    /// The setting under `[expect]`, or `fault` and `load` for what every drill checks of itself.
    pub name: String,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What was found and what was expected, as a sentence.
    pub text: String,
    /// Operations or events that show it.
    pub evidence: Vec<String>,
}

impl Check {
    /// A check that holds or does not.
    pub fn of(name: &str, holds: bool, text: impl Into<String>) -> Check {
        let verdict = if holds { Verdict::Passed } else { Verdict::Failed };
        Check { name: name.into(), verdict, text: text.into(), evidence: Vec::new() }
    }

    /// One that could not be made.
    pub fn unknown(name: &str, text: impl Into<String>) -> Check {
        Check { name: name.into(), verdict: Verdict::Unknown, text: text.into(), evidence: Vec::new() }
    }

    /// With what shows it.
    pub fn because(mut self, evidence: Vec<String>) -> Check {
        self.evidence = evidence;
        self
    }
}
