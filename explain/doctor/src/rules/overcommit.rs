//! The kernel may refuse the fork that a save needs.
//!
//! With vm.overcommit_memory 0 the kernel judges whether memory for a fork is plausible; for a server that uses over
//! half of the memory it mostly is not. Then saving fails, and with stop-writes-on-bgsave-error writes do too.
//!
//! Seen when: vm.overcommit_memory is not 1 on a machine whose server forks (saves, AOF, replicas).
//!
//! Not to be taken for: a server that never forks. With memory to spare it is a risk and no more.
//!
//! What to do: sysctl vm.overcommit_memory=1.
//! Sources: /proc/sys/vm/overcommit_memory; Redis administration documentation.

use super::prelude::*;

pub const TITLE: &str = "Memory overcommit";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::No("vm.overcommit_memory is a setting of the whole machine; the rule is tested where a machine has it at 0, and on recorded facts");

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (host, _) = facts.process(node)?;
            let overcommit = host.overcommit?;
            let forks = node.number("latest_fork_usec").unwrap_or(0.0) > 0.0;
            (overcommit != 1 && forks).then_some((node, host, overcommit))
        })
        .collect();
    let Some((node, host, overcommit)) = rows.first() else {
        let looked = facts.hosts.iter().any(|h| h.overcommit.is_some());
        return Verdict::Absent(looked.then(|| "overcommit: right, or no fork in use".into()));
    };
    Finding::new(format!("vm.overcommit_memory is {overcommit} on {}: a fork may be refused when memory is short", host.hostname))
        .on(rows.iter().map(|r| r.0.address.as_str()))
        .risk(format!("saving fails once the server ({}) outgrows what is free ({})", bytes(node.number("used_memory_rss").unwrap_or(0.0)), bytes(host.memory_available_bytes.unwrap_or(0) as f64)))
        .gain("none in speed", "not a matter of speed")
        .proven("read on the machine")
        .saw_at(format!("/proc/sys/vm/overcommit_memory ({})", host.hostname), overcommit.to_string(), host.at_ms)
        .saw(node, "INFO stats", format!("latest_fork_usec:{}: it forks", node.number("latest_fork_usec").unwrap_or(0.0)))
        .fix("Let the kernel overcommit", &["sysctl -w vm.overcommit_memory=1", "echo vm.overcommit_memory=1 > /etc/sysctl.d/60-redis.conf"], "the OOM killer decides in place of fork, if memory really runs out", &format!("sysctl -w vm.overcommit_memory={overcommit}"))
        .into()
}
