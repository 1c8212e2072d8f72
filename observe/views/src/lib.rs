//! Tables of a window's facts, as people look at them: one row a server, a command, a group of clients.
//!
//! The same facts give the same tables, live and of a recording. Nothing here knows a terminal, a page or the clock.

#![forbid(unsafe_code)]

mod clients;
mod commands;
mod head;
mod host;
mod nodes;
mod slow;
mod table;
mod topology;

use unslow_facts::{Facts, Node};
use unslow_topology::{ClusterNode, ClusterView};

pub use head::Head;
pub use table::{Cell, Column, Layout, Order, Row, Subject, Table, Tone, plain};

/// One of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum View {
    Nodes,
    Commands,
    Clients,
    Slow,
    Topology,
    Host,
}

impl View {
    /// In the order of their keys, 1 to 6.
    pub const ALL: [View; 6] = [View::Nodes, View::Commands, View::Clients, View::Slow, View::Topology, View::Host];

    /// As it is called on a tab and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            View::Nodes => "nodes",
            View::Commands => "commands",
            View::Clients => "clients",
            View::Slow => "slow",
            View::Topology => "topology",
            View::Host => "host",
        }
    }

    /// The one that tells more of a row of this one.
    pub fn deeper(self) -> Option<View> {
        match self {
            View::Nodes | View::Topology => Some(View::Commands),
            View::Commands => Some(View::Clients),
            View::Clients | View::Slow | View::Host => None,
        }
    }

    /// The table of these facts.
    pub fn of(self, facts: &Facts, scope: &Scope) -> Table {
        let wanted = |n: &&Node| scope.node.as_ref().is_none_or(|address| n.address == *address);
        let nodes: Vec<&Node> = facts.nodes.iter().filter(wanted).collect();
        match self {
            View::Nodes => nodes::table(facts, &nodes),
            View::Commands => commands::table(&nodes),
            View::Clients => clients::table(&nodes, scope.command.as_deref()),
            View::Slow => slow::table(&nodes),
            View::Topology => topology::table(facts, &nodes),
            View::Host => host::table(facts),
        }
    }
}

/// What a table is about: everything, unless it says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// One server, by its address.
    pub node: Option<String>,
    /// Clients that sent this command last.
    pub command: Option<String>,
}

/// A cluster's nodes as one of them sees them: by far the most see the same.
fn view_of(facts: &Facts) -> Option<&ClusterView> {
    facts.nodes.iter().find_map(own_view)
}

/// What the cluster says of a node: it itself, or else another one.
fn entry<'a>(node: &'a Node, others: Option<&'a ClusterView>) -> Option<&'a ClusterNode> {
    let id = node.node_id.as_deref()?;
    [own_view(node), others].into_iter().flatten().find_map(|view| view.by_id(id))
}

/// As it saw the cluster last.
fn own_view(node: &Node) -> Option<&ClusterView> {
    node.last_view().or(node.cluster.value())
}
