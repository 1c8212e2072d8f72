//! Why a source cannot be read, or what is done with cannot be told to it.

use std::io;
use std::path::PathBuf;

/// See the module. A text holds that of its cause.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file, or standard input, cannot be opened or read.
    #[error("{path}: {cause}")]
    Input { path: String, cause: io::Error },
    /// The file is a directory.
    #[error("{path}: a file with a message a line was expected, this is a directory")]
    Directory { path: String },
    /// `--checkpoint` with standard input, which has no place to come back to.
    #[error("a checkpoint needs a file to come back to, not standard input")]
    CheckpointOfStandardInput,
    /// The checkpoint cannot be read or written.
    #[error("{}: {cause}", .path.display())]
    Checkpoint { path: PathBuf, cause: io::Error },
    /// What stands in the checkpoint was written by something else.
    #[error("{}: no checkpoint: a line's number, a byte and a file's identity were expected", .path.display())]
    NoCheckpoint { path: PathBuf },
    /// The checkpoint is of another file, or of this one before it was cut.
    #[error("{} is the place in another file than {input} is now; remove it to start over", .path.display())]
    OtherFile { path: PathBuf, input: String },
    /// The server of the stream cannot be reached, or refuses the group.
    #[error(transparent)]
    Server(unslow_client::Error),
    /// The server refuses to read the stream, and will again.
    #[error("{key}: {cause}")]
    Stream { key: String, cause: unslow_client::Error },
    /// Something else answered.
    #[error("the stream's server: no answer of XREADGROUP")]
    NoEntries,
    /// It ends, and cannot tell the server what is done with.
    #[error("{cause}; {entries} entries are not acknowledged and come again")]
    Unacknowledged { entries: usize, cause: unslow_client::Error },
    /// Kafka.
    #[error(transparent)]
    Broker(#[from] BrokerError),
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
            assert_eq!(SourceError::from(error).to_string(), format!("h:1: no topic \"t\"; there are {words}"));
        }
    }
}
