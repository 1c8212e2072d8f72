//! `unslow keys` on real servers: what it counts is what was written, where it looks is where it says, and it may do
//! no more than its ACL user.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::time::Duration;

use common::{Running, command, schema, stderr, stdout, unslow};
use serde_json::Value as Json;
use unslow_client::{Connection, Target};
use unslow_engine::Server;
use unslow_testkit::servers::{deployment, server, standalone, steady};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, wait::until};

/// A walk, as JSON.
fn walked(url: &str, more: &[&str]) -> Json {
    let output = unslow(&[&["keys", url, "--format", "json", "--timeout", "30"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = serde_json::from_slice(&output.stdout).expect("one document");
    schema("keys").validate(&report).unwrap();
    report
}

/// Everything, as fast as it may.
const WHOLE: [&str; 3] = ["--all", "--rate", "1M"];

fn fill(connection: &mut Connection, commands: &[String]) {
    let words: Vec<Vec<&str>> = commands.iter().map(|line| line.split(' ').collect()).collect();
    for (answer, line) in connection.pipeline(&words).expect("it answers").into_iter().zip(commands) {
        answer.unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

/// Of each type, some with a time to live, in two databases.
fn mixed(server: &Server) {
    let mut connection = server.connect_with(&options(2)).expect("it answers");
    let mut all: Vec<String> = (0..500).map(|n| format!("SET user:{n}:name {}", "x".repeat(n % 50 + 1))).collect();
    all.extend((0..300).map(|n| format!("SET session:{n} y EX 3600")));
    all.extend((0..40).map(|n| format!("HSET {{user:{n}}}:cart a 1 b 2 c 3")));
    all.extend((0..20).map(|n| format!("RPUSH queue:{n} a b c d")));
    all.extend((0..20).map(|n| format!("SADD tags:{n} a b")));
    all.extend((0..2000).map(|n| format!("ZADD board {n} m{n}")));
    all.push(format!("SET blob {}", "z".repeat(100_000)));
    all.push("SELECT 3".into());
    all.extend((0..100).map(|n| format!("XADD events:{n} * a 1")));
    fill(&mut connection, &all);
}

fn row<'a>(report: &'a Json, list: &str, name: &str, is: &str) -> &'a Json {
    let rows = report[list].as_array().expect("a list");
    rows.iter().find(|row| row[name] == is).unwrap_or_else(|| panic!("no {is} in {rows:#?}"))
}

fn calls(server: &Server, command: &str) -> u64 {
    let mut connection = server.connect_with(&options(2)).expect("it answers");
    let text = connection.call(&["INFO", "commandstats"]).expect("INFO").text().unwrap_or_default();
    unslow_topology::Info::parse(&text).command_stat(command).map_or(0, |stat| stat.calls)
}

/// On every engine.
#[test]
fn a_whole_walk_counts_what_was_written() {
    for engine in ["redis-5.0", "redis-6.2", "redis-7.0", "redis-8.10", "valkey-9.1"] {
        let server = standalone(engine);
        mixed(&server);
        let report = walked(&server.address(), &[&WHOLE[..], &["--memory", "--show-keys"]].concat());
        assert_eq!((&report["keys"], &report["scanned"]), (&982.into(), &982.into()), "{engine}");
        assert_eq!((&report["is_complete"], &report["larger_unseen_at_most"]), (&true.into(), &0.into()), "{engine}");
        for (pattern, kind, keys, lasting, longest) in [
            ("user:*:name", "string", 500, 1.0, 50),
            ("session:*", "string", 300, 0.0, 1),
            ("{user:*}:cart", "hash", 40, 1.0, 3),
            ("queue:*", "list", 20, 1.0, 4),
            ("tags:*", "set", 20, 1.0, 2),
            ("events:*", "stream", 100, 1.0, 1),
            ("*", "string", 2, 1.0, 100_000),
        ] {
            let row = row(&report, "patterns", "pattern", pattern);
            assert_eq!(row["keys"]["value"], f64::from(keys), "{engine}: {row}");
            assert_eq!(row["keys"]["margin"], 0.0, "{engine}: {row}");
            assert_eq!((&row["lasting_share"], &row["longest"]), (&lasting.into(), &longest.into()), "{engine}: {row}");
            assert!(row["kinds"].as_array().unwrap().iter().any(|k| k == kind), "{engine}: {row}");
            assert!(row["memory"]["value"].as_f64().unwrap() > 0.0, "{engine}: {row}");
        }
        assert_eq!(report["longest"].as_array().unwrap().iter().filter(|key| key["kind"] == "zset").count(), 1);
        assert_eq!(row(&report, "longest", "kind", "zset")["length"], 2000, "{engine}");
        // A string of 100 kB and a sorted set of 2,000 members.
        let heaviest = report["heaviest"].as_array().unwrap().iter().take(2).map(|key| key["key"].clone());
        assert!(heaviest.eq(["board", "blob"]) || report["heaviest"][0]["key"] == "blob", "{engine}");
        assert_eq!(row(&report, "longest", "kind", "stream")["database"], 3, "{engine}");
        for read in ["get", "hgetall", "lrange", "zrange", "smembers", "xrange", "dump", "keys"] {
            assert_eq!(calls(&server, read), 0, "{engine}: {read}");
        }
        let one = walked(&server.address(), &[&WHOLE[..], &["-n", "3"]].concat());
        assert_eq!(one["keys"], 100, "{engine}");
        let of_url = walked(&format!("redis://{}/3", server.address()), &WHOLE);
        assert_eq!((&of_url["keys"], &of_url["servers"][0]["database"]), (&100.into(), &3.into()), "{engine}");
    }
}

#[test]
fn a_cluster_is_walked_on_its_replicas_and_names_stay_hidden() {
    let cluster = steady("valkey-9.1");
    let (mut all, mut written) = (vec![Vec::new(); 3], 0);
    let owner = |key: &str| unslow_testkit::slots::owner_of(&cluster, unslow_topology::slot_of(key.as_bytes()));
    let masters: Vec<usize> = (0..cluster.nodes.len()).filter(|n| owners(&cluster).contains(n)).collect();
    for n in 0..600 {
        let key = format!("person:secret{}:mail", word(n));
        let at = masters.iter().position(|m| *m == owner(&key)).expect("a master owns it");
        all[at].push(format!("SET {key} x"));
        written += 1;
    }
    for (at, commands) in all.iter().enumerate() {
        fill(&mut cluster.nodes[masters[at]].connect_with(&options(2)).unwrap(), commands);
    }
    let replicas: Vec<&Server> =
        (0..cluster.nodes.len()).filter(|n| !masters.contains(n)).map(|n| &*cluster.nodes[n]).collect();
    let keys = |server: &Server| -> u64 {
        let text = server.connect_with(&options(2)).unwrap().call(&["INFO", "keyspace"]).unwrap().text().unwrap();
        unslow_topology::Info::parse(&text).keys()
    };
    until("replicas to have all keys", || replicas.iter().map(|r| keys(r)).sum::<u64>() == written);
    let url = cluster.url();
    let report = walked(&url, &WHOLE);
    assert_eq!((&report["scanned"], &report["is_complete"]), (&written.into(), &true.into()));
    let [only] = &report["patterns"].as_array().unwrap()[..] else { panic!("{:#?}", report["patterns"]) };
    assert_eq!(only["pattern"], "person:*:mail");
    assert!(masters.iter().all(|m| calls(&cluster.nodes[*m], "scan") == 0), "masters were walked");
    assert!(replicas.iter().all(|r| calls(r, "scan") > 0), "replicas were not walked");
    assert!(report["costs"].as_array().unwrap().iter().all(|cost| cost["role"] == "replica"));
    let text = stdout(&unslow(&[&["keys", &url], &WHOLE[..]].concat()));
    assert!(text.starts_with("all 600 keys seen in ") && text.contains("read on 3 replicas"), "{text}");
    assert!(!text.contains("secret") && !report.to_string().contains("secret"), "{text}");
    let shown = stdout(&unslow(&[&["keys", &url, "--show-keys"], &WHOLE[..]].concat()));
    assert!(shown.contains("person:secret"), "{shown}");
    let masters_only = walked(&url, &[&WHOLE[..], &["--on-masters"]].concat());
    assert!(masters_only["costs"].as_array().unwrap().iter().all(|cost| cost["role"] == "master"));
}

fn owners(cluster: &unslow_engine::Deployment) -> Vec<usize> {
    [0, 6000, 16000].map(|slot| unslow_testkit::slots::owner_of(cluster, slot)).to_vec()
}

/// Letters for a number.
fn word(n: usize) -> String {
    (0..3).map(|at| (b'a' + (n / 26_usize.pow(at) % 26) as u8) as char).collect()
}

#[test]
fn a_walk_that_was_ended_goes_on_and_another_process_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("walk.json").display().to_string();
    let server = standalone("redis-7.0");
    let fill_it = |server: &Server| {
        let all: Vec<String> = (0..60_000).map(|n| format!("SET k:{n} x")).collect();
        fill(&mut server.connect_with(&options(2)).unwrap(), &all);
    };
    fill_it(&server);
    let url = server.address();
    let mut running = Running(
        command(&["keys", &url, "--all", "--rate", "1k", "--resume", &file, "--format", "json"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap(),
    );
    until("some keys to be walked", || calls(&server, "scan") > 10);
    running.signal(2);
    let mut text = String::new();
    std::io::Read::read_to_string(running.0.stdout.as_mut().unwrap(), &mut text).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let first: Json = serde_json::from_str(&text).expect("what was seen so far");
    let seen = first["scanned"].as_u64().unwrap();
    assert!(seen > 0 && seen < 60_000 && first["is_complete"] == false, "{first}");
    let bound = first["larger_unseen_at_most"].as_u64().unwrap();
    let share = first["share"].as_f64().unwrap();
    assert_eq!(bound, (0.05_f64.ln() / (1.0 - share).ln()).floor() as u64);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let before = calls(&server, "pttl");
    let second = walked(&url, &[&WHOLE[..], &["--resume", &file]].concat());
    assert_eq!((&second["scanned"], &second["is_complete"]), (&60_000.into(), &true.into()));
    assert_eq!(calls(&server, "pttl") - before, 60_000 - seen, "keys were asked about again");

    let asked = calls(&server, "scan");
    let same = walked(&url, &[&WHOLE[..], &["--resume", &file]].concat());
    assert_eq!((&same["scanned"], calls(&server, "scan")), (&60_000.into(), asked), "there was nothing left to see");
    assert!(same["notes"].to_string().contains("all keys had been seen when the last walk ended"), "{}", same["notes"]);

    let refused = unslow(&["keys", &url, "--memory", "--resume", &file]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("it was started without options; this run asks for --memory"), "{refused:?}");

    server.restart().expect("it comes back");
    server.connect_with(&options(2)).unwrap().call(&["FLUSHALL"]).unwrap();
    fill_it(&server);
    let third = walked(&url, &[&WHOLE[..], &["--resume", &file]].concat());
    assert_eq!((&third["scanned"], &third["is_complete"]), (&60_000.into(), &true.into()));
    assert!(third["notes"].to_string().contains("is walked from its beginning"), "{}", third["notes"]);
}

/// The replica that was walked is promoted: its shard has another name and its data set too, and its keys are the same.
#[test]
fn a_walk_goes_on_after_a_failover() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("walk.json").display().to_string();
    let two = deployment("redis-7.0", unslow_engine::Shape::MasterReplica { replicas: 1 }, &[]);
    let (master, replica) = (&two.nodes[0], &two.nodes[1]);
    let all: Vec<String> = (0..3_000).map(|n| format!("SET k:{n} x")).collect();
    fill(&mut master.connect_with(&options(2)).unwrap(), &all);
    let mut connection = replica.connect_with(&options(2)).unwrap();
    until_ok("the replica to have the keys", || {
        Ok::<_, unslow_client::Error>(connection.call(&["DBSIZE"])?.integer() == Some(3_000))
    });
    let first = walked(&master.address(), &[&WHOLE[..], &["--resume", &file]].concat());
    assert_eq!((&first["scanned"], &first["costs"][0]["role"]), (&3_000.into(), &"replica".into()));
    connection.call(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let host = replica.address();
    let (ip, port) = host.rsplit_once(':').unwrap();
    let mut old = master.connect_with(&options(2)).unwrap();
    old.call(&["REPLICAOF", ip, port]).unwrap();
    until_ok("the old master to follow", || {
        let text = old.call(&["INFO", "replication"])?.text().unwrap_or_default();
        Ok::<_, unslow_client::Error>(text.contains("master_link_status:up"))
    });
    let second = walked(&replica.address(), &[&WHOLE[..], &["--resume", &file]].concat());
    assert_eq!(
        (&second["scanned"], &second["keys"], &second["is_complete"]),
        (&3_000.into(), &3_000.into(), &true.into())
    );
}

/// A master that is asked at one address and that its replica knows by another is one shard, not two.
#[test]
fn a_server_with_two_addresses_is_counted_once() {
    let two = deployment("redis-7.0", unslow_engine::Shape::MasterReplica { replicas: 1 }, &[]);
    let (master, replica) = (&two.nodes[0], &two.nodes[1]);
    fill(&mut master.connect_with(&options(2)).unwrap(), &(0..500).map(|n| format!("SET k:{n} x")).collect::<Vec<_>>());
    let mut connection = replica.connect_with(&options(2)).unwrap();
    until_ok("the replica to have the keys", || {
        Ok::<_, unslow_client::Error>(connection.call(&["DBSIZE"])?.integer() == Some(500))
    });
    let by_name = master.address().replace("127.0.0.1", "localhost");
    let report = walked(&by_name, &WHOLE);
    assert_eq!((&report["keys"], &report["is_complete"]), (&500.into(), &true.into()), "{report:#}");
    assert_eq!(report["costs"][0]["role"], "replica");
}

/// SCAN of a cluster that is down is answered, and what its keys are is not: they are not gone.
#[test]
fn keys_of_a_cluster_that_is_down_are_not_called_gone() {
    let cluster = steady("valkey-9.1");
    let mut connection = cluster.nodes[0].connect_with(&options(2)).unwrap();
    let slot = (0..16384_u16).find(|slot| unslow_testkit::slots::owner_of(&cluster, *slot) == 0).expect("it owns some");
    let key = (0..).map(|n| format!("k{n}")).find(|key| unslow_topology::slot_of(key.as_bytes()) == slot).unwrap();
    fill(&mut connection, &[format!("SET {key} x")]);
    let elsewhere =
        (0..16384_u16).rev().find(|s| unslow_testkit::slots::owner_of(&cluster, *s) == 0 && *s != slot).unwrap();
    for node in &cluster.nodes {
        node.connect_with(&options(2)).unwrap().call(&["CLUSTER", "DELSLOTS", &elsewhere.to_string()]).unwrap();
    }
    until_ok("the cluster to be down", || {
        let text = connection.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default();
        Ok::<_, unslow_client::Error>(text.contains("cluster_state:fail"))
    });
    let output = unslow(&["keys", &cluster.url(), "--on-masters", "--for", "3s", "--format", "json"]);
    let report: Json = serde_json::from_slice(&output.stdout).expect("a document");
    assert_ne!(report["is_complete"], true, "{report:#}");
}

#[test]
fn uses_are_told_where_the_server_counts_them() {
    for engine in ["redis-5.0", "valkey-9.1"] {
        let lfu = server(engine, &[("maxmemory-policy", "allkeys-lfu"), ("lfu-log-factor", "0")]);
        let mut all: Vec<String> = (0..200).map(|n| format!("SET k:{n} x")).collect();
        all.extend((0..200).map(|_| "GET k:7".to_string()));
        fill(&mut lfu.connect_with(&options(2)).unwrap(), &all);
        let report = walked(&lfu.address(), &[&WHOLE[..], &["--hot", "--show-keys"]].concat());
        assert_eq!(report["hottest"][0]["key"], "k:7", "{engine}: {:#}", report["hottest"]);
        let again = walked(&lfu.address(), &[&WHOLE[..], &["--hot", "--show-keys"]].concat());
        assert_eq!(again["hottest"][0]["key"], "k:7", "{engine}");
        let plain = standalone(engine);
        fill(&mut plain.connect_with(&options(2)).unwrap(), &all);
        let report = walked(&plain.address(), &[&WHOLE[..], &["--hot"]].concat());
        assert_eq!(report["hottest"], Json::Array(Vec::new()), "{engine}");
        assert!(
            report["notes"].to_string().contains("maxmemory-policy is noeviction"),
            "{engine}: {}",
            report["notes"]
        );
    }
}

/// What HOTKEYS GET says on a server: nothing where there is no session.
fn session(connection: &mut Connection) -> unslow_client::Value {
    connection.call(&["HOTKEYS", "GET"]).expect("it has HOTKEYS")
}

fn is_none(session: &unslow_client::Value) -> bool {
    matches!(session, unslow_client::Value::Null)
}

/// One key takes nearly all of a server's time, and the doctor reads that from the document.
#[test]
fn a_hot_key_is_found_by_the_servers_own_count_which_leaves_nothing_behind() {
    let server = standalone("redis-8.10");
    let mut all: Vec<String> = (0..200).map(|n| format!("SET user:{n} x")).collect();
    all.push("SET counter:1 0".into());
    fill(&mut server.connect_with(&options(2)).unwrap(), &all);
    let done = std::sync::atomic::AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut connection = server.connect_with(&options(30)).unwrap();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                fill(&mut connection, &vec!["INCR counter:1".to_string(); 100]);
                fill(&mut connection, &["GET user:7".to_string()]);
            }
        });
        let report = walked(&server.address(), &["--hot", "--for", "1s", "--rate", "1M", "--show-keys"]);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        report
    });
    let hot = &report["hot"][0];
    assert_eq!((&hot["keys"][0]["key"], &hot["is_ours"]), (&"counter:1".into(), &true.into()), "{hot:#}");
    assert_eq!(row(hot, "keys", "key", "user:7")["pattern"], "user:*", "{hot:#}");
    assert!(hot["keys"][0]["cpu_share"].as_f64().unwrap() > 0.1, "{hot:#}");
    // Keys that only we have touched are not among them.
    assert_eq!(hot["keys"].as_array().unwrap().len(), 2, "{hot:#}");
    assert_eq!(report["notes"], Json::Array(Vec::new()), "the policy is no LFU, and need not be");
    let mut connection = server.connect_with(&options(2)).unwrap();
    assert!(is_none(&session(&mut connection)), "the session is still there");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json").display().to_string();
    std::fs::write(&file, report.to_string()).unwrap();
    let told = unslow(&[
        "doctor",
        &server.address(),
        "--window",
        "500ms",
        "--no-host",
        "--keys",
        &file,
        "--only",
        "hot_key",
        "--format",
        "json",
    ]);
    let told: Json = serde_json::from_slice(&told.stdout).expect("a report");
    // Nothing uses it now, so it is another load, or a server that has nothing to do.
    let said = &told["only"][0];
    let text = said["text"].to_string();
    assert!(["absent", "unknown"].map(Json::from).contains(&said["answer"]), "{told:#}");
    assert!(text.contains("the first takes about") || text.contains("it is another load"), "{told:#}");
}

/// A session that is not ours is worth more than ours.
#[test]
fn a_session_of_hot_keys_that_is_there_is_read_and_left() {
    let server = standalone("redis-8.10");
    let mut connection = server.connect_with(&options(2)).unwrap();
    connection.call(&["HOTKEYS", "START", "METRICS", "1", "NET"]).unwrap();
    fill(&mut connection, &["SET other:1 x".to_string()]);
    let report = walked(&server.address(), &["--hot", "--for", "1s", "--show-keys"]);
    let hot = &report["hot"][0];
    assert_eq!((&hot["is_ours"], &hot["keys"][0]["key"]), (&false.into(), &"other:1".into()), "{hot:#}");
    assert_eq!((&hot["keys"][0]["cpu_share"], hot["keys"][0]["net_share"].is_null()), (&Json::Null, false), "{hot:#}");
    assert!(report["notes"].to_string().contains("ago and is still running"), "{}", report["notes"]);
    assert!(!is_none(&session(&mut connection)), "it was discarded");
    connection.call(&["HOTKEYS", "STOP"]).expect("it was still running");
}

#[test]
fn an_interrupted_count_of_hot_keys_leaves_no_session() {
    let server = standalone("redis-8.10");
    let report = counting(&server, |_| ());
    assert_eq!(report["hot"][0]["keys"].as_array().map(Vec::len), Some(1), "{report:#}");
    assert!(report["notes"].to_string().contains("no keys were looked at"), "{}", report["notes"]);
    assert_eq!((&report["is_complete"], &report["larger_unseen_at_most"]), (&false.into(), &Json::Null), "{report:#}");
    let mut connection = server.connect_with(&options(2)).unwrap();
    assert!(is_none(&session(&mut connection)), "the session is still there");
}

/// Counts until the server has a session, does something to it, and ends the count.
fn counting(server: &Server, meddle: impl FnOnce(&mut Connection)) -> Json {
    let mut connection = server.connect_with(&options(2)).unwrap();
    fill(&mut connection, &["SET user:1 x".to_string()]);
    let mut running = Running(
        command(&["keys", &server.address(), "--hot", "--for", "10m", "--show-keys", "--format", "json"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap(),
    );
    until("the server to count", || !is_none(&session(&mut connection)));
    fill(&mut connection, &["GET user:1".to_string()]);
    meddle(&mut connection);
    running.signal(2);
    let mut text = String::new();
    std::io::Read::read_to_string(running.0.stdout.as_mut().unwrap(), &mut text).unwrap();
    assert_eq!(running.ended(), Some(0), "{text}");
    serde_json::from_str(&text).expect("a document")
}

#[test]
fn a_count_survives_a_lost_connection_and_leaves_a_session_that_took_its_place() {
    let server = standalone("redis-8.10");
    let report = counting(&server, |connection| {
        connection.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    });
    assert_eq!((&report["hot"][0]["is_ours"], &report["hot"][0]["keys"][0]["key"]), (&true.into(), &"user:1".into()));
    let mut connection = server.connect_with(&options(2)).unwrap();
    assert!(is_none(&session(&mut connection)), "the session is still there");

    let report = counting(&server, |connection| {
        for words in [&["STOP"][..], &["RESET"], &["START", "METRICS", "1", "NET"]] {
            connection.call(&[&["HOTKEYS"], words].concat()).unwrap();
        }
        fill(connection, &["SET other:1 x".to_string()]);
    });
    assert_eq!((&report["hot"][0]["is_ours"], &report["hot"][0]["counts_cpu"]), (&false.into(), &false.into()));
    assert!(report["notes"].to_string().contains("another client's HOTKEYS session"), "{}", report["notes"]);
    connection.call(&["HOTKEYS", "STOP"]).expect("it was still running");
}

/// Ten seconds are not enough for all keys, but the server has counted them by size.
#[test]
fn keys_that_were_not_seen_are_bounded_by_the_servers_count_of_sizes() {
    let server = standalone("redis-8.10");
    let mut all: Vec<String> = (0..20_000).map(|n| format!("SET k:{n} {}", "x".repeat(10))).collect();
    all.extend((0..3).map(|n| format!("SET large:{n} {}", "z".repeat(5000))));
    all.extend((0..50).map(|n| format!("SADD tags:{n} a b c")));
    fill(&mut server.connect_with(&options(2)).unwrap(), &all);
    let report = walked(&server.address(), &["--for", "3s", "--rate", "500", "--show-keys"]);
    assert_eq!(report["is_complete"], false, "{report:#}");
    for (kind, keys) in [("string", 20_003), ("set", 50)] {
        let row = row(&report, "kinds", "kind", kind);
        assert_eq!((&row["keys"]["value"], &row["keys"]["margin"]), (&f64::from(keys).into(), &0.0.into()), "{row:#}");
    }
    let strings = row(&report, "kinds", "kind", "string");
    let seen = report["longest"].as_array().unwrap().iter().filter(|key| key["length"] == 5000).count() as u64;
    assert_eq!(strings["sizes"][1], serde_json::json!({"from": 4096, "keys": 3}), "{strings:#}");
    let unseen = if seen == 0 { 3 } else { 0 };
    assert_eq!(strings["larger_unseen_at_least"], unseen, "{strings:#}");
    assert!(strings["larger_unseen_at_most"].as_u64().unwrap() >= unseen, "{strings:#}");
    let whole = walked(&server.address(), &WHOLE);
    assert_eq!(whole["larger_unseen_at_most"], 0, "{whole:#}");
    // A larger one that the scan cannot have seen yet, as it comes to few keys in the time it has.
    let text = stdout(&unslow(&["keys", &server.address(), "--for", "3s", "--rate", "50"]));
    let longest = text.lines().any(|line| line.starts_with("5 kB"));
    let said = "not seen: 3 keys of type string, longer than any that was; the longest has at least 4,096 bytes";
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(text.contains(said), !longest, "{text}");
    // Keys that an earlier run listed may have been deleted before the walk was resumed.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("walk").display().to_string();
    for is_resumed in [false, true] {
        let report = walked(&server.address(), &["--for", "3s", "--rate", "50", "--resume", &file]);
        let strings = row(&report, "kinds", "kind", "string");
        assert_eq!(strings["larger_unseen_at_most"].is_null(), is_resumed, "{strings:#}");
    }
}

#[test]
fn the_acl_user_that_is_printed_is_enough_and_no_more_is_needed() {
    for (engine, version, hot) in [
        ("redis-6.2", "6.2", &[][..]),
        ("redis-7.0", "7.0", &[]),
        ("redis-8.10", "8.10", &["--hot", "--for", "500ms"]),
        ("valkey-9.1", "valkey-9.1", &[]),
    ] {
        let server = standalone(engine);
        mixed(&server);
        let printed = |of: &[&str]| stdout(&unslow(&[&["keys", "--print-acl"], of, hot].concat()));
        let rule = printed(&[version]).trim().replace("CHANGE-ME", "s3cret");
        let asked = stdout(&unslow(&[&["keys", &server.address(), "--print-acl"], hot].concat()));
        let asked = asked.trim().replace("CHANGE-ME", "s3cret");
        assert_eq!(asked, rule, "{engine}");
        let mut connection = server.connect_with(&options(2)).unwrap();
        connection.call(&rule.split(' ').collect::<Vec<_>>()).unwrap();
        let url = format!("redis://unslow:s3cret@{}", server.address());
        if !hot.is_empty() {
            let report = walked(&url, hot);
            assert_eq!((report["hot"].as_array().map(Vec::len), &report["notes"]), (Some(1), &Json::Array(Vec::new())));
        }
        let report = walked(&url, &[&WHOLE[..], &["--memory"]].concat());
        assert_eq!((&report["scanned"], &report["notes"]), (&982.into(), &Json::Array(Vec::new())), "{engine}");

        // What is refused is not known, which is something else than none.
        connection.call(&["ACL", "SETUSER", "unslow", "-pttl", "-strlen", "-memory"]).unwrap();
        let report = walked(&url, &[&WHOLE[..], &["--memory"]].concat());
        let names = row(&report, "patterns", "pattern", "user:*:name");
        assert_eq!((&names["lasting_share"], &names["longest"]), (&Json::Null, &Json::Null), "{engine}: {names:#}");
        assert_eq!(names["memory"], Json::Null, "{engine}: {names:#}");
        assert_eq!(
            (&names["keys"]["value"], &report["heaviest"]),
            (&500.0.into(), &Json::Array(Vec::new())),
            "{engine}"
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys.json").display().to_string();
        std::fs::write(&file, report.to_string()).unwrap();
        let taken = unslow(&["doctor", &url, "--window", "500ms", "--no-host", "--keys", &file]);
        assert!(!stderr(&taken).contains("not a document"), "{engine}: {}", stderr(&taken));
        for question in ["PTTL", "STRLEN", "MEMORY USAGE"] {
            assert!(report["notes"].to_string().contains(&format!("{question} was refused")), "{engine}: {report:#}");
        }

        connection.call(&["ACL", "SETUSER", "unslow", "-scan"]).unwrap();
        let refused = unslow(&["keys", &url]);
        assert_eq!(refused.status.code(), Some(2), "{engine}: {}", stdout(&refused));
        let said = stdout(&refused) + &stderr(&refused);
        assert!(said.contains("--print-acl") && !said.contains("s3cret"), "{engine}: {said}");
    }
}

#[test]
fn what_cannot_be_walked_says_why() {
    let away = unslow(&["keys", "-p", "1"]);
    assert_eq!(away.status.code(), Some(2));
    assert!(stderr(&away).contains("nothing listens there"), "{}", stderr(&away));
    let empty = standalone("redis-7.0");
    let output = unslow(&["keys", &empty.address()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("no keys in "), "{}", stdout(&output));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("junk");
    std::fs::write(&file, "{").unwrap();
    let junk = unslow(&["keys", &empty.address(), "--resume", &file.display().to_string()]);
    assert_eq!(junk.status.code(), Some(2));
    assert!(stderr(&junk).contains("this is not a saved walk of unslow keys"), "{}", stderr(&junk));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{", "it was overwritten");
}

/// A replica that does not follow has old keys: the master is walked instead.
#[test]
fn a_replica_that_lost_its_master_is_not_walked() {
    let two = deployment("redis-7.0", unslow_engine::Shape::MasterReplica { replicas: 1 }, &[]);
    let (master, replica) = (&two.nodes[0], &two.nodes[1]);
    fill(&mut master.connect_with(&options(2)).unwrap(), &["SET k:1 x".to_string()]);
    let mut connection = replica.connect_with(&options(2)).unwrap();
    let mut at_master = master.connect_with(&options(2)).unwrap();
    connection.call(&["CONFIG", "SET", "masterauth", "wrong"]).unwrap();
    connection.call(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    at_master.call(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    at_master.call(&["CLIENT", "KILL", "TYPE", "replica"]).unwrap();
    until_ok("the link to be down", || {
        let text = connection.call(&["INFO", "replication"])?.text().unwrap_or_default();
        Ok::<_, unslow_client::Error>(text.contains("master_link_status:down"))
    });
    // The replica names its master; the master no longer names the replica.
    let report = walked(&format!("redis://:right@{}", replica.address()), &WHOLE);
    assert_eq!((&report["scanned"], &report["costs"][0]["role"]), (&1.into(), &"master".into()), "{report:#}");
    assert_eq!((calls_with(master, "right", "scan"), calls_with(replica, "right", "scan")), (1, 0));
}

fn calls_with(server: &Server, password: &str, command: &str) -> u64 {
    let target = Target::parse(&format!("redis://:{password}@{}", server.address())).unwrap();
    let mut connection = Connection::open(&target, &options(2)).unwrap();
    let text = connection.call(&["INFO", "commandstats"]).unwrap().text().unwrap();
    unslow_topology::Info::parse(&text).command_stat(command).map_or(0, |stat| stat.calls)
}

/// What takes the memory is said where memory is what is wrong.
#[test]
fn a_walk_is_evidence_for_the_doctor() {
    let dir = tempfile::tempdir().unwrap();
    let server = standalone("redis-7.0");
    mixed(&server);
    let file = dir.path().join("keys.json").display().to_string();
    let report = walked(&server.address(), &[&WHOLE[..], &["--memory"]].concat());
    std::fs::write(&file, report.to_string()).unwrap();
    let mut connection = server.connect_with(&options(2)).unwrap();
    let text = connection.call(&["INFO", "memory"]).unwrap().text().unwrap();
    let used = unslow_topology::Info::parse(&text).number("used_memory").unwrap();
    connection.call(&["CONFIG", "SET", "maxmemory", &format!("{:.0}", used / 2.0)]).unwrap();
    let evidence = |report: &Json| -> Vec<String> {
        let findings = report["findings"].as_array().unwrap().iter().filter(|f| f["id"] == "out_of_memory");
        let all = findings.flat_map(|f| f["evidence"].as_array().unwrap().clone());
        all.filter(|e| e["source"] == "unslow keys").map(|e| e["value"].as_str().unwrap().to_string()).collect()
    };
    let saved = dir.path().join("facts.json").display().to_string();
    let seen = common::report(&server.address(), &["--no-host", "--keys", &file, "--save", &saved]);
    let said = evidence(&seen);
    assert!(
        said.len() == 1 && said[0].contains("all 982 keys: ") && said[0].contains("of the memory of keys"),
        "{seen:#}"
    );
    let again = unslow(&["doctor", "--from", &saved, "--format", "json"]);
    assert_eq!(evidence(&serde_json::from_slice(&again.stdout).unwrap()), said);
    assert_eq!(evidence(&common::report(&server.address(), &["--no-host"])), Vec::<String>::new());

    let other = standalone("redis-7.0");
    let left_out = common::report(&other.address(), &["--no-host", "--keys", &file]);
    assert!(common::unseen(&left_out).iter().any(|n| n.contains("is of other servers")), "{left_out:#}");
    std::fs::write(&file, "{}").unwrap();
    let junk = unslow(&["doctor", &other.address(), "--keys", &file]);
    assert_eq!(junk.status.code(), Some(2));
    assert!(stderr(&junk).contains("not a document written by unslow keys"), "{}", stderr(&junk));
}

/// What was seen is printed, and the exit status says that it is not what was asked for.
#[test]
fn a_server_that_dies_during_a_scan_ends_it_as_failed() {
    let server = standalone("redis-7.0");
    let all: Vec<String> = (0..20_000).map(|n| format!("SET k:{n} x")).collect();
    fill(&mut server.connect_with(&options(2)).unwrap(), &all);
    let url = server.address();
    let child = command(&["keys", &url, "--all", "--rate", "1k", "--format", "json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("some keys to be scanned", || calls(&server, "scan") > 10);
    server.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let report: Json = serde_json::from_slice(&output.stdout).expect("what was seen");
    assert!(report["scanned"].as_u64().unwrap() > 0 && report["is_complete"] == false, "{report}");
    assert!(report["notes"].to_string().contains("ended early"), "{}", report["notes"]);
}

/// No real server does that: a cursor that never ends, and kinds of keys without an end.
#[test]
fn a_hostile_server_takes_no_more_than_the_time_that_was_given() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    let report = walked(&address, &["--for", "2s", "--rate", "1M", "--resp", "2"]);
    assert!(report["scanned"].as_u64().unwrap() > 5, "{report}");
    assert!(report["kinds"].as_array().unwrap().len() <= 30);
    assert!(report["share"].as_f64().unwrap() < 1.0);
}

fn answer(stream: std::net::TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // Otherwise each reply waits for a delayed ACK, and few keys come in the time there is.
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut out = stream;
    let mut n = 0_u64;
    while let Some(words) = heard(&mut reader) {
        n += 1;
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let reply = match words[0].to_ascii_uppercase().as_str() {
            "PING" => "+PONG\r\n".into(),
            "INFO" => bulk(
                "redis_version:7.0.0\r\nrole:master\r\nredis_mode:standalone\r\nrun_id:x\r\nloading:0\r\n\
                 db0:keys=5,expires=0\r\n",
            ),
            "SCAN" => format!("*2\r\n{}*1\r\n{}", bulk(&n.to_string()), bulk(&format!("\u{1b}[2Jk{n}:{n}"))),
            "TYPE" => format!("+kind{n}\r\n"),
            "ROLE" => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".into(),
            _ => ":1\r\n".into(),
        };
        if out.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

fn heard(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut line = || {
        let mut text = String::new();
        reader.read_line(&mut text).ok().filter(|n| *n > 0).map(|_| text.trim_end().to_string())
    };
    let count: usize = line()?.strip_prefix('*')?.parse().ok()?;
    (0..count).map(|_| line().and_then(|_| line())).collect()
}
