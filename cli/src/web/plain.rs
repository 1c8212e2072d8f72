//! The page without script: the same curves and lanes as drawings, and links where the script has buttons.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use minijinja::context;
use unslow_doctor::Severity;
use unslow_record::{Curves, Tape};
use unslow_units::time_rough_s;

use super::figures::FIGURES;
use super::library::Told;
use crate::chart::{Along, Bar, LineChart, Row, TimeLine, Values, Weight};
use crate::frame;
use crate::when::{local_time, round_times};

/// Named times along the bottom, at most.
const TIMES: u64 = 8;
/// Lengths that a link leads to, in minutes.
const LENGTHS: [(i64, &str); 5] =
    [(15, "15 minutes"), (60, "an hour"), (360, "6 hours"), (1_440, "a day"), (10_080, "a week")];

pub fn render(tape: &Tape, url: &str, range_ms: Range<i64>, curves: &Curves, told: &Told) -> anyhow::Result<String> {
    let (from_ms, length_ms) = (range_ms.start, range_ms.end - range_ms.start);
    let since_us = |ms: i64| ((ms - from_ms).max(0) as u64).saturating_mul(1_000);
    let times = round_times(from_ms.max(0) as u64, range_ms.end.max(0) as u64, TIMES);
    let names: Vec<(f64, String)> = times.into_iter().map(|(at, name)| (since_us(at as i64) as f64, name)).collect();
    let end = since_us(range_ms.end) as f64;
    let plots: Vec<_> = FIGURES
        .iter()
        .map(|figure| {
            let lines = figure.lines(curves).into_iter().map(|line| {
                let at = |place: usize| since_us(curves.from_ms + place as i64 * curves.step_ms) as f64;
                let points = line.values.iter().enumerate();
                (line.name, points.map(|(place, value)| (at(place), value.unwrap_or(f64::NAN))).collect())
            });
            let chart = LineChart {
                title: figure.title,
                lines: lines.collect(),
                along: Along::Moments { end, names: &names },
                values: Values::Linear(figure.unit),
                marks: &[],
            };
            context! { title => figure.title, chart => chart.html() }
        })
        .collect();
    let link = |from: i64, to: i64| format!("?url={}&from={from}&to={to}", encoded(url));
    let ranges = LENGTHS.map(|(minutes, name)| (name, link(range_ms.end - minutes * 60_000, range_ms.end)));
    let incidents = told.incidents.iter().map(|i| {
        // When it was worst, as `unslow doctor --incident` does.
        let (from, to) = (i.worst_ms as i64, i.worst_ms as i64 + told.window_ms);
        context! {
            title => i.title, rule => i.rule, began => local_time(i.began_ms),
            lasted => time_rough_s(i.lasted_ms() as f64 / 1e3), impact => i.impact.text,
            link => link(from, to),
        }
    });
    let values = context! {
        url, plots,
        from => local_time(range_ms.start.max(0) as u64), to => local_time(range_ms.end.max(0) as u64),
        deployments => tape.deployments().iter().map(|url| (url.to_string(), encoded(url))).collect::<Vec<_>>(),
        ranges => ranges.to_vec(),
        earlier => link(from_ms - length_ms, from_ms), later => link(range_ms.end, range_ms.end + length_ms),
        diagnosis => link(range_ms.start, range_ms.end),
        lanes => (!told.incidents.is_empty()).then(|| lanes(told, &since_us, end, &names)),
        incidents => incidents.collect::<Vec<_>>(),
        missing => told.missing, unseen => told.unseen, windows => told.windows,
    };
    frame::render("charts.html", include_str!("../../templates/charts.html"), values)
}

fn lanes(told: &Told, since_us: &impl Fn(i64) -> u64, end: f64, names: &[(f64, String)]) -> String {
    let mut rows: BTreeMap<&str, Vec<Bar>> = BTreeMap::new();
    for incident in &told.incidents {
        let weight = if incident.severity >= Severity::High { Weight::Main } else { Weight::Other };
        let (from_us, until_us) = (since_us(incident.began_ms as i64), since_us(incident.ended_ms as i64));
        rows.entry(&incident.rule).or_default().push(Bar { from_us, until_us, weight });
    }
    let chart = TimeLine {
        title: "incidents, a lane for each cause",
        fault: None,
        end_us: end as u64,
        moments: Some(names.to_vec()),
        rows: rows.into_iter().map(|(label, bars)| Row { label: label.to_string(), bars }).collect(),
        names: [(Weight::Main, "high or critical"), (Weight::Other, "less")],
    };
    chart.html()
}

/// For a query: letters, digits and a few signs stay.
pub fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b'~' => out.push(char::from(byte)),
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_url_in_a_query_is_one_word() {
        assert_eq!(super::encoded("redis://a:1?x=ü"), "redis%3A%2F%2Fa%3A1%3Fx%3D%C3%BC");
    }
}
