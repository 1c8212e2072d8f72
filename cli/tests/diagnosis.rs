//! The diagnosis on every engine, in every shape, from every address; its JSON, its page, its user.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use common::{browse, command, ids, report, schema, stderr, stdout, tls_server, unseen, unslow};
use serde_json::Value;
use unslow_engine::{CATALOG, Server, Shape};
use unslow_lab::lab::Lab;
use unslow_testkit::servers::{deployment, server};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{engine, options, standalone, tried_while_busy, until};

/// A test for each engine, so that they run side by side; the last one sees to it that the catalogue has no other.
macro_rules! on_every_engine {
    ($look:ident, $all:ident, $($test:ident: $engine:literal),+ $(,)?) => {
        $(#[test]
        fn $test() {
            $look($engine);
        })+

        #[test]
        fn $all() {
            assert_eq!(CATALOG.iter().map(|e| e.name).collect::<Vec<_>>(), [$($engine),+]);
        }
    };
}

fn addresses(report: &Value) -> BTreeSet<String> {
    let nodes = report["deployment"]["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().map(|n| n["address"].as_str().unwrap_or_default().to_string()).collect()
}

fn sentinels(report: &Value) -> BTreeSet<String> {
    let all = report["deployment"]["sentinels"].as_array().cloned().unwrap_or_default();
    all.iter().map(|s| s.as_str().unwrap_or_default().to_string()).collect()
}

/// A report that knows these Sentinels. A data node is told of them by their greetings, one every two seconds, and the
/// doctor listens for half a second more: on a busy machine a greeting may come too late.
fn report_with(sentinels_there: &BTreeSet<String>, url: &str, more: &[&str]) -> Value {
    tried_while_busy(3, |_| {
        let seen = report(url, more);
        let heard = sentinels(&seen);
        if heard == *sentinels_there {
            return Ok(seen);
        }
        Err(format!("{url} {more:?}: the Sentinels are {sentinels_there:?}, the doctor knows {heard:?}"))
    })
}

/// Whether the doctor left questions out because PINGs became slower while it looked, as they do on a busy machine.
fn hurried(report: &Value) -> bool {
    unseen(report).iter().any(|why| why.contains("the more expensive questions were left out"))
}

fn finds_the_whole_deployment_from_any_address_and_keeps_to_the_schema(name: &str) {
    let (schema, engine) = (schema("doctor"), engine(name));
    for shape in [
        Shape::Standalone,
        Shape::MasterReplica { replicas: 2 },
        Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 },
        Shape::six_nodes(),
    ] {
        let deployment = deployment(name, shape.clone(), &[]);
        let expected: BTreeSet<String> = deployment.nodes.iter().map(|n| n.address()).collect();
        let watching: BTreeSet<String> = deployment.sentinels.iter().map(|n| n.address()).collect();
        // The first, the last (a replica, where there are any), and a Sentinel.
        let mut seeds = vec![deployment.nodes[0].url(), deployment.nodes[deployment.nodes.len() - 1].url()];
        seeds.extend(deployment.sentinels.first().map(|s| format!("redis+sentinel://{}/mymaster", s.address())));
        let reports: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = seeds.iter().map(|seed| scope.spawn(|| report_with(&watching, seed, &[]))).collect();
            asked.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (seed, report) in seeds.iter().zip(reports) {
            let what = format!("{name} {shape:?} from {seed}");
            let errors: Vec<String> = schema.iter_errors(&report).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{what}: {errors:?}");
            assert_eq!(addresses(&report), expected, "{what}");
            let masters =
                report["deployment"]["nodes"].as_array().unwrap().iter().filter(|n| n["role"] == "master").count();
            assert_eq!(masters, deployment.masters, "{what}");
            let version = report["deployment"]["nodes"][0]["version"].as_str().unwrap();
            assert!(
                engine.version.starts_with(version) || version.starts_with(&engine.version),
                "{what}: {version} is not {}",
                engine.version
            );
            assert!(
                report["cost"]["commands"].as_u64().unwrap() > 0
                    && report["cost"]["server_cpu_share"].as_f64().unwrap() > 0.0,
                "{what}: no cost"
            );
        }
    }
}

on_every_engine! {
    finds_the_whole_deployment_from_any_address_and_keeps_to_the_schema, every_engine_of_the_catalogue_has_its_test,
    finds_the_whole_deployment_from_any_address_on_valkey_9_1: "valkey-9.1",
    finds_the_whole_deployment_from_any_address_on_redis_8_10: "redis-8.10",
    finds_the_whole_deployment_from_any_address_on_redis_7_0: "redis-7.0",
    finds_the_whole_deployment_from_any_address_on_redis_6_2: "redis-6.2",
    finds_the_whole_deployment_from_any_address_on_redis_5_0: "redis-5.0",
}

#[test]
fn a_saved_look_gives_the_same_diagnosis() {
    let deployment = deployment("valkey-9.1", Shape::six_nodes(), &[]);
    let dir = tempfile::tempdir().unwrap();
    let (facts, live) = (dir.path().join("facts.json"), dir.path().join("report.json"));
    let first = report(&deployment.url(), &["--save", facts.to_str().unwrap()]);
    std::fs::write(&live, first.to_string()).unwrap();
    let again =
        unslow(&["doctor", "--from", facts.to_str().unwrap(), "--format", "json", "--diff", live.to_str().unwrap()]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap(), first);
    // The comparison goes to stderr, so that stdout stays JSON; nothing is new or gone.
    assert!(!stderr(&again).contains("new ") && !stderr(&again).contains("gone "), "{}", stderr(&again));
}

#[test]
fn tells_what_is_new_and_what_is_gone() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().unwrap();
    let kept = |name: &str, report: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, report).unwrap();
        path.display().to_string()
    };
    let url = server.url();
    let mut c = server.connect_with(&options(2)).unwrap();
    // The finding this is about comes from CONFIG GET alone, whatever else the machine does.
    let blind = kept("blind.json", &report(&url, &[]).to_string());
    c.call(&["CONFIG", "SET", "latency-monitor-threshold", "100"]).unwrap();
    let output = unslow(&["doctor", &url, "--window", "1s", "--diff", &blind, "--format", "json"]);
    assert!(stderr(&output).contains("gone  blind_instruments"), "{}", stderr(&output));
    let seeing = kept("seeing.json", &stdout(&output));
    c.call(&["CONFIG", "SET", "latency-monitor-threshold", "0"]).unwrap();
    let output = unslow(&["doctor", &url, "--window", "1s", "--diff", &seeing, "--quiet"]);
    assert!(stdout(&output).contains("new  blind_instruments"), "{}", stdout(&output));
}

/// From the least to the worst.
const SEVERITIES: [&str; 6] = ["info", "risk", "low", "medium", "high", "critical"];
const FAIL_ON: [&str; 7] = ["info", "risk", "low", "medium", "high", "critical", "never"];

fn rank(severity: &str) -> usize {
    SEVERITIES.iter().position(|s| *s == severity).unwrap_or_else(|| panic!("{severity:?} is no severity"))
}

/// The worst of a report's findings, as they stand now: what is over is a risk.
fn worst(report: &Value) -> Option<usize> {
    let findings = report["findings"].as_array().expect("a report has findings, or none");
    let now = |f: &Value| {
        let severity = rank(f["severity"].as_str().expect("a finding has a severity"));
        if f["when"] == "past" { severity.min(rank("risk")) } else { severity }
    };
    findings.iter().map(now).max()
}

/// What the exit status must be.
fn status(fail_on: &str, worst: Option<usize>) -> Option<i32> {
    Some(i32::from(fail_on != "never" && worst >= Some(rank(fail_on))))
}

#[test]
fn the_exit_status_follows_fail_on() {
    let server = standalone("valkey-9.1");
    for fail_on in FAIL_ON {
        let output =
            unslow(&["doctor", &server.url(), "--window", "1s", "--quiet", "--format", "json", "--fail-on", fail_on]);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
        // An idle server has risks (its latency monitor is off); what else is found depends on what the machine does.
        assert!(worst(&report) >= Some(rank("risk")), "{:?}", ids(&report));
        assert_eq!(output.status.code(), status(fail_on, worst(&report)), "--fail-on {fail_on}: {:?}", ids(&report));
    }
}

#[test]
fn the_exit_status_follows_fail_on_for_recorded_facts_of_every_severity() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../explain/doctor/tests/facts");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().flatten().map(|e| e.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "json"));
    files.sort();
    let judged = |path: &Path, fail_on: &str| {
        unslow(&["doctor", "--from", path.to_str().unwrap(), "--quiet", "--format", "json", "--fail-on", fail_on])
    };
    // A recording for each severity that can be the worst.
    let mut one_of: BTreeMap<usize, &PathBuf> = BTreeMap::new();
    for path in &files {
        let output = judged(path, "never");
        assert_eq!(output.status.code(), Some(0), "{}: {}", path.display(), stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        one_of.extend(worst(&report).map(|worst| (worst, path)));
    }
    assert_eq!(one_of.keys().copied().collect::<Vec<_>>(), ["risk", "low", "medium", "high", "critical"].map(rank));
    for (worst, path) in one_of {
        for fail_on in FAIL_ON {
            let code = judged(path, fail_on).status.code();
            let what = format!("--fail-on {fail_on} of {}, which is {}", path.display(), SEVERITIES[worst]);
            assert_eq!(code, status(fail_on, Some(worst)), "{what}");
        }
    }
}

#[test]
fn speaks_resp2_and_resp3_and_unix_sockets() {
    for name in ["valkey-9.1", "redis-5.0"] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock").display().to_string();
        let server = server(name, &[("unixsocket", &socket)]);
        for (url, resp) in [(server.url(), "2"), (server.url(), "3"), (format!("unix:{socket}"), "3")] {
            let report = report(&url, &["--resp", resp]);
            assert_eq!(addresses(&report).len(), 1, "{name} {url} RESP{resp}");
            assert!(report["deployment"]["nodes"][0]["rtt_us_p50"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn speaks_tls_with_client_certificates_and_says_what_is_wrong_with_either_side() {
    let dir = tempfile::tempdir().unwrap();
    let (server, port) = tls_server(dir.path());
    let file = |n: &str| dir.path().join(n).display().to_string();
    let url = format!("rediss://:s3cret@127.0.0.1:{port}");
    let (ca, crt, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let good = report(&url, &["--cacert", &ca, "--cert", &crt, "--key", &key]);
    assert_eq!(good["deployment"]["nodes"][0]["role"], "master");
    assert!(!good.to_string().contains("s3cret"), "a password in a report");

    // A server that closes the connection is one that cannot be reached: the diagnosis says so, with what may be behind
    // it.
    let fails = |url: &str, more: &[&str], expected: &str| {
        let mut arguments = vec!["doctor", url, "--window", "1s", "--timeout", "5"];
        arguments.extend(more);
        let output = unslow(&arguments);
        let said = stdout(&output) + &stderr(&output);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{url} {more:?}: {said}");
        assert!(said.replace("\n", " ").contains(expected), "{url} {more:?}: {said}");
        assert!(!said.contains("s3cret"));
    };
    fails(&url, &[], "--cacert");
    fails(&url, &["--cacert", &ca], "client certificate");
    fails(&url, &["--cacert", &ca, "--server-name", "other.example"], "valid for with --server-name NAME");
    fails(&format!("redis://:s3cret@127.0.0.1:{port}"), &[], "rediss://");
    fails(&format!("rediss://:s3cret@{}", server.address()), &["--cacert", &ca], "redis://");
    fails(&url, &["--cacert", "/nowhere.pem"], "/nowhere.pem");
}

fn the_printed_user_sees_everything_and_may_write_nothing(name: &str) {
    for shape in [Shape::Standalone, Shape::six_nodes(), Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }] {
        let deployment = deployment(name, shape.clone(), &[]);
        let rule = |url: &str| {
            stdout(&unslow(&["doctor", url, "--print-acl"])).trim().replace("CHANGE-ME", "pw").replacen(
                "ACL SETUSER ",
                "",
                1,
            )
        };
        let server_rule = rule(&deployment.url());
        for (server, rule) in deployment
            .nodes
            .iter()
            .map(|s| (s, server_rule.clone()))
            .chain(deployment.sentinels.iter().map(|s| (s, rule(&s.url()))))
        {
            let mut words = vec!["ACL", "SETUSER"];
            words.extend(rule.split(' '));
            server.connect().unwrap().call(&words).unwrap_or_else(|e| panic!("{name}: {rule}: {e}"));
        }
        let address = deployment.nodes[0].address();
        let watching: BTreeSet<String> = deployment.sentinels.iter().map(|s| s.address()).collect();
        let mut seen = Value::Null;
        // What is not asked is not denied either.
        until("a look that asks every question", || {
            seen = report_with(&watching, &format!("redis://unslow:pw@{address}"), &["--no-host"]);
            !hurried(&seen)
        });
        let denied: Vec<String> = unseen(&seen)
            .into_iter()
            .filter(|c| c.contains("denied") || c.contains("NOPERM") || c.contains("permission"))
            .collect();
        assert!(denied.is_empty(), "{name} {shape:?}: {denied:?}");
        assert_eq!(addresses(&seen).len(), deployment.nodes.len(), "{name} {shape:?}");
        // The same user, by hand, may write nothing.
        let target = unslow_client::Target::parse(&format!("redis://unslow:pw@{address}")).unwrap();
        let mut c = unslow_client::Connection::open(&target, &options(2)).unwrap();
        for words in [
            &["SET", "k", "v"][..],
            &["DEL", "k"],
            &["CONFIG", "SET", "maxmemory", "1"],
            &["FLUSHALL"],
            &["EVAL", "return 1", "0"],
            &["MONITOR"],
            &["KEYS", "*"],
            &["GET", "k"],
            &["CLIENT", "KILL", "ID", "1"],
            &["CLUSTER", "FAILOVER"],
        ] {
            let refused = c.call(words).unwrap_err();
            assert_eq!(refused.kind, unslow_client::ErrorKind::Denied, "{name}: {words:?}: {refused}");
        }
    }
}

// Before 6.0 there are no users.

#[test]
fn the_printed_user_sees_everything_and_may_write_nothing_on_valkey_9_1() {
    the_printed_user_sees_everything_and_may_write_nothing("valkey-9.1");
}

#[test]
fn the_printed_user_sees_everything_and_may_write_nothing_on_redis_7_0() {
    the_printed_user_sees_everything_and_may_write_nothing("redis-7.0");
}

#[test]
fn the_printed_user_sees_everything_and_may_write_nothing_on_redis_6_2() {
    the_printed_user_sees_everything_and_may_write_nothing("redis-6.2");
}

/// Waits until the slow log of a server holds so many entries of a command.
fn logged(server: &Server, command: &str, entries: usize) {
    let mut c = server.connect_with(&options(2)).expect("it answers");
    until_ok(&format!("{entries} entries of {command} in the slow log"), || {
        let log = c.call(&["SLOWLOG", "GET", "128"])?;
        let name = |entry: &unslow_client::Value| -> Option<String> { entry.items().get(3)?.items().first()?.text() };
        let found = log.items().iter().filter(|entry| name(entry).as_deref() == Some(command)).count();
        Ok::<_, unslow_client::Error>(found >= entries)
    });
}

#[test]
fn the_page_opens_in_a_real_browser_with_its_causes_and_plots() {
    let fault = unslow_lab::faults::find("keys_command").unwrap();
    let lab = Lab::start(&fault.topology_of_six("valkey-9.1")).unwrap();
    let active = fault.inject(&lab, None, None).unwrap();
    // One in the slow log is a finding, whatever else the machine does.
    logged(&lab.deployment.nodes[0], "KEYS", 1);
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let html = page.to_str().unwrap();
    let output = unslow(&["doctor", &lab.url(), "--window", "3s", "--quiet", "--html", html, "--fail-on", "never"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    drop(active);
    let dom = browse(&page);
    assert!(
        dom.contains("id=\"keys_command\"") && dom.contains("class=\"topology\""),
        "the browser shows another page: {dom:.300}"
    );
    // A line of PINGs for each node.
    assert!(dom.matches("<polyline").count() >= 6, "plots have no lines");
    assert!(dom.contains("aria-label=\"PING from here\""), "the chart has no name");
    for server in &lab.deployment.nodes {
        assert!(dom.contains(&server.address()), "{} is missing", server.address());
    }
}

#[test]
fn another_machines_facts_can_be_added() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().join("host.json");
    let saved = unslow(&[
        "host",
        "--save",
        host.to_str().unwrap(),
        "--window",
        "500ms",
        "--fsync-dir",
        dir.path().to_str().unwrap(),
    ]);
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
    assert!(stdout(&saved).contains(&format!("pid {}", server.pid())), "{}", stdout(&saved));
    let with = report(&server.url(), &["--no-host", "--host", host.to_str().unwrap()]);
    assert!(unseen(&with).iter().all(|c| !c.contains("their machines")), "{:?}", unseen(&with));
    let without = report(&server.url(), &["--no-host"]);
    assert!(unseen(&without).iter().any(|c| c.contains("unslow host")), "{:?}", unseen(&without));
}

#[test]
fn the_demo_names_its_hidden_fault_and_proves_the_fix() {
    tried_while_busy(3, |_| {
        let output = unslow(&["demo", "--fault", "keys_command", "--window", "3s", "--format", "json", "--quiet"]);
        let outcome: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
        // Right or not, it knows which, and its exit status says so.
        let (named, right, gone) = (&outcome["named_first"], &outcome["right"], &outcome["gone_after_the_remedy"]);
        assert_eq!(*right, Value::Bool(*named == "keys_command"), "{named}");
        let proven = *right == true && *gone == true;
        assert_eq!(output.status.code(), Some(i32::from(!proven)), "right: {right}, gone: {gone}");
        if proven { Ok(()) } else { Err(format!("it named {named} first; gone after the remedy: {gone}")) }
    });
}

#[test]
fn keys_are_hashed_unless_asked_for() {
    let fault = unslow_lab::faults::find("big_key").unwrap();
    let lab = Lab::start(&fault.topology("valkey-9.1")).unwrap();
    let active = fault.inject(&lab, None, None).unwrap();
    logged(&lab.deployment.nodes[0], "HGETALL", 3);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("facts.json");
    let (mut hidden, mut facts) = (Value::Null, String::new());
    // The sizes of keys are among the questions that are left out on a busy machine, and then it says so.
    until("a look that asks every question", || {
        hidden = report(&lab.url(), &["--save", path.to_str().unwrap()]);
        facts = std::fs::read_to_string(&path).unwrap();
        assert!(!hidden.to_string().contains("profile:") && !facts.contains("profile:"), "a key name leaked");
        !hurried(&hidden)
    });
    assert!(hidden["findings"].to_string().contains("\"big_key\""), "{:?}", ids(&hidden));
    assert!(hidden.to_string().contains("key#") && facts.contains("key#"), "a hash in its place: {hidden}");
    let mut shown = Value::Null;
    until("a look that asks every question", || {
        shown = report(&lab.url(), &["--show-keys"]);
        !hurried(&shown)
    });
    assert!(shown.to_string().contains("profile:"), "--show-keys shows it");
    drop(active);
}

#[test]
fn help_names_every_verb_and_quiet_pipes_stay_clean() {
    let help = stdout(&unslow(&["--help"]));
    for verb in ["doctor", "host", "demo", "engine"] {
        assert!(help.contains(verb), "{help}");
    }
    let server = standalone("valkey-9.1");
    let output = command(&["doctor", &server.url(), "--window", "1s"]).env("NO_COLOR", "1").output().unwrap();
    assert!(
        !stdout(&output).contains('\u{1b}') && stderr(&output).is_empty(),
        "colours or progress in a pipe: {}",
        stderr(&output)
    );
}
