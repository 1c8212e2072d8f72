//! B: "proven" needs a measurement of this window, and of the claim itself.

use std::path::Path;

use serde_json::Value;
use unslow_engine::{Deployment, Shape};
use unslow_testkit::servers::{cluster, deployment, promote, server};
use unslow_testkit::standalone;

use crate::common::{stderr, unslow};
use crate::load::{keys, until_info};
use crate::run::{Run, doctor, settled};

/// Waits until the replica with this index is master.
#[track_caller]
fn until_elected(cluster: &Deployment, replica: usize) {
    until_info(&cluster.nodes[replica], "replication", "role", |role| role == "master");
}

/// Waits until the old master with this index replicates from its successor.
#[track_caller]
fn until_following(cluster: &Deployment, old: usize) {
    until_info(&cluster.nodes[old], "replication", "role", |role| role == "slave");
    until_info(&cluster.nodes[old], "replication", "master_link_status", |status| status == "up");
}

/// The report must not claim that the old masters ran all the time.
#[track_caller]
fn assert_no_flapping_claimed(run: &Run, what: &str) {
    let all = run.json["findings"].to_string();
    for claim in ["never restarted", "never down", "no machine died", "in 0.1 days", "in 0.0 days"] {
        assert!(!all.contains(claim), "{what}: {claim:?} is claimed: {run}");
    }
    if let Some(finding) = run.finding("failover_flapping") {
        assert_ne!(finding["confidence"], "proven", "{what}: {run}");
    }
}

// B7: elections.

#[test]
fn a_rolling_restart_of_a_young_cluster_is_no_flapping() {
    let cluster = cluster("redis-7.0");
    for master in 0..2 {
        cluster.nodes[master].kill();
        until_elected(&cluster, master + 3);
        cluster.nodes[master].restart().expect("it starts again");
        until_following(&cluster, master);
        let run = doctor(&cluster.url(), &["--no-host"]);
        assert_no_flapping_claimed(&run, &format!("after the restart of {}", cluster.nodes[master].address()));
    }
    // And back by CLUSTER FAILOVER.
    promote(&cluster.nodes[0]);
    until_following(&cluster, 3);
    assert_no_flapping_claimed(&doctor(&cluster.url(), &["--no-host"]), "after CLUSTER FAILOVER");
}

#[test]
fn manual_failovers_in_a_young_cluster_are_no_flapping() {
    let cluster = deployment("valkey-9.1", Shape::six_nodes(), &[("cluster-node-timeout", "15000")]);
    promote(&cluster.nodes[3]);
    until_following(&cluster, 0);
    promote(&cluster.nodes[0]);
    until_following(&cluster, 3);
    assert_no_flapping_claimed(&doctor(&cluster.url(), &["--no-host"]), "after CLUSTER FAILOVER there and back");
}

// B8: the past does not outrank the present.

#[test]
fn keys_now_ranks_above_an_election_that_is_over() {
    let cluster = cluster("valkey-9.1");
    // A master hangs until it is voted out and returns as a replica: an election without a restart.
    cluster.nodes[1].signal(libc::SIGSTOP);
    until_elected(&cluster, 4);
    cluster.nodes[1].signal(libc::SIGCONT);
    until_following(&cluster, 1);
    let load = keys(&cluster.nodes[0]);
    let run = settled(&cluster.url(), &["--no-host", "--window", "2s"]);
    drop(load);
    assert_eq!((run.verdict(), run.first()), ("causes", "keys_command"), "{run}");
    assert_eq!(run.findings()[0]["when"], "now", "{run}");
    if let Some(election) = run.finding("failover_flapping") {
        assert_eq!(election["when"], "past", "{run}");
    }
    let past = run.findings().iter().position(|f| f["when"] == "past").unwrap_or(usize::MAX);
    let costs = |f: &Value| !["info", "risk"].contains(&f["severity"].as_str().unwrap_or_default());
    let last_now = run.findings().iter().rposition(|f| f["when"] == "now" && costs(f));
    assert!(last_now < Some(past), "a finding of the past ranks above one of now: {run}");
    let dated = |f: &Value| f["when"] != "past" || f["since"].as_u64().is_some_and(|ms| ms > 0);
    assert!(run.findings().iter().all(dated), "a finding of the past has no time: {run}");
}

#[test]
fn keys_in_the_slow_log_alone_is_no_cause() {
    let server = standalone("valkey-9.1");
    drop(keys(&server));
    let run = settled(&server.url(), &["--no-host"]);
    assert_ne!(run.verdict(), "causes", "{run}");
    assert!(!run.above_risk().contains(&"keys_command"), "{run}");
}

// B9: steal without an effect.

/// This machine's facts, edited: 17 % of its time stolen, while the server hardly waited for a processor.
fn host_with_steal(dir: &Path) -> String {
    let path = dir.join("host.json").display().to_string();
    let saved = unslow(&["host", "--save", &path, "--window", "500ms", "--quiet"]);
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
    let mut host: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("saved")).expect("JSON");
    host["steal_share"] = 0.17.into();
    host["neighbours"] = Value::Array(Vec::new());
    for process in host["processes"].as_array_mut().expect("processes") {
        process["run_delay_share"] = 0.007.into();
        process["cpu_share"] = 0.006.into();
    }
    std::fs::write(&path, host.to_string()).expect("written");
    path
}

#[test]
fn stolen_time_that_delayed_no_command_is_no_cause() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().expect("a directory");
    let host = host_with_steal(dir.path());
    let run = doctor(&server.url(), &["--no-host", "--host", &host]);
    assert!(!run.json["cannot_see"].to_string().contains("their machines"), "the machine's facts were not used: {run}");
    let named = |id: &&&str| id.contains("neighbour") || id.contains("steal") || id.contains("stolen");
    assert_eq!(run.above_risk().iter().find(named), None, "{run}");
    assert_ne!(run.verdict(), "causes", "{run}");
    let findings = run.json["findings"].to_string();
    assert!(!findings.contains("taskset"), "pinning does not help against a hypervisor: {findings}");
}

// B10: "ruled out" is a claim as well.

#[test]
fn settings_that_differ_between_versions_during_an_upgrade_are_drift() {
    for (old, new) in [("redis-6.2", "redis-7.0"), ("redis-7.0", "valkey-9.1")] {
        let master = server(old, &[("maxmemory", "50mb")]);
        let follows = format!("{} {}", master.ip, master.port);
        let replica = server(new, &[("maxmemory", "100mb"), ("replicaof", &follows)]);
        until_info(&replica, "replication", "master_link_status", |status| status == "up");
        let run = settled(&master.url(), &["--no-host"]);
        let what = format!("{old} with 50 MB and {new} with 100 MB: {run}");
        assert_eq!(run.json["deployment"]["nodes"].as_array().map(Vec::len), Some(2), "{what}");
        let drift = run.finding("config_drift").unwrap_or_else(|| panic!("{what}"));
        assert!(drift.to_string().contains("maxmemory"), "{drift}");
        assert!(!run.json["ruled_out"].to_string().contains("alike on all nodes"), "{}", run.json["ruled_out"]);
    }
}
