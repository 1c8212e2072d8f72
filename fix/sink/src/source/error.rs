//! Why a source cannot be read, or what is done with cannot be told to it.

use std::io;
use std::path::PathBuf;

use crate::broker::BrokerError;

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
