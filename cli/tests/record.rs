//! The flight recorder: what happened while nobody was watching is named afterwards, whatever becomes of the recorder.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use common::{Running, command, ids, stderr, stdout, unslow};
use serde_json::Value;
use unslow_engine::Server;
use unslow_testkit::{standalone, until};

/// Records a server until it is dropped.
fn recorder(url: &str, dir: &Path) -> Running {
    let mut command = command(&["record", url, "--quiet", "--no-host", "--dir"]);
    Running(command.arg(dir).stdout(Stdio::null()).spawn().unwrap())
}

fn json(arguments: &[&str], dir: &Path) -> Option<Value> {
    let output = command(arguments).arg(dir).args(["--format", "json", "--quiet"]).output().unwrap();
    serde_json::from_slice(&output.stdout).ok()
}

/// What the last seconds of a recording are diagnosed as; `None` while there are none.
fn named(dir: &Path) -> Option<Vec<String>> {
    let report = json(&["doctor", "--for", "3s", "--recording"], dir)?;
    (report["verdict"] != "unreachable" || report["error"].is_null()).then(|| ids(&report))
}

fn is_hanging(ids: &[String]) -> bool {
    ids.iter().any(|id| id == "node_hangs")
}

fn incidents(dir: &Path) -> Vec<Value> {
    let list = json(&["incidents", "--window", "3s"], dir);
    list.and_then(|list| Some(list["incidents"].as_array()?.clone())).unwrap_or_default()
}

fn ends_at_ms(dir: &Path) -> i64 {
    json(&["record", "ls"], dir).and_then(|ls| ls["to_ms"].as_i64()).unwrap_or(0)
}

#[test]
fn a_hang_that_nobody_saw_is_an_incident_and_the_doctor_opens_it() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let recorder = recorder(&server.url(), &dir);
    until("the recording is diagnosed", || named(&dir).is_some_and(|ids| !is_hanging(&ids)));
    let contents = json(&["record", "ls"], &dir).expect("something is recorded");
    common::schema("recording").validate(&contents).unwrap();

    server.signal(libc::SIGSTOP);
    until("the hang is an incident", || incidents(&dir).iter().any(|i| i["rule"] == "node_hangs"));
    server.signal(libc::SIGCONT);
    until("it is over", || incidents(&dir).iter().any(|i| i["rule"] == "node_hangs" && i["lasts"] == false));
    until("the server answers again", || named(&dir).is_some_and(|ids| !is_hanging(&ids)));
    drop(recorder);

    let all = incidents(&dir);
    let hang = all.iter().find(|i| i["rule"] == "node_hangs").unwrap();
    assert_eq!(hang["subjects"][0], server.address(), "{hang:#}");
    let number = hang["id"].to_string();
    let opened = json(&["doctor", "--incident", &number, "--recording"], &dir).unwrap();
    assert_eq!(opened["findings"][0]["id"], "node_hangs", "{opened:#}");
    let text = stdout(&command(&["incidents", "--window", "3s"]).arg(&dir).output().unwrap());
    assert!(text.contains("node_hangs") && text.contains("--incident 1"), "{text}");
    let wide = text.lines().find(|line| line.chars().count() > 80 && !line.contains(scratch.path().to_str().unwrap()));
    assert_eq!(wide, None);
}

/// Facts of the last seconds of a recording.
fn facts(dir: &Path) -> Option<Value> {
    let saved = dir.with_extension("facts");
    json(&["doctor", "--for", "5s", "--save", saved.to_str().unwrap(), "--recording"], dir)?;
    serde_json::from_slice(&fs::read(&saved).ok()?).ok()
}

/// Whether the machine was looked at and the server's process found.
fn is_there(facts: &Value, server: &Server) -> bool {
    let process = &facts["hosts"][0]["processes"][0];
    process["addresses"][0] == server.address() && process["pid"] == server.pid()
}

#[test]
fn the_machine_is_recorded_with_its_servers_and_their_clients_connections() {
    let server = standalone("valkey-9.1");
    let _client = server.connect().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let mut command = command(&["record", &server.url(), "--quiet", "--every", "1s", "--dir"]);
    let _recorder = Running(command.arg(&dir).stdout(Stdio::null()).spawn().unwrap());
    let facts = || facts(&dir);
    until("the machine is in the facts", || facts().is_some_and(|facts| is_there(&facts, &server)));
    until("and so are the server's sockets", || {
        facts().is_some_and(|f| f["nodes"][0]["sockets"]["yes"]["value"].is_array())
    });
}

#[test]
fn that_a_server_was_stopped_is_proven_where_its_machine_is_seen() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let mut command = command(&["record", &server.url(), "--quiet", "--every", "1s", "--dir"]);
    let _recorder = Running(command.arg(&dir).stdout(Stdio::null()).spawn().unwrap());
    until("its process is found", || facts(&dir).is_some_and(|facts| is_there(&facts, &server)));
    server.signal(libc::SIGSTOP);
    let proof = |report: Option<Value>| -> Option<String> {
        let finding = report?["findings"].as_array()?.iter().find(|f| f["id"] == "node_hangs")?.clone();
        let evidence = finding["evidence"].as_array()?.iter().filter_map(|e| e["value"].as_str());
        let seen = evidence.filter(|value| value.contains("stopped by a signal (T)")).collect::<Vec<_>>().join("\n");
        (finding["confidence"] == "proven").then_some(seen)
    };
    let mut told = String::new();
    until("the recording proves it", || {
        let report = json(&["doctor", "--for", "30s", "--recording"], &dir);
        told = proof(report).unwrap_or_default();
        !told.is_empty()
    });
    assert!(told.contains(" looks: "), "{told}");
    let looked = ["doctor", &server.url(), "--window", "1s", "--timeout", "1s", "--format", "json", "--quiet"];
    let live = serde_json::from_slice(&unslow(&looked).stdout).ok();
    server.signal(libc::SIGCONT);
    let live = proof(live).expect("a live diagnosis proves it too");
    assert!(live.contains("5 of 5 looks"), "{live}");
}

#[test]
fn what_a_server_logged_as_large_is_seen_live_and_in_a_recording() {
    let server = standalone("valkey-9.1");
    let mut client = server.connect().unwrap();
    client.call(&["SET", "basket", &"x".repeat(3_000_000)]).unwrap();
    client.call(&["GET", "basket"]).unwrap();
    client.call(&["SET", "small", "x"]).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let (dir, facts) = (scratch.path().join("rec"), scratch.path().join("facts.json"));
    let large = |arguments: &[&str]| -> Vec<(String, String, bool)> {
        let saved = facts.display().to_string();
        let _ = fs::remove_file(&facts);
        unslow(&[arguments, &["--save", &saved, "--quiet"]].concat());
        let Ok(text) = fs::read_to_string(&facts) else { return Vec::new() };
        assert!(!text.contains("basket"), "keys are hashed");
        let facts: Value = serde_json::from_str(&text).unwrap();
        let entries = facts["nodes"][0]["large"]["yes"]["value"].as_array().cloned().unwrap_or_default();
        let told = |e: &Value| {
            let size = e["bytes"].as_u64().is_some_and(|n| (3_000_000..3_001_000).contains(&n));
            (e["side"].as_str().unwrap().to_string(), e["command"].as_str().unwrap().to_string(), size)
        };
        entries.iter().map(told).collect()
    };
    let both = [("request", "SET"), ("reply", "GET")].map(|(side, what)| (side.to_string(), what.to_string(), true));
    assert_eq!(large(&["doctor", &server.url(), "--window", "1s"]), both);
    let recorder = recorder(&server.url(), &dir);
    let path = dir.display().to_string();
    until("it is recorded", || {
        let mut told = large(&["doctor", "--recording", &path, "--for", "5s"]);
        told.sort_by(|a, b| b.cmp(a));
        told == both
    });
    drop(recorder);
    // One that has no such log is not asked for it.
    let older = standalone("redis-7.0");
    assert_eq!(large(&["doctor", &older.url(), "--window", "1s"]), []);
    let counted = older.connect().unwrap().call(&["INFO", "errorstats"]).unwrap().text().unwrap();
    assert!(!counted.contains("errorstat_ERR"), "{counted}");
}

#[test]
fn an_incident_is_told_to_a_program_and_to_a_scraper() {
    let server = standalone("valkey-9.1");
    let (url, address) = (server.url(), server.address());
    drop(server);
    let scratch = tempfile::tempdir().unwrap();
    let (dir, told) = (scratch.path().join("rec"), scratch.path().join("told"));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let metrics = format!("127.0.0.1:{port}");
    let tell = format!("(echo $UNSLOW_EVENT; cat) > {0}.new && mv {0}.new {0}", told.display());
    let mut command =
        command(&["record", &url, "--quiet", "--no-host", "--window", "3s", "--metrics", &metrics, "--dir"]);
    let _recorder = Running(command.arg(&dir).args(["--on-incident", &tell]).stdout(Stdio::null()).spawn().unwrap());
    until("the command ran", || told.exists());
    let text = fs::read_to_string(&told).unwrap();
    let (event, document) = text.split_once('\n').unwrap();
    let document: Value = serde_json::from_str(document).unwrap();
    assert_eq!(
        (event, &document["event"], &document["schema"]),
        ("began", &"began".into(), &"unslow.incident/1".into())
    );
    assert_eq!(document["incident"]["rule"], "node_unreachable", "{document:#}");
    let mut page = String::new();
    until("the finding is among the metrics", || {
        page.clear();
        let Ok(mut stream) = std::net::TcpStream::connect(&metrics) else { return false };
        let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut page).is_ok() && page.contains("unslow_finding{")
    });
    assert!(page.contains("id=\"node_unreachable\"") && page.contains(&format!("subject=\"{address}\"")), "{page}");
    assert!(page.contains("unslow_up{") && page.contains("unslow_incidents_total 1"), "{page}");
}

#[test]
fn a_killed_recorder_loses_nothing_and_the_next_one_goes_on() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let mut first = recorder(&server.url(), &dir);
    until("something is recorded", || named(&dir).is_some());

    let second = command(&["record", &server.url(), "--dir"]).arg(&dir).output().unwrap();
    let text = stderr(&second);
    assert_eq!(second.status.code(), Some(2), "{text}");
    assert!(text.contains(&format!("process {} is recording here", first.0.id())), "{text}");

    let before = ends_at_ms(&dir);
    first.signal(libc::SIGKILL);
    assert_eq!(first.ended(), None);
    assert!(ends_at_ms(&dir) >= before, "what was recorded is there");
    let next = recorder(&server.url(), &dir);
    let killed = ends_at_ms(&dir);
    until("the next recorder appends", || ends_at_ms(&dir) > killed + 2_000);
    drop(next);
    let check = command(&["record", "check"]).arg(&dir).output().unwrap();
    // The last bytes may be torn: that is where it was killed.
    let text = stdout(&check);
    assert!(text.lines().all(|line| line.contains("all of it") || line.contains("killed there")), "{text}");
}

#[test]
fn a_part_of_a_recording_is_sent_as_one_file_and_the_rest_is_pruned() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let (dir, file) = (scratch.path().join("rec"), scratch.path().join("part"));
    let recorder = recorder(&server.url(), &dir);
    until("something is recorded", || named(&dir).is_some());
    let prune = |dir: &Path| command(&["record", "prune", "--max-size", "1", "--quiet"]).arg(dir).output().unwrap();
    assert!(stderr(&prune(&dir)).contains("is recording here"), "a recorder writes there");
    drop(recorder);
    let export = command(&["record", "export", "--from", "1h ago", "--quiet"]).args([&dir, &file]).output().unwrap();
    assert!(export.status.success(), "{}", stderr(&export));
    // The same facts, so the same diagnosis; only the time of looking differs.
    let report = |from: &Path| json(&["doctor", "--for", "3s", "--recording"], from).unwrap();
    assert_eq!(report(&file)["findings"], report(&dir)["findings"]);
    assert_eq!(report(&file)["deployment"], report(&dir)["deployment"]);
    assert!(command(&["incidents"]).arg(&file).output().unwrap().status.success());
    let numbers = |more: &[&str]| {
        let mut export = command(&["record", "export", "--from", "1h ago", "--quiet"]);
        let output = export.args([&dir, &file]).args(more).output().unwrap();
        (stderr(&output), fs::read_to_string(&file).unwrap_or_default())
    };
    let (_, table) = numbers(&["--csv", "--fields", "uptime_in_seconds,cmdstat_info.calls,ping_us_max"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    let heads = ["time_ms", "deployment", "server", "uptime_in_seconds", "cmdstat_info.calls", "ping_us_max"];
    assert_eq!(rows[0], heads);
    assert!(rows.len() > 1 && rows[1..].iter().all(|row| row[2] == server.address()), "{table}");
    let calls: Vec<f64> = rows[1..].iter().map(|row| row[4].parse().unwrap()).collect();
    assert!(calls.is_sorted() && calls[0] > 0.0, "{calls:?}");
    let (_, metrics) = numbers(&["--openmetrics"]);
    assert!(metrics.contains("# TYPE redis_used_memory unknown\nredis_used_memory{deployment="), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
    assert!(numbers(&["--csv", "--fields", "memory"]).0.contains("near it: "));
    assert!(numbers(&["--fields", "memory"]).0.contains("add --csv"));
    let pruned = prune(&dir);
    assert!(pruned.status.success(), "{}", stderr(&pruned));
    let mut nothing = command(&["record", "export", "--from", "2000-01-01", "--to", "2000-01-02"]);
    let text = stderr(&nothing.args([&dir, &file]).output().unwrap());
    assert!(text.contains("nothing was recorded"), "{text}");
}

#[test]
fn a_server_that_was_down_before_and_after_is_told_so() {
    let server = standalone("valkey-9.1");
    let (url, address) = (server.url(), server.address());
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    drop(server);
    let recorder = recorder(&url, &dir);
    until("a server that never answered is a finding", || named(&dir).is_some_and(|ids| ids == ["node_unreachable"]));
    let report = json(&["doctor", "--for", "3s", "--recording"], &dir).unwrap();
    assert_eq!(report["findings"][0]["id"], "node_unreachable", "{report:#}");
    assert!(report["findings"][0]["subjects"].to_string().contains(&address), "{report:#}");
    drop(recorder);
}

#[test]
fn what_is_no_recording_or_no_time_of_it_is_one_clear_line() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let recorder = recorder(&server.url(), &dir);
    until("something is recorded", || named(&dir).is_some());
    drop(recorder);
    let (dir, nowhere) = (dir.to_str().unwrap(), scratch.path().join("nowhere"));
    let empty = scratch.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let (nowhere, empty) = (nowhere.to_str().unwrap(), empty.to_str().unwrap());
    for (arguments, expected) in [
        (&["incidents", nowhere][..], "nowhere"),
        (&["incidents", empty], "unslow record URL"),
        (&["doctor", "--recording", empty], "unslow record URL"),
        (&["record", "ls", nowhere], "nowhere"),
        (&["doctor", "--recording", dir, "--at", "soon"], "yesterday 01:00"),
        (&["doctor", "--recording", dir, "--at", "2020-01-01T00:00Z"], "this recording is from"),
        (&["doctor", "--recording", dir, "--at", "2099-01-01"], "in the future"),
        (&["doctor", "--recording", dir, "--incident", "1"], "unslow incidents"),
        (&["doctor", "--recording", dir, "redis://10.9.9.9:1"], "nothing is recorded of redis://10.9.9.9:1"),
        (&["record", "nonsense://h", "--dir", dir], "unknown scheme"),
    ] {
        let output = unslow(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}{}", stdout(&output));
        assert!(text.starts_with("unslow: ") && text.trim().lines().count() == 1, "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    assert!(unslow(&["incidents", dir]).status.success());
}

/// Answers 500 once and then 200; what was posted comes from the channel.
fn webhook() -> (String, std::sync::mpsc::Receiver<Value>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hooks/secret-token", listener.local_addr().unwrap());
    let (send, posted) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut statuses = std::iter::once("500 Oops").chain(std::iter::repeat("200 OK"));
        for mut stream in listener.incoming().flatten() {
            let mut text = String::new();
            let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            reader.take(length).read_to_string(&mut text).unwrap();
            let status = statuses.next().unwrap();
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
            if status.starts_with("200") {
                let _ = send.send(serde_json::from_str(&text).unwrap());
            }
        }
    });
    (url, posted)
}

#[test]
fn a_file_says_what_to_record_and_whom_to_tell_and_what_is_known_is_not_told() {
    let server = unslow_testkit::servers::server("valkey-9.1", &[("requirepass", "right")]);
    let other = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let (url, posted) = webhook();
    let in_scratch = |name: &str| scratch.path().join(name);
    fs::write(in_scratch("pass"), "right\n").unwrap();
    let known = format!(
        "[[silence]]\nrule = \"node_hangs\"\nservers = [\"{}\"]\nreason = \"a test stops it\"\nuntil = \"{}\"\n",
        other.address(),
        jiff::Timestamp::now() + std::time::Duration::from_secs(3600)
    );
    fs::write(in_scratch("silences.toml"), known).unwrap();
    let config = format!(
        "dir = \"rec\"\nwindow = \"3s\"\nhost = false\nwebhook = \"{url}\"\nsilences = \"silences.toml\"\n\
         notify_from = \"high\"\n[[deployment]]\nurl = \"{}\"\npassword_file = \"pass\"\n[[deployment]]\nurl = \
         \"{}\"\n",
        server.url(),
        other.url()
    );
    fs::write(in_scratch("record.toml"), config).unwrap();
    let mut command = command(&["record", "--quiet", "--config"]);
    command.arg(in_scratch("record.toml")).stdout(Stdio::null());
    let recorder = Running(command.spawn().unwrap());
    let dir = in_scratch("rec");
    let named = |server: &unslow_engine::Server| {
        let output = common::command(&["doctor", &server.url(), "--for", "3s", "--format", "json", "--quiet"])
            .arg("--recording")
            .arg(&dir)
            .output()
            .unwrap();
        serde_json::from_slice::<Value>(&output.stdout).ok().filter(|report| report["error"].is_null())
    };
    until("both are recorded", || named(&server).is_some() && named(&other).is_some());
    [&server, &other].iter().for_each(|server| server.signal(libc::SIGSTOP));
    let began = posted.recv_timeout(std::time::Duration::from_secs(120)).unwrap();
    until("the other hangs too", || named(&other).is_some_and(|report| is_hanging(&ids(&report))));
    [&server, &other].iter().for_each(|server| server.signal(libc::SIGCONT));
    let over = posted.recv_timeout(std::time::Duration::from_secs(120)).unwrap();
    for (event, document) in [("began", began), ("over", over)] {
        assert_eq!((&document["event"], &document["incident"]["rule"]), (&event.into(), &"node_hangs".into()));
        assert_eq!(document["incident"]["subjects"], serde_json::json!([server.address()]), "{document:#}");
        assert!(document["text"].as_str().unwrap().contains("node_hangs"), "{document:#}");
    }
    drop(recorder);
    let listed = |more: &[&str]| {
        let mut command = common::command(&["incidents", "--window", "3s", "--format", "json", "--quiet"]);
        let output = command.arg(&dir).args(more).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let hangs = |list: &Value| {
        let all = list["incidents"].as_array().unwrap().iter().filter(|i| i["rule"] == "node_hangs");
        all.map(|i| i["subjects"][0].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let silences = in_scratch("silences.toml");
    let silenced = listed(&["--silences", silences.to_str().unwrap()]);
    assert_eq!(hangs(&silenced), [server.address()]);
    assert_eq!(silenced["silenced"][0]["reason"], "a test stops it", "{silenced:#}");
    assert_eq!(hangs(&listed(&[])).len(), 2);
}

#[test]
fn what_is_wrong_with_a_configuration_is_one_line_and_nothing_is_recorded() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("record.toml");
    for (text, expected) in [
        ("", "no deployment"),
        ("[[deployment]]\nurl = \"redis://h\"\nkeep = 3\n", "line 3: unknown field `keep`"),
        ("keep = \"soon\"\n[[deployment]]\nurl = \"redis://h\"\n", "keep: "),
        ("notify_from = \"loud\"\n[[deployment]]\nurl = \"redis://h\"\n", "notify_from: "),
        ("webhook = \"ftp://h\"\n[[deployment]]\nurl = \"redis://h\"\n", "http:// or https://"),
        ("silences = \"none.toml\"\n[[deployment]]\nurl = \"redis://h\"\n", "none.toml"),
        ("[[deployment]]\nurl = \"redis://h\"\npassword_file = \"none\"\n", "deployment 1: "),
        ("show_keys = true\nsalt_file = \"s\"\n[[deployment]]\nurl = \"redis://h\"\n", "remove one of them"),
        ("salt_file = \"record.toml\"\n[[deployment]]\nurl = \"redis://h\"\n", "chmod 600"),
        ("password = \"s3cret\"\n", "unknown field"),
        ("deployment = [\"redis://:s3cret@h\"]\n", "a text, expected [[deployment]] with url"),
    ] {
        fs::write(&file, text).unwrap();
        let output = command(&["record", "--config"]).arg(&file).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}: {said}");
        assert!(said.contains(expected) && said.lines().count() == 1 && !said.contains("s3cret"), "{text}: {said}");
    }
    let both = command(&["record", "redis://h", "--config"]).arg(&file).output().unwrap();
    assert!(stderr(&both).contains("cannot be used with"), "{}", stderr(&both));
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "nothing is created");
}
