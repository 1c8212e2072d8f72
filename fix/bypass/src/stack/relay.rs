//! One connection's bytes, between its socket and its rings.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use libc::{EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, c_int};

use super::figures::Moved as Counted;
use super::shares::Common;
use crate::sockets::{errno, lingers, streams};

/// What one direction has to do yet.
#[derive(Default)]
pub struct Direction {
    /// Read, but not written yet, from `begin` on.
    held: Vec<u8>,
    begin: usize,
    /// Nothing more is read.
    ended: bool,
}

pub struct Connection {
    /// Its server's.
    pub common: Arc<Common>,
    /// The thread that has it.
    pub thread: usize,
    pub generation: u32,
    pub socket: OwnedFd,
    /// The same socket, by the number under which its bytes are in rings.
    pub ring: RawFd,
    pub is_taken: bool,
    /// The server gave it up.
    pub is_reset: bool,
    /// From the client to the server, and back.
    pub up: Direction,
    pub down: Direction,
    /// What the set watches the socket and the ring for.
    pub watched: (c_int, c_int),
    /// Events since it was looked at last.
    pub events: u32,
}

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It goes on when there are bytes or room again.
    Waits,
    /// It is over, in order.
    Over,
    /// It broke.
    Broken,
}

impl Direction {
    fn held(&self) -> &[u8] {
        &self.held[self.begin..]
    }

    pub fn is_empty(&self) -> bool {
        self.begin == self.held.len()
    }

    pub fn is_done(&self) -> bool {
        self.ended && self.is_empty()
    }

    fn hold(&mut self, rest: &[u8]) {
        self.held.clear();
        self.held.extend_from_slice(rest);
        self.begin = 0;
    }

    /// So many of those held are written.
    fn wrote(&mut self, n: usize) {
        self.begin += n;
        if self.is_empty() {
            // Few connections ever hold anything: the others pay for no buffer.
            (self.held, self.begin) = (Vec::new(), 0);
        }
    }
}

/// What a call on a socket or ring came to.
enum Moved {
    Bytes(usize),
    /// No bytes, or no room.
    Nothing,
    /// The end of what is read.
    End,
    /// Nobody reads what is written.
    Gone,
    /// The connection broke.
    Reset,
}

fn moved(n: isize, is_read: bool) -> Moved {
    match usize::try_from(n) {
        Ok(0) if is_read => Moved::End,
        Ok(n) => Moved::Bytes(n),
        Err(_) if matches!(errno(), libc::EAGAIN | libc::EINTR) => Moved::Nothing,
        Err(_) if errno() == libc::EPIPE => Moved::Gone,
        Err(_) => Moved::Reset,
    }
}

impl Connection {
    /// What closing it means: a reset if it broke, never a wait. The option is the server's as well, which may want
    /// one.
    pub fn set_linger(&self, broken: bool) {
        let linger = libc::linger { l_onoff: c_int::from(broken), l_linger: 0 };
        if !broken && lingers(self.ring) != Some(true) {
            return;
        }
        let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
        // SAFETY: a live `linger` of `len` bytes.
        unsafe { libc::setsockopt(self.ring, libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
    }

    fn counted(&self) -> &Counted {
        self.common.figures.of(self.thread)
    }

    /// What the set is to watch the socket and the ring for.
    pub fn wants(&self) -> (c_int, c_int) {
        let on = |is: bool, events: c_int| if is { events } else { 0 };
        let reads_up = !self.up.ended && self.up.is_empty();
        let reads_down = !self.down.ended && self.down.is_empty();
        let socket = on(reads_up, EPOLLIN) | on(!self.down.is_empty(), EPOLLOUT);
        (socket, on(reads_down, EPOLLIN) | on(!self.up.is_empty(), EPOLLOUT))
    }

    fn receive(&self, room: &mut [u8]) -> Moved {
        // SAFETY: room for as many bytes as it says.
        let n = unsafe { libc::recv(self.socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), MSG_DONTWAIT) };
        moved(n, true)
    }

    fn send(&self, bytes: &[u8]) -> Moved {
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        // SAFETY: as many bytes as it says.
        let sent =
            moved(unsafe { libc::send(self.socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) }, false);
        if let Moved::Bytes(n) = sent {
            self.counted().down.add(n as u64);
        }
        sent
    }

    fn take(&self, room: &mut [u8]) -> Moved {
        match streams::carried(self.ring) {
            Some((stream, link)) => moved(streams::take(stream, link, room, MSG_DONTWAIT), true),
            None => Moved::Gone,
        }
    }

    fn put(&self, bytes: &[u8]) -> Moved {
        let Some((stream, link)) = streams::carried(self.ring) else { return Moved::Gone };
        let put = moved(streams::put(stream, link, bytes, MSG_DONTWAIT | MSG_NOSIGNAL), false);
        if let Moved::Bytes(n) = put {
            self.counted().up.add(n as u64);
        }
        put
    }

    /// From the client to the server, as far as it goes at once.
    pub fn push(&mut self, buffer: &mut [u8]) -> Step {
        if !self.up.is_empty() {
            match self.put(self.up.held()) {
                Moved::Bytes(n) => self.up.wrote(n),
                Moved::Nothing | Moved::End => return Step::Waits,
                Moved::Gone => return self.server_is_gone(false),
                Moved::Reset => return self.server_is_gone(true),
            }
            if !self.up.is_empty() {
                return Step::Waits;
            }
        }
        if self.up.ended {
            return Step::Waits;
        }
        match self.receive(buffer) {
            Moved::Bytes(n) => match self.put(&buffer[..n]) {
                Moved::Bytes(m) if m == n => Step::Waits,
                Moved::Bytes(m) => self.up_holds(&buffer[m..n]),
                Moved::Nothing | Moved::End => self.up_holds(&buffer[..n]),
                Moved::Gone => self.server_is_gone(false),
                Moved::Reset => self.server_is_gone(true),
            },
            Moved::Nothing => Step::Waits,
            Moved::End => {
                self.up.ended = true;
                if let Some((stream, link)) = streams::carried(self.ring) {
                    streams::ring(stream, link.shut_write());
                }
                Step::Waits
            }
            Moved::Gone | Moved::Reset => Step::Broken,
        }
    }

    fn up_holds(&mut self, rest: &[u8]) -> Step {
        self.counted().waits.add(1);
        self.up.hold(rest);
        Step::Waits
    }

    fn down_holds(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.counted().waits.add(1);
            self.down.hold(rest);
        }
    }

    /// The server reads no more: what it has written still goes to the client.
    fn server_is_gone(&mut self, by_reset: bool) -> Step {
        self.is_reset |= by_reset;
        self.up = Direction { ended: true, ..Direction::default() };
        Step::Waits
    }

    /// From the server to the client, as far as it goes at once.
    pub fn pull(&mut self, buffer: &mut [u8]) -> Step {
        if !self.down.is_empty() {
            match self.send(self.down.held()) {
                Moved::Bytes(n) => self.down.wrote(n),
                Moved::Nothing | Moved::End => return Step::Waits,
                Moved::Gone | Moved::Reset => return Step::Broken,
            }
            if !self.down.is_empty() {
                return Step::Waits;
            }
        }
        if self.down.ended {
            return Step::Waits;
        }
        match self.take(buffer) {
            Moved::Bytes(n) => match self.send(&buffer[..n]) {
                Moved::Bytes(m) => self.down_holds(&buffer[m..n]),
                Moved::Nothing | Moved::End => self.down_holds(&buffer[..n]),
                Moved::Gone | Moved::Reset => return Step::Broken,
            },
            Moved::Nothing => {}
            Moved::End => return self.server_has_ended(),
            Moved::Gone | Moved::Reset => return Step::Broken,
        }
        Step::Waits
    }

    /// Whether nothing more is to be moved.
    pub fn is_done(&self) -> bool {
        self.up.is_done() && self.down.is_done()
    }

    /// Whether it neither writes nor reads any more.
    pub fn is_closed_by_server(&self) -> bool {
        streams::carried(self.ring).is_none_or(|(_, link)| link.over())
    }

    /// The server has written all it had to write, and all of it is sent.
    fn server_has_ended(&mut self) -> Step {
        self.down.ended = true;
        if self.is_reset {
            return Step::Broken;
        }
        if self.is_closed_by_server() {
            return Step::Over;
        }
        // SAFETY: no pointers.
        unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_WR) };
        Step::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_let_go_of_when_it_is_written() {
        let mut direction = Direction::default();
        direction.hold(b"abcdef");
        direction.wrote(4);
        assert_eq!((direction.held(), direction.is_empty()), (&b"ef"[..], false));
        direction.wrote(2);
        assert!(direction.is_empty() && !direction.is_done() && direction.held.capacity() == 0);
        direction.ended = true;
        assert!(direction.is_done());
    }
}
