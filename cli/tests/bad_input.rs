//! What goes wrong on the way: one clear line and exit status 2, or a partial diagnosis that says what is missing.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use common::{Running, command, report, stderr, stdout, unseen, unslow};
use serde_json::Value;
use unslow_engine::{Shape, info};
use unslow_testkit::servers::{deployment, server};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, standalone, until};

/// Seconds the doctor waits for an answer: one that comes is in time on a busy machine too, one that never comes costs
/// them.
const TIMEOUT: &str = "5";

/// Exit status 2 and one line that holds `expected`.
fn fails(arguments: &[&str], expected: &str) {
    let mut all = vec!["doctor", "--window", "1s", "--timeout", TIMEOUT];
    all.extend(arguments);
    let output = unslow(&all);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}{}", stdout(&output));
    assert!(
        text.starts_with("unslow: ") && text.trim().lines().count() == 1 && text.contains(expected),
        "{arguments:?}: {text}"
    );
    assert!(stdout(&output).is_empty(), "{arguments:?}: {}", stdout(&output));
}

/// A report that calls the address it was given unreachable, for a reason that holds `expected`.
fn unreachable(url: &str, expected: &str) {
    as_bad_as(url, "critical", expected);
}

fn as_bad_as(url: &str, severity: &str, expected: &str) {
    let output = unslow(&["doctor", url, "--window", "1s", "--timeout", TIMEOUT, "--format", "json", "--quiet"]);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{url}: {e}: {}", stderr(&output)));
    assert_eq!((output.status.code(), &report["verdict"]), (Some(1), &"causes".into()), "{url}: {report:#}");
    let first = &report["findings"][0];
    assert!(first["id"] == "node_unreachable" || first["id"] == "node_hangs", "{url}: {first:#}");
    assert_eq!(first["severity"], severity, "{url}: {first:#}");
    assert!(report.to_string().contains(expected), "{url}: {report:#}");
    assert_eq!(report["ruled_out"], Value::Array(Vec::new()), "{url}");
}

/// A peer that answers every connection's first bytes with `answer` and then is silent.
fn peer(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0u8; 1024]);
            let _ = stream.write_all(answer);
            held.push(stream);
        }
    });
    port
}

/// A report of a look that asked every question: the more expensive ones are left out when PINGs become slower
/// meanwhile, as they do on a busy machine.
fn whole_report(url: &str) -> Value {
    let mut seen = Value::Null;
    until("a look that asks every question", || {
        seen = report(url, &[]);
        !unseen(&seen).iter().any(|why| why.contains("the more expensive questions were left out"))
    });
    seen
}

#[test]
fn one_line_for_every_way_not_to_be_a_redis() {
    let peer = |answer: &'static [u8]| format!("127.0.0.1:{}", peer(answer));
    let ways = [
        ("no-such-host.invalid".into(), "does not resolve"),
        ("http://127.0.0.1".to_string(), "unknown scheme"),
        ("redis://127.0.0.1:notaport".into(), "host[:port]"),
        (peer(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP server"),
        (peer(b"SSH-2.0-OpenSSH_9.2\r\n"), "an SSH server"),
        (peer(b"*9223372036854775807\r\n"), "larger than the limit"),
        (peer(b"$99999999999\r\n"), "larger than the limit"),
    ];
    for (url, expected) in &ways {
        fails(&[url], expected);
    }
    fails(&["unix:/etc"], "/etc is a directory; expected a server's socket");
    fails(&["unix:/etc/passwd"], "/etc/passwd is a file; expected a server's socket");
    fails(&["redis:host"], "two slashes after its scheme");
    fails(&[":99999"], "a port is a number from 1 to 65535");
}

#[test]
fn the_address_that_was_given_is_a_subject_of_the_report() {
    let peer = |answer: &'static [u8]| format!("127.0.0.1:{}", peer(answer));
    let ways = [
        ("127.0.0.1:1".to_string(), "connection refused"),
        ("unix:/nowhere/redis.sock".into(), "no such socket"),
        (peer(b""), "says nothing"),
        (peer(b"+OK\r\n+OK\r\n$1000\r\nhalf"), "in the middle of a reply"),
    ];
    // Side by side: silence takes its time.
    std::thread::scope(|scope| {
        for (url, expected) in &ways {
            scope.spawn(move || unreachable(url, expected));
        }
    });
}

#[test]
fn one_line_for_files_that_are_no_facts() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    fails(&["--from", &file("corrupt", "{\"schema\": \"unslow.facts/1\", \"nodes\": [")], "cut off");
    fails(&["--from", &file("foreign text", "hello")], "not a facts file");
    fails(&["--from", &file("foreign", "{\"schema\": \"unslow.facts/99\"}")], "expected \"unslow.facts/1\"");
    fails(&["--from", &file("cut", "{\"schema\": \"unslow.facts/1\"}")], "damaged facts file");
    fails(&["--from", "/nowhere.json"], "/nowhere.json");
    fails(&["127.0.0.1:1", "--host", &file("host", "[]")], "unslow host --save");
}

#[test]
fn passwords_missing_wrong_or_for_nobody() {
    for name in ["valkey-9.1", "redis-5.0"] {
        let server = server(name, &[("requirepass", "right")]);
        let url = server.url();
        fails(&[&url], "wants a password");
        fails(&[&format!("redis://:wrong@{}", server.address())], "password refused for the default user");
        if name == "valkey-9.1" {
            fails(&[&format!("redis://nobody:x@{}", server.address())], "password refused for user \"nobody\"");
        }
        // The status is the password's alone: findings of a busy machine do not count.
        let arguments = ["doctor", &url, "--window", "1s", "--quiet", "--format", "json", "--fail-on", "never"];
        let by_environment = command(&arguments).env("UNSLOW_PASSWORD", "right").output().unwrap();
        assert_eq!(by_environment.status.code(), Some(0), "{}", stderr(&by_environment));
        let report: Value = serde_json::from_slice(&by_environment.stdout).unwrap();
        let node = &report["deployment"]["nodes"][0];
        assert_eq!((&node["address"], &node["role"]), (&server.address().into(), &"master".into()), "{name}");
    }
    let open = standalone("redis-6.2");
    report(&format!("redis://:unneeded@{}", open.address()), &[]);
}

#[test]
fn a_server_is_named_as_for_redis_cli_or_by_the_environment() {
    let server = server("valkey-9.1", &[("requirepass", "s3cret")]);
    let (address, url) = (server.address(), server.url());
    let (host, port) = address.rsplit_once(':').unwrap();
    let asked = |more: &[&str], from_environment: &str| {
        let mut command = command(&["doctor", "--window", "1s", "--format", "json", "--quiet"]);
        let output = command.args(more).env("UNSLOW_URL", from_environment).output().unwrap();
        assert!(!stderr(&output).contains("s3cret") && !stdout(&output).contains("s3cret"), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["deployment"]["url"].as_str().map(str::to_string)
    };
    assert_eq!(asked(&["-h", host, "-p", port, "-a", "s3cret"], ""), Some(url.clone()));
    assert_eq!(asked(&["-u", &url, "-a", "s3cret"], ""), Some(url.clone()));
    assert_eq!(asked(&["-a", "s3cret"], &url), Some(url.clone()), "no name, but UNSLOW_URL");
    fails(&[&url, "-p", port], "the server is named twice; expected a URL, or -h and -p, or -u");
    for verb in ["doctor", "top", "record", "bench", "watch"] {
        let help = unslow(&[verb, "-h"]);
        let text = stdout(&help);
        assert!(help.status.success() && text.contains("Server, as for redis-cli"), "{verb}: {text}");
    }
    // In bench -n is the number of requests, as in redis-benchmark.
    let mut bench = command(&["bench", "-p", port, "-a", "s3cret", "-n", "100", "-c", "1", "-d", "16", "-r", "10"]);
    let output = bench.args(["-h", host, "--format", "json", "--quiet"]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    assert_eq!(report["runs"][0]["requests"], 100, "{report:#}");
}

#[test]
fn a_user_without_rights_learns_which_grants_are_missing() {
    let deployment = deployment("valkey-9.1", Shape::six_nodes(), &[]);
    for node in &deployment.nodes {
        let mut c = node.connect_with(&options(2)).unwrap();
        c.call(&["ACL", "SETUSER", "half", "on", ">pw", "-@all", "+ping", "+info", "+cluster|nodes"]).unwrap();
        c.call(&["ACL", "SETUSER", "none", "on", ">pw", "-@all"]).unwrap();
    }
    let half = whole_report(&format!("redis://half:pw@{}", deployment.nodes[0].address()));
    let all = unseen(&half).join("\n");
    for grant in ["+config|get", "+slowlog|get", "+latency|latest", "+client|list", "+cluster|info"] {
        assert!(all.contains(grant), "{grant} is not asked for: {all}");
    }
    assert_eq!(half["deployment"]["nodes"].as_array().unwrap().len(), 6);
    assert_eq!(half["verdict"], "blind");
    let none = format!("redis://none:pw@{}", deployment.nodes[0].address());
    let output = unslow(&["doctor", &none, "--window", "1s", "--timeout", TIMEOUT]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(2), "{text}{}", stderr(&output));
    assert!(text.starts_with("blind") || text.contains("\nblind"), "{text}");
    assert!(text.contains("--print-acl"), "{text}");
}

#[test]
fn a_managed_service_without_config_cluster_and_acl_gets_a_partial_diagnosis() {
    // Redis 5.0 has no ACL to take away.
    for (name, gone) in [
        ("redis-7.0", &["CONFIG", "SLOWLOG", "CLIENT", "LATENCY", "ACL"][..]),
        ("redis-5.0", &["CONFIG", "SLOWLOG", "CLIENT", "LATENCY"]),
    ] {
        let renamed: Vec<String> = gone.iter().map(|command| format!("{command} \"\"")).collect();
        let settings: Vec<(&str, &str)> = renamed.iter().map(|value| ("rename-command", value.as_str())).collect();
        let server = server(name, &settings);
        let report = whole_report(&server.url());
        let all = unseen(&report).join("\n");
        for gone in ["CONFIG GET", "SLOWLOG GET", "CLIENT LIST", "LATENCY LATEST"] {
            assert!(all.contains(&format!("{gone} is not there")) || all.contains(gone), "{name}: {gone}: {all}");
        }
        // Its own commands are no load, and no one else is there.
        assert_eq!(report["deployment"]["nodes"][0]["commands_per_s"].as_f64(), Some(0.0));
    }
}

#[test]
fn one_dead_and_one_hung_node_are_named_and_the_rest_is_diagnosed() {
    let deployment = deployment("valkey-9.1", Shape::six_nodes(), &[]);
    deployment.nodes[4].kill();
    deployment.nodes[5].signal(libc::SIGSTOP);
    let url = deployment.url();
    let arguments = ["doctor", &url, "--window", "1s", "--timeout", TIMEOUT, "--format", "json", "--quiet"];
    let output = unslow(&arguments);
    // The doctor has ended, and only then does the node wake: it holds nobody up.
    deployment.nodes[5].signal(libc::SIGCONT);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    let all = unseen(&report).join("\n");
    assert!(all.contains(&deployment.nodes[4].address()) && all.contains("refused"), "{all}");
    assert!(all.contains(&deployment.nodes[5].address()) && all.contains("no answer"), "{all}");
    let measured =
        report["deployment"]["nodes"].as_array().unwrap().iter().filter(|n| n["commands_per_s"].is_number()).count();
    assert_eq!(measured, 4);
}

#[test]
fn a_server_that_hangs_in_the_window_leaves_a_partial_diagnosis() {
    let server = standalone("valkey-9.1");
    // The window is longer than anything before the hang takes, and ends with it.
    let url = server.url();
    let arguments = ["doctor", &url, "--window", "120s", "--timeout", TIMEOUT, "--format", "json"];
    let mut doctor = Running(command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    // Twenty PINGs come before the window.
    let mut c = server.connect_with(&options(2)).unwrap();
    until_ok("PINGs of the window", || {
        let section = info(&mut c, "commandstats")?;
        Ok::<_, unslow_engine::Error>(section.command_stats().get("ping").is_some_and(|ping| ping.calls >= 60))
    });
    server.signal(libc::SIGSTOP);
    let (mut out, mut said) = (String::new(), String::new());
    doctor.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    doctor.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = doctor.ended();
    server.signal(libc::SIGCONT);
    // The report has what was seen before the hang, and names the hang as a cause.
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!((status, &report["findings"][0]["id"]), (Some(1), &"node_hangs".into()), "{report:#}");
    assert!(unseen(&report).iter().any(|why| why.contains("no answer within")), "{report:#}");
}

#[test]
fn a_loading_server_is_told_as_such() {
    // 200,000 keys at 200 us each: it loads for forty seconds at least, unless it is told to hurry.
    let server = server(
        "valkey-9.1",
        &[("save", "3600 1"), ("key-load-delay", "200"), ("loading-process-events-interval-bytes", "1024")],
    );
    let mut c = server.connect_with(&options(2)).unwrap();
    for chunk in 0..400 {
        let batch: Vec<Vec<String>> =
            (0..500).map(|i| vec!["SET".into(), format!("k:{chunk}:{i}"), "v".into()]).collect();
        c.pipeline(&batch).unwrap();
    }
    c.call(&["SAVE"]).unwrap();
    server.kill();
    std::thread::scope(|scope| {
        // It may give up waiting for the end of it: that it loads is enough.
        let starting = scope.spawn(|| server.restart());
        let mut seen = String::new();
        until("the doctor to meet a server that loads", || {
            let output = unslow(&["doctor", &server.url(), "--window", "500ms", "--format", "json", "--quiet"]);
            let report = serde_json::from_slice::<Value>(&output.stdout);
            seen = report.map(|report| unseen(&report).join("\n")).unwrap_or_default();
            seen.contains("loading")
        });
        if let Ok(mut c) = server.connect_with(&options(2)) {
            let _ = c.call(&["CONFIG", "SET", "key-load-delay", "0"]); // the rest in no time; nothing hangs on it
        }
        let _ = starting.join();
        assert!(seen.contains("loading its data set"), "{seen}");
    });
}

#[test]
fn a_full_server_is_told_as_such() {
    let server = server("valkey-9.1", &[("maxclients", "10")]);
    let mut held = Vec::new();
    // The connection by which the server was seen to be ready may be there for a moment yet.
    until("ten clients that are served", || {
        let served = server.connect_with(&options(2)).ok().and_then(|mut c| c.call(&["PING"]).ok().map(|_| c));
        held.extend(served);
        held.len() == 10
    });
    // Those who are connected are served.
    as_bad_as(&server.url(), "high", "maxclients");
}

fn processes_below(pid: u32) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| std::fs::read_to_string(e.path().join("stat")).ok())
        .filter(|stat| {
            stat.rsplit_once(')').and_then(|(_, t)| t.split_whitespace().nth(1)?.parse::<u32>().ok()) == Some(pid)
        })
        .count()
}

#[test]
fn ctrl_c_ends_a_demo_with_everything_it_started() {
    // Also while its servers are being started: that they were ended under it is no error of the demo's to report.
    for (signal, servers) in [libc::SIGINT, libc::SIGTERM].into_iter().flat_map(|s| [1, 2, 3, 6].map(|n| (s, n))) {
        let dir = tempfile::tempdir().unwrap();
        let mut demo = command(&["demo", "--fault", "connection_churn"]);
        demo.env("TMPDIR", dir.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut demo = Running(demo.spawn().unwrap());
        until("the demo's servers", || processes_below(demo.0.id()) >= servers);
        demo.signal(signal);
        let mut said = String::new();
        demo.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(demo.ended(), Some(2), "{said}");
        assert!(said.contains("interrupted; everything it had started was stopped"), "{said}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

#[test]
fn a_full_disk_is_told_and_costs_nothing_else() {
    let server = standalone("valkey-9.1");
    let output = unslow(&["doctor", &server.url(), "--window", "1s", "--quiet", "--save", "/dev/full"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("No space left"), "{}", stderr(&output));
}

#[test]
fn a_failure_is_one_json_document_with_its_reason_wherever_json_was_asked_for() {
    for arguments in [
        &["record", "ls", "/nowhere"][..],
        &["incidents", "/nowhere"],
        &["compare", "/nowhere/a", "/nowhere/b"],
        &["bench", "redis://127.0.0.1:1", "-n", "1"],
        &["lab", "fault", "delay", "zone-a", "--one-way"],
        &["lab", "up", "--set", "maxmemory"],
        &["case"],
        &["case", "nothing"],
        &["drill", "nothing"],
        &["engine", "install", "nothing"],
        &["engine", "rm", "nothing"],
        &["sink", "--map", "/nowhere"],
        &["no-such-verb"],
        &["lab"],
    ] {
        for command_line in [[arguments, &["--format", "json"]].concat(), [&["--format", "json"], arguments].concat()] {
            let output = unslow(&command_line);
            assert_eq!(output.status.code(), Some(2), "{command_line:?}: {}", stdout(&output));
            let document: Value = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|e| panic!("{command_line:?}: {e}: {:?}", stdout(&output)));
            assert_eq!(document["schema"], "unslow.error/1", "{command_line:?}");
            let why = document["error"].as_str().unwrap_or_default();
            assert!(why.len() > 5 && !why.ends_with(": "), "{command_line:?}: {why:?}");
        }
    }
    let output = unslow(&["doctor", "--nonsense", "--format", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(document["schema"], "unslow.doctor/1");
    // What stands behind -- is another program's.
    let output = unslow(&["lab", "exec", "--nonsense", "host", "--", "unslow", "doctor", "--format", "json"]);
    assert_eq!(stdout(&output), "");
}

#[test]
fn lists_are_ls_wherever_a_global_flag_stands() {
    for arguments in [&["case", "ls"][..], &["case", "list"], &["drill", "ls"], &["drill", "--list"], &["engine", "ls"]]
    {
        let texts = [[&["--quiet"], arguments].concat(), [arguments, &["--quiet"]].concat()].map(|all| unslow(&all));
        assert!(texts.iter().all(|output| output.status.success()), "{arguments:?}: {}", stderr(&texts[0]));
        assert_eq!(texts[0].stdout, texts[1].stdout);
        let document: Value =
            serde_json::from_slice(&unslow(&[arguments, &["--format", "json"]].concat()).stdout).unwrap();
        assert!(document["schema"].as_str().is_some_and(|schema| schema.starts_with("unslow.")), "{arguments:?}");
    }
}

#[test]
fn a_password_whose_host_was_forgotten_is_not_repeated() {
    for (verb, format) in [("bench", "json"), ("doctor", "json"), ("doctor", "junit"), ("doctor", "text")] {
        let output = unslow(&[verb, "redis://:s3cret", "--format", format]);
        let said = stdout(&output) + &stderr(&output);
        assert!(!said.contains("s3cret") && said.contains("host[:port]"), "{verb} {format}: {said}");
    }
}

/// As after the terminal was closed: nothing that it has to say can be written.
#[test]
fn an_interrupted_command_ends_though_its_stderr_is_gone() {
    let server = standalone("valkey-9.1");
    let mut watch =
        Running(command(&["watch", &server.url()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut seen = [0_u8; 1];
    watch.0.stdout.as_mut().unwrap().read_exact(&mut seen).expect("it says what it watches");
    drop(watch.0.stderr.take());
    watch.signal(libc::SIGINT);
    assert!(watch.ended().is_some());
}
