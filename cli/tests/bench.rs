//! `unslow bench` and `unslow compare` as a person runs them: what they print, keep, refuse and leave behind.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{browse, command, engine, schema, stderr, stdout, tls_server, unslow};
use serde_json::Value;
use unslow_engine::{Deployment, Server, ServerSpec, Shape};
use unslow_resp::{Frame, Scan, Scanner};

fn server() -> Server {
    Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap()
}

/// A short run as JSON, held to its schema. The machine's other work must not make it invalid.
fn bench(url: &str, more: &[&str]) -> Value {
    let mut arguments = vec!["bench", url, "--seconds", "1", "--keys", "1000", "--lateness-max", "1s", "--quiet"];
    arguments.extend(["--format", "json"]);
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
fn fails(arguments: &[&str], expected: &str) {
    let begun = Instant::now();
    let output = unslow(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}{}", stdout(&output));
    assert!(text.contains(expected), "{arguments:?}: {text}");
    assert!(stdout(&output).is_empty(), "{arguments:?}: {}", stdout(&output));
    assert!(begun.elapsed() < Duration::from_secs(15), "{arguments:?} took {:?}", begun.elapsed());
}

#[test]
fn the_commands_of_the_guide_do_what_they_say() {
    let server = server();
    let url = server.url();
    let run = bench(&url, &["--rate", "20000", "--connections", "50", "--mix", "get=1", "--value-size", "64"]);
    let run = &run["runs"][0];
    assert_eq!((run["requests"].as_u64(), run["answered"].as_u64()), (Some(20_000), Some(20_000)));
    assert!(run["lateness"]["us_p50"].as_f64().unwrap() > 0.0 && run["errors"].as_array().unwrap().is_empty());
    assert!(run["generator"]["cpu_us_per_request"].as_f64().unwrap() > 0.0);
    assert!(run["servers"][0]["cpu_share_proc"].as_f64().is_some(), "a server of this machine is seen in /proc too");
    let deep = bench(&url, &["--pipeline", "16"]);
    assert!(deep["runs"][0]["throughput_per_s"].as_f64() > run["throughput_per_s"].as_f64());
    let pool = bench(&url, &["--model", "pool:8", "--callers", "32"]);
    let shared = bench(&url, &["--model", "shared", "--callers", "32"]);
    let wait = |r: &Value| r["runs"][0]["pool_wait"]["us_p50"].as_f64().unwrap();
    assert!(wait(&pool) > wait(&shared), "{} {}", wait(&pool), wait(&shared));
    let text = unslow(&[
        "bench",
        &url,
        "--seconds",
        "1",
        "--rate",
        "1000,2000",
        "--arrivals",
        "poisson",
        "--lateness-max",
        "1s",
    ]);
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
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("load.toml");
    std::fs::write(
        &file,
        "commands = [\"touch=HSET user:{key} f {value}\"]\nkeys = 10\nvalue_size = \"5-9\"\nseed = 3\n[mix]\ntouch = 0.5\nincr = 0.5\n",
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
    for more in
        [&["--pipeline", "64", "--verify"][..], &["--rate", "2000"], &["--model", "shared", "--value-size", "100000"]]
    {
        let report = bench(&url, &[&certificates[..], more].concat());
        let run = &report["runs"][0];
        assert!(
            run["errors"].as_array().unwrap().is_empty() && run["answered"].as_u64().unwrap() > 100,
            "{more:?}: {run}"
        );
        assert_eq!(report["load"]["tls"], true);
        assert!(!report.to_string().contains("s3cret"), "the password is printed");
    }
    fails(&["bench", &url, "--seconds", "1"], "certificate");
    fails(
        &[&["bench", &url.replace("s3cret", "wrong"), "--seconds", "1"][..], &certificates].concat(),
        "password refused",
    );

    let socket = dir.path().join("s.sock");
    let spec =
        ServerSpec { settings: vec![("unixsocket".into(), socket.display().to_string())], ..ServerSpec::default() };
    let _server = Server::start(&engine("valkey-9.1"), &spec).unwrap();
    let report = bench(&format!("unix:{}", socket.display()), &["--verify"]);
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
                            "INFO" => b"$80\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nrole:master\r\nprocess_id:1\r\nx:00000\r\n\r\n",
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
fn peers_that_misbehave_are_counted_and_the_run_ends_in_time() {
    for (kind, word, url) in [
        ("not_resp", "0x3c", peer(|s| s.write_all(b"<html>").unwrap_or(()))),
        ("not_resp", "larger than the limit", peer(|s| s.write_all(b"$9223372036854775807\r\n").unwrap_or(()))),
        ("timeout", "no answer for", peer(|s| s.write_all(b"$100\r\nhalf").unwrap_or(()))),
        ("connection_lost", "closed", peer(|s| s.shutdown(std::net::Shutdown::Both).unwrap_or(()))),
        ("unasked", "without being asked", peer(|s| s.write_all(b"+OK\r\n+more\r\n").unwrap_or(()))),
        ("LOADING", "LOADING", peer(|s| s.write_all(b"-LOADING reading the data set\r\n").unwrap_or(()))),
    ] {
        let begun = Instant::now();
        let arguments =
            ["bench", &url, "--seconds", "1", "--timeout", "0.5", "-c", "4", "--rate", "100", "--mix", "get=1"];
        let output = command(&arguments)
            .args(["--no-preload", "--format", "json", "--quiet", "--lateness-max", "1s"])
            .output()
            .unwrap();
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{kind}: {e}: {}", stderr(&output)));
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
        assert!(begun.elapsed() < Duration::from_secs(8), "{kind} took {:?}", begun.elapsed());
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
    let arguments =
        ["bench", &url, "--requests", "3", "-c", "1", "--mix", "get=1", "--no-preload", "--format", "json", "--quiet"];
    let child = command(&arguments).args(["--timeout", "20"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let (output, peak) = watched(child);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runs"][0]["answered"], 3, "{report}");
    assert!(peak < 64 << 10, "{peak} kB of memory for values that nobody keeps");
}

#[test]
fn ten_thousand_connections_fit_in_300_mb() {
    let spec = ServerSpec { settings: vec![("maxclients".into(), "12000".into())], ..ServerSpec::default() };
    let server = Server::start(&engine("valkey-9.1"), &spec).unwrap();
    let url = server.url();
    let arguments = ["bench", &url, "--seconds", "3", "-c", "10000", "--keys", "1000", "--format", "json", "--quiet"];
    let child = command(&arguments).args(["--timeout", "20"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let (output, peak) = watched(child);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    let run = &report["runs"][0];
    assert_eq!(run["timeline"][0]["connections"], 10_000, "{run}");
    assert!(run["errors"].as_array().unwrap().is_empty() && run["answered"].as_u64().unwrap() > 10_000, "{run}");
    println!("10,000 connections: {peak} kB");
    assert!(peak < 300 << 10, "{peak} kB");
}

/// A process to its end, and the most memory it held, in kB.
fn watched(mut child: std::process::Child) -> (std::process::Output, u64) {
    let (mut peak, mut text) = (0, Vec::new());
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let _ = out.read_to_end(&mut text);
        text
    });
    let status = loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).map(|l| l.trim().trim_end_matches(" kB"));
        peak = line.and_then(|l| l.parse().ok()).unwrap_or(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    (std::process::Output { status, stdout: reader.join().unwrap(), stderr: Vec::new() }, peak)
}

#[test]
fn ctrl_c_keeps_the_results_so_far() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let save = dir.path().join("saved.json");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let child =
            command(&["bench", &server.url(), "--seconds", "60", "--repeat", "3", "--rate", "1000", "--keys", "100"])
                .args(["--format", "json", "--save", save.to_str().unwrap(), "--lateness-max", "1s", "-v"])
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
        let mut c = server.connect().unwrap();
        let gets = |c: &mut unslow_client::Connection| {
            unslow_engine::info(c, "commandstats").unwrap().command_stats().get("get").map_or(0, |s| s.calls)
        };
        let before = gets(&mut c);
        let until = Instant::now() + Duration::from_secs(20);
        while gets(&mut c) < before + 1500 {
            assert!(Instant::now() < until, "the run did not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
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
        assert!(runs[0]["answered"].as_u64().unwrap() >= 1400, "{}", runs[0]);
    }
}

#[test]
fn a_generator_that_is_late_says_so_and_its_run_is_invalid() {
    let server = server();
    let url = server.url();
    let arguments = ["bench", &url, "--rate", "1000", "--seconds", "1", "--keys", "100", "--quiet", "--lateness-max"];
    // Nobody wakes up within a tenth of a microsecond.
    let late = command(&arguments).args(["0.1us", "--format", "json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&late.stdout).unwrap();
    let doubt = report["runs"][0]["doubts"][0].as_str().unwrap();
    assert_eq!((late.status.code(), &report["runs"][0]["valid"]), (Some(1), &false.into()));
    assert!(doubt.contains("the generator itself was late") && doubt.contains("--rate"), "{doubt}");
    let text = stdout(&command(&arguments).args(["0.1us"]).output().unwrap());
    assert!(text.lines().any(|l| l.starts_with("INVALID: ")), "{text}");
    let trusted = command(&arguments).args(["1s"]).output().unwrap();
    assert_eq!(trusted.status.code(), Some(0), "{}", stdout(&trusted));
}

#[test]
fn results_that_cannot_be_kept_are_printed_all_the_same() {
    let server = server();
    let url = server.url();
    let base = ["bench", &url, "--seconds", "0.5", "--keys", "100", "--quiet", "--lateness-max", "1s"];
    for flag in ["--save", "--html", "--hgrm", "--hlog"] {
        let output = command(&base).args([flag, "/dev/full"]).output().unwrap();
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
    let server = server();
    let url = server.url();
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("recorded.txt");
    std::fs::write(&recording, "GET a\n").unwrap();
    for (more, expected) in [
        (&["--mix", "gett=1"][..], "did you mean \"get\""),
        (&["--mix", "get=0.9,set"], "some have a share"),
        (&["--mix", "get=x"], "no share"),
        (&["--command", "GET {kee}"], "there are {key}"),
        (&["--command", "FROBNICATE {key}"], "knows no command FROBNICATE"),
        (&["--command", "HSET h f"], "HSET takes at least 3"),
        (&["--command", "SUBSCRIBE news"], "changes what its connection is"),
        (&["--command", "GET a", "--command", "GET b"], "two commands are called"),
        (&["--command", "x=GET a", "--mix", "get=1"], "would never be sent"),
        (&["--script", "/etc/hostname"], "EVALSHA {sha}"),
        (&["--script", "/nowhere.lua", "--command", "EVALSHA {sha} 0"], "/nowhere.lua"),
        (&["--value-size", "10k"], "without a unit"),
        (&["--key-distribution", "zipf:-1"], "zipf:-1"),
        (&["--model", "pool"], "no client model"),
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
        fails(&["bench", target, "--timeout", "1"], expected);
    }
}

#[test]
fn two_deployments_are_compared_in_turn_and_their_files_again() {
    let (a, b) = (server(), server());
    let dir = tempfile::tempdir().unwrap();
    let file = |n: &str| dir.path().join(n).display().to_string();
    let report = bench(
        &a.url(),
        &[
            "--against",
            &b.url(),
            "--repeat",
            "3",
            "--seconds",
            "0.5",
            "--save",
            &file("a.json"),
            "--save-against",
            &file("b.json"),
            "--rate",
            "2000",
        ],
    );
    assert_eq!((&report["interleaved"], report["reports"].as_array().unwrap().len()), (&true.into(), 2));
    assert_eq!(report["a"]["runs"], 3);
    let compared = unslow(&["compare", &file("a.json"), &file("b.json"), "--format", "json"]);
    let again: Value = serde_json::from_slice(&compared.stdout).unwrap();
    assert_eq!((&again["differences"], &again["interleaved"]), (&report["differences"], &true.into()));
    // Half of B's time goes: a difference that can be shown.
    let slow = unslow(&[
        "bench",
        &b.url(),
        "--repeat",
        "3",
        "--seconds",
        "0.5",
        "--lateness-max",
        "1s",
        "--quiet",
        "--save",
        &file("slow.json"),
        "--command",
        "EVAL 'local x=0 for i=1,100000 do x=x+i end return x' 0",
        "--rate",
        "200",
    ]);
    assert_eq!(slow.status.code(), Some(0), "{}", stderr(&slow));
    let text = stdout(&unslow(&["compare", &file("a.json"), &file("slow.json")]));
    assert!(text.contains("p50 rose from") && text.contains("95 % interval"), "{text}");
    assert!(text.contains("asked different things") && text.contains("loaded differently"), "{text}");
    let one = unslow(&[
        "bench",
        &a.url(),
        "--seconds",
        "0.5",
        "--quiet",
        "--lateness-max",
        "1s",
        "--save",
        &file("one.json"),
    ]);
    assert_eq!(one.status.code(), Some(0));
    let text = stdout(&unslow(&["compare", &file("one.json"), &file("one.json")]));
    assert!(text.contains("no difference can be shown") && text.contains("--repeat 5"), "{text}");
    std::fs::write(dir.path().join("x.json"), "{}").unwrap();
    fails(&["compare", &file("a.json"), &file("x.json")], "no report of `unslow bench --save`");
    fails(&["compare", &file("a.json"), &file("missing.json")], "missing.json");
}

#[test]
fn the_page_shows_an_outage_in_a_real_browser() {
    let spec = ServerSpec { settings: vec![("cluster-node-timeout".into(), "1000".into())], ..ServerSpec::default() };
    let deployment = Deployment::start(&engine("valkey-9.1"), &Shape::six_nodes(), &spec).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("bench.html");
    let (hgrm, hlog) = (dir.path().join("x.hgrm"), dir.path().join("x.hlog"));
    let child =
        command(&["bench", &deployment.url(), "--rate", "2000", "--seconds", "9", "--keys", "1000", "--timeout", "2"])
            .args(["--quiet", "--html", page.to_str().unwrap(), "--lateness-max", "1s", "--key-prefix", "<b>&:"])
            .args(["--hgrm", hgrm.to_str().unwrap(), "--hlog", hlog.to_str().unwrap()])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
    let victim = &deployment.nodes[0];
    let mut c = victim.connect().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while unslow_engine::info(&mut c, "commandstats").unwrap().command_stats().get("get").map_or(0, |s| s.calls) < 1000
    {
        assert!(Instant::now() < until, "the run did not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    victim.kill();
    let output = child.wait_with_output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("second  answered  errors") && text.contains("slots moved from"), "{text}");
    let dom = browse(&page);
    assert!(dom.contains("Latency over time") && dom.contains("Errors per second") && dom.contains("slots moved from"));
    assert!(dom.matches("<polyline").count() >= 8, "plots have no lines");
    assert!(!dom.contains("<b>&amp;:") && dom.contains("&lt;b&gt;"), "a key prefix is text, not markup");
    assert!(std::fs::read_to_string(&hgrm).unwrap().contains("#[Max"));
    assert!(lines(&hlog) >= 9, "a histogram a second");
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap().lines().filter(|l| l.contains("HIST")).count()
}
