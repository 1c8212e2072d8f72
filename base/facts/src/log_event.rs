//! What a server's own log says, as typed events. The lines themselves are not kept: some quote keys and addresses of
//! clients.

use serde::{Deserialize, Serialize};

/// Lines of one kind from one process that came close after each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LogEvent {
    /// What happened.
    pub kind: LogKind,
    /// The first of them, unix time in ms.
    pub since_ms: u64,
    /// The last of them, unix time in ms.
    pub at_ms: u64,
    /// How many.
    pub count: u64,
    /// The server's process. A child that saves writes its own number: None there.
    #[serde(default)]
    pub pid: Option<u64>,
}

/// What a line of a server's log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogKind {
    /// The server crashed.
    Crash,
    /// The allocator had no memory left.
    OutOfMemory,
    /// The append-only file could not be written.
    AofWriteFailed,
    /// `fork` failed.
    ForkFailed,
    /// Saving, or rewriting the append-only file, failed.
    SaveFailed,
    /// The cluster does not serve.
    ClusterFail,
    /// The cluster serves again.
    ClusterOk,
    /// A node was found to have failed, by this node or by another.
    NodeFailed,
    /// A replica waits for its election.
    ElectionDelayed,
    /// A master voted for a replica.
    VoteGranted,
    /// A master did not vote for a replica.
    VoteDenied,
    /// A replica became master.
    ElectionWon,
    /// A replica lost its master.
    MasterLost,
    /// A replica needs the whole data set.
    FullResync,
    /// A replica has reached its master and asks to follow it: for what it lacks, or for all.
    ReplicaSync,
    /// A client was closed because its output buffer passed the limit.
    OutputBufferLimit,
    /// The disk takes too long to sync the append-only file.
    AofFsyncSlow,
    /// A script runs past its limit.
    SlowScript,
    /// A save, or a rewrite of the append-only file, began: a fork.
    SaveStarted,
    /// It ended well.
    SaveEnded,
    /// How much memory was copied for it.
    CopyOnWrite,
    /// Something that is no client of Redis sends HTTP to its port.
    SecurityAttack,
    /// The kernel may refuse a fork its memory.
    Overcommit,
    /// The server started.
    Started,
}

impl LogKind {
    /// What it tells, for a person.
    pub fn text(self) -> &'static str {
        match self {
            LogKind::Crash => "the server crashed",
            LogKind::OutOfMemory => "no memory left to allocate",
            LogKind::AofWriteFailed => "the append-only file could not be written",
            LogKind::ForkFailed => "fork failed",
            LogKind::SaveFailed => "saving failed",
            LogKind::ClusterFail => "the cluster stopped serving",
            LogKind::ClusterOk => "the cluster serves again",
            LogKind::NodeFailed => "a node was marked as failed",
            LogKind::ElectionDelayed => "a replica prepared its election",
            LogKind::VoteGranted => "a vote was given to a replica",
            LogKind::VoteDenied => "a vote was denied to a replica",
            LogKind::ElectionWon => "a replica became master",
            LogKind::MasterLost => "a replica lost its master",
            LogKind::FullResync => "a replica needed the whole data set",
            LogKind::ReplicaSync => "a replica began to synchronise with its master",
            LogKind::OutputBufferLimit => "a client was closed at its output buffer limit",
            LogKind::AofFsyncSlow => "the disk took too long to sync the append-only file",
            LogKind::SlowScript => "a script ran past its limit",
            LogKind::SaveStarted => "a save began (a fork)",
            LogKind::SaveEnded => "a save ended well",
            LogKind::CopyOnWrite => "memory was copied during a save",
            LogKind::SecurityAttack => "HTTP was sent to the server's port",
            LogKind::Overcommit => "vm.overcommit_memory is 0",
            LogKind::Started => "the server started",
        }
    }
}
