//! I4: questions that are answered by drills.

use unslow_engine::Error;

use super::{Context, Played, Row, time};
use crate::check::Verdict;
use crate::run::{self, How, Outcome};
use crate::spec;

/// A drill with these faults and variants, each once.
fn played(cx: &mut Context<'_>, drill: &str, runs: &[(&str, &str)]) -> Result<Vec<Outcome>, Error> {
    let drill = spec::find(drill)?;
    let mut all = Vec::new();
    for (fault, label) in runs {
        let plan = drill.variants.iter().find(|(l, _)| l == label).map(|(_, p)| p);
        let plan = plan.ok_or_else(|| Error::new(format!("drill {} has no variant {label:?}", drill.name)))?;
        let how = How { engine: None, seed: cx.seed, store: cx.store.clone(), url: None, facts: false };
        cx.say(&format!("{}: {fault}, {label}", drill.name));
        all.push(run::run(&drill, label, plan, fault, &how, &mut *cx.progress)?);
    }
    Ok(all)
}

/// Whether a lock holds.
pub fn locks(cx: &mut Context<'_>) -> Result<Played, Error> {
    let runs = [
        ("none", "no failover"),
        ("partition", "Sentinel"),
        ("partition", "Sentinel, WAIT 1"),
        ("partition", "Redlock over five"),
    ];
    let outcomes = played(cx, "lock_safety", &runs)?;
    let mut played = Played { columns: vec!["how", "locks taken", "two holders", "for"], ..Played::default() };
    for outcome in &outcomes {
        let seen = outcome.figures.locks.clone().unwrap_or_default();
        let name =
            format!("{}, {}", outcome.variant, if outcome.fault == "none" { "nothing fails" } else { &outcome.fault });
        played.rows.push(Row {
            name,
            cells: vec![seen.taken.to_string(), seen.double_holders.to_string(), time(seen.double_us as f64)],
        });
    }
    let double = |i: usize| outcomes[i].figures.locks.as_ref().map_or(0, |l| l.double_holders);
    let known = |i: usize| outcomes[i].verdict != Verdict::Unknown;
    played.held = vec![
        ((0..4).all(known), "a run is unknown: its fault was not at work".into()),
        (double(0) == 0, "two holders although nothing failed".into()),
        (double(1) > 0, "no double holder was caught after the failover".into()),
        (double(2) == 0, "two holders although each lock waited for a replica".into()),
        (double(3) == 0, "two holders of a Redlock although no server lost anything".into()),
    ];
    played.closing = format!(
        "A lock of one master that Sentinel replaces had two holders {} times while the old one was cut off; with WAIT 1 {}, with Redlock {}.",
        double(1),
        double(2),
        double(3)
    );
    Ok(played)
}

/// What a failover of Sentinel costs.
pub fn sentinel(cx: &mut Context<'_>) -> Result<Played, Error> {
    let mut outcomes = played(
        cx,
        "sentinel_failover",
        &[("kill", "down-after 1 s"), ("hang", "down-after 1 s"), ("hang", "min-replicas 1")],
    )?;
    outcomes.extend(played(
        cx,
        "split_brain",
        &[("partition", "default"), ("partition", "min-replicas 1"), ("partition", "WAIT 1")],
    )?);
    let mut played = Played {
        columns: vec![
            "what",
            "promoted after",
            "longest without a write",
            "acknowledged",
            "lost",
            "lost by clients that stay",
        ],
        ..Played::default()
    };
    for outcome in &outcomes {
        let f = &outcome.figures;
        played.rows.push(Row {
            name: format!("{}: {}, {}", outcome.drill, outcome.fault, outcome.variant),
            cells: vec![
                f.promoted_after_us.map_or("-".into(), |us| time(us as f64)),
                time(f.window_us_max as f64),
                (f.writes.acknowledged + f.writes_stays.acknowledged).to_string(),
                f.writes.lost.to_string(),
                f.writes_stays.lost.to_string(),
            ],
        });
        played.held.push((
            outcome.verdict == Verdict::Passed,
            format!("{}, {}, {}: {:?}", outcome.drill, outcome.fault, outcome.variant, outcome.verdict),
        ));
    }
    let lost = |i: usize| outcomes[i].figures.writes.lost + outcomes[i].figures.writes_stays.lost;
    played.closing = format!(
        "Sentinel promoted a replica {} after a kill, and nobody lost a write; a master that hung and went on lost {} acknowledged writes, one that was cut off with its clients {}, with min-replicas-to-write 1 {}, with WAIT 1 {}.",
        outcomes[0].figures.promoted_after_us.map_or("-".into(), |us| time(us as f64)),
        lost(1),
        lost(3),
        lost(4),
        lost(5)
    );
    Ok(played)
}
