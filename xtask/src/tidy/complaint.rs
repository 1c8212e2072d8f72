//! What a check found, where, and what to do about it.

use std::fmt;

/// One thing that is not tidy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    path: String,
    /// From 1; 0 is the file, or whatever `path` names, as a whole.
    line: usize,
    text: String,
}

impl Complaint {
    /// `text` says what was found, what was expected and what to do.
    pub fn new(path: &str, line: usize, text: impl Into<String>) -> Complaint {
        Complaint { path: path.into(), line, text: text.into() }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}
