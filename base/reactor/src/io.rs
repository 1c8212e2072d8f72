//! The loop itself, on epoll.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use crate::tls::Session;
use crate::{Closed, Handler, Id, Peer, Tls, Waker, now_ns};

/// Bytes read at once, at most; also the largest piece a handler gets, unless it leaves more than half of it unused.
const READ: usize = 64 * 1024;
/// An emptied output keeps this much of its memory.
const KEEP: usize = 16 * 1024;
/// Epoll data of the waker and of the alarm; no connection has these indices.
const WAKER: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

/// The event loop of one thread.
pub struct Reactor {
    io: Io,
    buffer: Vec<u8>,
    plain: Vec<u8>,
    events: Vec<epoll::Event>,
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
    stopped: bool,
    now: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Key(u64),
    Connect { index: u32, generation: u32 },
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
    interest: EventFlags,
    connected: bool,
    opened: bool,
    paused: bool,
    dirty: bool,
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
            stopped: false,
            now: now_ns(),
        };
        Ok(Reactor { io, buffer: vec![0; READ], plain: Vec::new(), events: Vec::with_capacity(256) })
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
            // What a handler does about these may be to write on others, to break them, or to want another time: there is
            // another turn before the next sleep.
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

    fn read<H: Handler>(&mut self, handler: &mut H, id: Id, flags: EventFlags) {
        let Some(link) = self.io.link(id) else { return };
        if link.paused {
            // The peer is gone both ways: what is unread has no one to answer to.
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.io.fail(id, Closed::Peer);
            }
            return;
        }
        // What was left over stands in front of what comes.
        let kept = link.left.len();
        if self.buffer.len() < kept + READ / 2 {
            self.buffer.resize(kept + READ, 0);
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
        let got = match recv(&link.fd, &mut self.buffer[from..room], RecvFlags::empty()) {
            Ok((0, _)) => Err(Closed::Peer),
            Ok((n, _)) => Ok(n),
            // Nothing more to read before the end that writing has found.
            Err(Errno::AGAIN) if link.unwritten.is_some() => Err(Closed::Peer),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(e) => Err(Closed::Io(e.into())),
        };
        let got = match got {
            Ok(got) => got,
            Err(why) => {
                let why = link.unwritten.take().unwrap_or(why);
                // What was left over may be whole messages, of a connection that was paused.
                if kept > 0 {
                    handler.data(&mut self.io, id, &self.buffer[..kept]);
                }
                self.plain.clear();
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
        if let Some(link) = self.io.link(id)
            && !rest.is_empty()
        {
            link.left.extend_from_slice(rest);
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
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, link: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        let id = Id { index, generation: slot.generation };
        let interest = EventFlags::OUT | EventFlags::IN;
        let added = epoll::add(&self.epoll, &fd, event_data(id), interest);
        slot.link = Some(Link {
            fd,
            session,
            out: Vec::new(),
            wire: Vec::new(),
            wire_sent: 0,
            left: Vec::new(),
            unwritten: None,
            interest,
            connected: false,
            opened: false,
            paused: false,
            dirty: false,
        });
        // A refusal on the spot is told like one that came later.
        match (added, begun) {
            (Err(e), _) => self.fail(id, Closed::Connect(e.into())),
            (_, Ok(()) | Err(Errno::INPROGRESS)) => {
                self.push_timer(deadline, Due::Connect { index, generation: id.generation });
            }
            (_, Err(e)) => self.fail(id, Closed::Connect(e.into())),
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

    /// Stops or resumes reading.
    pub fn pause(&mut self, id: Id, paused: bool) {
        if let Some(link) = self.link(id) {
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
        if self.link(id).is_some() {
            let slot = &mut self.slots[id.index as usize];
            slot.link = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.index);
        }
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
        let Some(link) = self.link(id) else { return };
        link.dirty = false;
        if !link.connected {
            return;
        }
        if let Err(why) = link.write() {
            // What the peer said before it went is still to be read; the end comes behind it.
            link.out = Vec::new();
            (link.wire, link.wire_sent) = (Vec::new(), 0);
            if let Closed::Tls(_) = why {
                self.fail(id, why);
                return;
            }
            link.unwritten.get_or_insert(why);
            link.paused = false;
            self.resumed.push(id);
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
        let wanted = match (link.paused, blocked) {
            (false, false) => EventFlags::IN,
            (false, true) => EventFlags::IN | EventFlags::OUT,
            (true, true) => EventFlags::OUT,
            (true, false) => EventFlags::empty(),
        };
        if wanted != link.interest {
            link.interest = wanted;
            if let Err(e) = epoll::modify(&self.epoll, &link.fd, event_data(id), wanted) {
                self.broken.push((id, Closed::Io(e.into())));
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
        // Those alone that are known by now: a handler that dials again where nobody listens may break another each time.
        for (id, why) in std::mem::take(&mut self.broken) {
            if self.link(id).is_some() {
                self.close(id);
                handler.closed(self, id, why);
            }
        }
    }
}

impl Link {
    fn write(&mut self) -> Result<(), Closed> {
        if self.unwritten.is_some() {
            self.out.clear();
            return Ok(());
        }
        // A peer that always leaves some of it would make this grow for ever.
        if self.wire_sent > READ && self.wire_sent > self.wire.len() / 2 {
            self.wire.drain(..std::mem::take(&mut self.wire_sent));
        }
        if let Some(session) = &mut self.session {
            let encrypted = session.send(&self.out).and_then(|()| {
                self.out.clear();
                session.take(&mut self.wire)
            });
            encrypted.map_err(Closed::Tls)?;
        }
        loop {
            if self.wire_sent < self.wire.len() {
                match send(&self.fd, &self.wire[self.wire_sent..], SendFlags::NOSIGNAL) {
                    Ok(n) => self.wire_sent += n,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(Errno::INTR) => {}
                    Err(e) => return Err(Closed::Io(e.into())),
                }
                continue;
            }
            emptied(&mut self.wire);
            self.wire_sent = 0;
            if self.out.is_empty() {
                return Ok(());
            }
            match send(&self.fd, &self.out, SendFlags::NOSIGNAL) {
                Ok(n) if n == self.out.len() => emptied(&mut self.out),
                Ok(n) => {
                    // The rest moves in front, so that what is appended later finds its place behind it.
                    std::mem::swap(&mut self.wire, &mut self.out);
                    self.wire_sent = n;
                }
                Err(Errno::AGAIN) => {
                    std::mem::swap(&mut self.wire, &mut self.out);
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(Closed::Io(e.into())),
            }
        }
    }
}

fn emptied(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEEP * 4 {
        buffer.shrink_to(KEEP);
    }
}

fn event_data(id: Id) -> EventData {
    EventData::new_u64(u64::from(id.generation) << 32 | u64::from(id.index))
}
