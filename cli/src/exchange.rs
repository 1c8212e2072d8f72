//! Diagnoses and incidents as other tools read them: JUnit XML (CI servers), SARIF (code scanning), Prometheus' text
//! format (node_exporter's textfile collector).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesStart, BytesText, Event};
use serde_json::{Value, json};
use unslow_doctor::{Conclusion, Finding, Incident, Incidents, Report, Severity, Silenced};
use unslow_status::{Exposition, Labels};

use crate::explain;
use crate::output::Exchange;
use crate::when::local_time;

/// What `cannot_see` calls the deployment as a whole.
const DEPLOYMENT: &str = "deployment";

/// One rule or one incident, as other tools read it.
struct Check {
    /// Stays the same from run to run.
    name: String,
    rule: String,
    lasted: Duration,
    said: Said,
}

enum Said {
    Absent,
    Found(Fault),
    /// Neither found as a cause nor ruled out; the text says why.
    Skipped(String),
}

struct Fault {
    severity: Severity,
    /// Whether it makes the exit status 1.
    fails: bool,
    title: String,
    text: String,
    subjects: Vec<String>,
}

/// A deployment or a recording, as other tools read it.
struct Told {
    name: String,
    /// Whether there are several: then each name of a check stands there several times.
    is_one_of_many: bool,
    checks: Vec<Check>,
    /// Why nothing could be concluded.
    error: Option<String>,
}

/// One deployment of an inventory.
pub struct Looked<'a> {
    pub name: &'a str,
    pub report: &'a Report,
    /// What went wrong, also after the diagnosis.
    pub error: Option<&'a str>,
    /// What makes the exit status 1.
    pub fails: &'a dyn Fn(&Finding) -> bool,
    pub exit_status: u8,
}

/// A diagnosis, for a tool. `fails` is what makes the exit status 1.
pub fn report(format: Exchange, report: &Report, fails: impl Fn(&Finding) -> bool) -> anyhow::Result<String> {
    let url = report.deployment.url.as_str();
    let looked = Looked { name: url, report, error: None, fails: &fails, exit_status: 0 };
    if format == Exchange::Prometheus {
        return Ok(metrics_of(&[looked]).text());
    }
    let told = told(&looked, false);
    document(format, &[Told { name: Some(told.name).filter(|url| !url.is_empty()).unwrap_or("doctor".into()), ..told }])
}

/// Diagnoses of an inventory: a test suite each, one SARIF run of all (code scanners take few), one exposition.
pub fn inventory(format: Exchange, all: &[Looked<'_>]) -> anyhow::Result<String> {
    if format == Exchange::Prometheus {
        let mut out = metrics_of(all);
        let statuses = all.iter().map(|of| (vec![("deployment", of.name.to_string())], i64::from(of.exit_status)));
        let help = "2 where it could not be checked or a file failed, 1 with findings, 0 otherwise.";
        out.gauges("inventory_exit_status", help, statuses);
        return Ok(out.text());
    }
    document(format, &all.iter().map(|looked| told(looked, true)).collect::<Vec<Told>>())
}

fn told(looked: &Looked<'_>, is_one_of_many: bool) -> Told {
    let blind = error_of(looked.report);
    let checks = of_rules(looked.report, blind.is_some(), looked.fails);
    let error = blind.or_else(|| looked.error.map(String::from));
    Told { name: looked.name.into(), is_one_of_many, checks, error }
}

/// The incidents of a recording; `least` is the lowest severity that makes the exit status 1.
pub fn incidents(format: Exchange, found: &Incidents, least: Option<Severity>) -> anyhow::Result<String> {
    if format == Exchange::Prometheus {
        return Ok(metrics_of_incidents(found));
    }
    let mut checks: Vec<Check> = found.incidents.iter().map(|incident| of_incident(incident, least)).collect();
    checks.extend(found.silenced.iter().map(|silenced| {
        let name = format!("{} {}, silenced", silenced.deployment, silenced.rule);
        Check::skipped(name, &silenced.rule, format!("silenced in {} windows: {}", silenced.windows, silenced.reason))
    }));
    if found.windows_unseen > 0 {
        let why = format!("nothing was recorded in {} windows", found.windows_unseen);
        checks.push(Check::skipped("windows".into(), "windows", why));
    }
    document(format, &[Told { name: "incidents".into(), is_one_of_many: false, checks, error: None }])
}

fn document(format: Exchange, told: &[Told]) -> anyhow::Result<String> {
    if format == Exchange::Sarif { sarif(told) } else { junit(told) }
}

/// Why nothing could be concluded.
fn error_of(report: &Report) -> Option<String> {
    let why = match report.verdict {
        _ if report.error.is_some() => return report.error.clone(),
        Conclusion::Unreachable => "no server answered",
        Conclusion::Blind => "too much is denied to this user, or the servers were too slow to be asked",
        Conclusion::NoServer => "no server was looked at",
        Conclusion::Causes | Conclusion::Idle | Conclusion::Risks | Conclusion::NoneFound => return None,
    };
    Some(why.into())
}

impl Check {
    fn of(rule: &str, said: Said) -> Check {
        Check { name: rule.into(), rule: rule.into(), lasted: Duration::ZERO, said }
    }

    fn skipped(name: String, rule: &str, why: String) -> Check {
        Check { name, ..Check::of(rule, Said::Skipped(why)) }
    }
}

/// A rule each. `is_blind` where nothing could be concluded: then none has passed.
fn of_rules(report: &Report, is_blind: bool, fails: &dyn Fn(&Finding) -> bool) -> Vec<Check> {
    let mut all: Vec<Check> = Vec::new();
    let findings = report.findings.iter();
    all.extend(findings.map(|finding| Check::of(&finding.id, Said::Found(of_finding(finding, fails(finding))))));
    let links = report.findings.iter().flat_map(|f| f.chain.iter().map(move |link| (link.id.as_str(), f.id.as_str())));
    let links: BTreeMap<&str, &str> = links.collect();
    let silenced = report.silenced.iter().map(|s| (s.id.as_str(), format!("silenced: {}", s.reason)));
    let links = links.into_iter().map(|(id, cause)| (id, format!("a consequence of {cause}")));
    let why = |id: &str| report.cannot_see.iter().find(|gap| gap.id == id).map_or("could not look", |gap| &gap.why);
    let could_not = report.looked.could_not.iter().map(|id| (id.as_str(), why(id).to_string()));
    let in_part = "not there on the servers that could be measured, which were not all";
    let in_part = report.looked.absent_in_part.iter().map(|id| (id.as_str(), in_part.to_string()));
    let blind = report.looked.absent.iter().filter(|_| is_blind);
    let blind = blind.map(|id| (id.as_str(), "nothing could be concluded".to_string()));
    let mut told: BTreeSet<String> = all.iter().map(|check| check.rule.clone()).collect();
    for (id, why) in silenced.chain(links).chain(could_not).chain(in_part).chain(blind) {
        if told.insert(id.to_string()) {
            all.push(Check::skipped(id.into(), id, why));
        }
    }
    if !is_blind {
        all.extend(report.looked.absent.iter().map(|id| Check::of(id, Said::Absent)));
    }
    // What of the deployment as a whole was not seen: servers, sections, a window that was cut short.
    let gaps = report.cannot_see.iter().filter(|gap| gap.id == DEPLOYMENT);
    let idle = "no application used it, so what it does under load was not seen";
    let idle = (report.verdict == Conclusion::Idle).then_some(idle);
    let gaps: Vec<&str> = gaps.map(|gap| gap.why.as_str()).chain(idle).collect();
    if !gaps.is_empty() {
        all.push(Check::skipped(DEPLOYMENT.into(), DEPLOYMENT, gaps.join("; ")));
    }
    all
}

fn of_finding(finding: &Finding, fails: bool) -> Fault {
    let mut lines: Vec<String> =
        finding.chain.iter().map(|link| format!("leads to {}: {}", link.id, link.text)).collect();
    if !finding.impact.text.is_empty() {
        lines.push(format!("impact: {}", finding.impact.text));
    }
    lines.extend(finding.evidence.iter().map(|seen| format!("{}: {}", seen.source, seen.value)));
    for remedy in &finding.remedies {
        lines.push(format!("remedy: {}", remedy.text));
        lines.extend(remedy.commands.iter().map(|command| format!("    {command}")));
    }
    lines.push(format!("check again: {}", finding.recheck));
    Fault {
        severity: finding.severity_now(),
        fails,
        title: finding.title.clone(),
        text: lines.join("\n"),
        subjects: finding.subjects.clone(),
    }
}

fn of_incident(incident: &Incident, least: Option<Severity>) -> Check {
    let mut lines = vec![
        incident.deployment.clone(),
        format!("from {} to {}", local_time(incident.began_ms), local_time(incident.ended_ms)),
        format!("impact: {}", incident.impact.text),
    ];
    lines.extend(incident.chain.iter().map(|link| format!("leads to {}: {}", link.id, link.text)));
    lines.extend(incident.evidence.iter().map(|seen| format!("{}: {}", seen.source, seen.value)));
    Check {
        name: format!("{} {} {}", incident.deployment, incident.rule, began(incident)),
        rule: incident.rule.clone(),
        lasted: Duration::from_millis(incident.lasted_ms()),
        said: Said::Found(Fault {
            severity: incident.severity,
            fails: least.is_some_and(|least| incident.severity >= least),
            title: incident.title.clone(),
            text: lines.join("\n"),
            subjects: incident.subjects.clone(),
        }),
    }
}

/// In UTC: numbers of incidents are those of one list.
fn began(incident: &Incident) -> String {
    let at = i64::try_from(incident.began_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| incident.began_ms.to_string(), |at| at.to_string())
}

/// A server's words may contain characters that neither a terminal nor XML accepts.
fn plain(text: &str) -> String {
    let kept = text.chars().filter(|c| !matches!(c, '\u{fffe}' | '\u{ffff}'));
    kept.map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

fn severity(severity: Severity) -> String {
    format!("{severity:?}").to_lowercase()
}

/// How a test case ended, and what is said of it.
enum Ended {
    Passed(Option<String>),
    Failed { kind: String, title: String, text: String },
    Skipped(String),
    Error(String),
}

fn ended(check: &Check) -> Ended {
    match &check.said {
        Said::Absent => Ended::Passed(None),
        Said::Skipped(why) => Ended::Skipped(plain(why)),
        Said::Found(fault) => {
            let kind = severity(fault.severity);
            let title = plain(&format!("{kind}: {}", fault.title));
            let text = plain(&format!("{}\n{}\n{}", fault.title, fault.subjects.join(", "), fault.text));
            match fault.fails {
                true => Ended::Failed { kind, title, text },
                false => Ended::Passed(Some(text)),
            }
        }
    }
}

/// A test case: name, time, how it ended.
type Case = (String, Duration, Ended);

/// Tests, failures, errors and those that were skipped, as attributes.
fn counts<'a>(cases: impl Iterator<Item = &'a Case> + Clone) -> Vec<(&'static str, String)> {
    let count = |is_it: fn(&Ended) -> bool| cases.clone().filter(|(_, _, ended)| is_it(ended)).count().to_string();
    vec![
        ("tests", count(|_| true)),
        ("failures", count(|ended| matches!(ended, Ended::Failed { .. }))),
        ("errors", count(|ended| matches!(ended, Ended::Error(_)))),
        ("skipped", count(|ended| matches!(ended, Ended::Skipped(_)))),
    ]
}

fn junit(told: &[Told]) -> anyhow::Result<String> {
    let of = |told: &Told| -> Vec<Case> {
        let cases = told.checks.iter().map(|check| (plain(&check.name), check.lasted, ended(check)));
        let failed = told.error.iter().map(|why| ("diagnosis".to_string(), Duration::ZERO, Ended::Error(plain(why))));
        cases.chain(failed).collect()
    };
    // CI servers tell cases apart by class and name.
    let class =
        |told: &Told| if told.is_one_of_many { format!("unslow.{}", plain(&told.name)) } else { "unslow".into() };
    let suites: Vec<(String, String, Vec<Case>)> =
        told.iter().map(|told| (plain(&told.name), class(told), of(told))).collect();
    let mut out = Writer::new_with_indent(Vec::new(), b' ', 2);
    out.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let named = |element: &str, name: &str, cases: &mut dyn Iterator<Item = &Case>| {
        let counts = counts(cases.collect::<Vec<&Case>>().into_iter());
        let start = BytesStart::new(element.to_string());
        let start = start.with_attributes([("name", name)]);
        start.with_attributes(counts.iter().map(|(name, count)| (*name, count.as_str())))
    };
    let all = named("testsuites", "unslow", &mut suites.iter().flat_map(|(_, _, cases)| cases));
    out.write_event(Event::Start(all.borrow()))?;
    for (name, class, cases) in &suites {
        let suite = named("testsuite", name, &mut cases.iter());
        out.write_event(Event::Start(suite.borrow()))?;
        cases.iter().try_for_each(|(name, lasted, ended)| case(&mut out, class, name, *lasted, ended))?;
        out.write_event(Event::End(suite.to_end()))?;
    }
    out.write_event(Event::End(all.to_end()))?;
    Ok(String::from_utf8(out.into_inner())? + "\n")
}

fn case(out: &mut Writer<Vec<u8>>, class: &str, name: &str, lasted: Duration, ended: &Ended) -> std::io::Result<()> {
    let time = format!("{:.3}", lasted.as_secs_f64());
    let case = out.create_element("testcase").with_attributes([("classname", class), ("name", name), ("time", &*time)]);
    match ended {
        Ended::Passed(None) => case.write_empty()?,
        Ended::Passed(Some(text)) => case.write_inner_content(|out| {
            out.create_element("system-out").write_text_content(BytesText::new(text))?;
            Ok(())
        })?,
        Ended::Failed { kind, title, text } => case.write_inner_content(|out| {
            let failure = out.create_element("failure").with_attributes([("type", &**kind), ("message", &**title)]);
            failure.write_text_content(BytesText::new(text))?;
            Ok(())
        })?,
        Ended::Skipped(why) => case.write_inner_content(|out| {
            out.create_element("skipped").with_attribute(("message", &**why)).write_empty()?;
            Ok(())
        })?,
        Ended::Error(why) => case.write_inner_content(|out| {
            out.create_element("error").with_attribute(("message", &**why)).write_empty()?;
            Ok(())
        })?,
    };
    Ok(())
}

fn sarif(told: &[Told]) -> anyhow::Result<String> {
    let faults: Vec<(&Told, &Check, &Fault)> = told
        .iter()
        .flat_map(|told| told.checks.iter().map(move |check| (told, check)))
        .filter_map(|(told, check)| match &check.said {
            Said::Found(fault) => Some((told, check, fault)),
            Said::Absent | Said::Skipped(_) => None,
        })
        .collect();
    let ids: BTreeSet<&str> = faults.iter().map(|(_, check, _)| check.rule.as_str()).collect();
    let rules: Vec<Value> = ids.iter().map(|id| rule_of(id)).collect();
    let results: Vec<Value> = faults.iter().map(|(told, check, fault)| result_of(told, check, fault)).collect();
    let notes: Vec<Value> = told.iter().flat_map(notes_of).collect();
    let driver = json!({ "name": "unslow", "version": env!("CARGO_PKG_VERSION"), "rules": rules });
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": driver },
            "invocations": [{
                "executionSuccessful": told.iter().all(|told| told.error.is_none()),
                "toolExecutionNotifications": notes,
            }],
            "results": results,
        }],
    });
    Ok(serde_json::to_string_pretty(&log)? + "\n")
}

/// What could not be looked at, and why.
fn notes_of(told: &Told) -> Vec<Value> {
    let said = |why: &str| if told.is_one_of_many { format!("{}: {why}", told.name) } else { why.to_string() };
    let skipped = told.checks.iter().filter_map(|check| match &check.said {
        Said::Skipped(why) => Some(note(&check.rule, "note", &said(why))),
        Said::Found(_) | Said::Absent => None,
    });
    skipped.chain(told.error.iter().map(|why| note("diagnosis", "error", &said(why)))).collect()
}

/// In SARIF's messages braces stand for arguments, and brackets for links.
fn message(text: &str) -> String {
    plain(text).replace('{', "{{").replace('}', "}}").replace('[', "\\[").replace(']', "\\]")
}

fn rule_of(id: &str) -> Value {
    let rule = explain::rule(id).ok();
    let title = rule.map_or(id, |rule| rule.title);
    json!({ "id": id, "shortDescription": { "text": title } })
}

fn result_of(told: &Told, check: &Check, fault: &Fault) -> Value {
    let level = match fault.severity {
        Severity::Info | Severity::Risk => "note",
        Severity::Low | Severity::Medium => "warning",
        Severity::High | Severity::Critical => "error",
    };
    // A server is not a file: SARIF calls such a place logical. Code scanners want a file all the same.
    let place = |name: &String| json!({ "fullyQualifiedName": plain(name), "kind": "resource" });
    let file = |name: &String| {
        let kept = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
        json!({
            "artifactLocation": { "uri": format!("servers/{}", name.chars().map(kept).collect::<String>()) },
            "region": { "startLine": 1 },
        })
    };
    let fingerprint = format!("{} {}", check.name, fault.subjects.join(" "));
    let fingerprint = if told.is_one_of_many { format!("{} {fingerprint}", told.name) } else { fingerprint };
    let subjects = if fault.subjects.is_empty() { std::slice::from_ref(&told.name) } else { &fault.subjects };
    json!({
        "ruleId": check.rule,
        "level": level,
        "message": { "text": message(&format!("{}\n{}", fault.title, fault.text)) },
        "locations": [{
            "physicalLocation": subjects.first().map(file),
            "logicalLocations": subjects.iter().map(place).collect::<Vec<Value>>(),
        }],
        "partialFingerprints": { "check/v1": fingerprint },
        "properties": { "severity": severity(fault.severity) },
    })
}

fn note(id: &str, level: &str, why: &str) -> Value {
    json!({ "descriptor": { "id": id }, "level": level, "message": { "text": message(why) } })
}

/// Rows of `finding`: what costs something, or could. Of one whose server is not known there is a row as well.
pub fn findings<'a>(found: impl Iterator<Item = (&'a str, &'a Finding)>) -> Vec<(Labels, i64)> {
    let worth = found.filter(|(_, finding)| finding.severity_now() > Severity::Info);
    let rows = worth.flat_map(|(deployment, finding)| {
        let unknown = finding.subjects.is_empty().then(String::new);
        finding.subjects.iter().cloned().chain(unknown).map(move |subject| {
            let labels = vec![
                ("deployment", deployment.to_string()),
                ("id", finding.id.clone()),
                ("severity", severity(finding.severity_now())),
                ("subject", subject),
            ];
            (labels, 1)
        })
    });
    rows.collect()
}

/// Rows of `silenced`.
pub fn silenced<'a>(found: impl Iterator<Item = (&'a str, &'a Silenced)>) -> Vec<(Labels, i64)> {
    let row = |(url, silenced): (&str, &Silenced)| (vec![("deployment", url.into()), ("id", silenced.id.clone())], 1);
    found.map(row).collect()
}

fn metrics_of(all: &[Looked<'_>]) -> Exposition {
    let mut out = Exposition::new("unslow");
    let labels = |looked: &Looked<'_>| -> Labels { vec![("deployment", looked.name.to_string())] };
    let concluded = all.iter().map(|looked| (labels(looked), i64::from(error_of(looked.report).is_none())));
    out.gauges("diagnosis_ok", "Whether the diagnosis could conclude anything.", concluded);
    let seconds = |report: &Report| i64::try_from(report.at_ms / 1000).unwrap_or(i64::MAX);
    let rows = all.iter().map(|looked| (labels(looked), seconds(looked.report)));
    out.gauges("diagnosis_timestamp_seconds", "When its window began, unix time.", rows);
    let rows = all.iter().flat_map(|looked| {
        let rules = &looked.report.looked;
        let answers = [("could", rules.could), ("could_not", rules.could_not.len() as u32)];
        answers.map(|(look, count)| ([labels(looked), vec![("look", look.into())]].concat(), i64::from(count)))
    });
    out.gauges("rules", "Rules about something that the deployment has, by whether they could look.", rows);
    let told = all.iter().flat_map(|looked| looked.report.findings.iter().map(|finding| (looked.name, finding)));
    out.gauges("finding", "What the window is diagnosed as.", findings(told));
    let told = all.iter().flat_map(|looked| looked.report.silenced.iter().map(|silenced| (looked.name, silenced)));
    out.gauges("silenced", "Findings that are silenced.", silenced(told));
    out
}

fn metrics_of_incidents(found: &Incidents) -> String {
    let mut out = Exposition::new("unslow");
    let labels = |incident: &Incident| -> Labels {
        vec![
            ("began", began(incident)),
            ("deployment", incident.deployment.clone()),
            ("id", incident.rule.clone()),
            ("severity", severity(incident.severity)),
        ]
    };
    let rows = |figure: fn(&Incident) -> u64| {
        let value = move |incident: &Incident| (labels(incident), i64::try_from(figure(incident)).unwrap_or(i64::MAX));
        found.incidents.iter().map(value).collect::<Vec<(Labels, i64)>>()
    };
    out.gauges("incident_began_seconds", "When it began, unix time.", rows(|i| i.began_ms / 1000));
    out.gauges("incident_seconds", "How long it lasted.", rows(|i| i.lasted_ms() / 1000));
    out.gauges("incident_lasts", "Whether it was there when the recording ended.", rows(|i| u64::from(i.lasts)));
    let unseen = [(Vec::new(), i64::from(found.windows_unseen))];
    out.gauges("incident_windows_unseen", "Windows with nothing recorded.", unseen);
    out.text()
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
