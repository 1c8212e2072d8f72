//! What goes over shared memory now, and what was refused: asks the servers of this machine, found as a client finds
//! them.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::channel::{self, Heard, Kind, ServerSocket};
use crate::endpoint::Endpoint;
use crate::memory::Memory;

/// How long a server may take; it answers between two turns of its loop.
const PATIENCE: Duration = Duration::from_secs(1);

/// A server's answer.
#[derive(Debug)]
pub struct Listing {
    /// Where clients connect to.
    pub endpoint: Endpoint,
    /// The server's process, as the kernel says.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Connections and refusals, a JSON object a line; or why there are none.
    pub lines: Result<String, NoList>,
    /// Connections from this machine that stay with TCP so far.
    pub over_tcp: u32,
}

/// Why a server's connections are not known.
#[derive(Debug)]
pub enum NoList {
    /// Its socket could not be used.
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// As the system says it.
        why: io::Error,
    },
    /// It answered without the memory that holds the list.
    Empty,
    /// It answers other users only.
    Refused,
    /// It is of another version of unslow, which speaks this version of the protocol.
    Version(u32),
    /// It closed the connection instead of answering.
    Closed,
    /// It did not answer in time.
    Busy,
}

// By hand: the preload builds this crate too, and should not wait for a macro's compiler.
impl fmt::Display for NoList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoList::Unreachable { path, why } => write!(f, "{}: {why}", path.display()),
            NoList::Empty => f.write_str("it sent no list"),
            NoList::Refused => f.write_str("it does not answer this user (--allow of its `unslow bypass`)"),
            NoList::Version(theirs) => write!(f, "it speaks version {theirs}, this is {}", channel::VERSION),
            NoList::Closed => f.write_str("it closed the connection"),
            NoList::Busy => f.write_str("busy: no answer within a second"),
        }
    }
}

impl std::error::Error for NoList {}

/// Asks every server there is.
pub fn all() -> Vec<Listing> {
    let mut listings = Vec::new();
    for directory in channel::directories() {
        for ServerSocket { path, endpoint, pid } in channel::servers_in(directory) {
            match ask(&path) {
                Ok((who, lines, over_tcp)) => {
                    listings.push(Listing { endpoint, pid: who.pid, uid: who.uid, lines, over_tcp });
                }
                // What a server that was killed left behind; the next one there takes it away.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(e) => {
                    let lines = Err(NoList::Unreachable { path, why: e });
                    listings.push(Listing { endpoint, pid, uid: u32::MAX, lines, over_tcp: 0 });
                }
            }
        }
    }
    listings.sort_by_key(|l| (l.endpoint.port, l.endpoint.netns, l.pid));
    listings
}

fn ask(path: &Path) -> io::Result<(libc::ucred, Result<String, NoList>, u32)> {
    let (channel, who) = channel::meet(path)?;
    // A server that refuses us may have said so and closed already.
    let _ = channel::say(&channel, Kind::List, 0, 0, &[]);
    let until = Instant::now() + PATIENCE;
    loop {
        match channel::hear(&channel) {
            Heard::Message(Kind::Listing, message, fds) => {
                let size = (message.a as usize).max(1);
                let Some(fd) = fds.first() else { return Ok((who, Err(NoList::Empty), 0)) };
                let memory = Memory::of_peer(fd, size, false)?;
                let mut text = vec![0; message.a as usize];
                // SAFETY: sealed memory of at least that size; the peer may still write, the bytes are only copied.
                unsafe { std::ptr::copy_nonoverlapping(memory.base(), text.as_mut_ptr(), text.len()) };
                return Ok((who, Ok(String::from_utf8_lossy(&text).into_owned()), message.b));
            }
            Heard::Message(Kind::Refused, ..) => return Ok((who, Err(NoList::Refused), 0)),
            Heard::Strange(theirs) => return Ok((who, Err(NoList::Version(theirs)), 0)),
            Heard::Gone => return Ok((who, Err(NoList::Closed), 0)),
            _ if Instant::now() > until => return Ok((who, Err(NoList::Busy), 0)),
            _ => {
                let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: a live array of one.
                unsafe { libc::poll(&mut poll, 1, 20) };
            }
        }
    }
}
