//! The flight recorder: every second of a deployment, for weeks, at next to no cost, and the facts of any window of it.
//!
//! ```text
//!   record:  eye (event loop: PING, INFO) --+
//!            inquirers (slow log, clients) -+--> keeper --> base/series
//!            machine (/proc, once a minute)-+
//!   read:    base/series --> Tape --> Facts --> the same rules as live
//! ```
//!
//! What is asked is what a diagnosis asks: the client's read-only list, with the probe's limits and redaction. How a
//! recording looks is in `scheme.rs`, why it is so in `DESIGN.md`.
#![forbid(unsafe_code)]

mod eye;
mod info;
mod inquirers;
mod keeper;
mod notes;
mod pings;
mod recorder;
mod scheme;
mod tape;

pub use recorder::{Ended, Progress, Recorder, Settings, StartError};
pub use tape::{Tape, TapeError, Windows};
pub use unslow_series::Settings as Store;
