//! What a walk through the keys has seen (`unslow keys`): given to a diagnosis by its file.

use serde::{Deserialize, Serialize};

/// Of a whole deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KeysSeen {
    /// Unix time in ms at the end of the walk.
    pub at_ms: u64,
    /// Keys there were, and how many of them were seen.
    pub keys: u64,
    pub scanned: u64,
    /// Those with the most memory first, or with the most keys where memory was not asked for.
    pub patterns: Vec<KeyPattern>,
    /// The longest of each type, the longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub longest: Vec<LongKey>,
    /// Servers that counted what they did for each key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<HotKeys>,
}

/// One of the longest keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LongKey {
    pub server: String,
    /// Its name, or a hash of it.
    pub key: String,
    pub pattern: String,
    /// As TYPE says.
    pub kind: String,
    /// Bytes of a string, elements of anything else.
    pub length: u64,
}

/// What one server worked for while it counted (HOTKEYS).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HotKeys {
    pub server: String,
    /// Of the server's process, as INFO says: it may have several addresses.
    pub run_id: String,
    /// When it began to count, unix time in ms.
    pub started_ms: u64,
    /// How long it counted.
    pub seconds: f64,
    /// Whether it counted in all slots.
    pub is_whole: bool,
    /// Which of the two it counted for each key.
    pub counts_cpu: bool,
    pub counts_net: bool,
    /// Share of one core that all its commands took.
    pub core_share: f64,
    /// The most time first.
    pub keys: Vec<HotKey>,
}

/// One key of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HotKey {
    /// Its name, or a hash of it.
    pub key: String,
    pub pattern: String,
    /// Of the time that all commands took, between 0 and 1; `None`: others took more.
    pub cpu_share: Option<f64>,
    /// Of the bytes that all commands received and sent.
    pub net_share: Option<f64>,
}

/// Keys that are called alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct KeyPattern {
    /// As `user:*:cart`.
    pub pattern: String,
    /// An estimate for all keys.
    pub keys: f64,
    /// Of these, how many have no time to live, between 0 and 1; `None` where the server would not say.
    pub lasting_share: Option<f64>,
    /// In bytes, an estimate; `None` where it was not asked for.
    pub memory: Option<f64>,
}
