//! Why a sink does not start, or has ended: a kind for each of its parts, and what happens between them.

use std::io;

use crate::config::ConfigError;
use crate::dead::DeadLetterError;
use crate::mapping::MappingError;
use crate::source::SourceError;
use crate::writer::WriteError;

/// See the module. A text holds that of its cause, so there is no chain of sources to print.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A mapping that cannot work with these servers.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// Where messages come from.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Messages that cannot be written, and cannot be set aside.
    #[error(transparent)]
    DeadLetter(#[from] DeadLetterError),
    /// Where messages go, while it runs.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Where messages go, at the start: out of reach, or it refuses us.
    #[error(transparent)]
    Server(#[from] unslow_client::Error),
    /// The deployment has no master whose commands could be asked for.
    #[error("no master answers")]
    NoMaster,
    /// A node answers, but not what a Redis answers.
    #[error("{address}: no answer of COMMAND; is that a Redis?")]
    NoCommands { address: String },
    /// The user may not run EXISTS, which a mapping with scripts needs.
    #[error(
        "{address}: the mapping runs scripts, functions or module commands, and EXISTS, which confirms their \
         redirects, \
         is denied ({reply}); grant it: ACL SETUSER {user} +exists"
    )]
    ExistsDenied { address: String, reply: String, user: String },
    /// The system is out of threads or memory.
    #[error("a thread of the sink cannot be started: {0}")]
    Thread(io::Error),
    /// The same for what an event loop needs.
    #[error("the writer has no event loop")]
    NoEventLoop,
    /// The address is taken, or is none.
    #[error("metrics at {address}: {cause}")]
    Metrics { address: String, cause: io::Error },
    /// A dry run of a group: what it reads is lost for the others.
    #[error("--dry-run reads files and standard input: reading a group would take its messages")]
    DryRun,
    /// The writer is gone, and has not said why: it panicked.
    #[error("the writer has ended")]
    NoWriter,
    /// The source's thread panicked.
    #[error("the source's thread broke")]
    NoReader,
    /// `drain_ms` were over before everything was acknowledged.
    #[error("{batches} batches were not acknowledged in time; they are not committed and come again")]
    Undrained { batches: u64 },
    /// The routes would only age from here on.
    #[error("the watcher of the deployment ended by itself, a defect of unslow")]
    Unwatched,
}
