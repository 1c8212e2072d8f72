//! `unslow.toml`: a deployment by its name, and `unslow doctor --inventory` over all of them.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{command, stderr, stdout};
use serde_json::Value as Json;
use unslow_testkit::options;
use unslow_testkit::servers::{server, standalone};

fn written(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("unslow.toml");
    std::fs::write(&path, text).unwrap();
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
    let text = run(&file, &["doctor", "--inventory", "--no-host", "--parallel", "1"]);
    assert!(stdout(&text).contains("4 deployments: 1 with findings, 1 not seen, 2 without"), "{}", stdout(&text));
    let named =
        run(Path::new("/nowhere"), &["doctor", "--inventory", &file.display().to_string(), "--only", "no_auth"]);
    assert_eq!(named.status.code(), Some(2), "{}", stderr(&named));
}

#[test]
fn what_is_new_since_the_baseline_is_told_and_what_is_silenced_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = standalone("redis-7.0");
    let text = format!(
        "[[deployment]]\nname = \"one\"\nurl = \"{}\"\nwindow = \"500ms\"\nfail_on = \"risk\"\nbaseline = \
         \"reports/one.json\"\n",
        server.address()
    );
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
    let (status, third) = look();
    assert_eq!((status, ids(&third)), (Some(0), Vec::new()), "{third:#}");
    assert!(!third["silenced"].as_array().unwrap().is_empty());
    // The same file, by name.
    let alone = run(&file, &["doctor", "@one", "--no-host"]);
    assert_eq!(alone.status.code(), Some(0), "{}{}", stdout(&alone), stderr(&alone));
    assert!(stdout(&alone).contains("silenced"), "{}", stdout(&alone));
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
    let keys = run(&file, &["keys", "@locked", "--for", "1s"]);
    assert_eq!(keys.status.code(), Some(0), "{}", stderr(&keys));
    assert!(stdout(&keys).starts_with("no keys in "), "{}", stdout(&keys));
    for (arguments, expected) in [
        (&["keys", "@lockde"][..], "did you mean \"locked\""),
        (&["record", "@locked", "@locked", "--dir", "/nowhere"], "one @name at a time"),
        (&["doctor", "@locked", "--inventory"], "cannot be used with"),
        (&["doctor", "--inventory", "--format", "junit"], "--reports DIR"),
    ] {
        let refused = run(&file, arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&refused).contains(expected), "{arguments:?}: {}", stderr(&refused));
    }
    let missing = run(&dir.path().join("none.toml"), &["keys", "@locked", "--format", "json"]);
    assert_eq!(missing.status.code(), Some(2));
    let document: Json = serde_json::from_slice(&missing.stdout).expect("a document");
    assert_eq!(document["schema"], "unslow.error/1");
    // Others could name their own server in it.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    let open = run(&file, &["keys", "@locked"]);
    assert!(stderr(&open).contains("others can write it"), "{}", stderr(&open));
}
