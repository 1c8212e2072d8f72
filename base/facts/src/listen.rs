//! What was seen of the sockets that a server listens on.

use serde::{Deserialize, Serialize};

/// The accept queue of a listening socket: connections that the kernel has set up and the server has not taken yet.
/// Where it is full the kernel drops what else comes, and the client tries again after a second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AcceptQueue {
    /// Where it listens, `ip:port`.
    pub address: String,
    /// Connections in it at one of the window's two samples, the larger number.
    pub waiting: u32,
    /// How many it takes: `tcp-backlog`, or `somaxconn` where that was smaller when the server was started.
    pub limit: u32,
    /// Connections that the kernel dropped at this socket in the window. `None` before Linux 4.6, which does not count
    /// them by socket.
    pub dropped: Option<u64>,
}
