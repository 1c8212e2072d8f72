//! One slot holds most of a master's keys, and with them memory that rebalancing cannot move.
//!
//! Keys with the same hash tag share a slot, and a slot lives on one master as a whole. A tag that is the same for very
//! many keys (`{app}`, one large tenant) makes a slot so large that no other master can relieve it: that master is full
//! first, its saves and copies take the longest, and moving other slots away only leaves the large one behind.
//!
//! Seen when: one slot has half of its master's keys or more, at least 50,000, and that master's data takes 1.5 times
//! the mean of all masters.
//!
//! Not to be taken for: a master that has more slots than the others, or more to do (`shard_imbalance`). A tag that a
//! few keys share because transactions and scripts need it. One large key: that is one key in its slot (`big_key`).
//!
//! How to confirm: `CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 5 DESC` on the master (Valkey 8.0+, Redis 8.2+); in
//! older versions, `CLUSTER COUNTKEYSINSLOT` of the slot that the tag hashes to (`CLUSTER KEYSLOT`).
//! `CLUSTER GETKEYSINSLOT SLOT 10` names some of the keys.
//!
//! What to do: a narrower tag, so that only keys that one command needs together share it; no tag where no command
//! needs one.
//! Sources: CLUSTER SLOT-STATS; INFO used_memory_dataset of each master; Redis cluster specification, hash tags.

use unslow_facts::SlotStat;
use unslow_topology::ClusterView;

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Hash tag skew";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Of its master's keys.
const SHARE: f64 = 0.5;
/// Fewer keys than this are moved, copied and saved in no time.
const MANY: u64 = 50_000;
/// This many times the mean of all masters is more than a share.
const UNEVEN: f64 = 1.5;

/// A master with slots, and the one of them that has the most keys.
struct Shard<'a> {
    node: &'a Node,
    slot: SlotStat,
    keys: u64,
    data: f64,
}

impl Shard<'_> {
    fn share(&self) -> f64 {
        self.slot.keys as f64 / self.keys.max(1) as f64
    }
}

fn data(node: &Node) -> Option<f64> {
    node.number("used_memory_dataset")
}

fn shard(node: &Node) -> Option<Shard<'_>> {
    let slot = *node.slot_stats.value()?.iter().max_by_key(|s| s.keys)?;
    let keys = node.info()?.keys().max(slot.keys);
    Some(Shard { node, slot, keys, data: data(node)? })
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let Some((_, view)) = peers::cluster(facts) else {
        return match facts.nodes.iter().find_map(|n| n.cluster.refused()) {
            Some(gap) => Verdict::Unknown(gap.of("keys of slots")),
            None => Verdict::unknown(Lack::Answer, "keys of slots: no node returned CLUSTER NODES", ""),
        };
    };
    if view.masters().count() < 2 {
        return Verdict::NotHere;
    }
    let masters: Option<Vec<&Node>> = view.masters().map(|row| peers::node_of(facts, row)).collect();
    let sizes: Option<Vec<f64>> = masters.iter().flatten().map(|n| data(n)).collect();
    let (Some(masters), Some(sizes)) = (masters, sizes) else {
        return Verdict::Unknown(unseen_info(facts, "keys of slots"));
    };
    let mean = sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
    let shards: Vec<Shard> = by_worst(masters.iter().filter_map(|n| shard(n)).collect(), Shard::share);
    if let Some(skewed) = shards.iter().find(|s| is_skewed(s, mean)) {
        return found(skewed, mean, &view).into();
    }
    if let Some(gap) = masters.iter().find_map(|n| n.slot_stats.missing()) {
        return Verdict::Unknown(gap.of("keys of slots"));
    }
    let most = shards.iter().max_by_key(|s| s.slot.keys);
    Verdict::Absent(match most {
        Some(s) => format!("keys of slots: at most {} in one of them", count(s.slot.keys as f64)),
        None => "keys of slots: none".into(),
    })
}

fn is_skewed(s: &Shard, mean: f64) -> bool {
    s.share() >= SHARE && s.slot.keys >= MANY && s.data > UNEVEN * mean
}

fn found(s: &Shard, mean: f64, view: &ClusterView) -> Finding {
    let (node, slot) = (s.node, s.slot.slot);
    let slots = peers::row(view, node).map_or(0, |row| row.slots.len());
    let run = |command: &str| cli(&node.address, command);
    Finding::new(format!(
        "Slot {slot} holds {} of the keys of {}, which has {} slots: {} keys share its hash tag",
        percent(s.share()),
        node.address,
        count(slots as f64),
        count(s.slot.keys as f64)
    ))
    .on([node.address.as_str()])
    .risk(format!(
        "{} of data on this master, {} on average: it is full first, and moving slots away does not help",
        bytes(s.data),
        bytes(mean)
    ))
    .proven("the master's own count of the slot's keys, and the size of every master's data")
    .saw(
        node,
        "CLUSTER SLOT-STATS ORDERBY KEY-COUNT LIMIT 5 DESC",
        format!("slot {slot}: key-count {} of {}", s.slot.keys, s.keys),
    )
    .saw(node, "INFO memory", format!("used_memory_dataset {}", bytes(s.data)))
    .not(format!("one large key: the slot has {} keys", count(s.slot.keys as f64)))
    .fix(
        "Find out which tag it is",
        &[&run(&format!("CLUSTER GETKEYSINSLOT {slot} 10"))],
        "the command prints names of keys",
        "",
    )
    .fix(
        "Make the tag narrower: only keys that one command needs together share one",
        &["{app}:user:7, {app}:cart:7  ->  {user7}:profile, {user7}:cart   (in the application)"],
        "commands with keys of several tags fail with CROSSSLOT; the old keys must be copied",
        "",
    )
}
