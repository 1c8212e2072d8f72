//! One answer made of the answers of several nodes.

use std::collections::BTreeMap;

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
    pub parts: Vec<Vec<u8>>,
    /// How much of each part, whole or still coming, counts among its client's parked bytes.
    pub counted: Vec<usize>,
    pub left: usize,
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

pub fn joined(join: Join, parts: &[Vec<u8>]) -> Vec<u8> {
    let first = || parts[0].clone();
    if join == Join::OneSucceeds {
        return parts.iter().find(|p| !failed(p)).cloned().unwrap_or_else(first);
    }
    if let Some(error) = parts.iter().find(|p| failed(p)) {
        return error.clone();
    }
    let number = |n: i64| format!(":{n}\r\n").into_bytes();
    match join {
        Join::Sum => match parts.iter().map(|p| integer(p)).collect::<Option<Vec<i64>>>() {
            Some(all) => number(all.into_iter().fold(0, i64::saturating_add)),
            None => first(),
        },
        Join::Min => parts.iter().filter_map(|p| integer(p)).min().map_or_else(first, number),
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
        Join::Concat if matches!(parts[0].first(), Some(b'*' | b'~' | b'%')) => {
            let count = parts.iter().map(|p| elements(p).count()).sum::<usize>();
            let kind = parts[0][0];
            let mut out = Vec::with_capacity(parts.iter().map(Vec::len).sum());
            write_header(&mut out, kind, if kind == b'%' { count / 2 } else { count });
            parts.iter().flat_map(|p| elements(p)).for_each(|e| out.extend_from_slice(e));
            out
        }
        Join::NotNull => {
            let some: Vec<&Vec<u8>> = parts.iter().filter(|p| Frame::new(p).kind() != FrameKind::Null).collect();
            if some.is_empty() { first() } else { some[rand::random_range(0..some.len())].clone() }
        }
        Join::Concat | Join::AllSucceed | Join::OneSucceeds => first(),
    }
}

/// The values of MGET in the order of its keys.
pub fn values(order: &[u16], parts: &[Vec<u8>]) -> Vec<u8> {
    if let Some(error) = parts.iter().find(|p| failed(p)) {
        return error.clone();
    }
    let mut all: Vec<_> = parts.iter().map(|p| elements(p)).collect();
    let mut out = Vec::with_capacity(parts.iter().map(Vec::len).sum());
    write_header(&mut out, b'*', order.len());
    for part in order {
        out.extend_from_slice(all[usize::from(*part)].next().unwrap_or(b"$-1\r\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_leaves_takes_its_own_answers_along() {
        let mut all = Gathers::default();
        let whom = |index, serial| Whom { index, serial };
        let own =
            || Gather { seq: 0, whole: Whole::Values(Vec::new()), parts: Vec::new(), counted: Vec::new(), left: 1 };
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
        let parts = |all: &[&str]| all.iter().map(|p| p.as_bytes().to_vec()).collect::<Vec<_>>();
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
        let parts = |all: &[&str]| all.iter().map(|p| p.as_bytes().to_vec()).collect::<Vec<_>>();
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
        let short = parts(&["*1\r\n$1\r\na\r\n"]);
        assert_eq!(values(&[0, 0], &short), b"*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(values(&[0, 1], &parts(&["*1\r\n:1\r\n", "-MOVED 1 a:1\r\n"])), b"-MOVED 1 a:1\r\n");
    }
}
