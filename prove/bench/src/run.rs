//! From settings to a report: look at the deployment, check the workload against it, preload, run, collect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_client::{Connection, ErrorKind, Options, Target, Value, address_target};
use unslow_reactor::now_ns;
use unslow_topology::Info;

use crate::arrivals::Arrivals;
use crate::report::{
    CommandRun, Deployment, Errors, Event, Generator, Latency, Load, PubSub, Report, Run, SCHEMA, Second, ServerRun,
    points, round,
};
use crate::route::{Map, Routes, look};
use crate::stats::Interval;
use crate::template::Fill;
use crate::worker::{Said, Shared, Summary, work};
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
        model.ok_or(format!("{text:?} is no client model; there are own, pool:N, shared and multiplex:N"))
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
    /// What.
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
    /// See [`Load::lateness_us_max`].
    pub lateness_max: Duration,
    /// Connections that listen to the channels of the built-in `publish`.
    pub subscribers: usize,
}

/// The same, for the threads.
pub struct Shape {
    /// Generator threads.
    pub threads: usize,
    /// Connections to each server.
    pub connections: usize,
    /// Whether a caller keeps to its own connection.
    pub own: bool,
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
    /// A second is over.
    Second(&'a Second, &'a Interval),
    /// Something happened.
    Event(&'a Event),
}

/// Ends the run that is going on, if one is: its results so far are still reported. True the first
/// time; whoever asks again wants out at once.
pub fn interrupt() -> bool {
    RUNNING.load(Ordering::Acquire) && !INTERRUPTED.swap(true, Ordering::AcqRel)
}

static RUNNING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A deployment and a workload that fit each other.
pub struct Session {
    settings: Settings,
    workload: Arc<Workload>,
    map: Map,
    version: String,
    at_ms: u64,
    load: Load,
}

impl Settings {
    fn check(&self) -> Result<(), Error> {
        let bad = |text: &str| Err(Error(text.to_string()));
        if self.threads == 0 || self.threads > 256 {
            return bad("--threads takes 1 to 256");
        }
        if self.connections == 0 || self.connections > 200_000 {
            return bad("--connections takes 1 to 200000");
        }
        if self.pipeline == 0 || self.pipeline > 10_000 {
            return bad("--pipeline takes 1 to 10000");
        }
        if self.model != Model::Own && self.pipeline > 1 {
            return bad(
                "--pipeline belongs to connections of their own; with --model, the requests under way are as many as the model lets through",
            );
        }
        if self.callers.is_some_and(|n| n == 0 || n > 1_000_000) {
            return bad("--callers takes 1 to 1000000");
        }
        if self.model == Model::Own && self.callers.is_some() && self.rate.is_none() && self.speed.is_none() {
            return bad("--callers needs a model that shares connections: --model pool:8, shared or multiplex:4");
        }
        if let Some(rates) = &self.rate
            && (rates.is_empty() || rates.iter().any(|r| !(*r > 0.0 && *r <= 1e8)))
        {
            return bad("--rate takes requests per second, more than 0 and at most 100 million");
        }
        if self.rate.is_some() && self.speed.is_some() {
            return bad("--rate and --speed are two schedules; give one");
        }
        if self.length.is_zero() || self.length > Duration::from_secs(7 * 86_400) {
            return bad("--seconds takes more than 0 and at most a week");
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(3600) {
            return bad("--timeout takes seconds, more than 0 and at most 3600");
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
            channels: format!("{}channel:*", self.spec.key_prefix),
            tls,
        })
    }
}

impl Session {
    /// Looks at the deployment, compiles the workload, asks the server whether it knows the commands, and preloads.
    pub fn prepare(settings: Settings, observer: &mut dyn FnMut(Progress)) -> Result<Session, Error> {
        settings.check()?;
        // What is wrong with the workload is said before anyone is asked.
        let drafted = Workload::compile(&settings.spec, settings.spec.script.as_ref().map(|_| "0"));
        drafted.map_err(Error)?;
        let map = look(&settings.target, &settings.options)?;
        let mut masters = Vec::new();
        for address in &map.nodes[..map.masters] {
            masters.push(open(&settings, address)?);
        }
        let version = masters[0].call(&["INFO", "server"]).map_or("unknown".to_string(), |v| {
            let info = Info::parse(&v.text().unwrap_or_default());
            let (major, minor, patch) = info.version().unwrap_or_default();
            format!("{} {major}.{minor}.{patch}", info.product())
        });
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
        ask_about_commands(&mut masters[0], &mut workload)?;
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
            lateness_us_max: settings.lateness_max.as_nanos() as f64 / 1e3,
        };
        let mut session = Session { settings, workload: Arc::new(workload), map, version, at_ms: 0, load };
        session.probe(&mut masters)?;
        drop(masters);
        if session.settings.spec.preload.unwrap_or_else(|| session.workload.wants_preload()) {
            session.preload(observer)?;
        }
        Ok(session)
    }

    /// Sends each kind of request once: what the server refuses it would refuse a million times.
    fn probe(&self, masters: &mut [Connection]) -> Result<(), Error> {
        if self.workload.recording.is_some() {
            return Ok(());
        }
        for command in &self.workload.commands {
            let words = command.template.sample(&Fill { key: 0, value: b"x", seq: 0, now: 0 });
            // Blocking ones would block, and messages would reach subscribers.
            let name = command.template.name();
            if name.starts_with('B') && name != "BITCOUNT"
                || ["PUBLISH", "SPUBLISH", "WAIT", "XREAD", "XREADGROUP"].contains(&name.as_str())
            {
                continue;
            }
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
            let refused = ["ERR ", "WRONGTYPE", "NOPERM", "READONLY", "LOADING", "NOSCRIPT", "CROSSSLOT", "NOAUTH"];
            if e.is_fatal() || refused.iter().any(|w| e.message.contains(w)) || e.kind == ErrorKind::Denied {
                let hint = match e.message.as_str() {
                    m if m.contains("WRONGTYPE") => "; keys of another type stand there: give another --key-prefix",
                    m if m.contains("READONLY") => "; this is a replica: give its master's address",
                    m if m.contains("LOADING") => "; wait until it has read its data set",
                    m if m.contains("wrong number of arguments") => "; look at the command's template",
                    _ => "",
                };
                return Err(Error(format!("the server refuses {:?}: {e}{hint}", command.name)));
            }
        }
        Ok(())
    }

    /// Writes every key once.
    fn preload(&mut self, observer: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let total = self.settings.spec.keys;
        let mut settings = Settings {
            model: Model::Own,
            connections: self.settings.threads * 4,
            pipeline: 64,
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
            workload: Arc::new(workload),
            map: self.map.clone(),
            version: String::new(),
            at_ms: 0,
            load: self.load.clone(),
            settings,
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
        Ok(())
    }

    /// One run, and the latency of all its requests in nanoseconds.
    pub fn run(&mut self, observer: &mut dyn FnMut(Progress)) -> Result<(Run, Histogram<u64>), Error> {
        if self.at_ms == 0 {
            self.at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        }
        self.run_once(observer)
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
        INTERRUPTED.store(false, Ordering::Release);
        RUNNING.store(true, Ordering::Release);
        let events: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
        let (said, heard) = channel();
        let run = std::thread::scope(|scope| {
            let mut spares = Vec::new();
            for index in 0..threads {
                let (give, take) = channel();
                for _ in 0..2 {
                    let _ = give.send(Box::new(Interval::new(self.workload.commands.len())));
                }
                spares.push(give);
                let (shared, said) = (shared.clone(), said.clone());
                std::thread::Builder::new()
                    .name(format!("load-{index}"))
                    .spawn_scoped(scope, move || work(shared, index, said, take))
                    .map_err(|e| Error(format!("no thread: {e}")))?;
            }
            drop(said);
            let tell = |sentences: Vec<String>| {
                let now = now_ns();
                events.lock().expect("no thread panicked").extend(sentences.into_iter().map(|s| (now, s)));
            };
            let (scouted, target, options) = (&shared, &self.settings.target, &self.settings.options);
            scope.spawn(move || scouted.routes.scout(target, options, &tell));
            let run = self.collect(&shared, &heard, &spares, &events, observer);
            shared.stop.store(true, Ordering::Release);
            shared.routes.end();
            run
        });
        RUNNING.store(false, Ordering::Release);
        run
    }

    fn collect(
        &self,
        shared: &Shared,
        heard: &Receiver<Said>,
        spares: &[Sender<Box<Interval>>],
        events: &Mutex<Vec<(u64, String)>>,
        observer: &mut dyn FnMut(Progress),
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
            if INTERRUPTED.load(Ordering::Acquire) {
                shared.stop.store(true, Ordering::Release);
            }
        }
        let before = self.look_at_servers();
        let start = now_ns() + 2_000_000;
        shared.start.store(start, Ordering::Release);
        shared.routes.wake_all();

        let mut total = Interval::new(self.workload.commands.len());
        let mut open: BTreeMap<u32, (usize, Box<Interval>)> = BTreeMap::new();
        let mut timeline: Vec<Second> = Vec::new();
        let mut marks: Vec<Event> = Vec::new();
        let mut spare = 0;
        let mut finish = |interval: Box<Interval>, total: &mut Interval, observer: &mut dyn FnMut(Progress)| {
            let mut interval = interval;
            let second = Second::of(&interval);
            for (at, text) in std::mem::take(&mut interval.marks) {
                let event = Event { at_s: round(at as f64 / 1e9), text };
                // Every thread has noticed it.
                if !marks.iter().any(|m: &Event| m.text == event.text && (m.at_s - event.at_s).abs() < 1.0) {
                    observer(Progress::Event(&event));
                    marks.push(event);
                }
            }
            for ((node, why), count) in &interval.lost {
                let plural = if *count == 1 { "" } else { "s" };
                let event = Event {
                    at_s: f64::from(second.at_s),
                    text: format!("{count} connection{plural} to {node} lost: {why}"),
                };
                observer(Progress::Event(&event));
                marks.push(event);
            }
            observer(Progress::Second(&second, &interval));
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
                        finish(interval, &mut total, observer);
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
                observer(Progress::Event(&Event { at_s: since(*at, start), text: text.clone() }));
            }
            told = news.len();
            drop(news);
            if INTERRUPTED.load(Ordering::Acquire) && !interrupted {
                interrupted = true;
                shared.stop.store(true, Ordering::Release);
                shared.routes.wake_all();
            }
        }
        for (_, (_, interval)) in std::mem::take(&mut open) {
            finish(interval, &mut total, observer);
        }
        let seconds = summaries.iter().map(|s| s.took_ns).max().unwrap_or(0) as f64 / 1e9;
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
        let requests = counts.answered + refused + counts.unanswered;
        let cpu_ns: u64 = summaries.iter().map(|s| s.cpu_ns).sum();
        let busy: Vec<f64> =
            summaries.iter().map(|s| round(s.cpu_ns as f64 / s.took_ns.max(1) as f64)).map(|b| b.min(1.0)).collect();
        let lateness = (self.load.open_loop).then(|| Latency::of(&total.lateness));
        let throughput = if seconds > 0.0 { counts.answered as f64 / seconds } else { 0.0 };
        let (mut valid, mut doubts) = (true, Vec::new());
        if let Some(late) = &lateness
            && late.us_p99_9 > self.load.lateness_us_max
        {
            valid = false;
            doubts.push(format!(
                "invalid: the generator itself was late (p99.9 {:.0} us, at most {:.0} us are allowed); its latency is in these figures. Give it --threads, a processor of its own, or a lower --rate",
                late.us_p99_9, self.load.lateness_us_max
            ));
        }
        if !self.load.open_loop && busy.iter().any(|b| *b > 0.95) {
            doubts.push(format!(
                "the generator was the bottleneck: a thread of it was busy {:.0} % of the time; give it --threads {}",
                busy.iter().copied().fold(0.0, f64::max) * 100.0,
                self.settings.threads * 2
            ));
        }
        let asked: f64 = self.load.rate_per_s.iter().sum::<f64>() / self.load.rate_per_s.len().max(1) as f64;
        if self.load.open_loop && self.settings.speed.is_none() && self.settings.requests.is_none() && !interrupted {
            let length = self.settings.length.as_secs_f64();
            let within =
                timeline.iter().filter(|s| f64::from(s.at_s) + 1.0 <= length.max(1.0)).map(|s| s.answered).sum::<u64>()
                    as f64
                    / length.max(1.0).floor();
            if within < asked * 0.99 {
                doubts.push(format!(
                    "{asked:.0} requests/s were asked for and {within:.0} answered: {}",
                    if valid { "the servers did not keep up" } else { "the generator did not keep up" }
                ));
            }
        }
        let null_share = if counts.answered > 0 { counts.null as f64 / counts.answered as f64 } else { 0.0 };
        let gets = self.workload.commands.iter().any(|c| c.template.name() == "GET");
        if gets && null_share > 0.5 {
            doubts.push(format!(
                "{:.0} % of the answers were null: the keys are not there (--preload writes them)",
                null_share * 100.0
            ));
        }
        if counts.wrong > 0 {
            valid = false;
            doubts.push(format!("{} replies were not the value that was written", counts.wrong));
        }
        if counts.unanswered > 0 {
            doubts.push(format!(
                "{} requests were never answered; they are in the latency at the age they were given up",
                counts.unanswered
            ));
        }
        if requests > 0 && refused == requests {
            valid = false;
            doubts.push("every request was refused: nothing was measured but errors".into());
        }
        let published: u64 = (self.workload.commands.iter().zip(&total.latency))
            .filter(|(c, _)| c.template.name() == "PUBLISH")
            .map(|(_, h)| h.len())
            .sum();
        if self.settings.subscribers > 0 && total.delivered.len() < published * self.settings.subscribers as u64 {
            doubts.push(format!(
                "of {} messages {} reached a subscriber",
                published * self.settings.subscribers as u64,
                total.delivered.len()
            ));
        }
        if !self.load.open_loop && all.max() > 100_000_000 && all.max() > 20 * all.value_at_quantile(0.999) {
            doubts.push(format!(
                "closed loop: while an answer took {:.1} s nothing else was asked, so these percentiles leave that time out; --rate does not",
                all.max() as f64 / 1e9
            ));
        }
        let cpu_seconds: Option<f64> = servers
            .iter()
            .map(|s| s.cpu_share.or(s.cpu_share_proc))
            .collect::<Option<Vec<f64>>>()
            .map(|s| s.iter().sum::<f64>() * seconds);
        Run {
            seconds: round(seconds),
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
                .zip(&total.latency)
                .map(|(c, h)| CommandRun { name: c.name.clone(), latency: Latency::of(h) })
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
                errors.sort_by(|a, b| b.count.cmp(&a.count));
                errors
            },
            null_share: round(null_share),
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
            server_cpu_us_per_request: cpu_seconds
                .filter(|_| counts.answered > 0)
                .map(|s| round(s * 1e6 / counts.answered as f64)),
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
    let pid = info.number("process_id")? as u64;
    let here = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if here.file_name()? != std::path::Path::new(info.get("executable")?).file_name()? {
        return None;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name in brackets; utime and stime are the 12th and 13th from there (proc(5)).
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
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
                cpu_share: cpu.map(|c| round(c / seconds)),
                cpu_share_proc: a
                    .proc_ticks
                    .zip(b.proc_ticks)
                    .and_then(|(a, b)| b.checked_sub(a))
                    .map(|ticks| round(ticks as f64 / rustix::param::clock_ticks_per_second() as f64 / seconds)),
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
            address_target(&plain, address).ok_or_else(|| Error(format!("{address:?} is no address")))?
        }
    };
    Ok(Connection::open(&target, &settings.options)?)
}

/// What the server knows of the commands: whether they exist, where their keys are, whether replicas may answer them.
fn ask_about_commands(master: &mut Connection, workload: &mut Workload) -> Result<(), Error> {
    let names: Vec<String> = workload
        .commands
        .iter()
        .map(|c| if workload.recording.is_some() { c.name.to_uppercase() } else { c.template.name() })
        .collect();
    let mut ask = vec!["COMMAND".to_string(), "INFO".to_string()];
    ask.extend(names.iter().cloned());
    // A user who may not ask is believed.
    let Ok(answer) = master.call(&ask) else { return Ok(()) };
    let recorded = workload.recording.is_some();
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
        command.reads = flags.iter().any(|f| f == "readonly");
        let first = fields.get(3).and_then(Value::integer).unwrap_or(0);
        if !recorded {
            command.key_at = match name.as_str() {
                // Their keys are told by a count in the third argument.
                "EVAL" | "EVALSHA" | "FCALL" | "EVAL_RO" | "EVALSHA_RO" | "FCALL_RO" => {
                    (command.template.arguments() > 3).then_some(3)
                }
                _ if first > 0 => Some(first as usize),
                _ => None,
            };
        }
    }
    Ok(())
}

/// As many open files as this user may have: connections are files.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}
