//! The sink before real servers: what arrives, in which order, and what becomes of it when servers move, fail and
//! refuse.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use unslow_client::{Connection, ErrorKind, Target, Value};
use unslow_engine::{Deployment, Error, Server, Shape, migrate_slots};
use unslow_sink::{BrokerError, Config, ConfigError, DeadLetterError, Sink, Snapshot, SourceError, Start, WriteError};
use unslow_testkit::servers::{deployment, server};
use unslow_testkit::slots::{id, move_slot, set_slot};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, standalone, until};

/// A test for every server version.
macro_rules! on_every_engine {
    ($($test:ident: $body:ident($engine:literal);)*) => {
        $(
            #[test]
            fn $test() {
                $body($engine);
            }
        )*
    };
}

/// Connected patiently: disks that others write to let servers hang for seconds.
#[track_caller]
fn connect(server: &Server) -> Connection {
    server.connect_with(&options(2)).unwrap()
}

/// Notes of a sink under test.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn said(&self, word: &str) -> bool {
        self.0.lock().unwrap().iter().any(|n| n.contains(word))
    }
}

/// Why a sink does not start, or has ended.
type Failure = unslow_sink::Error;

fn try_start(map: &str, from: &str, to: &str, change: impl FnOnce(&mut Config)) -> Result<(Sink, Notes), Failure> {
    let mut config = Config::parse(map)?;
    config.from = from.to_string();
    change(&mut config);
    let target = Target::parse(to).unwrap();
    let stream = config.from.starts_with("redis://").then(|| Target::parse(&config.from).unwrap());
    let notes = Notes::default();
    let heard = notes.clone();
    let note = Arc::new(move |text: &str| heard.0.lock().unwrap().push(text.to_string()));
    let start = Start { config, target, stream, options: options(2), note };
    Ok((Sink::start(start)?, notes))
}

fn run(map: &str, from: &str, to: &str, change: impl FnOnce(&mut Config)) -> Result<Snapshot, Failure> {
    let (sink, _) = try_start(map, from, to, change)?;
    sink.join()
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }
}

/// Lines for a sink for as long as the test wants.
struct Feed {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: Option<JoinHandle<u64>>,
}

impl Feed {
    /// At most 40,000 lines a second.
    fn start(dir: &Dir, mut line: impl FnMut(u64, &mut Vec<u8>) + Send + 'static) -> Feed {
        let path = PathBuf::from(dir.path("feed"));
        let name = std::ffi::CString::new(path.display().to_string()).unwrap();
        // SAFETY: the name is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (theirs, count, to) = (stop.clone(), written.clone(), path.clone());
        let thread = std::thread::spawn(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(to).unwrap();
            let mut n = 0;
            while !theirs.load(Ordering::Acquire) {
                let mut text = Vec::new();
                for _ in 0..400 {
                    line(n, &mut text);
                    n += 1;
                }
                pipe.write_all(&text).unwrap();
                count.store(n, Ordering::Release);
                std::thread::sleep(Duration::from_millis(10)); // the pace of the load, nothing is waited for
            }
            n
        });
        Feed { path, stop, written, thread: Some(thread) }
    }

    fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn wait(&self, more: u64) {
        let from = self.written.load(Ordering::Acquire);
        until("lines to be taken", || self.written.load(Ordering::Acquire) >= from + more);
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.items().iter().filter_map(Value::text).collect()
}

fn hash(connection: &mut Connection, key: &str) -> BTreeMap<String, String> {
    let reply = texts(&connection.call(&["HGETALL", key]).unwrap());
    reply.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

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
    what_passes_is_waited_for_in_order_and_nothing_is_lost_on_valkey_9_1: what_passes("valkey-9.1");
    what_passes_is_waited_for_in_order_and_nothing_is_lost_on_redis_7_0: what_passes("redis-7.0");
    what_passes_is_waited_for_in_order_and_nothing_is_lost_on_redis_6_2: what_passes("redis-6.2");
    what_passes_is_waited_for_in_order_and_nothing_is_lost_on_redis_5_0: what_passes("redis-5.0");
}

fn what_passes(name: &str) {
    let dir = Dir::new();
    let server = server(name, &[("maxmemory-policy", "noeviction")]);
    let mut c = connect(&server);
    let feed = Feed::start(&dir, |n, out| out.extend(format!("{{\"k\": {}, \"n\": {}}}\n", n % 50, n / 50).bytes()));
    let map = "[[map]]\ncommands = [\"RPUSH log:{k} {n}\"]";
    let (sink, notes) = try_start(map, &feed.path(), &server.url(), |c| c.exactly_once = true).unwrap();
    let sent_again = |reason: &str| sink.snapshot().retries.contains_key(reason);
    feed.wait(2000);
    // No memory for a while.
    c.call(&["CONFIG", "SET", "maxmemory", "1mb"]).unwrap();
    until("the refusal", || sent_again("oom") && notes.said("OOM"));
    c.call(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    feed.wait(2000);
    // Its connections die, its scripts are forgotten.
    c.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    until("the connection to be made again", || notes.said("is back"));
    feed.wait(2000);
    c.call(&["SCRIPT", "FLUSH"]).unwrap();
    until("the script to be missed", || sent_again("noscript"));
    feed.wait(2000);
    // A replica takes no writes.
    c.call(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    until("the refusal", || sent_again("readonly") || notes.said("demoted"));
    c.call(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let fed = feed.end();
    let done = sink.join().unwrap();
    assert_eq!((done.done, done.dead), (fed, 0), "{name}");
    exact(&mut c, fed, 50, name);
}

/// Every list holds its numbers once, in order.
fn exact(c: &mut Connection, fed: u64, keys: u64, what: &str) {
    for key in 0..keys {
        let list = texts(&c.call(&["LRANGE", &format!("log:{key}"), "0", "-1"]).unwrap());
        let expected: Vec<String> = (0..fed / keys + u64::from(key < fed % keys)).map(|n| n.to_string()).collect();
        assert!(list == expected, "{what}: log:{key} has {} entries, {} were sent", list.len(), expected.len());
    }
}

/// The same over the masters of a cluster.
fn exact_in_cluster(deployment: &Deployment, fed: u64, keys: u64) {
    let mut lists = BTreeMap::new();
    for node in deployment.nodes.iter().filter(|n| n.alive()) {
        let mut c = connect(node);
        let role = texts(&c.call(&["ROLE"]).unwrap())[0].clone();
        if role != "master" {
            continue;
        }
        for key in texts(&c.call(&["KEYS", "log:*"]).unwrap()) {
            let list = texts(&c.call(&["LRANGE", &key, "0", "-1"]).unwrap_or(Value::Null));
            if !list.is_empty() {
                lists.insert(key, list);
            }
        }
    }
    let mut wrong = Vec::new();
    for key in 0..keys {
        let expected: Vec<String> = (0..fed / keys + u64::from(key < fed % keys)).map(|n| n.to_string()).collect();
        let list = lists.get(&format!("log:{key}")).cloned().unwrap_or_default();
        if list != expected {
            let at = list.iter().zip(&expected).position(|(a, b)| a != b);
            wrong.push(format!(
                "log:{key}: {} of {} entries, the first wrong one at {at:?}",
                list.len(),
                expected.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "{} lists are wrong: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
}

fn numbered(n: u64, out: &mut Vec<u8>) {
    out.extend(format!("{{\"k\": {}, \"n\": {}}}\n", n % 200, n / 200).bytes());
}

const LISTS: &str = "[[map]]\ncommands = [\"RPUSH log:{k} {n}\"]";

#[test]
fn lists_stay_exact_while_slots_of_valkey_move() {
    lists_stay_exact_while_slots_move("valkey-9.1");
}

#[test]
fn lists_stay_exact_while_slots_of_redis_move() {
    lists_stay_exact_while_slots_move("redis-7.0");
}

fn lists_stay_exact_while_slots_move(name: &str) {
    let dir = Dir::new();
    // No failovers here: a master may well hang for seconds on a busy machine.
    let settings = [("cluster-node-timeout", "15000"), ("appendonly", "yes")];
    let deployment = deployment(name, Shape::six_nodes(), &settings);
    let feed = Feed::start(&dir, numbered);
    // Several keys of one slot, one of which comes and goes within a message.
    let map = "[[map]]\ncommands = [\"RPUSH log:{k} {n}\", \"DEL {{log:{k}}}:s\", \"HSET {{log:{k}}}:s n {n}\"]";
    let (sink, _) = try_start(map, &feed.path(), &deployment.url(), |c| c.exactly_once = true).unwrap();
    feed.wait(5000);
    let (from, to) = (&deployment.nodes[0], &deployment.nodes[1]);
    let (mut source, mut target) = (connect(from), connect(to));
    if name == "valkey-9.1" {
        migrate_slots(&mut source, 0, 2000, &id(to)).unwrap();
    }
    // One after the other with its keys, the classic way.
    let (a, b, port) = (id(from), id(to), to.port.to_string());
    let mut busy = None;
    for number in (2001u16..5461).step_by(3).take(400) {
        let slot = number.to_string();
        set_slot(&mut target, &[&slot, "IMPORTING", &a]);
        set_slot(&mut source, &[&slot, "MIGRATING", &b]);
        loop {
            let keys = texts(&source.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]).unwrap());
            let Some(key) = keys.first() else { break };
            busy = Some(number);
            // One key at a time, so that the mark and its list are apart for a moment.
            source.call(&["MIGRATE", &to.ip, &port, key, "0", "60000"]).unwrap();
        }
        set_slot(&mut target, &[&slot, "NODE", &b]);
        set_slot(&mut source, &[&slot, "NODE", &b]);
    }
    // Redirects have to be met, too: one of these slots goes to and fro until it was.
    let (busy, mut owner) = (busy.expect("a slot with keys"), 1);
    until("a redirect", || {
        let met = sink.snapshot().retries.contains_key("moved");
        if !met {
            move_slot(&deployment, busy, owner, 1 - owner, Duration::ZERO);
            owner = 1 - owner;
        }
        met
    });
    feed.wait(5000);
    let fed = feed.end();
    let done = sink.join().unwrap();
    assert_eq!((done.done, done.dead), (fed, 0), "{name}: {:?}", done.retries);
    println!("{name}: {fed} messages, sent again {:?}", done.retries);
    exact_in_cluster(&deployment, fed, 200);
    let states: u64 = deployment
        .nodes
        .iter()
        .take(3)
        .map(|node| {
            let mut c = connect(node);
            let keys = texts(&c.call(&["KEYS", "{log:*:s"]).unwrap());
            for key in &keys {
                let k: u64 = key.trim_start_matches("{log:").split('}').next().unwrap().parse().unwrap();
                let last = (fed - 1 - k) / 200;
                assert_eq!(hash(&mut c, key)["n"], last.to_string(), "{name}: {key}");
            }
            keys.len() as u64
        })
        .sum();
    assert_eq!(states, 200, "{name}");
}

#[test]
fn lists_stay_exact_while_masters_are_killed_and_hang() {
    let dir = Dir::new();
    // An empty master is a replica for others to Valkey; here each keeps its place.
    let settings = [("cluster-node-timeout", "2000"), ("appendonly", "yes"), ("cluster-allow-replica-migration", "no")];
    let deployment = deployment("valkey-9.1", Shape::six_nodes(), &settings);
    let feed = Feed::start(&dir, numbered);
    let (sink, notes) = try_start(LISTS, &feed.path(), &deployment.url(), |c| {
        c.exactly_once = true;
        c.wait_replicas = 1;
    })
    .unwrap();
    let is_master = |n: usize| texts(&connect(&deployment.nodes[n]).call(&["ROLE"]).unwrap())[0] == "master";
    for round in 0..2 {
        feed.wait(5000);
        // Nodes 0 and 3 are a shard.
        let (master, other) = if is_master(0) { (0, 3) } else { (3, 0) };
        match round {
            0 => deployment.nodes[master].kill(),
            _ => deployment.nodes[master].signal(libc::SIGSTOP),
        }
        until("the promotion", || is_master(other));
        match round {
            0 => deployment.nodes[master].restart().unwrap(),
            _ => deployment.nodes[master].signal(libc::SIGCONT),
        }
        until_ok("a replica in step", || {
            let info = unslow_engine::info(&mut deployment.nodes[master].connect_with(&options(2))?, "replication")?;
            Ok::<_, Error>(info.get("master_link_status") == Some("up"))
        });
    }
    feed.wait(5000);
    let fed = feed.end();
    let done = sink.join().unwrap();
    assert_eq!((done.done, done.dead), (fed, 0));
    println!("{fed} messages, sent again {:?}", done.retries);
    assert!(notes.said("promoted"), "{:?}", notes.0.lock().unwrap());
    exact_in_cluster(&deployment, fed, 200);
}

#[test]
fn offsets_wait_for_replicas_that_were_asked_for() {
    let dir = Dir::new();
    let server = server("redis-7.0", &[]);
    let file = dir.file("lines", "{\"k\": 1}\n");
    let (sink, notes) = try_start("[[map]]\ncommands = [\"SET {k} v\"]", &file, &server.url(), |c| {
        c.wait_replicas = 1;
        c.wait_ms = 50;
    })
    .unwrap();
    until("the note", || notes.said("0 of 1 replicas"));
    assert!(!sink.ended());
    assert_eq!(sink.snapshot().done, 0);
    let _replica = self::server("redis-7.0", &[("replicaof", &format!("127.0.0.1 {}", server.port))]);
    assert_eq!(sink.join().unwrap().done, 1);
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
