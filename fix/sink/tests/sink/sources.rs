//! Where messages come from: files with and without a checkpoint, streams, and sources or servers that are not there.

use std::path::Path;

use unslow_client::ErrorKind;
use unslow_sink::{BrokerError, ConfigError, SourceError, WriteError};

use super::*;

on_every_engine! {
    a_file_becomes_hashes_that_expire_on_valkey_9_1: becomes_hashes("valkey-9.1");
    a_file_becomes_hashes_that_expire_on_redis_7_0: becomes_hashes("redis-7.0");
    a_file_becomes_hashes_that_expire_on_redis_6_2: becomes_hashes("redis-6.2");
    a_file_becomes_hashes_that_expire_on_redis_5_0: becomes_hashes("redis-5.0");
}

fn becomes_hashes(name: &str) {
    let dir = Dir::new();
    let mut lines = String::new();
    for i in 0..5000 {
        lines += &format!(
            r#"{{"id": {i}, "name": "user \"{i}\" \u00e9", "big": 12345678901234567890, "gone": null, "tags": ["a", 1]}}"#
        );
        lines += if i % 7 == 0 { "\r\n" } else { "\n" };
    }
    let file = dir.file("users.ndjson", lines.trim_end());
    for once in [false, true] {
        let server = standalone(name);
        let map = r#"
            [[map]]
            commands = [{ run = "HSET user:{id} {fields...!id}", ttl = "36h" }, "SADD {{all}} {id}", { run = "SADD odd {id}", when = "id % 2 == 1" }]
        "#;
        let done = run(map, &file, &server.url(), |c| {
            c.exactly_once = once;
            c.silence_ms = 600_000; // a server that hangs for seconds is not dialled again: that would be a retry
        })
        .unwrap();
        assert_eq!((done.done, done.dead, done.skipped), (5000, 0, 0));
        let mut c = connect(&server);
        let user = hash(&mut c, "user:4999");
        let expected = [("big", "12345678901234567890"), ("name", "user \"4999\" \u{e9}"), ("tags", r#"["a", 1]"#)];
        assert_eq!(user, expected.map(|(k, v)| (k.to_string(), v.to_string())).into(), "{name}");
        let (most, hour) = (36 * 3_600_000i64, 3_600_000);
        let ttl = c.call(&["PTTL", "user:0"]).unwrap().integer().unwrap();
        assert!((most - hour..=most).contains(&ttl), "{ttl} ms of {most}");
        assert_eq!(c.call(&["SCARD", "{all}"]).unwrap().integer(), Some(5000));
        assert_eq!(c.call(&["SCARD", "odd"]).unwrap().integer(), Some(2500));
        // A batch each round trip, nothing sent twice.
        assert_eq!(done.round_trips, done.batches);
        assert!(done.retries.is_empty(), "{:?}", done.retries);
    }
}

#[test]
fn a_checkpoint_goes_on_where_the_last_run_ended() {
    let dir = Dir::new();
    let server = server("valkey-9.1", &[]);
    let file = dir.path("lines");
    let append = |from: u64, to: u64| {
        let mut out = std::fs::OpenOptions::new().create(true).append(true).open(&file).unwrap();
        (from..to).for_each(|n| writeln!(out, "{{\"n\": {n}}}").unwrap());
    };
    let checkpoint = dir.path("place");
    let with = |c: &mut Config| c.checkpoint = checkpoint.clone();
    append(0, 12_000);
    assert_eq!(run("[[map]]\ncommands = [\"RPUSH l {n}\"]", &file, &server.url(), with).unwrap().done, 12_000);
    append(12_000, 12_010);
    assert_eq!(run("[[map]]\ncommands = [\"RPUSH l {n}\"]", &file, &server.url(), with).unwrap().done, 10);
    let list = texts(&connect(&server).call(&["LRANGE", "l", "0", "-1"]).unwrap());
    assert!(list.iter().enumerate().all(|(i, n)| *n == i.to_string()) && list.len() == 12_010);
    std::fs::write(Path::new(&checkpoint), "x").unwrap();
    let error = run("[[map]]\ncommands = [\"RPUSH l {n}\"]", &file, &server.url(), with).unwrap_err();
    assert!(matches!(error, Failure::Source(SourceError::NoCheckpoint { .. })), "{error:?}");
}

#[test]
fn a_stream_is_read_as_a_group_and_acknowledged() {
    let (from, to) = (server("redis-7.0", &[]), server("valkey-9.1", &[]));
    let mut c = connect(&from);
    for n in 0..3000 {
        c.call(&["XADD", "events", "*", "user", &(n % 10).to_string(), "n", &n.to_string()]).unwrap();
    }
    // Another life of the same consumer was given some of them and died.
    c.call(&["XGROUP", "CREATE", "events", "unslow-sink", "0"]).unwrap();
    c.call(&["XREADGROUP", "GROUP", "unslow-sink", "unslow-sink", "COUNT", "500", "STREAMS", "events", ">"]).unwrap();
    let map = "[[map]]\ntopic = \"events\"\ncommands = [\"RPUSH of:{user} {n}\"]";
    let stream = |c: &mut Config| {
        c.stream = "events".into();
        c.until_end = true;
        c.exactly_once = true;
    };
    let done = run(map, &from.url(), &to.url(), stream).unwrap();
    assert_eq!(done.done, 3000);
    let list = texts(&connect(&to).call(&["LRANGE", "of:7", "0", "-1"]).unwrap());
    assert_eq!(list, (0..300).map(|n| (n * 10 + 7).to_string()).collect::<Vec<_>>());
    let pending = c.call(&["XPENDING", "events", "unslow-sink"]).unwrap();
    assert_eq!(pending.items()[0].integer(), Some(0));
    assert_eq!(run(map, &from.url(), &to.url(), stream).unwrap().done, 0);
}

#[test]
fn servers_and_sources_that_are_not_there_are_named() {
    let server = server("valkey-9.1", &[("requirepass", "secret-word")]);
    let map = "[[map]]\ncommands = [\"SET {k} v\"]";
    let error = run(map, "/dev/null", "redis://127.0.0.1:1", |_| {}).unwrap_err();
    assert!(matches!(&error, Failure::Server(e) if e.kind == ErrorKind::Unreachable), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("refused"), "{error}");
    let error = run(map, "/dev/null", &server.url(), |_| {}).unwrap_err();
    assert!(matches!(error, Failure::Server(_)) && error.to_string().contains("password"), "{error:?}");
    let wrong = format!("redis://:wrong-word@{}", server.address());
    let error = run(map, "/dev/null", &wrong, |_| {}).unwrap_err();
    assert!(matches!(error, Failure::Server(_)), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("password refused") && !error.contains("wrong-word"), "{error}");
    let right = format!("redis://:secret-word@{}", server.address());
    let error = run(map, "/no/such/file", &right, |_| {}).unwrap_err();
    assert!(matches!(&error, Failure::Source(SourceError::Input { path, .. }) if path == "/no/such/file"), "{error:?}");
    let error = run(map, "/tmp", &right, |_| {}).unwrap_err();
    assert!(matches!(error, Failure::Source(SourceError::Directory { .. })), "{error:?}");
    let error = run(map, "kafka://127.0.0.1:1", &right, |c| c.topics = vec!["t".into()]).unwrap_err();
    assert!(matches!(error, Failure::Source(SourceError::Broker(BrokerError::NoBroker { .. }))), "{error:?}");
    let error = run(map, "kafka://127.0.0.1:1", &right, |_| {}).unwrap_err();
    assert!(matches!(error, Failure::Config(ConfigError::NoTopics)), "{error:?}");
    let error = run(map, "-", &right, |c| c.exactly_once = true).unwrap_err();
    assert!(matches!(error, Failure::Config(ConfigError::NoPlace)), "{error:?}");
    let property = |c: &mut Config| {
        c.topics = vec!["t".into()];
        c.kafka.insert("sasl.password.typo".into(), "hush".into());
    };
    let error = run(map, "kafka://127.0.0.1:1", &right, property).unwrap_err();
    let Failure::Source(SourceError::Broker(BrokerError::Setting { name, .. })) = &error else { panic!("{error:?}") };
    assert_eq!(name, "sasl.password.typo");
    assert!(!error.to_string().contains("hush"), "{error}");
    // A user who may not write: nothing is skipped, the sink says so and ends.
    let mut c = Connection::open(&Target::parse(&right).unwrap(), &options(2)).unwrap();
    c.call(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-set"]).unwrap();
    let dir = Dir::new();
    let file = dir.file("lines", "{\"k\": 1}\n");
    let reader = format!("redis://reader:pw@{}", server.address());
    let error = run(map, &file, &reader, |c| c.dead_letter = dir.path("dead")).unwrap_err();
    let Failure::Write(WriteError::Refused { reply, place }) = &error else { panic!("{error:?}") };
    assert!(reply.starts_with("NOPERM") && place.ends_with("at 1"), "{reply} ({place})");
}
