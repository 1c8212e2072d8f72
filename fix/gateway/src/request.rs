//! Clients' commands as slices: arrays of bulk strings, and inline lines as people type them.

/// A request at the front of a buffer; arguments are ranges of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Not all there yet.
    Incomplete,
    /// A command of so many bytes.
    Whole(usize),
    /// An inline command of so many bytes: it has to be written anew for the server.
    Inline(usize),
    /// An empty line or array, to be passed over.
    Nothing(usize),
    /// The arguments so far are whole; what follows is too long to wait for.
    Long,
    /// No request. The sentence is for the client, and the connection is at its end.
    Bad(&'static str),
}

/// Where an argument is.
pub type Range = (u32, u32);

/// A command with an argument longer than this is sent on while it arrives.
pub const LONG: usize = 256 * 1024;
/// What servers take by default.
const BULK_MAX: usize = 512 << 20;
const ARGS_MAX: usize = 1 << 20;
const LINE_MAX: usize = 64 * 1024;

/// Looks at the front of `bytes`. `args` gets the arguments found; for [`Request::Long`] those that are whole.
#[inline]
pub fn parse(bytes: &[u8], args: &mut Vec<Range>) -> Request {
    args.clear();
    match bytes.first() {
        None => Request::Incomplete,
        Some(b'*') => array(bytes, args),
        Some(_) => inline(bytes, args),
    }
}

fn array(bytes: &[u8], args: &mut Vec<Range>) -> Request {
    let (count, mut at) = match number(bytes, 1) {
        Number::Is(n, at) => (n, at),
        Number::Not => return Request::Bad("Protocol error: invalid multibulk length"),
        Number::Unfinished => return Request::Incomplete,
    };
    if count <= 0 {
        return Request::Nothing(at);
    }
    if count as usize > ARGS_MAX {
        return Request::Bad("Protocol error: invalid multibulk length");
    }
    for _ in 0..count {
        match bytes.get(at) {
            None => return Request::Incomplete,
            Some(b'$') => {}
            Some(_) => return Request::Bad("Protocol error: expected '$'"),
        }
        let (len, from) = match number(bytes, at + 1) {
            Number::Is(n, from) if (0..=BULK_MAX as i64).contains(&n) => (n as usize, from),
            Number::Is(..) | Number::Not => return Request::Bad("Protocol error: invalid bulk length"),
            Number::Unfinished => return Request::Incomplete,
        };
        let end = from + len + 2;
        if end > bytes.len() {
            return if len > LONG { Request::Long } else { Request::Incomplete };
        }
        if bytes[end - 2..end] != *b"\r\n" {
            return Request::Bad("Protocol error: expected CR LF behind a bulk string");
        }
        args.push((from as u32, (end - 2) as u32));
        at = end;
    }
    Request::Whole(at)
}

enum Number {
    Is(i64, usize),
    Not,
    Unfinished,
}

/// The number at `at`, and what follows its line.
#[inline]
fn number(bytes: &[u8], mut at: usize) -> Number {
    let begin = at;
    let mut n: i64 = 0;
    let negative = bytes.get(at) == Some(&b'-');
    at += usize::from(negative);
    loop {
        match bytes.get(at) {
            None => return if at - begin > 20 { Number::Not } else { Number::Unfinished },
            Some(digit @ b'0'..=b'9') if at - begin < 18 => n = n * 10 + i64::from(digit - b'0'),
            Some(b'\r') if at > begin + usize::from(negative) => {
                return match bytes.get(at + 1) {
                    Some(b'\n') => Number::Is(if negative { -n } else { n }, at + 2),
                    Some(_) => Number::Not,
                    None => Number::Unfinished,
                };
            }
            Some(_) => return Number::Not,
        }
        at += 1;
    }
}

/// Words between blanks. Quotes are for [`unquote`].
fn inline(bytes: &[u8], args: &mut Vec<Range>) -> Request {
    let Some(lf) = bytes.iter().take(LINE_MAX).position(|&b| b == b'\n') else {
        return if bytes.len() >= LINE_MAX {
            Request::Bad("Protocol error: too big inline request")
        } else {
            Request::Incomplete
        };
    };
    let line = &bytes[..lf];
    let mut at = 0;
    while at < line.len() {
        if line[at].is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let from = at;
        let mut quote = None;
        while at < line.len() && (quote.is_some() || !line[at].is_ascii_whitespace()) {
            match (quote, line[at]) {
                (None, q @ (b'"' | b'\'')) => quote = Some(q),
                (Some(_), b'\\') => at += 1,
                (Some(q), b) if q == b => quote = None,
                _ => {}
            }
            at += 1;
        }
        if quote.is_some() {
            return Request::Bad("Protocol error: unbalanced quotes in request");
        }
        args.push((from as u32, at.min(line.len()) as u32));
    }
    if args.is_empty() { Request::Nothing(lf + 1) } else { Request::Inline(lf + 1) }
}

/// An inline word without its quotes, `\n`, `\xff` and the like resolved as redis-cli does.
pub fn unquote(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut quote = None;
    let mut at = 0;
    while at < word.len() {
        match (quote, word[at]) {
            (None, q @ (b'"' | b'\'')) => quote = Some(q),
            (Some(b'"'), b'\\') => {
                at += 1;
                let hex = |b: Option<&u8>| b.and_then(|b| char::from(*b).to_digit(16)).map(|d| d as u8);
                match word.get(at) {
                    Some(b'x') if let (Some(a), Some(b)) = (hex(word.get(at + 1)), hex(word.get(at + 2))) => {
                        out.push(a << 4 | b);
                        at += 2;
                    }
                    Some(b'n') => out.push(b'\n'),
                    Some(b'r') => out.push(b'\r'),
                    Some(b't') => out.push(b'\t'),
                    Some(b'b') => out.push(8),
                    Some(b'a') => out.push(7),
                    Some(other) => out.push(*other),
                    None => {}
                }
            }
            (Some(b'\''), b'\\') if word.get(at + 1) == Some(&b'\'') => {
                at += 1;
                out.push(b'\'');
            }
            (Some(q), b) if q == b => quote = None,
            (_, b) => out.push(b),
        }
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> (Request, Vec<&[u8]>) {
        let mut args = Vec::new();
        let request = parse(bytes, &mut args);
        (request, args.iter().map(|&(a, b)| &bytes[a as usize..b as usize]).collect())
    }

    #[test]
    fn reads_arrays_and_inline_lines() {
        assert_eq!(words(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nrest"), (Request::Whole(20), vec![&b"GET"[..], b"k"]));
        assert_eq!(words(b"SET k \"a b\"\r\n"), (Request::Inline(13), vec![&b"SET"[..], b"k", b"\"a b\""]));
        assert_eq!(words(b"\r\n").0, Request::Nothing(2));
        assert_eq!(words(b"*0\r\n").0, Request::Nothing(4));
        assert_eq!(unquote(b"\"a\\x41\\n\""), b"aA\n");
        assert_eq!(unquote(b"'it\\'s'"), b"it's");
    }

    #[test]
    fn waits_for_every_byte_of_a_command_and_never_reads_past_it() {
        let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nv\r\nvv\r\n";
        for end in 0..whole.len() {
            assert_eq!(words(&whole[..end]).0, Request::Incomplete, "{end}");
        }
        assert_eq!(words(whole).0, Request::Whole(whole.len()));
    }

    #[test]
    fn refuses_what_is_no_request() {
        for bytes in [
            &b"*x\r\n"[..],
            b"*1\r\n#3\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$99999999999\r\n",
            b"*1\r\n$1\r\nkk\r\n",
            b"*9999999999999999999\r\n", // more than an i64
            b"*9999999999999999999999\r\n",
            b"*2000000\r\n",
            b"GET \"k\r\n",
        ] {
            assert!(matches!(words(bytes).0, Request::Bad(_)), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_long_value_is_told_before_it_is_there() {
        let (request, args) = words(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\nabc");
        assert_eq!((request, args), (Request::Long, vec![&b"SET"[..], b"k"]));
    }

    #[test]
    fn an_argument_is_streamed_only_when_longer_than_the_limit() {
        for (length, expected) in [(LONG, Request::Incomplete), (LONG + 1, Request::Long)] {
            let text = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\nabc");
            assert_eq!(words(text.as_bytes()).0, expected, "{length}");
        }
        // Once it is complete it is an ordinary command.
        let mut whole = format!("*1\r\n${}\r\n", LONG + 1).into_bytes();
        whole.resize(whole.len() + LONG + 1, b'x');
        whole.extend_from_slice(b"\r\n");
        assert_eq!(words(&whole).0, Request::Whole(whole.len()));
    }

    #[test]
    fn an_inline_request_longer_than_the_limit_is_refused() {
        let mut line = vec![b'a'; LINE_MAX - 1];
        assert_eq!(words(&line).0, Request::Incomplete);
        line.push(b'\n');
        assert_eq!(words(&line).0, Request::Inline(LINE_MAX));
        *line.last_mut().unwrap() = b'a';
        line.push(b'\n');
        assert!(matches!(words(&line).0, Request::Bad(_)));
    }

    #[test]
    fn quoted_inline_words_keep_blanks_and_escapes() {
        let (request, args) = words(b"SET \"a\\\" b\"c\t'd \\' e' '\\n'\r\nGET k\r\n");
        assert_eq!(request, Request::Inline(28));
        let meant: Vec<Vec<u8>> = args.into_iter().map(unquote).collect();
        assert_eq!(meant, [&b"SET"[..], b"a\" bc", b"d ' e", b"\\n"]);
        assert_eq!(unquote(b"\"\\\\\\t\\xfg\\xFf\""), b"\\\txfg\xff");
    }

    #[test]
    fn pipelined_requests_of_all_forms_are_split_correctly() {
        let whole = b"*1\r\n$4\r\nPING\r\nPING x\r\n\r\n*0\r\n";
        let with_rest = [&whole[..], b"*2\r\n$3\r\nGET"].concat();
        assert_eq!(crate::parse_requests(&with_rest), whole.len());
    }
}
