//! One epoll set: a call to wait, one to receive and one to send for what arrives.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

const BUFFER: usize = 64 << 10;
const EVENTS: usize = 512;
const LISTENER: u64 = u64::MAX;

/// One end of a connection: what cannot be written to it yet waits in `held`, and its peer is read no more meanwhile.
struct End {
    socket: OwnedFd,
    held: Vec<u8>,
}

/// Both ends of a connection are neighbours: `n` and `n ^ 1`.
struct Relay {
    set: OwnedFd,
    ends: Vec<Option<End>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
}

impl Relay {
    fn watch(&self, n: usize, is_new: bool, events: EventFlags) -> rustix::io::Result<()> {
        let Some(end) = &self.ends[n] else { return Ok(()) };
        let data = EventData::new_u64(n as u64);
        match is_new {
            true => epoll::add(&self.set, &end.socket, data, events),
            false => epoll::modify(&self.set, &end.socket, data, events),
        }
    }

    fn begin(&mut self, client: OwnedFd, server: OwnedFd) -> rustix::io::Result<()> {
        let at = self.free.pop().unwrap_or(self.ends.len());
        if at == self.ends.len() {
            self.ends.extend([None, None]);
        }
        for (n, socket) in [(at, client), (at + 1, server)] {
            self.ends[n] = Some(End { socket, held: Vec::new() });
            self.watch(n, true, EventFlags::IN)?;
        }
        Ok(())
    }

    fn end(&mut self, n: usize) {
        (self.ends[n], self.ends[n ^ 1]) = (None, None);
        self.free.push(n & !1);
    }

    /// One event of one end; false when the connection is over.
    fn moves(&mut self, n: usize, events: EventFlags) -> rustix::io::Result<bool> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if events.contains(EventFlags::OUT) {
            let Some(end) = &mut self.ends[n] else { return Ok(true) };
            match send(&end.socket, &end.held, flags) {
                Ok(sent) => drop(end.held.drain(..sent)),
                Err(Errno::AGAIN) => {}
                Err(_) => return Ok(false),
            }
            if end.held.is_empty() {
                self.watch(n, false, EventFlags::IN)?;
                self.watch(n ^ 1, false, EventFlags::IN)?;
            }
            return Ok(true);
        }
        let Some(end) = &self.ends[n] else { return Ok(true) };
        self.buffer.clear();
        match recv(&end.socket, spare_capacity(&mut self.buffer), RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Ok(false),
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(true),
            Err(_) => return Ok(false),
        }
        let Some(peer) = &mut self.ends[n ^ 1] else { return Ok(false) };
        let sent = match send(&peer.socket, &self.buffer, flags) {
            Ok(sent) => sent,
            Err(Errno::AGAIN) => 0,
            Err(_) => return Ok(false),
        };
        if sent < self.buffer.len() {
            peer.held.extend_from_slice(&self.buffer[sent..]);
            self.watch(n, false, EventFlags::empty())?;
            self.watch(n ^ 1, false, EventFlags::OUT)?;
        }
        Ok(true)
    }
}

/// Until it is killed.
pub fn run(listener: &TcpListener, file: &str) -> std::io::Result<()> {
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&set, listener.as_fd(), EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut relay = Relay { set, ends: Vec::new(), free: Vec::new(), buffer: Vec::with_capacity(BUFFER) };
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        epoll::wait(&relay.set, spare_capacity(&mut events), None)?;
        for event in &events {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == LISTENER {
                let client = listener.accept()?.0;
                client.set_nodelay(true)?;
                relay.begin(client.into(), UnixStream::connect(file)?.into())?;
            } else if !relay.moves(data as usize, flags)? {
                relay.end(data as usize);
            }
        }
    }
}
