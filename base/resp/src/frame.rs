//! A whole frame, read in place.

use crate::limits::number;

/// What a frame is, told by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `+`
    Simple,
    /// `-` and RESP3 `!`
    Error,
    /// `:`
    Integer,
    /// `$` and RESP3 `=` (verbatim)
    Bulk,
    /// `$-1`, `*-1` and RESP3 `_`
    Null,
    /// `*` and RESP3 `~` (set)
    Array,
    /// RESP3 `%`
    Map,
    /// RESP3 `>`: sent unasked, answers no command
    Push,
    /// RESP3 `,`
    Double,
    /// RESP3 `#`
    Boolean,
    /// RESP3 `(`
    BigNumber,
}

/// One whole frame as a [`Scanner`](crate::Scanner) found it. Attributes in front of a value are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// `bytes` must be exactly what [`Scan::Complete`](crate::Scan::Complete) measured; other bytes give wrong
    /// answers, never a panic.
    pub fn new(bytes: &'a [u8]) -> Frame<'a> {
        let mut rest = bytes;
        while rest.first() == Some(&b'|') {
            let mut items = Items { rest: body(rest), left: 2 * count(rest).unwrap_or(0).max(0) as u64 };
            for _ in items.by_ref() {}
            rest = items.rest;
        }
        Frame { bytes: rest }
    }

    /// Its bytes, type and line ends included, without attributes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        match self.bytes.first() {
            Some(b'+') => Kind::Simple,
            Some(b'-' | b'!') => Kind::Error,
            Some(b':') => Kind::Integer,
            Some(b'$' | b'=' | b'*') if self.bytes.get(1) == Some(&b'-') => Kind::Null,
            Some(b'$' | b'=') => Kind::Bulk,
            Some(b'*' | b'~') => Kind::Array,
            Some(b'%') => Kind::Map,
            Some(b'>') => Kind::Push,
            Some(b',') => Kind::Double,
            Some(b'#') => Kind::Boolean,
            Some(b'(') => Kind::BigNumber,
            _ => Kind::Null,
        }
    }

    /// The text of a scalar, without type byte, length and CR LF; the three-letter format and colon of a verbatim
    /// string are left off too. Empty for aggregates.
    pub fn text(&self) -> &'a [u8] {
        match self.bytes.first() {
            Some(b'$' | b'!') => blob(self.bytes),
            Some(b'=') => blob(self.bytes).get(4..).unwrap_or(b""),
            Some(b'*' | b'~' | b'%' | b'>' | b'|') | None => b"",
            Some(_) => line(self.bytes),
        }
    }

    /// The number of an integer frame.
    pub fn integer(&self) -> Option<i64> {
        (self.kind() == Kind::Integer).then(|| number(line(self.bytes)))?
    }

    /// The elements of an array, set or push; keys and values in turn for a map. Empty for scalars.
    pub fn items(&self) -> Items<'a> {
        let n = match self.bytes.first() {
            Some(b'*' | b'~' | b'>') => count(self.bytes).unwrap_or(0),
            Some(b'%') => count(self.bytes).unwrap_or(0).saturating_mul(2),
            _ => 0,
        };
        Items { rest: body(self.bytes), left: n.max(0) as u64 }
    }
}

/// Walks the elements of an aggregate in place.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    rest: &'a [u8],
    left: u64,
}

impl<'a> Iterator for Items<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        self.left = self.left.checked_sub(1)?;
        let len = match crate::Scanner::default().scan(self.rest) {
            Ok(crate::Scan::Complete(len)) => len,
            _ => {
                self.left = 0;
                return None;
            }
        };
        let (item, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(Frame::new(item))
    }
}

fn line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&b| b == b'\r').unwrap_or(bytes.len());
    bytes.get(1..end).unwrap_or(b"")
}

fn count(bytes: &[u8]) -> Option<i64> {
    number(line(bytes))
}

/// What follows the header line.
fn body(bytes: &[u8]) -> &[u8] {
    let lf = bytes.iter().position(|&b| b == b'\n').map_or(bytes.len(), |i| i + 1);
    &bytes[lf..]
}

fn blob(bytes: &[u8]) -> &[u8] {
    let len = count(bytes).unwrap_or(0).max(0) as usize;
    body(bytes).get(..len).unwrap_or(b"")
}
