//! Whether anything may take a lost master's place: votes, and replicas that may.

use unslow_doctor::{Answered, Conclusion, Currency, Severity, diagnose};
use unslow_facts::{Facts, Gap, Lack, Seen};
use unslow_topology::ClusterView;

use crate::common::{answer, finding};
use crate::{Mark, address, away, cluster, commands, config, hung, set, share, watched};

fn two_lost() -> Facts {
    away(away(cluster(&[(2, Mark::Suspected), (3, Mark::Suspected)]), 2), 3)
}

#[test]
fn half_of_the_masters_is_no_majority() {
    assert_eq!(answer(&cluster(&[]), "no_majority"), Answered::Absent);
    assert_eq!(answer(&away(cluster(&[(2, Mark::Failed)]), 2), "no_majority"), Answered::Absent, "two of three vote");
    assert_eq!(answer(&watched(["master"; 3]), "no_majority"), Answered::NotHere);
    let found = finding(&two_lost(), "no_majority");
    assert_eq!(found.severity, Severity::Critical);
    assert!((share(&found) - (5462.0 + 5461.0) / 16384.0).abs() < 1e-9);
    assert!(
        found.title.contains("1 of 3 masters can be reached") && found.title.contains("votes of 2"),
        "{}",
        found.title
    );
    assert!(commands(&found).contains("CLUSTER FAILOVER TAKEOVER"), "{}", commands(&found));
    // It comes first, and the slots are what follows from it.
    let report = diagnose(&two_lost(), &[]);
    assert_eq!((report.verdict, report.findings[0].id.as_str()), (Conclusion::Causes, "no_majority"));
    assert!(report.findings[0].chain.iter().any(|l| l.id == "slots_uncovered"), "{:?}", report.findings[0].chain);
    let hanging = hung(hung(cluster(&[(2, Mark::Failed), (3, Mark::Failed)]), 2), 3);
    assert_eq!(diagnose(&hanging, &[]).findings[0].id, "no_majority");
    // The node timeout is not over, and the others are still connected to processes that stand still: these vote for
    // nobody.
    let fresh = hung(hung(cluster(&[]), 2), 3);
    assert_eq!(diagnose(&fresh, &[]).findings[0].id, "no_majority");
}

#[test]
fn masters_that_stopped_serving_cost_all_of_it() {
    let mut facts = two_lost();
    for node in &mut facts.nodes {
        node.cluster_info = crate::seen([("cluster_state".to_string(), "fail".to_string())].into());
    }
    let found = finding(&facts, "no_majority");
    assert_eq!(share(&found), 1.0);
    assert!(found.title.contains("the whole cluster refuses to serve"), "{}", found.title);
}

/// As a pod that came back without its nodes.conf: a cluster of its own, which covers nothing.
#[test]
fn a_node_without_slots_that_calls_the_cluster_down_stops_nobody() {
    let mut facts = cluster(&[]);
    let mut pod = facts.nodes[0].clone();
    pod.address = "10.0.0.99:6379".into();
    pod.node_id = Some("f".repeat(40));
    let alone = format!("{} 10.0.0.99:6379@16379 myself,master - 0 0 0 connected\n", "f".repeat(40));
    pod.cluster = crate::seen(ClusterView::parse(&alone).unwrap());
    pod.cluster_info = crate::seen([("cluster_state".to_string(), "fail".to_string())].into());
    facts.nodes.push(pod);
    assert_eq!(answer(&facts, "slots_uncovered"), Answered::Absent);
    facts.nodes[0].cluster_info = crate::seen([("cluster_state".to_string(), "fail".to_string())].into());
    let found = finding(&facts, "slots_uncovered");
    assert!((share(&found) - 1.0 / 3.0).abs() < 1e-9, "one of three masters that serve: {}", share(&found));
}

#[test]
fn masters_that_only_we_cannot_reach_still_vote() {
    assert_eq!(answer(&away(away(cluster(&[]), 2), 3), "no_majority"), Answered::Absent);
    let mut blind = cluster(&[]);
    for node in &mut blind.nodes {
        node.cluster = Seen::No(Gap::new(Lack::Rights, "CLUSTER NODES is denied to this user", ""));
    }
    assert_eq!(answer(&blind, "no_majority"), Answered::Unknown);
    assert_eq!(answer(&blind, "no_failover_possible"), Answered::Unknown);
}

#[test]
fn a_replica_that_never_takes_over_is_a_risk_before_its_master_dies() {
    assert_eq!(answer(&cluster(&[]), "no_failover_possible"), Answered::Absent);
    let barred = cluster(&[(5, Mark::NoFailover)]);
    let found = finding(&barred, "no_failover_possible");
    assert_eq!((found.impact.currency, found.severity), (Currency::Risk, Severity::Risk));
    assert!(found.subjects.contains(&address(2)) && found.subjects.contains(&address(5)), "{:?}", found.subjects);
    assert!(commands(&found).contains("CONFIG SET cluster-replica-no-failover no"), "{}", commands(&found));
    let lost = finding(&away(cluster(&[(2, Mark::Failed), (5, Mark::NoFailover)]), 2), "no_failover_possible");
    assert_eq!(lost.severity, Severity::High);
    assert!(lost.title.contains("does not answer now"), "{}", lost.title);
}

#[test]
fn a_replica_that_heard_nothing_for_too_long_is_too_old_and_a_new_one_is_not() {
    let mut stale = cluster(&[]);
    set(&mut stale, 5, "master_link_status:down\nmaster_link_down_since_seconds:400");
    assert!(finding(&stale, "no_failover_possible").title.contains("400 s"));
    stale.nodes[4].config = config(&[("cluster-node-timeout", "15000"), ("cluster-replica-validity-factor", "0")]);
    assert_eq!(answer(&stale, "no_failover_possible"), Answered::Absent, "any age is good enough");
    let mut new = cluster(&[]);
    set(&mut new, 5, "master_link_status:down\nmaster_link_down_since_seconds:-1\nmaster_sync_in_progress:1");
    assert_eq!(answer(&new, "no_failover_possible"), Answered::Absent);
    // One that shows nothing may be fit.
    let mut hidden = cluster(&[]);
    (hidden.nodes[4].first, hidden.nodes[4].last) = (None, None);
    assert_eq!(answer(&hidden, "no_failover_possible"), Answered::Unknown);
}

#[test]
fn sentinel_promotes_no_replica_of_priority_zero() {
    let mut facts = watched(["master"; 3]);
    assert_eq!(answer(&facts, "no_failover_possible"), Answered::Absent);
    set(&mut facts, 2, "slave_priority:0");
    let found = finding(&facts, "no_failover_possible");
    assert!(commands(&found).contains("CONFIG SET replica-priority 100"), "{}", commands(&found));
    assert!(found.title.contains("replica-priority 0"), "{}", found.title);
    // Ten times down-after-milliseconds is 50 s here.
    let linked = |down_s: u32| {
        let mut facts = watched(["master"; 3]);
        let link = format!("master_link_status:down\nmaster_link_down_since_seconds:{down_s}");
        set(&mut facts, 2, &format!("slave_priority:100\n{link}"));
        facts
    };
    assert_eq!(answer(&linked(40), "no_failover_possible"), Answered::Absent);
    let found = finding(&linked(400), "no_failover_possible");
    assert!(found.title.contains("400 s") && found.title.contains("after 50 s"), "{}", found.title);
}
