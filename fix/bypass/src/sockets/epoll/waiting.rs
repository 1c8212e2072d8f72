//! Waiting in a set: events of ours, of the kernel, and awake for a while in between.

use std::sync::atomic::Ordering;

use crate::local::{Waiter, processor};
use crate::patience;
use crate::sockets::{self, fds, kernel, now_ns, streams, world};
use libc::{EPOLLET, EPOLLONESHOT, c_int, epoll_event, sigset_t};

use super::{Epoll, Inside, asleep, guests, queue, readiness, tag};

/// How often the kernel is looked at while there is always something to do here.
const LOOK_NS: u64 = 20_000;

impl Epoll {
    /// Events of our connections into `room`; how many.
    fn collect(&'static self, waiter: &Waiter, room: &mut [epoll_event]) -> usize {
        let mut inside = self.inside();
        if !inside.pending.is_empty() {
            let pending = inside.pending.clone();
            drop(inside);
            for stream in pending {
                world::resolve(stream, false);
            }
            inside = self.inside();
            inside.pending.retain(|s| world::is_open(s));
        }
        let inside = &mut *inside;
        inside.take_news(self, waiter);
        let Inside { ready, seconds, guests, .. } = inside;
        let mut n = if self.has_guests() { self.tell_of_guests(guests, room) } else { 0 };
        for _ in 0..ready.len() {
            if n == room.len() {
                break;
            }
            let Some(stream) = ready.pop_front() else { break };
            // A signal handler may have closed it while the code that it interrupted was here.
            if !self.has(stream) {
                continue;
            }
            // SAFETY: the lock of this set is held.
            let registration = unsafe { &mut *stream.registration.get() };
            registration.seen = true;
            let mut again = false;
            if let Some(link) = stream.link().filter(|_| !seconds.is_empty()) {
                let told = seconds.tell(stream.index, |wanted| readiness(link, wanted), &mut room[n..]);
                (n, again) = (n + told.0, told.1);
            }
            let events = match stream.link() {
                Some(link) if registration.wanted && !registration.spent => readiness(link, registration.events),
                _ => 0,
            };
            if events != 0 && n == room.len() {
                again = true;
            } else if events != 0 {
                room[n] = epoll_event { events, u64: registration.data };
                n += 1;
                registration.spent = registration.events & EPOLLONESHOT as u32 != 0;
                again |= registration.events & (EPOLLONESHOT | EPOLLET) as u32 == 0;
            }
            registration.queued = again;
            if again {
                ready.push_back(stream);
            }
        }
        n
    }

    /// Whether anything may be new for us.
    #[inline]
    pub(super) fn news(&self, waiter: &Waiter) -> bool {
        let inside = self.inside();
        !inside.ready.is_empty()
            || inside.places.iter().any(|p| p.pair().news(waiter.number))
            || self.has_guests() && inside.guests.has_news()
    }

    #[inline]
    fn hopeful(&self, processor: u32, probe: bool) -> bool {
        self.inside().places.iter().any(|p| p.pair().hopeful(processor, probe))
    }

    /// When the first unanswered offer is given up.
    fn deadline(&self) -> Option<u64> {
        let inside = self.inside();
        inside.pending.iter().map(|s| s.deadline.load(Ordering::Relaxed)).min()
    }

    /// The kernel's events, without ours, which are dealt with.
    ///
    /// SAFETY: as of `epoll_pwait`.
    unsafe fn ask_kernel(&self, room: &mut [epoll_event], timeout_ms: c_int, mask: *const sigset_t) -> c_int {
        // SAFETY: the caller's; the room is as large as it says.
        let n = unsafe { kernel::epoll_pwait(self.fd(), room.as_mut_ptr(), room.len() as c_int, timeout_ms, mask) };
        if n <= 0 {
            return n;
        }
        let (tag, mut kept, mut visitors) = (tag(), 0, false);
        for i in 0..n as usize {
            let event = room[i];
            if event.u64 & !0xff_ffff != tag {
                room[kept] = event;
                kept += 1;
                continue;
            }
            match (event.u64 >> 22) & 3 {
                0 if !self.forgotten.load(Ordering::Relaxed) => {
                    if let Some(stream) = fds::stream_at((event.u64 & 0x3f_ffff) as u32) {
                        streams::look_at_tcp(stream);
                        if self.has(stream) {
                            queue(&mut self.inside(), stream);
                        }
                    }
                }
                1 => {
                    if let Some(waiter) = self.waiter.get()
                        && !self.forgotten.load(Ordering::Relaxed)
                    {
                        waiter.answer();
                    }
                }
                2 | 3 => visitors = true,
                _ => {}
            }
        }
        if visitors && !self.forgotten.load(Ordering::Relaxed) {
            world::attend();
        }
        kept as c_int
    }
}

/// `epoll_wait` and its kin, with a timeout in nanoseconds (`None` for ever).
///
/// # Safety
/// As of `epoll_pwait`: room for `max` events.
pub unsafe fn wait(
    epoll: &'static Epoll,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's.
    let n = unsafe { wait_here(epoll, events, max, timeout_ns, mask) };
    if epoll.nested.load(Ordering::Relaxed) {
        epoll.leave_word();
    }
    n
}

unsafe fn wait_here(
    epoll: &'static Epoll,
    events: *mut epoll_event,
    max: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    sockets::flush();
    if max <= 0 || events.is_null() {
        // SAFETY: the caller's; the kernel says what is wrong with it.
        return unsafe { kernel::epoll_pwait(epoll.fd(), events, max, milliseconds(timeout_ns), mask) };
    }
    // SAFETY: the caller's.
    let room = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
    let begun = now_ns();
    let until = timeout_ns.map(|t| begun.saturating_add(t));
    if epoll.hidden.load(Ordering::Acquire) == 0 || epoll.forgotten.load(Ordering::Relaxed) {
        // SAFETY: the caller's.
        let n = unsafe { epoll.ask_kernel(room, milliseconds(timeout_ns), mask) };
        let late = until.is_some_and(|u| now_ns() >= u);
        // What another thread has put in meanwhile may have ended the sleep, and is not the program's.
        if n != 0 || late || epoll.hidden.load(Ordering::Acquire) == 0 && timeout_ns.is_some() {
            return n;
        }
        // Other threads may sleep in it too, and nothing says so: each one passes the ring on.
        epoll.ring();
    }
    let Some(waiter) = epoll.waiter() else {
        loop {
            let left = until.map(|u| u.saturating_sub(now_ns()));
            // SAFETY: the caller's.
            let n = unsafe { epoll.ask_kernel(room, milliseconds(left), mask) };
            if n != 0 || left == Some(0) {
                return n;
            }
        }
    };
    let thread = sockets::thread();
    epoll.entered_by(thread);
    let mark = 0u8;
    let frame = (&raw const mark).addr();
    // A wait of this thread that a handler left with longjmp did not say that it was over.
    asleep::forget_left(epoll, frame, epoll.is_of(thread));
    epoll.patience.begins(begun);
    let mut wait = Wait { epoll, waiter, room, until, mask, looked_at: begun };
    loop {
        // SAFETY: the caller's.
        if let Some(n) = unsafe { wait.turn(frame) } {
            epoll.patience.ends(wait.looked_at);
            return n;
        }
    }
}

/// So many milliseconds as the kernel takes them; `None` is for ever.
fn milliseconds(left: Option<u64>) -> c_int {
    left.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as c_int)
}

/// A wait in a set that has connections of ours.
struct Wait<'a> {
    epoll: &'static Epoll,
    waiter: &'static Waiter,
    room: &'a mut [epoll_event],
    until: Option<u64>,
    /// As of `epoll_pwait`, for as long as the wait lasts.
    mask: *const sigset_t,
    /// When it last looked.
    looked_at: u64,
}

/// How a while awake has ended.
enum Awake {
    /// The kernel has events, or an error.
    Kernel(c_int),
    /// There is something of ours.
    Found,
    /// Nothing up to this time.
    Nothing(u64),
}

impl Wait<'_> {
    /// Looks, stays awake for a while, sleeps. What the wait returns, once it is over.
    ///
    /// # Safety
    /// As of `epoll_pwait`, for the mask.
    #[inline]
    unsafe fn turn(&mut self, frame: usize) -> Option<c_int> {
        world::attend_parked();
        let now = now_ns();
        self.looked_at = now;
        fds::settle_when_due(now);
        let here = processor();
        if self.epoll.sleeping.load(Ordering::Acquire) == 0 {
            self.waiter.word().awake(here);
        }
        // SAFETY: the caller's.
        if let Some(n) = unsafe { self.look(now) } {
            return Some(n);
        }
        // SAFETY: the caller's.
        match unsafe { self.stay_awake(now, here) } {
            Awake::Kernel(n) => Some(n),
            Awake::Found => None,
            // SAFETY: the caller's.
            Awake::Nothing(now) => unsafe { self.sleep(now, frame) },
        }
    }

    fn is_look_due(&self, now: u64) -> bool {
        now.saturating_sub(self.epoll.looked_at.load(Ordering::Relaxed)) >= LOOK_NS
    }

    /// The kernel's events of this moment, behind the first `from`.
    ///
    /// # Safety
    /// As of `epoll_pwait`, for the mask.
    #[inline]
    unsafe fn kernel_now(&mut self, from: usize, now: u64) -> c_int {
        self.epoll.looked_at.store(now, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { self.epoll.ask_kernel(&mut self.room[from..], 0, self.mask) }
    }

    /// What there is now; `None` if nothing is, and the time is not over.
    ///
    /// # Safety
    /// As of `epoll_pwait`, for the mask.
    #[inline]
    unsafe fn look(&mut self, now: u64) -> Option<c_int> {
        let due = self.is_look_due(now);
        if due && self.room.len() == 1 {
            // SAFETY: the caller's.
            let n = unsafe { self.kernel_now(0, now) };
            if n != 0 {
                return Some(n);
            }
        }
        // The kernel's events have a place of their own, however much there is of ours.
        let ours = if due && self.room.len() > 1 { self.room.len() - 1 } else { self.room.len() };
        let n = self.epoll.collect(self.waiter, &mut self.room[..ours]);
        let late = self.until.is_some_and(|u| now >= u);
        if n == 0 && !late {
            return None;
        }
        if n == self.room.len() || !(due || n == 0) {
            return Some(n as c_int);
        }
        // SAFETY: the caller's.
        let more = unsafe { self.kernel_now(n, now) };
        Some(match (n, more) {
            // What the kernel's events brought may be for us.
            (0, 0) => self.epoll.collect(self.waiter, self.room) as c_int,
            (0, more) => more,
            (n, more) => n as c_int + more.max(0),
        })
    }

    /// Awake for a while, if an answer may come soon.
    ///
    /// # Safety
    /// As of `epoll_pwait`, for the mask.
    #[inline]
    unsafe fn stay_awake(&mut self, from: u64, here: u32) -> Awake {
        let (epoll, waiter) = (self.epoll, self.waiter);
        let limit = epoll.patience.limit();
        let spin_until = self.until.unwrap_or(u64::MAX).min(from + limit.ns);
        let (mut now, mut found, mut spun) = (from, false, false);
        let mut awake = patience::Awake::since(from);
        while limit.ns > 0 && epoll.hopeful(here, limit.probe) {
            spun = true;
            for _ in 0..32 {
                std::hint::spin_loop();
                if epoll.news(waiter) {
                    found = true;
                    break;
                }
            }
            now = now_ns();
            if found || now >= spin_until {
                break;
            }
            if awake.gave_way(now) {
                epoll.patience.gave_way();
                return Awake::Nothing(now_ns());
            }
            if self.is_look_due(now) {
                // SAFETY: the caller's.
                let n = unsafe { self.kernel_now(0, now) };
                if n != 0 {
                    self.looked_at = now;
                    epoll.patience.spent(now - from);
                    return Awake::Kernel(n);
                }
            }
        }
        if spun {
            epoll.patience.learn(now - from, found, limit);
        }
        if found { Awake::Found } else { Awake::Nothing(now) }
    }

    /// Sleeps in the kernel, unless something of ours has come meanwhile.
    ///
    /// # Safety
    /// As of `epoll_pwait`, for the mask.
    #[inline]
    unsafe fn sleep(&mut self, now: u64, frame: usize) -> Option<c_int> {
        let (epoll, waiter) = (self.epoll, self.waiter);
        let place = asleep::enter(epoll, frame);
        waiter.word().sleeps();
        let n = if !epoll.news(waiter) {
            let look = epoll.has_guests().then(|| now + guests::SLEEP_NS);
            let first = [self.until, epoll.deadline(), fds::settle_at(), look].into_iter().flatten().min();
            let left = first.map(|f| f.saturating_sub(now_ns()));
            // SAFETY: the caller's.
            let n = unsafe { epoll.ask_kernel(self.room, milliseconds(left), self.mask) };
            self.looked_at = now_ns();
            epoll.looked_at.store(self.looked_at, Ordering::Relaxed);
            if look.is_none() && epoll.has_guests() {
                // Others who slept before the first guest came do not look for it yet.
                epoll.wake();
            }
            n
        } else if self.is_look_due(now) {
            self.looked_at = now;
            // SAFETY: the caller's.
            unsafe { self.kernel_now(0, now) }
        } else {
            0
        };
        if asleep::leave(epoll, place) {
            waiter.word().awake(processor());
        }
        match n {
            0 => None,
            error if error < 0 => Some(error),
            n => {
                let n = n as usize;
                Some((n + epoll.collect(waiter, &mut self.room[n..])) as c_int)
            }
        }
    }
}
