//! What clients get: answers, transactions, messages, long values.

use super::*;

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
        differential(&gate(&behind.url(), |config| config.batch_us = Batch::Us(200)), &direct, 2, "", 3, 50);
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
    // Not one of the three could have been sent all of its replies meanwhile: the gateway has put out less than one
    // needs.
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
