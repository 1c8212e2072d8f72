//! Connections that a server of ours has accepted, and clients who claim to be their other end.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::busy;
use crate::endpoint::{self, Ends};
use crate::link::Link;
use crate::pair::{ASKED, OFFERED, TAKEN};
use crate::sockets::fds::{self, Place, Stream, state};
use crate::sockets::{epoll, now_ns, tell};

use super::hearing::{introduce, ring};
use super::{Early, World, world};

/// A client offers a connection with these addresses, as it says: nothing is carried before it has shown its socket.
pub fn offered(world: &mut World, place: &'static Place, slot: u32, generation: u32, ends: Ends) {
    let Some(words) = place.pair().slot(slot) else { return };
    if world.candidates.get(&ends).is_some_and(|stream| stream.set().is_some()) {
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
pub fn proven(world: &mut World, place: &'static Place, slot: u32, generation: u32, socket: &OwnedFd) {
    let ends = endpoint::ends_of_client(socket.as_raw_fd());
    let stream = ends.and_then(|ends| world.candidates.get(&ends).copied());
    let stream = stream.filter(|stream| endpoint::are_one_connection(socket.as_raw_fd(), stream.fd()));
    match (stream, ends) {
        (Some(stream), Some(ends)) if take(stream, place, slot, generation) => _ = world.candidates.remove(&ends),
        _ => decline(place, slot, generation),
    }
}

/// An offer is not taken, and its client need not wait any longer.
pub fn decline(place: &'static Place, slot: u32, generation: u32) {
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
    let Some(waiter) = epoll::of(stream).and_then(|epoll| epoll.waiter()) else { return false };
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
    let Some(ends) = endpoint::ends_of_server(fd) else { return };
    if !endpoint::same_host(&ends) {
        return tell_of_polling(fd);
    }
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

/// The first connection from elsewhere shows whether there is anything to poll.
fn tell_of_polling(fd: RawFd) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if busy::wanted_us().is_none() || TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    match busy::napi(fd) {
        Some(id) => tell(&format!("polling queue {id} of a network card")),
        None => tell(
            "--busy-poll does not help such connections as the first one: its interface has no queue to poll (TUN, \
             veth without GRO)",
        ),
    }
}

/// An accepted connection came into a set: from now on it can be taken, and perhaps it was offered already. Anyone can
/// claim its addresses, so all who did are asked.
pub fn watched(world: &mut World, stream: &'static Stream) {
    let Some(ends) = stream.ends.lock().ok().and_then(|ends| *ends) else { return };
    for Early { place, slot, generation, .. } in world.take_early(&ends) {
        ask(place, slot, generation);
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
