//! `unslow doctor --inventory FILE`: many deployments, a bounded number at a time, one table.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use unslow_client::discover;
use unslow_doctor::{Change, Conclusion, Report, Severity, diagnose, diagnose_but, diff};
use unslow_facts::Facts;
use unslow_interrupt::Guard;
use unslow_probe::Settings;

use super::{Doctor, earlier, exit_status, fails, is_of_the_server, open_window, page, text};
use crate::deployments::{self, Deployments, Named};
use crate::files;
use crate::output::{Format, Output};
use crate::table::table;

const SCHEMA: &str = "unslow.inventory/1";

/// All of it, as a document.
#[derive(Serialize)]
struct Inventory {
    schema: &'static str,
    exit_status: u8,
    deployments: Vec<Row>,
}

/// One deployment.
#[derive(Serialize)]
struct Row {
    name: String,
    url: String,
    /// `null` where the diagnosis failed or was not begun.
    verdict: Option<Conclusion>,
    /// As of `unslow doctor` for it alone.
    exit_status: u8,
    /// Why there is no verdict.
    error: Option<String>,
    seconds: f64,
    /// Causes first.
    findings: Vec<Brief>,
    silenced: Vec<String>,
    /// What is new and what is gone since the baseline; `null` without one.
    since_baseline: Option<Vec<Since>>,
    /// Files with the whole report.
    reports: Vec<PathBuf>,
    #[serde(skip)]
    word: &'static str,
}

#[derive(Serialize)]
struct Brief {
    id: String,
    severity: Severity,
    title: String,
    /// Whether it makes the exit status 1.
    fails: bool,
}

#[derive(Serialize)]
struct Since {
    id: String,
    change: Change,
}

impl Row {
    fn of(named: &Named, word: &'static str) -> Row {
        Row {
            name: named.name.clone(),
            url: String::new(),
            verdict: None,
            exit_status: 2,
            error: None,
            seconds: 0.0,
            findings: Vec::new(),
            silenced: Vec::new(),
            since_baseline: None,
            reports: Vec::new(),
            word,
        }
    }
}

/// Looks at all of them.
pub fn run(doctor: &Doctor, file: Option<&Path>, output: &Output) -> anyhow::Result<u8> {
    if output.exchange().is_some() {
        bail!("--inventory prints text or json; --reports DIR writes a document for each deployment");
    }
    let file = deployments::read(&deployments::path(file)?)?;
    file.over.iter().for_each(|over| output.note(over));
    if let Some(dir) = &doctor.reports {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        file.all.iter().flat_map(|named| names(dir, named)).try_for_each(|path| files::check(&path))?;
    }
    let window = open_window();
    let spinner = output.spinner();
    let total = file.all.len();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(named) = file.all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let row = match window.asked() {
                true => Row { error: Some("ended before it was looked at".into()), ..Row::of(named, "not seen") },
                false => look(doctor, &file, named, &window),
            };
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.push(row);
            spinner.update(&format!("{} of {total} deployments", rows.len()));
        }
    };
    std::thread::scope(|scope| {
        (0..usize::from(doctor.parallel).min(total)).for_each(|_| drop(scope.spawn(work)));
    });
    drop(spinner);
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name)));
    let exit_status = rows.iter().map(|row| row.exit_status).max().unwrap_or(0);
    if output.format == Format::Json {
        output.print_json(&Inventory { schema: SCHEMA, exit_status, deployments: rows })?;
    } else {
        output.print(&shown(&rows))?;
    }
    Ok(exit_status)
}

/// What is worst comes first; what was not seen before what is fine.
fn rank(row: &Row) -> (u8, u8) {
    let worst = row.findings.iter().map(|f| f.severity as u8).max().unwrap_or(0);
    (2 - row.exit_status.min(2), u8::MAX - worst)
}

fn names(dir: &Path, named: &Named) -> [PathBuf; 2] {
    ["json", "html"].map(|kind| dir.join(format!("{}.{kind}", named.name)))
}

fn look(doctor: &Doctor, file: &Deployments, named: &Named, window: &Guard) -> Row {
    let begun = Instant::now();
    let row = looked(doctor, file, named, window).unwrap_or_else(|e| Row {
        error: Some(text::clean_lines(&format!("{e:#}")).replace('\n', " ")),
        ..Row::of(named, "failed")
    });
    Row { seconds: begun.elapsed().as_secs_f64(), ..row }
}

fn looked(doctor: &Doctor, file: &Deployments, named: &Named, window: &Guard) -> anyhow::Result<Row> {
    let baseline = named.baseline.as_deref().filter(|path| path.exists()).map(earlier).transpose()?;
    let reach = named.reach(&doctor.reach)?;
    let (target, options) = (named.target(&reach)?, reach.options()?);
    let settings = Settings {
        window: named.window.unwrap_or(doctor.window),
        ..doctor.settings(&target, options.clone(), Vec::new(), window)
    };
    let facts = match discover(&target, &options) {
        Ok(deployment) => unslow_probe::run(&deployment, &settings),
        Err(e) if is_of_the_server(&e) => unslow_probe::unreachable(&target, &e, &settings),
        Err(e) => return Err(e.into()),
    };
    let report =
        if doctor.only.is_empty() { diagnose_but(&facts, &file.silences) } else { diagnose(&facts, &doctor.only) };
    let reports = doctor.reports.as_deref().map_or(Ok(Vec::new()), |dir| keep(dir, named, &facts, &report))?;
    let fail_on = doctor.fail_on.or(named.fail_on);
    let brief = |finding: &unslow_doctor::Finding| Brief {
        id: finding.id.clone(),
        severity: finding.severity,
        title: finding.title.clone(),
        fails: fails(&report, finding, fail_on),
    };
    let changed = |before| {
        let all = diff(before, &report).into_iter().filter(|line| line.change != Change::Stays);
        all.map(|line| Since { id: line.id, change: line.change }).collect()
    };
    Ok(Row {
        url: target.url(),
        verdict: Some(report.verdict),
        exit_status: exit_status(&report, fail_on),
        findings: report.findings.iter().map(brief).collect(),
        silenced: report.silenced.iter().map(|silenced| silenced.id.clone()).collect(),
        since_baseline: baseline.as_ref().map(changed),
        reports,
        ..Row::of(named, text::verdict(&report).1)
    })
}

fn keep(dir: &Path, named: &Named, facts: &Facts, report: &Report) -> anyhow::Result<Vec<PathBuf>> {
    let [json, html] = names(dir, named);
    files::write(&json, &(serde_json::to_string_pretty(report)? + "\n"))?;
    files::write(&html, &page::render(report, facts)?)?;
    Ok(vec![json, html])
}

fn shown(rows: &[Row]) -> String {
    let has_baseline = rows.iter().any(|row| row.since_baseline.is_some());
    let mut titles = vec!["deployment", "verdict", "findings", "the worst"];
    titles.extend(has_baseline.then_some("since baseline"));
    let mut cells = vec![titles.iter().map(|t| t.to_string()).collect::<Vec<_>>()];
    for row in rows {
        let worst = match (&row.error, row.findings.first()) {
            (Some(error), _) => error.clone(),
            (None, Some(finding)) => format!("{}: {}", finding.id, text::clean_lines(&finding.title)),
            (None, None) => "-".into(),
        };
        let mut line = vec![row.name.clone(), row.word.to_string(), row.findings.len().to_string(), worst];
        if has_baseline {
            line.push(row.since_baseline.as_deref().map_or("-".into(), since));
        }
        cells.push(line);
    }
    let count = |is: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| is(row)).count();
    let (bad, unseen) = (count(&|row| row.exit_status == 1), count(&|row| row.exit_status == 2));
    let took = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
    let slowest = unslow_units::time(Duration::from_secs_f64(took));
    format!(
        "{}\n{}: {bad} with findings, {unseen} not seen, {} without; the slowest took {slowest}\n",
        table(&cells),
        text::plural(rows.len(), "deployment"),
        rows.len() - bad - unseen
    )
}

fn since(changes: &[Since]) -> String {
    let of = |change: Change, mark: char| {
        changes.iter().filter(move |c| c.change == change).map(move |c| format!("{mark}{}", c.id))
    };
    let all: Vec<String> = of(Change::New, '+').chain(of(Change::Gone, '-')).collect();
    if all.is_empty() { "no change".into() } else { all.join(" ") }
}
