//! Splits a stream of frames without keeping or building them.
//!
//! What a data plane needs of a reply is where it ends and what it was; not its bytes. So a blob is stepped over as it
//! arrives, a 512 MB value costs no more memory than a small one, and all that must wait for the next read is an
//! unfinished line. The common replies (a scalar or one blob, whole in the buffer) take a path of a few compares.
//!
//! A line longer than [`Limits::line_bytes_max`] is an error, unless it is text and the splitter steps over long texts
//! ([`Splitter::over_long_texts`]): a script's simple string or error may be as long as a blob.

use crate::limits::{Error, ErrorKind, Limits, number};

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
    /// and numbers, except for those that [`Splitter::over_long_texts`] has stepped over.
    pub whole: bool,
    /// Its type byte; that of the value where attributes stand before it.
    pub kind: u8,
    /// `$-1`, `*-1` or `_`.
    pub null: bool,
    /// An aggregate that holds an error, as EXEC's reply may.
    pub error_inside: bool,
}

/// What becomes of a simple string, an error or a big number longer than [`Limits::line_bytes_max`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LongText {
    /// An error.
    Refused,
    /// It is stepped over as it arrives.
    Passed,
}

/// Splits frames that arrive in pieces. Cheap to have one for each of many connections.
#[derive(Clone, Debug)]
pub struct Splitter {
    limits: Limits,
    long_text: LongText,
    /// In the middle of a text that is being stepped over.
    within_text: bool,
    /// Bytes of the frame that earlier calls consumed.
    seen: usize,
    /// Of the blob being stepped over, CR LF included, still to come.
    skip: u64,
    /// Bytes of the unfinished line that hold no LF; saves looking at them again.
    line_seen: usize,
    /// Elements still to come on each open level.
    open: Vec<u64>,
    /// Elements that the frame has announced so far.
    elements: u64,
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
        Splitter {
            limits,
            long_text: LongText::Refused,
            within_text: false,
            seen: 0,
            skip: 0,
            line_seen: 0,
            open: Vec::new(),
            elements: 0,
            kind: 0,
            null: false,
            error_inside: false,
        }
    }

    /// One that steps over simple strings, errors and big numbers longer than `line_bytes_max`, as over blobs: they are
    /// limited by `frame_bytes_max` alone.
    pub fn over_long_texts(limits: Limits) -> Splitter {
        Splitter { long_text: LongText::Passed, ..Splitter::new(limits) }
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
                at = self.skip_blob(buf, at)?;
                if self.skip > 0 {
                    self.seen += at;
                    return Ok(Split::More { consumed: at });
                }
                if self.element_done() {
                    return Ok(Split::Done(self.finish(at, begun_here)));
                }
                continue;
            }
            if self.within_text {
                let Some(end) = self.text_end(buf, at)? else {
                    // The last byte may be the CR of its end.
                    let consumed = buf.len().saturating_sub(1).max(at);
                    self.seen += consumed;
                    return Ok(Split::More { consumed });
                };
                (at, self.within_text) = (end, false);
                if self.element_done() {
                    return Ok(Split::Done(self.finish(at, begun_here)));
                }
                continue;
            }
            let Some((line, next)) = self.line(buf, at)? else {
                if self.line_seen > self.limits.line_bytes_max {
                    self.line_seen = 0;
                    self.within_text = true;
                    self.note(buf[at], false);
                    continue;
                }
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
                    let n = self.length(line, at)?;
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
                    (children, null) = self.announced(at, line)?;
                    prefix = kind == b'|';
                }
                other => return Err(self.error(at, ErrorKind::UnknownType(other))),
            }
            self.note(if prefix { 0 } else { kind }, null);
            at = next;
            if self.skip > 0 {
                continue;
            }
            if children > 0 || prefix {
                if !prefix && let Some(level) = self.open.last_mut() {
                    *level -= 1;
                }
                // The value after an attribute is counted by the level the attribute stands on; at the top that level
                // is one of its own.
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

    /// How many elements an aggregate's header announces, and whether it is null.
    fn announced(&mut self, at: usize, line: &[u8]) -> Result<(u64, bool), Error> {
        let n = self.length(line, at)?;
        let mut children = n.max(0) as u64;
        if children > self.limits.frame_bytes_max as u64 / 3 {
            return Err(self.error(at, ErrorKind::TooLarge)); // three bytes is the shortest element
        }
        if matches!(line[0], b'%' | b'|') {
            children *= 2;
        }
        self.elements = self.elements.saturating_add(children);
        if self.elements > self.limits.elements_max {
            return Err(self.error(at, ErrorKind::TooLarge));
        }
        Ok((children, n < 0))
    }

    /// The length that a header gives; -1 for null.
    fn length(&self, line: &[u8], at: usize) -> Result<i64, Error> {
        number(&line[1..]).filter(|n| *n >= -1).ok_or(self.error(at, ErrorKind::BadNumber))
    }

    /// Steps over what is here of a blob; where it ends.
    fn skip_blob(&mut self, buf: &[u8], at: usize) -> Result<usize, Error> {
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
        self.skip -= here as u64;
        Ok(at + here)
    }

    /// A value of this type begins; 0 for an attribute. The frame's own type is that of the first value on its first
    /// level, behind attributes.
    fn note(&mut self, kind: u8, null: bool) {
        if self.open.is_empty() || self.kind == 0 && self.open.len() == 1 && self.open[0] == 1 {
            self.kind = kind;
            self.null = null;
        } else {
            self.error_inside |= matches!(kind, b'-' | b'!');
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
        (self.seen, self.line_seen, self.elements) = (0, 0, 0);
        (self.kind, self.null, self.error_inside) = (0, false, false);
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
                if lf - at > self.limits.line_bytes_max && !self.passes(buf[at]) {
                    return Err(self.error(at, ErrorKind::TooLarge));
                }
                if lf < at + 2 || buf[lf - 1] != b'\r' {
                    return Err(self.error(lf, ErrorKind::MissingCrLf));
                }
                Ok(Some((&buf[at..lf - 1], lf + 1)))
            }
            None if buf.len() - at > self.limits.line_bytes_max && !self.passes(buf[at]) => {
                Err(self.error(at, ErrorKind::TooLarge))
            }
            None => {
                self.line_seen = buf.len() - at;
                Ok(None)
            }
        }
    }

    /// Whether a line of this type may be of any length.
    fn passes(&self, kind: u8) -> bool {
        self.long_text == LongText::Passed && matches!(kind, b'+' | b'-' | b'(')
    }

    /// Where a text ends that is being stepped over. The byte at `at` is part of it, and no LF.
    fn text_end(&self, buf: &[u8], at: usize) -> Result<Option<usize>, Error> {
        if self.seen + buf.len() > self.limits.frame_bytes_max {
            return Err(self.error(at, ErrorKind::TooLarge));
        }
        match buf[at..].iter().position(|&b| b == b'\n') {
            Some(i) if i > 0 && buf[at + i - 1] == b'\r' => Ok(Some(at + i + 1)),
            Some(i) => Err(self.error(at + i, ErrorKind::MissingCrLf)),
            None => Ok(None),
        }
    }
}
