//! What those who look tell the one who writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;

use unslow_facts::{Host, Node, Own, PeerSockets, Seen, SentinelNode, Standing};
use unslow_probe::Round;
use unslow_probe::host::Counts;
use unslow_series::Stamp;

use crate::pings::Pings;
use crate::scheme::{Away, Listing, LookedFor, Stall};

/// The number of a node within a recorder; never given to another one.
pub type NodeNumber = usize;

#[derive(Debug)]
pub enum Note {
    /// The number of a node.
    Node { number: NodeNumber, url: String, address: String },
    /// A node is asked no more.
    Left(NodeNumber),
    /// What discovery found.
    Listing { url: String, at: Stamp, listing: Listing },
    /// What the event loop saw.
    Saw(NodeNumber, Stamp, Saw),
    /// What the expensive questions of a round found.
    Asked(NodeNumber, Stamp, Questions, Arc<Node>),
    /// All questions are being asked, or no longer.
    Asking(NodeNumber, bool),
    /// What a Sentinel knows.
    Sentinel { url: String, at: Stamp, sentinel: SentinelNode },
    /// What the last minute was like on this machine.
    Host(Stamp, Box<Host>),
    /// What it and its servers have counted up to now.
    Counts(Stamp, Counts),
    /// Nothing: the writer looks whether it should end.
    Wake,
    /// What its kernel says of a node's connections.
    Sockets(NodeNumber, Stamp, Box<Seen<Vec<PeerSockets>>>),
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Questions {
    pub round: Round,
    /// When something began for which it was asked early, unix time in ms.
    pub because_ms: Option<i64>,
}

impl From<Round> for Questions {
    fn from(round: Round) -> Questions {
        Questions { round, because_ms: None }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Saw {
    /// An INFO, and what happened since the one before.
    Second {
        info: Vec<u8>,
        pings: Pings,
        /// By everyone in this process, since the node has been asked.
        sent: Own,
    },
    Stall(Stall),
    /// It is away, or answers again.
    Away(Option<Away>),
    /// What its process did while it owed an answer.
    Standing(Box<Standing>),
    /// It is looked at closely from now on.
    Looked(LookedFor),
}

/// What the event loop says of a node that owes an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owing {
    /// The node owes an answer, as it did a tick ago.
    Still(NodeNumber),
    /// It has answered.
    Over(NodeNumber),
}

/// INFO that may wait for the disk: some seconds of a thousand nodes, whatever they say.
const WAITING_BYTES: usize = 64 << 20;

/// What waits for the disk. A slow disk must not stop the clock of what is measured, nor fill the memory.
#[derive(Default)]
pub struct Waiting {
    info_bytes: AtomicUsize,
    lost: AtomicU64,
}

impl Waiting {
    /// Hands it over, or counts it as lost: false.
    pub fn tell(&self, notes: &SyncSender<Note>, note: Note) -> bool {
        let bytes = note.info_bytes();
        let waiting = self.info_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_lost = waiting.saturating_add(bytes) > WAITING_BYTES || notes.try_send(note).is_err();
        if is_lost {
            self.info_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        !is_lost
    }

    /// It was written.
    pub fn taken(&self, note: &Note) {
        self.info_bytes.fetch_sub(note.info_bytes(), Ordering::Relaxed);
    }

    /// How many notes the disk was too slow for.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Note {
    fn info_bytes(&self) -> usize {
        match self {
            Note::Saw(_, _, Saw::Second { info, .. }) => info.len(),
            _ => 0,
        }
    }
}
