//! A hostile server must not cost a diagnosis more memory than a reply can honestly need.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use unslow_client::{ErrorKind, Options, ReadOnly, Target};

/// For what comes on any machine; nothing is judged by it.
const PATIENCE: Duration = Duration::from_secs(120);

fn options() -> Options {
    Options { connect_timeout: PATIENCE, command_timeout: PATIENCE, ..Options::default() }
}

/// A server that answers the greeting's PING, and what comes next by `answer`. It ends when its client has closed the
/// connection.
fn server(answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> (Target, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut buffer = [0u8; 256];
        assert!(peer.read(&mut buffer).unwrap() > 0);
        peer.write_all(b"+PONG\r\n").unwrap();
        assert!(peer.read(&mut buffer).unwrap() > 0);
        // A client that reads no more fills the way to it: who writes must not be who sees it go.
        let mut writer = peer.try_clone().unwrap();
        let writing = std::thread::spawn(move || answer(&mut writer));
        while let Ok(1..) = peer.read(&mut buffer) {}
        let _ = peer.shutdown(Shutdown::Both);
        writing.join().unwrap();
    });
    (target, thread)
}

/// Waits until the server has seen its client go although that still holds the connection.
#[track_caller]
fn assert_closed(mut connection: ReadOnly, thread: JoinHandle<()>) {
    thread.join().unwrap();
    assert_eq!(connection.call(&["INFO"]).unwrap_err().kind, ErrorKind::TooLarge, "it asks nothing more");
}

#[test]
fn a_reply_that_announces_too_much_is_refused_before_it_comes() {
    for announced in ["$536870000\r\n", "*2000000\r\n", "%600000\r\n", "*2\r\n*1000000\r\n*1000000\r\n"] {
        let (target, thread) = server(move |peer| drop(peer.write_all(announced.as_bytes())));
        let mut connection = ReadOnly::open(&target, &options()).unwrap();
        let error = connection.call(&["INFO"]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge, "{announced:?}: {error}");
        assert!(error.is_fatal() && error.message.contains("64 MiB"), "{error}");
        assert_closed(connection, thread);
    }
}

#[test]
fn a_reply_without_an_end_is_refused_at_the_limit() {
    let (target, thread) = server(|peer| {
        let element = format!("$1000\r\n{}\r\n", "x".repeat(1000)).repeat(64);
        let mut sent = peer.write_all(b"*1000000\r\n");
        while sent.is_ok() {
            sent = peer.write_all(element.as_bytes());
        }
    });
    let mut connection = ReadOnly::open(&target, &options()).unwrap();
    assert_eq!(connection.call(&["SLOWLOG", "GET"]).unwrap_err().kind, ErrorKind::TooLarge);
    assert_closed(connection, thread);
}

#[test]
fn replies_of_one_pipeline_share_the_limit() {
    const SIZE: usize = 40 << 20;
    let (target, thread) = server(|peer| {
        let reply = format!("${SIZE}\r\n{}\r\n", "x".repeat(SIZE));
        // The third is one too many; it may not even be taken.
        for _ in 0..3 {
            let _ = peer.write_all(reply.as_bytes());
        }
    });
    let mut connection = ReadOnly::open(&target, &options()).unwrap();
    let questions = ["a", "b", "c"].map(|key| vec!["TYPE", key]);
    assert_eq!(connection.pipeline(&questions).unwrap_err().kind, ErrorKind::TooLarge);
    assert_closed(connection, thread);
}
