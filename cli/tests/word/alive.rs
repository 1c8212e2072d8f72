//! A: "ok" needs a doctor that could look, at servers that were alive and in use.

use std::path::Path;

use unslow_client::Value;
use unslow_engine::{Deployment, Error, Server, Shape, view};
use unslow_testkit::servers::{deployment, server};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, slots, standalone};

use crate::common::{schema, stdout, unslow};
use crate::load::{Load, call, keys, until_info};
use crate::run::{Run, doctor, settled};

// A1: dead members.

/// Waits until no living node has a link to the dead one. A killed process closes its connections at once, so this
/// takes a moment only, whatever cluster-node-timeout is.
#[track_caller]
fn until_links_are_down(cluster: &Deployment, id: &str) {
    until_ok("every link to the dead node to be down", || {
        for node in cluster.nodes.iter().filter(|node| node.alive()) {
            let view = view(&mut node.connect_with(&options(2))?)?;
            if view.by_id(id).is_none_or(|dead| dead.connected) {
                return Ok(false);
            }
        }
        Ok::<_, Error>(true)
    });
}

#[test]
fn a_dead_master_comes_first_before_its_cluster_calls_it_failed() {
    // The cluster waits for two minutes.
    let cluster = deployment("valkey-9.1", Shape::six_nodes(), &[("cluster-node-timeout", "120000")]);
    let id = slots::id(&cluster.nodes[1]);
    cluster.nodes[1].kill();
    until_links_are_down(&cluster, &id);
    // From another master, and from a replica.
    for asked in [0, 5] {
        let run = doctor(&cluster.nodes[asked].url(), &["--no-host"]);
        run.assert_critical(&["node_unreachable"], &cluster.nodes[1].address());
    }
}

#[track_caller]
fn until_flagged(asked: &Server, id: &str, flag: &str) {
    until_ok(&format!("{} to flag the dead node as {flag}", asked.address()), || {
        let view = view(&mut asked.connect_with(&options(2))?)?;
        Ok::<_, Error>(view.by_id(id).is_some_and(|node| node.is(flag)))
    });
}

#[test]
fn a_failed_master_without_a_replica_leaves_slots_uncovered() {
    let shape = Shape::Cluster { masters: 3, replicas: 0, hosts: Vec::new() };
    let cluster = deployment("redis-7.0", shape, &[("cluster-node-timeout", "1000")]);
    let id = slots::id(&cluster.nodes[1]);
    cluster.nodes[1].kill();
    until_flagged(&cluster.nodes[0], &id, "fail");
    let run = doctor(&cluster.url(), &["--no-host"]);
    run.assert_critical(&["slots_uncovered", "node_unreachable"], &cluster.nodes[1].address());
    assert!(run.reports("slots_uncovered"), "{run}");
}

#[test]
fn dead_masters_are_critical_without_a_majority_to_call_them_failed() {
    let cluster = deployment("valkey-9.1", Shape::six_nodes(), &[("cluster-node-timeout", "1000")]);
    let id = slots::id(&cluster.nodes[1]);
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    // Suspected and never more: two of three masters are dead.
    until_flagged(&cluster.nodes[0], &id, "fail?");
    let run = doctor(&cluster.url(), &["--no-host"]);
    run.assert_critical(&["no_majority"], &cluster.nodes[1].address());
}

/// How soon the Sentinels notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    AtOnce,
    TooLate,
}

/// The master of a group whose only replica may not be promoted is killed; the doctor is pointed at a Sentinel and at
/// the replica.
fn the_master_of_sentinels_dies(notice: Notice, expected: &[&str]) {
    let shape = Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 };
    let group = deployment("valkey-9.1", shape, &[("replica-priority", "0")]);
    let asked = &group.sentinels[0];
    until_ok("the Sentinel to know the replica's priority", || {
        let replicas = asked.connect_with(&options(2))?.call(&["SENTINEL", "REPLICAS", "mymaster"])?;
        let priority = |r: &Value| r.get("slave-priority").or_else(|| r.get("replica-priority"))?.integer();
        let priority = replicas.items().first().and_then(priority);
        Ok::<_, Error>(priority == Some(0))
    });
    let (down_after_ms, flag) = if notice == Notice::AtOnce { ("1000", "s_down") } else { ("120000", "disconnected") };
    for sentinel in &group.sentinels {
        call(sentinel, &["SENTINEL", "SET", "mymaster", "down-after-milliseconds", down_after_ms]);
    }
    group.nodes[0].kill();
    for sentinel in &group.sentinels {
        until_ok(&format!("{} to flag the master as {flag}", sentinel.address()), || {
            let master = sentinel.connect_with(&options(2))?.call(&["SENTINEL", "MASTER", "mymaster"])?;
            let flags = master.get("flags").and_then(|f| f.text()).unwrap_or_default();
            Ok::<_, Error>(flags.contains(flag))
        });
    }
    until_info(&group.nodes[1], "replication", "master_link_status", |status| status == "down");
    for url in [format!("redis+sentinel://{}/mymaster", asked.address()), group.nodes[1].url()] {
        doctor(&url, &["--no-host"]).assert_critical(expected, &group.nodes[0].address());
    }
}

#[test]
fn a_dead_master_comes_first_before_its_sentinels_notice() {
    the_master_of_sentinels_dies(Notice::TooLate, &["node_unreachable"]);
}

#[test]
fn a_dead_master_comes_first_when_its_sentinels_know() {
    the_master_of_sentinels_dies(Notice::AtOnce, &["sentinel_master_down", "node_unreachable"]);
}

// A2: the address on the command line is a subject like any other.

#[test]
fn a_hung_standalone_server_is_as_critical_as_one_in_a_cluster() {
    let server = standalone("valkey-9.1");
    server.signal(libc::SIGSTOP);
    let run = doctor(&server.url(), &["--timeout", "2"]);
    server.signal(libc::SIGCONT);
    run.assert_critical(&["node_hangs"], &server.address());
}

/// It is either a critical finding or an error, and says what happened.
#[track_caller]
fn assert_failed(run: &Run, why: &str) {
    match run.verdict() {
        "causes" => assert_eq!(run.findings()[0]["severity"], "critical", "{run}"),
        "unreachable" => assert!(!run.error().is_empty() || !run.findings().is_empty(), "{run}"),
        _ => panic!("nothing could be looked at, and yet: {run}"),
    }
    assert!(run.json.to_string().contains(why), "{why:?} is not in the report: {run}");
}

#[test]
fn every_way_to_fail_prints_a_document_that_says_so() {
    let schema = schema("doctor");
    let server = server("redis-7.0", &[("requirepass", "right")]);
    let killed = standalone("redis-6.2");
    killed.kill();
    let free = unslow_engine::free_port("127.0.0.1").expect("a port");
    let ways = [
        (killed.url(), "refused"),
        (format!("redis://127.0.0.1:{free}"), "refused"),
        ("redis://no-such-host.invalid".into(), "does not resolve"),
        ("http://127.0.0.1".into(), "unknown scheme"),
        ("redis://127.0.0.1:notaport".into(), "host[:port]"),
        ("unix:/nowhere/redis.sock".into(), "no such socket"),
        (format!("redis://:wr0ng@{}", server.address()), "password refused"),
        (server.url(), "wants a password"),
    ];
    for (url, why) in ways {
        let run = doctor(&url, &["--timeout", "5"]);
        let errors: Vec<String> = schema.iter_errors(&run.json).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{url}: {errors:?}");
        assert_failed(&run, why);
        assert!(!run.json.to_string().contains("wr0ng"), "a password in a report");
    }
}

// A3: no application.

#[test]
fn an_idle_server_is_idle_and_the_doctors_commands_are_not_load() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["valkey-9.1", "redis-7.0", "redis-5.0"] {
        let server = standalone(name);
        let path = dir.path().join(format!("{name}.json")).display().to_string();
        let run = doctor(&server.url(), &["--no-host", "--window", "3s", "--save", &path]);
        assert_eq!((run.verdict(), run.status), ("idle", Some(0)), "{name}: {run}");
        let ops = run.json["deployment"]["nodes"][0]["commands_per_s"].as_f64();
        assert!(ops.is_some_and(|ops| ops < 1.0), "{name}: {ops:?} commands a second, all from the doctor");
        // The plots on the page are drawn from these.
        let facts: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).expect("saved")).expect("JSON");
        let points = facts["nodes"][0]["series"].as_array().cloned().unwrap_or_default();
        let most = points.iter().filter_map(|p| p["commands_per_s"].as_f64()).fold(0.0, f64::max);
        assert!(most < 5.0, "{name}: the plot shows {most} commands a second");
    }
}

// A4: a user with too few rights.

#[test]
fn a_user_who_may_only_ping_and_read_info_gets_no_all_clear() {
    let server = standalone("redis-7.0");
    call(&server, &["ACL", "SETUSER", "watcher", "on", ">pw", "-@all", "+ping", "+info"]);
    let url = format!("redis://watcher:pw@{}", server.address());
    let run = doctor(&url, &["--no-host"]);
    assert_eq!((run.verdict(), run.status), ("blind", Some(2)), "{run}");
    assert!(!run.reports("not_your_redis"), "{run}");
    let looked = &run.json["looked"];
    let number = |field: &str| looked[field].as_u64().expect("a number");
    assert!(number("could") < number("rules"), "{looked}");
    let could_not = looked["could_not"].as_array().expect("a list");
    assert!(
        could_not.contains(&"monitor_attached".into()) && could_not.contains(&"slow_subscriber".into()),
        "{looked}"
    );
    assert_eq!(number("rules") - number("could"), could_not.len() as u64, "{looked}");

    let output = unslow(&["doctor", &url, "--window", "1s", "--no-host", "--quiet"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let top = text.lines().take(24).collect::<Vec<_>>().join("\n");
    assert!(top.contains("--print-acl"), "the first screen does not say which rights are missing:\n{text}");
    for denied in ["CONFIG GET is denied", "CLIENT LIST is denied", "LATENCY LATEST is denied"] {
        assert!(text.matches(denied).count() <= 1, "{denied:?} is repeated:\n{text}");
    }
}

#[test]
fn a_user_who_may_only_ping_gets_no_all_clear() {
    let server = standalone("valkey-9.1");
    call(&server, &["ACL", "SETUSER", "pinger", "on", ">pw", "-@all", "+ping"]);
    let run = doctor(&format!("redis://pinger:pw@{}", server.address()), &["--no-host"]);
    assert_eq!((run.verdict(), run.status), ("blind", Some(2)), "{run}");
    assert_eq!(run.json["ruled_out"].as_array().map(Vec::len), Some(0), "{}", run.json["ruled_out"]);
}

// A5: --only answers for its rules alone.

#[test]
fn only_answers_for_its_rule_while_keys_blocks_the_server() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let load = keys(&server);
    let all = settled(&url, &["--no-host"]);
    assert_eq!((all.verdict(), all.reports("keys_command")), ("causes", true), "{all}");
    let still = settled(&url, &["--no-host", "--only", "keys_command"]);
    assert_eq!((still.answer(), still.status), ("present", Some(1)), "{still}");
    let other = settled(&url, &["--no-host", "--only", "out_of_memory"]);
    assert_eq!((other.answer(), other.verdict(), other.status), ("absent", "none_found", Some(0)), "{other}");
    let text = stdout(&unslow(&["doctor", &url, "--window", "1s", "--no-host", "--quiet", "--only", "out_of_memory"]));
    assert!(text.contains("out_of_memory"), "the rule is not named:\n{text}");
    assert!(!text.to_lowercase().contains("nothing measured explains"), "it speaks of other rules:\n{text}");
    drop(load);
    call(&server, &["SLOWLOG", "RESET"]);
    let gone = settled(&url, &["--no-host", "--only", "keys_command"]);
    assert_eq!((gone.answer(), gone.status), ("absent", Some(0)), "{gone}");
}

#[test]
fn only_says_that_keys_is_absent_while_sort_blocks_the_server() {
    let server = standalone("redis-7.0");
    let mut push = vec!["RPUSH".to_string(), "numbers".into()];
    push.extend((0..50_000).map(|i| (i * 7919 % 50_021).to_string()));
    call(&server, &push.iter().map(String::as_str).collect::<Vec<_>>());
    let load = Load::start(&server.target(), 1, |c| c.call(&["SORT", "numbers", "LIMIT", "0", "1"]).map(drop));
    load.has_done(5);
    let run = settled(&server.url(), &["--no-host", "--only", "keys_command"]);
    assert_eq!((run.answer(), run.verdict(), run.status), ("absent", "none_found", Some(0)), "{run}");
}

#[test]
fn only_says_that_it_could_not_look() {
    let server = standalone("redis-7.0");
    for (user, grants, rule) in [
        ("pinger", &["+ping"][..], "keys_command"),
        ("watcher", &["+ping", "+info"], "monitor_attached"),
        ("reader", &["+ping", "+info", "+slowlog|get"], "config_drift,blind_instruments"),
    ] {
        call(&server, &[&["ACL", "SETUSER", user, "on", ">pw", "-@all"], grants].concat());
        let url = format!("redis://{user}:pw@{}", server.address());
        let run = doctor(&url, &["--no-host", "--only", rule]);
        let answers = run.json["only"].as_array().expect("answers");
        assert_eq!(answers.len(), rule.split(',').count(), "{run}");
        assert!(answers.iter().any(|a| a["answer"] == "unknown"), "{run}");
        assert!(answers.iter().all(|a| a["answer"] == "unknown" || a["answer"] == "not_here"), "{run}");
        assert_eq!((run.verdict(), run.status), ("blind", Some(2)), "{run}");
    }
}

// A6: the exit status. `doctor` checks in each run of these tests that it follows from the verdict.

#[test]
fn fail_on_takes_every_severity() {
    let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../explain/doctor/tests/facts/keys_command.json");
    let facts = facts.to_str().expect("text");
    for (fail_on, status) in [("info", 1), ("risk", 1), ("low", 1), ("never", 0)] {
        let run = Run::of(&unslow(&["doctor", "--from", facts, "--format", "json", "--quiet", "--fail-on", fail_on]));
        assert_eq!((run.verdict(), run.status), ("causes", Some(status)), "--fail-on {fail_on}: {run}");
    }
}
