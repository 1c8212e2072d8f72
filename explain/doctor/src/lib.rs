//! Facts to verdicts, then chains and ranking. No I/O and no clock: the same facts give the same diagnosis.
//!
//! One file per rule in `rules/`. A rule sees all facts and returns one [`Verdict`]. What a rule calls a cause of
//! others (`leads_to`) is told as one finding with its consequences beneath it.
#![forbid(unsafe_code)]

mod chain;
mod finding;
mod incidents;
mod inventory;
mod logs;
pub mod measure;
mod report;
mod rules;
mod silence;

pub use finding::{
    Affected, Confidence, Currency, Evidence, Finding, Gain, Impact, Link, Remedy, Severity, When, setting_of,
};
pub use incidents::{Incident, Incidents, Joiner, Repeats, SCHEMA as INCIDENTS_SCHEMA, SilencedRule, Turn, repeats};
pub use inventory::{Inventory, InventoryChange, InventoryFinding, InventoryRow};
pub use logs::LogLine;
pub use report::{
    Answer, Answered, CannotSee, Change, Conclusion, DeploymentSummary, Diff, Looked, NodeSummary, Report, SCHEMA,
    diagnose, diagnose_but, diff,
};
pub use rules::ALL;
pub use silence::{Silence, Silenced};

use unslow_facts::{Facts, Gap, Lack};

/// What a rule found.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The deployment has nothing this rule is about: no cluster, no replica, no AOF.
    NotHere,
    /// Looked, and it is not so. The text says what was measured or compared, and goes to "ruled out".
    Absent(String),
    /// It is so.
    Present(Box<Finding>),
    /// Could not look.
    Unknown(Gap),
}

impl Verdict {
    /// Could not look: `what` is the rule's noun, for the sentence.
    pub fn unknown(lack: Lack, why: impl Into<String>, grant: impl Into<String>) -> Verdict {
        Verdict::Unknown(Gap::new(lack, why, grant))
    }

    /// Looked at figures of INFO and found nothing; unknown if no server showed them. `text` is `None` then.
    pub fn absent(facts: &Facts, what: &str, text: Option<String>) -> Verdict {
        text.map_or_else(|| Verdict::Unknown(measure::unseen_info(facts, what)), Verdict::Absent)
    }
}

/// How the fault behind a rule is made on a real server.
#[derive(Clone, Copy, Debug)]
pub enum Injected {
    /// By the fault of the same name.
    Yes,
    /// Not on one machine, and why.
    No(&'static str),
}

/// One rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The noun it has everywhere: file, page, fault, JSON.
    pub id: &'static str,
    /// For headings.
    pub title: &'static str,
    /// Rules whose findings are consequences of this one, when they share a subject.
    pub leads_to: &'static [&'static str],
    /// Whether its fault can be injected.
    pub injected: Injected,
    /// The judgement.
    pub check: fn(&Facts) -> Verdict,
    /// Source text of the rule's file; its head is the rule's documentation page.
    pub source: &'static str,
}

impl Rule {
    /// The head of its file: what it means, when it is seen, what to do.
    pub fn page(&self) -> String {
        self.source
            .lines()
            .map_while(|l| l.strip_prefix("//!"))
            .map(|l| l.strip_prefix(' ').unwrap_or(l))
            .fold(String::new(), |s, l| s + l + "\n")
    }
}
