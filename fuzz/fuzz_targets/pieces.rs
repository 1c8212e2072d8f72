#![no_main]
//! Any bytes, cut at any places, as a client's requests and as a server's replies: the same as in one piece, and the
//! same as a reader finds who knows nothing of the gateway's.

use libfuzzer_sys::fuzz_target;
use unslow_gateway::{parse_requests, requests_in_pieces};
use unslow_resp::{ErrorKind, Frame, Limits, Scan, Scanner, Split, Splitter, write_command};

fuzz_target!(|data: &[u8]| {
    let Some((lengths, bytes)) = data.split_first_chunk::<8>() else { return };
    let pieces = || Pieces { rest: bytes, lengths: lengths.iter().cycle() };
    requests(bytes, pieces());
    replies(bytes, pieces());

    // Requests that are some: words end with 0xff, and a command has three.
    let words: Vec<&[u8]> = bytes.split(|b| *b == 0xff).collect();
    let mut commands = Vec::new();
    words.chunks(3).for_each(|words| write_command(&mut commands, words));
    assert_eq!(parse_requests(&commands), commands.len());
    requests(&commands, Pieces { rest: &commands, lengths: lengths.iter().cycle() });

    // One that is so long that what was read of it is remembered.
    let mut long = Vec::new();
    write_command(&mut long, &words.repeat(8192 / bytes.len().max(1) + 1));
    assert_eq!(parse_requests(&long), long.len());
    requests(&long, Pieces { rest: &long, lengths: lengths.iter().cycle() });
});

/// Bytes as they arrive: in pieces of these lengths, again and again.
struct Pieces<'a> {
    rest: &'a [u8],
    lengths: std::iter::Cycle<std::slice::Iter<'a, u8>>,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let length = usize::from(*self.lengths.next()?).clamp(1, self.rest.len());
        let (piece, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(piece)
    }
}

fn requests(bytes: &[u8], pieces: Pieces<'_>) {
    let whole = parse_requests(bytes);
    assert_eq!(requests_in_pieces(pieces), whole, "in pieces and whole");
    let mut at = 0;
    while at < whole {
        let end = at + request(&bytes[at..whole]);
        assert_eq!(parse_requests(&bytes[at..end]), end - at, "one request");
        assert_eq!(parse_requests(&bytes[at..end - 1]), 0, "a request without its last byte");
        at = end;
    }
}

/// How long the request at the front is: a frame of bulk strings, or a line.
fn request(bytes: &[u8]) -> usize {
    let line = bytes.iter().position(|b| *b == b'\n').expect("a request has a line") + 1;
    if !bytes.starts_with(b"*") || matches!(bytes[1], b'-' | b'0') {
        return line;
    }
    let Ok(Scan::Complete(len)) = Scanner::new(limits()).scan(bytes) else {
        panic!("no frame was taken for a request")
    };
    // Written anew it is the same: all arguments are bulk strings, and a length has one form.
    let words: Vec<&[u8]> = Frame::new(&bytes[..len]).items().map(|item| item.text()).collect();
    let mut again = Vec::new();
    write_command(&mut again, &words);
    assert_eq!(again, &bytes[..len]);
    len
}

/// As the gateway reads replies: they may be as long and as deep as a server makes them.
fn limits() -> Limits {
    Limits { frame_bytes_max: usize::MAX >> 1, depth_max: 100_000, ..Limits::default() }
}

fn replies(bytes: &[u8], pieces: Pieces<'_>) {
    let whole = split([bytes].into_iter());
    assert_eq!(split(pieces), whole);
}

/// Where a frame ends, its type, and whether it is null or holds an error.
type Frame = (usize, u8, bool, bool);

/// Frames, then what is wrong.
fn split<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<ErrorKind>) {
    let (mut splitter, mut frames) = (Splitter::new(limits()), Vec::new());
    let (mut unread, mut taken) = (Vec::new(), 0);
    for piece in pieces {
        unread.extend_from_slice(piece);
        loop {
            match splitter.split(&unread) {
                Ok(Split::Done(done)) => {
                    assert!(done.end > 0);
                    drop(unread.drain(..done.end));
                    taken += done.end;
                    frames.push((taken, done.kind, done.null, done.error_inside));
                }
                Ok(Split::More { consumed }) => {
                    drop(unread.drain(..consumed));
                    taken += consumed;
                    break;
                }
                Err(error) => return (frames, Some(error.kind)),
            }
        }
    }
    (frames, None)
}
