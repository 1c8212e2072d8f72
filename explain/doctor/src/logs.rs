//! What servers' logs say beside what was measured: as a section of the report, and as evidence of the findings they
//! belong to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_facts::{Facts, LogEvent, LogKind, Node};
use unslow_units::count;

use crate::Finding;

/// So many lines the report has, the newest.
const TOLD: usize = 50;
/// Before the window: a save, an election or a lost link shows for as long afterwards.
const BEFORE_MS: u64 = 15 * 60_000;
/// After its end: logs and samples have clocks of their own.
const AFTER_MS: u64 = 60_000;
/// Log lines that stand as evidence in one finding.
const EVIDENCE: usize = 3;

/// Lines of one kind in a server's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// What they tell.
    pub kind: LogKind,
    /// The last of them, unix time in ms.
    pub at_ms: u64,
    /// How many.
    pub count: u64,
    /// The server, where its process number is that of one server alone.
    #[serde(default)]
    pub server: Option<String>,
    /// The same for a person.
    pub text: String,
}

/// The section of the report, the newest first.
pub fn told(facts: &Facts) -> Vec<LogLine> {
    let mut all: Vec<LogLine> = facts.log_events.iter().map(|event| line(facts, event)).collect();
    all.sort_by_key(|line| std::cmp::Reverse(line.at_ms));
    all.truncate(TOLD);
    all
}

fn line(facts: &Facts, event: &LogEvent) -> LogLine {
    let server = server(facts, event).map(|node| node.address.clone());
    let times = if event.count > 1 {
        let over_s = (event.at_ms.saturating_sub(event.since_ms)).div_ceil(1000).max(1);
        format!(", {} times in {over_s} s", count(event.count as f64))
    } else {
        String::new()
    };
    let at = server.as_ref().map_or(String::new(), |address| format!(" ({address})"));
    let text = format!("{}{times}{at}", event.kind.text());
    LogLine { kind: event.kind, at_ms: event.at_ms, count: event.count, server, text }
}

/// The server whose process wrote it. In containers all may be process 1: then it is not known.
fn server<'a>(facts: &'a Facts, event: &LogEvent) -> Option<&'a Node> {
    let pid = event.pid? as f64;
    let mut fitting = facts.live().filter(|node| node.number("process_id") == Some(pid));
    fitting.next().filter(|_| fitting.next().is_none())
}

/// The kinds of lines that are about what a rule is about.
fn kinds(rule: &str) -> &'static [LogKind] {
    use LogKind::*;
    match rule {
        "aof_fsync_stall" => &[AofFsyncSlow, AofWriteFailed],
        "fork_stall" => &[SaveStarted, CopyOnWrite, ForkFailed],
        "save_too_often" => &[SaveStarted, SaveFailed],
        "saves_failing" => &[SaveFailed, ForkFailed, AofWriteFailed],
        "overcommit" => &[ForkFailed, Overcommit],
        "failover_flapping" | "node_timeout_margin" => {
            &[ElectionWon, NodeFailed, ClusterFail, ElectionDelayed, MasterLost]
        }
        "slots_uncovered" => &[ClusterFail, NodeFailed],
        "full_resync_loop" | "backlog_too_small" | "replica_buffer_kill" => {
            &[FullResync, OutputBufferLimit, MasterLost]
        }
        "slow_subscriber" | "normal_buffer_kill" => &[OutputBufferLimit],
        "long_script" => &[SlowScript],
        "out_of_memory" => &[OutOfMemory],
        "node_unreachable" => &[Crash, OutOfMemory, Started],
        _ => &[],
    }
}

/// Log lines of a rule's kinds near the window, or near the moment the finding is of, as its evidence.
pub fn beside(mut finding: Finding, facts: &Facts, rule: &str) -> Finding {
    let ends = facts.at_ms.saturating_add((facts.window_s.max(0.0) * 1000.0) as u64).saturating_add(AFTER_MS);
    let begins = finding.since.map_or(facts.at_ms, |since| since.min(facts.at_ms)).saturating_sub(BEFORE_MS);
    let near = |event: &&LogEvent| kinds(rule).contains(&event.kind) && (begins..=ends).contains(&event.at_ms);
    // A line of a server that the finding is not about says nothing for it.
    let of_others = |event: &LogEvent| {
        server(facts, event)
            .is_some_and(|node| !finding.subjects.is_empty() && !finding.subjects.contains(&node.address))
    };
    let lines: Vec<LogLine> = facts
        .log_events
        .iter()
        .filter(near)
        .filter(|event| !of_others(event))
        .take(EVIDENCE)
        .map(|event| line(facts, event))
        .collect();
    // Which lines are near is as uncertain as the zone of their clock.
    let assumed = facts.notes.iter().any(|note| note.contains("taken as UTC"));
    let source = if assumed { "the server's log, its times taken as UTC" } else { "the server's log" };
    for line in lines {
        finding = finding.saw_at(source, line.text, line.at_ms);
    }
    finding
}

#[cfg(test)]
mod tests {
    use unslow_topology::{Info, Role};

    use super::*;

    const NOW_MS: u64 = 1_790_000_000_000;

    fn event(kind: LogKind, before_window_s: u64, pid: u64) -> LogEvent {
        let at_ms = NOW_MS - before_window_s * 1000;
        LogEvent { kind, since_ms: at_ms - 5000, at_ms, count: 3, pid: Some(pid) }
    }

    fn node(address: &str, pid: u64) -> Node {
        let info = Info::parse(&format!("process_id:{pid}\r\n"));
        Node { last: Some(unslow_facts::Sample { at_ms: NOW_MS, info }), ..Node::new(address, Role::Master) }
    }

    fn facts(events: Vec<LogEvent>) -> Facts {
        let nodes = vec![node("10.0.0.1:6379", 7), node("10.0.0.2:6379", 8)];
        Facts { at_ms: NOW_MS, window_s: 10.0, nodes, log_events: events, ..Facts::of_nothing("redis://10.0.0.1") }
    }

    #[test]
    fn lines_of_the_kind_near_the_window_and_of_the_server_are_evidence() {
        let slow = |before_s, pid| event(LogKind::AofFsyncSlow, before_s, pid);
        for (events, expected) in [
            (vec![slow(60, 7)], 1),
            (vec![slow(60, 9)], 1),   // of a process that is not known
            (vec![slow(60, 8)], 0),   // of another server
            (vec![slow(3600, 7)], 0), // long ago
            (vec![event(LogKind::SlowScript, 60, 7)], 0),
            (vec![slow(1, 7), slow(2, 7), slow(3, 7), slow(4, 7)], 3),
        ] {
            let finding = Finding::new("x").on(["10.0.0.1:6379"]);
            let found = beside(finding, &facts(events.clone()), "aof_fsync_stall");
            assert_eq!(found.evidence.len(), expected, "{events:?}");
        }
        // What happened an hour before the window has its lines there.
        let past = Finding::new("x").past(NOW_MS - 3_600_000);
        let found = beside(past, &facts(vec![event(LogKind::ElectionWon, 3600, 7)]), "failover_flapping");
        assert_eq!(found.evidence[0].value, "a replica became master, 3 times in 5 s (10.0.0.1:6379)");
    }

    #[test]
    fn the_report_has_them_newest_first_and_bounded() {
        let events = (0..80).map(|n| event(LogKind::SaveStarted, 100 + (n * 37) % 80, 1)).collect();
        let lines = told(&facts(events));
        assert_eq!(lines.len(), TOLD);
        assert!(lines.is_sorted_by_key(|line| std::cmp::Reverse(line.at_ms)));
        assert!(lines.iter().all(|line| line.server.is_none()), "no server is process 1");
    }
}
