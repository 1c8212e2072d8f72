//! Two reports side by side: is the difference one that can be shown?
//!
//! Each run gives one figure a metric. The difference of the two sides' means is bootstrapped: runs are drawn again
//! with replacement ten thousand times, and the middle 95 % of the differences are the interval. Runs made in turn (A B
//! B A) are drawn as pairs, so that what slowed the machine down for both cancels out. (Efron and Tibshirani, An
//! Introduction to the Bootstrap, 1993, percentile interval.)
//!
//! Of few runs such an interval is far too narrow: of three pairs all three lie on one side of nothing once in four
//! times. So it is widened as Student's t is wider than the normal distribution (Hesterberg, What Teachers Should Know
//! About the Bootstrap, 2015). A test counts how often the result holds the truth.

use rand::{Rng, SeedableRng, rngs::SmallRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_units::{percent, plural, rate, time_us};

use crate::doubts::bottleneck;
use crate::report::{Report, Run, round};

/// Version of the document.
pub const SCHEMA: &str = "unslow.compare/1";

/// The comparison.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// `unslow.compare/1`.
    pub schema: String,
    /// What A is.
    pub a: Side,
    /// What B is.
    pub b: Side,
    /// Runs were made in turn.
    pub interleaved: bool,
    /// Metric by metric.
    pub differences: Vec<Difference>,
    /// What differs in how they were measured, and so may be the cause.
    pub warnings: Vec<String>,
    /// The whole in a sentence.
    pub sentence: String,
    /// The reports, where the comparison made the runs itself.
    pub reports: Vec<Report>,
}

/// One side.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// Address.
    pub target: String,
    /// Name and version of the server.
    pub version: String,
    /// How many runs.
    pub runs: usize,
    /// Of them invalid.
    pub invalid: usize,
}

/// One metric.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// As `latency_us_p99`.
    pub metric: String,
    /// The metric as tables print it.
    pub name: String,
    /// Mean over A's runs.
    pub a: f64,
    /// Mean over B's runs.
    pub b: f64,
    /// B over A; `None` where A is 0.
    pub ratio: Option<f64>,
    /// 95 % interval of B - A; `None` with fewer than three runs a side.
    pub interval: Option<Bounds>,
    /// Whether the interval leaves 0 out.
    pub shown: bool,
    /// Whether B is better; `None` where no difference can be shown.
    pub better: Option<bool>,
    /// In a sentence.
    pub sentence: String,
}

/// The ends of an interval, in the metric's unit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)] // the names say it
pub struct Bounds {
    pub low: f64,
    pub high: f64,
}

type Figure = fn(&Run) -> Option<f64>;

/// Metric, words, unit, whether less is better, and where to find it.
const METRICS: &[(&str, &str, Unit, bool, Figure)] = &[
    ("latency_us_p99", "p99", Unit::Us, true, |r| Some(r.latency.us_p99)),
    ("latency_us_p50", "p50", Unit::Us, true, |r| Some(r.latency.us_p50)),
    ("latency_us_p99_9", "p99.9", Unit::Us, true, |r| Some(r.latency.us_p99_9)),
    ("latency_us_max", "the longest answer", Unit::Us, true, |r| Some(r.latency.us_max)),
    ("throughput_per_s", "throughput", Unit::PerSecond, false, |r| Some(r.throughput_per_s)),
    ("failed_share", "the share of failed requests", Unit::Share, true, |r| {
        Some((r.refused + r.unanswered) as f64 / r.requests.max(1) as f64)
    }),
    ("server_cpu_us_per_request", "the servers' CPU a request", Unit::Us, true, |r| r.server_cpu_us_per_request),
    ("generator_cpu_us_per_request", "the generator's CPU a request", Unit::Us, true, |r| {
        Some(r.generator.cpu_us_per_request)
    }),
];

#[derive(Clone, Copy)]
enum Unit {
    Us,
    PerSecond,
    Share,
}

impl Unit {
    fn text(self, x: f64) -> String {
        match self {
            Unit::Us => time_us(x),
            Unit::PerSecond => rate(x),
            Unit::Share => percent(x),
        }
    }
}

/// Compares two reports. Runs are taken as pairs when the reports say that they were made in turn.
pub fn compare(a: &Report, b: &Report) -> Comparison {
    let interleaved = a.pair.is_some() && a.pair == b.pair && a.runs.len() == b.runs.len();
    let differences: Vec<Difference> = METRICS
        .iter()
        .filter_map(|(metric, name, unit, less_is_better, figure)| {
            let figures = |r: &Report| r.runs.iter().map(figure).collect::<Option<Vec<f64>>>();
            let (x, y) = (figures(a)?, figures(b)?);
            (!x.is_empty() && !y.is_empty())
                .then(|| difference(metric, name, *unit, *less_is_better, &x, &y, interleaved))
        })
        .collect();
    let mut warnings = Vec::new();
    if a.load != b.load {
        warnings.push("the two were loaded differently (model, connections, rate, threads or timeout)".to_string());
    }
    if a.workload != b.workload {
        warnings.push("the two were asked different things (mix, keys, sizes or seed)".to_string());
    }
    for (name, report) in [("A", a), ("B", b)] {
        let invalid = report.runs.iter().filter(|r| !r.valid).count();
        if invalid > 0 {
            warnings.push(format!("{invalid} of {name}'s {} runs are invalid", report.runs.len()));
        }
        if report.runs.iter().any(|r| r.interrupted) {
            warnings.push(format!("a run of {name} was ended before its time"));
        }
        if report.runs.iter().any(|r| bottleneck(&report.load, &r.generator.thread_busy_share).is_some()) {
            warnings.push(format!(
                "in runs of {name} the generator was the bottleneck: throughput is its own, not the server's"
            ));
        }
    }
    let of = |metric: &str| differences.iter().find(|d| d.metric == metric);
    // One metric decides: of eight intervals of 95 % every third comparison would have one that is wrong.
    let headline = if a.load.open_loop { "latency_us_p99" } else { "throughput_per_s" };
    let mut sentence = match of(headline) {
        _ if a.runs.len().min(b.runs.len()) < 3 => format!(
            "With {} against {} no difference can be shown; make at least three of each, in turn: --against URL \
             --repeat 5",
            plural(a.runs.len(), "run"),
            b.runs.len()
        ),
        Some(d) => d.sentence.clone(),
        None => "There is nothing to compare.".to_string(),
    };
    // What fails is not fast.
    let failed = |r: &Report| {
        let (failed, all) = r.runs.iter().fold((0, 0), |(f, n), r| (f + r.refused + r.unanswered, n + r.requests));
        failed as f64 / all.max(1) as f64
    };
    let (fa, fb) = (failed(a), failed(b));
    if fa.max(fb) > 0.001 && (fa - fb).abs() > 0.1 * fa.max(fb) {
        let (worse, share) = if fa > fb { ("A", fa) } else { ("B", fb) };
        sentence = format!(
            "{} of {worse}'s requests failed, {} of the other's: the two are not to be compared by their speed. \
             {sentence}",
            percent(share),
            percent(fa.min(fb))
        );
    }
    if a.runs.iter().chain(&b.runs).any(|r| !r.valid) {
        sentence = format!("Some of the runs are invalid, and so may be what follows. {sentence}");
    }
    let side = |r: &Report| Side {
        target: r.target.clone(),
        version: r.deployment.version.clone(),
        runs: r.runs.len(),
        invalid: r.runs.iter().filter(|r| !r.valid).count(),
    };
    Comparison {
        schema: SCHEMA.into(),
        a: side(a),
        b: side(b),
        interleaved,
        differences,
        warnings,
        sentence,
        reports: Vec::new(),
    }
}

fn difference(
    metric: &str,
    name: &str,
    unit: Unit,
    less_is_better: bool,
    x: &[f64],
    y: &[f64],
    paired: bool,
) -> Difference {
    let (a, b) = (mean(x), mean(y));
    let interval = bootstrap(x, y, paired && x.len() == y.len());
    let shown = interval.is_some_and(|(low, high)| low > 0.0 || high < 0.0);
    let sentence = match interval {
        Some((low, high)) if shown => format!(
            "{name} {} from {} to {} (95 % interval of the difference {} to {}, {} and {} runs)",
            if b < a { "fell" } else { "rose" },
            unit.text(a),
            unit.text(b),
            unit.text(low),
            unit.text(high),
            x.len(),
            y.len()
        ),
        Some((low, high)) => format!(
            "{name}: no difference can be shown ({} and {}; 95 % interval of the difference {} to {})",
            unit.text(a),
            unit.text(b),
            unit.text(low),
            unit.text(high)
        ),
        None => format!("{name}: {} and {}, too few runs to say more", unit.text(a), unit.text(b)),
    };
    Difference {
        metric: metric.into(),
        name: name.into(),
        a,
        b,
        ratio: (a != 0.0).then(|| round(b / a)),
        interval: interval.map(|(low, high)| Bounds { low, high }),
        shown,
        better: shown.then_some((b < a) == less_is_better),
        sentence,
    }
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

/// The middle 95 % of the resampled differences of means.
fn bootstrap(x: &[f64], y: &[f64], paired: bool) -> Option<(f64, f64)> {
    const ROUNDS: usize = 10_000;
    if x.len().min(y.len()) < 3 {
        return None;
    }
    let mut random = SmallRng::seed_from_u64(1993); // the same reports give the same interval
    let mut differences: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            if paired {
                let sum: f64 = (0..x.len()).map(|_| random.random_range(0..x.len())).map(|i| y[i] - x[i]).sum();
                sum / x.len() as f64
            } else {
                let mut draw =
                    |v: &[f64]| (0..v.len()).map(|_| v[random.random_range(0..v.len())]).sum::<f64>() / v.len() as f64;
                draw(y) - draw(x)
            }
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    let at = |q: f64| differences[(q * (ROUNDS - 1) as f64).round() as usize];
    let (n, centre) = (x.len().min(y.len()) as f64, mean(y) - mean(x));
    let freedom = if paired { n - 1.0 } else { 2.0 * (n - 1.0) };
    let wider = student(freedom as usize) / 1.96 * (n / (n - 1.0)).sqrt();
    Some((centre - (centre - at(0.025)) * wider, centre + (at(0.975) - centre) * wider))
}

/// The 97.5 % point of Student's t.
fn student(freedom: usize) -> f64 {
    const POINTS: [f64; 20] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086,
    ];
    POINTS.get(freedom - 1).copied().unwrap_or(1.96 + 2.5 / freedom as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Deployment, Generator, Latency};
    use crate::workload::Spec;

    #[test]
    fn shows_what_differs_and_not_what_does_not() {
        let x = [100.0, 104.0, 98.0, 101.0, 99.0];
        let slower = x.map(|v| v + 10.0);
        let d = difference("m", "p99", Unit::Us, true, &x, &slower, false);
        assert!(d.shown && d.better == Some(false) && d.sentence.contains("rose from 100 us to 110 us"), "{d:?}");
        let alike = [101.0, 99.0, 103.0, 98.0, 100.5];
        let d = difference("m", "p99", Unit::Us, true, &x, &alike, false);
        assert!(!d.shown && d.sentence.contains("no difference can be shown"), "{d:?}");
    }

    #[test]
    fn pairs_cancel_what_slowed_both() {
        // The machine drifts by far more than the two differ.
        let x = [100.0, 200.0, 300.0, 400.0, 500.0];
        let y = x.map(|v| v - 5.0);
        assert!(!difference("m", "p99", Unit::Us, true, &x, &y, false).shown);
        let paired = difference("m", "p99", Unit::Us, true, &x, &y, true);
        assert!(paired.shown && paired.better == Some(true), "{paired:?}");
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        use rand_distr::{Distribution, Normal};
        let normal = Normal::new(100.0, 10.0).unwrap();
        let mut random = SmallRng::seed_from_u64(5);
        for (runs, paired) in [(3, true), (5, true), (10, true), (3, false), (5, false), (10, false)] {
            let mut covered = 0;
            for _ in 0..200 {
                let mut draw = || (0..runs).map(|_| normal.sample(&mut random)).collect::<Vec<f64>>();
                let (low, high) = bootstrap(&draw(), &draw(), paired).unwrap();
                covered += usize::from(low <= 0.0 && high >= 0.0);
            }
            // 190 are meant; three standard deviations are 9.
            assert!((178..=199).contains(&covered), "{runs} runs, paired {paired}: {covered} of 200 intervals hold 0");
        }
    }

    #[test]
    fn too_few_runs_show_nothing() {
        assert_eq!(bootstrap(&[1.0, 2.0], &[3.0, 4.0, 5.0], false), None);
    }

    /// A run of 1,000 requests that took so long in the middle, twice as long at p99.
    fn run(us: f64) -> Run {
        let latency = Latency {
            count: 1000,
            us_mean: us,
            us_p50: us,
            us_p90: us,
            us_p99: us * 2.0,
            us_p99_9: us * 3.0,
            us_p99_99: us * 3.0,
            us_p99_999: us * 3.0,
            us_max: us * 3.0,
        };
        Run {
            seconds: 1.0,
            drain_s: 0.0,
            requests: 1000,
            answered: 1000,
            refused: 0,
            unanswered: 0,
            throughput_per_s: 1000.0,
            latency,
            percentiles: Vec::new(),
            commands: Vec::new(),
            pool_wait: None,
            lateness: None,
            refused_latency: None,
            errors: Vec::new(),
            verified_values: 0,
            wrong_values: 0,
            moved: 0,
            ask: 0,
            received_bytes_per_s: 0.0,
            valid: true,
            doubts: Vec::new(),
            interrupted: false,
            generator: Generator { cpu_us_per_request: 1.0, thread_busy_share: vec![0.1] },
            servers: Vec::new(),
            server_cpu_us_per_request: None,
            timeline: Vec::new(),
            events: Vec::new(),
            pubsub: None,
        }
    }

    /// Runs of an open loop with these medians.
    fn report(medians: &[f64]) -> Report {
        Report {
            schema: crate::report::SCHEMA.into(),
            target: "10.0.0.1:6379".into(),
            at_ms: 0,
            deployment: Deployment {
                kind: unslow_topology::DeploymentKind::Standalone,
                version: "Valkey 9.1.0".into(),
                masters: 1,
                replicas: 0,
            },
            workload: Spec::default(),
            load: crate::report::tests::load(Some(1000.0)),
            preloaded_keys: 0,
            recording: None,
            pair: None,
            runs: medians.iter().map(|us| run(*us)).collect(),
        }
    }

    fn of<'a>(comparison: &'a Comparison, metric: &str) -> &'a Difference {
        comparison.differences.iter().find(|d| d.metric == metric).unwrap()
    }

    const FAST: [f64; 5] = [100.0, 104.0, 98.0, 101.0, 97.0];

    #[test]
    fn a_slower_server_is_told_metric_by_metric_and_one_metric_decides() {
        let (a, mut b) = (report(&FAST), report(&FAST.map(|us| us + 100.0)));
        let told = compare(&a, &b);
        let p50 = of(&told, "latency_us_p50");
        assert!(p50.shown && p50.better == Some(false) && p50.ratio == Some(2.0), "{p50:?}");
        assert!(p50.sentence.starts_with("p50 rose from 100 us to 200 us (95 % interval"), "{p50:?}");
        assert!(p50.sentence.ends_with("5 and 5 runs)"), "{p50:?}");
        let bounds = p50.interval.unwrap();
        assert!(bounds.low > 90.0 && bounds.low < 100.0 && bounds.high > 100.0 && bounds.high < 110.0, "{bounds:?}");
        assert!(told.sentence.starts_with("p99 rose from 200 us to 400 us"), "{}", told.sentence);
        assert!(told.warnings.is_empty() && !told.interleaved, "{:?}", told.warnings);
        assert!(!of(&told, "throughput_per_s").shown && of(&told, "throughput_per_s").better.is_none());
        assert_eq!((told.a.runs, told.b.runs, told.b.invalid), (5, 5, 0));
        // The other way round it is better.
        let back = compare(&b, &a);
        let p50 = of(&back, "latency_us_p50");
        assert!(p50.better == Some(true) && p50.sentence.starts_with("p50 fell from 200 us to 100 us"), "{p50:?}");
        // In a closed loop throughput decides, and more of it is better.
        let mut a = a;
        (a.load, b.load) = (crate::report::tests::load(None), crate::report::tests::load(None));
        for (i, run) in b.runs.iter_mut().enumerate() {
            run.throughput_per_s = 2000.0 + i as f64;
        }
        let told = compare(&a, &b);
        assert!(told.sentence.starts_with("throughput rose from 1,000/s to 2,002/s"), "{}", told.sentence);
        assert_eq!(of(&told, "throughput_per_s").better, Some(true));
    }

    #[test]
    fn what_does_not_differ_by_more_than_it_varies_is_no_difference() {
        let told = compare(&report(&FAST), &report(&[101.0, 99.0, 103.0, 98.0, 100.5]));
        assert!(
            told.sentence.starts_with("p99: no difference can be shown (200 us and 201 us; 95 %"),
            "{}",
            told.sentence
        );
        assert!(told.differences.iter().all(|d| !d.shown && d.better.is_none()), "{:?}", told.differences);
        let one = compare(&report(&FAST[..1]), &report(&FAST));
        assert!(one.sentence.contains("With 1 run against 5 no difference can be shown"), "{}", one.sentence);
        assert!(one.sentence.contains("--repeat 5") && one.differences.iter().all(|d| d.interval.is_none()));
        assert!(of(&one, "latency_us_p50").sentence.ends_with("too few runs to say more"));
    }

    #[test]
    fn only_runs_that_were_made_in_turn_are_pairs() {
        // The machine drifts by far more than the two differ.
        let drift = [100.0, 200.0, 300.0, 400.0, 500.0];
        let (mut a, mut b) = (report(&drift), report(&drift.map(|us| us - 5.0)));
        assert!(!compare(&a, &b).interleaved && !of(&compare(&a, &b), "latency_us_p50").shown);
        (a.pair, b.pair) = (Some("1-1".into()), Some("1-2".into()));
        assert!(!compare(&a, &b).interleaved, "of two different comparisons");
        b.pair.clone_from(&a.pair);
        let told = compare(&a, &b);
        assert!(told.interleaved && of(&told, "latency_us_p50").better == Some(true), "{:?}", told.differences);
        b.runs.pop();
        assert!(!compare(&a, &b).interleaved, "a run without its other");
    }

    #[test]
    fn what_differs_in_how_they_were_measured_is_said() {
        let (a, mut b) = (report(&FAST), report(&FAST));
        b.load.connections += 1;
        b.workload.keys += 1;
        b.runs[1].valid = false;
        b.runs[4].interrupted = true;
        b.load.open_loop = false;
        b.runs[2].generator.thread_busy_share = vec![0.3, 0.99];
        let told = compare(&a, &b);
        let said =
            ["loaded differently", "asked different things", "1 of B's 5 runs are invalid", "a run of B was ended"];
        for (said, warning) in said.iter().zip(&told.warnings) {
            assert!(warning.contains(said), "{said}: {:?}", told.warnings);
        }
        assert!(told.warnings.len() == 5 && told.warnings[4].contains("in runs of B"), "{:?}", told.warnings);
        assert!(told.sentence.starts_with("Some of the runs are invalid"), "{}", told.sentence);
        assert_eq!(told.b.invalid, 1);
    }

    #[test]
    fn who_fails_is_not_compared_by_speed() {
        let (a, mut b) = (report(&FAST.map(|us| us * 10.0)), report(&FAST));
        for run in &mut b.runs {
            (run.answered, run.refused, run.unanswered) = (800, 150, 50);
        }
        let told = compare(&a, &b);
        assert!(told.sentence.starts_with("20 % of B's requests failed, 0 % of the other's"), "{}", told.sentence);
        assert_eq!(of(&told, "failed_share").b, 0.2);
        // As many on both sides are no reason.
        let told = compare(&b, &b);
        assert!(!told.sentence.contains("failed"), "{}", told.sentence);
    }

    #[test]
    fn kept_reports_are_compared_as_they_were() {
        let (a, b) = (report(&FAST), report(&FAST.map(|us| us * 1.5)));
        let kept =
            |report: &Report| -> Report { serde_json::from_str(&serde_json::to_string(report).unwrap()).unwrap() };
        let (now, later) = (compare(&a, &b), compare(&kept(&a), &kept(&b)));
        assert_eq!(serde_json::to_value(&now).unwrap(), serde_json::to_value(&later).unwrap());
    }
}
