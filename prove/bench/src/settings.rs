//! A benchmark as a person asks for it, what of that cannot be, and its form for the threads.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_client::{Options, Target};

use crate::arrivals::Arrivals;
use crate::error::{SettingsError, UnknownModel};
use crate::report::Load;
use crate::workload::Spec;

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
    pub fn parse(text: &str) -> Result<Model, UnknownModel> {
        let count = |n: &str| n.parse::<usize>().ok().filter(|n| (1..=100_000).contains(n));
        let model = match text.split_once(':') {
            None if text == "own" => Some(Model::Own),
            None if text == "shared" => Some(Model::Shared),
            Some(("pool", n)) => count(n).map(Model::Pool),
            Some(("multiplex", n)) => count(n).map(Model::Multiplex),
            _ => None,
        };
        model.ok_or_else(|| UnknownModel(text.into()))
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
    /// Requests of a run, at most; a recording that is sent once sets it.
    pub requests: Option<u64>,
    /// Whether commands may do more than read and write keys.
    pub dangerous: bool,
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
    /// Send only the workload, to one address: for proxies that close a connection on HELLO, INFO or COMMAND.
    pub plain: bool,
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
    /// Whose user, password and database every connection uses.
    pub target: Target,
    /// HELLO 3.
    pub resp3: bool,
    /// Connections that subscribe to `channels`.
    pub subscribers: usize,
    /// A pattern.
    pub channels: String,
    /// TLS, and the name to expect where it is not the host.
    pub tls: Option<(Arc<rustls::ClientConfig>, Option<String>)>,
}

impl Settings {
    /// Finds what is out of bounds, or does not go together.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        self.within_bounds()?;
        if self.model != Model::Own && self.pipeline > 1 {
            return Err(SettingsError::PipelineOfModel);
        }
        if self.model == Model::Own && self.callers.is_some() && !self.is_open() {
            return Err(SettingsError::CallersWithoutModel);
        }
        if self.rate.is_some() && self.speed.is_some() {
            return Err(SettingsError::TwoSchedules);
        }
        if self.length.is_zero() || self.length > Duration::from_secs(7 * 86_400) {
            return Err(SettingsError::Length);
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(3600) {
            return Err(SettingsError::Timeout);
        }
        if self.plain
            && let Some(what) = self.not_plain()
        {
            return Err(SettingsError::Plain(what));
        }
        if self.subscribers > 0 && !self.spec.mix.contains_key("publish") {
            return Err(SettingsError::NothingPublished);
        }
        let (threads, lanes) = (self.threads, self.lanes());
        if threads > lanes {
            return Err(SettingsError::ThreadsWithoutConnection { threads, lanes });
        }
        if self.callers.is_some_and(|c| c < threads) {
            return Err(SettingsError::ThreadsWithoutCaller);
        }
        Ok(())
    }

    fn within_bounds(&self) -> Result<(), SettingsError> {
        let numbers: [(&'static str, u64, u64, u64); 6] = [
            ("--threads", self.threads as u64, 1, 256),
            ("--connections", self.connections as u64, 1, 200_000),
            ("--pipeline", self.pipeline as u64, 1, 10_000),
            ("--callers", self.callers.unwrap_or(1) as u64, 1, 1_000_000),
            ("--subscribers", self.subscribers as u64, 0, 100_000),
            ("--requests", self.requests.unwrap_or(1), 1, u64::MAX),
        ];
        if let Some((flag, found, low, high)) = numbers.into_iter().find(|(_, n, low, high)| n < low || n > high) {
            return Err(SettingsError::Range { flag, found, low, high });
        }
        match self.rate.iter().flatten().find(|rate| !(**rate > 0.0 && **rate <= 1e8)) {
            Some(rate) => Err(SettingsError::Rate(*rate)),
            None => Ok(()),
        }
    }

    /// What [`Settings::plain`] cannot do.
    fn not_plain(&self) -> Option<&'static str> {
        let is_group = self.target.service.is_some() || self.target.endpoints.len() > 1;
        [
            (self.spec.script.is_some(), "cannot load a --script; load it yourself, and use EVALSHA"),
            (self.read_from != ReadFrom::Primary, "cannot find replicas for --read-from; give a replica's address"),
            (is_group, "cannot find a master through Sentinels; give the master's address"),
        ]
        .into_iter()
        .find_map(|(is, what)| is.then_some(what))
    }

    /// Whether requests come by a schedule.
    fn is_open(&self) -> bool {
        self.rate.is_some() || self.speed.is_some()
    }

    /// Connections to each server.
    pub(crate) fn lanes(&self) -> usize {
        match self.model {
            Model::Own => self.connections,
            Model::Pool(n) | Model::Multiplex(n) => n,
            Model::Shared => 1,
        }
    }

    /// Requests under way on a connection, at most; none where the model lets through any number.
    fn window(&self) -> Option<usize> {
        match self.model {
            Model::Own => Some(self.pipeline),
            Model::Pool(_) => Some(1),
            Model::Shared | Model::Multiplex(_) => None,
        }
    }

    /// Application threads; none where there are as many as it takes.
    fn caller_count(&self) -> Option<usize> {
        match (self.model, self.is_open()) {
            (Model::Own, false) => Some(self.lanes()),
            (_, false) => Some(self.callers.unwrap_or(32).max(self.threads)),
            (_, true) => self.callers,
        }
    }

    /// How the report tells it.
    pub(crate) fn load(&self) -> Load {
        Load {
            open_loop: self.is_open(),
            rate_per_s: self.rate.clone().unwrap_or_default(),
            arrivals: self.rate.as_ref().map(|_| self.arrivals).or(self.speed.map(|_| Arrivals::Recorded)),
            model: self.model.to_string(),
            connections: self.lanes(),
            in_flight_max: self.window(),
            callers: self.caller_count(),
            threads: self.threads,
            timeout_s: self.timeout.as_secs_f64(),
            read_from: serde_json::to_value(self.read_from)
                .ok()
                .and_then(|v| v.as_str().map(str::to_string))
                .unwrap_or_default(),
            length_s: self.length.as_secs_f64(),
            requests_max: self.requests,
            subscribers: self.subscribers,
            protocol: if self.plain { 2 } else { self.options.protocol },
            tls: self.target.tls,
            speed: self.speed,
            lateness_us_allowed: self.lateness_max.as_nanos() as f64 / 1e3,
            plain: self.plain,
        }
    }

    /// The same, for the threads. Fails where a certificate cannot be read.
    pub(crate) fn shape(&self) -> Result<Shape, unslow_client::Error> {
        let target = &self.target;
        let tls = match target.tls {
            true => Some((self.options.tls.client_config()?, self.options.tls.server_name.clone())),
            false => None,
        };
        Ok(Shape {
            threads: self.threads,
            connections: self.lanes(),
            rings: self.rings,
            own: self.model == Model::Own && !self.is_open(),
            window: self.window(),
            callers: self.caller_count(),
            steps: self.rate.clone(),
            arrivals: self.arrivals,
            replay_speed: self.speed,
            length_ns: self.length.as_nanos() as u64,
            requests: self.requests,
            timeout_ns: self.timeout.as_nanos() as u64,
            read_from: self.read_from,
            target: target.clone(),
            resp3: self.options.protocol == 3 && !self.plain,
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A second of a closed loop over eight connections, or of an open loop at this rate.
    pub(crate) fn settings(rate: Option<f64>) -> Settings {
        Settings {
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
            dangerous: false,
            timeout: Duration::from_secs(3),
            read_from: ReadFrom::Primary,
            lateness_max: Duration::from_millis(5),
            subscribers: 0,
            rings: false,
            plain: false,
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused_by_kind() {
        let refused = |change: &dyn Fn(&mut Settings)| {
            let mut settings = settings(None);
            change(&mut settings);
            settings.check().unwrap_err()
        };
        let threads = refused(&|s| s.threads = 257);
        assert_eq!(threads, SettingsError::Range { flag: "--threads", found: 257, low: 1, high: 256 });
        assert_eq!(threads.to_string(), "--threads 257: it takes 1 to 256");
        let shared = refused(&|s| (s.model, s.pipeline) = (Model::Shared, 2));
        assert_eq!(shared, SettingsError::PipelineOfModel);
        assert_eq!(refused(&|s| s.callers = Some(4)), SettingsError::CallersWithoutModel);
        assert_eq!(refused(&|s| s.rate = Some(vec![0.0])), SettingsError::Rate(0.0));
        assert_eq!(refused(&|s| (s.rate, s.speed) = (Some(vec![1.0]), Some(1.0))), SettingsError::TwoSchedules);
        assert_eq!(refused(&|s| s.length = Duration::ZERO), SettingsError::Length);
        assert_eq!(refused(&|s| s.timeout = Duration::from_secs(3601)), SettingsError::Timeout);
        let group = |s: &mut Settings| s.target = Target::parse("redis+sentinel://a,b/name").unwrap();
        assert!(matches!(refused(&|s| (s.plain, _) = (true, group(s))), SettingsError::Plain(_)));
        assert!(matches!(refused(&|s| (s.plain, s.read_from) = (true, ReadFrom::Any)), SettingsError::Plain(_)));
        assert!(matches!(refused(&|s| (s.plain, s.spec.script) = (true, Some("a".into()))), SettingsError::Plain(_)));
        assert_eq!(refused(&|s| s.subscribers = 1), SettingsError::NothingPublished);
        let crowded = refused(&|s| s.threads = 9);
        assert_eq!(crowded, SettingsError::ThreadsWithoutConnection { threads: 9, lanes: 8 });
        let idle = refused(&|s| (s.threads, s.callers, s.rate) = (4, Some(2), Some(vec![1.0])));
        assert_eq!(idle, SettingsError::ThreadsWithoutCaller);
        assert_eq!(settings(None).check(), Ok(()));
    }

    #[test]
    fn a_model_is_read_as_it_is_written() {
        for model in [Model::Own, Model::Pool(8), Model::Shared, Model::Multiplex(4)] {
            assert_eq!(Model::parse(&model.to_string()), Ok(model));
        }
        for text in ["", "pool", "pool:0", "shared:2", "multiplex:100001"] {
            assert_eq!(Model::parse(text), Err(UnknownModel(text.into())));
        }
    }
}
