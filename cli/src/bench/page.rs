//! A benchmark as a page: the verdict and its table, the distribution on a log axis, then latency, throughput and
//! errors over time with events marked. JSON comes last, folded.

use anyhow::Context;
use minijinja::{Value, context};
use unslow_bench::{Comparison, Latency, Report, Run, Second};
use unslow_units::{count, percent, plural, time_us};

use super::text;
use crate::chart::{Along, Line, LineChart, Unit, Values};
use crate::frame::{self, date};

/// A second of a run in microseconds, as charts have time.
const SECOND: f64 = 1e6;
/// A second that lacks no more than this is whole: clocks are read a moment late.
const WHOLE: f64 = 0.95;

pub fn render(reports: &[Report], comparison: Option<&Comparison>) -> anyhow::Result<String> {
    let first = reports.first().context("no report")?;
    let mut runs = Vec::new();
    let mut lines: Vec<Line> = Vec::new();
    for report in reports {
        for (i, run) in report.runs.iter().enumerate() {
            let name = match (reports.len(), report.runs.len()) {
                (1, 1) => String::new(),
                (1, _) => format!("run {}", i + 1),
                _ => format!("{}, run {}", report.target, i + 1),
            };
            let points = run.percentiles.iter().filter(|p| p.share < 1.0).map(|p| (-(1.0 - p.share).log10(), p.us));
            lines.push((format!("{} run {}", report.target, i + 1), points.collect()));
            runs.push(view(&name, run));
        }
    }
    let title = "share of requests and their latency";
    let distribution =
        LineChart { title, lines, along: Along::Nines, values: Values::Log(Unit::Time), marks: &[] }.html();
    let load = &first.load;
    let how = match load.open_loop {
        true if load.rate_per_s.is_empty() => "open loop, as recorded".to_string(),
        true => format!(
            "open loop, {} requests/s",
            load.rate_per_s.iter().map(|r| count(*r)).collect::<Vec<_>>().join(", ")
        ),
        false => "closed loop".into(),
    };
    let title = reports
        .iter()
        .map(|r| format!("{} at {}", r.deployment.version, r.target))
        .collect::<Vec<_>>()
        .join(" against ");
    let mut asked: Vec<String> = reports.iter().map(text::asked).collect();
    asked.dedup();
    let values = context! {
        title, how, taken => date(first.at_ms), unslow => env!("CARGO_PKG_VERSION"),
        load => format!(
            "{} per server, model {}, {}",
            plural(load.connections, "connection"),
            load.model,
            plural(load.threads, "generator thread")
        ),
        workload => serde_json::to_string_pretty(&first.workload)?,
        comparison => comparison.map(
            |c| context! { sentence => c.sentence, differences => c.differences, warnings => c.warnings }
        ),
        asked, runs, distribution,
    };
    frame::render("bench.html", include_str!("../../templates/bench.html"), values)
}

fn view(name: &str, run: &Run) -> Value {
    let row = |name: &str, l: &Latency| {
        let cells: Vec<String> =
            [l.us_mean, l.us_p50, l.us_p90, l.us_p99, l.us_p99_9, l.us_p99_99, l.us_p99_999, l.us_max]
                .map(time_us)
                .to_vec();
        context! { name, count => count(l.count as f64), cells }
    };
    let mut rows = vec![row(if run.lateness.is_some() { "from due to answered" } else { "latency" }, &run.latency)];
    rows.extend(run.commands.iter().filter(|_| run.commands.len() > 1).map(|c| row(&c.name, &c.latency)));
    rows.extend(run.pool_wait.iter().map(|l| row("of which waiting for a connection", l)));
    rows.extend(run.lateness.iter().map(|l| row("generator's lateness", l)));
    rows.extend(run.refused_latency.iter().map(|l| row("error replies", l)));
    let servers: Vec<Value> = run
        .servers
        .iter()
        .map(|s| {
            let cpu = s.cpu_share.map_or("unknown".into(), percent);
            let each = s.cpu_us_per_command.map_or("unknown".into(), time_us);
            context! { address => s.address, role => s.role, cpu, each }
        })
        .collect();
    let errors = run.errors.iter().map(|e| {
        let number = count(e.count as f64);
        context! { kind => e.kind, count => number, example => e.example }
    });
    let events = run.events.iter().map(|e| context! { at => format!("{:.2}", e.at_s), text => e.text });
    let cost = format!(
        "The generator used {} of CPU per request, the servers {}.",
        time_us(run.generator.cpu_us_per_request),
        run.server_cpu_us_per_request.map_or("an unknown amount".into(), time_us)
    );
    context! {
        name, rows, servers, cost,
        plots => plots(run),
        valid => run.valid, doubts => run.doubts,
        headline => text::sentence(run),
        errors => errors.collect::<Vec<_>>(),
        events => events.collect::<Vec<_>>(),
    }
}

fn plots(run: &Run) -> Vec<Value> {
    let marks: Vec<f64> = run.events.iter().map(|e| e.at_s * SECOND).collect();
    let plot = |title: &str, note: Option<String>, lines: Vec<Line>, values: Values| {
        let along = Along::TimeUntil(run.seconds * SECOND);
        context! { title, note, chart => LineChart { title, lines, along, values, marks: &marks }.html() }
    };
    let whole = whole_seconds(&run.timeline, run.seconds);
    // The few answers of a last, partial second have percentiles of their own, at a time after the run's end. A run of
    // less than a second has nothing else.
    let timed = if whole.is_empty() { &run.timeline[..] } else { whole };
    // A second without an answer is a gap in the latency, not a zero and not a line across.
    let latency = |name: &str, f: fn(&Second) -> f64| {
        let points = timed.iter().map(|s| (middle(s), if f(s) > 0.0 { f(s) } else { f64::NAN }));
        (name.to_string(), points.collect::<Vec<_>>())
    };
    let over_time = vec![
        latency("p50", |s| s.latency_us_p50),
        latency("p99", |s| s.latency_us_p99),
        latency("p99.9", |s| s.latency_us_p99_9),
        latency("max", |s| s.latency_us_max),
    ];
    let loaded = whole_seconds(&run.timeline, run.seconds - run.drain_s);
    let each = |name: &str, f: fn(&Second) -> u64| {
        (name.to_string(), loaded.iter().map(|s| (middle(s), f(s) as f64)).collect::<Vec<_>>())
    };
    let throughput = vec![each("answered", |s| s.answered), each("waiting at the end of the second", |s| s.waiting)];
    let rest = run.timeline.len() > loaded.len();
    let note = rest.then(|| "Whole seconds under load only; the last, partial second is not drawn.".to_string());
    let partial = timed.len() < run.timeline.len();
    let latency_note = partial.then(|| "The last, partial second is not drawn.".to_string());
    let mut plots = vec![
        plot("Latency over time", latency_note, over_time, Values::Log(Unit::Time)),
        plot("Requests per second", note, throughput, Values::Linear(Unit::Count)),
    ];
    let errors = errors(&run.timeline, whole);
    if !errors.is_empty() {
        let later: u64 = run.timeline[whole.len()..].iter().map(|s| s.errors).sum();
        let note = (later > 0).then(|| format!("{} more in the last, partial second.", count(later as f64)));
        plots.push(plot("Errors per second", note, errors, Values::Linear(Unit::Count)));
    }
    plots
}

/// Counts of a second are drawn at its middle.
fn middle(second: &Second) -> f64 {
    (f64::from(second.at_s) + 0.5) * SECOND
}

/// The seconds that were over by `end_s`. The part of a second that follows would look like a fall to zero.
fn whole_seconds(timeline: &[Second], end_s: f64) -> &[Second] {
    let whole = timeline.iter().take_while(|s| f64::from(s.at_s) + WHOLE <= end_s).count();
    &timeline[..whole]
}

/// A line for each kind of error there was, over `drawn` of the seconds.
fn errors(timeline: &[Second], drawn: &[Second]) -> Vec<Line> {
    let mut kinds: Vec<&String> = timeline.iter().flat_map(|s| s.error_kinds.iter().map(|k| &k.kind)).collect();
    kinds.sort();
    kinds.dedup();
    let of = |s: &Second, kind: &str| s.error_kinds.iter().find(|k| k.kind == kind).map_or(0.0, |k| k.count as f64);
    let line =
        |kind: &String| (kind.clone(), drawn.iter().map(|s| (middle(s), of(s, kind.as_str()))).collect::<Vec<_>>());
    kinds.into_iter().map(line).collect()
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::frame::tests::assert_framed;

    fn second(at_s: u32, answered: u64) -> Json {
        json!({
            "at_s": at_s, "answered": answered, "errors": 1, "error_kinds": [{"kind": "timeout", "count": 1}],
            "latency_us_p50": 100.0, "latency_us_p99": 900.0, "latency_us_p99_9": 5000.0, "latency_us_max": 100000.0,
            "waiting": 0, "connections": 50, "moved": 0, "lateness_us_max": 10.0,
        })
    }

    /// A run that loads for 4.2 s and waits for answers until 5.3 s.
    pub fn report() -> Report {
        let latency = json!({
            "count": 4000, "us_mean": 120.0, "us_p50": 100.0, "us_p90": 200.0, "us_p99": 900.0, "us_p99_9": 5000.0,
            "us_p99_99": 90000.0, "us_p99_999": 100000.0, "us_max": 100000.0,
        });
        let percentiles: Vec<Json> = (0..=30)
            .map(|i| json!({"share": 1.0 - 10f64.powf(-f64::from(i) / 10.0), "us": 100.0 + f64::from(i)}))
            .collect();
        let timeline: Vec<Json> = (0..6).map(|at_s| second(at_s, if at_s < 4 { 1000 } else { 7 })).collect();
        let run = json!({
            "seconds": 5.3, "drain_s": 1.1, "requests": 4020, "answered": 4014, "refused": 0, "unanswered": 6,
            "throughput_per_s": 760.0, "latency": latency, "percentiles": percentiles, "commands": [],
        });
        let rest = json!({
            "errors": [{"kind": "timeout", "count": 6, "example": "<b>"}], "verified_values": 0, "wrong_values": 0,
            "moved": 0, "ask": 0, "received_bytes_per_s": 1.0, "valid": true, "doubts": ["a doubt"],
            "interrupted": false,
            "generator": {"cpu_us_per_request": 3.0, "thread_busy_share": [0.1]}, "servers": [], "timeline": timeline,
            "events": [{"at_s": 2.5, "text": "slots moved"}],
        });
        let run: serde_json::Map<String, Json> =
            [run, rest].iter().filter_map(Json::as_object).flat_map(Clone::clone).collect();
        let spec = unslow_bench::Spec { key_prefix: "<b>&:".into(), ..unslow_bench::Spec::default() };
        serde_json::from_value(json!({
            "schema": unslow_bench::SCHEMA, "target": "h:1", "at_ms": 1_000,
            "deployment": {"kind": "cluster", "version": "valkey 9.1.0", "masters": 3, "replicas": 3},
            "workload": spec, "preloaded_keys": 0, "runs": [run],
            "load": {
                "open_loop": true, "rate_per_s": [1000.0], "arrivals": null, "model": "own", "connections": 50,
                "in_flight_max": 1, "callers": null, "threads": 1, "length_s": 4.2, "requests_max": null,
                "subscribers": 0,
                "protocol": 3, "tls": false, "speed": null, "timeout_s": 1.0, "read_from": "primary",
                "lateness_us_allowed": 5000.0,
            },
        }))
        .expect("a report")
    }

    #[test]
    fn a_page_is_framed_and_opens_with_the_result() {
        let page = render(&[report()], None).expect("a page");
        assert_framed(&page);
        let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what} in\n{page}"));
        assert!(at("class=\"verdict\"") < at("p99.999</th>") && at("p99.999</th>") < at("Distribution"));
        assert!(at("Latency over time") < at("<details id=\"workload\""), "JSON is the last");
        let (read, folded) = page.split_once("<details id=\"workload\"").expect("the workload");
        assert!(folded.contains("key_distribution") && !read.contains("key_distribution"), "raw JSON at the reader");
        assert!(!page.contains("<b>&") && folded.contains("&lt;b&gt;&amp;:"), "a key prefix is text, not markup");
    }

    #[test]
    fn the_rest_of_a_second_is_not_drawn_as_a_fall() {
        let report = report();
        let run = &report.runs[0];
        assert_eq!(whole_seconds(&run.timeline, run.seconds - run.drain_s).len(), 4);
        assert_eq!(whole_seconds(&run.timeline, run.seconds).len(), 5);
        // An end that was read a moment early or late changes nothing.
        for end in [3.97, 4.0, 4.003] {
            assert_eq!(whole_seconds(&run.timeline, end).len(), 4, "{end}");
        }
        assert!(whole_seconds(&run.timeline, 0.4).is_empty() && whole_seconds(&[], 3.0).is_empty());
        let page = render(&[report], None).expect("a page");
        let line_of = |chart: &str| {
            let (_, drawn) = page.split_once(&format!("aria-label=\"{chart}\"")).expect("the chart");
            drawn.split("points=\"").nth(1).and_then(|t| t.split('"').next()).expect("a line")
        };
        assert_eq!(line_of("Latency over time").split_whitespace().count(), 5, "nothing after the run's end");
        let line = line_of("Requests per second");
        let heights: Vec<&str> = line.split_whitespace().filter_map(|p| p.split_once(',')).map(|(_, y)| y).collect();
        assert_eq!(heights, ["0.0"; 4], "a steady load is a level line: {line}");
        assert!(
            page.contains("Whole seconds under load") && page.contains("1 more in the last, partial second"),
            "{page}"
        );
    }

    #[test]
    fn a_run_without_a_whole_second_has_a_page() {
        let mut report = report();
        report.runs[0].timeline.truncate(1);
        (report.runs[0].seconds, report.runs[0].drain_s) = (0.3, 0.0);
        let page = render(&[report], None).expect("a page");
        assert_framed(&page);
        assert!(page.contains("Nothing to draw") && page.contains("class=\"dot s1\""), "{page}");
    }
}
