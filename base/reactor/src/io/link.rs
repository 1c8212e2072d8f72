//! One connection: its socket and buffers, reading from the socket, and writing what waits.

use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::READ;
use crate::tls::Session;
use crate::{Carrier, Closed};

/// A connection.
pub(super) struct Link {
    pub(super) fd: OwnedFd,
    pub(super) session: Option<Box<Session>>,
    /// To be sent, in the clear.
    pub(super) out: Vec<u8>,
    /// What stands in front of it on the wire: under TLS ciphertext, else only what a full socket left over.
    pub(super) wire: Vec<u8>,
    pub(super) wire_sent: usize,
    /// Received and not yet used.
    pub(super) left: Vec<u8>,
    /// Why writing failed.
    pub(super) unwritten: Option<Closed>,
    /// Dropped then.
    pub(super) lost: usize,
    /// Taken from a listener.
    pub(super) is_visitor: bool,
    /// What was left of its output when it was written last, if it is a visitor's.
    pub(super) left_unsent: usize,
    pub(super) interest: EventFlags,
    pub(super) connected: bool,
    pub(super) opened: bool,
    pub(super) paused: bool,
    pub(super) dirty: bool,
    /// The peer will say no more.
    pub(super) ended: bool,
    /// To be closed when everything is sent.
    pub(super) finishing: bool,
    /// Least time between two writes, in nanoseconds; 0 for no limit ([`crate::Io::batch`]).
    pub(super) batch_ns: u64,
    /// When some was written last.
    pub(super) written_at: u64,
    /// A timer will write what is there.
    pub(super) waits: bool,
    pub(super) carrier: Option<&'static dyn Carrier>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(carrier) = self.carrier {
            carrier.closing(self.fd.as_fd());
        }
    }
}

#[inline]
fn sent(carrier: Option<&'static dyn Carrier>, fd: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    match carrier {
        None => send(fd, bytes, SendFlags::NOSIGNAL),
        Some(carrier) => carrier.send(fd.as_fd(), bytes).map_err(errno),
    }
}

fn errno(e: std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

impl Link {
    /// Until when its output waits for more to be written with it.
    #[inline]
    pub(super) fn waits_until(&self, now: u64) -> Option<u64> {
        let at = self.written_at + self.batch_ns;
        let waits = self.batch_ns > 0 && at > now && !self.out.is_empty();
        (waits && !self.is_full_batch() && !self.finishing).then_some(at)
    }

    /// Whether its output is too much to wait for more.
    #[inline]
    pub(super) fn is_full_batch(&self) -> bool {
        self.out.len() >= READ / 4
    }

    #[inline]
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match self.carrier {
            None => recv(&self.fd, room, RecvFlags::empty()).map(|(n, _)| n),
            Some(carrier) => carrier.receive(self.fd.as_fd(), room).map_err(errno),
        }
    }

    /// What came of a read: bytes, none for now, or the end.
    pub(super) fn heard(&self, received: Result<usize, Errno>) -> Result<usize, Closed> {
        match received {
            Ok(0) => Err(Closed::Peer),
            Ok(n) => Ok(n),
            // Nothing more to read before the end that writing has found.
            Err(Errno::AGAIN) if self.unwritten.is_some() => Err(Closed::Peer),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(e) => Err(Closed::Io(e.into())),
        }
    }

    /// Output the peer cannot have seen.
    pub(super) fn waiting(&self) -> usize {
        self.out.len() + if self.session.is_some() { 0 } else { self.wire.len() - self.wire_sent }
    }

    /// What was left of a visitor's output before, and what is now.
    #[inline]
    pub(super) fn count_unsent(&mut self) -> (usize, usize) {
        let now = if self.is_visitor { self.out.len() + self.wire.len() - self.wire_sent } else { 0 };
        (std::mem::replace(&mut self.left_unsent, now), now)
    }

    pub(super) fn write(&mut self, kept: usize) -> Result<(), Closed> {
        if self.unwritten.is_some() {
            self.lost += self.out.len();
            self.out.clear();
            return Ok(());
        }
        // A peer that always leaves some of it would make this grow for ever.
        if self.wire_sent > READ && self.wire_sent > self.wire.len() / 2 {
            self.wire.drain(..std::mem::take(&mut self.wire_sent));
        }
        if let Some(session) = &mut self.session {
            let encrypted = session.send(&self.out).and_then(|()| {
                self.out.clear();
                session.take(&mut self.wire)
            });
            encrypted.map_err(Closed::Tls)?;
        }
        loop {
            if self.wire_sent < self.wire.len() {
                match sent(self.carrier, &self.fd, &self.wire[self.wire_sent..]) {
                    Ok(n) => self.wire_sent += n,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(Closed::Io(e.into())),
                }
                continue;
            }
            emptied(&mut self.wire, kept);
            self.wire_sent = 0;
            if self.out.is_empty() {
                return Ok(());
            }
            match sent(self.carrier, &self.fd, &self.out) {
                Ok(n) if n == self.out.len() => emptied(&mut self.out, kept),
                Ok(n) => {
                    // The rest moves in front, so that what is appended later finds its place behind it.
                    std::mem::swap(&mut self.wire, &mut self.out);
                    self.wire_sent = n;
                }
                Err(Errno::AGAIN) => {
                    std::mem::swap(&mut self.wire, &mut self.out);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(Closed::Io(e.into())),
            }
        }
    }
}

pub(super) fn emptied(buffer: &mut Vec<u8>, kept: usize) {
    buffer.clear();
    if buffer.capacity() > kept {
        buffer.shrink_to(kept / 4);
    }
}
