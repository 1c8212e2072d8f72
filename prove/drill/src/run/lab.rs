//! A lab of our own: every fault of the plan at its time, each proved while it is at work and after its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unslow_engine::{info, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::Lab;

use super::interrupted;
use super::time_line::{Faults, Ground, TimeLine};
use crate::check::{Check, CheckId};
use crate::error::Error;
use crate::places::Places;
use crate::spec::{FaultSpec, Plan};
use crate::stage::{Stage, Struck, sleep_until};

/// Before a fault is due within this time of another, there is no time for a look at the deployment.
const CALM: Duration = Duration::from_secs(2);

/// A lab that was brought up for the run.
pub struct InLab {
    pub stage: Stage,
    places: Places,
}

impl InLab {
    /// Looks at the lab.
    pub fn new(stage: Stage) -> Result<InLab, Error> {
        let places = Places::of_lab(&stage.lab)?;
        Ok(InLab { stage, places })
    }
}

impl Ground for InLab {
    fn places(&self) -> &Places {
        &self.places
    }

    fn engine(&self) -> String {
        self.stage.engine()
    }

    fn outlives_the_run(&self) -> bool {
        false
    }

    fn strike(&self, line: &mut TimeLine<'_, '_>) -> Result<Faults, Error> {
        let start_us = line.run.now_us();
        let mut started: BTreeMap<usize, Box<Struck>> = BTreeMap::new();
        let mut result = self.play_acts(line, &mut started);
        // What has no end of its own lasts until here.
        if result.is_ok() && !started.is_empty() {
            sleep_until(Instant::now() + line.plan.after);
        }
        // Last in, first out.
        while let Some((i, fault)) = started.pop_last() {
            let ended = self.end(line, name_of(line, i), fault, result.is_ok());
            result = result.and(ended);
        }
        result?;
        if line.plan.faults.is_empty() {
            sleep_until(Instant::now() + line.plan.after);
            (line.played.from_us, line.played.until_us) = (start_us, line.run.now_us());
        } else if line.played.from_us == 0 {
            line.check(Check::unknown(CheckId::Fault, "no fault was active"));
        }
        Ok(Faults::Over)
    }
}

impl InLab {
    /// Begins and ends faults at their times, up to the first error or the end that a signal asks for.
    fn play_acts(&self, line: &mut TimeLine<'_, '_>, started: &mut BTreeMap<usize, Box<Struck>>) -> Result<(), Error> {
        let clock = Instant::now();
        let acts = acts(line.plan);
        let mut shift = Duration::ZERO;
        for (i, (at, act)) in acts.iter().enumerate() {
            let calm = acts.get(i + 1).is_none_or(|(next, _)| *next >= *at + CALM);
            if !sleep_until(clock + *at + shift) {
                break;
            }
            match act {
                Act::Begin(fault) => {
                    let before = Instant::now();
                    let begun = self.begin(line, *fault, calm);
                    // A failover takes its time; the rest of the time line waits for it.
                    shift += before.elapsed().saturating_sub(Duration::from_millis(500));
                    started.extend(begun?.map(|begun| (*fault, begun)));
                }
                Act::End(fault) => {
                    if let Some(ending) = started.remove(fault) {
                        self.end(line, name_of(line, *fault), ending, true)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins a fault of the plan; `None` where it is over already.
    fn begin(&self, line: &mut TimeLine<'_, '_>, fault: usize, calm: bool) -> Result<Option<Box<Struck>>, Error> {
        let (spec, name) = (&line.plan.faults[fault], name_of(line, fault));
        line.say(&format!("{name} {}", spec.who.as_deref().unwrap_or_default()));
        let before_us = line.run.now_us();
        match begin(&self.stage, &name, spec, line)? {
            Begun::On(struck) => {
                let now = line.run.now_us();
                line.played.from_us = if line.played.from_us == 0 { now } else { line.played.from_us };
                line.observer.note(&format!("{name}: {}", struck.subject()));
                line.check(proved(&struck, &self.stage.lab, &name, "at the start"));
                if calm {
                    line.facts("during");
                }
                Ok(Some(struck))
            }
            Begun::Over { redundant_us, checks } => {
                line.played.checks.extend(checks);
                line.played.between_us = Some(redundant_us);
                line.played.from_us = if line.played.from_us == 0 { before_us } else { line.played.from_us };
                line.played.until_us = line.run.now_us();
                Ok(None)
            }
        }
    }

    /// Ends a fault. Where the run `looks`, also says whether it was at work until then, and whether it is gone: a run
    /// that failed has nothing to prove.
    fn end(
        &self,
        line: &mut TimeLine<'_, '_>,
        name: String,
        mut struck: Box<Struck>,
        looks: bool,
    ) -> Result<(), Error> {
        if looks {
            line.check(proved(&struck, &self.stage.lab, &name, "at the end"));
        }
        line.played.until_us = line.run.now_us();
        line.observer.note(&format!("{name} ends"));
        // Nothing more is done to a lab that cannot be put back, and nothing is judged in it.
        struck.heal()?;
        if looks && let Err(found) = struck.is_over(&self.stage.lab) {
            line.check(Check::unknown(CheckId::Fault, format!("{name} could not be undone: {found}")));
        }
        Ok(())
    }
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

fn name_of(line: &TimeLine<'_, '_>, fault: usize) -> String {
    name_in(&line.plan.faults[fault], line.fault).to_string()
}

/// Whether a fault is at work.
fn proved(struck: &Struck, lab: &Lab, name: &str, when: &str) -> Check {
    match struck.holds(lab) {
        Ok(found) => Check::of(CheckId::Fault, true, format!("{name} was active {when}: {found}")),
        Err(found) => Check::unknown(CheckId::Fault, format!("{name} was not active {when}: {found}")),
    }
}

/// A fault that was begun.
enum Begun {
    /// It is at work until it is healed.
    On(Box<Struck>),
    /// It was several, one after another, and is over.
    Over {
        /// The longest from one of them until everything was redundant again.
        redundant_us: u64,
        checks: Vec<Check>,
    },
}

/// Begins a fault.
fn begin(stage: &Stage, name: &str, spec: &FaultSpec, line: &TimeLine<'_, '_>) -> Result<Begun, Error> {
    if name == "rolling_restart" {
        return rolling_restart(&stage.lab, spec.value.as_deref() == Some("failover"), line);
    }
    stage.strike(name, spec.who.as_deref(), spec.value.as_deref()).map(|struck| Begun::On(Box::new(struck)))
}

fn rolling_restart(lab: &Lab, fail_over: bool, line: &TimeLine<'_, '_>) -> Result<Begun, Error> {
    let (restart, failover) = (faults::named("restart")?, faults::named("failover")?);
    let mut redundant_us = 0;
    let over = |redundant_us, check| Ok(Begun::Over { redundant_us, checks: vec![check] });
    for node in &lab.deployment.nodes {
        if interrupted() {
            return over(redundant_us, Check::unknown(CheckId::Fault, "interrupted between two restarts"));
        }
        let master = info(&mut node.connect()?, "replication")?.get("role") == Some("master");
        if master && fail_over {
            line.observer.note(&format!("failover of {}", node.name()));
            // It stays so: the next restart finds it a replica.
            failover.inject(lab, Some(node.name()), None)?.forget();
        }
        line.observer.note(&format!("restart of {}", node.name()));
        let pid = node.pid();
        restart.inject(lab, Some(node.name()), None)?;
        if node.pid() == pid {
            return Err(Error::NotRestarted(node.name().into()));
        }
        // The observer first has to see that it was gone.
        let restarted = Instant::now();
        std::thread::sleep(Duration::from_millis(200));
        let whole = wait_for("full redundancy after a restart", Duration::from_secs(60), || {
            Ok(interrupted() || line.is_redundant())
        });
        redundant_us = redundant_us.max(restarted.elapsed().as_micros() as u64);
        if whole.is_err() {
            let text = format!("a minute after the restart of {}, a shard still lacks its replicas", node.name());
            return over(redundant_us, Check::of(CheckId::Redundant, false, text));
        }
    }
    over(redundant_us, Check::of(CheckId::Fault, true, "rolling_restart: every server has a new process"))
}
