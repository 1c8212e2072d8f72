//! Before the first run: whether deployment and workload fit each other, and the keys that reads will find.

use std::path::Path;
use std::time::Duration;

use unslow_client::{Connection, Endpoint, Value};
use unslow_topology::{DeploymentKind, Info, Node, Topology};

use super::room::{Needs, make_room};
use super::{Progress, Session};
use crate::command::Command;
use crate::danger::{dangerous, in_script};
use crate::error::{Error, Interrupted, Unfit, WorkloadError};
use crate::places::Places;
use crate::route::{group, look};
use crate::servers::open;
use crate::settings::{Model, ReadFrom, Settings};
use crate::template::Fill;
use crate::workload::{Spec, Workload};

/// The version of a server that does not tell it.
const UNKNOWN: &str = "unknown";

impl Session {
    /// Whether these settings can be run at all, and are meant; asks no server.
    pub fn check(settings: &Settings) -> Result<(), Error> {
        Session::compiled(settings).map(drop)
    }

    fn compiled(settings: &Settings) -> Result<Workload, Error> {
        settings.check()?;
        let workload = Workload::compile(&settings.spec, settings.spec.script.as_ref().map(|_| "0"))?;
        if !settings.dangerous {
            refuse_danger(&workload, &settings.spec)?;
        }
        Ok(workload)
    }

    /// Looks at the deployment, compiles the workload, asks the server whether it knows the commands, and preloads.
    pub fn prepare(mut settings: Settings, observer: &mut dyn FnMut(Progress)) -> Result<Session, Error> {
        // What is wrong with the workload is said before any server is asked.
        let workload = Session::compiled(&settings)?;
        if let Some(recording) = workload.recording.filter(|_| !settings.spec.replay_loop) {
            settings.requests = Some(settings.requests.unwrap_or(u64::MAX).min(recording.commands()));
        }
        let known = if settings.plain { Known::nothing(&settings)? } else { Known::of(&settings)? };
        let Known { topology, workload, version, is_replica, mut masters } = known;
        fits(&settings, &topology, &workload)?;
        make_room(Needs {
            servers: match settings.read_from {
                ReadFrom::Primary => topology.masters().count().max(1),
                _ => topology.nodes.len().max(1),
            },
            connections: settings.lanes(),
            subscribers: settings.subscribers,
            threads: settings.threads,
            ports: !settings.target.endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::Unix(_))),
        })?;
        let preload = settings.spec.preload.unwrap_or_else(|| workload.wants_preload() && !is_replica);
        let load = settings.load();
        let mut session = Session { version, ..Session::new(settings, workload, topology, load) };
        session.probe(&mut masters)?;
        drop(masters);
        if preload {
            session.preload(observer)?;
        }
        if session.guard.asked() {
            return Err(Interrupted::Preparing.into());
        }
        Ok(session)
    }

    /// Sends each kind of read once: what the server refuses it would refuse a million times. Nothing is written.
    fn probe(&self, masters: &mut [Connection]) -> Result<(), Unfit> {
        if self.workload.recording.is_some() {
            return Ok(());
        }
        for command in self.workload.commands.iter().filter(|c| c.reads && !c.blocks) {
            let words = command.template.sample(&Fill { key: 0, value: b"x", seq: 0, now: 0 });
            let is_elsewhere = |e: &unslow_client::Error| e.redirect().is_some();
            // In a cluster one of the masters has the slot.
            let mut replies = masters.iter_mut().map(|master| master.call(&words));
            match replies.find(|reply| !reply.as_ref().is_err_and(is_elsewhere)) {
                None | Some(Ok(_)) => {}
                // How that goes on is what the run may be about.
                Some(Err(e)) if e.code() == Some("CLUSTERDOWN") => {}
                Some(Err(why)) => return Err(Unfit::Refused { command: command.name.clone(), why }),
            }
        }
        Ok(())
    }

    /// Writes every key once.
    fn preload(&mut self, observer: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let total = self.settings.spec.keys;
        observer(Progress::Preload { done: 0, total });
        let workload = Workload::preload(&self.settings.spec)?;
        let session = self.of_every_key(workload, total, Duration::from_secs(6 * 3600));
        let mut done = 0;
        let (run, _) = session.run_once(&mut |progress| {
            if let Progress::Second(second, _) = progress {
                done += second.answered;
                observer(Progress::Preload { done, total });
            }
        })?;
        if run.interrupted {
            return Err(Interrupted::Preload.into());
        }
        if run.answered < total {
            let (missing, example) = (total - run.answered, run.errors.first().map(|e| e.example.clone()));
            return Err(Unfit::Unwritten { missing, total, example }.into());
        }
        observer(Progress::Preload { done: total, total });
        (self.preloaded, self.has_sent) = (total, true);
        Ok(())
    }

    /// A run beside the measured ones, that sends one command for each of this many keys.
    pub(super) fn of_every_key(&self, workload: Workload, keys: u64, length: Duration) -> Session {
        // As much at once as goes fast, and no more than some megabytes of it.
        let pipeline = ((1 << 20) / (workload.value_max() + 64)).clamp(1, 64);
        let mut settings = Settings {
            model: Model::Own,
            connections: self.settings.threads * 4,
            pipeline,
            callers: None,
            rate: None,
            speed: None,
            requests: Some(keys),
            subscribers: 0,
            length,
            read_from: ReadFrom::Primary,
            ..self.settings.clone()
        };
        settings.spec.replay = None;
        Session::new(settings, workload, self.topology.clone(), self.load.clone())
    }
}

/// What is known before a run.
struct Known {
    topology: Topology,
    workload: Workload,
    /// Product and version.
    version: String,
    is_replica: bool,
    /// Connections to the masters that answer.
    masters: Vec<Connection>,
}

impl Known {
    fn of(settings: &Settings) -> Result<Known, Error> {
        let topology = look(&settings.target, &settings.options)?;
        let mut masters = open_masters(settings, &topology)?;
        let info = masters[0].call(&["INFO"]).map(|v| Info::parse(&v.text().unwrap_or_default())).ok();
        let version = info.as_ref().map_or(UNKNOWN.to_string(), |info| {
            let (major, minor, patch) = info.version().unwrap_or_default();
            format!("{} {major}.{minor}.{patch}", info.product())
        });
        if info.as_ref().and_then(|i| i.get("loading")) == Some("1") {
            return Err(Unfit::Loading(masters[0].peer().to_string()).into());
        }
        let script = settings.spec.script.as_deref();
        let sha = script.map(|path| load_script(&mut masters, path)).transpose()?;
        let mut workload = Workload::compile(&settings.spec, sha.as_deref())?;
        let writes = ask_about_commands(&mut masters[0], &mut workload)?;
        let is_replica = info.as_ref().and_then(Info::role) == Some("slave");
        if is_replica && let Some(write) = writes {
            return Err(Unfit::Replica { address: masters[0].peer().to_string(), write }.into());
        }
        Ok(Known { topology, workload, version, is_replica, masters })
    }

    fn nothing(settings: &Settings) -> Result<Known, Error> {
        let topology = group(DeploymentKind::Standalone, settings.target.address(), Vec::new());
        let workload = Workload::compile(&settings.spec, None)?;
        Ok(Known { topology, workload, version: UNKNOWN.into(), is_replica: false, masters: Vec::new() })
    }
}

/// Fails where a command would do more than read and write keys.
fn refuse_danger(workload: &Workload, spec: &Spec) -> Result<(), WorkloadError> {
    if let Some((line, what)) = workload.recording.as_ref().and_then(|recording| recording.dangerous.clone()) {
        let path = spec.replay.as_ref().map_or_else(String::new, |path| path.display().to_string());
        return Err(WorkloadError::DangerousLine { path, line, what });
    }
    // What cannot be read is refused when it is loaded.
    let script = spec.script.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
    if let Some(inside) = script.as_deref().and_then(in_script) {
        return Err(WorkloadError::Dangerous { what: format!("a script with {inside}") });
    }
    let words = |command: &Command| command.template.sample(&Fill { key: 0, value: b"", seq: 0, now: 0 });
    match workload.commands.iter().find_map(|command| dangerous(&words(command))) {
        Some(what) => Err(WorkloadError::Dangerous { what }),
        None => Ok(()),
    }
}

/// A connection to each master that answers: a dead one among several is what some runs are about.
pub(super) fn open_masters(settings: &Settings, topology: &Topology) -> Result<Vec<Connection>, Error> {
    let (mut masters, mut failed) = (Vec::new(), None);
    for master in topology.masters() {
        match open(settings, &master.address) {
            Ok(master) => masters.push(master),
            Err(e) => failed = Some(e),
        }
    }
    if masters.is_empty() {
        return Err(failed.unwrap_or(Unfit::NoMaster.into()));
    }
    Ok(masters)
}

/// Loads a script into every master. Returns its digest.
fn load_script(masters: &mut [Connection], path: &Path) -> Result<String, Unfit> {
    let text = std::fs::read(path).map_err(|why| Unfit::ScriptUnreadable { path: path.into(), why })?;
    let mut sha = String::new();
    for master in masters {
        let load: [&[u8]; 3] = [b"SCRIPT", b"LOAD", &text];
        let loaded = master.call(&load).map_err(|why| Unfit::ScriptRefused { path: path.into(), why })?;
        sha = loaded.text().unwrap_or_default();
    }
    Ok(sha)
}

/// Whether there are replicas for the reads, reads for the replicas, and times for a recorded pace.
fn fits(settings: &Settings, topology: &Topology, workload: &Workload) -> Result<(), Unfit> {
    if settings.read_from != ReadFrom::Primary {
        if topology.nodes.iter().all(Node::owns_slots) {
            return Err(Unfit::NoReplica);
        }
        if !(0..workload.commands.len() as u16).any(|c| workload.reads(c)) {
            return Err(Unfit::NoReads);
        }
    }
    if settings.speed.is_some() && !workload.recording.as_ref().is_some_and(|r| r.timed) {
        return Err(Unfit::Untimed);
    }
    Ok(())
}

/// What the server knows of the commands: whether they exist, how many arguments they take, where their keys are,
/// whether replicas may answer them. Returns the first that writes.
fn ask_about_commands(master: &mut Connection, workload: &mut Workload) -> Result<Option<String>, Unfit> {
    let recorded = workload.recording.is_some();
    let names: Vec<String> =
        (workload.commands.iter()).map(|c| if recorded { c.name.to_uppercase() } else { c.template.name() }).collect();
    let mut ask = vec!["COMMAND".to_string(), "INFO".to_string()];
    ask.extend(names.iter().cloned());
    // A user who may not ask is believed.
    let Ok(answer) = master.call(&ask) else { return Ok(None) };
    let mut writes = None;
    for ((command, name), known) in workload.commands.iter_mut().zip(&names).zip(answer.items()) {
        let fields = known.items();
        if fields.is_empty() {
            if recorded {
                continue; // the recording is of another version: its errors will be counted
            }
            return Err(Unfit::UnknownCommand(name.clone()));
        }
        let flags: Vec<String> =
            fields.get(2).map_or(Vec::new(), |f| f.items().iter().filter_map(Value::text).collect());
        let is = |flag: &str| flags.iter().any(|f| f == flag);
        command.reads = is("readonly");
        command.blocks = is("blocking") || name.starts_with('B') && name != "BITCOUNT" && name != "BITPOS";
        command.writes = is("write");
        if command.writes {
            writes.get_or_insert(name.clone());
        }
        // Scripts write what they like, and XGROUP's subcommands have the flags (7.0+).
        command.writes |= matches!(name.as_str(), "EVAL" | "EVALSHA" | "FCALL" | "XGROUP");
        let places = Places::of(name, fields, is("movablekeys"));
        command.places = Some(places);
        if recorded {
            continue;
        }
        let (found, arity) =
            (command.template.arguments() as i64, fields.get(1).and_then(Value::integer).unwrap_or(-1));
        if arity > 0 && found != arity || found < -arity {
            return Err(Unfit::Arguments {
                name: name.clone(),
                takes: arity.abs() - 1,
                or_more: arity < 0,
                command: command.name.clone(),
                gives: found - 1,
            });
        }
        let words = command.template.sample(&Fill { key: 0, value: b"", seq: 0, now: 0 });
        command.key_at = places.among(&words).0.first().copied();
        (command.written_at, command.keys) = places.written(&words);
    }
    Ok(writes)
}
