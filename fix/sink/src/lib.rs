//! Kafka, files and streams into Redis and Valkey: a whole batch in one round trip to each node.
//!
//! ```text
//!   source thread:  read -> Batch -> (window) --------------------------> writer thread: encode -> pipeline -> replies
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

mod broker;
mod condition;
mod config;
mod dead;
mod document;
mod dry_run;
mod encode;
mod error;
mod events;
mod ledger;
mod mapping;
mod poison;
mod private;
mod record;
mod routes;
mod run;
mod source;
mod stats;
mod template;
mod trouble;
mod window;
mod writer;

pub use broker::BrokerError;
pub use condition::ConditionError;
pub use config::{Config, ConfigError};
pub use dead::DeadLetterError;
pub use document::{Format, NoMember};
pub use dry_run::dry_run;
pub use error::Error;
pub use mapping::{CommandError, CommandSettings, Fold, MapError, MapSettings, MappingError, OneOrMore};
pub use poison::TooLong;
pub use run::{Note, Sink, Start};
pub use source::SourceError;
pub use stats::{Report, Snapshot};
pub use template::TemplateError;
pub use writer::WriteError;

/// For fuzzing: a template and a message, as JSON and as MessagePack.
pub fn fuzz(template: &str, message: &[u8]) {
    use unslow_resp::{Scan, Scanner};
    let Ok(template) = template::Template::parse(template) else { return };
    for format in [Format::Json, Format::Msgpack] {
        let Ok(document) = document::Document::open(message, format) else { continue };
        let mut batch = record::Batch::default();
        let value = Some(batch.keep(message));
        let id = "".into();
        let origin = batch.origin(&std::sync::Arc::new(record::Origin { topic: "t".into(), partition: 0, id }));
        let offset = record::Offset(0, 1);
        let (time_ms, key, headers, broken) = (0, None, (0, 0), false);
        let record = record::Record { origin, offset, time_ms, key, value, headers, broken };
        let mut out = Vec::new();
        if template.render(&mut out, &batch.message(&record), &document, &mut Default::default()).is_ok() {
            assert!(matches!(Scanner::default().scan(&out), Ok(Scan::Complete(len)) if len == out.len()));
        }
    }
}
