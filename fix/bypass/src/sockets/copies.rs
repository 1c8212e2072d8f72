//! What the kernel does between a socket and a file or a pipe (`sendfile`, `splice`), for connections that it does not
//! carry: bounded copies through a buffer. No byte is taken from one side before the other is known to take it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLOUT, SPLICE_F_NONBLOCK};
use libc::{c_int, off_t, pollfd, ssize_t, timespec};

use super::fds::Stream;
use super::poll::{Waited, wait_for};
use super::streams::{fail, put, take, timeout_of};
use super::{errno, kernel};
use crate::link::Link;

/// What a pipe takes whole whenever it takes anything (PIPE_BUF).
const PIECE: usize = 4096;

/// Whether somebody waits for the other side, or is told EAGAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Yes,
    No,
}

/// What was done so far, or else the error.
fn so_far(done: usize, error: ssize_t) -> ssize_t {
    if done > 0 { done as ssize_t } else { error }
}

fn is_pipe(fd: RawFd) -> bool {
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for the answer.
    unsafe { libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFIFO }
}

/// `splice` from a connection into a pipe. As in the kernel, `wait` is about the pipe: whether a read waits is the
/// socket's own.
pub fn to_pipe(stream: &'static Stream, link: &'static Link, pipe: RawFd, n: usize, wait: Wait) -> ssize_t {
    if n == 0 {
        return 0;
    }
    if !is_pipe(pipe) {
        return fail(libc::EINVAL);
    }
    let wait = if kernel::flags(pipe) & libc::O_NONBLOCK != 0 { Wait::No } else { wait };
    let mut piece = [0u8; PIECE];
    let mut done = 0;
    while done < n {
        // Only the first piece is waited for.
        let (wait, flags) = if done == 0 { (wait, 0) } else { (Wait::No, MSG_DONTWAIT) };
        if let Err(errno) = room_in(pipe, wait) {
            return so_far(done, fail(errno));
        }
        let want = PIECE.min(n - done);
        let got = take(stream, link, &mut piece[..want], flags);
        if got <= 0 {
            return so_far(done, got);
        }
        if !write_all(pipe, &piece[..got as usize]) {
            return so_far(done, -1);
        }
        done += got as usize;
    }
    done as ssize_t
}

/// Whether a pipe takes a piece.
fn room_in(pipe: RawFd, wait: Wait) -> Result<(), c_int> {
    let mut set = [pollfd { fd: pipe, events: POLLOUT, revents: 0 }];
    let now = timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = if wait == Wait::Yes { std::ptr::null() } else { &raw const now };
    // SAFETY: a live array of one, and a live timeout.
    match unsafe { kernel::ppoll(set.as_mut_ptr(), 1, timeout, std::ptr::null()) } {
        n if n < 0 => Err(errno()),
        0 => Err(libc::EAGAIN),
        _ if set[0].revents & POLLERR != 0 => {
            // SAFETY: as the kernel does for a pipe that nobody reads.
            unsafe { libc::raise(libc::SIGPIPE) };
            Err(libc::EPIPE)
        }
        _ => Ok(()),
    }
}

/// What was taken from a connection is not lost when another writer was faster.
fn write_all(pipe: RawFd, bytes: &[u8]) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        // SAFETY: live bytes and their count.
        match unsafe { libc::syscall(libc::SYS_write, pipe, rest.as_ptr(), rest.len()) } {
            n if n >= 0 => done += n as usize,
            _ if errno() == libc::EINTR => {}
            _ if errno() == libc::EAGAIN && room_in(pipe, Wait::Yes).is_ok() => {}
            _ => return false,
        }
    }
    true
}

/// `splice` from a pipe into a connection. The pipe's bytes are copied (`tee`) before they are taken: what the
/// connection does not take now stays in the pipe.
pub fn from_pipe(stream: &'static Stream, link: &'static Link, pipe: RawFd, n: usize, wait: Wait) -> ssize_t {
    if n == 0 {
        return 0;
    }
    if !is_pipe(pipe) {
        return fail(libc::EINVAL);
    }
    loop {
        if let Some(sent) = pass_on(stream, link, pipe, n, wait) {
            return sent;
        }
        if stream.nonblocking.load(Ordering::Relaxed) {
            return fail(libc::EAGAIN);
        }
        // With nothing open: the thread may be cancelled here.
        match wait_for(stream, POLLOUT, timeout_of(stream.fd(), libc::SO_SNDTIMEO)) {
            _ if stream.link().is_none() => return fail(libc::EPIPE),
            Waited::Ready => {}
            Waited::TimedOut => return fail(libc::EAGAIN),
            Waited::Interrupted => return fail(libc::EINTR),
        }
    }
}

/// Hands on what the connection takes now; `None` when it has no space at all. `wait` is about the pipe's first bytes.
fn pass_on(stream: &'static Stream, link: &'static Link, pipe: RawFd, n: usize, wait: Wait) -> Option<ssize_t> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Some(fail(libc::EINVAL)); // programs copy for themselves then
    }
    // SAFETY: just opened, and owned by nothing else.
    let [copy, into] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let mut bytes = [0u8; 16 << 10];
    let mut done = 0;
    while done < n {
        let flags = if done == 0 && wait == Wait::Yes { 0 } else { SPLICE_F_NONBLOCK };
        let want = bytes.len().min(n - done);
        // SAFETY: no pointers.
        let seen = unsafe { libc::syscall(libc::SYS_tee, pipe, into.as_raw_fd(), want, flags) };
        if seen <= 0 {
            return Some(so_far(done, seen as ssize_t));
        }
        let seen = seen as usize;
        if !read_all(copy.as_raw_fd(), &mut bytes[..seen]) {
            return Some(so_far(done, fail(libc::EINVAL)));
        }
        let sent = put(stream, link, &bytes[..seen], MSG_DONTWAIT);
        // A write that is turned away since the caller interrupts another one does not become possible by waiting.
        if sent < 0 && done == 0 && errno() == libc::EAGAIN && !link.is_busy() {
            return None;
        }
        if sent <= 0 {
            return Some(so_far(done, sent));
        }
        let sent = sent as usize;
        done += sent;
        // They are there: nobody else reads the pipe meanwhile, or its bytes would be mixed up over TCP as well.
        read_all(pipe, &mut bytes[..sent]);
        if sent < seen {
            break;
        }
    }
    Some(done as ssize_t)
}

/// Reads what is there.
fn read_all(pipe: RawFd, room: &mut [u8]) -> bool {
    let mut done = 0;
    while done < room.len() {
        let rest = &mut room[done..];
        // SAFETY: room for as many bytes as it says.
        match unsafe { libc::syscall(libc::SYS_read, pipe, rest.as_mut_ptr(), rest.len()) } {
            n if n > 0 => done += n as usize,
            n if n < 0 && errno() == libc::EINTR => {}
            _ => return false,
        }
    }
    true
}

/// `sendfile`: from an offset, or from where the file is.
pub fn from_file(
    stream: &'static Stream,
    link: &'static Link,
    file: RawFd,
    offset: Option<&mut off_t>,
    n: usize,
) -> ssize_t {
    let mut at = match &offset {
        Some(offset) => **offset,
        // SAFETY: no pointers.
        None => unsafe { libc::lseek(file, 0, libc::SEEK_CUR) },
    };
    // A pipe or a socket has no place in it: `sendfile` takes neither.
    if at < 0 {
        return fail(libc::EINVAL);
    }
    let mut bytes = [0u8; 64 << 10];
    let (mut done, mut last) = (0, 0);
    while done < n {
        let want = bytes.len().min(n - done);
        // SAFETY: room for `want` bytes.
        last = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), want, at) };
        if last <= 0 {
            break;
        }
        let read = last;
        last = put(stream, link, &bytes[..read as usize], MSG_NOSIGNAL);
        if last <= 0 {
            break;
        }
        done += last as usize;
        at += last as off_t;
        if last < read {
            break;
        }
    }
    if done == 0 {
        return last;
    }
    match offset {
        Some(offset) => *offset = at,
        // SAFETY: no pointers.
        None => _ = unsafe { libc::lseek(file, at, libc::SEEK_SET) },
    }
    done as ssize_t
}
