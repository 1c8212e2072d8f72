//! Facts recorded on real servers, judged again: the rule whose fault was injected comes first, and healthy
//! deployments have nothing above risk. Milliseconds, no server.
//!
//! To record the facts again: `UNSLOW_RECORD=$PWD/explain/doctor/tests/facts cargo xtask test injected`. Those of rules
//! that cannot be injected here are recordings too, with the figures of the fault written in by hand.

#![allow(clippy::disallowed_methods)] // rules may not read files; their tests must

use std::path::PathBuf;

use unslow_doctor::measure::{outside_us, traffic_us, turns};
use unslow_doctor::{ALL, Answered, Injected, Remedy, Report, Severity, diagnose};
use unslow_facts::{Facts, Gap, Lack, Seen};

fn facts(name: &str) -> Facts {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/facts/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Facts::from_json(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn first(report: &Report) -> &str {
    report.findings.iter().find(|f| f.severity > Severity::Info).map_or("nothing", |f| &f.id)
}

#[test]
fn names_the_injected_fault_first() {
    for rule in ALL.iter().filter(|r| matches!(r.injected, Injected::Yes)) {
        assert_eq!(first(&diagnose(&facts(rule.id), &[])), rule.id);
    }
}

#[test]
fn what_cannot_be_injected_here_is_told_by_its_facts() {
    for rule in ALL.iter().filter(|r| matches!(r.injected, Injected::No(_))) {
        let report = diagnose(&facts(rule.id), &[rule.id.to_string()]);
        assert_eq!(report.only[0].answer, Answered::Present, "{}: {}", rule.id, report.only[0].text);
    }
}

#[test]
fn every_finding_is_complete() {
    for rule in ALL {
        let report = diagnose(&facts(rule.id), &[]);
        for f in &report.findings {
            let what = format!("{} in the facts of {}", f.id, rule.id);
            assert!(!f.title.is_empty() && !f.impact.text.is_empty(), "{what}");
            // A gain that can be counted has its arithmetic; one that cannot is left out.
            assert!(f.gain.text.is_empty() || !f.gain.formula.is_empty(), "{what}: {:?}", f.gain);
            assert!(!f.confidence_why.is_empty() && !f.recheck.is_empty(), "{what}");
            assert!(
                !f.evidence.is_empty() && f.evidence.iter().all(|e| !e.source.is_empty() && !e.value.is_empty()),
                "{what}"
            );
            let tells =
                |r: &Remedy| !r.text.is_empty() && !r.commands.is_empty() && r.commands.iter().all(|c| !c.is_empty());
            assert!(!f.remedies.is_empty() && f.remedies.iter().all(tells), "{what}: {:?}", f.remedies);
            // Risks and ways back that say nothing are left out, not written down.
            let nothing = |text: &str| ["none", "none needed", "as it was"].contains(&text);
            assert!(f.remedies.iter().all(|r| !nothing(&r.risk) && !nothing(&r.rollback)), "{what}: {:?}", f.remedies);
            assert!(
                !f.title.contains("NaN") && !f.impact.text.contains("NaN") && !f.gain.formula.contains("inf"),
                "{what}"
            );
        }
    }
}

#[test]
fn the_same_facts_give_the_same_report() {
    for rule in ALL {
        let facts = facts(rule.id);
        assert_eq!(diagnose(&facts, &[]), diagnose(&facts, &[]), "{}", rule.id);
    }
}

#[test]
fn a_fork_a_failover_and_two_masters_on_one_host_are_one_finding() {
    let report = diagnose(&facts("fork_chain"), &[]);
    let measured: Vec<&str> =
        report.findings.iter().filter(|f| f.severity > Severity::Risk).map(|f| f.id.as_str()).collect();
    assert_eq!(measured, ["fork_stall"]);
    let chain: Vec<&str> = report.findings[0].chain.iter().map(|l| l.id.as_str()).collect();
    assert_eq!(chain, ["node_timeout_margin", "failover_flapping", "masters_share_host"]);
    // The chain's last link has its own way out: which replica to promote.
    assert!(report.findings[0].remedies.iter().any(|r| r.commands.iter().any(|c| c.contains("CLUSTER FAILOVER"))));
}

#[test]
fn healthy_deployments_have_nothing_above_risk() {
    for name in ["idle", "busy_but_fine", "many_idle_clients", "persistent", "busy_cluster"] {
        let report = diagnose(&facts(&format!("healthy_{name}")), &[]);
        let bad: Vec<&str> =
            report.findings.iter().filter(|f| f.severity > Severity::Risk).map(|f| f.title.as_str()).collect();
        assert!(bad.is_empty(), "{name}: {bad:?}");
    }
}

#[test]
fn huge_pages_count_only_in_a_server_that_forks_and_holds_them() {
    let present = |facts: &Facts| diagnose(facts, &["transparent_huge_pages".into()]).findings.len() == 1;
    let with = facts("transparent_huge_pages");
    assert!(present(&with));
    // THP on, and no fork: a healthy control.
    let mut no_fork = with.clone();
    for sample in no_fork.nodes.iter_mut().flat_map(|n| [&mut n.first, &mut n.last]).flatten() {
        sample.info.0.insert("latest_fork_usec".into(), "0".into());
    }
    assert!(!present(&no_fork));
    let mut none_held = with.clone();
    none_held.hosts[0].processes.iter_mut().for_each(|p| p.anon_huge_bytes = Some(0));
    assert!(!present(&none_held));
}

#[test]
fn what_cannot_be_seen_is_neither_a_finding_nor_a_pass() {
    let mut blind = facts("monitor_attached");
    for node in &mut blind.nodes {
        let why = "CLIENT LIST is denied to this user";
        node.clients = Seen::No(Gap::new(Lack::Rights, why, "ACL SETUSER <user> +client|list"));
    }
    let report = diagnose(&blind, &[]);
    assert!(report.findings.iter().all(|f| f.id != "monitor_attached"));
    assert!(report.ruled_out.iter().all(|r| !r.starts_with("MONITOR")), "{:?}", report.ruled_out);
    assert!(report.cannot_see.iter().any(|c| c.id == "monitor_attached" && c.grant.contains("+client|list")));
}

/// Servers whose clients send short commands, one or a few at a time: what the constants of `measure` say of their CPU
/// time outside commands, and what their own clocks say.
#[test]
fn reads_turns_and_the_clock_explain_the_cpu_time_of_plain_traffic() {
    for name in [
        "error_flood",
        "far_client",
        "aof_fsync_stall",
        "overcommit",
        "redirect_storm",
        "no_pipelining",
        "out_of_memory",
        "kernel_bound",
        "healthy_busy_but_fine",
    ] {
        let facts = facts(name);
        let node = facts.live().max_by(|a, b| turns(a).total_cmp(&turns(b))).expect("a node");
        let explained = traffic_us(node) / outside_us(node).expect("a CPU clock");
        assert!((0.75..1.25).contains(&explained), "{name}: {explained} of the time at {} turns", turns(node));
    }
}

#[test]
fn counters_that_went_backwards_are_not_rates() {
    let mut reset = facts("error_flood");
    for node in &mut reset.nodes {
        // CONFIG RESETSTAT in the window: the second sample counts from zero.
        if let Some(last) = &mut node.last {
            last.info.0.retain(|k, _| !k.starts_with("errorstat_"));
            last.info.0.insert("total_commands_processed".into(), "3".into());
        }
    }
    let report = diagnose(&reset, &[]);
    assert!(
        report.findings.iter().all(|f| f.severity <= Severity::Risk),
        "{:?}",
        report.findings.iter().map(|f| &f.title).collect::<Vec<_>>()
    );
}

#[test]
fn constant_time_commands_in_the_slow_log_are_victims() {
    // A throttled server's slow log holds innocent GETs and SETs, if anything.
    let report = diagnose(&facts("cpu_throttled"), &[]);
    assert!(report.findings.iter().all(|f| f.id != "slow_command"));
}
