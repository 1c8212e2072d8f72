//! `unslow bypass stack`: has the TCP connections of servers that run with `--offload`, so that the kernel's TCP path is
//! this process's CPU time and not theirs. It accepts for them, hands each connection over with its socket
//! ([`crate::sockets::world`], `lending.rs`), and copies bytes between the socket and the rings; it reads none of them.
//!
//! ```text
//!   client -- TCP -- [socket] up -> ring -> server
//!                    [socket] <- down  ring <- server
//! ```
//!
//! Each direction holds at most one buffer of bytes that the other end has no room for; while it does, nothing more is
//! read there, so a slow reader slows its own writer alone. One event moves at most a buffer, so every connection has
//! its turn.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libc::{EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, c_int, epoll_event};

use crate::channel;
use crate::endpoint;
use crate::sockets::epoll::{self, Epoll};
use crate::sockets::fds::{self, Place};
use crate::sockets::{errno, streams, world};

/// Bytes moved by one event, and those that may wait in one direction of a connection.
const BUFFER: usize = 64 << 10;
/// Connections that a server has not taken yet. What comes while it is that busy waits in the kernel's accept queue.
const UNTAKEN: usize = 128;
/// Connections accepted in one go, so that many of one server do not keep others waiting.
const AT_ONCE: usize = 16;
/// From one look for new servers to the next.
const LOOK: Duration = Duration::from_millis(250);
/// Events of one wait.
const EVENTS: usize = 512;

/// How it is with the servers and their connections now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Servers that lend us what they listen at.
    pub servers: usize,
    /// Connections that are open.
    pub connections: usize,
}

/// All servers of this process, and their connections.
pub struct Stack {
    set: &'static Epoll,
    _set: OwnedFd,
    /// By number; a number is used again.
    servers: Vec<Option<Server>>,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    /// Of connections, so that an event of one that has ended is not taken for its successor's.
    generation: u32,
    /// Servers that lend nothing.
    unwilling: HashSet<PathBuf>,
    /// Listeners that are not watched, since their servers are busy or descriptors are short.
    paused: Vec<(usize, usize)>,
    buffer: Box<[u8]>,
}

struct Server {
    path: PathBuf,
    place: &'static Place,
    listeners: Vec<OwnedFd>,
    untaken: usize,
}

/// What one direction has to do yet.
#[derive(Default)]
struct Direction {
    /// Read, but not written yet, from `begin` on.
    held: Vec<u8>,
    begin: usize,
    /// Nothing more is read.
    ended: bool,
}

struct Connection {
    server: usize,
    generation: u32,
    socket: OwnedFd,
    /// The same socket, by the number under which its bytes are in rings.
    ring: RawFd,
    is_taken: bool,
    /// From the client to the server, and back.
    up: Direction,
    down: Direction,
    /// What the set watches the socket and the ring for.
    watched: (c_int, c_int),
}

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It goes on when there are bytes or room again.
    Waits,
    /// It is over, in order.
    Over,
    /// It broke.
    Broken,
}

/// What an event is about, in its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// A listener of a server, by both numbers.
    Listener(usize, usize),
    /// What a server says.
    Channel(usize),
    /// A connection's socket, with its generation.
    Socket(usize, u32),
    /// Its rings.
    Ring(usize, u32),
}

/// Numbers of servers and listeners fit into 12 bits, those of connections into 22.
const SERVERS: usize = 1 << 12;

impl About {
    fn data(self) -> u64 {
        let (kind, generation, number) = match self {
            About::Listener(server, at) => (0, at as u32, server),
            About::Channel(server) => (1, 0, server),
            About::Socket(number, generation) => (2, generation, number),
            About::Ring(number, generation) => (3, generation, number),
        };
        (kind << 60) | (number as u64) << 32 | u64::from(generation)
    }

    fn of(data: u64) -> Option<About> {
        let (number, generation) = ((data >> 32) as usize & 0xfff_ffff, data as u32);
        Some(match data >> 60 {
            0 => About::Listener(number, generation as usize),
            1 => About::Channel(number),
            2 => About::Socket(number, generation),
            3 => About::Ring(number, generation),
            _ => return None,
        })
    }
}

impl Stack {
    /// Begins in this process; not more than once.
    ///
    /// # Errors
    ///
    /// No epoll set.
    pub fn new() -> io::Result<Stack> {
        crate::reactor::rings();
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and owned by nothing else.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        epoll::created(fd);
        let set = epoll::of_fd(fd).ok_or_else(|| io::Error::other("too many descriptors"))?;
        Ok(Stack {
            set,
            _set: owned,
            servers: Vec::new(),
            connections: Vec::new(),
            free: Vec::new(),
            generation: 0,
            unwilling: HashSet::new(),
            paused: Vec::new(),
            buffer: vec![0; BUFFER].into(),
        })
    }

    /// Serves until it is told to stop; `report` hears how it is whenever it looked for servers.
    ///
    /// # Errors
    ///
    /// The epoll set's.
    pub fn run(&mut self, stop: &AtomicBool, mut report: impl FnMut(Census)) -> io::Result<()> {
        let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS];
        let mut next_look = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= next_look {
                next_look = now + LOOK;
                self.look_for_servers();
                self.resume();
                report(self.census());
            }
            let wait = next_look.saturating_duration_since(now).as_nanos() as u64;
            // SAFETY: room for as many as it says.
            let n =
                unsafe { epoll::wait(self.set, events.as_mut_ptr(), EVENTS as c_int, Some(wait), std::ptr::null()) };
            match usize::try_from(n) {
                Ok(n) => events[..n].iter().for_each(|event| self.event(event.u64, event.events as c_int)),
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Err(io::Error::from_raw_os_error(errno())),
            }
        }
        Ok(())
    }

    /// How many there are now.
    pub fn census(&self) -> Census {
        let lends = |server: &&Server| !server.listeners.is_empty();
        Census {
            servers: self.servers.iter().flatten().filter(lends).count(),
            connections: self.connections.iter().flatten().count(),
        }
    }

    fn watch(&self, op: c_int, fd: RawFd, events: c_int, about: About) -> bool {
        let mut event = epoll_event { events: events as u32, u64: about.data() };
        // SAFETY: a live event.
        unsafe { epoll::ctl(self.set, op, fd, &mut event) == 0 }
    }

    fn event(&mut self, data: u64, events: c_int) {
        match About::of(data) {
            Some(About::Listener(server, at)) => self.accept(server, at),
            Some(About::Channel(server)) => self.hear(server),
            Some(About::Socket(number, generation)) if self.is(number, generation) => self.of_socket(number, events),
            Some(About::Ring(number, generation)) if self.is(number, generation) => self.of_ring(number),
            _ => {}
        }
    }

    fn is(&self, number: usize, generation: u32) -> bool {
        self.connections.get(number).and_then(Option::as_ref).is_some_and(|c| c.generation == generation)
    }

    // Servers.

    fn look_for_servers(&mut self) {
        let there: Vec<_> = channel::directories().iter().flat_map(|dir| channel::servers_in(dir)).collect();
        self.unwilling.retain(|path| there.iter().any(|server| server.path == *path));
        for server in there {
            let is_known = |s: &Server| s.path == server.path;
            if self.unwilling.contains(&server.path) || self.servers.iter().flatten().any(is_known) {
                continue;
            }
            let Some(place) = world::borrow(server.path.clone(), server.endpoint.port) else {
                // One that does not listen yet is met at the next look, a stranger never.
                continue;
            };
            let number = self.servers.iter().position(Option::is_none).unwrap_or(self.servers.len());
            if number >= SERVERS {
                return;
            }
            if number == self.servers.len() {
                self.servers.push(None);
            }
            self.watch(libc::EPOLL_CTL_ADD, place.pair().channel.as_raw_fd(), EPOLLIN, About::Channel(number));
            self.servers[number] = Some(Server { path: server.path, place, listeners: Vec::new(), untaken: 0 });
        }
    }

    /// A server lends something, wants it back, or has ended.
    fn hear(&mut self, number: usize) {
        let Some(server) = self.servers.get(number).and_then(Option::as_ref) else { return };
        let Some(said) = world::lent(server.place) else { return self.leave(number) };
        for lent in said {
            let Some(server) = self.servers[number].as_mut() else { return };
            match lent {
                Some(listener) => {
                    let (fd, at) = (listener.as_raw_fd(), server.listeners.len());
                    server.listeners.push(listener);
                    self.watch(libc::EPOLL_CTL_ADD, fd, EPOLLIN, About::Listener(number, at));
                }
                // It is closed there, or there never was one.
                None => {
                    if server.listeners.is_empty() {
                        self.unwilling.insert(server.path.clone());
                    }
                    server.listeners.clear();
                }
            }
        }
    }

    /// A server has ended: its connections end.
    fn leave(&mut self, number: usize) {
        let Some(server) = self.servers[number].take() else { return };
        self.paused.retain(|(of, _)| *of != number);
        self.watch(libc::EPOLL_CTL_DEL, server.place.pair().channel.as_raw_fd(), 0, About::Channel(number));
        world::forget_server(server.place);
        let its = |c: &Option<Connection>| c.as_ref().is_some_and(|c| c.server == number);
        let all: Vec<usize> = (0..self.connections.len()).filter(|at| its(&self.connections[*at])).collect();
        for at in all {
            // What it has written is there yet.
            if self.connections[at].as_ref().is_some_and(|c| c.is_taken) {
                self.of_ring(at);
            }
            if its(&self.connections[at]) {
                self.close(at, true);
            }
        }
    }

    fn accept(&mut self, number: usize, at: usize) {
        for _ in 0..AT_ONCE {
            let Some(server) = self.servers.get(number).and_then(Option::as_ref) else { return };
            let Some(listener) = server.listeners.get(at).map(AsRawFd::as_raw_fd) else { return };
            if server.untaken >= UNTAKEN {
                return self.pause(number, at);
            }
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // SAFETY: no address is asked for.
            let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
            if fd < 0 {
                if matches!(errno(), libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) {
                    self.pause(number, at);
                }
                return;
            }
            // SAFETY: just opened, and owned by nothing else.
            self.accepted(number, unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }

    fn accepted(&mut self, number: usize, socket: OwnedFd) {
        let Some(server) = self.servers[number].as_mut() else { return };
        let place = server.place;
        // Clients of this machine may have shared memory to the server itself.
        if endpoint::ends_of_server(socket.as_raw_fd()).is_some_and(|ends| endpoint::same_host(&ends)) {
            let _ = channel::accepted(&place.pair().channel, None, socket.as_raw_fd());
            return;
        }
        let Ok(ring) = socket.try_clone().map(IntoRawFd::into_raw_fd) else { return };
        if !world::give(place, socket.as_raw_fd(), ring) {
            // SAFETY: ours, and nobody else's.
            unsafe { libc::close(ring) };
            return;
        }
        server.untaken += 1;
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let connection = Connection {
            server: number,
            generation,
            socket,
            ring,
            is_taken: false,
            up: Direction::default(),
            down: Direction::default(),
            watched: (0, EPOLLOUT),
        };
        let at = self.free.pop().map_or(self.connections.len(), |at| at as usize);
        if at == self.connections.len() {
            self.connections.push(None);
        }
        self.watch(libc::EPOLL_CTL_ADD, ring, EPOLLOUT, About::Ring(at, generation));
        self.connections[at] = Some(connection);
    }

    fn pause(&mut self, number: usize, at: usize) {
        let listener = self.servers[number].as_ref().and_then(|s| Some(s.listeners.get(at)?.as_raw_fd()));
        if let Some(fd) = listener {
            self.watch(libc::EPOLL_CTL_MOD, fd, 0, About::Listener(number, at));
            self.paused.push((number, at));
        }
    }

    /// Listeners are watched again, unless their servers are still behind.
    fn resume(&mut self) {
        for (number, at) in std::mem::take(&mut self.paused) {
            let Some(server) = self.servers.get(number).and_then(Option::as_ref) else { continue };
            let Some(fd) = server.listeners.get(at).map(AsRawFd::as_raw_fd) else { continue };
            if server.untaken >= UNTAKEN {
                self.paused.push((number, at));
            } else {
                self.watch(libc::EPOLL_CTL_MOD, fd, EPOLLIN, About::Listener(number, at));
            }
        }
    }

    // Connections.

    fn of_socket(&mut self, number: usize, events: c_int) {
        let Some(connection) = self.connections[number].as_mut() else { return };
        // After a reset there is nothing to read, and nobody who reads.
        let mut step = if events & EPOLLERR != 0 { Step::Broken } else { Step::Waits };
        if step == Step::Waits && events & EPOLLOUT != 0 {
            step = connection.pull(&mut self.buffer);
        }
        if step == Step::Waits && events & (EPOLLIN | EPOLLHUP) != 0 {
            step = connection.push(&mut self.buffer);
        }
        // Both ends are shut: the kernel would say so without end.
        let is_done = events & EPOLLHUP != 0 && connection.up.is_done() && connection.down.is_done();
        self.stepped(number, if is_done { Step::Over } else { step });
    }

    fn of_ring(&mut self, number: usize) {
        let Some(connection) = self.connections[number].as_mut() else { return };
        if !connection.is_taken {
            if let Some(Some(server)) = self.servers.get_mut(connection.server) {
                server.untaken -= 1;
            }
            connection.is_taken = true;
            if fds::stream(connection.ring).is_none_or(|stream| stream.link().is_none()) {
                return self.close(number, true);
            }
            let (fd, generation) = (connection.socket.as_raw_fd(), connection.generation);
            self.watch(libc::EPOLL_CTL_ADD, fd, 0, About::Socket(number, generation));
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
        if before.0 != now.0 {
            self.watch(libc::EPOLL_CTL_MOD, socket, now.0, About::Socket(number, generation));
        }
        if before.1 != now.1 {
            self.watch(libc::EPOLL_CTL_MOD, ring, now.1, About::Ring(number, generation));
        }
        if let Some(connection) = self.connections[number].as_mut() {
            connection.watched = now;
        }
    }

    /// Ends a connection; with a reset for both ends if it broke.
    fn close(&mut self, number: usize, broken: bool) {
        let Some(connection) = self.connections[number].take() else { return };
        self.free.push(number as u32);
        if !connection.is_taken
            && let Some(Some(server)) = self.servers.get_mut(connection.server)
        {
            server.untaken -= 1;
        }
        if broken {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
            // SAFETY: a live `linger` of `len` bytes.
            unsafe { libc::setsockopt(connection.ring, libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
        }
        streams::before_close(connection.ring);
        // SAFETY: ours, and nobody else's.
        unsafe { libc::close(connection.ring) };
    }
}

impl Direction {
    fn held(&self) -> &[u8] {
        &self.held[self.begin..]
    }

    fn is_empty(&self) -> bool {
        self.begin == self.held.len()
    }

    fn is_done(&self) -> bool {
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
    /// Nobody reads what is written; or the connection broke.
    Gone,
}

fn moved(n: isize, is_read: bool) -> Moved {
    match usize::try_from(n) {
        Ok(0) if is_read => Moved::End,
        Ok(n) => Moved::Bytes(n),
        Err(_) if matches!(errno(), libc::EAGAIN | libc::EINTR) => Moved::Nothing,
        Err(_) => Moved::Gone,
    }
}

impl Connection {
    /// What the set is to watch the socket and the ring for.
    fn wants(&self) -> (c_int, c_int) {
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
        moved(unsafe { libc::send(self.socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) }, false)
    }

    fn take(&self, room: &mut [u8]) -> Moved {
        match streams::carried(self.ring) {
            Some((stream, link)) => moved(streams::take(stream, link, room, MSG_DONTWAIT), true),
            None => Moved::Gone,
        }
    }

    fn put(&self, bytes: &[u8]) -> Moved {
        match streams::carried(self.ring) {
            Some((stream, link)) => moved(streams::put(stream, link, bytes, MSG_DONTWAIT | MSG_NOSIGNAL), false),
            None => Moved::Gone,
        }
    }

    /// From the client to the server, as far as it goes at once.
    fn push(&mut self, buffer: &mut [u8]) -> Step {
        if !self.up.is_empty() {
            match self.put(self.up.held()) {
                Moved::Bytes(n) => self.up.wrote(n),
                Moved::Nothing | Moved::End => return Step::Waits,
                Moved::Gone => return self.server_is_gone(),
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
                Moved::Gone => self.server_is_gone(),
            },
            Moved::Nothing => Step::Waits,
            Moved::End => {
                self.up.ended = true;
                if let Some((stream, link)) = streams::carried(self.ring) {
                    streams::ring(stream, link.shut_write());
                }
                Step::Waits
            }
            Moved::Gone => Step::Broken,
        }
    }

    fn up_holds(&mut self, rest: &[u8]) -> Step {
        self.up.hold(rest);
        Step::Waits
    }

    /// The server reads no more: what it has written still goes to the client.
    fn server_is_gone(&mut self) -> Step {
        self.up = Direction { ended: true, ..Direction::default() };
        Step::Waits
    }

    /// From the server to the client, as far as it goes at once.
    fn pull(&mut self, buffer: &mut [u8]) -> Step {
        if !self.down.is_empty() {
            match self.send(self.down.held()) {
                Moved::Bytes(n) => self.down.wrote(n),
                Moved::Nothing | Moved::End => return Step::Waits,
                Moved::Gone => return Step::Broken,
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
                Moved::Bytes(m) => self.down.hold(&buffer[m..n]),
                Moved::Nothing | Moved::End => self.down.hold(&buffer[..n]),
                Moved::Gone => return Step::Broken,
            },
            Moved::Nothing => {}
            Moved::End => return self.server_has_ended(),
            Moved::Gone => return Step::Broken,
        }
        Step::Waits
    }

    /// Whether it neither writes nor reads any more.
    fn is_closed_by_server(&self) -> bool {
        streams::carried(self.ring).is_none_or(|(_, link)| link.over())
    }

    /// The server has written all it had to write, and all of it is sent.
    fn server_has_ended(&mut self) -> Step {
        self.down.ended = true;
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
    fn an_events_data_says_what_it_is_about() {
        for about in
            [About::Listener(4095, 7), About::Channel(0), About::Socket(4_000_000, u32::MAX), About::Ring(0, 1)]
        {
            assert_eq!(About::of(about.data()), Some(about));
        }
        assert_eq!(About::of(u64::MAX), None);
    }

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
