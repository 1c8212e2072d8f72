//! The data plane's event loop, shared by bench and gateway: one thread, many connections, few system calls.
//!
//! A thread that wants to serve runs one [`Reactor`] and shares nothing with the others. The owner is a [`Handler`]: it
//! gets bytes as slices of the loop's own buffer, says how many it has used, and appends what it wants to send to the
//! connection's output, which is written once a turn however many appended to it.
//!
//! ```text
//!   turn: Handler::turn -> write what is due -> sleep until readable, a timer or a waker -> Handler::data, ... -> turn
//! ```
//!
//! What surprises:
//! - Output may be appended to a connection that is not open yet; it goes out behind the connect and the TLS handshake.
//! - `epoll` is level-triggered with one read per event, so that a busy peer cannot starve the others, and a read that
//!   empties the socket needs no second one to learn so.
//! - Sleeps end by a timerfd, set anew only when it would ring too late: epoll's own timeout has milliseconds, its
//!   nanoseconds (`epoll_pwait2`) are missing before Linux 5.11 and forbidden in some containers, and a load generator
//!   that wakes a millisecond late is no instrument.
//! - Back-pressure is the owner's: [`Io::unsent`] says how much waits, [`Io::pause`] stops reading a connection, and
//!   [`Handler::drained`] tells when a blocked output is empty again.
#![forbid(unsafe_code)]

mod dial;
mod end;
mod io;
mod tls;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};

pub use crate::dial::{peer_of, peers_of, tls_of};
pub use crate::end::{End, Waited};
pub use crate::io::{Io, Reactor};

/// Nanoseconds of the monotonic clock; what all times here are in.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A connection of one [`Reactor`]. Never reused: a closed one stays closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    index: u32,
    generation: u32,
}

impl Id {
    /// Refers to no connection.
    pub const NOBODY: Id = Id { index: u32::MAX, generation: u32::MAX };

    /// A small number for the owner's tables; a later connection may have the same once this one is gone.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// Where connections are taken, and how; made once and shared by the threads that accept on it.
pub struct Listening {
    /// Bound and listening.
    pub fd: OwnedFd,
    /// For those who come; in the clear when `None`.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

/// Who came to a listener.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// Number the listener was given by [`Io::listen`].
    pub listener: usize,
    /// The peer's address; `None` for unix sockets.
    pub from: Option<SocketAddr>,
    /// The address it dialled.
    pub to: Option<SocketAddr>,
}

/// A TCP or unix socket that listens. A `shared` TCP address may be bound several times (`SO_REUSEPORT`), so that each
/// thread has its own queue. A unix path that nobody listens on any more is taken over.
pub fn bind(peer: &Peer, shared: bool) -> std::io::Result<OwnedFd> {
    io::bind(peer, shared)
}

/// A change of what an epoll set watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A descriptor comes in, with the data and flags of its events.
    Add(u64, u32),
    /// It gets others.
    Modify(u64, u32),
    /// It goes.
    Remove,
}

/// Another way for the bytes of TCP connections than through the kernel. A loop that was given one
/// ([`Reactor::carried_by`]) asks it whatever it would ask the kernel of a descriptor; answers and errors are the
/// kernel's.
pub trait Carrier: Sync {
    /// The loop's own epoll set.
    fn made(&self, epoll: BorrowedFd<'_>);
    /// A connection to somebody has begun; it may be carried from now on.
    fn connecting(&self, fd: BorrowedFd<'_>);
    /// `epoll_ctl`.
    fn change(&self, epoll: BorrowedFd<'_>, fd: BorrowedFd<'_>, change: Change) -> std::io::Result<()>;
    /// `epoll_wait`: events as data and flags; `at_once` does not sleep.
    fn wait(&self, epoll: BorrowedFd<'_>, events: &mut Vec<(u64, u32)>, at_once: bool) -> std::io::Result<()>;
    /// `recv`.
    fn receive(&self, fd: BorrowedFd<'_>, room: &mut [u8]) -> std::io::Result<usize>;
    /// `send`, without a signal.
    fn send(&self, fd: BorrowedFd<'_>, bytes: &[u8]) -> std::io::Result<usize>;
    /// Before `shutdown` of the writing side.
    fn ending(&self, fd: BorrowedFd<'_>);
    /// Before `close`.
    fn closing(&self, fd: BorrowedFd<'_>);
}

/// How to speak TLS on a connection: the configuration and the name expected in the certificate.
#[derive(Clone)]
pub struct Tls {
    /// Roots, client certificate, versions.
    pub config: Arc<rustls::ClientConfig>,
    /// Name of the server.
    pub name: rustls::pki_types::ServerName<'static>,
}

/// Why a TLS session ended.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// By what the peer or our own settings say: certificates, versions, records that are none.
    #[error(transparent)]
    Session(#[from] rustls::Error),
    /// Its buffers refused bytes: more records without an end than rustls holds.
    #[error(transparent)]
    Buffer(#[from] std::io::Error),
}

/// Why a connection is no more.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// It was never established.
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Peer,
    /// Reading or writing failed.
    #[error("the connection broke: {0}")]
    Io(std::io::Error),
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(#[from] TlsError),
    /// More bytes than [`Io::limit_input`] allows wait to be used by the handler.
    #[error("too many bytes without the end of a frame")]
    TooMuch,
}

/// What runs on a reactor. Every call comes on the reactor's thread, and none may block.
pub trait Handler {
    /// Before each sleep. Returns when it wants to be called again at the latest ([`now_ns`]), `None` for not at all.
    fn turn(&mut self, io: &mut Io) -> Option<u64>;
    /// The connection is established, TLS included.
    fn opened(&mut self, io: &mut Io, id: Id);
    /// Bytes came. Returns how many of them are done with; the rest comes again with more behind it.
    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize;
    /// The connection is gone; not called for [`Io::close`].
    fn closed(&mut self, io: &mut Io, id: Id, why: Closed);
    /// A timer set by [`Io::timer`] is due.
    fn timer(&mut self, io: &mut Io, key: u64);
    /// Somebody came. [`Handler::opened`] follows, under TLS after the handshake, or [`Handler::closed`].
    fn accepted(&mut self, io: &mut Io, id: Id, visitor: Visitor) {
        let _ = (id, visitor);
        io.close(id);
    }
    /// The peer will say no more and may still listen. True keeps the connection for what is to be said to it
    /// ([`Io::finish`]); else it is closed, and [`Handler::closed`] says so.
    fn ended(&mut self, io: &mut Io, id: Id) -> bool {
        let _ = (io, id);
        false
    }
    /// An output that the peer had blocked is empty again.
    fn drained(&mut self, io: &mut Io, id: Id) {
        let _ = (io, id);
    }
}

/// Wakes a reactor from another thread. A clone wakes the same one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    fn new() -> std::io::Result<Waker> {
        Ok(Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends the sleep of that reactor, now or at its next turn.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes()); // full means that it is awake already
    }

    fn rest(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }
}
