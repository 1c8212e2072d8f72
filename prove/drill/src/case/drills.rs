//! I4: questions that are answered by drills.

use unslow_units::{percent, time_us};

use super::{Context, Played, Row};
use crate::check::Verdict;
use crate::error::{CaseError, Error};
use crate::run::{self, How, Outcome};
use crate::spec;

/// A drill with these faults and variants, each once.
fn played(cx: &mut Context<'_>, drill: &str, runs: &[(&str, &str)]) -> Result<Vec<Outcome>, Error> {
    let drill = spec::find(drill)?;
    let mut all = Vec::new();
    for (fault, label) in runs {
        if run::interrupted() {
            return Err(Error::Interrupted);
        }
        let plan = drill.variants.iter().find(|(l, _)| l == label).map(|(_, p)| p);
        let no_variant = || CaseError::NoVariant { drill: drill.name.clone(), variant: label.to_string() };
        let plan = plan.ok_or_else(no_variant)?;
        let how = How { engine: None, seed: cx.seed, store: cx.store.clone(), own: None, facts: false };
        cx.say(&format!("{}: {fault}, {label}", drill.name));
        all.push(run::run(&drill, label, plan, fault, &how, &mut *cx.progress)?);
    }
    Ok(all)
}

/// What runs that are unknown say.
fn unknown(outcomes: &[Outcome]) -> Vec<String> {
    let of = |o: &Outcome| -> Vec<String> {
        let open = o.checks.iter().filter(|c| c.verdict == Verdict::Unknown);
        open.map(|c| format!("{}, {}, {}: {}", o.drill, o.fault, o.variant, c.text)).collect()
    };
    outcomes.iter().filter(|o| o.verdict == Verdict::Unknown).flat_map(of).collect()
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
            cells: vec![seen.taken.to_string(), seen.double_holders.to_string(), time_us(seen.double_us as f64)],
        });
    }
    let double = |i: usize| outcomes[i].figures.locks.as_ref().map_or(0, |l| l.double_holders);
    played.unknown = unknown(&outcomes);
    let held = [
        (double(0) == 0, "two holders although nothing failed"),
        (double(1) > 0, "no lock was seen to have two holders after the failover"),
        (double(2) == 0, "two holders although each lock waited for a replica"),
        (double(3) == 0, "two holders of a Redlock although no server lost anything"),
    ];
    // What is not known holds nothing and refutes nothing.
    let seen = held.into_iter().zip(&outcomes).filter(|(_, o)| o.verdict != Verdict::Unknown);
    played.held = seen.map(|((holds, text), _)| (holds, text.to_string())).collect();
    played.closing = format!(
        "A lock on one master that Sentinel replaces had two holders {} times while the old master was cut off; with \
         WAIT 1 {}, with Redlock {}.",
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
        &[("kill", "down-after 2 s"), ("hang", "down-after 2 s"), ("hang", "min-replicas 1")],
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
                f.promoted_after_us.map_or("-".into(), |us| time_us(us as f64)),
                time_us(f.window_us_max as f64),
                (f.writes.acknowledged + f.writes_stays.acknowledged).to_string(),
                f.writes.lost.to_string(),
                f.writes_stays.lost.to_string(),
            ],
        });
        let text = format!("{}, {}, {} failed", outcome.drill, outcome.fault, outcome.variant);
        played.held.push((outcome.verdict != Verdict::Failed, text));
    }
    played.unknown = unknown(&outcomes);
    let lost = |i: usize| outcomes[i].figures.writes.lost + outcomes[i].figures.writes_stays.lost;
    played.closing = format!(
        "Sentinel promoted a replica {} after a kill: clients that asked it lost {} acknowledged writes, those that \
         stayed {}. A master that hung and then continued lost {}, one that was cut off with its clients {}, with \
         min-replicas-to-write 1 {}, with WAIT 1 {}.",
        outcomes[0].figures.promoted_after_us.map_or("-".into(), |us| time_us(us as f64)),
        outcomes[0].figures.writes.lost,
        outcomes[0].figures.writes_stays.lost,
        lost(1),
        lost(3),
        lost(4),
        lost(5)
    );
    Ok(played)
}

/// Which client is it? Three faults, every client at once.
pub fn clients(cx: &mut Context<'_>) -> Result<Played, Error> {
    let drill = spec::find(spec::CLIENT_RECOVERY)?;
    let how = How { engine: None, seed: cx.seed, store: cx.store.clone(), own: None, facts: false };
    let faults = ["kill", "hang", "move_slot"];
    let (mut seen, mut unknown) = (Vec::new(), Vec::new());
    for fault in faults {
        let document = crate::shootout::run(&drill, &[], Some(fault), &how, cx.binary, &mut *cx.progress)?;
        seen.extend(document.clients);
        unknown.extend(document.unknown);
    }
    let mut played = Played { columns: vec!["client", "kill", "hang", "a slot moves"], unknown, ..Played::default() };
    for name in crate::shootout::names() {
        let cell = |fault: &&str| match seen.iter().find(|s| s.client == name && s.fault == **fault) {
            Some(s) if s.missing.is_none() => {
                let never = if s.never { "never, " } else { "" };
                let time = s.recovery_us.map_or("-".into(), |us| time_us(us as f64));
                format!("{never}{time}; {} slow, {} errors", percent(s.slow_share), s.errors)
            }
            _ => "not run".into(),
        };
        let version = seen.iter().find(|s| s.client == name && !s.version.is_empty());
        let name = match version {
            Some(s) if s.version.starts_with(name) => s.version.clone(),
            Some(s) => format!("{name} ({})", s.version),
            None => name.to_string(),
        };
        played.rows.push(Row { name, cells: faults.iter().map(cell).collect() });
    }
    played
        .notes
        .extend(seen.iter().filter_map(|s| Some(format!("{}, {}: {}", s.client, s.fault, s.missing.as_ref()?))));
    let ran = || seen.iter().filter(|s| s.missing.is_none() && s.recovery_us.is_some());
    let worst = |fault: &str| ran().filter(|s| s.fault == fault).max_by_key(|s| s.recovery_us);
    // The models of unslow bench are no clients that applications use.
    let missing =
        seen.iter().filter(|s| s.missing.is_some()).map(|s| format!("{}, {}: it did not run", s.client, s.fault));
    played.unknown.extend(missing);
    let told = |fault: &str| {
        worst(fault)
            .map_or("no client ran".into(), |s| format!("{} {}", s.client, time_us(s.recovery_us.unwrap_or(0) as f64)))
    };
    played.closing = format!(
        "Longest time without an answer after a kill: {}; after a hang: {}; after a slot moved: {}.",
        told("kill"),
        told("hang"),
        told("move_slot")
    );
    Ok(played)
}
