//! Looks at the process of a server of this machine while it owes an answer: what it waits for is seen only then.
//!
//! The event loop says in every tick that an answer is still owed, and when it has come; each word is one look, so a
//! thread that waits for words needs no clock. /proc may keep a reader waiting, so it is not the event loop that looks.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

use unslow_facts::{Host, Standing};
use unslow_probe::host::Looks;

use crate::eye::stamp;
use crate::notes::{NodeNumber, Note, Owing, Saw, Waiting};

/// Words that may wait: a tick of a thousand servers that stand.
pub const WORDS: usize = 1024;
/// What was seen is told after so many looks, though the answer is still owed: five seconds where it is asked ten times
/// a second;
const TOLD_AFTER: u32 = 50;
/// from then on one word in so many is looked at,
const RARELY: u32 = 10;
/// and it is told again after so many more: a minute.
const TOLD_AGAIN: u32 = 60;

/// Which process a node's server is, where it runs on this machine: its first look comes with the process's start, so
/// that a later process of the same number is not taken for it.
#[derive(Clone, Default)]
pub struct Processes(Arc<Mutex<HashMap<NodeNumber, Looks>>>);

impl Processes {
    /// What a look at the machine found.
    pub fn found(&self, nodes: impl Iterator<Item = (NodeNumber, String)>, host: &Host) {
        let of = |address: &String| host.processes.iter().find(|process| process.addresses.contains(address));
        let all = nodes.filter_map(|(number, address)| Some((number, Looks::at(of(&address)?.pid)?))).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// Whether the server of this node runs here.
    pub fn has(&self, number: NodeNumber) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&number)
    }

    /// No look yet, at that process.
    fn of(&self, number: NodeNumber) -> Option<Looks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }
}

/// One node that owes an answer.
#[derive(Default)]
struct Stood {
    /// None where its process is not of this machine, has ended, or is not known yet.
    looks: Option<Looks>,
    words: u32,
}

impl Stood {
    /// Looks, unless it has been looked at often; what is to be told by now. `process` as far as it is known.
    fn still(&mut self, process: Option<Looks>) -> Option<Standing> {
        self.words = self.words.saturating_add(1);
        if self.words > TOLD_AFTER && !self.words.is_multiple_of(RARELY) {
            return None;
        }
        if self.looks.is_none() {
            self.looks = process;
        }
        let looks = self.looks.as_mut()?;
        if !looks.look() {
            return self.over();
        }
        let more = looks.count().checked_sub(TOLD_AFTER);
        more.is_some_and(|more| more.is_multiple_of(TOLD_AGAIN)).then(|| looks.standing()).flatten()
    }

    /// The whole of it.
    fn over(&mut self) -> Option<Standing> {
        self.looks.take()?.standing()
    }
}

/// A thread's work: ends when nobody can say a word any more.
pub fn watch(words: &Receiver<Owing>, processes: &Processes, notes: &SyncSender<Note>, waiting: &Waiting) {
    let mut all: HashMap<NodeNumber, Stood> = HashMap::new();
    while let Ok(word) = words.recv() {
        let (number, told) = match word {
            Owing::Still(number) => (number, all.entry(number).or_default().still(processes.of(number))),
            Owing::Over(number) => (number, all.remove(&number).and_then(|mut stood| stood.over())),
        };
        if let Some(standing) = told {
            waiting.tell(notes, Note::Saw(number, stamp(), Saw::Standing(Box::new(standing))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use unslow_facts::Process;

    use super::*;

    /// What is told of these words, where node 0 is this process and node 1 is elsewhere.
    fn told(said: impl IntoIterator<Item = Owing>) -> Vec<(NodeNumber, u32)> {
        let processes = Processes::default();
        let own = Process { pid: std::process::id(), addresses: vec!["h:1".into()], ..Process::default() };
        let host = Host { processes: vec![own], ..Host::default() };
        processes.found([(0, "h:1".to_string()), (1, "h:2".to_string())].into_iter(), &host);
        let (say, words) = sync_channel(WORDS);
        said.into_iter().for_each(|word| say.send(word).unwrap());
        drop(say);
        let (notes, seen) = sync_channel(WORDS);
        watch(&words, &processes, &notes, &Waiting::default());
        drop(notes);
        let standing = |note| match note {
            Note::Saw(number, _, Saw::Standing(standing)) => (number, standing.looks),
            other => panic!("{other:?}"),
        };
        seen.iter().map(standing).collect()
    }

    #[test]
    fn a_stall_is_told_when_it_is_over_and_each_begins_anew() {
        let one = [Owing::Still(0), Owing::Still(0), Owing::Over(0)];
        assert_eq!(told(one.into_iter().chain(one)), [(0, 2), (0, 2)]);
        assert_eq!(told([Owing::Over(0)]), [], "nothing was seen of it");
        assert_eq!(told([Owing::Still(1), Owing::Over(1)]), [], "its process is elsewhere");
    }

    #[test]
    fn a_hang_is_told_while_it_lasts_but_more_rarely() {
        let (mut stood, own) = (Stood::default(), Looks::at(std::process::id()));
        assert!(stood.still(None).is_none(), "its process is not known yet");
        stood.words = 0;
        let words = TOLD_AFTER + 2 * TOLD_AGAIN * RARELY;
        let told: Vec<u32> =
            (0..words).filter_map(|_| stood.still(own.clone())).map(|standing| standing.looks).collect();
        assert_eq!(told, [TOLD_AFTER, TOLD_AFTER + TOLD_AGAIN, TOLD_AFTER + 2 * TOLD_AGAIN]);
    }
}
