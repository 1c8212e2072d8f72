//! Facts to verdicts, then chains and ranking. No I/O and no clock: the same facts give the same diagnosis.
//!
//! One file per rule in `rules/`. A rule sees all facts and returns one [`Verdict`]. What a rule calls a cause of
//! others (`leads_to`) is told as one finding with its consequences beneath it.
#![forbid(unsafe_code)]

mod chain;
mod finding;
pub mod measure;
mod report;
mod rules;

pub use finding::{Confidence, Currency, Evidence, Finding, Gain, Impact, Link, Remedy, Severity};
pub use report::{CannotSee, Change, DeploymentSummary, Diff, NodeSummary, Report, SCHEMA, diagnose, diff};
pub use rules::ALL;

use unslow_facts::Facts;

/// What a rule found.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Looked, and it is not so. The text, where there is one, goes to "ruled out".
    Absent(Option<String>),
    /// It is so.
    Present(Box<Finding>),
    /// Could not look.
    Unknown {
        /// Why, as a sentence without a full stop.
        why: String,
        /// What would settle it.
        grant: String,
    },
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
