//! What a data plane needs to know of a deployment, whatever its kind, and what changed between two looks at it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ClusterNode, ClusterView, DeploymentKind, Role, SLOTS, SlotSet};

/// First and last.
type Ranges = Vec<(u16, u16)>;

/// How a node is, in the eyes of who watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It answers.
    #[default]
    Up,
    /// It owes an answer for too long, or its connections broke; others do not call it failed yet.
    Suspected,
    /// The deployment itself calls it failed.
    Failed,
}

/// One data node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Node {
    /// Node id in a cluster, else its address.
    pub id: String,
    /// `host:port` or `unix:/path`, as it is dialled.
    pub address: String,
    /// The other address it goes by: its ip where `address` has its name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub alias: Option<String>,
    /// Master, replica, or unknown where it never answered.
    pub role: Role,
    /// Id of the node it follows.
    pub master: Option<String>,
    /// Slots it owns; all of them for the master of a deployment without slots.
    pub slots: SlotSet,
    /// The epoch they were claimed in; 0 outside clusters.
    pub config_epoch: u64,
    /// Whether it answers.
    pub health: Health,
    /// Availability zone, where the server says one.
    pub zone: Option<String>,
    /// Shortest round trip of the watcher's pings of late, in microseconds.
    pub rtt_us: Option<u64>,
    /// Bytes of the replication stream it has not acknowledged; replicas only.
    pub lag_bytes: Option<u64>,
    /// Whether it holds its master's data: false while it is loading or has lost its link; true for masters.
    pub in_sync: bool,
}

/// The nodes of a deployment and who owns what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Topology {
    /// How they belong together.
    pub kind: DeploymentKind,
    /// Sorted by address.
    pub nodes: Vec<Node>,
}

/// One thing that changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Slots have another owner, and nobody took over anybody's place.
    Moved {
        /// The slots.
        slots: SlotSet,
        /// Address of the last owner.
        from: Option<String>,
        /// Address of the new one; `None` when nobody owns them now.
        to: Option<String>,
    },
    /// A replica became a master.
    Promoted {
        /// Its address.
        node: String,
        /// Address of the master it followed.
        instead_of: Option<String>,
        /// What it owns now.
        slots: SlotSet,
    },
    /// A master became a replica.
    Demoted {
        /// Its address.
        node: String,
        /// Address of the master it follows.
        master: Option<String>,
    },
    /// A replica follows another master.
    Follows {
        /// Its address.
        node: String,
        /// Address of that master.
        master: Option<String>,
    },
    /// A node that was not there.
    Added {
        /// Its address.
        node: String,
        /// What it does.
        role: Role,
    },
    /// A node that is no more.
    Removed {
        /// Its address.
        node: String,
    },
    /// It owes an answer for too long, or its connections broke.
    Suspected {
        /// Its address.
        node: String,
    },
    /// The deployment calls it failed.
    Failed {
        /// Its address.
        node: String,
    },
    /// It answers again.
    Back {
        /// Its address.
        node: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |address: &Option<String>| address.clone().unwrap_or_else(|| "nobody".into());
        let count = |slots: &SlotSet| match slots.len() {
            1 => format!("slot {slots}"),
            n => format!("{n} slots ({slots})"),
        };
        match self {
            Change::Moved { slots, from, to } => {
                write!(f, "{} moved from {} to {}", count(slots), name(from), name(to))
            }
            Change::Promoted { node, instead_of: Some(old), slots } if slots.len() < usize::from(SLOTS) => {
                write!(f, "{node} promoted in place of {old}, with {}", count(slots))
            }
            Change::Promoted { node, instead_of: Some(old), .. } => write!(f, "{node} promoted in place of {old}"),
            Change::Promoted { node, .. } => write!(f, "{node} is a master now"),
            Change::Demoted { node, master: Some(master) } => write!(f, "{node} demoted, follows {master}"),
            Change::Demoted { node, .. } => write!(f, "{node} demoted"),
            Change::Follows { node, master } => write!(f, "{node} follows {} now", name(master)),
            Change::Added { node, role: Role::Unknown } => write!(f, "{node} added"),
            Change::Added { node, role } => write!(f, "{node} added, a {}", role.word()),
            Change::Removed { node } => write!(f, "{node} removed"),
            Change::Suspected { node } => write!(f, "{node} suspected: it does not answer"),
            Change::Failed { node } => write!(f, "{node} failed, says the deployment"),
            Change::Back { node } => write!(f, "{node} is back"),
        }
    }
}

impl Node {
    /// A master that answers, and of which nothing else is known; its id is its address.
    pub fn master(address: impl Into<String>, slots: SlotSet) -> Node {
        let address = address.into();
        Node {
            id: address.clone(),
            address,
            alias: None,
            role: Role::Master,
            master: None,
            slots,
            config_epoch: 0,
            health: Health::Up,
            zone: None,
            rtt_us: None,
            lag_bytes: None,
            in_sync: true,
        }
    }

    /// A replica that answers and holds its master's data; its id is its address.
    pub fn replica(address: impl Into<String>, master: impl Into<String>) -> Node {
        let node = Node::master(address, SlotSet::default());
        Node { role: Role::Replica, master: Some(master.into()), ..node }
    }

    /// A master that has slots.
    pub fn owns_slots(&self) -> bool {
        self.role == Role::Master && !self.slots.is_empty()
    }

    /// A replica of the node with this id.
    pub fn follows(&self, id: &str) -> bool {
        self.role == Role::Replica && self.master.as_deref() == Some(id)
    }
}

impl Topology {
    /// A cluster as its nodes describe it. Nodes without an address, or still shaking hands, are left out. Under `tls`
    /// nodes go by the names they announce: certificates are made for names.
    pub fn of_cluster(view: &ClusterView, tls: bool) -> Topology {
        // A socket of this machine has no port.
        let port = |n: &ClusterNode| Some(n.address.rsplit_once(':')?.1.to_string()).filter(|port| !port.contains('/'));
        let named = |n: &ClusterNode| Some(crate::join_host_port(n.hostname.as_ref()?, port(n)?));
        let address = |n: &ClusterNode| named(n).filter(|_| tls).unwrap_or_else(|| n.address.clone());
        let usable = |n: &&ClusterNode| !n.is("handshake") && !n.is("noaddr") && !n.host().is_empty();
        let nodes = view.nodes.iter().filter(usable).map(|n| Node {
            id: n.id.clone(),
            alias: named(n).map(|name| if tls { n.address.clone() } else { name }),
            role: if n.is("master") { Role::Master } else { Role::Replica },
            master: n.master_id.clone(),
            config_epoch: n.config_epoch,
            health: if n.is("fail") { Health::Failed } else { Health::Up },
            ..Node::master(address(n), n.slots.clone())
        });
        Topology::new(DeploymentKind::Cluster, nodes.collect())
    }

    /// Sorts the nodes.
    pub fn new(kind: DeploymentKind, mut nodes: Vec<Node>) -> Topology {
        nodes.sort_by(|a, b| a.address.cmp(&b.address));
        Topology { kind, nodes }
    }

    /// The node at this address.
    pub fn at(&self, address: &str) -> Option<&Node> {
        // One that was read from a file need not be sorted.
        match self.nodes.binary_search_by(|n| n.address.as_str().cmp(address)) {
            Ok(i) => self.nodes.get(i),
            Err(_) => self.nodes.iter().find(|n| n.address == address),
        }
    }

    /// The node with this id.
    pub fn by_id(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// Masters that own slots.
    pub fn masters(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|n| n.owns_slots())
    }

    /// Replicas of a node.
    pub fn replicas_of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Node> {
        self.nodes.iter().filter(move |n| n.follows(id))
    }

    /// Who owns a slot.
    pub fn owner(&self, slot: u16) -> Option<&Node> {
        self.masters().find(|n| n.slots.contains(slot))
    }

    /// Index of each slot's owner in `nodes`.
    pub fn owners(&self) -> Vec<Option<u16>> {
        let mut owners = vec![None; usize::from(SLOTS)];
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.role == Role::Master) {
            for &(a, b) in node.slots.ranges() {
                owners[usize::from(a)..=usize::from(b)].fill(Some(i as u16));
            }
        }
        owners
    }

    /// The same for the same masters, replicas and slots, whoever looked and however the nodes are: FNV-1a, in hex.
    pub fn digest(&self) -> String {
        let addresses = self.by_ids();
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut eat = |text: &str| {
            for byte in text.bytes().chain([b'\n']) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        for node in &self.nodes {
            eat(&node.address);
            eat(node.role.word());
            eat(node.master.as_deref().and_then(|id| addresses.get(id)).map_or("", |m| &m.address));
            eat(&node.slots.to_string());
        }
        format!("{hash:016x}")
    }

    /// The nodes by their ids.
    fn by_ids(&self) -> HashMap<&str, &Node> {
        self.nodes.iter().map(|n| (n.id.as_str(), n)).collect()
    }

    /// Where each node is in `nodes`, by its address.
    fn places(&self) -> HashMap<&str, usize> {
        self.nodes.iter().enumerate().map(|(i, n)| (n.address.as_str(), i)).collect()
    }

    /// What is different in `newer`. None exactly when both have the same [`Topology::digest`] and the same health.
    pub fn changes(&self, newer: &Topology) -> Vec<Change> {
        let mut changes = Vec::new();
        let (old_ids, new_ids, old_places, new_places) = (self.by_ids(), newer.by_ids(), self.places(), newer.places());
        let address = |ids: &HashMap<&str, &Node>, id: &Option<String>| -> Option<String> {
            id.as_deref().and_then(|id| ids.get(id)).map(|n| n.address.clone())
        };
        for node in &newer.nodes {
            let name = node.address.clone();
            let Some(old) = old_places.get(name.as_str()).map(|i| &self.nodes[*i]) else {
                changes.push(Change::Added { node: name, role: node.role });
                continue;
            };
            let master = address(&new_ids, &node.master);
            match (old.role, node.role) {
                (a, Role::Master) if a != Role::Master => changes.push(Change::Promoted {
                    node: name.clone(),
                    instead_of: address(&old_ids, &old.master),
                    slots: node.slots.clone(),
                }),
                (Role::Master, b) if b != Role::Master => changes.push(Change::Demoted { node: name.clone(), master }),
                (a, b) if (a != b || address(&old_ids, &old.master) != master) && b != Role::Master => {
                    changes.push(Change::Follows { node: name.clone(), master });
                }
                _ => {}
            }
            match (old.health, node.health) {
                (a, b) if a == b => {}
                (_, Health::Suspected) => changes.push(Change::Suspected { node: name }),
                (_, Health::Failed) => changes.push(Change::Failed { node: name }),
                (_, Health::Up) => changes.push(Change::Back { node: name }),
            }
        }
        for node in self.nodes.iter().filter(|n| !new_places.contains_key(n.address.as_str())) {
            changes.push(Change::Removed { node: node.address.clone() });
        }
        // Slots by their old and new owner.
        let mut moved: BTreeMap<(Option<u16>, Option<u16>), Ranges> = BTreeMap::new();
        let (before, after) = (self.owners(), newer.owners());
        // A node has another place among others.
        let place = |n: &Node| new_places.get(n.address.as_str()).map(|i| *i as u16);
        let places: Vec<Option<u16>> = self.nodes.iter().map(place).collect();
        for slot in 0..SLOTS {
            let (from, to) = (before[usize::from(slot)], after[usize::from(slot)]);
            if from.map(|i| places[usize::from(i)]) != to.map(Some) {
                moved.entry((from, to)).or_default().push((slot, slot));
            }
        }
        let name = |t: &Topology, i: Option<u16>| i.map(|i| t.nodes[usize::from(i)].address.clone());
        for ((from, to), slots) in moved {
            let (from, to) = (name(self, from), name(newer, to));
            if from == to {
                continue;
            }
            // A promotion says so itself.
            let promoted = changes.iter().any(|c| match c {
                Change::Promoted { node, instead_of, .. } => Some(node) == to.as_ref() && *instead_of == from,
                _ => false,
            });
            if !promoted {
                changes.push(Change::Moved { slots: SlotSet::from_ranges(slots), from, to });
            }
        }
        changes
    }
}
