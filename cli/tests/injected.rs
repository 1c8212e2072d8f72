//! Every fault injected into real servers, alone: the released binary must name it first. And every healthy but odd
//! deployment: it must name nothing above risk.
//!
//! UNSLOW_ENGINE chooses the server, UNSLOW_RECORD=DIR keeps the facts of each run, UNSLOW_ONLY=a,b limits the faults,
//! UNSLOW_TABLE=FILE writes the table of what was injected and what was named.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use unslow_doctor::{Report, Severity};
use unslow_engine::faults::{self, Fault};
use unslow_engine::{Deployment, Engine, ServerSpec, Shape, find};

fn engine() -> Engine {
    find(&std::env::var("UNSLOW_ENGINE").unwrap_or_else(|_| "valkey-9.1".into())).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs the binary; the report is its JSON.
fn doctor(deployment: &Deployment, name: &str) -> Report {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unslow"));
    command.args(["doctor", &deployment.url(), "--window", "3s", "--format", "json", "--quiet"]);
    if let Some(dir) = std::env::var_os("UNSLOW_RECORD") {
        command.arg("--save").arg(PathBuf::from(dir).join(format!("{name}.json")));
    }
    let output = command.output().expect("the binary runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{name}: {e}; stderr: {}", String::from_utf8_lossy(&output.stderr)))
}

fn first(report: &Report) -> String {
    report.findings.iter().find(|f| f.severity > Severity::Info).map_or("nothing".into(), |f| f.id.clone())
}

/// Faults that the given server cannot show, and why.
fn cannot(fault: &Fault, engine: &Engine) -> Option<&'static str> {
    let old = !engine.is_valkey() && engine.level() < (6, 2);
    // SAFETY-free question: the effective user is in /proc.
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    match fault.name {
        _ if fault.root && !root => Some("needs root"),
        "error_flood" | "redirect_storm" if old => Some("errors are not counted by kind before 6.2"),
        "no_pipelining" if old => Some("reads are not counted before 6.0"),
        "full_resync_loop" if old => Some("rdb-key-save-delay came with 6.0"),
        "monitor_attached" | "slow_subscriber" if false => None,
        _ => None,
    }
}

/// Settings that older servers do not know.
fn settings(fault: &Fault, engine: &Engine) -> Fault {
    let mut fault = *fault;
    if fault.name == "node_timeout_margin" && !engine.is_valkey() && engine.level() < (7, 0) {
        fault.settings = &[("cluster-node-timeout", "2000")];
    }
    fault
}

#[test]
fn names_every_injected_fault_first() {
    let engine = engine();
    let only = std::env::var("UNSLOW_ONLY").unwrap_or_default();
    let mut table = String::new();
    let mut wrong = Vec::new();
    for fault in faults::ALL.iter().filter(|f| only.is_empty() || only.split(',').any(|o| o == f.name)) {
        if let Some(why) = cannot(fault, &engine) {
            let _ = writeln!(table, "{:<24} not on {}: {why}", fault.name, engine.version);
            continue;
        }
        let fault = settings(fault, &engine);
        let mut deployment = fault.deploy(&engine, None).unwrap_or_else(|e| panic!("{}: {e}", fault.name));
        let active = fault.inject(&mut deployment).unwrap_or_else(|e| panic!("{}: {e}", fault.name));
        // Rates need a moment to be the fault's own.
        std::thread::sleep(Duration::from_millis(300));
        let report = doctor(&deployment, fault.name);
        drop(active);
        let named = first(&report);
        let others: Vec<String> = report.findings.iter().filter(|f| f.severity > Severity::Risk && f.id != named).map(|f| f.id.clone()).collect();
        let chain: Vec<&str> = report.findings.first().map_or(Vec::new(), |f| f.chain.iter().map(|l| l.id.as_str()).collect());
        let line = format!("{:<24} {:<24} chain [{}] also [{}]", fault.name, named, chain.join(" "), others.join(" "));
        println!("{line}");
        let _ = writeln!(table, "{line}");
        if named != fault.name {
            wrong.push(line);
        }
    }
    if let Some(path) = std::env::var_os("UNSLOW_TABLE") {
        std::fs::write(path, format!("{} injected -> named first, its chain, other measured findings\n{table}", engine.version)).expect("the table can be written");
    }
    assert!(wrong.is_empty(), "not named first:\n{}", wrong.join("\n"));
}
