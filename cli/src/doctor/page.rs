//! The report as a page: causes, topology, and what was measured in the window.

use minijinja::{Value, context};
use serde::Serialize;
use unslow_doctor::{Finding, Report, Severity};
use unslow_facts::{Facts, Node};
use unslow_units::{count, percent, time_us};

use super::text::{self, Sorted, clock};
use crate::chart::{Along, Line as ChartLine, LineChart, Unit, Values};
use crate::frame::{self, date};
use crate::silences;

/// Nodes drawn in one plot, at most: more lines than this cannot be told apart.
const PLOT_NODES: usize = 8;

pub fn render(report: &Report, facts: &Facts) -> anyhow::Result<String> {
    let sorted = Sorted::of(report);
    let told = |findings: &[&Finding]| -> anyhow::Result<Vec<Value>> {
        findings.iter().map(|f| finding(f, report.at_ms)).collect()
    };
    let elsewhere: Vec<&Finding> = sorted.elsewhere.into_iter().collect();
    let (_, word, verdict) = text::verdict(report);
    let (what, place) = text::head(report);
    let cost = format!(
        "{}, {} commands, {} of one core on the most affected server; the most expensive command was {} at {}.",
        time_us(report.cost.seconds * 1e6),
        report.cost.commands,
        percent(report.cost.server_cpu_share),
        report.cost.slowest_command,
        time_us(report.cost.slowest_us)
    );
    let values = context! {
        report => report, what, place, word, verdict, cost,
        through => text::through(report),
        closing => text::closing(report),
        causes => told(&sorted.causes)?,
        over => told(&sorted.over)?,
        risks => told(&sorted.risks)?,
        elsewhere => told(&elsewhere)?,
        silenced => report.silenced.iter().map(silences::line).collect::<Vec<_>>(),
        taken => date(report.at_ms),
        topology => topology(report),
        logs => report.logs.iter().map(|line| (date(line.at_ms), line.text.clone())).collect::<Vec<_>>(),
        nodes => nodes(report),
        clients => clients(facts),
        plots => plots(facts),
    };
    frame::render("report.html", include_str!("../../templates/report.html"), values)
}

/// A finding as the page shows it: with its words for how bad, how sure and since when.
fn finding(finding: &Finding, now_ms: u64) -> anyhow::Result<Value> {
    let mut json = serde_json::to_value(finding)?;
    for evidence in json["evidence"].as_array_mut().into_iter().flatten() {
        let at = evidence["at_ms"].as_u64().unwrap_or(0);
        evidence["clock"] = clock(at).into();
    }
    json["severity_words"] = text::severity_words(finding).into();
    json["currency_words"] = text::currency_words(finding).into();
    json["confidence_words"] = text::confidence_words(finding).into();
    json["when_words"] = text::when_words(finding, now_ms).into();
    Ok(Value::from_serialize(json))
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
            let load = n.commands_per_s.map_or("not measured".into(), |o| format!("{}/s", count(o)));
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
        let cpu = match n.cpu_user_share {
            Some(_) => format!("{} / {}", percent(user), percent(kernel)),
            None => n.unreachable.clone().unwrap_or_default(),
        };
        context! {
            address => n.address, role => n.role, version => n.version,
            rate => n.commands_per_s.map_or("-".into(), count),
            rtt => n.rtt_us_p50.map_or("-".into(), |us| time_us(us.into())),
            cpu,
            user => (user * 100.0).min(100.0), kernel => (kernel * 100.0).min(100.0),
        }
    };
    report.deployment.nodes.iter().map(row).collect()
}

fn clients(facts: &Facts) -> Vec<Value> {
    let rows = facts.nodes.iter().flat_map(|n| n.sockets.value().into_iter().flatten().map(move |p| (n, p)));
    rows.take(40)
        .map(|(n, p)| {
            let again = format!("{} of {}", p.retransmits, p.segments_out);
            let (min, now) = (time_us(p.min_rtt_us.into()), time_us(p.rtt_us_p50.into()));
            context! { server => n.address, host => p.host, sockets => p.sockets, min, now, again }
        })
        .collect()
}

fn plots(facts: &Facts) -> Vec<Value> {
    let busiest = |points: fn(&Node) -> bool| -> Vec<&Node> {
        let mut nodes: Vec<&Node> = facts.live().filter(|n| points(n)).collect();
        nodes.sort_by(|a, b| b.ops().unwrap_or(0.0).total_cmp(&a.ops().unwrap_or(0.0)));
        nodes.truncate(PLOT_NODES);
        nodes
    };
    let mut plots = Vec::new();
    let pinged = busiest(|n| n.pings.len() > 1);
    if !pinged.is_empty() {
        let points = |n: &Node| n.pings.iter().map(|(t, us)| (from_ms(*t), f64::from(*us))).collect::<Vec<_>>();
        plots.push(plot(
            "PING from here",
            "A peak on one node means that this server stalled; on all at once, that this machine or the network did.",
            lines(&pinged, points),
            Unit::Time,
        ));
    }
    let loaded = busiest(|n| n.series.len() > 1);
    if !loaded.is_empty() {
        let points = |n: &Node| n.series.iter().map(|p| (from_ms(p.at_ms), p.commands_per_s)).collect::<Vec<_>>();
        plots.push(plot(
            "Commands per second",
            "From the servers' own counters, without the doctor's commands.",
            lines(&loaded, points),
            Unit::Count,
        ));
        let share = |n: &Node| {
            n.series
                .iter()
                .map(|p| (from_ms(p.at_ms), 100.0 * (p.cpu_user_share + p.cpu_sys_share)))
                .collect::<Vec<_>>()
        };
        plots.push(plot("CPU of the main thread", "User plus kernel time.", lines(&loaded, share), Unit::Percent));
    }
    plots
}

/// Microseconds, as charts have them.
fn from_ms(ms: u32) -> f64 {
    f64::from(ms) * 1e3
}

/// A line for each node.
fn lines(nodes: &[&Node], points: impl Fn(&Node) -> Vec<(f64, f64)>) -> Vec<ChartLine> {
    nodes.iter().map(|n| (n.address.clone(), points(n))).collect()
}

fn plot(title: &str, note: &str, lines: Vec<ChartLine>, unit: Unit) -> Value {
    let chart = LineChart { title, lines, along: Along::TimeUntil(0.0), values: Values::Linear(unit), marks: &[] };
    context! { title, note, chart => chart.html() }
}

#[cfg(test)]
mod tests {
    use unslow_doctor::diagnose;

    use super::*;
    use crate::frame::tests::assert_framed;

    fn recorded(name: &str) -> (Report, Facts) {
        let path = format!("{}/../explain/doctor/tests/facts/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let facts = Facts::from_json(&std::fs::read_to_string(path).unwrap()).unwrap();
        (diagnose(&facts, &[]), facts)
    }

    #[test]
    fn a_page_of_recorded_facts_is_framed_and_has_its_causes_and_plots() {
        let (report, facts) = recorded("keys_command");
        let page = render(&report, &facts).unwrap();
        assert_framed(&page);
        assert!(page.contains("id=\"keys_command\"") && page.contains("class=\"topology\""), "{page}");
        assert!(page.contains("aria-label=\"PING from here\"") && page.contains("<polyline class=\"s1\""), "{page}");
    }

    #[test]
    fn a_report_without_a_window_has_no_plots() {
        let facts = Facts::of_nothing("redis://nowhere:1");
        let page = render(&diagnose(&facts, &[]), &facts).unwrap();
        assert_framed(&page);
        assert!(!page.contains("class=\"plot\""), "{page}");
    }
}
