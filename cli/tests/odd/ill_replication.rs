//! Faults between masters and replicas: links that are refused, replicas that fall behind, are written to, or may not
//! take over.

use std::rc::Rc;
use std::time::{Duration, Instant};

use unslow_engine::{Deployment, Member, Plan, ServerSpec, Shape, info};
use unslow_testkit::servers::settings;
use unslow_testkit::until;

use crate::Ill;
use crate::means::{Group, slow_server};
use crate::stage::{Client, Made, Stage, fill, ms, open, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "copier_without_psync",
        how: "the ACL user of the replica may PING and REPLCONF but not PSYNC, and its link broke",
        first: "replica_link_down",
        make: copier_without_psync,
    },
    Ill {
        name: "replica_paused_over_and_over",
        how: "the replica's process runs 3 ms of every 900 (SIGSTOP, SIGCONT), 6 MB/s of writes",
        first: "replica_lag",
        make: replica_paused_over_and_over,
    },
    Ill {
        name: "results_kept_on_the_replica",
        how: "replica-read-only no from the start, LPUSH on the replica beside an application on the master",
        first: "writable_replica",
        make: results_kept_on_the_replica,
    },
    Ill {
        name: "two_replicas_added_in_a_loop",
        how: "two new replicas at once, a copy that sleeps 10 ms a key (rdb-key-save-delay)",
        first: "resync_storm",
        make: two_replicas_added_in_a_loop,
    },
    Ill {
        name: "old_image_for_the_replica",
        how: "a new replica is started from the image of the version before its master's",
        first: "version_mix",
        make: old_image_for_the_replica,
    },
    Ill {
        name: "replica_without_ntp",
        how: "the replica's clock is 20 s behind, by a preload",
        first: "clock_skew",
        make: replica_without_ntp,
    },
    Ill {
        name: "second_replica_never_came",
        how: "min-replicas-to-write 2 on a master with one replica: NOREPLICAS",
        first: "min_replicas_refusing",
        make: second_replica_never_came,
    },
    Ill {
        name: "priority_zero_everywhere",
        how: "replica-priority 0 on the only replica of a Sentinel group",
        first: "no_failover_possible",
        make: priority_zero_everywhere,
    },
    Ill {
        name: "two_of_three_masters_frozen",
        how: "two masters' control groups are frozen at once, the doctor asks the third",
        first: "no_majority",
        make: two_of_three_masters_frozen,
    },
    Ill {
        name: "quorum_of_five_with_three",
        how: "SENTINEL SET quorum 5 at each of three Sentinels",
        first: "sentinel_quorum",
        make: quorum_of_five_with_three,
    },
    Ill {
        name: "sentinels_stopped_for_three_seconds",
        how: "two of three Sentinels are stopped for three seconds and run again",
        first: "sentinel_tilt",
        make: sentinels_stopped_for_three_seconds,
    },
    Ill {
        name: "two_sentinels_beside_the_master",
        how: "three Sentinels on two addresses, two of them on the master's",
        first: "sentinels_share_host",
        make: two_sentinels_beside_the_master,
    },
];

/// A master, its replica and three Sentinels.
fn watched(stage: &mut Stage) -> Rc<Deployment> {
    let group = stage.together(Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }, &WATCHED);
    stage.application(&group.nodes[0], 200);
    group
}

/// Instruments that are off would be another risk.
const WATCHED: [(&str, &str); 2] = [("repl-backlog-size", "64mb"), ("latency-monitor-threshold", "100")];

fn copier_without_psync(stage: &mut Stage) -> Made {
    if !stage.since((6, 2)) {
        return Err("errors are not counted by kind before 6.2");
    }
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 200);
    // Without its link a replica is not in its master's list.
    stage.point_at(&pair.nodes[1]);
    let (mut master, mut replica) = (open(&pair.nodes[0]), open(&pair.nodes[1]));
    master.call(&["ACL", "SETUSER", "copier", "on", ">pw", "-@all", "+ping", "+replconf"]).expect("a user");
    replica.call(&["CONFIG", "SET", "masteruser", "copier"]).expect("a setting");
    replica.call(&["CONFIG", "SET", "masterauth", "pw"]).expect("a setting");
    master.call(&["CLIENT", "KILL", "TYPE", "slave"]).expect("the link breaks");
    until("the replica to have lost its master", || {
        info(&mut replica, "replication").is_ok_and(|i| i.get("master_link_status") == Some("down"))
    });
    Ok(())
}

fn replica_paused_over_and_over(stage: &mut Stage) -> Made {
    const BEHIND: f64 = 40e6;
    let pair = stage.pair(&[]);
    let (master, replica) = (pair.nodes[0].clone(), pair.nodes[1].clone());
    let (mut c, value) = (Client::of(&master), "x".repeat(10_000));
    let batch: Vec<Vec<String>> = (0..10).map(|i| words(&["SET", &format!("page:{i}"), &value])).collect();
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(16));
    });
    let paused = replica.clone();
    stage.work(move |on| {
        paused.signal(libc::SIGSTOP);
        on.pause(ms(900));
        paused.signal(libc::SIGCONT);
        // Shorter than the steps of a pause.
        let until = Instant::now() + Duration::from_millis(3);
        while Instant::now() < until {
            std::thread::yield_now();
        }
    });
    stage.at_end(move || replica.signal(libc::SIGCONT));
    let mut c = open(&master);
    until("the replica to be far behind", || {
        info(&mut c, "replication").is_ok_and(|i| {
            let written = i.number("master_repl_offset").unwrap_or(0.0);
            i.replicas().iter().any(|r| r.4 > 0 && written - r.4 as f64 > BEHIND)
        })
    });
    Ok(())
}

fn results_kept_on_the_replica(stage: &mut Stage) -> Made {
    let pair = stage.pair(&[("replica-read-only", "no")]);
    stage.application(&pair.nodes[0], 200);
    stage.repeat(&pair.nodes[1], ms(5), &["LPUSH", "results", "one"]);
    stage.repeat(&pair.nodes[1], ms(5), &["LTRIM", "results", "0", "99"]);
    Ok(())
}

fn two_replicas_added_in_a_loop(stage: &mut Stage) -> Made {
    const KEYS: usize = 6000;
    if !stage.since((6, 2)) {
        return Err("copies cannot be slowed down by a setting before 6.0");
    }
    let master = stage.server(&[("repl-backlog-size", "64mb"), ("rdb-key-save-delay", "10000")]);
    fill(&master, KEYS, |i| words(&["SET", &format!("user:{i}"), "v"]));
    stage.application(&master, 200);
    let address = format!("{} {}", master.ip, master.port);
    for _ in 0..2 {
        stage.server(&[("repl-backlog-size", "64mb"), ("replicaof", &address)]);
    }
    let mut c = open(&master);
    until("both to wait for their copy", || {
        info(&mut c, "replication").is_ok_and(|i| i.replicas().iter().filter(|row| row.2 != "online").count() == 2)
    });
    Ok(())
}

fn old_image_for_the_replica(stage: &mut Stage) -> Made {
    let older = match (stage.engine.is_valkey(), stage.engine.level()) {
        (true, _) => "redis-7.0",
        (false, (7, 0)) => "redis-6.2",
        _ => return Err("the catalogue has no older version that refuses its copies"),
    };
    let master = stage.server(&[("repl-backlog-size", "64mb")]);
    stage.application(&master, 200);
    let address = format!("{} {}", master.ip, master.port);
    let own = settings(&[("repl-backlog-size", "64mb"), ("replicaof", &address)]);
    let replica =
        stage.server_on(&unslow_testkit::engine(older), ServerSpec { settings: own, ..ServerSpec::default() });
    // Between two copies it is not in its master's list.
    stage.point_at(&replica);
    let mut c = open(&master);
    until("a second copy that was in vain", || {
        info(&mut c, "stats").is_ok_and(|i| i.number("sync_full").unwrap_or(0.0) >= 2.0)
    });
    Ok(())
}

fn replica_without_ntp(stage: &mut Stage) -> Made {
    if !stage.since((7, 0)) {
        return Err("INFO does not tell the server's time before 7.0");
    }
    let master = stage.server(&[("repl-backlog-size", "64mb")]);
    stage.application(&master, 200);
    let address = format!("{} {}", master.ip, master.port);
    let own = [("repl-backlog-size", "64mb"), ("replicaof", address.as_str())];
    let replica = slow_server(stage, &own, "ODD_LATE_MS", 20_000);
    let mut c = open(&replica);
    until("the replica's link", || {
        info(&mut c, "replication").is_ok_and(|i| i.get("master_link_status") == Some("up"))
    });
    Ok(())
}

fn second_replica_never_came(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let pair = stage.pair(&[("min-replicas-to-write", "2")]);
    stage.application(&pair.nodes[0], 200);
    Ok(())
}

fn priority_zero_everywhere(stage: &mut Stage) -> Made {
    let group = watched(stage);
    open(&group.nodes[1]).call(&["CONFIG", "SET", "replica-priority", "0"]).expect("a setting");
    Ok(())
}

fn two_of_three_masters_frozen(stage: &mut Stage) -> Made {
    let cluster = stage.together(Shape::six_nodes(), &[("cluster-node-timeout", "30000")]);
    stage.application(&cluster.nodes[0], 200);
    for node in &cluster.nodes[1..cluster.masters] {
        let frozen = Group::frozen(node.pid())?;
        stage.at_end(move || drop(frozen));
    }
    Ok(())
}

fn quorum_of_five_with_three(stage: &mut Stage) -> Made {
    let group = watched(stage);
    for sentinel in &group.sentinels {
        open(sentinel).call(&["SENTINEL", "SET", "mymaster", "quorum", "5"]).expect("a Sentinel takes it");
    }
    Ok(())
}

fn sentinels_stopped_for_three_seconds(stage: &mut Stage) -> Made {
    let group = watched(stage);
    let stopped = &group.sentinels[1..];
    stopped.iter().for_each(|s| s.signal(libc::SIGSTOP));
    std::thread::sleep(ms(3000)); // a Sentinel distrusts its clock after two
    stopped.iter().for_each(|s| s.signal(libc::SIGCONT));
    for sentinel in stopped {
        let mut c = open(sentinel);
        until("the Sentinel to notice", || {
            info(&mut c, "sentinel").is_ok_and(|i| i.number("sentinel_tilt") == Some(1.0))
        });
    }
    Ok(())
}

fn two_sentinels_beside_the_master(stage: &mut Stage) -> Made {
    let engine = stage.engine.clone();
    let member = |ip: &str, spec: ServerSpec| Member {
        engine: engine.clone(),
        spec: ServerSpec { ip: ip.into(), port: None, ..spec },
    };
    // Over loopback the others see where a connection comes from, and not where its server listens.
    let data = |more: &[(&str, &str)]| ServerSpec {
        settings: settings(&[&WATCHED[..], more].concat()),
        ..ServerSpec::default()
    };
    let elsewhere =
        ServerSpec { settings: settings(&[("sentinel announce-ip", "127.0.0.2")]), ..ServerSpec::default() };
    let plan = Plan {
        nodes: vec![member("127.0.0.1", data(&[])), member("127.0.0.2", data(&[("replica-announce-ip", "127.0.0.2")]))],
        masters: 1,
        sentinels: vec![
            member("127.0.0.1", ServerSpec::default()),
            member("127.0.0.1", ServerSpec::default()),
            member("127.0.0.2", elsewhere),
        ],
        quorum: 2,
        ..Plan::default()
    };
    let group = Rc::new(Deployment::build(&plan, &mut |_| {}).unwrap_or_else(|e| panic!("{e}")));
    stage.point_at(&group.nodes[0]);
    stage.application(&group.nodes[0], 200);
    stage.keep(group);
    Ok(())
}
