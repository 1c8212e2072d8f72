//! Faults of how a cluster's work and slots are spread, made with tools and settings that the lab does not use.

use std::rc::Rc;
use std::sync::Arc;

use unslow_engine::{Deployment, Server, Shape, info, view};
use unslow_testkit::slots::{id, owner_of};
use unslow_testkit::wait::until_ok;
use unslow_topology::slot_of;

use crate::Ill;
use crate::means::{halves, key_in, loose_cluster, open_slot};
use crate::stage::{Made, Stage, at_work, fill, ms, open, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "one_tenant_one_slot",
        how: "all keys of a tenant share a hash tag, redis-benchmark -P 16 for that tenant",
        first: "shard_imbalance",
        make: one_tenant_one_slot,
    },
    Ill {
        name: "tenant_that_outgrew_its_slot",
        how: "a large tenant's 150,000 sorted sets share one hash tag, others have a slot for each key",
        first: "hash_tag_skew",
        make: tenant_that_outgrew_its_slot,
    },
    Ill {
        name: "benchmark_reads_the_master",
        how: "redis-benchmark -t get -P 16 at the master of a pair",
        first: "reads_on_master",
        make: benchmark_reads_the_master,
    },
    Ill {
        name: "placed_by_modulo",
        how: "a cluster planned as slot % 3, each master with a replica",
        first: "slot_map_fragmented",
        make: placed_by_modulo,
    },
    Ill {
        name: "pod_without_its_disk",
        how: "an empty node comes back at its address with another id",
        first: "ghost_nodes",
        make: pod_without_its_disk,
    },
    Ill {
        name: "closed_instead_of_taken",
        how: "a slot's key is moved, the giving side names the new owner, the receiving side closes with STABLE",
        first: "views_disagree",
        make: closed_instead_of_taken,
    },
];

fn six(stage: &mut Stage) -> Rc<Deployment> {
    stage.together(Shape::six_nodes(), &[("repl-backlog-size", "64mb"), ("cluster-node-timeout", "15000")])
}

fn one_tenant_one_slot(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    stage.application(&cluster.nodes[0], 200);
    // The tenant lives on another shard than the rest of the application.
    let elsewhere = |tag: &String| owner_of(&cluster, slot_of(tag.as_bytes())) != 0;
    let tag = (0..).map(|i| format!("{{tenant{i}}}")).find(elsewhere).expect("a tenant");
    let owner = cluster.nodes[owner_of(&cluster, slot_of(tag.as_bytes()))].clone();
    let lock = format!("{tag}:lock:__rand_int__");
    let load = ["-c", "16", "-P", "16", "-r", "1000", "-n", "100000000", "-q", "SETNX", lock.as_str(), "mine"];
    stage.tool("redis-benchmark", &owner, &load);
    at_work(&owner, "setnx");
    Ok(())
}

fn tenant_that_outgrew_its_slot(stage: &mut Stage) -> Made {
    if !stage.engine.is_valkey() {
        return Err("keys of slots are not listed before Redis 8.2");
    }
    let cluster = six(stage);
    let owner = &cluster.nodes[owner_of(&cluster, slot_of(b"tenant"))];
    fill(owner, 150_000, |i| words(&["ZADD", &format!("{{tenant}}:cart:{i}"), "1", "article", "2", "other"]));
    let others = (0..3000).map(|i| format!("small:{i}"));
    let others: Vec<String> = others.filter(|key| owner_of(&cluster, slot_of(key.as_bytes())) == 0).collect();
    fill(&cluster.nodes[0], others.len(), |i| words(&["SET", &others[i], "v"]));
    stage.application(&cluster.nodes[0], 200);
    Ok(())
}

fn benchmark_reads_the_master(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[]);
    let load = ["-c", "16", "-P", "16", "-n", "100000000", "-t", "get", "-q"];
    stage.tool("redis-benchmark", &pair.nodes[0], &load);
    at_work(&pair.nodes[0], "get");
    Ok(())
}

/// Slots dealt out one by one.
fn dealt(slot: u16) -> Option<usize> {
    Some(usize::from(slot % 3))
}

fn placed_by_modulo(stage: &mut Stage) -> Made {
    let masters = loose_cluster(stage, 3, &[("repl-backlog-size", "64mb")], dealt);
    for master in &masters {
        let replica = newcomer(stage, master);
        let mut c = open(&replica);
        let of = id(master);
        until_ok("the master to be known", || {
            Ok::<_, unslow_engine::Error>(view(&mut c)?.by_id(&of).is_some_and(|n| n.is("master") && n.connected))
        });
        c.call(&["CLUSTER", "REPLICATE", &of]).expect("it follows");
        until_ok("the replica's link", || {
            Ok::<_, unslow_engine::Error>(info(&mut c, "replication")?.get("master_link_status") == Some("up"))
        });
        let own = id(&replica);
        until_ok("every master to see the replica", || {
            let sees = |m: &Arc<Server>| view(&mut open(m)).is_ok_and(|v| v.replicas_of(&of).any(|r| r.id == own));
            Ok::<_, unslow_engine::Error>(masters.iter().all(sees))
        });
    }
    // The owner of the application's key.
    stage.application(&masters[usize::from(slot_of(b"{t2}") % 3)], 200);
    Ok(())
}

/// A new node that has met this one.
fn newcomer(stage: &mut Stage, of: &Server) -> Arc<Server> {
    let own = [
        ("cluster-enabled", "yes"),
        ("cluster-config-file", "nodes.conf"),
        ("cluster-node-timeout", "15000"),
        ("repl-backlog-size", "64mb"),
    ];
    let node = stage.server(&own);
    open(&node).call(&["CLUSTER", "MEET", &of.ip, &of.port.to_string()]).expect("a node meets another");
    node
}

fn pod_without_its_disk(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    let pod = newcomer(stage, &cluster.nodes[0]);
    stage.point_at(&cluster.nodes[0]);
    let old = id(&pod);
    let knows = |node: &Server, is: fn(&unslow_topology::ClusterNode) -> bool| {
        view(&mut open(node)).is_ok_and(|v| v.by_id(&old).is_some_and(is))
    };
    until_ok("every node to know the new one", || {
        let all = cluster.nodes.iter().all(|n| knows(n, |row| row.connected && !row.is("handshake")));
        Ok::<_, unslow_engine::Error>(all)
    });
    pod.kill();
    std::fs::remove_file(pod.dir().join("nodes.conf")).expect("its disk is lost");
    pod.restart().expect("it starts again");
    until_ok("the others to find another node at its address", || {
        Ok::<_, unslow_engine::Error>(cluster.nodes.iter().any(|n| knows(n, |row| row.is("noaddr"))))
    });
    stage.application(&cluster.nodes[0], 200);
    Ok(())
}

fn closed_instead_of_taken(stage: &mut Stage) -> Made {
    let nodes = loose_cluster(stage, 2, &[], halves);
    let (from, to, key) = (&nodes[0], &nodes[1], key_in(0..4096));
    let slot = slot_of(key.as_bytes());
    let (mut old, mut new) = (open(from), open(to));
    old.call(&["SET", &key, "v"]).expect("a key");
    open_slot(slot, from, to, true);
    old.call(&["MIGRATE", &to.ip, &to.port.to_string(), &key, "0", "5000"]).expect("the key moves");
    old.call(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id(to)]).expect("it is given away");
    new.call(&["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"]).expect("it is closed");
    stage.repeat(from, ms(10), &["GET", &key]);
    stage.repeat(from, ms(10), &["SET", &key_in(4096..8192), "v"]);
    Ok(())
}
