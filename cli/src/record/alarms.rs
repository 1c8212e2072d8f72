//! While it records: the last window, a minute, is diagnosed as soon as it is over. Incidents are told to a program,
//! figures and findings to those who ask over HTTP.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use unslow_doctor::{Finding, Joiner, Severity, Silence, Silenced, Turn, diagnose_but};
use unslow_facts::Facts;
use unslow_record::{Progress, Recorder, Tape, TapeError};
use unslow_status::{Exposition, Labels, NotReady, Status};

use super::notify::{self, Notifier};
use crate::exchange;
use crate::fail_on::FailOn;
use crate::silences;
use crate::when::local_time;

/// Rows of the last second may be on their way when a window is over.
const SETTLED_MS: i64 = 2_000;
/// Windows without a finding that do not end an incident.
const PATIENCE: u64 = 2;

/// What the last minute was like, for a scraper.
#[derive(Default)]
struct Seen {
    progress: Progress,
    facts: Vec<Facts>,
    /// With their deployments' URLs.
    findings: Vec<(String, Finding)>,
    silenced: Vec<(String, Silenced)>,
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
            let findings = exchange::findings(seen.findings.iter().map(|(url, finding)| (url.as_str(), finding)));
            out.gauges("finding", "What the last minute is diagnosed as.", findings);
            let silenced = exchange::silenced(seen.silenced.iter().map(|(url, silenced)| (url.as_str(), silenced)));
            out.gauges("silenced", "Findings of the last minute that are silenced.", silenced);
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
    board: Board,
    notifier: Notifier,
    /// Lowest severity that is sent to the command and the webhook.
    pub notify_from: FailOn,
    /// File of known findings that must not alert.
    pub silences: Option<PathBuf>,
    joiners: HashMap<String, Joiner>,
    /// Deployment and number of the incidents that others know of.
    told: HashSet<(String, u32)>,
    /// Length of a window, in ms.
    window_ms: i64,
    /// The window that is diagnosed next begins then, unix time in ms.
    next_ms: i64,
}

impl Alarms {
    pub fn new(dir: &Path, window: Duration, board: Board, notifier: Notifier, now_ms: i64) -> Alarms {
        let window_ms = window.as_millis() as i64;
        let next_ms = now_ms.div_euclid(window_ms) * window_ms;
        Alarms {
            dir: dir.to_path_buf(),
            board,
            notifier,
            notify_from: FailOn::Low,
            silences: None,
            joiners: HashMap::new(),
            told: HashSet::new(),
            window_ms,
            next_ms,
        }
    }

    /// To be called every second or so. Servers with something grave are looked at closely. Fails where the recording
    /// or the silences cannot be read.
    pub fn look(&mut self, now_ms: i64, recorder: &Recorder) -> anyhow::Result<()> {
        // A clock that was set, or a machine that slept: what is to come is diagnosed, not what was.
        if now_ms < self.next_ms || now_ms > self.next_ms + 10 * self.window_ms {
            let from_ms = std::mem::replace(&mut self.next_ms, now_ms.div_euclid(self.window_ms) * self.window_ms);
            self.joiners.values_mut().for_each(|joiner| joiner.clock_set(now_ms.max(0) as u64));
            if now_ms > from_ms {
                let from = local_time(from_ms.max(0) as u64);
                bail!("the clock was set forward, or this machine slept: no alarms for the time from {from} to now");
            }
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
            self.board.with(|seen| (seen.facts, seen.findings, seen.silenced) = Default::default());
        }
        let tape = opened?;
        let (silences, mut failed) = self.silences();
        let (mut all, mut findings, mut silenced, mut told) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for url in tape.deployments() {
            let facts = match tape.facts(&url, window.clone()) {
                Ok(facts) => facts,
                Err(TapeError::Nothing { .. }) => continue,
                // The others are diagnosed all the same.
                Err(e) => {
                    failed = Some(e.into());
                    continue;
                }
            };
            let report = diagnose_but(&facts, &silences);
            let joiner = self.joiners.entry(url.to_string());
            let joiner = joiner.or_insert_with(|| Joiner::new(&url, PATIENCE * self.window_ms as u64));
            let turns = joiner.window(window.start as u64, window.end as u64, &report);
            joiner.forget_over();
            told.extend(turns);
            let grave = report.findings.iter().filter(|f| f.severity_now() >= Severity::High);
            grave.flat_map(|f| &f.subjects).for_each(|subject| recorder.look_closer(&url, subject));
            silenced.extend(report.silenced.into_iter().map(|silenced| (url.to_string(), silenced)));
            findings.extend(report.findings.into_iter().map(|finding| (url.to_string(), finding)));
            all.push(facts);
        }
        self.board.with(|seen| (seen.facts, seen.findings, seen.silenced) = (all, findings, silenced));
        told.into_iter().for_each(|turn| self.tell(turn));
        failed.map_or(Ok(()), Err)
    }

    /// Those of now. A file that cannot be read silences nothing: rather told once too often.
    fn silences(&self) -> (Vec<Silence>, Option<anyhow::Error>) {
        match self.silences.as_deref().map(silences::read).transpose() {
            Ok(found) => (found.map_or(Vec::new(), |(silences, _)| silences), None),
            Err(why) => (Vec::new(), Some(why)),
        }
    }

    /// The first event sent for an incident is always "began", even if it only became severe enough later; "over" is
    /// sent only if "began" was.
    fn tell(&mut self, turn: Turn) {
        let (event, incident) = notify::parts(&turn);
        if event == "began" {
            self.board.with(|seen| seen.incidents += 1);
        }
        let key = (incident.deployment.clone(), incident.id);
        let is_grave = self.notify_from.least().is_some_and(|least| incident.severity >= least);
        let turn = match turn {
            Turn::Over(incident) => self.told.remove(&key).then_some(Turn::Over(incident)),
            Turn::Began(incident) | Turn::Worse(incident) if is_grave && self.told.insert(key.clone()) => {
                Some(Turn::Began(incident))
            }
            Turn::Worse(incident) if self.told.contains(&key) => Some(Turn::Worse(incident)),
            Turn::Began(_) | Turn::Worse(_) => None,
        };
        if let Some(turn) = turn {
            self.notifier.tell(&turn);
        }
    }
}
