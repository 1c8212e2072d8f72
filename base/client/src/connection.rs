//! One connection: connect, TLS, AUTH, HELLO, then commands, alone or pipelined.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use unslow_nodes::{Greeting, Plan, Progress, Step, Tolerance};
use unslow_resp::{ErrorKind as RespErrorKind, Frame, Limits, Scan, Scanner, Value, write_command};

use crate::{Endpoint, Error, ErrorKind, Target, TlsOptions, tls};

/// How to connect. Every wait ends by one of the two timeouts.
#[derive(Clone, Debug)]
pub struct Options {
    /// For name resolution, TCP and TLS together.
    pub connect_timeout: Duration,
    /// For each command, from the first byte sent to the last byte read.
    pub command_timeout: Duration,
    /// Used when the target says TLS.
    pub tls: TlsOptions,
    /// CLIENT SETNAME, so that operators see who is asking.
    pub name: Option<&'static str>,
    /// 2 or 3. RESP3 falls back to RESP2 where the server has no HELLO.
    pub protocol: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            connect_timeout: Duration::from_secs(3),
            command_timeout: Duration::from_secs(5),
            tls: TlsOptions::default(),
            name: None,
            protocol: 2,
        }
    }
}

/// What a peer may make us hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimits {
    /// Of one reply.
    pub(crate) reply: Limits,
    /// Of all replies of one exchange (a command or a pipeline) together, in bytes as they are held.
    pub(crate) exchange_bytes_max: usize,
}

/// For peers that are trusted with as much as the protocol allows.
const TRUSTING: ReplyLimits = ReplyLimits {
    reply: Limits { frame_bytes_max: 512 << 20, line_bytes_max: 64 << 10, elements_max: u64::MAX, depth_max: 32 },
    exchange_bytes_max: usize::MAX,
};

/// After a reply a connection keeps no larger buffer for the next: a recorder has thousands.
const KEPT_BYTES: usize = 4 << 10;

/// A connection that is authenticated and ready for commands.
pub struct Connection {
    stream: Stream,
    /// What a call may take, as the stream was told last.
    timeout: Option<Duration>,
    scanner: Scanner,
    limits: ReplyLimits,
    /// Bytes that the replies of this exchange take so far.
    held: usize,
    input: Vec<u8>,
    output: Vec<u8>,
    command_timeout: Duration,
    peer: String,
    spoke: bool,
    /// Set by the first failure: a reply may still be owed, and the next one read would be the wrong one.
    broken: Option<Error>,
    /// From the first SYN (or TLS hello) to readiness, without name resolution.
    pub connect_time: Duration,
    /// Our own address, as the server's CLIENT LIST shows it.
    pub local: Option<SocketAddr>,
    /// The address dialled, after name resolution.
    pub remote: Option<SocketAddr>,
    /// 2 or 3.
    pub protocol: u8,
    /// Whether the server asked for, and took, a password or user.
    pub authenticated: bool,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

impl Stream {
    fn set_timeout(&self, t: Duration) -> io::Result<()> {
        let t = Some(t.max(Duration::from_millis(1)));
        match self {
            Stream::Tcp(s) => s.set_read_timeout(t).and(s.set_write_timeout(t)),
            Stream::Tls(s) => s.sock.set_read_timeout(t).and(s.sock.set_write_timeout(t)),
            Stream::Unix(s) => s.set_read_timeout(t).and(s.set_write_timeout(t)),
        }
    }

    /// Both directions, at once: the peer need not be waited for.
    fn close(&self) {
        let _ = match self {
            Stream::Tcp(s) => s.shutdown(Shutdown::Both),
            Stream::Tls(s) => s.sock.shutdown(Shutdown::Both),
            Stream::Unix(s) => s.shutdown(Shutdown::Both),
        };
    }

    fn io(&mut self) -> &mut dyn ReadWrite {
        match self {
            Stream::Tcp(s) => s,
            Stream::Unix(s) => s,
            Stream::Tls(s) => s,
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl Connection {
    /// Connects to the first endpoint of `target` that answers, authenticates, and agrees on the protocol.
    pub fn open(target: &Target, options: &Options) -> Result<Connection, Error> {
        Connection::open_within(target, options, TRUSTING)
    }

    /// [`Connection::open`], with limits on what the peer may answer.
    pub(crate) fn open_within(target: &Target, options: &Options, limits: ReplyLimits) -> Result<Connection, Error> {
        let mut last = Error::new(ErrorKind::BadUrl, "no address given");
        for endpoint in &target.endpoints {
            match Connection::open_one(endpoint, target, options, limits) {
                Ok(connection) => return Ok(connection),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn open_one(
        endpoint: &Endpoint,
        target: &Target,
        options: &Options,
        limits: ReplyLimits,
    ) -> Result<Connection, Error> {
        let deadline = Instant::now() + options.connect_timeout;
        let (stream, started, remote) = match endpoint {
            Endpoint::Unix(path) => {
                let started = Instant::now();
                let s = connect_unix(path, options.connect_timeout)
                    .map_err(|e| no_socket(path).unwrap_or_else(|| connect_error(endpoint, &e)))?;
                (Stream::Unix(s), started, None)
            }
            Endpoint::Tcp(host, port) => {
                let addresses = resolve(host, *port, options.connect_timeout)?;
                let started = Instant::now();
                let tcp = connect_any(endpoint, &addresses, deadline)?;
                // A full pipe of small questions must not wait for the peer's ACK.
                let _ = tcp.set_nodelay(true);
                let remote = tcp.peer_addr().ok();
                if target.tls {
                    (handshake(endpoint, host, tcp, options, deadline)?, started, remote)
                } else {
                    (Stream::Tcp(tcp), started, remote)
                }
            }
        };
        let local = match &stream {
            Stream::Tcp(s) => s.local_addr().ok(),
            Stream::Tls(s) => s.sock.local_addr().ok(),
            Stream::Unix(_) => None,
        };
        let mut connection = Connection {
            stream,
            timeout: None,
            scanner: Scanner::new(limits.reply),
            limits,
            held: 0,
            input: Vec::new(),
            output: Vec::new(),
            command_timeout: options.command_timeout,
            peer: endpoint.to_string(),
            spoke: false,
            broken: None,
            connect_time: started.elapsed(),
            local,
            remote,
            protocol: 2,
            authenticated: false,
        };
        connection.greet(target, options)?;
        Ok(connection)
    }

    /// AUTH, HELLO, CLIENT SETNAME, SELECT: one write, one round trip.
    fn greet(&mut self, target: &Target, options: &Options) -> Result<(), Error> {
        let resp3 = options.protocol == 3;
        let plan = Plan { resp3, tolerance: Tolerance::Control, name: options.name, ..target.plan() };
        self.output.clear();
        let mut greeting = Greeting::begin(&plan, &mut self.output);
        self.authenticated = target.password.is_some() || target.user.is_some();
        if greeting.is_done() {
            return Ok(());
        }
        self.flush()?;
        let deadline = Instant::now() + self.command_timeout;
        while let Some(step) = greeting.due() {
            let len = self.read_frame(deadline).inspect_err(|e| self.broken = Some(e.clone()))?;
            let reply = &self.input[..len];
            let (value, progress) = (Value::from(Frame::new(reply)), greeting.reply(reply));
            self.input.drain(..len);
            let Err(error) = self.sort(value, step.command()) else { continue };
            // What is sent in place of a reply, whatever that answers.
            if error.is_fatal() || error.kind == ErrorKind::AuthRequired {
                return Err(error);
            }
            let refused = matches!(progress, Progress::Refused { .. });
            match step {
                Step::Auth | Step::AuthAnew if refused => {
                    let who = target.user.as_deref().map_or("the default user".to_string(), |u| format!("user {u:?}"));
                    // The server's own words may repeat what was sent, so they are left out.
                    let kind = if error.kind == ErrorKind::Reply { ErrorKind::WrongPassword } else { error.kind };
                    return Err(Error::new(
                        kind,
                        format!("{}: password refused for {who}; check UNSLOW_PASSWORD or the URL", self.peer),
                    ));
                }
                // The servers' own clients go on with a warning.
                Step::Auth | Step::AuthAnew => self.authenticated = false,
                _ if refused => return Err(error),
                _ => {}
            }
        }
        self.protocol = if greeting.is_resp3() { 3 } else { 2 };
        Ok(())
    }

    /// The address dialled, as text.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// One command. An error reply is an [`Error`].
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Value, Error> {
        self.send(args)?;
        let deadline = Instant::now() + self.command_timeout;
        let name = name_of(args);
        let value = self.read(deadline)?;
        self.sort(value, &name)
    }

    /// Many commands in one round trip. The outer error is the connection's, the inner ones the commands'.
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Result<Vec<Result<Value, Error>>, Error> {
        self.output.clear();
        for command in commands {
            write_command(&mut self.output, command);
        }
        self.flush()?;
        let deadline = Instant::now() + self.command_timeout;
        commands
            .iter()
            .map(|command| {
                let value = self.read(deadline)?;
                match self.sort(value, &name_of(command)) {
                    Err(e) if e.is_fatal() => Err(e),
                    other => Ok(other),
                }
            })
            .collect()
    }

    /// Sends without waiting for a reply; [`Connection::receive`] reads it.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<(), Error> {
        self.output.clear();
        write_command(&mut self.output, args);
        self.flush()
    }

    /// The next reply or push, error replies as values, within `timeout`.
    pub fn receive(&mut self, timeout: Duration) -> Result<Value, Error> {
        self.read_any(Instant::now() + timeout)
    }

    fn flush(&mut self) -> Result<(), Error> {
        if let Some(e) = &self.broken {
            return Err(e.clone());
        }
        self.held = 0;
        let timeout = self.command_timeout;
        let output = std::mem::take(&mut self.output);
        let timed = self.set_timeout(timeout);
        let sent = timed.and_then(|()| self.stream.io().write_all(&output)).and_then(|()| self.stream.io().flush());
        self.output = output;
        sent.map_err(|e| {
            let e = self.io_error(&e, timeout);
            self.broken = Some(e.clone());
            e
        })
    }

    /// A little more is as good, and spares four system calls for each question.
    fn set_timeout(&mut self, left: Duration) -> io::Result<()> {
        const MORE: Duration = Duration::from_millis(20);
        if self.timeout.is_none_or(|told| told < left || told > left + MORE) {
            self.stream.set_timeout(left)?;
            self.timeout = Some(left);
        }
        Ok(())
    }

    fn sort(&self, value: Value, command: &str) -> Result<Value, Error> {
        let Value::Error(text) = value else { return Ok(value) };
        let error = Error::reply(&text, command);
        Err(match error.kind {
            ErrorKind::AuthRequired => error.told(auth_required(&self.peer).message),
            ErrorKind::MaxClients => error.told(format!(
                "{}: the server is at maxclients and takes no one else; free a connection, or raise it: CONFIG SET \
                 maxclients N",
                self.peer
            )),
            ErrorKind::Protected => error.told(format!(
                "{}: the server is in protected mode and takes connections from its own machine only; run unslow \
                 there, or give the \
                 server a password",
                self.peer
            )),
            _ => error,
        })
    }

    fn read(&mut self, deadline: Instant) -> Result<Value, Error> {
        loop {
            match self.read_any(deadline) {
                Ok(Value::Push(_)) => {}
                Ok(value) => {
                    self.held = self.held.saturating_add(held_by(&value));
                    if self.held > self.limits.exchange_bytes_max {
                        return Err(self.close(self.too_large()));
                    }
                    return Ok(value);
                }
                Err(e) => {
                    self.broken = Some(e.clone());
                    return Err(e);
                }
            }
        }
    }

    fn read_any(&mut self, deadline: Instant) -> Result<Value, Error> {
        let len = self.read_frame(deadline)?;
        let value = Value::from(Frame::new(&self.input[..len]));
        self.input.drain(..len);
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = Vec::new();
        }
        Ok(value)
    }

    /// Reads until the input begins with a whole reply or push. Returns its length.
    fn read_frame(&mut self, deadline: Instant) -> Result<usize, Error> {
        let begun = Instant::now();
        loop {
            match self.scanner.scan(&self.input) {
                Ok(Scan::Complete(len)) => {
                    self.spoke = true;
                    return Ok(len);
                }
                Ok(Scan::Incomplete) => {}
                Err(e) => {
                    let e = if e.kind == RespErrorKind::TooLarge { self.too_large() } else { self.not_redis(&e) };
                    return Err(self.close(e));
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.io_error(&io::ErrorKind::TimedOut.into(), begun.elapsed()));
            }
            let timed = self.set_timeout(left);
            let mut chunk = [0u8; 16 * 1024];
            let n = match timed.and_then(|()| self.stream.io().read(&mut chunk)) {
                Ok(0) => return Err(self.closed()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
                Err(e) => return Err(self.io_error(&e, begun.elapsed())),
            };
            self.input.extend_from_slice(&chunk[..n]);
        }
    }

    /// Nothing after these bytes can be parsed: drops what has been received and shuts the connection down.
    fn close(&mut self, e: Error) -> Error {
        self.stream.close();
        self.input = Vec::new();
        self.broken = Some(e.clone());
        e
    }

    fn too_large(&self) -> Error {
        let most = self.limits.reply.frame_bytes_max.min(self.limits.exchange_bytes_max) >> 20;
        Error::new(
            ErrorKind::TooLarge,
            format!(
                "{}: the reply is larger than the limit of {most} MiB, so the connection was closed; is it a Redis or \
                 Valkey server?",
                self.peer
            ),
        )
    }

    fn closed(&self) -> Error {
        let peer = &self.peer;
        let message = if self.spoke {
            format!("{peer}: the server closed the connection{}", self.half())
        } else if matches!(self.stream, Stream::Tls(_)) {
            format!(
                "{peer}: the server closed the TLS connection at once; it may want a client certificate (--cert, --key)"
            )
        } else {
            format!(
                "{peer}: closed without an answer; a TLS port wants rediss://, and protected-mode or maxclients close \
                 at once too"
            )
        };
        Error::new(ErrorKind::Closed, message)
    }

    fn half(&self) -> String {
        if self.input.is_empty() {
            String::new()
        } else {
            format!(" in the middle of a reply ({} bytes of it came)", self.input.len())
        }
    }

    fn io_error(&self, e: &io::Error, waited: Duration) -> Error {
        let peer = &self.peer;
        match e.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::new(
                ErrorKind::Timeout,
                format!(
                    "{peer}: no answer within {:.1} s{}; is the server hung, or not a Redis?",
                    waited.as_secs_f64(),
                    self.half()
                ),
            ),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => self.closed(),
            io::ErrorKind::InvalidData => Error::new(ErrorKind::Tls, format!("{peer}: {}", tls::reason(e))),
            _ => Error::new(ErrorKind::Unreachable, format!("{peer}: {e}")),
        }
    }

    fn not_redis(&self, e: &unslow_resp::Error) -> Error {
        let peer = &self.peer;
        if self.spoke || !matches!(e.kind, RespErrorKind::UnknownType(_)) {
            return Error::new(ErrorKind::NotRedis, format!("{peer}: the reply is not RESP: {e}"));
        }
        let saw = match &self.input[..] {
            [b'H', b'T', b'T', b'P', ..] => "an HTTP server",
            [b'S', b'S', b'H', ..] => "an SSH server",
            [0x15 | 0x16, 0x03, ..] => {
                return Error::new(ErrorKind::Tls, format!("{peer}: this port speaks TLS; use rediss://{peer}"));
            }
            [b'2', b'2', b'0', ..] => "a mail or FTP server",
            _ => "something that speaks no RESP",
        };
        Error::new(ErrorKind::NotRedis, format!("{peer}: found {saw}, expected Redis or Valkey; check the port"))
    }
}

/// Bytes that a reply takes in memory, about.
fn held_by(value: &Value) -> usize {
    let own = match value {
        Value::Text(bytes) => bytes.len(),
        Value::Error(text) => text.len(),
        Value::Array(items) | Value::Push(items) => items.iter().map(held_by).sum(),
        Value::Null | Value::Integer(_) | Value::Double(_) | Value::Boolean(_) => 0,
    };
    size_of::<Value>() + own
}

fn auth_required(peer: &str) -> Error {
    Error::new(
        ErrorKind::AuthRequired,
        format!("{peer}: the server wants a password; set UNSLOW_PASSWORD, or use redis://user:password@{peer}"),
    )
}

fn name_of<A: AsRef<[u8]>>(args: &[A]) -> String {
    // The second word only where it is a sub-command: elsewhere it may be a key or a secret.
    const CONTAINERS: &[&str] =
        &["CLIENT", "CLUSTER", "CONFIG", "SLOWLOG", "LATENCY", "SENTINEL", "ACL", "INFO", "PUBSUB", "DEBUG", "UNSLOW"];
    let first = args.first().map(|a| String::from_utf8_lossy(a.as_ref()).to_uppercase()).unwrap_or_default();
    let words = if CONTAINERS.contains(&first.as_str()) { 2 } else { 1 };
    args.iter().take(words).map(|a| String::from_utf8_lossy(a.as_ref()).to_uppercase()).collect::<Vec<_>>().join(" ")
}

fn resolve(host: &str, port: u16, timeout: Duration) -> Result<Vec<SocketAddr>, Error> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    // getaddrinfo knows no deadline: ask in a thread, and leave it behind if it does not come back.
    let (tx, rx) = mpsc::channel();
    let name = host.to_string();
    std::thread::spawn(move || {
        let _ = tx.send((name.as_str(), port).to_socket_addrs().map(|all| all.collect::<Vec<_>>()));
    });
    match rx.recv_timeout(timeout) {
        Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Ok(Ok(_)) => Err(Error::new(ErrorKind::Resolve, format!("{host}: the name has no address"))),
        Ok(Err(e)) => Err(Error::new(ErrorKind::Resolve, format!("{host}: the name does not resolve ({e})"))),
        Err(_) => Err(Error::new(
            ErrorKind::Resolve,
            format!("{host}: no answer from the name server within {:.1} s", timeout.as_secs_f64()),
        )),
    }
}

/// What a path is that is there and no socket.
fn no_socket(path: &str) -> Option<Error> {
    use std::os::unix::fs::FileTypeExt;
    let kind = std::fs::metadata(path).ok()?.file_type();
    let what = if kind.is_dir() { "a directory" } else { "a file" };
    let text = format!("{path} is {what}; expected a server's socket, as in unix:/run/redis/redis.sock");
    (!kind.is_socket()).then(|| Error::new(ErrorKind::BadUrl, text))
}

/// A hung server with a full backlog blocks connect() for ever: so a thread waits for it, and is left behind if need
/// be.
fn connect_unix(path: &str, timeout: Duration) -> io::Result<UnixStream> {
    let (tx, rx) = mpsc::channel();
    let path = path.to_string();
    std::thread::spawn(move || {
        let _ = tx.send(UnixStream::connect(path));
    });
    rx.recv_timeout(timeout).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn connect_any(endpoint: &Endpoint, addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, Error> {
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for (i, address) in addresses.iter().enumerate() {
        // Each address gets its part of the time: a dead one must not use up the living one's.
        let left = deadline.saturating_duration_since(Instant::now()) / (addresses.len() - i) as u32;
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, left) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(connect_error(endpoint, &last))
}

fn connect_error(endpoint: &Endpoint, e: &io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::ConnectionRefused => Error::new(
            ErrorKind::Unreachable,
            format!("{endpoint}: connection refused; nothing listens there. Is the server up, and the port right?"),
        ),
        // Not Timeout: that is for a peer that was reached and then said nothing.
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Error::new(
            ErrorKind::Unreachable,
            format!("{endpoint}: no answer to the connection attempt; a firewall, a dead host, or the wrong address"),
        ),
        io::ErrorKind::NotFound => Error::new(ErrorKind::Unreachable, format!("{endpoint}: there is no such socket")),
        _ => Error::new(ErrorKind::Unreachable, format!("{endpoint}: {e}")),
    }
}

fn handshake(
    endpoint: &Endpoint,
    host: &str,
    mut tcp: TcpStream,
    options: &Options,
    deadline: Instant,
) -> Result<Stream, Error> {
    let tls_error = |message: String| Error::new(ErrorKind::Tls, message);
    let name = options.tls.server_name.as_deref().unwrap_or(host).to_string();
    let name = rustls::pki_types::ServerName::try_from(name).map_err(|e| tls_error(format!("{endpoint}: {e}")))?;
    let mut session = rustls::ClientConnection::new(options.tls.client_config()?, name)
        .map_err(|e| tls_error(format!("{endpoint}: {e}")))?;
    while session.is_handshaking() {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let _ = tcp.set_read_timeout(Some(left));
        let _ = tcp.set_write_timeout(Some(left));
        // One step at a time, so that the deadline is looked at between them.
        let step = if session.wants_write() {
            session.write_tls(&mut tcp).map(drop)
        } else if Instant::now() >= deadline {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            session.read_tls(&mut tcp).and_then(|n| {
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                session.process_new_packets().map(drop).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
            })
        };
        let Err(e) = step else { continue };
        // A plain Redis waits for the end of a line that a TLS hello never holds, so silence is the likely sign.
        let why = match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "no TLS answer; a plain port wants redis://".to_string()
            }
            io::ErrorKind::InvalidData => tls::reason(&e),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "the server closed the connection during the TLS handshake; a plain port wants redis://".to_string()
            }
            _ => e.to_string(),
        };
        return Err(tls_error(format!("{endpoint}: {why}")));
    }
    Ok(Stream::Tls(Box::new(rustls::StreamOwned::new(session, tcp))))
}
