//! Helpers shared by the tests with hostile and with random clients, in addition to `unslow-testkit`.
#![allow(dead_code, unused_imports)] // each test file uses its part

pub use unslow_testkit::wire;

use unslow_client::Target;
use unslow_gateway::{Config, Gateway, Start};
use unslow_testkit::options;

/// A gateway in this process, on a free port, nearly as patient as its clients.
#[track_caller]
pub fn gate(url: &str, change: impl FnOnce(&mut Config)) -> Gateway {
    let mut config =
        Config { listen: vec!["127.0.0.1:0".into()], target: url.into(), hold_ms: 50_000, ..Config::default() };
    change(&mut config);
    let target = Target::parse(&config.target).expect("a URL");
    let start = Start { config, target, options: options(3), reread: None, log: Box::new(|_| {}) };
    Gateway::start(start).unwrap_or_else(|e| panic!("the gateway does not start: {e}"))
}

/// How many descriptors a process has open.
#[track_caller]
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count()
}

/// The resident memory of a process, in megabytes.
#[track_caller]
pub fn resident_mb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a resident size");
    let kb = line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number");
    kb >> 10
}
