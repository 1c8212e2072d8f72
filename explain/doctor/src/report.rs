//! The whole diagnosis, and the difference between two of them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_facts::{Cost, Facts, Node};
use unslow_topology::DeploymentKind;

use crate::{Finding, Severity, Verdict, chain, rules};

/// Version of the report's JSON.
pub const SCHEMA: &str = "unslow.doctor/1";

/// A diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of unslow.
    pub unslow: String,
    /// Unix time in ms of the facts.
    pub at_ms: u64,
    /// Length of the window in seconds.
    pub window_s: f64,
    /// What was looked at.
    pub deployment: DeploymentSummary,
    /// Causes, the dearest first.
    pub findings: Vec<Finding>,
    /// What was looked for and is not there.
    pub ruled_out: Vec<String>,
    /// What could not be looked at.
    pub cannot_see: Vec<CannotSee>,
    /// What looking cost.
    pub cost: Cost,
}

/// The deployment in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentSummary {
    /// URL asked, without password.
    pub url: String,
    /// How the servers belong together.
    pub kind: DeploymentKind,
    /// One sentence.
    pub text: String,
    /// Its data nodes.
    pub nodes: Vec<NodeSummary>,
    /// Its Sentinels' addresses.
    pub sentinels: Vec<String>,
}

/// One node in short.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSummary {
    /// `host:port`.
    pub address: String,
    /// `master`, `replica`, `unknown`.
    pub role: String,
    /// The master it follows.
    pub master: Option<String>,
    /// Product and version.
    pub version: String,
    /// Slots it owns, as CLUSTER NODES writes them.
    pub slots: String,
    /// Availability zone, where the server tells (Valkey 8.0+).
    pub zone: Option<String>,
    /// Commands per second.
    pub commands_per_s: Option<f64>,
    /// Share of a core in user mode.
    pub cpu_user_share: Option<f64>,
    /// Share of a core in the kernel.
    pub cpu_sys_share: Option<f64>,
    /// Median PING from here, in us.
    pub rtt_us_p50: Option<u32>,
    /// Why it could not be asked.
    pub unreachable: Option<String>,
}

/// Something unseen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CannotSee {
    /// Rule, or `deployment`.
    pub id: String,
    /// Why.
    pub why: String,
    /// What would settle it.
    pub grant: String,
}

/// Judges facts. `only` limits it to some rules; empty is all.
pub fn diagnose(facts: &Facts, only: &[String]) -> Report {
    let rules: Vec<_> =
        rules::ALL.iter().filter(|r| only.is_empty() || only.iter().any(|o| o == r.id)).copied().collect();
    let (mut present, mut ruled_out, mut cannot_see) = (Vec::new(), Vec::new(), Vec::new());
    for rule in &rules {
        match (rule.check)(facts) {
            Verdict::Absent(text) => ruled_out.extend(text),
            Verdict::Unknown { why, grant } => cannot_see.push(CannotSee { id: rule.id.into(), why, grant }),
            Verdict::Present(finding) => {
                let recheck = format!("unslow doctor {} --only {}", facts.url, rule.id);
                present.push(Finding { id: rule.id.into(), recheck, ..*finding });
            }
        }
    }
    if facts.live().next().is_none() {
        // Nobody was measured: nothing is ruled out either.
        ruled_out.clear();
    }
    cannot_see.extend(unseen(facts));
    let mut findings = chain::fold(present, rules::ALL);
    // "Not your Redis" is said only when nothing measured says otherwise.
    if findings.iter().any(|f| f.id != "not_your_redis" && f.severity > Severity::Risk) {
        findings.retain(|f| f.id != "not_your_redis" || f.severity > Severity::Risk);
    }
    Report {
        schema: SCHEMA.into(),
        unslow: facts.unslow.clone(),
        at_ms: facts.at_ms,
        window_s: facts.window_s,
        deployment: summary(facts),
        findings,
        ruled_out,
        cannot_see,
        cost: facts.cost.clone(),
    }
}

/// What the probes could not see, the same reason on many nodes told once.
fn unseen(facts: &Facts) -> Vec<CannotSee> {
    let mut reasons: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut note = |why: &str, grant: &str, node: &str| {
        reasons.entry((why.to_string(), grant.to_string())).or_default().push(node.to_string());
    };
    for node in &facts.nodes {
        if let Some(why) = &node.unreachable {
            let without = why.replace(&node.address, "it");
            let when = if node.first.is_some() { "stopped answering half way" } else { "was not asked" };
            note(
                &format!("{when}: {}", without.trim_start_matches("it: ")),
                "reach it from here, or run unslow beside it",
                &node.address,
            );
            continue;
        }
        if node.first.is_none() {
            note(
                "INFO is denied to this user, so nothing could be measured",
                "ACL SETUSER <user> +info",
                &node.address,
            );
        }
        let seen = [
            node.config.missing(),
            node.slowlog.missing(),
            node.latency.missing(),
            node.clients.missing(),
            node.rtt.missing(),
        ];
        let cluster = [node.cluster.missing(), node.cluster_info.missing()];
        let cluster = cluster.into_iter().filter(|_| facts.kind == DeploymentKind::Cluster);
        for (why, grant) in seen.into_iter().chain(cluster).flatten() {
            if why != "not looked for" {
                note(why, grant.unwrap_or(""), &node.address);
            }
        }
        if node.own.stopped_early {
            note(
                "its PING became twice as slow while we looked, so the dearer questions were left out",
                "run again at a quieter time",
                &node.address,
            );
        }
    }
    for sentinel in &facts.sentinels {
        if let Some(why) = &sentinel.unreachable {
            note(why, "reach it from here; Sentinels may have a password of their own", &sentinel.address);
        }
    }
    let blind: Vec<String> = facts.live().filter(|n| facts.process(n).is_none()).map(|n| n.address.clone()).collect();
    if !blind.is_empty() {
        reasons.insert(
            (
                "their machines: steal, throttling, neighbours, disks, clients' distances".into(),
                "run `unslow host --save host.json` there, then add --host host.json here".into(),
            ),
            blind,
        );
    }
    let all = facts.nodes.len();
    reasons
        .into_iter()
        .map(|((why, grant), nodes)| {
            let whom =
                if nodes.len() == all && all > 3 { format!("all {all} nodes") } else { crate::measure::names(&nodes) };
            CannotSee { id: "deployment".into(), why: format!("{whom}: {why}"), grant }
        })
        .chain(facts.notes.iter().map(|n| CannotSee { id: "deployment".into(), why: n.clone(), grant: String::new() }))
        .collect()
}

fn summary(facts: &Facts) -> DeploymentSummary {
    let view = facts.nodes.iter().find_map(|n| n.cluster.value());
    let slots = |node: &Node| {
        let id = node.node_id.as_deref()?;
        Some(view?.by_id(id)?.slots.to_string())
    };
    let nodes: Vec<NodeSummary> = facts
        .nodes
        .iter()
        .map(|node| NodeSummary {
            address: node.address.clone(),
            role: node
                .info()
                .and_then(|i| i.role())
                .map_or(node.role.word(), |r| if r == "master" { "master" } else { "replica" })
                .into(),
            master: node.master.clone(),
            version: node.version_text(),
            slots: slots(node).unwrap_or_default(),
            zone: node.info().and_then(|i| i.get("availability_zone")).filter(|z| !z.is_empty()).map(str::to_string),
            commands_per_s: node.ops(),
            cpu_user_share: node.cpu().map(|c| c.0),
            cpu_sys_share: node.cpu().map(|c| c.1),
            rtt_us_p50: node.rtt.value().map(|r| r.us_p50),
            unreachable: node.unreachable.clone(),
        })
        .collect();
    let masters = nodes.iter().filter(|n| n.role == "master").count();
    let replicas = nodes.iter().filter(|n| n.role == "replica").count();
    let mut versions: Vec<&str> =
        nodes.iter().filter(|n| n.version != "unknown version").map(|n| n.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let plural = |n: usize, word: &str| if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") };
    let versions = if versions.is_empty() { "an unknown version".to_string() } else { versions.join(" and ") };
    let text = match facts.kind {
        DeploymentKind::Standalone => format!("{versions}, standalone"),
        DeploymentKind::MasterReplica => {
            format!("{versions}, {}, {}", plural(masters, "master"), plural(replicas, "replica"))
        }
        DeploymentKind::Sentinel => format!(
            "{versions}, {}, {}, {}",
            plural(masters, "master"),
            plural(replicas, "replica"),
            plural(facts.sentinels.len(), "Sentinel")
        ),
        DeploymentKind::Cluster => {
            format!("{versions} cluster, {}, {}", plural(masters, "master"), plural(replicas, "replica"))
        }
    };
    let silent = nodes.iter().filter(|n| n.unreachable.is_some()).count();
    let text = if silent > 0 { format!("{text}, {} not answering", plural(silent, "node")) } else { text };
    DeploymentSummary {
        url: facts.url.clone(),
        kind: facts.kind,
        text,
        nodes,
        sentinels: facts.sentinels.iter().map(|s| s.address.clone()).collect(),
    }
}

/// How a finding changed between two reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Only in the newer one.
    New,
    /// Only in the older one.
    Gone,
    /// In both.
    Stays,
}

/// One line of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// Rule.
    pub id: String,
    /// What happened to it.
    pub change: Change,
    /// Its impact then.
    pub before: Option<String>,
    /// Its impact now.
    pub after: Option<String>,
}

/// Compares two reports by rule. A rule that could not look in the newer report is not "gone".
pub fn diff(before: &Report, after: &Report) -> Vec<Diff> {
    let flat = |report: &Report| -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for finding in &report.findings {
            all.insert(finding.id.clone(), finding.impact.text.clone());
            for link in &finding.chain {
                all.entry(link.id.clone()).or_insert_with(|| link.text.clone());
            }
        }
        all
    };
    let (old, new) = (flat(before), flat(after));
    let unseen = |id: &str| after.cannot_see.iter().any(|c| c.id == id);
    let ids: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    ids.into_iter()
        .filter_map(|id| {
            let change = match (old.contains_key(id), new.contains_key(id)) {
                (true, true) => Change::Stays,
                (false, true) => Change::New,
                _ if unseen(id) => return None,
                _ => Change::Gone,
            };
            Some(Diff { id: id.clone(), change, before: old.get(id).cloned(), after: new.get(id).cloned() })
        })
        .collect()
}
