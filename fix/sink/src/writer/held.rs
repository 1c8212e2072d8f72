//! Held slots: calls that must be sent again, in order, and everything behind them.

use super::*;
use crate::record::Offset;

impl Writer {
    /// Puts a call into the queue of its slot, at its place.
    pub(super) fn hold(&mut self, slot: u16, at: (u64, u32), due: u64) {
        self.work(at.0).parked += 1;
        self.slots[usize::from(slot)].held = true;
        let held = self.held.entry(slot).or_default();
        let place = held.queue.partition_point(|other| *other < at);
        held.queue.insert(place, at);
        held.due = held.due.max(due);
    }

    /// Sends what held slots wait with, where it may go now. Returns when to look again.
    pub(super) fn release(&mut self, io: &mut Io, now: u64) -> Option<u64> {
        self.look = false;
        // A suspect that waits may have been given up, or its slot may have gone to another node.
        for node in self.nodes.iter_mut() {
            let flies = |at: (u64, u32)| {
                node.flying.iter().any(|f| matches!(f, Flying::Call { work, call, .. } if (*work, *call) == at))
            };
            node.alone = node.alone.filter(|at| flies(*at));
        }
        let mut next = None;
        let mut slots: Vec<u16> = self.held.keys().copied().collect();
        if !self.suspects.is_empty() {
            // Those first that need a connection without other calls, or it would never be without.
            let suspect = |slot: &u16| self.held[slot].queue.front().is_some_and(|at| self.suspects.contains_key(at));
            slots.sort_by_key(|slot| !suspect(slot));
        }
        for slot in slots {
            let held = &self.held[&slot];
            if self.slots[usize::from(slot)].flying > 0 {
                continue; // its reply makes us look again
            }
            if held.due > now {
                next = Some(next.map_or(held.due, |n: u64| n.min(held.due)));
                continue;
            }
            let to = held.asking.unwrap_or(self.nodes.owner(slot));
            if !self.reads(io, to) {
                continue; // its greeting, or drained(), makes us look again
            }
            let Some(&first) = held.queue.front() else { continue };
            let suspect = self.suspects.contains_key(&first);
            let node = &mut self.nodes[to];
            if suspect {
                let own = *node.alone.get_or_insert(first) == first;
                if !own || node.flying.iter().any(|f| matches!(f, Flying::Call { .. } | Flying::Check { .. })) {
                    continue; // the replies make us look again
                }
            } else if node.alone.is_some() {
                continue; // and so does this one's
            }
            self.chain(slot);
            let held = self.held.get_mut(&slot).expect("it is one of the keys");
            let one_by_one = held.migrating || suspect;
            let asking = held.asking.take().is_some();
            (held.due, held.stranger) = (0, None);
            let mut queue = std::mem::take(&mut held.queue);
            let count = match one_by_one {
                true => 1,
                false if self.suspects.is_empty() => queue.len(),
                // Up to the first that goes alone.
                false => queue.iter().position(|at| self.suspects.contains_key(at)).unwrap_or(queue.len()),
            };
            let going: Vec<_> = queue.drain(..count).collect();
            if queue.is_empty() {
                self.held.remove(&slot);
                self.slots[usize::from(slot)].held = false;
            } else {
                self.held.get_mut(&slot).expect("still there").queue = queue;
            }
            for (work, call) in going {
                self.work(work).parked -= 1;
                self.send(io, to, work, call, asking);
            }
        }
        next
    }

    /// Nothing of this slot is under way: each call of its queue follows the one before it, and the first follows
    /// nobody.
    fn chain(&mut self, slot: u16) {
        if self.encoder.script().is_none() {
            return;
        }
        let queue: Vec<(u64, u32)> = self.held[&slot].queue.iter().copied().collect();
        let mut before: HashMap<usize, Offset> = HashMap::new();
        for (work, call) in queue {
            let first = self.first;
            let it = &mut self.works[(work - first) as usize];
            let call = it.encoded.calls[call as usize];
            let record = &it.batch.records[call.record as usize];
            let origin = Arc::as_ptr(&it.batch.origins[record.origin as usize].id).addr();
            let last = before.insert(origin, record.offset);
            Encoder::set_before(&mut it.encoded.bytes, &call, last);
        }
    }
}
