//! The server logs more than a server in production should.
//!
//! `debug` and `verbose` write lines for each connection that opens and closes, `debug` also for what the cluster's
//! nodes send each other. The main thread writes them itself, one system call a line, to a file that is often on the
//! same disk as the append-only file. When that disk stalls, so does the server, even one without persistence.
//!
//! Seen when: loglevel is `debug`, or it is `verbose` and ten connections a second or more come in. It is a risk: the
//! server does not show what writing the lines costs.
//!
//! Not to be taken for: whatever opens the connections (`connection_churn`), and a slow disk (`disk_slow`), which this
//! makes worse.
//!
//! How to confirm: `CONFIG GET loglevel`, `CONFIG GET logfile`; `ls -l` of the log twice, a minute apart.
//!
//! What to do: notice, the default.
//! Sources: CONFIG loglevel; INFO total_connections_received; redis.conf loglevel.

use super::prelude::*;

pub const TITLE: &str = "Chatty log";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Connections a second whose coming and going fill a log.
const CONNECTIONS: f64 = 10.0;

pub fn check(facts: &Facts) -> Verdict {
    let shown: Vec<(&Node, &str)> = facts.live().filter_map(|n| Some((n, n.setting("loglevel")?))).collect();
    if shown.is_empty() {
        let gap = facts.live().find_map(|n| n.config.missing()).map(|g| g.of("the log's level"));
        return Verdict::Unknown(
            gap.unwrap_or_else(|| Gap::new(Lack::Version, "the log's level: loglevel was not seen", "")),
        );
    }
    let connections = |n: &Node| n.rate("total_connections_received").unwrap_or(0.0);
    let chatty = |row: &(&Node, &str)| row.1 == "debug" || row.1 == "verbose" && connections(row.0) >= CONNECTIONS;
    let rows: Vec<(&Node, &str)> = shown.iter().copied().filter(chatty).collect();
    let rows = by_worst(rows, |(n, level)| connections(n) + if *level == "debug" { 1e6 } else { 0.0 });
    let Some((node, level)) = rows.first() else {
        return Verdict::Absent(format!("the log's level: {} on {}", shown[0].1, shown[0].0.address));
    };
    let rate = connections(node);
    Finding::new(format!("{} logs at level {level}", node.address))
        .on(rows.iter().map(|(n, _)| n.address.as_str()))
        .risk(format!(
            "its main thread writes each line itself ({} connections a second, two lines each); a log on a slow disk \
             holds it up",
            count(rate)
        ))
        .likely("the setting was read; how much is written, and how long that takes, was not measured")
        .saw(node, "CONFIG GET loglevel", *level)
        .saw(node, "INFO stats", format!("total_connections_received {} a second", count(rate)))
        .fix_at(
            &node.address,
            "Log only what an operator needs",
            &["CONFIG SET loglevel notice"],
            "single connections are no longer logged",
            &format!("CONFIG SET loglevel {level}"),
        )
        .into()
}
