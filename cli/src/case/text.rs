//! A case's report on a terminal: the diagnosis, the figures before and after, and a sentence to repeat.

use std::fmt::Write;

use unslow_drill::case::Report;

use crate::output::style;
use crate::table::table;

/// Columns and rows, the first column being what it was measured with.
pub fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut all = vec![report.columns.clone()];
    all.extend(report.rows.iter().map(|r| std::iter::once(r.name.clone()).chain(r.cells.iter().cloned()).collect()));
    all
}

/// The report for people.
pub fn report(report: &Report) -> String {
    let (title, faint, bad) = (style::TITLE, style::FAINT, style::BAD);
    let mut out = format!("\n{title}{}{title:#} ({}, incident {})\n", report.title, report.case, report.incident);
    let _ = writeln!(out, "{}", crate::output::fill(&report.about, textwrap::termwidth()));
    if let Some(d) = &report.diagnosis {
        let (mark, word) = if d.right { (style::GOOD, "right") } else { (bad, "wrong") };
        let _ = writeln!(out, "\ndoctor: {mark}{}{mark:#} ({word}): {}", d.found, d.sentence);
        if !d.chain.is_empty() {
            let _ = writeln!(out, "        then {}", d.chain.join(", "));
        }
    }
    out += "\n";
    out += &table(&rows(report));
    for note in &report.notes {
        let _ = writeln!(out, "{faint}{note}{faint:#}");
    }
    for picture in &report.pictures {
        let _ = writeln!(out, "{faint}{}: {}{faint:#}", picture.title, picture.file);
    }
    for why in &report.failed {
        let _ = writeln!(out, "{bad}failed{bad:#} {why}");
    }
    let _ = writeln!(out, "{faint}evidence: {}{faint:#}", report.folder);
    let _ = writeln!(out, "\n{}\n", report.closing);
    out
}
