//! `unslow bypass` as a person starts it: real servers and clients, crashes, forks, and what cannot be carried.

mod common;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{Running, command, engine, stderr, stdout, unslow};
use serde_json::Value as Json;
use unslow_client::{Connection, Options, Target};
use unslow_engine::{cache_dir, free_port, info, wait_for};

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

    /// A program under `unslow bypass`, to its end; it has a minute.
    fn client(&self, program: &[&str]) -> Output {
        let mut command = self.unslow(&[&["bypass", "--client", "--", "timeout", "60"], program].concat());
        command.output().unwrap()
    }

    fn server(&self, name: &str, more: &[&str]) -> Carried {
        let port = free_port("127.0.0.1").unwrap();
        self.server_at(port, name, more)
    }

    fn server_at(&self, port: u16, name: &str, more: &[&str]) -> Carried {
        let dir = tempfile::tempdir().unwrap();
        let program = engine(name).server.display().to_string();
        let (port_text, dir_text) = (port.to_string(), dir.path().display().to_string());
        let basics = ["bypass", "--", &program, "--port", &port_text, "--save", "", "--dir", &dir_text];
        let mut command = self.unslow(&[&basics[..], more].concat());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let server = Carried { child: Running(child), port, _dir: dir };
        wait_for("it to answer", Duration::from_secs(20), || {
            Ok(server.connect().is_ok_and(|mut c| c.call(&["PING"]).is_ok()))
        })
        .unwrap();
        server
    }

    /// Runs a Python client that says "good" and waits; how many of its connections are carried then.
    fn carried_while(&self, script: &str, port: u16) -> usize {
        let port = port.to_string();
        let bypass = ["bypass", "--client", "--allow", "uid:65534", "--"];
        let words = [&bypass[..], &["timeout", "60", "python3", "-c", script, &port]].concat();
        let child = self.unslow(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut child = Running(child);
        let mut said = String::new();
        let mut out = std::io::BufReader::new(child.0.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut said).unwrap();
        assert_eq!(said, "good\n");
        self.listed().iter().map(|s| s["connections"].as_array().map_or(0, Vec::len)).sum()
    }

    fn listed(&self) -> Vec<Json> {
        let output = self.unslow(&["bypass", "ls", "--format", "json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["schema"], "unslow.bypass_ls/1");
        json["servers"].as_array().unwrap().clone()
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

    /// Over TCP, as everybody who is not preloaded.
    fn connect(&self) -> Result<Connection, unslow_client::Error> {
        let target = Target::parse(&format!("127.0.0.1:{}", self.port)).unwrap();
        let limit = Duration::from_secs(20);
        Connection::open(&target, &Options { connect_timeout: limit, command_timeout: limit, ..Options::default() })
    }

    fn say(&self, words: &[&str]) -> unslow_client::Value {
        self.connect().unwrap().call(words).unwrap()
    }

    fn clients(&self) -> u64 {
        let info = info(&mut self.connect().unwrap(), "clients").unwrap();
        info.number("connected_clients").unwrap() as u64 - 1
    }
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: a process this test started.
    unsafe { libc::kill(pid, signal) };
}

fn here(path: &str) -> String {
    format!("{}/tests/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// redis-py in the cache.
fn redis_py() -> PathBuf {
    let library = cache_dir().join("clients/python/library");
    if !library.join("redis").exists() {
        let to = library.display().to_string();
        let pip = ["-m", "pip", "install", "--quiet", "--target", &to, "redis==6.4.0"];
        let output = Command::new("python3").args(pip).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    library
}

/// A suite of the gateway's clients, with what it needs installed.
fn suite(name: &str, needs: &str, install: &[&str]) -> PathBuf {
    let dir = cache_dir().join("clients").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fix/gateway/tests/clients").join(name);
    let copied = Command::new("cp").arg("-r").arg(from.join(".")).arg(&dir).status().unwrap();
    assert!(copied.success());
    if !dir.join(needs).exists() {
        let output = Command::new(install[0]).current_dir(&dir).args(&install[1..]).output().unwrap();
        assert!(output.status.success(), "{install:?}: {} {}", stdout(&output), stderr(&output));
    }
    dir
}

#[test]
fn redis_py_gets_the_same_answers_over_tcp_and_over_shared_memory() {
    let library = redis_py().display().to_string();
    for name in ["redis-7.0", "valkey-9.1"] {
        let meeting = Meeting::new();
        let server = meeting.server(name, &[]);
        let (script, port) = (here("bypass/smoke.py"), server.port.to_string());
        let run = |command: &mut Command| {
            let output = command.env("PYTHONPATH", &library).output().unwrap();
            let said = stdout(&output);
            assert!(said.ends_with("all good\n"), "{name}: {said}{}", stderr(&output));
        };
        run(Command::new("timeout").args(["100", "python3", &script, &port]));
        assert_eq!(server.clients(), 0);
        run(&mut meeting.unslow(&["bypass", "--client", "--", "timeout", "100", "python3", &script, &port]));
        wait_for("its connections to be gone", Duration::from_secs(10), || Ok(server.clients() == 0)).unwrap();
    }
}

#[test]
fn jedis_lettuce_and_node_redis_go_over_shared_memory() {
    let meeting = Meeting::new();
    let server = meeting.server("valkey-9.1", &[]);
    let port = server.port.to_string();
    let maven = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies"];
    let npm = ["npm", "install", "--silent", "--no-audit", "--no-fund"];
    let java = suite("java", "target/dependency", &maven);
    let node = suite("node", "node_modules/redis", &npm);
    let run = |dir: &Path, program: &[&str]| {
        let all =
            [&["bypass", "--client", "--", "timeout", "100"], program, &["127.0.0.1", &port, "standalone"]].concat();
        let output = meeting.unslow(&all).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{program:?}: {} {}", stdout(&output), stderr(&output));
    };
    run(&java, &["java", "-cp", "target/classes:target/dependency/*", "Smoke"]);
    run(&node, &["node", "smoke.mjs"]);
}

#[test]
fn who_is_preloaded_is_carried_and_others_use_the_same_port() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let port = server.port.to_string();
    let mut plain = server.connect().unwrap();
    plain.call(&["SET", "k", "v"]).unwrap();
    let script = "import socket,sys,time\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\ns.sendall(b'GET k\\r\\n')\nprint(s.recv(100),flush=True)\nsys.stdin.read()";
    let mut child = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", script, &port]);
    let child = Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut servers = Vec::new();
    wait_for("it to be carried", Duration::from_secs(10), || {
        servers = meeting.listed();
        Ok(servers.first().is_some_and(|s| s["connections"][0]["read_bytes"] == 7))
    })
    .unwrap();
    let connection = &servers[0]["connections"][0];
    assert_eq!(servers[0]["port"], server.port);
    assert_eq!(servers[0]["pid"], server.pid());
    assert_eq!(connection["client_pid"], child.0.id());
    assert_eq!(connection["written_bytes"], 7, "$1 v");
    let list = plain.call(&["CLIENT", "LIST"]).unwrap().text().unwrap();
    assert!(list.contains(&format!("addr={} ", connection["peer"].as_str().unwrap())), "{list}");
    // A crash of the client is noticed at once.
    kill(child.0.id() as i32, libc::SIGKILL);
    wait_for("the server to notice", Duration::from_secs(10), || Ok(server.clients() == 1)).unwrap();
    assert!(meeting.listed()[0]["connections"].as_array().unwrap().is_empty());
    let text = meeting.unslow(&["bypass", "ls"]).output().unwrap();
    assert!(stdout(&text).contains(&format!("port {port}")), "{}", stdout(&text));
}

#[test]
fn a_killed_server_is_seen_at_once_and_the_next_one_at_its_port_is_met() {
    let meeting = Meeting::new();
    let port = free_port("127.0.0.1").unwrap();
    let server = meeting.server_at(port, "redis-7.0", &[]);
    let script = "import socket,sys\np=int(sys.argv[1])\nfor line in sys.stdin:\n    try:\n        s=socket.create_connection(('127.0.0.1',p),5)\n        s.settimeout(20)\n        s.sendall(b'PING\\r\\n'); print(s.recv(100),flush=True)\n        print(s.recv(100),flush=True)\n    except OSError as e: print('broken',type(e).__name__,flush=True)";
    let port_text = port.to_string();
    let mut child = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", script, &port_text]);
    let mut child = Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = std::io::BufRead::lines(std::io::BufReader::new(child.0.stdout.take().unwrap()));
    let mut ask = child.0.stdin.take().unwrap();
    let mut server = Some(server);
    for round in 0..3 {
        std::io::Write::write_all(&mut ask, b"go\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "b'+PONG\\r\\n'", "round {round}");
        assert_eq!(meeting.listed()[0]["connections"].as_array().unwrap().len(), 1, "round {round}");
        kill(server.as_ref().unwrap().pid(), libc::SIGKILL);
        let end = said.next().unwrap().unwrap();
        assert!(end == "b''" || end.starts_with("broken Conn"), "round {round}: {end}");
        drop(server.take());
        server = Some(meeting.server_at(port, "redis-7.0", &[]));
    }
    let left: Vec<_> = std::fs::read_dir(meeting.0.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "what killed servers left is taken away by the next: {left:?}");
}

/// Forks all the time, under a load whose every answer is checked; UNSLOW_STRESS_S makes it longer, with kills of clients.
#[test]
fn forks_under_load_disturb_nothing() {
    let seconds: u64 = std::env::var("UNSLOW_STRESS_S").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &["--appendonly", "yes"]);
    let (url, length) = (format!("shm:{}", server.port), seconds.to_string());
    let load =
        ["bench", &url, "--connections", "20", "--seconds", &length, "--mix", "get=0.5,set=0.5", "--keys", "2000"];
    let load = [&load[..], &["--verify", "--format", "json", "--quiet"]].concat();
    let bench = meeting.unslow(&load).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut bench = Running(bench);
    let mut forks = server.connect().unwrap();
    let redis_benchmark = engine("redis-7.0").server.with_file_name("redis-benchmark").display().to_string();
    let (mut count, mut kills) = (0, 0);
    let until = std::time::Instant::now() + Duration::from_secs(seconds);
    while std::time::Instant::now() < until {
        let command = if count % 2 == 0 { "BGSAVE" } else { "BGREWRITEAOF" };
        count += u64::from(forks.call(&[command]).is_ok());
        if count % 20 == 5 {
            // Somebody who dies in the middle.
            let port = server.port.to_string();
            let arguments =
                ["bypass", "--client", "--", &redis_benchmark, "-p", &port, "-c", "10", "-n", "100000000", "-q"];
            let mut doomed = meeting.unslow(&arguments);
            let doomed = Running(doomed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            let pid = doomed.0.id();
            let _ = wait_for("it to be carried", Duration::from_secs(5), || {
                let servers = meeting.listed();
                let all = servers[0]["connections"].as_array().cloned().unwrap_or_default();
                Ok(all.iter().any(|c| c["client_pid"] == pid))
            });
            kills += 1;
        }
        std::thread::sleep(Duration::from_millis(10)); // the rate of forks asked for
    }
    let output = {
        let mut said = String::new();
        std::io::Read::read_to_string(bench.0.stdout.as_mut().unwrap(), &mut said).unwrap();
        assert_eq!(bench.0.wait().unwrap().code(), Some(0));
        said
    };
    let json: Json = serde_json::from_str(&output).unwrap();
    let run = &json["runs"][0];
    println!("{count} forks, {kills} kills: {} requests", run["requests"]);
    assert!(count >= seconds, "{count} forks");
    assert_eq!(run["errors"].as_array().map_or(0, Vec::len), 0, "{}", run["errors"]);
    wait_for("the dead to be gone", Duration::from_secs(10), || Ok(server.clients() == 1)).unwrap();
    // Whoever was killed keeps no memory of the server's for long.
    let resident = || {
        let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", server.pid())).unwrap();
        let rings = smaps.split("memfd:unslow-bypass-rings").skip(1);
        let rss =
            |part: &str| part.lines().find_map(|l| l.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.parse().ok());
        rings.map(|part| rss(part).unwrap_or(0u64)).sum::<u64>()
    };
    wait_for("the memory of the dead to be given back", Duration::from_secs(20), || {
        drop(meeting.listed());
        Ok(resident() < 64)
    })
    .unwrap();
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
    let limit = Duration::from_secs(20);
    let options = Options { connect_timeout: limit, command_timeout: limit, ..Options::default() };
    let to = Target::parse(&listen).unwrap();
    let mut client = None;
    wait_for("the gateway", Duration::from_secs(20), || {
        client = Connection::open(&to, &options).ok();
        Ok(client.is_some())
    })
    .unwrap();
    let mut client = client.unwrap();
    client.call(&["SET", "k", &"x".repeat(1 << 20)]).unwrap();
    assert_eq!(client.call(&["GET", "k"]).unwrap().text().unwrap().len(), 1 << 20);
    let carried = |n: usize| {
        let servers = meeting.listed();
        servers.first().is_some_and(|s| s["connections"].as_array().is_some_and(|c| c.len() >= n))
    };
    assert!(carried(1), "{:?}", meeting.listed());
    kill(server.pid(), libc::SIGKILL);
    drop(server);
    let server = meeting.server_at(port, "valkey-9.1", &[]);
    wait_for("the gateway to find it again", Duration::from_secs(20), || Ok(client.call(&["GET", "k"]).is_ok()))
        .unwrap();
    wait_for("rings again", Duration::from_secs(20), || Ok(client.call(&["GET", "k"]).is_ok() && carried(1))).unwrap();
    kill(gateway.0.id() as i32, libc::SIGKILL);
    wait_for("the server to notice", Duration::from_secs(10), || Ok(server.clients() == 0 && !carried(1))).unwrap();
}

#[test]
fn replication_goes_over_tcp_between_preloaded_and_plain_servers() {
    let meeting = Meeting::new();
    let master = meeting.server("redis-7.0", &[]);
    let replica = meeting.server("valkey-9.1", &[]);
    let plain = unslow_engine::Server::start(&engine("redis-7.0"), &Default::default()).unwrap();
    for other in [replica.connect().unwrap(), plain.connect().unwrap()] {
        let mut other = other;
        // Valkey cannot follow a newer RDB, and Redis 7.0 not Valkey's.
        other.call(&["REPLICAOF", "127.0.0.1", &master.port.to_string()]).unwrap();
        wait_for("the copy", Duration::from_secs(20), || {
            master.say(&["SET", "k", "v"]);
            Ok(other.call(&["GET", "k"])?.text().as_deref() == Some("v"))
        })
        .unwrap();
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
    assert!(stderr(&long).contains("80 are the most"), "{}", stderr(&long));
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
    assert!(stderr(&output).contains("statically linked: it runs over plain TCP"), "{}", stderr(&output));

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
    for word in [&b"nonsense"[..], &[0x6c, 0x73, 0x6e, 0x75, 9, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let path = meeting.0.path().join(format!("{port}.999999"));
        let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET);s.bind(sys.argv[1]);s.listen()\nprint('up',flush=True)\nall=[]\nwhile 1:\n    c,_=s.accept();all.append(c);c.send(bytes.fromhex(sys.argv[2]))";
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
        as_nobody(&binary)
            .args(arguments)
            .env("UNSLOW_BYPASS_DIR", meeting.0.path())
            .env("UNSLOW_CACHE", meeting.0.path().join("cache-of-nobody"))
            .env("LD_LIBRARY_PATH", dir.path())
            .output()
            .unwrap()
    };
    let cli = cli.display().to_string();
    let output = as_nobody(&["bypass", "--client", "--", &cli, "-p", &port, "ping"]);
    assert_eq!(stdout(&output), "PONG\n", "{}", stderr(&output));
    assert!(stderr(&output).contains("refuses this user") || stderr(&output).is_empty(), "{}", stderr(&output));
    let listed = as_nobody(&["bypass", "ls"]);
    assert!(stdout(&listed).contains("does not answer this user"), "{} {}", stdout(&listed), stderr(&listed));
    let listed = &meeting.listed()[0];
    assert_eq!(listed["problem"], Json::Null);
}

/// Packets the loopback device has carried.
fn loopback_packets() -> u64 {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    let line = text.lines().find(|l| l.trim_start().starts_with("lo:")).unwrap();
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// `--sockmap` for a port, at work. None on a kernel without it, which says so.
fn sockmap(port: u16) -> Option<Running> {
    let args = ["bypass", "--sockmap", "--port", &port.to_string()];
    let mut attached = Running(command(&args).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = std::io::BufReader::new(attached.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    if line.contains("the kernel does not take") {
        println!("{line}");
        return None;
    }
    assert!(line.contains("bypass TCP from now on"), "{line}");
    attached.0.stderr = Some(said.into_inner());
    Some(attached)
}

#[test]
fn sockets_hand_their_bytes_over_below_tcp() {
    let server = unslow_engine::Server::start(&engine("redis-7.0"), &Default::default()).unwrap();
    let (host, port) = server.address().rsplit_once(':').map(|(h, p)| (h.to_string(), p.to_string())).unwrap();
    let host = host.as_str();
    let benchmark = engine("redis-7.0").server.with_file_name("redis-benchmark");
    let packets = |host: &str, n: &str| {
        let before = loopback_packets();
        let ended = Command::new("timeout")
            .envs(engine("redis-7.0").libraries.map(|dir| ("LD_LIBRARY_PATH", dir)))
            .arg("60")
            .arg(&benchmark)
            .args(["-h", host, "-p", &port, "-t", "get", "-c", "5", "-q", "-n", n])
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", stderr(&ended));
        loopback_packets() - before
    };
    let mut old = server.connect().unwrap();
    let plain = packets(host, "20000");
    assert!(plain > 20_000, "{plain} packets");
    let Some(mut attached) = sockmap(port.parse().unwrap()) else { return };
    let handed = packets(host, "20000");
    assert!(handed < plain / 10, "{handed} packets instead of {plain}");
    // Over IPv6.
    assert!(std::net::TcpListener::bind("[::1]:0").is_ok(), "this machine has no IPv6");
    let bound = server.connect().unwrap().call(&["CONFIG", "SET", "bind", &format!("{host} ::1")]).unwrap();
    assert_eq!(bound.text().as_deref(), Some("OK"));
    let handed = packets("::1", "20000");
    assert!(handed < plain / 10, "{handed} packets instead of {plain} over IPv6");
    // Whoever was there before goes on over TCP, and large values go both ways.
    let mut new = server.connect().unwrap();
    for client in [&mut old, &mut new] {
        let value = "0123456789".repeat(3_000_000);
        client.call(&["SET", "large", &value]).unwrap();
        assert!(client.call(&["GET", "large"]).unwrap().text().unwrap() == value);
    }
    attached.signal(libc::SIGTERM);
    assert_eq!(attached.0.wait().unwrap().code(), Some(0));
    for client in [&mut old, &mut new] {
        assert_eq!(client.call(&["PING"]).unwrap().text().unwrap(), "PONG", "after the end");
    }
    assert!(packets(host, "2000") > 2000, "detached");
    // Somebody who may not.
    let (_dir, binary) = for_everybody();
    let refused = as_nobody(&binary).args(["bypass", "--sockmap"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("needs root"), "{}", stderr(&refused));
}

#[test]
fn a_server_that_sees_ipv4_clients_as_ipv6_is_handed_their_bytes() {
    let (port, script) = (
        free_port("127.0.0.1").unwrap(),
        "import socket,sys\nl=socket.create_server(('::',int(sys.argv[1])),family=socket.AF_INET6,dualstack_ipv6=True)\nc=socket.create_connection(('127.0.0.1',int(sys.argv[1])),5); s,peer=l.accept()\nassert peer[0]=='::ffff:127.0.0.1',peer\nfor n in range(5000):\n    c.sendall(b'q%d'%n); assert s.recv(99)==b'q%d'%n; s.sendall(b'a%d'%n); assert c.recv(99)==b'a%d'%n",
    );
    let packets = || {
        let before = loopback_packets();
        let ended = Command::new("timeout").args(["60", "python3", "-c", script, &port.to_string()]).output().unwrap();
        assert!(ended.status.success(), "{}", stderr(&ended));
        loopback_packets() - before
    };
    let plain = packets();
    let Some(_attached) = sockmap(port) else { return };
    let handed = packets();
    assert!(handed < plain / 10, "{handed} packets instead of {plain}");
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
    wait_for("memcached", Duration::from_secs(20), || Ok(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()))
        .unwrap();
    let script = "import socket,sys\nss=[socket.create_connection(('127.0.0.1',int(sys.argv[1])),5) for _ in range(40)]\nfor n in range(50):\n    for i,s in enumerate(ss):\n        v=('v%d.%d'%(i,n)).encode(); s.sendall(b'set k%d 0 0 %d\\r\\n%s\\r\\n'%(i,len(v),v)); assert s.recv(100)==b'STORED\\r\\n'\n        s.sendall(b'get k%d\\r\\n'%i); got=b''\n        while not got.endswith(b'END\\r\\n'): got+=s.recv(4096)\n        assert v in got,got\nprint('good',flush=True)\nsys.stdin.read()";
    assert_eq!(meeting.carried_while(script, port), 40);
}

/// Threads that read and write connections for the main one: every value comes back as it was.
const WRITES_AND_READS: &str = r#"
import os, socket, sys, threading

def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

def work(i):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
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
fn servers_with_io_threads_are_carried() {
    for (name, reads) in [("valkey-9.1", &[][..]), ("redis-7.0", &["--io-threads-do-reads", "yes"])] {
        let meeting = Meeting::new();
        let server = meeting.server(name, &[&["--io-threads", "3"], reads].concat());
        assert_eq!(meeting.carried_while(WRITES_AND_READS, server.port), 8, "{name}");
    }
}

#[test]
fn rings_lie_in_huge_pages_where_they_are_asked_for() {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    struct Before(String);
    impl Drop for Before {
        fn drop(&mut self) {
            std::fs::write(SETTING, &self.0).unwrap();
        }
    }
    let meeting = Meeting::new();
    let launched = || {
        let output = meeting.unslow(&["bypass", "--huge-pages", "--", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).lines().find(|l| l.contains("--huge-pages")).map(String::from)
    };
    let Ok(text) = std::fs::read_to_string(SETTING) else {
        assert!(launched().unwrap().contains("this kernel has none"));
        return;
    };
    let chosen = text.split(['[', ']']).nth(1).unwrap().to_string();
    let _before = Before(chosen);
    std::fs::write(SETTING, "never").unwrap();
    assert!(launched().unwrap().contains("as root: echo advise"));
    std::fs::write(SETTING, "advise").unwrap();
    assert_eq!(launched(), None);
    let bytes = |flag: &[&str]| {
        let program = engine("valkey-9.1").server.display().to_string();
        let port = free_port("127.0.0.1").unwrap();
        let port_text = port.to_string();
        let words = [&["bypass"], flag, &["--", &program, "--port", &port_text, "--save", ""]].concat();
        let server = Running(meeting.unslow(&words).stdout(Stdio::null()).spawn().unwrap());
        wait_for("it to answer", Duration::from_secs(20), || {
            Ok(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
        })
        .unwrap();
        assert_eq!(meeting.carried_while(WRITES_AND_READS, port), 8);
        let maps = std::fs::read_to_string(format!("/proc/{}/smaps", server.0.id())).unwrap();
        let rings = maps.split("memfd:unslow-bypass-rings").nth(1).expect("its rings");
        let line = rings.lines().find(|l| l.starts_with("ShmemPmdMapped:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
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
    let script = "import socket,ssl,sys\nc=ssl.create_default_context(cafile='CA')\nss=[c.wrap_socket(socket.create_connection(('127.0.0.1',int(sys.argv[1])),5),server_hostname='localhost') for _ in range(5)]\nv=b'0123456789'*300000\nfor s in ss:\n    s.sendall(b'*3\\r\\n$3\\r\\nSET\\r\\n$1\\r\\nk\\r\\n$%d\\r\\n%s\\r\\n'%(len(v),v)); assert s.recv(100)==b'+OK\\r\\n'\n    s.sendall(b'GET k\\r\\n'); got=b''\n    while len(got)<len(v)+12: got+=s.recv(65536)\n    assert v in got\nprint('good',flush=True)\nsys.stdin.read()";
    assert_eq!(meeting.carried_while(&script.replace("CA", &ca), port), 5);
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
        "daemon off; worker_processes 2; user nobody nogroup; pid {at}/pid; error_log {at}/err; events {{ worker_connections 100; }}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; root {at}; location / {{ return 200 hello; }} location /large {{ sendfile on; }} }} }}"
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let (prefix, file) = (at.to_string(), file.display().to_string());
    let mut nginx = meeting.unslow(&["bypass", "--", "nginx", "-p", &prefix, "-c", &file]);
    let nginx = nginx.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0).spawn().unwrap();
    let mut nginx = Family(nginx);
    wait_for("nginx", Duration::from_secs(20), || Ok(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()))
        .unwrap();
    let script = "import http.client,sys\ncs=[http.client.HTTPConnection('127.0.0.1',int(sys.argv[1]),timeout=20) for _ in range(8)]\nfor c in cs:\n    for _ in range(20):\n        c.request('GET','/'); assert c.getresponse().read()==b'hello'\n    c.request('GET','/large'); assert c.getresponse().read()==b'0123456789'*500000\nprint('good',flush=True)\nsys.stdin.read()";
    assert_eq!(meeting.carried_while(script, port), 8);
    let listed = meeting.listed();
    assert!(!listed.is_empty() && listed.iter().all(|s| s["pid"] != nginx.0.id()), "workers serve, not the master");
    kill(nginx.0.id() as i32, libc::SIGTERM);
    assert_eq!(nginx.0.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    std::io::Read::read_to_string(nginx.0.stderr.as_mut().unwrap(), &mut said).unwrap();
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
    let library = redis_py().display().to_string();
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &["--maxclients", "10", "--enable-debug-command", "yes"]);
    let (script, port) = (here("bypass/limits.py"), server.port.to_string());
    let mut command = meeting.unslow(&["bypass", "--client", "--", "timeout", "100", "python3", &script, &port]);
    let output = command.env("PYTHONPATH", &library).output().unwrap();
    assert_eq!(stdout(&output), "all good\n", "{}", stderr(&output));
}
