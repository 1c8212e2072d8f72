//! `unslow bypass`: connections of one machine over shared memory.

mod napi;
mod stack;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use unslow_bypass::busy;
use unslow_bypass::channel::{self, Choice, Rule};
use unslow_bypass::endpoint;
use unslow_bypass::listing;
use unslow_bypass::sockmap::Sockmap;

use crate::output::{Output, style};
use crate::table::table;

/// What is loaded into the program.
const PRELOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libunslow_preload.so"));

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "The program replaces this one: same process, same signals, same exit status.\nPrograms \
                  without the preload, or on another machine, use the same port over TCP, at the same time.\n\n\
                  Examples:\n  unslow bypass -- redis-server --port 7777\n  unslow bypass --client -- redis-benchmark \
                  -p 7777 -t get -c 50\n  unslow bypass ls\n  unslow bypass --offload -- redis-server --port 7778   \
                  # clients elsewhere\n  sudo unslow bypass --sockmap --port 6379      # programs that cannot be \
                  preloaded"
)]
pub struct BypassArguments {
    #[command(subcommand)]
    what: Option<What>,
    /// The program is a client of servers that run with `unslow bypass` [default: it is such a server]
    #[arg(long)]
    client: bool,
    /// With --client: it is a server as well
    #[arg(long)]
    server: bool,
    /// Who may be at the other end besides this user and root: uid:NUMBER, gid:NUMBER, or any; may be repeated
    #[arg(long, value_name = "WHO")]
    allow: Vec<String>,
    /// With --client: how long a new connection waits for a busy server to take it before it stays with TCP [default:
    /// 150ms]
    #[arg(long, value_name = "TIME", value_parser = crate::typed::short_time)]
    wait: Option<Duration>,
    /// Where servers and clients find each other; containers share it as a volume [default: /run/unslow-bypass, else
    /// /tmp/unslow-bypass]
    #[arg(long, value_name = "DIRECTORY", env = "UNSLOW_BYPASS_DIR")]
    dir: Option<PathBuf>,
    /// Use huge pages for the shared memory; needed on both sides. For thousands of connections; costs megabytes more
    /// per client
    #[arg(long)]
    huge_pages: bool,
    /// A separate process handles TCP for clients on other machines, for all servers started this way: the kernel's
    /// share of each request then runs on its CPU. It is started if none is running, and ends with the last server
    #[arg(long, conflicts_with = "client")]
    offload: bool,
    /// Before it sleeps, the program's epoll set (with --offload the stack's) polls the network card's queue for this
    /// long: no interrupts, for a processor that spins. Needs Linux 6.9; as root the queue's interrupts rest too (6.13)
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "50us",
          value_parser = crate::typed::spin)]
    busy_poll: Option<Duration>,
    /// Start no program: until Ctrl-C, eBPF passes bytes directly between sockets of this machine, for all new
    /// connections of any program. Needs root
    #[arg(long, conflicts_with_all = [
        "client", "server", "allow", "wait", "huge_pages", "offload", "busy_poll", "program"
    ])]
    sockmap: bool,
    /// With --sockmap: only connections to this port; may be repeated
    #[arg(long, value_name = "PORT", requires = "sockmap")]
    port: Vec<u16>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "sockmap", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Subcommand)]
enum What {
    /// List the connections that use shared memory now
    Ls,
    /// Handle TCP for all servers that run with --offload, until Ctrl-C
    Stack(stack::StackArguments),
}

/// A connection, as its server tells of it.
#[derive(Serialize, Deserialize)]
struct Row {
    fd: i32,
    peer: String,
    client_pid: i32,
    client_uid: u32,
    read_bytes: u64,
    written_bytes: u64,
    waiting_bytes: u64,
}

/// Clients that keep using TCP, as their server counts them.
#[derive(Serialize, Deserialize)]
struct Refusal {
    /// `server` or `client`.
    refused_by: String,
    /// `user` or `version`.
    why: String,
    client_uid: u32,
    times: u64,
}

/// A stack has the connections of clients elsewhere.
#[derive(Deserialize)]
struct Lent {
    stack_pid: i32,
    /// None where server or stack are of a version that does not tell.
    #[serde(flatten)]
    counted: Option<Counted>,
}

/// What a stack counts, a quarter of a second old at most.
#[derive(Serialize, Deserialize)]
struct Counted {
    /// Open now.
    connections: u64,
    accepted: u64,
    /// Accepted, and left to plain TCP.
    passed: u64,
    /// From clients, and to them.
    received_bytes: u64,
    sent_bytes: u64,
    /// How often bytes had to wait for a slow reader.
    waits: u64,
}

impl Counted {
    fn sentence(&self) -> String {
        let Counted { connections, accepted, passed, received_bytes, sent_bytes, waits } = self;
        let [received, sent] = [received_bytes, sent_bytes].map(|n| unslow_units::bytes(*n as f64));
        let mut text = format!("{connections} open of {accepted} accepted, {received} received, {sent} sent");
        if *passed > 0 {
            text += &format!("; {passed} left to plain TCP");
        }
        if *waits > 0 {
            text += &format!("; {waits} waits for slow readers");
        }
        text
    }
}

#[derive(Serialize)]
struct ServerRow {
    port: u16,
    /// The kernel's cookie of its network namespace.
    netns: u64,
    pid: i32,
    uid: Option<u32>,
    over_tcp: u32,
    /// The process that has the connections of clients elsewhere; none without `--offload`, or while no stack runs.
    stack_pid: Option<i32>,
    stack: Option<Counted>,
    problem: Option<String>,
    connections: Vec<Row>,
    refusals: Vec<Refusal>,
}

impl Refusal {
    /// What happened, and what to do.
    fn sentence(&self, server_uid: u32) -> String {
        let Refusal { client_uid, times, .. } = self;
        let times = if *times == 1 { "once".into() } else { format!("{times} times") };
        match (self.why.as_str(), self.refused_by.as_str()) {
            ("version", _) => format!("refused {times}: clients of user {client_uid} with another version of unslow"),
            (_, "client") => format!(
                "refused {times} by clients of user {client_uid}, which do not allow user {server_uid}: start them \
                 with --allow uid:{server_uid}"
            ),
            _ => format!(
                "refused {times}: clients of user {client_uid}, who is not allowed: start this server with --allow \
                 uid:{client_uid}"
            ),
        }
    }
}

#[derive(Serialize)]
struct Listed {
    schema: &'static str,
    servers: Vec<ServerRow>,
}

impl BypassArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        match &self.what {
            Some(What::Ls) => ls(output),
            Some(What::Stack(arguments)) => arguments.run(output),
            None if self.sockmap => self.sockmap(output),
            None => self.launch(output),
        }
    }

    fn sockmap(&self, output: &Output) -> anyhow::Result<u8> {
        let attached = Sockmap::attach(&self.port).map_err(|e| anyhow::anyhow!("--sockmap: {e}"))?;
        let stop = unslow_interrupt::guard_quietly(); // "detached" follows within moments
        let ports: Vec<String> = self.port.iter().map(u16::to_string).collect();
        let which = if ports.is_empty() { "any port".into() } else { format!("port {}", ports.join(", ")) };
        output.note(&format!(
            "connections within this machine to {which} bypass TCP from now on, existing ones do not; Ctrl-C ends it"
        ));
        stop.wait();
        attached.detach();
        output.note("detached; connections continue over TCP");
        Ok(0)
    }

    fn launch(&self, output: &Output) -> anyhow::Result<u8> {
        let allow = self.allow.join(",");
        Rule::parse(&allow).map_err(|why| anyhow::anyhow!("--allow {why}"))?;
        let (name, arguments) = self.program.split_first().context("no program given; put it after --")?;
        let program = find(name).with_context(|| {
            format!("{}: not found; give its path, or put its directory on PATH", name.to_string_lossy())
        })?;
        let mut command = Command::new(&program);
        command.arg0(name).args(arguments);
        match unfit(&program) {
            Some(why) => output.note(&format!("{}: {why}, so it runs over plain TCP", program.display())),
            None => {
                let library = preload()?;
                let mut preload = library.into_os_string();
                if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
                    preload.push(":");
                    preload.push(others);
                }
                let role = match (self.client, self.server) {
                    (true, true) => "client,server",
                    (true, false) => "client",
                    _ => "server",
                };
                command.env("LD_PRELOAD", preload).env("UNSLOW_BYPASS", role).env("UNSLOW_BYPASS_ALLOW", allow);
                // The one process of which it is worth saying that it never was a socket server.
                command.env("UNSLOW_BYPASS_PID", std::process::id().to_string());
                if let Some(dir) = &self.dir {
                    command.env("UNSLOW_BYPASS_DIR", meeting_directory(dir)?);
                }
                if let Some(wait) = self.wait {
                    command.env("UNSLOW_BYPASS_WAIT_MS", wait.as_millis().to_string());
                }
                if self.huge_pages {
                    command.env("UNSLOW_BYPASS_HUGE_PAGES", "1");
                    if let Some(why) = no_huge_pages() {
                        output.note(&why);
                    }
                }
                if output.quiet {
                    command.env("UNSLOW_BYPASS_QUIET", "1");
                }
                if self.offload {
                    command.env("UNSLOW_BYPASS_OFFLOAD", "1");
                }
                if let Some(time) = self.busy_poll.filter(|_| !self.offload) {
                    command.env(busy::VARIABLE, stack::busy_us(time)?);
                }
                if self.server || !self.client {
                    self.prepare();
                }
                if self.offload && self.busy_poll.is_some() {
                    output.note(
                        "--busy-poll is for a stack that this starts: one that runs already keeps its own setting. One \
                         that you start yourself says what it polls: unslow bypass stack --busy-poll",
                    );
                }
                if self.offload {
                    stack::start(self.dir.as_deref(), &self.allow, self.busy_poll)?;
                }
            }
        }
        let e = command.exec();
        Err(e).with_context(|| format!("cannot start {}", program.display()))
    }

    /// Creates the meeting directory while we still have the rights: a server that drops root (memcached -u nobody)
    /// does so before it listens, and could no longer create it in /run. Errors are ignored here; the server reports
    /// them when it listens.
    fn prepare(&self) {
        let own = self.dir.as_deref().and_then(|dir| std::path::absolute(dir).ok());
        let (directories, choice) = match &own {
            Some(dir) => (std::slice::from_ref(dir), Choice::Named),
            None => (channel::directories(), Choice::Default),
        };
        let _ = directories.iter().any(|directory| channel::make_directory(directory, choice).is_ok());
    }
}

/// A meeting directory as it is given to another process.
fn meeting_directory(dir: &Path) -> anyhow::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    let bytes = dir.as_os_str().len();
    if bytes > 80 {
        bail!(
            "{}: {bytes} bytes; at most 80 are allowed: the path of a unix socket in it must fit into 108",
            dir.display()
        );
    }
    Ok(dir)
}

/// Why this machine has no huge pages for shared memory, and what to do.
fn no_huge_pages() -> Option<String> {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let text = std::fs::read_to_string(SETTING).unwrap_or_default();
    let chosen = text.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0));
    match chosen {
        Some("never" | "deny") => {
            Some(format!("--huge-pages: this machine has none for shared memory; as root: echo advise > {SETTING}"))
        }
        Some(_) => None,
        None => Some(format!("--huge-pages: this kernel has none for shared memory (no {SETTING})")),
    }
}

fn find(name: &OsStr) -> Option<PathBuf> {
    let executable = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|p| executable(p));
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|d| d.join(name)).find(|p| executable(p))
}

/// Why a program cannot be preloaded, as far as its file says.
fn unfit(program: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    if PRELOAD.is_empty() {
        return Some("this unslow was built without its preload".into());
    }
    if program.metadata().is_ok_and(|m| m.mode() & 0o6000 != 0) {
        return Some("set-uid programs cannot be preloaded".into());
    }
    let bytes = std::fs::read(program).ok()?;
    if !bytes.starts_with(b"\x7fELF") {
        return None; // a script: its interpreter is what counts
    }
    let class = if cfg!(target_pointer_width = "64") { 2 } else { 1 };
    let machine = if cfg!(target_arch = "x86_64") { 62u16 } else { 183 };
    if bytes.get(4) != Some(&class) || bytes.get(18..20) != Some(&machine.to_le_bytes()) {
        return Some("it was built for another processor architecture".into());
    }
    // Elf64: the program headers' place, size and count; type 3 names the dynamic loader.
    let number = |at: usize, n: usize| {
        let bytes = bytes.get(at..at + n)?;
        Some(bytes.iter().rev().fold(0usize, |value, byte| (value << 8) | usize::from(*byte)))
    };
    let (at, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let header = (0..count).map(|i| at.saturating_add(i * size)).find(|h| number(*h, 4) == Some(3));
    let Some(header) = header else { return Some("it is statically linked".into()) };
    let (start, len) = (number(header + 8, 8)?, number(header + 32, 8)?);
    let loader = String::from_utf8_lossy(bytes.get(start..start.checked_add(len)?)?).into_owned();
    loader.contains("musl").then(|| "it is linked with musl".into())
}

/// The library as a file: in the cache, or where everybody may write.
fn preload() -> anyhow::Result<PathBuf> {
    let sum = PRELOAD
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let directory = unslow_engine::cache_dir();
    let path = directory.join(format!("libunslow_preload-{sum:016x}.so"));
    if std::fs::read(&path).is_ok_and(|there| there == PRELOAD) {
        return Ok(path);
    }
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("{}: cannot store the library there", directory.display()))?;
    // Others may be at it: each writes a file of its own and renames it.
    let mut file = tempfile_in(&directory)?;
    file.1.write_all(PRELOAD).with_context(|| format!("{}: cannot store the library there", directory.display()))?;
    std::fs::rename(&file.0, &path)?;
    Ok(path)
}

fn tempfile_in(directory: &Path) -> anyhow::Result<(PathBuf, std::fs::File)> {
    let path = directory.join(format!("libunslow_preload.{}", std::process::id()));
    let file = std::fs::File::create(&path)
        .with_context(|| format!("{} cannot be written; set UNSLOW_CACHE to a writable directory", path.display()))?;
    Ok((path, file))
}

fn ls(output: &Output) -> anyhow::Result<u8> {
    let servers: Vec<ServerRow> = listing::all()
        .into_iter()
        .map(|listing| {
            let (text, problem) =
                listing.lines.map_or_else(|why| (String::new(), Some(why.to_string())), |text| (text, None));
            // Each line is one of these.
            let connections = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let refusals = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let lent = text.lines().find_map(|line| serde_json::from_str::<Lent>(line).ok());
            let (stack_pid, stack) = lent.map_or((None, None), |lent| (Some(lent.stack_pid), lent.counted));
            let uid = (listing.uid != u32::MAX).then_some(listing.uid);
            let endpoint::Endpoint { port, netns } = listing.endpoint;
            let (pid, over_tcp) = (listing.pid, listing.over_tcp);
            ServerRow { port, netns, pid, uid, over_tcp, stack_pid, stack, problem, connections, refusals }
        })
        .collect();
    if output.json() {
        output.print_json(&Listed { schema: "unslow.bypass_ls/1", servers })?;
        return Ok(0);
    }
    if servers.is_empty() {
        output.note("no server runs with `unslow bypass` here; start one: unslow bypass -- redis-server --port 7777");
        return Ok(0);
    }
    let mut text = String::new();
    let here = endpoint::own_netns();
    for server in &servers {
        use std::fmt::Write;
        let (title, carried, tcp) = (style::TITLE, server.connections.len(), server.over_tcp);
        write!(text, "{title}port {}{title:#}  pid {}  ", server.port, server.pid)?;
        match &server.problem {
            Some(why) => writeln!(text, "{why}")?,
            None => writeln!(text, "{carried} over shared memory, {tcp} from this machine over TCP")?,
        }
        if let Some(pid) = server.stack_pid {
            writeln!(text, "  TCP of clients on other machines: stack, pid {pid}")?;
            if let Some(counted) = &server.stack {
                writeln!(text, "    {}", counted.sentence())?;
            }
        } else if here.is_some_and(|here| here != server.netns) {
            writeln!(text, "  in another network namespace ({}): only clients there use shared memory", server.netns)?;
        }
        for refusal in &server.refusals {
            writeln!(text, "  {}", refusal.sentence(server.uid.unwrap_or_default()))?;
        }
        if server.connections.is_empty() {
            continue;
        }
        let titles = ["fd", "peer", "client pid", "uid", "read bytes", "written bytes", "waiting bytes"];
        let mut rows = vec![titles.map(String::from).to_vec()];
        for c in &server.connections {
            let numbers = [c.read_bytes, c.written_bytes, c.waiting_bytes].map(|n| n.to_string());
            let [read, written, waiting] = numbers;
            let who = [c.fd.to_string(), c.peer.clone(), c.client_pid.to_string(), c.client_uid.to_string()];
            rows.push(who.into_iter().chain([read, written, waiting]).collect());
        }
        text += &table(&rows);
    }
    output.print(&text)?;
    Ok(0)
}
