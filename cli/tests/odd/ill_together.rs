//! Faults of servers that belong together: replication, Sentinels, clusters; masters that are dead, hung or taken for
//! dead.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use unslow_client::{Secret, Target};
use unslow_engine::{Deployment, Server, ServerSpec, Shape, info, view};
use unslow_testkit::servers::{everywhere, settings};
use unslow_testkit::slots::{id, move_slot, owner_of};
use unslow_testkit::until;
use unslow_testkit::wait::until_ok;
use unslow_topology::slot_of;

use crate::Ill;
use crate::means::{Group, halves, key_in, loose_cluster, open_slot, outer_address};
use crate::stage::{Client, Made, Stage, fill, ms, open, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "replica_buffer_of_1_mb",
        how: "client-output-buffer-limit replica 1mb, 20 MB/s of writes, a replica that wants 60 MB",
        first: "replica_buffer_kill",
        make: replica_buffer_of_1_mb,
    },
    Ill {
        name: "history_lost_again_and_again",
        how: "DEBUG CHANGE-REPL-ID on the master every 700 ms and a cut link, as a master that restarts without its \
              data has it",
        first: "full_resync_loop",
        make: history_lost_again_and_again,
    },
    Ill {
        name: "backlog_of_1_mb",
        how: "repl-backlog-size 1mb under 1 MB/s of writes",
        first: "backlog_too_small",
        make: backlog_of_1_mb,
    },
    Ill {
        name: "policies_differ",
        how: "noeviction on the master, volatile-ttl and another output buffer on the replica",
        first: "config_drift",
        make: policies_differ,
    },
    Ill {
        name: "upgrade_with_another_limit",
        how: "master and replica of two versions, maxmemory 150mb and 300mb",
        first: "config_drift",
        make: upgrade_with_another_limit,
    },
    Ill {
        name: "dead_master_of_a_pair",
        how: "kill -9 of the master, the doctor asks the replica",
        first: "node_unreachable",
        make: dead_master_of_a_pair,
    },
    Ill {
        name: "dead_master_of_a_cluster",
        how: "kill -9 of a master, the node timeout not yet over",
        first: "node_unreachable",
        make: dead_master_of_a_cluster,
    },
    Ill {
        name: "paused_container",
        how: "the master's control group is frozen, the doctor asks the replica",
        first: "node_hangs",
        make: paused_container,
    },
    Ill {
        name: "stopped_alone",
        how: "SIGSTOP of a single server that the doctor is pointed at",
        first: "node_hangs",
        make: stopped_alone,
    },
    Ill {
        name: "endless_script",
        how: "while true in a script on the master, lua-time-limit 0",
        first: "node_hangs",
        make: endless_script,
    },
    Ill {
        name: "slots_never_assigned",
        how: "384 slots without an owner from the start, full coverage not required",
        first: "slots_uncovered",
        make: slots_never_assigned,
    },
    Ill {
        name: "owner_failed",
        how: "a master without a replica is killed, and the others have marked it",
        first: "node_unreachable",
        make: owner_failed,
    },
    Ill {
        name: "importing_alone",
        how: "SETSLOT IMPORTING on one node, nothing on the other",
        first: "open_slots",
        make: importing_alone,
    },
    Ill {
        name: "half_moved_slot",
        how: "a slot left open on both sides, and clients that get ASK",
        first: "open_slots",
        make: half_moved_slot,
    },
    Ill {
        name: "stale_map",
        how: "three slots have moved, and a client keeps asking their old owner",
        first: "redirect_storm",
        make: stale_map,
    },
    Ill {
        name: "two_hosts_for_three_masters",
        how: "a cluster planned on two hosts",
        first: "masters_share_host",
        make: two_hosts_for_three_masters,
    },
    Ill {
        name: "copy_on_the_same_machine",
        how: "master and replica on one address that is not loopback",
        first: "replica_shares_host",
        make: copy_on_the_same_machine,
    },
    Ill {
        name: "masters_alone",
        how: "three masters, no replicas",
        first: "master_without_replica",
        make: masters_alone,
    },
    Ill {
        name: "sentinels_of_one_second",
        how: "down-after-milliseconds 1000 at every Sentinel",
        first: "sentinel_down_after",
        make: sentinels_of_one_second,
    },
    Ill {
        name: "sentinels_with_an_old_password",
        how: "requirepass changed on master and replica, Sentinel's auth-pass forgotten",
        first: "sentinel_master_down",
        make: sentinels_with_an_old_password,
    },
    Ill {
        name: "stall_under_sentinels",
        how: "a stall of 1.3 s under down-after-milliseconds 2000",
        first: "node_timeout_margin",
        make: stall_under_sentinels,
    },
    Ill {
        name: "stall_beyond_the_timeout",
        how: "DEBUG SLEEP 4 on a master, cluster-node-timeout 1500: a failover",
        first: "node_timeout_margin",
        make: stall_beyond_the_timeout,
    },
    Ill {
        name: "two_elections",
        how: "two masters frozen one after the other, both replaced, both back",
        first: "failover_flapping",
        make: two_elections,
    },
];

fn replica_buffer_of_1_mb(stage: &mut Stage) -> Made {
    // A buffer smaller than the backlog counts as large as that.
    let mut of = vec![
        ("client-output-buffer-limit", "replica 1mb 1mb 1"),
        ("repl-backlog-size", "1mb"),
        ("rdbcompression", "no"),
    ];
    // Redis 8 has the replica keep what has to wait, unless told otherwise.
    if !stage.engine.is_valkey() && stage.since((8, 0)) {
        of.push(("repl-rdb-channel", "no"));
    }
    let master = stage.server(&of);
    fill(&master, 6_000, |i| words(&["SET", &format!("page:{i}"), &"x".repeat(10_000)]));
    let (mut c, mut i, value) = (Client::of(&master), 0, "y".repeat(10_000));
    stage.work(move |on| {
        let batch: Vec<Vec<String>> = (0..20)
            .map(|_| {
                i += 1;
                words(&["SET", &format!("log:{}", i % 2000), &value])
            })
            .collect();
        let _ = c.pipeline(&batch);
        on.pause(ms(10));
    });
    let replicaof = format!("{} {}", master.ip, master.port);
    stage.server(&[&of[..], &[("replicaof", replicaof.as_str())]].concat());
    let mut c = open(&master);
    until("a second full sync", || info(&mut c, "stats").is_ok_and(|i| i.number("sync_full") >= Some(2.0)));
    Ok(())
}

fn history_lost_again_and_again(stage: &mut Stage) -> Made {
    let debug: &[(&str, &str)] = if stage.since((7, 0)) { &[("enable-debug-command", "yes")] } else { &[] };
    let pair = stage.pair(debug);
    fill(&pair.nodes[0], 5_000, |i| words(&["SET", &format!("page:{i}"), &"x".repeat(1000)]));
    let mut operator = Client::of(&pair.nodes[0]);
    stage.work(move |on| {
        let _ = operator.call(&["DEBUG", "CHANGE-REPL-ID"]);
        let _ = operator.call(&["CLIENT", "KILL", "TYPE", "replica"]);
        on.pause(ms(700));
    });
    let mut c = open(&pair.nodes[0]);
    until("a third full sync", || info(&mut c, "stats").is_ok_and(|i| i.number("sync_full") >= Some(3.0)));
    Ok(())
}

fn backlog_of_1_mb(stage: &mut Stage) -> Made {
    let pair = stage.together(Shape::MasterReplica { replicas: 1 }, &[("repl-backlog-size", "1mb")]);
    // A backlog beyond the size of the data would make no sense.
    fill(&pair.nodes[0], 30_000, |i| words(&["SET", &format!("page:{i}"), &"x".repeat(1000)]));
    let (mut c, value) = (Client::of(&pair.nodes[0]), "x".repeat(1000));
    let batch: Vec<Vec<String>> = (0..20).map(|i| words(&["SET", &format!("k:{i}"), &value])).collect();
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(20));
    });
    Ok(())
}

fn policies_differ(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[("maxmemory", "200mb"), ("maxmemory-policy", "noeviction")]);
    let mut c = open(&pair.nodes[1]);
    c.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).expect("a setting");
    c.call(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 1mb 1"]).expect("a setting");
    stage.application(&pair.nodes[0], 200);
    Ok(())
}

fn upgrade_with_another_limit(stage: &mut Stage) -> Made {
    let pair = two_versions(stage, "150mb", "300mb")?;
    stage.application(&pair[0], 200);
    Ok(())
}

/// Whether a replica of one engine of the catalogue can read what a master of an older one sends: Valkey left Redis
/// after 7.2.
fn follows(replica: &str, master: &str) -> bool {
    let redis = |name: &str| Some(name.strip_prefix("redis-")?.parse::<f64>().expect("a version"));
    match (redis(replica), redis(master)) {
        (None, Some(version)) => version <= 7.2,
        (Some(_), None) => false,
        _ => true,
    }
}

#[test]
fn a_replica_follows_older_servers_of_its_own_line() {
    assert!(
        follows("valkey-9.1", "redis-7.0") && follows("redis-8.10", "redis-7.0") && follows("valkey-9.1", "valkey-8.0")
    );
    assert!(!follows("valkey-9.1", "redis-8.10") && !follows("redis-8.10", "valkey-9.1"));
}

/// A master of the next older version that it can follow, and a replica of this one, in step.
pub fn two_versions(stage: &mut Stage, masters: &str, replicas: &str) -> Result<[Arc<Server>; 2], &'static str> {
    let newest_first = unslow_engine::CATALOG.iter().map(|e| e.name);
    let mut older = newest_first.skip_while(|name| *name != stage.engine.name).skip(1);
    let older = older.find(|master| follows(&stage.engine.name, master));
    let older = unslow_testkit::engine(older.ok_or("there is no older version in the catalogue that it can follow")?);
    let of = |limit: &str, more: &[(&str, &str)]| {
        let own = [("maxmemory", limit), ("repl-backlog-size", "64mb")];
        ServerSpec { settings: settings(&[&own[..], more].concat()), ..ServerSpec::default() }
    };
    let master = stage.server_on(&older, of(masters, &[]));
    let address = format!("{} {}", master.ip, master.port);
    let newer = stage.engine.clone();
    let replica = stage.server_on(&newer, of(replicas, &[("replicaof", &address)]));
    until_ok("the replica's link", || {
        Ok::<_, unslow_engine::Error>(info(&mut open(&replica), "replication")?.get("master_link_status") == Some("up"))
    });
    Ok([master, replica])
}

fn dead_master_of_a_pair(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 200);
    stage.point_at(&pair.nodes[1]);
    pair.nodes[0].kill();
    Ok(())
}

fn dead_master_of_a_cluster(stage: &mut Stage) -> Made {
    let cluster = stage.together(Shape::six_nodes(), &[("cluster-node-timeout", "30000")]);
    stage.application(&cluster.nodes[0], 200);
    cluster.nodes[2].kill();
    Ok(())
}

fn paused_container(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 200);
    stage.point_at(&pair.nodes[1]);
    let frozen = Group::frozen(pair.nodes[0].pid())?;
    stage.at_end(move || drop(frozen));
    Ok(())
}

fn stopped_alone(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 200);
    std::thread::sleep(ms(300));
    server.signal(libc::SIGSTOP);
    stage.at_end(move || server.signal(libc::SIGCONT));
    Ok(())
}

fn endless_script(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[("lua-time-limit", "0")]);
    stage.application(&pair.nodes[0], 200);
    stage.point_at(&pair.nodes[1]);
    let master = pair.nodes[0].clone();
    let mut c = open(&master);
    c.send(&["EVAL", "while true do end", "0"]).expect("sent");
    stage.keep(c);
    // Only a kill ends it.
    stage.at_end(move || master.kill());
    Ok(())
}

fn slots_never_assigned(stage: &mut Stage) -> Made {
    let of = [("cluster-require-full-coverage", "no")];
    let nodes = loose_cluster(stage, 2, &of, |slot| if slot < 16_000 { halves(slot) } else { None });
    stage.repeat(&nodes[0], ms(10), &["GET", &key_in(16_000..16_384)]);
    Ok(())
}

fn owner_failed(stage: &mut Stage) -> Made {
    let shape = Shape::Cluster { masters: 3, replicas: 0, hosts: Vec::new() };
    let cluster = stage.together(shape, &[("cluster-node-timeout", "1000")]);
    stage.application(&cluster.nodes[0], 200);
    let dead = id(&cluster.nodes[2]);
    cluster.nodes[2].kill();
    let mut c = open(&cluster.nodes[0]);
    until_ok("the others to mark it", || {
        Ok::<_, unslow_engine::Error>(view(&mut c)?.by_id(&dead).is_some_and(|n| n.is("fail")))
    });
    Ok(())
}

fn importing_alone(stage: &mut Stage) -> Made {
    let cluster = stage.together(Shape::six_nodes(), &[]);
    let from = owner_of(&cluster, 100);
    let to = (0..cluster.masters).find(|m| *m != from).expect("another master");
    open_slot(100, &cluster.nodes[from], &cluster.nodes[to], false);
    stage.repeat(&cluster.nodes[from], ms(10), &["GET", &key_in(0..100)]);
    Ok(())
}

fn half_moved_slot(stage: &mut Stage) -> Made {
    // With replicas: masters without them are a risk of their own, which ranks above an open slot whose ASKs are not
    // counted (before 6.2).
    let cluster = stage.together(Shape::six_nodes(), &[]);
    let key = key_in(0..4096);
    let slot = slot_of(key.as_bytes());
    let from = owner_of(&cluster, slot);
    let to = (0..cluster.masters).find(|m| *m != from).expect("another master");
    open_slot(slot, &cluster.nodes[from], &cluster.nodes[to], true);
    // Not there, so that the client is sent on.
    stage.repeat(&cluster.nodes[from], ms(10), &["GET", &format!("{key}:absent")]);
    stage.repeat(&cluster.nodes[from], ms(10), &["SET", &key_in(4096..5000), "v"]);
    Ok(())
}

fn stale_map(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let cluster = stage.together(Shape::six_nodes(), &[]);
    let from = owner_of(&cluster, 3);
    let to = (0..cluster.masters).find(|m| *m != from).expect("another master");
    for slot in 0..3 {
        move_slot(&cluster, slot, from, to, Duration::ZERO);
    }
    for slot in 0..3u16 {
        let key = key_in(slot..slot + 1);
        stage.repeat(&cluster.nodes[from], ms(8), &["GET", &key]);
        stage.repeat(&cluster.nodes[from], ms(8), &["GET", &key_in(3..1000)]);
    }
    Ok(())
}

fn two_hosts_for_three_masters(stage: &mut Stage) -> Made {
    let hosts = vec!["127.0.0.1".to_string(), "127.0.0.2".to_string()];
    let cluster = stage.together(Shape::Cluster { masters: 3, replicas: 1, hosts }, &[]);
    stage.application(&cluster.nodes[0], 200);
    Ok(())
}

fn copy_on_the_same_machine(stage: &mut Stage) -> Made {
    let ip = outer_address().ok_or("this machine has no address but loopback")?;
    let of = [("requirepass", "s3cret"), ("repl-backlog-size", "64mb")];
    let spec = ServerSpec { ip, settings: settings(&of), ..ServerSpec::default() };
    let pair = stage.together_at(Shape::MasterReplica { replicas: 1 }, spec);
    stage.application(&pair.nodes[0], 200);
    Ok(())
}

fn masters_alone(stage: &mut Stage) -> Made {
    let shape = Shape::Cluster { masters: 3, replicas: 0, hosts: Vec::new() };
    let cluster = stage.together(shape, &[]);
    stage.application(&cluster.nodes[0], 200);
    Ok(())
}

/// A group of Sentinels that wait this long.
fn watched(stage: &mut Stage, down_after_ms: &str, of: &[(&str, &str)]) -> Rc<Deployment> {
    let all = [&[("repl-backlog-size", "64mb")], of].concat();
    let group = stage.together(Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }, &all);
    for sentinel in &group.sentinels {
        open(sentinel)
            .call(&["SENTINEL", "SET", "mymaster", "down-after-milliseconds", down_after_ms])
            .expect("a Sentinel takes it");
    }
    group
}

fn sentinels_of_one_second(stage: &mut Stage) -> Made {
    let group = watched(stage, "1000", &[]);
    stage.application(&group.nodes[0], 200);
    Ok(())
}

fn sentinels_with_an_old_password(stage: &mut Stage) -> Made {
    let group = watched(stage, "2000", &[]);
    for node in &group.nodes {
        let mut c = open(node);
        c.call(&["CONFIG", "SET", "masterauth", "new"]).expect("a setting");
        c.call(&["CONFIG", "SET", "requirepass", "new"]).expect("a setting");
        // Connections that are there stay let in (from 6.0 on); those that come need the password.
        c.call(&["AUTH", "new"]).expect("it is the password");
        c.call(&["CLIENT", "KILL", "TYPE", "normal"]).expect("the others go");
        c.call(&["CLIENT", "KILL", "TYPE", "pubsub"]).expect("the others go");
    }
    let master = Target { password: Some(Secret::new("new")), ..group.nodes[0].target() };
    stage.application_at(|| Client::at(master.clone()), 200);
    for sentinel in &group.sentinels {
        let mut c = open(sentinel);
        until("the Sentinels to take the master for down", || {
            let says = c.call(&["SENTINEL", "MASTERS"]).expect("SENTINEL MASTERS");
            let flags = says.items().first().and_then(|m| m.get("flags")?.text()).unwrap_or_default();
            flags.contains("s_down")
        });
    }
    stage.ask_sentinel(&group.sentinels[0], "new");
    Ok(())
}

/// What DEBUG SLEEP needs: versions before 7.0 always have it.
fn debugging(stage: &Stage) -> &'static [(&'static str, &'static str)] {
    if stage.since((7, 0)) { &[("enable-debug-command", "yes")] } else { &[] }
}

fn stall_under_sentinels(stage: &mut Stage) -> Made {
    let of = debugging(stage);
    let group = watched(stage, "2000", &[&[("latency-monitor-threshold", "100")], of].concat());
    stage.application(&group.nodes[0], 200);
    open(&group.nodes[0]).call(&["DEBUG", "SLEEP", "1.3"]).expect("it sleeps");
    Ok(())
}

fn stall_beyond_the_timeout(stage: &mut Stage) -> Made {
    let of = debugging(stage);
    let timeout = [("cluster-node-timeout", "1500"), ("latency-monitor-threshold", "100")];
    let cluster = stage.together(Shape::six_nodes(), &[&timeout, of].concat());
    let (old, new) = (id(&cluster.nodes[0]), id(&cluster.nodes[cluster.masters]));
    open(&cluster.nodes[0]).call(&["DEBUG", "SLEEP", "4"]).expect("it sleeps");
    replaced(&cluster, &old, &new);
    Ok(())
}

/// Waits until every node sees that one has replaced the other, and that no node is marked as failed.
fn replaced(cluster: &Deployment, old: &str, new: &str) {
    everywhere(cluster, "the old master to follow the new one", |view| {
        view.by_id(old).is_some_and(|n| n.master_id.as_deref() == Some(new)) && view.nodes.iter().all(|n| !n.is_down())
    });
}

fn two_elections(stage: &mut Stage) -> Made {
    let cluster = stage.together(Shape::six_nodes(), &[("cluster-node-timeout", "1500")]);
    for m in 0..2 {
        let (old, new) = (id(&cluster.nodes[m]), id(&cluster.nodes[cluster.masters + m]));
        let frozen = Group::frozen(cluster.nodes[m].pid())?;
        let mut c = open(&cluster.nodes[cluster.masters + m]);
        until_ok("the replica's election", || {
            Ok::<_, unslow_engine::Error>(view(&mut c)?.masters().any(|n| n.id == new && !n.slots.is_empty()))
        });
        drop(frozen);
        replaced(&cluster, &old, &new);
    }
    // Of a slot that never moved: a client with an old map would be another fault.
    stage.repeat(&cluster.nodes[2], ms(5), &["GET", &key_in(11_000..16_384)]);
    Ok(())
}
