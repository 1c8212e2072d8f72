//! What can go wrong with servers that are run here.

use std::fmt;

/// A server that cannot be found, installed or started.
#[derive(Clone, Debug)]
pub struct Error {
    /// What a caller may act on.
    pub kind: ErrorKind,
    message: String,
}

/// The kinds a caller acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Another program was faster: the server found its port taken.
    PortTaken,
    /// Everything is being ended, and nothing begins any more.
    Interrupted,
    /// It was not so within the time that was given.
    TooLate,
    /// A server's or a connection's own refusal.
    Client(unslow_client::ErrorKind),
    /// Anything else: a person has to read it.
    Other,
}

impl Error {
    /// This sentence, for a person.
    pub fn new(message: impl Into<String>) -> Error {
        Error::of(ErrorKind::Other, message)
    }

    pub(crate) fn of(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    pub(crate) fn interrupted() -> Error {
        Error::of(ErrorKind::Interrupted, "interrupted")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<unslow_client::Error> for Error {
    fn from(e: unslow_client::Error) -> Error {
        Error::of(ErrorKind::Client(e.kind), e.to_string())
    }
}
