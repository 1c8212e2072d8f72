//! Clients: groups that look alike, and single connections that stand out.

use std::collections::BTreeMap;

use unslow_facts::{ClientGroup, Node};
use unslow_units::{bytes, count, time_rough_s, time_us};

use crate::table::{Cell, Column, Row, Subject, Table, Tone};

#[derive(Default)]
struct Group {
    connections: u64,
    young: u64,
    idle: u64,
    commands: BTreeMap<String, u64>,
    /// The longest of the servers that can tell, in us.
    rtt_us: Option<u32>,
    nodes: u32,
}

/// With `command` only those that sent it last.
pub(crate) fn table(nodes: &[&Node], command: Option<&str>) -> Table {
    let columns = vec![
        Column::word("client", 0, "its address"),
        Column::word("library", 1, "library name and version from CLIENT SETINFO (7.2+)"),
        Column::word("name", 3, "connection name from CLIENT SETNAME"),
        Column::figure("conns", 0, "connections to all servers shown"),
        Column::figure("new", 4, "connections younger than 2 s"),
        Column::figure("idle", 4, "connections idle for over an hour"),
        Column::word("commands", 2, "most common last commands"),
        Column::figure("age", 6, "age (single connections only)"),
        Column::figure("output", 5, "output buffer: bytes not yet read (single connections only)"),
        Column::figure("input", 6, "input buffer: bytes of incomplete requests (single connections only)"),
        Column::figure("rtt", 3, "median round trip of its connections now, by the kernel of a server's own machine"),
        Column::figure("servers", 6, "servers it is connected to"),
    ];
    let mut table = Table::new(columns, 3);
    let mut groups: BTreeMap<(&str, &str, &str), Group> = BTreeMap::new();
    let (mut missing, mut sampled) = (None, false);
    for node in nodes {
        let Some(clients) = node.clients.value() else {
            missing = missing.or(node.clients.missing().map(|gap| gap.of("clients").why));
            continue;
        };
        sampled |= clients.sampled;
        let sent = |of_node: &&ClientGroup| {
            command.is_none_or(|name| of_node.commands.keys().any(|sent| sent.eq_ignore_ascii_case(name)))
        };
        for of_node in clients.groups.iter().filter(sent) {
            let group = groups.entry((&of_node.host, &of_node.library, &of_node.name)).or_default();
            group.connections += of_node.count;
            group.young += of_node.young;
            group.idle += of_node.idle_hour;
            group.nodes += 1;
            group.rtt_us = group.rtt_us.max(rtt_us(node, &of_node.host));
            of_node.commands.iter().for_each(|(name, n)| *group.commands.entry(name.clone()).or_default() += n);
        }
    }
    table.rows.extend(groups.into_iter().map(|((host, library, name), group)| group.row(host, library, name)));
    for node in nodes {
        let rows = node.clients.value().into_iter().flat_map(|clients| &clients.notable);
        let rows = rows.filter(|client| command.is_none_or(|name| client.command.eq_ignore_ascii_case(name)));
        table.rows.extend(rows.map(|client| Row {
            subject: Subject::Node(node.address.clone()),
            cells: vec![
                Cell::word(client.address.as_str()),
                Cell::word(client.library.as_str()),
                Cell::word(client.name.as_str()),
                Cell::figure(Some(1.0), count),
                Cell::figure(None, count),
                Cell::figure(None, count),
                Cell::word(client.command.as_str()),
                Cell::figure(Some(client.age_s as f64), time_rough_s),
                Cell::figure(Some(client.output_bytes as f64), bytes),
                Cell::figure(Some(client.query_bytes as f64), bytes),
                Cell::figure(rtt_us(node, host_of(&client.address)).map(f64::from), time_us),
                Cell::figure(Some(1.0), count),
            ],
            tone: Tone::Bad,
        }));
    }
    table.note = match (missing, sampled) {
        (Some(why), _) => Some(format!("some servers are missing: {why}")),
        (None, true) => Some("on busy servers, a sample of the connections".into()),
        (None, false) => None,
    };
    table
}

/// Of a server's connections with a peer, where its kernel was asked.
fn rtt_us(node: &Node, host: &str) -> Option<u32> {
    let peers = node.sockets.value()?;
    peers.iter().find(|peer| peer.host == host && peer.sockets > 0).map(|peer| peer.rtt_us_p50)
}

/// `10.0.0.1` of `10.0.0.1:50312`, `::1` of `[::1]:50312`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

impl Group {
    fn row(&self, host: &str, library: &str, name: &str) -> Row {
        let mut commands: Vec<(&String, &u64)> = self.commands.iter().collect();
        commands.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let names: Vec<&str> = commands.iter().take(3).map(|(name, _)| name.as_str()).collect();
        let some = |n: u64| Some(n as f64).filter(|n| *n > 0.0);
        Row {
            subject: Subject::Other,
            cells: vec![
                Cell::word(host),
                Cell::word(library),
                Cell::word(name),
                Cell::figure(Some(self.connections as f64), count),
                Cell::figure(some(self.young), count),
                Cell::figure(some(self.idle), count),
                Cell::word(names.join(" ")),
                Cell::figure(None, count),
                Cell::figure(None, bytes),
                Cell::figure(None, bytes),
                Cell::figure(self.rtt_us.map(f64::from), time_us),
                Cell::figure(Some(f64::from(self.nodes)), count),
            ],
            tone: Tone::Plain,
        }
    }
}
