//! The client's thread pool had no thread left to take the reply from the socket: the timeout is the client's own.
//!
//! .NET starts threads immediately up to a minimum (the number of processors, by default), and beyond that only one or
//! two a second. A burst of blocking work (`.Result`, `.Wait()`, synchronous calls) takes them all; replies that have
//! arrived then wait for a thread, and requests time out although the server answered in time.
//!
//! Seen when: a timeout message of StackExchange.Redis shows more busy threads than the minimum and, if it shows the
//! queue, work that waits for a thread. Bytes in the client's socket (`in:`) mean that replies had arrived; without
//! them it is a risk: the threads may be blocked because the server is slow.
//!
//! Not to be taken for: a client that has threads and does not read (`client_unread_replies`); a stall of the server,
//! after which many threads are waiting as well, but with `in: 0`.
//!
//! How to confirm: `dotnet-counters monitor -p PID System.Runtime` (thread pool queue length),
//! `dotnet-stack report -p PID` (what the threads wait for).
//!
//! What to do: raise the minimum, which helps immediately; then await instead of blocking, so that a burst needs no
//! more threads.
//! Sources: <https://stackexchange.github.io/StackExchange.Redis/Timeouts>; StackExchange.Redis #481, #1925, #2792.

use unslow_facts::{ClientError, Multiplexer, ThreadPool};

use super::messages::{causes, counters, said, starved, where_and_how_often, with_causes};
use super::prelude::*;

pub const TITLE: &str = "Client's thread pool";
pub const LEADS_TO: &[&str] = &["client_unread_replies"];
pub const INJECTED: Injected = Injected::No("it is read from the error message of a .NET client, and the lab has none");

pub fn check(facts: &Facts) -> Verdict {
    let rows = facts.client_errors.iter().filter_map(|e| Some((e, starved(e)?, counters(e)?)));
    // Replies that had arrived first, then the largest excess.
    let rows = by_worst(rows.collect(), |(_, (_, pool), seen)| {
        (pool.busy - pool.min) as f64 + if seen.unread_bytes.unwrap_or(0) > 0 { 1e15 } else { 0.0 }
    });
    let Some((error, (name, pool), seen)) = rows.first() else {
        let shown = facts.client_errors.iter().filter_map(|e| counters(e)?.worker).max_by_key(|pool| pool.busy);
        return shown.map_or(Verdict::NotHere, |pool| {
            Verdict::Absent(format!(
                "the client's thread pool: at most {} worker threads were busy and its minimum is {}, or no work \
                 waited for a thread",
                pool.busy, pool.min
            ))
        });
    };
    found(facts, error, name, *pool, seen).into()
}

fn found(facts: &Facts, error: &ClientError, name: &str, pool: ThreadPool, seen: &Multiplexer) -> Finding {
    let arrived = seen.unread_bytes.filter(|n| *n > 0);
    let threads = format!("{} of its threads were busy, {} is its minimum", count(pool.busy as f64), pool.min);
    let finding = match arrived {
        Some(n) => Finding::new(format!(
            "Not your Redis: {}, because its thread pool was exhausted: {threads}, and {} of replies waited unread in \
             its socket",
            said(error),
            bytes(n as f64)
        ))
        .risk(format!("requests of this client failed: {}", where_and_how_often(error)))
        .severity(Severity::Medium)
        .likely("read from the client's own counters when it gave up; a message says nothing about this window"),
        None => Finding::new(format!(
            "{}, and its thread pool was exhausted ({threads}); no reply had arrived, so the threads may have waited \
             for the server",
            said(error)
        ))
        .risk(format!("requests of this client failed: {}", where_and_how_often(error)))
        .possible(
            "an exhausted thread pool delays replies, and a slow server exhausts a thread pool: the message does not \
             say which",
        ),
    };
    let shown = |finding: Finding, what: &str, value: String| {
        finding.saw_at(format!("{what} in the client's message"), value, facts.at_ms)
    };
    let mut finding = finding.on(error.server.iter());
    finding = shown(finding, name, format!("Busy={},Min={},Max={}", pool.busy, pool.min, pool.max));
    if let Some(n) = seen.queued_items {
        finding = shown(finding, "POOL", format!("QueuedItems={n}"));
    }
    if let Some(n) = seen.unread_bytes {
        finding = shown(finding, "in", format!("{n} B in the socket"));
    }
    if arrived.is_none() {
        finding = with_causes(finding, facts, &causes(facts, error.kind));
    }
    // A minimum above a pool's maximum is refused, and neither is set then.
    let least = |of: Option<ThreadPool>| of.map_or(pool.busy, |of| pool.busy.min(of.max));
    let (workers, completions) = (least(seen.worker), least(seen.iocp));
    let set = format!("ThreadPool.SetMinThreads({workers}, {completions});   // .NET, once, when the program starts");
    finding
        .fix(
            "Let the client start as many threads as it needs without delay",
            &[&set],
            "more threads at a time: each takes memory, and CPU time if it does more than wait",
            "",
        )
        .fix(
            "Then find out what blocks them, and await it instead (no .Result, no .Wait(), no synchronous calls in \
             requests)",
            &["dotnet-stack report -p PID", "dotnet-counters monitor -p PID System.Runtime"],
            "",
            "",
        )
}
