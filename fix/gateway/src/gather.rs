//! One answer made of the answers of several nodes.

use std::collections::BTreeMap;
use std::ops::Range;

use unslow_commands::Join;
use unslow_resp::{Frame, Kind as FrameKind, Split, Splitter, write_header};

use crate::ids::Whom;

/// How the parts become an answer.
pub enum Whole {
    Join(Join),
    /// MGET: for each key the part it was asked in.
    Values(Vec<u16>),
    /// SCAN on this node, which has this place in the order.
    Scan(u16, u16),
}

/// An answer in the making.
pub struct Gather {
    pub seq: u32,
    pub whole: Whole,
    pub parts: Parts,
}

/// The answers of the nodes: short ones in the order in which they come, in one buffer, long ones by themselves.
pub struct Parts {
    bytes: Vec<u8>,
    each: Vec<Part>,
    left: usize,
}

/// From here on an answer is long: a buffer that grows by it would take twice its room.
const LONG_BYTES: usize = 64 << 10;

/// Both empty before it has come: no reply is.
#[derive(Clone, Default)]
struct Part {
    at: Range<usize>,
    long: Vec<u8>,
    /// How much of it, whole or still coming, counts among its client's parked bytes.
    counted: usize,
}

impl Parts {
    pub fn new(count: usize) -> Parts {
        Parts { bytes: Vec::new(), each: vec![Part::default(); count], left: count }
    }

    /// Keeps a part. False if it has come already, or there is no such part.
    pub fn put(&mut self, part: u16, bytes: &[u8]) -> bool {
        let is_due = |part: &&mut Part| part.at.is_empty() && part.long.is_empty();
        let Some(place) = self.each.get_mut(usize::from(part)).filter(is_due) else { return false };
        if bytes.len() >= LONG_BYTES {
            place.long = bytes.to_vec();
        } else {
            let from = self.bytes.len();
            self.bytes.extend_from_slice(bytes);
            place.at = from..self.bytes.len();
        }
        self.left -= 1;
        true
    }

    /// Sets how many bytes of a part are counted, and returns the number before.
    pub fn count(&mut self, part: u16, bytes: usize) -> Option<usize> {
        self.each.get_mut(usize::from(part)).map(|part| std::mem::replace(&mut part.counted, bytes))
    }

    pub fn counted(&self) -> usize {
        self.each.iter().map(|part| part.counted).sum()
    }

    pub fn are_all_there(&self) -> bool {
        self.left == 0
    }

    /// Empty where it is not there.
    pub fn get(&self, part: usize) -> &[u8] {
        self.each.get(part).map_or(b"", |part| self.of(part))
    }

    fn of<'a>(&'a self, part: &'a Part) -> &'a [u8] {
        if part.long.is_empty() { &self.bytes[part.at.clone()] } else { &part.long }
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.each.iter().map(|part| self.of(part))
    }

    /// Bytes of all that are there.
    fn len(&self) -> usize {
        self.iter().map(<[u8]>::len).sum()
    }
}

/// All that are not complete, by client and number: one who leaves takes its own along, however many others have.
#[derive(Default)]
pub struct Gathers(BTreeMap<(Whom, u32), Gather>);

impl Gathers {
    pub fn insert(&mut self, whom: Whom, number: u32, gather: Gather) {
        self.0.insert((whom, number), gather);
    }

    pub fn get(&self, whom: Whom, number: u32) -> Option<&Gather> {
        self.0.get(&(whom, number))
    }

    pub fn get_mut(&mut self, whom: Whom, number: u32) -> Option<&mut Gather> {
        self.0.get_mut(&(whom, number))
    }

    pub fn remove(&mut self, whom: Whom, number: u32) -> Option<Gather> {
        self.0.remove(&(whom, number))
    }

    /// Removes everything of a client that has left.
    pub fn forget(&mut self, whom: Whom) {
        while let Some((first, _)) = self.0.range((whom, 0)..=(whom, u32::MAX)).next() {
            let first = *first;
            self.0.remove(&first);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The elements of an aggregate as they stand on the wire.
pub fn elements(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    let from = reply.iter().position(|&b| b == b'\n').map_or(reply.len(), |i| i + 1);
    let mut rest = if matches!(reply.first(), Some(b'*' | b'~' | b'%' | b'>')) { &reply[from..] } else { &reply[..0] };
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Ok(Split::Done(done)) = Splitter::default().split(rest) else { return None };
        let (element, after) = rest.split_at(done.end);
        rest = after;
        Some(element)
    })
}

fn integer(part: &[u8]) -> Option<i64> {
    Frame::new(part).integer()
}

fn failed(part: &[u8]) -> bool {
    matches!(part.first(), Some(b'-' | b'!'))
}

pub fn joined(join: Join, parts: &Parts) -> Vec<u8> {
    let first = || parts.get(0).to_vec();
    if join == Join::OneSucceeds {
        return parts.iter().find(|p| !failed(p)).map_or_else(first, <[u8]>::to_vec);
    }
    if let Some(error) = parts.iter().find(|p| failed(p)) {
        return error.to_vec();
    }
    let number = |n: i64| format!(":{n}\r\n").into_bytes();
    match join {
        Join::Sum => match parts.iter().map(integer).collect::<Option<Vec<i64>>>() {
            Some(all) => number(all.into_iter().fold(0, i64::saturating_add)),
            None => first(),
        },
        Join::Min => parts.iter().filter_map(integer).min().map_or_else(first, number),
        Join::And => {
            let rows: Vec<Vec<i64>> = parts.iter().map(|p| elements(p).filter_map(integer).collect()).collect();
            let mut out = Vec::new();
            write_header(&mut out, b'*', rows[0].len());
            for i in 0..rows[0].len() {
                let all = rows.iter().filter_map(|r| r.get(i)).min().copied().unwrap_or(0);
                out.extend_from_slice(&number(all));
            }
            out
        }
        Join::Concat if matches!(parts.get(0).first(), Some(b'*' | b'~' | b'%')) => {
            let count = parts.iter().map(|p| elements(p).count()).sum::<usize>();
            let kind = parts.get(0)[0];
            let mut out = Vec::with_capacity(parts.len());
            write_header(&mut out, kind, if kind == b'%' { count / 2 } else { count });
            parts.iter().flat_map(elements).for_each(|e| out.extend_from_slice(e));
            out
        }
        Join::NotNull => {
            let some: Vec<&[u8]> = parts.iter().filter(|p| Frame::new(p).kind() != FrameKind::Null).collect();
            if some.is_empty() { first() } else { some[rand::random_range(0..some.len())].to_vec() }
        }
        Join::Concat | Join::AllSucceed | Join::OneSucceeds => first(),
    }
}

/// The values of MGET in the order of its keys.
pub fn values(order: &[u16], parts: &Parts) -> Vec<u8> {
    if let Some(error) = parts.iter().find(|p| failed(p)) {
        return error.to_vec();
    }
    let mut all: Vec<_> = parts.iter().map(elements).collect();
    let mut out = Vec::with_capacity(parts.len() + 16);
    write_header(&mut out, b'*', order.len());
    for part in order {
        out.extend_from_slice(all[usize::from(*part)].next().unwrap_or(b"$-1\r\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last comes first.
    fn parts(all: &[&str]) -> Parts {
        let mut parts = Parts::new(all.len());
        for (i, part) in all.iter().enumerate().rev() {
            assert!(!parts.are_all_there() && parts.put(i as u16, part.as_bytes()));
        }
        assert!(parts.are_all_there() && !parts.put(0, b":1\r\n"), "each comes once");
        parts
    }

    #[test]
    fn a_client_that_leaves_takes_its_own_answers_along() {
        let mut all = Gathers::default();
        let whom = |index, serial| Whom { index, serial };
        let own = || Gather { seq: 0, whole: Whole::Values(Vec::new()), parts: Parts::new(1) };
        for client in [whom(0, 9), whom(1, 5), whom(1, 6), whom(2, 0)] {
            for number in [0, 7, u32::MAX] {
                all.insert(client, number, own());
            }
        }
        all.forget(whom(1, 5));
        assert_eq!(all.len(), 9);
        assert!(all.get(whom(1, 5), 7).is_none() && all.get(whom(1, 6), 0).is_some());
        assert!(all.remove(whom(0, 9), u32::MAX).is_some() && all.remove(whom(0, 9), u32::MAX).is_none());
    }

    #[test]
    fn makes_one_answer_of_several() {
        for (join, all, expected) in [
            (Join::Sum, &[":1\r\n", ":2\r\n"][..], ":3\r\n"),
            (Join::Sum, &[":1\r\n", "-ERR no\r\n"], "-ERR no\r\n"),
            (Join::Min, &[":4\r\n", ":2\r\n"], ":2\r\n"),
            (Join::AllSucceed, &["+OK\r\n", "+OK\r\n"], "+OK\r\n"),
            (Join::OneSucceeds, &["-NOTBUSY\r\n", "+OK\r\n"], "+OK\r\n"),
            (Join::And, &["*2\r\n:1\r\n:1\r\n", "*2\r\n:0\r\n:1\r\n"], "*2\r\n:0\r\n:1\r\n"),
            (Join::Concat, &["*1\r\n$1\r\na\r\n", "*0\r\n", "*1\r\n$1\r\nb\r\n"], "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
            (Join::Concat, &["%1\r\n+a\r\n:1\r\n", "%1\r\n+b\r\n:2\r\n"], "%2\r\n+a\r\n:1\r\n+b\r\n:2\r\n"),
            (Join::NotNull, &["$-1\r\n", "$1\r\nx\r\n"], "$1\r\nx\r\n"),
        ] {
            assert_eq!(String::from_utf8(joined(join, &parts(all))).unwrap(), expected, "{join:?}");
        }
        let all = parts(&["*2\r\n$1\r\na\r\n$-1\r\n", "*1\r\n$1\r\nb\r\n"]);
        assert_eq!(values(&[0, 1, 0], &all), b"*3\r\n$1\r\na\r\n$1\r\nb\r\n$-1\r\n");
    }

    #[test]
    fn one_failed_part_fails_the_whole_unless_one_success_is_enough() {
        for (join, all, expected) in [
            (Join::AllSucceed, &["+OK\r\n", "-OOM no\r\n", "-ERR late\r\n"][..], "-OOM no\r\n"),
            (Join::Concat, &["*0\r\n", "!6\r\nERR no\r\n"], "!6\r\nERR no\r\n"),
            (Join::OneSucceeds, &["-NOTBUSY a\r\n", "-NOTBUSY b\r\n"], "-NOTBUSY a\r\n"),
            (Join::NotNull, &["$-1\r\n", "-ERR no\r\n"], "-ERR no\r\n"),
            (Join::NotNull, &["$-1\r\n", "_\r\n"], "$-1\r\n"),
            (Join::Sum, &[":9223372036854775807\r\n", ":1\r\n"], ":9223372036854775807\r\n"),
            (Join::Concat, &["*1\r\n*2\r\n:1\r\n*0\r\n", "*1\r\n$-1\r\n"], "*2\r\n*2\r\n:1\r\n*0\r\n$-1\r\n"),
            (Join::Concat, &["~1\r\n+a\r\n", "~2\r\n+b\r\n+c\r\n"], "~3\r\n+a\r\n+b\r\n+c\r\n"),
        ] {
            assert_eq!(String::from_utf8(joined(join, &parts(all))).unwrap(), expected, "{join:?} of {all:?}");
        }
        let long = format!("*1\r\n${LONG_BYTES}\r\n{}\r\n", "x".repeat(LONG_BYTES));
        let mixed = parts(&["*1\r\n$1\r\na\r\n", &long, "*1\r\n$-1\r\n"]);
        let whole = format!("*3\r\n{}$-1\r\n$1\r\na\r\n", &long[4..]);
        assert!(values(&[1, 2, 0], &mixed) == whole.as_bytes());
        let short = parts(&["*1\r\n$1\r\na\r\n"]);
        assert_eq!(values(&[0, 0], &short), b"*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(values(&[0, 1], &parts(&["*1\r\n:1\r\n", "-MOVED 1 a:1\r\n"])), b"-MOVED 1 a:1\r\n");
    }
}
