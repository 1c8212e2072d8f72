//! Reading a connection: its bytes, decrypted if need be, go to the handler behind those it left over last time.

use rustix::event::epoll::EventFlags;

use super::{READ, Reactor};
use crate::{Closed, Handler, Id};

impl Reactor {
    pub(super) fn read<H: Handler>(&mut self, handler: &mut H, id: Id, flags: EventFlags) {
        let Some(link) = self.io.link(id) else { return };
        if link.ended || link.paused {
            return self.leave_unread(handler, id, flags);
        }
        // What was left over stands in front of what comes.
        let kept = link.left.len();
        if kept > READ {
            return self.read_on(handler, id);
        }
        if self.buffer.len() < kept + READ / 2 {
            // Twice what is there: a long message is not copied anew for every piece of it.
            self.buffer.resize(2 * kept + READ, 0);
        }
        if kept > 0 {
            self.buffer[..kept].copy_from_slice(&link.left);
            link.left.clear();
        }
        // A session keeps its own rest: only plaintext is ever left over.
        let room = if link.session.is_some() { READ } else { self.buffer.len() };
        let from = if link.session.is_some() { 0 } else { kept };
        if from == 0 && kept > 0 {
            self.plain.extend_from_slice(&self.buffer[..kept]);
        }
        let received = link.receive(&mut self.buffer[from..room]);
        let got = match link.heard(received) {
            Ok(got) => got,
            Err(why) => {
                let why = link.take_why_unwritten().unwrap_or(why);
                return self.end_input(handler, id, kept, why);
            }
        };
        let filled = got == room - from;
        let (bytes, tls) = match &mut link.session {
            None => (&self.buffer[..kept + got], false),
            Some(session) => match session.receive(&self.buffer[..got], &mut self.plain) {
                Ok(ready) => {
                    if ready {
                        link.opened = true;
                    }
                    self.io.mark(id);
                    if ready {
                        handler.opened(&mut self.io, id);
                    }
                    (&self.plain[..], true)
                }
                Err(why) => {
                    // The alert that says why to the peer still goes out.
                    self.io.flush(id);
                    self.plain.clear();
                    self.io.fail(id, Closed::Tls(why));
                    return;
                }
            },
        };
        self.io.more |= filled;
        let used = if bytes.is_empty() { 0 } else { handler.data(&mut self.io, id, bytes) };
        let rest = &bytes[used.min(bytes.len())..];
        let idle = self.io.idle_kept;
        if let Some(link) = self.io.link(id)
            && (kept > 0 || !rest.is_empty())
        {
            link.left.extend_from_slice(rest);
            trim(&mut link.left, idle);
            if rest.len() > self.io.input_max {
                self.io.fail(id, Closed::TooMuch);
            }
        }
        if self.io.link(id).is_some_and(|l| l.unwritten.is_some()) {
            self.io.resumed.push(id);
        }
        if tls {
            self.plain.clear();
        }
        if self.buffer.len() > READ * 4 && kept < READ {
            self.buffer.truncate(READ);
            self.buffer.shrink_to_fit();
        }
    }

    /// An event of a connection that is not read: its peer has ended, or it is paused.
    fn leave_unread<H: Handler>(&mut self, handler: &mut H, id: Id, flags: EventFlags) {
        // The peer is gone both ways: what is unread has no one to answer to.
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            return self.io.fail(id, Closed::Peer);
        }
        let Some(link) = self.io.link(id) else { return };
        if link.ended && !link.left.is_empty() {
            let left = std::mem::take(&mut link.left);
            let used = handler.data(&mut self.io, id, &left);
            if let Some(link) = self.io.link(id) {
                link.left = left[used.min(left.len())..].to_vec();
            }
        }
    }

    /// The peer has ended, or the connection broke. The first `kept` bytes of the buffer were left over before.
    fn end_input<H: Handler>(&mut self, handler: &mut H, id: Id, kept: usize, why: Closed) {
        // What was left over may be whole messages, of a connection that was paused.
        let used = if kept > 0 { handler.data(&mut self.io, id, &self.buffer[..kept]) } else { 0 };
        self.plain.clear();
        if matches!(why, Closed::Peer) && handler.ended(&mut self.io, id) {
            if let Some(link) = self.io.link(id) {
                link.ended = true;
                link.left.extend_from_slice(&self.buffer[used.min(kept)..kept]);
                self.io.settle_interest(id);
            }
            return;
        }
        self.io.fail(id, why);
    }

    /// Reads behind a long rest, in place: a peer that sends a long message byte by byte costs a byte's work for each.
    fn read_on<H: Handler>(&mut self, handler: &mut H, id: Id) {
        let Some(link) = self.io.link(id) else { return };
        let mut held = std::mem::take(&mut link.left);
        let kept = held.len();
        let received = if link.session.is_some() {
            link.receive(&mut self.buffer[..READ])
        } else {
            held.resize(kept + READ, 0);
            let received = link.receive(&mut held[kept..]);
            held.truncate(kept + received.as_ref().map_or(0, |got| *got));
            received
        };
        let got = match link.heard(received) {
            Ok(got) => got,
            Err(why) => {
                let why = link.take_why_unwritten().unwrap_or(why);
                let used = handler.data(&mut self.io, id, &held);
                if matches!(why, Closed::Peer) && handler.ended(&mut self.io, id) {
                    if let Some(link) = self.io.link(id) {
                        link.ended = true;
                        held.drain(..used.min(kept));
                        link.left = held;
                        self.io.settle_interest(id);
                    }
                    return;
                }
                return self.io.fail(id, why);
            }
        };
        let filled = got == READ;
        if let Some(session) = &mut link.session {
            match session.receive(&self.buffer[..got], &mut held) {
                Ok(_) => self.io.mark(id),
                Err(why) => {
                    self.io.flush(id);
                    return self.io.fail(id, Closed::Tls(why));
                }
            }
        }
        self.io.more |= filled;
        let used = handler.data(&mut self.io, id, &held);
        held.drain(..used.min(held.len()));
        trim(&mut held, self.io.idle_kept);
        let too_much = held.len() > self.io.input_max;
        let Some(link) = self.io.link(id) else { return };
        let unwritten = link.unwritten.is_some();
        link.left = held;
        if too_much {
            return self.io.fail(id, Closed::TooMuch);
        }
        if unwritten {
            self.io.resumed.push(id);
        }
    }
}

/// Frees most of the memory that unused input does not need: otherwise each connection would keep, while it is idle, as
/// much as its longest message once took.
fn trim(left: &mut Vec<u8>, idle: usize) {
    if left.capacity() > idle.max(4 * left.len()) {
        left.shrink_to(2 * left.len());
    }
}
