//! What a server has logged of commands, without their arguments.

use serde::{Deserialize, Serialize};

/// One SLOWLOG entry, without its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SlowEntry {
    /// The server's number for it.
    pub id: u64,
    /// Unix time in seconds.
    pub at_s: u64,
    /// Time inside the command, in us.
    pub us: u64,
    /// Upper case, with its sub-command where it has one.
    pub command: String,
    /// Number of arguments, the command included; 32 at most in older facts, which have what the log kept of a command.
    pub args: u32,
    /// The first key, hashed with the run's salt unless `--show-keys`.
    pub key: Option<String>,
    /// `ip:port` of the client (4.0+).
    pub client: String,
    /// Its name (4.0+).
    pub client_name: String,
}

/// Which way the bytes of a large entry went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// To the server.
    Request,
    /// To the client.
    Reply,
}

/// One COMMANDLOG entry of a large request or reply, without its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LargeEntry {
    /// The server's number for it, within its side.
    pub id: u64,
    /// Unix time in seconds.
    pub at_s: u64,
    /// Which way the bytes went.
    pub side: Side,
    /// How many they were.
    pub bytes: u64,
    /// As in [`SlowEntry::command`].
    pub command: String,
    /// As in [`SlowEntry::key`].
    pub key: Option<String>,
    /// `ip:port` of the client.
    pub client: String,
    /// Its name.
    pub client_name: String,
}

/// How large a key is that the slow log names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KeySize {
    /// As in [`SlowEntry::key`].
    pub key: String,
    /// `string`, `hash`, ...
    pub kind: String,
    /// Elements; bytes for a string.
    pub length: u64,
}
