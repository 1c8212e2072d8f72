//! Servers on one machine save at the same time.
//!
//! Each save forks, copies the pages that are written while it runs, and keeps a core and the disk busy. A machine that
//! has room for one save may not have room for all of them: memory runs short, the syncs of the append-only files queue
//! behind the snapshots, and the main threads wait for processors. Servers that were started together and have the same
//! `save` rules keep colliding.
//!
//! Seen when: two or more servers on one machine were saving or rewriting at both ends of the window. The cost is the
//! CPU of all their children except the busiest, if that was counted in the window: saving one after another would not
//! need it all at once. Otherwise it is a risk. What the servers wait for because of it is reported by `fork_stall`,
//! `aof_fsync_stall` and `noisy_neighbour`.
//!
//! Not to be taken for: copies for replicas, which start together when links come back (`full_resync_loop`): servers
//! that synced a replica in the window do not count. Nor for one server that saves too often (`save_too_often`).
//!
//! How to confirm: `INFO persistence` of each: rdb_bgsave_in_progress, aof_rewrite_in_progress, rdb_last_save_time;
//! `ps` on the machine.
//!
//! What to do: save at different times (with a job that saves one server after another), or use `save` on only one
//! server or replica of the machine.
//! Sources: INFO persistence, used_cpu_*_children; /proc/sys/kernel/random/boot_id; Redis persistence documentation.

use std::collections::BTreeMap;

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Saves collide";
pub const LEADS_TO: &[&str] = &["fork_stall", "aof_fsync_stall", "noisy_neighbour"];
pub const INJECTED: Injected = Injected::Yes;

/// Children that use less than this of a core between them are no cost.
const SHARE: f64 = 0.05;

pub fn check(facts: &Facts) -> Verdict {
    let shown: Vec<&Node> = facts.live().filter(|n| n.number("rdb_bgsave_in_progress").is_some()).collect();
    if shown.is_empty() {
        return Verdict::Unknown(unseen_info(facts, "saves at the same time"));
    }
    let mut machines: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
    for node in &shown {
        machines.entry(machine(facts, node)).or_default().push(node);
    }
    let several: Vec<&Vec<&Node>> = machines.values().filter(|all| all.len() > 1).collect();
    if several.is_empty() {
        return Verdict::NotHere;
    }
    let worst = several.iter().copied().max_by_key(|all| saving(all));
    match worst.filter(|all| saving(all) > 1) {
        Some(all) => {
            let together: Vec<&Node> = all.iter().copied().filter(|n| saves_throughout(n)).collect();
            found(facts, &together).into()
        }
        None => {
            Verdict::Absent("saves at the same time: no two servers on one machine saved throughout the window".into())
        }
    }
}

fn saving(all: &[&Node]) -> usize {
    all.iter().filter(|n| saves_throughout(n)).count()
}

/// What tells machines apart: the kernel's own word, else the address.
fn machine(facts: &Facts, node: &Node) -> String {
    let by_kernel = facts.process(node).map(|(host, _)| &host.boot_id).filter(|id| !id.is_empty());
    by_kernel.cloned().unwrap_or_else(|| peers::host_of(&node.address).to_string())
}

/// Whether it saved or rewrote at both ends of the window, and not for a replica.
fn saves_throughout(node: &Node) -> bool {
    let fields = ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"];
    let at_work = |sample: &unslow_facts::Sample| fields.iter().any(|f| sample.info.number(f) == Some(1.0));
    let (Some(first), Some(last)) = (&node.first, &node.last) else { return false };
    let copying = last.info.replicas().iter().any(|(_, _, state, ..)| state != "online");
    at_work(first) && at_work(last) && !copying && node.delta("sync_full").unwrap_or(0.0) == 0.0
}

/// Share of a core in its children. It is counted when one ends, with what that used before the window; only one is at
/// work at a time.
fn children(node: &Node) -> f64 {
    let all = node.rate("used_cpu_user_children").unwrap_or(0.0) + node.rate("used_cpu_sys_children").unwrap_or(0.0);
    all.min(1.0)
}

fn found(facts: &Facts, together: &[&Node]) -> Finding {
    let addresses: Vec<String> = together.iter().map(|n| n.address.clone()).collect();
    let memory: f64 = together.iter().filter_map(|n| n.number("used_memory")).sum();
    let all: f64 = together.iter().map(|n| children(n)).sum();
    // One of them would save anyway.
    let share = (all - together.iter().map(|n| children(n)).fold(0.0, f64::max)).max(0.0);
    let mut finding =
        Finding::new(format!("{} servers on one machine save at the same time: {}", together.len(), names(&addresses)))
            .on(addresses.iter().map(String::as_str))
            .proven("each server reported it at both ends of the window");
    let copies = format!("up to {} more memory if all of it is written to", bytes(memory));
    finding = if share >= SHARE {
        finding
            .core(share, format!("{} of a core in child processes other than the busiest; {copies}", percent(share)))
            .gain(
                "one after another they need as much in total, but never more than one core and one copy at a time",
                format!("{all:.2} cores of {} servers minus the busiest = {share:.2}", together.len()),
            )
    } else {
        finding.risk(format!("they compete for the same disk and cores, and need {copies}"))
    };
    for node in together {
        let number = |field: &str| node.number(field).unwrap_or(0.0);
        let text = format!(
            "rdb_bgsave_in_progress:{:.0}, aof_rewrite_in_progress:{:.0}, current_cow_size {}",
            number("rdb_bgsave_in_progress"),
            number("aof_rewrite_in_progress"),
            bytes(number("current_cow_size"))
        );
        finding = finding.saw(node, "INFO persistence", text);
    }
    let host = together.first().and_then(|n| facts.process(n)).map(|(host, _)| host);
    if let Some((host, free)) = host.and_then(|h| Some((h, h.memory_available_bytes?))) {
        let text = format!("{} available", bytes(free as f64));
        finding = finding.saw_at(format!("/proc/meminfo ({})", host.hostname), text, host.at_ms);
    }
    mend(finding, together)
}

fn mend(finding: Finding, together: &[&Node]) -> Finding {
    let by_rules = together.iter().filter(|n| n.setting("save").is_some_and(|rules| !rules.is_empty()));
    let quieter: Vec<&Node> = by_rules.skip(1).copied().collect();
    let finding = if quieter.is_empty() {
        finding
    } else {
        let set = |rules: &dyn Fn(&Node) -> String| -> Vec<String> {
            quieter.iter().map(|n| cli(&n.address, &format!("CONFIG SET save \"{}\"", rules(n)))).collect()
        };
        let commands = set(&|_| String::new());
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let back = set(&|n| n.setting("save").unwrap_or_default().to_string()).join("; ");
        // What keeps data is given up by choice only: no exact lines.
        finding.fix(
            "Let one of them save by its rules, and the others through a job at other times (BGSAVE, one after \
             another)",
            &commands,
            "without that job nothing saves them; a server without rules that restarts comes back with its last \
             snapshot",
            &back,
        )
    };
    let ask: Vec<String> = together.iter().map(|n| cli(&n.address, "INFO persistence")).collect();
    let ask: Vec<&str> = ask.iter().map(String::as_str).collect();
    finding.fix(
        "Find the job that asks all of them to save, and make it wait for each (rdb_bgsave_in_progress:0)",
        &ask,
        "",
        "",
    )
}
