//! A Lua script or function holds the one thread for milliseconds.
//!
//! A script is atomic: while it runs nobody else is served. A loop over thousands of elements, or one that grew with the
//! data, is a stall for everyone; beyond `busy-reply-threshold` (5 s) others get BUSY errors.
//!
//! Seen when: EVAL, EVALSHA or FCALL took over 10 ms a call, or over 10 % of a core at over 1 ms a call, in the window; or
//! over 10 ms in the slow log of the last hour.
//!
//! Not to be taken for: a short script called often, which is ordinary work.
//!
//! What to do: bound the loop, do part of it per call, move the computing to the client.
//! Sources: commandstats, SLOWLOG, Redis documentation of EVAL.

use super::prelude::*;

pub const TITLE: &str = "Long script";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin", "error_flood"];
pub const INJECTED: Injected = Injected::Yes;

const COMMANDS: &[&str] = &["eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"];

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let s = spent(node, COMMANDS);
            let logged: Vec<_> = slow_entries(node, 3600).into_iter().filter(|e| COMMANDS.contains(&e.command.to_lowercase().as_str()) && e.us >= 10_000).collect();
            let now = s.calls > 0 && (s.mean_us > 10_000.0 || (s.share > 0.1 && s.mean_us > 1000.0));
            (now || !logged.is_empty()).then_some((node, s, logged, now))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1.share + r.2.len() as f64 / 1e6);
    let Some((node, s, logged, now)) = rows.first() else { return Verdict::Absent(Some("long scripts: none".into())) };
    let worst = logged.iter().map(|e| e.us as f64).fold(s.mean_us, f64::max);
    let finding = Finding::new(format!("Scripts hold the main thread of {} for {} a call: {} of its time", node.address, time_us(s.mean_us.max(worst)), percent(s.share)))
        .on(rows.iter().map(|r| r.0.address.as_str()));
    let finding = if *now {
        finding.latency(s.share * s.mean_us / 2000.0 + s.share * 0.001, format!("{} of all requests wait, {} on average", percent(s.share), time_us(s.mean_us / 2.0))).proven("the server's own clock for scripts, in this window")
    } else {
        finding.risk(format!("none in the window; {} in the slow log of the last hour", logged.len())).likely("seen in the slow log, not in the window")
    };
    let mut finding = finding
        .gain(format!("ten calls of a tenth each: nobody waits longer than {}", time_us(worst / 10.0)), format!("{worst:.0} us / 10"))
        .saw(node, "INFO commandstats", format!("{} calls, {} each, {} of a core", s.calls, time_us(s.mean_us), percent(s.share)));
    for entry in logged.iter().take(2) {
        finding = finding.saw_then(node, "SLOWLOG GET 128", format!("{} {} by {} {}", entry.command, time_us(entry.us as f64), entry.client, entry.client_name), entry.at_s * 1000);
    }
    finding.fix("Bound the script: a limited number of elements a call, a cursor in its reply", &["SCRIPT KILL   (or FUNCTION KILL) ends one that has not written yet"], "the whole is no longer atomic", "the old script").into()
}
