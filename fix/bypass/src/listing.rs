//! What goes over shared memory now, and what was refused: asks the servers of this machine, found as a client finds
//! them.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

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
    pub lines: Result<String, String>,
    /// Connections from this machine that stay with TCP so far.
    pub over_tcp: u32,
}

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
                    let lines = Err(format!("{}: {e}", path.display()));
                    listings.push(Listing { endpoint, pid, uid: u32::MAX, lines, over_tcp: 0 });
                }
            }
        }
    }
    listings.sort_by_key(|l| (l.endpoint.port, l.endpoint.netns, l.pid));
    listings
}

fn ask(path: &Path) -> io::Result<(libc::ucred, Result<String, String>, u32)> {
    let (channel, who) = channel::meet(path)?;
    // A server that refuses us may have said so and closed already.
    let _ = channel::say(&channel, Kind::List, 0, 0, &[]);
    let until = Instant::now() + PATIENCE;
    loop {
        match channel::hear(&channel) {
            Heard::Message(Kind::Listing, message, fds) => {
                let size = (message.a as usize).max(1);
                let Some(fd) = fds.first() else { return Ok((who, Err("it sent no list".into()), 0)) };
                let memory = Memory::of_peer(fd, size, false)?;
                let mut text = vec![0; message.a as usize];
                // SAFETY: sealed memory of at least that size; the peer may still write, the bytes are only copied.
                unsafe { std::ptr::copy_nonoverlapping(memory.base(), text.as_mut_ptr(), text.len()) };
                return Ok((who, Ok(String::from_utf8_lossy(&text).into_owned()), message.b));
            }
            Heard::Message(Kind::Refused, ..) => {
                return Ok((who, Err("it does not answer this user (--allow of its `unslow bypass`)".into()), 0));
            }
            Heard::Strange(version) => {
                return Ok((who, Err(format!("it speaks version {version}, this is {}", channel::VERSION)), 0));
            }
            Heard::Gone => return Ok((who, Err("it closed the connection".into()), 0)),
            _ if Instant::now() > until => return Ok((who, Err("busy: no answer within a second".into()), 0)),
            _ => {
                let mut poll = libc::pollfd { fd: channel.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: a live array of one.
                unsafe { libc::poll(&mut poll, 1, 20) };
            }
        }
    }
}
