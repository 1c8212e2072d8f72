//! The report of a benchmark on a terminal, and that of a comparison.

use std::fmt::Write;

use unslow_bench::{Arrivals, CommandRun, Comparison, Latency, Report, Run, Side};
use unslow_units::{count, percent, plural, time_us};

use crate::output::style;
use crate::table::table;

/// The report for people.
pub fn report(report: &Report, verbose: bool) -> String {
    let t = style::TITLE;
    let load = &report.load;
    let kind = serde_json::to_value(report.deployment.kind).ok().and_then(|v| v.as_str().map(|s| s.replace('_', "-")));
    let how = if load.open_loop {
        let rates = load.rate_per_s.iter().map(|r| count(*r)).collect::<Vec<_>>().join(", ");
        let arrivals = load.arrivals.map_or("", |a| match a {
            Arrivals::Constant => "evenly spaced",
            Arrivals::Poisson => "Poisson",
            Arrivals::Recorded => "as recorded",
        });
        if rates.is_empty() {
            format!("open loop, {arrivals}")
        } else {
            format!("open loop, {rates} requests/s {arrivals}")
        }
    } else {
        "closed loop".into()
    };
    let mut parts = vec![format!("{} to each server", plural(load.connections, "connection"))];
    if let Some(n) = load.in_flight_max.filter(|n| *n > 1) {
        parts.push(format!("{n} requests in flight on each"));
    }
    if load.model != "own" {
        parts.push(format!("model {}", load.model));
    }
    parts.extend(load.callers.filter(|_| load.model != "own" || load.open_loop).map(|n| plural(n, "caller")));
    if load.threads > 1 {
        parts.push(plural(load.threads, "generator thread"));
    }
    let what = match load.plain {
        true => "unidentified server".to_string(),
        false => format!("{} {}", report.deployment.version, kind.unwrap_or_default()),
    };
    let mut out = format!("{t}{what} at {}{t:#}: {how}; {}\n{}\n", report.target, parts.join(", "), asked(report));
    for (i, run) in report.runs.iter().enumerate() {
        out.push('\n');
        if report.runs.len() > 1 {
            let _ = writeln!(out, "{t}run {} of {}{t:#}", i + 1, report.runs.len());
        }
        out += &run_text(run, verbose);
    }
    let _ = writeln!(out, "\n{}", closing(report));
    out
}

/// The result in a sentence.
pub fn closing(report: &Report) -> String {
    let [run] = &report.runs[..] else { return of_all(&report.runs) };
    sentence(run)
}

/// Of several runs, or of none.
fn of_all(runs: &[Run]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let worst = |f: fn(&Run) -> f64| {
        let mut all: Vec<f64> = runs.iter().map(f).collect();
        all.sort_by(f64::total_cmp);
        (all[0], all[all.len() / 2], all[all.len() - 1])
    };
    let (low, mid, high) = worst(|r| r.latency.us_p99);
    let (slow, rate, fast) = worst(|r| r.throughput_per_s);
    let invalid = runs.iter().filter(|r| !r.valid).count();
    let failed: u64 = runs.iter().map(|r| r.refused + r.unanswered).sum();
    let trouble = match (invalid, failed) {
        (0, 0) => "no errors".to_string(),
        (0, n) => format!("{} requests failed", count(n as f64)),
        (i, n) => format!("{i} of the runs INVALID, {} requests failed", count(n as f64)),
    };
    format!(
        "Of {} runs: p99 {} (median; {} to {}), {} requests/s ({} to {}); {trouble}.",
        runs.len(),
        time_us(mid),
        time_us(low),
        time_us(high),
        count(rate),
        count(slow),
        count(fast)
    )
}

/// What was asked, in a line.
pub fn asked(report: &Report) -> String {
    let spec = &report.workload;
    if let Some(recording) = &report.recording {
        let left = match recording.left_out {
            0 => String::new(),
            n => format!(", {} left out because they would change their connection", count(n as f64)),
        };
        let s = if recording.commands == 1 { "" } else { "s" };
        return format!("a recording of {} command{s}{left}", count(recording.commands as f64));
    }
    let mut names: Vec<String> = report.runs.first().map_or(Vec::new(), |run| {
        let all: u64 = run.commands.iter().map(|c| c.latency.count).sum();
        let share = |c: &CommandRun| percent(c.latency.count as f64 / all.max(1) as f64);
        run.commands
            .iter()
            .map(|c| if run.commands.len() > 1 { format!("{} {}", c.name, share(c)) } else { c.name.clone() })
            .collect()
    });
    if spec.multi > 0 {
        names = vec![format!(
            "blocks of {} commands, each one request named after its first command: {}",
            spec.multi,
            names.join(", ")
        )];
    }
    format!(
        "{}; {} keys {}, values of {} bytes, seed {}",
        names.join(", "),
        count(spec.keys as f64),
        spec.key_distribution,
        spec.value_size,
        spec.seed
    )
}

/// What came of a run, in a sentence.
pub fn sentence(run: &Run) -> String {
    let errors = match run.refused + run.unanswered {
        0 => "no errors".to_string(),
        n => format!("{} of {} requests failed", count(n as f64), count(run.requests as f64)),
    };
    let what = if run.valid { "" } else { "INVALID: " };
    format!(
        "{what}{} requests/s with p50 {}, p99 {}, p99.9 {}; {errors}.",
        count(run.throughput_per_s),
        time_us(run.latency.us_p50),
        time_us(run.latency.us_p99),
        time_us(run.latency.us_p99_9)
    )
}

/// A row for each distribution of latencies.
fn latencies(run: &Run, verbose: bool) -> String {
    let head = ["", "requests", "mean", "p50", "p90", "p99", "p99.9", "max", "p99.99", "p99.999"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    let mut row = |name: &str, l: &Latency| {
        let times = [l.us_mean, l.us_p50, l.us_p90, l.us_p99, l.us_p99_9, l.us_max, l.us_p99_99, l.us_p99_999];
        let mut row = vec![name.to_string(), count(l.count as f64)];
        row.extend(times.map(|t| if l.count == 0 { "-".to_string() } else { time_us(t) }));
        rows.push(row);
    };
    row(if run.lateness.is_some() { "from due to answered" } else { "latency" }, &run.latency);
    if run.commands.len() > 1 {
        for command in run.commands.iter().take(if verbose { 200 } else { 12 }) {
            row(&format!("  {}", command.name), &command.latency);
        }
    }
    if let Some(wait) = &run.pool_wait {
        row("  of which until a connection was free", wait);
    }
    if let Some(late) = &run.lateness {
        row("generator's lateness", late);
    }
    if let Some(refused) = &run.refused_latency {
        row("error replies", refused);
    }
    table(&rows)
}

fn run_text(run: &Run, verbose: bool) -> String {
    let mut out = latencies(run, verbose);
    let busy = run.generator.thread_busy_share.iter().copied().fold(0.0, f64::max);
    let _ = write!(
        out,
        "\n{} answered/s over {}; the generator used {} of CPU per request ({} busy)",
        count(run.throughput_per_s),
        time_us(run.seconds * 1e6),
        time_us(run.generator.cpu_us_per_request),
        percent(busy)
    );
    match run.server_cpu_us_per_request {
        Some(us) => {
            let _ = writeln!(out, ", the servers {}", time_us(us));
        }
        None if run.servers.is_empty() => out.push('\n'),
        None => {
            let _ = writeln!(out, "; the servers' CPU could not be read on all of them, or was too low to measure");
        }
    }
    if verbose {
        for server in &run.servers {
            let share = server.cpu_share.map_or("unknown".into(), percent);
            let each = server.cpu_us_per_command.map_or("?".into(), time_us);
            let _ = writeln!(out, "  {} {}: {share} of a core, {each} per command", server.role, server.address);
        }
    }
    if run.moved + run.ask > 0 {
        let _ =
            writeln!(out, "redirections followed: {} MOVED, {} ASK", count(run.moved as f64), count(run.ask as f64));
    }
    for error in &run.errors {
        let b = style::BAD;
        let _ = writeln!(out, "{b}{}{b:#} {}: {}", count(error.count as f64), error.kind, error.example);
    }
    let troubled = !run.events.is_empty() || run.timeline.iter().any(|s| s.errors > 0 || s.waiting > 1000);
    if troubled && !verbose && run.timeline.len() > 120 {
        let _ = writeln!(
            out,
            "{} seconds and {} events: -v shows them, --html draws them",
            run.timeline.len(),
            run.events.len()
        );
    } else if verbose || troubled {
        out += "\n";
        out += &seconds(run);
        for event in &run.events {
            let _ = writeln!(out, "{:>6.2} s  {}", event.at_s, event.text);
        }
    }
    if let Some(pubsub) = &run.pubsub {
        let l = &pubsub.latency;
        let _ = writeln!(
            out,
            "{} subscribers got {} of {} messages; from publication to delivery p50 {}, p99 {}, p99.9 {}, longest {}",
            pubsub.subscribers,
            count(pubsub.delivered as f64),
            count(pubsub.expected as f64),
            time_us(l.us_p50),
            time_us(l.us_p99),
            time_us(l.us_p99_9),
            time_us(l.us_max)
        );
    }
    for doubt in &run.doubts {
        let w = if run.valid { style::WARN } else { style::BAD };
        let _ = writeln!(out, "{w}!{w:#} {doubt}");
    }
    if run.interrupted {
        let _ = writeln!(out, "ended early: these are the results so far");
    }
    out
}

/// A row for each second.
fn seconds(run: &Run) -> String {
    let seen = |us: f64| if us > 0.0 { time_us(us) } else { "-".to_string() };
    let mut rows = vec![
        ["second", "answered", "errors", "waiting", "p50", "p99", "max", "connections"].map(str::to_string).to_vec(),
    ];
    for s in &run.timeline {
        let kinds: Vec<String> =
            s.error_kinds.iter().map(|k| format!("{} {}", k.kind, count(k.count as f64))).collect();
        rows.push(vec![
            s.at_s.to_string(),
            count(s.answered as f64),
            if kinds.is_empty() { "0".into() } else { kinds.join(", ") },
            count(s.waiting as f64),
            seen(s.latency_us_p50),
            seen(s.latency_us_p99),
            seen(s.latency_us_max),
            s.connections.to_string(),
        ]);
    }
    table(&rows)
}

/// What a comparison found, a line for each metric.
pub fn comparison(comparison: &Comparison) -> String {
    let (t, w) = (style::TITLE, style::WARN);
    let side = |s: &Side| format!("{} at {} ({})", s.version, s.target, plural(s.runs, "run"));
    let turn = if comparison.interleaved { ", in turn" } else { "" };
    let mut out = format!("{t}A{t:#} {}\n{t}B{t:#} {}{turn}\n\n", side(&comparison.a), side(&comparison.b));
    for d in &comparison.differences {
        let mark = match d.better {
            Some(true) => format!("{}+{:#}", style::GOOD, style::GOOD),
            Some(false) => format!("{}-{:#}", style::BAD, style::BAD),
            None => " ".to_string(),
        };
        let _ = writeln!(out, "{mark} {}", d.sentence);
    }
    for warning in &comparison.warnings {
        let _ = writeln!(out, "{w}!{w:#} {warning}");
    }
    let _ = writeln!(out, "\n{}", comparison.sentence);
    out
}
