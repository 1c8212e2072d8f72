//! What many deployments' diagnoses come to: the document of `unslow doctor --inventory`.

use std::path::PathBuf;

use serde::Serialize;

use crate::{Change, Conclusion, Severity};

const SCHEMA: &str = "unslow.inventory/1";

/// All of it.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Inventory {
    /// `unslow.inventory/1`.
    pub schema: String,
    /// The highest of all.
    pub exit_status: u8,
    /// Those that could not be checked first, then the worst.
    pub deployments: Vec<InventoryRow>,
}

/// One deployment.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct InventoryRow {
    pub name: String,
    pub url: String,
    /// `null` where the diagnosis failed or was not begun.
    pub verdict: Option<Conclusion>,
    /// As of `unslow doctor` for it alone.
    pub exit_status: u8,
    /// Why there is no verdict, or why the report was not kept.
    pub error: Option<String>,
    pub seconds: f64,
    /// It was interrupted: the window was shorter than asked for.
    pub cut_short: bool,
    /// What these look for may be there.
    pub rules_that_could_not_look: usize,
    /// The worst first.
    pub findings: Vec<InventoryFinding>,
    /// Rules whose findings were silenced.
    pub silenced: Vec<String>,
    /// Findings that appeared or disappeared since the baseline; `null` without one.
    pub since_baseline: Option<Vec<InventoryChange>>,
    /// Files with the whole report.
    pub reports: Vec<PathBuf>,
    /// The verdict in a word, for the table.
    #[serde(skip)]
    pub word: &'static str,
}

/// One finding of a deployment.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct InventoryFinding {
    pub id: String,
    pub severity: Severity,
    pub title: String,
    /// Whether it makes the exit status 1.
    pub fails: bool,
}

/// A finding that is new since the baseline, or no longer there.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct InventoryChange {
    pub id: String,
    pub change: Change,
}

impl Inventory {
    pub fn of(exit_status: u8, deployments: Vec<InventoryRow>) -> Inventory {
        Inventory { schema: SCHEMA.into(), exit_status, deployments }
    }
}
