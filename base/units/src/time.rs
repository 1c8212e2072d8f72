//! Durations: `250 us`, `12 ms`, `1.5 s`, `3 min 20 s`.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::figure::{NOTHING, signed, three_digits};
use crate::number::Number;
use crate::{Error, Quantity};

/// A duration in the unit that reads best.
pub fn time(duration: Duration) -> String {
    time_us(duration.as_secs_f64() * 1e6)
}

/// The same of microseconds, which reports keep as numbers. Differences may be negative.
pub fn time_us(us: f64) -> String {
    if !us.is_finite() {
        return NOTHING.to_string();
    }
    signed(us, magnitude(us.abs()))
}

// Each limit is half a digit below the next unit, so that what rounds up to 1000 us is "1 ms" already.
fn magnitude(us: f64) -> String {
    let s = us / 1e6;
    let two = |n: u64, part: u64, large: &str, small: &str| match n % part {
        0 => format!("{} {large}", n / part),
        rest => format!("{} {large} {rest} {small}", n / part),
    };
    match us {
        us if us < 999.5 => format!("{} us", three_digits(us)),
        us if us < 999.5e3 => format!("{} ms", three_digits(us / 1e3)),
        _ if s < 119.5 => format!("{} s", three_digits(s)),
        _ if s < 7199.5 => two(s.round() as u64, 60, "min", "s"),
        _ if s < 172_770.0 => two((s / 60.0).round() as u64, 60, "h", "min"),
        _ => two((s / 3600.0).round() as u64, 24, "d", "h"),
    }
}

/// Seconds, in the one unit that a person would plan with: `40 s`, `12 min`, `3 h`, `2 days`.
pub fn time_rough_s(s: f64) -> String {
    match s {
        s if !s.is_finite() => NOTHING.to_string(),
        s if s < 119.5 => signed(s, format!("{:.0} s", s.abs())),
        s if s < 7170.0 => format!("{:.0} min", s / 60.0),
        s if s < 171_000.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} days", s / 86_400.0),
    }
}

const NANOSECONDS_A_SECOND: u128 = 1_000_000_000;

/// In nanoseconds.
fn unit_of(word: &str) -> Option<u128> {
    Some(match word {
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000, // the micro sign and the Greek letter look alike
        "ms" => 1_000_000,
        "s" => NANOSECONDS_A_SECOND,
        "m" | "min" => 60 * NANOSECONDS_A_SECOND,
        "h" => 3600 * NANOSECONDS_A_SECOND,
        "d" | "day" | "days" => 86_400 * NANOSECONDS_A_SECOND,
        _ => return None,
    })
}

/// `250us`, `500ms`, `1.5s`, `2m`, `36h`, `7d`, `1h30m`, `3 min 20 s`, or bare seconds. What is too long to be kept is
/// the longest duration there is.
pub fn parse_time(text: &str) -> Result<Duration, Error> {
    let (mut rest, mut total, mut before) = (text.trim(), 0_u128, None::<u128>);
    loop {
        let (number, after) = Number::split(rest).ok_or_else(|| Error::number(Quantity::Time, text))?;
        let after = after.trim_start();
        let (word, after) = after.split_at(after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len()));
        let unit = match unit_of(word) {
            _ if word.is_empty() && after.is_empty() && before.is_none() => NANOSECONDS_A_SECOND,
            Some(unit) if before.is_none_or(|larger| unit < larger) => unit,
            _ => return Err(Error::unit(Quantity::Time, text, if word.is_empty() { after } else { word })),
        };
        total = total.saturating_add(number.times(unit));
        (rest, before) = (after.trim_start(), Some(unit));
        if rest.is_empty() {
            let nanoseconds = (total % NANOSECONDS_A_SECOND) as u32;
            let seconds = u64::try_from(total / NANOSECONDS_A_SECOND);
            return Ok(seconds.map_or(Duration::MAX, |s| Duration::new(s, nanoseconds)));
        }
    }
}

/// The same, refused outside of a range.
pub fn parse_time_within(text: &str, allowed: RangeInclusive<Duration>) -> Result<Duration, Error> {
    let duration = parse_time(text)?;
    if allowed.contains(&duration) {
        return Ok(duration);
    }
    let (least, most) = (time(*allowed.start()), time(*allowed.end()));
    Err(Error::range(Quantity::Time, text, format!("from {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_best_in_three_digits_without_trailing_zeros() {
        for (us, text) in [
            (0.0, "0 us"),
            (0.034, "0.03 us"),
            (0.5, "0.5 us"),
            (6.02, "6.02 us"),
            (17.44, "17.4 us"),
            (250.0, "250 us"),
            (999.4, "999 us"),
            (999.7, "1 ms"),
            (1_234.0, "1.23 ms"),
            (12_000.0, "12 ms"),
            (999_600.0, "1 s"),
            (1_500_000.0, "1.5 s"),
            (57e6, "57 s"),
            (110e6, "110 s"),
            (119.6e6, "2 min"),
            (200e6, "3 min 20 s"),
            (7_199e6, "119 min 59 s"),
            (7_199.7e6, "2 h"),
            (9_000e6, "2 h 30 min"),
            (86_400e6, "24 h"),
            (172_790e6, "2 d"),
            (273_600e6, "3 d 4 h"),
            (-1_200.0, "-1.2 ms"),
            (-0.001, "0 us"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(time_us(us), text, "{us}");
        }
        assert_eq!(time(Duration::from_millis(1500)), "1.5 s");
        assert!(time(Duration::MAX).starts_with("213503982334601 d"), "{}", time(Duration::MAX));
    }

    #[test]
    fn a_rough_time_has_one_unit() {
        for (s, text) in [
            (0.4, "0 s"),
            (110.0, "110 s"),
            (119.7, "2 min"),
            (720.0, "12 min"),
            (7_190.0, "2 h"),
            (171_500.0, "2 days"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(time_rough_s(s), text, "{s}");
        }
    }

    #[test]
    fn every_form_that_people_type_is_read() {
        for (text, ns) in [
            ("10s", 10_000_000_000),
            ("500ms", 500_000_000),
            ("2m", 120_000_000_000),
            ("2 min", 120_000_000_000),
            ("36h", 129_600_000_000_000),
            ("7d", 604_800_000_000_000),
            ("1.5s", 1_500_000_000),
            ("250us", 250_000),
            ("20 \u{b5}s", 20_000),
            ("20\u{3bc}s", 20_000),
            ("0.1ms", 100_000),
            (".5s", 500_000_000),
            ("0.5", 500_000_000),
            ("90", 90_000_000_000),
            ("0", 0),
            (" 1h30m ", 5_400_000_000_000),
            ("3 min 20 s", 200_000_000_000),
            ("1,500 ms", 1_500_000_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        // The milliseconds of a time to live stay exact.
        assert_eq!(parse_time("1125899906842623ms").unwrap().as_millis(), 1_125_899_906_842_623);
    }

    #[test]
    fn what_is_no_duration_is_refused_and_what_is_too_long_is_the_longest() {
        for text in ["", "s", "-1s", "+1s", "1e3s", "1.2.3s", "1,5s", "5 x", "5 %", "1m 30", "30s 1m", "1s 1s", "1s,"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        for text in ["18446744073709551616d", &format!("{}s", "9".repeat(400)), &"9".repeat(400)] {
            assert_eq!(parse_time(text), Ok(Duration::MAX), "{text}");
        }
    }

    #[test]
    fn a_range_holds_its_ends() {
        let within = |text| parse_time_within(text, Duration::from_millis(500)..=Duration::from_secs(86_400));
        assert!(within("500ms").is_ok() && within("24h").is_ok() && within("1d").is_ok());
        assert!(within("499ms").is_err() && within("86401").is_err());
    }
}
