//! Servers and clients that are killed, and servers that fork, while connections are carried.

use std::time::{Duration, Instant};

use super::*;

#[test]
fn clients_see_that_their_server_was_killed_and_meet_the_next_one_at_its_port() {
    let meeting = Meeting::new();
    let port = free_port("127.0.0.1").unwrap();
    let server = meeting.server_at(port, "redis-7.0", &[]);
    let script = "import socket,sys\np=int(sys.argv[1])\nfor line in sys.stdin:\n    try:\n        \
                  s=socket.create_connection(('127.0.0.1',p),100)\n        s.settimeout(100)\n        \
                  s.sendall(b'PING\\r\\n'); print(s.recv(100),flush=True)\n        print(s.recv(100),flush=True)\n    \
                  except OSError as e: print('broken',type(e).__name__,flush=True)";
    let port_text = port.to_string();
    let mut child = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", script, &port_text]);
    let mut child = Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut ask = child.0.stdin.take().unwrap();
    let mut server = Some(server);
    for round in 0..3 {
        std::io::Write::write_all(&mut ask, b"go\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "b'+PONG\\r\\n'", "round {round}");
        assert_eq!(meeting.carried(), 1, "round {round}: connections that are carried");
        kill(server.as_ref().unwrap().pid(), libc::SIGKILL);
        let end = said.next().unwrap().unwrap();
        assert!(end == "b''" || end.starts_with("broken Conn"), "round {round}: {end}");
        drop(server.take());
        server = Some(meeting.server_at(port, "redis-7.0", &[]));
    }
    let left: Vec<_> = std::fs::read_dir(meeting.0.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "what killed servers left is taken away by the next: {left:?}");
}

#[test]
fn forks_under_load_disturb_nothing() {
    forks_under_load(|forks| forks >= 20);
}

/// UNSLOW_STRESS_S says for how long.
#[test]
#[ignore = "long: minutes of forks and kills under load"]
fn forks_under_load_for_minutes_disturb_nothing() {
    let seconds = std::env::var("UNSLOW_STRESS_S").ok().map_or(300, |s| s.parse().expect("UNSLOW_STRESS_S: seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    forks_under_load(|_| Instant::now() >= end);
}

/// The server forks, and clients are killed in the middle of their commands, beside a load whose every answer is
/// checked and that is seen to go on behind each fork; until there were `enough` forks.
fn forks_under_load(enough: impl Fn(u64) -> bool) {
    const CONNECTIONS: u64 = 20;
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &["--appendonly", "yes"]);
    let (url, connections) = (format!("shm:{}", server.port), CONNECTIONS.to_string());
    // For a week: it is interrupted when there were enough forks.
    let load = ["bench", &url, "--connections", &connections, "--seconds", "604800", "--mix", "get=0.5,set=0.5"];
    let more = ["--keys", "2000", "--verify", "--timeout", "60", "--format", "json", "--quiet"];
    let bench = meeting.unslow(&[&load[..], &more].concat()).stdout(Stdio::piped()).spawn().unwrap();
    let mut bench = Running(bench);
    until("the load to be carried", || meeting.carried() > 0);
    let mut c = server.connect().unwrap();
    let mut stats = |name: &str| info(&mut c, "stats").unwrap().number(name).unwrap() as u64;
    let redis_benchmark = engine("redis-7.0").server.with_file_name("redis-benchmark").display().to_string();
    let port = server.port.to_string();
    let doomed = ["bypass", "--client", "--", &redis_benchmark, "-p", &port, "-c", "10", "-n", "100000000", "-q"];
    let (mut forks, mut kills) = (0, 0);
    while !enough(forks) {
        let (forked, answered) = (stats("total_forks"), stats("total_commands_processed"));
        let mut c = server.connect().unwrap();
        // Refused while the last one's child is still there.
        until("the server to take it", || c.call(&[if forks % 2 == 0 { "BGSAVE" } else { "BGREWRITEAOF" }]).is_ok());
        until("the child to come and go", || {
            let now = info(&mut c, "persistence").unwrap();
            let idle = |name: &str| now.number(name) == Some(0.0);
            stats("total_forks") > forked && idle("rdb_bgsave_in_progress") && idle("aof_rewrite_in_progress")
        });
        until("the load to go on", || stats("total_commands_processed") > answered + 1000);
        forks += 1;
        if forks % 10 == 5 {
            until("a client with carried connections to be killed", || {
                let mut doomed = meeting.unslow(&doomed);
                let doomed = Running(doomed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
                let ours = |c: &Json| c["client_pid"] == doomed.0.id();
                // One whose connections were all left to TCP never shows up here: then another one.
                (0..100).any(|_| {
                    let servers = meeting.listed();
                    servers[0]["connections"].as_array().is_some_and(|all| all.iter().any(ours))
                })
            });
            kills += 1;
        }
    }
    bench.signal(libc::SIGINT);
    let mut said = String::new();
    bench.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(bench.ended(), Some(0), "{said}");
    let json: Json = serde_json::from_str(&said).unwrap();
    let run = &json["runs"][0];
    println!("{forks} forks, {kills} kills: {} requests", run["requests"]);
    // What was in flight when it was interrupted has no answer; nothing else went wrong.
    let harmless = |e: &Json| e["kind"] == "unfinished" && e["count"].as_u64() <= Some(CONNECTIONS);
    assert!(run["errors"].as_array().unwrap().iter().all(harmless), "{}", run["errors"]);
    assert_eq!(run["wrong_values"], 0);
    assert!(run["verified_values"].as_u64() > Some(0));
    drop(c);
    until("the dead to be gone", || server.clients() == 0);
    // A client that was killed leaves no memory behind in the server.
    let resident = || {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", server.pid())).unwrap();
        let rings = smaps.split("memfd:unslow-bypass-rings").skip(1);
        let rss =
            |part: &str| part.lines().find_map(|l| l.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.parse().ok());
        rings.map(|part| rss(part).unwrap_or(0u64)).sum::<u64>()
    };
    until("the memory of the dead to be given back", || {
        drop(meeting.listed());
        resident() < 64
    });
}

#[test]
fn the_gateway_speaks_to_servers_over_rings_and_survives_their_restart() {
    let meeting = Meeting::new();
    let port = free_port("127.0.0.1").unwrap();
    let server = meeting.server_at(port, "valkey-9.1", &[]);
    let listen = format!("127.0.0.1:{}", free_port("127.0.0.1").unwrap());
    let target = format!("shm:{port}");
    let gateway = meeting.unslow(&["gateway", "--listen", &listen, "--target", &target]).stderr(Stdio::null()).spawn();
    let gateway = Running(gateway.unwrap());
    let to = Target::parse(&listen).unwrap();
    let mut client = None;
    until("the gateway to answer", || {
        client = Connection::open(&to, &options(2)).ok();
        client.as_mut().is_some_and(|c| c.call(&["PING"]).is_ok())
    });
    let mut client = client.unwrap();
    meeting.until_carried(&server, || client.call(&["GET", "k"]).is_ok());
    client.call(&["SET", "k", &"x".repeat(1 << 20)]).unwrap();
    assert_eq!(client.call(&["GET", "k"]).unwrap().text().unwrap().len(), 1 << 20);
    kill(server.pid(), libc::SIGKILL);
    drop(server);
    let server = meeting.server_at(port, "valkey-9.1", &[]);
    until("the gateway to find it again", || client.call(&["GET", "k"]).is_ok());
    meeting.until_carried(&server, || client.call(&["GET", "k"]).is_ok());
    kill(gateway.0.id() as i32, libc::SIGKILL);
    until("the server to notice", || server.clients() == 0 && meeting.carried() == 0);
}
