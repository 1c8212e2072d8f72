//! Times as logs write them.

use unslow_facts::civil_date;

/// A moment in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Unix time in ms; by the log's own clock where that is written without its zone.
    pub ms: i64,
    /// Whether the zone was written.
    pub zoned: bool,
}

impl Stamp {
    /// The end of the year 9999.
    pub const LAST_MS: i64 = 253_402_300_799_999;
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `23 Nov 2026 19:03:59.123` at the beginning of a text, and what follows. Before 4.0 the year was left out.
pub fn read_stamp(text: &str, now_ms: u64) -> Option<(Stamp, &str)> {
    let (day, rest) = text.split_once(' ')?;
    let (month, rest) = rest.split_once(' ')?;
    let month = month_of(month)?;
    let (year, rest) = match rest.split_once(' ') {
        Some((year, after)) if year.len() == 4 && !year.contains(':') => (Some(year.parse().ok()?), after),
        _ => (None, rest),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != ':' && c != '.').unwrap_or(rest.len());
    let of_day = time_of_day(&rest[..end])?;
    let ms = in_year(year, month, day.parse().ok()?, of_day, now_ms)?;
    Some((Stamp { ms, zoned: false }, &rest[end..]))
}

/// `Nov 23 19:03:59` at the beginning of a text.
pub fn read_syslog(text: &str, now_ms: u64) -> Option<Stamp> {
    let mut words = text.split_whitespace();
    let (month, day, time) = (month_of(words.next()?)?, words.next()?.parse().ok()?, words.next()?);
    Some(Stamp { ms: in_year(None, month, day, time_of_day(time)?, now_ms)?, zoned: false })
}

/// `2026-11-23T19:03:59.123+02:00`, `...Z`, or without a zone.
pub fn read_iso(text: &str) -> Option<Stamp> {
    let (date, rest) = text.split_once('T')?;
    let mut parts = date.splitn(3, '-');
    let (year, month, day) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let end = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
    let local = from_civil(year, month, day)? + time_of_day(&rest[..end])?;
    let zone = &rest[end..];
    let (sign, written) = match zone.chars().next() {
        None => return Some(Stamp { ms: local, zoned: false }),
        Some('Z') => return Some(Stamp { ms: local, zoned: true }),
        Some('-') => (-1, &zone[1..]),
        Some(_) => (1, &zone[1..]),
    };
    let (hours, minutes) = written.split_once(':').or_else(|| written.split_at_checked(2))?;
    let hours = hours.parse::<i64>().ok().filter(|h| (0..=14).contains(h))?;
    let minutes = minutes.parse::<i64>().ok().filter(|m| (0..60).contains(m))?;
    Some(Stamp { ms: local - sign * (hours * 60 + minutes) * 60_000, zoned: true })
}

fn month_of(word: &str) -> Option<i64> {
    Some(MONTHS.iter().position(|m| *m == word)? as i64 + 1)
}

/// A day without its year is of the year that ends now: never more than a day ahead.
fn in_year(year: Option<i64>, month: i64, day: i64, of_day: i64, now_ms: u64) -> Option<i64> {
    if let Some(year) = year {
        return Some(from_civil(year, month, day)? + of_day);
    }
    let (this, ..) = civil_date(now_ms.min(Stamp::LAST_MS as u64));
    let ahead = |ms: &i64| *ms <= now_ms.min(Stamp::LAST_MS as u64) as i64 + 86_400_000;
    let in_this = from_civil(this, month, day).map(|d| d + of_day).filter(ahead);
    in_this.or_else(|| Some(from_civil(this - 1, month, day)? + of_day))
}

/// `19:03:59.123` in ms.
fn time_of_day(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.split(':').map(|p| p.parse::<i64>().ok().filter(|n| (0..=60).contains(n)));
    let (h, m, s) = (parts.next()??, parts.next()??, parts.next()??);
    let ms = format!("{part:0<3}").get(..3)?.parse::<i64>().ok().filter(|ms| *ms >= 0)?;
    (parts.next().is_none() && h < 24 && m < 60).then_some(((h * 60 + m) * 60 + s) * 1000 + ms)
}

/// The beginning of a day, the reverse of [`civil_date`], after Howard Hinnant's published algorithm.
fn from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    Some((era * 146_097 + doe - 719_468) * 86_400_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_460_639_123; // 2026-11-23 19:03:59.123 UTC

    #[test]
    fn times_in_every_format_are_the_same_moment() {
        let now = NOW as i64;
        assert_eq!(read_stamp("23 Nov 2026 19:03:59.123 * x", NOW), Some((Stamp { ms: now, zoned: false }, " * x")));
        assert_eq!(read_stamp("23 Nov 19:03:59.123 * x", NOW).map(|(s, _)| s.ms), Some(now));
        assert_eq!(read_syslog("Nov 23 19:03:59 host", NOW).map(|s| s.ms), Some(now - 123));
        assert_eq!(read_iso("2026-11-23T19:03:59.123Z"), Some(Stamp { ms: now, zoned: true }));
        assert_eq!(read_iso("2026-11-23T21:03:59.123+02:00"), Some(Stamp { ms: now, zoned: true }));
        assert_eq!(read_iso("2026-11-23T15:03:59.123456-0400"), Some(Stamp { ms: now, zoned: true }));
        assert_eq!(read_iso("2026-11-23T19:03:59.123"), Some(Stamp { ms: now, zoned: false }));
        // A line of December read in November is of the year before.
        assert_eq!(read_syslog("Dec 24 00:00:00 host", NOW).map(|s| civil_date(s.ms as u64)), Some((2025, 12, 24)));
        for text in ["", "T", "9-9-9T1:1", "2026-13-01T00:00:00Z", "2026-11-23T25:00:00Z", "2026-11-23T00:00:00+99:00"]
        {
            assert_eq!(read_iso(text), None, "{text}");
        }
        for text in ["", "x", "99 Nov 2026 1:1:1", "23 Foo 2026 1:1:1", "23 Nov 2026 1:1", "23 Nov 2026 1:1:1.\u{20ac}"]
        {
            assert!(read_stamp(text, NOW).is_none_or(|(_, rest)| rest.starts_with('\u{20ac}')), "{text}");
        }
    }

    #[test]
    fn days_are_the_reverse_of_dates() {
        for day in (0..200 * 366).step_by(17) {
            let ms = day * 86_400_000;
            let (y, m, d) = civil_date(ms as u64);
            assert_eq!(from_civil(y, m, d), Some(ms));
        }
    }
}
