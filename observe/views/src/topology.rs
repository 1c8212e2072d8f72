//! Who follows whom: masters with their replicas below them.

use unslow_facts::{Facts, Node};
use unslow_topology::{ClusterNode, Role, join_host_port};
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
        Column::word("replaced", 3, "the master it took over from, in this window or since its process began"),
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
        table.rows.push(row(master, replaced(master, nodes), entry(master, view), placed.len(), false));
        for replica in nodes.iter().filter(|n| n.master.as_deref() == Some(&*master.address)) {
            placed.push(&replica.address);
            table.rows.push(row(replica, None, entry(replica, view), placed.len(), true));
        }
    }
    for lost in nodes.iter().filter(|n| !placed.contains(&n.address.as_str())).collect::<Vec<_>>() {
        table.rows.push(row(lost, None, entry(lost, view), table.rows.len() + 1, true));
    }
    let sentinels = facts.sentinels.len();
    table.note = (sentinels > 0).then(|| match sentinels {
        1 => "watched by 1 Sentinel".into(),
        n => format!("watched by {n} Sentinels"),
    });
    table
}

/// The master whose place it took: the one it followed as the window began, or one that follows it now.
fn replaced(master: &Node, nodes: &[&Node]) -> Option<String> {
    let then = master.first.as_ref().map(|sample| &sample.info).filter(|info| info.role() == Some("slave"));
    if let Some((host, port)) = then.and_then(|info| Some((info.get("master_host")?, info.get("master_port")?))) {
        return master.is_master().then(|| join_host_port(host, port));
    }
    // What it had replicated stays as a second history when a replica becomes master; who was one has served replicas.
    let promoted = master.is_master() && master.number("second_repl_offset").is_some_and(|offset| offset > 0.0);
    let served = |node: &Node| {
        let syncs = ["sync_full", "sync_partial_ok"].map(|field| node.number(field).unwrap_or(0.0));
        syncs.iter().sum::<f64>() > 0.0
    };
    let mut followers = nodes.iter().filter(|node| node.master.as_deref() == Some(&*master.address));
    followers.find(|node| promoted && !node.is_master() && served(node)).map(|node| node.address.clone())
}

fn row(node: &Node, replaced: Option<String>, entry: Option<&ClusterNode>, place: usize, is_replica: bool) -> Row {
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
            Cell::word(replaced.unwrap_or_default()),
            Cell::figure(entry.map(|v| v.config_epoch as f64), |n| format!("{n:.0}")),
            Cell::word(node.version_text()),
            Cell::word(id),
        ],
    }
}

#[cfg(test)]
mod tests {
    use unslow_facts::Sample;
    use unslow_topology::Info;

    use super::*;

    fn sample(text: &str) -> Option<Sample> {
        Some(Sample { at_ms: 1, info: Info::parse(text) })
    }

    fn node(address: &str, role: Role, first: &str, last: &str) -> Node {
        Node { first: sample(first), last: sample(last), ..Node::new(address, role) }
    }

    #[test]
    fn a_new_master_names_the_one_it_took_over_from() {
        let slave = "role:slave\r\nmaster_host:10.0.0.1\r\nmaster_port:7000\r\n";
        let promoted = "role:master\r\nsecond_repl_offset:812\r\n";
        let winner = node("10.0.0.2:7000", Role::Master, slave, promoted);
        assert_eq!(replaced(&winner, &[&winner]).as_deref(), Some("10.0.0.1:7000"), "in this window");

        let winner = node("10.0.0.2:7000", Role::Master, promoted, promoted);
        let follower = |served: &str| {
            let info = format!("role:slave\r\nsync_full:{served}\r\n");
            Node { master: Some("10.0.0.2:7000".into()), ..node("10.0.0.1:7000", Role::Replica, &info, &info) }
        };
        let (was, never) = (follower("2"), follower("0"));
        assert_eq!(replaced(&winner, &[&winner, &was]).as_deref(), Some("10.0.0.1:7000"), "before it");
        assert_eq!(replaced(&winner, &[&winner, &never]), None, "a replica that was added later");
        let first = node("10.0.0.2:7000", Role::Master, "role:master\r\nsecond_repl_offset:-1\r\n", "role:master\r\n");
        assert_eq!(replaced(&first, &[&first, &was]), None, "it has always been the master");
    }
}
