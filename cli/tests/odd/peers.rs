//! What the servers' own doctors say of the same faults: LATENCY DOCTOR and MEMORY DOCTOR, for the table of
//! `bench/diagnosis`.
//!
//! They are given what they need and do not have by default: a latency monitor that is on (10 ms) from before the
//! fault. Their text is read for the event or the problem that it names; what it names stands for the rule that is
//! nearest to it.

use unslow_client::{Connection, Target};

use crate::stage::Stage;

/// LATENCY DOCTOR says nothing without this.
pub const MONITOR: &[(&str, &str)] = &[("latency-monitor-threshold", "10")];

/// Words of LATENCY DOCTOR: the event classes of its report, and the rule that is nearest.
const EVENTS: &[(&str, &str)] = &[
    (". fork: ", "fork_stall"),
    (". aof-", "aof_fsync_stall"),
    (". expire-", "expire_storm"),
    (". eviction-", "eviction_pressure"),
    (". active-defrag-", "defrag_running"),
    (". command: ", "slow_command"),
    (". command-unblocking: ", "slow_command"),
];

/// Words of MEMORY DOCTOR.
const PROBLEMS: &[(&str, &str)] = &[
    ("High fragmentation", "fragmentation"),
    ("High total RSS", "fragmentation"),
    ("High allocator fragmentation", "fragmentation"),
    ("Big client buffers", "client_memory"),
    ("Many scripts", "script_cache"),
];

/// The causes that these texts name, in their order.
fn named(text: &str, words: &[(&str, &str)]) -> Vec<String> {
    let mut found: Vec<(usize, &str)> = words.iter().filter_map(|(word, id)| Some((text.find(word)?, *id))).collect();
    found.sort_unstable();
    found.dedup_by_key(|(_, id)| *id);
    found.into_iter().map(|(_, id)| id.to_string()).collect()
}

/// Both doctors of the server that ours is pointed at.
pub fn ask(stage: &Stage) -> Result<Vec<String>, String> {
    let mut target = Target::parse(&stage.url).map_err(|e| e.message)?;
    target.password = stage.password().map(unslow_client::Secret::new);
    let mut c = Connection::open(&target, &unslow_testkit::options(2)).map_err(|e| e.message)?;
    let mut said = |command: &[&str]| -> Result<String, String> {
        Ok(c.call(command).map_err(|e| e.message)?.text().unwrap_or_default())
    };
    let mut all = named(&said(&["LATENCY", "DOCTOR"])?, EVENTS);
    all.extend(named(&said(&["MEMORY", "DOCTOR"])?, PROBLEMS));
    Ok(all)
}

#[test]
fn the_texts_of_the_servers_doctors_are_read() {
    let latency = "Dave, I have observed latency spikes in this Valkey instance.\n\n1. command: 5 latency spikes \
                   (average 300ms).\n\
                   2. fork: 1 latency spikes (average 900ms).\n\nI have a few advices for you:\n";
    assert_eq!(named(latency, EVENTS), ["slow_command", "fork_stall"]);
    assert_eq!(named("Dave, no latency spike was observed during the lifetime of this instance", EVENTS), [""; 0]);
    let memory = "Sam, I detected a few issues in this instance memory implants:\n\n * High total RSS: ...\n * High \
                  allocator fragmentation: ...\n";
    assert_eq!(named(memory, PROBLEMS), ["fragmentation"]);
}
