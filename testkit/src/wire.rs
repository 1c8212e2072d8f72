//! A raw connection: frames as the bytes that arrived, and the parts of a frame.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use unslow_resp::{Frame, Limits, Scan, Scanner, write_command};

/// How the reading of replies ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything expected has arrived.
    Open,
    Closed,
    /// Nothing more arrived in time.
    Silent,
    /// The bytes are not RESP.
    Garbled,
}

/// What ends the reading of replies.
#[derive(Clone, Debug)]
pub enum Until {
    /// A reply that ends with this text.
    Token(Vec<u8>),
    /// This many replies.
    Replies(usize),
    /// The peer closes the connection.
    Closed,
}

impl Until {
    fn is_met(&self, replies: &[Vec<u8>]) -> bool {
        match self {
            Until::Token(token) => {
                let text = replies.last().and_then(|reply| reply.strip_suffix(b"\r\n"));
                text.is_some_and(|text| text.ends_with(token))
            }
            Until::Replies(count) => replies.len() >= *count,
            Until::Closed => false,
        }
    }
}

/// Everything read up to that end.
#[derive(Debug)]
pub struct Heard {
    pub replies: Vec<Vec<u8>>,
    /// Messages and confirmations of subscriptions, in either protocol.
    pub pushes: Vec<Vec<u8>>,
    pub end: End,
}

pub struct Wire {
    stream: TcpStream,
    scanner: Scanner,
    bytes: Vec<u8>,
    chunk: Vec<u8>,
}

/// Replies of scripts may be nested far deeper than those of commands, and their lines be far longer.
fn limits() -> Limits {
    Limits { depth_max: 4096, line_bytes_max: 16 << 20, ..Limits::default() }
}

impl Wire {
    /// Each read and write may take `patience`.
    #[track_caller]
    pub fn open(address: &str, patience: Duration) -> Wire {
        let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
        stream.set_read_timeout(Some(patience)).expect("it is not zero");
        stream.set_write_timeout(Some(patience)).expect("it is not zero");
        stream.set_nodelay(true).expect("a TCP socket");
        Wire { stream, scanner: Scanner::new(limits()), bytes: Vec::new(), chunk: vec![0; 1 << 16] }
    }

    /// Ignores errors: a connection that the peer has closed shows when it is read.
    pub fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next frame.
    pub fn frame(&mut self) -> Result<Vec<u8>, End> {
        loop {
            match self.scanner.scan(&self.bytes) {
                Ok(Scan::Complete(len)) => return Ok(self.bytes.drain(..len).collect()),
                Ok(Scan::Incomplete) => {}
                Err(_) => return Err(End::Garbled),
            }
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return Err(End::Closed),
                Ok(n) => self.bytes.extend_from_slice(&self.chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Err(End::Silent),
                Err(_) => return Err(End::Closed),
            }
        }
    }

    /// Reads until the condition is met and at least this many pushes have arrived.
    pub fn hear(&mut self, until: &Until, pushes: usize) -> Heard {
        let mut heard = Heard { replies: Vec::new(), pushes: Vec::new(), end: End::Open };
        while !until.is_met(&heard.replies) || heard.pushes.len() < pushes {
            match self.frame() {
                Ok(frame) if is_push(&frame) => heard.pushes.push(frame),
                Ok(frame) => heard.replies.push(frame),
                Err(end) => {
                    heard.end = end;
                    break;
                }
            }
        }
        heard
    }

    /// The reply to one command.
    #[track_caller]
    pub fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Vec<u8> {
        self.write(&command(words));
        match self.frame() {
            Ok(frame) => frame,
            Err(end) => panic!("{end:?} instead of a reply to {}", shown(words[0].as_ref())),
        }
    }

    /// Reads until the peer closes the connection, and fails the test if it does not.
    #[track_caller]
    pub fn until_closed(&mut self) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.bytes);
        loop {
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return all,
                Ok(n) => all.extend_from_slice(&self.chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("the connection is still open after {}", shown(&all))
                }
                // Reset: the peer closed it with input it had not read.
                Err(_) => return all,
            }
        }
    }
}

/// A command as an array of bulk strings.
pub fn command<A: AsRef<[u8]>>(words: &[A]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_command(&mut bytes, words);
    bytes
}

/// Bytes as printable text, long ones cut.
pub fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 400;
    let more = bytes.len().saturating_sub(SHOWN);
    let text = bytes[..bytes.len() - more].escape_ascii().to_string();
    if more > 0 { format!("{text}... and {more} more bytes") } else { text }
}

/// The elements of an aggregate as they are on the wire, keys and values in turn for a map; `None` for a scalar.
pub fn elements(frame: &[u8]) -> Option<Vec<&[u8]>> {
    if !matches!(frame.first(), Some(b'*' | b'~' | b'%' | b'>')) {
        return None;
    }
    let from = frame.iter().position(|b| *b == b'\n')? + 1;
    let (mut rest, mut all) = (&frame[from..], Vec::new());
    while !rest.is_empty() {
        let Ok(Scan::Complete(len)) = Scanner::new(limits()).scan(rest) else { return None };
        let (element, after) = rest.split_at(len);
        all.push(element);
        rest = after;
    }
    Some(all)
}

/// Whether a frame is a push rather than a reply: `>` in RESP3, an array of a certain form in RESP2.
fn is_push(frame: &[u8]) -> bool {
    const WORDS: [&[u8]; 9] = [
        b"message",
        b"pmessage",
        b"smessage",
        b"subscribe",
        b"psubscribe",
        b"ssubscribe",
        b"unsubscribe",
        b"punsubscribe",
        b"sunsubscribe",
    ];
    let first = |frame| Frame::new(frame).items().next().map(|item| item.text());
    match frame {
        [b'>', ..] => true,
        [b'*', b'3' | b'4', b'\r', ..] => first(frame).is_some_and(|word| WORDS.contains(&word)),
        _ => false,
    }
}

/// Pushes in a canonical order: messages are grouped by channel and keep their order within it; confirmations are
/// sorted, with their counts apart, because servers unsubscribe from several channels in any order.
pub fn comparable_pushes(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut counts: Vec<Vec<u8>> = Vec::new();
    for frame in frames {
        match elements(frame).as_deref() {
            Some([kind, channel, count]) if kind.ends_with(b"subscribe\r\n") => {
                counts.push(count.to_vec());
                all.push(([*kind, *channel].concat(), Vec::new()));
            }
            Some([kind, channel, ..]) => all.push(([*kind, *channel].concat(), frame.clone())),
            _ => all.push((Vec::new(), frame.clone())),
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    counts.sort();
    all.into_iter().map(|(key, frame)| if frame.is_empty() { key } else { frame }).chain(counts).collect()
}
