//! For how long each client was without an answer that helped it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::history::{History, Model, Outcome, What};

/// The longest time between two acknowledged operations of a client, around the fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Window {
    /// Which client.
    pub client: u32,
    /// How it finds its master.
    pub model: Model,
    /// Whose keys it uses.
    pub shard: u32,
    /// End of the last acknowledged operation before.
    pub from_us: u64,
    /// How long until the end of the next.
    pub length_us: u64,
    /// Whether there was a next one at all before the run ended.
    pub closed: bool,
}

/// Reads do not end the wait of who wants to write.
fn counts(model: Model, what: &What) -> bool {
    match what {
        What::Use { .. } => false,
        What::Read { .. } | What::SharedRead { .. } => model == Model::ReadsReplicas,
        _ => true,
    }
}

/// One for each client; `from_us` says when the fault began, `end_us` when the clients were told to stop: who finds no
/// server writes down nothing, and waits all the same.
pub fn windows(history: &History, from_us: u64, end_us: u64) -> Vec<Window> {
    history
        .clients
        .iter()
        .map(|client| {
            let mut times: Vec<u64> = history
                .of(client.client)
                .filter(|op| op.outcome == Outcome::Acknowledged && counts(client.model, &op.what))
                .map(|op| op.ended_us)
                .collect();
            times.sort_unstable();
            let last = times.last().copied().unwrap_or(0);
            let gaps = times.windows(2).map(|pair| (pair[0], pair[1], true)).chain([(last, end_us.max(last), false)]);
            let longest = gaps
                .filter(|(_, end, _)| *end > from_us)
                .max_by_key(|(begin, end, _)| end - begin)
                .unwrap_or((from_us, from_us, true));
            Window {
                client: client.client,
                model: client.model,
                shard: client.shard,
                from_us: longest.0,
                length_us: longest.1 - longest.0,
                closed: longest.2,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Client, Op};

    fn history(times: &[(u64, Outcome)]) -> History {
        let client = Client { client: 0, model: Model::Follows, shard: 0, zone: String::new() };
        let op = |(at, outcome): &(u64, Outcome)| Op {
            client: 0,
            begun_us: at - 1,
            ended_us: *at,
            outcome: *outcome,
            node: 0,
            what: What::Add { element: *at },
        };
        History { clients: vec![client], ops: times.iter().map(op).collect() }
    }

    #[test]
    fn refused_and_unknown_operations_do_not_end_a_window() {
        use Outcome::*;
        let all = [(10, Acknowledged), (20, Acknowledged), (50, Refused), (90, Unknown), (120, Acknowledged)];
        let window = &windows(&history(&all), 30, 125)[0];
        assert_eq!((window.from_us, window.length_us, window.closed), (20, 100, true));
    }

    #[test]
    fn who_never_comes_back_has_an_open_window() {
        use Outcome::*;
        let window = &windows(&history(&[(10, Acknowledged), (40, Unknown)]), 30, 100)[0];
        assert_eq!((window.length_us, window.closed), (90, false));
        // Nor does one that never wrote another word.
        assert_eq!(windows(&history(&[(10, Acknowledged)]), 30, 100)[0].length_us, 90);
    }

    #[test]
    fn gaps_elsewhere_do_not_count() {
        use Outcome::*;
        let all = [(10, Acknowledged), (500, Acknowledged), (510, Acknowledged), (520, Acknowledged)];
        assert_eq!(windows(&history(&all), 505, 521)[0].length_us, 10);
    }
}
