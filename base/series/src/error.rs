//! What stops the store, and what it reads around.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a directory cannot be opened or a value cannot be taken.
#[derive(Debug)]
pub enum Error {
    /// Another process writes into this directory; `holder` is the content of its lock file: the process id.
    Locked { dir: PathBuf, holder: String },
    /// A file of a format this version does not read.
    Version { file: String, found: u16, newest: u16 },
    /// A name, text or payload over its limit.
    TooLong { text: Text, bytes: usize, max: usize },
    /// A sample with more fields than a chunk can hold.
    TooManyFields { count: usize, max: usize },
    /// An id that this writer has not given out.
    UnknownId,
    /// The system refused; a full disk is not among these while anything can be deleted.
    Io { doing: &'static str, file: String, source: io::Error },
}

/// Which text was too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    SeriesName,
    FieldName,
    TextName,
    TextValue,
    EventKind,
    EventPayload,
}

impl Error {
    pub(crate) fn io(doing: &'static str, file: &str, source: io::Error) -> Error {
        Error::Io { doing, file: file.to_string(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Locked { dir, holder } => {
                write!(f, "{}: process {holder} is recording here; stop it or choose another directory", dir.display())
            }
            Error::Version { file, found, newest } => {
                write!(f, "{file}: format {found}; this version reads formats 1 to {newest}: use a newer unslow")
            }
            Error::TooLong { text, bytes, max } => write!(f, "{text:?}: {bytes} bytes, expected at most {max}"),
            Error::TooManyFields { count, max } => write!(f, "a sample of {count} fields, expected at most {max}"),
            Error::UnknownId => write!(f, "an id that this writer has not given out"),
            Error::Io { doing, file, source } => write!(f, "cannot {doing} {file}: {source}"),
        }
    }
}

// What the system said is in the text already.
impl std::error::Error for Error {}

/// A piece of a file that could not be read; everything around it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub file: String,
    /// Where the piece begins in the file, in bytes.
    pub at: u64,
    pub bytes: u64,
    pub kind: DamageKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The file's first bytes are not a header; its frames were looked for all the same.
    Header,
    /// The last frame is incomplete: the writer was killed, or is writing now.
    TornTail,
    /// Bytes that are no frame.
    NoFrame,
    /// A frame whose checksum does not match.
    Checksum,
    /// The checksum matches, but the content breaks the format's rules or limits.
    Content,
    /// A file larger than any that a writer makes.
    TooLarge,
    /// The system would not read it.
    Unreadable,
}

impl DamageKind {
    /// For a person.
    pub fn words(self) -> &'static str {
        match self {
            DamageKind::Header => "no header",
            DamageKind::TornTail => "cut off: the recorder was killed there, or is writing",
            DamageKind::NoFrame => "bytes that are no chunk",
            DamageKind::Checksum => "the checksum does not match",
            DamageKind::Content => "the content breaks the format's rules",
            DamageKind::TooLarge => "larger than any file of a recording",
            DamageKind::Unreadable => "the system does not read it",
        }
    }
}
