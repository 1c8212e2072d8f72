//! What a Sentinel says of itself and of those it knows.

use serde::{Deserialize, Serialize};

/// Whether a Sentinel trusts its own clock. In TILT it watches and says what it sees, and starts or joins no failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tilt {
    /// It does.
    Off,
    /// Its clock jumped, or it did not run for over two seconds.
    On {
        /// For this many seconds (7.0+).
        since_s: Option<u64>,
    },
}

/// A Sentinel or replica as another Sentinel lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Listed {
    /// `host:port`.
    pub address: String,
    /// Flags, as `sentinel,s_down`.
    pub flags: String,
    /// For how long it has been `s_down`, in ms; 0 where it is not.
    pub down_ms: u64,
}
