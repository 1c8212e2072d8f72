//! Clients' commands as slices: arrays of bulk strings, and inline lines as people type them.

mod passing;

pub use passing::{Passed, Passing};

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
    /// No request: the client gets the reason, and its connection ends.
    Bad(Wrong),
}

/// Why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The number of arguments is no number, or too large.
    Arguments,
    /// More arguments than may come before AUTH.
    ArgumentsBeforeLogin,
    /// The line with the number of arguments does not end.
    ArgumentsLine,
    /// The length of an argument is no number, or more than the server takes.
    Length,
    /// A longer argument than may come before AUTH.
    LengthBeforeLogin,
    /// The line with the length of an argument does not end.
    LengthLine,
    /// This byte stands where an argument has its `$`.
    NoBulk(u8),
    /// An argument is longer than it says. Servers do not look.
    NoEnd,
    /// An inline line does not end.
    Inline,
    /// An inline line has a quote too few, or text right behind one.
    Quotes,
}

impl Wrong {
    /// In the servers' own words, as far as they have any.
    pub fn text(self) -> Vec<u8> {
        let why = match self {
            Wrong::Arguments => "invalid multibulk length",
            Wrong::ArgumentsBeforeLogin => "unauthenticated multibulk length",
            Wrong::ArgumentsLine => "too big mbulk count string",
            Wrong::Length => "invalid bulk length",
            Wrong::LengthBeforeLogin => "unauthenticated bulk length",
            Wrong::LengthLine => "too big bulk count string",
            Wrong::NoBulk(found) => {
                // A line break would end the error.
                let found = if matches!(found, b'\r' | b'\n') { b' ' } else { found };
                return [&b"Protocol error: expected '$', got '"[..], &[found], b"'"].concat();
            }
            Wrong::NoEnd => "expected CR LF behind a bulk string",
            Wrong::Inline => "too big inline request",
            Wrong::Quotes => "unbalanced quotes in request",
        };
        format!("Protocol error: {why}").into_bytes()
    }
}

/// Where an argument is.
pub type Range = (u32, u32);

/// A command with an argument longer than this is sent on while it arrives.
pub const LONG: usize = 256 * 1024;
/// So is one that has come this far and is not whole.
pub const LONG_IN_ALL: usize = 16 << 20;
/// Less than this is read again when more of it comes: it costs less than to remember.
const REMEMBERED: usize = 4096;
const LINE_MAX: usize = 64 * 1024;
/// The longest argument, whatever the server takes; also the servers' own default of `proto-max-bulk-len`.
pub const ARGUMENT_MAX: u32 = 512 << 20;

/// How much a request may hold, as servers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Before AUTH, where one is needed: ten arguments of 16 KiB.
    Little,
    /// Arguments as long as servers take by default.
    All,
    /// Arguments of this many bytes: the server's `proto-max-bulk-len`.
    UpTo(u32),
}

impl Allowed {
    /// For who is logged in, by the server's `proto-max-bulk-len` where it is known.
    pub fn server(argument_bytes: Option<u64>) -> Allowed {
        let most = |bytes| u32::try_from(bytes).unwrap_or(ARGUMENT_MAX).min(ARGUMENT_MAX);
        argument_bytes.map_or(Allowed::All, |bytes| Allowed::UpTo(most(bytes)))
    }

    fn arguments(self) -> (i64, Wrong) {
        match self {
            Allowed::Little => (10, Wrong::ArgumentsBeforeLogin),
            Allowed::All | Allowed::UpTo(_) => (1 << 20, Wrong::Arguments),
        }
    }

    #[inline]
    fn bulk(self) -> (i64, Wrong) {
        match self {
            Allowed::Little => (16 * 1024, Wrong::LengthBeforeLogin),
            Allowed::All => (i64::from(ARGUMENT_MAX), Wrong::Length),
            Allowed::UpTo(most) => (i64::from(most), Wrong::Length),
        }
    }
}

/// How far a request has been read that was not whole, so that nothing of it is read twice. Good for the buffer it was
/// made of and for that buffer with more behind it.
#[derive(Debug, Default)]
pub struct Progress {
    args: Vec<Range>,
    at: usize,
    left: usize,
    /// It cannot be sent on before it is whole.
    kept: bool,
}

impl Progress {
    /// Of a request that was [`Request::Long`] and has to be kept all the same: from the beginning.
    pub fn kept() -> Progress {
        Progress { kept: true, ..Progress::default() }
    }
}

/// Looks at the front of `bytes`. `args` gets the arguments found; for [`Request::Long`] those that are whole.
/// `progress` is what the last look at the same request left, and gets what this one leaves.
#[inline]
pub fn parse(bytes: &[u8], args: &mut Vec<Range>, allowed: Allowed, progress: &mut Option<Box<Progress>>) -> Request {
    args.clear();
    match bytes.first() {
        None => Request::Incomplete,
        Some(b'*') => array(bytes, args, allowed, progress),
        Some(_) => inline(bytes, args, progress),
    }
}

/// Looks at one whole request.
pub fn parse_whole(bytes: &[u8], args: &mut Vec<Range>) -> Request {
    parse(bytes, args, Allowed::All, &mut None)
}

#[inline]
fn array(bytes: &[u8], args: &mut Vec<Range>, allowed: Allowed, progress: &mut Option<Box<Progress>>) -> Request {
    let before = progress.take();
    let kept = before.as_ref().is_some_and(|before| before.kept);
    let (mut left, mut at) = match before {
        Some(before) if before.at > 0 => {
            *args = before.args;
            (before.left, before.at)
        }
        _ => {
            let (most, why) = allowed.arguments();
            match number(bytes, 1) {
                Number::Is(n, at) if n <= 0 => return Request::Nothing(at),
                Number::Is(n, at) if n <= most => (n as usize, at),
                Number::Is(n, _) if n > 1 << 20 => return Request::Bad(Allowed::All.arguments().1),
                Number::Is(..) => return Request::Bad(why),
                Number::Not => return Request::Bad(Wrong::Arguments),
                Number::Endless => return Request::Bad(Wrong::ArgumentsLine),
                Number::Unfinished => return Request::Incomplete,
            }
        }
    };
    while left > 0 {
        let end = match argument(bytes, at, allowed) {
            Argument::Is(range, end) if end <= bytes.len() => {
                if bytes[end - 2..end] != *b"\r\n" {
                    return Request::Bad(Wrong::NoEnd);
                }
                args.push(range);
                end
            }
            Argument::Bad(why) => return Request::Bad(why),
            other => {
                let long = matches!(other, Argument::Is((from, to), _) if (to - from) as usize > LONG);
                if (long || at > LONG_IN_ALL) && !kept {
                    return Request::Long;
                }
                if at > REMEMBERED || kept {
                    *progress = Some(Box::new(Progress { args: std::mem::take(args), at, left, kept }));
                }
                return Request::Incomplete;
            }
        };
        at = end;
        left -= 1;
    }
    Request::Whole(at)
}

/// A bulk string's own bytes, and where the next one begins; both may lie beyond what is there.
enum Argument {
    Is(Range, usize),
    Unfinished,
    Bad(Wrong),
}

#[inline]
fn argument(bytes: &[u8], at: usize, allowed: Allowed) -> Argument {
    match bytes.get(at) {
        None => return Argument::Unfinished,
        Some(b'$') => {}
        Some(&found) => return Argument::Bad(Wrong::NoBulk(found)),
    }
    let (most, why) = allowed.bulk();
    match number(bytes, at + 1) {
        Number::Is(n, from) if (0..=most).contains(&n) => {
            let to = from + n as usize;
            Argument::Is((from as u32, to as u32), to + 2)
        }
        Number::Is(n, _) if n > most && n <= i64::from(ARGUMENT_MAX) => Argument::Bad(why),
        Number::Is(..) | Number::Not => Argument::Bad(Wrong::Length),
        Number::Endless => Argument::Bad(Wrong::LengthLine),
        Number::Unfinished => Argument::Unfinished,
    }
}

enum Number {
    Is(i64, usize),
    Not,
    /// Not, and the line is longer than any.
    Endless,
    Unfinished,
}

/// Servers look for the end of the line first, and judge what is on it then. They wait for it; this does not.
#[cold]
fn no_number(bytes: &[u8], begin: usize) -> Number {
    let line = &bytes[begin.min(bytes.len())..];
    if line.len() > LINE_MAX && !line.contains(&b'\r') { Number::Endless } else { Number::Not }
}

/// The number at `at`, and what follows its line. Written as servers want it: no sign but one minus, no zero in front.
#[inline]
fn number(bytes: &[u8], at: usize) -> Number {
    let negative = bytes.get(at) == Some(&b'-');
    let begin = at + usize::from(negative);
    let mut at = begin;
    let mut n: i64 = 0;
    loop {
        match bytes.get(at) {
            None => return Number::Unfinished,
            Some(b'0'..=b'9') if at == begin + 1 && bytes[begin] == b'0' => return no_number(bytes, begin),
            Some(digit @ b'0'..=b'9') if at - begin < 18 => n = n * 10 + i64::from(digit - b'0'),
            Some(b'\r') if at > begin && !(negative && n == 0) => {
                return match bytes.get(at + 1) {
                    Some(b'\n') => Number::Is(if negative { -n } else { n }, at + 2),
                    Some(_) => Number::Not,
                    None => Number::Unfinished,
                };
            }
            Some(_) => return no_number(bytes, begin),
        }
        at += 1;
    }
}

/// Words between blanks. Quotes are for [`unquote`].
fn inline(bytes: &[u8], args: &mut Vec<Range>, progress: &mut Option<Box<Progress>>) -> Request {
    let seen = progress.take().map_or(0, |before| before.at);
    let there = &bytes[..bytes.len().min(LINE_MAX)];
    let Some(lf) = there[seen..].iter().position(|&b| b == b'\n').map(|at| seen + at) else {
        if bytes.len() >= LINE_MAX {
            return Request::Bad(Wrong::Inline);
        }
        if bytes.len() > REMEMBERED {
            *progress = Some(Box::new(Progress { at: bytes.len(), ..Progress::default() }));
        }
        return Request::Incomplete;
    };
    match words(&bytes[..lf], args) {
        Err(Unbalanced) => Request::Bad(Wrong::Quotes),
        Ok(()) if args.is_empty() => Request::Nothing(lf + 1),
        Ok(()) => Request::Inline(lf + 1),
    }
}

struct Unbalanced;

/// As `sdssplitargs` of the servers: blanks of all kinds stand before words, fewer end them, a closing quote ends one,
/// and a NUL ends the line.
fn words(line: &[u8], args: &mut Vec<Range>) -> Result<(), Unbalanced> {
    let blank = |b: u8| b.is_ascii_whitespace() || b == 0x0b;
    let line = &line[..line.iter().position(|&b| b == 0).unwrap_or(line.len())];
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|&b| blank(b)) {
            at += 1;
        }
        if at == line.len() {
            return Ok(());
        }
        let from = at;
        while let Some(&b) = line.get(at) {
            at += 1;
            match b {
                b' ' | b'\n' | b'\r' | b'\t' => {
                    at -= 1;
                    break;
                }
                b'"' | b'\'' => {
                    at = closed(line, at, b).ok_or(Unbalanced)?;
                    if line.get(at).is_some_and(|&next| !blank(next)) {
                        return Err(Unbalanced);
                    }
                    break;
                }
                _ => {}
            }
        }
        args.push((from as u32, at as u32));
    }
}

/// Behind the quote that closes the one before `at`.
fn closed(line: &[u8], mut at: usize, quote: u8) -> Option<usize> {
    loop {
        match *line.get(at)? {
            b'\\' if quote == b'"' || line.get(at + 1) == Some(&b'\'') => at += 2,
            b if b == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
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

    fn read(bytes: &[u8]) -> (Request, Vec<&[u8]>) {
        let mut args = Vec::new();
        let request = parse_whole(bytes, &mut args);
        (request, args.iter().map(|&(a, b)| &bytes[a as usize..b as usize]).collect())
    }

    #[test]
    fn reads_arrays_and_inline_lines() {
        assert_eq!(read(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nrest"), (Request::Whole(20), vec![&b"GET"[..], b"k"]));
        assert_eq!(read(b"SET k \"a b\"\r\n"), (Request::Inline(13), vec![&b"SET"[..], b"k", b"\"a b\""]));
        assert_eq!(read(b"\r\n").0, Request::Nothing(2));
        assert_eq!(read(b"*0\r\n").0, Request::Nothing(4));
        assert_eq!(unquote(b"\"a\\x41\\n\""), b"aA\n");
        assert_eq!(unquote(b"'it\\'s'"), b"it's");
    }

    #[test]
    fn waits_for_every_byte_of_a_command_and_never_reads_past_it() {
        let whole = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nv\r\nvv\r\n";
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]).0, Request::Incomplete, "{end}");
        }
        assert_eq!(read(whole).0, Request::Whole(whole.len()));
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
            // Whatever a server refuses would close the connection to it, which others share.
            b"*02\r\n",
            b"*+2\r\n",
            b"*-0\r\n",
            b"* 2\r\n",
            b"*\r\n",
            b"*1\r\n$03\r\n",
            b"*1\r\n$-0\r\n",
            b"*1\r\n$+1\r\n",
            b"*1\r\n$\r\n",
            b"GET \"k\"x\r\n",
            b"GET 'k\\\\'\r\n",
            b"GET \"k\0\"\r\n",
        ] {
            assert!(matches!(read(bytes).0, Request::Bad(_)), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_is_no_request_is_refused_in_the_servers_words() {
        let endless = |head: &[u8]| [head, &[b'1'; LINE_MAX + 20]].concat();
        for (bytes, allowed, expected) in [
            (b"*x\r\n".to_vec(), Allowed::All, "invalid multibulk length"),
            (b"*1048577\r\n".to_vec(), Allowed::All, "invalid multibulk length"),
            (b"*99999999999999999999\r\n".to_vec(), Allowed::All, "invalid multibulk length"),
            (b"*11\r\n".to_vec(), Allowed::Little, "unauthenticated multibulk length"),
            (endless(b"*"), Allowed::All, "too big mbulk count string"),
            (endless(b"*1\r\n$"), Allowed::All, "too big bulk count string"),
            (b"*1\r\n$x\r\n".to_vec(), Allowed::All, "invalid bulk length"),
            (b"*1\r\n$-1\r\n".to_vec(), Allowed::All, "invalid bulk length"),
            (b"*1\r\n$536870913\r\n".to_vec(), Allowed::All, "invalid bulk length"),
            (b"*1\r\n$1048577\r\n".to_vec(), Allowed::UpTo(1 << 20), "invalid bulk length"),
            (b"*1\r\n$16385\r\n".to_vec(), Allowed::Little, "unauthenticated bulk length"),
            (b"*1\r\nGET\r\n".to_vec(), Allowed::All, "expected '$', got 'G'"),
            (b"*1\r\n\r\n".to_vec(), Allowed::All, "expected '$', got ' '"),
            (b"GET \"k\r\n".to_vec(), Allowed::All, "unbalanced quotes in request"),
            (b"GET 'k\r\n".to_vec(), Allowed::Little, "unbalanced quotes in request"),
            (b"GET \"k\"x\r\n".to_vec(), Allowed::All, "unbalanced quotes in request"),
            (vec![b'a'; LINE_MAX], Allowed::All, "too big inline request"),
        ] {
            let shown = &bytes[..bytes.len().min(40)];
            let found = match parse(&bytes, &mut Vec::new(), allowed, &mut None) {
                Request::Bad(wrong) => wrong.text(),
                other => panic!("{}: {other:?}", shown.escape_ascii()),
            };
            assert_eq!(
                String::from_utf8_lossy(&found),
                format!("Protocol error: {expected}"),
                "{}",
                shown.escape_ascii()
            );
        }
    }

    #[test]
    fn an_argument_is_as_long_as_the_server_takes_it() {
        let mut args = Vec::new();
        for (allowed, length, taken) in [
            (Allowed::UpTo(1 << 20), 1 << 20, true),
            (Allowed::UpTo(1 << 20), (1 << 20) + 1, false),
            (Allowed::All, ARGUMENT_MAX, true),
            (Allowed::All, ARGUMENT_MAX + 1, false),
        ] {
            let text = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\nabc");
            let expected = if taken { Request::Long } else { Request::Bad(Wrong::Length) };
            assert_eq!(parse(text.as_bytes(), &mut args, allowed, &mut None), expected, "{allowed:?}, {length}");
        }
    }

    #[test]
    fn a_long_value_is_told_before_it_is_there() {
        let (request, args) = read(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\nabc");
        assert_eq!((request, args), (Request::Long, vec![&b"SET"[..], b"k"]));
    }

    #[test]
    fn an_argument_is_streamed_only_when_longer_than_the_limit() {
        for (length, expected) in [(LONG, Request::Incomplete), (LONG + 1, Request::Long)] {
            let text = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\nabc");
            assert_eq!(read(text.as_bytes()).0, expected, "{length}");
        }
        // Once it is complete it is an ordinary command.
        let mut whole = format!("*1\r\n${}\r\n", LONG + 1).into_bytes();
        whole.resize(whole.len() + LONG + 1, b'x');
        whole.extend_from_slice(b"\r\n");
        assert_eq!(read(&whole).0, Request::Whole(whole.len()));
    }

    #[test]
    fn an_inline_request_longer_than_the_limit_is_refused() {
        let mut line = vec![b'a'; LINE_MAX - 1];
        assert_eq!(read(&line).0, Request::Incomplete);
        line.push(b'\n');
        assert_eq!(read(&line).0, Request::Inline(LINE_MAX));
        *line.last_mut().unwrap() = b'a';
        line.push(b'\n');
        assert!(matches!(read(&line).0, Request::Bad(_)));
    }

    #[test]
    fn quoted_inline_words_keep_blanks_and_escapes() {
        let (request, args) = read(b"SET a\"\\\" b\"\t'd \\' e' '\\n'\r\nGET k\r\n");
        assert_eq!(request, Request::Inline(27));
        let meant: Vec<Vec<u8>> = args.into_iter().map(unquote).collect();
        assert_eq!(meant, [&b"SET"[..], b"a\" b", b"d ' e", b"\\n"]);
        assert_eq!(unquote(b"\"\\\\\\t\\xfg\\xFf\""), b"\\\txfg\xff");
    }

    #[test]
    fn pipelined_requests_of_all_forms_are_split_correctly() {
        let whole = b"*1\r\n$4\r\nPING\r\nPING x\r\n\r\n*0\r\n";
        let with_rest = [&whole[..], b"*2\r\n$3\r\nGET"].concat();
        assert_eq!(crate::parse_requests(&with_rest), whole.len());
    }

    /// Reads it byte by byte, as it drips in; how many arguments were looked at in all.
    fn dripped(whole: &[u8], allowed: Allowed) -> (Request, Vec<Range>, usize) {
        let (mut args, mut looks) = (Vec::new(), 0);
        let mut progress: Option<Box<Progress>> = None;
        for end in 1..whole.len() {
            let before = progress.as_ref().map_or(0, |p| p.args.len());
            let request = parse(&whole[..end], &mut args, allowed, &mut progress);
            if request != Request::Incomplete {
                return (request, args, looks);
            }
            looks += progress.as_ref().map_or(0, |p| p.args.len() - before);
        }
        let request = parse(whole, &mut args, allowed, &mut progress);
        assert!(progress.is_none());
        (request, args, looks)
    }

    #[test]
    fn a_request_that_drips_in_is_read_once() {
        let mut whole = b"*20001\r\n$4\r\nSADD\r\n".to_vec();
        for n in 0..20_000u32 {
            whole.extend_from_slice(format!("$5\r\n{n:05}\r\n").as_bytes());
        }
        let mut args = Vec::new();
        assert_eq!(parse_whole(&whole, &mut args), Request::Whole(whole.len()));
        let (request, same, looks) = dripped(&whole, Allowed::All);
        assert_eq!((request, &same), (Request::Whole(whole.len()), &args));
        assert!(looks <= 20_001, "{looks} arguments were looked at");
        // An inline line is searched for its end once.
        let line = [&b"SADD k "[..], &[b'x'; 60_000], b"\r\n"].concat();
        assert_eq!(dripped(&line, Allowed::All).0, Request::Inline(line.len()));
    }

    #[test]
    fn before_auth_a_request_is_small() {
        let mut args = Vec::new();
        let mut first = |text: &[u8]| parse(text, &mut args, Allowed::Little, &mut None);
        assert_eq!(first(b"*2\r\n$4\r\nAUTH\r\n$1\r\np\r\n"), Request::Whole(21));
        assert_eq!(first(b"*11\r\n"), Request::Bad(Wrong::ArgumentsBeforeLogin));
        assert_eq!(first(b"*2000000\r\n"), Request::Bad(Wrong::Arguments));
        assert_eq!(first(b"*10\r\n$16384\r\n"), Request::Incomplete);
        assert_eq!(first(b"*10\r\n$16385\r\n"), Request::Bad(Wrong::LengthBeforeLogin));
        assert_eq!(first(b"*1\r\n$999999999\r\n"), Request::Bad(Wrong::Length));
    }

    #[test]
    fn a_long_request_is_offered_once_for_sending_on() {
        let mut args = Vec::new();
        let begun = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\nabc", LONG + 1).into_bytes();
        let mut progress = None;
        assert_eq!(parse(&begun, &mut args, Allowed::All, &mut progress), Request::Long);
        // Who has to keep it says so, and is asked no more.
        progress = Some(Box::new(Progress::kept()));
        assert_eq!(parse(&begun, &mut args, Allowed::All, &mut progress), Request::Incomplete);
        let more = [&begun[..], b"def"].concat();
        assert_eq!(parse(&more, &mut args, Allowed::All, &mut progress), Request::Incomplete);
    }

    #[test]
    fn blanks_end_words_as_they_do_for_servers() {
        for (line, expected) in [
            (&b"  GET\tk \r\n"[..], &[&b"GET"[..], b"k"][..]),
            (b"\x0b\x0cGET a\x0bb\r\n", &[b"GET", b"a\x0bb"]),
            (b"GET k\0 more\r\n", &[b"GET", b"k"]),
            (b"GET \"\" ''\r\n", &[b"GET", b"\"\"", b"''"]),
        ] {
            let (request, found) = read(line);
            assert_eq!((request, &found[..]), (Request::Inline(line.len()), expected), "{}", line.escape_ascii());
        }
    }
}
