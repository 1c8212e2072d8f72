//! One run of a drill: a variant of it with one of its faults, against real servers.

mod foreign;
mod judge;
mod lab;
mod outcome;
mod time_line;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use unslow_client::{Target, TlsOptions};
/// Whether a signal has asked this process to end.
pub use unslow_interrupt::asked as interrupted;

use crate::caller::Run;
use crate::check::lost_writes::writes;
use crate::check::{Check, CheckId, Verdict};
use crate::error::{Error, Unfit};
use crate::history::{History, Model};
use crate::load::{self, Clients, Finals};
use crate::observe::{Event, Observer, masters_at_once};
use crate::spec::{Drill, Kind, Plan};
use crate::stage::{self, Hosts, PATIENCE, Stage, Variation};
use crate::store::Folder;

pub use foreign::FOREIGN;
use foreign::Foreign;
use lab::{InLab, name_in};
pub use outcome::{Document, Figures, Outcome, Registers, SCHEMA};
use time_line::{Ground, Played, TimeLine};

/// How to run it, beside what the drill says.
#[derive(Clone, Debug)]
pub struct How {
    /// Another engine than the drill's.
    pub engine: Option<String>,
    /// Of jitter, loss and keys.
    pub seed: u64,
    /// Where the evidence goes.
    pub store: PathBuf,
    /// A deployment of the user's instead of a lab, and how to reach it.
    pub own: Option<(Target, TlsOptions)>,
    /// Look at the deployment before, during and after, as the doctor does.
    pub facts: bool,
}

/// Runs `body` so that a signal asks it to end in order: everything is healed, the evidence is kept. [`interrupted`]
/// says whether one did.
pub(crate) fn while_running<T>(body: impl FnOnce() -> T) -> T {
    let _guard = unslow_interrupt::guard("healing and undoing; what was seen so far is kept (Ctrl-C again: exit now)");
    body()
}

/// Runs a variant with one of its faults.
pub fn run(
    drill: &Drill,
    label: &str,
    plan: &Plan,
    fault: &str,
    how: &How,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    let begun = Instant::now();
    let folder = Folder::make(&how.store, &drill.name, &format!("{fault}-{label}"))?;
    folder.keep("drill.toml", &drill.text)?;
    let task = Task { drill, label, plan, fault, how, folder: &folder };
    let mut outcome = while_running(|| match &how.own {
        Some((target, tls)) => Foreign::find(target, tls).and_then(|ground| task.play(&ground, progress)),
        None => task.play_in_lab(progress),
    })
    .inspect_err(|e| {
        let path = folder.path().display().to_string();
        let crashed = Outcome::crashed(drill, label, fault, how.seed, &path, e);
        let _ = folder.keep("outcome.json", &serde_json::to_string_pretty(&crashed).unwrap_or_default());
    })?;
    outcome.seconds = begun.elapsed().as_secs_f64();
    let text = serde_json::to_string_pretty(&outcome).map_err(Error::Json)?;
    folder.keep("outcome.json", &text)?;
    Ok(outcome)
}

/// What is run, and where its evidence goes.
struct Task<'a> {
    drill: &'a Drill,
    label: &'a str,
    plan: &'a Plan,
    fault: &'a str,
    how: &'a How,
    folder: &'a Folder,
}

impl Task<'_> {
    fn play_in_lab(&self, progress: &mut dyn FnMut(&str)) -> Result<Outcome, Error> {
        let topology = self.plan.topology.clone().ok_or(Unfit::NoLab)?;
        let variation = Variation { seed: self.how.seed, engine: self.how.engine.as_deref() };
        let faults: Vec<&str> = self.plan.faults.iter().map(|spec| name_in(spec, self.fault)).collect();
        progress("bringing the lab up");
        let stage = Stage::raise(topology, Hosts::Wired, variation, &faults)?;
        for sentinel in &stage.lab.deployment.sentinels {
            let mut connection = sentinel.connect()?;
            for (key, value) in &self.plan.sentinel {
                let value = value.as_str().map_or_else(|| value.to_string(), String::from);
                connection.call(&["SENTINEL", "SET", "mymaster", key, &value])?;
            }
        }
        let ground = InLab::new(stage)?;
        let outcome = self.play(&ground, progress);
        for (server, _) in ground.stage.lab.servers() {
            let _ = self.folder.keep(&format!("{}.log", server.name()), &server.log());
        }
        outcome
    }

    /// The run itself, in a lab or on a deployment of the user's. An error that ends the time line is an outcome too.
    fn play(&self, ground: &dyn Ground, progress: &mut dyn FnMut(&str)) -> Result<Outcome, Error> {
        let (places, engine) = (ground.places(), ground.engine());
        // Keys of this run alone: what an earlier one left behind is nobody's.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shards = places.shards(self.how.seed ^ now.as_micros() as u64)?;
        self.plan.fits(shards.len())?;
        let (stop, unwatch) = (AtomicBool::new(false), AtomicBool::new(false));
        let (run, clients) = Run::new(places, &shards, &self.plan.load, &stop);
        let observer = Observer::new(run.begun);
        let (played, (history, died)) = std::thread::scope(|scope| {
            let _end = End(&unwatch);
            observer.watch(places, scope, &unwatch);
            progress("waiting for every client to get through");
            stage::play(Clients::begin(&run, scope, &clients), PATIENCE, |_, answered| {
                let line = TimeLine {
                    plan: self.plan,
                    fault: self.fault,
                    how: self.how,
                    folder: self.folder,
                    places,
                    run: &run,
                    observer: &observer,
                    progress: &mut *progress,
                    played: Played::default(),
                };
                let played = line.play(ground, answered)?;
                Ok(Played { ended_us: run.now_us(), ..played })
            })
        });
        progress("reading back what was written");
        let wanted = self.plan.load.kind == Kind::Writes && played.is_ok();
        let finals = wanted.then(|| load::finals(&run, &clients));
        let left = if ground.outlives_the_run() { load::sweep(&run, &clients) } else { Vec::new() };
        let events = observer.events();
        self.folder.history(&history)?;
        self.folder.events(&events)?;
        let mut played = match played {
            Ok(played) => played,
            Err(e) => {
                let folder = self.folder.path().display().to_string();
                let crashed = Outcome::crashed(self.drill, self.label, self.fault, self.how.seed, &folder, &e);
                return Ok(Outcome { engine, events, ..crashed });
            }
        };
        if !left.is_empty() {
            let text = format!("keys were left behind in your deployment; delete them: {}", left.join(" "));
            played.checks.push(Check::unknown(CheckId::Keys, text));
        }
        if died > 0 {
            played.checks.push(Check::unknown(CheckId::Load, format!("{died} clients died during the run")));
        }
        progress("checking");
        Ok(self.outcome(&history, played, finals, events, places.masters, engine))
    }

    /// What all of it comes to. A checker that panics leaves the rest standing.
    fn outcome(
        &self,
        history: &History,
        mut played: Played,
        finals: Option<Result<Finals, Error>>,
        events: Vec<Event>,
        masters: usize,
        engine: String,
    ) -> Outcome {
        let mut checks = std::mem::take(&mut played.checks);
        let judged = catch_unwind(AssertUnwindSafe(|| {
            let mut figures = judge::measure(history, &played, &events);
            let mut checks = Vec::new();
            match finals {
                Some(Ok(finals)) => {
                    let (follows, lost) = writes(history, Model::Follows, &finals);
                    let (stays, lost_stays) = writes(history, Model::Stays, &finals);
                    (figures.writes, figures.writes_stays, figures.writes_judged) = (follows, stays, true);
                    let at_once = if masters == 1 { masters_at_once(&events) } else { Vec::new() };
                    checks.extend(judge::of_writes(self.plan, &figures, &lost, &lost_stays, &at_once));
                }
                Some(Err(e)) => checks.push(Check::unknown(CheckId::LostWrites, e.to_string())),
                None => {}
            }
            checks.extend(judge::judge(self.plan, history, &mut figures, &played));
            (figures, checks)
        }));
        let (figures, more) = judged.unwrap_or_else(|_| {
            let text = "a checker crashed: nothing was judged; the history is kept";
            (Figures::default(), vec![Check::unknown(CheckId::Checker, text)])
        });
        checks.extend(more);
        judge::doubt(&mut checks);
        let verdict = checks.iter().map(|c| c.verdict).max().unwrap_or(Verdict::Unknown);
        Outcome {
            schema: SCHEMA,
            drill: self.drill.name.clone(),
            variant: self.label.into(),
            fault: self.fault.into(),
            seed: self.how.seed,
            engine,
            verdict,
            checks,
            figures,
            events,
            folder: self.folder.path().display().to_string(),
            seconds: 0.0,
        }
    }
}

/// Ends the observer's work whatever happens: a scope waits for its threads even when it is left by a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
