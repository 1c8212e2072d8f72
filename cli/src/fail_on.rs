//! `--fail-on`: what makes the exit status 1.

use clap::ValueEnum;
use unslow_doctor::Severity;

/// The lowest severity that does.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    Info,
    Risk,
    Low,
    Medium,
    High,
    Critical,
    Never,
}

impl FailOn {
    pub fn least(self) -> Option<Severity> {
        match self {
            FailOn::Info => Some(Severity::Info),
            FailOn::Risk => Some(Severity::Risk),
            FailOn::Low => Some(Severity::Low),
            FailOn::Medium => Some(Severity::Medium),
            FailOn::High => Some(Severity::High),
            FailOn::Critical => Some(Severity::Critical),
            FailOn::Never => None,
        }
    }
}
