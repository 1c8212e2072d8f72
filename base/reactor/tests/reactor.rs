//! The loop against real sockets: what it tells its handler, and when.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use unslow_reactor::{Closed, Handler, Id, Io, Peer, Reactor, now_ns};

const SECOND: u64 = 1_000_000_000;
/// For what comes on any machine; nothing is judged by it.
const PATIENCE: u64 = 120 * SECOND;

/// Waits for a condition; false if it never comes.
fn comes(mut met: impl FnMut() -> bool) -> bool {
    let deadline = now_ns() + PATIENCE;
    while !met() {
        if now_ns() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A handler made of closures: tests say what they want to happen.
#[derive(Default)]
struct Script {
    opened: Vec<Id>,
    got: HashMap<Id, Vec<u8>>,
    closed: Vec<(Id, String)>,
    drained: Vec<Id>,
    timers: Vec<u64>,
    on_open: Vec<u8>,
    /// How many bytes of what comes are used at once; all when `None`.
    uses: Option<fn(&[u8]) -> usize>,
    /// The loop ends when this holds.
    until: Option<fn(&Script) -> bool>,
    turns: u64,
    deadline: u64,
}

impl Handler for Script {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        self.turns += 1;
        if self.until.is_some_and(|u| u(self)) {
            io.stop();
        }
        assert!(now_ns() < self.deadline, "it never came: opened {:?}, closed {:?}", self.opened, self.closed);
        Some(self.deadline)
    }
    fn opened(&mut self, io: &mut Io, id: Id) {
        self.opened.push(id);
        io.output(id).extend_from_slice(&self.on_open);
    }
    fn data(&mut self, _: &mut Io, id: Id, bytes: &[u8]) -> usize {
        let used = self.uses.map_or(bytes.len(), |u| u(bytes));
        self.got.entry(id).or_default().extend_from_slice(&bytes[..used]);
        used
    }
    fn closed(&mut self, _: &mut Io, id: Id, why: Closed) {
        self.closed.push((id, why.to_string()));
    }
    fn timer(&mut self, _: &mut Io, key: u64) {
        self.timers.push(key);
    }
    fn drained(&mut self, _: &mut Io, id: Id) {
        self.drained.push(id);
    }
}

fn script(until: fn(&Script) -> bool) -> Script {
    Script { until: Some(until), deadline: now_ns() + PATIENCE, ..Script::default() }
}

/// A listener, and the connections it takes, in order.
fn listen() -> (Peer, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::Tcp(listener.local_addr().unwrap());
    let (give, take) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if give.send(stream).is_err() {
                return;
            }
        }
    });
    (peer, take)
}

#[test]
fn what_is_appended_before_the_connection_stands_goes_out_behind_it() {
    let (peer, accepted) = listen();
    let mut reactor = Reactor::new().unwrap();
    let io = reactor.io();
    let id = io.connect(&peer, None, now_ns() + PATIENCE).unwrap();
    io.output(id).extend_from_slice(b"early ");
    std::thread::spawn(move || {
        let mut stream = accepted.recv().unwrap();
        let mut buffer = [0; 10];
        stream.read_exact(&mut buffer).unwrap();
        stream.write_all(&buffer).unwrap();
        stream.read_exact(&mut [0; 1]).unwrap_err(); // until the other side is dropped
    });
    let mut handler = script(|s| s.got.values().any(|g| g.len() == 10));
    handler.on_open = b"late".to_vec();
    reactor.run(&mut handler).unwrap();
    assert_eq!(handler.got[&id], b"early late");
    assert_eq!(handler.opened, [id]);
}

#[test]
fn speaks_over_unix_sockets() {
    let dir = std::env::temp_dir().join(format!("unslow-reactor-{}", std::process::id()));
    let _ = std::fs::remove_file(&dir);
    let listener = UnixListener::bind(&dir).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"hello").unwrap();
    });
    let mut reactor = Reactor::new().unwrap();
    let id = reactor.io().connect(&Peer::Unix(dir.clone()), None, now_ns() + PATIENCE).unwrap();
    let mut handler = script(|s| !s.closed.is_empty());
    reactor.run(&mut handler).unwrap();
    std::fs::remove_file(&dir).unwrap();
    assert_eq!((&handler.got[&id][..], handler.closed.len()), (&b"hello"[..], 1));
}

#[test]
fn says_why_a_connection_is_no_more() {
    let (peer, accepted) = listen();
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let mut reactor = Reactor::new().unwrap();
    let io = reactor.io();
    let refused = io.connect(&Peer::Tcp(nobody), None, now_ns() + PATIENCE).unwrap();
    let missing = io.connect(&Peer::Unix("/nowhere/at/all".into()), None, now_ns() + PATIENCE).unwrap();
    let left = io.connect(&peer, None, now_ns() + PATIENCE).unwrap();
    let mine = io.connect(&peer, None, now_ns() + PATIENCE).unwrap();
    io.close(mine);
    std::thread::spawn(move || drop(accepted.recv().unwrap()));
    let mut handler = script(|s| s.closed.len() >= 3);
    reactor.run(&mut handler).unwrap();
    let why = |id: Id| handler.closed.iter().find(|(i, _)| *i == id).map(|(_, w)| w.as_str()).unwrap_or("nothing");
    assert!(why(refused).contains("refused"), "{}", why(refused));
    assert!(why(missing).contains("No such file"), "{}", why(missing));
    assert!(why(left).contains("the peer closed"), "{}", why(left));
    assert_eq!(why(mine), "nothing", "who closes knows it");
}

#[test]
fn a_peer_that_never_ends_the_handshake_is_given_up_at_the_deadline() {
    let (peer, accepted) = listen();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let tls = unslow_reactor::Tls { config: config.into(), name: "localhost".try_into().unwrap() };
    // A machine that hangs may spend all of a deadline before the hello is sent: then the next one is longer.
    let said_hello = [SECOND / 5, SECOND, 5 * SECOND, 25 * SECOND].into_iter().any(|patience| {
        let mut reactor = Reactor::new().unwrap();
        let deadline = now_ns() + patience;
        reactor.io().connect(&peer, Some(&tls), deadline).unwrap();
        let mut handler = script(|s| !s.closed.is_empty());
        reactor.run(&mut handler).unwrap();
        assert!(handler.closed[0].1.contains("not established in time"), "{}", handler.closed[0].1);
        assert!(now_ns() >= deadline);
        assert!(handler.opened.is_empty());
        // A handshake's record.
        let mut first = [0; 1];
        accepted.recv().unwrap().read_exact(&mut first).is_ok() && first[0] == 0x16
    });
    assert!(said_hello);
}

#[test]
fn what_is_not_used_comes_again_with_more_behind_it() {
    let (peer, accepted) = listen();
    let mut reactor = Reactor::new().unwrap();
    let id = reactor.io().connect(&peer, None, now_ns() + PATIENCE).unwrap();
    // Lines of very different length, in pieces that fit nothing.
    let lines: Vec<u8> = (0..400usize)
        .flat_map(|i| [vec![b'x'; i * 37 % 1900], vec![b'\n']].concat())
        .chain([b'x'; 200_000])
        .chain(*b"\n")
        .collect();
    let sent = lines.clone();
    std::thread::spawn(move || {
        let mut stream = accepted.recv().unwrap();
        for piece in sent.chunks(777) {
            stream.write_all(piece).unwrap();
        }
    });
    let mut handler = script(|s| !s.closed.is_empty());
    // Whole lines alone.
    handler.uses = Some(|bytes| bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1));
    reactor.run(&mut handler).unwrap();
    assert!(handler.got[&id] == lines, "{} of {} bytes", handler.got[&id].len(), lines.len());
}

#[test]
fn more_than_the_limit_without_an_end_closes_the_connection() {
    let (peer, accepted) = listen();
    let mut reactor = Reactor::new().unwrap();
    reactor.io().limit_input(1000);
    let id = reactor.io().connect(&peer, None, now_ns() + PATIENCE).unwrap();
    let thread = std::thread::spawn(move || {
        let mut stream = accepted.recv().unwrap();
        while stream.write_all(&[b'x'; 100]).is_ok() {}
    });
    let mut handler = script(|s| !s.closed.is_empty());
    handler.uses = Some(|_| 0);
    reactor.run(&mut handler).unwrap();
    thread.join().unwrap();
    assert_eq!(handler.closed, [(id, "too many bytes without the end of a frame".to_string())]);
}

#[test]
fn a_peer_that_does_not_read_is_waited_for_and_told_of() {
    let (peer, accepted) = listen();
    let mut reactor = Reactor::new().unwrap();
    let id = reactor.io().connect(&peer, None, now_ns() + PATIENCE).unwrap();
    const SIZE: usize = 64 << 20; // more than any socket holds
    let mut handler = script(|s| !s.opened.is_empty());
    handler.on_open = vec![7; SIZE];
    reactor.run(&mut handler).unwrap();
    let unsent = reactor.io().unsent(id);
    assert!(unsent > 0 && unsent < SIZE, "{unsent} bytes wait");
    assert!(handler.drained.is_empty());
    let mut stream = accepted.recv().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut sum, mut buffer) = (0, vec![0; 1 << 20]);
        while sum < SIZE {
            sum += stream.read(&mut buffer).unwrap();
        }
        sum
    });
    handler.until = Some(|s| !s.drained.is_empty());
    reactor.run(&mut handler).unwrap();
    assert_eq!((reader.join().unwrap(), reactor.io().unsent(id)), (SIZE, 0));
}

#[test]
fn a_paused_connection_is_not_read_and_does_not_keep_the_loop_busy() {
    let (peer, accepted) = listen();
    let mut reactor = Reactor::new().unwrap();
    let id = reactor.io().connect(&peer, None, now_ns() + PATIENCE).unwrap();
    let mut handler = script(|s| !s.opened.is_empty());
    reactor.run(&mut handler).unwrap();
    accepted.recv().unwrap().write_all(b"unread").unwrap(); // and closed
    reactor.io().pause(id, true);
    reactor.io().timer(now_ns() + SECOND / 10, 1);
    handler.until = Some(|s| !s.timers.is_empty());
    let before = handler.turns;
    reactor.run(&mut handler).unwrap();
    assert!(handler.got.is_empty() && handler.turns - before < 10, "{} turns", handler.turns - before);
    reactor.io().pause(id, false);
    handler.until = Some(|s| !s.closed.is_empty());
    reactor.run(&mut handler).unwrap();
    assert_eq!(handler.got[&id], b"unread");
}

#[test]
fn timers_come_in_order_and_not_before_their_time() {
    let mut reactor = Reactor::new().unwrap();
    let now = now_ns();
    for (after_ms, key) in [(30, 3), (10, 1), (20, 2), (10, 11)] {
        reactor.io().timer(now + after_ms * 1_000_000, key);
    }
    let mut handler = script(|s| s.timers.len() == 4);
    reactor.run(&mut handler).unwrap();
    assert_eq!(handler.timers, [1, 11, 2, 3]);
    assert!(now_ns() >= now + 30_000_000);
}

/// Leaves what comes first, stops reading, and goes on a moment later.
struct Holding {
    holds: bool,
    got: Vec<u8>,
    closed: bool,
    id: Option<Id>,
    enough: fn(&Holding) -> bool,
    deadline: u64,
}

impl Handler for Holding {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        if (self.enough)(self) {
            io.stop();
        }
        assert!(now_ns() < self.deadline, "what was left over never came: {:?}", self.got);
        Some(self.deadline)
    }
    fn opened(&mut self, _: &mut Io, _: Id) {}
    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize {
        if std::mem::take(&mut self.holds) {
            self.id = Some(id);
            io.pause(id, true);
            io.timer(now_ns() + SECOND / 20, 1);
            return 0;
        }
        self.got.extend_from_slice(bytes);
        bytes.len()
    }
    fn closed(&mut self, _: &mut Io, _: Id, _: Closed) {
        self.closed = true;
    }
    fn timer(&mut self, io: &mut Io, _: u64) {
        io.pause(self.id.unwrap(), false);
    }
}

#[test]
fn what_was_left_over_comes_again_when_reading_goes_on_though_the_peer_sends_no_more() {
    for closes in [false, true] {
        let (peer, accepted) = listen();
        let mut reactor = Reactor::new().unwrap();
        reactor.io().connect(&peer, None, now_ns() + PATIENCE).unwrap();
        let thread = std::thread::spawn(move || {
            let mut stream = accepted.recv().unwrap();
            stream.write_all(b"abc").unwrap();
            (!closes).then_some(stream)
        });
        let enough: fn(&Holding) -> bool = if closes { |h| h.closed } else { |h| h.got.len() == 3 };
        let deadline = now_ns() + PATIENCE;
        let mut handler = Holding { holds: true, got: Vec::new(), closed: false, id: None, enough, deadline };
        reactor.run(&mut handler).unwrap();
        assert_eq!((&handler.got[..], handler.closed), (&b"abc"[..], closes));
        drop(thread.join().unwrap());
    }
}

#[test]
fn what_a_peer_said_before_it_went_is_read_though_writing_to_it_fails() {
    let (peer, accepted) = listen();
    let mut reactor = Reactor::new().unwrap();
    let id = reactor.io().connect(&peer, None, now_ns() + PATIENCE).unwrap();
    let mut handler = script(|s| !s.opened.is_empty());
    reactor.run(&mut handler).unwrap();
    let mut stream = accepted.recv().unwrap();
    stream.write_all(b"last words").unwrap();
    drop(stream);
    // The first write is answered by a reset, the second finds it; either may come before what was said is read.
    handler.until = Some(|s| !s.closed.is_empty());
    reactor.io().output(id).extend_from_slice(b"a");
    reactor.io().flush(id);
    reactor.io().output(id).extend_from_slice(b"b");
    reactor.io().flush(id);
    reactor.run(&mut handler).unwrap();
    assert_eq!((&handler.got[&id][..], handler.closed.len()), (&b"last words"[..], 1));
}

/// Has no time of its own to be woken at.
#[derive(Default)]
struct Idle {
    turns: u64,
    rang: Arc<AtomicBool>,
    woken: Arc<AtomicBool>,
}

impl Handler for Idle {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        self.turns += 1;
        if self.woken.load(Ordering::Acquire) {
            io.stop();
        }
        None
    }
    fn opened(&mut self, _: &mut Io, _: Id) {}
    fn data(&mut self, _: &mut Io, _: Id, bytes: &[u8]) -> usize {
        bytes.len()
    }
    fn closed(&mut self, _: &mut Io, _: Id, _: Closed) {}
    fn timer(&mut self, _: &mut Io, _: u64) {
        self.rang.store(true, Ordering::Release);
    }
}

/// Whether a thread of this process sleeps in the kernel.
fn sleeps(thread: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit(')').next().is_some_and(|state| state.trim_start().starts_with('S'))
}

#[test]
fn an_alarm_that_rang_does_not_go_on_ringing() {
    let mut reactor = Reactor::new().unwrap();
    reactor.io().timer(now_ns() + 1_000_000, 1);
    let mut handler = Idle::default();
    let (waker, rang, woken) = (reactor.io().waker(), handler.rang.clone(), handler.woken.clone());
    let this = std::fs::read_link("/proc/thread-self").unwrap().file_name().unwrap().to_str().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        // A loop that is woken by an alarm without end never sleeps.
        let slept = comes(|| rang.load(Ordering::Acquire))
            && (0..50).all(|_| {
                std::thread::sleep(Duration::from_millis(1)); // the pace of the looks
                comes(|| sleeps(&this))
            });
        woken.store(true, Ordering::Release);
        waker.wake();
        slept
    });
    reactor.run(&mut handler).unwrap();
    assert!(thread.join().unwrap(), "it does not ring, or never sleeps again");
    assert!(handler.turns < 10, "{} turns with nothing to do", handler.turns);
}

#[test]
fn a_waker_ends_the_sleep_from_another_thread() {
    let mut reactor = Reactor::new().unwrap();
    let waker = reactor.io().waker();
    waker.wake();
    waker.wake();
    let mut handler = script(|s| s.turns == 2);
    reactor.run(&mut handler).unwrap();
    let thread = std::thread::spawn(move || waker.wake());
    handler.until = Some(|s| s.turns == 4);
    reactor.run(&mut handler).unwrap(); // or the deadline's assertion says that it never came
    thread.join().unwrap();
}
