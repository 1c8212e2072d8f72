//! This process among its peers: its board, and the waiters on it with their doorbells.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::board::{Board, WAITERS, Word};
use crate::signals::Quiet;

/// What a process shows to its peers, once.
#[derive(Debug)]
pub struct Local {
    board: Board,
    /// The board's descriptor, to be given to peers.
    pub board_fd: OwnedFd,
    /// Numbers with their doorbells: peers keep the doorbell of a number, so it stays the same.
    free: Mutex<Vec<(u32, OwnedFd)>>,
    used: AtomicU32,
}

/// Something of ours that can sleep: an epoll instance, or a thread.
#[derive(Debug)]
pub struct Waiter {
    /// Its number on the board.
    pub number: u32,
    /// Rung by peers while it sleeps.
    pub doorbell: ManuallyDrop<OwnedFd>,
    word: *const Word,
    local: &'static Local,
}

// SAFETY: the word is an atomic on a board that lives as long as the process.
unsafe impl Send for Waiter {}
// SAFETY: as above.
unsafe impl Sync for Waiter {}

impl Local {
    /// Makes the board. It is kept for as long as the process lives.
    pub fn create() -> io::Result<&'static Local> {
        let (board, board_fd) = Board::create()?;
        crate::patience::measure();
        let (free, used) = (Mutex::new(Vec::new()), AtomicU32::new(0));
        Ok(Box::leak(Box::new(Local { board, board_fd, free, used })))
    }

    /// A new waiter; an error when all are used or no eventfd is to be had.
    pub fn waiter(&'static self) -> io::Result<Waiter> {
        let _quiet = Quiet::begin();
        let known = self.free.lock().ok().and_then(|mut free| free.pop());
        let (number, doorbell) = match known {
            Some(known) => known,
            None => {
                // SAFETY: no pointers.
                let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
                if fd < 0 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: just opened.
                let doorbell = unsafe { OwnedFd::from_raw_fd(fd) };
                (self.used.fetch_add(1, Ordering::Relaxed), doorbell)
            }
        };
        let Some(word) = self.board.word(number) else {
            self.used.store(WAITERS as u32, Ordering::Relaxed);
            return Err(io::Error::other("more threads and epoll instances than a board has place for"));
        };
        Ok(Waiter { number, doorbell: ManuallyDrop::new(doorbell), word, local: self })
    }
}

impl Waiter {
    /// Its word on the board.
    #[inline]
    pub fn word(&self) -> &Word {
        // SAFETY: see the `Send` above.
        unsafe { &*self.word }
    }

    /// Empties the doorbell after it rang.
    pub fn answer(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes of room. Not through libc's `read`, which may be a hook of ours.
        unsafe { libc::syscall(libc::SYS_read, self.doorbell.as_raw_fd(), &raw mut count, 8) };
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _quiet = Quiet::begin();
        self.word().sleeps();
        // SAFETY: taken once, here.
        let doorbell = unsafe { ManuallyDrop::take(&mut self.doorbell) };
        if let Ok(mut free) = self.local.free.lock() {
            free.push((self.number, doorbell));
        }
    }
}

/// The processor this thread runs on.
#[inline]
pub fn processor() -> u32 {
    // SAFETY: no arguments. Answered by the C library without a system call.
    unsafe { libc::sched_getcpu() }.max(0) as u32
}
