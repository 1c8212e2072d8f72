//! Logs as servers write them, and any bytes at all.
//!
//! The lines follow server.c, rdb.c, aof.c, replication.c, networking.c and cluster(_legacy).c of Redis 5.0 to 7.2 and
//! Valkey 8.1, and Valkey #1014 and #1022 for logfmt.

use proptest::prelude::*;
use unslow_facts::LogKind::{self, *};
use unslow_given::{Log, read_log};

/// 2026-11-23 19:03:59.123 UTC.
const NOW: u64 = 1_795_460_639_123;

fn read(text: &str) -> Log {
    read_log(text, None, NOW)
}

#[test]
fn every_kind_is_known_by_its_line() {
    for (message, kind) in [
        (
            "# Asynchronous AOF fsync is taking too long (disk is busy?). Writing the AOF buffer without waiting for \
             fsync to complete, this may slow down Redis.",
            AofFsyncSlow,
        ),
        ("# Failover auth granted to 5f1f (10.0.0.2:6379) for epoch 7", VoteGranted),
        ("# Failover auth denied to 5f1f: its master is up", VoteDenied),
        ("# Start of election delayed for 756 milliseconds (rank #0, offset 1234).", ElectionDelayed),
        ("# Failover election won: I'm the new master.", ElectionWon),
        ("* Marking node 5f1f (10.0.0.1:6379) as failing (quorum reached).", NodeFailed),
        ("* FAIL message received from 77aa about 5f1f", NodeFailed),
        ("# Cluster state changed: fail", ClusterFail),
        ("# Cluster state changed: ok", ClusterOk),
        (
            "# Client id=12 addr=10.0.0.9:51234 omem=300000000 scheduled to be closed ASAP for overcoming of output \
             buffer limits.",
            OutputBufferLimit,
        ),
        ("# Can't save in background: fork: Cannot allocate memory", ForkFailed),
        ("* Background saving started by pid 4711", SaveStarted),
        ("* Background saving terminated with success", SaveEnded),
        ("# Background saving error", SaveFailed),
        ("* Fork CoW for RDB: current 12 MB, peak 12 MB, average 6 MB", CopyOnWrite),
        ("* MASTER <-> REPLICA sync started", ReplicaSync),
        ("* Partial resynchronization not possible (no cached master)", FullResync),
        ("# Connection with master lost.", MasterLost),
        ("# WARNING overcommit_memory is set to 0! Background save may fail under low memory condition.", Overcommit),
        (
            "# Possible SECURITY ATTACK detected. It looks like somebody is sending POST or Host: commands to Redis.",
            SecurityAttack,
        ),
        ("# Slow script detected: still in execution after 5000 milliseconds.", SlowScript),
        ("# Lua slow script detected: still in execution after 5000 milliseconds.", SlowScript),
        ("# Background saving terminated by signal 9", SaveFailed),
        ("# Error writing to the AOF file: No space left on device", AofWriteFailed),
        ("# Out Of Memory allocating 1073741824 bytes!", OutOfMemory),
        ("# === REDIS BUG REPORT START: Cut & paste starting from here ===", Crash),
        ("* Ready to accept connections tcp", Started),
    ] {
        let log = read(&format!("4711:M 23 Nov 2026 19:03:59.123 {message}\n"));
        let seen: Vec<(LogKind, u64, Option<u64>)> = log.events.iter().map(|e| (e.kind, e.at_ms, e.pid)).collect();
        assert_eq!(seen, [(kind, NOW, Some(4711))], "{message}");
    }
}

#[test]
fn a_save_that_the_server_ended_itself_did_not_fail() {
    for what in ["Background saving", "Background AOF rewrite"] {
        let log = read(&format!("4711:M 23 Nov 2026 19:03:59.123 # {what} terminated by signal 10\n"));
        assert_eq!((log.lines, log.events.len()), (1, 0), "{what}");
    }
}

#[test]
fn every_format_is_read() {
    let message = "Cluster state changed: fail";
    for (line, pid) in [
        (format!("7:S 23 Nov 2026 19:03:59.123 # {message}"), Some(7)),
        (format!("7:S 23 Nov 19:03:59.123 # {message}"), Some(7)),
        (format!("7:C 23 Nov 2026 19:03:59.123 # {message}"), None),
        (format!("redis-1  | 7:M 23 Nov 2026 19:03:59.123 # {message}"), Some(7)),
        (
            format!("pid=7 role=primary timestamp=\"23 Nov 2026 19:03:59.123\" level=warning message=\"{message}\""),
            Some(7),
        ),
        (
            format!(
                "pid=7 role=primary timestamp=\"2026-11-23T20:03:59.123+01:00\" level=warning message=\"{message}\""
            ),
            Some(7),
        ),
        (format!("pid=7 role=RDB/AOF timestamp=\"1795460639123\" level=warning message=\"{message}\""), None),
        (format!("2026-11-23T19:03:59.123+00:00 db1 redis[7]: {message}"), Some(7)),
    ] {
        let log = read(&line);
        assert_eq!((log.lines, log.events.len()), (1, 1), "{line}");
        assert_eq!((log.events[0].at_ms, log.events[0].pid), (NOW, pid), "{line}");
    }
    // Syslog has whole seconds.
    let log = read(&format!("Nov 23 19:03:59 db1 valkey-server[7]: {message}"));
    assert_eq!((log.events[0].at_ms, log.events[0].pid), (NOW - 123, Some(7)));
    for other in
        ["hello", "", "Nov 23 19:03:59 db1 sshd[7]: Cluster state changed: fail", "7:M 99 Nov 2026 19:03:59.123 # x"]
    {
        assert_eq!(read(other), Log::default(), "{other}");
    }
}

#[test]
fn lines_that_come_together_are_one_event_and_the_newest_stands_first() {
    let line = |time: &str| format!("7:M 23 Nov 2026 {time} * Asynchronous AOF fsync is taking too long\n");
    let log = read(&["18:00:00.000", "18:00:30.000", "18:01:20.000", "18:30:00.000"].map(line).concat());
    let counts: Vec<u64> = log.events.iter().map(|e| e.count).collect();
    assert_eq!((counts, log.lines), (vec![1, 3], 4));
    assert_eq!(log.events[1].at_ms - log.events[1].since_ms, 80_000);
    let many: String = (0..1000).map(|n| format!("{n}:M 23 Nov 2026 18:00:00.000 # Slow script detected\n")).collect();
    assert_eq!(read(&many).events.len(), 256);
}

#[test]
fn a_clock_without_a_zone_is_utc_unless_the_files_time_tells() {
    let line = "7:M 23 Nov 2026 21:03:59.123 # Slow script detected\n";
    let hours = 3_600_000;
    let assumed = read(line);
    assert_eq!((assumed.offset_ms, assumed.offset_known, assumed.events[0].at_ms), (Some(0), false, NOW + 2 * hours));
    let known = read_log(line, Some(NOW + 800), NOW);
    assert_eq!((known.offset_ms, known.offset_known, known.events[0].at_ms), (Some(2 * hours as i64), true, NOW));
    // Written two minutes after the last line, or copied later: it tells nothing.
    let copied = read_log(line, Some(NOW + 120_000), NOW);
    assert_eq!((copied.offset_ms, copied.offset_known), (Some(0), false));
    // Nor does a last line of a quarter of an hour before: no place has such a clock.
    let idle = read_log(line, Some(NOW + 2 * hours + 15 * 60_000), NOW);
    assert_eq!((idle.offset_ms, idle.offset_known), (Some(0), false));
    let zoned =
        "pid=7 role=primary timestamp=\"2026-11-23T19:03:59.123Z\" level=warning message=\"Slow script detected\"";
    assert_eq!(read_log(zoned, Some(NOW), NOW).offset_ms, None);
}

proptest! {
    #[test]
    fn any_text_gives_events_and_no_panic(lines in proptest::collection::vec("([0-9]{0,3}:[MSCX] )?[0-9a-zA-Z:. \
        \\[\\]=\"+TZ-]{0,60}\\PC{0,20}", 0..20), written in any::<u64>(), now in any::<u64>()) {
        let log = read_log(&lines.join("\n"), Some(written), now);
        prop_assert!(log.events.iter().all(|e| e.count > 0 && e.since_ms <= e.at_ms));
    }
}
