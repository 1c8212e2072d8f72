//! The diagnosis on every engine, in every shape, from every address; its JSON, its page, its user.

mod common;

use std::collections::BTreeSet;

use common::{browse, command, engine, ids, report, schema, stderr, stdout, tls_server, unseen, unslow};
use serde_json::Value;
use unslow_engine::{CATALOG, Deployment, Server, ServerSpec, Shape};
use unslow_lab::lab::Lab;

fn addresses(report: &Value) -> BTreeSet<String> {
    let nodes = report["deployment"]["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().map(|n| n["address"].as_str().unwrap_or_default().to_string()).collect()
}

#[test]
fn finds_the_whole_deployment_from_any_address_on_every_engine_and_keeps_to_the_schema() {
    let schema = schema("doctor");
    for entry in CATALOG {
        let engine = engine(entry.name);
        for shape in [
            Shape::Standalone,
            Shape::MasterReplica { replicas: 2 },
            Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 },
            Shape::six_nodes(),
        ] {
            let deployment = Deployment::start(&engine, &shape, &ServerSpec::default())
                .unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            let expected: BTreeSet<String> = deployment.nodes.iter().map(|n| n.address()).collect();
            let sentinels: BTreeSet<String> = deployment.sentinels.iter().map(|n| n.address()).collect();
            // The first, the last (a replica, where there are any), and a Sentinel.
            let mut seeds = vec![deployment.nodes[0].url(), deployment.nodes[deployment.nodes.len() - 1].url()];
            seeds.extend(deployment.sentinels.first().map(|s| format!("redis+sentinel://{}/mymaster", s.address())));
            let reports: Vec<_> = std::thread::scope(|scope| {
                let asked: Vec<_> = seeds.iter().map(|seed| scope.spawn(|| report(seed, &[]))).collect();
                asked.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (seed, report) in seeds.iter().zip(reports) {
                let what = format!("{} {shape:?} from {seed}", entry.name);
                let errors: Vec<String> = schema.iter_errors(&report).map(|e| e.to_string()).collect();
                assert!(errors.is_empty(), "{what}: {errors:?}");
                assert_eq!(addresses(&report), expected, "{what}");
                let found: BTreeSet<String> = report["deployment"]["sentinels"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|s| s.as_str().unwrap().to_string())
                    .collect();
                assert_eq!(found, sentinels, "{what}");
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
}

#[test]
fn a_saved_look_gives_the_same_diagnosis() {
    let deployment = Deployment::start(&engine("valkey-9.1"), &Shape::six_nodes(), &ServerSpec::default()).unwrap();
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
    let server = Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old.json");
    std::fs::write(&old, report(&server.url(), &[]).to_string()).unwrap();
    let mut c = server.connect().unwrap();
    c.call(&["CONFIG", "SET", "latency-monitor-threshold", "100"]).unwrap();
    let url = server.url();
    let output = unslow(&["doctor", &url, "--window", "1s", "--diff", old.to_str().unwrap(), "--quiet"]);
    assert!(stdout(&output).contains("gone  blind_instruments"), "{}", stdout(&output));
    server.kill();
}

#[test]
fn the_exit_status_follows_fail_on() {
    let server = Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap();
    // An idle server has risks (its latency monitor is off) and nothing more.
    for (fail_on, code) in [("low", 0), ("risk", 1), ("never", 0), ("critical", 0)] {
        let output = unslow(&["doctor", &server.url(), "--window", "1s", "--quiet", "--fail-on", fail_on]);
        assert_eq!(output.status.code(), Some(code), "--fail-on {fail_on}: {}", stderr(&output));
    }
}

#[test]
fn speaks_resp2_and_resp3_and_unix_sockets() {
    for name in ["valkey-9.1", "redis-5.0"] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        let spec =
            ServerSpec { settings: vec![("unixsocket".into(), socket.display().to_string())], ..ServerSpec::default() };
        let server = Server::start(&engine(name), &spec).unwrap();
        for (url, resp) in [(server.url(), "2"), (server.url(), "3"), (format!("unix:{}", socket.display()), "3")] {
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

    let fails = |url: &str, more: &[&str], expected: &str| {
        let mut arguments = vec!["doctor", url, "--window", "1s", "--timeout", "1"];
        arguments.extend(more);
        let output = unslow(&arguments);
        assert_eq!(output.status.code(), Some(2), "{url} {more:?}");
        assert!(
            stderr(&output).contains(expected) && stderr(&output).trim().lines().count() == 1,
            "{url} {more:?}: {}",
            stderr(&output)
        );
        assert!(!stderr(&output).contains("s3cret"));
    };
    fails(&url, &[], "--cacert");
    fails(&url, &["--cacert", &ca], "client certificate");
    fails(&format!("redis://:s3cret@127.0.0.1:{port}"), &[], "rediss://");
    fails(&format!("rediss://:s3cret@{}", server.address()), &["--cacert", &ca], "redis://");
    fails(&url, &["--cacert", "/nowhere.pem"], "/nowhere.pem");
}

#[test]
fn the_printed_user_sees_everything_and_may_write_nothing_on_every_version() {
    for name in ["valkey-9.1", "redis-7.0", "redis-6.2"] {
        let engine = engine(name);
        for shape in [Shape::Standalone, Shape::six_nodes(), Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }] {
            let deployment = Deployment::start(&engine, &shape, &ServerSpec::default()).unwrap();
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
            let seen = report(&format!("redis://unslow:pw@{address}"), &["--no-host"]);
            let denied: Vec<String> = unseen(&seen)
                .into_iter()
                .filter(|c| c.contains("denied") || c.contains("NOPERM") || c.contains("permission"))
                .collect();
            assert!(denied.is_empty(), "{name} {shape:?}: {denied:?}");
            assert_eq!(addresses(&seen).len(), deployment.nodes.len(), "{name} {shape:?}");
            assert_eq!(
                seen["deployment"]["sentinels"].as_array().unwrap().len(),
                deployment.sentinels.len(),
                "{name} {shape:?}"
            );
            // The same user, by hand, may write nothing.
            let target = unslow_client::Target::parse(&format!("redis://unslow:pw@{address}")).unwrap();
            let mut c = unslow_client::Connection::open(&target, &unslow_client::Options::default()).unwrap();
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
}

#[test]
fn the_page_opens_in_a_real_browser_with_its_causes_and_plots() {
    let fault = unslow_lab::faults::find("keys_command").unwrap();
    let lab = Lab::start(&fault.topology_of_six("valkey-9.1")).unwrap();
    let active = fault.inject(&lab, None, None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let output = unslow(&["doctor", &lab.url(), "--window", "3s", "--quiet", "--html", page.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    drop(active);
    let dom = browse(&page);
    assert!(
        dom.contains("id=\"keys_command\"") && dom.contains("class=\"topology\""),
        "the browser shows another page: {dom:.300}"
    );
    assert!(dom.matches("<polyline").count() >= 6, "plots have no lines");
    for server in &lab.deployment.nodes {
        assert!(dom.contains(&server.address()), "{} is missing", server.address());
    }
}

#[test]
fn another_machines_facts_can_be_added() {
    let server = Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap();
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
    let output = unslow(&["demo", "--fault", "keys_command", "--window", "3s", "--format", "json", "--quiet"]);
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    assert_eq!(outcome["named_first"], "keys_command");
    assert_eq!(
        (&outcome["right"], &outcome["gone_after_the_remedy"], output.status.code()),
        (&Value::Bool(true), &Value::Bool(true), Some(0))
    );
}

#[test]
fn keys_are_hashed_unless_asked_for() {
    let fault = unslow_lab::faults::find("big_key").unwrap();
    let lab = Lab::start(&fault.topology("valkey-9.1")).unwrap();
    let active = fault.inject(&lab, None, None).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let dir = tempfile::tempdir().unwrap();
    let facts = dir.path().join("facts.json");
    let hidden = report(&lab.url(), &["--save", facts.to_str().unwrap()]);
    assert!(ids(&hidden).contains(&"big_key".to_string()), "{:?}", ids(&hidden));
    assert!(
        !hidden.to_string().contains("profile:") && !std::fs::read_to_string(&facts).unwrap().contains("profile:"),
        "a key name leaked"
    );
    let shown = report(&lab.url(), &["--show-keys"]);
    assert!(shown.to_string().contains("profile:"), "--show-keys shows it");
    drop(active);
}

#[test]
fn help_names_every_verb_and_quiet_pipes_stay_clean() {
    let help = stdout(&unslow(&["--help"]));
    for verb in ["doctor", "host", "demo", "engine"] {
        assert!(help.contains(verb), "{help}");
    }
    let server = Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap();
    let output = command(&["doctor", &server.url(), "--window", "1s"]).env("NO_COLOR", "1").output().unwrap();
    assert!(
        !stdout(&output).contains('\u{1b}') && stderr(&output).is_empty(),
        "colours or progress in a pipe: {}",
        stderr(&output)
    );
}
