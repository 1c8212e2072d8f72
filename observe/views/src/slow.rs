//! What took long: entries of the slow logs and the servers' latency events; and what was large, where servers log it.

use unslow_facts::{Node, Side, civil_date};
use unslow_units::{bytes, count, time_us};

use crate::table::{Cell, Column, Order, Row, Subject, Table, Tone};

/// More than a person reads.
const ROWS_MAX: usize = 500;

pub(crate) fn table(nodes: &[&Node]) -> Table {
    let columns = vec![
        Column::word("when", 0, "time by the server's clock, in UTC"),
        Column::figure("took", 0, "execution time of the command, or duration of the event"),
        Column::word(
            "what",
            0,
            "the command, with its size where it was logged as large, or the latency event in brackets",
        ),
        Column::word("server", 1, "its address"),
        Column::figure("args", 3, "number of arguments, including the command name"),
        Column::word("client", 2, "the client that sent it"),
        Column::word("key", 4, "the first key, hashed unless --show-keys"),
    ];
    let mut table = Table::new(columns, 0);
    let mut missing = None;
    for node in nodes {
        missing = missing.or(node.slowlog.refused().map(|gap| gap.of("slow log").why));
        table.rows.extend(node.slowlog.value().into_iter().flatten().map(|entry| Row {
            subject: Subject::Node(node.address.clone()),
            cells: vec![
                when(entry.at_s),
                Cell::figure(Some(entry.us as f64), time_us),
                Cell::word(entry.command.as_str()),
                Cell::word(node.address.as_str()),
                Cell::figure(Some(f64::from(entry.args)), count),
                Cell::word(entry.client.as_str()),
                Cell::word(entry.key.clone().unwrap_or_default()),
            ],
            tone: Tone::Plain,
        }));
        table.rows.extend(node.large.value().into_iter().flatten().map(|entry| Row {
            subject: Subject::Node(node.address.clone()),
            cells: vec![
                when(entry.at_s),
                Cell::figure(None, time_us),
                Cell::word(format!(
                    "{} ({} of {})",
                    entry.command,
                    if entry.side == Side::Request { "request" } else { "reply" },
                    bytes(entry.bytes as f64)
                )),
                Cell::word(node.address.as_str()),
                Cell::figure(None, count),
                Cell::word(entry.client.as_str()),
                Cell::word(entry.key.clone().unwrap_or_default()),
            ],
            tone: Tone::Plain,
        }));
        for event in node.latency.value().into_iter().flatten() {
            table.rows.extend(event.history.iter().map(|(at_s, ms)| Row {
                subject: Subject::Node(node.address.clone()),
                cells: vec![
                    when(*at_s),
                    Cell::figure(Some(*ms as f64 * 1e3), time_us),
                    Cell::word(format!("[{}]", event.name)),
                    Cell::word(node.address.as_str()),
                    Cell::figure(None, count),
                    Cell::word(""),
                    Cell::word(""),
                ],
                tone: Tone::Plain,
            }));
        }
    }
    table.sort(0, false);
    table.rows.truncate(ROWS_MAX);
    table.note = missing.map(|why| format!("some servers are missing: {why}"));
    table
}

/// The newest first.
fn when(at_s: u64) -> Cell {
    let (_, month, day) = civil_date(at_s.saturating_mul(1000));
    let s = at_s % 86_400;
    let text = format!("{month:02}-{day:02} {:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
    Cell { text, order: Order::Number(at_s as f64) }
}
