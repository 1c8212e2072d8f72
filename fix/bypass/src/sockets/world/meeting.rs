//! Where clients meet a server of ours: at its rendezvous, in the waits of an epoll set.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::board::Board;
use crate::channel::{self, Heard, Kind, REFUSED_USER, REFUSED_VERSION, Rendezvous};
use crate::endpoint::{self, Endpoint, Ends};
use crate::memory::Memory;
use crate::pair::{OFFERED, Pair};
use crate::sockets::epoll;
use crate::sockets::fds::{self, Claim, Entry, Place, SetId};
use crate::sockets::refusals::By;
use crate::sockets::{now_ns, step_aside, tell};

use super::claims::{decline, offered, proven};
use super::hearing::{self, farewell, hear};
use super::lending;
use super::{AT_ONCE, Early, Guest, Meeting, World, if_free, local, local_in, settings, world};

/// An offer whose connection was not accepted within this is declined: its client, if it still waits, need not.
const EARLY_NS: u64 = 1_000_000_000;

/// Deals with claims that were heard on the way to something else.
#[inline]
pub fn attend_parked() {
    if hearing::take_parked() {
        attend();
    }
}

/// A socket listens. Clients can meet us there once it is in an epoll set: only a wait in a set attends to them, and a
/// server that takes its connections in another way (poll, select, a blocking accept) is never met.
pub fn listening(fd: RawFd) {
    if !settings().server || fds::get(fd).is_some() {
        return;
    }
    let Some(address) = endpoint::name(fd, false) else { return };
    let Some(netns) = endpoint::netns(fd) else { return step_aside(endpoint::NO_NETNS) };
    let endpoint = Endpoint { port: address.port(), netns };
    fds::put(fd, Some(Box::leak(Box::new(Entry::Listener(endpoint)))));
    LISTENED.store(true, Ordering::Relaxed);
}

/// A listening socket came into an epoll set: from now on clients can meet us there.
pub fn open_rendezvous(endpoint: Endpoint, watch: SetId) {
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
        Err(e) => return step_aside(&format!("no rendezvous: {e}")),
    };
    if !epoll::watch(watch, rendezvous.fd.as_raw_fd(), epoll::Hidden::Rendezvous) {
        return step_aside("the epoll set takes no more descriptors");
    }
    MET.store(true, Ordering::Relaxed);
    world.meetings.push(Meeting { endpoint, rendezvous, watch });
    // Clients whose set was closed: this one notices when they end.
    for place in &world.clients {
        if let Ok(mut at) = place.watch.lock()
            && at.is_none()
            && epoll::watch(watch, place.pair().channel.as_raw_fd(), epoll::Hidden::Channel)
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
            if epoll::watch(*watch, channel.as_raw_fd(), epoll::Hidden::Channel) {
                world.guests.push(Guest { channel, who, endpoint: *endpoint, watch: *watch });
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
                Claim::Lend => lending::lend(world, place, slot, generation == channel::TAKE_OVER),
                Claim::Accepted(socket) => lending::arrived(world, place, slot, generation, socket),
                Claim::Lent(_) => {}
            }
        }
        if there {
            at += 1;
        } else {
            world.clients.swap_remove(at);
            world.early.retain(|e| !std::ptr::eq(e.place, place));
            lending::stack_ended(world, place);
            farewell(place);
        }
    }
    let now = now_ns();
    let open = |e: &Early| e.place.pair().slot(e.slot).is_some_and(|s| s.state(e.generation) == OFFERED);
    world.early.retain(|e| {
        let soon = e.since + EARLY_NS > now;
        if !soon {
            decline(e.place, e.slot, e.generation);
        }
        soon && open(e)
    });
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
        Err(e) => tell(&format!("a client's memory is not to be trusted ({e}): it stays with TCP")),
    }
}

/// A set is closed in which rendezvous and channels were watched: clients cannot meet us until a listener is watched
/// again.
pub fn no_watch(set: SetId) {
    let mut world = world();
    world.meetings.retain(|m| m.watch != set);
    world.guests.retain(|g| g.watch != set);
    lending::no_set(&mut world, set);
    for place in &world.clients {
        if let Ok(mut watch) = place.watch.lock()
            && *watch == Some(set)
        {
            *watch = None;
        }
    }
}

/// The connections at an endpoint of ours, and what was refused there.
fn list(world: &World, endpoint: Endpoint, to: &OwnedFd) {
    use std::io::Write;
    let at_port = |ends: &Ends| ends.1.port() == endpoint.port;
    let mut text = world.refusals.lines(endpoint).into_bytes();
    if let Some((pid, counted)) = lending::borrower(world, endpoint.port) {
        let _ = write!(text, "{{\"stack_pid\":{pid}");
        let names = ["connections", "accepted", "passed", "received_bytes", "sent_bytes", "waits"];
        for (name, number) in counted.iter().flat_map(|numbers| names.iter().zip(numbers)) {
            let _ = write!(text, ",\"{name}\":{number}");
        }
        let _ = writeln!(text, "}}");
    }
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
