//! CLUSTER NODES and CLUSTER INFO as each node sees them.

use std::collections::BTreeMap;

use unslow_client::{Error, ErrorKind};
use unslow_facts::{Gap, Lack, LaterView, Node, Seen};
use unslow_topology::ClusterView;

use crate::ask::{Ask, seen};

/// Before 6.2 CLUSTER NODES walks every slot for every node: 7 ms at 300 nodes. Beyond this many nodes it is not
/// asked again of every one of them.
const OLD_NODES_MAX: u64 = 60;

pub fn look(ask: &mut Ask, node: &mut Node, level: (u32, u32)) {
    let info = ask.call(&["CLUSTER", "INFO"]).map(|v| {
        let text = v.text().unwrap_or_default();
        text.lines().filter_map(|l| l.trim_end().split_once(':')).map(|(k, v)| (k.to_string(), v.to_string())).collect()
    });
    node.cluster_info = seen(info, "CLUSTER INFO");
    let known: u64 = node
        .cluster_info
        .value()
        .and_then(|i: &BTreeMap<String, String>| i.get("cluster_known_nodes")?.parse().ok())
        .unwrap_or(0);
    if level < (6, 2) && known > OLD_NODES_MAX {
        node.cluster = Seen::No(Gap::new(
            Lack::Version,
            format!("CLUSTER NODES costs milliseconds here: {known} nodes on a server before 6.2"),
            "it was asked once, by discovery; upgrade to 6.2 or later to see every node's view",
        ));
        return;
    }
    node.cluster = seen(nodes(ask), NODES);
}

/// At the end of the window, of a node that was asked at its start: it costs the same again.
pub fn again(ask: &mut Ask, before: &ClusterView) -> Seen<LaterView> {
    seen(nodes(ask).map(|now| LaterView::of(before, now)), NODES)
}

const NODES: &str = "CLUSTER NODES";

fn nodes(ask: &mut Ask) -> Result<ClusterView, Error> {
    let reply = ask.call(&["CLUSTER", "NODES"])?;
    ClusterView::parse(&reply.text().unwrap_or_default()).map_err(|e| Error::new(ErrorKind::Reply, e.to_string()))
}
