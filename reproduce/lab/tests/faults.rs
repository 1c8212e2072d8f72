//! Faults do to real servers what their names say, and their undoing leaves the deployment as it was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options};
use unslow_engine::{Error, Server, info, migrate_slots, view, wait_for};
use unslow_lab::faults::{self, ALL, Active, Takes};
use unslow_lab::lab::Lab;
use unslow_lab::topology::{Kind, Setting, Topology};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, options, skip, until};

fn start(fault: &str) -> Lab {
    let fault = faults::named(fault).unwrap_or_else(|e| panic!("{e}"));
    let mut topology = fault.topology("valkey-9.1");
    // Most deployments have one.
    topology.deployment.settings.insert("requirepass".into(), Setting::Text("s3cret".into()));
    Lab::start(&topology).unwrap_or_else(|e| panic!("{}: {e}", fault.name))
}

fn inject(lab: &Lab, fault: &str, target: Option<&str>, value: Option<&str>) -> Active {
    let fault = faults::named(fault).unwrap_or_else(|e| panic!("{e}"));
    fault.inject(lab, target, value).unwrap_or_else(|e| panic!("{} {target:?} {value:?}: {e}", fault.name))
}

fn node(lab: &Lab, number: usize) -> &Arc<Server> {
    &lab.deployment.nodes[number - 1]
}

fn connect(server: &Server) -> Connection {
    server.connect_with(&options(2)).unwrap_or_else(|e| panic!("{}: {e}", server.name()))
}

/// Whether the lab has wires; without the rights for them the test is skipped.
fn wired(lab: &Lab) -> bool {
    if let Err(e) = lab.wire() {
        skip(&e.to_string());
    }
    lab.wire().is_ok()
}

/// Whether this is what a machine without cgroups, or a user without rights to them, answers.
fn no_cgroup(e: &Error) -> bool {
    e.to_string().contains("cgroup can be made here")
}

/// All that a fault may change: every server's settings, who owns which slots, what the shim, the disk, the cgroup and
/// the kernel say of it, and what the paths do.
fn state(lab: &Lab) -> Vec<BTreeMap<String, String>> {
    let mut paths = BTreeMap::new();
    for (from, to) in (0..lab.hosts.len()).flat_map(|a| (0..lab.hosts.len()).map(move |b| (a, b))) {
        paths.insert(format!("path {from} {to}"), format!("{:?}", lab.between(from, to)));
    }
    let mut all = vec![paths];
    for server in &lab.deployment.nodes {
        let mut c = connect(server);
        let settings = c.call(&["CONFIG", "GET", "*"]).expect("read");
        let words: Vec<String> = settings.items().iter().filter_map(|v| v.text()).collect();
        let mut map: BTreeMap<String, String> =
            words.chunks(2).filter(|p| p.len() == 2).map(|p| (p[0].clone(), p[1].clone())).collect();
        // CONFIG says who it follows in its own way; the role below says it for both kinds.
        map.remove("replicaof");
        map.remove("slaveof");
        let pid = server.pid();
        let control = std::fs::read(server.dir().join("shim.control")).expect("the shim's file");
        let of_process = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
        map.insert("shim".into(), format!("{control:?}"));
        map.insert("disk".into(), format!("{:?}", server.seat().map(|s| s.size().expect("told"))));
        map.insert("cgroup".into(), of_process("cgroup"));
        map.insert("stopped".into(), of_process("status").contains("State:\tT").to_string());
        let replication = info(&mut c, "replication").expect("read");
        map.insert("role".into(), replication.get("role").unwrap_or("").into());
        map.insert("link".into(), replication.get("master_link_status").unwrap_or("").into());
        if lab.deployment.masters > 1 {
            let view = view(&mut c).expect("read");
            let me = view.myself().expect("itself");
            // A node that was cut off stays out for a moment after all others are up again.
            let said = c.call(&["CLUSTER", "INFO"]).ok().and_then(|v| v.text()).unwrap_or_default();
            map.insert("serves".into(), said.contains("cluster_state:ok").to_string());
            map.insert("slots".into(), me.slots.to_string());
            map.insert("open".into(), format!("{:?} {:?}", me.migrating, me.importing));
            map.insert("master".into(), me.master_id.clone().unwrap_or_default());
            map.insert("nodes".into(), view.nodes.len().to_string());
            map.insert("down".into(), view.nodes.iter().filter(|n| n.is_down()).count().to_string());
        }
        all.push(map);
    }
    all
}

/// Faults that leave replicas without their data: they are undone once it is there again.
const COPIES: &[&str] = &[
    "full_resync_loop",
    "min_replicas_refusing",
    "replica_buffer_kill",
    "replica_link_down",
    "resync_storm",
    "version_mix",
];

/// Every fault for this shape, one after the other on one lab: each must find it as it was before the one before.
fn all_on(topology: &Topology, wanted: impl Fn(&faults::Fault) -> bool) {
    let lab = Lab::start(topology).unwrap_or_else(|e| panic!("{e}"));
    let before = state(&lab);
    let mut left_out = Vec::new();
    for fault in ALL.iter().filter(|f| wanted(f)) {
        if fault.wired && lab.wire().is_err() {
            left_out.push(fault.name);
            continue;
        }
        let target = (fault.takes == Takes::Path).then_some("all");
        let mut active = match fault.inject(&lab, target, None) {
            Ok(active) => active,
            Err(e) if fault.root && no_cgroup(&e) => {
                left_out.push(fault.name);
                continue;
            }
            Err(e) => panic!("{}: {e}", fault.name),
        };
        assert!(!active.subject.is_empty(), "{} says on whom", fault.name);
        active.heal().unwrap_or_else(|e| panic!("{}: {e}", fault.name));
        if COPIES.contains(&fault.name) {
            let linked = |server: &Arc<Server>| {
                let now = info(&mut connect(server), "replication").expect("read");
                now.get("master_link_status").is_none_or(|link| link == "up")
            };
            assert!(lab.deployment.nodes.iter().all(linked), "{} is not over: a replica has no data", fault.name);
        }
        let mut difference = String::new();
        let same = wait_for("the state before", PATIENCE, || {
            let now = state(&lab);
            difference = before
                .iter()
                .zip(&now)
                .enumerate()
                .flat_map(|(i, (b, n))| {
                    b.iter().filter(|(k, v)| n.get(*k) != Some(v)).map(move |(k, v)| (i, k, v, n.get(k)))
                })
                .map(|(i, k, v, now)| format!("node-{} {k}: {v} -> {now:?}\n", i + 1))
                .collect();
            Ok(difference.is_empty())
        });
        assert!(same.is_ok(), "{} is not undone:\n{difference}", fault.name);
        for server in &lab.deployment.nodes {
            let _ = connect(server).call(&["FLUSHALL"]); // replicas refuse
        }
    }
    if !left_out.is_empty() {
        skip(&format!("all but {} were shown: no rights for wires or cgroups here", left_out.join(", ")));
    }
}

/// Faults that go on one server, alone or with a replica.
fn on_one_server(wanted: impl Fn(&faults::Fault) -> bool) {
    let mut topology = (faults::named("kill").expect("a fault").shape)();
    topology.deployment = Default::default();
    topology.deployment.kind = Kind::MasterReplica;
    topology.deployment.settings.insert("requirepass".into(), Setting::Text("s3cret".into()));
    topology.deployment.settings.insert("enable-debug-command".into(), Setting::Switch(true));
    // Of a cluster or of Sentinels, or shown below.
    let others = [
        "node_timeout_margin",
        "sentinel_down_after",
        "sentinel_master_down",
        "sentinel_quorum",
        "sentinel_tilt",
        "failover_flapping",
        "failover",
        "expire_storm",
        "aof_fsync_stall",
        // With settings that are read at the start only.
        "accept_overflow",
        "io_threads",
        // Of deployments of their own.
        "resync_storm",
        "version_mix",
    ];
    all_on(&topology, |f| {
        let six = (f.shape)().masters() > 1;
        (!six || of_the_ground(f)) && !others.contains(&f.name) && wanted(f)
    });
}

/// Whether it is of processes or paths, whatever runs there.
fn of_the_ground(fault: &faults::Fault) -> bool {
    matches!(fault.takes, Takes::Path | Takes::Processes)
}

#[test]
fn every_fault_of_processes_and_paths_is_undone() {
    on_one_server(of_the_ground);
}

#[test]
fn every_fault_of_one_server_and_its_clients_is_undone() {
    on_one_server(|f| !of_the_ground(f));
}

#[test]
fn sentinels_that_may_not_ping_take_a_master_for_down_and_see_it_again() {
    let lab = start("sentinel_master_down");
    let down = || -> Vec<bool> {
        let ask = |s: &Arc<Server>| connect(s).call(&["SENTINEL", "MASTER", "mymaster"]).expect("a master");
        let flags = |s| ask(s).get("flags").and_then(|v| v.text()).expect("flags");
        lab.deployment.sentinels.iter().map(|s| flags(s).contains("o_down")).collect()
    };
    assert_eq!(down(), [false; 3]);
    let mut active = inject(&lab, "sentinel_master_down", None, None);
    assert_eq!(down(), [true; 3]);
    active.heal().expect("healed");
    assert_eq!(down(), [false; 3]);
    let list = connect(&lab.deployment.nodes[0]).call(&["ACL", "LIST"]).expect("users");
    assert_eq!(list.items().len(), 1, "its user was removed: {list:?}");
}

#[test]
fn sentinels_lose_their_patience_and_get_it_back() {
    let lab = start("sentinel_down_after");
    let patience = || -> Vec<String> {
        let ask = |s: &Arc<Server>| connect(s).call(&["SENTINEL", "MASTER", "mymaster"]).expect("a master");
        let ms = |s| ask(s).get("down-after-milliseconds").and_then(|v| v.text()).expect("a time");
        lab.deployment.sentinels.iter().map(ms).collect()
    };
    assert_eq!(patience(), ["5000"; 3]);
    let mut active = inject(&lab, "sentinel_down_after", None, None);
    assert_eq!(patience(), ["500"; 3]);
    active.heal().expect("healed");
    assert_eq!(patience(), ["5000"; 3]);
}

#[test]
fn sentinels_lose_their_quorum_and_their_trust_in_the_clock_and_get_both_back() {
    let lab = start("sentinel_quorum");
    let quorum = || connect(&lab.deployment.sentinels[0]).call(&["SENTINEL", "CKQUORUM", "mymaster"]).is_ok();
    assert!(quorum());
    let mut active = inject(&lab, "sentinel_quorum", None, None);
    assert!(!quorum());
    active.heal().expect("healed");
    assert!(quorum() && lab.deployment.sentinels.iter().all(|s| s.alive()));
    let tilted = || {
        let says = |s: &Arc<Server>| info(&mut connect(s), "sentinel").expect("read").number("sentinel_tilt");
        lab.deployment.sentinels.iter().filter(|s| says(s) == Some(1.0)).count()
    };
    let mut active = inject(&lab, "sentinel_tilt", None, None);
    assert_eq!(tilted(), 3);
    active.heal().expect("healed");
    // Thirty seconds after the clocks went back.
    until("the Sentinels to trust their clocks again", || tilted() == 0);
}

#[test]
fn two_copies_at_once_and_an_upgrade_half_done_are_undone() {
    for name in ["resync_storm", "version_mix"] {
        let mut topology = faults::named(name).expect("a fault").topology("valkey-9.1");
        topology.deployment.settings.insert("requirepass".into(), Setting::Text("s3cret".into()));
        all_on(&topology, |f| f.name == name);
    }
}

#[test]
fn a_replica_that_is_loading_a_copy_is_waited_for() {
    const KEYS: usize = 5_000;
    const LOAD_DELAY_US: &str = "2000"; // per key, until a refusal has been counted
    let mut topology = faults::named("min_replicas_refusing").expect("a fault").topology("valkey-9.1");
    let settings = [("repl-diskless-sync-delay", 0), ("loading-process-events-interval-bytes", 1024)];
    topology.deployment.settings.extend(settings.map(|(name, value)| (name.into(), Setting::Number(value))));
    topology.deployment.settings.insert("rdbcompression".into(), Setting::Switch(false));
    let lab = Lab::start(&topology).unwrap_or_else(|e| panic!("{e}"));
    let (mut master, mut replica) = (connect(node(&lab, 1)), connect(node(&lab, 2)));
    let command = |i| vec!["SET".to_string(), format!("k:{i}"), "x".repeat(1000)];
    master.pipeline(&(0..KEYS).map(command).collect::<Vec<_>>()).expect("written");
    replica.call(&["CONFIG", "SET", "key-load-delay", LOAD_DELAY_US, "min-replicas-to-write", "0"]).expect("settings");
    let of = node(&lab, 1);
    for command in [["REPLICAOF", "NO", "ONE"], ["SET", "own", "history"], ["REPLICAOF", &of.ip, &of.port.to_string()]]
    {
        replica.call(&command).expect("done");
    }
    until("the replica to load a copy", || {
        info(&mut replica, "persistence").expect("read").get("loading") == Some("1")
    });
    let refused = || {
        let stats = info(&mut connect(node(&lab, 2)), "commandstats").expect("read");
        stats.get("cmdstat_replicaof").is_some_and(|of| !of.contains("rejected_calls=0"))
    };
    let mut active = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a refusal while it loads", refused);
            connect(node(&lab, 2)).call(&["CONFIG", "SET", "key-load-delay", "0"]).expect("a setting");
        });
        inject(&lab, "min_replicas_refusing", None, None)
    });
    active.heal().expect("healed");
    assert_eq!(info(&mut replica, "replication").expect("read").get("master_link_status"), Some("up"));
}

#[test]
fn every_fault_of_a_cluster_is_undone() {
    let mut topology = (faults::named("open_slot").expect("a fault").shape)();
    topology.deployment.settings.insert("requirepass".into(), Setting::Text("s3cret".into()));
    topology.deployment.settings.insert("enable-debug-command".into(), Setting::Switch(true));
    all_on(&topology, |f| (f.shape)().masters() > 1);
}

#[test]
fn a_full_disk_fails_a_save_and_nothing_else() {
    let lab = start("full_disk");
    if !wired(&lab) {
        return;
    }
    let mut c = connect(node(&lab, 1));
    c.call(&["SET", "k", &"x".repeat(100_000)]).expect("written");
    let mut active = inject(&lab, "full_disk", None, None);
    let refused = c.call(&["SAVE"]).expect_err("there is no room");
    assert_eq!(c.call(&["GET", "nothing"]).expect("still answers").text(), None, "{refused}");
    active.heal().expect("healed");
    c.call(&["SAVE"]).expect("there is room again");
}

#[test]
fn the_shim_delays_forks_fsyncs_and_writes_and_moves_the_clock() {
    let lab = start("slow_fork");
    let mut c = connect(node(&lab, 1));
    c.call(&["SET", "k", "v"]).expect("written");
    let now = |c: &mut Connection| c.call(&["TIME"]).expect("told").items()[0].integer().expect("a number");
    let before = now(&mut c);
    let mut active = inject(&lab, "clock_jump", None, Some("+1h"));
    // The server reads its clock once a loop.
    until("a clock an hour ahead", || now(&mut c) - before >= 3600);
    active.heal().expect("healed");
    until("the right time", || now(&mut c) - before < 3600);

    let mut active = inject(&lab, "slow_fork", None, Some("300ms"));
    c.call(&["BGSAVE"]).expect("begun");
    until_ok("the end of the save", || {
        Ok::<_, Error>(info(&mut c, "persistence")?.get("rdb_bgsave_in_progress") == Some("0"))
    });
    let fork_us = info(&mut c, "stats").expect("read").number("latest_fork_usec").expect("a number");
    assert!(fork_us >= 300_000.0, "{fork_us} us");
    active.heal().expect("healed");

    c.call(&["CONFIG", "SET", "appendonly", "yes"]).expect("set");
    c.call(&["CONFIG", "SET", "appendfsync", "always"]).expect("set");
    until_ok("the append-only file", || {
        Ok::<_, Error>(info(&mut c, "persistence")?.get("aof_rewrite_in_progress") == Some("0"))
    });
    for (fault, value, bytes, least_ms) in [("slow_fsync", "200ms", 1, 200), ("slow_disk", "1mb", 300_000, 280)] {
        let mut active = inject(&lab, fault, None, Some(value));
        let begun = Instant::now();
        c.call(&["SET", "k", &"x".repeat(bytes)]).expect("written");
        c.call(&["GET", "k"]).expect("read");
        assert!(begun.elapsed() >= Duration::from_millis(least_ms), "{fault}: {:?}", begun.elapsed());
        active.heal().expect("healed");
    }
}

#[test]
fn a_memory_limit_kills_a_server_that_grows_and_heals_by_a_restart() {
    let lab = start("memory_limit");
    let pid = node(&lab, 1).pid();
    let begun = faults::named("memory_limit").expect("a fault").inject(&lab, None, Some("30mb"));
    let mut active = match begun {
        Ok(active) => active,
        Err(e) if no_cgroup(&e) => {
            skip(&e.to_string());
            return;
        }
        Err(e) => panic!("{e}"),
    };
    let mut c = connect(node(&lab, 1));
    let value = "x".repeat(1_000_000);
    let died = (0..500).any(|i| c.call(&["SET", &format!("k:{i}"), &value]).is_err());
    assert!(died, "500 MB fitted into 30 MB");
    until("the kernel to have killed it", || !node(&lab, 1).alive());
    active.heal().expect("healed");
    assert_ne!(node(&lab, 1).pid(), pid);
    connect(node(&lab, 1)).call(&["PING"]).expect("back");
}

#[test]
fn slots_move_with_their_keys_and_back() {
    let lab = start("move_slot");
    let key = (0..).map(|i| format!("k:{i}")).find(|k| unslow_topology::slot_of(k.as_bytes()) == 42).expect("one");
    connect(node(&lab, 1)).call(&["SET", &key, "kept"]).expect("written");
    for (fault, value) in [("move_slot", "42"), ("reshard", "60"), ("reshard_atomic", "60")] {
        let mut active = inject(&lab, fault, None, Some(value));
        let mut there = connect(node(&lab, 2));
        until_ok(&format!("slot 42 on node-2 by {fault}"), || {
            Ok::<_, Error>(view(&mut there)?.myself().is_some_and(|n| n.slots.contains(42)))
        });
        assert_eq!(there.call(&["GET", &key]).expect("owned").text().as_deref(), Some("kept"), "{fault}");
        active.heal().unwrap_or_else(|e| panic!("{fault}: {e}"));
        let mut here = connect(node(&lab, 1));
        until_ok(&format!("slot 42 back after {fault}"), || {
            Ok::<_, Error>(view(&mut here)?.myself().is_some_and(|n| n.slots.contains(42)))
        });
        assert_eq!(here.call(&["GET", &key]).expect("owned").text().as_deref(), Some("kept"), "{fault}");
    }
}

#[test]
fn a_migration_the_servers_give_up_is_begun_again() {
    let lab = start("reshard_atomic");
    let id = view(&mut connect(node(&lab, 2))).expect("read").myself().expect("itself").id.clone();
    // It accepts connections and says nothing: migrations to it neither end nor fail.
    let mut hang = inject(&lab, "hang", Some("node-2"), None);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| migrate_slots(&mut connect(node(&lab, 1)), 0, 59, &id));
        let mut source = connect(node(&lab, 1));
        let mut states = || -> Vec<String> {
            let jobs = source.call(&["CLUSTER", "GETSLOTMIGRATIONS"]).expect("listed");
            jobs.items().iter().filter_map(|j| j.get("state")?.text()).collect()
        };
        until("a migration", || !states().is_empty());
        connect(node(&lab, 1)).call(&["CLUSTER", "CANCELSLOTMIGRATIONS"]).expect("cancelled");
        until("a second one", || states().len() > 1);
        hang.heal().expect("healed");
        moving.join().expect("ended").expect("moved");
    });
    let there = view(&mut connect(node(&lab, 2))).expect("read");
    assert!(there.myself().is_some_and(|n| n.slots.contains(0) && n.slots.contains(59)));
}

#[test]
fn sentinels_fail_over_and_back() {
    let mut topology = (faults::named("kill").expect("a fault").shape)();
    topology.deployment = Default::default();
    topology.deployment.kind = Kind::Sentinel;
    topology.deployment.settings.insert("requirepass".into(), Setting::Text("s3cret".into()));
    let lab = Lab::start(&topology).unwrap_or_else(|e| panic!("{e}"));
    let role = |n: usize| {
        info(&mut connect(node(&lab, n)), "replication").expect("read").get("role").unwrap_or("").to_string()
    };
    let mut active = inject(&lab, "failover", None, None);
    until("the new master", || role(2) == "master");
    active.heal().unwrap_or_else(|e| panic!("{e}"));
    until("the old master", || role(1) == "master");
}

#[test]
fn a_partitioned_master_loses_its_place_to_the_majority() {
    let mut topology = (faults::named("partition").expect("a fault").shape)();
    topology.deployment.settings.insert("cluster-node-timeout".into(), Setting::Number(1500));
    let lab = Lab::start(&topology).unwrap_or_else(|e| panic!("{e}"));
    if !wired(&lab) {
        return;
    }
    let mut active = inject(&lab, "partition", Some("zone-a"), None);
    // Its replica stands in another zone, with two masters.
    let mut replica = connect(node(&lab, 4));
    until_ok("the replica's election", || {
        Ok::<_, Error>(info(&mut replica, "replication")?.get("role") == Some("master"))
    });
    let cut_off = lab.connect(
        &lab.hosts[lab.places[1]],
        node(&lab, 1),
        &Options { connect_timeout: Duration::from_millis(500), ..Options::default() },
    );
    assert!(cut_off.is_err(), "nobody reaches it from another zone");
    active.heal().expect("healed");
    let mut old = connect(node(&lab, 1));
    until_ok("the old master to follow", || {
        Ok::<_, Error>(info(&mut old, "replication")?.get("role") == Some("slave"))
    });
}

#[test]
fn two_masters_share_a_host_even_where_every_node_has_its_own() {
    let lab = Lab::start(&Topology::standard()).unwrap_or_else(|e| panic!("{e}"));
    let hosts_of_masters = || {
        let view = view(&mut connect(node(&lab, 3))).expect("read");
        let all: Vec<String> = view.masters().map(|m| m.host().to_string()).collect();
        (view.nodes.len(), all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len())
    };
    assert_eq!(hosts_of_masters(), (6, 3, 3), "nodes, hosts of masters, masters");
    let mut active = inject(&lab, "two_masters_on_one_host", None, None);
    // Every node knows the new master; that the old one follows it is said a moment later.
    until("two masters on one host, seven nodes in all", || hosts_of_masters() == (7, 2, 3));
    active.heal().unwrap_or_else(|e| panic!("{e}"));
    until("a host for each master, six nodes in all", || hosts_of_masters() == (6, 3, 3));
}

#[test]
fn two_faults_of_one_thing_are_refused_and_a_failed_undo_is_tried_again() {
    let lab = start("hang");
    let mut first = inject(&lab, "slow_fork", Some("node-1"), Some("10ms"));
    let again = faults::named("fork_stall").and_then(|f| f.inject(&lab, Some("node-1"), None)).err().expect("refused");
    assert!(again.to_string().contains("fork of node-1 is already held by slow_fork"), "{again}");
    first.heal().expect("healed");
    drop(first);
    // The master cannot take its place back while it hangs.
    let mut failover = inject(&lab, "failover", Some("node-1"), None);
    let mut hang = inject(&lab, "hang", Some("node-1"), None);
    failover.heal().expect_err("node-1 hangs");
    hang.heal().expect("healed");
    failover.heal().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(info(&mut connect(node(&lab, 1)), "replication").expect("read").get("role"), Some("master"));
}

#[test]
fn words_that_mean_nothing_are_answered_with_near_ones() {
    let lab = start("hang");
    let refused = |fault: &str, target: Option<&str>, value: Option<&str>| {
        faults::named(fault)
            .and_then(|f| f.inject(&lab, target, value))
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    for (fault, target, value, said) in [
        ("hagn", None, None, "did you mean \"hang\""),
        ("hang", Some("nod-2"), None, "did you mean \"node-2\""),
        ("partition", Some("zone-a:zone-d"), None, "did you mean \"zone-"),
        ("monitor", Some("zone-a-host-1"), None, "needs a single server"),
        ("hang", Some("zone-a-client-1"), None, "no server runs on"),
        ("loss", Some("zone-a"), Some("lots"), "invalid share \"lots\""),
        ("delay", Some("zone-a"), Some("5 miles"), "invalid duration \"5 miles\""),
        ("monitor", None, Some("3"), "takes no value"),
        ("open_slot", Some("node-1"), None, "takes no target"),
        ("move_slot", None, Some("20000"), "0 to 16383"),
        ("failover", Some("node-99"), None, "no server or host"),
        ("replica-1", None, None, "no fault"),
        ("partition", None, None, "expected a path"),
    ] {
        let text = refused(fault, target, value);
        assert!(text.contains(said), "{fault} {target:?} {value:?}: {text:?}, {said:?} was expected");
    }
}
