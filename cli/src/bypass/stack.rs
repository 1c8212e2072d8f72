//! `unslow bypass stack`: one process for the TCP connections of all servers that run with `--offload`.

use std::collections::BTreeSet;
use std::fs::File;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use unslow_bypass::busy;
use unslow_bypass::channel::{self, Choice, Rule};
use unslow_bypass::stack::{Polled, Seen, Served, Spread, Stack};
use unslow_status::{Exposition, Labels, NotReady, Status};

use super::meeting_directory;
use super::napi::Suspended;
use crate::output::Output;

/// One that was started for a server ends when it has had none, nor a connection, for this long;
const IDLE: Duration = Duration::from_secs(10);
/// or for this long at the start, when its server may be loading what it had saved.
const FIRST: Duration = Duration::from_secs(60);
/// A stack that was killed holds its lock until the kernel has taken it apart.
const GOING: Duration = Duration::from_secs(1);
/// A thread for each server, as far as it goes: one that has none wakes four times a second.
const THREADS: u16 = 16;

#[derive(Args)]
pub struct StackArguments {
    /// Serve servers of these users as well as this user's own: uid:NUMBER, gid:NUMBER, or any; may be repeated
    #[arg(long, value_name = "WHO")]
    allow: Vec<String>,
    /// Where servers are found [default: /run/unslow-bypass, else /tmp/unslow-bypass]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Number of threads. Each server is assigned to one; a flood on one server delays those on other threads less
    #[arg(long, value_name = "N", default_value_t = THREADS, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// When a server's connections are spread over threads that have no server of their own
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    spread: When,
    /// Serve /metrics and /healthz here, such as 127.0.0.1:9191: connections and bytes of each server
    #[arg(long, value_name = "ADDRESS")]
    status: Option<String>,
    /// Before a thread sleeps, it polls the network card's queue for this long: no interrupts, for a processor that
    /// spins. Needs Linux 6.9; as root the queue's interrupts rest too (6.13)
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "50us",
          value_parser = crate::typed::spin)]
    busy_poll: Option<Duration>,
    /// Take over from the running stack, for an upgrade: this one accepts new connections, and the old one exits when
    /// its last connection closes
    #[arg(long)]
    replace: bool,
    /// End when there has been no server and no connection for ten seconds
    #[arg(long)]
    until_idle: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum When {
    /// While its thread is busy and processors are free
    #[default]
    Busy,
    /// At once, evenly
    Always,
    /// Each server has one thread
    Never,
}

impl From<When> for Spread {
    fn from(when: When) -> Spread {
        match when {
            When::Busy => Spread::Busy,
            When::Always => Spread::Always,
            When::Never => Spread::Never,
        }
    }
}

impl StackArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        if self.dir.is_some() || !self.allow.is_empty() || self.busy_poll.is_some() {
            return self.begin_again();
        }
        // One that a server has started makes way for none, and waits for none.
        let patience = if self.until_idle || self.replace { Duration::ZERO } else { GOING };
        let mut held = Held::new(LOCK, patience)?;
        if !held.is_mine && !self.replace {
            bail!(
                "a stack is already running for this meeting directory, and one serves all its servers (unslow bypass \
                 ls shows it); use --replace to have this one take its place, or --dir for another directory"
            )
        }
        // One at a time: of two that replace a third, each could have some of its servers, and neither would end.
        let mut next = if held.is_mine { None } else { Some(Held::new(NEXT, Duration::ZERO)?) };
        if next.as_ref().is_some_and(|next| !next.is_mine) {
            bail!("another stack is taking over from the one that runs; try again when it has")
        }
        raise_open_files();
        let stop = unslow_interrupt::guard_quietly(); // it ends within a moment
        let stack = Stack::new(usize::from(self.threads), self.spread.into()).context("cannot start")?;
        let seen = stack.seen();
        seen.take_over(!held.is_mine);
        let status = self.status.as_ref().map(|address| {
            let serving = unslow_status::serve(address, false, Arc::new(Watched(seen.clone())));
            serving.with_context(|| {
                format!("--status {address}: cannot listen there; expected IP:PORT, such as 127.0.0.1:9191")
            })
        });
        let status = status.transpose()?;
        if let Some(address) = status.as_ref().and_then(|serving| serving.address) {
            output.note(&format!("figures at http://{address}/metrics"));
        }
        output
            .note("waiting for servers that run with `unslow bypass --offload`; Ctrl-C ends it and their connections");
        match (self.replace, held.is_mine) {
            (true, true) => output.note("no stack of this user was running"),
            (true, false) => output.note("another stack is running; taking over its servers"),
            (false, _) => {}
        }
        let mut was_superseded = false;
        let (mut before, mut busy_at, mut patience) = (0, Instant::now(), FIRST);
        let (flag, until_idle) = (stop.flag(), self.until_idle);
        let mut polling = busy::wanted_us().map(|_| Polling::default());
        stack.run(&flag, || {
            if let Some(polling) = &mut polling {
                polling.see(seen.polled(), output);
            }
            let servers = seen.servers();
            if servers.len() != before {
                before = servers.len();
                output.note(&match before {
                    0 => "no servers now".to_string(),
                    1 => "handling TCP for 1 server".to_string(),
                    n => format!("handling TCP for {n} servers"),
                });
            }
            if !servers.is_empty() || seen.connections() > 0 {
                (busy_at, patience) = (Instant::now(), IDLE);
            }
            let (is_superseded, left) = (seen.is_superseded(), seen.connections());
            match (std::mem::replace(&mut was_superseded, is_superseded), is_superseded) {
                (false, true) => output.note(&format!(
                    "another stack has taken over; this one exits when the last of its {left} connections closes{}",
                    stay(servers.len())
                )),
                (true, false) => output.note("the other stack has ended; accepting again"),
                _ => {}
            }
            if is_superseded && servers.is_empty() {
                held.give_up();
                if left == 0 {
                    flag.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            } else if !held.is_mine && held.try_again() {
                if next.take().is_some() {
                    output.note("the other stack serves no server any more");
                }
                seen.take_over(false);
            }
            if until_idle && busy_at.elapsed() > patience {
                flag.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        })?;
        Ok(0)
    }

    /// What is in the environment is read once, and by servers and stack in the same way: so it begins again with it.
    fn begin_again(&self) -> anyhow::Result<u8> {
        let mut command = this_stack()?;
        if !self.allow.is_empty() {
            let allow = self.allow.join(",");
            Rule::parse(&allow).map_err(|why| anyhow::anyhow!("--allow {why}"))?;
            command.env("UNSLOW_BYPASS_ALLOW", allow);
        }
        if let Some(dir) = &self.dir {
            command.env("UNSLOW_BYPASS_DIR", meeting_directory(dir)?);
        }
        if let Some(time) = self.busy_poll {
            command.env(busy::VARIABLE, busy_us(time)?);
        }
        if self.until_idle {
            command.arg("--until-idle");
        }
        if self.replace {
            command.arg("--replace");
        }
        command.args(["--threads", &self.threads.to_string()]);
        if let Some(spread) = self.spread.to_possible_value() {
            command.args(["--spread", spread.get_name()]);
        }
        if let Some(address) = &self.status {
            command.args(["--status", address]);
        }
        Err(command.exec()).context("cannot start again")
    }
}

/// As the environment says it, if this kernel can.
pub fn busy_us(time: Duration) -> anyhow::Result<String> {
    let us = u32::try_from(time.as_micros())
        .ok()
        .and_then(NonZeroU32::new)
        .context("--busy-poll: invalid duration; expected one such as 50us")?;
    busy::can_poll(us).map_err(|why| {
        anyhow::anyhow!("--busy-poll: this kernel's epoll sets cannot poll ({why}); it takes Linux 6.9 or newer")
    })?;
    Ok(us.to_string())
}

/// What the sets poll, and which of it has been told.
#[derive(Default)]
struct Polling {
    suspended: Suspended,
    told: BTreeSet<NonZeroU32>,
    told_of_none: bool,
}

impl Polling {
    fn see(&mut self, polled: Polled, output: &Output) {
        for id in polled.queues {
            if !self.told.insert(id) {
                continue;
            }
            output.note(&match self.suspended.add(id) {
                Ok(interface) => format!("polling queue {id} of {interface}; its interrupts rest meanwhile"),
                Err(why) => {
                    format!("polling queue {id} of a network card; its interrupts do not rest meanwhile: {why}")
                }
            });
        }
        if polled.without > 0 && !std::mem::replace(&mut self.told_of_none, true) {
            output.note(
                "--busy-poll does not help these connections: their interface has no queue to poll (loopback, TUN, \
                 veth without GRO)",
            );
        }
    }
}

fn this_stack() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("where this program is")?);
    command.args(["bypass", "stack"]);
    Ok(command)
}

/// Servers that a stack keeps although another one has taken over.
fn stay(servers: usize) -> String {
    match servers {
        0 => String::new(),
        1 => "; 1 server stays with it".into(),
        n => format!("; {n} servers stay with it"),
    }
}

/// A lock of this user's in the meeting directory.
struct Held {
    file: File,
    is_mine: bool,
}

/// Held by the stack that serves this user's servers; and by one that is taking over from it.
const LOCK: &str = "lock";
const NEXT: &str = "next.lock";

impl Held {
    /// Ours, unless another stack has it for so long.
    fn new(name: &str, patience: Duration) -> anyhow::Result<Held> {
        let choice = if std::env::var_os("UNSLOW_BYPASS_DIR").is_some() { Choice::Named } else { Choice::Default };
        let mut last = None;
        for directory in channel::directories() {
            let file = channel::make_directory(directory, choice).and_then(|()| own_file(directory, name));
            match file {
                Ok(file) => {
                    let is_mine = is_locked(&file, patience);
                    return Ok(Held { file, is_mine });
                }
                Err(e) => last = Some((directory, e)),
            }
        }
        match last {
            Some((directory, e)) => Err(e).with_context(|| format!("{}: cannot be used", directory.display())),
            None => bail!("no meeting directory"),
        }
    }

    /// Whether it is ours now.
    fn try_again(&mut self) -> bool {
        self.is_mine = self.is_mine || self.file.try_lock().is_ok();
        self.is_mine
    }

    /// Another stack may have it from now on.
    fn give_up(&mut self) {
        if std::mem::take(&mut self.is_mine) {
            let _ = self.file.unlock();
        }
    }
}

/// This user's lock file. Every user can create files in the directory, so a link, a pipe or another user's file is
/// refused.
fn own_file(directory: &Path, name: &str) -> std::io::Result<File> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    let own = rustix::process::geteuid().as_raw();
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = File::options();
    options.create(true).append(true).mode(0o600).custom_flags(flags);
    let file = options.open(directory.join(format!("stack.{own}.{name}")))?;
    let found = file.metadata()?;
    match found.is_file() && found.uid() == own {
        true => Ok(file),
        false => Err(std::io::Error::other(format!("stack.{own}.{name} in it is not this user's"))),
    }
}

/// One that was killed a moment ago may not be gone yet.
fn is_locked(file: &File, patience: Duration) -> bool {
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return true,
            Err(_) if begun.elapsed() < patience => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => return false,
        }
    }
}

/// Two descriptors a connection.
fn raise_open_files() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
}

/// Starts one that outlives this process, unless one is running there: it ends by itself.
pub fn start(dir: Option<&Path>, allow: &[String], busy_poll: Option<Duration>) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("where this program is")?;
    // Through a shell, so that the server does not get a child that it knows nothing of.
    let mut command = Command::new("sh");
    if let Some(time) = busy_poll {
        command.env(busy::VARIABLE, busy_us(time)?);
    }
    command.args(["-c", "\"$0\" bypass stack --until-idle </dev/null >/dev/null 2>&1 &"]).arg(program);
    command.env("UNSLOW_BYPASS_ALLOW", allow.join(","));
    if let Some(dir) = dir {
        command.env("UNSLOW_BYPASS_DIR", meeting_directory(dir)?);
    }
    let status = command.process_group(0).status().context("cannot start the stack")?;
    if !status.success() {
        bail!("cannot start the stack: {status}");
    }
    Ok(())
}

/// What a status port says of it.
struct Watched(Seen);

impl Status for Watched {
    fn metrics(&self) -> String {
        let servers = self.0.counted();
        let labels = |served: &Served| -> Labels {
            vec![
                ("port", served.port.to_string()),
                ("pid", served.pid.to_string()),
                ("netns", served.netns.to_string()),
            ]
        };
        let of = |which: &dyn Fn(&Served) -> u64| -> Vec<(Labels, u64)> {
            servers.iter().map(|served| (labels(served), which(served))).collect()
        };
        let gauge = |which: &dyn Fn(&Served) -> u64| -> Vec<(Labels, i64)> {
            let value = |served: &Served| i64::try_from(which(served)).unwrap_or(i64::MAX);
            servers.iter().map(|served| (labels(served), value(served))).collect()
        };
        let mut all = Exposition::new("unslow_bypass_stack");
        let handled = self.0.servers().len() as i64;
        all.gauge("servers", "Servers whose TCP connections this stack handles.", handled);
        let open = gauge(&|served| served.figures.connections.get());
        all.gauges("connections", "Connections it carries for a server.", open);
        let thread = gauge(&|served| served.thread as u64);
        all.gauges("thread", "The thread that accepts for a server, from 0.", thread);
        let threads = gauge(&|served| served.figures.threads() as u64);
        all.gauges("threads", "Threads that have connections of a server.", threads);
        let accepted = of(&|served| served.figures.accepted.get());
        all.counters("accepted", "Connections accepted whose bytes it carries.", accepted);
        let passed = of(&|served| served.figures.passed.get());
        all.counters("passed", "Connections that stay with TCP: of this machine, or beyond the slots.", passed);
        let up = of(&|served| served.figures.bytes_up());
        all.counters("received_bytes", "Bytes from clients to a server.", up);
        let down = of(&|served| served.figures.bytes_down());
        all.counters("sent_bytes", "Bytes from a server to clients.", down);
        let waits = of(&|served| served.figures.waits());
        let moved = of(&|served| served.figures.moved.get());
        all.counters("moved", "Number of times a connection moved to another thread.", moved);
        all.counters("waits", "Number of times data was buffered because its receiver was slow.", waits);
        all.text()
    }

    fn ready(&self) -> Result<(), NotReady> {
        Ok(())
    }
}
