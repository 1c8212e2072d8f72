//! Commands that take long hold up everyone else.
//!
//! One thread serves all: an O(N) command over many elements (SORT, ZUNIONSTORE, SINTER, LRANGE 0 -1, big MGETs, FLUSHALL)
//! is a stall for every other client. The slow log names it, but it names victims too: a GET that took 12 ms did nothing
//! slow itself; the host, a fork or a page fault did.
//!
//! Seen when: a command that is not constant-time takes over 10 % of a core at over 0.5 ms a call, or over 10 ms a call five
//! times or with 1 % of a core. KEYS, scripts and CLUSTER have rules of their own.
//!
//! Not to be taken for: constant-time commands in the slow log. They are victims, and are told as such.
//!
//! What to do: smaller steps (SCAN family, pages), other data structures, a replica for reports.
//! Sources: commandstats, SLOWLOG.

use super::prelude::*;

pub const TITLE: &str = "Slow command";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let mut rows = Vec::new();
    let mut victims = 0;
    for node in facts.live() {
        victims += slow_entries(node, 0).into_iter().filter(|e| is_victim(e)).count();
        for (name, stat) in node.foreign_commands() {
            let upper = name.to_uppercase().replace('|', " ");
            let mean = stat.usec as f64 / stat.calls as f64;
            let share = stat.usec as f64 / 1e6 / node.window_s.max(0.001);
            // Replication, forks, what contains other commands, and what rules of its own judge.
            let others = ["PSYNC", "SYNC", "REPLCONF", "REPLICAOF", "SLAVEOF", "BGSAVE", "BGREWRITEAOF", "EXEC", "KEYS", "INFO", "MIGRATE"].contains(&upper.as_str())
                || ["EVAL", "FCALL", "CLUSTER", "CLIENT", "CONFIG", "SLOWLOG", "LATENCY", "DEBUG", "SCRIPT"].iter().any(|p| upper.starts_with(p));
            // By commandstats a constant-time command may be slow in the mean too, when the host is: still a victim.
            let victim = is_victim(&unslow_facts::SlowEntry { id: 0, at_s: 0, us: 0, command: upper.clone(), args: 1, key: None, client: String::new(), client_name: String::new() });
            if !victim && !others && ((share > 0.1 && mean > 500.0) || (mean > 10_000.0 && (stat.calls >= 5 || share > 0.01))) {
                rows.push((node, upper, stat.calls, mean, share));
            }
        }
    }
    let rows = by_worst(rows, |r| r.4);
    let Some((node, name, calls, mean, share)) = rows.first() else {
        let text = if victims > 0 {
            format!("slow commands: none; {victims} constant-time commands in the slow log are victims of something else")
        } else {
            "slow commands: none over 0.5 ms with a tenth of a core".to_string()
        };
        return Verdict::Absent(Some(text));
    };
    let mut finding = Finding::new(format!("{name} takes {} a call on {} and {} of its main thread", time_us(*mean), node.address, percent(*share)))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .latency(share * mean / 2000.0 + share * 0.001, format!("{} of all requests wait, {} on average", percent(share.min(1.0)), time_us(mean / 2.0)))
        .gain(format!("without it {} of the main thread is free again", percent(*share)), format!("{calls} calls x {mean:.0} us / {:.1} s = {share:.3}", node.window_s))
        .proven("the server's own clock for this command, in this window");
    for (node, name, calls, mean, share) in rows.iter().take(3) {
        finding = finding.saw(node, "INFO commandstats", format!("{name}: {calls} calls, {} each, {} of a core", time_us(*mean), percent(*share)));
    }
    if let Some(entry) = slow_entries(node, 0).into_iter().find(|e| e.command == *name) {
        finding = finding.saw_then(node, "SLOWLOG GET 128", format!("{name} {} by {} {}", time_us(entry.us as f64), entry.client, entry.client_name), entry.at_s * 1000);
    }
    if victims > 0 {
        finding = finding.not(format!("{victims} constant-time commands in the slow log are its victims, not causes"));
    }
    finding.fix("Do it in steps, keep the result, or ask a replica", &["SCAN / HSCAN / SSCAN / ZSCAN with COUNT 100", "SINTERSTORE, ZUNIONSTORE once in place of SINTER each time", "ReadFrom.REPLICA for reports"], "replicas answer a little behind", "as it was").into()
}
