//! A1, A12, E18: labs, looked at from outside and from inside. Most need network namespaces or cgroups, and are skipped
//! without.

use std::process::{Command, Output};

use serde_json::Value;
use unslow_client::{Connection, Target};
use unslow_engine::{Error, info, view};
use unslow_lab::faults;
use unslow_lab::lab::Lab;
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, skip, tried_while_busy};

use crate::common::{command, stderr, stdout};
use crate::run::{Run, doctor};

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

/// `unslow lab` with its own directory of labs; all of them are taken down at the end.
struct Labs(tempfile::TempDir);

impl Labs {
    fn new() -> Labs {
        Labs(tempfile::tempdir().expect("a directory"))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = command(&[&["lab"], arguments].concat());
        command.env("UNSLOW_LABS", self.0.path().join("labs")).output().expect("the binary runs")
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }
}

impl Drop for Labs {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--all", "--force"]);
    }
}

/// Brings up a lab from the command line; returns the URL it prints.
#[track_caller]
fn up(labs: &Labs, more: &[&str]) -> String {
    let text = labs.done(&[&["up", "--format", "json"], more].concat());
    let lab: Value = serde_json::from_str(&text).expect("JSON");
    lab["url"].as_str().expect("a URL").to_string()
}

/// A1 as it was typed: a third of the slots is not served.
#[test]
fn a_killed_master_of_a_lab_is_the_first_cause() {
    let labs = Labs::new();
    // The fault needs no rights, a lab with zones does.
    let flat: &[&str] = if is_root() { &[] } else { &["--flat"] };
    let url = up(&labs, &[&["--name", "killed"], flat].concat());
    labs.done(&["fault", "kill", "node-2"]);
    let lab: Value = serde_json::from_str(&labs.done(&["ls", "--format", "json"])).expect("JSON");
    let dead = lab["labs"][0]["servers"][1]["address"].as_str().expect("an address").to_string();
    until_ok("the link to the dead node to be down", || {
        let target = Target::parse(&url)?;
        let view = view(&mut Connection::open(&target, &options(2))?)?;
        Ok::<_, Error>(view.nodes.iter().any(|node| node.address == dead && !node.connected))
    });
    let run = doctor(&url, &["--no-host"]);
    run.assert_critical(&["node_unreachable", "slots_uncovered"], &dead);
}

#[test]
fn a_zone_that_is_cut_off_is_a_cause() {
    if !is_root() {
        return skip("looking at zones from outside takes root");
    }
    let labs = Labs::new();
    let url = up(&labs, &["--name", "cut"]);
    labs.done(&["fault", "partition", "zone-b"]);
    let run = doctor(&url, &["--no-host", "--timeout", "2"]);
    assert_eq!((run.verdict(), run.status), ("causes", Some(1)), "{run}");
    assert!(["node_unreachable", "node_hangs", "slots_uncovered"].contains(&run.first()), "{run}");
}

/// A12: `lab fault` announces the rule, so the doctor must find it, from outside the lab.
#[test]
fn a_throttled_server_of_a_lab_is_found_from_outside() {
    if !is_root() {
        return skip("a CPU quota takes root");
    }
    let labs = Labs::new();
    let url = up(&labs, &["--name", "quota", "--kind", "standalone", "--zones", "1"]);
    let announced = stderr(&labs.run(&["fault", "cpu_throttle", "node-1"]));
    assert!(announced.contains("the doctor calls it cpu_throttled"), "{announced}");
    tried_while_busy(3, |_| {
        let run = doctor(&url, &["--window", "3s"]);
        let cause = run.verdict() == "causes" && run.reports("cpu_throttled");
        if cause { Ok(()) } else { Err(format!("no cpu_throttled: {run}")) }
    });
}

/// E18: the doctor asks the server at its loopback address, and the far client uses another one.
#[test]
fn far_clients_are_seen_whichever_address_is_asked() {
    if !is_root() {
        return skip("zones take root");
    }
    let fault = faults::find("unpipelined").expect("a fault");
    tried_while_busy(3, |_| {
        let lab = Lab::start(&fault.topology("valkey-9.1")).unwrap_or_else(|e| panic!("{e}"));
        let _active = fault.inject(&lab, None, None).unwrap_or_else(|e| panic!("{e}"));
        let server = &lab.deployment.nodes[0];
        let mut c = server.connect_with(&options(2)).expect("it answers");
        until_ok("the far client's commands", || {
            let section = info(&mut c, "commandstats")?;
            Ok::<_, Error>(section.command_stats().get("incr").is_some_and(|s| s.calls > 20))
        });
        let url = format!("redis://127.0.0.1:{}", server.port);
        let mut beside = Command::new(env!("CARGO_BIN_EXE_unslow"));
        lab.place(&lab.hosts[lab.places[0]], &mut beside).unwrap_or_else(|e| panic!("{e}"));
        beside.args(["doctor", &url, "--window", "3s", "--format", "json", "--quiet"]);
        let run = Run::of(&beside.output().expect("the binary runs"));
        let far = run.above_risk().contains(&"far_client");
        if far { Ok(()) } else { Err(format!("no far_client at {url}: {run}")) }
    });
}
