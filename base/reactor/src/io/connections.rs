//! The table of connections: opening, writing, pausing and closing one by its [`Id`].

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with, sockopt,
};

use super::Io;
use super::link::Link;
use super::timers::Due;
use crate::tls::Session;
use crate::{Change, Closed, Handler, Id, Peer, Tls};

/// An entry of the table. Its generation tells the connections apart that use it one after the other.
pub(super) struct Slot {
    generation: u32,
    link: Option<Link>,
}

/// Emptied buffers that are kept for the next output: as many as a turn has events.
const SPARE: usize = super::EVENTS;

/// Tens of thousands of them are idle: what only some connections have is apart.
const _: () = assert!(size_of::<Slot>() <= 128);

impl Io {
    /// Begins a connection; [`Handler::opened`] or [`Handler::closed`] follows, the latter at `deadline` at the latest.
    /// Fails when there are no descriptors left.
    pub fn connect(&mut self, peer: &Peer, tls: Option<&Tls>, deadline: u64) -> std::io::Result<Id> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (fd, begun) = match peer {
            Peer::Tcp(address) => {
                let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let fd = socket_with(family, SocketType::STREAM, flags, None)?;
                sockopt::set_tcp_nodelay(&fd, true)?;
                let begun = connect(&fd, address);
                if let (Some(carrier), Ok(()) | Err(Errno::INPROGRESS)) = (self.carrier, begun) {
                    carrier.connecting(fd.as_fd());
                }
                (fd, begun)
            }
            Peer::Unix(path) => {
                let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                let begun = connect(&fd, &SocketAddrUnix::new(path.as_path())?);
                (fd, begun)
            }
        };
        let session = match tls.map(Session::new).transpose() {
            Ok(session) => session.map(Box::new),
            Err(why) => return Err(std::io::Error::other(why)),
        };
        let id = self.insert(fd, session, EventFlags::OUT | EventFlags::IN);
        // A refusal on the spot is told like one that came later.
        match begun {
            Ok(()) | Err(Errno::INPROGRESS) => {
                self.timers.push(deadline, Due::Connect { index: id.index, generation: id.generation });
            }
            Err(e) => self.fail(id, Closed::Connect(e.into())),
        }
        Ok(id)
    }

    /// What is to be sent on a connection; append to it. Written at the end of the turn, or by [`Io::flush`]. Bytes for
    /// a connection that is gone go nowhere, and [`Handler::closed`] has said so.
    pub fn output(&mut self, id: Id) -> &mut Vec<u8> {
        self.mark(id);
        match self.slots.get_mut(id.index as usize) {
            Some(Slot { generation, link: Some(link) }) if *generation == id.generation => {
                if link.out.capacity() == 0 {
                    link.out = self.spare.pop().unwrap_or_default();
                }
                &mut link.out
            }
            _ => {
                self.nowhere.clear();
                &mut self.nowhere
            }
        }
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&mut self, id: Id) -> usize {
        self.link(id).map_or(0, |l| l.unsent())
    }

    /// Bytes that wait for connections that were taken from listeners, all together: what their sockets had not taken
    /// when their outputs were written last.
    pub fn unsent_to_visitors(&self) -> usize {
        self.unsent_to_visitors
    }

    /// Within [`Handler::closed`]: bytes of that connection's output that its socket never took, so that the peer
    /// cannot have seen them. Under TLS only what was not yet encrypted is counted.
    pub fn never_sent(&self) -> usize {
        self.lost
    }

    /// Stops or resumes reading.
    pub fn pause(&mut self, id: Id, paused: bool) {
        if let Some(link) = self.link(id) {
            // What is left over of a peer that has ended is looked at again as well.
            let resumed = link.paused && !paused && !link.left.is_empty();
            link.paused = paused;
            self.settle_interest(id);
            if resumed {
                self.resumed.push(id);
            }
        }
    }

    /// Closes a connection when everything appended to it is sent. What still comes on it is not read.
    pub fn finish(&mut self, id: Id) {
        if let Some(link) = self.link(id) {
            link.finishing = true;
            link.ended = true;
            self.mark(id);
            self.settle_interest(id);
        }
    }

    /// Closes without a word to the handler.
    pub fn close(&mut self, id: Id) {
        if let Some(link) = self.link(id) {
            let (lost, unsent) = (link.never_sent(), link.left_unsent);
            self.lost = lost;
            self.unsent_to_visitors -= unsent;
            let slot = &mut self.slots[id.index as usize];
            slot.link = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.index);
        }
    }

    /// Whether the peer has closed its side, also of a connection that is not read.
    pub fn hung_up(&mut self, id: Id) -> bool {
        let Some(link) = self.link(id) else { return true };
        let mut fds = [PollFd::new(&link.fd, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0)
    }

    /// Whether a peer that is there has sent something that was not read yet.
    pub fn has_input(&mut self, id: Id) -> bool {
        let Some(link) = self.link(id) else { return false };
        if !link.left.is_empty() {
            return true;
        }
        let mut fds = [PollFd::new(&link.fd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0);
        let found = fds[0].revents();
        ready && found.contains(PollFlags::IN) && !found.intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Writes what waits on a connection, as far as the socket takes it.
    pub fn flush(&mut self, id: Id) {
        let kept = self.idle_kept;
        let Some(link) = self.link(id) else { return };
        link.dirty = false;
        if !link.connected {
            return;
        }
        let written = link.write(kept);
        let spare = if link.out.is_empty() { std::mem::take(&mut link.out) } else { Vec::new() };
        let (before, unsent) = link.count_unsent();
        if spare.capacity() > 0 && self.spare.len() < SPARE {
            self.spare.push(spare);
        }
        self.unsent_to_visitors = self.unsent_to_visitors + unsent - before;
        let Some(link) = self.link(id) else { return };
        if let Err(why) = written {
            if link.ended {
                self.fail(id, why);
                return;
            }
            // What the peer said before it went is still to be read; the end comes behind it.
            if let Closed::Tls(_) = why {
                self.fail(id, why);
                return;
            }
            link.give_up_output(why);
            link.paused = false;
            self.resumed.push(id);
        } else if link.finishing && link.unsent() == 0 {
            if let Some(carrier) = link.carrier {
                carrier.ending(link.fd.as_fd());
            }
            let _ = shutdown(&link.fd, Shutdown::Write);
            self.fail(id, Closed::Peer);
            return;
        }
        self.settle_interest(id);
    }

    pub(super) fn flush_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            let slot = &self.slots[index as usize];
            if slot.link.as_ref().is_some_and(|l| l.dirty) {
                self.flush(Id { index, generation: slot.generation });
            }
        }
        self.dirty = dirty;
    }

    pub(super) fn insert(&mut self, fd: OwnedFd, session: Option<Box<Session>>, interest: EventFlags) -> Id {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, link: None });
            self.slots.len() as u32 - 1
        });
        let id = Id { index, generation: self.slots[index as usize].generation };
        let added = match self.carrier {
            None => epoll::add(&self.epoll, &fd, event_data(id), interest).map_err(std::io::Error::from),
            Some(c) => c.change(self.epoll.as_fd(), fd.as_fd(), Change::Add(event_data(id).u64(), interest.bits())),
        };
        self.slots[index as usize].link = Some(Link::new(fd, session, interest, self.carrier));
        if let Err(e) = added {
            self.fail(id, Closed::Connect(e));
        }
        id
    }

    pub(super) fn established(&mut self, id: Id) {
        let Some(link) = self.link(id) else { return };
        link.connected = true;
        link.opened = link.session.is_none();
        self.flush(id);
        self.settle_interest(id);
    }

    pub(super) fn settle_interest(&mut self, id: Id) {
        let slot = &mut self.slots[id.index as usize];
        let Some(link) = &mut slot.link else { return };
        if !link.connected {
            return;
        }
        let blocked = link.is_blocked();
        let wanted = match (link.paused || link.ended, blocked) {
            (false, false) => EventFlags::IN,
            (false, true) => EventFlags::IN | EventFlags::OUT,
            (true, true) => EventFlags::OUT,
            (true, false) => EventFlags::empty(),
        };
        if wanted != link.interest {
            link.interest = wanted;
            let changed = match self.carrier {
                None => epoll::modify(&self.epoll, &link.fd, event_data(id), wanted).map_err(std::io::Error::from),
                Some(c) => {
                    let change = Change::Modify(event_data(id).u64(), wanted.bits());
                    c.change(self.epoll.as_fd(), link.fd.as_fd(), change)
                }
            };
            if let Err(e) = changed {
                self.broken.push((id, Closed::Io(e)));
            }
        }
    }

    pub(super) fn mark(&mut self, id: Id) {
        let Some(link) = self.link(id) else { return };
        if !link.dirty {
            link.dirty = true;
            self.dirty.push(id.index);
        }
    }

    pub(super) fn link(&mut self, id: Id) -> Option<&mut Link> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.link.as_mut() } else { None }
    }

    pub(super) fn fail(&mut self, id: Id, why: Closed) {
        if self.broken.iter().all(|(other, _)| *other != id) {
            self.broken.push((id, why));
        }
    }

    pub(super) fn tell_broken<H: Handler>(&mut self, handler: &mut H) {
        // Those alone that are known by now: a handler that dials again where nobody listens may break another each
        // time.
        for (id, why) in std::mem::take(&mut self.broken) {
            if self.link(id).is_some() {
                self.close(id);
                handler.closed(self, id, why);
            }
        }
    }
}

fn event_data(id: Id) -> EventData {
    EventData::new_u64(u64::from(id.generation) << 32 | u64::from(id.index))
}
