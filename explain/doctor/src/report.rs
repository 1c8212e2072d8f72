//! The whole diagnosis, and the difference between two of them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_facts::{Cost, Facts, Gap, Lack, Node};
use unslow_topology::DeploymentKind;

use crate::measure::{USED_OPS, sentinel_greetings};
use crate::rules::OF_CLIENTS;
use crate::{Finding, LogLine, Rule, Severity, Silence, Silenced, Verdict, When, chain, logs, rules, silence};

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
    /// The run was ended before its window was over.
    #[serde(default)]
    pub cut_short: bool,
    /// The proxy that answered instead of the servers; what stands behind it was not seen.
    #[serde(default)]
    pub through: Option<String>,
    /// What may be concluded.
    #[serde(default)]
    pub verdict: Conclusion,
    /// Why the diagnosis failed as a whole; nothing else stands in the report then.
    #[serde(default)]
    pub error: Option<String>,
    /// How many rules could look.
    #[serde(default)]
    pub looked: Looked,
    /// With `--only`: what became of each of these rules.
    #[serde(default)]
    pub only: Vec<Answer>,
    /// What was looked at.
    pub deployment: DeploymentSummary,
    /// Causes, the dearest first.
    pub findings: Vec<Finding>,
    /// What was found and is not to be told for now.
    #[serde(default)]
    pub silenced: Vec<Silenced>,
    /// What was looked for and is not there.
    pub ruled_out: Vec<String>,
    /// What could not be looked at.
    pub cannot_see: Vec<CannotSee>,
    /// What the servers' logs say, the newest first.
    #[serde(default)]
    pub logs: Vec<LogLine>,
    /// What looking cost.
    pub cost: Cost,
}

/// What a diagnosis comes to. The first that holds, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Something costs now: findings above risk.
    Causes,
    /// No server was looked at: what is said is of error messages and logs alone.
    NoServer,
    /// No server answered, or the diagnosis failed as a whole.
    Unreachable,
    /// Too much is denied to this user, or the servers were too slow to be asked: what was not found may be there.
    Blind,
    /// No application uses it: why it is slow under load cannot be seen without load.
    Idle,
    /// Nothing is slow now; something could hurt.
    Risks,
    /// Everything that was looked for is absent. Not a word about what was not looked for.
    #[default]
    NoneFound,
}

/// How many rules could look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Looked {
    /// Rules that are about something this deployment has.
    pub rules: u32,
    /// Of these, how many could look.
    pub could: u32,
    /// The others.
    pub could_not: Vec<String>,
    /// Rules whose cause is not there.
    #[serde(default)]
    pub absent: Vec<String>,
    /// Rules whose cause is not there as far as servers could be measured, which was not the case for all.
    #[serde(default)]
    pub absent_in_part: Vec<String>,
}

/// What became of one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// Rule.
    pub id: String,
    /// Its answer.
    pub answer: Answered,
    /// What was measured, or why it could not look.
    pub text: String,
}

/// The outcomes of a rule, for a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answered {
    /// It is so.
    Present,
    /// It is not so.
    Absent,
    /// Could not look.
    Unknown,
    /// The deployment has nothing of the kind.
    NotHere,
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
    /// Why it could not be seen.
    pub why: String,
    /// What would settle it.
    pub grant: String,
    /// Its kind.
    #[serde(default)]
    pub lack: Lack,
}

/// Judges facts. `only` limits it to some rules; empty is all.
pub fn diagnose(facts: &Facts, only: &[String]) -> Report {
    judge(facts, only, &[])
}

/// Judges facts by all rules, and keeps apart what is silenced.
pub fn diagnose_but(facts: &Facts, silences: &[Silence]) -> Report {
    judge(facts, &[], silences)
}

fn judge(facts: &Facts, only: &[String], silences: &[Silence]) -> Report {
    // Of words alone nothing can be said about servers: rules about them are not asked, unless by name.
    let is_asked = |id: &str| match only {
        [] => !facts.of_words_alone() || OF_CLIENTS.contains(&id),
        some => some.iter().any(|o| o == id),
    };
    let rules: Vec<_> = rules::ALL.iter().filter(|r| is_asked(r.id)).copied().collect();
    let (mut present, mut ruled_out, mut cannot_see) = (Vec::new(), Vec::new(), Vec::new());
    let mut answers = Vec::new();
    // Where no server was measured nothing is ruled out either.
    let measured = facts.live().next().is_some();
    for rule in &rules {
        let (answer, text) = match verdict_of(rule, facts) {
            // Asked by name it would read as if the problem were gone.
            Verdict::NotHere if !only.is_empty() && is_document_missing(facts, rule.id) => {
                let why = format!("it is judged from a document, and none was given:{}", document(rule.id));
                cannot_see.push(CannotSee::of(rule.id, &Gap::new(Lack::Other, why.as_str(), recheck(facts, rule.id))));
                (Answered::Unknown, why)
            }
            Verdict::NotHere => (Answered::NotHere, String::new()),
            Verdict::Absent(text) if measured || OF_CLIENTS.contains(&rule.id) => {
                ruled_out.push(text.clone());
                (Answered::Absent, text)
            }
            Verdict::Absent(text) => (Answered::Unknown, format!("no server could be measured ({text})")),
            Verdict::Unknown(gap) => {
                cannot_see.push(CannotSee::of(rule.id, &gap));
                (Answered::Unknown, gap.why)
            }
            Verdict::Present(finding) => {
                let recheck = recheck(facts, rule.id);
                let title = finding.title.clone();
                let finding = logs::beside(*finding, facts, rule.id);
                present.push(Finding { id: rule.id.into(), recheck, ..finding });
                (Answered::Present, title)
            }
        };
        answers.push(Answer { id: rule.id.into(), answer, text });
    }
    // Absent is a word about the servers that were measured; asked about a rule alone, the others are part of the
    // answer.
    let unmeasured = facts.nodes.iter().filter(|n| n.last.is_none()).count();
    let in_part = unmeasured > 0 || facts.through.is_some();
    let looked = looked(&answers, in_part);
    if !only.is_empty() && in_part {
        let whom = match &facts.through {
            Some(proxy) => format!("what stands behind {proxy} was not measured"),
            None => format!("{unmeasured} of {} servers could not be measured", facts.nodes.len()),
        };
        let of_servers = |a: &&mut Answer| a.answer == Answered::Absent && !is_of_clients(&a.id);
        for answer in answers.iter_mut().filter(of_servers) {
            (answer.answer, answer.text) = (Answered::Unknown, format!("{whom}; on the others: {}", answer.text));
        }
    }
    cannot_see.extend(unseen(facts));
    // Before causes and consequences are joined: a consequence of what is silenced is told.
    let silenced = silence::take_silenced(&mut present, silences, &facts.url, facts.at_ms);
    let mut findings = chain::fold(present, rules::ALL, |cause, effect| rules::arrows::holds(facts, cause, effect));
    // "Not your Redis" is said only when nothing measured says otherwise.
    let against = |f: &Finding| f.id != "not_your_redis" && !OF_CLIENTS.contains(&f.id.as_str());
    let is_known = |s: &Silenced| s.id != "not_your_redis" && s.severity > Severity::Risk;
    if findings.iter().any(|f| against(f) && f.severity > Severity::Risk) || silenced.iter().any(is_known) {
        findings.retain(|f| f.id != "not_your_redis" || f.severity > Severity::Risk);
    }
    Report {
        schema: SCHEMA.into(),
        unslow: facts.unslow.clone(),
        at_ms: facts.at_ms,
        window_s: facts.window_s,
        cut_short: facts.cut_short,
        through: facts.through.clone(),
        verdict: conclusion(facts, &findings, &answers, !only.is_empty()),
        error: None,
        looked,
        only: if only.is_empty() { Vec::new() } else { answers },
        deployment: summary(facts),
        findings,
        silenced,
        ruled_out,
        cannot_see,
        logs: logs::told(facts),
        cost: facts.cost.clone(),
    }
}

/// A rule about servers cannot look where there are words alone.
fn verdict_of(rule: &Rule, facts: &Facts) -> Verdict {
    if facts.of_words_alone() && !OF_CLIENTS.contains(&rule.id) {
        return Verdict::unknown(Lack::Answer, "no server was looked at", "the URL of one");
    }
    (rule.check)(facts)
}

/// The command that shows whether a finding is still there. What a document says stays as it is: it takes a new one.
fn recheck(facts: &Facts, id: &str) -> String {
    let server = if facts.url.is_empty() { String::new() } else { format!(" {}", facts.url) };
    format!("unslow doctor{server}{} --only {id}", document(id))
}

/// The option that hands in what a rule judges, if it is not the servers themselves.
fn document(id: &str) -> &'static str {
    match id {
        "hot_key" => " --keys FILE",
        _ if OF_CLIENTS.contains(&id) => " --client-error FILE",
        _ => "",
    }
}

/// Whether a rule about servers has nothing to judge, as its document was not given.
fn is_document_missing(facts: &Facts, id: &str) -> bool {
    id == "hot_key" && facts.keys_seen.as_ref().is_none_or(|seen| seen.hot.is_empty())
}

impl Report {
    /// Of a diagnosis that failed as a whole.
    pub fn failed(url: &str, at_ms: u64, error: &str) -> Report {
        let facts = Facts { at_ms, ..Facts::of_nothing(url) };
        Report {
            verdict: Conclusion::Unreachable,
            error: Some(error.into()),
            looked: Looked::default(),
            only: Vec::new(),
            cannot_see: Vec::new(),
            ..diagnose(&facts, &["node_hangs".into()])
        }
    }
}

impl Finding {
    /// How bad it is now: what is over is a risk at most.
    pub fn severity_now(&self) -> Severity {
        if self.when == When::Past { self.severity.min(Severity::Risk) } else { self.severity }
    }
}

impl CannotSee {
    fn of(id: &str, gap: &Gap) -> CannotSee {
        CannotSee { id: id.into(), why: gap.why.clone(), grant: gap.grant.clone().unwrap_or_default(), lack: gap.lack }
    }
}

fn is_of_clients(id: &str) -> bool {
    OF_CLIENTS.contains(&id)
}

/// `in_part` where not all servers could be measured.
fn looked(answers: &[Answer], in_part: bool) -> Looked {
    let about: Vec<&Answer> = answers.iter().filter(|a| a.answer != Answered::NotHere).collect();
    let those = |answer| about.iter().filter(|a| a.answer == answer).map(|a| a.id.clone()).collect::<Vec<String>>();
    let could_not = those(Answered::Unknown);
    let (absent, absent_in_part) = those(Answered::Absent).into_iter().partition(|id| !in_part || is_of_clients(id));
    let could = (about.len() - could_not.len()) as u32;
    Looked { rules: about.len() as u32, could, could_not, absent, absent_in_part }
}

/// So many of a server's sources denied to this user, or out of reach since it answered too slowly, leave the doctor
/// blind: settings, the slow log, its clients, its view of the cluster. One alone hides some causes and is said as
/// that; managed services deny CONFIG and show all the rest. Sources are counted and not rules, whose number says
/// nothing about what is hidden.
const BLIND_SOURCES: usize = 2;

fn conclusion(facts: &Facts, findings: &[Finding], answers: &[Answer], only: bool) -> Conclusion {
    if findings.iter().any(|f| f.severity_now() > Severity::Risk) {
        return Conclusion::Causes;
    }
    let alone = facts.of_words_alone();
    if alone && !only {
        return Conclusion::NoServer;
    }
    let no_answer = facts.live().next().is_none() && facts.nodes.iter().all(|n| n.unreachable.is_some());
    if !alone && facts.through.is_none() && no_answer {
        return Conclusion::Unreachable;
    }
    let denied_all = |n: &Node| n.away == Some(Lack::Rights) || n.unreachable.is_none() && n.last.is_none();
    let no_info = facts.nodes.iter().any(denied_all);
    // Behind a proxy nothing was seen: what it says of itself is no word about the servers.
    let denied = facts.live().map(denied_sources).max().unwrap_or(0);
    let blind = no_info || facts.through.is_some() || denied >= BLIND_SOURCES;
    let idle = is_idle(facts);
    let risks = findings.iter().any(|f| f.severity_now() == Severity::Risk);
    // A question about some rules is answered by them: whether anyone is there is the asker's to know.
    if only {
        return match (risks, answers.iter().any(|a| a.answer == Answered::Unknown)) {
            (true, _) => Conclusion::Risks,
            (false, true) => Conclusion::Blind,
            (false, false) => Conclusion::NoneFound,
        };
    }
    match (blind, idle, risks) {
        (true, ..) => Conclusion::Blind,
        (_, true, _) => Conclusion::Idle,
        (.., true) => Conclusion::Risks,
        _ => Conclusion::NoneFound,
    }
}

/// How many of a server's sources its user may not see, or could not be asked in time.
fn denied_sources(node: &Node) -> usize {
    let always = [node.config.refused(), node.slowlog.refused(), node.clients.refused()];
    let late = always.into_iter().flatten().filter(|gap| gap.lack == Lack::Time).count();
    let all = always.into_iter().chain([node.cluster.refused()]).flatten();
    late + all.filter(|gap| gap.lack == Lack::Rights).count()
}

/// Whether no application uses the deployment: its servers were measured, and hardly anything was asked of them.
fn is_idle(facts: &Facts) -> bool {
    let mut all = 0.0;
    let mut errors = 0;
    for node in facts.live() {
        let Some(ops) = node.application_ops() else { return false };
        // Sentinels greet each other through the servers' channels: their PUBLISH is no application's.
        all += (ops - sentinel_greetings(facts, node)).max(0.0);
        errors += node.errors().values().sum::<u64>();
    }
    // Who is refused is there all the same.
    all < USED_OPS && (errors as f64) < USED_OPS * facts.window_s.max(1.0)
}

/// What the probes could not see, the same reason on many nodes told once.
fn unseen(facts: &Facts) -> Vec<CannotSee> {
    let mut reasons: BTreeMap<(String, String, Lack), Vec<String>> = BTreeMap::new();
    let mut note = |lack: Lack, why: &str, grant: &str, node: &str| {
        reasons.entry((why.to_string(), grant.to_string(), lack)).or_default().push(node.to_string());
    };
    for node in &facts.nodes {
        if let Some(why) = &node.unreachable {
            let without = why.replace(&node.address, "it");
            let when = if node.first.is_some() { "stopped answering half way" } else { "was not asked" };
            note(
                Lack::Answer,
                &format!("{when}: {}", without.trim_start_matches("it: ")),
                match node.away {
                    Some(Lack::Rights) => "a user and password that it takes: --user, UNSLOW_PASSWORD",
                    Some(Lack::Other) => "do what its reply asks for, then run again",
                    _ => "reach it from here, or run unslow beside it",
                },
                &node.address,
            );
            continue;
        }
        if node.first.is_none() {
            note(
                Lack::Rights,
                "INFO is denied to this user, so nothing could be measured",
                "ACL SETUSER <user> +info",
                &node.address,
            );
        }
        let seen = [
            node.config.refused(),
            node.slowlog.refused(),
            node.latency.refused(),
            node.clients.refused(),
            node.rtt.refused(),
            // An older server lacks nothing that could be granted, and the findings are there without it.
            node.histograms.refused().filter(|gap| gap.lack == Lack::Rights),
            node.large.refused().filter(|gap| gap.lack == Lack::Rights),
        ];
        let cluster = [node.cluster.refused(), node.cluster_info.refused()];
        let cluster = cluster.into_iter().filter(|_| facts.kind == DeploymentKind::Cluster);
        for gap in seen.into_iter().chain(cluster).flatten() {
            note(gap.lack, &gap.why, gap.grant.as_deref().unwrap_or(""), &node.address);
        }
        if node.own.stopped_early {
            note(
                Lack::Time,
                "its PING became twice as slow while we looked, so the more expensive questions were left out",
                "run again at a quieter time",
                &node.address,
            );
        }
    }
    for sentinel in &facts.sentinels {
        if let Some(why) = &sentinel.unreachable {
            note(
                Lack::Answer,
                why,
                "reach it from here; Sentinels may have a password of their own",
                &sentinel.address,
            );
        }
    }
    let blind: Vec<String> = facts.live().filter(|n| facts.process(n).is_none()).map(|n| n.address.clone()).collect();
    if !blind.is_empty() {
        reasons.insert(
            (
                "their machines: steal, throttling, neighbours, disks, clients' distances".into(),
                "run `unslow host --save host.json` there, then add --host host.json here".into(),
                Lack::Host,
            ),
            blind,
        );
    }
    let all = facts.nodes.len();
    reasons
        .into_iter()
        .map(|((why, grant, lack), nodes)| {
            let whom =
                if nodes.len() == all && all > 3 { format!("all {all} nodes") } else { crate::measure::names(&nodes) };
            CannotSee { id: "deployment".into(), why: format!("{whom}: {why}"), grant, lack }
        })
        .chain(facts.notes.iter().map(|n| CannotSee::of("deployment", &Gap::new(Lack::Other, n, ""))))
        .chain(facts.cut_short.then(|| {
            let why = format!(
                "the window was cut short after {:.0} s: what comes seldom may not have been seen",
                facts.window_s
            );
            CannotSee::of("deployment", &Gap::new(Lack::Time, why, "run it for the whole window"))
        }))
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
    let text = if facts.of_words_alone() { "no server, messages and logs alone".into() } else { text };
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
    // Gone is what was looked for, on servers that answered, and is not there.
    let away = after.deployment.nodes.iter().any(|n| n.unreachable.is_some());
    let unseen = |id: &str| {
        let not_asked = !after.only.is_empty() && after.only.iter().all(|a| a.id != id);
        away || not_asked
            || after.looked.could_not.iter().any(|c| c == id)
            || after.cannot_see.iter().any(|c| c.id == id)
            || after.silenced.iter().any(|s| s.id == id)
    };
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
