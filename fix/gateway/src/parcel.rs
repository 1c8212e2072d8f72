//! Commands for several nodes, and a command over several slots cut into them.

use std::ops::Range;

use unslow_nodes::NOBODY;
use unslow_resp::write_header;
use unslow_topology::slot_of;

use crate::reply::bulk;
use crate::session::NO_SLOT;
use crate::step::Command;

/// Commands one after the other in one buffer. It is used again and again, so a command of a thousand keys allocates
/// nothing for each of them.
#[derive(Default)]
pub struct Parcel {
    bytes: Vec<u8>,
    each: Vec<Piece>,
    /// Slot and argument of each key of the command that is cut.
    keys: Vec<(u16, u32)>,
    /// Its slots: the first argument of each, and where its keys are among those above.
    groups: Vec<(u32, Range<usize>)>,
}

/// Where one of the commands goes.
struct Piece {
    slot: u16,
    /// The node, where it has no slot.
    node: u16,
    at: Range<usize>,
}

/// Room that is kept for the next command: a large one must not hold its memory for ever.
const KEPT_BYTES: usize = 1 << 20;

impl Parcel {
    /// After each use.
    pub fn give_back(&mut self) {
        let keys = self.keys.capacity() * size_of::<(u16, u32)>() + self.each.capacity() * size_of::<Piece>();
        if self.bytes.capacity() + keys > KEPT_BYTES {
            *self = Parcel::default();
        }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.each.clear();
    }

    /// For a node, whatever its slots.
    pub fn add(&mut self, node: u16, command: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(command);
        self.each.push(Piece { slot: NO_SLOT, node, at: from..self.bytes.len() });
    }

    /// Slot, node where there is no slot, and bytes of each.
    pub fn commands(&self) -> impl ExactSizeIterator<Item = (u16, u16, &[u8])> {
        self.each.iter().map(|piece| (piece.slot, piece.node, &self.bytes[piece.at.clone()]))
    }

    /// Looks at the slots of a command's keys, each of which begins `step` arguments. `Some` where all are in one slot,
    /// or there is no key.
    pub fn look(&mut self, command: &Command, step: usize) -> Option<u16> {
        self.keys.clear();
        self.keys.extend((1..command.len()).step_by(step).map(|at| (slot_of(command.arg(at)), at as u32)));
        let first = self.keys.first().map_or(NO_SLOT, |(slot, _)| *slot);
        self.keys.iter().all(|(slot, _)| *slot == first).then_some(first)
    }

    /// Cuts the command that was looked at into one a slot, in the order of their first keys. Returns the part of each
    /// key, in the order of the keys.
    pub fn cut(&mut self, command: &Command, step: usize) -> Vec<u16> {
        self.clear();
        self.keys.sort_unstable();
        self.groups.clear();
        let mut from = 0;
        for group in self.keys.chunk_by(|(a, _), (b, _)| a == b) {
            self.groups.push((group[0].1, from..from + group.len()));
            from += group.len();
        }
        self.groups.sort_unstable_by_key(|(first, _)| *first);
        let mut parts = vec![0; self.keys.len()];
        for (part, (_, keys)) in self.groups.iter().enumerate() {
            let keys = &self.keys[keys.clone()];
            let from = self.bytes.len();
            write_header(&mut self.bytes, b'*', 1 + keys.len() * step);
            bulk(&mut self.bytes, command.arg(0));
            for &(_, at) in keys {
                let at = at as usize;
                parts[(at - 1) / step] = part as u16;
                (at..at + step).for_each(|i| bulk(&mut self.bytes, command.arg(i)));
            }
            self.each.push(Piece { slot: keys[0].0, node: NOBODY, at: from..self.bytes.len() });
        }
        parts
    }
}
