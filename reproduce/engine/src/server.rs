//! One running server: started in a directory of its own, ready when it says so, gone when dropped.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use unslow_client::{Connection, Endpoint, Options, Target};

use crate::Engine;

/// A server that cannot be found, installed or started, as a sentence.
#[derive(Clone, Debug)]
pub struct Error(String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<unslow_client::Error> for Error {
    fn from(e: unslow_client::Error) -> Error {
        Error(e.to_string())
    }
}

/// Every pid and directory of this process's servers, for the way out by Ctrl-C.
static RUNNING: Mutex<BTreeSet<(u32, PathBuf)>> = Mutex::new(BTreeSet::new());

/// Ports handed out by this process: a server needs a moment before its port is taken.
static HANDED_OUT: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Kills every server this process started and removes its directory. For a signal handler's thread: afterwards
/// the process should exit.
pub fn stop_all() {
    STOPPING.store(true, Ordering::SeqCst);
    let all = std::mem::take(&mut *RUNNING.lock().unwrap_or_else(|e| e.into_inner()));
    for (pid, dir) in all {
        if pid != 0 {
            // SAFETY: a pid leaves the registry before it is reaped, so this one is still ours; the server leads a
            // process group, and its saving child goes with it.
            unsafe {
                libc::kill(-(pid as i32), libc::SIGKILL);
            }
        }
        // A child that was just killed may still be creating its last file.
        for _ in 0..20 {
            if fs::remove_dir_all(&dir).is_ok() || !dir.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Set by [`stop_all`]: nothing may be started any more.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Has `dir` removed by [`stop_all`]; pid 0 is a directory without a server.
pub(crate) fn register(pid: u32, dir: &Path) {
    RUNNING.lock().unwrap_or_else(|e| e.into_inner()).insert((pid, dir.into()));
}

/// The opposite.
pub(crate) fn unregister(pid: u32, dir: &Path) {
    RUNNING.lock().unwrap_or_else(|e| e.into_inner()).remove(&(pid, dir.into()));
}

/// How to start a server.
#[derive(Clone, Debug, Default)]
pub struct ServerSpec {
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

/// A running server.
pub struct Server {
    child: Option<Child>,
    dir: TempDir,
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
        if !handed_out.contains(&port) && free(port) && free(port + 10_000) {
            handed_out.insert(port);
            return Ok(port);
        }
    }
    Err(Error::new(format!("no free port between 10000 and 22000 on {ip}")))
}

impl Server {
    /// Starts it and waits until it answers PING.
    pub fn start(engine: &Engine, spec: &ServerSpec) -> Result<Server, Error> {
        let ip = if spec.ip.is_empty() { "127.0.0.1".to_string() } else { spec.ip.clone() };
        let mut tries = 0;
        loop {
            tries += 1;
            let port = spec.port.map_or_else(|| free_port(&ip), Ok)?;
            match Server::start_at(engine, spec, &ip, port) {
                // Somebody else was faster; only a port of our own choosing may be changed.
                Err(e) if spec.port.is_none() && tries < 5 && e.0.contains("Address already in use") => {}
                other => return other,
            }
        }
    }

    fn start_at(engine: &Engine, spec: &ServerSpec, ip: &str, port: u16) -> Result<Server, Error> {
        let dir = tempfile::Builder::new()
            .prefix("unslow-server-")
            .tempdir()
            .map_err(|e| Error::new(format!("no directory for the server's data: {e}")))?;
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).map_err(|e| Error::new(format!("{}: {e}", dir.path().display())))
        };
        let mut conf = format!("port {port}\nbind {ip}\ndir {}\nlogfile server.log\n", dir.path().display());
        if !spec.sentinel {
            // Persistence only when asked for, and no five-second wait for further replicas to sync.
            conf += "save \"\"\nrepl-diskless-sync-delay 0\n";
        }
        for (key, value) in &spec.settings {
            conf += &format!("{key} {value}\n");
        }
        write("server.conf", &conf)?;
        for (name, text) in &spec.files {
            write(name, &text.replace("{port}", &port.to_string()))?;
        }
        let mut server = Server { child: None, dir, engine: engine.clone(), spec: spec.clone(), ip: ip.into(), port };
        server.spawn()?;
        server.wait_ready(Duration::from_secs(20))?;
        Ok(server)
    }

    fn spawn(&mut self) -> Result<(), Error> {
        let mut command = self.engine.command();
        command.arg(self.dir.path().join("server.conf"));
        if self.spec.sentinel {
            command.arg("--sentinel");
        }
        command.current_dir(self.dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.envs(self.spec.env.iter().cloned());
        // Its own process group: Ctrl-C is for us, and we end it ourselves.
        command.process_group(0);
        // SAFETY: prctl is async-signal-safe; it makes the kernel end the server should we die without a word.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        // Held over the start, so that a server is either in the registry or was never started.
        let mut running = RUNNING.lock().unwrap_or_else(|e| e.into_inner());
        if STOPPING.load(Ordering::SeqCst) {
            return Err(Error::new("interrupted"));
        }
        let child = command.spawn().map_err(|e| Error::new(format!("{}: {e}", self.engine.server.display())))?;
        running.insert((child.id(), self.dir.path().into()));
        self.child = Some(child);
        Ok(())
    }

    fn wait_ready(&mut self, patience: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                self.forget();
                return Err(Error::new(format!(
                    "{} ended at start ({status}); its log ends: {}",
                    self.engine.name,
                    self.log_tail(4)
                )));
            }
            let answer = Connection::open(&self.target(), &quick()).and_then(|mut c| c.call(&["PING"]));
            match answer {
                Ok(_) => return Ok(()),
                // A password is wanted: it is up.
                Err(e) if e.kind == unslow_client::ErrorKind::AuthRequired => return Ok(()),
                Err(e) if Instant::now() > deadline => {
                    return Err(Error::new(format!(
                        "{} is not ready after {} s ({e}); its log ends: {}",
                        self.engine.name,
                        patience.as_secs(),
                        self.log_tail(4)
                    )));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Its address.
    pub fn address(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }

    /// A URL for it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// How to dial it; the password of its own `requirepass`, if it has one.
    pub fn target(&self) -> Target {
        let password = self.spec.settings.iter().find(|(k, _)| k == "requirepass").map(|(_, v)| v.as_str());
        Target {
            endpoints: vec![Endpoint::Tcp(self.ip.clone(), self.port)],
            tls: false,
            user: None,
            password: password.map(unslow_client::Secret::new),
            db: 0,
            service: None,
        }
    }

    /// A new connection to it.
    pub fn connect(&self) -> Result<Connection, Error> {
        Ok(Connection::open(&self.target(), &Options::default())?)
    }

    /// Its process id; 0 when it was ended.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The last lines of its log, in one line.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default();
        let all: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        let tail = all[all.len().saturating_sub(lines)..].join(" | ");
        if tail.is_empty() { "(empty)".into() } else { tail }
    }

    /// Sends it a signal: SIGSTOP and SIGCONT make it hang and go on.
    pub fn signal(&self, signal: i32) {
        if let Some(child) = &self.child {
            // SAFETY: the child was not reaped, so the pid is its own.
            unsafe {
                libc::kill(child.id() as i32, signal);
            }
        }
    }

    /// Ends it as a crash would; its data stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            unregister(child.id(), self.dir.path());
            // SAFETY: the child was not reaped, so the pid is its own, and it leads its group.
            unsafe {
                libc::kill(-(child.id() as i32), libc::SIGKILL);
            }
            let _ = child.wait();
        }
    }

    /// Starts it again after [`Server::kill`], with the same port and data.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.kill();
        self.spawn()?;
        self.wait_ready(Duration::from_secs(20))
    }

    fn forget(&mut self) {
        if let Some(child) = self.child.take() {
            unregister(child.id(), self.dir.path());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn quick() -> Options {
    Options { connect_timeout: Duration::from_secs(1), command_timeout: Duration::from_secs(1), ..Options::default() }
}
