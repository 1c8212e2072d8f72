//! What a watcher tells clients on channels of the deployment itself.
//!
//! `__cluster__:moved` carries `slot ip:port`, or `first-last ip:port` for a range; `__cluster__:failover` the ranges
//! of a shard and its new master, `first-last[,first-last...] ip:port`; `__cluster__:digest` a heartbeat,
//! `digest sequence watcher`, so that who missed a message learns of it.

use crate::{Change, SlotSet};

/// Slots that moved.
pub const MOVED: &str = "__cluster__:moved";
/// Masters that were replaced.
pub const FAILOVER: &str = "__cluster__:failover";
/// The heartbeat.
pub const DIGEST: &str = "__cluster__:digest";
/// Clients of StackExchange.Redis look at everything anew on any message here.
pub const MASTER_CHANGED: &str = "__Booksleeve_MasterChanged";

/// The messages of a change, each with its channel.
pub fn messages(change: &Change) -> Vec<(&'static str, String)> {
    match change {
        Change::Moved { slots, to: Some(to), .. } => {
            ranges(slots).map(|range| (MOVED, format!("{range} {to}"))).collect()
        }
        Change::Promoted { node, slots, .. } if !slots.is_empty() => {
            vec![(FAILOVER, format!("{} {node}", ranges(slots).collect::<Vec<_>>().join(",")))]
        }
        _ => Vec::new(),
    }
}

fn ranges(slots: &SlotSet) -> impl Iterator<Item = String> + '_ {
    slots.ranges().iter().map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") })
}

/// A heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// [`crate::Topology::digest`].
    pub digest: String,
    /// Deltas told so far by that watcher; one that skips a number tells of a message lost.
    pub sequence: u64,
    /// Who: the smallest of several is the one that publishes.
    pub watcher: String,
}

impl Heartbeat {
    /// As it is published.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.digest, self.sequence, self.watcher)
    }

    /// `None` when it is something else.
    pub fn parse(text: &str) -> Option<Heartbeat> {
        let mut words = text.split(' ');
        let heartbeat = Heartbeat {
            digest: words.next()?.to_string(),
            sequence: words.next()?.parse().ok()?,
            watcher: words.next()?.to_string(),
        };
        words.next().is_none().then_some(heartbeat)
    }
}
