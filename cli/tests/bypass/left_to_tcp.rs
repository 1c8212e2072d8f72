//! What is left to TCP: links between servers, programs and servers that cannot be carried, users who are not allowed.

use unslow_testkit::wait::until_ok;

use super::*;

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

/// The process that was started ends at once, and has carried nothing; its child does.
#[test]
fn a_server_that_goes_into_the_background_is_carried_and_nothing_else_is_said() {
    let meeting = Meeting::new();
    let dir = tempfile::tempdir().unwrap();
    let port = free_port("127.0.0.1").unwrap();
    let (program, port_text) = (engine("redis-7.0").server.display().to_string(), port.to_string());
    let dir_text = dir.path().display().to_string();
    let more = ["--port", &port_text, "--save", "", "--dir", &dir_text, "--daemonize", "yes"];
    let output = meeting.unslow(&[&["bypass", "--", &program], &more[..]].concat()).output().unwrap();
    let target = Target::parse(&format!("127.0.0.1:{port}")).unwrap();
    let mut connection = None;
    until("the server to answer", || {
        connection = Connection::open(&target, &options(2)).ok();
        connection.as_mut().is_some_and(|c| c.call(&["PING"]).is_ok())
    });
    let _ = connection.expect("it answered").call(&["SHUTDOWN", "NOSAVE"]);
    assert!(!stderr(&output).contains("nothing could be carried"), "{}", stderr(&output));
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
        command.env("UNSLOW_BYPASS_WAIT_MS", PATIENCE_MS);
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
    let carried = while_it_waits(&mut stays(&port), || meeting.carried());
    assert_eq!(carried, 1, "connections of a user who is allowed");
}
