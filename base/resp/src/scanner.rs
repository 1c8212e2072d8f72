//! Finds the end of a frame in bytes that arrive in pieces.
//!
//! A reply of a million elements that arrives in a thousand pieces is walked once, not a thousand times. Nothing is
//! reserved on the word of a length field: a header that promises 2^60 elements costs nothing until they are there.

use crate::limits::{Error, Limits};
use crate::splitter::{Split, Splitter};

/// "Not yet" is a value, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// More bytes are needed.
    Incomplete,
    /// The frame is the first `usize` bytes; the scanner is ready for the next one.
    Complete(usize),
}

/// Scans one frame after another from the front of a buffer that the caller appends to: a [`Splitter`] for those who
/// want the frame's bytes together.
#[derive(Clone, Debug)]
pub struct Scanner {
    splitter: Splitter,
    at: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner::new(Limits::default())
    }
}

impl Scanner {
    /// A scanner at the start of a frame.
    pub fn new(limits: Limits) -> Scanner {
        Scanner { splitter: Splitter::new(limits), at: 0 }
    }

    /// Looks for the end of the frame that starts at `buf[0]`. Call again with more bytes appended on
    /// [`Scan::Incomplete`]; drop the frame's bytes from the front after [`Scan::Complete`].
    pub fn scan(&mut self, buf: &[u8]) -> Result<Scan, Error> {
        match self.splitter.split(buf.get(self.at..).unwrap_or(b""))? {
            Split::More { consumed } => {
                self.at += consumed;
                Ok(Scan::Incomplete)
            }
            Split::Done(done) => Ok(Scan::Complete(std::mem::take(&mut self.at) + done.end)),
        }
    }
}
