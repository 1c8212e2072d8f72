//! Diagnoses and incidents as other tools read them: JUnit XML (CI servers), SARIF (code scanning), Prometheus' text
//! format (node_exporter's textfile collector).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};
use serde_json::{Value, json};
use unslow_doctor::{Conclusion, Finding, Incident, Incidents, Report, Severity};
use unslow_status::{Exposition, Labels};

use crate::explain;
use crate::output::Exchange;
use crate::when::local_time;

/// What a tool is told of one rule, or of one incident.
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
    /// Neither a fault of its own nor ruled out, and why.
    Skipped(String),
}

struct Fault {
    severity: Severity,
    title: String,
    text: String,
    subjects: Vec<String>,
}

/// Everything that is told of a deployment, or of a recording.
struct Told {
    name: String,
    checks: Vec<Check>,
    /// Why there is nothing else.
    error: Option<String>,
}

/// A diagnosis, for a tool. `least` is the lowest severity that fails.
pub fn report(format: Exchange, report: &Report, least: Option<Severity>) -> anyhow::Result<String> {
    let told = Told {
        name: Some(&report.deployment.url).filter(|url| !url.is_empty()).map_or("doctor", |url| url).into(),
        checks: of_rules(report),
        error: report.error.clone().or_else(|| nothing_concluded(report)),
    };
    match format {
        Exchange::Junit => junit(&told, least),
        Exchange::Sarif => sarif(&told),
        Exchange::Prometheus => Ok(metrics_of(report)),
    }
}

/// The incidents of a recording.
pub fn incidents(format: Exchange, found: &Incidents, least: Option<Severity>) -> anyhow::Result<String> {
    let checks = found.incidents.iter().map(of_incident).collect();
    let told = Told { name: "incidents".into(), checks, error: None };
    match format {
        Exchange::Junit => junit(&told, least),
        Exchange::Sarif => sarif(&told),
        Exchange::Prometheus => Ok(metrics_of_incidents(found)),
    }
}

/// Where nothing could be concluded, no test has passed.
fn nothing_concluded(report: &Report) -> Option<String> {
    let why = match report.verdict {
        Conclusion::Unreachable => "no server answered",
        Conclusion::Blind => "too much is denied to this user, or the servers were too slow to be asked",
        Conclusion::NoServer => "no server was looked at",
        Conclusion::Causes | Conclusion::Idle | Conclusion::Risks | Conclusion::NoneFound => return None,
    };
    Some(why.into())
}

fn of_rules(report: &Report) -> Vec<Check> {
    let check = |rule: &str, said| Check { name: rule.into(), rule: rule.into(), lasted: Duration::ZERO, said };
    let found = report.findings.iter().map(|finding| check(&finding.id, Said::Found(of_finding(finding))));
    let silenced = report.silenced.iter().map(|s| check(&s.id, Said::Skipped(format!("silenced: {}", s.reason))));
    let consequence = |cause: &Finding, id: &str| check(id, Said::Skipped(format!("a consequence of {}", cause.id)));
    let links = report.findings.iter().flat_map(|f| f.chain.iter().map(move |link| (f, link)));
    let links: BTreeMap<&str, &Finding> = links.map(|(finding, link)| (link.id.as_str(), finding)).collect();
    let own: BTreeSet<&str> = report.findings.iter().map(|finding| finding.id.as_str()).collect();
    let links = links.into_iter().filter(|(id, _)| !own.contains(id)).map(|(id, cause)| consequence(cause, id));
    let why = |id: &str| report.cannot_see.iter().find(|gap| gap.id == id).map_or("could not look", |gap| &gap.why);
    let could_not = report.looked.could_not.iter().map(|id| check(id, Said::Skipped(why(id).into())));
    let absent = report.looked.absent.iter().map(|id| check(id, Said::Absent));
    found.chain(silenced).chain(links).chain(could_not).chain(absent).collect()
}

fn of_finding(finding: &Finding) -> Fault {
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
        title: finding.title.clone(),
        text: lines.join("\n"),
        subjects: finding.subjects.clone(),
    }
}

fn of_incident(incident: &Incident) -> Check {
    let mut lines = vec![
        incident.deployment.clone(),
        format!("from {} to {}", local_time(incident.began_ms), local_time(incident.ended_ms)),
        format!("impact: {}", incident.impact.text),
    ];
    lines.extend(incident.chain.iter().map(|link| format!("leads to {}: {}", link.id, link.text)));
    lines.extend(incident.evidence.iter().map(|seen| format!("{}: {}", seen.source, seen.value)));
    Check {
        name: format!("{} {}", incident.id, incident.rule),
        rule: incident.rule.clone(),
        lasted: Duration::from_millis(incident.lasted_ms()),
        said: Said::Found(Fault {
            severity: incident.severity,
            title: incident.title.clone(),
            text: lines.join("\n"),
            subjects: incident.subjects.clone(),
        }),
    }
}

/// Words of a server may hold what neither a terminal nor XML takes.
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

fn ended(check: &Check, least: Option<Severity>) -> Ended {
    match &check.said {
        Said::Absent => Ended::Passed(None),
        Said::Skipped(why) => Ended::Skipped(plain(why)),
        Said::Found(fault) => {
            let kind = severity(fault.severity);
            let title = plain(&format!("{kind}: {}", fault.title));
            let text = plain(&format!("{}\n{}\n{}", fault.title, fault.subjects.join(", "), fault.text));
            match least.is_some_and(|least| fault.severity >= least) {
                true => Ended::Failed { kind, title, text },
                false => Ended::Passed(Some(text)),
            }
        }
    }
}

fn junit(told: &Told, least: Option<Severity>) -> anyhow::Result<String> {
    let cases = told.checks.iter().map(|check| (plain(&check.name), check.lasted, ended(check, least)));
    let failed = told.error.iter().map(|why| ("diagnosis".to_string(), Duration::ZERO, Ended::Error(plain(why))));
    let cases: Vec<(String, Duration, Ended)> = cases.chain(failed).collect();
    let count = |is_it: fn(&Ended) -> bool| cases.iter().filter(|(_, _, ended)| is_it(ended)).count().to_string();
    let (name, tests) = (plain(&told.name), cases.len().to_string());
    let failures = count(|ended| matches!(ended, Ended::Failed { .. }));
    let errors = count(|ended| matches!(ended, Ended::Error(_)));
    let skipped = count(|ended| matches!(ended, Ended::Skipped(_)));
    let counts = [("tests", &*tests), ("failures", &*failures), ("errors", &*errors), ("skipped", &*skipped)];
    let mut out = Writer::new_with_indent(Vec::new(), b' ', 2);
    out.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    out.create_element("testsuites").with_attribute(("name", "unslow")).with_attributes(counts).write_inner_content(
        |out| {
            let suite = out.create_element("testsuite").with_attribute(("name", &*name)).with_attributes(counts);
            suite.write_inner_content(|out| {
                cases.iter().try_for_each(|(name, lasted, ended)| case(out, name, *lasted, ended))
            })?;
            Ok(())
        },
    )?;
    Ok(String::from_utf8(out.into_inner())? + "\n")
}

fn case(out: &mut Writer<Vec<u8>>, name: &str, lasted: Duration, ended: &Ended) -> std::io::Result<()> {
    let time = format!("{:.3}", lasted.as_secs_f64());
    let case =
        out.create_element("testcase").with_attributes([("classname", "unslow"), ("name", name), ("time", &*time)]);
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

fn sarif(told: &Told) -> anyhow::Result<String> {
    let faults: Vec<(&Check, &Fault)> = told
        .checks
        .iter()
        .filter_map(|check| match &check.said {
            Said::Found(fault) => Some((check, fault)),
            Said::Absent | Said::Skipped(_) => None,
        })
        .collect();
    let ids: BTreeSet<&str> = faults.iter().map(|(check, _)| check.rule.as_str()).collect();
    let rules: Vec<Value> = ids.iter().map(|id| rule_of(id)).collect();
    let results: Vec<Value> = faults.iter().map(|(check, fault)| result_of(told, check, fault)).collect();
    let notes: Vec<Value> = told
        .checks
        .iter()
        .filter_map(|check| match &check.said {
            Said::Skipped(why) => Some(note(&check.rule, "note", why)),
            Said::Found(_) | Said::Absent => None,
        })
        .chain(told.error.iter().map(|why| note("diagnosis", "error", why)))
        .collect();
    let driver = json!({ "name": "unslow", "version": env!("CARGO_PKG_VERSION"), "rules": rules });
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": driver },
            "invocations": [{
                "executionSuccessful": told.error.is_none(),
                "toolExecutionNotifications": notes,
            }],
            "results": results,
        }],
    });
    Ok(serde_json::to_string_pretty(&log)? + "\n")
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
    // A server is no file: SARIF calls such a place logical.
    let place = |name: &String| json!({ "fullyQualifiedName": plain(name), "kind": "resource" });
    let subjects = if fault.subjects.is_empty() { std::slice::from_ref(&told.name) } else { &fault.subjects };
    json!({
        "ruleId": check.rule,
        "level": level,
        "message": { "text": plain(&format!("{}\n{}", fault.title, fault.text)) },
        "locations": [{ "logicalLocations": subjects.iter().map(place).collect::<Vec<Value>>() }],
        "partialFingerprints": { "check/v1": format!("{} {}", check.name, fault.subjects.join(" ")) },
        "properties": { "severity": severity(fault.severity) },
    })
}

fn note(id: &str, level: &str, why: &str) -> Value {
    json!({ "descriptor": { "id": id }, "level": level, "message": { "text": plain(why) } })
}

/// `finding` as the recorder's `/metrics` have it.
pub fn findings<'a>(found: impl Iterator<Item = &'a Finding>) -> Vec<(Labels, i64)> {
    let rows = found.flat_map(|finding| {
        finding.subjects.iter().map(|subject| {
            let severity = severity(finding.severity_now());
            (vec![("id", finding.id.clone()), ("severity", severity), ("subject", subject.clone())], 1)
        })
    });
    rows.collect()
}

fn metrics_of(report: &Report) -> String {
    let mut out = Exposition::new("unslow");
    let concluded = report.error.is_none() && nothing_concluded(report).is_none();
    out.gauges("diagnosis_ok", "Whether the diagnosis could conclude anything.", [(Vec::new(), i64::from(concluded))]);
    let seconds = i64::try_from(report.at_ms / 1000).unwrap_or(i64::MAX);
    out.gauges("diagnosis_timestamp_seconds", "When its window began, unix time.", [(Vec::new(), seconds)]);
    let answers = [("could", report.looked.could), ("could_not", report.looked.could_not.len() as u32)];
    let rows = answers.map(|(look, count)| (vec![("look", look.to_string())], i64::from(count)));
    out.gauges("rules", "Rules about something that the deployment has, by whether they could look.", rows);
    out.gauges("finding", "What the window is diagnosed as.", findings(report.findings.iter()));
    let silenced = report.silenced.iter().map(|silenced| (vec![("id", silenced.id.clone())], 1));
    out.gauges("silenced", "Findings that are silenced.", silenced);
    out.text()
}

fn metrics_of_incidents(found: &Incidents) -> String {
    let mut out = Exposition::new("unslow");
    let labels = |incident: &Incident| -> Labels {
        vec![
            ("deployment", incident.deployment.clone()),
            ("id", incident.rule.clone()),
            ("number", incident.id.to_string()),
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
