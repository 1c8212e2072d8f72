//! Who follows whom: masters with their replicas below them.

use unslow_facts::{Facts, Node};
use unslow_topology::{ClusterNode, Role};
use unslow_units::{bytes, count};

use crate::table::{Cell, Column, Order, Row, Subject, Table, Tone};
use crate::{entry, view_of};

pub(crate) fn table(facts: &Facts, nodes: &[&Node]) -> Table {
    let columns = vec![
        Column::word("shard", 0, "a master, and its replicas below it"),
        Column::word("state", 0, "whether it answers, and its replication link is up"),
        Column::figure("slots", 1, "slots it owns"),
        Column::figure("ops/s", 2, "commands per second"),
        Column::figure("memory", 2, "used_memory"),
        Column::figure("epoch", 4, "config epoch"),
        Column::word("version", 3, "server version"),
        Column::word("id", 5, "first eight digits of the node ID"),
    ];
    let mut table = Table::new(columns, 0);
    let mut masters: Vec<&&Node> = nodes.iter().filter(|node| node.role != Role::Replica).collect();
    masters.sort_by_key(|node| &node.address);
    let (view, mut placed) = (view_of(facts), Vec::<&str>::new());
    for master in masters {
        placed.push(&master.address);
        table.rows.push(row(master, entry(master, view), placed.len(), false));
        for replica in nodes.iter().filter(|n| n.master.as_deref() == Some(&*master.address)) {
            placed.push(&replica.address);
            table.rows.push(row(replica, entry(replica, view), placed.len(), true));
        }
    }
    for lost in nodes.iter().filter(|n| !placed.contains(&n.address.as_str())).collect::<Vec<_>>() {
        table.rows.push(row(lost, entry(lost, view), table.rows.len() + 1, true));
    }
    let sentinels = facts.sentinels.len();
    table.note = (sentinels > 0).then(|| match sentinels {
        1 => "watched by 1 Sentinel".into(),
        n => format!("watched by {n} Sentinels"),
    });
    table
}

fn row(node: &Node, entry: Option<&ClusterNode>, place: usize, is_replica: bool) -> Row {
    let link = node.info().and_then(|info| info.get("master_link_status"));
    let state = match (&node.unreachable, link) {
        (Some(_), _) => "unreachable",
        (None, Some("down")) => "link down",
        (None, _) if node.last.is_none() => "no data yet",
        _ => "up",
    };
    let name = if is_replica { format!("  {}", node.address) } else { node.address.clone() };
    let id = node.node_id.as_deref().and_then(|id| id.get(..8)).unwrap_or_default();
    Row {
        subject: Subject::Node(node.address.clone()),
        tone: if matches!(state, "up" | "no data yet") { Tone::Plain } else { Tone::Bad },
        cells: vec![
            // In the order of the tree, largest first.
            Cell { order: Order::Number(-(place as f64)), ..Cell::word(name) },
            Cell::word(state),
            Cell::figure(entry.map(|v| v.slots.len() as f64), |n| format!("{n:.0}")),
            Cell::figure(node.ops(), count),
            Cell::figure(node.number("used_memory"), bytes),
            Cell::figure(entry.map(|v| v.config_epoch as f64), |n| format!("{n:.0}")),
            Cell::word(node.version_text()),
            Cell::word(id),
        ],
    }
}
