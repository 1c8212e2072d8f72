//! Rules about how commands end, what the main thread's time goes to, and the machine: facts by hand, the case and what
//! looks like it.

mod common;
#[path = "common/hand.rs"]
mod hand;

use std::collections::BTreeMap;

use common::{answer, deployment, finding, recorded, seen};
use hand::{alone, command, commands, errors, lines, machine, peer, rtt, server, stranger, text};
use unslow_doctor::measure::Outcomes;
use unslow_doctor::{Answered, Confidence, Currency, Severity, diagnose};
use unslow_facts::{ClientGroup, Clients, Facts, Host, Neighbour, Node, Own, Process};
use unslow_topology::DeploymentKind;

// How commands end.

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most.max(1)
    }
}

#[test]
fn shares_of_failed_commands_are_those_of_what_was_asked() {
    let mut numbers = Numbers(42);
    for case in 0..3000 {
        let scale = [1, 10, 1000, 1_000_000][case % 4];
        let mut n = || numbers.below(scale);
        let (ok, failed, moved, oom, unknown) = (n(), n(), n(), n(), n());
        let (own, own_denied) = (n() % 500, n() % 50);
        let executed = ok + failed;
        let after = lines(&[("total_commands_processed", (executed + own) as f64)])
            + &command("get", executed, executed, moved, failed)
            + &command("set", 0, 0, oom, 0)
            + &command("ping", own, own, 0, 0)
            + &command("slowlog|get", 0, 0, own_denied, 0)
            + &errors("WRONGTYPE", failed)
            + &errors("MOVED", moved)
            + &errors("OOM", oom)
            + &errors("ERR", unknown)
            + &errors("NOPERM", own_denied);
        let mut node = server("7.0.15", &after);
        node.own = Own {
            commands: [("ping".into(), own)].into(),
            errors: [("NOPERM".into(), own_denied)].into(),
            reads: own + own_denied,
            ..Own::default()
        };
        let outcomes = Outcomes::of(&node).unwrap();
        let asked = (executed + moved + oom + unknown) as f64;
        assert_eq!((outcomes.asked, outcomes.unknown), (asked, unknown), "case {case}: {after}");
        let shares: Vec<f64> = outcomes.errors.values().map(|n| outcomes.share(*n as f64)).collect();
        assert!(shares.iter().all(|s| (0.0..=1.0).contains(s)), "case {case}: {shares:?}");
        assert!(shares.iter().sum::<f64>() <= 1.0 + 1e-9, "case {case}: {shares:?}");
        let lost: u64 = outcomes.failures().iter().map(|(_, n)| n).sum();
        assert_eq!(lost, failed + oom + unknown, "case {case}");
        assert!((outcomes.share(failed as f64) - failed as f64 / asked.max(1.0)).abs() < 1e-9, "case {case}");
    }
}

#[test]
fn counters_that_fit_nothing_give_no_share_beyond_all() {
    // Scripts count an error twice on some versions, and a reset may fall into the window.
    let mut numbers = Numbers(7);
    for case in 0..2000 {
        let mut n = || numbers.below(1000);
        let after = lines(&[("total_commands_processed", n() as f64)])
            + &command("eval", n(), 1, n(), n())
            + &errors("WRONGTYPE", n())
            + &errors("ERR", n())
            + &errors("NOPERM", n());
        let mut node = server("6.2.14", &after);
        node.own.commands.insert("ping".into(), n());
        node.own.errors.insert("NOPERM".into(), n());
        let outcomes = Outcomes::of(&node).unwrap();
        let sum: f64 = outcomes.errors.values().map(|n| outcomes.share(*n as f64)).sum();
        assert!((0.0..=1.0 + 1e-9).contains(&sum), "case {case}: {sum}");
    }
}

/// Executed, of these failed, refused: as a server of 7.0 counts them.
fn ended(executed: u64, failed: u64, refused: u64, kind: &str) -> Node {
    let after = lines(&[("total_commands_processed", executed as f64)])
        + &command("get", executed, executed, refused, failed)
        + &errors(kind, failed + refused);
    server("7.0.15", &after)
}

#[test]
fn the_share_is_the_true_one_and_its_formula_adds_up() {
    for (node, share, formula) in [
        (ended(10_000, 3000, 0, "WRONGTYPE"), "30 %", "3000 failed / 10000 asked for = 30 %"),
        (ended(6900, 0, 3100, "OOM"), "31 %", "3100 failed / 10000 asked for = 31 %"),
        (ended(3900, 0, 6100, "NOAUTH"), "61 %", "6100 failed / 10000 asked for = 61 %"),
    ] {
        let found = finding(&alone(node), "error_flood");
        assert!(found.title.starts_with(share), "{}", found.title);
        assert_eq!(found.gain.formula, formula);
    }
    let denied = alone(ended(3900, 0, 6100, "NOPERM"));
    let found = finding(&denied, "acl_denials");
    assert!(found.title.starts_with("61 %"), "{}", found.title);
    assert_eq!(found.gain.formula, "6100 denied / 10000 asked for = 61 %");
    assert_eq!(answer(&denied, "error_flood"), Answered::Absent, "told once");
    let cluster = deployment(DeploymentKind::Cluster, vec![ended(1000, 0, 2000, "MOVED")]);
    let found = finding(&cluster, "redirect_storm");
    assert!(found.title.starts_with("67 %"), "{}", found.title);
    assert!(found.gain.formula.contains("/ 3000 commands sent = 67 %"), "{}", found.gain.formula);
    assert_eq!(answer(&cluster, "error_flood"), Answered::Absent, "redirects are no failures");
}

#[test]
fn denied_commands_are_told_once_and_other_errors_beside_them() {
    let both = |denied: u64, wrong: u64| {
        let after = lines(&[("total_commands_processed", 10_000.0)])
            + &command("get", 10_000, 10_000, denied, wrong)
            + &errors("NOPERM", denied)
            + &errors("WRONGTYPE", wrong);
        alone(server("7.0.15", &after))
    };
    // Each is a flood.
    let facts = both(2000, 1000);
    assert!(finding(&facts, "acl_denials").title.contains("2,000 x NOPERM"));
    let found = finding(&facts, "error_flood");
    assert!(found.title.contains("1,000 x WRONGTYPE") && !found.title.contains("NOPERM"), "{}", found.title);
    assert!(found.remedies.iter().all(|r| !r.text.contains("NOPERM")), "{:?}", found.remedies);
    // Neither is one by itself, both are together.
    let facts = both(80, 80);
    assert_eq!(answer(&facts, "acl_denials"), Answered::Absent);
    assert!(finding(&facts, "error_flood").remedies.iter().any(|r| r.text.contains("NOPERM")));
}

/// A server whose clients connect `new` times and send `gets` commands; `unknown` errors that no command's counters
/// hold.
fn greeted(version: &str, new: u64, gets: u64, unknown: u64) -> Node {
    let after = lines(&[("total_connections_received", new as f64), ("total_commands_processed", gets as f64)])
        + &command("get", gets, gets, 0, 0)
        + &errors("ERR", unknown);
    server(version, &after)
}

#[test]
fn refused_greetings_of_client_libraries_are_no_failures() {
    // Six short jobs a second with redis-py 8, at a server that knows none of its greetings.
    let facts = alone(greeted("7.0.15", 60, 8000, 180));
    assert_eq!(answer(&facts, "error_flood"), Answered::Absent);
    assert!(text(&facts, "error_flood").contains("180 greetings"), "{}", text(&facts, "error_flood"));

    // 6.2 counts sub-commands it does not know under their command.
    let after = lines(&[("total_connections_received", 60.0), ("total_commands_processed", 8180.0)])
        + &command("get", 8000, 8000, 0, 0)
        + &command("client", 180, 180, 0, 180)
        + &errors("ERR", 180);
    assert_eq!(answer(&alone(server("6.2.14", &after)), "error_flood"), Answered::Absent);

    // A user who may not introduce itself.
    let after = lines(&[("total_connections_received", 60.0), ("total_commands_processed", 8000.0)])
        + &command("get", 8000, 8000, 0, 0)
        + &command("client|setinfo", 0, 0, 120, 0)
        + &errors("NOPERM", 120);
    assert_eq!(answer(&alone(server("7.2.4", &after)), "error_flood"), Answered::Absent);
}

#[test]
fn unknown_commands_that_are_no_greetings_are_told() {
    // More than three a connection: the rest is the application's.
    let found = finding(&alone(greeted("7.0.15", 60, 8000, 1180)), "error_flood");
    assert!(found.title.contains("1,000 x ERR"), "{}", found.title);
    assert!(commands(&found).contains("MODULE LIST") && found.ruled_out.iter().any(|r| r.contains("180")), "{found:?}");
    // Standing connections send no greeting.
    assert_eq!(answer(&alone(greeted("7.0.15", 0, 8000, 180)), "error_flood"), Answered::Present);
    // Connections that do nothing else: what is unknown is what they are for.
    assert_eq!(answer(&alone(greeted("7.0.15", 5000, 0, 5000)), "error_flood"), Answered::Present);
}

#[test]
fn own_denials_are_not_told_and_those_of_others_are() {
    let with = |denied: u64, own: u64| {
        let after = lines(&[("total_commands_processed", 10_000.0)])
            + &command("get", 10_000, 10_000, 0, 0)
            + &command("set", 0, 0, denied, 0)
            + &errors("NOPERM", denied);
        let mut node = server("7.2.4", &after);
        node.own.errors.insert("NOPERM".into(), own);
        alone(node)
    };
    assert_eq!(answer(&with(500, 500), "acl_denials"), Answered::Absent);
    let found = finding(&with(1000, 400), "acl_denials");
    assert!(found.title.contains("600 x NOPERM"), "{}", found.title);
    let all = commands(&found);
    assert!(all.contains("redis-cli -h 10.0.0.1 -p 6379 ACL LOG 10") && all.contains("+set"), "{all}");
}

#[test]
fn severity_is_by_share_and_by_harm() {
    let of = |executed, failed, refused, kind| {
        finding(&alone(ended(executed, failed, refused, kind)), "error_flood").severity
    };
    assert_eq!(of(10_000, 150, 0, "WRONGTYPE"), Severity::Medium);
    assert_eq!(of(10_000, 500, 0, "WRONGTYPE"), Severity::High);
    assert_eq!(of(10_000, 5000, 0, "WRONGTYPE"), Severity::Critical);
    assert_eq!(of(10_000, 0, 500, "OOM"), Severity::Critical);
    assert_eq!(answer(&alone(ended(100_000, 500, 0, "WRONGTYPE")), "error_flood"), Answered::Absent);
}

#[test]
fn every_kind_of_error_has_a_remedy_that_names_the_server() {
    for kind in [
        "OOM",
        "READONLY",
        "MISCONF",
        "NOREPLICAS",
        "MASTERDOWN",
        "LOADING",
        "CLUSTERDOWN",
        "NOAUTH",
        "WRONGPASS",
        "WRONGTYPE",
        "ERR",
        "BUSY",
        "UNKILLABLE",
        "NOTBUSY",
        "EXECABORT",
        "CROSSSLOT",
        "TRYAGAIN",
        "NOGROUP",
        "NOGOODSLAVE",
        "SOMETHING",
    ] {
        let found = finding(&alone(ended(5000, 0, 5000, kind)), "error_flood");
        let all = commands(&found);
        assert!(found.remedies.iter().all(|r| r.text.contains(kind)), "{kind}: {:?}", found.remedies);
        assert!(all.contains("redis-cli -h 10.0.0.1 -p 6379 "), "{kind}: {all}");
        assert!(!all.contains("{}") && !all.contains("  \n"), "{kind}: {all}");
    }
}

#[test]
fn writes_without_a_copy_or_a_save_are_offered_as_a_choice() {
    let refused = |kind: &str, setting: (&str, &str), field: (&str, &str)| {
        let mut node = ended(5000, 0, 5000, kind);
        node.config = seen(BTreeMap::from([(setting.0.to_string(), setting.1.to_string())]));
        node.last.as_mut().unwrap().info.0.insert(field.0.into(), field.1.into());
        finding(&alone(node), "error_flood").remedies
    };
    let replicas = refused("NOREPLICAS", ("min-replicas-to-write", "2"), ("min_slaves_good_slaves", "1"));
    let until = replicas.last().unwrap();
    assert_eq!(until.commands, ["redis-cli -h 10.0.0.1 -p 6379 CONFIG SET min-replicas-to-write 1"]);
    assert_eq!(until.rollback, "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET min-replicas-to-write 2");
    let saves = refused("MISCONF", ("stop-writes-on-bgsave-error", "yes"), ("rdb_last_bgsave_status", "err"));
    let until = saves.last().unwrap();
    assert_eq!(until.commands, ["redis-cli -h 10.0.0.1 -p 6379 CONFIG SET stop-writes-on-bgsave-error no"]);
    assert_eq!(until.rollback, "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET stop-writes-on-bgsave-error yes");
    assert!(replicas.iter().chain(&saves).all(|r| !r.exact), "{replicas:?} {saves:?}");
}

#[test]
fn other_errors_are_no_consequence_of_redirects() {
    let after = lines(&[("total_commands_processed", 10_000.0)])
        + &command("get", 10_000, 10_000, 2000, 3000)
        + &errors("MOVED", 2000)
        + &errors("WRONGTYPE", 3000);
    let cluster = deployment(DeploymentKind::Cluster, vec![server("7.0.15", &after)]);
    let report = diagnose(&cluster, &["redirect_storm".into(), "error_flood".into()]);
    let ids: Vec<&str> = report.findings.iter().map(|f| f.id.as_str()).collect();
    assert_eq!(ids, ["error_flood", "redirect_storm"]);
    assert!(report.findings.iter().all(|f| f.chain.is_empty()), "{:?}", report.findings);
}

#[test]
fn errors_that_are_not_counted_are_not_ruled_out() {
    assert_eq!(answer(&alone(server("6.0.20", "")), "error_flood"), Answered::Unknown);
    let cluster = deployment(DeploymentKind::Cluster, vec![server("5.0.14", "")]);
    assert_eq!(answer(&cluster, "redirect_storm"), Answered::Unknown);
}

// The machine.

/// A server that uses this share of a core, on this machine.
fn on_machine(busy: f64, host: Host) -> Facts {
    let used = lines(&[("used_cpu_user_main_thread", busy * 10.0)]) + &command("get", 1000, 1000, 0, 0);
    let mut node = server("7.2.4", &used);
    node.rtt = rtt(40, 90, 400);
    Facts { hosts: vec![host], ..alone(node) }
}

#[test]
fn steal_costs_what_the_server_itself_loses() {
    let host = |steal: f64| Host {
        steal_share: Some(steal),
        ..machine(Process { run_delay_share: Some(0.007), ..Process::default() })
    };
    // The machine has 17 % steal, and the server hardly runs: a risk, and no neighbour.
    let facts = on_machine(0.006, host(0.17));
    let found = finding(&facts, "hypervisor_steal");
    assert_eq!((found.severity, found.impact.currency), (Severity::Risk, Currency::Risk));
    assert_eq!(answer(&facts, "noisy_neighbour"), Answered::Absent);
    // A busy one loses its part, and no more.
    let found = finding(&on_machine(0.5, host(0.2)), "hypervisor_steal");
    assert!((found.impact.value - 0.125).abs() < 0.001, "{:?}", found.impact);
    assert_eq!((found.severity, found.confidence), (Severity::Medium, Confidence::Likely));
    assert!(!commands(&found).contains("taskset"), "{}", commands(&found));
    assert_eq!(answer(&on_machine(0.5, host(0.03)), "hypervisor_steal"), Answered::Absent);
    assert_eq!(answer(&alone(server("7.2.4", "")), "hypervisor_steal"), Answered::Unknown);
}

#[test]
fn the_recorded_facts_of_steal_name_it_and_no_neighbour() {
    let report = diagnose(&recorded("hypervisor_steal"), &[]);
    assert_eq!(report.findings.first().map(|f| f.id.as_str()), Some("hypervisor_steal"));
    assert!(report.findings[0].severity > Severity::Risk, "{:?}", report.findings[0].impact);
    assert!(report.findings.iter().all(|f| f.id != "noisy_neighbour"), "{:?}", report.findings);
}

#[test]
fn a_neighbour_costs_the_time_the_server_waited() {
    let host = |delay: f64, strangers: Vec<Neighbour>| Host {
        neighbours: strangers,
        ..machine(Process { run_delay_share: Some(delay), ..Process::default() })
    };
    let found = finding(&on_machine(0.1, host(0.3, vec![stranger(3.0)])), "noisy_neighbour");
    assert_eq!((found.impact.value, found.confidence), (0.3, Confidence::Proven));
    assert!(commands(&found).contains("renice -n 10 -p 99"), "{}", commands(&found));
    // No application: the waiting costs no one anything.
    let mut unused = on_machine(0.1, host(0.3, vec![stranger(3.0)]));
    unused.nodes[0].last.as_mut().unwrap().info.0.remove("cmdstat_get");
    assert_eq!(finding(&unused, "noisy_neighbour").severity, Severity::Risk);
    // Cores to spare: what the others use costs the server nothing.
    assert_eq!(answer(&on_machine(0.1, host(0.004, vec![stranger(3.0)])), "noisy_neighbour"), Answered::Absent);
    // Its own clients.
    let client = Neighbour { client: true, ..stranger(3.0) };
    assert_eq!(answer(&on_machine(0.1, host(0.3, vec![client])), "noisy_neighbour"), Answered::Absent);
    // It waits a little, and PING does not show it.
    assert_eq!(finding(&on_machine(0.1, host(0.02, vec![stranger(3.0)])), "noisy_neighbour").severity, Severity::Risk);
    let mut hit = on_machine(0.1, host(0.02, vec![stranger(3.0)]));
    hit.nodes[0].rtt = rtt(40, 90, 12_000);
    assert!(finding(&hit, "noisy_neighbour").severity > Severity::Risk);
    // One core: there is nowhere to move it to.
    let one = Host { cpus: 1, ..host(0.3, vec![stranger(0.9)]) };
    assert!(!commands(&finding(&on_machine(0.1, one), "noisy_neighbour")).contains("taskset"));
}

#[test]
fn a_quota_that_stops_nothing_noticeable_is_a_risk() {
    let host = |share: f64| {
        machine(Process {
            throttled_periods: Some((5, 100)),
            throttled_share: Some(share),
            quota_cores: Some(0.5),
            ..Process::default()
        })
    };
    assert!(finding(&on_machine(0.4, host(0.2)), "cpu_throttled").severity > Severity::Risk);
    assert_eq!(finding(&on_machine(0.4, host(0.0002)), "cpu_throttled").severity, Severity::Risk);
    assert_eq!(answer(&on_machine(0.4, machine(Process::default())), "cpu_throttled"), Answered::Unknown);
}

#[test]
fn settings_of_the_machine_are_ruled_out_by_what_was_read() {
    let facts = |thp: Option<&str>, overcommit: Option<u32>| {
        on_machine(0.1, Host { thp: thp.map(Into::into), overcommit, ..machine(Process::default()) })
    };
    assert!(text(&facts(Some("madvise"), Some(1)), "transparent_huge_pages").contains("set to madvise"));
    assert!(text(&facts(Some("always"), Some(1)), "transparent_huge_pages").contains("no server has forked"));
    assert!(text(&facts(None, Some(1)), "overcommit").contains("is 1"));
    assert!(text(&facts(None, Some(0)), "overcommit").contains("no server has forked"));
    for rule in ["transparent_huge_pages", "overcommit"] {
        assert_eq!(answer(&facts(None, None), rule), Answered::Unknown, "{rule}");
    }
}

// What the main thread's time goes to.

/// Connections a second with two commands on each, a read for each command and one that finds the connection closed,
/// which is part of the connection's price; and the CPU they cost together, beside 1 us inside each command.
fn churning(rate: f64, each_us: f64, greeting: &str) -> Node {
    let (connections, commands) = (rate * 10.0, rate * 20.0);
    let reads = rate * 30.0;
    // Reads are as expensive as connections on a slow machine; next to a handshake, either way they are nothing.
    let read_us = if each_us > 300.0 { 3.0 } else { each_us * 2.4 / 17.5 };
    let cpu = (connections * each_us + (reads - connections) * read_us + commands * 1.3) / 1e6 + 0.05;
    let after = lines(&[
        ("total_connections_received", connections),
        ("total_commands_processed", commands),
        ("total_reads_processed", reads),
        ("used_cpu_user_main_thread", cpu * 0.3),
        ("used_cpu_sys_main_thread", cpu * 0.7),
    ]) + &command("get", commands as u64, commands as u64, 0, 0)
        + greeting;
    server("7.2.4", &after)
}

#[test]
fn a_new_connection_costs_what_was_measured() {
    for (rate, each_us, tls) in
        [(3700.0, 65.0, false), (400.0, 170.0, false), (170.0, 1800.0, true), (11_000.0, 20.0, false)]
    {
        let mut node = churning(rate, each_us, "");
        let ports = if tls { [("port", "0"), ("tls-port", "6379")] } else { [("port", "6379"), ("tls-port", "0")] };
        node.config = seen(ports.map(|(k, v)| (k.to_string(), v.to_string())).into());
        let expected = rate * each_us / 1e6;
        let found = finding(&alone(node), "connection_churn");
        assert!(
            (found.impact.value / expected - 1.0).abs() < 0.1,
            "{rate}/s: {} instead of {expected}",
            found.impact.value
        );
        assert_eq!(found.confidence, Confidence::Proven, "{rate}/s");
        assert_eq!(found.impact.text.contains("TLS"), tls, "{}", found.impact.text);
    }
    // AUTH hashes inside its command: the time there is the connection's too.
    let auth = command("auth", 4000, 400_000, 0, 0);
    let mut node = churning(400.0, 170.0, &auth);
    let last = node.last.as_mut().unwrap();
    last.info.0.insert("used_cpu_user_main_thread".into(), "0.8".into());
    let value = finding(&alone(node), "connection_churn").impact.value;
    assert!(value > 0.08, "{value}");
}

/// 1000 connections a second with one command each, on a machine that takes twice the known prices.
#[test]
fn the_cpu_outside_commands_is_shared_out_between_reads_and_connections_by_their_prices() {
    for (turns, read_us) in [(None, 2.4), (Some(30_000.0), 12.4), (Some(15_000.0), 7.4)] {
        let mut fields = vec![
            ("total_connections_received", 10_000.0),
            ("total_commands_processed", 10_000.0),
            ("total_reads_processed", 20_000.0),
            // 10 ms inside commands, 50 ms for the clock.
            ("used_cpu_sys_main_thread", 10_000.0 * 2.0 * (17.5 + read_us) / 1e6 + 0.01 + 0.05),
        ];
        fields.extend(turns.map(|n| ("eventloop_cycles", n)));
        let mut node = server("7.2.4", &(lines(&fields) + &command("incr", 10_000, 10_000, 0, 0)));
        node.first.as_mut().unwrap().info.0.insert("eventloop_cycles".into(), "0".into());
        let found = finding(&alone(node), "connection_churn");
        assert!((found.impact.value - 0.035).abs() < 0.0005, "{turns:?}: {}", found.impact.value);
    }
}

/// What a server used, and what it no longer used when its clients kept their connections (Valkey 9.1 on a virtual
/// machine whose processors sleep between requests).
#[test]
fn what_connections_cost_is_what_their_end_gave_back() {
    struct Used {
        connections: f64,
        reads: f64,
        turns: f64,
        cpu: f64,
        inside: f64,
        greeting: &'static str,
        gave_back: f64,
    }
    let plain = Used {
        connections: 982.0,
        reads: 2023.0,
        turns: 2902.0,
        cpu: 0.0971,
        inside: 0.0016,
        greeting: "",
        gave_back: 0.051,
    };
    let resp3 = Used {
        connections: 657.0,
        reads: 2028.0,
        turns: 2652.0,
        cpu: 0.1096,
        inside: 0.0010,
        greeting: "hello",
        gave_back: 0.064,
    };
    for used in [plain, resp3] {
        let fields = [
            ("total_connections_received", used.connections * 10.0),
            ("total_commands_processed", used.reads * 10.0),
            ("total_reads_processed", used.reads * 10.0),
            ("eventloop_cycles", used.turns * 10.0),
            ("used_cpu_sys_main_thread", used.cpu * 10.0),
        ];
        let commands = command("incr", 10_000, (used.inside * 1e7) as u64, 0, 0);
        let greeting = match used.greeting {
            "" => String::new(),
            name => command(name, (used.connections * 10.0) as u64, (0.0047 * 1e7) as u64, 0, 0),
        };
        let mut node = server("9.1.2", &(lines(&fields) + &commands + &greeting));
        node.first.as_mut().unwrap().info.0.insert("eventloop_cycles".into(), "0".into());
        let told = finding(&alone(node), "connection_churn").impact.value;
        assert!((used.gave_back / told - 1.0).abs() < 0.3, "{}: {told} told", used.gave_back);
    }
}

#[test]
fn what_is_not_measured_of_a_connection_is_the_least_and_not_proven() {
    // Before 6.0 reads are not counted, and the rest cannot be told apart.
    let mut node = churning(1000.0, 60.0, "");
    for sample in [&mut node.first, &mut node.last].into_iter().flatten() {
        sample.info.0.remove("total_reads_processed");
        sample.info.0.insert("redis_version".into(), "5.0.14".into());
    }
    let found = finding(&alone(node), "connection_churn");
    assert!((found.impact.value - 0.0175).abs() < 0.0001, "{}", found.impact.value);
    assert_eq!(found.confidence, Confidence::Likely);
    // A few health checks beside a busy server: its CPU is not theirs.
    let after = lines(&[
        ("total_connections_received", 150.0),
        ("total_commands_processed", 200_000.0),
        ("total_reads_processed", 200_000.0),
        ("used_cpu_user_main_thread", 4.0),
        ("used_cpu_sys_main_thread", 2.0),
    ]) + &command("zrange", 200_000, 100_000, 0, 0);
    assert_eq!(answer(&alone(server("7.2.4", &after)), "connection_churn"), Answered::Absent);
}

#[test]
fn the_split_of_a_saturated_thread_adds_up_and_has_the_same_connections() {
    let node = churning(4700.0, 190.0, "");
    let facts = alone(node);
    let (full, churn) = (finding(&facts, "main_thread_saturated"), finding(&facts, "connection_churn"));
    let numbers: Vec<f64> =
        full.gain.formula.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|n| n.parse().ok()).collect();
    let sum: f64 = numbers[1..].iter().sum();
    assert!((numbers[0] - sum).abs() < 0.04, "{}", full.gain.formula);
    assert!((numbers[3] - churn.impact.value).abs() < 0.02, "{} and {}", full.gain.formula, churn.impact.value);
    // No replica, no advice to read from one.
    assert!(!commands(&full).contains("REPLICA_PREFERRED"), "{}", commands(&full));
}

/// One command at a time over some connections, at this busy share, of which the kernel has four fifths.
fn one_by_one(busy: f64, ops: f64, connections: u32, rtt_us: u32) -> Facts {
    let total = ops * 10.0;
    let after = lines(&[
        ("total_commands_processed", total),
        ("total_reads_processed", total),
        ("used_cpu_user_main_thread", busy * 2.0),
        ("used_cpu_sys_main_thread", busy * 8.0),
        ("connected_clients", f64::from(connections + 1)),
    ]) + &command("get", total as u64, (total * 0.1) as u64, 0, 0);
    let mut node = server("7.2.4", &after);
    node.rtt = rtt(rtt_us / 2, rtt_us, rtt_us * 2);
    node.sockets = seen(vec![peer("10.0.0.9", connections, rtt_us / 2, 100_000)]);
    alone(node)
}

#[test]
fn kernel_bound_and_no_pipelining_meet_without_a_gap_and_never_speak_together() {
    let speak = |facts: &Facts| ["no_pipelining", "kernel_bound"].map(|rule| answer(facts, rule) == Answered::Present);
    for busy in (1..=100).map(|p| f64::from(p) / 100.0) {
        for connections in [1, 4, 50, 400] {
            for rtt_us in [20, 60, 300, 1500] {
                let ops = busy * 76_000.0;
                let facts = one_by_one(busy, ops, connections, rtt_us);
                let [latency, capacity] = speak(&facts);
                let what = format!("{busy} busy, {connections} connections, {rtt_us} us");
                assert!(!(latency && capacity), "both at {what}");
                assert!(latency || capacity || busy <= 0.5, "neither at {what}");
                assert!(!latency || busy <= 0.7, "latency at {what}");
            }
        }
    }
    // 69 % busy, 57 points of it the kernel's, depth 1: many connections share the work, and the core pays.
    let found = finding(&one_by_one(0.69, 52_000.0, 50, 60), "kernel_bound");
    assert_eq!((found.impact.currency, found.severity), (Currency::Capacity, Severity::Medium));
    // Four connections over 60 us that do nothing but wait.
    assert_eq!(speak(&one_by_one(0.4, 52_000.0, 4, 60)), [true, false]);
}

fn followed(facts: &mut Facts) {
    let info = &mut facts.nodes[0].last.as_mut().expect("it was sampled").info;
    info.0.insert("connected_slaves".into(), "3".into());
}

#[test]
fn replicas_are_no_clients_that_were_counted() {
    // Four connections that wait for a third of their time, and three replicas, which connected_clients leaves out.
    let mut facts = one_by_one(0.2, 20_000.0, 4, 60);
    let is_alone = answer(&facts, "no_pipelining");
    followed(&mut facts);
    assert_eq!((answer(&facts, "no_pipelining"), is_alone), (Answered::Present, Answered::Present));
    let mut facts = one_by_one(0.2, 10_000.0, 4, 60);
    followed(&mut facts);
    assert_eq!(answer(&facts, "no_pipelining"), Answered::Absent, "each waits for 15 % of its time");
}

/// Redis 5.0, which does not count its reads: so much CPU time outside commands for each, over four connections.
fn uncounted(us_each: f64, ops: f64, more: &[(&str, f64)]) -> Facts {
    let (total, busy) = (ops * 10.0, ops * us_each / 1e6);
    let fields = [
        ("total_commands_processed", total),
        ("used_cpu_user", busy * 2.0),
        ("used_cpu_sys", busy * 8.0),
        ("connected_clients", 5.0),
    ];
    let after = lines(&[&fields[..], more].concat()) + &command("get", total as u64, 0, 0, 0);
    let mut node = server("5.0.6", &after);
    for sample in [&mut node.first, &mut node.last] {
        let info = &mut sample.as_mut().expect("both").info.0;
        info.retain(|field, _| field != "total_reads_processed" && !field.ends_with("_main_thread"));
        for field in ["used_cpu_user", "used_cpu_sys"] {
            if !info.contains_key(field) {
                info.insert(field.into(), "0".into());
            }
        }
    }
    node.rtt = rtt(30, 60, 120);
    node.sockets = seen(vec![peer("10.0.0.9", 4, 30, 100_000)]);
    alone(node)
}

#[test]
fn before_6_0_the_cpu_of_a_command_says_how_many_come_at_a_time() {
    let speak = |facts: &Facts| ["no_pipelining", "kernel_bound"].map(|rule| answer(facts, rule) == Answered::Present);
    // 4 x 10,000 round trips of 60 us are 0.6 of the connections' time.
    let sequential = uncounted(9.0, 40_000.0, &[]);
    assert_eq!(speak(&sequential), [true, false]);
    assert_eq!(finding(&sequential, "no_pipelining").confidence, Confidence::Likely);
    // 0.4 us outside each command are no read of its own, however busy the server is.
    assert_eq!(speak(&uncounted(0.4, 2_000_000.0, &[])), [false, false]);
    assert_eq!(speak(&uncounted(3.0, 300_000.0, &[])), [false, true]);
    // At least 2.5 in a read: that may be sixteen.
    assert_eq!(speak(&uncounted(0.95, 900_000.0, &[])), [false, false]);
    assert_eq!(speak(&uncounted(1.3, 700_000.0, &[])), [false, true]);
    // Replicas, an append-only file and the bus of a cluster take CPU for each command too.
    for besides in ["connected_slaves", "aof_enabled", "cluster_enabled"] {
        let facts = uncounted(9.0, 40_000.0, &[(besides, 1.0)]);
        assert_eq!(answer(&facts, "no_pipelining"), Answered::Unknown, "{besides}");
    }
    // And so do turns of an event loop that has little to do.
    assert_eq!(answer(&uncounted(9.0, 20_000.0, &[]), "no_pipelining"), Answered::Unknown);
}

#[test]
fn what_a_replicas_user_may_not_do_is_no_clients_denial() {
    let after = lines(&[("total_commands_processed", 10_000.0), ("total_connections_received", 2_000.0)])
        + &command("get", 10_000, 10_000, 0, 0)
        + &command("psync", 0, 0, 2000, 0)
        + &command("replconf", 4000, 4000, 0, 0)
        + &errors("NOPERM", 2000);
    let facts = alone(server("6.2.14", &after));
    assert_eq!(answer(&facts, "acl_denials"), Answered::Absent);
    assert_eq!(answer(&facts, "connection_churn"), Answered::Absent, "each attempt is a connection");
}

#[test]
fn remedies_for_sockets_are_those_that_can_be_followed() {
    let mut facts = one_by_one(0.9, 60_000.0, 50, 60);
    assert!(!commands(&finding(&facts, "kernel_bound")).contains("bypass"), "its clients are elsewhere");
    assert!(commands(&finding(&facts, "kernel_bound")).contains("io-threads"), "its cores are not known");
    facts.nodes[0].sockets = seen(vec![peer("127.0.0.1", 50, 5, 100_000)]);
    facts.hosts = vec![Host { cpus: 2, ..machine(Process::default()) }];
    let all = commands(&finding(&facts, "kernel_bound"));
    assert!(all.contains("bypass") && !all.contains("io-threads"), "{all}");
    facts.hosts = vec![Host { cpus: 8, ..machine(Process::default()) }];
    assert!(commands(&finding(&facts, "kernel_bound")).contains("io-threads 4"));
    // The libraries that are there.
    let group =
        ClientGroup { host: "127.0.0.1".into(), library: "redis-py 5.0".into(), count: 50, ..ClientGroup::default() };
    facts.nodes[0].clients = seen(Clients { total: 50, listed: 50, groups: vec![group], ..Clients::default() });
    let all = commands(&finding(&facts, "kernel_bound"));
    assert!(all.contains("redis-py") && !all.contains("Jedis"), "{all}");
}

#[test]
fn through_a_proxy_connections_and_sockets_say_nothing() {
    let mut facts = one_by_one(0.4, 52_000.0, 4, 60);
    facts.through = Some("twemproxy 0.5".into());
    for rule in ["no_pipelining", "far_client", "packet_loss"] {
        assert_eq!(answer(&facts, rule), Answered::Unknown, "{rule}");
        assert!(text(&facts, rule).contains("twemproxy 0.5"), "{rule}");
    }
}
