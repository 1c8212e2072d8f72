//! The list of incidents for a terminal.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use unslow_doctor::{Incident, Incidents, Repeats, Severity};
use unslow_units::{time, time_rough_s};

use crate::output::style;
use crate::when::{local_clock, local_time};

const DAY_MS: u64 = 86_400_000;

/// The time of day, where it ended on the day on which it began.
pub fn end_of(incident: &Incident) -> String {
    let (began, ended) = (local_time(incident.began_ms), local_time(incident.ended_ms));
    match (began.split_once(' '), ended.split_once(' ')) {
        (Some((day, _)), Some((same, clock))) if day == same => clock.to_string(),
        _ => ended,
    }
}

pub fn text(found: &Incidents, dir: &Path) -> String {
    let (bold, faint) = (style::TITLE, style::FAINT);
    let width = textwrap::termwidth().clamp(60, 110);
    let mut out = String::new();
    for incident in &found.incidents {
        let mark = if incident.severity >= Severity::High { style::BAD } else { style::TITLE };
        let until = if incident.lasts { "and lasts".into() } else { format!("to {}", end_of(incident)) };
        let lasted = time_rough_s(incident.lasted_ms() as f64 / 1e3);
        let _ = writeln!(
            out,
            "{bold}{}{bold:#}  {} {until} ({lasted})  {mark}{}{mark:#}",
            incident.id,
            local_time(incident.began_ms),
            incident.rule
        );
        let mut line = |text: &str, style: anstyle::Style| {
            for row in
                textwrap::wrap(text, textwrap::Options::new(width).initial_indent("   ").subsequent_indent("   "))
            {
                let _ = writeln!(out, "{style}{row}{style:#}");
            }
        };
        line(&incident.title, anstyle::Style::new());
        if !incident.impact.text.is_empty() {
            line(&incident.impact.text, anstyle::Style::new());
        }
        for link in &incident.chain {
            line(&format!("-> {}", link.text), anstyle::Style::new());
        }
        if let Some(first) = incident.evidence.first() {
            line(&format!("{} -> {}", first.source, first.value), faint);
        }
        out.push('\n');
    }
    for repeated in &found.repeats {
        let _ = writeln!(out, "{bold}{}{bold:#}", rhythm(repeated, &found.incidents));
    }
    if !found.repeats.is_empty() {
        out.push('\n');
    }
    let (from, to) = (local_time(found.from_ms), local_time(found.to_ms));
    if found.windows_unseen > 0 {
        let unseen = time_rough_s(f64::from(found.windows_unseen) * found.window_s);
        let _ = writeln!(out, "nothing was recorded in {unseen} of it: what happened then is not known");
    }
    for known in &found.silenced {
        let (until, lasted) = (local_time(known.until_ms), time_rough_s(f64::from(known.windows) * found.window_s));
        let _ = writeln!(out, "silenced: {} in {lasted} of it, until {until}: {}", known.rule, known.reason);
    }
    match found.incidents.len() {
        0 => {
            let but = if found.silenced.is_empty() { "" } else { " but what is silenced" };
            let _ = writeln!(out, "no incidents{but} from {from} to {to}");
        }
        n => {
            let incidents = if n == 1 { "incident" } else { "incidents" };
            let _ = writeln!(out, "{n} {incidents} from {from} to {to}");
            let _ = writeln!(out, "{faint}Open one: unslow doctor --recording {} --incident 1{faint:#}", dir.display());
        }
    }
    out
}

/// `fork_stall: 5 days in a row at 01:00, give or take 2 min`.
pub fn rhythm(repeated: &Repeats, incidents: &[Incident]) -> String {
    let times = repeated.incidents.len();
    let off = time(Duration::from_millis(repeated.give_or_take_ms));
    let is_daily = repeated.every_ms.abs_diff(DAY_MS) <= DAY_MS / 24;
    let first = incidents.iter().find(|i| repeated.incidents.contains(&i.id));
    match first.filter(|_| is_daily) {
        Some(first) => {
            let clock = local_clock(first.began_ms);
            format!("{}: {times} days in a row at {clock}, give or take {off}", repeated.rule)
        }
        None => {
            let every = time(Duration::from_millis(repeated.every_ms));
            format!("{}: {times} times, every {every}, give or take {off}", repeated.rule)
        }
    }
}
