//! Real clients and servers whose connections are carried: client libraries, TLS, servers with threads and with
//! worker processes, huge pages, large values.

use std::os::unix::process::CommandExt;

use unslow_testkit::clients::python_library;

use super::*;

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
    let mut child = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", script, &port]);
    let mut child = Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "b'$1\\r\\nv\\r\\n'\n");
    assert_eq!(meeting.carried(), 1, "connections that are carried");
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
fn large_values_sleeping_servers_and_full_ones_look_as_over_tcp() {
    let library = python_library().display().to_string();
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &["--maxclients", "10", "--enable-debug-command", "yes"]);
    let (script, port) = (here("bypass/limits.py"), server.port.to_string());
    let mut command = meeting.as_delivered(&["bypass", "--client", "--", "timeout", LIMIT, "python3", &script, &port]);
    let output = command.env("PYTHONPATH", &library).output().unwrap();
    assert_eq!(stdout(&output), "all good\n", "{}", stderr(&output));
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
pub struct Family(pub std::process::Child);

impl Drop for Family {
    fn drop(&mut self) {
        kill(-(self.0.id() as i32), libc::SIGKILL);
        let _ = self.0.wait();
    }
}
