//! A second look at the cluster at the end of a window: what nodes did not agree on at its start may be settled by
//! then.

use serde::{Deserialize, Serialize};
use unslow_topology::{ClusterNode, ClusterView};

/// CLUSTER NODES of a node at the end of the window, held against what it said at the start. In a large cluster a whole
/// second list from every node would double the facts, and it is nearly always the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaterView {
    /// The same nodes, roles, slots, epochs and marks of failure.
    Unchanged,
    /// Another list.
    Changed(ClusterView),
}

impl LaterView {
    /// Of the two lists.
    pub fn of(before: &ClusterView, now: ClusterView) -> LaterView {
        let is_known = |n: &ClusterNode| before.by_id(&n.id).is_some_and(|b| is_same(b, n));
        if before.nodes.len() == now.nodes.len() && now.nodes.iter().all(is_known) {
            LaterView::Unchanged
        } else {
            LaterView::Changed(now)
        }
    }
}

/// But for pings and pongs, whose times always differ.
fn is_same(a: &ClusterNode, b: &ClusterNode) -> bool {
    a.address == b.address
        && a.flags == b.flags
        && a.master_id == b.master_id
        && a.config_epoch == b.config_epoch
        && a.slots == b.slots
        && a.migrating == b.migrating
        && a.importing == b.importing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(pong_ms: u64, slots: &str) -> ClusterView {
        let id = "0".repeat(40);
        let line = format!("{id} 10.0.0.1:6379@16379 myself,master - 0 {pong_ms} 1 connected {slots}\n");
        ClusterView::parse(&line).unwrap()
    }

    #[test]
    fn only_what_gossip_settles_counts_as_a_change() {
        let before = view(1, "0-16383");
        assert_eq!(LaterView::of(&before, view(2, "0-16383")), LaterView::Unchanged);
        let now = view(1, "0-100");
        assert_eq!(LaterView::of(&before, now.clone()), LaterView::Changed(now));
        assert!(matches!(LaterView::of(&before, ClusterView::default()), LaterView::Changed(_)));
    }
}
