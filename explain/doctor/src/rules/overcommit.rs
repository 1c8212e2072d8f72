//! The kernel may refuse the fork that a save needs.
//!
//! With vm.overcommit_memory 0 the kernel estimates whether a fork's demand for memory is plausible; for a server that
//! uses over half of the memory it usually is not. Then saving fails, and with stop-writes-on-bgsave-error so do
//! writes.
//!
//! Seen when: vm.overcommit_memory is not 1 on a machine whose server forks (saves, AOF, replicas).
//!
//! Not to be taken for: a server that never forks. With memory to spare it is only a risk.
//!
//! How to confirm: `sysctl vm.overcommit_memory`.
//!
//! What to do: sysctl vm.overcommit_memory=1.
//! Sources: /proc/sys/vm/overcommit_memory; Redis administration documentation.

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Memory overcommit";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::No(
    "vm.overcommit_memory is a setting of the whole machine; the rule is tested where a machine has it at 0, and on \
     recorded facts",
);

pub fn check(facts: &Facts) -> Verdict {
    let seen: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let (host, _) = facts.process(node)?;
            Some((node, host, host.overcommit?))
        })
        .collect();
    let forks = |node: &Node| node.number("latest_fork_usec").unwrap_or(0.0) > 0.0;
    let rows: Vec<_> = seen.iter().filter(|(node, _, overcommit)| *overcommit != 1 && forks(node)).collect();
    let Some((node, host, overcommit)) = rows.first() else {
        return match seen.first() {
            None => Verdict::unknown(Lack::Host, "overcommit: the server's machine could not be inspected", SEE_HOST),
            Some(_) if seen.iter().all(|s| s.2 == 1) => Verdict::Absent("overcommit: vm.overcommit_memory is 1".into()),
            Some(_) => Verdict::Absent("overcommit: no server has forked (latest_fork_usec:0)".into()),
        };
    };
    let rss = node.number("used_memory_rss").map_or(String::new(), |b| format!(" ({})", bytes(b)));
    let free = host.memory_available_bytes.map_or(String::new(), |b| format!(" ({})", bytes(b as f64)));
    Finding::new(format!(
        "vm.overcommit_memory is {overcommit} on {}: a fork may be refused when memory is short",
        host.hostname
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()))
    .risk(format!("saving fails once the server{rss} outgrows the free memory{free}"))
    .proven("read on the machine")
    .saw_at(format!("/proc/sys/vm/overcommit_memory ({})", host.hostname), overcommit.to_string(), host.at_ms)
    .saw(node, "INFO stats", format!("latest_fork_usec:{}: it forks", node.number("latest_fork_usec").unwrap_or(0.0)))
    .fix(
        &format!("Allow memory overcommit on {}", host.hostname),
        &["sysctl -w vm.overcommit_memory=1", "echo vm.overcommit_memory=1 > /etc/sysctl.d/60-redis.conf"],
        "if memory really runs out, the OOM killer decides instead of fork",
        &format!("sysctl -w vm.overcommit_memory={overcommit}"),
    )
    .into()
}
