//! Which figures the page draws, and of which servers: no more lines than can be told apart.

use serde::Serialize;
use serde_json::{Value, json};
use unslow_record::{Curves, Point};

use crate::chart::Unit;

/// Version of the JSON of the page's curves.
pub const SCHEMA: &str = "unslow.curves/1";
/// Lines in one plot, at most: the frame's palette has as many colours.
const LINES_MAX: usize = 8;

/// One of the plots.
pub struct Figure {
    pub id: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    of: fn(&Point) -> Option<f64>,
}

/// In the order in which they stand on the page.
pub const FIGURES: [Figure; 6] = [
    Figure { id: "commands", title: "commands per second", unit: Unit::Count, of: |p| p.commands },
    Figure { id: "ping", title: "longest PING", unit: Unit::Time, of: |p| p.ping_us_max },
    Figure {
        id: "cpu",
        title: "CPU of the main thread",
        unit: Unit::Percent,
        of: |p| p.cpu.map(|share| share * 100.0),
    },
    Figure { id: "errors", title: "error replies per second", unit: Unit::Count, of: |p| p.errors },
    Figure { id: "memory", title: "memory of the data set", unit: Unit::Bytes, of: |p| p.memory_bytes },
    Figure { id: "clients", title: "clients", unit: Unit::Count, of: |p| p.clients },
];

/// A line of a plot.
#[derive(Debug, PartialEq, Serialize)]
pub struct Line {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

impl Figure {
    /// Each server's line; where there are too many, those with the highest peaks and the median of all.
    pub fn lines(&self, curves: &Curves) -> Vec<Line> {
        let line = |curve: &unslow_record::Curve| Line {
            name: curve.address.clone(),
            values: curve.points.iter().map(|point| (self.of)(point).map(rounded)).collect(),
        };
        let mut lines: Vec<Line> = curves.servers.iter().map(line).collect();
        if lines.len() <= LINES_MAX {
            return lines;
        }
        let median = Line { name: format!("median of {} servers", lines.len()), values: median(&lines) };
        let peak = |line: &Line| line.values.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        lines.sort_by(|a, b| peak(b).total_cmp(&peak(a)));
        lines.truncate(LINES_MAX - 1);
        lines.push(median);
        lines
    }
}

fn median(lines: &[Line]) -> Vec<Option<f64>> {
    let places = lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let at = |place: usize| {
        let mut all: Vec<f64> = lines.iter().filter_map(|line| *line.values.get(place)?).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    };
    (0..places).map(at).collect()
}

/// Four digits: more are not seen, and have to be sent.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powf(3.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

/// What the page's script draws. `at_s` is unix time in seconds.
pub fn json(curves: &Curves) -> Value {
    let places = curves.servers.first().map_or(0, |curve| curve.points.len()) as i64;
    let at_s: Vec<i64> = (0..places).map(|place| (curves.from_ms + place * curves.step_ms) / 1000).collect();
    let figures: Vec<Value> = FIGURES
        .iter()
        .map(|figure| {
            let unit = match figure.unit {
                Unit::Time => "us",
                Unit::Percent => "percent",
                Unit::Bytes => "bytes",
                Unit::Count => "count",
            };
            json!({ "id": figure.id, "title": figure.title, "unit": unit, "lines": figure.lines(curves) })
        })
        .collect();
    json!({ "schema": SCHEMA, "step_s": curves.step_ms / 1000, "at_s": at_s, "figures": figures })
}

#[cfg(test)]
mod tests {
    use unslow_record::Curve;

    use super::*;

    fn curve(name: usize, values: &[f64]) -> Curve {
        let point = |commands: &f64| Point { commands: Some(*commands), ..Point::default() };
        Curve { address: format!("s{name}"), points: values.iter().map(point).collect() }
    }

    #[test]
    fn of_many_servers_those_with_the_highest_peaks_and_the_median_are_drawn() {
        let servers = (0..20).map(|i| curve(i, &[i as f64, 1.0])).collect();
        let curves = Curves { from_ms: 5_000, step_ms: 1_000, servers };
        let lines = FIGURES[0].lines(&curves);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["s19", "s18", "s17", "s16", "s15", "s14", "s13", "median of 20 servers"]);
        assert_eq!(lines[7].values, [Some(10.0), Some(1.0)]);
        let document = json(&curves);
        assert_eq!((&document["at_s"], &document["figures"][0]["id"]), (&json!([5, 6]), &json!("commands")));
        assert_eq!(document["figures"][1]["lines"][0]["values"][0], Value::Null, "no PING is known");
    }

    #[test]
    fn four_digits_are_kept_of_any_number() {
        assert_eq!([0.0, 1.0, 12_345.6, 0.000_123_456].map(rounded), [0.0, 1.0, 12_350.0, 0.000_123_5]);
        assert_eq!(rounded(f64::NAN), 0.0);
    }
}
