//! E16 to E24: claims of single rules, compared with what the test knows of the server. `complexity.rs` checks the
//! lists of E17.

use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use unslow_client::Connection;
use unslow_engine::{Error, Shape, info};
use unslow_facts::{Facts, Lack};
use unslow_testkit::servers::{deployment, steady};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, slots, standalone, until};
use unslow_topology::slot_of;

use crate::load::{Load, application, call, fill, scripts, until_info};
use crate::run::{Run, doctor, settled};

// E16: errors and their shares.

/// Clients that connect, send greetings this server does not know, and run one command; beside them an ordinary
/// application.
fn greeting_clients(name: &str, greetings: &'static [&'static [&'static str]]) {
    let server = standalone(name);
    let (target, app) = (server.target(), application(&server.target()));
    let connecting = Load::start(&server.target(), 1, move |_| {
        let mut c = Connection::open(&target, &options(2))?;
        let refused = greetings.iter().filter(|greeting| c.call(greeting).is_err()).count();
        assert_eq!(refused, greetings.len(), "this server knows a greeting");
        c.call(&["GET", "k"])?;
        sleep(Duration::from_millis(20)); // their pace
        Ok(())
    });
    connecting.has_done(10);
    let url = server.url();
    let run = settled(&url, &["--no-host", "--window", "2s"]);
    assert!(!run.reports("error_flood"), "{name}: {run}");
    let only = settled(&url, &["--no-host", "--window", "2s", "--only", "error_flood"]);
    assert_eq!(only.answer(), "absent", "{name}: {only}");
    drop((connecting, app));
}

const SETINFO: &[&[&str]] =
    &[&["CLIENT", "SETINFO", "LIB-NAME", "redis-py"], &["CLIENT", "SETINFO", "LIB-VER", "6.4.0"]];

#[test]
fn setinfo_refused_by_older_servers_is_no_error_flood() {
    greeting_clients("redis-7.0", SETINFO);
    greeting_clients("redis-6.2", SETINFO);
}

#[test]
fn refused_maintenance_notifications_are_no_error_flood() {
    const MAINTENANCE: &[&[&str]] = &[&["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"]];
    greeting_clients("redis-7.0", MAINTENANCE);
    greeting_clients("valkey-9.1", MAINTENANCE);
}

/// The percentages in a text, written as `30 %`.
fn percentages(text: &str) -> Vec<f64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[1].starts_with('%'));
    pairs.filter_map(|pair| pair[0].trim_start_matches('(').parse().ok()).collect()
}

/// The first percentage in the rule's title is the true one.
#[track_caller]
fn assert_share(run: &Run, rule: &str, least: f64, most: f64) {
    let finding = run.finding(rule).unwrap_or_else(|| panic!("no {rule}: {run}"));
    let title = finding["title"].as_str().unwrap_or_default();
    let share = percentages(title).first().copied();
    assert!(share.is_some_and(|s| (least..=most).contains(&s)), "the true share is {least} to {most} %: {title}");
}

#[test]
fn three_failures_in_ten_commands_are_thirty_percent() {
    for name in ["redis-6.2", "redis-7.0", "valkey-9.1"] {
        let server = standalone(name);
        call(&server, &["SET", "text", "v"]);
        let load = Load::start(&server.target(), 1, |c| {
            let command = |n: u32| if n < 3 { vec!["LPUSH", "text", "v"] } else { vec!["GET", "text"] };
            c.pipeline(&(0..10).map(command).collect::<Vec<_>>())?;
            sleep(Duration::from_millis(5)); // its pace
            Ok(())
        });
        load.has_done(20);
        let run = settled(&server.url(), &["--no-host", "--window", "2s"]);
        drop(load);
        assert_share(&run, "error_flood", 29.0, 31.0);
    }
}

#[test]
fn two_redirects_in_three_commands_are_two_thirds() {
    let cluster = steady("redis-7.0");
    let own = slots::owner_of(&cluster, slot_of(b"{t2}"));
    let elsewhere = (0..).map(|i| format!("f{i}")).find(|k| slots::owner_of(&cluster, slot_of(k.as_bytes())) != own);
    let elsewhere = elsewhere.expect("a key of another node");
    let node = &cluster.nodes[own];
    let load = Load::start(&node.target(), 1, move |c| {
        let command = |n: u32| vec!["GET", if n.is_multiple_of(3) { "{t2}" } else { elsewhere.as_str() }];
        c.pipeline(&(0..9).map(command).collect::<Vec<_>>())?;
        sleep(Duration::from_millis(5)); // its pace
        Ok(())
    });
    load.has_done(20);
    let run = settled(&node.url(), &["--no-host", "--window", "2s"]);
    drop(load);
    assert_share(&run, "redirect_storm", 65.0, 68.0);
}

// E17: commands whose time grows with their arguments.

#[test]
fn large_mgets_are_told_with_the_number_of_their_keys() {
    let server = standalone("redis-7.0");
    let keys = 50_000;
    fill(&server, "k", keys, 100);
    let mget: Vec<String> = std::iter::once("MGET".to_string()).chain((0..keys).map(|i| format!("k:{i}"))).collect();
    let load = Load::start(&server.target(), 2, move |c| c.call(&mget).map(drop));
    load.has_done(5);
    let run = settled(&server.url(), &["--no-host", "--window", "3s"]);
    drop(load);
    let giant = run.finding("giant_commands").unwrap_or_else(|| panic!("{run}"));
    assert!(giant["title"].as_str().is_some_and(|t| t.contains("MGET with 50,000 arguments")), "{run}");
    assert!(run.finding("slow_command").is_none(), "{run}");
}

// E19: the backlog.

#[test]
fn full_syncs_cut_off_by_a_small_buffer_are_a_finding_of_their_own() {
    let pair = deployment("redis-7.0", Shape::MasterReplica { replicas: 1 }, &[]);
    let (master, replica) = (&pair.nodes[0], &pair.nodes[1]);
    fill(master, "k", 10_000, 2000);
    call(master, &["CONFIG", "SET", "client-output-buffer-limit", "replica 1mb 1mb 0"]);
    // A copy takes a second or more; meanwhile four megabytes are written.
    call(master, &["CONFIG", "SET", "rdb-key-save-delay", "100"]);
    let mut i = 0u32;
    let writes = Load::start(&master.target(), 1, move |c| {
        let value = "x".repeat(1000);
        let batch: Vec<Vec<String>> = (0..20)
            .map(|_| {
                i = (i + 1) % 1000;
                vec!["SET".into(), format!("w:{i}"), value.clone()]
            })
            .collect();
        c.pipeline(&batch)?;
        sleep(Duration::from_millis(5)); // its pace
        Ok(())
    });
    writes.has_done(20);
    call(replica, &["REPLICAOF", "NO", "ONE"]);
    call(replica, &["SET", "own", "history"]);
    call(replica, &["REPLICAOF", &master.ip, &master.port.to_string()]);
    until_info(master, "stats", "sync_full", |n| n.parse::<u64>().is_ok_and(|n| n >= 4));
    let run = settled(&master.url(), &["--no-host", "--window", "6s"]);
    drop(writes);
    assert_eq!(run.verdict(), "causes", "{run}");
    assert!(run.above_risk().contains(&"replica_buffer_kill"), "{run}");
    // With a backlog larger than the data set a full copy is the cheaper way.
    let info = info(&mut master.connect_with(&options(2)).expect("it answers"), "memory").expect("INFO");
    let most = info.number("used_memory_peak").expect("a number");
    for size in backlog_sizes(&run.json["findings"]) {
        assert!(size <= most, "a backlog of {size} bytes for a server that never used more than {most}: {run}");
    }
}

/// The sizes that remedies suggest for the backlog.
fn backlog_sizes(findings: &Value) -> Vec<f64> {
    let text = findings.to_string();
    text.split("repl-backlog-size ")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .collect()
}

// E20: distance.

#[test]
fn a_busy_server_on_loopback_is_not_far_and_loses_no_packets() {
    let server = standalone("redis-7.0");
    let load = scripts(&server, Duration::from_millis(20), 5);
    let run = doctor(&server.url(), &["--window", "2s"]);
    drop(load);
    assert!(!run.reports("far_client") && !run.reports("packet_loss"), "{run}");
    assert!(run.reports("long_script"), "{run}");
}

// E22: one stall is one finding.

#[test]
fn keys_inside_a_script_is_one_finding() {
    for name in ["redis-7.0", "valkey-9.1"] {
        let server = standalone(name);
        fill(&server, "k", 200_000, 8);
        let load = Load::start(&server.target(), 1, |c| {
            c.call(&["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", "none:*"])?;
            sleep(Duration::from_millis(10)); // its pace
            Ok(())
        });
        load.has_done(5);
        let run = settled(&server.url(), &["--no-host", "--window", "2s"]);
        drop(load);
        let mut above = run.above_risk();
        above.retain(|id| ["keys_command", "long_script", "slow_command"].contains(id));
        assert_eq!(above.len(), 1, "{name}: {run}");
    }
}

// E24: dead entries of CLUSTER NODES.

#[test]
fn dead_nodes_without_an_address_share_no_host() {
    let cluster = steady("redis-7.0");
    let node = &cluster.nodes[0];
    let path = node.dir().join("nodes.conf");
    node.kill();
    let text = std::fs::read_to_string(&path).expect("nodes.conf");
    // Two failed masters, each with a failed replica.
    let ghost = |n: u32, line: &str| format!("{:040x} :0@0 {line} disconnected\n", 0xdead_0000_u64 + u64::from(n));
    let ghosts: String = (0..2)
        .flat_map(|n| {
            let replica = format!("slave,fail,noaddr {:040x} 0 0 0", 0xdead_0000_u64 + u64::from(n));
            [ghost(n, "master,fail,noaddr - 0 0 0"), ghost(n + 10, &replica)]
        })
        .collect();
    std::fs::write(&path, text.replacen("vars ", &format!("{ghosts}vars "), 1)).expect("written");
    node.restart().expect("it starts again");
    until_ok("cluster_state:ok, and the dead nodes in CLUSTER NODES", || {
        let mut c = node.connect_with(&options(2))?;
        let state = c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default();
        let nodes = c.call(&["CLUSTER", "NODES"])?.text().unwrap_or_default();
        Ok::<_, Error>(state.contains("cluster_state:ok") && nodes.matches("noaddr").count() == 4)
    });
    let run = settled(&node.url(), &["--no-host"]);
    for rule in ["masters_share_host", "replica_shares_host", "node_unreachable", "slots_uncovered"] {
        assert!(!run.reports(rule), "{rule}: {run}");
    }
}

// What others wait behind slow commands.

/// They are asked for after the first INFO and before the last: they hold nearly all calls of commandstats, and no
/// others.
#[test]
fn histograms_of_a_window_hold_its_own_calls_from_7_0_on() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, lack) in [("valkey-9.1", None), ("redis-7.0", None), ("redis-6.2", Some(Lack::Version))] {
        let server = standalone(name);
        let load = Load::start(&server.target(), 1, |c| {
            c.call(&["EVAL", "return 1", "0"])?;
            sleep(Duration::from_millis(5)); // its pace
            Ok(())
        });
        load.has_done(50);
        let path = dir.path().join(format!("{name}.json")).display().to_string();
        let mut node = None;
        until("a diagnosis that asked all its questions", || {
            doctor(&server.url(), &["--no-host", "--save", &path]);
            let text = std::fs::read_to_string(&path).expect("saved");
            node = Facts::from_json(&text).expect("facts").nodes.pop();
            // On a busy machine PINGs become slower, and the rest is left out.
            node.as_ref().is_some_and(|n| !n.own.stopped_early && n.histograms.missing().map(|gap| gap.lack) == lack)
        });
        drop(load);
        let node = node.expect("a node");
        let held: u64 = node.histograms.value().into_iter().flat_map(|all| &all["eval"]).map(|range| range.calls).sum();
        let counted = node.commands()["eval"].calls;
        assert_eq!((held > 0, held <= counted), (lack.is_none(), true), "{name}: {held} of {counted} calls");
    }
}
