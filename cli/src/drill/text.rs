//! A drill's report on a terminal: a row for each run, what did not pass, and a sentence to repeat.

use std::fmt::Write;

use serde::Serialize;
use unslow_drill::check::Verdict;
use unslow_drill::run::Outcome;
use unslow_drill::shootout;
use unslow_drill::spec::Drill;
use unslow_units::{count, percent, time_us};

use crate::output::style;
use crate::table::table;

pub fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Unknown => "unknown",
        Verdict::Failed => "failed",
    }
}

/// Columns and a row for each run.
pub fn rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let locks = outcomes.iter().any(|o| o.figures.locks.is_some());
    let replicas = outcomes.iter().any(|o| o.figures.reads_replicas.answered > 0);
    let stays = outcomes.iter().any(|o| o.figures.writes_stays.acknowledged > 0);
    let mut head = vec!["fault", "variant", "verdict", "promoted", "window", "other shards", "redundant"];
    if locks {
        head.extend([
            "locks taken",
            "two holders",
            "for",
            "uses of two",
            "fenced",
            "late uses",
            "fenced",
            "tokens given twice",
        ]);
    } else {
        head.extend(["acknowledged", "lost", "unknown", "registers wrong"]);
        if stays {
            head.extend(["stays: acknowledged", "stays: lost"]);
        }
    }
    if replicas {
        head.extend(["stale reads", "by at most", "time travel"]);
    }
    let mut all = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    let maybe = |us: Option<u64>| us.map_or("-".into(), |us| time_us(us as f64));
    for outcome in outcomes {
        let f = &outcome.figures;
        let shards = f.windows.iter().map(|w| w.shard).max().unwrap_or(0);
        let mut row = vec![
            outcome.fault.clone(),
            outcome.variant.clone(),
            word(outcome.verdict).into(),
            maybe(f.promoted_after_us),
            // Who fights for a lock waits for others, not for a master.
            match f.operations {
                0 => "-".into(),
                _ if locks => "-".into(),
                _ => format!("{}{}", if f.window_open { "> " } else { "" }, time_us(f.window_us_max as f64)),
            },
            if shards > 0 && !locks { time_us(f.other_shards_window_us_max as f64) } else { "-".into() },
            maybe(f.redundant_after_us),
        ];
        if locks {
            let l = f.locks.clone().unwrap_or_default();
            row.extend([
                count(l.taken as f64),
                count(l.double_holders as f64),
                time_us(l.double_us as f64),
                count(l.contested_uses as f64),
                count(l.contested_uses_fenced as f64),
                count(l.late_uses as f64),
                count(l.late_uses_fenced as f64),
                count(l.tokens_not_rising as f64),
            ]);
        } else {
            let judged = |n: u64| if f.writes_judged { count(n as f64) } else { "-".into() };
            row.extend([
                judged(f.writes.acknowledged),
                judged(f.writes.lost),
                judged(f.writes.unknown),
                format!("{} of {}", f.registers.wrong, f.registers.checked),
            ]);
            if stays {
                row.extend([judged(f.writes_stays.acknowledged), judged(f.writes_stays.lost)]);
            }
        }
        if replicas {
            let r = &f.reads_replicas;
            let share = format!("{} of {}", count(r.stale as f64), count(r.answered as f64));
            row.extend([share, time_us(r.stale_us_max as f64), count(r.time_travel as f64)]);
        }
        all.push(row);
    }
    all
}

/// The report for people.
pub fn report(drill: &Drill, outcomes: &[Outcome], verbose: bool) -> String {
    let mut out = format!("{}\n\n", drill.about);
    out += &table(&rows(outcomes));
    let (bad, faint) = (style::BAD, style::FAINT);
    for outcome in outcomes {
        let shown: Vec<_> = outcome.checks.iter().filter(|c| verbose || c.verdict != Verdict::Passed).collect();
        if shown.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{}, {} (seed {}):", outcome.fault, outcome.variant, outcome.seed);
        for check in shown {
            let colour = if check.verdict == Verdict::Failed { bad } else { style::WARN };
            let _ = writeln!(out, "  {colour}{}{colour:#} {}: {}", word(check.verdict), check.name, check.text);
            for line in &check.evidence {
                let _ = writeln!(out, "    {faint}{line}{faint:#}");
            }
        }
        if !outcome.folder.is_empty() {
            let _ = writeln!(out, "  {faint}evidence: {}{faint:#}", outcome.folder);
        }
    }
    out + "\n" + &closing(drill, outcomes) + "\n"
}

/// A sentence a person can repeat.
pub fn closing(drill: &Drill, outcomes: &[Outcome]) -> String {
    let with = |v| outcomes.iter().filter(|o| o.verdict == v).count();
    let (passed, failed, unknown) = (with(Verdict::Passed), with(Verdict::Failed), with(Verdict::Unknown));
    let mut out = format!("{}: {passed} passed, {failed} failed, {unknown} unknown", drill.name);
    let lost: u64 = outcomes.iter().map(|o| o.figures.writes.lost + o.figures.writes_stays.lost).sum();
    let window = outcomes.iter().map(|o| o.figures.window_us_max).max().unwrap_or(0);
    if outcomes.iter().any(|o| o.figures.locks.is_some()) {
        let double: u64 = outcomes.iter().filter_map(|o| o.figures.locks.as_ref()).map(|l| l.double_holders).sum();
        let _ = write!(out, "; two clients held the same lock {double} times");
    } else if outcomes.iter().any(|o| o.figures.writes_judged) {
        let _ = write!(out, "; {lost} acknowledged writes lost");
        if outcomes.iter().any(|o| o.figures.window_open) {
            let _ = write!(out, ", and a client that follows was still without an answer at the end of a run");
        } else {
            let _ = write!(out, ", and no client that follows waited longer than {}", time_us(window as f64));
        }
    }
    out + "."
}

/// Clients down, faults across: how long until an answer, the share of slow commands, the errors.
#[derive(Serialize)]
pub struct ClientsTable {
    pub about: String,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
    pub closing: String,
}

impl ClientsTable {
    pub fn text(&self) -> String {
        let mut out = format!("{}\n\n{}", self.about, table(&self.rows));
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        if !self.closing.is_empty() {
            let _ = writeln!(out, "\n{}", self.closing);
        }
        out
    }
}

/// A row for each client, a column for each fault.
pub fn clients_table(document: &shootout::Document) -> ClientsTable {
    let mut faults: Vec<&str> = Vec::new();
    let mut clients: Vec<&str> = Vec::new();
    for seen in &document.clients {
        if !faults.contains(&seen.fault.as_str()) {
            faults.push(&seen.fault);
        }
        if !clients.contains(&seen.client.as_str()) {
            clients.push(&seen.client);
        }
    }
    let mut head = vec!["client".to_string()];
    head.extend(faults.iter().map(|f| f.to_string()));
    let mut all = vec![head];
    let mut notes = Vec::new();
    for client in clients {
        let mut row = vec![client.to_string()];
        for fault in &faults {
            let seen = document.clients.iter().find(|s| s.client == client && s.fault == *fault);
            let cell = match seen {
                None => "-".into(),
                Some(shootout::Seen { missing: Some(why), .. }) => {
                    notes.push(format!("{client} did not run ({fault}): {why}"));
                    "not run".into()
                }
                Some(seen) => {
                    let time = seen.recovery_us.map_or("-".into(), |us| time_us(us as f64));
                    let never = if seen.never { "never, " } else { "" };
                    let errors = count(seen.errors as f64);
                    format!("{never}{time}; {} slow, {errors} errors", percent(seen.slow_share))
                }
            };
            row.push(cell);
        }
        let version = document.clients.iter().find(|s| s.client == client && !s.version.is_empty()).map(|s| &s.version);
        if let Some(version) = version {
            row[0] = if version.starts_with(client) { version.clone() } else { format!("{client} ({version})") };
        }
        all.push(row);
    }
    notes.extend(document.unknown.iter().cloned());
    // Figures of a fault that was not at work, or that were cut off, are no record.
    let certain = document.unknown.is_empty();
    let answered = |s: &&shootout::Seen| certain && s.missing.is_none() && s.recovery_us.is_some();
    let best = document.clients.iter().filter(answered).min_by_key(|s| s.recovery_us);
    let worst = document.clients.iter().filter(answered).max_by_key(|s| (s.never, s.recovery_us));
    let closing = best.zip(worst).map_or(String::new(), |(best, worst)| {
        format!(
            "Shortest: {} after {}, {}; longest: {} after {}, {}{}.",
            best.client,
            best.fault,
            time_us(best.recovery_us.unwrap_or(0) as f64),
            worst.client,
            worst.fault,
            time_us(worst.recovery_us.unwrap_or(0) as f64),
            if worst.never { " and not over when the run ended" } else { "" }
        )
    });
    let models = document.clients.iter().any(|s| s.client.starts_with("bench") && s.missing.is_none());
    let about = format!(
        "{}; longest time without an answer after the fault began, commands over 30 ms, failed commands{}",
        document.engine,
        if models {
            "\nunslow bench models: silences in whole seconds; every request that was due counts, whether sent or not"
        } else {
            ""
        }
    );
    ClientsTable { about, rows: all, notes, closing }
}
