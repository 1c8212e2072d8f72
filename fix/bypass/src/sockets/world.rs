//! The other processes: meeting them, offering connections, taking offers.
//!
//! ```text
//!   client                          slot        server
//!   connected: Offer with addresses OFFERED ->  accepted, and in an epoll set?
//!   resolve: Proof with the socket  <-  ASKED   yes: asks
//!                                               are_one_connection? takes it
//!   resolve: a Link                 <-  TAKEN
//! ```
//!
//! Either side may end an offer at any time before it is taken (DECLINED).

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::board::Board;
use crate::channel::{self, Heard, Kind, Message, REFUSED_USER, REFUSED_VERSION, Rendezvous, Rule};
use crate::endpoint::{self, Endpoint, Ends};
use crate::link::Link;
use crate::local::{Local, Waiter};
use crate::memory::Memory;
use crate::pair::{ASKED, Close, OFFERED, Pair, Side, TAKEN};
use crate::signals::Quiet;

use super::epoll::{self, Epoll};
use super::fds::{self, Claim, Entry, Offer, Place, Stream, state};
use super::refusals::{By, Refusals};
use super::{kernel, now_ns};

/// How long a new connection waits for its server to take the offer before it keeps using TCP; counted again from when
/// the server has asked for its socket. A server that is busy for longer would not have answered over TCP either; one
/// that cannot take it costs its clients this once.
const PATIENCE_NS: u64 = 150_000_000;
/// An offer whose connection was not accepted within this is forgotten; its client has long given up.
const EARLY_NS: u64 = 1_000_000_000;
/// Messages of one peer, and guests, that are dealt with in one go.
const AT_ONCE: usize = 64;

/// What the environment says.
#[derive(Debug, Default)]
pub struct Settings {
    pub server: bool,
    pub client: bool,
    pub rule: Rule,
}

pub static SETTINGS: OnceLock<Settings> = OnceLock::new();

pub fn settings() -> &'static Settings {
    static NONE: Settings = Settings { server: false, client: false, rule: Rule::none() };
    SETTINGS.get().unwrap_or(&NONE)
}

/// Where clients of an endpoint meet us, and the set whose waits attend to them.
struct Meeting {
    endpoint: Endpoint,
    rendezvous: Rendezvous,
    watch: &'static Epoll,
}

/// A visitor that has not said hello yet.
struct Guest {
    channel: OwnedFd,
    who: libc::ucred,
    endpoint: Endpoint,
    watch: &'static Epoll,
}

/// An offer whose connection we have not accepted yet.
struct Early {
    place: &'static Place,
    slot: u32,
    generation: u32,
    ends: Ends,
    since: u64,
}

#[derive(Default)]
pub struct World {
    meetings: Vec<Meeting>,
    guests: Vec<Guest>,
    /// The channels of the last visitors that were refused.
    refused: Vec<OwnedFd>,
    refusals: Refusals,
    /// Clients of ours, by channel.
    clients: Vec<&'static Place>,
    /// Servers of ours.
    servers: Vec<&'static Place>,
    /// Servers of users who are not allowed.
    strangers: HashSet<PathBuf>,
    /// Connections we accepted that may be offered.
    candidates: HashMap<Ends, &'static Stream>,
    early: Vec<Early>,
}

impl World {
    /// Offers with these addresses that were waiting for the connection.
    fn take_early(&mut self, ends: &Ends) -> Vec<Early> {
        self.early.extract_if(.., |early| early.ends == *ends).collect()
    }
}

static WORLD: AtomicPtr<Mutex<World>> = AtomicPtr::new(std::ptr::null_mut());
static LOCAL: AtomicPtr<Local> = AtomicPtr::new(std::ptr::null_mut());

/// The world, locked; signal handlers wait until it is not.
pub struct Locked {
    world: MutexGuard<'static, World>,
    _quiet: Quiet,
}

impl Deref for Locked {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

pub fn world() -> Locked {
    let _quiet = Quiet::begin();
    let mut world = WORLD.load(Ordering::Acquire);
    if world.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(World::default())));
        match WORLD.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => world = new,
            Err(other) => world = other,
        }
    }
    // SAFETY: leaked, never freed.
    let world = unsafe { &*world }.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Locked { world, _quiet }
}

/// What is asked of the world where nobody may wait for it: in signal handlers, at the end.
fn if_free<T>(ask: impl FnOnce(&mut World) -> T) -> Option<T> {
    let world = std::ptr::NonNull::new(WORLD.load(Ordering::Acquire))?;
    // SAFETY: leaked, never freed.
    let mut world = unsafe { world.as_ref() }.try_lock().ok()?;
    Some(ask(&mut world))
}

/// In the child of a fork: nothing of the parent's is ours.
pub fn forget() {
    WORLD.store(std::ptr::null_mut(), Ordering::Release);
    LOCAL.store(std::ptr::null_mut(), Ordering::Release);
}

/// Our board; `None` where there can be none.
pub fn local() -> Option<&'static Local> {
    let known = LOCAL.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: leaked, never freed.
        return Some(unsafe { &*known });
    }
    let _guard = world();
    if LOCAL.load(Ordering::Acquire).is_null() {
        match Local::create() {
            Ok(local) => LOCAL.store(std::ptr::from_ref(local).cast_mut(), Ordering::Release),
            Err(e) => {
                super::step_aside(&format!("no shared memory ({e})"));
                return None;
            }
        }
    }
    // SAFETY: as above.
    Some(unsafe { &*LOCAL.load(Ordering::Acquire) })
}

/// Lets the other side of a place know a waiter of ours, before it is named in a slot. False when it could not be told:
/// then nobody can wake this waiter.
pub fn introduce(place: &'static Place, waiter: &Waiter) -> bool {
    if place.pair().told(waiter.number) {
        return true;
    }
    let _quiet = Quiet::begin();
    // One at a time: nobody names a waiter that is still being told.
    let Ok(_guard) = place.heard.lock() else { return false };
    if place.pair().told(waiter.number) {
        return true;
    }
    let fds = [waiter.doorbell.as_raw_fd()];
    for _ in 0..50 {
        match channel::say(&place.pair().channel, Kind::Waiter, waiter.number, 0, &fds) {
            Ok(()) => {
                place.pair().set_told(waiter.number);
                return true;
            }
            // It has not read what was said before.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => pause(200_000),
            Err(_) => return false,
        }
    }
    false
}

/// Rings a waiter of the other side, whose doorbell may still be on its way to us.
pub fn ring(place: &'static Place, waiter: u32) {
    if !place.pair().can_ring(waiter) {
        let _quiet = Quiet::begin();
        hear(place);
    }
    place.pair().ring(waiter);
}

/// Claims that were heard on the way to something else wait for [`attend`].
static PARKED: AtomicBool = AtomicBool::new(false);

/// Deals with them, if there are any.
#[inline]
pub fn attend_parked() {
    if PARKED.load(Ordering::Relaxed) && PARKED.swap(false, Ordering::AcqRel) {
        attend();
    }
}

/// What the other side of a place has said; false when it has left. A client's claims are kept for [`attend`].
fn hear(place: &'static Place) -> bool {
    let Ok(mut inbox) = place.heard.lock() else { return false };
    // A peer that talks without end has its turn again later.
    for _ in 0..AT_ONCE {
        if inbox.len() >= AT_ONCE {
            return true;
        }
        match channel::hear(&place.pair().channel) {
            Heard::Message(kind @ (Kind::Offer | Kind::Proof), message, mut fds) => {
                let claim = match kind {
                    Kind::Offer => Some(Claim::Offered(message.ends())),
                    _ => fds.pop().map(Claim::Proven),
                };
                // A server has nothing to offer.
                if let Some(claim) = claim.filter(|_| place.pair().side == Side::Server) {
                    inbox.push((message.a, message.b, claim));
                    PARKED.store(true, Ordering::Release);
                }
            }
            Heard::Message(kind, message, fds) => heard(place, kind, &message, fds),
            Heard::Nothing => return true,
            Heard::Gone | Heard::Strange(_) => {
                place.pair().dead.store(true, Ordering::Release);
                return false;
            }
        }
    }
    true
}

fn heard(place: &'static Place, kind: Kind, message: &Message, mut fds: Vec<OwnedFd>) {
    match (kind, fds.pop()) {
        (Kind::Welcome, Some(board)) => match Board::of_peer(&board) {
            Ok(board) => {
                place.pair().set_board(board);
                place.welcome.store(true, Ordering::Release);
            }
            Err(_) => place.pair().dead.store(true, Ordering::Release),
        },
        (Kind::Refused, _) if place.refused.swap(message.a.max(1), Ordering::AcqRel) == 0 => {
            super::tell(&format!("the server refuses this user or version (reason {}): TCP", message.a));
        }
        (Kind::Waiter, Some(doorbell)) if is_eventfd(&doorbell) => {
            place.pair().set_doorbell(message.a, doorbell);
            // Whoever wanted to ring it before could not.
            place.pair().ring(message.a);
        }
        _ => {}
    }
}

/// Doorbells are eventfds: writing to anything else of a peer's could block, or raise a signal.
fn is_eventfd(fd: &OwnedFd) -> bool {
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor of ours and room for the answer.
    let known = unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } == 0;
    // Neither file nor pipe nor socket: of what is left none blocks when it was opened so.
    known && stat.st_mode & libc::S_IFMT == 0 && kernel::flags(fd.as_raw_fd()) & libc::O_NONBLOCK != 0
}

/// Sleeps for so many nanoseconds.
pub fn pause(ns: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: a live timespec.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, 0) };
}

// The server's side.

/// A socket listens. Clients can meet us there once it is in an epoll set: only a wait in a set attends to them, and a
/// server that takes its connections in another way (poll, select, a blocking accept) is never met.
pub fn listening(fd: RawFd) {
    if !settings().server || fds::get(fd).is_some() {
        return;
    }
    let Some(address) = endpoint::name(fd, false) else { return };
    let Some(netns) = endpoint::netns(fd) else { return super::step_aside(endpoint::NO_NETNS) };
    let endpoint = Endpoint { port: address.port(), netns };
    fds::put(fd, Some(Box::leak(Box::new(Entry::Listener(endpoint)))));
    LISTENED.store(true, Ordering::Relaxed);
}

/// A listening socket came into an epoll set: from now on clients can meet us there.
pub fn open_rendezvous(endpoint: Endpoint, watch: &'static Epoll) {
    if !settings().server || local().is_none() {
        return;
    }
    let mut world = world();
    // One for the endpoint, on however many addresses it listens.
    if world.meetings.iter().any(|m| m.endpoint == endpoint) {
        return;
    }
    let rendezvous = match Rendezvous::open(endpoint) {
        Ok(rendezvous) => rendezvous,
        Err(e) => return super::step_aside(&format!("no rendezvous: {e}")),
    };
    if !watch.watch(rendezvous.fd.as_raw_fd(), epoll::Hidden::Rendezvous) {
        return super::step_aside("the epoll set takes no more descriptors");
    }
    MET.store(true, Ordering::Relaxed);
    world.meetings.push(Meeting { endpoint, rendezvous, watch });
    // Clients whose set was closed: this one notices when they end.
    for place in &world.clients {
        if let Ok(mut at) = place.watch.lock()
            && at.is_none()
            && watch.watch(place.pair().channel.as_raw_fd(), epoll::Hidden::Channel)
        {
            *at = Some(watch);
        }
    }
}

/// The listening socket is closed.
pub fn close_rendezvous(endpoint: Endpoint) {
    world().meetings.retain(|m| m.endpoint != endpoint);
}

static LISTENED: AtomicBool = AtomicBool::new(false);
static MET: AtomicBool = AtomicBool::new(false);

/// Whether clients could meet us at any time; or our children, who watch what we listen at.
pub fn was_met() -> bool {
    MET.load(Ordering::Relaxed)
}

/// What listens here may be put into a set by the child, as with nginx: then the child is met.
pub fn before_fork() {
    MET.fetch_or(LISTENED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// At the end of the program: sockets in directories are taken away.
pub fn leave() {
    if_free(|world| world.meetings.clear());
}

/// A visitor has come, or a client has said something.
pub fn attend() {
    let mut world = world();
    let world = &mut *world;
    for Meeting { endpoint, rendezvous, watch } in &world.meetings {
        for _ in 0..AT_ONCE {
            let Some((channel, who)) = rendezvous.accept() else { break };
            if !settings().rule.allows(&who) {
                world.refusals.count(*endpoint, By::Server, REFUSED_USER, who.uid);
                let _ = channel::say(&channel, Kind::Refused, REFUSED_USER, 0, &[]);
                // Closed at once, with something of theirs unread, they would see a reset instead.
                if world.refused.len() >= 16 {
                    world.refused.remove(0);
                }
                world.refused.push(channel);
                continue;
            }
            // One that no wait attends to is sent away.
            if watch.watch(channel.as_raw_fd(), epoll::Hidden::Channel) {
                world.guests.push(Guest { channel, who, endpoint: *endpoint, watch });
            }
        }
    }
    let mut at = 0;
    while at < world.guests.len() {
        match channel::hear(&world.guests[at].channel) {
            Heard::Nothing => at += 1,
            Heard::Gone => drop(world.guests.swap_remove(at)),
            Heard::Strange(_) => {
                let guest = world.guests.swap_remove(at);
                world.refusals.count(guest.endpoint, By::Server, REFUSED_VERSION, guest.who.uid);
                let _ = channel::say(&guest.channel, Kind::Refused, REFUSED_VERSION, 0, &[]);
            }
            Heard::Message(Kind::Refused, message, _) => {
                let guest = world.guests.swap_remove(at);
                world.refusals.count(guest.endpoint, By::Client, message.a, guest.who.uid);
            }
            Heard::Message(Kind::List, ..) => {
                let guest = world.guests.swap_remove(at);
                list(world, guest.endpoint, &guest.channel);
            }
            Heard::Message(Kind::Hello, _, fds) => {
                let guest = world.guests.swap_remove(at);
                welcome(world, guest, fds);
            }
            Heard::Message(..) => drop(world.guests.swap_remove(at)),
        }
    }
    let mut at = 0;
    while at < world.clients.len() {
        let place = world.clients[at];
        let there = hear(place);
        let claims = place.heard.lock().map(|mut inbox| std::mem::take(&mut *inbox)).unwrap_or_default();
        for (slot, generation, claim) in claims {
            match claim {
                Claim::Offered(ends) => offered(world, place, slot, generation, ends),
                Claim::Proven(socket) => proven(world, place, slot, generation, &socket),
            }
        }
        if there {
            at += 1;
        } else {
            world.clients.swap_remove(at);
            world.early.retain(|e| !std::ptr::eq(e.place, place));
            farewell(place);
        }
    }
    let now = now_ns();
    let open = |e: &Early| e.place.pair().slot(e.slot).is_some_and(|s| s.state(e.generation) == OFFERED);
    world.early.retain(|e| e.since + EARLY_NS > now && open(e));
}

fn welcome(world: &mut World, guest: Guest, fds: Vec<OwnedFd>) {
    let Guest { channel, who, watch, .. } = guest;
    let [memory, board] = match <[OwnedFd; 2]>::try_from(fds) {
        Ok(fds) => fds,
        Err(_) => return,
    };
    let Some(local) = local_in(world) else { return };
    let pair = Pair::of_client(channel, (who.pid, who.uid), &memory).and_then(|pair| {
        pair.set_board(Board::of_peer(&board)?);
        Ok(pair)
    });
    match pair {
        Ok(pair) => {
            let _ = channel::say(&pair.channel, Kind::Welcome, 0, 0, &[local.board_fd.as_raw_fd()]);
            let place = Place::new(pair, None);
            if let Ok(mut at) = place.watch.lock() {
                *at = Some(watch);
            }
            world.clients.push(place);
        }
        Err(e) => super::tell(&format!("a client's memory is not to be trusted ({e}): it stays with TCP")),
    }
}

/// As [`local`], where the world is locked already.
fn local_in(_world: &World) -> Option<&'static Local> {
    // SAFETY: leaked, never freed.
    unsafe { LOCAL.load(Ordering::Acquire).as_ref() }
}

/// The other process has ended, or become another program.
fn farewell(place: &'static Place) {
    if let Some(watch) = place.watch.lock().ok().and_then(|mut w| w.take()) {
        watch.unwatch(place.pair().channel.as_raw_fd());
    }
    place.bury();
    epoll::forget_place(place);
    for stream in place.streams() {
        if let Some(link) = stream.link() {
            super::streams::look_at_tcp(stream);
            link.tcp_ended(false);
            epoll::look_again(stream);
        }
    }
}

/// A client offers a connection with these addresses, as it says: nothing is carried before it has shown its socket.
fn offered(world: &mut World, place: &'static Place, slot: u32, generation: u32, ends: Ends) {
    let Some(words) = place.pair().slot(slot) else { return };
    if world.candidates.get(&ends).is_some_and(|stream| stream.epoll().is_some()) {
        ask(place, slot, generation);
    } else if words.state(generation) == OFFERED {
        world.early.push(Early { place, slot, generation, ends, since: now_ns() });
    }
}

/// The connection is here and waits in a set: its client shows its socket next.
fn ask(place: &'static Place, slot: u32, generation: u32) {
    let Some(words) = place.pair().slot(slot) else { return };
    if words.advance(generation, OFFERED, ASKED)
        && let Some(bell) = place.pair().tell(slot, words)
    {
        ring(place, bell);
    }
}

/// A client has shown the socket of a connection: it is carried if that is the other end of one that we accepted. Their
/// addresses are compared now, of two sockets that are open now: what was true when the offer was made proves nothing.
fn proven(world: &mut World, place: &'static Place, slot: u32, generation: u32, socket: &OwnedFd) {
    let ends = endpoint::ends_of_client(socket.as_raw_fd());
    let stream = ends.and_then(|ends| world.candidates.get(&ends).copied());
    let stream = stream.filter(|stream| endpoint::are_one_connection(socket.as_raw_fd(), stream.fd()));
    match (stream, ends) {
        (Some(stream), Some(ends)) if take(stream, place, slot, generation) => _ = world.candidates.remove(&ends),
        _ => decline(place, slot, generation),
    }
}

/// An offer is not taken, and its client need not wait any longer.
fn decline(place: &'static Place, slot: u32, generation: u32) {
    let Some(words) = place.pair().slot(slot) else { return };
    if words.decline(generation)
        && let Some(bell) = place.pair().tell(slot, words)
    {
        place.pair().ring(bell);
    }
}

/// The connection of a stream goes over shared memory from now on, if nothing speaks against it.
fn take(stream: &'static Stream, place: &'static Place, slot: u32, generation: u32) -> bool {
    let Some(words) = place.pair().slot(slot) else { return false };
    if stream.fixed.load(Ordering::Acquire)
        || place.stream(slot).is_some_and(|s| s.link().is_some_and(|l| !l.is_closed()))
    {
        return false;
    }
    let Some(waiter) = stream.epoll().and_then(|epoll| epoll.waiter()) else { return false };
    if !introduce(place, waiter) {
        return false;
    }
    words.set_waiter(place.pair().side, waiter.number);
    if !words.advance(generation, ASKED, TAKEN) {
        return false;
    }
    let link = Link::new(place.arc(), slot, generation);
    epoll::adopt(stream, place, link);
    place.set_stream(slot, Some(stream));
    epoll::look_again(stream);
    if let Some(bell) = place.pair().tell(slot, words) {
        ring(place, bell);
    }
    true
}

/// A connection was accepted: if it comes from this machine it may be offered, or was already.
pub fn accepted(fd: RawFd, nonblocking: bool) {
    let Some(ends) = endpoint::ends_of_server(fd).filter(endpoint::same_host) else { return };
    let mut world = world();
    if world.meetings.is_empty() {
        return;
    }
    let Some((stream, entry)) = fds::new_stream(fd, state::CANDIDATE, nonblocking) else { return };
    if let Ok(mut place) = stream.ends.lock() {
        *place = Some(ends);
    }
    fds::put(fd, Some(entry));
    world.candidates.insert(ends, stream);
}

/// An accepted connection came into a set: from now on it can be taken, and perhaps it was offered already. Anyone can
/// claim its addresses, so all who did are asked.
pub fn watched(world: &mut World, stream: &'static Stream) {
    let Some(ends) = stream.ends.lock().ok().and_then(|ends| *ends) else { return };
    for Early { place, slot, generation, .. } in world.take_early(&ends) {
        ask(place, slot, generation);
    }
}

/// A set is closed in which rendezvous and channels were watched: clients cannot meet us until a listener is watched
/// again.
pub fn no_watch(set: &Epoll) {
    let mut world = world();
    world.meetings.retain(|m| !std::ptr::eq(m.watch, set));
    world.guests.retain(|g| !std::ptr::eq(g.watch, set));
    for place in &world.clients {
        if let Ok(mut watch) = place.watch.lock()
            && watch.is_some_and(|w| std::ptr::eq(w, set))
        {
            *watch = None;
        }
    }
}

/// A stream is no candidate any more.
pub fn no_candidate(stream: &'static Stream) {
    let Some(ends) = stream.ends.lock().ok().and_then(|ends| *ends) else { return };
    let mut world = world();
    world.candidates.remove(&ends);
    for Early { place, slot, generation, .. } in world.take_early(&ends) {
        decline(place, slot, generation);
    }
}

/// The connections at an endpoint of ours, and what was refused there.
fn list(world: &World, endpoint: Endpoint, to: &OwnedFd) {
    use std::io::Write;
    let at_port = |ends: &Ends| ends.1.port() == endpoint.port;
    let mut text = world.refusals.lines(endpoint).into_bytes();
    for place in &world.clients {
        for stream in place.streams() {
            let (Some(link), Ok(ends)) = (stream.link(), stream.ends.lock()) else { continue };
            if !ends.as_ref().is_some_and(at_port) {
                continue;
            }
            let (read, written) = link.totals();
            let (pid, uid) = place.pair().peer;
            let peer = ends.map(|(theirs, _)| theirs.to_string()).unwrap_or_default();
            let _ = writeln!(
                text,
                "{{\"fd\":{},\"peer\":\"{peer}\",\"client_pid\":{pid},\"client_uid\":{uid},\"read_bytes\":{read},\"written_bytes\":{written},\"waiting_bytes\":{}}}",
                stream.fd(),
                link.waiting(),
            );
        }
    }
    let size = text.len().max(1);
    if let Ok((memory, fd)) = Memory::create(c"unslow-bypass-list", size, false) {
        // SAFETY: `size` bytes of our own new memory.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), memory.base(), text.len()) };
        let over_tcp = world.candidates.keys().filter(|ends| at_port(ends)).count() as u32;
        let _ = channel::say(to, Kind::Listing, text.len() as u32, over_tcp, &[fd.as_raw_fd()]);
    }
}

// The client's side.

/// A TCP connection to this machine is there, or about to be: offers it to the servers at that endpoint.
pub fn connected(fd: RawFd) {
    let Some(ends) = endpoint::ends_of_client(fd).filter(endpoint::same_host) else { return };
    let Some(netns) = endpoint::netns(fd) else { return super::step_aside(endpoint::NO_NETNS) };
    let endpoint = Endpoint { port: ends.1.port(), netns };
    let _quiet = Quiet::begin();
    forget_ended_servers();
    fds::settle_when_due(now_ns());
    let mut places = Vec::new();
    for server in channel::directories().iter().flat_map(|directory| channel::servers_in(directory)) {
        if server.endpoint == endpoint {
            places.extend(server_at(server.path));
        }
    }
    if places.is_empty() {
        return;
    }
    let nonblocking = kernel::flags(fd) & libc::O_NONBLOCK != 0;
    let Some((stream, entry)) = fds::new_stream(fd, state::PENDING, nonblocking) else { return };
    if let Ok(mut place) = stream.ends.lock() {
        *place = Some(ends);
    }
    stream.deadline.store(now_ns() + PATIENCE_NS, Ordering::Relaxed);
    let mut offers = Vec::new();
    for place in places {
        let Some((slot, generation)) = place.pair().take_slot() else { continue };
        place.set_stream(slot, Some(stream));
        if channel::offer(&place.pair().channel, slot, generation, &ends).is_ok() {
            offers.push(Offer { place, slot, generation, shown: false });
        } else {
            take_back(place, slot, generation);
        }
    }
    if offers.is_empty() {
        return fds::retire(entry);
    }
    if let Ok(mut place) = stream.offers.lock() {
        *place = offers;
    }
    fds::put(fd, Some(entry));
}

/// Ends an offer of ours that was not taken; its slot is used again.
fn take_back(place: &'static Place, slot: u32, generation: u32) {
    let pair = place.arc();
    if let Some(words) = pair.slot(slot) {
        words.decline(generation);
    }
    // Before the slot may be another's.
    place.set_stream(slot, None);
    pair.retire(slot, generation, [None; 2]);
}

/// Whether a descriptor is still the connection that is known by it.
pub fn is_still(stream: &Stream, fd: RawFd) -> bool {
    let now = endpoint::ends_of_client(fd);
    let _quiet = Quiet::begin();
    now.is_some() && stream.ends.lock().is_ok_and(|ends| *ends == now)
}

/// Servers that have ended or were restarted are met no more: what is held of them is let go of.
fn forget_ended_servers() {
    let mut world = world();
    let mut at = 0;
    while at < world.servers.len() {
        let place = world.servers[at];
        if hear(place) {
            at += 1;
        } else {
            world.servers.swap_remove(at);
            farewell(place);
        }
    }
}

fn server_at(path: PathBuf) -> Option<&'static Place> {
    let local = local()?;
    let mut world = world();
    // A program that is client and server does not meet itself.
    if world.meetings.iter().any(|m| m.rendezvous.path == path) {
        return None;
    }
    if let Some(place) = world.servers.iter().find(|p| p.path.lock().is_ok_and(|p| p.as_ref() == Some(&path))) {
        return (place.refused.load(Ordering::Acquire) == 0).then_some(*place);
    }
    let (channel, who) = channel::meet(&path).ok()?;
    if !settings().rule.allows(&who) {
        let (at, uid) = (path.display(), who.uid);
        let said = format!("{at} is of user {uid}, who is not allowed: TCP (--allow uid:{uid})");
        // Once, not for every connection; the server counts it, for `unslow bypass ls`.
        if world.strangers.insert(path) {
            let _ = channel::say(&channel, Kind::Refused, REFUSED_USER, 0, &[]);
            super::tell(&said);
        }
        return None;
    }
    let (pair, memory) = Pair::create(channel, (who.pid, who.uid)).ok()?;
    let fds = [memory.as_raw_fd(), local.board_fd.as_raw_fd()];
    channel::say(&pair.channel, Kind::Hello, std::process::id(), 0, &fds).ok()?;
    let place = Place::new(pair, Some(path));
    world.servers.push(place);
    Some(place)
}

/// Whether it is not known yet how a connection of ours goes on.
pub fn is_open(stream: &Stream) -> bool {
    matches!(stream.state.load(Ordering::Acquire), state::PENDING | state::SETTLING)
}

/// Whether it is known by now how a pending connection goes on; decides it when time is up, or `at_once`.
pub fn resolve(stream: &'static Stream, at_once: bool) -> bool {
    if !is_open(stream) {
        return true;
    }
    let _quiet = Quiet::begin();
    let Ok(mut offers) = stream.offers.lock() else { return true };
    match stream.state.load(Ordering::Acquire) {
        state::PENDING => {}
        settling => return settling != state::SETTLING,
    }
    if !at_once && show(stream, &mut offers) {
        // The server is there, and has its time from now, however late we looked.
        stream.deadline.fetch_max(now_ns() + PATIENCE_NS, Ordering::Relaxed);
    }
    let late = at_once || now_ns() >= stream.deadline.load(Ordering::Relaxed);
    let mut taken = None;
    let mut open = 0;
    for (i, offer) in offers.iter().enumerate() {
        let Some(words) = offer.place.pair().slot(offer.slot) else { continue };
        if late || offer.place.pair().dead.load(Ordering::Acquire) {
            words.decline(offer.generation);
        }
        match words.state(offer.generation) {
            TAKEN if taken.is_none() => taken = Some(i),
            OFFERED | ASKED => open += 1,
            _ => {}
        }
    }
    if taken.is_none() && open > 0 {
        return false;
    }
    if let Some(offer) = taken.and_then(|i| offers.get(i)) {
        hear(offer.place);
        if !offer.place.welcome.load(Ordering::Acquire) && !late {
            return false;
        }
    }
    let all = std::mem::take(&mut *offers);
    // Others find it settling until it is decided for all of them.
    stream.state.store(state::SETTLING, Ordering::Release);
    drop(offers);
    let mut link = None;
    for (i, offer) in all.into_iter().enumerate() {
        let Offer { place, slot, generation, .. } = offer;
        if taken == Some(i) {
            let new = Link::new(place.arc(), slot, generation);
            if place.welcome.load(Ordering::Acquire) {
                link = Some((place, new));
                continue;
            }
            // The server has it, and we do not know how to wake the server.
            place.set_stream(slot, None);
            new.close(Close::Clean);
            continue;
        }
        take_back(place, slot, generation);
    }
    match link {
        Some((place, link)) => epoll::adopt(stream, place, link),
        None => plain(stream),
    }
    true
}

/// Shows our socket to the servers that have just asked for it; whether there was one. Each has read the offer, and
/// waits: so it reads this as well, and the socket does not lie in its queue for longer than a turn of its loop.
fn show(stream: &'static Stream, offers: &mut [Offer]) -> bool {
    let mut any = false;
    for offer in offers.iter_mut().filter(|offer| !offer.shown) {
        let pair = offer.place.pair();
        let asked = pair.slot(offer.slot).is_some_and(|words| words.state(offer.generation) == ASKED);
        // The program may have closed it behind our back, and the number be another file's.
        if asked && is_still(stream, stream.fd()) {
            let proof = [stream.fd()];
            offer.shown = channel::say(&pair.channel, Kind::Proof, offer.slot, offer.generation, &proof).is_ok();
            any |= offer.shown;
        }
    }
    any
}

/// The stream goes on over TCP.
fn plain(stream: &'static Stream) {
    epoll::to_tcp(stream);
    stream.state.store(state::PLAIN, Ordering::Release);
    fds::put(stream.fd(), None);
    if let Some(entry) = entry_of(stream) {
        fds::retire(entry);
    }
}

/// Offers of a stream that is closed before they were answered.
pub fn withdraw(stream: &'static Stream, how: Close) {
    let Ok(mut offers) = stream.offers.lock() else { return };
    for Offer { place, slot, generation, .. } in offers.drain(..) {
        if let Some(words) = place.pair().slot(slot)
            && !words.decline(generation)
            && words.state(generation) == TAKEN
        {
            // Taken just now: it is closed as any other.
            let link = Link::new(place.arc(), slot, generation);
            hear(place);
            place.enter(); // until its end is rung
            place.set_stream(slot, None);
            if let Some(bell) = link.close(how) {
                ring(place, bell);
            }
            place.leave();
            continue;
        }
        take_back(place, slot, generation);
    }
}

pub fn entry_of(stream: &'static Stream) -> Option<&'static Entry> {
    fds::entry_at(stream.index)
}
