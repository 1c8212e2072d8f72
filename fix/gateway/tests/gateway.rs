//! The gateway before real servers: the bugs that proxies have, each as a test.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use unslow_client::{Connection, Options, Target, Value};
use unslow_engine::{Deployment, Error, Server};
use unslow_gateway::{ClientAuth, Config, Facade, Gateway, Log, Read, Start};
use unslow_resp::{Scan, Scanner, write_command};
use unslow_testkit::servers::{everywhere, promote, sentinels, server, steady};
use unslow_testkit::slots::{id, move_slot, owner_of};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, cluster, options, standalone, until};
use unslow_topology::{ClusterView, Info, slot_of};

fn gate(url: &str, change: impl FnOnce(&mut Config)) -> Gateway {
    // Nearly as patient as its clients: how long a busy machine takes to elect a master is not judged here.
    let mut config =
        Config { listen: vec!["127.0.0.1:0".into()], target: url.into(), hold_ms: 50_000, ..Config::default() };
    change(&mut config);
    let target = Target::parse(&config.target).unwrap();
    Gateway::start(Start { config, target, options: options(3), reread: None, log: Box::new(|_| {}) }).unwrap()
}

fn reread(file: std::path::PathBuf) -> unslow_gateway::Reread {
    Box::new(move || Config::parse(&std::fs::read_to_string(&file).map_err(|e| e.to_string())?))
}

fn target(gateway: &Gateway) -> Target {
    Target::parse(&gateway.addresses[0]).unwrap()
}

fn client(gateway: &Gateway) -> Connection {
    Connection::open(&target(gateway), &options(2)).unwrap()
}

fn raw(gateway: &Gateway) -> TcpStream {
    let stream = TcpStream::connect(&gateway.addresses[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads until so many frames are there; returns each frame's bytes.
fn frames(stream: &mut TcpStream, count: usize) -> Vec<Vec<u8>> {
    let (mut bytes, mut out, mut at, mut chunk) = (Vec::new(), Vec::new(), 0, vec![0; 1 << 16]);
    let mut scanner = Scanner::default();
    loop {
        while let Scan::Complete(len) = scanner.scan(&bytes[at..]).expect("RESP") {
            out.push(bytes[at..at + len].to_vec());
            at += len;
            if out.len() == count {
                assert_eq!(at, bytes.len(), "more came than was asked for: {}", bytes[at..].escape_ascii());
                return out;
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) => panic!("closed after {} of {count} frames", out.len()),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) => panic!("{e} after {} of {count} frames", out.len()),
        }
    }
}

fn text(frame: &[u8]) -> String {
    frame.escape_ascii().to_string()
}

/// The next frame, as text; `rest` is what came behind the last one.
fn next_frame(stream: &mut TcpStream, rest: &mut Vec<u8>) -> String {
    let mut chunk = [0; 1 << 12];
    loop {
        if let Scan::Complete(len) = Scanner::default().scan(&rest[..]).expect("RESP") {
            return text(&rest.drain(..len).collect::<Vec<u8>>());
        }
        let n = stream.read(&mut chunk).expect("something to read");
        assert!(n > 0, "closed after {}", text(rest));
        rest.extend_from_slice(&chunk[..n]);
    }
}

/// One of the gateway's counters, as its operator sees it at this moment.
fn counter(operator: &mut Connection, name: &str) -> u64 {
    let reply = operator.call(&["UNSLOW", "SHOW", "STATS"]).unwrap();
    let value = |row: String| row.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok();
    let found = reply.items().iter().filter_map(Value::text).find_map(value);
    found.unwrap_or_else(|| panic!("no {name} in {reply:?}"))
}

/// One of the gateway's counters, as its metrics have it: at most a second old.
fn metric(gateway: &Gateway, name: &str) -> u64 {
    let (text, start) = (gateway.metrics(), format!("unslow_gateway_{name} "));
    let found = text.lines().find_map(|l| l.strip_prefix(start.as_str())?.parse::<u64>().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The gateway's connections to servers, a line each.
fn backends(operator: &mut Connection) -> Vec<String> {
    let reply = operator.call(&["UNSLOW", "SHOW", "BACKENDS"]).unwrap();
    reply.items().iter().filter_map(Value::text).collect()
}

// What clients get.

/// A random command; `tag` keeps its keys in one slot.
fn random_command(rng: &mut StdRng, tag: &str) -> Vec<String> {
    let key = |rng: &mut StdRng, kind: &str| format!("{tag}{kind}{}", rng.random_range(0..5));
    let n = |rng: &mut StdRng| rng.random_range(-3i64..12).to_string();
    let words: Vec<String> = match rng.random_range(0..46) {
        0 => vec!["SET".into(), key(rng, "s"), n(rng)],
        1 => vec!["GET".into(), key(rng, "s")],
        2 => vec!["INCR".into(), key(rng, "s")],
        3 => vec!["APPEND".into(), key(rng, "s"), "x".into()],
        4 => vec!["MSET".into(), key(rng, "s"), n(rng), key(rng, "s"), n(rng)],
        5 => vec!["MGET".into(), key(rng, "s"), key(rng, "s"), key(rng, "l")],
        6 => vec!["DEL".into(), key(rng, "s"), key(rng, "l"), key(rng, "h")],
        7 => vec!["EXISTS".into(), key(rng, "s"), key(rng, "s"), key(rng, "z")],
        8 => vec!["RPUSH".into(), key(rng, "l"), n(rng), n(rng)],
        9 => vec!["LRANGE".into(), key(rng, "l"), n(rng), n(rng)],
        10 => vec!["LPOP".into(), key(rng, "l")],
        11 => vec!["HSET".into(), key(rng, "h"), "f".into(), n(rng)],
        12 => vec!["HGET".into(), key(rng, "h"), "f".into()],
        13 => vec!["HGETALL".into(), key(rng, "h")],
        14 => vec!["ZADD".into(), key(rng, "z"), n(rng), "m".into()],
        15 => vec!["ZSCORE".into(), key(rng, "z"), "m".into()],
        16 => vec!["ZRANGE".into(), key(rng, "z"), "0".into(), "-1".into(), "WITHSCORES".into()],
        17 => vec!["SADD".into(), key(rng, "t"), n(rng)],
        18 => vec!["SISMEMBER".into(), key(rng, "t"), n(rng)],
        19 => vec!["SCARD".into(), key(rng, "t")],
        20 => vec!["TYPE".into(), key(rng, "s")],
        21 => vec!["GET".into(), key(rng, "l")], // WRONGTYPE
        22 => vec!["GET".into()],
        23 => vec!["NOSUCHCOMMAND".into(), "a".into()],
        24 => vec!["EVAL".into(), "return redis.call('incr', KEYS[1])".into(), "1".into(), key(rng, "s")],
        25 => vec!["EVAL".into(), "return {1, 'a', false}".into(), "0".into()],
        26 => vec!["ECHO".into(), n(rng)],
        27 => vec!["PING".into()],
        28 => vec!["PING".into(), "hello".into()],
        29 => vec!["MULTI".into()],
        30 | 31 => vec!["EXEC".into()],
        32 => vec!["DISCARD".into()],
        33 => vec!["SETRANGE".into(), key(rng, "s"), "3".into(), "abc".into()],
        34 => vec!["GETDEL".into(), key(rng, "s")],
        35 => vec!["EXPIRE".into(), key(rng, "s"), "1000".into()],
        36 => vec!["PERSIST".into(), key(rng, "s")],
        37 => vec!["OBJECT".into(), "ENCODING".into(), key(rng, "l")],
        38 => vec!["BLPOP".into(), key(rng, "l"), "0.01".into()],
        39 => vec!["RPOPLPUSH".into(), key(rng, "l"), key(rng, "l")],
        40 => vec!["SETEX".into(), key(rng, "s"), "0".into(), "x".into()],
        41 => vec!["GETRANGE".into(), key(rng, "s"), "0".into(), n(rng)],
        42 => vec!["ZUNIONSTORE".into(), key(rng, "z"), "2".into(), key(rng, "z"), key(rng, "z")],
        43 => vec!["SORT".into(), key(rng, "l")],
        44 => vec!["WATCH".into(), key(rng, "s")],
        _ => vec!["UNLINK".into(), key(rng, "s")],
    };
    words
}

/// The same commands to a server and through the gateway to another one: the same bytes come back.
fn differential(gateway: &Gateway, direct: &Server, protocol: u8, tag: &str, seed: u64, rounds: usize) {
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut one = TcpStream::connect(direct.address()).unwrap();
    let mut other = raw(gateway);
    let (mut at_one, mut at_other) = (direct.connect_with(&options(2)).unwrap(), client(gateway));
    one.set_read_timeout(Some(PATIENCE)).unwrap();
    for stream in [&mut one, &mut other] {
        if protocol == 3 {
            stream.write_all(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n").unwrap();
            frames(stream, 1);
        }
    }
    for round in 0..rounds {
        let batch: Vec<Vec<String>> = (0..rng.random_range(1..40)).map(|_| random_command(&mut rng, tag)).collect();
        let mut bytes = Vec::new();
        batch.iter().for_each(|c| write_command(&mut bytes, c));
        // In pieces, as networks deliver.
        let cut = rng.random_range(0..=bytes.len());
        one.write_all(&bytes).unwrap();
        other.write_all(&bytes[..cut]).unwrap();
        other.write_all(&bytes[cut..]).unwrap();
        let (expected, got) = (frames(&mut one, batch.len()), frames(&mut other, batch.len()));
        let contents = |c: &mut Connection| {
            let reads = [
                ("s", "GET", &[][..]),
                ("l", "LRANGE", &["0", "-1"]),
                ("h", "HGETALL", &[]),
                ("z", "ZCARD", &[]),
                ("t", "SCARD", &[]),
            ];
            let all = reads.iter().flat_map(|(kind, command, more)| {
                (0..5).map(move |i| {
                    [
                        &[command.to_string(), format!("{tag}{kind}{i}")][..],
                        &more.iter().map(|m| m.to_string()).collect::<Vec<_>>(),
                    ]
                    .concat()
                })
            });
            let all: Vec<Vec<String>> = all.collect();
            let replies = c.pipeline(&all).unwrap();
            all.into_iter().zip(replies).map(|(c, r)| format!("{c:?}: {r:?}")).collect::<Vec<_>>()
        };
        if expected != got {
            println!("{:?}\n{:?}", contents(&mut at_one), contents(&mut at_other));
        }
        for ((command, expected), got) in batch.iter().zip(&expected).zip(&got) {
            assert_eq!(text(got), text(expected), "round {round}, seed {seed}: {command:?} in {batch:?}");
        }
        for (a, b) in contents(&mut at_one).into_iter().zip(contents(&mut at_other)) {
            assert_eq!(b, a, "after round {round}, seed {seed}: {batch:?}");
        }
    }
}

#[test]
fn random_commands_get_the_same_answers_as_from_the_server_itself() {
    for name in ["valkey-9.1", "redis-7.0", "redis-6.2", "redis-5.0"] {
        let direct = standalone(name);
        let behind = standalone(name);
        let gateway = gate(&behind.url(), |_| {});
        differential(&gateway, &direct, 2, "", 1, 150);
        if name != "redis-5.0" {
            differential(&gateway, &direct, 3, "", 2, 150);
        }
    }
}

#[test]
fn a_cluster_behind_the_gateway_answers_like_one_server() {
    for name in ["valkey-9.1", "redis-5.0"] {
        let direct = standalone(name);
        let deployment = steady(name);
        let gateway = gate(&deployment.url(), |_| {});
        // Keys of one slot, since some commands want them so.
        for seed in 0..3 {
            differential(&gateway, &direct, 2, &format!("{{t{seed}}}"), seed, 80);
        }
    }
}

#[test]
fn commands_over_many_keys_and_nodes_are_one_command_to_the_client() {
    for name in ["valkey-9.1", "redis-7.0", "redis-6.2", "redis-5.0"] {
        let deployment = steady(name);
        let gateway = gate(&deployment.url(), |_| {});
        let mut c = client(&gateway);
        let keys: Vec<String> = (0..500).map(|i| format!("k{i}")).collect();
        let mut mset = vec!["MSET".to_string()];
        keys.iter().for_each(|k| mset.extend([k.clone(), format!("v{k}")]));
        assert_eq!(c.call(&mset).unwrap().text().as_deref(), Some("OK"), "{name}");
        let mut mget = vec!["MGET".to_string(), "missing".into()];
        mget.extend(keys.iter().rev().cloned());
        let values = c.call(&mget).unwrap();
        assert_eq!(values.items()[0], Value::Null);
        for (key, value) in keys.iter().rev().zip(&values.items()[1..]) {
            assert_eq!(value.text().unwrap(), format!("v{key}"), "{name}");
        }
        let count = |command: &str, c: &mut Connection| {
            let mut words = vec![command.to_string()];
            words.extend(keys.iter().take(100).cloned());
            c.call(&words).unwrap().integer().unwrap()
        };
        assert_eq!(count("EXISTS", &mut c), 100);
        assert_eq!(c.call(&["DBSIZE"]).unwrap().integer(), Some(500), "{name}");
        assert_eq!(count("DEL", &mut c), 100);
        assert_eq!(c.call(&["KEYS", "k*"]).unwrap().items().len(), 400, "{name}");
        let (mut cursor, mut seen) = ("0".to_string(), std::collections::BTreeSet::new());
        loop {
            let reply = c.call(&["SCAN", &cursor, "COUNT", "50"]).unwrap();
            seen.extend(reply.items()[1].items().iter().filter_map(Value::text));
            cursor = reply.items()[0].text().unwrap();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(seen.len(), 400, "{name}");
        assert!(c.call(&["RANDOMKEY"]).unwrap().text().unwrap().starts_with('k'));
        let sha = c.call(&["SCRIPT", "LOAD", "return redis.call('get', KEYS[1])"]).unwrap().text().unwrap();
        for key in &keys[200..220] {
            assert_eq!(c.call(&["EVALSHA", &sha, "1", key]).unwrap().text().unwrap(), format!("v{key}"), "{name}");
        }
        assert_eq!(c.call(&["SCRIPT", "EXISTS", &sha, "ff"]).unwrap().items(), [Value::Integer(1), Value::Integer(0)]);
        // What cannot be split says so, and does nothing.
        for command in [
            vec!["MSETNX", "k200", "x", "k201", "x"],
            vec!["RENAME", "k200", "k201"],
            vec!["SINTERSTORE", "d", "k200", "k201"],
            vec!["EVAL", "return 1", "2", "k200", "k201"],
        ] {
            let why = c.call(&command).map_err(|e| e.to_string());
            assert!(why.as_ref().is_err_and(|e| e.contains("same slot")), "{name}: {command:?}: {why:?}");
        }
        for command in [vec!["SHUTDOWN"], vec!["BGSAVE"], vec!["REPLICAOF", "no", "one"], vec!["PSYNC", "?", "-1"]] {
            let why = c.call(&command).map_err(|e| e.to_string());
            assert!(why.as_ref().is_err_and(|e| e.contains("unslow")), "{name}: {command:?}: {why:?}");
        }
        assert_eq!(c.call(&["FLUSHALL"]).unwrap().text().as_deref(), Some("OK"));
        assert_eq!(c.call(&["DBSIZE"]).unwrap().integer(), Some(0), "{name}");
        drop(gateway);
        let strict = gate(&deployment.url(), |config| config.strict = true);
        let why = client(&strict).call(&["MSET", "a", "1", "b", "2"]).unwrap_err().to_string();
        assert!(why.contains("CROSSSLOT"), "{why}");
    }
}

#[test]
fn transactions_are_the_servers_own() {
    let deployment = steady("valkey-9.1");
    let gateway = gate(&deployment.url(), |_| {});
    let (mut a, mut b) = (client(&gateway), client(&gateway));
    let mut run = |words: &[&str]| a.call(words).map_err(|e| e.to_string());
    let many = |c: &mut Connection, commands: &[&[&str]]| {
        let commands: Vec<Vec<&str>> = commands.iter().map(|c| c.to_vec()).collect();
        c.pipeline(&commands).unwrap().into_iter().map(|r| r.map_err(|e| e.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(run(&["WATCH", "k"]).unwrap().text().unwrap(), "OK");
    b.call(&["SET", "k", "other"]).unwrap();
    let replies = many(&mut a, &[&["MULTI"], &["SET", "k", "mine"], &["EXEC"], &["GET", "k"]]);
    assert_eq!(replies[2], Ok(Value::Null), "a watched key changed");
    assert_eq!(replies[3].as_ref().unwrap().text().unwrap(), "other");
    let replies = many(&mut a, &[&["MULTI"], &["INCR", "n"], &["INCR", "n"], &["EXEC"], &["INCR", "n"]]);
    assert_eq!(replies[3], Ok(Value::Array(vec![Value::Integer(1), Value::Integer(2)])));
    assert_eq!(replies[4], Ok(Value::Integer(3)));
    // A key of another slot spoils it, and nothing of it runs.
    let other = (0..).map(|i| format!("x{i}")).find(|k| slot_of(k.as_bytes()) != slot_of(b"n")).unwrap();
    let replies = many(&mut a, &[&["MULTI"], &["INCR", "n"], &["SET", &other, "1"], &["EXEC"], &["GET", "n"]]);
    assert!(replies[2].is_err() && replies[3].is_err(), "{replies:?}");
    assert!(!format!("{replies:?}").contains("MOVED"), "{replies:?}");
    assert_eq!(replies[4].as_ref().unwrap().text().unwrap(), "3");
    // So does a wrong command, and a client that goes in the middle leaves nothing behind.
    let replies = many(&mut a, &[&["MULTI"], &["NOSUCH"], &["INCR", "n"], &["EXEC"], &["MULTI"], &["EXEC"]]);
    assert!(replies[1].is_err() && replies[3].is_err(), "{replies:?}");
    assert_eq!(replies[5], Ok(Value::Array(vec![])));
    for _ in 0..40 {
        let mut gone = raw(&gateway);
        gone.write_all(b"WATCH n\r\nMULTI\r\nINCR n\r\n").unwrap();
        frames(&mut gone, 3);
    }
    assert_eq!(b.call(&["GET", "n"]).unwrap().text().unwrap(), "3");
    let replies = many(&mut b, &[&["MULTI"], &["GET", "n"], &["EXEC"]]);
    assert_eq!(replies[2].as_ref().unwrap().items().len(), 1, "{replies:?}");
}

#[test]
fn blocking_commands_do_not_delay_other_clients_and_give_their_connection_back() {
    let deployment = steady("redis-7.0");
    let gateway = gate(&deployment.url(), |_| {});
    let blocked_clients = || -> Result<u64, Error> {
        let mut sum = 0;
        for node in &deployment.nodes {
            let info = unslow_engine::info(&mut node.connect()?, "clients")?;
            sum += info.number("blocked_clients").unwrap() as u64;
        }
        Ok(sum)
    };
    let mut other = client(&gateway);
    let mut blocked: Vec<TcpStream> = (0..30).map(|_| raw(&gateway)).collect();
    for stream in &mut blocked {
        // What follows waits for its turn.
        stream.write_all(b"BLPOP q 0\r\nGET after\r\nPING\r\n").unwrap();
    }
    until_ok("all of them to block", || Ok::<_, Error>(blocked_clients()? == 30));
    // Other clients are answered meanwhile.
    other.call(&["SET", "after", "1"]).unwrap();
    assert_eq!(other.call(&["GET", "after"]).unwrap().text().as_deref(), Some("1"));
    assert_eq!(blocked_clients().unwrap(), 30);
    for i in 0..30 {
        other.call(&["RPUSH", "q", &i.to_string()]).unwrap();
    }
    let mut got: Vec<String> = blocked
        .iter_mut()
        .map(|s| {
            let all = frames(s, 3);
            assert_eq!((text(&all[1]), text(&all[2])), ("$1\\r\\n1\\r\\n".into(), "+PONG\\r\\n".into()));
            text(&all[0])
        })
        .collect();
    got.sort();
    got.dedup();
    assert_eq!(got.len(), 30, "each element went to one client");
    // A client that goes while it blocks takes nothing with it.
    let mut gone = raw(&gateway);
    gone.write_all(b"BLPOP q 0\r\n").unwrap();
    until_ok("the client to block", || Ok::<_, Error>(blocked_clients()? == 1));
    drop(gone);
    until_ok("its connection to go", || Ok::<_, Error>(blocked_clients()? == 0));
    other.call(&["RPUSH", "q", "kept"]).unwrap();
    assert_eq!(other.call(&["LLEN", "q"]).unwrap().integer(), Some(1));
    // CLIENT UNBLOCK finds it behind the gateway.
    let mut stuck = raw(&gateway);
    stuck.write_all(b"CLIENT ID\r\n").unwrap();
    let id = text(&frames(&mut stuck, 1)[0]).trim_start_matches(':').trim_end_matches("\\r\\n").to_string();
    stuck.write_all(b"BLPOP nothing 0\r\n").unwrap();
    until_ok("it to block", || Ok::<_, Error>(blocked_clients()? == 1));
    assert_eq!(other.call(&["CLIENT", "UNBLOCK", &id]).unwrap().integer(), Some(1));
    assert_eq!(text(&frames(&mut stuck, 1)[0]), "*-1\\r\\n");
    assert_eq!(other.call(&["WAIT", "1", "50000"]).unwrap().integer(), Some(1));
}

#[test]
fn messages_reach_subscribers_of_both_protocols_and_follow_their_slot() {
    let deployment = cluster("valkey-9.1");
    let gateway = gate(&deployment.url(), |_| {});
    let mut sender = client(&gateway);
    let mut two = raw(&gateway);
    two.write_all(b"SUBSCRIBE a b\r\nPSUBSCRIBE c*\r\n").unwrap();
    frames(&mut two, 3);
    two.write_all(b"PING\r\nGET x\r\n").unwrap();
    let answers = frames(&mut two, 2);
    assert_eq!(text(&answers[0]), "*2\\r\\n$4\\r\\npong\\r\\n$0\\r\\n\\r\\n");
    assert!(text(&answers[1]).starts_with("-ERR Can"), "{}", text(&answers[1]));
    let mut three = raw(&gateway);
    three.write_all(b"HELLO 3\r\nSUBSCRIBE a\r\nGET x\r\n").unwrap();
    let answers = frames(&mut three, 3);
    assert!(answers.iter().any(|f| f.starts_with(b">3")) && answers.iter().any(|f| f == b"_\r\n"));
    sender.call(&["PUBLISH", "a", "hello"]).unwrap();
    assert_eq!(text(&frames(&mut two, 1)[0]), "*3\\r\\n$7\\r\\nmessage\\r\\n$1\\r\\na\\r\\n$5\\r\\nhello\\r\\n");
    assert_eq!(text(&frames(&mut three, 1)[0]), ">3\\r\\n$7\\r\\nmessage\\r\\n$1\\r\\na\\r\\n$5\\r\\nhello\\r\\n");
    sender.call(&["PUBLISH", "cat", "meow"]).unwrap();
    assert!(text(&frames(&mut two, 1)[0]).contains("pmessage"));
    two.write_all(b"UNSUBSCRIBE\r\nPUNSUBSCRIBE\r\n").unwrap();
    frames(&mut two, 3);
    two.write_all(b"GET x\r\n").unwrap();
    assert_eq!(text(&frames(&mut two, 1)[0]), "$-1\\r\\n");
    // Sharded ones over several nodes, through a move of their slot and the end of their node.
    let names: Vec<String> = (0..6).map(|i| format!("ch{i}")).collect();
    let mut sharded = raw(&gateway);
    sharded.write_all(format!("SSUBSCRIBE {}\r\n", names.join(" ")).as_bytes()).unwrap();
    frames(&mut sharded, 6);
    let slot = slot_of(names[0].as_bytes());
    let from = owner_of(&deployment, slot);
    let to = (from + 1) % 3;
    move_slot(&deployment, slot, from, to, Duration::ZERO);
    let heard = |sharded: &mut TcpStream, sender: &mut Connection| {
        for name in &names {
            until("the subscription to follow", || {
                sender.call(&["SPUBLISH", name, "x"]).is_ok_and(|n| n.integer() == Some(1))
            });
            assert!(text(&frames(sharded, 1)[0]).contains(&format!("smessage\\r\\n$3\\r\\n{name}")));
        }
    };
    heard(&mut sharded, &mut sender);
    deployment.nodes[to].kill();
    heard(&mut sharded, &mut sender);
}

#[test]
fn a_client_gets_all_of_a_long_pipeline_and_what_it_asked_for_before_it_closed_its_side() {
    let deployment = steady("valkey-9.1");
    let gateway = gate(&deployment.url(), |_| {});
    let mut stream = raw(&gateway);
    let mut bytes = Vec::new();
    for i in 0..100_000 {
        write_command(&mut bytes, &["SET".to_string(), format!("k{}", i % 5000), i.to_string()]);
        write_command(&mut bytes, &["GET".to_string(), format!("k{}", i % 5000)]);
    }
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        writer.write_all(&bytes).unwrap();
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    sender.join().unwrap();
    let mut at = 0;
    for i in 0..100_000 {
        let value = i.to_string();
        let expected = format!("+OK\r\n${}\r\n{value}\r\n", value.len());
        assert_eq!(&all[at..at + expected.len()], expected.as_bytes(), "command {i}");
        at += expected.len();
    }
    assert_eq!(at, all.len());
}

#[test]
fn a_value_of_512_mb_goes_through_both_ways_without_being_kept() {
    const SIZE: usize = 512 << 20;
    let server = standalone("valkey-9.1");
    let gateway = gate(&server.url(), |_| {});
    let mut other = client(&gateway);
    let mut stream = raw(&gateway);
    let memory = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() >> 10
    };
    let before = memory();
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        write!(writer, "*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${SIZE}\r\n").unwrap();
        let chunk: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
        for _ in 0..SIZE >> 20 {
            writer.write_all(&chunk).unwrap();
        }
        writer.write_all(b"\r\nGET big\r\n").unwrap();
    });
    let mut head = [0u8; 5];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"+OK\r\n");
    sender.join().unwrap();
    let expected = format!("${SIZE}\r\n");
    let mut header = vec![0; expected.len()];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header, expected.as_bytes());
    let mut chunk = vec![0; 1 << 20];
    for i in 0..SIZE >> 20 {
        stream.read_exact(&mut chunk).unwrap();
        assert!(chunk.iter().enumerate().all(|(j, b)| *b == (j % 251) as u8), "MiB {i} is not what was written");
        if i == 100 {
            // Others are served meanwhile.
            assert_eq!(other.call(&["STRLEN", "big"]).unwrap().integer(), Some(SIZE as i64));
        }
    }
    stream.read_exact(&mut [0; 2]).unwrap();
    let grown = memory() - before;
    assert!(grown < 200, "{grown} MB were kept of a value that only goes through");
}

#[test]
fn a_client_that_does_not_read_stalls_only_itself() {
    const ASKED: usize = 200;
    let server = standalone("valkey-9.1");
    let gateway = gate(&server.url(), |config| config.client_output_bytes = 8 << 20);
    let mut other = client(&gateway);
    let value = "v".repeat(1 << 20);
    other.call(&["SET", "big", &value]).unwrap();
    let mut slow: Vec<TcpStream> = (0..3).map(|_| raw(&gateway)).collect();
    for stream in &mut slow[..2] {
        // Known for long answers, they have connections of their own and may take their time; the third is not.
        stream.write_all(b"GET big\r\n").unwrap();
        frames(stream, 1);
    }
    for stream in &mut slow {
        stream.write_all("GET big\r\n".repeat(ASKED).as_bytes()).unwrap();
    }
    for stream in &slow {
        assert_eq!(stream.peek(&mut [0]).unwrap(), 1, "replies have come, and nothing reads them");
    }
    let mut worst = Duration::ZERO;
    for _ in 0..1000 {
        let begun = Instant::now();
        assert_eq!(other.call(&["GET", "nothing"]).unwrap(), Value::Null);
        worst = worst.max(begun.elapsed());
    }
    println!("1000 commands beside three clients that do not read, the slowest took {worst:?}");
    // Not one of the three could have been sent all of its replies meanwhile: the gateway has put out less than one needs.
    let sent = counter(&mut other, "sent_bytes_total");
    assert!(sent < (ASKED * value.len()) as u64, "{sent} bytes were sent to clients that do not read");
    until("the one without connections of its own to be closed", || {
        counter(&mut other, "clients_closed_slow_total") > 0
    });
    let all = frames(&mut slow[0], ASKED);
    assert!(all.iter().all(|f| f.len() == value.len() + 12));
    let mut rest = Vec::new();
    let _ = slow[2].read_to_end(&mut rest);
    assert!(rest.len() < 40 << 20, "who had no connection of its own was closed at its limit: {} bytes", rest.len());
    assert_eq!(counter(&mut other, "clients_closed_slow_total"), 1);
}

#[test]
fn an_answer_that_comes_after_its_client_has_gone_is_nobodys() {
    let server = standalone("redis-7.0");
    let gateway = gate(&server.url(), |_| {});
    let mut c = client(&gateway);
    for i in 0..200 {
        c.call(&["SET", &format!("k{i}"), &format!("v{i}")]).unwrap();
    }
    let mut rng = StdRng::seed_from_u64(7);
    for round in 0..300 {
        // Asks for much and leaves in the middle; another one comes to the same place.
        let mut gone = raw(&gateway);
        let n = rng.random_range(1..50);
        for _ in 0..n {
            write!(gone, "GET k{}\r\n", rng.random_range(0..200)).unwrap();
        }
        drop(gone);
        let i = round % 200;
        assert_eq!(c.call(&["GET", &format!("k{i}")]).unwrap().text().unwrap(), format!("v{i}"));
        let mut next = raw(&gateway);
        write!(next, "GET k{i}\r\n").unwrap();
        assert_eq!(text(&frames(&mut next, 1)[0]), format!("${}\\r\\nv{i}\\r\\n", format!("v{i}").len()));
    }
}

#[test]
fn bytes_that_are_no_command_get_an_error_and_the_end() {
    let server = standalone("valkey-9.1");
    let gateway = gate(&server.url(), |_| {});
    for bytes in [
        &b"*1\r\n$-5\r\n"[..],
        b"*99999999\r\n",
        b"*1\r\nGET\r\n",
        b"GET \"open\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$600000000\r\n",
    ] {
        let mut stream = raw(&gateway);
        stream.write_all(bytes).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all.starts_with(b"-ERR Protocol error"), "{}: {}", bytes.escape_ascii(), all.escape_ascii());
    }
    let mut rng = StdRng::seed_from_u64(3);
    for _ in 0..300 {
        let mut stream = raw(&gateway);
        let noise: Vec<u8> = (0..rng.random_range(1..300)).map(|_| rng.random()).collect();
        let _ = stream.write_all(&noise);
    }
    assert_eq!(client(&gateway).call(&["PING"]).unwrap().text().as_deref(), Some("PONG"));
}

// Who clients are.

#[test]
fn users_keep_their_rights_and_nobody_gets_anothers() {
    let server = server("valkey-9.1", &[("requirepass", "owner")]);
    let mut admin = server.connect().unwrap();
    admin.call(&["ACL", "SETUSER", "ann", "on", ">a", "~a:*", "+get", "+set", "+multi", "+exec", "+hello"]).unwrap();
    admin.call(&["ACL", "SETUSER", "bob", "on", ">b", "~b:*", "+get", "+set"]).unwrap();
    let gateway = gate(&server.url(), |config| {
        config.target = format!("redis://:owner@{}", server.address());
        config.client_auth = ClientAuth::Server;
    });
    let call = |s: &mut TcpStream, line: &str| {
        s.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        text(&frames(s, 1)[0])
    };
    let (mut ann, mut bob) = (raw(&gateway), raw(&gateway));
    assert!(call(&mut ann, "GET a:1").starts_with("-NOAUTH"));
    assert!(call(&mut ann, "UNSLOW SHOW STATS").starts_with("-NOAUTH"));
    assert!(call(&mut ann, "AUTH ann wrong").starts_with("-WRONGPASS"));
    assert!(call(&mut ann, "GET a:1").starts_with("-NOAUTH"));
    assert_eq!(call(&mut ann, "AUTH ann a"), "+OK\\r\\n");
    assert!(call(&mut bob, "HELLO 3 AUTH bob b").starts_with("%7"));
    for _ in 0..20 {
        assert_eq!(call(&mut ann, "SET a:1 x"), "+OK\\r\\n");
        assert!(call(&mut ann, "SET b:1 x").starts_with("-NOPERM"));
        assert_eq!(call(&mut bob, "SET b:1 x"), "+OK\\r\\n");
        assert!(call(&mut bob, "GET a:1").starts_with("-NOPERM"));
    }
    ann.write_all(b"MULTI\r\nSET a:1 y\r\nEXEC\r\n").unwrap();
    assert_eq!(text(&frames(&mut ann, 3)[2]), "*1\\r\\n+OK\\r\\n");
    assert!(call(&mut ann, "AUTH ann wrong").starts_with("-WRONGPASS"));
    assert_eq!(call(&mut ann, "GET a:1"), "$1\\r\\ny\\r\\n", "a wrong password changes nothing");
    assert_eq!(call(&mut ann, "RESET"), "+RESET\\r\\n");
    assert!(call(&mut ann, "GET a:1").starts_with("-NOAUTH"));
    let shown = {
        let mut c = raw(&gateway);
        call(&mut c, "AUTH owner");
        call(&mut c, "UNSLOW SHOW CONFIG")
    };
    assert!(shown.contains("hold_ms") && !shown.contains("owner"), "{shown}");
}

#[test]
fn databases_protocols_and_names_belong_to_each_client() {
    let server = standalone("redis-7.0");
    let gateway = gate(&server.url(), |_| {});
    let (mut a, mut b) = (client(&gateway), client(&gateway));
    a.call(&["SELECT", "3"]).unwrap();
    a.call(&["SET", "k", "three"]).unwrap();
    assert_eq!(b.call(&["GET", "k"]).unwrap(), Value::Null);
    assert!(a.call(&["SELECT", "99"]).is_err());
    assert_eq!(a.call(&["GET", "k"]).unwrap().text().as_deref(), Some("three"));
    a.call(&["CLIENT", "SETNAME", "worker-1"]).unwrap();
    assert_eq!(a.call(&["CLIENT", "GETNAME"]).unwrap().text().as_deref(), Some("worker-1"));
    assert_eq!(b.call(&["CLIENT", "GETNAME"]).unwrap(), Value::Null);
    let list = b.call(&["CLIENT", "LIST"]).unwrap().text().unwrap();
    assert!(list.contains("name=worker-1") && list.lines().count() == 2, "{list}");
    let mut three = Connection::open(&target(&gateway), &options(3)).unwrap();
    three.call(&["HSET", "h", "f", "v"]).unwrap();
    let mut stream = raw(&gateway);
    stream.write_all(b"HGETALL h\r\nHELLO 3\r\nHGETALL h\r\nHELLO 4\r\n").unwrap();
    let all = frames(&mut stream, 4);
    assert!(all[0].starts_with(b"*2") && all[1].starts_with(b"%7") && all[2].starts_with(b"%1"), "{}", text(&all[2]));
    assert!(all[3].starts_with(b"-NOPROTO"));
    stream
        .write_all(
            b"CLIENT REPLY OFF\r\nSET x 1\r\nGET x\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nGET x\r\nGET x\r\n",
        )
        .unwrap();
    let all = frames(&mut stream, 2);
    assert_eq!((text(&all[0]), text(&all[1])), ("+OK\\r\\n".into(), "$1\\r\\n1\\r\\n".into()));
    // Tracking has its own connection, and invalidations come between answers.
    stream.write_all(b"CLIENT TRACKING ON\r\nGET x\r\n").unwrap();
    frames(&mut stream, 2);
    b.call(&["SET", "x", "2"]).unwrap();
    let push = text(&frames(&mut stream, 1)[0]);
    assert!(push.starts_with(">2") && push.contains("invalidate"), "{push}");
    // MONITOR sees what goes through, among the watcher's own questions.
    let (mut monitor, mut rest) = (raw(&gateway), Vec::new());
    monitor.write_all(b"MONITOR\r\n").unwrap();
    assert_eq!(next_frame(&mut monitor, &mut rest), "+OK\\r\\n");
    b.call(&["SET", "seen", "1"]).unwrap();
    until("MONITOR to show the command", || next_frame(&mut monitor, &mut rest).contains("seen"));
}

// What happens behind.

/// Writes and reads pairs through the gateway until told to stop; every reply is checked.
struct Pairs {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<BTreeMap<String, u64>>>,
    done: Arc<AtomicU64>,
}

impl Pairs {
    fn start(gateway: &Gateway, clients: usize, keys: &[String]) -> Pairs {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..clients)
            .map(|n| {
                let (target, stop, done) = (target(gateway), stop.clone(), done.clone());
                let keys: Vec<String> = keys.iter().map(|k| format!("{k}:{n}")).collect();
                std::thread::spawn(move || {
                    let mut c = Connection::open(&target, &options(2)).unwrap();
                    let mut wrong: BTreeMap<String, u64> = BTreeMap::new();
                    // After a write that may or may not have run, the value is one of several.
                    let mut maybe: BTreeMap<String, Vec<String>> = BTreeMap::new();
                    let mut i = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let key = &keys[(i % keys.len() as u64) as usize];
                        let value = format!("{n}:{i}");
                        i += 1;
                        let commands = vec![vec!["SET", key, &value], vec!["GET", key]];
                        let replies = match c.pipeline(&commands) {
                            Ok(replies) => replies,
                            Err(e) => {
                                *wrong.entry(format!("connection: {e}")).or_insert(0) += 1;
                                c = Connection::open(&target, &options(2)).unwrap();
                                continue;
                            }
                        };
                        let set = match &replies[0] {
                            Ok(_) => {
                                maybe.remove(key);
                                vec![value.clone()]
                            }
                            Err(e) => {
                                *wrong.entry(e.to_string()).or_insert(0) += 1;
                                let could = maybe.entry(key.clone()).or_default();
                                could.push(value.clone());
                                continue;
                            }
                        };
                        match &replies[1] {
                            Ok(got) if got.text().is_some_and(|t| set.contains(&t)) => {}
                            Ok(got) => *wrong.entry(format!("wrong value: {got:?} for {value}")).or_insert(0) += 1,
                            Err(e) => *wrong.entry(e.to_string()).or_insert(0) += 1,
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    wrong
                })
            })
            .collect();
        Pairs { stop, threads, done }
    }

    fn wait(&self, count: u64) {
        until("pairs to be written and read", || self.done.load(Ordering::Relaxed) >= count);
    }

    fn end(self) -> (u64, BTreeMap<String, u64>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for thread in self.threads {
            for (what, n) in thread.join().unwrap() {
                *all.entry(what).or_insert(0) += n;
            }
        }
        (self.done.load(Ordering::Relaxed), all)
    }
}

/// Writes and reads so many pairs at least while the three slots they are in move so many times at least.
fn pairs_while_slots_move(least_pairs: u64, least_moves: usize) {
    for (name, to_new) in [("valkey-9.1", true), ("redis-6.2", false)] {
        let mut deployment = steady(name);
        let gateway = gate(&deployment.url(), |_| {});
        // All of the load is on three slots.
        let tags = ["t0", "t1", "t2"];
        let keys: Vec<String> = (0..30).map(|i| format!("{{{}}}{i}", tags[i % 3])).collect();
        let pairs = Pairs::start(&gateway, 20, &keys);
        pairs.wait(2000);
        let mut masters = vec![0, 1, 2];
        if to_new {
            // A master that nothing has heard of yet.
            let settings = [
                ("cluster-enabled", "yes"),
                ("cluster-node-timeout", "2000"),
                ("cluster-allow-replica-migration", "no"),
            ];
            let newcomer = server(name, &settings);
            let first = &deployment.nodes[0];
            newcomer.connect().unwrap().call(&["CLUSTER", "MEET", &first.ip, &first.port.to_string()]).unwrap();
            masters.push(deployment.nodes.len());
            deployment.nodes.push(newcomer.into());
            everywhere(&deployment, "every node to know the new one", |view| {
                view.nodes.iter().filter(|n| !n.is("handshake")).count() == 7
            });
            until_ok("the new node to be well", || {
                let info = deployment.nodes[6].connect()?.call(&["CLUSTER", "INFO"])?;
                Ok::<_, Error>(info.text().is_some_and(|t| t.contains("cluster_state:ok")))
            });
        }
        let mut owners: Vec<usize> = tags.iter().map(|tag| owner_of(&deployment, slot_of(tag.as_bytes()))).collect();
        let mut moves = 0;
        while pairs.done.load(Ordering::Relaxed) < least_pairs || moves < least_moves {
            for (tag, owner) in tags.iter().zip(&mut owners) {
                let at = masters.iter().position(|m| *m == *owner).unwrap();
                let to = masters[(at + 1) % masters.len()];
                // The pause lets commands meet the slot half way.
                move_slot(&deployment, slot_of(tag.as_bytes()), *owner, to, Duration::from_millis(2));
                *owner = to;
                moves += 1;
            }
        }
        let (done, wrong) = pairs.end();
        println!("{name}: {done} pairs, {moves} moves: {wrong:?}");
        assert!(wrong.is_empty(), "{name}: {wrong:?} in {done} pairs and {moves} moves");
        until("redirects in the metrics", || metric(&gateway, "moved_total") + metric(&gateway, "ask_total") > 0);
    }
}

#[test]
fn twenty_thousand_pairs_through_busy_slots_on_the_move_have_no_error_and_no_wrong_value() {
    pairs_while_slots_move(20_000, 12);
}

#[test]
#[ignore = "long: ten times the pairs of the test above"]
fn two_hundred_thousand_pairs_through_busy_slots_on_the_move_have_no_error_and_no_wrong_value() {
    pairs_while_slots_move(200_000, 30);
}

/// The highest config epoch that any server has seen: every failover takes at least one.
fn config_epoch(deployment: &Deployment) -> u64 {
    // One of them may be stopped.
    let quick = Options { command_timeout: Duration::from_secs(2), ..options(2) };
    let of = |server: &Arc<Server>| -> Option<u64> {
        let mut c = server.connect_with(&quick).ok()?;
        let epoch = if deployment.sentinels.is_empty() {
            Info::parse(&c.call(&["CLUSTER", "INFO"]).ok()?.text()?).number("cluster_current_epoch")? as u64
        } else {
            c.call(&["SENTINEL", "MASTER", "mymaster"]).ok()?.get("config-epoch")?.integer()? as u64
        };
        Some(epoch)
    };
    let all = if deployment.sentinels.is_empty() { &deployment.nodes } else { &deployment.sentinels };
    all.iter().filter_map(of).max().expect("a server answers")
}

/// Ends a master under load, one way or another.
fn failover(kind: &str, deployment: &Deployment, end: impl Fn(&Server)) {
    const CLIENTS: usize = 10;
    let gateway = gate(&deployment.url(), |_| {});
    let keys: Vec<String> = (0..60).map(|i| format!("k{i}")).collect();
    let pairs = Pairs::start(&gateway, CLIENTS, &keys);
    pairs.wait(2000);
    let epoch = config_epoch(deployment);
    let victim = &deployment.nodes[0];
    let address = victim.address();
    end(victim);
    let promoted = |n: &Server| -> bool {
        n.pid() != 0
            && n.address() != address
            && n.connect_with(&Options { command_timeout: Duration::from_millis(300), ..options(2) })
                .and_then(|mut c| c.call(&["ROLE"]))
                .is_ok_and(|r| r.items().first().and_then(Value::text).as_deref() == Some("master"))
    };
    let masters_before = deployment.masters - 1;
    until("a replica to be promoted", || deployment.nodes.iter().filter(|n| promoted(n)).count() > masters_before);
    let at = Instant::now();
    let before = pairs.done.load(Ordering::Relaxed);
    pairs.wait(before + 3000);
    println!("{kind}: 3000 pairs within {:?} of the promotion", at.elapsed());
    let (done, wrong) = pairs.end();
    println!("{kind}: {done} pairs: {wrong:?}");
    // Each client had at most one write in flight to it, and is told so. A busy machine may bring further failovers.
    let told: u64 = wrong.iter().filter(|(e, _)| e.contains("may or may not have run")).map(|(_, n)| n).sum();
    let other: Vec<_> = wrong.keys().filter(|e| !e.contains("may or may not have run")).collect();
    assert!(other.is_empty(), "{kind}: {wrong:?}");
    let failovers = config_epoch(deployment).saturating_sub(epoch).max(1);
    assert!(told <= CLIENTS as u64 * failovers, "{kind}: {wrong:?} by {failovers} failovers");
}

#[test]
fn a_master_that_is_killed_costs_only_the_writes_in_flight_to_it() {
    for name in ["valkey-9.1", "redis-6.2"] {
        failover(&format!("{name} killed"), &cluster(name), Server::kill);
    }
}

#[test]
fn a_master_that_hangs_costs_only_the_writes_in_flight_to_it() {
    failover("hung", &cluster("valkey-9.1"), |s| s.signal(libc::SIGSTOP));
}

#[test]
fn a_master_under_sentinels_is_replaced_without_errors_for_what_was_not_in_flight() {
    failover("sentinel", &sentinels("redis-7.0", 2, 5000), Server::kill);
}

#[test]
fn a_planned_failover_costs_nothing() {
    let deployment = steady("valkey-9.1");
    let gateway = gate(&deployment.url(), |_| {});
    let keys: Vec<String> = (0..60).map(|i| format!("k{i}")).collect();
    let pairs = Pairs::start(&gateway, 10, &keys);
    pairs.wait(2000);
    // More than once each way: a node that is promoted and demoted again must not answer reads from before.
    for round in 0..8 {
        promote(&deployment.nodes[if round % 2 == 0 { 3 } else { 0 }]);
        let before = pairs.done.load(Ordering::Relaxed);
        pairs.wait(before + 2000);
    }
    let (done, wrong) = pairs.end();
    assert!(wrong.is_empty(), "{wrong:?} in {done} pairs");
}

#[test]
fn reads_go_to_replicas_when_allowed_also_while_the_master_hangs() {
    let deployment = steady("valkey-9.1");
    let gateway = gate(&deployment.url(), |config| config.read = Read::Replica);
    let mut c = client(&gateway);
    for i in 0..100 {
        c.call(&["SET", &format!("k{i}"), "v"]).unwrap();
    }
    until_ok("the replicas to have every key", || {
        let mut keys = 0;
        for replica in &deployment.nodes[3..] {
            keys += replica.connect()?.call(&["DBSIZE"])?.integer().unwrap_or(0);
        }
        Ok::<_, Error>(keys == 100)
    });
    let gets = |n: &Arc<Server>| {
        let info = unslow_engine::info(&mut n.connect_with(&options(2)).unwrap(), "commandstats").unwrap();
        info.command_stats().get("get").map_or(0, |s| s.calls)
    };
    until_ok("all reads to go to replicas", || {
        let before: Vec<u64> = deployment.nodes.iter().map(gets).collect();
        for i in 0..100 {
            assert_eq!(c.call(&["GET", &format!("k{i}")])?.text().as_deref(), Some("v"));
        }
        let after: Vec<u64> = deployment.nodes.iter().map(gets).collect();
        Ok::<_, Error>(after[..3] == before[..3] && (3..6).map(|i| after[i] - before[i]).sum::<u64>() == 100)
    });
    // By zone: who is in ours answers, and who has nobody there is read where it is nearest.
    let zoned = gate(&deployment.url(), |config| {
        (config.read, config.zone) = (Read::Zone, Some("here".into()));
        config.zones = [(deployment.nodes[3].address(), "here".to_string())].into();
    });
    let mut near = client(&zoned);
    let first: Vec<String> =
        (0..100).map(|i| format!("k{i}")).filter(|k| owner_of(&deployment, slot_of(k.as_bytes())) == 0).collect();
    until_ok("reads in the zone", || {
        let before = gets(&deployment.nodes[3]);
        for key in &first {
            assert_eq!(near.call(&["GET", key])?.text().as_deref(), Some("v"));
        }
        Ok::<_, Error>(gets(&deployment.nodes[3]) - before == first.len() as u64)
    });
    for i in 0..100 {
        assert_eq!(near.call(&["GET", &format!("k{i}")]).unwrap().text().as_deref(), Some("v"));
    }
    drop(zoned);
    let key = (0..).map(|i| format!("k{i}")).find(|k| owner_of(&deployment, slot_of(k.as_bytes())) == 0).unwrap();
    deployment.nodes[0].signal(libc::SIGSTOP);
    // It hangs until all of them are answered.
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(c.call(&["GET", &key]).unwrap().text().as_deref(), Some("v"));
    }
    println!("100 reads beside a hung master: {:?}", begun.elapsed());
    deployment.nodes[0].signal(libc::SIGCONT);
}

#[test]
fn commands_wait_for_a_server_that_is_away_and_are_told_when_it_takes_too_long() {
    let server = standalone("valkey-9.1");
    let patient = gate(&server.url(), |_| {});
    let hasty = gate(&server.url(), |config| config.hold_ms = 500);
    let (mut c, mut operator) = (client(&patient), client(&patient));
    c.call(&["SET", "k", "v"]).unwrap();
    server.connect_with(&options(2)).unwrap().call(&["SAVE"]).unwrap();
    server.kill();
    let value = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| c.call(&["GET", "k"]).unwrap());
        until("the command to wait in the gateway", || {
            backends(&mut operator).iter().any(|b| b.contains(" waiting=1 "))
        });
        assert!(!waiting.is_finished(), "there is no server to answer it");
        server.restart().unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(value.text().as_deref(), Some("v"));
    let (mut told, mut operator) = (client(&hasty), client(&hasty));
    until("the other gateway to be connected", || told.call(&["GET", "k"]).is_ok());
    server.kill();
    until("it to lose its connection", || backends(&mut operator).iter().all(|b| !b.contains("state=ready")));
    let why = told.call(&["SET", "k", "w"]).unwrap_err().to_string();
    assert!(why.contains("took no commands for 500 ms") && why.contains("was not sent"), "{why}");
    server.restart().unwrap();
    assert_eq!(c.call(&["GET", "k"]).unwrap().text().as_deref(), Some("v"));
}

// Operations.

#[test]
fn drains_reloads_pauses_and_hands_over_without_losing_a_command() {
    let server = standalone("valkey-9.1");
    let dir = std::env::temp_dir().join(format!("unslow-gateway-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (socket, file) = (dir.join("handover"), dir.join("gateway.toml"));
    let said = Arc::new(Mutex::new(Vec::<String>::new()));
    let start = |listen: &str| {
        let text =
            format!("listen = [{listen:?}]\ntarget = {:?}\nhandover = {:?}\ndrain_ms = 60000\n", server.url(), socket);
        std::fs::write(&file, &text).unwrap();
        let config = Config::parse(&text).unwrap();
        let target = Target::parse(&config.target).unwrap();
        let (reread, said) = (reread(file.clone()), said.clone());
        let log = move |(event, fields): Log<'_>| said.lock().unwrap().push(format!("{event} {fields:?}"));
        Gateway::start(Start { config, target, options: options(3), reread: Some(reread), log: Box::new(log) }).unwrap()
    };
    let old = start("127.0.0.1:0");
    let address = old.addresses[0].clone();
    let mut stays = raw(&old);
    stays.write_all(b"MULTI\r\nSET k 1\r\n").unwrap();
    frames(&mut stays, 2);
    // Clients come and go all the time; each does one thing.
    let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let visitors: Vec<_> = (0..4)
        .map(|_| {
            let (stop, lost, address) = (stop.clone(), lost.clone(), address.clone());
            std::thread::spawn(move || {
                let target = Target::parse(&address).unwrap();
                let mut visits = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let done = Connection::open(&target, &options(2)).and_then(|mut c| c.call(&["INCR", "visits"]));
                    match done {
                        Ok(_) => visits += 1,
                        Err(e) => {
                            println!("lost: {e}");
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                visits
            })
        })
        .collect();
    let mut direct = server.connect_with(&options(2)).unwrap();
    let mut visits = || direct.call(&["GET", "visits"]).unwrap().integer().unwrap_or(0) as u64;
    until("visits through the first gateway", || visits() >= 20);
    let new = start(&address);
    assert_eq!(new.addresses[0], address, "the same socket");
    until("visits through the second gateway", || metric(&new, "clients_accepted_total") >= 20);
    until("all clients but the one in a transaction to leave the first", || metric(&old, "clients") == 1);
    stays.write_all(b"EXEC\r\n").unwrap();
    assert_eq!(text(&frames(&mut stays, 1)[0]), "*1\\r\\n+OK\\r\\n", "the first ends what was begun with it");
    until("the first to end", || old.ended());
    stop.store(true, Ordering::Relaxed);
    let visited: u64 = visitors.into_iter().map(|v| v.join().unwrap()).sum();
    let mut c = client(&new);
    assert_eq!(c.call(&["GET", "visits"]).unwrap().integer(), Some(visited as i64));
    assert_eq!(lost.load(Ordering::Relaxed), 0, "of {visited} visits");
    // Settings are read again; what is wrong changes nothing.
    let text_of = |c: &mut Connection| c.call(&["UNSLOW", "SHOW", "CONFIG"]).unwrap().text().unwrap();
    std::fs::write(&file, format!("listen = [{address:?}]\ntarget = {:?}\nhold_ms = 1234\n", server.url())).unwrap();
    c.call(&["UNSLOW", "RELOAD"]).unwrap();
    until("the new setting", || text_of(&mut c).contains("hold_ms: 1234"));
    std::fs::write(&file, "hold_ms = \"soon\"").unwrap();
    c.call(&["UNSLOW", "RELOAD"]).unwrap();
    until("the reload to be refused", || {
        said.lock().unwrap().iter().any(|line| line.starts_with("reload") && line.contains("refused"))
    });
    assert!(text_of(&mut c).contains("hold_ms: 1234"));
    // A paused gateway holds commands and loses none. This one arrives in one segment with a question to the gateway itself:
    // once that is answered the command is in the gateway, and is not counted as forwarded.
    c.call(&["UNSLOW", "PAUSE"]).unwrap();
    let mut paused = raw(&new);
    paused.write_all(b"UNSLOW SHOW TOPOLOGY\r\nINCR visits\r\n").unwrap();
    frames(&mut paused, 1);
    let address = format!(" addr={} ", paused.local_addr().unwrap());
    let clients = c.call(&["UNSLOW", "SHOW", "CLIENTS"]).unwrap();
    let client = clients.items().iter().filter_map(Value::text).find(|row| row.contains(&address)).unwrap();
    assert!(client.contains(" pending=0 tot-cmds=1 "), "{client}");
    assert_eq!(visits(), visited, "a paused command has run");
    c.call(&["UNSLOW", "RESUME"]).unwrap();
    assert_eq!(text(&frames(&mut paused, 1)[0]), format!(":{}\\r\\n", visited + 1));
    new.drain();
    until("it to end", || new.ended());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn many_clients_come_and_go_without_anything_growing() {
    let deployment = steady("valkey-9.1");
    let gateway = gate(&deployment.url(), |config| config.threads = 2);
    let memory = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4 / 1024
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let visit = |i: usize| {
        let mut stream = raw(&gateway);
        let how: &[u8] = match i % 5 {
            0 => b"SET k 1\r\nGET k\r\n",
            1 => b"MULTI\r\nINCR n\r\n",
            2 => b"SUBSCRIBE a\r\nPING\r\n",
            3 => b"WATCH k\r\nGET k\r\n",
            _ => b"SELECT 0\r\nHELLO 3\r\n",
        };
        stream.write_all(how).unwrap();
        frames(&mut stream, 2);
    };
    (0..2000).for_each(visit);
    let settled = |visits: u64| {
        until("all clients to have come and gone", || {
            metric(&gateway, "clients_accepted_total") == visits && metric(&gateway, "clients") == 0
        });
    };
    settled(2000);
    let (before, fds) = (memory(), descriptors());
    (0..10_000).for_each(visit);
    settled(12_000);
    let (after, fds_after) = (memory(), descriptors());
    println!("{before} -> {after} MB, {fds} -> {fds_after} descriptors");
    assert!(after <= before + 16, "{before} MB became {after} MB");
    assert!(fds_after <= fds + 10, "{fds} descriptors became {fds_after}");
}

#[test]
fn cluster_clients_see_a_cluster_of_ports_and_hear_of_moves() {
    let deployment = cluster("valkey-9.1");
    let gateway = gate(&deployment.url(), |config| config.facade = Facade::Cluster);
    let mut c = Connection::open(&target(&gateway), &options(3)).unwrap();
    let view = unslow_engine::view(&mut c).unwrap();
    assert_eq!(view.masters().count(), 3);
    assert_eq!(view.nodes.len(), 6);
    let own: Vec<String> = view.nodes.iter().map(|n| n.address.clone()).collect();
    for address in &own {
        let mut node = Connection::open(&Target::parse(address).unwrap(), &options(2)).unwrap();
        assert_eq!(node.call(&["SET", "k", "v"]).unwrap().text().as_deref(), Some("OK"), "any port takes any key");
    }
    let (mut listener, mut rest) = (raw(&gateway), Vec::new());
    listener.write_all(b"HELLO 3\r\nCLIENT MAINT_NOTIFICATIONS ON\r\n").unwrap();
    next_frame(&mut listener, &mut rest);
    assert_eq!(next_frame(&mut listener, &mut rest), "+OK\\r\\n");
    // On a busy machine any node may be suspected for a moment: what is said of other slots is passed over.
    let mut told = |kind: &str, slots: &str| {
        let (begin, end) = (format!(">3\\r\\n+{kind}\\r\\n:"), format!("+{slots}\\r\\n"));
        loop {
            let push = next_frame(&mut listener, &mut rest);
            assert!(push.starts_with(">3\\r\\n+SMIGRAT"), "{push}");
            if push.starts_with(&begin) && push.ends_with(&end) {
                return;
            }
        }
    };
    let slot = slot_of(b"k");
    let from = owner_of(&deployment, slot);
    let owner = &deployment.nodes[(from + 1) % 3];
    let owner_id = id(owner);
    move_slot(&deployment, slot, from, (from + 1) % 3, Duration::ZERO);
    told("SMIGRATED", &slot.to_string());
    until_ok("the facade to show it", || {
        let view = unslow_engine::view(&mut c)?;
        Ok::<_, Error>(view.by_id(&owner_id).is_some_and(|n| n.slots.contains(slot)))
    });
    let known = |view: &ClusterView| view.by_id(&owner_id).is_some_and(|n| n.slots.contains(slot));
    everywhere(&deployment, "every node to know of it", known);
    // A master that hangs: be patient, and then where to go.
    let view = unslow_engine::view(&mut owner.connect().unwrap()).unwrap();
    let slots = view.by_id(&owner_id).unwrap().slots.to_string().replace(' ', ",");
    owner.signal(libc::SIGSTOP);
    told("SMIGRATING", &slots);
    told("SMIGRATED", &slots);
    owner.signal(libc::SIGCONT);
    // Without the facade it is one node.
    drop(c);
    let one = gate(&deployment.url(), |_| {});
    let view = unslow_engine::view(&mut client(&one)).unwrap();
    assert_eq!((view.nodes.len(), view.nodes[0].address.clone()), (1, one.addresses[0].clone()));
    assert!(client(&one).call(&["CLIENT", "MAINT_NOTIFICATIONS", "ON"]).is_err());
}
