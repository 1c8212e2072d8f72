//! What the mapping makes of a message, and mappings that are refused.

use super::*;

#[test]
fn formats_tombstones_headers_and_topics_are_what_the_mapping_says() {
    let dir = Dir::new();
    let server = server("valkey-9.1", &[]);
    let lines = [
        r#"{"topic": "users", "key": "1", "value": {"name": "Ada"}, "headers": {"kind": "new"}, "time_ms": 77}"#,
        r#"{"topic": "users", "key": "2", "value": {"name": "Bob", "address": {"city": "Oslo", "lines": ["x", "y"]}}, "headers": {"kind": "old"}}"#,
        r#"{"topic": "users", "key": "1", "value": null}"#,
        r#"{"topic": "raw.text", "key": "k", "value": "plain \u0000 text"}"#,
        r#"{"topic": "elsewhere", "key": "k", "value": "left out"}"#,
    ];
    let map = r#"
        [[map]]
        topic = "users"
        commands = [
            "HSET user:{$key} {fields...!address} kind {$header.kind} at {$time_ms} place {address.city|nowhere} first {address.lines.0|-}",
            { run = "RPUSH lines:{$key} {address.lines...}", when = "address is defined" },
        ]
        tombstone = ["DEL user:{$key}", "INCR deleted"]

        [[map]]
        topic = ["raw.*"]
        format = "raw"
        commands = ["SET {$topic}:{$key} {$value}", "PUBLISH news {$value}"]
    "#;
    let file = dir.file("lines", lines.join("\n"));
    let done = run(map, &file, &server.url(), |c| c.envelope = true).unwrap();
    assert_eq!((done.done, done.skipped), (5, 1));
    let mut c = connect(&server);
    assert!(hash(&mut c, "user:1").is_empty());
    let expected = [("name", "Bob"), ("kind", "old"), ("at", "0"), ("place", "Oslo"), ("first", "x")];
    assert_eq!(hash(&mut c, "user:2"), expected.map(|(k, v)| (k.to_string(), v.to_string())).into());
    assert_eq!(texts(&c.call(&["LRANGE", "lines:2", "0", "-1"]).unwrap()), ["x", "y"]);
    assert_eq!(c.call(&["GET", "deleted"]).unwrap().text().as_deref(), Some("1"));
    assert_eq!(c.call(&["GET", "raw.text:k"]).unwrap().text().as_deref(), Some("plain \0 text"));
}

#[test]
fn a_mapping_that_cannot_work_is_refused_at_the_start_and_says_why() {
    let deployment = unslow_testkit::cluster("redis-7.0");
    let single = server("valkey-9.1", &[]);
    for (map, word, in_cluster) in [
        ("", "no [[map]]", false),
        ("[[map]]", "it has no commands", false),
        ("[[map]]\ncommands = [\"HSETT k f {v}\"]", "did you mean HSET?", false),
        ("[[map]]\ncommands = [\"SET k\"]", "takes at least 3 words", false),
        ("[[map]]\ncommands = [\"SET k {v\"]", "not closed", false),
        ("[[map]]\ncommands = [\"{name} k v\"]", "name stands in the mapping", false),
        ("[[map]]\ncommands = [\"BLPOP k 0\"]", "blocks the connection", false),
        ("[[map]]\ncommands = [\"MULTI\"]", "changes or blocks", false),
        ("[[map]]\ncommands = [\"SUBSCRIBE c\"]", "changes or blocks", false),
        ("[[map]]\ncommands = [\"FLUSHALL\"]", "whole server", false),
        ("[[map]]\ncommands = [\"CONFIG SET a b\"]", "operators", false),
        ("[[map]]\ncommands = [{ run = \"SET k {v}\", ttl = \"soon\" }]", "36h", false),
        ("[[map]]\ncommands = [{ run = \"SET k {v}\", when = \"v ==\" }]", "when", false),
        ("[[map]]\nformat = \"raw\"\ncommands = [\"SET k {v}\"]", "nothing inside", false),
        ("[[map]]\ntombstone = [\"DEL {id}\"]", "nothing inside", false),
        ("[[map]]\ncommands = [\"SET x{fields...} v\"]", "stands alone", false),
        ("[[map]]\ncommands = [\"SET {$nokey} v\"]", "{$key}", false),
        ("[[map]]\ncomands = []", "line 2", false),
        ("in_flight_max = 0\n[[map]]\ncommands = [\"SET k {v}\"]", "it takes 1 to", false),
        ("[[map]]\ncommands = [\"EVAL 'return 1' 2 a b {v}\"]", "different slots", true),
        ("exactly_once = true\n[[map]]\ncommands = [\"PUBLISH c {v}\"]", "has no key", true),
    ] {
        let to = if in_cluster { deployment.url() } else { single.url() };
        let error = try_start(map, "/dev/null", &to, |_| {}).err().unwrap_or_else(|| panic!("{map} was taken"));
        assert!(error.to_string().contains(word), "{map}: {error}");
    }
    // What is in one slot is fine in a cluster, and any of it on a single server.
    let map = "[[map]]\ncommands = [\"EVAL 'return 1' 2 {{a}}1 {{a}}2 {v}\"]";
    run(map, "/dev/null", &deployment.url(), |_| {}).unwrap();
    run("[[map]]\ncommands = [\"EVAL 'return 1' 2 a b {v}\"]", "/dev/null", &single.url(), |_| {}).unwrap();
}

#[test]
fn the_last_message_of_a_key_is_enough_when_asked() {
    let dir = Dir::new();
    let server = server("valkey-9.1", &[]);
    let mut lines: Vec<String> =
        (0..3000).map(|n| format!("{{\"key\": \"{}\", \"value\": {{\"n\": {n}}}}}", n % 10)).collect();
    lines.push(r#"{"key": "3", "value": null}"#.into());
    let file = dir.file("lines", lines.join("\n"));
    let map = "[[map]]\nfold = \"last\"\ncommands = [\"SET v:{$key} {n}\"]\ntombstone = [\"DEL v:{$key}\"]";
    let done = run(map, &file, &server.url(), |c| c.envelope = true).unwrap();
    assert_eq!((done.done, done.commands, done.skipped), (3001, 10, 2991));
    let mut c = connect(&server);
    assert_eq!(c.call(&["GET", "v:9"]).unwrap().text().as_deref(), Some("2999"));
    assert_eq!(c.call(&["EXISTS", "v:3"]).unwrap().integer(), Some(0));
    // Each batch for itself, however many are under way.
    c.call(&["FLUSHALL"]).unwrap();
    let done = run(map, &file, &server.url(), |c| {
        c.envelope = true;
        c.batch_messages_max = 700;
    })
    .unwrap();
    assert_eq!(done.commands, 50, "ten keys in each of five batches");
    for key in [0, 1, 2, 4, 5, 6, 7, 8, 9] {
        let last = c.call(&["GET", &format!("v:{key}")]).unwrap().text().unwrap();
        assert_eq!(last, (2990 + key).to_string());
    }
}
