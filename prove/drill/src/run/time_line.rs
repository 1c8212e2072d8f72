//! The time line of a run: what is done to a deployment under load, when, and until when.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use unslow_client::Options;
use unslow_lab::lab::Lab;

use super::begin::{Begun, begin, proved};
use super::{How, interrupted};
use crate::caller::Run;
use crate::check::{Check, CheckId};
use crate::error::Error;
use crate::ground::Ground;
use crate::observe::Observer;
use crate::spec::{FaultSpec, Kind, Plan};
use crate::store::Folder;
use crate::verify::Struck;

/// Before a fault is due within this time of another, there is no time for a look at the deployment.
const CALM: Duration = Duration::from_secs(2);

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

/// A deployment under load, and what is to be done to it.
pub struct Stage<'a, 'r> {
    pub plan: &'a Plan,
    pub fault: &'a str,
    pub how: &'a How,
    pub folder: &'a Folder,
    pub ground: &'a Ground,
    pub run: &'a Run<'r>,
    pub observer: &'a Observer,
    pub progress: &'a mut dyn FnMut(&str),
    pub played: Played,
}

/// Something the time line does with a fault of the plan.
#[derive(Clone, Copy)]
enum Act {
    Begin(usize),
    End(usize),
}

/// When, from the time line's beginning on, and what; in order.
fn acts(plan: &Plan) -> Vec<(Duration, Act)> {
    let mut acts: Vec<(Duration, Act)> = Vec::new();
    for (i, spec) in plan.faults.iter().enumerate() {
        acts.push((spec.at, Act::Begin(i)));
        acts.extend(spec.lasts.map(|lasts| (spec.at + lasts, Act::End(i))));
    }
    acts.sort_by_key(|(at, _)| *at);
    acts
}

/// Which fault a place of the plan is about: the one of its alternatives that was chosen, else its first.
pub fn name_in<'a>(spec: &'a FaultSpec, fault: &'a str) -> &'a str {
    if spec.names().iter().any(|n| n == fault) { fault } else { &spec.names()[0] }
}

/// Sleeps until a moment; `false` when somebody ended the run.
pub fn sleep_until(at: Instant) -> bool {
    while Instant::now() < at {
        if interrupted() {
            return false;
        }
        std::thread::sleep(at.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
    }
    !interrupted()
}

impl Stage<'_, '_> {
    /// Plays it against a lab, or against a deployment of the user's.
    pub fn play(mut self, lab: Option<&Lab>) -> Result<Played, Error> {
        if !self.everyone_gets_through() {
            return Ok(self.played);
        }
        self.look_at_redundancy();
        self.facts("before");
        match lab {
            Some(lab) => self.play_in(lab)?,
            None => self.play_on_foreign()?,
        }
        Ok(self.played)
    }

    pub(super) fn check(&mut self, check: Check) {
        self.played.checks.push(check);
    }

    pub(super) fn say(&mut self, what: &str) {
        (self.progress)(what);
    }

    fn is_redundant(&self) -> bool {
        self.observer.redundant(self.ground.nodes.len(), self.ground.masters)
    }

    /// Waits until each client has had an answer. Whether they have.
    fn everyone_gets_through(&mut self) -> bool {
        self.say("waiting for every client to get through");
        let all = self.run.progress.len();
        let through = |run: &Run| run.progress.iter().filter(|p| p.load(Ordering::Relaxed) > 0).count();
        let deadline = Instant::now() + Duration::from_secs(20);
        // Locks are taken by one at a time: somebody is enough.
        let wanted = if self.plan.load.kind == Kind::Locks { 1 } else { all };
        while through(self.run) < wanted && Instant::now() < deadline && !interrupted() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let now = through(self.run);
        if now < wanted {
            let text = format!("{now} of {all} clients had an answer within 20 s");
            self.check(Check::unknown(CheckId::Load, text));
            return false;
        }
        self.observer.note("every client gets through");
        true
    }

    fn look_at_redundancy(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while !self.is_redundant() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.played.redundant_before = self.is_redundant();
    }

    /// The faults of the plan in a lab. Whatever happens, each that was begun is ended.
    fn play_in(&mut self, lab: &Lab) -> Result<(), Error> {
        let start_us = self.run.now_us();
        let mut started: BTreeMap<usize, Box<Struck>> = BTreeMap::new();
        let mut result = self.play_acts(lab, &mut started);
        // What has no end of its own lasts until here.
        if result.is_ok() && !started.is_empty() {
            sleep_until(Instant::now() + self.plan.after);
        }
        // Last in, first out.
        while let Some((i, fault)) = started.pop_last() {
            let ended = self.end(lab, self.name_of(i), fault, result.is_ok());
            result = result.and(ended);
        }
        result?;
        if self.plan.faults.is_empty() {
            sleep_until(Instant::now() + self.plan.after);
            (self.played.from_us, self.played.until_us) = (start_us, self.run.now_us());
        } else if self.played.from_us == 0 {
            self.check(Check::unknown(CheckId::Fault, "no fault was active"));
        }
        self.aftermath();
        self.facts("after");
        Ok(())
    }

    /// Begins and ends faults at their times, up to the first error or the end that a signal asks for.
    fn play_acts(&mut self, lab: &Lab, started: &mut BTreeMap<usize, Box<Struck>>) -> Result<(), Error> {
        let clock = Instant::now();
        let acts = acts(self.plan);
        let mut shift = Duration::ZERO;
        for (i, (at, act)) in acts.iter().enumerate() {
            let calm = acts.get(i + 1).is_none_or(|(next, _)| *next >= *at + CALM);
            if !sleep_until(clock + *at + shift) {
                break;
            }
            match act {
                Act::Begin(fault) => {
                    let before = Instant::now();
                    let begun = self.begin(lab, *fault, calm);
                    // A failover takes its time; the rest of the time line waits for it.
                    shift += before.elapsed().saturating_sub(Duration::from_millis(500));
                    started.extend(begun?.map(|begun| (*fault, begun)));
                }
                Act::End(fault) => {
                    if let Some(ending) = started.remove(fault) {
                        self.end(lab, self.name_of(*fault), ending, true)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn name_of(&self, fault: usize) -> String {
        name_in(&self.plan.faults[fault], self.fault).to_string()
    }

    /// Begins a fault of the plan; `None` where it is over already.
    fn begin(&mut self, lab: &Lab, fault: usize, calm: bool) -> Result<Option<Box<Struck>>, Error> {
        let (spec, name) = (&self.plan.faults[fault], self.name_of(fault));
        self.say(&format!("{name} {}", spec.who.as_deref().unwrap_or_default()));
        let before_us = self.run.now_us();
        match begin(lab, &name, spec, self.observer, self.ground)? {
            Begun::On(struck) => {
                let now = self.run.now_us();
                self.played.from_us = if self.played.from_us == 0 { now } else { self.played.from_us };
                self.observer.note(&format!("{name}: {}", struck.subject()));
                self.check(proved(&struck, lab, &name, "at the start"));
                if calm {
                    self.facts("during");
                }
                Ok(Some(struck))
            }
            Begun::Over { redundant_us, checks } => {
                self.played.checks.extend(checks);
                self.played.between_us = Some(redundant_us);
                self.played.from_us = if self.played.from_us == 0 { before_us } else { self.played.from_us };
                self.played.until_us = self.run.now_us();
                Ok(None)
            }
        }
    }

    /// Ends a fault. Where the run `looks`, also says whether it was at work until then, and whether it is gone: a run
    /// that failed has nothing to prove.
    fn end(&mut self, lab: &Lab, name: String, mut struck: Box<Struck>, looks: bool) -> Result<(), Error> {
        if looks {
            self.check(proved(&struck, lab, &name, "at the end"));
        }
        self.played.until_us = self.run.now_us();
        self.observer.note(&format!("{name} ends"));
        // Nothing more is done to a lab that cannot be put back, and nothing is judged in it.
        struck.heal()?;
        if looks && let Err(found) = struck.is_over(lab) {
            self.check(Check::unknown(CheckId::Fault, format!("{name} could not be undone: {found}")));
        }
        Ok(())
    }

    /// From the end of the fault until everything is as it was, and a little longer.
    pub(super) fn aftermath(&mut self) {
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
        let Some(node) = self.ground.nodes.last().filter(|_| self.how.facts) else { return };
        let second = Duration::from_secs(1);
        let tls = self.ground.tls.clone();
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
