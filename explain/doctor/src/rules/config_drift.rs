//! Nodes of one deployment are set differently where it matters.
//!
//! One node with another maxmemory, policy, timeout or save rule behaves differently on its worst day, mostly after it
//! became master.
//!
//! Seen when: nodes differ in a setting that should be one: memory limit and policy, node timeout, persistence, output
//! buffers, backlog, lazy freeing, io-threads.
//!
//! Not to be taken for: persistence on replicas only, a common practice: save and appendonly are compared per role.
//!
//! What to do: set it alike and write it down (CONFIG REWRITE).
//! Sources: CONFIG GET.

use super::prelude::*;
use std::collections::BTreeMap;

pub const TITLE: &str = "Config drift";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

const ALIKE: &[&str] = &[
    "maxmemory", "maxmemory-policy", "cluster-node-timeout", "cluster-require-full-coverage", "client-output-buffer-limit", "repl-backlog-size", "lazyfree-lazy-eviction",
    "lazyfree-lazy-expire", "lazyfree-lazy-server-del", "io-threads", "maxclients", "timeout", "tcp-keepalive", "notify-keyspace-events", "min-replicas-to-write",
];
const ALIKE_PER_ROLE: &[&str] = &["save", "appendonly", "appendfsync"];

pub fn check(facts: &Facts) -> Verdict {
    let nodes: Vec<&Node> = facts.live().filter(|n| n.config.value().is_some()).collect();
    if nodes.len() < 2 {
        return match facts.live().find_map(|n| n.config.missing()).filter(|_| facts.nodes.len() > 1) {
            Some((why, grant)) => Verdict::Unknown { why: format!("settings: {why}"), grant: grant.unwrap_or("").into() },
            None => Verdict::Absent(None),
        };
    }
    // A setting a version does not have, or has another default for, is no drift: nodes are compared within a version.
    let mut drifts: Vec<(String, BTreeMap<String, Vec<String>>)> = Vec::new();
    let mut groups: BTreeMap<(String, bool), Vec<&Node>> = BTreeMap::new();
    for node in &nodes {
        groups.entry((node.version_text(), false)).or_default().push(node);
        groups.entry((format!("{} {}", node.version_text(), node.is_master()), true)).or_default().push(node);
    }
    for ((_, per_role), members) in &groups {
        for name in if *per_role { ALIKE_PER_ROLE } else { ALIKE } {
            let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for node in members {
                if let Some(value) = node.setting(name) {
                    values.entry(value.to_string()).or_default().push(node.address.clone());
                }
            }
            if values.len() > 1 {
                drifts.push((name.to_string(), values));
            }
        }
    }
    let Some((name, values)) = drifts.first() else { return Verdict::Absent(Some("settings: alike on all nodes".into())) };
    let (common, _) = values.iter().max_by_key(|(_, v)| v.len()).expect("two values");
    let odd: Vec<(&String, &Vec<String>)> = values.iter().filter(|(v, _)| *v != common).collect();
    let subjects: Vec<String> = drifts.iter().flat_map(|(_, values)| {
        let most = values.values().map(Vec::len).max().unwrap_or(0);
        values.values().filter(move |v| v.len() < most || values.len() == v.len()).flatten().cloned()
    }).collect();
    let mut finding = Finding::new(format!("{} {} differently: {name} is {} on {}, {} elsewhere", drifts.len(), if drifts.len() == 1 { "setting is set" } else { "settings are set" }, quote(odd[0].0), names(odd[0].1), quote(common)))
        .on(subjects)
        .risk("the nodes behave differently when it matters, mostly after a failover")
        .gain("one behaviour", format!("{} settings", drifts.len()))
        .proven("read from each node");
    for (name, values) in drifts.iter().take(4) {
        if let Some(node) = values.values().next().and_then(|v| facts.node(&v[0])) {
            finding = finding.saw(node, &format!("CONFIG GET {name}"), values.iter().map(|(v, n)| format!("{} on {}", quote(v), names(n))).collect::<Vec<_>>().join("; "));
        }
    }
    let (host, port) = odd[0].1[0].rsplit_once(':').unwrap_or((&odd[0].1[0], ""));
    finding.fix("Set it alike and write it down", &[&format!("redis-cli -h {host} -p {port} CONFIG SET {name} {}", quote(common)), "CONFIG REWRITE"], "check which of the two was meant", &format!("CONFIG SET {name} {}", quote(odd[0].0))).into()
}

fn quote(value: &str) -> String {
    if value.is_empty() || value.contains(' ') { format!("\"{value}\"") } else { value.to_string() }
}
