//! While it records: the last window, a minute, is diagnosed as soon as it is over. Incidents are told to a program,
//! figures and findings to those who ask over HTTP.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use unslow_doctor::{Finding, Incident, Joiner, Severity, Turn, diagnose};
use unslow_facts::Facts;
use unslow_record::{Progress, Tape, TapeError};
use unslow_status::{Exposition, Labels, NotReady, Status};

/// Version of what a program reads on its standard input.
const SCHEMA: &str = "unslow.incident/1";
/// Rows of the last second may be on their way when a window is over.
const SETTLED_MS: i64 = 2_000;
/// Windows without a finding that do not end an incident.
const PATIENCE: u64 = 2;

/// What the last minute was like, for a scraper.
#[derive(Default)]
struct Seen {
    progress: Progress,
    facts: Vec<Facts>,
    findings: Vec<Finding>,
    incidents: u64,
}

/// Serves what was seen last.
#[derive(Clone, Default)]
pub struct Board(Arc<Mutex<Seen>>);

impl Board {
    fn with<T>(&self, use_it: impl FnOnce(&mut Seen) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn progress(&self, progress: Progress) {
        self.with(|seen| seen.progress = progress);
    }
}

impl Status for Board {
    fn metrics(&self) -> String {
        self.with(|seen| {
            let mut out = Exposition::new("unslow");
            out.counter("recorded_rows", "Seconds of nodes written.", seen.progress.rows);
            out.counter("recording_lost", "Notes that the disk was too slow for.", seen.progress.lost);
            out.counter("incidents", "Incidents that began since the recorder was started.", seen.incidents);
            let nodes = || seen.facts.iter().flat_map(|f| f.nodes.iter().map(move |n| (f, n)));
            let labels = |f: &Facts, address: &str| -> Labels {
                vec![("deployment", f.url.clone()), ("server", address.to_string())]
            };
            type Figure = (&'static str, &'static str, fn(&unslow_facts::Node) -> Option<i64>);
            let figures: [Figure; 6] = [
                ("up", "Whether it answered at the end of the last minute.", |n| {
                    Some(i64::from(n.unreachable.is_none()))
                }),
                ("commands_per_second", "Of others, in the last minute.", |n| n.ops().map(|ops| ops.round() as i64)),
                ("ping_us_p99", "99th percentile of PING in the last minute, in us.", |n| {
                    n.rtt.value().map(|rtt| i64::from(rtt.us_p99))
                }),
                ("ping_us_max", "The longest PING in the last minute, in us.", |n| {
                    n.rtt.value().map(|rtt| i64::from(rtt.us_max))
                }),
                ("used_memory_bytes", "INFO used_memory.", |n| n.number("used_memory").map(|b| b as i64)),
                ("connected_clients", "INFO connected_clients.", |n| n.number("connected_clients").map(|c| c as i64)),
            ];
            for (name, help, figure) in figures {
                out.gauges(name, help, nodes().filter_map(|(f, n)| Some((labels(f, &n.address), figure(n)?))));
            }
            let findings = seen.findings.iter().flat_map(|finding| {
                let severity = format!("{:?}", finding.severity_now()).to_lowercase();
                finding.subjects.iter().map(move |subject| {
                    let labels =
                        vec![("id", finding.id.clone()), ("severity", severity.clone()), ("subject", subject.clone())];
                    (labels, 1)
                })
            });
            out.gauges("finding", "What the last minute is diagnosed as.", findings);
            out.text()
        })
    }

    fn ready(&self) -> Result<(), NotReady> {
        Ok(())
    }
}

/// Diagnoses one window after the other.
pub struct Alarms {
    dir: PathBuf,
    command: Option<String>,
    board: Board,
    joiners: HashMap<String, Joiner>,
    /// Length of a window, in ms.
    window_ms: i64,
    /// The window that is diagnosed next begins then, unix time in ms.
    next_ms: i64,
}

impl Alarms {
    pub fn new(dir: &Path, window: Duration, command: Option<String>, board: Board, now_ms: i64) -> Alarms {
        let window_ms = window.as_millis() as i64;
        let next_ms = now_ms.div_euclid(window_ms) * window_ms;
        Alarms { dir: dir.to_path_buf(), command, board, joiners: HashMap::new(), window_ms, next_ms }
    }

    /// To be called every second or so. Fails where the recording cannot be read back.
    pub fn look(&mut self, now_ms: i64) -> Result<(), TapeError> {
        // A clock that was set: what is to come is diagnosed, not what was.
        if now_ms < self.next_ms || now_ms > self.next_ms + 10 * self.window_ms {
            self.next_ms = now_ms.div_euclid(self.window_ms) * self.window_ms;
        }
        let end_ms = self.next_ms + self.window_ms;
        if now_ms < end_ms + SETTLED_MS {
            return Ok(());
        }
        let window = self.next_ms..end_ms;
        self.next_ms = end_ms;
        let opened = Tape::open(&self.dir);
        if opened.is_err() {
            // Figures of the minute before would look like those of this one.
            self.board.with(|seen| (seen.facts, seen.findings) = (Vec::new(), Vec::new()));
        }
        let tape = opened?;
        let (mut all, mut findings, mut failed) = (Vec::new(), Vec::new(), None);
        for url in tape.deployments() {
            let facts = match tape.facts(&url, window.clone()) {
                Ok(facts) => facts,
                Err(TapeError::Nothing { .. }) => continue,
                // The others are diagnosed all the same.
                Err(e) => {
                    failed = Some(e);
                    continue;
                }
            };
            let report = diagnose(&facts, &[]);
            let joiner = self.joiners.entry(url.to_string());
            let joiner = joiner.or_insert_with(|| Joiner::new(&url, PATIENCE * self.window_ms as u64));
            let turns = joiner.window(window.start as u64, window.end as u64, &report);
            joiner.forget_over();
            for turn in &turns {
                self.tell(turn);
            }
            findings.extend(report.findings.into_iter().filter(|f| f.severity_now() > Severity::Info));
            all.push(facts);
        }
        self.board.with(|seen| (seen.facts, seen.findings) = (all, findings));
        failed.map_or(Ok(()), Err)
    }

    fn tell(&self, turn: &Turn) {
        let (event, incident) = match turn {
            Turn::Began(incident) => ("began", incident),
            Turn::Worse(incident) => ("worse", incident),
            Turn::Over(incident) => ("over", incident),
        };
        if event == "began" {
            self.board.with(|seen| seen.incidents += 1);
        }
        if let Some(command) = &self.command {
            run(command, event, incident);
        }
    }
}

/// Runs the user's program on a thread of its own: the recording must go on if it hangs.
fn run(command: &str, event: &'static str, incident: &Incident) {
    let (command, document) =
        (command.to_string(), json!({ "schema": SCHEMA, "event": event, "incident": incident }).to_string());
    let run = move || {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &command])
            .env("UNSLOW_EVENT", event)
            .env_remove("UNSLOW_PASSWORD")
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let ended = shell.spawn().and_then(|mut child| {
            if let Some(mut stdin) = child.stdin.take() {
                // A program that does not read is none the worse.
                let _ = stdin.write_all(document.as_bytes());
            }
            child.wait()
        });
        match ended {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("unslow: --on-incident: it ended with {status}"),
            Err(e) => eprintln!("unslow: --on-incident: {e}"),
        }
    };
    if let Err(e) = std::thread::Builder::new().name("on-incident".into()).spawn(run) {
        eprintln!("unslow: --on-incident: {e}");
    }
}
