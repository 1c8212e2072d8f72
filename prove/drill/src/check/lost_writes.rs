//! Writes that were acknowledged and are gone.
//!
//! Each client adds elements of its own to a set of its own, so every acknowledged write can be looked for by itself; a
//! register would only tell of the last.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::history::{History, Model, Op, Outcome, What};

/// What became of the writes of clients of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Writes {
    /// Acknowledged.
    pub acknowledged: u64,
    /// Of those, not there at the end.
    pub lost: u64,
    /// Refused: did not happen.
    pub refused: u64,
    /// Of those, there all the same: the server lied.
    pub refused_and_there: u64,
    /// Without an answer, or without enough replicas' answers.
    pub unknown: u64,
    /// Of those, there at the end.
    pub unknown_and_there: u64,
    /// There, and never written by anybody.
    pub invented: u64,
    /// When the first lost one was acknowledged.
    pub first_lost_us: Option<u64>,
    /// When the last lost one was acknowledged.
    pub last_lost_us: Option<u64>,
}

/// Compares what clients of a model wrote with each client's set at the end.
pub fn writes(history: &History, model: Model, finals: &BTreeMap<u32, BTreeSet<u64>>) -> (Writes, Vec<Op>) {
    let mut seen = Writes::default();
    let mut lost = Vec::new();
    let nothing = BTreeSet::new();
    for client in history.with(model) {
        let there = finals.get(&client.client).unwrap_or(&nothing);
        let mut written = BTreeSet::new();
        for op in history.of(client.client) {
            let What::Add { element } = op.what else { continue };
            written.insert(element);
            let is_there = there.contains(&element);
            match op.outcome {
                Outcome::Acknowledged => {
                    seen.acknowledged += 1;
                    if !is_there {
                        lost.push(*op);
                    }
                }
                Outcome::Refused => {
                    seen.refused += 1;
                    seen.refused_and_there += u64::from(is_there);
                }
                Outcome::Unknown => {
                    seen.unknown += 1;
                    seen.unknown_and_there += u64::from(is_there);
                }
            }
        }
        seen.invented += there.difference(&written).count() as u64;
    }
    seen.lost = lost.len() as u64;
    seen.first_lost_us = lost.iter().map(|op| op.ended_us).min();
    seen.last_lost_us = lost.iter().map(|op| op.ended_us).max();
    (seen, lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Client;

    #[test]
    fn acknowledged_refused_and_unknown_are_kept_apart() {
        use Outcome::*;
        let client = Client { client: 0, model: Model::Follows, shard: 0, zone: String::new() };
        let all = [Acknowledged, Acknowledged, Refused, Refused, Unknown, Unknown];
        let ops = all.into_iter().enumerate().map(|(i, outcome)| Op {
            client: 0,
            begun_us: i as u64,
            ended_us: i as u64 + 10,
            outcome,
            node: 0,
            what: What::Add { element: i as u64 },
        });
        let history = History { clients: vec![client], ops: ops.collect() };
        let finals = BTreeMap::from([(0, BTreeSet::from([0, 3, 5, 77]))]);
        let (seen, lost) = writes(&history, Model::Follows, &finals);
        assert_eq!((seen.acknowledged, seen.lost), (2, 1));
        assert_eq!((seen.refused, seen.refused_and_there), (2, 1));
        assert_eq!((seen.unknown, seen.unknown_and_there, seen.invented), (2, 1, 1));
        assert_eq!((lost[0].what, seen.first_lost_us), (What::Add { element: 1 }, Some(11)));
        assert_eq!(writes(&history, Model::Stays, &finals).0, Writes::default());
    }
}
