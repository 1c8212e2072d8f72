//! Commands on their way to a server: what their answers are for, and what becomes of those that have to be sent again.

use unslow_commands::Plan;
use unslow_nodes::{Address, Author};

use crate::ids::Whom;
use unslow_nodes::NOBODY;

/// A command that has no key.
pub const NO_SLOT: u16 = u16::MAX;

/// What the answer to a command on a lane is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client.
    Reply,
    /// The client, and the dedicated lane is free again.
    Block,
    /// The client; its keys are watched if it is good.
    Watch,
    /// The client; a transaction, unless it is refused.
    Begin,
    /// The client; the transaction is over.
    Exec,
    /// The client; a new identity if it is good.
    Auth,
    /// One of several: `seq` is the number of the answer in the making (`gather`).
    Gather,
    /// The client; a setting of its own connections if it is good.
    Setup,
    /// A question of ours: was it the server that refused a command, or a script? `seq` is the number of the
    /// question, which a [`Waiting`] has.
    Verify,
    /// A question of ours: is the server busy with a script?
    Probe,
    /// Nobody.
    Swallow,
}

/// A command on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    pub whom: Whom,
    pub seq: u32,
    /// Bytes of it in the lane's journal; 0 for what was not kept.
    pub len: u32,
    /// When it came.
    pub at: u64,
    pub command: u16,
    pub slot: u16,
    /// Where it has to go when it has no slot; NOBODY for anywhere.
    pub node: u16,
    pub part: u16,
    pub kind: Kind,
    pub tries: u8,
    /// May be sent again when nobody knows whether it ran.
    pub repeatable: bool,
    /// It only reads: a replica may answer.
    pub read: bool,
    /// Who could have written an error that answers it.
    pub author: Author,
}

impl Flight {
    /// Its bytes in the journal.
    #[inline]
    pub fn size(&self) -> usize {
        self.len as usize
    }

    /// A command that is sent for the first time, to be kept in the journal.
    #[inline]
    pub fn new(whom: Whom, seq: u32, plan: &Plan, bytes: &[u8], at: u64, slot: u16, kind: Kind) -> Flight {
        Flight {
            whom,
            seq,
            len: bytes.len() as u32,
            at,
            command: plan.number,
            slot,
            node: NOBODY,
            part: 0,
            kind,
            tries: 0,
            repeatable: plan.repeatable,
            read: plan.read,
            author: if plan.scripted { Author::Script } else { Author::Server },
        }
    }
}

/// A command to be sent (again) when its time has come.
pub struct Again {
    pub flight: Flight,
    pub bytes: Vec<u8>,
    pub to: To,
}

/// Where a command goes when it is sent again.
pub enum To {
    /// To whoever owns its slot by then.
    Owner,
    /// To this node, behind ASKING.
    Asking(u16),
    /// Where a redirect said, as soon as the servers' own topology has a node of that address.
    Named { address: Address, ask: bool },
}

/// A command of a client that a server would not take just now.
pub struct Waiting {
    pub again: Again,
    /// Nanoseconds until it is worth trying again.
    pub pause: u64,
    /// What the server said.
    pub error: Vec<u8>,
    /// Or a script: the number of the question about it that is under way.
    pub doubt: Option<u32>,
}
