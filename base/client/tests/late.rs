//! A reply that comes late must never be taken for the next command's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use unslow_client::{Connection, ErrorKind, Options, Target};

/// For what comes on any machine; nothing is judged by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes that were written here and that the peer's kernel has not acknowledged; none if the connection is gone.
fn unacknowledged(stream: &TcpStream) -> Option<u64> {
    let hex = |a: SocketAddr| format!(":{:04X}", a.port());
    let (own, peer) = (hex(stream.local_addr().unwrap()), hex(stream.peer_addr().unwrap()));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // "sl local_address rem_address st tx_queue:rx_queue ..."
    let mut lines = table.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|words| words.len() > 4 && words[1].ends_with(&own) && words[2].ends_with(&peer))?;
    Some(u64::from_str_radix(line[4].split(':').next().unwrap(), 16).unwrap())
}

#[test]
fn after_a_timeout_the_connection_answers_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((timed_out, told), (arrived, heard)) = (channel(), channel());
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut buffer = [0u8; 256];
        assert!(peer.read(&mut buffer).unwrap() > 0);
        told.recv().unwrap();
        peer.write_all(b"$4\r\nlate\r\n").unwrap();
        let deadline = Instant::now() + PATIENCE;
        while unacknowledged(&peer).is_some_and(|bytes| bytes > 0) {
            assert!(Instant::now() < deadline, "the late answer never arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
        arrived.send(()).unwrap();
        while let Ok(1..) = peer.read(&mut buffer) {} // until the client is gone
    });
    let options =
        Options { connect_timeout: PATIENCE, command_timeout: Duration::from_millis(100), ..Options::default() };
    let mut c = Connection::open(&Target::parse(&address.to_string()).unwrap(), &options).unwrap();
    assert_eq!(c.call(&["PING"]).unwrap_err().kind, ErrorKind::Timeout);
    timed_out.send(()).unwrap();
    heard.recv().unwrap();
    for _ in 0..2 {
        assert_eq!(
            c.call(&["SLOWLOG", "LEN"]).unwrap_err().kind,
            ErrorKind::Timeout,
            "the late reply was taken for this one's"
        );
    }
    drop(c);
    server.join().unwrap();
}
