//! What other tools are told is what was found, whatever servers say.

use quick_xml::Reader;
use quick_xml::events::Event as Read;
use unslow_doctor::{diagnose, diagnose_but};
use unslow_facts::Facts;

use super::*;
use crate::fail_on::FailOn;

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
    let xml = report(Exchange::Junit, &found, FailOn::Low.least()).unwrap();
    let cases = cases(&xml);
    assert_eq!(cases["keys_command"], "failure");
    let with = |what: &str| cases.values().filter(|inside| *inside == what).count();
    assert_eq!((count(&xml, "failures"), count(&xml, "skipped")), (with("failure"), with("skipped")));
    assert_eq!((count(&xml, "tests"), count(&xml, "errors")), (cases.len(), 0));
    // No rule is lost, and none is told that is about something else than this deployment.
    assert_eq!(cases.len(), found.looked.rules as usize);
    assert!(found.looked.absent.iter().all(|id| cases[id].is_empty()));
    let never = report(Exchange::Junit, &found, FailOn::Never.least()).unwrap();
    assert_eq!((count(&never, "failures"), self::cases(&never)["keys_command"].as_str()), (0, "system-out"));
}

#[test]
fn what_could_not_look_has_not_passed() {
    let failed = Report::failed("redis://10.0.0.1:6379", 1, "the server asks for a password");
    let xml = report(Exchange::Junit, &failed, FailOn::Low.least()).unwrap();
    assert_eq!(cases(&xml)["diagnosis"], "error");
    assert!(xml.contains("the server asks for a password"));
    let sarif: Value = serde_json::from_str(&report(Exchange::Sarif, &failed, None).unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["invocations"][0]["executionSuccessful"], false);
    assert!(report(Exchange::Prometheus, &failed, None).unwrap().contains("\nunslow_diagnosis_ok 0\n"));
    let found = diagnose_but(&facts("keys_command"), &[]);
    assert!(report(Exchange::Prometheus, &found, None).unwrap().contains("\nunslow_diagnosis_ok 1\n"));
}

#[test]
fn words_of_a_server_stay_words() {
    let mut found = diagnose(&facts("keys_command"), &[]);
    let hostile = "]]></failure><testcase name=\"x\"/>\u{1b}[2J\u{0}\u{ffff}\"} 1\nunslow_diagnosis_ok 7";
    for finding in &mut found.findings {
        (finding.title, finding.subjects) = (hostile.into(), vec![hostile.into()]);
        finding.evidence.iter_mut().for_each(|seen| seen.value = hostile.into());
    }
    let xml = report(Exchange::Junit, &found, FailOn::Info.least()).unwrap();
    assert_eq!(cases(&xml).len(), found.looked.rules as usize);
    assert!(!xml.contains(['\u{1b}', '\u{0}', '\u{ffff}']));
    let sarif: Value = serde_json::from_str(&report(Exchange::Sarif, &found, None).unwrap()).unwrap();
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), found.findings.len());
    let metrics = report(Exchange::Prometheus, &found, None).unwrap();
    let lines = metrics.lines().filter(|line| line.starts_with("unslow_diagnosis_ok"));
    assert_eq!(lines.collect::<Vec<_>>(), ["unslow_diagnosis_ok 1"]);
}

#[test]
fn results_name_their_rule_and_servers() {
    let found = diagnose(&facts("keys_command"), &[]);
    let sarif: Value = serde_json::from_str(&report(Exchange::Sarif, &found, None).unwrap()).unwrap();
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
