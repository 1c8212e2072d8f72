//! Nodes of one deployment have different settings where it matters.
//!
//! A node with a different maxmemory, policy, timeout or save rule behaves differently on its worst day, usually after
//! it has become master.
//!
//! Seen when: nodes differ in a setting that should be the same: memory limit and policy, node timeout, persistence,
//! output buffers, backlog, lazy freeing, io-threads. Nodes of different versions are compared with each other too: the
//! middle of an upgrade is when it matters.
//!
//! Not to be taken for: persistence on replicas only, which is common practice (save, appendonly and appendfsync are
//! compared per role); a setting that one of the versions does not have; defaults that changed between versions (save
//! with 7.0, lazy freeing and the backlog with Valkey 8), where each node has the default of its version.
//!
//! What to do: set it to the same value everywhere and save it (CONFIG REWRITE).
//! Sources: CONFIG GET.

use super::prelude::*;
use std::collections::BTreeMap;

pub const TITLE: &str = "Config drift";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

const ALIKE: &[&str] = &[
    "maxmemory",
    "maxmemory-policy",
    "cluster-node-timeout",
    "cluster-require-full-coverage",
    "cluster-replica-validity-factor",
    "client-output-buffer-limit",
    "repl-backlog-size",
    "repl-timeout",
    "lazyfree-lazy-eviction",
    "lazyfree-lazy-expire",
    "lazyfree-lazy-server-del",
    "io-threads",
    "maxclients",
    "timeout",
    "tcp-keepalive",
    "notify-keyspace-events",
    "min-replicas-to-write",
];
const ALIKE_PER_ROLE: &[&str] = &["save", "appendonly", "appendfsync"];

/// What versions have had as default where it changed: between versions, two of these are no drift.
const DEFAULTS: &[(&str, &[&str])] = &[
    ("save", &["900 1 300 10 60 10000", "3600 1 300 100 60 10000"]),
    ("repl-backlog-size", &["1048576", "10485760"]),
    ("lazyfree-lazy-eviction", &["no", "yes"]),
    ("lazyfree-lazy-expire", &["no", "yes"]),
    ("lazyfree-lazy-server-del", &["no", "yes"]),
];

/// They are read at start; CONFIG SET refuses them.
const AT_START: &[&str] = &["io-threads"];

/// A setting that differs: each value with the addresses that have it.
struct Drift {
    name: &'static str,
    values: BTreeMap<String, Vec<String>>,
}

impl Drift {
    /// What most nodes have.
    fn common(&self) -> &str {
        self.values.iter().max_by_key(|(_, nodes)| nodes.len()).map_or("", |(value, _)| value)
    }

    /// The others, value by value.
    fn odd(&self) -> impl Iterator<Item = (&String, &Vec<String>)> {
        self.values.iter().filter(|(value, _)| *value != self.common())
    }
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.nodes.len() < 2 {
        return Verdict::NotHere;
    }
    let nodes: Vec<&Node> = facts.live().filter(|n| n.config.value().is_some()).collect();
    if nodes.len() < 2 {
        return Verdict::Unknown(match facts.live().find_map(|n| n.config.refused()) {
            Some(gap) => gap.of("settings"),
            None => {
                Gap::new(Lack::Answer, "settings: fewer than two nodes answered, so there was nothing to compare", "")
            }
        });
    }
    let (masters, replicas): (Vec<&Node>, Vec<&Node>) = nodes.iter().copied().partition(|n| n.is_master());
    let mut compared = 0;
    let mut drifts = Vec::new();
    for (names, groups) in [(ALIKE, vec![&nodes]), (ALIKE_PER_ROLE, vec![&masters, &replicas])] {
        for name in names {
            let looked: Vec<Compared> = groups.iter().map(|group| compare(name, group)).collect();
            compared += usize::from(looked.iter().any(|l| !matches!(l, Compared::Nothing)));
            drifts.extend(
                looked.into_iter().filter_map(|l| if let Compared::Differ(drift) = l { Some(drift) } else { None }),
            );
        }
    }
    if drifts.is_empty() {
        return match compared {
            0 => Verdict::unknown(Lack::Version, "settings: no setting was shown by two nodes", ""),
            n => Verdict::Absent(format!(
                "settings: {n} compared, the same on {} of {} nodes",
                nodes.len(),
                facts.nodes.len()
            )),
        };
    }
    present(facts, &drifts, compared)
}

enum Compared {
    /// Fewer than two nodes have it.
    Nothing,
    Alike,
    Differ(Drift),
}

fn compare(name: &'static str, nodes: &[&Node]) -> Compared {
    let mut values: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        if let Some(value) = node.setting(name) {
            values.entry(normal(value)).or_default().push(node);
        }
    }
    if values.values().map(Vec::len).sum::<usize>() < 2 {
        return Compared::Nothing;
    }
    let defaults = DEFAULTS.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, values)| values);
    let explained = |a: (&String, &Vec<&Node>), b: (&String, &Vec<&Node>)| {
        let versions_differ = a.1.iter().all(|x| b.1.iter().all(|y| x.version_text() != y.version_text()));
        defaults.contains(&a.0.as_str()) && defaults.contains(&b.0.as_str()) && versions_differ
    };
    let differs = values.iter().any(|a| values.iter().any(|b| a.0 != b.0 && !explained(a, b)));
    if !differs {
        return Compared::Alike;
    }
    let addresses = |nodes: Vec<&Node>| nodes.into_iter().map(|n| n.address.clone()).collect();
    Compared::Differ(Drift {
        name,
        values: values.into_iter().map(|(value, nodes)| (value, addresses(nodes))).collect(),
    })
}

/// Words that changed without a change of meaning.
fn normal(value: &str) -> String {
    value.split_whitespace().map(|w| if w == "replica" { "slave" } else { w }).collect::<Vec<_>>().join(" ")
}

fn present(facts: &Facts, drifts: &[Drift], compared: usize) -> Verdict {
    let Some((drift, (value, on))) = drifts.first().and_then(|d| Some((d, d.odd().next()?))) else {
        return Verdict::NotHere;
    };
    let are =
        if drifts.len() == 1 { "1 setting differs".to_string() } else { format!("{} settings differ", drifts.len()) };
    let mut finding = Finding::new(format!(
        "{are}: {} is {} on {}, {} elsewhere",
        drift.name,
        quote(value),
        names(on),
        quote(drift.common())
    ))
    .on(drifts.iter().flat_map(Drift::odd).flat_map(|(_, nodes)| nodes))
    .risk("the nodes behave differently when it matters, usually after a failover")
    .gain("all nodes behave the same", format!("{} of {compared} settings that could be compared", drifts.len()))
    .proven("read from each node");
    for drift in drifts.iter().take(4) {
        let listed: Vec<String> = drift.values.iter().map(|(v, n)| format!("{} on {}", quote(v), names(n))).collect();
        if let Some(node) = drift.values.values().flatten().find_map(|a| facts.node(a)) {
            finding = finding.saw(node, &format!("CONFIG GET {}", drift.name), listed.join("; "));
        }
    }
    for drift in drifts.iter().take(3) {
        finding = remedy(finding, drift);
    }
    finding.into()
}

fn remedy(finding: Finding, drift: &Drift) -> Finding {
    let common = quote(drift.common());
    let risk = "find out first which of the values was intended";
    if AT_START.contains(&drift.name) {
        let odd: Vec<String> = drift.odd().flat_map(|(_, nodes)| nodes.clone()).collect();
        let line = format!("{} {common}   (in the configuration file of {}, then a restart)", drift.name, names(&odd));
        return finding.fix(&format!("Set {} to the same value", drift.name), &[&line], risk, "");
    }
    let (mut set, mut undo) = (Vec::new(), Vec::new());
    for (value, nodes) in drift.odd() {
        for address in nodes {
            set.push(cli(address, &format!("CONFIG SET {} {common}", drift.name)));
            set.push(cli(address, "CONFIG REWRITE"));
            undo.push(cli(address, &format!("CONFIG SET {} {}", drift.name, quote(value))));
        }
    }
    let lines: Vec<&str> = set.iter().map(String::as_str).collect();
    finding.fix(&format!("Set {} to the same value and save it", drift.name), &lines, risk, &undo.join("; "))
}

fn quote(value: &str) -> String {
    if value.is_empty() || value.contains(' ') { format!("\"{value}\"") } else { value.to_string() }
}
