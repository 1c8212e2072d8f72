//! What a peer may make us hold, and what is wrong with bytes that are not RESP.

use std::fmt;

/// What a peer may make us hold. Beyond it the connection is no longer worth reading.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one whole frame. Default 512 MiB, the servers' own `proto-max-bulk-len`.
    pub frame_bytes_max: usize,
    /// Bytes of a line (header, simple string, error, number). Default 64 KiB, as in the servers' inline limit.
    pub line_bytes_max: usize,
    /// Elements of one whole frame, on all of its levels together. Default: as many as its bytes can hold. Each takes
    /// ten times the memory of its shortest form once it is a [`Value`](crate::Value).
    pub elements_max: u64,
    /// Nesting. Default 32; the deepest reply known (COMMAND DOCS) has 9 levels.
    pub depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { frame_bytes_max: 512 << 20, line_bytes_max: 64 << 10, elements_max: u64::MAX, depth_max: 32 }
    }
}

/// Bytes that are not RESP, or more of it than [`Limits`] allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Bytes from the start of the frame to the offence.
    pub offset: usize,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The first byte of a frame is none of `+-:$*_#,(!=%~>|`.
    UnknownType(u8),
    /// A length or a number is not one.
    BadNumber,
    /// CR LF was expected and something else stood there.
    MissingCrLf,
    /// More than the caller's [`Limits`].
    TooLarge,
    /// Deeper than [`Limits::depth_max`].
    TooDeep,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ErrorKind::UnknownType(b) => write!(f, "byte 0x{b:02x} at offset {} starts no RESP type", self.offset),
            ErrorKind::BadNumber => write!(f, "no valid number at offset {}", self.offset),
            ErrorKind::MissingCrLf => write!(f, "CR LF expected at offset {}", self.offset),
            ErrorKind::TooLarge => write!(f, "frame larger than the limit (offset {})", self.offset),
            ErrorKind::TooDeep => write!(f, "frame nested deeper than the limit (offset {})", self.offset),
        }
    }
}

impl std::error::Error for Error {}

/// A decimal integer with an optional sign, and nothing else around it.
pub(crate) fn number(digits: &[u8]) -> Option<i64> {
    let (negative, digits) = match digits {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut n: i64 = 0;
    for &d in digits {
        if !d.is_ascii_digit() {
            return None;
        }
        let d = i64::from(d - b'0');
        n = n.checked_mul(10)?;
        n = if negative { n.checked_sub(d)? } else { n.checked_add(d)? };
    }
    Some(n)
}
