//! What a client library's error message says, as typed figures. The text itself is not kept: it may hold names of
//! keys.

use serde::{Deserialize, Serialize};

/// Messages of one kind from one library about one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClientError {
    /// What failed.
    pub kind: ClientErrorKind,
    /// Whose message it is.
    #[serde(default)]
    pub library: ClientLibrary,
    /// How many such messages there were.
    pub count: u64,
    /// The command, upper case, without its arguments.
    #[serde(default)]
    pub command: Option<String>,
    /// The server as the client names it: `host:port`.
    #[serde(default)]
    pub server: Option<String>,
    /// How long the client waited before it gave up.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// The counters that StackExchange.Redis adds to its messages.
    #[serde(default)]
    pub multiplexer: Option<Multiplexer>,
}

/// What failed. The second half is replies of the server that the message quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientErrorKind {
    /// The reply did not come in time.
    Timeout,
    /// The connection could not be made in time.
    ConnectTimeout,
    /// The connection was refused: nothing listens there.
    Refused,
    /// The host name did not resolve.
    Unresolved,
    /// A connection was closed or reset while it was in use.
    Closed,
    /// No connection of the pool became free in time.
    PoolTimeout,
    /// The library had no usable connection, and the message does not say why.
    NoConnection,
    /// `LOADING`.
    Loading,
    /// `OOM command not allowed when used memory > 'maxmemory'`.
    OutOfMemory,
    /// `MISCONF`: saving fails, so writes are refused.
    SaveFailed,
    /// `READONLY`: a write was sent to a replica.
    ReadOnly,
    /// `CLUSTERDOWN`.
    ClusterDown,
    /// `MOVED`: the client does not follow redirects.
    Moved,
    /// `MASTERDOWN`: a replica has lost its master and may not serve stale data.
    MasterDown,
    /// `NOREPLICAS`: fewer replicas than `min-replicas-to-write` are in step.
    NoReplicas,
    /// `NOAUTH`.
    NoAuth,
    /// `WRONGPASS`.
    WrongPassword,
    /// `NOPERM`.
    NoPermission,
    /// `BUSY`: a script or function runs past its limit.
    Busy,
    /// `max number of clients reached`.
    MaxClients,
    /// A text in which no known message was found.
    #[default]
    Unrecognised,
}

/// A client library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientLibrary {
    /// StackExchange.Redis (.NET).
    StackExchangeRedis,
    /// Lettuce (Java).
    Lettuce,
    /// Jedis (Java).
    Jedis,
    /// redis-py, and valkey-py, which has its messages (Python).
    RedisPy,
    /// go-redis (Go).
    GoRedis,
    /// ioredis (Node.js).
    Ioredis,
    /// node-redis (Node.js).
    NodeRedis,
    /// The message does not show it.
    #[default]
    Unknown,
}

impl ClientLibrary {
    /// Its name as its documentation writes it.
    pub fn name(self) -> &'static str {
        match self {
            ClientLibrary::StackExchangeRedis => "StackExchange.Redis",
            ClientLibrary::Lettuce => "Lettuce",
            ClientLibrary::Jedis => "Jedis",
            ClientLibrary::RedisPy => "redis-py",
            ClientLibrary::GoRedis => "go-redis",
            ClientLibrary::Ioredis => "ioredis",
            ClientLibrary::NodeRedis => "node-redis",
            ClientLibrary::Unknown => "the client",
        }
    }
}

/// The state of a StackExchange.Redis connection and of its process when the message was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Multiplexer {
    /// `qu`: requests that were not sent yet.
    #[serde(default)]
    pub queued: Option<u64>,
    /// `qs`: requests that were sent and wait for their replies.
    #[serde(default)]
    pub sent: Option<u64>,
    /// `in`: bytes of replies that wait in the client's socket.
    #[serde(default)]
    pub unread_bytes: Option<u64>,
    /// `cur-in`: bytes of a reply that has arrived in part.
    #[serde(default)]
    pub partial_bytes: Option<u64>,
    /// `rs`: what its reader was doing.
    #[serde(default)]
    pub reader: Option<String>,
    /// `WORKER`: .NET's worker threads.
    #[serde(default)]
    pub worker: Option<ThreadPool>,
    /// `IOCP`: .NET's threads for completed I/O.
    #[serde(default)]
    pub iocp: Option<ThreadPool>,
    /// `POOL`: work that waits for a thread (.NET Core 3.0+).
    #[serde(default)]
    pub queued_items: Option<u64>,
    /// `mgr`: free threads of the library's own pool, and how many there are.
    #[serde(default)]
    pub own_threads: Option<(u64, u64)>,
}

/// Threads of a .NET process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ThreadPool {
    /// At work, or blocked.
    pub busy: u64,
    /// As many are started without delay; beyond it one or two a second.
    pub min: u64,
    /// Never more than these.
    pub max: u64,
}
