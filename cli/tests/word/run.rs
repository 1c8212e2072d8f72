//! One run of the released doctor: its JSON, its exit status, its stderr.

use std::fmt;
use std::process::Output;

use serde_json::Value;
use unslow_testkit::until;

use crate::common::{stderr, stdout, unseen, unslow};

/// From the least to the worst.
const SEVERITIES: [&str; 6] = ["info", "risk", "low", "medium", "high", "critical"];
const VERDICTS: [&str; 7] = ["causes", "risks", "none_found", "idle", "blind", "unreachable", "no_server"];

pub struct Run {
    pub json: Value,
    pub status: Option<i32>,
    pub stderr: String,
}

/// A diagnosis as JSON, with a window of 1 s and a timeout of 10 s unless `more` has others. The exit status must
/// follow from the verdict unless `more` has a `--fail-on`.
#[track_caller]
pub fn doctor(url: &str, more: &[&str]) -> Run {
    let mut arguments = vec!["doctor", url, "--format", "json", "--quiet"];
    for (flag, value) in [("--window", "1s"), ("--timeout", "10")] {
        if !more.contains(&flag) {
            arguments.extend([flag, value]);
        }
    }
    arguments.extend(more);
    let run = Run::of(&unslow(&arguments));
    if !more.contains(&"--fail-on") {
        run.assert_status_fits();
    }
    run
}

/// The same, repeated until no question was left out for lack of time, as the expensive ones are on a busy machine.
#[track_caller]
pub fn settled(url: &str, more: &[&str]) -> Run {
    let mut last = None;
    until("a look that asks every question", || {
        let run = doctor(url, more);
        let whole = !run.lacks("time");
        last = Some(run);
        whole
    });
    last.expect("it looked at least once")
}

/// The diagnosis of a facts file.
#[track_caller]
pub fn doctor_from(path: &str) -> Run {
    let run = Run::of(&unslow(&["doctor", "--from", path, "--format", "json", "--quiet"]));
    run.assert_status_fits();
    run
}

impl Run {
    /// However the run ended, it must have printed one JSON document with its schema and a verdict.
    #[track_caller]
    pub fn of(output: &Output) -> Run {
        Run::read(&output.stdout, output.status.code(), stderr(output))
            .unwrap_or_else(|e| panic!("{e}: {:?}; stderr: {}", stdout(output), stderr(output)))
    }

    pub fn read(document: &[u8], status: Option<i32>, stderr: String) -> Result<Run, String> {
        let json: Value = serde_json::from_slice(document).map_err(|e| format!("no JSON on stdout ({e})"))?;
        if json["schema"] != "unslow.doctor/1" {
            return Err(format!("the schema is {}", json["schema"]));
        }
        let run = Run { json, status, stderr };
        if VERDICTS.contains(&run.verdict()) { Ok(run) } else { Err(format!("the verdict is {:?}", run.verdict())) }
    }

    /// 1 for causes, 2 where nothing could be concluded, 0 for the rest.
    #[track_caller]
    pub fn assert_status_fits(&self) {
        let expected = match self.verdict() {
            "causes" => 1,
            "blind" | "unreachable" | "no_server" => 2,
            _ => 0,
        };
        assert_eq!(self.status, Some(expected), "{self}");
    }

    pub fn verdict(&self) -> &str {
        self.json["verdict"].as_str().unwrap_or_default()
    }

    /// Why the diagnosis failed as a whole; empty if it did not.
    pub fn error(&self) -> &str {
        self.json["error"].as_str().unwrap_or_default()
    }

    pub fn findings(&self) -> &[Value] {
        self.json["findings"].as_array().map_or(&[], Vec::as_slice)
    }

    pub fn finding(&self, id: &str) -> Option<&Value> {
        self.findings().iter().find(|f| f["id"] == id)
    }

    pub fn first(&self) -> &str {
        self.findings().first().and_then(|f| f["id"].as_str()).unwrap_or("nothing")
    }

    /// Whether this rule found something, as a finding or as a consequence in another finding's chain.
    pub fn reports(&self, id: &str) -> bool {
        let in_chain = |f: &Value| f["chain"].as_array().is_some_and(|all| all.iter().any(|link| link["id"] == id));
        self.findings().iter().any(|f| f["id"] == id || in_chain(f))
    }

    /// Ids of the findings that cost something.
    pub fn above_risk(&self) -> Vec<&str> {
        let cost = |f: &&Value| SEVERITIES.iter().position(|s| f["severity"] == *s).expect("a severity") > 1;
        self.findings().iter().filter(cost).filter_map(|f| f["id"].as_str()).collect()
    }

    /// Whether something could not be looked at for this reason: `rights`, `time` and so on.
    pub fn lacks(&self, lack: &str) -> bool {
        self.json["cannot_see"].as_array().is_some_and(|all| all.iter().any(|c| c["lack"] == lack))
    }

    /// The answer of the one rule that `--only` named.
    #[track_caller]
    pub fn answer(&self) -> &str {
        let only = self.json["only"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(only.len(), 1, "one rule was asked for: {self}");
        only[0]["answer"].as_str().unwrap_or_default()
    }

    /// The first finding is one of these; it is critical, happening now, about this address, and has a price and a
    /// remedy.
    #[track_caller]
    pub fn assert_critical(&self, expected: &[&str], subject: &str) {
        assert_eq!((self.verdict(), self.status), ("causes", Some(1)), "{self}");
        assert!(expected.contains(&self.first()), "{expected:?} should come first: {self}");
        let first = &self.findings()[0];
        assert_eq!((&first["severity"], &first["when"]), (&"critical".into(), &"now".into()), "{self}");
        let subjects = first["subjects"].as_array().cloned().unwrap_or_default();
        assert!(subjects.contains(&subject.into()), "{subject} is not among {subjects:?}");
        assert!(!first["impact"]["text"].as_str().unwrap_or_default().is_empty(), "no impact: {first}");
        assert!(first["remedies"].as_array().is_some_and(|all| !all.is_empty()), "no remedy: {first}");
    }
}

/// For the messages of failed tests.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verdict {}, exit status {:?}, error {:?}", self.verdict(), self.status, self.error())?;
        for finding in self.findings() {
            let word = |field: &str| finding[field].as_str().unwrap_or("?").to_string();
            let (id, title) = (word("id"), word("title"));
            write!(f, "\n  {id} ({}, {}, {}): {title}", word("severity"), word("confidence"), word("when"))?;
        }
        write!(
            f,
            "\n  only: {}\n  looked: {}\n  unseen: {:?}",
            self.json["only"],
            self.json["looked"],
            unseen(&self.json)
        )?;
        write!(f, "\n  stderr: {}", self.stderr)
    }
}
