//! How much memory a connection keeps of the input that its handler left over.

use std::io::Write;
use std::os::unix::net::UnixStream;

use super::*;

const IDLE: usize = 4096;

/// Uses this many bytes of each piece.
struct Uses(usize);

impl Handler for Uses {
    fn turn(&mut self, _: &mut Io) -> Option<u64> {
        None
    }
    fn opened(&mut self, _: &mut Io, _: Id) {}
    fn data(&mut self, _: &mut Io, _: Id, bytes: &[u8]) -> usize {
        self.0.min(bytes.len())
    }
    fn closed(&mut self, _: &mut Io, _: Id, why: Closed) {
        panic!("{why}");
    }
    fn timer(&mut self, _: &mut Io, _: u64) {}
}

/// A connection whose handler has used nothing of this many bytes, and its peer.
fn filled(bytes: usize) -> (Reactor, Id, UnixStream) {
    let (mut peer, ours) = UnixStream::pair().expect("descriptors are free");
    ours.set_nonblocking(true).expect("a socket");
    let mut reactor = Reactor::new().expect("descriptors are free");
    reactor.io.limit_idle_buffers(IDLE);
    let id = reactor.io.insert(ours.into(), None, EventFlags::IN);
    let link = reactor.io.link(id).expect("it was just made");
    (link.connected, link.opened) = (true, true);
    let mut written = 0;
    while written < bytes {
        let piece = (bytes - written).min(16 << 10);
        peer.write_all(&vec![b'x'; piece]).expect("the socket has room");
        written += piece;
        reactor.read(&mut Uses(0), id, EventFlags::IN);
    }
    assert_eq!(reactor.io.link(id).map(|l| l.left.len()), Some(bytes));
    (reactor, id, peer)
}

#[test]
fn memory_for_unused_input_is_freed_when_it_is_used() {
    // Shorter and longer than what is read at once.
    for held in [READ, 3 * READ] {
        for rest in [0, 10, 2000] {
            let (mut reactor, id, mut peer) = filled(held);
            peer.write_all(b"y").expect("the socket has room");
            reactor.read(&mut Uses(held + 1 - rest), id, EventFlags::IN);
            let left = &reactor.io.link(id).expect("it is open").left;
            assert_eq!(left.len(), rest);
            let most = IDLE.max(4 * rest);
            assert!(left.capacity() <= most, "{} bytes are kept for {rest} of {held}", left.capacity());
        }
    }
}

#[test]
fn what_visitors_leave_unread_is_counted_until_they_read_or_go() {
    let (mut reactor, id, mut peer) = filled(0);
    let io = reactor.io();
    io.link(id).expect("it is open").is_visitor = true;
    // More than a socket takes.
    let reply = vec![b'x'; 8 << 20];
    io.output(id).extend_from_slice(&reply);
    io.flush(id);
    let unsent = io.unsent(id);
    assert!(unsent > 0, "the socket took all of it");
    assert_eq!(io.unsent_to_visitors(), unsent);
    peer.set_nonblocking(true).expect("a socket");
    let mut room = vec![0; 1 << 20];
    while io.unsent(id) > 0 {
        let _ = std::io::Read::read(&mut peer, &mut room);
        io.flush(id);
        assert_eq!(io.unsent_to_visitors(), io.unsent(id));
    }
    io.output(id).extend_from_slice(&reply);
    io.flush(id);
    assert!(io.unsent_to_visitors() > 0);
    io.close(id);
    assert_eq!(io.unsent_to_visitors(), 0);
}

#[test]
fn a_connection_holds_a_buffer_only_while_output_waits() {
    let (mut reactor, id, mut peer) = filled(0);
    peer.set_nonblocking(true).expect("a socket");
    let held = |reactor: &mut Reactor| reactor.io.link(id).expect("it is open").out.capacity();
    for _ in 0..3 {
        reactor.io.output(id).extend_from_slice(b"turn");
        reactor.io.flush_all();
        assert_eq!((held(&mut reactor), reactor.io.spare.len()), (0, 1), "one buffer for all turns");
    }
    // What the socket leaves over is the connection's own, and gone when it is sent.
    let much = vec![b'x'; 8 << 20];
    reactor.io.output(id).extend_from_slice(&much);
    reactor.io.flush(id);
    let mut room = vec![0; 1 << 20];
    while reactor.io.unsent(id) > 0 {
        assert!(reactor.io.link(id).expect("it is open").is_blocked());
        let _ = std::io::Read::read(&mut peer, &mut room);
        reactor.io.flush(id);
    }
    let link = reactor.io.link(id).expect("it is open");
    assert!(link.wire.is_none() && link.out.capacity() == 0);
}

#[test]
fn what_the_socket_has_taken_is_not_said_to_be_never_sent() {
    let (mut reactor, id, peer) = filled(0);
    let much = vec![b'x'; 8 << 20];
    reactor.io.output(id).extend_from_slice(&much);
    reactor.io.flush(id);
    let unsent = reactor.io.unsent(id);
    assert!(unsent > 0 && unsent < much.len());
    // The peer goes; what is appended afterwards is never sent either.
    drop(peer);
    reactor.io.flush(id);
    reactor.io.output(id).extend_from_slice(b"more");
    reactor.io.flush(id);
    assert_eq!(reactor.io.unsent(id), 0);
    reactor.io.close(id);
    assert_eq!(reactor.io.never_sent(), unsent + 4);
}

/// Takes three bytes of what is sent, and then has lost its peer.
struct Short(std::sync::atomic::AtomicUsize);

impl Carrier for Short {
    fn made(&self, _: rustix::fd::BorrowedFd<'_>) {}
    fn connecting(&self, _: rustix::fd::BorrowedFd<'_>) {}
    fn change(
        &self,
        _: rustix::fd::BorrowedFd<'_>,
        _: rustix::fd::BorrowedFd<'_>,
        _: crate::Change,
    ) -> std::io::Result<()> {
        Ok(())
    }
    fn wait(&self, _: rustix::fd::BorrowedFd<'_>, _: &mut Vec<(u64, u32)>, _: bool) -> std::io::Result<()> {
        Ok(())
    }
    fn receive(&self, _: rustix::fd::BorrowedFd<'_>, _: &mut [u8]) -> std::io::Result<usize> {
        Err(Errno::AGAIN.into())
    }
    fn send(&self, _: rustix::fd::BorrowedFd<'_>, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.swap(0, std::sync::atomic::Ordering::Relaxed) {
            0 => Err(Errno::PIPE.into()),
            taken => Ok(taken.min(bytes.len())),
        }
    }
    fn ending(&self, _: rustix::fd::BorrowedFd<'_>) {}
    fn closing(&self, _: rustix::fd::BorrowedFd<'_>) {}
}

#[test]
fn what_was_taken_before_the_socket_broke_counts_as_sent() {
    let (mut reactor, id, _peer) = filled(0);
    static CARRIER: Short = Short(std::sync::atomic::AtomicUsize::new(3));
    reactor.io.link(id).expect("it is open").carrier = Some(&CARRIER);
    reactor.io.output(id).extend_from_slice(b"0123456789");
    reactor.io.flush(id);
    // Whatever is looked at in between.
    reactor.read(&mut Uses(0), id, EventFlags::IN);
    reactor.io.close(id);
    assert_eq!(reactor.io.never_sent(), 7);
}

/// Counts the pieces that come, and stops with the last byte.
struct Pieces {
    pieces: u64,
    bytes: usize,
    last: usize,
}

impl Handler for Pieces {
    fn turn(&mut self, _: &mut Io) -> Option<u64> {
        None
    }
    fn opened(&mut self, _: &mut Io, _: Id) {}
    fn data(&mut self, io: &mut Io, _: Id, bytes: &[u8]) -> usize {
        self.pieces += 1;
        self.bytes += bytes.len();
        if self.bytes == self.last {
            io.stop();
        }
        bytes.len()
    }
    fn closed(&mut self, _: &mut Io, _: Id, why: Closed) {
        panic!("{why}");
    }
    fn timer(&mut self, _: &mut Io, _: u64) {}
}

#[test]
fn a_paced_loop_takes_what_has_come_meanwhile_at_once() {
    const PACE: u64 = 10_000_000;
    const BYTES: usize = 200;
    let (mut reactor, _, mut peer) = filled(0);
    reactor.io.pace(PACE);
    let writer = std::thread::spawn(move || {
        for _ in 0..BYTES {
            peer.write_all(b"x").expect("the socket has room");
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        peer
    });
    let (begun, slept) = (now_ns(), reactor.io.slept_ns());
    let mut pieces = Pieces { pieces: 0, bytes: 0, last: BYTES };
    reactor.run(&mut pieces).expect("epoll");
    let (took, slept) = (now_ns() - begun, reactor.io.slept_ns() - slept);
    writer.join().expect("it has written");
    assert!(pieces.pieces <= took / PACE + 2, "{} pieces in {} ms", pieces.pieces, took / 1_000_000);
    assert!(slept <= took && slept > PACE, "{slept} ns of {took}");
}

#[test]
fn what_a_paced_turn_could_not_take_does_not_wait() {
    const TURNS: u64 = 40;
    let bytes = READ * TURNS as usize;
    let (mut reactor, _, mut peer) = filled(0);
    // A second. Only after a read that was not full does the loop wait, and then a socket holds three full ones.
    reactor.io.pace(1_000_000_000);
    let writer = std::thread::spawn(move || {
        peer.write_all(&vec![b'x'; bytes]).expect("it is read");
        peer
    });
    let mut pieces = Pieces { pieces: 0, bytes: 0, last: bytes };
    let begun = now_ns();
    reactor.run(&mut pieces).expect("epoll");
    let took = now_ns() - begun;
    writer.join().expect("it has written");
    assert!(took < TURNS / 2 * 1_000_000_000, "{} turns took {} ms", pieces.pieces, took / 1_000_000);
}
