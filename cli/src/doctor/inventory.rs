//! `unslow doctor --inventory FILE`: many deployments, a bounded number at a time, one table.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use unslow_client::discover;
use unslow_doctor::{
    Change, Inventory, InventoryChange, InventoryFinding, InventoryRow, Report, diagnose, diagnose_but, diff,
};
use unslow_facts::Facts;
use unslow_interrupt::Guard;
use unslow_probe::Settings;

use super::{Doctor, earlier, exit_status, fails, is_of_the_server, now_ms, open_window, page, print_owed, text};
use crate::deployments::{self, Deployments, Named};
use crate::fail_on::FailOn;
use crate::output::{Exchange, Format, Output};
use crate::table::table;
use crate::{exchange, files};

/// A row, and what it was made from where the deployment was diagnosed.
struct Looked {
    row: InventoryRow,
    report: Option<Report>,
    fail_on: Option<FailOn>,
}

/// Checked, and the report could not be written or the baseline not be read.
fn is_unkept(row: &InventoryRow) -> bool {
    row.verdict.is_some() && row.error.is_some()
}

/// With nothing known of it yet.
fn unseen(named: &Named, word: &'static str) -> InventoryRow {
    InventoryRow {
        name: named.name.clone(),
        url: String::new(),
        verdict: None,
        exit_status: 2,
        error: None,
        seconds: 0.0,
        cut_short: false,
        rules_that_could_not_look: 0,
        findings: Vec::new(),
        silenced: Vec::new(),
        since_baseline: None,
        reports: Vec::new(),
        word,
    }
}

/// Looks at all of them.
pub fn run(doctor: &Doctor, file: Option<&Path>, output: &Output) -> anyhow::Result<u8> {
    let file = deployments::read(&deployments::path(file)?)?;
    file.over.iter().for_each(|over| output.note(over));
    if let Some(dir) = &doctor.reports {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        if !deployments::is_ours(&std::fs::metadata(dir).with_context(|| dir.display().to_string())?) {
            bail!("{}: it belongs to another user, who could say where reports are written to", dir.display());
        }
        file.all.iter().flat_map(|named| names(dir, named)).try_for_each(|path| files::check(&path))?;
    }
    let window = open_window();
    let spinner = output.spinner();
    let total = file.all.len();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(named) = file.all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let row = match window.asked() {
                true => not_looked("interrupted before it was checked".into(), unseen(named, "not checked")),
                false => look(doctor, &file, named, &window),
            };
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.push(row);
            spinner.update(&format!("{} of {total} deployments", rows.len()));
        }
    };
    std::thread::scope(|scope| {
        // One of them is this one: it works where no other can be started.
        for _ in 1..usize::from(doctor.parallel).min(total) {
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    drop(spinner);
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by(|a: &Looked, b: &Looked| rank(&a.row).cmp(&rank(&b.row)).then_with(|| a.row.name.cmp(&b.row.name)));
    let exit_status = rows.iter().map(|looked| looked.row.exit_status).max().unwrap_or(0);
    if let Some(format) = output.exchange() {
        let text = exchanged(format, rows)?;
        print_owed(|_| output.print_document(&text))?;
        return Ok(exit_status);
    }
    let rows: Vec<InventoryRow> = rows.into_iter().map(|looked| looked.row).collect();
    if output.format == Format::Json {
        output.print_json(&Inventory::of(exit_status, rows))?;
    } else {
        output.print(&shown(&rows))?;
    }
    Ok(exit_status)
}

fn exchanged(format: Exchange, rows: Vec<Looked>) -> anyhow::Result<String> {
    let all: Vec<(InventoryRow, Report, Option<FailOn>)> = rows
        .into_iter()
        .map(|Looked { row, report, fail_on }| {
            let why = row.error.as_deref().unwrap_or("not checked");
            let report = report.unwrap_or_else(|| Report::failed(&row.url, now_ms(), why));
            (row, report, fail_on)
        })
        .collect();
    type Fails<'a> = Box<dyn Fn(&unslow_doctor::Finding) -> bool + 'a>;
    let fails: Vec<Fails<'_>> = all
        .iter()
        .map(|(_, report, fail_on)| -> Fails<'_> { Box::new(move |finding| fails(report, finding, *fail_on)) })
        .collect();
    let all = all.iter().zip(&fails).map(|((row, report, _), fails)| exchange::Looked {
        name: &row.name,
        report,
        error: row.error.as_deref(),
        fails: &**fails,
        exit_status: row.exit_status,
    });
    exchange::inventory(format, &all.collect::<Vec<_>>())
}

fn not_looked(why: String, row: InventoryRow) -> Looked {
    Looked { row: InventoryRow { error: Some(why), ..row }, report: None, fail_on: None }
}

/// What could not be checked comes first, then the worst.
fn rank(row: &InventoryRow) -> (u8, u8) {
    let worst = row.findings.iter().map(|f| f.severity as u8).max().unwrap_or(0);
    (2 - row.exit_status.min(2), u8::MAX - worst)
}

fn names(dir: &Path, named: &Named) -> [PathBuf; 2] {
    ["json", "html"].map(|kind| dir.join(format!("{}.{kind}", named.name)))
}

fn look(doctor: &Doctor, file: &Deployments, named: &Named, window: &Guard) -> Looked {
    let begun = Instant::now();
    // What goes wrong with one is no reason to lose the others.
    let looked = catch_unwind(AssertUnwindSafe(|| looked(doctor, file, named, window)));
    let looked = looked.unwrap_or_else(|_| Err(anyhow!("the diagnosis panicked; this is a defect in unslow")));
    let mut looked = looked.unwrap_or_else(|e| not_looked(one_line(&e), unseen(named, "failed")));
    looked.row.seconds = begun.elapsed().as_secs_f64();
    looked
}

fn one_line(e: &anyhow::Error) -> String {
    text::clean_lines(&format!("{e:#}")).replace('\n', " ")
}

fn looked(doctor: &Doctor, file: &Deployments, named: &Named, window: &Guard) -> anyhow::Result<Looked> {
    let baseline = named.baseline.as_deref().filter(|path| path.exists()).map(earlier).transpose();
    let reach = named.reach(&doctor.reach)?;
    let (target, options) = (named.target(&reach)?, reach.options()?);
    let settings = Settings {
        window: named.window.unwrap_or(doctor.window()),
        ..doctor.settings(&target, options.clone(), Vec::new(), window)
    };
    let facts = match discover(&target, &options) {
        Ok(deployment) => unslow_probe::run(&deployment, &settings),
        Err(e) if is_of_the_server(&e) => unslow_probe::unreachable(&target, &e, &settings),
        Err(e) => return Err(e.into()),
    };
    let report = if doctor.only.is_empty() {
        diagnose_but(&facts, &file.silences_of(&named.name))
    } else {
        diagnose(&facts, &doctor.only)
    };
    let reports = doctor.reports.as_deref().map_or(Ok(Vec::new()), |dir| keep(dir, named, &facts, &report));
    // With --only the question is whether it is there.
    let fail_on = doctor.fail_on.or(named.fail_on.filter(|_| doctor.only.is_empty()));
    let brief = |finding: &unslow_doctor::Finding| InventoryFinding {
        id: finding.id.clone(),
        severity: finding.severity_now(),
        title: finding.title.clone(),
        fails: fails(&report, finding, fail_on),
    };
    let changed = |before| {
        let all = diff(before, &report).into_iter().filter(|line| line.change != Change::Stays);
        all.map(|line| InventoryChange { id: line.id, change: line.change }).collect()
    };
    let mut findings: Vec<InventoryFinding> = report.findings.iter().map(brief).collect();
    findings.sort_by_key(|brief| std::cmp::Reverse(brief.severity));
    let error = baseline.as_ref().err().or(reports.as_ref().err()).map(one_line);
    let row = InventoryRow {
        url: target.url(),
        verdict: Some(report.verdict),
        exit_status: if error.is_some() { 2 } else { exit_status(&report, fail_on) },
        error,
        cut_short: report.cut_short,
        rules_that_could_not_look: report.looked.could_not.len(),
        findings,
        silenced: report.silenced.iter().map(|silenced| silenced.id.clone()).collect(),
        since_baseline: baseline.ok().flatten().as_ref().map(changed),
        reports: reports.unwrap_or_default(),
        ..unseen(named, text::verdict(&report).1)
    };
    Ok(Looked { row, report: Some(report), fail_on })
}

fn keep(dir: &Path, named: &Named, facts: &Facts, report: &Report) -> anyhow::Result<Vec<PathBuf>> {
    let [json, html] = names(dir, named);
    files::write(&json, &(serde_json::to_string_pretty(report)? + "\n"))?;
    files::write(&html, &page::render(report, facts)?)?;
    Ok(vec![json, html])
}

fn shown(rows: &[InventoryRow]) -> String {
    let has_baseline = rows.iter().any(|row| row.since_baseline.is_some());
    let mut titles = vec!["deployment", "verdict", "findings", "the worst"];
    titles.extend(has_baseline.then_some("since baseline"));
    let mut cells = vec![titles.iter().map(|t| t.to_string()).collect::<Vec<_>>()];
    for row in rows {
        let worst = row.findings.first().map(|f| format!("{}: {}", f.id, text::clean_lines(&f.title)));
        let worst: Vec<String> = row.error.clone().into_iter().chain(worst).collect();
        let worst = if worst.is_empty() { "-".to_string() } else { worst.join("; ") };
        let word = if row.cut_short { format!("{}, cut short", row.word) } else { row.word.to_string() };
        let mut line = vec![row.name.clone(), word, row.findings.len().to_string(), worst];
        if has_baseline {
            line.push(row.since_baseline.as_deref().map_or("-".into(), since));
        }
        cells.push(line);
    }
    let count = |is: &dyn Fn(&InventoryRow) -> bool| rows.iter().filter(|row| is(row)).count();
    let bad = count(&|row| row.exit_status == 1);
    let unkept = count(&|row| is_unkept(row));
    let unseen = count(&|row| row.exit_status == 2 && !is_unkept(row));
    let took = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
    let slowest = unslow_units::time(Duration::from_secs_f64(took));
    let passed = count(&|row| row.exit_status == 0);
    let mut of_passed = Vec::new();
    let with = count(&|row| row.exit_status == 0 && !row.findings.is_empty());
    of_passed.extend((with > 0).then(|| format!("{with} with findings below the limit")));
    let cut = count(&|row| row.exit_status == 0 && row.cut_short);
    of_passed.extend((cut > 0).then(|| format!("{cut} cut short")));
    let of_passed = if of_passed.is_empty() { String::new() } else { format!(" ({})", of_passed.join(", ")) };
    let unkept = if unkept > 0 { format!(", {unkept} checked with files that failed") } else { String::new() };
    let last = format!(
        "{}: {bad} failed, {unseen} not checked{unkept}, {passed} passed{of_passed}; the slowest took {slowest}",
        unslow_units::plural(rows.len(), "deployment")
    );
    format!("{}\n{}\n", table(&cells), crate::output::fill(&last, textwrap::termwidth()))
}

fn since(changes: &[InventoryChange]) -> String {
    let of = |change: Change, mark: char| {
        changes.iter().filter(move |c| c.change == change).map(move |c| format!("{mark}{}", c.id))
    };
    let all: Vec<String> = of(Change::New, '+').chain(of(Change::Gone, '-')).collect();
    if all.is_empty() { "no change".into() } else { all.join(" ") }
}
