//! The watcher before real deployments: what it tells, and that it does not tell what is not so.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options, Target, Value};
use unslow_engine::{Deployment, Server, ServerSpec, Shape, find, migrate_slots, wait_for};
use unslow_topology::messages::{DIGEST, FAILOVER, Heartbeat, MASTER_CHANGED, MOVED};
use unslow_topology::{Change, Health, Role, SlotSet};
use unslow_watch::{Delta, Known, News, Publish, Settings, Watch};

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn options() -> Options {
    let timeout = Duration::from_secs(10);
    Options { connect_timeout: timeout, command_timeout: timeout, ..Options::default() }
}

fn watch(url: &str, publish: Option<Publish>) -> (Watch, Receiver<Delta>) {
    let mut settings = Settings::new(Target::parse(url).unwrap(), options());
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
    let deadline = Instant::now() + Duration::from_secs(30);
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

fn cluster(name: &str) -> Deployment {
    let settings = vec![("cluster-node-timeout".to_string(), "2000".to_string())];
    let spec = ServerSpec { settings, ..ServerSpec::default() };
    Deployment::start(&find(name).unwrap(), &Shape::six_nodes(), &spec).unwrap()
}

fn id(server: &Server) -> String {
    server.connect().unwrap().call(&["CLUSTER", "MYID"]).unwrap().text().unwrap()
}

/// Waits until the watcher holds its subscriptions.
fn settle(watch: &Watch, deployment: &Deployment) {
    for server in &deployment.nodes {
        wait_for("subscriptions", Duration::from_secs(20), || {
            let mut c = server.connect()?;
            let Ok(found) = c.call(&["PUBSUB", "SHARDCHANNELS", "unslow:*"]) else { return Ok(true) };
            let slots = watch.topology().masters().map(|n| n.slots.len()).min().unwrap_or(0);
            Ok(found.items().len() >= slots)
        })
        .unwrap();
    }
}

/// Gives a slot without keys to another node; returns when the command that decides it was answered.
fn give(deployment: &Deployment, slot: u16, from: usize, to: usize) -> Instant {
    let (a, b, slot) = (id(&deployment.nodes[from]), id(&deployment.nodes[to]), slot.to_string());
    let (mut source, mut target) = (deployment.nodes[from].connect().unwrap(), deployment.nodes[to].connect().unwrap());
    target.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &a]).unwrap();
    source.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &b]).unwrap();
    let at = Instant::now();
    target.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &b]).unwrap();
    source.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &b]).unwrap();
    at
}

#[test]
fn tells_of_moved_slots_by_push_on_new_servers_and_by_polling_on_old_ones() {
    let _alone = alone();
    for name in ["valkey-9.1", "redis-7.0", "redis-6.2", "redis-5.0"] {
        let deployment = cluster(name);
        let (watch, deltas) = watch(&deployment.url(), None);
        settle(&watch, &deployment);
        let mut times = Vec::new();
        for slot in 0..20u16 {
            let begun = give(&deployment, slot, 0, 2);
            let moved = |k: &Known| matches!(&k.what, Change::Moved { slots, to: Some(to), .. } if slots.contains(slot) && *to == deployment.nodes[2].address());
            let (_, at) = expect(&deltas, "the move", moved);
            times.push(at.duration_since(begun));
            assert_eq!(watch.topology().owner(slot).unwrap().address, deployment.nodes[2].address());
        }
        times.sort();
        println!("{name}: a move is known after {:?} (median), {:?} (slowest of 20)", times[10], times[19]);
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
}

#[test]
fn suspects_a_master_that_hangs_tells_who_took_its_place_and_that_it_is_back() {
    let _alone = alone();
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
            c.call(&["WAIT", "1", "5000"]).unwrap();
        }
        deployment.nodes[0].signal(libc::SIGSTOP);
        let stopped = Instant::now();
        let (_, at) = expect(&deltas, "the suspicion", |k| k.what == Change::Suspected { node: master.clone() });
        println!("{name}: suspected after {:?}", at - stopped);
        let (known, _) = expect(
            &deltas,
            "the promotion",
            |k| matches!(&k.what, Change::Promoted { node, instead_of: Some(old), .. } if *node == replica && *old == master),
        );
        println!("{name}: {known:?}");
        deployment.nodes[0].signal(libc::SIGCONT);
        expect(&deltas, "the demotion", |k| matches!(&k.what, Change::Demoted { node, .. } if *node == master));
        wait_for("everyone to be well", Duration::from_secs(20), || {
            Ok(watch.topology().nodes.iter().all(|n| n.health == Health::Up))
        })
        .unwrap();
        let topology = watch.topology();
        assert_eq!(topology.at(&replica).unwrap().role, Role::Master);
        assert_eq!(topology.at(&master).unwrap().master.as_deref(), topology.at(&replica).map(|n| n.id.as_str()));
    }
}

#[test]
fn knows_of_nodes_that_come_and_go() {
    let _alone = alone();
    let deployment = cluster("redis-7.0");
    let (_watch, deltas) = watch(&deployment.url(), None);
    let spec = ServerSpec { settings: vec![("cluster-enabled".into(), "yes".into())], ..ServerSpec::default() };
    let server = Server::start(&find("redis-7.0").unwrap(), &spec).unwrap();
    let first = deployment.nodes[0].address();
    let (host, port) = first.rsplit_once(':').unwrap();
    server.connect().unwrap().call(&["CLUSTER", "MEET", host, port]).unwrap();
    expect(&deltas, "the new node", |k| matches!(&k.what, Change::Added { node, .. } if *node == server.address()));
    let gone = id(&server);
    server.kill();
    for node in &deployment.nodes {
        node.connect().unwrap().call(&["CLUSTER", "FORGET", &gone]).unwrap();
    }
    expect(&deltas, "its end", |k| k.what == Change::Removed { node: server.address() });
}

/// The configuration epoch of a Sentinel's master: 0 at first, and higher after every failover.
fn epoch_of_master(sentinel: &Server) -> usize {
    let reply = sentinel.connect().unwrap().call(&["SENTINEL", "MASTER", "mymaster"]).unwrap();
    let words: Vec<String> = reply.items().iter().filter_map(Value::text).collect();
    let at = words.iter().position(|w| w == "config-epoch").unwrap();
    words[at + 1].parse().unwrap()
}

#[test]
fn follows_sentinels_and_plain_replication() {
    let _alone = alone();
    for sentinels in [true, false] {
        let shape = match sentinels {
            true => Shape::Sentinel { replicas: 2, sentinels: 3, quorum: 2 },
            false => Shape::MasterReplica { replicas: 2 },
        };
        let deployment = Deployment::start(&find("redis-6.2").unwrap(), &shape, &ServerSpec::default()).unwrap();
        for sentinel in &deployment.sentinels {
            let mut c = sentinel.connect().unwrap();
            c.call(&["SENTINEL", "SET", "mymaster", "down-after-milliseconds", "1000"]).unwrap();
        }
        let (watch, deltas) = watch(&deployment.url(), None);
        let master = deployment.nodes[0].address();
        assert_eq!(watch.topology().masters().next().unwrap().address, master);
        wait_for("all nodes", Duration::from_secs(10), || Ok(watch.topology().nodes.len() == 3)).unwrap();
        deployment.nodes[0].kill();
        expect(&deltas, "the suspicion", |k| k.what == Change::Suspected { node: master.clone() });
        if !sentinels {
            let host = &deployment.nodes[1].address();
            let (host, port) = host.rsplit_once(':').unwrap();
            deployment.nodes[1].connect().unwrap().call(&["REPLICAOF", "NO", "ONE"]).unwrap();
            deployment.nodes[2].connect().unwrap().call(&["REPLICAOF", host, port]).unwrap();
        }
        let (known, _) = expect(&deltas, "the new master", |k| matches!(&k.what, Change::Promoted { .. }));
        println!("sentinels {sentinels}: {known:?}");
        // Nobody turns it back, and nothing is told that the servers did not do: Sentinels on a busy machine may fail over once
        // more, each time with a higher epoch.
        let after: Vec<Delta> = std::iter::from_fn(|| deltas.recv_timeout(Duration::from_secs(3)).ok()).collect();
        let again: Vec<&Change> = after
            .iter()
            .flat_map(|d| &d.changes)
            .map(|k| &k.what)
            .filter(|c| matches!(c, Change::Promoted { .. }))
            .collect();
        let failovers = deployment.sentinels.iter().map(|s| epoch_of_master(s)).max().unwrap_or(1);
        assert!(again.len() < failovers, "{failovers} failovers, but then {again:?} in {after:?}");
        assert!(!again.iter().any(|c| matches!(c, Change::Promoted { node, .. } if *node == master)), "{after:?}");
        assert_ne!(watch.topology().masters().next().unwrap().address, master);
    }
}

#[test]
fn one_of_two_watchers_publishes_and_the_other_takes_over() {
    let _alone = alone();
    let deployment = cluster("valkey-9.1");
    let publish = Some(Publish { master_changed: true });
    let (first, _a) = watch(&deployment.url(), publish);
    let (second, _b) = watch(&deployment.url(), publish);
    settle(&first, &deployment);
    let mut ear = deployment.nodes[1].connect().unwrap();
    ear.send(&["SUBSCRIBE", MOVED, FAILOVER, DIGEST, MASTER_CHANGED]).unwrap();
    let heard = Arc::new(Mutex::new(Vec::<(Instant, String, String)>::new()));
    let listener = heard.clone();
    std::thread::spawn(move || {
        while let Ok(message) = ear.receive(Duration::from_secs(60)) {
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
    wait_for("heartbeats of one", Duration::from_secs(15), || Ok(same(&beats()))).unwrap();
    let leader = beats().last().unwrap().watcher.clone();
    assert_eq!(beats().last().unwrap().digest, first.topology().digest());
    give(&deployment, 7, 0, 2);
    let to = deployment.nodes[2].address();
    let said = |name: &str, text: &str| heard.lock().unwrap().iter().filter(|(_, n, t)| n == name && t == text).count();
    wait_for("the move", Duration::from_secs(10), || Ok(said(MOVED, &format!("7 {to}")) > 0)).unwrap();
    deployment.nodes[3].connect().unwrap().call(&["CLUSTER", "FAILOVER"]).unwrap();
    let failover = format!("0-6,8-5461 {}", deployment.nodes[3].address());
    wait_for("the failover", Duration::from_secs(20), || Ok(said(FAILOVER, &failover) > 0)).unwrap();
    wait_for("the broadcast", Duration::from_secs(10), || Ok(said(MASTER_CHANGED, "*") > 0)).unwrap();
    assert_eq!((said(MOVED, &format!("7 {to}")), said(FAILOVER, &failover)), (1, 1), "only one publishes");
    drop(first);
    drop(_a);
    wait_for("the other to take over", Duration::from_secs(15), || Ok(beats().last().unwrap().watcher != leader))
        .unwrap();
    drop(second);
}

#[test]
fn a_node_on_the_wrong_side_of_a_partition_does_not_win() {
    let _alone = alone();
    let deployment = cluster("valkey-9.1");
    let (watch, deltas) = watch(&deployment.url(), None);
    settle(&watch, &deployment);
    let old = deployment.nodes[0].address();
    deployment.nodes[0].signal(libc::SIGSTOP);
    expect(&deltas, "the promotion", |k| matches!(k.what, Change::Promoted { .. }));
    let digest = watch.topology().digest();
    // It wakes up and still takes itself for the master, until it hears of the election.
    deployment.nodes[0].signal(libc::SIGCONT);
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let owner = watch.topology().owner(0).map(|n| n.address.clone());
        assert_ne!(owner.as_deref(), Some(old.as_str()), "the stale node won");
        std::thread::yield_now();
    }
    let _ = digest;
    let mut c = Connection::open(&deployment.nodes[3].target(), &options()).unwrap();
    assert_eq!(c.call(&["ROLE"]).unwrap().items()[0].text().as_deref(), Some("master"));
}
