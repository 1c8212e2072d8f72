//! Facts that are made by hand, for the tests inside rule files.

use unslow_facts::{Facts, Node, Sample};
use unslow_topology::{DeploymentKind, Info, Role};

use crate::{Finding, Verdict};

/// When windows end, unix time in ms.
pub const NOW_MS: u64 = 1_790_000_000_000;

/// A node whose INFO was `before` at the start of a window of ten seconds and has `after` besides at its end.
pub fn node_at(address: &str, before: &str, after: &str) -> Node {
    let first = Info::parse(before);
    let mut last = first.clone();
    last.0.extend(Info::parse(after).0);
    let role = if first.role() == Some("slave") { Role::Replica } else { Role::Master };
    let at = |at_ms: u64, info: Info| Some(Sample { at_ms, info });
    Node { first: at(NOW_MS - 10_000, first), last: at(NOW_MS, last), window_s: 10.0, ..Node::new(address, role) }
}

/// A master with its replicas, without a cluster or Sentinels.
pub fn replicated(nodes: Vec<Node>) -> Facts {
    of(DeploymentKind::MasterReplica, nodes)
}

/// A deployment of these nodes.
pub fn of(kind: DeploymentKind, nodes: Vec<Node>) -> Facts {
    Facts { kind, nodes, at_ms: NOW_MS - 10_000, window_s: 10.0, ..Facts::of_nothing("redis://10.0.0.1:6379") }
}

/// The finding, which must be there.
pub fn said(verdict: Verdict) -> Finding {
    match verdict {
        Verdict::Present(finding) => *finding,
        other => panic!("a finding was expected: {other:?}"),
    }
}

/// The kind of an answer.
pub fn answer(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::NotHere => "not here",
        Verdict::Absent(_) => "absent",
        Verdict::Present(_) => "present",
        Verdict::Unknown(_) => "unknown",
    }
}
