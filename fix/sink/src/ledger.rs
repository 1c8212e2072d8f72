//! What is under way and what may be committed: acknowledgements come in any order, offsets are given back in the order
//! they were read, and messages set aside are on disk or in their topic before that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::dead::DeadLetters;
use crate::record::{Batch, Offset, Origin, Record};
use crate::stats::Stats;
use crate::writer::Said;

/// A batch is done.
pub struct Ack {
    pub number: u64,
    /// The last message of each origin.
    pub ends: Vec<(Arc<Origin>, Offset)>,
    pub dead: Vec<Letter>,
    pub records: usize,
    /// From the hand-over to the last reply.
    pub took: Duration,
}

/// A message that cannot be written.
#[derive(Clone, Debug)]
pub struct Letter {
    pub origin: Arc<Origin>,
    pub offset: Offset,
    pub time_ms: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    /// Why, as a sentence.
    pub reason: String,
}

impl Letter {
    pub fn new(batch: &Batch, record: &Record, reason: String) -> Letter {
        let message = batch.message(record);
        Letter {
            origin: batch.origins[record.origin as usize].clone(),
            offset: record.offset,
            time_ms: record.time_ms,
            key: message.key.map(<[u8]>::to_vec),
            value: message.value.map(<[u8]>::to_vec),
            headers: message.headers.iter().map(|(n, v)| (n.to_string(), v.to_vec())).collect(),
            reason,
        }
    }
}

/// See the module.
pub struct Ledger {
    said: Receiver<Said>,
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
        said: Receiver<Said>,
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
    pub fn listen(&mut self, patience: Duration) -> Result<(), String> {
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
                Ok(Said::Ack(ack)) => drop(self.early.insert(ack.number, ack)),
                Ok(Said::Note(text)) => (self.note)(&text),
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
