//! What the tests of the binary share.
#![allow(dead_code)] // each test file uses its part

use std::process::{Command, Output};

use unslow_engine::{Engine, find};

/// The released binary with these arguments, to its end.
pub fn unslow(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the binary runs")
}

/// The same, to be changed before it runs.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unslow"));
    command.args(arguments).env_remove("UNSLOW_PASSWORD");
    command
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A report with a short window, as JSON.
pub fn report(url: &str, more: &[&str]) -> serde_json::Value {
    let mut arguments = vec!["doctor", url, "--window", "1s", "--format", "json", "--quiet", "--timeout", "2"];
    arguments.extend(more);
    let output = unslow(&arguments);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{url}: {e}; stderr: {}", stderr(&output)))
}

pub fn engine(name: &str) -> Engine {
    find(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Ids of the findings, in order.
pub fn ids(report: &serde_json::Value) -> Vec<String> {
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    findings.iter().map(|f| f["id"].as_str().unwrap_or_default().to_string()).collect()
}

/// Sentences of "cannot see".
pub fn unseen(report: &serde_json::Value) -> Vec<String> {
    let all = report["cannot_see"].as_array().cloned().unwrap_or_default();
    all.iter()
        .map(|c| format!("{} [{}]", c["why"].as_str().unwrap_or_default(), c["grant"].as_str().unwrap_or_default()))
        .collect()
}
