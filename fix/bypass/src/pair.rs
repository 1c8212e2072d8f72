//! The memory between one client process and one server process: slots for connections, their rings, and the bits that
//! say which connection has news.
//!
//! ```text
//!   tally | bits of the client's waiters | of the server's | slots | small rings | larger rings, half for each side
//! ```
//!
//! The client makes it and pays for it; pages cost nothing before they are used. No other client can see it, so what
//! one writes there can hurt its own connections only.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32};

use crate::board::{Board, WAITERS};
use crate::memory::Memory;
use crate::ring::{In, LARGER, Out, Rings, SMALL, Which, reset};
use crate::stamp;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Connections a pair of processes may have over it.
pub const SLOTS: usize = if cfg!(loom) { 64 } else { 16 << 10 };

const WORDS: usize = SLOTS / 64;
const SUMMARIES: usize = WORDS.div_ceil(64);
/// Summaries in a line of their own, then the words.
const BITS: usize = 64 + WORDS * 8;
const BITS_AT: usize = 4096;
const SLOTS_AT: usize = (BITS_AT + 2 * WAITERS * BITS).next_multiple_of(4096);
const SMALL_AT: usize = (SLOTS_AT + SLOTS * size_of::<Slot>()).next_multiple_of(4096);
const LARGER_AT: usize = SMALL_AT + SLOTS * 2 * SMALL;

const fn larger_of_a_side() -> usize {
    LARGER[0].0 * LARGER[0].1 + LARGER[1].0 * LARGER[1].1
}

/// Bytes of address space; memory is used as connections use it.
pub const SIZE: usize = LARGER_AT + 2 * larger_of_a_side();

/// Which end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that connects.
    Client = 0,
    /// The one that accepts.
    Server = 1,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        if self == Side::Client { Side::Server } else { Side::Client }
    }
}

/// The slot is not in use.
pub const FREE: u32 = 0;
/// The client offers to have its connection carried here.
pub const OFFERED: u32 = 1;
/// The server took it: from now on the bytes go here.
pub const TAKEN: u32 = 2;
/// It stays with TCP: the client waited long enough, or the server refused.
pub const DECLINED: u32 = 3;
/// The server has accepted a connection with the offer's addresses and is waiting for it: the client may show its
/// socket now.
pub const ASKED: u32 = 4;

/// How a side leaves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// It has said all it had to say, as with a FIN.
    Clean = 1,
    /// It gives the connection up, as with a RST: what it wrote may be a part of what it meant to write.
    Abort = 2,
}

/// A connection's words in shared memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// In the lower half FREE, OFFERED, ASKED, TAKEN or DECLINED; above it how often the slot was used, so that an old
    /// offer is not taken for a new one.
    phase: AtomicU64,
    /// Whom to tell, by side.
    waiter: [AtomicU32; 2],
    /// How the side has closed it, as [`Close`]; 0 before.
    closed: [AtomicU32; 2],
    /// From client to server, then from server to client.
    directions: [(Out, In); 2],
}

impl Slot {
    /// FREE, OFFERED, ASKED, TAKEN or DECLINED, if it still is that connection; DECLINED otherwise.
    #[inline]
    pub fn state(&self, generation: u32) -> u32 {
        let phase = self.phase.load(Ordering::Acquire);
        if (phase >> 32) as u32 == generation { phase as u32 } else { DECLINED }
    }

    /// From one state to the next; false when it was another, or another connection.
    pub fn advance(&self, generation: u32, from: u32, to: u32) -> bool {
        let phase = |state: u32| (u64::from(generation) << 32) | u64::from(state);
        self.phase.compare_exchange(phase(from), phase(to), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends an offer that was not taken, by either side; false when it was taken, or had ended before.
    pub fn decline(&self, generation: u32) -> bool {
        // In the order in which an offer advances: it cannot slip past.
        [OFFERED, ASKED].into_iter().any(|from| self.advance(generation, from, DECLINED))
    }

    /// What a side writes to, and the other side's position in it.
    #[inline]
    pub fn outgoing(&self, side: Side) -> (&Out, &In) {
        let (out, to) = &self.directions[side as usize];
        (out, to)
    }

    /// What a side reads from.
    #[inline]
    pub fn incoming(&self, side: Side) -> (&Out, &In) {
        self.outgoing(side.other())
    }

    /// Names the waiter of a side.
    #[inline]
    pub fn set_waiter(&self, side: Side, waiter: u32) {
        if self.waiter[side as usize].load(Ordering::Relaxed) != waiter {
            self.waiter[side as usize].store(waiter, Ordering::SeqCst);
        }
    }

    /// The side has closed its end.
    pub fn close(&self, side: Side, how: Close) {
        self.closed[side as usize].store(how as u32, Ordering::SeqCst);
    }

    /// Whether it has, and how.
    #[inline]
    pub fn closed(&self, side: Side) -> Option<Close> {
        match self.closed[side as usize].load(Ordering::Acquire) {
            0 => None,
            how if how == Close::Clean as u32 => Some(Close::Clean),
            _ => Some(Close::Abort),
        }
    }
}

/// What a stack counts of a server's connections, for whoever asks the server: in the first page, where only the stack
/// writes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Tally {
    /// Not 0 once it is written.
    is_shown: AtomicU64,
    numbers: [AtomicU64; TALLIED],
}

/// Numbers of a tally.
pub const TALLIED: usize = 6;

impl Tally {
    /// These are the numbers now.
    pub fn show(&self, numbers: [u64; TALLIED]) {
        self.numbers.iter().zip(numbers).for_each(|(shown, number)| shown.store(number, Ordering::Relaxed));
        self.is_shown.store(1, Ordering::Relaxed);
    }

    /// As they were shown last; each for itself. `None` of a stack that shows none.
    pub fn numbers(&self) -> Option<[u64; TALLIED]> {
        let numbers = std::array::from_fn(|at| self.numbers[at].load(Ordering::Relaxed));
        (self.is_shown.load(Ordering::Relaxed) != 0).then_some(numbers)
    }
}

/// One end of the memory between two processes.
#[derive(Debug)]
pub struct Pair {
    memory: Memory,
    /// Which end we are.
    pub side: Side,
    /// The unix socket to the other end.
    pub channel: OwnedFd,
    /// Process and user at the other end, as the kernel says.
    pub peer: (i32, u32),
    board: std::sync::OnceLock<Board>,
    doorbells: Box<[AtomicI32]>,
    told: Box<[AtomicU32]>,
    /// The waiter of theirs we last had something for.
    hint: AtomicU32,
    /// The other end is gone.
    pub dead: AtomicBool,
    /// Open connections of this side.
    open: AtomicU32,
    /// Our half of the larger rings, by class: those that nobody uses.
    larger: [Free; 2],
    spare: Mutex<Spare>,
}

/// A client's slots that nobody uses.
#[derive(Debug)]
struct Spare {
    slots: Vec<u16>,
    slots_used: usize,
    /// Closed by us, perhaps not by them yet, who may still read what we wrote.
    closing: VecDeque<Closing>,
}

#[derive(Debug)]
struct Closing {
    slot: u32,
    generation: u32,
    larger: [Option<Which>; 2],
}

impl Pair {
    fn new(memory: Memory, side: Side, channel: OwnedFd, peer: (i32, u32)) -> Pair {
        Pair {
            memory,
            side,
            channel,
            peer,
            board: std::sync::OnceLock::new(),
            doorbells: (0..WAITERS).map(|_| AtomicI32::new(-1)).collect(),
            told: (0..WAITERS).map(|_| AtomicU32::new(0)).collect(),
            hint: AtomicU32::new(u32::MAX),
            dead: AtomicBool::new(false),
            open: AtomicU32::new(0),
            larger: LARGER.map(|(_, count)| Free::all(count)),
            spare: Mutex::new(Spare { slots: Vec::new(), slots_used: 0, closing: VecDeque::new() }),
        }
    }

    /// A client's new memory for one server, and the descriptor to give to it.
    pub fn create(channel: OwnedFd, peer: (i32, u32)) -> io::Result<(Pair, OwnedFd)> {
        let (memory, fd) = Memory::create(c"unslow-bypass-rings", SIZE, false)?;
        Ok((Pair::new(memory.prefer_huge_pages(), Side::Client, channel, peer), fd))
    }

    /// A server's view of what a client gave.
    pub fn of_client(channel: OwnedFd, peer: (i32, u32), fd: &OwnedFd) -> io::Result<Pair> {
        let memory = Memory::of_peer(fd, SIZE, true)?;
        Ok(Pair::new(memory.prefer_huge_pages(), Side::Server, channel, peer))
    }

    /// The page the other end shows us.
    pub fn set_board(&self, board: Board) {
        let _ = self.board.set(board);
    }

    /// What the client's side counts, if it is a stack.
    pub fn tally(&self) -> &Tally {
        const { assert!(size_of::<Tally>() <= BITS_AT) };
        // SAFETY: inside the mapping, which begins with a page that nothing else uses; aligned, all of it atomics.
        unsafe { &*self.memory.base().cast::<Tally>() }
    }

    /// A slot by number; `None` for one that cannot be.
    #[inline]
    pub fn slot(&self, number: u32) -> Option<&Slot> {
        if number as usize >= SLOTS {
            return None;
        }
        // SAFETY: inside the mapping, aligned, all of it atomics.
        Some(unsafe { &*self.memory.base().add(SLOTS_AT + number as usize * size_of::<Slot>()).cast::<Slot>() })
    }

    /// The larger and small rings for what this side writes in a slot.
    pub fn outgoing(&self, slot: u32) -> Place<'_> {
        Place { pair: self, slot, side: self.side }
    }

    /// The same for what it reads.
    pub fn incoming(&self, slot: u32) -> Place<'_> {
        Place { pair: self, slot, side: self.side.other() }
    }

    /// A slot for a new connection, reset and offered, and its generation; `None` when all are used.
    pub fn take_slot(&self) -> Option<(u32, u32)> {
        self.reap();
        let mut spare = self.spare.lock().ok()?;
        let number = match spare.slots.pop() {
            Some(number) => number,
            None if spare.slots_used < SLOTS => {
                spare.slots_used += 1;
                (spare.slots_used - 1) as u16
            }
            None => return None,
        };
        drop(spare);
        let slot = self.slot(u32::from(number))?;
        for (out, to) in &slot.directions {
            reset(out, to);
        }
        slot.closed.iter().chain(&slot.waiter).for_each(|word| word.store(0, Ordering::Relaxed));
        let generation = ((slot.phase.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1);
        slot.phase.store((u64::from(generation) << 32) | u64::from(OFFERED), Ordering::Release);
        Some((u32::from(number), generation))
    }

    /// We are done with a slot and the rings we wrote to; they are used again once the other side is done as well.
    pub fn retire(&self, slot: u32, generation: u32, larger: [Option<Which>; 2]) {
        if let Ok(mut spare) = self.spare.lock() {
            spare.closing.push_back(Closing { slot, generation, larger });
        }
        self.reap();
    }

    /// Takes back what the other side is done with.
    fn reap(&self) {
        let Ok(mut spare) = self.spare.lock() else { return };
        // A few at a time, in turn: thousands may wait for a slow peer.
        for _ in 0..spare.closing.len().min(8) {
            let Some(one) = spare.closing.pop_front() else { return };
            let Some(slot) = self.slot(one.slot) else { continue };
            let done = slot.state(one.generation) != TAKEN
                || slot.closed(self.side.other()).is_some()
                || self.dead.load(std::sync::atomic::Ordering::Relaxed);
            if !done {
                spare.closing.push_back(one);
                continue;
            }
            for (class, number) in one.larger.into_iter().flatten().filter_map(Which::parts) {
                let at = larger_at(self.side, class, number);
                self.memory.release(at, LARGER[class].0);
                self.larger[class].give(number);
            }
            if self.side == Side::Client {
                self.memory.release(SMALL_AT + one.slot as usize * 2 * SMALL, 2 * SMALL);
                spare.slots.push(one.slot as u16);
            }
        }
    }

    /// One open connection more.
    pub(crate) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// One less.
    pub(crate) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn bits(&self, side: Side, waiter: u32) -> &Bits {
        debug_assert!((waiter as usize) < WAITERS);
        let at = BITS_AT + (side as usize * WAITERS + waiter as usize) * BITS;
        // SAFETY: inside the mapping for any waiter below `WAITERS`, aligned, all of it atomics.
        unsafe { &*self.memory.base().add(at).cast::<Bits>() }
    }

    /// Tells the other side that a connection has news: bytes, space, an end. True when its doorbell has to be rung, of
    /// the waiter returned.
    #[inline]
    pub fn tell(&self, number: u32, slot: &Slot) -> Option<u32> {
        let other = self.side.other();
        let mut waiter = slot.waiter[other as usize].load(Ordering::SeqCst);
        let board = self.board.get()?;
        board.word(waiter)?;
        // Bits have no order. What came first matters where there is a second one only. As long as the waiter has not
        // taken the bit it waits from the first news on, and the stamp stays.
        if self.open.load(Ordering::Relaxed) > 1 {
            let out = slot.outgoing(self.side).0;
            if !self.bits(other, waiter).has(number) || out.told_at() == 0 {
                out.tell_at(stamp::now());
            }
        }
        self.bits(other, waiter).set(number);
        // The bit's lock is a full fence: whoever named another waiter before looking at what we wrote is seen now. A
        // peer that does so without end hears of it by the last.
        for _ in 0..8 {
            let named = slot.waiter[other as usize].load(Ordering::SeqCst);
            if named == waiter {
                break;
            }
            board.word(named)?;
            waiter = named;
            self.bits(other, waiter).set(number);
        }
        let word = board.word(waiter)?;
        if self.hint.load(Ordering::Relaxed) != waiter {
            self.hint.store(waiter, Ordering::Relaxed);
        }
        word.asleep().then_some(waiter)
    }

    /// Rings, if it still sleeps.
    pub fn ring(&self, waiter: u32) {
        let asleep = self.board.get().and_then(|b| b.word(waiter)).is_some_and(|w| w.asleep());
        if asleep {
            let fd = self.doorbells.get(waiter as usize).map_or(-1, |fd| fd.load(Ordering::Acquire));
            if fd >= 0 {
                let one = 1u64;
                // SAFETY: eight bytes to a descriptor of ours; a full counter (EAGAIN) has rung already.
                unsafe { libc::syscall(libc::SYS_write, fd, (&raw const one), 8) };
            }
        }
    }

    /// Whether the other side's doorbell of that waiter is known.
    pub fn can_ring(&self, waiter: u32) -> bool {
        self.doorbells.get(waiter as usize).is_some_and(|fd| fd.load(Ordering::Acquire) >= 0)
    }

    /// Their waiter's doorbell.
    pub fn set_doorbell(&self, waiter: u32, fd: OwnedFd) {
        use std::os::fd::IntoRawFd;
        if let Some(place) = self.doorbells.get(waiter as usize) {
            // A waiter's number keeps its doorbell for good: a second one is not taken, so that nobody writes to a
            // descriptor that another thread has just closed.
            let fd = fd.into_raw_fd();
            if place.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Acquire).is_err() {
                drop(owned(fd));
            }
        }
    }

    /// Whether a waiter of ours was told to the other side.
    pub fn told(&self, waiter: u32) -> bool {
        self.told.get(waiter as usize).is_none_or(|told| told.load(Ordering::Acquire) != 0)
    }

    /// It was.
    pub fn set_told(&self, waiter: u32) {
        if let Some(told) = self.told.get(waiter as usize) {
            told.store(1, Ordering::Release);
        }
    }

    /// Whether an answer may come soon: the other side runs, on another processor. For a `probe` it may just be waking
    /// up.
    #[inline]
    pub fn hopeful(&self, processor: u32, probe: bool) -> bool {
        let hint = self.hint.load(Ordering::Relaxed);
        self.board
            .get()
            .and_then(|b| b.word(hint))
            .is_some_and(|w| if probe { w.last_elsewhere(processor) } else { w.elsewhere(processor) })
    }

    /// Whether anything is new for a waiter of ours.
    #[inline]
    pub fn news(&self, waiter: u32) -> bool {
        self.bits(self.side, waiter).any()
    }

    /// News of a connection for a waiter of our own.
    pub fn remind(&self, number: u32, waiter: u32) {
        if (number as usize) < SLOTS && (waiter as usize) < WAITERS {
            self.bits(self.side, waiter).set(number);
        }
    }

    /// Takes the numbers of the connections with news for a waiter.
    #[inline]
    pub fn take_news(&self, waiter: u32, each: impl FnMut(u32)) {
        self.bits(self.side, waiter).take(each);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for doorbell in &self.doorbells {
            drop(owned(doorbell.load(Ordering::Relaxed)));
        }
    }
}

fn owned(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: only descriptors put in by `set_doorbell` are here, each once.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

impl AsRawFd for Pair {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

fn larger_at(side: Side, class: usize, number: usize) -> usize {
    let before = if class == 0 { 0 } else { LARGER[0].0 * LARGER[0].1 };
    LARGER_AT + side as usize * larger_of_a_side() + before + number * LARGER[class].0
}

/// Where the rings of one direction of a connection are.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pair: &'a Pair,
    slot: u32,
    /// Who writes.
    side: Side,
}

impl Rings for Place<'_> {
    fn at(&self, which: Which) -> *mut u8 {
        let at = match which.parts() {
            None => SMALL_AT + (self.slot as usize * 2 + self.side as usize) * SMALL,
            Some((class, number)) => larger_at(self.side, class, number),
        };
        // SAFETY: `parts` knows only rings that exist, `slot` was checked when the connection was made: inside the
        // mapping.
        unsafe { self.pair.memory.base().add(at) }
    }

    fn take(&self, class: usize) -> Option<Which> {
        self.pair.larger[class].take().map(|number| Which::larger(class, number))
    }

    fn has(&self, class: usize) -> bool {
        self.pair.larger[class].any()
    }

    fn give(&self, which: Which) {
        let Some((class, number)) = which.parts() else { return };
        self.pair.memory.release(larger_at(self.side, class, number), LARGER[class].0);
        self.pair.larger[class].give(number);
    }
}

/// Numbers that nobody uses, a bit each. Without a lock: rings are taken and given in the middle of a write, where a
/// signal handler that writes to another connection may want one as well.
#[derive(Debug)]
struct Free(Box<[AtomicU64]>);

impl Free {
    fn all(count: usize) -> Free {
        assert!(count.is_multiple_of(64));
        Free((0..count / 64).map(|_| AtomicU64::new(u64::MAX)).collect())
    }

    fn take(&self) -> Option<usize> {
        self.0.iter().enumerate().find_map(|(i, word)| {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                match word.compare_exchange_weak(bits, bits & (bits - 1), Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Some(i * 64 + bits.trailing_zeros() as usize),
                    Err(now) => bits = now,
                }
            }
            None
        })
    }

    fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    fn give(&self, number: usize) {
        self.0[number / 64].fetch_or(1 << (number % 64), Ordering::Release);
    }
}

/// Which connections have news for one waiter: a bit each, and above them a bit for each word.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Bits {
    summaries: [AtomicU64; 8],
    words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bits>() == BITS && SUMMARIES <= 8 && SIZE < 2 << 30);

impl Default for Bits {
    fn default() -> Bits {
        let none = |_| AtomicU64::new(0);
        Bits { summaries: std::array::from_fn(none), words: std::array::from_fn(none) }
    }
}

impl Bits {
    /// A full fence is in it: what was written before is visible before whatever is read after.
    #[inline]
    pub fn set(&self, number: u32) {
        let (word, bit) = (number as usize / 64, 1u64 << (number % 64));
        let (summary, of_word) = (&self.summaries[word / 64], 1u64 << (word % 64));
        let was_set = self.words[word].fetch_or(bit, Ordering::SeqCst) & bit != 0;
        // A signal handler may have jumped out (longjmp) between the two steps: a bit that is set, but never looked at.
        if !was_set || summary.load(Ordering::Relaxed) & of_word == 0 {
            summary.fetch_or(of_word, Ordering::SeqCst);
        }
        #[cfg(loom)] // which takes SeqCst accesses for acquire and release
        crate::sync::fence(Ordering::SeqCst);
    }

    /// Whether this one is set.
    #[inline]
    fn has(&self, number: u32) -> bool {
        self.words[number as usize / 64].load(Ordering::Relaxed) & 1 << (number % 64) != 0
    }

    /// Whether there may be any.
    #[inline]
    pub fn any(&self) -> bool {
        self.summaries[..SUMMARIES].iter().any(|s| s.load(Ordering::Acquire) != 0)
    }

    /// Takes them.
    #[inline]
    pub fn take(&self, mut each: impl FnMut(u32)) {
        for (s, summary) in self.summaries[..SUMMARIES].iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut words = summary.swap(0, Ordering::SeqCst);
            while words != 0 {
                let word = s * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.words[word].swap(0, Ordering::SeqCst);
                while bits != 0 {
                    each((word * 64) as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(bits: &Bits) -> Vec<u32> {
        let mut all = Vec::new();
        bits.take(|number| all.push(number));
        all
    }

    #[test]
    fn a_bit_that_was_left_half_set_is_found_when_it_is_set_again() {
        let bits = Bits::default();
        // What a handler that never comes back leaves behind of number 70.
        bits.words[1].fetch_or(1 << 6, Ordering::SeqCst);
        assert!(taken(&bits).is_empty());
        bits.set(70);
        assert_eq!(taken(&bits), [70]);
        bits.set(70);
        bits.set(70);
        assert_eq!((taken(&bits), bits.any()), (vec![70], false));
    }
}
