//! Rules about a server and its disk: facts by hand, each with its look-alikes.

mod common;
#[path = "common/hand.rs"]
mod hand;

use common::{NOW_MS, answer, finding, seen};
use hand::{alone, command, commands, errors, lines, machine, rtt, server, text};
use unslow_doctor::{Answered, Confidence, Currency, Finding, Severity, diagnose};
use unslow_facts::{
    ClientGroup, Clients, Disk, Facts, Gap, Host, Lack, LatencyEvent, Node, Process, Seen, Storage, StorageState,
};

/// These settings and no others.
fn settings(all: &[(&str, &str)]) -> Seen<std::collections::BTreeMap<String, String>> {
    seen(all.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
}

/// Writes fields into both samples, as they were at the start and at the end.
fn both(node: &mut Node, fields: &[(&str, &str, &str)]) {
    for (name, before, after) in fields {
        node.first.as_mut().unwrap().info.0.insert(name.to_string(), before.to_string());
        node.last.as_mut().unwrap().info.0.insert(name.to_string(), after.to_string());
    }
}

/// A server under this policy in whose window the event loop turned for `turning_s` of ten seconds, with 1 s of CPU and
/// 500 writes.
fn synced(policy: &str, turning_s: f64) -> Node {
    let after = lines(&[
        ("total_commands_processed", 1000.0),
        ("used_cpu_user_main_thread", 0.4),
        ("used_cpu_sys_main_thread", 0.6),
    ]) + &command("set", 500, 1000, 0, 0)
        + &command("get", 500, 500, 0, 0);
    let mut node = server("7.2.4", &after);
    let turned = format!("{:.0}", turning_s * 1e6);
    both(
        &mut node,
        &[
            ("aof_enabled", "1", "1"),
            ("eventloop_duration_sum", "0", turned.as_str()),
            ("eventloop_cycles", "0", "2000"),
            ("rdb_changes_since_last_save", "100", "600"),
        ],
    );
    node.config = settings(&[("appendfsync", policy), ("latency-monitor-threshold", "0")]);
    node.rtt = rtt(60, 4000, 12_000);
    node
}

#[test]
fn what_always_costs_is_the_time_in_the_event_loop_without_cpu() {
    let node = synced("always", 7.0);
    let found = finding(&alone(node.clone()), "fsync_always");
    // 6 s of 10 for 500 syncs: 12 ms each. Half of the commands write.
    assert!((found.impact.value - (0.6 * 12.0 / 2.0 + 0.5 * 12.0)).abs() < 0.01, "{:?}", found.impact);
    assert_eq!((found.impact.currency, found.confidence), (Currency::Latency, Confidence::Likely));
    assert!(commands(&found).contains("redis-cli -h 10.0.0.1 -p 6379 CONFIG SET appendfsync everysec"));
    assert!(found.remedies.iter().all(|r| !r.exact), "durability is given up by choice only: {:?}", found.remedies);
    // The latency monitor timed a sync in the window.
    let mut timed = node;
    let at_s = NOW_MS / 1000 - 3;
    let event = LatencyEvent {
        name: "aof-fsync-always".into(),
        last_at_s: at_s,
        last_ms: 300,
        max_ms: 300,
        history: vec![(at_s, 300)],
    };
    timed.latency = seen(vec![event]);
    let facts = alone(timed);
    assert_eq!(finding(&facts, "fsync_always").confidence, Confidence::Proven);
    // A single long sync is its consequence and not told beside it.
    let report = diagnose(&facts, &["fsync_always".into(), "aof_fsync_stall".into()]);
    let ids: Vec<&str> = report.findings.iter().map(|f| f.id.as_str()).collect();
    assert_eq!(ids, ["fsync_always"]);
    assert_eq!(report.findings[0].chain[0].id, "aof_fsync_stall");
}

#[test]
fn what_looks_like_always_is_told_apart() {
    let is = |node: Node| answer(&alone(node), "fsync_always");
    assert_eq!(is(synced("everysec", 7.0)), Answered::Absent);
    // A disk that syncs at once, and a main thread that is busy with commands: 0.3 s of 1.3 s.
    assert_eq!(is(synced("always", 1.3)), Answered::Absent);
    let mut reads = synced("always", 7.0);
    both(&mut reads, &[("rdb_changes_since_last_save", "100", "100")]);
    assert_eq!(is(reads), Answered::Absent);
    let mut off = synced("always", 7.0);
    both(&mut off, &[("aof_enabled", "0", "0")]);
    assert_eq!(is(off), Answered::NotHere);
    // It waits for a processor and not for the disk.
    let process = Process { run_delay_share: Some(0.58), ..Process::default() };
    let facts = Facts { hosts: vec![machine(process)], ..alone(synced("always", 7.0)) };
    assert_eq!(answer(&facts, "fsync_always"), Answered::Absent);
}

#[test]
fn always_is_unknown_where_neither_the_setting_nor_the_wait_is_seen() {
    let mut denied = synced("always", 7.0);
    denied.config = Seen::No(Gap::new(Lack::Rights, "CONFIG GET is denied to this user", ""));
    assert_eq!(answer(&alone(denied), "fsync_always"), Answered::Unknown);
    let mut old = synced("always", 7.0);
    for sample in [&mut old.first, &mut old.last] {
        sample.as_mut().unwrap().info.0.retain(|field, _| !field.starts_with("eventloop_"));
    }
    assert_eq!(answer(&alone(old.clone()), "fsync_always"), Answered::Unknown, "no PINGs either");
    // A disk so slow that every PING meets a sync, and few are answered: the kernel opens connections meanwhile.
    let mut slow = old.clone();
    slow.pings = (0..15).map(|i| (i * 660, 140_000 + i * 2_000)).collect();
    (slow.connect_us, slow.window_s) = (Some(60), 4.0);
    let here = |node: &Node, delay: f64| {
        let process = Process { run_delay_share: Some(delay), ..Process::default() };
        Facts { hosts: vec![machine(process)], ..alone(node.clone()) }
    };
    assert_eq!(answer(&here(&slow, 0.01), "fsync_always"), Answered::Present);
    assert_eq!(answer(&here(&slow, 0.5), "fsync_always"), Answered::Unknown, "it waits for a processor");
    assert_eq!(answer(&alone(slow.clone()), "fsync_always"), Answered::Unknown, "its machine was not seen");
    slow.window_s = 10.0;
    assert_eq!(answer(&here(&slow, 0.01), "fsync_always"), Answered::Unknown, "most of the time no PING");
    // Before 7.2 PINGs tell: most of them meet a sync.
    old.pings = (0..40).map(|i| (i * 250, if i < 10 { 80 } else { 9080 })).collect();
    let found = finding(&alone(old.clone()), "fsync_always");
    assert!((found.impact.value - 6.75).abs() < 0.01 && found.confidence == Confidence::Likely, "{:?}", found.impact);
    // Single late ones are no habit.
    old.pings = (0..40).map(|i| (i * 250, if i > 35 { 9080 } else { 80 })).collect();
    assert_eq!(answer(&alone(old), "fsync_always"), Answered::Absent);
}

/// A server of 80 MB whose last snapshot failed, in ten seconds of which it refused this many of a thousand commands.
fn unsaved(refused: u64) -> Node {
    let after = lines(&[("total_commands_processed", (1000 - refused) as f64)])
        + &command("get", 1000 - refused, 1000, 0, 0)
        + &command("set", 0, 0, refused, 0)
        + &if refused > 0 { errors("MISCONF", refused) } else { String::new() };
    let mut node = server("7.0.15", &after);
    both(&mut node, &[("rdb_last_bgsave_status", "err", "err"), ("rdb_changes_since_last_save", "7", "7")]);
    node.config = settings(&[("save", "3600 1"), ("stop-writes-on-bgsave-error", "yes"), ("appendfsync", "everysec")]);
    node
}

/// The server on a machine with this file system and this much memory.
fn stored(node: Node, free_bytes: u64, state: StorageState) -> Facts {
    let storage = Storage { device: Some("sda".into()), free_bytes, size_bytes: 100 << 30, state };
    let host = Host {
        overcommit: Some(1),
        memory_bytes: Some(16 << 30),
        memory_available_bytes: Some(8 << 30),
        ..machine(Process { storage: Some(storage), ..Process::default() })
    };
    Facts { hosts: vec![host], ..alone(node) }
}

#[test]
fn refused_writes_are_told_beneath_the_save_that_failed() {
    let facts = alone(unsaved(300));
    let report = diagnose(&facts, &["saves_failing".into(), "error_flood".into()]);
    let [found] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((found.id.as_str(), found.chain[0].id.as_str()), ("saves_failing", "error_flood"));
    let (currency, severity) = (found.impact.currency, found.severity);
    assert_eq!((currency, severity), (Currency::Availability, Severity::Critical));
    assert!(
        (found.impact.value - 86400.0 * 0.3).abs() < 1.0 && found.title.contains("MISCONF x 300"),
        "{}",
        found.title
    );
    // Nothing was refused yet: the next write is.
    let quiet = finding(&alone(unsaved(0)), "saves_failing");
    assert_eq!((quiet.impact.currency, quiet.severity), (Currency::Risk, Severity::High));
    assert!(commands(&quiet).contains("CONFIG SET stop-writes-on-bgsave-error no"), "{}", commands(&quiet));
    // A server that saves by hand only refuses nothing.
    let mut by_hand = unsaved(0);
    by_hand.config = settings(&[("save", ""), ("stop-writes-on-bgsave-error", "yes")]);
    let by_hand = finding(&alone(by_hand), "saves_failing");
    assert_eq!(by_hand.severity, Severity::Risk);
    assert!(!commands(&by_hand).contains("CONFIG SET"), "{}", commands(&by_hand));
}

#[test]
fn why_a_save_fails_is_read_on_the_machine() {
    let of = |facts: &Facts| -> Finding { finding(facts, "saves_failing") };
    let full = of(&stored(unsaved(300), 1 << 20, StorageState::Usable));
    assert!(full.title.contains("1.05 MB are free") && commands(&full).contains("df -h"), "{}", full.title);
    let removed = of(&stored(unsaved(300), 50 << 30, StorageState::Removed));
    // The directory cannot be changed by command from 7.0 on.
    assert!(removed.title.contains("removed") && !commands(&removed).contains("CONFIG SET dir"), "{}", removed.title);
    let only = of(&stored(unsaved(300), 50 << 30, StorageState::ReadOnly));
    assert!(commands(&only).contains("remount,rw"), "{}", commands(&only));
    let mut fork = stored(unsaved(300), 50 << 30, StorageState::Usable);
    fork.hosts[0].overcommit = Some(0);
    fork.hosts[0].memory_available_bytes = Some(10 << 20);
    let fork = of(&fork);
    assert!(commands(&fork).contains("vm.overcommit_memory=1"), "{}", commands(&fork));
    let unseen = of(&stored(unsaved(300), 50 << 30, StorageState::Usable));
    assert!(commands(&unseen).contains("CONFIG GET logfile"), "{}", commands(&unseen));
}

#[test]
fn saves_that_work_are_ruled_out_and_unseen_ones_are_not() {
    let well = alone(server("7.0.15", ""));
    assert_eq!(answer(&well, "saves_failing"), Answered::Absent);
    assert!(text(&well, "saves_failing").contains("1 nodes"));
    let mut mute = well;
    mute.nodes[0].last.as_mut().unwrap().info.0.clear();
    assert_eq!(answer(&mute, "saves_failing"), Answered::Unknown);
}

/// A server of this version whose writes stand still while this many of its eight clients are blocked.
fn held_back(version: &str, blocked: &str, fields: &[(&str, &str, &str)]) -> Node {
    let after = command("get", 5000, 5000, 0, 0);
    let mut node = server(version, &after);
    both(
        &mut node,
        &[
            ("connected_clients", "9", "9"),
            ("blocked_clients", blocked, blocked),
            ("rdb_changes_since_last_save", "7", "7"),
            ("master_failover_state", "no-failover", "no-failover"),
        ],
    );
    both(&mut node, fields);
    node.clients = seen(clients("set"));
    node.rtt = rtt(60, 120, 480);
    node
}

/// Eight clients whose last command is this.
fn clients(command: &str) -> Clients {
    let group = ClientGroup { count: 8, commands: [(command.to_string(), 8)].into(), ..ClientGroup::default() };
    Clients { total: 9, listed: 8, groups: vec![group], ..Clients::default() }
}

#[test]
fn a_pause_is_named_where_the_server_says_so() {
    let by_command = [
        ("paused_actions", "write", "write"),
        ("paused_reason", "client_pause", "client_pause"),
        ("paused_timeout_milliseconds", "67000", "57000"),
    ];
    let found = finding(&alone(held_back("8.1.0", "6", &by_command)), "paused");
    assert!((found.impact.value - 86400.0 * 0.75).abs() < 1.0, "{:?}", found.impact);
    assert!(found.title.contains("CLIENT PAUSE") && found.title.contains("57 s"), "{}", found.title);
    assert_eq!(found.confidence, Confidence::Proven);
    assert!(commands(&found).contains("CLIENT UNPAUSE") && found.remedies.iter().all(|r| !r.exact));
    // No write has come yet.
    let quiet = finding(&alone(held_back("8.1.0", "0", &by_command)), "paused");
    assert_eq!((quiet.impact.currency, quiet.severity), (Currency::Risk, Severity::High));
    // It began in the window: with little of it left it is a moment of a takeover.
    let began = |left| {
        [
            ("paused_actions", "none", "write"),
            ("paused_reason", "none", "client_pause"),
            ("paused_timeout_milliseconds", "0", left),
        ]
    };
    let during = |left| answer(&alone(held_back("8.1.0", "6", &began(left))), "paused");
    assert_eq!((during("200"), during("57000")), (Answered::Absent, Answered::Present));
    // A failover pauses for a moment, as it should; through the whole window it is stuck.
    let state = |before| [("master_failover_state", before, "waiting-for-sync"), ("paused_actions", "none", "none")];
    let is = |node| answer(&alone(node), "paused");
    assert_eq!(is(held_back("8.1.0", "6", &state("no-failover"))), Answered::Absent);
    let stuck = finding(&alone(held_back("8.1.0", "6", &state("waiting-for-sync"))), "paused");
    assert!(commands(&stuck).contains("FAILOVER ABORT"), "{}", commands(&stuck));
    let migrates = [("paused_actions", "none", "write"), ("paused_reason", "none", "slot_migration_in_progress")];
    assert_eq!(is(held_back("9.1.0", "6", &migrates)), Answered::Absent);
    assert_eq!(is(held_back("8.1.0", "6", &[("paused_actions", "none", "none")])), Answered::Absent);
}

#[test]
fn a_pause_is_inferred_only_where_nothing_else_explains_blocked_clients() {
    let is = |node: Node| answer(&alone(node), "paused");
    let found = finding(&alone(held_back("7.0.15", "6", &[])), "paused");
    assert_eq!(found.confidence, Confidence::Likely);
    // They wait for an element, as they mean to.
    let mut waits = held_back("7.0.15", "6", &[]);
    waits.clients = seen(clients("blpop"));
    assert_eq!(is(waits), Answered::Absent);
    // Keys change: writes go through.
    assert_ne!(is(held_back("7.0.15", "6", &[("rdb_changes_since_last_save", "7", "900")])), Answered::Present);
    // Modules block clients as they like: those of Redis 8 in commands that are known, any other in whatever it has.
    let with = |module: &str, command: &str| {
        let field = format!("module:name={module}");
        let mut node = held_back("8.10.2", "6", &[(&field, "ver=1", "ver=1")]);
        node.clients = seen(clients(command));
        is(node)
    };
    assert_eq!(with("vectorset", "set"), Answered::Present);
    assert_eq!((with("vectorset", "vsim"), with("search", "FT.SEARCH")), (Answered::Unknown, Answered::Unknown));
    assert_eq!(with("ours", "set"), Answered::Unknown);
    // Facts of before there was a field for each: others may have been there.
    assert_eq!(is(held_back("8.10.2", "6", &[("module", "name=search", "name=search")])), Answered::Unknown);
    // Of a sample the others were not seen.
    let mut sampled = held_back("7.0.15", "6", &[]);
    sampled.clients = seen(Clients { sampled: true, ..clients("set") });
    assert_eq!(is(sampled), Answered::Unknown);
    assert_eq!(is(held_back("7.0.15", "0", &[])), Answered::Absent);
    let mut mute = held_back("7.0.15", "6", &[]);
    mute.last.as_mut().unwrap().info.0.remove("blocked_clients");
    assert_eq!(is(mute), Answered::Unknown);
}

/// A server with an AOF on a machine whose disk did this.
fn on_disk(write_await_ms: f64, busy_share: f64) -> Facts {
    let mut node = server("7.0.15", "aof_delayed_fsync:3\r\n");
    both(&mut node, &[("aof_enabled", "1", "1"), ("aof_base_size", "0", "40000000")]);
    node.config = settings(&[("appendfsync", "everysec"), ("save", "")]);
    let mut facts = stored(node, 50 << 30, StorageState::Usable);
    facts.hosts[0].disks = vec![Disk { name: "sda".into(), write_await_ms, busy_share }];
    facts
}

#[test]
fn a_slow_disk_is_the_cause_of_late_syncs_and_no_finding_above_risk_by_itself() {
    let facts = on_disk(45.0, 0.97);
    assert_eq!(finding(&facts, "disk_slow").severity, Severity::Risk);
    let report = diagnose(&facts, &["disk_slow".into(), "aof_fsync_stall".into()]);
    let [found] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((found.id.as_str(), found.chain[0].id.as_str()), ("disk_slow", "aof_fsync_stall"));
    assert_eq!(found.impact.currency, Currency::Latency);
    // A few late writes on a disk that is idle, and a busy one that is quick.
    for (await_ms, busy) in [(45.0, 0.2), (2.0, 1.0)] {
        assert_eq!(answer(&on_disk(await_ms, busy), "disk_slow"), Answered::Absent);
    }
    // Another device is slow.
    let mut other = on_disk(45.0, 0.97);
    other.hosts[0].disks[0].name = "sdb".into();
    assert_eq!(answer(&other, "disk_slow"), Answered::Absent);
    let mut hidden = on_disk(45.0, 0.97);
    hidden.hosts[0].processes[0].storage = None;
    assert_eq!(answer(&hidden, "disk_slow"), Answered::Unknown);
    hidden.hosts.clear();
    assert_eq!(answer(&hidden, "disk_slow"), Answered::Unknown);
    assert_eq!(answer(&alone(server("7.0.15", "")), "disk_slow"), Answered::NotHere);
}

#[test]
fn room_for_the_next_save_is_compared_with_what_it_writes() {
    let is = |facts: &Facts| answer(facts, "disk_full_soon");
    let saving = |free: u64| {
        let mut node = server("7.0.15", "used_memory_dataset:70000000\r\n");
        node.config = settings(&[("save", "3600 1"), ("stop-writes-on-bgsave-error", "yes")]);
        stored(node, free, StorageState::Usable)
    };
    assert_eq!(is(&saving(40_000_000)), Answered::Absent);
    let found = finding(&saving(20_000_000), "disk_full_soon");
    assert_eq!(found.severity, Severity::Risk);
    assert!(found.title.contains("20 MB of disk left") && found.title.contains("35 MB"), "{}", found.title);
    // What fails already is told by the other rule.
    let failed = stored(unsaved(0), 1 << 20, StorageState::Usable);
    assert_eq!(is(&failed), Answered::NotHere);
    let mut never = saving(1000);
    never.nodes[0].config = settings(&[("save", "")]);
    assert_eq!(is(&never), Answered::NotHere);
    let mut unseen = saving(1000);
    unseen.hosts.clear();
    assert_eq!(is(&unseen), Answered::Unknown);
    let mut denied = saving(1000);
    denied.nodes[0].config = Seen::No(Gap::new(Lack::Rights, "CONFIG GET is denied to this user", ""));
    assert_eq!(is(&denied), Answered::Unknown);
}

#[test]
fn aof_rewrites_are_a_habit_or_one_of_them() {
    let rewriting = |before: &str, after: &str, percentage: &str| {
        let mut node = server("7.0.15", "");
        both(
            &mut node,
            &[("aof_enabled", "1", "1"), ("aof_rewrites", before, after), ("aof_base_size", "9", "2000000")],
        );
        node.config = settings(&[
            ("appendfsync", "everysec"),
            ("auto-aof-rewrite-percentage", percentage),
            ("auto-aof-rewrite-min-size", "1048576"),
        ]);
        alone(node)
    };
    let found = finding(&rewriting("5", "11", "10"), "aof_rewrite_storm");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Capacity, Confidence::Proven));
    let all = commands(&found);
    assert!(
        all.contains("auto-aof-rewrite-percentage 100") && all.contains("auto-aof-rewrite-min-size 67108864"),
        "{all}"
    );
    assert_eq!(found.remedies[0].rollback, "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET auto-aof-rewrite-percentage 10");
    let usual = finding(&rewriting("5", "11", "100"), "aof_rewrite_storm");
    assert!(!commands(&usual).contains("percentage 100"), "{}", commands(&usual));
    assert_eq!(answer(&rewriting("5", "6", "10"), "aof_rewrite_storm"), Answered::Absent);
    // 90,000 s old: more than one in two minutes all that time.
    assert_eq!(finding(&rewriting("900", "900", "10"), "aof_rewrite_storm").confidence, Confidence::Likely);
    let mut old = rewriting("5", "11", "10");
    old.nodes[0].last.as_mut().unwrap().info.0.remove("aof_rewrites");
    assert_eq!(answer(&old, "aof_rewrite_storm"), Answered::Unknown);
    assert_eq!(answer(&alone(server("7.0.15", "")), "aof_rewrite_storm"), Answered::NotHere);
}

/// Two servers on one machine that save as these say, at the start and at the end of the window.
fn two_savers(one: (&str, &str), other: (&str, &str)) -> Facts {
    let mut first = server("7.0.15", "");
    let mut second = first.clone();
    second.address = "10.0.0.1:6380".into();
    for (node, (before, after)) in [(&mut first, one), (&mut second, other)] {
        both(node, &[("rdb_bgsave_in_progress", before, after), ("sync_full", "0", "0")]);
        node.config = settings(&[("save", "3600 1")]);
    }
    let mut facts = alone(first);
    facts.nodes.push(second);
    facts
}

#[test]
fn errors_that_no_failed_save_makes_are_a_finding_of_their_own() {
    let mut node = unsaved(10);
    let wrong = command("lpush", 400, 400, 0, 400) + &errors("WRONGTYPE", 400);
    node.last.as_mut().unwrap().info.0.extend(unslow_topology::Info::parse(&wrong).0);
    let report = diagnose(&alone(node), &["saves_failing".into(), "error_flood".into()]);
    let mut ids: Vec<&str> = report.findings.iter().map(|f| f.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["error_flood", "saves_failing"], "{:?}", report.findings);
}

#[test]
fn saves_collide_where_two_servers_of_a_machine_save_through_the_window() {
    let is = |facts: &Facts| answer(facts, "saves_collide");
    let facts = two_savers(("1", "1"), ("1", "1"));
    let found = finding(&facts, "saves_collide");
    assert_eq!((found.severity, found.subjects.len()), (Severity::Risk, 2));
    assert!(commands(&found).contains("-p 6380 CONFIG SET save \"\"") && found.remedies.iter().all(|r| !r.exact));
    let mut busy = facts.clone();
    for node in &mut busy.nodes {
        both(node, &[("used_cpu_user_children", "0", "6")]);
    }
    // One of the two would save anyway.
    assert!((finding(&busy, "saves_collide").impact.value - 0.6).abs() < 1e-9);
    assert_eq!(is(&two_savers(("1", "1"), ("0", "1"))), Answered::Absent);
    // A copy for a replica.
    let mut copies = facts.clone();
    both(&mut copies.nodes[0], &[("sync_full", "0", "1")]);
    assert_eq!(is(&copies), Answered::Absent);
    let mut apart = facts.clone();
    apart.nodes[1].address = "10.0.0.2:6379".into();
    assert_eq!(is(&apart), Answered::NotHere);
    let mut mute = facts;
    mute.nodes.iter_mut().for_each(|n| n.last.as_mut().unwrap().info.0.clear());
    assert_eq!(is(&mute), Answered::Unknown);
}

#[test]
fn a_chatty_log_is_a_risk_with_its_way_back() {
    let logs = |level: &str, connections: f64| {
        let mut node = server("7.0.15", &lines(&[("total_connections_received", connections)]));
        node.config = settings(&[("loglevel", level)]);
        alone(node)
    };
    let found = finding(&logs("debug", 0.0), "log_level");
    assert!(found.severity == Severity::Risk && found.remedies[0].exact, "{found:?}");
    assert!(found.remedies[0].rollback.ends_with("CONFIG SET loglevel debug"));
    assert_eq!(answer(&logs("verbose", 500.0), "log_level"), Answered::Present);
    assert_eq!(answer(&logs("verbose", 5.0), "log_level"), Answered::Absent);
    assert_eq!(answer(&logs("notice", 5000.0), "log_level"), Answered::Absent);
    assert_eq!(answer(&alone(server("7.0.15", "")), "log_level"), Answered::Unknown);
}

#[test]
fn notifications_are_for_nobody_only_where_none_subscribed_and_some_are_due() {
    let publishes = |flags: &str, patterns: &str| {
        let mut node = server("7.0.15", "");
        both(
            &mut node,
            &[
                ("pubsub_channels", "0", "0"),
                ("pubsub_patterns", patterns, "0"),
                ("rdb_changes_since_last_save", "0", "20000"),
                ("expired_keys", "0", "30"),
            ],
        );
        node.config = settings(&[("notify-keyspace-events", flags)]);
        alone(node)
    };
    let is = |facts: &Facts| answer(facts, "notifications_for_nobody");
    let found = finding(&publishes("AKE", "0"), "notifications_for_nobody");
    assert!(found.title.contains("2,000 keyspace events a second"), "{}", found.title);
    assert!(found.severity == Severity::Risk && found.remedies[0].rollback.ends_with("notify-keyspace-events 'AKE'"));
    // Somebody listened when the window began; expired keys alone are few; without K or E nothing is sent.
    for (flags, patterns) in [("AKE", "1"), ("Ex", "0"), ("A", "0"), ("", "0")] {
        assert_eq!(is(&publishes(flags, patterns)), Answered::Absent, "{flags} {patterns}");
    }
    // Lists alone are switched on, and no command changed one.
    assert_eq!(is(&publishes("KEl", "0")), Answered::Absent);
    let mut unseen = publishes("AKE", "0");
    unseen.nodes[0].last.as_mut().unwrap().info.0.remove("pubsub_patterns");
    assert_eq!(is(&unseen), Answered::Unknown);
    assert_eq!(is(&alone(server("7.0.15", ""))), Answered::Unknown);
}

#[test]
fn two_starts_in_ten_minutes_are_a_loop_and_one_is_not() {
    let started = |was_up: &str, after: &str| {
        let mut node = server("7.0.15", "");
        both(&mut node, &[("run_id", "aaaaaaaaaa", after), ("uptime_in_seconds", was_up, "3")]);
        node.pings = vec![(0, 200), (3000, 200), (5000, 200), (9000, 200)];
        alone(node)
    };
    let is = |facts: &Facts| answer(facts, "loading_loop");
    let found = finding(&started("73", "bbbbbbbbbb"), "loading_loop");
    // Up for 73 s and 7 s of the window; away for 4 s.
    assert!((found.impact.value - 86400.0 * 4.0 / 80.0).abs() < 1.0, "{:?}", found.impact);
    assert_eq!(is(&started("90000", "bbbbbbbbbb")), Answered::Absent);
    assert_eq!(is(&started("73", "aaaaaaaaaa")), Answered::Absent);
    let mut mute = started("73", "bbbbbbbbbb");
    mute.nodes[0].last.as_mut().unwrap().info.0.remove("run_id");
    assert_eq!(is(&mute), Answered::Unknown);
}
