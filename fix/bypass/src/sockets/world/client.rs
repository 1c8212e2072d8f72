//! Connections that a client of ours has made: offered to the servers there, until it is known how they go on.

#[cfg(feature = "reactor")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use crate::channel::{self, Kind, REFUSED_USER};
use crate::endpoint::{self, Endpoint};
use crate::link::Link;
use crate::pair::{ASKED, Close, OFFERED, Pair, TAKEN};
use crate::signals::Quiet;
#[cfg(feature = "reactor")]
use crate::sockets::fds::Claim;
use crate::sockets::fds::{self, Entry, Offer, Place, Stream, state};
use crate::sockets::{epoll, kernel, now_ns, step_aside, tell};

use super::hearing::{farewell, hear, ring};
use super::{PATIENCE, local, settings, world};

/// A connection that is offered now, or whose server has just asked for it, waits from now on.
fn begin_to_wait(stream: &Stream) {
    let (now, patience) = (now_ns(), u64::try_from(settings().patience.as_nanos()).unwrap_or(u64::MAX));
    stream.gives_up.store(now.saturating_add(patience), Ordering::Relaxed);
    stream.deadline.store(now.saturating_add(patience.min(LOOK_NS)), Ordering::Relaxed);
}

/// A server that refuses us or ends rings no bell: who waits for longer than this hears it then.
const LOOK_NS: u64 = PATIENCE.as_nanos() as u64;

/// A TCP connection to this machine is there, or about to be: offers it to the servers at that endpoint.
pub fn connected(fd: RawFd) {
    let Some(ends) = endpoint::ends_of_client(fd).filter(endpoint::same_host) else { return };
    let Some(netns) = endpoint::netns(fd) else { return step_aside(endpoint::NO_NETNS) };
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
    begin_to_wait(stream);
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
            tell(&said);
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
    matches!(stream.state(), state::PENDING | state::SETTLING)
}

/// Whether it is known by now how a pending connection goes on; decides it when time is up, or `at_once`.
pub fn resolve(stream: &'static Stream, at_once: bool) -> bool {
    if !is_open(stream) {
        return true;
    }
    let _quiet = Quiet::begin();
    let Ok(mut offers) = stream.offers.lock() else { return true };
    match stream.state() {
        state::PENDING => {}
        settling => return settling != state::SETTLING,
    }
    if !at_once && show(stream, &mut offers) {
        // The server is there, and has its time from now, however late we looked.
        begin_to_wait(stream);
    }
    let now = now_ns();
    let late = at_once || now >= stream.gives_up.load(Ordering::Relaxed);
    let listen = !late && now >= stream.deadline.load(Ordering::Relaxed);
    if listen {
        stream.deadline.store(now + LOOK_NS, Ordering::Relaxed);
    }
    let mut taken = None;
    let mut open = 0;
    for (i, offer) in offers.iter().enumerate() {
        let Some(words) = offer.place.pair().slot(offer.slot) else { continue };
        let is_over =
            |place: &Place| place.pair().dead.load(Ordering::Acquire) || place.refused.load(Ordering::Acquire) != 0;
        if late || (listen && !hear(offer.place)) || is_over(offer.place) {
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
    stream.life.set_state(state::SETTLING);
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
    stream.life.set_state(state::PLAIN);
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

// A stack: a client that hands over what it has accepted for its servers.

/// Which of a server's listeners are asked for.
#[cfg(feature = "reactor")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Listeners that no stack has.
    Free,
    /// Listeners that another stack of this user has, too.
    All,
}

/// Meets a server and asks it for what it listens at, at that port; `None` where it cannot be met, or refuses us.
#[cfg(feature = "reactor")]
pub fn borrow(path: PathBuf, port: u16, want: Want) -> Option<&'static Place> {
    let place = server_at(path)?;
    ask(place, port, want).ok()?;
    Some(place)
}

/// Asks a server again for what it listens at.
#[cfg(feature = "reactor")]
pub fn ask_again(place: &'static Place, port: u16, want: Want) {
    let _ = ask(place, port, want);
}

#[cfg(feature = "reactor")]
fn ask(place: &'static Place, port: u16, want: Want) -> std::io::Result<()> {
    let what = if want == Want::All { channel::TAKE_OVER } else { 0 };
    channel::say(&place.pair().channel, Kind::Lend, u32::from(port), what, &[])
}

/// A server's answer to a stack.
#[cfg(feature = "reactor")]
pub enum Lent {
    Listener(OwnedFd),
    /// Nothing now; what was lent is taken back.
    NotNow,
    Never,
    /// Another stack has it from now on.
    Superseded,
    /// A listener for which there was no descriptor left here.
    Lost,
}

/// Whether [`lent`] has something that was heard on the way to something else, so that the channel is not readable for
/// it any more.
#[cfg(feature = "reactor")]
pub fn has_news(place: &'static Place) -> bool {
    place.heard.lock().is_ok_and(|inbox| !inbox.is_empty())
}

/// What a server has said since it was last asked about. `None` when it has ended, or refuses us.
#[cfg(feature = "reactor")]
pub fn lent(place: &'static Place) -> Option<Vec<Lent>> {
    let _quiet = Quiet::begin();
    let there = hear(place) && place.refused.load(Ordering::Acquire) == 0;
    let said = place.heard.lock().map(|mut inbox| std::mem::take(&mut *inbox)).unwrap_or_default();
    let lent = said.into_iter().filter_map(|(_, what, claim)| match (claim, what) {
        (Claim::Lent(Some(listener)), channel::LENT) => Some(Lent::Listener(listener)),
        (Claim::Lent(_), channel::NEVER) => Some(Lent::Never),
        (Claim::Lent(_), channel::SUPERSEDED) => Some(Lent::Superseded),
        (Claim::Lent(None), channel::LENT) => Some(Lent::Lost),
        (Claim::Lent(_), _) => Some(Lent::NotNow),
        _ => None,
    });
    there.then(|| lent.collect())
}

/// Hands an accepted connection to its server. Its bytes go by `ring`, a second descriptor of the same socket, from
/// when the server has taken it. False where it cannot be handed over.
#[cfg(feature = "reactor")]
pub fn give(place: &'static Place, socket: RawFd, ring: RawFd) -> bool {
    let Some(ends) = endpoint::ends_of_server(socket) else { return false };
    let _quiet = Quiet::begin();
    let Some((slot, generation)) = place.pair().take_slot() else { return false };
    let Some((stream, entry)) = fds::new_stream(ring, state::PENDING, true) else {
        take_back(place, slot, generation);
        return false;
    };
    stream.of_stack.store(true, Ordering::Relaxed);
    if let Ok(mut known) = stream.ends.lock() {
        *known = Some(ends);
    }
    // It never gives up: the bytes cannot go any other way.
    stream.gives_up.store(u64::MAX, Ordering::Relaxed);
    stream.deadline.store(now_ns().saturating_add(LOOK_NS), Ordering::Relaxed);
    place.set_stream(slot, Some(stream));
    let given = channel::accepted(&place.pair().channel, Some((slot, generation)), socket).is_ok();
    if !given || !fds::put(ring, Some(entry)) {
        take_back(place, slot, generation);
        fds::retire(entry);
        return false;
    }
    if let Ok(mut offers) = stream.offers.lock() {
        *offers = vec![Offer { place, slot, generation, shown: true }];
    }
    true
}

/// A server has ended, or lends nothing: it is met no more.
#[cfg(feature = "reactor")]
pub fn forget_server(place: &'static Place) {
    world().servers.retain(|known| !std::ptr::eq(*known, place));
    farewell(place);
}
