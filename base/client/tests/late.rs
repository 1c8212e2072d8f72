//! A reply that comes late must never be taken for the next command's.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use unslow_client::{Connection, ErrorKind, Options, Target};

#[test]
fn after_a_timeout_the_connection_answers_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut buffer = [0u8; 256];
        // Reads until the client is gone; the first answer comes only after its time.
        let mut answered = false;
        while let Ok(n @ 1..) = peer.read(&mut buffer) {
            if !answered {
                std::thread::sleep(Duration::from_millis(300));
                let _ = peer.write_all(b"$4\r\nlate\r\n");
                answered = true;
            }
            let _ = n;
        }
    });
    let options = Options { command_timeout: Duration::from_millis(100), ..Options::default() };
    let mut c = Connection::open(&Target::parse(&address.to_string()).unwrap(), &options).unwrap();
    assert_eq!(c.call(&["PING"]).unwrap_err().kind, ErrorKind::Timeout);
    std::thread::sleep(Duration::from_millis(400)); // the late answer has arrived by now
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
