//! A benchmark as one self-contained page: latency, throughput and errors over time with what happened marked, and the
//! distribution on a log axis. No script, no font, no request to anywhere.

use anyhow::Context;
use minijinja::{Environment, Value, context};
use plotters::prelude::*;
use unslow_bench::{Latency, Report, Run, time};
use unslow_doctor::measure::{count, percent};

use crate::html::date;

/// Lines of one plot: name and points.
type Lines = Vec<(String, Vec<(f64, f64)>)>;

pub fn page(reports: &[Report]) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    // The name ends in .html: everything put into it is escaped.
    environment.add_template("bench.html", include_str!("../templates/bench.html"))?;
    let first = reports.first().context("no report")?;
    let mut runs = Vec::new();
    for report in reports {
        for (i, run) in report.runs.iter().enumerate() {
            let name = match (reports.len(), report.runs.len()) {
                (1, 1) => String::new(),
                (1, _) => format!("run {}", i + 1),
                _ => format!("{}, run {}", report.target, i + 1),
            };
            runs.push(view(&name, run)?);
        }
    }
    let cdf: Lines = reports
        .iter()
        .flat_map(|report| {
            report.runs.iter().enumerate().map(|(i, run)| {
                let points = run.percentiles.iter().filter(|p| p.share < 1.0).map(|p| (-(1.0 - p.share).log10(), p.us));
                (format!("{} run {}", report.target, i + 1), points.collect())
            })
        })
        .collect();
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
    environment
        .get_template("bench.html")?
        .render(context! {
            title, how, taken => date(first.at_ms), unslow => env!("CARGO_PKG_VERSION"),
            load => format!("{} connections a server, model {}, {} generator thread(s)", load.connections, load.model, load.threads),
            workload => serde_json::to_string(&first.workload)?,
            runs, cdf => distribution(cdf)?,
        })
        .context("the page could not be rendered")
}

fn view(name: &str, run: &Run) -> anyhow::Result<Value> {
    let at = |s: &unslow_bench::Second| f64::from(s.at_s);
    // A second without an answer is a gap in the latency, not a zero and not a line across.
    let latency = |f: fn(&unslow_bench::Second) -> f64| {
        run.timeline.iter().map(|s| (at(s), if f(s) > 0.0 { f(s) } else { f64::NAN })).collect::<Vec<_>>()
    };
    let marks: Vec<f64> = run.events.iter().map(|e| e.at_s).collect();
    let over_time = vec![
        ("p50".to_string(), latency(|s| s.latency_us_p50)),
        ("p99".to_string(), latency(|s| s.latency_us_p99)),
        ("p99.9".to_string(), latency(|s| s.latency_us_p99_9)),
        ("max".to_string(), latency(|s| s.latency_us_max)),
    ];
    let throughput = vec![
        ("answered".to_string(), run.timeline.iter().map(|s| (at(s), s.answered as f64)).collect()),
        (
            "waiting at the end of the second".to_string(),
            run.timeline.iter().map(|s| (at(s), s.waiting as f64)).collect(),
        ),
    ];
    let mut kinds: Vec<&String> = run.timeline.iter().flat_map(|s| s.error_kinds.iter().map(|k| &k.kind)).collect();
    kinds.sort();
    kinds.dedup();
    let errors: Lines = kinds
        .iter()
        .map(|kind| {
            let of = |s: &unslow_bench::Second| {
                s.error_kinds.iter().find(|k| k.kind == **kind).map_or(0.0, |k| k.count as f64)
            };
            ((*kind).clone(), run.timeline.iter().map(|s| (at(s), of(s))).collect())
        })
        .collect();
    let mut plots = vec![
        context! { title => "Latency over time, us (log)", svg => timeline(over_time, "us", true, &marks)? },
        context! { title => "Requests per second", svg => timeline(throughput, "requests", false, &marks)? },
    ];
    if !errors.is_empty() {
        plots.push(context! { title => "Errors per second", svg => timeline(errors, "errors", false, &marks)? });
    }
    let row = |name: &str, l: &Latency| {
        let cells: Vec<String> =
            [l.us_mean, l.us_p50, l.us_p90, l.us_p99, l.us_p99_9, l.us_p99_99, l.us_p99_999, l.us_max]
                .map(time)
                .to_vec();
        context! { name, count => count(l.count as f64), cells }
    };
    let mut rows = vec![row(if run.lateness.is_some() { "from due to answered" } else { "latency" }, &run.latency)];
    rows.extend(run.commands.iter().filter(|_| run.commands.len() > 1).map(|c| row(&c.name, &c.latency)));
    rows.extend(run.pool_wait.iter().map(|l| row("of it waiting for a connection", l)));
    rows.extend(run.lateness.iter().map(|l| row("generator's lateness", l)));
    rows.extend(run.refused_latency.iter().map(|l| row("error replies", l)));
    let servers: Vec<Value> = run
        .servers
        .iter()
        .map(|s| context! { address => s.address, role => s.role, cpu => s.cpu_share.map_or("unknown".into(), percent), each => s.cpu_us_per_command.map_or("unknown".into(), time) })
        .collect();
    Ok(context! {
        name, rows, plots, servers,
        valid => run.valid, doubts => run.doubts,
        headline => format!("{} requests/s, p50 {}, p99 {}, p99.9 {}", count(run.throughput_per_s), time(run.latency.us_p50), time(run.latency.us_p99), time(run.latency.us_p99_9)),
        cost => format!("The generator used {} of CPU a request, the servers {}.", time(run.generator.cpu_us_per_request), run.server_cpu_us_per_request.map_or("an unknown amount".into(), time)),
        errors => run.errors.iter().map(|e| context! { kind => e.kind, count => count(e.count as f64), example => e.example }).collect::<Vec<_>>(),
        events => run.events.iter().map(|e| context! { at => format!("{:.2}", e.at_s), text => e.text }).collect::<Vec<_>>(),
    })
}

fn failed(e: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("plot: {e}")
}

/// Lines over the run's seconds, with a mark where something happened.
fn timeline(lines: Lines, unit: &str, log: bool, marks: &[f64]) -> anyhow::Result<String> {
    let points = || lines.iter().flat_map(|(_, p)| p).filter(|p| !p.1.is_nan());
    let right = points().map(|p| p.0).fold(1.0, f64::max);
    let top = points().map(|p| p.1).fold(1.0, f64::max) * 1.2;
    let bottom = points().map(|p| p.1).fold(top, f64::min).max(0.1) * 0.8;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1000, 260)).into_drawing_area();
        let mut builder = ChartBuilder::on(&area);
        builder.margin(10).x_label_area_size(30).y_label_area_size(80);
        // The two axes are two types.
        macro_rules! draw {
            ($chart:expr, $low:expr) => {{
                let mut chart = $chart.map_err(failed)?;
                chart.configure_mesh().disable_x_mesh().x_desc("s").y_desc(unit).draw().map_err(failed)?;
                for mark in marks {
                    let line = PathElement::new([(*mark, $low), (*mark, top)], RED.mix(0.35).stroke_width(1));
                    chart.draw_series([line]).map_err(failed)?;
                }
                for (i, (name, points)) in lines.into_iter().enumerate() {
                    let colour = Palette99::pick(i).to_rgba();
                    for (part, unbroken) in points.split(|p| p.1.is_nan()).filter(|p| !p.is_empty()).enumerate() {
                        // A second alone between two gaps is a dot.
                        let dots = unbroken
                            .iter()
                            .filter(|_| unbroken.len() == 1)
                            .map(|p| Circle::new(*p, 2, colour.filled()));
                        chart.draw_series(dots).map_err(failed)?;
                        let line = LineSeries::new(unbroken.iter().copied(), colour.stroke_width(2));
                        let drawn = chart.draw_series(line).map_err(failed)?;
                        if part == 0 {
                            drawn
                                .label(name.clone())
                                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
                        }
                    }
                }
                chart
                    .configure_series_labels()
                    .background_style(WHITE.mix(0.8))
                    .border_style(BLACK.mix(0.3))
                    .draw()
                    .map_err(failed)?;
            }};
        }
        match log {
            true => draw!(builder.build_cartesian_2d(0.0..right, (bottom..top).log_scale()), bottom),
            false => draw!(builder.build_cartesian_2d(0.0..right, 0.0..top), 0.0),
        }
        area.present().map_err(failed)?;
    }
    Ok(svg)
}

/// Latency by the number of nines: the tail takes as much room as the rest.
fn distribution(lines: Lines) -> anyhow::Result<String> {
    let points = || lines.iter().flat_map(|(_, p)| p);
    let right = points().map(|p| p.0).fold(2.0, f64::max);
    let top = points().map(|p| p.1).fold(1.0, f64::max) * 1.2;
    let bottom = points().map(|p| p.1).fold(top, f64::min).max(0.1) * 0.8;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1000, 320)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..right, (bottom..top).log_scale())
            .map_err(failed)?;
        let nines = |x: &f64| match 1.0 - 10f64.powf(-x) {
            q if *x < 0.5 => format!("{:.0} %", q * 100.0),
            q => format!("{:.*} %", (*x - 1.5).max(0.0).round() as usize, q * 100.0),
        };
        chart
            .configure_mesh()
            .x_labels(right as usize + 1)
            .x_label_formatter(&nines)
            .x_desc("share of requests")
            .y_desc("us")
            .draw()
            .map_err(failed)?;
        for (i, (name, points)) in lines.into_iter().enumerate() {
            let colour = Palette99::pick(i).to_rgba();
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))
                .map_err(failed)?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(failed)?;
        area.present().map_err(failed)?;
    }
    Ok(svg)
}
