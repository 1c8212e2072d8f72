//! What messages are known by: the words that libraries and servers have for each kind of failure.

use unslow_facts::{ClientErrorKind, ClientLibrary};

use ClientErrorKind::*;

/// Whether anything but a client of Redis says it as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A client of Redis, or a server.
    Redis,
    /// Any program: it counts beside a word about Redis, or where it is all there is.
    Anyone,
}
use Whose::*;

/// Words of a kind, in lower case. What is more exact stands first: a message that names its cause is of the cause's
/// kind. Replies of servers are known by their sentences, since Jedis and redis-py leave the code word out.
pub const PHRASES: &[(ClientErrorKind, Whose, &[&str])] = &[
    (Loading, Redis, &["is loading the dataset in memory"]),
    (OutOfMemory, Redis, &["command not allowed when used memory"]),
    (SaveFailed, Redis, &["is configured to save rdb snapshots", "errors writing to the aof file"]),
    (ReadOnly, Redis, &["you can't write against a read only"]),
    (ClusterDown, Redis, &["clusterdown ", "the cluster is down", "hash slot not served"]),
    (MasterDown, Redis, &["masterdown ", "link with master is down"]),
    (NoReplicas, Redis, &["noreplicas ", "not enough good replicas to write", "not enough good slaves to write"]),
    (WrongPassword, Redis, &["wrongpass ", "invalid username-password pair", "err invalid password"]),
    (NoAuth, Redis, &["noauth ", "authenticationfailure on"]),
    (
        NoPermission,
        Redis,
        &[
            "noperm ",
            "has no permissions to run the '",
            "has no permissions to access one of the",
            "no permissions to access a key",
            "no permissions to access a channel",
        ],
    ),
    (Busy, Redis, &["is busy running a script"]),
    (MaxClients, Redis, &["max number of clients reached", "max number of clients + cluster connections reached"]),
    (
        PoolTimeout,
        Redis,
        &["redis: connection pool timeout", "redis: connection pool exhausted", "maxconnectionserror"],
    ),
    (
        Unresolved,
        Anyone,
        &[
            "name or service not known",
            "nodename nor servname",
            "no such host",
            "temporary failure in name resolution",
            "unknownhostexception",
            "enotfound",
            "eai_again",
        ],
    ),
    (Refused, Anyone, &["connection refused", "econnrefused", "error 111 connecting"]),
    (
        ConnectTimeout,
        Redis,
        &["connectiontimeouterror", "timeout connecting to server", "connecttimeout,", "connecttimeout on"],
    ),
    (
        ConnectTimeout,
        Anyone,
        &[
            "connection timed out: ",
            "connecttimeoutexception",
            "connect timed out",
            "connect etimedout",
            "error 110 connecting",
        ],
    ),
    (
        PoolTimeout,
        Anyone,
        &["timeout waiting for idle object", "pool exhausted", "too many connections", "no connection available."],
    ),
    (
        Closed,
        Redis,
        &[
            "socket closed unexpectedly",
            "socketclosedunexpectedly",
            "socketclosed on",
            "socketclosed (",
            "socketfailure on",
            "socketfailure (",
        ],
    ),
    (
        Closed,
        Anyone,
        &[
            "connection reset",
            "econnreset",
            "error 104 while",
            "broken pipe",
            "connection closed by server",
            "connection closed prematurely",
            "connection is closed",
            // Jedis; OkHttp has the same words.
            "unexpected end of stream",
        ],
    ),
    (
        NoConnection,
        Redis,
        &[
            "no connection is active/available",
            "no connection is available to service",
            "no connection became available",
            "it was not possible to connect to the redis server",
            "maxretriesperrequesterror",
            "reached the max retries per request limit",
            "clusterallfailederror",
            "failed to refresh slots cache",
            "could not get a resource from the pool",
            "jedisconnectionexception: failed to connect",
            "jedisconnectionexception: failed connecting",
            "redisconnectionexception",
        ],
    ),
    (
        Timeout,
        Redis,
        &["timeout performing ", "timeout awaiting response", "rediscommandtimeoutexception", "timeout reading from "],
    ),
    (
        Timeout,
        Anyone,
        &[
            "command timed out",
            "read timed out",
            "timeout writing to socket",
            "i/o timeout",
            "context deadline exceeded",
            "etimedout",
        ],
    ),
];

/// Words that show whose message it is, in lower case.
const LIBRARIES: &[(ClientLibrary, &[&str])] = &[
    (
        ClientLibrary::StackExchangeRedis,
        &["stackexchange.redis", "(se.redis-v", "timeout performing ", "service this operation", "serverendpoint: "],
    ),
    (ClientLibrary::Lettuce, &["lettuce", "rediscommandtimeoutexception", "<unresolved>"]),
    (ClientLibrary::Jedis, &["jedis", "could not get a resource from the pool"]),
    (
        ClientLibrary::RedisPy,
        &["redis.exceptions.", "redis/connection.py", "redis/_parsers", "valkey.exceptions.", "maxconnectionserror"],
    ),
    (ClientLibrary::GoRedis, &["go-redis", "redis: connection pool"]),
    (
        ClientLibrary::Ioredis,
        &["ioredis", "maxretriesperrequesterror", "max retries per request limit", "clusterallfailederror"],
    ),
    (
        ClientLibrary::NodeRedis,
        &[
            "@redis/client",
            "node-redis",
            "socket closed unexpectedly",
            "connectiontimeouterror",
            "socketclosedunexpectedly",
        ],
    ),
];

/// Words about Redis.
const ABOUT_REDIS: &[&str] = &["redis", "valkey", "lettuce", "jedis", ":6379", ":6380"];

/// Whose message `lower` is.
pub fn library(lower: &str) -> ClientLibrary {
    let known = LIBRARIES.iter().find(|(_, words)| words.iter().any(|w| lower.contains(w)));
    known.map_or(ClientLibrary::Unknown, |(library, _)| *library)
}

/// What failed by a message, `text`, and the same in lower case.
pub fn kind(text: &str, lower: &str) -> Option<(ClientErrorKind, Whose)> {
    if is_redirect(text) {
        return Some((Moved, Redis));
    }
    let about = |whose: Whose| if ABOUT_REDIS.iter().any(|w| lower.contains(w)) { Redis } else { whose };
    // Go's words for a connection that was not made are those for a reply that did not come, behind "dial".
    if lower.contains("dial tcp") && ["i/o timeout", "deadline exceeded"].iter().any(|w| lower.contains(w)) {
        return Some((ConnectTimeout, about(Anyone)));
    }
    let found = PHRASES.iter().find(|(_, _, words)| words.iter().any(|w| lower.contains(w)));
    if let Some((kind, whose, _)) = found {
        return Some((*kind, about(*whose)));
    }
    let is_end = |line: &str| line.trim_end() == "EOF" || line.trim_end().ends_with(": EOF");
    text.lines().any(is_end).then(|| (Closed, about(Anyone)))
}

/// `MOVED 3999 10.0.0.1:6381`.
fn is_redirect(text: &str) -> bool {
    text.match_indices("MOVED ").any(|(at, word)| {
        let slot = text[at + word.len()..].split(' ').next().unwrap_or_default();
        slot.len() <= 5 && slot.parse::<u16>().is_ok_and(|slot| slot < 16384)
    })
}
