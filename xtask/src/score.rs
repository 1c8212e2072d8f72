//! `cargo xtask score`: the diagnosis benchmark of `bench/diagnosis`, judged.
//!
//! Each case is a facts file and the truth about it (`cases.jsonl`), both written down when the case was made. An
//! answer is a ranked list of causes. Without arguments the answers are this tree's own; `--answers FILE` judges
//! another tool's, a JSON line for each case: `{"case": "keys_by_redis_py", "causes": ["keys_command"], "risks": []}`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use unslow_doctor::{Report, Severity, diagnose};
use unslow_facts::Facts;

/// Causes that are true symptoms of others: named alone, they say that something is wrong and not what.
const GENERIC: &[&str] = &["main_thread_saturated", "not_your_redis", "error_flood", "slow_command", "kernel_bound"];
/// Risks of the machine that the cases were recorded on, and of servers as they are installed: true of all of them.
const EVERYWHERE: &[&str] =
    &["overcommit", "transparent_huge_pages", "blind_instruments", "no_auth", "masters_share_host"];
/// Right whenever the machine had other work while a case was recorded.
const NEIGHBOURS: &[&str] = &["noisy_neighbour", "hypervisor_steal"];

/// What is true of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Something is wrong: the first of `truth` is the cause.
    Fault,
    /// Nothing is; `truth` lists the risks that are there.
    Healthy,
}

/// A line of `cases.jsonl`.
#[derive(Clone, Debug, Deserialize)]
struct Case {
    case: String,
    kind: Kind,
    /// The group that it is counted in.
    family: String,
    truth: Vec<String>,
    /// Causes that its facts invite and that would be wrong, where it was made for that.
    #[serde(default)]
    invites: Vec<String>,
}

/// What a tool said of a case.
#[derive(Clone, Debug, Default, Deserialize)]
struct Answer {
    case: String,
    /// Causes, the most important first.
    causes: Vec<String>,
    /// What could hurt and does not now.
    #[serde(default)]
    risks: Vec<String>,
}

/// How good an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The cause is the first that is named.
    First,
    /// The cause is named, and not first.
    Named,
    /// Only a symptom is named.
    Generic,
    /// Nothing is named.
    Missed,
    /// Something is named that is not the cause.
    Wrong,
    /// A healthy case is left alone.
    LeftAlone,
    /// A healthy case is given a risk that is not there.
    FalseRisk,
    /// A healthy case is given a cause.
    FalseAlarm,
}

impl Outcome {
    const ALL: [(Outcome, &str); 8] = [
        (Outcome::First, "first"),
        (Outcome::Named, "named"),
        (Outcome::Generic, "generic"),
        (Outcome::Missed, "missed"),
        (Outcome::Wrong, "wrong"),
        (Outcome::LeftAlone, "left alone"),
        (Outcome::FalseRisk, "false risk"),
        (Outcome::FalseAlarm, "false alarm"),
    ];

    fn words(self) -> &'static str {
        Outcome::ALL.iter().find(|(outcome, _)| *outcome == self).map_or("", |(_, words)| words)
    }

    fn is_good(self) -> bool {
        matches!(self, Outcome::First | Outcome::LeftAlone)
    }
}

fn judge(case: &Case, answer: &Answer) -> Outcome {
    let neighbour = |id: &String| NEIGHBOURS.contains(&id.as_str()) && !case.truth.contains(id);
    let causes: Vec<&String> = answer.causes.iter().filter(|id| !neighbour(id)).collect();
    match case.kind {
        Kind::Fault => {
            let truth = case.truth.first();
            // Risks rank below causes; a case whose truth is a risk is first where no cause stands above it.
            let ranked: Vec<&String> = causes.iter().copied().chain(&answer.risks).collect();
            let relevant = |id: &&&String| Some(**id) == truth || !EVERYWHERE.contains(&id.as_str());
            match ranked.iter().find(relevant) {
                None => Outcome::Missed,
                Some(first) if Some(*first) == truth => Outcome::First,
                Some(_) if ranked.iter().any(|id| Some(*id) == truth) => Outcome::Named,
                Some(_) if causes.is_empty() => Outcome::Missed,
                Some(_) if causes.iter().all(|id| GENERIC.contains(&id.as_str())) => Outcome::Generic,
                Some(_) => Outcome::Wrong,
            }
        }
        Kind::Healthy if !causes.is_empty() => Outcome::FalseAlarm,
        Kind::Healthy => {
            let known = |id: &String| EVERYWHERE.contains(&id.as_str()) || case.truth.contains(id) || neighbour(id);
            if answer.risks.iter().all(known) { Outcome::LeftAlone } else { Outcome::FalseRisk }
        }
    }
}

/// What our doctor says of recorded facts.
fn own(case: &Case, report: &Report) -> Answer {
    let named = |wanted: fn(Severity) -> bool| {
        report.findings.iter().filter(|f| wanted(f.severity)).map(|f| f.id.clone()).collect::<Vec<_>>()
    };
    let mut causes = named(|s| s > Severity::Risk);
    // What stands in a chain is named too, behind what stands at its head.
    let chained = report.findings.iter().filter(|f| f.severity > Severity::Risk).flat_map(|f| &f.chain);
    causes.extend(chained.map(|link| link.id.clone()));
    Answer { case: case.case.clone(), causes, risks: named(|s| s == Severity::Risk) }
}

fn read_lines<T: for<'a> Deserialize<'a>>(path: &Path) -> anyhow::Result<Vec<T>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| serde_json::from_str(line).with_context(|| format!("{}, line {}", path.display(), i + 1)))
        .collect()
}

/// Answers by case; every case has one, and there is none of a case that does not exist.
fn answers(path: &Path, cases: &[Case]) -> anyhow::Result<BTreeMap<String, Answer>> {
    let known: BTreeSet<&str> = cases.iter().map(|c| c.case.as_str()).collect();
    let mut all = BTreeMap::new();
    for answer in read_lines::<Answer>(path)? {
        if !known.contains(answer.case.as_str()) {
            bail!("{}: no case is named {:?}", path.display(), answer.case);
        }
        if let Some(twice) = all.insert(answer.case.clone(), answer) {
            bail!("{}: {:?} is answered twice", path.display(), twice.case);
        }
    }
    Ok(all)
}

/// The table and what it comes to.
fn table(judged: &[(&Case, Answer, Outcome)]) -> String {
    let mut families: BTreeMap<&str, BTreeMap<Outcome, u32>> = BTreeMap::new();
    let mut sum: BTreeMap<Outcome, u32> = BTreeMap::new();
    for (case, _, outcome) in judged {
        *families.entry(&case.family).or_default().entry(*outcome).or_default() += 1;
        *sum.entry(*outcome).or_default() += 1;
    }
    let heads: Vec<&str> = Outcome::ALL.iter().map(|(_, words)| *words).collect();
    let mut text = format!("| family | {} |\n|---{}|\n", heads.join(" | "), "|---".repeat(heads.len()));
    let row = |name: &str, counts: &BTreeMap<Outcome, u32>| {
        let cells = Outcome::ALL.iter().map(|(outcome, _)| counts.get(outcome).map_or(String::new(), u32::to_string));
        format!("| {name} | {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    for (family, counts) in &families {
        text += &row(family, counts);
    }
    text += &row("all", &sum);
    let bad: Vec<_> = judged.iter().filter(|(_, _, outcome)| !outcome.is_good()).collect();
    if !bad.is_empty() {
        text += "\n| case | truth | answer | outcome |\n|---|---|---|---|\n";
    }
    for (case, answer, outcome) in bad {
        let said: Vec<&str> = answer.causes.iter().chain(&answer.risks).map(String::as_str).take(4).collect();
        let fallen = answer.causes.first().is_some_and(|id| case.invites.contains(id));
        let outcome = format!("{}{}", outcome.words(), if fallen { ", into the trap" } else { "" });
        text += &format!("| {} | {} | {} | {outcome} |\n", case.case, case.truth.join(", "), said.join(", "));
    }
    let count = |outcome: Outcome| sum.get(&outcome).copied().unwrap_or(0);
    let faults = judged.iter().filter(|(case, ..)| case.kind == Kind::Fault).count();
    let healthy = judged.len() - faults;
    let named = count(Outcome::First) + count(Outcome::Named);
    text += &format!(
        "\nCause first in {} of {faults} faults, named in {named}; {} of {healthy} healthy deployments left alone.\n",
        count(Outcome::First),
        count(Outcome::LeftAlone)
    );
    text
}

/// Judges the answers and prints the table.
pub fn main(root: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let directory = root.join("bench/diagnosis");
    let cases: Vec<Case> = read_lines(&directory.join("cases.jsonl"))?;
    let given = match arguments {
        [] => None,
        [flag, file] if flag == "--answers" => Some(answers(Path::new(file), &cases)?),
        _ => bail!("cargo xtask score [--answers FILE]"),
    };
    let mut judged = Vec::new();
    for case in &cases {
        let answer = match &given {
            // What was not answered was not found.
            Some(given) => given.get(&case.case).cloned().unwrap_or_default(),
            None => {
                let path = directory.join(format!("facts/{}.json", case.case));
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                let facts = Facts::from_json(&text).with_context(|| path.display().to_string())?;
                own(case, &diagnose(&facts, &[]))
            }
        };
        let outcome = judge(case, &answer);
        judged.push((case, answer, outcome));
    }
    print!("{}", table(&judged));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    fn outcome(kind: Kind, truth: &str, causes: &str, risks: &str) -> Outcome {
        let case = Case { case: "c".into(), kind, family: "f".into(), truth: words(truth), invites: Vec::new() };
        judge(&case, &Answer { case: "c".into(), causes: words(causes), risks: words(risks) })
    }

    #[test]
    fn a_fault_is_found_first_or_later_or_as_a_symptom_or_not_at_all() {
        let of = |causes: &str, risks: &str| outcome(Kind::Fault, "keys_command", causes, risks);
        assert_eq!(of("keys_command big_key", ""), Outcome::First);
        assert_eq!(of("big_key keys_command", ""), Outcome::Named);
        assert_eq!(of("main_thread_saturated", ""), Outcome::Generic);
        assert_eq!(of("big_key main_thread_saturated", ""), Outcome::Wrong);
        assert_eq!(of("", "config_drift"), Outcome::Missed);
        assert_eq!(of("", ""), Outcome::Missed);
    }

    #[test]
    fn what_is_true_of_every_case_is_no_answer_unless_it_is_the_truth() {
        assert_eq!(outcome(Kind::Fault, "config_drift", "", "overcommit config_drift"), Outcome::First);
        assert_eq!(outcome(Kind::Fault, "no_auth", "", "overcommit no_auth"), Outcome::First);
        assert_eq!(outcome(Kind::Fault, "config_drift", "", "overcommit"), Outcome::Missed);
        assert_eq!(outcome(Kind::Fault, "config_drift", "noisy_neighbour", "config_drift"), Outcome::First);
    }

    #[test]
    fn a_healthy_case_has_no_cause_and_no_risk_but_its_own() {
        let of = |causes: &str, risks: &str| outcome(Kind::Healthy, "master_without_replica", causes, risks);
        assert_eq!(of("", "overcommit master_without_replica"), Outcome::LeftAlone);
        assert_eq!(of("", "config_drift"), Outcome::FalseRisk);
        assert_eq!(of("big_key", ""), Outcome::FalseAlarm);
    }
}
