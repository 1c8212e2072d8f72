//! Sentinels: whether they could authorise a failover, where they run, whether they trust their clocks, and whom they
//! remember.

use unslow_doctor::{Answered, Severity, diagnose};
use unslow_facts::{Facts, Listed, Tilt};

use crate::common::{answer, finding};
use crate::{address, cluster, commands, watched};

fn well() -> Facts {
    let mut facts = watched(["master"; 3]);
    for (i, sentinel) in facts.sentinels.iter_mut().enumerate() {
        sentinel.tilt = Some(Tilt::Off);
        let others = (1..=3).filter(|n| *n != i + 1).map(|n| listed(&format!("10.0.0.{n}:26379"), "sentinel", 0));
        sentinel.groups[0].others = Some(others.collect());
        sentinel.groups[0].replicas = Some(vec![listed(&address(4), "slave", 0)]);
    }
    facts
}

fn listed(address: &str, flags: &str, down_ms: u64) -> Listed {
    Listed { address: address.into(), flags: flags.into(), down_ms }
}

const RULES: [&str; 4] = ["sentinel_quorum", "sentinel_tilt", "sentinel_reset_needed", "sentinels_share_host"];

#[test]
fn three_sentinels_on_three_machines_are_well() {
    for rule in RULES {
        assert_eq!(answer(&well(), rule), Answered::Absent, "{rule}");
        assert_eq!(answer(&cluster(&[]), rule), Answered::NotHere, "{rule}");
    }
}

#[test]
fn sentinels_that_do_not_answer_leave_it_open() {
    let mut facts = well();
    for sentinel in &mut facts.sentinels {
        sentinel.unreachable = Some("connection refused".into());
    }
    for rule in ["sentinel_quorum", "sentinel_tilt", "sentinel_reset_needed"] {
        assert_eq!(answer(&facts, rule), Answered::Unknown, "{rule}");
    }
    // Facts of before it was kept.
    for rule in ["sentinel_tilt", "sentinel_reset_needed"] {
        assert_eq!(answer(&watched(["master"; 3]), rule), Answered::Unknown, "{rule}");
    }
}

#[test]
fn most_must_say_that_there_is_no_quorum() {
    const NO: &str = "NOQUORUM 1 usable Sentinels. Not enough available Sentinels to reach the majority";
    let mut facts = well();
    facts.sentinels[0].groups[0].ckquorum = NO.into();
    assert_eq!(answer(&facts, "sentinel_quorum"), Answered::Absent, "one has lost sight of two that agree");
    facts.sentinels[1].unreachable = Some("connection refused".into());
    facts.sentinels[2].unreachable = Some("connection refused".into());
    let found = finding(&facts, "sentinel_quorum");
    assert_eq!(found.severity, Severity::High);
    assert!(found.title.contains("10.0.0.2:26379 and 10.0.0.3:26379"), "{}", found.title);
    // A quorum that is too large is a matter of a setting.
    let mut large = well();
    large.sentinels.iter_mut().for_each(|s| s.groups[0].quorum = 5);
    let found = finding(&large, "sentinel_quorum");
    assert!(commands(&found).contains("SENTINEL SET mymaster quorum 2"), "{}", commands(&found));
    assert!(found.remedies[0].rollback.contains("quorum 5"), "{}", found.remedies[0].rollback);
}

#[test]
fn a_majority_on_one_machine_is_a_risk_and_loopback_is_none() {
    let mut facts = well();
    facts.sentinels[1].address = "10.0.0.1:26380".into();
    facts.sentinels.iter_mut().for_each(|s| s.groups[0].others = None);
    let found = finding(&facts, "sentinels_share_host");
    assert_eq!(found.severity, Severity::Risk);
    assert!(found.title.contains("2 of 3") && found.title.contains("beside the master"), "{}", found.title);
    for (i, sentinel) in facts.sentinels.iter_mut().enumerate() {
        sentinel.address = format!("127.0.0.1:{}", 26379 + i);
    }
    assert_eq!(answer(&facts, "sentinels_share_host"), Answered::NotHere);
}

#[test]
fn a_sentinel_in_tilt_weighs_more_where_it_is_most_of_them() {
    let mut facts = well();
    facts.sentinels[0].tilt = Some(Tilt::On { since_s: Some(3) });
    assert_eq!(finding(&facts, "sentinel_tilt").severity, Severity::Medium);
    facts.sentinels[1].tilt = Some(Tilt::On { since_s: None });
    let found = finding(&facts, "sentinel_tilt");
    assert_eq!(found.severity, Severity::High);
    assert!(found.title.contains("no failover can be authorised"), "{}", found.title);
}

#[test]
fn only_entries_that_have_been_down_for_long_are_out_of_date() {
    let entry = |down_ms: u64| {
        let mut facts = well();
        let gone = listed("10.0.9.9:26379", "sentinel,s_down", down_ms);
        facts.sentinels[0].groups[0].others.as_mut().unwrap().push(gone);
        facts.sentinels[0].groups[0].other_sentinels = 3;
        facts
    };
    assert_eq!(answer(&entry(60_000), "sentinel_reset_needed"), Answered::Absent, "it may be restarting");
    let found = finding(&entry(7_200_000), "sentinel_reset_needed");
    assert!(found.title.contains("10.0.9.9:26379 that has been down for 2 h"), "{}", found.title);
    assert!(found.title.contains("needs 3 of the 4"), "{}", found.title);
    assert_eq!(found.remedies[0].commands.len(), 3, "on each Sentinel");
    let report = diagnose(&entry(7_200_000), &[]);
    assert!(report.findings.iter().all(|f| f.id != "sentinel_quorum"), "a majority is left");
}
