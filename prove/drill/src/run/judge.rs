//! What a run comes to: figures of its history, and each expectation of the drill.

use std::collections::BTreeSet;

use unslow_units::{time, time_us};

use super::interrupted;
use super::outcome::Figures;
use super::time_line::Played;
use crate::check::availability::windows;
use crate::check::exclusion::locks;
use crate::check::linearizable::{self, Answer};
use crate::check::stale_reads::reads;
use crate::check::{Check, CheckId, Verdict};
use crate::history::{History, Model, Op};
use crate::observe::{Event, State, What, Who};
use crate::spec::{Kind, Plan};

/// What was seen of a run whose fault or load is in doubt is no failure, unless the histories themselves show it.
pub fn doubt(checks: &mut [Check]) {
    use CheckId::{DoubleHolders, Fault, Linearizable, Load, Redundant};
    let is_in_doubt = |c: &Check| matches!(c.name, Load | Fault) && c.verdict == Verdict::Unknown;
    if checks.iter().any(is_in_doubt) {
        let is_shown = |c: &Check| matches!(c.name, DoubleHolders | Linearizable | Redundant);
        for check in checks.iter_mut().filter(|c| c.verdict == Verdict::Failed && !is_shown(c)) {
            check.verdict = Verdict::Unknown;
        }
    }
}

/// When, from `from` on, a server became master that was a replica.
pub fn promoted(events: &[Event], from: u64) -> Option<u64> {
    let mut replicas: BTreeSet<&str> = BTreeSet::new();
    for event in events {
        let (Who::Server(name), What::Is(state)) = (&event.who, &event.what) else { continue };
        match state {
            State::Master if replicas.remove(name.as_str()) && event.at_us > from => return Some(event.at_us),
            State::Replica { .. } => drop(replicas.insert(name)),
            _ => {}
        }
    }
    None
}

/// What the history and the time line come to.
pub fn measure(history: &History, played: &Played, events: &[Event]) -> Figures {
    let from = played.from_us;
    let all = windows(history, from, played.ended_us);
    // The shard that was hit is the one whose clients waited longest; it is the first unless the drill said otherwise.
    let follows = || all.iter().filter(|w| w.model == Model::Follows);
    let worst = follows().max_by_key(|w| w.length_us).map(|w| w.shard).unwrap_or(0);
    let longest = |same: bool| follows().filter(|w| (w.shard == worst) == same).map(|w| w.length_us).max().unwrap_or(0);
    Figures {
        fault_from_us: from,
        fault_until_us: played.until_us,
        promoted_after_us: promoted(events, from).map(|at| at - from),
        window_us_max: longest(true),
        other_shards_window_us_max: longest(false),
        window_open: follows().any(|w| w.shard == worst && !w.closed && w.length_us > 1_000_000),
        windows: all,
        redundant_after_us: played
            .redundant_us
            .map(|at| at.saturating_sub(played.until_us).max(played.between_us.unwrap_or(0))),
        operations: history.ops.len() as u64,
        reads: reads(history, Model::Follows).0,
        reads_stays: reads(history, Model::Stays).0,
        reads_replicas: reads(history, Model::ReadsReplicas).0,
        ..Figures::default()
    }
}

fn told(op: &Op) -> String {
    serde_json::to_string(op).unwrap_or_default()
}

/// A check that passed because there was nothing to look at is unknown.
fn known(check: Check, seen: u64, why: &str) -> Check {
    if seen == 0 && check.verdict == Verdict::Passed { Check::unknown(check.name, why) } else { check }
}

/// What became of acknowledged writes.
pub fn of_writes(plan: &Plan, figures: &Figures, lost: &[Op], lost_stays: &[Op], at_once: &[String]) -> Vec<Check> {
    let mut checks = Vec::new();
    let shown = |lost: &[Op]| lost.iter().take(5).map(told).collect::<Vec<_>>();
    let expect = &plan.expect;
    let both = [
        (CheckId::LostWrites, expect.lost_writes, &figures.writes, lost),
        (CheckId::LostWritesStays, expect.lost_writes_stays, &figures.writes_stays, lost_stays),
    ];
    for (name, most, seen, lost) in both {
        if let Some(most) = most {
            let text = format!(
                "{} of {} acknowledged writes lost; at most {most} were expected",
                seen.lost, seen.acknowledged
            );
            let why = if seen.lost > 0 { at_once } else { &[] };
            let evidence = why.iter().cloned().chain(shown(lost)).collect();
            let check = Check::of(name, seen.lost <= most, text).because(evidence);
            checks.push(known(check, seen.acknowledged, "no write was acknowledged"));
        }
        // These hold whatever a drill expects.
        let text = format!(
            "{} writes are there although they were refused, {} although no client ever wrote them",
            seen.refused_and_there, seen.invented
        );
        if seen.refused_and_there + seen.invented > 0 {
            checks.push(Check::of(name, false, text));
        }
    }
    if let Some(least) = expect.lost_writes_at_least {
        let all = figures.writes.lost + figures.writes_stays.lost;
        let text = format!("{all} acknowledged writes lost; at least {least} were expected");
        checks.push(Check::of(CheckId::LostWritesAtLeast, all >= least, text));
    }
    if let Some(bound) = expect.lost_within {
        let (limit, most) = (figures.fault_from_us + bound.as_micros() as u64, expect.lost_later.unwrap_or(0));
        let late: Vec<Op> = lost.iter().chain(lost_stays).filter(|op| op.ended_us > limit).copied().collect();
        let text = format!(
            "{} writes lost that were acknowledged more than {} after the fault began; at most {most} were expected",
            late.len(),
            time(bound)
        );
        let all = figures.writes.acknowledged + figures.writes_stays.acknowledged;
        let check = Check::of(CheckId::LostWithin, late.len() as u64 <= most, text).because(shown(&late));
        checks.push(known(check, all, "no write was acknowledged"));
    }
    checks
}

/// Each expectation of the drill that is about what clients saw, or about redundancy.
pub fn judge(plan: &Plan, history: &History, figures: &mut Figures, played: &Played) -> Vec<Check> {
    let mut checks: Vec<Check> = of_window(plan, figures).into_iter().collect();
    checks.extend(of_registers(plan, history, figures));
    checks.extend(of_replicas(plan, figures));
    if plan.load.kind == Kind::Locks {
        checks.extend(of_locks(plan, history, figures));
    }
    checks.extend(of_redundancy(plan, figures, played));
    checks
}

/// The longest time without an answer.
fn of_window(plan: &Plan, figures: &Figures) -> Option<Check> {
    let most = plan.expect.window?.as_micros() as u64;
    let open = figures.windows.iter().any(|w| w.model == Model::Follows && !w.closed && w.length_us > most);
    let text = format!(
        "clients that follow had no answer for up to {}{}; {} was allowed",
        time_us(figures.window_us_max as f64),
        if open { ", and still had none at the end" } else { "" },
        time_us(most as f64)
    );
    let check = Check::of(CheckId::Window, figures.window_us_max <= most, text);
    let seen = figures.windows.iter().filter(|w| w.model == Model::Follows).count() as u64;
    Some(known(check, seen, "no client that follows was seen"))
}

/// Registers that many write: judged where that is expected, else reported.
fn of_registers(plan: &Plan, history: &History, figures: &mut Figures) -> Option<Check> {
    let mut wrong = Vec::new();
    for (register, ops) in linearizable::registers(history) {
        figures.registers.checked += 1;
        figures.registers.operations += ops.len() as u64;
        match linearizable::check(&ops, linearizable::STATES_MAX) {
            Answer::Yes => {}
            Answer::GaveUp => figures.registers.unknown += 1,
            Answer::No(shown) => {
                figures.registers.wrong += 1;
                wrong.push(format!("register {register}:"));
                wrong.extend(shown.iter().map(told));
            }
        }
    }
    let seen = &figures.registers;
    if plan.expect.linearizable == Some(true) {
        let text = format!("{} of {} registers are not linearizable", seen.wrong, seen.checked);
        Some(if seen.wrong == 0 && (seen.unknown > 0 || seen.checked == 0) {
            Check::unknown(
                CheckId::Linearizable,
                format!("{} of {} registers were too hard to judge", seen.unknown, seen.checked),
            )
        } else {
            Check::of(CheckId::Linearizable, seen.wrong == 0, text).because(wrong)
        })
    } else if seen.wrong > 0 {
        Some(
            Check::of(
                CheckId::Registers,
                true,
                format!("{} of {} registers are not linearizable (reported, not judged)", seen.wrong, seen.checked),
            )
            .because(wrong),
        )
    } else {
        None
    }
}

/// Reads from replicas.
fn of_replicas(plan: &Plan, figures: &Figures) -> Vec<Check> {
    let (expect, mut checks) = (&plan.expect, Vec::new());
    let from_replicas = &figures.reads_replicas;
    if let Some(most) = expect.stale {
        let text = format!(
            "reads from replicas were up to {} stale; {} was allowed",
            time_us(from_replicas.stale_us_max as f64),
            time(most)
        );
        let check = Check::of(CheckId::Stale, from_replicas.stale_us_max <= most.as_micros() as u64, text);
        checks.push(known(check, from_replicas.answered, "no replica answered a read"));
    }
    if let Some(most) = expect.time_travel {
        let text = format!(
            "{} reads returned an older state than an earlier read by the same client; at most {most} were expected",
            from_replicas.time_travel
        );
        let check = Check::of(CheckId::TimeTravel, from_replicas.time_travel <= most, text);
        checks.push(known(check, from_replicas.answered, "no replica answered a read"));
    }
    checks
}

/// Locks: who held one, and whether late uses were fenced.
fn of_locks(plan: &Plan, history: &History, figures: &mut Figures) -> Vec<Check> {
    let (expect, mut checks) = (&plan.expect, Vec::new());
    let (seen, pairs) = locks(history);
    if let Some(most) = expect.double_holders {
        let text = format!(
            "two clients held a lock at once {} times, of {} times it was taken; at most {most} were expected",
            seen.double_holders, seen.taken
        );
        let shown = pairs.iter().take(3).flat_map(|(a, b)| [told(a), told(b)]).collect();
        let check = Check::of(CheckId::DoubleHolders, seen.double_holders <= most, text).because(shown);
        checks.push(known(check, seen.taken, "no client ever got a lock"));
    }
    if let Some(most) = expect.late_uses_taken {
        let taken = seen.late_uses - seen.late_uses_fenced;
        let text = format!(
            "{taken} of {} uses after the holder's time had run out were accepted; at most {most} were expected",
            seen.late_uses
        );
        let check = Check::of(CheckId::LateUsesTaken, taken <= most, text);
        checks.push(known(check, seen.late_uses, "no client used the resource late"));
    }
    figures.locks = Some(seen);
    checks
}

/// How long until every shard had its replicas again.
fn of_redundancy(plan: &Plan, figures: &Figures, played: &Played) -> Option<Check> {
    let most = plan.expect.redundant?;
    Some(match figures.redundant_after_us {
        Some(us) => Check::of(
            CheckId::Redundant,
            us <= most.as_micros() as u64,
            format!(
                "every shard had its replicas again {} after the fault; {} was allowed",
                time_us(us as f64),
                time(most)
            ),
        ),
        None if interrupted() => Check::unknown(CheckId::Redundant, "interrupted before it could be seen"),
        None if !played.redundant_before => Check::unknown(
            CheckId::Redundant,
            "the observer never saw every shard with its replicas, not even before the fault",
        ),
        None => Check::of(CheckId::Redundant, false, "a minute after the fault, a shard still lacks its replicas"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_us: u64, who: &str, what: What) -> Event {
        Event { at_us, who: Who::Server(who.into()), what }
    }

    #[test]
    fn a_promotion_is_a_change_of_role_and_no_sentence() {
        let replica = || What::Is(State::Replica { master: "10.0.0.1:6379".into(), linked: true });
        let events = [
            at(1, "node-1", What::Is(State::Master)),
            at(2, "node-2", replica()),
            at(3, "node-3", What::Said("replica of node-1".into())),
            Event { at_us: 4, who: Who::Drill, what: What::Is(State::Master) },
            // It was none, and what it says of itself is a sentence.
            at(5, "node-3", What::Is(State::Master)),
            at(6, "node-2", What::Said("master".into())),
            at(7, "node-2", What::Is(State::Silent)),
            at(9, "node-2", What::Is(State::Master)),
        ];
        assert_eq!(promoted(&events, 0), Some(9));
        assert_eq!(promoted(&events, 9), None, "what was before the fault does not count");
        assert_eq!(promoted(&events[..7], 0), None);
    }

    #[test]
    fn a_failure_beside_a_fault_in_doubt_is_unknown_unless_the_history_shows_it() {
        let verdicts = |fault: Check| {
            let mut checks = [
                fault,
                Check::of(CheckId::LostWrites, false, ""),
                Check::of(CheckId::DoubleHolders, false, ""),
                Check::of(CheckId::Window, true, ""),
            ];
            doubt(&mut checks);
            checks.map(|c| c.verdict)
        };
        use Verdict::{Failed, Passed, Unknown};
        assert_eq!(verdicts(Check::unknown(CheckId::Fault, "")), [Unknown, Unknown, Failed, Passed]);
        assert_eq!(verdicts(Check::of(CheckId::Fault, true, "")), [Passed, Failed, Failed, Passed]);
    }
}
