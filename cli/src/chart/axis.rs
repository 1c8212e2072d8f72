//! Axes: where a value is, and the round values that are named, in the unit the data wants.

/// What an axis counts, and in what its values are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds, shown in whichever of us, ms, s, min and h reads best.
    Time,
    /// Whole things, or things per second.
    Count,
    /// Hundredths: 100 is all of it.
    Percent,
    /// Shown in whichever of B, kB, MB and GB reads best.
    Bytes,
}

/// How values are laid out along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
}

/// A named value.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where: 0 is the axis's beginning, 1 its end.
    pub at: f64,
    pub label: String,
}

/// From where to where it goes, and what is named on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
    pub ticks: Vec<Tick>,
}

/// Named values of a linear axis, at most.
const TICKS: f64 = 6.0;
const SECOND: f64 = 1e6;
/// Steps of clocks, in seconds: minutes divide into 15 and 30 seconds, not into 20 and 50.
const CLOCK: [f64; 16] = [
    10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10800.0, 21600.0, 43200.0, 86400.0,
    172_800.0,
];

impl Axis {
    /// From 0 to a named value that is not below `most`: for what is measured.
    pub fn up_to(unit: Unit, most: f64) -> Axis {
        let most = positive(most);
        let step = step(unit, most);
        Axis::linear(unit, (most / step - 1e-9).ceil() * step, step)
    }

    /// From 0 to `end` and no further: for the time something took.
    pub fn until(unit: Unit, end: f64) -> Axis {
        let end = positive(end);
        Axis::linear(unit, end, step(unit, end))
    }

    /// From 0 to `end`, with these values named.
    pub fn named(end: f64, ticks: &[(f64, String)]) -> Axis {
        let mut axis = Axis { low: 0.0, high: positive(end), scale: Scale::Linear, ticks: Vec::new() };
        let at = |(value, label): &(f64, String)| Some(Tick { at: axis.place(*value)?, label: label.clone() });
        axis.ticks = ticks.iter().filter_map(at).collect();
        axis
    }

    fn linear(unit: Unit, high: f64, step: f64) -> Axis {
        let mut axis = Axis { low: 0.0, high, scale: Scale::Linear, ticks: Vec::new() };
        let steps = (high / step + 1e-9).floor() as u32;
        axis.ticks = (0..=steps)
            .map(|i| f64::from(i) * step)
            .filter_map(|value| Some(Tick { at: axis.place(value)?, label: label(unit, value, step, high) }))
            .collect();
        axis
    }

    /// Every decade takes the same room; from a round value to a round value around `values`.
    pub fn log(unit: Unit, values: impl Iterator<Item = f64>) -> Axis {
        let drawn = values.filter(|v| v.is_finite() && *v > 0.0);
        let (least, most) = drawn.fold((f64::MAX, 0.0), |(l, m), v| (v.min(l), v.max(m)));
        let (least, most) = if most > 0.0 { (least, most) } else { (1.0, 10.0) };
        let (low, mut high) = (round_down(least), round_up(most));
        if high <= low * 1.000_001 {
            high = low * 10.0;
        }
        let mut axis = Axis { low, high, scale: Scale::Log, ticks: Vec::new() };
        let decades = (high / low).log10();
        let between: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let stride = (decades / TICKS).ceil().max(1.0) as usize;
        let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        axis.ticks = (first..=last)
            .step_by(stride)
            .flat_map(|decade| between.iter().map(move |m| m * 10f64.powi(decade)))
            .filter(|value| *value >= low * 0.999_999 && *value <= high * 1.000_001)
            .filter_map(|value| {
                Some(Tick { at: axis.place(value)?, label: label(unit, value, value.min(SECOND), value) })
            })
            .collect();
        axis
    }

    /// Shares of all requests by their nines: 90 %, 99 % and 99.9 % are at 1, 2 and 3.
    pub fn nines(most: f64) -> Axis {
        let high = if most.is_finite() { most.max(1.0) } else { 1.0 };
        let mut axis = Axis { low: 0.0, high, scale: Scale::Linear, ticks: Vec::new() };
        let whole = (1..=high as usize).map(|n| (n as f64, nines(n)));
        axis.ticks = std::iter::once((std::f64::consts::LOG10_2, "50 %".to_string()))
            .chain(whole)
            .filter_map(|(value, label)| Some(Tick { at: axis.place(value)?, label }))
            .collect();
        axis
    }

    /// Where a value is, 0 to 1. `None` where it has no place: no number, or nothing on a logarithmic axis.
    pub fn place(&self, value: f64) -> Option<f64> {
        let at = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).log10() / (self.high / self.low).log10(),
            Scale::Log => return None,
        };
        at.is_finite().then(|| at.clamp(0.0, 1.0))
    }
}

/// An axis has a length, whatever was measured.
fn positive(most: f64) -> f64 {
    if most.is_finite() { most.max(1.0) } else { 1.0 }
}

/// The smallest round step of which no more than [`TICKS`] fit.
fn step(unit: Unit, range: f64) -> f64 {
    let least = range / TICKS;
    if unit == Unit::Time && least > 5.0 * SECOND {
        let days = (least / (86_400.0 * SECOND)).ceil() * 86_400.0;
        return CLOCK.iter().copied().find(|s| s * SECOND >= least).unwrap_or(days) * SECOND;
    }
    let step = round_up(least);
    if unit == Unit::Count { step.max(1.0) } else { step }
}

/// 1, 2, 5 and 10 times the power of ten at or below a value.
fn round_values(value: f64) -> [f64; 4] {
    let decade = 10f64.powi(value.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0].map(|m| m * decade)
}

fn round_up(value: f64) -> f64 {
    let steps = round_values(value);
    steps.into_iter().find(|s| *s >= value * 0.999_999).unwrap_or(steps[3])
}

fn round_down(value: f64) -> f64 {
    let steps = round_values(value);
    steps.into_iter().rfind(|s| *s <= value * 1.000_001).unwrap_or(steps[0])
}

/// A named value. Those of a linear axis share a unit, that of its end and step; on a log axis each has its own.
fn label(unit: Unit, value: f64, step: f64, end: f64) -> String {
    let (scale, name) = match unit {
        Unit::Percent => (1.0, " %"),
        Unit::Count if end >= 1e7 => (1e6, " M"),
        Unit::Count => (1.0, ""),
        Unit::Time if step >= 3600.0 * SECOND => (3600.0 * SECOND, " h"),
        Unit::Time if step >= 60.0 * SECOND => (60.0 * SECOND, " min"),
        Unit::Time if end >= SECOND => (SECOND, " s"),
        Unit::Time if end >= 1e3 => (1e3, " ms"),
        Unit::Time => (1.0, " us"),
        Unit::Bytes if end >= 1e9 => (1e9, " GB"),
        Unit::Bytes if end >= 1e6 => (1e6, " MB"),
        Unit::Bytes if end >= 1e3 => (1e3, " kB"),
        Unit::Bytes => (1.0, " B"),
    };
    if value == 0.0 {
        return "0".into();
    }
    let decimals = (-(step / scale).log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize;
    format!("{}{name}", grouped(&format!("{:.decimals$}", value / scale)))
}

/// `1,234,567`.
fn grouped(digits: &str) -> String {
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && i < whole && (whole - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `90 %`, `99 %`, `99.9 %`, ...
fn nines(n: usize) -> String {
    match n {
        1 => "90 %".into(),
        2 => "99 %".into(),
        _ => format!("99.{} %", "9".repeat(n - 2)),
    }
}
