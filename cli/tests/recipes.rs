//! Runs every recipe for jq in docs/json.md: of a field that is renamed it would print nothing, or an empty cell.

mod common;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::{stderr, stdout, unslow};
use unslow_testkit::options;
use unslow_testkit::servers::standalone;
use unslow_testkit::wait::until;

/// A recording of a server that is well has no incidents.
const SILENT: &str = ".incidents[]";
/// A deployment where something is wrong, and something could not be looked at.
const FACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../explain/doctor/tests/facts/keys_command.json");

fn begun(line: &str, config: &Path) -> Child {
    Command::new("bash")
        .args(["-o", "pipefail", "-c", line])
        .env("UNSLOW", unslow_testkit::binary::path())
        .env("UNSLOW_CONFIG", config)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell")
}

#[test]
fn recipes_for_jq_find_their_fields() {
    let (server, other) = (standalone("redis-7.0"), standalone("redis-7.0"));
    let mut replica = other.connect_with(&options(2)).unwrap();
    server.connect_with(&options(2)).unwrap().call(&["SET", "user:1", "x"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("unslow.toml");
    let gone = "[[deployment]]\nname = \"gone\"\nurl = \"redis://127.0.0.1:1\"\nbaseline = \"none.json\"\n";
    std::fs::write(&config, gone).unwrap();
    std::fs::write(dir.path().join("none.json"), "{}").unwrap();
    let recording = dir.path().join("recording").display().to_string();
    let recorded = unslow(&["record", &server.url(), "--dir", &recording, "--for", "3s", "--quiet"]);
    assert!(recorded.status.success(), "{}", stderr(&recorded));
    let page = include_str!("../../docs/json.md");
    let recipes: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    assert!(recipes.len() > 8 && recipes.iter().all(|recipe| recipe.contains(" | jq ")), "{recipes:?}");
    for recipe in recipes {
        let line = recipe.replace(" doctor URL ", &format!(" doctor --from {FACTS} "));
        let line = line.replace(" URL ", &format!(" {} ", server.url())).replace(" DIR ", &format!(" {recording} "));
        let child = begun(&line.replacen("unslow ", "\"$UNSLOW\" ", 1), &config);
        if recipe.contains("unslow watch") {
            // It has seen what is there when its connection rests.
            until("the watcher to rest", || {
                let list = server.connect_with(&options(2)).unwrap().call(&["CLIENT", "LIST"]).unwrap();
                let list = list.text().unwrap_or_default();
                list.lines().any(|line| line.contains("name=unslow") && !line.contains(" idle=0 "))
            });
            replica.call(&["REPLICAOF", &server.ip.to_string(), &server.port.to_string()]).expect("it replicates");
        }
        check(recipe, &child.wait_with_output().expect("it ends"));
    }
}

fn check(recipe: &str, output: &Output) {
    let (out, err) = (stdout(output), stderr(output));
    assert!(!err.contains("jq: "), "{recipe}: {err}");
    assert!(recipe.contains(SILENT) || !out.trim().is_empty(), "{recipe} printed nothing: {err}");
    let is_empty = |line: &str| line.contains("null") || line.split('\t').any(|cell| cell.trim().is_empty());
    assert!(!out.lines().any(is_empty), "{recipe}: {out}");
}
