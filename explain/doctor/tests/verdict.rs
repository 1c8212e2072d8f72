//! What a diagnosis comes to: the verdict says no more than what was seen.

mod common;

use common::{NOW_MS, deployment, node, recorded, seen};
use unslow_doctor::{Answered, Conclusion, Report, Severity, When, diagnose};
use unslow_facts::{Facts, Gap, Lack, Node, Own, Seen};
use unslow_topology::{DeploymentKind, Role};

/// INFO of a server that is well; `gets` is what an application has read so far.
fn info(gets: u64, own_pings: u64) -> String {
    format!(
        "redis_version:7.2.4\r\nrole:master\r\nuptime_in_seconds:90000\r\nconnected_clients:10\r\n\
         used_memory:1000000\r\n\
         total_commands_processed:{}\r\ntotal_reads_processed:{}\r\ntotal_connections_received:10\r\n\
         used_cpu_user_main_thread:1.0\r\n\
         used_cpu_sys_main_thread:1.0\r\n\
         cmdstat_get:calls={gets},usec={gets},usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n\
         cmdstat_ping:calls={own_pings},usec={own_pings},usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n",
        gets + own_pings,
        gets + own_pings,
    )
}

fn server(gets: u64) -> Node {
    let mut node = node("10.0.0.1:6379", Role::Master, &info(1000, 0), &info(1000 + gets, 500));
    node.own = Own { commands: [("ping".into(), 500)].into(), total: 510, reads: 500, ..Own::default() };
    node.config = seen([("maxclients", "10000"), ("maxmemory", "0")].map(|(k, v)| (k.into(), v.into())).into());
    node.slowlog = seen(Vec::new());
    node.latency = seen(Vec::new());
    node.clients = seen(Default::default());
    node
}

fn standalone(node: Node) -> Report {
    diagnose(&deployment(DeploymentKind::Standalone, vec![node]), &[])
}

#[test]
fn own_commands_are_no_load() {
    let report = standalone(server(0));
    assert_eq!(report.deployment.nodes[0].commands_per_s, Some(0.0));
    assert_eq!(report.verdict, Conclusion::Idle, "{:?}", report.findings);
    // Health checks and exporters are no application either.
    let mut checked = server(0);
    checked.own = Own::default();
    assert_eq!(standalone(checked).verdict, Conclusion::Idle);
    assert_ne!(standalone(server(10_000)).verdict, Conclusion::Idle);
}

#[test]
fn who_is_refused_is_no_idleness() {
    let mut node = server(0);
    let errors = |n| format!("errorstat_NOPERM:count={n}\r\n");
    let (first, last) = (node.first.as_mut().unwrap(), node.last.as_mut().unwrap());
    first.info.0.extend(unslow_topology::Info::parse(&errors(0)).0);
    last.info.0.extend(unslow_topology::Info::parse(&errors(5000)).0);
    assert_ne!(standalone(node).verdict, Conclusion::Idle);
}

#[test]
fn a_user_without_rights_gets_no_all_clear() {
    let denied = |what: &str| {
        Gap::new(Lack::Rights, format!("{what} is denied to this user"), format!("ACL SETUSER <user> +{what}"))
    };
    let mut node = server(10_000);
    node.config = Seen::No(denied("config|get"));
    node.slowlog = Seen::No(denied("slowlog|get"));
    node.latency = Seen::No(denied("latency|latest"));
    node.clients = Seen::No(denied("client|list"));
    let report = standalone(node);
    assert_eq!(report.verdict, Conclusion::Blind, "{:?}", report.looked);
    assert!(report.looked.could < report.looked.rules && !report.looked.could_not.is_empty());
    assert!(report.findings.iter().all(|f| f.id != "not_your_redis"), "{:?}", report.findings);

    // Nothing but PING.
    let mut node = server(10_000);
    (node.first, node.last) = (None, None);
    let report = standalone(node);
    assert_eq!((report.verdict, report.ruled_out.len()), (Conclusion::Blind, 0));
}

/// What managed services deny; the number of rules that read settings is nobody's business.
#[test]
fn one_denied_source_is_a_gap_and_two_leave_the_doctor_blind() {
    let denied = || Gap::new(Lack::Rights, "denied to this user", "");
    let mut node = server(10_000);
    node.config = Seen::No(denied());
    let report = standalone(node.clone());
    assert!(matches!(report.verdict, Conclusion::NoneFound | Conclusion::Risks), "{:?}", report.verdict);
    assert!(!report.looked.could_not.is_empty());
    node.slowlog = Seen::No(denied());
    assert_eq!(standalone(node.clone()).verdict, Conclusion::Blind);
    // Nor does a server give an all-clear that was too slow to be asked: that may be what is wrong with it.
    let late = || Gap::new(Lack::Time, "the window was over before it could be asked", "a longer --window");
    (node.config, node.slowlog) = (Seen::No(late()), Seen::No(late()));
    assert_eq!(standalone(node.clone()).verdict, Conclusion::Blind);
    node.config = Seen::No(denied());
    // An old version is not a right.
    node.slowlog = Seen::No(Gap::new(Lack::Version, "this server has no SLOWLOG", ""));
    assert_ne!(standalone(node).verdict, Conclusion::Blind);
}

#[test]
fn a_cause_outranks_every_other_verdict() {
    let mut node = server(0);
    node.config = Seen::No(Gap::new(Lack::Rights, "CONFIG GET is denied to this user", ""));
    let keys = |n| {
        format!("cmdstat_keys:calls={n},usec={},usec_per_call=1.00,rejected_calls=0,failed_calls=0\r\n", n * 100_000)
    };
    node.first.as_mut().unwrap().info.0.extend(unslow_topology::Info::parse(&keys(0)).0);
    node.last.as_mut().unwrap().info.0.extend(unslow_topology::Info::parse(&keys(40)).0);
    let report = standalone(node);
    assert_eq!((report.verdict, report.findings[0].id.as_str()), (Conclusion::Causes, "keys_command"));
    assert_eq!(report.findings[0].when, When::Now);
}

#[test]
fn nothing_is_ruled_out_where_no_server_answered() {
    let mut node = Node::new("10.0.0.1:6379", Role::Unknown);
    node.unreachable = Some("10.0.0.1:6379: connection refused".into());
    let report = standalone(node);
    assert!(matches!(report.verdict, Conclusion::Causes | Conclusion::Unreachable), "{:?}", report.verdict);
    assert!(report.ruled_out.is_empty(), "{:?}", report.ruled_out);
    assert!(report.findings.iter().any(|f| f.severity == Severity::Critical), "{:?}", report.findings);
}

#[test]
fn only_answers_for_its_rules_alone() {
    let facts = recorded("keys_command");
    let only = |facts: &Facts, rule: &str| diagnose(facts, &[rule.to_string()]);
    let there = only(&facts, "keys_command");
    assert_eq!((there.only[0].answer, there.verdict), (Answered::Present, Conclusion::Causes));
    let other = only(&facts, "out_of_memory");
    assert_eq!((other.only.len(), other.only[0].answer), (1, Answered::Absent));
    assert_eq!(other.verdict, Conclusion::NoneFound);
    let mut blind = recorded("monitor_attached");
    for node in &mut blind.nodes {
        node.clients = Seen::No(Gap::new(Lack::Rights, "CLIENT LIST is denied to this user", ""));
    }
    let unknown = only(&blind, "monitor_attached");
    assert_eq!((unknown.only[0].answer, unknown.verdict), (Answered::Unknown, Conclusion::Blind));
    let elsewhere = only(&facts, "open_slots");
    assert_eq!((elsewhere.only[0].answer, elsewhere.verdict), (Answered::NotHere, Conclusion::NoneFound));
}

#[test]
fn only_says_nothing_of_servers_that_did_not_answer() {
    let mut facts = recorded("keys_command");
    let mut away = Node::new("10.0.0.9:6379", Role::Master);
    away.unreachable = Some("connection refused".into());
    facts.nodes.push(away);
    let report = diagnose(&facts, &["out_of_memory".to_string()]);
    assert_eq!((report.only[0].answer, report.verdict), (Answered::Unknown, Conclusion::Blind));
    // And nothing is gone that was there before.
    let before = diagnose(&recorded("keys_command"), &[]);
    facts.nodes.retain(|n| n.last.is_none());
    let gone =
        |after: &Report| unslow_doctor::diff(&before, after).iter().any(|d| d.change == unslow_doctor::Change::Gone);
    assert!(
        !gone(&diagnose(&facts, &[])) && !gone(&diagnose(&recorded("healthy_idle"), &["out_of_memory".to_string()]))
    );
    assert!(gone(&diagnose(&recorded("healthy_idle"), &[])));
}

#[test]
fn counters_that_were_reset_are_no_idleness() {
    let mut node = server(10_000);
    let last = node.last.as_mut().unwrap();
    last.info.0.retain(|field, _| !field.starts_with("cmdstat_"));
    last.info.0.insert("total_commands_processed".into(), "5000".into());
    assert_ne!(standalone(node).verdict, Conclusion::Idle);
}

#[test]
fn a_report_of_a_failure_says_nothing_else() {
    let report = Report::failed("redis://h:1", NOW_MS, "password refused");
    assert_eq!((report.verdict, report.error.as_deref()), (Conclusion::Unreachable, Some("password refused")));
    assert!(report.findings.is_empty() && report.ruled_out.is_empty());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((json["schema"].as_str(), json["verdict"].as_str()), (Some("unslow.doctor/1"), Some("unreachable")));
}
