//! `unslow incidents`: what happened while nobody was watching.

mod page;
mod text;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Zoned;
use unslow_doctor::{
    INCIDENTS_SCHEMA, Incident, Incidents, Joiner, Severity, Silence, SilencedRule, diagnose_but, repeats,
};
use unslow_record::Tape;
use unslow_units::count;

use crate::exchange;
use crate::fail_on::FailOn;
use crate::output::Output;
use crate::typed::{lasting, retention};
use crate::when::{self, local_time};
use crate::{files, silences};

/// The list that numbers refer to, beside the recording.
const LIST: &str = "incidents.json";
/// A year of minutes.
const WINDOWS_MAX: i64 = 600_000;
/// Windows without a finding that do not end an incident.
const PATIENCE: u64 = 2;

#[derive(Args)]
#[command(after_help = "Exit status: 0 no incidents (or less than --fail-on), 1 incidents, 2 could not read.\n\n\
                  Examples:\n  unslow incidents /var/lib/unslow --since 24h\n  \
                  unslow doctor --recording /var/lib/unslow --incident 1")]
pub struct IncidentsArguments {
    /// Directory of a recording, made by `unslow record`
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Look at this long a time, up to the end of the recording [default: all of it]
    #[arg(long, value_parser = retention, value_name = "TIME")]
    since: Option<Duration>,
    /// Length of the windows that are diagnosed one by one
    #[arg(long, default_value = "1m", value_parser = lasting, value_name = "TIME")]
    window: Duration,
    /// File of known findings (docs/record.md): they are counted instead of listed
    #[arg(long, value_name = "FILE")]
    silences: Option<PathBuf>,
    /// Write the list as a self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Lowest severity that makes the exit status 1
    #[arg(long, value_enum, default_value = "low", value_name = "SEVERITY")]
    fail_on: FailOn,
}

impl IncidentsArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        self.html.as_deref().map_or(Ok(()), files::check)?;
        let tape = Tape::open(&self.dir)?;
        let (silences, _) = self.silences.as_deref().map(silences::read).transpose()?.unwrap_or_default();
        let found = self.find(&tape, &silences)?;
        // Without the right to write there, numbers mean nothing to the doctor; the list is still worth reading.
        let list = list_of(&self.dir);
        let is_new = !list.exists();
        match files::write(&list, &serde_json::to_string(&found)?) {
            Err(e) => output.note(&format!("unslow doctor --incident will not know these numbers: {e:#}")),
            // Like the recording: for its owner and group.
            Ok(()) if is_new => drop(fs::set_permissions(&list, Permissions::from_mode(0o640))),
            Ok(()) => {}
        }
        if let Some(path) = &self.html {
            files::write(path, &page::render(&found)?)?;
            output.note(&format!("page in {}", path.display()));
        }
        let least = self.fail_on.least();
        if let Some(format) = output.exchange() {
            output.print_document(&exchange::incidents(format, &found, least)?)?;
        } else if output.json() {
            output.print_json(&found)?;
        } else {
            output.print(&text::text(&found, &self.dir))?;
        }
        let fails = |severity: Severity| least.is_some_and(|least| severity >= least);
        Ok(u8::from(found.incidents.iter().any(|i| fails(i.severity))))
    }

    fn find(&self, tape: &Tape, silences: &[Silence]) -> anyhow::Result<Incidents> {
        let (span, step_ms) = (tape.span(), self.window.as_millis() as i64);
        let since = self.since.map_or(span.from_ms, |since| span.to_ms - since.as_millis() as i64);
        // Windows begin on whole ones, so that the same minute is the same window in every list.
        let from_ms = since.max(span.from_ms).div_euclid(step_ms) * step_ms;
        affordable(span.to_ms.saturating_sub(from_ms), step_ms, tape.deployments().len())?;
        let mut unseen = 0;
        let mut silenced: BTreeMap<(String, String, u64), SilencedRule> = BTreeMap::new();
        let mut incidents: Vec<Incident> = Vec::new();
        for url in tape.deployments() {
            let mut joiner = Joiner::new(&url, PATIENCE * step_ms as u64);
            for facts in tape.windows(&url, from_ms..span.to_ms, step_ms) {
                if facts.nodes.is_empty() || facts.check().is_err() {
                    unseen += 1;
                    continue;
                }
                let end_ms = facts.at_ms + (facts.window_s * 1000.0) as u64;
                let report = diagnose_but(&facts, silences);
                for known in &report.silenced {
                    let key = (format!("{url} {}", known.id), known.reason.clone(), known.until_ms);
                    let silenced = silenced.entry(key).or_insert_with(|| SilencedRule::of(&url, known));
                    silenced.windows += 1;
                }
                joiner.window(facts.at_ms, end_ms, &report);
            }
            incidents.extend(joiner.finish());
        }
        incidents.sort_by_key(|i| i.began_ms);
        for (number, incident) in (1..).zip(&mut incidents) {
            incident.id = number;
        }
        Ok(Incidents {
            schema: INCIDENTS_SCHEMA.into(),
            from_ms: from_ms as u64,
            to_ms: span.to_ms as u64,
            window_s: self.window.as_secs_f64(),
            windows_unseen: unseen,
            repeats: repeats(&incidents, step_ms as u64),
            silenced: silenced.into_values().collect(),
            incidents,
        })
    }
}

/// A clock that was set wrong for a moment makes a recording of decades.
fn affordable(span_ms: i64, step_ms: i64, deployments: usize) -> anyhow::Result<()> {
    let windows = (span_ms / step_ms).saturating_mul(deployments as i64);
    if windows > WINDOWS_MAX {
        let windows = count(windows as f64);
        bail!("{windows} windows are too many to diagnose one by one: use a shorter --since or a longer --window");
    }
    Ok(())
}

/// In the directory, or beside the file that was exported of one.
fn list_of(recording: &Path) -> PathBuf {
    if !recording.is_file() {
        return recording.join(LIST);
    }
    let mut beside = recording.as_os_str().to_os_string();
    beside.push(format!(".{LIST}"));
    beside.into()
}

/// The incident of this number in the list that was made last.
pub fn numbered(dir: &Path, number: u32) -> anyhow::Result<(Incident, Duration)> {
    let path = list_of(dir);
    let text = fs::read_to_string(&path).with_context(|| {
        format!("{}: no list of incidents; make one with: unslow incidents {}", path.display(), dir.display())
    })?;
    let list: Incidents = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let window = Duration::from_secs_f64(list.window_s.clamp(0.5, 86_400.0));
    let all = list.incidents.len();
    match list.incidents.into_iter().find(|i| i.id == number) {
        Some(incident) => Ok((incident, window)),
        None => bail!("no incident {number}: {} lists {all}", path.display()),
    }
}

/// A window as it was typed: from a time on, or the last that was recorded.
pub fn window(tape: &Tape, at: Option<&str>, length: Duration) -> anyhow::Result<std::ops::Range<i64>> {
    let (span, length_ms) = (tape.span(), length.as_millis() as i64);
    let from = match at {
        Some(at) => when::parse(at, &Zoned::now())?,
        None => span.to_ms - length_ms,
    };
    if from + length_ms < span.from_ms || from > span.to_ms {
        bail!(
            "nothing was recorded at {}: this recording is from {} to {}",
            local_time(from.max(0) as u64),
            local_time(span.from_ms as u64),
            local_time(span.to_ms as u64)
        );
    }
    // The last row of a recording is the end of its window.
    Ok(from..(from + length_ms).min(span.to_ms + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_of_decades_is_not_diagnosed_minute_by_minute() {
        assert!(affordable(14 * 86_400_000, 60_000, 20).is_ok());
        let why = affordable(56 * 365 * 86_400_000, 60_000, 1).unwrap_err().to_string();
        assert!(why.contains("--since"), "{why}");
    }
}
