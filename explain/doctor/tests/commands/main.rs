//! Rules about commands, scripts, keys and monitoring ([`upkeep`]: replication, disk, memory, expiry): facts by hand,
//! each with its look-alikes.

#[path = "../common/mod.rs"]
mod common;
mod upkeep;

use common::{NOW_MS, answer, deployment, finding, node, seen};
use unslow_doctor::measure::{CONSTANT_TIME, PER_ARGUMENT, WITHOUT_COUNT, is_victim};
use unslow_doctor::{Answered, Confidence, Currency, Finding, Report, Severity, When, diagnose};
use unslow_facts::{
    ClientGroup, ClientRow, Clients, Facts, Gap, Host, KeySize, Lack, LatencyEvent, Node, Process, Seen, SlowEntry,
    TimeRange,
};
use unslow_topology::{DeploymentKind, Info, Role};

const ADDRESS: &str = "10.0.0.1:6379";

/// A line of commandstats.
fn stat(name: &str, calls: u64, usec: u64) -> String {
    format!("cmdstat_{name}:calls={calls},usec={usec},usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n")
}

/// A server of this version that used `cpu_s` seconds of CPU in a window of ten; `before` and `after` are more of its
/// INFO.
fn server(version: &str, cpu_s: f64, before: &str, after: &str) -> Node {
    let info = |at_ms: u64, cpu: f64, commands: u64| {
        format!(
            "redis_version:{version}\r\nrole:master\r\nuptime_in_seconds:90000\r\nused_memory:100000000\r\n\
             connected_clients:10\r\n\
             total_system_memory:16000000000\r\nserver_time_usec:{}\r\nused_cpu_user_main_thread:{cpu}\r\n\
             used_cpu_sys_main_thread:0\r\ntotal_commands_processed:{commands}\r\ntotal_reads_processed:{commands}\r\n\
             total_connections_received:0\r\ntotal_net_output_bytes:0\r\n{}",
            at_ms * 1000,
            stat("ping", commands, commands)
        )
    };
    let (first, last) = (info(NOW_MS - 10_000, 0.0, 0) + before, info(NOW_MS, cpu_s, 1000) + after);
    let mut node = node(ADDRESS, Role::Master, &first, &last);
    node.config = settings(&[("slowlog-log-slower-than", "10000")]);
    node.slowlog = seen(Vec::new());
    node.latency = seen(Vec::new());
    node.key_sizes = seen(Vec::new());
    node.clients = seen(Clients { total: 10, listed: 10, ..Clients::default() });
    node
}

fn settings(all: &[(&str, &str)]) -> Seen<std::collections::BTreeMap<String, String>> {
    seen(all.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
}

/// A slow log entry, `ago_s` seconds before the end of the window.
fn entry(id: u64, ago_s: u64, us: u64, command: &str, args: u32, key: Option<&str>) -> SlowEntry {
    SlowEntry {
        id,
        at_s: NOW_MS / 1000 - ago_s,
        us,
        command: command.into(),
        args,
        key: key.map(Into::into),
        client: "10.0.0.9:5".into(),
        client_name: "app".into(),
    }
}

fn entries(n: u64, us: u64, command: &str, args: u32, key: Option<&str>) -> Vec<SlowEntry> {
    (0..n).map(|id| entry(id + 1, 1 + id % 8, us, command, args, key)).collect()
}

fn alone(node: Node) -> Facts {
    deployment(DeploymentKind::Standalone, vec![node])
}

fn with_replica(master: Node) -> Facts {
    let info =
        "redis_version:7.0.15\r\nrole:slave\r\nmaster_link_status:up\r\nuptime_in_seconds:90000\r\nrun_id:r1\r\n";
    let mut replica = node("10.0.0.2:6379", Role::Replica, info, info);
    replica.master = Some(ADDRESS.into());
    replica.clients = seen(Clients::default());
    deployment(DeploymentKind::MasterReplica, vec![master, replica])
}

fn text_of(facts: &Facts, rule: &str) -> String {
    diagnose(facts, &[rule.to_string()]).only[0].text.clone()
}

/// What the rules about commands make of it together.
fn together(facts: &Facts) -> Report {
    let rules = [
        "keys_command",
        "big_key",
        "long_script",
        "slow_command",
        "monitoring_storm",
        "backlog_too_small",
        "full_resync_loop",
    ];
    diagnose(facts, &rules.map(String::from))
}

fn ids(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|f| f.id.as_str()).collect()
}

/// All that a finding tells to do.
fn remedies(f: &Finding) -> String {
    f.remedies.iter().map(|r| format!("{} {} {} {}\n", r.text, r.commands.join("; "), r.risk, r.rollback)).collect()
}

fn denied(what: &str) -> Gap {
    Gap::new(Lack::Rights, format!("{what} is denied to this user"), "")
}

// Slow commands.

#[test]
fn an_mget_of_thousands_of_keys_is_a_cause_and_one_of_a_few_is_a_victim() {
    let mget = |args| {
        let mut node = server("7.0.15", 0.7, "", &stat("mget", 51, 561_000));
        node.slowlog = seen(entries(51, 11_000, "MGET", args, None));
        alone(node)
    };
    // The slow log keeps 32 words of a command, however many it had.
    let found = finding(&mget(32), "slow_command");
    assert!(found.title.contains("MGET") && found.title.contains("11 ms on average"), "{}", found.title);
    assert!(remedies(&found).contains("at most 100 keys"), "{}", remedies(&found));
    assert_eq!(answer(&mget(4), "slow_command"), Answered::Absent);
    // Where the slow log is denied its mean is enough: the CPU time says that it was at work.
    let mut blind = mget(32);
    blind.nodes[0].slowlog = Seen::No(denied("SLOWLOG"));
    assert_eq!(answer(&blind, "slow_command"), Answered::Present);
}

#[test]
fn victims_are_known_by_the_command_and_its_arguments() {
    for (command, args, victim) in [
        ("GET", 2, true),
        ("MGET", 31, true),
        ("MGET", 32, false),
        ("HMGET", 32, false),
        ("LPOP", 2, true),
        ("LPOP", 3, false),
        ("SPOP", 3, false),
        ("LINDEX", 3, false),
        ("PUBLISH", 3, false),
        ("XREADGROUP", 9, false),
        ("HGETALL", 2, false),
    ] {
        assert_eq!(is_victim(&entry(1, 1, 12_000, command, args, None)), victim, "{command} with {args} words");
    }
    let lists = [CONSTANT_TIME, PER_ARGUMENT, WITHOUT_COUNT].concat();
    let mut once = lists.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), lists.len(), "a command stands in one list");
}

#[test]
fn the_writing_of_megabytes_belongs_to_the_command_that_returns_them() {
    let gets = |bytes: u64| {
        let after = stat("get", 50, 100_000) + &format!("total_net_output_bytes:{bytes}\r\n");
        alone(server("7.0.15", 1.2, "", &after))
    };
    // 50 GETs of 10 MB: 2 ms inside each, and 22 ms of CPU outside.
    let found = finding(&gets(500_000_000), "slow_command");
    assert!(found.title.contains("GET") && found.title.contains("to write each reply"), "{}", found.title);
    let waits = found.impact.value;
    assert!((1.0..2.0).contains(&waits), "a tenth of the requests wait for 12 ms on average: {waits}");
    // A list of the same size goes out in pieces of 64 kB, and others are served in between.
    let after = stat("lrange", 50, 100_000) + "total_net_output_bytes:500000000\r\n";
    let waits = finding(&alone(server("7.0.15", 1.2, "", &after)), "slow_command").impact.value;
    assert!((0.01..0.05).contains(&waits), "1 % wait a millisecond, 11 % a piece of 0.14 ms: {waits}");
    // A server that has reached maxmemory writes it in one piece.
    let full = after.clone() + "maxmemory:1000000\r\nused_memory:1000001\r\n";
    let waits = finding(&alone(server("7.0.15", 1.2, "", &full)), "slow_command").impact.value;
    assert!((1.0..2.0).contains(&waits), "as a string: {waits}");
    // Few bytes: the CPU time outside commands is not its.
    assert_eq!(answer(&gets(50_000), "slow_command"), Answered::Absent);
    // Others answer with data as well: the bytes are theirs by the time they took.
    let after = stat("get", 50, 1_000) + &stat("lrange", 100_000, 900_000) + "total_net_output_bytes:500000000\r\n";
    assert_eq!(answer(&alone(server("7.0.15", 1.9, "", &after)), "slow_command"), Answered::Absent);
}

#[test]
fn time_inside_commands_that_was_not_cpu_time_is_the_hosts() {
    let smembers = |cpu_s| alone(server("7.0.15", cpu_s, "", &stat("smembers", 1000, 1_200_000)));
    assert_eq!(answer(&smembers(1.3), "slow_command"), Answered::Present);
    assert_eq!(answer(&smembers(0.2), "slow_command"), Answered::Absent);
}

#[test]
fn mean_maximum_and_share_have_their_own_words() {
    let mut node = server("7.0.15", 1.0, "", &stat("keys", 20, 220_000));
    node.last.as_mut().unwrap().info.0.insert("db0".into(), "keys=100000,expires=0".into());
    node.slowlog = seen(vec![entry(1, 2, 52_000, "KEYS", 2, None), entry(2, 3, 11_000, "KEYS", 2, None)]);
    let found = finding(&alone(node), "keys_command");
    for word in ["11 ms on average", "52 ms at most", "2.2 % of the window", "100,000 keys"] {
        assert!(found.title.contains(word), "{word}: {}", found.title);
    }
    assert!(found.gain.text.contains("instead of 11 ms"), "{:?}", found.gain);
}

/// Ten calls of 2 to 4 ms and ten of 17 to 34 ms, 11 ms on average.
#[test]
fn waits_behind_calls_of_varying_length_are_longer_than_half_their_mean() {
    let ranges = [TimeRange { up_to_us: 4227, calls: 10 }, TimeRange { up_to_us: 33_816, calls: 10 }];
    let by = |command: &str| seen([(command.to_string(), ranges.to_vec())].into());
    let whole = entries(20, 11_000, "KEYS", 2, None);
    for (what, histograms, log, expected) in [
        ("the mean alone", Seen::default(), Vec::new(), "5.5 ms"),
        ("histograms", by("keys"), Vec::new(), "8.83 ms"),
        ("of another command", by("get"), Vec::new(), "5.5 ms"),
        ("a slow log of a few calls", by("keys"), whole[..2].to_vec(), "8.83 ms"),
        ("a slow log of all calls", by("keys"), whole.clone(), "5.5 ms"),
    ] {
        let mut node = server("7.0.15", 1.0, "", &stat("keys", 20, 220_000));
        (node.histograms, node.slowlog) = (histograms, seen(log));
        let text = finding(&alone(node), "keys_command").impact.text;
        assert!(text.contains(&format!("wait {expected}")), "{what}: {text}");
    }
}

#[test]
fn without_commandstats_nothing_is_ruled_out() {
    let mut node = server("7.0.15", 0.1, "", "");
    for sample in [&mut node.first, &mut node.last] {
        sample.as_mut().unwrap().info.0.retain(|k, _| !k.starts_with("cmdstat_"));
    }
    let facts = alone(node);
    for rule in ["slow_command", "keys_command", "long_script", "monitoring_storm"] {
        assert_eq!(answer(&facts, rule), Answered::Unknown, "{rule}");
    }
}

// KEYS and scripts.

/// EVALs with KEYS inside: commandstats has the time twice, the slow log the script alone.
fn keys_in_scripts(version: &str) -> Node {
    let mut node = server(version, 1.0, "", &(stat("eval", 10, 400_000) + &stat("keys", 10, 390_000)));
    node.slowlog = seen(entries(10, 40_000, "EVAL", 5, None));
    node
}

#[test]
fn keys_in_a_script_is_one_stall_one_finding_and_one_chain() {
    let facts = alone(keys_in_scripts("7.2.4"));
    let report = together(&facts);
    assert_eq!(ids(&report), ["keys_command"]);
    let keys = &report.findings[0];
    assert!(keys.title.contains("inside scripts"), "{}", keys.title);
    assert_eq!(keys.chain.iter().filter(|l| l.id == "long_script").count(), 1, "{:?}", keys.chain);
    assert!(keys.impact.text.starts_with("3.9 %"), "the shares are not added: {}", keys.impact.text);
    // Half of the 39 ms, and the one that the script takes beside them.
    assert!(keys.impact.text.contains("wait 20.5 ms"), "{}", keys.impact.text);
    assert!(remedies(keys).contains("pass them to the script"), "{}", remedies(keys));
    assert_eq!(answer(&facts, "long_script"), Answered::Absent);
    assert!(text_of(&facts, "long_script").contains("KEYS inside them"));
    // Without the slow log the times themselves say so.
    let mut blind = facts;
    blind.nodes[0].slowlog = Seen::No(denied("SLOWLOG"));
    assert!(finding(&blind, "keys_command").title.contains("inside scripts"));
}

#[test]
fn calls_of_scripts_are_in_the_slow_log_before_7_2() {
    let mut node = keys_in_scripts("6.2.14");
    let (keys, evals) = (entries(10, 39_000, "KEYS", 2, None), entries(10, 40_000, "EVAL", 5, None));
    let pairs = keys.into_iter().zip(evals).enumerate();
    let both = |(i, (k, e)): (usize, (SlowEntry, SlowEntry))| {
        [SlowEntry { id: 2 * i as u64, ..k }, SlowEntry { id: 2 * i as u64 + 1, ..e }]
    };
    node.slowlog = seen(pairs.flat_map(both).collect());
    let facts = alone(node);
    assert!(finding(&facts, "keys_command").title.contains("inside scripts"));
    assert_eq!(answer(&facts, "long_script"), Answered::Absent);
}

#[test]
fn keys_beside_long_scripts_are_two_causes() {
    let mut node = server("7.2.4", 3.0, "", &(stat("eval", 20, 2_000_000) + &stat("keys", 10, 390_000)));
    let mut log = entries(20, 100_000, "EVAL", 5, None);
    log.extend(entries(10, 39_000, "KEYS", 2, None).into_iter().map(|e| SlowEntry { id: e.id + 100, ..e }));
    node.slowlog = seen(log);
    let report = together(&alone(node));
    assert_eq!(ids(&report), ["long_script", "keys_command"]);
    assert!(report.findings.iter().all(|f| f.chain.iter().all(|l| l.id != "long_script")));
}

#[test]
fn a_slow_command_in_a_script_is_the_cause_and_the_script_its_consequence() {
    let mut node = server("7.2.4", 2.0, "", &(stat("evalsha", 50, 1_550_000) + &stat("sunion", 50, 1_500_000)));
    node.slowlog = seen(entries(50, 31_000, "EVALSHA", 5, None));
    let facts = alone(node);
    let found = finding(&facts, "slow_command");
    assert!(found.title.contains("SUNION inside scripts"), "{}", found.title);
    assert_eq!(found.chain.iter().map(|l| l.id.as_str()).collect::<Vec<_>>(), ["long_script"]);
    assert_eq!(answer(&facts, "long_script"), Answered::Absent);
}

#[test]
fn a_script_that_loops_is_the_cause_itself() {
    let mut node = server("7.2.4", 2.0, "", &(stat("fcall", 50, 1_500_000) + &stat("set", 50, 100)));
    node.slowlog = seen(entries(50, 30_000, "FCALL", 5, None));
    let found = finding(&alone(node), "long_script");
    assert!(found.title.contains("30 ms on average") && found.confidence == Confidence::Proven, "{}", found.title);
    let all = remedies(&found);
    assert!(all.contains("redis-cli -h 10.0.0.1 -p 6379 FUNCTION KILL") && !all.contains("SCRIPT KILL"), "{all}");
}

#[test]
fn of_the_errors_those_alone_that_a_script_makes_are_its_consequence() {
    let with = |kind: &str| {
        let after = stat("eval", 20, 2_000_000) + &format!("errorstat_{kind}:count=300\r\n");
        let facts = alone(server("7.2.4", 3.0, "", &after));
        diagnose(&facts, &["long_script".into(), "error_flood".into()])
    };
    for (kind, link) in [("WRONGTYPE", None), ("BUSY", Some("error_flood"))] {
        let report = with(kind);
        assert_eq!(ids(&report), ["error_flood", "long_script"], "{kind}");
        let chain = &report.findings[1].chain;
        assert_eq!(chain.first().map(|l| l.id.as_str()), link, "{kind}: {chain:?}");
    }
}

#[test]
fn what_is_only_in_the_slow_log_of_the_last_hour_is_over() {
    for (rule, command, args) in [("keys_command", "KEYS", 2), ("long_script", "EVAL", 5), ("big_key", "SMEMBERS", 2)] {
        let mut node = server("7.2.4", 0.1, "", "");
        node.slowlog = seen((0..3).map(|i| entry(i, 1800 + i, 50_000, command, args, Some("key#1"))).collect());
        node.key_sizes = seen(vec![KeySize { key: "key#1".into(), kind: "set".into(), length: 200_000 }]);
        let facts = alone(node);
        let found = finding(&facts, rule);
        assert_eq!(
            (found.when, found.impact.currency, found.severity),
            (When::Past, Currency::Risk, Severity::Risk),
            "{rule}"
        );
        assert_eq!(found.since, Some(NOW_MS - 1_800_000), "{rule}");
        assert!(found.confidence < Confidence::Proven, "{rule}: nothing of it was in the window");
        assert!(found.title.contains("30 min ago"), "{}", found.title);
        // It does not stand above what costs something now.
        let mut busy = facts;
        let last = &mut busy.nodes[0].last.as_mut().unwrap().info;
        last.0.extend(Info::parse(&(stat("sunion", 100, 2_000_000) + "used_cpu_user_main_thread:3.0\r\n")).0);
        assert_eq!(ids(&together(&busy))[0], "slow_command", "{rule}");
    }
}

#[test]
fn the_clock_of_the_slow_log_is_the_servers() {
    let mut node = server("7.2.4", 0.1, "", "");
    // The server is an hour and a half ahead of us.
    for (sample, at_ms) in [(&mut node.first, NOW_MS - 10_000), (&mut node.last, NOW_MS)] {
        let ahead = (at_ms + 5_400_000) * 1000;
        sample.as_mut().unwrap().info.0.insert("server_time_usec".into(), ahead.to_string());
    }
    let at_s = (NOW_MS + 5_400_000) / 1000 - 120;
    node.slowlog = seen(vec![SlowEntry { at_s, ..entry(1, 0, 50_000, "KEYS", 2, None) }]);
    assert_eq!(finding(&alone(node), "keys_command").since, Some(NOW_MS - 120_000));
}

#[test]
fn acls_are_offered_where_there_are_some() {
    let keys = |version| finding(&alone(server(version, 1.0, "", &stat("keys", 20, 220_000))), "keys_command");
    let new = remedies(&keys("6.2.14"));
    assert!(new.contains("ACL SETUSER") && !new.contains("rename-command"), "{new}");
    let old = remedies(&keys("5.0.14"));
    assert!(!old.contains("ACL SETUSER") && old.contains("rename-command"), "{old}");
}

#[test]
fn keys_that_cost_nothing_are_ruled_out_with_their_figures() {
    let facts = alone(server("7.2.4", 0.1, "", &stat("keys", 20, 2_000)));
    assert_eq!(answer(&facts, "keys_command"), Answered::Absent);
    let text = text_of(&facts, "keys_command");
    assert!(text.contains("20 calls") && text.contains("0.02 %"), "{text}");
}

// Big keys.

fn big(version: &str, command: &str, kind: &str, length: u64) -> Node {
    let name = command.to_lowercase();
    let mut node = server(version, 0.5, "", &stat(&name, 12, 360_000));
    node.slowlog = seen(entries(12, 30_000, command, 2, Some("key#1")));
    node.key_sizes = seen(vec![KeySize { key: "key#1".into(), kind: kind.into(), length }]);
    node
}

#[test]
fn remedies_of_big_keys_follow_the_command_and_the_type() {
    for (command, kind, expected, never) in [
        ("HGETALL", "hash", "HSCAN", "SSCAN"),
        ("SMEMBERS", "set", "SSCAN", "HSCAN"),
        ("LRANGE", "list", "LRANGE key 0 99", "HSCAN"),
        ("ZRANGE", "zset", "ZRANGE key 0 99", "HSCAN"),
        ("DEL", "hash", "UNLINK", "HSCAN"),
    ] {
        let found = finding(&alone(big("7.0.15", command, kind, 200_000)), "big_key");
        let all = remedies(&found);
        assert!(all.contains(expected) && !all.contains(never), "{command}: {all}");
        assert!(!all.contains("replica"), "{command}: there is none: {all}");
        assert!(found.title.contains(command) && found.title.contains("30 ms on average"), "{}", found.title);
    }
    // Reads may go to a replica that is there; deleting may not.
    let reads = with_replica(big("7.0.15", "HGETALL", "hash", 200_000));
    assert!(remedies(&finding(&reads, "big_key")).contains("10.0.0.2:6379"));
    let deletes = with_replica(big("7.0.15", "DEL", "hash", 200_000));
    assert!(!remedies(&finding(&deletes, "big_key")).contains("10.0.0.2:6379"));
}

#[test]
fn deleting_in_the_background_is_offered_by_version_and_setting() {
    let del = |version, setting| {
        let mut node = big(version, "DEL", "hash", 200_000);
        node.config = settings(&[("lazyfree-lazy-user-del", setting)]);
        finding(&alone(node), "big_key")
    };
    let exact =
        |f: &Finding| f.remedies.iter().filter(|r| r.exact).flat_map(|r| r.commands.clone()).collect::<Vec<_>>();
    assert_eq!(exact(&del("7.0.15", "no")), ["redis-cli -h 10.0.0.1 -p 6379 CONFIG SET lazyfree-lazy-user-del yes"]);
    assert!(exact(&del("7.0.15", "yes")).is_empty());
    assert!(exact(&del("5.0.14", "no")).is_empty() && remedies(&del("5.0.14", "no")).contains("UNLINK"));
}

#[test]
fn a_big_key_and_another_slow_command_are_two_causes() {
    let mut node = big("7.0.15", "HGETALL", "hash", 200_000);
    let last = &mut node.last.as_mut().unwrap().info;
    last.0.extend(Info::parse(&(stat("sunion", 100, 2_000_000) + "used_cpu_user_main_thread:3.0\r\n")).0);
    let report = together(&alone(node));
    let slow = report.findings.iter().find(|f| f.id == "slow_command").expect("SUNION is its own cause");
    assert!(slow.title.contains("SUNION"), "{}", slow.title);
    assert!(ids(&report).contains(&"big_key"), "{:?}", ids(&report));
    // What is on the big key is reported once.
    assert_eq!(answer(&alone(big("7.0.15", "HGETALL", "hash", 200_000)), "slow_command"), Answered::Absent);
}

#[test]
fn a_long_string_explains_a_get_and_a_short_one_does_not() {
    let get = |length| {
        let mut node = server("7.0.15", 0.5, "", &stat("get", 12, 360_000));
        node.slowlog = seen(entries(12, 30_000, "GET", 2, Some("key#1")));
        node.key_sizes = seen(vec![KeySize { key: "key#1".into(), kind: "string".into(), length }]);
        alone(node)
    };
    assert_eq!(answer(&get(100_000_000), "big_key"), Answered::Present);
    assert_eq!(answer(&get(1_100_000), "big_key"), Answered::Absent);
}

#[test]
fn a_slow_log_that_is_off_rules_no_big_key_out() {
    let mut node = server("7.0.15", 0.1, "", "");
    assert_eq!(answer(&alone(node.clone()), "big_key"), Answered::Absent);
    node.config = settings(&[("slowlog-log-slower-than", "-1")]);
    assert_eq!(answer(&alone(node.clone()), "big_key"), Answered::Unknown);
    node.slowlog = Seen::No(denied("SLOWLOG"));
    assert_eq!(answer(&alone(node), "big_key"), Answered::Unknown);
}

// Monitoring.

#[test]
fn a_question_costs_the_time_inside_it_and_its_part_of_reads_and_turns() {
    // 240 INFOs of 100 us a second and 100 PINGs of 1 us, none of them in one turn with another, where turns are
    // counted. All else that the main thread did is far more than reads take anywhere: they are put at four times
    // the known price. What PINGs take besides is their pools' (`chatter`).
    let after = stat("info", 2400, 240_000) + "total_reads_processed:3400\r\n";
    for (counted, core, text) in [("", 0.0264, "2.6 %"), ("eventloop_cycles:3400\r\n", 0.0360, "3.6 %")] {
        let node = server("7.2.4", 1.0, "eventloop_cycles:0\r\n", &(after.clone() + counted));
        let found = finding(&alone(node), "monitoring_storm");
        assert!((found.impact.value - core).abs() < 0.0001, "{counted:?}: {}", found.impact.value);
        assert!(found.title.contains(&format!("takes {text}")), "{}", found.title);
        assert!(found.impact.text.contains(text), "{counted:?}: {}", found.impact.text);
        assert!(found.gain.formula.contains("now INFO 240.0/s x 100 us = 0.0240"), "{}", found.gain.formula);
    }
}

#[test]
fn a_refresh_has_the_same_price_in_title_impact_and_gain() {
    let node = server("7.0.15", 2.0, "", &stat("cluster|nodes", 10_000, 1_000_000));
    let found = finding(&deployment(DeploymentKind::Cluster, vec![node]), "topology_storm");
    assert!((found.impact.value - 0.1).abs() < 1e-6, "{}", found.impact.value);
    assert!(found.title.contains("take 10 %") && found.impact.text.starts_with("10 % "), "{found:?}");
}

#[test]
fn a_few_expensive_questions_are_monitoring_and_reported_once() {
    let facts = alone(server("7.0.15", 6.8, "", &stat("command", 40, 6_600_000)));
    let found = finding(&facts, "monitoring_storm");
    assert!(found.title.contains("66 %"), "{}", found.title);
    assert_eq!(answer(&facts, "slow_command"), Answered::Absent);
    let report = together(&facts);
    assert!(!report.ruled_out.iter().any(|r| r.contains("66 %")), "{:?}", report.ruled_out);
    // COMMAND comes with each new connection: no exporter's interval helps.
    assert!(remedies(&found).contains("keep connections") && !remedies(&found).contains("30s"), "{}", remedies(&found));
    assert!(!found.gain.text.contains("15 s"), "{:?}", found.gain);
}

#[test]
fn questions_that_wait_for_a_processor_are_no_storm() {
    // Ten INFOs a second of 1.3 ms on average, of which most took 0.1 ms: an exporter, or `unslow record`.
    let asked = |delay: Option<f64>, command: &str, calls: u64, us: u64, kind: DeploymentKind| {
        let mut node = server("7.2.4", 0.3, "", &stat(command, calls, calls * us));
        let ranges = [(132, calls * 8 / 10), (4227, calls / 10), (16_908, calls / 10)];
        let ranges = ranges.map(|(up_to_us, calls)| TimeRange { up_to_us, calls }).to_vec();
        node.histograms = seen([(command.to_string(), ranges)].into());
        let process = Process { addresses: vec![ADDRESS.into()], run_delay_share: delay, ..Process::default() };
        let hosts = vec![Host { processes: vec![process], ..Host::default() }];
        Facts { hosts, ..deployment(kind, vec![node]) }
    };
    let (alone, cluster) = (DeploymentKind::Standalone, DeploymentKind::Cluster);
    for (delay, answered) in [
        (Some(0.15), Answered::Absent),
        (Some(0.004), Answered::Present), // it did not wait: a tenth of them take milliseconds
        (None, Answered::Present),        // not known
    ] {
        assert_eq!(answer(&asked(delay, "info", 100, 1300, alone), "monitoring_storm"), answered, "{delay:?}");
        let refreshes = asked(delay, "cluster|nodes", 100, 1300, cluster);
        assert_eq!(answer(&refreshes, "topology_storm"), answered, "{delay:?}");
    }
    // Waiting adds no more than the wait: cheap questions and, of the same name, some of 9 ms.
    let mut mixed = asked(Some(0.015), "config|get", 350, 3862, alone);
    let ranges = [(16, 200), (16_908, 150)].map(|(up_to_us, calls)| TimeRange { up_to_us, calls }).to_vec();
    mixed.nodes[0].histograms = seen([("config|get".to_string(), ranges)].into());
    assert_eq!(answer(&mixed, "monitoring_storm"), Answered::Present);
    // A storm is one on a busy machine too: 400 a second of 0.1 ms.
    assert_eq!(answer(&asked(Some(0.15), "info", 4000, 130, alone), "monitoring_storm"), Answered::Present);
}

/// SIGSTOP, a hypervisor or a page read from disk stops the server in the middle of a command, but not its clock.
#[test]
fn a_server_that_stood_still_inside_a_question_has_no_storm() {
    // Alone, beside commands that take most of its CPU time, and on a processor all the time.
    for (cpu_s, gets_us, answered) in
        [(0.01, 0, Answered::Absent), (0.5, 450_000, Answered::Absent), (6.5, 450_000, Answered::Present)]
    {
        let others = stat("get", 200_000, gets_us);
        let info = alone(server("9.1.0", cpu_s, "", &(stat("info", 2, 6_000_000) + &others)));
        assert_eq!(answer(&info, "monitoring_storm"), answered, "{cpu_s}");
        let node = server("9.1.0", cpu_s, "", &(stat("cluster|nodes", 2, 6_000_000) + &others));
        assert_eq!(answer(&deployment(DeploymentKind::Cluster, vec![node]), "topology_storm"), answered, "{cpu_s}");
    }
}

#[test]
fn monitoring_below_its_thresholds_is_ruled_out_with_both_figures() {
    let text = text_of(&alone(server("7.0.15", 0.9, "", &stat("info", 40, 80_000))), "monitoring_storm");
    // With a hundred PINGs a second.
    assert!(text.contains("0.8 %") && text.contains("104 calls a second"), "{text}");
}

#[test]
fn remedies_of_monitoring_follow_the_command() {
    for (name, expected, never) in [
        ("info", "scrape_interval", "export-client-list"),
        ("client|list", "--export-client-list=false", "scrape_interval"),
        ("slowlog|get", "SLOWLOG GET 10", "scrape_interval"),
        ("memory|doctor", "MEMORY DOCTOR", "scrape_interval"),
        ("config|get", "--config-command", "scrape_interval"),
        ("ping", "setTestOnBorrow(false)", "scrape_interval"),
    ] {
        let base = if name == "ping" { 1000 } else { 0 };
        let all = remedies(&finding(
            &alone(server("7.0.15", 4.0, "", &stat(name, 20_000 + base, 3_000_000))),
            "monitoring_storm",
        ));
        assert!(all.contains(expected) && !all.contains(never), "{name}: {all}");
    }
}

#[test]
fn refreshes_of_the_topology_are_ruled_out_in_clusters_and_nothing_elsewhere() {
    let cluster = |calls, usec| {
        deployment(DeploymentKind::Cluster, vec![server("7.0.15", 2.0, "", &stat("cluster|nodes", calls, usec))])
    };
    let found = finding(&cluster(10_000, 1_000_000), "topology_storm");
    // Ten clients, one question a minute each.
    assert!(found.gain.formula.starts_with("10 clients / 1 nodes / 60 s x 100 us"), "{:?}", found.gain);
    assert_eq!(answer(&cluster(10, 1000), "topology_storm"), Answered::Absent);
    assert!(text_of(&cluster(10, 1000), "topology_storm").contains("1 calls a second"));
    assert_eq!(answer(&alone(server("7.0.15", 0.1, "", "")), "topology_storm"), Answered::NotHere);
}

#[test]
fn clients_that_are_seen_are_named_in_the_remedy() {
    let mut node = server("7.0.15", 2.0, "", &stat("cluster|slots", 10_000, 1_000_000));
    let group = ClientGroup {
        count: 9,
        host: "10.0.0.9".into(),
        library: "redis-py 5.0".into(),
        commands: [("cluster|slots".into(), 9)].into(),
        ..ClientGroup::default()
    };
    node.clients = seen(Clients { total: 10, listed: 10, groups: vec![group], ..Clients::default() });
    let all = remedies(&finding(&deployment(DeploymentKind::Cluster, vec![node]), "topology_storm"));
    assert!(all.contains("RedisCluster") && !all.contains("Lettuce"), "{all}");
}

fn monitored(ops: u64, sampled: bool, attached: bool) -> Facts {
    let after = stat("set", ops * 10, ops * 10)
        + &format!("total_commands_processed:{}\r\ntotal_reads_processed:1000\r\n", ops * 10);
    let mut node = server("7.0.15", 0.4, "", &after);
    let row = ClientRow {
        id: 7,
        address: "10.0.0.9:5".into(),
        flags: "O".into(),
        command: "monitor".into(),
        age_s: 90,
        ..ClientRow::default()
    };
    let notable = if attached { vec![row] } else { Vec::new() };
    node.clients = seen(Clients { total: 900, listed: 400, sampled, notable, ..Clients::default() });
    alone(node)
}

#[test]
fn monitor_costs_what_was_measured_and_nothing_on_an_idle_server() {
    let busy = finding(&monitored(1000, false, true), "monitor_attached");
    assert_eq!(busy.impact.currency, Currency::Capacity);
    assert!((0.01..0.02).contains(&busy.impact.value), "half of 3 % outside commands: {}", busy.impact.value);
    assert_eq!(busy.since, Some(NOW_MS - 90_000));
    let kill = &busy.remedies[0];
    assert!(kill.exact && kill.commands == ["redis-cli -h 10.0.0.1 -p 6379 CLIENT KILL ID 7"], "{kill:?}");
    assert_eq!(finding(&monitored(1, false, true), "monitor_attached").severity, Severity::Risk);
    assert_eq!(answer(&monitored(1000, false, false), "monitor_attached"), Answered::Absent);
    assert_eq!(answer(&monitored(1000, true, false), "monitor_attached"), Answered::Unknown);
}

#[test]
fn subscribers_are_judged_by_what_waits_for_them() {
    let waiting = |version, bytes: u64, limit: &str| {
        let mut node = server(version, 0.1, "", "");
        let row = ClientRow {
            id: 7,
            address: "10.0.0.9:5".into(),
            flags: "P".into(),
            output_bytes: bytes,
            ..ClientRow::default()
        };
        node.clients = seen(Clients { total: 10, listed: 10, notable: vec![row], ..Clients::default() });
        node.config = settings(&[("client-output-buffer-limit", limit)]);
        alone(node)
    };
    let usual = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
    let all = remedies(&finding(&waiting("7.0.15", 9_000_000, usual), "slow_subscriber"));
    assert!(all.contains("CLIENT LIST ID 7") && !all.contains("CONFIG SET"), "the limit is there already: {all}");
    let unlimited = "normal 0 0 0 slave 0 0 0 pubsub 0 0 0";
    let all = remedies(&finding(&waiting("5.0.14", 9_000_000, unlimited), "slow_subscriber"));
    assert!(
        all.contains("CLIENT LIST TYPE pubsub")
            && all.contains("pubsub 33554432 8388608 60")
            && all.contains("pubsub 0 0 0"),
        "{all}"
    );
    // 2 MB of 100 MB: no finding, and the text does not say that nothing waits.
    let little = waiting("7.0.15", 2_000_000, usual);
    assert_eq!(answer(&little, "slow_subscriber"), Answered::Absent);
    assert!(text_of(&little, "slow_subscriber").contains("2 MB"));
}
