//! `unslow bypass` as a person starts it: real servers and clients, crashes, forks, and what cannot be carried.

#[path = "bypass/busy_poll.rs"]
mod busy_poll;
#[path = "bypass/carried.rs"]
mod carried;
mod common;
#[path = "bypass/crashes.rs"]
mod crashes;
#[path = "bypass/ends.rs"]
mod ends;
#[path = "bypass/handed.rs"]
mod handed;
#[path = "bypass/handlers.rs"]
mod handlers;
#[path = "bypass/left_behind.rs"]
mod left_behind;
#[path = "bypass/left_to_tcp.rs"]
mod left_to_tcp;
#[path = "bypass/offload.rs"]
mod offload;
#[path = "bypass/offload_load.rs"]
mod offload_load;
#[path = "bypass/order.rs"]
mod order;
#[path = "bypass/ownership.rs"]
mod ownership;
#[path = "bypass/rare_calls.rs"]
mod rare_calls;
#[path = "bypass/replaced.rs"]
mod replaced;
#[path = "bypass/same_replies.rs"]
mod same_replies;
#[path = "bypass/sockmap.rs"]
mod sockmap;
#[path = "bypass/spread.rs"]
mod spread;

use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

use common::{Running, command, engine, stderr, stdout, unslow};
use serde_json::Value as Json;
use unslow_client::{Connection, Target};
use unslow_engine::{free_port, info};
use unslow_testkit::{options, skip, standalone, until};

/// For `timeout`: the seconds after which a client hangs.
const LIMIT: &str = "120";
/// What a new connection waits for its server here, in milliseconds: on a busy machine a server may take longer than
/// the 150 of a delivered bypass, and leave the connection to TCP, which would be no defect.
const PATIENCE_MS: &str = "60000";

/// Where servers and clients of one test meet.
struct Meeting(tempfile::TempDir);

impl Meeting {
    fn new() -> Meeting {
        Meeting(tempfile::tempdir().unwrap())
    }

    /// For servers and clients of any user.
    fn for_all() -> Meeting {
        use std::os::unix::fs::PermissionsExt;
        let meeting = Meeting::new();
        std::fs::set_permissions(meeting.0.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        meeting
    }

    fn unslow(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("UNSLOW_BYPASS_DIR", self.0.path()).env("UNSLOW_BYPASS_WAIT_MS", PATIENCE_MS);
        if let Some(libraries) = &engine("redis-7.0").libraries {
            command.env("LD_LIBRARY_PATH", libraries); // of the server, and of its own client programs
        }
        command
    }

    /// The same, with no more patience than a delivered bypass has: for servers that stand still.
    fn as_delivered(&self, arguments: &[&str]) -> Command {
        let mut command = self.unslow(arguments);
        command.env_remove("UNSLOW_BYPASS_WAIT_MS");
        command
    }

    /// A program under `unslow bypass --client`, to its end.
    fn client(&self, program: &[&str]) -> Output {
        let mut command = self.unslow(&[&["bypass", "--client", "--", "timeout", LIMIT], program].concat());
        command.output().unwrap()
    }

    fn server(&self, name: &str, more: &[&str]) -> Carried {
        self.server_that(&[], free_port("127.0.0.1").unwrap(), name, more)
    }

    fn server_at(&self, port: u16, name: &str, more: &[&str]) -> Carried {
        self.server_that(&[], port, name, more)
    }

    /// With these flags of `unslow bypass`, and more of the server's own.
    fn server_that(&self, flags: &[&str], port: u16, name: &str, more: &[&str]) -> Carried {
        let dir = tempfile::tempdir().unwrap();
        let program = engine(name).server.display().to_string();
        let (port_text, dir_text) = (port.to_string(), dir.path().display().to_string());
        let basics = ["--", &program, "--port", &port_text, "--save", "", "--dir", &dir_text];
        let mut command = self.unslow(&[&["bypass"][..], flags, &basics, more].concat());
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut server = Carried { child: Running(child), port, _dir: dir };
        until("the server to answer", || {
            let ended = server.child.0.try_wait().unwrap();
            assert!(ended.is_none(), "{name} at port {port} ended: {ended:?}");
            server.connect().is_ok_and(|mut c| c.call(&["PING"]).is_ok())
        });
        server
    }

    /// Runs a client that says "good" and then waits for the end of its input: so many of its connections are carried
    /// then, and `look` sees them.
    #[track_caller]
    fn carries<T>(&self, program: &[&str], connections: usize, look: impl FnOnce() -> T) -> T {
        let bypass = ["bypass", "--client", "--allow", "uid:65534", "--", "timeout", LIMIT];
        let words = [&bypass[..], program].concat();
        while_it_waits(&mut self.unslow(&words), || {
            assert_eq!(self.carried(), connections, "connections that are carried");
            look()
        })
    }

    /// Runs a program to its end: how it ended, what it said, and whether a connection of it was carried meanwhile.
    fn watched(&self, program: &mut Command) -> (ExitStatus, String, bool) {
        let mut said = tempfile::tempfile().unwrap();
        program.stdout(said.try_clone().unwrap()).stderr(said.try_clone().unwrap());
        let mut child = Running(program.spawn().unwrap());
        let (mut carried, mut ended) = (false, None);
        until("the program to end", || {
            carried |= self.carried() > 0;
            ended = child.0.try_wait().unwrap();
            ended.is_some()
        });
        let mut text = String::new();
        said.rewind().unwrap();
        said.read_to_string(&mut text).unwrap();
        (ended.unwrap(), text, carried)
    }

    /// Waits until the server has a carried connection of somebody's; `ask` makes use of it, and says whether that went
    /// well.
    #[track_caller]
    fn until_carried(&self, server: &Carried, mut ask: impl FnMut() -> bool) {
        let mut looks = 0;
        until("a connection to be carried", || {
            looks += 1;
            if looks % 100 == 0 {
                // One that was left to TCP stays there: it has to be made again.
                server.say(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
            ask() && self.carried() > 0
        });
    }

    /// Connections that are carried now, of all servers here.
    fn carried(&self) -> usize {
        self.listed().iter().map(|s| s["connections"].as_array().map_or(0, Vec::len)).sum()
    }

    /// What `bypass ls` says. A server that is busy for a second is asked again.
    fn listed(&self) -> Vec<Json> {
        let mut servers = Vec::new();
        until("every server to answer `bypass ls`", || {
            let output = self.unslow(&["bypass", "ls", "--format", "json"]).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            let json: Json = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(json["schema"], "unslow.bypass_ls/1");
            servers = json["servers"].as_array().unwrap().clone();
            !servers.iter().any(|s| s["problem"].as_str().is_some_and(|p| p.starts_with("busy")))
        });
        servers
    }
}

struct Carried {
    child: Running,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Carried {
    fn pid(&self) -> i32 {
        self.child.0.id() as i32
    }

    /// Over TCP, as every client that is not preloaded.
    fn connect(&self) -> Result<Connection, unslow_client::Error> {
        Connection::open(&Target::parse(&format!("127.0.0.1:{}", self.port)).unwrap(), &options(2))
    }

    fn say(&self, words: &[&str]) -> unslow_client::Value {
        self.connect().unwrap().call(words).unwrap()
    }

    fn clients(&self) -> u64 {
        let info = info(&mut self.connect().unwrap(), "clients").unwrap();
        info.number("connected_clients").unwrap() as u64 - 1
    }
}

/// Runs a program until it says "good", and looks while it is there.
#[track_caller]
fn while_it_waits<T>(program: &mut Command, look: impl FnOnce() -> T) -> T {
    let mut child = Running(program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "good\n");
    look()
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: a process this test started.
    unsafe { libc::kill(pid, signal) };
}

fn here(path: &str) -> String {
    format!("{}/tests/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The binary where any user can read it.
fn for_everybody() -> (tempfile::TempDir, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let binary = dir.path().join("unslow");
    std::fs::copy(env!("CARGO_BIN_EXE_unslow"), &binary).unwrap();
    (dir, binary)
}

fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
    command
}
