//! What the writer reports of a batch: that it is done, and which of its messages are set aside.

use std::sync::Arc;
use std::time::Duration;

use crate::record::{Batch, Offset, Origin, Record};

/// What the writer reports to the thread that reads the source.
pub enum WriterEvent {
    Ack(Ack),
    /// For the operator.
    Note(String),
}

/// A batch is done.
pub struct Ack {
    pub number: u64,
    /// The last message of each origin.
    pub ends: Vec<(Arc<Origin>, Offset)>,
    pub dead: Vec<Letter>,
    pub records: usize,
    /// From the hand-over to the last reply.
    pub took: Duration,
}

/// A message that cannot be written.
#[derive(Clone, Debug)]
pub struct Letter {
    pub origin: Arc<Origin>,
    pub offset: Offset,
    pub time_ms: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    /// Why, as a sentence.
    pub reason: String,
}

impl Letter {
    pub fn new(batch: &Batch, record: &Record, reason: String) -> Letter {
        let message = batch.message(record);
        Letter {
            origin: batch.origins[record.origin as usize].clone(),
            offset: record.offset,
            time_ms: record.time_ms,
            key: message.key.map(<[u8]>::to_vec),
            value: message.value.map(<[u8]>::to_vec),
            headers: message.headers.iter().map(|(n, v)| (n.to_string(), v.to_vec())).collect(),
            reason,
        }
    }
}
