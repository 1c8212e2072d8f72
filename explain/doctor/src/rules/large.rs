//! The large requests and replies that a server has logged, as evidence for what their bytes did. Not a rule: several
//! rules use it.
//!
//! Valkey keeps them from 8.1 on, those of a megabyte and more unless it is set otherwise (COMMANDLOG).

use unslow_facts::{LargeEntry, Node, Side};
use unslow_units::bytes;

use crate::Finding;
use crate::measure::{begun_s, is_ours, logged_ms};

/// How many are shown.
const SHOWN: usize = 2;

/// Those of the window that went this way, the largest first; ours are left out.
fn of_window(node: &Node, side: Side) -> Vec<&LargeEntry> {
    let all = node.large.value().into_iter().flatten();
    let within = |e: &&LargeEntry| e.side == side && e.at_s > begun_s(node) && !is_ours(&e.client_name);
    let mut entries: Vec<&LargeEntry> = all.filter(within).collect();
    entries.sort_by_key(|e| std::cmp::Reverse((e.bytes, e.at_s)));
    entries
}

/// The largest of the window, in bytes.
pub fn largest(node: &Node, side: Side) -> Option<u64> {
    of_window(node, side).first().map(|entry| entry.bytes)
}

/// What was largest in the window, who sent it or asked for it, and which key it was about.
pub fn shown(mut finding: Finding, node: &Node, side: Side) -> Finding {
    let (log, way) = match side {
        Side::Request => ("COMMANDLOG GET 32 large-request", "from"),
        Side::Reply => ("COMMANDLOG GET 32 large-reply", "to"),
    };
    for entry in of_window(node, side).into_iter().take(SHOWN) {
        let key = entry.key.as_ref().map_or(String::new(), |key| format!(" {key}"));
        let name = if entry.client_name.is_empty() { String::new() } else { format!(" ({})", entry.client_name) };
        let value = format!("{}{key}: {} {way} {}{name}", entry.command, bytes(entry.bytes as f64), entry.client);
        finding = finding.saw_then(node, log, value, logged_ms(node, entry.at_s));
    }
    finding
}

#[cfg(test)]
mod tests {
    use unslow_facts::Seen;

    use super::super::made::{NOW_MS, node_at};
    use super::*;

    #[test]
    fn the_largest_of_the_window_are_shown_and_not_ours() {
        let mut node = node_at("10.0.0.1:6379", "redis_version:7.2.4\r\n", "");
        let entry = |id: u64, ago_s: u64, side: Side, bytes: u64, name: &str| LargeEntry {
            id,
            at_s: NOW_MS / 1000 - ago_s,
            side,
            bytes,
            command: "HGETALL".into(),
            key: Some("key#1f".into()),
            client: format!("10.0.0.7:{id}"),
            client_name: name.into(),
        };
        let value = vec![
            entry(1, 2, Side::Reply, 3_000_000, ""),
            entry(2, 3, Side::Reply, 9_000_000, "shop"),
            entry(3, 1, Side::Reply, 2_000_000, ""),
            entry(4, 1, Side::Reply, 90_000_000, "unslow"),
            entry(5, 3600, Side::Reply, 80_000_000, ""),
            entry(6, 1, Side::Request, 70_000_000, ""),
        ];
        node.large = Seen::yes(value, String::new(), NOW_MS);
        let seen = |side| {
            let found = shown(Finding::new("much is sent"), &node, side);
            found.evidence.into_iter().map(|e| e.value).collect::<Vec<_>>()
        };
        let replies = ["HGETALL key#1f: 9 MB to 10.0.0.7:2 (shop)", "HGETALL key#1f: 3 MB to 10.0.0.7:1"];
        assert_eq!(seen(Side::Reply), replies);
        assert_eq!(seen(Side::Request), ["HGETALL key#1f: 70 MB from 10.0.0.7:6"]);
    }
}
