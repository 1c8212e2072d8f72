//! The counters in messages of StackExchange.Redis, 1.0 to 2.8. What they mean:
//! <https://stackexchange.github.io/StackExchange.Redis/Timeouts>.

use unslow_facts::{Multiplexer, ThreadPool};

/// What a message shows of them; `None` where it shows none.
pub fn parse(text: &str) -> Option<Multiplexer> {
    let all = Multiplexer {
        queued: figure(text, "qu"),
        sent: figure(text, "qs"),
        unread_bytes: figure(text, "in"),
        partial_bytes: figure(text, "cur-in"),
        reader: word(text, "rs"),
        worker: pool(text, "WORKER"),
        iocp: pool(text, "IOCP"),
        queued_items: inside(text, "POOL", "QueuedItems"),
        own_threads: own_threads(text),
    };
    (all != Multiplexer::default()).then_some(all)
}

/// What stands after `name: `, or `name=` as 1.0 wrote it. The last of that name: a key before the counters may look
/// like one.
fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let begins = |at: usize| text[..at].ends_with([' ', ',']);
    text.rmatch_indices(name).filter(|(at, _)| begins(*at)).find_map(|(at, _)| {
        let rest = &text[at + name.len()..];
        rest.strip_prefix(": ").or_else(|| rest.strip_prefix('='))
    })
}

/// No counter of a client is larger; facts with larger figures are refused when they are read again.
const LARGEST: u64 = 1_000_000_000_000;

fn digits(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok().filter(|n| *n <= LARGEST)
}

fn figure(text: &str, name: &str) -> Option<u64> {
    digits(after(text, name)?)
}

/// A state of the library, such as `ReadAsync`.
fn word(text: &str, name: &str) -> Option<String> {
    const LONGEST: usize = 40;
    let word = after(text, name)?.split([',', ' ']).next()?.trim_end_matches('*');
    let is_name = !word.is_empty() && word.len() <= LONGEST && word.chars().all(|c| c.is_ascii_alphabetic());
    is_name.then(|| word.to_string())
}

/// `Busy` of `WORKER: (Busy=600,Free=32167,Min=6,Max=32767)`.
fn inside(text: &str, pool: &str, name: &str) -> Option<u64> {
    let shown = after(text, pool)?.strip_prefix('(')?.split(')').next()?;
    shown.split(',').find_map(|part| digits(part.trim().strip_prefix(name)?.strip_prefix('=')?))
}

fn pool(text: &str, name: &str) -> Option<ThreadPool> {
    let of = |field| inside(text, name, field);
    Some(ThreadPool { busy: of("Busy")?, min: of("Min")?, max: of("Max")? })
}

/// `mgr: 9 of 10 available`.
fn own_threads(text: &str) -> Option<(u64, u64)> {
    let rest = after(text, "mgr")?;
    let (free, rest) = rest.split_once(" of ")?;
    Some((digits(free)?, digits(rest)?))
}
