//! Who is awake, and where: a page each process shows to its peers.
//!
//! A *waiter* is what can sleep: an epoll instance, or a thread that blocks. Its word is the number of its processor
//! plus one, with a bit set while it sleeps in the kernel, and 0 before it ever ran. A peer that has something for it
//! rings its doorbell (an eventfd) only when it sleeps; and stays awake for an answer only where the word names another
//! processor than its own.
//!
//! The order that makes it safe: a sleeper writes that it sleeps, then looks for work once more, then sleeps. A sender
//! makes the work visible, then reads the word. Both have a full fence between the two steps.

use std::io;
use std::os::fd::OwnedFd;

use crate::memory::Memory;
use crate::sync::{AtomicU32, Ordering, fence};

/// Waiters a process may have.
pub const WAITERS: usize = 1024;
const STRIDE: usize = 64;
const ASLEEP: u32 = 1 << 31;
/// Bytes of a board.
pub const SIZE: usize = WAITERS * STRIDE;

/// A waiter's word.
#[derive(Debug, Default)]
pub struct Word(AtomicU32);

impl Word {
    /// It runs here.
    #[inline]
    pub fn awake(&self, processor: u32) {
        if self.0.load(Ordering::Relaxed) != processor + 1 {
            self.0.store(processor + 1, Ordering::Relaxed);
        }
    }

    /// It is about to sleep: look for work once more after this, then sleep.
    #[inline]
    pub fn sleeps(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) | ASLEEP, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Whether it has to be woken. What it is to be woken for must be visible before, by a locked instruction or a
    /// fence.
    #[inline]
    pub fn asleep(&self) -> bool {
        let word = self.0.load(Ordering::SeqCst);
        word == 0 || word & ASLEEP != 0
    }

    /// Whether it runs on another processor than this one: then an answer may come soon.
    #[inline]
    pub fn elsewhere(&self, processor: u32) -> bool {
        let word = self.0.load(Ordering::Relaxed);
        word != 0 && word & ASLEEP == 0 && word != processor + 1
    }

    /// The same of where it ran last, asleep or not.
    #[inline]
    pub fn last_elsewhere(&self, processor: u32) -> bool {
        let last = self.0.load(Ordering::Relaxed) & !ASLEEP;
        last != 0 && last != processor + 1
    }
}

/// The words of one process.
#[derive(Debug)]
pub struct Board(Memory);

impl Board {
    /// Our own, and the descriptor to show it by.
    pub fn create() -> io::Result<(Board, OwnedFd)> {
        let (memory, fd) = Memory::create(c"unslow-bypass-board", SIZE, true)?;
        Ok((Board(memory), fd))
    }

    /// A peer's.
    pub fn of_peer(fd: &OwnedFd) -> io::Result<Board> {
        Ok(Board(Memory::of_peer(fd, SIZE, false)?))
    }

    /// The word of a waiter; `None` for a number nobody can have.
    #[inline]
    pub fn word(&self, waiter: u32) -> Option<&Word> {
        if waiter as usize >= WAITERS {
            return None;
        }
        // SAFETY: inside the mapping, aligned, and only ever used as an atomic.
        Some(unsafe { &*self.0.base().add(waiter as usize * STRIDE).cast::<Word>() })
    }
}
