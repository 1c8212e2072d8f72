//! Elections and stalls: what was measured in the window, and what is over.

use unslow_doctor::{Answered, Confidence, Currency, Severity, When, diagnose};
use unslow_facts::{Facts, LatencyEvent, Seen, SlowEntry};
use unslow_topology::{DeploymentKind, Role};

use crate::common::{NOW_MS, answer, deployment, finding, node, seen};
use crate::{Mark, address, away, cluster, commands, config, set, set_last, watched};

// B7: elections.

/// The second shard after an election: node 5 won it, and node 2 follows.
fn after_election(winner: &str, loser: &str) -> Facts {
    let mut facts = cluster(&[]);
    set(&mut facts, 5, &format!("role:master\nsecond_repl_offset:100\nsync_full:0\n{winner}"));
    set(&mut facts, 2, &format!("role:slave\nmaster_host:10.0.0.5\nmaster_port:6379\n{loser}"));
    (facts.nodes[4].role, facts.nodes[1].role) = (Role::Master, Role::Replica);
    (facts.nodes[4].master, facts.nodes[1].master) = (None, Some(address(5)));
    let messages = |name: &str| format!("cluster_stats_messages_{name}");
    let counters = [
        (messages("fail_received"), "1"),
        (messages("auth-req_sent"), "5"),
        (messages("auth-ack_received"), "2"),
        ("cluster_known_nodes".into(), "6"),
    ];
    facts.nodes[4].cluster_info = seen(counters.map(|(k, v)| (k, v.to_string())).into());
    facts
}

#[test]
fn a_living_master_that_was_voted_out_before_the_window_is_of_the_past_and_not_proven() {
    let facts = after_election("", "sync_full:1");
    let found = finding(&facts, "failover_flapping");
    assert_eq!((found.when, found.confidence), (When::Past, Confidence::Likely));
    assert!(found.severity <= Severity::Risk, "one election gives no rate: {}", found.impact.text);
    assert!(found.since.is_some_and(|ms| ms > 0 && ms <= NOW_MS - 10_000), "{:?}", found.since);
    // Young processes change nothing about that.
    let young =
        finding(&after_election("uptime_in_seconds:9", "sync_full:1\nuptime_in_seconds:9"), "failover_flapping");
    assert_eq!((young.when, young.impact.currency), (When::Past, Currency::Risk));
    // Before 7.0 a CLUSTER FAILOVER leaves no trace of its own.
    let old = finding(&after_election("redis_version:6.2.1", "sync_full:1"), "failover_flapping");
    assert_eq!(old.confidence, Confidence::Possible);
}

#[test]
fn a_rate_needs_two_elections_and_an_hour() {
    let mut facts = after_election("uptime_in_seconds:172800", "sync_full:1");
    if let Some(value) = facts.nodes[4].cluster_info.value_mut() {
        value.insert("cluster_stats_messages_auth-req_sent".into(), "20".into());
    }
    let found = finding(&facts, "failover_flapping");
    assert_eq!((found.when, found.impact.currency), (When::Past, Currency::Availability));
    assert!(found.impact.text.contains("4 times in 2 days"), "{}", found.impact.text);
    set(&mut facts, 5, "uptime_in_seconds:1000");
    assert_eq!(finding(&facts, "failover_flapping").impact.currency, Currency::Risk, "a quarter of an hour is no base");
}

#[test]
fn restarts_and_failovers_that_were_asked_for_are_no_flapping() {
    // The old master's process has never served a replica: it was restarted.
    let restarted = after_election("", "sync_full:0\nsync_partial_ok:0\nuptime_in_seconds:30");
    assert_eq!(answer(&restarted, "failover_flapping"), Answered::Absent);
    let asked = after_election(
        "cmdstat_cluster|failover:calls=1,usec=10,usec_per_call=10,rejected_calls=0,failed_calls=0",
        "sync_full:1",
    );
    assert_eq!(answer(&asked, "failover_flapping"), Answered::Absent);
    let mut unseen = cluster(&[]);
    unseen.nodes.iter_mut().for_each(|n| n.cluster_info = Seen::default());
    assert_eq!(answer(&unseen, "failover_flapping"), Answered::Unknown);
}

#[test]
fn a_role_that_changes_in_the_window_is_proven_and_of_now() {
    let flip = |facts: &mut Facts| {
        set_last(facts, 2, "role:slave\nmaster_host:10.0.0.5\nmaster_port:6379");
        set_last(facts, 5, "role:master\nsecond_repl_offset:100");
    };
    let mut facts = cluster(&[]);
    flip(&mut facts);
    let found = finding(&facts, "failover_flapping");
    assert_eq!(
        (found.when, found.confidence, found.impact.currency),
        (When::Now, Confidence::Proven, Currency::Availability)
    );
    // Another process stands at its address: it was restarted.
    let mut restarted = facts.clone();
    set_last(&mut restarted, 2, "run_id:another");
    assert_eq!(answer(&restarted, "failover_flapping"), Answered::Absent);
    // The old master is dead: that is node_unreachable's.
    let mut dead = away(cluster(&[(2, Mark::Failed)]), 2);
    set_last(&mut dead, 5, "role:master\nsecond_repl_offset:100");
    assert_eq!(answer(&dead, "failover_flapping"), Answered::Absent);
}

#[test]
fn an_election_that_is_over_ranks_below_what_costs_now() {
    let mut facts = after_election("uptime_in_seconds:2592000", "sync_full:1");
    set(&mut facts, 1, "maxmemory:1000000\nmaxmemory_policy:noeviction\ntotal_commands_processed:0\n");
    let refused = "errorstat_OOM:count=100\ntotal_commands_processed:200\n\
                   cmdstat_set:calls=200,usec=400,usec_per_call=2,rejected_calls=100,failed_calls=0\n";
    set_last(&mut facts, 1, refused);
    let report = diagnose(&facts, &[]);
    let at = |id: &str| report.findings.iter().position(|f| f.id == id);
    assert!(at("out_of_memory").is_some() && at("out_of_memory") < at("failover_flapping"), "{:?}", report.findings);
}

// B8: of what time.

#[test]
fn stalls_on_record_say_when_they_were() {
    let slow = |at_s: u64| SlowEntry {
        id: 1,
        at_s,
        us: 9_000_000,
        command: "EVAL".into(),
        args: 2,
        key: None,
        client: String::new(),
        client_name: String::new(),
    };
    let mut facts = cluster(&[]);
    facts.nodes[0].slowlog = seen(vec![slow(NOW_MS / 1000 - 3600)]);
    let old = finding(&facts, "node_timeout_margin");
    assert_eq!((old.when, old.since), (When::Past, Some(NOW_MS - 3_600_000)));
    facts.nodes[0].slowlog = seen(vec![slow(NOW_MS / 1000 - 3)]);
    assert_eq!(finding(&facts, "node_timeout_margin").when, When::Now);
    facts.nodes[0].slowlog = Seen::default();
    set(&mut facts, 1, "latest_fork_usec:9000000\ntotal_forks:1");
    let lifetime = finding(&facts, "node_timeout_margin");
    assert_eq!((lifetime.when, lifetime.since), (When::SinceStart, Some(NOW_MS - 90_000_000)));
    assert!(finding(&facts, "node_timeout_margin").remedies[0].commands.len() == 6, "a line for each node");
    // A short timeout without a stall is no finding.
    assert_eq!(answer(&cluster(&[]), "node_timeout_margin"), Answered::Absent);
}

#[test]
fn a_fork_is_of_now_only_if_it_was_in_the_window() {
    let server = |before: &str, after: &str| {
        let fork = "latest_fork_usec:1500000\nused_memory_rss:1000000000\nrole:master\n";
        deployment(DeploymentKind::Standalone, vec![node(&address(1), Role::Master, &format!("{fork}{before}"), after)])
    };
    let once = finding(&server("total_forks:1\nuptime_in_seconds:7200", ""), "fork_stall");
    assert_eq!((once.when, once.since), (When::Past, Some(NOW_MS - 7_200_000)));
    let nightly = finding(&server("total_forks:30\nuptime_in_seconds:864000", ""), "fork_stall");
    assert_eq!(nightly.when, When::SinceStart);
    assert!((nightly.impact.value - 4.5).abs() < 1e-9, "30 forks of 1.5 s in ten days: {}", nightly.impact.text);
    let now = finding(&server("total_forks:1\nuptime_in_seconds:7200", "total_forks:2"), "fork_stall");
    assert_eq!((now.when, now.severity), (When::Now, Severity::High));
    let mut timed = server("total_forks:1\nuptime_in_seconds:7200", "");
    let spike = LatencyEvent {
        name: "fork".into(),
        last_at_s: NOW_MS / 1000 - 60,
        last_ms: 1500,
        max_ms: 1500,
        history: Vec::new(),
    };
    timed.nodes[0].latency = seen(vec![spike]);
    assert_eq!(finding(&timed, "fork_stall").since, Some(NOW_MS - 60_000));
}

#[test]
fn a_small_server_that_lost_its_processor_while_it_forked_has_no_slow_fork() {
    let forked = |us: u32, rss: u64| {
        let info = format!("latest_fork_usec:{us}\nused_memory_rss:{rss}\ntotal_forks:1\nrole:master\n");
        let server = node(&address(1), Role::Master, &info, "");
        answer(&deployment(DeploymentKind::Standalone, vec![server]), "fork_stall")
    };
    const MB: u64 = 1_000_000;
    assert_eq!(forked(45_000, 10 * MB), Answered::Absent, "no page tables of 10 MB take 45 ms");
    assert_eq!(forked(45_000, 200 * MB), Answered::Present, "225 ms per GB, as on old Xen guests");
    assert_eq!(forked(45_000, 2000 * MB), Answered::Absent, "23 ms per GB");
    assert_eq!(forked(400_000, 10 * MB), Answered::Present, "whatever it is, it is long");
}

#[test]
fn saving_on_average_since_the_start_is_no_measurement_of_the_window() {
    let info = "role:master\ntotal_forks:300\nsync_full:0\nuptime_in_seconds:7200\nused_cpu_user_children:720\n\
                used_cpu_sys_children:0\n";
    let mut facts = deployment(DeploymentKind::Standalone, vec![node(&address(1), Role::Master, info, "")]);
    facts.nodes[0].config = config(&[("save", "60 1")]);
    let found = finding(&facts, "save_too_often");
    assert_eq!((found.when, found.confidence), (When::SinceStart, Confidence::Likely));
    assert!((found.impact.value - 0.1).abs() < 1e-9, "720 s of CPU in 7200 s: {}", found.impact.text);
    // To lose an hour instead of a minute is a choice.
    let hourly = &found.remedies[0];
    assert_eq!(hourly.commands, ["redis-cli -h 10.0.0.1 -p 6379 CONFIG SET save \"3600 1\""]);
    assert!(!hourly.exact && hourly.rollback.ends_with("CONFIG SET save \"60 1\""), "{hourly:?}");
}

/// An entry of the slow log, so many seconds before the end of the window.
fn stalled(ago_s: u64, us: u64) -> Seen<Vec<SlowEntry>> {
    let (command, client, client_name) = ("EVAL".into(), String::new(), String::new());
    seen(vec![SlowEntry { id: 1, at_s: NOW_MS / 1000 - ago_s, us, command, args: 2, key: None, client, client_name }])
}

#[test]
fn a_longer_timeout_is_exact_for_a_stall_of_the_window_and_a_minute_at_most() {
    let of = |n: usize, ago_s: u64, us: u64| {
        let mut facts = cluster(&[]);
        facts.nodes[n - 1].slowlog = stalled(ago_s, us);
        finding(&facts, "node_timeout_margin")
    };
    let now = of(1, 3, 9_000_000);
    assert!(now.remedies[0].exact && commands(&now).matches("cluster-node-timeout 18000").count() == 6, "{now:?}");
    assert!(now.impact.text.contains("without that master"), "{}", now.impact.text);
    assert!(!of(1, 3600, 9_000_000).remedies[0].exact, "it is over");
    let long = of(1, 3, 400_000_000);
    assert!(!long.remedies[0].exact && commands(&long).contains("cluster-node-timeout 60000"), "{long:?}");
    assert!(long.gain.text.contains("60000 ms"), "{:?}", long.gain);
    let replica = of(5, 3, 9_000_000);
    assert!(!replica.impact.text.contains("without that master"), "{}", replica.impact.text);

    let fork = |us: u64| {
        let mut facts = cluster(&[]);
        set(&mut facts, 2, &format!("latest_fork_usec:{us}\ntotal_forks:1"));
        finding(&facts, "fork_stall").remedies[0].clone()
    };
    let past = fork(9_000_000);
    assert!(
        past.exact && past.commands.len() == 6 && past.commands[0].ends_with("cluster-node-timeout 22500"),
        "{past:?}"
    );
    let long = fork(30_000_000);
    assert!(!long.exact && long.commands[0].ends_with("cluster-node-timeout 60000"), "{long:?}");
}

#[test]
fn no_line_for_a_sentinel_is_run_by_a_script() {
    let mut facts = watched(["master"; 3]);
    facts.nodes[0].slowlog = stalled(3, 4_000_000);
    let found = finding(&facts, "node_timeout_margin");
    assert!(commands(&found).contains("SENTINEL SET mymaster down-after-milliseconds 8000"), "{}", commands(&found));
    assert!(found.remedies.iter().all(|r| !r.exact), "{:?}", found.remedies);
}

#[test]
fn a_planned_failover_before_7_0_is_not_proven_an_election() {
    let flip = |version: &str| {
        let mut facts = cluster(&[]);
        (1..=6).for_each(|n| set(&mut facts, n, &format!("redis_version:{version}")));
        set_last(&mut facts, 2, "role:slave\nmaster_host:10.0.0.5\nmaster_port:6379");
        set_last(&mut facts, 5, "role:master\nsecond_repl_offset:100");
        facts
    };
    let mut old = flip("6.2.14");
    let found = finding(&old, "failover_flapping");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Risk, Confidence::Possible));
    assert_eq!(found.severity, Severity::Risk);
    if let Some(value) = old.nodes[0].cluster_info.value_mut() {
        value.insert("cluster_stats_messages_fail_received".into(), "1".into());
    }
    let counted = finding(&old, "failover_flapping");
    assert_eq!((counted.impact.currency, counted.confidence), (Currency::Availability, Confidence::Likely));
    // 15 s of timeout, and a window of 10 s at whose start the role was there.
    let new = finding(&flip("7.2.4"), "failover_flapping");
    assert_eq!((new.impact.value, new.confidence), (10.0, Confidence::Proven));
}
