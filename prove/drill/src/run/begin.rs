//! Faults of a lab: how they begin, and whether they are at work.

use std::time::{Duration, Instant};

use unslow_engine::{info, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::Lab;

use super::interrupted;
use crate::check::{Check, CheckId};
use crate::error::Error;
use crate::ground::Ground;
use crate::observe::Observer;
use crate::spec::FaultSpec;
use crate::verify::Struck;

/// Whether a fault is at work.
pub fn proved(struck: &Struck, lab: &Lab, name: &str, when: &str) -> Check {
    match struck.holds(lab) {
        Ok(found) => Check::of(CheckId::Fault, true, format!("{name} was active {when}: {found}")),
        Err(found) => Check::unknown(CheckId::Fault, format!("{name} was not active {when}: {found}")),
    }
}

/// A fault that was begun.
pub enum Begun {
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
pub fn begin(lab: &Lab, name: &str, spec: &FaultSpec, observer: &Observer, ground: &Ground) -> Result<Begun, Error> {
    if name == "rolling_restart" {
        return rolling_restart(lab, spec.value.as_deref() == Some("failover"), observer, ground);
    }
    Struck::inject(lab, name, spec.who.as_deref(), spec.value.as_deref()).map(|struck| Begun::On(Box::new(struck)))
}

fn rolling_restart(lab: &Lab, fail_over: bool, observer: &Observer, ground: &Ground) -> Result<Begun, Error> {
    let (restart, failover) = (faults::named("restart")?, faults::named("failover")?);
    let mut redundant_us = 0;
    let over = |redundant_us, check| Ok(Begun::Over { redundant_us, checks: vec![check] });
    for node in &lab.deployment.nodes {
        if interrupted() {
            return over(redundant_us, Check::unknown(CheckId::Fault, "interrupted between two restarts"));
        }
        let master = info(&mut node.connect()?, "replication")?.get("role") == Some("master");
        if master && fail_over {
            observer.note(&format!("failover of {}", node.name()));
            // It stays so: the next restart finds it a replica.
            failover.inject(lab, Some(node.name()), None)?.forget();
        }
        observer.note(&format!("restart of {}", node.name()));
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
            return over(redundant_us, Check::of(CheckId::Redundant, false, text));
        }
    }
    over(redundant_us, Check::of(CheckId::Fault, true, "rolling_restart: every server has a new process"))
}
