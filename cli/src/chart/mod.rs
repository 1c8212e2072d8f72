//! Charts for pages: lines over time, distributions, and bars on a time line.
//!
//! The drawing is SVG, stretched to the page's width. Every word is HTML laid over it, so that labels are as large on a
//! phone as on a screen. Colours are names in the frame's palette (`templates/frame.html`): a chart follows its page's
//! theme, and print.

mod axis;
#[cfg(test)]
mod tests;

use std::fmt::Write;

pub use axis::Unit;
use axis::{Axis, Tick};

/// Width of a drawing in its own units; the page stretches it.
const WIDTH: f64 = 1000.0;
/// Height of a line chart, in pixels.
const HEIGHT: f64 = 240.0;
/// Height of a bar's row, its label above it, in pixels.
const ROW: usize = 32;
/// Colours of the palette for lines: `--s1` and so on.
const COLOURS: usize = 8;

/// A line: its name and its points. Where a point has no value (`NAN`) the line is broken.
pub type Line = (String, Vec<(f64, f64)>);

/// How the values of a line chart are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// From 0.
    Linear(Unit),
    /// Every decade takes the same room.
    Log(Unit),
}

/// What stands along the bottom.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Along<'a> {
    /// Time in microseconds, from 0 until here at least.
    TimeUntil(f64),
    /// Time from 0 until `end`, with moments that have names.
    Moments { end: f64, names: &'a [(f64, String)] },
    /// Shares of requests, as numbers of nines: `-log10(1 - share)`.
    Nines,
}

/// Lines over one axis.
pub struct LineChart<'a> {
    /// What it shows, for readers who cannot see it.
    pub title: &'a str,
    pub lines: Vec<Line>,
    pub along: Along<'a>,
    pub values: Values,
    /// Moments to mark, in the unit of the bottom axis.
    pub marks: &'a [f64],
}

impl LineChart<'_> {
    pub fn html(&self) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points).filter(|p| p.0.is_finite() && p.1.is_finite());
        let right = points().map(|p| p.0).fold(0.0, f64::max);
        let bottom = match self.along {
            Along::TimeUntil(end) => Axis::until(Unit::Time, right.max(end)),
            Along::Moments { end, names } => Axis::named(end, names),
            Along::Nines => Axis::nines(right),
        };
        let side = match self.values {
            Values::Linear(unit) => Axis::up_to(unit, points().map(|p| p.1).fold(0.0, f64::max)),
            Values::Log(unit) => Axis::log(unit, points().map(|p| p.1)),
        };
        let place = |&(x, y): &(f64, f64)| Some((bottom.place(x)? * WIDTH, (1.0 - side.place(y)?) * HEIGHT));
        if !points().any(|p| place(p).is_some()) {
            return "<p class=\"soft\">Nothing to draw: there are no measurements.</p>\n".into();
        }
        let mut keys: Vec<Key> = Vec::new();
        let mut drawn = grid(&bottom, Some(&side), HEIGHT);
        for at in self.marks.iter().filter_map(|mark| bottom.place(*mark)) {
            let _ = writeln!(drawn, "<path class=\"mark\" d=\"M{:.1} 0V{HEIGHT}\"/>", at * WIDTH);
        }
        for (i, (name, points)) in self.lines.iter().enumerate() {
            let colour = format!("s{}", i % COLOURS + 1);
            let placed: Vec<Option<(f64, f64)>> = points.iter().map(place).collect();
            for part in placed.split(Option::is_none).filter(|part| !part.is_empty()) {
                draw_part(&mut drawn, &colour, &thinned(part));
            }
            keys.push(Key { class: colour, name });
        }
        if !self.marks.is_empty() {
            keys.push(Key { class: "mark".into(), name: "events" });
        }
        let mut labels = String::new();
        for tick in &side.ticks {
            let _ =
                write!(labels, "<span class=\"y\" style=\"top:{:.2}%\">{}</span>", (1.0 - tick.at) * 100.0, tick.label);
        }
        figure(&Figure {
            title: self.title,
            keys: &keys,
            kind: "plot",
            height: HEIGHT,
            drawn,
            labels,
            ticks: &bottom.ticks,
        })
    }
}

/// A line with more points than there are places for: of those at one place the first, the extremes and the last.
fn thinned(part: &[Option<(f64, f64)>]) -> Vec<Option<(f64, f64)>> {
    if part.len() <= 4 * WIDTH as usize {
        return part.to_vec();
    }
    let column = |point: &Option<(f64, f64)>| point.map(|(x, _)| x.floor());
    let mut out = Vec::new();
    for chunk in part.chunk_by(|a, b| column(a) == column(b)) {
        let by_height = |(_, a): &(usize, &Option<(f64, f64)>), (_, b): &(usize, &Option<(f64, f64)>)| {
            let height = |point: &Option<(f64, f64)>| point.map_or(0.0, |(_, y)| y);
            height(a).total_cmp(&height(b))
        };
        let low = chunk.iter().enumerate().min_by(by_height).map_or(0, |(at, _)| at);
        let high = chunk.iter().enumerate().max_by(by_height).map_or(0, |(at, _)| at);
        let mut kept = [0, low, high, chunk.len() - 1];
        kept.sort_unstable();
        out.extend(kept.iter().enumerate().filter(|(i, at)| *i == 0 || kept[i - 1] != **at).map(|(_, at)| chunk[*at]));
    }
    out
}

/// One unbroken part of a line; a point alone between two gaps is a dot.
fn draw_part(out: &mut String, colour: &str, part: &[Option<(f64, f64)>]) {
    let mut points = part.iter().flatten();
    if part.len() == 1 {
        if let Some((x, y)) = points.next() {
            let _ = writeln!(out, "<path class=\"dot {colour}\" d=\"M{x:.1} {y:.1}h.01\"/>");
        }
        return;
    }
    let _ = write!(out, "<polyline class=\"{colour}\" points=\"");
    for (x, y) in points {
        let _ = write!(out, "{x:.1},{y:.1} ");
    }
    out.push_str("\"/>\n");
}

/// Whether a bar is about the shard, or the kind of client, that the reader asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    Main,
    Other,
}

/// A stretch of time in a row.
pub struct Bar {
    pub from_us: u64,
    pub until_us: u64,
    pub weight: Weight,
}

/// A row of a time line.
pub struct Row {
    pub label: String,
    pub bars: Vec<Bar>,
}

/// Rows of bars over time.
pub struct TimeLine<'a> {
    pub title: &'a str,
    /// The fault that was at work: its name, from when, until when.
    pub fault: Option<(&'a str, u64, u64)>,
    pub end_us: u64,
    /// What stands along the bottom instead of the time from the beginning: moments in us from there, with their names.
    pub moments: Option<Vec<(f64, String)>>,
    pub rows: Vec<Row>,
    /// What bars of each weight are.
    pub names: [(Weight, &'a str); 2],
}

impl TimeLine<'_> {
    pub fn html(&self) -> String {
        let bars = self.rows.iter().flat_map(|row| &row.bars).map(|bar| bar.until_us);
        let end = bars.chain(self.fault.map(|(_, _, until)| until)).fold(self.end_us, u64::max);
        let axis = match &self.moments {
            Some(moments) => Axis::named(end as f64, moments),
            None => Axis::until(Unit::Time, end as f64),
        };
        let height = (self.rows.len().max(1) * ROW) as f64;
        let x = |us: u64| axis.place(us as f64).unwrap_or(0.0) * WIDTH;
        // Never too thin to be seen on a telephone.
        let across = |from: u64, until: u64| {
            let left = x(from).min(WIDTH - 3.0);
            (left, (x(until.max(from)) - left).max(3.0))
        };
        let mut drawn = String::new();
        if let Some((_, from, until)) = self.fault {
            let (left, width) = across(from, until);
            let _ = writeln!(
                drawn,
                "<rect class=\"hit\" x=\"{left:.1}\" y=\"0\" width=\"{width:.1}\" height=\"{height}\"/>"
            );
        }
        drawn += &grid(&axis, None, height);
        let mut labels = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let top = i * ROW;
            let _ = write!(labels, "<span class=\"r\" style=\"top:{top}px\">{}</span>", escaped(&row.label));
            for bar in &row.bars {
                let (left, width) = across(bar.from_us, bar.until_us);
                // Those of another weight do not hide it.
                let (class, y) = if bar.weight == Weight::Main { ("main", top + 17) } else { ("other", top + 24) };
                let _ = writeln!(
                    drawn,
                    "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"6\"/>"
                );
            }
        }
        let fault = self.fault.map(|(fault, ..)| format!("{fault} active"));
        let mut keys: Vec<Key> = fault.iter().map(|name| Key { class: "hit".into(), name }).collect();
        for (weight, name) in self.names {
            let class = if weight == Weight::Main { "main" } else { "other" };
            keys.push(Key { class: class.into(), name });
        }
        figure(&Figure { title: self.title, keys: &keys, kind: "plot rows", height, drawn, labels, ticks: &axis.ticks })
    }
}

/// An entry of a legend, which stands above the drawing: over it, it would hide what it names.
struct Key<'a> {
    class: String,
    name: &'a str,
}

/// A drawing with its words.
struct Figure<'a> {
    title: &'a str,
    keys: &'a [Key<'a>],
    kind: &'a str,
    height: f64,
    drawn: String,
    labels: String,
    /// Along the bottom.
    ticks: &'a [Tick],
}

fn figure(f: &Figure) -> String {
    let mut out = String::from("<div class=\"chart\"><ul class=\"legend\">");
    for key in f.keys {
        let _ = write!(out, "<li><i class=\"key {}\"></i>{}</li>", key.class, escaped(key.name));
    }
    let _ = writeln!(
        out,
        "</ul><div class=\"{}\"><svg viewBox=\"0 0 {WIDTH} {}\" height=\"{}\" preserveAspectRatio=\"none\" \
         role=\"img\" aria-label=\"{}\">",
        f.kind,
        f.height,
        f.height,
        escaped(f.title)
    );
    out += &f.drawn;
    out += "</svg>";
    out += &f.labels;
    for tick in f.ticks {
        let _ = write!(out, "<span class=\"x\" style=\"left:{:.2}%\">{}</span>", tick.at * 100.0, tick.label);
    }
    out + "</div></div>\n"
}

/// Lines at the named values.
fn grid(bottom: &Axis, side: Option<&Axis>, height: f64) -> String {
    let mut path = String::new();
    for tick in &bottom.ticks {
        let _ = write!(path, "M{:.1} 0V{height}", tick.at * WIDTH);
    }
    for tick in side.into_iter().flat_map(|axis| &axis.ticks) {
        let _ = write!(path, "M0 {:.1}H{WIDTH}", (1.0 - tick.at) * height);
    }
    format!("<path class=\"grid\" d=\"{path}\"/>\n")
}

/// Names come from servers and their users: they are text, not markup.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
