//! Stands where `producer.rs` would in a build without the `kafka` feature: the same names, and an error that says so.

use std::convert::Infallible;

use crate::broker::{BrokerError, KafkaSettings};
use crate::events::Letter;

/// Never made.
pub struct Producer(Infallible);

impl Producer {
    /// Always the error.
    pub fn open(_settings: &KafkaSettings, _topic: &str) -> Result<Producer, BrokerError> {
        Err(BrokerError::Absent)
    }

    /// Sends letters to the topic.
    pub fn send(&mut self, _letters: &[Letter]) -> Result<(), BrokerError> {
        match self.0 {}
    }
}
