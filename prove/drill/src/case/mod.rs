//! The incidents, end to end: break it, let the doctor look without telling it, apply what helps, measure again.
//!
//! What a case is about stands in `cases/NAME.toml`, with its numbers; what it does, in a file beside this one. Doctor,
//! bench, gateway, sink and bypass run as the released binary that users run.

mod busy;
mod cluster_nodes_storm;
mod cross_zone_round_trips;
mod drills;
mod flames;
mod fork_stall;
mod syscall_bound;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use unslow_engine::{Server, spawn_bound};
use unslow_lab::lab::{Host, Lab};
use unslow_lab::topology::Topology;
use unslow_units::did_you_mean;

use crate::check::Verdict;
use crate::error::{CaseError, Error, Unfit};
use crate::run::{interrupted, while_running};
use crate::stage::{self, Hosts, Stage, Struck, Variation};
use crate::store::Folder;
use busy::{Busy, Load};

/// Load beside keys that the case itself wrote: nobody is asked, and removing its own would be load as well.
const AMONG_OTHERS: &[&str] = &["--yes", "--keep-keys"];

/// Schema of a [`Report`].
pub const SCHEMA: &str = "unslow.case/1";

/// What `cases/NAME.toml` says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Story {
    /// What happened, as a title.
    pub title: String,
    /// Which of the five incidents.
    pub incident: String,
    /// What is done, as sentences.
    pub about: String,
    /// The rule that the doctor must name first; empty where it is not asked.
    #[serde(default)]
    pub finding: String,
    /// Figures of the experiment.
    #[serde(default)]
    pub numbers: Numbers,
    /// Those of them that must be odd.
    #[serde(default)]
    odd: Vec<String>,
}

/// Whole numbers by their names, as `cases/NAME.toml` or `--set` has them.
pub type Numbers = BTreeMap<String, u64>;

/// A number may be set to at most this many times the case's own: `--set` must not overload the machine.
const MOST: u64 = 10;

impl Story {
    /// A whole number of the experiment.
    fn number(&self, name: &str) -> Result<u64, CaseError> {
        self.numbers.get(name).copied().ok_or_else(|| CaseError::NoNumber(name.into()))
    }

    /// Takes over those of `numbers` that it has, and returns what is different now, as sentences.
    fn set(&mut self, numbers: &Numbers) -> Result<Vec<String>, CaseError> {
        let mut changed = Vec::new();
        for (name, own) in &mut self.numbers {
            let Some(given) = numbers.get(name).filter(|given| *given != own) else { continue };
            if *given == 0 || *given > own.saturating_mul(MOST) {
                return Err(CaseError::OutOfRange {
                    name: name.clone(),
                    given: *given,
                    most: own.saturating_mul(MOST),
                });
            }
            if self.odd.contains(name) && given.is_multiple_of(2) {
                return Err(CaseError::Even { name: name.clone(), given: *given, own: *own });
            }
            changed.push(format!("{name} was set to {given}; in this case it is {own}"));
            *own = *given;
        }
        Ok(changed)
    }
}

/// The settings of a run.
pub struct Wanted<'a> {
    /// The released binary.
    pub binary: &'a Path,
    /// Where the evidence is kept.
    pub store: &'a Path,
    /// For the lab's jitter and loss.
    pub seed: u64,
    /// To end with the diagnosis: nothing is mended or measured.
    pub diagnosis_only: bool,
    /// Instead of those of the case's file.
    pub numbers: &'a Numbers,
}

/// An error if one of these numbers is of none of these cases.
pub fn known(numbers: &Numbers, cases: &[&Case]) -> Result<(), Error> {
    let stories = cases.iter().map(|case| case.story()).collect::<Result<Vec<_>, _>>()?;
    let all: BTreeSet<&str> = stories.iter().flat_map(|s| s.numbers.keys().map(String::as_str)).collect();
    let names: Vec<&str> = all.into_iter().collect();
    for story in &stories {
        story.clone().set(numbers)?;
    }
    match numbers.keys().find(|name| !names.contains(&name.as_str())) {
        Some(name) => Err(CaseError::UnknownNumber {
            name: name.clone(),
            known: format!("known: {}", if names.is_empty() { "none".into() } else { names.join(", ") }),
        }
        .into()),
        None => Ok(()),
    }
}

/// A case.
pub struct Case {
    /// What a person types.
    pub name: &'static str,
    text: &'static str,
    play: fn(&mut Context<'_>) -> Result<Played, Error>,
}

/// Every case, the quick ones first.
pub const ALL: &[Case] = &[
    Case {
        name: "cross-zone-round-trips",
        text: include_str!("../../../../cases/cross-zone-round-trips.toml"),
        play: cross_zone_round_trips::play,
    },
    Case {
        name: "syscall-bound",
        text: include_str!("../../../../cases/syscall-bound.toml"),
        play: syscall_bound::play,
    },
    Case { name: "fork-stall", text: include_str!("../../../../cases/fork-stall.toml"), play: fork_stall::play },
    Case {
        name: "cluster-nodes-storm",
        text: include_str!("../../../../cases/cluster-nodes-storm.toml"),
        play: cluster_nodes_storm::play,
    },
    Case { name: "lock-drill", text: include_str!("../../../../cases/lock-drill.toml"), play: drills::locks },
    Case {
        name: "sentinel-drill",
        text: include_str!("../../../../cases/sentinel-drill.toml"),
        play: drills::sentinel,
    },
    Case {
        name: "client-shootout",
        text: include_str!("../../../../cases/client-shootout.toml"),
        play: drills::clients,
    },
];

/// The case of this name.
pub fn find(name: &str) -> Result<&'static Case, Error> {
    let names: Vec<&str> = ALL.iter().map(|c| c.name).collect();
    ALL.iter().find(|c| c.name == name || c.name.replace('-', "_") == name).ok_or_else(|| Error::UnknownName {
        what: "case",
        name: name.into(),
        hint: did_you_mean(name, &names),
    })
}

/// What the doctor said.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Diagnosis {
    /// The rule that had to come first.
    pub expected: String,
    /// The rule that came first.
    pub found: String,
    /// Its sentence.
    pub sentence: String,
    /// Its consequences, where it is a chain.
    pub chain: Vec<String>,
    /// Whether they are the same.
    pub right: bool,
}

/// A measurement: before, or with a remedy.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Row {
    /// What it was measured with.
    pub name: String,
    /// A text for each column.
    pub cells: Vec<String>,
}

/// A drawing that is kept beside the report.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Picture {
    /// What it shows.
    pub title: String,
    /// The file, SVG.
    pub file: String,
}

/// What a case's own file gives back.
#[derive(Default)]
pub struct Played {
    diagnosis: Option<Diagnosis>,
    columns: Vec<&'static str>,
    rows: Vec<Row>,
    pictures: Vec<Picture>,
    notes: Vec<String>,
    /// What must hold beside the diagnosis.
    held: Vec<(bool, String)>,
    /// What could not be judged.
    unknown: Vec<String>,
    closing: String,
}

impl Played {
    /// What there is when nothing but the diagnosis was asked for.
    fn diagnosed(diagnosis: Diagnosis) -> Played {
        let closing = format!("The doctor named {} first.", diagnosis.found);
        Played { diagnosis: Some(diagnosis), closing, ..Played::default() }
    }
}

/// A case's outcome.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    /// `unslow.case/1`.
    pub schema: &'static str,
    /// Name of the case.
    pub case: String,
    /// What happened.
    pub title: String,
    /// Which incident.
    pub incident: String,
    /// What was done.
    pub about: String,
    /// The seed.
    pub seed: u64,
    /// Passed when the diagnosis was right and what had to hold held.
    pub verdict: Verdict,
    /// What the doctor said, where it was asked.
    pub diagnosis: Option<Diagnosis>,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Before, and with each remedy.
    pub rows: Vec<Row>,
    /// Drawings.
    pub pictures: Vec<Picture>,
    /// What could not be done here, and what must be known to read the figures.
    pub notes: Vec<String>,
    /// What had to hold, and did not.
    pub failed: Vec<String>,
    /// A sentence a person can repeat.
    pub closing: String,
    /// Where the evidence is.
    pub folder: String,
    /// How long it took.
    pub seconds: f64,
}

/// What `unslow case NAME --format json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    /// `unslow.case/1`.
    pub schema: &'static str,
    /// Each case.
    pub cases: Vec<Report>,
}

/// What a case has to work with.
pub struct Context<'a> {
    story: Story,
    /// The released binary.
    binary: &'a Path,
    seed: u64,
    /// It ends with the diagnosis: nothing is mended or measured.
    diagnosis_only: bool,
    store: PathBuf,
    folder: Folder,
    /// Faults that could not be shown to be at work.
    unproven: Vec<String>,
    progress: &'a mut dyn FnMut(&str),
}

impl Case {
    /// What its file says.
    pub fn story(&self) -> Result<Story, CaseError> {
        toml::from_str(self.text).map_err(|e| CaseError::Story { case: self.name, why: e.to_string() })
    }

    /// Whether the doctor has something to find in it.
    pub fn asks(&self) -> bool {
        self.story().is_ok_and(|story| !story.finding.is_empty())
    }

    /// Plays it; with `diagnosis_only` until the doctor has spoken.
    pub fn run(&self, wanted: &Wanted<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report, Error> {
        let Wanted { binary, store, seed, diagnosis_only, numbers } = *wanted;
        let begun = Instant::now();
        let mut story = self.story()?;
        let changed = story.set(numbers)?;
        if diagnosis_only && story.finding.is_empty() {
            return Err(CaseError::AsksNothing.into());
        }
        let folder = Folder::make(store, self.name, &format!("seed-{seed}"))?;
        let path = folder.path().display().to_string();
        let store = store.to_path_buf();
        let story_of_run = story.clone();
        let unproven = Vec::new();
        let mut context =
            Context { story: story_of_run, binary, seed, diagnosis_only, store, folder, unproven, progress };
        let played = while_running(|| (self.play)(&mut context));
        let played = played.map_err(|e| e.beside(&context.unproven)).inspect_err(|e| {
            let crashed = Report::crashed(self, seed, e);
            let notes = [changed.clone(), crashed.notes.clone()].concat();
            let crashed = Report { folder: path.clone(), notes, ..crashed };
            let _ = context.folder.keep("report.json", &serde_json::to_string_pretty(&crashed).unwrap_or_default());
        })?;
        let mut notes = [changed, played.notes].concat();
        let mut failed: Vec<String> = played.held.into_iter().filter(|(held, _)| !held).map(|(_, text)| text).collect();
        if let Some(wrong) = played.diagnosis.as_ref().filter(|d| !d.right) {
            failed.insert(0, format!("the doctor named {} first; {} is the cause", wrong.found, wrong.expected));
        }
        let verdict = verdict(&mut failed, &mut notes, std::mem::take(&mut context.unproven), played.unknown);
        let report = Report {
            schema: SCHEMA,
            case: self.name.into(),
            title: story.title,
            incident: story.incident,
            about: story.about,
            seed,
            verdict: if interrupted() { Verdict::Unknown } else { verdict },
            diagnosis: played.diagnosis,
            columns: played.columns.into_iter().map(String::from).collect(),
            rows: played.rows,
            pictures: played.pictures,
            notes,
            failed,
            closing: played.closing,
            folder: path,
            seconds: begun.elapsed().as_secs_f64(),
        };
        let text = serde_json::to_string_pretty(&report).map_err(Error::Json)?;
        context.folder.keep("report.json", &text)?;
        Ok(report)
    }
}

/// What a case comes to. Without its fault it says nothing, whatever was seen: what failed is a note then. A run that
/// failed is one that was seen: beside it what could not be judged is a note.
fn verdict(failed: &mut Vec<String>, notes: &mut Vec<String>, unproven: Vec<String>, unknown: Vec<String>) -> Verdict {
    let verdict = match (unproven.is_empty(), failed.is_empty(), unknown.is_empty()) {
        (false, ..) => Verdict::Unknown,
        (true, false, _) => Verdict::Failed,
        (true, true, false) => Verdict::Unknown,
        (true, true, true) => Verdict::Passed,
    };
    if !unproven.is_empty() {
        notes.append(failed);
    }
    notes.extend(unproven);
    notes.extend(unknown);
    verdict
}

impl Report {
    /// A case that ended with an error: unknown, beside those that did not.
    pub fn crashed(case: &Case, seed: u64, error: &Error) -> Report {
        let story = case.story().ok();
        let word = |of: fn(&Story) -> &String| story.as_ref().map(of).cloned().unwrap_or_default();
        Report {
            schema: SCHEMA,
            case: case.name.into(),
            title: word(|s| &s.title),
            incident: word(|s| &s.incident),
            about: word(|s| &s.about),
            seed,
            verdict: Verdict::Unknown,
            diagnosis: None,
            columns: Vec::new(),
            rows: Vec::new(),
            pictures: Vec::new(),
            notes: Vec::new(),
            failed: vec![error.to_string()],
            closing: "It ended before there was a result.".into(),
            folder: String::new(),
            seconds: 0.0,
        }
    }
}

impl Context<'_> {
    fn say(&mut self, what: &str) {
        (self.progress)(what);
    }

    /// Brings a lab up for the case.
    fn raise(&self, topology: Topology, hosts: Hosts) -> Result<Stage, Error> {
        Stage::raise(topology, hosts, Variation { seed: self.seed, engine: None }, &[])
    }

    /// Does a fault, and looks whether it is at work.
    fn strike(&mut self, stage: &Stage, fault: &str, who: Option<&str>, value: Option<&str>) -> Result<Struck, Error> {
        let struck = stage.strike(fault, who, value)?;
        self.prove(stage, fault, &struck, "at the start");
        Ok(struck)
    }

    /// Looks whether a fault was at work until now, and ends it.
    fn heal(&mut self, stage: &Stage, fault: &str, mut struck: Struck) -> Result<(), Error> {
        self.prove(stage, fault, &struck, "at the end");
        struck.heal()
    }

    /// A case with a fault that cannot be shown to be at work proves nothing.
    fn prove(&mut self, stage: &Stage, fault: &str, struck: &Struck, when: &str) {
        if let Err(found) = struck.holds(&stage.lab) {
            self.unproven.push(format!("{fault} was not active {when}: {found}"));
        }
    }

    /// The binary with arguments, on a host of the lab or on this machine.
    fn command(&self, on: Option<(&Lab, &Host)>, arguments: &[&str]) -> Result<Command, Error> {
        let mut command = Command::new(self.binary);
        command.args(arguments).stdin(Stdio::null());
        if let Some((lab, host)) = on {
            lab.place(host, &mut command)?;
        }
        Ok(command)
    }

    /// Runs it to its end; its JSON. Exit status 1 is a finding, not a failure.
    fn json(&self, on: Option<(&Lab, &Host)>, arguments: &[&str]) -> Result<Json, Error> {
        let text = self.text(on, &[arguments, &["--format", "json", "--quiet"]].concat(), &[])?;
        serde_json::from_str(&text).map_err(|e| Error::unslow(arguments, e))
    }

    /// Runs it to its end; what it printed.
    fn text(
        &self,
        on: Option<(&Lab, &Host)>,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<String, Error> {
        if interrupted() {
            return Err(Error::Interrupted);
        }
        let mut command = self.command(on, arguments)?;
        command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn_bound(command).map_err(|e| Error::unslow(arguments, e))?;
        let output = child.wait_with_output().map_err(|e| Error::unslow(arguments, e))?;
        // Findings are the doctor's business; a run that is invalid is told by its own report.
        let fine = matches!(arguments.first(), Some(&"doctor" | &"bench" | &"incidents"));
        match output.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Some(1) if fine => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            _ => Err(Error::unslow(arguments, String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// The binary as something that goes on until it is dropped.
    fn background(
        &self,
        on: Option<(&Lab, &Host)>,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Background, Error> {
        let mut command = self.command(on, arguments)?;
        command.envs(environment.iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn_bound(command).map_err(|e| Error::unslow(arguments, e))?;
        Ok(Background(child))
    }

    /// The doctor, on the host of a server as somebody who is logged in there, given one address and nothing else.
    fn diagnose(&mut self, lab: &Lab, beside: usize) -> Result<Diagnosis, Error> {
        self.say("diagnosing; the doctor gets one address and nothing else");
        let host = &lab.hosts[lab.places[beside]];
        // Other clients there are, a few, as the seed has it: they change with every run, and the cause must not.
        let (rate, connections) = (100 + self.seed % 1400, 1 + self.seed / 7 % 6);
        let (rate, connections_text) = (rate.to_string(), connections.to_string());
        let load = Load {
            from: Some((lab, host)),
            url: &lab.url(),
            server: &lab.servers().nth(beside).map(|(s, _)| s.target()).ok_or(Unfit::NoServers)?,
            connections: 1, // of a cluster they are at several nodes
            arguments: &["--rate", &rate, "--connections", &connections_text, "--seconds", "30", "--keys", "5000"],
            environment: &[],
        };
        let others = Busy::begin(self, &load)?;
        // Among clients that come and go, as the fault may have it, they cannot always be told apart.
        let scene = |_: &mut Busy, _| self.json(load.from, &["doctor", load.url, "--window", "3s"]);
        let (report, went_on) = stage::play(others, Duration::from_secs(2), scene);
        let report = report?;
        if !went_on {
            return Err(CaseError::NoOthers.into());
        }
        self.folder.keep("diagnosis.json", &report.to_string())?;
        // What is over stands below what costs something now, and a busy machine does: a cause that is over comes first
        // among those.
        let findings = report["findings"].as_array().map_or(&[][..], Vec::as_slice);
        let over = |f: &&Json| f["when"] == "past";
        let expected = findings.iter().find(|f| f["id"] == self.story.finding.as_str());
        let first = if expected.is_some_and(|f| over(&f)) { findings.iter().find(over) } else { findings.first() };
        let text = |v: &Json| v.as_str().unwrap_or_default().to_string();
        let found = first.map_or("nothing".into(), |f| text(&f["id"]));
        Ok(Diagnosis {
            right: found == self.story.finding,
            expected: self.story.finding.clone(),
            sentence: first.map_or(String::new(), |f| text(&f["title"])),
            chain: first
                .and_then(|f| f["chain"].as_array())
                .map_or(Vec::new(), |c| c.iter().map(|l| text(&l["id"])).collect()),
            found,
        })
    }

    /// A closed loop of the load generator against `url`; its first run.
    fn bench(&self, on: Option<(&Lab, &Host)>, url: &str, more: &[&str]) -> Result<Json, Error> {
        let report = self.json(on, &[&["bench", url], more, AMONG_OTHERS].concat())?;
        Ok(report["runs"][0].clone())
    }
}

/// A run of the load generator that counts: every value right, every request answered in time to be believed.
fn believed(run: &Json, notes: &mut Vec<String>) -> Result<(), CaseError> {
    if run["wrong_values"].as_u64() != Some(0) {
        return Err(CaseError::WrongValues(run["wrong_values"].to_string()));
    }
    if run["valid"] != true {
        let doubt = run["doubts"][0].as_str().unwrap_or("no reason given");
        notes.push(format!("one window cannot be trusted: {doubt}"));
    }
    Ok(())
}

/// A process of ours: ended with SIGTERM, then for good, when dropped.
struct Background(Child);

impl Background {
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|ended| ended.is_some())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // SAFETY: a process we started and have not waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            if self.0.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server's CPU time so far, of all its threads.
fn cpu_of(server: &Server) -> Result<Duration, Error> {
    let info = unslow_engine::info(&mut server.connect()?, "cpu")?;
    let seconds = |field: &str| info.number(field).unwrap_or(0.0);
    Ok(Duration::from_secs_f64(seconds("used_cpu_sys") + seconds("used_cpu_user")))
}

fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// The middle one.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_whose_fault_cannot_be_shown_is_unknown_and_says_so() {
        let said = |all: &[&str]| -> Vec<String> { all.iter().map(|text| text.to_string()).collect() };
        let of = |failed: &[&str], unproven: &[&str], unknown: &[&str]| {
            let (mut failed, mut notes) = (said(failed), Vec::new());
            let verdict = verdict(&mut failed, &mut notes, said(unproven), said(unknown));
            (verdict, failed, notes)
        };
        assert_eq!(of(&[], &[], &[]), (Verdict::Passed, said(&[]), said(&[])));
        assert_eq!(of(&["wrong"], &[], &["open"]), (Verdict::Failed, said(&["wrong"]), said(&["open"])));
        assert_eq!(of(&[], &[], &["open"]), (Verdict::Unknown, said(&[]), said(&["open"])));
        assert_eq!(of(&["wrong"], &["idle"], &[]), (Verdict::Unknown, said(&[]), said(&["wrong", "idle"])));
        let error =
            Error::Interrupted.beside(&said(&["kernel_bound was not active at the start: its clients get no answers"]));
        assert_eq!(
            error.to_string(),
            "interrupted (kernel_bound was not active at the start: its clients get no answers)"
        );
        assert_eq!(Error::Interrupted.beside(&[]).to_string(), "interrupted");
    }

    #[test]
    fn every_case_has_its_story() {
        for case in ALL {
            let story = case.story().unwrap();
            assert!(!story.title.is_empty() && story.incident.starts_with('I'), "{}", case.name);
        }
        assert!(find("fork_stall").is_ok());
        let Err(Error::UnknownName { what, hint, .. }) = find("fork-stal") else { panic!("there is no such case") };
        assert_eq!((what, hint.as_str()), ("case", "; did you mean \"fork-stall\"?"));
    }

    #[test]
    fn numbers_that_are_set_are_said_and_those_of_no_case_are_refused() {
        let numbers = |all: &[(&str, u64)]| -> Numbers { all.iter().map(|(n, v)| (n.to_string(), *v)).collect() };
        let fork = find("fork-stall").unwrap();
        let mut story = fork.story().unwrap();
        let changed = story.set(&numbers(&[("nights", 3), ("fork_ms", 5000), ("pairs", 1)])).unwrap();
        assert_eq!(changed, ["nights was set to 3; in this case it is 5"]);
        assert_eq!(story.number("nights").unwrap(), 3);
        let why = |all: &[(&str, u64)], cases: &[&Case]| known(&numbers(all), cases).unwrap_err().to_string();
        assert!(known(&numbers(&[("pairs", 1)]), &[fork, find("syscall-bound").unwrap()]).is_ok());
        assert_eq!(
            why(&[("pairs", 1)], &[fork]),
            "none of the selected cases has a number named pairs; known: fork_ms, nights, node_timeout_ms"
        );
        assert_eq!(
            why(&[("x", 1)], &[find("lock-drill").unwrap()]),
            "none of the selected cases has a number named x; known: none"
        );
        assert_eq!(why(&[("nights", 4)], &[fork]), "nights=4: expected an odd number, like the case's own 5");
        for bad in [0, 51] {
            let text = format!("nights={bad}: expected a whole number from 1 to 50, ten times the case's own");
            assert_eq!(why(&[("nights", bad)], &[fork]), text);
        }
    }
}
