//! Where messages come from.

mod error;
#[cfg_attr(not(feature = "kafka"), path = "kafka_absent.rs")]
pub mod kafka;
pub mod lines;
pub mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use error::SourceError;

use crate::record::{Batch, Offset, Origin};

/// What reading brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Perhaps messages, and more may come.
    Open,
    /// No more messages will come.
    End,
}

/// A source of messages, each origin in its order.
pub trait Source: Send {
    /// Fills a batch up to the limit, and waits no longer than it says.
    fn read(&mut self, batch: &mut Batch, limit: Limit) -> Result<Read, SourceError>;

    /// Called again and again while nothing may be read for long.
    fn idle(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    /// These are done with, up to and including the offsets.
    fn commit(&mut self, ends: Vec<(Arc<Origin>, Offset)>) -> Result<(), SourceError>;

    /// Everything is committed; nothing follows.
    fn close(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// How much to read at once.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Messages.
    pub messages: usize,
    /// Bytes, about.
    pub bytes: usize,
    /// To wait for the first message.
    pub patience: Duration,
    /// To wait for more once there is one.
    pub linger: Duration,
}

impl Limit {
    fn full(&self, batch: &Batch) -> bool {
        batch.records.len() >= self.messages || batch.bytes.len() >= self.bytes
    }
}

/// Says something to the person who runs the sink.
pub type Note = Arc<dyn Fn(&str) + Send + Sync>;

/// How long a source may still wait.
struct Clock {
    limit: Limit,
    begun: Instant,
    first: Option<Instant>,
}

impl Clock {
    fn new(limit: Limit) -> Clock {
        Clock { limit, begun: Instant::now(), first: None }
    }

    /// `None` when it is time to go.
    fn left(&mut self, batch: &Batch) -> Option<Duration> {
        let until = match self.first {
            _ if batch.records.is_empty() => self.begun + self.limit.patience,
            Some(first) => first + self.limit.linger,
            None => *self.first.insert(Instant::now()) + self.limit.linger,
        };
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }
}
