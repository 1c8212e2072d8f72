//! Whether a lock ever had two holders, and whether fencing would have helped.
//!
//! A holder counts from the answer that gave it the lock until it let go or, by its own clock, the time to live was
//! over: whoever goes on after that (a paused process) has itself to blame, and is counted as a late use.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::history::{History, Op, Outcome, What};

/// What became of the locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Locks {
    /// Times a lock was taken.
    pub taken: u64,
    /// Pairs of holders at the same time.
    pub double_holders: u64,
    /// For how long in all, in microseconds.
    pub double_us: u64,
    /// Uses of the resource in all.
    pub uses: u64,
    /// Uses by one of two holders at the same time.
    pub contested_uses: u64,
    /// Of those, turned away by the resource because of an old token: what fencing is for.
    pub contested_uses_fenced: u64,
    /// Uses after the user's own time was over, while another held the lock.
    pub late_uses: u64,
    /// Of those, turned away by the resource because of an old token.
    pub late_uses_fenced: u64,
    /// Uses by the only holder that the resource turned away: its token was not larger.
    pub fenced_wrongly: u64,
    /// Tokens that were given twice or went back: fencing cannot work with them.
    pub tokens_not_rising: u64,
}

struct Hold {
    client: u32,
    from: u64,
    until: u64,
    token: u64,
    op: Op,
}

/// Judges a history; the second part are pairs of holders, most overlap first.
pub fn locks(history: &History) -> (Locks, Vec<(Op, Op)>) {
    let mut seen = Locks::default();
    let mut holds: BTreeMap<u32, Vec<Hold>> = BTreeMap::new();
    for op in &history.ops {
        if let (What::Hold { lock, token, until_us }, Outcome::Acknowledged) = (op.what, op.outcome) {
            seen.taken += 1;
            let hold = Hold { client: op.client, from: op.ended_us, until: until_us, token, op: *op };
            holds.entry(lock).or_default().push(hold);
        }
    }
    let mut pairs = Vec::new();
    for all in holds.values_mut() {
        all.sort_by_key(|h| h.from);
        seen.tokens_not_rising += all.windows(2).filter(|w| w[1].token <= w[0].token).count() as u64;
        for (i, one) in all.iter().enumerate() {
            for other in all[i + 1..].iter().take_while(|o| o.from < one.until) {
                if other.client != one.client && other.from < other.until {
                    seen.double_holders += 1;
                    let overlap = one.until.min(other.until) - other.from;
                    seen.double_us += overlap;
                    pairs.push((overlap, one.op, other.op));
                }
            }
        }
    }
    for op in &history.ops {
        let What::Use { lock, token, taken } = op.what else { continue };
        seen.uses += 1;
        let all = holds.get(&lock).map_or(&[][..], |h| h);
        let at = op.begun_us;
        let own = all.iter().any(|h| h.client == op.client && h.token == token && h.from <= at && at <= h.until);
        let others = || all.iter().filter(|h| h.client != op.client && h.from <= at && at <= h.until);
        if !own && others().next().is_some() {
            seen.late_uses += 1;
            seen.late_uses_fenced += u64::from(!taken);
        } else if own && others().next().is_some() {
            seen.contested_uses += 1;
            seen.contested_uses_fenced += u64::from(!taken);
        } else if own && !taken {
            seen.fenced_wrongly += 1;
        }
    }
    pairs.sort_by_key(|(overlap, ..)| std::cmp::Reverse(*overlap));
    (seen, pairs.into_iter().map(|(_, a, b)| (a, b)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Client, Model};

    fn history(ops: Vec<(u32, u64, What)>) -> History {
        let clients = (0..2).map(|client| Client { client, model: Model::Follows, shard: 0, zone: String::new() });
        let op = |(client, at, what)| Op {
            client,
            begun_us: at,
            ended_us: at,
            outcome: Outcome::Acknowledged,
            node: 0,
            what,
        };
        History { clients: clients.collect(), ops: ops.into_iter().map(op).collect() }
    }

    fn hold(token: u64, until_us: u64) -> What {
        What::Hold { lock: 0, token, until_us }
    }

    #[test]
    fn one_after_another_is_right() {
        let (seen, pairs) = locks(&history(vec![(0, 10, hold(1, 20)), (1, 20, hold(2, 30)), (0, 31, hold(3, 40))]));
        assert_eq!((seen.taken, seen.double_holders, seen.tokens_not_rising), (3, 0, 0));
        assert!(pairs.is_empty());
    }

    #[test]
    fn two_at_once_are_found_with_their_overlap() {
        let (seen, pairs) = locks(&history(vec![(0, 10, hold(5, 50)), (1, 20, hold(5, 90))]));
        assert_eq!((seen.double_holders, seen.double_us, seen.tokens_not_rising), (1, 30, 1));
        assert_eq!((pairs[0].0.client, pairs[0].1.client), (0, 1));
    }

    #[test]
    fn of_two_holders_the_one_with_the_old_token_is_fenced() {
        let used = |token, taken| What::Use { lock: 0, token, taken };
        let both = vec![(0, 10, hold(5, 50)), (1, 20, hold(6, 90)), (1, 30, used(6, true)), (0, 40, used(5, false))];
        let (seen, _) = locks(&history(both));
        assert_eq!((seen.double_holders, seen.contested_uses, seen.contested_uses_fenced), (1, 2, 1));
        assert_eq!((seen.late_uses, seen.fenced_wrongly), (0, 0));
    }

    #[test]
    fn a_late_user_is_told_apart_and_fenced() {
        let late = |taken| What::Use { lock: 0, token: 1, taken };
        let both = |taken| history(vec![(0, 10, hold(1, 20)), (1, 25, hold(2, 60)), (0, 40, late(taken))]);
        let (seen, _) = locks(&both(false));
        assert_eq!((seen.double_holders, seen.late_uses, seen.late_uses_fenced), (0, 1, 1));
        assert_eq!(locks(&both(true)).0.late_uses_fenced, 0);
    }
}
