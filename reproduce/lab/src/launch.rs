//! Starting the process that holds a lab, and entering its hosts.
//!
//! The holder is this same executable with the hidden verb `lab hold`. It runs as root where namespaces may be made,
//! else in a user namespace of its own, in which it is root. Until the lab is ready it hangs on the command that
//! started it: when that ends, by whatever signal, it undoes what there is and ends too.

use std::ffi::CString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unslow_engine::{Error, stop_all};
use unslow_units::did_you_mean;

use crate::daemon;
use crate::found::{self, Description, Found};
use crate::lab::{Lab, Up};
use crate::place::started_at;
use crate::processes;
use crate::topology::Topology;
use crate::wire;

/// What to bring up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Order {
    /// A topology's text.
    pub topology: String,
    /// In place of the topology's own name.
    pub name: Option<String>,
    /// In place of the topology's own server.
    pub server: Option<String>,
    /// On loopback addresses.
    pub flat: bool,
    /// Without a device in this machine's own namespace.
    pub no_door: bool,
}

impl Order {
    /// The topology as ordered.
    pub fn topology(&self) -> Result<Topology, Error> {
        let mut topology = Topology::parse(&self.topology)?;
        if let Some(name) = &self.name {
            topology.name = name.clone();
            topology.check_name()?;
        }
        if let Some(server) = &self.server {
            topology.deployment.server = server.clone();
        }
        Ok(topology)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Progress(String),
    Ready(Box<Description>),
    Error(String),
}

/// The holder that is being started, for [`end_starting`].
static STARTING: AtomicU32 = AtomicU32::new(0);

/// Starts a holder and waits until its lab is ready.
pub fn launch(order: &Order, progress: &mut dyn FnMut(&str)) -> Result<Description, Error> {
    let topology = order.topology()?;
    // Left by a holder that was killed: nobody's any more.
    for found in found::all().iter().filter(|f| f.name == topology.name && f.holder.is_none()) {
        progress(&format!("removing what the lab {:?} left behind when it was killed", found.name));
        found.clean()?;
    }
    // Fetched here, where the user's own rights and settings hold.
    if topology.nodes() > 0 {
        let own = topology.hosts.iter().filter_map(|h| h.server.as_deref());
        for name in std::iter::once(topology.deployment.server.as_str()).chain(own) {
            unslow_engine::find(name)?;
        }
    }
    let exe = std::env::current_exe().map_err(|e| Error::new(format!("this executable cannot be found again: {e}")))?;
    let mut command = Command::new(exe);
    // The mark of another lab, if this is a shell on one of its hosts, is not ours.
    command.env_remove(processes::MARK);
    command.args(["lab", "hold"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut in_user_namespace = false;
    if !order.flat && wire::allowed().is_err() {
        in_user_namespace = true;
        user_namespace(&mut command);
    }
    let mut child = command.spawn().map_err(|e| {
        if in_user_namespace {
            Error::new(format!(
                "neither network namespaces nor user namespaces are allowed here ({e}); run it as root, or with --flat \
                 for a lab on loopback addresses without round trips"
            ))
        } else {
            Error::new(format!("the lab's process could not be started: {e}"))
        }
    })?;
    STARTING.store(child.id(), Ordering::SeqCst);
    let text = serde_json::to_string(order).map_err(|e| Error::new(e.to_string()))?;
    let written = child.stdin.take().map(|mut pipe| pipe.write_all(text.as_bytes()));
    let mut result = Err(Error::new("the lab's process exited without reporting why"));
    if let (Some(Ok(())), Some(pipe)) = (written, child.stdout.take()) {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Line::Progress(what)) => progress(&what),
                Ok(Line::Ready(description)) => {
                    result = Ok(*description);
                    break;
                }
                Ok(Line::Error(message)) => result = Err(Error::new(message)),
                Err(_) => {}
            }
        }
    }
    if result.is_err() {
        let _ = child.wait();
        unslow_interrupt::park_if_ending(); // a signal may have ended it
    }
    STARTING.store(0, Ordering::SeqCst);
    result
}

/// For a signal handler's thread: ends a holder that is being started, and waits until it has undone everything.
pub fn end_starting() {
    let pid = STARTING.load(Ordering::SeqCst);
    if pid == 0 {
        return;
    }
    // SAFETY: our own child; it was running a moment ago, and numbers are not used again that fast.
    unsafe {
        libc::kill(pid as i32, libc::SIGTERM);
    }
    let until = Instant::now() + Duration::from_secs(10);
    while started_at(pid).is_some() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has a command start as root of a user namespace with namespaces for network and mounts.
fn user_namespace(command: &mut Command) {
    // SAFETY: neither call takes anything or fails.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let maps = [
        (c"/proc/self/setgroups", "deny".to_string()),
        (c"/proc/self/uid_map", format!("0 {uid} 1")),
        (c"/proc/self/gid_map", format!("0 {gid} 1")),
    ];
    // SAFETY: unshare, open, write and close are async-signal-safe; the strings were made before the fork.
    unsafe {
        command.pre_exec(move || {
            if libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWNS) != 0 {
                return Err(io::Error::last_os_error());
            }
            for (path, text) in &maps {
                let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if fd < 0 || libc::write(fd, text.as_ptr().cast(), text.len()) < 0 {
                    return Err(io::Error::last_os_error());
                }
                libc::close(fd);
            }
            Ok(())
        });
    }
}

/// The verb `lab hold`: an order on stdin, lines of progress on stdout, then service until it is told to end. Returns
/// whether the lab came up; an error means that nobody who knows how has started it.
pub fn hold() -> Result<bool, Error> {
    let mut text = String::new();
    let _ = io::stdin().take(1 << 20).read_to_string(&mut text);
    let order: Order = serde_json::from_str(&text)
        .map_err(|_| Error::new("unslow lab up starts lab hold itself; try: unslow lab up"))?;
    raise_descriptors();
    // SAFETY: both take numbers only. A terminal's Ctrl-C is for the command that started us; its end is for us too.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
    }
    let say = |line: &Line| {
        let text = serde_json::to_string(line).unwrap_or_default() + "\n";
        io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()).is_ok()
    };
    let up = || -> Result<_, Error> {
        let root = fs::read_to_string("/proc/self/uid_map").is_ok_and(|m| m.contains("4294967295"));
        let how = Up { flat: order.flat, door: root && !order.flat && !order.no_door };
        let lab = Lab::up(&order.topology()?, how, &mut |what| {
            say(&Line::Progress(what.into()));
        })?;
        let listener = daemon::listen(&lab)?;
        Ok((lab, listener))
    };
    match up() {
        Ok((lab, listener)) => {
            // From here on a signal takes the lab down in order, however many there are.
            let stop = unslow_interrupt::guard_patiently();
            let asked = stop.flag();
            stop.keep();
            let description = daemon::describe(&lab);
            // Before the word: whoever reads it may end the next moment. Who ended already does not read it.
            // SAFETY: numbers only.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, 0);
            }
            if !say(&Line::Ready(Box::new(description))) {
                return Ok(false);
            }
            detach(&lab.dir().join("holder.log"));
            daemon::serve(lab, listener, &asked);
            Ok(true)
        }
        Err(e) => {
            say(&Line::Error(e.to_string()));
            stop_all();
            Ok(false)
        }
    }
}

/// As many descriptors as allowed: every host takes three, every client of a fault one.
pub fn raise_descriptors() {
    // SAFETY: a live struct for the kernel to fill, then to read.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// From now on nothing ties us to the terminal of who started us. Last words go to a file.
fn detach(log: &std::path::Path) {
    let errors = fs::File::create(log).ok();
    // SAFETY: numbers and NUL-terminated strings; the three descriptors are nobody's but ours.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        libc::dup2(null, 0);
        libc::dup2(null, 1);
        libc::dup2(errors.as_ref().map_or(null, AsRawFd::as_raw_fd), 2);
        libc::close(null);
        // The directory we were started in may be unmounted without us.
        libc::chdir(c"/".as_ptr());
    }
}

/// Replaces this process by a command on a host of a lab. Only returns on an error.
///
/// Must be called before there is a second thread: the kernel lets nobody else into a user namespace.
pub fn exec(found: &Found, host: &str, command: &[String]) -> Error {
    match prepare(found, host, command) {
        Ok(mut command) => {
            let program = command.get_program().to_string_lossy().into_owned();
            let e = command.exec();
            let hint = match e.kind() {
                io::ErrorKind::NotFound if program == "redis-cli" => "; unslow engine install redis-6.2 installs one",
                _ => "",
            };
            Error::new(format!("{program}: {e}{hint}"))
        }
        Err(e) => e,
    }
}

fn prepare(found: &Found, host: &str, words: &[String]) -> Result<Command, Error> {
    let description = found.describe()?;
    let row = description.hosts.iter().find(|h| h.name == host || h.ip == host).or_else(|| {
        let server = description.servers.iter().find(|s| s.name == host)?;
        description.hosts.iter().find(|h| h.name == server.host)
    });
    let row = row.ok_or_else(|| {
        let names: Vec<&str> = description.hosts.iter().map(|h| h.name.as_str()).collect();
        Error::new(format!("no host {host:?} in lab {}{}", found.name, did_you_mean(host, &names)))
    })?;
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    if let Some((net, mount)) = &row.doors {
        let enter = |path: &std::path::Path, kind: i32| -> Result<(), Error> {
            let failed = |e: io::Error| {
                Error::new(format!(
                    "{host}: its namespace cannot be entered ({e}); only root and the user who started the lab may"
                ))
            };
            let file = fs::File::open(path).map_err(failed)?;
            // SAFETY: an open descriptor; this process has one thread.
            if unsafe { libc::setns(file.as_raw_fd(), kind) } == 0 {
                Ok(())
            } else {
                Err(failed(io::Error::last_os_error()))
            }
        };
        // Opened before the first step: afterwards /proc shows another user.
        let user = format!("/proc/{}/ns/user", description.pid);
        if fs::read_link(&user).ok() != fs::read_link("/proc/self/ns/user").ok() {
            enter(user.as_ref(), libc::CLONE_NEWUSER)?;
        }
        enter(net, libc::CLONE_NEWNET)?;
        enter(mount, libc::CLONE_NEWNS)?;
        if let Ok(dir) = CString::new(here.to_string_lossy().as_bytes()) {
            // SAFETY: a NUL-terminated string. Where the directory is not seen from there, it stays at the root.
            unsafe {
                libc::chdir(dir.as_ptr());
            }
        }
    }
    let (program, arguments) = words.split_first().ok_or_else(|| Error::new("expected a command after --"))?;
    let mut command = Command::new(program);
    command.args(arguments).env(processes::MARK, processes::mark(found.dir())).env("UNSLOW_LAB_HOST", &row.name);
    // redis-cli of an installed engine, where there is none on PATH.
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    for dir in unslow_engine::cli_dirs() {
        path.push(":");
        path.push(dir);
    }
    command.env("PATH", path);
    Ok(command)
}
