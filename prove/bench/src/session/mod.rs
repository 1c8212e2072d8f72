//! From settings to a report: look at the deployment, fit the workload to it, preload, run, collect, judge.

mod collect;
mod judge;
mod keys;
mod prepare;
mod room;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
pub use keys::{Held, Removed};
use unslow_interrupt::Guard;
use unslow_topology::Topology;

use crate::error::Error;
use crate::report::{Deployment, Event, Load, Recorded, Report, Run, SCHEMA, Second};
use crate::route::look;
use crate::settings::Settings;
use crate::workload::Workload;

/// What an observer is told while a run goes on.
pub enum Progress<'a> {
    /// Keys are written before the run.
    Preload {
        /// So far.
        done: u64,
        /// In all.
        total: u64,
    },
    /// A second is over: what it was like, and the latency of its requests in nanoseconds.
    Second(&'a Second, &'a Histogram<u64>),
    /// Something happened.
    Event(&'a Event),
}

/// A deployment and a workload that fit each other. While it lives, a signal ends the run that is going on: its results
/// so far, and those of the runs before it, are still reported.
pub struct Session {
    guard: Guard,
    settings: Settings,
    workload: Arc<Workload>,
    topology: Topology,
    version: String,
    at_ms: u64,
    load: Load,
    preloaded: u64,
    /// Whether any of the workload was sent.
    has_sent: bool,
    runs: u32,
}

fn guarded() -> Guard {
    unslow_interrupt::guard(
        "ending the run; its results so far follow (Ctrl-C again: nothing follows, and keys that it wrote stay)",
    )
}

impl Session {
    /// Of a server whose version is not known, before anything was sent.
    fn new(settings: Settings, workload: Workload, topology: Topology, load: Load) -> Session {
        Session {
            guard: guarded(),
            settings,
            workload: Arc::new(workload),
            topology,
            version: String::new(),
            at_ms: 0,
            load,
            preloaded: 0,
            has_sent: false,
            runs: 0,
        }
    }

    /// Whether it was asked to end: no further run should begin.
    pub fn asked_to_end(&self) -> bool {
        self.guard.asked()
    }

    /// Setting it ends this session's run as a signal does.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.guard.flag()
    }

    /// One run, and the latency of all its requests in nanoseconds.
    pub fn run(&mut self, observer: &mut dyn FnMut(Progress)) -> Result<(Run, Histogram<u64>), Error> {
        if self.at_ms == 0 {
            self.at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        }
        // Masters may be others than before the last run.
        if self.runs > 0
            && !self.settings.plain
            && let Ok(topology) = look(&self.settings.target, &self.settings.options)
        {
            self.topology = topology;
        }
        self.runs += 1;
        self.has_sent = true;
        self.run_once(observer)
    }

    /// A short run that is thrown away: what is cold, on both sides, gets warm. What is to be sent once is not sent
    /// for that.
    pub fn warm_up(&mut self) -> Result<(), Error> {
        if self.workload.recording.is_some() && !self.settings.spec.replay_loop {
            return Ok(());
        }
        let settings = Settings {
            length: self.settings.length.min(Duration::from_secs(1)),
            requests: None,
            ..self.settings.clone()
        };
        self.has_sent = true;
        let whole = std::mem::replace(&mut self.settings, settings);
        let ran = self.run_once(&mut |_| {});
        self.settings = whole;
        ran.map(|_| ())
    }

    /// The document of these runs.
    pub fn report(&self, runs: Vec<Run>) -> Report {
        let masters = self.topology.masters().count();
        Report {
            schema: SCHEMA.into(),
            target: self.settings.target.address(),
            at_ms: self.at_ms,
            deployment: Deployment {
                kind: self.topology.kind,
                version: self.version.clone(),
                masters,
                replicas: self.topology.nodes.len() - masters,
            },
            workload: self.settings.spec.clone(),
            load: self.load.clone(),
            preloaded_keys: self.preloaded,
            recording: self
                .workload
                .recording
                .as_ref()
                .map(|r| Recorded { commands: r.commands(), left_out: r.left_out }),
            pair: None,
            runs,
        }
    }
}
