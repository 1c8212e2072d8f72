//! librdkafka's settings, for consumers and producers alike.

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;

use crate::broker::{BrokerError, KafkaSettings};

pub fn config(settings: &KafkaSettings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &settings.brokers);
    config.set("client.id", "unslow-sink");
    config.set("log_level", "3");
    config
}

/// A value may be a password, so it is not repeated.
pub fn config_error(e: KafkaError) -> BrokerError {
    match e {
        KafkaError::ClientConfig(_, why, name, _) => BrokerError::Setting { name, why },
        e => BrokerError::Client { why: e.to_string() },
    }
}
