//! The connections of one thread.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, c_int};

use super::relay::{Connection, Direction, Step};
use super::shares::Common;
use super::worker::{About, Worker};
use crate::busy;
use crate::endpoint;
use crate::sockets::{fds, streams, world};

impl Worker {
    pub(super) fn accepted(&mut self, number: usize, socket: OwnedFd) {
        let Some(server) = self.servers[number].as_mut() else { return };
        // Clients of this machine may have shared memory to the server itself.
        let ends = endpoint::ends_of_server(socket.as_raw_fd());
        if ends.is_some_and(|ends| endpoint::same_host(&ends)) {
            return server.pass(socket);
        }
        let Ok(ring) = socket.try_clone().map(IntoRawFd::into_raw_fd) else { return server.pass(socket) };
        if !world::give(server.place, socket.as_raw_fd(), ring) {
            // SAFETY: a descriptor that only this connection owns.
            unsafe { libc::close(ring) };
            return server.pass(socket);
        }
        if busy::wanted_us().is_some() {
            self.shares.came_by(busy::napi(socket.as_raw_fd()));
        }
        let common = server.common.clone();
        common.untaken.fetch_add(1, Ordering::Relaxed);
        common.figures.accepted.add(1);
        common.figures.connections.add(1);
        common.figures.of(self.thread).connections.add(1);
        self.shares.open().add(1);
        let connection = Connection {
            common,
            thread: self.thread,
            generation: 0,
            socket,
            ring,
            is_taken: false,
            is_reset: false,
            up: Direction::default(),
            down: Direction::default(),
            watched: (0, EPOLLOUT),
            events: 0,
        };
        let (at, generation) = self.place(connection);
        self.watch(libc::EPOLL_CTL_ADD, ring, EPOLLOUT, About::Ring(at, generation));
    }

    /// Gives a connection a number here, and a generation.
    fn place(&mut self, mut connection: Connection) -> (usize, u32) {
        self.generation = self.generation.wrapping_add(1);
        (connection.thread, connection.generation) = (self.thread, self.generation);
        let at = self.free.pop().map_or(self.connections.len(), |at| at as usize);
        if at == self.connections.len() {
            self.connections.push(None);
        }
        self.guests += usize::from(connection.common.thread != self.thread);
        self.connections[at] = Some(connection);
        (at, self.generation)
    }

    /// The opposite.
    fn left(&mut self, at: usize, connection: &Connection) {
        self.free.push(at as u32);
        self.guests -= usize::from(connection.common.thread != self.thread);
    }

    /// A connection that another thread had is ours.
    pub(super) fn take_in(&mut self, connection: Connection) {
        let has_ended = connection.common.has_ended.load(Ordering::Acquire);
        let (at, _) = self.place(connection);
        self.rewatch(at);
        if has_ended && self.connections[at].is_some() {
            self.of_ring(at);
        }
    }

    /// Lets go of a connection that its server has taken, for another thread. What is read and not written yet goes
    /// with it.
    pub(super) fn part_with(&mut self, at: usize) -> Option<Connection> {
        let mut connection = self.connections[at].take_if(|connection| connection.is_taken)?;
        self.left(at, &connection);
        let (socket, ring, generation) = (connection.socket.as_raw_fd(), connection.ring, connection.generation);
        let watched = std::mem::take(&mut connection.watched);
        self.rewatch_one(socket, watched.0, 0, About::Socket(at, generation));
        self.rewatch_one(ring, watched.1, 0, About::Ring(at, generation));
        Some(connection)
    }

    /// A server has ended: what it has written is sent yet, then its connections end.
    pub(super) fn end_of(&mut self, common: &Arc<Common>) {
        for at in 0..self.connections.len() {
            match &self.connections[at] {
                Some(connection) if !Arc::ptr_eq(&connection.common, common) => {}
                Some(connection) if connection.is_taken => self.of_ring(at),
                Some(_) => self.close(at, true),
                None => {}
            }
        }
    }

    pub(super) fn of_socket(&mut self, number: usize, events: c_int) {
        let Some(connection) = self.connections[number].as_mut() else { return };
        connection.events = connection.events.saturating_add(1);
        let mut step = Step::Waits;
        if events & EPOLLOUT != 0 {
            step = connection.pull(&mut self.buffer);
        }
        // What came before a reset is read, and then the reset.
        if step == Step::Waits && events & (EPOLLIN | EPOLLHUP | EPOLLERR) != 0 {
            step = connection.push(&mut self.buffer);
        }
        self.stepped(number, step);
    }

    pub(super) fn of_ring(&mut self, number: usize) {
        let Some(connection) = self.connections[number].as_mut() else { return };
        connection.events = connection.events.saturating_add(1);
        if !connection.is_taken {
            connection.common.untaken.fetch_sub(1, Ordering::Relaxed);
            connection.is_taken = true;
            if fds::stream(connection.ring).is_none_or(|stream| stream.link().is_none()) {
                return self.close(number, true);
            }
        }
        let Some(connection) = self.connections[number].as_mut() else { return };
        let mut step = connection.pull(&mut self.buffer);
        // The ring has room again; that there is more to read is the socket's word.
        if step == Step::Waits && !connection.up.is_empty() {
            step = connection.push(&mut self.buffer);
        }
        if step == Step::Waits && connection.down.is_done() && connection.is_closed_by_server() {
            step = Step::Over;
        }
        self.stepped(number, step);
    }

    fn stepped(&mut self, number: usize, step: Step) {
        match step {
            Step::Over => self.close(number, false),
            Step::Broken => self.close(number, true),
            // Both have ended what they write, and know it of each other: no event would tell of more.
            Step::Waits if self.connections[number].as_ref().is_some_and(Connection::is_done) => {
                self.close(number, false)
            }
            Step::Waits => self.rewatch(number),
        }
    }

    fn rewatch(&mut self, number: usize) {
        let Some(connection) = self.connections[number].as_ref() else { return };
        let (before, now) = (connection.watched, connection.wants());
        if before == now {
            return;
        }
        let (socket, ring, generation) = (connection.socket.as_raw_fd(), connection.ring, connection.generation);
        let is_watched = self.rewatch_one(socket, before.0, now.0, About::Socket(number, generation))
            && self.rewatch_one(ring, before.1, now.1, About::Ring(number, generation));
        if !is_watched {
            return self.close(number, true); // no memory for it in the kernel
        }
        if let Some(connection) = self.connections[number].as_mut() {
            connection.watched = now;
        }
    }

    /// What is watched for nothing is not in the set: the kernel would tell of its end without end.
    fn rewatch_one(&self, fd: RawFd, before: c_int, now: c_int, about: About) -> bool {
        match (before, now) {
            (before, now) if before == now => true,
            (0, now) => self.watch(libc::EPOLL_CTL_ADD, fd, now, about),
            (_, 0) => self.watch(libc::EPOLL_CTL_DEL, fd, 0, about),
            (_, now) => self.watch(libc::EPOLL_CTL_MOD, fd, now, about),
        }
    }

    /// Ends a connection; with a reset for both ends if it broke.
    fn close(&mut self, number: usize, broken: bool) {
        let Some(connection) = self.connections[number].take() else { return };
        self.left(number, &connection);
        connection.common.figures.connections.subtract(1);
        connection.common.figures.of(self.thread).connections.subtract(1);
        self.shares.open().subtract(1);
        if !connection.is_taken {
            connection.common.untaken.fetch_sub(1, Ordering::Relaxed);
        }
        if connection.watched.0 != 0 {
            // The server has the same socket, perhaps for a while yet.
            let (fd, generation) = (connection.socket.as_raw_fd(), connection.generation);
            self.watch(libc::EPOLL_CTL_DEL, fd, 0, About::Socket(number, generation));
        }
        connection.set_linger(broken);
        streams::before_close(connection.ring);
        // SAFETY: a descriptor that only this connection owns.
        unsafe { libc::close(connection.ring) };
    }
}
