//! Facts for the tests of rules: built by hand, or recorded on real servers.

#![allow(dead_code, clippy::disallowed_methods)] // rules may not read files; their tests must

use std::path::PathBuf;

use unslow_doctor::{ALL, Answered, Finding, Report, Verdict, diagnose};
use unslow_facts::{Facts, Node, Sample, Seen};
use unslow_topology::{DeploymentKind, Info, Role};

/// When windows end in facts that are built by hand, unix time in ms.
pub const NOW_MS: u64 = 1_790_000_000_000;

/// Facts that a real server gave (tests/facts).
pub fn recorded(name: &str) -> Facts {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/facts/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Facts::from_json(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A node whose INFO was `before` at the start of a window of ten seconds and `after` at its end. Fields that are only
/// in `before` stay as they were.
pub fn node(address: &str, role: Role, before: &str, after: &str) -> Node {
    let first = Info::parse(before);
    let mut last = first.clone();
    last.0.extend(Info::parse(after).0);
    let at = |at_ms: u64, info: Info| Some(Sample { at_ms, info });
    Node { first: at(NOW_MS - 10_000, first), last: at(NOW_MS, last), window_s: 10.0, ..Node::new(address, role) }
}

/// What a probe saw.
pub fn seen<T>(value: T) -> Seen<T> {
    Seen::yes(value, "by hand", NOW_MS)
}

/// A deployment of these nodes.
pub fn deployment(kind: DeploymentKind, nodes: Vec<Node>) -> Facts {
    Facts { kind, nodes, at_ms: NOW_MS - 10_000, window_s: 10.0, ..Facts::of_nothing("redis://10.0.0.1:6379") }
}

/// What one rule answers.
pub fn answer(facts: &Facts, rule: &str) -> Answered {
    let rule = ALL.iter().find(|r| r.id == rule).unwrap_or_else(|| panic!("{rule} is no rule"));
    match (rule.check)(facts) {
        Verdict::NotHere => Answered::NotHere,
        Verdict::Absent(_) => Answered::Absent,
        Verdict::Present(_) => Answered::Present,
        Verdict::Unknown(_) => Answered::Unknown,
    }
}

/// The finding of one rule, which must be there.
pub fn finding(facts: &Facts, rule: &str) -> Finding {
    let report: Report = diagnose(facts, &[rule.to_string()]);
    let found = report.findings.iter().find(|f| f.id == rule).cloned();
    found.unwrap_or_else(|| panic!("{rule} is not there: {:?}", report.only))
}
