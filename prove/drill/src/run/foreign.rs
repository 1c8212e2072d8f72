//! The time line of a deployment that is not a lab: one fault, by the deployment's own commands.

use std::time::{Duration, Instant};

use unslow_client::{Options, Target, TlsOptions, Value};
use unslow_engine::view;

use super::interrupted;
use super::judge::promoted;
use super::time_line::{Faults, Ground, TimeLine};
use crate::check::{Check, CheckId};
use crate::error::{Error, Unfit};
use crate::observe::{Event, State, What, Who};
use crate::places::{Places, Way};
use crate::stage::sleep_until;

/// Faults that can be done to a deployment that is not a lab: by commands, undone by nobody; a hang ends by itself.
pub const FOREIGN: [&str; 3] = ["failover", "hang", "none"];

/// A deployment of the user's.
pub struct Foreign {
    url: String,
    places: Places,
}

impl Foreign {
    /// Looks at the deployment behind `target`.
    pub fn find(target: &Target, tls: &TlsOptions) -> Result<Foreign, Error> {
        Ok(Foreign { url: target.url(), places: Places::discover(target, tls)? })
    }
}

impl Ground for Foreign {
    fn places(&self) -> &Places {
        &self.places
    }

    fn engine(&self) -> String {
        self.url.clone()
    }

    fn outlives_the_run(&self) -> bool {
        true
    }

    fn strike(&self, line: &mut TimeLine<'_, '_>) -> Result<Faults, Error> {
        if !sleep_until(Instant::now() + Duration::from_secs(2)) {
            line.check(Check::unknown(CheckId::Load, "interrupted before the fault: nothing was done"));
            return Ok(Faults::NotBegun);
        }
        line.played.from_us = line.run.now_us();
        line.observer.note(line.fault);
        line.say(line.fault);
        let (begun, lasts) = (Instant::now(), line.plan.hang());
        let result = foreign(&self.places, line.fault, lasts);
        line.facts("during");
        match &result {
            Ok(Some(hangs)) => line.watch_hang(hangs, begun, lasts),
            Ok(None) if line.fault == "none" => line.watch_nothing(),
            Ok(None) => line.watch_failover(),
            Err(_) => {}
        }
        line.played.until_us = line.run.now_us();
        result.map(|_| Faults::Over)
    }
}

impl TimeLine<'_, '_> {
    /// Whether a server that was put to sleep was silent.
    fn watch_hang(&mut self, hangs: &str, begun: Instant, lasts: Duration) {
        let s = lasts.as_secs_f64();
        if !sleep_until(begun + lasts) {
            let text = format!("interrupted: {hangs} wakes on its own, {s} s after it was put to sleep");
            self.check(Check::unknown(CheckId::Load, text));
        }
        let is_silence = |e: &Event| {
            let of_it = matches!(&e.who, Who::Server(name) if name == hangs);
            of_it && e.at_us >= self.played.from_us && e.what == What::Is(State::Silent)
        };
        self.check(match self.observer.events().iter().any(is_silence) {
            true => Check::of(CheckId::Fault, true, format!("{hangs} did not answer (DEBUG SLEEP {s})")),
            false => Check::unknown(CheckId::Fault, format!("{hangs} kept answering in spite of DEBUG SLEEP")),
        });
    }

    /// Whether anything could be seen of what somebody else does meanwhile.
    fn watch_nothing(&mut self) {
        sleep_until(Instant::now() + self.plan.end().max(Duration::from_secs(10)));
        let is_seen = |e: &Event| e.at_us > self.played.from_us && matches!(e.who, Who::Server(_));
        self.check(match self.observer.events().iter().find(|e| is_seen(e)) {
            Some(event) => Check::of(CheckId::Fault, true, format!("observed: {} {}", event.who, event.what)),
            None => {
                let text = "no server went silent or changed its role: nothing visible happened";
                Check::unknown(CheckId::Fault, text)
            }
        });
    }

    /// Whether a replica was promoted: the command returns before anything has happened.
    fn watch_failover(&mut self) {
        let until = Instant::now() + Duration::from_secs(60);
        let is_promoted = |line: &Self| promoted(&line.observer.events(), line.played.from_us).is_some();
        while !is_promoted(self) && Instant::now() < until && !interrupted() {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.check(match is_promoted(self) {
            true => {
                let text = "a replica was promoted; it stays master until you fail over again";
                Check::of(CheckId::Fault, true, text)
            }
            false => Check::unknown(CheckId::Fault, "no replica was promoted within a minute of the command"),
        });
    }
}

/// A fault of somebody else's deployment, by its own commands. Whom it stops for a while, if anybody.
fn foreign(places: &Places, name: &str, lasts: Duration) -> Result<Option<String>, Error> {
    let options = Options { tls: places.tls.clone(), ..Options::default() };
    match (name, places.way) {
        ("none", _) => Ok(None),
        ("hang", _) => {
            let first = places.shards(0)?.into_iter().next().ok_or(Unfit::NoShard)?;
            let node = &places.nodes[first.master];
            let mut c = node.beside(&options)?;
            c.send(&["DEBUG", "SLEEP", &lasts.as_secs_f64().to_string()])?;
            // Refused at once, or no word before it is over.
            match c.receive(Duration::from_millis(500)) {
                Ok(Value::Error(said)) => Err(Unfit::NoDebugSleep { node: node.name.clone(), said }.into()),
                _ => Ok(Some(node.name.clone())),
            }
        }
        ("failover", Way::Sentinel) => {
            let sentinel = places.sentinels.first().ok_or(Unfit::NoSentinel)?;
            sentinel.beside(&options)?.call(&["SENTINEL", "FAILOVER", &places.service])?;
            Ok(None)
        }
        ("failover", Way::Cluster) => {
            for node in &places.nodes {
                // One that is down does not take over.
                let Ok(mut c) = node.beside(&options) else { continue };
                let Ok(now) = view(&mut c) else { continue };
                let follows = now.myself().and_then(|me| me.master_id.clone());
                let first = now.masters().filter(|m| !m.slots.is_empty()).min_by_key(|m| places.at(&m.address));
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
