//! Kafka, files and streams into Redis and Valkey: a whole batch in one round trip to each node.
//!
//! ```text
//!   source thread:  read -> Batch -> (window) ----------------------------> writer thread: encode -> pipeline -> replies
//!        ^                                                                        |
//!        +--- commit offsets <- dead letters are safe <- in order <- Ledger <- Ack
//! ```
//!
//! What surprises:
//! - Reading, encoding, sending and waiting overlap: while one batch is at the servers the next is encoded and the one
//!   after it read.
//! - An offset is committed when every batch up to it is done: acknowledged by its servers (and their replicas, with
//!   WAIT), left out by the mapping, or set aside where it is safe.
//! - Order is kept within a slot, and so within a key; see `writer.rs` for what that takes when servers move or fail.
#![forbid(unsafe_code)]

mod config;
mod dead;
mod document;
mod encode;
mod ledger;
mod mapping;
mod record;
mod run;
mod source;
mod stats;
mod template;
mod window;
mod writer;

pub use config::Config;
pub use document::Format;
pub use mapping::{CommandSettings, Fold, MapSettings, OneOrMore};
pub use run::{Error, Sink, Start, dry_run};
pub use stats::{Report, Snapshot};
