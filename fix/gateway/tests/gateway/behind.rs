//! What happens behind: slots that move, masters that are replaced, servers that are away.

use super::*;

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
