//! The class behind false all-clears: a rule that could not look answers "unknown", never "absent". Every rule, over
//! servers that show nothing at all, and over recorded deployments from which one source was taken away.

#![allow(clippy::disallowed_methods)] // rules may not read files; their tests must

mod common;

use std::path::Path;

use common::{deployment, node, recorded, seen};
use unslow_doctor::{ALL, Answered, Conclusion, Report, Verdict, diagnose};
use unslow_facts::{Facts, Gap, Lack, Node, Seen};
use unslow_topology::{DeploymentKind, Info, Role};

const KINDS: [DeploymentKind; 4] =
    [DeploymentKind::Standalone, DeploymentKind::MasterReplica, DeploymentKind::Sentinel, DeploymentKind::Cluster];

/// Rules with evidence of their own where INFO and every probe are empty.
const BY_CONNECTING: &[&str] = &[
    "node_hangs",       // it answered
    "node_unreachable", // so did it here
    "no_auth",          // the connection shows whether a password was wanted
];

/// The same where discovery found several nodes: it knows their addresses and who follows whom.
const BY_DISCOVERY: &[&str] = &["masters_share_host", "master_without_replica", "replica_shares_host"];

fn deny(node: &mut Node) {
    fn no<T>(what: &str) -> Seen<T> {
        Seen::No(Gap::new(
            Lack::Rights,
            format!("{what} is denied to this user"),
            format!("ACL SETUSER <user> +{what}"),
        ))
    }
    node.rtt = no("ping");
    node.config = no("config|get");
    node.slowlog = no("slowlog|get");
    node.latency = no("latency|latest");
    node.clients = no("client|list");
    node.cluster = no("cluster|nodes");
    node.cluster_info = no("cluster|info");
    node.slot_stats = no("cluster|slot-stats");
    node.key_sizes = no("type");
    node.sockets = no("sockets");
}

/// A server that answers INFO with nothing in it.
fn mute(address: &str, role: Role, denied: bool) -> Node {
    let mut node = node(address, role, "", "");
    if denied {
        deny(&mut node);
    }
    node
}

/// Rules that claim something about these facts, present or absent.
fn claims(facts: &Facts, but: &[&[&str]]) -> Vec<String> {
    let rules = ALL.iter().filter(|rule| !but.iter().any(|all| all.contains(&rule.id)));
    rules
        .filter_map(|rule| match (rule.check)(facts) {
            Verdict::Absent(text) => Some(format!("{} is absent: {text}", rule.id)),
            Verdict::Present(finding) => Some(format!("{} is present: {}", rule.id, finding.title)),
            Verdict::NotHere | Verdict::Unknown(_) => None,
        })
        .collect()
}

#[test]
fn no_rule_claims_anything_about_a_server_that_shows_nothing() {
    let mut wrong = Vec::new();
    for kind in KINDS {
        for denied in [false, true] {
            let facts = deployment(kind, vec![mute("10.0.0.1:6379", Role::Master, denied)]);
            wrong.extend(claims(&facts, &[BY_CONNECTING]).into_iter().map(|claim| format!("{kind:?}: {claim}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_rule_claims_anything_about_several_servers_that_show_nothing() {
    let mut wrong = Vec::new();
    for kind in [DeploymentKind::MasterReplica, DeploymentKind::Sentinel, DeploymentKind::Cluster] {
        for denied in [false, true] {
            let master = mute("10.0.0.1:6379", Role::Master, denied);
            let mut replica = mute("10.0.0.2:6379", Role::Replica, denied);
            replica.master = Some(master.address.clone());
            let facts = deployment(kind, vec![master, replica]);
            let claims = claims(&facts, &[BY_CONNECTING, BY_DISCOVERY]);
            wrong.extend(claims.into_iter().map(|claim| format!("{kind:?}: {claim}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One server of several that shows nothing takes "on all nodes" away from the rules that compare.
#[test]
fn one_server_without_settings_leaves_the_comparison_open() {
    let mut facts = recorded("healthy_busy_cluster");
    let whole = diagnose(&facts, &["config_drift".into()]).only[0].answer;
    assert_eq!(whole, Answered::Absent, "the recording is of nodes that are set alike");
    facts.nodes[0].config = Seen::No(Gap::new(Lack::Rights, "CONFIG GET is denied to this user", ""));
    let report = diagnose(&facts, &["config_drift".into()]);
    assert!(!report.ruled_out.iter().any(|line| line.contains("all nodes")), "{:?}", report.ruled_out);
    // With one left there is nothing to compare it with.
    for node in &mut facts.nodes[1..] {
        node.config = Seen::No(Gap::new(Lack::Rights, "CONFIG GET is denied to this user", ""));
    }
    facts.nodes[0].config = seen([("maxmemory".to_string(), "0".to_string())].into());
    assert_eq!(diagnose(&facts, &["config_drift".into()]).only[0].answer, Answered::Unknown);
}

/// Takes one source away from a deployment.
type Blank = fn(&mut Facts);

/// A source, how it is taken away, and the rules that have no other evidence.
const SOURCES: &[(&str, Blank, &[&str])] = &[
    (
        "what INFO says",
        |facts| {
            let samples = facts.nodes.iter_mut().flat_map(|n| [&mut n.first, &mut n.last]).flatten();
            samples.for_each(|sample| sample.info = Info::default());
        },
        &[
            // habits of clients
            "acl_denials",
            "busy_polling",
            "chatter",
            "eval_bodies",
            "big_values",
            "giant_commands",
            "giant_transactions",
            "lock_spinning",
            "low_hit_ratio",
            "publish_in_cluster",
            "watch_conflicts",
            // others
            "backlog_too_small",
            "clock_skew",
            "connection_churn",
            "error_flood",
            "eviction_pressure",
            "expire_starved",
            "full_resync_loop",
            "hash_tag_skew",
            "kernel_bound",
            "main_thread_saturated",
            "min_replicas_refusing",
            "monitoring_storm",
            "no_pipelining",
            "normal_buffer_kill",
            "out_of_memory",
            "reads_on_master",
            "reconnect_stampede",
            "redirect_storm",
            "replica_buffer_kill",
            "replica_lag",
            "replica_link_down",
            "resync_storm",
            "save_too_often",
            "shard_imbalance",
            "slow_command",
            "version_mix",
            // the disk
            "aof_rewrite_storm",
            "disk_slow",
            "loading_loop",
            "paused",
            "saves_collide",
            "saves_failing",
            "too_many_connections",
            "writable_replica",
            // memory
            "client_memory",
            "copy_on_write",
            "defrag_running",
            "fragmentation",
            "growth_without_ttl",
            "no_memory_limit",
            "rehash",
            "script_cache",
            "tracking_storm",
            "tracking_table",
        ],
    ),
    (
        "CONFIG GET",
        |facts| each(facts, |n| n.config = denied()),
        &[
            "config_drift",
            "blind_instruments",
            "no_auth",
            "io_threads",
            "dead_peers",
            "idle_reaper",
            "replica_buffer_kill",
            "log_level",
            "notifications_for_nobody",
        ],
    ),
    ("SLOWLOG GET", |facts| each(facts, |n| n.slowlog = denied()), &["big_key", "giant_commands"]),
    ("LATENCY LATEST", |facts| each(facts, |n| n.latency = denied()), &[]),
    (
        "CLIENT LIST",
        |facts| each(facts, |n| n.clients = denied()),
        &["blocking_on_shared_connection", "monitor_attached", "slow_subscriber", "connection_leak"],
    ),
    (
        "CLUSTER NODES and INFO",
        |facts| each(facts, |n| (n.cluster, n.cluster_info) = (denied(), denied())),
        &[
            "ghost_nodes",
            "hash_tag_skew",
            "no_failover_possible",
            "no_majority",
            "open_slots",
            "publish_in_cluster",
            "shard_imbalance",
            "slot_map_fragmented",
            "slots_uncovered",
            "views_disagree",
        ],
    ),
    ("CLUSTER SLOT-STATS", |facts| each(facts, |n| n.slot_stats = denied()), &["hash_tag_skew"]),
    ("the sockets", |facts| each(facts, |n| n.sockets = denied()), &["bandwidth", "packet_loss"]),
    (
        "the machines",
        |facts| facts.hosts.clear(),
        &[
            "cpu_throttled",
            "disk_full_soon",
            "disk_slow",
            "hypervisor_steal",
            "noisy_neighbour",
            "overcommit",
            "transparent_huge_pages",
            // memory
            "container_memory",
            "memory_pressure",
            "reclaim",
            "swap",
            // Limits of the machine.
            "accept_overflow",
            "clocksource",
            "fd_limit",
            "frequency",
            "numa",
            "pinned",
            "softirq_on_core",
        ],
    ),
    (
        "PING",
        |facts| {
            each(facts, |n| {
                n.rtt = denied();
                n.pings.clear();
            })
        },
        &[],
    ),
    ("key sizes", |facts| each(facts, |n| n.key_sizes = denied()), &[]),
    ("the series", |facts| each(facts, |n| n.series.clear()), &[]),
];

fn denied<T>() -> Seen<T> {
    Seen::No(Gap::new(Lack::Rights, "denied to this user", "ACL SETUSER <user> +it"))
}

fn each(facts: &mut Facts, change: impl Fn(&mut Node)) {
    facts.nodes.iter_mut().for_each(change);
}

fn answered(report: &Report, rule: &str) -> Option<Answered> {
    report.only.iter().find(|answer| answer.id == rule).map(|answer| answer.answer)
}

/// Every rule's answer: `--only` with all of them.
fn every_answer(facts: &Facts) -> Report {
    diagnose(facts, &ALL.iter().map(|rule| rule.id.to_string()).collect::<Vec<_>>())
}

/// The names of the recordings.
fn recordings() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/facts");
    let files = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).flatten();
    let names = files.filter_map(|f| Some(f.file_name().to_str()?.strip_suffix(".json")?.to_string()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    names
}

#[test]
fn a_healthy_deployment_without_one_source_is_not_ruled_healthy_by_it() {
    let mut wrong = Vec::new();
    for name in recordings().iter().filter(|name| name.starts_with("healthy_")) {
        for (source, blank, rules) in SOURCES {
            let mut facts = recorded(name);
            blank(&mut facts);
            let report = every_answer(&facts);
            let claimed = rules.iter().filter(|rule| answered(&report, rule) == Some(Answered::Absent));
            wrong.extend(claimed.map(|rule| format!("{name} without {source}: {rule} is ruled out")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_is_ruled_out_without_info() {
    for name in recordings().iter().filter(|name| name.starts_with("healthy_")) {
        let mut facts = recorded(name);
        each(&mut facts, |n| (n.first, n.last) = (None, None));
        let report = diagnose(&facts, &[]);
        assert!(report.ruled_out.is_empty(), "{name}: {:?}", report.ruled_out);
        assert_eq!(report.verdict, Conclusion::Blind, "{name}: {:?}", report.findings);
        assert!(report.findings.iter().all(|f| f.id != "not_your_redis"), "{name}");
    }
}

/// Without one of its sources a diagnosis still ends, whatever the deployment suffers from, and on one node only as
/// well.
#[test]
fn no_rule_panics_without_one_source() {
    for name in recordings() {
        let whole = recorded(&name);
        for (source, blank, _) in SOURCES {
            let mut without = whole.clone();
            blank(&mut without);
            let report = diagnose(&without, &[]);
            assert_eq!(report.deployment.nodes.len(), whole.nodes.len(), "{name} without {source}");
            // Of the first node only; of one alone that is the same.
            if whole.nodes.len() == 1 {
                continue;
            }
            let mut first = whole.clone();
            first.nodes.truncate(1);
            blank(&mut first);
            let mut mixed = whole.clone();
            mixed.nodes[0] = first.nodes.remove(0);
            assert!(diagnose(&mixed, &[]).error.is_none(), "{name} without {source} of one node");
        }
    }
}
