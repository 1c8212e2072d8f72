//! `unslow drill` and `unslow case` as a person runs them, on real servers.

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{Running, browse, command, schema, stderr, stdout, unslow};
use serde_json::Value as Json;
use unslow_engine::{Deployment, ServerSpec, Shape, find, wait_for};

/// Runs a drill into a store of its own; status and document.
fn drill(store: &Path, arguments: &[&str]) -> (Option<i32>, Json) {
    let store = store.display().to_string();
    let output = unslow(&[&["drill"], arguments, &["--store", &store, "--format", "json", "--quiet"]].concat());
    let json: Json = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    let validator = schema("drill");
    assert!(validator.is_valid(&json), "{:?}", validator.iter_errors(&json).next().map(|e| e.to_string()));
    (output.status.code(), json)
}

fn ms(us: &Json) -> f64 {
    us.as_f64().unwrap_or(f64::NAN) / 1000.0
}

#[test]
fn a_failover_is_measured_and_its_evidence_kept() {
    let store = tempfile::tempdir().unwrap();
    let page = store.path().join("drill.html");
    let html = page.display().to_string();
    let arguments = ["cluster_failover", "--fault", "kill", "--variant", "node timeout 2 s", "--html", &html];
    let (status, json) = drill(store.path(), &arguments);
    let run = &json["runs"][0];
    assert_eq!((status, run["verdict"].as_str()), (Some(0), Some("passed")), "{}", run["checks"]);
    let f = &run["figures"];
    // Not before the node timeout, and the clients see what the observer sees.
    let (promoted, window) = (ms(&f["promoted_after_us"]), ms(&f["window_us_max"]));
    assert!(promoted > 1900.0 && window >= promoted - 50.0 && window < promoted + 1000.0, "{promoted} {window}");
    assert!(ms(&f["other_shards_window_us_max"]) < window / 2.0, "other shards go on: {f}");
    assert!(f["writes"]["acknowledged"].as_u64() > Some(1000) && f["writes"]["lost"] == 0, "{}", f["writes"]);
    let folder = Path::new(run["folder"].as_str().unwrap());
    let kept = [
        "drill.toml",
        "history.jsonl",
        "events.jsonl",
        "outcome.json",
        "node-1.log",
        "facts-before.json",
        "facts-after.json",
    ];
    for file in kept {
        assert!(folder.join(file).metadata().is_ok_and(|m| m.len() > 0), "{file}");
    }
    let log = std::fs::read_to_string(folder.join("node-1.log")).unwrap();
    assert!(log.lines().count() > 10, "as the server wrote it: {log}");
    let dom = browse(&page);
    assert!(dom.contains("cluster_failover") && dom.contains("time line of kill"));
}

const SPLIT: &str = r#"
about = "A master is cut off with some of its clients, for as long as it takes."
[sentinel]
down-after-milliseconds = 500
[lab.deployment]
kind = "sentinel"
replicas = 1
[load]
follows = 2
stays = 1
[[fault]]
at = "500ms"
for = "4s"
do = "partition"
who = "zone-a"
[[variant]]
name = "default"
expect = { lost_writes = 0, lost_writes_stays = 0 }
[[variant]]
name = "WAIT 1"
load = { wait = 1 }
expect = { lost_writes = 0, lost_writes_stays = 0 }
"#;

#[test]
fn writes_that_are_really_lost_are_found_and_only_those() {
    let store = tempfile::tempdir().unwrap();
    let file = store.path().join("split.toml");
    std::fs::write(&file, SPLIT).unwrap();
    let (status, json) = drill(store.path(), &[&file.display().to_string()]);
    let (lossy, safe) = (&json["runs"][0], &json["runs"][1]);
    assert_eq!(status, Some(1));
    assert_eq!(lossy["verdict"], "failed", "{}", lossy["checks"]);
    let lost = |run: &Json| run["figures"]["writes_stays"]["lost"].as_u64().unwrap();
    assert!(lost(lossy) > 100, "{}", lossy["figures"]["writes_stays"]);
    assert_eq!((safe["verdict"].as_str(), lost(safe)), (Some("passed"), 0), "{}", safe["checks"]);
    // Two masters at once: registers cannot be linearizable, and the part that shows it is small.
    let registers = lossy["checks"].as_array().unwrap().iter().find(|c| c["name"] == "registers").expect("told");
    let shown = registers["evidence"].as_array().unwrap();
    assert!((3..30).contains(&shown.len()), "{shown:?}");
}

const LOCKS: &str = r#"
about = "Locks while the master is cut off."
[sentinel]
down-after-milliseconds = 500
[lab.deployment]
kind = "sentinel"
replicas = 1
[load]
kind = "locks"
follows = 6
stays = 0
locks = 4
ttl = "2s"
hold = "700ms"
[[fault]]
at = "500ms"
for = "6s"
do = "partition"
who = "zone-a"
[expect]
double_holders = 0
"#;

#[test]
fn two_holders_of_one_lock_are_caught() {
    let store = tempfile::tempdir().unwrap();
    let file = store.path().join("locks.toml");
    std::fs::write(&file, LOCKS).unwrap();
    let (status, json) = drill(store.path(), &[&file.display().to_string()]);
    let run = &json["runs"][0];
    assert_eq!((status, run["verdict"].as_str()), (Some(1), Some("failed")), "{}", run["checks"]);
    assert!(run["figures"]["locks"]["double_holders"].as_u64() > Some(0));
}

/// Processes below `root` in a state of /proc/PID/stat.
fn below(root: u32, state: char) -> Vec<i32> {
    let mut all: Vec<(i32, i32, char)> = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        let pid = head.split(' ').next().and_then(|p| p.parse().ok());
        let mut words = rest.split_whitespace();
        let state = words.next().and_then(|s| s.chars().next());
        if let (Some(pid), Some(state), Some(Ok(parent))) = (pid, state, words.next().map(str::parse)) {
            all.push((pid, parent, state));
        }
    }
    let mut family = vec![root as i32];
    loop {
        let more: Vec<i32> =
            all.iter().filter(|(p, parent, _)| family.contains(parent) && !family.contains(p)).map(|a| a.0).collect();
        if more.is_empty() {
            break;
        }
        family.extend(more);
    }
    all.iter().filter(|(p, _, s)| family.contains(p) && *s == state).map(|a| a.0).collect()
}

fn begin(store: &Path, arguments: &[&str]) -> Running {
    let store = store.display().to_string();
    let all = [&["drill"], arguments, &["--store", &store, "--format", "json"]].concat();
    Running(command(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[test]
fn a_fault_that_did_not_last_makes_the_run_unknown() {
    let store = tempfile::tempdir().unwrap();
    let mut child = begin(store.path(), &["cluster_failover", "--fault", "hang", "--variant", "node timeout 2 s"]);
    let mut stopped = Vec::new();
    wait_for("a server to be stopped", Duration::from_secs(40), || {
        stopped = below(child.0.id(), 'T');
        Ok(!stopped.is_empty())
    })
    .unwrap();
    // Somebody else wakes it up again.
    for pid in stopped {
        // SAFETY: a server of the drill this test started.
        unsafe { libc::kill(pid, libc::SIGCONT) };
    }
    let mut said = String::new();
    std::io::Read::read_to_string(child.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(2));
    let json: Json = serde_json::from_str(&said).unwrap();
    assert_eq!(json["runs"][0]["verdict"], "unknown", "{}", json["runs"][0]["checks"]);
    assert!(said.contains("was not at work"), "{}", json["runs"][0]["checks"]);
}

#[test]
fn an_interrupted_drill_heals_undoes_and_keeps_what_it_saw() {
    let store = tempfile::tempdir().unwrap();
    let mut child = begin(store.path(), &["cluster_failover", "--fault", "hang", "--variant", "node timeout 2 s"]);
    wait_for("a server to be stopped", Duration::from_secs(40), || Ok(!below(child.0.id(), 'T').is_empty())).unwrap();
    let servers: Vec<i32> = "STR".chars().flat_map(|state| below(child.0.id(), state)).collect();
    child.signal(libc::SIGINT);
    let mut said = String::new();
    std::io::Read::read_to_string(child.0.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(2));
    let json: Json = serde_json::from_str(&said).unwrap();
    let run = &json["runs"][0];
    assert!(run["checks"].to_string().contains("interrupted"), "{}", run["checks"]);
    let history = Path::new(run["folder"].as_str().unwrap()).join("history.jsonl");
    assert!(history.metadata().unwrap().len() > 1000);
    wait_for("its servers to be gone", Duration::from_secs(10), || {
        Ok(servers.iter().all(|p| *p == child.0.id() as i32 || !Path::new(&format!("/proc/{p}")).exists()))
    })
    .unwrap();
}

#[test]
fn clients_that_are_being_prepared_end_with_the_drill() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    // A package manager that takes for ever, and starts what it needs.
    let (program, started) = (dir.path().join("python3"), dir.path().join("started"));
    let script = format!("#!/bin/sh\nsleep 1000 &\necho $$ $! > {0}.new; mv {0}.new {0}\nwait\n", started.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let store = dir.path().join("store").display().to_string();
    let mut drill =
        command(&["drill", "client_recovery", "--fault", "kill", "--client", "redis-py", "--store", &store]);
    drill.env("UNSLOW_CACHE", dir.path().join("cache")).env("PATH", format!("{}:/bin:/usr/bin", dir.path().display()));
    let mut child = Running(drill.stderr(Stdio::piped()).spawn().unwrap());
    wait_for("the package manager", Duration::from_secs(20), || Ok(started.exists())).unwrap();
    child.signal(libc::SIGINT);
    let mut said = String::new();
    std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(2), "{said}");
    assert!(said.contains("nothing was run: interrupted before kill"), "{said}");
    let pids = std::fs::read_to_string(&started).unwrap();
    let stat = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let over = |pid: &str| stat(pid).is_empty() || stat(pid).contains(") Z");
    wait_for("its processes to end", Duration::from_secs(10), || Ok(pids.split_whitespace().all(over))).unwrap();
}

#[test]
fn a_deployment_of_ones_own_is_drilled_by_its_own_commands() {
    let settings = [("cluster-node-timeout", "2000"), ("enable-debug-command", "yes")];
    let settings = settings.map(|(k, v)| (k.to_string(), v.to_string())).to_vec();
    let spec = ServerSpec { settings, ..ServerSpec::default() };
    let cluster = Deployment::start(&find("valkey-9.1").unwrap(), &Shape::six_nodes(), &spec).unwrap();
    let store = tempfile::tempdir().unwrap();
    let refused = unslow(&["drill", "cluster_failover", &cluster.url()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--i-own-this"), "{}", stderr(&refused));
    let none = unslow(&["drill", "cluster_failover", "--fault", "kill", "--i-own-this", &cluster.url()]);
    assert!(stderr(&none).contains("failover, hang, none"), "{}", stderr(&none));
    let before = cluster.nodes[0].connect().unwrap().call(&["DBSIZE"]).unwrap();
    let (status, json) =
        drill(store.path(), &["cluster_failover", "--fault", "failover", "--i-own-this", &cluster.url()]);
    let run = &json["runs"][0];
    assert_eq!((status, run["verdict"].as_str()), (Some(0), Some("passed")), "{}", run["checks"]);
    assert!(run["figures"]["promoted_after_us"].as_u64().is_some(), "{}", run["events"]);
    for when in ["before", "during", "after"] {
        let facts = Path::new(run["folder"].as_str().unwrap()).join(format!("facts-{when}.json"));
        assert!(facts.metadata().is_ok_and(|m| m.len() > 0), "{when}");
    }
    let role = |n: usize| cluster.nodes[n].connect().unwrap().call(&["ROLE"]).unwrap().items()[0].text();
    assert_eq!((0..3).filter(|n| role(*n).as_deref() == Some("slave")).count(), 1, "one master stepped back");
    // Its replica is promoted while it sleeps, and it wakes by itself.
    let (_, json) = drill(store.path(), &["cluster_failover", "--fault", "hang", "--i-own-this", &cluster.url()]);
    let run = &json["runs"][0];
    let checks = run["checks"].to_string();
    assert!(checks.contains("did not answer (DEBUG SLEEP 8)"), "{checks}");
    let promoted = ms(&run["figures"]["promoted_after_us"]);
    assert!((1900.0..8000.0).contains(&promoted), "{promoted}");
    assert!(run["figures"]["redundant_after_us"].as_u64().is_some(), "{}", run["figures"]);
    assert_eq!(
        cluster.nodes[0].connect().unwrap().call(&["DBSIZE"]).unwrap(),
        before,
        "nothing of the drill's is left"
    );
    let refusing = Deployment::start(&find("valkey-9.1").unwrap(), &Shape::Standalone, &ServerSpec::default()).unwrap();
    let (status, json) = drill(store.path(), &["cluster_failover", "--fault", "hang", "--i-own-this", &refusing.url()]);
    let checks = json["runs"][0]["checks"].to_string();
    assert!(status == Some(2) && checks.contains("enable-debug-command yes"), "{checks}");
}

#[test]
fn what_cannot_be_run_is_said_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let output = unslow(&[&["drill"], arguments].concat());
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), String::new()));
        stderr(&output)
    };
    let file = |text: &str| {
        let path = dir.path().join("d.toml");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    assert!(said(&["cluster_failovr"]).contains("did you mean \"cluster_failover\""));
    assert!(said(&["no-such.toml"]).contains("No such file"));
    let fault = said(&[&file("about = \"x\"\n[[fault]]\nat = \"1s\"\ndo = \"explode\"\n")]);
    assert!(fault.contains("no fault \"explode\"; there are kill"), "{fault}");
    assert!(said(&[&file("about = \"x\"\n[expect]\nno_such_check = 1\n")]).contains("no_such_check"));
    assert!(said(&["cluster_failover", "--fault", "flood"]).contains("there are kill, hang, partition"));
    assert!(said(&["cluster_failover", "--variant", "none"]).contains("node timeout 2 s"));
    let readonly = said(&["cluster_failover", "--store", "/proc/nowhere"]);
    assert!(readonly.contains("--store DIRECTORY"), "{readonly}");
    // A deployment that never gets ready.
    let never = file("about = \"x\"\n[lab.deployment]\nkind = \"standalone\"\nsettings = { no-such-setting = 1 }\n");
    assert!(said(&[&never]).contains("no-such-setting"));
    let unknown = unslow(&["case", "run", "fork-stal"]);
    assert!(stderr(&unknown).contains("did you mean \"fork-stall\""));
    let list = unslow(&["drill", "--list"]);
    assert!(stdout(&list).contains("lock_safety") && list.status.success());
}

/// A real client and the same with our extension, each on a host of its own, while the master's path is cut.
#[test]
fn clients_are_told_apart_by_a_partition() {
    let store = tempfile::tempdir().unwrap();
    let folder = store.path().display().to_string();
    let arguments =
        ["drill", "client_recovery", "--fault", "partition", "--client", "lettuce", "--client", "lettuce-unslow"];
    let page = store.path().join("clients.html");
    let html = page.display().to_string();
    let rest = ["--store", &folder, "--html", &html, "--format", "json", "--quiet"];
    let output = unslow(&[&arguments[..], &rest].concat());
    let json: Json = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    assert!(schema("clients").is_valid(&json));
    assert_eq!(json["unknown"], Json::Array(Vec::new()), "{}", stderr(&output));
    let [plain, ours] = &json["clients"].as_array().unwrap()[..] else { panic!("{json:#}") };
    assert_eq!((&plain["client"], &ours["client"]), (&"lettuce".into(), &"lettuce-unslow".into()));
    for seen in [plain, ours] {
        assert!(seen["missing"].is_null() && seen["commands"].as_u64() > Some(1000), "{seen:#}");
    }
    // The election takes two seconds and more; plain Lettuce waits for TCP, or for the fault's end.
    assert_eq!(ours["never"], false, "{ours:#}");
    let (waited, plain) = (ms(&ours["recovery_us"]), ms(&plain["recovery_us"]));
    assert!(waited > 1900.0 && waited < plain, "{waited} {plain}");
    // Drawn as it was: the longest silence is the recovery, and the fault lay in it.
    let during = &json["faults"][0];
    assert!((11_900.0..14_000.0).contains(&ms(&during["lasted_us"])), "{during}");
    let longest = &ours["silences"][0];
    assert_eq!(longest["hit"], true, "{longest}");
    assert!(ms(&longest["from_us"]) < 2000.0 && ms(&longest["until_us"]) <= waited + 2000.0, "{longest} {waited}");
    let dom = browse(&page);
    assert!(dom.contains("time line of partition") && dom.matches("lettuce-unslow").count() > 2, "{dom}");
}

/// Incidents I5, I2 and I3 from their fault to their proof. I1 takes a minute and a half and is left to `make bench`.
#[test]
fn incidents_are_diagnosed_mended_and_proven() {
    let store = tempfile::tempdir().unwrap();
    let (folder, page) = (store.path().display().to_string(), store.path().join("cases.html"));
    let html = page.display().to_string();
    let mut names = vec!["fork-stall", "cross-zone-round-trips", "syscall-bound"];
    for last in [false, true] {
        let arguments =
            [&["case", "run"], &names[..], &["--store", &folder, "--html", &html, "--format", "json", "--quiet"]];
        let output = unslow(&arguments.concat());
        let json: Json = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
        assert!(schema("case").is_valid(&json));
        let (cases, mut missed) = (json["cases"].as_array().unwrap(), Vec::new());
        for (case, name) in cases.iter().zip(&names) {
            assert_eq!(case["case"], *name);
            if case["verdict"] != "passed" || case["diagnosis"]["right"] != true {
                // A machine that others share may have had no processor for it: once more.
                assert!(!last, "{case:#}");
                println!("{case:#}");
                missed.push(*name);
            }
        }
        assert_eq!((cases.len(), output.status.success()), (names.len(), missed.is_empty()));
        if !last {
            assert!(browse(&page).contains("The master that left every night at one"));
        }
        names = missed;
        if names.is_empty() {
            return;
        }
    }
}
