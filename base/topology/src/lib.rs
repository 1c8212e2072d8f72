//! Nodes, slots and epochs: parse what servers say of themselves, merge it by config epoch, compare it.
//!
//! No client library merges by epoch: they take the first answer, a majority, or the longest list, so a stale view
//! can win. Here the node with the higher config epoch owns the slot, as on the cluster bus itself.
#![forbid(unsafe_code)]

mod cluster;
mod fields;
mod gateway;
mod info;
mod member;
pub mod messages;
mod replies;
mod slots;
mod topology;

pub use cluster::{ClusterNode, ClusterView, Disagreement, ParseError};
pub use fields::{Fields, fields_of};
pub use gateway::{GATEWAY_SECTION, Gateway, NodeBehind};
pub use info::{CommandStat, Info};
pub use member::{DeploymentKind, Member, Role, join_host_port};
pub use replies::{RoleReply, SentinelWord, zones_of_shards};
pub use slots::{SLOTS, SlotSet, slot_of};
pub use topology::{Change, Health, Node, Topology};
