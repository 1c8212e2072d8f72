//! The append-only file is rewritten again and again.
//!
//! A rewrite forks, writes the whole data set to a new file, and keeps a core and the disk busy while it runs. It is
//! due when the file has grown by auto-aof-rewrite-percentage since the last rewrite and is larger than
//! auto-aof-rewrite-min-size. With a small percentage, or a minimum far below the size of the data set, the next
//! rewrite is due as soon as the last one ends.
//!
//! Seen when: two or more rewrites begin in the window, at a rate of more than one a minute; or the server, up for at
//! least half an hour, has averaged more than one every two minutes since it started (aof_rewrites, 7.0+).
//!
//! Not to be taken for: snapshots (`save_too_often`), which are counted by rdb_saves; the one rewrite that follows
//! `appendonly yes` or a full sync of a replica. Rewrites that fail and are retried are a consequence of
//! `saves_failing`.
//!
//! How to confirm: run `INFO persistence` twice: aof_rewrites, aof_base_size, aof_current_size,
//! aof_rewrites_consecutive_failures; `CONFIG GET auto-aof-rewrite-*`; `INFO commandstats`: bgrewriteaof, if a job
//! requests the rewrites.
//!
//! What to do: use the defaults (100 % and 64mb); find the job that calls BGREWRITEAOF.
//! Sources: INFO persistence (aof_rewrites since 7.0), used_cpu_*_children; redis.conf auto-aof-rewrite-percentage.

use super::prelude::*;

pub const TITLE: &str = "AOF rewrites follow each other";
pub const LEADS_TO: &[&str] = &["fork_stall", "aof_fsync_stall"];
pub const INJECTED: Injected = Injected::Yes;

/// More than these in an hour are no use to anyone.
const PER_HOUR: f64 = 60.0;
const PER_HOUR_SINCE_START: f64 = 30.0;
/// Younger processes give no rate.
const RATE_S: f64 = 1800.0;
/// What the servers themselves come with.
const PERCENTAGE: f64 = 100.0;
const MIN_BYTES: f64 = 67_108_864.0;

/// A server that rewrites its file too often.
struct Rewriter<'a> {
    node: &'a Node,
    per_hour: f64,
    /// Begun in the window, where it shows the habit by itself.
    now: Option<f64>,
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.live().all(|n| n.number("aof_enabled").is_none()) {
        return Verdict::Unknown(unseen_info(facts, "AOF rewrites"));
    }
    let with: Vec<&Node> = facts.live().filter(|n| n.number("aof_enabled") == Some(1.0)).collect();
    if with.is_empty() {
        return Verdict::NotHere;
    }
    let rows = by_worst(with.iter().filter_map(|n| rewriter(n)).collect(), |r: &Rewriter<'_>| r.per_hour);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|r| r.node.address.as_str())).into();
    }
    if let Some(node) = with.iter().find(|n| n.number("aof_rewrites").is_none()) {
        let why = format!("AOF rewrites: {} does not count them ({})", node.version_text(), node.address);
        return Verdict::unknown(Lack::Version, why, "upgrade to 7.0 or later, or count them in the server's log");
    }
    match with.iter().filter_map(|n| n.delta("aof_rewrites")).reduce(f64::max) {
        Some(n) => Verdict::Absent(format!(
            "AOF rewrites: at most {} in the window, and fewer than one every two minutes before it",
            count(n)
        )),
        None => Verdict::unknown(Lack::Time, "AOF rewrites: the counters were reset in the window", "run again"),
    }
}

fn rewriter(node: &Node) -> Option<Rewriter<'_>> {
    let in_window = node.delta("aof_rewrites").unwrap_or(0.0);
    let per_hour = in_window / node.window_s.max(0.001) * 3600.0;
    if in_window >= 2.0 && per_hour > PER_HOUR {
        return Some(Rewriter { node, per_hour, now: Some(in_window) });
    }
    let uptime = node.number("uptime_in_seconds").unwrap_or(0.0);
    let per_hour = node.number("aof_rewrites")? / uptime.max(1.0) * 3600.0;
    (uptime > RATE_S && per_hour > PER_HOUR_SINCE_START).then_some(Rewriter { node, per_hour, now: None })
}

/// Share of a core in children, in the window or since the server started.
fn children(r: &Rewriter<'_>) -> f64 {
    let fields = ["used_cpu_user_children", "used_cpu_sys_children"];
    match r.now {
        // Counted when a child ends, with what it used before the window; only one is at work at a time.
        Some(_) => fields.iter().filter_map(|f| r.node.rate(f)).sum::<f64>().min(1.0),
        None => {
            let all: f64 = fields.iter().filter_map(|f| r.node.number(f)).sum();
            all / r.node.number("uptime_in_seconds").unwrap_or(0.0).max(1.0)
        }
    }
}

fn found(r: &Rewriter<'_>) -> Finding {
    let (node, per_hour, share) = (r.node, r.per_hour, children(r));
    let number = |field: &str| node.number(field).unwrap_or(0.0);
    let fork_ms = number("latest_fork_usec") / 1000.0;
    let title = match r.now {
        Some(n) => format!("{} rewrites its AOF {} times in {:.0} s", node.address, count(n), node.window_s),
        None => {
            format!("{} rewrites its AOF {} times an hour, on average since it started", node.address, count(per_hour))
        }
    };
    let finding = Finding::new(title)
        .core(
            share.max(0.001),
            format!(
                "{} of a core goes to rewriting children, plus a fork of {fork_ms:.1} ms each time",
                percent(share)
            ),
        )
        .gain(
            "with one rewrite an hour, the rest of that CPU time is free",
            format!("{share:.3} cores x (1 - 1/{per_hour:.0})"),
        )
        .saw(
            node,
            "INFO persistence",
            format!(
                "aof_rewrites {} ({} an hour), aof_base_size {}, aof_current_size {}",
                count(number("aof_rewrites")),
                count(per_hour),
                bytes(number("aof_base_size")),
                bytes(number("aof_current_size"))
            ),
        );
    let finding = match number("aof_rewrites_consecutive_failures") {
        n if n > 0.0 => finding.saw(
            node,
            "INFO persistence",
            format!("aof_rewrites_consecutive_failures:{n:.0}: they fail and begin again"),
        ),
        _ => finding,
    };
    let finding = match (r.now, started_ms(node)) {
        (Some(_), _) => finding.proven("the server counted its rewrites, and its children's CPU, in this window"),
        (None, Some(at_ms)) => finding
            .likely("the server has counted its rewrites since it started; not every window contains one")
            .since_start(at_ms),
        (None, None) => finding.likely("the server has counted its rewrites since it started"),
    };
    let finding = match node.delta("rdb_saves") {
        Some(n) => finding.not(format!("snapshots: rdb_saves +{n:.0} in the window")),
        None => finding,
    };
    mend(finding, node)
}

fn mend(finding: Finding, node: &Node) -> Finding {
    let asked = node.foreign_commands().get("bgrewriteaof").map_or(0, |stat| stat.calls);
    if asked > 0 {
        return finding.fix(
            &format!(
                "A client requested {asked} of them: find the job that calls BGREWRITEAOF, and let the server decide \
                 when to rewrite"
            ),
            &[&cli(&node.address, "CLIENT LIST   (cmd=bgrewriteaof)")],
            "",
            "",
        );
    }
    let finding = raise(finding, node, "auto-aof-rewrite-percentage", PERCENTAGE, "Rewrite when the file has doubled");
    let finding = raise(
        finding,
        node,
        "auto-aof-rewrite-min-size",
        MIN_BYTES,
        "Do not rewrite a file of less than 64 MB: loading it takes a second",
    );
    if finding.remedies.is_empty() {
        return finding.fix(
            "The file doubles each time: find out which writes make it grow, and whether all of them have to be kept",
            &[&cli(&node.address, "INFO commandstats"), &cli(&node.address, "CONFIG GET auto-aof-rewrite-*")],
            "",
            "",
        );
    }
    finding
}

/// Raises a setting that is below what is usual.
fn raise(finding: Finding, node: &Node, name: &str, to: f64, text: &str) -> Finding {
    let Some(now) = node.setting_number(name).filter(|now| *now > 0.0 && *now < to) else { return finding };
    let set = |value: f64| format!("CONFIG SET {name} {value:.0}");
    let risk = "the file grows larger in between, and loading it after a restart takes longer";
    finding.fix_at(&node.address, text, &[&set(to)], risk, &set(now))
}
