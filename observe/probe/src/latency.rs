//! LATENCY LATEST and HISTORY: which stalls the server itself noticed, and when.

use unslow_client::{Error, Value};
use unslow_facts::{LatencyEvent, Seen};

use crate::ask::{Ask, seen};

/// Event classes looked at, at most: servers have some twenty.
const MOST: usize = 64;

pub fn look(ask: &mut Ask) -> Seen<Vec<LatencyEvent>> {
    seen(events(ask), "LATENCY LATEST")
}

fn events(ask: &mut Ask) -> Result<Vec<LatencyEvent>, Error> {
    let latest = ask.call(&["LATENCY", "LATEST"])?;
    let mut events: Vec<LatencyEvent> = latest
        .items()
        .iter()
        .take(MOST)
        .filter_map(|row| {
            let number = |i: usize| row.items().get(i)?.integer().map(|n| n as u64);
            Some(LatencyEvent {
                name: row.items().first()?.text()?,
                last_at_s: number(1)?,
                last_ms: number(2)?,
                max_ms: number(3)?,
                history: Vec::new(),
            })
        })
        .collect();
    let questions: Vec<Vec<&str>> = events.iter().map(|e| vec!["LATENCY", "HISTORY", e.name.as_str()]).collect();
    if questions.is_empty() {
        return Ok(events);
    }
    let replies = ask.pipeline(&questions)?;
    for (event, reply) in events.iter_mut().zip(replies) {
        event.history = reply
            .iter()
            .flat_map(Value::items)
            .filter_map(|row| Some((row.items().first()?.integer()? as u64, row.items().get(1)?.integer()? as u64)))
            .collect();
    }
    Ok(events)
}
