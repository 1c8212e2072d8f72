//! "Not your Redis" is earned: it appears where everything was looked at and is in order, and in no other case.

mod common;
#[path = "common/hand.rs"]
mod hand;

use std::collections::BTreeMap;

use common::{NOW_MS, answer, finding, seen};
use hand::{HERE, alone, command, lines, machine, peer, rtt, server, stranger};
use unslow_doctor::measure::sentinel_greetings;
use unslow_doctor::{Answered, Currency, Severity};
use unslow_facts::{
    ClientRow, Clients, Disk, Facts, Host, LatencyEvent, Node, Process, Seen, SentinelGroup, SentinelNode,
};
use unslow_topology::{DeploymentKind, Role};

/// A server with everything in order, and an application that uses it.
fn well() -> Facts {
    let after = lines(&[
        ("total_commands_processed", 100_000.0),
        ("total_reads_processed", 40_000.0),
        ("used_cpu_user_main_thread", 0.5),
        ("used_cpu_sys_main_thread", 0.6),
    ]) + &command("get", 90_000, 90_000, 0, 0)
        + &command("set", 10_000, 20_000, 0, 0);
    let mut node = server("7.2.4", &after);
    node.rtt = rtt(60, 120, 480);
    node.connect_us = Some(80);
    let settings = [
        ("maxmemory", "0"),
        ("appendfsync", "everysec"),
        ("slowlog-log-slower-than", "10000"),
        ("latency-monitor-threshold", "10"),
    ];
    node.config = seen(settings.map(|(k, v)| (k.to_string(), v.to_string())).into());
    node.slowlog = seen(Vec::new());
    node.latency = seen(Vec::new());
    node.clients = seen(Clients { total: 50, listed: 50, ..Clients::default() });
    node.sockets = seen(vec![peer("10.0.0.9", 50, 70, 50_000)]);
    let process =
        Process { run_delay_share: Some(0.002), swap_bytes: Some(0), throttled_share: Some(0.0), ..Process::default() };
    let host = Host {
        memory_bytes: Some(16 << 30),
        memory_available_bytes: Some(8 << 30),
        swap_in_pages: Some(0),
        steal_share: Some(0.0),
        ..machine(process)
    };
    Facts { hosts: vec![host], ..alone(node) }
}

fn set(facts: &mut Facts, fields: &[(&str, &str)]) {
    let last = facts.nodes[0].last.as_mut().unwrap();
    last.info.0.extend(fields.iter().map(|(k, v)| (k.to_string(), v.to_string())));
}

fn configure(facts: &mut Facts, name: &str, value: &str) {
    let settings = facts.nodes[0].config.value_mut().expect("the settings were seen");
    settings.insert(name.into(), value.into());
}

#[test]
fn the_servers_are_cleared_where_everything_was_looked_at_and_is_in_order() {
    let found = finding(&well(), "not_your_redis");
    assert_eq!(found.severity, Severity::Info);
    assert!(!found.title.contains("not looked at"), "{}", found.title);
    // Without the machine it says so.
    let mut facts = well();
    facts.hosts.clear();
    let found = finding(&facts, "not_your_redis");
    assert!(found.title.contains("not looked at: the servers' machines"), "{}", found.title);
}

#[test]
fn what_the_instruments_do_not_record_is_named() {
    let cases: &[Ill] = &[
        ("the latency monitor was not seen", |f| f.nodes[0].latency = Seen::default()),
        ("the latency monitor is off", |f| configure(f, "latency-monitor-threshold", "0")),
        ("stalls below latency-monitor-threshold", |f| configure(f, "latency-monitor-threshold", "1000")),
        ("commands below slowlog-log-slower-than", |f| configure(f, "slowlog-log-slower-than", "500000")),
    ];
    for (what, make) in cases {
        let mut facts = well();
        make(&mut facts);
        let found = finding(&facts, "not_your_redis");
        let (_, unseen) = found.title.split_once("not looked at: ").unwrap_or_default();
        assert!(unseen.contains(what), "{what}: {}", found.title);
    }
}

#[test]
fn greetings_of_sentinels_are_no_application() {
    let published = |calls: u64| {
        let mut facts = well();
        facts.kind = DeploymentKind::Sentinel;
        facts.sentinels = vec![sentinel("master", "OK 3 usable Sentinels")];
        facts.nodes[0].last.as_mut().unwrap().info.0.retain(|field, _| !field.starts_with("cmdstat_"));
        let line = command("publish", calls, calls, 0, 0);
        let (name, value) = line.trim_end().split_once(':').unwrap();
        set(&mut facts, &[(name, value)]);
        facts
    };
    // Three Sentinels, each of them every two seconds.
    assert_eq!(answer(&published(15), "not_your_redis"), Answered::NotHere);
    // And an application that publishes as well.
    let busy = published(10_000);
    assert_eq!(answer(&busy, "not_your_redis"), Answered::Present);
    let greetings = |facts: &Facts| sentinel_greetings(facts, &facts.nodes[0]);
    assert!((greetings(&busy) - 1.8).abs() < 1e-9 && (greetings(&published(15)) - 1.5).abs() < 1e-9);
    // A replica gets those to its master as well.
    let mut replica = busy.clone();
    set(&mut replica, &[("role", "slave")]);
    assert!((greetings(&replica) - 3.6).abs() < 1e-9);
    // Other groups of these Sentinels have other servers.
    let mut two = busy;
    let other =
        SentinelGroup { service: "other".into(), master: "10.0.9.1:6379".into(), ..two.sentinels[0].groups[0].clone() };
    two.sentinels[0].groups.push(other);
    assert!((greetings(&two) - 1.8).abs() < 1e-9);
    assert_eq!(greetings(&Facts { kind: DeploymentKind::Standalone, ..two }), 0.0);
}

/// A change to a server that is well, after which it may not be cleared.
type Ill = (&'static str, fn(&mut Facts));

const ILL: &[Ill] = &[
    ("appendfsync always at PING p50 3.7 ms", |f| f.nodes[0].rtt = rtt(60, 3700, 9000)),
    ("appendfsync always", |f| {
        set(f, &[("aof_enabled", "1")]);
        f.nodes[0].config = seen(BTreeMap::from([("appendfsync".to_string(), "always".to_string())]));
    }),
    ("writes paused in the window", |f| {
        let pause = command("client|pause", 5, 10, 0, 0);
        let (name, value) = pause.trim_end().split_once(':').unwrap();
        set(f, &[(name, value)]);
    }),
    ("writes paused now", |f| set(f, &[("paused_actions", "write"), ("paused_reason", "client_pause")])),
    ("a failover is on", |f| set(f, &[("master_failover_state", "waiting-for-sync")])),
    ("61 % of the calls denied", |f| {
        set(
            f,
            &[
                ("cmdstat_set", "calls=10000,usec=20000,usec_per_call=2,rejected_calls=156410,failed_calls=0"),
                ("errorstat_NOPERM", "count=156410"),
            ],
        );
    }),
    ("a tenth of it unknown commands, greetings or not", |f| {
        set(f, &[("total_connections_received", "20000"), ("errorstat_ERR", "count=40000")]);
    }),
    ("a replica 49 MB behind", |f| {
        set(
            f,
            &[
                ("master_repl_offset", "60000000"),
                ("slave0", "ip=10.0.0.2,port=6379,state=online,offset=11000000,lag=1"),
            ],
        );
    }),
    ("a replica that is not linked", |f| {
        set(f, &[("slave0", "ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0")])
    }),
    ("a replica without its master", |f| set(f, &[("role", "slave"), ("master_link_status", "down")])),
    ("282 MB of fragmentation on 62 MB", |f| {
        set(
            f,
            &[("used_memory", "62000000"), ("used_memory_rss", "344000000"), ("mem_fragmentation_bytes", "282000000")],
        );
    }),
    ("swapping", |f| {
        f.hosts[0].swap_in_pages = Some(900);
        f.hosts[0].processes[0].swap_bytes = Some(600_000);
    }),
    ("swapped out", |f| f.hosts[0].processes[0].swap_bytes = Some(50_000_000)),
    ("swapped out, by INFO alone", |f| set(f, &[("used_memory", "900000000"), ("used_memory_rss", "400000000")])),
    ("at the container's memory limit", |f| f.hosts[0].processes[0].memory_limit_bytes = Some(95_000_000)),
    ("at maxmemory", |f| set(f, &[("maxmemory", "81000000")])),
    ("it evicts", |f| set(f, &[("evicted_keys", "100")])),
    ("Sentinels without a quorum", |f| f.sentinels = vec![sentinel("master", "NOQUORUM 1 usable Sentinels")]),
    ("a Sentinel that sees its master down", |f| {
        f.sentinels = vec![sentinel("master,s_down", "OK 3 usable Sentinels")]
    }),
    ("saving fails", |f| set(f, &[("rdb_last_bgsave_status", "err")])),
    ("writing the AOF fails", |f| set(f, &[("aof_last_write_status", "err")])),
    ("fsync was late", |f| set(f, &[("aof_delayed_fsync", "2")])),
    ("an event of the latency monitor in the window", |f| {
        let event = LatencyEvent {
            name: "command".into(),
            last_at_s: NOW_MS / 1000 - 3,
            last_ms: 400,
            max_ms: 400,
            history: Vec::new(),
        };
        f.nodes[0].latency = seen(vec![event]);
    }),
    ("a client far away", |f| {
        f.nodes[0].sockets = seen(vec![peer("10.0.0.9", 50, 70, 50_000), peer("10.9.0.9", 50, 2000, 50_000)])
    }),
    ("far away from here, and nothing else known", |f| {
        f.hosts.clear();
        f.nodes[0].sockets = Seen::default();
        f.nodes[0].rtt = rtt(20_000, 20_100, 20_400);
    }),
    ("no application uses it", |f| {
        let idle = |v: &str| v.replace("calls=90000", "calls=0").replace("calls=10000", "calls=0");
        let fields = &mut f.nodes[0].last.as_mut().unwrap().info.0;
        *fields = fields.iter().map(|(name, value)| (name.to_string(), idle(value))).collect();
    }),
    ("busy", |f| set(f, &[("used_cpu_sys_main_thread", "7.5")])),
    ("cut short", |f| f.cut_short = true),
    ("through a proxy", |f| f.through = Some("envoy".into())),
    ("an event of the latency monitor in the window, by a clock that is an hour slow", |f| {
        set(f, &[("server_time_usec", ((NOW_MS - 3_600_000) * 1000).to_string().as_str())]);
        let event = LatencyEvent {
            name: "command".into(),
            last_at_s: NOW_MS / 1000 - 3600 - 3,
            last_ms: 400,
            max_ms: 400,
            history: Vec::new(),
        };
        f.nodes[0].latency = seen(vec![event]);
    }),
    ("the slow log keeps no entries", |f| configure(f, "slowlog-max-len", "0")),
    ("the slow log was not seen", |f| f.nodes[0].slowlog = Seen::default()),
    ("the clients were not seen", |f| f.nodes[0].clients = Seen::default()),
    ("the settings were not seen", |f| f.nodes[0].config = Seen::default()),
    ("looking was stopped early", |f| f.nodes[0].own.stopped_early = true),
    ("a node that does not answer", |f| {
        f.nodes.push(Node { unreachable: Some("timed out".into()), ..Node::new("10.0.0.2:6379", Role::Replica) });
    }),
    ("steal", |f| f.hosts[0].steal_share = Some(0.2)),
    ("throttled", |f| f.hosts[0].processes[0].throttled_share = Some(0.1)),
    ("the disk is slow", |f| {
        f.hosts[0].disks = vec![Disk { name: "sda".into(), write_await_ms: 300.0, busy_share: 1.0 }];
    }),
    ("connections were refused", |f| set(f, &[("rejected_connections", "7")])),
];

#[test]
fn nothing_ill_is_cleared() {
    for (what, make) in ILL {
        let mut facts = well();
        make(&mut facts);
        assert_eq!(answer(&facts, "not_your_redis"), Answered::NotHere, "{what}");
    }
}

fn sentinel(flags: &str, ckquorum: &str) -> SentinelNode {
    let group = SentinelGroup {
        service: "main".into(),
        master: HERE.into(),
        flags: flags.into(),
        quorum: 2,
        other_sentinels: 2,
        down_after_ms: 5000,
        failover_timeout_ms: 60_000,
        epoch: 1,
        ckquorum: ckquorum.into(),
        answered_at_ms: None,
        others: None,
        replicas: None,
    };
    SentinelNode {
        address: "10.0.0.5:26379".into(),
        unreachable: None,
        version: "Redis 7.2.4".into(),
        tilt: None,
        groups: vec![group],
    }
}

#[test]
fn odd_but_healthy_servers_are_cleared() {
    let cases: &[Ill] = &[
        ("a few errors", |f| {
            set(
                f,
                &[
                    ("errorstat_WRONGTYPE", "count=20"),
                    ("cmdstat_get", "calls=90000,usec=90000,usec_per_call=1,rejected_calls=0,failed_calls=20"),
                ],
            )
        }),
        ("greetings refused", |f| {
            set(f, &[("total_connections_received", "60"), ("errorstat_ERR", "count=180"), ("redis_version", "7.0.15")])
        }),
        ("a replica in step under a heavy stream", |f| {
            set(
                f,
                &[
                    ("master_repl_offset", "60000000"),
                    ("slave0", "ip=10.0.0.2,port=6379,state=online,offset=57000000,lag=0"),
                ],
            );
        }),
        ("AOF each second", |f| {
            set(f, &[("aof_enabled", "1"), ("aof_pending_bio_fsync", "1"), ("aof_buffer_length", "512")])
        }),
        ("small and fragmented", |f| {
            set(
                f,
                &[("used_memory", "1000000"), ("used_memory_rss", "9000000"), ("mem_fragmentation_bytes", "8000000")],
            )
        }),
        ("Sentinels that agree", |f| {
            f.sentinels = vec![sentinel("master", "OK 3 usable Sentinels. Quorum and failover authorization")]
        }),
        ("an event of yesterday", |f| {
            let event = LatencyEvent {
                name: "fork".into(),
                last_at_s: NOW_MS / 1000 - 86_400,
                last_ms: 400,
                max_ms: 400,
                history: Vec::new(),
            };
            f.nodes[0].latency = seen(vec![event]);
        }),
        ("a local backup on another core", |f| f.hosts[0].neighbours = vec![stranger(1.0)]),
    ];
    for (what, make) in cases {
        let mut facts = well();
        make(&mut facts);
        assert_eq!(answer(&facts, "not_your_redis"), Answered::Present, "{what}");
    }
}

#[test]
fn a_client_that_does_not_read_is_named() {
    let mut facts = well();
    let row = ClientRow {
        id: 5,
        address: "10.0.0.9:5000".into(),
        name: "report".into(),
        flags: "N".into(),
        idle_s: 20,
        output_bytes: 9 << 20,
        ..ClientRow::default()
    };
    facts.nodes[0].clients = seen(Clients { total: 50, listed: 50, notable: vec![row.clone()], ..Clients::default() });
    let found = finding(&facts, "not_your_redis");
    assert!(
        found.title.contains("10.0.0.9:5000 report does not read") && found.severity > Severity::Risk,
        "{}",
        found.title
    );
    // What it waits for is no cost of the server's.
    assert_eq!((found.severity, found.impact.currency), (Severity::Medium, Currency::Risk));
    // On a busy machine single PINGs take milliseconds, which is nothing beside what the client lets wait.
    let mut bumpy = facts.clone();
    bumpy.nodes[0].rtt = rtt(60, 900, 9000);
    assert_eq!(finding(&bumpy, "not_your_redis").severity, Severity::Medium);
    // Nor is it the client where the server is slow, or was not measured.
    let slow: &[Ill] = &[
        ("a PING took more than a tenth of that", |f| f.nodes[0].rtt = rtt(60, 120, 2_100_000)),
        ("PING was not measured", |f| f.nodes[0].rtt = Seen::default()),
        ("busy", |f| set(f, &[("used_cpu_sys_main_thread", "9.5")])),
        ("the CPU time was not seen", |f| {
            f.nodes[0].last.as_mut().unwrap().info.0.retain(|field, _| !field.starts_with("used_cpu_"));
        }),
    ];
    for (what, make) in slow {
        let mut facts = facts.clone();
        make(&mut facts);
        assert_eq!(answer(&facts, "not_your_redis"), Answered::NotHere, "{what}");
    }
    // A subscriber's buffer is another rule's; a reply on its way has not waited.
    for look_alike in [ClientRow { flags: "P".into(), ..row.clone() }, ClientRow { idle_s: 0, ..row }] {
        facts.nodes[0].clients =
            seen(Clients { total: 50, listed: 50, notable: vec![look_alike], ..Clients::default() });
        assert_eq!(finding(&facts, "not_your_redis").severity, Severity::Info);
    }
}
