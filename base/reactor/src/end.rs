//! Waiting for a descriptor without a loop: for threads that accept a connection now and then, and must end when told
//! to.
//!
//! A thread that polled `accept` would wake up for as long as the process lives. This one sleeps until there is
//! something to accept, and another thread can end the sleep.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// Ends waits for good: those of now and those that begin later. A clone ends the same ones.
#[derive(Clone, Debug)]
pub struct End(Arc<OwnedFd>);

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// There is something to read or accept, or an error to be told.
    Readable,
    /// [`End::end`] was called.
    Ended,
    /// Neither, in the time there was.
    TimedOut,
}

impl End {
    /// Fails without a descriptor to spare.
    pub fn new() -> std::io::Result<End> {
        Ok(End(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Ends every wait.
    pub fn end(&self) {
        // It is never read, so it stays readable.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Waits until `fd` is readable, at most for `patience` if there is one.
    pub fn wait(&self, fd: impl AsFd, patience: Option<Duration>) -> Waited {
        let fd = fd.as_fd();
        self.poll(
            &mut [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN), PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            patience,
        )
    }

    /// Sleeps this long, unless it is ended. True when it is.
    pub fn sleep(&self, time: Duration) -> bool {
        self.poll(&mut [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)], Some(time)) == Waited::Ended
    }

    /// The first of `fds` is our own.
    fn poll(&self, fds: &mut [PollFd<'_>], patience: Option<Duration>) -> Waited {
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            match poll(fds, left.as_ref()) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    // The kernel has no memory at this moment: as if it had taken some time.
                    std::thread::sleep(Duration::from_millis(10));
                    return Waited::TimedOut;
                }
            }
        }
        match &*fds {
            [own, ..] if !own.revents().is_empty() => Waited::Ended,
            [_, fd] if !fd.revents().is_empty() => Waited::Readable,
            _ => Waited::TimedOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    const NONE: Option<Duration> = Some(Duration::ZERO);

    #[test]
    fn a_wait_ends_with_something_to_read_and_for_good_when_it_is_told_to() {
        let end = End::new().expect("a descriptor");
        let (mut there, here) = UnixStream::pair().expect("two ends");
        assert_eq!(end.wait(&here, NONE), Waited::TimedOut);
        assert!(!end.sleep(Duration::ZERO));
        there.write_all(b"x").expect("room");
        assert_eq!(end.wait(&here, None), Waited::Readable);
        end.clone().end();
        for _ in 0..2 {
            assert_eq!(end.wait(&here, None), Waited::Ended);
            assert!(end.sleep(Duration::from_secs(3600)));
        }
    }

    #[test]
    fn another_thread_ends_a_wait_that_nothing_else_would() {
        let end = End::new().expect("a descriptor");
        let (_there, here) = UnixStream::pair().expect("two ends");
        let theirs = end.clone();
        let waits = std::thread::spawn(move || theirs.wait(&here, None));
        end.end();
        assert_eq!(waits.join().expect("it does not panic"), Waited::Ended);
    }
}
