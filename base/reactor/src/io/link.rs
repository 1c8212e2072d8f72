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
    /// What stands in front of it on the wire. Apart, like what follows it, since most connections have none.
    pub(super) wire: Option<Box<Wire>>,
    /// What became of it where writing failed.
    pub(super) unwritten: Option<Box<Unwritten>>,
    /// Received and not yet used.
    pub(super) left: Vec<u8>,
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
    pub(super) carrier: Option<&'static dyn Carrier>,
}

/// Bytes that are ready for the socket: under TLS ciphertext, else only what a full socket left over.
#[derive(Default)]
pub(super) struct Wire {
    bytes: Vec<u8>,
    sent: usize,
}

/// Output that its peer will never see.
pub(super) struct Unwritten {
    /// None once it was told.
    pub(super) why: Option<Closed>,
    bytes: usize,
}

impl Wire {
    fn unsent(&self) -> usize {
        self.bytes.len() - self.sent
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(carrier) = self.carrier {
            carrier.closing(self.fd.as_fd());
        }
    }
}

fn errno(e: std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

impl Link {
    /// One whose socket is not known to be connected.
    pub(super) fn new(
        fd: OwnedFd,
        session: Option<Box<Session>>,
        interest: EventFlags,
        carrier: Option<&'static dyn Carrier>,
    ) -> Link {
        Link {
            fd,
            session,
            out: Vec::new(),
            wire: None,
            unwritten: None,
            left: Vec::new(),
            is_visitor: false,
            left_unsent: 0,
            interest,
            connected: false,
            opened: false,
            paused: false,
            dirty: false,
            ended: false,
            finishing: false,
            carrier,
        }
    }

    #[inline]
    pub(super) fn receive(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match self.carrier {
            None => recv(&self.fd, room, RecvFlags::empty()).map(|(n, _)| n),
            Some(carrier) => carrier.receive(self.fd.as_fd(), room).map_err(errno),
        }
    }

    /// Why writing failed, once.
    pub(super) fn take_why_unwritten(&mut self) -> Option<Closed> {
        self.unwritten.as_mut()?.why.take()
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

    /// Bytes that are ready for the socket, which has not taken them.
    #[inline]
    fn blocked(&self) -> usize {
        self.wire.as_ref().map_or(0, |wire| wire.unsent())
    }

    /// Whether it is to be written when the socket takes more.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked() > 0
    }

    /// Bytes that wait to be sent.
    #[inline]
    pub(super) fn unsent(&self) -> usize {
        self.out.len() + self.blocked()
    }

    /// Output the peer cannot have seen.
    pub(super) fn never_sent(&self) -> usize {
        let waiting = if self.session.is_some() { self.out.len() } else { self.unsent() };
        waiting + self.unwritten.as_ref().map_or(0, |unwritten| unwritten.bytes)
    }

    /// Its output cannot be written any more, for this reason.
    pub(super) fn give_up_output(&mut self, why: Closed) {
        let bytes = self.never_sent();
        (self.out, self.wire) = (Vec::new(), None);
        match &mut self.unwritten {
            Some(unwritten) => unwritten.bytes = bytes,
            None => self.unwritten = Some(Box::new(Unwritten { why: Some(why), bytes })),
        }
    }

    /// What was left of a visitor's output before, and what is now.
    #[inline]
    pub(super) fn count_unsent(&mut self) -> (usize, usize) {
        let now = if self.is_visitor { self.unsent() } else { 0 };
        (std::mem::replace(&mut self.left_unsent, now), now)
    }

    /// Writes what the socket takes. What it leaves of the output goes in front, so that what is appended later finds
    /// its place behind it.
    pub(super) fn write(&mut self, kept: usize) -> Result<(), Closed> {
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.bytes += self.out.len();
            emptied(&mut self.out, kept);
            return Ok(());
        }
        if let Some(session) = &mut self.session {
            let wire = self.wire.get_or_insert_default();
            let encrypted = session.send(&self.out).and_then(|()| {
                emptied(&mut self.out, kept);
                session.take(&mut wire.bytes)
            });
            encrypted.map_err(Closed::Tls)?;
        }
        if let Some(wire) = &mut self.wire {
            // A peer that always leaves some of it would make this grow for ever.
            if wire.sent > READ && wire.sent > wire.bytes.len() / 2 {
                wire.bytes.drain(..std::mem::take(&mut wire.sent));
            }
            send_on(self.carrier, &self.fd, &wire.bytes, &mut wire.sent)?;
            if wire.unsent() > 0 {
                return Ok(());
            }
            if self.session.is_some() {
                emptied(&mut wire.bytes, kept);
                wire.sent = 0;
            } else {
                self.wire = None;
            }
        }
        let mut sent = 0;
        let outcome = send_on(self.carrier, &self.fd, &self.out, &mut sent);
        if sent == self.out.len() {
            emptied(&mut self.out, kept);
        } else {
            self.wire = Some(Box::new(Wire { bytes: std::mem::take(&mut self.out), sent }));
        }
        outcome
    }
}

/// Sends bytes from `sent` on until the socket is full, and counts in `sent` what it took.
#[inline]
fn send_on(carrier: Option<&'static dyn Carrier>, fd: &OwnedFd, bytes: &[u8], sent: &mut usize) -> Result<(), Closed> {
    while *sent < bytes.len() {
        let rest = &bytes[*sent..];
        let taken = match carrier {
            None => send(fd, rest, SendFlags::NOSIGNAL),
            Some(carrier) => carrier.send(fd.as_fd(), rest).map_err(errno),
        };
        match taken {
            Ok(n) => *sent += n,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Closed::Io(e.into())),
        }
    }
    Ok(())
}

pub(super) fn emptied(buffer: &mut Vec<u8>, kept: usize) {
    buffer.clear();
    if buffer.capacity() > kept {
        buffer.shrink_to(kept / 4);
    }
}
