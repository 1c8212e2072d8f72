//! A lab that outlives the command that started it: a process of its own that holds it, and a socket to talk to it.
//!
//! `unslow lab up` starts the process, hears its progress, and goes; everything of the lab hangs on that process. When
//! it ends, by whatever signal, the kernel takes servers, namespaces and devices with it; what it cannot take (a
//! directory, a cgroup, programs of the user's own) [`Found::clean`] finds by the owner file in the lab's directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use unslow_client::Options;
use unslow_engine::{Error, Server};
use unslow_units::did_you_mean;

use crate::faults::{self, Active};
use crate::found::{Description, FaultRow, HostRow, LONGEST, Request, SOCKET, ServerRow};
use crate::lab::Lab;

struct Running {
    /// Taken out while somebody heals it.
    active: Option<Active>,
    error: Option<String>,
    name: &'static str,
    rule: Option<&'static str>,
    subject: String,
    begun: Instant,
    until: Option<Instant>,
}

/// The holder's own state.
struct Holder<'a> {
    lab: &'a Lab,
    faults: Mutex<BTreeMap<u64, Running>>,
    next: AtomicU64,
}

/// A socket for the lab, to be made before it is said to be ready.
pub fn listen(lab: &Lab) -> Result<UnixListener, Error> {
    let path = lab.dir().join(SOCKET);
    UnixListener::bind(&path)
        .and_then(|l| {
            l.set_nonblocking(true)?;
            Ok(l)
        })
        .map_err(|e| Error::new(format!("{}: {e}", path.display())))
}

/// Serves requests until one of them, or `stop`, ends it; then takes the lab down.
pub fn serve(lab: Lab, listener: UnixListener, stop: &AtomicBool) {
    let asked: Mutex<Option<UnixStream>> = Mutex::new(None);
    let holder = Holder { lab: &lab, faults: Mutex::new(BTreeMap::new()), next: AtomicU64::new(1) };
    std::thread::scope(|scope| {
        let healer = &holder;
        // Healing may take long; whoever asks is answered meanwhile.
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                healer.expire();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        while !stop.load(Ordering::SeqCst) {
            let mut event =
                libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&listener), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live pollfd.
            unsafe {
                libc::poll(&mut event, 1, 100);
            }
            if event.revents == 0 {
                continue;
            }
            // Out of descriptors: some come back.
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let (holder, asked) = (&holder, &asked);
            scope.spawn(move || {
                let _ = holder.talk(stream, stop, asked);
            });
        }
    });
    // Servers are about to end: what was done to them needs no undoing, what was done to this machine does. Nobody
    // begins a fault any more.
    for fault in holder.faults().values_mut().rev() {
        if let Some(active) = &mut fault.active {
            active.abandon();
            active.forget();
        }
    }
    drop(holder);
    drop(lab);
    if let Some(mut stream) = asked.into_inner().unwrap_or_else(|e| e.into_inner()) {
        let _ = answer(&mut stream, Ok(json!({})));
    }
}

fn answer(stream: &mut UnixStream, result: Result<Value, Error>) -> io::Result<()> {
    let reply = match result {
        Ok(value) => json!({ "ok": value }),
        Err(e) => json!({ "error": e.to_string() }),
    };
    stream.write_all((reply.to_string() + "\n").as_bytes())
}

impl Holder<'_> {
    fn talk(&self, stream: UnixStream, stop: &AtomicBool, asked: &Mutex<Option<UnixStream>>) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let mut line = String::new();
        BufReader::new(stream.try_clone()?.take(LONGEST)).read_line(&mut line)?;
        let mut stream = stream;
        let result = match serde_json::from_str(&line) {
            Err(e) => Err(Error::new(format!("invalid request: {e}"))),
            Ok(Request::Describe) => Ok(json!(self.describe())),
            Ok(Request::Fault { name, target, value, for_ms }) => self.fault(&name, target, value, for_ms),
            Ok(Request::Heal(which)) => self.heal(&which),
            Ok(Request::Logs { server, lines, from }) => self.logs(&server, lines, from),
            Ok(Request::Down) => {
                *asked.lock().unwrap_or_else(|e| e.into_inner()) = Some(stream);
                stop.store(true, Ordering::SeqCst);
                return Ok(());
            }
        };
        answer(&mut stream, result)
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Running>> {
        self.faults.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn describe(&self) -> Description {
        let mut description = describe(self.lab);
        description.faults = self
            .faults()
            .iter()
            .map(|(id, f)| FaultRow {
                id: *id,
                name: f.name.into(),
                subject: f.subject.clone(),
                age_ms: f.begun.elapsed().as_millis() as u64,
                left_ms: f.until.map(|u| u.saturating_duration_since(Instant::now()).as_millis() as u64),
                rule: f.rule.map(Into::into),
                error: f.error.clone().or(f.active.is_none().then(|| "being healed".into())),
            })
            .collect();
        description
    }

    fn fault(
        &self,
        name: &str,
        target: Option<String>,
        value: Option<String>,
        for_ms: Option<u64>,
    ) -> Result<Value, Error> {
        let fault = faults::named(name)?;
        // `ghost_nodes 300`: one word, and it is the number.
        let (target, value) = match (target, value) {
            (Some(word), None) if fault.is_value(&word) || fault.takes == faults::Takes::Deployment => {
                (None, Some(word))
            }
            other => other,
        };
        let active = fault.inject(self.lab, target.as_deref(), value.as_deref())?;
        // Nobody else is there to tell by.
        let alone = fault.name == "hang" && self.lab.deployment.nodes.len() == 1;
        let rule = fault.rule.filter(|_| !alone);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (subject, remedy) = (active.subject.clone(), active.remedy);
        let begun = Instant::now();
        let running = Running {
            active: Some(active),
            error: None,
            name: fault.name,
            rule,
            subject: subject.clone(),
            begun,
            until: for_ms.map(|ms| begun + Duration::from_millis(ms)),
        };
        // What cannot be undone does not stay in the list.
        if fault.name != "restart" {
            self.faults().insert(id, running);
        }
        Ok(json!({
            "id": id, "name": fault.name, "subject": subject, "about": fault.about, "remedy": remedy,
            "rule": rule, "for_ms": for_ms,
        }))
    }

    fn heal(&self, which: &[String]) -> Result<Value, Error> {
        let mut ids = Vec::new();
        {
            // Every word is understood before anything is done.
            let faults = self.faults();
            if which.is_empty() {
                ids.extend(faults.keys().copied());
            }
            for word in which {
                let named = |(id, f): &(&u64, &Running)| {
                    id.to_string() == *word || f.name == word || f.rule == Some(word.as_str())
                };
                let before = ids.len();
                ids.extend(faults.iter().filter(named).map(|(id, _)| *id));
                if ids.len() == before {
                    let names: Vec<&str> = faults.values().map(|f| f.name).collect();
                    return Err(Error::new(if names.is_empty() {
                        format!("no fault {word:?} is active, and no other fault either")
                    } else {
                        format!("no fault {word:?} is active{}", did_you_mean(word, &names))
                    }));
                }
            }
        }
        // The youngest first: it may stand on an older one.
        ids.sort_unstable();
        ids.dedup();
        let (mut healed, mut failed) = (Vec::new(), Vec::new());
        for id in ids.into_iter().rev() {
            match self.heal_one(id) {
                Some((name, subject, Ok(()))) => healed.push(json!({ "id": id, "name": name, "subject": subject })),
                Some((name, subject, Err(e))) => failed.push(format!("{name} on {subject}: {e}")),
                None => {} // somebody else is at it
            }
        }
        if failed.is_empty() {
            return Ok(json!(healed));
        }
        Err(Error::new(format!("could not be undone: {}; unslow lab heal tries again", failed.join("; "))))
    }

    /// Ends one fault; it stays listed while that goes on, and when it fails.
    fn heal_one(&self, id: u64) -> Option<(&'static str, String, Result<(), Error>)> {
        let (mut active, name, subject) = {
            let mut faults = self.faults();
            let fault = faults.get_mut(&id)?;
            fault.until = None;
            (fault.active.take()?, fault.name, fault.subject.clone())
        };
        let done = active.heal();
        let mut faults = self.faults();
        match &done {
            Ok(()) => {
                faults.remove(&id);
            }
            Err(e) => {
                eprintln!("{name} on {subject}: {e}"); // the holder's log
                if let Some(fault) = faults.get_mut(&id) {
                    fault.error = Some(e.to_string());
                    fault.active = Some(active);
                }
            }
        }
        Some((name, subject, done))
    }

    /// Heals what is due, the youngest first.
    fn expire(&self) {
        let due: Vec<u64> = {
            let faults = self.faults();
            let now = Instant::now();
            faults.iter().filter(|(_, f)| f.until.is_some_and(|u| u <= now)).map(|(id, _)| *id).collect()
        };
        for id in due.into_iter().rev() {
            self.heal_one(id);
        }
    }

    fn logs(&self, server: &str, lines: usize, from: Option<u64>) -> Result<Value, Error> {
        let found = self.lab.servers().find(|(s, _)| s.name() == server || s.address() == server);
        let (server, _) = found.ok_or_else(|| {
            let names: Vec<&str> = self.lab.servers().map(|(s, _)| s.name()).collect();
            Error::new(format!("no server {server:?} in lab {}{}", self.lab.name, did_you_mean(server, &names)))
        })?;
        let path = server.dir().join("server.log");
        let io = |e: io::Error| Error::new(format!("the log of {}: {e}", server.name()));
        let file = fs::File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        // A megabyte at a time: more is asked for with `from`.
        let begin = from.unwrap_or_else(|| length.saturating_sub(1 << 20)).min(length);
        let mut bytes = vec![0u8; (length - begin).min(1 << 20) as usize];
        file.read_exact_at(&mut bytes, begin).map_err(io)?;
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if from.is_none() {
            let all: Vec<&str> = text.lines().collect();
            text = all[all.len().saturating_sub(lines)..].iter().map(|l| format!("{l}\n")).collect();
        }
        Ok(json!({ "text": text, "next": begin + bytes.len() as u64 }))
    }
}

/// A lab without its faults.
pub fn describe(lab: &Lab) -> Description {
    let zone = |z: usize| lab.zones.get(z).cloned().unwrap_or_default();
    Description {
        schema: "unslow.lab/1".into(),
        name: lab.name.clone(),
        pid: std::process::id(),
        ready_ms: lab.up.as_millis() as u64,
        flat: lab.wire().is_err(),
        missing: lab.missing.clone(),
        url: url(lab),
        door: lab.door.clone(),
        hosts: lab
            .hosts
            .iter()
            .map(|h| HostRow {
                name: h.name.clone(),
                zone: zone(h.zone),
                ip: h.ip.clone(),
                client: h.client,
                doors: h.seat.as_ref().map(|s| s.doors()),
            })
            .collect(),
        servers: lab
            .servers()
            .map(|(server, host)| {
                let state = state(server);
                let (role, master) = if state == "running" { role(server) } else { ("unknown".into(), None) };
                ServerRow {
                    name: server.name().into(),
                    address: server.address(),
                    role,
                    master,
                    pid: if state == "dead" { 0 } else { server.pid() },
                    state,
                    host: host.name.clone(),
                    zone: zone(host.zone),
                    version: server.engine().version.clone(),
                }
            })
            .collect(),
        faults: Vec::new(),
        wire: lab.wire_stats(),
    }
}

/// Several nodes: the first may be the one that hangs.
fn url(lab: &Lab) -> String {
    let nodes = lab.deployment.nodes.iter().take(lab.deployment.masters.clamp(2, 3));
    let addresses: Vec<String> = nodes.map(|n| n.address()).collect();
    if addresses.is_empty() { String::new() } else { format!("redis://{}", addresses.join(",")) }
}

fn state(server: &Server) -> String {
    if !server.alive() {
        return "dead".into();
    }
    let stopped = unslow_process::stat(server.pid()).is_some_and(|stat| stat.state == 'T');
    if stopped { "stopped".into() } else { "running".into() }
}

fn role(server: &Server) -> (String, Option<String>) {
    let second = Duration::from_secs(1);
    let options = Options { connect_timeout: second, command_timeout: second, ..Options::default() };
    let reply = server.connect_with(&options).and_then(|mut c| c.call(&["ROLE"]));
    let Ok(reply) = reply else { return ("unknown".into(), None) };
    let text = |i: usize| reply.items().get(i).and_then(|v| v.text());
    match text(0).as_deref() {
        Some("slave") => {
            let port = reply.items().get(2).and_then(|v| v.integer()).unwrap_or(0);
            ("replica".into(), text(1).map(|ip| unslow_topology::join_host_port(&ip, port)))
        }
        Some(other) => (other.into(), None),
        None => ("unknown".into(), None),
    }
}
