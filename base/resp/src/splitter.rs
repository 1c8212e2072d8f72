//! Splits a stream of frames without keeping or building them.
//!
//! What a data plane needs of a reply is where it ends and what it was; not its bytes. So a blob is stepped over as it
//! arrives, a 512 MB value costs no more memory than a small one, and all that must wait for the next read is an
//! unfinished line. The common replies (a scalar or one blob, whole in the buffer) take a path of a few compares.

use crate::scanner::{Error, ErrorKind, Limits, number};

/// "Not yet" is a value, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The first `consumed` bytes are done with; the rest (less than a line) must stand at the front of the next call.
    More {
        /// Bytes that may be dropped, or forwarded.
        consumed: usize,
    },
    /// The frame ends here.
    Done(Done),
}

/// A frame's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes of this call's buffer that belong to the frame.
    pub end: usize,
    /// Whether the whole frame stands in this call's buffer, from its first byte. Always so for simple strings, errors
    /// and numbers.
    pub whole: bool,
    /// Its type byte; that of the value where attributes stand before it.
    pub kind: u8,
    /// `$-1`, `*-1` or `_`.
    pub null: bool,
    /// An aggregate that holds an error, as EXEC's reply may.
    pub error_inside: bool,
}

/// Splits frames that arrive in pieces. Cheap to have one for each of many connections.
#[derive(Clone, Debug)]
pub struct Splitter {
    limits: Limits,
    /// Bytes of the frame that earlier calls consumed.
    seen: usize,
    /// Of the blob being stepped over, CR LF included, still to come.
    skip: u64,
    /// Bytes of the unfinished line that hold no LF; saves looking at them again.
    line_seen: usize,
    /// Elements still to come on each open level.
    open: Vec<u64>,
    /// Type of the frame being split; 0 between frames.
    kind: u8,
    null: bool,
    error_inside: bool,
}

impl Default for Splitter {
    fn default() -> Self {
        Splitter::new(Limits::default())
    }
}

impl Splitter {
    /// A splitter at the start of a frame.
    pub fn new(limits: Limits) -> Splitter {
        Splitter { limits, seen: 0, skip: 0, line_seen: 0, open: Vec::new(), kind: 0, null: false, error_inside: false }
    }

    /// Looks for the end of the frame that `buf` begins or goes on with.
    #[inline]
    pub fn split(&mut self, buf: &[u8]) -> Result<Split, Error> {
        if self.seen == 0
            && self.line_seen == 0
            && let Some(done) = self.whole_scalar(buf)
        {
            return Ok(Split::Done(done));
        }
        self.step(buf)
    }

    /// A blob, simple string, error or integer that is all there; anything else takes the long way.
    #[inline]
    fn whole_scalar(&self, buf: &[u8]) -> Option<Done> {
        let kind = *buf.first()?;
        let done = |end| Done { end, whole: true, kind, null: false, error_inside: false };
        match kind {
            b'$' => {
                let mut n = 0usize;
                let mut at = 1;
                loop {
                    let digit = buf.get(at)?.wrapping_sub(b'0');
                    if digit > 9 {
                        break;
                    }
                    n = n * 10 + usize::from(digit);
                    at += 1;
                    if at > 10 {
                        return None; // nine digits hold the largest frame allowed; more is not for this path
                    }
                }
                let end = at + 2 + n + 2;
                let framed = at > 1
                    && end <= buf.len()
                    && end <= self.limits.frame_bytes_max
                    && buf[at..at + 2] == *b"\r\n"
                    && buf[end - 2..end] == *b"\r\n";
                framed.then(|| done(end))
            }
            b'+' | b'-' => {
                // Short by nature; longer ones take the long way, which remembers where it stopped.
                let lf = buf.iter().take(64).position(|&b| b == b'\n')?;
                (buf[lf - 1] == b'\r').then(|| done(lf + 1))
            }
            _ => None,
        }
    }

    fn step(&mut self, buf: &[u8]) -> Result<Split, Error> {
        let begun_here = self.seen == 0;
        let mut at = 0;
        loop {
            if self.skip > 0 {
                let here = self.skip.min((buf.len() - at) as u64) as usize;
                // The last two of `skip` are CR LF.
                for (back, expected) in [(2u64, b'\r'), (1, b'\n')] {
                    if let Some(i) = self.skip.checked_sub(back).map(|i| i as usize)
                        && i < here
                        && buf[at + i] != expected
                    {
                        return Err(self.error(at + i, ErrorKind::MissingCrLf));
                    }
                }
                at += here;
                self.skip -= here as u64;
                if self.skip > 0 {
                    self.seen += at;
                    return Ok(Split::More { consumed: at });
                }
                if self.element_done() {
                    return Ok(Split::Done(self.finish(at, begun_here)));
                }
                continue;
            }
            let Some((line, next)) = self.line(buf, at)? else {
                self.seen += at;
                return Ok(Split::More { consumed: at });
            };
            let kind = line[0];
            let mut null = kind == b'_';
            let mut children: u64 = 0;
            // An attribute stands before the value it describes: it takes the place of no element.
            let mut prefix = false;
            match kind {
                b'+' | b'-' | b'_' | b'#' | b',' | b'(' => {}
                b':' => {
                    number(&line[1..]).ok_or(self.error(at, ErrorKind::BadNumber))?;
                }
                b'$' | b'!' | b'=' => {
                    let n = number(&line[1..]).ok_or(self.error(at, ErrorKind::BadNumber))?;
                    if n < -1 {
                        return Err(self.error(at, ErrorKind::BadNumber));
                    }
                    null = n < 0;
                    if n >= 0 {
                        let end = (self.seen + next + 2) as u64 + n as u64;
                        if end > self.limits.frame_bytes_max as u64 {
                            return Err(self.error(at, ErrorKind::TooLarge));
                        }
                        self.skip = n as u64 + 2;
                    }
                }
                b'*' | b'~' | b'>' | b'%' | b'|' => {
                    let n = number(&line[1..]).ok_or(self.error(at, ErrorKind::BadNumber))?;
                    if n < -1 {
                        return Err(self.error(at, ErrorKind::BadNumber));
                    }
                    null = n < 0;
                    children = n.max(0) as u64;
                    if children > self.limits.frame_bytes_max as u64 / 3 {
                        return Err(self.error(at, ErrorKind::TooLarge)); // three bytes is the shortest element
                    }
                    if matches!(kind, b'%' | b'|') {
                        children *= 2;
                    }
                    prefix = kind == b'|';
                }
                other => return Err(self.error(at, ErrorKind::UnknownType(other))),
            }
            // The frame's own type: the first value on its first level, behind attributes.
            if self.open.is_empty() || self.kind == 0 && self.open.len() == 1 && self.open[0] == 1 {
                self.kind = if prefix { 0 } else { kind };
                self.null = null;
            } else {
                self.error_inside |= matches!(kind, b'-' | b'!');
            }
            at = next;
            if self.skip > 0 {
                continue;
            }
            if children > 0 || prefix {
                if !prefix && let Some(level) = self.open.last_mut() {
                    *level -= 1;
                }
                // The value after an attribute is counted by the level the attribute stands on; at the top that level is
                // one of its own.
                if prefix && self.open.is_empty() {
                    self.push(at, 1)?;
                }
                if children > 0 {
                    self.push(at, children)?;
                }
                continue;
            }
            if self.element_done() {
                return Ok(Split::Done(self.finish(at, begun_here)));
            }
        }
    }

    /// Counts one element off; true when it was the last of the frame.
    fn element_done(&mut self) -> bool {
        if let Some(level) = self.open.last_mut() {
            *level -= 1;
        }
        while self.open.last() == Some(&0) {
            self.open.pop();
        }
        self.open.is_empty()
    }

    fn finish(&mut self, end: usize, whole: bool) -> Done {
        let done = Done { end, whole, kind: self.kind, null: self.null, error_inside: self.error_inside };
        (self.seen, self.line_seen, self.kind, self.null, self.error_inside) = (0, 0, 0, false, false);
        done
    }

    fn push(&mut self, at: usize, children: u64) -> Result<(), Error> {
        if self.open.len() == self.limits.depth_max {
            return Err(self.error(at, ErrorKind::TooDeep));
        }
        self.open.push(children);
        Ok(())
    }

    fn error(&self, at: usize, kind: ErrorKind) -> Error {
        Error { kind, offset: self.seen + at }
    }

    /// The line at `at` without CR LF, and where the next begins.
    fn line<'b>(&mut self, buf: &'b [u8], at: usize) -> Result<Option<(&'b [u8], usize)>, Error> {
        if self.seen + at >= self.limits.frame_bytes_max {
            return Err(self.error(at, ErrorKind::TooLarge));
        }
        if buf.len() <= at {
            return Ok(None);
        }
        // Told before the line is whole: a peer that is not a Redis should not be waited for.
        if !b"+-:$*_#,(!=%~>|".contains(&buf[at]) {
            return Err(self.error(at, ErrorKind::UnknownType(buf[at])));
        }
        let from = at + std::mem::take(&mut self.line_seen);
        match buf.get(from..).and_then(|b| b.iter().position(|&b| b == b'\n')) {
            Some(i) => {
                let lf = from + i;
                if lf - at > self.limits.line_bytes_max {
                    return Err(self.error(at, ErrorKind::TooLarge));
                }
                if lf < at + 2 || buf[lf - 1] != b'\r' {
                    return Err(self.error(lf, ErrorKind::MissingCrLf));
                }
                Ok(Some((&buf[at..lf - 1], lf + 1)))
            }
            None if buf.len() - at > self.limits.line_bytes_max => Err(self.error(at, ErrorKind::TooLarge)),
            None => {
                self.line_seen = buf.len() - at;
                Ok(None)
            }
        }
    }
}
