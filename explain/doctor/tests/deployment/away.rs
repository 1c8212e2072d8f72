//! Servers that are away: who suffers, how sure that is, and what happens by itself.

use unslow_doctor::{Affected, Answered, Conclusion, Confidence, Currency, Severity, When, diagnose};
use unslow_facts::{Facts, Lack, Node, Point, Sample, Seen};
use unslow_topology::{ClusterView, DeploymentKind, Info, Role};

use crate::common::{NOW_MS, answer, deployment, finding, node, seen};
use crate::{Mark, address, away, cluster, commands, config, hung, id, nodes_text, set, set_last, share, watched};

#[test]
fn a_healthy_cluster_has_none_away() {
    let facts = cluster(&[]);
    for rule in [
        "node_unreachable",
        "node_hangs",
        "slots_uncovered",
        "master_without_replica",
        "failover_flapping",
        "open_slots",
    ] {
        assert_eq!(answer(&facts, rule), Answered::Absent, "{rule}");
    }
    assert_eq!(answer(&facts, "sentinel_master_down"), Answered::NotHere);
}

#[test]
fn a_refused_master_is_critical_before_its_peers_call_it_failed() {
    let facts = away(cluster(&[(2, Mark::Disconnected)]), 2);
    let found = finding(&facts, "node_unreachable");
    assert_eq!((found.severity, found.when, found.confidence), (Severity::Critical, When::Now, Confidence::Proven));
    assert!((share(&found) - 5462.0 / 16384.0).abs() < 1e-9);
    assert_eq!(found.subjects[0], address(2));
    assert_eq!(found.since, Some(NOW_MS - 12_000), "its peers last heard from it then");
    assert!(found.impact.text.contains(&format!("{} is promoted about 17 s", address(5))), "{}", found.impact.text);
    assert!(commands(&found).contains("redis-cli -h 10.0.0.5 -p 6379 CLUSTER FAILOVER FORCE"), "{}", commands(&found));
    // One finding with what follows from it, and a verdict of causes.
    let report = diagnose(&facts, &[]);
    assert_eq!((report.verdict, report.findings[0].id.as_str()), (Conclusion::Causes, "node_unreachable"));
    assert!(report.findings[0].chain.iter().any(|l| l.id == "slots_uncovered"), "{:?}", report.findings[0].chain);
}

#[test]
fn slots_of_a_failed_owner_stop_the_cluster_and_those_of_a_suspected_one_do_not() {
    let failed = finding(&away(cluster(&[(2, Mark::Failed)]), 2), "slots_uncovered");
    assert_eq!((share(&failed), failed.severity), (1.0, Severity::Critical));
    let suspected = finding(&away(cluster(&[(2, Mark::Suspected)]), 2), "slots_uncovered");
    assert!((share(&suspected) - 5462.0 / 16384.0).abs() < 1e-9, "{}", suspected.impact.text);
    assert_eq!(suspected.severity, Severity::Critical);
    // Without full coverage a failed owner costs its own slots.
    let mut partial = away(cluster(&[(2, Mark::Failed)]), 2);
    partial.nodes.iter_mut().for_each(|n| n.config = config(&[("cluster-require-full-coverage", "no")]));
    assert!((share(&finding(&partial, "slots_uncovered")) - 5462.0 / 16384.0).abs() < 1e-9);
    // Its peers suspect one that answers here: a failover is near, and nothing is lost yet.
    let doubted = finding(&cluster(&[(2, Mark::Suspected)]), "slots_uncovered");
    assert_eq!((doubted.impact.currency, doubted.severity), (Currency::Risk, Severity::Medium));
}

#[test]
fn one_node_that_still_holds_an_old_mark_is_no_failure() {
    let mut facts = cluster(&[]);
    facts.nodes[5].cluster = seen(ClusterView::parse(&nodes_text(6, &[(2, Mark::Failed)], "")).unwrap());
    let found = diagnose(&facts, &["slots_uncovered".into()]);
    assert!(found.findings.iter().all(|f| f.severity < Severity::High), "{:?}", found.findings);
}

#[test]
fn a_master_that_only_we_cannot_reach_is_not_called_dead() {
    let facts = away(cluster(&[]), 2);
    let found = finding(&facts, "node_unreachable");
    assert_eq!(found.severity, Severity::High);
    assert!(found.title.contains("from here") && found.title.contains("5 of 5 peers"), "{}", found.title);
    assert!(!commands(&found).contains("FAILOVER"), "{}", commands(&found));
    assert_eq!(answer(&facts, "slots_uncovered"), Answered::Unknown, "neither covered nor uncovered");
    // The replication link of its replica broke: that one has noticed, the others have not.
    let mut half = facts.clone();
    set_last(&mut half, 5, "master_link_status:down\nmaster_link_down_since_seconds:1");
    assert_eq!(finding(&half, "node_unreachable").severity, Severity::High);
}

#[test]
fn a_dead_replica_loses_no_request() {
    let facts = away(cluster(&[(5, Mark::Failed)]), 5);
    let found = finding(&facts, "node_unreachable");
    assert_eq!((found.severity, found.impact.currency), (Severity::Medium, Currency::Risk));
    assert!(
        found.impact.text.contains("no request is lost unless reads go to it; 10.0.0.2:6379 has no other copy left"),
        "{}",
        found.impact.text
    );
    assert_eq!(answer(&facts, "slots_uncovered"), Answered::Absent);
    let report = diagnose(&facts, &[]);
    let first = report.findings.iter().find(|f| f.id == "node_unreachable").unwrap();
    assert!(first.chain.iter().any(|l| l.id == "master_without_replica"), "{:?}", report.findings);
}

/// What the report says of what happens by itself.
fn outlook(facts: &Facts) -> String {
    finding(facts, "node_unreachable").impact.text
}

#[test]
fn what_happens_by_itself_is_told_and_why_nothing_does() {
    // Two of three masters are away: no majority.
    let two = away(away(cluster(&[(2, Mark::Suspected), (3, Mark::Suspected)]), 2), 3);
    assert!(outlook(&two).contains("1 of 3 masters can be reached, and an election needs 2"), "{}", outlook(&two));
    assert!(commands(&finding(&two, "node_unreachable")).contains("CLUSTER FAILOVER TAKEOVER"));
    assert!((share(&finding(&two, "node_unreachable")) - (5462.0 + 5461.0) / 16384.0).abs() < 1e-9);
    // Its replica is away too.
    let both = away(away(cluster(&[(2, Mark::Failed), (5, Mark::Failed)]), 2), 5);
    assert!(outlook(&both).contains("its only replica does not answer either"), "{}", outlook(&both));
    assert!(!commands(&finding(&both, "node_unreachable")).contains("CLUSTER FAILOVER"));
    // Its replica is set never to take over.
    let barred = away(cluster(&[(2, Mark::Failed), (5, Mark::NoFailover)]), 2);
    assert!(outlook(&barred).contains("cluster-replica-no-failover"), "{}", outlook(&barred));
    // Its replica has not heard from it for too long: 15 s x (10 + 1) + 10 s.
    let mut stale = away(cluster(&[(2, Mark::Failed)]), 2);
    set(&mut stale, 5, "master_link_status:down\nmaster_link_down_since_seconds:400");
    assert!(outlook(&stale).contains("400 s, and cluster-replica-validity-factor allows 175 s"), "{}", outlook(&stale));
    stale.nodes[4].config = config(&[("cluster-node-timeout", "15000"), ("cluster-replica-validity-factor", "0")]);
    assert!(outlook(&stale).contains("is promoted about 17 s"), "{}", outlook(&stale));
    // It should have happened long ago.
    let mut late = away(cluster(&[(2, Mark::Failed)]), 2);
    for node in &mut late.nodes {
        if let Some(value) = node.cluster.value_mut() {
            value.nodes.iter_mut().filter(|r| r.id == id(2)).for_each(|r| r.pong_received_ms = NOW_MS - 300_000);
        }
    }
    assert!(
        outlook(&late).contains("an election was due") && outlook(&late).contains(&address(5)),
        "{}",
        outlook(&late)
    );
}

#[test]
fn slots_that_were_taken_over_while_we_looked_are_not_lost() {
    let mut facts = away(cluster(&[(2, Mark::Failed)]), 2);
    set_last(&mut facts, 5, "role:master");
    let found = finding(&facts, "node_unreachable");
    assert_eq!((found.severity, found.impact.currency), (Severity::Medium, Currency::Risk));
    assert!(found.title.contains("10.0.0.5:6379 has taken over"), "{}", found.title);
    assert_eq!(answer(&facts, "slots_uncovered"), Answered::Absent);
}

#[test]
fn the_only_address_is_critical_whether_it_refuses_or_says_nothing() {
    let alone = || deployment(DeploymentKind::Standalone, vec![Node::new("10.0.0.1:6379", Role::Unknown)]);
    let refused = finding(&away(alone(), 1), "node_unreachable");
    assert_eq!((refused.severity, share(&refused), refused.confidence), (Severity::Critical, 1.0, Confidence::Likely));
    assert!(refused.impact.text.contains("nothing replaces it by itself"), "{}", refused.impact.text);
    let silent = finding(&hung(alone(), 1), "node_hangs");
    assert_eq!((silent.severity, share(&silent), silent.confidence), (Severity::Critical, 1.0, Confidence::Likely));
    // Each of the two is about the other's opposite.
    assert_ne!(answer(&hung(alone(), 1), "node_unreachable"), Answered::Present);
    assert_eq!(answer(&away(alone(), 1), "node_hangs"), Answered::Unknown);
    for rule in ["node_hangs", "node_unreachable"] {
        assert_eq!(answer(&deployment(DeploymentKind::Standalone, Vec::new()), rule), Answered::NotHere, "{rule}");
    }
}

#[test]
fn silence_of_all_nodes_is_told_with_its_doubt() {
    let one = finding(&hung(cluster(&[]), 2), "node_hangs");
    assert_eq!((one.severity, one.confidence), (Severity::Critical, Confidence::Likely));
    assert!(one.impact.text.contains("is promoted about 17 s"), "{}", one.impact.text);
    let all = (1..=6).fold(cluster(&[]), hung);
    let all = finding(&all, "node_hangs");
    assert_eq!((all.severity, all.confidence), (Severity::Critical, Confidence::Possible));
    assert!(all.confidence_why.contains("something on the way"), "{}", all.confidence_why);
    let replica = finding(&hung(cluster(&[]), 5), "node_hangs");
    assert_eq!((replica.severity, replica.impact.currency), (Severity::Medium, Currency::Risk));
    assert!(!commands(&replica).contains("FAILOVER"), "{}", commands(&replica));
}

#[test]
fn a_master_that_nothing_watches_is_promoted_by_hand() {
    let pair = |link: &str| {
        let mut replica = node(
            "10.0.0.2:6379",
            Role::Replica,
            &format!("role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nmaster_link_status:{link}\n"),
            "",
        );
        replica.master = Some(address(1));
        away(deployment(DeploymentKind::MasterReplica, vec![Node::new(&address(1), Role::Unknown), replica]), 1)
    };
    let down = finding(&pair("down"), "node_unreachable");
    assert_eq!((down.severity, share(&down), down.confidence), (Severity::Critical, 1.0, Confidence::Proven));
    assert!(commands(&down).contains("redis-cli -h 10.0.0.2 -p 6379 REPLICAOF NO ONE"), "{}", commands(&down));
    let up = finding(&pair("up"), "node_unreachable");
    assert_eq!(up.severity, Severity::High, "its replica is connected to it: {}", up.title);
}

// Sentinels.

#[test]
fn sentinels_that_are_well_rule_out_a_master_that_is_down() {
    assert_eq!(answer(&watched(["master"; 3]), "sentinel_master_down"), Answered::Absent);
    let mut deaf = watched(["master"; 3]);
    deaf.sentinels.iter_mut().for_each(|s| (s.unreachable, s.groups) = (Some("refused".into()), Vec::new()));
    assert_eq!(answer(&deaf, "sentinel_master_down"), Answered::Unknown);
}

#[test]
fn a_dead_master_of_sentinels_is_critical_and_says_what_they_will_do() {
    // They have not noticed yet.
    let mut early = away(watched(["master,disconnected"; 3]), 1);
    set_last(&mut early, 2, "master_link_status:down");
    let found = finding(&early, "node_unreachable");
    assert_eq!((found.severity, share(&found)), (Severity::Critical, 1.0));
    assert!(found.impact.text.contains("10.0.0.4:6379 is promoted about 7 s"), "{}", found.impact.text);
    assert!(
        commands(&found).contains("redis-cli -h 10.0.0.1 -p 26379 SENTINEL FAILOVER mymaster"),
        "{}",
        commands(&found)
    );
    assert_eq!(answer(&early, "sentinel_master_down"), Answered::Absent);
    // They have, and no replica may be promoted.
    let mut agreed = away(watched(["s_down,o_down,master"; 3]), 1);
    set(&mut agreed, 2, "slave_priority:0\nmaster_link_status:down");
    let found = finding(&agreed, "sentinel_master_down");
    assert_eq!((found.severity, share(&found), found.confidence), (Severity::Critical, 1.0, Confidence::Proven));
    assert!(found.impact.text.contains("replica-priority 0"), "{}", found.impact.text);
    let report = diagnose(&agreed, &[]);
    assert_eq!(report.findings[0].id, "node_unreachable");
    assert!(report.findings[0].chain.iter().any(|l| l.id == "sentinel_master_down"), "{:?}", report.findings);
    // Two of the three Sentinels are away as well.
    let mut few = agreed.clone();
    few.sentinels[1..].iter_mut().for_each(|s| (s.unreachable, s.groups) = (Some("refused".into()), Vec::new()));
    assert!(outlook(&few).contains("1 of 3 Sentinels can be reached, and a failover needs 2"), "{}", outlook(&few));
}

#[test]
fn sentinels_that_misjudge_a_living_master_are_a_finding_without_an_outage() {
    let all = finding(&watched(["s_down,o_down,master"; 3]), "sentinel_master_down");
    assert_eq!((all.severity, all.impact.currency), (Severity::High, Currency::Risk));
    assert!(all.title.contains("answers here"), "{}", all.title);
    assert!(
        commands(&all).contains("SENTINEL SET mymaster auth-pass") && !commands(&all).contains("FAILOVER"),
        "{}",
        commands(&all)
    );
    let one = finding(&watched(["master", "s_down,master", "master"]), "sentinel_master_down");
    assert_eq!(one.severity, Severity::Medium, "fewer than the quorum");
}

#[test]
fn every_sentinel_gets_its_own_line() {
    let mut facts = watched(["master"; 3]);
    facts.sentinels.iter_mut().flat_map(|s| &mut s.groups).for_each(|g| g.down_after_ms = 1000);
    let found = finding(&facts, "sentinel_down_after");
    for n in 1..=3 {
        let line = format!("redis-cli -h 10.0.0.{n} -p 26379 SENTINEL SET mymaster down-after-milliseconds 2000");
        assert!(found.remedies[0].commands.contains(&line), "{:?}", found.remedies[0]);
    }
    assert!(!found.remedies[0].exact && found.remedies[0].rollback.contains("down-after-milliseconds 1000"));
}

// What was not seen is not claimed.

#[test]
fn without_a_view_masters_are_counted_all_the_same() {
    let blind = |dead: &[usize]| {
        let mut facts = dead.iter().fold(cluster(&[]), |facts, n| away(facts, *n));
        facts.nodes.iter_mut().for_each(|n| n.cluster = Seen::default());
        for n in dead.iter().filter(|n| **n <= 3) {
            set_last(&mut facts, n + 3, "master_link_status:down\nmaster_link_down_since_seconds:1");
        }
        finding(&facts, "node_unreachable")
    };
    let one = blind(&[2]);
    assert!(one.impact.text.contains("10.0.0.5:6379 is promoted about 17 s"), "{}", one.impact.text);
    assert!(commands(&one).contains("CLUSTER FAILOVER FORCE"), "{}", commands(&one));
    let two = blind(&[2, 3]);
    assert!(two.impact.text.contains("1 of 3 masters can be reached"), "{}", two.impact.text);
    assert!(commands(&two).contains("CLUSTER FAILOVER TAKEOVER"), "{}", commands(&two));
    let none = finding(&(1..=6).fold(cluster(&[]), away), "node_unreachable");
    assert!(none.impact.text.contains("is not known"), "{}", none.impact.text);
}

#[test]
fn a_replica_without_a_copy_is_not_promoted() {
    for never in ["master_link_down_since_seconds:-1", "master_link_down_since_seconds:5\nmaster_sync_in_progress:1"] {
        let mut facts = away(cluster(&[(2, Mark::Failed)]), 2);
        set(&mut facts, 5, &format!("master_link_status:down\n{never}"));
        for rule in ["node_unreachable", "slots_uncovered"] {
            let found = finding(&facts, rule);
            assert!(!commands(&found).contains("CLUSTER FAILOVER"), "{rule}: {}", commands(&found));
        }
    }
    let mut facts = away(cluster(&[(2, Mark::Failed)]), 2);
    set(&mut facts, 5, "master_link_status:down\nmaster_link_down_since_seconds:-1");
    facts.nodes[4].config = Seen::default();
    assert!(outlook(&facts).contains("never had a whole copy"), "{}", outlook(&facts));
}

#[test]
fn given_addresses_that_are_all_dead_are_no_copies() {
    let given = || {
        let nodes = [1, 2].map(|n| Node::new(&address(n), Role::Unknown)).into();
        deployment(DeploymentKind::Sentinel, nodes)
    };
    let dead = finding(&away(away(given(), 1), 2), "node_unreachable");
    assert_eq!((dead.severity, share(&dead)), (Severity::Critical, 1.0));
    assert!(dead.title.contains("the addresses that were given"), "{}", dead.title);
    assert!(dead.impact.text.contains("is not known"), "{}", dead.impact.text);
    let silent = finding(&hung(hung(given(), 1), 2), "node_hangs");
    assert_eq!((silent.severity, share(&silent)), (Severity::Critical, 1.0));
    assert!(!silent.title.contains("master "), "{}", silent.title);
}

#[test]
fn the_dead_master_of_one_group_is_a_share() {
    let mut facts = watched(["master,disconnected"; 3]);
    facts.nodes.push(node(&address(2), Role::Master, "role:master\nredis_version:7.2.4\n", ""));
    for sentinel in &mut facts.sentinels {
        let mut other = sentinel.groups[0].clone();
        (other.service, other.master, other.flags) = ("other".into(), address(2), "master".into());
        sentinel.groups.push(other);
    }
    let mut facts = away(facts, 1);
    set_last(&mut facts, 2, "master_link_status:down");
    let found = finding(&facts, "node_unreachable");
    assert_eq!((found.severity, share(&found)), (Severity::Critical, 0.5));
    assert!(found.title.contains("every request to mymaster waits or fails"), "{}", found.title);
}

/// One that answers with a refusal.
fn refusing(facts: Facts, n: usize, lack: Lack, words: &str) -> Facts {
    let mut facts = away(facts, n);
    (facts.nodes[n - 1].away, facts.nodes[n - 1].unreachable) = (Some(lack), Some(words.into()));
    facts
}

#[test]
fn a_login_that_is_refused_is_no_dead_server() {
    let facts = refusing(cluster(&[]), 5, Lack::Rights, "10.0.0.5:6379: password refused for user \"doctor\"");
    let report = diagnose(&facts, &["node_unreachable".into()]);
    assert_eq!((report.only[0].answer, report.verdict), (Answered::Unknown, Conclusion::Blind));
    let gap = report.cannot_see.iter().find(|c| c.id == "node_unreachable").unwrap();
    assert!(gap.lack == Lack::Rights && gap.why.contains(&address(5)), "{gap:?}");
    let dead = away(facts, 2);
    assert_eq!(finding(&dead, "node_unreachable").subjects, [address(2)]);
}

#[test]
fn a_refusal_in_words_is_no_death() {
    let alone = || deployment(DeploymentKind::Standalone, vec![Node::new(&address(1), Role::Unknown)]);
    let full = "10.0.0.1:6379: the server is at maxclients and takes no one else; free a connection";
    let found = finding(&refusing(alone(), 1, Lack::Other, full), "node_unreachable");
    assert_eq!((found.severity, found.confidence), (Severity::High, Confidence::Proven));
    assert!(found.title.contains("serves those who are connected") && found.title.contains("maxclients"), "{found:?}");
    let busy = "INFO: BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
    let master = finding(&refusing(cluster(&[]), 2, Lack::Other, busy), "node_unreachable");
    assert_eq!(master.severity, Severity::Critical);
    assert!((share(&master) - 5462.0 / 16384.0).abs() < 1e-9);
    assert!(commands(&master).contains("SCRIPT KILL"), "{}", commands(&master));
    let loading = "INFO: LOADING Redis is loading the dataset in memory";
    let copy = finding(&refusing(cluster(&[]), 5, Lack::Other, loading), "node_unreachable");
    assert_eq!(copy.severity, Severity::Medium);
    assert!(copy.title.contains("is loading its data set"), "{}", copy.title);
    for found in [&found, &master, &copy] {
        let lines = commands(found);
        assert!(!lines.contains("systemctl") && !lines.contains("FAILOVER"), "{lines}");
    }
    let slots = finding(&refusing(cluster(&[(2, Mark::Failed)]), 2, Lack::Other, busy), "slots_uncovered");
    assert!(!commands(&slots).contains("CLUSTER FAILOVER"), "{}", commands(&slots));
    // Facts of before the kind of refusal was kept.
    let old = Node { away: None, ..refusing(alone(), 1, Lack::Other, full).nodes.remove(0) };
    let old = finding(&deployment(DeploymentKind::Standalone, vec![old]), "node_unreachable");
    assert_eq!(old.severity, Severity::Critical);
}

/// What a server that is there may answer, and a command of the remedy for it.
const REFUSALS: [(Lack, &str, &str); 7] = [
    (Lack::Rights, "10.0.0.1:6379: the server wants a password; set UNSLOW_PASSWORD", "--askpass PING"),
    (Lack::Rights, "10.0.0.1:6379: password refused for the default user", "--askpass PING"),
    (
        Lack::Other,
        "10.0.0.1:6379: the server is in protected mode and takes connections from its own machine only",
        "requirepass",
    ),
    (Lack::Other, "10.0.0.1:6379: the server is at maxclients and takes no one else", "CONFIG SET maxclients N"),
    (Lack::Other, "INFO: LOADING Redis is loading the dataset in memory", "INFO persistence"),
    (Lack::Other, "INFO: BUSY Redis is busy running a script. You can only call SCRIPT KILL", "SCRIPT KILL"),
    (Lack::Other, "INFO: ERR something of a module", " PING"),
];

#[test]
fn every_rule_follows_the_words_of_a_refusal_and_starts_nothing() {
    for (lack, words, remedy) in REFUSALS {
        let group = refusing(watched(["s_down,o_down,master"; 3]), 1, lack, words);
        let slots = refusing(cluster(&[(2, Mark::Failed)]), 2, lack, words);
        let copy = refusing(cluster(&[(5, Mark::Failed)]), 5, lack, words);
        for (facts, rule) in
            [(&group, "sentinel_master_down"), (&slots, "slots_uncovered"), (&copy, "master_without_replica")]
        {
            let all = commands(&finding(facts, rule));
            assert!(all.contains(remedy), "{rule}, {words}: {all}");
            assert!(!all.contains("systemctl") && !all.contains("CLUSTER FAILOVER"), "{rule}, {words}: {all}");
        }
        let found = finding(&group, "sentinel_master_down");
        assert!(found.title.contains("but it is up: "), "{}", found.title);
        // The Sentinels' login is at fault only where a login is.
        let of_login = matches!(remedy, "--askpass PING" | "requirepass");
        assert_eq!(commands(&found).contains("auth-pass PASSWORD"), of_login, "{words}: {}", commands(&found));
        let is_outage = words.contains("BUSY") || words.contains("LOADING");
        assert_eq!(found.severity, if is_outage { Severity::Critical } else { Severity::High }, "{words}");
    }
}

#[test]
fn a_password_that_lets_others_in_is_kept_and_can_be_taken_back() {
    let (lack, words, _) = REFUSALS[2];
    let found = finding(&refusing(watched(["s_down,o_down,master"; 3]), 1, lack, words), "sentinel_master_down");
    let all = commands(&found);
    assert!(all.contains("--askpass CONFIG REWRITE"), "{all}");
    let remedy = found.remedies.iter().find(|r| r.commands.iter().any(|c| c.contains("requirepass"))).unwrap();
    assert!(remedy.rollback.contains("--askpass CONFIG SET requirepass ''"), "{}", remedy.rollback);
    assert!(remedy.rollback.contains("CONFIG REWRITE"), "{}", remedy.rollback);
}

#[test]
fn where_info_is_denied_it_is_not_known_whether_anyone_asks() {
    let mut facts = hung(cluster(&[]), 2);
    for node in &mut facts.nodes {
        (node.first, node.last) = (None, None);
    }
    let found = finding(&facts, "node_hangs");
    assert!(found.impact.text.contains("could not be seen from here"), "{}", found.impact.text);
}

#[test]
fn a_process_that_hangs_is_not_started_either() {
    let slots = commands(&finding(&hung(cluster(&[(2, Mark::Failed)]), 2), "slots_uncovered"));
    let group = commands(&finding(&hung(watched(["s_down,o_down,master"; 3]), 1), "sentinel_master_down"));
    for all in [slots, group] {
        assert!(all.contains("kill -CONT") && !all.contains("systemctl"), "{all}");
    }
}

#[test]
fn a_replica_that_refuses_us_may_still_be_elected() {
    let facts = refusing(away(cluster(&[(2, Mark::Failed)]), 2), 5, Lack::Rights, "password refused");
    assert!(outlook(&facts).contains("one of its replicas is up but refuses our questions"), "{}", outlook(&facts));
    let mut group = away(watched(["s_down,o_down,master"; 3]), 1);
    group.nodes[1] = refusing(watched(["master"; 3]), 2, Lack::Rights, "password refused").nodes.remove(1);
    let found = finding(&group, "sentinel_master_down");
    assert!(found.impact.text.contains("one of its replicas is up but refuses our questions"), "{}", found.impact.text);
}

// What clients lose, where there are any.

/// An application at node `n`: 100 commands a second.
fn used(mut facts: Facts, n: usize) -> Facts {
    set_last(&mut facts, n, "cmdstat_get:calls=1000,usec=1000,usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n");
    facts
}

#[test]
fn without_an_application_nothing_is_said_to_be_lost() {
    let alone = || deployment(DeploymentKind::Standalone, vec![Node::new(&address(1), Role::Unknown)]);
    let unseen = [
        (hung(alone(), 1), "node_hangs"),
        (hung(cluster(&[]), 2), "node_hangs"),
        (away(alone(), 1), "node_unreachable"),
        (away(cluster(&[(2, Mark::Failed)]), 2), "slots_uncovered"),
        (away(watched(["s_down,o_down,master"; 3]), 1), "sentinel_master_down"),
    ];
    for (facts, rule) in unseen {
        let found = finding(&facts, rule);
        assert_eq!((found.affected, found.severity), (Affected::NextClient, Severity::Critical), "{rule}");
        // Nothing was measured where no server answered.
        let words = match facts.live().count() {
            0 => "whether applications use it could not be seen from here",
            _ => "no application traffic was seen in this window",
        };
        assert!(found.impact.text.contains(words), "{rule}: {}", found.impact.text);
    }
    // Another server of the deployment has one, or this one had one until it stopped answering.
    let mut half = alone();
    half.nodes[0].series = vec![Point {
        at_ms: 1000,
        commands_per_s: 500.0,
        cpu_user_share: 0.1,
        cpu_sys_share: 0.1,
        connections_per_s: None,
    }];
    half.nodes[0].silent_ms = Some(3000);
    half.nodes[0].unreachable = Some("no answer within 3.0 s".into());
    for (facts, rule) in [
        (hung(used(cluster(&[]), 1), 2), "node_hangs"),
        (half, "node_hangs"),
        (away(used(cluster(&[(2, Mark::Failed)]), 1), 2), "slots_uncovered"),
    ] {
        let found = finding(&facts, rule);
        assert_eq!(found.affected, Affected::Requests, "{rule}");
        assert!(!found.impact.text.contains("no application traffic was seen"), "{rule}: {}", found.impact.text);
    }
}

// Since when.

#[test]
fn a_hang_began_when_anyone_last_heard_the_server() {
    let pair = |replica_says: &str| {
        let info = format!("role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\n{replica_says}\n");
        let mut replica = node(&address(2), Role::Replica, &info, "");
        replica.master = Some(address(1));
        hung(deployment(DeploymentKind::MasterReplica, vec![Node::new(&address(1), Role::Unknown), replica]), 1)
    };
    let mut watched_for = hung(watched(["s_down,o_down,master"; 3]), 1);
    for (i, sentinel) in watched_for.sentinels.iter_mut().enumerate() {
        sentinel.groups[0].answered_at_ms = Some(NOW_MS - 400_000 - i as u64);
    }
    set(&mut watched_for, 2, "master_link_status:down");
    let mut in_window = hung(cluster(&[(2, Mark::Failed)]), 2);
    in_window.nodes[1].first = Some(Sample { at_ms: NOW_MS - 10_000, info: Info::default() });
    in_window.nodes[1].pings = vec![(1000, 200), (2000, 3000)];
    let alone = deployment(DeploymentKind::Standalone, vec![Node::new(&address(1), Role::Unknown)]);
    for (what, facts, since) in [
        ("its peers in the cluster", hung(cluster(&[(2, Mark::Failed)]), 2), Some(12_000)),
        ("us, later than its peers", in_window, Some(7997)),
        (
            "its replica, over a link that stands",
            pair("master_link_status:up\nmaster_last_io_seconds_ago:300"),
            Some(300_000),
        ),
        (
            "its replica, before repl-timeout ended the link",
            pair("master_link_status:down\nmaster_last_io_seconds_ago:-1\nmaster_link_down_since_seconds:40"),
            Some(100_000),
        ),
        ("its Sentinels", watched_for, Some(400_000)),
        ("none", hung(alone, 1), None),
    ] {
        let found = finding(&facts, "node_hangs");
        assert_eq!(found.since, since.map(|ago_ms: u64| NOW_MS - ago_ms), "{what}");
    }
    // One that is dead closed its connections when it died.
    let mut dead = pair("master_link_status:down\nmaster_last_io_seconds_ago:-1\nmaster_link_down_since_seconds:40");
    dead.nodes[0].silent_ms = None;
    assert_eq!(finding(&dead, "node_unreachable").since, Some(NOW_MS - 40_000));
}
