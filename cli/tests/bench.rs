//! `unslow bench` and `unslow compare` as a person runs them: what they print, keep, refuse and leave behind.

mod common;
#[path = "bench/keys.rs"]
mod keys;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use common::{Running, browse, command, schema, stderr, stdout, tls_server, unslow};
use keys::names;
use serde_json::Value;
use unslow_engine::{Server, free_port, info};
use unslow_resp::{Frame, Scan, Scanner};
use unslow_testkit::servers::{server, steady};
use unslow_testkit::{cluster, options, standalone, until};

/// The machine's other work must neither break a run nor make it invalid.
const PATIENT: [&str; 4] = ["--timeout", "60", "--lateness-max", "3600s"];

/// A short run as JSON, held to its schema.
#[track_caller]
fn bench(url: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["bench", url, "--seconds", "1", "--keys", "1000", "--quiet", "--format", "json"];
    arguments.extend(PATIENT);
    arguments.extend(more);
    let output = unslow(&arguments);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{more:?}: {e}: {}{}", stdout(&output), stderr(&output)));
    let name = if report["schema"] == "unslow.compare/1" { "compare" } else { "bench" };
    let errors: Vec<String> = schema(name).iter_errors(&report).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{more:?}: {errors:?}");
    report
}

/// Exit status 2 and one line that holds `expected`.
#[track_caller]
fn fails(arguments: &[&str], expected: &str) {
    let mut command = command(arguments);
    if arguments[0] == "bench" {
        command.args(PATIENT);
    }
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}{}", stdout(&output));
    assert!(text.contains(expected), "{arguments:?}: {text}");
    assert!(stdout(&output).is_empty(), "{arguments:?}: {}", stdout(&output));
}

/// How often a server has executed GET.
fn gets(server: &Server) -> u64 {
    let mut c = server.connect_with(&options(2)).unwrap();
    let stats = info(&mut c, "commandstats").unwrap();
    stats.command_stats().get("get").map_or(0, |s| s.calls)
}

#[test]
fn the_commands_of_the_guide_do_what_they_say() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let report = bench(&url, &["--rate", "20000", "--connections", "50", "--mix", "get=1", "--value-size", "64"]);
    let run = &report["runs"][0];
    assert_eq!((run["requests"].as_u64(), run["answered"].as_u64()), (Some(20_000), Some(20_000)));
    assert_eq!(run["lateness"]["count"], 20_000, "each of them is looked at once");
    assert!(run["errors"].as_array().unwrap().is_empty());
    assert!(run["generator"]["cpu_us_per_request"].as_f64().unwrap() > 0.0);
    assert!(run["servers"][0]["cpu_share_proc"].as_f64().is_some(), "a server of this machine is seen in /proc too");
    let mut c = server.connect_with(&options(2)).unwrap();
    let mut reads = || info(&mut c, "stats").unwrap().number("total_reads_processed").unwrap();
    let before = reads();
    let deep = bench(&url, &["--pipeline", "16", "--requests", "20000", "--seconds", "120", "--no-preload"]);
    let reads = reads() - before;
    assert_eq!((&deep["load"]["in_flight_max"], &deep["runs"][0]["answered"]), (&16.into(), &20_000.into()));
    assert!(reads < 10_000.0, "what is written together is read together, and the server has read {reads} times");
    // All 32 callers ask all the time: those who find no connection wait.
    for (model, connections, waiting) in [("pool:8", 8, 24), ("shared", 1, 0)] {
        let report = bench(&url, &["--model", model, "--callers", "32"]);
        let run = &report["runs"][0];
        let second = &run["timeline"][0];
        assert_eq!((&second["connections"], &second["waiting"]), (&connections.into(), &waiting.into()), "{model}");
        assert_eq!(run["pool_wait"]["count"], run["requests"], "{model}");
    }
    let text = command(&["bench", &url, "--seconds", "1", "--rate", "1000,2000", "--arrivals", "poisson"])
        .args(PATIENT)
        .output()
        .unwrap();
    let (out, err) = (stdout(&text), stderr(&text));
    assert_eq!(text.status.code(), Some(0), "{out}{err}");
    assert!(err.contains("writing 100,000 keys first, unslow:"), "{err}");
    for part in
        ["open loop, 1,000, 2,000 requests/s Poisson", "from due to answered", "generator's lateness", "no errors."]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn a_workload_file_says_the_same_as_flags() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("load.toml");
    std::fs::write(
        &file,
        "commands = [\"touch=HSET user:{key} f {value}\"]\nkeys = 10\nvalue_size = \"5-9\"\nseed = 3\n[mix]\ntouch = \
         0.5\nincr = 0.5\n",
    )
    .unwrap();
    let report = bench(&server.url(), &["--workload", file.to_str().unwrap(), "--requests", "500"]);
    assert_eq!((&report["workload"]["seed"], &report["workload"]["keys"]), (&3.into(), &1000.into()), "a flag wins");
    let names: Vec<&str> =
        report["runs"][0]["commands"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["incr", "touch"]);
    std::fs::write(&file, "kees = 10\n").unwrap();
    fails(&["bench", &server.url(), "--workload", file.to_str().unwrap()], "kees");
}

#[test]
fn speaks_tls_with_a_password_and_over_unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, port) = tls_server(dir.path());
    let file = |n: &str| dir.path().join(n).display().to_string();
    let url = format!("rediss://:s3cret@127.0.0.1:{port}");
    let certificates = ["--cacert", &file("ca.crt"), "--cert", &file("server.crt"), "--key", &file("server.key")];
    for more in [
        &["--pipeline", "64", "--verify"][..],
        &["--rate", "2000"],
        &["--model", "shared", "--value-size", "100000", "--keys", "100"],
    ] {
        let report = bench(&url, &[&certificates[..], &["--requests", "300", "--seconds", "120"], more].concat());
        let run = &report["runs"][0];
        assert!(run["errors"].as_array().unwrap().is_empty() && run["answered"] == 300, "{more:?}: {run}");
        assert_eq!(report["load"]["tls"], true);
        assert!(!report.to_string().contains("s3cret"), "the password is printed");
    }
    fails(&["bench", &url, "--seconds", "1"], "certificate");
    fails(
        &[&["bench", &url.replace("s3cret", "wrong"), "--seconds", "1"][..], &certificates].concat(),
        "password refused",
    );

    let socket = file("s.sock");
    let _server = server("valkey-9.1", &[("unixsocket", socket.as_str())]);
    let report = bench(&format!("unix:{socket}"), &["--verify", "--requests", "2000", "--seconds", "120"]);
    assert_eq!(report["runs"][0]["answered"], 2000);
    assert!(report["runs"][0]["errors"].as_array().unwrap().is_empty());
    assert!(report["runs"][0]["servers"][0]["cpu_s"].as_f64().unwrap() > 0.0);
}

/// A peer that is a server until it is asked to GET.
fn peer(answer: impl Fn(&mut std::net::TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let answer = std::sync::Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let (mut scanner, mut input, mut chunk) = (Scanner::default(), Vec::new(), [0u8; 4096]);
                while let Ok(n @ 1..) = stream.read(&mut chunk) {
                    input.extend_from_slice(&chunk[..n]);
                    while let Ok(Scan::Complete(len)) = scanner.scan(&input) {
                        let words: Vec<String> = Frame::new(&input[..len])
                            .items()
                            .map(|w| String::from_utf8_lossy(w.text()).to_uppercase())
                            .collect();
                        input.drain(..len);
                        let plain: &[u8] = match words[0].as_str() {
                            "INFO" => {
                                b"$80\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nrole:master\r\n\
                                        process_id:1\r\nx:00000\r\n\r\n"
                            }
                            "PUBSUB" => b"*0\r\n",
                            "GET" => {
                                answer(&mut stream);
                                continue;
                            }
                            _ => b"-ERR unknown command\r\n",
                        };
                        let _ = stream.write_all(plain);
                    }
                }
            });
        }
    });
    url
}

#[test]
fn peers_that_misbehave_are_counted_and_the_run_ends() {
    let peers = [
        ("not_resp", "0x3c", peer(|s| s.write_all(b"<html>").unwrap_or(()))),
        ("not_resp", "larger than the limit", peer(|s| s.write_all(b"$9223372036854775807\r\n").unwrap_or(()))),
        ("timeout", "no answer for", peer(|s| s.write_all(b"$100\r\nhalf").unwrap_or(()))),
        ("connection_lost", "closed", peer(|s| s.shutdown(std::net::Shutdown::Both).unwrap_or(()))),
        ("unasked", "without being asked", peer(|s| s.write_all(b"+OK\r\n+more\r\n").unwrap_or(()))),
        ("LOADING", "LOADING", peer(|s| s.write_all(b"-LOADING reading the data set\r\n").unwrap_or(()))),
    ];
    // Side by side: silence takes its time.
    std::thread::scope(|scope| {
        for (kind, word, url) in &peers {
            scope.spawn(move || is_counted(kind, word, url));
        }
    });
}

/// What a peer does wrong is an error of this kind whose example holds this word, and no request is forgotten for it.
fn is_counted(kind: &str, word: &str, url: &str) {
    let arguments =
        ["bench", url, "--yes", "--seconds", "1", "--timeout", "10", "-c", "4", "--rate", "100", "--mix", "get=1"];
    let more = ["--no-preload", "--format", "json", "--quiet", "--lateness-max", "3600s"];
    let (output, _) = watched(command(&arguments).args(more).stdout(Stdio::piped()).spawn().unwrap());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{kind}: {e}"));
    let run = &report["runs"][0];
    let errors = run["errors"].as_array().unwrap();
    if kind == "unasked" {
        // Nobody's answer is nobody's error, but it ends the connection.
        let told = run["events"].as_array().unwrap().iter().any(|e| e["text"].as_str().unwrap().contains(word));
        assert!(told, "{}", run["events"]);
    } else {
        let found = errors.iter().find(|e| e["kind"] == kind).unwrap_or_else(|| panic!("{kind}: {errors:?}"));
        assert!(found["example"].as_str().unwrap().contains(word), "{kind}: {found}");
    }
    let [all, answered, refused, lost] =
        ["requests", "answered", "refused", "unanswered"].map(|n| run[n].as_u64().unwrap());
    assert_eq!((all, answered + refused + lost), (100, 100), "{kind}: {run}");
    if answered == 0 {
        assert_eq!((output.status.code(), &run["valid"]), (Some(1), &false.into()), "{kind}");
    }
}

#[test]
fn a_value_of_512_mb_passes_through_in_little_memory() {
    let url = peer(|s| {
        let piece = vec![b'x'; 1 << 20];
        let _ = s.write_all(b"$536870912\r\n");
        for _ in 0..512 {
            if s.write_all(&piece).is_err() {
                return;
            }
        }
        let _ = s.write_all(b"\r\n");
    });
    let arguments = [
        "bench",
        &url,
        "--requests",
        "3",
        "-c",
        "1",
        "--mix",
        "get=1",
        "--no-preload",
        "--format",
        "json",
        "--quiet",
        "--yes",
    ];
    let child =
        command(&arguments).args(["--timeout", "60", "--seconds", "120"]).stdout(Stdio::piped()).spawn().unwrap();
    let (output, peak) = watched(child);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runs"][0]["answered"], 3, "{report}");
    assert!(peak < 64 << 10, "{peak} kB of memory for values that nobody keeps");
}

#[test]
fn a_thousand_connections_fit_in_60_mb() {
    connections_fit(1000, 60); // half of it for the program itself
}

#[test]
#[ignore = "long: 10,000 connections"]
fn ten_thousand_connections_fit_in_300_mb() {
    connections_fit(10_000, 300);
}

/// So many connections are open together, each of them answers, and all of them hold no more memory than this.
fn connections_fit(connections: u64, megabytes: u64) {
    let clients = (connections + 2000).to_string();
    let server = server("valkey-9.1", &[("maxclients", clients.as_str())]);
    let (count, requests, url) = (connections.to_string(), (connections * 5).to_string(), server.url());
    let arguments = ["bench", &url, "-c", &count, "--requests", &requests, "--seconds", "120", "--keys", "1000"];
    let child = command(&arguments)
        .args(["--timeout", "60", "--format", "json", "--quiet"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (output, peak) = watched(child);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stdout(&output)));
    let run = &report["runs"][0];
    assert_eq!(run["timeline"][0]["connections"], connections, "{run}");
    assert!(run["errors"].as_array().unwrap().is_empty() && run["answered"] == connections * 5, "{run}");
    println!("{connections} connections: {peak} kB");
    assert!(peak < megabytes << 10, "{connections} connections hold {peak} kB");
}

/// A process to its end, which must come, and the most memory it held, in kB.
#[track_caller]
fn watched(child: Child) -> (Output, u64) {
    let mut child = Running(child);
    let (mut peak, mut text, mut ended) = (0, Vec::new(), None);
    let mut out = child.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let _ = out.read_to_end(&mut text);
        text
    });
    until("the run to end", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).map(|l| l.trim().trim_end_matches(" kB"));
        peak = line.and_then(|l| l.parse().ok()).unwrap_or(peak);
        ended = child.0.try_wait().unwrap();
        ended.is_some()
    });
    (Output { status: ended.unwrap(), stdout: reader.join().unwrap(), stderr: Vec::new() }, peak)
}

#[test]
fn ctrl_c_keeps_the_results_so_far() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().unwrap();
    let save = dir.path().join("saved.json");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let before = gets(&server);
        let child =
            command(&["bench", &server.url(), "--seconds", "120", "--repeat", "3", "--rate", "1000", "--keys", "100"])
                .args(PATIENT)
                .args(["--format", "json", "--save", save.to_str().unwrap(), "-v"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
        until("the run to ask for a while", || gets(&server) >= before + 1500);
        // SAFETY: the child was not reaped, so the pid is its own.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stderr(&output).contains("results so far"), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let saved: Value = serde_json::from_str(&std::fs::read_to_string(&save).unwrap()).unwrap();
        assert_eq!(report, saved);
        let runs = report["runs"].as_array().unwrap();
        assert_eq!((runs.len(), &runs[0]["interrupted"]), (1, &true.into()));
        // All but the one before the run, and one on each of its 50 connections.
        assert!(runs[0]["answered"].as_u64().unwrap() >= 1449, "{}", runs[0]);
        assert!(names(&server).is_empty(), "{:?}", names(&server));
    }
}

#[test]
fn a_generator_that_is_late_says_so_and_its_run_is_invalid() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let arguments = ["bench", &url, "--rate", "1000", "--seconds", "0.5", "--keys", "100", "--quiet"];
    let late = |most: &str, more: &[&str]| {
        command(&arguments).args(["--timeout", "60", "--lateness-max", most]).args(more).output().unwrap()
    };
    // Nobody wakes up within a tenth of a microsecond.
    let output = late("0.1us", &["--format", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let doubt = report["runs"][0]["doubts"][0].as_str().unwrap();
    assert_eq!((output.status.code(), &report["runs"][0]["valid"]), (Some(1), &false.into()));
    assert!(doubt.contains("the generator itself was late") && doubt.contains("--rate"), "{doubt}");
    let text = stdout(&late("0.1us", &[]));
    assert!(text.lines().any(|l| l.starts_with("INVALID: ")), "{text}");
    let trusted = late("3600s", &[]);
    assert_eq!(trusted.status.code(), Some(0), "{}", stdout(&trusted));
}

#[test]
fn results_that_cannot_be_kept_are_printed_all_the_same() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let base = ["bench", &url, "--seconds", "0.5", "--keys", "100", "--quiet"];
    for flag in ["--save", "--html", "--hgrm", "--hlog"] {
        let output = command(&base).args(PATIENT).args([flag, "/dev/full"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flag}");
        assert!(
            stderr(&output).contains("/dev/full") && stderr(&output).contains("No space left"),
            "{}",
            stderr(&output)
        );
        assert!(stdout(&output).contains("requests/s with p50"), "{flag}: the result is lost");
        // Said before the load, not after.
        fails(&[&base[..], &[flag, "/nowhere/x"]].concat(), "/nowhere/x: cannot be written");
    }
    // An earlier result stays until there is a new one.
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old.json");
    std::fs::write(&old, "precious").unwrap();
    fails(&["bench", "127.0.0.1:1", "--save", old.to_str().unwrap()], "refused");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "precious");
    let (a, fresh) = (old.to_str().unwrap(), dir.path().join("fresh.json"));
    fails(&[&base[..], &["--save", a, "--html", a]].concat(), "given for two results");
    fails(&["bench", "127.0.0.1:1", "--save", fresh.to_str().unwrap()], "refused");
    assert!(!fresh.exists(), "an empty file is left behind");
}

#[test]
fn bad_orders_get_one_clear_line() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("recorded.txt");
    std::fs::write(&recording, "GET a\n").unwrap();
    for (more, expected) in [
        (&["--mix", "gett=1"][..], "did you mean \"get\""),
        (&["--mix", "get=0.9,set"], "some have a share"),
        (&["-t", "ping,gett"], "did you mean \"get\""),
        (&["-t", "gett", "--csv"], "did you mean \"get\""),
        (&["-t", "2"], "for threads: --threads 2"),
        (&["--mix", "get=x"], "invalid share"),
        (&["--command", "GET {kee}"], "there are {key}"),
        (&["--command", "FROBNICATE {key}"], "knows no command FROBNICATE"),
        (&["--command", "HSET h f"], "HSET takes at least 3"),
        (&["--command", "SUBSCRIBE news"], "changes what its connection is"),
        (&["--command", "GET a", "--command", "GET b"], "two commands are called"),
        (&["--command", "x=GET a", "--mix", "get=1"], "would never be sent"),
        (&["--script", "/etc/hostname"], "EVALSHA {sha}"),
        (&["--script", "/nowhere.lua", "--command", "EVALSHA {sha} 0"], "/nowhere.lua"),
        (&["--value-size", "10 miles"], "invalid value size"),
        (&["--key-distribution", "zipf:-1"], "zipf:-1"),
        (&["--model", "pool"], "unknown client model"),
        (&["--model", "shared", "--pipeline", "4"], "--pipeline"),
        (&["--model", "shared", "-c", "4"], "--connections"),
        (&["--callers", "4"], "--model pool:8"),
        (&["--threads", "999"], "--threads 999"),
        (&["--threads", "4", "-c", "2"], "--threads 2"),
        (&["--rate", "0"], "--rate 0"),
        (&["--arrivals", "poisson"], "--rate"),
        (&["--requests", "0"], "--requests 0"),
        (&["--replay", "/nowhere"], "/nowhere"),
        (&["--replay", recording.to_str().unwrap(), "--mix", "get=1"], "a mix has no part in it"),
        (&["--replay", "/etc/passwd"], "line 1"),
        (&["--loop"], "--replay FILE"),
        (
            &["--command", "config set maxmemory 1"],
            "CONFIG SET would be sent again and again; if that is meant, add --dangerous",
        ),
        (&["--fail-if", "p95 > 5ms"], "unknown figure"),
        (&["--fail-if", "p99 > 5%"], "p99 > 5%"),
        (&["--speed", "2"], "--replay"),
        (&["--read-from", "replica"], "no replica"),
        (&["--subscribers", "2"], "--mix publish"),
        (&["--verify", "--mix", "set=1"], "get in the mix"),
        (&["--seconds", "0"], "--seconds"),
    ] {
        fails(&[&["bench", &url][..], more].concat(), expected);
    }
    for (target, expected) in [
        ("127.0.0.1:1", "refused"),
        ("http://127.0.0.1", "unknown scheme"),
        ("no-such-host.invalid", "does not resolve"),
        ("redis+sentinel://127.0.0.1:1/m", "refused"),
    ] {
        fails(&["bench", target], expected);
    }
}

/// As redis-benchmark's -t and --csv.
#[test]
fn tests_run_one_after_another_with_a_line_of_csv_each() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let words = [
        "bench",
        &url,
        "-t",
        "lpush,GET,set",
        "-n",
        "500",
        "-c",
        "2",
        "--csv",
        "--lateness-max",
        "1h",
        "--timeout",
        "60",
    ];
    let output = unslow(&words);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.iter().map(|line| line[0]).collect::<Vec<_>>(), ["\"test\"", "\"lpush\"", "\"get\"", "\"set\""]);
    assert!(lines.iter().all(|line| line.len() == 9), "{text}");
    for line in &lines[1..] {
        let number = |cell: &str| cell.trim_matches('"').parse::<f64>().expect("a number");
        assert!(number(line[1]) > 0.0 && number(line[3]) <= number(line[7]), "{text}");
    }
    assert!((500..510).contains(&gets(&server)), "each test is a separate run");
    let text = stdout(&unslow(&["bench", &url, "-t", "get,ping", "-n", "100", "-c", "1", "--lateness-max", "1h"]));
    assert!(text.contains("-- get\n") && text.contains("-- ping\n"), "{text}");
}

#[test]
fn a_run_that_breaks_a_limit_fails_and_says_which() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let limited = |limits: &[&str]| {
        let limits = limits.iter().flat_map(|limit| ["--fail-if", limit]);
        let words =
            ["bench", &url, "-n", "200", "-c", "2", "--command", "LPUSH unslow:{key} x", "--lateness-max", "1h"];
        unslow(&words.into_iter().chain(limits).collect::<Vec<_>>())
    };
    let kept = limited(&["errors > 0", "max > 1h", "throughput < 0.001"]);
    assert_eq!((kept.status.code(), stderr(&kept).contains("failed:")), (Some(0), false), "{}", stderr(&kept));
    let broken = limited(&["errors > 0", "max > 1us", "throughput < 1G"]);
    assert_eq!(broken.status.code(), Some(1), "{}", stderr(&broken));
    let said = stderr(&broken);
    assert!(said.contains("failed: max > 1us: ") && said.contains("failed: throughput < 1G: "), "{said}");
    assert!(!said.contains("failed: errors"), "{said}");
}

#[test]
fn two_deployments_are_compared_in_turn_and_their_files_again() {
    let (a, b) = (standalone("valkey-9.1"), standalone("valkey-9.1"));
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n).display().to_string();
    let (a_file, b_file, one_file) = (file("a.json"), file("b.json"), file("one.json"));
    let files = ["--save", &a_file, "--save-against", &b_file];
    let load = ["--against", &b.url(), "--repeat", "3", "--seconds", "0.3", "--rate", "2000"];
    let report = bench(&a.url(), &[&files[..], &load].concat());
    assert_eq!((&report["interleaved"], report["reports"].as_array().unwrap().len()), (&true.into(), 2));
    assert_eq!((&report["a"]["runs"], &report["b"]["runs"]), (&3.into(), &3.into()));
    // In turn: both sides' runs have the same pair, and each side its own server's address.
    let [kept_a, kept_b] = [&a_file, &b_file].map(|path| kept(path));
    assert!(kept_a["pair"].is_string() && kept_a["pair"] == kept_b["pair"], "{} {}", kept_a["pair"], kept_b["pair"]);
    assert_eq!((&kept_a["target"], &kept_b["target"]), (&a.address().into(), &b.address().into()));
    assert_eq!(report["reports"], Value::from(vec![kept_a.clone(), kept_b.clone()]));
    let compared = unslow(&["compare", &a_file, &b_file, "--format", "json"]);
    let again: Value = serde_json::from_slice(&compared.stdout).unwrap();
    assert_eq!((&again["differences"], &again["interleaved"]), (&report["differences"], &true.into()));
    // Another question at another rate, once.
    let other = ["--seconds", "0.3", "--rate", "200", "--command", "EVAL 'return 1' 0", "--save", &one_file];
    bench(&b.url(), &other);
    let text = stdout(&unslow(&["compare", &a_file, &one_file]));
    assert!(text.contains("asked different things") && text.contains("loaded differently"), "{text}");
    assert!(text.contains("no difference can be shown") && text.contains("--repeat 5"), "{text}");
    assert!(!text.contains("in turn\n"), "they were not: {text}");

    // What can be shown is looked at in reports whose runs took as long as they are told to.
    let with = |name: &str, report: &Value, medians: [f64; 3]| {
        let mut report = report.clone();
        for (run, us) in report["runs"].as_array_mut().unwrap().iter_mut().zip(medians) {
            let latency = run["latency"].as_object_mut().unwrap();
            let figures: Vec<String> = latency.keys().filter(|k| k.starts_with("us_")).cloned().collect();
            for figure in figures {
                latency.insert(figure, Value::from(us));
            }
            run["throughput_per_s"] = Value::from(2000.0);
            run["valid"] = Value::from(true);
            run["doubts"] = Value::from(Vec::<Value>::new());
        }
        std::fs::write(file(name), report.to_string()).unwrap();
        file(name)
    };
    let compared = |a: &str, b: &str| {
        let output = unslow(&["compare", a, b]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let fast = with("fast.json", &kept_a, [100.0, 101.0, 102.0]);
    let slow = with("slow.json", &kept_b, [200.0, 202.0, 204.0]);
    let text = compared(&fast, &slow);
    assert!(text.contains("- p50 rose from 101 us to 202 us (95 % interval of the difference"), "{text}");
    assert!(text.contains("in turn\n") && text.contains("3 and 3 runs)") && !text.contains("\n! "), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("p99 rose from 101 us to 202 us"), "the last sentence is about one metric: {last}");
    let text = compared(&slow, &fast);
    assert!(text.contains("+ p50 fell from 202 us to 101 us"), "{text}");
    let alike = with("alike.json", &kept_b, [102.0, 100.0, 101.5]);
    let text = compared(&fast, &alike);
    assert!(text.contains("  p50: no difference can be shown (101 us and 101 us; 95 % interval"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("p99: no difference can be shown"), "{text}");

    std::fs::write(dir.path().join("x.json"), "{}").unwrap();
    fails(&["compare", &a_file, &file("x.json")], "not a report of `unslow bench --save`");
    fails(&["compare", &a_file, &file("missing.json")], "missing.json");
}

/// A report that was saved.
fn kept(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_page_shows_an_outage_in_a_real_browser() {
    let deployment = cluster("valkey-9.1");
    let (victim, promoted) = (&deployment.nodes[0], &deployment.nodes[3]);
    let dir = tempfile::tempdir().unwrap();
    let (page, save) = (dir.path().join("bench.html"), dir.path().join("bench.json"));
    let (hgrm, hlog) = (dir.path().join("x.hgrm"), dir.path().join("x.hlog"));
    // The outage is longer than this timeout, so that there are errors: nobody takes over within the node timeout, 2 s.
    let child = command(&["bench", &deployment.url(), "--rate", "2000", "--seconds", "120", "--keys", "1000"])
        .args(["--timeout", "10", "--lateness-max", "3600s", "--quiet", "--key-prefix", "<b>&:"])
        .args(["--html", page.to_str().unwrap(), "--save", save.to_str().unwrap()])
        .args(["--hgrm", hgrm.to_str().unwrap(), "--hlog", hlog.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("the run to begin", || gets(victim) >= 500);
    victim.kill();
    let before = gets(promoted);
    until("the promoted replica to answer", || gets(promoted) >= before + 1000);
    // SAFETY: the child was not reaped, so the pid is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("second  answered  errors") && text.contains("slots moved from"), "{text}");
    let dom = browse(&page);
    assert!(dom.contains("Latency over time") && dom.contains("Errors per second") && dom.contains("slots moved from"));
    assert!(dom.matches("<polyline").count() >= 8, "plots have no lines");
    let (read, folded) = dom.split_once("<details id=\"workload\">").expect("the workload is folded");
    assert!(read.contains("class=\"verdict") && !read.contains("key_prefix") && folded.contains("key_prefix"));
    assert!(!dom.contains("<b>&amp;:") && dom.contains("&lt;b&gt;"), "a key prefix is text, not markup");
    assert!(std::fs::read_to_string(&hgrm).unwrap().contains("#[Max"));
    let report = kept(save.to_str().unwrap());
    let seconds = report["runs"][0]["timeline"].as_array().unwrap().len();
    assert!(seconds > 2 && histograms(&hlog) >= seconds, "{} histograms of {seconds} seconds", histograms(&hlog));
}

fn histograms(log: &Path) -> usize {
    std::fs::read_to_string(log).unwrap().lines().filter(|l| l.contains("HIST")).count()
}
