//! `unslow case`: the five incidents end to end, each with its before and after on one page.

mod page;
mod text;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use unslow_drill::case::{self, Case, Document, Numbers, Report, Wanted};
use unslow_drill::check::Verdict;
use unslow_units::time_rough_s;

use crate::output::{Output, style, writable};

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 passed, 1 a case failed, 2 a case is unknown or could not start.\n\nExamples:\n  \
                  unslow case ls\n  unslow case fork-stall --html case.html\n  unslow case --all"
)]
pub struct CaseArguments {
    /// Cases to run; --all for every one, ls to list them
    name: Vec<String>,
    /// Run every case
    #[arg(long)]
    all: bool,
    /// The same as `unslow case ls`
    #[arg(long, hide = true)]
    list: bool,
    /// Repeat each case N times, with one seed after another
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    repeat: u32,
    /// Only reproduce the problem and run the doctor, for trying many seeds
    #[arg(long)]
    diagnosis_only: bool,
    /// Seed for the lab's jitter and loss
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Change a number of the case: fewer nights, shorter windows; unslow case ls -v lists them
    #[arg(long, value_name = "NAME=NUMBER", value_parser = number)]
    set: Vec<(String, u64)>,
    /// Where the evidence is kept [default: in the cache, see `unslow clean`]
    #[arg(long, value_name = "DIRECTORY")]
    store: Option<PathBuf>,
    /// Write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl CaseArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        let CaseArguments { name, all, list: is_list, repeat, diagnosis_only, seed, set, store, html } = self;
        let words: Vec<&str> = name.iter().map(String::as_str).collect();
        let names = match &words[..] {
            ["ls" | "list"] if !*all => return list(output),
            [] if *is_list && !*all => return list(output),
            // As it was typed in earlier versions.
            ["run", names @ ..] => names,
            names => names,
        };
        if names.is_empty() != *all {
            bail!("name the cases to run, or --all for every one; unslow case ls lists them");
        }
        let cases: Vec<&Case> = if *all {
            // The drills ask the doctor nothing.
            case::ALL.iter().filter(|c| !*diagnosis_only || c.asks()).collect()
        } else {
            names.iter().map(|n| case::find(n)).collect::<Result<_, _>>()?
        };
        let numbers: Numbers = set.iter().cloned().collect();
        if numbers.len() < set.len() {
            bail!("--set names a number twice; give each once");
        }
        case::known(&numbers, &cases)?;
        html.as_deref().map_or(Ok(()), writable)?;
        let store = store.clone().unwrap_or_else(unslow_engine::evidence_dir);
        let binary = std::env::current_exe().context("the path of this program")?;
        let seed = seed.unwrap_or_else(|| rand::random::<u32>().into());
        let mut reports: Vec<Report> = Vec::new();
        let many = cases.len() * *repeat as usize;
        for n in 0..u64::from(*repeat) {
            for case in &cases {
                if unslow_drill::run::interrupted() {
                    break;
                }
                let head = format!("{}/{many} {}", reports.len() + 1, case.name);
                let spinner = output.spinner();
                let diagnosis_only = *diagnosis_only;
                let wanted =
                    Wanted { binary: &binary, store: &store, seed: seed + n, diagnosis_only, numbers: &numbers };
                let report = case.run(&wanted, &mut |what| spinner.update(&format!("{head}: {what}")));
                drop(spinner);
                let report = match report {
                    // One that ended badly takes nothing from those that did not.
                    Err(e) if many > 1 => Report::crashed(case, seed + n, &e),
                    other => other.with_context(|| format!("case {}", case.name))?,
                };
                let (mark, word) = verdict(&report);
                output.note(&format!("{head}: {mark}{word}{mark:#} ({})", time_rough_s(report.seconds)));
                if !output.json() {
                    output.print(&text::report(&report))?;
                }
                reports.push(report);
            }
        }
        let page = html.as_ref().map(|path| Ok::<_, anyhow::Error>((path, page::render(&reports)?))).transpose()?;
        let status = match reports.iter().map(|r| r.verdict).max() {
            Some(Verdict::Failed) => 1,
            Some(Verdict::Passed) if !unslow_drill::run::interrupted() => 0,
            _ => 2,
        };
        if output.json() {
            output.print_json(&Document { schema: case::SCHEMA, cases: reports })?;
        } else if reports.len() > 1 {
            let right = reports.iter().filter(|r| r.verdict == Verdict::Passed).count();
            let seconds: f64 = reports.iter().map(|r| r.seconds).sum();
            output.print(&format!("{right} of {} cases passed, in {}.\n", reports.len(), time_rough_s(seconds)))?;
        }
        if let Some((path, page)) = page {
            std::fs::write(path, page).with_context(|| path.display().to_string())?;
            output.note(&format!("page written to {}", path.display()));
        }
        Ok(status)
    }
}

fn number(text: &str) -> Result<(String, u64), String> {
    let expected = || "expected NAME=NUMBER, as in nights=3".to_string();
    let (name, number) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty()).ok_or_else(expected)?;
    Ok((name.trim().to_string(), number.trim().parse().map_err(|_| expected())?))
}

fn list(output: &Output) -> anyhow::Result<u8> {
    if output.json() {
        let one = |case: &Case| {
            let story = case.story()?;
            Ok(json!({"name": case.name, "incident": story.incident, "title": story.title, "about": story.about,
                     "numbers": story.numbers}))
        };
        let cases = case::ALL.iter().map(one).collect::<anyhow::Result<Vec<_>>>()?;
        output.print_json(&json!({ "schema": "unslow.cases/1", "cases": cases }))?;
        return Ok(0);
    }
    for case in case::ALL {
        let story = case.story()?;
        output.print(&format!("{:<24} {}  {}\n", case.name, story.incident, story.title))?;
        if output.verbose && !story.numbers.is_empty() {
            let numbers: Vec<String> = story.numbers.iter().map(|(name, n)| format!("{name}={n}")).collect();
            output.print(&format!("{:<28} {}\n", "", numbers.join(" ")))?;
        }
    }
    Ok(0)
}

fn verdict(report: &Report) -> (anstyle::Style, &'static str) {
    match report.verdict {
        Verdict::Passed => (style::GOOD, "passed"),
        Verdict::Unknown => (style::WARN, "unknown"),
        Verdict::Failed => (style::BAD, "failed"),
    }
}
