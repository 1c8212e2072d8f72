//! Replies had arrived at the client's machine, and the client did not read them before it gave up.
//!
//! Data in the client's own socket has left the server and the network. The client is late: it gets no CPU time (or its
//! container throttles it), a garbage collection stops it, its reader thread is blocked, or it is still reading one
//! huge reply.
//!
//! Seen when: a timeout message of StackExchange.Redis shows 8 kB or more in its socket (`in:`); 64 kB or more of one
//! reply that has arrived in part (`cur-in:`) are a risk: a large value in transit.
//!
//! Not to be taken for: an exhausted thread pool (`client_thread_pool`), which is the cause if the message shows both;
//! a few bytes, which are a reply that arrived right after the client gave up.
//!
//! How to confirm: on the client's machine `ss -tin dst SERVER` (Recv-Q stays above 0), its CPU usage and its garbage
//! collector's log; on the server `redis-cli --bigkeys`, `redis-cli SLOWLOG GET`.
//!
//! What to do: give the client CPU time and look at its garbage collections; split large values, or read them on a
//! separate connection.
//! Sources: <https://stackexchange.github.io/StackExchange.Redis/Timeouts>; StackExchange.Redis #2066, #2119.

use unslow_facts::ClientError;

use super::messages::{UNREAD_BYTES, causes, counters, said, unread, where_and_how_often, with_causes};
use super::prelude::*;

pub const TITLE: &str = "Replies unread by the client";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::No("it is read from the error message of a .NET client, and the lab has none");

pub fn check(facts: &Facts) -> Verdict {
    let rows = facts.client_errors.iter().filter_map(|e| Some((e, unread(e)?)));
    let Some((error, waiting)) = rows.max_by_key(|(_, waiting)| *waiting) else {
        let shown = facts.client_errors.iter().filter_map(|e| counters(e)?.unread_bytes).max();
        return shown.map_or(Verdict::NotHere, |n| {
            Verdict::Absent(format!("replies unread by the client: at most {} in its socket", bytes(n as f64)))
        });
    };
    found(facts, error, waiting).into()
}

fn found(facts: &Facts, error: &ClientError, waiting: u64) -> Finding {
    let amount = bytes(waiting as f64);
    let in_socket = counters(error).and_then(|c| c.unread_bytes).filter(|n| *n >= UNREAD_BYTES);
    let finding = if in_socket.is_some() {
        Finding::new(format!(
            "Not your Redis: {} although {amount} of replies had arrived: they waited unread in the client's socket",
            said(error)
        ))
        .risk(format!("requests of this client failed: {}", where_and_how_often(error)))
        .severity(Severity::Medium)
        .likely("read from the client's own counter when it gave up; a message says nothing about this window")
    } else {
        Finding::new(format!("{}, and {amount} of one reply had arrived: a large value was on its way", said(error)))
            .risk(format!("requests behind a large reply wait for it: {}", where_and_how_often(error)))
            .possible(
                "part of a large reply was seen; whether the reader, the network or the server was late is not known",
            )
    };
    let field = if in_socket.is_some() { "in" } else { "cur-in" };
    let mut finding = finding.on(error.server.iter()).saw_at(
        format!("{field} in the client's message"),
        format!("{waiting} B"),
        facts.at_ms,
    );
    if let Some(reader) = counters(error).and_then(|c| c.reader.as_ref()) {
        finding = finding.saw_at("rs in the client's message", format!("its reader: {reader}"), facts.at_ms);
    }
    // A value that is large on the server is one reason.
    let large: Vec<(&'static str, Finding)> =
        causes(facts, error.kind).into_iter().filter(|(rule, _)| *rule == "big_key").collect();
    finding = with_causes(finding, facts, &large);
    let find = cli(error.server.as_deref().unwrap_or("HOST:PORT"), "--bigkeys");
    finding
        .fix(
            "Look into that client: CPU usage, the limit of its container, garbage collections, a blocked reader",
            &["cat /sys/fs/cgroup/cpu.stat   (in its container)", "dotnet-counters monitor -p PID System.Runtime"],
            "",
            "",
        )
        .fix(
            "If a value is huge: split it, or read it on a separate connection",
            &[&find],
            "the command reads the size of every key",
            "",
        )
}
