//! A bounded walk through a deployment's keys: what they are called, how many, how large, for how long.
//!
//! Each shard is walked at one of its replicas if it has one that is connected to its master, with SCAN and a few
//! questions about each key, no value is read, and never in more than a fifth of a server's time. The walk may end at
//! any time: what it has seen is a random sample, so what it says of all keys has error bounds ([`estimate`]), and
//! [`Scan`] can be saved and gone on with.
//!
//! Names are hidden as in a diagnosis unless they are asked for: patterns with few keys are not told, and single keys
//! have a hash.
#![forbid(unsafe_code)]

pub mod estimate;
mod hot;
mod patterns;
mod places;
mod report;
mod scan;
mod sizes;
mod walk;
mod walked;

pub use hot::{Hot, HotKey, Stop, Tracked, track};
pub use patterns::{Patterns, Sum};
pub use report::{HotRow, HotServer, KeyRow, KindRow, PatternRow, Report, ServerRow};
pub use scan::{Part, Questions, Scan, ScanError, Sums, Ttl};
pub use sizes::SizeClass;
pub use walk::{Settings, walk};
pub use walked::{Cost, Walked};
