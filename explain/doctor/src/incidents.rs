//! Diagnoses of one window after the other, joined to incidents: when something began, when it was over, and what came
//! again and again.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Evidence, Finding, Impact, Link, Report, Severity, Silenced, When};

/// Version of the JSON form.
pub const SCHEMA: &str = "unslow.incidents/1";
/// So many times are a habit.
const HABIT: usize = 3;
/// A rhythm is one if no pause differs by more than this share from the usual one.
const RHYTHM: f64 = 0.1;
/// Or by no more than a window, where it is longer than so many.
const FEW_WINDOWS: u64 = 4;

/// Something that cost something for a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Incident {
    /// Its number within the recording; `unslow doctor --recording DIR --incident ID` opens it.
    pub id: u32,
    /// The deployment's URL.
    pub deployment: String,
    /// Rule.
    pub rule: String,
    /// The sentence, of the window in which it was worst.
    pub title: String,
    /// The worst.
    pub severity: Severity,
    /// Whom it was about.
    pub subjects: Vec<String>,
    /// Start of the first window that shows it, unix time in ms.
    pub began_ms: u64,
    /// End of the last one.
    pub ended_ms: u64,
    /// Whether it was still there when the recording ended.
    pub lasts: bool,
    /// In how many windows it was seen.
    pub windows: u32,
    /// When it was worst: the start of that window, unix time in ms.
    pub worst_ms: u64,
    /// What it cost then.
    pub impact: Impact,
    /// Its consequences then.
    pub chain: Vec<Link>,
    /// What showed it first.
    pub evidence: Vec<Evidence>,
}

impl Incident {
    /// For how long, in ms.
    pub fn lasted_ms(&self) -> u64 {
        self.ended_ms.saturating_sub(self.began_ms)
    }
}

/// What happened in a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Incidents {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was looked at, unix time in ms.
    pub from_ms: u64,
    /// Its end.
    pub to_ms: u64,
    /// Length of each window, in seconds.
    pub window_s: f64,
    /// Windows with nothing recorded.
    pub windows_unseen: u32,
    /// The oldest first.
    pub incidents: Vec<Incident>,
    /// What came again and again.
    pub repeats: Vec<Repeats>,
    /// What is silenced.
    #[serde(default)]
    pub silenced: Vec<SilencedRule>,
}

/// A rule's findings that were not to be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SilencedRule {
    /// The deployment's URL.
    pub deployment: String,
    /// Rule.
    pub rule: String,
    /// What its silence gives as the reason.
    pub reason: String,
    /// Until when, unix time in ms.
    pub until_ms: u64,
    /// In how many windows it was found.
    pub windows: u32,
}

impl SilencedRule {
    /// Not seen so far.
    pub fn of(deployment: &str, known: &Silenced) -> SilencedRule {
        let (deployment, rule, reason) = (deployment.to_string(), known.id.clone(), known.reason.clone());
        SilencedRule { deployment, rule, reason, until_ms: known.until_ms, windows: 0 }
    }
}

/// The same rule at a steady pace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Repeats {
    /// The deployment's URL.
    pub deployment: String,
    /// Rule.
    pub rule: String,
    /// The incidents' numbers.
    pub incidents: Vec<u32>,
    /// From one to the next, in ms: the median.
    pub every_ms: u64,
    /// How far one was from its place in this rhythm at most, in ms.
    pub give_or_take_ms: u64,
}

/// What the diagnosis of a window changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// An incident that was not known before; or its cause, where only a consequence was.
    Began(Incident),
    /// One that went on and got a higher severity, or has a server that was not in it before.
    Worse(Incident),
    /// One that has not been seen for a while, or a consequence that belongs to its cause from now on.
    Over(Incident),
}

/// Joins the findings of windows, given in the order of time.
pub struct Joiner {
    deployment: String,
    /// A pause up to this long does not end an incident.
    patience_ms: u64,
    open: Vec<Incident>,
    done: Vec<Incident>,
    /// Of the incident that began last.
    last_id: u32,
    until_ms: u64,
    /// For how long each that is open was looked for and not there.
    quiet_ms: BTreeMap<u32, u64>,
}

impl Joiner {
    pub fn new(deployment: &str, patience_ms: u64) -> Joiner {
        let (open, done) = (Vec::new(), Vec::new());
        let (deployment, quiet_ms) = (deployment.to_string(), BTreeMap::new());
        Joiner { deployment, patience_ms, open, done, last_id: 0, until_ms: 0, quiet_ms }
    }

    /// Takes the diagnosis of a window. What was over before it, and what costs nothing, is no part of an incident.
    /// Returns what began, got worse and is over by it, for those who are told while it happens: an incident has the
    /// same number in each.
    pub fn window(&mut self, from_ms: u64, to_ms: u64, report: &Report) -> Vec<Turn> {
        // After a time of which nothing is known, what was open before is over.
        let follows = from_ms.saturating_sub(self.until_ms) <= self.patience_ms;
        self.until_ms = to_ms;
        let patience_ms = self.patience_ms;
        let quiet = |id: u32| self.quiet_ms.get(&id).copied().unwrap_or(0);
        let (over, open) = std::mem::take(&mut self.open).into_iter().partition(|incident| {
            let gone_ms = if follows { quiet(incident.id) } else { from_ms.saturating_sub(incident.ended_ms) };
            gone_ms > patience_ms
        });
        self.open = open;
        let over: Vec<Incident> = over;
        let mut turns: Vec<Turn> = over.iter().cloned().map(Turn::Over).collect();
        self.done.extend(over);
        let before = self.open.clone();
        let costs = |f: &&Finding| f.when != When::Past && f.severity_now() >= Severity::Low;
        for finding in report.findings.iter().filter(costs) {
            self.found(from_ms, to_ms, finding);
        }
        let quiet_now = |i: &Incident| match i.ended_ms == to_ms {
            true => 0,
            false if may_go_on(i, report) => self.quiet_ms.get(&i.id).copied().unwrap_or(0),
            false => self.quiet_ms.get(&i.id).copied().unwrap_or(0) + to_ms.saturating_sub(from_ms),
        };
        self.quiet_ms = self.open.iter().map(|i| (i.id, quiet_now(i))).collect();
        let is_gone = |i: &&Incident| self.open.iter().all(|open| open.id != i.id);
        turns.extend(before.iter().filter(is_gone).cloned().map(Turn::Over));
        turns.extend(self.open.iter().filter_map(|now| match before.iter().find(|i| i.id == now.id) {
            None => Some(Turn::Began(now.clone())),
            Some(then) if now.severity > then.severity || now.subjects.len() > then.subjects.len() => {
                Some(Turn::Worse(now.clone()))
            }
            Some(_) => None,
        }));
        turns
    }

    /// The clock was set back: what is going on has not been seen in the future.
    pub fn clock_set(&mut self, now_ms: u64) {
        for open in &mut self.open {
            open.ended_ms = open.ended_ms.min(now_ms);
            open.began_ms = open.began_ms.min(open.ended_ms);
        }
    }

    /// Those that are going on, or were a moment ago.
    pub fn open(&self) -> &[Incident] {
        &self.open
    }

    /// Forgets those that are over and were told.
    pub fn forget_over(&mut self) {
        self.done.clear();
    }

    fn found(&mut self, from_ms: u64, to_ms: u64, finding: &Finding) {
        // Two servers that each hang are two incidents, until one finding is about both.
        let is_same = |open: &&mut Incident| {
            let shares = finding.subjects.iter().any(|s| open.subjects.contains(s));
            open.rule == finding.id && (shares || finding.subjects.is_empty() || open.subjects.is_empty())
        };
        let mut same = self.open.iter_mut().filter(is_same);
        if let Some(first) = same.next() {
            same.for_each(|other| other.ended_ms = to_ms);
            return extend(first, from_ms, to_ms, finding);
        }
        let about = |incident: &Incident| {
            finding.subjects.is_empty() || finding.subjects.iter().any(|s| incident.subjects.contains(s))
        };
        // A consequence of what is known already.
        let cause = self.open.iter_mut().find(|open| open.chain.iter().any(|l| l.id == finding.id) && about(open));
        if let Some(cause) = cause {
            cause.ended_ms = to_ms;
            if finding.severity_now() > cause.severity {
                (cause.severity, cause.worst_ms) = (finding.severity_now(), from_ms);
                cause.title.clone_from(&finding.title);
                cause.impact.clone_from(&finding.impact);
            }
            return;
        }
        self.last_id += 1;
        let mut incident = Incident {
            id: self.last_id,
            deployment: self.deployment.clone(),
            rule: finding.id.clone(),
            title: finding.title.clone(),
            severity: finding.severity_now(),
            subjects: finding.subjects.clone(),
            began_ms: from_ms,
            ended_ms: to_ms,
            lasts: false,
            windows: 1,
            worst_ms: from_ms,
            impact: finding.impact.clone(),
            chain: finding.chain.clone(),
            evidence: finding.evidence.clone(),
        };
        // Its consequence was seen first.
        let is_consequence = |open: &Incident| incident.chain.iter().any(|l| l.id == open.rule) && about(open);
        if let Some(place) = self.open.iter().position(is_consequence) {
            let first = self.open.swap_remove(place);
            incident.began_ms = first.began_ms;
            incident.windows += first.windows;
        }
        self.open.push(incident);
    }

    /// All of them, the oldest first; numbered from 1 on.
    pub fn finish(mut self) -> Vec<Incident> {
        for incident in &mut self.open {
            incident.lasts = incident.ended_ms >= self.until_ms;
        }
        self.done.append(&mut self.open);
        self.done.sort_by(|a, b| (a.began_ms, &a.rule).cmp(&(b.began_ms, &b.rule)));
        for (number, incident) in (1..).zip(&mut self.done) {
            incident.id = number;
        }
        self.done
    }
}

/// Whether it is not known to be over: it is silenced, its rule could not look, or its servers do not answer.
fn may_go_on(incident: &Incident, report: &Report) -> bool {
    let about = |subjects: &[String]| subjects.iter().any(|s| incident.subjects.contains(s));
    let is_silenced = report.silenced.iter().any(|s| s.id == incident.rule && about(&s.subjects));
    let could_not = report.looked.could_not.contains(&incident.rule);
    let away = |address: &String| {
        report.deployment.nodes.iter().any(|node| node.address == *address && node.unreachable.is_some())
    };
    is_silenced || could_not || incident.subjects.iter().any(away)
}

fn extend(open: &mut Incident, from_ms: u64, to_ms: u64, finding: &Finding) {
    open.ended_ms = to_ms;
    open.windows += 1;
    let severity = finding.severity_now();
    if (severity, finding.impact.value) > (open.severity, open.impact.value) {
        open.title.clone_from(&finding.title);
        (open.severity, open.impact, open.worst_ms) = (severity, finding.impact.clone(), from_ms);
        open.chain.clone_from(&finding.chain);
    }
    for subject in &finding.subjects {
        if !open.subjects.contains(subject) {
            open.subjects.push(subject.clone());
        }
    }
}

/// What came at least three times, always after about the same pause. `window_ms` is how exactly it is known when
/// something began.
pub fn repeats(incidents: &[Incident], window_ms: u64) -> Vec<Repeats> {
    let mut by_rule: BTreeMap<(&str, &str), Vec<&Incident>> = BTreeMap::new();
    for incident in incidents {
        by_rule.entry((&incident.deployment, &incident.rule)).or_default().push(incident);
    }
    by_rule.into_values().filter_map(|all| rhythm(&all, window_ms)).collect()
}

fn rhythm(all: &[&Incident], window_ms: u64) -> Option<Repeats> {
    let begins: Vec<u64> = all.iter().map(|i| i.began_ms).collect();
    let mut pauses: Vec<u64> = begins.windows(2).map(|w| w[1].saturating_sub(w[0])).collect();
    pauses.sort_unstable();
    let every_ms = *pauses.get(pauses.len() / 2).filter(|_| all.len() >= HABIT)?;
    let off = |pause: &u64| pause.abs_diff(every_ms);
    let give_or_take_ms = pauses.iter().map(off).max()?;
    // A pause of a few windows has no rhythm that could be told.
    let exact_ms = if window_ms * FEW_WINDOWS < every_ms { window_ms } else { 0 };
    let most_ms = (every_ms as f64 * RHYTHM).max(exact_ms as f64);
    (every_ms > 0 && give_or_take_ms as f64 <= most_ms).then(|| Repeats {
        deployment: all[0].deployment.clone(),
        rule: all[0].rule.clone(),
        incidents: all.iter().map(|i| i.id).collect(),
        every_ms,
        give_or_take_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Currency;

    const MINUTE: u64 = 60_000;

    fn finding(rule: &str, subject: &str, value: f64) -> Finding {
        let mut finding = Finding::new(format!("{rule} on {subject}")).on([subject]);
        (finding.id, finding.severity) = (rule.to_string(), Severity::High);
        finding.impact = Impact { currency: Currency::Latency, value, unit: "ms".into(), text: String::new() };
        finding
    }

    fn leading_to(mut finding: Finding, rule: &str) -> Finding {
        finding.chain.push(Link { id: rule.into(), subject: "a:1".into(), at_ms: 0, text: String::new() });
        finding
    }

    /// The incidents of minutes with these findings.
    fn joined(minutes: Vec<Vec<Finding>>) -> Vec<Incident> {
        let mut joiner = Joiner::new("redis://a:1", 2 * MINUTE);
        for (minute, findings) in (0..).zip(minutes) {
            let mut report = Report::failed("redis://a:1", 0, "");
            report.findings = findings;
            joiner.window(minute * MINUTE, (minute + 1) * MINUTE, &report);
        }
        joiner.finish()
    }

    fn spans(incidents: &[Incident]) -> Vec<(&str, u64, u64, bool)> {
        incidents.iter().map(|i| (i.rule.as_str(), i.began_ms / MINUTE, i.ended_ms / MINUTE, i.lasts)).collect()
    }

    #[test]
    fn minutes_are_joined_and_a_short_pause_ends_nothing() {
        let found = |value| vec![finding("fork_stall", "a:1", value)];
        let all = joined(vec![vec![], found(3.0), found(9.0), vec![], found(5.0), vec![], vec![], vec![], found(1.0)]);
        assert_eq!(spans(&all), [("fork_stall", 1, 5, false), ("fork_stall", 8, 9, true)]);
        assert_eq!((all[0].impact.value, all[0].worst_ms, all[0].windows), (9.0, 2 * MINUTE, 3));
        assert_eq!((all[0].id, all[1].id), (1, 2));
    }

    #[test]
    fn a_consequence_belongs_to_its_cause_whichever_is_seen_first() {
        let cause = || leading_to(finding("fork_stall", "a:1", 5.0), "replica_lag");
        let effect = |subject| finding("replica_lag", subject, 2.0);
        let all = joined(vec![vec![effect("a:1")], vec![cause()], vec![effect("a:1")], vec![]]);
        assert_eq!(spans(&all), [("fork_stall", 0, 3, false)]);
        let elsewhere = joined(vec![vec![cause()], vec![effect("b:1")]]);
        assert_eq!(spans(&elsewhere), [("fork_stall", 0, 1, false), ("replica_lag", 1, 2, true)]);
    }

    #[test]
    fn each_incident_is_told_once_when_it_begins_and_once_when_it_is_over() {
        let mut joiner = Joiner::new("redis://a:1", 2 * MINUTE);
        let mut told = Vec::new();
        for (minute, value) in (0u64..).zip([1.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 4.0]) {
            let mut report = Report::failed("redis://a:1", 0, "");
            report.findings = if value > 0.0 { vec![finding("fork_stall", "a:1", value)] } else { vec![] };
            for turn in joiner.window(minute * MINUTE, (minute + 1) * MINUTE, &report) {
                told.push(match turn {
                    Turn::Began(i) => ("began", minute, i.began_ms / MINUTE),
                    Turn::Worse(i) => ("worse", minute, i.began_ms / MINUTE),
                    Turn::Over(i) => ("over", minute, i.ended_ms / MINUTE),
                });
            }
        }
        assert_eq!(told, [("began", 0, 0), ("over", 7, 4), ("began", 8, 8)]);
    }

    /// What is told of minutes with these findings: the minute, the event, the number and the rule.
    fn told(minutes: Vec<Vec<Finding>>) -> Vec<(u64, &'static str, u32, String)> {
        let mut joiner = Joiner::new("redis://a:1", 2 * MINUTE);
        let mut told = Vec::new();
        for (minute, findings) in (0..).zip(minutes) {
            let mut report = Report::failed("redis://a:1", 0, "");
            report.findings = findings;
            told.extend(joiner.window(minute * MINUTE, (minute + 1) * MINUTE, &report).into_iter().map(|turn| {
                let (event, i) = match turn {
                    Turn::Began(i) => ("began", i),
                    Turn::Worse(i) => ("worse", i),
                    Turn::Over(i) => ("over", i),
                };
                (minute, event, i.id, i.rule)
            }));
        }
        told
    }

    #[test]
    fn a_second_server_that_fails_is_told_too() {
        let hangs = |subject| finding("node_hangs", subject, 3.0);
        let both = || hangs("a:1").on(["b:1"]);
        let apart = told(vec![vec![hangs("a:1")], vec![hangs("b:1")], vec![both()], vec![], vec![], vec![], vec![]]);
        let rule = || "node_hangs".to_string();
        let begun = [(0, "began", 1, rule()), (1, "began", 2, rule()), (2, "worse", 1, rule())];
        assert_eq!(apart[..3], begun, "{apart:?}");
        assert_eq!(apart[3..], [(6, "over", 1, rule()), (6, "over", 2, rule())], "{apart:?}");
        let mut mild = hangs("a:1");
        mild.severity = Severity::Low;
        let rises = told(vec![vec![mild], vec![hangs("a:1")], vec![hangs("a:1")]]);
        assert_eq!(rises, [(0, "began", 1, rule()), (1, "worse", 1, rule())]);
    }

    #[test]
    fn what_is_silenced_or_cannot_be_seen_is_not_over() {
        let mut joiner = Joiner::new("redis://a:1", 2 * MINUTE);
        let mut turns = Vec::new();
        for minute in 0..30 {
            let mut report = Report::failed("redis://a:1", 0, "");
            match minute {
                0 | 29 => report.findings = vec![finding("replica_lag", "a:1", 2.0)],
                1..10 => {
                    let known = Silenced {
                        id: "replica_lag".into(),
                        title: String::new(),
                        severity: Severity::High,
                        subjects: vec!["a:1".into()],
                        reason: String::new(),
                        until_ms: 0,
                    };
                    report.silenced = vec![known];
                }
                _ => report.looked.could_not = vec!["replica_lag".into()],
            }
            turns.extend(joiner.window(minute * MINUTE, (minute + 1) * MINUTE, &report));
        }
        assert!(matches!(&turns[..], [Turn::Began(_)]), "{turns:?}");
        let seen = Report::failed("redis://a:1", 0, "");
        for minute in 30..34 {
            turns.extend(joiner.window(minute * MINUTE, (minute + 1) * MINUTE, &seen));
        }
        assert!(matches!(&turns[..], [Turn::Began(_), Turn::Over(_)]), "{turns:?}");
    }

    #[test]
    fn a_consequence_that_is_worse_than_its_cause_is_told() {
        let mut cause = leading_to(finding("node_timeout_margin", "a:1", 5.0), "failover_flapping");
        cause.severity = Severity::Low;
        let all = told(vec![vec![cause], vec![finding("failover_flapping", "a:1", 9.0)]]);
        assert_eq!(all.iter().map(|t| t.1).collect::<Vec<_>>(), ["began", "worse"], "{all:?}");
    }

    #[test]
    fn a_clock_that_is_set_back_ends_nothing_later_than_now() {
        let mut joiner = Joiner::new("redis://a:1", 2 * MINUTE);
        let mut report = Report::failed("redis://a:1", 0, "");
        report.findings = vec![finding("swap", "a:1", 1.0)];
        joiner.window(600 * MINUTE, 601 * MINUTE, &report);
        joiner.clock_set(10 * MINUTE);
        let quiet = Report::failed("redis://a:1", 0, "");
        let mut turns = Vec::new();
        for minute in 10..14 {
            turns.extend(joiner.window(minute * MINUTE, (minute + 1) * MINUTE, &quiet));
        }
        assert!(matches!(&turns[..], [Turn::Over(_)]), "{turns:?}");
    }

    #[test]
    fn a_consequence_that_belongs_to_its_cause_is_told_as_over() {
        let cause = || leading_to(finding("fork_stall", "a:1", 5.0), "replica_lag");
        let all = told(vec![vec![finding("replica_lag", "a:1", 2.0)], vec![cause()]]);
        let [first, second, third] = &all[..] else { panic!("{all:?}") };
        assert_eq!((first.1, second.1, third.1), ("began", "over", "began"));
        assert_eq!((&*second.3, &*third.3, second.2), ("replica_lag", "fork_stall", first.2));
    }

    #[test]
    fn what_is_over_or_costs_nothing_is_no_incident() {
        let mut past = finding("fork_stall", "a:1", 5.0);
        past.when = When::Past;
        let mut risk = finding("no_memory_limit", "a:1", 0.0);
        risk.severity = Severity::Risk;
        assert_eq!(joined(vec![vec![past, risk]]), []);
    }

    #[test]
    fn what_comes_every_night_is_told_as_such() {
        const DAY: u64 = 86_400_000;
        let at = |begins: &[u64]| {
            let mut all = joined(vec![vec![finding("fork_stall", "a:1", 1.0)]]);
            all = vec![all[0].clone(); begins.len()];
            for ((id, begin), incident) in (1..).zip(begins).zip(&mut all) {
                (incident.id, incident.began_ms) = (id, *begin);
            }
            repeats(&all, MINUTE)
        };
        let nights = at(&[MINUTE, DAY + 2 * MINUTE, 2 * DAY, 3 * DAY + MINUTE]);
        let [nights] = &nights[..] else { panic!("{nights:?}") };
        assert!(nights.every_ms.abs_diff(DAY) <= 2 * MINUTE && nights.give_or_take_ms <= 4 * MINUTE, "{nights:?}");
        assert_eq!(nights.incidents, [1, 2, 3, 4]);
        assert_eq!(at(&[0, DAY]), [], "twice is no habit");
        let often = at(&[0, 5, 11, 16, 21].map(|minute| minute * MINUTE));
        assert_eq!((often[0].every_ms, often[0].give_or_take_ms), (5 * MINUTE, MINUTE), "to within a window");
        assert_eq!(at(&[0, 2, 5, 7].map(|minute| minute * MINUTE)), [], "of two or three windows");
        assert_eq!(at(&[0, DAY, 5 * DAY, 6 * DAY]), [], "not every night");
    }
}
