//! A text of error messages, taken apart: which lines belong together, what each message says, how many say the same.

use unslow_facts::{ClientError, ClientErrorKind, ClientLibrary, Multiplexer};

use crate::{address, multiplexer, phrases};
use phrases::Whose;

/// No more of a text is read.
pub const MAX_BYTES: usize = 1 << 20;
/// So many different messages are kept with their command and server; those beyond are counted by kind and library.
const DETAILED: usize = 32;

/// What the messages in a text say, the most frequent first. A text in which no message is known gives one that is
/// [`ClientErrorKind::Unrecognised`]; an empty one gives none.
pub fn client_errors(text: &str) -> Vec<ClientError> {
    let text = beginning(text);
    let messages = messages(text);
    let alone = messages.len() == 1;
    let mut all: Vec<ClientError> = Vec::new();
    for message in &messages {
        let lower = message.to_ascii_lowercase();
        let Some((kind, whose)) = phrases::kind(message, &lower) else { continue };
        if whose == Whose::Redis || alone {
            count(&mut all, read(message, &lower, kind));
        }
    }
    if all.is_empty() && !messages.is_empty() {
        all.push(ClientError { count: 1, ..ClientError::default() });
    }
    all.sort_by_key(|e| std::cmp::Reverse(e.count));
    all
}

/// As much of a text as is read, without half a character at its end.
fn beginning(text: &str) -> &str {
    let mut end = text.len().min(MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Lines that begin no message of their own, beside those that are indented: the causes and frames of an exception.
const CONTINUES: &[&str] =
    &["Caused by", "at ", "...", "--->", "--- End of", "During handling of", "The above exception"];
/// After these lines another exception of the same message follows.
const JOINS: &[&str] = &["During handling of", "The above exception"];

/// The lines of each message, an exception's causes among them.
fn messages(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    // In a Python traceback the exception stands below its frames, and the first one above the last.
    let (mut frames, mut joined) = (false, false);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let indented = line.starts_with([' ', '\t']);
        let traceback = line.contains("Traceback (most recent call last)");
        let belongs = indented || frames || joined || CONTINUES.iter().any(|w| line.starts_with(w));
        match all.pop() {
            Some(mut message) if belongs => {
                message.push('\n');
                message.push_str(line);
                all.push(message);
            }
            other => {
                all.extend(other);
                all.push(line.to_string());
            }
        }
        frames = traceback || frames && indented;
        joined = JOINS.iter().any(|w| line.starts_with(w)) || joined && !traceback && indented;
    }
    all
}

fn read(message: &str, lower: &str, kind: ClientErrorKind) -> ClientError {
    let library = phrases::library(lower);
    let multiplexer = if library == ClientLibrary::StackExchangeRedis { multiplexer::parse(message) } else { None };
    ClientError {
        kind,
        library,
        count: 1,
        // Others may say `command=` before anything.
        command: if library == ClientLibrary::StackExchangeRedis { command(message) } else { None },
        server: address::find(message),
        timeout_ms: timeout_ms(message),
        multiplexer,
    }
}

/// The name of the command, which StackExchange.Redis says. What follows it may be a key.
fn command(message: &str) -> Option<String> {
    const LONGEST: usize = 24;
    let rest = ["Timeout performing ", "command=", "service this operation: "]
        .iter()
        .find_map(|before| message.split_once(before).map(|(_, rest)| rest))?;
    let end = rest.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(rest.len());
    // A word that goes on otherwise is no command: it is cut short there.
    let word = &rest[..end];
    let whole = !rest[end..].starts_with(|c: char| c.is_alphanumeric() || matches!(c, ':' | '_' | '-'));
    (whole && (2..=LONGEST).contains(&word.len())).then(|| word.to_string())
}

/// How long the client waited, by its own words: `(5000ms)`, `timeout is 5000ms`, `after 1 minute(s)`,
/// `borrowMaxWaitDuration=PT0.2S`.
fn timeout_ms(message: &str) -> Option<u64> {
    let after = |word: &str| message.split_once(word).map(|(_, rest)| rest);
    let number = |rest: &str| -> Option<(f64, String)> {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let value = rest[..end].parse::<f64>().ok().filter(|n| *n < 1e9)?;
        Some((value, rest[end..].chars().take(12).collect()))
    };
    let in_ms = |(value, unit): (f64, String)| {
        let unit = unit.trim_start().to_ascii_lowercase();
        const UNITS: &[(&str, f64)] =
            &[("ms", 1.0), ("milli", 1.0), ("micro", 1e-3), ("nano", 1e-6), ("min", 60e3), ("s", 1e3)];
        let (_, scale) = UNITS.iter().find(|(name, _)| unit.starts_with(name))?;
        Some((value * scale).round() as u64).filter(|ms| *ms > 0)
    };
    let performing = || {
        let rest = after("Timeout performing ")?;
        let line = rest.lines().next()?;
        line.split('(').skip(1).find_map(|part| in_ms(number(part)?))
    };
    let borrowing = || Some((number(after("borrowMaxWaitMillis=")?)?.0 as u64).max(1));
    performing()
        .or_else(|| in_ms(number(after("timeout is ")?)?))
        .or_else(|| in_ms(number(after("timed out after ")?)?))
        .or_else(|| in_ms(number(after("borrowMaxWaitDuration=PT")?)?))
        .or_else(borrowing)
}

/// Adds a message to those that say the same. Of their counters the worst are kept, whole: figures of two messages are
/// not mixed.
fn count(all: &mut Vec<ClientError>, mut error: ClientError) {
    if all.len() >= DETAILED && !all.iter().any(|e| same(e, &error)) {
        (error.command, error.server) = (None, None);
    }
    match all.iter_mut().find(|e| same(e, &error)) {
        Some(known) => {
            known.count += 1;
            known.timeout_ms = known.timeout_ms.or(error.timeout_ms);
            if weight(error.multiplexer.as_ref()) > weight(known.multiplexer.as_ref()) {
                known.multiplexer = error.multiplexer;
            }
        }
        None => all.push(error),
    }
}

fn same(a: &ClientError, b: &ClientError) -> bool {
    (a.kind, a.library, &a.command, &a.server) == (b.kind, b.library, &b.command, &b.server)
}

/// How much counters say against the client: threads above the minimum, then bytes that wait.
fn weight(counters: Option<&Multiplexer>) -> Option<(u64, u64)> {
    let counters = counters?;
    let excess = counters.worker.map_or(0, |w| w.busy.saturating_sub(w.min));
    Some((excess, counters.unread_bytes.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_with_its_causes_is_one_message() {
        let java = "a.B: outer\n\tat x.y(Z.java:1)\nCaused by: c.D: inner\n\t... 3 more\ne.F: another\n";
        assert_eq!(messages(java).len(), 2, "{:?}", messages(java));
        let python = "Traceback (most recent call last):\n  File \"a.py\", line 1\nConnectionResetError: [Errno 104] \
                      x\n\n\
                      During handling of the above exception, another exception occurred:\n\n\
                      Traceback (most recent call last):\n  File \"b.py\", line 2\nredis.exceptions.ConnectionError: \
                      y\n\
                      2026-11-23 12:00:00 the next line of the log\n";
        assert_eq!(messages(python).len(), 2, "{:?}", messages(python));
    }

    #[test]
    fn times_in_any_unit_are_milliseconds() {
        for (text, ms) in [
            ("Timeout performing GET (5000ms), next", Some(5000)),
            ("Timeout awaiting response (outbound=0KiB, inbound=0KiB, 5156ms elapsed, timeout is 5000ms)", Some(5000)),
            ("Command timed out after 1 minute(s)", Some(60_000)),
            ("Command timed out after 500 millisecond(s)", Some(500)),
            ("Command timed out after 2 second(s)", Some(2000)),
            ("borrowMaxWaitDuration=PT0.2S", Some(200)),
            ("borrowMaxWaitMillis=2000", Some(2000)),
            ("Command timed out", None),
            ("Command timed out after 99999999999999999999 second(s)", None),
        ] {
            assert_eq!(timeout_ms(text), ms, "{text}");
        }
    }

    #[test]
    fn a_key_is_no_command() {
        for (text, expected) in [
            ("Timeout performing GET (5000ms)", Some("GET")),
            ("Timeout performing HGETALL user:1, inst: 1", Some("HGETALL")),
            ("service this operation: SET keyName; x", Some("SET")),
            ("timeout is 5000ms), command=EVAL, next", Some("EVAL")),
            ("command=SECRET:7", None),
            ("Timeout performing SECRETkey", None),
            ("service this operation: ", None),
        ] {
            assert_eq!(command(text).as_deref(), expected, "{text}");
        }
    }
}
