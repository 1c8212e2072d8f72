//! Which commands cannot be slow by themselves. When one of these took long, something else held it up.
//!
//! `cli/tests/complexity.rs` holds the lists against COMMAND DOCS of a real server.

use unslow_facts::SlowEntry;

/// Commands that take constant time, or log N, whatever their arguments and the data are.
pub const CONSTANT_TIME: &[&str] = &[
    "APPEND",
    "ASKING",
    "AUTH",
    "BLMOVE",
    "BRPOPLPUSH",
    "CLIENT GETNAME",
    "CLIENT ID",
    "CLIENT SETINFO",
    "CLIENT SETNAME",
    "DBSIZE",
    "DECR",
    "DECRBY",
    "ECHO",
    "EXPIRE",
    "EXPIREAT",
    "EXPIRETIME",
    "GEODIST",
    "GET",
    "GETBIT",
    "GETDEL",
    "GETEX",
    "GETSET",
    "HELLO",
    "HEXISTS",
    "HGET",
    "HINCRBY",
    "HINCRBYFLOAT",
    "HLEN",
    "HSETNX",
    "HSTRLEN",
    "INCR",
    "INCRBY",
    "INCRBYFLOAT",
    "LLEN",
    "LMOVE",
    "MULTI",
    "OBJECT ENCODING",
    "OBJECT FREQ",
    "OBJECT IDLETIME",
    "PERSIST",
    "PEXPIRE",
    "PEXPIREAT",
    "PEXPIRETIME",
    "PING",
    "PSETEX",
    "PTTL",
    "READONLY",
    "READWRITE",
    "REPLCONF",
    "ROLE",
    "RPOPLPUSH",
    "SCARD",
    "SELECT",
    "SET",
    "SETEX",
    "SETNX",
    "SISMEMBER",
    "SMOVE",
    "STRLEN",
    "TIME",
    "TTL",
    "TYPE",
    "UNWATCH",
    "XLEN",
    "ZCARD",
    "ZINCRBY",
    "ZRANK",
    "ZREVRANK",
    "ZSCORE",
];

/// Commands whose time grows with the number of their arguments: constant time with few of them.
pub const PER_ARGUMENT: &[&str] = &[
    "BLPOP",
    "BRPOP",
    "EXISTS",
    "GEOADD",
    "GEOPOS",
    "HDEL",
    "HMGET",
    "HMSET",
    "HSET",
    "LPUSH",
    "LPUSHX",
    "MGET",
    "MSET",
    "MSETNX",
    "PFADD",
    "RPUSH",
    "RPUSHX",
    "SADD",
    "SMISMEMBER",
    "SREM",
    "SUBSCRIBE",
    "TOUCH",
    "UNLINK",
    "WATCH",
    "XACK",
    "XDEL",
    "ZADD",
    "ZMSCORE",
    "ZREM",
];

/// Commands that take one element of a collection in constant time, or log N, unless a count asks for more.
pub const WITHOUT_COUNT: &[&str] =
    &["HRANDFIELD", "LPOP", "RPOP", "SPOP", "SRANDMEMBER", "ZPOPMAX", "ZPOPMIN", "ZRANDMEMBER"];

/// The slow log keeps this many words of a command. An entry with as many may have had any number more.
const WORDS_LOGGED: u32 = 32;

/// Whether a slow log entry is a victim: it asked for little, and something else held it up.
pub fn is_victim(entry: &SlowEntry) -> bool {
    let listed = |list: &[&str]| list.contains(&entry.command.as_str());
    listed(CONSTANT_TIME)
        || (listed(PER_ARGUMENT) && entry.args < WORDS_LOGGED)
        || (listed(WITHOUT_COUNT) && entry.args <= 2)
}
