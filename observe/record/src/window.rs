//! What lies between two INFOs: rates, round trips, and what a node says of itself.

use std::collections::BTreeMap;

use unslow_facts::{Node, Own, Point, Sample};
use unslow_series::{Picked, Row, Stamp, Value};
use unslow_topology::{Info, Role};

use crate::pings::Pings;
use crate::scheme::OWN_TOTAL;

/// What was counted on the way through a window.
pub struct Trail {
    start_ms: i64,
    before: Option<(i64, Counters)>,
    pub points: Vec<Point>,
    pub pings: Vec<(u32, u32)>,
}

/// The counters that are drawn, in the order of [`Counters::NAMES`].
#[derive(Clone, Copy, Default)]
pub struct Counters([Option<f64>; 7]);

impl Counters {
    const NAMES: [&str; 7] = [
        "total_commands_processed",
        "total_connections_received",
        "used_cpu_user_main_thread",
        "used_cpu_sys_main_thread",
        "used_cpu_user",
        "used_cpu_sys",
        OWN_TOTAL,
    ];

    /// An INFO's, and what we had sent by then.
    pub fn of(info: &Info, own_total: u64) -> Counters {
        let scale = |name: &str| if name.starts_with("used_cpu") { 1e6 } else { 1.0 };
        let mut counters = Counters(Counters::NAMES.map(|name| info.number(name).map(|n| n * scale(name))));
        counters.0[Counters::NAMES.len() - 1] = Some(own_total as f64);
        counters
    }

    /// Whether a process has begun anew, or its statistics were reset.
    pub fn went_back(&self, before: &Counters) -> bool {
        let is_less = |place: usize| matches!((self.0[place], before.0[place]), (Some(now), Some(then)) if now < then);
        // The last one is ours.
        (0..Counters::NAMES.len() - 1).any(is_less)
    }

    pub fn are_or_pings(name: &str) -> bool {
        Counters::NAMES.contains(&name) || Pings::of_column(name, 1).is_some()
    }
}

impl Trail {
    pub fn new(start_ms: i64) -> Trail {
        Trail { start_ms, before: None, points: Vec::new(), pings: Vec::new() }
    }

    /// A row of a recording.
    pub fn see(&mut self, row: &Row, picked: &mut Picked) {
        let (mut counters, mut pings) = (Counters::default(), BTreeMap::new());
        for (name, value) in picked.of(row) {
            let Value::Int(n) = value else { continue };
            if let Some(place) = Counters::NAMES.iter().position(|known| *known == &**name) {
                counters.0[place] = Some(n as f64);
            } else if let Some((us, count)) = Pings::of_column(name, n) {
                pings.insert(us, count);
            }
        }
        self.saw(row.at.wall_ms, counters, &Pings(pings));
    }

    /// What was counted up to this time.
    pub fn saw(&mut self, wall_ms: i64, counters: Counters, pings: &Pings) {
        let at = wall_ms - self.start_ms;
        // Nothing is known of the time between two rows where the clock was set back.
        if let (Some((before_at, before)), Ok(at_ms)) =
            (self.before.filter(|(before, _)| *before < at), u32::try_from(at))
        {
            let span_ms = u32::try_from(at - before_at).unwrap_or(0);
            self.pings.extend(pings.spread(at_ms.saturating_sub(span_ms), span_ms));
            self.points.extend(point(&before, &counters, at_ms, f64::from(span_ms.max(1)) / 1000.0));
        }
        self.before = Some((at, counters));
    }
}

/// Rates between two rows, our own commands taken off; `None` where a counter went back.
fn point(before: &Counters, after: &Counters, at_ms: u32, s: f64) -> Option<Point> {
    let grown = |place: usize| Some(after.0[place]? - before.0[place]?).filter(|d| *d >= 0.0);
    // INFO prints microseconds of CPU time with six decimals, which are whole numbers in a recording.
    let cpu = |main: usize, all: usize| grown(main).or_else(|| grown(all)).map(|us| us / 1e6 / s);
    Some(Point {
        at_ms,
        commands_per_s: ((grown(0)? - grown(6).unwrap_or(0.0)) / s).max(0.0),
        cpu_user_share: cpu(2, 4)?,
        cpu_sys_share: cpu(3, 5)?,
        connections_per_s: grown(1).map(|n| n / s),
    })
}

/// A number of a row: those of a recorder are whole.
pub fn int(value: Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(n),
        Value::Counter(_) | Value::Float(_) => None,
    }
}

/// How long it was between two rows. The wall clock may have been set in between; the other one begins anew with each
/// recorder.
pub fn seconds_between(first: Stamp, last: Stamp, same_recorder: bool) -> f64 {
    let by_mono = last.mono_ms.checked_sub(first.mono_ms).map(|ms| ms as f64);
    let by_wall = (last.wall_ms - first.wall_ms) as f64;
    by_mono.filter(|_| same_recorder).unwrap_or(by_wall).max(1.0) / 1000.0
}

/// The ends of a node's window, and what it says of its role.
pub fn measured(node: &mut Node, first: Sample, last: Sample, window_s: f64, own: Own) {
    (node.first, node.last) = (Some(first), Some(last));
    (node.window_s, node.own) = (window_s, own);
    if let Some(info) = node.info()
        && node.master.is_none()
        && let (Some(host), Some(port)) = (info.get("master_host"), info.get("master_port"))
    {
        node.master = Some(unslow_topology::join_host_port(host, port));
    }
    match node.info().and_then(Info::role) {
        Some("master") => (node.role, node.master) = (Role::Master, None),
        Some("slave") => node.role = Role::Replica,
        _ => {}
    }
}
