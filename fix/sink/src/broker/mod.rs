//! Kafka's brokers, as far as the source and the dead letters both need them: settings, errors, and a producer.

#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod producer;
#[cfg(not(feature = "kafka"))]
#[path = "producer_absent.rs"]
mod producer;

use std::collections::BTreeMap;

#[cfg(feature = "kafka")]
pub use client::{config, config_error};
pub use producer::Producer;

/// Which brokers, what of them, and as whom.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "kafka"), allow(dead_code))] // the sibling that refuses reads nothing of it
pub struct KafkaSettings {
    /// `host:port,host:port`.
    pub brokers: String,
    /// Names, or patterns that begin with `^`.
    pub topics: Vec<String>,
    /// Consumer group.
    pub group: String,
    /// librdkafka's own settings.
    pub properties: BTreeMap<String, String>,
    /// Ends when every partition has been read to its end.
    pub until_end: bool,
    /// Whether marks are kept, which need the cluster's own name.
    pub exactly_once: bool,
    /// Whether a mapping looks at headers.
    pub headers: bool,
}

/// What Kafka's brokers refuse, or librdkafka. What they say of it is kept as its text: `why`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// This binary has no Kafka in it.
    #[error("this unslow was built without Kafka; cargo build --release builds one with it")]
    Absent,
    /// A setting that librdkafka does not take. Its value may be a password, so it is not here.
    #[error("Kafka setting {name}: {why}")]
    Setting { name: String, why: String },
    /// librdkafka does not start.
    #[error("{why}")]
    Client { why: String },
    /// Nobody answers, or nobody whom we understand.
    #[error(
        "{brokers}: no Kafka broker answers within {seconds} s ({why}); is the address right, and TLS or SASL wanted?"
    )]
    NoBroker { brokers: String, seconds: u64, why: String },
    /// A topic is missing; some that are there.
    #[error("{brokers}: no topic {topic:?}; there are {}", names(.there))]
    NoTopic { brokers: String, topic: String, there: Vec<String> },
    /// An old broker; marks need to know whose offsets they are.
    #[error("{brokers}: Kafka does not say its cluster's id, which the marks of exactly_once need")]
    NoClusterId { brokers: String },
    /// The topics cannot be subscribed to.
    #[error("topics {topics}: {why}")]
    Subscribe { topics: String, why: String },
    /// The user may not read, the topic has gone, or librdkafka gives up.
    #[error("Kafka: {why}")]
    Read { why: String },
    /// A partition cannot be paused or read on.
    #[error("{why}")]
    Pause { why: String },
    /// A message that came too early cannot be asked for again.
    #[error("{topic} [{partition}]: {why}")]
    Seek { topic: String, partition: i32, why: String },
    /// Letters are not in their topic.
    #[error("dead letters to topic {topic}: {why}")]
    Letters { topic: String, why: String },
}

fn names(there: &[String]) -> String {
    if there.is_empty() { "none at all".into() } else { there.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_topic_is_told_with_those_that_are_there() {
        for (there, words) in [(vec![], "none at all"), (vec!["a".to_string(), "b".to_string()], "a, b")] {
            let error = BrokerError::NoTopic { brokers: "h:1".into(), topic: "t".into(), there };
            assert_eq!(error.to_string(), format!("h:1: no topic \"t\"; there are {words}"));
        }
    }
}
