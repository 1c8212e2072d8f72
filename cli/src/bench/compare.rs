//! `unslow compare`: two saved reports of `unslow bench`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use unslow_bench::{Report, SCHEMA, compare};

use super::text;
use crate::output::Output;

#[derive(Args)]
#[command(
    after_help = "Both files are written by `unslow bench --save FILE`, best with --repeat 5 and in turn (--against)."
)]
pub struct Compare {
    /// First report
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// Second report
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

impl Compare {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        let (a, b) = (read(&self.a)?, read(&self.b)?);
        let comparison = compare(&a, &b);
        if output.json() {
            output.print_json(&comparison)?;
        } else {
            output.print(&text::comparison(&comparison))?;
        }
        Ok(0)
    }
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|e| anyhow!("{}: not a report of `unslow bench --save`: {e}", path.display()))?;
    if report.schema != SCHEMA {
        bail!("{}: its schema is {:?}; expected {SCHEMA}", path.display(), report.schema);
    }
    Ok(report)
}
