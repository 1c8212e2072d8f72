//! What is under way and what may be committed: acknowledgements come in any order, offsets are given back in the order
//! they were read, and messages set aside are on disk or in their topic before that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::dead::{DeadLetterError, DeadLetters};
use crate::events::{Ack, WriterEvent};
use crate::record::{Offset, Origin};
use crate::stats::Stats;

/// Which batches are acknowledged, and up to where offsets may be committed.
pub struct Ledger {
    said: Receiver<WriterEvent>,
    early: BTreeMap<u64, Ack>,
    /// Batches handed to the writer.
    pub sent: u64,
    /// Batches done with, in order.
    settled: u64,
    commits: HashMap<Arc<Origin>, Offset>,
    dead: DeadLetters,
    stats: Arc<dyn AsRef<Stats> + Send + Sync>,
    note: Arc<dyn Fn(&str) + Send + Sync>,
    /// Sizes and times of batches since somebody asked.
    pub took: Vec<(usize, Duration)>,
    ended: bool,
}

impl Ledger {
    pub fn new(
        said: Receiver<WriterEvent>,
        dead: DeadLetters,
        stats: Arc<dyn AsRef<Stats> + Send + Sync>,
        note: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Ledger {
        let (early, commits, took) = Default::default();
        Ledger { said, early, sent: 0, settled: 0, commits, dead, stats, note, took, ended: false }
    }

    /// Batches that are not settled.
    pub fn in_flight(&self) -> u64 {
        self.sent - self.settled
    }

    /// Whether the writer is gone.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Takes what the writer has said, waiting for a first word at most so long. Fails when a message can be neither
    /// written nor set aside; nothing behind it is committed then.
    pub fn listen(&mut self, patience: Duration) -> Result<(), DeadLetterError> {
        let mut first = if patience.is_zero() { None } else { Some(patience) };
        loop {
            let said = match first.take() {
                Some(patience) => self.said.recv_timeout(patience),
                None => self.said.try_recv().map_err(|e| match e {
                    std::sync::mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
                    std::sync::mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                }),
            };
            match said {
                Ok(WriterEvent::Ack(ack)) => drop(self.early.insert(ack.number, ack)),
                Ok(WriterEvent::Note(text)) => (self.note)(&text),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    self.ended = true;
                    break;
                }
            }
        }
        while let Some(ack) = self.early.get(&self.settled) {
            if !ack.dead.is_empty() {
                // What fails here stays where it is, and fails again for whoever listens next.
                self.dead.write(&ack.dead)?;
                (*self.stats).as_ref().dead.fetch_add(ack.dead.len() as u64, Ordering::Relaxed);
            }
            let Some(ack) = self.early.remove(&self.settled) else { break };
            self.took.push((ack.records, ack.took));
            self.commits.extend(ack.ends);
            self.settled += 1;
        }
        Ok(())
    }

    /// Origins and the last offset of each that is done with.
    pub fn take_commits(&mut self) -> Vec<(Arc<Origin>, Offset)> {
        self.commits.drain().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::events::Letter;

    fn origin(partition: i32) -> Arc<Origin> {
        Arc::new(Origin { topic: "t".into(), partition, id: format!("t/{partition}").into() })
    }

    fn ack(number: u64, partition: i32, end: u64) -> WriterEvent {
        let (dead, took) = (Vec::new(), Duration::ZERO);
        WriterEvent::Ack(Ack { number, ends: vec![(origin(partition), Offset(0, end))], dead, records: 1, took })
    }

    fn dead(number: u64, end: u64) -> WriterEvent {
        let (key, value, headers) = (None, Some(b"v".to_vec()), Vec::new());
        let letter =
            Letter { origin: origin(0), offset: Offset(0, end), time_ms: 0, key, value, headers, reason: "bad".into() };
        let WriterEvent::Ack(ack) = ack(number, 0, end) else { unreachable!() };
        WriterEvent::Ack(Ack { dead: vec![letter], ..ack })
    }

    /// A ledger with this many batches in flight, the writer's channel to it, and the counters.
    fn ledger(sent: u64, dead: DeadLetters) -> (Ledger, Sender<WriterEvent>, Arc<crate::writer::WriterShared>) {
        let (said, hear) = channel();
        let shared = Arc::new(crate::writer::WriterShared {
            orders: Default::default(),
            window: Default::default(),
            stats: Stats::default(),
            fatal: Default::default(),
        });
        let mut ledger = Ledger::new(hear, dead, shared.clone(), Arc::new(|_: &str| {}));
        ledger.sent = sent;
        (ledger, said, shared)
    }

    fn commits(ledger: &mut Ledger) -> Vec<(i32, u64)> {
        let mut all: Vec<_> = ledger.take_commits().into_iter().map(|(o, end)| (o.partition, end.1)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn offsets_behind_an_unacknowledged_batch_are_not_committed() {
        let (mut ledger, said, _) = ledger(4, DeadLetters::Refuse);
        for (said_now, committed, in_flight) in [
            (vec![ack(1, 0, 20)], vec![], 4),
            (vec![ack(3, 1, 7)], vec![], 4),
            (vec![ack(0, 0, 10)], vec![(0, 20)], 2),
            (vec![], vec![], 2),
            (vec![ack(2, 0, 30)], vec![(0, 30), (1, 7)], 0),
        ] {
            said_now.into_iter().for_each(|word| said.send(word).unwrap());
            ledger.listen(Duration::ZERO).unwrap();
            assert_eq!((commits(&mut ledger), ledger.in_flight()), (committed, in_flight));
        }
        assert_eq!(ledger.took.len(), 4);
        assert!(!ledger.ended());
        drop(said);
        ledger.listen(Duration::ZERO).unwrap();
        assert!(ledger.ended());
    }

    #[test]
    fn a_refused_dead_letter_blocks_all_later_commits() {
        let (mut ledger, said, shared) = ledger(3, DeadLetters::Refuse);
        [ack(0, 0, 10), dead(1, 20), ack(2, 0, 30)].into_iter().for_each(|word| said.send(word).unwrap());
        // The next caller gets the same error.
        for committed in [vec![(0, 10)], vec![]] {
            let why = ledger.listen(Duration::ZERO).unwrap_err();
            assert!(matches!(&why, DeadLetterError::Nowhere { partition: 0, offset, .. } if offset == "20"), "{why:?}");
            assert!(why.to_string().starts_with("t [0] at 20: bad; nothing behind it is committed"), "{why}");
            assert_eq!((commits(&mut ledger), ledger.in_flight()), (committed, 2));
        }
        assert_eq!(shared.stats.dead.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_dead_letter_is_on_disk_before_its_offset_is_committed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("dead.jsonl");
        let (mut ledger, said, shared) = ledger(2, DeadLetters::file(&path).unwrap());
        said.send(dead(1, 20)).unwrap();
        ledger.listen(Duration::ZERO).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "", "letters are written in order");
        said.send(ack(0, 0, 10)).unwrap();
        ledger.listen(Duration::ZERO).unwrap();
        let line = std::fs::read_to_string(&path).unwrap();
        assert!(line.contains("\"offset\":\"20\"") && line.ends_with("}\n"), "{line}");
        assert_eq!(commits(&mut ledger), [(0, 20)]);
        assert_eq!(shared.stats.dead.load(Ordering::Relaxed), 1);
    }
}
