//! One fault, and every client at once: they are started, the fault is injected and healed, and each is judged.

use std::path::Path;
use std::time::{Duration, Instant};

use unslow_engine::Server;

use super::drivers::{self, Prepared, names};
use super::{Document, Driver, During, FIRST_ANSWER, STARTS, Seen};
use super::{begin, judge, keys, last_words, missing, unix_us};
use crate::error::{Error, Unfit};
use crate::run::{How, interrupted};
use crate::spec::{Drill, Plan};
use crate::stage::{self, Answered, Hosts, Stage, Struck, Variation, Workload, sleep_until};
use crate::store::Folder;

/// What is tried.
pub(super) struct Trial<'a> {
    pub drill: &'a Drill,
    /// The drill's variant, and its plan.
    pub label: &'a str,
    pub plan: &'a Plan,
    pub fault: &'a str,
    /// Only these clients; all of them if empty.
    pub only: &'a [String],
    pub how: &'a How,
    /// The released binary, for the models of `unslow bench`.
    pub binary: &'a Path,
}

/// Clients that can be started, by name.
type Ready = Vec<(String, Prepared)>;

/// A fault from its beginning until the last answer that is counted.
struct Window {
    from_us: u64,
    until_us: u64,
    /// What could not be undone is tried again when this is dropped, after the clients are judged.
    _struck: Struck,
}

impl Trial<'_> {
    /// Runs it. What is found is added to the document, and the evidence is kept in a folder.
    pub fn run(&self, document: &mut Document, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let fault = self.fault;
        let folder = Folder::make(&self.how.store, &self.drill.name, &format!("{fault}-{}", self.label))?;
        folder.keep("drill.toml", &self.drill.text)?;
        document.folders.push(folder.path().display().to_string());
        let topology = self.plan.topology.clone().ok_or(Unfit::NoLab)?;
        let Some((ready, absent)) = self.prepare(progress) else {
            document.unknown.push(format!("interrupted before {fault}"));
            return Ok(());
        };
        progress(&format!("{fault}: bringing the lab up"));
        let variation = Variation { seed: self.how.seed, engine: self.how.engine.as_deref() };
        let stage = Stage::raise(topology, Hosts::Wired, variation, &[])?;
        document.engine = stage.engine();
        let starter = Starter::new(self, &stage, &folder)?;
        let (models, libraries): (Ready, Ready) = ready.into_iter().partition(|(name, _)| name.starts_with("bench"));
        document.clients.extend(absent);
        let running = starter.start_all(&libraries, &mut document.clients);
        progress(&format!("{fault}: waiting for every client to get through"));
        let (begun, starts) = (Instant::now(), 1);
        let libraries = Libraries { starter: &starter, ready: &libraries, running, begun, starts };
        let scene = |libraries: &mut Libraries<'_>, _| -> Result<(), Error> {
            document.clients.extend(libraries.leave_out_the_silent());
            // These run for a fixed time: from now on.
            let benches = starter.start_all(&models, &mut document.clients);
            if interrupted() {
                return Ok(());
            }
            let Some(window) = self.break_and_heal(&stage, &libraries.running, document, progress)? else {
                document.unknown.push(format!("interrupted before {fault}"));
                return Ok(());
            };
            self.judge_libraries(&mut libraries.running, &window, &folder, &mut document.clients)?;
            self.judge_models(benches, &folder, &mut document.clients, progress);
            let text = serde_json::to_string_pretty(&document.clients).map_err(Error::Json)?;
            folder.keep("clients.json", &text)
        };
        let (played, ()) = stage::play(libraries, FIRST_ANSWER, scene);
        played
    }

    /// Clients that can be started, and those that cannot; `None` if interrupted.
    fn prepare(&self, progress: &mut dyn FnMut(&str)) -> Option<(Ready, Vec<Seen>)> {
        let (fault, only) = (self.fault, self.only);
        let (mut ready, mut absent) = (Vec::new(), Vec::new());
        for name in names().into_iter().filter(|n| only.is_empty() || only.iter().any(|o| o == n)) {
            progress(&format!("{fault}: preparing {name} and its library"));
            let prepared = drivers::prepare(name, self.binary);
            if interrupted() {
                return None;
            }
            match prepared {
                Ok(prepared) => ready.push((name.to_string(), prepared)),
                Err(why) => absent.push(missing(name, fault, why.to_string())),
            }
        }
        Some((ready, absent))
    }

    /// Waits for the fault's time, injects it, heals it, and waits for the end; `None` if interrupted before it.
    fn break_and_heal(
        &self,
        stage: &Stage,
        running: &[Driver],
        document: &mut Document,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<Window>, Error> {
        let (fault, plan) = (self.fault, self.plan);
        let clock = Instant::now();
        let spec = plan.faults.first().ok_or(Unfit::NoFault)?;
        progress(&format!("{fault}: before"));
        if !sleep_until(clock + spec.at) {
            return Ok(None);
        }
        // What came before was every client's start.
        for driver in running {
            driver.told.lock().unwrap_or_else(|e| e.into_inner()).retain(|o| o.ended_us + 1_000_000 > unix_us());
        }
        progress(&format!("{fault}: now"));
        let from_us = unix_us();
        let mut struck = stage.strike(fault, spec.who.as_deref(), spec.value.as_deref())?;
        if let Err(found) = struck.holds(&stage.lab) {
            document.unknown.push(format!("{fault} was not active at the start: {found}"));
        }
        sleep_until(clock + spec.at + spec.lasts.unwrap_or_default());
        if let Err(found) = struck.holds(&stage.lab) {
            document.unknown.push(format!("{fault} was not active at the end: {found}"));
        }
        let undone = struck.heal().map_err(|e| e.to_string());
        if let Err(found) = undone.and_then(|()| struck.is_over(&stage.lab).map_err(|e| e.to_string())) {
            document.unknown.push(format!("{fault} could not be undone: {found}"));
        }
        let healed_us = unix_us();
        progress(&format!("{fault}: after"));
        sleep_until(clock + plan.end() + plan.after);
        let until_us = unix_us();
        if interrupted() {
            document.unknown.push(format!("interrupted during {fault}: its figures end there"));
        }
        document.faults.push(During {
            fault: fault.into(),
            lasted_us: healed_us.saturating_sub(from_us),
            watched_us: until_us.saturating_sub(from_us),
        });
        Ok(Some(Window { from_us, until_us, _struck: struck }))
    }

    /// Judges each driver that still runs, and keeps what every driver reported.
    fn judge_libraries(
        &self,
        running: &mut [Driver],
        window: &Window,
        folder: &Folder,
        clients: &mut Vec<Seen>,
    ) -> Result<(), Error> {
        for driver in running {
            let ended = !driver.process.running();
            clients.push(if ended {
                let why = format!("its driver exited during the run; {}", last_words(folder, &driver.name));
                missing(&driver.name, self.fault, why)
            } else {
                judge(driver, self.fault, window.from_us, window.until_us)
            });
            let told = driver.told.lock().unwrap_or_else(|e| e.into_inner());
            let lines: String = told
                .iter()
                .map(|o| {
                    let outcome = o.outcome.as_deref().unwrap_or("ok");
                    format!("{} {} {} {outcome}\n", o.ended_us, o.latency_us, o.thread)
                })
                .collect();
            folder.keep(&format!("{}.txt", driver.name), &lines)?;
        }
        Ok(())
    }

    /// Waits for the models of `unslow bench`, which report at their end.
    fn judge_models(
        &self,
        benches: Vec<Driver>,
        folder: &Folder,
        clients: &mut Vec<Seen>,
        progress: &mut dyn FnMut(&str),
    ) {
        for mut bench in benches {
            progress(&format!("{}: {}", self.fault, bench.name));
            while !interrupted() && bench.process.running() {
                std::thread::sleep(Duration::from_millis(20));
            }
            clients.push(drivers::bench_seen(&bench.name, self.fault, folder));
        }
    }
}

/// Whether a driver had an answer of the shard that will be hit.
fn through(driver: &Driver) -> bool {
    driver.told.lock().is_ok_and(|t| t.iter().any(|o| o.hit && o.outcome.is_none()))
}

/// Starts clients in the lab.
struct Starter<'a> {
    plan: &'a Plan,
    fault: &'a str,
    stage: &'a Stage,
    folder: &'a Folder,
    /// The node that clients connect to first.
    seed: &'a Server,
    keys: [String; 2],
}

impl<'a> Starter<'a> {
    fn new(trial: &Trial<'a>, stage: &'a Stage, folder: &'a Folder) -> Result<Self, Error> {
        // A node that no fault of this drill hits.
        let seed = stage.lab.deployment.nodes.get(1).ok_or(Unfit::NoCluster)?;
        let (hit, other) = keys();
        Ok(Starter { plan: trial.plan, fault: trial.fault, stage, folder, seed, keys: [hit, other] })
    }

    fn start(&self, name: &str, prepared: &Prepared) -> Result<Driver, Error> {
        let command = prepared.command(&drivers::Facts {
            host: self.seed.ip.clone(),
            port: self.seed.port,
            threads: self.plan.load.follows,
            rate_per_s: self.plan.load.rate_per_s,
            timeout: self.plan.load.timeout,
            keys: self.keys.clone(),
            length: self.plan.end() + self.plan.after + Duration::from_secs(5),
        });
        begin(&self.stage.lab, name, command, self.folder)
    }

    /// Starts them all; those that cannot be started are added to `clients` as missing.
    fn start_all(&self, all: &[(String, Prepared)], clients: &mut Vec<Seen>) -> Vec<Driver> {
        let mut running = Vec::new();
        for (name, prepared) in all {
            match self.start(name, prepared) {
                Ok(driver) => running.push(driver),
                Err(why) => clients.push(missing(name, self.fault, why.to_string())),
            }
        }
        running
    }
}

/// Drivers of libraries, while they work.
struct Libraries<'a> {
    starter: &'a Starter<'a>,
    ready: &'a [(String, Prepared)],
    running: Vec<Driver>,
    begun: Instant,
    /// How often one was started, the first time of all of them counted once.
    starts: u32,
}

impl Libraries<'_> {
    /// Ends those that had no answer, and says why each is missing.
    fn leave_out_the_silent(&mut self) -> Vec<Seen> {
        let mut missed = Vec::new();
        let (seconds, starts) = (self.begun.elapsed().as_secs(), self.starts);
        let Starter { fault, folder, .. } = *self.starter;
        self.running.retain(|driver| {
            let there = through(driver);
            if !there {
                let said = last_words(folder, &driver.name);
                let why = format!("no answer within {seconds} s and {starts} client starts; {said}");
                missed.push(missing(&driver.name, fault, why));
            }
            there
        });
        missed
    }
}

impl Workload for Libraries<'_> {
    type Seen = ();

    /// Libraries give up a first connection after the command timeout, which is short for a machine that starts several
    /// of them: a client that ended before its first answer is started again, a few times.
    fn answered(&mut self) -> Answered {
        let had = self.running.iter().filter(|d| through(d)).count();
        let all = self.running.len();
        let ended = |d: &mut Driver| !through(d) && d.process.0.try_wait().is_ok_and(|ended| ended.is_some());
        if let Some(driver) = self.running.iter_mut().find_map(|d| ended(d).then_some(d)) {
            if self.starts == STARTS {
                return Answered { had, wanted: had, all };
            }
            let ready = self.ready.iter().find(|(name, _)| *name == driver.name);
            if let Some(Ok(new)) = ready.map(|(name, prepared)| self.starter.start(name, prepared)) {
                *driver = new;
            }
            self.starts += 1;
        }
        Answered::each(had, all)
    }

    /// Each ends with its driver.
    fn end(self) {}
}
