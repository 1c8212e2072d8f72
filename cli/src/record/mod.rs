//! `unslow record`: the flight recorder.

mod alarms;
mod export;
mod notify;
mod plan;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use unslow_record::{CloserLook, Contents, Recorded, Recorder, Settings, Tape};
use unslow_units::{bytes, count, parse_bytes, time_rough_s};

use self::alarms::{Alarms, Board};
use self::export::Numbers;
use self::notify::Notifier;
use self::plan::Plan;
use crate::fail_on::FailOn;
use crate::output::Output;
use crate::reach::Reach;
use crate::server::Server;
use crate::silences;
use crate::table::table;
use crate::typed::{end_after, lasting, retention, stall};
use crate::web::{Http, Web};
use crate::when::local_time;

/// Versions of the JSON of `record ls` and of `record check`.
const LS_SCHEMA: &str = "unslow.recording/1";
const CHECK_SCHEMA: &str = "unslow.recording_check/1";
/// Each wake-up costs as much as recording a node for a tenth of a second.
const NAP: Duration = Duration::from_millis(500);

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_flag = true,
    after_help = "Exit status: 0 done, 1 a damaged recording (check), 2 could not record or read.\n\nExamples:\n  \
                  unslow record redis://10.0.0.1:7000 --dir /var/lib/unslow\n  unslow incidents /var/lib/unslow\n  \
                  unslow doctor --recording /var/lib/unslow --at \"yesterday 01:00\" --for 10m"
)]
pub struct RecordArguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Deployments: redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port
    #[arg(value_name = "URL")]
    urls: Vec<String>,
    /// Read deployments and settings from this file instead of the command line (docs/record.md)
    #[arg(long, value_name = "FILE", conflicts_with = "urls")]
    config: Option<PathBuf>,
    /// Directory of the recording; created if need be
    #[arg(long, value_name = "DIR", default_value = "unslow-recording", conflicts_with = "config")]
    dir: PathBuf,
    /// Exit after this time, such as 90s or 36h [default: never]
    #[arg(long, value_parser = end_after, value_name = "TIME")]
    r#for: Option<Duration>,
    /// Delete what is older than this
    #[arg(long, value_parser = retention, default_value = "14d", value_name = "TIME", conflicts_with = "config")]
    keep: Duration,
    /// Delete the oldest while the recording is larger than this, such as 5gb [default: no limit]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE", conflicts_with = "config")]
    max_size: Option<u64>,
    /// Read the slow log this often; clients, settings and this machine are checked every sixth time
    #[arg(long, value_parser = lasting, default_value = "10s", value_name = "TIME", conflicts_with = "config")]
    every: Duration,
    /// Treat a PING that takes at least this long (50ms to 2s) as a stall: record it with its own time, and take a
    /// closer look at the server
    #[arg(long, value_parser = stall, default_value = "100ms", value_name = "TIME", conflicts_with = "config")]
    stall: Duration,
    /// Run this with `sh -c` when an incident begins, gets worse and is over, its JSON on standard input; UNSLOW_EVENT
    /// is began, worse or over
    #[arg(long, value_name = "COMMAND", conflicts_with = "config")]
    on_incident: Option<String>,
    /// POST the same JSON to this URL
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    webhook: Option<String>,
    /// Lowest severity of the incidents sent to --on-incident and --webhook
    #[arg(long, value_enum, default_value = "low", value_name = "SEVERITY", conflicts_with = "config")]
    notify_from: FailOn,
    /// File of known findings that must not alert (docs/record.md); read again for each window
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    silences: Option<PathBuf>,
    /// For alarms and --metrics: length of the windows that are diagnosed one by one
    #[arg(long, default_value = "1m", value_parser = lasting, value_name = "TIME", conflicts_with = "config")]
    window: Duration,
    /// Serve /metrics and /healthz there, such as 127.0.0.1:9121
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config")]
    metrics: Option<String>,
    #[command(flatten)]
    http: Http,
    /// Record key names instead of hashes
    #[arg(long, conflicts_with = "config")]
    show_keys: bool,
    /// Hash key names by the salt in this file, which is made if there is none: recorders that share it hash alike
    /// [default: DIR/salt]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["config", "show_keys"])]
    salt_file: Option<PathBuf>,
    /// Do not record this machine
    #[arg(long, conflicts_with = "config")]
    no_host: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Subcommand)]
enum Verb {
    /// Show what a recording holds
    Ls {
        /// Directory of the recording
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Write a part of a recording to one file, for a colleague: `doctor --recording FILE` and `incidents FILE` read
    /// it; or its numbers, for other tools
    Export {
        /// Directory of the recording
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// File to write
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// From this time on, such as "yesterday 01:00" or "3h ago"
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        from: String,
        /// Up to this time [default: the end of the recording]
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        to: Option<String>,
        /// Write the numbers as CSV, a line for each server and second
        #[arg(long, conflicts_with = "openmetrics")]
        csv: bool,
        /// Write the numbers as OpenMetrics with times, such as `promtool tsdb create-blocks-from openmetrics` reads
        #[arg(long)]
        openmetrics: bool,
        /// With --csv or --openmetrics: these numbers alone, such as used_memory,cmdstat_get.calls
        #[arg(long, value_delimiter = ',', value_name = "NAME")]
        fields: Vec<String>,
        /// With --csv or --openmetrics: a row for every so long
        #[arg(long, value_parser = lasting, default_value = "1s", value_name = "TIME")]
        step: Duration,
        /// With --csv or --openmetrics: which deployment, where several are recorded
        #[arg(long, value_name = "URL")]
        url: Option<String>,
    },
    /// Delete the oldest part of a recording, while no recorder writes it
    Prune {
        /// Directory of the recording
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Delete what is older than this
        #[arg(long, value_parser = retention, value_name = "TIME", required_unless_present = "max_size")]
        keep: Option<Duration>,
        /// Delete the oldest while the recording is larger than this, such as 5gb
        #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
        max_size: Option<u64>,
    },
    /// Read all of a recording and report what is damaged
    Check {
        /// Directory of the recording
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

impl RecordArguments {
    pub fn run(self, output: &Output) -> anyhow::Result<u8> {
        match &self.verb {
            Some(Verb::Ls { dir }) => ls(dir, output),
            Some(Verb::Check { dir }) => check(dir, output),
            Some(Verb::Export { dir, file, from, to, csv, openmetrics, fields, step, url }) => {
                let table = match (csv, openmetrics) {
                    (false, false) if !fields.is_empty() || url.is_some() => {
                        bail!("--fields and --url choose numbers: add --csv or --openmetrics")
                    }
                    (false, false) => None,
                    (is_csv, _) => Some(Numbers { is_csv: *is_csv, fields, step: *step, url: url.as_deref() }),
                };
                export::export(dir, file, (from, to.as_deref()), table.as_ref(), output)
            }
            Some(Verb::Prune { dir, keep, max_size }) => prune(dir, *keep, *max_size, output),
            None => self.record(output),
        }
    }

    fn record(self, output: &Output) -> anyhow::Result<u8> {
        let plan = Plan::of(&self)?;
        for over in plan.silences.as_deref().map(silences::read).transpose()?.into_iter().flat_map(|(_, over)| over) {
            output.note(&over);
        }
        let notifier = Notifier::start(plan.listeners, unix_ms())?;
        let guard = unslow_interrupt::guard("ending the recording (Ctrl-C again: at once, which loses nothing)");
        let store = unslow_record::Store {
            retain_for: Some(plan.keep),
            retain_bytes: plan.max_size,
            ..unslow_record::Store::default()
        };
        let board = Board::default();
        let _served = match &plan.metrics {
            Some(address) => {
                let served = unslow_status::serve(address, false, Arc::new(board.clone()));
                Some(served.with_context(|| format!("--metrics {address}"))?)
            }
            None => None,
        };
        let web = plan
            .http
            .http
            .as_deref()
            .map(|address| Web::serve(&plan.http, address, &plan.dir, plan.window, plan.silences.clone()));
        let web = web.transpose()?;
        let settings = Settings {
            targets: plan.targets,
            options: self.reach.options()?,
            every: plan.every,
            keys: plan.keys,
            host: plan.host,
            stall: plan.stall,
        };
        let recorder = Recorder::start(settings, &plan.dir, store)?;
        for (url, why) in &recorder.silent {
            output.note(&format!("{url} does not answer yet: {}", why.message));
        }
        let servers = if recorder.servers == 1 { "1 server".into() } else { format!("{} servers", recorder.servers) };
        output.note(&format!("recording {servers} into {}; Ctrl-C ends it", plan.dir.display()));
        if let Some(web) = &web {
            output.note(&format!("page at {}", web.url(&plan.http)));
        }
        let end = self.r#for.map(|time| Instant::now() + time);
        let is_watched = plan.metrics.is_some() || notifier.is_needed();
        let mut alarms = Alarms::new(&plan.dir, plan.window, board.clone(), notifier, unix_ms());
        (alarms.notify_from, alarms.silences) = (plan.notify_from, plan.silences);
        while !guard.asked() && !recorder.has_failed() && end.is_none_or(|end| Instant::now() < end) {
            std::thread::sleep(NAP);
            board.progress(recorder.progress());
            if is_watched && let Err(e) = alarms.look(unix_ms(), &recorder) {
                output.note(&format!("the last minute could not be diagnosed: {e:#}"));
            }
        }
        let progress = recorder.end().with_context(|| plan.dir.display().to_string())?;
        output.note(&format!("recorded {} rows into {}", count(progress.rows as f64), plan.dir.display()));
        if progress.rows == 0 {
            bail!("nothing was recorded: no server answered");
        }
        if progress.too_large > 0 {
            output.note(&format!("{} answers were too large to record", count(progress.too_large as f64)));
        }
        if progress.lost > 0 {
            output.note(&format!("{} rows were lost: the disk was too slow", count(progress.lost as f64)));
        }
        Ok(0)
    }
}

/// Closer looks of the last day of a recording are listed, the newest first.
const LOOKS_OF: Duration = Duration::from_secs(86_400);
const LOOKS_SHOWN: usize = 10;

fn unix_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

fn ls(dir: &Path, output: &Output) -> anyhow::Result<u8> {
    let tape = Tape::open(dir)?;
    let (span, size) = (tape.span(), size_of(dir)?);
    let recorded = |url: std::sync::Arc<str>| Recorded { nodes: tape.nodes(&url), url: url.to_string() };
    let all: Vec<Recorded> = tape.deployments().into_iter().map(recorded).collect();
    let looks = tape.closer_looks(tape.newest_ms() - LOOKS_OF.as_millis() as i64..tape.newest_ms() + 1);
    if output.json() {
        let (schema, from_ms, to_ms) = (LS_SCHEMA.into(), span.from_ms, span.to_ms);
        let document = Contents { schema, from_ms, to_ms, bytes: size, deployments: all, closer_looks: looks };
        output.print_json(&document)?;
        return Ok(0);
    }
    let lasts = time_rough_s((span.to_ms - span.from_ms) as f64 / 1e3);
    let (from, to) = (local_time(span.from_ms as u64), local_time(span.to_ms as u64));
    let mut text = format!("{from} to {to} ({lasts}), {}\n\n", bytes(size as f64));
    let mut rows = vec![vec!["deployment".to_string(), "server".to_string()]];
    for of in &all {
        rows.extend(of.nodes.iter().map(|node| vec![of.url.clone(), node.clone()]));
    }
    let _ = write!(text, "{}", table(&rows));
    if !looks.is_empty() {
        let mut rows = vec![["closer look", "server", "reason"].map(str::to_string).to_vec()];
        let row = |look: &CloserLook| {
            vec![local_time(look.at_ms as u64), look.look.address.clone(), look.look.why.words().to_string()]
        };
        rows.extend(looks.iter().rev().take(LOOKS_SHOWN).map(row));
        let _ = write!(text, "\n{}", table(&rows));
        if let Some(more) = looks.len().checked_sub(LOOKS_SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "and {more} more on its last day (--format json lists them)");
        }
    }
    output.print(&text)?;
    Ok(0)
}

fn prune(dir: &Path, keep: Option<Duration>, max_size: Option<u64>, output: &Output) -> anyhow::Result<u8> {
    // Not created where there is none.
    Tape::open(dir)?;
    let gone = unslow_record::prune(dir, keep, max_size)?;
    output.note(&format!("{} deleted", bytes(gone as f64)));
    if output.json() {
        output.print_json(&json!({ "schema": "unslow.record_prune/1", "bytes": gone }))?;
    }
    Ok(0)
}

fn check(dir: &Path, output: &Output) -> anyhow::Result<u8> {
    let damage = Tape::open(dir)?.verify();
    let status = u8::from(!damage.is_empty());
    if output.json() {
        let rows: Vec<_> = damage
            .iter()
            .map(|d| json!({ "file": d.file, "at": d.at, "bytes": d.bytes, "what": d.kind.words() }))
            .collect();
        output.print_json(&json!({ "schema": CHECK_SCHEMA, "damage": rows }))?;
        return Ok(status);
    }
    let mut text = String::new();
    for d in &damage {
        let _ = writeln!(text, "{}: {} at byte {}: {}", d.file, bytes(d.bytes as f64), d.at, d.kind.words());
    }
    if damage.is_empty() {
        text = "all of it can be read\n".into();
    }
    output.print(&text)?;
    Ok(status)
}

fn size_of(dir: &Path) -> anyhow::Result<u64> {
    let files = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    Ok(files.flatten().filter_map(|file| Some(file.metadata().ok()?.len())).sum())
}
