//! How connections get from one thread to another.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::relay::Connection;
use super::shares::Common;

/// What a thread is sent.
pub enum Parcel {
    /// It has this connection from now on.
    Connection(Box<Connection>),
    /// A server has ended: its connections end once what it has written is sent.
    Ended(Arc<Common>),
}

/// Where a thread finds it.
pub struct Post {
    parcels: Mutex<Vec<Parcel>>,
    /// Readable while there are some.
    bell: File,
}

impl Post {
    /// # Errors
    ///
    /// No descriptor.
    pub fn new() -> io::Result<Post> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and owned by nothing else.
        let bell = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Post { parcels: Mutex::default(), bell })
    }

    pub fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// From any thread.
    pub fn send(&self, parcels: impl IntoIterator<Item = Parcel>) {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner).extend(parcels);
        // It fails only where it has been rung more often than can be counted.
        let _ = (&self.bell).write(&1u64.to_ne_bytes());
    }

    /// All there is, in the order in which it was sent.
    pub fn take(&self) -> Vec<Parcel> {
        let _ = (&self.bell).read(&mut [0; 8]);
        std::mem::take(&mut *self.parcels.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
