//! The server's own instruments are off, so the next incident leaves no trace.
//!
//! The latency monitor is off by default (threshold 0); a slow log with a threshold of seconds, or of length 0, records
//! nothing. Both cost next to nothing.
//!
//! Seen when: latency-monitor-threshold is 0, or the slow log is off, above 1 s, or keeps no entries.
//!
//! Not to be taken for: a cause. It is an evidence gap.
//!
//! What to do: turn them on.
//! Sources: CONFIG GET latency-monitor-threshold, slowlog-log-slower-than, slowlog-max-len.

use super::prelude::*;

pub const TITLE: &str = "Blind instruments";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// A setting that keeps an instrument off, what it is and what it should be.
type Off = (&'static str, String, &'static str);

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<(&Node, Vec<Off>)> = facts.live().map(|n| (n, off(n))).filter(|(_, g)| !g.is_empty()).collect();
    let rows = by_worst(rows, |r| r.1.len() as f64);
    let read = facts.live().filter(|n| n.config.value().is_some()).count();
    let Some((node, gaps)) = rows.first() else {
        return match (read, facts.live().find_map(|n| n.config.refused())) {
            (_, Some(gap)) => Verdict::Unknown(gap.of("instruments")),
            (0, None) => Verdict::unknown(Lack::Answer, "instruments: no settings were read", ""),
            (n, None) => Verdict::Absent(format!(
                "instruments: the latency monitor and the slow log are on, on {n} of {} nodes",
                facts.nodes.len()
            )),
        };
    };
    let what: Vec<String> = gaps.iter().map(|(k, v, _)| format!("{k} {v}")).collect();
    let all = || rows.iter().flat_map(|(n, gaps)| gaps.iter().map(move |g| (n, g)));
    let on: Vec<String> = all().map(|(n, (k, _, good))| cli(&n.address, &format!("CONFIG SET {k} {good}"))).collect();
    let undo: Vec<String> = all().map(|(n, (k, v, _))| cli(&n.address, &format!("CONFIG SET {k} {v}"))).collect();
    let commands: Vec<&str> = on.iter().map(String::as_str).collect();
    Finding::new(format!("{} of {} nodes record no stalls: {}", rows.len(), facts.nodes.len(), what.join(", ")))
        .on(rows.iter().map(|(n, _)| n.address.as_str()))
        .risk("the next incident leaves no trace on the server")
        .gain(
            "the next diagnosis can name the event and its time",
            "the cost is too small for a figure: one time stamp per event above the threshold",
        )
        .proven("read from the server")
        .saw(node, &format!("CONFIG GET {}", gaps[0].0), what.join(", "))
        .fix("Turn them on", &commands, "", &undo.join("; "))
        .exact()
        .into()
}

fn off(node: &Node) -> Vec<Off> {
    let mut off = Vec::new();
    let setting = |name: &'static str| node.setting_number(name);
    if setting("latency-monitor-threshold") == Some(0.0) {
        off.push(("latency-monitor-threshold", "0".to_string(), "100"));
    }
    if let Some(us) = setting("slowlog-log-slower-than").filter(|us| *us < 0.0 || *us > 1e6) {
        off.push(("slowlog-log-slower-than", format!("{us:.0}"), "10000"));
    }
    if setting("slowlog-max-len") == Some(0.0) {
        off.push(("slowlog-max-len", "0".to_string(), "128"));
    }
    off
}
