//! Stands where `kafka.rs` would in a build without the `kafka` feature: the same names, and an error that says so.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use crate::broker::{BrokerError, KafkaSettings};
use crate::ledger::Ledger;
use crate::record::{Batch, Offset, Origin};
use crate::source::{Limit, Note, Read, Source, SourceError};
use crate::stats::Stats;

/// Never made.
pub struct Kafka(Infallible);

impl Kafka {
    /// Always the error.
    pub fn open(
        _settings: &KafkaSettings,
        _ledger: Arc<Mutex<Ledger>>,
        _stats: Arc<dyn AsRef<Stats> + Send + Sync>,
        _note: Note,
    ) -> Result<Kafka, BrokerError> {
        Err(BrokerError::Absent)
    }
}

impl Source for Kafka {
    fn read(&mut self, _batch: &mut Batch, _limit: Limit) -> Result<Read, SourceError> {
        match self.0 {}
    }

    fn commit(&mut self, _ends: Vec<(Arc<Origin>, Offset)>) -> Result<(), SourceError> {
        match self.0 {}
    }
}
