//! One thread of a stack: its servers, their listeners and connections, and one epoll set for all of them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libc::{EPOLLIN, c_int, epoll_event};

use super::figures::Figures;
use super::pace::Clock;
use super::post::Parcel;
use super::relay::Connection;
use super::shares::{Common, Served, Shares};
use super::spreading::Looks;
use super::teams::Spread;
use crate::channel;
use crate::endpoint;
use crate::sockets::epoll::{self, Epoll};
use crate::sockets::errno;
use crate::sockets::fds::Place;
use crate::sockets::world::{self, Lent};

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
/// The same where a thread has several servers: an event of one of them waits behind at most this many of the others'.
const EVENTS_OF_SEVERAL: usize = 64;
/// Listeners of one server: it has one for each address.
const LISTENERS: usize = 64;
/// A server that could not be met so often in a row is not tried again.
const UNMET: u32 = 8;
/// A server that is behind is looked at again after any event, such as a connection that it takes; and after this, for
/// what no event tells: its channel has room, or a descriptor is free.
const BEHIND: Duration = Duration::from_millis(10);

pub struct Worker {
    pub(super) thread: usize,
    pub(super) shares: Arc<Shares>,
    set: &'static Epoll,
    _set: OwnedFd,
    /// By number; a number is used again.
    pub(super) servers: Vec<Option<Server>>,
    pub(super) connections: Vec<Option<Connection>>,
    pub(super) free: Vec<u32>,
    /// Of connections, so that an event of one that has ended is not taken for its successor's.
    pub(super) generation: u32,
    /// Servers that lend nothing.
    unwilling: HashSet<PathBuf>,
    /// Those that could not be met, and how often in a row.
    unmet: HashMap<PathBuf, u32>,
    /// Listeners that are not watched, since their servers are busy or descriptors are short.
    paused: Vec<(usize, usize)>,
    /// Those whose `accept` failed: watched again at the next look.
    stopped: Vec<(usize, usize)>,
    pub(super) buffer: Box<[u8]>,
    /// See [`world::said`].
    said: u32,
    /// Connections of servers that other threads accept for.
    pub(super) guests: usize,
    pub(super) looks: Looks,
}

pub(super) struct Server {
    netns: u64,
    pid: i32,
    pub(super) common: Arc<Common>,
    pub(super) place: &'static Place,
    port: u16,
    listeners: Vec<OwnedFd>,
    /// Another stack accepts for it: it keeps the connections that it has here.
    is_superseded: bool,
    /// Accepted, but the server has not read what it was told before.
    waiting: VecDeque<OwnedFd>,
}

impl Server {
    /// Hands a connection over whose bytes stay with TCP: one of this machine, or one too many.
    pub(super) fn pass(&mut self, socket: OwnedFd) {
        self.common.figures.passed.add(1);
        self.waiting.push_back(socket);
        self.pass_waiting();
    }

    fn pass_waiting(&mut self) {
        while let Some(socket) = self.waiting.front() {
            match channel::accepted(&self.place.pair().channel, None, socket.as_raw_fd()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Said, or the server has ended.
                _ => drop(self.waiting.pop_front()),
            }
        }
    }

    /// Whether one more connection would have to wait here rather than in the kernel's queue.
    fn is_behind(&self) -> bool {
        self.common.untaken.load(Ordering::Relaxed) >= UNTAKEN || !self.waiting.is_empty()
    }
}

/// What an event is about, in its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// A listener of a server, by both numbers.
    Listener(usize, usize),
    /// What a server says.
    Channel(usize),
    /// A connection's socket, with its generation.
    Socket(usize, u32),
    /// Its rings.
    Ring(usize, u32),
    /// What other threads have sent.
    Post,
}

/// Servers at a time: each costs an address space of a gigabyte.
const SERVERS: usize = 1 << 12;

impl About {
    fn data(self) -> u64 {
        let (kind, generation, number) = match self {
            About::Listener(server, at) => (0, at as u32, server),
            About::Channel(server) => (1, 0, server),
            About::Socket(number, generation) => (2, generation, number),
            About::Ring(number, generation) => (3, generation, number),
            About::Post => (4, 0, 0),
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
            4 => About::Post,
            _ => return None,
        })
    }
}

impl Worker {
    /// The thread of this number.
    ///
    /// # Errors
    ///
    /// No epoll set.
    pub fn new(thread: usize, shares: Arc<Shares>) -> io::Result<Worker> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and owned by nothing else.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        epoll::created(fd);
        let set = epoll::of_fd(fd).ok_or_else(|| io::Error::other("too many descriptors"))?;
        let spreads = shares.spread != Spread::Never && shares.posts.len() > 1;
        let worker = Worker {
            thread,
            shares,
            set,
            _set: owned,
            servers: Vec::new(),
            connections: Vec::new(),
            free: Vec::new(),
            generation: 0,
            unwilling: HashSet::new(),
            unmet: HashMap::new(),
            paused: Vec::new(),
            stopped: Vec::new(),
            buffer: vec![0; BUFFER].into(),
            said: 0,
            guests: 0,
            looks: Looks::default(),
        };
        if spreads {
            let _ = worker.set.waiter(); // those who send it something make it known to servers
            let _ = worker.shares.sets[thread].set(set);
        }
        if !worker.watch(libc::EPOLL_CTL_ADD, worker.shares.posts[thread].bell(), EPOLLIN, About::Post) {
            return Err(io::Error::last_os_error());
        }
        Ok(worker)
    }

    /// Serves until `stop` is set; calls `report` after each look for servers.
    ///
    /// # Errors
    ///
    /// The epoll set's.
    pub fn run(&mut self, stop: &AtomicBool, mut report: impl FnMut()) -> io::Result<()> {
        let mut events = [epoll_event { events: 0, u64: 0 }; EVENTS];
        let mut clock = Clock::new();
        let (mut next_look, mut awake) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            clock.worked(now.saturating_duration_since(awake));
            if now >= next_look {
                next_look = now + LOOK;
                self.look_for_servers();
                self.restart_stopped();
                for server in self.servers.iter_mut().flatten() {
                    server.pass_waiting();
                    server.place.pair().tally().show(server.common.figures.tally());
                }
                let waiting: usize = self.servers.iter().flatten().map(|server| server.waiting.len()).sum();
                self.shares.waits(self.thread, waiting);
                self.spread(clock.look(now));
                report();
            }
            if !self.paused.is_empty() {
                self.resume();
            }
            let mut wait = next_look.saturating_duration_since(now);
            if !self.paused.is_empty() {
                wait = wait.min(BEHIND);
            }
            let wait = wait.as_nanos() as u64;
            let own = self.servers.iter().flatten().take(2).count();
            let are_several = own + usize::from(self.guests > 0) > 1;
            let room = if are_several { EVENTS_OF_SEVERAL } else { EVENTS };
            // SAFETY: room for as many as it says.
            let n = unsafe { epoll::wait(self.set, events.as_mut_ptr(), room as c_int, Some(wait), std::ptr::null()) };
            awake = Instant::now();
            match usize::try_from(n) {
                Ok(n) if are_several => {
                    let order = dealt(events[..n].iter().map(|event| self.server_of(event.u64)));
                    for at in order {
                        self.event(events[at].u64, events[at].events as c_int);
                    }
                }
                Ok(n) => events[..n].iter().for_each(|event| self.event(event.u64, event.events as c_int)),
                Err(_) if errno() == libc::EINTR => {}
                Err(_) => return Err(io::Error::from_raw_os_error(errno())),
            }
            let said = world::said();
            if std::mem::replace(&mut self.said, said) != said {
                self.hear_the_rest();
            }
        }
        Ok(())
    }

    fn server_of(&self, data: u64) -> usize {
        match About::of(data) {
            Some(About::Listener(server, _) | About::Channel(server)) => {
                self.servers.get(server).and_then(Option::as_ref).map_or(0, |server| id(&server.common))
            }
            Some(About::Socket(number, _) | About::Ring(number, _)) => {
                self.connections.get(number).and_then(Option::as_ref).map_or(0, |connection| id(&connection.common))
            }
            Some(About::Post) | None => 0,
        }
    }

    pub(super) fn watch(&self, op: c_int, fd: RawFd, events: c_int, about: About) -> bool {
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
            Some(About::Post) => self.receive(),
            _ => {}
        }
    }

    fn is(&self, number: usize, generation: u32) -> bool {
        self.connections.get(number).and_then(Option::as_ref).is_some_and(|c| c.generation == generation)
    }

    // Servers.

    fn look_for_servers(&mut self) {
        // One reads the directories for all.
        if self.thread == 0 {
            self.shares.see(channel::directories().iter().flat_map(|dir| channel::servers_in(dir)).collect());
        }
        let there = self.shares.there();
        self.unwilling.retain(|path| there.has(path));
        self.unmet.retain(|path, _| there.has(path));
        // A server whose socket file is briefly missing is still ours.
        let is_had = |path: &Path| self.servers.iter().flatten().any(|server| server.common.path == *path);
        self.shares.keep(self.thread, |path| there.has(path) || is_had(path));
        // One that another stack replaces asks for nothing more.
        let is_superseded = self.shares.is_superseded();
        for server in there.servers.iter().filter(|_| !is_superseded) {
            if self.unwilling.contains(&server.path) || !self.shares.claims(&server.path, self.thread) {
                continue;
            }
            if let Some(known) = self.servers.iter().flatten().find(|known| known.common.path == server.path) {
                // It took back what it had lent, and listens again.
                if known.listeners.is_empty() && !known.is_superseded {
                    world::ask_again(known.place, known.port, self.shares.want());
                }
                continue;
            }
            let Some(place) = world::borrow(server.path.clone(), server.endpoint.port, self.shares.want()) else {
                // One that does not listen yet is met at a later look; a stranger, or a dead one's socket, never.
                let times = self.unmet.entry(server.path.clone()).or_default();
                *times += 1;
                if *times >= UNMET {
                    self.unmet.remove(&server.path);
                    self.shares.refuses(&server.path);
                    self.unwilling.insert(server.path.clone());
                }
                continue;
            };
            self.unmet.remove(&server.path);
            let number = self.servers.iter().position(Option::is_none).unwrap_or(self.servers.len());
            if number >= SERVERS {
                return;
            }
            if number == self.servers.len() {
                self.servers.push(None);
            }
            self.watch(libc::EPOLL_CTL_ADD, place.pair().channel.as_raw_fd(), EPOLLIN, About::Channel(number));
            let common = Common {
                path: server.path.clone(),
                thread: self.thread,
                figures: Arc::new(Figures::new(self.shares.posts.len())),
                untaken: AtomicUsize::new(0),
                has_ended: AtomicBool::new(false),
            };
            self.servers[number] = Some(Server {
                netns: server.endpoint.netns,
                pid: server.pid,
                common: Arc::new(common),
                place,
                port: server.endpoint.port,
                listeners: Vec::new(),
                is_superseded: false,
                waiting: VecDeque::new(),
            });
        }
    }

    /// News of servers that no event tells of.
    fn hear_the_rest(&mut self) {
        for number in 0..self.servers.len() {
            // Without a system call for those that have said nothing, however often another one speaks.
            if self.servers[number].as_ref().is_some_and(|server| world::has_news(server.place)) {
                self.hear(number);
            }
        }
    }

    /// A server lends something, wants it back, or has ended.
    fn hear(&mut self, number: usize) {
        let Some(server) = self.servers.get(number).and_then(Option::as_ref) else { return };
        let Some(said) = world::lent(server.place) else {
            if server.place.refused.load(Ordering::Acquire) != 0 {
                self.shares.refuses(&server.common.path);
                self.unwilling.insert(server.common.path.clone());
            }
            return self.leave(number);
        };
        for lent in said {
            let Some(server) = self.servers[number].as_mut() else { return };
            let listener = match lent {
                Lent::Listener(listener) => listener,
                Lent::NotNow => {
                    self.drop_listeners(number);
                    continue;
                }
                Lent::Superseded => {
                    server.is_superseded = true;
                    // Of other users' servers each speaks for itself alone, and so does one that has lent nothing.
                    let (_, uid) = server.place.pair().peer;
                    // SAFETY: no arguments.
                    let is_trusted = uid == 0 || uid == unsafe { libc::geteuid() };
                    if is_trusted && !server.listeners.is_empty() {
                        self.shares.supersede(&server.common.path, true);
                    }
                    self.drop_listeners(number);
                    continue;
                }
                Lent::Never => {
                    self.shares.refuses(&server.common.path);
                    self.unwilling.insert(server.common.path.clone());
                    continue;
                }
                // The server takes it back when we are gone, and is met again.
                Lent::Lost => return self.leave(number),
            };
            if std::mem::take(&mut server.is_superseded) {
                self.shares.supersede(&server.common.path, false); // the other one has ended
            }
            let (fd, at) = (listener.as_raw_fd(), server.listeners.len());
            let is_fit = at < LISTENERS && endpoint::takes_at_once(fd);
            let path = server.common.path.clone();
            server.listeners.push(listener);
            if !is_fit || !self.watch(libc::EPOLL_CTL_ADD, fd, EPOLLIN, About::Listener(number, at)) {
                // The server takes it back when we are gone.
                self.unwilling.insert(path);
                return self.leave(number);
            }
            if let Some(Server { port, netns, pid, common, .. }) = &self.servers[number] {
                let (thread, figures) = (self.thread, common.figures.clone());
                let served = Served { port: *port, netns: *netns, pid: *pid, thread, figures };
                self.shares.serves(&path, Some(served));
            }
        }
    }

    /// Accepts no more for a server. Others may have the same sockets, so closing ours does not take them out of the
    /// set.
    fn drop_listeners(&mut self, number: usize) {
        let Some(server) = self.servers[number].as_mut() else { return };
        let listeners = std::mem::take(&mut server.listeners);
        self.shares.serves(&server.common.path, None);
        for (at, listener) in listeners.iter().enumerate() {
            self.watch(libc::EPOLL_CTL_DEL, listener.as_raw_fd(), 0, About::Listener(number, at));
        }
        self.paused.retain(|(of, _)| *of != number);
        self.stopped.retain(|(of, _)| *of != number);
    }

    /// A server has ended: what it has written is sent yet, then its connections end.
    fn leave(&mut self, number: usize) {
        self.drop_listeners(number);
        let Some(server) = self.servers[number].take() else { return };
        self.watch(libc::EPOLL_CTL_DEL, server.place.pair().channel.as_raw_fd(), 0, About::Channel(number));
        world::forget_server(server.place);
        server.common.has_ended.store(true, Ordering::Release);
        for (_, post) in self.shares.posts.iter().enumerate().filter(|(thread, _)| *thread != self.thread) {
            post.send([Parcel::Ended(server.common.clone())]);
        }
        self.end_of(&server.common);
    }

    fn accept(&mut self, number: usize, at: usize) {
        for _ in 0..AT_ONCE {
            let Some(server) = self.servers.get(number).and_then(Option::as_ref) else { return };
            let Some(listener) = server.listeners.get(at).map(AsRawFd::as_raw_fd) else { return };
            if server.is_behind() {
                return self.pause(number, at);
            }
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // SAFETY: no address is asked for.
            let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags) };
            if fd < 0 {
                match errno() {
                    libc::EAGAIN | libc::EINTR | libc::ECONNABORTED => {}
                    libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS => self.pause(number, at),
                    // It listens no more, or an error of the network for one connection: the next look knows.
                    _ => {
                        self.watch(libc::EPOLL_CTL_DEL, listener, 0, About::Listener(number, at));
                        self.stopped.push((number, at));
                    }
                }
                return;
            }
            // SAFETY: just opened, and owned by nothing else.
            self.accepted(number, unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // The last of them may have to wait here, and no further event may come.
        if self.servers.get(number).and_then(Option::as_ref).is_some_and(Server::is_behind) {
            self.pause(number, at);
        }
    }

    fn pause(&mut self, number: usize, at: usize) {
        let listener = self.servers[number].as_ref().and_then(|s| Some(s.listeners.get(at)?.as_raw_fd()));
        if let Some(fd) = listener {
            // Not for no events: that it was shut down would be told without end.
            self.watch(libc::EPOLL_CTL_DEL, fd, 0, About::Listener(number, at));
            self.paused.push((number, at));
        }
    }

    fn restart_stopped(&mut self) {
        for (number, at) in std::mem::take(&mut self.stopped) {
            let listener =
                self.servers.get(number).and_then(Option::as_ref).and_then(|server| server.listeners.get(at));
            if let Some(fd) = listener.map(AsRawFd::as_raw_fd) {
                self.watch(libc::EPOLL_CTL_ADD, fd, EPOLLIN, About::Listener(number, at));
            }
        }
    }

    /// Listeners are watched again, unless their servers are still behind.
    fn resume(&mut self) {
        for (number, at) in std::mem::take(&mut self.paused) {
            let Some(server) = self.servers.get_mut(number).and_then(Option::as_mut) else { continue };
            server.pass_waiting();
            let Some(fd) = server.listeners.get(at).map(AsRawFd::as_raw_fd) else { continue };
            if server.is_behind() {
                self.paused.push((number, at));
            } else {
                self.watch(libc::EPOLL_CTL_ADD, fd, EPOLLIN, About::Listener(number, at));
            }
        }
    }
}

/// Tells servers apart.
fn id(common: &Arc<Common>) -> usize {
    Arc::as_ptr(common).addr()
}

/// In which order events are served, by the servers they are of: the first of each, then the second of each.
fn dealt(servers: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (at, server) in servers.enumerate() {
        let known = counts.iter().position(|(of, _)| *of == server).unwrap_or(counts.len());
        if known == counts.len() {
            counts.push((server, 0));
        }
        places.push((counts[known].1, at));
        counts[known].1 += 1;
    }
    places.sort_unstable();
    places.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_their_events_served_in_turns() {
        let order = |servers: &[usize]| dealt(servers.iter().copied());
        assert_eq!(order(&[7, 7, 7, 7, 2, 7, 2]), [0, 4, 1, 6, 2, 3, 5]);
        assert_eq!(order(&[3, 3]), [0, 1]);
        assert!(order(&[]).is_empty());
    }

    #[test]
    fn an_events_data_says_what_it_is_about() {
        for about in [
            About::Listener(4095, 7),
            About::Channel(0),
            About::Socket(4_000_000, u32::MAX),
            About::Ring(0, 1),
            About::Post,
        ] {
            assert_eq!(About::of(about.data()), Some(about));
        }
        assert_eq!(About::of(u64::MAX), None);
    }
}
