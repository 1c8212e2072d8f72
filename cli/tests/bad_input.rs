//! What goes wrong on the way: one clear line and exit status 2, or a partial diagnosis that says what is missing.

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use common::{command, engine, report, stderr, stdout, unseen, unslow};
use unslow_engine::{Deployment, Server, ServerSpec, Shape, find};

/// Exit status 2 and one line that holds `expected`.
fn fails(arguments: &[&str], expected: &str) {
    let mut all = vec!["doctor", "--window", "1s", "--timeout", "1"];
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

#[test]
fn one_line_for_every_way_not_to_be_a_reachable_redis() {
    fails(&["127.0.0.1:1"], "connection refused");
    fails(&["no-such-host.invalid"], "does not resolve");
    fails(&["http://127.0.0.1"], "unknown scheme");
    fails(&["redis://127.0.0.1:notaport"], "host[:port]");
    fails(&["unix:/nowhere/redis.sock"], "no such socket");
    fails(&[&format!("127.0.0.1:{}", peer(b"HTTP/1.1 400 Bad Request\r\n\r\n"))], "an HTTP server");
    fails(&[&format!("127.0.0.1:{}", peer(b"SSH-2.0-OpenSSH_9.2\r\n"))], "an SSH server");
    fails(&[&format!("127.0.0.1:{}", peer(b""))], "no answer within");
    fails(&[&format!("127.0.0.1:{}", peer(b"+OK\r\n+OK\r\n$1000\r\nhalf"))], "in the middle of a reply");
    fails(&[&format!("127.0.0.1:{}", peer(b"*9223372036854775807\r\n"))], "larger than the limit");
    fails(&[&format!("127.0.0.1:{}", peer(b"$99999999999\r\n"))], "larger than the limit");
}

#[test]
fn one_line_for_files_that_are_no_facts() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    fails(&["--from", &file("corrupt", "{\"schema\": \"unslow.facts/1\", \"nodes\": [")], "not a facts file");
    fails(&["--from", &file("foreign", "{\"schema\": \"unslow.facts/99\"}")], "expected \"unslow.facts/1\"");
    fails(&["--from", &file("cut", "{\"schema\": \"unslow.facts/1\"}")], "damaged facts file");
    fails(&["--from", "/nowhere.json"], "/nowhere.json");
    fails(&["127.0.0.1:1", "--host", &file("host", "[]")], "unslow host --save");
}

#[test]
fn passwords_missing_wrong_or_for_nobody() {
    let spec = ServerSpec { settings: vec![("requirepass".into(), "right".into())], ..ServerSpec::default() };
    for name in ["valkey-9.1", "redis-5.0"] {
        let server = Server::start(&find(name).unwrap(), &spec).unwrap();
        fails(&[&server.url()], "wants a password");
        fails(&[&format!("redis://:wrong@{}", server.address())], "password refused for the default user");
        let by_environment = command(&["doctor", &server.url(), "--window", "1s", "--quiet"])
            .env("UNSLOW_PASSWORD", "right")
            .output()
            .unwrap();
        assert_eq!(by_environment.status.code(), Some(0), "{}", stderr(&by_environment));
    }
    let server = Server::start(&find("valkey-9.1").unwrap(), &spec).unwrap();
    fails(&[&format!("redis://nobody:x@{}", server.address())], "password refused for user \"nobody\"");
    let open = Server::start(&find("redis-6.2").unwrap(), &ServerSpec::default()).unwrap();
    report(&format!("redis://:unneeded@{}", open.address()), &[]);
}

#[test]
fn a_user_without_rights_learns_which_grants_are_missing() {
    let deployment = Deployment::start(&engine("valkey-9.1"), &Shape::six_nodes(), &ServerSpec::default()).unwrap();
    for node in &deployment.nodes {
        let mut c = node.connect().unwrap();
        c.call(&["ACL", "SETUSER", "half", "on", ">pw", "-@all", "+ping", "+info", "+cluster|nodes"]).unwrap();
        c.call(&["ACL", "SETUSER", "none", "on", ">pw", "-@all"]).unwrap();
    }
    let half = report(&format!("redis://half:pw@{}", deployment.nodes[0].address()), &[]);
    let all = unseen(&half).join("\n");
    for grant in ["+config|get", "+slowlog|get", "+latency|latest", "+client|list", "+cluster|info"] {
        assert!(all.contains(grant), "{grant} is not asked for: {all}");
    }
    assert_eq!(half["deployment"]["nodes"].as_array().unwrap().len(), 6);
    fails(&[&format!("redis://none:pw@{}", deployment.nodes[0].address())], "--print-acl");
}

#[test]
fn a_managed_service_without_config_cluster_and_acl_gets_a_partial_diagnosis() {
    let settings = ["CONFIG", "ACL", "SLOWLOG", "CLIENT", "LATENCY"]
        .map(|c| ("rename-command".to_string(), format!("{c} \"\"")))
        .to_vec();
    for (name, settings) in [
        ("redis-7.0", settings.clone()),
        ("redis-5.0", settings.into_iter().filter(|s| !s.1.starts_with("ACL")).collect()),
    ] {
        let server = Server::start(&engine(name), &ServerSpec { settings, ..ServerSpec::default() }).unwrap();
        let report = report(&server.url(), &[]);
        let all = unseen(&report).join("\n");
        for gone in ["CONFIG GET", "SLOWLOG GET", "CLIENT LIST", "LATENCY LATEST"] {
            assert!(all.contains(&format!("{gone} is not there")) || all.contains(gone), "{name}: {gone}: {all}");
        }
        assert!(report["deployment"]["nodes"][0]["commands_per_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn one_dead_and_one_hung_node_are_named_and_the_rest_is_diagnosed() {
    let deployment = Deployment::start(&engine("valkey-9.1"), &Shape::six_nodes(), &ServerSpec::default()).unwrap();
    deployment.nodes[4].kill();
    deployment.nodes[5].signal(libc::SIGSTOP);
    let begun = Instant::now();
    let report = report(&deployment.url(), &[]);
    deployment.nodes[5].signal(libc::SIGCONT);
    assert!(begun.elapsed() < Duration::from_secs(30), "a hung node holds up the rest");
    let all = unseen(&report).join("\n");
    assert!(all.contains(&deployment.nodes[4].address()) && all.contains("refused"), "{all}");
    assert!(all.contains(&deployment.nodes[5].address()) && all.contains("no answer"), "{all}");
    let measured =
        report["deployment"]["nodes"].as_array().unwrap().iter().filter(|n| n["commands_per_s"].is_number()).count();
    assert_eq!(measured, 4);
}

#[test]
fn a_server_that_hangs_in_the_window_leaves_a_partial_diagnosis() {
    let server = Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap();
    let child = command(&["doctor", &server.url(), "--window", "4s", "--timeout", "1", "--format", "json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The window is under way once the server has answered a hundred commands.
    let mut c = server.connect().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while c
        .call(&["INFO", "commandstats"])
        .unwrap()
        .text()
        .unwrap()
        .split("cmdstat_ping:calls=")
        .nth(1)
        .and_then(|t| t.split(',').next()?.parse::<u64>().ok())
        .unwrap_or(0)
        < 60
    {
        assert!(Instant::now() < until, "the doctor did not begin");
    }
    server.signal(libc::SIGSTOP);
    let output = child.wait_with_output().unwrap();
    server.signal(libc::SIGCONT);
    // The first half was seen, so it may be told; or nothing could be measured, told in one line.
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(said.contains("no answer within"), "{said}");
    assert_eq!(output.status.code(), Some(2), "{said}");
}

#[test]
fn a_loading_server_is_told_as_such() {
    let spec = ServerSpec {
        settings: vec![
            ("save".into(), "3600 1".into()),
            ("key-load-delay".into(), "50".into()),
            ("loading-process-events-interval-bytes".into(), "1024".into()),
        ],
        ..ServerSpec::default()
    };
    let server = Server::start(&engine("valkey-9.1"), &spec).unwrap();
    let mut c = server.connect().unwrap();
    c.call(&["CONFIG", "SET", "key-load-delay", "0"]).unwrap();
    for chunk in 0..400 {
        let batch: Vec<Vec<String>> =
            (0..500).map(|i| vec!["SET".into(), format!("k:{chunk}:{i}"), "v".into()]).collect();
        c.pipeline(&batch).unwrap();
    }
    c.call(&["SAVE"]).unwrap();
    // 200,000 keys at 50 us each: ten seconds of loading.
    server.kill();
    let url = server.url();
    let starting = std::thread::spawn(move || {
        let _ = server.restart();
        server
    });
    let until = Instant::now() + Duration::from_secs(10);
    let seen = loop {
        assert!(Instant::now() < until, "never seen loading");
        let output = unslow(&["doctor", &url, "--window", "500ms", "--format", "json", "--quiet"]);
        if let Ok(report) = serde_json::from_slice::<serde_json::Value>(&output.stdout) {
            let all = unseen(&report).join("\n");
            if all.contains("loading") {
                break all;
            }
        }
    };
    assert!(seen.contains("loading its data set"), "{seen}");
    drop(starting.join().unwrap());
}

#[test]
fn a_full_server_is_told_as_such() {
    let spec = ServerSpec { settings: vec![("maxclients".into(), "10".into())], ..ServerSpec::default() };
    let server = Server::start(&engine("valkey-9.1"), &spec).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| {
        let mut c = server.connect().ok()?;
        c.call(&["PING"]).ok().map(|_| c)
    })
    .take(50)
    .collect();
    assert_eq!(held.len(), 10);
    fails(&[&server.url()], "maxclients");
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
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let dir = tempfile::tempdir().unwrap();
        let child = command(&["demo", "--fault", "connection_churn"])
            .env("TMPDIR", dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while processes_below(child.id()) < 6 {
            assert!(Instant::now() < until, "the demo's six servers did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = child.id();
        // SAFETY: the child was not reaped, so the pid is its own.
        unsafe { libc::kill(pid as i32, signal) };
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("interrupted; everything that was started has been ended"),
            "{}",
            stderr(&output)
        );
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

#[test]
fn a_full_disk_is_told_and_costs_nothing_else() {
    let server = Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap();
    let output = unslow(&["doctor", &server.url(), "--window", "1s", "--quiet", "--save", "/dev/full"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("No space left"), "{}", stderr(&output));
}
