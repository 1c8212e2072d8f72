//! `unslow bypass` as a person starts it: real servers and clients, crashes, forks, and what cannot be carried.

mod common;
#[path = "bypass/ends.rs"]
mod ends;
#[path = "bypass/handed.rs"]
mod handed;
#[path = "bypass/handlers.rs"]
mod handlers;
#[path = "bypass/left_behind.rs"]
mod left_behind;
#[path = "bypass/order.rs"]
mod order;
#[path = "bypass/ownership.rs"]
mod ownership;
#[path = "bypass/rare_calls.rs"]
mod rare_calls;
#[path = "bypass/same_replies.rs"]
mod same_replies;

use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Running, command, engine, stderr, stdout, unslow};
use serde_json::Value as Json;
use unslow_client::{Connection, Target};
use unslow_engine::{free_port, info};
use unslow_testkit::clients::python_library;
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, skip, standalone, tried_while_busy, until};

/// For `timeout`: the seconds after which a client hangs.
const LIMIT: &str = "120";
/// A server that does not take an offer within 150 ms leaves the connection to TCP. On a busy machine that is no
/// defect, so what counts carried connections is tried so often there.
const TRIES: u32 = 3;

/// Where servers and clients of one test meet.
struct Meeting(tempfile::TempDir);

impl Meeting {
    fn new() -> Meeting {
        Meeting(tempfile::tempdir().unwrap())
    }

    /// For servers and clients of any user.
    fn for_all() -> Meeting {
        use std::os::unix::fs::PermissionsExt;
        let meeting = Meeting::new();
        std::fs::set_permissions(meeting.0.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        meeting
    }

    fn unslow(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("UNSLOW_BYPASS_DIR", self.0.path());
        if let Some(libraries) = &engine("redis-7.0").libraries {
            command.env("LD_LIBRARY_PATH", libraries); // of the server, and of its own client programs
        }
        command
    }

    /// A program under `unslow bypass --client`, to its end.
    fn client(&self, program: &[&str]) -> Output {
        let mut command = self.unslow(&[&["bypass", "--client", "--", "timeout", LIMIT], program].concat());
        command.output().unwrap()
    }

    fn server(&self, name: &str, more: &[&str]) -> Carried {
        self.server_that(&[], free_port("127.0.0.1").unwrap(), name, more)
    }

    fn server_at(&self, port: u16, name: &str, more: &[&str]) -> Carried {
        self.server_that(&[], port, name, more)
    }

    /// With these flags of `unslow bypass`, and more of the server's own.
    fn server_that(&self, flags: &[&str], port: u16, name: &str, more: &[&str]) -> Carried {
        let dir = tempfile::tempdir().unwrap();
        let program = engine(name).server.display().to_string();
        let (port_text, dir_text) = (port.to_string(), dir.path().display().to_string());
        let basics = ["--", &program, "--port", &port_text, "--save", "", "--dir", &dir_text];
        let mut command = self.unslow(&[&["bypass"][..], flags, &basics, more].concat());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Carried { child: Running(child), port, _dir: dir };
        until("the server to answer", || {
            let ended = server.child.0.try_wait().unwrap();
            assert!(ended.is_none(), "{name} at port {port} ended: {ended:?}");
            server.connect().is_ok_and(|mut c| c.call(&["PING"]).is_ok())
        });
        server
    }

    /// Runs a client that says "good" and then waits for the end of its input: so many of its connections are carried
    /// then, and `look` sees them.
    #[track_caller]
    fn carries<T>(&self, program: &[&str], connections: usize, mut look: impl FnMut() -> T) -> T {
        let bypass = ["bypass", "--client", "--allow", "uid:65534", "--", "timeout", LIMIT];
        let words = [&bypass[..], program].concat();
        tried_while_busy(TRIES, |_| {
            let seen = while_it_waits(&mut self.unslow(&words), || {
                let carried = self.carried();
                if carried != connections {
                    return Err(format!("{carried} of {connections} connections are carried"));
                }
                Ok(look())
            });
            if seen.is_err() {
                until("the servers to notice that the client has ended", || self.carried() == 0);
            }
            seen
        })
    }

    /// Runs a program to its end: how it ended, what it said, and whether a connection of it was carried meanwhile.
    fn watched(&self, program: &mut Command) -> (ExitStatus, String, bool) {
        let mut said = tempfile::tempfile().unwrap();
        program.stdout(said.try_clone().unwrap()).stderr(said.try_clone().unwrap());
        let mut child = Running(program.spawn().unwrap());
        let (mut carried, mut ended) = (false, None);
        until("the program to end", || {
            carried |= self.carried() > 0;
            ended = child.0.try_wait().unwrap();
            ended.is_some()
        });
        let mut text = String::new();
        said.rewind().unwrap();
        said.read_to_string(&mut text).unwrap();
        (ended.unwrap(), text, carried)
    }

    /// Waits until the server has a carried connection of somebody's; `ask` makes use of it, and says whether that went
    /// well.
    #[track_caller]
    fn until_carried(&self, server: &Carried, mut ask: impl FnMut() -> bool) {
        let mut looks = 0;
        until("a connection to be carried", || {
            looks += 1;
            if looks % 100 == 0 {
                // One that was left to TCP stays there: it has to be made again.
                server.say(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
            ask() && self.carried() > 0
        });
    }

    /// Connections that are carried now, of all servers here.
    fn carried(&self) -> usize {
        self.listed().iter().map(|s| s["connections"].as_array().map_or(0, Vec::len)).sum()
    }

    /// What `bypass ls` says. A server that is busy for a second is asked again.
    fn listed(&self) -> Vec<Json> {
        let mut servers = Vec::new();
        until("every server to answer `bypass ls`", || {
            let output = self.unslow(&["bypass", "ls", "--format", "json"]).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            let json: Json = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(json["schema"], "unslow.bypass_ls/1");
            servers = json["servers"].as_array().unwrap().clone();
            !servers.iter().any(|s| s["problem"].as_str().is_some_and(|p| p.starts_with("busy")))
        });
        servers
    }
}

struct Carried {
    child: Running,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Carried {
    fn pid(&self) -> i32 {
        self.child.0.id() as i32
    }

    /// Over TCP, as every client that is not preloaded.
    fn connect(&self) -> Result<Connection, unslow_client::Error> {
        Connection::open(&Target::parse(&format!("127.0.0.1:{}", self.port)).unwrap(), &options(2))
    }

    fn say(&self, words: &[&str]) -> unslow_client::Value {
        self.connect().unwrap().call(words).unwrap()
    }

    fn clients(&self) -> u64 {
        let info = info(&mut self.connect().unwrap(), "clients").unwrap();
        info.number("connected_clients").unwrap() as u64 - 1
    }
}

/// Runs a program until it says "good", and looks while it is there.
#[track_caller]
fn while_it_waits<T>(program: &mut Command, look: impl FnOnce() -> T) -> T {
    let mut child = Running(program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "good\n");
    look()
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: a process this test started.
    unsafe { libc::kill(pid, signal) };
}

fn here(path: &str) -> String {
    format!("{}/tests/{path}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn redis_py_gets_the_same_answers_of_redis_over_tcp_and_over_shared_memory() {
    same_answers_over_tcp_and_over_shared_memory("redis-7.0");
}

#[test]
fn redis_py_gets_the_same_answers_of_valkey_over_tcp_and_over_shared_memory() {
    same_answers_over_tcp_and_over_shared_memory("valkey-9.1");
}

fn same_answers_over_tcp_and_over_shared_memory(name: &str) {
    let library = python_library().display().to_string();
    let meeting = Meeting::new();
    let server = meeting.server(name, &[]);
    let (script, port) = (here("bypass/smoke.py"), server.port.to_string());
    let program = ["timeout", LIMIT, "python3", &script, &port];
    for (mut command, wanted) in [
        (meeting.unslow(&[&["bypass", "--client", "--"], &program[..]].concat()), true),
        (Command::new("timeout"), false),
    ] {
        if !wanted {
            command.args(&program[1..]);
        }
        let (status, said, carried) = meeting.watched(command.env("PYTHONPATH", &library));
        assert!(status.success() && said.contains("\nall good\n"), "{name}: {status}, {said}");
        assert_eq!(carried, wanted, "{name}: whether its connections were carried");
        until("its connections to be gone", || server.clients() == 0);
    }
}

#[test]
fn jedis_and_lettuce_go_over_shared_memory() {
    let meeting = Meeting::new();
    let server = meeting.server("valkey-9.1", &[]);
    let port = server.port.to_string();
    let dir = unslow_testkit::clients::java();
    let bypass = ["bypass", "--client", "--", "timeout", LIMIT];
    let program = ["java", "-cp", "target/classes:target/dependency/*", "Smoke", "127.0.0.1", &port, "standalone"];
    let mut command = meeting.unslow(&[&bypass[..], &program].concat());
    let (status, said, carried) = meeting.watched(command.current_dir(&dir));
    assert!(status.success(), "{status}, {said}");
    assert!(carried, "no connection of it was seen to be carried");
}

#[test]
fn node_redis_goes_over_shared_memory() {
    let meeting = Meeting::new();
    let server = meeting.server("valkey-9.1", &[]);
    let port = server.port.to_string();
    let dir = unslow_testkit::clients::node();
    let bypass = ["bypass", "--client", "--", "timeout", LIMIT];
    let program = ["node", "smoke.mjs", "127.0.0.1", &port, "standalone"];
    let mut command = meeting.unslow(&[&bypass[..], &program].concat());
    let output = command.current_dir(&dir).output().unwrap();
    assert!(output.status.success(), "{} {}", stdout(&output), stderr(&output));
    // The suite is over in a moment: one connection that stays is looked at.
    let script = "require('redis').createClient({url:'redis://127.0.0.1:'+process.argv[1]}).connect().then(async \
                  c=>{await c.set('k','v');console.log('good');process.stdin.resume().on('end',()=>process.exit())})";
    let modules = format!("NODE_PATH={}", dir.join("node_modules").display());
    meeting.carries(&["env", &modules, "node", "-e", script, &port], 1, || ());
}

#[test]
fn who_is_preloaded_is_carried_and_others_use_the_same_port() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let port = server.port.to_string();
    let mut plain = server.connect().unwrap();
    plain.call(&["SET", "k", "v"]).unwrap();
    let script = "import socket,sys\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\ns.sendall(b'GET \
                  k\\r\\n')\nprint(s.recv(100),flush=True)\nsys.stdin.read()";
    let child = tried_while_busy(TRIES, |_| {
        let mut child = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", script, &port]);
        let mut child = Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let mut said = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "b'$1\\r\\nv\\r\\n'\n");
        if meeting.carried() == 1 { Ok(child) } else { Err("its connection is not carried".to_string()) }
    });
    let servers = meeting.listed();
    let connection = &servers[0]["connections"][0];
    assert_eq!(servers[0]["port"], server.port);
    assert_eq!(servers[0]["pid"], server.pid());
    assert_eq!(connection["client_pid"], child.0.id());
    assert_eq!(connection["read_bytes"], 7, "GET k");
    assert_eq!(connection["written_bytes"], 7, "$1 v");
    let list = plain.call(&["CLIENT", "LIST"]).unwrap().text().unwrap();
    assert!(list.contains(&format!("addr={} ", connection["peer"].as_str().unwrap())), "{list}");
    // A crash of the client ends its connection.
    kill(child.0.id() as i32, libc::SIGKILL);
    until("the server to notice", || server.clients() == 1);
    assert!(meeting.listed()[0]["connections"].as_array().unwrap().is_empty());
    let text = meeting.unslow(&["bypass", "ls"]).output().unwrap();
    assert!(stdout(&text).contains(&format!("port {port}")), "{}", stdout(&text));
}

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
        tried_while_busy(TRIES, |_| {
            std::io::Write::write_all(&mut ask, b"go\n").unwrap();
            assert_eq!(said.next().unwrap().unwrap(), "b'+PONG\\r\\n'", "round {round}");
            let carried = meeting.carried();
            if carried == 1 {
                return Ok(());
            }
            server.as_ref().unwrap().say(&["CLIENT", "KILL", "TYPE", "normal"]);
            said.next().unwrap().unwrap();
            Err(format!("round {round}: {carried} connections are carried"))
        });
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

#[test]
fn replication_goes_over_tcp_between_preloaded_and_plain_servers() {
    let meeting = Meeting::new();
    let master = meeting.server("redis-7.0", &[]);
    let replica = meeting.server("valkey-9.1", &[]);
    let plain = standalone("redis-7.0");
    for mut other in [replica.connect().unwrap(), plain.connect_with(&options(2)).unwrap()] {
        // Valkey cannot follow a newer RDB, and Redis 7.0 not Valkey's.
        other.call(&["REPLICAOF", "127.0.0.1", &master.port.to_string()]).unwrap();
        until_ok("the copy", || {
            master.say(&["SET", "k", "v"]);
            Ok::<_, unslow_client::Error>(other.call(&["GET", "k"])?.text().as_deref() == Some("v"))
        });
    }
    let connections = meeting.listed();
    assert!(
        connections.iter().all(|s| s["connections"].as_array().unwrap().is_empty()),
        "links between servers are TCP's"
    );
}

#[test]
fn what_cannot_be_carried_is_said_and_goes_over_tcp() {
    let meeting = Meeting::new();
    let run = |arguments: &[&str]| meeting.unslow(arguments).stdin(Stdio::null()).output().unwrap();
    let none = run(&["bypass"]);
    assert_eq!(none.status.code(), Some(2));
    let missing = run(&["bypass", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("no-such-program: not found"), "{}", stderr(&missing));
    let rule = run(&["bypass", "--allow", "root", "--", "true"]);
    assert!(stderr(&rule).contains("expected uid:NUMBER"), "{}", stderr(&rule));
    let none = run(&["bypass", "--", "true"]);
    assert_eq!(none.status.code(), Some(0));
    assert!(stderr(&none).contains("never watched a listening TCP socket"), "{}", stderr(&none));
    let quiet = run(&["bypass", "-q", "--", "true"]);
    assert_eq!(stderr(&quiet), "");
    let status = run(&["bypass", "--client", "--", "sh", "-c", "exit 7"]);
    assert_eq!(status.status.code(), Some(7), "the program's own");
    assert!(meeting.listed().is_empty());
    let text = run(&["bypass", "ls"]);
    assert!(stderr(&text).contains("no server runs with"), "{}", stderr(&text));
    let long = run(&["bypass", "--dir", &format!("/tmp/{}", "x".repeat(90)), "--", "true"]);
    assert!(stderr(&long).contains("at most 80 are allowed"), "{}", stderr(&long));
    let nobody = unslow(&["bench", "shm:1", "--seconds", "1"]);
    assert!(stderr(&nobody).contains("runs with `unslow bypass`"), "{}", stderr(&nobody));

    // A static program, made here.
    let source = meeting.0.path().join("s.c");
    std::fs::write(&source, "int main(){return 3;}").unwrap();
    let program = meeting.0.path().join("s");
    let made = Command::new("gcc").args(["-static", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(made.success());
    let output = run(&["bypass", "--", &program.display().to_string()]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("statically linked, so it runs over plain TCP"), "{}", stderr(&output));

    // No descriptors left for a memfd: served all the same.
    let server = meeting.server("redis-7.0", &[]);
    let cli = engine("redis-7.0").server.with_file_name("redis-cli").display().to_string();
    let port = server.port.to_string();
    let few = format!("ulimit -n 5; exec {cli} -p {port} ping");
    let output = meeting.client(&["sh", "-c", &few]);
    assert_eq!(stdout(&output), "PONG\n", "{}", stderr(&output));
    // No place to meet.
    let output =
        meeting.unslow(&["bypass", "--client", "--dir", "/nonexistent", "--", &cli, "-p", &port, "ping"]).output();
    assert_eq!(stdout(&output.unwrap()), "PONG\n");
    // A server of another version, and one that says nonsense.
    let netns = unslow_bypass::endpoint::own_netns().expect("Linux 5.14");
    for word in [&b"nonsense"[..], &[0x6c, 0x73, 0x6e, 0x75, 9, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let path = meeting.0.path().join(format!("{port}.{netns}.999999"));
        let script = "import socket,sys\n\
                      s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.bind(sys.argv[1]);s.listen()\n\
                      print('up',flush=True)\nall=[]\nwhile 1:\n    \
                      c,_=s.accept();all.append(c);c.send(bytes.fromhex(sys.argv[2]))";
        let hex: String = word.iter().map(|b| format!("{b:02x}")).collect();
        let mut liar = Command::new("python3")
            .args(["-c", script, &path.display().to_string(), &hex])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(liar.stdout.as_mut().unwrap(), &mut up).unwrap();
        let liar = Running(liar);
        let output = meeting.client(&[&cli, "-p", &port, "ping"]);
        assert_eq!(stdout(&output), "PONG\n", "{}", stderr(&output));
        drop(liar);
        std::fs::remove_file(path).unwrap();
    }
}

/// The binary where any user can read it.
fn for_everybody() -> (tempfile::TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let binary = dir.path().join("unslow");
    std::fs::copy(env!("CARGO_BIN_EXE_unslow"), &binary).unwrap();
    (dir, binary)
}

fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
    command
}

#[test]
fn another_user_stays_with_tcp_unless_allowed() {
    let meeting = Meeting::for_all();
    let server = meeting.server("redis-7.0", &[]);
    let redis = engine("redis-7.0").server;
    let (dir, binary) = for_everybody();
    let cli = dir.path().join("redis-cli");
    std::fs::copy(redis.with_file_name("redis-cli"), &cli).unwrap();
    for library in engine("redis-7.0").libraries.iter().flat_map(|from| std::fs::read_dir(from).unwrap()) {
        let library = library.unwrap();
        if !library.path().is_file() {
            continue;
        }
        std::fs::copy(library.path(), dir.path().join(library.file_name())).unwrap();
    }
    let port = server.port.to_string();
    let as_nobody = |arguments: &[&str]| {
        let mut command = as_nobody(&binary);
        command.args(arguments).env("UNSLOW_BYPASS_DIR", meeting.0.path());
        command.env("UNSLOW_CACHE", meeting.0.path().join("cache-of-nobody")).env("LD_LIBRARY_PATH", dir.path());
        command
    };
    let cli = cli.display().to_string();
    let output = as_nobody(&["bypass", "--client", "--", &cli, "-p", &port, "ping"]).output().unwrap();
    assert_eq!(stdout(&output), "PONG\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("refuses this user") || stderr(&output).is_empty(), "{}", stderr(&output));
    let script = "import socket,sys\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n\
                  s.sendall(b'PING\\r\\n'); assert s.recv(100)==b'+PONG\\r\\n'\nprint('good',flush=True)\n\
                  sys.stdin.read()";
    let stays = |port: &str| as_nobody(&["bypass", "--client", "--", "timeout", LIMIT, "python3", "-c", script, port]);
    let carried = while_it_waits(&mut stays(&port), || meeting.carried());
    assert_eq!(carried, 0, "connections of another user");
    until("the list to say that this user gets no answer", || {
        let listed = as_nobody(&["bypass", "ls"]).output().unwrap();
        assert_eq!(listed.status.code(), Some(0), "{}", stderr(&listed));
        stdout(&listed).contains("does not answer this user")
    });
    let listed = meeting.listed();
    assert_eq!(listed[0]["problem"], Json::Null);
    let refusals = listed[0]["refusals"].as_array().unwrap();
    let ours = |r: &Json| r["refused_by"] == "server" && r["why"] == "user" && r["client_uid"] == 65534;
    assert!(refusals.iter().any(ours), "{refusals:?}");
    let text = stdout(&meeting.unslow(&["bypass", "ls"]).output().unwrap());
    assert!(text.contains("start this server with --allow uid:65534"), "{text}");
    let allowing = meeting.server_that(&["--allow", "uid:65534"], free_port("127.0.0.1").unwrap(), "redis-7.0", &[]);
    let port = allowing.port.to_string();
    tried_while_busy(TRIES, |_| match while_it_waits(&mut stays(&port), || meeting.carried()) {
        1 => Ok(()),
        n => Err(format!("{n} connections of a user who is allowed are carried")),
    });
}

/// Asks again and again over five connections, and prints what TCP itself carried of them, there and back.
const OVER_TCP: &str = r#"
import socket, struct, sys

host, port, asked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connections = [socket.create_connection((host, port), 100) for _ in range(5)]
for _ in range(asked // 5):
    for s in connections:
        s.sendall(b"PING\r\n")
        got = b""
        while not got.endswith(b"\r\n"):
            part = s.recv(99)
            assert part, "it closed the connection"
            got += part
        assert got == b"+PONG\r\n", got
# struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received
told = [struct.unpack_from("QQ", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 120) for s in connections]
print(sum(t[0] for t in told), sum(t[1] for t in told))
"#;

/// A server of IPv6 in place of Redis.
const PONG: &str = r#"
import socket, sys, threading

def serve(s):
    while part := s.recv(99):
        assert part == b"PING\r\n", part
        s.sendall(b"+PONG\r\n")

l = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("good", flush=True)
while True:
    s, peer = l.accept()
    assert peer[0] in ("::1", "::ffff:127.0.0.1"), peer
    threading.Thread(target=serve, args=(s,), daemon=True).start()
"#;

const ASKED: u64 = 5000;
/// Of "PING" and "+PONG" with their line ends.
const ASKED_BYTES: u64 = ASKED * 13;

/// How many bytes TCP itself carried of [`ASKED_BYTES`]: the kernel's own counters of these connections.
fn over_tcp(host: &str, port: u16) -> u64 {
    let words = [LIMIT, "python3", "-c", OVER_TCP, host, &port.to_string(), &ASKED.to_string()];
    let ended = Command::new("timeout").args(words).output().unwrap();
    assert!(ended.status.success(), "{}", stderr(&ended));
    stdout(&ended).split_whitespace().map(|n| n.parse::<u64>().unwrap()).sum()
}

/// `--sockmap` for a port, at work. None where the kernel, or this machine's owner, does not let us: the test is
/// skipped with its words.
fn sockmap(port: u16) -> Option<Running> {
    let args = ["bypass", "--sockmap", "--port", &port.to_string()];
    let mut attached = Running(command(&args).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(attached.0.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let refused = line.contains("needs root") || line.contains("Operation not permitted");
    if refused && !may_load_programs() || line.contains("the kernel does not take") && !kernel_has_sockmap() {
        skip(line.trim_end());
        return None;
    }
    assert!(line.contains("bypass TCP from now on"), "{line}");
    attached.0.stderr = Some(said.into_inner());
    Some(attached)
}

/// Whether this process has the capabilities that loading programs and attaching them to a cgroup take: with them, a
/// refusal is a failure and no reason to skip. A container's seccomp filter may refuse all the same; `Seccomp` of the
/// status says that it filters.
fn may_load_programs() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().trim();
    let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap();
    let has = |bit: u32| capabilities & 1 << bit != 0;
    let (net_admin, sys_admin, bpf) = (12, 21, 39);
    (has(sys_admin) || has(bpf) && has(net_admin)) && field("Seccomp:") == "0"
}

/// Whether it has what the programs call; then it refuses them for what they are.
fn kernel_has_sockmap() -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let has = |name: &str| symbols.lines().any(|l| l.split_whitespace().nth(2) == Some(name));
    has("bpf_msg_redirect_hash") && has("bpf_get_netns_cookie_sk_msg")
}

#[test]
fn sockets_hand_their_bytes_over_below_tcp() {
    let server = standalone("redis-7.0");
    let (host, port) = (server.ip.as_str(), server.port);
    let mut old = server.connect_with(&options(2)).unwrap();
    let plain = over_tcp(host, port);
    assert!(plain >= ASKED_BYTES, "{plain} of {ASKED_BYTES} bytes went over TCP without it");
    let Some(mut attached) = sockmap(port) else { return };
    let handed = over_tcp(host, port);
    assert!(handed < ASKED_BYTES / 10, "{handed} of {ASKED_BYTES} bytes went over TCP");
    // A connection that was there before stays with TCP; and large values go both ways.
    let mut new = server.connect_with(&options(2)).unwrap();
    for client in [&mut old, &mut new] {
        let value = "0123456789".repeat(3_000_000);
        client.call(&["SET", "large", &value]).unwrap();
        assert!(client.call(&["GET", "large"]).unwrap().text().unwrap() == value);
    }
    attached.signal(libc::SIGTERM);
    assert_eq!(attached.ended(), Some(0));
    for client in [&mut old, &mut new] {
        assert_eq!(client.call(&["PING"]).unwrap().text().unwrap(), "PONG", "after the end");
    }
    let plain = over_tcp(host, port);
    assert!(plain >= ASKED_BYTES, "{plain} of {ASKED_BYTES} bytes went over TCP after the end");
    // An ordinary user may not.
    let (_dir, binary) = for_everybody();
    let refused = as_nobody(&binary).args(["bypass", "--sockmap"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("needs root"), "{}", stderr(&refused));
}

#[test]
fn a_server_on_ipv6_is_handed_the_bytes_of_ipv6_clients_and_of_ipv4_clients() {
    if let Err(e) = std::net::TcpListener::bind("[::1]:0") {
        return skip(&format!("no IPv6: {e}"));
    }
    let port = free_port("127.0.0.1").unwrap();
    let mut server = Command::new("python3");
    while_it_waits(server.args(["-c", PONG, &port.to_string()]), || {
        // The server sees the IPv4 client as ::ffff:127.0.0.1.
        for host in ["::1", "127.0.0.1"] {
            let plain = over_tcp(host, port);
            assert!(plain >= ASKED_BYTES, "{host}: {plain} of {ASKED_BYTES} bytes went over TCP without it");
        }
        let Some(_attached) = sockmap(port) else { return };
        for host in ["::1", "127.0.0.1"] {
            let handed = over_tcp(host, port);
            assert!(handed < ASKED_BYTES / 10, "{host}: {handed} of {ASKED_BYTES} bytes went over TCP");
        }
    });
}

#[test]
fn a_server_whose_threads_have_sets_of_their_own_is_carried() {
    let meeting = Meeting::for_all();
    // memcached: one thread accepts, four serve, as another user than the client's.
    let port = free_port("127.0.0.1").unwrap();
    let port_text = port.to_string();
    let mut memcached =
        meeting.unslow(&["bypass", "--", "memcached", "-u", "nobody", "-l", "127.0.0.1", "-t", "4", "-p", &port_text]);
    let _memcached = Running(memcached.stderr(Stdio::null()).spawn().unwrap());
    until("memcached to listen", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let script = "import socket,sys\nss=[socket.create_connection(('127.0.0.1',int(sys.argv[1])),100) for _ in \
                  range(40)]\nfor n in range(50):\n    for i,s in enumerate(ss):\n        v=('v%d.%d'%(i,n)).encode(); \
                  s.sendall(b'set k%d 0 0 %d\\r\\n%s\\r\\n'%(i,len(v),v)); assert \
                  s.recv(100)==b'STORED\\r\\n'\n        s.sendall(b'get k%d\\r\\n'%i); got=b''\n        while not \
                  got.endswith(b'END\\r\\n'): got+=s.recv(4096)\n        assert v in got,got\n\
                  print('good',flush=True)\nsys.stdin.read()";
    meeting.carries(&["python3", "-c", script, &port_text], 40, || ());
}

/// Threads that read and write connections for the main one: every value comes back as it was.
const WRITES_AND_READS: &str = r#"
import os, socket, sys, threading

def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

def work(i):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 100)
    open_for_good.append(s)
    f = s.makefile("rb")
    for n in range(50):
        values = [os.urandom(1 + (n * 37 + j * 911) % 9000) for j in range(8)]
        s.sendall(b"".join(command(b"SET", b"%d.%d" % (i, j), v) + command(b"GET", b"%d.%d" % (i, j)) for j, v in enumerate(values)))
        for v in values:
            assert f.readline() == b"+OK\r\n"
            assert f.read(int(f.readline()[1:]) + 2) == v + b"\r\n"
    right.append(i)

open_for_good, right = [], []
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print("good" if len(right) == 8 else "wrong", flush=True)
sys.stdin.read()
"#;

#[test]
fn valkey_with_io_threads_is_carried() {
    let meeting = Meeting::new();
    let server = meeting.server("valkey-9.1", &["--io-threads", "3"]);
    meeting.carries(&["python3", "-c", WRITES_AND_READS, &server.port.to_string()], 8, || ());
}

#[test]
fn redis_with_io_threads_is_carried() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &["--io-threads", "3", "--io-threads-do-reads", "yes"]);
    meeting.carries(&["python3", "-c", WRITES_AND_READS, &server.port.to_string()], 8, || ());
}

/// Changes a setting of the whole machine: runs alone.
#[test]
fn rings_lie_in_huge_pages_where_they_are_asked_for() {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    struct Before(String);
    impl Drop for Before {
        fn drop(&mut self) {
            if let Err(e) = std::fs::write(SETTING, &self.0) {
                println!("{SETTING} was {} and stays changed: {e}", self.0);
            }
        }
    }
    let meeting = Meeting::new();
    let launched = || {
        let output = meeting.unslow(&["bypass", "--huge-pages", "--", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).lines().find(|l| l.contains("--huge-pages")).map(String::from)
    };
    let Ok(text) = std::fs::read_to_string(SETTING) else {
        let said = launched().expect("it says that there are none");
        assert!(said.contains("this kernel has none"), "{said}");
        return skip(&said);
    };
    let _before = Before(text.split(['[', ']']).nth(1).unwrap().to_string());
    for value in ["never", "advise"] {
        if let Err(e) = std::fs::write(SETTING, value) {
            return skip(&format!("{value} cannot be written to {SETTING}: {e}"));
        }
        match (value, launched()) {
            ("never", Some(said)) => assert!(said.contains("as root: echo advise"), "{said}"),
            (_, said) => assert_eq!((value, said), ("advise", None)),
        }
    }
    let bytes = |flag: &[&str]| {
        let server = meeting.server_that(flag, free_port("127.0.0.1").unwrap(), "valkey-9.1", &[]);
        meeting.carries(&["python3", "-c", WRITES_AND_READS, &server.port.to_string()], 8, || {
            let maps = std::fs::read_to_string(format!("/proc/{}/smaps", server.pid())).unwrap();
            let rings = maps.split("memfd:unslow-bypass-rings").nth(1).expect("its rings");
            let line = rings.lines().find(|l| l.starts_with("ShmemPmdMapped:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        })
    };
    assert_eq!(bytes(&[]), 0);
    assert!(bytes(&["--huge-pages"]) >= 2048);
}

#[test]
fn tls_goes_over_rings() {
    let meeting = Meeting::new();
    let dir = tempfile::tempdir().unwrap();
    let (settings, port) = common::tls_settings(dir.path());
    let words: Vec<String> = settings.into_iter().flat_map(|(k, v)| [format!("--{k}"), v]).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--tls-auth-clients", "no"]).collect();
    let _server = meeting.server("redis-7.0", &words);
    let ca = dir.path().join("ca.crt").display().to_string();
    let script = r"
import socket,ssl,sys
c=ssl.create_default_context(cafile='CA')
to=('127.0.0.1',int(sys.argv[1]))
ss=[c.wrap_socket(socket.create_connection(to,100),server_hostname='localhost') for _ in range(5)]
v=b'0123456789'*300000
for s in ss:
    s.sendall(b'*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n'%(len(v),v))
    assert s.recv(100)==b'+OK\r\n'
    s.sendall(b'GET k\r\n')
    got=b''
    while len(got)<len(v)+12: got+=s.recv(65536)
    assert v in got
print('good',flush=True)
sys.stdin.read()
";
    meeting.carries(&["python3", "-c", &script.replace("CA", &ca), &port.to_string()], 5, || ());
}

#[test]
fn workers_that_are_forked_are_met_themselves() {
    use std::os::unix::fs::PermissionsExt;
    // The master listens as root, the workers serve as somebody else.
    let meeting = Meeting::for_all();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let port = free_port("127.0.0.1").unwrap();
    let at = dir.path().display();
    // Beyond every ring, by sendfile.
    std::fs::write(dir.path().join("large"), "0123456789".repeat(500_000)).unwrap();
    std::fs::create_dir(dir.path().join("logs")).unwrap();
    let config = format!(
        "daemon off; worker_processes 2; user nobody nogroup; pid {at}/pid; error_log {at}/err; events {{ \
         worker_connections 100; }}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; root {at}; location / \
         {{ return 200 hello; }} location /large {{ sendfile on; }} }} }}"
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let (prefix, file) = (at.to_string(), file.display().to_string());
    let mut nginx = meeting.unslow(&["bypass", "--", "nginx", "-p", &prefix, "-c", &file]);
    let nginx = nginx.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut nginx = Family(nginx);
    until("nginx to listen", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let script = "import http.client,sys\ncs=[http.client.HTTPConnection('127.0.0.1',int(sys.argv[1]),timeout=100) for \
                  _ in range(8)]\nfor c in cs:\n    for _ in range(20):\n        c.request('GET','/'); assert \
                  c.getresponse().read()==b'hello'\n    c.request('GET','/large'); assert \
                  c.getresponse().read()==b'0123456789'*500000\nprint('good',flush=True)\nsys.stdin.read()";
    let listed = meeting.carries(&["python3", "-c", script, &port.to_string()], 8, || meeting.listed());
    assert!(!listed.is_empty() && listed.iter().all(|s| s["pid"] != nginx.0.id()), "workers serve, not the master");
    kill(nginx.0.id() as i32, libc::SIGTERM);
    assert_eq!(nginx.0.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    nginx.0.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

/// A process group of its own, ended as a whole: workers outlive a master that is killed.
struct Family(std::process::Child);

impl Drop for Family {
    fn drop(&mut self) {
        kill(-(self.0.id() as i32), libc::SIGKILL);
        let _ = self.0.wait();
    }
}

#[test]
fn large_values_sleeping_servers_and_full_ones_look_as_over_tcp() {
    let library = python_library().display().to_string();
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &["--maxclients", "10", "--enable-debug-command", "yes"]);
    let (script, port) = (here("bypass/limits.py"), server.port.to_string());
    let mut command = meeting.unslow(&["bypass", "--client", "--", "timeout", LIMIT, "python3", &script, &port]);
    let output = command.env("PYTHONPATH", &library).output().unwrap();
    assert_eq!(stdout(&output), "all good\n", "{}", stderr(&output));
}
