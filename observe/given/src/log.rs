//! Lines of a server's log: Redis' and Valkey's own format, logfmt (Valkey 8.1+), syslog's, and either behind the
//! prefix of a collector.

use unslow_facts::{LogEvent, LogKind};

use crate::time::{Stamp, read_iso, read_stamp, read_syslog};

/// No more of a log is read: its end.
pub const MAX_LOG_BYTES: usize = 16 << 20;
/// So many events are kept, the newest.
const KEPT: usize = 256;
/// Lines of one kind that are closer than this are one event.
const TOGETHER_MS: u64 = 60_000;
/// A clock that is written without its zone differs from UTC by quarters of an hour, and a file's time from its last
/// line by little.
const QUARTER_MS: i64 = 15 * 60_000;
const WRITTEN_WITHIN_MS: i64 = 3000;
const FARTHEST_MS: i64 = 14 * 3_600_000;

/// What was read of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Events, the newest first.
    pub events: Vec<LogEvent>,
    /// Lines that are a server's.
    pub lines: u64,
    /// How far the log's clock is from UTC, in ms, where its times have no zone; None where they have one.
    pub offset_ms: Option<i64>,
    /// Whether that offset is known, by the time of the file, or UTC was assumed.
    pub offset_known: bool,
}

/// What each kind is known by.
const PHRASES: &[(LogKind, &[&str])] = &[
    (LogKind::Crash, &["BUG REPORT START", "crashed by signal", "Guru Meditation"]),
    (LogKind::OutOfMemory, &["Out Of Memory allocating"]),
    (
        LogKind::AofWriteFailed,
        &[
            "Error writing to the AOF file",
            "Short write while writing to the AOF file",
            "Can't persist AOF for fsync error",
        ],
    ),
    (
        LogKind::ForkFailed,
        &[
            "Can't save in background: fork",
            "append only file in background: fork",
            "Can't replicate in background: fork",
        ],
    ),
    (
        LogKind::SaveFailed,
        &[
            "Background saving error",
            "Background saving terminated by signal",
            "Background AOF rewrite terminated with error",
            "Background AOF rewrite terminated by signal",
            "Write error saving DB on disk",
            "Write error while saving DB to the disk",
            "Failed opening the RDB file",
            "Failed opening the temp RDB file",
        ],
    ),
    (LogKind::ClusterFail, &["Cluster state changed: fail"]),
    (LogKind::ClusterOk, &["Cluster state changed: ok"]),
    (LogKind::NodeFailed, &["as failing (quorum reached)", "FAIL message received from"]),
    (LogKind::ElectionDelayed, &["Start of election delayed"]),
    (LogKind::VoteGranted, &["Failover auth granted"]),
    (LogKind::VoteDenied, &["Failover auth denied"]),
    (LogKind::ElectionWon, &["Failover election won"]),
    (LogKind::MasterLost, &["Connection with master lost", "Connection with primary lost"]),
    (LogKind::FullResync, &["Partial resynchronization not possible", "Full resync requested by"]),
    (
        LogKind::ReplicaSync,
        &["MASTER <-> REPLICA sync started", "MASTER <-> SLAVE sync started", "PRIMARY <-> REPLICA sync started"],
    ),
    (LogKind::OutputBufferLimit, &["overcoming of output buffer limits"]),
    (LogKind::AofFsyncSlow, &["Asynchronous AOF fsync is taking too long"]),
    // Before 7.0 "Lua slow script detected".
    (LogKind::SlowScript, &["Slow script detected", "slow script detected"]),
    (LogKind::SaveStarted, &["Background saving started", "append only file rewriting started"]),
    (
        LogKind::SaveEnded,
        &["Background saving terminated with success", "Background AOF rewrite terminated with success"],
    ),
    (LogKind::CopyOnWrite, &["Fork CoW for", "memory used by copy-on-write"]),
    (LogKind::SecurityAttack, &["Possible SECURITY ATTACK"]),
    (LogKind::Overcommit, &["overcommit_memory is set to 0", "Memory overcommit must be enabled"]),
    (LogKind::Started, &["Ready to accept connections"]),
];

/// A line of a server.
struct Line<'a> {
    stamp: Stamp,
    pid: Option<u64>,
    message: &'a str,
}

/// What a log says. `written_ms` is when its file was last written, where that is known; `now_ms` gives the year to
/// lines without one.
pub fn read_log(text: &str, written_ms: Option<u64>, now_ms: u64) -> Log {
    let lines: Vec<Line> = end(text).lines().filter_map(|line| read_line(line, now_ms)).collect();
    let bare = lines.iter().rev().find(|line| !line.stamp.zoned);
    let known = bare.and_then(|line| offset(line.stamp.ms, written_ms?));
    let offset_ms = known.unwrap_or(0);
    let mut all: Vec<LogEvent> = Vec::new();
    for line in &lines {
        let Some(kind) = kind(line.message) else { continue };
        let shift = if line.stamp.zoned { 0 } else { offset_ms };
        let at_ms = line.stamp.ms.saturating_sub(shift).clamp(0, Stamp::LAST_MS) as u64;
        let near = |e: &&mut LogEvent| {
            e.kind == kind && e.pid == line.pid && at_ms >= e.at_ms && at_ms - e.at_ms <= TOGETHER_MS
        };
        // Among the newest alone: a log of any length is read in linear time.
        match all.iter_mut().rev().take(32).find(near) {
            Some(event) => (event.at_ms, event.count) = (at_ms, event.count + 1),
            None => all.push(LogEvent { kind, since_ms: at_ms, at_ms, count: 1, pid: line.pid }),
        }
    }
    all.sort_by_key(|e| std::cmp::Reverse(e.at_ms));
    all.truncate(KEPT);
    let (offset_ms, offset_known) = (bare.map(|_| offset_ms), known.is_some());
    Log { events: all, lines: lines.len() as u64, offset_ms, offset_known }
}

/// The end of a text, from the beginning of a line on.
fn end(text: &str) -> &str {
    let mut from = text.len().saturating_sub(MAX_LOG_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// How far the clock of a file's last line is from UTC.
fn offset(last_ms: i64, written_ms: u64) -> Option<i64> {
    let ahead = last_ms.saturating_sub(i64::try_from(written_ms).ok()?);
    if !(-FARTHEST_MS - QUARTER_MS..=FARTHEST_MS + QUARTER_MS).contains(&ahead) {
        return None;
    }
    let quarters = (ahead + QUARTER_MS / 2).div_euclid(QUARTER_MS) * QUARTER_MS;
    let fits = (ahead - quarters).abs() <= WRITTEN_WITHIN_MS && quarters.abs() <= FARTHEST_MS;
    (fits && is_zone(quarters / 60_000)).then_some(quarters)
}

/// Whether some place has this offset, in minutes. A log that was last written a quarter of an hour ago has none of
/// them.
fn is_zone(minutes: i64) -> bool {
    const ODD: [i64; 13] = [-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825];
    minutes % 60 == 0 || ODD.contains(&minutes)
}

fn kind(message: &str) -> Option<LogKind> {
    // SIGUSR1 (on Linux) is the server's own: it ends a save that it no longer needs, and counts none as failed.
    if message.trim_end().ends_with("terminated by signal 10") {
        return None;
    }
    PHRASES.iter().find(|(_, words)| words.iter().any(|w| message.contains(w))).map(|(kind, _)| *kind)
}

fn read_line(line: &str, now_ms: u64) -> Option<Line<'_>> {
    own_format(line, now_ms).or_else(|| logfmt(line, now_ms)).or_else(|| syslog(line, now_ms))
}

/// `12345:M 23 Nov 2026 19:03:59.123 * message`, wherever in the line it begins.
fn own_format(line: &str, now_ms: u64) -> Option<Line<'_>> {
    const ROLES: [&str; 4] = [":M ", ":S ", ":C ", ":X "];
    let (at, role) = ROLES.iter().filter_map(|role| Some((line.find(role)?, *role))).min()?;
    let before = &line[..at];
    let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let pid = before[at - digits..].parse().ok()?;
    let (stamp, rest) = read_stamp(&line[at + role.len()..], now_ms)?;
    let message = rest.strip_prefix(' ')?.strip_prefix(['.', '-', '*', '#'])?.strip_prefix(' ')?;
    Some(Line { stamp, pid: (role != ":C ").then_some(pid), message })
}

/// `pid=12345 role=primary timestamp="23 Nov 2026 19:03:59.123" level=notice message="..."`.
fn logfmt(line: &str, now_ms: u64) -> Option<Line<'_>> {
    let pid: u64 = value(line, "pid=")?.parse().ok()?;
    let written = value(line, "timestamp=")?;
    let stamp = match read_iso(written).or_else(|| Some(read_stamp(written, now_ms)?.0)) {
        Some(stamp) => stamp,
        None => Stamp { ms: written.parse::<i64>().ok().filter(|ms| (0..=Stamp::LAST_MS).contains(ms))?, zoned: true },
    };
    let message = &line[line.find("message=\"")? + "message=\"".len()..];
    let child = value(line, "role=").is_some_and(|role| role.starts_with("RDB"));
    Some(Line { stamp, pid: (!child).then_some(pid), message })
}

/// What stands behind `name=`, without its quotes.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = &line[line.find(name)? + name.len()..];
    rest.strip_prefix('"').map_or_else(|| rest.split(' ').next(), |quoted| quoted.split('"').next())
}

/// `Nov 23 19:03:59 host redis[12345]: message`, and the same with a time of RFC 3339.
fn syslog(line: &str, now_ms: u64) -> Option<Line<'_>> {
    let (head, message) = line.split_once("]: ")?;
    let (head, pid) = head.rsplit_once('[')?;
    let name = head.rsplit(' ').next()?;
    let is_server = ["redis", "valkey"].iter().any(|product| name.contains(product));
    let stamp = read_iso(head.split(' ').next()?).or_else(|| read_syslog(head, now_ms))?;
    is_server.then_some(Line { stamp, pid: Some(pid.parse().ok()?), message })
}
