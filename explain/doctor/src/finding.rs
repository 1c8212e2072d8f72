//! What a finding says. Every rule fills one through the same few words.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_facts::Node;

/// The four currencies, dearest first. Risk never outranks a measured effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Currency {
    /// Nothing is slow now; this is what could happen.
    Risk,
    /// Share of a core, or of memory, that could be had back.
    Capacity,
    /// Milliseconds added to the mean request.
    Latency,
    /// Seconds a day in which requests are refused or hang.
    Availability,
}

/// What it costs now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Impact {
    /// Which currency.
    pub currency: Currency,
    /// How much of it; 0 for risk.
    pub value: f64,
    /// `seconds_per_day`, `ms_per_request`, `share_of_core`, `share_of_memory`, `none`.
    pub unit: String,
    /// The same for a person.
    pub text: String,
}

/// What the fix gives back. Both are empty where it gives nothing that can be counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gain {
    /// For a person.
    pub text: String,
    /// The arithmetic with its numbers in.
    pub formula: String,
}

/// How sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// The precondition alone.
    Possible,
    /// The cause was measured, the effect inferred.
    Likely,
    /// Cause and effect were both measured.
    Proven,
}

/// How bad, by currency and amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Could hurt.
    Risk,
    /// Costs a little.
    Low,
    /// Costs.
    Medium,
    /// Hurts.
    High,
    /// Requests are being lost, or would be if a client came.
    Critical,
}

/// Of what time a finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Of the window.
    #[default]
    Now,
    /// It is over: it ended before the window began.
    Past,
    /// A lifetime's count, or a setting: it was so before the window and still is.
    SinceStart,
}

/// Who pays for a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Affected {
    /// Requests that are made now.
    #[default]
    Requests,
    /// No application was seen in the window: a client that comes now would pay.
    NextClient,
}

/// A line a hand can replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Command or file, with the address it was asked at.
    pub source: String,
    /// What it said.
    pub value: String,
    /// Unix time in ms.
    pub at_ms: u64,
}

/// A step of a chain: a consequence of the finding it stands in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// Rule.
    pub id: String,
    /// Whom it hits.
    pub subject: String,
    /// Unix time in ms.
    pub at_ms: u64,
    /// Its sentence.
    pub text: String,
}

/// A way out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Remedy {
    /// What to do.
    pub text: String,
    /// Exact commands or client settings.
    pub commands: Vec<String>,
    /// What can go wrong; empty where nothing can.
    pub risk: String,
    /// How to go back; empty where there is nothing to undo.
    pub rollback: String,
    /// Whether the commands can be run as they stand, without a choice: `doctor --fix-plan` runs no others.
    #[serde(default)]
    pub exact: bool,
}

/// What a command line sets: everything up to the value, or nothing if it is no `CONFIG SET server's-parameter value`.
pub fn setting_of(command: &str) -> Option<&str> {
    let (_, rest) = command.split_once(" CONFIG SET ")?;
    let value = rest.find(' ')?;
    Some(&command[..command.len() - rest.len() + value])
}

/// One cause with its evidence, its price and its fix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Rule.
    pub id: String,
    /// The sentence.
    pub title: String,
    /// How bad.
    pub severity: Severity,
    /// How sure.
    pub confidence: Confidence,
    /// Why that sure.
    pub confidence_why: String,
    /// Of what time it is. What is over is never ranked above what costs something now.
    #[serde(default)]
    pub when: When,
    /// Who pays for it.
    #[serde(default)]
    pub affected: Affected,
    /// When it began, or happened; unix time in ms. None where that is not known.
    #[serde(default)]
    pub since: Option<u64>,
    /// Addresses it is about, the worst first.
    pub subjects: Vec<String>,
    /// What it costs.
    pub impact: Impact,
    /// What the fix gives.
    pub gain: Gain,
    /// Its consequences, in order.
    pub chain: Vec<Link>,
    /// How we know.
    pub evidence: Vec<Evidence>,
    /// What it is not.
    pub ruled_out: Vec<String>,
    /// What to do.
    pub remedies: Vec<Remedy>,
    /// The command that shows whether it is gone.
    pub recheck: String,
}

impl Finding {
    /// A finding with its sentence; a risk until it says what it costs. Rule, severity and recheck are filled in
    /// when the verdict is taken.
    pub fn new(title: impl Into<String>) -> Finding {
        Finding {
            id: String::new(),
            title: title.into(),
            severity: Severity::Risk,
            confidence: Confidence::Possible,
            confidence_why: String::new(),
            when: When::Now,
            affected: Affected::Requests,
            since: None,
            subjects: Vec::new(),
            impact: Impact { currency: Currency::Risk, value: 0.0, unit: "none".into(), text: String::new() },
            gain: Gain::default(),
            chain: Vec::new(),
            evidence: Vec::new(),
            ruled_out: Vec::new(),
            remedies: Vec::new(),
            recheck: String::new(),
        }
    }

    /// Whom it is about.
    pub fn on(mut self, subjects: impl IntoIterator<Item = impl Into<String>>) -> Finding {
        for subject in subjects {
            let subject = subject.into();
            if !self.subjects.contains(&subject) {
                self.subjects.push(subject);
            }
        }
        self
    }

    /// Seconds a day lost.
    pub fn availability(self, seconds_per_day: f64, text: impl Into<String>) -> Finding {
        self.costs(Currency::Availability, seconds_per_day, "seconds_per_day", text)
    }

    /// Milliseconds on the mean request.
    pub fn latency(self, ms_per_request: f64, text: impl Into<String>) -> Finding {
        self.costs(Currency::Latency, ms_per_request, "ms_per_request", text)
    }

    /// Share of one core.
    pub fn core(self, share: f64, text: impl Into<String>) -> Finding {
        self.costs(Currency::Capacity, share, "share_of_core", text)
    }

    /// Share of the server's memory.
    pub fn memory(self, share: f64, text: impl Into<String>) -> Finding {
        self.costs(Currency::Capacity, share, "share_of_memory", text)
    }

    /// Nothing now.
    pub fn risk(self, text: impl Into<String>) -> Finding {
        self.costs(Currency::Risk, 0.0, "none", text)
    }

    fn costs(mut self, currency: Currency, value: f64, unit: &str, text: impl Into<String>) -> Finding {
        self.impact = Impact { currency, value, unit: unit.into(), text: text.into() };
        self.severity = match currency {
            Currency::Risk => Severity::Risk,
            Currency::Availability if value >= 60.0 => Severity::Critical,
            Currency::Availability if value < 1.0 => Severity::Low,
            Currency::Availability => Severity::High,
            Currency::Latency if value >= 1.0 => Severity::High,
            Currency::Latency if value < 0.02 => Severity::Low,
            Currency::Latency => Severity::Medium,
            Currency::Capacity if value >= 0.4 => Severity::High,
            Currency::Capacity if value >= 0.1 => Severity::Medium,
            Currency::Capacity => Severity::Low,
        };
        self
    }

    /// Another severity than the amount alone would give; after what it costs.
    pub fn severity(mut self, severity: Severity) -> Finding {
        self.severity = severity;
        self
    }

    /// Who pays for it; without this, requests that are made now.
    pub fn affects(mut self, affected: Affected) -> Finding {
        self.affected = affected;
        self
    }

    /// It has been so since this moment (unix time in ms) and still is.
    pub fn since(mut self, at_ms: u64) -> Finding {
        self.since = Some(at_ms);
        self
    }

    /// It is over since this moment (unix time in ms): it costs nothing now.
    pub fn past(mut self, at_ms: u64) -> Finding {
        (self.when, self.since) = (When::Past, Some(at_ms));
        self
    }

    /// It has been so since the server started, by a count over its lifetime.
    pub fn since_start(mut self, at_ms: u64) -> Finding {
        (self.when, self.since) = (When::SinceStart, Some(at_ms));
        self
    }

    /// What the fix gives, and the arithmetic.
    pub fn gain(mut self, text: impl Into<String>, formula: impl Into<String>) -> Finding {
        self.gain = Gain { text: text.into(), formula: formula.into() };
        self
    }

    /// Cause and effect measured.
    pub fn proven(self, why: impl Into<String>) -> Finding {
        self.sure(Confidence::Proven, why)
    }

    /// Cause measured, effect inferred.
    pub fn likely(self, why: impl Into<String>) -> Finding {
        self.sure(Confidence::Likely, why)
    }

    /// Precondition only.
    pub fn possible(self, why: impl Into<String>) -> Finding {
        self.sure(Confidence::Possible, why)
    }

    fn sure(mut self, confidence: Confidence, why: impl Into<String>) -> Finding {
        self.confidence = confidence;
        self.confidence_why = why.into();
        self
    }

    /// What a node said in its newest sample.
    pub fn saw(self, node: &Node, command: &str, value: impl Into<String>) -> Finding {
        self.saw_then(node, command, value, node.at_ms())
    }

    /// What a node said of another moment.
    pub fn saw_then(mut self, node: &Node, command: &str, value: impl Into<String>, at_ms: u64) -> Finding {
        let source = match command.split(' ').next() {
            Some(word) if !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()) => {
                crate::measure::cli(&node.address, command)
            }
            _ => format!("{command} ({})", node.address),
        };
        self.evidence.push(Evidence { source, value: value.into(), at_ms });
        self
    }

    /// What somebody else said.
    pub fn saw_at(mut self, source: impl Into<String>, value: impl Into<String>, at_ms: u64) -> Finding {
        self.evidence.push(Evidence { source: source.into(), value: value.into(), at_ms });
        self
    }

    /// A look-alike that it is not.
    pub fn not(mut self, what: impl Into<String>) -> Finding {
        self.ruled_out.push(what.into());
        self
    }

    /// A way out.
    pub fn fix(mut self, text: &str, commands: &[&str], risk: &str, rollback: &str) -> Finding {
        self.remedies.push(Remedy {
            text: text.into(),
            commands: commands.iter().map(ToString::to_string).collect(),
            risk: risk.into(),
            rollback: rollback.into(),
            exact: false,
        });
        self
    }

    /// A way out that names its server and needs no choice: `commands` are run at `address`, `rollback` too.
    pub fn fix_at(self, address: &str, text: &str, commands: &[&str], risk: &str, rollback: &str) -> Finding {
        let commands: Vec<String> = commands.iter().map(|c| crate::measure::cli(address, c)).collect();
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        self.fix(text, &commands, risk, &crate::measure::cli(address, rollback)).exact()
    }

    /// The last way out needs no choice: its commands name their servers and can be run as they stand.
    pub fn exact(mut self) -> Finding {
        if let Some(remedy) = self.remedies.last_mut() {
            remedy.exact = true;
        }
        self
    }
}

impl From<Finding> for crate::Verdict {
    fn from(finding: Finding) -> crate::Verdict {
        crate::Verdict::Present(Box::new(finding))
    }
}
