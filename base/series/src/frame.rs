//! Frames: how both kinds of files are cut into pieces that are read whole or not at all.
//!
//! A file is a header (magic, format version, number, checksum), then frames: marker, kind, length and a checksum of
//! these, the body, and the body's checksum. Lengths are trusted only under their own checksum, so a damaged body costs
//! one frame; a damaged head costs the bytes up to the next marker.

use crate::DamageKind;

/// The newest format that this version reads. Older ones stay readable when it grows.
pub const VERSION: u16 = 3;
pub const HEADER_BYTES: usize = 22;
const MARKER: [u8; 4] = [0xf5, 0x8c, b'S', 0x0a];
const HEAD_BYTES: usize = 13;
const TAIL_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Chunks that are finished.
    Segment,
    /// What the chunks being built hold.
    Log,
}

impl FileKind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            FileKind::Segment => b"UNSLOWsg",
            FileKind::Log => b"UNSLOWop",
        }
    }

    /// The format that is written: that of logs has not changed since the second one.
    fn version(self) -> u16 {
        match self {
            FileKind::Segment => VERSION,
            FileKind::Log => 2,
        }
    }

    pub fn extension(self) -> &'static str {
        match self {
            FileKind::Segment => ".seg",
            FileKind::Log => ".open",
        }
    }

    /// File names sort as their numbers do.
    pub fn name(self, number: u64) -> String {
        format!("{number:020}{}", self.extension())
    }

    pub fn number(self, name: &str) -> Option<u64> {
        let digits = name.strip_suffix(self.extension()).filter(|d| d.len() == 20)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    }
}

pub fn header(kind: FileKind, number: u64) -> Vec<u8> {
    let mut out = kind.magic().to_vec();
    out.extend_from_slice(&kind.version().to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    let sum = crc32fast::hash(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

/// The format version, if these bytes begin with a whole header.
pub fn version(kind: FileKind, bytes: &[u8]) -> Option<u16> {
    let (header, _) = bytes.split_at_checked(HEADER_BYTES)?;
    let (front, sum) = header.split_at(HEADER_BYTES - 4);
    let whole = front.starts_with(kind.magic()) && sum == crc32fast::hash(front).to_le_bytes();
    whole.then(|| u16::from_le_bytes([front[8], front[9]]))
}

pub fn put(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    let start = out.len();
    out.extend_from_slice(&MARKER);
    out.push(kind);
    // Bodies are bounded far below 4 GiB by the limits of `chunk`.
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    let sum = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
}

/// What stands next in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Frame { at: usize, bytes: usize, kind: u8, body: &'a [u8] },
    Bad { at: usize, bytes: usize, kind: DamageKind },
}

/// All pieces of `bytes`, from an offset on.
pub struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub fn new(bytes: &'a [u8], at: usize) -> Scan<'a> {
        Scan { bytes, at }
    }

    fn bad(&mut self, end: usize, kind: DamageKind) -> Piece<'a> {
        let at = std::mem::replace(&mut self.at, end);
        Piece::Bad { at, bytes: end - at, kind }
    }

    /// The next place from `from` on where a head stands.
    fn marker_from(&self, from: usize) -> Option<usize> {
        let rest = self.bytes.get(from..)?;
        let places = rest.windows(MARKER.len()).enumerate().filter(|(_, window)| *window == MARKER);
        places.map(|(offset, _)| from + offset).find(|at| head(self.bytes, *at).is_some())
    }
}

impl<'a> Iterator for Scan<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        let (bytes, at) = (self.bytes, self.at);
        if at >= bytes.len() {
            return None;
        }
        let Some((kind, length)) = head(bytes, at) else {
            let torn = bytes.len() - at < HEAD_BYTES && bytes[at..].iter().zip(MARKER).all(|(b, m)| *b == m);
            let end = self.marker_from(at + 1).unwrap_or(bytes.len());
            return Some(self.bad(end, if torn { DamageKind::TornTail } else { DamageKind::NoFrame }));
        };
        let start = at + HEAD_BYTES;
        let end = start.saturating_add(length).saturating_add(TAIL_BYTES);
        if end > bytes.len() {
            // Torn, and perhaps written on after a disk was full.
            return Some(match self.marker_from(at + 1) {
                Some(next) => self.bad(next, DamageKind::Checksum),
                None => self.bad(bytes.len(), DamageKind::TornTail),
            });
        }
        let body = &bytes[start..start + length];
        if bytes[start + length..end] == crc32fast::hash(body).to_le_bytes() {
            self.at = end;
            return Some(Piece::Frame { at, bytes: end - at, kind, body });
        }
        let whole = end == bytes.len() || head(bytes, end).is_some();
        let next = if whole { end } else { self.marker_from(at + 1).unwrap_or(bytes.len()) };
        Some(self.bad(next, DamageKind::Checksum))
    }
}

/// Kind and length of the body, if a head stands there.
fn head(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let head = bytes.get(at..at.checked_add(HEAD_BYTES)?)?;
    let (front, sum) = head.split_at(HEAD_BYTES - 4);
    let whole = front.starts_with(&MARKER) && sum == crc32fast::hash(front).to_le_bytes();
    whole.then(|| (front[4], u32::from_le_bytes([front[5], front[6], front[7], front[8]]) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 1, b"one");
        put(&mut out, 2, b"two!");
        out
    }

    fn bodies(bytes: &[u8]) -> Vec<&[u8]> {
        let body = |piece| match piece {
            Piece::Frame { body, .. } => Some(body),
            Piece::Bad { .. } => None,
        };
        Scan::new(bytes, 0).filter_map(body).collect()
    }

    #[test]
    fn a_damaged_frame_does_not_take_the_next_one_with_it() {
        let whole = two();
        let first = HEAD_BYTES + 3 + TAIL_BYTES;
        assert_eq!(bodies(&whole), [&b"one"[..], b"two!"]);
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let expected: &[u8] = if at < first { b"two!" } else { b"one" };
            assert_eq!(bodies(&bytes), [expected], "byte {at}");
        }
    }

    #[test]
    fn frames_after_a_torn_one_are_found() {
        let whole = two();
        for cut in 1..HEAD_BYTES + 3 + TAIL_BYTES {
            let mut bytes = whole[..cut].to_vec();
            bytes.extend_from_slice(&whole);
            assert_eq!(bodies(&bytes), [&b"one"[..], b"two!"], "after {cut} bytes");
        }
        let torn = Scan::new(&whole[..whole.len() - 1], 0).last();
        assert!(matches!(torn, Some(Piece::Bad { kind: DamageKind::TornTail, .. })), "{torn:?}");
    }

    #[test]
    fn names_are_numbers_of_twenty_digits() {
        assert_eq!(FileKind::Log.number(&FileKind::Log.name(17)), Some(17));
        for name in ["17.open", "lock", "00000000000000000017.seg", "+0000000000000000017.open", "é.open"] {
            assert_eq!(FileKind::Log.number(name), None, "{name}");
        }
    }
}
