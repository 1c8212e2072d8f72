//! RESP2 and RESP3: frames to bytes and back. No sockets, no copies, no allocation until a caller asks for one.
//!
//! Two steps, because a data plane needs only the first: [`Splitter`] finds where a frame ends as its bytes come
//! and go, [`Scanner`] does so for a buffer that keeps the whole frame, and neither looks at a byte twice; [`Frame`]
//! reads inside the frame found, as slices.
//! [`Value`] is the owned tree, for callers who rather have comfort than speed.
//!
//! Left out on purpose: RESP3 streamed strings and aggregates (`$?`, `*?`). No released server sends them.
//!
//! Wire format: <https://redis.io/docs/latest/develop/reference/protocol-spec/>
#![forbid(unsafe_code)]

mod frame;
mod limits;
mod scanner;
mod splitter;
mod value;
mod words;

pub use frame::{Frame, Items, Kind};
pub use limits::{Error, ErrorKind, Limits};
pub use scanner::{Scan, Scanner};
pub use splitter::{Done, Split, Splitter};
pub use value::{Value, lossy};
pub use words::{WordsError, quote_words, split_words};

/// Appends one command, as every server version accepts it: an array of bulk strings.
///
/// ```
/// let mut out = Vec::new();
/// unslow_resp::write_command(&mut out, &["GET", "k"]);
/// assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
/// ```
pub fn write_command<A: AsRef<[u8]>>(out: &mut Vec<u8>, args: &[A]) {
    write_header(out, b'*', args.len());
    for arg in args {
        let arg = arg.as_ref();
        write_header(out, b'$', arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the line in front of a blob (`$`) or an aggregate (`*`): its type, its length, CR LF.
pub fn write_header(out: &mut Vec<u8>, kind: u8, mut n: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.push(kind);
    out.extend_from_slice(&digits[at..]);
    out.extend_from_slice(b"\r\n");
}
