//! What can go wrong between here and a server, told so that a person knows what to type next.

use std::fmt;

/// A failed connection or command.
#[derive(Clone, Debug)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// The whole sentence: what was found, what was expected, what to do.
    pub message: String,
}

/// The kinds a caller acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The address could not be read.
    BadUrl,
    /// The name did not resolve.
    Resolve,
    /// Nobody listens there, no route, or no answer to the connection attempt.
    Unreachable,
    /// The peer was reached, and nothing, or half of it, came in time.
    Timeout,
    /// The peer closed the connection.
    Closed,
    /// Something listens, but not a Redis or Valkey server.
    NotRedis,
    /// TLS failed, or one side spoke it and the other did not.
    Tls,
    /// A password is wanted.
    AuthRequired,
    /// The password or user was refused.
    WrongPassword,
    /// This user may not run this command (NOPERM), or the service has removed it.
    Denied,
    /// The server has no such command or argument; mostly an older version.
    Unknown,
    /// The server is at `maxclients`.
    MaxClients,
    /// The server reads its data set and answers nothing else yet.
    Loading,
    /// Any other error reply.
    Reply,
    /// The command is not on the read-only list; a defect in unslow.
    NotAllowed,
}

impl Error {
    /// A new error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// Whether the connection is of no more use.
    pub fn is_fatal(&self) -> bool {
        use ErrorKind::*;
        matches!(self.kind, Resolve | Unreachable | Timeout | Closed | NotRedis | Tls | MaxClients)
    }

    /// Sorts an error reply by its code word.
    pub(crate) fn reply(text: &str, command: &str) -> Error {
        let lower = text.to_ascii_lowercase();
        let kind = if text.starts_with("NOPERM") || lower.contains("this user has no permissions") {
            ErrorKind::Denied
        } else if text.starts_with("NOAUTH") || text.starts_with("-NOAUTH") {
            ErrorKind::AuthRequired
        } else if text.starts_with("WRONGPASS") || lower.contains("invalid password") {
            ErrorKind::WrongPassword
        } else if text.starts_with("LOADING") {
            ErrorKind::Loading
        } else if lower.contains("max number of clients") {
            ErrorKind::MaxClients
        } else if lower.contains("unknown command")
            || lower.contains("unknown subcommand")
            || lower.contains("unknown or disabled")
        {
            ErrorKind::Unknown
        } else {
            ErrorKind::Reply
        };
        Error { kind, message: format!("{command}: {text}") }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
