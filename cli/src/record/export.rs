//! `unslow record export`: a part of a recording, or its numbers.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Zoned;
use serde_json::json;
use unslow_record::{Figures, Tape};
use unslow_units::{bytes, count};

use crate::files;
use crate::output::Output;
use crate::when::{self, local_time};

/// Which numbers, and how they are written.
pub struct Numbers<'a> {
    /// OpenMetrics otherwise.
    pub is_csv: bool,
    pub fields: &'a [String],
    pub step: Duration,
    pub url: Option<&'a str>,
}

pub fn export(
    dir: &Path,
    file: &Path,
    (from, to): (&str, Option<&str>),
    numbers: Option<&Numbers<'_>>,
    output: &Output,
) -> anyhow::Result<u8> {
    let (tape, now) = (Tape::open(dir)?, Zoned::now());
    let from_ms = when::parse(from, &now)?;
    let to_ms = to.map_or(Ok(tape.span().to_ms + 1), |to| when::parse(to, &now))?;
    if to_ms <= from_ms {
        bail!("--to is not after --from");
    }
    files::check(file)?;
    let what = match numbers {
        Some(numbers) => {
            let url = tape.deployment(numbers.url)?;
            let figures = tape.figures(&url, from_ms..to_ms, numbers.step.as_millis() as i64, numbers.fields)?;
            write(&figures, numbers.is_csv, file).with_context(|| file.display().to_string())?;
            format!("{} rows of {} numbers", count(figures.rows.len() as f64), figures.names.len())
        }
        None => bytes(tape.export(from_ms..to_ms, file)? as f64),
    };
    if output.json() {
        let document = json!({
            "schema": "unslow.record_export/1", "file": file, "from_ms": from_ms, "to_ms": to_ms, "what": what,
        });
        output.print_json(&document)?;
    }
    let (from, to) = (local_time(from_ms.max(0) as u64), local_time(to_ms.max(0) as u64));
    output.note(&format!("{}: {from} to {to}, {what}", file.display()));
    Ok(0)
}

fn write(figures: &Figures, is_csv: bool, file: &Path) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    if is_csv {
        figures.csv(&mut out)?;
    } else {
        figures.openmetrics(&mut out)?;
    }
    out.flush()
}
