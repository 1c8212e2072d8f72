//! From settings to a report: look at the deployment, check the workload against it, preload, run, collect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_client::{Connection, Options, Target, Value, address_target};
use unslow_interrupt::Guard;
use unslow_reactor::now_ns;
use unslow_topology::Info;
use unslow_units::{count, percent, time, time_us};

use crate::arrivals::Arrivals;
use crate::report::{
    CommandRun, Deployment, Errors, Event, Generator, Latency, Load, PubSub, Recorded, Report, Run, SCHEMA, Second,
    ServerRun, points, round,
};
use crate::route::{Map, Routes, look};
use crate::stats::Interval;
use crate::template::Fill;
use crate::worker::{QUEUE_FULL, Said, Shared, Summary, work};
use crate::workload::{Spec, Workload};

/// Which servers answer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadFrom {
    /// Masters.
    Primary,
    /// Replicas, where there are any up.
    Replica,
    /// Both, in turn.
    Any,
}

/// How application threads share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Each connection is a client of its own, with `pipeline` requests at once.
    Own,
    /// So many connections, one request under way on each, callers wait for a free one (Jedis).
    Pool(usize),
    /// One connection, the requests of all callers pipelined (Lettuce).
    Shared,
    /// So many of those.
    Multiplex(usize),
}

impl Model {
    /// Reads `own`, `pool:N`, `shared` or `multiplex:N`.
    pub fn parse(text: &str) -> Result<Model, String> {
        let count = |n: &str| n.parse::<usize>().ok().filter(|n| (1..=100_000).contains(n));
        let model = match text.split_once(':') {
            None if text == "own" => Some(Model::Own),
            None if text == "shared" => Some(Model::Shared),
            Some(("pool", n)) => count(n).map(Model::Pool),
            Some(("multiplex", n)) => count(n).map(Model::Multiplex),
            _ => None,
        };
        model.ok_or(format!("unknown client model {text:?}; there are own, pool:N, shared and multiplex:N"))
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Model::Own => f.write_str("own"),
            Model::Pool(n) => write!(f, "pool:{n}"),
            Model::Shared => f.write_str("shared"),
            Model::Multiplex(n) => write!(f, "multiplex:{n}"),
        }
    }
}

/// A whole benchmark, as a person asks for it.
#[derive(Clone)]
pub struct Settings {
    /// Where to.
    pub target: Target,
    /// Timeouts of the control connections, TLS, RESP version.
    pub options: Options,
    /// Commands, their mix, keys and values.
    pub spec: Spec,
    /// How connections are shared.
    pub model: Model,
    /// Connections to each server, for [`Model::Own`].
    pub connections: usize,
    /// Requests each of those has under way.
    pub pipeline: usize,
    /// Application threads.
    pub callers: Option<usize>,
    /// Threads of the generator.
    pub threads: usize,
    /// Open loop: requests per second, one rate or one for each step.
    pub rate: Option<Vec<f64>>,
    /// How they arrive.
    pub arrivals: Arrivals,
    /// Replay at the recorded pace, so many times as fast.
    pub speed: Option<f64>,
    /// Length of a run.
    pub length: Duration,
    /// Requests of a run, at most.
    pub requests: Option<u64>,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Which servers answer reads.
    pub read_from: ReadFrom,
    /// See [`Load::lateness_us_allowed`].
    pub lateness_max: Duration,
    /// Connections that listen to the channels of the built-in `publish`.
    pub subscribers: usize,
    /// Over shared memory, where the server runs with `unslow bypass`.
    pub rings: bool,
}

/// The same, for the threads.
pub struct Shape {
    /// Generator threads.
    pub threads: usize,
    /// Connections to each server.
    pub connections: usize,
    /// Whether a caller keeps to its own connection.
    pub own: bool,
    /// See [`Settings::rings`].
    pub rings: bool,
    /// Requests under way on a connection, at most.
    pub window: Option<usize>,
    /// Application threads.
    pub callers: Option<usize>,
    /// Open loop: the rates.
    pub steps: Option<Vec<f64>>,
    /// And how requests arrive.
    pub arrivals: Arrivals,
    /// Open loop by the recording's own times.
    pub replay_speed: Option<f64>,
    /// Length.
    pub length_ns: u64,
    /// Requests, at most.
    pub requests: Option<u64>,
    /// Longest silence.
    pub timeout_ns: u64,
    /// Which servers answer reads.
    pub read_from: ReadFrom,
    /// Sent first on every connection.
    pub greeting: Vec<Vec<String>>,
    /// Connections that subscribe to `channels`.
    pub subscribers: usize,
    /// A pattern.
    pub channels: String,
    /// TLS, and the name to expect where it is not the host.
    pub tls: Option<(Arc<rustls::ClientConfig>, Option<String>)>,
}

/// Why there is no run: a sentence that says what was found and what to do.
#[derive(Debug)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<unslow_client::Error> for Error {
    fn from(e: unslow_client::Error) -> Error {
        Error(e.to_string())
    }
}

/// What an observer is told while a run goes on.
pub enum Progress<'a> {
    /// Keys are written before the run.
    Preload {
        /// So far.
        done: u64,
        /// In all.
        total: u64,
    },
    /// A second is over: what it was like, and the latency of its requests in nanoseconds.
    Second(&'a Second, &'a Histogram<u64>),
    /// Something happened.
    Event(&'a Event),
}

/// The same on its way from the thread that collects.
enum News {
    Second(Second, Histogram<u64>),
    Event(Event),
}

/// A deployment and a workload that fit each other. While it lives, a signal ends the run that is going on: its results
/// so far, and those of the runs before it, are still reported.
pub struct Session {
    guard: Guard,
    settings: Settings,
    workload: Arc<Workload>,
    map: Map,
    version: String,
    at_ms: u64,
    load: Load,
    preloaded: u64,
    runs: u32,
}

fn guarded() -> Guard {
    unslow_interrupt::guard("ending the run; its results so far follow (Ctrl-C again: nothing follows)")
}

impl Settings {
    fn check(&self) -> Result<(), Error> {
        fn within(flag: &str, found: impl PartialOrd + std::fmt::Display, low: u64, high: u64) -> Result<(), Error> {
            let text = found.to_string();
            match text.parse::<f64>() {
                Ok(x) if x >= low as f64 && x <= high as f64 => Ok(()),
                _ => Err(Error(format!("{flag} {text}: it takes {low} to {high}"))),
            }
        }
        let bad = |text: &str| Err(Error(text.to_string()));
        within("--threads", self.threads, 1, 256)?;
        within("--connections", self.connections, 1, 200_000)?;
        within("--pipeline", self.pipeline, 1, 10_000)?;
        within("--callers", self.callers.unwrap_or(1), 1, 1_000_000)?;
        within("--subscribers", self.subscribers, 0, 100_000)?;
        within("--requests", self.requests.unwrap_or(1), 1, u64::MAX)?;
        if self.model != Model::Own && self.pipeline > 1 {
            return bad(
                "--pipeline needs connections of their own; with --model, the model decides how many requests are in \
                 flight",
            );
        }
        if self.model == Model::Own && self.callers.is_some() && self.rate.is_none() && self.speed.is_none() {
            return bad("--callers needs a model that shares connections: --model pool:8, shared or multiplex:4");
        }
        for rate in self.rate.iter().flatten() {
            if !(*rate > 0.0 && *rate <= 1e8) {
                return Err(Error(format!(
                    "--rate {rate}: it takes requests per second, more than 0 and at most 100000000"
                )));
            }
        }
        if self.rate.is_some() && self.speed.is_some() {
            return bad("--rate and --speed are two schedules; give one");
        }
        if self.length.is_zero() || self.length > Duration::from_secs(7 * 86_400) {
            return bad("--seconds takes more than 0 and at most a week (604800)");
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(3600) {
            return bad("--timeout takes seconds, more than 0 and at most 3600");
        }
        if self.subscribers > 0 && !self.spec.mix.contains_key("publish") {
            return bad("--subscribers listen to what the built-in publish sends; add it: --mix publish=1");
        }
        let lanes = self.lanes();
        if self.threads > lanes {
            return Err(Error(format!(
                "{} threads cannot share {lanes} connection{}; give --threads {lanes}",
                self.threads,
                if lanes == 1 { "" } else { "s" }
            )));
        }
        if self.callers.is_some_and(|c| c < self.threads) {
            return bad("each thread needs a caller: give --callers at least as many as --threads");
        }
        Ok(())
    }

    /// Connections to each server.
    fn lanes(&self) -> usize {
        match self.model {
            Model::Own => self.connections,
            Model::Pool(n) | Model::Multiplex(n) => n,
            Model::Shared => 1,
        }
    }

    fn shape(&self) -> Result<Shape, Error> {
        let open = self.rate.is_some() || self.speed.is_some();
        let lanes = self.lanes();
        let window = match self.model {
            Model::Own => Some(self.pipeline),
            Model::Pool(_) => Some(1),
            Model::Shared | Model::Multiplex(_) => None,
        };
        let callers = match (self.model, open) {
            (Model::Own, false) => Some(lanes),
            (_, false) => Some(self.callers.unwrap_or(32).max(self.threads)),
            (_, true) => self.callers,
        };
        let target = &self.target;
        let mut greeting: Vec<Vec<String>> = Vec::new();
        if target.password.is_some() || target.user.is_some() {
            let mut auth = vec!["AUTH".to_string()];
            auth.extend(target.user.clone());
            auth.push(target.password.as_ref().map_or(String::new(), |p| p.reveal().to_string()));
            greeting.push(auth);
        }
        if self.options.protocol == 3 {
            greeting.push(vec!["HELLO".into(), "3".into()]);
        }
        if target.db != 0 {
            greeting.push(vec!["SELECT".into(), target.db.to_string()]);
        }
        let tls = match target.tls {
            true => Some((self.options.tls.client_config()?, self.options.tls.server_name.clone())),
            false => None,
        };
        Ok(Shape {
            threads: self.threads,
            connections: lanes,
            rings: self.rings,
            own: self.model == Model::Own && !open,
            window,
            callers,
            steps: self.rate.clone(),
            arrivals: self.arrivals,
            replay_speed: self.speed,
            length_ns: self.length.as_nanos() as u64,
            requests: self.requests,
            timeout_ns: self.timeout.as_nanos() as u64,
            read_from: self.read_from,
            greeting,
            subscribers: self.subscribers,
            channels: pattern(&self.spec.key_prefix),
            tls,
        })
    }
}

/// The channels of the built-in `publish`; what has a meaning in a pattern is taken literally.
fn pattern(prefix: &str) -> String {
    let mut out = String::new();
    for c in prefix.chars() {
        if "*?[]\\".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out + "channel:*"
}

impl Session {
    /// Looks at the deployment, compiles the workload, asks the server whether it knows the commands, and preloads.
    pub fn prepare(settings: Settings, observer: &mut dyn FnMut(Progress)) -> Result<Session, Error> {
        settings.check()?;
        // What is wrong with the workload is said before anyone is asked.
        let drafted = Workload::compile(&settings.spec, settings.spec.script.as_ref().map(|_| "0"));
        drafted.map_err(Error)?;
        let map = look(&settings.target, &settings.options)?;
        // A dead master among several is what some runs are about.
        let opened: Vec<_> = map.nodes[..map.masters].iter().map(|address| open(&settings, address)).collect();
        let mut masters = Vec::new();
        let mut failed = None;
        for master in opened {
            match master {
                Ok(master) => masters.push(master),
                Err(e) => failed = Some(e),
            }
        }
        if masters.is_empty() {
            return Err(failed.unwrap_or(Error("no master is known".into())));
        }
        let info = masters[0].call(&["INFO"]).map(|v| Info::parse(&v.text().unwrap_or_default())).ok();
        let version = info.as_ref().map_or("unknown".to_string(), |info| {
            let (major, minor, patch) = info.version().unwrap_or_default();
            format!("{} {major}.{minor}.{patch}", info.product())
        });
        if info.as_ref().and_then(|i| i.get("loading")) == Some("1") {
            return Err(Error(format!(
                "{}: the server is reading its data set; wait until it has (INFO persistence)",
                masters[0].peer()
            )));
        }
        let sha = match &settings.spec.script {
            Some(path) => {
                let text = std::fs::read(path).map_err(|e| Error(format!("{}: {e}", path.display())))?;
                let mut sha = String::new();
                for master in &mut masters {
                    let load: [&[u8]; 3] = [b"SCRIPT", b"LOAD", &text];
                    sha = master
                        .call(&load)
                        .map_err(|e| Error(format!("{}: the server does not take the script: {e}", path.display())))?
                        .text()
                        .unwrap_or_default();
                }
                Some(sha)
            }
            None => None,
        };
        let mut workload = Workload::compile(&settings.spec, sha.as_deref()).map_err(Error)?;
        let writes = ask_about_commands(&mut masters[0], &mut workload)?;
        let is_replica = info.as_ref().and_then(Info::role) == Some("slave");
        if is_replica && let Some(write) = writes {
            return Err(Error(format!(
                "{} is a replica, and {write} writes; give its master's address, or a mix that only reads with \
                 --no-preload",
                masters[0].peer()
            )));
        }
        if settings.read_from != ReadFrom::Primary {
            if map.nodes.len() == map.masters {
                return Err(Error("no replica is known there that reads could be sent to".into()));
            }
            if !(0..workload.commands.len() as u16).any(|c| workload.reads(c)) {
                return Err(Error(
                    "nothing in the mix is a read that replicas may answer (by COMMAND INFO; a block is \
                                  as much as its worst command)"
                        .into(),
                ));
            }
        }
        if settings.speed.is_some() && !workload.recording.as_ref().is_some_and(|r| r.timed) {
            return Err(Error(
                "--speed needs a recording with times (--replay of MONITOR's output); use --rate".into(),
            ));
        }
        let load = Load {
            open_loop: settings.rate.is_some() || settings.speed.is_some(),
            rate_per_s: settings.rate.clone().unwrap_or_default(),
            arrivals: settings.rate.as_ref().map(|_| settings.arrivals).or(settings.speed.map(|_| Arrivals::Recorded)),
            model: settings.model.to_string(),
            connections: settings.lanes(),
            in_flight_max: settings.shape()?.window,
            callers: settings.shape()?.callers,
            threads: settings.threads,
            timeout_s: settings.timeout.as_secs_f64(),
            read_from: serde_json::to_value(settings.read_from)
                .ok()
                .and_then(|v| v.as_str().map(str::to_string))
                .unwrap_or_default(),
            length_s: settings.length.as_secs_f64(),
            requests_max: settings.requests,
            subscribers: settings.subscribers,
            protocol: settings.options.protocol,
            tls: settings.target.tls,
            speed: settings.speed,
            lateness_us_allowed: settings.lateness_max.as_nanos() as f64 / 1e3,
        };
        let preload = settings.spec.preload.unwrap_or_else(|| workload.wants_preload() && !is_replica);
        let (guard, workload) = (guarded(), Arc::new(workload));
        let mut session = Session { guard, settings, workload, map, version, at_ms: 0, load, preloaded: 0, runs: 0 };
        session.probe(&mut masters)?;
        drop(masters);
        if preload {
            session.preload(observer)?;
        }
        if session.guard.asked() {
            return Err(Error("interrupted before the first run; nothing was measured".into()));
        }
        Ok(session)
    }

    /// Sends each kind of read once: what the server refuses it would refuse a million times. Nothing is written.
    fn probe(&self, masters: &mut [Connection]) -> Result<(), Error> {
        if self.workload.recording.is_some() {
            return Ok(());
        }
        for command in self.workload.commands.iter().filter(|c| c.reads && !c.blocks) {
            let words = command.template.sample(&Fill { key: 0, value: b"x", seq: 0, now: 0 });
            let mut said = None;
            // In a cluster one of the masters has the slot.
            for master in masters.iter_mut() {
                match master.call(&words) {
                    Err(e) if e.message.contains("MOVED ") || e.message.contains("ASK ") => {}
                    other => {
                        said = Some(other);
                        break;
                    }
                }
            }
            let Some(Err(e)) = said else { continue };
            let hint = match e.message.as_str() {
                m if m.contains("WRONGTYPE") => "; keys of another type stand there: give another --key-prefix",
                m if m.contains("CLUSTERDOWN") => continue, // how that goes on is what the run may be about
                _ => "",
            };
            return Err(Error(format!("the server refuses {:?}: {e}{hint}", command.name)));
        }
        Ok(())
    }

    /// Writes every key once.
    fn preload(&mut self, observer: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let total = self.settings.spec.keys;
        observer(Progress::Preload { done: 0, total });
        // As much at once as goes fast, and no more than some megabytes of it.
        let pipeline = ((1 << 20) / (self.workload.value_max() + 64)).clamp(1, 64);
        let mut settings = Settings {
            model: Model::Own,
            connections: self.settings.threads * 4,
            pipeline,
            callers: None,
            rate: None,
            speed: None,
            requests: Some(total),
            subscribers: 0,
            length: Duration::from_secs(6 * 3600),
            read_from: ReadFrom::Primary,
            ..self.settings.clone()
        };
        settings.spec.replay = None;
        let workload = Workload::preload(&settings.spec).map_err(Error)?;
        let session = Session {
            guard: guarded(),
            workload: Arc::new(workload),
            map: self.map.clone(),
            version: String::new(),
            at_ms: 0,
            load: self.load.clone(),
            settings,
            preloaded: 0,
            runs: 0,
        };
        let mut done = 0;
        let (run, _) = session.run_once(&mut |progress| {
            if let Progress::Second(second, _) = progress {
                done += second.answered;
                observer(Progress::Preload { done, total });
            }
        })?;
        if run.interrupted {
            return Err(Error("interrupted while keys were written before the run; nothing was measured".into()));
        }
        if run.answered < total {
            let why = run.errors.first().map_or(String::new(), |e| format!(": {}", e.example));
            return Err(Error(format!(
                "{} of {total} keys could not be written before the run{why}; --no-preload measures without them",
                total - run.answered
            )));
        }
        observer(Progress::Preload { done: total, total });
        self.preloaded = total;
        Ok(())
    }

    /// Whether it was asked to end: no further run should begin.
    pub fn asked_to_end(&self) -> bool {
        self.guard.asked()
    }

    /// Setting it ends this session's run as a signal does.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.guard.flag()
    }

    /// One run, and the latency of all its requests in nanoseconds.
    pub fn run(&mut self, observer: &mut dyn FnMut(Progress)) -> Result<(Run, Histogram<u64>), Error> {
        if self.at_ms == 0 {
            self.at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        }
        // Masters may be others than before the last run.
        if self.runs > 0
            && let Ok(map) = look(&self.settings.target, &self.settings.options)
        {
            self.map = map;
        }
        self.runs += 1;
        self.run_once(observer)
    }

    /// A short run that is thrown away: what is cold, on both sides, gets warm.
    pub fn warm_up(&mut self) -> Result<(), Error> {
        let settings = Settings {
            length: self.settings.length.min(Duration::from_secs(1)),
            requests: None,
            ..self.settings.clone()
        };
        let whole = std::mem::replace(&mut self.settings, settings);
        let ran = self.run_once(&mut |_| {});
        self.settings = whole;
        ran.map(|_| ())
    }

    /// The document of these runs.
    pub fn report(&self, runs: Vec<Run>) -> Report {
        Report {
            schema: SCHEMA.into(),
            target: self.settings.target.address(),
            at_ms: self.at_ms,
            deployment: Deployment {
                kind: self.map.kind,
                version: self.version.clone(),
                masters: self.map.masters,
                replicas: self.map.nodes.len() - self.map.masters,
            },
            workload: self.settings.spec.clone(),
            load: self.load.clone(),
            preloaded_keys: self.preloaded,
            recording: self
                .workload
                .recording
                .as_ref()
                .map(|r| Recorded { commands: r.commands(), left_out: r.left_out }),
            pair: None,
            runs,
        }
    }

    fn run_once(&self, observer: &mut dyn FnMut(Progress)) -> Result<(Run, Histogram<u64>), Error> {
        raise_file_limit();
        let threads = self.settings.threads;
        let shared = Arc::new(Shared {
            workload: self.workload.clone(),
            routes: Routes::new(self.map.clone()),
            shape: self.settings.shape()?,
            start: AtomicU64::new(0),
            ready: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let events: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
        let (said, heard) = channel();
        std::thread::scope(|scope| {
            let mut spares = Vec::new();
            for index in 0..threads {
                let (give, take) = channel();
                for _ in 0..2 {
                    let _ = give.send(Box::new(Interval::new(self.workload.commands.len())));
                }
                spares.push(give);
                let said = said.clone();
                let (own, name) = (shared.clone(), format!("load-{index}"));
                let begun =
                    std::thread::Builder::new().name(name).spawn_scoped(scope, move || work(own, index, said, take));
                if let Err(e) = begun {
                    shared.stop.store(true, Ordering::Release);
                    return Err(Error(format!("thread {index} of the generator could not be started: {e}")));
                }
            }
            drop(said);
            let tell = |sentences: Vec<String>| {
                let now = now_ns();
                events.lock().expect("no thread panicked").extend(sentences.into_iter().map(|s| (now, s)));
            };
            let (scouted, target, options) = (&shared, &self.settings.target, &self.settings.options);
            scope.spawn(move || scouted.routes.scout(target, options, &tell));
            // Adding up a second takes a millisecond. On a processor that it shares with a generator's thread that
            // would be a millisecond of lateness, so it is done in what is left over (nice belongs to a thread on
            // Linux).
            let (tell, told) = channel();
            let (collected, marked) = (&shared, &events);
            let collector = scope.spawn(move || {
                let _ = rustix::process::nice(19);
                let run = self.collect(collected, heard, &spares, marked, &mut |news| {
                    let _ = tell.send(news);
                });
                collected.stop.store(true, Ordering::Release);
                collected.routes.end();
                run
            });
            for news in told {
                observer(match &news {
                    News::Second(second, latency) => Progress::Second(second, latency),
                    News::Event(event) => Progress::Event(event),
                });
            }
            collector
                .join()
                .unwrap_or_else(|_| Err(Error("the generator's collector died; this is a defect of unslow".into())))
        })
    }

    fn collect(
        &self,
        shared: &Shared,
        heard: Receiver<Said>,
        spares: &[Sender<Box<Interval>>],
        events: &Mutex<Vec<(u64, String)>>,
        tell: &mut dyn FnMut(News),
    ) -> Result<(Run, Histogram<u64>), Error> {
        let threads = self.settings.threads;
        let mut summaries: Vec<Summary> = Vec::new();
        // All connections stand before the clock starts.
        while shared.ready.load(Ordering::Acquire) < threads {
            match heard.recv_timeout(Duration::from_millis(5)) {
                Ok(Said::Ended(summary)) => {
                    let why = summary.failed.unwrap_or("interrupted before the run began".into());
                    return Err(Error(why));
                }
                Ok(Said::Interval(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error("the generator's threads ended".into())),
            }
            if self.guard.asked() {
                shared.stop.store(true, Ordering::Release);
            }
        }
        let before = self.look_at_servers();
        let mut total = Interval::new(self.workload.commands.len());
        // Late enough that nobody is still busy with getting ready.
        let start = now_ns() + 10_000_000;
        shared.start.store(start, Ordering::Release);
        shared.routes.wake_all();
        let mut open: BTreeMap<u32, (usize, Box<Interval>)> = BTreeMap::new();
        let mut timeline: Vec<Second> = Vec::new();
        let mut marks: Vec<Event> = Vec::new();
        let mut spare = 0;
        let mut finish = |interval: Box<Interval>, total: &mut Interval, tell: &mut dyn FnMut(News)| {
            let mut interval = interval;
            let latency = interval.all();
            let second = Second::of(&interval, &latency);
            for (at, text) in std::mem::take(&mut interval.marks) {
                let event = Event { at_s: round(at as f64 / 1e9), text };
                // Every thread has noticed it.
                if !marks.iter().any(|m: &Event| m.text == event.text && (m.at_s - event.at_s).abs() < 1.0) {
                    tell(News::Event(event.clone()));
                    marks.push(event);
                }
            }
            for ((node, why), (count, at)) in &interval.lost {
                let plural = if *count == 1 { "" } else { "s" };
                let event = Event {
                    at_s: round(*at as f64 / 1e9),
                    text: format!("{count} connection{plural} to {node} lost: {why}"),
                };
                tell(News::Event(event.clone()));
                marks.push(event);
            }
            tell(News::Second(second.clone(), latency));
            total.add(&interval);
            timeline.push(second);
            interval.reset();
            // Whoever needs it next; a thread without one makes it itself.
            let _ = spares[spare % spares.len()].send(interval);
            spare += 1;
        };
        let mut interrupted = false;
        let mut told = 0;
        while summaries.len() < threads {
            match heard.recv_timeout(Duration::from_millis(100)) {
                Ok(Said::Interval(interval)) => {
                    let second = interval.second;
                    match open.get_mut(&second) {
                        Some((count, sum)) => {
                            sum.add(&interval);
                            *count += 1;
                            let mut interval = interval;
                            interval.reset();
                            let _ = spares[*count % spares.len()].send(interval);
                        }
                        None => {
                            open.insert(second, (1, interval));
                        }
                    }
                    while let Some(entry) = open.first_entry()
                        && entry.get().0 == threads
                    {
                        let (_, (_, interval)) = open.pop_first().expect("there is a first");
                        finish(interval, &mut total, tell);
                    }
                }
                Ok(Said::Ended(summary)) => {
                    if let Some(why) = &summary.failed {
                        return Err(Error(why.clone()));
                    }
                    summaries.push(summary);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let news = events.lock().expect("no thread panicked");
            for (at, text) in &news[told..] {
                tell(News::Event(Event { at_s: since(*at, start), text: text.clone() }));
            }
            told = news.len();
            drop(news);
            if self.guard.asked() && !interrupted {
                interrupted = true;
                shared.stop.store(true, Ordering::Release);
                shared.routes.wake_all();
            }
        }
        for (_, (_, interval)) in std::mem::take(&mut open) {
            finish(interval, &mut total, tell);
        }
        let took = summaries.iter().map(|s| s.took_ns).max().unwrap_or(0) as f64 / 1e9;
        interrupted |= self.guard.asked();
        // A schedule lasts as long as it lasts, even where its last request comes before its end.
        let scheduled = self.load.open_loop && self.settings.requests.is_none() && !interrupted;
        let seconds = if scheduled { took.max(self.settings.length.as_secs_f64()) } else { took };
        // A last second in which nothing was left to do is no second of the run.
        timeline.retain(|s| f64::from(s.at_s) < seconds || s.answered + s.errors > 0);
        let after = self.look_at_servers();
        marks.extend(
            events
                .lock()
                .expect("no thread panicked")
                .iter()
                .map(|(at, text)| Event { at_s: since(*at, start), text: text.clone() }),
        );
        marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let all = total.all();
        let run = self.judge(total, timeline, marks, &summaries, seconds, interrupted, servers(&before, &after));
        Ok((run, all))
    }

    #[allow(clippy::too_many_arguments)] // the parts of one run, used once
    fn judge(
        &self,
        total: Interval,
        timeline: Vec<Second>,
        events: Vec<Event>,
        summaries: &[Summary],
        seconds: f64,
        interrupted: bool,
        servers: Vec<ServerRun>,
    ) -> Run {
        let all = total.all();
        let counts = total.counts;
        let refused = total.refused.len();
        let load_s = summaries.iter().map(|s| s.load_ns).max().unwrap_or(0) as f64 / 1e9;
        let drain_s = round((seconds - load_s).max(0.0));
        let requests = counts.answered + refused + counts.unanswered;
        let cpu_ns: u64 = summaries.iter().map(|s| s.cpu_ns).sum();
        let busy: Vec<f64> =
            summaries.iter().map(|s| round(s.cpu_ns as f64 / s.took_ns.max(1) as f64)).map(|b| b.min(1.0)).collect();
        let lateness = (self.load.open_loop).then(|| Latency::of(&total.lateness));
        let throughput = if seconds > 0.0 { counts.answered as f64 / seconds } else { 0.0 };
        let (mut valid, mut doubts) = (true, Vec::new());
        if let Some(late) = &lateness
            && late.us_p99_9 > self.load.lateness_us_allowed
        {
            valid = false;
            doubts.push(format!(
                "invalid: the generator itself was late (p99.9 {}, at most {} are allowed); its latency is in these \
                 figures. Give it --threads, a processor of its own, or a lower --rate",
                time_us(late.us_p99_9),
                time_us(self.load.lateness_us_allowed)
            ));
        }
        if let Some(late) = lateness.as_ref().filter(|_| valid)
            && late.us_p99_9 > 200.0
            && late.us_p99_9 > 0.2 * Latency::of(&all).us_p99_9
        {
            doubts.push(format!(
                "the generator itself was up to {} late at p99.9, which is in the tail above; a busy machine does that",
                time_us(late.us_p99_9)
            ));
        }
        if !self.load.open_loop && busy.iter().any(|b| *b > 0.95) {
            doubts.push(format!(
                "the generator was the bottleneck: a thread of it was busy {} of the time; give it --threads {}",
                percent(busy.iter().copied().fold(0.0, f64::max)),
                self.settings.threads * 2
            ));
        }
        let asked: f64 = self.load.rate_per_s.iter().sum::<f64>() / self.load.rate_per_s.len().max(1) as f64;
        let queue_full = total.errors.iter().any(|k| k.name == QUEUE_FULL);
        if queue_full {
            valid = false;
            doubts.push(
                "invalid: more requests waited than could be kept; those that were dropped are in no percentile".into(),
            );
        }
        // Who keeps up has answered all but the last ones when the load ends.
        let behind = drain_s > (load_s * 0.02).max(0.1) || counts.unanswered * 100 > requests;
        if self.load.open_loop && !interrupted && (behind || queue_full) {
            let waited = !total.wait.is_empty() && total.wait.mean() > 0.5 * all.mean();
            let why = match (valid, waited) {
                (false, _) if !queue_full => "the generator did not keep up",
                (_, true) => {
                    "the servers did not keep up on these connections (requests waited for one: --connections)"
                }
                _ => "the servers did not keep up",
            };
            let asked = if asked > 0.0 {
                format!("{} requests/s were asked for and {}/s answered", count(asked), count(throughput))
            } else {
                "the recording's pace was not kept".into()
            };
            let late = time_us(drain_s * 1e6);
            doubts.push(format!("{asked}: {why}; the last answer came {late} after the end of the load"));
        }
        for (command, (latency, nulls)) in self.workload.commands.iter().zip(total.latency.iter().zip(&total.nulls)) {
            let share = *nulls as f64 / latency.len().max(1) as f64;
            if command.template.name() == "GET" && share > 0.5 {
                doubts.push(format!(
                    "{} of {}'s answers were null: the keys are not there (--preload writes them)",
                    percent(share),
                    command.name
                ));
            }
        }
        if self.workload.verify && counts.verified < counts.answered / 1000 {
            doubts.push(format!(
                "only {} values could be compared: values of 64 KiB and more mostly cannot",
                counts.verified
            ));
        }
        if counts.wrong > 0 {
            valid = false;
            doubts.push(format!(
                "invalid: {} of {} values were not the value that this seed writes (--seed {}); were the keys written \
                 by another run?",
                counts.wrong, counts.verified, self.settings.spec.seed
            ));
        }
        if counts.unanswered > 0 {
            doubts.push(format!(
                "{} requests were never answered; they are in the latency at the age they were given up",
                counts.unanswered
            ));
        }
        if counts.answered == 0 {
            valid = false;
            doubts.push(match total.errors.iter().max_by_key(|k| k.count) {
                Some(kind) => format!("invalid: no request was answered; most went wrong like this: {}", kind.example),
                None => "invalid: no request was answered".into(),
            });
        }
        let published: u64 = (self.workload.commands.iter().zip(&total.latency))
            .filter(|(c, _)| c.template.name() == "PUBLISH")
            .map(|(_, h)| h.len())
            .sum::<u64>()
            .saturating_sub(counts.unanswered);
        if self.settings.subscribers > 0 && total.delivered.len() < published * self.settings.subscribers as u64 {
            doubts.push(format!(
                "of {} messages {} reached a subscriber",
                published * self.settings.subscribers as u64,
                total.delivered.len()
            ));
        }
        if !self.load.open_loop && all.max() > 100_000_000 && all.max() > 20 * all.value_at_quantile(0.5) {
            doubts.push(format!(
                "closed loop: while an answer took {} its caller asked nothing else, so these percentiles leave out \
                 what would have waited; --rate does not",
                time(Duration::from_nanos(all.max()))
            ));
        }
        let cpu_s: Option<f64> =
            servers.iter().map(|s| s.cpu_s).collect::<Option<Vec<f64>>>().map(|s| s.iter().sum()).filter(|s| *s > 0.1);
        Run {
            seconds: round(seconds),
            drain_s,
            requests,
            answered: counts.answered,
            refused,
            unanswered: counts.unanswered,
            throughput_per_s: round(throughput),
            latency: Latency::of(&all),
            percentiles: points(&all),
            commands: self
                .workload
                .commands
                .iter()
                .zip(total.latency.iter().zip(&total.nulls))
                .map(|(c, (h, nulls))| CommandRun {
                    name: c.name.clone(),
                    latency: Latency::of(h),
                    null_share: round(*nulls as f64 / h.len().max(1) as f64),
                })
                .collect(),
            pool_wait: (!total.wait.is_empty()).then(|| Latency::of(&total.wait)),
            lateness,
            refused_latency: (refused > 0).then(|| Latency::of(&total.refused)),
            errors: {
                let mut errors: Vec<Errors> = total
                    .errors
                    .iter()
                    .map(|k| Errors { kind: k.name.clone(), count: k.count, example: k.example.clone() })
                    .collect();
                errors.sort_by_key(|e| std::cmp::Reverse(e.count));
                errors
            },
            verified_values: counts.verified,
            wrong_values: counts.wrong,
            moved: counts.moved,
            ask: counts.ask,
            received_bytes_per_s: if seconds > 0.0 { (counts.received as f64 / seconds).round() } else { 0.0 },
            valid,
            doubts,
            interrupted,
            generator: Generator {
                cpu_us_per_request: round(cpu_ns as f64 / 1e3 / requests.max(1) as f64),
                thread_busy_share: busy,
            },
            server_cpu_us_per_request: cpu_s
                .filter(|_| counts.answered + refused > 0)
                .map(|s| round(s * 1e6 / (counts.answered + refused) as f64)),
            servers,
            timeline,
            events,
            pubsub: (self.settings.subscribers > 0).then(|| PubSub {
                subscribers: self.settings.subscribers,
                delivered: total.delivered.len(),
                expected: published * self.settings.subscribers as u64,
                latency: Latency::of(&total.delivered),
            }),
        }
    }

    /// CPU and commands of every server of the map, as far as they answer.
    fn look_at_servers(&self) -> Vec<Looked> {
        let map = &self.map;
        let wanted = if self.settings.read_from == ReadFrom::Primary { map.masters } else { map.nodes.len() };
        std::thread::scope(|scope| {
            let asked: Vec<_> = map.nodes[..wanted]
                .iter()
                .enumerate()
                .map(|(i, address)| {
                    let role = if i < map.masters { "master" } else { "replica" };
                    scope.spawn(move || {
                        let info = open(&self.settings, address)
                            .ok()
                            .and_then(|mut c| c.call(&["INFO"]).ok())
                            .map(|v| Info::parse(&v.text().unwrap_or_default()));
                        let proc_ticks = info.as_ref().and_then(proc_ticks);
                        Looked { address: address.clone(), role, at: now_ns(), info, proc_ticks }
                    })
                })
                .collect();
            asked.into_iter().filter_map(|a| a.join().ok()).collect()
        })
    }
}

struct Looked {
    address: String,
    role: &'static str,
    at: u64,
    info: Option<Info>,
    /// User and kernel time in clock ticks, of a server on this machine.
    proc_ticks: Option<u64>,
}

/// The server's CPU time by /proc, where its process id is one of this machine's and the same program.
fn proc_ticks(info: &Info) -> Option<u64> {
    let pid = info.number("process_id")? as u32;
    let here = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if here.file_name()? != std::path::Path::new(info.get("executable")?).file_name()? {
        return None;
    }
    unslow_process::stat(pid).map(|stat| unslow_process::cpu_ticks(&stat))
}

fn since(at: u64, start: u64) -> f64 {
    round((at as f64 - start as f64) / 1e9)
}

fn servers(before: &[Looked], after: &[Looked]) -> Vec<ServerRun> {
    before
        .iter()
        .zip(after)
        .map(|(a, b)| {
            let seconds = (b.at - a.at) as f64 / 1e9;
            let number = |l: &Looked, name: &str| l.info.as_ref()?.get(name)?.parse::<f64>().ok();
            let both = |name: &str| Some(number(b, name)? - number(a, name)?);
            // A server that was started anew in between counts from zero.
            let cpu = both("used_cpu_user").zip(both("used_cpu_sys")).map(|(u, s)| u + s).filter(|c| *c >= 0.0);
            let commands = both("total_commands_processed").filter(|c| *c >= 0.0).map(|c| c as u64);
            ServerRun {
                address: a.address.clone(),
                role: a.role.into(),
                cpu_s: cpu,
                cpu_share: cpu.map(|c| round(c / seconds)),
                cpu_share_proc: a
                    .proc_ticks
                    .zip(b.proc_ticks)
                    .and_then(|(a, b)| b.checked_sub(a))
                    .map(|ticks| round(unslow_process::seconds(ticks) / seconds)),
                commands,
                cpu_us_per_command: cpu.zip(commands).filter(|(_, n)| *n > 0).map(|(c, n)| round(c * 1e6 / n as f64)),
            }
        })
        .collect()
}

fn open(settings: &Settings, address: &str) -> Result<Connection, Error> {
    let target = match address.strip_prefix("unix:") {
        Some(path) => Target { service: None, ..settings.target.at(unslow_client::Endpoint::Unix(path.into())) },
        None => {
            let plain = Target { service: None, ..settings.target.clone() };
            address_target(&plain, address).ok_or_else(|| Error(format!("invalid address {address:?}")))?
        }
    };
    Ok(Connection::open(&target, &settings.options)?)
}

/// What the server knows of the commands: whether they exist, how many arguments they take, where their keys are,
/// whether replicas may answer them. Returns the first that writes.
fn ask_about_commands(master: &mut Connection, workload: &mut Workload) -> Result<Option<String>, Error> {
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
            return Err(Error(format!("the server knows no command {name}; is it a module's, or misspelt?")));
        }
        let flags: Vec<String> =
            fields.get(2).map_or(Vec::new(), |f| f.items().iter().filter_map(Value::text).collect());
        let is = |flag: &str| flags.iter().any(|f| f == flag);
        command.reads = is("readonly");
        command.blocks = is("blocking") || name.starts_with('B') && name != "BITCOUNT" && name != "BITPOS";
        if is("write") {
            writes.get_or_insert(name.clone());
        }
        if recorded {
            continue;
        }
        let (found, arity) =
            (command.template.arguments() as i64, fields.get(1).and_then(Value::integer).unwrap_or(-1));
        if arity > 0 && found != arity || found < -arity {
            let least = if arity < 0 { "at least " } else { "" };
            return Err(Error(format!(
                "{name} takes {least}{} argument(s) and the command {:?} gives it {}; look at its template",
                arity.abs() - 1,
                command.name,
                found - 1
            )));
        }
        let first = fields.get(3).and_then(Value::integer).unwrap_or(0);
        command.key_at = match name.as_str() {
            // Their keys are told by a count in the third argument.
            "EVAL" | "EVALSHA" | "FCALL" | "EVAL_RO" | "EVALSHA_RO" | "FCALL_RO" => (found > 3).then_some(3),
            _ if first > 0 => Some(first as usize),
            _ => None,
        };
    }
    Ok(writes)
}

/// As many open files as this user may have: connections are files.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(at_s: u64, user: f64, sys: f64, commands: u64) -> Looked {
        let info = format!("used_cpu_user:{user}\nused_cpu_sys:{sys}\ntotal_commands_processed:{commands}\n");
        Looked {
            address: "10.0.0.1:6379".into(),
            role: "master",
            at: at_s * 1_000_000_000,
            info: Some(Info::parse(&info)),
            proc_ticks: Some(at_s * rustix::param::clock_ticks_per_second()),
        }
    }

    #[test]
    fn a_servers_cpu_is_what_it_used_in_between_for_each_of_its_commands() {
        let [before, after] = [looked(10, 1.0, 0.5, 1000), looked(12, 1.75, 0.75, 101_000)];
        let seen = &servers(&[before], &[after])[0];
        assert_eq!((seen.cpu_s, seen.cpu_share, seen.cpu_share_proc), (Some(1.0), Some(0.5), Some(1.0)));
        assert_eq!((seen.commands, seen.cpu_us_per_command), (Some(100_000), Some(10.0)));
        // One that was started in between counts from zero, and is not seen at all while it is down.
        let [before, after] = [looked(10, 1.0, 0.5, 1000), looked(12, 0.2, 0.1, 50)];
        let anew = &servers(&[before], &[after])[0];
        assert_eq!((anew.cpu_s, anew.commands, anew.cpu_us_per_command), (None, None, None));
        let [before, after] = [looked(10, 1.0, 0.5, 1000), Looked { info: None, ..looked(12, 0.0, 0.0, 0) }];
        let down = &servers(&[before], &[after])[0];
        assert_eq!((down.cpu_s, down.cpu_share, down.commands), (None, None, None));
    }

    /// A session that has not asked anybody anything, and never will.
    fn session(rate: Option<f64>) -> Session {
        let settings = Settings {
            target: Target::parse("redis://10.0.0.1:6379").unwrap(),
            options: Options::default(),
            spec: Spec::default(),
            model: Model::Own,
            connections: 8,
            pipeline: 1,
            callers: None,
            threads: 1,
            rate: rate.map(|r| vec![r]),
            arrivals: Arrivals::Constant,
            speed: None,
            length: Duration::from_secs(1),
            requests: None,
            timeout: Duration::from_secs(3),
            read_from: ReadFrom::Primary,
            lateness_max: Duration::from_millis(5),
            subscribers: 0,
            rings: false,
        };
        let map = Map {
            kind: unslow_topology::DeploymentKind::Standalone,
            nodes: vec!["10.0.0.1:6379".into()],
            masters: 1,
            replicas: vec![Vec::new()],
            slots: vec![0; usize::from(unslow_topology::SLOTS)],
        };
        let workload = Arc::new(Workload::compile(&settings.spec, None).unwrap());
        let load = crate::report::tests::load(rate);
        let version = String::new();
        Session { guard: guarded(), settings, workload, map, version, at_ms: 0, load, preloaded: 0, runs: 0 }
    }

    /// 1,000 answers, each within a millisecond, which nobody was late for.
    fn total() -> Interval {
        let mut total = Interval::new(2);
        total.latency[0].record_n(1_000_000, 1000).unwrap();
        total.lateness.record_n(10_000, 1000).unwrap();
        total.counts.answered = 1000;
        total
    }

    /// Judged after a load of a second; the last answer came so much later, and the thread ran for so long.
    fn judged(rate: Option<f64>, total: Interval, drain_s: f64, busy_s: f64) -> Run {
        let seconds = 1.0 + drain_s;
        let ns = |s: f64| (s * 1e9) as u64;
        let summary = Summary { cpu_ns: ns(busy_s), took_ns: ns(seconds), load_ns: ns(1.0), failed: None };
        session(rate).judge(total, Vec::new(), Vec::new(), &[summary], seconds, false, Vec::new())
    }

    const RATE: Option<f64> = Some(1000.0);

    #[test]
    fn a_plain_run_has_no_doubts_and_its_figures_add_up() {
        let run = judged(RATE, total(), 0.0, 0.2);
        assert!(run.valid && run.doubts.is_empty(), "{:?}", run.doubts);
        assert_eq!((run.requests, run.answered, run.refused, run.unanswered), (1000, 1000, 0, 0));
        assert_eq!((run.throughput_per_s, run.seconds, run.drain_s), (1000.0, 1.0, 0.0));
        assert_eq!((run.generator.cpu_us_per_request, &run.generator.thread_busy_share[..]), (200.0, &[0.2][..]));
        assert_eq!((run.latency.count, run.commands[0].latency.count, run.commands[1].latency.count), (1000, 1000, 0));
        assert!(run.lateness.is_some() && judged(None, total(), 0.0, 0.2).lateness.is_none());
    }

    #[test]
    fn a_generator_that_was_late_for_a_thousandth_of_the_requests_makes_its_run_invalid() {
        let late = |of_1000: u64, ns: u64| {
            let mut total = total();
            total.lateness.reset();
            total.lateness.record_n(10_000, 1000 - of_1000).unwrap();
            total.lateness.record_n(ns, of_1000).unwrap();
            judged(RATE, total, 0.0, 0.2)
        };
        assert!(late(1, 6_000_000).valid, "only the very last one");
        let run = late(2, 6_000_000);
        assert!(!run.valid && run.doubts[0].starts_with("invalid: the generator itself was late"), "{:?}", run.doubts);
        // Less than is allowed, and yet a good part of the tail.
        let run = late(2, 4_000_000);
        assert!(run.valid && run.doubts[0].starts_with("the generator itself was up to 4 ms"), "{:?}", run.doubts);
    }

    #[test]
    fn a_load_that_was_not_kept_up_with_is_said() {
        let doubts = |drain_s: f64, unanswered: u64, waited: bool| {
            let mut total = total();
            total.counts.unanswered = unanswered;
            if waited {
                total.wait.record_n(900_000, 1000).unwrap();
            }
            judged(RATE, total, drain_s, 0.2).doubts
        };
        assert!(doubts(0.09, 10, true).iter().all(|d| !d.contains("asked for")));
        let behind = doubts(1.0, 0, false);
        assert!(
            behind[0].starts_with("1,000 requests/s were asked for and 500/s answered: the servers did not keep up;")
        );
        assert!(behind[0].contains("1 s after the end of the load"), "{behind:?}");
        assert!(doubts(1.0, 0, true)[0].contains("requests waited for one: --connections"));
        assert!(doubts(0.0, 11, false)[0].contains("were asked for"), "one of a hundred has no answer");
    }

    #[test]
    fn what_makes_a_closed_loops_figures_doubtful_is_said() {
        let run = judged(None, total(), 0.0, 0.96);
        assert!(run.valid && run.doubts[0].starts_with("the generator was the bottleneck"), "{:?}", run.doubts);
        assert!(run.doubts[0].contains("busy 96 % of the time; give it --threads 2"), "{:?}", run.doubts);
        let mut stood_still = total();
        stood_still.latency[0].record(2_000_000_000).unwrap();
        let run = judged(None, stood_still, 0.0, 0.2);
        assert!(run.doubts[0].starts_with("closed loop: while an answer took 2 s"), "{:?}", run.doubts);
    }

    #[test]
    fn a_run_of_errors_or_wrong_values_is_invalid() {
        let mut refused = Interval::new(2);
        refused.refused.record_n(1_000_000, 7).unwrap();
        (0..7).for_each(|_| refused.error("OOM", "OOM command not allowed"));
        let run = judged(None, refused, 0.0, 0.2);
        assert_eq!((run.valid, run.requests, run.refused, run.throughput_per_s), (false, 7, 7, 0.0));
        assert!(run.doubts[0].contains("no request was answered") && run.doubts[0].contains("OOM command"), "{run:?}");
        let mut wrong = total();
        (wrong.counts.verified, wrong.counts.wrong) = (900, 1);
        let run = judged(None, wrong, 0.0, 0.2);
        assert!(!run.valid && run.doubts[0].contains("1 of 900 values were not the value"), "{:?}", run.doubts);
    }
}
