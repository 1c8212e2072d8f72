//! One direction of a connection: bytes from one producer to one consumer through a ring of shared memory.
//!
//! Positions are counted from the beginning of the connection and never wrap; a ring of `2^n` bytes keeps position `p`
//! at `p & (2^n - 1)`. Each side works from its own private copies: what stands in shared memory is written by a peer
//! who may lie, so every word of the peer is read once, compared with what is possible, and a lie ends this connection
//! only.
//!
//! A direction begins in a small ring, which keeps thousands of connections in the processor's cache. A producer that
//! finds it full takes a larger one from its own half of the memory: it writes down the position at which the new ring
//! begins (`next_at`) and which it is (`next`); the consumer empties the old ring up to there and goes on in the new
//! one. There is one change under way at a time.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of the smallest ring, which every direction has of its own.
pub const SMALL: usize = 8 << 10;
/// Bytes of the larger ones, and how many each side may have of them.
pub const LARGER: [(usize, usize); 2] = [(128 << 10, 1024), (2 << 20, 128)];

/// What the producer writes and the consumer reads.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Out {
    /// Bytes written since the beginning.
    head: AtomicU64,
    /// Number of changes of the ring in the upper half, the ring in the lower.
    next: AtomicU64,
    /// Position at which that ring begins.
    next_at: AtomicU64,
    /// The producer waits for space.
    waits: AtomicU32,
    /// The producer will write no more.
    ended: AtomicU32,
    /// When its side last told of something, in ticks of [`crate::stamp`]; 0 before it did.
    told_at: AtomicU64,
}

/// What the consumer writes and the producer reads.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct In {
    /// Bytes read since the beginning.
    tail: AtomicU64,
    /// Changes of the ring it has followed.
    followed: AtomicU32,
    /// The consumer will read no more.
    gone: AtomicU32,
}

/// The peer wrote what cannot be: the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lie;

/// Which ring: 0 is the small one, others are `class << 16 | number`, with classes from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Which(pub u32);

impl Which {
    /// The ring every direction has.
    pub const SMALL: Which = Which(0);

    /// One of the larger rings.
    pub fn larger(class: usize, number: usize) -> Which {
        Which(((class as u32 + 1) << 16) | number as u32)
    }

    /// Class and number of a larger ring; `None` for the small one, and for what does not exist.
    pub fn parts(self) -> Option<(usize, usize)> {
        let (class, number) = ((self.0 >> 16) as usize, (self.0 & 0xffff) as usize);
        let class = class.checked_sub(1)?;
        LARGER.get(class).filter(|(_, count)| number < *count).map(|_| (class, number))
    }

    /// Its bytes; `None` for what does not exist.
    pub fn size(self) -> Option<usize> {
        if self == Which::SMALL {
            return Some(SMALL);
        }
        self.parts().map(|(class, _)| LARGER[class].0)
    }
}

/// Where rings are: the memory of one pair of processes, seen for one direction.
pub trait Rings {
    /// The first byte of a ring that [`Which::size`] knows.
    fn at(&self, which: Which) -> *mut u8;
    /// A larger ring of a class nobody uses, for the producer.
    fn take(&self, class: usize) -> Option<Which>;
    /// Whether [`Rings::take`] would have one.
    fn has(&self, class: usize) -> bool;
    /// It is not used any more.
    fn give(&self, which: Which);
}

/// The producer's end.
#[derive(Debug)]
pub struct Producer {
    head: u64,
    tail: u64,
    ring: *mut u8,
    size: usize,
    /// Where the current ring begins.
    from: u64,
    which: Which,
    /// The ring before, until the consumer has left it.
    before: Option<Which>,
    changes: u32,
    /// Of a larger ring: the most bytes it held after a write, since it was last judged to be too large or not.
    fullest: usize,
    /// Writes into larger rings.
    looked_at: u64,
    /// Its rings are somebody else's soon.
    closed: bool,
}

// SAFETY: the pointer is into a mapping that outlives the session, and one thread at a time holds the producer.
unsafe impl Send for Producer {}

impl Producer {
    /// At the beginning of a connection.
    pub fn new(rings: &impl Rings) -> Producer {
        Producer {
            head: 0,
            tail: 0,
            ring: rings.at(Which::SMALL),
            size: SMALL,
            from: 0,
            which: Which::SMALL,
            before: None,
            changes: 0,
            fullest: 0,
            looked_at: 0,
            closed: false,
        }
    }

    /// Bytes that fit now. Reads the peer's position when what is known does not do for `wanted`.
    #[inline]
    fn space(&mut self, to: &In, wanted: usize) -> Result<usize, Lie> {
        let known = self.size - (self.head - self.tail.max(self.from)) as usize;
        if known >= wanted {
            return Ok(known);
        }
        let tail = to.tail.load(Ordering::Acquire);
        if tail < self.tail || tail > self.head {
            return Err(Lie);
        }
        self.tail = tail;
        Ok(self.size - (self.head - tail.max(self.from)) as usize)
    }

    /// Writes what fits, growing when it must, and returns how much that was. 0 is "not now".
    #[inline]
    pub fn write(&mut self, rings: &impl Rings, out: &Out, to: &In, bytes: &[u8]) -> Result<usize, Lie> {
        if self.closed {
            return Ok(0);
        }
        let mut space = self.space(to, bytes.len())?;
        if space < bytes.len() {
            if self.grow(rings, out, to, bytes.len())? {
                space = self.size;
            }
        } else if self.which != Which::SMALL {
            self.shrink(rings, out, to)?;
            space = self.space(to, bytes.len())?;
        }
        let n = space.min(bytes.len());
        if n == 0 {
            return Ok(0);
        }
        let at = (self.head as usize) & (self.size - 1);
        let first = n.min(self.size - at);
        // SAFETY: `at + first <= size` and `n - first <= at`: both copies stay in the ring of `size` bytes that `ring`
        // points to, and the consumer does not look at these bytes before `head` says so.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ring.add(at), first);
            if first < n {
                std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), self.ring, n - first);
            }
        }
        self.head += n as u64;
        out.head.store(self.head, Ordering::Release);
        if self.which != Which::SMALL {
            // What is known of the consumer may be old, and counts what it has long read. Where that matters it is
            // looked up again, at most once for every SMALL / 2 bytes.
            let free = self.space(to, self.size - SMALL / 2)?;
            self.fullest = self.fullest.max(self.size - free);
        }
        Ok(n)
    }

    /// To a larger ring, if there is one, for so many bytes.
    #[cold]
    fn grow(&mut self, rings: &impl Rings, out: &Out, to: &In, bytes: usize) -> Result<bool, Lie> {
        if !self.settled(rings, to)? {
            return Ok(false);
        }
        let own = self.which.parts().map_or(0, |(class, _)| class + 1);
        let fits = LARGER.iter().position(|(size, _)| *size >= bytes).unwrap_or(LARGER.len() - 1);
        let wanted = fits.max(own);
        let wanted = wanted.min(LARGER.len() - 1);
        let order = (own..=wanted).rev().chain(wanted + 1..LARGER.len());
        let Some(which) = order.into_iter().find_map(|class| rings.take(class)) else {
            return Ok(false);
        };
        self.change(rings, out, which);
        Ok(true)
    }

    /// Back to the small ring, when for a thousand writes a small one would have done.
    #[cold]
    fn shrink(&mut self, rings: &impl Rings, out: &Out, to: &In) -> Result<(), Lie> {
        self.looked_at += 1;
        if !self.looked_at.is_multiple_of(1024) {
            return Ok(());
        }
        let fullest = std::mem::take(&mut self.fullest);
        if fullest <= SMALL / 2 && self.settled(rings, to)? {
            self.change(rings, out, Which::SMALL);
        }
        Ok(())
    }

    fn change(&mut self, rings: &impl Rings, out: &Out, which: Which) {
        self.before = Some(self.which);
        self.changes = self.changes.wrapping_add(1);
        (self.which, self.from) = (which, self.head);
        (self.ring, self.size) = (rings.at(which), which.size().expect("our own ring exists"));
        out.next_at.store(self.head, Ordering::Relaxed);
        out.next.store((u64::from(self.changes) << 32) | u64::from(which.0), Ordering::Release);
    }

    /// Whether the last change is over; the ring before is given back then.
    fn settled(&mut self, rings: &impl Rings, to: &In) -> Result<bool, Lie> {
        if self.before.is_none() {
            return Ok(true);
        }
        if to.followed.load(Ordering::Acquire) != self.changes {
            return Ok(false);
        }
        if let Some(before) = self.before.take() {
            rings.give(before);
        }
        Ok(true)
    }

    /// Whether a write would take something, by the kernel's own measure: a third of the ring is free.
    pub fn writable(&mut self, rings: &impl Rings, to: &In) -> Result<bool, Lie> {
        let space = self.space(to, self.size / 3)?;
        // Beyond a full ring there is a larger one.
        Ok(space >= self.size / 3 || self.settled(rings, to)? && self.may_grow(rings))
    }

    fn may_grow(&self, rings: &impl Rings) -> bool {
        let own = self.which.parts().map_or(0, |(class, _)| class + 1);
        !self.closed && (own..LARGER.len()).any(|class| rings.has(class))
    }

    /// Says that it waits for space; look at [`Producer::writable`] once more before sleeping.
    pub fn wait(&self, out: &Out) {
        out.waits.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The larger rings it holds, which may be given back once the consumer has left, too. It writes nothing any more.
    pub fn held(&mut self) -> [Option<Which>; 2] {
        self.closed = true;
        [self.before.take(), Some(self.which)].map(|which| which.filter(|w| *w != Which::SMALL))
    }

    /// Bytes written since the beginning.
    pub fn total(&self) -> u64 {
        self.head
    }
}

/// The consumer's end.
#[derive(Debug)]
pub struct Consumer {
    tail: u64,
    ring: *const u8,
    size: usize,
    /// Where the current ring begins.
    from: u64,
    changes: u32,
}

// SAFETY: as for `Producer`.
unsafe impl Send for Consumer {}

impl Consumer {
    /// At the beginning of a connection.
    pub fn new(rings: &impl Rings) -> Consumer {
        Consumer { tail: 0, ring: rings.at(Which::SMALL), size: SMALL, from: 0, changes: 0 }
    }

    /// Bytes that can be read from the current ring, after following a change of it where that is due.
    #[inline]
    fn readable(&mut self, rings: &impl Rings, from: &Out, to: &In) -> Result<usize, Lie> {
        let head = from.head.load(Ordering::Acquire);
        let next = from.next.load(Ordering::Acquire);
        let mut limit = head;
        if (next >> 32) as u32 != self.changes {
            let at = from.next_at.load(Ordering::Relaxed);
            if (next >> 32) as u32 != self.changes.wrapping_add(1) || at < self.tail {
                return Err(Lie);
            }
            if at == self.tail {
                let which = Which(next as u32);
                self.size = which.size().ok_or(Lie)?;
                self.ring = rings.at(which);
                self.changes = self.changes.wrapping_add(1);
                self.from = at;
                to.followed.store(self.changes, Ordering::Release);
            } else {
                limit = limit.min(at);
            }
        }
        let n = limit.checked_sub(self.tail).ok_or(Lie)?;
        if n > self.size as u64 {
            return Err(Lie);
        }
        Ok(n as usize)
    }

    /// Copies what is there, up to `to_fill.len()`; 0 is "nothing now". With `peek` it stays.
    #[inline]
    pub fn read(
        &mut self,
        rings: &impl Rings,
        from: &Out,
        to: &In,
        to_fill: &mut [u8],
        peek: bool,
    ) -> Result<usize, Lie> {
        let mut done = 0;
        loop {
            let n = self.readable(rings, from, to)?.min(to_fill.len() - done);
            if n == 0 {
                return Ok(done);
            }
            let at = (self.tail as usize) & (self.size - 1);
            let first = n.min(self.size - at);
            // SAFETY: `n <= size` and `at < size`, so both copies stay in the ring; the destination has `n` bytes left.
            // The producer may be a liar and change these bytes meanwhile: they are only copied.
            unsafe {
                let to = to_fill.as_mut_ptr().add(done);
                std::ptr::copy_nonoverlapping(self.ring.add(at), to, first);
                if first < n {
                    std::ptr::copy_nonoverlapping(self.ring, to.add(first), n - first);
                }
            }
            done += n;
            if peek {
                return Ok(done);
            }
            self.tail += n as u64;
            // One locked store: it is also the fence between our position and the producer's wish for space.
            to.tail.swap(self.tail, Ordering::SeqCst);
            #[cfg(loom)] // which takes SeqCst accesses for acquire and release
            fence(Ordering::SeqCst);
            if done == to_fill.len() {
                return Ok(done);
            }
            // A change of the ring may have more.
            if from.next.load(Ordering::Acquire) >> 32 == u64::from(self.changes) {
                return Ok(done);
            }
        }
    }

    /// Whether the producer waits for space that there now is enough of; it is told once.
    #[inline]
    pub fn wanted(&self, from: &Out) -> bool {
        if from.waits.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let left = from.head.load(Ordering::Acquire).saturating_sub(self.tail);
        left <= self.size as u64 / 2 && from.waits.swap(0, Ordering::SeqCst) != 0
    }

    /// Bytes read since the beginning.
    pub fn total(&self) -> u64 {
        self.tail
    }
}

/// Makes a direction as at the beginning. Nobody else may be using it.
pub fn reset(out: &Out, to: &In) {
    for word in [&out.head, &out.next, &out.next_at, &out.told_at, &to.tail] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&out.waits, &out.ended, &to.followed, &to.gone] {
        word.store(0, Ordering::Relaxed);
    }
}

// What can be asked and said without the lock that a copy is made under.

impl Out {
    /// Bytes written since the beginning, as the producer says.
    #[inline]
    pub fn written(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// The producer will write no more.
    pub fn end(&self) {
        self.ended.store(1, Ordering::SeqCst);
    }

    /// Whether it said so. Look for bytes once more after this.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) != 0
    }

    /// The producer's side is about to tell of something. In the line that it has just written to, so that it costs no
    /// other.
    #[inline]
    pub fn tell_at(&self, stamp: u64) {
        self.told_at.store(stamp, Ordering::Relaxed);
    }

    /// When it last did so.
    #[inline]
    pub fn told_at(&self) -> u64 {
        self.told_at.load(Ordering::Relaxed)
    }
}

impl In {
    /// Bytes read since the beginning, as the consumer says.
    #[inline]
    pub fn read(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// The consumer will read no more.
    pub fn leave(&self) {
        self.gone.store(1, Ordering::SeqCst);
    }

    /// Whether the consumer has left.
    #[inline]
    pub fn is_left(&self) -> bool {
        self.gone.load(Ordering::Acquire) != 0
    }
}
