//! Listeners: binding their sockets, and accepting connections from them.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, connect, getsockname,
    listen, socket_with, sockopt,
};

use super::timers::Due;
use super::{Io, Reactor};
use crate::tls::Session;
use crate::{Handler, Listening, Peer, Visitor, now_ns};

/// Connections taken from a listener in one go: those that are open want their turn as well.
const ACCEPT: usize = 64;
/// Set in the epoll data of listeners, beside their number.
pub(super) const LISTENER: u64 = 1 << 31;
/// A visitor has this long for its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A listener that found no descriptor for who came looks again after this.
const RETRY: Duration = Duration::from_millis(100);

impl Reactor {
    pub(super) fn accept<H: Handler>(&mut self, handler: &mut H, number: usize) {
        for _ in 0..ACCEPT {
            let Some(Some(listening)) = self.io.listeners.get(number) else { return };
            let listening = listening.clone();
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (fd, from) = match acceptfrom_with(&listening.fd, flags) {
                Ok(came) => came,
                Err(Errno::AGAIN) => return,
                // Gone again before we looked.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::PERM) => continue,
                Err(_) => {
                    // No descriptors or no memory: who waits goes on waiting, and we do not spin.
                    let _ = epoll::modify(&self.io.epoll, &listening.fd, listener_data(number), EventFlags::empty());
                    self.io.timers.push(now_ns() + RETRY.as_nanos() as u64, Due::Listen(number));
                    return;
                }
            };
            let ip = |a: Option<SocketAddrAny>| a.and_then(|a| std::net::SocketAddr::try_from(a).ok());
            let visitor = Visitor { listener: number, from: ip(from), to: ip(getsockname(&fd).ok()) };
            if visitor.to.is_some() {
                let _ = sockopt::set_tcp_nodelay(&fd, true);
                let _ = sockopt::set_socket_keepalive(&fd, true);
            }
            let session = match listening.tls.as_ref().map(Session::serve).transpose() {
                Ok(session) => session.map(Box::new),
                Err(_) => continue,
            };
            let plain = session.is_none();
            let id = self.io.insert(fd, session, EventFlags::IN);
            if let Some(link) = self.io.link(id) {
                (link.connected, link.opened, link.is_visitor) = (true, plain, true);
            }
            if !plain {
                let late = now_ns() + HANDSHAKE.as_nanos() as u64;
                self.io.timers.push(late, Due::Connect { index: id.index, generation: id.generation });
            }
            handler.accepted(&mut self.io, id, visitor);
            if plain && self.io.link(id).is_some() {
                handler.opened(&mut self.io, id);
            }
        }
        self.io.more = true;
    }
}

impl Io {
    /// Takes connections from a listening socket; the number is in each [`Visitor`].
    pub fn listen(&mut self, listening: &Arc<Listening>) -> std::io::Result<usize> {
        let number = self.listeners.len();
        rustix::io::ioctl_fionbio(&listening.fd, true)?;
        epoll::add(&self.epoll, &listening.fd, listener_data(number), EventFlags::IN)?;
        self.listeners.push(Some(listening.clone()));
        Ok(number)
    }

    /// Takes no more from it. Connections stay, and so do those who wait in its queue as long as somebody has it open.
    pub fn stop_listening(&mut self, number: usize) {
        if let Some(listening) = self.listeners.get_mut(number).and_then(Option::take) {
            let _ = epoll::delete(&self.epoll, &listening.fd);
        }
    }

    /// Accepts from a listener again, unless it was stopped meanwhile.
    pub(super) fn resume_listening(&self, number: usize) {
        if let Some(Some(listening)) = self.listeners.get(number) {
            let _ = epoll::modify(&self.epoll, &listening.fd, listener_data(number), EventFlags::IN);
        }
    }
}

pub(crate) fn bind(peer: &Peer, shared: bool) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = match peer {
        Peer::Tcp(address) => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            sockopt::set_socket_reuseport(&fd, shared)?;
            rustix::net::bind(&fd, address)?;
            fd
        }
        Peer::Unix(path) => {
            let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let address = SocketAddrUnix::new(path.as_path())?;
            match rustix::net::bind(&fd, &address) {
                Err(Errno::ADDRINUSE) => {
                    // Left behind by somebody who ended without a word?
                    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                    if connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                        return Err(Errno::ADDRINUSE.into());
                    }
                    std::fs::remove_file(path)?;
                    rustix::net::bind(&fd, &address)?;
                }
                other => other?,
            }
            fd
        }
    };
    listen(&fd, 4096)?;
    Ok(fd)
}

fn listener_data(number: usize) -> EventData {
    EventData::new_u64(LISTENER | number as u64)
}
