//! A Lua script or function holds the main thread for milliseconds.
//!
//! A script is atomic: while it runs, nothing else is served. A loop over thousands of elements, or one that grew with
//! the data, stalls every other client; beyond `busy-reply-threshold` (5 s) they get BUSY errors.
//!
//! Seen when: EVAL, EVALSHA or FCALL took over 10 ms a call, or over 10 % of a core at over 1 ms a call, in the window.
//! Scripts that are only in the slow log of the last hour, with over 10 ms, are over, and are reported as a risk.
//!
//! Not to be taken for: a short script called often, which is ordinary work; a script that is slow because of one
//! command in it. commandstats counts that command's time in the script too: it is subtracted here, and the command is
//! the cause (`keys_command`, `slow_command`).
//!
//! What to do: bound the loop, do part of it per call, move the computation to the client.
//! Sources: commandstats, SLOWLOG, Redis documentation of EVAL.

use unslow_facts::SlowEntry;

use super::prelude::*;
use super::standing::stood;
use crate::Link;

pub const TITLE: &str = "Long script";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin", "replica_lag", "expire_starved"];
pub const INJECTED: Injected = Injected::Yes;

const HOUR_S: u64 = 3600;
/// A script that takes longer is in the slow log as it comes, and is worth a word.
const LONG_US: u64 = 10_000;

/// What one node shows of its scripts.
struct Scripts<'a> {
    node: &'a Node,
    /// Without the commands inside that are causes themselves.
    held: Held,
    /// Those commands.
    inner: Vec<String>,
    /// Long ones of the last hour, newest first; those that a command inside explains are left out.
    logged: Vec<&'a SlowEntry>,
}

impl Scripts<'_> {
    fn costs_now(&self) -> bool {
        let mean = self.held.mean_us();
        self.held.calls > 0.0 && (mean > LONG_US as f64 || (self.held.share() > 0.1 && mean > 1000.0))
    }

    fn worst_us(&self) -> f64 {
        self.logged.iter().map(|e| e.us as f64).fold(0.0, f64::max)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Scripts> = facts.live().map(look).collect();
    let absent = absent_text(&all);
    let rows: Vec<Scripts> = all.into_iter().filter(|s| s.costs_now() || !s.logged.is_empty()).collect();
    let rows = by_worst(rows, |s| if s.costs_now() { 1.0 + s.held.share() } else { s.worst_us() / 1e12 });
    match rows.first() {
        None => absent_by_commandstats(facts, "scripts", absent),
        Some(s) if s.costs_now() => stood(now(s), s.node).on(subjects(&rows, true)).into(),
        Some(s) => past(s).on(subjects(&rows, false)).into(),
    }
}

fn subjects(rows: &[Scripts], now: bool) -> Vec<String> {
    rows.iter().filter(|s| s.costs_now() == now).map(|s| s.node.address.clone()).collect()
}

fn look(node: &Node) -> Scripts<'_> {
    let mut held = held(node, SCRIPTS);
    let mut inner = Vec::new();
    for (command, spent) in super::slow_command::in_scripts_of(node) {
        held = held.without(0.0, spent);
        inner.push(command);
    }
    let all = slow_entries(node, HOUR_S);
    let long = |e: &&SlowEntry| is_one_of(SCRIPTS, &e.command.to_lowercase()) && e.us >= LONG_US;
    // With a slow command inside, which of the logged scripts were long by themselves is not known.
    let mut logged: Vec<&SlowEntry> = match inner.is_empty() {
        true => all.iter().copied().filter(long).filter(|e| !explained(&all, e)).collect(),
        false => Vec::new(),
    };
    logged.sort_by_key(|e| std::cmp::Reverse(e.at_s));
    Scripts { node, held, inner, logged }
}

/// Whether one command that the log has from inside this script took nearly all its time (before 7.2).
fn explained(all: &[&SlowEntry], script: &SlowEntry) -> bool {
    let around = |e: &SlowEntry| script_around(all, e).is_some_and(|s| s.id == script.id);
    all.iter().any(|e| e.us as f64 > 0.8 * script.us as f64 && around(e))
}

fn absent_text(all: &[Scripts]) -> String {
    let calls: f64 = all.iter().map(|s| s.held.calls).sum();
    let inner: Vec<String> = all.iter().flat_map(|s| s.inner.clone()).collect();
    let worst = all.iter().filter(|s| s.held.calls > 0.0).max_by(|a, b| a.held.mean_us().total_cmp(&b.held.mean_us()));
    match worst {
        None => "scripts: none ran in the window".into(),
        Some(s) if !inner.is_empty() => format!(
            "scripts: {} calls in the window; without the time of {} inside them, at most {} on average",
            count(calls),
            names(&inner),
            time_us(s.held.mean_us())
        ),
        Some(s) => format!(
            "scripts: {} calls in the window, at most {} on average and {} of it",
            count(calls),
            time_us(s.held.mean_us()),
            percent(all.iter().map(|s| s.held.share()).fold(0.0, f64::max))
        ),
    }
}

fn now(s: &Scripts) -> Finding {
    let node = s.node;
    let mean = s.held.mean_us();
    let (ms, wait) = s.held.others_wait();
    let without = if s.inner.is_empty() {
        String::new()
    } else {
        format!(" (without the time of {} inside them)", names(&s.inner))
    };
    let mut finding =
        Finding::new(format!("Scripts hold the main thread of {}: {}{without}", node.address, s.held.figures()))
            .latency(ms, wait)
            .gain(
                format!(
                    "with a tenth of the loop per call, other clients wait {} instead of {}",
                    time_us(mean / 10.0),
                    time_us(mean)
                ),
                format!("{mean:.0} us a call / 10 = {:.0} us", mean / 10.0),
            )
            .proven("timed by the server's own clock for scripts, in this window")
            .saw(
                node,
                "INFO commandstats",
                format!(
                    "scripts: {} calls, {} each{without}, {} of a core",
                    count(s.held.calls),
                    time_us(mean),
                    percent(s.held.share())
                ),
            );
    let started = node.first.as_ref().map_or(0, |f| f.at_ms);
    if let Some(oldest) = s.logged.last().map(|e| logged_ms(node, e.at_s)).filter(|at| *at < started) {
        finding = finding.since(oldest);
    }
    // Other errors are not the script's.
    if let Some(refused) = node.errors().get("BUSY") {
        finding.chain.push(Link {
            id: "error_flood".into(),
            subject: node.address.clone(),
            at_ms: node.at_ms(),
            text: format!(
                "{} commands to {} were refused with BUSY during that time",
                count(*refused as f64),
                node.address
            ),
        });
    }
    mend(logged(finding, s), s)
}

fn past(s: &Scripts) -> Finding {
    let node = s.node;
    let last = s.logged.first().map_or(0, |e| logged_ms(node, e.at_s));
    let window = match s.held.calls > 0.0 {
        true => format!("in the window they take {} on average", time_us(s.held.mean_us())),
        false => "none in the window".into(),
    };
    let finding = Finding::new(format!(
        "Scripts held up {} in the last hour: {} of over {}, {} at most, the last one {}",
        node.address,
        count(s.logged.len() as f64),
        time_us(LONG_US as f64),
        time_us(s.worst_us()),
        ago(node.at_ms(), last)
    ))
    .risk(format!("{window}; such a call stops every other client for up to {}", time_us(s.worst_us())))
    .past(last)
    .likely("the server timed these calls; in this window there was none like them");
    mend(logged(finding, s), s)
}

fn logged(mut finding: Finding, s: &Scripts) -> Finding {
    for entry in s.logged.iter().take(2) {
        let value = format!("{} {}{}", entry.command, time_us(entry.us as f64), sender(entry));
        finding = finding.saw_then(s.node, "SLOWLOG GET 128", value, logged_ms(s.node, entry.at_s));
    }
    finding
}

fn mend(finding: Finding, s: &Scripts) -> Finding {
    let finding = finding.fix(
        "Bound the script: a limited number of elements per call, and a cursor in its reply",
        &["local page = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[1] + 99)   in the script"],
        "the operation as a whole is no longer atomic",
        "",
    );
    let functions =
        s.logged.iter().any(|e| e.command.starts_with("FCALL")) || spent(s.node, &["fcall", "fcall_ro"]).calls > 0;
    let scripts = s.logged.iter().any(|e| e.command.starts_with("EVAL"))
        || spent(s.node, &["eval", "eval_ro", "evalsha", "evalsha_ro"]).calls > 0;
    let kill: Vec<String> = [(scripts, "SCRIPT KILL"), (functions, "FUNCTION KILL")]
        .iter()
        .filter(|(runs, _)| *runs)
        .map(|(_, command)| cli(&s.node.address, command))
        .collect();
    let kill: Vec<&str> = kill.iter().map(String::as_str).collect();
    finding.fix(
        "Kill a runaway script while it runs",
        &kill,
        "its client gets an error; a script that has written cannot be killed without losing data (SHUTDOWN NOSAVE)",
        "",
    )
}
