//! Memory shared with another process: sealed memfds, so that nobody can cut a mapping short under its user.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Linux 5.1; the constant is missing from older libc crates' Android-only lists.
const F_SEAL_FUTURE_WRITE: i32 = 0x10;

/// `UNSLOW_BYPASS_HUGE_PAGES`, as it was when it was first asked for: nginx empties the environment of its workers.
pub fn huge_pages() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os("UNSLOW_BYPASS_HUGE_PAGES").is_some_and(|v| !v.is_empty() && v != "0"))
}

/// A mapping of a sealed memfd; unmapped on drop.
#[derive(Debug)]
pub struct Memory {
    base: *mut u8,
    size: usize,
}

// SAFETY: plain memory; who uses it brings its own order.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// New memory of `size` bytes and the descriptor to give away. With `read_only` others can only look at it, where
    /// the kernel knows how (5.1).
    pub fn create(name: &std::ffi::CStr, size: usize, read_only: bool) -> io::Result<(Memory, OwnedFd)> {
        // SAFETY: a terminated name and known flags.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a descriptor of ours.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let memory = Memory::map(&fd, size, true)?;
        if read_only {
            // SAFETY: as above. An old kernel refuses, and others are trusted not to write then.
            unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, F_SEAL_FUTURE_WRITE) };
        }
        // SAFETY: as above.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((memory, fd))
    }

    /// Maps what a peer gave, if it is sealed and as large as it must be.
    pub fn of_peer(fd: &OwnedFd, size: usize, write: bool) -> io::Result<Memory> {
        // SAFETY: a descriptor of ours; anything but a memfd says EINVAL.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(io::Error::other("the peer's memory is not sealed"));
        }
        // SAFETY: all zeros is a valid `stat`.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a descriptor of ours and room for the answer.
        if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 || stat.st_size != size as libc::off_t {
            return Err(io::Error::other("the peer's memory is not as large as it says"));
        }
        Memory::map(fd, size, write)
    }

    fn map(fd: &OwnedFd, size: usize, write: bool) -> io::Result<Memory> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), size, protection, flags, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child of fork must not touch what belongs to its parent, and copies no page tables for it.
        // SAFETY: the mapping just made.
        unsafe { libc::madvise(base, size, libc::MADV_DONTFORK) };
        Ok(Memory { base: base.cast(), size })
    }

    /// Asks for huge pages where [`huge_pages`] says so and the machine has them: fewer misses of the processor's table
    /// of pages for megabytes more of memory.
    pub fn prefer_huge_pages(self) -> Memory {
        if huge_pages() {
            // SAFETY: our mapping. A kernel without them refuses, and pages stay small.
            unsafe { libc::madvise(self.base.cast(), self.size, libc::MADV_HUGEPAGE) };
        }
        self
    }

    /// Its first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// The pages are given back to the kernel; they read as zeros afterwards.
    pub fn release(&self, at: usize, bytes: usize) {
        debug_assert!(at + bytes <= self.size);
        // SAFETY: inside the mapping, which stays.
        unsafe { libc::madvise(self.base.add(at).cast(), bytes, libc::MADV_REMOVE) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever drops it has no references into it any more.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}
