//! The other processes: meeting them, offering connections, taking offers.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::board::Board;
use crate::channel::{self, Heard, Kind, Message, Rendezvous, Rule};
use crate::link::Link;
use crate::local::{Local, Waiter};
use crate::memory::Memory;
use crate::pair::{DECLINED, OFFERED, Pair, TAKEN};

use super::epoll::{self, Epoll};
use super::fds::{self, Entry, Offer, Place, Stream, state};
use super::{kernel, now_ns};

/// How long a new connection waits for its server to take the offer, before it goes on over TCP. A server that is busy for
/// longer would not have answered over TCP either; one that cannot take it costs its clients this once.
const PATIENCE_NS: u64 = 150_000_000;
/// An offer whose connection was not accepted within this is forgotten; its client has long gone on.
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

/// The addresses of a connection: the client's, the server's.
pub type Ends = (SocketAddr, SocketAddr);

/// One who came and has not said hello yet.
struct Guest {
    channel: OwnedFd,
    who: libc::ucred,
    watch: Option<&'static Epoll>,
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
    rendezvous: Vec<(u16, Rendezvous, &'static Epoll)>,
    /// Those of sockets that listen and are in no set yet.
    prepared: Vec<(u16, Rendezvous)>,
    guests: Vec<Guest>,
    /// The last who were sent away.
    refused: Vec<OwnedFd>,
    /// Clients of ours, by channel.
    clients: Vec<&'static Place>,
    /// Servers of ours.
    servers: Vec<&'static Place>,
    /// Servers of users who are not allowed.
    strangers: HashSet<PathBuf>,
    candidates: HashMap<Ends, &'static Stream>,
    early: Vec<Early>,
}

static WORLD: AtomicPtr<Mutex<World>> = AtomicPtr::new(std::ptr::null_mut());
static LOCAL: AtomicPtr<Local> = AtomicPtr::new(std::ptr::null_mut());

pub fn world() -> MutexGuard<'static, World> {
    let mut world = WORLD.load(Ordering::Acquire);
    if world.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(World::default())));
        match WORLD.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => world = new,
            Err(other) => world = other,
        }
    }
    // SAFETY: leaked, never freed.
    unsafe { &*world }.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
        hear(place);
    }
    place.pair().ring(waiter);
}

/// Offers that were heard on the way to something else wait for [`attend`].
static PARKED: AtomicBool = AtomicBool::new(false);

/// Deals with them, if there are any.
#[inline]
pub fn attend_parked() {
    if PARKED.load(Ordering::Relaxed) && PARKED.swap(false, Ordering::AcqRel) {
        attend();
    }
}

/// What the other side of a place has said; false when it is gone. Offers are kept for [`attend`].
fn hear(place: &'static Place) -> bool {
    let Ok(mut inbox) = place.heard.lock() else { return false };
    // A peer that talks without end has its turn again later.
    for _ in 0..AT_ONCE {
        match channel::hear(&place.pair().channel) {
            Heard::Message(Kind::Offer, message, mut fds) => {
                if inbox.len() < AT_ONCE {
                    inbox.push((message.a, message.b, fds.pop()));
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

/// A socket listens: its clients find us from now on, before they could connect.
pub fn prepare_rendezvous(port: u16) {
    if !settings().server || local().is_none() {
        return;
    }
    let mut world = world();
    // One for the port, on however many addresses it listens.
    if world.prepared.iter().any(|(p, _)| *p == port) || world.rendezvous.iter().any(|(p, ..)| *p == port) {
        return;
    }
    match Rendezvous::open(port) {
        Ok(rendezvous) => world.prepared.push((port, rendezvous)),
        Err(e) => super::step_aside(&format!("no rendezvous: {e}")),
    }
}

/// A listening socket is watched by an epoll set: from now on clients can meet us there.
pub fn open_rendezvous(port: u16, watch: &'static Epoll) {
    if !settings().server || local().is_none() {
        return;
    }
    let mut world = world();
    if world.rendezvous.iter().any(|(p, ..)| *p == port) {
        return;
    }
    let prepared = world.prepared.iter().position(|(p, _)| *p == port).map(|at| world.prepared.swap_remove(at).1);
    // In a worker that was forked since, the socket is its parent's.
    match prepared.map_or_else(|| Rendezvous::open(port), Ok) {
        Ok(rendezvous) => {
            watch.watch(rendezvous.fd.as_raw_fd(), epoll::Hidden::Rendezvous);
            MET.store(true, Ordering::Relaxed);
            world.rendezvous.push((port, rendezvous, watch));
        }
        Err(e) => super::step_aside(&format!("no rendezvous: {e}")),
    }
}

/// The listening socket is closed.
pub fn close_rendezvous(port: u16) {
    let mut world = world();
    world.rendezvous.retain(|(p, ..)| *p != port);
    world.prepared.retain(|(p, _)| *p != port);
}

static MET: AtomicBool = AtomicBool::new(false);

/// Whether clients could meet us at any time; or our children, who watch what we listen at.
pub fn was_met() -> bool {
    MET.load(Ordering::Relaxed)
}

/// What listens here and is watched by nobody yet may be watched in the child, as with nginx: it meets its clients itself.
/// Whoever comes back to it here opens it again.
pub fn before_fork() {
    if_free(|world| {
        MET.fetch_or(!world.prepared.is_empty(), Ordering::Relaxed);
        world.prepared.clear();
    });
}

/// At the end of the program: sockets in directories are taken away.
pub fn leave() {
    if_free(|world| {
        world.rendezvous.clear();
        world.prepared.clear();
    });
}

/// Somebody is at the door, or one of those who are in has said something.
pub fn attend() {
    let mut world = world();
    let world = &mut *world;
    for (_, rendezvous, watch) in &world.rendezvous {
        for _ in 0..AT_ONCE {
            let Some((channel, who)) = rendezvous.accept() else { break };
            if !settings().rule.allows(&who) {
                let _ = channel::say(&channel, Kind::Refused, 1, 0, &[]);
                // Closed at once, with something of theirs unread, they would see a reset instead.
                if world.refused.len() >= 16 {
                    world.refused.remove(0);
                }
                world.refused.push(channel);
                continue;
            }
            watch.watch(channel.as_raw_fd(), epoll::Hidden::Channel);
            world.guests.push(Guest { channel, who, watch: Some(watch) });
        }
    }
    let mut at = 0;
    while at < world.guests.len() {
        match channel::hear(&world.guests[at].channel) {
            Heard::Nothing => at += 1,
            Heard::Gone => drop(world.guests.swap_remove(at)),
            Heard::Strange(_) => {
                let guest = world.guests.swap_remove(at);
                let _ = channel::say(&guest.channel, Kind::Refused, 2, 0, &[]);
            }
            Heard::Message(Kind::List, message, _) => {
                let guest = world.guests.swap_remove(at);
                list(world, message.a, &guest.channel);
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
        let offers = place.heard.lock().map(|mut inbox| std::mem::take(&mut *inbox)).unwrap_or_default();
        for (slot, generation, socket) in offers {
            offered(world, place, slot, generation, socket);
        }
        if there {
            at += 1;
        } else {
            world.clients.swap_remove(at);
            world.early.retain(|e| !std::ptr::eq(e.place, place));
            farewell(place);
        }
    }
    fds::settle();
    let now = now_ns();
    let open = |e: &Early| e.place.pair().slot(e.slot).is_some_and(|s| s.state(e.generation) == OFFERED);
    world.early.retain(|e| e.since + EARLY_NS > now && open(e));
}

fn welcome(world: &mut World, guest: Guest, fds: Vec<OwnedFd>) {
    let Guest { channel, who, watch: guest_watch } = guest;
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
            if let Ok(mut watch) = place.watch.lock() {
                *watch = guest_watch;
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

/// A client process is gone, or became another program.
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

fn offered(world: &mut World, place: &'static Place, slot: u32, generation: u32, socket: Option<OwnedFd>) {
    // Whoever has the socket owns the connection; ours is the one with the same ends the other way round.
    let ends = socket.and_then(|socket| {
        let fd = socket.as_raw_fd();
        Some((name(fd, false)?, name(fd, true)?))
    });
    let (Some(ends), Some(words)) = (ends, place.pair().slot(slot)) else { return };
    match world.candidates.get(&ends).copied().filter(|s| s.epoll().is_some()) {
        Some(stream) => {
            world.candidates.remove(&ends);
            take(stream, place, slot, generation);
        }
        None if words.state(generation) == OFFERED => {
            world.early.push(Early { place, slot, generation, ends, since: now_ns() });
        }
        None => {}
    }
}

/// The connection of a stream goes over shared memory from now on, if nothing speaks against it.
/// No.
fn decline(place: &'static Place, slot: u32, generation: u32) {
    let Some(words) = place.pair().slot(slot) else { return };
    words.advance(generation, OFFERED, DECLINED);
    if let Some(bell) = place.pair().tell(slot, words) {
        place.pair().ring(bell);
    }
}

fn take(stream: &'static Stream, place: &'static Place, slot: u32, generation: u32) {
    let Some(words) = place.pair().slot(slot) else { return };
    if stream.fixed.load(Ordering::Acquire)
        || place.stream(slot).is_some_and(|s| s.link().is_some_and(|l| !l.is_closed()))
    {
        return decline(place, slot, generation);
    }
    let epoll = stream.epoll();
    let Some(waiter) = epoll.and_then(|e| e.waiter()) else { return };
    if !introduce(place, waiter) {
        return;
    }
    words.set_waiter(place.pair().side, waiter.number);
    if !words.advance(generation, OFFERED, TAKEN) {
        return;
    }
    let link = Link::new(place.arc(), slot, generation);
    epoll::adopt(stream, place, link);
    place.set_stream(slot, Some(stream));
    epoll::look_again(stream);
    if let Some(bell) = place.pair().tell(slot, words) {
        ring(place, bell);
    }
}

/// A connection was accepted: if it comes from this machine it may be offered, or was already.
pub fn accepted(fd: RawFd, nonblocking: bool) {
    let (Some(theirs), Some(ours)) = (name(fd, true), name(fd, false)) else { return };
    if !same_host(&theirs, &ours) {
        return;
    }
    let mut world = world();
    if world.rendezvous.is_empty() {
        return;
    }
    let Some((stream, entry)) = fds::new_stream(fd, state::CANDIDATE, nonblocking) else { return };
    if let Ok(mut ends) = stream.ends.lock() {
        *ends = Some((theirs, ours));
    }
    fds::put(fd, Some(entry));
    world.candidates.insert((theirs, ours), stream);
}

/// An accepted connection came into a set: from now on it can be taken, and perhaps it was offered already.
pub fn watched(world: &mut World, stream: &'static Stream) {
    let Some(ends) = stream.ends.lock().ok().and_then(|ends| *ends) else { return };
    if let Some(at) = world.early.iter().position(|e| e.ends == ends) {
        let Early { place, slot, generation, .. } = world.early.swap_remove(at);
        world.candidates.remove(&ends);
        take(stream, place, slot, generation);
    }
}

/// A set is closed in which rendezvous and channels were watched: clients cannot meet us until a listener is watched again.
pub fn no_watch(set: &Epoll) {
    let mut world = world();
    world.rendezvous.retain(|(_, _, watch)| !std::ptr::eq(*watch, set));
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
    if let Some(at) = world.early.iter().position(|e| e.ends == ends) {
        let Early { place, slot, generation, .. } = world.early.swap_remove(at);
        decline(place, slot, generation);
    }
}

/// What came to a port of ours.
fn list(world: &World, port: u32, to: &OwnedFd) {
    use std::io::Write;
    let at_port = |ends: &Ends| u32::from(ends.1.port()) == port;
    let mut text = Vec::new();
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

/// A TCP connection to somebody on this machine is there, or about to be: offers it to the servers at that port.
pub fn connected(fd: RawFd) {
    let (Some(theirs), Some(ours)) = (name(fd, true), name(fd, false)) else { return };
    if !same_host(&theirs, &ours) {
        return;
    }
    let mut places = Vec::new();
    for directory in channel::directories() {
        for (path, port, pid) in channel::servers_in(directory) {
            if port == theirs.port() && pid != std::process::id() as i32 {
                places.extend(server_at(path));
            }
        }
    }
    if places.is_empty() {
        return;
    }
    let nonblocking = kernel::flags(fd) & libc::O_NONBLOCK != 0;
    let Some((stream, entry)) = fds::new_stream(fd, state::PENDING, nonblocking) else { return };
    if let Ok(mut ends) = stream.ends.lock() {
        *ends = Some((ours, theirs));
    }
    stream.deadline.store(now_ns() + PATIENCE_NS, Ordering::Relaxed);
    let mut offers = Vec::new();
    for place in places {
        let Some((slot, generation)) = place.pair().take_slot() else { continue };
        place.set_stream(slot, Some(stream));
        if channel::say(&place.pair().channel, Kind::Offer, slot, generation, &[fd]).is_ok() {
            offers.push(Offer { place, slot, generation });
        } else if let Some(words) = place.pair().slot(slot) {
            words.advance(generation, OFFERED, DECLINED);
            place.set_stream(slot, None);
            place.pair().retire(slot, generation, [None; 2]);
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

/// Whether a descriptor is still the connection that is known by it.
pub fn is_still(stream: &Stream, fd: RawFd) -> bool {
    let now = name(fd, false).zip(name(fd, true));
    now.is_some() && stream.ends.lock().is_ok_and(|ends| *ends == now)
}

fn server_at(path: PathBuf) -> Option<&'static Place> {
    let local = local()?;
    let mut world = world();
    if let Some(place) = world.servers.iter().copied().find(|p| p.path.lock().is_ok_and(|p| p.as_ref() == Some(&path)))
    {
        if hear(place) {
            return (place.refused.load(Ordering::Acquire) == 0).then_some(place);
        }
        world.servers.retain(|p| !std::ptr::eq(*p, place));
        farewell(place);
    }
    let (channel, who) = channel::meet(&path).ok()?;
    if !settings().rule.allows(&who) {
        let (at, uid) = (path.display(), who.uid);
        let said = format!("{at} is of user {uid}, who is not allowed: TCP (--allow uid:{uid})");
        // Once, not for every connection.
        if world.strangers.insert(path) {
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

/// Whether it is known by now how a pending connection goes on; decides it when time is up or `now` is said.
pub fn resolve(stream: &'static Stream, at_once: bool) -> bool {
    if !is_open(stream) {
        return true;
    }
    let Ok(mut offers) = stream.offers.lock() else { return true };
    match stream.state.load(Ordering::Acquire) {
        state::PENDING => {}
        settling => return settling != state::SETTLING,
    }
    let late = at_once || now_ns() >= stream.deadline.load(Ordering::Relaxed);
    let mut taken = None;
    let mut open = 0;
    for (i, offer) in offers.iter().enumerate() {
        let Some(words) = offer.place.pair().slot(offer.slot) else { continue };
        if late {
            words.advance(offer.generation, OFFERED, DECLINED);
        }
        match words.state(offer.generation) {
            TAKEN if taken.is_none() => taken = Some(i),
            OFFERED => open += 1,
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
        let Offer { place, slot, generation } = offer;
        if taken == Some(i) {
            let new = Link::new(place.arc(), slot, generation);
            if place.welcome.load(Ordering::Acquire) {
                link = Some((place, new));
                continue;
            }
            // The server has it, and we do not know how to wake the server.
            place.set_stream(slot, None);
            new.close();
            continue;
        }
        if let Some(words) = place.pair().slot(slot) {
            words.advance(generation, OFFERED, DECLINED);
        }
        place.set_stream(slot, None);
        place.pair().retire(slot, generation, [None; 2]);
    }
    match link {
        Some((place, link)) => epoll::adopt(stream, place, link),
        None => plain(stream),
    }
    true
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
pub fn withdraw(stream: &'static Stream) {
    let Ok(mut offers) = stream.offers.lock() else { return };
    for Offer { place, slot, generation } in offers.drain(..) {
        if let Some(words) = place.pair().slot(slot)
            && !words.advance(generation, OFFERED, DECLINED)
            && words.state(generation) == TAKEN
        {
            // Taken just now: it is closed as any other.
            let link = Link::new(place.arc(), slot, generation);
            hear(place);
            place.set_stream(slot, None);
            if let Some(bell) = link.close() {
                ring(place, bell);
            }
            continue;
        }
        place.set_stream(slot, None);
        place.pair().retire(slot, generation, [None; 2]);
    }
}

pub fn entry_of(stream: &'static Stream) -> Option<&'static Entry> {
    fds::entry_at(stream.index)
}

// Addresses.

/// The address of one end of a TCP socket, IPv4 as IPv4 however it came.
fn name(fd: RawFd, of_peer: bool) -> Option<SocketAddr> {
    let mut bytes = [0u8; 28];
    let mut len = bytes.len() as libc::socklen_t;
    let call = if of_peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    // SAFETY: room for 28 bytes and their count.
    if unsafe { libc::syscall(call, fd, bytes.as_mut_ptr(), &raw mut len) } != 0 {
        return None;
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The port a socket listens at, if it is one of TCP.
pub fn listening_port(fd: RawFd) -> Option<u16> {
    name(fd, false).map(|a| a.port())
}

/// Both ends have one address, or are loopback: the peer is on this machine (the offer is what proves it).
fn same_host(a: &SocketAddr, b: &SocketAddr) -> bool {
    a.ip() == b.ip() || a.ip().is_loopback() && b.ip().is_loopback()
}
