//! What the clients of one server did, counted by whichever thread has their connections.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::pair::TALLIED;

/// A number that any thread changes.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }
}

/// For the connections on one thread. On a separate cache line, because every request changes it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Moved {
    /// Bytes from clients, and to them.
    pub up: Count,
    pub down: Count,
    /// How often a reader was slower than its writer, so that bytes had to wait here.
    pub waits: Count,
    /// Connections open now, on this thread or on their way to it.
    pub connections: Count,
}

/// Of one server.
#[derive(Debug)]
pub struct Figures {
    /// Open now.
    pub connections: Count,
    /// How often one has moved to another thread.
    pub moved: Count,
    /// Accepted, and carried from then on.
    pub accepted: Count,
    /// Accepted, and handed over to stay with TCP: of this machine, or one too many.
    pub passed: Count,
    /// By thread.
    threads: Box<[Moved]>,
}

impl Figures {
    pub(super) fn new(threads: usize) -> Figures {
        let threads = (0..threads).map(|_| Moved::default()).collect();
        let none = Count::default;
        Figures { connections: none(), moved: none(), accepted: none(), passed: none(), threads }
    }

    pub(super) fn of(&self, thread: usize) -> &Moved {
        &self.threads[thread]
    }

    fn sum(&self, of: impl Fn(&Moved) -> &Count) -> u64 {
        self.threads.iter().map(|thread| of(thread).get()).sum()
    }

    /// Bytes from clients.
    pub fn bytes_up(&self) -> u64 {
        self.sum(|thread| &thread.up)
    }

    /// Bytes to clients.
    pub fn bytes_down(&self) -> u64 {
        self.sum(|thread| &thread.down)
    }

    /// How often bytes had to wait here.
    pub fn waits(&self) -> u64 {
        self.sum(|thread| &thread.waits)
    }

    /// How many threads have connections of it.
    pub fn threads(&self) -> usize {
        self.threads.iter().filter(|thread| thread.connections.get() > 0).count()
    }

    /// In the order in which `bypass ls` reads them.
    pub fn tally(&self) -> [u64; TALLIED] {
        let (accepted, passed) = (self.accepted.get(), self.passed.get());
        [self.connections.get(), accepted, passed, self.bytes_up(), self.bytes_down(), self.waits()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_threads_count_is_added_up() {
        let figures = Figures::new(3);
        figures.of(0).connections.add(2);
        figures.of(2).connections.add(1);
        figures.of(0).up.add(10);
        figures.of(1).up.add(5);
        figures.connections.add(3);
        figures.accepted.add(3);
        assert_eq!((figures.threads(), figures.bytes_up()), (2, 15));
        assert_eq!(figures.tally(), [3, 3, 0, 15, 0, 0]);
        figures.of(2).connections.subtract(1);
        assert_eq!(figures.threads(), 1);
    }
}
