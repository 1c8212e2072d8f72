//! Metrics and health over HTTP: the few answers that a scraper and an orchestrator ask for. Not a web server.
#![forbid(unsafe_code)]

mod exposition;

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use exposition::{CONTENT_TYPE, Distribution, Exposition, Labels};
use unslow_reactor::{End, Waited};

/// Why a process is not ready to serve, for `/readyz`: what an operator reads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// It was told to end and lets what it has finish.
    #[error("it is ending")]
    Ending,
    /// No server answers for part of the data.
    #[error("some slots have no master that answers")]
    SlotsWithoutMaster,
}

/// What a process says of itself. Called on threads of this crate.
pub trait Status: Send + Sync + 'static {
    /// For `/metrics`: an [`Exposition`]'s text.
    fn metrics(&self) -> String;
    /// For `/readyz`: `Err` says why it is not.
    fn ready(&self) -> Result<(), NotReady>;
}

/// Serves as long as it lives.
#[derive(Debug)]
pub struct Serving {
    /// Where; not known yet while the address is taken.
    pub address: Option<SocketAddr>,
    end: End,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end.end();
    }
}

/// Connections at once. A further one takes the place of the oldest.
const AT_ONCE_MAX: usize = 16;
/// The oldest has at least this long, so that a crowd cannot push a request out before it is answered.
const SERVED: Duration = Duration::from_millis(100);
/// For a whole request and its answer, however many pieces they come in.
const EXCHANGE: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 8192;
/// Between attempts to listen or accept where that failed.
const RETRY: Duration = Duration::from_millis(100);

/// Serves `/metrics`, `/healthz` (it runs) and `/readyz` at `address`. With `patient` an address that is taken is tried
/// again until it is free.
pub fn serve(address: &str, patient: bool, status: Arc<dyn Status>) -> std::io::Result<Serving> {
    let listener = match listen(address) {
        Ok(listener) => Some(listener),
        Err(_) if patient => None,
        Err(e) => return Err(e),
    };
    let bound = listener.as_ref().and_then(|l| l.local_addr().ok());
    let (end, address) = (End::new()?, address.to_string());
    let theirs = end.clone();
    let thread = std::thread::Builder::new().name(bound.map_or("status".into(), |b| format!("status-{}", b.port())));
    thread.spawn(move || {
        if let Some(listener) = listener.or_else(|| listen_when_free(&address, &theirs)) {
            accept(&listener, &status, &theirs);
        }
    })?;
    Ok(Serving { address: bound, end })
}

/// Clients are waited for together with the end, so accepting one must not wait.
fn listen(address: &str) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn listen_when_free(address: &str, end: &End) -> Option<TcpListener> {
    while !end.sleep(RETRY) {
        if let Ok(listener) = listen(address) {
            return Some(listener);
        }
    }
    None
}

/// Until the end; a thread for each client, so that a slow one keeps no other waiting.
fn accept(listener: &TcpListener, status: &Arc<dyn Status>, end: &End) {
    let open = Arc::new(Open::default());
    loop {
        match end.wait(listener, None) {
            Waited::Ended => return,
            Waited::TimedOut => continue,
            Waited::Readable => {}
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => Arc::new(stream),
            // It has left again.
            Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
            // Out of descriptors, and the client is still there: some come back.
            Err(_) if end.sleep(RETRY) => return,
            Err(_) => continue,
        };
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
        "/metrics" => ("200 OK", CONTENT_TYPE, status.metrics()),
        "/healthz" => ("200 OK", plain, "ok\n".into()),
        "/readyz" => match status.ready() {
            Ok(()) => ("200 OK", plain, "ready\n".into()),
            Err(why) => ("503 Service Unavailable", plain, format!("{why}\n")),
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

    struct Fine;

    impl Status for Fine {
        fn metrics(&self) -> String {
            "up 1\n".into()
        }

        fn ready(&self) -> Result<(), NotReady> {
            Err(NotReady::Ending)
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
        let serving = serve("127.0.0.1:0", false, Arc::new(Fine)).unwrap();
        let address = serving.address.expect("it is bound");
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
    }

    /// How often the thread of this name has gone to sleep; `None` when there is no such thread.
    fn sleeps(name: &str) -> Option<u64> {
        let mut tasks = std::fs::read_dir("/proc/self/task").expect("/proc").flatten().map(|task| task.path());
        let named = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let status = std::fs::read_to_string(tasks.find(named)?.join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
    }

    #[test]
    fn without_a_request_the_thread_sleeps_and_its_end_frees_the_address() {
        let serving = serve("127.0.0.1:0", false, Arc::new(Fine)).unwrap();
        let address = serving.address.expect("it is bound");
        let name = format!("status-{}", address.port());
        assert!(ask(address, "/healthz").starts_with("HTTP/1.1 200"));
        let before = sleeps(&name).expect("its thread");
        std::thread::sleep(Duration::from_millis(500)); // nobody asks
        let slept = sleeps(&name).expect("its thread") - before;
        assert!(slept <= 3, "it slept {slept} times, and nothing happened");
        drop(serving);
        let begun = Instant::now();
        while sleeps(&name).is_some() {
            assert!(begun.elapsed() < Duration::from_secs(60), "its thread does not end");
            std::thread::yield_now();
        }
        TcpListener::bind(address).expect("the address is free");
    }

    #[test]
    fn a_patient_server_has_the_address_when_it_is_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert!(serve(&address.to_string(), false, Arc::new(Fine)).is_err());
        let serving = serve(&address.to_string(), true, Arc::new(Fine)).unwrap();
        assert_eq!(serving.address, None);
        drop(taken);
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(ask(address, "/healthz").starts_with("HTTP/1.1 200"));
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
