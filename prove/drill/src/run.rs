//! One run of a drill: a variant of it with one of its faults, against real servers.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use unslow_client::{Options, Target, TlsOptions, Value};
use unslow_engine::{info, view, wait_for};
/// Whether a signal has asked this process to end.
pub use unslow_interrupt::asked as interrupted;
use unslow_lab::faults::{self, Active};
use unslow_lab::lab::Lab;
use unslow_units::{time, time_us};

use crate::caller::Run;
use crate::check::availability::{Window, windows};
use crate::check::exclusion::{Locks, locks};
use crate::check::linearizable::{self, Answer};
use crate::check::lost_writes::{Writes, writes};
use crate::check::stale_reads::{Reads, reads};
use crate::check::{Check, Verdict};
use crate::error::{Error, Unfit};
use crate::ground::{Ground, Way};
use crate::history::{History, Model, Op};
use crate::load;
use crate::observe::{Event, Observer, SILENT, masters_at_once};
use crate::spec::{Drill, FaultSpec, Kind, Plan};
use crate::store::Folder;
use crate::verify::{Before, Proof};

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

/// Schema of an [`Outcome`].
pub const SCHEMA: &str = "unslow.drill/1";

/// Whether linearizable registers were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Registers {
    /// Registers that many wrote.
    pub checked: u64,
    /// Of those, not linearizable.
    pub wrong: u64,
    /// Of those, too hard to say.
    pub unknown: u64,
    /// Operations on them.
    pub operations: u64,
}

/// What was measured.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Figures {
    /// When the first fault was at work.
    pub fault_from_us: u64,
    /// When the last was over.
    pub fault_until_us: u64,
    /// From the fault until a server became master that was not.
    pub promoted_after_us: Option<u64>,
    /// Each client's longest time without an acknowledged operation.
    pub windows: Vec<Window>,
    /// The longest of clients that follow, of the shard that was hit.
    pub window_us_max: u64,
    /// Of the other shards.
    pub other_shards_window_us_max: u64,
    /// From the end of the fault until every shard has its master and all replicas.
    pub redundant_after_us: Option<u64>,
    /// Whether one of those clients, of the shard that was hit, was still without an answer when the run ended.
    pub window_open: bool,
    /// Operations in all.
    pub operations: u64,
    /// Whether what is there was compared with what was acknowledged.
    pub writes_judged: bool,
    /// Writes of clients that follow.
    pub writes: Writes,
    /// Writes of clients that stay.
    pub writes_stays: Writes,
    /// Reads from masters, of clients that follow.
    pub reads: Reads,
    /// Reads of clients that stay.
    pub reads_stays: Reads,
    /// Reads from replicas.
    pub reads_replicas: Reads,
    /// Registers that many write.
    pub registers: Registers,
    /// Locks, where the load is about them.
    pub locks: Option<Locks>,
}

/// A run's outcome.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Outcome {
    /// `unslow.drill/1`.
    pub schema: &'static str,
    /// Name of the drill.
    pub drill: String,
    /// Name of the variant.
    pub variant: String,
    /// The fault; of several on the time line, the one that has alternatives.
    pub fault: String,
    /// The seed.
    pub seed: u64,
    /// Which server.
    pub engine: String,
    /// Failed when a check failed, else unknown when one is, else passed.
    pub verdict: Verdict,
    /// Each check.
    pub checks: Vec<Check>,
    /// What was measured.
    pub figures: Figures,
    /// The time line.
    pub events: Vec<Event>,
    /// Where the evidence is.
    pub folder: String,
    /// How long it all took.
    pub seconds: f64,
}

/// What `unslow drill --format json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    /// `unslow.drill/1`.
    pub schema: &'static str,
    /// Each run.
    pub runs: Vec<Outcome>,
}

/// Faults that can be done to a deployment that is not a lab: by commands, undone by nobody; a hang ends by itself.
pub const FOREIGN: [&str; 3] = ["failover", "hang", "none"];

/// Runs `body` so that a signal asks it to end in order: everything is healed, the evidence is kept. [`interrupted`]
/// says whether one did.
pub(crate) fn while_running<T>(body: impl FnOnce() -> T) -> T {
    let _guard = unslow_interrupt::guard("healing and undoing; what was seen so far is kept (Ctrl-C again: exit now)");
    body()
}

impl Outcome {
    /// A run that ended with an error: unknown, beside those that did not. `folder` is where its evidence is, if it has
    /// any.
    pub fn crashed(drill: &Drill, label: &str, fault: &str, seed: u64, folder: &str, error: &Error) -> Outcome {
        Outcome {
            schema: SCHEMA,
            drill: drill.name.clone(),
            variant: label.into(),
            fault: fault.into(),
            seed,
            engine: String::new(),
            verdict: Verdict::Unknown,
            checks: vec![Check::unknown("load", error.to_string())],
            figures: Figures::default(),
            events: Vec::new(),
            folder: folder.into(),
            seconds: 0.0,
        }
    }
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
    let mut outcome = while_running(|| match &how.own {
        Some((target, tls)) => Ground::foreign(target, tls)
            .and_then(|ground| played(drill, label, plan, fault, how, &folder, None, &ground, target.url(), progress)),
        None => in_lab(drill, label, plan, fault, how, &folder, progress),
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

fn in_lab(
    drill: &Drill,
    label: &str,
    plan: &Plan,
    fault: &str,
    how: &How,
    folder: &Folder,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    let mut topology = plan.topology.clone().ok_or(Unfit::NoLab)?;
    topology.seed = how.seed;
    if let Some(engine) = &how.engine {
        topology.deployment.server = engine.clone();
    }
    for spec in &plan.faults {
        if let Some(needs) = faults::find(name_in(spec, fault)) {
            for (key, value) in needs.settings_for(&topology.deployment.server) {
                topology
                    .deployment
                    .settings
                    .entry(key.to_string())
                    .or_insert_with(|| unslow_lab::topology::Setting::Text(value.to_string()));
            }
        }
    }
    progress("bringing the lab up");
    let lab = Lab::start(&topology)?;
    for sentinel in &lab.deployment.sentinels {
        let mut connection = sentinel.connect()?;
        for (key, value) in &plan.sentinel {
            let value = value.as_str().map_or_else(|| value.to_string(), String::from);
            connection.call(&["SENTINEL", "SET", "mymaster", key, &value])?;
        }
    }
    let ground = Ground::of(&lab)?;
    let engine = lab.deployment.nodes.first().map(|n| n.engine().version.clone()).unwrap_or_default();
    let outcome = played(drill, label, plan, fault, how, folder, Some(&lab), &ground, engine, progress);
    for (server, _) in lab.servers() {
        let _ = folder.keep(&format!("{}.log", server.name()), &server.log());
    }
    outcome
}

/// What this run does at a place of the time line.
fn name_in<'a>(spec: &'a FaultSpec, fault: &'a str) -> &'a str {
    if spec.names().iter().any(|n| n == fault) { fault } else { &spec.names()[0] }
}

/// Sleeps until a moment; `false` when somebody ended the run.
fn sleep_until(at: Instant) -> bool {
    while Instant::now() < at {
        if interrupted() {
            return false;
        }
        std::thread::sleep(at.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
    }
    !interrupted()
}

/// What the time line left to be judged.
#[derive(Default)]
struct Played {
    checks: Vec<Check>,
    from_us: u64,
    until_us: u64,
    redundant_us: Option<u64>,
    /// Whether it was so before the fault, as far as the observer could see.
    redundant_before: bool,
    /// When the clients were told to stop.
    ended_us: u64,
    /// From a restart until everything was redundant again, where there were several: the longest.
    between_us: Option<u64>,
}

/// Ends the clients' work whatever happens: a scope waits for its threads even when it is left by a panic.
pub(crate) struct Ends<'a>(pub &'a [&'a AtomicBool]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|stop| stop.store(true, Ordering::SeqCst));
    }
}

#[allow(clippy::too_many_arguments)] // one call each, from `run` and `in_lab`
fn played(
    drill: &Drill,
    label: &str,
    plan: &Plan,
    fault: &str,
    how: &How,
    folder: &Folder,
    lab: Option<&Lab>,
    ground: &Ground,
    engine: String,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome, Error> {
    // Keys of this run alone: what an earlier one left behind is nobody's.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let shards = ground.shards(how.seed ^ now.as_micros() as u64)?;
    plan.fits(shards.len())?;
    let (stop, unwatch) = (AtomicBool::new(false), AtomicBool::new(false));
    let (run, clients) = Run::new(ground, &shards, &plan.load, &stop);
    let observer = Observer::new(run.begun);
    let (played, (history, died)) = std::thread::scope(|scope| {
        let _ends = Ends(&[&stop, &unwatch]);
        observer.watch(ground, scope, &unwatch);
        let threads = load::start(&run, scope, &clients);
        let played = time_line(plan, fault, how, folder, lab, ground, &run, &observer, progress);
        let ended_us = run.now_us();
        stop.store(true, Ordering::SeqCst);
        let played = played.map(|p| Played { ended_us, ..p });
        (played, load::collect(clients.clone(), threads))
    });
    progress("reading back what was written");
    let wanted = plan.load.kind == Kind::Writes && played.is_ok();
    let finals = wanted.then(|| load::finals(&run, &clients));
    let left = lab.is_none().then(|| {
        let left = load::sweep(&run, &clients);
        let text = format!("keys were left behind in your deployment; delete them: {}", left.join(" "));
        (!left.is_empty()).then(|| Check::unknown("keys", text))
    });
    folder.history(&history)?;
    folder.events(&observer.events())?;
    let mut played = match played {
        Ok(played) => played,
        Err(e) => {
            let folder = folder.path().display().to_string();
            let crashed = Outcome::crashed(drill, label, fault, how.seed, &folder, &e);
            return Ok(Outcome { engine, events: observer.events(), ..crashed });
        }
    };
    played.checks.extend(left.flatten());
    if died > 0 {
        played.checks.push(Check::unknown("load", format!("{died} clients died during the run")));
    }
    progress("checking");
    let events = observer.events();
    let mut checks = std::mem::take(&mut played.checks);
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let mut figures = measure(&history, &played, &events);
        let mut checks = Vec::new();
        match finals {
            Some(Ok(finals)) => {
                let (follows, lost) = writes(&history, Model::Follows, &finals);
                let (stays, lost_stays) = writes(&history, Model::Stays, &finals);
                (figures.writes, figures.writes_stays, figures.writes_judged) = (follows, stays, true);
                let at_once = if ground.masters == 1 { masters_at_once(&events) } else { Vec::new() };
                checks.extend(of_writes(plan, &figures, &lost, &lost_stays, &at_once));
            }
            Some(Err(e)) => checks.push(Check::unknown("lost_writes", e.to_string())),
            None => {}
        }
        checks.extend(judge(plan, &history, &mut figures, &played));
        (figures, checks)
    }));
    let (figures, more) = judged.unwrap_or_else(|_| {
        let text = "a checker crashed: nothing was judged; the history is kept";
        (Figures::default(), vec![Check::unknown("checker", text)])
    });
    checks.extend(more);
    doubt(&mut checks);
    let verdict = checks.iter().map(|c| c.verdict).max().unwrap_or(Verdict::Unknown);
    Ok(Outcome {
        schema: SCHEMA,
        drill: drill.name.clone(),
        variant: label.into(),
        fault: fault.into(),
        seed: how.seed,
        engine,
        verdict,
        checks,
        figures,
        events,
        folder: folder.path().display().to_string(),
        seconds: 0.0,
    })
}

/// What was seen of a run whose fault or load is in doubt is no failure, unless the histories themselves show it.
fn doubt(checks: &mut [Check]) {
    const SHOWN: [&str; 3] = ["double_holders", "linearizable", "redundant"];
    let own = |c: &Check| ["load", "fault"].contains(&c.name.as_str());
    if checks.iter().any(|c| own(c) && c.verdict == Verdict::Unknown) {
        for check in checks.iter_mut().filter(|c| c.verdict == Verdict::Failed && !SHOWN.contains(&c.name.as_str())) {
            check.verdict = Verdict::Unknown;
        }
    }
}

/// Something the time line does.
enum Act {
    Begin(usize),
    End(usize),
}

#[allow(clippy::too_many_arguments)] // the whole of a run meets here
fn time_line(
    plan: &Plan,
    fault: &str,
    how: &How,
    folder: &Folder,
    lab: Option<&Lab>,
    ground: &Ground,
    run: &Run<'_>,
    observer: &Observer,
    progress: &mut dyn FnMut(&str),
) -> Result<Played, Error> {
    let mut played = Played::default();
    progress("waiting for every client to get through");
    let through = || run.progress.iter().filter(|p| p.load(Ordering::Relaxed) > 0).count();
    let deadline = Instant::now() + Duration::from_secs(20);
    // Locks are taken by one at a time: somebody is enough.
    let wanted = if plan.load.kind == Kind::Locks { 1 } else { run.progress.len() };
    while through() < wanted && Instant::now() < deadline && !interrupted() {
        std::thread::sleep(Duration::from_millis(10));
    }
    if through() < wanted {
        let text = format!("{} of {} clients had an answer within 20 s", through(), run.progress.len());
        played.checks.push(Check::unknown("load", text));
        return Ok(played);
    }
    observer.say("drill", "every client gets through");
    let whole = || observer.redundant(ground.nodes.len(), ground.masters);
    let patience = Instant::now() + Duration::from_secs(2);
    while !whole() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(10));
    }
    played.redundant_before = whole();
    facts(how, folder, ground, "before");
    let (clock, start_us) = (Instant::now(), run.now_us());
    if lab.is_none() {
        return own_time_line(plan, fault, how, folder, ground, run, observer, played, progress);
    }
    let mut acts: Vec<(Duration, Act)> = Vec::new();
    for (i, spec) in plan.faults.iter().enumerate() {
        acts.push((spec.at, Act::Begin(i)));
        acts.extend(spec.lasts.map(|lasts| (spec.at + lasts, Act::End(i))));
    }
    acts.sort_by_key(|(at, _)| *at);
    let mut active: BTreeMap<usize, (Active, Proof)> = BTreeMap::new();
    let mut result = Ok(());
    let mut shift = Duration::ZERO;
    let times: Vec<Duration> = acts.iter().map(|(at, _)| *at).collect();
    for (i, (at, act)) in acts.into_iter().enumerate() {
        let calm = times.get(i + 1).is_none_or(|next| *next >= at + Duration::from_secs(2));
        if !sleep_until(clock + at + shift) {
            break;
        }
        let spec = match act {
            Act::Begin(i) | Act::End(i) => &plan.faults[i],
        };
        let name = name_in(spec, fault);
        match (act, lab) {
            (Act::Begin(i), Some(lab)) => {
                progress(&format!("{name} {}", spec.who.as_deref().unwrap_or_default()));
                let (before, before_us) = (Instant::now(), run.now_us());
                let began = begin(lab, name, spec, observer, ground);
                // A failover takes its time; the rest of the time line waits for it.
                shift += before.elapsed().saturating_sub(Duration::from_millis(500));
                match began {
                    Ok(Begun::On(started, proof)) => {
                        let now = run.now_us();
                        played.from_us = if played.from_us == 0 { now } else { played.from_us };
                        observer.say("drill", &format!("{name}: {}", started.subject));
                        played.checks.push(proved(&proof, lab, name, "at the start"));
                        active.insert(i, (started, *proof));
                        if calm {
                            facts(how, folder, ground, "during");
                        }
                    }
                    Ok(Begun::Over { redundant_us, checks }) => {
                        played.checks.extend(checks);
                        played.between_us = Some(redundant_us);
                        played.from_us = if played.from_us == 0 { before_us } else { played.from_us };
                        played.until_us = run.now_us();
                    }
                    Err(e) => result = Err(e),
                }
            }
            (Act::End(i), Some(lab)) => {
                if let Some((mut ending, proof)) = active.remove(&i) {
                    played.checks.push(proved(&proof, lab, name, "at the end"));
                    played.until_us = run.now_us();
                    observer.say("drill", &format!("{name} ends"));
                    result = ending.heal().map_err(Error::from);
                    if let Err(found) = proof.healed(lab) {
                        played.checks.push(Check::unknown("fault", format!("{name} could not be undone: {found}")));
                    }
                }
            }
            (_, None) => {}
        }
        if result.is_err() {
            break;
        }
    }
    // What has no end of its own lasts until here.
    if result.is_ok() && !active.is_empty() {
        sleep_until(Instant::now() + plan.after);
    }
    // Last in, first out; whatever happened above.
    while let Some((i, (mut ending, proof))) = active.pop_last() {
        let name = name_in(&plan.faults[i], fault);
        if let Some(lab) = lab.filter(|_| result.is_ok()) {
            played.checks.push(proved(&proof, lab, name, "at the end"));
        }
        played.until_us = run.now_us();
        result = result.and(ending.heal().map_err(Error::from));
        if let Some(lab) = lab.filter(|_| result.is_ok())
            && let Err(found) = proof.healed(lab)
        {
            played.checks.push(Check::unknown("fault", format!("{name} could not be undone: {found}")));
        }
    }
    result?;
    if plan.faults.is_empty() {
        sleep_until(Instant::now() + plan.after);
        (played.from_us, played.until_us) = (start_us, run.now_us());
    } else if played.from_us == 0 {
        played.checks.push(Check::unknown("fault", "no fault was active"));
    }
    aftermath(plan, ground, run, observer, &mut played, progress);
    facts(how, folder, ground, "after");
    Ok(played)
}

/// From the end of the fault until everything is as it was, and a little longer.
fn aftermath(
    plan: &Plan,
    ground: &Ground,
    run: &Run<'_>,
    observer: &Observer,
    played: &mut Played,
    progress: &mut dyn FnMut(&str),
) {
    progress("waiting for full redundancy");
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline && !interrupted() {
        if observer.redundant(ground.nodes.len(), ground.masters) {
            played.redundant_us = Some(run.now_us());
            observer.say("drill", "every shard has its master and its replicas");
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if played.redundant_us.is_none() && !interrupted() {
        let text = "a minute after the fault, a shard still lacks its master or its replicas";
        played.checks.push(Check::unknown("redundancy", text));
    }
    sleep_until(Instant::now() + plan.after);
    if interrupted() {
        let text = "interrupted: what was seen so far is kept";
        played.checks.push(Check::unknown("load", text));
    }
}

/// The same for a deployment of the user's: one fault, by its own commands.
#[allow(clippy::too_many_arguments)] // one caller
fn own_time_line(
    plan: &Plan,
    fault: &str,
    how: &How,
    folder: &Folder,
    ground: &Ground,
    run: &Run<'_>,
    observer: &Observer,
    mut played: Played,
    progress: &mut dyn FnMut(&str),
) -> Result<Played, Error> {
    if !sleep_until(Instant::now() + Duration::from_secs(2)) {
        played.checks.push(Check::unknown("load", "interrupted before the fault: nothing was done"));
        return Ok(played);
    }
    played.from_us = run.now_us();
    observer.say("drill", fault);
    progress(fault);
    let begun = Instant::now();
    let lasts = plan.hang();
    let result = foreign(ground, fault, lasts);
    facts(how, folder, ground, "during");
    if let Ok(Some(hangs)) = &result {
        if !sleep_until(begun + lasts) {
            let text =
                format!("interrupted: {hangs} wakes on its own, {} s after it was put to sleep", lasts.as_secs_f64());
            played.checks.push(Check::unknown("load", text));
        }
        let silent = |e: &Event| e.at_us >= played.from_us && e.who == *hangs && e.text == SILENT;
        played.checks.push(match observer.events().into_iter().find(silent) {
            Some(_) => {
                Check::of("fault", true, format!("{hangs} did not answer (DEBUG SLEEP {})", lasts.as_secs_f64()))
            }
            None => Check::unknown("fault", format!("{hangs} kept answering in spite of DEBUG SLEEP")),
        });
    } else if fault == "none" {
        sleep_until(Instant::now() + plan.end().max(Duration::from_secs(10)));
        let seen = |e: &Event| e.at_us > played.from_us && e.who != "drill";
        let first = observer.events().into_iter().find(seen);
        played.checks.push(match first {
            Some(event) => Check::of("fault", true, format!("observed: {} {}", event.who, event.text)),
            None => Check::unknown("fault", "no server went silent or changed its role: nothing visible happened"),
        });
    } else if result.is_ok() {
        // The command returns before anything has happened.
        let until = Instant::now() + Duration::from_secs(60);
        while promoted(&observer.events(), played.from_us).is_none() && Instant::now() < until && !interrupted() {
            std::thread::sleep(Duration::from_millis(20));
        }
        played.checks.push(match promoted(&observer.events(), played.from_us) {
            Some(_) => Check::of("fault", true, "a replica was promoted; it stays master until you fail over again"),
            None => Check::unknown("fault", "no replica was promoted within a minute of the command"),
        });
    }
    played.until_us = run.now_us();
    result?;
    aftermath(plan, ground, run, observer, &mut played, progress);
    facts(how, folder, ground, "after");
    Ok(played)
}

/// When, from `from` on, a server became master that was a replica.
fn promoted(events: &[Event], from: u64) -> Option<u64> {
    let mut replicas: std::collections::BTreeSet<&str> = Default::default();
    for event in events.iter().filter(|e| e.who != "drill") {
        match event.text.as_str() {
            "master" if replicas.remove(event.who.as_str()) && event.at_us > from => return Some(event.at_us),
            text if text.starts_with("replica of ") => drop(replicas.insert(&event.who)),
            _ => {}
        }
    }
    None
}

fn proved(proof: &Proof, lab: &Lab, name: &str, when: &str) -> Check {
    match proof.holds(lab) {
        Ok(found) => Check::of("fault", true, format!("{name} was active {when}: {found}")),
        Err(found) => Check::unknown("fault", format!("{name} was not active {when}: {found}")),
    }
}

/// A fault that was begun.
enum Begun {
    /// It is at work until it is healed.
    On(Active, Box<Proof>),
    /// It was several, one after another, and is over.
    Over {
        /// The longest from one of them until everything was redundant again.
        redundant_us: u64,
        checks: Vec<Check>,
    },
}

/// Begins a fault.
fn begin(lab: &Lab, name: &str, spec: &FaultSpec, observer: &Observer, ground: &Ground) -> Result<Begun, Error> {
    if name == "rolling_restart" {
        return rolling_restart(lab, spec.value.as_deref() == Some("failover"), observer, ground);
    }
    let before = Before::look(lab);
    let fault = faults::named(name)?;
    let active = fault.inject(lab, spec.who.as_deref(), spec.value.as_deref())?;
    let proof = Proof::new(lab, fault.name, &active.subject, before);
    Ok(Begun::On(active, Box::new(proof)))
}

fn rolling_restart(lab: &Lab, fail_over: bool, observer: &Observer, ground: &Ground) -> Result<Begun, Error> {
    let (restart, failover) = (faults::named("restart")?, faults::named("failover")?);
    let mut redundant_us = 0;
    let over = |redundant_us, check| Ok(Begun::Over { redundant_us, checks: vec![check] });
    for node in &lab.deployment.nodes {
        if interrupted() {
            return over(redundant_us, Check::unknown("fault", "interrupted between two restarts"));
        }
        let master = info(&mut node.connect()?, "replication")?.get("role") == Some("master");
        if master && fail_over {
            observer.say("drill", &format!("failover of {}", node.name()));
            // It stays so: the next restart finds it a replica.
            failover.inject(lab, Some(node.name()), None)?.forget();
        }
        observer.say("drill", &format!("restart of {}", node.name()));
        let pid = node.pid();
        restart.inject(lab, Some(node.name()), None)?;
        if node.pid() == pid {
            return Err(Error::NotRestarted(node.name().into()));
        }
        // The observer first has to see that it was gone.
        let restarted = Instant::now();
        std::thread::sleep(Duration::from_millis(200));
        let whole = wait_for("full redundancy after a restart", Duration::from_secs(60), || {
            Ok(interrupted() || observer.redundant(ground.nodes.len(), ground.masters))
        });
        redundant_us = redundant_us.max(restarted.elapsed().as_micros() as u64);
        if whole.is_err() {
            let text = format!("a minute after the restart of {}, a shard still lacks its replicas", node.name());
            return over(redundant_us, Check::of("redundant", false, text));
        }
    }
    over(redundant_us, Check::of("fault", true, "rolling_restart: every server has a new process"))
}

/// A fault of somebody else's deployment, by its own commands. Whom it stops for a while, if anybody.
fn foreign(ground: &Ground, name: &str, lasts: Duration) -> Result<Option<String>, Error> {
    let options = Options { tls: ground.tls.clone(), ..Options::default() };
    match (name, ground.way) {
        ("none", _) => Ok(None),
        ("hang", _) => {
            let first = ground.shards(0)?.into_iter().next().ok_or(Unfit::NoShard)?;
            let node = &ground.nodes[first.master];
            let mut c = node.beside(&options)?;
            c.send(&["DEBUG", "SLEEP", &lasts.as_secs_f64().to_string()])?;
            // Refused at once, or no word before it is over.
            match c.receive(Duration::from_millis(500)) {
                Ok(Value::Error(said)) => Err(Unfit::NoDebugSleep { node: node.name.clone(), said }.into()),
                _ => Ok(Some(node.name.clone())),
            }
        }
        ("failover", Way::Sentinel) => {
            let sentinel = ground.sentinels.first().ok_or(Unfit::NoSentinel)?;
            sentinel.beside(&options)?.call(&["SENTINEL", "FAILOVER", &ground.service])?;
            Ok(None)
        }
        ("failover", Way::Cluster) => {
            for node in &ground.nodes {
                // One that is down does not take over.
                let Ok(mut c) = node.beside(&options) else { continue };
                let Ok(now) = view(&mut c) else { continue };
                let follows = now.myself().and_then(|me| me.master_id.clone());
                let first = now.masters().filter(|m| !m.slots.is_empty()).min_by_key(|m| ground.at(&m.address));
                if follows.is_some() && follows == first.map(|m| m.id.clone()) {
                    c.call(&["CLUSTER", "FAILOVER"])?;
                    return Ok(None);
                }
            }
            Err(Unfit::NoReplica.into())
        }
        ("failover", Way::Alone) => Err(Unfit::NoFailover.into()),
        _ => Err(Unfit::LabOnly { fault: name.into(), others: &FOREIGN }.into()),
    }
}

/// Facts as the doctor takes them, beside the history. A look that fails is no reason to stop.
fn facts(how: &How, folder: &Folder, ground: &Ground, when: &str) {
    let Some(node) = ground.nodes.last().filter(|_| how.facts) else { return };
    let second = Duration::from_secs(1);
    let tls = ground.tls.clone();
    let options = Options { connect_timeout: second, command_timeout: second, tls, ..Options::default() };
    if let Ok(found) = unslow_client::discover(&node.target, &options) {
        let settings = unslow_probe::Settings {
            window: Duration::from_millis(500),
            options,
            show_keys: false,
            host: false,
            hosts: Vec::new(),
            url: node.target.url(),
            stop: None,
        };
        let seen = unslow_probe::run(&found, &settings);
        if let Ok(text) = serde_json::to_string(&seen) {
            let _ = folder.keep(&format!("facts-{when}.json"), &text);
        }
    }
}

fn measure(history: &History, played: &Played, events: &[Event]) -> Figures {
    let from = played.from_us;
    let all = windows(history, from, played.ended_us);
    // The shard that was hit is the one whose clients waited longest; it is the first unless the drill said otherwise.
    let follows = || all.iter().filter(|w| w.model == Model::Follows);
    let worst = follows().max_by_key(|w| w.length_us).map(|w| w.shard).unwrap_or(0);
    let longest = |same: bool| follows().filter(|w| (w.shard == worst) == same).map(|w| w.length_us).max().unwrap_or(0);
    Figures {
        fault_from_us: from,
        fault_until_us: played.until_us,
        promoted_after_us: promoted(events, from).map(|at| at - from),
        window_us_max: longest(true),
        other_shards_window_us_max: longest(false),
        window_open: follows().any(|w| w.shard == worst && !w.closed && w.length_us > 1_000_000),
        windows: all,
        redundant_after_us: played
            .redundant_us
            .map(|at| at.saturating_sub(played.until_us).max(played.between_us.unwrap_or(0))),
        operations: history.ops.len() as u64,
        reads: reads(history, Model::Follows).0,
        reads_stays: reads(history, Model::Stays).0,
        reads_replicas: reads(history, Model::ReadsReplicas).0,
        ..Figures::default()
    }
}

fn told(op: &Op) -> String {
    serde_json::to_string(op).unwrap_or_default()
}

/// A check that passed because there was nothing to look at is unknown.
fn known(check: Check, seen: u64, why: &str) -> Check {
    if seen == 0 && check.verdict == Verdict::Passed { Check::unknown(&check.name, why) } else { check }
}

fn of_writes(plan: &Plan, figures: &Figures, lost: &[Op], lost_stays: &[Op], at_once: &[String]) -> Vec<Check> {
    let mut checks = Vec::new();
    let shown = |lost: &[Op]| lost.iter().take(5).map(told).collect::<Vec<_>>();
    let expect = &plan.expect;
    let both = [
        ("lost_writes", expect.lost_writes, &figures.writes, lost),
        ("lost_writes_stays", expect.lost_writes_stays, &figures.writes_stays, lost_stays),
    ];
    for (name, most, seen, lost) in both {
        if let Some(most) = most {
            let text = format!(
                "{} of {} acknowledged writes lost; at most {most} were expected",
                seen.lost, seen.acknowledged
            );
            let why = if seen.lost > 0 { at_once } else { &[] };
            let evidence = why.iter().cloned().chain(shown(lost)).collect();
            let check = Check::of(name, seen.lost <= most, text).because(evidence);
            checks.push(known(check, seen.acknowledged, "no write was acknowledged"));
        }
        // These hold whatever a drill expects.
        let text = format!(
            "{} writes are there although they were refused, {} although no client ever wrote them",
            seen.refused_and_there, seen.invented
        );
        if seen.refused_and_there + seen.invented > 0 {
            checks.push(Check::of(name, false, text));
        }
    }
    if let Some(least) = expect.lost_writes_at_least {
        let all = figures.writes.lost + figures.writes_stays.lost;
        let text = format!("{all} acknowledged writes lost; at least {least} were expected");
        checks.push(Check::of("lost_writes_at_least", all >= least, text));
    }
    if let Some(bound) = expect.lost_within {
        let (limit, most) = (figures.fault_from_us + bound.as_micros() as u64, expect.lost_later.unwrap_or(0));
        let late: Vec<Op> = lost.iter().chain(lost_stays).filter(|op| op.ended_us > limit).copied().collect();
        let text = format!(
            "{} writes lost that were acknowledged more than {} after the fault began; at most {most} were expected",
            late.len(),
            time(bound)
        );
        let all = figures.writes.acknowledged + figures.writes_stays.acknowledged;
        let check = Check::of("lost_within", late.len() as u64 <= most, text).because(shown(&late));
        checks.push(known(check, all, "no write was acknowledged"));
    }
    checks
}

fn judge(plan: &Plan, history: &History, figures: &mut Figures, played: &Played) -> Vec<Check> {
    let expect = &plan.expect;
    let mut checks = Vec::new();
    if let Some(most) = expect.window {
        let most = most.as_micros() as u64;
        let open = figures.windows.iter().any(|w| w.model == Model::Follows && !w.closed && w.length_us > most);
        let text = format!(
            "clients that follow had no answer for up to {}{}; {} was allowed",
            time_us(figures.window_us_max as f64),
            if open { ", and still had none at the end" } else { "" },
            time_us(most as f64)
        );
        let check = Check::of("window", figures.window_us_max <= most, text);
        let seen = figures.windows.iter().filter(|w| w.model == Model::Follows).count() as u64;
        checks.push(known(check, seen, "no client that follows was seen"));
    }
    let mut wrong = Vec::new();
    for (register, ops) in linearizable::registers(history) {
        figures.registers.checked += 1;
        figures.registers.operations += ops.len() as u64;
        match linearizable::check(&ops, linearizable::STATES_MAX) {
            Answer::Yes => {}
            Answer::GaveUp => figures.registers.unknown += 1,
            Answer::No(shown) => {
                figures.registers.wrong += 1;
                wrong.push(format!("register {register}:"));
                wrong.extend(shown.iter().map(told));
            }
        }
    }
    let seen = &figures.registers;
    if expect.linearizable == Some(true) {
        let text = format!("{} of {} registers are not linearizable", seen.wrong, seen.checked);
        checks.push(if seen.wrong == 0 && (seen.unknown > 0 || seen.checked == 0) {
            Check::unknown(
                "linearizable",
                format!("{} of {} registers were too hard to judge", seen.unknown, seen.checked),
            )
        } else {
            Check::of("linearizable", seen.wrong == 0, text).because(wrong)
        });
    } else if seen.wrong > 0 {
        checks.push(
            Check::of(
                "registers",
                true,
                format!("{} of {} registers are not linearizable (reported, not judged)", seen.wrong, seen.checked),
            )
            .because(wrong),
        );
    }
    let from_replicas = &figures.reads_replicas;
    if let Some(most) = expect.stale {
        let text = format!(
            "reads from replicas were up to {} stale; {} was allowed",
            time_us(from_replicas.stale_us_max as f64),
            time(most)
        );
        let check = Check::of("stale", from_replicas.stale_us_max <= most.as_micros() as u64, text);
        checks.push(known(check, from_replicas.answered, "no replica answered a read"));
    }
    if let Some(most) = expect.time_travel {
        let text = format!(
            "{} reads returned an older state than an earlier read by the same client; at most {most} were expected",
            from_replicas.time_travel
        );
        let check = Check::of("time_travel", from_replicas.time_travel <= most, text);
        checks.push(known(check, from_replicas.answered, "no replica answered a read"));
    }
    if plan.load.kind == Kind::Locks {
        let (seen, pairs) = locks(history);
        if let Some(most) = expect.double_holders {
            let text = format!(
                "two clients held a lock at once {} times, of {} times it was taken; at most {most} were expected",
                seen.double_holders, seen.taken
            );
            let shown = pairs.iter().take(3).flat_map(|(a, b)| [told(a), told(b)]).collect();
            let check = Check::of("double_holders", seen.double_holders <= most, text).because(shown);
            checks.push(known(check, seen.taken, "no client ever got a lock"));
        }
        if let Some(most) = expect.late_uses_taken {
            let taken = seen.late_uses - seen.late_uses_fenced;
            let text = format!(
                "{taken} of {} uses after the holder's time had run out were accepted; at most {most} were expected",
                seen.late_uses
            );
            let check = Check::of("late_uses_taken", taken <= most, text);
            checks.push(known(check, seen.late_uses, "no client used the resource late"));
        }
        figures.locks = Some(seen);
    }
    if let Some(most) = expect.redundant {
        checks.push(match figures.redundant_after_us {
            Some(us) => Check::of(
                "redundant",
                us <= most.as_micros() as u64,
                format!(
                    "every shard had its replicas again {} after the fault; {} was allowed",
                    time_us(us as f64),
                    time(most)
                ),
            ),
            None if interrupted() => Check::unknown("redundant", "interrupted before it could be seen"),
            None if !played.redundant_before => Check::unknown(
                "redundant",
                "the observer never saw every shard with its replicas, not even before the fault",
            ),
            None => Check::of("redundant", false, "a minute after the fault, a shard still lacks its replicas"),
        });
    }
    checks
}
