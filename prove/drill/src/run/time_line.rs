//! The time line of a run: what is done to a deployment under load, when, and until when.

use std::time::{Duration, Instant};

use unslow_client::Options;

use super::{How, interrupted};
use crate::caller::Run;
use crate::check::{Check, CheckId};
use crate::error::Error;
use crate::observe::Observer;
use crate::places::Places;
use crate::spec::Plan;
use crate::stage::{Answered, PATIENCE, sleep_until};
use crate::store::Folder;

/// What the time line left to be judged.
#[derive(Default)]
pub struct Played {
    pub checks: Vec<Check>,
    pub from_us: u64,
    pub until_us: u64,
    pub redundant_us: Option<u64>,
    /// Whether it was so before the fault, as far as the observer could see.
    pub redundant_before: bool,
    /// When the clients were told to stop.
    pub ended_us: u64,
    /// From a restart until everything was redundant again, where there were several: the longest.
    pub between_us: Option<u64>,
}

/// Where a drill takes place: what is done to the deployment there, and how.
pub trait Ground {
    /// Its servers, and where clients run.
    fn places(&self) -> &Places;

    /// What it runs, for the report.
    fn engine(&self) -> String;

    /// Whether what the clients wrote must be deleted: the deployment outlives the run.
    fn outlives_the_run(&self) -> bool;

    /// Does the faults and proves that they were at work. Whatever happens, each that was begun is ended, or ends by
    /// itself.
    fn strike(&self, line: &mut TimeLine<'_, '_>) -> Result<Faults, Error>;
}

/// How far a [`Ground`] came with its faults.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// All of them are over.
    Over,
    /// A signal came before the first.
    NotBegun,
}

/// What is to be done to a deployment under load.
pub struct TimeLine<'a, 'r> {
    pub plan: &'a Plan,
    pub fault: &'a str,
    pub how: &'a How,
    pub folder: &'a Folder,
    pub places: &'a Places,
    pub run: &'a Run<'r>,
    pub observer: &'a Observer,
    pub progress: &'a mut dyn FnMut(&str),
    pub played: Played,
}

impl TimeLine<'_, '_> {
    /// Once the deployment serves its clients, has the ground do its faults and sees how it ends.
    pub fn play(mut self, ground: &dyn Ground, answered: Answered) -> Result<Played, Error> {
        if let Err(found) = answered.enough(PATIENCE) {
            self.check(Check::unknown(CheckId::Load, found.to_string()));
            return Ok(self.played);
        }
        self.observer.note("every client gets through");
        self.look_at_redundancy();
        self.facts("before");
        if ground.strike(&mut self)? == Faults::Over {
            self.aftermath();
            self.facts("after");
        }
        Ok(self.played)
    }

    pub(super) fn check(&mut self, check: Check) {
        self.played.checks.push(check);
    }

    pub(super) fn say(&mut self, what: &str) {
        (self.progress)(what);
    }

    pub(super) fn is_redundant(&self) -> bool {
        self.observer.redundant(self.places.nodes.len(), self.places.masters)
    }

    fn look_at_redundancy(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while !self.is_redundant() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.played.redundant_before = self.is_redundant();
    }

    /// From the end of the fault until everything is as it was, and a little longer.
    fn aftermath(&mut self) {
        self.say("waiting for full redundancy");
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline && !interrupted() {
            if self.is_redundant() {
                self.played.redundant_us = Some(self.run.now_us());
                self.observer.note("every shard has its master and its replicas");
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.played.redundant_us.is_none() && !interrupted() {
            let text = "a minute after the fault, a shard still lacks its master or its replicas";
            self.check(Check::unknown(CheckId::Redundancy, text));
        }
        sleep_until(Instant::now() + self.plan.after);
        if interrupted() {
            self.check(Check::unknown(CheckId::Load, "interrupted: what was seen so far is kept"));
        }
    }

    /// Facts as the doctor takes them, beside the history. A look that fails is no reason to stop.
    pub(super) fn facts(&self, when: &str) {
        let Some(node) = self.places.nodes.last().filter(|_| self.how.facts) else { return };
        let second = Duration::from_secs(1);
        let tls = self.places.tls.clone();
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
                let _ = self.folder.keep(&format!("facts-{when}.json"), &text);
            }
        }
    }
}
