//! What other tools are told is what was found, whatever servers say.

use quick_xml::Reader;
use quick_xml::events::Event as Read;
use unslow_doctor::{diagnose, diagnose_but};
use unslow_facts::Facts;

use super::*;

const NEVER: fn(&Finding) -> bool = |_| false;
const ALWAYS: fn(&Finding) -> bool = |_| true;

fn costs(finding: &Finding) -> bool {
    finding.severity_now() >= Severity::Low
}

fn facts(name: &str) -> Facts {
    let path = format!("{}/../explain/doctor/tests/facts/{name}.json", env!("CARGO_MANIFEST_DIR"));
    Facts::from_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Test cases by name, each with what stands in it.
fn cases(xml: &str) -> BTreeMap<String, String> {
    let (mut reader, mut all, mut open) = (Reader::from_str(xml), BTreeMap::new(), None);
    loop {
        let event = reader.read_event().unwrap();
        let is_empty = matches!(event, Read::Empty(_));
        match event {
            Read::Eof => return all,
            Read::Start(tag) | Read::Empty(tag) if tag.name().as_ref() == b"testcase" => {
                let name = tag.try_get_attribute("name").unwrap().unwrap();
                let name = String::from_utf8(name.value.into_owned()).unwrap();
                assert_eq!(all.insert(name.clone(), String::new()), None, "two of one name");
                open = Some(name).filter(|_| !is_empty);
            }
            Read::Start(tag) | Read::Empty(tag) => {
                if let Some(name) = &open {
                    *all.get_mut(name).unwrap() = String::from_utf8(tag.name().as_ref().to_vec()).unwrap();
                }
            }
            Read::End(tag) if tag.name().as_ref() == b"testcase" => open = None,
            _ => {}
        }
    }
}

fn count(xml: &str, what: &str) -> usize {
    let (_, rest) = xml.split_once(&format!("{what}=\"")).unwrap();
    rest[..rest.find('"').unwrap()].parse().unwrap()
}

#[test]
fn each_rule_is_a_test_that_failed_passed_or_was_skipped() {
    let found = diagnose(&facts("keys_command"), &[]);
    let xml = report(Exchange::Junit, &found, costs).unwrap();
    let cases = cases(&xml);
    assert_eq!(cases["keys_command"], "failure");
    let with = |what: &str| cases.values().filter(|inside| *inside == what).count();
    assert_eq!((count(&xml, "failures"), count(&xml, "skipped")), (with("failure"), with("skipped")));
    assert_eq!((count(&xml, "tests"), count(&xml, "errors")), (cases.len(), 0));
    // No rule is lost, and none is listed that is about something other than this deployment.
    assert!(!found.cannot_see.iter().any(|gap| gap.id == DEPLOYMENT));
    assert_eq!(cases.len(), found.looked.rules as usize);
    assert!(found.looked.absent.iter().all(|id| cases[id].is_empty()));
    let never = report(Exchange::Junit, &found, NEVER).unwrap();
    assert_eq!((count(&never, "failures"), self::cases(&never)["keys_command"].as_str()), (0, "system-out"));
}

#[test]
fn what_could_not_look_has_not_passed() {
    let failed = Report::failed("redis://10.0.0.1:6379", 1, "the server asks for a password");
    let xml = report(Exchange::Junit, &failed, costs).unwrap();
    assert_eq!(cases(&xml)["diagnosis"], "error");
    assert!(xml.contains("the server asks for a password"));
    let sarif: Value = serde_json::from_str(&report(Exchange::Sarif, &failed, NEVER).unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["invocations"][0]["executionSuccessful"], false);
    assert!(report(Exchange::Prometheus, &failed, NEVER).unwrap().contains("6379\"} 0\n"));
    let found = diagnose_but(&facts("keys_command"), &[]);
    assert!(report(Exchange::Prometheus, &found, NEVER).unwrap().contains("\"} 1\n"));
}

#[test]
fn a_rule_has_not_passed_where_servers_could_not_be_measured() {
    let mut partly = facts("keys_command");
    let mut denied = partly.nodes[0].clone();
    (denied.address, denied.first, denied.last) = ("10.0.0.99:6379".into(), None, None);
    partly.nodes.push(denied);
    let found = diagnose(&partly, &[]);
    assert!(found.looked.absent.is_empty() && !found.looked.absent_in_part.is_empty());
    let cases = cases(&report(Exchange::Junit, &found, costs).unwrap());
    assert!(found.looked.absent_in_part.iter().all(|id| cases[id] == "skipped"));
    assert_eq!((cases["keys_command"].as_str(), cases[DEPLOYMENT].as_str()), ("failure", "skipped"));
    let mut blind = diagnose(&facts("keys_command"), &[]);
    blind.verdict = Conclusion::Blind;
    let cases = self::cases(&report(Exchange::Junit, &blind, costs).unwrap());
    assert!(!blind.looked.absent.is_empty() && blind.looked.absent.iter().all(|id| cases[id] == "skipped"));
    assert_eq!(cases["diagnosis"], "error");
    let mut idle = diagnose(&facts("keys_command"), &[]);
    idle.verdict = Conclusion::Idle;
    let xml = report(Exchange::Junit, &idle, costs).unwrap();
    assert!(self::cases(&xml)[DEPLOYMENT] == "skipped" && xml.contains("no application used it"), "{xml}");
}

#[test]
fn a_finding_without_a_server_is_told() {
    let mut found = diagnose(&facts("keys_command"), &[]);
    found.findings.retain(|finding| finding.id == "keys_command");
    found.findings[0].subjects.clear();
    let metrics = report(Exchange::Prometheus, &found, NEVER).unwrap();
    assert!(metrics.contains("id=\"keys_command\"") && metrics.contains("subject=\"\""), "{metrics}");
    found.findings[0].severity = Severity::Info;
    assert!(!report(Exchange::Prometheus, &found, NEVER).unwrap().contains("id=\"keys_command\""));
}

#[test]
fn minutes_that_nobody_saw_and_silences_are_told() {
    let incident = |began_ms| Incident {
        id: 1,
        deployment: "redis://a:1".into(),
        rule: "fork_stall".into(),
        title: "it forks".into(),
        severity: Severity::High,
        subjects: vec!["a:1".into()],
        began_ms,
        ended_ms: began_ms + 60_000,
        lasts: false,
        windows: 1,
        worst_ms: began_ms,
        impact: diagnose(&facts("keys_command"), &[]).findings[0].impact.clone(),
        chain: Vec::new(),
        evidence: Vec::new(),
    };
    let found = Incidents {
        schema: String::new(),
        from_ms: 0,
        to_ms: 1,
        window_s: 60.0,
        windows_unseen: 7,
        repeats: Vec::new(),
        silenced: Vec::new(),
        incidents: vec![incident(1_795_460_000_000), incident(1_795_546_400_000)],
    };
    let cases = cases(&incidents(Exchange::Junit, &found, Some(Severity::High)).unwrap());
    let named: Vec<(&str, &str)> = cases.iter().map(|(name, inside)| (name.as_str(), inside.as_str())).collect();
    let expected = [
        ("redis://a:1 fork_stall 2026-11-23T18:53:20Z", "failure"),
        ("redis://a:1 fork_stall 2026-11-24T18:53:20Z", "failure"),
        ("windows", "skipped"),
    ];
    assert_eq!(named, expected);
    let metrics = incidents(Exchange::Prometheus, &found, None).unwrap();
    assert!(metrics.contains("\nunslow_incident_windows_unseen 7\n"), "{metrics}");
}

#[test]
fn words_of_a_server_stay_words() {
    let mut found = diagnose(&facts("keys_command"), &[]);
    let hostile = "]]></failure><testcase name=\"x\"/>\u{1b}[2J\u{0}\u{ffff}\"} 1\nunslow_diagnosis_ok 7";
    for finding in &mut found.findings {
        (finding.title, finding.subjects) = (hostile.into(), vec![hostile.into()]);
        finding.evidence.iter_mut().for_each(|seen| seen.value = hostile.into());
    }
    let xml = report(Exchange::Junit, &found, ALWAYS).unwrap();
    assert_eq!(cases(&xml).len(), found.looked.rules as usize);
    assert!(!xml.contains(['\u{1b}', '\u{0}', '\u{ffff}']));
    let sarif: Value = serde_json::from_str(&report(Exchange::Sarif, &found, NEVER).unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), found.findings.len());
    let metrics = report(Exchange::Prometheus, &found, NEVER).unwrap();
    let lines = metrics.lines().filter(|line| line.starts_with("unslow_diagnosis_ok"));
    assert!(lines.collect::<Vec<_>>()[..].len() == 1 && metrics.contains("unslow_diagnosis_ok{"));
}

#[test]
fn results_name_their_rule_and_servers() {
    let found = diagnose(&facts("keys_command"), &[]);
    let sarif: Value = serde_json::from_str(&report(Exchange::Sarif, &found, NEVER).unwrap()).unwrap();
    let run = &sarif["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    for (result, finding) in run["results"].as_array().unwrap().iter().zip(&found.findings) {
        assert_eq!(result["ruleId"], finding.id.as_str());
        assert!(rules.iter().any(|rule| rule["id"] == result["ruleId"]));
        let places = &result["locations"][0]["logicalLocations"];
        assert_eq!(places[0]["fullyQualifiedName"], finding.subjects[0].as_str());
        assert!(["note", "warning", "error"].contains(&result["level"].as_str().unwrap()));
    }
}

#[test]
fn an_inventory_tells_of_each_deployment() {
    let (found, failed) = (diagnose(&facts("keys_command"), &[]), Report::failed("redis://h", 1, "no password"));
    let of = |name, report, error, exit_status| Looked { name, report, error, fails: &costs, exit_status };
    let all = [
        of("a", &found, None, 1),
        of("b", &found, Some("the disk is full"), 2),
        of("c", &failed, Some("no password"), 2),
    ];
    let xml = inventory(Exchange::Junit, &all).unwrap();
    let alone = report(Exchange::Junit, &found, costs).unwrap();
    assert_eq!((xml.matches("<testsuite ").count(), count(&xml, "errors")), (3, 2));
    assert_eq!(count(&xml, "failures"), 2 * count(&alone, "failures"));
    let tests = xml.matches("<testcase ").count();
    assert!(xml.contains("classname=\"unslow.b\"") && alone.contains("classname=\"unslow\""));
    assert_eq!((count(&xml, "tests"), xml.matches("the disk is full").count()), (tests, 1));
    let sarif: Value = serde_json::from_str(&inventory(Exchange::Sarif, &all).unwrap()).unwrap();
    let run = &sarif["runs"][0];
    assert_eq!(run["invocations"][0]["executionSuccessful"], false);
    let prints = |at: &str| {
        let results = run["results"].as_array().unwrap().iter();
        let prints = results.filter_map(|r| r["partialFingerprints"]["check/v1"].as_str());
        prints.filter(|print| print.starts_with(at)).count()
    };
    assert_eq!((prints("a "), prints("b "), prints("c ")), (found.findings.len(), found.findings.len(), 0));
    let notes = run["invocations"][0]["toolExecutionNotifications"].to_string();
    assert!(notes.contains("c: no password") && notes.contains("b: the disk is full"), "{notes}");
    let metrics = inventory(Exchange::Prometheus, &all).unwrap();
    let ok = |name: &str, is: i64| metrics.contains(&format!("unslow_diagnosis_ok{{deployment=\"{name}\"}} {is}\n"));
    assert!(ok("a", 1) && ok("b", 1) && ok("c", 0), "{metrics}");
    assert!(metrics.contains("unslow_inventory_exit_status{deployment=\"b\"} 2\n"), "{metrics}");
}
