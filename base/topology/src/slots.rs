//! Sets of hash slots, kept as ranges.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Hash slots of a cluster, by the specification.
pub const SLOTS: u16 = 16384;

/// Slots as sorted, disjoint, inclusive ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct SlotSet(Vec<(u16, u16)>);

impl SlotSet {
    /// Every slot.
    pub fn all() -> SlotSet {
        SlotSet(vec![(0, SLOTS - 1)])
    }

    /// The set of these ranges, in any order, overlapping or not. Slots above 16383 are dropped.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u16, u16)>) -> SlotSet {
        let mut sorted: Vec<(u16, u16)> =
            ranges.into_iter().map(|(a, b)| (a, b.min(SLOTS - 1))).filter(|(a, b)| a <= b).collect();
        sorted.sort_unstable();
        let mut out: Vec<(u16, u16)> = Vec::with_capacity(sorted.len());
        for (a, b) in sorted {
            match out.last_mut() {
                Some(last) if a <= last.1.saturating_add(1) => last.1 = last.1.max(b),
                _ => out.push((a, b)),
            }
        }
        SlotSet(out)
    }

    /// The ranges.
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// How many slots.
    pub fn len(&self) -> usize {
        self.0.iter().map(|(a, b)| usize::from(b - a) + 1).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `slot` is in it.
    pub fn contains(&self, slot: u16) -> bool {
        // Asked slot by slot of maps with hundreds of ranges.
        let after = self.0.partition_point(|&(a, _)| a <= slot);
        self.0[..after].last().is_some_and(|&(_, b)| slot <= b)
    }

    /// All slots that are not in it.
    pub fn complement(&self) -> SlotSet {
        let mut out = Vec::new();
        let mut next = 0u16;
        for &(a, b) in &self.0 {
            if a > next {
                out.push((next, a - 1));
            }
            next = b + 1;
        }
        if next < SLOTS {
            out.push((next, SLOTS - 1));
        }
        SlotSet(out)
    }
}

impl<'de> Deserialize<'de> for SlotSet {
    /// Of a file that may have been edited: what is no range of slots is refused.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<SlotSet, D::Error> {
        let ranges = Vec::<(u16, u16)>::deserialize(from)?;
        match ranges.iter().find(|(a, b)| a > b || *b >= SLOTS) {
            Some((a, b)) => Err(D::Error::custom(format_args!("{a}-{b} are no slots: 0 to 16383 was expected"))),
            None => Ok(SlotSet::from_ranges(ranges)),
        }
    }
}

impl fmt::Display for SlotSet {
    /// `0-5460 5462`, as CLUSTER NODES writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (a, b)) in self.0.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            if a == b {
                write!(f, "{space}{a}")?;
            } else {
                write!(f, "{space}{a}-{b}")?;
            }
        }
        Ok(())
    }
}

/// The slot of a key: CRC16 (XMODEM) of it, or of what stands between its first braces, modulo 16384.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let len = key[open + 1..].iter().position(|&b| b == b'}').filter(|&n| n > 0)?;
        Some(&key[open + 1..open + 1 + len])
    });
    tag.unwrap_or(key).iter().fold(0u16, |crc, &byte| crc << 8 ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]) % SLOTS
}

/// The remainder of each byte, for one step a byte in place of eight.
const CRC16: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_slots_of_the_specification() {
        assert_eq!(slot_of(b"123456789"), 0x31C3 % SLOTS); // the specification's test value of CRC16
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"));
    }

    #[test]
    fn a_saved_set_is_checked_and_sorted() {
        use serde::de::IntoDeserializer;
        use serde::de::value::Error;
        let read = |ranges: &[(u16, u16)]| {
            let ranges: Vec<Vec<u16>> = ranges.iter().map(|(a, b)| vec![*a, *b]).collect();
            SlotSet::deserialize(IntoDeserializer::<Error>::into_deserializer(ranges))
        };
        assert_eq!(read(&[(7, 9), (0, 3), (4, 5)]).unwrap().ranges(), [(0, 5), (7, 9)]);
        assert_eq!(read(&[(0, 16383)]).unwrap(), SlotSet::all());
        for bad in [(0, 65535), (16384, 16384), (5, 4)] {
            assert!(read(&[bad]).is_err(), "{bad:?}");
        }
    }
}
