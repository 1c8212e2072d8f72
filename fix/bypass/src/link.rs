//! A connection that goes over shared memory, seen from one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::held::{Busy, Held};
use crate::pair::{Close, Pair, Side, Slot, TAKEN};
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
    /// The other side gave the connection up, is gone without having read all, or lied.
    Reset,
    /// This thread is in the middle of a read of this connection: a signal handler asks, or the handler was left with
    /// longjmp.
    Busy,
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
    /// Nobody will read it, and [`Read::Reset`] would be the answer of a read.
    Reset,
    /// This thread is in the middle of a write to this connection, as with [`Read::Busy`].
    Busy,
}

/// Whose doorbell has to be rung after a call, if anybody's.
pub type Bell = Option<u32>;

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
    /// The positions of both, to be looked at without their locks.
    written: AtomicU64,
    read: AtomicU64,
    /// What the kernel says of the TCP connection.
    tcp: AtomicU32,
    read_shut: AtomicBool,
    write_shut: AtomicBool,
    closed: AtomicBool,
    told_gone: AtomicBool,
    /// The program knows that it was reset: it is told once, as by TCP.
    told_reset: AtomicBool,
}

impl Link {
    /// One end of the connection in a slot, from its beginning.
    pub fn new(pair: Arc<Pair>, number: u32, generation: u32) -> Link {
        pair.opened();
        Link {
            producer: Held::new(Producer::new(&pair.outgoing(number))),
            consumer: Held::new(Consumer::new(&pair.incoming(number))),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            pair,
            number,
            generation,
            tcp: AtomicU32::new(WELL),
            read_shut: AtomicBool::new(false),
            write_shut: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            told_gone: AtomicBool::new(false),
            told_reset: AtomicBool::new(false),
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

    /// The bytes that are there, and whether the other side waits for the space.
    #[inline]
    fn consume(&self, slot: &Slot, to_fill: &mut [u8], peek: bool) -> Result<(Result<usize, Lie>, bool), Busy> {
        let (out, to) = slot.incoming(self.side());
        let rings = self.pair.incoming(self.number);
        self.consumer.with(|c| {
            let read = c.read(&rings, out, to, to_fill, peek);
            self.read.store(c.total(), Ordering::Relaxed);
            (read, !peek && c.wanted(out))
        })
    }

    /// Reads what is there. With `peek` it stays.
    #[inline]
    pub fn read(&self, to_fill: &mut [u8], peek: bool) -> (Read, Bell) {
        if to_fill.is_empty() {
            return (Read::Bytes(0), None);
        }
        let slot = self.slot();
        let (first, wanted) = match self.consume(slot, to_fill, peek) {
            Ok(consumed) => consumed,
            Err(Busy::Own) => return (Read::Busy, None),
            Err(Busy::Abandoned) => (Err(Lie), false),
        };
        let bell = if wanted { self.pair.tell(self.number, slot) } else { None };
        match first {
            Ok(0) => {}
            Ok(n) => return (Read::Bytes(n), bell),
            Err(Lie) => return (self.break_off(), bell),
        }
        if self.read_shut.load(Ordering::Relaxed) {
            return (Read::End, bell);
        }
        let Some(end) = self.end_of_reading(slot) else { return (Read::Empty, bell) };
        // It may have written between our look and its end.
        match self.consume(slot, to_fill, peek) {
            Ok((Ok(0), _)) if end == Read::Reset => (self.reset(), bell),
            Ok((Ok(0), _)) => (end, bell),
            Ok((Ok(n), false)) => (Read::Bytes(n), bell),
            Ok((Ok(n), true)) => (Read::Bytes(n), self.pair.tell(self.number, slot)),
            Ok((Err(Lie), _)) | Err(_) => (self.break_off(), bell),
        }
    }

    /// The connection cannot be used any more.
    #[cold]
    fn break_off(&self) -> Read {
        self.tcp.store(BROKEN, Ordering::Release);
        self.reset()
    }

    /// What a read says of a reset: once the program was told, it is the end.
    fn reset(&self) -> Read {
        if self.told_reset.load(Ordering::Relaxed) { Read::End } else { Read::Reset }
    }

    /// The program was told that it was reset, or (`told`: false) was not told after all, since bytes come first.
    pub fn set_told_reset(&self, told: bool) {
        self.told_reset.store(told, Ordering::Relaxed);
    }

    /// Whether reading is over once the ring is empty, and how.
    fn end_of_reading(&self, slot: &Slot) -> Option<Read> {
        // First, so that what the other side said before it closed is seen as well.
        let closed = slot.closed(self.side().other());
        // Who has ended what it writes has written all of it, whatever comes after that, as with TCP's FIN.
        if slot.incoming(self.side()).0.is_ended() || closed == Some(Close::Clean) {
            return Some(Read::End);
        }
        match self.tcp.load(Ordering::Acquire) {
            _ if closed.is_some() || !self.ours(slot) => Some(Read::Reset),
            WELL => None,
            // As with TCP: who dies without having read all sends a reset.
            ENDED if self.unread(slot) == 0 => Some(Read::End),
            _ => Some(Read::Reset),
        }
    }

    /// Bytes written that the other side has not read.
    fn unread(&self, slot: &Slot) -> u64 {
        self.written.load(Ordering::Relaxed).saturating_sub(slot.outgoing(self.side()).1.read())
    }

    /// Writes what fits.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> (Written, Bell) {
        let slot = self.slot();
        if self.unwritable(slot) {
            return (self.refusal(slot, bytes.len()), None);
        }
        if bytes.is_empty() {
            return (Written::Bytes(0), None);
        }
        let (out, to) = slot.outgoing(self.side());
        let written = self.producer.with(|p| {
            // Another thread may have ended it since we looked: nothing comes after the end.
            if self.write_shut.load(Ordering::Relaxed) || self.closed.load(Ordering::Relaxed) {
                return Ok(0);
            }
            let written = p.write(&self.pair.outgoing(self.number), out, to, bytes);
            self.written.store(p.total(), Ordering::Relaxed);
            written
        });
        match written {
            Ok(Ok(0)) if self.unwritable(slot) => (self.refusal(slot, bytes.len()), None),
            Ok(Ok(0)) => (Written::Full, None),
            Ok(Ok(n)) => (Written::Bytes(n), self.pair.tell(self.number, slot)),
            Err(Busy::Own) => (Written::Busy, None),
            Ok(Err(Lie)) | Err(Busy::Abandoned) => {
                let reset = self.break_off() == Read::Reset;
                (if reset { Written::Reset } else { Written::Gone }, None)
            }
        }
    }

    /// What a write comes to that nobody will read.
    #[cold]
    fn refusal(&self, slot: &Slot, bytes: usize) -> Written {
        if self.closed.load(Ordering::Relaxed) || self.write_shut.load(Ordering::Relaxed) {
            return Written::Gone;
        }
        if self.end_of_reading(slot) == Some(Read::Reset) && self.reset() == Read::Reset {
            return Written::Reset;
        }
        // As with TCP: the first write after the other side has closed finds that out, and the next one is told.
        let aborted = slot.closed(self.side().other()) == Some(Close::Abort);
        let clean = self.ours(slot) && !self.tcp_is_over(slot) && !aborted;
        if clean && !self.told_gone.swap(true, Ordering::Relaxed) { Written::Bytes(bytes) } else { Written::Gone }
    }

    /// The other process is gone without a word. After a half-close, which says so here first, it is not.
    #[inline]
    fn tcp_is_over(&self, slot: &Slot) -> bool {
        match self.tcp.load(Ordering::Relaxed) {
            WELL => false,
            ENDED => !slot.incoming(self.side()).0.is_ended(),
            _ => true,
        }
    }

    #[inline]
    fn unwritable(&self, slot: &Slot) -> bool {
        self.write_shut.load(Ordering::Relaxed)
            || self.closed.load(Ordering::Relaxed)
            || self.tcp_is_over(slot)
            || slot.closed(self.side().other()).is_some()
            || !self.ours(slot)
            || slot.outgoing(self.side()).1.is_left()
    }

    /// Whether a read would not say [`Read::Empty`].
    #[inline]
    pub fn readable(&self) -> bool {
        let head = self.slot().incoming(self.side()).0.written();
        head != self.read.load(Ordering::Relaxed) || self.ended()
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

    /// Whether the connection broke, and the program has yet to be told.
    pub fn broken(&self) -> bool {
        let told = self.told_reset.load(Ordering::Relaxed) || self.closed.load(Ordering::Relaxed);
        !told && self.end_of_reading(self.slot()) == Some(Read::Reset)
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
        let writable = self.producer.with(|p| {
            p.writable(&rings, to).unwrap_or(true) || {
                p.wait(out);
                p.writable(&rings, to).unwrap_or(true)
            }
        });
        writable.unwrap_or(true)
    }

    /// Bytes that wait to be read.
    pub fn waiting(&self) -> u64 {
        self.slot().incoming(self.side()).0.written().saturating_sub(self.read.load(Ordering::Relaxed))
    }

    /// Bytes that have come since the beginning, and bytes that the other side has taken, as it says.
    pub fn moved(&self) -> (u64, u64) {
        let slot = self.slot();
        (slot.incoming(self.side()).0.written(), slot.outgoing(self.side()).1.read())
    }

    /// Bytes read and written since the beginning.
    pub fn totals(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed))
    }

    /// When the other side first told of what our waiter had not taken notice of, in ticks of [`crate::stamp`], as it
    /// says; 0 when it does not say.
    #[inline]
    pub fn told_at(&self) -> u64 {
        self.slot().incoming(self.side()).0.told_at()
    }

    /// Nothing more will be written.
    pub fn shut_write(&self) -> Bell {
        if self.write_shut.swap(true, Ordering::AcqRel) {
            return None;
        }
        let slot = self.slot();
        self.after_writes(|| slot.outgoing(self.side()).0.end());
        self.pair.tell(self.number, slot)
    }

    /// Says that nothing more is written when another thread's copy is finished, whose bytes come before the end. A
    /// copy that this thread has interrupted cannot be waited for.
    fn after_writes(&self, say: impl Fn()) {
        if self.producer.with(|_| say()).is_err() {
            say();
        }
    }

    /// Whether a write is turned away since one of this thread is not finished, or was left.
    pub fn is_busy(&self) -> bool {
        self.producer.lock().is_err()
    }

    /// Nothing more will be read.
    pub fn shut_read(&self) {
        self.read_shut.store(true, Ordering::Release);
    }

    /// Whether we said so.
    pub fn is_read_shut(&self) -> bool {
        self.read_shut.load(Ordering::Relaxed)
    }

    /// The TCP connection ended, without (`reset`: or with) an error: the other process is gone if it has not said so
    /// here.
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

    /// The end of it on this side. With something unread it is an abort, as with TCP: decided here, where what came
    /// before the close and what came after it can be told apart.
    pub fn close(&self, how: Close) -> Bell {
        if self.closed.swap(true, Ordering::AcqRel) {
            return None;
        }
        self.pair.closed();
        let slot = self.slot();
        if !self.ours(slot) {
            return None;
        }
        let how = if self.waiting() > 0 { Close::Abort } else { how };
        slot.incoming(self.side()).1.leave();
        self.after_writes(|| {
            if how == Close::Clean {
                slot.outgoing(self.side()).0.end();
            }
            slot.close(self.side(), how);
        });
        let bell = self.pair.tell(self.number, slot);
        // A write of this thread that a signal handler closes is finished when the handler is: into rings that nobody
        // else may have by then, so they and the slot are never used again.
        if let Ok(held) = self.producer.with(|p| p.held()) {
            self.pair.retire(self.number, self.generation, held);
        }
        bell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::OFFERED;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::time::Duration;

    fn link() -> (Link, Link) {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()) }, 0);
        // SAFETY: just opened, ours.
        let [a, b] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let (client, memory) = Pair::create(a, (1, 2)).unwrap();
        let server = Pair::of_client(b, (3, 4), &memory).unwrap();
        let (slot, generation) = client.take_slot().unwrap();
        assert!(server.slot(slot).unwrap().advance(generation, OFFERED, TAKEN));
        (Link::new(Arc::new(client), slot, generation), Link::new(Arc::new(server), slot, generation))
    }

    #[test]
    fn an_end_waits_for_another_threads_write_and_not_for_one_that_it_has_interrupted() {
        let ends: [fn(&Link) -> Bell; 2] = [Link::shut_write, |link: &Link| link.close(Close::Clean)];
        for end in ends {
            let (c, s) = link();
            let ended = || s.end_of_reading(s.slot()).is_some();
            std::thread::scope(|scope| {
                let write = c.producer.lock();
                scope.spawn(|| end(&c));
                while !c.write_shut.load(Ordering::Relaxed) && !c.closed.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(20));
                assert!(!ended(), "the bytes of the write are not there yet");
                drop(write);
            });
            assert!(ended());
            assert_eq!(c.write(b"late").0, Written::Gone);

            let (c, s) = link();
            let write = c.producer.lock();
            end(&c);
            assert!(s.end_of_reading(s.slot()).is_some(), "at once");
            drop(write);
        }
    }
}
