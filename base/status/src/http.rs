//! The server: a thread for each connection, bounded in number, size and time.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use unslow_reactor::{End, Waited};

/// A GET or HEAD, as it came.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Without its query.
    pub path: String,
    query: String,
    headers: Vec<(String, String)>,
    /// HEAD: the answer has no body.
    is_head: bool,
    /// Who asked.
    peer: Peer,
}

/// The socket of who asked, if it came over one.
#[derive(Clone, Default)]
struct Peer(Option<Arc<TcpStream>>);

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.as_ref().and_then(|stream| stream.peer_addr().ok()))
    }
}

impl Request {
    /// `None` if it is neither GET nor HEAD.
    fn parse(head: &str) -> Option<Request> {
        let mut lines = head.lines();
        let mut words = lines.next()?.split(' ');
        let (Some(method @ ("GET" | "HEAD")), Some(target)) = (words.next(), words.next()) else { return None };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = lines.map_while(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_string())).collect();
        let (path, query, is_head) = (path.to_string(), query.to_string(), method == "HEAD");
        Some(Request { path, query, headers, is_head, peer: Peer::default() })
    }

    /// Whether who asked has left, so that an expensive answer need not be made.
    pub fn is_abandoned(&self) -> bool {
        let Some(stream) = &self.peer.0 else { return false };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
        match stream.peek(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
        }
    }

    /// As if it had come so; names of headers in lower case.
    pub fn of(path: &str, query: &str, headers: &[(&str, &str)]) -> Request {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Request { path: path.to_string(), query: query.to_string(), headers, ..Request::default() }
    }

    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| decoded(value))
    }
}

/// `%41` and `+` of a query.
fn decoded(text: &str) -> String {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Writes until the client has left.
pub type Stream = Box<dyn FnOnce(&mut dyn Write) -> std::io::Result<()>>;

pub enum Body {
    Whole(Vec<u8>),
    /// Without a length: its end is the connection's. Each write has [`EXCHANGE`].
    Stream(Stream),
}

pub struct Answer {
    code: &'static str,
    kind: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Body,
}

impl Answer {
    /// `code` as in `404 Not Found`, `kind` as in `text/plain`.
    pub fn new(code: &'static str, kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { code, kind, headers: Vec::new(), body: Body::Whole(body.into()) }
    }

    pub fn ok(kind: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer::new("200 OK", kind, body)
    }

    pub fn stream(kind: &'static str, stream: Stream) -> Answer {
        Answer { code: "200 OK", kind, headers: Vec::new(), body: Body::Stream(stream) }
    }

    #[must_use]
    pub fn with(mut self, header: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((header, value.into()));
        self
    }
}

/// What is served. Called on threads of this crate.
pub trait Pages: Send + Sync + 'static {
    fn answer(&self, request: &Request) -> Answer;
}

/// Where to listen.
pub struct Listen<'a> {
    pub address: &'a str,
    /// An address that is taken is tried again until it is free.
    pub patient: bool,
    pub tls: Option<Arc<ServerConfig>>,
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
/// Answers that are being made at once, those included whose client was closed for a newer one.
const THREADS_MAX: usize = 64;
/// A browser sends the cookies of every port of this machine.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Between attempts to listen or accept where that failed.
const RETRY: Duration = Duration::from_millis(100);

pub fn serve(listen: Listen<'_>, pages: Arc<dyn Pages>) -> std::io::Result<Serving> {
    let listener = match bind(listen.address) {
        Ok(listener) => Some(listener),
        Err(_) if listen.patient => None,
        Err(e) => return Err(e),
    };
    let bound = listener.as_ref().and_then(|l| l.local_addr().ok());
    let (end, address, tls) = (End::new()?, listen.address.to_string(), listen.tls);
    let theirs = end.clone();
    let thread = std::thread::Builder::new().name(bound.map_or("status".into(), |b| format!("status-{}", b.port())));
    thread.spawn(move || {
        if let Some(listener) = listener.or_else(|| bind_when_free(&address, &theirs)) {
            accept(&listener, &pages, tls.as_ref(), &theirs);
        }
    })?;
    Ok(Serving { address: bound, end })
}

/// Clients are waited for together with the end, so accepting one must not wait.
fn bind(address: &str) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn bind_when_free(address: &str, end: &End) -> Option<TcpListener> {
    while !end.sleep(RETRY) {
        if let Ok(listener) = bind(address) {
            return Some(listener);
        }
    }
    None
}

/// Until the end; a thread for each client, so that a slow one keeps no other waiting.
fn accept(listener: &TcpListener, pages: &Arc<dyn Pages>, tls: Option<&Arc<ServerConfig>>, end: &End) {
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
        if open.threads.load(Ordering::Acquire) >= THREADS_MAX {
            // It reads the end of the connection, at once.
            continue;
        }
        open.add(stream.clone());
        open.threads.fetch_add(1, Ordering::AcqRel);
        let answering = Answering { open: open.clone(), stream };
        let (pages, tls) = (pages.clone(), tls.cloned());
        // Where no thread can be had it is dropped, and with it the connection.
        let _ = std::thread::Builder::new().spawn(move || {
            let _ = answer(&answering.stream, &*pages, tls);
        });
    }
}

/// Connections that are being answered, the oldest first.
#[derive(Default)]
struct Open {
    connections: Mutex<VecDeque<(Instant, Arc<TcpStream>)>>,
    threads: AtomicUsize,
}

/// One that is being answered, until it is dropped: after a panic as well.
struct Answering {
    open: Arc<Open>,
    stream: Arc<TcpStream>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.open.remove(&self.stream);
        self.open.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Open {
    /// Makes room if there is none, by closing the oldest.
    fn add(&self, stream: Arc<TcpStream>) {
        loop {
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
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
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(_, other)| !Arc::ptr_eq(other, stream));
    }
}

fn answer(stream: &Arc<TcpStream>, pages: &dyn Pages, tls: Option<Arc<ServerConfig>>) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    let timed = Timed { stream, until: Instant::now() + EXCHANGE };
    match tls {
        None => exchange(timed, |timed| timed, pages),
        Some(config) => {
            let connection = ServerConnection::new(config).map_err(Error::other)?;
            let mut secret = StreamOwned::new(connection, timed);
            exchange(&mut secret, |secret| &mut secret.sock, pages)?;
            secret.conn.send_close_notify();
            secret.flush()
        }
    }
}

/// One request and its answer. `timed` gives the socket below, for its deadline.
fn exchange<'a, S: Read + Write>(
    mut stream: S,
    timed: impl Fn(&mut S) -> &mut Timed<'a>,
    pages: &dyn Pages,
) -> std::io::Result<()> {
    // All of the head is read: closing with something unread would take the answer away.
    let head = read_head(&mut stream)?;
    let request = Request::parse(&String::from_utf8_lossy(&head));
    let is_head = request.as_ref().is_some_and(|request| request.is_head);
    let answer = match request {
        _ if head.len() >= HEAD_BYTES_MAX => {
            Answer::new("431 Request Header Fields Too Large", "text/plain", "the request is too long\n")
        }
        Some(mut request) => {
            request.peer = Peer(Some(timed(&mut stream).stream.clone()));
            pages.answer(&request)
        }
        None => Answer::new("405 Method Not Allowed", "text/plain", "only GET is answered here\n")
            .with("Allow", "GET, HEAD"),
    };
    // What it took to find the answer was not the client's time.
    timed(&mut stream).until = Instant::now() + EXCHANGE;
    let mut text = format!("HTTP/1.1 {}\r\nContent-Type: {}\r\nConnection: close\r\n", answer.code, answer.kind);
    for (name, value) in &answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    match answer.body {
        Body::Whole(body) => {
            text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
            stream.write_all(text.as_bytes())?;
            if !is_head {
                stream.write_all(&body)?;
            }
            stream.flush()
        }
        Body::Stream(write) => {
            text.push_str("\r\n");
            stream.write_all(text.as_bytes())?;
            if is_head { Ok(()) } else { write(&mut Renewed { stream, timed }) }
        }
    }
}

/// A stream whose every write has its own deadline.
struct Renewed<S, T> {
    stream: S,
    timed: T,
}

impl<'a, S: Write, T: Fn(&mut S) -> &mut Timed<'a>> Write for Renewed<S, T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (self.timed)(&mut self.stream).until = Instant::now() + EXCHANGE;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// A socket that reads and writes until a moment, however many pieces it takes.
struct Timed<'a> {
    stream: &'a Arc<TcpStream>,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        (&**self.stream).read(room)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        (&**self.stream).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Up to the empty line, the end, or the most that is read of one.
fn read_head(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    let ended = |head: &[u8]| head.windows(2).any(|w| w == b"\n\n") || head.windows(4).any(|w| w == b"\r\n\r\n");
    while head.len() < HEAD_BYTES_MAX && !ended(&head) {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => head.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(head)
}

/// Never zero, which would mean for ever.
fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Error::from(ErrorKind::TimedOut)) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::{NotReady, Status, serve};

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
        let server = Arc::new(listener.accept().unwrap().0);
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
        let mut timed = Timed { stream: &server, until: Instant::now() + Duration::from_millis(50) };
        let why = read_head(&mut timed).unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{why}");
        over.store(true, Ordering::Release);
        drop(drips.join().unwrap());
    }

    #[test]
    fn an_answer_that_is_not_read_has_a_deadline_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = Arc::new(listener.accept().unwrap().0);
        let long = vec![b'x'; 64 << 20];
        let mut timed = Timed { stream: &server, until: Instant::now() + Duration::from_millis(50) };
        let why = timed.write_all(&long).unwrap_err();
        assert!(matches!(why.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{why}");
    }

    #[test]
    fn what_was_asked_is_taken_apart() {
        let head = "GET /curves?url=redis%3A%2F%2Fa%3A1&from=5&note=a+b%zz HTTP/1.1\r\nHost: Here:80\r\n\r\nX: y";
        let request = Request::parse(head).unwrap();
        assert_eq!((request.path.as_str(), request.header("host")), ("/curves", Some("Here:80")));
        assert_eq!(request.header("x"), None, "behind the head");
        let of = |name| request.parameter(name);
        assert_eq!(of("url").as_deref(), Some("redis://a:1"));
        assert_eq!((of("note").as_deref(), of("from").as_deref(), of("fro")), (Some("a b%zz"), Some("5"), None));
        assert!(Request::parse("HEAD / HTTP/1.1\r\n").is_some_and(|request| request.is_head));
        assert!(Request::parse("POST / HTTP/1.1\r\n").is_none() && Request::parse("").is_none());
    }

    struct Ticks;

    impl Pages for Ticks {
        fn answer(&self, _: &Request) -> Answer {
            let two = |to: &mut dyn Write| {
                to.write_all(b"one ")?;
                to.write_all(b"two")
            };
            Answer::stream("text/event-stream", Box::new(two)).with("Cache-Control", "no-store")
        }
    }

    #[test]
    fn a_stream_is_written_piece_by_piece_and_only_get_is_answered() {
        let listen = Listen { address: "127.0.0.1:0", patient: false, tls: None };
        let serving = crate::serve_pages(listen, Arc::new(Ticks)).unwrap();
        let address = serving.address.expect("it is bound");
        let text = ask(address, "/");
        assert!(text.contains("\r\nCache-Control: no-store\r\n") && text.ends_with("\r\n\r\none two"), "{text}");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"DELETE / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 405") && text.contains("\r\nAllow: GET, HEAD\r\n"), "{text}");
    }

    /// Holds back every answer until it is allowed to.
    #[derive(Default)]
    struct Slow {
        begun: AtomicUsize,
        allowed: AtomicBool,
        abandoned: AtomicUsize,
    }

    impl Pages for Slow {
        fn answer(&self, request: &Request) -> Answer {
            self.begun.fetch_add(1, Ordering::AcqRel);
            while !self.allowed.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            self.abandoned.fetch_add(usize::from(request.is_abandoned()), Ordering::AcqRel);
            Answer::ok("text/plain", "done")
        }
    }

    #[test]
    fn answers_that_nobody_waits_for_any_more_are_bounded_and_known() {
        let slow = Arc::new(Slow::default());
        let listen = Listen { address: "127.0.0.1:0", patient: false, tls: None };
        let serving = crate::serve_pages(listen, slow.clone()).unwrap();
        let address = serving.address.expect("it is bound");
        for _ in 0..THREADS_MAX + 20 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        }
        let until = |what: &str, met: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !met() {
                assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until("they begin", &|| slow.begun.load(Ordering::Acquire) >= THREADS_MAX / 2);
        slow.allowed.store(true, Ordering::Release);
        until("a new one is answered", &|| {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut text = String::new();
            let asked = stream.write_all(b"GET / HTTP/1.1\r\n\r\n").and_then(|()| stream.read_to_string(&mut text));
            asked.is_ok() && text.ends_with("done")
        });
        assert!(slow.abandoned.load(Ordering::Acquire) >= THREADS_MAX / 2, "they have left");
    }
}
