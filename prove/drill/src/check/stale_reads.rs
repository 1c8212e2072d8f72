//! Reads that answer with what was: stale ones, and those that go back behind an earlier read of the same client.
//!
//! Each register has one writer, whose numbers only grow.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::history::{History, Model, Op, Outcome, What};

/// What reads of clients of one model saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Reads {
    /// Answered.
    pub answered: u64,
    /// Of those, older than something acknowledged before the read began.
    pub stale: u64,
    /// The longest by which one was too late, in microseconds.
    pub stale_us_max: u64,
    /// The 99th percentile over all reads.
    pub stale_us_p99: u64,
    /// Older than what the same client had read before.
    pub time_travel: u64,
}

/// Judges the reads of a model's clients; the second part are examples.
pub fn reads(history: &History, model: Model) -> (Reads, Vec<Op>) {
    // Of each register: acknowledged writes as (value, acknowledged at), in order.
    let mut writes: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for op in &history.ops {
        if let (What::Write { value }, Outcome::Acknowledged) = (op.what, op.outcome) {
            writes.entry(op.client).or_default().push((value, op.ended_us));
        }
    }
    for all in writes.values_mut() {
        all.sort_unstable();
    }
    let mut seen = Reads::default();
    let (mut examples, mut ages) = (Vec::new(), Vec::new());
    for client in history.with(model) {
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for op in history.of(client.client) {
            let (What::Read { of, value }, Outcome::Acknowledged) = (op.what, op.outcome) else { continue };
            seen.answered += 1;
            let all = writes.get(&of).map_or(&[][..], |w| w);
            // The first acknowledged write that this answer does not know of.
            let newer = all.get(all.partition_point(|(v, _)| *v <= value)).map(|(_, at)| *at);
            let age = newer.map_or(0, |at| op.begun_us.saturating_sub(at));
            ages.push(age);
            let before = last.insert(of, value).unwrap_or(0);
            if age > 0 {
                seen.stale += 1;
                if examples.len() < 5 || age > seen.stale_us_max {
                    examples.push(*op);
                }
                seen.stale_us_max = seen.stale_us_max.max(age);
            }
            seen.time_travel += u64::from(value < before);
        }
    }
    ages.sort_unstable();
    seen.stale_us_p99 = ages.get(ages.len() * 99 / 100).copied().unwrap_or(0);
    let newest = examples.split_off(examples.len().saturating_sub(5));
    (seen, newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Client;

    #[test]
    fn finds_old_answers_and_answers_that_go_back() {
        let client = |client, model| Client { client, model, shard: 0, zone: String::new() };
        let op = |client, begun_us, ended_us, what| Op {
            client,
            begun_us,
            ended_us,
            outcome: Outcome::Acknowledged,
            node: 0,
            what,
        };
        let (write, read) = (|value| What::Write { value }, |value| What::Read { of: 0, value });
        let history = History {
            clients: vec![client(0, Model::Follows), client(1, Model::ReadsReplicas)],
            ops: vec![
                op(0, 0, 10, write(1)),
                op(0, 20, 30, write(2)),
                op(1, 25, 35, read(1)), // while 2 is under way: fine
                op(1, 40, 50, read(2)),
                op(1, 60, 70, read(1)), // 30 too late, and behind its own last
            ],
        };
        let (seen, examples) = reads(&history, Model::ReadsReplicas);
        assert_eq!((seen.answered, seen.stale, seen.stale_us_max, seen.time_travel), (3, 1, 30, 1));
        assert_eq!(examples[0].begun_us, 60);
    }
}
