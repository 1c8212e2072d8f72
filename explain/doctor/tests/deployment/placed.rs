//! Settings, placement, and remedies that fit the deployment they are for.

use unslow_doctor::{Answered, diagnose};
use unslow_facts::{Facts, Seen};
use unslow_topology::{ClusterView, DeploymentKind, Role};

use crate::common::{answer, deployment, finding, node, seen};
use crate::{Mark, address, away, cluster, commands, config, id, nodes_text, set, set_last, share, watched};

// B10: settings.

fn set_of(versions: &[(&str, &[(&str, &str)])]) -> Facts {
    type Settings<'a> = &'a [(&'a str, &'a str)];
    let server = |(i, (version, settings)): (usize, &(&str, Settings<'_>))| {
        let role = if i == 0 { "role:master" } else { "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379" };
        let mut node = node(
            &address(i + 1),
            if i == 0 { Role::Master } else { Role::Replica },
            &format!("{version}\n{role}\n"),
            "",
        );
        node.config = config(settings);
        node
    };
    deployment(DeploymentKind::MasterReplica, versions.iter().enumerate().map(server).collect())
}

const R62: &str = "redis_version:6.2.14";
const R72: &str = "redis_version:7.2.4";
const V91: &str = "redis_version:7.2.4\nvalkey_version:9.1.0";

#[test]
fn settings_are_compared_across_versions() {
    let upgrade = set_of(&[
        (R62, &[("maxmemory", "52428800")]),
        (V91, &[("maxmemory", "104857600")]),
        (V91, &[("maxmemory", "104857600")]),
    ]);
    let found = finding(&upgrade, "config_drift");
    assert_eq!(found.subjects, [address(1)]);
    assert!(
        commands(&found).contains("redis-cli -h 10.0.0.1 -p 6379 CONFIG SET maxmemory 104857600"),
        "{}",
        commands(&found)
    );
    assert!(found.remedies[0].rollback.contains("CONFIG SET maxmemory 52428800"), "{:?}", found.remedies[0]);
    let alike = set_of(&[
        (R62, &[("maxmemory", "1"), ("timeout", "0")]),
        (V91, &[("maxmemory", "1"), ("timeout", "0"), ("io-threads", "4")]),
    ]);
    let report = diagnose(&alike, &["config_drift".into()]);
    assert_eq!(report.only[0].answer, Answered::Absent);
    assert!(report.only[0].text.contains("2 compared"), "what one version lacks is not: {}", report.only[0].text);
}

#[test]
fn defaults_that_changed_between_versions_are_no_drift() {
    let old: &[(&str, &str)] = &[
        ("repl-backlog-size", "1048576"),
        ("lazyfree-lazy-expire", "no"),
        ("client-output-buffer-limit", "slave 1 1 60"),
    ];
    let new: &[(&str, &str)] = &[
        ("repl-backlog-size", "10485760"),
        ("lazyfree-lazy-expire", "yes"),
        ("client-output-buffer-limit", "replica 1 1 60"),
    ];
    assert_eq!(answer(&set_of(&[(R72, old), (V91, new)]), "config_drift"), Answered::Absent);
    // Within a version they are.
    assert_eq!(answer(&set_of(&[(V91, old), (V91, new)]), "config_drift"), Answered::Present);
    type Settings<'a> = &'a [(&'a str, &'a str)];
    let (before, after): (Settings<'_>, Settings<'_>) =
        (&[("save", "900 1 300 10 60 10000")], &[("save", "3600 1 300 100 60 10000")]);
    assert_eq!(answer(&set_of(&[(R72, &[]), (R62, before), (R72, after)]), "config_drift"), Answered::Absent);
    assert_eq!(answer(&set_of(&[(R72, &[]), (R72, before), (R72, after)]), "config_drift"), Answered::Present);
    // Persistence on replicas only is a practice.
    assert_eq!(
        answer(
            &set_of(&[(R72, &[("save", ""), ("timeout", "0")]), (R72, &[("save", "3600 1"), ("timeout", "0")])]),
            "config_drift"
        ),
        Answered::Absent
    );
    assert_eq!(answer(&set_of(&[(R72, &[("save", "")])]), "config_drift"), Answered::NotHere);
    assert_eq!(answer(&set_of(&[(R72, &[("save", "")]), (R72, &[])]), "config_drift"), Answered::Unknown);
}

// E24 and placement.

/// The same view for all, with these lines besides.
fn with_lines(more: &str) -> Facts {
    let mut facts = cluster(&[]);
    for n in 1..=6 {
        facts.nodes[n - 1].cluster = seen(ClusterView::parse(&nodes_text(n, &[], more)).unwrap());
    }
    facts
}

#[test]
fn dead_entries_share_no_host() {
    let ghosts: String = (0..2)
        .flat_map(|n| {
            let master = format!("{:040x} :0@0 master,fail,noaddr - 0 0 {} disconnected\n", 0xdead + n, 20 + n);
            [master, format!("{:040x} :0@0 slave,noaddr {:040x} 0 0 0 disconnected\n", 0xbeef + n, 0xdead + n)]
        })
        .collect();
    let strangers = format!("{:040x} 10.0.0.1:6380@16380 handshake - 0 0 0 disconnected\n", 0xfeed);
    // Port 0 alone says it too.
    let stale = format!("{:040x} :0@0 slave {} 0 0 1 disconnected\n", 0xface, id(1));
    let facts = with_lines(&(ghosts + &strangers + &stale));
    for rule in
        ["masters_share_host", "replica_shares_host", "master_without_replica", "slots_uncovered", "node_unreachable"]
    {
        assert_eq!(answer(&facts, rule), Answered::Absent, "{rule}");
    }
}

/// All of it on one machine is a test: the dead entries' lack of an address is no second machine.
#[test]
fn dead_entries_are_no_second_machine() {
    let ghost = format!("{:040x} :0@0 slave,noaddr {} 0 0 0 disconnected\n", 0xbeef, id(1));
    let mut facts = cluster(&[]);
    for n in 1..=6 {
        let moved = (1..=6).fold(nodes_text(n, &[], &ghost), |text, i| {
            text.replace(&format!("{}@16379", address(i)), &format!("127.0.0.1:700{i}@1700{i}"))
        });
        facts.nodes[n - 1].cluster = seen(ClusterView::parse(&moved).unwrap());
        facts.nodes[n - 1].address = format!("127.0.0.1:700{n}");
    }
    for rule in ["masters_share_host", "replica_shares_host"] {
        assert_eq!(answer(&facts, rule), Answered::NotHere, "{rule}");
    }
}

/// The second master on the first one's machine, its replica on its own.
fn crowded(version: &str) -> Facts {
    let mut facts = cluster(&[]);
    for n in 1..=6 {
        let text = nodes_text(n, &[], "").replace(&format!("{}@16379", address(2)), "10.0.0.1:6380@16380");
        facts.nodes[n - 1].cluster = seen(ClusterView::parse(&text).unwrap());
        set(&mut facts, n, version);
    }
    facts.nodes[1].address = "10.0.0.1:6380".into();
    facts
}

#[test]
fn masters_on_one_machine_are_told_with_the_replica_to_promote() {
    let found = finding(&crowded(""), "masters_share_host");
    assert!(found.title.contains("2 of 3 masters run on 10.0.0.1: if it dies there is no majority"), "{}", found.title);
    assert_eq!(found.remedies[0].commands, ["redis-cli -h 10.0.0.4 -p 6379 CLUSTER FAILOVER"]);
    assert!(found.remedies[0].exact);
    // Without a replica one has to be added, with the tool of the servers.
    let mut bare = away(away(away(crowded(V91), 4), 5), 6);
    for node in &mut bare.nodes {
        if let Some(value) = node.cluster.value_mut() {
            value.nodes.retain(|r| r.is("master"));
        }
    }
    let found = finding(&bare, "masters_share_host");
    assert!(commands(&found).contains("valkey-cli --cluster add-node NEW:PORT 10.0.0.1:"), "{}", commands(&found));
}

#[test]
fn through_a_proxy_nothing_is_said_of_what_stands_behind() {
    let mut facts = crowded("");
    facts.through = Some("unslow gateway".into());
    for rule in ["masters_share_host", "replica_shares_host", "master_without_replica", "no_auth", "failover_flapping"]
    {
        assert_eq!(answer(&facts, rule), Answered::NotHere, "{rule}");
    }
}

#[test]
fn a_master_alone_gets_a_replica_that_can_be_spared() {
    // Node 4 follows the second master, which has node 5 already.
    let mut facts = cluster(&[]);
    for n in 1..=6 {
        let text = nodes_text(n, &[], "");
        let moved: String = text
            .lines()
            .map(|l| (l, l.replace(&format!("slave {}", id(1)), &format!("slave {}", id(2)))))
            .map(|(l, moved)| if l.starts_with(&id(4)) { moved } else { l.into() } + "\n")
            .collect();
        facts.nodes[n - 1].cluster = seen(ClusterView::parse(&moved).unwrap());
    }
    let found = finding(&facts, "master_without_replica");
    assert_eq!(found.subjects, [address(1)]);
    assert!(commands(&found).contains(&format!("CLUSTER REPLICATE {}", id(1))), "{}", commands(&found));
    assert!(!commands(&found).contains("REPLICAOF"), "this is a cluster: {}", commands(&found));
    // Denied is neither a finding nor a pass.
    facts
        .nodes
        .iter_mut()
        .for_each(|n| n.cluster = Seen::No(unslow_facts::Gap::new(unslow_facts::Lack::Rights, "denied", "")));
    assert_eq!(answer(&facts, "master_without_replica"), Answered::Unknown);
}

#[test]
fn an_open_slot_may_be_on_a_node_that_was_not_seen() {
    assert_eq!(answer(&away(cluster(&[]), 2), "open_slots"), Answered::Unknown);
    let mut facts = cluster(&[]);
    let open = nodes_text(1, &[], "").replace("0-5460", &format!("0-5460 [42->-{}]", id(2)));
    facts.nodes[0].cluster = seen(ClusterView::parse(&open).unwrap());
    let found = finding(&facts, "open_slots");
    assert!(
        commands(&found).contains("redis-cli -h 10.0.0.1 -p 6379 CLUSTER SETSLOT 42 STABLE"),
        "{}",
        commands(&found)
    );
}

#[test]
fn of_the_errors_those_alone_that_open_slots_make_are_their_consequence() {
    for (kind, link) in [("WRONGTYPE", None), ("TRYAGAIN", Some("error_flood"))] {
        let mut facts = cluster(&[]);
        let open = nodes_text(1, &[], "").replace("0-5460", &format!("0-5460 [42->-{}]", id(2)));
        facts.nodes[0].cluster = seen(ClusterView::parse(&open).unwrap());
        set(&mut facts, 1, "total_commands_processed:0\n");
        set_last(&mut facts, 1, &format!("total_commands_processed:1000\nerrorstat_{kind}:count=300\n"));
        let report = diagnose(&facts, &["open_slots".into(), "error_flood".into()]);
        let ids: Vec<&str> = report.findings.iter().map(|f| f.id.as_str()).collect();
        assert_eq!(ids, ["error_flood", "open_slots"], "{kind}");
        let chain = &report.findings[1].chain;
        assert_eq!(chain.first().map(|l| l.id.as_str()), link, "{kind}: {chain:?}");
    }
}

// E23: remedies of single servers.

fn standalone(info: &str, after: &str) -> Facts {
    let version = "redis_version:7.2.4\nrole:master\n";
    deployment(
        DeploymentKind::Standalone,
        vec![node("10.0.0.1:6379", Role::Master, &format!("{version}{info}"), after)],
    )
}

#[test]
fn refused_writes_are_a_share_of_all_that_was_asked_for() {
    let full = "used_memory:1000000\nmaxmemory:1000000\nmaxmemory_policy:noeviction\ntotal_commands_processed:0\n";
    let refused = "errorstat_OOM:count=100\ntotal_commands_processed:200\n\
                   cmdstat_set:calls=0,usec=0,usec_per_call=0,rejected_calls=100,failed_calls=0\n\
                   cmdstat_get:calls=200,usec=200,usec_per_call=1,rejected_calls=0,failed_calls=0\n";
    let found = finding(&standalone(full, refused), "out_of_memory");
    assert!((share(&found) - 100.0 / 300.0).abs() < 1e-9, "{}", found.impact.text);
    assert!(
        commands(&found).contains("redis-cli -h 10.0.0.1 -p 6379 CONFIG SET maxmemory 1500000"),
        "{}",
        commands(&found)
    );
    // A machine that has no more is not told to use more.
    let small = finding(&standalone(&format!("{full}total_system_memory:1200000\n"), refused), "out_of_memory");
    assert!(!commands(&small).contains("CONFIG SET maxmemory 1500000"), "{}", commands(&small));
    assert_eq!(answer(&standalone("used_memory:1\nmaxmemory:0\n", ""), "out_of_memory"), Answered::Absent);
    assert_eq!(answer(&standalone("", ""), "out_of_memory"), Answered::Unknown);
}

#[test]
fn a_door_is_open_on_addresses_that_others_reach() {
    let with = |bind: &str, kind: DeploymentKind| {
        let mut facts = Facts { kind, ..watched(["master"; 3]) };
        for node in &mut facts.nodes {
            node.open_door = true;
            node.config = config(&[("bind", bind), ("protected-mode", "no")]);
        }
        facts
    };
    for (bind, open) in
        [("127.0.0.1 -::1", false), ("2001:db8::1", true), ("0.0.0.0", true), ("", true), ("* -::*", true)]
    {
        let expected = if open { Answered::Present } else { Answered::Absent };
        assert_eq!(answer(&with(bind, DeploymentKind::Sentinel), "no_auth"), expected, "{bind:?}");
    }
    let watched = commands(&finding(&with("", DeploymentKind::Sentinel), "no_auth"));
    // A secret is not sent to an address that may only have been heard of.
    assert!(watched.contains("SENTINEL SET mymaster auth-pass") && !watched.contains("-p 26379"), "{watched}");
    assert!(watched.contains("masterauth"), "{watched}");
    let mut alone = with("", DeploymentKind::Standalone);
    alone.nodes.truncate(1);
    alone.sentinels.clear();
    let alone = commands(&finding(&alone, "no_auth"));
    assert!(!alone.contains("SENTINEL") && !alone.contains("masterauth"), "{alone}");
}

#[test]
fn a_door_that_opened_over_loopback_may_be_open_elsewhere_too() {
    let open = |address: &str, settings: Seen<std::collections::BTreeMap<String, String>>| {
        let mut facts = standalone("", "");
        facts.nodes[0].address = address.into();
        facts.nodes[0].open_door = true;
        facts.nodes[0].config = settings;
        answer(&facts, "no_auth")
    };
    for here in ["127.0.0.1:6379", "[::1]:6379", "unix:/run/redis.sock"] {
        assert_eq!(open(here, Seen::default()), Answered::Unknown, "{here}");
        assert_eq!(open(here, config(&[("maxmemory", "0")])), Answered::Unknown, "{here}");
        assert_eq!(open(here, config(&[("protected-mode", "yes")])), Answered::Absent, "{here}");
        assert_eq!(open(here, config(&[("bind", "127.0.0.1")])), Answered::Absent, "{here}");
    }
    assert_eq!(open("10.0.0.1:6379", Seen::default()), Answered::Present);
}

#[test]
fn crowded_servers_are_told_to_close_idle_connections_only_where_some_are_idle() {
    let facts =
        standalone("connected_clients:95\nmaxclients:100\nrejected_connections:0\ntotal_connections_received:0\n", "");
    let found = finding(&facts, "too_many_connections");
    assert!(!commands(&found).contains("CONFIG SET timeout"), "{}", commands(&found));
    let mut idle = facts.clone();
    let group = unslow_facts::ClientGroup { count: 50, idle_hour: 40, ..Default::default() };
    idle.nodes[0].clients =
        seen(unslow_facts::Clients { total: 95, listed: 95, groups: vec![group], ..Default::default() });
    idle.nodes[0].config = config(&[("timeout", "7")]);
    let found = finding(&idle, "too_many_connections");
    let close = found.remedies.last().unwrap();
    assert!(
        close.commands[0].contains("CONFIG SET timeout 300") && close.rollback.contains("CONFIG SET timeout 7"),
        "{close:?}"
    );
}

// Remedies that throw data away.

/// Node 4 follows the second master, which has node 5 already.
fn spare(marks: &[(usize, Mark)]) -> Facts {
    let mut facts = cluster(marks);
    for n in 1..=6 {
        let line = |l: &str| match l.starts_with(&id(4)) {
            true => l.replace(&format!("slave {}", id(1)), &format!("slave {}", id(2))) + "\n",
            false => l.to_string() + "\n",
        };
        let text: String = nodes_text(n, marks, "").lines().map(line).collect();
        facts.nodes[n - 1].cluster = seen(ClusterView::parse(&text).unwrap());
    }
    facts
}

#[test]
fn a_replica_is_not_sent_to_a_master_that_is_dead_or_suspected() {
    let well = finding(&spare(&[]), "master_without_replica");
    assert!(well.remedies.iter().any(|r| r.exact && r.commands[0].contains("CLUSTER REPLICATE")), "{well:?}");
    for facts in [
        away(spare(&[(1, Mark::Failed)]), 1),
        away(spare(&[]), 1),
        // It answers, and its peers doubt it: the master of the spare replica too.
        spare(&[(1, Mark::Suspected)]),
        spare(&[(2, Mark::Suspected)]),
    ] {
        let found = finding(&facts, "master_without_replica");
        assert!(!commands(&found).contains("CLUSTER REPLICATE"), "{}", commands(&found));
    }
}

/// These nodes stand at other addresses.
fn moved(marks: &[(usize, Mark)], places: &[(usize, &str)]) -> Facts {
    let mut facts = cluster(marks);
    for n in 1..=6 {
        let text = places.iter().fold(nodes_text(n, marks, ""), |text, (i, to)| {
            text.replace(&format!("{}@16379", address(*i)), &format!("{to}@17000"))
        });
        facts.nodes[n - 1].cluster = seen(ClusterView::parse(&text).unwrap());
    }
    for (i, to) in places {
        facts.nodes[i - 1].address = to.to_string();
    }
    facts
}

#[test]
fn a_swap_of_replicas_is_no_script() {
    let beside = [(4, "10.0.0.1:6380")];
    let found = finding(&moved(&[], &beside), "replica_shares_host");
    let swap = &found.remedies[0];
    assert!(!swap.exact && swap.commands.len() == 2, "{swap:?}");
    assert!(
        swap.commands[0].ends_with(&id(1)) && swap.commands[1].contains("once the first has its link up"),
        "{swap:?}"
    );
    // With another shard, where this one's master is suspected; and with none if the master itself is.
    let other = finding(&moved(&[(2, Mark::Suspected)], &beside), "replica_shares_host");
    assert!(!commands(&other).contains(&id(2)) && commands(&other).contains("CLUSTER REPLICATE"), "{other:?}");
    let doubted = finding(&moved(&[(1, Mark::Suspected)], &beside), "replica_shares_host");
    assert!(!commands(&doubted).contains("CLUSTER REPLICATE"), "{}", commands(&doubted));
}

#[test]
fn a_crowd_is_not_moved_to_the_next_machine() {
    let two_machines = [(2, "10.0.0.1:6380"), (4, "10.0.0.3:6384"), (5, "10.0.0.3:6385"), (6, "10.0.0.1:6386")];
    let found = finding(&moved(&[], &two_machines), "masters_share_host");
    assert!(found.remedies.iter().all(|r| !r.exact), "{:?}", found.remedies);
    assert!(commands(&found).contains("--cluster add-node NEW:PORT"), "{}", commands(&found));
    // Two of three on the first machine, one on the second, none on the third.
    let three = [(2, "10.0.0.1:6380"), (4, "10.0.0.3:6384"), (5, "10.0.0.9:6385")];
    let found = finding(&moved(&[], &three), "masters_share_host");
    assert_eq!(found.remedies[0].commands, ["redis-cli -h 10.0.0.9 -p 6385 CLUSTER FAILOVER"]);
    assert!(found.remedies[0].exact);
}
