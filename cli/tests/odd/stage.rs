//! A stage: the servers, clients and programs of one case, and the doctor that is pointed at them. Dropping it ends
//! everything: first what would keep a process from ending (a stopped server), then programs and threads, then servers.

use std::any::Any;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Endpoint, Options, Target, TlsOptions, Value};
use unslow_doctor::Report;
use unslow_engine::{Deployment, Engine, Server, ServerSpec, Shape, info, spawn_bound};
use unslow_testkit::clients::python_library;
use unslow_testkit::servers::settings;
use unslow_testkit::{Load, Noise, until};

/// What making a case comes to; the error says why this engine or this machine cannot show it.
pub type Made = Result<(), &'static str>;

/// Builds the scene of a case.
pub type Make = fn(&mut Stage) -> Made;

/// How long the doctor looks.
pub const WINDOW: &str = "3s";
/// The same, for others.
pub const WINDOW_TIME: Duration = Duration::from_secs(3);

/// What clients look at between two commands.
#[derive(Clone, Default)]
pub struct Flags(Arc<Switches>);

#[derive(Default)]
struct Switches {
    stopped: AtomicBool,
    mended: AtomicBool,
}

impl Flags {
    /// The case is over.
    pub fn stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed)
    }

    /// The remedy is applied: clients change their ways, or fall silent.
    pub fn mended(&self) -> bool {
        self.0.mended.load(Ordering::Relaxed)
    }

    /// Sleeps, in steps short enough for the end to come at once.
    pub fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(10)));
        }
    }
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(ToString::to_string).collect()
}

/// A client that reconnects when its connection fails.
pub struct Client {
    target: Target,
    options: Options,
    connection: Option<Connection>,
}

impl Client {
    pub fn of(server: &Server) -> Client {
        Client::at(server.target())
    }

    pub fn at(target: Target) -> Client {
        let (connect_timeout, command_timeout) = (Duration::from_secs(2), Duration::from_secs(3));
        let options = Options { connect_timeout, command_timeout, ..Options::default() };
        Client { target, options, connection: None }
    }

    /// Speaks TLS, and trusts these certificates.
    pub fn with_tls(mut self, tls: TlsOptions) -> Client {
        (self.target.tls, self.options.tls) = (true, tls);
        self
    }

    pub fn with_resp3(mut self) -> Client {
        self.options.protocol = 3;
        self
    }

    /// The next command goes over a new connection.
    pub fn hang_up(&mut self) {
        self.connection = None;
    }

    /// One command; nothing for an error, whose cause may be what the case is about.
    pub fn call<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Option<Value> {
        self.with(|c| c.call(command))
    }

    /// Several commands in one write; nothing if the connection failed.
    pub fn pipeline(&mut self, commands: &[Vec<String>]) -> Option<Vec<Option<Value>>> {
        let replies = self.with(|c| c.pipeline(commands))?;
        Some(replies.into_iter().map(Result::ok).collect())
    }

    fn with<T>(&mut self, body: impl FnOnce(&mut Connection) -> Result<T, unslow_client::Error>) -> Option<T> {
        if self.connection.is_none() {
            self.connection = Connection::open(&self.target, &self.options).ok();
        }
        let done = self.connection.as_mut().map(body);
        match done {
            Some(Ok(value)) => return Some(value),
            Some(Err(e)) if !e.is_fatal() => {}
            _ => {
                self.connection = None;
                std::thread::sleep(ms(20)); // asking a server that is away faster does not bring it back
            }
        }
        None
    }
}

/// A connection as patient as a test, for making a scene.
pub fn open(server: &Server) -> Connection {
    server.connect_with(&unslow_testkit::options(2)).unwrap_or_else(|e| panic!("{}: {e}", server.address()))
}

/// Commands in pipelines of 1,000, all of which must succeed.
pub fn fill(server: &Server, n: usize, command: impl Fn(usize) -> Vec<String>) {
    let mut c = open(server);
    for begin in (0..n).step_by(1000) {
        let commands: Vec<Vec<String>> = (begin..n.min(begin + 1000)).map(&command).collect();
        for reply in c.pipeline(&commands).expect("the server takes it") {
            reply.expect("the server takes it");
        }
    }
}

/// Waits until the server has executed this command, named as commandstats does.
pub fn at_work(server: &Server, command: &str) {
    let mut c = open(server);
    until(&format!("a client that sends {command}"), || {
        info(&mut c, "commandstats").is_ok_and(|i| i.command_stats().get(command).is_some_and(|s| s.calls > 0))
    });
}

/// Has a command run somewhere else.
type Place = Box<dyn Fn(&mut Command)>;

/// See the head of the file.
pub struct Stage {
    /// What servers are started with.
    pub engine: Engine,
    /// What the doctor is pointed at.
    pub url: String,
    /// More arguments of the doctor.
    pub arguments: Vec<String>,
    /// Settings that every server of this stage gets before those of the case.
    pub base: &'static [(&'static str, &'static str)],
    first: Option<Arc<Server>>,
    password: Option<String>,
    place: Option<Place>,
    flags: Flags,
    threads: Vec<JoinHandle<()>>,
    programs: Vec<Child>,
    endings: Vec<Box<dyn FnOnce()>>,
    kept: Vec<Box<dyn Any>>,
}

impl Stage {
    pub fn new(base: &'static [(&'static str, &'static str)]) -> Stage {
        let name = std::env::var("UNSLOW_ENGINE").unwrap_or_else(|_| "valkey-9.1".into());
        Stage {
            engine: unslow_testkit::engine(&name),
            url: String::new(),
            arguments: Vec::new(),
            base,
            first: None,
            password: None,
            place: None,
            flags: Flags::default(),
            threads: Vec::new(),
            programs: Vec::new(),
            endings: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Whether the server is at least this Redis, in Redis' numbering; every Valkey is.
    pub fn since(&self, level: (u32, u32)) -> bool {
        self.engine.is_valkey() || self.engine.level() >= level
    }

    /// For cases about errors.
    pub fn counts_errors(&self) -> Made {
        if self.since((6, 2)) { Ok(()) } else { Err("errors are not counted by kind before 6.2") }
    }

    /// A server with these settings, the first of which the doctor is pointed at.
    pub fn server(&mut self, of: &[(&str, &str)]) -> Arc<Server> {
        let engine = self.engine.clone();
        self.server_on(&engine, ServerSpec { settings: settings(of), ..ServerSpec::default() })
    }

    /// The same of another engine, or with more than settings.
    pub fn server_on(&mut self, engine: &Engine, spec: ServerSpec) -> Arc<Server> {
        let spec = ServerSpec { settings: [settings(self.base), spec.settings].concat(), ..spec };
        let server = Arc::new(Server::start(engine, &spec).unwrap_or_else(|e| panic!("{e}")));
        if self.url.is_empty() {
            self.point_at(&server);
            self.first = Some(server.clone());
        }
        self.keep(server.clone());
        server
    }

    /// The server that the doctor is pointed at, where it was started by itself.
    pub fn first(&self) -> Option<Arc<Server>> {
        self.first.clone()
    }

    /// Servers that belong together; the doctor is pointed at the first.
    pub fn together(&mut self, shape: Shape, of: &[(&str, &str)]) -> Rc<Deployment> {
        let spec = ServerSpec { settings: settings(of), ..ServerSpec::default() };
        self.together_at(shape, spec)
    }

    pub fn together_at(&mut self, shape: Shape, spec: ServerSpec) -> Rc<Deployment> {
        let spec = ServerSpec { settings: [settings(self.base), spec.settings].concat(), ..spec };
        let started = Deployment::start(&self.engine, &shape, &spec).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        let deployment = Rc::new(started);
        self.point_at(&deployment.nodes[0]);
        self.keep(deployment.clone());
        deployment
    }

    /// A master and one replica, with a backlog that is large enough whatever the version's default is.
    pub fn pair(&mut self, of: &[(&str, &str)]) -> Rc<Deployment> {
        let all = [&[("repl-backlog-size", "64mb")], of].concat();
        self.together(Shape::MasterReplica { replicas: 1 }, &all)
    }

    /// Has the doctor asked of this server; its password goes with it.
    pub fn point_at(&mut self, server: &Server) {
        self.url = server.url();
        self.password = server.target().password.map(|p| p.reveal().to_string());
    }

    /// The password that the doctor comes with.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Has the doctor come as this user.
    pub fn as_user(&mut self, user: &str, password: &str) {
        self.url = self.url.replacen("redis://", &format!("redis://{user}@"), 1);
        self.password = Some(password.into());
    }

    /// Has the doctor ask a Sentinel for the group; its servers want this password.
    pub fn ask_sentinel(&mut self, sentinel: &Server, password: &str) {
        self.url = format!("redis+sentinel://{}/mymaster", sentinel.address());
        self.password = Some(password.into());
    }

    /// Has the doctor run elsewhere.
    pub fn place_doctor(&mut self, place: impl Fn(&mut Command) + 'static) {
        self.place = Some(Box::new(place));
    }

    /// Holds it until the stage is taken down.
    pub fn keep(&mut self, thing: impl Any) {
        self.kept.push(Box::new(thing));
    }

    /// Done before anything else when the stage is taken down.
    pub fn at_end(&mut self, ending: impl FnOnce() + 'static) {
        self.endings.push(Box::new(ending));
    }

    /// Applies the remedy.
    pub fn mend(&self) {
        self.flags.0.mended.store(true, Ordering::Relaxed);
    }

    /// A thread that does this over and over.
    pub fn work(&mut self, mut body: impl FnMut(&Flags) + Send + 'static) {
        let flags = self.flags.clone();
        self.threads.push(std::thread::spawn(move || {
            while !flags.stopped() {
                body(&flags);
            }
        }));
    }

    /// A client that sends one command at this interval, until the remedy is applied.
    pub fn repeat(&mut self, server: &Server, every: Duration, command: &[&str]) {
        let (mut c, command) = (Client::of(server), words(command));
        self.work(move |on| {
            if !on.mended() {
                let _ = c.call(&command);
            }
            on.pause(every);
        });
    }

    /// A client that sends these commands in one pipeline, every so often; they are made from the number of the round.
    pub fn rounds(
        &mut self,
        server: &Server,
        every: Duration,
        commands: impl Fn(usize) -> Vec<Vec<String>> + Send + 'static,
    ) {
        let (mut c, mut round) = (Client::of(server), 0);
        self.work(move |on| {
            let _ = c.pipeline(&commands(round));
            round += 1;
            on.pause(every);
        });
    }

    /// An ordinary application: two connections that send ten commands at a time, in all this many a second. Its key is
    /// of the first node's slots, so that a cluster needs no redirect.
    pub fn application(&mut self, server: &Server, per_s: u64) {
        self.application_at(|| Client::of(server), per_s);
    }

    pub fn application_at(&mut self, client: impl Fn() -> Client, per_s: u64) {
        let every = Duration::from_micros(20_000_000 / per_s.max(1));
        for _ in 0..2 {
            let mut c = client();
            let batch: Vec<Vec<String>> = (0..10)
                .map(|n| if n % 3 == 0 { words(&["SET", "{t2}", "v"]) } else { words(&["GET", "{t2}"]) })
                .collect();
            self.work(move |on| {
                let _ = c.pipeline(&batch);
                on.pause(every);
            });
        }
    }

    /// A program that runs until the stage is taken down; its process id.
    pub fn program(&mut self, mut command: Command) -> u32 {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let name = command.get_program().to_os_string();
        let child = spawn_bound(command).unwrap_or_else(|e| panic!("{}: {e}", name.display()));
        let pid = child.id();
        self.programs.push(child);
        pid
    }

    /// redis-py: a part of `clients.py`, against this server.
    pub fn python(&mut self, server: &Server, part: &str, more: &[&str]) {
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/odd/clients.py")).arg(part);
        command.args([server.ip.as_str(), &server.port.to_string()]).args(more).env("PYTHONPATH", python_library());
        self.program(command);
    }

    /// redis-cli or redis-benchmark, against this server.
    pub fn tool(&mut self, name: &str, server: &Server, arguments: &[&str]) {
        let mut command = tool(name);
        command.args(["-h", &server.ip, "-p", &server.port.to_string()]).args(arguments);
        self.program(command);
    }

    /// Runs the binary. Returns what it says, and what the rest of the machine did while it looked.
    pub fn diagnose(&self, name: &str, more: &[&str]) -> (Report, Load) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unslow"));
        if let Some(place) = &self.place {
            place(&mut command);
        }
        command.args(["doctor", &self.url, "--window", WINDOW, "--format", "json", "--quiet"]);
        command.args(&self.arguments).args(more).env_remove("UNSLOW_PASSWORD");
        command.envs(self.password.iter().map(|p| ("UNSLOW_PASSWORD", p)));
        if let Some(dir) = std::env::var_os("UNSLOW_RECORD") {
            command.arg("--save").arg(std::path::PathBuf::from(dir).join(format!("{name}.json")));
        }
        let noise = Noise::watch();
        let output = command.output().expect("the binary runs");
        let load = noise.so_far();
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{name}: {e}; stderr: {}", String::from_utf8_lossy(&output.stderr)));
        (report, load)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.flags.0.stopped.store(true, Ordering::Relaxed);
        while let Some(ending) = self.endings.pop() {
            ending();
        }
        for program in &mut self.programs {
            // SAFETY: numbers only; the child was not waited for, so its group is still its own.
            unsafe { libc::kill(-(program.id() as i32), libc::SIGKILL) };
            let _ = program.wait();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.first = None;
        while let Some(kept) = self.kept.pop() {
            drop(kept);
        }
    }
}

/// redis-cli or redis-benchmark of the catalogue's Redis 7.0.
pub fn tool(name: &str) -> Command {
    let engine = unslow_testkit::engine("redis-7.0");
    let path = engine.cli.as_ref().expect("it brings its tools").with_file_name(name);
    let mut command = Command::new(path);
    command.arg0(name).envs(engine.libraries.iter().map(|l| ("LD_LIBRARY_PATH", l)));
    command
}

/// A target on a port of this machine, as this user, in this database.
pub fn target(server: &Server, user: Option<(&str, &str)>, db: u32) -> Target {
    let mut target = server.target();
    if let Some((name, password)) = user {
        target.user = Some(name.into());
        target.password = Some(unslow_client::Secret::new(password));
    }
    Target { db, endpoints: vec![Endpoint::Tcp(server.ip.clone(), server.port)], ..target }
}
