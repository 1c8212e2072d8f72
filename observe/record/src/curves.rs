//! What people look at over time: a few figures of every server of a deployment, in buckets of any range of a
//! recording.

use std::collections::BTreeMap;
use std::ops::Range;

use unslow_series::{Item, Picked, Row};

use crate::pings::Pings;
use crate::scheme::{OWN_TOTAL, STALL, Stall, node_series};
use crate::tape::{Tape, Texts};
use crate::window::int;

/// Buckets of all servers together, at most: 20 MB.
const BUCKETS_MAX: i64 = 200_000;
/// A stall is told when it is over: of one that ended later than this nothing is drawn.
const STALLED_MS: i64 = 600_000;
/// A rate is taken from the row before the bucket's first if that is no further away than this, in ms.
const ADJACENT_MS: i64 = 5_000;

/// Figures of one server in one bucket: rates since the row before, the worst PING of all, the others at its end.
/// `None` is not known: no row, a restart in between, or a field the server does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Commands a second, without ours.
    pub commands: Option<f64>,
    /// Error replies a second.
    pub errors: Option<f64>,
    /// Share of one core: the main thread where the server tells it apart (6.2), else the whole process.
    pub cpu: Option<f64>,
    /// The median and the longest PING, in us.
    pub ping_us_p50: Option<f64>,
    pub ping_us_max: Option<f64>,
    pub memory_bytes: Option<f64>,
    pub clients: Option<f64>,
}

/// A server over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub address: String,
    /// One for each bucket.
    pub points: Vec<Point>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// Where the first bucket begins, unix time in ms.
    pub from_ms: i64,
    pub step_ms: i64,
    pub servers: Vec<Curve>,
}

impl Tape {
    /// Figures of a range in at most `buckets` buckets of whole seconds, and fewer where there are many servers.
    pub fn curves(&self, url: &str, range_ms: Range<i64>, buckets: u32) -> Curves {
        let servers = self.nodes(url);
        let most = (BUCKETS_MAX / (servers.len() as i64).max(1)).clamp(1, i64::from(buckets.max(1)));
        let span_ms = range_ms.end.saturating_sub(range_ms.start).max(1);
        let step_ms = (span_ms as u64).div_ceil(most as u64).next_multiple_of(1000) as i64;
        let from_ms = range_ms.start.div_euclid(step_ms) * step_ms;
        let places = (range_ms.end - from_ms + step_ms - 1).div_euclid(step_ms).max(1) as usize;
        let curve = |address: String| {
            let series = node_series(url, &address);
            let rows_ms = from_ms - ADJACENT_MS..range_ms.end;
            let texts = Texts::of(self.reader.texts(&series, rows_ms.clone()).items);
            let mut drawn = Drawn::new(texts, from_ms, step_ms, places);
            for item in self.reader.range(&series, rows_ms) {
                match item {
                    Item::Row(row) => drawn.see(row),
                    Item::Step(_) | Item::Gap(_) => drawn.break_off(),
                }
            }
            let mut points = drawn.points();
            let told = self.reader.events(Some(&series), range_ms.start..range_ms.end + STALLED_MS).items;
            let stalls = told.iter().filter(|event| event.kind == STALL);
            for stall in stalls.filter_map(|event| serde_json::from_slice::<Stall>(&event.payload).ok()) {
                stand(&mut points, from_ms, step_ms, &stall);
            }
            Curve { address, points }
        };
        Curves { from_ms, step_ms, servers: servers.into_iter().map(curve).collect() }
    }
}

/// Counters and levels of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Levels {
    at_ms: i64,
    uptime_s: Option<f64>,
    commands: Option<f64>,
    own: Option<f64>,
    errors: Option<f64>,
    cpu_s: Option<f64>,
    memory_bytes: Option<f64>,
    clients: Option<f64>,
}

/// The columns of levels. They are read where a bucket ends; PINGs in every row.
const COLUMNS: [&str; 10] = [
    "uptime_in_seconds",
    "total_commands_processed",
    OWN_TOTAL,
    "total_error_replies",
    "used_cpu_user_main_thread",
    "used_cpu_sys_main_thread",
    "used_cpu_user",
    "used_cpu_sys",
    "used_memory",
    "connected_clients",
];

/// A PING that took long was on its way in all these buckets.
fn stand(points: &mut [Point], from_ms: i64, step_ms: i64, stall: &Stall) {
    let place = |ms: u64| i64::try_from(ms).map_or(i64::MAX, |ms| (ms - from_ms).div_euclid(step_ms));
    let (first, last) = (place(stall.sent_ms), place(stall.sent_ms.saturating_add(stall.us / 1_000)));
    let last = last.min(points.len() as i64 - 1);
    for at in first.max(0)..=last {
        let point = &mut points[at as usize];
        point.ping_us_max = Some(point.ping_us_max.unwrap_or(0.0).max(stall.us as f64));
    }
}

/// The curve of one server, as far as it was read.
struct Drawn {
    texts: Texts,
    from_ms: i64,
    step_ms: i64,
    points: Vec<Point>,
    levels: Picked,
    pinged: Picked,
    /// Where rates are taken from; `None` until the first row after a gap.
    base: Option<Levels>,
    last: Option<Row>,
    /// The bucket that is being filled; negative before the range. None is filled twice: after a clock was set back the
    /// first of two times stays.
    place: i64,
    bucket: Bucket,
}

/// What is known of a bucket so far. There may be gaps in it.
#[derive(Default)]
struct Bucket {
    commands: Growth,
    errors: Growth,
    cpu_s: Growth,
    pings: BTreeMap<u32, u32>,
    last: Option<Levels>,
}

/// How much a counter grew, and in how many seconds it was seen.
#[derive(Clone, Copy, Default)]
struct Growth(f64, f64);

impl Growth {
    fn add(&mut self, grown: Option<f64>, seconds: f64) {
        if let Some(grown) = grown {
            (self.0, self.1) = (self.0 + grown, self.1 + seconds);
        }
    }

    fn rate(self) -> Option<f64> {
        (self.1 > 0.0).then(|| self.0 / self.1)
    }
}

impl Bucket {
    /// Counters between two rows of one run of a server.
    fn add(&mut self, base: &Levels, last: &Levels) {
        let seconds = (last.at_ms - base.at_ms) as f64 / 1e3;
        let is_same_run = match (base.uptime_s, last.uptime_s) {
            (Some(before), Some(after)) => after >= before,
            _ => true,
        };
        let grown = |of: fn(&Levels) -> Option<f64>| {
            let grown = of(last)? - of(base)?;
            (is_same_run && seconds > 0.0 && grown >= 0.0).then_some(grown)
        };
        // A recorder that began in between counts from its start.
        let own = match (base.own, last.own) {
            (Some(before), Some(after)) if after >= before => after - before,
            (_, after) => after.unwrap_or(0.0),
        };
        self.commands.add(grown(|l| l.commands).map(|all| (all - own).max(0.0)), seconds);
        self.errors.add(grown(|l| l.errors), seconds);
        self.cpu_s.add(grown(|l| l.cpu_s), seconds);
        self.last = Some(*last);
    }

    fn point(&self) -> Point {
        let all: u64 = self.pings.values().map(|n| u64::from(*n)).sum();
        let mut passed = 0;
        let median = self.pings.iter().find(|(_, n)| {
            passed += u64::from(**n);
            passed * 2 >= all
        });
        Point {
            commands: self.commands.rate(),
            errors: self.errors.rate(),
            cpu: self.cpu_s.rate(),
            ping_us_p50: median.map(|(us, _)| f64::from(*us)),
            ping_us_max: self.pings.keys().next_back().map(|us| f64::from(*us)),
            memory_bytes: self.last.and_then(|last| last.memory_bytes),
            clients: self.last.and_then(|last| last.clients),
        }
    }
}

impl Drawn {
    fn new(texts: Texts, from_ms: i64, step_ms: i64, places: usize) -> Drawn {
        Drawn {
            texts,
            from_ms,
            step_ms,
            points: vec![Point::default(); places],
            levels: Picked::new(|name| COLUMNS.contains(&name)),
            pinged: Picked::new(|name| Pings::of_column(name, 1).is_some()),
            base: None,
            last: None,
            place: i64::MIN,
            bucket: Bucket::default(),
        }
    }

    fn see(&mut self, row: Row) {
        let place = (row.at.wall_ms - self.from_ms).div_euclid(self.step_ms);
        if place < self.place {
            return self.break_off();
        }
        if place > self.place {
            self.close();
            self.place = place;
        }
        let adjacent_ms = self.step_ms + ADJACENT_MS;
        if self.base.is_none_or(|base| row.at.wall_ms - base.at_ms > adjacent_ms) {
            self.base = Some(self.levels(&row));
        }
        for (name, value) in self.pinged.of(&row) {
            if let Some((us, count)) = int(value).and_then(|n| Pings::of_column(name, n)) {
                let counted = self.bucket.pings.entry(us).or_default();
                *counted = counted.saturating_add(count);
            }
        }
        self.last = Some(row);
    }

    /// Times come twice, or seconds are missing: no rate over that.
    fn break_off(&mut self) {
        self.count();
        self.base = None;
    }

    /// What was seen since `base` is counted, and the next is counted from here.
    fn count(&mut self) {
        let (Some(base), Some(last)) = (self.base, self.last.take()) else { return };
        let last = self.levels(&last);
        self.bucket.add(&base, &last);
        self.base = Some(last);
    }

    /// The bucket is over.
    fn close(&mut self) {
        self.count();
        let bucket = std::mem::take(&mut self.bucket);
        if let Some(point) = usize::try_from(self.place).ok().and_then(|place| self.points.get_mut(place)) {
            *point = bucket.point();
        }
    }

    fn points(mut self) -> Vec<Point> {
        self.close();
        self.points
    }

    fn levels(&mut self, row: &Row) -> Levels {
        let mut levels = Levels { at_ms: row.at.wall_ms, ..Levels::default() };
        let (mut main, mut whole) = ([None; 2], [None; 2]);
        for (name, value) in self.levels.of(row) {
            let Some(n) = int(value) else { continue };
            let value = Some(n as f64 / 10f64.powi(self.texts.decimals(name, row.at.wall_ms)));
            match &**name {
                "uptime_in_seconds" => levels.uptime_s = value,
                "total_commands_processed" => levels.commands = value,
                OWN_TOTAL => levels.own = value,
                "total_error_replies" => levels.errors = value,
                "used_cpu_user_main_thread" => main[0] = value,
                "used_cpu_sys_main_thread" => main[1] = value,
                "used_cpu_user" => whole[0] = value,
                "used_cpu_sys" => whole[1] = value,
                "used_memory" => levels.memory_bytes = value,
                "connected_clients" => levels.clients = value,
                _ => {}
            }
        }
        let sum = |[user, kernel]: [Option<f64>; 2]| Some(user? + kernel?);
        levels.cpu_s = sum(main).or(sum(whole));
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(at_ms: i64, commands: f64, own: f64, cpu_s: f64) -> Levels {
        let uptime_s = Some(at_ms as f64 / 1e3);
        Levels { at_ms, uptime_s, commands: Some(commands), own: Some(own), cpu_s: Some(cpu_s), ..Levels::default() }
    }

    fn between(base: &Levels, last: &Levels) -> Point {
        let mut bucket = Bucket::default();
        bucket.add(base, last);
        bucket.point()
    }

    #[test]
    fn rates_are_others_alone_and_the_worst_ping_is_kept() {
        let mut bucket = Bucket { pings: [(50, 8), (100, 1), (90_000, 1)].into(), ..Bucket::default() };
        bucket.add(&levels(1_000, 100.0, 20.0, 1.0), &levels(3_000, 340.0, 40.0, 1.5));
        let point = bucket.point();
        assert_eq!((point.commands, point.cpu), (Some(110.0), Some(0.25)));
        assert_eq!((point.ping_us_p50, point.ping_us_max), (Some(50.0), Some(90_000.0)));
        assert_eq!(point.errors, None, "not counted by the server");
        // After a gap in the bucket: of the seconds that were seen.
        bucket.add(&levels(9_000, 400.0, 40.0, 2.0), &levels(10_000, 600.0, 40.0, 2.5));
        assert_eq!((bucket.point().commands, bucket.point().cpu), (Some(140.0), Some(1.0 / 3.0)));
    }

    #[test]
    fn nothing_is_said_of_a_rate_over_a_restart() {
        let mut after = levels(3_000, 340.0, 40.0, 1.5);
        after.uptime_s = Some(0.0);
        after.memory_bytes = Some(5.0);
        let point = between(&levels(1_000, 100.0, 20.0, 1.0), &after);
        assert_eq!((point.commands, point.cpu, point.memory_bytes), (None, None, Some(5.0)));
        let again = between(&levels(1_000, 100.0, 20.0, 1.0), &levels(3_000, 90.0, 40.0, 1.5));
        assert_eq!(again.commands, None, "a counter that went back");
    }

    #[test]
    fn a_ping_that_took_long_is_drawn_for_as_long_as_it_took() {
        let mut points = vec![Point { ping_us_max: Some(50.0), ..Point::default() }; 5];
        stand(&mut points, 10_000, 1_000, &Stall { sent_ms: 11_500, us: 2_000_000 });
        let of = |points: &[Point]| points.iter().map(|p| p.ping_us_max.unwrap_or(0.0)).collect::<Vec<_>>();
        assert_eq!(of(&points), [50.0, 2e6, 2e6, 2e6, 50.0]);
        stand(&mut points, 10_000, 1_000, &Stall { sent_ms: 9_000, us: 3_000_000 });
        stand(&mut points, 10_000, 1_000, &Stall { sent_ms: 14_200, us: u64::MAX });
        stand(&mut points, 10_000, 1_000, &Stall { sent_ms: u64::MAX, us: 1 });
        assert_eq!(of(&points)[..4], [3e6, 3e6, 3e6, 2e6], "only the longest counts");
        assert_eq!(points[4].ping_us_max, Some(u64::MAX as f64), "and it may last beyond the range");
    }

    #[test]
    fn a_single_row_has_levels_and_no_rates() {
        let one = levels(1_000, 100.0, 20.0, 1.0);
        assert_eq!(between(&one, &one).commands, None);
    }
}
