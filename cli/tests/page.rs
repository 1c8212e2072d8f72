//! The page of a recording: what it answers, to whom, and how it is used in a real browser.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Running, command, stderr, tls_settings};
use serde_json::Value;
use unslow_testkit::browser::browser;
use unslow_testkit::clients;
use unslow_testkit::{standalone, until};

/// A verb that serves the page, and where: it says so.
struct Page {
    _running: Running,
    /// `http://127.0.0.1:PORT/`.
    url: String,
}

impl Page {
    fn served(command: &mut Command) -> Page {
        let command = command.args(["--http", "127.0.0.1:0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().expect("it is piped"));
        let running = Running(child);
        let mut all = String::new();
        let url = loop {
            let from = all.len();
            assert_ne!(said.read_line(&mut all).unwrap(), 0, "it says where the page is: {all}");
            if let Some((_, url)) = all[from..].split_once("page at ") {
                break url.split([';', '\n']).next().unwrap_or_default().to_string();
            }
        };
        // What it says later is read, so that it can go on.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Page { _running: running, url }
    }

    fn address(&self) -> &str {
        self.url.split('/').nth(2).expect("a host and a port")
    }

    fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n{headers}\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// What is answered to this machine, as JSON; `None` if it is not 200.
    fn json(&self, path: &str) -> Option<Value> {
        let text = self.get(path, &format!("Host: {}\r\n", self.address()));
        let (head, body) = text.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200").then(|| serde_json::from_str(body).expect("it is JSON"))
    }

    fn code(&self, path: &str, headers: &str) -> String {
        self.get(path, headers).split(' ').nth(1).unwrap_or_default().to_string()
    }
}

fn recorded(url: &str, dir: &Path) -> Page {
    Page::served(command(&["record", url, "--no-host", "--window", "3s", "--dir"]).arg(dir))
}

#[test]
fn a_recording_is_asked_for_its_curves_its_incidents_and_a_diagnosis() {
    let server = standalone("valkey-9.1");
    let mut client = server.connect().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let page = recorded(&server.url(), &scratch.path().join("rec"));
    until("two rows are recorded", || {
        client.call(&["SET", "k", "v"]).unwrap();
        page.json("/curves").is_some_and(|c| values(&c, "commands").iter().any(|v| v.is_some_and(|v| v > 0.0)))
    });
    let recording = page.json("/recording").unwrap();
    assert_eq!(recording["deployments"][0]["url"], server.url(), "{recording}");
    let curves = page.json("/curves?buckets=7").unwrap();
    assert_eq!(curves["figures"][0]["lines"][0]["name"], server.address(), "{curves}");
    assert!(curves["at_s"].as_array().unwrap().len() <= 8, "{curves}");
    assert!(values(&curves, "memory").iter().flatten().all(|bytes| *bytes > 100_000.0), "{curves}");

    // A stall is drawn for as long as it took, and is an incident that can be diagnosed.
    server.signal(libc::SIGSTOP);
    until("the hang is an incident", || incident(&page).is_some());
    server.signal(libc::SIGCONT);
    until("and the PING that met it is drawn", || {
        page.json("/curves").is_some_and(|c| values(&c, "ping").iter().flatten().any(|us| *us > 1e6))
    });
    let found = incident(&page).unwrap();
    assert_eq!(found["subjects"][0], server.address(), "{found:#}");
    let query = format!("/diagnosis?from={}&to={}", found["from_ms"], found["to_ms"]);
    let text = page.get(&query, "Host: localhost\r\n");
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("id=\"node_hangs\""), "{text:.2000}");
    let nodes = page.get("/nodes", "Host: localhost\r\n");
    assert!(nodes.contains(&server.address()) && nodes.contains("<th scope=\"col\""), "{nodes}");
    let live = {
        let mut stream = TcpStream::connect(page.address()).unwrap();
        write!(stream, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.find(|line| line.starts_with("data:")).expect("news of the recording")
    };
    let told = live.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_else(|| panic!("{live}"));
    let told: serde_json::Value = serde_json::from_str(told).unwrap();
    assert_eq!(told["deployments"][0]["url"], server.url(), "one that is added later is told");
    assert!(told["newest_ms"].as_i64() > Some(0) && told["newest_ms"].as_i64() <= told["to_ms"].as_i64(), "{told}");
}

/// Of the first server; none while nothing of it is recorded.
fn values(curves: &Value, figure: &str) -> Vec<Option<f64>> {
    let figure = curves["figures"].as_array().unwrap().iter().find(|f| f["id"] == figure).expect("such a figure");
    figure["lines"][0]["values"].as_array().into_iter().flatten().map(Value::as_f64).collect()
}

fn incident(page: &Page) -> Option<Value> {
    let told = page.json("/incidents")?;
    told["incidents"].as_array()?.iter().find(|i| i["rule"] == "node_hangs").cloned()
}

#[test]
fn only_this_machine_is_answered_and_what_is_wrong_is_said() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let page = recorded(&server.url(), &scratch.path().join("rec"));
    until("something is recorded", || page.json("/curves").is_some());
    let own = "Host: localhost\r\n";
    for (path, headers, code) in [
        ("/", own, "200"),
        ("/charts", own, "200"),
        ("/", "Host: rebound.example\r\n", "421"),
        ("/recording", "", "421"),
        ("/curves", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", "403"),
        ("/nothing", own, "404"),
        ("/curves?from=1&to=2", own, "404"),
        ("/curves?from=5&to=2", own, "400"),
        ("/curves?from=yesterday", own, "400"),
        ("/curves?url=redis://other:1", own, "400"),
        ("/nodes?from=1&to=2", own, "404"),
        ("/../../etc/passwd", own, "404"),
    ] {
        assert_eq!(page.code(path, headers), code, "{path} with {headers:?}");
    }
    until("all of it is diagnosed", || page.code("/diagnosis?from=0&to=9999999999999", own) == "200");
    let text = page.get("/", own);
    for header in ["Content-Security-Policy: default-src 'none'", "X-Content-Type-Options: nosniff"] {
        assert!(text.contains(header), "{text:.1500}");
    }
}

#[test]
fn beyond_this_machine_it_is_served_with_a_token_over_tls_alone() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    tls_settings(dir); // for its files
    fs::write(dir.join("token"), "0123456789abcdef\n").unwrap();
    let file = |name: &str| dir.join(name).display().to_string();
    let (rec, short) = (file("rec"), file("short"));
    fs::write(&short, "secret").unwrap();
    let refused = |more: &[&str]| {
        let output = command(&["record", &server.url(), "--dir", &rec]).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}");
        stderr(&output)
    };
    assert!(refused(&["--http", "0.0.0.0:0"]).contains("--http-token"));
    assert!(refused(&["--http", "0.0.0.0:0", "--http-token", &file("token")]).contains("--http-cert"));
    assert!(refused(&["--http", "127.0.0.1:0", "--http-token", &short]).contains("too short"));
    assert!(refused(&["--http", "here"]).contains("127.0.0.1:6490"));

    let (token, cert, key) = (file("token"), file("server.crt"), file("server.key"));
    let more = ["--http-token", &token, "--http-cert", &cert, "--http-key", &key, "--no-host", "--dir", &rec];
    let page = Page::served(command(&["record", &server.url()]).args(more));
    assert!(page.url.starts_with("https://"), "{}", page.url);
    let ask = |authorization: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: db.example\r\n{authorization}\r\n");
        fs::write(dir.join("request"), request).unwrap();
        let mut client = Command::new("openssl");
        let client =
            client.args(["s_client", "-quiet", "-ign_eof", "-CAfile", &file("ca.crt"), "-verify_return_error"]);
        let output = client
            .args(["-connect", page.address()])
            .stdin(fs::File::open(dir.join("request")).unwrap())
            .output()
            .expect("openssl is installed (make tools)");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let without = ask("");
    assert!(without.starts_with("HTTP/1.1 401") && without.contains("WWW-Authenticate: Basic"), "{without}");
    let with = ask("Authorization: Bearer 0123456789abcdef\r\n");
    assert!(with.starts_with("HTTP/1.1 200") && with.contains("<title>unslow</title>"), "{with:.500}");
}

#[test]
fn a_time_of_which_nothing_is_known_is_not_called_healthy() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let first = recorded(&server.url(), &dir);
    until("a window is diagnosed", || first.json("/incidents").is_some_and(|t| t["windows"].as_u64() > Some(0)));
    drop(first);
    let ended_ms = unix_ms();
    until("three windows pass without a recorder", || unix_ms() > ended_ms + 9_000);
    let second = recorded(&server.url(), &dir);
    let told = || second.json("/incidents").filter(|told| told["missing"] == 0);
    until("the gap is told", || told().is_some_and(|told| told["unseen"].as_u64() > Some(1)));
    let told = told().unwrap();
    assert!(told["windows"].as_u64() > told["unseen"].as_u64(), "{told}");
    // Of the last 75 s more may be told yet: no incident so far is none yet.
    assert!(told["unsettled"].as_u64() > Some(0), "{told}");
    assert!(told["incidents"].as_array().is_some_and(Vec::is_empty), "{told}");
    let page = second.get("/charts", "Host: localhost\r\n");
    assert!(page.contains("nothing was recorded"), "{page}");
}

fn unix_ms() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
}

#[test]
fn a_live_deployment_has_its_page_without_a_recording_and_nothing_of_it_stays() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let mut command = command(&["top", &server.url()]);
    let page = Page::served(command.env("TMPDIR", scratch.path()));
    until("it is measured", || page.json("/recording").is_some_and(|r| r["deployments"][0]["url"] == server.url()));
    let there = || fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(there(), 1);
    page._running.signal(libc::SIGINT);
    until("it cleans up", || there() == 0);
}

#[test]
fn a_range_is_dragged_in_a_browser_and_its_diagnosis_is_read() {
    let server = standalone("valkey-9.1");
    let mut client = server.connect().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let page = recorded(&server.url(), &scratch.path().join("rec"));
    until("something is recorded", || page.json("/curves").is_some());
    server.signal(libc::SIGSTOP);
    until("the hang is an incident", || incident(&page).is_some());
    server.signal(libc::SIGCONT);
    client.call(&["PING"]).unwrap();

    let dir = clients::page();
    let mut node = Command::new("node");
    let output = node.args(["drive.cjs", browser(), &page.url]).current_dir(dir).output().expect("make tools");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_str(text.trim()).expect("what it saw");
    let none = Value::Array(Vec::new());
    for empty in ["errors", "elsewhere", "violations"] {
        assert_eq!(said[empty], none, "{empty} in {said:#}");
    }
    assert_eq!((&said["lane"], &said["incident"]), (&"node_hangs".into(), &"node_hangs".into()), "{said:#}");
    assert_eq!(said["stays"], true, "a bar keeps its element across live updates: {said:#}");
    assert_eq!((&said["wanted"], &said["live"]), (&"3600000".into(), &"false".into()), "{said:#}");
    let dragged = said["dragged"].as_f64().expect("a share");
    assert!((0.4..0.6).contains(&dragged), "half of what was shown: {said:#}");
    assert!(said["link"].as_str().expect("a link").starts_with("/diagnosis?url="), "{said:#}");
    assert_eq!((&said["closed"], &said["again"], &said["without"]), (&true.into(), &true.into(), &true.into()));
    assert_eq!((&said["overflow"]["page"], &said["overflow"]["charts"]), (&0.into(), &0.into()), "{said:#}");
    assert!(said["drawings"].as_u64().is_some_and(|n| n >= 5), "{said:#}");
}
