//! A request that is too long to be kept, on its way through: nothing of it stays here, and it is judged all the same.

use super::{Allowed, Argument, Number, Wrong, argument, number};

/// How far it is.
#[derive(Debug)]
pub struct Passing {
    allowed: Allowed,
    /// Arguments that are to come; `None` before their number has.
    left: Option<usize>,
    /// Bytes that are to come of the argument that has begun, its CR LF included.
    skip: usize,
}

/// What so many bytes at the front of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// All of the request so far.
    More(usize),
    /// The rest of it.
    Done(usize),
    /// No request any more.
    Bad(Wrong),
}

impl Passing {
    /// From its first byte.
    pub fn new(allowed: Allowed) -> Passing {
        Passing { allowed, left: None, skip: 0 }
    }

    /// What is here of it. Bytes that are not taken come again, with more behind them.
    pub fn pass(&mut self, bytes: &[u8]) -> Passed {
        let mut at = 0;
        loop {
            if self.skip > 0 {
                match self.skipped(bytes, at) {
                    Ok(end) => at = end,
                    Err(why) => return Passed::Bad(why),
                }
                if self.skip > 0 {
                    return Passed::More(at);
                }
            }
            match self.left {
                Some(0) => return Passed::Done(at),
                Some(left) => match argument(bytes, at, self.allowed) {
                    Argument::Is((from, to), _) => {
                        (at, self.skip) = (from as usize, (to - from) as usize + 2);
                        self.left = Some(left - 1);
                    }
                    Argument::Bad(why) => return Passed::Bad(why),
                    Argument::Unfinished => return Passed::More(at),
                },
                None => match number(bytes, at + 1) {
                    Number::Is(count, end) if count > 0 => (self.left, at) = (Some(count as usize), end),
                    Number::Unfinished => return Passed::More(at),
                    _ => return Passed::Bad(Wrong::Arguments),
                },
            }
        }
    }

    /// Steps over what is here of an argument; where that ends.
    fn skipped(&mut self, bytes: &[u8], at: usize) -> Result<usize, Wrong> {
        let here = self.skip.min(bytes.len() - at);
        // The last two are CR LF.
        for (back, expected) in [(2, b'\r'), (1, b'\n')] {
            if let Some(i) = self.skip.checked_sub(back)
                && i < here
                && bytes[at + i] != expected
            {
                return Err(Wrong::NoEnd);
            }
        }
        self.skip -= here;
        Ok(at + here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes bytes in pieces of this size; how many belong to the request, or what is wrong.
    fn passed(bytes: &[u8], allowed: Allowed, size: usize) -> Result<Option<usize>, Wrong> {
        let (mut passing, mut unread, mut taken) = (Passing::new(allowed), Vec::new(), 0);
        for piece in bytes.chunks(size) {
            unread.extend_from_slice(piece);
            match passing.pass(&unread) {
                Passed::More(n) => {
                    unread.drain(..n);
                    taken += n;
                }
                Passed::Done(n) => return Ok(Some(taken + n)),
                Passed::Bad(why) => return Err(why),
            }
        }
        Ok(None)
    }

    #[test]
    fn a_request_passes_in_any_pieces_and_ends_where_it_ends() {
        let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$13\r\nline\r\nanother\r\n";
        let more = [&whole[..], b"*1\r\n$4\r\nPING\r\n"].concat();
        for size in 1..more.len() {
            assert_eq!(passed(&more, Allowed::All, size), Ok(Some(whole.len())), "{size}");
            assert_eq!(passed(&whole[..whole.len() - 1], Allowed::All, size), Ok(None), "{size}");
        }
        assert_eq!(passed(b"*2\r\n$0\r\n\r\n$0\r\n\r\n", Allowed::All, 5), Ok(Some(16)));
    }

    #[test]
    fn every_argument_is_held_against_what_the_server_takes() {
        for (bytes, wrong) in [
            (&b"*3\r\n$1\r\na\r\n$9\r\n"[..], Wrong::Length),
            (b"*3\r\n$1\r\na\r\n$-1\r\n", Wrong::Length),
            (b"*3\r\n$1\r\na\r\n$08\r\n", Wrong::Length),
            (b"*3\r\n$1\r\na\r\n+b\r\n", Wrong::NoBulk(b'+')),
            (b"*3\r\n$1\r\na\r\n*1\r\n", Wrong::NoBulk(b'*')),
            (b"*3\r\n$1\r\nab\r\n", Wrong::NoEnd),
        ] {
            for size in 1..=bytes.len() {
                assert_eq!(passed(bytes, Allowed::UpTo(8), size), Err(wrong), "{} by {size}", bytes.escape_ascii());
            }
        }
        assert_eq!(passed(b"*1\r\n$8\r\n12345678\r\n", Allowed::UpTo(8), 3), Ok(Some(18)));
    }

    #[test]
    fn in_pieces_as_many_requests_are_found_as_in_the_whole() {
        let mut whole = b"*1\r\n$4\r\nPING\r\nPING\r\n".to_vec();
        unslow_resp::write_command(&mut whole, &["SET", "k", &"x".repeat(crate::request::LONG + 1)]);
        whole.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        assert_eq!(crate::parse_requests(&whole), whole.len());
        for size in [1000, 4096, 65_537] {
            assert_eq!(crate::requests_in_pieces(whole.chunks(size)), whole.len(), "{size}");
            let cut = &whole[..whole.len() - 1];
            assert_eq!(crate::requests_in_pieces(cut.chunks(size)), whole.len() - 20, "{size}");
        }
    }
}
