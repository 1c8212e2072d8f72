//! `unslow.toml`: a deployment by its name, and `unslow doctor --inventory` over all of them.

mod common;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use common::{Running, command, stderr, stdout};
use serde_json::Value as Json;
use unslow_testkit::options;
use unslow_testkit::servers::{server, standalone};
use unslow_testkit::wait::until_ok;

fn written(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("unslow.toml");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn run(file: &Path, arguments: &[&str]) -> Output {
    command(arguments).env("UNSLOW_CONFIG", file).output().expect("it runs")
}

fn row<'a>(document: &'a Json, name: &str) -> &'a Json {
    let rows = document["deployments"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {document:#}"))
}

fn ids(row: &Json) -> Vec<&str> {
    row["findings"].as_array().unwrap().iter().filter_map(|f| f["id"].as_str()).collect()
}

#[test]
fn an_inventory_has_a_row_a_report_and_one_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    let open = standalone("redis-7.0");
    let locked = server("redis-7.0", &[("requirepass", "s3cret")]);
    std::fs::write(dir.path().join("right"), "s3cret\n").unwrap();
    std::fs::write(dir.path().join("wrong"), "other\n").unwrap();
    let deployment = |name: &str, url: &str, more: &str| {
        format!("[[deployment]]\nname = \"{name}\"\nurl = \"redis://{url}\"\nwindow = \"500ms\"\n{more}\n")
    };
    let text = [
        deployment("open", &open.address(), "fail_on = \"never\""),
        deployment("locked", &locked.address(), "password_file = \"right\"\nfail_on = \"never\""),
        deployment("wrong", &locked.address(), "password_file = \"wrong\""),
        deployment("gone", "127.0.0.1:1", "timeout = \"1s\""),
    ];
    let file = written(dir.path(), &text.concat());
    let reports = dir.path().join("reports");
    let named = reports.display().to_string();
    let output = run(&file, &["doctor", "--inventory", "--reports", &named, "--format", "json", "--no-host"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(!stdout(&output).contains("s3cret") && !stderr(&output).contains("s3cret"));
    let document: Json = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((&document["schema"], &document["exit_status"]), (&"unslow.inventory/1".into(), &2.into()));
    common::schema("inventory").validate(&document).unwrap();
    assert_eq!(document["deployments"].as_array().unwrap().len(), 4);
    for name in ["open", "locked"] {
        let row = row(&document, name);
        assert_eq!(row["exit_status"], 0, "{row:#}");
        let report = std::fs::read_to_string(reports.join(format!("{name}.json"))).expect("a report");
        let report: Json = serde_json::from_str(&report).unwrap();
        assert_eq!(report["verdict"], row["verdict"]);
        assert!(std::fs::read_to_string(reports.join(format!("{name}.html"))).unwrap().contains("<html"));
    }
    assert_eq!(
        (ids(row(&document, "gone")), &row(&document, "gone")["exit_status"]),
        (vec!["node_unreachable"], &1.into())
    );
    let wrong = row(&document, "wrong");
    assert!(wrong["error"].as_str().unwrap().contains("password"), "{wrong:#}");
    let junit = run(&file, &["doctor", "--inventory", "--no-host", "--format", "junit"]);
    assert_eq!(junit.status.code(), Some(2), "{}", stderr(&junit));
    assert_eq!(stdout(&junit).matches("<testsuite ").count(), 4, "{}", stdout(&junit));
    let lost = run(Path::new("/nowhere"), &["doctor", "--inventory", "--format", "junit"]);
    assert!(stdout(&lost).contains("<error message=\"/nowhere"), "{}", stdout(&lost));
    let text = run(&file, &["doctor", "--inventory", "--no-host", "--parallel", "1"]);
    assert!(stdout(&text).contains("4 deployments: 1 failed, 1 not checked, 2 passed"), "{}", stdout(&text));
    let elsewhere = ["doctor", "--inventory", &file.display().to_string(), "--no-host", "--only", "no_auth"];
    let named = run(Path::new("/nowhere"), &elsewhere);
    assert!(stdout(&named).contains("4 deployments: "), "{}{}", stdout(&named), stderr(&named));
}

#[test]
fn what_is_new_since_the_baseline_is_told_and_what_is_silenced_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = standalone("redis-7.0");
    // A user is part of the URL in the report, and no part of the name that a silence has.
    let mut connection = server.connect_with(&options(2)).unwrap();
    connection.call(&["ACL", "SETUSER", "ops", "on", "nopass", "~*", "&*", "+@all"]).unwrap();
    let text = format!(
        "[[deployment]]\nname = \"one\"\nurl = \"redis://{}\"\nuser = \"ops\"\npassword_file = \"pass\"\nwindow = \
         \"500ms\"\nfail_on = \"risk\"\nbaseline = \"reports/one.json\"\n",
        server.address()
    );
    std::fs::write(dir.path().join("pass"), "any\n").unwrap();
    let file = written(dir.path(), &text);
    let reports = dir.path().join("reports").display().to_string();
    let look = || {
        let output = run(&file, &["doctor", "--inventory", "--reports", &reports, "--format", "json", "--no-host"]);
        let document: Json = serde_json::from_slice(&output.stdout).expect("one document");
        (output.status.code(), row(&document, "one").clone())
    };
    let (_, first) = look();
    assert_eq!(first["since_baseline"], Json::Null, "there was none");
    server.connect_with(&options(2)).unwrap().call(&["CONFIG", "SET", "appendonly", "yes"]).unwrap();
    server.connect_with(&options(2)).unwrap().call(&["CONFIG", "SET", "appendfsync", "always"]).unwrap();
    server.connect_with(&options(2)).unwrap().call(&["CONFIG", "SET", "maxmemory", "1mb"]).unwrap();
    let (status, second) = look();
    let new: Vec<&Json> = second["since_baseline"].as_array().expect("a baseline").iter().collect();
    let new: Vec<&str> = new.iter().filter(|s| s["change"] == "new").filter_map(|s| s["id"].as_str()).collect();
    assert!(!new.is_empty(), "{second:#}");
    assert_eq!(status, Some(1), "{second:#}");
    let silences: String = ids(&second)
        .iter()
        .map(|id| {
            let until = tomorrow();
            format!("[[silence]]\nrule = \"{id}\"\ndeployment = \"one\"\nreason = \"known\"\nuntil = \"{until}\"\n")
        })
        .collect();
    written(dir.path(), &(text + &silences));
    let (_, third) = look();
    let known = ids(&second);
    assert!(ids(&third).iter().all(|id| !known.contains(id)), "{third:#}");
    assert!(!third["silenced"].as_array().unwrap().is_empty());
    // The same file, by name; flags for all verbs may come first.
    for words in [&["doctor", "@one", "--no-host"][..], &["-q", "doctor", "@one", "--no-host"]] {
        let alone = run(&file, words);
        assert!(stdout(&alone).contains("silenced"), "{}{}", stdout(&alone), stderr(&alone));
    }
    // A baseline is there by now, and a plan compares with none.
    let plan = run(&file, &["doctor", "@one", "--no-host", "--fix-plan"]);
    assert_ne!(plan.status.code(), Some(2), "{}", stderr(&plan));
}

#[test]
fn ctrl_c_keeps_what_was_checked_and_says_what_was_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = standalone("redis-7.0");
    let deployment = |name: &str| format!("[[deployment]]\nname = \"{name}\"\nurl = \"{}\"\n", server.address());
    let file = written(dir.path(), &["a", "b", "c"].map(deployment).concat());
    let words = ["doctor", "--inventory", "--parallel", "1", "--window", "60s", "--no-host", "--format", "json"];
    let mut child = Running(
        command(&words).env("UNSLOW_CONFIG", &file).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap(),
    );
    until_ok("the first to be looked at", || {
        let text = server.connect_with(&options(2))?.call(&["CLIENT", "LIST"])?.text().unwrap_or_default();
        Ok::<_, unslow_client::Error>(text.contains("name=unslow"))
    });
    child.signal(2);
    let mut text = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.ended(), Some(2));
    let document: Json = serde_json::from_str(&text).expect("one document");
    assert_eq!(row(&document, "a")["cut_short"], true, "{document:#}");
    for name in ["b", "c"] {
        assert_eq!(row(&document, name)["error"], "interrupted before it was checked", "{document:#}");
    }
}

/// A date that is after now and within a year, as people write it.
fn tomorrow() -> String {
    let output = std::process::Command::new("date").args(["-u", "-d", "tomorrow", "+%Y-%m-%dT%H:%M:%SZ"]).output();
    String::from_utf8(output.expect("date is there").stdout).unwrap().trim().to_string()
}

#[test]
fn a_name_reaches_what_its_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let locked = server("redis-7.0", &[("requirepass", "s3cret")]);
    std::fs::write(dir.path().join("right"), "s3cret\n").unwrap();
    let text =
        format!("[[deployment]]\nname = \"locked\"\nurl = \"{}\"\npassword_file = \"right\"\n", locked.address());
    let file = written(dir.path(), &text);
    for named in [&["@locked"][..], &["-u", "@locked"], &["-u@locked"], &["--uri=@locked"]] {
        let keys = run(&file, &[&["keys", "--for", "1s"], named].concat());
        assert_eq!(keys.status.code(), Some(0), "{named:?}: {}", stderr(&keys));
        assert!(stdout(&keys).starts_with("no keys in "), "{named:?}: {}", stdout(&keys));
    }
    for (arguments, expected) in [
        (&["keys", "@lockde"][..], "did you mean \"locked\""),
        (&["record", "@locked", "redis://127.0.0.1:1", "--dir", "/nowhere"], "its user and password would go"),
        (&["doctor", "@locked", "127.0.0.1:1"], "its user and password would go"),
        (&["bench", "-p", "1", "--against", "@locked"], "its user and password would go"),
        (&["bench", "--against=@locked"], "its user and password would go"),
        (&["bench", "127.0.0.1:1", "--against", "@locked"], "its user and password would go"),
        (&["keys", "-u", "@locked", "-p", "1"], "the server is named twice"),
        (&["bench", "-u", "@locked", "--against", "127.0.0.1:1"], "its user and password would go"),
        (&["doctor", "--print-acl", "@locked"], "@NAME is accepted only as"),
        (&["doctor", "--inventory", "--tls"], "cannot be used with"),
        (&["doctor", "@locked", "--inventory"], "cannot be used with"),
    ] {
        let refused = run(&file, arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&refused).contains(expected), "{arguments:?}: {}", stderr(&refused));
    }
    let missing = run(&dir.path().join("none.toml"), &["keys", "@locked", "--format", "json"]);
    assert_eq!(missing.status.code(), Some(2));
    let document: Json = serde_json::from_slice(&missing.stdout).expect("a document");
    assert_eq!(document["schema"], "unslow.error/1");
    // A name that is not there fails as the doctor fails.
    let unknown = run(&file, &["doctor", "@unknown", "--format", "junit"]);
    assert!(stdout(&unknown).contains("<testsuite"), "{}", stdout(&unknown));
    // Others could name their own server in it.
    for (path, mode, restored) in [(file.as_path(), 0o666, 0o600), (&file, 0o664, 0o600), (dir.path(), 0o777, 0o700)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let open = run(&file, &["keys", "@locked"]);
        assert!(stderr(&open).contains("other users can change it"), "{path:?} {mode:o}: {}", stderr(&open));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(restored)).unwrap();
    }
}

/// The gateway, the sink and the drill take a deployment by its name, with its password; what is typed wins.
#[test]
fn a_name_is_enough_for_gateway_sink_and_drill() {
    let dir = tempfile::tempdir().unwrap();
    let locked = standalone("redis-7.0");
    let mut connection = locked.connect_with(&options(2)).unwrap();
    connection.call(&["CONFIG", "SET", "requirepass", "s3cret"]).unwrap();
    std::fs::write(dir.path().join("right"), "s3cret\n").unwrap();
    let text = format!(
        "[[deployment]]\nname = \"locked\"\nurl = \"redis://{}\"\npassword_file = \"right\"\n",
        locked.address()
    );
    let file = written(dir.path(), &text);
    let messages = dir.path().join("messages");
    std::fs::write(&messages, "{\"id\": \"7\"}\n").unwrap();
    let map = dir.path().join("map.toml");
    std::fs::write(&map, "[[map]]\ncommands = [\"SET user:{id} x\"]\n").unwrap();
    let (map, messages) = (map.display().to_string(), messages.display().to_string());
    let sink = ["sink", "--map", &map, "--from", &messages];
    let mut written_to = |more: &[&str]| {
        connection.call(&["FLUSHALL"]).unwrap();
        let output = run(&file, &[&sink[..], more].concat());
        assert!(output.status.success(), "{more:?}: {}", stderr(&output));
        assert_eq!(connection.call(&["EXISTS", "user:7"]).unwrap().integer(), Some(1), "{more:?}");
    };
    written_to(&["--to", "@locked"]);
    let port = locked.port.to_string();
    written_to(&["-h", "127.0.0.1", "-p", &port, "-a", "s3cret", "--linger", "1ms"]);
    let wrong = run(&file, &[&sink[..], &["--to", "@locked", "-a", "other"]].concat());
    assert!(!wrong.status.success(), "what is typed wins");
    let lost = run(&file, &[&sink[..], &["--to", "@lockd"]].concat());
    assert!(stderr(&lost).contains("did you mean \"locked\""), "{}", stderr(&lost));
    let refused = run(&file, &["drill", "cluster_failover", "-p", &port]);
    assert!(stderr(&refused).contains("--i-own-this"), "{}", stderr(&refused));
    // No cluster: said by a server that has let it in.
    let drill = ["drill", "cluster_failover", "--fault", "none", "--i-own-this", "@locked"];
    let drill = run(&file, &[&drill[..], &["--store", &dir.path().display().to_string()]].concat());
    assert!(stderr(&drill).contains("cluster"), "{}", stderr(&drill));
    let shell = ["drill", "cluster_failover", "--fault", "none", "--i-own-this"];
    let shell = command(&shell).env("UNSLOW_URL", locked.url()).output().expect("it runs");
    assert!(stderr(&shell).contains("--i-own-this needs a server"), "{}", stderr(&shell));
    let gateway = ["gateway", "--listen", "127.0.0.1:0", "@locked"];
    let mut gateway = Running(command(&gateway).env("UNSLOW_CONFIG", &file).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    let mut err = std::io::BufReader::new(gateway.0.stderr.take().expect("piped"));
    until_ok("an address", || std::io::BufRead::read_line(&mut err, &mut said).map(|_| said.contains(" -> ")));
    let line = said.lines().find(|line| line.contains(" -> ")).unwrap();
    let address = line.split(" -> ").next().unwrap();
    let mut wire = unslow_testkit::wire::Wire::open(address, std::time::Duration::from_secs(20));
    assert_eq!(unslow_testkit::wire::shown(&wire.call(&["EXISTS", "user:7"])), ":1\\r\\n");
}
