//! The report as one self-contained page: no script, no font, no request to anywhere.

use anyhow::Context;
use minijinja::{Environment, Value, context};
use plotters::prelude::*;
use serde::Serialize;
use unslow_doctor::measure::{count, percent, time_us};
use unslow_doctor::{Finding, Report, Severity};
use unslow_facts::{Facts, Node};

use crate::text::{self, Sorted, clock};

/// Nodes drawn in one plot, at most: more lines than this cannot be told apart.
const PLOT_NODES: usize = 8;

pub fn page(report: &Report, facts: &Facts) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    // The name ends in .html: everything put into it is escaped.
    environment.add_template("report.html", include_str!("../templates/report.html"))?;
    let sorted = Sorted::of(report);
    let told = |findings: &[&Finding]| -> anyhow::Result<Vec<Value>> {
        findings.iter().map(|f| finding(f, report.at_ms)).collect()
    };
    let elsewhere: Vec<&Finding> = sorted.elsewhere.into_iter().collect();
    let (_, word, verdict) = text::verdict(report);
    let (what, place) = text::head(report);
    let cost = format!(
        "{:.1} s, {} commands, {} of one core on the server that paid most; the most expensive command was {} at {}.",
        report.cost.seconds,
        report.cost.commands,
        percent(report.cost.server_cpu_share),
        report.cost.slowest_command,
        time_us(report.cost.slowest_us)
    );
    environment
        .get_template("report.html")?
        .render(context! {
            report => report, what, place, word, verdict, cost,
            through => text::through(report),
            closing => text::closing(report),
            causes => told(&sorted.causes)?,
            over => told(&sorted.over)?,
            risks => told(&sorted.risks)?,
            elsewhere => told(&elsewhere)?,
            taken => date(report.at_ms),
            topology => topology(report),
            logs => report.logs.iter().map(|line| (date(line.at_ms), line.text.clone())).collect::<Vec<_>>(),
            nodes => nodes(report),
            clients => clients(facts),
            plots => plots(facts)?,
        })
        .context("the page could not be rendered")
}

/// A finding as the page shows it: with its words for how bad, how sure and since when.
fn finding(finding: &Finding, now_ms: u64) -> anyhow::Result<Value> {
    let mut json = serde_json::to_value(finding)?;
    for evidence in json["evidence"].as_array_mut().into_iter().flatten() {
        let at = evidence["at_ms"].as_u64().unwrap_or(0);
        evidence["clock"] = clock(at).into();
    }
    json["severity_words"] = text::severity_words(finding).into();
    json["confidence_words"] = text::confidence_words(finding).into();
    json["when_words"] = text::when_words(finding, now_ms).into();
    Ok(Value::from_serialize(json))
}

/// `2026-11-21 02:31:52Z`.
pub fn date(at_ms: u64) -> String {
    let (year, month, day) = unslow_facts::civil_date(at_ms);
    format!("{year}-{month:02}-{day:02} {}", clock(at_ms))
}

#[derive(Serialize)]
struct Topology {
    width: usize,
    height: usize,
    boxes: Vec<Block>,
    lines: Vec<Line>,
}

#[derive(Serialize)]
struct Block {
    x: usize,
    y: usize,
    address: String,
    what: String,
    detail: String,
    hit: bool,
    down: bool,
}

#[derive(Serialize)]
struct Line {
    x1: usize,
    y1: usize,
    x2: usize,
    y2: usize,
}

/// Masters in rows of five, each with its replicas below.
fn topology(report: &Report) -> Topology {
    const ACROSS: usize = 5;
    const MOST: usize = 60; // beyond it the drawing says less than the table
    let hit = |a: &str| {
        report.findings.iter().any(|f| f.severity_now() > Severity::Risk && f.subjects.iter().any(|s| s == a))
    };
    let all = &report.deployment.nodes;
    let masters: Vec<_> = all
        .iter()
        .filter(|n| n.role == "master" || n.master.as_ref().is_none_or(|m| all.iter().all(|o| o.address != *m)))
        .take(MOST)
        .collect();
    let (mut boxes, mut lines) = (Vec::new(), Vec::new());
    let mut top = 10;
    let mut bottom = 10;
    for (i, master) in masters.iter().enumerate() {
        if i > 0 && i % ACROSS == 0 {
            top = bottom + 20;
        }
        let x = 10 + i % ACROSS * 210;
        let mut block = |n: &unslow_doctor::NodeSummary, y: usize| {
            let load = n.commands_per_s.map_or("not asked".into(), |o| format!("{}/s", count(o)));
            boxes.push(Block {
                x,
                y,
                address: n.address.clone(),
                what: format!("{} {}", n.role, n.zone.as_deref().unwrap_or("")),
                detail: load,
                hit: hit(&n.address),
                down: n.unreachable.is_some(),
            });
            bottom = bottom.max(y + 56);
        };
        block(master, top);
        for (r, replica) in all
            .iter()
            .filter(|n| n.role != "master" && n.master.as_deref() == Some(&master.address))
            .take(4)
            .enumerate()
        {
            let y = top + 76 * (r + 1);
            lines.push(Line { x1: x + 95, y1: y - 20, x2: x + 95, y2: y });
            block(replica, y);
        }
    }
    for (i, sentinel) in report.deployment.sentinels.iter().enumerate() {
        let (x, y) = (10 + i % ACROSS * 210, bottom + 20 + i / ACROSS * 76);
        boxes.push(Block {
            x,
            y,
            address: sentinel.clone(),
            what: "Sentinel".into(),
            detail: String::new(),
            hit: false,
            down: false,
        });
    }
    let height = boxes.iter().map(|b| b.y + 66).max().unwrap_or(20);
    Topology {
        width: 10 + ACROSS.min(masters.len().max(report.deployment.sentinels.len()).max(3)) * 210,
        height,
        boxes,
        lines,
    }
}

fn nodes(report: &Report) -> Vec<Value> {
    let row = |n: &unslow_doctor::NodeSummary| {
        let (user, kernel) = (n.cpu_user_share.unwrap_or(0.0), n.cpu_sys_share.unwrap_or(0.0));
        context! {
            address => n.address, role => n.role, version => n.version,
            rate => n.commands_per_s.map_or("-".into(), count),
            rtt => n.rtt_us_p50.map_or("-".into(), |us| time_us(us.into())),
            cpu => if n.cpu_user_share.is_some() { format!("{} / {}", percent(user), percent(kernel)) } else { n.unreachable.clone().unwrap_or_default() },
            user => (user * 100.0).min(100.0), kernel => (kernel * 100.0).min(100.0),
        }
    };
    report.deployment.nodes.iter().map(row).collect()
}

fn clients(facts: &Facts) -> Vec<Value> {
    let rows = facts.nodes.iter().flat_map(|n| n.sockets.value().into_iter().flatten().map(move |p| (n, p)));
    rows.take(40)
        .map(|(n, p)| context! { server => n.address, host => p.host, sockets => p.sockets, min => time_us(p.min_rtt_us.into()), now => time_us(p.rtt_us_p50.into()), again => format!("{} of {}", p.retransmits, p.segments_out) })
        .collect()
}

fn plots(facts: &Facts) -> anyhow::Result<Vec<Value>> {
    let busiest = |points: fn(&Node) -> bool| -> Vec<&Node> {
        let mut nodes: Vec<&Node> = facts.live().filter(|n| points(n)).collect();
        nodes.sort_by(|a, b| b.ops().unwrap_or(0.0).total_cmp(&a.ops().unwrap_or(0.0)));
        nodes.truncate(PLOT_NODES);
        nodes
    };
    let mut plots = Vec::new();
    let pinged = busiest(|n| n.pings.len() > 1);
    if !pinged.is_empty() {
        let series = pinged
            .iter()
            .map(|n| {
                (
                    n.address.clone(),
                    n.pings.iter().map(|(t, us)| (f64::from(*t) / 1000.0, f64::from(*us) / 1000.0)).collect(),
                )
            })
            .collect();
        plots.push(context! { title => "PING from here, ms", svg => lines(series, "ms")?, note => "A peak on one node is a stall of that server; on all at once, of this machine or the network." });
    }
    let loaded = busiest(|n| n.series.len() > 1);
    if !loaded.is_empty() {
        let series = loaded
            .iter()
            .map(|n| {
                (n.address.clone(), n.series.iter().map(|p| (f64::from(p.at_ms) / 1000.0, p.commands_per_s)).collect())
            })
            .collect();
        plots.push(context! { title => "Commands per second", svg => lines(series, "commands/s")?, note => "By the servers' own counters, without the doctor's commands." });
        let series = loaded
            .iter()
            .map(|n| {
                (
                    n.address.clone(),
                    n.series
                        .iter()
                        .map(|p| (f64::from(p.at_ms) / 1000.0, 100.0 * (p.cpu_user_share + p.cpu_sys_share)))
                        .collect(),
                )
            })
            .collect();
        plots.push(context! { title => "CPU of the main thread, %", svg => lines(series, "%")?, note => "User and kernel together." });
    }
    Ok(plots)
}

/// One line per node over the window's seconds.
fn lines(series: Vec<(String, Vec<(f64, f64)>)>, unit: &str) -> anyhow::Result<String> {
    let right = series.iter().flat_map(|(_, p)| p).map(|p| p.0).fold(0.1, f64::max);
    let top = series.iter().flat_map(|(_, p)| p).map(|p| p.1).fold(0.1, f64::max) * 1.1;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (1000, 260)).into_drawing_area();
        let fail = |e: &dyn std::fmt::Display| anyhow::anyhow!("plot: {e}");
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..right, 0.0..top)
            .map_err(|e| fail(&e))?;
        chart.configure_mesh().disable_x_mesh().x_desc("s").y_desc(unit).draw().map_err(|e| fail(&e))?;
        for (i, (name, points)) in series.into_iter().enumerate() {
            let colour = Palette99::pick(i).to_rgba();
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(1)))
                .map_err(|e| fail(&e))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(|e| fail(&e))?;
        area.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}
