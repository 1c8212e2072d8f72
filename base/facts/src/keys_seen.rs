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
