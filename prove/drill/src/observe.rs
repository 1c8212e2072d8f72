//! An observer beside every server: who is master, who follows, who is silent, and when that changed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use schemars::r#gen::SchemaGenerator;
use schemars::schema::Schema;
use serde::Serialize;
use unslow_client::{Connection, Options};
use unslow_engine::info;
use unslow_topology::Info;

use crate::places::Places;

/// How often each server is asked.
const EVERY: Duration = Duration::from_millis(5);

/// Something that happened, on the drill's time line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "Line")]
pub struct Event {
    /// Microseconds since the run began.
    pub at_us: u64,
    /// Whom it is about.
    pub who: Who,
    /// What happened.
    pub what: What,
}

/// Whom an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The drill itself.
    Drill,
    /// A server, by its name.
    Server(String),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// This is what a server is from now on.
    Is(State),
    /// A note for people.
    Said(String),
}

/// What a server is at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It does not answer.
    Silent,
    Master,
    Replica {
        /// Its master's address.
        master: String,
        /// Whether its link is up.
        linked: bool,
    },
    /// In a role that INFO has no other word for.
    Other(String),
}

impl State {
    /// By INFO's section on replication; `None` if there was no answer.
    fn of(section: Option<&Info>) -> State {
        let Some(section) = section else { return State::Silent };
        let field = |name: &str| section.get(name).unwrap_or_default();
        match field("role") {
            "" => State::Silent,
            "master" => State::Master,
            "slave" => State::Replica {
                master: unslow_topology::join_host_port(field("master_host"), field("master_port")),
                linked: field("master_link_status") == "up",
            },
            other => State::Other(other.into()),
        }
    }
}

/// An event as it is printed and kept.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Event")]
struct Line {
    /// Microseconds since the run began.
    at_us: u64,
    /// Whom it is about: a server, or the drill.
    who: String,
    /// What happened.
    text: String,
}

impl From<Event> for Line {
    fn from(event: Event) -> Line {
        Line { at_us: event.at_us, who: event.who.to_string(), text: event.what.to_string() }
    }
}

impl JsonSchema for Event {
    fn schema_name() -> String {
        Line::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Line::json_schema(generator)
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Drill => f.write_str("drill"),
            Who::Server(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Is(State::Silent) => f.write_str("does not answer"),
            What::Is(State::Master) => f.write_str("master"),
            What::Is(State::Replica { master, linked: true }) => write!(f, "replica of {master}"),
            What::Is(State::Replica { master, linked: false }) => write!(f, "replica of {master}, link down"),
            What::Is(State::Other(text)) | What::Said(text) => f.write_str(text),
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
    pub fn watch<'s>(&'s self, places: &'s Places, scope: &'s Scope<'s, '_>, stop: &'s AtomicBool) {
        for (i, node) in places.nodes.iter().enumerate() {
            scope.spawn(move || {
                let short = Duration::from_millis(150);
                let tls = places.tls.clone();
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
                    self.saw(i, &node.name, State::of(section.as_ref()));
                    std::thread::sleep(EVERY.saturating_sub(round.elapsed()));
                }
            });
        }
    }

    fn saw(&self, node: usize, name: &str, state: State) {
        let mut states = self.states.lock().unwrap_or_else(|e| e.into_inner());
        if states.get(&node) != Some(&state) {
            self.push(Who::Server(name.into()), What::Is(state.clone()));
            states.insert(node, state);
        }
    }

    /// Puts a note of the drill's on the time line.
    pub fn note(&self, text: &str) {
        self.push(Who::Drill, What::Said(text.into()));
    }

    fn push(&self, who: Who, what: What) {
        let at_us = self.begun.elapsed().as_micros() as u64;
        self.events.lock().unwrap_or_else(|e| e.into_inner()).push(Event { at_us, who, what });
    }

    /// Everything so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Whether there are `masters` masters and everybody else follows one, linked.
    pub fn redundant(&self, nodes: usize, masters: usize) -> bool {
        let states = self.states.lock().unwrap_or_else(|e| e.into_inner());
        let now_masters = states.values().filter(|s| **s == State::Master).count();
        let linked = states.values().filter(|s| matches!(s, State::Replica { linked: true, .. })).count();
        states.len() == nodes && now_masters == masters && linked == nodes - masters
    }
}

/// Which servers of one shard were masters at once, and for how long: what is written to the one is lost when it
/// follows the other.
pub fn masters_at_once(events: &[Event]) -> Vec<String> {
    let end = events.last().map_or(0, |e| e.at_us);
    let mut reigns: Vec<(&Who, u64, u64)> = Vec::new();
    for (i, event) in events.iter().enumerate().filter(|(_, e)| e.what == What::Is(State::Master)) {
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
        let replica = |of: &str| What::Is(State::Replica { master: of.into(), linked: true });
        let at = |at_us: u64, who: &str, what: What| Event { at_us, who: Who::Server(who.into()), what };
        let events = [
            at(1, "node-1", What::Is(State::Master)),
            at(2, "node-2", replica("node-1")),
            at(5_000_000, "node-1", What::Is(State::Silent)),
            at(6_450_000, "node-3", What::Is(State::Master)),
            at(8_570_000, "node-2", What::Is(State::Master)),
            Event { at_us: 9_000_000, who: Who::Drill, what: What::Said("kill ends".into()) },
            at(19_510_000, "node-3", replica("node-2")),
        ];
        assert_eq!(masters_at_once(&events), ["node-3 and node-2 were masters at once from 8.57 s to 19.51 s"]);
        assert!(masters_at_once(&events[..4]).is_empty(), "one after the other is no harm");
    }

    #[test]
    fn an_event_is_printed_and_kept_in_words() {
        let state = |text: &str| What::Is(State::of(Some(&Info::parse(text))));
        let replica = "role:slave\r\nmaster_host:::1\r\nmaster_port:6379\r\nmaster_link_status:";
        for (what, text) in [
            (state("role:master\r\n"), "master"),
            (state(&format!("{replica}up\r\n")), "replica of [::1]:6379"),
            (state(&format!("{replica}down\r\n")), "replica of [::1]:6379, link down"),
            (What::Is(State::of(None)), "does not answer"),
            (state("role:sentinel\r\n"), "sentinel"),
        ] {
            let event = Event { at_us: 7, who: Who::Server("node-1".into()), what };
            let kept = serde_json::to_value(&event).expect("it is JSON");
            assert_eq!(kept, serde_json::json!({ "at_us": 7, "who": "node-1", "text": text }));
        }
    }
}
