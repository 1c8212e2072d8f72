//! Servers: what each does, and how quickly it answers.

use std::collections::BTreeMap;

use unslow_facts::{Facts, Node};
use unslow_topology::Role;
use unslow_units::{bytes, count, percent, time_us};

use crate::table::{Cell, Column, Row, Subject, Table, Tone};
use crate::{entry, view_of};

pub(crate) fn table(facts: &Facts, nodes: &[&Node]) -> Table {
    let columns = vec![
        Column::word("server", 0, "its address"),
        Column::word("role", 2, "M master, R replica, S Sentinel, ? unknown"),
        Column::figure("ops/s", 0, "commands per second, excluding unslow's own"),
        Column::figure("user", 5, "user CPU of its main thread, as a share of a core"),
        Column::figure("sys", 5, "system CPU of its main thread, as a share of a core"),
        Column::figure("cpu", 1, "CPU of its main thread, as a share of a core"),
        Column::figure("cmds", 4, "share of a core spent executing commands, as the server reports it"),
        Column::figure("ping", 2, "median PING time"),
        Column::figure("worst", 1, "longest PING time"),
        Column::figure("memory", 2, "used_memory"),
        Column::figure("full", 6, "used_memory as a share of maxmemory"),
        Column::figure("clients", 3, "connections, excluding unslow's own"),
        Column::figure("lag", 4, "bytes of its master's stream that the replica has not acknowledged"),
        Column::figure("err/s", 3, "error replies per second"),
        Column::figure("net/s", 5, "bytes per second, in and out"),
        Column::figure("hits", 7, "hit rate: share of reads that found their key"),
        Column::figure("gone/s", 7, "keys evicted or expired per second"),
        Column::figure("slots", 8, "slots it owns"),
    ];
    let mut table = Table::new(columns, 2);
    let lags = lags(facts);
    let view = view_of(facts);
    let slots = |node: &Node| entry(node, view).map(|entry| entry.slots.len() as f64);
    table.rows.extend(nodes.iter().map(|node| row(node, lags.get(&node.address).copied(), slots(node))));
    table
}

/// What each replica has not acknowledged, as its master says in one INFO: two servers' INFOs are of different moments.
fn lags(facts: &Facts) -> BTreeMap<String, f64> {
    let of_master = |master: &Node| -> Vec<(String, f64)> {
        let written = master.number("master_repl_offset");
        let Some((written, info)) = written.zip(master.info()) else { return Vec::new() };
        let replicas = info.replicas().into_iter();
        let lag = |(ip, port, _, _, offset): (String, u16, String, u64, u64)| {
            (unslow_topology::join_host_port(&ip, port), (written - offset as f64).max(0.0))
        };
        replicas.map(lag).collect()
    };
    facts.nodes.iter().flat_map(of_master).collect()
}

fn row(node: &Node, lag: Option<f64>, slots: Option<f64>) -> Row {
    let cpu = node.cpu();
    let rtt = node.rtt.value();
    let us = |us: Option<u32>| Cell::figure(us.map(f64::from), time_us);
    let role = match node.role {
        Role::Master => "M",
        Role::Replica => "R",
        Role::Sentinel => "S",
        Role::Unknown => "?",
    };
    let memory = node.number("used_memory");
    let full = memory.zip(node.number("maxmemory").filter(|most| *most > 0.0)).map(|(used, most)| used / most);
    let errors = node.last.as_ref().filter(|_| node.window_s > 0.0).map(|_| {
        let all: u64 = node.errors().values().sum();
        all as f64 / node.window_s
    });
    let net = node.rate("total_net_input_bytes").zip(node.rate("total_net_output_bytes")).map(|(a, b)| a + b);
    let found = node.delta("keyspace_hits").zip(node.delta("keyspace_misses"));
    let gone = node.rate("evicted_keys").zip(node.rate("expired_keys")).map(|(a, b)| a + b);
    let unlinked = node.info().and_then(|info| info.get("master_link_status")) == Some("down");
    let ops = node.ops();
    Row {
        subject: Subject::Node(node.address.clone()),
        tone: match (node.unreachable.is_some() || unlinked, ops) {
            (true, _) => Tone::Bad,
            (false, Some(ops)) if ops >= 1.0 => Tone::Plain,
            _ => Tone::Faint,
        },
        cells: vec![
            Cell::word(node.address.as_str()),
            Cell::word(role),
            Cell::figure(ops, count),
            Cell::figure(cpu.map(|(user, _)| user), percent),
            Cell::figure(cpu.map(|(_, sys)| sys), percent),
            Cell::figure(cpu.map(|(user, sys)| user + sys), percent),
            Cell::figure(node.inside_share(), percent),
            us(rtt.map(|r| r.us_p50)),
            us(rtt.map(|r| r.us_max)),
            Cell::figure(memory, bytes),
            Cell::figure(full, percent),
            Cell::figure(node.other_clients(), count),
            Cell::figure(lag, bytes),
            Cell::figure(errors, count),
            Cell::figure(net, bytes),
            Cell::figure(found.filter(|(hits, misses)| hits + misses > 0.0).map(|(h, m)| h / (h + m)), percent),
            Cell::figure(gone, count),
            Cell::figure(slots, |n| format!("{n:.0}")),
        ],
    }
}
