//! `unslow bypass stack`: has the TCP connections of servers that run with `--offload`, so that the kernel's TCP path
//! runs on this process's CPU time and not on theirs. It accepts for them, hands each connection over with its socket
//! ([`crate::sockets::world`], `lending.rs`), and copies bytes between the socket and the rings; it reads none of them.
//!
//! ```text
//!   client -- TCP -- [socket] up -> ring -> server
//!                    [socket] <- down  ring <- server
//! ```
//!
//! Each direction holds at most one buffer of bytes that the other end has no room for; while it does, nothing more is
//! read there, so a slow reader slows its own writer alone. One event moves at most a buffer, so every connection has
//! its turn; servers have theirs by the thread they are on ([`shares::Shares`]), and on one thread in turns. Where that
//! thread is busy, another one that has no server gets part of its connections ([`spreading`]).

mod connections;
mod figures;
mod pace;
mod post;
mod relay;
mod shares;
mod spreading;
mod teams;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use figures::{Count, Figures};
use shares::Shares;
pub use shares::{Polled, Served};
pub use teams::Spread;
use worker::Worker;

/// All servers of this process, and their connections.
pub struct Stack {
    shares: Arc<Shares>,
    workers: Vec<Worker>,
}

/// The servers of a stack, for those who watch it.
#[derive(Clone)]
pub struct Seen(Arc<Shares>);

impl Seen {
    /// Servers that lend what they listen at, by port.
    pub fn servers(&self) -> Vec<Served> {
        let mut all = self.0.served();
        all.sort_by_key(|served| (served.port, served.pid));
        all
    }

    /// Those, and servers that lend nothing more and have connections here yet, by port.
    pub fn counted(&self) -> Vec<Served> {
        let mut all = self.0.counted();
        all.sort_by_key(|served| (served.port, served.pid));
        all
    }

    /// By what connections came, where `busy` has the sets poll.
    pub fn polled(&self) -> Polled {
        self.0.polled()
    }

    /// Whether another stack has taken over servers of this one, which takes on nothing new since.
    pub fn is_superseded(&self) -> bool {
        self.0.is_superseded()
    }

    /// Says whether servers are asked for what another stack has, too, as one does that replaces another.
    pub fn take_over(&self, takes_over: bool) {
        self.0.take_over(takes_over);
    }

    /// Connections that are open, those of servers that have ended included.
    pub fn connections(&self) -> u64 {
        self.0.connections()
    }
}

impl Stack {
    /// Starts in this process with this many threads, at least one. Call it once per process.
    ///
    /// # Errors
    ///
    /// No epoll set, or no descriptor.
    pub fn new(threads: usize, spread: Spread) -> io::Result<Stack> {
        crate::reactor::rings();
        let shares = Arc::new(Shares::new(threads.max(1), spread)?);
        let workers = (0..threads.max(1)).map(|thread| Worker::new(thread, shares.clone()));
        Ok(Stack { workers: workers.collect::<io::Result<_>>()?, shares })
    }

    /// What it serves, from any thread.
    pub fn seen(&self) -> Seen {
        Seen(self.shares.clone())
    }

    /// Serves until `stop` is set, which may take a quarter of a second; calls `report` four times a second.
    ///
    /// # Errors
    ///
    /// An epoll set's: the other threads end as well.
    pub fn run(self, stop: &AtomicBool, report: impl FnMut()) -> io::Result<()> {
        let mut workers = self.workers.into_iter();
        let Some(mut first) = workers.next() else { return Ok(()) };
        std::thread::scope(|scope| {
            let others: Vec<_> = workers
                .map(|mut worker| {
                    scope.spawn(move || {
                        let _all = EndsAll(stop);
                        worker.run(stop, || {})
                    })
                })
                .collect();
            let ended = {
                let _all = EndsAll(stop);
                first.run(stop, report)
            };
            let broken = || Err(io::Error::other("a thread has ended"));
            others.into_iter().map(|other| other.join().unwrap_or_else(|_| broken())).fold(ended, Result::and)
        })
    }
}

/// When one thread ends for any reason, the others end too: a server takes its listeners back only once the process is
/// gone.
struct EndsAll<'a>(&'a AtomicBool);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
