//! Finds the end of a frame in bytes that arrive in pieces.
//!
//! The state is a position and a small stack of "elements still to come", so a reply of a million elements that
//! arrives in a thousand pieces is walked once, not a thousand times. Nothing is reserved on the word of a length
//! field: a header that promises 2^60 elements costs nothing until those elements are really there.

use std::fmt;

/// What a peer may make us hold. Beyond it the connection is no longer worth reading.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one whole frame. Default 512 MiB, the servers' own `proto-max-bulk-len`.
    pub frame_bytes_max: usize,
    /// Bytes of a line (header, simple string, error, number). Default 64 KiB, as in the servers' inline limit.
    pub line_bytes_max: usize,
    /// Nesting. Default 32; the deepest reply known (COMMAND DOCS) has 9 levels.
    pub depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { frame_bytes_max: 512 << 20, line_bytes_max: 64 << 10, depth_max: DEPTH }
    }
}

const DEPTH: usize = 32;

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

/// "Not yet" is a value, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// More bytes are needed.
    Incomplete,
    /// The frame is the first `usize` bytes; the scanner is ready for the next one.
    Complete(usize),
}

/// Scans one frame after another from the front of a buffer that the caller appends to.
#[derive(Clone, Debug)]
pub struct Scanner {
    limits: Limits,
    at: usize,
    /// Where the line being read has no LF before; saves looking at its bytes again.
    line_seen: usize,
    /// Elements still to come on each open level.
    open: [u64; DEPTH],
    depth: usize,
}

impl Default for Scanner {
    fn default() -> Self {
        Scanner::new(Limits::default())
    }
}

impl Scanner {
    /// A scanner at the start of a frame. `depth_max` above 32 counts as 32.
    pub fn new(mut limits: Limits) -> Scanner {
        limits.depth_max = limits.depth_max.min(DEPTH);
        Scanner { limits, at: 0, line_seen: 0, open: [0; DEPTH], depth: 0 }
    }

    /// Looks for the end of the frame that starts at `buf[0]`. Call again with more bytes appended on
    /// [`Scan::Incomplete`]; drop the frame's bytes from the front after [`Scan::Complete`].
    pub fn scan(&mut self, buf: &[u8]) -> Result<Scan, Error> {
        loop {
            let Some((line, next)) = self.line(buf)? else { return Ok(Scan::Incomplete) };
            let kind = line[0];
            let mut children: u64 = 0;
            // An attribute stands before the value it describes: it takes the place of no element.
            let mut prefix = false;
            let mut end = next;
            match kind {
                b'+' | b'-' | b'_' | b'#' | b',' | b'(' => {}
                b':' => {
                    number(&line[1..]).ok_or(self.error(ErrorKind::BadNumber))?;
                }
                b'$' | b'!' | b'=' => {
                    let n = number(&line[1..]).ok_or(self.error(ErrorKind::BadNumber))?;
                    if n < -1 {
                        return Err(self.error(ErrorKind::BadNumber));
                    }
                    if n >= 0 {
                        if n as u64 > self.limits.frame_bytes_max as u64 {
                            return Err(self.error(ErrorKind::TooLarge));
                        }
                        end = next + n as usize + 2;
                        if end > self.limits.frame_bytes_max {
                            return Err(self.error(ErrorKind::TooLarge));
                        }
                        if buf.len() < end {
                            return Ok(Scan::Incomplete);
                        }
                        if &buf[end - 2..end] != b"\r\n" {
                            return Err(Error { kind: ErrorKind::MissingCrLf, offset: end - 2 });
                        }
                    }
                }
                b'*' | b'~' | b'>' | b'%' | b'|' => {
                    let n = number(&line[1..]).ok_or(self.error(ErrorKind::BadNumber))?;
                    if n < -1 {
                        return Err(self.error(ErrorKind::BadNumber));
                    }
                    children = n.max(0) as u64;
                    if children > self.limits.frame_bytes_max as u64 / 3 {
                        return Err(self.error(ErrorKind::TooLarge)); // three bytes is the shortest element
                    }
                    if matches!(kind, b'%' | b'|') {
                        children *= 2;
                    }
                    prefix = kind == b'|';
                }
                other => return Err(self.error(ErrorKind::UnknownType(other))),
            }
            self.at = end;
            self.line_seen = end;
            if !prefix && self.depth > 0 {
                self.open[self.depth - 1] -= 1;
            }
            if children > 0 || prefix {
                // The value after an attribute is counted by the level the attribute stands on; at the top that
                // level is one of its own.
                if prefix && self.depth == 0 {
                    self.push(1)?;
                }
                if children > 0 {
                    self.push(children)?;
                }
                continue;
            }
            while self.depth > 0 && self.open[self.depth - 1] == 0 {
                self.depth -= 1;
            }
            if self.depth == 0 {
                let len = self.at;
                self.at = 0;
                self.line_seen = 0;
                return Ok(Scan::Complete(len));
            }
        }
    }

    fn push(&mut self, children: u64) -> Result<(), Error> {
        if self.depth == self.limits.depth_max {
            return Err(self.error(ErrorKind::TooDeep));
        }
        self.open[self.depth] = children;
        self.depth += 1;
        Ok(())
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error { kind, offset: self.at }
    }

    /// The line at `self.at` without CR LF, and where the next begins.
    fn line<'b>(&mut self, buf: &'b [u8]) -> Result<Option<(&'b [u8], usize)>, Error> {
        if self.at >= self.limits.frame_bytes_max {
            return Err(self.error(ErrorKind::TooLarge));
        }
        if buf.len() <= self.at {
            return Ok(None);
        }
        // Told before the line is whole: a peer that is not a Redis should not be waited for.
        if !b"+-:$*_#,(!=%~>|".contains(&buf[self.at]) {
            return Err(self.error(ErrorKind::UnknownType(buf[self.at])));
        }
        let from = self.line_seen.max(self.at);
        match buf[from..].iter().position(|&b| b == b'\n') {
            Some(i) => {
                let lf = from + i;
                if lf - self.at > self.limits.line_bytes_max {
                    return Err(self.error(ErrorKind::TooLarge));
                }
                if lf < self.at + 2 || buf[lf - 1] != b'\r' {
                    return Err(Error { kind: ErrorKind::MissingCrLf, offset: lf });
                }
                Ok(Some((&buf[self.at..lf - 1], lf + 1)))
            }
            None if buf.len() - self.at > self.limits.line_bytes_max => Err(self.error(ErrorKind::TooLarge)),
            None => {
                self.line_seen = buf.len();
                Ok(None)
            }
        }
    }
}

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
