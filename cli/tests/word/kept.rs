//! C13, E26, E27: files that cannot be written or read, signals, and questions that take too long.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use unslow_engine::{Error, info};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, standalone};

use crate::common::{Running, command, stderr, stdout, unslow};
use crate::load::scripts;
use crate::run::{Run, doctor, doctor_from};

/// A doctor that runs while the test continues. Its output goes to files, since a full pipe would block it.
struct Beside {
    doctor: Running,
    dir: tempfile::TempDir,
}

impl Beside {
    fn start(arguments: &[&str]) -> Beside {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| File::create(dir.path().join(name)).expect("a file");
        let mut command = command(&[&["doctor", "--quiet"], arguments].concat());
        let doctor = command.stdout(file("stdout")).stderr(file("stderr")).spawn().expect("the binary runs");
        Beside { doctor: Running(doctor), dir }
    }

    fn output(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).expect("a file")
    }

    /// Its report. It must end within the tests' patience.
    #[track_caller]
    fn ended(&mut self) -> Run {
        let status = self.doctor.ended();
        let (document, stderr) = (self.output("stdout"), self.output("stderr"));
        Run::read(document.as_bytes(), status, stderr.clone()).unwrap_or_else(|e| panic!("{e}: {document:?}; {stderr}"))
    }
}

// C13: files and signals.

#[test]
fn files_that_cannot_be_written_are_noticed_before_the_window() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().expect("a directory");
    let (here, missing) = (dir.path().display().to_string(), dir.path().join("missing/file").display().to_string());
    let ways = [("--save", &missing), ("--save", &here), ("--html", &missing), ("--html", &here), ("--diff", &missing)];
    for (flag, path) in ways {
        // That it ends within the test's patience shows that it did not wait for the window.
        let url = server.url();
        let mut doctor = Beside::start(&[&url, "--window", "10m", "--format", "json", flag, path]);
        let run = doctor.ended();
        assert_eq!((run.status, run.error().is_empty()), (Some(2), false), "{flag} {path}: {run}");
        let said = format!("{} {}", run.error(), run.stderr);
        assert!(said.contains(path.as_str()), "{flag} {path}: {said}");
    }
    assert!(!dir.path().join("missing").exists(), "a directory was made");
}

#[test]
fn checking_a_path_leaves_an_old_file_alone() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().expect("a directory");
    let old = dir.path().join("old.json");
    std::fs::write(&old, "yesterday's facts").expect("written");
    let (old_path, missing) = (old.display().to_string(), dir.path().join("missing/page.html").display().to_string());
    let run = doctor(&server.url(), &["--save", &old_path, "--html", &missing, "--fail-on", "never"]);
    assert_eq!(run.status, Some(2), "{run}");
    assert_eq!(std::fs::read_to_string(&old).expect("it is still there"), "yesterday's facts");
}

#[test]
fn a_full_disk_costs_the_file_but_not_the_report() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    for flag in ["--save", "--html"] {
        let arguments =
            ["doctor", &url, "--window", "1s", "--no-host", "--quiet", "--format", "json", flag, "/dev/full"];
        let run = Run::of(&unslow(&arguments));
        let nodes = run.json["deployment"]["nodes"].as_array().map(Vec::len);
        assert_eq!((nodes, run.verdict()), (Some(1), "idle"), "{flag}: {run}");
        let said = format!("{} {}", run.error(), run.stderr);
        assert!(said.contains("No space left"), "{flag}: {said}");
    }
}

/// Waits until the doctor's window has begun: it asked for settings, and has sent PINGs since.
#[track_caller]
fn until_looking(server: &unslow_engine::Server) {
    let mut c = server.connect_with(&options(2)).expect("it answers");
    let mut calls = |name: &str| {
        let section = info(&mut c, "commandstats")?;
        Ok::<_, Error>(section.command_stats().get(name).map_or(0, |s| s.calls))
    };
    until_ok("the doctor to ask for settings", || Ok::<_, Error>(calls("config|get")? > 0));
    let pings = calls("ping").expect("INFO");
    until_ok("PINGs of the window", || Ok::<_, Error>(calls("ping")? >= pings + 2));
}

#[test]
fn ctrl_c_in_a_long_window_gives_the_diagnosis_of_what_was_seen() {
    let dir = tempfile::tempdir().expect("a directory");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let server = standalone("valkey-9.1");
        let (url, facts) = (server.url(), dir.path().join("facts.json").display().to_string());
        let arguments = [url.as_str(), "--window", "10m", "--no-host", "--format", "json", "--save", facts.as_str()];
        let mut doctor = Beside::start(&arguments);
        until_looking(&server);
        doctor.doctor.signal(signal);
        let run = doctor.ended();
        assert_eq!((run.verdict(), run.status), ("idle", Some(0)), "{run}");
        assert_eq!(run.json["deployment"]["nodes"][0]["address"], server.address(), "{run}");
        let saved: Value = serde_json::from_str(&std::fs::read_to_string(&facts).expect("saved")).expect("JSON");
        assert_eq!(saved["cut_short"], true);
        assert_eq!(run.json["cut_short"], true);
        assert_eq!(doctor_from(&facts).verdict(), run.verdict());
    }
}

#[test]
fn ctrl_c_says_in_text_that_the_window_was_cut_short() {
    let server = standalone("redis-7.0");
    let url = server.url();
    let mut doctor = Beside::start(&[&url, "--window", "10m", "--no-host"]);
    until_looking(&server);
    doctor.doctor.signal(libc::SIGINT);
    let status = doctor.doctor.ended();
    let text = doctor.output("stdout");
    assert_eq!(status, Some(0), "{text}{}", doctor.output("stderr"));
    assert!(text.contains(&server.address()) && text.contains("cut short"), "{text}");
}

// E26: a window has an end.

#[test]
fn questions_without_time_are_left_out_and_named() {
    let server = standalone("redis-7.0");
    // A question waits for two scripts of each client, of one of them at least however late the other comes back: more
    // than a second, and a diagnosis asks about a dozen.
    let load = scripts(&server, Duration::from_millis(600), 2);
    let url = server.url();
    let mut doctor = Beside::start(&[&url, "--window", "1s", "--timeout", "10", "--no-host", "--format", "json"]);
    let run = doctor.ended();
    drop(load);
    assert!(run.lacks("time"), "{run}");
    run.assert_status_fits();
}

// E27: facts files.

fn saved(dir: &Path) -> (String, Value) {
    let server = standalone("redis-7.0");
    let path = dir.join("facts.json").display().to_string();
    doctor(&server.url(), &["--no-host", "--save", &path]);
    let text = std::fs::read_to_string(&path).expect("saved");
    let facts = serde_json::from_str(&text).expect("JSON");
    (text, facts)
}

#[test]
fn facts_files_are_checked_before_they_are_believed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (text, facts) = saved(dir.path());
    let file = |text: &str| {
        let path = dir.path().join("edited.json");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let refused = |text: &str, expected: &str| {
        let run = doctor_from(&file(text));
        assert_eq!((run.verdict(), run.status), ("unreachable", Some(2)), "{run}");
        assert!(run.error().contains(expected), "{expected:?} was expected: {run}");
        assert!(run.findings().is_empty() && !run.json.to_string().contains("inf times"), "{run}");
    };
    for length in [text.len() - 2, text.len() / 2, 30] {
        let end = (0..=length).rev().find(|i| text.is_char_boundary(*i)).expect("a boundary");
        refused(&text[..end], "cut off");
    }
    for edit in ["/window_s", "/nodes/0/window_s"] {
        for value in [0.0, -3.0, 1e300] {
            let mut edited = facts.clone();
            *edited.pointer_mut(edit).expect("a field") = value.into();
            refused(&edited.to_string(), "window_s");
        }
    }
    refused("{}", "schema");
    refused(&text.replacen("unslow.facts/1", "unslow.facts/99", 1), "unslow.facts/99");

    // Fields of a newer version are ignored, and the report says so.
    let mut newer = facts.clone();
    newer["colour"] = "blue".into();
    newer["nodes"][0]["smell"] = 7.into();
    let (plain, newer) = (doctor_from(&file(&text)), doctor_from(&file(&newer.to_string())));
    assert_eq!((newer.verdict(), newer.findings()), (plain.verdict(), plain.findings()), "{newer}");
    let unseen = newer.json["cannot_see"].to_string();
    assert!(unseen.contains("colour") && unseen.contains("smell"), "{unseen}");
}

#[test]
fn a_truncated_facts_file_is_an_error_in_text_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let (text, _) = saved(dir.path());
    let path = dir.path().join("short.json");
    std::fs::write(&path, &text[..text.len() / 2]).expect("written");
    let output = unslow(&["doctor", "--from", path.to_str().expect("text"), "--quiet"]);
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("cut off"), "{said}");
}
