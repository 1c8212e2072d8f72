//! epoll for sets that have connections over shared memory in them, beside everything the kernel watches.
//!
//! The kernel's own set stays: timers, pipes, plain sockets and listeners are in it as the program put them there. A
//! connection of ours is in it as well, but only for its end, with a number of ours instead of the program's data; its
//! real readiness comes from the bits its peer sets. So a turn of a busy loop costs no system call: the kernel is
//! looked at every 20 us, not every turn.

mod asleep;
mod ctl;
mod guests;
mod inside;
mod waiting;

pub use ctl::ctl;
pub use waiting::wait;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::held::Held;
use crate::link::Link;
use crate::local::Waiter;
use crate::patience::Patience;
use crate::signals::Quiet;
use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM};
use libc::{c_int, epoll_event};

use super::fds::{self, Entry, Place, Registration, SetId, Stream, state};
use super::seconds::Seconds;
use super::{errno, kernel, now_ns, world};
use guests::Guests;
use inside::Locked;

/// No thread has this number.
const SHARED: u64 = u64::MAX;

/// What of ours is in a kernel's set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// A connection, for its end.
    Stream = 0,
    /// Peers ring it.
    Doorbell = 1,
    /// Clients connect to it.
    Rendezvous = 2,
    /// Their messages.
    Channel = 3,
}

/// Bits of a hidden event's data: 40 of ours alone, 2 for what it is, 22 for which.
fn tag() -> u64 {
    static TAG: AtomicU64 = AtomicU64::new(0);
    let known = TAG.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut random = 0u64;
    // SAFETY: eight bytes of room.
    unsafe { libc::syscall(libc::SYS_getrandom, &raw mut random, 8, 0) };
    let new = (random ^ now_ns().rotate_left(17)) | 1 << 63;
    let new = new & !0xff_ffff;
    match TAG.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => new,
        Err(other) => other,
    }
}

/// An epoll set of the program's.
pub struct Epoll {
    pub id: SetId,
    /// What its descriptors are known as.
    entry: &'static Entry,
    fd: AtomicI32,
    /// How many of ours are in the kernel's set.
    hidden: AtomicU32,
    waiter: OnceLock<Waiter>,
    forgotten: AtomicBool,
    /// The thread that waits in it, as a number; SHARED once a second one did.
    owner: AtomicU64,
    /// It is watched itself, by another set or by poll.
    nested: AtomicBool,
    /// Threads that sleep in it: the word on the board says so as long as one does.
    sleeping: AtomicU32,
    looked_at: AtomicU64,
    patience: Patience,
    inside: Held<Inside>,
    /// How many guests there are inside.
    guests: AtomicU32,
    /// What is inside has missed something, and is to be made again.
    stale: AtomicBool,
}

#[derive(Default)]
struct Inside {
    /// Pairs of processes with connections here.
    places: Vec<&'static Place>,
    /// Connections that may have something, in the order in which it came.
    ready: VecDeque<&'static Stream>,
    /// Those whose offer is not answered yet.
    pending: Vec<&'static Stream>,
    /// Other names of connections that are here.
    seconds: Seconds,
    /// Connections whose home is another set.
    guests: Guests,
    /// When `ready` was last put in order, in ticks of [`crate::stamp`].
    ordered_at: u64,
}

/// All sets there ever were, by number: they are used again, never freed.
static NUMBERED: [AtomicPtr<Epoll>; fds::MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; fds::MOST];
/// The highest number that was given.
static LAST: AtomicU32 = AtomicU32::new(0);
/// Closed ones, to be used again.
static SPARE: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());
/// All sets there are.
static SETS: Mutex<Vec<&'static Epoll>> = Mutex::new(Vec::new());

/// The set of a number.
#[inline]
pub fn numbered(set: SetId) -> Option<&'static Epoll> {
    let epoll = NUMBERED.get(set.0.get() as usize)?.load(Ordering::Acquire);
    // SAFETY: only leaked sets are put in.
    unsafe { epoll.as_ref() }
}

/// The set of a descriptor.
#[inline]
pub fn of_fd(fd: RawFd) -> Option<&'static Epoll> {
    numbered(fds::set(fd)?)
}

/// The set a connection is in.
#[inline]
pub fn of(stream: &Stream) -> Option<&'static Epoll> {
    numbered(stream.set()?)
}

/// Puts something of ours into the kernel's set of a number; false when the kernel refuses.
pub fn watch(set: SetId, fd: RawFd, what: Hidden) -> bool {
    numbered(set).is_some_and(|epoll| epoll.watch(fd, what))
}

/// No set looks for news from there any more.
pub fn forget_place(place: &'static Place) {
    for epoll in SETS.lock().iter().flat_map(|sets| sets.iter()) {
        epoll.inside().places.retain(|p| !std::ptr::eq(*p, place));
    }
}

impl Inside {
    fn lacks(&self, place: &'static Place) -> bool {
        !place.pair().dead.load(Ordering::Acquire) && !self.places.iter().any(|p| std::ptr::eq(*p, place))
    }
}

/// A new set of the program's.
pub fn created(fd: RawFd) {
    if fd < 0 || fd as usize >= fds::MOST {
        return;
    }
    let _quiet = Quiet::begin();
    crate::busy::polls(fd);
    let spare = SPARE.lock().ok().and_then(|mut spare| spare.pop());
    let Some(epoll) = spare.or_else(made) else { return };
    epoll.fd.store(fd, Ordering::Release);
    if let Some(waiter) = epoll.waiter.get() {
        epoll.watch(waiter.doorbell.as_raw_fd(), Hidden::Doorbell);
    }
    if let Ok(mut sets) = SETS.lock() {
        sets.push(epoll);
    }
    fds::put(fd, Some(epoll.entry));
}

/// One more; `None` when there are no numbers left: then it is the kernel's alone.
fn made() -> Option<&'static Epoll> {
    let more = |last: u32| (last + 1 < fds::MOST as u32).then_some(last + 1);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
    let id = SetId(NonZeroU32::new(last + 1)?);
    let epoll: &'static Epoll = Box::leak(Box::new(Epoll {
        id,
        entry: Box::leak(Box::new(Entry::Set(id))),
        fd: AtomicI32::new(-1),
        hidden: AtomicU32::new(0),
        waiter: OnceLock::new(),
        forgotten: AtomicBool::new(false),
        owner: AtomicU64::new(0),
        nested: AtomicBool::new(false),
        sleeping: AtomicU32::new(0),
        looked_at: AtomicU64::new(0),
        patience: Patience::default(),
        inside: Held::new(Inside::default()),
        guests: AtomicU32::new(0),
        stale: AtomicBool::new(false),
    }));
    NUMBERED[id.0.get() as usize].store(std::ptr::from_ref(epoll).cast_mut(), Ordering::Release);
    Some(epoll)
}

/// The last descriptor of a set is closed.
pub fn ended(set: SetId) {
    let Some(epoll) = numbered(set) else { return };
    if let Ok(mut sets) = SETS.lock() {
        sets.retain(|s| !std::ptr::eq(*s, epoll));
    }
    epoll.forget_guests(&mut epoll.inside());
    for (_, other) in fds::known(0, fds::MOST) {
        if let Entry::Stream(stream) = other
            && epoll.has(stream)
        {
            leave(epoll, &mut epoll.inside(), stream);
            guests::pass_on(stream);
        }
    }
    *epoll.inside() = Inside::default();
    epoll.hidden.store(0, Ordering::Release);
    world::no_watch(set);
    // One whose lock was left by longjmp would know nothing of what comes into it.
    let is_well = epoll.inside.lock().is_ok();
    if let Ok(mut spare) = SPARE.lock()
        && is_well
    {
        spare.push(epoll);
    }
}

/// In the child of a fork: no set is ours. The kernel's are shared with the parent.
///
/// # Safety
/// Only while there is one thread.
pub unsafe fn forget() {
    // SAFETY: one thread; what was there is leaked on purpose.
    unsafe { (&raw const SETS).cast_mut().write(Mutex::new(Vec::new())) };
    // SAFETY: as above.
    unsafe { (&raw const SPARE).cast_mut().write(Mutex::new(Vec::new())) };
    for (_, entry) in fds::known(0, fds::MOST) {
        if let Entry::Set(set) = entry
            && let Some(epoll) = numbered(*set)
        {
            epoll.forgotten.store(true, Ordering::Release);
        }
    }
}

impl Epoll {
    /// Whether a connection is in it.
    #[inline]
    fn has(&self, stream: &Stream) -> bool {
        stream.set() == Some(self.id)
    }

    /// Whether connections are in it that are at home in another set.
    #[inline]
    fn has_guests(&self) -> bool {
        self.guests.load(Ordering::Acquire) > 0
    }

    /// Another number of it, when the one we know is closed.
    pub fn renamed(&self, old: RawFd, new: RawFd) {
        let _ = self.fd.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether one thread alone waits in it, so that what it writes can wait for the end of its turn.
    #[inline]
    pub fn is_of(&self, thread: u64) -> bool {
        self.owner.load(Ordering::Relaxed) == thread
    }

    fn entered_by(&self, thread: u64) {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == thread || owner == SHARED {
            return;
        }
        let new = if owner == 0 { thread } else { SHARED };
        self.owner.store(new, Ordering::Relaxed);
    }

    /// Somebody watches the set itself: between two waits it is as if asleep, so that news make the kernel's set ready.
    pub fn watched_itself(&'static self) {
        self.nested.store(true, Ordering::Release);
        self.leave_word();
    }

    fn leave_word(&'static self) {
        if let Some(waiter) = self.waiter.get()
            && !self.is_forgotten()
        {
            waiter.word().sleeps();
            if self.news(waiter) {
                self.wake();
            }
        }
    }

    /// Whether it is of the parent of this process.
    pub fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Relaxed)
    }

    pub fn fd(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Its waiter, made when it is first needed.
    pub fn waiter(&'static self) -> Option<&'static Waiter> {
        if self.forgotten.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(waiter) = self.waiter.get() {
            return Some(waiter);
        }
        let waiter = world::local()?.waiter().ok()?;
        let doorbell = waiter.doorbell.as_raw_fd();
        if self.waiter.set(waiter).is_ok() {
            self.watch(doorbell, Hidden::Doorbell);
        }
        self.waiter.get()
    }

    /// The kernel's own `epoll_ctl`, for what the program put there itself.
    pub fn put_for_program(&self, op: c_int, fd: RawFd, (events, data): (u32, u64)) -> bool {
        let mut event = epoll_event { events, u64: data };
        // SAFETY: a live event.
        unsafe { kernel::epoll_ctl(self.fd(), op, fd, &mut event) == 0 }
    }

    /// Puts something of ours into the kernel's set; false when the kernel refuses.
    pub fn watch(&self, fd: RawFd, what: Hidden) -> bool {
        let events = EPOLLIN | if what == Hidden::Doorbell { EPOLLET } else { 0 };
        let mut event = epoll_event { events: events as u32, u64: tag() | (what as u64) << 22 };
        // SAFETY: a live event.
        let added = unsafe { kernel::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } == 0;
        if added {
            self.hidden.fetch_add(1, Ordering::AcqRel);
        }
        added
    }

    /// Takes it out again.
    pub fn unwatch(&self, fd: RawFd) {
        // SAFETY: no event is needed.
        if unsafe { kernel::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) } == 0 {
            self.hidden.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// A connection in the kernel's set, for its end only.
    fn watch_end(&self, stream: &Stream, op: c_int) -> c_int {
        if stream.is_of_stack() {
            return 0;
        }
        let data = tag() | (Hidden::Stream as u64) << 22 | u64::from(stream.index & 0x3f_ffff);
        let mut event = epoll_event { events: (EPOLLRDHUP | EPOLLIN | EPOLLET) as u32, u64: data };
        // SAFETY: a live event.
        let done = unsafe { kernel::epoll_ctl(self.fd(), op, stream.fd(), &mut event) };
        // Another name of it has put it in.
        if op == libc::EPOLL_CTL_ADD && done != 0 && errno() == libc::EEXIST { 0 } else { done }
    }

    /// It is a connection's home no more. The kernel's entry stays for guests of the same connection.
    fn give_up(&self, inside: &mut Inside, stream: &'static Stream) {
        if !inside.guests.has(stream) {
            self.watch_end(stream, libc::EPOLL_CTL_DEL);
        }
        leave(self, inside, stream);
    }

    /// A thread may sleep in this set while another has changed something.
    fn wake(&self) {
        if self.waiter.get().is_some_and(|waiter| waiter.word().asleep()) {
            self.ring();
        }
    }

    /// Rings its doorbell, whichever thread sleeps on it.
    fn ring(&self) {
        if let Some(waiter) = self.waiter.get().filter(|_| !self.is_forgotten()) {
            let one = 1u64;
            // SAFETY: eight bytes to a descriptor of ours.
            unsafe { libc::syscall(libc::SYS_write, waiter.doorbell.as_raw_fd(), &raw const one, 8) };
        }
    }
}

/// The registration of a stream.
///
/// SAFETY of all its uses: the lock of the set the stream is in is held.
#[allow(clippy::mut_from_ref)]
fn registration<'a>(stream: &'a Stream, _inside: &'a Inside) -> &'a mut Registration {
    // SAFETY: see above.
    unsafe { &mut *stream.registration.get() }
}

fn queue(inside: &mut Inside, stream: &'static Stream) {
    let registration = registration(stream, inside);
    if (registration.wanted || inside.seconds.has(stream.index)) && !registration.queued {
        registration.queued = true;
        inside.ready.push_back(stream);
    }
}

/// Something about a connection has changed: its set looks at it.
pub fn look_again(stream: &'static Stream) {
    let Some(epoll) = of(stream) else { return };
    match (epoll.inside.lock(), stream.link(), epoll.waiter.get()) {
        (Ok(mut inside), ..) if epoll.has(stream) => queue(&mut inside, stream),
        // A signal handler asks: the wait it has interrupted takes it for news.
        (Err(_), Some(link), Some(waiter)) => link.pair.remind(link.number, waiter.number),
        _ => {} // another thread has just put it into another set, which has looked
    }
    epoll.wake();
}

/// A connection goes over shared memory from now on.
pub fn adopt(stream: &'static Stream, place: &'static Place, link: Link) {
    stream.set_place(place);
    let Some(epoll) = of(stream) else {
        stream.set_link(link);
        return settle_in(stream);
    };
    name_waiter(epoll, place, &link);
    let mut inside = epoll.inside();
    if inside.lacks(place) {
        inside.places.push(place);
    }
    inside.pending.retain(|s| !std::ptr::eq(*s, stream));
    if stream.state() == state::CANDIDATE {
        epoll.watch_end(stream, libc::EPOLL_CTL_MOD);
        epoll.hidden.fetch_add(1, Ordering::AcqRel);
    }
    stream.set_link(link);
    queue(&mut inside, stream);
    drop(inside);
    epoll.wake();
}

/// A connection that came into a set while it was decided how it goes on.
fn settle_in(stream: &'static Stream) {
    let (Some(epoll), Some(place), Some(link)) = (of(stream), stream.place(), stream.link()) else { return };
    name_waiter(epoll, place, link);
    let mut inside = epoll.inside();
    if inside.lacks(place) {
        inside.places.push(place);
    }
    inside.pending.retain(|s| !std::ptr::eq(*s, stream));
    queue(&mut inside, stream);
    drop(inside);
    epoll.wake();
}

fn name_waiter(epoll: &'static Epoll, place: &'static Place, link: &Link) {
    match epoll.waiter() {
        Some(waiter) if world::introduce(place, waiter) => link.set_waiter(waiter.number),
        // Nobody could wake us for it.
        _ => link.tcp_ended(true),
    }
}

/// Whether a set is told of a connection's news.
pub fn watches(stream: &Stream) -> bool {
    let Some(epoll) = of(stream) else { return false };
    // A signal handler that cannot know takes it that a set is told, and looks by itself.
    epoll.inside.lock().map_or(true, |inside| registration(stream, &inside).wanted || inside.seconds.has(stream.index))
}

/// A connection whose offer nobody took is the kernel's.
pub fn to_tcp(stream: &'static Stream) {
    let Some((epoll, mut inside)) = home(stream) else { return };
    let registration = registration(stream, &inside);
    let mut event = epoll_event { events: registration.events, u64: registration.data };
    // Of a stack's it is not in the kernel's set: see `watch_end`.
    let there = if stream.is_of_stack() { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
    let op = if registration.wanted { there } else { libc::EPOLL_CTL_DEL };
    // SAFETY: a live event.
    unsafe { kernel::epoll_ctl(epoll.fd(), op, stream.fd(), &mut event) };
    leave(epoll, &mut inside, stream);
    drop(inside);
    epoll.wake();
}

fn leave(epoll: &Epoll, inside: &mut Inside, stream: &'static Stream) {
    if registration(stream, inside).queued {
        inside.ready.retain(|s| !std::ptr::eq(*s, stream));
    }
    inside.pending.retain(|s| !std::ptr::eq(*s, stream));
    inside.seconds.forget(stream.index);
    let registration = registration(stream, inside);
    (registration.queued, registration.wanted) = (false, false);
    left(epoll, stream);
}

fn left(epoll: &Epoll, stream: &Stream) {
    stream.put_into(None);
    epoll.hidden.fetch_sub(1, Ordering::AcqRel);
}

/// The descriptor of a connection is closed: the kernel's set loses it by itself.
pub fn closed(stream: &'static Stream) {
    if stream.state() == state::CANDIDATE {
        return;
    }
    match home(stream) {
        Some((epoll, Locked::Held(mut inside))) => leave(epoll, &mut inside, stream),
        // In a signal handler: the wait that it has interrupted finds a connection that is not in the set any more. Its
        // other names are forgotten when what is inside is made again, before another connection can have its number.
        Some((epoll, Locked::StandIn(_))) => left(epoll, stream),
        None => {}
    }
}

/// The set a connection is in, with its lock: other threads may be putting it into another one.
fn home(stream: &Stream) -> Option<(&'static Epoll, Locked<'static>)> {
    loop {
        let epoll = of(stream)?;
        let inside = epoll.inside();
        if epoll.has(stream) {
            return Some((epoll, inside));
        }
    }
}

/// What is to be said of a connection, of all that epoll and poll can say.
#[inline]
pub fn readiness(link: &Link, wanted: u32) -> u32 {
    let mut events = 0;
    if wanted & (EPOLLIN | EPOLLRDNORM) as u32 != 0 && link.readable() {
        events |= (EPOLLIN | EPOLLRDNORM) as u32;
    }
    if wanted & (EPOLLOUT | EPOLLWRNORM) as u32 != 0 && link.writable() {
        events |= (EPOLLOUT | EPOLLWRNORM) as u32;
    }
    if link.ended() {
        events |= EPOLLRDHUP as u32;
        if link.over() {
            events |= EPOLLHUP as u32;
        }
        if link.broken() {
            events |= EPOLLERR as u32;
        }
    }
    events & (wanted | (EPOLLERR | EPOLLHUP) as u32)
}
