//! What those who look tell the one who writes.

use unslow_facts::{Host, Node, SentinelNode};
use unslow_probe::Round;
use unslow_series::Stamp;

use crate::pings::Pings;
use crate::scheme::{Away, Listing, Stall};

/// The number of a node within a recorder; never given to another one.
pub type NodeNumber = usize;

#[derive(Debug)]
pub enum Note {
    /// The number of a node.
    Node { number: NodeNumber, url: String, address: String },
    /// What discovery found.
    Listing { url: String, at: Stamp, listing: Listing },
    /// What the event loop saw.
    Saw(NodeNumber, Stamp, Saw),
    /// What the expensive questions of a round found.
    Asked(NodeNumber, Stamp, Round, Box<Node>),
    /// What a Sentinel knows.
    Sentinel { url: String, at: Stamp, sentinel: SentinelNode },
    /// What the last minute was like on this machine.
    Host(Stamp, Box<Host>),
    /// Nothing: the writer looks whether it should end.
    Wake,
    /// What its kernel says of a node's connections.
    Sockets(NodeNumber, Stamp, Box<Node>),
}

#[derive(Debug, PartialEq)]
pub enum Saw {
    /// An INFO, and what happened since the one before.
    Second {
        info: Vec<u8>,
        pings: Pings,
        sent: Sent,
    },
    Stall(Stall),
    /// It is away, or answers again.
    Away(Option<Away>),
}

/// How many commands were sent to a node since the recorder was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub pings: u64,
    pub infos: u64,
    /// CLIENT SETNAME.
    pub greetings: u64,
}
