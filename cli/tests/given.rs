//! What a person hands to the doctor beside a URL, or instead of one: error messages of client libraries, and servers'
//! logs.

mod common;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use common::{command, schema, stderr, stdout, unslow};
use serde_json::Value;

const THREAD_POOL: &str = include_str!("../../observe/given/tests/messages/stackexchange_thread_pool.txt");
const SERVER_SLOW: &str = include_str!("../../observe/given/tests/messages/stackexchange_server_slow.txt");
const JEDIS_POOL: &str = include_str!("../../observe/given/tests/messages/jedis_pool.txt");

fn file(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).expect("it is written");
    path.display().to_string()
}

/// The doctor with `input` as its standard input.
fn with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut doctor = command(&[&["doctor"], arguments].concat());
    let doctor = doctor.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut doctor = doctor.expect("the binary runs");
    // It may end without reading.
    let _ = doctor.stdin.take().expect("it is piped").write_all(input);
    doctor.wait_with_output().expect("it ends")
}

/// A report as JSON that holds to the schema, and the exit status.
#[track_caller]
fn report(output: &Output) -> (Value, Option<i32>) {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(output)));
    let wrong: Vec<String> = schema("doctor").iter_errors(&report).map(|e| e.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    (report, output.status.code())
}

#[track_caller]
fn fails(output: &Output, expected: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}{}", stdout(output));
    assert!(text.starts_with("unslow: ") && text.trim().lines().count() == 1, "{text}");
    assert!(expected.iter().all(|e| text.contains(e)), "{text}");
    assert!(stdout(output).is_empty(), "{}", stdout(output));
}

#[test]
fn a_message_alone_is_diagnosed_without_a_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = file(dir.path(), "pool.txt", THREAD_POOL);
    let (told, status) = report(&unslow(&["doctor", "--client-error", &pool, "--format", "json"]));
    assert_eq!((status, &told["verdict"]), (Some(1), &"causes".into()), "{told:#}");
    assert_eq!(told["findings"][0]["id"], "client_thread_pool", "{told:#}");
    assert_eq!(told["cannot_see"], Value::Array(Vec::new()), "rules about servers are not asked: {told:#}");
    // On a terminal: the same in words, and not a word about servers that did not answer.
    let text = stdout(&unslow(&["doctor", "--client-error", &pool])).replace('\n', " ");
    assert!(text.contains("Not your Redis") && text.contains("600") && !text.contains("no server answered"), "{text}");

    let slow = file(dir.path(), "slow.txt", SERVER_SLOW);
    let (told, status) = report(&unslow(&["doctor", "--client-error", &slow, "--format", "json"]));
    assert_eq!((status, &told["verdict"]), (Some(2), &"no_server".into()), "{told:#}");
    assert_eq!(told["findings"][0]["id"], "client_error", "{told:#}");

    // Several files are one diagnosis.
    let jedis = file(dir.path(), "jedis.txt", JEDIS_POOL);
    let all = ["doctor", "--client-error", &pool, "--client-error", &jedis, "--format", "json"];
    let (told, _) = report(&unslow(&all));
    let ids: Vec<&str> = told["findings"].as_array().unwrap().iter().filter_map(|f| f["id"].as_str()).collect();
    assert_eq!(ids, ["client_thread_pool", "client_pool_exhausted"], "{told:#}");
}

#[test]
fn no_key_reaches_the_report_the_page_or_the_saved_facts() {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = file(dir.path(), "pool.txt", THREAD_POOL);
    let (saved, page) = (dir.path().join("facts.json"), dir.path().join("page.html"));
    let (saved, page) = (saved.display().to_string(), page.display().to_string());
    let output = unslow(&["doctor", "--client-error", &pool, "--save", &saved, "--html", &page, "--format", "json"]);
    let kept = |path: &str| std::fs::read_to_string(path).expect("it was written");
    for text in [stdout(&output), kept(&saved), kept(&page)] {
        assert!(text.contains("client_thread_pool") || text.contains("client_errors"), "{text}");
        assert!(!text.contains("session:7f3a") && !text.contains("web-1"), "{text}");
    }
    // The saved facts give the same diagnosis.
    let (again, status) = report(&unslow(&["doctor", "--from", &saved, "--format", "json"]));
    assert_eq!((again, status), report(&output));
}

#[test]
fn standard_input_is_read_once() {
    let (told, _) = report(&with_input(&["--client-error", "-", "--format", "json"], THREAD_POOL.as_bytes()));
    assert_eq!(told["findings"][0]["id"], "client_thread_pool", "{told:#}");
    fails(&with_input(&["--client-error", "-"], b""), &["standard input", "empty"]);
    let mut closed = command(&["doctor", "--client-error", "-"]);
    fails(&closed.stdin(Stdio::null()).output().expect("it runs"), &["standard input", "empty"]);
    let twice = ["--client-error", "-", "--client-error", "-"];
    fails(&with_input(&twice, THREAD_POOL.as_bytes()), &["twice"]);
    fails(&with_input(&["--client-error", "-", "--log", "-"], THREAD_POOL.as_bytes()), &["twice"]);
}

#[test]
fn one_line_for_files_that_hold_no_messages() {
    let dir = tempfile::tempdir().expect("a directory");
    let given = |path: &str| unslow(&["doctor", "--client-error", path]);
    fails(&given("/nowhere.txt"), &["/nowhere.txt", "No such file"]);
    fails(&given(&dir.path().display().to_string()), &["s a directory"]);
    fails(&given(&file(dir.path(), "empty", "")), &["empty", "expected the text"]);
    fails(&given(&file(dir.path(), "blank", "\n \n")), &["empty"]);
    // A log is read the same way.
    let logged = |path: &str| unslow(&["doctor", "--log", path]);
    fails(&logged("/nowhere.log"), &["/nowhere.log", "No such file"]);
    fails(&logged(&dir.path().display().to_string()), &["s a directory"]);
    fails(&logged(&file(dir.path(), "empty.log", "")), &["no line looks like a server's log"]);
    fails(&logged(&file(dir.path(), "junk.log", [0xff_u8; 5000])), &["no line looks like a server's log"]);
    let silent = file(dir.path(), "silent.log", "7:M 23 Nov 2020 18:00:00.000 * DB saved on disk\n");
    fails(&logged(&silent), &["no event that the doctor recognises"]);
}

#[test]
fn what_is_not_understood_is_told_with_what_was_expected() {
    let dir = tempfile::tempdir().expect("a directory");
    let junk: Vec<u8> = (0..5000_u32).map(|n| (n * 7919 % 256) as u8).collect();
    for (name, bytes) in [("junk", junk), ("text", b"hello".to_vec()), ("zeros", vec![0; 3 << 20])] {
        let path = file(dir.path(), name, bytes);
        let (told, status) = report(&unslow(&["doctor", "--client-error", &path, "--format", "json"]));
        assert_eq!((status, &told["verdict"]), (Some(2), &"no_server".into()), "{name}: {told:#}");
        assert_eq!(told["findings"], Value::Array(Vec::new()), "{name}: {told:#}");
        let gaps = told["cannot_see"].to_string();
        assert!(gaps.contains("not understood") && gaps.contains("Lettuce"), "{name}: {gaps}");
        assert_eq!(gaps.contains("first 1 MiB"), name == "zeros", "{name}: {gaps}");
    }
}

#[test]
fn a_log_has_its_section_newest_first_and_keeps_no_line() {
    let log = "7:M 23 Nov 2020 18:00:00.000 * Background saving started by pid 99\n\
               7:M 23 Nov 2020 18:05:00.000 # Client addr=10.9.8.7:51234 name=secret closed for overcoming of output \
               buffer limits.\n";
    let dir = tempfile::tempdir().expect("a directory");
    let path = file(dir.path(), "redis.log", log);
    let output = unslow(&["doctor", "--log", &path, "--format", "json"]);
    let (told, status) = report(&output);
    assert_eq!((status, &told["verdict"]), (Some(2), &"no_server".into()), "{told:#}");
    let kinds: Vec<&str> = told["logs"].as_array().unwrap().iter().filter_map(|l| l["kind"].as_str()).collect();
    assert_eq!(kinds, ["output_buffer_limit", "save_started"], "{told:#}");
    assert!(!stdout(&output).contains("secret") && !stdout(&output).contains("10.9.8.7"), "{told:#}");
    assert!(told["cannot_see"].to_string().contains("taken as UTC"), "{told:#}");
    let text = stdout(&unslow(&["doctor", "--log", &path, "-v"]));
    assert!(text.contains("what the logs say") && text.contains("a save began"), "{text}");
}

#[test]
fn a_message_is_evidence_beside_a_server_that_does_not_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = file(
        dir.path(),
        "refused",
        "redis.exceptions.ConnectionError: Error 111 connecting to 127.0.0.1:1. Connection refused.",
    );
    let arguments =
        ["doctor", "127.0.0.1:1", "--window", "1s", "--client-error", &refused, "--format", "json", "--quiet"];
    let (told, _) = report(&unslow(&arguments));
    assert_eq!(told["findings"][0]["id"], "node_unreachable", "{told:#}");
    let error = told["findings"].as_array().unwrap().iter().find(|f| f["id"] == "client_error").expect("it is there");
    assert!(error["title"].as_str().unwrap().contains("explained by node_unreachable"), "{error:#}");
}
