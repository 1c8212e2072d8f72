//! The loop itself, on epoll.
//!
//! This file has the two structs and the turn of the loop; the files beside it add methods to both. `link` is one
//! connection, `connections` the table of all of them, `read` takes what comes on one to the handler; `listeners` and
//! `timers` have the other two kinds of events.

use std::sync::Arc;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;

use self::connections::Slot;
use self::listeners::LISTENER;
pub(crate) use self::listeners::bind;
use self::timers::Timers;
use crate::{Carrier, Closed, Handler, Id, Listening, Waker, now_ns};

mod connections;
mod link;
mod listeners;
mod read;
#[cfg(test)]
mod tests;
mod timers;

/// Bytes read at once, at most; also the largest piece a handler gets, unless it leaves more than half of it unused.
const READ: usize = 64 * 1024;
/// Events of a turn, at most.
const EVENTS: usize = 256;
/// Epoll data of the waker and of the alarm; no connection has these indices.
const WAKER: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

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
    timers: Timers,
    /// Read again since, with bytes left over that nobody will send once more.
    resumed: Vec<Id>,
    waker: Waker,
    slots: Vec<Slot>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    /// Found broken while the handler was at work; told at the end of the turn.
    broken: Vec<(Id, Closed)>,
    /// Buffers for output. A connection has one only while some of its output waits.
    spare: Vec<Vec<u8>>,
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
    /// How long the loop has slept, in all.
    slept: u64,
    /// Least time between two turns.
    pace: u64,
    /// There may be more of what has come than this turn has taken.
    more: bool,
    carrier: Option<&'static dyn Carrier>,
}

impl Reactor {
    /// A loop with no connections. Fails when the kernel has no epoll or no descriptors left.
    pub fn new() -> std::io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Waker::new()?;
        epoll::add(&epoll, &*waker.0, EventData::new_u64(WAKER), EventFlags::IN)?;
        let timers = Timers::new()?;
        epoll::add(&epoll, timers.alarm(), EventData::new_u64(ALARM), EventFlags::IN)?;
        let io = Io {
            epoll,
            timers,
            resumed: Vec::new(),
            waker,
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            broken: Vec::new(),
            spare: Vec::new(),
            nowhere: Vec::new(),
            input_max: 512 << 20,
            idle_kept: 64 * 1024,
            listeners: Vec::new(),
            lost: 0,
            unsent_to_visitors: 0,
            stopped: false,
            now: now_ns(),
            slept: 0,
            pace: 0,
            more: false,
            carrier: None,
        };
        let events = Vec::with_capacity(EVENTS);
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
            let wake = match (wake, self.io.timers.next_at()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            let awake_until = now_ns();
            self.io.keep_pace(awake_until, wake);
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let timeout = match wake {
                Some(at) if at <= awake_until => Some(&at_once),
                Some(at) => {
                    self.io.timers.set_alarm(at, self.io.now)?;
                    None
                }
                None => {
                    // One that rang would go on ringing.
                    if self.io.timers.has_rung() {
                        self.io.timers.set_alarm(awake_until + 3_600_000_000_000, self.io.now)?;
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
                self.io.woken(awake_until);
                let events = std::mem::take(&mut self.carried);
                self.io.more = events.len() >= EVENTS;
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
            self.io.woken(awake_until);
            let mut events = std::mem::take(&mut self.events);
            self.io.more = events.len() == events.capacity();
            for event in &events {
                self.event(handler, event.data.u64(), event.flags);
            }
            std::mem::swap(&mut events, &mut self.events);
            self.due(handler);
        }
        Ok(())
    }

    fn event<H: Handler>(&mut self, handler: &mut H, data: u64, flags: EventFlags) {
        match data {
            WAKER => return self.io.waker.rest(),
            ALARM => return self.io.timers.note_alarm(),
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
}

impl Io {
    /// Ends [`Reactor::run`] after this turn. Connections stay.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// How long the loop has slept since it was made, in nanoseconds.
    pub fn slept_ns(&self) -> u64 {
        self.slept
    }

    /// From now on the loop takes what has come at most once in `ns` nanoseconds; 0 for at once, as in the beginning.
    /// More comes and goes in one turn then, which costs it and its peers fewer system calls and less waking up; any
    /// event may wait for so long. Where more has come than a turn takes, the next one follows at once.
    pub fn pace(&mut self, ns: u64) {
        if self.pace == 0 && ns > 0 {
            // Without this a sleep takes 50 us longer, and so it does where prctl is forbidden.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1000));
        }
        self.pace = ns;
    }

    /// Sleeps for the rest of this turn's time, unless something is due before or waits to be taken.
    fn keep_pace(&self, now: u64, wake: Option<u64>) {
        let end = (self.now + self.pace).min(wake.unwrap_or(u64::MAX));
        if self.pace > 0 && !self.more && now < end {
            std::thread::sleep(std::time::Duration::from_nanos(end - now));
        }
    }

    fn woken(&mut self, awake_until: u64) {
        self.now = now_ns();
        self.slept += self.now - awake_until;
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
}
