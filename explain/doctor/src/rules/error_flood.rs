//! Many commands fail.
//!
//! Failed commands are lost work that latency graphs do not show: OOM, READONLY, MISCONF, NOAUTH, WRONGTYPE, BUSY,
//! CLUSTERDOWN. Clients that retry at once double the load.
//!
//! Seen when: over 1 % of commands end in an error other than those of a protocol at work (MOVED, ASK, NOSCRIPT,
//! BUSYGROUP and the like); or OOM, MISCONF, READONLY, LOADING, CLUSTERDOWN or NOREPLICAS at least once a second.
//!
//! Not to be taken for: redirects (`redirect_storm`), which are not failures.
//!
//! What to do: by kind, see the remedies.
//! Sources: INFO errorstats (6.2+).

use super::prelude::*;

pub const TITLE: &str = "Error flood";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Part of a protocol at work (EVALSHA falls back to EVAL, groups are created twice), told elsewhere, or our own.
const NORMAL: &[&str] = &["MOVED", "ASK", "NOPERM", "NOSCRIPT", "BUSYGROUP", "BUSYKEY", "NOGROUP", "EXECABORT"];
const GRAVE: &[&str] = &["OOM", "MISCONF", "READONLY", "LOADING", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"];

pub fn check(facts: &Facts) -> Verdict {
    let old = facts.live().find(|n| n.level() < (6, 2));
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            // NOPERM may be our own: a denied probe is told elsewhere.
            let errors: Vec<(String, u64)> = by_worst(
                node.errors().into_iter().filter(|(k, _)| !NORMAL.contains(&k.as_str())).collect(),
                |(_, n)| *n as f64,
            );
            let total: u64 = errors.iter().map(|(_, n)| n).sum();
            let commands = node.delta("total_commands_processed")?.max(1.0);
            let grave = errors.iter().any(|(k, n)| GRAVE.contains(&k.as_str()) && *n as f64 / node.window_s.max(1.0) >= 1.0);
            let share = total as f64 / (commands + total as f64);
            (grave || (total > 20 && share > 0.01)).then_some((node, errors, total, share))
        })
        .collect();
    let rows = by_worst(rows, |r| r.3);
    let Some((node, errors, total, share)) = rows.first() else {
        return match old {
            Some(node) => Verdict::Unknown { why: format!("{}: {} does not count errors by kind", node.address, node.version_text()), grant: "upgrade to 6.2 or later, or count errors in the client".into() },
            None => Verdict::Absent(Some("errors: below 1 % of commands".into())),
        };
    };
    let (kind, n) = &errors[0];
    let (what, command, risk, back) = remedy(kind);
    let mut finding = Finding::new(format!("{} of {}'s commands fail: {} x {kind} in {:.0} s", percent(*share), node.address, count(*n as f64), node.window_s))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .availability(86400.0 * share, format!("{} failed commands a second", count(*total as f64 / node.window_s.max(0.001))))
        .gain(format!("{} of the commands succeed again", percent(*share)), format!("{total} errors / {:.0} commands", node.delta("total_commands_processed").unwrap_or(0.0)))
        .proven("counted by the server in this window");
    for (kind, n) in errors.iter().take(4) {
        finding = finding.saw(node, "INFO errorstats", format!("errorstat_{kind} +{n}"));
    }
    finding.fix(what, &[command], risk, back).into()
}

fn remedy(kind: &str) -> (&'static str, &'static str, &'static str, &'static str) {
    match kind {
        "OOM" => ("The memory limit is reached and nothing may be evicted", "CONFIG SET maxmemory <more>   (INFO memory shows how much is used)", "swap or the OOM killer, if the machine has not the memory", "CONFIG SET maxmemory <before>"),
        "READONLY" => ("Clients write to a replica: an old address, or a failover they did not notice", "point them at Sentinel or the cluster, not at a node", "none", "none needed"),
        "MISCONF" => ("Saving fails and the server refuses writes until it works", "INFO persistence; free the disk; BGSAVE", "none", "none needed"),
        "WRONGTYPE" => ("Two users of one key disagree on its type", "TYPE key; look for the writer in the deployments of that time", "none", "none needed"),
        "NOAUTH" | "WRONGPASS" => ("Clients come without, or with an old, password", "ACL LOG   names them", "none", "none needed"),
        "CLUSTERDOWN" => ("Slots are uncovered", "CLUSTER NODES; bring the missing master back or CLUSTER FAILOVER TAKEOVER on its replica", "a takeover can lose the last writes", "none"),
        "BUSY" => ("A script runs too long", "SCRIPT KILL", "the script's work is lost", "none"),
        "LOADING" => ("The server is reading its data set", "wait for loading:0; let clients read elsewhere meanwhile", "none", "none needed"),
        _ => ("The client sends what this server refuses", "look at the error's text in the client's log", "none", "none needed"),
    }
}
