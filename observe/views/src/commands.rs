//! Commands: how often, how long, and what each takes of the main threads.

use std::collections::BTreeMap;

use unslow_facts::{Node, TimeRange};
use unslow_units::{count, percent, time_us};

use crate::table::{Cell, Column, Row, Subject, Table, Tone};

#[derive(Default)]
struct Sum {
    calls: f64,
    us: f64,
    /// Seconds of all servers' windows: what the time inside it is a share of.
    window_s: f64,
    calls_per_s: f64,
    failed_per_s: f64,
    rejected_per_s: f64,
    nodes: u32,
    ranges: BTreeMap<u64, u64>,
}

pub(crate) fn table(nodes: &[&Node]) -> Table {
    let columns = vec![
        Column::word("command", 0, "as named in commandstats"),
        Column::figure("calls/s", 0, "across all servers shown, excluding unslow's own"),
        Column::figure("mean", 1, "mean time per call, by the server's clock"),
        Column::figure("share", 1, "share of main-thread time on the servers that ran it"),
        Column::figure("p50", 3, "median over the last minute (7.0+)"),
        Column::figure("p99", 2, "99th percentile over the last minute (7.0+)"),
        Column::figure("failed/s", 3, "calls that ran and returned an error (6.2+)"),
        Column::figure("rejected/s", 4, "calls rejected before they ran (6.2+)"),
        Column::figure("servers", 5, "servers that ran it"),
    ];
    let mut table = Table::new(columns, 3);
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for node in nodes.iter().filter(|node| node.window_s > 0.0) {
        let counted = node.histograms.value();
        let mut stats = (*node.foreign_commands()).clone();
        for (name, rejected) in rejected(node) {
            stats.entry(name).or_default().rejected = rejected;
        }
        for (name, stat) in stats.into_iter().filter(|(_, stat)| stat.calls + stat.rejected > 0) {
            let ranges = counted.and_then(|all| all.get(&name));
            let sum = sums.entry(name).or_default();
            sum.calls += stat.calls as f64;
            sum.us += stat.usec as f64;
            sum.window_s += node.window_s;
            sum.calls_per_s += stat.calls as f64 / node.window_s;
            sum.failed_per_s += stat.failed as f64 / node.window_s;
            sum.rejected_per_s += stat.rejected as f64 / node.window_s;
            sum.nodes += 1;
            for TimeRange { up_to_us, calls } in ranges.into_iter().flatten() {
                let of_range = sum.ranges.entry(*up_to_us).or_default();
                *of_range = of_range.saturating_add(*calls);
            }
        }
    }
    table.rows.extend(sums.into_iter().map(|(name, sum)| row(name, &sum)));
    table
}

fn row(name: String, sum: &Sum) -> Row {
    let some = |n: f64| Some(n).filter(|n| *n > 0.0);
    Row {
        cells: vec![
            Cell::word(name.as_str()),
            Cell::figure(Some(sum.calls_per_s), count),
            Cell::figure((sum.calls > 0.0).then(|| sum.us / sum.calls), time_us),
            Cell::figure((sum.window_s > 0.0).then(|| sum.us / 1e6 / sum.window_s), percent),
            Cell::figure(quantile(&sum.ranges, 0.5), time_us),
            Cell::figure(quantile(&sum.ranges, 0.99), time_us),
            Cell::figure(some(sum.failed_per_s), count),
            Cell::figure(some(sum.rejected_per_s), count),
            Cell::figure(Some(f64::from(sum.nodes)), |n| format!("{n:.0}")),
        ],
        subject: Subject::Command(name),
        tone: Tone::Plain,
    }
}

/// Calls that were refused before they were executed: where all of them were, the server counts no call.
fn rejected(node: &Node) -> Vec<(String, u64)> {
    let (Some(first), Some(last)) = (&node.first, &node.last) else { return Vec::new() };
    let changed = last.info.command_stats_since(&first.info);
    let grown = changed.map(|(name, then, now)| (name.to_string(), now.rejected.saturating_sub(then.rejected)));
    grown.filter(|(_, rejected)| *rejected > 0).collect()
}

/// The upper end of the range that holds it.
fn quantile(ranges: &BTreeMap<u64, u64>, share: f64) -> Option<f64> {
    let all = ranges.values().fold(0u64, |sum, calls| sum.saturating_add(*calls));
    let mut left = (all as f64 * share).ceil().max(1.0) as u64;
    for (up_to_us, calls) in ranges {
        if *calls >= left {
            return Some(*up_to_us as f64);
        }
        left -= calls;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_end_of_its_range() {
        let ranges = BTreeMap::from([(10, 98), (1_000, 1), (9_000, 1)]);
        assert_eq!(quantile(&ranges, 0.5), Some(10.0));
        assert_eq!(quantile(&ranges, 0.99), Some(1_000.0));
        assert_eq!(quantile(&ranges, 1.0), Some(9_000.0));
        assert_eq!(quantile(&BTreeMap::new(), 0.5), None);
    }
}
