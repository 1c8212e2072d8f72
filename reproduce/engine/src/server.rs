//! One running server: started in a directory of its own, ready when it says so, gone when dropped.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use unslow_client::{Connection, Endpoint, Options, Target};

use crate::catalog::Engine;
use crate::error::{Error, ErrorKind};
use crate::registry::{self, WorkDir, unless_stopping, unregister};
use crate::seat::Seat;

/// Ports handed out by this process, each with a claim that other processes see: a server needs a moment before its
/// port is taken, and one that is killed and started again finds it free.
static HANDED_OUT: Mutex<BTreeMap<u16, UnixListener>> = Mutex::new(BTreeMap::new());

/// A name in the kernel that one process holds at a time, and loses when it ends.
fn claim(port: u16) -> Option<UnixListener> {
    let address = SocketAddr::from_abstract_name(format!("unslow-port-{port}")).ok()?;
    UnixListener::bind_addr(&address).ok()
}

/// How to start a server.
#[derive(Clone, Default)]
pub struct ServerSpec {
    /// Where it sits; among this process's own addresses when `None`.
    pub seat: Option<Arc<Seat>>,
    /// Its name in messages, and that of its directory on the seat's disk or in `base`.
    pub name: String,
    /// Where its directory is made when it has no seat; the temporary directory when `None`.
    pub base: Option<PathBuf>,
    /// Address to bind; 127.0.0.1 when empty.
    pub ip: String,
    /// Port; a free one when `None`.
    pub port: Option<u16>,
    /// Lines of its configuration file.
    pub settings: Vec<(String, String)>,
    /// Sentinel mode.
    pub sentinel: bool,
    /// Environment, for preloads.
    pub env: Vec<(String, String)>,
    /// Files to put into its directory before the start (nodes.conf).
    pub files: Vec<(String, String)>,
}

impl ServerSpec {
    /// The configuration file of a server at this address that sees its directory as `inside`.
    fn text(&self, ip: &str, port: u16, inside: &Path) -> String {
        let mut text = format!("port {port}\nbind {ip}\ndir {}\nlogfile server.log\n", inside.display());
        if self.seat.is_some() {
            // Its own loopback too, for whoever stands beside it.
            text = text.replace(&format!("bind {ip}"), &format!("bind {ip} 127.0.0.1\nprotected-mode no"));
        }
        if !self.sentinel {
            // Persistence only when asked for, and no five-second wait for further replicas to sync.
            text += "save \"\"\nrepl-diskless-sync-delay 0\n";
        }
        for (key, value) in &self.settings {
            text += &format!("{key} {value}\n");
        }
        text
    }
}

/// A running server. Dropping it ends it and removes its directory.
pub struct Server {
    child: Mutex<Option<Child>>,
    restarting: Mutex<()>,
    /// Its directory as this process sees it.
    dir: PathBuf,
    /// The same as the server sees it.
    inside: PathBuf,
    _temporary: Option<WorkDir>,
    engine: Engine,
    spec: ServerSpec,
    /// Address it is bound to.
    pub ip: String,
    /// Its port.
    pub port: u16,
}

/// A port that is free on `ip`, with its bus port (+10000); both below the ephemeral range.
pub fn free_port(ip: &str) -> Result<u16, Error> {
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(|e| e.into_inner());
    for _ in 0..2000 {
        let port: u16 = rand::random_range(10_000..22_000);
        let free = |p: u16| TcpListener::bind((ip, p)).is_ok();
        if !handed_out.contains_key(&port)
            && let Some(claim) = claim(port)
            && free(port)
            && free(port + 10_000)
        {
            handed_out.insert(port, claim);
            return Ok(port);
        }
    }
    Err(Error::new(format!("no free port between 10000 and 22000 on {ip}")))
}

impl Server {
    /// Starts it and waits until it answers PING.
    pub fn start(engine: &Engine, spec: &ServerSpec) -> Result<Server, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            let server = Server::launch(engine, spec)?;
            match server.wait_ready() {
                Ok(()) => return Ok(server),
                // Somebody else was faster; only a port of our own choosing may be changed.
                Err(e) if spec.port.is_none() && tries < 5 && e.kind == ErrorKind::PortTaken => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Starts it without waiting, so that many can get ready at once.
    pub fn launch(engine: &Engine, spec: &ServerSpec) -> Result<Server, Error> {
        let ip = if spec.ip.is_empty() { "127.0.0.1".to_string() } else { spec.ip.clone() };
        let port = spec.port.map_or_else(|| free_port(&ip), Ok)?;
        let io = |e: std::io::Error| Error::new(format!("cannot create a directory for the server's data: {e}"));
        let (dir, inside, temporary) = match &spec.seat {
            Some(seat) => {
                let dir = seat.disk_from_outside().join(&spec.name);
                unless_stopping(|| fs::create_dir_all(&dir).map_err(io))?;
                (dir, seat.disk().join(&spec.name), None)
            }
            None if spec.base.is_some() => {
                let dir = spec.base.clone().unwrap_or_default().join(&spec.name);
                unless_stopping(|| fs::create_dir_all(&dir).map_err(io))?;
                (dir.clone(), dir, None)
            }
            None => {
                let make = || tempfile::Builder::new().prefix("unslow-server-").tempdir().map_err(io);
                let temporary = WorkDir::make(make)?;
                (temporary.path().to_path_buf(), temporary.path().to_path_buf(), Some(temporary))
            }
        };
        let write = |name: &str, text: &str| {
            fs::write(dir.join(name), text).map_err(|e| Error::new(format!("{}: {e}", dir.join(name).display())))
        };
        write("server.conf", &spec.text(&ip, port, &inside))?;
        for (name, text) in &spec.files {
            write(name, &text.replace("{port}", &port.to_string()))?;
        }
        let server = Server {
            child: Mutex::new(None),
            restarting: Mutex::new(()),
            dir,
            inside,
            _temporary: temporary,
            engine: engine.clone(),
            spec: spec.clone(),
            ip,
            port,
        };
        server.spawn()?;
        Ok(server)
    }

    fn spawn(&self) -> Result<(), Error> {
        let mut command = self.engine.command();
        command.arg(self.inside.join("server.conf"));
        if self.spec.sentinel {
            command.arg("--sentinel");
        }
        // What is wrong with its configuration a server says here, before it has a log.
        let words = fs::File::create(self.dir.join("stderr.log"))
            .and_then(|f| Ok((f.try_clone()?, f)))
            .map_err(|e| Error::new(format!("{}: {e}", self.dir.join("stderr.log").display())))?;
        command.current_dir(&self.dir).stdin(Stdio::null()).stdout(words.0).stderr(words.1);
        command.envs(self.spec.env.iter().cloned());
        if let Some(seat) = &self.spec.seat {
            seat.place_server(&mut command, &self.inside).map_err(|e| Error::new(e.to_string()))?;
        }
        let child = registry::start(&self.dir, || {
            spawn_bound(command).map_err(|e| Error::new(format!("{}: {e}", self.engine.server.display())))
        })?;
        *self.child() = Some(child);
        Ok(())
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until it answers PING, for a minute at most.
    pub fn wait_ready(&self) -> Result<(), Error> {
        self.ready_within(Duration::from_secs(60))
    }

    fn ready_within(&self, patience: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.reap() {
                let log = self.log_tail(4);
                // The server's words: its exit status is the same for everything that is wrong at its start.
                let taken = log.contains("Address already in use");
                let kind = if taken { ErrorKind::PortTaken } else { ErrorKind::Other };
                let why = format!("{} exited at startup ({status}); its log ends: {log}", self.name());
                return Err(Error::of(kind, why));
            }
            let answer = self.connect_with(&quick()).and_then(|mut c| c.call(&["PING"]));
            match answer {
                Ok(_) => return Ok(()),
                // A password is wanted: it is up.
                Err(e) if e.kind == unslow_client::ErrorKind::AuthRequired => return Ok(()),
                Err(e) if Instant::now() > deadline => {
                    let (name, log) = (self.name(), self.log_tail(4));
                    let why = format!("{name} is not ready after {} s ({e}); its log ends: {log}", patience.as_secs());
                    return Err(Error::of(ErrorKind::TooLate, why));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Its name in messages: the one it was given, or its engine's.
    pub fn name(&self) -> &str {
        if self.spec.name.is_empty() { &self.engine.name } else { &self.spec.name }
    }

    /// Its address.
    pub fn address(&self) -> String {
        unslow_topology::join_host_port(&self.ip, self.port)
    }

    /// A URL for it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// How to dial it; the password of its own `requirepass`, if it has one.
    pub fn target(&self) -> Target {
        let password = self.spec.settings.iter().rfind(|(k, _)| k == "requirepass").map(|(_, v)| v.as_str());
        Target {
            endpoints: vec![Endpoint::Tcp(self.ip.clone(), self.port)],
            tls: false,
            user: None,
            password: password.map(unslow_client::Secret::new),
            db: 0,
            service: None,
        }
    }

    /// A new connection to it, made beside it: no wire is on the way.
    pub fn connect(&self) -> Result<Connection, Error> {
        Ok(self.connect_with(&Options::default())?)
    }

    /// The same with other limits.
    pub fn connect_with(&self, options: &Options) -> Result<Connection, unslow_client::Error> {
        let open = || Connection::open(&self.target(), options);
        match &self.spec.seat {
            Some(seat) => seat
                .run(open)
                .map_err(|e| unslow_client::Error::new(unslow_client::ErrorKind::Unreachable, e.to_string()))?,
            None => open(),
        }
    }

    /// How it was started.
    pub fn spec(&self) -> &ServerSpec {
        &self.spec
    }

    /// Where it sits.
    pub fn seat(&self) -> Option<&Arc<Seat>> {
        self.spec.seat.as_ref()
    }

    /// Its process id; 0 when it was ended, or ended by itself.
    pub fn pid(&self) -> u32 {
        self.reap();
        self.child().as_ref().map_or(0, Child::id)
    }

    /// Whether its process runs; false too when it ended by itself.
    pub fn alive(&self) -> bool {
        self.reap();
        self.child().is_some()
    }

    /// Lets go of a process that has ended by itself: its number may be somebody else's from now on.
    fn reap(&self) -> Option<std::process::ExitStatus> {
        let mut child = self.child();
        let status = child.as_mut()?.try_wait().ok()??;
        let ended = child.take().map(|c| c.id());
        drop(child); // the registry is locked before the child, never after
        if let Some(pid) = ended {
            unregister(pid, &self.dir);
        }
        Some(status)
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its working directory, as this process sees it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its log, and what it said beside it.
    pub fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        read("server.log") + &read("stderr.log")
    }

    /// The last lines of its log, in one line.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = self.log();
        let all: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        let tail: Vec<&str> = all[all.len().saturating_sub(lines)..].iter().map(|line| without_secret(line)).collect();
        let tail = tail.join(" | ");
        if tail.is_empty() { "(empty)".into() } else { tail }
    }

    /// Sends it a signal: SIGSTOP and SIGCONT make it hang and go on.
    pub fn signal(&self, signal: i32) {
        self.reap();
        if let Some(child) = &*self.child() {
            // SAFETY: the child was not reaped, so the pid is its own.
            unsafe {
                libc::kill(child.id() as i32, signal);
            }
        }
    }

    /// Ends it as a crash would; its data stays.
    pub fn kill(&self) {
        self.reap();
        let child = self.child().take();
        if let Some(mut child) = child {
            unregister(child.id(), &self.dir);
            // SAFETY: the child was not reaped, so the pid is its own, and it leads its group.
            unsafe {
                libc::kill(-(child.id() as i32), libc::SIGKILL);
            }
            let _ = child.wait();
        }
    }

    /// Starts it again after [`Server::kill`], with the same port and data.
    pub fn restart(&self) -> Result<(), Error> {
        let _one_at_a_time = self.restarting.lock().unwrap_or_else(|e| e.into_inner());
        self.kill();
        self.spawn()?;
        self.wait_ready()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a command in a process group of its own (Ctrl-C is for us, and we end it ourselves) that the kernel kills
/// should this process die without a word.
///
/// The kernel watches the thread that forked, not the process: so one thread, which lives as long as the process, forks
/// for all.
pub fn spawn_bound(mut command: Command) -> std::io::Result<Child> {
    type Order = (Command, mpsc::SyncSender<std::io::Result<Child>>);
    static ORDERS: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // Died already?
            if libc::getppid() as u32 == parent { Ok(()) } else { Err(std::io::ErrorKind::Interrupted.into()) }
        });
    }
    let orders = ORDERS.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, reply) in receiver {
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        Mutex::new(sender)
    });
    let (reply, answer) = mpsc::sync_channel(1);
    let gone = || std::io::Error::other("the thread that starts processes has ended");
    orders.lock().unwrap_or_else(|e| e.into_inner()).send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn quick() -> Options {
    Options { connect_timeout: Duration::from_secs(1), command_timeout: Duration::from_secs(1), ..Options::default() }
}

/// A line of a log up to what may be a password: a server repeats the line of its configuration that it refuses.
fn without_secret(line: &str) -> &str {
    const NAMES: [&str; 6] = ["requirepass", "masterauth", "primaryauth", "auth-pass", "key-file-pass", "'user "];
    let lower = line.to_ascii_lowercase();
    let end = NAMES.iter().filter_map(|name| lower.find(name).map(|at| at + name.len())).min();
    end.map_or(line, |end| &line[..end])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn server(spec: ServerSpec, dir: &Path) -> Server {
        let (name, version) = ("valkey-9.1".to_string(), "Valkey 9.1.2".to_string());
        let engine = Engine { name, server: "/nowhere".into(), cli: None, libraries: None, version };
        let (dir, inside, child) = (dir.to_path_buf(), dir.to_path_buf(), Mutex::new(None));
        let (restarting, _temporary, ip, port) = (Mutex::new(()), None, "127.0.0.1".to_string(), 7000);
        Server { child, restarting, dir, inside, _temporary, engine, spec, ip, port }
    }

    #[test]
    fn a_password_in_a_refused_line_of_the_configuration_is_not_repeated() {
        assert_eq!(without_secret(">>> 'requirepass two words'"), ">>> 'requirepass");
        assert_eq!(without_secret(">>> 'sentinel auth-pass m s3cret'"), ">>> 'sentinel auth-pass");
        assert_eq!(without_secret(">>> 'user ops on >s3cret'"), ">>> 'user ");
        assert_eq!(without_secret(">>> 'maxmemory many'"), ">>> 'maxmemory many'");
    }

    #[test]
    fn requested_settings_come_last_in_the_configuration() {
        let settings = vec![("save".to_string(), "60 1".to_string()), ("maxmemory".to_string(), "1mb".to_string())];
        let spec = ServerSpec { settings, ..ServerSpec::default() };
        let head = "port 7000\nbind 127.0.0.1\ndir /data\nlogfile server.log\n";
        let asked = "save 60 1\nmaxmemory 1mb\n";
        let text = spec.text("127.0.0.1", 7000, Path::new("/data"));
        assert_eq!(text, format!("{head}save \"\"\nrepl-diskless-sync-delay 0\n{asked}"));
        let sentinel = ServerSpec { sentinel: true, ..spec };
        assert_eq!(sentinel.text("127.0.0.1", 7000, Path::new("/data")), format!("{head}{asked}"));
    }

    #[test]
    fn free_ports_are_handed_out_once_and_leave_room_for_the_bus_port() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free_port("127.0.0.1").unwrap()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| (10_000..22_000).contains(port)), "{ports:?}");
        // An address that is not ours has no free port.
        let why = free_port("192.0.2.1").unwrap_err().to_string();
        assert!(why.contains("no free port") && why.contains("192.0.2.1"), "{why}");
    }

    #[test]
    fn a_server_is_dialled_with_its_last_requirepass() {
        let dir = tempfile::tempdir().unwrap();
        let settings = ["old", "new"].map(|word| ("requirepass".to_string(), word.to_string())).to_vec();
        let open = server(ServerSpec::default(), dir.path());
        let closed = server(ServerSpec { settings, name: "b1".into(), ..ServerSpec::default() }, dir.path());
        assert!(open.target().password.is_none());
        assert_eq!(closed.target().password.as_ref().map(|p| p.reveal()), Some("new"));
        assert_eq!([open.name(), closed.name()], ["valkey-9.1", "b1"]);
        assert_eq!((open.url().as_str(), open.pid(), open.alive()), ("redis://127.0.0.1:7000", 0, false));
    }

    #[test]
    fn the_log_tail_includes_stderr_and_skips_blank_lines() {
        let dir = tempfile::tempdir().unwrap();
        let server = server(ServerSpec::default(), dir.path());
        assert_eq!(server.log_tail(4), "(empty)");
        fs::write(dir.path().join("server.log"), "one\n\ntwo\n  \nthree\n").unwrap();
        assert_eq!(server.log_tail(2), "two | three");
        fs::write(dir.path().join("stderr.log"), "FATAL\n").unwrap();
        assert_eq!(server.log_tail(2), "three | FATAL");
    }
}
