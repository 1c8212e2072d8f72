//! Servers that refuse for a while, move slots, hang or are killed: each message is written once, in order.

use unslow_engine::{Deployment, Error, Shape, migrate_slots};
use unslow_testkit::servers::deployment;
use unslow_testkit::slots::{id, move_slot, set_slot};
use unslow_testkit::wait::until_ok;

use super::*;

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
