//! Rules about replication, the disk, memory and expiry.

use super::*;

/// A master with one replica that writes `rate` bytes a second into a backlog of 1 MB.
fn master(rate: u64, full: u64, failed: u64, more: &str) -> Node {
    let before = "connected_slaves:1\r\nslave0:ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0\r\n\
                  used_memory_dataset:90000000\r\n\
                  repl_backlog_size:1048576\r\nmaster_repl_offset:0\r\nsync_full:1\r\nsync_partial_ok:0\r\n\
                  sync_partial_err:0\r\nmaxmemory:0\r\n";
    let after =
        format!("master_repl_offset:{}\r\nsync_full:{}\r\nsync_partial_err:{failed}\r\n{more}", rate * 10, 1 + full);
    let mut node = server("7.0.15", 0.5, before, &after);
    let limit = "normal 0 0 0 slave 1048576 1048576 60 pubsub 33554432 8388608 60";
    node.config = settings(&[
        ("client-output-buffer-limit", limit),
        ("repl-timeout", "60"),
        ("slowlog-log-slower-than", "10000"),
    ]);
    node
}

#[test]
fn a_loop_by_the_output_buffer_is_not_the_backlogs() {
    // 43 full syncs, none of them tried in part: the replica's buffer of 1 MB is full before a copy is over.
    let facts = with_replica(master(8_000_000, 43, 0, ""));
    let report = together(&facts);
    assert_eq!(ids(&report), ["full_resync_loop"]);
    assert_eq!(answer(&facts, "backlog_too_small"), Answered::Absent);
    let found = &report.findings[0];
    assert!(found.title.contains("output limit") && found.confidence == Confidence::Likely, "{}", found.title);
    let fix = &found.remedies[0];
    assert!(
        fix.exact && fix.commands[0].contains("CONFIG SET client-output-buffer-limit \"replica 268435456"),
        "{fix:?}"
    );
    assert!(fix.rollback.contains("\"replica 1048576 1048576 60\""), "{fix:?}");
    assert!(
        !remedies(found).contains("repl-backlog-size") && !remedies(found).contains("repl-timeout"),
        "{}",
        remedies(found)
    );
    // Counted (7.4+) it is proven.
    let counted = master(8_000_000, 43, 0, "client_output_buffer_limit_disconnections:43\r\n");
    let mut counted = with_replica(counted);
    let zero = ("client_output_buffer_limit_disconnections".to_string(), "0".to_string());
    counted.nodes[0].first.as_mut().unwrap().info.0.extend([zero]);
    assert_eq!(finding(&counted, "full_resync_loop").confidence, Confidence::Proven);
}

#[test]
fn a_loop_by_the_backlog_stands_beneath_it() {
    let mut facts = with_replica(master(8_000_000, 4, 4, ""));
    // Attempts in part failed, but a buffer that is full before a copy is over ends every copy, whatever the backlog
    // holds.
    assert_eq!(ids(&together(&facts)), ["full_resync_loop"]);
    let roomy = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
    facts.nodes[0].config = settings(&[("client-output-buffer-limit", roomy), ("repl-timeout", "60")]);
    let report = together(&facts);
    let root = report.findings.iter().find(|f| f.id == "backlog_too_small").expect("the backlog is the cause");
    assert!(root.chain.iter().any(|l| l.id == "full_resync_loop"), "{:?}", root.chain);
    assert!(!ids(&report).contains(&"full_resync_loop"), "{:?}", ids(&report));
}

#[test]
fn the_causes_of_other_loops_are_named() {
    let mut history = with_replica(master(0, 4, 4, ""));
    assert!(finding(&history, "full_resync_loop").title.contains("another history"));
    // The replica's process was started in the window.
    let replica = &mut history.nodes[1];
    replica.last.as_mut().unwrap().info.0.extend(Info::parse("uptime_in_seconds:2\r\nrun_id:r2\r\n").0);
    let restarts = finding(&history, "full_resync_loop");
    assert!(restarts.title.contains("10.0.0.2:6379 restarts"), "{}", restarts.title);
    assert!(remedies(&restarts).contains("redis-cli -h 10.0.0.2 -p 6379"), "{}", remedies(&restarts));
    // As far apart as the timeout is long, and hardly any writes.
    let mut late = with_replica(master(10, 2, 0, ""));
    late.nodes[0].config = settings(&[("repl-timeout", "5")]);
    let late = finding(&late, "full_resync_loop");
    assert!(
        late.title.contains("repl-timeout") && remedies(&late).contains("CONFIG SET repl-timeout 60"),
        "{}",
        remedies(&late)
    );
    // A new replica syncs once, and so does one that was given another master: what it asked for in part failed.
    for failed in [0, 1] {
        assert_eq!(answer(&with_replica(master(8_000_000, 1, failed, "")), "full_resync_loop"), Answered::Absent);
    }
}

#[test]
fn replicas_without_a_limit_are_not_cut_off_by_one() {
    // The server counts the connections of all its clients together: these were subscribers.
    let mut node = master(1000, 43, 0, "client_output_buffer_limit_disconnections:43\r\n");
    let zero = ("client_output_buffer_limit_disconnections".to_string(), "0".to_string());
    node.first.as_mut().unwrap().info.0.extend([zero]);
    let limited = finding(&with_replica(node.clone()), "full_resync_loop");
    assert!(limited.title.contains("output limit"), "{}", limited.title);
    let unlimited = "normal 0 0 0 slave 0 0 0 pubsub 33554432 8388608 60";
    node.config = settings(&[("client-output-buffer-limit", unlimited), ("repl-timeout", "60")]);
    let found = finding(&with_replica(node), "full_resync_loop");
    assert!(!found.title.contains("output limit"), "{}", found.title);
    assert!(!remedies(&found).contains("CONFIG SET"), "{}", remedies(&found));
}

#[test]
fn a_backlog_in_a_loop_is_never_made_smaller() {
    let mut node = master(8_000_000, 4, 4, "used_memory_dataset:900000\r\nrepl_backlog_size:2097152\r\n");
    let roomy = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
    node.config = settings(&[("client-output-buffer-limit", roomy), ("repl-timeout", "60")]);
    let found = finding(&with_replica(node), "full_resync_loop");
    assert!(found.title.contains("because the backlog lasts"), "{}", found.title);
    let all = remedies(&found);
    assert!(!all.contains("CONFIG SET") && all.contains("redis-cli -h 10.0.0.2 -p 6379 INFO replication"), "{all}");
}

#[test]
fn a_backlog_is_never_larger_than_the_data_set() {
    let found = finding(&with_replica(master(8_000_000, 0, 0, "")), "backlog_too_small");
    // Five minutes would be 2.4 GB; the data set has 90 MB.
    let fix = &found.remedies[0];
    assert!(
        fix.exact && fix.commands == ["redis-cli -h 10.0.0.1 -p 6379 CONFIG SET repl-backlog-size 90177536"],
        "{fix:?}"
    );
    assert_eq!(fix.rollback, "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET repl-backlog-size 1048576");
    // Nor than a tenth of the memory.
    let small = finding(&with_replica(master(8_000_000, 0, 0, "maxmemory:104857600\r\n")), "backlog_too_small");
    assert!(small.remedies[0].commands[0].ends_with(" 10485760"), "{:?}", small.remedies[0]);
    // As large as the data: a larger one saves nothing.
    let enough = with_replica(master(8_000_000, 0, 0, "used_memory_dataset:900000\r\n"));
    assert_eq!(answer(&enough, "backlog_too_small"), Answered::Absent);
    assert_eq!(
        answer(&alone(server("7.0.15", 0.1, "", "connected_slaves:0\r\n")), "backlog_too_small"),
        Answered::NotHere
    );
}

fn aof(delayed: u64, policy: &str, on_rewrite: &str, more: &str) -> Node {
    let before = "aof_enabled:1\r\naof_delayed_fsync:0\r\naof_rewrites:0\r\n";
    let mut node = server("7.0.15", 0.5, before, &format!("aof_delayed_fsync:{delayed}\r\n{more}"));
    node.config = settings(&[
        ("appendfsync", policy),
        ("no-appendfsync-on-rewrite", on_rewrite),
        ("latency-monitor-threshold", "0"),
    ]);
    node
}

#[test]
fn remedies_of_the_aof_are_not_what_is_set_already() {
    let all = |node| remedies(&finding(&alone(node), "aof_fsync_stall"));
    let plain = all(aof(3, "everysec", "no", ""));
    assert!(!plain.contains("CONFIG SET"), "everysec is set, and no rewrite ran: {plain}");
    let rewriting = all(aof(3, "everysec", "no", "aof_rewrites:1\r\n"));
    assert!(
        rewriting.contains("CONFIG SET no-appendfsync-on-rewrite yes") && !rewriting.contains("appendfsync everysec"),
        "{rewriting}"
    );
    let set = all(aof(3, "everysec", "yes", "aof_rewrites:1\r\n"));
    assert!(!set.contains("CONFIG SET"), "{set}");
    // What gives up durability is a choice.
    let risky = finding(&alone(aof(3, "always", "no", "aof_rewrites:1\r\n")), "aof_fsync_stall");
    let back = "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET appendfsync always";
    assert!(risky.remedies.iter().any(|r| r.rollback == back), "{:?}", risky.remedies);
    assert!(remedies(&risky).contains("-p 6379 CONFIG SET no-appendfsync-on-rewrite yes"), "{}", remedies(&risky));
    assert!(risky.remedies.iter().all(|r| !r.exact), "{:?}", risky.remedies);
}

#[test]
fn aof_stalls_are_of_the_window_or_over() {
    let event = |ago_s: u64| {
        let at_s = NOW_MS / 1000 - ago_s;
        let event = LatencyEvent {
            name: "aof-fsync-always".into(),
            last_at_s: at_s,
            last_ms: 300,
            max_ms: 300,
            history: vec![(at_s, 300)],
        };
        let mut node = aof(0, "always", "no", "");
        node.latency = seen(vec![event]);
        alone(node)
    };
    let now = finding(&event(3), "aof_fsync_stall");
    assert_eq!((now.when, now.confidence), (When::Now, Confidence::Proven));
    assert!(remedies(&now).contains("CONFIG SET appendfsync everysec"), "{}", remedies(&now));
    let past = finding(&event(1200), "aof_fsync_stall");
    assert_eq!((past.when, past.since, past.severity), (When::Past, Some(NOW_MS - 1_200_000), Severity::Risk));
    // Of the day before.
    assert_eq!(answer(&event(90_000), "aof_fsync_stall"), Answered::Unknown);
}

#[test]
fn an_aof_is_ruled_out_only_where_its_waits_are_counted() {
    assert_eq!(answer(&alone(aof(0, "everysec", "no", "")), "aof_fsync_stall"), Answered::Absent);
    // Under `always` the counter stands still whatever happens.
    assert_eq!(answer(&alone(aof(0, "always", "no", "")), "aof_fsync_stall"), Answered::Unknown);
    let mut denied_settings = aof(0, "everysec", "no", "");
    denied_settings.config = Seen::No(denied("CONFIG GET"));
    assert_eq!(answer(&alone(denied_settings), "aof_fsync_stall"), Answered::Unknown);
    let mut off = aof(0, "everysec", "no", "");
    off.last.as_mut().unwrap().info.0.insert("aof_enabled".into(), "0".into());
    assert_eq!(answer(&alone(off), "aof_fsync_stall"), Answered::NotHere);
}

#[test]
fn delayed_syncs_that_no_request_waited_for_are_not_proven_to_hurt() {
    let mut node = aof(1, "everysec", "no", "");
    node.pings = vec![(100, 250), (200, 300)];
    assert_eq!(finding(&alone(node.clone()), "aof_fsync_stall").confidence, Confidence::Likely);
    node.pings.push((300, 900_000));
    let found = finding(&alone(node), "aof_fsync_stall");
    // Once 900 ms in ten seconds.
    assert!(found.confidence == Confidence::Proven && (found.impact.value - 40.5).abs() < 0.1, "{:?}", found.impact);
}

fn evicting(policy: &str, more: &str) -> Facts {
    let before = "evicted_keys:0\r\nkeyspace_hits:0\r\nkeyspace_misses:0\r\nmaxmemory:100000000\r\n";
    let after = format!(
        "evicted_keys:2000\r\nkeyspace_hits:300\r\nkeyspace_misses:700\r\nmaxmemory_policy:{policy}\r\n\
         db0:keys=100000\r\n{more}"
    );
    alone(server("7.0.15", 0.5, before, &after))
}

#[test]
fn remedies_of_evictions_follow_the_machine_and_the_policy() {
    let all = |policy, more| remedies(&finding(&evicting(policy, more), "eviction_pressure"));
    let room = all("allkeys-lru", "");
    assert!(room.contains("CONFIG SET maxmemory 150000000") && room.contains("maxmemory-policy allkeys-lfu"), "{room}");
    let full = all("allkeys-lfu", "total_system_memory:150000000\r\n");
    assert!(!full.contains("CONFIG SET maxmemory 150000000") && !full.contains("maxmemory-policy"), "{full}");
    assert!(all("volatile-ttl", "").contains("maxmemory-policy volatile-lfu"));
    // A cache whose reads hit.
    let fine = evicting("allkeys-lru", "keyspace_hits:99000\r\n");
    assert_eq!(answer(&fine, "eviction_pressure"), Answered::Absent);
    assert!(text_of(&fine, "eviction_pressure").contains("200 keys a second"));
    let unlimited = alone(server("7.0.15", 0.1, "evicted_keys:0\r\n", "maxmemory:0\r\n"));
    assert_eq!(answer(&unlimited, "eviction_pressure"), Answered::NotHere);
}

#[test]
fn before_6_0_expiry_costs_what_the_limit_of_its_cycle_says() {
    let before = "expired_keys:0\r\nexpired_time_cap_reached_count:0\r\nexpired_stale_perc:30.00\r\n";
    let expires = |capped: u32| {
        let after =
            format!("expired_keys:2000\r\nexpired_time_cap_reached_count:{capped}\r\nexpired_stale_perc:30.00\r\n");
        alone(server("5.0.6", 2.0, before, &after))
    };
    assert_eq!(answer(&expires(0), "expire_storm"), Answered::Absent, "200 keys a second that cost nothing");
    assert_eq!(answer(&expires(100), "expire_storm"), Answered::Present);
}

#[test]
fn freeing_in_the_background_is_offered_where_it_is_off() {
    let before = "expired_keys:0\r\nexpire_cycle_cpu_milliseconds:0\r\n";
    let mut node = server("7.0.15", 2.0, before, "expired_keys:100000\r\nexpire_cycle_cpu_milliseconds:1200\r\n");
    node.config = settings(&[("lazyfree-lazy-expire", "yes")]);
    let on = finding(&alone(node.clone()), "expire_storm");
    assert!(!remedies(&on).contains("lazyfree") && on.title.contains("12 %"), "{} {}", on.title, remedies(&on));
    node.config = settings(&[("lazyfree-lazy-expire", "no")]);
    let off = finding(&alone(node), "expire_storm");
    assert!(
        off.remedies.iter().any(|r| r.exact && r.commands[0].ends_with("lazyfree-lazy-expire yes")),
        "{:?}",
        off.remedies
    );
}

#[test]
fn every_remedy_says_something() {
    let all = [
        finding(&alone(keys_in_scripts("7.2.4")), "keys_command"),
        finding(&alone(big("7.0.15", "DEL", "hash", 200_000)), "big_key"),
        finding(&with_replica(master(8_000_000, 43, 0, "")), "full_resync_loop"),
        finding(&with_replica(master(8_000_000, 0, 0, "")), "backlog_too_small"),
        finding(&alone(aof(3, "everysec", "no", "")), "aof_fsync_stall"),
        finding(&evicting("allkeys-lru", ""), "eviction_pressure"),
        finding(&monitored(1000, false, true), "monitor_attached"),
    ];
    for remedy in all.iter().flat_map(|f| &f.remedies) {
        assert!(!remedy.text.is_empty() && !remedy.commands.is_empty(), "{remedy:?}");
        for text in [&remedy.risk, &remedy.rollback] {
            assert!(!["none", "none needed", "as it was"].contains(&text.as_str()), "{remedy:?}");
        }
        // What can be run as it stands names its server, and holds no place for a name.
        let runs = |c: &String| c.starts_with("redis-cli -h ") && !c.contains('<') && !c.contains("   ");
        assert!(!remedy.exact || remedy.commands.iter().all(runs), "{remedy:?}");
    }
}
