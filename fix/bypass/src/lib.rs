//! Connections of one machine over shared memory instead of loopback TCP.
//!
//! At one command a round trip a Redis server spends 87 % of its time in the kernel's TCP path. Here bytes go from one
//! process to the other through a ring in memory both see: no system call, one copy in, one copy out. What the programs
//! see stays a socket; `preload/` does that by standing between them and the C library.
//!
//! ```text
//!   client process                         server process
//!   link ── pair (memfd: slots, rings, bits) ── link
//!     waiter ── board ······ doorbells ······ board ── waiter
//!          └──────── channel (unix socket) ────────┘        meeting, descriptors
//!          └──────── TCP connection, silent ───────┘        addresses, options, crashes
//! ```
//!
//! What surprises: each connection keeps its TCP connection. It gives both programs the descriptor, the addresses and
//! the socket options they expect, and its end is how a crash of the other side is noticed. No byte goes over it.

pub mod board;
pub mod busy;
pub mod channel;
pub mod endpoint;
pub mod held;
pub mod life;
pub mod link;
pub mod listing;
pub mod local;
pub mod memory;
pub mod pair;
pub mod patience;
#[cfg(feature = "reactor")]
pub mod reactor;
pub mod ring;
pub mod signals;
pub mod sockets;
#[cfg_attr(not(feature = "sockmap"), path = "sockmap_absent.rs")]
pub mod sockmap;
#[cfg(feature = "reactor")]
pub mod stack;
pub mod stamp;
mod sync;
