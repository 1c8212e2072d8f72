//! A connection that goes over shared memory, seen from one process.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::pair::{Pair, Side, Slot, TAKEN};
use crate::ring::{Consumer, Lie, Producer};

/// What a read came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Empty,
    /// The other side has said all it had to say.
    End,
    /// The other side is gone without having closed the connection, or lied.
    Reset,
}

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// So many bytes were taken.
    Bytes(usize),
    /// No space now.
    Full,
    /// Nobody will read it.
    Gone,
}

/// Whose doorbell has to be rung after a call, if anybody's.
pub type Bell = Option<u32>;

/// A lock held for the length of a copy. Threads that share a connection are rare, and the kernel's own lock on a socket is
/// no finer.
#[derive(Debug)]
struct Held<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` lets one thread at a time in.
unsafe impl<T: Send> Sync for Held<T> {}

impl<T> Held<T> {
    fn new(value: T) -> Held<T> {
        Held { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut spins = 0;
        while self.locked.swap(true, Ordering::Acquire) {
            spins += 1;
            if spins % 64 == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        // SAFETY: `locked` was false and is true: nobody else is here.
        let result = work(unsafe { &mut *self.value.get() });
        self.locked.store(false, Ordering::Release);
        result
    }
}

/// How the TCP connection beside it is, which tells of crashes.
const WELL: u32 = 0;
const ENDED: u32 = 1;
const BROKEN: u32 = 2;

/// One end of a connection.
#[derive(Debug)]
pub struct Link {
    /// The memory it is in.
    pub pair: Arc<Pair>,
    /// Its number there.
    pub number: u32,
    /// Which of the connections that had this number it is.
    pub generation: u32,
    producer: Held<Producer>,
    consumer: Held<Consumer>,
    /// What the kernel says of the TCP connection.
    tcp: AtomicU32,
    read_shut: AtomicBool,
    write_shut: AtomicBool,
    closed: AtomicBool,
    told_gone: AtomicBool,
}

impl Link {
    /// One end of the connection in a slot, from its beginning.
    pub fn new(pair: Arc<Pair>, number: u32, generation: u32) -> Link {
        Link {
            producer: Held::new(Producer::new(&pair.outgoing(number))),
            consumer: Held::new(Consumer::new(&pair.incoming(number))),
            pair,
            number,
            generation,
            tcp: AtomicU32::new(WELL),
            read_shut: AtomicBool::new(false),
            write_shut: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            told_gone: AtomicBool::new(false),
        }
    }

    fn side(&self) -> Side {
        self.pair.side
    }

    /// Its words in shared memory.
    #[inline]
    pub fn slot(&self) -> &Slot {
        self.pair.slot(self.number).expect("checked when the link was made")
    }

    /// The number of the slot may be somebody else's by now, if the other side is a liar.
    #[inline]
    fn ours(&self, slot: &Slot) -> bool {
        slot.state(self.generation) == TAKEN
    }

    /// Names the waiter to be told of news.
    pub fn set_waiter(&self, waiter: u32) {
        self.slot().set_waiter(self.side(), waiter);
    }

    /// Reads what is there. With `peek` it stays.
    #[inline]
    pub fn read(&self, to_fill: &mut [u8], peek: bool) -> (Read, Bell) {
        if to_fill.is_empty() {
            return (Read::Bytes(0), None);
        }
        let slot = self.slot();
        let (out, to) = slot.incoming(self.side());
        let rings = self.pair.incoming(self.number);
        let (first, wanted) = self.consumer.with(|c| {
            let read = c.read(&rings, out, to, to_fill, peek);
            (read, !peek && c.wanted(out))
        });
        let bell = if wanted { self.pair.tell(self.number, slot) } else { None };
        match first {
            Ok(0) => {}
            Ok(n) => return (Read::Bytes(n), bell),
            Err(Lie) => {
                self.tcp.store(BROKEN, Ordering::Release);
                return (Read::Reset, bell);
            }
        }
        if self.read_shut.load(Ordering::Relaxed) {
            return (Read::End, bell);
        }
        let Some(end) = self.end_of_reading(slot) else { return (Read::Empty, bell) };
        // It may have written between our look and its end.
        match self.consumer.with(|c| c.read(&rings, out, to, to_fill, peek)) {
            Ok(0) => (end, bell),
            Ok(n) => (Read::Bytes(n), bell),
            Err(Lie) => (Read::Reset, bell),
        }
    }

    /// Whether reading is over once the ring is empty, and how.
    fn end_of_reading(&self, slot: &Slot) -> Option<Read> {
        let (out, _) = slot.incoming(self.side());
        let other_closed = slot.closed(self.side().other());
        if self.consumer.with(|c| c.over(out)) || other_closed {
            // A close with bytes unread is a reset, as TCP's.
            let unread = other_closed && self.producer.with(|p| p.unread(slot.outgoing(self.side()).1) > 0);
            return Some(if unread { Read::Reset } else { Read::End });
        }
        match self.tcp.load(Ordering::Acquire) {
            _ if !self.ours(slot) => Some(Read::Reset),
            WELL => None,
            // As with TCP: who dies without having read all sends a reset.
            ENDED if self.producer.with(|p| p.unread(slot.outgoing(self.side()).1)) == 0 => Some(Read::End),
            _ => Some(Read::Reset),
        }
    }

    /// Writes what fits.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> (Written, Bell) {
        let slot = self.slot();
        let (out, to) = slot.outgoing(self.side());
        if self.unwritable(slot) {
            // As with TCP: the first write after the other side has closed finds that out, and the next one is told.
            let silent = self.closed.load(Ordering::Relaxed) || self.write_shut.load(Ordering::Relaxed);
            let clean = !silent && self.ours(slot) && !self.tcp_is_over(slot);
            if clean && !self.told_gone.swap(true, Ordering::Relaxed) {
                return (Written::Bytes(bytes.len()), None);
            }
            return (Written::Gone, None);
        }
        if bytes.is_empty() {
            return (Written::Bytes(0), None);
        }
        match self.producer.with(|p| p.write(&self.pair.outgoing(self.number), out, to, bytes)) {
            Ok(0) => (Written::Full, None),
            Ok(n) => (Written::Bytes(n), self.pair.tell(self.number, slot)),
            Err(Lie) => {
                self.tcp.store(BROKEN, Ordering::Release);
                (Written::Gone, None)
            }
        }
    }

    /// The other process is gone without a word. After a half-close, which says so here first, it is not.
    #[inline]
    fn tcp_is_over(&self, slot: &Slot) -> bool {
        match self.tcp.load(Ordering::Relaxed) {
            WELL => false,
            ENDED => !self.consumer.with(|c| c.over(slot.incoming(self.side()).0)),
            _ => true,
        }
    }

    #[inline]
    fn unwritable(&self, slot: &Slot) -> bool {
        self.write_shut.load(Ordering::Relaxed)
            || self.closed.load(Ordering::Relaxed)
            || self.tcp_is_over(slot)
            || slot.closed(self.side().other())
            || !self.ours(slot)
            || slot.outgoing(self.side()).1.is_left()
    }

    /// Whether a read would not say [`Read::Empty`].
    #[inline]
    pub fn readable(&self) -> bool {
        let slot = self.slot();
        self.consumer.with(|c| c.ready(slot.incoming(self.side()).0)) || self.ended()
    }

    /// Whether the other side has ended or is gone; there may be bytes left to read.
    #[inline]
    pub fn ended(&self) -> bool {
        self.read_shut.load(Ordering::Relaxed) || self.end_of_reading(self.slot()).is_some()
    }

    /// Whether neither reading nor writing will bring anything more.
    pub fn over(&self) -> bool {
        let slot = self.slot();
        self.ended() && self.unwritable(slot)
    }

    /// Whether the connection broke.
    pub fn broken(&self) -> bool {
        let slot = self.slot();
        let unclean = self.tcp.load(Ordering::Acquire) != WELL && !slot.closed(self.side().other());
        unclean && !self.closed.load(Ordering::Relaxed) && self.end_of_reading(slot) == Some(Read::Reset)
    }

    /// Whether a write would take a good deal, or fail. Otherwise the other side tells when it would.
    #[inline]
    pub fn writable(&self) -> bool {
        let slot = self.slot();
        let (out, to) = slot.outgoing(self.side());
        let rings = self.pair.outgoing(self.number);
        if self.unwritable(slot) {
            return true;
        }
        self.producer.with(|p| {
            p.writable(&rings, to).unwrap_or(true) || {
                p.wait(out);
                p.writable(&rings, to).unwrap_or(true)
            }
        })
    }

    /// Bytes that wait to be read.
    pub fn waiting(&self) -> u64 {
        let slot = self.slot();
        self.consumer.with(|c| c.waiting(slot.incoming(self.side()).0))
    }

    /// Bytes read and written since the beginning.
    pub fn totals(&self) -> (u64, u64) {
        (self.consumer.with(|c| c.total()), self.producer.with(|p| p.total()))
    }

    /// Nothing more will be written.
    pub fn shut_write(&self) -> Bell {
        if self.write_shut.swap(true, Ordering::AcqRel) {
            return None;
        }
        let slot = self.slot();
        self.producer.with(|p| p.end(slot.outgoing(self.side()).0));
        self.pair.tell(self.number, slot)
    }

    /// Nothing more will be read.
    pub fn shut_read(&self) {
        self.read_shut.store(true, Ordering::Release);
    }

    /// The TCP connection ended, without (`reset`: or with) an error: the other process is gone if it has not said so here.
    pub fn tcp_ended(&self, reset: bool) {
        self.tcp.fetch_max(if reset { BROKEN } else { ENDED }, Ordering::AcqRel);
    }

    /// Whether nothing has been said of the TCP connection's end.
    pub fn tcp_is_well(&self) -> bool {
        self.tcp.load(Ordering::Acquire) == WELL
    }

    /// Whether we closed it.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// The end of it on this side.
    pub fn close(&self) -> Bell {
        if self.closed.swap(true, Ordering::AcqRel) {
            return None;
        }
        let slot = self.slot();
        if !self.ours(slot) {
            return None;
        }
        self.consumer.with(|c| c.leave(slot.incoming(self.side()).1));
        self.producer.with(|p| p.end(slot.outgoing(self.side()).0));
        slot.close(self.side());
        let bell = self.pair.tell(self.number, slot);
        let held = self.producer.with(|p| p.held());
        self.pair.retire(self.number, self.generation, held);
        bell
    }
}
