//! Metrics and health over HTTP: the few answers that a scraper and an orchestrator ask for. Not a web server.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a process says of itself. Called on threads of this crate.
pub trait Status: Send + Sync + 'static {
    /// For `/metrics`, in Prometheus' text format.
    fn metrics(&self) -> String;
    /// For `/readyz`: `Err` says why it is not.
    fn ready(&self) -> Result<(), String>;
    /// Whether to stop serving.
    fn ended(&self) -> bool;
}

/// Connections at once. A further one takes the place of the oldest.
const AT_ONCE_MAX: usize = 16;
/// The oldest has at least this long, so that a crowd cannot push a request out before it is answered.
const SERVED: Duration = Duration::from_millis(100);
/// For a whole request and its answer, however many pieces they come in.
const EXCHANGE: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 8192;

/// Serves `/metrics`, `/healthz` (it runs) and `/readyz` at `address`, and returns where. With `patient` an address that
/// is taken is tried again until it is free.
pub fn serve(address: &str, patient: bool, status: Arc<dyn Status>) -> std::io::Result<Option<SocketAddr>> {
    let mut listener = match TcpListener::bind(address) {
        Ok(listener) => Some(listener),
        Err(_) if patient => None,
        Err(e) => return Err(e),
    };
    let bound = listener.as_ref().and_then(|l| l.local_addr().ok());
    let address = address.to_string();
    let open = Arc::new(Open::default());
    let thread = std::thread::Builder::new().name("status".into());
    thread.spawn(move || {
        while !status.ended() {
            let Some(ready) = &listener else {
                listener = TcpListener::bind(&address).ok();
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            let _ = ready.set_nonblocking(true);
            match ready.accept() {
                // A thread each, so that a slow client keeps no other waiting.
                Ok((stream, _)) => {
                    let stream = Arc::new(stream);
                    open.add(stream.clone());
                    let (status, theirs, own) = (status.clone(), open.clone(), stream.clone());
                    let spawned = std::thread::Builder::new().spawn(move || {
                        let _ = answer(&own, &*status, Instant::now() + EXCHANGE);
                        theirs.remove(&own);
                    });
                    if spawned.is_err() {
                        open.remove(&stream);
                    }
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    })?;
    Ok(bound)
}

/// Connections that are being answered, the oldest first.
#[derive(Default)]
struct Open {
    connections: Mutex<VecDeque<(Instant, Arc<TcpStream>)>>,
}

impl Open {
    /// Makes room if there is none, by closing the oldest.
    fn add(&self, stream: Arc<TcpStream>) {
        loop {
            let mut connections = self.connections.lock().expect("no thread panicked");
            let full = connections.len() >= AT_ONCE_MAX;
            if full && connections.front().is_some_and(|(since, _)| since.elapsed() < SERVED) {
                drop(connections);
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            if full && let Some((_, oldest)) = connections.pop_front() {
                let _ = oldest.shutdown(Shutdown::Both); // its thread reads or writes no more, and ends
            }
            return connections.push_back((Instant::now(), stream));
        }
    }

    fn remove(&self, stream: &Arc<TcpStream>) {
        self.connections.lock().expect("no thread panicked").retain(|(_, other)| !Arc::ptr_eq(other, stream));
    }
}

fn answer(stream: &TcpStream, status: &dyn Status, until: Instant) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    // All of the head is read: closing with something unread would take the answer away.
    let head = read_head(stream, until)?;
    let head = String::from_utf8_lossy(&head);
    let plain = "text/plain";
    let (code, kind, body) = match head.lines().next().and_then(|line| line.split(' ').nth(1)).unwrap_or("") {
        "/metrics" => ("200 OK", "text/plain; version=0.0.4", status.metrics()),
        "/healthz" => ("200 OK", plain, "ok\n".into()),
        "/readyz" => match status.ready() {
            Ok(()) => ("200 OK", plain, "ready\n".into()),
            Err(why) => ("503 Service Unavailable", plain, why + "\n"),
        },
        _ => ("404 Not Found", plain, "try /metrics, /healthz or /readyz\n".into()),
    };
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    write_all(stream, text.as_bytes(), until)
}

/// Up to the empty line, the end, or the most that is read of one.
fn read_head(mut stream: &TcpStream, until: Instant) -> std::io::Result<Vec<u8>> {
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    let ended = |head: &[u8]| head.windows(2).any(|w| w == b"\n\n") || head.windows(4).any(|w| w == b"\r\n\r\n");
    while head.len() < HEAD_BYTES_MAX && !ended(&head) {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => head.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(head)
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Never zero, which would mean for ever.
fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Error::from(ErrorKind::TimedOut)) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[derive(Default)]
    struct Fine(AtomicBool);

    impl Status for Fine {
        fn metrics(&self) -> String {
            "up 1\n".into()
        }

        fn ready(&self) -> Result<(), String> {
            Err("not yet".into())
        }

        fn ended(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }
    }

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn connections_that_never_end_their_request_keep_no_other_from_being_answered() {
        let status = Arc::new(Fine::default());
        let address = serve("127.0.0.1:0", false, status.clone()).unwrap().expect("it is bound");
        let mut slow: Vec<TcpStream> = Vec::new();
        for _ in 0..3 {
            for _ in 0..AT_ONCE_MAX {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"G").unwrap();
                slow.push(stream);
            }
            let text = ask(address, "/healthz");
            assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("ok\n"), "{text}");
        }
        assert!(ask(address, "/readyz").starts_with("HTTP/1.1 503"));
        assert!(ask(address, "/metrics").ends_with("up 1\n"));
        // The oldest had to go.
        slow[0].set_read_timeout(None).unwrap();
        assert!(matches!(slow[0].read(&mut [0; 16]), Ok(0) | Err(_)));
        status.0.store(true, Ordering::Release);
    }

    #[test]
    fn a_request_that_comes_byte_by_byte_has_one_deadline_in_all() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let theirs = over.clone();
        let drips = std::thread::spawn(move || {
            // Fewer bytes than a head may have; then silence.
            for _ in 0..HEAD_BYTES_MAX / 8 {
                if theirs.load(Ordering::Acquire) {
                    break;
                }
                client.write_all(b"x").unwrap();
                std::thread::sleep(Duration::from_millis(1)); // the pace of a slow client
            }
            client
        });
        let why = read_head(&server, Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{why}");
        over.store(true, Ordering::Release);
        drop(drips.join().unwrap());
    }

    #[test]
    fn an_answer_that_is_not_read_has_a_deadline_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let long = vec![b'x'; 64 << 20];
        let why = write_all(&server, &long, Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{why}");
    }
}
