//! CLUSTER NODES of every server version, and what several of them say together.
//!
//! Line: `id ip:port@bus[,hostname[,key=value...]] flags master ping pong epoch link slot...`; 3.x has no `@bus`,
//! 7.0 added the hostname, 7.2 `shard-id=`. Slots of the line marked `myself` may hold `[n->-id]` (migrating) and
//! `[n-<-id]` (importing). (Redis command reference, CLUSTER NODES)

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::SlotSet;

/// One line of CLUSTER NODES.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClusterNode {
    /// 40 hex digits.
    pub id: String,
    /// `ip:port`; the ip is empty for a node that does not know its own yet.
    pub address: String,
    /// Announced host name (7.0+).
    pub hostname: Option<String>,
    /// `myself`, `master`, `slave`, `fail?`, `fail`, `handshake`, `noaddr`, `nofailover`.
    pub flags: Vec<String>,
    /// The node it replicates.
    pub master_id: Option<String>,
    /// Unix time in ms of the ping in flight; 0 when none is.
    pub ping_sent_ms: u64,
    /// Unix time in ms of the last pong.
    pub pong_received_ms: u64,
    /// The epoch its slots were last claimed in.
    pub config_epoch: u64,
    /// Whether the bus link to it stands.
    pub connected: bool,
    /// Slots it owns.
    pub slots: SlotSet,
    /// Slots on their way out, with the destination's id. Only the node itself shows them.
    pub migrating: Vec<(u16, String)>,
    /// Slots on their way in, with the source's id.
    pub importing: Vec<(u16, String)>,
}

impl ClusterNode {
    /// Whether `flag` is set.
    pub fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    /// The address without the port.
    pub fn host(&self) -> &str {
        crate::member::host_of(&self.address)
    }

    /// Whether it can be dialled: an entry of a node that was forgotten or never met has no address, or port 0. The
    /// line of the node that was asked may lack the host, which that node learns from others.
    pub fn has_address(&self) -> bool {
        let port = self.address.rsplit_once(':').map_or("", |(_, port)| port);
        let dialable = !self.host().is_empty() || self.is("myself");
        dialable && !matches!(port, "" | "0") && !self.is("noaddr") && !self.is("handshake")
    }

    /// Marked failed, or failing in this node's own eyes.
    pub fn is_down(&self) -> bool {
        self.is("fail") || self.is("fail?")
    }
}

/// The cluster as one node sees it, or as several do together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClusterView {
    /// Its nodes.
    pub nodes: Vec<ClusterNode>,
}

/// A reply that is not CLUSTER NODES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// 1-based.
    pub line: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CLUSTER NODES, line {}: expected {}", self.line, self.expected)
    }
}

impl std::error::Error for ParseError {}

/// A slot two nodes give to different owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The slot.
    pub slot: u16,
    /// Owner ids, each with who says so (index of the view).
    pub owners: BTreeMap<String, Vec<usize>>,
}

impl ClusterView {
    /// Parses the text of CLUSTER NODES.
    pub fn parse(text: &str) -> Result<ClusterView, ParseError> {
        let nodes = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(i, line)| node(line).map_err(|expected| ParseError { line: i + 1, expected }))
            .collect::<Result<_, _>>()?;
        Ok(ClusterView { nodes })
    }

    /// The line of the node that was asked.
    pub fn myself(&self) -> Option<&ClusterNode> {
        self.nodes.iter().find(|n| n.is("myself"))
    }

    /// Gives the node that was asked the address it was `asked` at, where it does not know its own: a node learns its
    /// host from others. The port as well: behind a forwarded port the announced one leads elsewhere.
    pub fn place_myself(&mut self, asked: &str) {
        if let Some(node) = self.nodes.iter_mut().find(|n| n.is("myself") && n.host().is_empty()) {
            node.address = asked.to_string();
        }
    }

    /// The node with this id.
    pub fn by_id(&self, id: &str) -> Option<&ClusterNode> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// Masters that own slots.
    pub fn masters(&self) -> impl Iterator<Item = &ClusterNode> {
        self.nodes.iter().filter(|n| n.is("master") && !n.slots.is_empty())
    }

    /// Replicas of `id`.
    pub fn replicas_of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a ClusterNode> + 'a {
        self.nodes.iter().filter(move |n| n.master_id.as_deref() == Some(id))
    }

    /// Slots that no node owns.
    pub fn unassigned(&self) -> SlotSet {
        SlotSet::from_ranges(self.nodes.iter().flat_map(|n| n.slots.ranges().iter().copied())).complement()
    }

    /// Slots whose owner is marked `fail`.
    pub fn failed(&self) -> SlotSet {
        SlotSet::from_ranges(self.nodes.iter().filter(|n| n.is("fail")).flat_map(|n| n.slots.ranges().iter().copied()))
    }

    /// Slots whose owner is suspected (`fail?`) and not yet marked `fail`: the failure detector of at least one node
    /// has run out.
    pub fn suspected(&self) -> SlotSet {
        let owners = self.nodes.iter().filter(|n| n.is("fail?") && !n.is("fail"));
        SlotSet::from_ranges(owners.flat_map(|n| n.slots.ranges().iter().copied()))
    }

    /// The highest config epoch in it.
    pub fn epoch_max(&self) -> u64 {
        self.nodes.iter().map(|n| n.config_epoch).max().unwrap_or(0)
    }

    /// One view of many, the newest first: for each node the line with the highest config epoch, and among those the
    /// node's own; each slot to the claim with the highest epoch. A claim in the name of a node that itself, at that
    /// epoch or a later one, does not make it counts for nothing: gossip about a slot given away takes longer than the
    /// giving.
    pub fn merge<V: Borrow<ClusterView>>(views: &[V]) -> ClusterView {
        let views: Vec<&ClusterView> = views.iter().map(Borrow::borrow).collect();
        let mut best: BTreeMap<&str, &ClusterNode> = BTreeMap::new();
        for node in views.iter().flat_map(|v| &v.nodes) {
            best.entry(&node.id)
                .and_modify(|held| {
                    if (node.config_epoch, node.is("myself")) > (held.config_epoch, held.is("myself")) {
                        *held = node;
                    }
                })
                .or_insert(node);
        }
        let mut nodes: Vec<ClusterNode> = best.into_values().cloned().collect();
        let place: HashMap<&str, usize> = nodes.iter().enumerate().map(|(i, n)| (n.id.as_str(), i)).collect();
        let own: HashMap<&str, &ClusterNode> =
            views.iter().filter_map(|v| v.myself()).map(|n| (n.id.as_str(), n)).collect();
        let mut owner: Vec<Option<(usize, u64)>> = vec![None; usize::from(crate::SLOTS)];
        for node in views.iter().flat_map(|v| &v.nodes) {
            let Some(&i) = place.get(node.id.as_str()) else { continue };
            let denied = own.get(node.id.as_str()).filter(|own| own.config_epoch >= node.config_epoch);
            for &(a, b) in node.slots.ranges() {
                for slot in a..=b {
                    let held = &mut owner[usize::from(slot)];
                    // Most claims repeat what another view said: those need no look at the owner's own list.
                    let is_newer = held.is_none_or(|(_, epoch)| epoch < node.config_epoch);
                    if is_newer && denied.is_none_or(|own| own.slots.contains(slot)) {
                        *held = Some((i, node.config_epoch));
                    }
                }
            }
        }
        let mut claimed: Vec<Vec<(u16, u16)>> = vec![Vec::new(); nodes.len()];
        for (slot, owner) in owner.iter().enumerate() {
            if let Some((i, _)) = owner {
                claimed[*i].push((slot as u16, slot as u16));
            }
        }
        for (node, ranges) in nodes.iter_mut().zip(claimed) {
            node.slots = SlotSet::from_ranges(ranges);
            node.flags.retain(|f| f != "myself");
        }
        ClusterView { nodes }
    }

    /// The first slots (at most `most`) whose owner the views do not agree on.
    pub fn disagreements(views: &[ClusterView], most: usize) -> Vec<Disagreement> {
        let owners: Vec<Vec<Option<&str>>> = views
            .iter()
            .map(|view| {
                let mut by_slot = vec![None; usize::from(crate::SLOTS)];
                for node in &view.nodes {
                    for &(a, b) in node.slots.ranges() {
                        by_slot[usize::from(a)..=usize::from(b)].fill(Some(node.id.as_str()));
                    }
                }
                by_slot
            })
            .collect();
        (0..usize::from(crate::SLOTS))
            // Nearly every slot of nearly every cluster: nothing is built for it.
            .filter(|slot| owners.iter().any(|view| view[*slot] != owners[0][*slot]))
            .take(most)
            .map(|slot| {
                let mut said: BTreeMap<String, Vec<usize>> = BTreeMap::new();
                for (i, view) in owners.iter().enumerate() {
                    said.entry(view[slot].unwrap_or("").to_string()).or_default().push(i);
                }
                Disagreement { slot: slot as u16, owners: said }
            })
            .collect()
    }
}

fn node(line: &str) -> Result<ClusterNode, &'static str> {
    let mut words = line.split_ascii_whitespace();
    let mut word = |expected| words.next().ok_or(expected);
    let id = word("a node id")?;
    if id.len() != 40 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err("a node id of 40 hex digits");
    }
    let mut address_parts = word("an address")?.split(',');
    let address = address_parts.next().unwrap_or("");
    let hostname = address_parts.next().filter(|h| !h.is_empty() && !h.contains('='));
    let address = address.split_once('@').map_or(address, |(a, _)| a);
    let flags: Vec<String> = word("flags")?.split(',').filter(|f| *f != "noflags").map(str::to_string).collect();
    let master_id = Some(word("a master id or -")?).filter(|m| *m != "-").map(str::to_string);
    let ping_sent_ms = word("ping-sent in ms")?.parse().map_err(|_| "ping-sent in ms")?;
    let pong_received_ms = word("pong-received in ms")?.parse().map_err(|_| "pong-received in ms")?;
    let config_epoch = word("a config epoch")?.parse().map_err(|_| "a config epoch")?;
    let connected = word("a link state")? == "connected";
    let (mut ranges, mut migrating, mut importing) = (Vec::new(), Vec::new(), Vec::new());
    for word in words {
        if let Some(open) = word.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
            let peer = open.rsplit_once('-').map_or("", |(_, id)| id);
            if peer.len() != 40 || !peer.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err("[slot->-id] or [slot-<-id] with an id of 40 hex digits");
            }
            if let Some((slot, to)) = open.split_once("->-") {
                migrating.push((slot_number(slot)?, to.to_string()));
            } else if let Some((slot, from)) = open.split_once("-<-") {
                importing.push((slot_number(slot)?, from.to_string()));
            } else {
                return Err("[slot->-id] or [slot-<-id]");
            }
        } else {
            let (a, b) = word.split_once('-').unwrap_or((word, word));
            ranges.push((slot_number(a)?, slot_number(b)?));
        }
    }
    Ok(ClusterNode {
        id: id.to_string(),
        address: address.to_string(),
        hostname: hostname.map(str::to_string),
        flags,
        master_id,
        ping_sent_ms,
        pong_received_ms,
        config_epoch,
        connected,
        slots: SlotSet::from_ranges(ranges),
        migrating,
        importing,
    })
}

fn slot_number(text: &str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|&n: &u16| n < crate::SLOTS).ok_or("a slot below 16384")
}
