//! Messages that are set aside: what no server would take, and what this server or this user's rights refuse.

use std::io::Read;

use unslow_sink::DeadLetterError;

use super::*;

#[test]
fn poison_is_set_aside_with_its_reason_or_ends_the_sink_before_anything_behind_it_is_committed() {
    let dir = Dir::new();
    let server = server("redis-7.0", &[]);
    connect(&server).call(&["SET", "user:3", "a string"]).unwrap();
    let lines = [
        r#"{"id": 1, "n": 1}"#,
        "not json at all",
        r#"{"id": 3, "n": 1}"#,
        r#"{"n": 4}"#,
        r#"{"id": 5, "n": "five"}"#,
        r#"["an", "array"]"#,
        r#"{"id": null}"#,
        r#"{"id": 8, "n": 8}"#,
    ];
    let file = dir.file("lines", lines.join("\n"));
    let map = "[[map]]\ncommands = [\"HSET user:{id} n {n|0}\", \"HINCRBY user:{id} n {n|0}\"]";
    let dead = dir.path("dead.ndjson");
    for once in [false, true] {
        let _ = std::fs::remove_file(&dead);
        let done = run(map, &file, &server.url(), |c| {
            c.dead_letter = dead.clone();
            c.exactly_once = once;
        })
        .unwrap();
        assert_eq!((done.done, done.dead), (8, 6), "exactly_once {once}");
        let letters: Vec<serde_json::Value> =
            std::fs::read_to_string(&dead).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let reason = |offset: &str| {
            let letter =
                letters.iter().find(|l| l["offset"] == offset).unwrap_or_else(|| panic!("{offset} is missing"));
            (letter["reason"].as_str().unwrap().to_string(), letter["value"].as_str().unwrap().to_string())
        };
        for (offset, word) in [
            ("2", "no JSON object"),
            ("3", "WRONGTYPE"),
            ("4", "no \"id\""),
            ("5", "not an integer"),
            ("6", "no JSON object"),
            ("7", "null"),
        ] {
            let (why, value) = reason(offset);
            assert!(why.contains(word), "{offset}: {why}");
            assert_eq!(value, lines[offset.parse::<usize>().unwrap() - 1]);
        }
        let mut c = connect(&server);
        assert_eq!(hash(&mut c, "user:8")["n"], "16");
        connect(&server).call(&["DEL", "user:1", "user:5", "user:8"]).unwrap();
    }
    // Without a place for it the first one ends the sink.
    let error = run(map, &file, &server.url(), |_| {}).unwrap_err();
    let Failure::DeadLetter(DeadLetterError::Nowhere { reason, .. }) = &error else { panic!("{error:?}") };
    assert!(reason.contains("no JSON object") && error.to_string().contains("--dead-letter"), "{error}");
    // And so does a full disk.
    let error = run(map, &file, &server.url(), |c| c.dead_letter = "/dev/full".into()).unwrap_err();
    let Failure::DeadLetter(DeadLetterError::Write { cause, .. }) = &error else { panic!("{error:?}") };
    assert_eq!(cause.kind(), std::io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("not committed"), "{error}");
    let error = run(map, &file, &server.url(), |c| c.dead_letter = "/no/such/place".into()).unwrap_err();
    assert!(matches!(error, Failure::DeadLetter(DeadLetterError::Open { .. })), "{error:?}");
    assert!(error.to_string().contains("/no/such/place"), "{error}");
}

on_every_engine! {
    poison_that_ended_the_sink_is_not_taken_for_done_when_it_comes_again_on_valkey_9_1: poison_again("valkey-9.1");
    poison_that_ended_the_sink_is_not_taken_for_done_when_it_comes_again_on_redis_7_0: poison_again("redis-7.0");
    poison_that_ended_the_sink_is_not_taken_for_done_when_it_comes_again_on_redis_6_2: poison_again("redis-6.2");
    poison_that_ended_the_sink_is_not_taken_for_done_when_it_comes_again_on_redis_5_0: poison_again("redis-5.0");
}

fn poison_again(name: &str) {
    let dir = Dir::new();
    let server = server(name, &[]);
    let mut c = connect(&server);
    c.call(&["SET", "list", "a string"]).unwrap();
    let lines: String = (1..=100).map(|n| format!("{{\"n\": {n}}}\n")).collect();
    let file = dir.file("lines", lines);
    for (map, runs) in [
        ("[[map]]\ncommands = [\"RPUSH {{list}}{n} {n}\", { run = \"RPUSH list {n}\", when = \"n == 7\" }]", 1),
        ("[[map]]\ncommands = [{ run = \"RPUSH list {n}\", when = \"n == 7\" }, \"RPUSH {{list}}{n} {n}\"]", 0),
    ] {
        let error = run(map, &file, &server.url(), |c| c.exactly_once = true).unwrap_err();
        let Failure::DeadLetter(DeadLetterError::Nowhere { reason, .. }) = &error else { panic!("{error:?}") };
        assert!(reason.contains("WRONGTYPE"), "{reason}");
        let dead = dir.path("dead");
        let done = run(map, &file, &server.url(), |c| {
            c.exactly_once = true;
            c.dead_letter = dead.clone();
        })
        .unwrap();
        assert_eq!((done.done, done.dead), (100, 1));
        assert!(done.repeated > 0);
        let letter = std::fs::read_to_string(&dead).unwrap();
        assert!(
            letter.contains("WRONGTYPE") && letter.contains("\"offset\":\"7\"") && letter.lines().count() == 1,
            "{letter}"
        );
        std::fs::remove_file(&dead).unwrap();
        // What stands in front of the wrong command ran once.
        assert_eq!(c.call(&["LLEN", "{list}7"]).unwrap().integer(), Some(runs));
        assert_eq!(c.call(&["LLEN", "{list}8"]).unwrap().integer(), Some(1));
        // Read again while it is still wrong: told again. Without memory: nothing is mistaken for poison.
        c.call(&["CONFIG", "SET", "maxmemory", "1mb"]).unwrap();
        let (sink, notes) = try_start(map, &file, &server.url(), |c| {
            c.exactly_once = true;
            c.dead_letter = dead.clone();
        })
        .unwrap();
        until("the refusal, or the end where nothing is left to write", || notes.said("OOM") || sink.ended());
        c.call(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        let done = sink.join().unwrap();
        assert_eq!((done.done, done.dead), (100, 1));
        std::fs::remove_file(&dead).unwrap();
        c.call(&["FLUSHALL"]).unwrap();
        c.call(&["SET", "list", "a string"]).unwrap();
    }
}

#[test]
fn arguments_as_large_as_servers_take_them_go_through_and_larger_ones_are_set_aside() {
    let dir = Dir::new();
    let server = server("valkey-9.1", &[]);
    let file = dir.path("lines");
    let mut lines = std::fs::File::create(&file).unwrap();
    for (before, byte, count, behind) in [
        ("{\"k\": \"a\", \"v\": \"", b'x', 64 << 20, "\"}\n"),
        ("{\"k\": \"", b'y', (512 << 20) + 1, "\", \"v\": \"\"}\n"),
        ("{\"k\": \"b\", \"v\": \"", b'2', 1, "\"}\n"),
    ] {
        lines.write_all(before.as_bytes()).unwrap();
        std::io::copy(&mut std::io::repeat(byte).take(count), &mut lines).unwrap();
        lines.write_all(behind.as_bytes()).unwrap();
    }
    let dead = dir.path("dead");
    let done =
        run("[[map]]\ncommands = [\"SET {k} {v}\"]", &file, &server.url(), |c| c.dead_letter = dead.clone()).unwrap();
    assert_eq!((done.done, done.dead), (3, 1));
    let mut c = connect(&server);
    assert_eq!(c.call(&["STRLEN", "a"]).unwrap().integer(), Some(64 << 20));
    assert_eq!(c.call(&["GET", "b"]).unwrap().text().as_deref(), Some("2"));
    let letter = std::fs::read_to_string(&dead).unwrap();
    assert!(letter.contains("servers take 512 MB") && letter.len() < 2 << 20, "{}", letter.len());
}

#[test]
fn an_argument_that_the_server_does_not_take_is_set_aside_and_the_rest_is_written() {
    let dir = Dir::new();
    let server = server("valkey-9.1", &[("proto-max-bulk-len", "1mb")]);
    let mut lines = String::new();
    for n in 0..100 {
        let value = if n == 50 { "x".repeat(3 << 20) } else { n.to_string() };
        lines += &format!("{{\"k\": \"k{}\", \"v\": \"{value}\"}}\n", n % 3);
    }
    let (file, dead) = (dir.file("lines", lines), dir.path("dead"));
    for once in [false, true] {
        let done = run("[[map]]\ncommands = [\"RPUSH {k} {v}\"]", &file, &server.url(), |c| {
            c.dead_letter = dead.clone();
            c.exactly_once = once;
        })
        .unwrap();
        assert_eq!((done.done, done.dead), (100, 1), "exactly_once {once}");
        let letter = std::fs::read_to_string(&dead).unwrap();
        assert!(letter.contains("\"offset\":\"51\"") && letter.lines().count() == 1, "{} bytes", letter.len());
        std::fs::remove_file(&dead).unwrap();
        let mut c = connect(&server);
        let list = texts(&c.call(&["LRANGE", "k2", "0", "-1"]).unwrap());
        assert_eq!(list.last().map(String::as_str), Some("98"));
        assert!(!list.contains(&"50".to_string()));
        c.call(&["FLUSHALL"]).unwrap();
    }
}

on_every_engine! {
    a_key_that_the_user_may_not_write_sets_its_message_aside_on_valkey_9_1: key_denied("valkey-9.1");
    a_key_that_the_user_may_not_write_sets_its_message_aside_on_redis_7_0: key_denied("redis-7.0");
    a_key_that_the_user_may_not_write_sets_its_message_aside_on_redis_6_2: key_denied("redis-6.2");
}

fn key_denied(name: &str) {
    let dir = Dir::new();
    let server = server(name, &[]);
    let mut c = connect(&server);
    c.call(&["ACL", "SETUSER", "writer", "on", ">pw", "~ok:*", "~unslow:sink:*", "+@all"]).unwrap();
    c.call(&["ACL", "SETUSER", "unmarked", "on", ">pw", "~ok:*", "+@all"]).unwrap();
    let (file, dead) =
        (dir.file("lines", "{\"k\": \"ok:1\"}\n{\"k\": \"no:2\"}\n{\"k\": \"ok:3\"}\n"), dir.path("dead"));
    let map = "[[map]]\ncommands = [\"INCR {k}\"]";
    let url = |user: &str| format!("redis://{user}:pw@{}", server.address());
    for once in [false, true] {
        let done = run(map, &file, &url("writer"), |c| {
            c.dead_letter = dead.clone();
            c.exactly_once = once;
        })
        .unwrap();
        assert_eq!((done.done, done.dead), (3, 1), "{name}, exactly_once {once}");
        let letter = std::fs::read_to_string(&dead).unwrap();
        assert!(letter.contains("NOPERM") && letter.contains("\"offset\":\"2\""), "{letter}");
        std::fs::remove_file(&dead).unwrap();
        for key in ["ok:1", "ok:3"] {
            assert_eq!(c.call(&["GET", key]).unwrap().text().as_deref(), Some("1"), "{name}: {key}");
        }
        c.call(&["FLUSHALL"]).unwrap();
    }
    // Marks that may not be written are no message's fault.
    let run = run(map, &file, &url("unmarked"), |c| {
        c.dead_letter = dead.clone();
        c.exactly_once = true;
    });
    assert!(matches!(&run, Err(Failure::Server(e)) if e.code() == Some("NOPERM")), "{name}: {run:?}");
}

#[test]
fn a_script_that_wrote_is_hardly_run_again_whatever_it_says_and_leads_nowhere() {
    let dir = Dir::new();
    let (single, deployment) = (server("valkey-9.1", &[]), unslow_testkit::cluster("redis-7.0"));
    let trap = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let elsewhere = trap.local_addr().unwrap();
    for (n, words) in [
        format!("MOVED 1 {elsewhere}"),
        format!("ASK 1 {elsewhere}"),
        "TRYAGAIN later".into(),
        "LOADING not yet".into(),
        "READONLY no writes".into(),
        "OOM none left".into(),
        "NOPERM no".into(),
        "UNSLOWGAP a message before this one has not run yet".into(),
    ]
    .iter()
    .enumerate()
    {
        let key = format!("k{n}");
        let (file, dead) = (dir.file("lines", format!("{{\"k\": \"{key}\"}}\n")), dir.path("dead"));
        let map = format!(
            r#"[[map]]
            commands = ['''EVAL "redis.call('INCR', KEYS[1]) return redis.error_reply('{words}')" 1 {{k}}''']"#
        );
        for url in [single.url(), deployment.url()] {
            let done = run(&map, &file, &url, |c| c.dead_letter = dead.clone()).unwrap();
            assert_eq!((done.done, done.dead), (1, 1), "{words}: {:?}", done.retries);
            let letter = std::fs::read_to_string(&dead).unwrap();
            assert!(letter.contains(words.as_str()), "{letter}");
            std::fs::remove_file(&dead).unwrap();
        }
        let value = |server: &Server| connect(server).call(&["GET", &key]).ok().and_then(|v| v.text());
        // What may have ended before it was checked is sent again three times.
        let runs = if words.starts_with("TRYAGAIN") || words.starts_with("LOADING") { "4" } else { "1" };
        assert_eq!(value(&single).as_deref(), Some(runs), "{words}");
        assert_eq!(deployment.nodes.iter().find_map(|node| value(node)).as_deref(), Some(runs), "{words}");
    }
    let why = trap.accept().map(|_| ()).unwrap_err();
    assert_eq!(why.kind(), std::io::ErrorKind::WouldBlock);
}
