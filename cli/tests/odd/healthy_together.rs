//! Deployments of several servers that are odd but healthy.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use unslow_engine::{Deployment, Server, Shape, info};
use unslow_testkit::servers::{everywhere, promote};
use unslow_testkit::slots::{id, move_slot, owner_of};
use unslow_testkit::wait::until_ok;
use unslow_topology::slot_of;

use crate::Healthy;
use crate::healthy_alone::reader;
use crate::ill_together::two_versions;
use crate::stage::{Client, Made, Stage, at_work, ms, open, words};

pub const CASES: &[Healthy] = &[
    Healthy::at_rest("pair_at_rest", "a master and its replica, without clients", pair_at_rest),
    Healthy::at_work("pair_at_work", "a master and its replica, 2,000 commands a second", pair_at_work),
    Healthy::at_work("replica_just_added", "a second replica, its full sync a moment ago", replica_just_added),
    Healthy::at_work("chain_of_replicas", "a replica of a replica", chain_of_replicas),
    Healthy::at_work("two_versions_alike", "master and replica of two versions, set alike", two_versions_alike),
    Healthy::at_work("wait_for_the_replica", "writers that WAIT for their replica", wait_for_the_replica),
    Healthy::at_work("reads_from_the_replica", "writes to the master, reads from the replica", reads_from_the_replica),
    Healthy::at_rest("sentinels_at_rest", "a Sentinel group without clients", sentinels_at_rest),
    Healthy::at_work("sentinels_at_work", "a Sentinel group, 1,000 commands a second", sentinels_at_work),
    Healthy::at_rest("cluster_at_rest", "six nodes without clients", cluster_at_rest),
    Healthy::at_work("cluster_by_redis_py", "redis-py RedisCluster, 200 commands a second", cluster_by_redis_py),
    // The promoted replica stands beside another master: that is true, and a risk.
    Healthy::at_work("after_a_manual_failover", "CLUSTER FAILOVER of one shard", after_a_manual_failover)
        .with(&["masters_share_host"]),
    Healthy::at_work(
        "after_a_rolling_restart",
        "every node restarted, replicas first, masters failed over and back",
        after_a_rolling_restart,
    ),
    Healthy::at_work("after_a_reshard", "five slots have moved with their keys", after_a_reshard),
    Healthy::at_work("a_few_moved", "a slot has moved, and a client takes two seconds to learn it", a_few_moved),
    Healthy::at_work("cluster_reads_from_replicas", "READONLY clients at a replica", cluster_reads_from_replicas),
    Healthy::at_work("sharded_channels", "SSUBSCRIBE and SPUBLISH in a cluster", sharded_channels),
];

fn pair_at_rest(stage: &mut Stage) -> Made {
    stage.pair(&[]);
    Ok(())
}

fn pair_at_work(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 2000);
    Ok(())
}

/// One more that follows this server, in step.
fn follower(stage: &mut Stage, of: &Server) -> Arc<Server> {
    let address = format!("{} {}", of.ip, of.port);
    let replica = stage.server(&[("repl-backlog-size", "64mb"), ("replicaof", &address)]);
    until_ok("the replica's link", || {
        Ok::<_, unslow_engine::Error>(info(&mut open(&replica), "replication")?.get("master_link_status") == Some("up"))
    });
    replica
}

fn replica_just_added(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 1000);
    follower(stage, &pair.nodes[0]);
    Ok(())
}

fn chain_of_replicas(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 1000);
    follower(stage, &pair.nodes[1]);
    Ok(())
}

fn two_versions_alike(stage: &mut Stage) -> Made {
    let pair = two_versions(stage, "100mb", "100mb")?;
    stage.application(&pair[0], 500);
    Ok(())
}

fn wait_for_the_replica(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    let mut c = Client::of(&pair.nodes[0]);
    stage.work(move |on| {
        let _ = c.pipeline(&[words(&["SET", "balance", "1"]), words(&["WAIT", "1", "500"])]);
        on.pause(ms(20));
    });
    Ok(())
}

fn reads_from_the_replica(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 200);
    let mut c = Client::of(&pair.nodes[1]);
    let batch = vec![words(&["GET", "{t2}"]); 10];
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(10));
    });
    Ok(())
}

fn sentinels(stage: &mut Stage) -> Rc<Deployment> {
    stage.together(Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }, &[("repl-backlog-size", "64mb")])
}

fn sentinels_at_rest(stage: &mut Stage) -> Made {
    sentinels(stage);
    Ok(())
}

fn sentinels_at_work(stage: &mut Stage) -> Made {
    let group = sentinels(stage);
    stage.application(&group.nodes[0], 1000);
    Ok(())
}

/// Three masters with a replica each, on three addresses.
pub fn six(stage: &mut Stage) -> Rc<Deployment> {
    stage.together(Shape::six_nodes(), &[("repl-backlog-size", "64mb"), ("cluster-node-timeout", "15000")])
}

fn cluster_at_rest(stage: &mut Stage) -> Made {
    six(stage);
    Ok(())
}

fn cluster_by_redis_py(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    stage.python(&cluster.nodes[0], "cluster", &["200"]);
    at_work(&cluster.nodes[0], "set");
    Ok(())
}

/// Something for every master to have written: before 6.2 a manual failover waits for ever where nothing ever was.
fn write_everywhere(cluster: &Deployment) {
    for master in &cluster.nodes[..cluster.masters] {
        let mut c = Client::of(master);
        let written = (0..1000).any(|i| c.call(&["SET", &format!("{{w{i}}}"), "v"]).is_some());
        assert!(written, "{} takes no key", master.address());
    }
}

/// A replica takes its master's place, and every node knows.
fn take_over(cluster: &Deployment, replica: &Server, master: &Server) {
    let (new, old) = (id(replica), id(master));
    promote(replica);
    everywhere(cluster, "the old master to follow the new one", |view| {
        view.by_id(&old).is_some_and(|n| n.master_id.as_deref() == Some(new.as_str()))
    });
}

fn after_a_manual_failover(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    write_everywhere(&cluster);
    take_over(&cluster, &cluster.nodes[5], &cluster.nodes[2]);
    stage.application(&cluster.nodes[0], 500);
    Ok(())
}

fn after_a_rolling_restart(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    write_everywhere(&cluster);
    for m in 0..cluster.masters {
        let (master, replica) = (&cluster.nodes[m], &cluster.nodes[cluster.masters + m]);
        replica.restart().expect("it starts again");
        take_over(&cluster, replica, master);
        master.restart().expect("it starts again");
        take_over(&cluster, master, replica);
    }
    stage.application(&cluster.nodes[0], 500);
    Ok(())
}

fn after_a_reshard(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    let from = owner_of(&cluster, 3);
    let to = (0..cluster.masters).find(|m| *m != from).expect("another master");
    let mut c = Client::of(&cluster.nodes[from]);
    for i in 0..3000 {
        let key = format!("{{o{i}}}");
        if slot_of(key.as_bytes()) < 5 {
            let _ = c.call(&["SET", &key, "v"]);
        }
    }
    for slot in 0..5 {
        move_slot(&cluster, slot, from, to, Duration::ZERO);
    }
    stage.application(&cluster.nodes[0], 500);
    Ok(())
}

fn a_few_moved(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    let from = owner_of(&cluster, 3);
    let to = (0..cluster.masters).find(|m| *m != from).expect("another master");
    move_slot(&cluster, 3, from, to, Duration::ZERO);
    let key = (0..).map(|i| format!("{{o{i}}}")).find(|k| slot_of(k.as_bytes()) == 3).expect("a key");
    let (mut old, mut new) = (Client::of(&cluster.nodes[from]), Client::of(&cluster.nodes[to]));
    let mut asked = 0;
    stage.work(move |on| {
        asked += 1;
        let _ = if asked < 15 { old.call(&["GET", &key]) } else { new.call(&["GET", &key]) };
        on.pause(ms(150));
    });
    stage.application(&cluster.nodes[0], 2000);
    Ok(())
}

fn cluster_reads_from_replicas(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    stage.application(&cluster.nodes[0], 200);
    let mut c = Client::of(&cluster.nodes[cluster.masters]);
    let mut batch = vec![words(&["READONLY"])];
    batch.extend(vec![words(&["GET", "{t2}"]); 10]);
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(20));
    });
    Ok(())
}

fn sharded_channels(stage: &mut Stage) -> Made {
    if !stage.since((7, 0)) {
        return Err("there are no sharded channels before 7.0");
    }
    let cluster = six(stage);
    for _ in 0..3 {
        reader(stage, &cluster.nodes[0], b"SSUBSCRIBE {t2}\r\n");
    }
    let mut c = Client::of(&cluster.nodes[0]);
    let batch = vec![words(&["SPUBLISH", "{t2}", "hello"]); 10];
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(50));
    });
    Ok(())
}
