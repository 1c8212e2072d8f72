//! What a server listens at, lent to a stack: a process that accepts for it and has the TCP connections.
//!
//! ```text
//!   stack                         channel       server
//!                                 Lend     ->   the listener leaves the kernel's set, a bell takes its place there
//!   accepts from it        <-     Listener
//!   takes a slot           ->     Accepted      rings the bell; the program calls accept and gets this socket
//! ```
//!
//! The socket is the connection's own, so addresses and options are the kernel's. Only the stack reads and writes it:
//! the server has the bytes in the slot from the first on, so there is no switch in mid-stream. When the stack ends,
//! its connections end with it, and the listener is back in the set before the next wait returns.
//!
//! A newer stack of the same user may take a loan over: the bell stays where it is, connections of both are taken, and
//! the older one keeps those it has until they end. Should the newer one end first, the loan falls back to the older.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use crate::channel::{self, Kind, LENT, NEVER, NOT_NOW, SUPERSEDED};
use crate::endpoint::{self, Ends};
use crate::link::Link;
use crate::pair::{OFFERED, TAKEN, TALLIED};
use crate::sockets::epoll::{self, Epoll};
use crate::sockets::fds::{self, Entry, Place, SetId, state};
use crate::sockets::kernel;

use super::claims::decline;
use super::hearing::ring;
use super::{World, settings, world};

/// A listening socket in an epoll set.
pub struct Listened {
    fd: RawFd,
    set: SetId,
    /// As the program put it there: events and data.
    wanted: (u32, u64),
    /// The program has it in the set.
    is_in: bool,
    loan: Option<Loan>,
}

struct Loan {
    stack: &'static Place,
    /// Stacks that had it before, and may have accepted from it before they were told.
    former: Vec<&'static Place>,
    /// In the set instead of the listener: readable while connections wait.
    bell: OwnedFd,
    waiting: VecDeque<Given>,
}

/// A connection that a stack has accepted for us.
struct Given {
    stack: &'static Place,
    socket: OwnedFd,
    ends: Ends,
    /// None where its bytes come over TCP.
    slot: Option<(u32, u32)>,
}

/// What an accept of a listener that is lent comes to.
pub enum Arrived {
    /// A descriptor whose bytes a stack carries.
    Carried(RawFd),
    /// One over TCP.
    Tcp(RawFd),
    /// None waits.
    None,
}

/// `epoll_ctl` of a listener that is lent: the bell is in its place. `None` where it is not.
///
/// # Safety
/// As of `epoll_ctl`.
pub unsafe fn ctl_lent(epoll: &Epoll, op: c_int, fd: RawFd, event: *mut epoll_event) -> Option<c_int> {
    if !settings().lends {
        return None;
    }
    let mut world = world();
    let listened = world.listened.iter_mut().find(|l| l.fd == fd && l.set == epoll.id)?;
    let bell = listened.loan.as_ref()?.bell.as_raw_fd();
    // SAFETY: the caller's.
    let done = unsafe { kernel::epoll_ctl(epoll.fd(), op, bell, event) };
    if done == 0 {
        // SAFETY: the kernel has just read it.
        unsafe { listened.asked(op, event) };
    }
    Some(done)
}

/// A listener was put into a set, changed there, or taken out.
///
/// # Safety
/// As of `epoll_ctl`, which has just succeeded with these.
pub unsafe fn registered(set: SetId, op: c_int, fd: RawFd, event: *mut epoll_event) {
    if !settings().lends {
        return;
    }
    let mut world = world();
    let at = match world.listened.iter().position(|l| l.fd == fd && l.set == set) {
        Some(at) => at,
        None => {
            world.listened.push(Listened { fd, set, wanted: (0, 0), is_in: false, loan: None });
            world.listened.len() - 1
        }
    };
    // SAFETY: the caller's.
    unsafe { world.listened[at].asked(op, event) };
    // Lent already, in another set: in this one as well.
    let stack = world.listened.iter().filter(|l| l.fd == fd).find_map(|l| Some(l.loan.as_ref()?.stack));
    if let Some(stack) = stack.filter(|_| op == libc::EPOLL_CTL_ADD) {
        world.listened[at].begin_loan(stack);
    }
}

impl Listened {
    /// # Safety
    /// As of [`registered`].
    unsafe fn asked(&mut self, op: c_int, event: *mut epoll_event) {
        self.is_in = op != libc::EPOLL_CTL_DEL;
        if self.is_in {
            // SAFETY: the kernel has read it, which for these it does.
            let event = unsafe { event.read_unaligned() };
            self.wanted = (event.events, event.u64);
        }
    }

    fn is_at(&self, port: u16) -> bool {
        matches!(fds::get(self.fd), Some(Entry::Listener(endpoint)) if endpoint.port == port)
    }

    /// The bell in the listener's place; false where the kernel has no room for it.
    fn begin_loan(&mut self, stack: &'static Place) -> bool {
        let Some(epoll) = epoll::numbered(self.set) else { return false };
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_eventfd2, 0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return false;
        }
        // SAFETY: just opened, and owned by nothing else.
        let bell = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        if !epoll.put_for_program(libc::EPOLL_CTL_ADD, bell.as_raw_fd(), self.wanted) {
            return false;
        }
        // From here on the program waits for the stack alone.
        epoll.put_for_program(libc::EPOLL_CTL_DEL, self.fd, (0, 0));
        self.loan = Some(Loan { stack, former: Vec::new(), bell, waiting: VecDeque::new() });
        true
    }

    /// Whether a stack may have what another one has: both are of one user, and it has not been replaced itself.
    fn passes_to(&self, stack: &'static Place) -> bool {
        let uid = |place: &Place| place.pair().peer.1;
        self.loan.as_ref().is_some_and(|loan| uid(loan.stack) == uid(stack)) && !self.is_accepted_by(stack)
    }

    /// Lends to this stack what another one has; that one is returned.
    fn pass_loan(&mut self, stack: &'static Place) -> Option<&'static Place> {
        let loan = self.loan.as_mut()?;
        let before = std::mem::replace(&mut loan.stack, stack);
        loan.former.push(before);
        Some(before)
    }

    /// The stack that has it has ended: the one that had it before has it again, or else it is ours.
    fn fall_back(&mut self) {
        let Some(loan) = &mut self.loan else { return };
        let ended = loan.stack;
        while let Some(heir) = loan.former.pop() {
            let Some(Entry::Listener(endpoint)) = fds::get(self.fd) else { break };
            if say(heir, endpoint.port.into(), LENT, &[self.fd]) {
                loan.stack = heir;
                loan.forget(ended);
                return;
            }
        }
        self.end_loan();
    }

    /// Whether the kernel would have given it a connection to this address.
    fn takes(&self, ends: &Ends) -> bool {
        let own = endpoint::name(self.fd, false);
        own.is_some_and(|own| own.port() == ends.1.port() && (own.ip().is_unspecified() || own.ip() == ends.1.ip()))
    }

    fn is_lent_to(&self, place: &'static Place) -> bool {
        self.loan.as_ref().is_some_and(|loan| std::ptr::eq(loan.stack, place))
    }

    /// Whether this stack has it, or had it before the one that has it now.
    fn is_accepted_by(&self, place: &'static Place) -> bool {
        let is = |other: &&'static Place| std::ptr::eq(*other, place);
        self.loan.as_ref().is_some_and(|loan| is(&loan.stack) || loan.former.iter().any(is))
    }

    /// It is ours again. The program knew nothing of the connections that waited for it: they are closed.
    fn end_loan(&mut self) {
        let Some(loan) = self.loan.take() else { return };
        loan.refuse_waiting();
        let Some(epoll) = epoll::numbered(self.set).filter(|_| self.is_in) else { return };
        // Both for a moment rather than none.
        epoll.put_for_program(libc::EPOLL_CTL_ADD, self.fd, self.wanted);
        epoll.put_for_program(libc::EPOLL_CTL_DEL, loan.bell.as_raw_fd(), (0, 0));
    }
}

impl Loan {
    /// The stack need not wait for them.
    fn refuse_waiting(&self) {
        for (stack, (slot, generation)) in self.waiting.iter().filter_map(|given| Some((given.stack, given.slot?))) {
            decline(stack, slot, generation);
        }
    }

    /// A stack has ended, and with it what it had accepted, except for what stays with TCP.
    fn forget(&mut self, place: &'static Place) {
        self.former.retain(|former| !std::ptr::eq(*former, place));
        self.waiting.retain(|given| match given.slot {
            Some((slot, generation)) if std::ptr::eq(given.stack, place) => {
                decline(place, slot, generation);
                false
            }
            _ => true,
        });
        if self.waiting.is_empty() {
            self.answer();
        }
    }

    fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes to a descriptor of ours.
        unsafe { libc::syscall(libc::SYS_write, self.bell.as_raw_fd(), &raw const one, 8) };
    }

    fn answer(&self) {
        let mut count = 0u64;
        // SAFETY: room for eight bytes.
        unsafe { libc::syscall(libc::SYS_read, self.bell.as_raw_fd(), &raw mut count, 8) };
    }
}

/// A stack asks for what listens at a port; where it is to `take_over`, for what another stack has as well. It sees
/// every byte, so it is of our own user or root; whom else we allow may be a client only.
pub fn lend(world: &mut World, place: &'static Place, port: u32, take_over: bool) {
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    let uid = place.pair().peer.1;
    if !settings().lends || (uid != 0 && uid != own) {
        say(place, port, NEVER, &[]);
        return;
    }
    let is_at = |l: &Listened| u16::try_from(port).is_ok_and(|port| l.is_at(port));
    // One that asks again has it already.
    let mut any = world.listened.iter().any(|l| l.is_lent_to(place) && is_at(l));
    let is_free = |l: &Listened| l.loan.is_none() && l.is_in && endpoint::takes_at_once(l.fd);
    let (mut said, mut superseded): (Vec<RawFd>, Vec<&'static Place>) = (Vec::new(), Vec::new());
    for listened in world.listened.iter_mut().filter(|l| is_at(l)) {
        // Whether the program has it in its set or not: what one stack has of a server, the next one has.
        let is_passed = take_over && listened.passes_to(place);
        if !is_passed && (!is_free(listened) || !listened.begin_loan(place)) {
            continue;
        }
        // In several sets it is one listener.
        let is_said = said.contains(&listened.fd) || say(place, port, LENT, &[listened.fd]);
        match (is_said, is_passed) {
            (true, true) => superseded.extend(listened.pass_loan(place)),
            (false, false) => listened.end_loan(),
            // Who has it, has it still.
            (false, true) => continue,
            (true, false) => {}
        }
        if is_said {
            said.push(listened.fd);
            any = true;
        }
    }
    if !any {
        say(place, port, NOT_NOW, &[]);
    }
    superseded.sort_unstable_by_key(|place| std::ptr::from_ref(*place));
    superseded.dedup_by_key(|place| std::ptr::from_ref(*place));
    for before in superseded {
        say(before, port, SUPERSEDED, &[]);
    }
}

/// To a stack, about what listens at a port; false where it has ended, or does not read.
fn say(stack: &Place, port: u32, what: u32, fds: &[RawFd]) -> bool {
    channel::say(&stack.pair().channel, Kind::Listener, port, what, fds).is_ok()
}

/// A stack has accepted a connection for us.
pub fn arrived(world: &mut World, place: &'static Place, slot: u32, generation: u32, socket: Option<OwnedFd>) {
    let slot = (generation != 0).then_some((slot, generation));
    let given = socket.and_then(|socket| {
        let ends = endpoint::ends_of_server(socket.as_raw_fd()).filter(|_| endpoint::is_tcp(socket.as_raw_fd()))?;
        let fits = world.listened.iter_mut().filter(|l| l.is_in && l.is_accepted_by(place) && l.takes(&ends));
        // Of several sets the one with the least to do.
        let loan = fits.filter_map(|l| l.loan.as_mut()).min_by_key(|loan| loan.waiting.len())?;
        Some((loan, ends, socket))
    });
    match (given, slot) {
        (Some((loan, ends, socket)), slot) => {
            loan.waiting.push_back(Given { stack: place, socket, ends, slot });
            loan.ring();
        }
        // Reset meanwhile, no connection of this listener, or no descriptor for it.
        (None, Some((slot, generation))) => decline(place, slot, generation),
        (None, None) => {}
    }
}

/// The next connection at a listener that is lent; `None` where it is not.
pub fn accept_lent(fd: RawFd, nonblocking: bool, on_exec: bool) -> Option<Arrived> {
    if !settings().lends {
        return None;
    }
    let mut world = world();
    let lent = || world.listened.iter().filter(|l| l.fd == fd && l.loan.is_some());
    let has_one = |l: &&Listened| l.loan.as_ref().is_some_and(|loan| !loan.waiting.is_empty());
    let set = lent().find(has_one).or(lent().next())?.set;
    let loan = world.listened.iter_mut().find(|l| l.fd == fd && l.set == set)?.loan.as_mut()?;
    while let Some(Given { stack: place, socket, ends, slot }) = loan.waiting.pop_front() {
        if loan.waiting.is_empty() {
            loan.answer();
        }
        let is_there = endpoint::name(socket.as_raw_fd(), true).is_some();
        let Some((slot, generation)) = slot else {
            if !is_there {
                continue; // reset meanwhile
            }
            if !nonblocking {
                let flags = kernel::flags(socket.as_raw_fd()) & !libc::O_NONBLOCK;
                // SAFETY: no pointers.
                unsafe { libc::syscall(libc::SYS_fcntl, socket.as_raw_fd(), libc::F_SETFL, flags) };
            }
            return Some(Arrived::Tcp(named(socket, on_exec)));
        };
        let Some(words) = place.pair().slot(slot) else { continue };
        // One that ended meanwhile is closed here.
        if !is_there || socket.as_raw_fd() as usize >= fds::MOST || !words.advance(generation, OFFERED, TAKEN) {
            decline(place, slot, generation);
            continue;
        }
        let fd = named(socket, on_exec);
        let Some((stream, entry)) = fds::new_stream(fd, state::SETTLING, nonblocking) else { continue };
        stream.of_stack.store(true, Ordering::Relaxed);
        if let Ok(mut known) = stream.ends.lock() {
            *known = Some(ends);
        }
        epoll::adopt(stream, place, Link::new(place.arc(), slot, generation));
        place.set_stream(slot, Some(stream));
        fds::put(fd, Some(entry));
        if let Some(bell) = place.pair().tell(slot, words) {
            ring(place, bell);
        }
        return Some(Arrived::Carried(fd));
    }
    loan.answer();
    Some(Arrived::None)
}

/// The descriptor for the program, closed by exec or not.
fn named(socket: OwnedFd, on_exec: bool) -> RawFd {
    let fd = socket.into_raw_fd();
    if !on_exec {
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFD, 0) };
    }
    fd
}

/// A listener is about to be closed: it is lent no more.
pub fn take_home(fd: RawFd) {
    if !settings().lends {
        return;
    }
    gone(&mut world(), |l| l.fd == fd);
}

/// Listeners, or the sets they were in, are closed.
fn gone(world: &mut World, which: impl Fn(&Listened) -> bool) {
    let closed: Vec<Listened> = world.listened.extract_if(.., |l| which(l)).collect();
    for mut listened in closed {
        let Some(loan) = &listened.loan else { continue };
        let stack = loan.stack;
        listened.is_in = false;
        if let Some(epoll) = epoll::numbered(listened.set) {
            epoll.put_for_program(libc::EPOLL_CTL_DEL, loan.bell.as_raw_fd(), (0, 0));
        }
        listened.end_loan();
        // Without saying which: the stack lets go of all of them, and asks again for those that are left.
        world.listened.iter_mut().filter(|l| l.is_lent_to(stack)).for_each(Listened::end_loan);
        say(stack, 0, NOT_NOW, &[]);
    }
}

/// In the child of a fork: by number, since all of it is the parent's in memory.
pub fn close_in_child(world: &mut World) {
    let close = |fd: RawFd| {
        // SAFETY: no pointers; what owns it here is never looked at again.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    };
    let mut channels: Vec<RawFd> = Vec::new();
    for loan in world.listened.iter().filter_map(|l| l.loan.as_ref()) {
        let stacks = loan.former.iter().chain([&loan.stack]);
        channels.extend(stacks.map(|stack| stack.pair().channel.as_raw_fd()));
        close(loan.bell.as_raw_fd());
        loan.waiting.iter().for_each(|given| close(given.socket.as_raw_fd()));
    }
    channels.sort_unstable();
    channels.dedup();
    channels.into_iter().for_each(close);
}

/// The process that has what listens at this port.
pub fn borrower(world: &World, port: u16) -> Option<(i32, Option<[u64; TALLIED]>)> {
    let lent = world.listened.iter().find(|l| l.loan.is_some() && l.is_at(port))?;
    lent.loan.as_ref().map(|loan| (loan.stack.pair().peer.0, loan.stack.pair().tally().numbers()))
}

/// A stack has ended: what was lent to it is its predecessor's again, or ours.
pub fn stack_ended(world: &mut World, place: &'static Place) {
    for listened in &mut world.listened {
        if listened.is_lent_to(place) {
            listened.fall_back();
        } else if let Some(loan) = &mut listened.loan {
            loan.forget(place);
        }
    }
}

/// A set is closed.
pub fn no_set(world: &mut World, set: SetId) {
    gone(world, |l| l.set == set);
}
