//! The lab's commands as a person types them, and what is left afterwards: nothing.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Running, command, engine, ids, stderr, stdout};
use serde_json::Value;
use unslow_testkit::{skip, until};

/// A place for labs of one test's own; whatever a failed test left is taken down at the end.
struct Labs {
    dir: tempfile::TempDir,
}

impl Labs {
    fn new() -> Labs {
        Labs { dir: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("labs")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = common::command(&[&["lab"], arguments].concat());
        command.env("UNSLOW_LABS", self.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// Runs a verb that must do its work.
    fn done(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Runs a verb that must refuse, saying this.
    fn refused(&self, arguments: &[&str], said: &str) {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stdout(&output));
        let text = stderr(&output);
        assert!(text.contains(said), "{arguments:?} says {text:?}, {said:?} was expected");
        assert!(!text.contains("panicked"), "{text}");
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.done(&[arguments, &["--format", "json"]].concat())).expect("JSON")
    }

    /// Nothing of any lab is left: no directory, no process, no device, no cgroup.
    fn assert_nothing(&self, pids: &[u64], lab: &str) {
        let left: Vec<_> = std::fs::read_dir(self.path()).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        // By the mark that every process of a lab carries, and by the user's own programs inside.
        let mark = format!("UNSLOW_LAB={}", self.path().join(lab).display());
        let marked = |entry: &std::fs::DirEntry| {
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == mark.as_bytes())
        };
        // Killed is not yet dead, on a busy machine.
        until(&format!("every process of {lab} to end"), || {
            let mut all = std::fs::read_dir("/proc").expect("there").flatten();
            !all.any(|entry| marked(&entry)) && pids.iter().all(|pid| dead(*pid))
        });
        for controller in ["cpu", "memory", ""] {
            let left = std::fs::read_dir(Path::new("/sys/fs/cgroup").join(controller)).into_iter().flatten().flatten();
            let left: Vec<_> =
                left.filter(|e| e.file_name().to_string_lossy().starts_with(&format!("unslow-{lab}-"))).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

impl Drop for Labs {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--all", "--force"]);
    }
}

fn pids(lab: &Value) -> Vec<u64> {
    let servers = lab["servers"].as_array().expect("servers").iter();
    servers.map(|s| s["pid"].as_u64().expect("a pid")).chain(lab["pid"].as_u64()).collect()
}

/// Reaped or not, a dead process holds nothing.
fn dead(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().unwrap_or_default().chars().next();
    matches!(state, None | Some('Z' | 'X'))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

fn redis_cli() -> String {
    let cli = engine("redis-6.2").cli.expect("it brings one");
    cli.display().to_string()
}

/// The story of the README: up, look, break, diagnose, heal, down.
#[test]
fn a_lab_outlives_its_command_is_diagnosed_and_leaves_nothing() {
    let labs = Labs::new();
    let up = labs.json(&["up", "--name", "story"]);
    let schema =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schema/lab.json")).expect("there");
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).expect("JSON")).expect("it is a schema");
    let errors: Vec<String> = schema.iter_errors(&up).map(|e| e.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(up["schema"], "unslow.lab/1");
    assert_eq!(up["servers"].as_array().map(Vec::len), Some(6));
    let pids = pids(&up);
    assert!(pids.iter().all(|p| Path::new(&format!("/proc/{p}")).exists()), "it lives on");

    let table = labs.done(&["ls", "story"]);
    for word in ["zone-a-host-1", "node-6", "replica of node-", "198.18.", "running"] {
        assert!(table.contains(word), "{word} is missing in:\n{table}");
    }
    let pong = labs.done(&["exec", "zone-b-host-1", "--", &redis_cli(), "-h", "node-1", "ping"]);
    assert_eq!(pong.trim(), "PONG");
    // Its environment, arguments and exit status are its own.
    let output = labs.run(&["exec", "zone-b-client-1", "--", "sh", "-c", "echo $UNSLOW_LAB_HOST; exit 7"]);
    assert_eq!((stdout(&output).trim(), output.status.code()), ("zone-b-client-1", Some(7)));

    labs.done(&["fault", "hang", "node-2"]);
    let listed = labs.json(&["ls"]);
    let stopped = &listed["labs"][0]["servers"][1];
    assert_eq!((stopped["name"].as_str(), stopped["state"].as_str()), (Some("node-2"), Some("stopped")));
    let binary = env!("CARGO_BIN_EXE_unslow");
    let url = up["url"].as_str().expect("a url");
    let diagnose = ["exec", "zone-a-client-1", "--", binary, "doctor", url, "--window", "1s", "--timeout", "5"];
    let diagnose = [&diagnose[..], &["--format", "json", "-q"]].concat();
    let report: Value = serde_json::from_slice(&labs.run(&diagnose).stdout).expect("a report");
    // Beside it stands what a busy machine does to a deployment.
    let named = report["findings"].as_array().and_then(|all| all.iter().find(|f| f["id"] == "node_hangs"));
    assert!(named.is_some_and(|f| f["severity"] == "critical"), "{:?}, of which {named:?}", ids(&report));
    let healed = labs.json(&["heal"]);
    assert_eq!(healed["healed"][0]["name"], "hang");
    let again: Value = serde_json::from_slice(&labs.run(&diagnose).stdout).expect("a report");
    assert!(!ids(&again).contains(&"node_hangs".to_string()), "{:?}", ids(&again));

    assert!(labs.done(&["logs", "node-1", "-n", "3"]).lines().count() <= 3);
    assert!(labs.done(&["logs", "node-1", "-n", "500"]).contains("Cluster"), "the server's own log");
    // Another test's lab may take the name as soon as it is free, but not the number.
    let device = up["door"][0].as_str().map(|d| format!("/sys/class/net/{d}/ifindex"));
    let number = |file: &String| std::fs::read_to_string(file).ok();
    let before = device.as_ref().and_then(number);
    assert!(device.as_ref().is_none_or(|d| Path::new(d).exists()));
    let net = up["hosts"][0]["doors"][0].as_str().expect("a namespace").to_string();
    let namespace = std::fs::read_link(&net).expect("held");
    labs.done(&["down", "story"]);
    labs.assert_nothing(&pids, "story");
    assert!(before.is_none() || device.as_ref().and_then(number) != before, "the door is left");
    let holds = |e: &std::fs::DirEntry| std::fs::read_link(e.path().join("ns/net")).is_ok_and(|n| n == namespace);
    until("its namespace to go", || !std::fs::read_dir("/proc").expect("there").flatten().any(|e| holds(&e)));
}

#[test]
fn a_fault_heals_by_itself_after_its_time() {
    let labs = Labs::new();
    labs.done(&["up", "--name", "timed", "--kind", "standalone", "--zones", "1"]);
    let begun = Instant::now();
    // Long enough to be seen at work.
    labs.done(&["fault", "hang", "--for", "15s"]);
    let during = &labs.json(&["ls"])["labs"][0];
    assert_eq!(during["servers"][0]["state"], "stopped");
    assert!(during["faults"][0]["left_ms"].as_u64().is_some_and(|ms| ms <= 15_000), "{}", during["faults"]);
    until("the fault to be healed", || {
        let lab = &labs.json(&["ls"])["labs"][0];
        lab["faults"].as_array().is_some_and(Vec::is_empty) && lab["servers"][0]["state"] == "running"
    });
    assert!(begun.elapsed() >= Duration::from_secs(15), "healed before its time");
}

#[test]
fn a_killed_holder_leaves_nothing_that_down_all_does_not_remove() {
    let labs = Labs::new();
    let up = labs.json(&["up", "--name", "killed", "--kind", "standalone", "--zones", "1"]);
    if is_root() {
        labs.done(&["fault", "cpu_throttle", "node-1", "50%"]);
    }
    let own = labs.command(&["exec", "zone-a-client-1", "--", "sleep", "300"]).spawn().expect("started");
    let mut own = Running(own);
    let mut pids = pids(&up);
    pids.push(own.0.id().into());
    until("the program of the user's own to be inside", || {
        std::fs::read_to_string(format!("/proc/{}/comm", own.0.id())).unwrap_or_default().trim() == "sleep"
    });
    assert!(Command::new("kill").args(["-9", &up["pid"].to_string()]).status().expect("kill runs").success());
    until("the servers to end with it", || dead(pids[0]));
    until("ls to say so", || labs.done(&["ls"]).contains("was killed"));
    labs.refused(&["fault", "hang", "--lab", "killed"], "no longer exists; unslow lab down killed");
    labs.done(&["down", "--all"]);
    assert!(own.ended().is_none(), "ended by a signal");
    labs.assert_nothing(&pids, "killed");
    // And another of the same name can be had at once; so it can after a kill without a down.
    let up = labs.json(&["up", "--name", "killed", "--kind", "standalone", "--zones", "1"]);
    assert!(Command::new("kill").args(["-9", &up["pid"].to_string()]).status().expect("kill runs").success());
    until("its holder to end", || labs.done(&["ls"]).contains("was killed"));
    labs.done(&["up", "--name", "killed", "--kind", "standalone", "--zones", "1"]);
    labs.done(&["down"]);
    labs.assert_nothing(&[], "killed");
    if !is_root() {
        skip("all but the cgroup that a killed holder leaves was shown: it takes root to make one");
    }
}

#[test]
fn ctrl_c_in_the_middle_of_up_undoes_everything() {
    let labs = Labs::new();
    for moment in ["wiring", "starting", "waiting for every node", "waiting for cluster_state"] {
        let mut command = labs.command(&["up", "--name", "stopped", "--masters", "6"]);
        let up = command.stderr(Stdio::piped()).stdout(Stdio::null()).process_group(0).spawn().expect("started");
        let mut up = Running(up);
        let mut lines = BufReader::new(up.0.stderr.take().expect("piped")).lines();
        assert!(lines.any(|l| l.is_ok_and(|l| l.contains(moment))), "it says {moment}");
        up.signal(libc::SIGINT);
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        assert_eq!(up.ended(), Some(2), "{rest:?}");
        assert!(rest.iter().any(|l| l.contains("everything it had started was stopped")), "{moment}: {rest:?}");
        labs.assert_nothing(&[], "stopped");
    }
}

#[test]
fn bad_orders_get_a_clear_error_and_leave_nothing() {
    let labs = Labs::new();
    let file = |text: &str| {
        let path = labs.dir.path().join("lab.toml");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let zone = "[[zone]]\nname = \"zone-a\"\n";
    labs.refused(&["up", "/no/such/file.toml"], "No such file");
    labs.refused(&["up", &file("[[zone]]\nname = \"zone-a\"\nrtt = \"1 mile\"\n")], "line 3, column 7");
    labs.refused(&["up", &file(&format!("{zone}[[link]]\nfrom = \"zone-a\"\nto = \"zone-x\"\n"))], "line 5, column 6");
    labs.refused(&["up", &file(&format!("{zone}[deployment]\nmaster = 3\n"))], "master");
    labs.refused(&["up", "--server", "redis-9"], "there are valkey-9.1");
    labs.refused(&["up", "--server", "/bin/ls"], "expected redis-server or valkey-server");
    labs.refused(&["up", "--name", "Über"], "a-z, 0-9");
    labs.refused(&["up", "--zones", "0"], "1 to 15");
    labs.refused(&["up", "--rtt", "quick"], "invalid duration \"quick\"");
    // A server that dies at start: its own words.
    let dies = file(&format!("{zone}[deployment]\nkind = \"standalone\"\nsettings = {{ no-such-setting = 1 }}\n"));
    labs.refused(&["up", &dies], "node-1 exited at startup");
    labs.refused(&["up", &dies], "no-such-setting");
    labs.assert_nothing(&[], "default");
    // A disk that is full from the start.
    if is_root() {
        let full = file(&format!(
            "{zone}[deployment]\nkind = \"standalone\"\n[[host]]\nname = \"zone-a-host-1\"\ndisk = \"4kb\"\n"
        ));
        labs.refused(&["up", &full], "No space left on device");
        labs.assert_nothing(&[], "default");
    }
    labs.refused(&["ls", "nothing"], "there is no lab");
    labs.refused(&["down"], "there is no lab; try: unslow lab up");
    labs.refused(&["fault", "hang"], "there is no lab");
    labs.refused(&["hold"], "try: unslow lab up");
    // A directory of somebody's in the place for labs is no lab, whatever its name.
    std::fs::create_dir_all(labs.path().join("photos")).expect("made");
    assert!(!labs.done(&["ls"]).contains("photos"));
    labs.done(&["down", "--all"]);
    labs.refused(&["up", "--name", "photos", "--kind", "none"], "already");
    assert!(labs.path().join("photos").exists(), "it is still there");
    std::fs::remove_dir(labs.path().join("photos")).expect("removed");
    // Directories that cannot be had.
    let output = labs.command(&["up"]).env("UNSLOW_LABS", "/proc/labs").output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("set UNSLOW_LABS to another directory"), "{}", stderr(&output));

    labs.done(&["up", "--name", "one", "--kind", "standalone", "--zones", "1"]);
    labs.refused(&["up", "--name", "one", "--kind", "none"], "there is a lab named \"one\" already");
    labs.refused(&["fault", "hagn"], "did you mean \"hang\"");
    labs.refused(&["fault", "hang", "noed-1"], "did you mean \"node-1\"");
    labs.refused(&["heal", "7"], "no fault \"7\" is active");
    labs.done(&["fault", "clock_jump", "node-1", "-60s", "--for", "60s"]);
    labs.refused(&["heal", "clock_jump", "typo"], "no fault \"typo\" is active");
    assert_eq!(labs.json(&["ls", "one"])["labs"][0]["faults"].as_array().map(Vec::len), Some(1), "nothing was healed");
    labs.done(&["heal", "clock_jump"]);
    labs.refused(&["exec", "zone-a-hots-1", "--", "true"], "did you mean \"zone-a-host-1\"");
    labs.refused(&["exec", "zone-a-host-1", "--", "no-such-program"], "no-such-program");
    labs.refused(&["logs", "node-2"], "did you mean \"node-1\"");
    // A second lab beside the first has other addresses, and then a name must be given.
    let two = labs.json(&["up", "--name", "two", "--kind", "none", "--zones", "1"]);
    let one = labs.json(&["ls", "one"]);
    assert_ne!(two["hosts"][0]["ip"], one["labs"][0]["hosts"][0]["ip"]);
    labs.refused(&["heal"], "say which with --lab: one, two");
    labs.done(&["down", "--all"]);
    labs.assert_nothing(&[], "one");
    if !is_root() {
        skip("all but a disk that is full from the start was shown: it takes root to limit one");
    }
}

#[test]
fn a_flat_lab_needs_no_rights_and_says_what_it_lacks() {
    let labs = Labs::new();
    let up = labs.json(&["up", "--flat", "--name", "flat"]);
    assert_eq!(up["flat"], true);
    assert!(up["missing"].to_string().contains("round trips"), "{}", up["missing"]);
    labs.refused(&["fault", "delay", "zone-a:zone-b", "5ms"], "this lab is flat");
    labs.done(&["fault", "kill", "node-5"]);
    assert_eq!(labs.json(&["ls"])["labs"][0]["servers"][4]["state"], "dead");
    labs.done(&["heal"]);
    assert_eq!(labs.json(&["ls"])["labs"][0]["servers"][4]["state"], "running");
    let pids = pids(&labs.json(&["ls"])["labs"][0]);
    labs.done(&["down"]);
    labs.assert_nothing(&pids, "flat");
}

#[test]
fn who_may_not_make_namespaces_is_told_what_to_do() {
    let labs = Labs::new();
    // In a user namespace without a mapping nobody may make another one, nor a network namespace.
    let mut command = Command::new("unshare");
    command.args(["--user", env!("CARGO_BIN_EXE_unslow"), "lab", "up"]).env("UNSLOW_LABS", labs.path());
    if is_root() {
        // Root of the outside keeps its rights until it is somebody else.
        command = Command::new("setpriv");
        let dir = tempfile::tempdir_in("/tmp").expect("a directory");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("set");
        let binary = dir.path().join("unslow");
        std::fs::copy(env!("CARGO_BIN_EXE_unslow"), &binary).expect("copied");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "unshare", "--user"]);
        command.arg(&binary).args(["lab", "up", "--kind", "none"]).current_dir("/");
        let output = command.output().expect("setpriv runs");
        told(&output);
        return;
    }
    told(&command.output().expect("unshare runs"));
}

fn told(output: &Output) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("run it as root, or with --flat"), "{text}");
}

/// As a user who is not root: in a user namespace, with zones and wires all the same.
#[test]
fn an_ordinary_user_gets_zones_in_a_user_namespace() {
    if !is_root() {
        skip("nobody is root here: all the other tests of labs are this one");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let open = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("set");
    open(dir.path());
    // Neither the build's nor the cache's directories need be open to others.
    let (binary, server) = (dir.path().join("unslow"), dir.path().join("valkey-server"));
    std::fs::copy(env!("CARGO_BIN_EXE_unslow"), &binary).expect("copied");
    std::fs::copy(&engine("valkey-9.1").server, &server).expect("copied");
    open(&binary);
    open(&server);
    let run = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(&binary)
            .arg("lab")
            .args(arguments);
        command.env("UNSLOW_LABS", dir.path().join("labs")).env("UNSLOW_CACHE", dir.path().join("cache"));
        command.current_dir("/").output().expect("setpriv runs")
    };
    struct Down<'a>(&'a dyn Fn(&[&str]) -> Output);
    impl Drop for Down<'_> {
        fn drop(&mut self) {
            let _ = self.0(&["down", "--all", "--force"]);
        }
    }
    let _down = Down(&run);
    let up = run(&["up", "--name", "mine", "--server", server.to_str().expect("text"), "--format", "json"]);
    if stderr(&up).contains("neither network namespaces nor user namespaces are allowed") {
        skip("this kernel allows ordinary users no user namespaces; the message for it was seen");
        return;
    }
    assert!(up.status.success(), "{}", stderr(&up));
    let lab: Value = serde_json::from_slice(&up.stdout).expect("JSON");
    assert_eq!(lab["door"], Value::Null);
    let url = lab["url"].as_str().expect("a url");
    let text = binary.display().to_string();
    let report =
        run(&["exec", "zone-b-client-1", "--", &text, "doctor", url, "--window", "1s", "-q", "--format", "json"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&report)));
    assert_eq!(report["deployment"]["nodes"].as_array().map(Vec::len), Some(6));
    assert!(stderr(&run(&["fault", "cpu_throttle", "node-1"])).contains("it takes root"));
    assert!(run(&["fault", "partition", "zone-a"]).status.success());
    assert!(run(&["heal"]).status.success());
    assert!(run(&["down"]).status.success());
    assert!(std::fs::read_dir(dir.path().join("labs")).expect("there").next().is_none());
}

/// A cache with a part of each kind. What it holds is small: nothing of it is run.
fn cache() -> (tempfile::TempDir, impl Fn(&[&str]) -> std::process::Output) {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, [7; 5000]).unwrap();
    };
    for path in [
        "engines/valkey-9.1/bin/server",
        "engines/.valkey-9.1.lock",
        "engines/.install-x/root/half",
        "engines/someone/else",
        "drivers/python/made",
        "evidence/kill/1/history.jsonl",
        "libunslow_preload-1.so",
    ] {
        write(path);
    }
    let path = dir.path().to_path_buf();
    let run = move |words: &[&str]| command(words).env("UNSLOW_CACHE", &path).output().unwrap();
    (dir, run)
}

#[test]
fn clean_removes_what_unslow_has_left_and_nothing_else() {
    let (dir, run) = cache();
    let library = dir.path().join("libunslow_preload-1.so");
    let mut user = std::process::Command::new("sleep");
    let user = Running(user.arg("600").env("PRELOADED", &library).spawn().unwrap());
    // A drill that runs now has its history open, and nothing else shows that it uses the place.
    let history = std::fs::File::open(dir.path().join("evidence/kill/1/history.jsonl")).unwrap();
    let drill = Running(std::process::Command::new("sleep").arg("600").stdin(history).spawn().unwrap());
    let outcomes = |words: &[&str]| -> Vec<(String, String)> {
        let output = run(&[words, &["--format", "json"]].concat());
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |row: &serde_json::Value, field: &str| row[field].as_str().unwrap().to_string();
        document["holdings"].as_array().unwrap().iter().map(|row| (text(row, "what"), text(row, "outcome"))).collect()
    };
    let told = |rows: &[(&str, &str)]| rows.iter().map(|(what, how)| (what.to_string(), how.to_string())).collect();
    let expected = |how| -> Vec<(String, String)> {
        told(&[
            ("client libraries", how),
            ("broken installation", how),
            ("engine", "kept"),
            ("evidence of drills", how),
            ("preloaded library", "in_use"),
        ])
    };
    let during = outcomes(&["clean", "--dry-run"]);
    assert!(during.contains(&("evidence of drills".into(), "in_use".into())), "{during:?}");
    drop(drill);
    assert_eq!(outcomes(&["clean", "--dry-run"]), expected("would_be_removed"));
    assert!(dir.path().join("evidence/kill").exists());
    assert_eq!(outcomes(&["clean"]), expected("removed"));
    assert!(!dir.path().join("evidence").exists() && dir.path().join("engines/valkey-9.1/bin/server").exists());
    assert!(library.exists());
    drop(user);
    let rest = told(&[("engine", "removed"), ("preloaded library", "removed")]);
    assert_eq!(outcomes(&["clean", "--engines"]), rest as Vec<(String, String)>);
    assert!(dir.path().join("engines/someone/else").exists(), "no engine of the catalogue");
    assert!(stdout(&run(&["clean"])).starts_with("nothing in "));
}

#[test]
fn a_cache_that_holds_what_is_not_unslows_is_left_alone() {
    let (dir, run) = cache();
    std::fs::write(dir.path().join("thesis.txt"), "years").unwrap();
    for words in [&["clean"][..], &["clean", "--engines"], &["engine", "rm", "valkey-9.1"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("thesis.txt"), "{}", stderr(&output));
    }
    assert!(dir.path().join("evidence/kill").exists() && dir.path().join("engines/valkey-9.1").exists());
}

#[test]
fn an_engine_is_removed_by_its_name() {
    let (dir, run) = cache();
    let unknown = run(&["engine", "rm", "valkey-9.1", "valkey-12"]);
    assert!(unknown.status.code() == Some(2) && stderr(&unknown).contains("valkey-12 is not installed"));
    assert!(dir.path().join("engines/valkey-9.1").exists(), "nothing before all names are known");
    assert_eq!(run(&["engine", "rm", "valkey-9.1"]).status.code(), Some(0));
    assert!(!dir.path().join("engines/valkey-9.1").exists());
}
