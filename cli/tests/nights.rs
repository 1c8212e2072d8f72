//! A fork stalls a master every night, while nobody is watching: in the morning the list of incidents names it, night
//! by night.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use unslow_lab::faults;
use unslow_lab::lab::Lab;
use unslow_testkit::{Running, command, until};

const NIGHTS: usize = 5;
/// Length of the windows that are diagnosed, in seconds.
const WINDOW_S: i64 = 5;
/// Two windows without a finding do not end an incident; the windows around them may be cut in half.
const DAY_S: i64 = 5 * WINDOW_S;

fn json(arguments: &[&str], dir: &Path) -> Option<Value> {
    let output = command(arguments).arg(dir).args(["--format", "json", "--quiet"]).output().unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

fn recorded_until_ms(dir: &Path) -> i64 {
    json(&["record", "ls"], dir).and_then(|ls| ls["to_ms"].as_i64()).unwrap_or(0)
}

/// How many saves a server has begun, and whether one is going on.
fn saves(lab: &Lab) -> (f64, bool) {
    let mut connection = lab.deployment.nodes[0].connect().unwrap();
    let stats = unslow_engine::info(&mut connection, "all").unwrap();
    (stats.number("total_forks").unwrap_or(0.0), stats.get("rdb_bgsave_in_progress") != Some("0"))
}

#[test]
#[ignore = "long: five nights of half a minute"]
fn five_nights_of_slow_forks_are_in_the_list_in_the_morning() {
    let fault = faults::named("fork_stall").unwrap();
    let lab = Lab::start(&fault.topology("valkey-9.1")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let mut record = Command::new(env!("CARGO_BIN_EXE_unslow"));
    lab.place(&lab.hosts[lab.places[0]], &mut record).unwrap();
    record.args(["record", &lab.url(), "--quiet", "--no-host", "--dir"]).arg(&dir).stdout(Stdio::null());
    let recorder = Running(record.spawn().unwrap());
    until("something is recorded", || recorded_until_ms(&dir) > 0);

    let quiet = || {
        let since = recorded_until_ms(&dir);
        until("a quiet day is recorded", || recorded_until_ms(&dir) > since + DAY_S * 1000);
    };
    for _ in 0..NIGHTS {
        quiet();
        let before = saves(&lab).0;
        let active = fault.inject(&lab, None, Some("2s")).unwrap();
        until("the save is over", || {
            let (forks, saving) = saves(&lab);
            forks > before && !saving
        });
        drop(active);
    }
    quiet();
    drop(recorder);

    let list = json(&["incidents", "--window", &format!("{WINDOW_S}s")], &dir).unwrap();
    let nights: Vec<&Value> =
        list["incidents"].as_array().unwrap().iter().filter(|i| i["rule"] == "fork_stall").collect();
    assert_eq!(nights.len(), NIGHTS, "{list:#}");
    let address = lab.deployment.nodes[0].address();
    for night in &nights {
        assert_eq!(night["subjects"][0], address, "{night:#}");
        let id = night["id"].to_string();
        let opened = json(&["doctor", "--incident", &id, "--recording"], &dir).unwrap();
        assert_eq!(opened["findings"][0]["id"], "fork_stall", "{opened:#}");
    }
    // How long a night takes is the machine's to say; a rhythm is, where it was steady.
    println!("rhythm: {}", list["repeats"]);
}
