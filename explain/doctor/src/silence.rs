//! Findings that are known: not told until a given time, and never left out without a word.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Finding, Severity};

/// What is not to be told, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    /// Rule; `None` is every rule.
    pub rule: Option<String>,
    /// URL of a deployment; `None` is every one.
    pub deployment: Option<String>,
    /// Servers as findings name them, `host:port`; empty is every one.
    pub servers: Vec<String>,
    /// Why, for those who read a report.
    pub reason: String,
    /// From this time on, unix time in ms.
    pub from_ms: u64,
    /// And no longer than until then, unix time in ms.
    pub until_ms: u64,
}

/// A finding that was not told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Silenced {
    /// Rule.
    pub id: String,
    /// The sentence.
    pub title: String,
    /// How bad it is.
    pub severity: Severity,
    /// Whom it is about.
    pub subjects: Vec<String>,
    /// Why it was not told.
    pub reason: String,
    /// Until when it is not, unix time in ms.
    pub until_ms: u64,
}

impl Silence {
    fn holds(&self, finding: &Finding, deployment: &str, at_ms: u64) -> bool {
        let is_rule = self.rule.as_ref().is_none_or(|rule| *rule == finding.id);
        let is_here = self.deployment.as_ref().is_none_or(|url| url == deployment);
        is_rule && is_here && (self.from_ms..self.until_ms).contains(&at_ms)
    }

    fn covers(&self, subject: &str) -> bool {
        self.servers.is_empty() || self.servers.iter().any(|server| server == subject)
    }
}

/// Takes out of the findings of a moment what is silenced. One that is about a server more than that stays.
pub fn take_silenced(findings: &mut Vec<Finding>, silences: &[Silence], deployment: &str, at_ms: u64) -> Vec<Silenced> {
    let mut silenced = Vec::new();
    findings.retain(|finding| {
        let holding: Vec<&Silence> = silences.iter().filter(|s| s.holds(finding, deployment, at_ms)).collect();
        let covered = |subject: &String| holding.iter().any(|silence| silence.covers(subject));
        let by = match &finding.subjects[..] {
            [] => holding.iter().find(|silence| silence.servers.is_empty()),
            subjects if subjects.iter().all(covered) => {
                holding.iter().max_by_key(|silence| silence.covers(&subjects[0]))
            }
            _ => None,
        };
        let Some(silence) = by else { return true };
        silenced.push(Silenced {
            id: finding.id.clone(),
            title: finding.title.clone(),
            severity: finding.severity_now(),
            subjects: finding.subjects.clone(),
            reason: silence.reason.clone(),
            until_ms: silence.until_ms,
        });
        false
    });
    silenced
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: &str, subjects: &[&str]) -> Finding {
        let finding = Finding::new(format!("{rule} holds")).on(subjects.iter().copied());
        Finding { id: rule.into(), severity: Severity::High, ..finding }
    }

    fn silence(rule: &str, servers: &[&str]) -> Silence {
        Silence {
            rule: (!rule.is_empty()).then(|| rule.into()),
            servers: servers.iter().map(ToString::to_string).collect(),
            reason: "known".into(),
            from_ms: 100,
            until_ms: 200,
            ..Silence::default()
        }
    }

    /// The rules that are still told.
    fn told(silences: &[Silence], at_ms: u64) -> Vec<String> {
        let mut findings = vec![found("swap", &["a:1"]), found("steal", &["a:1", "b:1"]), found("no_majority", &[])];
        let silenced = take_silenced(&mut findings, silences, "redis://a:1", at_ms);
        assert_eq!(findings.len() + silenced.len(), 3, "nothing is left out without a word");
        findings.into_iter().map(|f| f.id).collect()
    }

    #[test]
    fn a_silence_holds_for_its_rule_its_servers_and_its_time() {
        let all = ["swap", "steal", "no_majority"];
        assert_eq!(told(&[], 150), all);
        assert_eq!(told(&[silence("swap", &[])], 150), all[1..]);
        assert_eq!(
            (told(&[silence("swap", &[])], 99), told(&[silence("swap", &[])], 200)),
            (all.map(String::from).into(), all.map(String::from).into())
        );
        assert_eq!(told(&[silence("", &["a:1"])], 150), all[1..], "the second is about another server too");
        assert_eq!(told(&[silence("", &["a:1"]), silence("steal", &["b:1"])], 150), all[2..]);
        assert_eq!(told(&[silence("", &[])], 150), [""; 0]);
        let elsewhere = Silence { deployment: Some("redis://z:1".into()), ..silence("", &[]) };
        assert_eq!(told(&[elsewhere], 150), all);
    }
}
