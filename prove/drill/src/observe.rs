//! An observer beside every server: who is master, who follows, who is silent, and when that changed.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::Serialize;
use unslow_client::{Connection, Options};
use unslow_engine::info;

use crate::ground::Ground;

/// How often each server is asked.
const EVERY: Duration = Duration::from_millis(5);

/// What is said of a server that does not answer.
pub const SILENT: &str = "does not answer";

/// Something that happened, on the drill's time line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Event {
    /// Microseconds since the run began.
    pub at_us: u64,
    /// Whom it is about: a server, or the drill.
    pub who: String,
    /// What happened.
    pub text: String,
}

/// What a server is at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// `master`, `slave`; empty while it does not answer.
    pub role: String,
    /// Of a replica: whether its link is up.
    pub linked: bool,
    /// Of a replica: its master's address.
    pub master: String,
}

impl State {
    fn words(&self) -> String {
        match (self.role.as_str(), self.linked) {
            ("", _) => SILENT.into(),
            ("slave", true) => format!("replica of {}", self.master),
            ("slave", false) => format!("replica of {}, link down", self.master),
            (role, _) => role.into(),
        }
    }
}

/// What is known of all servers.
pub struct Observer {
    begun: Instant,
    events: Mutex<Vec<Event>>,
    states: Mutex<BTreeMap<usize, State>>,
}

impl Observer {
    /// Nothing known yet; times count from `begun`.
    pub fn new(begun: Instant) -> Observer {
        Observer { begun, events: Mutex::default(), states: Mutex::default() }
    }

    /// Watches every node until `stop`.
    pub fn watch<'s>(&'s self, ground: &'s Ground, scope: &'s Scope<'s, '_>, stop: &'s AtomicBool) {
        for (i, node) in ground.nodes.iter().enumerate() {
            scope.spawn(move || {
                let short = Duration::from_millis(150);
                let tls = ground.tls.clone();
                let options = Options { connect_timeout: short, command_timeout: short, tls, ..Options::default() };
                let mut connection: Option<Connection> = None;
                while !stop.load(Ordering::Relaxed) {
                    let round = Instant::now();
                    if connection.is_none() {
                        connection = node.beside(&options).ok();
                    }
                    let section = connection.as_mut().and_then(|c| info(c, "replication").ok());
                    if section.is_none() {
                        connection = None;
                    }
                    let state = section.map_or(State::default(), |s| State {
                        role: s.get("role").unwrap_or_default().into(),
                        linked: s.get("master_link_status") == Some("up"),
                        master: unslow_topology::join_host_port(
                            s.get("master_host").unwrap_or_default(),
                            s.get("master_port").unwrap_or_default(),
                        ),
                    });
                    self.saw(i, &node.name, state);
                    std::thread::sleep(EVERY.saturating_sub(round.elapsed()));
                }
            });
        }
    }

    fn saw(&self, node: usize, name: &str, state: State) {
        let mut states = self.states.lock().unwrap_or_else(|e| e.into_inner());
        if states.get(&node) != Some(&state) {
            self.say(name, &state.words());
            states.insert(node, state);
        }
    }

    /// Puts something on the time line.
    pub fn say(&self, who: &str, text: &str) {
        let at_us = self.begun.elapsed().as_micros() as u64;
        let event = Event { at_us, who: who.into(), text: text.into() };
        self.events.lock().unwrap_or_else(|e| e.into_inner()).push(event);
    }

    /// Everything so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Whether there are `masters` masters and everybody else follows one, linked.
    pub fn redundant(&self, nodes: usize, masters: usize) -> bool {
        let states = self.states.lock().unwrap_or_else(|e| e.into_inner());
        let now_masters = states.values().filter(|s| s.role == "master").count();
        let linked = states.values().filter(|s| s.role == "slave" && s.linked).count();
        states.len() == nodes && now_masters == masters && linked == nodes - masters
    }
}

/// Which servers of one shard were masters at once, and for how long: what is written to the one is lost when it
/// follows the other.
pub fn masters_at_once(events: &[Event]) -> Vec<String> {
    let end = events.last().map_or(0, |e| e.at_us);
    let mut reigns: Vec<(&str, u64, u64)> = Vec::new();
    for (i, event) in events.iter().enumerate().filter(|(_, e)| e.text == "master") {
        let over = events[i + 1..].iter().find(|e| e.who == event.who).map_or(end, |e| e.at_us);
        reigns.push((&event.who, event.at_us, over));
    }
    let mut both = Vec::new();
    for (i, (first, _, until)) in reigns.iter().enumerate() {
        for (second, from, over) in reigns[i + 1..].iter().filter(|(who, from, _)| who != first && from < until) {
            let (from, until) = (*from as f64 / 1e6, *until.min(over) as f64 / 1e6);
            both.push(format!("{first} and {second} were masters at once from {from:.2} s to {until:.2} s"));
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Sentinel did to a deployment of ours: killed, replaced, replaced again.
    #[test]
    fn a_master_that_stays_one_beside_its_successor_is_seen() {
        let event =
            |(at_us, who, text): &(u64, &str, &str)| Event { at_us: *at_us, who: (*who).into(), text: (*text).into() };
        let seen = [
            (1, "node-1", "master"),
            (2, "node-2", "replica of node-1"),
            (5_000_000, "node-1", SILENT),
            (6_450_000, "node-3", "master"),
            (8_570_000, "node-2", "master"),
            (9_000_000, "drill", "kill ends"),
            (19_510_000, "node-3", "replica of node-2"),
        ];
        let events: Vec<Event> = seen.iter().map(event).collect();
        assert_eq!(masters_at_once(&events), ["node-3 and node-2 were masters at once from 8.57 s to 19.51 s"]);
        assert!(masters_at_once(&events[..4]).is_empty(), "one after the other is no harm");
    }
}
