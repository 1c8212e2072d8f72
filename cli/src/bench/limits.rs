//! Limits of a run, as `--fail-if 'p99 > 5ms'`: what breaks one makes the exit status 1.

use std::ffi::OsString;
use std::fmt;

use unslow_bench::{Latency, Run};
use unslow_units::{count, parse_count, parse_rate, parse_share, parse_time, percent, rate, time_us};

use crate::server;

/// What may not become true of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    what: What,
    is_above: bool,
    is_equal: bool,
    bound: Bound,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A name of [`TIMES`].
    Time(usize),
    Errors,
    Throughput,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// Microseconds.
    Time(f64),
    Share(f64),
    Count(f64),
    /// A second.
    Rate(f64),
}

type TimeOf = fn(&Latency) -> f64;

const TIMES: [(&str, TimeOf); 8] = [
    ("p50", |l| l.us_p50),
    ("p90", |l| l.us_p90),
    ("p99", |l| l.us_p99),
    ("p99.9", |l| l.us_p99_9),
    ("p99.99", |l| l.us_p99_99),
    ("p99.999", |l| l.us_p99_999),
    ("mean", |l| l.us_mean),
    ("max", |l| l.us_max),
];

/// A limit that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLimit {
    /// No comparison in it.
    #[error("expected a comparison such as 'p99 > 5ms', 'errors > 0.1%' or 'throughput < 10k'")]
    NoComparison,
    /// Something that is not measured.
    #[error("unknown figure {0:?}; there are p50, p90, p99, p99.9, p99.99, p99.999, mean, max, errors and throughput")]
    Unknown(String),
    /// A bound that is not one of this figure.
    #[error(transparent)]
    Bound(#[from] unslow_units::Error),
}

/// `--fail-if A B` as `--fail-if A --fail-if B`. A word behind a limit is another limit if it can be read as one;
/// otherwise it is the URL.
pub fn apart(words: Vec<OsString>) -> Vec<OsString> {
    if words.get(server::verb_at(&words)).is_none_or(|verb| verb != "bench") {
        return words;
    }
    let is_limit = |word: &OsString| word.to_str().is_some_and(|word| limit(word).is_ok());
    let (mut out, mut is_behind): (Vec<OsString>, bool) = (Vec::new(), false);
    for word in words {
        let is_value =
            out.last().is_some_and(|last| last == "--fail-if") || word.to_string_lossy().starts_with("--fail-if=");
        if is_behind && !is_value && is_limit(&word) {
            out.push("--fail-if".into());
        }
        is_behind = is_value || (is_behind && is_limit(&word));
        out.push(word);
    }
    out
}

/// Reads one limit.
pub fn limit(text: &str) -> Result<Limit, BadLimit> {
    let at = text.find(['<', '>']).ok_or(BadLimit::NoComparison)?;
    let (name, rest) = (text[..at].trim(), &text[at + 1..]);
    let (is_equal, bound) = match rest.strip_prefix('=') {
        Some(bound) => (true, bound.trim()),
        None => (false, rest.trim()),
    };
    let time = TIMES.iter().position(|(known, _)| *known == name);
    let (what, bound) = match (time, name) {
        (Some(which), _) => (What::Time(which), Bound::Time(parse_time(bound)?.as_secs_f64() * 1e6)),
        (None, "errors") if bound.contains('%') => (What::Errors, Bound::Share(parse_share(bound)?)),
        (None, "errors") => (What::Errors, Bound::Count(parse_count(bound)? as f64)),
        (None, "throughput") => (What::Throughput, Bound::Rate(parse_rate(bound)?)),
        (None, other) => return Err(BadLimit::Unknown(other.into())),
    };
    let is_above = text[at..].starts_with('>');
    Ok(Limit { what, is_above, is_equal, bound, text: text.trim().into() })
}

impl Limit {
    /// What the run had where it breaks the limit. Without an answer there is no latency to be within one.
    fn broken_by(&self, run: &Run) -> Option<String> {
        let failed = run.refused + run.unanswered;
        let (found, words) = match (self.what, self.bound) {
            (What::Time(_), _) if run.latency.count == 0 => return Some("nothing was answered".into()),
            (What::Time(which), _) => {
                let us = TIMES[which].1(&run.latency);
                (us, time_us(us))
            }
            (What::Errors, Bound::Share(_)) => {
                let share = failed as f64 / run.requests.max(1) as f64;
                (share, percent(share))
            }
            (What::Errors, _) => (failed as f64, count(failed as f64)),
            (What::Throughput, _) => (run.throughput_per_s, rate(run.throughput_per_s)),
        };
        let (Bound::Time(bound) | Bound::Share(bound) | Bound::Count(bound) | Bound::Rate(bound)) = self.bound;
        let is_beyond = if self.is_above { found > bound } else { found < bound };
        (is_beyond || (self.is_equal && found == bound)).then_some(words)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A line for each limit that one of the runs breaks.
pub fn broken(limits: &[Limit], runs: &[Run]) -> Vec<String> {
    let mut lines = Vec::new();
    for limit in limits {
        for (number, run) in (1..).zip(runs) {
            let Some(found) = limit.broken_by(run) else { continue };
            let which = if runs.len() > 1 { format!(" in run {number}") } else { String::new() };
            lines.push(format!("failed: {limit}{which}: {found}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::page::tests::report;

    #[test]
    fn limits_are_read_and_compared_in_their_own_units() {
        let mut run = report().runs.remove(0);
        run.latency = Latency { count: 1000, us_p99: 5000.0, us_max: 9000.0, ..Latency::default() };
        (run.requests, run.refused, run.unanswered, run.throughput_per_s) = (1000, 1, 1, 12_500.0);
        for (text, found) in [
            ("p99 > 5ms", None),
            ("p99 >= 5ms", Some("5 ms")),
            ("p99>4.9ms", Some("5 ms")),
            ("max > 8999us", Some("9 ms")),
            ("errors > 0.1%", Some("0.2 %")),
            ("errors > 0.2%", None),
            ("errors > 1", Some("2")),
            ("throughput < 12.6k", Some("12.5k/s")),
            ("throughput < 12k", None),
        ] {
            let broken = limit(text).unwrap().broken_by(&run);
            assert_eq!(broken.is_some(), found.is_some(), "{text}: {broken:?}");
            if let (Some(broken), Some(found)) = (broken, found) {
                assert_eq!(broken.replace('\u{a0}', " "), found, "{text}");
            }
        }
        run.latency = Latency::default();
        assert!(limit("p99 > 1h").unwrap().broken_by(&run).is_some(), "nobody was fast");
        let line = &broken(&[limit("p99 > 1h").unwrap()], &[run.clone(), run])[1];
        assert_eq!(line, "failed: p99 > 1h in run 2: nothing was answered");
    }

    #[test]
    fn what_is_no_limit_is_said() {
        assert_eq!(limit("p99 5ms"), Err(BadLimit::NoComparison));
        assert_eq!(limit("p95 > 5ms"), Err(BadLimit::Unknown("p95".into())));
        for text in ["p99 > 5%", "p99 >", "errors > 5ms", "throughput < fast", "errors > 0.1"] {
            assert!(matches!(limit(text), Err(BadLimit::Bound(_))), "{text}");
        }
    }

    #[test]
    fn several_limits_stand_behind_one_flag() {
        let after = |words: &[&str]| {
            let words = apart(words.iter().map(Into::into).collect());
            words.iter().map(|word| word.to_str().unwrap().to_string()).collect::<Vec<_>>().join("|")
        };
        for (words, expected) in [
            (
                &["unslow", "bench", "--fail-if", "p99 > 5ms", "errors > 0.1%", "host"][..],
                "--fail-if|errors > 0.1%|host",
            ),
            (&["unslow", "bench", "--fail-if", "p99>5ms", "--fail-if", "mean>1ms", "host"], "--fail-if|mean>1ms|host"),
            (&["unslow", "bench", "--fail-if=p99>5ms", "mean>1ms"], "--fail-if=p99>5ms|--fail-if|mean>1ms"),
            (&["unslow", "bench", "p99>5ms", "host"], "bench|p99>5ms|host"),
            (&["unslow", "-q", "bench", "--fail-if", "p99", "p50>1ms"], "p99|--fail-if|p50>1ms"),
            (&["unslow", "doctor", "--fail-if", "p99>5ms", "p50>1ms"], "--fail-if|p99>5ms|p50>1ms"),
        ] {
            assert!(after(words).ends_with(expected), "{words:?}: {}", after(words));
        }
    }
}
