//! Arrows that hold only where the facts say so. Not a rule: a rule's `LEADS_TO` names what it can cause, this module
//! decides whether it did.
//!
//! A consequence is reported beneath its cause and not on its own. If it has a different cause, that one would be
//! hidden: a flood of WRONGTYPE beneath a save that failed, a backup job beneath servers that save at the same time.

use unslow_facts::{Facts, Host, Neighbour, Node};
use unslow_topology::DeploymentKind;

use super::peers::{self, Stake, Standing};
use crate::measure::Outcomes;
use crate::{Finding, When};

/// Errors that servers answer with because of a cause. Other causes of floods say on whom they are by their subjects
/// (`replica_link_down`).
const ERRORS: &[(&str, &[&str])] = &[
    ("saves_failing", &["MISCONF"]),
    ("out_of_memory", &["OOM"]),
    ("min_replicas_refusing", &["NOREPLICAS"]),
    ("slots_uncovered", &[DOWN]),
    ("node_hangs", &[DOWN]),
    ("node_unreachable", &[DOWN]),
    ("node_timeout_margin", &[DOWN]),
    ("failover_flapping", &[DOWN, "READONLY", "LOADING", "MASTERDOWN"]),
    ("sentinel_master_down", &["NOAUTH", "WRONGPASS", "NOPERM", "LOADING", "BUSY", "MASTERDOWN", "READONLY"]),
];
/// What every node of a cluster answers while one master is marked failed and no replica has been elected, unless
/// `cluster-require-full-coverage` is off. The node it is about answers nothing.
const DOWN: &str = "CLUSTERDOWN";
/// Of the errors, or of the processors' time: what a cause must account for.
const MOST: f64 = 0.5;

/// Whether this cause is behind this effect, as far as facts tell: they are about one server, or the effect is on all
/// of them, and the arrow's condition holds if it has one.
pub fn holds(facts: &Facts, cause: &Finding, effect: &Finding) -> bool {
    let on = || effect.subjects.iter().filter_map(move |address| facts.node(address));
    let is_on_all = || effect.id == "error_flood" && takes_all_down(facts, cause) && are_most(on(), &[DOWN]);
    if !share_a_server(cause, effect) && !is_on_all() {
        return false;
    }
    match (cause.id.as_str(), effect.id.as_str()) {
        ("failover_flapping", "error_flood") if !is_of_window(facts, cause) => false,
        ("node_hangs" | "node_unreachable" | "node_timeout_margin", "error_flood") if !takes_all_down(facts, cause) => {
            false
        }
        (id, "error_flood") => {
            let kinds = ERRORS.iter().find(|(rule, _)| *rule == id).map(|(_, kinds)| *kinds);
            kinds.is_none_or(|kinds| are_most(on(), kinds))
        }
        // A server that is stopped, or stuck, says nothing for another reason.
        ("noisy_neighbour" | "io_threads", "node_hangs") => {
            on().any(|node| node.silent_ms.is_some() && super::standing::is_starved(node))
        }
        ("saves_collide" | "save_too_often", "noisy_neighbour") => own_children(on().filter_map(|n| facts.process(n))),
        // A snapshot that fails makes no rewrite begin again.
        ("saves_failing", "aof_rewrite_storm") => {
            let failed =
                |n: &Node| n.info().and_then(|i| i.get("aof_last_bgrewrite_status")).is_some_and(|s| s != "ok");
            on().any(failed)
        }
        _ => true,
    }
}

/// Whether this makes the others of a cluster answer [`DOWN`]: a master was lost to them all, in this window. Errors
/// are counted in the window, and what was over before it, or is away for days, is not behind them.
fn takes_all_down(facts: &Facts, cause: &Finding) -> bool {
    if facts.kind != DeploymentKind::Cluster {
        return false;
    }
    let view = peers::cluster(facts).map(|(_, merged)| merged);
    let of_master = |n: &&Node| !matches!(peers::stake(facts, view.as_ref(), n), Stake::Copy { .. } | Stake::Nothing);
    let is_lost = |n: &Node| {
        let replaced = matches!(peers::stake(facts, view.as_ref(), n), Stake::Replaced { .. });
        replaced || matches!(peers::standing(facts, n), Standing::Lost { .. })
    };
    let mut subjects = cause.subjects.iter().filter_map(|address| facts.node(address));
    match cause.id.as_str() {
        "slots_uncovered" => true,
        "failover_flapping" => is_of_window(facts, cause),
        "node_timeout_margin" => {
            is_of_window(facts, cause) && subjects.any(|n| super::node_timeout_margin::outlasted(facts, n))
        }
        "node_hangs" | "node_unreachable" => is_of_window(facts, cause) && subjects.filter(of_master).any(is_lost),
        _ => false,
    }
}

/// Whether they are about one server; a finding about no server is about all.
pub fn share_a_server(cause: &Finding, effect: &Finding) -> bool {
    cause.subjects.is_empty()
        || effect.subjects.is_empty()
        || cause.subjects.iter().any(|s| effect.subjects.contains(s))
}

/// Whether it began in the window. Records have whole seconds.
fn is_of_window(facts: &Facts, finding: &Finding) -> bool {
    let begun_ms = facts.live().filter_map(|n| n.first.as_ref()).map(|s| s.at_ms).min().unwrap_or(0);
    finding.when == When::Now && finding.since.is_some_and(|at_ms| at_ms + 999 >= begun_ms)
}

/// Whether most failures of these servers are of these kinds. Denied commands are another finding's where there are
/// many.
fn are_most<'a>(nodes: impl Iterator<Item = &'a Node>, kinds: &[&str]) -> bool {
    let (mut of_these, mut all) = (0.0, 0.0);
    for node in nodes {
        let denials_apart = super::acl_denials::reported(node).is_some();
        for (kind, n) in Outcomes::of(node).map_or(Vec::new(), |o| o.failures()) {
            if kind == "NOPERM" && denials_apart {
                continue;
            }
            all += n as f64;
            of_these += if kinds.contains(&kind.as_str()) { n as f64 } else { 0.0 };
        }
    }
    of_these > 0.0 && of_these >= MOST * all
}

/// Whether most of what other processes use on these machines are servers' own children, which save for them.
fn own_children<'a>(processes: impl Iterator<Item = (&'a Host, &'a unslow_facts::Process)>) -> bool {
    let (mut own, mut all) = (0.0, 0.0);
    for (host, _) in processes {
        let is_own = |n: &Neighbour| match n.parent {
            Some(parent) => host.processes.iter().any(|p| p.pid == parent),
            // Facts of before the parent was kept.
            None => ["redis", "valkey", "keydb"].iter().any(|name| n.name.starts_with(name)),
        };
        for neighbour in host.neighbours.iter().filter(|n| !n.client) {
            all += neighbour.cpu_share;
            own += if is_own(neighbour) { neighbour.cpu_share } else { 0.0 };
        }
    }
    own >= MOST * all
}

#[cfg(test)]
mod tests {
    use unslow_facts::{Process, Seen};

    use super::super::made::{NOW_MS, node_at, of};
    use super::*;
    use crate::rules::ALL;
    use unslow_topology::{ClusterView, DeploymentKind};

    const HERE: &str = "10.0.0.1:6379";

    fn finding(id: &str) -> Finding {
        Finding { id: id.into(), ..Finding::new(id).on([HERE]) }
    }

    /// A server that answered with these errors.
    fn failing(errors: &[(&str, u64)]) -> Facts {
        let start = "redis_version:7.2.4\r\nrole:master\r\ntotal_commands_processed:0\r\n";
        let total: u64 = errors.iter().map(|(_, n)| n).sum();
        let mut end = format!(
            "total_commands_processed:1000\r\n\
             cmdstat_set:calls=1000,usec=1,usec_per_call=1.00,rejected_calls=0,failed_calls={total}\r\n"
        );
        for (kind, n) in errors {
            end += &format!("errorstat_{kind}:count={n}\r\n");
        }
        of(DeploymentKind::Standalone, vec![node_at(HERE, start, &end)])
    }

    #[test]
    fn a_flood_is_beneath_a_cause_whose_errors_it_is_made_of() {
        let flood = finding("error_flood");
        let own_conditions = ["node_hangs", "node_unreachable", "node_timeout_margin"];
        for (cause, kinds) in ERRORS.iter().filter(|(cause, _)| !own_conditions.contains(cause)) {
            let holds = |errors: &[(&str, u64)]| holds(&failing(errors), &now(finding(cause)), &flood);
            assert!(holds(&[(kinds[0], 300), ("WRONGTYPE", 20)]), "{cause}");
            assert!(!holds(&[("WRONGTYPE", 300)]), "{cause}");
            assert!(!holds(&[(kinds[0], 20), ("WRONGTYPE", 300)]), "{cause}: most of them have another cause");
        }
        // By its subjects, and without a condition.
        assert!(holds(&failing(&[("WRONGTYPE", 300)]), &finding("replica_link_down"), &flood));
        assert!(holds(&failing(&[]), &finding("fork_stall"), &finding("node_timeout_margin")));
    }

    /// It began in the window.
    fn now(finding: Finding) -> Finding {
        let at_ms = failing(&[]).nodes[0].at_ms();
        finding.since(at_ms)
    }

    /// A cluster of which another node than the stalled one answered with these errors.
    fn cluster_failing(errors: &[(&str, u64)]) -> Facts {
        let mut facts = failing(errors);
        facts.kind = DeploymentKind::Cluster;
        facts
    }

    #[test]
    fn what_takes_a_master_away_makes_the_whole_cluster_refuse() {
        let elsewhere = |id: &str| Finding { id: id.into(), ..Finding::new(id).on(["10.0.0.9:6379"]) };
        let flood = finding("error_flood");
        let down = cluster_failing(&[(DOWN, 300)]);
        for cause in ["slots_uncovered", "failover_flapping"] {
            let cause = now(elsewhere(cause));
            assert!(holds(&down, &cause, &flood), "{}", cause.id);
            assert!(!holds(&cluster_failing(&[("READONLY", 300)]), &cause, &flood), "{}: another server's", cause.id);
            assert!(!holds(&failing(&[(DOWN, 300)]), &cause, &flood), "{}: no cluster", cause.id);
        }
        assert!(!holds(&down, &elsewhere("min_replicas_refusing"), &flood));
        let election = || elsewhere("failover_flapping");
        assert!(!holds(&down, &now(election()).past(1000), &flood), "of last night");
        assert!(!holds(&down, &election().since(1000), &flood), "since last night");
        assert!(!holds(&down, &election().since_start(1000), &flood), "of some time");
    }

    #[test]
    fn a_stall_that_the_failure_detector_did_not_notice_makes_nobody_refuse() {
        let stalled = |ms: u32, role: &str| {
            let mut facts = cluster_failing(&[(DOWN, 300)]);
            let info = |forks: u32| {
                format!(
                    "redis_version:7.2.4\r\nrole:{role}\r\nlatest_fork_usec:{}\r\ntotal_forks:{forks}\r\n",
                    ms * 1000
                )
            };
            let mut node = node_at("10.0.0.9:6379", &info(1), &info(2));
            let settings = [("cluster-node-timeout".to_string(), "1000".to_string())].into();
            node.config = Seen::yes(settings, String::new(), 0);
            facts.nodes.push(node);
            let margin = Finding::new("a stall").on(["10.0.0.9:6379"]);
            let margin = now(Finding { id: "node_timeout_margin".into(), ..margin });
            holds(&facts, &margin, &finding("error_flood"))
        };
        assert!(stalled(1500, "master"));
        assert!(!stalled(600, "master"), "it was not considered dead");
        assert!(!stalled(1500, "slave"), "a replica owns no slots");
    }

    #[test]
    fn a_server_that_only_we_do_not_reach_is_behind_no_refusal_of_the_others() {
        for cause in ["node_hangs", "node_unreachable"] {
            let mut facts = cluster_failing(&[(DOWN, 300)]);
            facts.nodes.push(Node { unreachable: Some("timed out".into()), ..node_at("10.0.0.9:6379", "", "") });
            let cause = now(Finding { id: cause.into(), ..Finding::new(cause).on(["10.0.0.9:6379"]) });
            assert!(!holds(&facts, &cause, &finding("error_flood")), "{}: no peer has lost it", cause.id);
        }
    }

    /// A cluster whose other master, which does not answer us, has these flags and this link to it at its peer.
    fn cluster_that_lost(flags: &str, link: &str) -> Facts {
        let mut facts = cluster_failing(&[(DOWN, 300)]);
        let view = format!(
            "{:040x} 10.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-8191\n\
             {:040x} 10.0.0.9:6379@16379 {flags} - {} {} 2 {link} 8192-16383\n",
            1,
            9,
            NOW_MS - 4000,
            NOW_MS - 5000
        );
        facts.nodes[0].cluster = Seen::yes(ClusterView::parse(&view).unwrap(), String::new(), NOW_MS);
        facts.nodes.push(Node { unreachable: Some("timed out".into()), ..node_at("10.0.0.9:6379", "", "") });
        facts
    }

    #[test]
    fn a_master_that_its_peers_have_lost_makes_the_whole_cluster_refuse() {
        let lost = cluster_that_lost("master,fail", "disconnected");
        for cause in ["node_hangs", "node_unreachable"] {
            let cause = || Finding { id: cause.into(), ..Finding::new(cause).on(["10.0.0.9:6379"]) };
            let flood = finding("error_flood");
            assert!(holds(&lost, &now(cause()), &flood), "{}", cause().id);
            assert!(!holds(&lost, &now(cause()).past(1000), &flood), "{}: of last night", cause().id);
            let connected = cluster_that_lost("master", "connected");
            assert!(!holds(&connected, &now(cause()), &flood), "{}: its peer is connected to it", cause().id);
        }
    }

    #[test]
    fn the_refusals_of_a_cluster_are_told_beneath_the_master_that_is_gone() {
        let mut facts = cluster_that_lost("master,fail", "disconnected");
        let gone = &mut facts.nodes[1];
        (gone.first, gone.last, gone.away) = (None, None, Some(unslow_facts::Lack::Answer));
        let findings = crate::diagnose(&facts, &[]).findings;
        let told: Vec<&str> = findings.iter().map(|finding| finding.id.as_str()).collect();
        assert!(!told.contains(&"error_flood"), "by itself: {told:?}");
        let by = findings.iter().find(|finding| finding.chain.iter().any(|link| link.id == "error_flood"));
        assert!(
            by.is_some_and(|by| ["node_unreachable", "slots_uncovered"].contains(&by.id.as_str())),
            "{findings:#?}"
        );
    }

    #[test]
    fn every_condition_is_of_an_arrow() {
        let arrow = |from: &str, to: &str| ALL.iter().any(|r| r.id == from && r.leads_to.contains(&to));
        assert!(ERRORS.iter().all(|(cause, _)| arrow(cause, "error_flood")));
        assert!(arrow("saves_collide", "noisy_neighbour") && arrow("save_too_often", "noisy_neighbour"));
        assert!(arrow("saves_failing", "aof_rewrite_storm"));
        assert!(arrow("noisy_neighbour", "node_hangs") && arrow("io_threads", "node_hangs"));
    }

    #[test]
    fn a_server_that_was_stopped_is_silent_for_no_neighbour() {
        use unslow_facts::{Doing, Standing, ThreadState};
        let silent = |state: ThreadState, user_ms: u64| {
            let doing = Doing { state, wait_channel: None, stack: Vec::new(), looks: 5 };
            let standing = Standing { looks: 5, span_ms: 200, user_ms, seen: vec![doing], ..Standing::default() };
            let node = Node {
                silent_ms: Some(3000),
                standing: Some(standing),
                ..Node::new(HERE, unslow_topology::Role::Master)
            };
            let facts = of(DeploymentKind::Standalone, vec![node]);
            ["noisy_neighbour", "io_threads"].map(|cause| holds(&facts, &finding(cause), &finding("node_hangs")))
        };
        assert_eq!(silent(ThreadState::Runnable, 0), [true, true]);
        assert_eq!(silent(ThreadState::Runnable, 150), [false, false]); // busy with something
        assert_eq!(silent(ThreadState::Stopped, 0), [false, false]);
    }

    #[test]
    fn a_backup_job_is_not_beneath_servers_that_save_together() {
        let beside = |neighbours: Vec<Neighbour>| {
            let process = Process { pid: 7, addresses: vec![HERE.into()], ..Process::default() };
            let mut facts = failing(&[]);
            facts.hosts = vec![Host { processes: vec![process], neighbours, ..Host::default() }];
            holds(&facts, &finding("saves_collide"), &finding("noisy_neighbour"))
        };
        let neighbour = |name: &str, cpu_share: f64, parent: Option<u32>| Neighbour {
            pid: 99,
            name: name.into(),
            cpu_share,
            client: false,
            parent,
        };
        assert!(beside(vec![neighbour("redis-rdb-bgsav", 0.9, Some(7)), neighbour("sshd", 0.1, Some(1))]));
        assert!(!beside(vec![neighbour("redis-rdb-bgsav", 0.3, Some(7)), neighbour("restic", 0.9, Some(1))]));
        // The child of a server that is not ours, and facts that do not tell whose it is.
        assert!(!beside(vec![neighbour("redis-server", 0.9, Some(1234))]));
        assert!(beside(vec![neighbour("redis-server", 0.9, None)]));
    }

    #[test]
    fn rewrites_that_begin_again_are_of_saves_that_fail_only_where_rewrites_fail() {
        let with = |status: &str| {
            let info = format!("redis_version:7.2.4\r\naof_last_bgrewrite_status:{status}\r\n");
            let facts = of(DeploymentKind::Standalone, vec![node_at(HERE, &info, "")]);
            holds(&facts, &finding("saves_failing"), &finding("aof_rewrite_storm"))
        };
        assert!(with("err") && !with("ok"));
    }
}
