//! Keys: what it writes is removed, and what others wrote is left alone.

use super::*;

/// Names of the keys in a server's first database.
pub fn names(server: &Server) -> Vec<String> {
    let mut names: Vec<String> =
        server.connect().unwrap().call(&["KEYS", "*"]).unwrap().items().iter().filter_map(|name| name.text()).collect();
    names.sort();
    names
}

/// Writes of every kind: a key, several, those of a script, of a group, of an option.
const RECORDED: &str = "SET a 1\nSET 'b c' 2\nGET d\nMSET {e}1 1 {e}2 2\nSADD g 3 2 1\nSORT g STORE {g}sorted\n\
                        EVAL \"return redis.call('SET', KEYS[2], 1)\" 2 {h}1 {h}2\nXGROUP CREATE i workers $ MKSTREAM\n\
                        XREADGROUP GROUP workers me STREAMS i >\nZADD {j}1 1 a\nZUNIONSTORE {j}2 1 {j}1\n";

/// Of a recording all keys that were written are removed, and nothing is said to be that may not.
fn bench_recorded(server: &Server, path: &Path) {
    let url = server.url();
    let replay = ["--replay", path.to_str().unwrap(), "--connections", "1", "--seconds", "120"];
    let told = |more: &[&str]| {
        let output = command(&[&["bench", &url], &replay[..], more].concat()).args(PATIENT).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stderr(&output)
    };
    let mut c = server.connect().unwrap();
    bench(&url, &[&replay[..], &["--keep-keys"]].concat());
    let written = ["a", "b c", "g", "i", "{e}1", "{e}2", "{g}sorted", "{h}2", "{j}1", "{j}2"];
    assert_eq!(names(server), written);
    c.call(&["FLUSHALL"]).unwrap();
    bench(&url, &replay);
    assert!(names(server).is_empty(), "{:?}", names(server));
    // A script without keys may have written any.
    std::fs::write(path, "EVAL \"return redis.call('SET', 'x', 1)\" 0\nSET y 1\n").unwrap();
    let said = told(&[]);
    assert!(said.contains("keys that eval may have written stay there"), "{said}");
    assert_eq!(names(server), ["x"]);
    // Without COMMAND it is not known where the keys are.
    c.call(&["FLUSHALL"]).unwrap();
    c.call(&["ACL", "SETUSER", "default", "-command"]).unwrap();
    let said = told(&[]);
    assert!(said.contains("keys that eval, set may have written stay there"), "{said}");
    assert_eq!(names(server), ["x", "y"]);
    c.call(&["ACL", "SETUSER", "default", "+command"]).unwrap();
    c.call(&["FLUSHALL"]).unwrap();
    std::fs::write(path, RECORDED).unwrap();
}

#[test]
fn keys_that_it_wrote_are_removed_unless_they_are_to_stay() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let mix = ["--requests", "3000", "--mix", "get=1,set=1,hset=1,lpush=1", "--keys", "50"];
    bench(&url, &mix);
    assert!(names(&server).is_empty(), "{:?}", names(&server));
    bench(&url, &[&mix[..], &["--multi", "3", "--no-preload"]].concat());
    assert!(names(&server).is_empty(), "{:?}", names(&server));
    let tests = unslow(&["bench", &url, "--requests", "300", "-q", "-t", "mset,set,zpopmin", "--keys", "50"]);
    assert!(tests.status.code().is_some_and(|code| code < 2), "{}", stderr(&tests));
    assert!(names(&server).is_empty(), "{:?}", names(&server));
    let script = "EVAL \"redis.call('SET', KEYS[1], 1); return redis.call('SET', KEYS[2], 1)\" 2 one:{key} two:{key}";
    bench(&url, &["--requests", "300", "--command", script, "--keys", "50"]);
    assert!(names(&server).is_empty(), "{:?}", names(&server));
    // Names that follow from the key's number, all of a command; that of a sequence number is not known.
    let own = ["--command", "SET job:{key} x", "--command", "MSET unslow:a:{key} 1 unslow:b:{key} 2"];
    let mut run = command(&[&["bench", &url], &own[..], &["--command", "counted=INCR n:{seq}"]].concat());
    let told = run.args(["--requests", "300", "--keys", "7"]).args(PATIENT).output().unwrap();
    assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
    assert!(stderr(&told).contains("keys that counted may have written stay there"), "{}", stderr(&told));
    let left = names(&server);
    assert!(!left.is_empty() && left.iter().all(|name| name.starts_with("n:")), "{left:?}");
    server.connect().unwrap().call(&["FLUSHALL"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recorded.txt");
    std::fs::write(&path, RECORDED).unwrap();
    bench_recorded(&server, &path);
    bench(&url, &["--requests", "300", "--mix", "set=1", "--keys", "50", "--keep-keys"]);
    let kept = names(&server);
    assert!(!kept.is_empty() && kept.iter().all(|name| name.starts_with("unslow:")), "{kept:?}");
    // These are a benchmark's own keys: the next run starts without a question, and leaves them there.
    bench(&url, &["--requests", "3000", "--mix", "get=1,set=1", "--no-preload"]);
    assert!(kept.iter().all(|name| names(&server).contains(name)), "{:?}", names(&server));

    let cluster = steady("valkey-9.1");
    bench(&cluster.url(), &["--requests", "3000", "--mix", "get=1,set=1"]);
    bench(&cluster.url(), &["--replay", path.to_str().unwrap()]);
    until("replicas to have removed them too", || cluster.nodes.iter().all(|server| names(server).is_empty()));
}

#[test]
fn keys_of_others_are_asked_about_and_never_removed() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let mut c = server.connect().unwrap();
    c.call(&["SET", "users:000000000001", "anna"]).unwrap();
    let load = ["--requests", "300", "--keys", "3", "--mix", "set=1,get=1", "--key-prefix", "users:"];
    fails(&[&["bench", &url], &load[..]].concat(), "holds keys that no benchmark wrote (1 in all)");
    let stats = info(&mut c, "commandstats").unwrap();
    assert_eq!(stats.command_stats()["set"].calls, 1, "no load was sent");
    let mut run = command(&[&["bench", &url, "--yes"], &load[..]].concat());
    let told = run.args(PATIENT).output().unwrap();
    assert_eq!(told.status.code(), Some(0), "{}", stderr(&told));
    assert!(stderr(&told).contains("keys that set may have written stay there"), "{}", stderr(&told));
    assert_eq!(names(&server).len(), 3);
    bench(&url, &["--requests", "300", "--mix", "set=1", "--yes"]);
    assert_eq!(names(&server).len(), 3, "its own are removed, those of others stay");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recorded.txt");
    std::fs::write(&path, "SET users:1 b\nSET unslow:1 b\nGET users:2\n").unwrap();
    let mut run = command(&["bench", &url, "--yes", "--replay", path.to_str().unwrap()]);
    let told = run.args(PATIENT).output().unwrap();
    assert!(stderr(&told).contains("keys that set may have written stay there"), "{}", stderr(&told));
    assert!(names(&server).iter().any(|name| name == "users:1") && names(&server).len() == 4);
    // In another database, and where it may not be asked.
    c.call(&["FLUSHALL"]).unwrap();
    c.call(&["SELECT", "3"]).unwrap();
    c.call(&["SET", "a", "b"]).unwrap();
    fails(&["bench", &url], "--yes");
    c.call(&["FLUSHALL"]).unwrap();
    c.call(&["ACL", "SETUSER", "default", "-dbsize"]).unwrap();
    fails(&["bench", &url], "does not tell whether it holds keys");
}

/// nutcracker closes the connection of a client that sends HELLO, INFO or COMMAND.
#[test]
fn a_proxy_that_answers_no_question_is_measured_without_one() {
    let server = standalone("redis-7.0");
    let dir = tempfile::tempdir().unwrap();
    let (port, stats) = (free_port("127.0.0.1").unwrap(), free_port("127.0.0.1").unwrap());
    let pool = format!(
        "one:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  servers:\n   - \
         {}:1\n",
        server.address()
    );
    let config = dir.path().join("nutcracker.yml");
    std::fs::write(&config, pool).unwrap();
    let mut nutcracker = std::process::Command::new("nutcracker");
    nutcracker.arg("-c").arg(&config).args(["-s", &stats.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let _nutcracker = Running(nutcracker.spawn().expect("nutcracker is installed: make tools"));
    until("nutcracker to listen", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let url = format!("127.0.0.1:{port}");
    fails(&["bench", &url, "--requests", "10"], "try --plain");
    let load = ["--plain", "--requests", "3000", "--seconds", "120", "--keys", "50", "--pipeline", "8"];
    fails(&[&["bench", &url][..], &load].concat(), "--plain does not ask whether");
    fails(&["bench", &url, "--plain", "--read-from", "any"], "--plain cannot find replicas");
    let report = bench(&url, &[&load[..], &["--yes", "--verify", "--mix", "get=1,set=1"]].concat());
    let run = &report["runs"][0];
    assert_eq!((&run["answered"], &run["errors"]), (&3000.into(), &serde_json::json!([])), "{run}");
    assert_eq!(run["wrong_values"], 0, "{run}");
    let mut c = server.connect().unwrap();
    let stats = info(&mut c, "commandstats").unwrap();
    let calls = |name: &str| stats.command_stats().get(name).map_or(0, |s| s.calls);
    assert_eq!(calls("get") + calls("set"), 3050, "the preload's and the run's");
    assert!(names(&server).is_empty(), "{:?}", names(&server));
    // Whose keys are there is not known: what does not begin with unslow: stays.
    let theirs = ["--yes", "--mix", "set=1", "--key-prefix", "users:", "--no-preload"];
    bench(&url, &[&load[..], &theirs].concat());
    let left = names(&server);
    assert!(!left.is_empty() && left.iter().all(|name| name.starts_with("users:")), "{left:?}");
}
