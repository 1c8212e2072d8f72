//! On recorded facts: what fits a screen, what stands where, what is never said.

use unslow_doctor::{Affected, Conclusion, diagnose};
use unslow_facts::{ClientError, ClientErrorKind, Facts, Gap, Multiplexer, Seen, ThreadPool};

use super::*;

fn facts(name: &str) -> Facts {
    let path = format!("{}/../explain/doctor/tests/facts/{name}.json", env!("CARGO_MANIFEST_DIR"));
    Facts::from_json(&std::fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn all_recorded() -> Vec<String> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../explain/doctor/tests/facts");
    let names = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter_map(|n| n.strip_suffix(".json").map(String::from)).collect();
    names.sort();
    assert!(names.len() > 40);
    names
}

/// As a terminal shows it, without colours.
fn shown(report: &Report, verbose: bool) -> String {
    anstream::adapter::strip_str(&on_screen(report, verbose, 80)).to_string()
}

/// What is copied, and words that cannot be broken, may be wider than the terminal.
fn may_be_wide(report: &Report, line: &str) -> bool {
    let mut commands = report.findings.iter().flat_map(|f| &f.remedies).flat_map(|r| &r.commands);
    line.split(' ').any(|word| word.len() > 50) || commands.any(|command| command.trim() == line.trim())
}

#[test]
fn every_recorded_report_fits_a_screen_and_ends_with_its_verdict() {
    for name in all_recorded() {
        let report = diagnose(&facts(&name), &[]);
        let text = shown(&report, false);
        assert!(rows(&text, 80) < 24, "{name} takes {} lines:\n{text}", rows(&text, 80));
        for line in text.lines() {
            assert!(display_width(line) <= 80 || may_be_wide(&report, line), "{name}: {line}");
        }
        let last = text.rsplit("\n\n").next().unwrap().trim_end().replace('\n', " ");
        assert_eq!(last, wrap(&closing(&report), 80, usize::MAX).join(" "), "{name}:\n{text}");
        // Nothing is lost: -v has what was cut or counted.
        let whole = shown(&report, true);
        for finding in &report.findings {
            assert!(whole.contains(&finding.id), "{name}: {} is missing:\n{whole}", finding.id);
        }
        assert!(!whole.contains("risk: ;"), "{name}:\n{whole}");
    }
}

#[test]
fn the_cause_stands_first_in_full_and_last_as_a_sentence() {
    let report = diagnose(&facts("keys_command"), &[]);
    let text = shown(&report, false);
    assert!(text.contains("causes  ") && text.contains(" 1  keys_command  "), "{text}");
    let (last, first) = (text.trim_end().lines().next_back().unwrap(), &report.findings[0]);
    assert!(closing(&report).ends_with(&format!("{}.", first.title)) && closing(&report).contains(last), "{text}");
    assert!(text.contains(&format!("ruled out: {} causes", report.ruled_out.len())), "{text}");
    assert!(text.contains(severity_words(first)) && text.contains("certainty"), "{text}");
    // Arithmetic is for -v.
    let formula = &first.gain.formula;
    if !formula.is_empty() {
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            !flat(&text).contains(&flat(formula)) && flat(&shown(&report, true)).contains(&flat(formula)),
            "{formula}: {text}"
        );
    }
}

#[test]
fn what_is_over_never_stands_above_what_costs_now() {
    let mut report = diagnose(&facts("keys_command"), &[]);
    let mut past = report.findings[0].clone();
    (past.id, past.title, past.severity) =
        ("failover_flapping".into(), "a master was voted out".into(), Severity::Critical);
    (past.when, past.since) = (When::Past, Some(report.at_ms - 12 * 60_000));
    report.findings.insert(0, past);
    let text = anstream::adapter::strip_str(&Page::new(&report, 80, Some(LINES)).whole()).to_string();
    assert!(
        text.contains(&format!("    {:<10} 12 min ago: failover_flapping: a master was voted out", "over")),
        "{text}"
    );
    let (cause, over) = (text.find(" 1  keys_command").unwrap(), text.find("12 min ago").unwrap());
    assert!(cause < over && closing(&report).contains("KEYS"), "{text}");
    // Alone it is no cause.
    report.findings.truncate(1);
    report.verdict = Conclusion::Risks;
    assert_eq!(closing(&report), "Nothing that was looked for explains slowness in this window.");
    assert!(verdict(&report).2.contains("1 event that is over"), "{}", verdict(&report).2);
    assert!(!shown(&report, false).contains("requests are being lost"));
}

#[test]
fn nothing_is_said_to_be_lost_where_no_client_was_seen() {
    let mut report = diagnose(&facts("node_hangs"), &[]);
    let (ahead, lost) =
        ("CRITICAL: the next client to connect would wait or fail", "CRITICAL: requests are being lost");
    for (affected, expected, other) in [(Affected::NextClient, ahead, lost), (Affected::Requests, lost, ahead)] {
        (report.findings[0].severity, report.findings[0].affected) = (Severity::Critical, affected);
        let text = shown(&report, false);
        assert!(text.contains(expected) && !text.contains(other), "{affected:?}:\n{text}");
    }
}

/// A client's message and nothing else: its thread pool was exhausted, and replies waited.
fn of_a_message() -> Report {
    let worker = Some(ThreadPool { busy: 600, min: 6, max: 32_767 });
    let error = ClientError {
        kind: ClientErrorKind::Timeout,
        count: 3,
        multiplexer: Some(Multiplexer { worker, unread_bytes: Some(2256), ..Multiplexer::default() }),
        ..ClientError::default()
    };
    diagnose(&Facts { client_errors: vec![error], ..Facts::of_nothing("") }, &[])
}

#[test]
fn no_line_of_a_report_without_a_server_ends_in_a_blank() {
    for verbose in [false, true] {
        let text = shown(&of_a_message(), verbose);
        assert_eq!(text.lines().next(), Some("no server, messages and logs alone"), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text:?}");
    }
}

#[test]
fn what_is_worse_than_a_risk_and_cannot_be_counted_is_not_called_a_risk() {
    let report = of_a_message();
    let first = &report.findings[0];
    assert_eq!((first.id.as_str(), first.severity), ("client_thread_pool", Severity::Medium));
    let text = shown(&report, false);
    assert!(text.contains("MEDIUM: requests failed when the message was written"), "{text}");
    assert!(text.contains("[not counted]") && !text.contains("[risk]"), "{text}");
    // A risk is one.
    let mut risk = report;
    risk.findings[0].severity = Severity::Risk;
    assert!(shown(&risk, false).contains("[risk]"), "{}", shown(&risk, false));
}

#[test]
fn ok_is_said_for_nothing_found_alone() {
    let mut report = diagnose(&facts("keys_command"), &[]);
    report.findings.clear();
    for (conclusion, word) in [
        (Conclusion::Causes, "causes"),
        (Conclusion::NoServer, "no server"),
        (Conclusion::Unreachable, "unreachable"),
        (Conclusion::Blind, "blind"),
        (Conclusion::Idle, "idle"),
        (Conclusion::Risks, "risks"),
        (Conclusion::NoneFound, "ok"),
    ] {
        report.verdict = conclusion;
        let text = shown(&report, false);
        assert_eq!(text.lines().any(|l| l.starts_with("ok  ")), conclusion == Conclusion::NoneFound, "{text}");
        assert!(text.lines().any(|l| l.starts_with(&format!("{word}  "))), "{text}");
        let explains = closing(&report).starts_with("Nothing that was looked for");
        assert_eq!(
            explains,
            matches!(conclusion, Conclusion::NoneFound | Conclusion::Risks | Conclusion::Causes),
            "{conclusion:?}"
        );
    }
}

#[test]
fn the_head_says_how_many_rules_could_look_and_what_it_looks_through() {
    let mut blind = facts("keys_command");
    let denied = || Gap::new(Lack::Rights, "SLOWLOG GET is denied to this user", "ACL SETUSER <user> +slowlog|get");
    for node in &mut blind.nodes {
        (node.slowlog, node.config, node.clients) = (Seen::No(denied()), Seen::No(denied()), Seen::No(denied()));
    }
    (blind.cut_short, blind.through) = (true, Some("twemproxy".into()));
    let mut report = diagnose(&blind, &[]);
    let text = shown(&report, false).replace('\n', " ");
    let looked = &report.looked;
    assert!(!looked.could_not.is_empty());
    assert!(
        text.contains(&format!("{} rules could look; {} could not look", looked.could, looked.could_not.len())),
        "{text}"
    );
    assert!(text.contains("--print-acl"), "{text}");
    assert!(text.contains(&format!("cut short after {} s", count(blind.window_s))), "{text}");
    assert!(text.contains("through  twemproxy: the servers behind it were not seen"), "{text}");
    (report.verdict, report.findings) = (Conclusion::Blind, Vec::new());
    let text = shown(&report, false).replace('\n', " ");
    assert!(text.contains(&format!(
        "blind  {} of {} rules could not look: this user lacks",
        looked.could_not.len(),
        looked.rules
    )));
    assert!(!text.contains("ok  "), "{text}");
}

#[test]
fn only_is_answered_in_a_line_for_each_rule() {
    let only = |facts: &Facts, rules: &[&str]| {
        let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
        shown(&diagnose(facts, &rules), false)
    };
    let mut facts = facts("keys_command");
    let text = only(&facts, &["keys_command", "out_of_memory", "open_slots"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let line = |id: &str| *lines.iter().find(|l| l.starts_with(id)).unwrap();
    assert!(line("keys_command").starts_with("keys_command: still there: "), "{text}");
    assert!(line("out_of_memory").starts_with("out_of_memory: not there now (measured: "), "{text}");
    assert_eq!(line("open_slots"), "open_slots: does not apply here");
    // What is only worth knowing was never a fault.
    let mut known = diagnose(&facts, &["keys_command".to_string()]);
    known.findings[0].severity = Severity::Info;
    let text = shown(&known, false);
    assert!(text.starts_with(&format!("keys_command: holds: {}", known.only[0].text)), "{text}");
    for node in &mut facts.nodes {
        node.clients =
            Seen::No(Gap::new(Lack::Rights, "CLIENT LIST is denied to this user", "ACL SETUSER <user> +client|list"));
    }
    let text = only(&facts, &["monitor_attached"]);
    assert!(text.starts_with("monitor_attached: could not look: ") && text.contains("+client|list"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn words_of_a_server_cannot_move_the_cursor() {
    let mut report = diagnose(&facts("keys_command"), &[]);
    for finding in &mut report.findings {
        finding.title = "\u{1b}[2Jx\u{9b}31my\rz".into();
        for remedy in &mut finding.remedies {
            remedy.commands = vec!["redis-cli \u{1b}[31m".into()];
        }
    }
    report.through = Some("a\u{1b}]0;b\u{7}".into());
    report.ruled_out.push("\u{1b}c".into());
    for verbose in [false, true] {
        let text = on_screen(&report, verbose, 80);
        // What is left are our own colours.
        for rest in text.split('\u{1b}').skip(1) {
            assert!(
                rest.starts_with('[')
                    && rest[1..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'),
                "{rest}"
            );
        }
        assert!(!text.contains(['\u{9b}', '\r', '\u{7}']), "{text:?}");
    }
    assert_eq!(clean_lines("a\u{1b}[2J\nb\r\n\u{9b}c\t"), "a [2J\nb \n c ");
}

#[test]
fn reports_of_earlier_versions_are_read() {
    let mut old = serde_json::to_value(diagnose(&facts("keys_command"), &[])).unwrap();
    let fields = old.as_object_mut().unwrap();
    for new in ["verdict", "error", "looked", "only", "cut_short", "through"] {
        assert!(fields.remove(new).is_some(), "{new}");
    }
    for finding in fields["findings"].as_array_mut().unwrap() {
        finding.as_object_mut().unwrap().retain(|name, _| !["when", "since"].contains(&name.as_str()));
    }
    for gap in fields["cannot_see"].as_array_mut().unwrap() {
        gap.as_object_mut().unwrap().remove("lack");
    }
    let read: Report = serde_json::from_value(old).unwrap();
    assert_eq!(read.findings[0].id, "keys_command");
    assert!(!shown(&read, false).is_empty());
}
