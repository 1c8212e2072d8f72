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
        Column::word("role", 2, "M master, R replica, ? not known"),
        Column::figure("ops/s", 0, "commands a second, unslow's own taken off"),
        Column::figure("user", 5, "share of a core its main thread used in its own code"),
        Column::figure("sys", 5, "share of a core its main thread used in the kernel"),
        Column::figure("cpu", 1, "share of a core its main thread used"),
        Column::figure("cmds", 4, "share of a core inside commands, by the server's own clock"),
        Column::figure("ping", 2, "half of the PINGs took at most this long"),
        Column::figure("worst", 1, "the longest PING"),
        Column::figure("memory", 2, "used_memory"),
        Column::figure("full", 6, "used_memory of maxmemory"),
        Column::figure("clients", 3, "connections that are not unslow's"),
        Column::figure("lag", 4, "bytes a replica has not received of its master's stream"),
        Column::figure("err/s", 3, "errors answered a second"),
        Column::figure("net/s", 5, "bytes in and out a second"),
        Column::figure("hits", 7, "reads that found their key"),
        Column::figure("gone/s", 7, "keys evicted or expired a second"),
        Column::figure("slots", 8, "slots it owns"),
    ];
    let mut table = Table::new(columns, 2);
    // What a master has written, for its replicas' lag.
    let offsets: BTreeMap<&str, f64> =
        facts.nodes.iter().filter_map(|n| Some((n.address.as_str(), n.number("master_repl_offset")?))).collect();
    let view = view_of(facts);
    let slots = |node: &Node| entry(node, view).map(|entry| entry.slots.len() as f64);
    table.rows.extend(nodes.iter().map(|node| row(node, &offsets, slots(node))));
    table
}

fn row(node: &Node, offsets: &BTreeMap<&str, f64>, slots: Option<f64>) -> Row {
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
    let lag = node.master.as_deref().and_then(|master| offsets.get(master)).zip(node.number("slave_repl_offset"));
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
            Cell::figure(lag.map(|(master, own)| (master - own).max(0.0)), bytes),
            Cell::figure(errors, count),
            Cell::figure(net, bytes),
            Cell::figure(found.filter(|(hits, misses)| hits + misses > 0.0).map(|(h, m)| h / (h + m)), percent),
            Cell::figure(gone, count),
            Cell::figure(slots, |n| format!("{n:.0}")),
        ],
    }
}
