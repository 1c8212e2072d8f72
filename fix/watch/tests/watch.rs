//! The watcher before real deployments: what it tells, and that it does not tell what is not so.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use unslow_client::{Connection, Target, Value};
use unslow_engine::{Deployment, Error, Server, Shape, migrate_slots};
use unslow_testkit::servers::{deployment, everywhere, promote, sentinels, server, steady};
use unslow_testkit::slots::{id, move_slot};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, cluster, options, until};
use unslow_topology::messages::{DIGEST, FAILOVER, Heartbeat, MASTER_CHANGED, MOVED};
use unslow_topology::{Change, Health, Role, SlotSet};
use unslow_watch::{Delta, Known, News, Publish, Settings, Watch};

fn watch(url: &str, publish: Option<Publish>) -> (Watch, Receiver<Delta>) {
    let mut settings = Settings::new(Target::parse(url).unwrap(), options(2));
    settings.publish = publish;
    let (send, deltas) = channel();
    let tell = move |news| {
        if let News::Delta(delta, topology) = news {
            assert_eq!(delta.digest, topology.digest());
            let _ = send.send(delta);
        }
    };
    (Watch::start(settings, tell).unwrap(), deltas)
}

/// Waits for a change; all that came before it are dropped.
fn expect(deltas: &Receiver<Delta>, what: &str, is: impl Fn(&Known) -> bool) -> (Known, Instant) {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while let Ok(delta) = deltas.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        let at = Instant::now();
        for known in delta.changes {
            if is(&known) {
                return (known, at);
            }
            seen.push(known.what.to_string());
        }
    }
    panic!("{what} was never told; told were {seen:?}");
}

/// Waits until the watcher holds its subscriptions.
fn settle(watch: &Watch, deployment: &Deployment) {
    for server in &deployment.nodes {
        until_ok("the watcher's subscriptions", || {
            let mut c = server.connect()?;
            let found = match c.call(&["PUBSUB", "SHARDCHANNELS", "unslow:*"]) {
                Ok(found) => found,
                Err(e) if e.is_fatal() => return Err(e.into()),
                // Before 7.0 there are none.
                Err(_) => return Ok(true),
            };
            let slots = watch.topology().masters().map(|n| n.slots.len()).min().unwrap_or(0);
            Ok::<_, Error>(found.items().len() >= slots)
        });
    }
}

/// One after the other, each told before the next.
fn tells_of_moved_slots(name: &str, slots: u16) {
    let deployment = steady(name);
    let (watch, deltas) = watch(&deployment.url(), None);
    settle(&watch, &deployment);
    let mut times = Vec::new();
    for slot in 0..slots {
        let begun = move_slot(&deployment, slot, 0, 2, Duration::ZERO);
        let moved = |k: &Known| match &k.what {
            Change::Moved { slots, to: Some(to), .. } => slots.contains(slot) && *to == deployment.nodes[2].address(),
            _ => false,
        };
        let (_, at) = expect(&deltas, "the move", moved);
        times.push(at.duration_since(begun));
        assert_eq!(watch.topology().owner(slot).unwrap().address, deployment.nodes[2].address());
    }
    times.sort();
    println!(
        "{name}: a move is known after {:?} (median), {:?} (slowest)",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    assert_eq!(watch.topology().masters().map(|n| n.slots.len()).sum::<usize>(), 16384);
    if name == "valkey-9.1" {
        // Ranges at once.
        let to = id(&deployment.nodes[1]);
        let mut source = deployment.nodes[0].connect().unwrap();
        migrate_slots(&mut source, 1000, 1099, &to).unwrap();
        let all = SlotSet::from_ranges([(1000, 1099)]);
        let (known, _) =
            expect(&deltas, "the atomic move", |k| matches!(&k.what, Change::Moved { slots, .. } if *slots == all));
        println!("100 slots at once: {known:?}");
    }
}

#[test]
fn tells_of_slots_moved_on_valkey_9_1_by_push() {
    tells_of_moved_slots("valkey-9.1", 20);
}

#[test]
fn tells_of_slots_moved_on_redis_7_0_by_push() {
    tells_of_moved_slots("redis-7.0", 20);
}

#[test]
fn tells_of_slots_moved_on_redis_6_2_by_polling() {
    tells_of_moved_slots("redis-6.2", 5);
}

#[test]
fn tells_of_slots_moved_on_redis_5_0_by_polling() {
    tells_of_moved_slots("redis-5.0", 5);
}

#[test]
fn suspects_a_master_that_hangs_tells_who_took_its_place_and_that_it_is_back() {
    for name in ["valkey-9.1", "redis-7.0", "redis-5.0"] {
        let deployment = cluster(name);
        let (watch, deltas) = watch(&deployment.url(), None);
        settle(&watch, &deployment);
        let (master, replica) = (deployment.nodes[0].address(), deployment.nodes[3].address());
        if name == "redis-5.0" {
            // A failover of 5.0 waits for ever while nothing was ever written.
            let mut c = deployment.nodes[0].connect().unwrap();
            let key = (0..).map(|i| format!("k{i}")).find(|k| unslow_topology::slot_of(k.as_bytes()) < 5000).unwrap();
            c.call(&["SET", &key, "v"]).unwrap();
            until_ok("its replica to have it", || Ok::<_, Error>(c.call(&["WAIT", "1", "1000"])?.integer() == Some(1)));
        }
        deployment.nodes[0].signal(libc::SIGSTOP);
        let stopped = Instant::now();
        let (_, at) = expect(&deltas, "the suspicion", |k| k.what == Change::Suspected { node: master.clone() });
        println!("{name}: suspected after {:?}", at - stopped);
        let (known, _) = expect(&deltas, "the promotion", |k| match &k.what {
            Change::Promoted { node, instead_of: Some(old), .. } => *node == replica && *old == master,
            _ => false,
        });
        println!("{name}: {known:?}");
        deployment.nodes[0].signal(libc::SIGCONT);
        expect(&deltas, "the demotion", |k| matches!(&k.what, Change::Demoted { node, .. } if *node == master));
        until("every node to be well", || watch.topology().nodes.iter().all(|n| n.health == Health::Up));
        let topology = watch.topology();
        assert_eq!(topology.at(&replica).unwrap().role, Role::Master);
        assert_eq!(topology.at(&master).unwrap().master.as_deref(), topology.at(&replica).map(|n| n.id.as_str()));
    }
}

#[test]
fn knows_of_nodes_that_come_and_go() {
    let deployment = steady("redis-7.0");
    let (_watch, deltas) = watch(&deployment.url(), None);
    let server = server("redis-7.0", &[("cluster-enabled", "yes")]);
    let first = &deployment.nodes[0];
    server.connect().unwrap().call(&["CLUSTER", "MEET", &first.ip, &first.port.to_string()]).unwrap();
    expect(&deltas, "the new node", |k| matches!(&k.what, Change::Added { node, .. } if *node == server.address()));
    let gone = id(&server);
    everywhere(&deployment, "every node to know it", |view| view.by_id(&gone).is_some());
    server.kill();
    for node in &deployment.nodes {
        node.connect().unwrap().call(&["CLUSTER", "FORGET", &gone]).unwrap();
    }
    expect(&deltas, "its end", |k| k.what == Change::Removed { node: server.address() });
}

/// Failovers that one of these Sentinels was elected to make, those included that are not over.
fn failovers_begun(sentinels: &[Arc<Server>]) -> usize {
    sentinels.iter().map(|s| s.log().matches("+elected-leader").count()).sum()
}

#[test]
fn follows_sentinels_and_plain_replication() {
    for with_sentinels in [true, false] {
        let deployment = match with_sentinels {
            true => sentinels("redis-6.2", 2, 10_000),
            false => deployment("redis-6.2", Shape::MasterReplica { replicas: 2 }, &[]),
        };
        let (watch, deltas) = watch(&deployment.url(), None);
        let master = deployment.nodes[0].address();
        assert_eq!(watch.topology().masters().next().unwrap().address, master);
        until("all nodes", || watch.topology().nodes.len() == 3);
        deployment.nodes[0].kill();
        expect(&deltas, "the suspicion", |k| k.what == Change::Suspected { node: master.clone() });
        if !with_sentinels {
            let (host, port) = (&deployment.nodes[1].ip, &deployment.nodes[1].port.to_string());
            deployment.nodes[1].connect().unwrap().call(&["REPLICAOF", "NO", "ONE"]).unwrap();
            deployment.nodes[2].connect().unwrap().call(&["REPLICAOF", host, port]).unwrap();
        }
        let (known, _) = expect(&deltas, "the new master", |k| matches!(&k.what, Change::Promoted { .. }));
        println!("Sentinels {with_sentinels}: {known:?}");
        // No Sentinel turns it back, and nothing is told that the servers did not do: Sentinels on a busy machine may
        // fail over again, which is counted after what was told. Three seconds are a look, and no limit.
        let end = Instant::now() + Duration::from_secs(3);
        let next = || deltas.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
        let after: Vec<Delta> = std::iter::from_fn(next).collect();
        let again: Vec<&Change> = after
            .iter()
            .flat_map(|d| &d.changes)
            .map(|k| &k.what)
            .filter(|c| matches!(c, Change::Promoted { .. }))
            .collect();
        let failovers = if with_sentinels { failovers_begun(&deployment.sentinels) } else { 1 };
        assert!(again.len() < failovers, "{failovers} failovers, but then {again:?} in {after:?}");
        assert!(!again.iter().any(|c| matches!(c, Change::Promoted { node, .. } if *node == master)), "{after:?}");
        assert_ne!(watch.topology().masters().next().unwrap().address, master);
    }
}

#[test]
fn a_master_is_held_before_sentinel_promotes_the_replica_it_announced() {
    let deployment = sentinels("redis-7.0", 1, 180_000);
    let (watch, deltas) = watch(&deployment.url(), None);
    let (old, new) = (deployment.nodes[0].address(), deployment.nodes[1].address());
    until("both nodes to be well", || {
        let topology = watch.topology();
        topology.nodes.len() == 2 && topology.nodes.iter().all(|n| n.health == Health::Up)
    });
    for sentinel in &deployment.sentinels {
        until_ok("the watcher's subscriptions", || {
            let list = sentinel.connect()?.call(&["CLIENT", "LIST"])?.text().unwrap_or_default();
            let subscribed = |line: &str| line.split(' ').any(|w| w.starts_with("sub=") && w != "sub=0");
            Ok::<_, Error>(list.lines().any(subscribed))
        });
    }
    until_ok("Sentinel to take the order", || {
        match deployment.sentinels[0].connect()?.call(&["SENTINEL", "FAILOVER", "mymaster"]) {
            Ok(_) => Ok(true),
            Err(e) if e.is_fatal() => Err(e.into()),
            Err(_) => Ok::<_, Error>(false),
        }
    });
    let promoted = |k: &Known| matches!(&k.what, Change::Promoted { node, .. } if *node == new);
    expect(&deltas, "the hold", |k| {
        assert!(!promoted(k), "the promotion came first");
        k.what == Change::Suspected { node: old.clone() }
    });
    expect(&deltas, "the promotion", promoted);
    assert_eq!(watch.topology().masters().next().unwrap().address, new);
}

#[test]
fn one_of_two_watchers_publishes_and_the_other_takes_over() {
    let deployment = steady("valkey-9.1");
    let publish = Some(Publish { master_changed: true });
    let (first, _a) = watch(&deployment.url(), publish);
    let (second, _b) = watch(&deployment.url(), publish);
    settle(&first, &deployment);
    let mut ear = deployment.nodes[1].connect().unwrap();
    ear.send(&["SUBSCRIBE", MOVED, FAILOVER, DIGEST, MASTER_CHANGED]).unwrap();
    let heard = Arc::new(Mutex::new(Vec::<(Instant, String, String)>::new()));
    let listener = heard.clone();
    std::thread::spawn(move || {
        while let Ok(message) = ear.receive(PATIENCE) {
            if let [Value::Text(word), name, text] = message.items()
                && word == b"message"
            {
                listener.lock().unwrap().push((Instant::now(), name.text().unwrap(), text.text().unwrap()));
            }
        }
    });
    let beats = || -> Vec<Heartbeat> {
        let heard = heard.lock().unwrap();
        heard.iter().filter(|(_, n, _)| n == DIGEST).map(|(.., t)| Heartbeat::parse(t).unwrap()).collect()
    };
    // Both may say a first word in the same moment; from then on it is one.
    let same = |b: &[Heartbeat]| b.len() >= 3 && b[b.len() - 3..].iter().all(|x| x.watcher == b[b.len() - 1].watcher);
    until("heartbeats of one", || same(&beats()));
    let (begun, leader) = (beats().len(), beats().last().unwrap().watcher.clone());
    assert_eq!(beats().last().unwrap().digest, first.topology().digest());
    move_slot(&deployment, 7, 0, 2, Duration::ZERO);
    let to = deployment.nodes[2].address();
    let said = |name: &str, text: &str| heard.lock().unwrap().iter().filter(|(_, n, t)| n == name && t == text).count();
    until("the move", || said(MOVED, &format!("7 {to}")) > 0);
    let owner = id(&deployment.nodes[2]);
    everywhere(&deployment, "every node to know of it", |v| v.by_id(&owner).is_some_and(|n| n.slots.contains(7)));
    promote(&deployment.nodes[3]);
    let failover = format!("0-6,8-5461 {}", deployment.nodes[3].address());
    until("the failover", || said(FAILOVER, &failover) > 0);
    until("the broadcast", || said(MASTER_CHANGED, "*") > 0);
    let times = (said(MOVED, &format!("7 {to}")), said(FAILOVER, &failover));
    // Only one publishes. Should a busy machine hold up its heartbeats, the other takes over, and heartbeats before it
    // does.
    if times != (1, 1) {
        assert!(times.0 <= 2 && times.1 <= 2, "{times:?}");
        until("a heartbeat of the other one, since news came twice", || {
            beats()[begun..].iter().any(|b| b.watcher != leader)
        });
    }
    drop(first);
    drop(_a);
    until("the other to take over", || beats().last().unwrap().watcher != leader);
    drop(second);
}

#[test]
fn a_node_on_the_wrong_side_of_a_partition_does_not_win() {
    let deployment = cluster("valkey-9.1");
    let (watch, deltas) = watch(&deployment.url(), None);
    settle(&watch, &deployment);
    let old = deployment.nodes[0].address();
    deployment.nodes[0].signal(libc::SIGSTOP);
    let promoted =
        |k: &Known| matches!(&k.what, Change::Promoted { instead_of, .. } if instead_of.as_ref() == Some(&old));
    expect(&deltas, "the promotion", promoted);
    assert_ne!(watch.topology().owner(0).unwrap().address, old);
    // It wakes up and still takes itself for the master, until it hears of the election. Every topology is told, so
    // what is told until then shows that it never owned a slot again.
    deployment.nodes[0].signal(libc::SIGCONT);
    expect(&deltas, "the demotion", |k| {
        let won = match &k.what {
            Change::Promoted { node, .. } => *node == old,
            Change::Moved { to, .. } => to.as_ref() == Some(&old),
            _ => false,
        };
        assert!(!won, "the stale node won: {k:?}");
        matches!(&k.what, Change::Demoted { node, .. } if *node == old)
    });
    assert_ne!(watch.topology().owner(0).unwrap().address, old);
    let mut c = Connection::open(&deployment.nodes[3].target(), &options(2)).unwrap();
    assert_eq!(c.call(&["ROLE"]).unwrap().items()[0].text().as_deref(), Some("master"));
}
