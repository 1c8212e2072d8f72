//! Times as people type them: `yesterday 01:00`, `3h ago`, `-20m`, `05:45`, `2026-11-20T01:00Z`.
//!
//! Local time is the machine's, or `TZ`'s. A time that a daylight saving change makes twice, or skips, is an error that
//! says so: the wrong hour would be diagnosed without a word.

use jiff::civil::{DateTime, Time};
use jiff::{Timestamp, Zoned};
use unslow_units::parse_time;

/// Why a time could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhenError {
    #[error(
        "invalid time {0:?}; expected a value such as \"yesterday 01:00\", \"3h ago\", -20m, 05:45, \"2026-11-20 \
         01:00\" or 2026-11-20T01:00Z"
    )]
    NotATime(String),
    #[error("invalid time {0:?}; expected a date such as 2026-11-20, \"2026-11-20 01:00\" or 2026-11-20T01:00Z")]
    NotADate(String),
    #[error("{0:?} comes twice that day, because clocks are set back; add the offset, such as 2026-10-25T02:30+01:00")]
    Twice(String),
    #[error("{0:?} does not exist that day, because clocks are set forward")]
    Never(String),
    #[error("{0:?} is in the future")]
    Future(String),
}

/// A time that has been, as unix time in ms.
pub fn parse(text: &str, now: &Zoned) -> Result<i64, WhenError> {
    let at_ms = any(text, now)?;
    if at_ms > now.timestamp().as_millisecond() {
        return Err(WhenError::Future(text.to_string()));
    }
    Ok(at_ms)
}

/// A time with its date, such as `2026-11-20`, past or to come, as unix time in ms.
pub fn dated(text: &str, now: &Zoned) -> Result<i64, WhenError> {
    match text.trim().as_bytes() {
        [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', b'-', ..] => any(text, now),
        _ => Err(WhenError::NotADate(text.to_string())),
    }
}

fn any(text: &str, now: &Zoned) -> Result<i64, WhenError> {
    let words = text.trim();
    let not_a_time = || WhenError::NotATime(text.to_string());
    let at_ms = if words == "now" {
        now.timestamp().as_millisecond()
    } else if let Some(ago) = words.strip_suffix("ago").or_else(|| words.strip_prefix('-')) {
        let ago = parse_time(ago.trim()).map_err(|_| not_a_time())?;
        now.timestamp().as_millisecond() - i64::try_from(ago.as_millis()).map_err(|_| not_a_time())?
    } else if let Ok(at) = with_seconds(words).parse::<Timestamp>() {
        at.as_millisecond()
    } else {
        local(words, now, text)?.ok_or_else(not_a_time)?
    };
    Ok(at_ms)
}

/// `2026-11-20T01:00Z` with the seconds that the standard wants.
fn with_seconds(text: &str) -> String {
    let Some((date, rest)) = text.split_once(['T', ' ']) else { return text.to_string() };
    let zone = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (time, zone) = rest.split_at(zone);
    if time.matches(':').count() == 1 { format!("{date}T{time}:00{zone}") } else { text.to_string() }
}

/// A time of this machine's clock.
fn local(words: &str, now: &Zoned, text: &str) -> Result<Option<i64>, WhenError> {
    let today = now.date();
    let (date, time) = match words.split_once([' ', 'T']) {
        Some(("yesterday", time)) => (today.yesterday().ok(), time),
        Some(("today", time)) => (Some(today), time),
        Some((date, time)) => (date.parse().ok(), time),
        None if words == "yesterday" => (today.yesterday().ok(), "00:00"),
        None if words == "today" => (Some(today), "00:00"),
        None if words.contains('-') => (words.parse().ok(), "00:00"),
        None => (None, words),
    };
    let Some(time) = clock(time.trim()) else { return Ok(None) };
    let has_day = words.contains([' ', 'T']);
    let date = match date {
        Some(date) => date,
        None if has_day => return Ok(None),
        // The last one there was.
        None if time <= now.time() => today,
        None => match today.yesterday() {
            Ok(yesterday) => yesterday,
            Err(_) => return Ok(None),
        },
    };
    let at = DateTime::from_parts(date, time);
    let ambiguous = now.time_zone().to_ambiguous_zoned(at);
    let offset = ambiguous.offset();
    match offset {
        jiff::tz::AmbiguousOffset::Unambiguous { .. } => {
            Ok(ambiguous.compatible().ok().map(|at| at.timestamp().as_millisecond()))
        }
        jiff::tz::AmbiguousOffset::Fold { .. } => Err(WhenError::Twice(text.to_string())),
        jiff::tz::AmbiguousOffset::Gap { .. } => Err(WhenError::Never(text.to_string())),
    }
}

/// `05:45` or `05:45:10`.
fn clock(text: &str) -> Option<Time> {
    let mut parts = text.split(':').map(|part| part.parse::<i8>().ok().filter(|_| part.len() <= 2));
    let (hour, minute) = (parts.next()??, parts.next()??);
    let second = parts.next().unwrap_or(Some(0))?;
    parts.next().is_none().then(|| Time::new(hour, minute, second, 0).ok())?
}

/// `2026-11-20 01:00:05` by this machine's clock.
pub fn local_time(at_ms: u64) -> String {
    shown(at_ms, "%Y-%m-%d %H:%M:%S")
}

/// `01:00`.
pub fn local_clock(at_ms: u64) -> String {
    shown(at_ms, "%H:%M")
}

/// Round times of this machine's clock between two others, `most` of them at most, each with its name: `01:00`, or
/// `11-20` where they are days.
pub fn round_times(from_ms: u64, to_ms: u64, most: u64) -> Vec<(u64, String)> {
    const MINUTE: u64 = 60_000;
    const DAY: u64 = 1440 * MINUTE;
    const STEPS: [u64; 10] = [1, 2, 5, 10, 15, 30, 60, 180, 360, 720];
    let span = to_ms.saturating_sub(from_ms);
    let step = STEPS.iter().map(|minutes| minutes * MINUTE).find(|step| span / step < most);
    let step = step.unwrap_or_else(|| DAY * (span / DAY / most.max(1) + 1));
    let at = i64::try_from(from_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let offset_s = at.map_or(0, |at| jiff::tz::TimeZone::system().to_offset(at).seconds());
    // Whole ones by the clock on the wall, which may be hours, or half of one, from UTC.
    let shifted = from_ms.saturating_add_signed(i64::from(offset_s) * 1000);
    let first = (shifted.div_ceil(step) * step).saturating_add_signed(-i64::from(offset_s) * 1000);
    let all = std::iter::successors(Some(first), |at| at.checked_add(step)).take_while(|at| *at <= to_ms);
    all.map(|at| (at, shown(at, if step < DAY { "%H:%M" } else { "%m-%d" }))).collect()
}

fn shown(at_ms: u64, format: &str) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| "-".to_string(), |at| at.to_zoned(jiff::tz::TimeZone::system()).strftime(format).to_string())
}

/// As `2026-11-27T01:02:03.004Z`, for logs.
pub fn rfc3339(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or_default();
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_times_are_few_round_and_within() {
        const HOUR: u64 = 3_600_000;
        for span in [HOUR / 60, HOUR, 7 * HOUR, 24 * HOUR, 7 * 24 * HOUR, 400 * 24 * HOUR] {
            let from = 1_795_600_000_123;
            let times = round_times(from, from + span, 8);
            assert!((1..=8).contains(&times.len()) || span < HOUR, "{span}: {times:?}");
            assert!(times.iter().all(|(at, _)| (from..=from + span).contains(at)), "{span}: {times:?}");
            assert!(times.iter().all(|(at, _)| at % 60_000 == 0), "{span}: {times:?}");
        }
        assert_eq!(round_times(5, 5, 8), []);
    }

    fn now() -> Zoned {
        // By its rule, not by its name: a machine may have no database of time zones.
        let berlin = jiff::tz::TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        jiff::civil::date(2026, 11, 25).at(10, 30, 0, 0).to_zoned(berlin).unwrap()
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    #[test]
    fn times_are_read_as_people_type_them() {
        for (text, expected) in [
            ("now", "2026-11-25T09:30:00Z"),
            ("-3h", "2026-11-25T06:30:00Z"),
            ("3h ago", "2026-11-25T06:30:00Z"),
            ("90 s ago", "2026-11-25T09:28:30Z"),
            ("yesterday 01:00", "2026-11-24T00:00:00Z"),
            ("yesterday", "2026-11-23T23:00:00Z"),
            ("today 05:45", "2026-11-25T04:45:00Z"),
            ("05:45", "2026-11-25T04:45:00Z"),
            ("05:45:10", "2026-11-25T04:45:10Z"),
            ("23:00", "2026-11-24T22:00:00Z"),
            ("2026-11-20 01:00", "2026-11-20T00:00:00Z"),
            ("2026-07-20 01:00", "2026-07-19T23:00:00Z"),
            ("2026-11-20", "2026-11-19T23:00:00Z"),
            ("2026-11-20T01:00Z", "2026-11-20T01:00:00Z"),
            ("2026-11-20T01:00+01:00", "2026-11-20T00:00:00Z"),
            ("2026-11-20T01:00:05.5Z", "2026-11-20T01:00:05.5Z"),
        ] {
            assert_eq!(parse(text, &now()), Ok(at(expected)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_or_two_of_them_is_refused() {
        for text in ["", "soon", "25:00", "1:2:3:4", "tomorrow 01:00", "ago", "-", "2026-13-01 01:00", "01:0x", "3h"] {
            assert_eq!(parse(text, &now()), Err(WhenError::NotATime(text.into())), "{text}");
        }
        let twice = "2026-10-25 02:30";
        assert_eq!(parse(twice, &now()), Err(WhenError::Twice(twice.into())));
        assert_eq!(parse("2026-10-25T02:30+01:00", &now()), Ok(at("2026-10-25T01:30:00Z")));
        let never = "2026-03-29 02:30";
        assert_eq!(parse(never, &now()), Err(WhenError::Never(never.into())));
        assert_eq!(parse("2027-01-01", &now()), Err(WhenError::Future("2027-01-01".into())));
    }
}
