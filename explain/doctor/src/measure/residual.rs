//! How long a command that arrives at any moment waits for the one that is running. That is half the mean call only
//! where all calls are of one length.
//!
//! Long calls are met more often than short ones. With calls of s microseconds the mean rest of the one that is met is
//! E[s²] / 2E[s], the mean residual life of renewal theory: 5 ms behind calls that all take 10 ms, and 6.6 ms where
//! nine of ten calls take 1 ms and the tenth 19 ms, though half the mean of these is 1.4 ms.

use unslow_facts::{Node, TimeRange};

use super::is_one_of;

/// The server counts longer calls as one second (LATENCY_HISTOGRAM_MAX_VALUE of server.h): the range they fall into has
/// no upper end.
const LONGEST_US: u64 = 1_000_000;
/// Where in a range its calls are, as a part of its upper end: in the middle of its upper half, which is the whole of
/// it.
const MIDDLE: f64 = 0.75;
/// Calls at a range's lower and upper end, compared with its middle.
const LOWEST: f64 = 0.5 / MIDDLE;
const HIGHEST: f64 = 1.0 / MIDDLE;

/// Of calls whose times are known one by one, in us.
pub fn of_calls(times_us: &[f64]) -> Option<f64> {
    let sum: f64 = times_us.iter().sum();
    (sum > 0.0).then(|| times_us.iter().map(|us| us * us).sum::<f64>() / (2.0 * sum))
}

/// Of calls whose times are known by range, and exactly on average, in us.
///
/// The calls of a range are taken as equally long, and the middles of all ranges are scaled by one factor so that the
/// average is right. Where all calls are of one length, or of one length in each range with the same place in it, that
/// is exact; equal calls at the border of two ranges come out 13 % too long at most, a few long calls near the end of
/// their range 16 % too short in the tests.
pub fn of_ranges(ranges: &[TimeRange], mean_us: f64) -> Option<f64> {
    let (longest, others): (Vec<&TimeRange>, Vec<&TimeRange>) = ranges.iter().partition(|r| r.up_to_us >= LONGEST_US);
    let (long, short) = (calls(&longest), calls(&others));
    let sum = (long + short) * mean_us;
    if long + short <= 0.0 || sum <= 0.0 {
        return None;
    }
    let short_us: f64 = others.iter().map(|r| r.calls as f64 * middle_us(r)).sum();
    let squares: f64 = others.iter().map(|r| r.calls as f64 * middle_us(r) * middle_us(r)).sum();
    // Calls that are longer than the server counts took what the others leave of the sum.
    let least_us: f64 = longest.iter().map(|r| middle_us(r)).fold(0.0, f64::max);
    let long_us = if long > 0.0 { least_us.max((sum - short_us) / long) } else { 0.0 };
    let (first, second) = (short_us + long * long_us, squares + long * long_us * long_us);
    if first <= 0.0 {
        return None;
    }
    // The sum's window is a moment longer than that of the ranges; no call leaves its range for that.
    let scale = (sum / first).clamp(LOWEST, HIGHEST);
    Some(scale * second / (2.0 * first))
}

fn calls(ranges: &[&TimeRange]) -> f64 {
    ranges.iter().map(|r| r.calls as f64).sum()
}

fn middle_us(range: &TimeRange) -> f64 {
    range.up_to_us as f64 * MIDDLE
}

/// Of the calls of `names` in the window, by the server's histograms (7.0+), in us; `None` where it shows none of them.
///
/// Our own calls are taken off each command at the mean, as from commandstats: what is left of it is distributed as the
/// whole.
pub fn of_commands(node: &Node, names: &[&str]) -> Option<f64> {
    let histograms = node.histograms.value()?;
    let (mut spent_us, mut weighted, mut shown) = (0.0, 0.0, false);
    for (name, stat) in node.foreign_commands().iter().filter(|(name, _)| is_one_of(names, name)) {
        let (us, mean_us) = (stat.usec as f64, stat.usec as f64 / stat.calls as f64);
        let by_range = histograms.get(name).and_then(|ranges| of_ranges(ranges, mean_us));
        shown |= by_range.is_some();
        spent_us += us;
        // The probability to meet a command is its part of the time.
        weighted += us * by_range.unwrap_or(mean_us / 2.0);
    }
    (shown && spent_us > 0.0).then(|| weighted / spent_us)
}

/// An upper bound of what the median call of a command took in the window, by the server's histograms (7.0+), in us:
/// the upper end of its range.
pub fn median_at_most(node: &Node, name: &str) -> Option<f64> {
    let ranges = node.histograms.value()?.get(name)?;
    let half = ranges.iter().map(|r| r.calls).sum::<u64>().div_ceil(2);
    let mut seen = 0;
    let median = ranges.iter().filter(|r| r.calls > 0).find(|r| {
        seen += r.calls;
        seen >= half
    })?;
    (median.up_to_us < LONGEST_US).then_some(median.up_to_us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(up_to_us: u64, calls: u64) -> TimeRange {
        TimeRange { up_to_us, calls }
    }

    /// As the server counts them.
    fn counted(times_us: &[f64]) -> Vec<TimeRange> {
        const ENDS: &[u64] = &[
            1, 2, 4, 8, 16, 33, 66, 132, 264, 528, 1056, 2113, 4227, 8454, 16908, 33816, 67633, 135_266, 270_532,
            541_065, 1_073_741,
        ];
        let of = |us: f64| ENDS.iter().copied().find(|end| us <= *end as f64).unwrap_or(1_073_741);
        let count = |end: &u64| times_us.iter().filter(|us| of(us.min(1e6)) == *end).count() as u64;
        ENDS.iter().map(|end| range(*end, count(end))).filter(|r| r.calls > 0).collect()
    }

    fn mean(times_us: &[f64]) -> f64 {
        times_us.iter().sum::<f64>() / times_us.len() as f64
    }

    #[test]
    fn long_calls_are_met_more_often_than_short_ones() {
        for (times, expected) in [
            (&[10_000.0, 10_000.0][..], Some(5000.0)),
            (&[], None),
            (&[0.0], None),
            (&[1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0, 19_000.0], Some(6607.0)),
        ] {
            assert_eq!(of_calls(times).map(f64::round), expected, "{times:?}");
        }
    }

    #[test]
    fn ranges_give_nearly_what_single_calls_give() {
        let spread: Vec<f64> = (0..1000).map(|i| 1000.0 + 19.0 * f64::from(i)).collect();
        let few_long: Vec<f64> = (0..500).map(|i| if i % 50 == 0 { 30_000.0 } else { 800.0 }).collect();
        let tail: Vec<f64> = (1..2000).map(|i| -5000.0 * (f64::from(i) / 2000.0).ln()).collect();
        let seconds: Vec<f64> = (0..100).map(|i| if i == 0 { 5_000_000.0 } else { 1000.0 }).collect();
        for (what, times) in [
            ("of one length", vec![12_345.0; 40]),
            ("in the lowest range", vec![0.6; 9]),
            ("at a border", (0..100).map(|i| 16_400.0 + 10.0 * f64::from(i)).collect()),
            ("spread", spread),
            ("mostly short", few_long),
            ("exponential", tail),
            ("one of five seconds", seconds),
        ] {
            let exact = of_calls(&times).unwrap();
            let ranges = counted(&times);
            let near = of_ranges(&ranges, mean(&times)).unwrap() / exact;
            assert!((0.83..1.14).contains(&near), "{what}: {near} of {exact}; {ranges:?}");
        }
    }

    #[test]
    fn the_average_of_commandstats_moves_no_call_out_of_its_range() {
        let ranges = [range(8454, 10), range(33816, 1)];
        let at = |mean_us| of_ranges(&ranges, mean_us).unwrap();
        // The middles: 6340 us and 25,362 us, 8070 us on average.
        let middle = at(8070.0);
        for (mean_us, expected) in [
            (1.0, middle * LOWEST),
            (4035.0, middle * LOWEST),
            (7000.0, middle * 7000.0 / 8070.0),
            (20_000.0, middle * HIGHEST),
        ] {
            assert!((at(mean_us) / expected - 1.0).abs() < 0.001, "{mean_us}: {} of {expected}", at(mean_us));
        }
        for (ranges, mean_us) in
            [(&[range(33, 0)][..], 10.0), (&[range(33, 5)], 0.0), (&[range(0, 5)], 10.0), (&[], 10.0)]
        {
            assert_eq!(of_ranges(ranges, mean_us), None, "{ranges:?}");
        }
    }
}
