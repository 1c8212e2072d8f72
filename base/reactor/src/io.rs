//! The loop itself, on epoll.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, connect,
    getsockname, listen, shutdown, socket_with, sockopt,
};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::tls::Session;
use crate::{Carrier, Change, Closed, Handler, Id, Listening, Peer, Tls, Visitor, Waker, now_ns};

mod link;
#[cfg(test)]
mod tests;

/// Bytes read at once, at most; also the largest piece a handler gets, unless it leaves more than half of it unused.
const READ: usize = 64 * 1024;
/// Connections taken from a listener in one go: those that are open want their turn as well.
const ACCEPT: usize = 64;
/// Epoll data of the waker and of the alarm; no connection has these indices.
const WAKER: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;
/// Set in the epoll data of listeners, beside their number.
const LISTENER: u64 = 1 << 31;
/// A visitor has this long for its TLS handshake.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(10);
/// A listener that found no descriptor for who came looks again after this.
const RETRY: std::time::Duration = std::time::Duration::from_millis(100);

/// The event loop of one thread.
pub struct Reactor {
    io: Io,
    buffer: Vec<u8>,
    plain: Vec<u8>,
    events: Vec<epoll::Event>,
    carried: Vec<(u64, u32)>,
}

/// What a [`Handler`] does its work with.
pub struct Io {
    epoll: OwnedFd,
    /// Ends a sleep at its time.
    alarm: OwnedFd,
    alarm_at: u64,
    /// Read again since, with bytes left over that nobody will send once more.
    resumed: Vec<Id>,
    waker: Waker,
    slots: Vec<Slot>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    timers: BinaryHeap<Reverse<(u64, u64, Due)>>,
    timer_count: u64,
    /// Found broken while the handler was at work; told at the end of the turn.
    broken: Vec<(Id, Closed)>,
    /// Output of connections that are gone.
    nowhere: Vec<u8>,
    input_max: usize,
    idle_kept: usize,
    listeners: Vec<Option<Arc<Listening>>>,
    /// Of the connection that was closed last: how much of its output the socket had not taken.
    lost: usize,
    /// Of all visitors: what was left of their output when it was written last.
    unsent_to_visitors: usize,
    stopped: bool,
    now: u64,
    carrier: Option<&'static dyn Carrier>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Key(u64),
    Connect { index: u32, generation: u32 },
    Listen(usize),
}

struct Slot {
    generation: u32,
    link: Option<Link>,
}

struct Link {
    fd: OwnedFd,
    session: Option<Box<Session>>,
    /// To be sent, in the clear.
    out: Vec<u8>,
    /// What stands in front of it on the wire: under TLS ciphertext, else only what a full socket left over.
    wire: Vec<u8>,
    wire_sent: usize,
    /// Received and not yet used.
    left: Vec<u8>,
    /// Why writing failed.
    unwritten: Option<Closed>,
    /// Dropped then.
    lost: usize,
    /// Taken from a listener.
    is_visitor: bool,
    /// What was left of its output when it was written last, if it is a visitor's.
    left_unsent: usize,
    interest: EventFlags,
    connected: bool,
    opened: bool,
    paused: bool,
    dirty: bool,
    /// The peer will say no more.
    ended: bool,
    /// To be closed when everything is sent.
    finishing: bool,
    carrier: Option<&'static dyn Carrier>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(carrier) = self.carrier {
            carrier.closing(self.fd.as_fd());
        }
    }
}

impl Reactor {
    /// A loop with no connections. Fails when the kernel has no epoll or no descriptors left.
    pub fn new() -> std::io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        epoll::add(&epoll, &*waker.0, EventData::new_u64(WAKER), EventFlags::IN)?;
        let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &alarm, EventData::new_u64(ALARM), EventFlags::IN)?;
        let io = Io {
            epoll,
            alarm,
            alarm_at: u64::MAX,
            resumed: Vec::new(),
            waker,
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            timers: BinaryHeap::new(),
            timer_count: 0,
            broken: Vec::new(),
            nowhere: Vec::new(),
            input_max: 512 << 20,
            idle_kept: 64 * 1024,
            listeners: Vec::new(),
            lost: 0,
            unsent_to_visitors: 0,
            stopped: false,
            now: now_ns(),
            carrier: None,
        };
        let events = Vec::with_capacity(256);
        Ok(Reactor { io, buffer: vec![0; READ], plain: Vec::new(), events, carried: Vec::new() })
    }

    /// From now on connections go by this carrier, where their peers do as well.
    pub fn carried_by(&mut self, carrier: &'static dyn Carrier) {
        carrier.made(self.io.epoll.as_fd());
        self.io.carrier = Some(carrier);
    }

    /// For connections made before the loop runs.
    pub fn io(&mut self) -> &mut Io {
        &mut self.io
    }

    /// Runs until [`Io::stop`]. Fails only when epoll itself does.
    pub fn run<H: Handler>(&mut self, handler: &mut H) -> std::io::Result<()> {
        self.io.stopped = false;
        while !self.io.stopped {
            let mut wake = handler.turn(&mut self.io);
            self.io.flush_all();
            // What a handler does about these may be to write on others, to break them, or to want another time: there
            // is another turn before the next sleep.
            if !self.io.resumed.is_empty() || !self.io.broken.is_empty() {
                for id in std::mem::take(&mut self.io.resumed) {
                    self.read(handler, id, EventFlags::IN);
                }
                self.io.tell_broken(handler);
                wake = Some(0);
            }
            if self.io.stopped {
                break;
            }
            let wake = match (wake, self.io.timers.peek()) {
                (Some(a), Some(Reverse((b, ..)))) => Some(a.min(*b)),
                (a, b) => a.or(b.map(|Reverse((at, ..))| *at)),
            };
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let timeout = match wake {
                Some(at) if at <= now_ns() => Some(&at_once),
                Some(at) => {
                    self.io.set_alarm(at)?;
                    None
                }
                None => {
                    // One that rang would go on ringing.
                    if self.io.alarm_at == 0 {
                        self.io.set_alarm(now_ns() + 3_600_000_000_000)?;
                    }
                    None
                }
            };
            if let Some(carrier) = self.io.carrier {
                self.carried.clear();
                match carrier.wait(self.io.epoll.as_fd(), &mut self.carried, timeout.is_some()) {
                    Err(e) if e.kind() != std::io::ErrorKind::Interrupted => return Err(e),
                    _ => {}
                }
                self.io.now = now_ns();
                let events = std::mem::take(&mut self.carried);
                for (data, flags) in &events {
                    self.event(handler, *data, EventFlags::from_bits_retain(*flags));
                }
                self.carried = events;
                self.due(handler);
                continue;
            }
            self.events.clear();
            match epoll::wait(&self.io.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            self.io.now = now_ns();
            let mut events = std::mem::take(&mut self.events);
            for event in &events {
                self.event(handler, event.data.u64(), event.flags);
            }
            std::mem::swap(&mut events, &mut self.events);
            self.due(handler);
        }
        Ok(())
    }

    fn due<H: Handler>(&mut self, handler: &mut H) {
        while let Some(Reverse((at, ..))) = self.io.timers.peek()
            && *at <= self.io.now
        {
            let Some(Reverse((_, _, due))) = self.io.timers.pop() else { return };
            match due {
                Due::Key(key) => handler.timer(&mut self.io, key),
                Due::Connect { index, generation } => {
                    let id = Id { index, generation };
                    if self.io.link(id).is_some_and(|l| !l.opened) {
                        let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "not established in time");
                        self.io.fail(id, Closed::Connect(late));
                    }
                }
                Due::Listen(number) => {
                    if let Some(Some(listening)) = self.io.listeners.get(number) {
                        let _ = epoll::modify(&self.io.epoll, &listening.fd, listener_data(number), EventFlags::IN);
                    }
                }
            }
        }
        self.io.tell_broken(handler);
    }

    fn event<H: Handler>(&mut self, handler: &mut H, data: u64, flags: EventFlags) {
        match data {
            WAKER => return self.io.waker.rest(),
            // Being set anew silences it; one that rang for nobody is set again before the next sleep.
            ALARM => return self.io.alarm_at = 0,
            _ => {}
        }
        if data & LISTENER != 0 {
            self.accept(handler, (data & (LISTENER - 1)) as usize);
            self.io.tell_broken(handler);
            return;
        }
        let id = Id { index: data as u32, generation: (data >> 32) as u32 };
        let Some(link) = self.io.link(id) else { return };
        if !link.connected {
            match sockopt::socket_error(&link.fd) {
                Ok(Ok(())) => {}
                Ok(Err(e)) | Err(e) => {
                    self.io.fail(id, Closed::Connect(e.into()));
                    self.io.tell_broken(handler);
                    return;
                }
            }
            if flags.contains(EventFlags::OUT) {
                self.io.established(id);
                if self.io.link(id).is_some_and(|l| l.opened) {
                    handler.opened(&mut self.io, id);
                }
            }
            return;
        }
        if flags.contains(EventFlags::OUT) {
            self.io.flush(id);
            if self.io.unsent(id) == 0 {
                handler.drained(&mut self.io, id);
            }
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read(handler, id, flags);
        }
        self.io.tell_broken(handler);
    }

    fn accept<H: Handler>(&mut self, handler: &mut H, number: usize) {
        for _ in 0..ACCEPT {
            let Some(Some(listening)) = self.io.listeners.get(number) else { return };
            let listening = listening.clone();
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (fd, from) = match acceptfrom_with(&listening.fd, flags) {
                Ok(came) => came,
                Err(Errno::AGAIN) => return,
                // Gone again before we looked.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::PERM) => continue,
                Err(_) => {
                    // No descriptors or no memory: who waits goes on waiting, and we do not spin.
                    let _ = epoll::modify(&self.io.epoll, &listening.fd, listener_data(number), EventFlags::empty());
                    self.io.push_timer(now_ns() + RETRY.as_nanos() as u64, Due::Listen(number));
                    return;
                }
            };
            let ip = |a: Option<SocketAddrAny>| a.and_then(|a| std::net::SocketAddr::try_from(a).ok());
            let visitor = Visitor { listener: number, from: ip(from), to: ip(getsockname(&fd).ok()) };
            if visitor.to.is_some() {
                let _ = sockopt::set_tcp_nodelay(&fd, true);
                let _ = sockopt::set_socket_keepalive(&fd, true);
            }
            let session = match listening.tls.as_ref().map(Session::serve).transpose() {
                Ok(session) => session.map(Box::new),
                Err(_) => continue,
            };
            let plain = session.is_none();
            let id = self.io.insert(fd, session, EventFlags::IN);
            if let Some(link) = self.io.link(id) {
                (link.connected, link.opened, link.is_visitor) = (true, plain, true);
            }
            if !plain {
                let late = now_ns() + HANDSHAKE.as_nanos() as u64;
                self.io.push_timer(late, Due::Connect { index: id.index, generation: id.generation });
            }
            handler.accepted(&mut self.io, id, visitor);
            if plain && self.io.link(id).is_some() {
                handler.opened(&mut self.io, id);
            }
        }
    }

    fn read<H: Handler>(&mut self, handler: &mut H, id: Id, flags: EventFlags) {
        let Some(link) = self.io.link(id) else { return };
        if link.ended {
            // Nothing more is to be read; the peer may be gone both ways by now.
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.io.fail(id, Closed::Peer);
            } else if !link.left.is_empty() {
                let left = std::mem::take(&mut link.left);
                let used = handler.data(&mut self.io, id, &left);
                if let Some(link) = self.io.link(id) {
                    link.left = left[used.min(left.len())..].to_vec();
                }
            }
            return;
        }
        if link.paused {
            // The peer is gone both ways: what is unread has no one to answer to.
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.io.fail(id, Closed::Peer);
            }
            return;
        }
        // What was left over stands in front of what comes.
        let kept = link.left.len();
        if kept > READ {
            return self.read_on(handler, id);
        }
        if self.buffer.len() < kept + READ / 2 {
            // Twice what is there: a long message is not copied anew for every piece of it.
            self.buffer.resize(2 * kept + READ, 0);
        }
        if kept > 0 {
            self.buffer[..kept].copy_from_slice(&link.left);
            link.left.clear();
        }
        // A session keeps its own rest: only plaintext is ever left over.
        let room = if link.session.is_some() { READ } else { self.buffer.len() };
        let from = if link.session.is_some() { 0 } else { kept };
        if from == 0 && kept > 0 {
            self.plain.extend_from_slice(&self.buffer[..kept]);
        }
        let received = link.receive(&mut self.buffer[from..room]);
        let got = match link.heard(received) {
            Ok(got) => got,
            Err(why) => {
                let why = link.unwritten.take().unwrap_or(why);
                // What was left over may be whole messages, of a connection that was paused.
                let used = if kept > 0 { handler.data(&mut self.io, id, &self.buffer[..kept]) } else { 0 };
                self.plain.clear();
                if matches!(why, Closed::Peer) && handler.ended(&mut self.io, id) {
                    if let Some(link) = self.io.link(id) {
                        link.ended = true;
                        link.left.extend_from_slice(&self.buffer[used.min(kept)..kept]);
                        self.io.settle_interest(id);
                    }
                    return;
                }
                self.io.fail(id, why);
                return;
            }
        };
        let (bytes, tls) = match &mut link.session {
            None => (&self.buffer[..kept + got], false),
            Some(session) => match session.receive(&self.buffer[..got], &mut self.plain) {
                Ok(ready) => {
                    if ready {
                        link.opened = true;
                    }
                    self.io.mark(id);
                    if ready {
                        handler.opened(&mut self.io, id);
                    }
                    (&self.plain[..], true)
                }
                Err(why) => {
                    // The alert that says why to the peer still goes out.
                    self.io.flush(id);
                    self.plain.clear();
                    self.io.fail(id, Closed::Tls(why));
                    return;
                }
            },
        };
        let used = if bytes.is_empty() { 0 } else { handler.data(&mut self.io, id, bytes) };
        let rest = &bytes[used.min(bytes.len())..];
        let idle = self.io.idle_kept;
        if let Some(link) = self.io.link(id)
            && (kept > 0 || !rest.is_empty())
        {
            link.left.extend_from_slice(rest);
            trim(&mut link.left, idle);
            if rest.len() > self.io.input_max {
                self.io.fail(id, Closed::TooMuch);
            }
        }
        if self.io.link(id).is_some_and(|l| l.unwritten.is_some()) {
            self.io.resumed.push(id);
        }
        if tls {
            self.plain.clear();
        }
        if self.buffer.len() > READ * 4 && kept < READ {
            self.buffer.truncate(READ);
            self.buffer.shrink_to_fit();
        }
    }

    /// Reads behind a long rest, in place: a peer that sends a long message byte by byte costs a byte's work for each.
    fn read_on<H: Handler>(&mut self, handler: &mut H, id: Id) {
        let Some(link) = self.io.link(id) else { return };
        let mut held = std::mem::take(&mut link.left);
        let kept = held.len();
        let received = if link.session.is_some() {
            link.receive(&mut self.buffer[..READ])
        } else {
            held.resize(kept + READ, 0);
            let received = link.receive(&mut held[kept..]);
            held.truncate(kept + received.as_ref().map_or(0, |got| *got));
            received
        };
        let got = match link.heard(received) {
            Ok(got) => got,
            Err(why) => {
                let why = link.unwritten.take().unwrap_or(why);
                let used = handler.data(&mut self.io, id, &held);
                if matches!(why, Closed::Peer) && handler.ended(&mut self.io, id) {
                    if let Some(link) = self.io.link(id) {
                        link.ended = true;
                        held.drain(..used.min(kept));
                        link.left = held;
                        self.io.settle_interest(id);
                    }
                    return;
                }
                return self.io.fail(id, why);
            }
        };
        if let Some(session) = &mut link.session {
            match session.receive(&self.buffer[..got], &mut held) {
                Ok(_) => self.io.mark(id),
                Err(why) => {
                    self.io.flush(id);
                    return self.io.fail(id, Closed::Tls(why));
                }
            }
        }
        let used = handler.data(&mut self.io, id, &held);
        held.drain(..used.min(held.len()));
        trim(&mut held, self.io.idle_kept);
        let too_much = held.len() > self.io.input_max;
        let Some(link) = self.io.link(id) else { return };
        let unwritten = link.unwritten.is_some();
        link.left = held;
        if too_much {
            return self.io.fail(id, Closed::TooMuch);
        }
        if unwritten {
            self.io.resumed.push(id);
        }
    }
}

impl Io {
    /// Ends [`Reactor::run`] after this turn. Connections stay.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// For other threads, to end a sleep of this loop.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// A connection may keep this many bytes that its handler has not used; more closes it. Default 512 MiB.
    pub fn limit_input(&mut self, bytes: usize) {
        self.input_max = bytes;
    }

    /// An emptied buffer of a connection, for output or for unused input, keeps this much memory for later bytes.
    /// Default 64 KiB; less for many connections.
    pub fn limit_idle_buffers(&mut self, bytes: usize) {
        self.idle_kept = bytes;
    }

    /// Takes connections from a listening socket; the number is in each [`Visitor`].
    pub fn listen(&mut self, listening: &Arc<Listening>) -> std::io::Result<usize> {
        let number = self.listeners.len();
        rustix::io::ioctl_fionbio(&listening.fd, true)?;
        epoll::add(&self.epoll, &listening.fd, listener_data(number), EventFlags::IN)?;
        self.listeners.push(Some(listening.clone()));
        Ok(number)
    }

    /// Takes no more from it. Connections stay, and so do those who wait in its queue as long as somebody has it open.
    pub fn stop_listening(&mut self, number: usize) {
        if let Some(listening) = self.listeners.get_mut(number).and_then(Option::take) {
            let _ = epoll::delete(&self.epoll, &listening.fd);
        }
    }

    /// Closes a connection when everything appended to it is sent. What still comes on it is not read.
    pub fn finish(&mut self, id: Id) {
        if let Some(link) = self.link(id) {
            link.finishing = true;
            link.ended = true;
            self.mark(id);
            self.settle_interest(id);
        }
    }

    /// Within [`Handler::closed`]: bytes of that connection's output that its socket never took, so that the peer
    /// cannot have seen them. Under TLS only what was not yet encrypted is counted.
    pub fn never_sent(&self) -> usize {
        self.lost
    }

    fn insert(&mut self, fd: OwnedFd, session: Option<Box<Session>>, interest: EventFlags) -> Id {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, link: None });
            self.slots.len() as u32 - 1
        });
        let id = Id { index, generation: self.slots[index as usize].generation };
        let added = match self.carrier {
            None => epoll::add(&self.epoll, &fd, event_data(id), interest).map_err(std::io::Error::from),
            Some(c) => c.change(self.epoll.as_fd(), fd.as_fd(), Change::Add(event_data(id).u64(), interest.bits())),
        };
        self.slots[index as usize].link = Some(Link {
            fd,
            session,
            out: Vec::new(),
            wire: Vec::new(),
            wire_sent: 0,
            left: Vec::new(),
            unwritten: None,
            lost: 0,
            is_visitor: false,
            left_unsent: 0,
            interest,
            connected: false,
            opened: false,
            paused: false,
            dirty: false,
            ended: false,
            finishing: false,
            carrier: self.carrier,
        });
        if let Err(e) = added {
            self.fail(id, Closed::Connect(e));
        }
        id
    }

    /// Begins a connection; [`Handler::opened`] or [`Handler::closed`] follows, the latter at `deadline` at the latest.
    /// Fails when there are no descriptors left.
    pub fn connect(&mut self, peer: &Peer, tls: Option<&Tls>, deadline: u64) -> std::io::Result<Id> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, begun) = match peer {
            Peer::Tcp(address) => {
                let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let fd = socket_with(family, SocketType::STREAM, flags, None)?;
                sockopt::set_tcp_nodelay(&fd, true)?;
                let begun = connect(&fd, address);
                if let (Some(carrier), Ok(()) | Err(Errno::INPROGRESS)) = (self.carrier, begun) {
                    carrier.connecting(fd.as_fd());
                }
                (fd, begun)
            }
            Peer::Unix(path) => {
                let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                let begun = connect(&fd, &SocketAddrUnix::new(path.as_path())?);
                (fd, begun)
            }
        };
        let session = match tls.map(Session::new).transpose() {
            Ok(session) => session.map(Box::new),
            Err(why) => return Err(std::io::Error::other(why)),
        };
        let id = self.insert(fd, session, EventFlags::OUT | EventFlags::IN);
        // A refusal on the spot is told like one that came later.
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => {
                self.push_timer(deadline, Due::Connect { index: id.index, generation: id.generation });
            }
            Err(e) => self.fail(id, Closed::Connect(e.into())),
        }
        Ok(id)
    }

    /// What is to be sent on a connection; append to it. Written at the end of the turn, or by [`Io::flush`]. Bytes for
    /// a connection that is gone go nowhere, and [`Handler::closed`] has said so.
    pub fn output(&mut self, id: Id) -> &mut Vec<u8> {
        self.mark(id);
        match self.slots.get_mut(id.index as usize) {
            Some(Slot { generation, link: Some(link) }) if *generation == id.generation => &mut link.out,
            _ => {
                self.nowhere.clear();
                &mut self.nowhere
            }
        }
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&mut self, id: Id) -> usize {
        self.link(id).map_or(0, |l| l.out.len() + l.wire.len() - l.wire_sent)
    }

    /// Bytes that wait for connections that were taken from listeners, all together: what their sockets had not taken
    /// when their outputs were written last.
    pub fn unsent_to_visitors(&self) -> usize {
        self.unsent_to_visitors
    }

    /// Stops or resumes reading.
    pub fn pause(&mut self, id: Id, paused: bool) {
        if let Some(link) = self.link(id) {
            // What is left over of a peer that has ended is looked at again as well.
            let resumed = link.paused && !paused && !link.left.is_empty();
            link.paused = paused;
            self.settle_interest(id);
            if resumed {
                self.resumed.push(id);
            }
        }
    }

    /// Closes without a word to the handler.
    pub fn close(&mut self, id: Id) {
        if let Some(link) = self.link(id) {
            let (lost, unsent) = (link.lost + link.waiting(), link.left_unsent);
            self.lost = lost;
            self.unsent_to_visitors -= unsent;
            let slot = &mut self.slots[id.index as usize];
            slot.link = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.index);
        }
    }

    /// Whether the peer has closed its side, also of a connection that is not read.
    pub fn hung_up(&mut self, id: Id) -> bool {
        let Some(link) = self.link(id) else { return true };
        let mut fds = [PollFd::new(&link.fd, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0)
    }

    /// Whether a peer that is there has sent something that was not read yet.
    pub fn has_input(&mut self, id: Id) -> bool {
        let Some(link) = self.link(id) else { return false };
        if !link.left.is_empty() {
            return true;
        }
        let mut fds = [PollFd::new(&link.fd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0);
        let found = fds[0].revents();
        ready && found.contains(PollFlags::IN) && !found.intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Calls [`Handler::timer`] with `key` at `at` ([`now_ns`]).
    pub fn timer(&mut self, at: u64, key: u64) {
        self.push_timer(at, Due::Key(key));
    }

    /// Makes sure that the next sleep ends at `at`. Too early does no harm: the next turn sets it again.
    fn set_alarm(&mut self, at: u64) -> std::io::Result<()> {
        if at < self.alarm_at || self.alarm_at <= self.now {
            let time = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as _ };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: time };
            timerfd_settime(&self.alarm, TimerfdTimerFlags::ABSTIME, &once)?;
            self.alarm_at = at;
        }
        Ok(())
    }

    fn push_timer(&mut self, at: u64, due: Due) {
        self.timer_count += 1;
        self.timers.push(Reverse((at, self.timer_count, due)));
    }

    /// Writes what waits on a connection, as far as the socket takes it.
    pub fn flush(&mut self, id: Id) {
        let kept = self.idle_kept;
        let Some(link) = self.link(id) else { return };
        link.dirty = false;
        if !link.connected {
            return;
        }
        let written = link.write(kept);
        let (before, unsent) = link.count_unsent();
        self.unsent_to_visitors = self.unsent_to_visitors + unsent - before;
        let Some(link) = self.link(id) else { return };
        if let Err(why) = written {
            if link.ended {
                self.fail(id, why);
                return;
            }
            // What the peer said before it went is still to be read; the end comes behind it.
            link.lost += link.waiting();
            link.out = Vec::new();
            (link.wire, link.wire_sent) = (Vec::new(), 0);
            if let Closed::Tls(_) = why {
                self.fail(id, why);
                return;
            }
            link.unwritten.get_or_insert(why);
            link.paused = false;
            self.resumed.push(id);
        } else if link.finishing && link.out.is_empty() && link.wire.is_empty() {
            if let Some(carrier) = link.carrier {
                carrier.ending(link.fd.as_fd());
            }
            let _ = shutdown(&link.fd, Shutdown::Write);
            self.fail(id, Closed::Peer);
            return;
        }
        self.settle_interest(id);
    }

    fn flush_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            let slot = &self.slots[index as usize];
            let id = Id { index, generation: slot.generation };
            if slot.link.as_ref().is_some_and(|l| l.dirty) {
                self.flush(id);
            }
        }
        self.dirty = dirty;
    }

    fn settle_interest(&mut self, id: Id) {
        let slot = &mut self.slots[id.index as usize];
        let Some(link) = &mut slot.link else { return };
        if !link.connected {
            return;
        }
        let blocked = !link.wire.is_empty();
        let wanted = match (link.paused || link.ended, blocked) {
            (false, false) => EventFlags::IN,
            (false, true) => EventFlags::IN | EventFlags::OUT,
            (true, true) => EventFlags::OUT,
            (true, false) => EventFlags::empty(),
        };
        if wanted != link.interest {
            link.interest = wanted;
            let changed = match self.carrier {
                None => epoll::modify(&self.epoll, &link.fd, event_data(id), wanted).map_err(std::io::Error::from),
                Some(c) => {
                    let change = Change::Modify(event_data(id).u64(), wanted.bits());
                    c.change(self.epoll.as_fd(), link.fd.as_fd(), change)
                }
            };
            if let Err(e) = changed {
                self.broken.push((id, Closed::Io(e)));
            }
        }
    }

    fn established(&mut self, id: Id) {
        let Some(link) = self.link(id) else { return };
        link.connected = true;
        link.opened = link.session.is_none();
        self.flush(id);
        self.settle_interest(id);
    }

    fn mark(&mut self, id: Id) {
        if let Some(link) = self.link(id)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty.push(id.index);
        }
    }

    fn link(&mut self, id: Id) -> Option<&mut Link> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.link.as_mut() } else { None }
    }

    fn fail(&mut self, id: Id, why: Closed) {
        if self.broken.iter().all(|(other, _)| *other != id) {
            self.broken.push((id, why));
        }
    }

    fn tell_broken<H: Handler>(&mut self, handler: &mut H) {
        // Those alone that are known by now: a handler that dials again where nobody listens may break another each
        // time.
        for (id, why) in std::mem::take(&mut self.broken) {
            if self.link(id).is_some() {
                self.close(id);
                handler.closed(self, id, why);
            }
        }
    }
}

/// Frees most of the memory that unused input does not need: otherwise each connection would keep, while it is idle, as
/// much as its longest message once took.
fn trim(left: &mut Vec<u8>, idle: usize) {
    if left.capacity() > idle.max(4 * left.len()) {
        left.shrink_to(2 * left.len());
    }
}

fn listener_data(number: usize) -> EventData {
    EventData::new_u64(LISTENER | number as u64)
}

pub(crate) fn bind(peer: &Peer, shared: bool) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = match peer {
        Peer::Tcp(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            sockopt::set_socket_reuseport(&fd, shared)?;
            rustix::net::bind(&fd, address)?;
            fd
        }
        Peer::Unix(path) => {
            let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let address = SocketAddrUnix::new(path.as_path())?;
            match rustix::net::bind(&fd, &address) {
                Err(Errno::ADDRINUSE) => {
                    // Left behind by somebody who ended without a word?
                    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                    if connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                        return Err(Errno::ADDRINUSE.into());
                    }
                    std::fs::remove_file(path)?;
                    rustix::net::bind(&fd, &address)?;
                }
                other => other?,
            }
            fd
        }
    };
    listen(&fd, 4096)?;
    Ok(fd)
}

fn event_data(id: Id) -> EventData {
    EventData::new_u64(u64::from(id.generation) << 32 | u64::from(id.index))
}
