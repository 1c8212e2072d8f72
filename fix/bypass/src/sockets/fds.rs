//! What we know of the program's descriptors.
//!
//! Entries are never freed, only used again, and not before a second after they were given back: a thread that still
//! looks at one while another closes the descriptor, which is a mistake of the program's that the kernel answers with
//! EBADF, finds memory of the right type.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::endpoint::{Endpoint, Ends};
use crate::life::Life;
pub use crate::life::state;
use crate::link::Link;
use crate::pair::Pair;
use crate::signals::Quiet;

use super::handing;

/// Descriptors from this number on stay with TCP.
pub const MOST: usize = 1 << 16;

static TABLE: [AtomicPtr<Entry>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
/// Behind the highest descriptor that was ever known.
static END: AtomicUsize = AtomicUsize::new(0);

/// A descriptor of the program's that matters to us.
#[expect(clippy::large_enum_variant, reason = "nearly all of them are streams, and a pointer more is on the hot path")]
pub enum Entry {
    /// Takes TCP connections there.
    Listener(Endpoint),
    Stream(Stream),
    Set(SetId),
}

/// The number of an epoll set of the program's, of those that [`super::epoll`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetId(pub NonZeroU32);

/// What is known of a descriptor.
#[inline]
pub fn get(fd: RawFd) -> Option<&'static Entry> {
    let place = TABLE.get(fd as u32 as usize)?;
    let entry = place.load(Ordering::Acquire);
    // SAFETY: only leaked entries are put in.
    unsafe { entry.as_ref() }
}

#[inline]
pub fn stream(fd: RawFd) -> Option<&'static Stream> {
    match get(fd)? {
        Entry::Stream(stream) => Some(stream),
        _ => None,
    }
}

/// The number of an epoll set.
#[inline]
pub fn set(fd: RawFd) -> Option<SetId> {
    match get(fd)? {
        Entry::Set(set) => Some(*set),
        _ => None,
    }
}

/// Puts an entry in; false when the number is too large.
pub fn put(fd: RawFd, entry: Option<&'static Entry>) -> bool {
    let Some(place) = TABLE.get(fd as u32 as usize) else { return false };
    if entry.is_some() {
        END.fetch_max(fd as u32 as usize + 1, Ordering::Relaxed);
    }
    let pointer = entry.map_or(std::ptr::null_mut(), |e| std::ptr::from_ref(e).cast_mut());
    place.store(pointer, Ordering::Release);
    true
}

/// All descriptors known, for `close_range` and the child of a fork.
pub fn known(from: usize, to: usize) -> impl Iterator<Item = (RawFd, &'static Entry)> {
    (from.min(MOST)..to.min(END.load(Ordering::Relaxed))).filter_map(|fd| Some((fd as RawFd, get(fd as RawFd)?)))
}

/// An offer of ours.
#[derive(Clone)]
pub struct Offer {
    pub place: &'static Place,
    pub slot: u32,
    pub generation: u32,
    /// The server asked for the socket, and has it.
    pub shown: bool,
}

/// What a peer says that is attended to in its turn: mostly about a connection in a slot.
pub enum Claim {
    /// It has these addresses and may be carried.
    Offered(Ends),
    /// This is its socket.
    Proven(OwnedFd),
    /// A stack asks for what listens at the port that is in the slot's place; what is in the generation's says whether
    /// it takes over.
    Lend,
    /// A stack has accepted this for us; `None` where there was no descriptor left for it.
    Accepted(Option<OwnedFd>),
    /// To a stack: what it accepts from, if that is what the generation's place says.
    Lent(Option<OwnedFd>),
}

/// A stream in an epoll set. Guarded by that set's lock.
pub struct Registration {
    /// The program has it in the set. Our own entry in the kernel's set stays when the program takes it out: loops that
    /// take a descriptor out and put it in again for each request pay no system call.
    pub wanted: bool,
    /// The name it has there; its other names are in the set's `Seconds`.
    pub fd: RawFd,
    pub events: u32,
    pub data: u64,
    /// In the set's queue of those to be looked at.
    pub queued: bool,
    /// EPOLLONESHOT has fired.
    pub spent: bool,
    /// When its oldest news came that the program has not seen yet, in ticks of [`crate::stamp`]; 0 when that is not
    /// known.
    pub since: u64,
    /// The program was told of it after that.
    pub seen: bool,
}

impl Registration {
    /// Of a stream in no set.
    pub const NONE: Registration =
        Registration { wanted: false, fd: -1, events: 0, data: 0, queued: false, spent: false, since: 0, seen: true };
}

/// A TCP connection of the program's.
pub struct Stream {
    /// Our number of it, for the kernel's events.
    pub index: u32,
    pub fd: AtomicU32,
    /// How it goes, and its link. It rests for [`REST_NS`].
    pub life: Life<Link>,
    pub nonblocking: AtomicBool,
    /// Descriptors that are it.
    pub names: AtomicU32,
    /// The thread that is told of its news; 0 for none, else the number of its waiter plus one.
    pub told: AtomicU32,
    /// Bytes went over TCP, or it was duplicated: it stays there.
    pub fixed: AtomicBool,
    /// A stack has the TCP connection: what the kernel says of it is the stack's business, who reads it first.
    pub of_stack: AtomicBool,
    /// It is, or was, in several epoll sets at once.
    in_several: AtomicBool,
    /// Which connection of this process it is.
    serial: AtomicU64,
    /// Monotonic nanoseconds until which an offer is waited for before it is looked at again.
    pub deadline: AtomicU64,
    /// When it is given up.
    pub gives_up: AtomicU64,
    /// When the kernel was last asked about it by a thread that never sleeps.
    asked_at: AtomicU64,
    pub offers: Mutex<Vec<Offer>>,
    pub registration: UnsafeCell<Registration>,
    /// Of the epoll set it is in; 0 for none.
    set: AtomicU32,
    place: AtomicPtr<Place>,
    /// Addresses of both ends: the client's, the server's.
    pub ends: Mutex<Option<Ends>>,
}

// SAFETY: the registration is guarded by the lock of its epoll set; everything else is atomic or locked.
unsafe impl Sync for Stream {}
// SAFETY: as above.
unsafe impl Send for Stream {}

impl Stream {
    #[inline]
    pub fn state(&self) -> u32 {
        self.life.state()
    }

    #[inline]
    pub fn link(&self) -> Option<&Link> {
        self.life.carrier()
    }

    /// From now on over shared memory.
    pub fn set_link(&self, link: Link) {
        handing::hold(self.fd());
        // SAFETY: not LINKED yet; a client's own thread decides on its offer in state SETTLING, a server's under the
        // world's lock.
        unsafe { self.life.carry(link) };
    }

    /// The epoll set it is in.
    #[inline]
    pub fn set(&self) -> Option<SetId> {
        NonZeroU32::new(self.set.load(Ordering::Acquire)).map(SetId)
    }

    pub fn put_into(&self, set: Option<SetId>) {
        self.set.store(set.map_or(0, |set| set.0.get()), Ordering::Release);
    }

    /// Puts it into a set if it is in none.
    pub fn claim(&self, set: SetId) -> bool {
        self.set.compare_exchange(0, set.0.get(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Which connection of this process it is: entries are used again.
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// Whether it may be in more sets than that.
    #[inline]
    pub fn is_in_several(&self) -> bool {
        self.in_several.load(Ordering::Acquire)
    }

    pub fn put_into_several(&self) {
        self.in_several.store(true, Ordering::Release);
    }

    /// The pair of processes its bytes go between.
    pub fn place(&self) -> Option<&'static Place> {
        // SAFETY: only leaked places are put in.
        unsafe { self.place.load(Ordering::Acquire).as_ref() }
    }

    pub fn set_place(&self, place: &'static Place) {
        self.place.store(std::ptr::from_ref(place).cast_mut(), Ordering::Release);
    }

    /// Whether the kernel was last asked about it a millisecond ago; it counts as asked now.
    pub fn is_due(&self, now: u64) -> bool {
        let last = self.asked_at.load(Ordering::Relaxed);
        let due = now.saturating_sub(last) > 1_000_000;
        if due {
            self.asked_at.store(now, Ordering::Relaxed);
        }
        due
    }

    pub fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed) as RawFd
    }

    #[inline]
    pub fn is_of_stack(&self) -> bool {
        self.of_stack.load(Ordering::Relaxed)
    }
}

/// A pair of processes, with the connections between them.
///
/// Never freed but used again for the next pair. What it holds of the other process (memory, channel, doorbells) is let
/// go of once that process has ended and the place has rested as entries do.
pub struct Place {
    /// `None` after that. Changed only when the place has rested: see [`Buried::has_rested`].
    pair: UnsafeCell<Option<Arc<Pair>>>,
    /// The socket of the server, to find it again.
    pub path: Mutex<Option<std::path::PathBuf>>,
    streams: Box<[AtomicPtr<Stream>]>,
    /// How many of them there are, and how many doorbells of it a thread of ours has yet to ring.
    users: AtomicU32,
    pub welcome: AtomicBool,
    /// One thread at a time hears what the other side says. Claims about slots and generations wait here until they are
    /// attended to.
    pub heard: Mutex<Vec<(u32, u32, Claim)>>,
    /// The set that watches its channel, of a server's client.
    pub watch: Mutex<Option<SetId>>,
    /// Why the server does not want us; 0 when it does.
    pub refused: AtomicU32,
}

// SAFETY: see `pair`; everything else is atomic or locked.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

/// Places whose other process has ended.
static DEAD: Mutex<Vec<Buried>> = Mutex::new(Vec::new());

/// When the next of them has rested, in monotonic nanoseconds: [`settle`] is due then.
static SETTLE_AT: AtomicU64 = AtomicU64::new(u64::MAX);

struct Buried {
    /// When it lost its last user, or was buried without one.
    since: u64,
    place: &'static Place,
    /// It holds nothing any more.
    empty: bool,
}

impl Buried {
    /// Whether no thread looks at its pair any more: it is in no list, has no user, and had none for a while. Users
    /// leave under the lock of [`DEAD`], which is held here.
    fn has_rested(&self, now: u64) -> bool {
        self.since + REST_NS < now && self.place.users.load(Ordering::Acquire) == 0
    }
}

impl Place {
    pub fn new(pair: Pair, path: Option<std::path::PathBuf>) -> &'static Place {
        if let Some(place) = Place::rested() {
            // SAFETY: it has rested and is not in `DEAD` any more: no other thread looks at it.
            unsafe { *place.pair.get() = Some(Arc::new(pair)) };
            if let Ok(mut old) = place.path.lock() {
                *old = path;
            }
            place.welcome.store(false, Ordering::Release);
            place.refused.store(0, Ordering::Release);
            if let Ok(mut heard) = place.heard.lock() {
                heard.clear();
            }
            return place;
        }
        let streams = (0..crate::pair::SLOTS).map(|_| AtomicPtr::default()).collect();
        Box::leak(Box::new(Place {
            pair: UnsafeCell::new(Some(Arc::new(pair))),
            path: Mutex::new(path),
            streams,
            users: AtomicU32::new(0),
            welcome: AtomicBool::new(false),
            heard: Mutex::new(Vec::new()),
            watch: Mutex::new(None),
            refused: AtomicU32::new(0),
        }))
    }

    fn rested() -> Option<&'static Place> {
        let now = super::now_ns();
        let mut dead = DEAD.lock().ok()?;
        let at = dead.iter().position(|b| b.has_rested(now))?;
        Some(dead.swap_remove(at).place)
    }

    /// For users of the place, and those who found it in a list of the living.
    #[inline]
    pub fn pair(&self) -> &Arc<Pair> {
        // SAFETY: it changes only when the place has rested without users and is in no list: not while the caller has
        // it.
        let pair = unsafe { (*self.pair.get()).as_ref() };
        pair.expect("a place in use has its pair")
    }

    pub fn arc(&self) -> Arc<Pair> {
        self.pair().clone()
    }

    /// The other process has ended: what the place holds is let go of when its last connection is closed and it has
    /// rested.
    pub fn bury(&'static self) {
        self.pair().dead.store(true, Ordering::Release);
        if let Ok(mut dead) = DEAD.lock() {
            let since = super::now_ns();
            dead.push(Buried { since, place: self, empty: false });
            SETTLE_AT.fetch_min(since + REST_NS, Ordering::Relaxed);
        }
    }

    /// One user more.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// One user less; a buried place rests from when the last one left.
    pub fn leave(&self) {
        let more = |users: u32| (users > 1).then(|| users - 1);
        if self.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
            return;
        }
        let _quiet = Quiet::begin();
        let mut dead = DEAD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Before it is without users, so that it is not taken to have rested already.
        if let Some(buried) = dead.iter_mut().find(|b| std::ptr::eq(b.place, self)) {
            buried.since = super::now_ns();
            SETTLE_AT.fetch_min(buried.since + REST_NS, Ordering::Relaxed);
        }
        self.users.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes the pair out of a place that has rested; `None` while a connection that rests itself still holds it.
    fn empty(&self) -> Option<Arc<Pair>> {
        // SAFETY: it has rested, and `DEAD` is locked: no other thread looks at it.
        let pair = unsafe { &mut *self.pair.get() };
        pair.take_if(|pair| Arc::strong_count(pair) == 1)
    }

    #[inline]
    pub fn stream(&self, slot: u32) -> Option<&'static Stream> {
        let stream = self.streams.get(slot as usize)?.load(Ordering::Acquire);
        // SAFETY: only leaked streams are put in.
        unsafe { stream.as_ref() }
    }

    pub fn set_stream(&self, slot: u32, stream: Option<&'static Stream>) {
        if let Some(place) = self.streams.get(slot as usize) {
            let new = stream.map_or(std::ptr::null_mut(), |s| std::ptr::from_ref(s).cast_mut());
            let old = place.swap(new, Ordering::AcqRel);
            match (old.is_null(), new.is_null()) {
                (true, false) => self.enter(),
                (false, true) => self.leave(),
                _ => {}
            }
        }
    }

    pub fn streams(&self) -> impl Iterator<Item = &'static Stream> {
        (0..self.streams.len() as u32).filter_map(|slot| self.stream(slot))
    }
}

struct Stock {
    all: Vec<&'static Entry>,
    resting: VecDeque<(u64, &'static Entry)>,
    rested: Vec<&'static Entry>,
}

static STOCK: Mutex<Stock> = Mutex::new(Stock::new());
const REST_NS: u64 = 1_000_000_000;

impl Stock {
    const fn new() -> Stock {
        Stock { all: Vec::new(), resting: VecDeque::new(), rested: Vec::new() }
    }

    /// Entries that nobody looks at any more let go of their memory and may be used again.
    fn settle(&mut self) {
        let now = super::now_ns();
        while let Some((at, entry)) = self.resting.front()
            && *at + REST_NS < now
            && let Entry::Stream(stream) = entry
        {
            // SAFETY: it has rested: calls take microseconds unless they sleep, and then they are counted; or their
            // thread is stopped in the middle of one for longer than REST_NS.
            if !unsafe { stream.life.let_go() } {
                // It must not hold up those behind it.
                self.resting.push_back((now, entry));
                self.resting.pop_front();
                continue;
            }
            self.rested.push(entry);
            self.resting.pop_front();
        }
    }
}

/// When [`settle`] has something to do next; `None` when nothing of another process is waiting for it.
pub fn settle_at() -> Option<u64> {
    Some(SETTLE_AT.load(Ordering::Relaxed)).filter(|at| *at != u64::MAX)
}

/// Lets go of what has rested, if it is time.
#[inline]
pub fn settle_when_due(now: u64) {
    if SETTLE_AT.load(Ordering::Relaxed) < now {
        settle();
    }
}

/// Lets go of what has rested: closed connections, and what we hold of processes that have ended.
#[cold]
fn settle() {
    let _quiet = Quiet::begin();
    // Connections first, which hold the pairs as well.
    if let Ok(mut stock) = STOCK.lock() {
        stock.settle();
    }
    let mut pairs = Vec::new();
    if let Ok(mut dead) = DEAD.lock() {
        let (now, mut next) = (super::now_ns(), u64::MAX);
        for buried in dead.iter_mut().filter(|b| !b.empty) {
            if !buried.has_rested(now) {
                // With users it is due when the last of them leaves.
                if buried.place.users.load(Ordering::Acquire) == 0 {
                    next = next.min(buried.since + REST_NS);
                }
                continue;
            }
            match buried.place.empty() {
                Some(pair) => {
                    pairs.push(pair);
                    buried.empty = true;
                }
                None => next = next.min(now + REST_NS / 4),
            }
        }
        SETTLE_AT.store(next, Ordering::Relaxed);
    }
    // Unmapping memory and closing descriptors takes its time: not under the lock.
    drop(pairs);
}

/// The stream of a number the kernel gave back.
pub fn stream_at(index: u32) -> Option<&'static Stream> {
    let _quiet = Quiet::begin();
    match STOCK.lock().ok()?.all.get(index as usize)? {
        Entry::Stream(stream) => Some(stream),
        _ => None,
    }
}

/// The entry of such a number.
pub fn entry_at(index: u32) -> Option<&'static Entry> {
    STOCK.lock().ok()?.all.get(index as usize).copied()
}

/// Connections so far.
static LAST_SERIAL: AtomicU64 = AtomicU64::new(0);

/// A new stream; [`put`] makes it known by its descriptor.
pub fn new_stream(fd: RawFd, state: u32, nonblocking: bool) -> Option<(&'static Stream, &'static Entry)> {
    if fd < 0 || fd as usize >= MOST {
        return None;
    }
    let mut stock = STOCK.lock().ok()?;
    stock.settle();
    let entry = match stock.rested.pop() {
        Some(entry) => entry,
        None => {
            let index = stock.all.len() as u32;
            let entry: &'static Entry = Box::leak(Box::new(Entry::Stream(Stream {
                index,
                fd: AtomicU32::new(0),
                life: Life::default(),
                nonblocking: AtomicBool::new(false),
                names: AtomicU32::new(0),
                told: AtomicU32::new(0),
                fixed: AtomicBool::new(false),
                of_stack: AtomicBool::new(false),
                in_several: AtomicBool::new(false),
                serial: AtomicU64::new(0),
                deadline: AtomicU64::new(0),
                gives_up: AtomicU64::new(0),
                asked_at: AtomicU64::new(0),
                offers: Mutex::new(Vec::new()),
                registration: UnsafeCell::new(Registration::NONE),
                set: AtomicU32::new(0),
                place: AtomicPtr::default(),
                ends: Mutex::new(None),
            })));
            stock.all.push(entry);
            entry
        }
    };
    drop(stock);
    let Entry::Stream(stream) = entry else { return None };
    stream.fd.store(fd as u32, Ordering::Relaxed);
    stream.nonblocking.store(nonblocking, Ordering::Relaxed);
    stream.names.store(1, Ordering::Relaxed);
    stream.fixed.store(false, Ordering::Relaxed);
    stream.of_stack.store(false, Ordering::Relaxed);
    stream.in_several.store(false, Ordering::Relaxed);
    stream.serial.store(LAST_SERIAL.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    stream.put_into(None);
    stream.place.store(std::ptr::null_mut(), Ordering::Release);
    // SAFETY: it has rested: nobody looks at it.
    unsafe { *stream.registration.get() = Registration::NONE };
    stream.told.store(0, Ordering::Relaxed);
    stream.life.begin(state);
    Some((stream, entry))
}

/// The descriptor is closed; the entry may be used again later. Once is enough: an entry in the queue twice would be
/// given to two descriptors.
pub fn retire(entry: &'static Entry) {
    if let (Entry::Stream(stream), Ok(mut stock)) = (entry, STOCK.lock())
        && stream.life.retire()
    {
        stock.resting.push_back((super::now_ns(), entry));
        stock.settle();
    }
}

/// In the child of a fork: whatever lock another thread held here is held by nobody now.
///
/// # Safety
/// Only while there is one thread.
pub unsafe fn forget() {
    let stock: *const Mutex<Stock> = &raw const STOCK;
    // SAFETY: one thread; what was there is leaked on purpose.
    unsafe { stock.cast_mut().write(Mutex::new(Stock::new())) };
    let dead: *const Mutex<Vec<Buried>> = &raw const DEAD;
    // SAFETY: as above.
    unsafe { dead.cast_mut().write(Mutex::new(Vec::new())) };
    SETTLE_AT.store(u64::MAX, Ordering::Relaxed);
    for (fd, entry) in known(0, MOST) {
        if let Entry::Stream(_) = entry {
            put(fd, None);
        }
    }
}

/// Descriptors unknown to us that are in an epoll set: what is connected later and was put into a set before stays with
/// TCP.
static IN_SET: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

pub fn set_in_set(fd: RawFd, is: bool) {
    let Some(word) = IN_SET.get(fd as u32 as usize / 64) else { return };
    let bit = 1u64 << (fd as u32 % 64);
    if is {
        word.fetch_or(bit, Ordering::Relaxed);
    } else if word.load(Ordering::Relaxed) & bit != 0 {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

pub fn is_in_set(fd: RawFd) -> bool {
    IN_SET.get(fd as u32 as usize / 64).is_some_and(|w| w.load(Ordering::Relaxed) & (1 << (fd as u32 % 64)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_two_threads_retire_is_used_once() {
        let (stream, entry) = new_stream(1000, state::CANDIDATE, false).unwrap();
        let same = |other: &'static Entry| std::ptr::eq(other, entry);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| retire(entry));
            }
        });
        assert_eq!(stream.state(), state::PLAIN);
        let queued = STOCK.lock().unwrap().resting.iter().filter(|(_, e)| same(e)).count();
        assert_eq!(queued, 1);
    }

    #[test]
    fn one_that_is_slept_for_holds_up_nobody() {
        let (slept_for, first) = new_stream(1001, state::CANDIDATE, false).unwrap();
        let (_, second) = new_stream(1002, state::CANDIDATE, false).unwrap();
        slept_for.life.sleeps();
        // Both have rested: a clock that begins at the machine's start is past the first second.
        let mut stock = Stock::new();
        stock.resting.extend([(0, first), (0, second)]);
        stock.settle();
        let is = |entries: &[&'static Entry], one: &'static Entry| entries.iter().any(|e| std::ptr::eq(*e, one));
        assert!(is(&stock.rested, second) && !is(&stock.rested, first));
        assert_eq!(stock.resting.len(), 1, "it rests on");
    }
}
