//! What a run brought: the document that `unslow bench --format json` prints and `unslow compare` reads.

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrivals;
use crate::stats::Interval;
use crate::workload::Spec;

/// Version of the document.
pub const SCHEMA: &str = "unslow.bench/1";

/// One or more runs of one load against one deployment.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// `unslow.bench/1`.
    pub schema: String,
    /// Address, without user and password.
    pub target: String,
    /// Unix time in ms of the first run's start.
    pub at_ms: u64,
    /// The servers that were asked.
    pub deployment: Deployment,
    /// What was asked.
    pub workload: Spec,
    /// How.
    pub load: Load,
    /// Keys written before the runs.
    pub preloaded_keys: u64,
    /// The recording that was replayed.
    pub recording: Option<Recorded>,
    /// The same in two reports whose runs were made in turn.
    pub pair: Option<String>,
    /// The runs, in order.
    pub runs: Vec<Run>,
}

/// A replayed recording.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// Commands in it.
    pub commands: u64,
    /// Commands left out: those that would change what their connection is.
    pub left_out: u64,
}

/// The servers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Deployment {
    /// `standalone`, `master_replica`, `sentinel`, `cluster`.
    pub kind: unslow_topology::DeploymentKind,
    /// Name and version of the first server, as `valkey 9.1.0`.
    pub version: String,
    /// Masters at the start.
    pub masters: usize,
    /// Replicas at the start.
    pub replicas: usize,
}

/// How the load was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Load {
    /// Requests are due by a schedule, not by answers.
    pub open_loop: bool,
    /// Asked for, in requests per second: one rate, or one a step.
    pub rate_per_s: Vec<f64>,
    /// How they arrive.
    pub arrivals: Option<Arrivals>,
    /// `own`, `pool:N`, `shared` or `multiplex:N`.
    pub model: String,
    /// Connections to each server.
    pub connections: usize,
    /// Requests a connection may have under way; `None` is no bound.
    pub in_flight_max: Option<usize>,
    /// Application threads; `None` is as many as needed.
    pub callers: Option<usize>,
    /// Threads of the generator.
    pub threads: usize,
    /// Length of a run.
    pub length_s: f64,
    /// Requests of a run, at most.
    pub requests_max: Option<u64>,
    /// Connections that listen.
    pub subscribers: usize,
    /// RESP version.
    pub protocol: u8,
    /// TLS from the first byte.
    pub tls: bool,
    /// A recording's pace, so many times as fast.
    pub speed: Option<f64>,
    /// Longest wait for an answer.
    pub timeout_s: f64,
    /// Which servers answer reads.
    pub read_from: String,
    /// The run is invalid when a thousandth of the requests was looked at later than this.
    pub lateness_us_allowed: f64,
    /// Nothing but the workload was sent, so that nothing is known of the server. False in reports of before this was
    /// kept.
    #[serde(default)]
    pub plain: bool,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// From the start to the last answer, and at least to the end of an open loop's schedule.
    pub seconds: f64,
    /// Of it behind the end of the load, waiting for answers.
    pub drain_s: f64,
    /// Requests that were due, or begun.
    pub requests: u64,
    /// Of them answered without an error.
    pub answered: u64,
    /// Of them answered by an error.
    pub refused: u64,
    /// Of them never answered: lost with a connection, timed out, or unfinished. They are in the latency at the age
    /// they were given up, which is less than the truth.
    pub unanswered: u64,
    /// Answers, good ones, per second.
    pub throughput_per_s: f64,
    /// From due (open loop) or begun (closed loop) to answered.
    pub latency: Latency,
    /// For plots: ten points for each nine.
    pub percentiles: Vec<Percentile>,
    /// The same for each command of the mix.
    pub commands: Vec<CommandRun>,
    /// From due to being put on a connection; where callers share connections, or requests come by a schedule.
    pub pool_wait: Option<Latency>,
    /// From due to being looked at by the generator: what it did wrong itself. Open loop only.
    pub lateness: Option<Latency>,
    /// Error replies' latency.
    pub refused_latency: Option<Latency>,
    /// Errors by kind: the reply's code word, or one of our own in lower case.
    pub errors: Vec<Errors>,
    /// Values of `get` that were compared with what was written (with verify).
    pub verified_values: u64,
    /// Of them, those that were something else.
    pub wrong_values: u64,
    /// MOVED answers followed.
    pub moved: u64,
    /// ASK answers followed.
    pub ask: u64,
    /// Received bytes per second.
    pub received_bytes_per_s: f64,
    /// Whether the figures can be believed.
    pub valid: bool,
    /// Why not, and what else to know of them.
    pub doubts: Vec<String>,
    /// The run was ended before its time.
    pub interrupted: bool,
    /// What the generator used.
    pub generator: Generator,
    /// What the servers used.
    pub servers: Vec<ServerRun>,
    /// CPU of all those servers, for each answer or error reply; `None` where they used too little to tell (0.1 s).
    pub server_cpu_us_per_request: Option<f64>,
    /// Second by second.
    pub timeline: Vec<Second>,
    /// What happened when.
    pub events: Vec<Event>,
    /// Messages that reached subscribers, where there were any.
    pub pubsub: Option<PubSub>,
}

/// A latency distribution in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)] // the names say it
pub struct Latency {
    pub count: u64,
    pub us_mean: f64,
    pub us_p50: f64,
    pub us_p90: f64,
    pub us_p99: f64,
    pub us_p99_9: f64,
    pub us_p99_99: f64,
    pub us_p99_999: f64,
    pub us_max: f64,
}

/// One command's part of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CommandRun {
    /// As in the mix.
    pub name: String,
    /// Its latency, and how often.
    pub latency: Latency,
    /// Share of its answers that were null.
    pub null_share: f64,
}

/// A point of a distribution.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Percentile {
    /// Share of the requests.
    pub share: f64,
    /// Latency they stayed under.
    pub us: f64,
}

/// How many errors of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KindCount {
    /// As in [`Errors::kind`].
    pub kind: String,
    /// How many.
    pub count: u64,
}

/// Errors of one kind.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Errors {
    /// The reply's code word, or `timeout`, `connection_lost`, `no_connection`, `not_resp`, `unfinished`, ...
    pub kind: String,
    /// How many.
    pub count: u64,
    /// The first one.
    pub example: String,
}

/// The generator's own cost.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Generator {
    /// CPU of its threads for each request.
    pub cpu_us_per_request: f64,
    /// Share of the run that each thread was on a processor.
    pub thread_busy_share: Vec<f64>,
}

/// One server's part.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ServerRun {
    /// Where clients reach it.
    pub address: String,
    /// `master` or `replica`, at the start.
    pub role: String,
    /// By INFO's used_cpu_user and used_cpu_sys, in the run and the moment around it.
    pub cpu_s: Option<f64>,
    /// The same as a share of a core.
    pub cpu_share: Option<f64>,
    /// The same by /proc, where the server runs on this machine.
    pub cpu_share_proc: Option<f64>,
    /// Commands it executed, by INFO.
    pub commands: Option<u64>,
    /// CPU for each of them.
    pub cpu_us_per_command: Option<f64>,
}

/// One second of a run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)] // the names say it
pub struct Second {
    /// Its start, since the run's.
    pub at_s: u32,
    pub answered: u64,
    pub errors: u64,
    /// The kinds of these errors.
    pub error_kinds: Vec<KindCount>,
    pub latency_us_p50: f64,
    pub latency_us_p99: f64,
    pub latency_us_p99_9: f64,
    pub latency_us_max: f64,
    /// Requests that wait for a connection at its end.
    pub waiting: u64,
    /// Open connections at its end.
    pub connections: u64,
    pub moved: u64,
    pub lateness_us_max: f64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Since the run's start.
    pub at_s: f64,
    /// What happened, as one sentence.
    pub text: String,
}

/// Messages from publishers to subscribers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PubSub {
    /// Connections that listened.
    pub subscribers: usize,
    /// Messages that came.
    pub delivered: u64,
    /// Answered PUBLISH, times subscribers.
    pub expected: u64,
    /// From publication to delivery.
    pub latency: Latency,
}

impl Latency {
    /// From a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let us = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
        if histogram.is_empty() {
            return Latency::default();
        }
        Latency {
            count: histogram.len(),
            us_mean: round(histogram.mean() / 1e3),
            us_p50: us(0.5),
            us_p90: us(0.9),
            us_p99: us(0.99),
            us_p99_9: us(0.999),
            us_p99_99: us(0.9999),
            us_p99_999: us(0.99999),
            us_max: histogram.max() as f64 / 1e3,
        }
    }
}

/// Three decimals: a nanosecond where the unit is a microsecond.
pub(crate) fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

/// Points of the distribution, dense where it is rare: ten for each nine.
pub(crate) fn points(histogram: &Histogram<u64>) -> Vec<Percentile> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let most = (histogram.len() as f64).log10().clamp(1.0, 7.0);
    let mut out: Vec<Percentile> = (0..=(most * 10.0) as u32)
        .map(|i| 1.0 - 10f64.powf(-f64::from(i) / 10.0))
        .map(|share| Percentile { share, us: histogram.value_at_quantile(share) as f64 / 1e3 })
        .collect();
    out.push(Percentile { share: 1.0, us: histogram.max() as f64 / 1e3 });
    out
}

impl Second {
    pub(crate) fn of(interval: &Interval, all: &Histogram<u64>) -> Second {
        let us = |q: f64| if all.is_empty() { 0.0 } else { all.value_at_quantile(q) as f64 / 1e3 };
        Second {
            at_s: interval.second,
            answered: interval.counts.answered,
            errors: interval.error_count(),
            error_kinds: interval.errors.iter().map(|k| KindCount { kind: k.name.clone(), count: k.count }).collect(),
            latency_us_p50: us(0.5),
            latency_us_p99: us(0.99),
            latency_us_p99_9: us(0.999),
            latency_us_max: if all.is_empty() { 0.0 } else { all.max() as f64 / 1e3 },
            waiting: interval.counts.waiting,
            connections: interval.counts.open,
            moved: interval.counts.moved,
            lateness_us_max: if interval.lateness.is_empty() { 0.0 } else { interval.lateness.max() as f64 / 1e3 },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::arrivals::Schedule;
    use crate::stats::histogram;

    /// How a plain load was made.
    pub(crate) fn load(rate: Option<f64>) -> Load {
        Load {
            open_loop: rate.is_some(),
            rate_per_s: rate.into_iter().collect(),
            arrivals: rate.map(|_| Arrivals::Constant),
            model: "own".into(),
            connections: 8,
            in_flight_max: Some(1),
            callers: None,
            threads: 1,
            length_s: 1.0,
            requests_max: None,
            subscribers: 0,
            protocol: 2,
            tls: false,
            speed: None,
            timeout_s: 3.0,
            read_from: "primary".into(),
            lateness_us_allowed: 5000.0,
            plain: false,
        }
    }

    const SECOND: u64 = 1_000_000_000;

    /// Latencies of requests that one server answers in their order, each in `service` ns, but for a freeze.
    fn latencies(due: &[u64], freeze: std::ops::Range<u64>, service: u64) -> Vec<u64> {
        let mut free = 0u64;
        let answer = |due: &u64| {
            let begun = free.max(*due);
            let begun = if freeze.contains(&begun) { freeze.end } else { begun };
            free = begun + service;
            free - due
        };
        due.iter().map(answer).collect()
    }

    #[test]
    fn percentiles_hold_every_request_that_a_freeze_kept_waiting() {
        // 20,000 requests/s for 10 s; the server freezes for 2 s, then works the backlog off at 50,000/s.
        let mut schedule = Schedule::new(Arrivals::Constant, &[20_000.0], 10 * SECOND, 0, 1, 0);
        let due: Vec<u64> = std::iter::from_fn(|| schedule.next()).collect();
        let seen = latencies(&due, 3 * SECOND..5 * SECOND, 20_000);
        let mut recorded = histogram();
        seen.iter().for_each(|ns| recorded.record(*ns).unwrap());
        let latency = Latency::of(&recorded);
        // Who was due x s into the freeze waits for its end, and then for the x * 20,000 before it.
        let truth = |q: f64| {
            let x = (1.0 - q) * 10.0;
            2.0 - x + x * 20_000.0 / 50_000.0
        };
        for (seen_us, q) in [(latency.us_p90, 0.9), (latency.us_p99, 0.99), (latency.us_p99_9, 0.999)] {
            assert!((seen_us / 1e6 / truth(q) - 1.0).abs() < 0.002, "q {q}: {seen_us} us, the truth {} s", truth(q));
        }
        assert!((latency.us_max / 1e6 - 2.0).abs() < 0.002 && latency.count == 200_000, "{latency:?}");
        assert!((latency.us_p50 - 20.0).abs() < 0.1, "most requests had no part in it: {latency:?}");
        // Counted from a free connection, as a closed loop does, the same freeze is not in p99.
        let (mut unseen, mut free) = (histogram(), 0u64);
        for (due, ns) in due.iter().zip(&seen) {
            let from = free.max(*due);
            free = due + ns;
            unseen.record(free - from).unwrap();
        }
        assert!(Latency::of(&unseen).us_p99_9 < 100.0, "{:?}", Latency::of(&unseen));
    }

    #[test]
    fn of_a_pools_callers_those_who_wait_are_that_part_of_the_latency() {
        // Two connections, 32 callers, each answer in 100 us: thirty wait at any time.
        const SERVICE: u64 = 100_000;
        let (mut wait, mut whole) = (histogram(), histogram());
        let mut callers: std::collections::VecDeque<u64> = vec![0; 32].into();
        for request in 0..20_000u64 {
            let put = request / 2 * SERVICE;
            let due = callers.pop_front().unwrap();
            wait.record(put - due).unwrap();
            whole.record(put + SERVICE - due).unwrap();
            callers.push_back(put + SERVICE);
        }
        let (wait, whole) = (Latency::of(&wait), Latency::of(&whole));
        assert_eq!((wait.count, whole.count), (20_000, 20_000));
        assert!((wait.us_p50 / whole.us_p50 - 30.0 / 32.0).abs() < 0.002, "{wait:?} of {whole:?}");
        assert!((whole.us_p50 - 1600.0).abs() < 2.0, "{whole:?}");
    }

    #[test]
    fn a_second_without_answers_is_a_second_of_its_own() {
        let mut interval = Interval::new(1);
        interval.second = 4;
        interval.counts.waiting = 900;
        interval.error("timeout", "no answer for 1 s");
        interval.error("timeout", "no answer for 1.1 s");
        let second = Second::of(&interval, &interval.all());
        assert_eq!((second.at_s, second.answered, second.errors, second.waiting), (4, 0, 2, 900));
        assert_eq!(second.error_kinds, [KindCount { kind: "timeout".into(), count: 2 }]);
        assert_eq!((second.latency_us_p50, second.latency_us_max), (0.0, 0.0));
        interval.counts.answered = 3;
        [1_000, 2_000, 9_000].into_iter().for_each(|ns| interval.latency[0].record(ns).unwrap());
        let second = Second::of(&interval, &interval.all());
        assert_eq!((second.answered, second.latency_us_p50), (3, 2.0));
        assert!((second.latency_us_max - 9.0).abs() < 0.01, "{second:?}");
    }

    #[test]
    fn a_distribution_has_ten_points_for_each_nine_that_its_requests_can_show() {
        let mut recorded = histogram();
        assert!(points(&recorded).is_empty());
        (1..=1000u64).for_each(|us| recorded.record(us * 1000).unwrap());
        let points = points(&recorded);
        assert_eq!(points.len(), 32, "0 to 99.9 %, and the maximum");
        assert_eq!(points[31].share, 1.0);
        assert!((points[31].us - 1000.0).abs() < 1.0 && (points[10].us - 900.0).abs() < 2.0, "{points:?}");
        assert!(points.windows(2).all(|w| w[0].us <= w[1].us && w[0].share < w[1].share));
    }
}
