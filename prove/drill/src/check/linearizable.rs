//! Whether the reads and writes of one register could have happened one after another, each at some moment between its
//! question and its answer.
//!
//! The search of Wing and Gong with Lowe's memory of what was tried, over a list of questions and answers in time. What
//! makes it cheap here: no two writes write the same number. So a write without an answer that nobody read may be left
//! out (it can always be put just before another, or never), and one that was read had happened by then.
//!
//! A history that is not linearizable is made small before it is shown: a number with its write and all its reads is
//! taken out, or a read by itself, as long as what is left is still wrong. Both leave a right history right.

use std::collections::{BTreeMap, HashSet};

use crate::history::{History, Op, Outcome, What};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is an order.
    Yes,
    /// There is none; the smallest part of the history that shows it.
    No(Vec<Op>),
    /// The search wanted to remember more than it may.
    GaveUp,
}

/// What the search may remember before it gives up: states of some hundred bytes.
pub const STATES_MAX: usize = 400_000;

/// The registers that many write, by their number.
pub fn registers(history: &History) -> BTreeMap<u32, Vec<Op>> {
    let mut all: BTreeMap<u32, Vec<Op>> = BTreeMap::new();
    for op in &history.ops {
        if let What::SharedWrite { register, .. } | What::SharedRead { register, .. } = op.what {
            all.entry(register).or_default().push(*op);
        }
    }
    all
}

/// Judges the operations on one register.
pub fn check(ops: &[Op], states_max: usize) -> Answer {
    match search(&relevant(ops), states_max) {
        None => Answer::GaveUp,
        Some(true) => Answer::Yes,
        Some(false) => Answer::No(smallest(ops, states_max)),
    }
}

#[derive(Clone, Copy)]
struct Step {
    begun: u64,
    ended: u64,
    write: bool,
    value: u64,
}

fn parts(op: &Op) -> Option<(bool, u64)> {
    match op.what {
        What::SharedWrite { value, .. } => Some((true, value)),
        What::SharedRead { value, .. } => Some((false, value)),
        _ => None,
    }
}

/// What counts: answered reads, acknowledged writes, and writes without an answer that somebody read.
fn relevant(ops: &[Op]) -> Vec<Step> {
    let mut read_by: BTreeMap<u64, u64> = BTreeMap::new();
    for op in ops {
        if let (Some((false, value)), Outcome::Acknowledged) = (parts(op), op.outcome) {
            let first = read_by.entry(value).or_insert(u64::MAX);
            *first = (*first).min(op.ended_us);
        }
    }
    ops.iter()
        .filter_map(|op| {
            let (write, value) = parts(op)?;
            let ended = match op.outcome {
                Outcome::Acknowledged => op.ended_us,
                Outcome::Unknown if write => *read_by.get(&value)?,
                // A refused write did not happen: who reads it reads what nobody wrote.
                _ => return None,
            };
            Some(Step { begun: op.begun_us, ended, write, value })
        })
        .collect()
}

const NONE: usize = usize::MAX;

/// A list of questions and answers in time, from which pairs are lifted and put back.
struct Timeline {
    /// Of each entry: its step, and whether it is the answer.
    entries: Vec<(usize, bool)>,
    next: Vec<usize>,
    previous: Vec<usize>,
    /// Of each step: its two entries.
    places: Vec<(usize, usize)>,
}

impl Timeline {
    fn new(steps: &[Step]) -> Timeline {
        let mut all: Vec<(u64, bool, usize)> = Vec::with_capacity(steps.len() * 2);
        for (i, step) in steps.iter().enumerate() {
            // At the same moment questions come first: nothing is ordered that might not have been.
            all.push((step.begun, false, i));
            all.push((step.ended.max(step.begun), true, i));
        }
        all.sort_unstable();
        let mut places = vec![(0, 0); steps.len()];
        let mut entries = vec![(NONE, false)]; // the head
        for (_, answer, step) in all {
            let place = if answer { &mut places[step].1 } else { &mut places[step].0 };
            *place = entries.len();
            entries.push((step, answer));
        }
        let n = entries.len();
        let next = (0..n).map(|i| if i + 1 < n { i + 1 } else { NONE }).collect();
        let previous = (0..n).map(|i| i.wrapping_sub(1)).collect();
        Timeline { entries, next, previous, places }
    }

    fn unlink(&mut self, at: usize) {
        let (p, n) = (self.previous[at], self.next[at]);
        self.next[p] = n;
        if n != NONE {
            self.previous[n] = p;
        }
    }

    fn relink(&mut self, at: usize) {
        let (p, n) = (self.previous[at], self.next[at]);
        self.next[p] = at;
        if n != NONE {
            self.previous[n] = at;
        }
    }

    fn lift(&mut self, step: usize) {
        let (question, answer) = self.places[step];
        self.unlink(question);
        self.unlink(answer);
    }

    fn put_back(&mut self, step: usize) {
        let (question, answer) = self.places[step];
        self.relink(answer);
        self.relink(question);
    }
}

/// Whether there is an order; `None` when too much would have to be remembered.
fn search(steps: &[Step], states_max: usize) -> Option<bool> {
    let mut timeline = Timeline::new(steps);
    let mut done = vec![0u64; steps.len().div_ceil(64)];
    let mut tried: HashSet<(Box<[u64]>, u64)> = HashSet::new();
    let mut taken: Vec<(usize, u64)> = Vec::new();
    let mut state = 0u64;
    // What was tried costs its bits too.
    let most = (states_max * 16 / (16 + done.len())).max(1000);
    let mut at = timeline.next[0];
    while at != NONE {
        let (step, answer) = timeline.entries[at];
        if answer {
            // It had to happen before here, and could not: one step back.
            let Some((last, before)) = taken.pop() else { return Some(false) };
            state = before;
            done[last / 64] &= !(1 << (last % 64));
            timeline.put_back(last);
            at = timeline.next[timeline.places[last].0];
            continue;
        }
        let it = steps[step];
        if it.write || it.value == state {
            done[step / 64] |= 1 << (step % 64);
            let new = if it.write { it.value } else { state };
            if tried.insert((done.clone().into_boxed_slice(), new)) {
                if tried.len() > most {
                    return None;
                }
                taken.push((step, state));
                state = new;
                timeline.lift(step);
                at = timeline.next[0];
                continue;
            }
            done[step / 64] &= !(1 << (step % 64));
        }
        at = timeline.next[at];
    }
    Some(true)
}

/// A part of a wrong history that is still wrong, and from which nothing more can be taken out.
fn smallest(ops: &[Op], states_max: usize) -> Vec<Op> {
    let mut left: Vec<Op> = ops.iter().filter(|op| parts(op).is_some()).copied().collect();
    let wrong = |ops: &[Op]| search(&relevant(ops), states_max) == Some(false);
    let values: Vec<u64> = {
        let mut all: Vec<u64> = left.iter().filter_map(parts).map(|(_, v)| v).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    // Many numbers at once while that works, then one by one.
    let mut size = values.len() / 2;
    while size > 0 {
        for some in values.chunks(size) {
            let without: Vec<Op> =
                left.iter().filter(|op| !parts(op).is_some_and(|(_, v)| some.contains(&v))).copied().collect();
            if without.len() < left.len() && wrong(&without) {
                left = without;
            }
        }
        size /= 2;
    }
    let mut at = 0;
    while at < left.len() {
        if matches!(left[at].what, What::SharedRead { .. }) {
            let mut without = left.clone();
            without.remove(at);
            if wrong(&without) {
                left = without;
                continue;
            }
        }
        at += 1;
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::*;

    fn op(client: u32, begun_us: u64, ended_us: u64, outcome: Outcome, write: bool, value: u64) -> Op {
        let what =
            if write { What::SharedWrite { register: 0, value } } else { What::SharedRead { register: 0, value } };
        Op { client, begun_us, ended_us, outcome, node: 0, what }
    }

    #[test]
    fn overlapping_operations_may_take_either_order() {
        let ops = [op(0, 0, 10, Acknowledged, true, 1), op(1, 5, 15, Acknowledged, false, 0)];
        assert_eq!(check(&ops, STATES_MAX), Answer::Yes);
        let ops = [op(0, 0, 10, Acknowledged, true, 1), op(1, 11, 15, Acknowledged, false, 0)];
        assert_eq!(check(&ops, STATES_MAX), Answer::No(ops.to_vec()));
    }

    #[test]
    fn a_write_without_an_answer_may_happen_late_or_never() {
        let write = op(0, 0, 10, Unknown, true, 1);
        let (before, after) = (op(1, 20, 30, Acknowledged, false, 0), op(1, 40, 50, Acknowledged, false, 1));
        assert_eq!(check(&[write, before], STATES_MAX), Answer::Yes);
        assert_eq!(check(&[write, before, after], STATES_MAX), Answer::Yes);
        let gone = op(2, 60, 70, Acknowledged, false, 0);
        assert!(matches!(check(&[write, before, after, gone], STATES_MAX), Answer::No(_)));
    }

    #[test]
    fn a_value_nobody_wrote_is_wrong() {
        assert!(matches!(check(&[op(0, 0, 1, Acknowledged, false, 9)], STATES_MAX), Answer::No(_)));
    }

    #[test]
    fn what_shows_it_is_small() {
        // A thousand right operations, then a read of what was overwritten.
        let mut ops: Vec<Op> = (1..1000u64).map(|i| op(0, i * 10, i * 10 + 5, Acknowledged, true, i)).collect();
        ops.push(op(1, 20_000, 20_005, Acknowledged, false, 500));
        let Answer::No(shown) = check(&ops, STATES_MAX) else { panic!("it is wrong") };
        assert_eq!(shown.len(), 3, "{shown:?}: a write, one after it, and the read of the first");
    }

    #[test]
    fn gives_up_where_it_would_have_to_remember_too_much() {
        // Forty writes at once and a read of none of them that only fails at the very end.
        let mut ops: Vec<Op> = (1..=40).map(|i| op(i as u32, 0, 100, Acknowledged, true, i)).collect();
        ops.push(op(99, 200, 201, Acknowledged, false, 77));
        assert_eq!(check(&ops, 1000), Answer::GaveUp);
    }

    /// Every order of a few operations, as the definition says: a write without an answer may happen at any time after
    /// its question, or never; a refused one does not.
    fn by_hand(ops: &[Op]) -> bool {
        fn go(steps: &[Step], done: u32, state: u64) -> bool {
            if (0..steps.len()).all(|i| done & (1 << i) != 0 || steps[i].ended == u64::MAX) {
                return true;
            }
            let open = |i: usize| done & (1 << i) == 0;
            let first_end = (0..steps.len()).filter(|i| open(*i)).map(|i| steps[i].ended).min().unwrap_or(0);
            (0..steps.len()).filter(|i| open(*i)).any(|i| {
                let s = steps[i];
                s.begun <= first_end
                    && (s.write || s.value == state)
                    && go(steps, done | 1 << i, if s.write { s.value } else { state })
            })
        }
        let step = |op: &Op| {
            let (write, value) = parts(op)?;
            let ended = match op.outcome {
                Acknowledged => op.ended_us,
                Unknown if write => u64::MAX,
                _ => return None,
            };
            Some(Step { begun: op.begun_us, ended, write, value })
        };
        go(&ops.iter().filter_map(step).collect::<Vec<_>>(), 0, 0)
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_trying_every_order(
            raw in proptest::collection::vec((0u64..20, 1u64..10, proptest::bool::ANY, 0u64..4, 0u8..4), 1..8),
        ) {
            let mut next = 0;
            let ops: Vec<Op> = raw.into_iter().enumerate().map(|(i, (begun, length, write, value, outcome))| {
                let value = if write { next += 1; next } else { value };
                let outcome = match (outcome, write) { (0, _) => Unknown, (1, true) => Refused, _ => Acknowledged };
                op(i as u32, begun, begun + length, outcome, write, value)
            }).collect();
            let answer = check(&ops, STATES_MAX);
            proptest::prop_assert_eq!(answer == Answer::Yes, by_hand(&ops));
            if let Answer::No(shown) = answer {
                proptest::prop_assert!(!by_hand(&shown));
            }
        }
    }
}
