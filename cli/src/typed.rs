//! Values that several verbs take, with the bounds that they share.

use std::time::Duration;

use unslow_units::{Error, parse_time, parse_time_within};

/// How long something lasts, the doctor's window or a fault: at least half a second, or there would be nothing to see.
pub fn lasting(text: &str) -> Result<Duration, Error> {
    parse_time_within(text, Duration::from_millis(500)..=Duration::from_secs(86_400))
}

/// When a verb ends that would otherwise run on: at most a year.
pub fn end_after(text: &str) -> Result<Duration, Error> {
    parse_time_within(text, Duration::ZERO..=Duration::from_secs(365 * 86_400))
}

/// How far back a recording goes: a minute to ten years.
pub fn retention(text: &str) -> Result<Duration, Error> {
    parse_time_within(text, Duration::from_secs(60)..=Duration::from_secs(3650 * 86_400))
}

/// An answer that takes this long counts as a stall. Each stall is recorded as an event; after 3 s the connection is
/// given up.
pub fn stall(text: &str) -> Result<Duration, Error> {
    parse_time_within(text, Duration::from_millis(50)..=Duration::from_secs(2))
}

/// A delay that a run measures against: at most an hour.
pub fn short_time(text: &str) -> Result<Duration, Error> {
    parse_time_within(text, Duration::ZERO..=Duration::from_secs(3600))
}

/// How long a batch waits for more messages: at most a minute.
pub fn linger(text: &str) -> Result<Duration, Error> {
    parse_time_within(text, Duration::ZERO..=Duration::from_secs(60))
}

/// How long to spin before sleeping: beyond a second a processor is simply taken.
pub fn spin(text: &str) -> Result<Duration, Error> {
    parse_time_within(text, Duration::from_micros(1)..=Duration::from_secs(1))
}

/// A time in seconds; its verb checks the bounds.
pub fn seconds(text: &str) -> Result<f64, Error> {
    parse_time(text).map(|time| time.as_secs_f64())
}

/// The same where a server takes whole seconds: at least one, at most ten years.
pub fn whole_seconds(text: &str) -> Result<u64, String> {
    let time = parse_time_within(text, Duration::from_secs(1)..=Duration::from_secs(3650 * 86_400));
    let time = time.map_err(|e| e.to_string())?;
    if time.subsec_nanos() > 0 {
        return Err("expected whole seconds, such as 30s or 2m".into());
    }
    Ok(time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_takes_the_same_forms() {
        for (text, ms) in [("500ms", 500), ("1.5s", 1_500), ("10s", 10_000), ("2m", 120_000), ("90", 90_000)] {
            let expected = Duration::from_millis(ms);
            assert_eq!((lasting(text), short_time(text)), (Ok(expected), Ok(expected)), "{text}");
            assert_eq!(seconds(text), Ok(expected.as_secs_f64()), "{text}");
        }
        assert_eq!(end_after("36h"), Ok(Duration::from_secs(129_600)));
        assert_eq!(short_time("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(stall("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!((whole_seconds("2m"), whole_seconds("90")), (Ok(120), Ok(90)));
        assert!(whole_seconds("1.5s").is_err() && whole_seconds("0").is_err());
        assert!(stall("1ms").is_err() && stall("5s").is_err());
        assert!(lasting("250us").is_err() && lasting("2d").is_err() && short_time("2h").is_err());
    }
}
